/* Decodes ids to text: all at once, and incrementally during generation. The first uses the
 * second, so they agree. */
#include "base/utf8.h"
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/legacy/icetext.h"
#include "tokenizer/legacy/pangu.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Whole characters of decoded text. */
static bool decode_add_text(const struct tokenizer *tok, const char *text, size_t n_bytes, struct buf *out)
{
    return tok->is_pangu ? pangu_restore(text, n_bytes, out) : buf_add(out, text, n_bytes);
}

/* Appends a piece's bytes with every blank mark as a space. */
static bool add_with_blanks(const struct tokenizer *tok, const char *bytes, size_t n_bytes, struct buf *out)
{
    while (n_bytes > 0) {
        const char *mark = memmem(bytes, n_bytes, BLANK_MARK, 3);
        size_t n = mark ? (size_t)(mark - bytes) : n_bytes;
        if (!decode_add_text(tok, bytes, n, out) || (mark && !decode_add_text(tok, " ", 1, out)))
            return false;
        bytes += n + (mark ? 3 : 0);
        n_bytes -= n + (mark ? 3 : 0);
    }
    return true;
}

static bool add_repeated(char c, int n, struct buf *out)
{
    while (n > 0 && buf_add(out, &c, 1))
        n--;
    return n == 0;
}

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tok, bool keep_first_blank)
{
    *d = (struct detokenizer){ .tok = tok,
                               .at_start = !keep_first_blank,
                               .n_stripped = keep_first_blank ? UINT8_MAX : 0 };
}

/* Whole characters of any tokenizer whose tokens are text. */
static bool add_whole(struct detokenizer *d, const char *text, size_t n_bytes, struct buf *out)
{
    return d->tok->level ? text_decoder_add(&d->tok->level->decoder, d, text, n_bytes, out)
                         : decode_add_text(d->tok, text, n_bytes, out);
}

bool detokenizer_release(struct detokenizer *d, bool all, struct buf *out)
{
    while (d->n_held > 0) {
        const char *held = (const char *)d->held;
        int n = utf8_char(held, (size_t)d->n_held);
        if (n == 0 && !all && utf8_is_start(held, (size_t)d->n_held))
            return true;
        if (!(n > 0 ? add_whole(d, held, (size_t)n, out) : add_whole(d, REPLACEMENT, 3, out)))
            return false;
        d->at_start = false;
        n = n > 0 ? n : 1;
        memmove(d->held, d->held + n, (size_t)(d->n_held - n));
        d->n_held -= n;
    }
    return true;
}

static bool push_text(struct detokenizer *d, int32_t id, struct buf *out)
{
    const struct tokenizer *tok = d->tok;
    struct piece piece = tokenizer_piece(tok, id);
    size_t before = out->n_bytes;
    char c;
    int n;
    if (piece.type == PIECE_CONTROL)
        return true;
    if (piece.type == PIECE_UNKNOWN) {
        if (!decode_add_text(tok, tok->unk_surface.bytes, tok->unk_surface.n_bytes, out))
            return false;
    } else if (tok->is_icetext && icetext_surface(tok, id, &c, &n)) {
        if (!add_repeated(c, n, out))
            return false;
    } else {
        bool drops = d->at_start && (tok->add_dummy_prefix || tok->remove_extra_whitespaces) &&
                     piece.n_bytes >= 3 && memcmp(piece.bytes, BLANK_MARK, 3) == 0;
        if (drops) {
            piece.bytes += 3;
            piece.n_bytes -= 3;
            d->at_start =
                tok->remove_extra_whitespaces; /* then all leading blanks are dropped, else only one */
        }
        if (!add_with_blanks(tok, piece.bytes, piece.n_bytes, out))
            return false;
    }
    if (out->n_bytes > before)
        d->at_start = false;
    return true;
}

/* An incomplete character becomes one U+FFFD, as recommended by Unicode (chapter 3.9) and done by
 * the byte-level libraries. */
bool detokenizer_push_byte(struct detokenizer *d, uint8_t byte, struct buf *out)
{
    const char *held = (const char *)d->held;
    d->held[d->n_held++] = byte;
    for (;;) {
        int n = utf8_char(held, (size_t)d->n_held);
        if (n == 0 && utf8_is_start(held, (size_t)d->n_held))
            return true;
        bool is_alone = d->n_held == 1;
        if (n > 0 || is_alone)
            d->n_held = 0;
        if (n > 0)
            return buf_add(out, held, (size_t)n);
        if (!buf_add(out, REPLACEMENT, 3))
            return false;
        if (is_alone)
            return true;
        d->held[0] = byte;
        d->n_held = 1;
    }
}

static bool push_bytes(struct detokenizer *d, int32_t id, struct buf *out)
{
    const struct tokenizer *tok = d->tok;
    const char *bytes = vocab_bytes(tok, id);
    size_t n_bytes = tok->pieces[id].n_bytes;
    struct buf own = { 0 };
    if (tok->pieces[id].type == PIECE_NORMAL) {
        if (d->n_held == 0 && utf8_is_valid(bytes, n_bytes))
            return buf_add(out, bytes, n_bytes);
    } else {
        if (!byte_level_token_bytes(tok, id, &own))
            return false;
        bytes = own.bytes;
        n_bytes = own.n_bytes;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < n_bytes; i++)
        ok = detokenizer_push_byte(d, (uint8_t)bytes[i], out);
    buf_clear(&own);
    return ok;
}

bool detokenizer_push(struct detokenizer *d, int32_t id, struct buf *out)
{
    const struct tokenizer *tok = d->tok;
    if (id < tok->n_images || id >= tok->n_pieces)
        return true;
    if (byte_level_is_of_bytes(tok))
        return push_bytes(d, id, out);
    if (tok->level)
        return text_decoder_push(&tok->level->decoder, d, id, out);
    if (tok->pieces[id].type != PIECE_BYTE)
        return detokenizer_release(d, true, out) && push_text(d, id, out);
    int value = vocab_byte_value(vocab_bytes(tok, id), tok->pieces[id].n_bytes);
    d->held[d->n_held++] = (uint8_t)value;
    return detokenizer_release(d, false, out);
}

bool detokenizer_finish(struct detokenizer *d, struct buf *out)
{
    bool has_bytes = byte_level_is_of_bytes(d->tok) || (d->tok->level && d->tok->level->decoder.has_bytes);
    if (!has_bytes || d->n_held == 0)
        return detokenizer_release(d, true, out);
    d->n_held = 0;
    return buf_add(out, REPLACEMENT, 3);
}

bool tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n_ids, struct buf *out)
{
    struct detokenizer d;
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i < n_ids; i++) {
        if (!detokenizer_push(&d, ids[i], out))
            return false;
    }
    return detokenizer_finish(&d, out);
}

bool tokenizer_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out)
{
    if (id < 0 || id >= tok->n_pieces)
        return true;
    if (byte_level_is_of_bytes(tok))
        return byte_level_token_bytes(tok, id, out);
    if (tok->level)
        return text_decoder_token(&tok->level->decoder, tok, id, out);
    struct piece piece = tokenizer_piece(tok, id);
    if (piece.type == PIECE_CONTROL)
        return true;
    char c;
    int n;
    if (tok->is_icetext && icetext_surface(tok, id, &c, &n))
        return add_repeated(c, n, out);
    if (piece.type == PIECE_BYTE) {
        char byte = (char)vocab_byte_value(piece.bytes, piece.n_bytes);
        return buf_add(out, &byte, 1);
    }
    if (piece.type == PIECE_UNKNOWN)
        return decode_add_text(tok, tok->unk_surface.bytes, tok->unk_surface.n_bytes, out);
    return add_with_blanks(tok, piece.bytes, piece.n_bytes, out);
}
