/* A software pipeline like that of many_rows.h, with products of which three quarters are paired (input_block.h): ten dot
 * products for the eight groups of columns and both halves instead of 16, and 14 additions, which do not need a multiplier.
 *
 * A row passes through four stages, NEW, SECOND, THIRD and OLD: while its last one runs, the next three rows are in those before.
 *
 * A sum becomes a float times d by one operation, (magic + sum) d - magic d, which is exact. So there is no table of multiples of
 * the scales. %[rows] is the place of struct paired_row, %[multiples] of struct paired_block. */
#ifndef TUTTI_KERNELS_X86_AVX512_PAIRED_ROWS_H
#define TUTTI_KERNELS_X86_AVX512_PAIRED_ROWS_H

#include "kernels/x86/avx512/many_rows.h"

/* clang-format off */
#define SUM_Q   "%%zmm27" /* q + v + 128 and r + w of half 0 */
#define SUM_R   "%%zmm28"
#define PAIR_R  "%%zmm29" /* r, then r + w of half 1 */
#define PAIR_Q  INPUT     /* q, then q + v + 128 of half 1 */
/* Of the registers that PAIR() uses, but not at the same time. */
#define FACTOR_D PAIR_R
#define MAGIC_D  SUM_R

/* The sums begin without the products of weights. */
#define PAIRED_BEGIN(row, p)                                                                               \
    "vpbroadcastd 16*(" #row ")+4(%[rows],%[i]), " INPUT "\n\t"                                            \
    "vpsubd %[extra0], " INPUT ", " SUM_##p##0 "\n\t"                                                      \
    "vpsubd %[extra1], " INPUT ", " SUM_##p##1 "\n\t"

/* Groups g and h of the columns, q and r: %[w] of h are v + 128. */
#define PAIR(row, p, g, h)                                                                                 \
    "vpbroadcastd 32*(" #row ")+4*" #g "(%[q],%[i],2), " PAIR_Q "\n\t"                                     \
    "vpbroadcastd 32*(" #row ")+4*" #h "(%[q],%[i],2), " PAIR_R "\n\t"                                     \
    "vpaddb " PAIR_Q ", %[w0" #h "], " SUM_Q "\n\t"                                                        \
    "vpaddb " PAIR_R ", %[w0" #g "], " SUM_R "\n\t"                                                        \
    "vpaddb " PAIR_Q ", %[w1" #h "], " PAIR_Q "\n\t"                                                       \
    "vpaddb " PAIR_R ", %[w1" #g "], " PAIR_R "\n\t"                                                       \
    "vpdpbusd " SUM_R ", " SUM_Q ", " SUM_##p##0 "\n\t"                                                    \
    "vpdpbusd " PAIR_R ", " PAIR_Q ", " SUM_##p##1 "\n\t"

/* Makes floats of the sums and multiplies them by d. */
#define FLOATS(row, p)                                                                                     \
    "vbroadcastss 16*(" #row ")+12(%[rows],%[i]), " FACTOR_D "\n\t"                                        \
    "vbroadcastss 16*(" #row ")+8(%[rows],%[i]), " MAGIC_D "\n\t"                                          \
    "vfmsub213ps " MAGIC_D ", " FACTOR_D ", " SUM_##p##0 "\n\t"                                            \
    "vfmsub213ps " MAGIC_D ", " FACTOR_D ", " SUM_##p##1 "\n\t"

/* Adds to the total of one half, after FLOATS(). min: PAIRED_NO_MIN or PAIRED_ADD_MIN. */
#define SCALED(row, p, half, min)                                                                          \
    "vfmadd213ps 64*(" #row ")(%[total" #half "],%[i],4), %[scale" #half "], " SUM_##p##half "\n\t"        \
    min(row, p, half)                                                                                      \
    "vmovups " SUM_##p##half ", 64*(" #row ")(%[total" #half "],%[i],4)\n\t"
#define PAIRED_NO_MIN(row, p, half) ""
#define PAIRED_ADD_MIN(row, p, half)                                                                       \
    "vbroadcastss 16*(" #row ")(%[rows],%[i]), " FACTOR_D "\n\t"                                           \
    "vfmadd231ps 64*" #half "(%[multiples]), " FACTOR_D ", " SUM_##p##half "\n\t"

/* One stage of each of four rows: n with the sums a begins, o with the sums d ends. NEW, SECOND, THIRD and OLD keep or leave out a
 * stage. */
#define PAIRED_STEP(NEW, SECOND, THIRD, OLD, n, a, t, b, s, c, o, d, min)                                  \
    NEW(PAIRED_BEGIN(n, a) DOTS(n, a, 0)) SECOND(PAIR(t, b, 4, 7)) THIRD(PAIR(s, c, 2, 5))                 \
    OLD(FLOATS(o, d) SCALED(o, d, 0, min))                                                                 \
    NEW(DOTS(n, a, 1)) SECOND(PAIR(t, b, 3, 6)) OLD(SCALED(o, d, 1, min))
#define KEEP(stage) stage
#define LEAVE(stage)

#define PAIRED_OUTPUTS
#define PAIRED_INPUTS                                                                                      \
    , [scale0] "v"(w->scale[0][0]), [scale1] "v"(w->scale[1][0]), [extra0] "v"(extra[0]), [extra1] "v"(extra[1])
#define PAIRED_CLOBBERS
#define PAIRED_FILL(min, table)                                                                            \
    PAIRED_STEP(KEEP, LEAVE, LEAVE, LEAVE, 0, A, -1, D, -2, C, -3, B, PAIRED_##min)                        \
    PAIRED_STEP(KEEP, KEEP, LEAVE, LEAVE, 1, B, 0, A, -1, D, -2, C, PAIRED_##min)                          \
    PAIRED_STEP(KEEP, KEEP, KEEP, LEAVE, 2, C, 1, B, 0, A, -1, D, PAIRED_##min)                            \
    PAIRED_NEXT_3(min, table)
#define PAIRED_NEXT_0(min, table) PAIRED_STEP(KEEP, KEEP, KEEP, KEEP, 0, A, -1, D, -2, C, -3, B, PAIRED_##min)
#define PAIRED_NEXT_1(min, table) PAIRED_STEP(KEEP, KEEP, KEEP, KEEP, 1, B, 0, A, -1, D, -2, C, PAIRED_##min)
#define PAIRED_NEXT_2(min, table) PAIRED_STEP(KEEP, KEEP, KEEP, KEEP, 2, C, 1, B, 0, A, -1, D, PAIRED_##min)
#define PAIRED_NEXT_3(min, table) PAIRED_STEP(KEEP, KEEP, KEEP, KEEP, 3, D, 2, C, 1, B, 0, A, PAIRED_##min)
/* The last three rows, t, s and o. */
#define PAIRED_DRAIN(t, b, s, c, o, d, min)                                                                \
    PAIRED_STEP(LEAVE, KEEP, KEEP, KEEP, 0, A, t, b, s, c, o, d, PAIRED_##min)                             \
    PAIRED_STEP(LEAVE, LEAVE, KEEP, KEEP, 0, A, 0, A, t, b, s, c, PAIRED_##min)                            \
    PAIRED_STEP(LEAVE, LEAVE, LEAVE, KEEP, 0, A, 0, A, 0, A, t, b, PAIRED_##min)
#define PAIRED_DRAIN_0(min, table) PAIRED_DRAIN(-1, D, -2, C, -3, B, min)
#define PAIRED_DRAIN_1(min, table) PAIRED_DRAIN(0, A, -1, D, -2, C, min)
#define PAIRED_DRAIN_2(min, table) PAIRED_DRAIN(1, B, 0, A, -1, D, min)
#define PAIRED_DRAIN_3(min, table) PAIRED_DRAIN(2, C, 1, B, 0, A, min)
/* clang-format on */

#endif
