#include "load/arrivals.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

enum { STREAM_GAPS = 1, STREAM_ROUNDS = 2 }; /* independent random streams */

void arrivals_init(struct arrivals *a, enum arrival_process process, double per_second, uint64_t seed)
{
    *a = (struct arrivals){ .process = process, .per_second = per_second, .seed = seed };
}

double arrivals_next(struct arrivals *a)
{
    a->n++;
    if (a->process == ARRIVALS_EVEN)
        a->at_s = (double)a->n / a->per_second; /* not a sum, which would accumulate rounding errors */
    else
        a->at_s -= log1p(-rng_uniform(a->seed, STREAM_GAPS, a->n)) / a->per_second;
    return a->at_s;
}

static void shuffle(struct rounds *r)
{
    uint64_t stream = mix64(r->round) ^ STREAM_ROUNDS;
    for (uint32_t i = r->n - 1; !r->in_order && i > 0; i--) { /* Fisher and Yates, from the end */
        uint32_t other = (uint32_t)(rng_uniform(r->seed, stream, i) * (i + 1.0));
        uint32_t id = r->order[i];
        r->order[i] = r->order[other];
        r->order[other] = id;
    }
    r->round++;
    r->next = 0;
}

enum tutti_status rounds_init(struct rounds *out, uint32_t n, bool in_order, uint64_t seed,
                              struct tutti_error *err)
{
    *out = (struct rounds){ .n = n, .seed = seed, .in_order = in_order };
    out->order = calloc(n, sizeof *out->order);
    if (!out->order)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the order of %u prompts", n);
    for (uint32_t i = 0; i < n; i++)
        out->order[i] = i;
    shuffle(out);
    return TUTTI_OK;
}

uint32_t rounds_next(struct rounds *r)
{
    if (r->next == r->n)
        shuffle(r);
    return r->order[r->next++];
}

void rounds_clear(struct rounds *r)
{
    free(r->order);
    *r = (struct rounds){ 0 };
}
