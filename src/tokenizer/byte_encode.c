/* Text to ids of a byte-level tokenizer: added tokens, normalization, words; and the bytes of ids. The order of things is
 * that of the Hugging Face tokenizers library. */
#include "base/utf8.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/byte_map.h"

#include <stdlib.h>
#include <string.h>

struct encoder {
    const struct tokenizer *tok;
    struct pattern_matcher *m;
    bool takes_special;
    struct ids *out;
    const char *begin, *normalized_begin; /* of the text; of what is between two added tokens of it */
    bool is_first;                        /* that part begins the text */
};

typedef bool between_fn(void *to, const char *text, size_t n_bytes);

static bool add_word(void *to, const char *word, size_t n_bytes)
{
    struct encoder *e = to;
    return byte_level_encode_word(e->tok, word, n_bytes, e->out);
}

static bool encode_whole(struct encoder *e, const char *text, size_t n_bytes)
{
    return n_bytes == 0 || add_word(e, text, n_bytes);
}

static bool add_blank_marks(const struct metaspace *m, bool is_first, const char *text, size_t n_bytes,
                            struct buf *out)
{
    bool has_mark = n_bytes > 0 && (*text == ' ' || (n_bytes >= 3 && memcmp(text, BLANK_MARK, 3) == 0));
    bool prepends = m->prepends == METASPACE_ALWAYS || (m->prepends == METASPACE_FIRST && is_first);
    bool ok = !prepends || has_mark || buf_add(out, BLANK_MARK, 3);
    while (ok && n_bytes > 0) {
        const char *space = memchr(text, ' ', n_bytes);
        size_t n = space ? (size_t)(space - text) : n_bytes;
        ok = buf_add(out, text, n) && (!space || buf_add(out, BLANK_MARK, 3));
        n += space != NULL;
        text += n;
        n_bytes -= n;
    }
    return ok;
}

/* Words that begin with blank marks. */
static bool split_at_marks(struct encoder *e, const char *text, size_t n_bytes)
{
    while (n_bytes > 0) {
        const char *mark = n_bytes > 1 ? memmem(text + 1, n_bytes - 1, BLANK_MARK, 3) : NULL;
        size_t n = mark ? (size_t)(mark - text) : n_bytes;
        if (!add_word(e, text, n))
            return false;
        text += n;
        n_bytes -= n;
    }
    return true;
}

static bool encode_metaspace(struct encoder *e, const char *text, size_t n_bytes)
{
    const struct metaspace *m = &e->tok->level->metaspace;
    struct buf marked = { 0 };
    bool ok = add_blank_marks(m, e->is_first && text == e->normalized_begin, text, n_bytes, &marked);
    ok = ok && (m->splits ? split_at_marks : encode_whole)(e, marked.bytes, marked.n_bytes);
    buf_clear(&marked);
    return ok;
}

static bool encode_plain(void *to, const char *text, size_t n_bytes)
{
    struct encoder *e = to;
    if (e->tok->level->metaspace.prepends != METASPACE_NONE)
        return encode_metaspace(e, text, n_bytes);
    return pretokenize(&e->tok->level->pre, e->m, text, n_bytes, add_word, e);
}

static bool add_token(void *to, const struct added_token *token)
{
    struct encoder *e = to;
    return ids_add(e->out, token->id);
}

static bool cut_out(struct encoder *e, const struct trie *trie, const char *text, size_t n_bytes,
                    between_fn *between)
{
    struct added_cuts cuts = {
        .to = e, .between = between, .token = add_token, .takes_special = e->takes_special
    };
    return added_tokens_cut(&e->tok->added, trie, &cuts, text, n_bytes);
}

static bool encode_normalized(struct encoder *e, const char *text, size_t n_bytes)
{
    const struct trie *trie = &e->tok->added.normalized;
    return trie->n_nodes > 1 ? cut_out(e, trie, text, n_bytes, encode_plain) : encode_plain(e, text, n_bytes);
}

static bool replace(const struct normalizer *n, const char *text, size_t n_bytes, struct buf *out)
{
    while (n_bytes > 0) {
        const char *at = memmem(text, n_bytes, n->from.bytes, n->from.n_bytes);
        size_t before = at ? (size_t)(at - text) : n_bytes, taken = before + (at ? n->from.n_bytes : 0);
        if (!buf_add(out, text, before) || (at && !buf_add(out, n->to.bytes, n->to.n_bytes)))
            return false;
        text += taken;
        n_bytes -= taken;
    }
    return true;
}

static bool normalize(const struct normalizer *n, const char *text, size_t n_bytes, struct buf *out)
{
    buf_truncate(out, 0);
    if (n->kind == NORMALIZE_FORM)
        return unicode_normalize(n->form, text, n_bytes, out);
    if (n->kind == NORMALIZE_REPLACE)
        return replace(n, text, n_bytes, out);
    return buf_add(out, n->to.bytes, n->to.n_bytes) && buf_add(out, text, n_bytes);
}

bool byte_level_normalize(const struct byte_level *level, const char *text, size_t n_bytes, struct buf *out)
{
    struct buf step = { 0 };
    bool ok = buf_add(out, text, n_bytes);
    for (int i = 0; ok && i < level->n_normalizers && out->n_bytes > 0; i++) {
        ok = normalize(&level->normalizers[i], out->bytes, out->n_bytes, &step);
        struct buf before = *out;
        *out = step;
        step = before;
    }
    buf_clear(&step);
    return ok;
}

/* Text between added tokens. */
static bool encode_raw(void *to, const char *text, size_t n_bytes)
{
    struct encoder *e = to;
    const struct byte_level *level = e->tok->level;
    struct buf normal = { 0 };
    e->is_first = text == e->begin;
    bool ok = level->n_normalizers == 0 || byte_level_normalize(level, text, n_bytes, &normal);
    if (level->n_normalizers > 0) {
        text = normal.bytes;
        n_bytes = normal.n_bytes;
    }
    e->normalized_begin = text;
    ok = ok && (n_bytes == 0 || encode_normalized(e, text, n_bytes));
    buf_clear(&normal);
    return ok;
}

bool byte_level_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_special,
                       struct ids *out)
{
    struct buf clean = { 0 };
    if (n_bytes == 0)
        return true;
    if (!utf8_is_valid(text, n_bytes)) {
        if (!unicode_clean(text, n_bytes, &clean)) {
            buf_clear(&clean);
            return false;
        }
        text = clean.bytes;
        n_bytes = clean.n_bytes;
    }
    struct encoder e = {
        .tok = tok,
        .m = pattern_matcher_new(n_bytes),
        .takes_special = takes_special,
        .out = out,
        .begin = text,
    };
    bool ok = e.m && cut_out(&e, &tok->added.raw, text, n_bytes, encode_raw);
    pattern_matcher_free(e.m);
    buf_clear(&clean);
    return ok;
}

/* An added token whose letters all are of the alphabet is read as spelled in it, as by the library. */
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
