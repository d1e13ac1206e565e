/* The down and up projection of a low-rank update with vec16: the optimized ref/lora.c. Included
 * by a file of one instruction set. */
#include "kernels/vector/vector.h"

enum {
    LORA_CHAINS = 4, /* independent sums, to hide the latency of fma */
    LORA_SIDE = VEC_TOTALS / LORA_CHAINS < LORA_ROWS ? VEC_TOTALS / LORA_CHAINS : LORA_ROWS, /* rows */
};

/* Sixteen factors from number i on; is_half is a compile-time constant. */
INLINE vec16 factors(const void *base, size_t i, bool is_half)
{
    return is_half ? v_load_half((const uint16_t *)base + i) : v_load((const float *)base + i);
}

INLINE vec16 factors_n(const void *base, size_t i, int n, bool is_half)
{
    return is_half ? v_load_half_n((const uint16_t *)base + i, n) : v_load_n((const float *)base + i, n);
}

/* n_chains rows of a from row first on, n apart, with n_rows rows of x. */
INLINE void down_chains(float *const *t, const void *a, const float *const *x, int n_rows, int first,
                        int n_chains, int n, bool is_half)
{
    int whole = n / 16 * 16, rest = n - whole;
    vec16 sum[LORA_SIDE][LORA_CHAINS];
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        UNROLL
        for (int c = 0; c < n_chains; c++)
            sum[r][c] = v_set(0);
    }
    for (int k = 0; k < whole; k += 16) {
        vec16 in[LORA_SIDE];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            in[r] = v_load(x[r] + k);
        UNROLL
        for (int c = 0; c < n_chains; c++) {
            vec16 factor = factors(a, (size_t)(first + c) * (size_t)n + (size_t)k, is_half);
            UNROLL
            for (int r = 0; r < n_rows; r++)
                sum[r][c] = v_fma(factor, in[r], sum[r][c]);
        }
    }
    if (rest > 0) {
        mask16 mask = first_lanes(rest);
        UNROLL
        for (int c = 0; c < n_chains; c++) { /* a lane of 0 * 0 would turn -0 into 0 */
            vec16 last = factors_n(a, (size_t)(first + c) * (size_t)n + (size_t)whole, rest, is_half);
            UNROLL
            for (int r = 0; r < n_rows; r++)
                sum[r][c] = v_select(mask, v_fma(last, v_load_n(x[r] + whole, rest), sum[r][c]), sum[r][c]);
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        UNROLL
        for (int c = 0; c < n_chains; c++)
            t[r][first + c] = v_fold(sum[r][c]);
    }
}

INLINE void down_rows(float *const *t, const void *a, const float *const *x, int n_rows, int rank, int n,
                      bool is_half)
{
    int i = 0;
    for (; i + LORA_CHAINS <= rank; i += LORA_CHAINS)
        down_chains(t, a, x, n_rows, i, LORA_CHAINS, n, is_half);
    for (; i < rank; i++)
        down_chains(t, a, x, n_rows, i, 1, n, is_half);
}

INLINE void down(float *const *t, const void *a, const float *const *x, int n_rows, int rank, int n,
                 bool is_half)
{
    int r = 0;
    for (; LORA_SIDE > 1 && r + LORA_SIDE <= n_rows; r += LORA_SIDE)
        down_rows(t + r, a, x + r, LORA_SIDE, rank, n, is_half);
    for (; LORA_SIDE > 2 && r + 2 <= n_rows; r += 2)
        down_rows(t + r, a, x + r, 2, rank, n, is_half);
    for (; r < n_rows; r++)
        down_rows(t + r, a, x + r, 1, rank, n, is_half);
}

/* LORA_CHAINS runs of sixteen columns from column j on. */
INLINE void up_chains(float *const *y, const void *b, size_t stride, const float *const *t, int n_rows,
                      int rank, int j, bool is_half)
{
    vec16 sum[LORA_SIDE][LORA_CHAINS];
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        UNROLL
        for (int c = 0; c < LORA_CHAINS; c++)
            sum[r][c] = v_set(0);
    }
    for (int i = 0; i < rank; i++) {
        vec16 in[LORA_SIDE];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            in[r] = v_set(t[r][i]);
        UNROLL
        for (int c = 0; c < LORA_CHAINS; c++) {
            vec16 factor = factors(b, (size_t)i * stride + (size_t)(j + 16 * c), is_half);
            UNROLL
            for (int r = 0; r < n_rows; r++)
                sum[r][c] = v_fma(in[r], factor, sum[r][c]);
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        UNROLL
        for (int c = 0; c < LORA_CHAINS; c++)
            v_store(y[r] + j + 16 * c, v_add(v_load(y[r] + j + 16 * c), sum[r][c]));
    }
}

INLINE void up_rows(float *const *y, const void *b, size_t stride, const float *const *t, int n_rows,
                    int rank, int n, bool is_half)
{
    int j = 0;
    for (; j + 16 * LORA_CHAINS <= n; j += 16 * LORA_CHAINS)
        up_chains(y, b, stride, t, n_rows, rank, j, is_half);
    for (; j < n; j += 16) {
        int left = lanes_left(j, n);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            vec16 sum = v_set(0);
            for (int i = 0; i < rank; i++)
                sum = v_fma(v_set(t[r][i]), factors_n(b, (size_t)i * stride + (size_t)j, left, is_half), sum);
            v_store_n(y[r] + j, v_add(v_load_n(y[r] + j, left), sum), left);
        }
    }
}

INLINE void up(float *const *y, const void *b, size_t stride, const float *const *t, int n_rows, int rank,
               int n, bool is_half)
{
    int r = 0;
    for (; LORA_SIDE > 1 && r + LORA_SIDE <= n_rows; r += LORA_SIDE)
        up_rows(y + r, b, stride, t + r, LORA_SIDE, rank, n, is_half);
    for (; LORA_SIDE > 2 && r + 2 <= n_rows; r += 2)
        up_rows(y + r, b, stride, t + r, 2, rank, n, is_half);
    for (; r < n_rows; r++)
        up_rows(y + r, b, stride, t + r, 1, rank, n, is_half);
}

void VARIANT(lora_down)(float *const *t, const float *a, const float *const *x, int n_rows, int rank, int n)
{
    down(t, a, x, n_rows, rank, n, false);
}

void VARIANT(lora_down_half)(float *const *t, const uint16_t *a, const float *const *x, int n_rows, int rank,
                             int n)
{
    down(t, a, x, n_rows, rank, n, true);
}

void VARIANT(lora_up)(float *const *y, const float *b, size_t stride, const float *const *t, int n_rows,
                      int rank, int n)
{
    up(y, b, stride, t, n_rows, rank, n, false);
}

void VARIANT(lora_up_half)(float *const *y, const uint16_t *b, size_t stride, const float *const *t,
                           int n_rows, int rank, int n)
{
    up(y, b, stride, t, n_rows, rank, n, true);
}
