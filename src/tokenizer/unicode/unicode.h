/* Unicode normalization (UAX 15) in time n log n for any text, and character properties. */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_H

#include "base/buf.h"

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends text in a normalization form. text: valid UTF-8. False: out of memory. */
MUST_CHECK bool unicode_normalize(enum unicode_form form, const char *text, size_t n_bytes, struct buf *out);

/* Appends text with U+FFFD for invalid UTF-8: one for each incomplete character, one for each
 * byte that cannot begin a character. False: out of memory. */
MUST_CHECK bool unicode_clean(const char *text, size_t n_bytes, struct buf *out);

/* Whether c is in a set: [n] ascending; characters from the first on are in it, from the second on are
 * not, and so on. */
bool unicode_set_has(const uint32_t *toggles, size_t n, uint32_t c);

/* Number of bytes of white space (the property White_Space) at the start, and at the end, of
 * text. text: valid UTF-8. */
size_t unicode_blanks_at_start(const char *text, size_t n_bytes);
size_t unicode_blanks_at_end(const char *text, size_t n_bytes);

/* Whether the first, or the last, character is part of a word: a letter, mark, digit or
 * connector. False for an empty text. */
bool unicode_starts_with_word(const char *text, size_t n_bytes);
bool unicode_ends_with_word(const char *text, size_t n_bytes);

#endif
