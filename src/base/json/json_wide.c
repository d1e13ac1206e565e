#include "base/json/json_wide.h"

#include "base/buf.h"

#include <string.h>

static bool exceeds_int64(const char *digits, size_t n_digits, bool is_negative)
{
    static const char MAX[] = "9223372036854775807", MIN[] = "9223372036854775808";
    size_t n = sizeof MAX - 1;
    return n_digits > n || (n_digits == n && memcmp(digits, is_negative ? MIN : MAX, n) > 0);
}

/* Copies the text and appends a fraction to every integer that exceeds 64 bits. False: out of memory. */
static bool widen_integers(struct buf *out, const char *text, size_t n_bytes)
{
    bool is_string = false, ok = true;
    size_t n_copied = 0;
    for (size_t i = 0, n; ok && i < n_bytes; i += n) {
        const char *at = text + i;
        size_t left = n_bytes - i, n_sign = *at == '-' && left > 1, n_digits = 0;
        n = 1;
        if (is_string) {
            is_string = *at != '"';
            n = *at == '\\' && left > 1 ? 2 : 1;
        } else if (*at == '"') {
            is_string = true;
        } else {
            while (n_sign + n_digits < left && at[n_sign + n_digits] >= '0' && at[n_sign + n_digits] <= '9')
                n_digits++;
            n = n_digits > 0 ? n_sign + n_digits : 1;
        }
        /* Digits before or after a point or an exponent are not an integer. */
        bool is_wide = exceeds_int64(at + n_sign, n_digits, n_sign > 0) &&
                       !(i > 0 && strchr(".eE+", text[i - 1])) && !(n < left && strchr(".eE", at[n]));
        if (is_wide) {
            ok = buf_add(out, text + n_copied, i + n - n_copied) && buf_add(out, ".0", 2);
            n_copied = i + n;
        }
    }
    return ok && buf_add(out, text + n_copied, n_bytes - n_copied);
}

json_t *json_load_wide(const char *text, size_t n_bytes, size_t flags, json_error_t *why)
{
    json_t *root = json_loadb(text, n_bytes, flags, why);
    if (root || why->text[0] == '\0' || json_error_code(why) != json_error_numeric_overflow)
        return root;
    struct buf wide = { 0 };
    if (widen_integers(&wide, text, n_bytes))
        root = json_loadb(wide.bytes, wide.n_bytes, flags, why);
    buf_clear(&wide);
    return root;
}
