/* A software pipeline over many input rows with one block of weights, for linear_quantized_body.h.
 *
 * Four rows are in flight, each two groups of columns ahead of the next one. So the final
 * operations of a row (loads, additions, multiplications by scales, stores) are interleaved with
 * dot products of other rows, and both multipliers stay busy. A compiler would put the final
 * operations after all dot products and copy sums between registers; hence assembly.
 *
 * That is the pipeline of PLAIN products; that of PAIRED products is in paired_rows.h.
 *
 * Rows are addressed by %[i], which is 16 times the row: a row has 32 bytes of q, 16 of struct
 * input_row, and 64 of each half's totals. Registers 0 to 15 hold the weights; the sums of the
 * four rows are the pairs A to D.
 *
 * The factor of a row is a multiple of the block's scale, 8 to 15 times: from a table of eight (WHOLE), or
 * as the sum of 8, 10, 12 or 14 times and of 0 or 1 times the scale (SPLIT). Both sums are exact. The
 * second way takes an addition for each factor, but half as many stores. */
#ifndef TUTTI_KERNELS_X86_AVX512_MANY_ROWS_H
#define TUTTI_KERNELS_X86_AVX512_MANY_ROWS_H

/* clang-format off */
#define SUM_A0 "%%zmm16"
#define SUM_A1 "%%zmm17"
#define SUM_B0 "%%zmm18"
#define SUM_B1 "%%zmm19"
#define SUM_C0 "%%zmm20"
#define SUM_C1 "%%zmm21"
#define SUM_D0 "%%zmm22"
#define SUM_D1 "%%zmm23"
#define DONE_0 "%%zmm24"
#define DONE_1 "%%zmm25"
#define TOTAL  "%%zmm26"
#define LEAST  "%%zmm27"
#define FACTOR "%%zmm28"
#define MAGIC  "%%zmm30"
#define INPUT  "%%zmm31"

#define BEGIN(row, p)                                                                                      \
    "vpbroadcastd 16*(" #row ")(%[start],%[i]), " SUM_##p##0 "\n\t"                                        \
    "vmovdqa64 " SUM_##p##0 ", " SUM_##p##1 "\n\t"

/* Group g of the columns. */
#define DOTS(row, p, g)                                                                                    \
    "vpbroadcastd 32*(" #row ")+4*" #g "(%[q],%[i],2), " INPUT "\n\t"                                      \
    "vpdpbusd " INPUT ", %[w0" #g "], " SUM_##p##0 "\n\t"                                                  \
    "vpdpbusd " INPUT ", %[w1" #g "], " SUM_##p##1 "\n\t"

/* Converts the sums to floats and finds the places of the row's factors: 16 times input_step(). */
#define END(row, p, table)                                                                                 \
    "vbroadcastss 16*(" #row ")+8(%[rows],%[i]), " MAGIC "\n\t"                                            \
    "movzbl 16*(" #row ")+14(%[rows],%[i]), %k[step]\n\t"                                                  \
    "and $0x70, %k[step]\n\t"                                                                              \
    "vsubps " MAGIC ", " SUM_##p##0 ", " DONE_0 "\n\t"                                                     \
    "vsubps " MAGIC ", " SUM_##p##1 ", " DONE_1 "\n\t"                                                     \
    table##_PLACE
#define WHOLE_PLACE ""
#define SPLIT_PLACE                                                                                        \
    "mov %k[step], %k[odd]\n\t"                                                                            \
    "and $0x60, %k[step]\n\t"                                                                              \
    "and $0x10, %k[odd]\n\t"

/* Adds x times the factor to the total. kind: 0, of scales; 1, of mins. */
#define WHOLE_MULTIPLY(kind, half, x)                                                                      \
    "vfmadd231ps 2048*" #kind "+1024*" #half "(%[multiples],%[step],4), " x ", " TOTAL "\n\t"
#define SPLIT_MULTIPLY(kind, half, x)                                                                      \
    "vmovaps 768*" #kind "+384*" #half "(%[multiples],%[odd],4), " FACTOR "\n\t"                           \
    "vaddps 768*" #kind "+384*" #half "+128(%[multiples],%[step],2), " FACTOR ", " FACTOR "\n\t"           \
    "vfmadd231ps " FACTOR ", " x ", " TOTAL "\n\t"

/* Adds sum to the total of one half. min: NO_MIN or ADD_MIN. */
#define ADD(row, half, sum, min, table)                                                                    \
    "vmovups 64*(" #row ")(%[total" #half "],%[i],4), " TOTAL "\n\t"                                       \
    table##_MULTIPLY(0, half, sum)                                                                         \
    min(row, half, table)                                                                                  \
    "vmovups " TOTAL ", 64*(" #row ")(%[total" #half "],%[i],4)\n\t"
#define NO_MIN(row, half, table) ""
#define ADD_MIN(row, half, table)                                                                          \
    "vbroadcastss 16*(" #row ")(%[rows],%[i]), " LEAST "\n\t"                                              \
    "vsubps " MAGIC ", " LEAST ", " LEAST "\n\t"                                                           \
    table##_MULTIPLY(1, half, LEAST)

/* The multiples of SPLIT, from the scales of both halves: in parts that stand between the dot products of
 * the first rows, where adders and stores have nothing else to do. DONE: the scales; TOTAL and LEAST: their
 * multiples. Places: struct split_multiples. */
#define SPLIT_BEGIN(kind)                                                                                  \
    "vmovaps 768*" #kind "+64(%[multiples]), " DONE_0 "\n\t"                                               \
    "vmovaps 768*" #kind "+448(%[multiples]), " DONE_1 "\n\t"
#define SPLIT_TWICE                                                                                        \
    "vaddps " DONE_0 ", " DONE_0 ", " DONE_0 "\n\t"                                                        \
    "vaddps " DONE_1 ", " DONE_1 ", " DONE_1 "\n\t"
#define SPLIT_FOUR                                                                                         \
    "vaddps " DONE_0 ", " DONE_0 ", " TOTAL "\n\t"                                                         \
    "vaddps " DONE_1 ", " DONE_1 ", " LEAST "\n\t"
#define SPLIT_EIGHT(kind)                                                                                  \
    "vaddps " TOTAL ", " TOTAL ", " TOTAL "\n\t"                                                           \
    "vaddps " LEAST ", " LEAST ", " LEAST "\n\t"                                                           \
    SPLIT_STORE(kind, 0)
#define SPLIT_NEXT(kind, n)                                                                                \
    "vaddps " DONE_0 ", " TOTAL ", " TOTAL "\n\t"                                                          \
    "vaddps " DONE_1 ", " LEAST ", " LEAST "\n\t"                                                          \
    SPLIT_STORE(kind, n)
#define SPLIT_STORE(kind, n)                                                                               \
    "vmovaps " TOTAL ", 768*" #kind "+128+64*" #n "(%[multiples])\n\t"                                     \
    "vmovaps " LEAST ", 768*" #kind "+512+64*" #n "(%[multiples])\n\t"
#define PART_0(kind) SPLIT_BEGIN(kind)
#define PART_1(kind) SPLIT_TWICE
#define PART_2(kind) SPLIT_FOUR
#define PART_3(kind) SPLIT_EIGHT(kind)
#define PART_4(kind) SPLIT_NEXT(kind, 1)
#define PART_5(kind) SPLIT_NEXT(kind, 2)
#define PART_6(kind) SPLIT_NEXT(kind, 3)
#define SPLIT_SCALES(part) PART_##part(0)
#define WHOLE_SCALES(part) ""
#define SPLIT_NO_MIN(part) ""
#define SPLIT_ADD_MIN(part) PART_##part(1)
#define WHOLE_NO_MIN(part) ""
#define WHOLE_ADD_MIN(part) ""

/* Row 0 to row 3 begin. scales, mins: the parts of their tables. */
#define PLAIN_FILL(min, table) PLAIN_BEGIN(table##_SCALES, table##_##min)
#define PLAIN_BEGIN(scales, mins)                                                                          \
    BEGIN(0, A) scales(0) DOTS(0, A, 0) scales(1) DOTS(0, A, 1) scales(2)                                  \
    DOTS(0, A, 2) BEGIN(1, B) scales(3) DOTS(1, B, 0) DOTS(0, A, 3) scales(4) DOTS(1, B, 1)                \
    DOTS(0, A, 4) scales(5) DOTS(1, B, 2) BEGIN(2, C) DOTS(2, C, 0) scales(6) DOTS(0, A, 5) DOTS(1, B, 3)  \
    DOTS(2, C, 1) mins(0) DOTS(0, A, 6) mins(1) DOTS(1, B, 4) DOTS(2, C, 2) mins(2) BEGIN(3, D)            \
    DOTS(3, D, 0) mins(3) DOTS(0, A, 7) DOTS(1, B, 5) mins(4) DOTS(2, C, 3) mins(5) DOTS(3, D, 1) mins(6)

/* The oldest row o ends, three others continue, and row n begins with the sum registers of o. The
 * other macros are the same without a row n, and with fewer others. */
#define PLAIN_NEXT(o, a, r, b, s, c, t, d, n, min, table)                                                  \
    END(o, a, table) DOTS(r, b, 6) DOTS(s, c, 4) DOTS(t, d, 2) ADD(o, 0, DONE_0, min, table)               \
    BEGIN(n, a) DOTS(n, a, 0)                                                                              \
    DOTS(r, b, 7) DOTS(s, c, 5) DOTS(t, d, 3) ADD(o, 1, DONE_1, min, table) DOTS(n, a, 1)
#define PLAIN_DRAIN(o, a, r, b, s, c, t, d, min, table)                                                    \
    END(o, a, table) DOTS(r, b, 6) DOTS(s, c, 4) DOTS(t, d, 2) ADD(o, 0, DONE_0, min, table)               \
    DOTS(r, b, 7) DOTS(s, c, 5) DOTS(t, d, 3) ADD(o, 1, DONE_1, min, table)                                \
    END(r, b, table) DOTS(s, c, 6) DOTS(t, d, 4) ADD(r, 0, DONE_0, min, table)                             \
    DOTS(s, c, 7) DOTS(t, d, 5) ADD(r, 1, DONE_1, min, table)                                              \
    END(s, c, table) DOTS(t, d, 6) ADD(s, 0, DONE_0, min, table)                                           \
    DOTS(t, d, 7) ADD(s, 1, DONE_1, min, table)                                                            \
    END(t, d, table) ADD(t, 0, DONE_0, min, table) ADD(t, 1, DONE_1, min, table)

#define PLAIN_NEXT_0(min, table) PLAIN_NEXT(-4, A, -3, B, -2, C, -1, D, 0, min, table)
#define PLAIN_NEXT_1(min, table) PLAIN_NEXT(-3, B, -2, C, -1, D, 0, A, 1, min, table)
#define PLAIN_NEXT_2(min, table) PLAIN_NEXT(-2, C, -1, D, 0, A, 1, B, 2, min, table)
#define PLAIN_NEXT_3(min, table) PLAIN_NEXT(-1, D, 0, A, 1, B, 2, C, 3, min, table)
/* After the row -1 and up to three more. */
#define PLAIN_DRAIN_0(min, table) PLAIN_DRAIN(-4, A, -3, B, -2, C, -1, D, min, table)
#define PLAIN_DRAIN_1(min, table) PLAIN_DRAIN(-3, B, -2, C, -1, D, 0, A, min, table)
#define PLAIN_DRAIN_2(min, table) PLAIN_DRAIN(-2, C, -1, D, 0, A, 1, B, min, table)
#define PLAIN_DRAIN_3(min, table) PLAIN_DRAIN(-1, D, 0, A, 1, B, 2, C, min, table)

/* What the two kinds of products have of their own: operands, and registers that are overwritten. */
#define PLAIN_OUTPUTS , [step] "=&r"(step), [odd] "=&r"(odd)
#define PLAIN_INPUTS , [start] "r"(start)
#define PLAIN_CLOBBERS "zmm24", "zmm25", "zmm26", "zmm30",

/* products: PLAIN, or PAIRED (paired_rows.h). table: WHOLE or SPLIT; PAIRED has none. */
#define PIPELINE(products, min, table)                                                                     \
    __asm__ volatile(                                                                                      \
        products##_FILL(min, table)                                                                        \
        "add $64, %[i]\n\t"                                                                                \
        "cmp %[end], %[i]\n\t"                                                                             \
        "jge 2f\n"                                                                                         \
        "1:\n\t"                                                                                           \
        "prefetcht0 %c[ahead](%[q],%[i],2)\n\t"                                                            \
        "prefetcht0 %c[ahead]+64(%[q],%[i],2)\n\t"                                                         \
        products##_NEXT_0(min, table) products##_NEXT_1(min, table)                                        \
        products##_NEXT_2(min, table) products##_NEXT_3(min, table)                                        \
        "add $64, %[i]\n\t"                                                                                \
        "cmp %[end], %[i]\n\t"                                                                             \
        "jl 1b\n"                                                                                          \
        "2:\n\t"                                                                                           \
        "cmp $1, %[rest]\n\t"                                                                              \
        "jg 4f\n\t"                                                                                        \
        "je 3f\n\t"                                                                                        \
        products##_DRAIN_0(min, table)                                                                     \
        "jmp 6f\n"                                                                                         \
        "3:\n\t"                                                                                           \
        products##_NEXT_0(min, table) products##_DRAIN_1(min, table)                                       \
        "jmp 6f\n"                                                                                         \
        "4:\n\t"                                                                                           \
        "cmp $2, %[rest]\n\t"                                                                              \
        "jg 5f\n\t"                                                                                        \
        products##_NEXT_0(min, table) products##_NEXT_1(min, table) products##_DRAIN_2(min, table)         \
        "jmp 6f\n"                                                                                         \
        "5:\n\t"                                                                                           \
        products##_NEXT_0(min, table) products##_NEXT_1(min, table) products##_NEXT_2(min, table)          \
        products##_DRAIN_3(min, table)                                                                     \
        "6:\n\t"                                                                                           \
        : [i] "+&r"(i) products##_OUTPUTS                                                                  \
        : [q] "r"(x->q), [rows] "r"(x->rows), [total0] "r"(x->total[0]),                                   \
          [total1] "r"(x->total[1]), [multiples] "r"(m), [ahead] "i"(PREFETCH_INPUT_BYTES),                \
          [end] "r"(end),                                                                                  \
          [rest] "r"(x->n_rows % 4), [w00] "v"(w->w[0][0]), [w01] "v"(w->w[0][1]), [w02] "v"(w->w[0][2]),  \
          [w03] "v"(w->w[0][3]), [w04] "v"(w->w[0][4]), [w05] "v"(w->w[0][5]), [w06] "v"(w->w[0][6]),      \
          [w07] "v"(w->w[0][7]), [w10] "v"(w->w[1][0]), [w11] "v"(w->w[1][1]), [w12] "v"(w->w[1][2]),      \
          [w13] "v"(w->w[1][3]), [w14] "v"(w->w[1][4]), [w15] "v"(w->w[1][5]), [w16] "v"(w->w[1][6]),      \
          [w17] "v"(w->w[1][7]) products##_INPUTS                                                          \
        : "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23",                          \
          products##_CLOBBERS                                                                              \
          "zmm27", "zmm28", "zmm29", "zmm31", "cc", "memory")
/* clang-format on */

#endif
