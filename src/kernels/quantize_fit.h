/* The scale that loses least for a run of weights which share one: the search behind every quantizer but Q8_0's.
 *
 * A run is 16 or 32 weights of a block that was normalized, so that squares neither overflow nor vanish. A number q of
 * [low, high] stands for scale * q, or, in an affine run, for scale * q - min. For given numbers the best scale (and min)
 * are those of least squares; the numbers are the nearest ones for a given scale. The search starts from a grid of scales
 * and takes these two steps in turn, as in Lloyd, "Least squares quantization in PCM", 1982. */
#ifndef TUTTI_KERNELS_QUANTIZE_FIT_H
#define TUTTI_KERNELS_QUANTIZE_FIT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    FIT_LANES = 16
}; /* sums are kept in as many parts, folded by halves: the compiler may use any vector */

struct fit_range {
    float low, high; /* of the numbers */
};

struct fit {
    float scale, min;
};

/* Sums over a run with its numbers. */
struct fit_sums {
    float q, qq, xq;
};

/* What a block is multiplied by, a power of two, and the exponent to undo it. max: the largest magnitude, finite. */
float fit_normalizer(float max, int *exponent);

/* The nearest whole number, ties to even. |x| < 2^22. */
static inline float fit_nearest(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

static inline float fit_clamp(float x, float low, float high)
{
    float y = x > low ? x : low;
    return y < high ? y : high;
}

/* Folds by halves. */
float fit_fold(float *lanes);

/* The numbers nearest to (x + min) * inverse, and their sums. numbers: [n], or NULL. */
void fit_assign(struct fit_sums *out, const float *x, int n, float inverse, float min, struct fit_range range,
                float *numbers);

/* The squared error of the nearest numbers under a scale and min. scale 0: every number stands for -min. */
float fit_error(const float *x, int n, struct fit fit, struct fit_range range);

/* The scale of either sign. */
float fit_scale(const float *x, int n, struct fit_range range);

/* Numbers from 0. is_min_positive: -min must not be above 0. */
struct fit fit_affine(const float *x, int n, float high, bool is_min_positive);

#endif
