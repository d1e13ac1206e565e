/* Characters that the system's libraries do not know yet.
 *
 * Oniguruma and PCRE2 have the system's Unicode version (Debian 12: 14.0), vocabularies were made
 * with a newer one (16.0). A pattern therefore searches in a copy of the text, in which a character
 * with the same classes stands for each newer one. It has as many bytes, so positions are the same.
 * A newer library gives a stand-in the same classes, so the copy is correct there too. */
#ifndef TUTTI_TOKENIZER_UNICODE_STAND_INS_H
#define TUTTI_TOKENIZER_UNICODE_STAND_INS_H

#include "tokenizer/unicode/unicode_tables.h"

#include <stdbool.h>

/* Whether a text has a newer character. text: valid UTF-8. */
bool stand_ins_needed(const char *text, size_t n_bytes);

/* The run of newer characters that contains c; NULL: none. */
const struct stand_in *stand_in_find(uint32_t c);

#endif
