/* Ids to text where tokens are text: the decoders of the Hugging Face tokenizers library, one token after another.
 *
 * What a token is shown as depends on whether it comes first, on nothing else that comes before it. So it is worked out once,
 * when the tokenizer is made; what remains are bytes that make characters together, and blanks at the ends. */
#ifndef TUTTI_TOKENIZER_STAGES_TEXT_DECODER_H
#define TUTTI_TOKENIZER_STAGES_TEXT_DECODER_H

#include "tokenizer/stages/normalizer.h"

enum { MAX_DECODE_STEPS = 16, MAX_DECODE_STRIP = 255 };

struct decode_step {
    enum {
        DECODE_REPLACE,   /* replace */
        DECODE_METASPACE, /* mark becomes a blank; drops_first: not in the first token */
        DECODE_WORDPIECE, /* words are parted by a blank; mark: of tokens that continue one */
        DECODE_SUFFIX,    /* mark, at the end of a word, becomes a blank */
        DECODE_STRIP,     /* mark at the ends of a token */
        DECODE_BYTES,     /* the alphabet of byte_map.h */
        DECODE_BLANKS     /* a blank between tokens: there is no decoder */
    } kind;
    struct normalizers replace; /* one */
    struct buf mark;
    bool drops_first, cleans_up;
    int start, stop;
};

/* Zero-initialised: not there. */
struct text_decoder {
    bool is_there;
    struct decode_step steps[MAX_DECODE_STEPS];
    int n_steps;
    bool has_bytes;  /* bytes of tokens make characters together */
    bool falls_back; /* runs of BYTE tokens do */
    struct buf mark; /* one character, which is taken from the text's ends: */
    int start, stop; /* at most that often */
    struct buf shown;
    uint32_t *ends;    /* [n_forms * n + 1] */
    size_t n, n_forms; /* forms: as first token, as any other */
};

/* The vocabulary is there. Errors name `name`. */
MUST_CHECK enum tutti_status text_decoder_finish(struct text_decoder *decoder, const struct tokenizer *tok,
                                                 const char *name, struct tutti_error *err);
void text_decoder_clear(struct text_decoder *decoder);

/* detokenizer_push(), detokenizer_finish() and tokenizer_token_bytes() of such a tokenizer. */
MUST_CHECK bool text_decoder_push(const struct text_decoder *decoder, struct detokenizer *d, int32_t id,
                                  struct buf *out);
MUST_CHECK bool text_decoder_end(const struct text_decoder *decoder, struct detokenizer *d, struct buf *out);
MUST_CHECK bool text_decoder_token(const struct text_decoder *decoder, const struct tokenizer *tok,
                                   int32_t id, struct buf *out);

#endif
