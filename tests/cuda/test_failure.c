/* A card that fails while requests run: each ends with an error that says so, after a text that is right as far as it goes, and
 * the engine takes no further request. */
#include "cuda/standin_find.h"
#include "support/collect.h"
#include "support/opened.h"
#include "support/questions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_REQUESTS = 3, N_TOKENS = 6, TEXT_BYTES = 256, N_MOMENTS = 24 };

static char answers[N_REQUESTS][TEXT_BYTES];

/* What a run with one failure came to. */
struct run {
    long n_calls; /* of the driver, from the first request on */
    bool has_failed;
    int n_ended_by_error;
};

static atomic_int n_told;
static struct tutti_error told;

static void on_failure(void *user, const struct tutti_error *why)
{
    (void)user;
    told = *why;
    atomic_fetch_add(&n_told, 1);
}

static void check_answer(const struct collect *c, int i, struct run *run)
{
    const struct collected *got = &c->choices[0];
    const char *text = got->text.n_bytes > 0 ? got->text.bytes : "";
    if (got->finish != TUTTI_FINISH_ERROR) {
        assert_int_equal(got->text.n_bytes, strlen(answers[i]));
        assert_memory_equal(text, answers[i], got->text.n_bytes);
        return;
    }
    run->n_ended_by_error++;
    assert_int_equal(got->error.status, TUTTI_E_CLOSED);
    assert_non_null(strstr(got->error.text, "device cuda: "));
    assert_true(got->text.n_bytes <= strlen(answers[i]));
    assert_memory_equal(text, answers[i], got->text.n_bytes);
}

static void check_refusal(tutti_engine *engine, const struct question *q)
{
    struct collect c;
    struct tutti_error err = { 0 };
    collect_init(&c);
    assert_int_equal(tutti_engine_submit(engine, &q->request, collect_event, &c, NULL, &err), TUTTI_E_CLOSED);
    assert_non_null(strstr(err.text, "device cuda: "));
    collect_clear(&c);
}

/* Answers all questions while call number call of function fails (NULL: of any; 0: none). is_first: notes the answers.
 * is_ahead: two steps are in flight; else draft tokens are verified. */
static struct run run_requests(tutti_model *model, const char *function, long call, bool is_ahead,
                               bool is_first)
{
    const struct standin_functions *driver = standin_functions();
    const struct tutti_engine_options options = { .kv_bytes = 4 << 20,
                                                  .max_seqs = 4,
                                                  .max_queue = 4,
                                                  .max_batch_tokens = 32,
                                                  .max_lookup_tokens = is_ahead ? 0 : 2,
                                                  .failed = on_failure };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    struct collect all[N_REQUESTS];
    struct question questions[N_REQUESTS];
    struct run run = { 0 };
    atomic_store(&n_told, 0);
    driver->fail_call(function, call, 719);
    int n = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        struct tutti_error err = { 0 };
        question_make(&questions[i], i, N_TOKENS);
        collect_init(&all[i]);
        all[i].n_choices = 1;
        enum tutti_status st = tutti_engine_submit(engine, &questions[i].request, collect_event, &all[i],
                                                   NULL, &err);
        if (st != TUTTI_OK) { /* the card failed in between */
            assert_int_equal(st, TUTTI_E_CLOSED);
            collect_clear(&all[i]);
            break;
        }
        n++;
    }
    for (int i = 0; i < n; i++) {
        collect_wait(&all[i]);
        if (is_first)
            snprintf(answers[i], TEXT_BYTES, "%.*s", (int)all[i].choices[0].text.n_bytes,
                     (const char *)all[i].choices[0].text.bytes);
        check_answer(&all[i], i, &run);
    }
    run.n_calls = driver->calls(NULL);
    run.has_failed = driver->failed() != NULL;
    if (run.n_ended_by_error > 0) {
        check_refusal(engine, &questions[0]);
        assert_int_equal(atomic_load(&n_told), 1);
        assert_int_equal(told.status, TUTTI_E_IO);
        assert_non_null(strstr(told.text, "(719)"));
    }
    tutti_engine_close(engine);
    driver->fail_call(NULL, 0, 0);
    for (int i = 0; i < n; i++)
        collect_clear(&all[i]);
    return run;
}

static tutti_model *model_on_card(void)
{
    return opened_model(TEST_SHORT_MODEL, NULL, NULL, 1);
}

static void check_moments(bool is_ahead)
{
    tutti_model *model = model_on_card();
    struct run whole = run_requests(model, NULL, 0, is_ahead, !is_ahead);
    assert_int_equal(whole.n_ended_by_error, 0);
    int n_clear = 0;
    for (int i = 0; i < N_MOMENTS; i++) {
        /* Failures stay in the model's backend: each run has one of its own. */
        tutti_model_close(model);
        model = model_on_card();
        long call = 1 + i * (whole.n_calls - 1) / N_MOMENTS;
        struct run run = run_requests(model, NULL, call, is_ahead, false);
        /* The requests share steps as their arrival has it, so a run may have fewer calls than the first. */
        assert_true(run.has_failed || run.n_calls < call);
        n_clear += run.n_ended_by_error > 0;
    }
    print_message("# %ld calls of the driver; %d of %d failures ended requests\n", whole.n_calls, n_clear,
                  N_MOMENTS);
    assert_true(n_clear > N_MOMENTS / 2);
    tutti_model_close(model);
}

static void requests_end_with_the_cards_error(void **state)
{
    (void)state;
    check_moments(false);
    check_moments(true);
}

static void results_that_did_not_come_are_not_used(void **state)
{
    (void)state;
    static const struct {
        const char *function;
        long call;
        bool is_ahead;
    } CASES[] = { { "cuStreamSynchronize", 1 },      { "cuStreamSynchronize", 4 },
                  { "cuMemcpyDtoHAsync_v2", 1 },     { "cuMemcpyDtoHAsync_v2", 3 },
                  { "cuLaunchKernel", 10 },          { "cuMemcpyHtoDAsync_v2", 3 },
                  { "cuCtxSetCurrent", 20 },         { "cuEventSynchronize", 2, true },
                  { "cuEventSynchronize", 9, true }, { "cuEventRecord", 5, true },
                  { "cuEventRecord", 8, true },      { "cuEventRecord", 15, true },
                  { "cuLaunchKernel", 150, true },   { "cuGraphLaunch", 1, true } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (CASES[i].is_ahead && getenv("TUTTI_TEST_DIVISION")) /* there no step is submitted ahead */
            continue;
        tutti_model *model = model_on_card();
        struct run run = run_requests(model, CASES[i].function, CASES[i].call, CASES[i].is_ahead, false);
        assert_true(run.has_failed);
        assert_true(run.n_ended_by_error > 0);
        tutti_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_end_with_the_cards_error), /* notes the answers */
        cmocka_unit_test(results_that_did_not_come_are_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
