/* The two halves of a low-rank update over vec16: the twin of ref/lora.c. Included by a file of one instruction set. */
#include "kernels/x86/x86.h"

enum { LORA_CHAINS = 4 }; /* sums side by side, since one fma waits for the one before it */

/* n_chains rows of a, n apart, with x. */
INLINE void down_rows(float *t, const float *a, const float *x, int n_chains, int n)
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
            sum[c] = v_fma(v_load(a + (size_t)c * (size_t)n + k), in, sum[c]);
    }
    if (rest > 0) {
        vec16 in = v_load_n(x + whole, rest);
        mask16 mask = first_lanes(rest);
        UNROLL
        for (int c = 0; c < n_chains; c++) /* a lane of 0 * 0 would turn -0 into 0 */
            sum[c] = v_select(mask, v_fma(v_load_n(a + (size_t)c * (size_t)n + whole, rest), in, sum[c]),
                              sum[c]);
    }
    UNROLL
    for (int c = 0; c < n_chains; c++)
        t[c] = v_fold(sum[c]);
}

void VARIANT(lora_down)(float *t, const float *a, const float *x, int rank, int n)
{
    int i = 0;
    for (; i + LORA_CHAINS <= rank; i += LORA_CHAINS)
        down_rows(t + i, a + (size_t)i * (size_t)n, x, LORA_CHAINS, n);
    for (; i < rank; i++)
        down_rows(t + i, a + (size_t)i * (size_t)n, x, 1, n);
}

void VARIANT(lora_up)(float *y, const float *b, size_t stride, const float *t, int rank, int n)
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
                sum[c] = v_fma(factor, v_load(b + (size_t)i * stride + j + 16 * c), sum[c]);
        }
        UNROLL
        for (int c = 0; c < LORA_CHAINS; c++)
            v_store(y + j + 16 * c, v_add(v_load(y + j + 16 * c), sum[c]));
    }
    for (; j < n; j += 16) {
        int left = lanes_left(j, n);
        vec16 sum = v_set(0);
        for (int i = 0; i < rank; i++)
            sum = v_fma(v_set(t[i]), v_load_n(b + (size_t)i * stride + j, left), sum);
        v_store_n(y + j, v_add(v_load_n(y + j, left), sum), left);
    }
}
