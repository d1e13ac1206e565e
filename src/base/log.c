#include "base/log.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 1024, LINE_BYTES = 8 * 1024 };

/* Global settings, since standard error is global too. */
static atomic_int min_level = LOG_INFO;
static atomic_bool is_json;

static const char *const NAMES[] = { "debug", "info", "warn", "error" };

struct log_entry {
    char bytes[LINE_BYTES];
    size_t n;
};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&min_level, (int)level, memory_order_relaxed);
}

void log_set_format(enum log_format format)
{
    atomic_store_explicit(&is_json, format == LOG_JSON, memory_order_relaxed);
}

bool log_is_json(void)
{
    return atomic_load_explicit(&is_json, memory_order_relaxed);
}

static bool is_dropped(enum log_level level)
{
    return (int)level < atomic_load_explicit(&min_level, memory_order_relaxed);
}

static void put_bytes(struct log_entry *line, const char *text, size_t n)
{
    if (n > sizeof line->bytes - line->n)
        n = sizeof line->bytes - line->n;
    memcpy(line->bytes + line->n, text, n);
    line->n += n;
}

/* Quoted text comes from files and requests, so it is escaped. */
static void put_text(struct log_entry *line, const char *text, size_t n, bool is_quoted)
{
    char clean[TEXT_BYTES];
    if (n > sizeof clean)
        n = sizeof clean;
    memcpy(clean, text, n);
    utf8_make_printable(clean, n);
    for (size_t i = 0; i < n; i++) {
        if (is_quoted && (clean[i] == '"' || clean[i] == '\\'))
            put_bytes(line, "\\", 1);
        put_bytes(line, clean + i, 1);
    }
}

static void put_time(struct log_entry *line, bool with_milliseconds)
{
    char text[64];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (with_milliseconds)
        n += (size_t)snprintf(text + n, sizeof text - n, ".%03d", (int)(now.tv_nsec / 1000000));
    put_bytes(line, text, n);
    put_bytes(line, "Z", 1);
}

static void put_field(struct log_entry *line, const struct log_field *field, bool json)
{
    char number[64];
    size_t n_text = field->text ? strlen(field->text) : 0;
    /* A field is written whole or not at all: each byte may be escaped, and the end of the line
     * must fit. */
    if (line->n + strlen(field->name) + 2 * (n_text < TEXT_BYTES ? n_text : TEXT_BYTES) + sizeof number + 16 >
        sizeof line->bytes)
        return;
    put_bytes(line, json ? ",\"" : " ", json ? 2 : 1);
    put_bytes(line, field->name, strlen(field->name));
    put_bytes(line, json ? "\":" : "=", json ? 2 : 1);
    if (field->text) {
        put_bytes(line, "\"", json);
        put_text(line, field->text, n_text, json);
        put_bytes(line, "\"", json);
    } else if (isfinite(field->number)) {
        put_bytes(line, number, (size_t)snprintf(number, sizeof number, "%.15g", field->number));
    } else {
        put_bytes(line, "null", 4);
    }
}

void log_record(enum log_level level, const char *message, const struct log_field *fields, size_t n_fields)
{
    if (is_dropped(level))
        return;
    struct log_entry line;
    bool json = log_is_json();
    line.n = 0;
    put_bytes(&line, "{\"time\":\"", json ? 9 : 0);
    put_time(&line, json);
    if (json)
        put_bytes(&line, "\",\"level\":\"", 11);
    else
        put_bytes(&line, " ", 1);
    put_bytes(&line, NAMES[level], strlen(NAMES[level]));
    if (json)
        put_bytes(&line, "\",\"message\":\"", 13);
    else
        put_bytes(&line, " ", 1);
    put_text(&line, message, strlen(message), json);
    put_bytes(&line, "\"", json);
    for (size_t i = 0; i < n_fields; i++)
        put_field(&line, &fields[i], json);
    put_bytes(&line, "}", json);
    put_bytes(&line, "\n", 1);
    ssize_t written = write(STDERR_FILENO, line.bytes, line.n);
    (void)written; /* an error of the log cannot be reported */
}

void log_line(enum log_level level, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    if (is_dropped(level))
        return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_record(level, n < 0 ? "" : text, NULL, 0);
}
