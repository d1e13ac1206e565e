/* Linear layers of quantized weights in vectors of 256 bits: the optimized ref/linear_quantized.c.
 *
 * With VNNI, vpdpbusd adds four products of unsigned weights and signed activations (-127..127) to 32 bits.
 * With AVX2 only, vpmaddubsw multiplies and adds pairs in 16 bits. As many groups of columns are added in
 * 16 bits as cannot saturate; then the sums are widened. Eight-bit numbers are split into two nibbles.
 *
 * A group of columns of an input row must be broadcast, and loads are scarcer than products. A single row
 * keeps its eight groups in registers, for all strips of eight output rows. How several rows share loads
 * differs: avx2/passes_body.h, avxvnni/many_rows_body.h.
 *
 * The file that includes this one defines IS_VNNI and, in dot_four(sum, w, q), which encoding of vpdpbusd;
 * with VNNI also that instruction for assembly, DOT. */
#ifndef TUTTI_KERNELS_X86_AVX2_LINEAR_QUANTIZED_BODY_H
#define TUTTI_KERNELS_X86_AVX2_LINEAR_QUANTIZED_BODY_H

#include "kernels/input_block.h"
#include "kernels/pack.h"
#include "kernels/x86/x86.h"

#include <immintrin.h>

enum { STRIP = 8 }; /* output rows of a register */

/* Factors of one half of a block: [run][strip]. */
struct scales {
    __m256 scale[2][2], min[2][2];
};

/* The input rows of one block, and their totals. */
struct input {
    const int32_t *q; /* [n_rows][8] times four bytes */
    const struct scaled_row *rows;
    float *total[2]; /* [half], then [n_rows][16] */
    int n_rows;
};

/* Whether numbers are split into nibbles: their products would not fit 16 bits. */
INLINE bool is_split(const struct quant_format f)
{
    return !IS_VNNI && format_largest(f) > 127;
}

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

/* Group g of a strip's numbers. at: of the strip in the low plane. is_high: their upper nibbles. */
INLINE __m256i unpack_group(const uint8_t *at, const int g, const bool is_high, const struct quant_format f)
{
    const int n = f.low_bits, m = f.high_bits;
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i w = load(at + 64 * (g % n));
    if (n == 8)
        return IS_VNNI ? w : _mm256_and_si256(is_high ? _mm256_srli_epi16(w, 4) : w, nibble);
    w = _mm256_and_si256(g / n > 0 ? _mm256_srli_epi16(w, g / n * n) : w,
                         n == 4 ? nibble : _mm256_set1_epi8(3));
    if (f.table != NUMBERS_PLAIN) {
        const __m256i table = _mm256_broadcastsi128_si256(
            _mm_load_si128((const __m128i *)number_tables[f.table]));
        w = _mm256_shuffle_epi8(table, w);
        if (is_split(f))
            w = _mm256_and_si256(is_high ? _mm256_srli_epi16(w, 4) : w, nibble);
    }
    if (m > 0) {
        const __m256i above = _mm256_set1_epi8((char)(((1 << m) - 1) << n));
        const int up = n - g / (m > 0 ? m : 1) * m;
        __m256i bytes = load(at + format_low_bytes(f) + 64 * (g % (m > 0 ? m : 1)));
        bytes = up >= 0 ? _mm256_slli_epi16(bytes, up >= 0 ? up : 0)
                        : _mm256_srli_epi16(bytes, up < 0 ? -up : 0);
        w = _mm256_or_si256(w, _mm256_and_si256(bytes, above));
    }
    return w;
}

INLINE __m256 load_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
}

INLINE __m256 load_bytes(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* 2^(byte - 128) of eight bytes: stored.h. */
INLINE __m256 load_exponents(const uint8_t *p)
{
    __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(bytes, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), bytes);
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), bytes)));
}

/* row: the first of the half in its panel. wide: of format_widen(). */
INLINE void load_scales(struct scales *s, const uint8_t *unit, const uint8_t *wide, int row, int block,
                        const struct quant_format f)
{
    const int n = BLOCK / f.sub;
    UNROLL
    for (int strip = 0; strip < 2; strip++, row += STRIP) {
        const uint8_t *subs = (f.is_six ? wide : unit + (f.has_min ? 4 : 2) * PANEL_ROWS) +
                              (size_t)(block * n) * PANEL_ROWS + row;
        __m256 scale = f.is_exponent ? load_exponents(unit + block * PANEL_ROWS + row)
                                     : load_halves(unit + format_scale_at(f, block) + 2 * row);
        if (f.is_eighth)
            scale = _mm256_mul_ps(scale, _mm256_set1_ps(0.125f));
        __m256 min = f.has_min && !f.has_zero ? load_halves(unit + 2 * PANEL_ROWS + 2 * row)
                                              : _mm256_setzero_ps();
        if (f.has_zero)
            min = _mm256_mul_ps(scale, _mm256_mul_ps(load_bytes(unit + format_zero_at(f, block) + row),
                                                     _mm256_set1_ps(1.0f / (float)input_factor(f))));
        UNROLL
        for (int i = 0; i < n; i++, subs += PANEL_ROWS) {
            if (f.is_joint) {
                __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)subs));
                __m256i low = _mm256_and_si256(both, _mm256_set1_epi32(15));
                s->scale[i][strip] = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(low));
                s->min[i][strip] = _mm256_mul_ps(min, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4)));
            } else {
                s->scale[i][strip] = f.is_super ? _mm256_mul_ps(scale, load_bytes(subs)) : scale;
                s->min[i][strip] = f.is_super && f.has_min
                                       ? _mm256_mul_ps(min, load_bytes(subs + format_subs_bytes(f)))
                                       : min;
            }
        }
    }
}

/* An input row's part of the factors of a run. */
struct row_factors {
    __m256 magic_d, d, least[2];
};

INLINE void load_row(struct row_factors *c, const struct scaled_row *row, const struct quant_format f)
{
    c->magic_d = _mm256_set1_ps(row->magic_d);
    c->d = _mm256_set1_ps(row->d);
    for (int run = 0; f.has_min && run < BLOCK / f.sub; run++)
        c->least[run] = _mm256_fmsub_ps(_mm256_castsi256_ps(_mm256_set1_epi32(row->start[run])), c->d,
                                        c->magic_d);
}

/* What the sum of a run starts with. */
INLINE __m256i load_start(const struct scaled_row *row, const int run, const struct quant_format f)
{
    return f.zero == 0 ? _mm256_castps_si256(_mm256_set1_ps(INPUT_MAGIC))
                       : _mm256_set1_epi32(row->start[run]);
}

/* total += the sum of a run, its start included, and after the last run the minimums. */
INLINE __m256 add_run(__m256 total, __m256i sum, const struct row_factors *c, const int strip, const int run,
                      const struct scales *scales, const struct quant_format f)
{
    const int runs = BLOCK / f.sub;
    const __m256 value = _mm256_fmsub_ps(_mm256_castsi256_ps(sum), c->d, c->magic_d);
    total = _mm256_fmadd_ps(value, scales->scale[run][strip], total);
    for (int i = 0; f.has_min && run + 1 == runs && i < runs; i++)
        total = _mm256_fmadd_ps(c->least[i], scales->min[i][strip], total);
    return total;
}

/* One block, of a panel: the parts that its rows share. */
struct block {
    const uint8_t *unit, *first; /* first: half of its numbers */
    const uint8_t *wide;         /* of format_widen() */
    int index;                   /* of the unit */
};

#if IS_VNNI
#include "kernels/x86/avxvnni/many_rows_body.h"
#else
#include "kernels/x86/avx2/passes_body.h"
#endif

INLINE void clear_totals(float *out, int n_rows)
{
    for (int h = 0; h < 2; h++, out += half_rows(n_rows) * LANES)
        for (int i = 0; i < n_rows * LANES; i += STRIP) {
            _mm256_storeu_ps(out + i, _mm256_setzero_ps());
            __asm__("" ::: "memory"); /* otherwise this becomes a slower call of memset */
        }
}

/* sum += the products of a row with a strip, over groups begin..begin + n - 1. q: broadcast groups. */
INLINE __m256i dot_groups(__m256i sum, const uint8_t *at, const __m256i *q, const int begin, const int n,
                          const bool is_high, const struct quant_format f)
{
    if (IS_VNNI) {
        UNROLL
        for (int g = begin; g < begin + n; g++)
            sum = dot_four(sum, unpack_group(at, g, false, f), q[g]);
        return sum;
    }
    const int most = is_split(f) ? 15 : format_largest(f);
    const int fit = most <= 15 ? 8 : most <= 31 ? 4 : 2, step = fit < n ? fit : n;
    UNROLL
    for (int g = begin; g < begin + n; g += step) {
        __m256i narrow = _mm256_maddubs_epi16(unpack_group(at, g, is_high, f), q[g]);
        UNROLL
        for (int k = 1; k < step; k++)
            narrow = _mm256_add_epi16(narrow,
                                      _mm256_maddubs_epi16(unpack_group(at, g + k, is_high, f), q[g + k]));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(is_high ? 16 : 1)));
    }
    return sum;
}

/* The sums of a row with a strip. at: of the strip in the low plane. */
INLINE void single_strip(__m256i *sums, const uint8_t *at, const __m256i *q, const struct quant_format f)
{
    const int runs = BLOCK / f.sub, n = 8 / runs;
    UNROLL
    for (int run = 0; run < runs; run++) {
        sums[run] = dot_groups(_mm256_setzero_si256(), at, q, run * n, n, false, f);
        if (is_split(f))
            sums[run] = dot_groups(sums[run], at, q, run * n, n, true, f);
    }
}

/* wide: room for format_widen(), which stays as it is for the blocks of a unit. */
INLINE struct block block_at(const uint8_t *panel, uint8_t *wide, int b, const struct quant_format f)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    const uint8_t *unit = panel + (size_t)(b / per_unit) * format_unit_bytes(f);
    const uint8_t *first = unit + format_param_bytes(f) + (size_t)(b % per_unit) * 2 * format_half_bytes(f);
    prefetch_part(unit, format_unit_bytes(f), b % per_unit, per_unit, prefetch_weights);
    if (f.is_six && b % per_unit == 0)
        format_widen(wide, unit + 2 * PANEL_ROWS);
    return (struct block){ unit, first, wide, b % per_unit };
}

INLINE struct input input_at(float *total, const uint8_t *tile, int n_rows, int b)
{
    tile += (size_t)b * (size_t)n_rows * (BLOCK + sizeof(struct scaled_row));
    return (struct input){ .q = (const int32_t *)tile,
                           .rows = (const struct scaled_row *)(tile + n_rows * BLOCK),
                           .total = { total, total + half_rows(n_rows) * LANES },
                           .n_rows = n_rows };
}

/* One panel for a single row. The sums of all strips come before their scales, so that the long chains
 * of operations at the end of each overlap. */
INLINE void single_row(float *out, const uint8_t *panel, const struct quant_format f, const uint8_t *tile,
                       int n_blocks)
{
    const size_t half = format_half_bytes(f);
    _Alignas(64) uint8_t wide[FORMAT_WIDE];
    clear_totals(out, 1);
    for (int b = 0; b < n_blocks; b++) {
        const struct block block = block_at(panel, wide, b, f);
        const struct input x = input_at(out, tile, 1, b);
        const __m256i q[8] = { _mm256_set1_epi32(x.q[0]), _mm256_set1_epi32(x.q[1]),
                               _mm256_set1_epi32(x.q[2]), _mm256_set1_epi32(x.q[3]),
                               _mm256_set1_epi32(x.q[4]), _mm256_set1_epi32(x.q[5]),
                               _mm256_set1_epi32(x.q[6]), _mm256_set1_epi32(x.q[7]) };
        struct scales scales[2];
        __m256i sums[4][2];
        load_scales(&scales[0], block.unit, wide, 0, block.index, f);
        load_scales(&scales[1], block.unit, wide, LANES, block.index, f);
        single_strip(sums[0], block.first, q, f);
        single_strip(sums[1], block.first + 32, q, f);
        single_strip(sums[2], block.first + half, q, f);
        single_strip(sums[3], block.first + half + 32, q, f);
        UNROLL
        for (int strip = 0; strip < 4; strip++) {
            __m256 total = _mm256_loadu_ps(out + strip * STRIP);
            struct row_factors c;
            load_row(&c, x.rows, f);
            UNROLL
            for (int run = 0; run < BLOCK / f.sub; run++)
                total = add_run(total, _mm256_add_epi32(sums[strip][run], load_start(x.rows, run, f)), &c,
                                strip % 2, run, &scales[strip / 2], f);
            _mm256_storeu_ps(out + strip * STRIP, total);
        }
    }
}

/* One panel for several rows. */
INLINE void many_rows(float *out, const uint8_t *panel, const struct quant_format f, const uint8_t *tile,
                      int n_rows, int n_blocks)
{
    _Alignas(64) uint8_t wide[FORMAT_WIDE];
    clear_totals(out, n_rows);
    for (int b = 0; b < n_blocks; b++) {
        const struct block block = block_at(panel, wide, b, f);
        const struct input x = input_at(out, tile, n_rows, b);
        all_rows(&x, &block, f);
    }
}

/* Each variant is a function of its own: the compiler would keep what they have in common on the stack. */
#define VARIANT(name)                                                                                        \
    static __attribute__((noinline)) void name(float *out, const uint8_t *panel, const uint8_t *x,           \
                                               int n_rows, int n_blocks)
#define LINEAR(name, dtype, variant)                                                                         \
    VARIANT(name##_single)                                                                                   \
    {                                                                                                        \
        (void)n_rows;                                                                                        \
        single_row(out, panel, quant_format(dtype), x, n_blocks);                                            \
    }                                                                                                        \
    VARIANT(name##_many)                                                                                     \
    {                                                                                                        \
        many_rows(out, panel, quant_format(dtype), x, n_rows, n_blocks);                                     \
    }                                                                                                        \
    void linear_##name##_##variant(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)    \
    {                                                                                                        \
        if (n_rows == 1)                                                                                     \
            name##_single(out, panel, x, n_rows, n_in / BLOCK);                                              \
        else                                                                                                 \
            name##_many(out, panel, x, n_rows, n_in / BLOCK);                                                \
    }

#endif
