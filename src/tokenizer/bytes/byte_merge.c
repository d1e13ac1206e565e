/* Merges the bytes of one word. Short words use a scan for each merge, long ones a heap: n log n.
 * If merging starts from characters, a word may be a whole text: it is first split at all places
 * that no merge can span, as in bpe.c. */
#include "base/utf8.h"
#include "tokenizer/bytes/byte_level.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SCANNED_SYMBOLS = 48 }; /* up to this length a scan beats the heap */

#define NO_RANK UINT32_MAX

/* ---- few symbols ---- */

struct scan {
    int32_t ids[SCANNED_SYMBOLS];
    struct {
        uint32_t rank; /* of this symbol with the next one; NO_RANK: they do not merge */
        int32_t id;
    } next[SCANNED_SYMBOLS];
    int n;
};

static void look_right(struct scan *s, const struct byte_level *level, int i)
{
    const struct merge_slot *merge = i + 1 < s->n ? byte_level_find_merge(level, s->ids[i], s->ids[i + 1])
                                                  : NULL;
    s->next[i].rank = merge ? merge->rank : NO_RANK;
    s->next[i].id = merge ? merge->id : -1;
}

static void merge_by_scan(struct scan *s, const struct byte_level *level)
{
    for (int i = 0; i < s->n; i++)
        look_right(s, level, i);
    for (;;) {
        int best = -1;
        uint32_t best_rank = NO_RANK;
        for (int i = 0; i + 1 < s->n; i++) {
            if (s->next[i].rank < best_rank) {
                best = i;
                best_rank = s->next[i].rank;
            }
        }
        if (best < 0)
            return;
        s->ids[best] = s->next[best].id;
        s->n--;
        size_t n_behind = (size_t)(s->n - best - 1);
        memmove(&s->ids[best + 1], &s->ids[best + 2], n_behind * sizeof *s->ids);
        memmove(&s->next[best + 1], &s->next[best + 2], n_behind * sizeof *s->next);
        if (best > 0)
            look_right(s, level, best - 1);
        look_right(s, level, best);
    }
}

/* ---- many symbols ---- */

struct symbol {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t prev, next;
};

/* The rank identifies the pair, so together with the position it shows whether both symbols still
 * exist. */
struct pair {
    uint32_t rank;
    int32_t at; /* the left symbol */
};

struct heap {
    const struct byte_level *level;
    struct symbol *symbols;
    struct pair *pairs;
    size_t n;
};

static bool goes_first(const struct pair *a, const struct pair *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

/* The merge of a symbol and the next one; NULL: none, or the symbol was merged away. */
static const struct merge_slot *find_at(const struct heap *h, int32_t at)
{
    const struct symbol *s = at < 0 ? NULL : &h->symbols[at];
    return s && s->id >= 0 && s->next >= 0 ? byte_level_find_merge(h->level, s->id, h->symbols[s->next].id)
                                           : NULL;
}

static void push_candidate(struct heap *h, int32_t at)
{
    const struct merge_slot *merge = find_at(h, at);
    if (!merge)
        return;
    struct pair pair = { .rank = merge->rank, .at = at };
    size_t i = h->n++;
    while (i > 0 && goes_first(&pair, &h->pairs[(i - 1) / 2])) {
        h->pairs[i] = h->pairs[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->pairs[i] = pair;
}

static struct pair pop(struct heap *h)
{
    struct pair top = h->pairs[0], last = h->pairs[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && goes_first(&h->pairs[child + 1], &h->pairs[child]))
            child++;
        if (!goes_first(&h->pairs[child], &last))
            break;
        h->pairs[i] = h->pairs[child];
        i = child;
    }
    h->pairs[i] = last;
    return top;
}

/* ids[n], merged in place; returns how many are left, -1: out of memory. */
static int32_t merge_by_heap(const struct byte_level *level, int32_t *ids, int32_t n)
{
    /* One pair for each two neighbours at first; a merge removes one and adds up to two. */
    struct heap h = { .level = level,
                      .symbols = malloc((size_t)n * sizeof *h.symbols),
                      .pairs = malloc(2 * (size_t)n * sizeof *h.pairs) };
    if (!h.symbols || !h.pairs) {
        free(h.symbols);
        free(h.pairs);
        return -1;
    }
    for (int32_t i = 0; i < n; i++)
        h.symbols[i] = (struct symbol){ .id = ids[i], .prev = i - 1, .next = i + 1 < n ? i + 1 : -1 };
    for (int32_t i = 0; i < n; i++)
        push_candidate(&h, i);
    while (h.n > 0) {
        struct pair p = pop(&h);
        const struct merge_slot *merge = find_at(&h, p.at);
        if (!merge || merge->rank != p.rank)
            continue; /* one of the two has been merged meanwhile */
        struct symbol *left = &h.symbols[p.at], *right = &h.symbols[left->next];
        left->id = merge->id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            h.symbols[left->next].prev = p.at;
        push_candidate(&h, left->prev);
        push_candidate(&h, p.at);
    }
    int32_t n_left = 0;
    for (int32_t i = 0; i >= 0; i = h.symbols[i].next)
        ids[n_left++] = h.symbols[i].id; /* NOLINT(clang-analyzer-core.uninitialized.Assign): set above */
    free(h.symbols);
    free(h.pairs);
    return n_left;
}

/* ---- words ---- */

/* The tokens of single bytes. A byte without a token becomes the unknown token, or is dropped if
 * there is none. */
static int32_t first_symbols(const struct tokenizer *tok, const char *word, size_t n_bytes, int32_t *ids)
{
    const struct byte_level *level = tok->level;
    int32_t n = 0;
    bool after_unknown = false;
    for (size_t i = 0; i < n_bytes; i++) {
        int32_t id = level->byte_ids[(uint8_t)word[i]];
        bool is_unknown = id < 0;
        if (is_unknown && (tok->unk_id < 0 || (after_unknown && level->fuses_unknown)))
            continue;
        ids[n++] = is_unknown ? tok->unk_id : id;
        after_unknown = is_unknown;
    }
    return n;
}

/* The token of one character; -1: none. Marks depend on its position in the word. */
static int32_t find_character(const struct tokenizer *tok, const char *text, size_t n_bytes, bool is_first,
                              bool is_last)
{
    const struct byte_level *level = tok->level;
    const struct buf *inner = &level->inner_mark, *end = &level->end_mark;
    if ((is_first || inner->n_bytes == 0) && (!is_last || end->n_bytes == 0)) {
        int32_t id = n_bytes == 1 ? level->byte_ids[(uint8_t)*text] : tokenizer_find(tok, text, n_bytes);
        return id >= 0 && tok->pieces[id].type != PIECE_CONTROL ? id : -1;
    }
    char marked[2 * MAX_WORD_MARK_BYTES + 4];
    size_t n = 0;
    if (!is_first && inner->n_bytes > 0) {
        memcpy(marked, inner->bytes, inner->n_bytes);
        n = inner->n_bytes;
    }
    memcpy(marked + n, text, n_bytes);
    n += n_bytes;
    if (is_last && end->n_bytes > 0) {
        memcpy(marked + n, end->bytes, end->n_bytes);
        n += end->n_bytes;
    }
    int32_t id = tokenizer_find(tok, marked, n);
    return id >= 0 && tok->pieces[id].type != PIECE_CONTROL ? id : -1;
}

/* Adds the tokens of a character's bytes. False: some are missing. */
static bool add_byte_tokens(const struct tokenizer *tok, const char *text, size_t n_bytes, int32_t *ids,
                            int32_t *n)
{
    if (!vocab_has_bytes(tok, text, n_bytes))
        return false;
    for (size_t i = 0; i < n_bytes; i++)
        ids[(*n)++] = tok->byte_ids[(uint8_t)text[i]];
    return true;
}

/* The tokens of single characters, else of their bytes, else the unknown one. At most as many as
 * bytes. As in the library, an unknown token is added only before the next character that has a
 * token or bytes. */
static int32_t first_characters(const struct tokenizer *tok, const char *word, size_t n_bytes, int32_t *ids)
{
    int32_t n = 0;
    bool has_unknown = false;
    for (size_t at = 0; at < n_bytes;) {
        int length = utf8_char(word + at, n_bytes - at);
        size_t n_char = length > 0 ? (size_t)length : 1; /* text is valid, but may be split anywhere */
        int32_t id = find_character(tok, word + at, n_char, at == 0, at + n_char == n_bytes);
        if (id >= 0) {
            if (has_unknown)
                ids[n++] = tok->unk_id;
            has_unknown = false;
            ids[n++] = id;
        } else if (!add_byte_tokens(tok, word + at, n_char, ids, &n) && tok->unk_id >= 0) {
            if (has_unknown && !tok->level->fuses_unknown)
                ids[n++] = tok->unk_id;
            has_unknown = true;
        }
        at += n_char;
    }
    if (has_unknown)
        ids[n++] = tok->unk_id;
    return n;
}

static int32_t first_ids(const struct tokenizer *tok, const char *word, size_t n_bytes, int32_t *ids)
{
    return (tok->level->has_characters ? first_characters : first_symbols)(tok, word, n_bytes, ids);
}

/* The first and last characters of a part of a merge, as ids. False: it may consist of something
 * else. */
static bool find_ends(const struct tokenizer *tok, int32_t id, int32_t *first, int32_t *last)
{
    const char *bytes = vocab_bytes(tok, id);
    size_t n_bytes = tok->pieces[id].n_bytes;
    if (id == tok->unk_id || vocab_byte_value(bytes, n_bytes) >= 0)
        return false;
    for (size_t at = 0; at < n_bytes;) {
        int length = utf8_char(bytes + at, n_bytes - at);
        if (length <= 0)
            return false;
        *last = find_character(tok, bytes + at, (size_t)length, true, true);
        *first = at == 0 ? *last : *first;
        at += (size_t)length;
    }
    return true;
}

bool byte_level_index_joints(struct tokenizer *tok)
{
    const struct byte_level *level = tok->level;
    if (!level->has_characters || level->inner_mark.n_bytes + level->end_mark.n_bytes > 0)
        return true;
    if (!vocab_new_joints(tok))
        return false;
    for (size_t i = 0; i < level->n_pairs; i++) {
        int32_t first[2] = { -1, -1 }, last[2] = { -1, -1 };
        if (!find_ends(tok, level->pairs[i].left, &first[0], &last[0]) ||
            !find_ends(tok, level->pairs[i].right, &first[1], &last[1])) {
            free(tok->joints);
            tok->joints = NULL;
            return true;
        }
        if (last[0] >= 0 && first[1] >= 0)
            vocab_add_joint(tok, (uint32_t)last[0], (uint32_t)first[1]);
    }
    return true;
}

/* ids[n], merged in place; returns how many are left, -1: out of memory. */
static int32_t merge_segment(const struct byte_level *level, int32_t *ids, int32_t n)
{
    if (n == 1)
        return 1;
    if (n > SCANNED_SYMBOLS)
        return merge_by_heap(level, ids, n);
    struct scan s;
    s.n = n;
    memcpy(s.ids, ids, (size_t)n * sizeof *ids);
    merge_by_scan(&s, level);
    memcpy(ids, s.ids, (size_t)s.n * sizeof *ids);
    return s.n;
}

/* The same for any number of first symbols. */
static int32_t merge_segments(const struct tokenizer *tok, int32_t *ids, int32_t n)
{
    int32_t n_left = 0;
    for (int32_t begin = 0, end; begin < n; begin = end) {
        end = begin + 1;
        while (end < n && (!tok->joints || vocab_may_join(tok, (uint32_t)ids[end - 1], (uint32_t)ids[end])))
            end++;
        int32_t n_merged = merge_segment(tok->level, ids + begin, end - begin);
        if (n_merged < 0)
            return -1;
        memmove(ids + n_left, ids + begin, (size_t)n_merged * sizeof *ids);
        n_left += n_merged;
    }
    return n_left;
}

static bool merge_word(const struct tokenizer *tok, const char *word, size_t n_bytes, struct ids *out)
{
    if (n_bytes <= SCANNED_SYMBOLS) {
        struct scan s;
        s.n = first_ids(tok, word, n_bytes, s.ids);
        merge_by_scan(&s, tok->level);
        return ids_add_all(out, s.ids, (size_t)s.n);
    }
    int32_t *ids = malloc(n_bytes * sizeof *ids);
    int32_t n = ids ? first_ids(tok, word, n_bytes, ids) : -1;
    size_t longest = tok->level->n_token_bytes > 0 ? tok->level->n_token_bytes : 1;
    if (n > 0 && !ids_has_room(out, ((size_t)n - 1) / longest + 1)) /* no token has more symbols */
        n = -1;
    if (n > 0)
        n = merge_segments(tok, ids, n);
    bool ok = n >= 0 && ids_add_all(out, ids, (size_t)n);
    free(ids);
    return ok;
}

/* Whether merging a token's own bytes gives the token. Computed on first use; all threads get the
 * same result. */
enum whole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO, WHOLE_NO_MEMORY };

static enum whole is_whole(const struct tokenizer *tok, int32_t id)
{
    enum whole known = atomic_load_explicit(&tok->level->whole[id], memory_order_relaxed);
    if (known != WHOLE_UNKNOWN)
        return known;
    struct ids ids = { 0 };
    if (!merge_word(tok, vocab_bytes(tok, id), tok->pieces[id].n_bytes, &ids)) {
        ids_clear(&ids);
        return WHOLE_NO_MEMORY;
    }
    known = ids.n == 1 && ids.ids[0] == id ? WHOLE_YES : WHOLE_NO;
    atomic_store_explicit(&tok->level->whole[id], (uint8_t)known, memory_order_relaxed);
    ids_clear(&ids);
    return known;
}

bool byte_level_has_whole_tokens(const struct tokenizer *tok)
{
    bool are_whole = true;
    for (int32_t id = 0; id < tok->n_library_pieces && are_whole; id++)
        are_whole = !vocab_is_mergeable(tok, id) || is_whole(tok, id) == WHOLE_YES;
    return are_whole;
}

bool byte_level_encode_word(const struct tokenizer *tok, const char *word, size_t n_bytes, struct ids *out)
{
    const struct byte_level *level = tok->level;
    bool has_marks = level->inner_mark.n_bytes + level->end_mark.n_bytes > 0;
    if (level->words.kind != WORDS_BY_MERGES)
        return word_model_encode(&level->words, tok, word, n_bytes, out);
    int32_t id = n_bytes <= level->n_token_bytes && (level->ignores_merges || !has_marks)
                     ? tokenizer_find(tok, word, n_bytes)
                     : -1;
    if (id >= 0 && vocab_is_mergeable(tok, id)) {
        bool is_taken = level->ignores_merges || (level->takes_feeds_whole && *word == '\n');
        enum whole whole = is_taken ? WHOLE_YES : is_whole(tok, id);
        if (whole == WHOLE_NO_MEMORY)
            return false;
        if (whole == WHOLE_YES)
            return ids_add(out, id);
    }
    return merge_word(tok, word, n_bytes, out);
}
