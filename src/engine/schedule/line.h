/* The line: requests that have not begun, or not with all their choices, and which of them is next.
 *
 * First the best priority. Of one priority the owner that has had least of the machine, by its weight: start-time fair queueing
 * (Goyal et al., 1996) over tokens, as VTC has it (Sheng et al., 2024, "Fairness in Serving Large Language Models"); an owner who comes
 * back begins where the others are, and saves nothing up. Of an owner and priority the one that came first.
 *
 * An owner's requests of one priority are a lane. A lane that waits behind better priorities rises by one each AGEING_US since
 * it was served last, up to the best that waits; then owners share again, and one who floods the line gains nothing by
 * waiting long.
 *
 * Engine thread only. Nothing here allocates after line_init(). */
#ifndef TUTTI_LINE_H
#define TUTTI_LINE_H

#include "engine/requests/request.h"
#include "engine/schedule/forecast.h"

enum { LINE_AGEING_US = 10 * 1000 * 1000 };

/* The priority of work that has waited since since_us, while the best priority of what it waits for is best. */
static inline int line_aged(int priority, int best, uint64_t since_us, uint64_t now_us)
{
    uint64_t n_steps = now_us > since_us ? (now_us - since_us) / LINE_AGEING_US : 0;
    if (n_steps >= TUTTI_PRIORITIES || priority - (int)n_steps < best)
        return best;
    return priority - (int)n_steps;
}

struct lane {
    struct share *share;
    int priority;
    struct request *head, *tail;
    int n;
    uint64_t since_us;            /* served last, or begun to wait */
    struct lane *previous, *next; /* of the line; free ones: next */
    struct lane *of_share;        /* the next one of its owner */
};

struct line {
    struct lane *memory, *free; /* [n_requests] */
    struct lane *first;
    int n;                     /* requests */
    double virtual_time;       /* service of the owner who began last */
    double weights;            /* of the owners who wait */
    uint64_t next_deadline_us; /* none is earlier; UINT64_MAX: there is none */
};

MUST_CHECK enum tutti_status line_init(struct line *line, int n_requests, struct tutti_error *err);
void line_clear(struct line *line); /* a zeroed one is allowed */

/* Behind the others of its lane, or, where some of its choices have begun, before them. */
void line_add(struct line *line, struct request *r);
void line_remove(struct line *line, struct request *r); /* does nothing where it is not in the line */

/* Who is next; NULL: nobody waits. */
struct request *line_best(const struct line *line, uint64_t now_us);
/* It begins: it leaves the line, and its owner is charged. */
void line_begin(struct line *line, struct request *r, double work, uint64_t now_us);
/* More work was done for the request. */
void line_charge(struct request *r, double work);

/* Calls late() for each one whose time in the queue is over, which must remove it. */
void line_drop_late(struct line *line, uint64_t now_us, void (*late)(void *user, struct request *r),
                    void *user);

/* All of them, in no order that matters: the next one may be asked for before one is removed. */
struct request *line_first(const struct line *line);
struct request *line_next(const struct request *r);

/* waiting: [TUTTI_PRIORITIES]. */
void line_count(const struct line *line, struct tutti_waiting *waiting, uint64_t now_us);

#endif
