/* Characters that the system's libraries do not know yet.
 *
 * Oniguruma and PCRE2 have the system's Unicode version (Debian 12: 14.0), vocabularies were made
 * with a newer one (16.0). A pattern therefore searches in a copy of the text, in which each newer
 * character is replaced by one of the same classes and length in bytes, so positions are the same.
 * A newer library gives a substitute the same classes, so the copy is correct there too. */
#ifndef TUTTI_TOKENIZER_UNICODE_SUBSTITUTES_H
#define TUTTI_TOKENIZER_UNICODE_SUBSTITUTES_H

#include "tokenizer/unicode/unicode_tables.h"

#include <stdbool.h>

/* Whether a text has a newer character. text: valid UTF-8. */
bool substitutes_needed(const char *text, size_t n_bytes);

/* The run of newer characters that contains c; NULL: none. */
const struct substitute *substitute_find(uint32_t c);

#endif
