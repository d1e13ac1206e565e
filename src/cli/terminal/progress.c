#include "cli/terminal/progress.h"

#include "base/system/clock.h"
#include "cli/terminal/numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { FIRST_US = 300000, INTERVAL_US = 100000, BAR_COLUMNS = 24 };

void progress_begin(struct progress *p, const char *label, enum progress_unit unit)
{
    const char *term = getenv("TERM");
    *p = (struct progress){ .label = label, .unit = unit, .started_us = clock_now_us() };
    p->is_terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void format_amounts(const struct progress *p, uint64_t done, uint64_t total, double seconds,
                           char *text, size_t size)
{
    char a[NUMBER_SIZE_BYTES], b[NUMBER_SIZE_BYTES], c[NUMBER_SIZE_BYTES];
    double per_second = seconds > 0 ? (double)done / seconds : 0;
    if (p->unit == PROGRESS_BYTES)
        snprintf(text, size, "%s of %s, %s/s", number_write_size(a, done), number_write_size(b, total),
                 number_write_size(c, (uint64_t)per_second));
    else if (p->unit == PROGRESS_TOKENS)
        snprintf(text, size, "%llu of %llu tokens, %.1f/s", (unsigned long long)done,
                 (unsigned long long)total, per_second);
    else
        snprintf(text, size, "%llu of %llu", (unsigned long long)done, (unsigned long long)total);
}

void progress_update(void *user, uint64_t done, uint64_t total)
{
    struct progress *p = user;
    uint64_t now = clock_now_us();
    if (!p->is_terminal || total == 0 || now - p->started_us < FIRST_US || now - p->drawn_us < INTERVAL_US)
        return;
    if (done > total)
        done = total;
    double seconds = (double)(now - p->started_us) / 1e6;
    double part = (double)done / (double)total;
    char amounts[120], left[40] = "", line[256], bar[BAR_COLUMNS + 1];
    format_amounts(p, done, total, seconds, amounts, sizeof amounts);
    if (done > 0 && seconds > 1)
        snprintf(left, sizeof left, ", %.0f s left", seconds / part - seconds);
    int filled = (int)(part * BAR_COLUMNS);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(BAR_COLUMNS - filled));
    bar[BAR_COLUMNS] = '\0';
    snprintf(line, sizeof line, "%s [%s] %3.0f%%  %s%s", p->label, bar, 100 * part, amounts, left);
    progress_draw(p, line);
    p->drawn_us = now;
}

void progress_draw(struct progress *p, const char *line)
{
    if (!p->is_terminal)
        return;
    fprintf(stderr, "\r\033[K%.*s", terminal_columns() - 1, line);
    fflush(stderr);
    p->is_drawn = true;
}

void progress_end(struct progress *p)
{
    if (p->is_drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->is_drawn = false;
}
