/* Factors of adapters as the backends store them: float32; or float16, each rank's row of A and column of B
 * divided by a power of two, so that ranks of all sizes keep float16's precision. */
#ifndef TUTTI_BACKEND_LORA_FACTOR_H
#define TUTTI_BACKEND_LORA_FACTOR_H

#include "backend/backend.h"
#include "base/half.h"

#include <math.h>

/* How one rank is stored. */
struct lora_rank {
    int a_exponent, b_exponent; /* of the powers of two; 0: float32 */
    float scale;                /* of its sum: the part's, times both powers */
};

/* The exponent of the largest of n numbers, stride apart; 0 if that is infinite, NaN or 0. */
static inline int lora_exponent(const float *x, size_t n, size_t stride)
{
    float most = 0;
    int exponent = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i * stride]) > most ? fabsf(x[i * stride]) : most;
    if (most > 0 && isfinite(most))
        frexpf(most, &exponent);
    return exponent;
}

/* Of rank i of a part. */
static inline struct lora_rank lora_rank_of(const struct lora_part *part, int n_in, size_t i, bool is_half)
{
    struct lora_rank rank = { .scale = part->scale };
    if (is_half) {
        rank.a_exponent = lora_exponent(part->a + i * (size_t)n_in, (size_t)n_in, 1);
        rank.b_exponent = lora_exponent(part->b + i, (size_t)part->n_out, (size_t)part->rank);
        rank.scale = ldexpf(part->scale, rank.a_exponent + rank.b_exponent);
    }
    return rank;
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
