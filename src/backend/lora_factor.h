/* Factors of adapters as the backends store them: float32, or float16 after division by a power of two, so that they stay in
 * float16's range. */
#ifndef TUTTI_BACKEND_LORA_FACTOR_H
#define TUTTI_BACKEND_LORA_FACTOR_H

#include "base/half.h"

#include <math.h>
#include <stddef.h>

/* The exponent of the largest of n numbers; 0 if that is infinite, NaN or 0. */
static inline int lora_exponent(const float *x, size_t n)
{
    float most = 0;
    int exponent = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    if (most > 0 && isfinite(most))
        frexpf(most, &exponent);
    return exponent;
}

/* Stores factor number i of memory, times 2^-exponent if the factors are float16. */
static inline void lora_put_factor(void *memory, size_t i, float x, bool is_half, int exponent)
{
    if (is_half)
        ((uint16_t *)memory)[i] = float_to_half(ldexpf(x, -exponent));
    else
        ((float *)memory)[i] = x;
}

#endif
