/* Pairs of bf16 as floats: even and odd columns. */
#ifndef TUTTI_KERNELS_ARM_NEON_BF16_PAIRS_H
#define TUTTI_KERNELS_ARM_NEON_BF16_PAIRS_H

#include "kernels/arm/neon/vec16.h"

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

#endif
