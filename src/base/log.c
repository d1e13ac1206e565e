#include "base/log.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int min_level = LOG_INFO; /* one for the process, as standard error is */

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&min_level, (int)level, memory_order_relaxed);
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char *const NAMES[] = { "debug", "info", "warn", "error" };
    if ((int)level < atomic_load_explicit(&min_level, memory_order_relaxed))
        return;
    char line[1024];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%SZ ", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, "%s ", NAMES[level]);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    size_t n_text = m <= 0 ? 0 : (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    utf8_make_printable(line + n, n_text); /* it quotes names from files and requests */
    n += n_text;
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; /* there is no further place to complain to */
}
