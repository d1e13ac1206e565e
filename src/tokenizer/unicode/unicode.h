/* Normalization forms of Unicode (UAX 15), in time n log n for any text. */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_H

#include "base/buf.h"

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Adds text in a form. text: valid UTF-8. False: out of memory. */
MUST_CHECK bool unicode_normalize(enum unicode_form form, const char *text, size_t n_bytes, struct buf *out);

/* Adds text with U+FFFD in place of what is no UTF-8: one for each beginning of a character that is not completed, one
 * for each byte that begins none. False: out of memory. */
MUST_CHECK bool unicode_clean(const char *text, size_t n_bytes, struct buf *out);

/* Bytes of white space (the property White_Space) that text begins with; that it ends with. text: valid UTF-8. */
size_t unicode_blanks_at_start(const char *text, size_t n_bytes);
size_t unicode_blanks_at_end(const char *text, size_t n_bytes);

/* Is the first, the last character part of a word: a letter, mark, digit or connector? False for an empty text. */
bool unicode_starts_with_word(const char *text, size_t n_bytes);
bool unicode_ends_with_word(const char *text, size_t n_bytes);

#endif
