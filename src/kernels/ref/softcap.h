/* A soft bound of values: cap tanh(x / cap) = cap - 2 cap / (exp(2 x / cap) + 1). */
#ifndef TUTTI_KERNELS_REF_SOFTCAP_H
#define TUTTI_KERNELS_REF_SOFTCAP_H

#include "kernels/ref/exp.h"

static inline float softcap_one(float x, float cap)
{
    return cap - 2.0f * cap / (exp_ref(x * (2.0f / cap)) + 1.0f);
}

#endif
