/* The race by which tokens are drawn (backend/sample.h), in arithmetic that every processor and card has: sums, products and
 * quotients of doubles, each rounded by itself. So all backends draw the same token from the same logits. */
#ifndef TUTTI_KERNELS_RACE_H
#define TUTTI_KERNELS_RACE_H

#include "base/rng.h"

#include <stdbool.h>

/* Logits whose exponentials kernels' sum_exp adds up in float; the sums of these tiles are added in double, in their order. */
enum { RACE_TILE = 2048 };

static inline double race_double(uint64_t bits)
{
    union {
        uint64_t u;
        double f;
    } v = { .u = bits };
    return v.f;
}

static inline uint64_t race_bits(double f)
{
    union {
        double f;
        uint64_t u;
    } v = { .f = f };
    return v.u;
}

/* exp(y) rounded to float; y <= 0. n ln 2 + r = y with |r| <= ln 2 / 2; the series of exp(r) up to r^10, whose rest is below
 * 2^-42: so the float is the nearest one, unless exp(y) lies within 2^-18 units of the middle of two. */
static inline double race_exp(float y)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer, which is in the low bits */
    if (y < -104.0f)
        return 0; /* rounds to 0 */
    if (y > 88.7f)
        return __builtin_inf();
    double shifted = (double)y * 1.44269504088896338700 + magic, n = shifted - magic;
    double r = (double)y - n * 6.93147180369123816490e-01; /* 32 bits: the product is exact */
    r = r - n * 1.90821492927058770002e-10;
    double p = r * (1.0 / 3628800) + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    return (double)(float)(p * race_double((race_bits(shifted) + 1023) << 52));
}

/* Natural logarithm of a normal u > 0, within 1 ulp, also near 1: fdlibm's (Sun Microsystems, 1993). */
static inline double race_log(double u)
{
    uint64_t bits = race_bits(u),
             above = (bits & 0xfffffffffffffu) > 0x6a09e667f3bcdu; /* mantissa over sqrt 2 */
    double k = (double)((int)(bits >> 52) - 1023 + (int)above);
    double f = race_double((bits & 0xfffffffffffffu) | (1023 - above) << 52) -
               1; /* in [sqrt 1/2 - 1, sqrt 2 - 1] */
    double s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    double p = z * 1.479819860511658591e-01 + 1.531383769920937332e-01;
    p = z * p + 1.818357216161805012e-01;
    p = z * p + 2.222219843214978396e-01;
    p = z * p + 2.857142874366239149e-01;
    p = z * p + 3.999999999940941908e-01;
    p = z * p + 6.666666666666735130e-01;
    p = z * p;
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + p) + k * 1.90821492927058770002e-10)) - f);
}

/* Weight of a token compared with the most probable one: a float. */
static inline double race_weight(float x, float max, float temperature)
{
    return race_exp((x - max) / temperature);
}

/* What top-p and typical-p keep is decided by sums of weights as integers: their bits do not depend on the order, so a card may
 * add them up by many blocks. A weight is a float from 0 to 1, and all LIMIT_VOCAB of them together are at most 2^63. */
#define RACE_UNIT 0x1p39f

static inline uint64_t race_units(float weight)
{
    return (uint64_t)((weight < 1 ? weight : 1) * RACE_UNIT); /* 1 also for NaN */
}

/* The smallest sum that counts as at least so many units; at least 1. */
static inline uint64_t race_mass(double units)
{
    uint64_t mass = units < 0x1p63 ? (uint64_t)units : UINT64_C(1) << 63;
    mass += (double)mass < units;
    return mass > 0 ? mass : 1;
}

/* The same of a total of weights. */
static inline uint64_t race_mass_of(double weight)
{
    return race_mass(weight * (double)RACE_UNIT);
}

/* A token of weight w arrives after -log(1 - v) / w, an exponentially distributed time of rate w, so it is the first with a
 * probability proportional to w. */
struct race {
    uint64_t seed;
    double first; /* earliest arrival so far */
    int32_t winner;
};

static inline void race_join(struct race *race, int32_t id, double w)
{
    double v = ((double)(mix64(race->seed ^ (uint32_t)id) >> 12) + 0.5) * 0x1p-52; /* in (0, 1) */
    if (!(v < race->first * w)) /* -log(1 - v) > v: so most tokens need no logarithm */
        return;
    double arrival = -race_log(1 - v) / w; /* 1 - v is exact */
    if (arrival < race->first || (arrival == race->first && id < race->winner)) {
        race->first = arrival;
        race->winner = id;
    }
}

#endif
