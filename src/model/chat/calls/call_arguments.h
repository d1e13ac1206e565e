/* Prints the arguments of one call as a JSON object, piece by piece, from pairs of names and values as
 * models write them without quotes, or in Python. */
#ifndef TUTTI_MODEL_CHAT_CALL_ARGUMENTS_H
#define TUTTI_MODEL_CHAT_CALL_ARGUMENTS_H

#include "base/buf.h"

#include <jansson.h>

struct call_arguments {
    struct buf json; /* what was printed and not taken yet; the caller truncates it */
    bool has_any;    /* an argument was printed */
    json_t *names;   /* of all arguments so far; NULL: none yet */
    json_t *name;    /* of the next value */
    bool is_text;    /* that value is a text, and may be printed before it is complete */
    bool may_be_null, may_be_text;
    bool is_begun; /* its first piece was printed */
};

/* Functions that print return false for arguments that are not valid, and if memory runs out. */

void call_arguments_begin(struct call_arguments *a); /* of a further call */
void call_arguments_clear(struct call_arguments *a); /* frees everything */

MUST_CHECK bool call_arguments_set_name(struct call_arguments *a, const char *name, size_t n_bytes);

/* The value of this name begins. function: the tool, whose schema decides the value's type unless it is
 * known to be a text. False: a second value of a name that the schema lists. */
MUST_CHECK bool call_arguments_begin_value(struct call_arguments *a, const json_t *function, bool is_text);

/* Takes the next piece of the value, whole characters only. Returns how many bytes were printed,
 * which may be 0: a value that can be anything but text is not printed before it is complete. */
MUST_CHECK bool call_arguments_add_piece(struct call_arguments *a, const char *text, size_t n_bytes,
                                         size_t *n_taken);

/* Prints the rest of the value. */
MUST_CHECK bool call_arguments_end_value(struct call_arguments *a, const char *text, size_t n_bytes);

/* The same, of a value that is given as JSON and was begun. Takes over value; NULL: it is not valid. */
MUST_CHECK bool call_arguments_set_value(struct call_arguments *a, json_t *value);

/* Prints one argument in Python: a=1. function: as above. */
MUST_CHECK bool call_arguments_add_python(struct call_arguments *a, const json_t *function, const char *text,
                                          size_t n_bytes);

/* Prints the end of the object. */
MUST_CHECK bool call_arguments_end(struct call_arguments *a);

#endif
