/* Builds byte-level tokenizers: shared by the readers of all file formats. */
#include "tokenizer/bytes/byte_level.h"

#include "base/limits.h"
#include "base/utf8.h"
#include "tokenizer/unicode/byte_map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct tokenizer *byte_level_new(void)
{
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok)
        return NULL;
    tok->kind = TOKENIZER_BYTE_LEVEL;
    tok->unk_id = tok->bos_id = tok->eos_id = -1;
    tok->level = calloc(1, sizeof *tok->level);
    if (!tok->level) {
        tokenizer_free(tok);
        return NULL;
    }
    memset(tok->level->byte_ids, -1, sizeof tok->level->byte_ids);
    memset(tok->byte_ids, -1, sizeof tok->byte_ids);
    return tok;
}

void byte_level_free(struct byte_level *level)
{
    if (!level)
        return;
    normalizers_clear(&level->normalizers);
    word_model_clear(&level->words);
    text_decoder_clear(&level->decoder);
    buf_clear(&level->inner_mark);
    buf_clear(&level->end_mark);
    pretokenizer_clear(&level->pre);
    free(level->pairs);
    free(level->merges);
    free(level->merge_filter);
    free((void *)level->whole);
    free(level);
}

/* ---- tokens ---- */

/* Ids that no token has are UNUSED and empty. */
static bool grow_to(struct tokenizer *tok, int64_t n_pieces)
{
    while (tok->n_pieces < n_pieces) {
        if (!vocab_add(tok, "", 0, 0, PIECE_UNUSED))
            return false;
    }
    return true;
}

static bool is_free(const struct tokenizer *tok, int64_t id)
{
    return id >= tok->n_pieces || (tok->pieces[id].type == PIECE_UNUSED && tok->pieces[id].n_bytes == 0);
}

enum tutti_status byte_level_put(struct tokenizer *tok, int64_t id, const char *bytes, size_t n_bytes,
                                 enum piece_type type, size_t n_expected, const char *name,
                                 struct tutti_error *err)
{
    if (n_bytes == 0 || n_bytes > MAX_PIECE_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: token %" PRId64 " has %zu bytes, expected 1 to %d", name,
                         id, n_bytes, MAX_PIECE_BYTES);
    uint64_t limit = 4 * (uint64_t)n_expected + 4096; /* gaps are padding, so there are few */
    if (limit > LIMIT_VOCAB)
        limit = LIMIT_VOCAB;
    if (id < 0 || (uint64_t)id >= limit)
        return error_set(err, TUTTI_E_FORMAT, "%s: token \"%.*s\" has id %" PRId64 ", expected 0 to %" PRIu64,
                         name, (int)(n_bytes < 64 ? n_bytes : 64), bytes, id, limit - 1);
    if (!is_free(tok, id))
        return error_set(err, TUTTI_E_FORMAT, "%s: tokens \"%.*s\" and \"%.*s\" both have id %" PRId64, name,
                         (int)(tok->pieces[id].n_bytes < 64 ? tok->pieces[id].n_bytes : 64),
                         vocab_bytes(tok, (int32_t)id), (int)(n_bytes < 64 ? n_bytes : 64), bytes, id);
    if (!grow_to(tok, id + 1) || tok->bytes.n_bytes > UINT32_MAX - n_bytes)
        return error_out_of_memory(name, err);
    size_t offset = tok->bytes.n_bytes;
    if (!buf_add(&tok->bytes, bytes, n_bytes))
        return error_out_of_memory(name, err);
    tok->pieces[id] = (struct piece_entry){ .offset = (uint32_t)offset,
                                            .n_bytes = (uint32_t)n_bytes,
                                            .type = (uint8_t)type };
    return TUTTI_OK;
}

/* A NORMAL token outside the alphabet has the score 1: no merge produces it. */
static const float LITERAL_SCORE = 1;

static enum tutti_status put_characters(struct tokenizer *tok, int64_t id, const char *spelling,
                                        size_t n_bytes, size_t n_expected, const char *name,
                                        struct tutti_error *err)
{
    bool has_bytes = tok->byte_fallback || tok->level->decoder.falls_back;
    int value = has_bytes ? vocab_byte_value(spelling, n_bytes) : -1;
    enum tutti_status st = byte_level_put(tok, id, spelling, n_bytes, value >= 0 ? PIECE_BYTE : PIECE_NORMAL,
                                          n_expected, name, err);
    if (st == TUTTI_OK && value >= 0)
        tok->byte_ids[value] = (int32_t)id;
    return st;
}

enum tutti_status byte_level_put_spelled(struct tokenizer *tok, int64_t id, const char *spelling,
                                         size_t n_bytes, size_t n_expected, const char *name,
                                         struct tutti_error *err)
{
    if (tok->level->has_characters)
        return put_characters(tok, id, spelling, n_bytes, n_expected, name, err);
    struct buf bytes = { 0 };
    if (!buf_reserve(&bytes, n_bytes + 1))
        return error_out_of_memory(name, err);
    bool is_spelled = byte_map_read(spelling, n_bytes, &bytes);
    enum tutti_status st = byte_level_put(tok, id, is_spelled ? bytes.bytes : spelling,
                                          is_spelled ? bytes.n_bytes : n_bytes, PIECE_NORMAL, n_expected,
                                          name, err);
    if (st == TUTTI_OK && !is_spelled)
        tok->pieces[id].score = LITERAL_SCORE;
    buf_clear(&bytes);
    return st;
}

/* Whether the token's text is the same in the alphabet and as plain text. */
static bool is_plain_ascii(const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (bytes[i] < 33 || bytes[i] > 126)
            return false;
    }
    return true;
}

static bool can_be_merged(const struct tokenizer *tok, int32_t id)
{
    const struct piece_entry *p = &tok->pieces[id];
    if (p->n_bytes == 0 || p->type == PIECE_UNKNOWN)
        return false;
    return p->type == PIECE_NORMAL ? p->score != LITERAL_SCORE
                                   : is_plain_ascii(vocab_bytes(tok, id), p->n_bytes);
}

enum tutti_status byte_level_index(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    if (tok->n_pieces == 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: there are no tokens", name);
    if (!vocab_new_index(tok))
        return error_out_of_memory(name, err);
    for (int32_t id = 0; id < tok->n_pieces; id++) {
        if (!can_be_merged(tok, id))
            continue;
        int32_t other = vocab_add_to_index(tok, id);
        uint32_t n_bytes = tok->pieces[id].n_bytes;
        if (other >= 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: tokens %d and %d are both spelled \"%.*s\"", name,
                             other, id, (int)(n_bytes < 64 ? n_bytes : 64), vocab_bytes(tok, id));
        if (n_bytes == 1 && tok->pieces[id].type != PIECE_CONTROL)
            level->byte_ids[(uint8_t)vocab_bytes(tok, id)[0]] = id;
        if (n_bytes > level->n_token_bytes)
            level->n_token_bytes = n_bytes;
    }
    return TUTTI_OK;
}

/* ---- merges ---- */

/* The id of a spelling; -1: not a token that merges can produce. */
static int32_t find_spelled(const struct tokenizer *tok, const char *spelling, size_t n_bytes,
                            struct buf *scratch)
{
    if (tok->level->has_characters)
        return tokenizer_find(tok, spelling, n_bytes);
    buf_truncate(scratch, 0);
    return byte_map_read(spelling, n_bytes, scratch)
               ? tokenizer_find(tok, scratch->bytes ? scratch->bytes : "", scratch->n_bytes)
               : -1;
}

static bool add_pair(struct byte_level *level, int32_t left, int32_t right)
{
    if (level->n_pairs == level->pairs_capacity) {
        size_t capacity = level->pairs_capacity + level->pairs_capacity / 2 + 1024;
        struct merge_pair *pairs = realloc(level->pairs, capacity * sizeof *pairs);
        if (!pairs)
            return false;
        level->pairs = pairs;
        level->pairs_capacity = capacity;
    }
    level->pairs[level->n_pairs++] = (struct merge_pair){ left, right };
    return true;
}

enum tutti_status byte_level_add_merge(struct tokenizer *tok, const char *left, size_t n_left,
                                       const char *right, size_t n_right, const char *name,
                                       struct tutti_error *err)
{
    struct buf scratch = { 0 };
    enum tutti_status st = TUTTI_OK;
    size_t n_known = tok->level->n_pairs;
    if (n_known >= LIMIT_VOCAB)
        return error_set(err, TUTTI_E_LIMIT, "%s: more than %d merges", name, LIMIT_VOCAB);
    if (n_left > 2 * MAX_PIECE_BYTES || n_right > 2 * MAX_PIECE_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: merge %zu is too long", name, n_known);
    if (!buf_reserve(&scratch, n_left + n_right + 1))
        return error_out_of_memory(name, err);
    int32_t l = find_spelled(tok, left, n_left, &scratch), r = find_spelled(tok, right, n_right, &scratch);
    if (l < 0 || r < 0) {
        const char *missing = l < 0 ? left : right;
        size_t n = l < 0 ? n_left : n_right;
        st = error_set(err, TUTTI_E_FORMAT, "%s: merge %zu: \"%.*s\" is no token", name, n_known,
                       (int)(n < 64 ? n : 64), missing);
    } else if (!add_pair(tok->level, l, r)) {
        st = error_out_of_memory(name, err);
    }
    buf_clear(&scratch);
    return st;
}

enum tutti_status byte_level_add_merge_line(struct tokenizer *tok, const char *line, size_t n_bytes,
                                            const char *name, struct tutti_error *err)
{
    /* No letter of the alphabet is a blank, so the only blank is the separator. */
    const char *blank = n_bytes > 1 ? memchr(line + 1, ' ', n_bytes - 1) : NULL;
    if (!blank || blank + 1 == line + n_bytes)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: merge %zu is \"%.*s\", expected two tokens with a blank between", name,
                         tok->level->n_pairs, (int)(n_bytes < 64 ? n_bytes : 64), line);
    size_t n_left = (size_t)(blank - line);
    return byte_level_add_merge(tok, line, n_left, blank + 1, n_bytes - n_left - 1, name, err);
}

static bool new_merges(struct byte_level *level, size_t n)
{
    uint32_t n_slots = 16;
    int log2_bits = 10;
    while (n_slots < n + n / 2 + 1)
        n_slots *= 2;
    while (log2_bits < 21 && (size_t)1 << log2_bits < 16 * n)
        log2_bits++;
    level->merge_mask = n_slots - 1;
    level->filter_shift = 64 - log2_bits;
    level->merges = malloc(n_slots * sizeof *level->merges);
    level->merge_filter = calloc((size_t)1 << (log2_bits - 6), sizeof *level->merge_filter);
    if (!level->merges || !level->merge_filter)
        return false;
    memset(level->merges, -1, n_slots * sizeof *level->merges);
    return true;
}

static void set_merge(struct byte_level *level, struct merge_slot merge)
{
    uint64_t bit = byte_level_pair_hash(merge.left, merge.right) >> level->filter_shift;
    level->merge_filter[bit / 64] |= (uint64_t)1 << (bit % 64);
    *byte_level_merge_slot(level, merge.left, merge.right) = merge;
}

/* The token of two tokens joined; -1: none. The mark of a token that continues a word is not
 * repeated. */
static int32_t find_joined(const struct tokenizer *tok, int32_t left, int32_t right, struct buf *scratch)
{
    const struct buf *mark = &tok->level->inner_mark;
    const char *bytes = vocab_bytes(tok, right);
    size_t n_bytes = tok->pieces[right].n_bytes;
    if (mark->n_bytes > 0 && n_bytes >= mark->n_bytes && memcmp(bytes, mark->bytes, mark->n_bytes) == 0) {
        bytes += mark->n_bytes;
        n_bytes -= mark->n_bytes;
    }
    buf_truncate(scratch, 0);
    if (!buf_add(scratch, vocab_bytes(tok, left), tok->pieces[left].n_bytes) ||
        !buf_add(scratch, bytes, n_bytes))
        return -1;
    return tokenizer_find(tok, scratch->bytes, scratch->n_bytes);
}

/* A special token that merges can produce is also an ordinary piece: it stays text, like single
 * characters. */
static void make_ordinary(struct tokenizer *tok, int32_t id)
{
    if (tok->pieces[id].type == PIECE_CONTROL)
        tok->pieces[id].type = PIECE_NORMAL;
}

/* A duplicate pair has its last rank, as in the Hugging Face library. */
static enum tutti_status index_pairs(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    struct buf scratch = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (!new_merges(level, level->n_pairs) || !buf_reserve(&scratch, 4 * MAX_PIECE_BYTES))
        return error_out_of_memory(name, err);
    for (size_t i = 0; st == TUTTI_OK && i < level->n_pairs; i++) {
        struct merge_pair pair = level->pairs[i];
        int32_t id = find_joined(tok, pair.left, pair.right, &scratch);
        if (id < 0)
            st = error_set(err, TUTTI_E_FORMAT, "%s: merge %zu makes \"%.*s\", which is no token", name, i,
                           (int)(scratch.n_bytes < 64 ? scratch.n_bytes : 64), scratch.bytes);
        else
            set_merge(level, (struct merge_slot){
                                 .left = pair.left, .right = pair.right, .rank = (uint32_t)i, .id = id });
        if (id >= 0)
            make_ordinary(tok, id);
    }
    buf_clear(&scratch);
    return st;
}

/* Every two tokens whose concatenation is a token merge, with its id as rank. */
static size_t each_split(const struct tokenizer *tok, int32_t id, struct byte_level *to)
{
    const char *bytes = vocab_bytes(tok, id);
    uint32_t n_bytes = tok->pieces[id].n_bytes;
    size_t n = 0;
    for (uint32_t at = 1; at < n_bytes; at++) {
        int32_t left = tokenizer_find(tok, bytes, at);
        int32_t right = left < 0 ? -1 : tokenizer_find(tok, bytes + at, n_bytes - at);
        if (right < 0 || !vocab_is_mergeable(tok, left) || !vocab_is_mergeable(tok, right))
            continue;
        n++;
        if (to)
            set_merge(to,
                      (struct merge_slot){ .left = left, .right = right, .rank = (uint32_t)id, .id = id });
    }
    return n;
}

static enum tutti_status index_ranks(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    enum { MAX_RANKED_BYTES = 1024 }; /* splits of a token take time quadratic in it */
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && !new_merges(tok->level, n))
            return error_out_of_memory(name, err);
        for (int32_t id = 0; id < tok->n_pieces; id++) {
            if (tok->pieces[id].type != PIECE_NORMAL)
                continue;
            if (tok->pieces[id].n_bytes > MAX_RANKED_BYTES)
                return error_set(err, TUTTI_E_FORMAT, "%s: token %d has %u bytes, expected 1 to %d", name, id,
                                 tok->pieces[id].n_bytes, MAX_RANKED_BYTES);
            n += each_split(tok, id, pass == 1 ? tok->level : NULL);
        }
    }
    return TUTTI_OK;
}

/* ---- added tokens ---- */

int32_t byte_level_find_control(const struct tokenizer *tok, const char *spelling, size_t n_bytes)
{
    for (size_t i = 0; i < tok->added.n; i++) {
        int32_t id = tok->added.list[i].id;
        if (tok->added.list[i].is_special && tok->pieces[id].n_bytes == n_bytes &&
            memcmp(vocab_bytes(tok, id), spelling, n_bytes) == 0)
            return id;
    }
    return -1;
}

/* Whether it is the token of a byte or a character, from which merging starts. */
static bool is_symbol(const struct tokenizer *tok, int32_t id)
{
    const struct piece_entry *p = &tok->pieces[id];
    if (p->type != PIECE_NORMAL || p->score == LITERAL_SCORE)
        return false;
    return p->n_bytes == 1 ||
           (tok->level->has_characters && utf8_char(vocab_bytes(tok, id), p->n_bytes) == (int)p->n_bytes);
}

enum tutti_status byte_level_add(struct tokenizer *tok, const char *text, size_t n_bytes,
                                 struct added_token added, const char *name, struct tutti_error *err)
{
    int32_t id = added.id;
    if (n_bytes == 0 || n_bytes > MAX_ADDED_BYTES || !utf8_is_valid(text, n_bytes))
        return error_set(err, TUTTI_E_FORMAT, "%s: added token %d: expected 1 to %d bytes of UTF-8", name, id,
                         MAX_ADDED_BYTES);
    enum piece_type type = added.is_special ? PIECE_CONTROL : PIECE_USER_DEFINED;
    if (is_free(tok, id)) {
        enum tutti_status st = byte_level_put(tok, id, text, n_bytes, type, (size_t)tok->n_pieces, name, err);
        if (st != TUTTI_OK)
            return st;
    } else {
        struct piece_entry *p = &tok->pieces[id];
        bool is_same = p->n_bytes == n_bytes && memcmp(vocab_bytes(tok, id), text, n_bytes) == 0;
        if (!is_same)
            return error_set(err, TUTTI_E_FORMAT, "%s: added token \"%.*s\" has id %d, which is \"%.*s\"",
                             name, (int)(n_bytes < 64 ? n_bytes : 64), text, id,
                             (int)(p->n_bytes < 64 ? p->n_bytes : 64), vocab_bytes(tok, id));
        if (!is_symbol(tok, id)) /* tokens of bytes and characters stay text */
            p->type = (uint8_t)type;
    }
    return added_tokens_put(&tok->added, added) ? TUTTI_OK : error_out_of_memory(name, err);
}

/* For tokens that are text: blanks become marks, or separate words and are dropped; decoding
 * converts marks to blanks. */
static enum tutti_status use_characters(struct tokenizer *tok, const struct pre_name *named, const char *name,
                                        struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    struct normalizer *marks = &level->normalizers.steps[0];
    struct decode_step *blanks = &level->decoder.steps[0];
    level->decoder.falls_back = true;
    if (named->drops_blanks)
        return pretokenizer_add_named(&level->pre, named, name, err);
    level->takes_feeds_whole = true;
    level->normalizers.n = level->decoder.n_steps = 1;
    *marks = (struct normalizer){ .kind = NORMALIZE_REPLACE };
    *blanks = (struct decode_step){ .kind = DECODE_METASPACE };
    if (!buf_add(&marks->from, " ", 1) || !buf_add(&marks->to, BLANK_MARK, 3) ||
        !buf_add(&blanks->mark, BLANK_MARK, 3))
        return error_out_of_memory(name, err);
    return pretokenizer_add_named(&level->pre, named, name, err);
}

enum tutti_status byte_level_use(struct tokenizer *tok, const struct pre_name *named, const char *pre,
                                 const char *name, struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    if (!named)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: the pre-tokenizer \"%.64s\" is not known", name, pre);
    level->named = named;
    level->ignores_merges = named->ignores_merges;
    level->has_characters = tok->byte_fallback = named->has_characters;
    if (named->has_characters)
        return use_characters(tok, named, name, err);
    if (named->is_composed)
        level->normalizers.steps[level->normalizers.n++] = (struct normalizer){ .kind = NORMALIZE_FORM,
                                                                                .form = UNICODE_NFC };
    return pretokenizer_add_named(&level->pre, named, name, err);
}

struct added_source {
    const struct tokenizer *tok;
    const char **why; /* see normalizers_run() */
};

static struct spelling spelling_of(const void *from, const struct added_token *token)
{
    const struct tokenizer *tok = ((const struct added_source *)from)->tok;
    return (struct spelling){ .bytes = vocab_bytes(tok, token->id),
                              .n_bytes = tok->pieces[token->id].n_bytes };
}

static bool normalize_added(const void *from, const char *text, size_t n_bytes, struct buf *out)
{
    const struct added_source *source = from;
    return normalizers_run(&source->tok->level->normalizers, text, n_bytes, out, source->why);
}

static enum tutti_status index_added(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    const char *why = NULL;
    struct added_source source = { .tok = tok, .why = &why };
    if (added_tokens_index(&tok->added, spelling_of, normalize_added, &source))
        return TUTTI_OK;
    return why ? error_set(err, TUTTI_E_UNSUPPORTED, "%s: normalizing an added token: %s", name, why)
               : error_out_of_memory(name, err);
}

enum tutti_status byte_level_finish(struct tokenizer *tok, bool by_rank, const char *name,
                                    struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    enum tutti_status st = (by_rank ? index_ranks : index_pairs)(tok, name, err);
    if (st != TUTTI_OK)
        return st;
    for (int i = 0; i < 256; i++) {
        int32_t id = level->byte_ids[i];
        if (id >= 0 && !vocab_is_mergeable(tok, id))
            level->byte_ids[i] = -1;
    }
    tok->n_library_pieces = tok->n_pieces;
    level->has_ranks = by_rank;
    level->whole = calloc((size_t)tok->n_pieces, sizeof *level->whole);
    if (!level->whole)
        return error_out_of_memory(name, err);
    st = index_added(tok, name, err);
    if (st == TUTTI_OK && !byte_level_index_joints(tok))
        st = error_out_of_memory(name, err);
    if (st == TUTTI_OK)
        st = word_model_finish(&level->words, tok, name, err);
    return st == TUTTI_OK && level->has_characters ? text_decoder_finish(&level->decoder, tok, name, err)
                                                   : st;
}

static bool is_left(const struct tokenizer *tok, int32_t id)
{
    return tokenizer_find(tok, vocab_bytes(tok, id), tok->pieces[id].n_bytes) == id;
}

enum tutti_status byte_level_limit(struct tokenizer *tok, const char *name, struct tutti_error *err)
{
    struct byte_level *level = tok->level;
    struct buf scratch = { 0 };
    size_t n_pairs = 0;
    if (!buf_reserve(&scratch, 4 * MAX_PIECE_BYTES))
        return error_out_of_memory(name, err);
    for (size_t i = 0; i < level->n_pairs; i++) {
        struct merge_pair pair = level->pairs[i];
        if (is_left(tok, pair.left) && is_left(tok, pair.right) &&
            find_joined(tok, pair.left, pair.right, &scratch) >= 0)
            level->pairs[n_pairs++] = pair;
    }
    buf_clear(&scratch);
    level->n_pairs = n_pairs;
    free(level->merges);
    free(level->merge_filter);
    level->merges = NULL;
    level->merge_filter = NULL;
    enum tutti_status st = (level->has_ranks ? index_ranks : index_pairs)(tok, name, err);
    if (st == TUTTI_OK)
        st = index_added(tok, name, err);
    trie_clear(&level->words.starts);
    trie_clear(&level->words.inner);
    return st == TUTTI_OK ? word_model_finish(&level->words, tok, name, err) : st;
}
