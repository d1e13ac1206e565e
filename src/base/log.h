/* Lines on standard error: for the person who runs the program, "2026-01-31T12:00:00Z warn text", or for machines, each line
 * a JSON object with the members time, level and message, and those of the event. */
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

/* Writes one line in one write(), so lines of several threads do not mix. Of the text 1 KiB at most; control characters and
 * what is no UTF-8 become '?'. */
void log_line(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);

struct log_field {
    const char *name; /* of lower-case letters and '_'; not time, level or message */
    const char *text; /* cut after 1 KiB; NULL: the number */
    double number;
};

/* A line with fields behind the message; a field for which there is no room is left out. */
void log_record(enum log_level level, const char *message, const struct log_field *fields, size_t n_fields);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
