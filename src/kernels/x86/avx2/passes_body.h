/* Several input rows with AVX2 only, for linear_quantized_body.h.
 *
 * A pass keeps four groups of two strips of eight output rows in eight registers and runs over the input
 * rows: each broadcast serves both strips. Sums over several passes are carried in memory. */
#ifndef TUTTI_KERNELS_X86_AVX2_PASSES_BODY_H
#define TUTTI_KERNELS_X86_AVX2_PASSES_BODY_H

#include "kernels/x86/avx2/many_rows.h"

/* Four groups of two strips. half: of a block. */
INLINE void unpack_groups(__m256i (*w)[4], const uint8_t *half, const int group, const bool is_high,
                          const struct quant_format f)
{
    UNROLL
    for (int i = 0; i < 8; i++)
        w[i / 4][i % 4] = unpack_group(half + 32 * (i / 4), group + i % 4, is_high, f);
}

/* Sums of the passes before, for each input row and strip. */
struct carry {
    __m256i narrow[TILE_ROWS][2], wide[TILE_ROWS][2]; /* in 16 bits, in 32 bits */
};

/* A pass: four groups of columns from group on, of which numbers wider than a nibble take two. */
struct pass {
    int group, run;
    bool is_high;                  /* the upper nibbles */
    bool adds_narrow, adds_wide;   /* sums that were carried */
    bool keeps_narrow, keeps_wide; /* the sum is carried; neither: it goes into the total */
};

INLINE __m256i dot_two(const __m256i *w, const __m256i *q)
{
    return _mm256_add_epi16(_mm256_maddubs_epi16(w[0], q[0]), _mm256_maddubs_epi16(w[1], q[1]));
}

/* The sum over four groups of a strip, which is carried in 16 bits or has 32. narrow: the sum before. */
INLINE __m256i dot_strip(const __m256i *w, const __m256i *q, const __m256i *narrow, const struct pass p,
                         const struct quant_format f)
{
    const bool is_wide = format_largest(f) > 31 && !is_split(f); /* four groups do not fit 16 bits */
    const __m256i factor = _mm256_set1_epi16(p.is_high ? 16 : 1);
    __m256i sum = dot_two(w, q), more = dot_two(w + 2, q + 2);
    if (is_wide)
        return _mm256_add_epi32(_mm256_madd_epi16(sum, factor), _mm256_madd_epi16(more, factor));
    sum = _mm256_add_epi16(sum, more);
    if (p.adds_narrow)
        sum = _mm256_add_epi16(sum, *narrow);
    return _mm256_madd_epi16(sum, factor);
}

/* w: [strip][group]. total: of the half. */
INLINE void pass_row(const struct input *x, float *total, int r, __m256i (*w)[4], const struct pass p,
                     struct carry *carry, const struct scales *scales, const struct quant_format f)
{
    const int32_t *at = x->q + r * 8 + p.group;
    const __m256i q[4] = { _mm256_set1_epi32(at[0]), _mm256_set1_epi32(at[1]), _mm256_set1_epi32(at[2]),
                           _mm256_set1_epi32(at[3]) };
    __m256i a = dot_strip(w[0], q, &carry->narrow[r][0], p, f);
    __m256i b = dot_strip(w[1], q, &carry->narrow[r][1], p, f);
    total += r * LANES;
    if (p.adds_wide) {
        a = _mm256_add_epi32(a, carry->wide[r][0]);
        b = _mm256_add_epi32(b, carry->wide[r][1]);
    }
    if (p.keeps_wide) {
        carry->wide[r][0] = a;
        carry->wide[r][1] = b;
        return;
    }
    struct row_factors c;
    const __m256i start = load_start(x->rows + r, p.run, f);
    load_row(&c, x->rows + r, f);
    __m256 first = add_run(_mm256_loadu_ps(total), _mm256_add_epi32(a, start), &c, 0, p.run, scales, f);
    __m256 second = add_run(_mm256_loadu_ps(total + STRIP), _mm256_add_epi32(b, start), &c, 1, p.run, scales,
                            f);
    _mm256_storeu_ps(total, first);
    _mm256_storeu_ps(total + STRIP, second);
}

/* Sums of the groups 0 to 3, to sums->narrow. */
INLINE void first_pass(const struct input *x, __m256i (*w)[4], struct carry *sums)
{
    int64_t i = 0;
    FIRST_PASS;
}

/* Adds the groups 4 to 7 and sums of the passes before to the totals, with one run per block. */
INLINE void last_pass(const struct input *x, float *total, __m256i (*w)[4], const struct pass p,
                      const struct carry *sums, const struct scales *scales, const struct quant_format f)
{
    const int32_t *q = x->q + 4;
    static const float MAGIC = INPUT_MAGIC;
    int64_t i = 0;
    if (p.adds_narrow && p.adds_wide)
        LAST_PASSES(BOTH);
    else if (p.adds_narrow)
        LAST_PASSES(NARROW);
    else
        LAST_PASSES(WIDE);
}

/* Whether last_pass() has the pass: the last of a block with one run, of which four groups fit 16 bits. */
INLINE bool is_pipelined(const struct pass p, const struct quant_format f)
{
    const bool fits = format_largest(f) <= 31 || is_split(f);
    return f.sub == BLOCK && fits && !p.keeps_narrow && !p.keeps_wide;
}

INLINE void run_pass(const struct input *x, float *total, const uint8_t *half, const struct pass p,
                     struct carry *carry, const struct scales *scales, const struct quant_format f)
{
    __m256i w[2][4];
    unpack_groups(w, half, p.group, p.is_high, f);
    if (p.keeps_narrow) {
        first_pass(x, w, carry);
    } else if (is_pipelined(p, f)) {
        last_pass(x, total, w, p, carry, scales, f);
    } else {
        for (int r = 0; r < x->n_rows; r++)
            pass_row(x, total, r, w, p, carry, scales, f);
    }
}

/* The passes over all numbers of a run, or over one nibble of each. */
INLINE void run_part(const struct input *x, float *total, const uint8_t *half, const int run,
                     const bool is_high, struct carry *carry, const struct scales *scales,
                     const struct quant_format f)
{
    /* Eight groups fit 16 bits where numbers have four bits, or are split. */
    const bool is_narrow = (format_largest(f) <= 15 || is_split(f)), is_long = f.sub == BLOCK;
    struct pass p = { .group = 4 * run, .run = run, .is_high = is_high };
    if (is_long) {
        p.keeps_narrow = is_narrow;
        p.keeps_wide = !is_narrow;
        run_pass(x, total, half, p, carry, scales, f);
        p = (struct pass){
            .group = 4, .is_high = is_high, .adds_narrow = is_narrow, .adds_wide = !is_narrow
        };
    }
    p.adds_wide = p.adds_wide || is_high;
    p.keeps_wide = is_split(f) && !is_high;
    run_pass(x, total, half, p, carry, scales, f);
}

/* All passes over half a block. total: of the half. */
INLINE void half_block(const struct input *x, float *total, const uint8_t *half, struct carry *carry,
                       const struct scales *scales, const struct quant_format f)
{
    run_part(x, total, half, 0, false, carry, scales, f);
    if (is_split(f))
        run_part(x, total, half, 0, true, carry, scales, f);
    if (f.sub == BLOCK)
        return;
    run_part(x, total, half, 1, false, carry, scales, f);
    if (is_split(f))
        run_part(x, total, half, 1, true, carry, scales, f);
}

/* All rows of a block. */
INLINE void all_rows(const struct input *x, const struct block *block, const struct quant_format f)
{
    struct carry carry;
    for (int h = 0; h < 2; h++) {
        struct scales scales;
        load_scales(&scales, block->unit, block->wide, h * LANES, block->index, f);
        half_block(x, x->total[h], block->first + (size_t)h * format_half_bytes(f), &carry, &scales, f);
    }
}

#endif
