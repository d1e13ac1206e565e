#include "tokenizer/unicode/substitutes.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

/* A bit for each page of 64 code points: it has a newer character. Few texts have such a page. */
enum { PAGE_BITS = 6, N_PAGES = 0x110000 >> PAGE_BITS };
static uint64_t pages[N_PAGES / 64];
static pthread_once_t pages_once = PTHREAD_ONCE_INIT;

static void fill_pages(void)
{
    for (size_t i = 0; i < UNICODE_TABLES.n_substitutes; i++) {
        const struct substitute *run = &UNICODE_TABLES.substitutes[i];
        for (uint32_t page = run->first >> PAGE_BITS; page <= run->last >> PAGE_BITS; page++)
            pages[page / 64] |= (uint64_t)1 << page % 64;
    }
}

/* The page of the character at text, which is not ASCII. */
static uint32_t page_of(const uint8_t *text)
{
    if (*text < 0xE0)
        return *text & 0x1F;
    if (*text < 0xF0)
        return (uint32_t)(*text & 0x0F) << 6 | (text[1] & 0x3F);
    return (uint32_t)(*text & 0x07) << 12 | (uint32_t)(text[1] & 0x3F) << 6 | (text[2] & 0x3F);
}

const struct substitute *substitute_find(uint32_t c)
{
    const struct substitute *runs = UNICODE_TABLES.substitutes;
    size_t lo = 0, hi = UNICODE_TABLES.n_substitutes;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (c > runs[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < UNICODE_TABLES.n_substitutes && c >= runs[lo].first ? &runs[lo] : NULL;
}

bool substitutes_needed(const char *text, size_t n_bytes)
{
    uint64_t word;
    pthread_once(&pages_once, fill_pages);
    for (size_t at = 0; at < n_bytes;) {
        if (at + 8 <= n_bytes) {
            memcpy(&word, text + at, 8);
            if (!(word & 0x8080808080808080)) {
                at += 8;
                continue;
            }
        }
        const uint8_t *c = (const uint8_t *)text + at;
        if (!(*c & 0x80)) {
            at++;
            continue;
        }
        uint32_t page = page_of(c);
        utf8proc_int32_t code = -1;
        if (pages[page / 64] >> page % 64 & 1)
            utf8proc_iterate(c, (utf8proc_ssize_t)(n_bytes - at), &code);
        if (code >= 0 && substitute_find((uint32_t)code))
            return true;
        at += *c < 0xE0 ? 2 : *c < 0xF0 ? 3 : 4;
    }
    return false;
}
