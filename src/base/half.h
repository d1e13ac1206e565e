/* Converts IEEE half and bfloat16 to and from float, and 8-bit floats to float, like the processors' instructions: round to
 * nearest, ties to even; a NaN stays a quiet NaN. Plain C, so every processor gives the same
 * bits. Also compiled for devices that have no C library. */
#ifndef TUTTI_BASE_HALF_H
#define TUTTI_BASE_HALF_H

#include <stdbool.h>
#include <stdint.h>
#if __STDC_HOSTED__
#include <string.h>
#endif

static inline uint32_t float_bits(float x)
{
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}

static inline float bits_float(uint32_t u)
{
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3FF;
    if (exponent == 31) /* infinity, or a NaN made quiet */
        return bits_float(sign | 0x7F800000 | (mantissa ? 0x400000 | mantissa << 13 : 0));
    if (exponent == 0) {
        float x = (float)mantissa * 0x1p-24f; /* exact: subnormal halves are normal floats */
        return sign ? -x : x;
    }
    return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t float_to_half(float x)
{
    uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000, a = u & 0x7FFFFFFF;
    if (a >= 0x7F800000)
        return (uint16_t)(sign | 0x7C00 | (a > 0x7F800000 ? 0x200 | ((a >> 13) & 0x3FF) : 0));
    if (a >= 0x477FF000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000) { /* below 2^-14: a subnormal half; the addition rounds at 2^-24 */
        float t = bits_float(a) + 0.5f;
        return (uint16_t)(sign | (float_bits(t) - 0x3F000000));
    }
    a += 0xC8000FFF + ((a >> 13) & 1); /* re-bias the exponent by -112, round half to even */
    return (uint16_t)(sign | a >> 13);
}

static inline float bf16_to_float(uint16_t b)
{
    return bits_float((uint32_t)b << 16);
}

/* e4m3: 4 bits of exponent, 3 of mantissa, no infinities. Micikevicius et al., "FP8 formats for deep
 * learning", 2022. */
static inline bool float8_is_nan(uint8_t byte)
{
    return (byte & 0x7F) == 0x7F;
}

/* The half of 2^-8 times its value, exactly; of a NaN a number. */
static inline uint16_t float8_half_bits(uint8_t byte)
{
    return (uint16_t)((byte & 0x80) << 8 | (byte & 0x7F) << 7);
}

static inline float float8_to_float(uint8_t byte)
{
    return float8_is_nan(byte) ? bits_float(0x7FC00000) : half_to_float(float8_half_bits(byte)) * 256;
}

static inline uint16_t float_to_bf16(float x)
{
    uint32_t u = float_bits(x);
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

#endif
