/* The scheduler alone: who gets the rows of a step, and who gives way when pages run out. */
#include "engine/schedule/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_REQUESTS = 64, MAX_PROMPT = 30000 };

struct bench {
    struct scheduler *s;
    struct share shares[MAX_REQUESTS]; /* by owner */
    uint64_t now_us;
    struct request *requests[MAX_REQUESTS];
    int n_requests;
    int32_t *prompts[MAX_REQUESTS];
    int n_generated[MAX_REQUESTS]; /* by request */
    int n_rows[MAX_REQUESTS];      /* of the last step */
};

static struct bench *bench_new(struct scheduler_options options)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    options.max_requests = MAX_REQUESTS;
    options.page_tokens = 16;
    if (options.max_outputs == 0)
        options.max_outputs = options.max_batch_tokens;
    options.n_slots = options.n_pages;
    assert_int_equal(scheduler_new(&b->s, &options, NULL), TUTTI_OK);
    return b;
}

static void bench_free(struct bench *b)
{
    scheduler_free(b->s);
    for (int i = 0; i < b->n_requests; i++) {
        beam_search_free(b->requests[i]->beams);
        free(b->prompts[i]);
        free(b->requests[i]);
    }
    free(b);
}

struct place {
    int owner, priority;
    double weight; /* 0: 1 */
};

/* A request whose prompt nobody else has. n_beams 0: it is no search. */
static void add_search(struct bench *b, int n_prompt, int max_tokens, struct place place, int n_beams)
{
    int i = b->n_requests++;
    struct request *r = calloc(1, sizeof *r + sizeof(struct choice));
    assert_true(i < MAX_REQUESTS && n_prompt <= MAX_PROMPT);
    b->prompts[i] = calloc((size_t)n_prompt, sizeof(int32_t));
    assert_non_null(r);
    assert_non_null(b->prompts[i]);
    for (int k = 0; k < n_prompt; k++)
        b->prompts[i][k] = i * MAX_PROMPT + k;
    r->serial = (uint64_t)i + 1;
    r->adapter = -1;
    r->prompt = b->prompts[i];
    r->n_prompt = n_prompt;
    r->spec.n_choices = 1;
    r->spec.max_tokens = max_tokens;
    r->spec.priority = place.priority;
    r->spec.weight = place.weight > 0 ? place.weight : 1;
    r->share = &b->shares[place.owner];
    r->share->owner = (uint64_t)place.owner;
    if (n_beams > 0)
        assert_int_equal(beam_search_new(&r->beams, n_beams, n_beams + 1, max_tokens, NULL), TUTTI_OK);
    b->requests[i] = r;
    scheduler_add(b->s, r);
}

static void add_for(struct bench *b, int n_prompt, int max_tokens, struct place place)
{
    add_search(b, n_prompt, max_tokens, place, 0);
}

static void add(struct bench *b, int n_prompt, int max_tokens)
{
    add_for(b, n_prompt, max_tokens, (struct place){ 0 });
}

static int number_of(const struct sequence *seq)
{
    return (int)seq->request->serial - 1;
}

/* One step with made-up tokens. Returns its rows. */
static int step(struct bench *b)
{
    memset(b->n_rows, 0, sizeof b->n_rows);
    if (!scheduler_plan(b->s, b->now_us))
        return 0;
    int n_rows = b->s->step.n_rows;
    for (int i = 0; i < b->s->n_entries; i++)
        b->n_rows[number_of(b->s->entries[i].seq)] = b->s->entries[i].n_rows;
    scheduler_advance(b->s);
    for (int i = 0; i < b->s->n_entries; i++) {
        struct sequence *seq = b->s->entries[i].seq;
        if (b->s->entries[i].output < 0 || seq->request->beams)
            continue;
        scheduler_commit(b->s, seq, &(int32_t){ 7 * seq->n_ids + number_of(seq) }, 1);
        b->n_generated[number_of(seq)]++;
        if (seq->n_ids == seq->max_ids)
            scheduler_finish(b->s, seq);
    }
    const char *complaint = scheduler_audit(b->s);
    if (complaint)
        fail_msg("%s", complaint);
    return n_rows;
}

static void a_step_takes_decoding_rows_first_then_prompts_in_order(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 16, .max_context = 256, .n_pages = 200 });
    add(b, 4, 50);
    add(b, 5, 50);
    assert_int_equal(step(b), 9); /* both prompts at once */
    add(b, 30, 50);
    add(b, 30, 50);
    assert_int_equal(step(b), 16);
    assert_int_equal(b->n_rows[0], 1);
    assert_int_equal(b->n_rows[1], 1);
    assert_int_equal(b->n_rows[2], 14); /* the older prompt has all that is left */
    assert_int_equal(b->n_rows[3], 0);
    assert_int_equal(step(b), 16);
    assert_int_equal(b->n_rows[2], 14);
    step(b);
    assert_int_equal(b->n_rows[2], 2);
    assert_int_equal(b->n_rows[3], 12);
    bench_free(b);
}

static void more_decoding_sequences_than_rows_take_turns(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 16, .max_batch_tokens = 5, .max_context = 256, .n_pages = 400 });
    enum { N = 12 };
    for (int i = 0; i < N; i++)
        add(b, 1, 100);
    for (int i = 0; i < 240; i++) {
        assert_int_equal(step(b), 5);
        int least = b->n_generated[0], most = least;
        for (int k = 1; k < N; k++) {
            least = b->n_generated[k] < least ? b->n_generated[k] : least;
            most = b->n_generated[k] > most ? b->n_generated[k] : most;
        }
        assert_true(most - least <= 1);
    }
    assert_int_equal(b->n_generated[0], 100);
    bench_free(b);
}

static void decoding_sequences_do_not_starve_a_prompt(void **state)
{
    (void)state;
    static const struct {
        int n_rows, n_steps;
    } cases[] = { { 1, 40 }, { 2, 20 }, { 4, 20 }, { 8, 10 } }; /* steps that 20 tokens of prompt may take */
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct bench *b = bench_new((struct scheduler_options){
            .max_seqs = 16, .max_batch_tokens = cases[c].n_rows, .max_context = 256, .n_pages = 400 });
        for (int i = 0; i < 10; i++)
            add(b, 1, 200);
        for (int i = 0; i < 20; i++)
            step(b);
        int before = b->n_generated[0];
        add(b, 20, 5);
        for (int i = 0; i < cases[c].n_steps; i++)
            step(b);
        assert_true(b->n_generated[10] > 0);
        assert_true(b->n_generated[0] > before); /* nor does the prompt starve them */
        bench_free(b);
    }
}

static void a_long_prompt_does_not_stop_those_who_decode(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 16, .max_context = 256, .n_pages = 200 });
    add(b, 3, 100);
    step(b);
    add(b, 200, 10);
    for (int i = 0; i < 13; i++) {
        step(b);
        assert_int_equal(b->n_generated[0], i + 2);
        assert_int_equal(b->n_rows[1], 15);
    }
    bench_free(b);
}

static void the_newest_gives_way_and_comes_back_first(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 64, .max_context = 128, .n_pages = 8 });
    add(b, 16, 112);
    add(b, 16, 50);
    add(b, 16, 40);
    int n_steps = 0;
    bool was_preempted = false;
    for (; b->n_generated[2] < 40 && n_steps < 1000; n_steps++) {
        step(b);
        if (n_steps == 20)
            add(b, 16, 5); /* must not overtake the third */
        for (int i = 0; i < b->s->options.max_seqs; i++) {
            const struct sequence *seq = &b->s->seqs[i];
            if (seq->state == SEQUENCE_PREEMPTED) {
                was_preempted = true;
                assert_true(number_of(seq) > 0); /* the oldest never is */
                assert_int_equal(b->n_generated[3], 0);
            }
        }
        if (n_steps < 112)
            assert_int_equal(b->n_generated[0], n_steps + 1); /* the oldest goes on without a pause */
    }
    assert_true(was_preempted);
    assert_true(b->s->n_preemptions > 0);
    while (step(b) > 0)
        n_steps++;
    assert_int_equal(b->n_generated[0], 112);
    assert_int_equal(b->n_generated[1], 50);
    assert_int_equal(b->n_generated[2], 40);
    assert_int_equal(b->n_generated[3], 5);
    assert_int_equal(kv_pool_counts(b->s->pool).n_used, 0);
    bench_free(b);
}

/* ---- fairness ---- */

static void a_flood_does_not_delay_anothers_request_beyond_its_share(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 4, .max_batch_tokens = 64, .max_context = 64, .n_pages = 100 });
    for (int i = 0; i < 60; i++)
        add_for(b, 16, 10, (struct place){ .owner = 1 });
    for (int i = 0; i < 30; i++)
        step(b);
    add_for(b, 16, 10, (struct place){ .owner = 2 });
    int n_steps = 0;
    while (b->n_generated[60] == 0)
        step(b), n_steps++;
    assert_true(n_steps <= 21); /* an answer takes ten steps, and one more of the flood's may go before */
    int n_flood = 0;
    for (int i = 0; i < 60; i++)
        n_flood += b->n_generated[i] > 0;
    assert_true(n_flood < 25);
    bench_free(b);
}

/* Sequences of the requests from begin to end - 1 that run. */
static int n_running(const struct bench *b, int begin, int end, int max_seqs)
{
    int n = 0;
    for (int i = 0; i < max_seqs; i++) {
        const struct sequence *seq = &b->s->seqs[i];
        n += sequence_is_running(seq) && number_of(seq) >= begin && number_of(seq) < end;
    }
    return n;
}

static void an_owner_leaves_a_sixteenth_of_the_slots_to_others(void **state)
{
    enum { SEQS = 32, FLOOD = 40 };
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = SEQS, .max_batch_tokens = 64, .max_context = 256, .n_pages = 600 });
    for (int i = 0; i < FLOOD; i++)
        add_for(b, 1, 200, (struct place){ .owner = 1 });
    for (int i = 0; i < 4; i++)
        step(b);
    assert_int_equal(n_running(b, 0, FLOOD, SEQS), SEQS - SEQS / 16);
    for (int i = 0; i < 3; i++)
        add_for(b, 1, 200, (struct place){ .owner = 2 });
    step(b);
    assert_true(b->n_rows[FLOOD] > 0);
    step(b);
    assert_int_equal(n_running(b, FLOOD, FLOOD + 3, SEQS), 1); /* no slot would stay free for a third owner */
    add_for(b, 1, 200, (struct place){ .owner = 3 });
    step(b);
    assert_true(b->n_rows[FLOOD + 3] > 0);
    bench_free(b);

    b = bench_new((struct scheduler_options){
        .max_seqs = SEQS, .max_batch_tokens = 64, .max_context = 256, .n_pages = 600 });
    for (int i = 0; i < FLOOD; i++)
        add(b, 1, 200);
    for (int i = 0; i < 4; i++)
        step(b);
    assert_int_equal(n_running(b, 0, FLOOD, SEQS), SEQS); /* without owners none are kept */
    bench_free(b);
}

static void beams_leave_a_sixteenth_of_the_slots_to_others(void **state)
{
    enum { SEQS = 32 };
    (void)state;
    struct scheduler_options options = {
        .max_seqs = SEQS, .max_batch_tokens = 64, .max_context = 256, .n_pages = 2000
    };
    struct bench *b = bench_new(options);
    add_search(b, 10, 50, (struct place){ .owner = 1 }, SEQS - SEQS / 16);
    step(b);
    assert_int_equal(b->s->n_taken, SEQS - SEQS / 16);
    add_for(b, 10, 50, (struct place){ .owner = 2 });
    step(b);
    assert_true(b->n_rows[1] > 0);
    scheduler_finish(b->s, &b->s->seqs[0]);
    bench_free(b);
    b = bench_new(options);
    add_search(b, 10, 50, (struct place){ .owner = 1 }, SEQS - SEQS / 16 + 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(step(b), 0);
    assert_int_equal(b->s->n_taken, 0);
    bench_free(b);
}

/* Steps until the request has rows; at most n. */
static int steps_until(struct bench *b, int request, int n)
{
    int i = 0;
    for (; i < n && b->n_rows[request] == 0; i++, b->now_us += 1000)
        step(b);
    return i;
}

/* A long answer runs; owner 3 needs all slots, or nearly all pages. */
static void large_requests_let_others_pass_for_ten_seconds(void **state)
{
    enum { SEQS = 32, PAGES = 256, LIMIT = 10 * 1000 };
    (void)state;
    for (int is_search = 0; is_search < 2; is_search++) {
        struct bench *b = bench_new((struct scheduler_options){ .max_seqs = SEQS,
                                                                .max_batch_tokens = 256,
                                                                .max_context = 4096,
                                                                .n_pages = is_search ? 32 * PAGES : PAGES });
        b->now_us = 1;
        add_for(b, 10, 3000, (struct place){ .owner = 2 });
        step(b);
        if (is_search)
            add_search(b, 10, 50, (struct place){ .owner = 3 }, SEQS - SEQS / 16);
        else
            add_for(b, 4080, 4, (struct place){ .owner = 3 });
        step(b);
        assert_int_equal(b->n_rows[1], 0);
        add_for(b, 10, 10, (struct place){ .owner = 4 });
        assert_int_equal(steps_until(b, 2, LIMIT), 1);
        assert_int_equal(atomic_load(&b->shares[3].debt), 0);
        b->now_us += 10 * 1000 * 1000; /* now the others wait, and it is charged */
        add_for(b, 10, 10, (struct place){ .owner = 5 });
        for (int i = 0; i < 5; i++) {
            step(b);
            assert_int_equal(b->n_rows[3], 0);
        }
        assert_true(atomic_load(&b->shares[3].debt) >= 5 * OUTPUT_WORK * (SEQS - 2));
        assert_true(steps_until(b, 1, LIMIT) < LIMIT); /* starts when the long answer has ended */
        assert_int_equal(atomic_load(&b->shares[3].debt), 0);
        assert_true(b->shares[3].service > b->shares[5].service);
        if (is_search)
            for (int i = 0; i < SEQS; i++)
                if (b->s->seqs[i].state != SEQUENCE_FREE && b->s->seqs[i].request->beams)
                    scheduler_finish(b->s, &b->s->seqs[i]);
        assert_true(steps_until(b, 3, LIMIT) < LIMIT);
        bench_free(b);
    }
}

/* Nothing overtakes a request of an owner's equal part, though it waits for pages and others would fit. */
static void others_are_not_overtaken(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 256, .max_context = 1024, .n_pages = 64 });
    add_for(b, 900, 100, (struct place){ .owner = 1 });
    for (int i = 0; i < 4; i++)
        step(b);
    add_for(b, 200, 10, (struct place){ .owner = 2 });
    step(b);
    add_for(b, 10, 10, (struct place){ .owner = 3 });
    while (b->n_rows[1] == 0) {
        assert_true(step(b) > 0);
        assert_true(b->n_rows[1] > 0 || b->n_rows[2] == 0);
    }
    bench_free(b);
}

static void preempted_sequences_of_a_flood_come_after_anothers_request(void **state)
{
    enum { FLOOD = 6, TOKENS = 8 };
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 256, .max_context = 256, .n_pages = 20 });
    for (int i = 0; i < FLOOD; i++)
        add_for(b, 30, 150, (struct place){ .owner = 1 });
    while (b->s->n_preempted < 3)
        assert_true(step(b) > 0);
    add_for(b, 16, TOKENS, (struct place){ .owner = 2 });
    int n_before = b->s->n_preempted;
    while (b->n_generated[FLOOD] < TOKENS) {
        assert_true(step(b) > 0);
        assert_true(b->s->n_preempted >= n_before - 1); /* at most one of them came back before */
        n_before = b->s->n_preempted > n_before ? b->s->n_preempted : n_before;
    }
    assert_true(b->s->n_preempted > 0);
    while (step(b) > 0)
        ;
    for (int i = 0; i < FLOOD; i++)
        assert_int_equal(b->n_generated[i], 150);
    bench_free(b);
}

/* An owner whose other sequences have ended has few now: requests that come later do not pass what is left. */
static void a_preempted_sequence_moves_up_when_the_owners_others_end(void **state)
{
    enum { OWN = 2, TOKENS = 90, STREAM_TOKENS = 14 };
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 256, .max_context = 112, .n_pages = 10 });
    for (int i = 0; i < OWN; i++)
        add_for(b, 16, TOKENS, (struct place){ .owner = 1 });
    while (b->s->n_preempted == 0)
        assert_true(step(b) > 0);
    assert_true(b->n_generated[1] < TOKENS);
    /* Two owners, of whom each has a request in the queue all the time: together they leave fewer pages than it needs. */
    while (b->n_generated[1] < TOKENS) {
        for (int owner = 2; owner <= 3; owner++)
            if (!b->shares[owner].lanes)
                add_for(b, 48, STREAM_TOKENS, (struct place){ .owner = owner });
        assert_true(b->n_requests < MAX_REQUESTS - 2);
        assert_true(step(b) > 0);
    }
    while (step(b) > 0)
        ;
    for (int i = 0; i < b->n_requests; i++)
        assert_int_equal(b->n_generated[i], i < OWN ? TOKENS : STREAM_TOKENS);
    bench_free(b);
}

/* An endless stream of better priority delays a preempted sequence, but does not stop it. */
static void a_preempted_sequence_ages_like_a_request_that_waits(void **state)
{
    enum { TOKENS = 90, STREAM_TOKENS = 14, STEP_US = 100 * 1000 };
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 256, .max_context = 112, .n_pages = 10 });
    uint64_t preempted_us = 0;
    add_for(b, 16, TOKENS, (struct place){ .owner = 1, .priority = 1 });
    while (b->n_generated[0] < 60)
        assert_true(step(b) > 0);
    while (b->n_generated[0] < TOKENS) {
        for (int owner = 2; owner <= 3; owner++)
            if (!b->shares[owner].lanes)
                add_for(b, 48, STREAM_TOKENS, (struct place){ .owner = owner });
        assert_true(b->n_requests < MAX_REQUESTS - 2);
        assert_true(step(b) > 0);
        b->now_us += STEP_US;
        if (b->s->n_preempted > 0 && preempted_us == 0)
            preempted_us = b->now_us;
    }
    assert_true(preempted_us > 0);
    assert_true(b->now_us - preempted_us > QUEUE_AGEING_US);
    while (step(b) > 0)
        ;
    for (int i = 1; i < b->n_requests; i++)
        assert_int_equal(b->n_generated[i], STREAM_TOKENS);
    bench_free(b);
}

static void two_floods_get_tokens_by_their_weights(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 2, .max_batch_tokens = 64, .max_context = 64, .n_pages = 100 });
    for (int i = 0; i < 32; i++) {
        add_for(b, 20, 10, (struct place){ .owner = 1, .weight = 1 });
        add_for(b, 10, 5, (struct place){ .owner = 2, .weight = 3 });
    }
    int work[2] = { 0 };
    while (b->shares[1].lanes && b->shares[2].lanes)
        step(b);
    for (int i = 0; i < b->n_requests; i++)
        if (b->requests[i]->n_started > 0)
            work[i % 2] += b->requests[i]->n_prompt + OUTPUT_WORK * b->n_generated[i];
    double ratio = (double)work[1] / work[0];
    assert_true(ratio > 2.5 && ratio < 3.5);
    bench_free(b);
}

static void a_worse_priority_gives_way_whoever_came_first(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 64, .max_context = 128, .n_pages = 10 });
    add_for(b, 16, 60, (struct place){ .priority = 5 });
    add_for(b, 16, 60, (struct place){ .priority = 0 });
    step(b);
    add_for(b, 16, 60, (struct place){ .priority = -5 });
    bool was_preempted = false;
    while (b->n_generated[2] < 60) {
        int before[2] = { b->n_generated[1], b->n_generated[2] };
        assert_true(step(b) > 0);
        assert_true(b->n_generated[2] == before[1] + 1); /* the best never stops */
        if (b->n_generated[1] < 60)
            assert_true(b->n_generated[1] == before[0] + 1); /* two have room */
        for (int i = 0; i < b->s->options.max_seqs; i++)
            if (b->s->seqs[i].state == SEQUENCE_PREEMPTED) {
                assert_int_equal(number_of(&b->s->seqs[i]), 0);
                was_preempted = true;
            }
    }
    assert_true(was_preempted);
    while (step(b) > 0)
        ;
    assert_int_equal(b->n_generated[0], 60);
    bench_free(b);
}

static void a_long_prompt_lets_short_ones_pass(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 256, .max_context = 30100, .n_pages = 4000 });
    add(b, 30000, 10);
    int n_steps = 0;
    for (int n_short = 1; n_short <= 20; n_short++) {
        step(b), n_steps++;
        add(b, 100, 1);
        int waited = 0;
        while (b->n_generated[n_short] == 0)
            step(b), n_steps++, waited++;
        assert_true(waited <= 6); /* what is left of a turn of 1024 tokens, and its own step */
    }
    while (b->n_generated[0] == 0)
        step(b), n_steps++;
    assert_true(n_steps <=
                30000 / 255 + 2 * 21); /* nor is the long one delayed by more than the others' rows */
    bench_free(b);
}

/* Prompts of a better priority come as fast as they can be prefilled. One in prefill gains a priority every ten
 * seconds, as one in the queue does: then it has a turn, and the others go on. */
static void a_prompt_that_has_begun_ages_like_one_that_waits(void **state)
{
    (void)state;
    enum { ROWS = 64, N_STEPS = 60, STEP_US = 2000 * 1000, PRIORITY = 2 };
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = ROWS, .max_context = 4096, .n_pages = 1000 });
    int n_read = 0, n_others = 0, n_without = 0, longest = 0;
    add_for(b, 4000, 1, (struct place){ .owner = 0, .priority = PRIORITY });
    assert_int_equal(step(b), ROWS);
    for (int i = 0; i < N_STEPS; i++) {
        add_for(b, ROWS, 1, (struct place){ .owner = 1 });
        b->now_us += STEP_US;
        assert_int_equal(step(b), ROWS);
        n_read += b->n_rows[0];
        n_others += ROWS - b->n_rows[0];
        n_without = b->n_rows[0] > 0 ? 0 : n_without + 1;
        longest = n_without > longest ? n_without : longest;
    }
    assert_true(longest <= PRIORITY * QUEUE_AGEING_US / STEP_US + 1);
    assert_true(n_read >= 2 * 1024);    /* two turns */
    assert_true(n_others >= 15 * ROWS); /* and what it waited for in between */
    bench_free(b);
}

static void long_prompts_are_read_in_turns_by_weight(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 8, .max_batch_tokens = 256, .max_context = 30100, .n_pages = 4000 });
    add_for(b, 20000, 1, (struct place){ .owner = 1, .weight = 1 });
    add_for(b, 20000, 1, (struct place){ .owner = 2, .weight = 3 });
    add_for(b, 20000, 1, (struct place){ .owner = 3, .priority = 1 });
    int n_read[3] = { 0 };
    while (b->n_generated[1] == 0) {
        step(b);
        for (int i = 0; i < 3; i++)
            n_read[i] += b->n_rows[i];
    }
    assert_in_range(n_read[0], 20000 / 3 - 1024, 20000 / 3 + 1024);
    assert_int_equal(n_read[2], 0);
    while (b->n_generated[0] == 0) {
        step(b);
        n_read[2] += b->n_rows[2];
    }
    assert_true(n_read[2] < 256); /* the rest of one step */
    bench_free(b);
}

/* No request takes a slot long before it can be prefilled: later ones may still be chosen before it. */
static void the_order_stays_open_until_a_prompt_can_be_read(void **state)
{
    (void)state;
    struct bench *b = bench_new((struct scheduler_options){
        .max_seqs = 32, .max_batch_tokens = 64, .max_context = 512, .n_pages = 2000 });
    for (int i = 0; i < 20; i++)
        add_for(b, 400, 1, (struct place){ .owner = 1 });
    step(b);
    assert_in_range(b->s->n_running, 1, 2);
    add_for(b, 20, 1, (struct place){ .owner = 2, .priority = -1 });
    int n_steps = 0;
    while (b->n_generated[20] == 0)
        step(b), n_steps++;
    assert_true(n_steps <= 2);
    bench_free(b);
}

/* ---- a very long prompt ---- */

/* The duration of a step on a simulated machine: 64 ms for the weights, or 7 ms for each row and, in prefill, 1 ms more for each
 * 1000 tokens before it. Told to the scheduler, as the engine does. */
static double note_time(struct bench *b)
{
    struct scheduler *s = b->s;
    double ms = s->step.n_rows * 7 + s->prefill_distance / 1000;
    ms = ms > 64 ? ms : 64;
    pace_note(&s->pace, s->n_decoding_rows, s->step.n_rows - s->n_decoding_rows, s->prefill_distance,
              (uint64_t)(ms * 1000));
    return ms;
}

static void a_prompt_of_30000_tokens_does_not_double_the_others_steps(void **state)
{
    (void)state;
    enum { N = 8 };
    struct bench *b = bench_new((struct scheduler_options){ .max_seqs = N + 2,
                                                            .max_batch_tokens = 256,
                                                            .max_context = 30100,
                                                            .n_pages = 10000,
                                                            .max_slowdown = 2 });
    for (int i = 0; i < N; i++)
        add(b, 30, 14000);
    for (int i = 0; i < 20; i++) {
        step(b);
        note_time(b);
    }
    add(b, 30000, 1);
    int n_steps = 0, n_short = 0;
    double longest = 0, sum = 0;
    for (; b->n_generated[N] == 0; n_steps++) {
        if (n_steps % 200 == 100 && b->n_requests < MAX_REQUESTS) {
            add(b, 60, 1); /* others come and go */
            n_short++;
        }
        int before = b->n_generated[0];
        step(b);
        double ms = note_time(b);
        if (n_steps > 0) /* before the first chunk nothing is known */
            longest = ms > longest ? ms : longest;
        sum += ms;
        assert_int_equal(b->n_generated[0], before + 1); /* nobody who decodes is left out */
        for (int i = 0; i < n_short - 1; i++)
            assert_int_equal(b->n_generated[N + 1 + i], 1);
    }
    assert_true(n_short > 10);
    /* At its end a single row of the long prompt costs more than half of what a step may take longer. */
    assert_true(longest < 2.3 * 64 && sum < 1.9 * 64 * n_steps);
    assert_true(sum > 1.6 * 64 * n_steps); /* what is allowed is used */
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_takes_decoding_rows_first_then_prompts_in_order),
        cmocka_unit_test(more_decoding_sequences_than_rows_take_turns),
        cmocka_unit_test(decoding_sequences_do_not_starve_a_prompt),
        cmocka_unit_test(a_long_prompt_does_not_stop_those_who_decode),
        cmocka_unit_test(the_newest_gives_way_and_comes_back_first),
        cmocka_unit_test(a_flood_does_not_delay_anothers_request_beyond_its_share),
        cmocka_unit_test(an_owner_leaves_a_sixteenth_of_the_slots_to_others),
        cmocka_unit_test(beams_leave_a_sixteenth_of_the_slots_to_others),
        cmocka_unit_test(large_requests_let_others_pass_for_ten_seconds),
        cmocka_unit_test(others_are_not_overtaken),
        cmocka_unit_test(preempted_sequences_of_a_flood_come_after_anothers_request),
        cmocka_unit_test(a_preempted_sequence_moves_up_when_the_owners_others_end),
        cmocka_unit_test(a_preempted_sequence_ages_like_a_request_that_waits),
        cmocka_unit_test(two_floods_get_tokens_by_their_weights),
        cmocka_unit_test(a_worse_priority_gives_way_whoever_came_first),
        cmocka_unit_test(a_long_prompt_lets_short_ones_pass),
        cmocka_unit_test(a_prompt_that_has_begun_ages_like_one_that_waits),
        cmocka_unit_test(long_prompts_are_read_in_turns_by_weight),
        cmocka_unit_test(the_order_stays_open_until_a_prompt_can_be_read),
        cmocka_unit_test(a_prompt_of_30000_tokens_does_not_double_the_others_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
