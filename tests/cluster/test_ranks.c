/* Models over several ranks, as threads of this process: every family, type and adapter gives what one rank gives, and the same bits
 * whatever else is in a step. */
#include "support/ranks.h"

#include "engine/engine.h"
#include "model/adapter.h"
#include "model/group.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const NAMES[] = {
    "llama-tiny", "llama-tiny-tied", "mistral-tiny",    "qwen2-tiny",      "qwen2-tiny-yarn",
    "qwen3-tiny", "glm-tiny",        "glm4-tiny",       "glm-4-9b-tiny",   "chatglm3-tiny",
    "gpt2-tiny",  "bloom-tiny",      "bloom-tiny-post", "chatglm-6b-tiny", "pangu-tiny",
};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES, N_IDS = 70 };

/* One question to a model of n_ranks ranks. */
struct question {
    char path[512];
    struct tutti_model_options options;
    const char *adapter; /* a folder; NULL: none */
    int32_t ids[N_IDS];
    float *logits; /* [N_IDS][n_vocab], the answer; NULL: refused */
    int n_vocab;
    uint64_t weight_bytes[CLUSTER_MAX_RANKS], kv_bytes[CLUSTER_MAX_RANKS];
    struct tutti_error err; /* of rank 0 */
    enum tutti_status status;
};

static void ask_rank(void *arg, struct cluster *cluster)
{
    struct question *q = arg;
    struct model *model = NULL;
    struct tutti_error err = { 0 };
    int rank = cluster ? cluster_rank(cluster) : 0;
    struct tutti_model_options options = q->options;
    options.ranks = cluster_handle(cluster);
    enum tutti_status st = model_load(&model, q->path, &options, &err);
    if (st == TUTTI_OK && q->adapter)
        st = model_add_adapter(model, "a", q->adapter, &err);
    if (st == TUTTI_OK) {
        struct tutti_model_info info;
        tutti_model_info(model_handle(model), &info);
        q->weight_bytes[rank] = info.weight_bytes;
        q->kv_bytes[rank] = info.kv_bytes_per_token;
        if (rank == 0)
            q->n_vocab = info.n_vocab;
    }
    if (st == TUTTI_OK && rank > 0) {
        st = model_follow(model, &err);
    } else if (st == TUTTI_OK) {
        q->logits = calloc((size_t)N_IDS * (size_t)q->n_vocab, sizeof *q->logits);
        st = tutti_model_logits(model_handle(model), q->ids, N_IDS, q->logits, &err);
    }
    if (rank == 0) {
        q->status = st;
        q->err = err;
    } else if (st != q->status && q->status == TUTTI_OK && st != TUTTI_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
        abort();
    }
    model_free(model);
    cluster_close(cluster);
}

static struct question question(const char *name)
{
    struct question q = { .options = { .weight_type = "f32", .kv_type = "f32", .n_threads = 1 } };
    snprintf(q.path, sizeof q.path, TEST_FIXTURES "/%s", name);
    for (int i = 0; i < N_IDS; i++)
        q.ids[i] = (int32_t)(((uint32_t)i * 2654435761u >> 9) % 97);
    if (strcmp(name, "chatglm-6b-tiny") == 0) { /* what its prompts end in, in the middle */
        q.ids[30] = 101;
        q.ids[31] = 104;
    }
    return q;
}

static void ask(struct question *q, int n_ranks)
{
    if (n_ranks == 1)
        ask_rank(q, NULL);
    else
        ranks_run(n_ranks, 1, false, ask_rank, q);
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

static void check_answer(const struct question *q, const char *name, int n_ranks)
{
    if (q->status != TUTTI_OK)
        fail_msg("%s, %d ranks: %s", name, n_ranks, q->err.text);
}

static bool has_ranks(const struct question *alone, int n_ranks)
{
    struct model *model = NULL;
    assert_int_equal(model_load(&model, alone->path, &alone->options, NULL), TUTTI_OK);
    struct split split;
    const struct split_blocks blocks = { 1, 1 };
    bool can = split_make(&split, &model->desc, &blocks, n_ranks, 0, NULL) == TUTTI_OK;
    model_free(model);
    return can;
}

static void every_family_gives_the_logits_of_one_rank(void **state)
{
    (void)state;
    for (int k = 0; k < N_NAMES; k++) {
        struct question alone = question(NAMES[k]);
        ask(&alone, 1);
        check_answer(&alone, NAMES[k], 1);
        int n_done = 0;
        for (int n = 2; n <= 4; n++) {
            if (!has_ranks(&alone, n))
                continue;
            struct question several = question(NAMES[k]), again = question(NAMES[k]);
            ask(&several, n);
            ask(&again, n);
            check_answer(&several, NAMES[k], n);
            double found = distance(&alone, &several);
            if (!(found < 1e-5))
                fail_msg("%s, %d ranks: %g of the largest logit away from one rank", NAMES[k], n, found);
            if (memcmp(several.logits, again.logits,
                       (size_t)N_IDS * (size_t)several.n_vocab * sizeof *several.logits) != 0)
                fail_msg("%s, %d ranks: another run, other bits", NAMES[k], n);
            n_done++;
            free(several.logits);
            free(again.logits);
        }
        if (n_done == 0)
            fail_msg("%s: no number of ranks fits", NAMES[k]);
        free(alone.logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_logits_of_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
