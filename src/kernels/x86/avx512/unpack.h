/* Unpacks a block of packed weights: what the kernels with vpdpbusd and those with tiles (x86/amx) have in common. */
#ifndef TUTTI_KERNELS_X86_AVX512_UNPACK_H
#define TUTTI_KERNELS_X86_AVX512_UNPACK_H

#include "kernels/pack.h"
#include "kernels/vector/vector.h"

#include <immintrin.h>
#include <stddef.h>

/* One block of a panel, ready to be multiplied. [half], then [group of columns] or [run of sub columns]. */
struct weights {
    __m512i w[2][8];
    __m512 scale[2][2], min[2][2];
};

/* A vector that is used several times: the compiler would load it again for each use. */
INLINE __m512i load_once(const uint8_t *p)
{
    __m512i x = _mm512_load_si512(p);
    __asm__("" : "+v"(x));
    return x;
}

INLINE void unpack_low(__m512i w[8], const uint8_t *plane, const struct quant_format f)
{
    if (f.low_bits == 8) {
        UNROLL
        for (int g = 0; g < 8; g++)
            w[g] = _mm512_load_si512(plane + 64 * g);
        return;
    }
    const int n = f.low_bits, per_byte = 8 / n; /* n vectors: 4 or 2, of two or four numbers per byte */
    const __m512i mask = _mm512_set1_epi8(f.low_bits == 4 ? 15 : 3);
    UNROLL
    for (int v = 0; v < n; v++) {
        __m512i bytes = load_once(plane + 64 * v);
        UNROLL
        for (int k = 0; k < per_byte; k++)
            w[v + k * n] = _mm512_and_si512(
                k == 0 ? bytes : _mm512_srli_epi16(bytes, (unsigned)(k * f.low_bits)), mask);
    }
}

/* From places in the table to the numbers there. */
INLINE void look_up(__m512i w[8], const struct quant_format f)
{
    const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)number_tables[f.table]));
    UNROLL
    for (int g = 0; g < 8; g++)
        w[g] = _mm512_shuffle_epi8(table, w[g]);
}

/* Puts the bits of the high plane above those of the low one. */
INLINE void unpack_high(__m512i w[8], const uint8_t *plane, const struct quant_format f)
{
    const int n = f.high_bits, per_byte = 8 / n;
    const __m512i mask = _mm512_set1_epi8((char)(((1 << n) - 1) << f.low_bits));
    UNROLL
    for (int v = 0; v < n; v++) {
        __m512i bytes = load_once(plane + 64 * v);
        UNROLL
        for (int k = 0; k < per_byte; k++) {
            int up = f.low_bits - k * n;
            __m512i moved = up >= 0 ? _mm512_slli_epi16(bytes, (unsigned)(up >= 0 ? up : 0))
                                    : _mm512_srli_epi16(bytes, (unsigned)(up < 0 ? -up : 0));
            w[v + k * n] = _mm512_ternarylogic_epi32(w[v + k * n], moved, mask, 0xF8); /* a | (b & c) */
        }
    }
}

INLINE __m512 load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}

INLINE __m512 load_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* 2^(byte - 128) of 16 bytes: stored.h. */
INLINE __m512 load_exponents(const uint8_t *p)
{
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(bytes, _mm512_set1_epi32(1)), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), bytes);
    return _mm512_castsi512_ps(
        _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(bytes, _mm512_set1_epi32(2)), normal, small));
}

/* Scales and mins of block `block` of the unit. wide: of format_widen(). */
INLINE void load_scales(struct weights *w, const uint8_t *unit, const uint8_t *wide, int block,
                        const struct quant_format f)
{
    const int n = BLOCK / f.sub;
    const uint8_t *subs = (f.is_six ? wide : unit + (f.has_min ? 4 : 2) * PANEL_ROWS) +
                          (size_t)(block * n) * PANEL_ROWS;
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512 scale = f.is_exponent ? load_exponents(unit + block * PANEL_ROWS + 16 * h)
                                     : load_halves(unit + format_scale_at(f, block) + 32 * h);
        if (f.is_eighth)
            scale = _mm512_mul_ps(scale, _mm512_set1_ps(0.125f));
        __m512 min = f.has_min && !f.has_zero ? load_halves(unit + 2 * PANEL_ROWS + 32 * h)
                                              : _mm512_setzero_ps();
        if (f.has_zero)
            min = _mm512_mul_ps(scale, _mm512_mul_ps(load_bytes(unit + format_zero_at(f, block) + 16 * h),
                                                     _mm512_set1_ps(1.0f / (float)input_factor(f))));
        UNROLL
        for (int i = 0; i < n; i++) {
            const uint8_t *at = subs + i * PANEL_ROWS + 16 * h;
            if (f.is_joint) {
                __m512i both = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)at));
                w->scale[h][i] = _mm512_mul_ps(
                    scale, _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))));
                w->min[h][i] = _mm512_mul_ps(min, _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)));
            } else {
                w->scale[h][i] = f.is_super ? _mm512_mul_ps(scale, load_bytes(at)) : scale;
                w->min[h][i] = f.is_super && f.has_min
                                   ? _mm512_mul_ps(min, load_bytes(at + format_subs_bytes(f)))
                                   : min;
            }
        }
    }
}

/* The numbers of both halves of a block. */
INLINE void unpack_block(struct weights *w, const uint8_t *block, const struct quant_format f)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        const uint8_t *half = block + (size_t)h * format_half_bytes(f);
        unpack_low(w->w[h], half, f);
        if (f.high_bits > 0)
            unpack_high(w->w[h], half + format_low_bytes(f), f);
        if (f.table != NUMBERS_PLAIN)
            look_up(w->w[h], f);
    }
}

#endif
