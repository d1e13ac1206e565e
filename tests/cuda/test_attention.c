/* Tests of attention on the card: against float64, and the contract that a row's bits depend only on what it sees, not on
 * chunks, other sequences, the kernel, how a tile is cut into units, or what else lies in the pages. */
#include "base/half.h"
#include "cuda/attention_world.h"
#include "kernels/ref/ref.h"

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
static void check_case(const struct world_case *c, int begin, int end, const struct world_run *runs,
                       int n_runs)
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
                    fail_msg("head_dim %d, run %d, element %zu: %a, in run 0 %a", c->head_dim, i, k,
                             (double)y[k], (double)want[k]);
    }
    world_attend_double(w, exact, begin, end);
    /* Weights and queries have 11 bits, with pages of bfloat16 16; and numbers near the middle of two int8, or bfloat16, may be
     * stored as the other. */
    double bound = c->type == DTYPE_F32    ? 3e-6
                   : c->type == DTYPE_F16  ? 2e-3
                   : c->type == DTYPE_BF16 ? 5e-4
                                           : 2e-2,
           worst = 0;
    for (size_t k = 0; k < n_y; k++) {
        double error = fabs(exact[k] - (double)want[k]);
        if (!(error <= bound))
            fail_msg("head_dim %d, element %zu: %g, expected %g", c->head_dim, k, (double)want[k], exact[k]);
        worst = fmax(worst, error);
    }
    print_message("# heads %d/%d, head_dim %d, %s: largest error %.2g\n", c->n_heads, c->n_kv_heads,
                  c->head_dim, dtype_name(c->type), worst);
    free(want);
    free(y);
    free(exact);
    world_free(w);
}

static const struct world_run SHORT_RUNS[] = {
    { 40, false, 8, NEVER, 1000 },
    { 40, true, 8, ALWAYS, 1000 },
    { 1, true, 8, NEVER, 0 },
    { 7, false, 8, ALWAYS, 1000 },
};

static void short_prompts_of_all_shapes(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .type = DTYPE_F16 },
        { .n_heads = 3,
          .n_kv_heads = 1,
          .head_dim = 24,
          .type = DTYPE_F16,
          .rope = ROPE_HALF,
          .has_sinks = true },
        { .n_heads = 3, .n_kv_heads = 3, .head_dim = 40, .type = DTYPE_I8, .rope = ROPE_INTERLEAVED },
        { .n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 64,
          .type = DTYPE_F16,
          .rope = ROPE_2D,
          .has_norms = true },
        { .n_heads = 5, .n_kv_heads = 1, .head_dim = 80, .type = DTYPE_F16, .has_slopes = true },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 96,
          .type = DTYPE_I8,
          .has_slopes = true,
          .has_sinks = true },
        { .n_heads = 16, .n_kv_heads = 1, .head_dim = 128, .type = DTYPE_F16, .rope = ROPE_HALF },
        { .n_heads = 2,
          .n_kv_heads = 2,
          .head_dim = 128,
          .type = DTYPE_I8,
          .has_joint_norms = true,
          .rope = ROPE_HALF },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 256,
          .type = DTYPE_F16,
          .softcap = 5,
          .rope = ROPE_HALF },
        { .n_heads = 20, .n_kv_heads = 1, .head_dim = 16, .type = DTYPE_F16, .window = 11, .first = 3 },
        { .n_heads = 35, .n_kv_heads = 1, .head_dim = 8, .type = DTYPE_I8, .prefix_len = 25 },
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 576, .type = DTYPE_F16 },
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 320, .type = DTYPE_I8, .magnitude = 20 },
        { .n_heads = 4,
          .n_kv_heads = 1,
          .head_dim = 512,
          .type = DTYPE_F16,
          .rope = ROPE_HALF,
          .has_norms = true,
          .keys_are_values = true,
          .norms_values = true },
        { .n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 256,
          .type = DTYPE_BF16,
          .rope = ROPE_HALF,
          .window = 11,
          .has_norms = true,
          .norms_values = true },
        { .n_heads = 6,
          .n_kv_heads = 3,
          .head_dim = 24,
          .type = DTYPE_I8,
          .rope = ROPE_HALF,
          .keys_are_values = true,
          .norms_values = true },
        { .n_heads = 2,
          .n_kv_heads = 2,
          .head_dim = 40,
          .type = DTYPE_F32,
          .rope = ROPE_HALF,
          .has_joint_norms = true,
          .keys_are_values = true },
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .type = DTYPE_BF16 },
        { .n_heads = 3,
          .n_kv_heads = 1,
          .head_dim = 24,
          .type = DTYPE_BF16,
          .rope = ROPE_HALF,
          .has_sinks = true },
        { .n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 64,
          .type = DTYPE_BF16,
          .rope = ROPE_2D,
          .large_key = 1e9f },
        { .n_heads = 5,
          .n_kv_heads = 1,
          .head_dim = 80,
          .type = DTYPE_BF16,
          .has_slopes = true,
          .magnitude = 20 },
        { .n_heads = 16, .n_kv_heads = 1, .head_dim = 128, .type = DTYPE_BF16, .rope = ROPE_HALF },
        { .n_heads = 2,
          .n_kv_heads = 2,
          .head_dim = 128,
          .type = DTYPE_BF16,
          .has_joint_norms = true,
          .rope = ROPE_HALF },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 256,
          .type = DTYPE_BF16,
          .softcap = 5,
          .large_key = 1e30f,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 20, .n_kv_heads = 1, .head_dim = 16, .type = DTYPE_BF16, .window = 11, .first = 3 },
        { .n_heads = 35, .n_kv_heads = 1, .head_dim = 40, .type = DTYPE_BF16, .prefix_len = 25 },
        { .n_heads = 1, .n_kv_heads = 1, .head_dim = 576, .type = DTYPE_BF16 },
        { .n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 24,
          .type = DTYPE_F32,
          .rope = ROPE_2D,
          .has_norms = true },
        { .n_heads = 2,
          .n_kv_heads = 2,
          .head_dim = 40,
          .type = DTYPE_F32,
          .window = 9,
          .softcap = 3,
          .has_sinks = true },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 8,
          .type = DTYPE_F32,
          .prefix_len = 25,
          .has_slopes = true },
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
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 128,
          .type = DTYPE_I8,
          .has_sinks = true,
          .has_slopes = true },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .type = DTYPE_F32, .first = 200 },
        { .n_heads = 4, .n_kv_heads = 1, .head_dim = 40, .type = DTYPE_BF16, .rope = ROPE_HALF },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 128,
          .type = DTYPE_BF16,
          .window = 300,
          .large_key = 1e6f,
          .has_sinks = true,
          .has_slopes = true },
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
        { .n_heads = 3,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_F32,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 20,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_F16,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 3,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 48,
          .type = DTYPE_I8,
          .rope = ROPE_HALF },
        { .n_heads = 33,
          .n_kv_heads = 1,
          .head_dim = 24,
          .n_latent = 8,
          .type = DTYPE_F16,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 5,
          .n_kv_heads = 1,
          .head_dim = 72,
          .n_latent = 64,
          .type = DTYPE_F16,
          .rope = ROPE_HALF,
          .window = 19,
          .softcap = 4,
          .has_sinks = true },
        { .n_heads = 16,
          .n_kv_heads = 1,
          .head_dim = 136,
          .n_latent = 72,
          .type = DTYPE_I8,
          .rope = ROPE_HALF,
          .has_slopes = true,
          .first = 3 },
        { .n_heads = 20,
          .n_kv_heads = 1,
          .head_dim = 576,
          .n_latent = 512,
          .type = DTYPE_F16,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 576,
          .n_latent = 512,
          .type = DTYPE_I8,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 33,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_BF16,
          .rope = ROPE_INTERLEAVED,
          .large_key = 1e8f },
        { .n_heads = 5,
          .n_kv_heads = 1,
          .head_dim = 72,
          .n_latent = 64,
          .type = DTYPE_BF16,
          .rope = ROPE_HALF,
          .window = 19,
          .softcap = 4,
          .has_sinks = true },
        { .n_heads = 20,
          .n_kv_heads = 1,
          .head_dim = 576,
          .n_latent = 512,
          .type = DTYPE_BF16,
          .rope = ROPE_INTERLEAVED },
    };
    static const struct world_run RUNS[] = {
        { 5, false, 1000, NEVER, 10000 },
        { 5, true, 8, ALWAYS, 0 },
        { 1, true, 1, NEVER, 10000, 99 << 10 },
    };
    static const int ENDS[] = { 5, 20, 263, 530 };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct world_run runs[3];
        memcpy(runs, RUNS, sizeof runs);
        if (CASES[i].type == DTYPE_BF16) /* of 576 dimensions one leaf in shared memory, as with the others */
            runs[2].shared_bytes = 132 << 10;
        for (size_t k = 0; k < sizeof ENDS / sizeof *ENDS; k++)
            check_case(&CASES[i], ENDS[k] - 5, ENDS[k], runs, 3);
    }
}

/* On cards whose shared memory is too small, with wider latents than latent.c takes, and of bfloat16 on level 75. */
static void latents_without_matrix_instructions(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 20,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_F16,
          .rope = ROPE_INTERLEAVED },
        { .n_heads = 3,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 48,
          .type = DTYPE_I8,
          .rope = ROPE_HALF,
          .window = 30 },
        { .n_heads = 20,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_BF16,
          .rope = ROPE_INTERLEAVED },
    };
    static const struct world_run RUNS[] = { { 5, false, 1000, NEVER, 10000, 1 },
                                             { 1, true, 1, NEVER, 0, 1, 75 } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_case(&CASES[i], 258, 263, RUNS, 2);
}

/* A row whose keys and values are not finite, in the middle of a tile. */
static void rows_before_a_bad_one_are_the_same(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 40, .type = DTYPE_F16 },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 40, .type = DTYPE_I8 },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 24, .type = DTYPE_F32 },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .type = DTYPE_F16, .window = 5 },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 40, .type = DTYPE_BF16 },
        { .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .type = DTYPE_BF16, .window = 5 },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_BF16,
          .rope = ROPE_HALF,
          .window = 5 },
        { .n_heads = 2,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_F16,
          .rope = ROPE_HALF,
          .window = 5 },
        { .n_heads = 4,
          .n_kv_heads = 1,
          .head_dim = 56,
          .n_latent = 40,
          .type = DTYPE_I8,
          .rope = ROPE_HALF },
    };
    enum { N = 40, BAD = 21 };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int kind = 0; kind < 4; kind++) {
            struct world *w = world_new(&CASES[i]);
            const struct world_run run = { N, kind % 2, 8, kind / 2 == 0 ? ALWAYS : NEVER, 0 };
            int n = world_row_floats(w), n_y = CASES[i].n_heads * world_value_dim(w),
                n_q = CASES[i].n_heads * CASES[i].head_dim;
            float *want = outputs_new(w, N), *y = outputs_new(w, N), bad = kind % 2 ? NAN : 1e30f;
            world_attend(w, want, 0, N, &run);
            for (int d = n_q; d < n; d++)
                w->qkv[BAD * n + d] = bad;
            for (int d = 0; d < CASES[i].head_dim; d++)
                w->latent_kv[BAD * CASES[i].head_dim + d] = bad;
            world_attend(w, y, 0, N, &run);
            for (int r = 0; r < N; r++)
                if (r < BAD || (CASES[i].window > 0 && r >= BAD + CASES[i].window))
                    assert_memory_equal(y + r * n_y, want + r * n_y, (size_t)n_y * sizeof *y);
                else if (CASES[i].type == DTYPE_F16 || kind % 2)
                    assert_false(isfinite(y[r * n_y]));
            free(want);
            free(y);
            world_free(w);
        }
}

/* Keys beyond float16's range are infinite. Where they bring all scores to -infinity, nothing is left to be weighted, with a sink
 * or without: no finite answer may follow. Pages of bfloat16 hold such keys. */
static void keys_beyond_float16_give_no_finite_answer_unless_pages_hold_them(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 4, .n_kv_heads = 2, .head_dim = 40, .has_sinks = true },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 128, .window = 70, .has_sinks = true },
        { .n_heads = 3, .n_kv_heads = 1, .head_dim = 56, .n_latent = 40, .has_sinks = true },
    };
    static const struct world_run RUNS[] = {
        { 300, false, 8, ALWAYS, 1000 },
        { 300, true, 1000, NEVER, 1000 },
        { 300, true, 1000, NEVER, 1000, .shared_bytes = 1, .level = 75 },
    };
    static const enum dtype TYPES[] = { DTYPE_F16, DTYPE_BF16 };
    enum { N = 300 };
    for (size_t i = 0; i < 3 * 3 * 2; i++) {
        struct world_case c = CASES[i % 3];
        c.type = TYPES[i / 9];
        struct world *w = world_new(&c);
        int n = world_row_floats(w), n_q = c.n_heads * c.head_dim, n_y = c.n_heads * world_value_dim(w);
        float *y = outputs_new(w, N);
        for (int r = 0; r < N; r++) {
            for (int d = 0; d < n_q + c.n_kv_heads * c.head_dim && c.n_latent == 0; d++)
                w->qkv[r * n + d] = d < n_q ? -1 : 7e4f;
            for (int d = 0; d < c.n_heads * w->q_dim; d++)
                w->latent_q[r * c.n_heads * w->q_dim + d] = -1;
            for (int d = c.n_latent; d < c.head_dim; d++)
                w->latent_kv[r * c.head_dim + d] = 7e4f;
        }
        world_attend(w, y, 0, N, &RUNS[i / 3 % 3]);
        for (int k = 0; k < N * n_y; k++)
            assert_int_equal(isfinite(y[k]) != 0, c.type == DTYPE_BF16);
        free(y);
        world_free(w);
    }
}

static float stored_float(enum dtype type, float x)
{
    return type == DTYPE_BF16 ? bf16_to_float(float_to_bf16(x)) : x;
}

/* Attention of the last of n rows by the reference kernels, whose keys are transposed. */
static void attend_by_reference(const struct world *w, float *y, int n, int head)
{
    const struct world_case *c = &w->c;
    int hd = c->head_dim, kv = head / (c->n_heads / c->n_kv_heads), n_row = world_row_floats(w),
        n_pages = (n + 15) / 16;
    size_t page_floats = (size_t)(2 * 16 * hd);
    float *pages = calloc((size_t)n_pages, page_floats * sizeof *pages),
          *q = malloc(sizeof(float) * (size_t)hd);
    int32_t table[WORLD_PAGES];
    for (int p = 0; p < n_pages; p++)
        table[p] = p;
    for (int t = 0; t < n; t++)
        for (int d = 0; d < hd; d++) {
            const float *row = w->qkv + (size_t)t * (size_t)n_row;
            float *page = pages + (size_t)(t / 16) * page_floats;
            page[d * 16 + t % 16] = stored_float(c->type, row[(c->n_heads + kv) * hd + d]);
            page[16 * hd + t % 16 * hd + d] = stored_float(c->type,
                                                           row[(c->n_heads + c->n_kv_heads + kv) * hd + d]);
        }
    for (int d = 0; d < hd; d++)
        q[d] = w->qkv[(size_t)(n - 1) * (size_t)n_row + (size_t)(head * hd + d)] * w->shape.scale;
    const struct attention_view view = { .end = n,
                                         .pos = n - 1,
                                         .slope = c->has_slopes ? w->slopes[head] : 0 };
    const struct attention_work work = { .q = q,
                                         .views = &view,
                                         .n_queries = 1,
                                         .head_dim = hd,
                                         .softcap = c->softcap,
                                         .base = (const uint8_t *)pages,
                                         .page_bytes = page_floats * sizeof(float),
                                         .values_offset = (size_t)(16 * hd) * sizeof(float),
                                         .page_table = table };
    float max, total = 0, more_max, more_total, o[CUDA_MAX_HEAD_DIM], more[CUDA_MAX_HEAD_DIM];
    const struct attention_sums into = { &max, &total, o }, from = { &more_max, &more_total, more };
    for (int block = 0; block * ATTENTION_BLOCK < n; block++) {
        attention_f32_ref(block == 0 ? &into : &from, &work, block);
        if (block > 0)
            attention_merge_ref(&into, &from, 1, hd);
    }
    divide_ref(y, o, c->has_sinks ? total + exp_ref(w->sinks[head] - max) : total, hd);
    free(pages);
    free(q);
}

/* Of bfloat16 on level 75. */
static void products_without_matrix_instructions_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    static const struct world_case CASES[] = {
        { .n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 24,
          .type = DTYPE_F32,
          .has_sinks = true,
          .has_slopes = true },
        { .n_heads = 2, .n_kv_heads = 1, .head_dim = 80, .type = DTYPE_F32, .softcap = 7 },
        { .n_heads = 4,
          .n_kv_heads = 2,
          .head_dim = 24,
          .type = DTYPE_BF16,
          .large_key = 1e7f,
          .has_sinks = true,
          .has_slopes = true },
    };
    static const int ENDS[] = { 1, 40, 257, 600 };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (size_t k = 0; k < sizeof ENDS / sizeof *ENDS; k++) {
            struct world *w = world_new(&CASES[i]);
            const struct world_run run = { 1, true, 1000, NEVER, k % 2 ? 10000 : 0, .level = 75 };
            int hd = CASES[i].head_dim;
            float *y = outputs_new(w, 1), want[CUDA_MAX_HEAD_DIM];
            world_store(w, 1, 0, ENDS[k] - 1);
            world_attend(w, y, ENDS[k] - 1, ENDS[k], &run);
            for (int h = 0; h < CASES[i].n_heads; h++) {
                attend_by_reference(w, want, ENDS[k], h);
                assert_memory_equal(y + h * hd, want, (size_t)hd * sizeof *y);
            }
            free(y);
            world_free(w);
        }
}

/* Random steps: each block of each tile is in one unit, and the units fit their room. */
static void units_cover_every_block_once(void **state)
{
    (void)state;
    enum { MAX_ROWS = 60, MAX_BLOCKS = 500 };
    unsigned seed = 1;
    for (int i = 0; i < 3000; i++) {
        int32_t positions[MAX_ROWS], seqs[MAX_ROWS], n_seqs = 0, n_rows = 0;
        int limit = 1 + rand_r(&seed) % 100000;
        while (n_rows < MAX_ROWS && (n_rows == 0 || rand_r(&seed) % 8)) {
            int pos = rand_r(&seed) % limit;
            for (int k = rand_r(&seed) % 3 ? 1 : rand_r(&seed) % 40; k > 0 && n_rows < MAX_ROWS; k--, pos++) {
                positions[n_rows] = pos;
                seqs[n_rows++] = n_seqs;
            }
            n_seqs++;
        }
        static const int HEADS[][2] = { { 1, 1 }, { 32, 2 }, { 32, 32 }, { 20, 1 }, { 6, 2 } };
        const int *heads = HEADS[rand_r(&seed) % 5];
        const struct attention_shape shape = { .n_heads = heads[0],
                                               .n_kv_heads = heads[1],
                                               .head_dim = 64,
                                               .n_latent = heads[1] == 1 && rand_r(&seed) % 2 ? 56 : 0,
                                               .window = rand_r(&seed) % 2 ? 1 + rand_r(&seed) % 2000 : 0 };
        const struct attention_limits limits = { 1 + rand_r(&seed) % 400, rand_r(&seed) % 2 ? 50 : 0,
                                                 rand_r(&seed) % 100000 };
        const struct step step = { .n_rows = n_rows, .n_seqs = n_seqs, .positions = positions, .seqs = seqs };
        int room = attention_plan_units(&shape, &limits, n_rows), seen[MAX_ROWS][MAX_BLOCKS] = { 0 };
        struct attention_plan *plans[2];
        for (int k = 0; k < 2; k++)
            plans[k] = malloc(sizeof **plans + (size_t)room * sizeof *plans[k]->units);
        attention_plan_make(plans[0], plans[1], &shape, &limits, &step);
        for (int k = 0; k < 2; k++) {
            assert_true(plans[k]->n_units <= room);
            for (int u = 0; u < plans[k]->n_units; u++) {
                const struct attention_unit *unit = &plans[k]->units[u];
                assert_true(unit->slot >= 0 || unit->n_blocks == unit->n_tile_blocks);
                for (int r = unit->row; r < unit->row + unit->n_rows; r++)
                    for (int b = unit->first_block; b < unit->first_block + unit->n_blocks; b++)
                        seen[r][b]++;
            }
            free(plans[k]);
        }
        for (int r = 0; r < n_rows; r++) {
            int begin = shape.window > 0 && positions[r] >= shape.window ? positions[r] - shape.window + 1
                                                                         : 0;
            for (int b = 0; b < MAX_BLOCKS; b++) {
                assert_true(seen[r][b] <= 1);
                if (b >= begin / CUDA_ATTENTION_BLOCK && b <= positions[r] / CUDA_ATTENTION_BLOCK)
                    assert_int_equal(seen[r][b], 1);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prompts_of_all_shapes),
        cmocka_unit_test(long_contexts_are_cut_anywhere),
        cmocka_unit_test(latents),
        cmocka_unit_test(latents_without_matrix_instructions),
        cmocka_unit_test(rows_before_a_bad_one_are_the_same),
        cmocka_unit_test(keys_beyond_float16_give_no_finite_answer_unless_pages_hold_them),
        cmocka_unit_test(products_without_matrix_instructions_have_the_bits_of_the_reference),
        cmocka_unit_test(units_cover_every_block_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
