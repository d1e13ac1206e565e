/* The first and the last pass over many input rows with half a block, for passes_body.h, in assembly.
 *
 * vpmaddubsw and vpmaddwd run on two of the four pipes of AMD's processors, additions on all of them. Which
 * pipe an addition gets depends on the order of the instructions: that decides between 4.4 and 5.9 cycles a
 * row in the first pass, and a compiler chooses another order. In the last pass, a row ends after the
 * products of the next row: its chain of dependent operations would keep those out of the processor's queues.
 *
 * Rows are addressed by %[i], which is 16 times the row: a row has 32 bytes of q, 16 of struct scaled_row, and
 * 64 of sums and of totals. Registers 0 to 7 hold the weights, [strip][group]. In the last pass 13 and 14
 * hold the sums of a row until the next row's products are made. */
#ifndef TUTTI_KERNELS_X86_AVX2_MANY_ROWS_H
#define TUTTI_KERNELS_X86_AVX2_MANY_ROWS_H

/* clang-format off */
#define T0    "%%ymm8"
#define T1    "%%ymm9"
#define T2    "%%ymm10"
#define T3    "%%ymm11"
#define T4    "%%ymm12"
#define SUM_0 "%%ymm13"
#define SUM_1 "%%ymm14"
#define ONES  "%%ymm15"

/* Group g of the columns. */
#define INPUT(g, to)       "vpbroadcastd 4*" #g "(%[q],%[i],2), " to "\n\t"
#define DOT(strip, g, input, to) "vpmaddubsw " input ", %[w" #strip #g "], " to "\n\t"
#define ADD(a, b, to)      "vpaddw " a ", " b ", " to "\n\t"
#define NARROW(strip)      "32*" #strip "(%[narrow],%[i],4)"
#define WIDE(strip)        "32*" #strip "+%c[wide](%[narrow],%[i],4)"

#define FIRST_ROW                                                                                          \
    INPUT(1, T0) INPUT(0, T1) DOT(1, 0, T1, T2) DOT(1, 1, T0, T3) ADD(T2, T3, T4) DOT(0, 0, T1, SUM_0)     \
    INPUT(2, SUM_1) DOT(0, 1, T0, T2) INPUT(3, T3) DOT(1, 3, T3, T1) DOT(0, 2, SUM_1, T0)                  \
    DOT(1, 2, SUM_1, SUM_1) DOT(0, 3, T3, T3) ADD(SUM_0, T2, SUM_0) ADD(SUM_0, T0, T2) ADD(T2, T3, SUM_0)  \
    "vmovdqa " SUM_0 ", " NARROW(0) "\n\t"                                                                  \
    ADD(T4, SUM_1, T0) ADD(T0, T1, T2)                                                                     \
    "vmovdqa " T2 ", " NARROW(1) "\n\t"

/* A row of the last pass, and at its end the scales of the row before. before: which sums of earlier passes are
 * added, NARROW, WIDE or BOTH. */
#define LAST_ROW(before, total, start, ends)                                                               \
    INPUT(2, T0) INPUT(3, T1) DOT(0, 3, T1, T2) DOT(1, 2, T0, T3) DOT(0, 2, T0, T4)                        \
    before##_16(1, T3, T0) DOT(1, 3, T1, T3) ADD(T4, T2, T1) INPUT(1, T2) DOT(0, 1, T2, T4)                \
    before##_16(0, T1, T1) ADD(T3, T0, T0) INPUT(0, T3) ADD(T4, T1, T1) DOT(0, 0, T3, T4)                  \
    DOT(1, 1, T2, T2) DOT(1, 0, T3, T3) ADD(T4, T1, T1) ADD(T2, T0, T4) total ADD(T3, T4, T2)              \
    start                                                                                                  \
    "vpmaddwd " T1 ", " ONES ", " SUM_0 "\n\t"                                                             \
    "vpmaddwd " T2 ", " ONES ", " SUM_1 "\n\t"                                                             \
    before##_32 ends
#define NARROW_16(strip, from, to) ADD(NARROW(strip), from, to)
#define NARROW_32 ""
#define WIDE_16(strip, from, to) "vmovdqa " from ", " to "\n\t"
#define WIDE_32                                                                                            \
    "vpaddd " WIDE(1) ", " SUM_1 ", " SUM_1 "\n\t"                                                         \
    "vpaddd " WIDE(0) ", " SUM_0 ", " SUM_0 "\n\t"
#define BOTH_16   NARROW_16
#define BOTH_32   WIDE_32

/* The end of the row before. from: the address of the initial sum. */
#define TOTAL(strip) "-64+32*" #strip "(%[total],%[i],4)"
#define LOAD_TOTAL   "vmovups " TOTAL(0) ", " T0 "\n\t"
#define START(from)                                                                                        \
    "vpbroadcastd " from ", " T4 "\n\t"                                                                    \
    "vpaddd " SUM_0 ", " T4 ", " T3 "\n\t"                                                                 \
    "vpaddd " SUM_1 ", " T4 ", " T4 "\n\t"
#define FLOATS                                                                                             \
    "vbroadcastss -16+12(%[rows],%[i]), " T1 "\n\t"                                                        \
    "vbroadcastss -16+8(%[rows],%[i]), " T2 "\n\t"                                                         \
    "vfmsub213ps " T2 ", " T1 ", " T3 "\n\t"                                                               \
    "vfmsub213ps " T2 ", " T1 ", " T4 "\n\t"
#define ROW_START "-16(%[rows],%[i])"
/* 0: of scales, 1: of mins. */
#define FACTOR(is_min, strip) "128*" #is_min "+32*" #strip "(%[scales])"
#define END                                                                                                \
    FLOATS "vmovaps " FACTOR(0, 1) ", " T2 "\n\t"                                                          \
    "vfmadd231ps " FACTOR(0, 0) ", " T3 ", " T0 "\n\t"                                                     \
    "vfmadd213ps " TOTAL(1) ", " T2 ", " T4 "\n\t"                                                         \
    "vmovups " T4 ", " TOTAL(1) "\n\tvmovups " T0 ", " TOTAL(0) "\n\t"
/* T0: the least, start d - magic d. */
#define MIN_END                                                                                            \
    FLOATS "vbroadcastss -16(%[rows],%[i]), " T0 "\n\t"                                                    \
    "vfmsub213ps " T2 ", " T1 ", " T0 "\n\t"                                                               \
    "vmovaps " FACTOR(0, 0) ", " T1 "\n\tvmovaps " FACTOR(0, 1) ", " T2 "\n\t"                             \
    "vfmadd213ps " TOTAL(0) ", " T1 ", " T3 "\n\t"                                                         \
    "vfmadd213ps " TOTAL(1) ", " T2 ", " T4 "\n\t"                                                         \
    "vfmadd231ps " FACTOR(1, 0) ", " T0 ", " T3 "\n\t"                                                     \
    "vfmadd231ps " FACTOR(1, 1) ", " T0 ", " T4 "\n\t"                                                     \
    "vmovups " T3 ", " TOTAL(0) "\n\tvmovups " T4 ", " TOTAL(1) "\n\t"

#define LAST_PASS(before, load, from, ends)                                                                \
    __asm__ volatile(                                                                                      \
        "vpcmpeqw " ONES ", " ONES ", " ONES "\n\t"                                                        \
        "vpsrlw $15, " ONES ", " ONES "\n\t"                                                               \
        "vpsllw %[shift], " ONES ", " ONES "\n\t"                                                          \
        LAST_ROW(before, "", "", "")                                                                       \
        "jmp 2f\n\t"                                                                                       \
        ".p2align 6\n"                                                                                     \
        "1:\n\t"                                                                                           \
        LAST_ROW(before, load, START(from), ends)                                                          \
        "2:\n\t"                                                                                           \
        "add $16, %[i]\n\t"                                                                                \
        "cmp %[end], %[i]\n\t"                                                                             \
        "jl 1b\n\t"                                                                                        \
        load START(from) ends                                                                              \
        : [i] "+r"(i)                                                                                      \
        : WEIGHTS, [q] "r"(q), [rows] "r"(x->rows), [narrow] "r"(sums->narrow), [total] "r"(total),        \
          [scales] "r"(scales), [end] "r"(16 * (int64_t)x->n_rows), [magic] "m"(MAGIC),                    \
          [shift] "i"(p.is_high ? 4 : 0), [wide] "i"(sizeof sums->narrow)                                  \
        : "cc", "memory", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
#define WEIGHTS                                                                                            \
    [w00] "x"(w[0][0]), [w01] "x"(w[0][1]), [w02] "x"(w[0][2]), [w03] "x"(w[0][3]),                        \
    [w10] "x"(w[1][0]), [w11] "x"(w[1][1]), [w12] "x"(w[1][2]), [w13] "x"(w[1][3])
#define FIRST_PASS                                                                                         \
    __asm__ volatile(                                                                                      \
        ".p2align 6\n"                                                                                     \
        "1:\n\t"                                                                                           \
        FIRST_ROW                                                                                          \
        "add $16, %[i]\n\t"                                                                                \
        "cmp %[end], %[i]\n\t"                                                                             \
        "jl 1b\n\t"                                                                                        \
        : [i] "+r"(i)                                                                                      \
        : WEIGHTS, [q] "r"(x->q), [narrow] "r"(sums->narrow), [end] "r"(16 * (int64_t)x->n_rows)           \
        : "cc", "memory", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14")
#define LAST_PASSES(before)                                                                                \
    do {                                                                                                   \
        if (f.has_min && f.zero == 0)                                                                      \
            LAST_PASS(before, "", "%[magic]", MIN_END);                                                    \
        else if (f.has_min)                                                                                \
            LAST_PASS(before, "", ROW_START, MIN_END);                                                     \
        else                                                                                               \
            LAST_PASS(before, LOAD_TOTAL, ROW_START, END);                                                 \
    } while (0)
/* clang-format on */

#endif
