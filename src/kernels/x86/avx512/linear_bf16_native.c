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

typedef __m512bh weight_pair, input_pair;

INLINE weight_pair load_weights(const uint8_t *p)
{
    return (__m512bh)_mm512_load_si512(p);
}

INLINE input_pair load_input(const uint32_t *x)
{
    __m512i pair; /* loaded once; the compiler would fold a load into each product */
    __asm__("vpbroadcastd %1, %0" : "=v"(pair) : "m"(*x));
    return (__m512bh)pair;
}

INLINE vec16 dot_pair(vec16 sum, weight_pair w, input_pair x)
{
    return _mm512_dpbf16_ps(sum, w, x);
}

#include "kernels/x86/linear_bf16_mode_body.h"

LINEAR_BF16(avx512bf16)
