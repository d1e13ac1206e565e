/* Transposes matrices of 16-bit and 32-bit elements by whole cache lines: 64 bytes of several rows at a time.
 *
 * Vectors of 16 bytes, which every processor has registers for; the compiler maps a shuffle to one instruction. */
#ifndef TUTTI_BASE_TRANSPOSE_H
#define TUTTI_BASE_TRANSPOSE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TRANSPOSE_INLINE static inline __attribute__((always_inline))

enum { TRANSPOSE_LINE = 64 }; /* bytes of a row */

typedef uint32_t transpose_u32 __attribute__((vector_size(16)));
typedef uint16_t transpose_u16 __attribute__((vector_size(16)));

TRANSPOSE_INLINE transpose_u32 transpose_low(transpose_u32 a, transpose_u32 b)
{
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}

TRANSPOSE_INLINE transpose_u32 transpose_high(transpose_u32 a, transpose_u32 b)
{
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

/* out[c] = column c of the rows a[0..3]. */
TRANSPOSE_INLINE void transpose_4x4(transpose_u32 out[4], const transpose_u32 a[4])
{
    transpose_u32 low02 = transpose_low(a[0], a[2]), low13 = transpose_low(a[1], a[3]);
    transpose_u32 high02 = transpose_high(a[0], a[2]), high13 = transpose_high(a[1], a[3]);
    out[0] = transpose_low(low02, low13);
    out[1] = transpose_high(low02, low13);
    out[2] = transpose_low(high02, high13);
    out[3] = transpose_high(high02, high13);
}

/* 16 columns of n_rows rows, a multiple of 4. to: [16][n_rows], stride bytes from one to the next. */
TRANSPOSE_INLINE void transpose_lines32(uint8_t *to, size_t stride, const uint8_t *const *rows, int n_rows)
{
    for (int r = 0; r < n_rows; r += 4)
        for (size_t c = 0; c < TRANSPOSE_LINE; c += 16) {
            transpose_u32 in[4], out[4];
            for (int i = 0; i < 4; i++)
                memcpy(&in[i], rows[r + i] + c, 16);
            transpose_4x4(out, in);
            for (size_t i = 0; i < 4; i++)
                memcpy(to + (c / 4 + i) * stride + 4 * (size_t)r, &out[i], 16);
        }
}

/* 32 columns of n_rows rows, a multiple of 8. to: [32][n_rows]. Pairs of elements are interleaved, then transposed as
 * words: columns 2k and 2k + 1 of rows r and r + 1 become a word each. */
TRANSPOSE_INLINE void transpose_lines16(uint8_t *to, size_t stride, const uint8_t *const *rows, int n_rows)
{
    for (int r = 0; r < n_rows; r += 8)
        for (size_t c = 0; c < TRANSPOSE_LINE; c += 16) {
            transpose_u32 low[4], high[4], out[4]; /* columns 0..3 and 4..7, rows in pairs */
            for (int i = 0; i < 4; i++) {
                transpose_u16 a, b;
                memcpy(&a, rows[r + 2 * i] + c, 16);
                memcpy(&b, rows[r + 2 * i + 1] + c, 16);
                low[i] = (transpose_u32)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
                high[i] = (transpose_u32)__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
            }
            transpose_4x4(out, low);
            for (size_t i = 0; i < 4; i++)
                memcpy(to + (c / 2 + i) * stride + 2 * (size_t)r, &out[i], 16);
            transpose_4x4(out, high);
            for (size_t i = 0; i < 4; i++)
                memcpy(to + (c / 2 + 4 + i) * stride + 2 * (size_t)r, &out[i], 16);
        }
}

/* The same of elements of either size, 2 or 4 bytes. */
TRANSPOSE_INLINE void transpose_lines(uint8_t *to, size_t stride, const uint8_t *const *rows, int n_rows,
                                      size_t size)
{
    if (size == 4)
        transpose_lines32(to, stride, rows, n_rows);
    else
        transpose_lines16(to, stride, rows, n_rows);
}

#endif
