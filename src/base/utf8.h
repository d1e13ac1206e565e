/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TUTTI_BASE_UTF8_H
#define TUTTI_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at text (1 to 4), or 0: there is no valid one. n_bytes: how many may be read. */
int utf8_char(const char *text, size_t n_bytes);

/* True where text is a proper beginning of a character, so that more bytes could make it valid. n_bytes >= 1. */
bool utf8_is_start(const char *text, size_t n_bytes);

bool utf8_is_valid(const char *text, size_t n_bytes);

/* True where text is valid and holds no control character (below U+0020, U+007F to U+009F): it can be printed. */
bool utf8_is_printable(const char *text, size_t n_bytes);

/* Puts '?' in the place of each byte of what cannot be printed: on a terminal and in a log a stranger's text must be
 * characters, not commands. */
void utf8_make_printable(char *text, size_t n_bytes);

#endif
