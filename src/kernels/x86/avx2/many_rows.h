/* The first and the last pass over many input rows with half a block, for passes_body.h, in assembly.
 *
 * vpmaddubsw and vpmaddwd run on two of the four pipes of AMD's processors, additions on all of them. Which
 * pipe an addition gets depends on the order of the instructions: that decides between 4.4 and 5.9 cycles a
 * row in the first pass, and a compiler chooses another order. In the last pass, a row ends after the
 * products of the next row: its chain of dependent operations would keep those out of the processor's queues.
 *
 * Rows are addressed by %[i], which is 16 times the row: a row has 32 bytes of q, 16 of struct input_row, and
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

/* A row of the last pass, and between its instructions the end of the row before. before: which sums of
 * earlier passes are added, NARROW, WIDE or BOTH. */
#define LAST_ROW(before, place, start, starts, ends)                                                       \
    INPUT(1, T0) DOT(0, 1, T0, T1) INPUT(0, T2) DOT(1, 0, T2, T3) place INPUT(2, T4) DOT(1, 1, T0, T0)     \
    DOT(0, 0, T2, T2) before##_16 ADD(T3, T0, T3) ADD(T2, T1, T0)                                           \
    DOT(0, 2, T4, T2) start DOT(1, 2, T4, T4) ADD(T3, T4, T3) INPUT(3, T4) ADD(T0, T2, T0)                 \
    DOT(1, 3, T4, T2) DOT(0, 3, T4, T4) ADD(T3, T2, T3) starts                                             \
    "vpmaddwd " T3 ", " ONES ", " SUM_1 "\n\t"                                                             \
    ADD(T0, T4, T3)                                                                                        \
    "vpmaddwd " T3 ", " ONES ", " SUM_0 "\n\t"                                                             \
    before##_32 ends
#define NARROW_16 ADD(NARROW(1), T3, T3) ADD(NARROW(0), T2, T2)
#define NARROW_32 ""
#define WIDE_16   ""
#define WIDE_32                                                                                            \
    "vpaddd " WIDE(1) ", " SUM_1 ", " SUM_1 "\n\t"                                                         \
    "vpaddd " WIDE(0) ", " SUM_0 ", " SUM_0 "\n\t"
#define BOTH_16   NARROW_16
#define BOTH_32   WIDE_32

/* The end of the row before, in four parts. It is scaled by a table of the scales' multiples (TABLE), or its
 * sums by the step and then by the scales (PRODUCT): both products are exact. */
#define PLACE "movzbl -16+14(%[rows],%[i]), %k[step]\n\tand $0x70, %k[step]\n\t" /* 16 input_step() */
#define START         "vpbroadcastd -16+%c[start](%[rows],%[i]), " T1 "\n\t"
#define STARTS        "vpaddd " SUM_0 ", " T1 ", " T2 "\n\tvpaddd " SUM_1 ", " T1 ", " T1 "\n\t"
#define FLOATS                                                                                             \
    "vbroadcastss -16+8(%[rows],%[i]), " T4 "\n\t"                                                         \
    "vsubps " T4 ", " T1 ", " T1 "\n\t"                                                                    \
    "vsubps " T4 ", " T2 ", " T2 "\n\t"
#define LEAST                                                                                              \
    "vbroadcastss -16(%[rows],%[i]), " T3 "\n\t"                                                           \
    "vsubps " T4 ", " T3 ", " T3 "\n\t"
#define TOTAL(strip) "-64+32*" #strip "(%[total],%[i],4)"
#define STORES       "vmovups " T2 ", " TOTAL(0) "\n\tvmovups " T1 ", " TOTAL(1) "\n\t"
/* 0: of scales, 1: of mins. struct multiples, struct scales. */
#define TABLE(is_min, strip)   "1024*" #is_min "+256*" #strip "(%[factors],%[step],2)"
#define PRODUCT(is_min, strip) "128*" #is_min "+32*" #strip "(%[factors])"
/* A register of sums, of values or of mins, becomes a total. */
#define TABLE_TOTAL(strip, sum) "vmovups " TABLE(0, strip) ", " T0 "\n\tvfmadd213ps " TOTAL(strip) ", " T0 ", " sum "\n\t"
#define TABLE_MIN(strip, sum)   "vfmadd231ps " TABLE(1, strip) ", " T3 ", " sum "\n\t"
#define STEP                    "vbroadcastss (%[steps],%[step]), " T4 "\n\t"
#define PRODUCT_TOTAL(strip, sum)                                                                          \
    "vmulps " PRODUCT(0, strip) ", " T4 ", " T0 "\n\tvfmadd213ps " TOTAL(strip) ", " T0 ", " sum "\n\t"
#define PRODUCT_MIN(strip, sum)                                                                            \
    "vmulps " PRODUCT(1, strip) ", " T4 ", " T0 "\n\tvfmadd231ps " T0 ", " T3 ", " sum "\n\t"

#define TABLE_END       FLOATS TABLE_TOTAL(0, T2) TABLE_TOTAL(1, T1) STORES
#define TABLE_MIN_END   FLOATS LEAST TABLE_TOTAL(0, T2) TABLE_TOTAL(1, T1) TABLE_MIN(0, T2) TABLE_MIN(1, T1) STORES
#define PRODUCT_END     FLOATS STEP PRODUCT_TOTAL(0, T2) PRODUCT_TOTAL(1, T1) STORES
#define PRODUCT_MIN_END                                                                                    \
    FLOATS LEAST STEP PRODUCT_TOTAL(0, T2) PRODUCT_TOTAL(1, T1) PRODUCT_MIN(0, T2) PRODUCT_MIN(1, T1) STORES

#define LAST_PASS(before, place, ends)                                                                     \
    __asm__ volatile(                                                                                      \
        "vpcmpeqw " ONES ", " ONES ", " ONES "\n\t"                                                        \
        "vpsrlw $15, " ONES ", " ONES "\n\t"                                                               \
        "vpsllw %[shift], " ONES ", " ONES "\n\t"                                                          \
        LAST_ROW(before, "", "", "", "")                                                                   \
        "jmp 2f\n\t"                                                                                       \
        ".p2align 6\n"                                                                                     \
        "1:\n\t"                                                                                           \
        LAST_ROW(before, place, START, STARTS, ends)                                                       \
        "2:\n\t"                                                                                           \
        "add $16, %[i]\n\t"                                                                                \
        "cmp %[end], %[i]\n\t"                                                                             \
        "jl 1b\n\t"                                                                                        \
        place START STARTS ends                                                                            \
        : [i] "+r"(i), [step] "=&r"(step)                                                                  \
        : WEIGHTS, [q] "r"(q), [rows] "r"(x->rows), [narrow] "r"(sums->narrow), [total] "r"(total),     \
          [factors] "r"(scaled), [steps] "r"(STEPS), [end] "r"(16 * (int64_t)x->n_rows),                   \
          [start] "i"(f.zero == 0 ? 8 : 0), [shift] "i"(p.is_high ? 4 : 0),                                \
          [wide] "i"(sizeof sums->narrow)                                                                  \
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
        if (factors->multiples && f.has_min)                                                               \
            LAST_PASS(before, PLACE, TABLE_MIN_END);                                                 \
        else if (factors->multiples)                                                                       \
            LAST_PASS(before, PLACE, TABLE_END);                                                     \
        else if (f.has_min)                                                                                \
            LAST_PASS(before, PLACE, PRODUCT_MIN_END);                                             \
        else                                                                                               \
            LAST_PASS(before, PLACE, PRODUCT_END);                                                 \
    } while (0)
/* clang-format on */

#endif
