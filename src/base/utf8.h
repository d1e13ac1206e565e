/* Reads, checks and writes UTF-8 by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TUTTI_BASE_UTF8_H
#define TUTTI_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at text (1 to 4), or 0: not a valid character. n_bytes: how many may be
 * read. */
int utf8_char(const char *text, size_t n_bytes);

/* The same, and the character's code point. *code is unchanged if 0 is returned. */
int utf8_decode(const char *text, size_t n_bytes, uint32_t *code);

/* The first character's code point; -1: its first byte is not part of a valid character. *n: how
 * many bytes it has, at least 1. n_bytes >= 1. */
int32_t utf8_code_at(const char *text, size_t n_bytes, size_t *n);

/* Writes a code point of at most U+10FFFF; returns the number of bytes. */
int utf8_encode(uint32_t code, char out[4]);

/* Whether a byte of valid text is a later byte of a character, not its first one. */
bool utf8_is_continuation(char byte);

/* Number of characters of valid text. */
size_t utf8_count(const char *text, size_t n_bytes);

/* Whether text is an incomplete character: more bytes could make it valid. n_bytes >= 1. */
bool utf8_is_start(const char *text, size_t n_bytes);

bool utf8_is_valid(const char *text, size_t n_bytes);

/* Bytes of a byte order mark at the start of text, where some editors write one: 3 or 0. */
size_t utf8_mark_bytes(const char *text, size_t n_bytes);

/* Whether text is valid and has no control characters (below U+0020, U+007F to U+009F), so it can
 * be printed. */
bool utf8_is_printable(const char *text, size_t n_bytes);

/* Replaces each byte that is not printable by '?': untrusted text must not send control sequences
 * to a terminal or log. */
void utf8_make_printable(char *text, size_t n_bytes);

#endif
