/* The pipeline of many_rows.h with products of which half are paired (input_block.h): 12 dot products for the eight groups of
 * columns and both halves, instead of 16, and 10 additions, which do not need a multiplier.
 *
 * A row passes through four stages: while its last one runs, the next three rows are in those before. */
#ifndef TUTTI_KERNELS_X86_AVX512_PAIRED_ROWS_H
#define TUTTI_KERNELS_X86_AVX512_PAIRED_ROWS_H

#include "kernels/x86/avx512/many_rows.h"

/* clang-format off */
/* What the products of each half contain that does not depend on the inputs. */
#define EXTRA_0 "%%zmm24"
#define EXTRA_1 "%%zmm25"
/* Of the registers that ADD() uses, but not at the same time. */
#define PAIR_0 INPUT
#define PAIR_1 "%%zmm29"
#define PAIR_2 LEAST
#define PAIR_3 FACTOR

#define PAIRED_START                                                                                       \
    "vpxord " EXTRA_0 ", " EXTRA_0 ", " EXTRA_0 "\n\t"                                                     \
    "vpxord " EXTRA_1 ", " EXTRA_1 ", " EXTRA_1 "\n\t"                                                     \
    "vpdpbusd %[w04], %[w06], " EXTRA_0 "\n\t"                                                             \
    "vpdpbusd %[w14], %[w16], " EXTRA_1 "\n\t"                                                             \
    "vpdpbusd %[w05], %[w07], " EXTRA_0 "\n\t"                                                             \
    "vpdpbusd %[w15], %[w17], " EXTRA_1 "\n\t"

/* Groups g and h of the columns. The weights of h have 128 added, so that their sums with the inputs of g are unsigned. */
#define PAIR(row, p, g, h)                                                                                 \
    "vpbroadcastd 32*(" #row ")+4*" #g "(%[q],%[i],2), " PAIR_0 "\n\t"                                     \
    "vpbroadcastd 32*(" #row ")+4*" #h "(%[q],%[i],2), " PAIR_1 "\n\t"                                     \
    "vpaddb " PAIR_0 ", %[w0" #h "], " PAIR_2 "\n\t"                                                       \
    "vpaddb " PAIR_1 ", %[w0" #g "], " PAIR_3 "\n\t"                                                       \
    "vpaddb " PAIR_0 ", %[w1" #h "], " PAIR_0 "\n\t"                                                       \
    "vpaddb " PAIR_1 ", %[w1" #g "], " PAIR_1 "\n\t"                                                       \
    "vpdpbusd " PAIR_3 ", " PAIR_2 ", " SUM_##p##0 "\n\t"                                                  \
    "vpdpbusd " PAIR_1 ", " PAIR_0 ", " SUM_##p##1 "\n\t"

/* The stages of a row in two parts each. END() of many_rows.h, with the sums in place. */
#define STAGE_1A(row, p) BEGIN(row, p) DOTS(row, p, 0)
#define STAGE_1B(row, p) DOTS(row, p, 1)
#define STAGE_2A(row, p) PAIR(row, p, 4, 6)
#define STAGE_2B(row, p) PAIR(row, p, 5, 7)
#define STAGE_3A(row, p) DOTS(row, p, 2)
#define STAGE_3B(row, p) DOTS(row, p, 3)
#define STAGE_4A(row, p, min, table)                                                                       \
    "vpsubd " EXTRA_0 ", " SUM_##p##0 ", " SUM_##p##0 "\n\t"                                               \
    "vpsubd " EXTRA_1 ", " SUM_##p##1 ", " SUM_##p##1 "\n\t"                                               \
    END(row, SUM_##p##0, SUM_##p##1, SUM_##p##0, SUM_##p##1, table) ADD(row, 0, SUM_##p##0, min, table)
#define STAGE_4B(row, p, min, table) ADD(row, 1, SUM_##p##1, min, table)

/* Row 0 to row 3 begin, and row 0 ends. scales, mins: the parts of their tables, of which WHOLE has none. */
#define PAIRED_FILL(scales, mins, min, table)                                                              \
    PAIRED_START STAGE_1A(0, A) STAGE_1B(0, A)                                                             \
    STAGE_1A(1, B) STAGE_2A(0, A) STAGE_1B(1, B) STAGE_2B(0, A)                                            \
    STAGE_1A(2, C) STAGE_2A(1, B) STAGE_3A(0, A) STAGE_1B(2, C) STAGE_2B(1, B) STAGE_3B(0, A)              \
    PAIRED_NEXT(3, D, 2, C, 1, B, 0, A, min, table)

/* Row n begins, o ends, and those between them continue. */
#define PAIRED_NEXT(n, d, t, c, s, b, o, a, min, table)                                                    \
    STAGE_1A(n, d) STAGE_2A(t, c) STAGE_3A(s, b) STAGE_4A(o, a, min, table)                                \
    STAGE_1B(n, d) STAGE_2B(t, c) STAGE_3B(s, b) STAGE_4B(o, a, min, table)
#define PAIRED_DRAIN(t, c, s, b, o, a, min, table)                                                         \
    STAGE_2A(t, c) STAGE_3A(s, b) STAGE_4A(o, a, min, table)                                               \
    STAGE_2B(t, c) STAGE_3B(s, b) STAGE_4B(o, a, min, table)                                               \
    STAGE_3A(t, c) STAGE_4A(s, b, min, table) STAGE_3B(t, c) STAGE_4B(s, b, min, table)                    \
    STAGE_4A(t, c, min, table) STAGE_4B(t, c, min, table)

#define PAIRED_NEXT_0(min, table) PAIRED_NEXT(0, A, -1, D, -2, C, -3, B, min, table)
#define PAIRED_NEXT_1(min, table) PAIRED_NEXT(1, B, 0, A, -1, D, -2, C, min, table)
#define PAIRED_NEXT_2(min, table) PAIRED_NEXT(2, C, 1, B, 0, A, -1, D, min, table)
#define PAIRED_NEXT_3(min, table) PAIRED_NEXT(3, D, 2, C, 1, B, 0, A, min, table)
#define PAIRED_DRAIN_0(min, table) PAIRED_DRAIN(-1, D, -2, C, -3, B, min, table)
#define PAIRED_DRAIN_1(min, table) PAIRED_DRAIN(0, A, -1, D, -2, C, min, table)
#define PAIRED_DRAIN_2(min, table) PAIRED_DRAIN(1, B, 0, A, -1, D, min, table)
#define PAIRED_DRAIN_3(min, table) PAIRED_DRAIN(2, C, 1, B, 0, A, min, table)
/* clang-format on */

#endif
