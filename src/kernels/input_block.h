/* Activations quantized to int8, the input of the kernels for quantized weights. A tile of n rows
 * is, for each block of 32 columns,
 *     { int8 q[n][32]; struct input_row rows[n]; }
 * where x = q * d for the columns of a block.
 *
 * d is the smallest number with four significant bits, (8 + step) * 2^e, that is not below max|x|
 * / format_most_input(). So d times the integer sum of a block is exact in float32, and so are the weights'
 * scales times 8 + step: a block adds to the output one fused multiply-add of exact factors,
 * however they are grouped. Rounding d up makes the activations' error 4 % larger on average.
 *
 * The factor 2^e costs no multiplication. A sum of integers that starts at the bits of the float
 * magic = 1.5 * 2^(23+e) and stays below 2^22 is, read as a float, magic + sum * 2^e; to subtract
 * magic is exact.
 *
 * Numbers of four bits allow a block to be multiplied with fewer multiplications (Winograd, 1968, A New Algorithm for
 * Inner Product). For two columns with weights w, v and inputs q, r,
 *     w q + v r = (q + v)(r + w) - q r - v w,
 * where the last two products depend on the input row or on the output row only. Sums q + v fit bytes if q and r
 * leave room for the weights; as one factor of vpdpbusd is unsigned, it is q + v + 128, and
 *     w q + v r = (q + v + 128)(r + w) - (q + 128) r - (v + 128) w.
 * The columns 8 to 19 of a block (q, w) are paired with 20 to 31 (r, v), of which the weights are those less
 * format_middle(). Kernels that do so (x86/avx512/paired_rows.h) have tiles with struct paired_row in place of input_row. */
#ifndef TUTTI_KERNELS_INPUT_BLOCK_H
#define TUTTI_KERNELS_INPUT_BLOCK_H

#include "base/half.h"
#include "kernels/formats.h"

#include <math.h>

enum { INPUT_STEPS = 8 };

struct input_row {
    /* Bits of magic - factor * sum(q), over each run of the format's sub columns; factor: the
     * format's zero point, or 1 where it has none. Where there is one run, [1] is the same. */
    int32_t start[2];
    float magic; /* NaN: the row is NaN */
    float d;     /* where all q are 0: magic */
};

/* The same row for kernels of AVX2 and AVX-VNNI. A sum that starts at INPUT_MAGIC's bits, read as a float, is
 * INPUT_MAGIC + sum. One multiply-subtract, which is exact, makes sum * d of it: (INPUT_MAGIC + sum) d - INPUT_MAGIC d. */
struct scaled_row {
    int32_t start[2]; /* bits of INPUT_MAGIC, minus factor * sum(q) as in input_row */
    float magic_d, d; /* magic_d: INPUT_MAGIC d */
};
#define INPUT_MAGIC 0x1.8p23f

/* Of d: 0..7. Kernels in assembly read it as byte 2 of d, of which it is the bits 4 to 6. */
static inline int input_step(const struct input_row *row)
{
    return (int)(float_bits(row->d) >> 20 & (INPUT_STEPS - 1));
}

/* The zero point that the initial sums of a block account for, or 1. */
static inline __attribute__((always_inline)) int input_factor(struct quant_format f)
{
    return f.zero == 0 ? 1 : f.zero;
}

/* Sets magic and d from max|x|, and returns 1 / d, to multiply x by. 0: all q are 0, because
 * max is below 2^-100, or (then magic is NaN) too large for exact products (2^110), infinite or
 * NaN. */
static inline __attribute__((always_inline)) float input_scale(struct input_row *row, float max,
                                                               struct quant_format f)
{
    static const float INVERSE[INPUT_STEPS] = { 1.0f / 8,  1.0f / 9,  1.0f / 10, 1.0f / 11,
                                                1.0f / 12, 1.0f / 13, 1.0f / 14, 1.0f / 15 };
    if (!(max >= 0x1p-100f && max < 0x1p110f)) {
        row->magic = row->d = max < 0x1p-100f ? 0x1.8p23f : (float)NAN;
        return 0;
    }
    uint32_t bits = float_bits(max * (1.0f / (float)format_most_input(f)));
    uint32_t top = (bits + (1u << 20) - 1) >> 20; /* rounded up */
    uint32_t exponent = (top >> 3) - 3;           /* e, biased */
    row->magic = bits_float((exponent + 23) << 23 | 1u << 22);
    row->d = bits_float(top << 20);
    return INVERSE[top & 7] * bits_float((254 - exponent) << 23);
}

/* Sets the initial sums, after input_scale(). sums: of q over each half of the block. */
static inline __attribute__((always_inline)) void input_set_start(struct input_row *row, const int sums[2],
                                                                  struct quant_format f)
{
    const int32_t bits = (int32_t)float_bits(row->magic), factor = input_factor(f);
    row->start[0] = bits - (f.sub == BLOCK ? sums[0] + sums[1] : sums[0]) * factor;
    row->start[1] = f.sub == BLOCK ? row->start[0] : bits - sums[1] * factor;
}

/* -sum(q) of run 0 or 1, times the format's factor. */
static inline int32_t input_start(const struct input_row *row, int run)
{
    return (int32_t)((uint32_t)row->start[run] - float_bits(row->magic));
}

static inline __attribute__((always_inline)) struct scaled_row scaled_row(const struct input_row *row)
{
    const uint32_t bits = float_bits(INPUT_MAGIC);
    return (struct scaled_row){ .start = { (int32_t)(bits + (uint32_t)input_start(row, 0)),
                                           (int32_t)(bits + (uint32_t)input_start(row, 1)) },
                                .magic_d = INPUT_MAGIC * row->d,
                                .d = row->d };
}

#endif
