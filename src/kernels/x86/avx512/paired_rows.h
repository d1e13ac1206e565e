/* A software pipeline like that of many_rows.h, with products of which three quarters are paired (input_block.h): ten dot
 * products for the eight groups of columns and both halves instead of 16, and 14 additions, which do not need a multiplier.
 *
 * A row passes through four stages, NEW, SECOND, THIRD and OLD: while its last one runs, the next three rows are in those before.
 *
 * A sum becomes a float times 8 + step by one operation, (magic + sum) (8 + step) - magic (8 + step), which is exact. So there
 * is no table of multiples of the scales. %[rows] is the place of struct paired_row, %[multiples] of struct paired_block. */
#ifndef TUTTI_KERNELS_X86_AVX512_PAIRED_ROWS_H
#define TUTTI_KERNELS_X86_AVX512_PAIRED_ROWS_H

#include "kernels/x86/avx512/many_rows.h"

/* clang-format off */
#define STEP    "%%zmm26"
#define SUM_Q   "%%zmm27" /* q + v + 128 and r + w of half 0 */
#define SUM_R   "%%zmm28"
#define PAIR_R  "%%zmm29" /* r, then r + w of half 1 */
#define PAIR_Q  "%%zmm30" /* q, then q + v + 128 of half 1 */

/* The operations of a row. p: its sums; g: a group of the columns. */
#define FIRST(row, p)        "vpbroadcastd 16*(" #row ")(%[start],%[i]), " SUM_##p##0 "\n\t"
#define BOTH(p)              "vmovdqa64 " SUM_##p##0 ", " SUM_##p##1 "\n\t"
#define GROUP(row, g, to)    "vpbroadcastd 32*(" #row ")+4*" #g "(%[q],%[i],2), " to "\n\t"
#define DOT(p, half, g)      "vpdpbusd " INPUT ", %[w" #half #g "], " SUM_##p##half "\n\t"
#define PLUS(x, half, g, to) "vpaddb " x ", %[w" #half #g "], " to "\n\t"
#define PAIR(x, y, p, half)  "vpdpbusd " x ", " y ", " SUM_##p##half "\n\t"
#define LESS(p, half)        "vpsubd 64*" #half "(%[multiples]), " SUM_##p##half ", " SUM_##p##half "\n\t"
#define ROW_STEP(row)        "vbroadcastss 16*(" #row ")+12(%[rows],%[i]), " STEP "\n\t"
#define FLOAT(row, p, half)  "vfmsub213ps 16*(" #row ")+8(%[rows],%[i])%{1to16%}, " STEP ", " SUM_##p##half "\n\t"
#define SCALE(row, p, half)  "vfmadd213ps 64*(" #row ")(%[total" #half "],%[i],4), %[scale" #half "], " SUM_##p##half "\n\t"
#define STORE(row, p, half)  "vmovups " SUM_##p##half ", 64*(" #row ")(%[total" #half "],%[i],4)\n\t"
#define PAIRED_NO_MIN(row, p, half) ""
#define PAIRED_ADD_MIN(row, p, half)                                                                       \
    "vbroadcastss 16*(" #row ")(%[rows],%[i]), " STEP "\n\t"                                               \
    "vfmadd231ps 128+64*" #half "(%[multiples]), " STEP ", " SUM_##p##half "\n\t"

/* One stage of each of four rows: n with the sums a begins, o with the sums d ends. NEW, SECOND, THIRD and OLD keep or leave out
 * the operations of a stage.  */
#define PAIRED_STEP(NEW, SECOND, THIRD, OLD, n, a, t, b, s, c, o, d, min)                                  \
    NEW(FIRST(n, a)) NEW(BOTH(a)) NEW(GROUP(n, 0, INPUT)) NEW(DOT(a, 0, 0)) NEW(DOT(a, 1, 0))              \
    SECOND(GROUP(t, 4, PAIR_Q)) SECOND(GROUP(t, 7, PAIR_R)) SECOND(PLUS(PAIR_Q, 0, 7, SUM_Q))              \
    SECOND(PLUS(PAIR_R, 0, 4, SUM_R)) SECOND(PLUS(PAIR_Q, 1, 7, PAIR_Q))                                   \
    SECOND(PLUS(PAIR_R, 1, 4, PAIR_R)) SECOND(PAIR(SUM_R, SUM_Q, b, 0))                                    \
    SECOND(PAIR(PAIR_R, PAIR_Q, b, 1)) THIRD(GROUP(s, 2, PAIR_Q)) THIRD(GROUP(s, 5, PAIR_R))               \
    THIRD(PLUS(PAIR_Q, 0, 5, SUM_Q)) THIRD(PLUS(PAIR_R, 0, 2, SUM_R)) THIRD(PLUS(PAIR_Q, 1, 5, PAIR_Q))    \
    THIRD(PLUS(PAIR_R, 1, 2, PAIR_R)) THIRD(PAIR(SUM_R, SUM_Q, c, 0)) THIRD(PAIR(PAIR_R, PAIR_Q, c, 1))    \
    OLD(LESS(d, 0)) OLD(LESS(d, 1)) OLD(ROW_STEP(o)) OLD(FLOAT(o, d, 0)) OLD(FLOAT(o, d, 1))               \
    OLD(SCALE(o, d, 0) min(o, d, 0)) OLD(STORE(o, d, 0)) NEW(GROUP(n, 1, INPUT)) NEW(DOT(a, 0, 1))         \
    NEW(DOT(a, 1, 1)) SECOND(GROUP(t, 3, PAIR_Q)) SECOND(GROUP(t, 6, PAIR_R))                              \
    SECOND(PLUS(PAIR_Q, 0, 6, SUM_Q)) SECOND(PLUS(PAIR_R, 0, 3, SUM_R))                                    \
    SECOND(PLUS(PAIR_Q, 1, 6, PAIR_Q)) SECOND(PLUS(PAIR_R, 1, 3, PAIR_R))                                  \
    SECOND(PAIR(SUM_R, SUM_Q, b, 0)) SECOND(PAIR(PAIR_R, PAIR_Q, b, 1)) OLD(SCALE(o, d, 1) min(o, d, 1))   \
    OLD(STORE(o, d, 1))
#define PAIRED_AHEAD "prefetcht0 %c[ahead](%[start],%[i])\n\t"
#define PAIRED_OUTPUTS
#define PAIRED_INPUTS , [scale0] "v"(w->scale[0][0]), [scale1] "v"(w->scale[1][0])
#define PAIRED_CLOBBERS
#define KEEP(operation) operation
#define LEAVE(operation)

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
