/* Reads blocks of quantized weights as files store them (base/dtype.h). All functions are
 * inlined: if the type is a compile-time constant, reading a block takes a few shifts. */
#ifndef TUTTI_KERNELS_STORED_H
#define TUTTI_KERNELS_STORED_H

#include "base/half.h"
#include "kernels/formats.h"
#include "kernels/grids.h"

#include <string.h>

#define STORED_INLINE static inline __attribute__((always_inline))

enum { WORDS = BLOCK / 4, MAX_BLOCKS = 8, MAX_SUBS = 16 };

/* A block of 32 or 256 elements of any stored type, in the terms of formats.h. Fields that the
 * type lacks are not set. */
struct stored_unit {
    uint16_t scale, min;   /* halves; scale of MXFP4: the exponent */
    int8_t subs[MAX_SUBS]; /* sub-scales, or scale and min joined */
    int8_t sub_mins[MAX_SUBS];
    int8_t zero;                       /* of a group */
    uint32_t words[MAX_BLOCKS][WORDS]; /* unsigned numbers of columns 4g..4g+3, the first in the low byte */
};

STORED_INLINE uint32_t word_at(const uint8_t *p, int i)
{
    uint32_t word;
    memcpy(&word, p + 4 * i, 4);
    return word;
}

STORED_INLINE uint16_t half_at(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    return half;
}

/* Spreads four bits to the lowest bits of four bytes. */
STORED_INLINE uint32_t spread(uint32_t bits)
{
    return ((bits & 15) * 0x00204081) & 0x01010101;
}

/* Q4_0, Q4_1, Q5_0, Q5_1: { half d; [half m]; [u32 high bits]; u8 nibbles[16] }. */
STORED_INLINE void read_small(struct stored_unit *u, const uint8_t *src, bool has_min, bool has_high)
{
    u->scale = half_at(src);
    src += 2;
    if (has_min) { /* the stored min is added, ours is subtracted */
        u->min = half_at(src) ^ 0x8000;
        src += 2;
    }
    uint32_t high = has_high ? word_at(src, 0) : 0;
    src += has_high ? 4 : 0;
    for (int g = 0; g < 4; g++) {
        uint32_t word = word_at(src, g);
        u->words[0][g] = (word & 0x0F0F0F0F) | spread(high >> (4 * g)) << 4;
        u->words[0][g + 4] = ((word >> 4) & 0x0F0F0F0F) | spread(high >> (4 * g + 16)) << 4;
    }
}

STORED_INLINE void read_q8_0(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int g = 0; g < WORDS; g++)
        u->words[0][g] = word_at(src + 2, g) ^ 0x80808080;
}

/* Q2_K: { u8 scale_and_min[16]; u8 q[64]; half d, dmin }. */
STORED_INLINE void read_q2_k(struct stored_unit *u, const uint8_t *src)
{
    memcpy(u->subs, src, 16);
    for (int b = 0; b < 8; b++)
        for (int g = 0; g < WORDS; g++)
            u->words[b][g] = (word_at(src + 16 + b / 4 * 32, g) >> (b % 4 * 2)) & 0x03030303;
    u->scale = half_at(src + 80);
    u->min = half_at(src + 82);
}

/* Q3_K: { u8 high[32]; u8 q[64]; u8 scales[12]; half d }; a scale has its low four bits in the
 * first eight bytes, the high two in the last four, and 32 is subtracted. */
STORED_INLINE void read_q3_k(struct stored_unit *u, const uint8_t *src)
{
    const uint8_t *scales = src + 96;
    for (int s = 0; s < 16; s++) {
        int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
        int high = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
        u->subs[s] = (int8_t)((low | high << 4) - 32);
    }
    for (int b = 0; b < 8; b++)
        for (int g = 0; g < WORDS; g++) {
            uint32_t low = (word_at(src + 32 + b / 4 * 32, g) >> (b % 4 * 2)) & 0x03030303;
            u->words[b][g] = low | ((word_at(src, g) >> b) & 0x01010101) << 2;
        }
    u->scale = half_at(src + 108);
}

/* The twelve bytes of Q4_K and Q5_K: eight scales and eight mins of six bits. */
STORED_INLINE void read_six_bits(struct stored_unit *u, const uint8_t *p)
{
    for (int s = 0; s < 4; s++) {
        u->subs[s] = (int8_t)(p[s] & 63);
        u->sub_mins[s] = (int8_t)(p[s + 4] & 63);
        u->subs[s + 4] = (int8_t)((p[s + 8] & 15) | (p[s] >> 6) << 4);
        u->sub_mins[s + 4] = (int8_t)((p[s + 8] >> 4) | (p[s + 4] >> 6) << 4);
    }
}

/* Q4_K, Q5_K: { half d, dmin; u8 scales[12]; [u8 high[32]]; u8 nibbles[128] }. */
STORED_INLINE void read_q45_k(struct stored_unit *u, const uint8_t *src, bool has_high)
{
    u->scale = half_at(src);
    u->min = half_at(src + 2);
    read_six_bits(u, src + 4);
    const uint8_t *high = src + 16, *q = high + (has_high ? 32 : 0);
    for (int b = 0; b < 8; b++)
        for (int g = 0; g < WORDS; g++) {
            uint32_t low = (word_at(q + b / 2 * 32, g) >> (b % 2 * 4)) & 0x0F0F0F0F;
            u->words[b][g] = has_high ? low | ((word_at(high, g) >> b) & 0x01010101) << 4 : low;
        }
}

/* Q6_K: { u8 low[128]; u8 high[64]; i8 scales[16]; half d }. */
STORED_INLINE void read_q6_k(struct stored_unit *u, const uint8_t *src)
{
    for (int b = 0; b < 8; b++)
        for (int g = 0; g < WORDS; g++) {
            int chunk = b / 4, part = b % 4;
            uint32_t low = word_at(src + chunk * 64 + part % 2 * 32, g) >> (part / 2 * 4);
            uint32_t high = word_at(src + 128 + chunk * 32, g) >> (part * 2);
            u->words[b][g] = (low & 0x0F0F0F0F) | (high & 0x03030303) << 4;
        }
    memcpy(u->subs, src + 192, 16);
    u->scale = half_at(src + 208);
}

/* MXFP4: { u8 e; u8 nibbles[16] }. With a larger exponent products with an activation's scale
 * could overflow. */
STORED_INLINE void read_mxfp4(struct stored_unit *u, const uint8_t *src)
{
    u->scale = src[0] < 252 ? src[0] : 252;
    for (int g = 0; g < 4; g++) {
        uint32_t word = word_at(src + 1, g);
        u->words[0][g] = word & 0x0F0F0F0F;
        u->words[0][g + 4] = (word >> 4) & 0x0F0F0F0F;
    }
}

/* IQ4_XS: { half d; u16 high; u8 low[4]; u8 nibbles[128] }. */
STORED_INLINE void read_iq4_xs(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int b = 0; b < 8; b++) {
        int low = src[4 + b / 2] >> (b % 2 * 4) & 15, high = half_at(src + 2) >> (2 * b) & 3;
        u->subs[b] = (int8_t)((low | high << 4) - 32);
        for (int g = 0; g < WORDS; g++)
            u->words[b][g] = (word_at(src + 8 + 16 * b, g % 4) >> (g / 4 * 4)) & 0x0F0F0F0F;
    }
}

/* Eight numbers: a line of a grid of two bits each, and a bit above each of them. */
STORED_INLINE void put_line2(struct stored_unit *u, int run, uint16_t line, uint32_t above)
{
    for (int i = 0; i < 2; i++) {
        uint32_t four = (uint32_t)line >> (8 * i) & 255;
        uint32_t word = (four & 3) | (four & 12) << 6 | (four & 48) << 12 | (four & 192) << 18;
        u->words[run / 4][run % 4 * 2 + i] = word | spread(above >> (4 * i)) << 2;
    }
}

/* Four numbers: a line of a grid of four bits each, and signs. */
STORED_INLINE void put_line4(struct stored_unit *u, int run, uint32_t line, uint32_t signs)
{
    uint32_t word = (line & 15) | (line & 0xF0) << 4 | (line & 0xF00) << 8 | (line & 0xF000) << 12;
    u->words[run / 8][run % 8] = word | spread(signs) << 3;
}

/* Seven signs, and an eighth that makes their number even. */
STORED_INLINE uint32_t eight_signs(uint32_t seven)
{
    seven &= 127;
    return seven | (uint32_t)(__builtin_popcount(seven) & 1) << 7;
}

STORED_INLINE int8_t odd_scale(unsigned x)
{
    return (int8_t)(2 * x + 1);
}

/* IQ2_XXS: { half d; { u8 lines[4]; u32 signs and scale }[8] }. */
STORED_INLINE void read_iq2_xxs(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int b = 0; b < 8; b++) {
        const uint8_t *lines = src + 2 + 8 * b;
        uint32_t signs = word_at(lines, 1);
        u->subs[b] = odd_scale(signs >> 28);
        for (int k = 0; k < 4; k++)
            put_line2(u, 4 * b + k, grid_iq2_xxs[lines[k]], eight_signs(signs >> (7 * k)));
    }
}

/* IQ2_XS: { half d; u16 lines and signs[32]; u8 scales[8] }. */
STORED_INLINE void read_iq2_xs(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int s = 0; s < 16; s++)
        u->subs[s] = odd_scale(src[66 + s / 2] >> (s % 2 * 4) & 15u);
    for (int k = 0; k < 32; k++) {
        uint16_t both = half_at(src + 2 + 2 * k);
        put_line2(u, k, grid_iq2_xs[both & 511], eight_signs(both >> 9));
    }
}

/* IQ2_S: { half d; u8 lines[32]; u8 signs[32]; u8 high[8]; u8 scales[8] }. */
STORED_INLINE void read_iq2_s(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int s = 0; s < 16; s++)
        u->subs[s] = odd_scale(src[74 + s / 2] >> (s % 2 * 4) & 15u);
    for (int k = 0; k < 32; k++) {
        int high = src[66 + k / 4] >> (k % 4 * 2) & 3;
        put_line2(u, k, grid_iq2_s[src[2 + k] | high << 8], src[34 + k]);
    }
}

/* IQ3_XXS: { half d; u8 lines[64]; u32 signs and scale[8] }. Its scales are in quarters. */
STORED_INLINE void read_iq3_xxs(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int b = 0; b < 8; b++) {
        uint32_t signs = word_at(src + 66, b);
        u->subs[b] = (int8_t)(2 * odd_scale(signs >> 28));
        for (int k = 0; k < 8; k++)
            put_line4(u, 8 * b + k, grid_iq3_xxs[src[2 + 8 * b + k]],
                      eight_signs(signs >> (k / 2 * 7)) >> (k % 2 * 4));
    }
}

/* IQ3_S: { half d; u8 lines[64]; u8 high[8]; u8 signs[32]; u8 scales[4] }. */
STORED_INLINE void read_iq3_s(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int b = 0; b < 8; b++)
        u->subs[b] = odd_scale(src[106 + b / 2] >> (b % 2 * 4) & 15u);
    for (int k = 0; k < 64; k++) {
        int high = src[66 + k / 8] >> (k % 8) & 1;
        put_line4(u, k, grid_iq3_s[src[2 + k] | high << 8], (uint32_t)src[74 + k / 2] >> (k % 2 * 4));
    }
}

/* IQ1_S: { half d; u8 lines[32]; u16 high bits, scale and sign of the offset[8] }. */
STORED_INLINE void read_iq1_s(struct stored_unit *u, const uint8_t *src)
{
    u->scale = half_at(src);
    for (int b = 0; b < 8; b++) {
        unsigned high = half_at(src + 34 + 2 * b);
        u->subs[b] = odd_scale(high >> 12 & 7);
        for (int k = 4 * b; k < 4 * b + 4; k++)
            put_line2(u, k, grid_iq1[src[2 + k] | (high >> (k % 4 * 3) & 7) << 8], high >> 15 ? 255 : 0);
    }
}

/* IQ1_M: { u8 lines[32]; u8 high bits and sign of the offset[16]; u16 scales and a nibble of d[4] }. */
STORED_INLINE void read_iq1_m(struct stored_unit *u, const uint8_t *src)
{
    u->scale = 0;
    for (int s = 0; s < 16; s++) {
        unsigned scales = half_at(src + 48 + s / 4 * 2);
        u->subs[s] = odd_scale(scales >> (s % 4 * 3) & 7);
        u->scale = (uint16_t)(u->scale | (s % 4 == 0 ? (scales >> 12) << s : 0));
    }
    for (int k = 0; k < 32; k++) {
        unsigned high = (unsigned)src[32 + k / 2] >> (k % 2 * 4);
        put_line2(u, k, grid_iq1[src[k] | (high & 7) << 8], high & 8 ? 255 : 0);
    }
}

/* G4, G4Z, G8: { half d; [i8 zero]; u8 nibbles[group / 2] or i8 q[group] }. */
STORED_INLINE void read_group(struct stored_unit *u, const uint8_t *src, struct quant_format f)
{
    u->scale = half_at(src);
    src += 2;
    if (f.has_zero)
        u->zero = (int8_t)*src++;
    for (int b = 0; b < f.group / BLOCK; b++, src += BLOCK / 8 * f.low_bits)
        for (int g = 0; g < WORDS; g++)
            u->words[b][g] = f.low_bits == 8 ? word_at(src, g) ^ 0x80808080
                                             : (word_at(src, g % 4) >> (g / 4 * 4)) & 0x0F0F0F0F;
}

/* src: one block of a quantized type; needs no alignment. */
STORED_INLINE void stored_read(struct stored_unit *u, const uint8_t *src, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q2_K:
        read_q2_k(u, src);
        break;
    case DTYPE_Q3_K:
        read_q3_k(u, src);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        read_q45_k(u, src, dtype == DTYPE_Q5_K);
        break;
    case DTYPE_Q6_K:
        read_q6_k(u, src);
        break;
    case DTYPE_Q8_0:
        read_q8_0(u, src);
        break;
    case DTYPE_MXFP4:
        read_mxfp4(u, src);
        break;
    case DTYPE_IQ4_XS:
        read_iq4_xs(u, src);
        break;
    case DTYPE_IQ2_XXS:
        read_iq2_xxs(u, src);
        break;
    case DTYPE_IQ2_XS:
        read_iq2_xs(u, src);
        break;
    case DTYPE_IQ2_S:
        read_iq2_s(u, src);
        break;
    case DTYPE_IQ3_XXS:
        read_iq3_xxs(u, src);
        break;
    case DTYPE_IQ3_S:
        read_iq3_s(u, src);
        break;
    case DTYPE_IQ1_S:
        read_iq1_s(u, src);
        break;
    case DTYPE_IQ1_M:
        read_iq1_m(u, src);
        break;
    default:
        if (quant_format(dtype).group > 0) {
            read_group(u, src, quant_format(dtype));
            return;
        }
        read_small(u, src, quant_format(dtype).has_min, quant_format(dtype).high_bits > 0);
    }
}

/* 2^(byte - 128), which may be a denormal. */
STORED_INLINE float exponent_scale(unsigned byte)
{
    return bits_float(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
}

/* The scale of run sub of a unit. */
STORED_INLINE float stored_scale(const struct stored_unit *unit, struct quant_format f, int sub)
{
    if (f.is_exponent)
        return exponent_scale(unit->scale);
    float scale = half_to_float(unit->scale) * (f.is_eighth ? 0.125f : 1);
    if (!f.is_super)
        return scale;
    return scale * (float)(f.is_joint ? unit->subs[sub] & 15 : unit->subs[sub]);
}

/* The min to subtract; only for types with has_min. */
STORED_INLINE float stored_min(const struct stored_unit *unit, struct quant_format f, int sub)
{
    if (f.has_zero)
        return half_to_float(unit->scale) * (float)unit->zero;
    float min = half_to_float(unit->min);
    if (!f.is_super)
        return min;
    return min * (float)(f.is_joint ? (uint8_t)unit->subs[sub] >> 4 : unit->sub_mins[sub]);
}

#undef STORED_INLINE
#endif
