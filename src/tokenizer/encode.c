/* Encodes text with any kind of tokenizer. */
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/json/byte_files.h"
#include "tokenizer/legacy/icetext.h"
#include "tokenizer/legacy/pangu.h"
#include "tokenizer/pieces/unigram.h"

/* SentencePiece tokenizers: normalizes a part, then encodes it. */
static bool encode_part(const struct tokenizer *tok, const char *text, size_t n_bytes,
                        struct part_rules rules, struct ids *out)
{
    struct buf rewritten = { 0 }, normalized = { 0 };
    bool ok = true;
    if (tok->is_icetext || tok->is_pangu) {
        ok = tok->is_icetext ? icetext_rewrite(text, n_bytes, &rewritten)
                             : pangu_rewrite(tok, text, n_bytes, &rewritten);
        text = rewritten.bytes;
        n_bytes = rewritten.n_bytes;
    }
    ok = ok && n_bytes < INT32_MAX / 4 && tokenizer_normalize(tok, text, n_bytes, rules, &normalized) &&
         normalized.n_bytes < INT32_MAX / 4; /* so that counts of symbols cannot overflow */
    ok = ok && (tok->kind == TOKENIZER_UNIGRAM ? unigram_encode : bpe_encode)(
                   tok, normalized.bytes, normalized.n_bytes, rules.takes_marks, out);
    buf_clear(&rewritten);
    buf_clear(&normalized);
    return ok;
}

struct part_encoder {
    const struct tokenizer *tok;
    const char *begin; /* of the text */
    bool takes_marks;
    struct ids *out;
};

static bool add_part(void *to, const char *text, size_t n_bytes)
{
    const struct part_encoder *e = to;
    struct part_rules rules = { .continues = e->tok->prefixes_first_only && text > e->begin,
                                .takes_marks = e->takes_marks };
    return encode_part(e->tok, text, n_bytes, rules, e->out);
}

static bool ids_add_added(void *to, const struct added_token *token)
{
    const struct part_encoder *e = to;
    return ids_add(e->out, token->id);
}

/* Encodes added tokens and the parts between them. takes_marks: see struct part_rules. */
static bool cut_parts(const struct tokenizer *tok, const char *text, size_t n_bytes, struct added_cuts cuts,
                      bool takes_marks, struct ids *out)
{
    struct part_encoder e = { .tok = tok, .begin = text, .takes_marks = takes_marks, .out = out };
    cuts.to = &e;
    cuts.between = add_part;
    cuts.token = ids_add_added;
    return n_bytes == 0 || added_tokens_cut(&tok->added, &tok->added.raw, &cuts, text, n_bytes);
}

static bool encode_text(const struct tokenizer *tok, const char *text, size_t n_bytes, bool takes_special,
                        struct ids *out)
{
    struct added_cuts cuts = { .takes_special = takes_special };
    size_t n_before = out->n;
    bool ok = n_bytes < INT32_MAX / 4 &&
              (tok->level ? byte_level_encode(tok, text, n_bytes, takes_special, out)
                          : cut_parts(tok, text, n_bytes, cuts, true, out));
    if (!ok)
        out->n = n_before;
    return ok;
}

bool tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ids *out)
{
    return encode_text(tok, text, n_bytes, false, out);
}

enum tutti_status tokenizer_encode_error(const struct ids *out, struct tutti_error *err)
{
    return out->why ? error_set(err, TUTTI_E_LIMIT, "tokenizing the prompt: %s", out->why)
                    : error_set(err, TUTTI_E_MEMORY, "tokenizing the prompt: out of memory");
}

bool tokenizer_encode_trusted(const struct tokenizer *tok, const char *text, size_t n_bytes, struct ids *out)
{
    return encode_text(tok, text, n_bytes, true, out);
}

bool tokenizer_encode_ranges(const struct tokenizer *tok, const char *text, size_t n_bytes,
                             const struct trusted_range *ranges, size_t n_ranges, struct ids *out)
{
    struct added_cuts cuts = { .takes_special = n_ranges > 0, .ranges = ranges, .n_ranges = n_ranges };
    size_t n_before = out->n;
    bool ok = n_bytes < INT32_MAX / 4 &&
              (tok->level ? byte_level_encode_ranges(tok, text, n_bytes, ranges, n_ranges, out)
                          : cut_parts(tok, text, n_bytes, cuts, false, out));
    if (!ok)
        out->n = n_before;
    return ok;
}
