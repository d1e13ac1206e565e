/* Quantizes blocks of 32 with four or five bits, integers or the floats of MXFP4. */
#include "kernels/quantize/quantize_blocks.h"
#include "kernels/quantize/quantize_fit.h"

#include <float.h>
#include <math.h>

enum { ELEMS = 32 };

int quantize_normalize(float *dst, const float *src, int n)
{
    float max = 0;
    for (int i = 0; i < n; i++) {
        float x = src[i];
        dst[i] = isnan(x) ? 0 : x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
        max = fabsf(dst[i]) > max ? fabsf(dst[i]) : max;
    }
    int exponent;
    float factor = fit_normalizer(max, &exponent);
    for (int i = 0; i < n; i++)
        dst[i] *= factor;
    return exponent;
}

void quantize_weights(float *dst, const float *src, int n)
{
    double sum = 0;
    for (int i = 0; src && i < n; i++)
        sum += (double)src[i];
    for (int i = 0; i < n; i++) {
        float w = src && sum > 0 ? (float)((double)src[i] * n / sum) : 1;
        dst[i] = w > 0x1p-20f ? w : 0x1p-20f;
    }
}

/* { half d; [half m]; [u32 fifth bits]; u8 nibbles[16] }: number j in the low nibble of byte j, j
 * + 16 in the high one. */
static void store(uint8_t *dst, const uint8_t *numbers, bool has_high)
{
    uint32_t high = 0;
    for (int i = 0; i < ELEMS; i++)
        high |= (uint32_t)(numbers[i] >> 4 & 1) << i;
    if (has_high) {
        memcpy(dst, &high, sizeof high);
        dst += sizeof high;
    }
    for (int i = 0; i < ELEMS / 2; i++)
        dst[i] = (uint8_t)((numbers[i] & 15) | (numbers[i + ELEMS / 2] & 15) << 4);
}

/* A block while it is being fitted. */
struct small_block {
    float z[ELEMS], w[ELEMS]; /* w: of the squared errors */
    int exponent;
    struct fit_range range;
};

struct small_choice {
    uint16_t d, m;
    struct fit stored; /* the float16 values, for normalized weights */
    float error;
};

static void quantize_consider(const struct small_block *b, uint16_t d, uint16_t m, struct small_choice *best)
{
    struct small_choice c = { .d = d, .m = m };
    c.stored.scale = ldexpf(half_to_float(d), -b->exponent);
    c.stored.min = ldexpf(-half_to_float(m), -b->exponent);
    c.error = fit_error(b->z, b->w, ELEMS, c.stored, b->range);
    if (c.error < best->error)
        *best = c;
}

/* Rounding to float16 may lose what the search has gained. So the neighbouring float16 values are
 * tried too, and the scale that maps the largest weight to the outermost number. */
static struct small_choice choose_scale(const struct small_block *b)
{
    struct small_choice best = { .error = INFINITY };
    float largest = 0;
    for (int i = 0; i < ELEMS; i++)
        largest = fabsf(b->z[i]) > fabsf(largest) ? b->z[i] : largest;
    quantize_consider(b, finite_half(ldexpf(largest / b->range.low, b->exponent)), 0, &best);
    uint16_t d = finite_half(ldexpf(fit_scale(b->z, b->w, ELEMS, b->range), b->exponent)), size = d & 0x7FFF;
    quantize_consider(b, d, 0, &best);
    if (size > 0)
        quantize_consider(b, (uint16_t)(d - 1), 0, &best);
    if (size < 0x7BFF) /* the largest finite one */
        quantize_consider(b, (uint16_t)(d + 1), 0, &best);
    return best;
}

static struct small_choice choose_both(const struct small_block *b)
{
    struct small_choice best = { .error = INFINITY };
    struct fit fit = fit_affine(b->z, b->w, ELEMS, b->range.high, false);
    uint16_t d = finite_half(ldexpf(fit.scale, b->exponent)), m = finite_half(ldexpf(-fit.min, b->exponent));
    quantize_consider(b, d, m, &best);
    if (d > 0)
        quantize_consider(b, (uint16_t)(d - 1), m, &best);
    if (d < 0x7BFF)
        quantize_consider(b, (uint16_t)(d + 1), m, &best);
    return best;
}

void quantize_small(uint8_t *dst, const float *x, enum dtype dtype, const float *weights)
{
    bool has_min = dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1;
    bool has_high = dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1;
    float zero = has_min ? 0 : has_high ? 16 : 8, last = has_high ? 31 : 15;
    struct small_block b = { .range = { -zero, last - zero } };
    b.exponent = quantize_normalize(b.z, x, ELEMS);
    quantize_weights(b.w, weights, ELEMS);
    struct small_choice c = has_min ? choose_both(&b) : choose_scale(&b);
    float numbers[ELEMS], scale = c.stored.scale;
    uint8_t stored[ELEMS];
    struct fit_sums sums;
    fit_assign(&sums, b.z, b.w, ELEMS, scale != 0 ? 1 / scale : 0, c.stored.min, b.range, numbers);
    for (int i = 0; i < ELEMS; i++)
        stored[i] = (uint8_t)(numbers[i] + zero);
    store_half(dst, c.d);
    dst += 2;
    if (has_min) {
        store_half(dst, c.m);
        dst += 2;
    }
    store(dst, stored, has_high);
}

/* ---- MXFP4 ---- */

/* The magnitudes of e2m1, and where the next one is nearer. The one with the even number wins a tie. */
static const float MAGNITUDES[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
static const float MIDDLES[] = { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5 };
enum { N_MIDDLES = sizeof MIDDLES / sizeof *MIDDLES };

/* The numbers of a block with an exponent, and their squared error. */
static double assign_floats(const struct small_block *b, int exponent, uint8_t *numbers)
{
    double error = 0;
    for (int i = 0; i < ELEMS; i++) {
        float size = ldexpf(fabsf(b->z[i]), -exponent);
        int number = 0;
        while (number < N_MIDDLES && (size > MIDDLES[number] || (size == MIDDLES[number] && number % 2 == 1)))
            number++;
        double lost = ldexp((double)size - (double)MAGNITUDES[number], exponent);
        error += (double)b->w[i] * lost * lost;
        numbers[i] = (uint8_t)(number > 0 && b->z[i] < 0 ? number + 8 : number);
    }
    return error;
}

void quantize_mxfp4(uint8_t *dst, const float *x, const float *weights)
{
    enum {
        BIAS = 127,
        MOST = 252,
        USUAL = -3
    }; /* USUAL: 4 times its power is 0.5, the least that z's largest is */
    struct small_block b = { 0 };
    uint8_t numbers[ELEMS], larger[ELEMS];
    b.exponent = quantize_normalize(b.z, x, ELEMS);
    quantize_weights(b.w, weights, ELEMS);
    int exponent = b.exponent + USUAL, undoes = b.exponent > -126 ? b.exponent : -126; /* fit_normalizer() */
    exponent = exponent < -BIAS ? -BIAS : exponent < MOST - BIAS ? exponent : MOST - BIAS;
    double error = assign_floats(&b, exponent - undoes, numbers);
    if (exponent < MOST - BIAS && assign_floats(&b, exponent + 1 - undoes, larger) < error) {
        memcpy(numbers, larger, sizeof numbers);
        exponent++;
    }
    dst[0] = (uint8_t)(exponent + BIAS);
    store(dst + 1, numbers, false);
}
