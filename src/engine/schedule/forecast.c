#include "engine/schedule/forecast.h"

#include "engine/requests/request.h"

enum {
    ENOUGH = 4,         /* requests that must have started before the rate is used */
    FIRST_ANSWER = 256, /* tokens that an answer is expected to have before one has ended */
};
static const double FORGETTING = 1 / 32.; /* decay of older measurements, for each request that starts */

static int64_t work_of(const struct forecast *f, const struct request *r)
{
    double mean = atomic_load_explicit(&f->mean_answer, memory_order_relaxed);
    int max_tokens = r->spec.max_tokens;
    double answer = mean > 0 ? mean : FIRST_ANSWER;
    if (max_tokens > 0 && max_tokens < answer)
        answer = max_tokens;
    double n_answers = r->spec.no_answer ? 0 : r->spec.n_choices;
    return request_estimate_prompt(r) + (int64_t)(OUTPUT_WORK * answer * n_answers) + 1;
}

static void set_work(struct forecast *f, struct request *r, int64_t work)
{
    atomic_int_fast64_t *class = &f->waiting[r->spec.priority - TUTTI_PRIORITY_FIRST];
    atomic_fetch_add_explicit(class, work - r->work, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->share->waiting, work - r->work, memory_order_relaxed);
    r->work = work;
}

void forecast_enter(struct forecast *f, struct request *r)
{
    set_work(f, r, work_of(f, r));
}

void forecast_leave(struct forecast *f, struct request *r)
{
    set_work(f, r, 0);
}

/* One thread may add a request that the other has not counted yet, so a sum may be negative for a
 * moment. */
static double forecast_load(const atomic_int_fast64_t *work)
{
    int64_t value = atomic_load_explicit(work, memory_order_relaxed);
    return value > 0 ? (double)value : 0;
}

uint64_t forecast_wait_us(const struct forecast *f, const struct share *share, double weight, int priority)
{
    double rate = atomic_load_explicit(&f->rate, memory_order_relaxed), before = 0;
    double weights = atomic_load_explicit(&f->weights, memory_order_relaxed);
    if (rate <= 0)
        return 0;
    for (int i = 0; i < priority - TUTTI_PRIORITY_FIRST; i++)
        before += forecast_load(&f->waiting[i]);
    /* Owners of the same priority come first only up to their shares. */
    double equals = forecast_load(&f->waiting[priority - TUTTI_PRIORITY_FIRST]);
    double shared = forecast_load(&share->waiting) * (weights > weight ? weights / weight : 1);
    before += (shared < equals ? shared : equals) - atomic_load_explicit(&f->room, memory_order_relaxed);
    return before > 0 ? (uint64_t)(before / rate * 1e6) : 0;
}

double forecast_waiting(const struct forecast *f)
{
    double waiting = 0;
    for (int i = 0; i < TUTTI_PRIORITIES; i++)
        waiting += forecast_load(&f->waiting[i]);
    return waiting;
}

uint32_t forecast_half_ms(const struct forecast *f)
{
    double rate = atomic_load_explicit(&f->rate, memory_order_relaxed);
    double ms = rate > 0 ? 500 * forecast_waiting(f) / rate : 0;
    return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* ---- engine thread ---- */

void forecast_look(struct forecast *f, uint64_t now_us)
{
    if (f->since_us > 0 && now_us > f->since_us)
        f->pause_us += (double)(now_us - f->since_us);
}

void forecast_begin(struct forecast *f, struct request *r)
{
    double work = (double)work_of(f, r); /* by the mean that is known now, as that of requests to come */
    forecast_leave(f, r);
    f->mean_work += (work - f->mean_work) * (f->mean_work > 0 ? FORGETTING : 1);
    if (f->since_us == 0)
        return; /* the queue was empty: the rate says nothing about the machine */
    f->work = f->work * (1 - FORGETTING) + work;
    f->us *= 1 - FORGETTING;
    f->new_work += work;
    f->n_begun += f->n_begun < ENOUGH;
}

/* Averages over whole pauses, because many requests may start together; a last pause that is longer
 * than usual counts too. */
static double rate_of(const struct forecast *f)
{
    double usual = f->work / f->us, now = (f->work + f->last_work) / (f->us + f->pause_us);
    return 1e6 * (now < usual ? now : usual);
}

void forecast_close(struct forecast *f, double weights, int n_free, uint64_t now_us)
{
    bool is_waiting = weights > 0;
    f->since_us = is_waiting ? now_us : 0;
    if (f->new_work > 0) {
        f->us += f->pause_us;
        f->last_work = f->new_work;
        f->pause_us = f->new_work = 0;
    } else if (!is_waiting) {
        f->pause_us = 0; /* they were cancelled or timed out */
    }
    if (f->n_begun == ENOUGH && f->us > 0)
        atomic_store_explicit(&f->rate, rate_of(f), memory_order_relaxed);
    atomic_store_explicit(&f->weights, weights, memory_order_relaxed);
    atomic_store_explicit(&f->room, is_waiting ? 0 : n_free * f->mean_work, memory_order_relaxed);
}

void forecast_answer(struct forecast *f, int n_tokens)
{
    if (f->answer == 0) { /* what was measured before is by the expected answer */
        f->work = f->us = f->last_work = f->mean_work = 0;
        f->n_begun = 0;
        atomic_store_explicit(&f->rate, 0, memory_order_relaxed);
    }
    f->answer = f->answer > 0 ? f->answer + (n_tokens - f->answer) / 32 : n_tokens;
    atomic_store_explicit(&f->mean_answer, f->answer, memory_order_relaxed);
}
