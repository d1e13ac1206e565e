/* Guessed tokens are verified, not believed: every answer is the one without them, whoever else is there, whatever is cut, full
 * or ended; and guesses are verified where that pays, and hardly ever where it does not. */
#include "support/collect.h"
#include "support/mock_model.h"
#include "support/questions.h"

#include "base/rng.h"
#include "engine/guess.h"
#include "engine/speculation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- guesses ---- */

enum { MAX_IDS = 256 };

static void guesser_new(struct guesser *g)
{
    memset(g, 0, sizeof *g);
    size_t n = (size_t)guesser_n_places(MAX_IDS);
    g->mask = (uint32_t)n - 1;
    for (int kind = 0; kind < GUESS_KINDS; kind++)
        g->places[kind] = calloc(n, sizeof *g->places[kind]);
    guesser_begin(g);
}

static void guesser_free(struct guesser *g)
{
    for (int kind = 0; kind < GUESS_KINDS; kind++)
        free(g->places[kind]);
}

static void what_followed_the_longest_repetition_is_guessed(void **state)
{
    (void)state;
    int32_t ids[MAX_IDS] = { 1, 2, 3, 4, 50, 51, 52, 9, 3, 4, 60, 61, 8, 1, 2, 3, 4 };
    struct guesser g;
    guesser_new(&g);
    assert_int_equal(guesser_read(&g, ids, 17, 1000), 17);
    assert_true(guesser_chance(&g) > 0);
    guesser_write(&g, ids, 17, 3);
    assert_memory_equal(ids + 17, ((int32_t[]){ 50, 51, 52 }), 3 * sizeof *ids);

    guesser_begin(&g); /* places are out of date, which is noticed */
    int32_t others[MAX_IDS] = { 70, 71, 72, 3, 4 };
    guesser_read(&g, others, 5, 1000);
    assert_true(guesser_chance(&g) == 0);
    guesser_free(&g);
}

static void a_repetition_without_end_is_continued(void **state)
{
    (void)state;
    int32_t ids[MAX_IDS] = { 7, 8, 9, 7, 8, 9, 7, 8 };
    struct guesser g;
    guesser_new(&g);
    guesser_read(&g, ids, 8, 1000);
    guesser_write(&g, ids, 8, 7);
    assert_memory_equal(ids + 8, ((int32_t[]){ 9, 7, 8, 9, 7, 8, 9 }), 7 * sizeof *ids);
    guesser_free(&g);
}

static void a_long_prompt_is_read_in_parts(void **state)
{
    (void)state;
    int32_t ids[MAX_IDS];
    struct guesser g;
    guesser_new(&g);
    for (int i = 0; i < 200; i++)
        ids[i] = i % 50;
    assert_int_equal(guesser_read(&g, ids, 200, 150), 150);
    assert_true(guesser_chance(&g) == 0);
    assert_int_equal(guesser_read(&g, ids, 200, 150), 50);
    assert_true(guesser_chance(&g) > 0);
    guesser_write(&g, ids, 200, 4);
    assert_int_equal(ids[203], 3);
    guesser_free(&g);
}

/* Tokens come that a guess is right about with this chance; returns what the guesser believes at the end. */
static float believe_after(int percent)
{
    int32_t ids[MAX_IDS];
    struct guesser g;
    guesser_new(&g);
    for (int i = 0; i < 100; i++)
        ids[i] = i % 10;
    for (int n = 100; n < MAX_IDS; n++) {
        guesser_read(&g, ids, n, 1000);
        ids[n] = (int)(mix64((uint64_t)n) % 100) < percent ? ids[n - 10] : 1000 + n;
    }
    float chance = g.chances[0];
    guesser_free(&g);
    return chance;
}

static void how_often_guesses_are_right_is_known_though_none_is_verified(void **state)
{
    (void)state;
    assert_true(believe_after(100) > 0.95f);
    assert_true(believe_after(0) < 0.3f);
    assert_true(believe_after(90) > 0.5f);
}

/* ---- what pays ---- */

/* Steps of a machine that takes 1 ms for the weights and row_us for each row. */
struct machine {
    struct speculation sp;
    double row_us;
    uint64_t total_us;
    int64_t n_guesses;
};

static uint64_t machine_us(const struct machine *m, int n_rows)
{
    double us = m->row_us * n_rows;
    return us > 1000 ? (uint64_t)us : 1000;
}

static void machine_run(struct machine *m, int n_seqs, float chance, int n_steps)
{
    struct guess_offer offers[SPECULATION_ROWS];
    for (int i = 0; i < n_steps; i++) {
        for (int k = 0; k < n_seqs; k++)
            offers[k] = (struct guess_offer){ .chance = chance, .most = 8, .seq = k };
        int n = speculation_choose(&m->sp, n_seqs, 255 - n_seqs, 0, offers, n_seqs), sum = 0;
        for (int k = 0; k < n_seqs; k++) {
            assert_in_range(offers[k].n, 0, 8);
            sum += offers[k].n;
        }
        assert_int_equal(sum, n);
        assert_in_range(n, 0, MAX_GUESS_ROWS);
        uint64_t us = machine_us(m, n_seqs + n);
        speculation_note(&m->sp, n_seqs + n, n, us);
        m->total_us += us;
        m->n_guesses += n;
    }
}

static void rows_that_cost_nothing_are_used(void **state)
{
    (void)state;
    struct machine m = { .sp.max_guesses = 8, .row_us = 50 }; /* 20 rows are free */
    machine_run(&m, 1, 0.9f, 200);
    assert_true(m.n_guesses > 7 * 190);
    machine_run(&m, 4, 0.9f, 200);
    m.n_guesses = 0;
    machine_run(&m, 4, 0.9f, 100);
    assert_in_range(m.n_guesses / 100, 12, 22);
}

static void guesses_that_are_seldom_right_cost_next_to_nothing(void **state)
{
    (void)state;
    static const float chances[] = { 0, 0.02f, 0.1f, 0.3f };
    for (int n_seqs = 1; n_seqs <= 64; n_seqs *= 4)
        for (size_t i = 0; i < sizeof chances / sizeof *chances; i++) {
            struct machine m = { .sp.max_guesses = 8, .row_us = 1000 }; /* a row costs a whole step */
            machine_run(&m, n_seqs, chances[i], 2000);
            assert_true((double)m.total_us < 1.02 * 2000 * (double)machine_us(&m, n_seqs));
        }
}

static void steps_that_compute_are_not_made_longer(void **state)
{
    (void)state;
    struct machine m = { .sp.max_guesses = 8, .row_us = 50 };
    machine_run(&m, 100, 0.5f, 1000);
    assert_true((double)m.total_us < 1.02 * 1000 * (double)machine_us(&m, 100));
}

static void what_was_slow_once_is_tried_again(void **state)
{
    (void)state;
    struct machine m = { .sp.max_guesses = 8, .row_us = 3000 };
    machine_run(&m, 1, 0.8f, 300);
    m.row_us = 20; /* somebody else used the machine, and is gone */
    machine_run(&m, 1, 0.8f, 3000);
    m.n_guesses = 0;
    machine_run(&m, 1, 0.8f, 100);
    assert_true(m.n_guesses > 200);
}

/* ---- answers ---- */

enum { N_CTX = 256, N_REQUESTS = 60 };

static uint64_t page_bytes(int n_pages)
{
    return (uint64_t)n_pages * KV_PAGE_TOKENS * sizeof(int32_t);
}

struct asked {
    int32_t ids[N_CTX];
    struct tutti_logit_bias bias[3];
    struct tutti_request request;
};

/* Answers made of two tokens, or of three of which one may be a stop token: whatever is guessed is often right, and often
 * not. */
static void make_request(struct asked *a, uint64_t number, int n_choices)
{
    size_t n = 1 + mix64(number) % 60;
    for (size_t i = 0; i < n; i++)
        a->ids[i] = (int32_t)(2 + mix64((i < 20 ? number % 3 : number) ^ (uint64_t)i << 32) % 3);
    a->bias[0] = (struct tutti_logit_bias){ 2, 60 };
    a->bias[1] = (struct tutti_logit_bias){ 3, 60 };
    a->bias[2] = (struct tutti_logit_bias){ number % 5 == 0 ? MOCK_STOP : 4, 57 };
    a->request = (struct tutti_request){
        .ids = a->ids, .n_ids = n, .n_choices = n_choices, .max_tokens = 1 + (int)(mix64(number + 99) % 90)
    };
    a->request.sampling = (struct tutti_sampling){ .temperature = number % 4 == 0 ? 0 : 1,
                                                   .top_p = number % 4 == 2 ? 0.9f : 1,
                                                   .repetition_penalty = number % 4 == 1 ? 1.3f : 1,
                                                   .frequency_penalty = number % 7 == 1 ? 0.1f : 0,
                                                   .has_seed = true,
                                                   .seed = number,
                                                   .logit_bias = a->bias,
                                                   .n_logit_bias = 3 };
}

static void check_answer(const struct collect *c, const struct tutti_request *r, int max_context,
                         bool has_stop)
{
    int32_t want[N_CTX];
    for (int choice = 0; choice < c->n_choices; choice++) {
        int n = mock_answer(r, choice, max_context, has_stop, want, N_CTX);
        const struct collected *got = &c->choices[choice];
        assert_int_equal(got->ids.n, n);
        assert_memory_equal(got->ids.ids, want, (size_t)n * sizeof *want);
    }
}

/* Asks at once, with all guesses verified, and checks each answer. Returns the figures. */
static struct tutti_stats ask(struct tutti_engine_options options, int n, int n_choices)
{
    struct mock_model *mock = mock_model_new(N_CTX, true);
    options.max_guesses = options.max_guesses > 0 ? options.max_guesses : 6;
    tutti_engine *engine = mock_engine(mock, &options, &(struct engine_hooks){ .forces_guesses = true });
    struct tutti_stats stats;
    tutti_engine_stats(engine, &stats);
    struct collect *all = calloc((size_t)n, sizeof *all);
    struct asked *asked = calloc((size_t)n, sizeof *asked);
    for (int i = 0; i < n; i++) {
        make_request(&asked[i], (uint64_t)i, n_choices);
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &asked[i].request);
    }
    for (int i = 0; i < n; i++) {
        collect_wait(&all[i]);
        check_answer(&all[i], &asked[i].request, stats.max_context, true);
        collect_clear(&all[i]);
    }
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.kv_pages_cached + stats.kv_pages_free, stats.kv_pages_total);
    assert_int_equal(stats.n_finished, n);
    tutti_engine_close(engine);
    mock_model_free(mock);
    free(asked);
    free(all);
    return stats;
}

static void check_guessed(const struct tutti_stats *stats)
{
    assert_true(stats->n_accepted_guesses > 100);
    assert_true(stats->n_rejected_guesses > 100);
}

static void answers_are_the_same_alone_and_among_others(void **state)
{
    (void)state;
    struct tutti_stats stats = ask((struct tutti_engine_options){ .kv_bytes = page_bytes(64), .max_seqs = 1 },
                                   N_REQUESTS, 1);
    check_guessed(&stats);
    stats = ask((struct tutti_engine_options){ .kv_bytes = page_bytes(2048) }, N_REQUESTS, 1);
    check_guessed(&stats);
    assert_true(stats.n_cached_tokens > 0);
    for (int most = 1; most <= MAX_GUESSES; most *= 2) {
        stats = ask(
            (struct tutti_engine_options){ .kv_bytes = page_bytes(512), .max_seqs = 3, .max_guesses = most },
            N_REQUESTS, 1);
        check_guessed(&stats);
    }
}

static void answers_are_the_same_with_few_rows(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 5, 17, 64 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ask((struct tutti_engine_options){ .kv_bytes = page_bytes(1024),
                                           .max_seqs = 4,
                                           .max_batch_tokens = sizes[i] },
            N_REQUESTS, 1);
}

static void answers_are_the_same_when_pages_run_out(void **state)
{
    (void)state;
    for (int no_cache = 0; no_cache < 2; no_cache++)
        for (int n_pages = 5; n_pages <= 20; n_pages += 5) {
            struct tutti_stats stats = ask((struct tutti_engine_options){ .kv_bytes = page_bytes(n_pages),
                                                                          .no_prefix_cache = no_cache,
                                                                          .max_seqs = 8,
                                                                          .max_slowdown = 1000 },
                                           N_REQUESTS, 1);
            check_guessed(&stats);
            assert_true(stats.n_preemptions > 0);
        }
}

static void choices_are_the_same(void **state)
{
    (void)state;
    struct tutti_stats stats = ask((struct tutti_engine_options){ .kv_bytes = page_bytes(1024) }, 20, 4);
    check_guessed(&stats);
    stats = ask((struct tutti_engine_options){ .kv_bytes = page_bytes(20), .max_seqs = 5 }, 20, 4);
    check_guessed(&stats);
}

/* One request for the same token again and again; returns the figures. */
static struct tutti_stats ask_repetitive(int max_guesses, int of_request, struct collect *c)
{
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 500; /* whatever the rows */
    tutti_engine *engine = mock_engine(
        mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(64), .max_guesses = max_guesses }, NULL);
    struct asked asked;
    make_request(&asked, 1, 1);
    asked.request.max_tokens = 150;
    asked.request.max_guesses = of_request;
    asked.request.sampling = (struct tutti_sampling){
        .top_p = 1, .repetition_penalty = 1, .logit_bias = asked.bias, .n_logit_bias = 1
    };
    collect_submit(c, engine, &asked.request);
    collect_wait(c);
    check_answer(c, &asked.request, N_CTX, false);
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    mock_model_free(mock);
    return stats;
}

static void repetitive_text_takes_fewer_steps(void **state)
{
    (void)state;
    static const struct {
        int of_engine, of_request;
        bool is_faster;
    } cases[] = { { 8, 0, true }, { 8, 4, true }, { 8, -1, false }, { 0, 0, false }, { 0, 8, false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct collect c;
        collect_init(&c);
        struct tutti_stats stats = ask_repetitive(cases[i].of_engine, cases[i].of_request, &c);
        assert_int_equal(c.n_accepted_guesses, stats.n_accepted_guesses);
        assert_int_equal(c.n_rejected_guesses, stats.n_rejected_guesses);
        if (cases[i].is_faster) {
            assert_true(stats.n_steps < 100);
            assert_int_equal(stats.n_steps + stats.n_accepted_guesses, 150);
        } else {
            assert_int_equal(stats.n_steps, 150);
            assert_int_equal(stats.n_accepted_guesses + stats.n_rejected_guesses, 0);
        }
        collect_clear(&c);
    }
}

/* ---- a real model ---- */

enum { MAX_TOKENS = 48 };

/* Questions that ask for long answers, also beyond the end of what the model has to say, where it repeats itself. */
static void make_question(struct question *q, int i)
{
    static const struct tutti_string stop = { " the ", 5 };
    question_make(q, i, MAX_TOKENS);
    q->request.ignore_eos = i % 3 == 1;
    q->request.logprobs = true;
    q->request.top_logprobs = 2;
    if (i % 5 == 2) {
        q->request.stop = &stop;
        q->request.n_stop = 1;
    }
}

/* all [N_QUESTIONS]. */
static struct tutti_stats ask_model(tutti_model *model, struct tutti_engine_options options, bool forces,
                                    bool one_after_the_other, struct collect *all)
{
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    struct tutti_stats stats;
    struct question *q = calloc(N_QUESTIONS, sizeof *q);
    struct engine_hooks hooks = { .forces_guesses = forces };
    if (engine_open(&engine, model_of(model), &options, &hooks, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < N_QUESTIONS; i++) {
        make_question(&q[i], i);
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &q[i].request);
        if (one_after_the_other)
            collect_wait(&all[i]);
    }
    for (int i = 0; i < N_QUESTIONS; i++)
        collect_wait(&all[i]);
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    free(q);
    return stats;
}

static void check_same(struct collect *got, const struct collect *want)
{
    for (int i = 0; i < N_QUESTIONS; i++) {
        const struct collected *a = &got[i].choices[0], *b = &want[i].choices[0];
        assert_int_equal(a->ids.n, b->ids.n);
        assert_memory_equal(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids);
        assert_int_equal(a->logprob_bits.n, b->logprob_bits.n);
        assert_memory_equal(a->logprob_bits.ids, b->logprob_bits.ids,
                            a->logprob_bits.n * sizeof *a->logprob_bits.ids);
        assert_int_equal(a->text.n_bytes, b->text.n_bytes);
        if (a->text.n_bytes > 0)
            assert_memory_equal(a->text.bytes, b->text.bytes, a->text.n_bytes);
        assert_int_equal(a->finish, b->finish);
        collect_clear(&got[i]);
    }
}

static void check_model(int n_threads, const char *weight_type, const char *kv_type)
{
    tutti_model *model = NULL;
    struct tutti_error err = { 0 };
    struct tutti_model_options options = { .n_threads = n_threads,
                                           .weight_type = weight_type,
                                           .kv_type = kv_type };
    if (tutti_model_open(&model, TEST_DEMO_MODEL, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    uint64_t bytes = info.kv_bytes_per_token * KV_PAGE_TOKENS;
    struct collect *want = calloc(N_QUESTIONS, sizeof *want), *got = calloc(N_QUESTIONS, sizeof *got);
    struct tutti_engine_options plain = { .kv_bytes = 2000 * bytes };
    ask_model(model, plain, false, true, want);

    plain.max_guesses = 8;
    struct tutti_stats stats = ask_model(model, plain, true, true, got);
    check_guessed(&stats);
    check_same(got, want);
    stats = ask_model(model, plain, true, false, got);
    check_guessed(&stats);
    check_same(got, want);
    stats = ask_model(model, plain, false, false, got);
    check_same(got, want);
    plain.max_batch_tokens = 24;
    plain.max_seqs = 8;
    plain.kv_bytes = 9 * bytes;
    plain.max_slowdown = 1000;
    stats = ask_model(model, plain, true, false, got);
    check_guessed(&stats);
    assert_true(stats.n_preemptions > 0);
    check_same(got, want);

    for (int i = 0; i < N_QUESTIONS; i++)
        collect_clear(&want[i]);
    free(want);
    free(got);
    tutti_model_close(model);
}

static void texts_and_probabilities_of_a_model_are_the_same(void **state)
{
    (void)state;
    check_model(1, NULL, NULL);
    check_model(2, "q8_0", "int8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_longest_repetition_is_guessed),
        cmocka_unit_test(a_repetition_without_end_is_continued),
        cmocka_unit_test(a_long_prompt_is_read_in_parts),
        cmocka_unit_test(how_often_guesses_are_right_is_known_though_none_is_verified),
        cmocka_unit_test(rows_that_cost_nothing_are_used),
        cmocka_unit_test(guesses_that_are_seldom_right_cost_next_to_nothing),
        cmocka_unit_test(steps_that_compute_are_not_made_longer),
        cmocka_unit_test(what_was_slow_once_is_tried_again),
        cmocka_unit_test(answers_are_the_same_alone_and_among_others),
        cmocka_unit_test(answers_are_the_same_with_few_rows),
        cmocka_unit_test(answers_are_the_same_when_pages_run_out),
        cmocka_unit_test(choices_are_the_same),
        cmocka_unit_test(repetitive_text_takes_fewer_steps),
        cmocka_unit_test(texts_and_probabilities_of_a_model_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
