/* Rotary embedding with vec16: the optimized ref/rope.c. Included by a file of one instruction
 * set. */
#include "kernels/vector/vector.h"

void VARIANT(rope_interleaved)(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim)
{
    int n_pairs = rotary_dim / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int j = 0; j < n_pairs; j += 8) {
            int pairs = n_pairs - j < 8 ? n_pairs - j : 8;
            vec16 u = v_load_n(x + 2 * j, 2 * pairs);
            vec16 crossed = v_mul(v_swap_pairs(u), v_load_twice(cos_sin + n_pairs + j, pairs));
            v_store_n(x + 2 * j, v_fma_sub_add(u, v_load_twice(cos_sin + j, pairs), crossed), 2 * pairs);
        }
}

void VARIANT(rope_half)(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim)
{
    int n_pairs = rotary_dim / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int j = 0; j < n_pairs; j += 16) {
            int lanes = lanes_left(j, n_pairs);
            vec16 u = v_load_n(x + j, lanes), v = v_load_n(x + n_pairs + j, lanes);
            vec16 cos = v_load_n(cos_sin + j, lanes), sin = v_load_n(cos_sin + n_pairs + j, lanes);
            v_store_n(x + j, v_fms(u, cos, v_mul(v, sin)), lanes);
            v_store_n(x + n_pairs + j, v_fma(v, cos, v_mul(u, sin)), lanes);
        }
}
