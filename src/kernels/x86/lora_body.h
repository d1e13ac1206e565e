/* The two halves of a low-rank update over vec16: the twin of ref/lora.c. Included by a file of one instruction set. */
#include "kernels/x86/x86.h"

enum { LORA_CHAINS = 4 }; /* sums side by side, since one fma waits for the one before it */

/* Sixteen factors from number i on; is_half is known where this is inlined. */
INLINE vec16 factors(const void *base, size_t i, bool is_half)
{
    return is_half ? v_load_half((const uint16_t *)base + i) : v_load((const float *)base + i);
}

INLINE vec16 factors_n(const void *base, size_t i, int n, bool is_half)
{
    return is_half ? v_load_half_n((const uint16_t *)base + i, n) : v_load_n((const float *)base + i, n);
}

/* n_chains rows of a from row first on, n apart, with x. */
INLINE void down_rows(float *t, const void *a, const float *x, int first, int n_chains, int n, bool is_half)
{
    int whole = n / 16 * 16, rest = n - whole;
    vec16 sum[LORA_CHAINS];
    UNROLL
    for (int c = 0; c < n_chains; c++)
        sum[c] = v_set(0);
    for (int k = 0; k < whole; k += 16) {
        vec16 in = v_load(x + k);
        UNROLL
        for (int c = 0; c < n_chains; c++)
            sum[c] = v_fma(factors(a, (size_t)(first + c) * (size_t)n + (size_t)k, is_half), in, sum[c]);
    }
    if (rest > 0) {
        vec16 in = v_load_n(x + whole, rest);
        mask16 mask = first_lanes(rest);
        UNROLL
        for (int c = 0; c < n_chains; c++) { /* a lane of 0 * 0 would turn -0 into 0 */
            vec16 last = factors_n(a, (size_t)(first + c) * (size_t)n + (size_t)whole, rest, is_half);
            sum[c] = v_select(mask, v_fma(last, in, sum[c]), sum[c]);
        }
    }
    UNROLL
    for (int c = 0; c < n_chains; c++)
        t[first + c] = v_fold(sum[c]);
}

INLINE void down(float *t, const void *a, const float *x, int rank, int n, bool is_half)
{
    int i = 0;
    for (; i + LORA_CHAINS <= rank; i += LORA_CHAINS)
        down_rows(t, a, x, i, LORA_CHAINS, n, is_half);
    for (; i < rank; i++)
        down_rows(t, a, x, i, 1, n, is_half);
}

INLINE void up(float *y, const void *b, size_t stride, const float *t, int rank, int n, bool is_half)
{
    int j = 0;
    for (; j + 16 * LORA_CHAINS <= n; j += 16 * LORA_CHAINS) {
        vec16 sum[LORA_CHAINS];
        UNROLL
        for (int c = 0; c < LORA_CHAINS; c++)
            sum[c] = v_set(0);
        for (int i = 0; i < rank; i++) {
            vec16 factor = v_set(t[i]);
            UNROLL
            for (int c = 0; c < LORA_CHAINS; c++)
                sum[c] = v_fma(factor, factors(b, (size_t)i * stride + (size_t)(j + 16 * c), is_half),
                               sum[c]);
        }
        UNROLL
        for (int c = 0; c < LORA_CHAINS; c++)
            v_store(y + j + 16 * c, v_add(v_load(y + j + 16 * c), sum[c]));
    }
    for (; j < n; j += 16) {
        int left = lanes_left(j, n);
        vec16 sum = v_set(0);
        for (int i = 0; i < rank; i++)
            sum = v_fma(v_set(t[i]), factors_n(b, (size_t)i * stride + (size_t)j, left, is_half), sum);
        v_store_n(y + j, v_add(v_load_n(y + j, left), sum), left);
    }
}

void VARIANT(lora_down)(float *t, const float *a, const float *x, int rank, int n)
{
    down(t, a, x, rank, n, false);
}

void VARIANT(lora_down_half)(float *t, const uint16_t *a, const float *x, int rank, int n)
{
    down(t, a, x, rank, n, true);
}

void VARIANT(lora_up)(float *y, const float *b, size_t stride, const float *t, int rank, int n)
{
    up(y, b, stride, t, rank, n, false);
}

void VARIANT(lora_up_half)(float *y, const uint16_t *b, size_t stride, const float *t, int rank, int n)
{
    up(y, b, stride, t, rank, n, true);
}
