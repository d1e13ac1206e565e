#include "tokenizer/stages/text_decoder.h"

#include "base/utf8.h"
#include "tokenizer/unicode/byte_map.h"

#include <stdlib.h>
#include <string.h>

/* ---- the text of each token ---- */

static bool replace_all(const char *text, size_t n_bytes, const char *from, const char *to, struct buf *out)
{
    size_t n_from = strlen(from), n_to = strlen(to);
    while (n_bytes > 0) {
        const char *at = memmem(text, n_bytes, from, n_from);
        size_t n = at ? (size_t)(at - text) : n_bytes;
        if (!buf_add(out, text, n) || (at && !buf_add(out, to, n_to)))
            return false;
        n += at ? n_from : 0;
        text += n;
        n_bytes -= n;
    }
    return true;
}

/* WordPiece's cleanup of English, token by token. */
static bool clean_up(struct buf *text)
{
    static const char *const PAIRS[][2] = { { " .", "." },     { " ?", "?" },           { " !", "!" },
                                            { " ,", "," },     { " ' ", "'" },          { " n't", "n't" },
                                            { " 'm", "'m" },   { " do not", " don't" }, { " 's", "'s" },
                                            { " 've", "'ve" }, { " 're", "'re" } };
    struct buf next = { 0 };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof PAIRS / sizeof *PAIRS; i++) {
        buf_truncate(&next, 0);
        ok = buf_reserve(&next, text->n_bytes + 1) &&
             replace_all(text->bytes, text->n_bytes, PAIRS[i][0], PAIRS[i][1], &next);
        struct buf before = *text;
        *text = next;
        next = before;
    }
    buf_clear(&next);
    return ok;
}

static bool starts_with(const struct buf *text, const struct buf *mark)
{
    return text->n_bytes >= mark->n_bytes && mark->n_bytes > 0 &&
           memcmp(text->bytes, mark->bytes, mark->n_bytes) == 0;
}

static bool show_word(const struct decode_step *s, const struct buf *text, bool is_first, struct buf *out)
{
    bool continues = !is_first && starts_with(text, &s->mark), is_parted = !is_first && !continues;
    size_t n = continues ? s->mark.n_bytes : 0;
    return (!is_parted || buf_add(out, " ", 1)) && buf_add(out, text->bytes + n, text->n_bytes - n) &&
           (!s->cleans_up || clean_up(out));
}

static bool strip_token(const struct decode_step *s, const struct buf *text, struct buf *out)
{
    const char *begin = text->bytes;
    size_t n = text->n_bytes, n_mark = s->mark.n_bytes;
    if (!begin || !s->mark.bytes)
        return buf_add(out, begin, n);
    for (int i = 0; i < s->start && n >= n_mark && memcmp(begin, s->mark.bytes, n_mark) == 0; i++) {
        begin += n_mark;
        n -= n_mark;
    }
    for (int i = 0; i < s->stop && n >= n_mark && memcmp(begin + n - n_mark, s->mark.bytes, n_mark) == 0; i++)
        n -= n_mark;
    return buf_add(out, begin, n);
}

static bool show_step(const struct decode_step *s, const struct buf *text, bool is_first, struct buf *out,
                      const char **why)
{
    const char *mark = s->mark.bytes ? s->mark.bytes : "";
    switch (s->kind) {
    case DECODE_REPLACE:
        return normalizers_run(&s->replace, text->bytes, text->n_bytes, out, why);
    case DECODE_METASPACE:
        return replace_all(text->bytes, text->n_bytes, mark, is_first && s->drops_first ? "" : " ", out);
    case DECODE_WORDPIECE:
        return show_word(s, text, is_first, out);
    case DECODE_SUFFIX:
        return replace_all(text->bytes, text->n_bytes, mark, " ", out);
    case DECODE_STRIP:
        return strip_token(s, text, out);
    case DECODE_BYTES:
        return buf_reserve(out, text->n_bytes + 1) &&
               (byte_map_read(text->bytes, text->n_bytes, out) || buf_add(out, text->bytes, text->n_bytes));
    case DECODE_BLANKS:
        break;
    }
    return (is_first || buf_add(out, " ", 1)) && buf_add(out, text->bytes, text->n_bytes);
}

static bool show(const struct text_decoder *decoder, const struct tokenizer *tok, int32_t id, bool is_first,
                 struct buf *scratch, struct buf *out, const char **why)
{
    struct buf text = *scratch, next = { 0 };
    buf_truncate(&text, 0);
    bool ok = buf_reserve(&text, 1) && buf_add(&text, vocab_bytes(tok, id), tok->pieces[id].n_bytes);
    for (int i = 0; ok && i < decoder->n_steps; i++) {
        buf_truncate(&next, 0);
        ok = buf_reserve(&next, 1) && show_step(&decoder->steps[i], &text, is_first, &next, why);
        struct buf before = text;
        text = next;
        next = before;
    }
    ok = ok && buf_add(out, text.bytes, text.n_bytes);
    buf_clear(&next);
    *scratch = text;
    return ok;
}

static bool depends_on_place(const struct text_decoder *decoder)
{
    for (int i = 0; i < decoder->n_steps; i++) {
        const struct decode_step *s = &decoder->steps[i];
        if (s->kind == DECODE_WORDPIECE || s->kind == DECODE_BLANKS ||
            (s->kind == DECODE_METASPACE && s->drops_first))
            return true;
    }
    return false;
}

enum tutti_status text_decoder_finish(struct text_decoder *decoder, const struct tokenizer *tok,
                                      const char *name, struct tutti_error *err)
{
    struct buf scratch = { 0 };
    const char *why = NULL;
    size_t at = 0;
    decoder->n = (size_t)tok->n_pieces;
    decoder->n_forms = depends_on_place(decoder) ? 2 : 1;
    decoder->ends = calloc(decoder->n_forms * decoder->n + 1, sizeof *decoder->ends);
    bool ok = decoder->ends != NULL;
    for (size_t form = 0; ok && form < decoder->n_forms; form++) {
        for (int32_t id = 0; ok && id < tok->n_pieces; id++) {
            ok = tok->pieces[id].n_bytes == 0 ||
                 show(decoder, tok, id, form == 0, &scratch, &decoder->shown, &why);
            ok = ok && decoder->shown.n_bytes < UINT32_MAX;
            decoder->ends[++at] = (uint32_t)decoder->shown.n_bytes;
        }
    }
    buf_clear(&scratch);
    decoder->is_there = ok;
    if (!ok && why)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: decoder: the text of a token: %s", name, why);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
}

void text_decoder_clear(struct text_decoder *decoder)
{
    for (int i = 0; i < decoder->n_steps; i++) {
        normalizers_clear(&decoder->steps[i].replace);
        buf_clear(&decoder->steps[i].mark);
    }
    buf_clear(&decoder->mark);
    buf_clear(&decoder->shown);
    free(decoder->ends);
    *decoder = (struct text_decoder){ .is_there = false };
}

/* ---- the text of several ---- */

static const char *shown_as(const struct text_decoder *decoder, int32_t id, bool is_first, size_t *n_bytes)
{
    size_t i = (size_t)id + (is_first ? 0 : (decoder->n_forms - 1) * decoder->n);
    if ((size_t)id >= decoder->n) { /* added after the vocabulary was read: a control token */
        *n_bytes = 0;
        return "";
    }
    *n_bytes = decoder->ends[i + 1] - decoder->ends[i];
    return decoder->shown.bytes ? decoder->shown.bytes + decoder->ends[i] : "";
}

static bool has_mark(const struct text_decoder *decoder, const char *text, size_t n_bytes)
{
    size_t n = decoder->mark.n_bytes;
    return n_bytes >= n && memcmp(text, decoder->mark.bytes, n) == 0;
}

static bool release_marks(const struct text_decoder *decoder, struct detokenizer *d, int n_kept,
                          struct buf *out)
{
    for (; d->n_marks > n_kept; d->n_marks--) {
        if (!buf_add(out, decoder->mark.bytes, decoder->mark.n_bytes))
            return false;
    }
    return true;
}

bool text_decoder_add(const struct text_decoder *decoder, struct detokenizer *d, const char *text,
                      size_t n_bytes, struct buf *out)
{
    size_t n_mark = decoder->mark.n_bytes;
    while (n_bytes > 0 && d->n_stripped < decoder->start) {
        bool drops = has_mark(decoder, text, n_bytes);
        d->n_stripped = drops ? (uint8_t)(d->n_stripped + 1) : (uint8_t)decoder->start;
        text += drops ? n_mark : 0;
        n_bytes -= drops ? n_mark : 0;
    }
    if (decoder->stop == 0)
        return buf_add(out, text, n_bytes);
    while (n_bytes > 0) {
        if (has_mark(decoder, text, n_bytes)) {
            d->n_marks++;
            text += n_mark;
            n_bytes -= n_mark;
            if (!release_marks(decoder, d, decoder->stop, out))
                return false;
            continue;
        }
        int n = utf8_char(text, n_bytes);
        n = n > 0 ? n : 1;
        if (!release_marks(decoder, d, 0, out) || !buf_add(out, text, (size_t)n))
            return false;
        text += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

bool text_decoder_push(const struct text_decoder *decoder, struct detokenizer *d, int32_t id, struct buf *out)
{
    const struct piece_entry *p = &d->tok->pieces[id];
    bool is_first = d->at_start, ok = true;
    if (p->type == PIECE_CONTROL || p->n_bytes == 0)
        return true;
    d->at_start = false;
    if (decoder->falls_back && p->type == PIECE_BYTE) {
        d->held[d->n_held++] = (uint8_t)vocab_byte_value(vocab_bytes(d->tok, id), p->n_bytes);
        return detokenizer_release(d, false, out);
    }
    size_t n_bytes;
    const char *text = shown_as(decoder, id, is_first, &n_bytes);
    if (!decoder->has_bytes)
        return detokenizer_release(d, true, out) && text_decoder_add(decoder, d, text, n_bytes, out);
    for (size_t i = 0; ok && i < n_bytes; i++)
        ok = detokenizer_push_byte(d, (uint8_t)text[i], out);
    return ok;
}

bool text_decoder_token(const struct text_decoder *decoder, const struct tokenizer *tok, int32_t id,
                        struct buf *out)
{
    const struct piece_entry *p = &tok->pieces[id];
    size_t n_bytes;
    if (p->type == PIECE_CONTROL || p->n_bytes == 0)
        return true;
    if (decoder->falls_back && p->type == PIECE_BYTE) {
        char byte = (char)vocab_byte_value(vocab_bytes(tok, id), p->n_bytes);
        return buf_add(out, &byte, 1);
    }
    const char *text = shown_as(decoder, id, false, &n_bytes);
    return buf_add(out, text, n_bytes);
}
