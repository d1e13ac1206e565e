/* GELU and its approximations, of one value. 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), so the slope is
 * 2 sqrt(2 / pi). */
#ifndef TUTTI_KERNELS_REF_GELU_H
#define TUTTI_KERNELS_REF_GELU_H

#include "kernels/ref/exp.h"

#define GELU_TANH_SLOPE    1.5957691216f
#define GELU_TANH_CUBE     0.044715f
#define GELU_SIGMOID_SLOPE 1.702f

/* 1 - erf(z) = t (a1 + t (a2 + ...)) exp(-z^2) with t = 1 / (1 + p z), within 1.5e-7: Abramowitz and
 * Stegun, 1964, 7.1.26. z = |x| / sqrt(2). */
#define GELU_ERF_SCALE 0.70710678f
#define GELU_ERF_P     0.3275911f
#define GELU_ERF_A1    0.254829592f
#define GELU_ERF_A2    (-0.284496736f)
#define GELU_ERF_A3    1.421413741f
#define GELU_ERF_A4    (-1.453152027f)
#define GELU_ERF_A5    1.061405429f

static inline float gelu_tanh_ref_one(float x)
{
    float z = GELU_TANH_SLOPE * x * __builtin_fmaf(GELU_TANH_CUBE, x * x, 1.0f);
    return x / (1.0f + exp_ref(-z));
}

static inline float gelu_sigmoid_ref_one(float x)
{
    return x / (1.0f + exp_ref(-(GELU_SIGMOID_SLOPE * x)));
}

static inline float gelu_erf_ref_one(float x)
{
    float z = __builtin_fabsf(x) * GELU_ERF_SCALE, t = 1.0f / __builtin_fmaf(GELU_ERF_P, z, 1.0f);
    float p = __builtin_fmaf(t, GELU_ERF_A5, GELU_ERF_A4);
    p = __builtin_fmaf(t, p, GELU_ERF_A3);
    p = __builtin_fmaf(t, p, GELU_ERF_A2);
    p = __builtin_fmaf(t, p, GELU_ERF_A1);
    float half = 0.5f * (t * p * exp_ref(-(z * z)));
    return x * (x < 0 ? half : 1.0f - half);
}

#endif
