/* Searches the scale (and min) with the least squared error for a run of weights: used by every
 * quantizer except Q8_0's.
 *
 * A run is 16 or 32 weights of a block that was normalized, so that squares neither overflow nor
 * vanish. A number q in [low, high] represents scale * q, or, in an affine run, scale * q - min.
 * For given numbers the best scale (and min) follow from least squares; for a given scale the
 * best numbers are the nearest ones. The search starts from a grid of scales and alternates these
 * two steps, as in Lloyd, "Least squares quantization in PCM", 1982.
 *
 * Each squared error is multiplied by a weight w, and so is each term of the sums; all of them are
 * above 0. With weights of 1 the results are those without weights, bit for bit. */
#ifndef TUTTI_KERNELS_QUANTIZE_FIT_H
#define TUTTI_KERNELS_QUANTIZE_FIT_H

#include <stdbool.h>
#include <stdint.h>

/* Sums are kept in this many parts and reduced pairwise, so the compiler may use any vector width. */
enum { FIT_LANES = 16 };

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

/* The power of two to multiply a block by, and the exponent that undoes it. max: the largest
 * magnitude, finite. */
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

/* The numbers nearest to (x + min) * inverse, and their sums. numbers: [n], or NULL. */
void fit_assign(struct fit_sums *out, const float *x, const float *w, int n, float inverse, float min,
                struct fit_range range, float *numbers);

/* The squared error of the nearest numbers under a scale and min. scale 0: every number
 * represents -min. */
float fit_error(const float *x, const float *w, int n, struct fit fit, struct fit_range range);

/* The best scale, of either sign. */
float fit_scale(const float *x, const float *w, int n, struct fit_range range);

/* The best scale and min, for numbers from 0 to high. is_min_positive: -min must not be above 0. */
struct fit fit_affine(const float *x, const float *w, int n, float high, bool is_min_positive);

#endif
