/* A progress bar, or a line, on standard error. Nothing is drawn if that is not a terminal, or for short
 * work. */
#ifndef TUTTI_CLI_TERMINAL_PROGRESS_H
#define TUTTI_CLI_TERMINAL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum progress_unit { PROGRESS_BYTES, PROGRESS_TOKENS, PROGRESS_STEPS };

struct progress {
    const char *label;
    enum progress_unit unit;
    bool is_terminal, is_drawn;
    uint64_t started_us, drawn_us;
};

/* label is borrowed until progress_end(). */
void progress_begin(struct progress *p, const char *label, enum progress_unit unit);

/* Redraws at most ten times a second. user: a struct progress, so that this can serve as a callback. */
void progress_update(void *user, uint64_t done, uint64_t total);

/* Draws a line instead of the bar. */
void progress_draw(struct progress *p, const char *line);

/* Erases the bar or line. May be called again. */
void progress_end(struct progress *p);

#endif
