/* The budget of making a grammar or a mask: counted steps, bytes of memory, and whether the result is still wanted.
 *
 * Steps are counted and not timed, so that the same text is refused, or not, on every machine. A step is a node, an edge, a state, a
 * keyword of a schema, a place that is looked at, or about 8 look-ups in a table: 5 to 50 ns. */
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
    int64_t n_spent;    /* steps, as of the last look */
    int64_t until_look; /* steps; below 0: it is time to look, or the budget is spent */
    int64_t interval;   /* until_look as it was after the last look */
    int64_t n_bytes, peak_bytes;
    enum budget_end end;
};

void budget_init(struct budget *b, const struct budget_limits *limits);

/* The slow half of budget_spend(). */
bool budget_look(struct budget *b);

/* False: the budget is spent, and stays so. */
static inline bool budget_spend(struct budget *b, int64_t n_steps)
{
    b->until_look -= n_steps;
    return b->until_look >= 0 || budget_look(b);
}

/* Spends n_steps before the work that they pay for. False: fewer are left; none is counted, and the budget is spent. */
bool budget_prepay(struct budget *b, int64_t n_steps);

static inline bool budget_is_over(const struct budget *b)
{
    return b->end != BUDGET_GOES_ON;
}

/* Memory is about to be taken, or was given back. False: the budget is spent. */
bool budget_take_bytes(struct budget *b, size_t n_bytes);
void budget_return_bytes(struct budget *b, size_t n_bytes);

/* Steps so far. */
int64_t budget_steps(const struct budget *b);

/* Why it is over: TUTTI_E_LIMIT with the limit that it reached, TUTTI_E_CANCELLED. */
enum tutti_status budget_explain(const struct budget *b, struct tutti_error *err);

#endif
