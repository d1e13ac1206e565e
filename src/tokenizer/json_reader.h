/* Inside of the reader of tokenizer.json: what its parts share. */
#ifndef TUTTI_TOKENIZER_JSON_READER_H
#define TUTTI_TOKENIZER_JSON_READER_H

#include "tokenizer/byte_level.h"

#include <jansson.h>

/* Sequences of steps within sequences. */
enum { MAX_JSON_STEP_DEPTH = 8 };

struct json_reader {
    struct tokenizer *tok;
    const char *name; /* of the file, for messages */
    struct tutti_error *err;
    bool has_bytes; /* the pre-tokenizer ends with ByteLevel */
    bool decodes_marks, decodes_bytes;
};

enum tutti_status json_reader_out_of_memory(const struct json_reader *r);
/* The field "type" of a part; "": it has none. */
const char *json_reader_type(const json_t *part);
/* TUTTI_E_UNSUPPORTED: field is of the part's type. */
enum tutti_status json_reader_unsupported(const struct json_reader *r, const char *field, const json_t *part,
                                          const char *expected);
static inline bool json_reader_is_on(const json_t *part, const char *key)
{
    return json_is_true(json_object_get(part, key));
}

/* post_processor: fills tok->affixes. The vocabulary and the added tokens are there. */
MUST_CHECK enum tutti_status json_read_post_processor(struct json_reader *r, const json_t *part);

#endif
