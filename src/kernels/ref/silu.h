/* The gates of SwiGLU, of one value: SiLU, and gpt-oss' clamped one. */
#ifndef TUTTI_KERNELS_REF_SILU_H
#define TUTTI_KERNELS_REF_SILU_H

#include "kernels/ref/exp.h"

#define SILU_CLAMPED_SLOPE 1.702f
#define SILU_CLAMPED_LIMIT 7.0f

static inline float silu_ref_one(float gate)
{
    return gate / (1.0f + exp_ref(-gate));
}

static inline float silu_clamped_ref_one(float gate, float up)
{
    float g = SILU_CLAMPED_LIMIT < gate ? SILU_CLAMPED_LIMIT : gate;
    float u = -SILU_CLAMPED_LIMIT > up ? -SILU_CLAMPED_LIMIT : up;
    u = SILU_CLAMPED_LIMIT < u ? SILU_CLAMPED_LIMIT : u;
    return g / (1.0f + exp_ref(-(SILU_CLAMPED_SLOPE * g))) * (u + 1.0f);
}

#endif
