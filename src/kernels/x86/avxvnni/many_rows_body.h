/* Several input rows of a block with vpdpbusd of 256 bits, for linear_quantized_body.h.
 *
 * A group of columns has four strips of weights. Three input rows share the load of each strip, and four
 * strips share the broadcast of each row: 7 loads for 12 products, whose sums fill 12 of 16 registers. For
 * that the weights of a block are unpacked into the L1 cache first. The products are assembly, because a
 * compiler keeps some of the sums on the stack.
 *
 * The file that includes this one defines DOT: the instruction with its encoding. */
#ifndef TUTTI_KERNELS_X86_AVXVNNI_MANY_ROWS_BODY_H
#define TUTTI_KERNELS_X86_AVXVNNI_MANY_ROWS_BODY_H

enum { ROWS = 3, STRIPS = PANEL_ROWS / STRIP };

/* The unpacked weights of a block: [group][strip]. */
struct groups {
    __m256i w[8][STRIPS];
};

/* clang-format off */
#define Q0 "%%ymm12"
#define Q1 "%%ymm13"
#define Q2 "%%ymm14"
#define W  "%%ymm15"

#define INPUT(g, row, to)  "vpbroadcastd 4*" #g "+32*" #row "(%[q]), " to "\n\t"
#define WEIGHTS(g, strip)  "vmovdqa 128*" #g "+32*" #strip "(%[w]), " W "\n\t"
#define PRODUCT(row, strip) DOT " " Q##row ", " W ", %[s" #row #strip "]\n\t"
#define STRIP_1(g, strip) WEIGHTS(g, strip) PRODUCT(0, strip)
#define STRIP_2(g, strip) STRIP_1(g, strip) PRODUCT(1, strip)
#define STRIP_3(g, strip) STRIP_2(g, strip) PRODUCT(2, strip)
#define INPUTS_1(g) INPUT(g, 0, Q0)
#define INPUTS_2(g) INPUTS_1(g) INPUT(g, 1, Q1)
#define INPUTS_3(g) INPUTS_2(g) INPUT(g, 2, Q2)
#define GROUP(n, g) INPUTS_##n(g) STRIP_##n(g, 0) STRIP_##n(g, 1) STRIP_##n(g, 2) STRIP_##n(g, 3)
#define FOUR_GROUPS(n) GROUP(n, 0) GROUP(n, 1) GROUP(n, 2) GROUP(n, 3)

#define SUMS(row)                                                                                          \
    [s##row##0] "+x"(sum[row][0]), [s##row##1] "+x"(sum[row][1]), [s##row##2] "+x"(sum[row][2]),           \
    [s##row##3] "+x"(sum[row][3])
#define ADD_PRODUCTS(n, ...)                                                                               \
    __asm__(FOUR_GROUPS(n)                                                                                 \
            : __VA_ARGS__                                                                                  \
            : [q] "r"(q), [w] "r"(w), "m"(*(const int32_t(*)[8 * n])q), "m"(*(const __m256i(*)[16])w)      \
            : "xmm12", "xmm13", "xmm14", "xmm15")
/* clang-format on */

/* Adds the products of four groups. q: of the first row; each row has eight groups. w: [4][STRIPS]. */
INLINE void add_products(__m256i sum[ROWS][STRIPS], const int32_t *q, const __m256i *w, const int n)
{
    if (n == 3)
        ADD_PRODUCTS(3, SUMS(0), SUMS(1), SUMS(2));
    else if (n == 2)
        ADD_PRODUCTS(2, SUMS(0), SUMS(1));
    else
        ADD_PRODUCTS(1, SUMS(0));
}

/* One block with n input rows from row r on. scales: of each half. */
INLINE void some_rows(const struct input *x, int r, const int n, const struct groups *groups,
                      const struct scales *scales, const struct quant_format f)
{
    const int runs = BLOCK / f.sub;
    UNROLL
    for (int run = 0; run < runs; run++) {
        __m256i sum[ROWS][STRIPS];
        UNROLL
        for (int i = 0; i < n; i++) {
            UNROLL
            for (int s = 0; s < STRIPS; s++)
                sum[i][s] = load_start(x->rows + r + i, run, f);
        }
        add_products(sum, x->q + 8 * r + 4 * run, groups->w[4 * run], n);
        if (runs == 1)
            add_products(sum, x->q + 8 * r + 4, groups->w[4], n);
        UNROLL
        for (int i = 0; i < n; i++) {
            struct row_factors c;
            load_row(&c, x->rows + r + i, f);
            UNROLL
            for (int s = 0; s < STRIPS; s++) {
                float *total = x->total[s / 2] + (r + i) * LANES + s % 2 * STRIP;
                _mm256_storeu_ps(
                    total, add_run(_mm256_loadu_ps(total), sum[i][s], &c, s % 2, run, &scales[s / 2], f));
            }
        }
    }
}

/* All rows of a block. */
INLINE void all_rows(const struct input *x, const struct block *block, const struct quant_format f)
{
    struct groups groups;
    struct scales scales[2];
    load_scales(&scales[0], block->unit, block->wide, 0, block->index, f);
    load_scales(&scales[1], block->unit, block->wide, LANES, block->index, f);
    int r = 0;
    UNROLL
    for (int g = 0; g < 8; g++) {
        UNROLL
        for (int s = 0; s < STRIPS; s++)
            groups.w[g][s] = unpack_group(block->first + (size_t)(s / 2) * format_half_bytes(f) + s % 2 * 32,
                                          g, false, f);
    }
    for (; r + ROWS <= x->n_rows; r += ROWS)
        some_rows(x, r, ROWS, &groups, scales, f);
    if (x->n_rows - r == 2)
        some_rows(x, r, 2, &groups, scales, f);
    else if (x->n_rows - r == 1)
        some_rows(x, r, 1, &groups, scales, f);
}

#endif
