#include "base/hex.h"

int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool hex_read(const char *text, size_t n_bytes, int n_digits, uint32_t *value)
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
