#include "kernels/x86/avx2/vec16.h"

enum { MAX_ROWS = 2 }; /* eight registers of sums */
#define IS_WIDE          1
#define BF16_TILES       BF16_TILE(1) BF16_TILE(2)
#define BF16_TILES_TABLE tile_1, tile_2

/* Even and odd columns as floats. */
typedef struct {
    vec16 even, odd;
} weight_pair, input_pair;

INLINE weight_pair load_weights(const uint8_t *p)
{
    return (weight_pair){ v_load_even_bf16(p), v_load_odd_bf16(p) };
}

INLINE input_pair load_input(const uint32_t *x)
{
    return (input_pair){ v_set_bits(*x << 16), v_set_bits(*x & 0xFFFF0000) };
}

INLINE vec16 dot_pair(vec16 sum, weight_pair w, input_pair x)
{
    return v_fma(w.even, x.even, v_fma(w.odd, x.odd, sum));
}

enum { INPUT_STRIDE = 8 }; /* floats from one column of inputs to the next */

/* Columns of n_rows input rows as floats, the odd one of a pair first: [2 n_pairs][INPUT_STRIDE]. x: [n_pairs][x_rows]. */
INLINE void expand_inputs(float *to, const uint32_t *x, int x_rows, int n_rows, int n_pairs)
{
    const __m256i lanes = first_eight(n_rows), upper = _mm256_set1_epi32(-65536);
    for (int c = 0; c < n_pairs; c++, to += 2 * INPUT_STRIDE, x += x_rows) {
        __m256i pairs = _mm256_maskload_epi32((const int *)x, lanes);
        _mm256_store_ps(to, _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)));
        _mm256_store_ps(to + INPUT_STRIDE, _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
    }
}

#include "kernels/x86/linear_bf16_mode_body.h"

LINEAR_BF16(avx2)
