/* Limits the cost of compiling a grammar or computing a mask: steps, bytes of memory, and
 * cancellation.
 *
 * Steps are counted instead of time, so that every machine refuses the same texts. A step is a
 * node, an edge, a state, a keyword of a schema, a visited place, or about 8 table look-ups: 5 to
 * 50 ns. */
#ifndef TUTTI_GRAMMAR_BUDGET_H
#define TUTTI_GRAMMAR_BUDGET_H

#include "base/error.h"

struct client_memory;

struct budget_limits {
    int64_t n_steps, n_bytes;
    /* Called once in BUDGET_INTERVAL steps; NULL: the result is always wanted. */
    bool (*is_unwanted)(void *user);
    void *user;
    struct client_memory *memory; /* counts the grammar as long as it lives; NULL: nothing does */
};

enum { BUDGET_INTERVAL = 4096 };

enum budget_end { BUDGET_GOES_ON, BUDGET_OUT_OF_STEPS, BUDGET_OUT_OF_BYTES, BUDGET_UNWANTED };

struct budget {
    struct budget_limits limits;
    int64_t n_spent;    /* steps, as of the last check */
    int64_t until_look; /* steps to the next check; below 0: check now, or the budget is spent */
    int64_t interval;   /* value of until_look after the last check */
    int64_t n_bytes, peak_bytes;
    enum budget_end end;
};

void budget_init(struct budget *b, const struct budget_limits *limits);

/* The slow path of budget_spend(): checks limits and cancellation. */
bool budget_look(struct budget *b);

/* False: the budget is spent, and stays so. */
static inline bool budget_spend(struct budget *b, int64_t n_steps)
{
    b->until_look -= n_steps;
    return b->until_look >= 0 || budget_look(b);
}

/* Spends n_steps before the work. False: fewer are left; they are not counted, but the budget is
 * over. */
bool budget_prepay(struct budget *b, int64_t n_steps);

static inline bool budget_is_over(const struct budget *b)
{
    return b->end != BUDGET_GOES_ON;
}

/* Call before allocating, and after freeing, n_bytes. False: the budget is spent. */
bool budget_take_bytes(struct budget *b, size_t n_bytes);
void budget_return_bytes(struct budget *b, size_t n_bytes);

/* Makes room for n items in an array of *room items, which may move, and adds the bytes taken from the
 * budget to *n_taken. TUTTI_E_LIMIT: the budget is spent; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status budget_grow(struct budget *b, void *array, size_t *room, size_t n,
                                         size_t item_bytes, size_t *n_taken);

/* Steps spent so far. */
int64_t budget_steps(const struct budget *b);

/* Sets the error of a spent budget: TUTTI_E_LIMIT with the limit that was reached, or
 * TUTTI_E_CANCELLED. */
enum tutti_status budget_explain(const struct budget *b, struct tutti_error *err);

#endif
