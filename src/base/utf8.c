#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

/* The length of a character, and the range of its second byte, which excludes overlong forms,
 * surrogates and too large values. */
static int length_and_second(uint8_t lead, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xC2 && lead <= 0xDF)
        return 2;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0)
            *lo = 0xA0;
        if (lead == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0)
            *lo = 0x90;
        if (lead == 0xF4)
            *hi = 0x8F;
        return 4;
    }
    return 0;
}

/* The number of valid bytes of the character; *want: its length, 0: invalid lead byte. */
static int good_bytes(const char *text, size_t n_bytes, int *want)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t lo, hi;
    *want = n_bytes > 0 ? length_and_second(p[0], &lo, &hi) : 0;
    if (*want == 0)
        return 0;
    int n = 1;
    while (n < *want && (size_t)n < n_bytes) {
        if (p[n] < (n == 1 ? lo : 0x80) || p[n] > (n == 1 ? hi : 0xBF))
            break;
        n++;
    }
    return n;
}

int utf8_char(const char *text, size_t n_bytes)
{
    int want, good = good_bytes(text, n_bytes, &want);
    return good == want ? want : 0;
}

int utf8_decode(const char *text, size_t n_bytes, uint32_t *code)
{
    static const uint8_t BITS_OF_LEAD[] = { 0, 0x7F, 0x1F, 0x0F, 0x07 };
    int n = utf8_char(text, n_bytes);
    if (n == 0)
        return 0;
    *code = (uint8_t)text[0] & BITS_OF_LEAD[n];
    for (int i = 1; i < n; i++)
        *code = *code << 6 | ((uint8_t)text[i] & 0x3F);
    return n;
}

int32_t utf8_code_at(const char *text, size_t n_bytes, size_t *n)
{
    uint32_t code = 0;
    int length = utf8_decode(text, n_bytes, &code);
    *n = length > 0 ? (size_t)length : 1;
    return length > 0 ? (int32_t)code : -1;
}

int utf8_encode(uint32_t code, char out[4])
{
    static const uint8_t LEADS[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(LEADS[n] | code);
    return n;
}

bool utf8_is_continuation(char byte)
{
    return ((uint8_t)byte & 0xC0) == 0x80;
}

size_t utf8_count(const char *text, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += !utf8_is_continuation(text[i]);
    return n;
}

bool utf8_is_start(const char *text, size_t n_bytes)
{
    int want, good = good_bytes(text, n_bytes, &want);
    return good < want && (size_t)good == n_bytes;
}

/* Number of leading bytes of printable ASCII: a fast path, as most texts are nothing else. */
static size_t n_plain(const char *text, size_t n_bytes)
{
    size_t n = 0;
    while (n < n_bytes && text[n] >= ' ' && text[n] <= '~')
        n++;
    return n;
}

static bool is_control(const char *text, int n_bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    return n_bytes == 1 ? p[0] < 0x20 || p[0] == 0x7F : n_bytes == 2 && p[0] == 0xC2 && p[1] < 0xA0;
}

size_t utf8_mark_bytes(const char *text, size_t n_bytes)
{
    static const char MARK[] = "\xEF\xBB\xBF";
    size_t n = sizeof MARK - 1;
    return n_bytes >= n && memcmp(text, MARK, n) == 0 ? n : 0;
}

bool utf8_is_printable(const char *text, size_t n_bytes)
{
    while (n_bytes > 0) {
        int n = utf8_char(text, n_bytes);
        if (n == 0 || is_control(text, n))
            return false;
        text += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

void utf8_make_printable(char *text, size_t n_bytes)
{
    for (size_t i = n_plain(text, n_bytes); i < n_bytes; i += n_plain(text + i, n_bytes - i)) {
        int n = utf8_char(text + i, n_bytes - i);
        size_t step = n > 0 ? (size_t)n : 1;
        if (!utf8_is_printable(text + i, step))
            memset(text + i, '?', step);
        i += step;
    }
}

bool utf8_is_valid(const char *text, size_t n_bytes)
{
    for (size_t i = n_plain(text, n_bytes); i < n_bytes; i += n_plain(text + i, n_bytes - i)) {
        int n = utf8_char(text + i, n_bytes - i);
        if (n == 0)
            return false;
        i += (size_t)n;
    }
    return true;
}
