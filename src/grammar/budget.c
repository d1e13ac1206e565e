#include "grammar/budget.h"

#include "base/containers/array.h"

static void plan_look(struct budget *b)
{
    int64_t left = b->limits.n_steps - b->n_spent;
    b->interval = left < BUDGET_INTERVAL ? left : BUDGET_INTERVAL;
    b->until_look = b->interval;
}

void budget_init(struct budget *b, const struct budget_limits *limits)
{
    *b = (struct budget){ .limits = *limits };
    plan_look(b);
}

bool budget_look(struct budget *b)
{
    b->n_spent = budget_steps(b);
    if (b->end == BUDGET_GOES_ON && b->n_spent > b->limits.n_steps)
        b->end = BUDGET_OUT_OF_STEPS;
    if (b->end == BUDGET_GOES_ON && b->limits.is_unwanted && b->limits.is_unwanted(b->limits.user))
        b->end = BUDGET_UNWANTED;
    if (b->end == BUDGET_GOES_ON) {
        plan_look(b);
        return true;
    }
    b->interval = b->until_look = -1;
    return false;
}

static void stop(struct budget *b, enum budget_end end)
{
    b->n_spent = budget_steps(b);
    b->end = end;
    b->interval = b->until_look = -1;
}

bool budget_prepay(struct budget *b, int64_t n_steps)
{
    if (b->end == BUDGET_GOES_ON && n_steps > b->limits.n_steps - budget_steps(b))
        stop(b, BUDGET_OUT_OF_STEPS);
    return b->end == BUDGET_GOES_ON && budget_spend(b, n_steps);
}

bool budget_take_bytes(struct budget *b, size_t n_bytes)
{
    b->n_bytes += (int64_t)n_bytes;
    if (b->n_bytes > b->peak_bytes && b->n_bytes <= b->limits.n_bytes)
        b->peak_bytes = b->n_bytes;
    if (b->end == BUDGET_GOES_ON && b->n_bytes > b->limits.n_bytes)
        stop(b, BUDGET_OUT_OF_BYTES);
    return b->end == BUDGET_GOES_ON;
}

void budget_return_bytes(struct budget *b, size_t n_bytes)
{
    b->n_bytes -= (int64_t)n_bytes;
}

enum tutti_status budget_grow(struct budget *b, void *array, size_t *room, size_t n, size_t item_bytes,
                              size_t *n_taken)
{
    size_t more = *room ? 2 * *room : 64;
    if (n <= *room)
        return TUTTI_OK;
    while (more < n)
        more *= 2;
    *n_taken += (more - *room) * item_bytes;
    if (!budget_take_bytes(b, (more - *room) * item_bytes))
        return TUTTI_E_LIMIT;
    if (!array_resize(array, more, item_bytes))
        return TUTTI_E_MEMORY;
    *room = more;
    return TUTTI_OK;
}

int64_t budget_steps(const struct budget *b)
{
    return b->n_spent + b->interval - b->until_look;
}

enum tutti_status budget_explain(const struct budget *b, struct tutti_error *err)
{
    switch (b->end) {
    case BUDGET_GOES_ON:
        return TUTTI_OK;
    case BUDGET_OUT_OF_STEPS:
        return error_set(
            err, TUTTI_E_LIMIT,
            "the grammar is too complex: compiling takes more than %lld steps; use fewer or smaller "
            "alternatives, allOf, $ref or repetitions",
            (long long)b->limits.n_steps);
    case BUDGET_OUT_OF_BYTES:
        return error_set(err, TUTTI_E_LIMIT,
                         "the grammar is too large: compiling takes more than %lld MiB of memory",
                         (long long)(b->limits.n_bytes >> 20));
    default:
        return error_set(err, TUTTI_E_CANCELLED, "compiling the grammar was cancelled");
    }
}
