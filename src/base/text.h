/* Tests for digits and for the end of a string. */
#ifndef TUTTI_BASE_TEXT_H
#define TUTTI_BASE_TEXT_H

#include <stdbool.h>
#include <string.h>

/* An ASCII digit, whatever the locale. */
static inline bool text_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline bool text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

#endif
