/* Formats errors without allocating, so that "out of memory" can be reported. */
#include "base/error.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops an incomplete UTF-8 character at the end of a cut text. */
static void trim_utf8(char *text, size_t n)
{
    size_t start = n;
    while (start > 0 && n - start < 3 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (want > 1 && n - (start - 1) < want)
        text[start - 1] = '\0';
}

static void format_text(char *text, size_t size, const char *format, va_list args)
{
    int n = vsnprintf(text, size, format, args);
    if (n < 0)
        text[0] = '\0';
    else if ((size_t)n >= size)
        trim_utf8(text, size - 1);
    utf8_make_printable(text, strlen(text)); /* it quotes names from files and requests */
}

static void set_text(struct tutti_error *err, enum tutti_status status, const char *param, const char *format,
                     va_list args)
{
    char text[sizeof err->text]; /* the arguments may point into *err */
    format_text(text, sizeof text, format, args);
    err->status = status;
    err->is_overloaded = false;
    err->retry_after_ms = err->context_tokens = 0;
    snprintf(err->param, sizeof err->param, "%s", param);
    utf8_make_printable(err->param, strlen(err->param)); /* a long name may be cut within a character */
    memcpy(err->text, text, sizeof text);
}

enum tutti_status(error_set)(struct tutti_error *err, enum tutti_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (err)
        set_text(err, status, "", format, args);
    va_end(args);
    return status;
}

enum tutti_status error_set_param(struct tutti_error *err, enum tutti_status status, const char *param,
                                  const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (err)
        set_text(err, status, param, format, args);
    va_end(args);
    return status;
}

enum tutti_status error_from_errno(const char *name, struct tutti_error *err)
{
    return error_set(err, errno == ENOENT ? TUTTI_E_NOT_FOUND : TUTTI_E_IO, "%s: %s", name, strerror(errno));
}

void error_prefix(struct tutti_error *err, const char *format, ...)
{
    if (!err)
        return;
    char prefix[sizeof err->text];
    va_list args;
    va_start(args, format);
    format_text(prefix, sizeof prefix, format, args);
    va_end(args);
    char text[2 * sizeof err->text + 4];
    int n = snprintf(text, sizeof text, "%s: %s", prefix, err->text);
    if (n >= (int)sizeof err->text) {
        text[sizeof err->text - 1] = '\0';
        trim_utf8(text, sizeof err->text - 1);
    }
    memcpy(err->text, text, sizeof err->text);
}

const char *tutti_status_name(enum tutti_status status)
{
    static const char *const NAMES[] = {
        [TUTTI_OK] = "ok",
        [TUTTI_E_ARGUMENT] = "argument",
        [TUTTI_E_FORMAT] = "format",
        [TUTTI_E_UNSUPPORTED] = "unsupported",
        [TUTTI_E_IO] = "io",
        [TUTTI_E_NOT_FOUND] = "not_found",
        [TUTTI_E_MEMORY] = "memory",
        [TUTTI_E_LIMIT] = "limit",
        [TUTTI_E_BUSY] = "busy",
        [TUTTI_E_CLOSED] = "closed",
        [TUTTI_E_CANCELLED] = "cancelled",
        [TUTTI_E_NUMERIC] = "numeric",
        [TUTTI_E_INTERNAL] = "internal",
        [TUTTI_E_TIMEOUT] = "timeout",
    };
    return (size_t)status < sizeof NAMES / sizeof *NAMES && NAMES[status] ? NAMES[status] : "unknown";
}
