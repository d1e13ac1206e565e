/* Rows of float16 as the inputs of linear layers: each row is multiplied by the power of two that brings its largest magnitude to
 * 2^14 or more and below 2^15. Norms make them, or a conversion before a linear layer; both give the same bits. */
#ifndef TUTTI_KERNELS_CUDA_HALVES_H
#define TUTTI_KERNELS_CUDA_HALVES_H

#include "kernels/cuda/device.h"

/* Rows lie one after another, or, for level 90, as its matrix instructions take them (piece_rows > 0): pieces of 8 columns, in
 * which each of piece_rows rows has 16 bytes. A piece has the columns that the lanes' parts of a step of linear layers
 * (linear_args.h) need together: number 8 s + 2 j + b has columns 64 s + 16 t + 4 j + 2 b and the next one for t = 0 to 3. */

/* Where a pair of columns of a row is, in pairs. column: even. */
DEVICE int64_t half_pair_at(int piece_rows, int stride, int row, int column)
{
    if (piece_rows == 0)
        return ((int64_t)row * stride + column) / 2;
    int piece = column / 64 * 8 + column % 16 / 2;
    return ((int64_t)piece * piece_rows + row) * 4 + column % 64 / 16;
}

/* Four columns of a row. column: a multiple of 4. */
DEVICE void store_halves(void *to, int piece_rows, int stride, int row, int column, half2 first, half2 second)
{
    half2 *at = (half2 *)to + half_pair_at(piece_rows, stride, row, column);
    if (piece_rows == 0) {
        *(u32x2 *)at = (u32x2){ first, second };
        return;
    }
    at[0] = first;
    at[(int64_t)piece_rows * 4] = second;
}

/* The magnitude of a float as bits, which are in the order of the magnitudes; a NaN is the largest. */
DEVICE uint32_t larger_magnitude(uint32_t largest, float x)
{
    uint32_t bits = f32_bits(x) & 0x7fffffff;
    return bits > largest ? bits : largest;
}

/* Block: the largest of all threads' v. of_warps: shared, [n_warps]. */
DEVICE uint32_t block_max(uint32_t v, uint32_t *of_warps, const int n_warps)
{
    v = warp_max_u32(v, WARP);
    if (lane_id() == 0)
        of_warps[warp_id()] = v;
    block_sync();
    UNROLL for (int i = 0; i < n_warps; i++) v = of_warps[i] > v ? of_warps[i] : v;
    return v;
}

/* The factor of a row whose largest magnitude has these bits, and its inverse: NaN for a row with NaN or infinity. Both are
 * normal numbers, so a row whose largest magnitude is below 2^-112 is not brought all the way; a row of zeros keeps them. */
DEVICE float half_factor(uint32_t largest, float *inverse)
{
    /* 2^(141 - exponent): the exponents of 2^14 and 1 are 141 and 127. */
    uint32_t exponent = largest >> 23, up = largest == 0 ? 127 : 268 - (exponent < 15 ? 15 : exponent);
    *inverse = exponent == 255 ? bits_f32(0x7fc00000) : bits_f32((254 - up) << 23);
    return bits_f32(up << 23);
}

#endif
