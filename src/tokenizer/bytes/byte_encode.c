/* Encodes text with a byte-level tokenizer: added tokens, normalization, words; and gives the
 * bytes of ids. The order of the stages is that of the Hugging Face tokenizers library. */
#include "base/utf8.h"
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/unicode/byte_map.h"

#include <stdlib.h>
#include <string.h>

struct byte_encoder {
    const struct tokenizer *tok;
    struct pattern_matcher *m;
    bool takes_special;
    struct ids *out;
    const char *begin, *normalized_begin; /* of the text; of the part between two added tokens */
    bool is_first;                        /* that part begins the text */
};

typedef bool between_fn(void *to, const char *text, size_t n_bytes);

static bool encode_word(void *to, const char *word, size_t n_bytes)
{
    struct byte_encoder *e = to;
    if (!e->tok->level->spells_words)
        return byte_level_encode_word(e->tok, word, n_bytes, e->out);
    struct buf bytes = { 0 };
    bool ok = buf_reserve(&bytes, n_bytes + 1) && byte_map_read(word, n_bytes, &bytes) &&
              byte_level_encode_word(e->tok, bytes.bytes, bytes.n_bytes, e->out);
    buf_clear(&bytes);
    return ok;
}

static bool encode_plain(void *to, const char *text, size_t n_bytes)
{
    struct byte_encoder *e = to;
    bool is_first = e->is_first && text == e->normalized_begin;
    return pretokenize(&e->tok->level->pre, e->m, text, n_bytes, is_first, encode_word, e);
}

static bool ids_add_special(void *to, const struct added_token *token)
{
    struct byte_encoder *e = to;
    return ids_add(e->out, token->id);
}

static bool cut_out(struct byte_encoder *e, const struct trie *trie, const char *text, size_t n_bytes,
                    between_fn *between)
{
    struct added_cuts cuts = {
        .to = e, .between = between, .token = ids_add_special, .takes_special = e->takes_special
    };
    return added_tokens_cut(&e->tok->added, trie, &cuts, text, n_bytes);
}

static bool encode_normalized(struct byte_encoder *e, const char *text, size_t n_bytes)
{
    const struct trie *trie = &e->tok->added.normalized;
    return trie->n_nodes > 1 ? cut_out(e, trie, text, n_bytes, encode_plain) : encode_plain(e, text, n_bytes);
}

/* Text between added tokens. */
static bool encode_raw(void *to, const char *text, size_t n_bytes)
{
    struct byte_encoder *e = to;
    const struct byte_level *level = e->tok->level;
    struct buf normal = { 0 };
    e->is_first = text == e->begin;
    bool ok = level->normalizers.n == 0 ||
              normalizers_run(&level->normalizers, text, n_bytes, &normal, &e->out->why);
    if (level->normalizers.n > 0) {
        text = normal.bytes;
        n_bytes = normal.n_bytes;
    }
    e->normalized_begin = text;
    ok = ok && (n_bytes == 0 || encode_normalized(e, text, n_bytes));
    buf_clear(&normal);
    return ok;
}

/* Encodes valid UTF-8: splits off raw added tokens, then encodes the text between them. */
static bool encode_valid(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_special,
                         bool is_first, struct ids *out)
{
    struct byte_encoder e = {
        .tok = tok,
        .m = pattern_matcher_new(n_bytes),
        .takes_special = takes_special,
        .out = out,
        .begin = is_first ? text : NULL,
    };
    bool ok = e.m && cut_out(&e, &tok->added.raw, text, n_bytes, encode_raw);
    if (!ok && e.m && !out->why)
        out->why = pattern_matcher_why(e.m);
    pattern_matcher_free(e.m);
    return ok;
}

bool byte_level_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_special,
                       struct ids *out)
{
    struct buf clean = { 0 };
    if (n_bytes == 0)
        return true;
    if (utf8_is_valid(text, n_bytes))
        return encode_valid(tok, text, n_bytes, takes_special, true, out);
    bool ok = unicode_clean(text, n_bytes, &clean) &&
              encode_valid(tok, clean.bytes, clean.n_bytes, takes_special, true, out);
    buf_clear(&clean);
    return ok;
}

/* ---- text of which parts are trusted ---- */

struct ranges {
    const struct trusted_range *list;
    size_t n, at; /* at: the first range that ends after the position of the last call */
};

/* Whether one range contains all of [begin, end). Calls must ascend. */
static bool is_trusted(struct ranges *r, size_t begin, size_t end)
{
    while (r->at < r->n && r->list[r->at].end <= begin)
        r->at++;
    return r->at < r->n && r->list[r->at].begin <= begin && end <= r->list[r->at].end;
}

/* The next special token from `from` on within a trusted range. NULL: none. */
static const struct added_token *find_special(const struct tokenizer *tok, struct ranges *r, const char *text,
                                              size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    for (size_t at = from; at < n_bytes; at++) {
        size_t n = 0;
        int32_t i = trie_match(&tok->added.specials, text + at, n_bytes - at, &n);
        if (i < 0 || !is_trusted(r, at, at + n))
            continue;
        *begin = at;
        *end = at + n;
        return &tok->added.list[i];
    }
    return NULL;
}

/* Splits off only the special tokens of trusted ranges, with the blanks around them by lstrip and
 * rstrip. */
static bool encode_apart(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ranges r,
                         struct ids *out)
{
    size_t done = 0, from = 0, begin, end;
    const struct added_token *token;
    while ((token = find_special(tok, &r, text, n_bytes, from, &begin, &end))) {
        from = end;
        if (token->takes_left_blanks) {
            begin -= unicode_blanks_at_end(text, begin);
            begin = begin > done ? begin : done;
        }
        if (token->takes_right_blanks)
            end += unicode_blanks_at_start(text + end, n_bytes - end);
        if (begin > done && !encode_valid(tok, text + done, begin - done, false, done == 0, out))
            return false;
        if (!ids_add(out, token->id))
            return false;
        done = end;
        from = from > done ? from : done;
    }
    return done == n_bytes || encode_valid(tok, text + done, n_bytes - done, false, done == 0, out);
}

/* The unknown token also replaces characters, so it is not counted. */
static size_t count_specials(const struct tokenizer *tok, const struct ids *ids, size_t from)
{
    size_t n = 0;
    for (size_t i = from; i < ids->n; i++)
        n += ids->ids[i] != tok->unk_id && added_tokens_is_special(&tok->added, ids->ids[i]);
    return n;
}

/* Counts the special tokens of trusted ranges, without the unknown one. False: other text contains one. */
static bool count_spelled(const struct tokenizer *tok, struct ranges r, const char *text, size_t n_bytes,
                          size_t *n_spelled)
{
    for (size_t at = 0, n; at < n_bytes; at++) {
        int32_t i = trie_match(&tok->added.specials, text + at, n_bytes - at, &n);
        if (i < 0)
            continue;
        if (!is_trusted(&r, at, at + n))
            return false;
        *n_spelled += tok->added.list[i].id != tok->unk_id;
        at += n - 1;
    }
    return true;
}

/* Whether normalization converts untrusted text into the text of a special token. *found: the answer. */
static bool find_made_special(const struct tokenizer *tok, struct ranges r, const char *text, size_t n_bytes,
                              bool *found)
{
    struct ids ids = { 0 };
    size_t begin = 0;
    bool ok = true;
    *found = false;
    for (size_t i = 0; ok && !*found && i <= r.n; i++) {
        size_t end = i < r.n ? r.list[i].begin : n_bytes;
        ids.n = 0;
        ok = begin == end || encode_valid(tok, text + begin, end - begin, true, begin == 0, &ids);
        *found = ok && count_specials(tok, &ids, 0) > 0;
        begin = i < r.n ? r.list[i].end : n_bytes;
    }
    ids_clear(&ids);
    return ok;
}

/* Encodes the whole text as the library does; correct only if no special token comes from untrusted text. */
static bool encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ranges r,
                          struct ids *out)
{
    size_t n_before = out->n, n_spelled = 0;
    bool is_made = false;
    if (!count_spelled(tok, r, text, n_bytes, &n_spelled))
        return encode_apart(tok, text, n_bytes, r, out);
    if (!encode_valid(tok, text, n_bytes, true, true, out))
        return false;
    if (tok->added.has_normalized_specials && !find_made_special(tok, r, text, n_bytes, &is_made))
        return false;
    if (!is_made && count_specials(tok, out, n_before) <= n_spelled)
        return true;
    out->n = n_before;
    return encode_apart(tok, text, n_bytes, r, out);
}

/* Adds text[*done, end) as UTF-8. */
static bool clean_up_to(const char *text, size_t *done, size_t end, struct buf *clean)
{
    bool ok = unicode_clean(text + *done, end - *done, clean);
    *done = end;
    return ok;
}

bool byte_level_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                              const struct trusted_range *ranges, size_t n_ranges, struct ids *out)
{
    struct ranges r = { .list = ranges, .n = n_ranges };
    struct buf clean = { 0 };
    size_t done = 0;
    if (n_bytes == 0)
        return true;
    if (utf8_is_valid(text, n_bytes))
        return encode_ranges(tok, text, n_bytes, r, out);
    struct trusted_range *moved = calloc(n_ranges + 1, sizeof *moved);
    bool ok = moved;
    for (size_t i = 0; ok && i < n_ranges; i++) {
        ok = clean_up_to(text, &done, ranges[i].begin, &clean);
        moved[i].begin = clean.n_bytes;
        ok = ok && clean_up_to(text, &done, ranges[i].end, &clean);
        moved[i].end = clean.n_bytes;
    }
    r.list = moved;
    ok = ok && clean_up_to(text, &done, n_bytes, &clean) &&
         encode_ranges(tok, clean.bytes, clean.n_bytes, r, out);
    buf_clear(&clean);
    free(moved);
    return ok;
}

/* An added token whose characters are all in the alphabet of byte_map.h is decoded from it, as in
 * the library. */
bool byte_level_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out)
{
    const struct piece_entry *p = &tok->pieces[id];
    const char *bytes = vocab_bytes(tok, id);
    if (p->type == PIECE_CONTROL)
        return true;
    if (!buf_reserve(out, p->n_bytes))
        return false;
    if (p->type == PIECE_USER_DEFINED && byte_map_read(bytes, p->n_bytes, out))
        return true;
    return buf_add(out, bytes, p->n_bytes);
}
