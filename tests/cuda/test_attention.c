/* Tests of attention on the card: against float64, and the contract that a row's bits depend on what it sees alone, not on
 * chunks, other sequences, the kernel, how a tile is cut into units, or what else lies in the pages. */
#include "cuda/attention_world.h"
#include "kernels/variants.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NEVER = 0, ALWAYS = 1 };

static float *outputs_new(const struct world *w, int n)
{
    return malloc((size_t)n * (size_t)(w->c.n_heads * world_value_dim(w)) * sizeof(float));
}

/* Rows begin..end - 1 of a case, in each way; the rows before them are stored. */
static void check_case(const struct world_case *c, int begin, int end, const struct world_run *runs, int n_runs)
{
    struct world *w = world_new(c);
    int n = end - begin;
    size_t n_y = (size_t)n * (size_t)(c->n_heads * world_value_dim(w));
    float *want = outputs_new(w, n), *y = outputs_new(w, n);
    double *exact = malloc(n_y * sizeof *exact);
    if (begin > 0)
        world_store(w, 1, 0, begin);
    for (int i = 0; i < n_runs; i++) {
        world_attend(w, i == 0 ? want : y, begin, end, &runs[i]);
        if (i > 0 && memcmp(y, want, n_y * sizeof *y) != 0)
            for (size_t k = 0; k < n_y; k++)
                if (memcmp(&y[k], &want[k], sizeof *y) != 0)
                    fail_msg("head_dim %d, run %d, element %zu: %a, in run 0 %a", c->head_dim, i, k, (double)y[k], (double)want[k]);
    }
    world_attend_double(w, exact, begin, end);
    /* Weights and queries have 11 bits, and int8 that are near the middle of two may be stored as the other. */
    double bound = c->type == DTYPE_F32 ? 3e-6 : c->type == DTYPE_F16 ? 2e-3 : 2e-2, worst = 0;
    for (size_t k = 0; k < n_y; k++) {
        double error = fabs(exact[k] - (double)want[k]);
        if (!(error <= bound))
            fail_msg("head_dim %d, element %zu: %g, expected %g", c->head_dim, k, (double)want[k], exact[k]);
        worst = fmax(worst, error);
    }
    print_message("# heads %d/%d, head_dim %d, %s: largest error %.2g\n", c->n_heads, c->n_kv_heads, c->head_dim,
                  dtype_name(c->type), worst);
    free(want);
    free(y);
    free(exact);
    world_free(w);
}

static const struct world_run SHORT_RUNS[] = {
    { 40, false, 8, NEVER, 1000 }, { 40, true, 8, ALWAYS, 1000 }, { 1, true, 8, NEVER, 0 }, { 7, false, 8, ALWAYS, 1000 },
};

static void short_prompts_of_all_shapes(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .type = DTYPE_F16 },
        { .n_heads = 3, .n_kv_heads = 1, .head_dim = 24, .type = DTYPE_F16, .rope = ROPE_HALF, .has_sinks = true },
        { .n_heads = 3, .n_kv_heads = 3, .head_dim = 40, .type = DTYPE_I8, .rope = ROPE_INTERLEAVED },
        { .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .type = DTYPE_F16, .rope = ROPE_2D, .has_norms = true },
        { .n_heads = 5, .n_kv_heads = 1, .head_dim = 80, .type = DTYPE_F16, .has_slopes = true },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 96, .type = DTYPE_I8, .has_slopes = true, .has_sinks = true },
        { .n_heads = 16, .n_kv_heads = 1, .head_dim = 128, .type = DTYPE_F16, .rope = ROPE_HALF },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 128, .type = DTYPE_I8, .has_joint_norms = true, .rope = ROPE_HALF },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 256, .type = DTYPE_F16, .softcap = 5, .rope = ROPE_HALF },
        { .n_heads = 20, .n_kv_heads = 1, .head_dim = 16, .type = DTYPE_F16, .window = 11, .first = 3 },
        { .n_heads = 35, .n_kv_heads = 1, .head_dim = 8, .type = DTYPE_I8, .prefix_len = 25 },
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 576, .type = DTYPE_F16 },
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 320, .type = DTYPE_I8, .magnitude = 20 },
        { .n_heads = 4, .n_kv_heads = 2, .head_dim = 24, .type = DTYPE_F32, .rope = ROPE_2D, .has_norms = true },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 40, .type = DTYPE_F32, .window = 9, .softcap = 3, .has_sinks = true },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .type = DTYPE_F32, .prefix_len = 25, .has_slopes = true },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct world_run runs[4];
        memcpy(runs, SHORT_RUNS, sizeof runs);
        for (int k = 0; k < 4; k++) /* a prefix is never cut */
            runs[k].chunk = runs[k].chunk < CASES[i].prefix_len ? 40 : runs[k].chunk;
        check_case(&CASES[i], 0, 40, runs, 4);
    }
}

/* The last rows of contexts whose ends are near those of pages and blocks. */
static void long_contexts_are_cut_anywhere(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 4, .n_kv_heads = 1, .head_dim = 40, .type = DTYPE_F16, .rope = ROPE_HALF },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .type = DTYPE_F16, .window = 300 },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 128, .type = DTYPE_I8, .has_sinks = true, .has_slopes = true },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .type = DTYPE_F32, .first = 200 },
    };
    static const int ENDS[] = { 1, 15, 16, 17, 65, 255, 256, 257, 513, 700 };
    static const struct world_run RUNS[] = {
        { 6, false, 1000, NEVER, 10000 }, /* cut into single blocks */
        { 6, true, 8, ALWAYS, 0 },        /* each warp by itself */
        { 1, false, 1, NEVER, 10000 },    /* cut into few units, or not at all */
        { 4, true, 3, NEVER, 40 },        /* not all tiles find slots */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (size_t k = 0; k < sizeof ENDS / sizeof *ENDS; k++)
            check_case(&CASES[i], ENDS[k] > 6 ? ENDS[k] - 6 : 0, ENDS[k], RUNS, 4);
}

static void latents(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 3, .n_kv_heads = 1, .head_dim = 56, .n_latent = 40, .type = DTYPE_F32, .rope = ROPE_INTERLEAVED },
        { .n_heads = 20, .n_kv_heads = 1, .head_dim = 56, .n_latent = 40, .type = DTYPE_F16, .rope = ROPE_INTERLEAVED },
        { .n_heads = 3, .n_kv_heads = 1, .head_dim = 56, .n_latent = 48, .type = DTYPE_I8, .rope = ROPE_HALF },
        { .n_heads = 33, .n_kv_heads = 1, .head_dim = 24, .n_latent = 8, .type = DTYPE_F16, .rope = ROPE_INTERLEAVED },
        { .n_heads = 5, .n_kv_heads = 1, .head_dim = 72, .n_latent = 64, .type = DTYPE_F16, .rope = ROPE_HALF, .window = 19,
          .softcap = 4, .has_sinks = true },
        { .n_heads = 16, .n_kv_heads = 1, .head_dim = 136, .n_latent = 72, .type = DTYPE_I8, .rope = ROPE_HALF,
          .has_slopes = true, .first = 3 },
        { .n_heads = 20, .n_kv_heads = 1, .head_dim = 576, .n_latent = 512, .type = DTYPE_F16, .rope = ROPE_INTERLEAVED },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 576, .n_latent = 512, .type = DTYPE_I8, .rope = ROPE_INTERLEAVED },
    };
    static const struct world_run RUNS[] = {
        { 5, false, 1000, NEVER, 10000 },
        { 5, true, 8, ALWAYS, 0 },
        { 1, true, 1, NEVER, 10000, 99 << 10 },
    };
    static const int ENDS[] = { 5, 20, 263, 530 };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (size_t k = 0; k < sizeof ENDS / sizeof *ENDS; k++)
            check_case(&CASES[i], ENDS[k] - 5, ENDS[k], RUNS, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prompts_of_all_shapes),
        cmocka_unit_test(long_contexts_are_cut_anywhere),
        cmocka_unit_test(latents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
