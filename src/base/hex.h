/* Reads hexadecimal digits. */
#ifndef TUTTI_BASE_HEX_H
#define TUTTI_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 0 to 15; -1: not a digit. Both cases are digits. */
int hex_digit(char c);

/* Reads n_digits (at most 8) digits at text. False: text is shorter, or has another character among
 * them. */
bool hex_read(const char *text, size_t n_bytes, int n_digits, uint32_t *value);

#endif
