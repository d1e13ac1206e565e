/* The reader of tokenizer.json: state and functions that its files share. */
#ifndef TUTTI_TOKENIZER_JSON_JSON_READER_H
#define TUTTI_TOKENIZER_JSON_JSON_READER_H

#include "base/json/json_field.h"
#include "tokenizer/bytes/byte_level.h"

#include <jansson.h>

enum { MAX_JSON_STEP_DEPTH = 8 }; /* nesting of Sequence */

struct json_reader {
    struct tokenizer *tok;
    const char *name; /* of the file, for messages */
    struct tutti_error *err;
    /* The output of the decoder's steps so far: single tokens, tokens and runs of bytes, or one text. */
    enum { OF_TOKENS, OF_BYTES, OF_TEXT } decoded;
    int adds_prefix; /* a ByteLevel that is the whole pre-tokenizer: 0 or 1; -1: as its part says */
};

/* A type of step, and what reads one. */
struct json_step {
    const char *type;
    enum tutti_status (*read)(struct json_reader *r, const json_t *part);
};

/* The steps of a field. list: the key of those in a Sequence. The last one has no type. */
struct json_steps {
    const char *field, *list;
    const struct json_step *steps;
};

/* Reads a step, or a Sequence of steps. None: null. */
MUST_CHECK enum tutti_status json_read_steps(struct json_reader *r, const struct json_steps *kinds,
                                             const json_t *part);

enum tutti_status json_reader_out_of_memory(const struct json_reader *r);
/* The field "type" of a part; "": none. */
const char *json_reader_type(const json_t *part);
/* Sets TUTTI_E_UNSUPPORTED: field has the part's type, which is not supported. */
enum tutti_status json_reader_unsupported(const struct json_reader *r, const char *field, const json_t *part,
                                          const char *expected);
/* Reads a required string; errors name field and key. */
MUST_CHECK enum tutti_status json_reader_text(const struct json_reader *r, const char *field,
                                              const json_t *part, const char *key, struct buf *out);

/* replacement and prepend_scheme of Metaspace, as a pre-tokenizer and as a decoder. */
MUST_CHECK enum tutti_status json_read_metaspace(const struct json_reader *r, const char *field,
                                                 const json_t *part, struct metaspace *out);

/* Replace: pattern.String or pattern.Regex, and content. */
MUST_CHECK enum tutti_status json_read_replace(const struct json_reader *r, const char *field,
                                               const json_t *part, struct normalizer *out);

MUST_CHECK enum tutti_status json_read_normalizer(struct json_reader *r, const json_t *part);
MUST_CHECK enum tutti_status json_read_pre_tokenizer(struct json_reader *r, const json_t *part);
/* Reads the vocabulary, with merges or scores. */
MUST_CHECK enum tutti_status json_read_model(struct json_reader *r, const json_t *model);
/* BPE, Unigram, WordPiece or WordLevel. Older files have no "type": it then follows from the
 * model's keys. */
const char *json_model_type(const json_t *model);
MUST_CHECK enum tutti_status json_read_decoder(struct json_reader *r, const json_t *part);
/* Whether the decoder consists only of ByteLevel. */
bool json_decoder_is_of_bytes(const json_t *part);

/* Reads post_processor: fills tok->affixes. The vocabulary and the added tokens must be complete. */
MUST_CHECK enum tutti_status json_read_post_processor(struct json_reader *r, const json_t *part);

#endif
