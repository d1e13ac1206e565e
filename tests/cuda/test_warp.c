/* What the emulator computes for a whole warp at once: sums and maxima against the shuffles that they are on a card, and products of
 * matrices against plain sums of converted numbers. */
#include "cuda/emulator.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/rng.h"

enum { N_ROUNDS = 200, N_WARPS = 3, ROWS = 16, DEPTH = 16, COLUMNS = 8 };

static uint64_t n_drawn;

static uint32_t draw_bits(void)
{
    return (uint32_t)(rng_uniform(11, 2, n_drawn++) * 0x1p32);
}

/* The same bits, or NaN of any kind. */
static bool is_same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* ---- sums and maxima ---- */

struct folded {
    float sum, sum_shuffled, max, max_shuffled;
    uint32_t most, most_shuffled;
};

struct fold_args {
    const float *x;     /* [N_WARPS][32] */
    struct folded *out; /* the same */
    int32_t n;
};

KERNEL(fold, struct fold_args, N_WARPS *WARP)
{
    float x = a.x[thread_id()], sum = x, max = x;
    uint32_t most = f32_bits(x);
    for (int mask = a.n / 2; mask > 0; mask /= 2) {
        uint32_t other = shuffle_xor_u32(most, mask);
        most = other > most ? other : most;
        sum += shuffle_xor_f32(sum, mask);
        max = max_f32(max, shuffle_xor_f32(max, mask));
    }
    a.out[thread_id()] = (struct folded){ .sum = warp_sum_f32(x, a.n),
                                          .sum_shuffled = sum,
                                          .max = warp_max_f32(x, a.n),
                                          .max_shuffled = max,
                                          .most = warp_max_u32(f32_bits(x), a.n),
                                          .most_shuffled = most };
}

static void sums_and_maxima_are_those_of_shuffles(void **state)
{
    (void)state;
    float x[N_WARPS * WARP];
    struct folded out[N_WARPS * WARP];
    struct emulated_grid grid = { .x = 1, .y = 1, .z = 1, .n_threads = N_WARPS * WARP };
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int n = 1; n <= WARP; n *= 2) {
            for (int i = 0; i < N_WARPS * WARP;
                 i++) /* every third round of any floats, with NaNs and infinities */
                x[i] = round % 3 == 0 ? bits_f32(draw_bits()) : (float)(int32_t)draw_bits() * 0x1p-31f;
            struct fold_args args = { .x = x, .out = out, .n = n };
            emulate(&fold_kernel, &grid, &args);
            for (int i = 0; i < N_WARPS * WARP; i++)
                assert_true(is_same(out[i].sum, out[i].sum_shuffled) &&
                            is_same(out[i].max, out[i].max_shuffled) && out[i].most == out[i].most_shuffled);
        }
    }
}

/* ---- products of matrices ---- */

struct mma_args {
    const uint16_t *a, *b; /* [16][16], [16][8] */
    float *acc;            /* [16][8] */
    int32_t is_bf16;
};

/* The operands are laid out as the tables of the PTX ISA say (device.h). */
KERNEL(one_mma, struct mma_args, WARP)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    uint32_t x[4], y[2];
    float acc[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *at = a.a + (g + (i == 1 || i == 3 ? 8 : 0)) * DEPTH + 2 * t + (i >= 2 ? 8 : 0);
        x[i] = (uint32_t)at[0] | (uint32_t)at[1] << 16;
    }
    for (int i = 0; i < 2; i++) {
        const uint16_t *at = a.b + (2 * t + 8 * i) * COLUMNS + g;
        y[i] = (uint32_t)at[0] | (uint32_t)at[COLUMNS] << 16;
    }
    for (int i = 0; i < 4; i++)
        acc[i] = a.acc[(g + (i >= 2 ? 8 : 0)) * COLUMNS + 2 * t + i % 2];
    if (a.is_bf16)
        mma_bf16(acc, x, y);
    else
        mma_half(acc, x, y);
    for (int i = 0; i < 4; i++)
        a.acc[(g + (i >= 2 ? 8 : 0)) * COLUMNS + 2 * t + i % 2] = acc[i];
}

/* is_any: any bits, with NaNs, infinities and subnormal numbers; else from -1 to 1. */
static uint16_t draw_element(bool is_any, bool is_bf16)
{
    uint32_t bits = draw_bits();
    float x = (float)(int32_t)bits * 0x1p-31f;
    return is_any ? (uint16_t)bits : is_bf16 ? float_to_bf16(x) : float_to_half(x);
}

static void a_product_of_matrices_is_the_sum_in_order_of_the_columns(void **state)
{
    bool is_bf16 = *(const bool *)*state;
    uint16_t a[ROWS * DEPTH], b[DEPTH * COLUMNS];
    float acc[ROWS * COLUMNS], want[ROWS * COLUMNS];
    struct emulated_grid grid = { .x = 1, .y = 1, .z = 1, .n_threads = WARP };
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < ROWS * DEPTH; i++)
            a[i] = draw_element(round % 3 == 0, is_bf16);
        for (int i = 0; i < DEPTH * COLUMNS; i++)
            b[i] = draw_element(round % 3 == 0, is_bf16);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            want[i] = acc[i] = (float)(int32_t)draw_bits() * 0x1p-31f;
            for (int k = 0; k < DEPTH; k++) {
                uint16_t of_a = a[i / COLUMNS * DEPTH + k], of_b = b[k * COLUMNS + i % COLUMNS];
                float product = is_bf16 ? bf16_to_float(of_a) * bf16_to_float(of_b)
                                        : half_to_float(of_a) * half_to_float(of_b);
                want[i] = want[i] + product;
            }
        }
        struct mma_args args = { .a = a, .b = b, .acc = acc, .is_bf16 = is_bf16 };
        emulate(&one_mma_kernel, &grid, &args);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            assert_true(is_same(acc[i], want[i]));
    }
}

int main(void)
{
    static bool of_half = false, of_bf16 = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_maxima_are_those_of_shuffles),
        { "a_product_of_halves", a_product_of_matrices_is_the_sum_in_order_of_the_columns, NULL, NULL,
          &of_half },
        { "a_product_of_bfloat16s", a_product_of_matrices_is_the_sum_in_order_of_the_columns, NULL, NULL,
          &of_bf16 },
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
