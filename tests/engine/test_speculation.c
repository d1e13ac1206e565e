/* Speculative decoding: every answer is the one without them, whoever else is there, whatever is cut, full
 * or ended; and draft tokens are verified where that pays, and hardly ever where it does not. */
#include "support/asked.h"
#include "support/collect.h"
#include "support/mock_model.h"
#include "support/questions.h"

#include "base/rng.h"
#include "engine/speculate/prompt_lookup.h"
#include "engine/speculate/speculation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- prompt lookup ---- */

enum { MAX_IDS = 256 };

static void lookup_new(struct prompt_lookup *lookup)
{
    memset(lookup, 0, sizeof *lookup);
    size_t n = (size_t)prompt_lookup_n_places(MAX_IDS);
    lookup->mask = (uint32_t)n - 1;
    for (int kind = 0; kind < PROMPT_LOOKUP_KINDS; kind++)
        lookup->places[kind] = calloc(n, sizeof *lookup->places[kind]);
    prompt_lookup_reset(lookup);
}

static void lookup_free(struct prompt_lookup *lookup)
{
    for (int kind = 0; kind < PROMPT_LOOKUP_KINDS; kind++)
        free(lookup->places[kind]);
}

static void what_followed_the_longest_repetition_is_proposed(void **state)
{
    (void)state;
    int32_t ids[MAX_IDS] = { 1, 2, 3, 4, 50, 51, 52, 9, 3, 4, 60, 61, 8, 1, 2, 3, 4 };
    struct prompt_lookup lookup;
    lookup_new(&lookup);
    assert_int_equal(prompt_lookup_update(&lookup, ids, 17, 1000), 17);
    assert_true(prompt_lookup_acceptance(&lookup) > 0);
    prompt_lookup_copy(&lookup, ids, 17, 3);
    assert_memory_equal(ids + 17, ((int32_t[]){ 50, 51, 52 }), 3 * sizeof *ids);

    prompt_lookup_reset(&lookup); /* places are out of date, which is noticed */
    int32_t others[MAX_IDS] = { 70, 71, 72, 3, 4 };
    prompt_lookup_update(&lookup, others, 5, 1000);
    assert_true(prompt_lookup_acceptance(&lookup) == 0);
    lookup_free(&lookup);
}

static void a_repetition_without_end_is_continued(void **state)
{
    (void)state;
    int32_t ids[MAX_IDS] = { 7, 8, 9, 7, 8, 9, 7, 8 };
    struct prompt_lookup lookup;
    lookup_new(&lookup);
    prompt_lookup_update(&lookup, ids, 8, 1000);
    prompt_lookup_copy(&lookup, ids, 8, 7);
    assert_memory_equal(ids + 8, ((int32_t[]){ 9, 7, 8, 9, 7, 8, 9 }), 7 * sizeof *ids);
    lookup_free(&lookup);
}

static void a_long_prompt_is_read_in_parts(void **state)
{
    (void)state;
    int32_t ids[MAX_IDS];
    struct prompt_lookup lookup;
    lookup_new(&lookup);
    for (int i = 0; i < 200; i++)
        ids[i] = i % 50;
    assert_int_equal(prompt_lookup_update(&lookup, ids, 200, 150), 150);
    assert_true(prompt_lookup_acceptance(&lookup) == 0);
    assert_int_equal(prompt_lookup_update(&lookup, ids, 200, 150), 50);
    assert_true(prompt_lookup_acceptance(&lookup) > 0);
    prompt_lookup_copy(&lookup, ids, 200, 4);
    assert_int_equal(ids[203], 3);
    lookup_free(&lookup);
}

/* Each token equals its proposal with this probability. Returns the acceptance rate that was learned. */
static float believe_after(int percent)
{
    int32_t ids[MAX_IDS];
    struct prompt_lookup lookup;
    lookup_new(&lookup);
    for (int i = 0; i < 100; i++)
        ids[i] = i % 10;
    for (int n = 100; n < MAX_IDS; n++) {
        prompt_lookup_update(&lookup, ids, n, 1000);
        ids[n] = (int)(mix64((uint64_t)n) % 100) < percent ? ids[n - 10] : 1000 + n;
    }
    float chance = lookup.acceptance[0];
    lookup_free(&lookup);
    return chance;
}

static void the_acceptance_rate_is_known_though_no_draft_is_verified(void **state)
{
    (void)state;
    assert_true(believe_after(100) > 0.95f);
    assert_true(believe_after(0) < 0.3f);
    assert_true(believe_after(90) > 0.5f);
}

/* ---- what pays ---- */

/* Steps of a machine that takes 1 ms for the weights and row_us for each row; a pass of the draft model takes draft_us, deciding what
 * is decided plan_us. */
struct machine {
    struct speculation sp;
    double row_us, draft_us, plan_us;
    double slowness; /* factor of what steps take */
    double total_us;
    double plain_us;                       /* that the same tokens would have taken without drafts */
    int64_t n_drafts, n_steps, n_drafting; /* n_drafting: steps with passes of the draft model */
    int64_t n_plans;                       /* steps for which something was decided */
    int n_lag; /* rows that the draft model has yet to compute, of each sequence */
    float model_acceptance;
};

/* The acceptance rate that a proposal states, and the true ones of both sources. */
struct text {
    float promised, lookup, draft;
    bool has_draft;
};

static struct machine machine_of(double row_us, double draft_us)
{
    struct machine m = { .row_us = row_us, .draft_us = draft_us, .slowness = 1, .n_lag = 1 };
    speculation_init(&m.sp, draft_us / 1000, false);
    m.model_acceptance = m.sp.model_acceptance;
    return m;
}

static uint64_t machine_us(const struct machine *m, int n_rows)
{
    double us = m->row_us * n_rows;
    return (uint64_t)((us > 1000 ? us : 1000) * m->slowness);
}

static int machine_offers(const struct machine *m, int n_seqs, const struct text *text,
                          struct draft_proposal *proposals)
{
    int n = 0;
    for (int k = 0; k < n_seqs; k++) {
        if (text->promised > 0)
            proposals[n++] = (struct draft_proposal){ .acceptance = text->promised, .most = 8, .seq = k };
        if (text->has_draft)
            proposals[n++] = (struct draft_proposal){
                .acceptance = m->model_acceptance, .most = 8, .seq = k, .is_draft = true, .n_lag = m->n_lag
            };
    }
    return n;
}

/* How many drafts of a proposal are accepted. */
static int machine_right(const struct machine *m, const struct draft_proposal *proposal, double chance)
{
    int n = 0;
    while (n < proposal->n &&
           rng_uniform((uint64_t)m->n_steps, (uint64_t)proposal->seq, (uint64_t)n) < chance)
        n++;
    return n;
}

static void machine_step(struct machine *m, int n_seqs, const struct text *text)
{
    struct draft_proposal proposals[2 * SPECULATION_ROWS];
    struct speculation_step room = { .n_seqs = n_seqs, .max_rows = 255 - n_seqs };
    struct speculation_result step = { .n_seqs = n_seqs, .n_tokens = n_seqs, .may_speculate = true };
    int n_proposals = 0, n = 0, sum = 0, n_passes = 0;
    if (speculation_is_due(&m->sp, n_seqs)) {
        n_proposals = machine_offers(m, n_seqs, text, proposals);
        n = speculation_choose(&m->sp, &room, proposals, n_proposals);
        step.plan_us = m->plan_us;
        m->n_plans++;
    }
    bool is_read = false;
    for (int k = 0; k < n_proposals; k++) {
        assert_in_range(proposals[k].n, 0, 8);
        assert_true(k == 0 || proposals[k].seq != proposals[k - 1].seq || proposals[k].n == 0 ||
                    proposals[k - 1].n == 0);
        sum += proposals[k].n;
        int n_accepted = machine_right(m, &proposals[k],
                                       (double)(proposals[k].is_draft ? text->draft : text->lookup));
        step.n_tokens += n_accepted;
        if (!proposals[k].is_draft)
            continue;
        is_read = is_read || proposals[k].n_catch_up > 0;
        n_passes = proposals[k].n > n_passes ? proposals[k].n : n_passes;
        step.n_model_drafts += proposals[k].n;
        step.n_model_accepted += n_accepted;
        speculation_note_acceptance(&m->sp, &m->model_acceptance, proposals[k].n, n_accepted);
    }
    assert_int_equal(sum, n);
    assert_in_range(n, 0, MAX_DRAFT_ROWS);
    for (int i = 0; i < n_passes + (is_read && n_passes == 0); i++) {
        speculation_note_pass(&m->sp, n_seqs, (uint64_t)m->draft_us);
        step.draft_us += (uint64_t)m->draft_us;
    }
    step.n_rows = n_seqs + n;
    step.n_drafts = n;
    step.us = machine_us(m, n_seqs + n);
    speculation_note(&m->sp, &step);
    m->total_us += (double)step.us + (double)step.draft_us + step.plan_us;
    m->plain_us += (double)machine_us(m, n_seqs) * step.n_tokens / n_seqs;
    m->n_drafts += n;
    m->n_drafting += step.draft_us > 0;
    m->n_steps++;
}

static void machine_run(struct machine *m, int n_seqs, struct text text, int n_steps)
{
    for (int i = 0; i < n_steps; i++)
        machine_step(m, n_seqs, &text);
}

static void rows_that_cost_nothing_are_used(void **state)
{
    (void)state;
    struct machine m = machine_of(50, 0); /* 20 rows are free */
    struct text text = { .promised = 0.9f, .lookup = 0.9f };
    machine_run(&m, 1, text, 200);
    assert_true(m.n_drafts > 7 * 190);
    machine_run(&m, 4, text, 200);
    m.n_drafts = 0;
    machine_run(&m, 4, text, 100);
    assert_in_range(m.n_drafts / 100, 12, 22);
}

/* No draft is accepted, whatever the proposals state. */
static void check_loss(int n_seqs, double row_us, double draft_us, double plan_us, float promised)
{
    enum { N_STEPS = 2000 };
    struct machine m = machine_of(row_us, draft_us);
    m.plan_us = plan_us;
    struct text text = { .promised = promised, .has_draft = draft_us > 0 };
    machine_run(&m, n_seqs, text, N_STEPS);
    double plain = (double)N_STEPS * (double)machine_us(&m, n_seqs);
    if (m.total_us > 1.03 * plain)
        fail_msg(
            "%d users, rows of %.0f us, passes of %.0f us, plans of %.0f us, promised %.2f: %.4f of the time",
            n_seqs, row_us, draft_us, plan_us, (double)promised, m.total_us / plain);
}

static void drafts_that_are_never_accepted_cost_less_than_three_percent(void **state)
{
    (void)state;
    static const double rows[] = { 1, 50, 1000 }, passes[] = { 0, 20, 500 }, plans[] = { 0, 10, 200, 3000 };
    static const float promises[] = { 0, 0.1f, 1 };
    for (int n_seqs = 1; n_seqs <= 16; n_seqs *= 4)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t d = 0; d < sizeof passes / sizeof *passes; d++)
                for (size_t p = 0; p < sizeof promises / sizeof *promises; p++)
                    for (size_t t = 0; t < sizeof plans / sizeof *plans; t++)
                        check_loss(n_seqs, rows[r], passes[d], plans[t], promises[p]);
}

/* Deciding takes time too, more than a step at worst. */
static void deciding_is_charged(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 0);
    machine_run(&m, 4, (struct text){ .promised = 0.5f, .lookup = 0.5f }, 2); /* the budget begins */
    m.plan_us = 100;
    double before_us = m.sp.budget_us;
    m.n_plans = 0;
    machine_run(&m, 4, (struct text){ 0 }, 1);
    assert_int_equal(m.n_plans, 1);
    assert_true(m.sp.budget_us < before_us - 80);

    static const double plans[] = { 5, 20, 100, 500, 5000 };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        m = machine_of(20, 0);
        m.plan_us = plans[i];
        machine_run(&m, 4, (struct text){ 0 }, 10000); /* no proposals */
        double plain_us = 1000.0 * 10000;
        if (m.total_us > 1.01 * plain_us)
            fail_msg("plans of %.0f us: %.4f of the time", plans[i], m.total_us / plain_us);
        assert_true(m.n_plans > (plans[i] < 500 ? 200 : 0));
    }
}

/* While drafts are accepted, or deciding costs next to nothing, it is done for each step. */
static void deciding_pays_where_drafts_are_accepted(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 0);
    struct text text = { .promised = 0.9f, .lookup = 0.9f };
    m.plan_us = 30;
    machine_run(&m, 4, text, 500);
    m.total_us = m.plain_us = 0;
    machine_run(&m, 4, text, 1000);
    if (m.total_us > 0.35 * m.plain_us)
        fail_msg("%.2f of the time", m.total_us / m.plain_us);

    m = machine_of(20, 0);
    m.plan_us = 2;
    machine_run(&m, 4, (struct text){ 0 }, 1000);
    assert_true(m.n_plans > 990);
}

/* What accepted drafts have gained is not lost on another text. */
static void what_was_won_is_forgotten(void **state)
{
    (void)state;
    for (int n_seqs = 1; n_seqs <= 16; n_seqs *= 4) {
        struct machine m = machine_of(100, 0);
        m.plan_us = 10;
        machine_run(&m, n_seqs, (struct text){ .promised = 0.9f, .lookup = 0.9f }, 1000);
        m.total_us = m.plain_us = 0;
        machine_run(&m, n_seqs, (struct text){ 0 }, 200);
        machine_run(&m, n_seqs, (struct text){ .promised = 1 }, 400);
        if (m.total_us > 1.03 * m.plain_us)
            fail_msg("%d users: %.4f of the time", n_seqs, m.total_us / m.plain_us);
    }
}

/* What is known of larger steps holds on a machine that becomes 30 times as fast, since nobody else uses it any more. */
static void a_machine_that_becomes_faster_is_noticed(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 0);
    struct text text = { .promised = 0.9f, .lookup = 0.9f };
    m.slowness = 30;
    machine_run(&m, 1, text, 100);
    machine_run(&m, 1, (struct text){ 0 }, 100);
    m.slowness = 1;
    machine_run(&m, 1, (struct text){ 0 }, 30);
    m.n_drafts = 0;
    machine_run(&m, 1, text, 50);
    assert_true(m.n_drafts > 100);
}

/* Steps without speculation leave the budget unchanged. */
static void steps_without_speculation_do_not_count(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 0);
    machine_run(&m, 1, (struct text){ .promised = 0.5f, .lookup = 0.5f }, 10);
    double budget_us = m.sp.budget_us;
    struct speculation_result step = { .n_seqs = 1, .n_rows = 1, .n_tokens = 1, .us = 1000 };
    for (int i = 0; i < 100; i++)
        speculation_note(&m.sp, &step);
    assert_true(m.sp.budget_us == budget_us);
}

static void a_draft_model_that_is_never_right_is_hardly_asked(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 50);
    machine_run(&m, 4, (struct text){ .has_draft = true }, 1000);
    m.n_drafting = 0;
    machine_run(&m, 4, (struct text){ .has_draft = true }, 10000);
    assert_in_range(m.n_drafting, 1, 20); /* after 1024 steps, after 2048, and so on */

    machine_run(&m, 4, (struct text){ .has_draft = true, .draft = 0.9f }, 10000); /* and now it is */
    m.total_us = 0;
    m.plain_us = 0;
    machine_run(&m, 4, (struct text){ .has_draft = true, .draft = 0.9f }, 1000);
    assert_true(m.total_us < 0.5 * m.plain_us);
}

static void a_draft_model_is_asked_where_that_is_faster(void **state)
{
    (void)state;
    static const struct {
        int n_seqs;
        double row_us, draft_us;
        float acceptance;
        double gain; /* at least; 0: none, it is not asked */
    } cases[] = {
        { 1, 20, 100, 0.8f, 1.8 },  { 1, 20, 30, 0.9f, 3 },  { 4, 20, 100, 0.8f, 1.8 },
        { 4, 20, 300, 0.8f, 1.35 }, { 4, 20, 900, 0.7f, 0 }, { 64, 50, 30, 0.5f, 0 },
        { 32, 1, 100, 0.8f, 1.2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct machine m = machine_of(cases[i].row_us, cases[i].draft_us);
        struct text text = { .has_draft = true, .draft = cases[i].acceptance };
        machine_run(&m, cases[i].n_seqs, text, 2000);
        double gain = m.plain_us / m.total_us;
        if (gain < (cases[i].gain > 0 ? cases[i].gain : 0.97) || (cases[i].gain <= 0 && m.n_drafting > 200))
            fail_msg("case %zu: %.2f times as fast, %d of 2000 steps drafted", i, gain, (int)m.n_drafting);
    }
}

static void the_source_with_the_higher_acceptance_rate_is_used(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 50);
    struct text text = { .promised = 0.95f, .lookup = 0.95f, .has_draft = true, .draft = 0.5f };
    machine_run(&m, 1, text, 500);
    m.n_drafting = 0;
    machine_run(&m, 1, text, 500);
    assert_true(m.n_drafting < 50);

    m = machine_of(20, 50);
    text = (struct text){ .promised = 0.2f, .lookup = 0.2f, .has_draft = true, .draft = 0.9f };
    machine_run(&m, 1, text, 500);
    m.n_drafting = 0;
    machine_run(&m, 1, text, 500);
    assert_true(m.n_drafting > 400);
}

/* A text of n_lag tokens that the draft model has not seen is prefilled in chunks that the budget can pay; then it drafts. */
static void a_draft_model_reads_a_long_text_when_it_can_be_paid(void **state)
{
    (void)state;
    struct machine m = machine_of(20, 100);
    m.n_lag = 5000;
    machine_run(&m, 1, (struct text){ 0 }, 2); /* the budget begins */
    struct draft_proposal proposal = { .acceptance = 0.8f, .most = 8, .is_draft = true, .n_lag = 5000 };
    struct speculation_step room = { .n_seqs = 1, .max_rows = 100 };
    assert_int_equal(speculation_choose(&m.sp, &room, &proposal, 1), 0);
    assert_in_range(proposal.n_catch_up, NEAR_ROWS, SPECULATION_ROWS);
    m.sp.budget_us = 50; /* less than a pass */
    assert_int_equal(speculation_choose(&m.sp, &room, &proposal, 1), 0);
    assert_int_equal(proposal.n_catch_up, 0);
}

static void steps_that_compute_are_not_made_longer(void **state)
{
    (void)state;
    struct machine m = machine_of(50, 0);
    machine_run(&m, 100, (struct text){ .promised = 0.5f, .lookup = 0.5f }, 1000);
    assert_true(m.total_us < 1.02 * m.plain_us);
}

static void what_was_slow_once_is_tried_again(void **state)
{
    (void)state;
    struct machine m = machine_of(3000, 0);
    struct text text = { .promised = 0.8f, .lookup = 0.8f };
    machine_run(&m, 1, text, 300);
    m.row_us = 20; /* somebody else used the machine, and is gone */
    machine_run(&m, 1, text, 3000);
    m.n_drafts = 0;
    machine_run(&m, 1, text, 100);
    assert_true(m.n_drafts > 200);
}

/* ---- answers ---- */

enum { N_REQUESTS = 60 };

/* With all drafts verified. */
static struct tutti_stats ask(struct tutti_engine_options options, int n, int n_choices)
{
    options.max_lookup_tokens = options.max_lookup_tokens > 0 ? options.max_lookup_tokens : 6;
    return asked_all(&options, NULL, n, n_choices);
}

/* Their number depends on which requests run together. */
static void check_speculated(const struct tutti_stats *stats)
{
    assert_true(stats->n_accepted_drafts > 10);
    assert_true(stats->n_rejected_drafts > 10);
}

static void answers_are_the_same_alone_and_among_others(void **state)
{
    (void)state;
    struct tutti_stats stats = ask(
        (struct tutti_engine_options){ .kv_bytes = asked_page_bytes(64), .max_seqs = 1 }, N_REQUESTS, 1);
    check_speculated(&stats);
    stats = ask((struct tutti_engine_options){ .kv_bytes = asked_page_bytes(2048) }, N_REQUESTS, 1);
    check_speculated(&stats);
    assert_true(stats.n_cached_tokens > 0);
    for (int most = 1; most <= MAX_DRAFT_TOKENS; most *= 2) {
        stats = ask((struct tutti_engine_options){ .kv_bytes = asked_page_bytes(512),
                                                   .max_seqs = 3,
                                                   .max_lookup_tokens = most },
                    N_REQUESTS, 1);
        check_speculated(&stats);
    }
}

static void answers_are_the_same_with_few_rows(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 5, 17, 64 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ask((struct tutti_engine_options){ .kv_bytes = asked_page_bytes(1024),
                                           .max_seqs = 4,
                                           .max_batch_tokens = sizes[i] },
            N_REQUESTS, 1);
}

static void answers_are_the_same_when_pages_run_out(void **state)
{
    (void)state;
    for (int no_cache = 0; no_cache < 2; no_cache++)
        for (int n_pages = 5; n_pages <= 20; n_pages += 5) {
            struct tutti_stats stats = ask(
                (struct tutti_engine_options){ .kv_bytes = asked_page_bytes(n_pages),
                                               .no_prefix_cache = no_cache,
                                               .max_seqs = 8,
                                               .max_slowdown = 1000 },
                N_REQUESTS, 1);
            check_speculated(&stats);
            assert_true(stats.n_preemptions > 0);
        }
}

static void choices_are_the_same(void **state)
{
    (void)state;
    struct tutti_stats stats = ask((struct tutti_engine_options){ .kv_bytes = asked_page_bytes(1024) }, 20,
                                   4);
    check_speculated(&stats);
    stats = ask((struct tutti_engine_options){ .kv_bytes = asked_page_bytes(20), .max_seqs = 5 }, 20, 4);
    check_speculated(&stats);
}

/* One request for the same token again and again; returns the figures. */
static struct tutti_stats ask_repetitive(int max_lookup_tokens, int of_request, struct collect *c)
{
    struct mock_model *mock = mock_model_new(ASKED_CTX, false);
    mock->step_us = 500; /* whatever the rows */
    tutti_engine *engine = mock_engine(
        mock,
        &(struct tutti_engine_options){ .kv_bytes = asked_page_bytes(64),
                                        .max_lookup_tokens = max_lookup_tokens },
        NULL);
    struct asked asked;
    asked_make(&asked, 1, 1);
    asked.request.max_tokens = 150;
    asked.request.max_draft_tokens = of_request;
    asked.request.sampling = (struct tutti_sampling){
        .top_p = 1, .repetition_penalty = 1, .logit_bias = asked.bias, .n_logit_bias = 1
    };
    collect_submit(c, engine, &asked.request);
    collect_wait(c);
    asked_check(c, &asked.request, ASKED_CTX, false);
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
        assert_int_equal(c.n_accepted_drafts, stats.n_accepted_drafts);
        assert_int_equal(c.n_rejected_drafts, stats.n_rejected_drafts);
        if (cases[i].is_faster) {
            assert_true(stats.n_steps < 150); /* how many fewer is a question of what steps take */
            assert_int_equal(stats.n_steps + stats.n_accepted_drafts, 150);
        } else {
            assert_int_equal(stats.n_steps, 150);
            assert_int_equal(stats.n_accepted_drafts + stats.n_rejected_drafts, 0);
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
    struct engine_hooks hooks = { .forces_drafts = forces };
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
    uint64_t bytes = info.kv_bytes_per_token * 16;
    struct collect *want = calloc(N_QUESTIONS, sizeof *want), *got = calloc(N_QUESTIONS, sizeof *got);
    struct tutti_engine_options plain = { .kv_bytes = 2000 * bytes };
    ask_model(model, plain, false, true, want);

    plain.max_lookup_tokens = 8;
    struct tutti_stats stats = ask_model(model, plain, true, true, got);
    check_speculated(&stats);
    check_same(got, want);
    stats = ask_model(model, plain, true, false, got);
    assert_true(stats.n_accepted_drafts > 0 &&
                stats.n_rejected_drafts > 0); /* how many is a question of time */
    check_same(got, want);
    stats = ask_model(model, plain, false, false, got);
    check_same(got, want);
    plain.max_batch_tokens = 24;
    plain.max_seqs = 8;
    plain.kv_bytes = 9 * bytes;
    plain.max_slowdown = 1000;
    stats = ask_model(model, plain, true, false, got);
    assert_true(stats.n_accepted_drafts > 0 && stats.n_rejected_drafts > 0);
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
        cmocka_unit_test(what_followed_the_longest_repetition_is_proposed),
        cmocka_unit_test(a_repetition_without_end_is_continued),
        cmocka_unit_test(a_long_prompt_is_read_in_parts),
        cmocka_unit_test(the_acceptance_rate_is_known_though_no_draft_is_verified),
        cmocka_unit_test(rows_that_cost_nothing_are_used),
        cmocka_unit_test(drafts_that_are_never_accepted_cost_less_than_three_percent),
        cmocka_unit_test(deciding_is_charged),
        cmocka_unit_test(deciding_pays_where_drafts_are_accepted),
        cmocka_unit_test(what_was_won_is_forgotten),
        cmocka_unit_test(a_machine_that_becomes_faster_is_noticed),
        cmocka_unit_test(steps_without_speculation_do_not_count),
        cmocka_unit_test(a_draft_model_that_is_never_right_is_hardly_asked),
        cmocka_unit_test(a_draft_model_is_asked_where_that_is_faster),
        cmocka_unit_test(the_source_with_the_higher_acceptance_rate_is_used),
        cmocka_unit_test(a_draft_model_reads_a_long_text_when_it_can_be_paid),
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
