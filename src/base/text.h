/* Digits, and the end of a string. */
#ifndef TUTTI_BASE_TEXT_H
#define TUTTI_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* An ASCII digit, whatever the locale. */
static inline bool text_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The value of a hexadecimal digit of either case; -1: not a digit. */
static inline int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads n_digits (at most 8) hexadecimal digits at text. False: text is shorter, or has another
 * character among them. */
static inline bool hex_read(const char *text, size_t n_bytes, int n_digits, uint32_t *value)
{
    uint32_t read = 0;
    if (n_bytes < (size_t)n_digits)
        return false;
    for (int i = 0; i < n_digits; i++) {
        int digit = hex_digit(text[i]);
        if (digit < 0)
            return false;
        read = read << 4 | (uint32_t)digit;
    }
    *value = read;
    return true;
}

static inline bool text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

#endif
