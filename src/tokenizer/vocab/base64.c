#include "tokenizer/vocab/base64.h"

#include <stdint.h>

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_read(const char *text, size_t n_bytes, struct buf *out)
{
    if (n_bytes == 0 || n_bytes % 4 != 0)
        return false;
    for (size_t i = 0; i < n_bytes; i += 4) {
        bool is_last = i + 4 == n_bytes;
        int n_pads = is_last && text[i + 3] == '=' ? 1 + (text[i + 2] == '=') : 0;
        uint32_t bits = 0;
        for (int k = 0; k < 4; k++) {
            int value = k >= 4 - n_pads ? 0 : base64_value(text[i + (size_t)k]);
            if (value < 0)
                return false;
            bits = bits << 6 | (uint32_t)value;
        }
        char bytes[3] = { (char)(bits >> 16), (char)(bits >> 8), (char)bits };
        if (!buf_add(out, bytes, (size_t)(3 - n_pads)))
            return false;
    }
    return true;
}
