/* Models over several ranks, as threads of this process: every family, type and adapter gives what one rank gives, and the same bits
 * whatever else is in a step. */
#include "support/collect.h"
#include "support/family_fixtures.h"
#include "support/mtp_text.h"
#include "support/ranks.h"

#include "cluster/state.h"
#include "engine/run/engine.h"
#include "model/ranks/group.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_IDS = 70 };

/* Of chatglm-6b-tiny's configuration: what a prompt of its ends in. */
enum { GMASK = 101, SOP = 104 };

/* A model, and what rank 0 does with it. */
struct job {
    char path[512];
    struct tutti_model_options options;
    const char *adapter; /* a folder of tests/fixtures/adapters; NULL: none */
    void (*use)(struct job *job, tutti_model *model);
    void *arg;
    int broken_rank; /* which has no such path; -1: none */
    bool is_apart,
        shares_rows; /* ranks send each other what they have; each makes its part even of short sums */

    struct tutti_error err; /* of rank 0 */
    enum tutti_status status;
    uint64_t weight_bytes[CLUSTER_MAX_RANKS], kv_bytes[CLUSTER_MAX_RANKS]; /* of each rank */
    enum tutti_status statuses[CLUSTER_MAX_RANKS];
};

static void run_job(void *arg, struct cluster *cluster)
{
    struct job *job = arg;
    tutti_model *model = NULL;
    struct tutti_error err = { 0 };
    struct tutti_model_info info;
    struct tutti_model_options options = job->options;
    int rank = cluster ? cluster_rank(cluster) : 0;
    options.ranks = cluster_handle(cluster);
    enum tutti_status st = tutti_model_open(&model, rank == job->broken_rank ? "/nowhere" : job->path,
                                            &options, &err);
    if (st == TUTTI_OK && job->adapter) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", job->adapter);
        st = tutti_model_add_adapter(model, "a", path, &err);
    }
    if (st == TUTTI_OK) {
        tutti_model_info(model, &info);
        job->weight_bytes[rank] = info.weight_bytes;
        job->kv_bytes[rank] = info.kv_bytes_per_token;
    }
    if (st == TUTTI_OK && rank > 0)
        st = tutti_model_follow(model, &err);
    else if (st == TUTTI_OK && job->use)
        job->use(job, model);
    job->statuses[rank] = st;
    if (rank == 0) {
        job->status = st;
        job->err = err;
    }
    tutti_model_close(model);
    cluster_close(cluster);
}

static struct job job_of(const char *name)
{
    struct job job = { .options = { .weight_type = "f32", .kv_type = "f32", .n_threads = 1 },
                       .broken_rank = -1 };
    snprintf(job.path, sizeof job.path, TEST_FIXTURES "/%s", name);
    return job;
}

static void run(struct job *job, int n_ranks)
{
    if (n_ranks == 1)
        run_job(job, NULL);
    else
        ranks_run_in(&(struct ranks_setting){ .n_ranks = n_ranks,
                                              .n_groups = 1,
                                              .is_apart = job->is_apart,
                                              .direct_bytes = job->shares_rows ? 64 : 0 },
                     run_job, job);
}

static void must_run(struct job *job, int n_ranks)
{
    run(job, n_ranks);
    if (job->status != TUTTI_OK)
        fail_msg("%s, %d ranks: %s", job->path, n_ranks, job->err.text);
    for (int r = 0; r < n_ranks; r++)
        assert_int_equal(job->statuses[r], TUTTI_OK);
}

/* ---- logits ---- */

struct question {
    struct job job;
    int32_t ids[N_IDS];
    float *logits; /* [N_IDS][n_vocab], the answer */
    int n_vocab;
};

static void ask(struct job *job, tutti_model *model)
{
    struct question *q = job->arg;
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    q->n_vocab = info.n_vocab;
    q->logits = calloc((size_t)N_IDS * (size_t)q->n_vocab, sizeof *q->logits);
    struct tutti_error err = { 0 };
    if (tutti_model_logits(model, q->ids, N_IDS, q->logits, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
}

static struct question question(const char *name, const char *weight_type, const char *kv_type)
{
    struct question q = { .job = job_of(name) };
    q.job.options.weight_type = weight_type;
    q.job.options.kv_type = kv_type;
    q.job.use = ask;
    for (int i = 0; i < N_IDS; i++)
        q.ids[i] = (int32_t)(((uint32_t)i * 2654435761u >> 9) % 97);
    if (strcmp(name, "chatglm-6b-tiny") == 0) { /* what its prompts end in, in the middle */
        q.ids[30] = GMASK;
        q.ids[31] = SOP;
    }
    return q;
}

static void answer(struct question *q, int n_ranks)
{
    q->job.arg = q;
    must_run(&q->job, n_ranks);
}

/* The largest difference, relative to the largest logit of the position. */
static double distance(const struct question *a, const struct question *b)
{
    double worst = 0;
    for (int i = 0; i < N_IDS; i++) {
        double most = 0, difference = 0;
        for (int k = 0; k < a->n_vocab; k++) {
            double x = (double)a->logits[i * a->n_vocab + k], y = (double)b->logits[i * a->n_vocab + k];
            most = fabs(x) > most ? fabs(x) : most;
            difference = fabs(x - y) > difference ? fabs(x - y) : difference;
        }
        worst = difference / most > worst ? difference / most : worst;
    }
    return worst;
}

static bool has_ranks(const char *name, int n_ranks)
{
    struct job job = job_of(name);
    struct model *model = NULL;
    assert_int_equal(model_load(&model, job.path, &job.options, NULL), TUTTI_OK);
    struct split split;
    const struct split_blocks blocks = { 1, 1 };
    bool can = split_make(&split, &model->desc, &blocks, n_ranks, 0, NULL) == TUTTI_OK;
    model_free(model);
    return can;
}

static void compare(const char *name, int n_ranks, const char *weight_type, const char *kv_type, double bound)
{
    struct question alone = question(name, weight_type, kv_type), several = alone;
    answer(&alone, 1);
    answer(&several, n_ranks);
    double found = distance(&alone, &several);
    if (!(found < bound))
        fail_msg("%s, %d ranks, %s: %g of the largest logit away from one rank", name, n_ranks, weight_type,
                 found);
    static const char *const WAYS[] = { "again", "each its rows", "sent", "each its rows, sent" };
    for (int way = 0; way < 4; way++) {
        struct question again = question(name, weight_type, kv_type);
        again.job.shares_rows = way % 2 == 1;
        again.job.is_apart = way >= 2;
        answer(&again, n_ranks);
        if (memcmp(several.logits, again.logits,
                   (size_t)N_IDS * (size_t)several.n_vocab * sizeof *several.logits) != 0)
            fail_msg("%s, %d ranks, %s, %s: other bits", name, n_ranks, weight_type, WAYS[way]);
        free(again.logits);
    }
    free(alone.logits);
    free(several.logits);
}

static void every_family_gives_the_logits_of_one_rank(void **state)
{
    (void)state;
    for (int k = 0; k < N_FAMILY_FIXTURES; k++) {
        const char *name = FAMILY_FIXTURES[k].name;
        int n_done = 0;
        for (int n = 2; n <= 4; n++) {
            if (!has_ranks(name, n))
                continue;
            compare(name, n, "f32", "f32", 1e-5);
            n_done++;
        }
        if ((n_done == 0) != FAMILY_FIXTURES[k].lacks_ranks)
            fail_msg("%s: %d of 2, 3 and 4 ranks fit", name, n_done);
    }
}

/* Blocks are quantized alike, since cuts fall between them; but where sums differ in their last bits, one of the inputs to the next
 * matrix may be rounded to the other side. */
static void every_type_gives_the_logits_of_one_rank(void **state)
{
    (void)state;
    static const char *const PLAIN[] = { "f16", "bf16" };
    static const char *const TYPES[] = { "q8_0", "q4_0", "q4_1", "q5_0", "q5_1" };
    for (size_t i = 0; i < sizeof PLAIN / sizeof *PLAIN; i++)
        compare("llama-tiny", 2, PLAIN[i], "f32", 1e-2);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        compare("llama-tiny", 2, TYPES[i], "f32", 2e-2);
    compare("llama-tiny", 2, "f32", "f16", 3e-3);
    compare("llama-tiny", 2, "f32", "bf16", 2e-2);
    compare("llama-tiny", 2, "f32", "int8", 3e-2);
    compare("chatglm3-tiny", 4, "q8_0", "f32", 2e-2); /* fewer KV heads than ranks */
}

/* ---- multi-token prediction ---- */

enum { N_MIDDLE = 3, N_CHAIN = 3, N_PREDICTED = N_MIDDLE + N_CHAIN };

/* The answer: logits [N_PREDICTED][n_vocab] after steps of 16 rows, then of a chain of predictions. */
struct predictions {
    struct job job;
    int chunk; /* rows of a step: 16 or 64 */
    float *logits;
    int n_vocab;
};

static void predict(struct job *job, tutti_model *model)
{
    enum { N = 64 };
    struct predictions *p = job->arg;
    struct mtp_text text;
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = 3 + i * 37 % 90;
    int n_vocab = p->n_vocab = model_of(model)->desc.n_vocab;
    p->logits = calloc(N_PREDICTED * (size_t)n_vocab, sizeof *p->logits);
    mtp_text_open(&text, model_of(model), ids, N);
    for (int at = 0; at < N; at += p->chunk) {
        mtp_text_step(&text, at, p->chunk);
        if (at + p->chunk < N)
            mtp_text_predict(&text, at + p->chunk, -1, p->logits + at / p->chunk * n_vocab);
    }
    for (int i = 0; i < N_CHAIN; i++) {
        text.ids[N + i] = 5 + i;
        mtp_text_predict(&text, N + i, i == 0 ? -1 : 0, p->logits + (N_MIDDLE + i) * n_vocab);
    }
    model_kv_free(model_of(model), text.kv);
}

static struct predictions predictions(const char *name, int chunk, int n_ranks, int way)
{
    struct predictions p = { .job = job_of(name), .chunk = chunk };
    p.job.options.mtp = true;
    p.job.use = predict;
    p.job.arg = &p;
    p.job.shares_rows = way % 2 == 1;
    p.job.is_apart = way >= 2;
    must_run(&p.job, n_ranks);
    return p;
}

static void multi_token_prediction_gives_the_logits_of_one_rank(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int n_ranks;
    } CASES[] = { { "mtp/glm4-moe", 2 }, { "mtp/deepseek-v3", 2 }, { "mtp/glm4-moe-lite", 5 } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *name = CASES[i].name;
        int n_ranks = CASES[i].n_ranks;
        struct predictions single = predictions(name, 16, 1, 0), several = predictions(name, 16, n_ranks, 0);
        size_t n = N_PREDICTED * (size_t)single.n_vocab;
        float most = 0, difference = 0;
        for (size_t k = 0; k < n; k++) {
            most = fmaxf(most, fabsf(single.logits[k]));
            difference = fmaxf(difference, fabsf(single.logits[k] - several.logits[k]));
        }
        if (!(difference <= 1e-5F * most))
            fail_msg("%s: %g of the largest logit away from one rank", name, (double)(difference / most));
        for (int way = 0; way < 8; way++) {
            struct predictions again = predictions(name, way < 4 ? 16 : 64, n_ranks, way % 4);
            size_t first = way < 4 ? 0 : N_MIDDLE * (size_t)single.n_vocab;
            assert_memory_equal(again.logits + first, several.logits + first,
                                (n - first) * sizeof *again.logits);
            free(again.logits);
        }
        free(single.logits);
        free(several.logits);
    }
}

static void a_rank_holds_its_share(void **state)
{
    (void)state;
    struct job alone = job_of("../../models/demo"), several = alone;
    must_run(&alone, 1);
    must_run(&several, 2);
    for (int r = 0; r < 2; r++) {
        assert_true(several.weight_bytes[r] <
                    alone.weight_bytes[0] * 6 / 10); /* so small a model has large norms */
        assert_int_equal(several.kv_bytes[r], alone.kv_bytes[0] / 2);
    }
}

static void what_cannot_be_is_refused_on_every_rank(void **state)
{
    (void)state;
    static const struct {
        const char *name, *type, *adapter;
        int n_ranks, broken_rank;
        const char *words;
    } CASES[] = {
        { "llama-tiny", "f32", NULL, 3, -1, "heads with" },
        { "llama-tiny", "f32", NULL, 2, 1, "rank 1: /nowhere: no such file or folder" },
        { "llama-tiny", "f32", NULL, 4, 0, "/nowhere: no such file or folder" },
        { "llama-tiny", "f32", "nowhere", 2, -1, "nowhere" },
        { "../../models/demo", "q4_k_m", NULL, 2, -1, "blocks of 256" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct job job = job_of(CASES[i].name);
        job.options.weight_type = CASES[i].type;
        job.adapter = CASES[i].adapter;
        job.broken_rank = CASES[i].broken_rank;
        run(&job, CASES[i].n_ranks);
        assert_int_not_equal(job.status, TUTTI_OK);
        if (!strstr(job.err.text, CASES[i].words))
            fail_msg("found \"%s\", expected \"%s\"", job.err.text, CASES[i].words);
        for (int r = 0; r < CASES[i].n_ranks; r++)
            assert_int_equal(job.statuses[r], job.status);
    }
}

/* The first engine is still the one that a lost rank wakes. */
static void open_twice(struct job *job, tutti_model *model)
{
    struct tutti_error err = { 0 };
    struct tutti_engine_options options = { .kv_bytes = 1 << 20 };
    tutti_engine *first = NULL, *second = NULL;
    (void)job;
    if (tutti_engine_open(&first, model, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    const struct cluster *c = model_of(model)->group->cluster;
    void *woken = c->on_loss_user;
    assert_ptr_equal(woken, first);
    assert_int_equal(tutti_engine_open(&second, model, &options, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "an engine is open on it already"));
    assert_ptr_equal(c->on_loss_user, woken);
    tutti_engine_close(first);
    assert_null(c->on_loss_user);
}

static void a_second_engine_is_refused_and_leaves_the_first_one_alone(void **state)
{
    (void)state;
    struct job job = job_of("llama-tiny");
    job.use = open_twice;
    must_run(&job, 2);
}

/* ---- through the engine ---- */

enum { N_REQUESTS = 8, MAX_PROMPT = 90, N_ANSWER = 20, N_TOP = 2 };

struct talk {
    const char *name;
    struct tutti_engine_options options;
    struct engine_hooks hooks;
    bool one_after_the_other, shares_rows;
    struct collect answers[N_REQUESTS];
    struct tutti_stats stats;
};

/* Half of the prompts begin alike, further than a page. */
static size_t make_prompt(int32_t *ids, const char *name, int number)
{
    size_t n = (size_t)(5 + number * 11);
    for (size_t i = 0; i < n; i++) {
        uint32_t seed = (uint32_t)(i * 2654435761u) ^ (number % 2 && i > 40 ? (uint32_t)number * 40503u : 0);
        ids[i] = (int32_t)((seed >> 9) % 97);
    }
    if (strncmp(name, "chatglm-6b", 10) == 0) {
        ids[n - 2] = GMASK;
        ids[n - 1] = SOP;
    }
    return n;
}

/* Every third request uses the adapter where there is one; one is drawn, the others are greedy. */
static void converse(struct job *job, tutti_model *model)
{
    struct talk *talk = job->arg;
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    struct tutti_engine_options options = talk->options;
    options.kv_bytes *= info.kv_bytes_per_token * 16; /* given in pages of the CPU */
    if (engine_open(&engine, model_of(model), &options, &talk->hooks, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < N_REQUESTS; i++) {
        int32_t ids[MAX_PROMPT];
        struct tutti_request request = { .ids = ids,
                                         .n_ids = make_prompt(ids, talk->name, i),
                                         .max_tokens = N_ANSWER,
                                         .logprobs = true,
                                         .top_logprobs = N_TOP,
                                         .n_choices = i == 3 ? 2 : 1,
                                         .adapter = job->adapter && i % 3 == 0 ? "a" : NULL,
                                         .ignore_eos = true };
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.temperature = i == 5 ? 1 : 0;
        request.sampling.has_seed = true;
        request.sampling.seed = 7;
        collect_init(&talk->answers[i]);
        collect_submit(&talk->answers[i], engine, &request);
        if (talk->one_after_the_other)
            collect_wait(&talk->answers[i]);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&talk->answers[i]);
    wait_until_idle(engine, &talk->stats);
    tutti_engine_close(engine);
}

static void talk_on(struct talk *talk, const char *adapter, int n_ranks)
{
    struct job job = job_of(talk->name);
    job.use = converse;
    job.adapter = adapter;
    job.shares_rows = talk->shares_rows;
    job.arg = talk;
    must_run(&job, n_ranks);
}

static void check_same(const struct talk *a, const struct talk *b, bool same_bits, const char *how)
{
    for (int i = 0; i < N_REQUESTS; i++) {
        for (int k = 0; k < a->answers[i].n_choices; k++) {
            const struct collected *x = &a->answers[i].choices[k], *y = &b->answers[i].choices[k];
            if (x->ids.n != y->ids.n || memcmp(x->ids.ids, y->ids.ids, x->ids.n * sizeof *x->ids.ids) != 0)
                fail_msg("%s, request %d, %s: another answer", a->name, i, how);
            if (same_bits && (x->logprob_bits.n != y->logprob_bits.n ||
                              memcmp(x->logprob_bits.ids, y->logprob_bits.ids,
                                     x->logprob_bits.n * sizeof *x->logprob_bits.ids) != 0))
                fail_msg("%s, request %d, %s: other bits", a->name, i, how);
        }
    }
}

static void forget(struct talk *talk)
{
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&talk->answers[i]);
}

static void answers_are_those_of_one_rank_in_any_company(void **state)
{
    (void)state;
    static const struct {
        const char *name, *adapter;
        int n_ranks;
    } CASES[] = {
        { "llama-tiny", "llama-all", 2 },
        { "llama-tiny-tied", "llama-tied", 2 },
        { "qwen2-tiny", "qwen2", 2 },
        { "qwen3-tiny", "qwen3", 2 },
        { "mistral-tiny", "mistral", 2 },
        { "qwen3-tiny-windows", NULL, 2 },
        { "chatglm3-tiny", "chatglm3", 4 },
        { "glm-4-9b-tiny", "glm-4-9b", 2 },
        { "glm-tiny", "glm", 2 },
        { "glm4-tiny", "glm4", 2 },
        { "gpt2-tiny", "gpt2", 2 },
        { "bloom-tiny", "bloom", 2 },
        { "pangu-tiny", "pangu", 2 },
        { "chatglm-6b-tiny", "chatglm-6b", 2 },
        { "internlm2-tiny", NULL, 2 },
        { "falcon-40b-tiny", NULL, 2 },
        { "falcon-11b-tiny", NULL, 2 },           /* queries of one group on both ranks */
        { "deepseek-v3-tiny", "deepseek-v3", 2 }, /* its adapter changes matrices that every rank has */
        { "deepseek-v2-lite-tiny", "deepseek-v2-lite", 3 },
    };
    uint64_t n_preemptions = 0, n_cached = 0, n_accepted = 0, n_rejected = 0;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *adapter = CASES[i].adapter;
        int n = CASES[i].n_ranks;
        struct talk alone = { .name = CASES[i].name,
                              .options = { .kv_bytes = 64, .no_prefix_cache = true },
                              .one_after_the_other = true };
        struct talk want = alone, got;
        talk_on(&alone, adapter, 1);
        talk_on(&want, adapter, n);
        check_same(&want, &alone, false, "against one rank");

        /* in pieces: layers with a window give pages back */
        got = (struct talk){ .name = CASES[i].name, .options = { .kv_bytes = 200, .max_batch_tokens = 16 } };
        talk_on(&got, adapter, n);
        check_same(&got, &want, true, "together");
        n_cached += got.stats.n_cached_tokens;
        forget(&got);
        got = (struct talk){ .name = CASES[i].name,
                             .options = { .kv_bytes = 9,
                                          .max_slowdown = 1000,
                                          .max_batch_tokens = 32,
                                          .max_lookup_tokens = 4 },
                             .hooks = { .forces_drafts = true },
                             .shares_rows = true };
        talk_on(&got, adapter, n);
        check_same(&got, &want, true, "in a small pool, with drafts");
        n_preemptions += got.stats.n_preemptions;
        n_accepted += got.stats.n_accepted_drafts;
        n_rejected += got.stats.n_rejected_drafts;
        forget(&got);
        forget(&want);
        forget(&alone);
    }
    assert_true(n_preemptions > 0 && n_cached > 0 && n_accepted > 0 && n_rejected > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_logits_of_one_rank),
        cmocka_unit_test(every_type_gives_the_logits_of_one_rank),
        cmocka_unit_test(multi_token_prediction_gives_the_logits_of_one_rank),
        cmocka_unit_test(a_rank_holds_its_share),
        cmocka_unit_test(what_cannot_be_is_refused_on_every_rank),
        cmocka_unit_test(a_second_engine_is_refused_and_leaves_the_first_one_alone),
        cmocka_unit_test(answers_are_those_of_one_rank_in_any_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
