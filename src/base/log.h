/* Lines on standard error for the person who runs the program: "2026-01-31T12:00:00Z warn text". */
#ifndef TUTTI_BASE_LOG_H
#define TUTTI_BASE_LOG_H

#include "base/error.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Lines below level are dropped; LOG_INFO at start. */
void log_set_level(enum log_level level);

/* Writes one line in one write(), so lines of several threads do not mix. */
void log_line(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
