#include "kernels/x86/avx2/vec16.h"

enum { MAX_ROWS = 2 }; /* eight registers of sums */
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

#include "kernels/x86/linear_bf16_mode_body.h"

LINEAR_BF16(avx2)
