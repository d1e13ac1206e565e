/* Decoders of the Hugging Face tokenizers library, for tokenizers whose tokens are text: converts
 * ids to text incrementally.
 *
 * The text of a token depends only on whether it is the first one. So it is computed once, when
 * the tokenizer is built. Decoding then only joins byte tokens into characters and strips blanks
 * at the ends. */
#ifndef TUTTI_TOKENIZER_STAGES_TEXT_DECODER_H
#define TUTTI_TOKENIZER_STAGES_TEXT_DECODER_H

#include "tokenizer/stages/normalizer.h"

enum { MAX_DECODE_STEPS = 16, MAX_DECODE_STRIP = 255 };

struct decode_step {
    enum {
        DECODE_REPLACE,   /* replace */
        DECODE_METASPACE, /* mark becomes a space; drops_first: except in the first token */
        DECODE_WORDPIECE, /* spaces between words; mark: of tokens that continue a word */
        DECODE_SUFFIX,    /* mark at the end of a word becomes a space */
        DECODE_STRIP,     /* removes mark at the ends of a token */
        DECODE_BYTES,     /* the alphabet of byte_map.h */
        DECODE_BLANKS     /* a space between tokens: no decoder is defined */
    } kind;
    struct normalizers replace; /* a single step */
    struct buf mark;
    bool drops_first, cleans_up;
    int start, stop;
};

/* Zero-initialised: no decoder. */
struct text_decoder {
    bool is_there;
    struct decode_step steps[MAX_DECODE_STEPS];
    int n_steps;
    bool has_bytes;  /* the bytes of several tokens can form a character */
    bool falls_back; /* the same for runs of BYTE tokens */
    struct buf mark; /* one character, stripped from the ends of the text: */
    int start, stop; /* maximum number at each end */
    struct buf shown;
    uint32_t *ends;    /* [n_forms * n + 1] */
    size_t n, n_forms; /* forms: as first token, as any other */
};

/* Computes the texts of all tokens; the vocabulary must be complete. name: the file, for
 * messages. */
MUST_CHECK enum tutti_status text_decoder_finish(struct text_decoder *decoder, const struct tokenizer *tok,
                                                 const char *name, struct tutti_error *err);
void text_decoder_clear(struct text_decoder *decoder);

/* Implement detokenizer_push() and tokenizer_token_bytes(). */
MUST_CHECK bool text_decoder_push(const struct text_decoder *decoder, struct detokenizer *d, int32_t id,
                                  struct buf *out);
MUST_CHECK bool text_decoder_token(const struct text_decoder *decoder, const struct tokenizer *tok,
                                   int32_t id, struct buf *out);

/* Emits whole characters. The first ones may be dropped, and the last ones are held until the text's end. */
MUST_CHECK bool text_decoder_add(const struct text_decoder *decoder, struct detokenizer *d, const char *text,
                                 size_t n_bytes, struct buf *out);

#endif
