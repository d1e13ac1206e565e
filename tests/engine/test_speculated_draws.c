/* Draft tokens change no distribution and no greedy text. In the suite with few draws and prompts; with TUTTI_LONG=1 in the
 * environment with 200,000 draws and 200 prompts. */
#include "support/collect.h"
#include "support/mock_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int scaled(int few, int many)
{
    return getenv("TUTTI_LONG") ? many : few;
}

/* ---- distributions ---- */

enum { N_CELLS = MOCK_USABLE * MOCK_USABLE, ANSWER = 4, CHOICES = 8 };

/* Counts the last two tokens of answers of four, drawn by seeds from first on. */
static struct tutti_stats count_pairs(const struct tutti_engine_options *options, uint64_t first, int n_draws,
                                      int *counts)
{
    enum { IN_FLIGHT = 16 };
    struct mock_model *mock = mock_model_new(64, false);
    tutti_engine *engine = mock_engine(mock, options, &(struct engine_hooks){ .forces_drafts = true });
    static const int32_t prompt[] = { 5, 6, 7, 8, 5, 6, 7, 8, 5, 6 };
    static const struct tutti_logit_bias bias[] = { { 5, 10 }, { 6, 10 }, { 7, 10 }, { 8, 10 } };
    struct tutti_stats stats;
    for (int i = 0; i < n_draws; i += IN_FLIGHT * CHOICES) {
        struct collect all[IN_FLIGHT];
        for (int k = 0; k < IN_FLIGHT; k++) {
            struct tutti_request request = { .ids = prompt,
                                             .n_ids = sizeof prompt / sizeof *prompt,
                                             .n_choices = CHOICES,
                                             .max_tokens = ANSWER };
            request.sampling = (struct tutti_sampling){ .temperature = 1,
                                                        .top_p = 1,
                                                        .repetition_penalty = 1,
                                                        .has_seed = true,
                                                        .seed = first + (uint64_t)(i + k),
                                                        .logit_bias = bias,
                                                        .n_logit_bias = 4 };
            collect_init(&all[k]);
            collect_submit(&all[k], engine, &request);
        }
        for (int k = 0; k < IN_FLIGHT; k++) {
            collect_wait(&all[k]);
            for (int choice = 0; choice < CHOICES; choice++) {
                const int32_t *ids = all[k].choices[choice].ids.ids;
                counts[ids[ANSWER - 2] * MOCK_USABLE + ids[ANSWER - 1]]++;
            }
            collect_clear(&all[k]);
        }
    }
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    mock_model_free(mock);
    return stats;
}

/* Two samples of the same size by chi-squared; cells of fewer than ten draws are put together. The bound is four standard
 * deviations: seeds are fixed, so it holds always or never. */
static void check_alike(const int *a, const int *b, const char *name)
{
    double chi = 0;
    int n_cells = 0, rest_a = 0, rest_b = 0;
    for (int i = 0; i <= N_CELLS; i++) {
        bool is_rest = i == N_CELLS;
        int x = is_rest ? rest_a : a[i], y = is_rest ? rest_b : b[i];
        if (!is_rest && x + y < 10) {
            rest_a += x;
            rest_b += y;
        } else if (x + y > 0) {
            chi += (double)(x - y) * (x - y) / (x + y);
            n_cells++;
        }
    }
    double bound = n_cells - 1 + 4 * sqrt(2.0 * (n_cells - 1));
    print_message("# %s: chi-squared %.1f of %d cells, at most %.1f\n", name, chi, n_cells, bound);
    if (chi > bound)
        fail_msg("%s: chi-squared %.1f with %d cells, expected at most %.1f", name, chi, n_cells, bound);
}

static void draws_have_the_distribution_of_plain_ones(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int max_lookup_tokens, percent_wrong; /* percent_wrong: -1: no draft model */
    } cases[] = { { "lookup", 3, -1 }, { "draft", 0, 40 }, { "both", 3, 40 } };
    int n_draws = scaled(12800, 200000);
    int *plain = calloc(N_CELLS, sizeof *plain), *speculated = calloc(N_CELLS, sizeof *speculated);
    struct tutti_engine_options options = { .kv_bytes = (uint64_t)4096 * MOCK_PAGE_TOKENS, .max_seqs = 64 };
    count_pairs(&options, 1, n_draws, plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mock_model *draft = cases[i].percent_wrong < 0 ? NULL : mock_model_new(64, false);
        options.max_lookup_tokens = cases[i].max_lookup_tokens;
        options.draft = draft ? model_handle(&draft->model) : NULL;
        if (draft)
            draft->percent_wrong = cases[i].percent_wrong;
        memset(speculated, 0, N_CELLS * sizeof *speculated);
        struct tutti_stats stats = count_pairs(&options, (uint64_t)1000000 * (i + 1), n_draws, speculated);
        print_message("# %s: %llu accepted, %llu rejected\n", cases[i].name,
                      (unsigned long long)stats.n_accepted_drafts,
                      (unsigned long long)stats.n_rejected_drafts);
        assert_true(stats.n_accepted_drafts > (uint64_t)n_draws / 200);
        assert_true(stats.n_rejected_drafts > (uint64_t)n_draws / 200);
        check_alike(plain, speculated, cases[i].name);
        if (draft)
            mock_model_free(draft);
    }
    free(speculated);
    free(plain);
}

/* ---- greedy texts of a model ---- */

static tutti_model *open_model(const char *weight_type)
{
    tutti_model *model = NULL;
    struct tutti_error err = { 0 };
    struct tutti_model_options options = { .n_threads = 2, .weight_type = weight_type };
    if (tutti_model_open(&model, TEST_DEMO_MODEL, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return model;
}

static void ask(struct collect *c, tutti_engine *engine, int i)
{
    static const char *const shapes[] = { "Tell me a story about a fox named Mia who has %d friends.",
                                          "Count from %d to 90.", "What is %d + 17?",
                                          "%d %d %d one two three %d %d %d one two" };
    char text[128];
    int n = i / 4 + 3;
    snprintf(text, sizeof text, shapes[i % 4], n, n, n, n, n, n);
    struct tutti_message message = { "user", text, strlen(text), NULL };
    struct tutti_request request = {
        .messages = &message, .n_messages = 1, .max_tokens = 48, .ignore_eos = i % 5 == 0
    };
    request.sampling = (struct tutti_sampling){ .top_p = 1, .repetition_penalty = 1 };
    collect_init(c);
    collect_submit(c, engine, &request);
}

/* All [n], some of them at the same time. */
static struct tutti_stats ask_all(tutti_model *model, struct tutti_engine_options options,
                                  struct collect *all, int n)
{
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    struct tutti_stats stats;
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    options.kv_bytes = (uint64_t)4000 * 16 * info.kv_bytes_per_token;
    if (engine_open(&engine, model_of(model), &options, &(struct engine_hooks){ .forces_drafts = true },
                    &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++)
        ask(&all[i], engine, i);
    for (int i = 0; i < n; i++)
        collect_wait(&all[i]);
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    return stats;
}

static void greedy_texts_are_the_same(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int max_lookup_tokens, max_seqs;
        bool has_draft;
    } cases[] = {
        { "lookup", 6, 5, false }, { "draft", 0, 5, true }, { "both", 6, 5, true }, { "both", 6, 17, true }
    };
    int n = scaled(16, 200);
    tutti_model *model = open_model(NULL), *draft = open_model("q2_k");
    struct collect *want = calloc((size_t)n, sizeof *want), *got = calloc((size_t)n, sizeof *got);
    uint64_t n_rejected = 0;
    ask_all(model, (struct tutti_engine_options){ .max_seqs = 1 }, want, n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tutti_engine_options options = { .max_seqs = cases[i].max_seqs,
                                                .max_lookup_tokens = cases[i].max_lookup_tokens,
                                                .draft = cases[i].has_draft ? draft : NULL };
        struct tutti_stats stats = ask_all(model, options, got, n);
        for (int k = 0; k < n; k++) {
            const struct collected *a = &got[k].choices[0], *b = &want[k].choices[0];
            assert_int_equal(a->ids.n, b->ids.n);
            assert_memory_equal(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids);
            collect_clear(&got[k]);
        }
        print_message(
            "# %s, %d users: %d prompts, %llu tokens, %llu steps, %llu accepted (%llu the draft model's), "
            "%llu rejected (%llu)\n",
            cases[i].name, cases[i].max_seqs, n, (unsigned long long)stats.n_generated_tokens,
            (unsigned long long)stats.n_steps, (unsigned long long)stats.n_accepted_drafts,
            (unsigned long long)stats.n_accepted_model_drafts, (unsigned long long)stats.n_rejected_drafts,
            (unsigned long long)stats.n_rejected_model_drafts);
        assert_true(stats.n_accepted_drafts > 0);
        n_rejected += stats.n_rejected_drafts;
    }
    assert_true(n_rejected > 0); /* of a single case it is chance: "both" may have few drafts */
    for (int k = 0; k < n; k++)
        collect_clear(&want[k]);
    free(want);
    free(got);
    tutti_model_close(draft);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_have_the_distribution_of_plain_ones),
        cmocka_unit_test(greedy_texts_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
