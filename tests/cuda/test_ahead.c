/* Steps that are submitted before the tokens of the step before are known: every answer has the bits that it has without, for
 * all ways to draw, to end, to join and to leave, with few pages, pages of the prefix cache and pages of the spill file.
 * Argument: the number of ranks, which are threads of this process. */
#include "support/collect.h"
#include "support/opened.h"
#include "support/questions.h"
#include "support/ranks.h"

#include "backend/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The kinds of requests; steps with those from KIND_BEAMS on are waited for. */
enum kind {
    KIND_GREEDY,
    KIND_SEEDED,
    KIND_CHOICES,
    KIND_PENALTIES,
    KIND_STOP,
    KIND_ONE_TOKEN,
    KIND_TWO_TOKENS,
    KIND_GRAMMAR,
    KIND_FLAT, /* with more candidates than a block sorts */
    KIND_TYPICAL,
    KIND_BIAS,
    KIND_CANCELLED,
    KIND_CAPITAL, /* ends by itself */
    KIND_LONG,
    KIND_LONGER,
    KIND_LONGEST,
    KIND_BEAMS,
    KIND_PROMPT,
    KIND_NO_CACHE,
    KIND_NO_ANSWER,
    N_KINDS
};

/* The first round is of the kinds before KIND_BEAMS, the second of all. */
enum { N_REQUESTS = KIND_BEAMS + N_KINDS, N_TOKENS = 12, N_CANCELLED = 5, N_CONTEXT = 256, N_LONG = 70 };

static enum kind kind_of(int i)
{
    return (enum kind)(i < KIND_BEAMS ? i : i - KIND_BEAMS);
}

static const int32_t *long_prompt(enum kind kind)
{
    static int32_t ids[N_KINDS][N_LONG];
    for (int k = 0; k < N_LONG; k++)
        ids[kind][k] = 260 + (int32_t)((uint32_t)(k + 1) * 2654435761u * (uint32_t)(kind + 1) >> 8) % 3000;
    return ids[kind];
}

static void make_request(struct question *q, int i)
{
    static const struct tutti_string STOP = { "e", 1 };
    static const struct tutti_logit_bias BIAS[] = { { 300, 2.5f }, { 310, -4 }, { 300, 1 } };
    static const char GRAMMAR[] = "root ::= [a-z]+ (\" \" [a-z]+)*";
    enum kind kind = kind_of(i);
    question_make(q, kind == KIND_CAPITAL ? 2 : (int)kind, N_TOKENS);
    struct tutti_request *r = &q->request;
    r->logprobs = kind % 2 == 0;
    r->top_logprobs = kind % 4 == 0 ? 3 : 0;
    switch (kind) {
    case KIND_CHOICES:
        r->n_choices = 3;
        r->sampling.temperature = 0.9f;
        break;
    case KIND_PENALTIES:
        r->sampling.repetition_penalty = 1.2f;
        r->sampling.presence_penalty = 0.3f;
        r->sampling.frequency_penalty = 0.2f;
        break;
    case KIND_STOP:
        r->stop = &STOP;
        r->n_stop = 1;
        break;
    case KIND_ONE_TOKEN:
        r->max_tokens = 1;
        break;
    case KIND_TWO_TOKENS:
        r->max_tokens = 2;
        break;
    case KIND_GRAMMAR:
        r->grammar_kind = TUTTI_GRAMMAR_GBNF;
        r->grammar = GRAMMAR;
        r->n_grammar_bytes = sizeof GRAMMAR - 1;
        r->max_tokens = 12;
        break;
    case KIND_LONG:
    case KIND_LONGER:
    case KIND_LONGEST:
        r->messages = NULL;
        r->n_messages = 0;
        r->ids = long_prompt(kind);
        r->n_ids = N_LONG;
        break;
    case KIND_BEAMS:
        r->n_beams = 2;
        r->length_penalty = 1;
        r->top_logprobs = 0;
        r->max_tokens = 8;
        break;
    case KIND_TYPICAL:
        r->sampling.temperature = 1;
        r->sampling.typical_p = 0.8f;
        r->max_tokens = 8;
        break;
    case KIND_FLAT:
        r->sampling.temperature = 100;
        r->sampling.top_p = 0.9999f;
        r->max_tokens = 6;
        break;
    case KIND_PROMPT:
        r->prompt_logprobs = true;
        break;
    case KIND_NO_CACHE:
        r->no_kv_cache = true;
        r->max_tokens = 4;
        break;
    case KIND_NO_ANSWER:
        r->no_answer = true;
        break;
    case KIND_BIAS:
        r->sampling.logit_bias = BIAS;
        r->sampling.n_logit_bias = sizeof BIAS / sizeof *BIAS;
        r->sampling.min_p = 0.05f;
        break;
    default:
        break;
    }
}

static bool are_equal(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static void check_same(const char *how, int i, const struct collect *got, const struct collect *want)
{
    for (int k = 0; k < want->n_choices; k++) {
        const struct collected *a = &got->choices[k], *b = &want->choices[k];
        size_t n_bytes = b->text.n_bytes;
        if (kind_of(i) == KIND_CANCELLED) { /* how far it came is chance */
            n_bytes = a->text.n_bytes < n_bytes ? a->text.n_bytes : n_bytes;
        } else if (a->finish != b->finish || a->text.n_bytes != n_bytes || !are_equal(&a->ids, &b->ids) ||
                   !are_equal(&a->logprob_bits, &b->logprob_bits) || a->beam_score != b->beam_score) {
            fail_msg("%s: request %d, choice %d: finish %d, expected %d; text '%.*s', expected '%.*s'", how,
                     i, k, (int)a->finish, (int)b->finish, (int)a->text.n_bytes, (const char *)a->text.bytes,
                     (int)n_bytes, (const char *)b->text.bytes);
        }
        if (n_bytes > 0 && memcmp(a->text.bytes, b->text.bytes, n_bytes) != 0)
            fail_msg("%s: request %d, choice %d: another text", how, i, k);
    }
    if (!are_equal(&got->prompt_bits, &want->prompt_bits))
        fail_msg("%s: request %d: other log-probabilities of the prompt", how, i);
}

/* Answers all requests, the second round with the prefix cache of the first. */
static void ask(tutti_model *model, const struct tutti_engine_options *options, bool is_ahead,
                struct collect *answers, struct tutti_stats *stats)
{
    const struct engine_hooks hooks = { .never_ahead = !is_ahead };
    static struct question questions[N_REQUESTS];
    tutti_engine *engine = opened_engine(model, options, &hooks);
    for (int begin = 0, end = KIND_BEAMS; begin < N_REQUESTS; begin = end, end = N_REQUESTS) {
        for (int i = begin; i < end; i++) {
            make_request(&questions[i], i);
            collect_init(&answers[i]);
            answers[i].n_choices = questions[i].request.n_choices > 0 ? questions[i].request.n_choices : 1;
            answers[i].engine = engine;
            answers[i].cancel_after = kind_of(i) == KIND_CANCELLED ? N_CANCELLED : 0;
            collect_submit(&answers[i], engine, &questions[i].request);
        }
        for (int i = begin; i < end; i++)
            collect_wait(&answers[i]);
    }
    wait_until_idle(engine, stats);
    tutti_engine_close(engine);
}

static struct collect want[N_REQUESTS];
static tutti_model *model;
static tutti_ranks *ranks; /* NULL: a single process */
static uint64_t page_bytes;

/* Several ranks must exchange without the host. */
static bool can_run_ahead(void)
{
    return !ranks || getenv("TUTTI_TEST_NCCL");
}

static void clear_answers(struct collect *answers)
{
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&answers[i]);
}

static int ask_without(void **state)
{
    (void)state;
    struct tutti_stats stats;
    struct tutti_model_info info;
    model = opened_on_rank(TEST_SHORT_MODEL, ranks);
    tutti_model_info(model, &info);
    page_bytes = info.kv_bytes_per_token * 16;
    ask(model, &(struct tutti_engine_options){ .kv_bytes = 400 * page_bytes, .max_context = N_CONTEXT },
        false, want, &stats);
    assert_int_equal(stats.n_ahead_steps, 0);
    assert_int_equal(stats.n_preemptions, 0);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    clear_answers(want);
    tutti_model_close(model);
    return 0;
}

static struct tutti_stats check(const char *how, struct tutti_engine_options options)
{
    static struct collect got[N_REQUESTS];
    struct tutti_stats stats;
    options.max_context = N_CONTEXT;
    ask(model, &options, true, got, &stats);
    for (int i = 0; i < N_REQUESTS; i++)
        check_same(how, i, &got[i], &want[i]);
    clear_answers(got);
    print_message("# %s: %d of %d steps ahead, %d preemptions\n", how, (int)stats.n_ahead_steps,
                  (int)stats.n_steps, (int)stats.n_preemptions);
    assert_true((stats.n_ahead_steps > 0) == can_run_ahead());
    return stats;
}

static void answers_are_those_without(void **state)
{
    (void)state;
    struct tutti_stats stats = check("together",
                                     (struct tutti_engine_options){ .kv_bytes = 400 * page_bytes });
    assert_int_equal(stats.n_preemptions, 0); /* the host drew nothing */
    assert_int_equal(stats.n_evictions, 0);   /* there are pages for all */
    assert_true(stats.n_cached_tokens > 0);
    assert_true(!can_run_ahead() || stats.n_ahead_steps > stats.n_steps / 4);
}

static void so_are_they_in_small_steps(void **state)
{
    (void)state;
    (void)check("in small steps", (struct tutti_engine_options){
                                      .kv_bytes = 400 * page_bytes, .max_batch_tokens = 7, .max_seqs = 5 });
}

static void so_are_they_with_few_pages(void **state)
{
    (void)state;
    struct tutti_stats stats = check(
        "with few pages", (struct tutti_engine_options){ .kv_bytes = 17 * page_bytes, .max_seqs = 12 });
    assert_true(stats.n_evictions > 0); /* no page was free */
}

static void so_are_they_with_spilled_pages(void **state)
{
    (void)state;
    char folder[] = "/tmp/tutti-ahead-XXXXXX", file[64], queries[16] = "";
    assert_non_null(mkdtemp(folder));
    /* The engine queries a page's copy once in a step; with more queries until it is done, it would never be. */
    if (getenv("TUTTI_STANDIN_QUERIES"))
        snprintf(queries, sizeof queries, "%s", getenv("TUTTI_STANDIN_QUERIES"));
    setenv("TUTTI_STANDIN_QUERIES", "1", 1);
    struct tutti_stats stats = check("with spilled pages",
                                     (struct tutti_engine_options){ .kv_bytes = 17 * page_bytes,
                                                                    .kv_spill_dir = folder,
                                                                    .kv_spill_bytes = 64 << 20,
                                                                    .max_seqs = 12 });
    if (queries[0] != '\0')
        setenv("TUTTI_STANDIN_QUERIES", queries, 1);
    print_message("# %d pages spilled, %d restored\n", (int)stats.n_spilled_pages,
                  (int)stats.n_restored_pages);
    assert_true(stats.n_spilled_pages > 0 && stats.n_restored_pages > 0);
    snprintf(file, sizeof file, "%s/kv-pages", folder);
    unlink(file);
    rmdir(folder);
}

/* The device's sampling, which says of some rows that only the host can sample it. */
static const struct backend_ops *device_ops;
static struct sample_input *submitted;
static int n_submitted, n_sampled;

static bool submit_noted(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs,
                         int n)
{
    submitted = inputs;
    n_submitted = n;
    return device_ops->sample_submit(be, logits, n_vocab, inputs, n);
}

static void leave_some(struct backend *be)
{
    device_ops->sample_wait(be);
    for (int i = 0; i < n_submitted; i++)
        if (++n_sampled % 17 == 0)
            submitted[i].n_out = 0;
}

static void so_are_they_if_the_host_must_sample_some(void **state)
{
    (void)state;
    struct backend *be = model_of(model)->backend;
    static struct backend_ops ops;
    ops = *be->ops;
    device_ops = be->ops;
    ops.sample_submit = submit_noted;
    ops.sample_wait = leave_some;
    be->ops = &ops;
    struct tutti_stats stats = check("with the host",
                                     (struct tutti_engine_options){ .kv_bytes = 400 * page_bytes });
    be->ops = device_ops;
    assert_true(stats.n_preemptions > 1);
}

static bool is_never_done(struct backend *be)
{
    (void)be;
    return false;
}

/* While a step is computed, its masks are awaited: then each step but the first is submitted ahead. */
static void a_grammar_runs_ahead_too(void **state)
{
    (void)state;
    struct backend *be = model_of(model)->backend;
    const struct tutti_engine_options options = { .kv_bytes = 100 * page_bytes, .max_context = N_CONTEXT };
    static struct backend_ops ops;
    struct question question;
    struct collect got;
    struct tutti_stats stats;
    device_ops = be->ops;
    ops = *device_ops;
    ops.step_is_done = is_never_done;
    be->ops = &ops;
    tutti_engine *engine = opened_engine(model, &options, NULL);
    make_request(&question, KIND_GRAMMAR);
    collect_init(&got);
    got.n_choices = 1;
    collect_submit(&got, engine, &question.request);
    collect_wait(&got);
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    be->ops = device_ops;
    check_same("with a grammar", KIND_GRAMMAR, &got, &want[KIND_GRAMMAR]);
    collect_clear(&got);
    print_message("# %d of %d steps ahead\n", (int)stats.n_ahead_steps, (int)stats.n_steps);
    assert_true(stats.n_steps > 4 && stats.n_ahead_steps >= stats.n_steps - 1);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_without),
        cmocka_unit_test(so_are_they_in_small_steps),
        cmocka_unit_test(so_are_they_with_few_pages),
        cmocka_unit_test(so_are_they_with_spilled_pages),
        cmocka_unit_test(so_are_they_if_the_host_must_sample_some),
        cmocka_unit_test(a_grammar_runs_ahead_too),
    };
    const struct CMUnitTest rank_tests[] = {
        cmocka_unit_test(answers_are_those_without),
        cmocka_unit_test(so_are_they_with_few_pages),
        cmocka_unit_test(so_are_they_if_the_host_must_sample_some),
        cmocka_unit_test(a_grammar_runs_ahead_too),
    };
    const struct CMUnitTest host_tests[] = { cmocka_unit_test(answers_are_those_without) };
    return !ranks            ? cmocka_run_group_tests(tests, ask_without, close_model)
           : can_run_ahead() ? cmocka_run_group_tests(rank_tests, ask_without, close_model)
                             : cmocka_run_group_tests(host_tests, ask_without, close_model);
}

static void run_rank(void *arg, struct cluster *cluster)
{
    (void)arg;
    struct tutti_error err = { 0 };
    if (cluster_rank(cluster) == 0) {
        ranks = cluster_handle(cluster);
        int n_failed = run_all();
        if (n_failed != 0)
            exit(n_failed); /* the other ranks may wait for ever */
    } else {
        tutti_model *part = opened_on_rank(TEST_SHORT_MODEL, cluster_handle(cluster));
        if (tutti_model_follow(part, &err) != TUTTI_OK) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        tutti_model_close(part);
    }
    cluster_close(cluster);
}

int main(int argc, char **argv)
{
    engine_set_audit(true);
    if (argc < 2)
        return run_all();
    ranks_run(atoi(argv[1]), 1, false, run_rank, NULL);
    return 0;
}
