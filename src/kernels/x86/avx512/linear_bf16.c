/* For processors without vdpbf16ps. */
#include "kernels/x86/avx512/vec16.h"

enum { MAX_ROWS = 12 }; /* 24 registers of sums */
#define IS_WIDE 0
#define BF16_TILES                                                                                           \
    BF16_TILE(1)                                                                                             \
    BF16_TILE(2)                                                                                             \
    BF16_TILE(3)                                                                                             \
    BF16_TILE(4)                                                                                             \
    BF16_TILE(5)                                                                                             \
    BF16_TILE(6)                                                                                             \
    BF16_TILE(7)                                                                                             \
    BF16_TILE(8)                                                                                             \
    BF16_TILE(9)                                                                                             \
    BF16_TILE(10)                                                                                            \
    BF16_TILE(11)                                                                                            \
    BF16_TILE(12)
#define BF16_TILES_TABLE                                                                                     \
    tile_1, tile_2, tile_3, tile_4, tile_5, tile_6, tile_7, tile_8, tile_9, tile_10, tile_11, tile_12

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

LINEAR_BF16(avx512)
