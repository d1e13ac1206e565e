/* Every allocation, mapping, thread and lock from the start to the end of a request fails once, in turn: each time a
 * clear error, nothing lost, and the next run works. (Leaks show under the address sanitizer: ./run sanitize.) */
#include "support/collect.h"
#include "support/fault.h"
#include "support/questions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_CALLS = 100000, N_CHOICES = 2, TEXT_BYTES = 128 };

/* Of each choice apart: in which order their pieces come is free, since measured times decide which step verifies drafts. */
typedef char texts[N_CHOICES][TEXT_BYTES];

struct outcome {
    enum tutti_status status;
    struct tutti_error err;
    bool was_accepted;
    int n_last;
    char (*text)[TEXT_BYTES]; /* [N_CHOICES] */
    size_t n_bytes[N_CHOICES];
};

static void note(void *user, const struct tutti_event *event)
{
    struct outcome *outcome = user;
    outcome->n_last += event->is_last;
    if (event->finish == TUTTI_FINISH_ERROR) {
        outcome->err = event->error;
        outcome->status = event->error.status;
    }
    size_t *n = &outcome->n_bytes[event->choice];
    if (*n + event->n_text_bytes < TEXT_BYTES) { /* reserved before: no fault of ours */
        memcpy(outcome->text[event->choice] + *n, event->text, event->n_text_bytes);
        *n += event->n_text_bytes;
    }
}

/* Loads, serves one request, and closes; the n-th call fails. draft: loaded already. */
static void run_once(tutti_model *draft, struct outcome *outcome, texts text, long n)
{
    *outcome = (struct outcome){ .text = text };
    memset(text, 0, sizeof(texts));
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    struct question q;
    question_make(&q, 2, 8); /* What is the capital of France? */
    q.request.n_choices = N_CHOICES;
    q.request.logprobs = true;
    q.request.top_logprobs = 3;
    q.request.prompt_logprobs = true;
    q.request.stop = &(struct tutti_string){ "@@", 2 };
    q.request.n_stop = 1;
    struct tutti_model_options model_options = { .n_threads = 2 };
    struct tutti_engine_options options = {
        .kv_bytes = 1 << 20, .max_seqs = 2, .max_queue = 2, .max_batch_tokens = 16, .max_lookup_tokens = 4
    };
    options.draft = draft;
    fault_arm(n);
    outcome->status = tutti_model_open(&model, TEST_DEMO_MODEL, &model_options, &outcome->err);
    if (outcome->status == TUTTI_OK)
        outcome->status = tutti_engine_open(&engine, model, &options, &outcome->err);
    if (outcome->status == TUTTI_OK) {
        enum tutti_status st = tutti_engine_submit(engine, &q.request, note, outcome, NULL, &outcome->err);
        outcome->was_accepted = st == TUTTI_OK;
        if (st == TUTTI_OK) {
            struct tutti_stats stats;
            wait_until_idle(engine, &stats);
        } else {
            outcome->status = st;
        }
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
}

static void every_failure_is_a_clear_error_and_the_next_run_works(void **state)
{
    (void)state;
    texts want, text;
    struct outcome outcome;
    tutti_model *draft = NULL;
    struct tutti_model_options draft_options = { .n_threads = 2, .weight_type = "q8_0" };
    assert_int_equal(tutti_model_open(&draft, TEST_DEMO_MODEL, &draft_options, NULL), TUTTI_OK);
    run_once(draft, &outcome, want, 0);
    assert_int_equal(outcome.status, TUTTI_OK);
    assert_true(outcome.n_bytes[0] > 0 && outcome.n_bytes[1] > 0);
    long n_runs = 0, n_calls = fault_n_calls();
    const char *step = getenv("TUTTI_FAULT_STEP"); /* a coarser look, for slow machines */
    long stride = step ? atol(step) : 1;
    for (long n = 1; n < MAX_CALLS; n += stride, n_runs++) {
        run_once(draft, &outcome, text, n);
        bool has_hit = fault_has_hit();
        const char *function = fault_function();
        fault_arm(0);
        if (outcome.was_accepted)
            assert_int_equal(outcome.n_last, 1);
        if (!has_hit) {
            assert_int_equal(outcome.status, TUTTI_OK);
            assert_memory_equal(text, want, sizeof want);
            break;
        }
        if (outcome.status == TUTTI_OK)
            assert_memory_equal(text, want, sizeof want); /* something that can be done without */
        else if (outcome.status != TUTTI_E_MEMORY &&
                 !(strcmp(function, "jansson") == 0 &&
                   outcome.status == TUTTI_E_FORMAT)) /* "invalid token" */
            fail_msg("call %ld (%s) failed with status %s: %s", n, function,
                     tutti_status_name(outcome.status), outcome.err.text);
        else
            assert_true(outcome.err.text[0] != '\0');
    }
    assert_true(n_runs * stride >= n_calls / 2);
    print_message("# %ld calls, each made to fail once\n", n_runs * stride);
    run_once(draft, &outcome, text, 0);
    assert_int_equal(outcome.status, TUTTI_OK);
    assert_memory_equal(text, want, sizeof want);
    tutti_model_close(draft);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failure_is_a_clear_error_and_the_next_run_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
