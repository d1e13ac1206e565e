/* Byte-pair encoding in SentencePiece's order: of all neighbouring pairs whose union is a piece,
 * the one with the highest score merges next, of equal ones the leftmost. Sennrich, Haddow and
 * Birch, 2016; Kudo and Richardson, 2018.
 *
 * Merges on the two sides of a position that no piece spans are independent. So the text is split
 * at all such positions, and the segments are merged one by one. Most segments are words, which
 * use a scan for each merge; long ones use a heap. */
#include "tokenizer/vocab/vocab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    INLINE_SYMBOLS = 128, /* segments up to this length need no allocation */
    SCANNED_SYMBOLS = 32, /* up to this length a scan beats the heap */
};

struct bpe_symbol {
    uint32_t offset, n_bytes; /* in the normalized text; n_bytes 0: merged into its left neighbour */
    int32_t id;               /* the piece that it was merged into, or CHARACTER or FROZEN */
    union {
        int32_t prev;     /* with the heap; -1: none */
        int32_t union_id; /* in a scan: the union of this and the next symbol; -1: none */
    };
    int32_t next; /* the next symbol; -1: none */
};

enum { CHARACTER = -1, FROZEN = -2 }; /* one character; a USER_DEFINED piece, which never merges */

struct bpe_pair {
    float score;
    int32_t left; /* the other one is its next */
    /* Of both together: symbols only grow, so a change shows that the pair is outdated. */
    uint32_t n_bytes;
    int32_t id;
};

struct bpe_encoder {
    const struct tokenizer *tok;
    const char *text;
    struct ids *out;
    struct bpe_symbol *symbols; /* of this segment: [capacity] */
    struct bpe_pair *heap;      /* [2 * capacity]: one for each pair; a merge removes one and adds two */
    int32_t n_symbols, capacity;
    size_t n_heap;
    bool after_unknown; /* a run of unknown characters is one unknown piece */
    bool takes_marks;
    /* [n_pieces], only if the vocabulary has UNUSED pieces: the bytes of the left part that such
     * a piece was last merged from; 0: never. */
    uint32_t *split_at;
    struct buf parts; /* of an UNUSED piece that is split again, still to be added */
    struct bpe_symbol inline_symbols[INLINE_SYMBOLS];
    struct bpe_pair inline_heap[2 * INLINE_SYMBOLS];
};

static bool goes_first(const struct bpe_pair *a, const struct bpe_pair *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void heap_push(struct bpe_encoder *e, struct bpe_pair pair)
{
    size_t i = e->n_heap++;
    while (i > 0 && goes_first(&pair, &e->heap[(i - 1) / 2])) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = pair;
}

static struct bpe_pair heap_pop(struct bpe_encoder *e)
{
    struct bpe_pair top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= e->n_heap)
            break;
        if (child + 1 < e->n_heap && goes_first(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (!goes_first(&e->heap[child], &last))
            break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

/* The union piece of two neighbours; -1: none. */
static int32_t find_union(struct bpe_encoder *e, const struct bpe_symbol *left,
                          const struct bpe_symbol *right)
{
    uint32_t n_bytes = left->n_bytes + right->n_bytes;
    if (left->id == FROZEN || right->id == FROZEN || n_bytes > e->tok->n_merge_bytes)
        return -1;
    int32_t id = tokenizer_find(e->tok, e->text + left->offset, n_bytes);
    if (id < 0 || !vocab_is_mergeable(e->tok, id))
        return -1;
    if (e->split_at && e->tok->pieces[id].type == PIECE_UNUSED)
        e->split_at[id] = left->n_bytes;
    return id;
}

/* ---- many symbols: a heap of pairs, over a linked list ---- */

static void bpe_consider(struct bpe_encoder *e, int32_t left)
{
    struct bpe_symbol *l = left < 0 ? NULL : &e->symbols[left];
    if (!l || l->next < 0)
        return;
    int32_t id = find_union(e, l, &e->symbols[l->next]);
    if (id >= 0)
        heap_push(e, (struct bpe_pair){ .score = e->tok->pieces[id].score,
                                        .left = left,
                                        .n_bytes = l->n_bytes + e->symbols[l->next].n_bytes,
                                        .id = id });
}

static void merge_by_heap(struct bpe_encoder *e)
{
    e->n_heap = 0;
    for (int32_t i = 0; i < e->n_symbols; i++) {
        e->symbols[i].prev = i - 1;
        e->symbols[i].next = i + 1 < e->n_symbols ? i + 1 : -1;
    }
    for (int32_t i = 0; i < e->n_symbols; i++)
        bpe_consider(e, i);
    while (e->n_heap > 0) {
        struct bpe_pair p = heap_pop(e);
        struct bpe_symbol *left = &e->symbols[p.left];
        struct bpe_symbol *right = left->next < 0 ? NULL : &e->symbols[left->next];
        if (left->n_bytes == 0 || !right || left->n_bytes + right->n_bytes != p.n_bytes)
            continue; /* one of the two has been merged meanwhile */
        left->n_bytes = p.n_bytes;
        left->id = p.id;
        left->next = right->next;
        if (right->next >= 0)
            e->symbols[right->next].prev = p.left;
        right->n_bytes = 0;
        bpe_consider(e, left->prev);
        bpe_consider(e, p.left);
    }
}

/* ---- few symbols: look at all of them before each merge ---- */

static void look_right(struct bpe_encoder *e, int32_t i)
{
    if (i >= 0 && i < e->n_symbols)
        e->symbols[i].union_id = i + 1 < e->n_symbols ? find_union(e, &e->symbols[i], &e->symbols[i + 1])
                                                      : -1;
}

static void merge_by_scan(struct bpe_encoder *e)
{
    const struct piece_entry *pieces = e->tok->pieces;
    for (int32_t i = 0; i < e->n_symbols; i++)
        look_right(e, i);
    for (;;) {
        int32_t best = -1;
        float best_score = 0;
        for (int32_t i = 0; i + 1 < e->n_symbols; i++) {
            int32_t id = e->symbols[i].union_id;
            if (id >= 0 && (best < 0 || pieces[id].score > best_score)) {
                best = i;
                best_score = pieces[id].score;
            }
        }
        if (best < 0)
            return;
        struct bpe_symbol *left = &e->symbols[best];
        left->id = left->union_id;
        left->n_bytes += left[1].n_bytes;
        e->n_symbols--;
        memmove(left + 1, left + 2, (size_t)(e->n_symbols - best - 1) * sizeof *left);
        look_right(e, best - 1);
        look_right(e, best);
    }
}

/* ---- symbols to ids ---- */

static bool add_unknown(struct bpe_encoder *e, const char *text, uint32_t n_bytes)
{
    if (vocab_has_bytes(e->tok, text, n_bytes)) {
        e->after_unknown = false;
        for (uint32_t i = 0; i < n_bytes; i++) {
            if (!ids_add(e->out, e->tok->byte_ids[(uint8_t)text[i]]))
                return false;
        }
        return true;
    }
    bool fuses = e->after_unknown;
    e->after_unknown = true;
    return fuses || ids_add(e->out, e->tok->unk_id);
}

static int32_t find_character(const struct tokenizer *tok, const char *text, uint32_t n_bytes)
{
    if (n_bytes == 1 && !(text[0] & 0x80))
        return tok->ascii_ids[(int)text[0]];
    int32_t id = tokenizer_find(tok, text, n_bytes);
    return id >= 0 && vocab_is_mergeable(tok, id) ? id : -1;
}

/* An UNUSED piece is split again into the parts it was merged from, until they are usable. One
 * that was not merged is unknown. */
static bool add_unused(struct bpe_encoder *e, const struct bpe_symbol *symbol, int32_t id)
{
    struct part {
        uint32_t offset, n_bytes;
    } part = { symbol->offset, symbol->n_bytes };
    buf_truncate(&e->parts, 0);
    for (;;) {
        const char *text = e->text + part.offset;
        bool is_unused = id >= 0 && e->tok->pieces[id].type == PIECE_UNUSED;
        uint32_t left = is_unused && e->split_at ? e->split_at[id] : 0;
        if (left > 0 && left < part.n_bytes) {
            struct part right = { part.offset + left, part.n_bytes - left };
            if (!buf_add(&e->parts, &right, sizeof right))
                return false;
            part.n_bytes = left;
        } else {
            bool is_unknown = id < 0 || is_unused;
            e->after_unknown &= is_unknown;
            if (!(is_unknown ? add_unknown(e, text, part.n_bytes) : ids_add(e->out, id)))
                return false;
            if (e->parts.n_bytes == 0)
                return true;
            memcpy(&part, e->parts.bytes + e->parts.n_bytes - sizeof part, sizeof part);
            buf_truncate(&e->parts, e->parts.n_bytes - sizeof part);
        }
        id = find_character(e->tok, e->text + part.offset, part.n_bytes);
    }
}

static bool add_symbol(struct bpe_encoder *e, const struct bpe_symbol *symbol)
{
    const char *text = e->text + symbol->offset;
    int32_t id = symbol->id >= 0        ? symbol->id
                 : symbol->id == FROZEN ? tokenizer_find(e->tok, text, symbol->n_bytes)
                                        : find_character(e->tok, text, symbol->n_bytes);
    if (id >= 0 && e->tok->pieces[id].type == PIECE_UNUSED)
        return add_unused(e, symbol, id);
    if (id < 0)
        return add_unknown(e, text, symbol->n_bytes);
    e->after_unknown = false;
    return ids_add(e->out, id);
}

static bool end_segment(struct bpe_encoder *e)
{
    bool ok = true;
    if (e->n_symbols > SCANNED_SYMBOLS) {
        merge_by_heap(e);
        for (int32_t i = 0; ok && i >= 0; i = e->symbols[i].next)
            ok = add_symbol(e, &e->symbols[i]);
    } else {
        merge_by_scan(e);
        for (int32_t i = 0; ok && i < e->n_symbols; i++)
            ok = add_symbol(e, &e->symbols[i]);
    }
    e->n_symbols = 0;
    return ok;
}

/* ---- text to segments ---- */

/* Each character that is a piece becomes a part of some id, and no id has more bytes than the
 * longest piece. So a long segment that cannot fit is refused before allocating memory and
 * merging. */
static bool may_fit(struct bpe_encoder *e)
{
    size_t n_bytes = 0, longest = e->tok->n_merge_bytes > 0 ? e->tok->n_merge_bytes : 1;
    for (int32_t i = 0; e->out->max > 0 && i < e->n_symbols; i++) {
        const struct bpe_symbol *s = &e->symbols[i];
        if (s->id != FROZEN && (vocab_has_bytes(e->tok, e->text + s->offset, s->n_bytes) ||
                                find_character(e->tok, e->text + s->offset, s->n_bytes) >= 0))
            n_bytes += s->n_bytes;
    }
    return ids_has_room(e->out, n_bytes / longest);
}

static bool encoder_grow(struct bpe_encoder *e)
{
    assert(e->capacity >= INLINE_SYMBOLS);
    if (!may_fit(e))
        return false;
    int32_t capacity = 2 * e->capacity;
    struct bpe_symbol *symbols = malloc((size_t)capacity * (sizeof *symbols + 2 * sizeof *e->heap));
    if (!symbols)
        return false;
    memcpy(symbols, e->symbols, (size_t)e->n_symbols * sizeof *symbols);
    if (e->symbols != e->inline_symbols)
        free(e->symbols);
    e->symbols = symbols;
    e->heap = (struct bpe_pair *)(symbols + capacity);
    e->capacity = capacity;
    return true;
}

static bool add_to_segment(struct bpe_encoder *e, size_t offset, size_t n_bytes, int32_t id)
{
    if (e->n_symbols == e->capacity && !encoder_grow(e))
        return false;
    e->symbols[e->n_symbols++] = (struct bpe_symbol){ .offset = (uint32_t)offset,
                                                      .n_bytes = (uint32_t)n_bytes,
                                                      .id = id };
    return true;
}

/* With UNUSED pieces the library remembers for the whole text how each was merged last, so the
 * text is not split. */
static bool encode_normalized(struct bpe_encoder *e, size_t n_bytes)
{
    const struct tokenizer *tok = e->tok;
    uint32_t last = 0;
    bool is_closed = true; /* nothing can merge with the text to the left */
    for (size_t at = 0, n; at < n_bytes; at += n) {
        const char *text = e->text + at;
        n = tok->user_defined.n_nodes > 0 ? vocab_match_user_defined(tok, text, n_bytes - at, e->takes_marks)
                                          : 0;
        bool is_frozen = n > 0;
        uint32_t code = 0;
        if (!is_frozen) {
            n = vocab_char_length(text, n_bytes - at);
            code = vocab_char_code(text, n);
        }
        if ((is_closed || is_frozen || !vocab_may_join(tok, last, code)) && !tok->has_unused &&
            e->n_symbols > 0 && !end_segment(e))
            return false;
        if (!add_to_segment(e, at, n, is_frozen ? FROZEN : CHARACTER))
            return false;
        last = code;
        is_closed = is_frozen;
    }
    return e->n_symbols == 0 || end_segment(e);
}

bool bpe_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_marks,
                struct ids *out)
{
    struct bpe_encoder e;
    e.tok = tok;
    e.text = text;
    e.out = out;
    e.symbols = e.inline_symbols;
    e.heap = e.inline_heap;
    e.n_symbols = 0;
    e.capacity = INLINE_SYMBOLS;
    e.after_unknown = false;
    e.takes_marks = takes_marks;
    e.parts = (struct buf){ 0 };
    e.split_at = tok->has_unused ? calloc((size_t)tok->n_pieces, sizeof *e.split_at) : NULL;
    bool ok = (e.split_at || !tok->has_unused) && encode_normalized(&e, n_bytes);
    if (e.symbols != e.inline_symbols)
        free(e.symbols);
    free(e.split_at);
    buf_clear(&e.parts);
    return ok;
}
