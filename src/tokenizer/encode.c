/* Text to ids: the ways of all kinds of tokenizers lead through here. */
#include "tokenizer/byte_level.h"
#include "tokenizer/icetext.h"
#include "tokenizer/pangu.h"
#include "tokenizer/unigram.h"

/* SentencePiece's kinds: normalize all of the text, then cut it. */
static bool encode_sentencepiece(const struct tokenizer *tok, const char *text, size_t n_bytes,
                                 struct ids *out)
{
    struct buf rewritten = { 0 }, normalized = { 0 };
    bool ok = true;
    if (tok->is_icetext || tok->is_pangu) {
        ok = tok->is_icetext ? icetext_rewrite(text, n_bytes, &rewritten)
                             : pangu_rewrite(tok, text, n_bytes, &rewritten);
        text = rewritten.bytes;
        n_bytes = rewritten.n_bytes;
    }
    ok = ok && n_bytes < INT32_MAX / 4 && tokenizer_normalize(tok, text, n_bytes, &normalized) &&
         normalized.n_bytes < INT32_MAX / 4; /* so that no count of symbols overflows */
    ok = ok && (tok->kind == TOKENIZER_UNIGRAM ? unigram_encode : bpe_encode)(tok, normalized.bytes,
                                                                              normalized.n_bytes, out);
    buf_clear(&rewritten);
    buf_clear(&normalized);
    return ok;
}

bool tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ids *out)
{
    size_t n_before = out->n;
    if (n_bytes >= INT32_MAX / 4)
        return false;
    bool ok = tok->level ? byte_level_encode(tok, text, n_bytes, false, out)
                         : encode_sentencepiece(tok, text, n_bytes, out);
    if (!ok)
        out->n = n_before;
    return ok;
}

bool tokenizer_knows_specials(const struct tokenizer *tok)
{
    return tok->level != NULL;
}

bool tokenizer_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                             const struct trusted_range *ranges, size_t n_ranges, struct ids *out)
{
    size_t n_before = out->n;
    bool ok = n_bytes < INT32_MAX / 4 && byte_level_encode_ranges(tok, text, n_bytes, ranges, n_ranges, out);
    if (!ok)
        out->n = n_before;
    return ok;
}
