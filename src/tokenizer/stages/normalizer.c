#include "tokenizer/stages/normalizer.h"

#include "base/utf8.h"
#include "tokenizer/unicode/byte_map.h"
#include "tokenizer/unicode/substitutes.h"

#include <string.h>
#include <utf8proc.h>

/* Limit on the growth of a text. No normalization form and no published table of SentencePiece
 * comes near it. */
enum { MAX_GROWTH = 32, MAX_GROWTH_BYTES = 1 << 16 };
static const char TOO_LONG[] = "the tokenizer's normalizer makes the text more than 32 times as long";

static bool add_code(uint32_t code, struct buf *out)
{
    uint8_t bytes[4];
    return buf_add(out, bytes, (size_t)utf8proc_encode_char((utf8proc_int32_t)code, bytes));
}

/* ---- characters ---- */

static uint32_t lower_of(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    for (size_t i = 0; i < CASE_TABLES.n_newer_capitals; i++) {
        const struct case_run *run = &CASE_TABLES.newer_capitals[i];
        if (c >= run->first && c <= run->last && (c - run->first) % (uint32_t)run->step == 0)
            return (uint32_t)((int32_t)c + run->delta);
    }
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

static bool is_in_set(const struct character_set *set, uint32_t c)
{
    return (set->categories >> utf8proc_category((utf8proc_int32_t)c) & 1 &&
            !unicode_set_has(set->without, set->n_without, c)) ||
           (c >= set->first_other && c <= set->last_other);
}

/* As in the library: BertNormalizer's ranges omit a part of extension E. */
static bool is_chinese(uint32_t c)
{
    return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool nmt_removes(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_blanks(uint32_t c)
{
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

/* Appends the replacement of one character. */
static bool add_rewritten(const struct normalizer *n, uint32_t c, const char *bytes, size_t n_bytes,
                          struct buf *out)
{
    switch (n->kind) {
    case NORMALIZE_LOWERCASE:
        if (c == 0x130)
            return buf_add(out, "i\xCC\x87", 3);
        return lower_of(c) == c ? buf_add(out, bytes, n_bytes) : add_code(lower_of(c), out);
    case NORMALIZE_REMOVE:
        return is_in_set(n->removed, c) || buf_add(out, bytes, n_bytes);
    case NORMALIZE_SPACES:
        return unicode_blanks_at_start(bytes, n_bytes) > 0 ? buf_add(out, " ", 1)
                                                           : buf_add(out, bytes, n_bytes);
    case NORMALIZE_CHINESE:
        return is_chinese(c) ? buf_add(out, " ", 1) && buf_add(out, bytes, n_bytes) && buf_add(out, " ", 1)
                             : buf_add(out, bytes, n_bytes);
    default: /* NMT */
        return nmt_removes(c) || (nmt_blanks(c) ? buf_add(out, " ", 1) : buf_add(out, bytes, n_bytes));
    }
}

static bool rewrite_characters(const struct normalizer *n, const char *text, size_t n_bytes, struct buf *out)
{
    for (size_t at = 0, length; at < n_bytes; at += length) {
        int32_t code = utf8_code_at(text + at, n_bytes - at, &length);
        if (!add_rewritten(n, (uint32_t)code, text + at, length, out))
            return false;
    }
    return true;
}

/* ---- Replace ---- */

static bool replace_text(const struct normalizer *n, const char *text, size_t n_bytes, size_t limit,
                         struct buf *out)
{
    while (n_bytes > 0) {
        const char *at = memmem(text, n_bytes, n->from.bytes, n->from.n_bytes);
        size_t before = at ? (size_t)(at - text) : n_bytes, taken = before + (at ? n->from.n_bytes : 0);
        if (!buf_add(out, text, before) || (at && !buf_add(out, n->to.bytes, n->to.n_bytes)) ||
            out->n_bytes > limit)
            return false;
        text += taken;
        n_bytes -= taken;
    }
    return true;
}

/* searched: text, possibly with substitutes. An empty match at the end of the previous match is
 * ignored. */
static bool replace_found(const struct normalizer *n, struct pattern_matcher *m, const char *text,
                          const char *searched, size_t n_bytes, size_t limit, struct buf *out)
{
    size_t done = 0, from = 0, begin, end;
    bool has_match = false;
    int found = 0;
    while (from <= n_bytes &&
           (found = pattern_find(n->pattern, m, searched, n_bytes, from, &begin, &end)) > 0) {
        bool counts = end > begin || !has_match || begin != done;
        if (counts) {
            if (!buf_add(out, text + done, begin - done) || !buf_add(out, n->to.bytes, n->to.n_bytes) ||
                out->n_bytes > limit)
                return false;
            done = end;
            has_match = true;
        }
        from = end;
        if (end == begin) {
            size_t length = 1;
            if (end < n_bytes)
                utf8_code_at(text + end, n_bytes - end, &length);
            from = end + length;
        }
    }
    return found >= 0 && buf_add(out, text + done, n_bytes - done);
}

static bool replace_matches(const struct normalizer *n, struct pattern_matcher *m, const char *text,
                            size_t n_bytes, size_t limit, struct buf *out)
{
    struct buf copy = { 0 };
    if (!substitutes_needed(text, n_bytes))
        return replace_found(n, m, text, text, n_bytes, limit, out);
    bool ok = pattern_prepare(n->pattern, text, n_bytes, &copy) &&
              replace_found(n, m, text, copy.bytes, n_bytes, limit, out);
    buf_clear(&copy);
    return ok;
}

/* ---- the table of SentencePiece ---- */

/* A replacement that is not valid UTF-8 is ignored. */
static bool find_mapped(const struct charsmap *map, const char *text, size_t n_bytes, const char **to,
                        size_t *n_to)
{
    return charsmap_first(map, text, n_bytes, to, n_to) && utf8_is_valid(*to, *n_to);
}

/* The library looks up a short cluster of characters as a whole, else each of its characters. The
 * replacement of the shortest matching key replaces all of the looked-up text. */
static bool map_cluster(const struct charsmap *map, const char *text, size_t n_bytes, struct buf *out)
{
    enum { SHORT_CLUSTER = 5 };
    const char *to = NULL;
    size_t n_to = 0;
    if (n_bytes <= SHORT_CLUSTER && find_mapped(map, text, n_bytes, &to, &n_to))
        return buf_add(out, to, n_to);
    for (size_t at = 0, length; at < n_bytes; at += length) {
        utf8_code_at(text + at, n_bytes - at, &length);
        bool is_mapped = find_mapped(map, text + at, length, &to, &n_to);
        if (!(is_mapped ? buf_add(out, to, n_to) : buf_add(out, text + at, length)))
            return false;
    }
    return true;
}

static bool apply_map(const struct charsmap *map, const char *text, size_t n_bytes, struct buf *out)
{
    size_t begin = 0, at = 0, length;
    utf8proc_int32_t state = 0;
    int32_t before = -1;
    while (at < n_bytes) {
        int32_t code = utf8_code_at(text + at, n_bytes - at, &length);
        if (before >= 0 && utf8proc_grapheme_break_stateful(before, code, &state)) {
            if (!map_cluster(map, text + begin, at - begin, out))
                return false;
            begin = at;
        }
        before = code;
        at += length;
    }
    return map_cluster(map, text + begin, n_bytes - begin, out);
}

/* ---- all ---- */

static bool strip(const struct normalizer *n, const char *text, size_t n_bytes, struct buf *out)
{
    size_t left = n->strips_left ? unicode_blanks_at_start(text, n_bytes) : 0;
    size_t right = n->strips_right ? unicode_blanks_at_end(text + left, n_bytes - left) : 0;
    return buf_add(out, text + left, n_bytes - left - right);
}

static bool run_step(const struct normalizer *n, struct pattern_matcher *m, const char *text, size_t n_bytes,
                     size_t limit, struct buf *out)
{
    switch (n->kind) {
    case NORMALIZE_FORM:
        return unicode_normalize(n->form, text, n_bytes, out);
    case NORMALIZE_REPLACE:
        return n->pattern ? replace_matches(n, m, text, n_bytes, limit, out)
                          : replace_text(n, text, n_bytes, limit, out);
    case NORMALIZE_PREPEND:
        return buf_add(out, n->to.bytes, n->to.n_bytes) && buf_add(out, text, n_bytes);
    case NORMALIZE_STRIP:
        return strip(n, text, n_bytes, out);
    case NORMALIZE_CHARSMAP:
        return apply_map(&n->map, text, n_bytes, out);
    case NORMALIZE_BYTES:
        return byte_map_write(text, n_bytes, out);
    default:
        return rewrite_characters(n, text, n_bytes, out);
    }
}

bool normalizers_run(const struct normalizers *normalizers, const char *text, size_t n_bytes, struct buf *out,
                     const char **why)
{
    struct buf step = { 0 };
    struct pattern_matcher *m = NULL;
    size_t limit = MAX_GROWTH * n_bytes + MAX_GROWTH_BYTES;
    bool ok = buf_add(out, text, n_bytes);
    for (int i = 0; ok && i < normalizers->n && out->n_bytes > 0; i++) {
        const struct normalizer *n = &normalizers->steps[i];
        if (n->pattern && !m) {
            m = pattern_matcher_new(limit);
            ok = m != NULL;
        }
        buf_truncate(&step, 0);
        ok = ok && run_step(n, m, out->bytes, out->n_bytes, limit, &step);
        if (!ok && m)
            *why = pattern_matcher_why(m);
        if (step.n_bytes > limit) {
            *why = TOO_LONG;
            ok = false;
        }
        struct buf before = *out;
        *out = step;
        step = before;
    }
    pattern_matcher_free(m);
    buf_clear(&step);
    return ok;
}

bool normalizers_add_bert(struct normalizers *normalizers, const struct bert_options *options)
{
    const struct {
        bool is_on;
        struct normalizer step;
    } STEPS[] = { { options->cleans, { .kind = NORMALIZE_REMOVE, .removed = &CASE_TABLES.bert_removed } },
                  { options->cleans, { .kind = NORMALIZE_SPACES } },
                  { options->parts_chinese, { .kind = NORMALIZE_CHINESE } },
                  { options->strips_accents, { .kind = NORMALIZE_FORM, .form = UNICODE_NFD } },
                  { options->strips_accents,
                    { .kind = NORMALIZE_REMOVE, .removed = &CASE_TABLES.bert_accents } },
                  { options->lowers, { .kind = NORMALIZE_LOWERCASE } } };
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++) {
        if (!STEPS[i].is_on)
            continue;
        if (normalizers->n >= MAX_NORMALIZERS)
            return false;
        normalizers->steps[normalizers->n++] = STEPS[i].step;
    }
    return true;
}

void normalizers_clear(struct normalizers *normalizers)
{
    for (int i = 0; i < normalizers->n; i++) {
        struct normalizer *n = &normalizers->steps[i];
        buf_clear(&n->from);
        buf_clear(&n->to);
        buf_clear(&n->map_bytes);
        pattern_free(n->pattern);
    }
    normalizers->n = 0;
}
