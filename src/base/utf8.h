/* UTF-8 validation by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TUTTI_BASE_UTF8_H
#define TUTTI_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at text (1 to 4), or 0: not a valid character. n_bytes: how many may be
 * read. */
int utf8_char(const char *text, size_t n_bytes);

/* Whether text is an incomplete character: more bytes could make it valid. n_bytes >= 1. */
bool utf8_is_start(const char *text, size_t n_bytes);

bool utf8_is_valid(const char *text, size_t n_bytes);

/* Whether text is valid and has no control characters (below U+0020, U+007F to U+009F), so it can
 * be printed. */
bool utf8_is_printable(const char *text, size_t n_bytes);

/* Replaces each byte that is not printable by '?': untrusted text must not send control sequences
 * to a terminal or log. */
void utf8_make_printable(char *text, size_t n_bytes);

#endif
