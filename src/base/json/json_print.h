/* Prints JSON with numbers in their shortest form: 0.1, not 0.10000000000000001 as jansson prints
 * it. */
#ifndef TUTTI_BASE_JSON_JSON_PRINT_H
#define TUTTI_BASE_JSON_JSON_PRINT_H

#include "base/buf.h"

#include <jansson.h>

enum { NUMBER_TEXT_BYTES = 32 };

/* The shortest decimal that reads back as the same number, as %g writes it: 0.1, 1e-07, 5.
 * Returns its length. */
size_t number_shortest(char out[NUMBER_TEXT_BYTES], double number);

/* The double nearest to the shortest decimal that reads back as the same float: 0.1, where 0.1f is
 * 0.100000001490116. The float itself if that has more than 15 decimals. */
double number_of_float(float number);

/* As json_dumps() with any of JSON_COMPACT, JSON_INDENT() and JSON_ENCODE_ANY. Reals keep a point or an
 * exponent, so they are parsed as reals again. The text is the caller's, for free(). NULL: out of memory, or
 * not a value that JSON can write. */
char *json_print(const json_t *value, size_t flags);

/* Appends the text to a buf. False: as NULL above; the content is unchanged. */
MUST_CHECK bool json_print_to(struct buf *out, const json_t *value, size_t flags);

#endif
