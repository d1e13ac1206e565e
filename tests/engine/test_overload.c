/* Overload: scheduler, queue and forecast together, on a simulated machine with a virtual clock, so that nothing depends on
 * the speed of the real one. */
#include "base/rng.h"
#include "engine/schedule/lifecycle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MAX_SEQS = 16,
    MAX_QUEUE = 1024,
    PROMPT = 40,
    LONG_PROMPT = 160,
    ANSWER = 24,
    MAX_OWNERS = 4,
    SECOND_US = 1000 * 1000,
    TTFT_TARGET_US = 1500 * 1000,
    ITL_TARGET_US = 30 * 1000,
};

/* A step takes 8 ms for the weights and 0.25 ms for each row. */
static uint64_t step_us(int n_rows)
{
    return (uint64_t)(8000 + 250 * n_rows);
}

struct asked {
    /* First: a request and its choice. */
    _Alignas(struct request) unsigned char request[sizeof(struct request) + sizeof(struct choice)];
    int32_t prompt[LONG_PROMPT];
    struct asked *next_free;
    uint64_t first_us;
    int n_generated;
};

static struct request *request_of(struct asked *a)
{
    return (struct request *)(void *)a->request;
}

struct tally {
    int n_asked, n_good, n_complete, n_early, n_full, n_late;
    uint64_t most_late_us; /* how long after its deadline a request was refused */
    uint64_t retry_us;     /* sum over the early ones */
    uint64_t reading_us;   /* from its begin to the first token, sum over the complete ones */
    uint64_t most_wait_us; /* in the queue, of those that began */
};

struct machine {
    struct scheduler *s;
    struct share shares[MAX_OWNERS];
    struct asked *memory, *free; /* [MAX_SEQS + MAX_QUEUE] */
    struct tally tallies[MAX_OWNERS];
    uint64_t now_us, serial, random;
    uint64_t limit_us;        /* time in the queue; 0: none */
    int n_prompt, max_tokens; /* of the requests to come; answers have ANSWER tokens */
    uint64_t slowness;        /* a step takes so many times as long */
};

static struct machine *machine_new(uint64_t limit_us)
{
    struct machine *m = calloc(1, sizeof *m);
    assert_non_null(m);
    int n = MAX_SEQS + MAX_QUEUE;
    struct scheduler_options options = { .max_seqs = MAX_SEQS,
                                         .max_outputs = MAX_SEQS,
                                         .max_batch_tokens = 256,
                                         .max_context = 256,
                                         .n_pages = MAX_SEQS * 16,
                                         .page_tokens = 16,
                                         .max_requests = n,
                                         .max_slowdown = 2,
                                         .no_prefix_cache = true };
    options.n_slots = options.n_pages;
    assert_int_equal(scheduler_new(&m->s, &options, NULL), TUTTI_OK);
    m->memory = calloc((size_t)n, sizeof *m->memory);
    assert_non_null(m->memory);
    for (int i = 0; i < n; i++) {
        m->memory[i].next_free = m->free;
        m->free = &m->memory[i];
    }
    m->now_us = SECOND_US;
    m->limit_us = limit_us;
    m->n_prompt = PROMPT;
    m->max_tokens = ANSWER;
    m->slowness = 1;
    return m;
}

static void machine_free(struct machine *m)
{
    scheduler_free(m->s);
    free(m->memory);
    free(m);
}

static void give_back(struct machine *m, struct asked *a)
{
    a->next_free = m->free;
    m->free = a;
}

/* As the engine decides whether to take a request. */
static void ask(struct machine *m, int owner)
{
    struct tally *tally = &m->tallies[owner];
    struct forecast *f = &m->s->forecast;
    uint64_t wait_us = m->limit_us > 0 ? forecast_wait_us(f, &m->shares[owner], 1, 0) : 0;
    tally->n_asked++;
    if (!m->free) {
        tally->n_full++;
        return;
    }
    if (wait_us > m->limit_us - m->limit_us / 8) {
        tally->n_early++;
        tally->retry_us += wait_us - (m->limit_us - m->limit_us / 8);
        return;
    }
    struct asked *a = m->free;
    m->free = a->next_free;
    memset(a, 0, sizeof *a);
    struct request *r = request_of(a);
    r->serial = ++m->serial;
    r->adapter = -1;
    r->prompt = a->prompt;
    r->n_prompt = m->n_prompt;
    r->spec.n_choices = 1;
    r->spec.max_tokens = m->max_tokens;
    r->spec.weight = 1;
    r->spec.owner = (uint64_t)owner;
    r->share = &m->shares[owner];
    r->submit_us = m->now_us;
    r->deadline_us = m->limit_us > 0 ? m->now_us + m->limit_us : 0;
    forecast_enter(f, r);
    scheduler_add(m->s, r);
}

static void late(void *user, struct request *r)
{
    struct machine *m = user;
    struct tally *tally = &m->tallies[r->spec.owner];
    uint64_t late_us = m->now_us - r->deadline_us;
    tally->n_late++;
    tally->most_late_us = late_us > tally->most_late_us ? late_us : tally->most_late_us;
    scheduler_remove(m->s, r);
    give_back(m, (struct asked *)r);
}

static void complete(struct machine *m, struct asked *a)
{
    struct tally *tally = &m->tallies[request_of(a)->spec.owner];
    uint64_t ttft_us = a->first_us - request_of(a)->submit_us, rest_us = m->now_us - a->first_us;
    tally->n_complete++;
    tally->n_good += ttft_us <= TTFT_TARGET_US && rest_us <= (uint64_t)ITL_TARGET_US * (ANSWER - 1);
    give_back(m, a);
}

/* A step, or a short sleep. */
static void work(struct machine *m)
{
    struct scheduler *s = m->s;
    request_queue_drop_late(&s->queue, m->now_us, late, m);
    if (!scheduler_plan(s, m->now_us)) {
        m->now_us += 1000;
        return;
    }
    uint64_t us = step_us(s->step.n_rows) * m->slowness;
    m->now_us += us;
    pace_note(&s->pace, s->n_decoding_rows, s->step.n_rows - s->n_decoding_rows, s->prefill_distance, us);
    scheduler_advance(s);
    for (int i = 0; i < s->n_entries; i++) {
        struct sequence *seq = s->entries[i].seq;
        if (s->entries[i].output < 0)
            continue;
        struct asked *a = (struct asked *)seq->request;
        scheduler_commit(s, seq, &(int32_t){ 1 }, 1);
        if (a->n_generated++ == 0) {
            a->first_us = m->now_us;
            struct tally *tally = &m->tallies[request_of(a)->spec.owner];
            tally->reading_us += m->now_us - request_of(a)->submit_us - seq->queue_us;
            tally->most_wait_us = seq->queue_us > tally->most_wait_us ? seq->queue_us : tally->most_wait_us;
        }
        if (a->n_generated < ANSWER)
            continue;
        forecast_answer(&s->forecast, seq->n_ids - seq->n_prompt);
        scheduler_finish(s, seq);
        complete(m, a);
    }
}

/* Times between arrivals of so many a second, as those of people who do not know of each other. */
static uint64_t gap_us(struct machine *m, double rate)
{
    m->random = mix64(m->random + 1);
    double uniform = ((double)(m->random >> 11) + 0.5) * 0x1p-53;
    return (uint64_t)(-log(uniform) / rate * SECOND_US);
}

/* Arrivals for so many seconds, then to the end. rates: of each owner, 0: none. Returns good answers a second. */
static double run(struct machine *m, const double *rates, int seconds)
{
    uint64_t next_us[MAX_OWNERS], start_us = m->now_us, end_us = start_us + (uint64_t)seconds * SECOND_US;
    for (int i = 0; i < MAX_OWNERS; i++)
        next_us[i] = rates[i] > 0 ? m->now_us + gap_us(m, rates[i]) : UINT64_MAX;
    for (bool is_over = false; !is_over;) {
        is_over = m->now_us >= end_us && m->s->n_running + m->s->n_preempted + m->s->queue.n == 0;
        for (int i = 0; i < MAX_OWNERS; i++)
            for (; next_us[i] <= m->now_us && next_us[i] < end_us; next_us[i] += gap_us(m, rates[i]))
                ask(m, i);
        work(m);
    }
    int n_good = 0;
    for (int i = 0; i < MAX_OWNERS; i++)
        n_good += m->tallies[i].n_good;
    return n_good / ((double)(m->now_us - start_us) / SECOND_US);
}

static double goodput(double rate, uint64_t limit_us, struct tally *tally)
{
    struct machine *m = machine_new(limit_us);
    double good = run(m, (const double[MAX_OWNERS]){ rate }, 60);
    if (tally)
        *tally = m->tallies[0];
    machine_free(m);
    return good;
}

/* Answers a second that the machine gives when it never has to wait. */
static double capacity(void)
{
    struct machine *m = machine_new(0);
    run(m, (const double[MAX_OWNERS]){ 2000 }, 20);
    double n = m->tallies[0].n_complete, seconds = (double)(m->now_us - SECOND_US) / SECOND_US;
    machine_free(m);
    return n / seconds;
}

static void goodput_stays_at_ten_times_the_load(void **state)
{
    (void)state;
    static const double factors[] = { 0.5, 0.8, 1, 1.2, 2, 5, 10 };
    double full = capacity(), most = 0, last = 0;
    struct tally tally;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        last = goodput(factors[i] * full, SECOND_US, &tally);
        most = last > most ? last : most;
        print_message("# %4.1f times %.1f/s: %.1f good a second; of %d: %d early, %d late, %d full\n",
                      factors[i], full, last, tally.n_asked, tally.n_early, tally.n_late, tally.n_full);
        if (factors[i] < 0.6)
            assert_int_equal(tally.n_good, tally.n_asked);
    }
    assert_true(most > 0.85 * full);
    assert_true(last >= 0.9 * most);
    assert_true(tally.n_early > 50 * tally.n_late); /* refused while nothing was done for them */
    assert_int_equal(tally.n_full, 0);
    assert_true(tally.most_late_us <= step_us(256));
}

static void without_a_limit_it_does_not(void **state)
{
    (void)state;
    double full = capacity();
    assert_true(goodput(10 * full, 0, NULL) < 0.3 * full);
}

static void nobody_is_told_later_than_a_step_behind_the_deadline(void **state)
{
    (void)state;
    struct machine *m = machine_new(200 * 1000);
    double full = capacity();
    for (int i = 0; i < 400; i++) /* all at once: nothing was measured that could tell */
        ask(m, 0);
    run(m, (const double[MAX_OWNERS]){ 3 * full }, 10);
    assert_true(m->tallies[0].n_late > 300);
    assert_true(m->tallies[0].most_late_us <= step_us(256));
    machine_free(m);
}

static void a_flood_takes_nothing_from_an_owner_within_its_share(void **state)
{
    (void)state;
    struct machine *m = machine_new(SECOND_US);
    double full = capacity();
    run(m, (const double[MAX_OWNERS]){ 10 * full, 0.2 * full, 0.1 * full }, 60);
    for (int i = 1; i <= 2; i++) {
        print_message("# owner %d: %d good of %d\n", i, m->tallies[i].n_good, m->tallies[i].n_asked);
        assert_true(m->tallies[i].n_good >= 0.99 * m->tallies[i].n_asked);
    }
    assert_true(m->tallies[0].n_good > 0.5 * full * 60); /* and the flood has the rest */
    machine_free(m);
}

/* While prompts are most of the work, no request waits for prompts that began together with its own. */
static void who_has_begun_is_read_at_once(void **state)
{
    (void)state;
    struct machine *m = machine_new(SECOND_US);
    m->n_prompt = LONG_PROMPT;
    run(m, (const double[MAX_OWNERS]){ 200 }, 30);
    double ms = (double)m->tallies[0].reading_us / m->tallies[0].n_complete / 1e3;
    /* With few others a step prefills about as long as they take: 8 to 12 ms. */
    double least_ms = LONG_PROMPT * 0.25 * 2;
    print_message("# from the begin to the first token %.0f ms, at least %.0f\n", ms, least_ms);
    assert_true(ms < 1.75 * least_ms);
    machine_free(m);
}

/* 300 requests a second of a machine that begins 18, as with the defaults of tutti serve, whose time in the queue is 30 s: what
 * cannot begin by then is refused on arrival, with the time to come again, and the machine works as ever. Without the limit
 * the queue fills up, and the requests that are admitted wait twice as long. */
static void a_flood_at_the_default_limit_waits_no_longer(void **state)
{
    (void)state;
    enum { SECONDS = 120, LIMIT_US = 30 * SECOND_US };
    struct tally tallies[2];
    int n_answers[2];
    for (int i = 0; i < 2; i++) {
        struct machine *m = machine_new(i == 0 ? LIMIT_US : 0);
        m->slowness = 3;
        run(m, (const double[MAX_OWNERS]){ 300 }, SECONDS);
        tallies[i] = m->tallies[0];
        n_answers[i] = (int)(tallies[i].n_complete / ((double)(m->now_us - SECOND_US) / SECOND_US) * SECONDS);
        print_message("# limit %d s: of %d: %d answered, %d early, %d late, %d full; longest wait %.1f s\n",
                      i == 0 ? 30 : 0, tallies[i].n_asked, tallies[i].n_complete, tallies[i].n_early,
                      tallies[i].n_late, tallies[i].n_full, (double)tallies[i].most_wait_us / SECOND_US);
        machine_free(m);
    }
    const struct tally *t = &tallies[0];
    assert_true(t->most_wait_us <= LIMIT_US);
    assert_int_equal(t->n_full, 0);
    assert_int_equal(t->n_complete + t->n_early + t->n_late, t->n_asked);
    assert_true(t->n_early > 0.9 * (t->n_asked - t->n_complete));
    assert_true(t->retry_us / (uint64_t)t->n_early < LIMIT_US);
    assert_true(n_answers[0] >= 0.95 * n_answers[1]);
    assert_int_equal(tallies[1].n_early + tallies[1].n_late, 0);
    assert_true(tallies[1].most_wait_us > 50 * SECOND_US);
}

/* The first requests may have more tokens than any answer has: their work says nothing about the machine. */
static void the_first_limits_of_answers_do_not_hide_the_wait(void **state)
{
    (void)state;
    double full = capacity();
    static const int LIMITS[] = { ANSWER, INT32_MAX, 0 };
    for (int i = 0; i < 3; i++) {
        struct machine *m = machine_new(SECOND_US);
        m->max_tokens = LIMITS[i];
        for (int k = 0; k < 4 * MAX_SEQS; k++)
            ask(m, 0);
        for (int k = 0; k < 3; k++)
            work(m);
        m->max_tokens = ANSWER;
        run(m, (const double[MAX_OWNERS]){ 5 * full }, 20);
        const struct tally *t = &m->tallies[0];
        if (!(t->n_early > 0.9 * (t->n_asked - t->n_complete)))
            fail_msg("max_tokens %d: %d of %d refused on arrival, %d late", LIMITS[i], t->n_early, t->n_asked,
                     t->n_late);
        machine_free(m);
    }
}

/* Who comes again when it was told finds that the queue has moved on by about that. */
static void the_time_to_come_again_follows_the_queue(void **state)
{
    (void)state;
    struct machine *m = machine_new(0);
    for (int i = 0; i < 500; i++)
        ask(m, 0);
    while (m->s->queue.n > 300)
        work(m);
    uint64_t wait_us = forecast_wait_us(&m->s->forecast, &m->shares[0], 1, 0), start_us = m->now_us;
    uint32_t half_ms = forecast_half_ms(&m->s->forecast);
    int n = m->s->queue.n;
    while (m->s->queue.n > 0) {
        work(m);
        if (m->s->queue.n > n / 2)
            assert_true((m->now_us - start_us) / 1000 < half_ms * 12 / 10);
    }
    assert_true(m->now_us - start_us > wait_us * 8 / 10 && m->now_us - start_us < wait_us * 12 / 10);
    machine_free(m);
}

/* As many as run at the same time are taken at once, however little time they may wait. */
static void free_places_are_no_reason_to_refuse(void **state)
{
    (void)state;
    double full = capacity();
    struct machine *m = machine_new(SECOND_US);
    run(m, (const double[MAX_OWNERS]){ 2 * full }, 5);
    int n_early = m->tallies[0].n_early;
    m->limit_us = 20 * 1000;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < MAX_SEQS; i++)
            ask(m, 0);
        for (int i = 0; i < 200; i++)
            work(m);
    }
    assert_int_equal(m->tallies[0].n_early, n_early);
    for (int i = 0; i < 100; i++)
        ask(m, 0);
    assert_true(m->tallies[0].n_early >= n_early + 100 - MAX_SEQS - 8); /* but more are */
    machine_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goodput_stays_at_ten_times_the_load),
        cmocka_unit_test(without_a_limit_it_does_not),
        cmocka_unit_test(nobody_is_told_later_than_a_step_behind_the_deadline),
        cmocka_unit_test(a_flood_takes_nothing_from_an_owner_within_its_share),
        cmocka_unit_test(who_has_begun_is_read_at_once),
        cmocka_unit_test(a_flood_at_the_default_limit_waits_no_longer),
        cmocka_unit_test(the_first_limits_of_answers_do_not_hide_the_wait),
        cmocka_unit_test(the_time_to_come_again_follows_the_queue),
        cmocka_unit_test(free_places_are_no_reason_to_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
