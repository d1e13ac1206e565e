/* Upper and lower case of single characters, from the C library's Unicode tables. A character
 * that Python maps to several (the German sharp s) is unchanged. */
#include "template/values/value.h"

#include <locale.h>
#include <pthread.h>
#include <wctype.h>

static locale_t unicode;

static void load_locale(void)
{
    unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

/* False: the system has no such locale; then only ASCII has case. */
static bool has_locale(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, load_locale) == 0 && unicode != (locale_t)0;
}

uint32_t text_upper(uint32_t c)
{
    if (c < 0x80)
        return c >= 'a' && c <= 'z' ? c - 32 : c;
    return has_locale() ? (uint32_t)towupper_l((wint_t)c, unicode) : c;
}

uint32_t text_lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return has_locale() ? (uint32_t)towlower_l((wint_t)c, unicode) : c;
}

bool text_is_letter(uint32_t c)
{
    if (c < 0x80)
        return (c | 32) >= 'a' && (c | 32) <= 'z';
    return has_locale() && iswalpha_l((wint_t)c, unicode);
}
