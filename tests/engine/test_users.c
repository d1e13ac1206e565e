/* 64 concurrent users of one model of each kind: each gets the tokens and log-probabilities, bit for bit, of the same request as
 * the only one. Half of them draw their tokens; three quarters share a prompt's beginning with others. */
#include "support/collect.h"
#include "support/on_card.h"
#include "support/opened.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_USERS = 64, MAX_PROMPT = 60, N_ANSWER = 24, N_TOP = 3 };
/* In emulation: prompts and answers still pass the end of a page. */
enum { MAX_PROMPT_ON_CARD = 20, N_ANSWER_ON_CARD = 4 };

/* Of chatglm-6b-tiny's configuration: what a prompt of its ends in. */
enum { GMASK = 101, SOP = 104 };

static const struct user_model {
    const char *name, *weight_type, *kv_type;
    bool is_on_card; /* tried on a card, too: one model of each kind */
} MODELS[] = {
    { "bloom-tiny", "f16", "f16", true },             /* as many KV heads as heads, ALiBi */
    { "chatglm3-tiny", "q4_0", "f16", true },         /* grouped queries */
    { "gemma3-tiny", "q8_0", "bf16", true },          /* windows */
    { "chatglm-6b-tiny", "bf16", "f16", true },       /* bidirectional prefixes */
    { "qwen3-moe-tiny", "q4_0", "f32", true },        /* experts */
    { "gpt-oss-tiny-mxfp4", NULL, "f16", true },      /* sinks, windows, experts */
    { "deepseek-v2-lite-tiny", "q8_0", "f16", true }, /* latent attention, experts */
    /* Which experts a step reads depends on all of its rows; what a row gets from them does not. */
    { "mixtral-tiny", "f32", "f32", false },
    { "qwen2-moe-tiny", "q8_0", "f32", false },
    { "glm4-moe-tiny", "f32", "f32", false },
    { "glm4-moe-tiny", "bf16", "f32", false },
    { "deepseek-v3-tiny", "f32", "f32", false },
    { "gpt-oss-tiny", "q8_0", "f32", false },
    { "gemma4-moe-tiny", "q8_0", "f16",
      true }, /* heads that differ by layer, keys as values, parallel experts */
};

static size_t make_prompt(int32_t *ids, const char *name, int user)
{
    bool has_prefix = strcmp(name, "chatglm-6b-tiny") == 0;
    size_t n = (size_t)(1 + user * 37 % (on_card() ? MAX_PROMPT_ON_CARD : MAX_PROMPT));
    n = has_prefix && n < 2 ? 2 : n;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(((uint32_t)(i * 2654435761u) ^ (uint32_t)(user / 4) * 40503u) >> 9) % 97;
    if (has_prefix) {
        ids[n - 2] = GMASK;
        ids[n - 1] = SOP;
    }
    return n;
}

/* On a card half of the users, of both ways to choose tokens, are compared with the only one. */
static bool is_compared(int user)
{
    return !on_card() || user % 4 < 2;
}

/* Returns the number of steps. */
static uint64_t ask_users(struct collect *answers, const struct user_model *m, bool is_together)
{
    static int32_t ids[N_USERS][MAX_PROMPT];
    tutti_model *model = opened_model(m->name, m->weight_type, m->kv_type, is_together ? 2 : 1);
    /* Prompts are computed at once, so that the users decode together. */
    struct tutti_engine_options options = { .no_prefix_cache = true, .max_slowdown = 1000 };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    for (int i = 0; i < N_USERS; i++) {
        struct tutti_request request = { .ids = ids[i],
                                         .n_ids = make_prompt(ids[i], m->name, i),
                                         .max_tokens = on_card() ? N_ANSWER_ON_CARD : N_ANSWER,
                                         .logprobs = true,
                                         .top_logprobs = N_TOP,
                                         .ignore_eos = true };
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.temperature = i % 2 == 0 ? 0 : 1;
        request.sampling.has_seed = true;
        request.sampling.seed = (uint64_t)i;
        collect_init(&answers[i]);
        if (!is_together && !is_compared(i))
            continue;
        collect_submit(&answers[i], engine, &request);
        if (!is_together)
            collect_wait(&answers[i]);
    }
    for (int i = 0; is_together && i < N_USERS; i++)
        collect_wait(&answers[i]);
    struct tutti_stats stats;
    tutti_engine_stats(engine, &stats);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return stats.n_steps;
}

static void check_same(const struct user_model *m, int user, const struct ids *got, const struct ids *want)
{
    if (got->n != want->n || memcmp(got->ids, want->ids, want->n * sizeof *want->ids) != 0)
        fail_msg("%s, %s, %s pages, user %d: another answer than as the only one", m->name,
                 m->weight_type ? m->weight_type : "own weights", m->kv_type, user);
}

static void sixty_four_users_have_the_bits_of_one(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof MODELS / sizeof *MODELS; k++) {
        static struct collect single[N_USERS], together[N_USERS];
        const struct user_model *m = &MODELS[k];
        if (on_card() && !m->is_on_card)
            continue;
        uint64_t n_single = ask_users(single, m, false), n_together = ask_users(together, m, true);
        if (on_card()) /* where a step takes longer than submitting all requests */
            assert_in_range(n_together, 1, n_single / 4);
        for (int i = 0; i < N_USERS; i++) {
            if (is_compared(i)) {
                check_same(m, i, &together[i].choices[0].ids, &single[i].choices[0].ids);
                check_same(m, i, &together[i].choices[0].logprob_bits, &single[i].choices[0].logprob_bits);
            }
            collect_clear(&single[i]);
            collect_clear(&together[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixty_four_users_have_the_bits_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
