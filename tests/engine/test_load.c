/* Hundreds of requests with random settings and random cancels on the demo model, in a pool that is far too small:
 * every one ends, with one last event, and nothing is held in the end. */
#include "support/collect.h"
#include "support/nothing_held.h"
#include "support/questions.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_REQUESTS = 400 };

static uint64_t pick(uint64_t i, uint64_t what, uint64_t n)
{
    return mix64(i * 64 + what) % n;
}

static void add_grammar(struct tutti_request *r, uint64_t i)
{
    static const char *const GRAMMARS[] = { "root ::= [a-z]+ (\" \" [a-z]+)* \".\"",
                                            "root ::= (\"yes\" | \"no\" | [0-9]{1,9}) \"\\n\"?",
                                            "[A-Z][a-z ]{3,40}" };
    uint64_t which = pick(i, 24, 4);
    r->grammar_kind = which == 3   ? TUTTI_GRAMMAR_JSON_OBJECT
                      : which == 2 ? TUTTI_GRAMMAR_PATTERN
                                   : TUTTI_GRAMMAR_GBNF;
    if (which < 3) {
        r->grammar = GRAMMARS[which];
        r->n_grammar_bytes = strlen(GRAMMARS[which]);
    }
}

static void search_beams(struct tutti_request *r)
{
    r->n_beams = 2;
    r->n_choices = 1;
    r->max_tokens = 6;
    r->length_penalty = 1;
    r->n_stop = 0;
    r->top_logprobs = 0;
}

static void make_request(struct question *q, int i)
{
    static const struct tutti_string stops[] = { { ".", 1 }, { " the", 4 }, { "\n\n", 2 } };
    uint64_t k = (uint64_t)i;
    question_make(q, (int)pick(k, 0, N_QUESTIONS), 1 + (int)pick(k, 1, 64));
    struct tutti_request *r = &q->request;
    r->n_choices = pick(k, 2, 5) == 0 ? 1 + (int)pick(k, 3, 4) : 1;
    r->sampling.temperature = (float)pick(k, 4, 20) * 0.1f;
    r->sampling.top_k = pick(k, 5, 2) ? (int)pick(k, 6, 100) : 0;
    r->sampling.top_p = 1 - (float)pick(k, 7, 9) * 0.1f;
    r->sampling.min_p = pick(k, 8, 4) ? 0 : 0.05f;
    r->sampling.repetition_penalty = 1 + (float)pick(k, 9, 5) * 0.1f;
    r->sampling.presence_penalty = (float)pick(k, 10, 4) - 1.5f;
    r->sampling.frequency_penalty = (float)pick(k, 11, 4) * 0.3f;
    r->stop = stops;
    r->n_stop = pick(k, 12, 4);
    r->logprobs = pick(k, 13, 3) == 0;
    r->top_logprobs = r->logprobs ? (int)pick(k, 14, 21) : 0;
    r->ignore_eos = pick(k, 15, 4) != 0; /* long answers, so that pages run out while they grow */
    r->owner = pick(k, 16, 6);
    r->tenant = pick(k, 17, 2);
    r->priority = (int)pick(k, 18, 3) - 1;
    if (pick(k, 19, 4) == 0)
        add_grammar(r, k);
    else if (pick(k, 23, 6) == 0)
        search_beams(r);
}

static void a_random_crowd_ends_and_loses_no_page(void **state)
{
    (void)state;
    struct tutti_error err = { 0 };
    tutti_model *model = NULL;
    tutti_engine *engine = NULL;
    struct tutti_model_info info;
    assert_int_equal(tutti_model_open(&model, TEST_DEMO_MODEL, NULL, &err), TUTTI_OK);
    tutti_model_info(model, &info);
    struct tutti_engine_options options = { .kv_bytes = info.kv_bytes_per_token * 16 * 12,
                                            .max_seqs = 24,
                                            .max_batch_tokens = 48,
                                            .max_queue = N_REQUESTS * 4 };
    assert_int_equal(tutti_engine_open(&engine, model, &options, &err), TUTTI_OK);
    struct collect *all = calloc(N_REQUESTS, sizeof *all);
    struct question *questions = calloc(N_REQUESTS, sizeof *questions);
    for (int i = 0; i < N_REQUESTS; i++) {
        make_request(&questions[i], i);
        collect_init(&all[i]);
        all[i].cancel_after = pick((uint64_t)i, 20, 4) == 0 ? 1 + (int)pick((uint64_t)i, 21, 10) : 0;
        collect_submit(&all[i], engine, &questions[i].request);
        if (i % 10 == 9)
            tutti_engine_cancel(engine, all[i - (int)pick((uint64_t)i, 22, 10)].id);
        if (i % 50 == 0)
            usleep(20000);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&all[i]);
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.n_requests, N_REQUESTS);
    assert_int_equal(stats.n_finished + stats.n_cancelled, N_REQUESTS);
    assert_int_equal(stats.n_failed, 0);
    assert_true(stats.n_cancelled > 0);
    assert_true(stats.n_preemptions > 0);
    assert_int_equal(stats.n_text_waits, 0);
    assert_nothing_held(engine);
    print_message("# %llu steps, %llu preemptions, %llu cancelled\n", (unsigned long long)stats.n_steps,
                  (unsigned long long)stats.n_preemptions, (unsigned long long)stats.n_cancelled);
    tutti_engine_close(engine);
    tutti_model_close(model);
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&all[i]);
    free(questions);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_random_crowd_ends_and_loses_no_page) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
