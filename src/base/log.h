/* Logging to standard error. As text, "2026-01-31T12:00:00Z warn text", or as JSON: each line is
 * an object with the members time, level and message, and the event's own fields. */
#ifndef TUTTI_BASE_LOG_H
#define TUTTI_BASE_LOG_H

#include "base/error.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

/* Lines below level are dropped; LOG_INFO at start. */
void log_set_level(enum log_level level);

/* LOG_TEXT at start. */
void log_set_format(enum log_format format);
bool log_is_json(void);

/* Writes one line in one write(), so lines of several threads do not mix. The text is cut after 1
 * KiB; control characters and invalid UTF-8 become '?'. */
void log_line(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);

struct log_field {
    const char *name; /* lower-case letters and '_'; not time, level or message */
    const char *text; /* cut after 1 KiB; NULL: the value is number */
    double number;
};

/* Writes a line with fields after the message. Fields that do not fit are left out. */
void log_record(enum log_level level, const char *message, const struct log_field *fields, size_t n_fields);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
