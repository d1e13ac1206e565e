/* Requests of every kind in a pool that is too small, with drafts and spilled pages, cancelled in every phase: those that go on
 * get exactly their answers, and in the end no page, slot, place in the queue, share or use of a copy is held. */
#include "base/rng.h"
#include "engine/run/engine_state.h"
#include "support/collect.h"
#include "support/mock_model.h"
#include "support/nothing_held.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    N_CTX = 256,
    N_PAGES = 20,
    N_REQUESTS = 240,
    N_AT_ONCE = 30,
    N_OWNERS = 5,
    N_PREEMPTED = 10, /* so many are cancelled while they are preempted */
    N_PHASES = TUTTI_PHASE_PREEMPTED + 1,
    PAGE_BYTES = MOCK_PAGE_TOKENS * sizeof(int32_t),
    HOST_PAGES = 40,
};

struct case_of {
    struct tutti_request request;
    int32_t ids[N_CTX];
    struct collect answer;
    bool is_waited_for;
};

static uint64_t pick(int i, uint64_t what, uint64_t n)
{
    return mix64((uint64_t)i * 64 + what) % n;
}

static void make_case(struct case_of *c, int i)
{
    size_t n_ids = 1 + pick(i, 0, 40);
    for (size_t k = 0; k < n_ids; k++) /* families of prompts, so that beginnings are shared */
        c->ids[k] = (int32_t)(mix64((k < 40 ? pick(i, 1, 3) : (uint64_t)i) ^ (uint64_t)k << 32) % 4);
    struct tutti_request *r = &c->request;
    *r = (struct tutti_request){ .ids = c->ids,
                                 .n_ids = n_ids,
                                 .max_tokens = 1 + (int)pick(i, 2, 150),
                                 .owner = pick(i, 3, N_OWNERS),
                                 .weight = 1 + (double)pick(i, 4, 3),
                                 .priority = (int)pick(i, 5, 3) - 1,
                                 .tenant = pick(i, 6, 2),
                                 .ignore_eos = pick(i, 11, 4) > 0 };
    r->sampling = (struct tutti_sampling){ .temperature = i % 3 == 0 ? 0 : 1,
                                           .top_p = i % 4 == 2 ? 0.7f : 1,
                                           .repetition_penalty = i % 5 == 1 ? 1.3f : 1,
                                           .has_seed = true,
                                           .seed = (uint64_t)i };
    switch (pick(i, 7, 8)) {
    case 0:
        r->n_beams = 2 + (int)pick(i, 8, 2);
        r->n_choices = 1 + (int)pick(i, 9, 2);
        r->max_tokens = 1 + (int)pick(i, 10, 20);
        r->length_penalty = 1;
        r->sampling.repetition_penalty = 1;
        break;
    case 1:
        r->embedding = pick(i, 8, 2) ? TUTTI_EMBEDDING_LAST : TUTTI_EMBEDDING_MEAN;
        break;
    case 2:
        r->no_kv_cache = true;
        break;
    case 3:
        r->prompt_logprobs = true;
        r->n_choices = 1 + (int)pick(i, 8, 3);
        break;
    case 4:
        r->max_queue_ms = 1;
        break;
    default:
        r->n_choices = pick(i, 8, 2) ? 1 + (int)pick(i, 9, 4) : 1;
    }
}

/* ---- answers ---- */

/* A complete answer is want [n], and one that was cancelled is its beginning. */
static void check_ids(int i, const struct collected *got, const int32_t *want, size_t n)
{
    bool is_complete = got->finish == TUTTI_FINISH_LENGTH || got->finish == TUTTI_FINISH_STOP;
    if (got->ids.n > n || (is_complete && got->ids.n != n) ||
        (got->ids.n > 0 && memcmp(got->ids.ids, want, got->ids.n * sizeof *want) != 0))
        fail_msg("request %d: another answer than as the only one", i);
}

static void check_case(const struct case_of *c, const struct case_of *single, int i)
{
    const struct tutti_request *r = &c->request;
    for (int k = 0; k < c->answer.n_choices; k++) {
        const struct collected *got = &c->answer.choices[k];
        int32_t want[N_CTX];
        if (got->finish == TUTTI_FINISH_ERROR && r->max_queue_ms > 0 && got->error.status == TUTTI_E_TIMEOUT)
            continue;
        assert_in_range(got->finish, TUTTI_FINISH_STOP, TUTTI_FINISH_CANCELLED);
        if (r->n_beams > 0) {
            const struct collected *wanted = &single->answer.choices[k];
            check_ids(i, got, wanted->ids.ids, wanted->ids.n);
        } else if (r->embedding == TUTTI_EMBEDDING_NONE) {
            check_ids(i, got, want, (size_t)mock_answer(r, k, N_CTX, !r->ignore_eos, want, N_CTX));
        } else if (got->finish == TUTTI_FINISH_LENGTH) {
            assert_int_equal(c->answer.embedding_bits.n, MOCK_WIDTH);
            assert_memory_equal(c->answer.embedding_bits.ids, single->answer.embedding_bits.ids,
                                MOCK_WIDTH * sizeof(int32_t));
        }
    }
}

/* Answers of a large engine to one request at a time, where mock_answer() has none. */
static void ask_singly(struct case_of *singles)
{
    struct mock_model *mock = mock_model_new(N_CTX, true);
    struct tutti_engine_options options = { .kv_bytes = 100 * (uint64_t)PAGE_BYTES, .no_prefix_cache = true };
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    for (int i = 0; i < N_REQUESTS; i++) {
        make_case(&singles[i], i);
        collect_init(&singles[i].answer);
        if (singles[i].request.n_beams == 0 && singles[i].request.embedding == TUTTI_EMBEDDING_NONE)
            continue;
        collect_submit(&singles[i].answer, engine, &singles[i].request);
        collect_wait(&singles[i].answer);
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* ---- the crowd ---- */

/* While no step ends: cancels a request that is in the phase. Returns whether there was one. */
static bool cancel_in(tutti_engine *engine, struct case_of *cases, int first, int n, enum tutti_phase phase)
{
    struct tutti_progress progress;
    for (int i = first; i < n; i++) {
        uint64_t id = cases[i].answer.id;
        if (id == 0 || !tutti_engine_progress(engine, id, &progress) || progress.phase != phase)
            continue;
        tutti_engine_cancel(engine, id);
        return true;
    }
    return false;
}

/* False: refused, because its owner has too many. */
static bool submit(struct case_of *c, tutti_engine *engine)
{
    struct tutti_error err = { 0 };
    uint64_t id = 0;
    struct collect *a = &c->answer;
    a->engine = engine;
    a->n_choices = c->request.n_choices > 0 ? c->request.n_choices : 1;
    enum tutti_status st = tutti_engine_submit(engine, &c->request, collect_event, a, &id, &err);
    if (st != TUTTI_OK && st != TUTTI_E_BUSY)
        fail_msg("%s", err.text);
    pthread_mutex_lock(&a->lock);
    a->id = id;
    pthread_mutex_unlock(&a->lock);
    return st == TUTTI_OK;
}

static void run_crowd(const struct case_of *singles, bool drafts, bool spills)
{
    struct mock_model *mock = mock_model_new(N_CTX, true), *draft = mock_model_new(N_CTX, true);
    struct tutti_engine_options options = { .kv_bytes = (drafts ? 2 : 1) * (uint64_t)N_PAGES * PAGE_BYTES,
                                            .max_seqs = 8,
                                            .max_queue = 100,
                                            .max_batch_tokens = 40,
                                            .max_slowdown = 1000,
                                            .max_lookup_tokens = drafts ? 3 : 0,
                                            .draft = drafts ? model_handle(&draft->model) : NULL,
                                            .kv_spill_host_bytes = spills ? HOST_PAGES * PAGE_BYTES : 0 };
    mock->n_late_copies = 2;
    mock->step_us = 50;
    draft->percent_wrong = 30;
    tutti_engine *engine = mock_engine(mock, &options, &(struct engine_hooks){ .forces_drafts = true });
    struct case_of *cases = calloc(N_REQUESTS, sizeof *cases);
    int n_cancelled[N_PHASES] = { 0 };
    assert_non_null(cases);
    for (int i = 0; i < N_REQUESTS; i++) {
        make_case(&cases[i], i);
        collect_init(&cases[i].answer);
        cases[i].answer.cancel_after = pick(i, 20, 6) == 0 ? 1 + (int)pick(i, 21, 10) : 0;
        cases[i].is_waited_for = submit(&cases[i], engine);
        int first = i >= N_AT_ONCE ? i - N_AT_ONCE : 0;
        if (i % 3 == 2) {
            enum tutti_phase phase = (enum tutti_phase)(i / 3 % N_PHASES);
            atomic_store(&mock->is_held, true);
            n_cancelled[phase] += cancel_in(engine, cases, first, i + 1, phase);
            atomic_store(&mock->is_held, false);
        }
        if (n_cancelled[TUTTI_PHASE_PREEMPTED] < N_PREEMPTED) /* this phase is short */
            n_cancelled[TUTTI_PHASE_PREEMPTED] += cancel_in(engine, cases, first, i + 1,
                                                            TUTTI_PHASE_PREEMPTED);
        if (i >= N_AT_ONCE && cases[first].is_waited_for)
            collect_wait(&cases[first].answer);
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        if (cases[i].is_waited_for) {
            collect_wait(&cases[i].answer);
            check_case(&cases[i], &singles[i], i);
        }
    }
    assert_nothing_held(engine);
    print_message("# cancelled: %d waiting, %d in prefill, %d decoding, %d preempted; %llu preemptions\n",
                  n_cancelled[0], n_cancelled[1], n_cancelled[2], n_cancelled[3],
                  (unsigned long long)engine->stats.now.n_preemptions);
    for (int phase = 0; phase < N_PHASES; phase++)
        assert_true(n_cancelled[phase] > 0);
    assert_true(!drafts || engine->stats.now.n_accepted_model_drafts > 0);
    assert_true(!spills || engine->stats.now.n_host_restored_pages > 0);
    tutti_engine_close(engine);
    mock_model_free(mock);
    mock_model_free(draft);
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&cases[i].answer);
    free(cases);
}

static void requests_cancelled_in_every_phase_leave_nothing(void **state)
{
    (void)state;
    struct case_of *singles = calloc(N_REQUESTS, sizeof *singles);
    assert_non_null(singles);
    ask_singly(singles);
    for (int way = 0; way < 4; way++)
        run_crowd(singles, way & 1, way & 2);
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&singles[i].answer);
    free(singles);
}

/* ---- memory of what is waiting ---- */

enum { N_SCORED = 200, SCORES_BYTES = (N_SCORED + 1) * (int)sizeof(struct sample), N_OWN = 4 };

static bool is_refused(struct collect *c)
{
    collect_wait(c);
    if (c->choices[0].finish != TUTTI_FINISH_ERROR)
        return false;
    assert_int_equal(c->choices[0].error.status, TUTTI_E_BUSY);
    assert_non_null(strstr(c->choices[0].error.text, "log-probabilities of prompts and beams"));
    return true;
}

/* An owner may hold a quarter, and all together the whole. What needs none of it always passes. */
static void log_probabilities_of_waiting_prompts_take_limited_memory(void **state)
{
    (void)state;
    enum { N_CLIENTS = 6, N_EACH = N_OWN + 2 };
    static struct collect c[N_CLIENTS][N_EACH], plain;
    static int32_t ids[N_SCORED];
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = { .kv_bytes = 100 * (uint64_t)PAGE_BYTES, .max_seqs = 4 };
    struct engine_hooks hooks = { .request_bytes = 4 * N_OWN * SCORES_BYTES + 16 };
    tutti_engine *engine = mock_engine(mock, &options, &hooks);
    for (int round = 0; round < 2; round++) { /* what was held is free again */
        atomic_store(&mock->is_held, true);
        for (int i = 0; i < N_CLIENTS; i++) {
            struct tutti_request r = { .ids = ids,
                                       .n_ids = N_SCORED,
                                       .max_tokens = 1,
                                       .owner = (uint64_t)i + 1,
                                       .prompt_logprobs = true };
            tutti_sampling_init(&r.sampling, NULL);
            int n_held = i < 4 ? N_OWN : 0;
            for (int k = 0; k < N_EACH; k++) {
                collect_init(&c[i][k]);
                collect_submit(&c[i][k], engine, &r);
            }
            for (int k = n_held; k < N_EACH; k++)
                assert_true(is_refused(&c[i][k]));
        }
        struct tutti_request r = { .ids = ids, .n_ids = N_SCORED, .max_tokens = 1, .owner = N_CLIENTS };
        tutti_sampling_init(&r.sampling, NULL);
        collect_init(&plain);
        collect_submit(&plain, engine, &r);
        mock_release(mock, engine);
        assert_false(is_refused(&plain));
        collect_clear(&plain);
        for (int i = 0; i < N_CLIENTS; i++) {
            for (int k = 0; k < N_EACH; k++) {
                assert_int_equal(is_refused(&c[i][k]), i >= 4 || k >= N_OWN);
                collect_clear(&c[i][k]);
            }
        }
        assert_nothing_held(engine);
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_of_waiting_prompts_take_limited_memory),
        cmocka_unit_test(requests_cancelled_in_every_phase_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
