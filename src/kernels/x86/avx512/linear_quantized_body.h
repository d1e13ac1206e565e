/* Linear layers of quantized weights with VNNI: the optimized ref/linear_quantized.c.
 *
 * vpdpbusd adds to each of 16 lanes (output rows) the products of four unsigned weights and four
 * signed activations, which are the same for all lanes. The weights of a block and panel,
 * unpacked, fill 16 registers; then the loop runs over the input rows, a few at a time: each
 * broadcast of a row is used for both halves of the panel. A block's sum starts with the zero
 * point already subtracted, as the bits of a float (input_block.h). The remaining factor of the
 * activations' scale selects one of eight multiples of the weights' scales. So a half costs nine
 * multiplications per block and input row: eight dot products, and one fused multiply-add to the
 * total, which stays in the L1 cache.
 *
 * The file that includes this one defines two constants:
 * IS_SPLIT: whether the processor executes instructions of 512 bits as two of 256. There a multiplication more in
 *     each row, or a table of 16 vectors in each block, costs what it does not cost elsewhere, so blocks with four
 *     rows and more use smaller tables.
 * IS_PAIRED: whether it has more units for additions than for multiplications. There blocks with four rows and more of formats
 *     with format_is_paired() multiply three quarters of their columns in pairs (input_block.h): seven multiplications for a half
 *     and row, two of which make floats of the sum and apply both scales.
 * Both: many_rows.h, paired_rows.h. */
#ifndef TUTTI_KERNELS_X86_AVX512_LINEAR_QUANTIZED_BODY_H
#define TUTTI_KERNELS_X86_AVX512_LINEAR_QUANTIZED_BODY_H

#include "kernels/input_block.h"
#include "kernels/x86/avx512/many_rows.h"
#include "kernels/x86/avx512/paired_rows.h"
#include "kernels/x86/avx512/unpack.h"
#include "kernels/x86/x86.h"

enum {
    FEW_ROWS = 8,       /* up to here, multiplying by the step is cheaper than a table of multiples */
    FEW_ROWS_SPLIT = 3, /* up to here, than the smaller table of a type without mins, and than pairs */
    PAGE = 4096,
    /* Of the input rows: with many rows a tile comes from the L3 cache. */
    PREFETCH_INPUT_BYTES = IS_SPLIT ? 6144 : 24576,
    PREFETCH_WEIGHTS_L2 = 9216, /* of the weights, where they are only brought into L2 */
};

/* The scales and mins of a block times 8, 9, ... 15. */
struct multiples {
    _Alignas(64) float scale[2][2][INPUT_STEPS][LANES], min[2][2][INPUT_STEPS][LANES];
};

/* The same as sums: 0 and 1 times; 8, 10, 12 and 14 times. [half]; 0 and 1 times scale and min are set by C. */
struct split_multiples {
    _Alignas(64) float scale[2][6][LANES], min[2][6][LANES];
};

/* A row of a block whose columns are paired: -sum(q) d, which is multiplied by the mins; magic (8 + step) and 8 + step, which
 * make a float of a sum. */
struct paired_row {
    float least, unused, magic_step, step;
};

/* Of a block whose columns are paired. */
struct paired_block {
    _Alignas(64) float min[2][LANES];
    struct paired_row rows[TILE_ROWS];
};

/* Of one block, at a place in a page that follows the totals. */
union block_space {
    struct split_multiples split;
    struct paired_block paired;
};

/* The input rows of one block, and their totals. */
struct input {
    const int32_t *q; /* [n_rows][8] times four bytes */
    const struct input_row *rows;
    float *total[2]; /* [half], then [n_rows][16] */
    int n_rows;
};

INLINE __m512i dot(__m512i sum, __m512i w, __m512i q)
{
    return _mm512_dpbusd_epi32(sum, w, q);
}

INLINE void store_multiples(float to[INPUT_STEPS][LANES], __m512 x)
{
    __m512 x2 = _mm512_add_ps(x, x), x4 = _mm512_add_ps(x2, x2), x8 = _mm512_add_ps(x4, x4);
    __m512 x10 = _mm512_add_ps(x8, x2), x12 = _mm512_add_ps(x8, x4), x14 = _mm512_add_ps(x12, x2);
    _mm512_store_ps(to[0], x8);
    _mm512_store_ps(to[1], _mm512_add_ps(x8, x));
    _mm512_store_ps(to[2], x10);
    _mm512_store_ps(to[3], _mm512_add_ps(x10, x));
    _mm512_store_ps(to[4], x12);
    _mm512_store_ps(to[5], _mm512_add_ps(x12, x));
    _mm512_store_ps(to[6], x14);
    _mm512_store_ps(to[7], _mm512_add_ps(x14, x));
}

INLINE void multiply_scales(struct multiples *to, const struct weights *w, const struct quant_format f)
{
    const int runs = BLOCK / f.sub;
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int i = 0; i < runs; i++) {
            store_multiples(to->scale[h][i], w->scale[h][i]);
            if (f.has_min)
                store_multiples(to->min[h][i], w->min[h][i]);
        }
    }
}

static const float STEPS[INPUT_STEPS] = { 8, 9, 10, 11, 12, 13, 14, 15 };

/* x times 8 + step: computed for a few rows, looked up for many. */
INLINE __m512 multiple(__m512 x, const float table[INPUT_STEPS][LANES], int step, const bool is_few)
{
    return is_few ? _mm512_mul_ps(x, _mm512_set1_ps(STEPS[step])) : _mm512_load_ps(table[step]);
}

/* One block with n input rows from row r on; n and is_few are compile-time constants. */
INLINE void block_rows(const struct weights *w, const struct multiples *m, const struct input *x, int r,
                       const int n, const struct quant_format f, const bool is_few)
{
    const int runs = BLOCK / f.sub, per_run = 8 / runs;
    const struct input_row *rows = x->rows + r;
    __m512i sum[4][2][2];
    UNROLL
    for (int i = 0; i < n; i++) {
        UNROLL
        for (int s = 0; s < runs; s++)
            sum[i][0][s] = sum[i][1][s] = f.zero == 0 ? _mm512_castps_si512(_mm512_set1_ps(rows[i].magic))
                                                      : _mm512_set1_epi32(rows[i].start[s]);
    }
    UNROLL
    for (int g = 0; g < 8; g++) {
        UNROLL
        for (int i = 0; i < n; i++) {
            __m512i q;
            /* Loaded once; the compiler would fold a load into each product. */
            __asm__("vpbroadcastd %1, %0" : "=v"(q) : "m"(x->q[(r + i) * 8 + g]));
            sum[i][0][g / per_run] = dot(sum[i][0][g / per_run], w->w[0][g], q);
            sum[i][1][g / per_run] = dot(sum[i][1][g / per_run], w->w[1][g], q);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        const __m512 magic = _mm512_set1_ps(rows[i].magic);
        const int step = input_step(&rows[i]), mins = f.has_min ? runs : 0;
        UNROLL
        for (int h = 0; h < 2; h++) {
            float *at = x->total[h] + (r + i) * LANES;
            __m512 total = _mm512_loadu_ps(at);
            UNROLL
            for (int s = 0; s < runs; s++)
                total = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(sum[i][h][s]), magic),
                                        multiple(w->scale[h][s], m->scale[h][s], step, is_few), total);
            UNROLL
            for (int s = 0; s < mins; s++) {
                __m512 start = _mm512_castsi512_ps(_mm512_set1_epi32(rows[i].start[s]));
                total = _mm512_fmadd_ps(_mm512_sub_ps(start, magic),
                                        multiple(w->min[h][s], m->min[h][s], step, is_few), total);
            }
            _mm512_storeu_ps(at, total);
        }
    }
}

/* Of the first four of n rows. */
INLINE void prepare_rows(struct paired_row *to, const struct input_row *rows, int n,
                         const struct quant_format f)
{
    __m512 row = _mm512_maskz_loadu_ps((__mmask16)(n < 4 ? (1 << 4 * n) - 1 : 0xFFFF), rows);
    /* 8 + step: the three bits of d that input_step() reads. */
    __m512i bits = _mm512_ternarylogic_epi32(_mm512_castps_si512(row), _mm512_set1_epi32(7 << 20),
                                             _mm512_castps_si512(_mm512_set1_ps(8)), 0xEA); /* (a & b) | c */
    __m512 step = _mm512_permute_ps(_mm512_castsi512_ps(bits), 0xFF);
    if (f.has_min)
        row = _mm512_mask_sub_ps(row, 0x1111, row, _mm512_permute_ps(row, 0xAA));
    _mm512_store_ps((float *)to, _mm512_mask_mul_ps(step, 0x7777, row, step));
}

/* The upper four bits of each byte less 8, which is the highest one inverted and repeated; is_second: with 128 added. */
INLINE __m512i upper_less_8(__m512i bytes, bool is_second)
{
    const __m512i matrix = _mm512_set1_epi64(0x1020408080808080);
    if (is_second)
        __asm__("vgf2p8affineqb $0x78, %1, %0, %0" : "+v"(bytes) : "v"(matrix));
    else
        __asm__("vgf2p8affineqb $0xF8, %1, %0, %0" : "+v"(bytes) : "v"(matrix));
    return bytes;
}

/* The numbers of both halves of a block. Those of columns in pairs are less the format's middle, and those of the second
 * column have 128 added. */
INLINE void unpack_paired(struct weights *w, const uint8_t *block, const struct quant_format f)
{
    const __m512i mask = _mm512_set1_epi8(15), first = _mm512_set1_epi8((char)-format_middle(f)),
                  second = _mm512_set1_epi8((char)(128 - format_middle(f))),
                  table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)number_tables[f.table]));
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int g = 0; g < 4; g++) {
            __m512i bytes = _mm512_load_si512(block + (size_t)h * format_half_bytes(f) + 64 * g);
            __m512i low = _mm512_and_si512(bytes, mask);
            if (f.table == NUMBERS_PLAIN) {
                w->w[h][g] = g < 2 ? low : _mm512_add_epi8(low, first);
                w->w[h][g + 4] = upper_less_8(bytes, g > 0);
            } else {
                __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
                w->w[h][g] = _mm512_shuffle_epi8(g < 2 ? table : _mm512_add_epi8(table, first), low);
                w->w[h][g + 4] = _mm512_shuffle_epi8(_mm512_add_epi8(table, g == 0 ? first : second), high);
            }
        }
    }
}

/* What the pipeline needs of a block in addition to the numbers of unpack_paired() and the scales. extra: the sums of the products
 * of paired weights of each half. */
INLINE void prepare_paired(struct paired_block *p, __m512i extra[2], const struct weights *w,
                           const struct input *x, const struct quant_format f)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        extra[h] = _mm512_setzero_si512();
        UNROLL
        for (int g = 2; g < 5; g++)
            extra[h] = dot(extra[h], w->w[h][g + 3], w->w[h][g]);
        if (f.has_min)
            _mm512_store_ps(p->min[h], w->min[h][0]);
    }
    for (int r = 0; r < x->n_rows; r += 4) {
        _mm_prefetch((const char *)(x->rows + r) + PREFETCH_INPUT_BYTES, _MM_HINT_T0);
        prepare_rows(p->rows + r, x->rows + r, x->n_rows - r, f);
    }
}

/* All rows of a block with one scale and min for all its columns; four rows or more. */
INLINE void block_many(const struct weights *w, union block_space *space, const struct input *x,
                       const struct quant_format f)
{
    const bool is_paired = IS_PAIRED && format_is_paired(f);
    const void *start = is_paired     ? &x->rows->start[1]
                        : f.zero == 0 ? (const void *)&x->rows->magic
                                      : &x->rows->start[0];
    const void *rows = x->rows, *m = space;
    int64_t i = 0, step, odd, last = 16 * (int64_t)(x->n_rows - 4);
    if (is_paired) {
        __m512i extra[2];
        prepare_paired(&space->paired, extra, w, x, f);
        rows = space->paired.rows;
        if (f.has_min)
            PIPELINE(PAIRED, ADD_MIN, NO_TABLE);
        else
            PIPELINE(PAIRED, NO_MIN, NO_TABLE);
    } else if (IS_SPLIT) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            _mm512_store_ps(space->split.scale[h][1], w->scale[h][0]);
            if (f.has_min)
                _mm512_store_ps(space->split.min[h][1], w->min[h][0]);
        }
        if (f.has_min)
            PIPELINE(PLAIN, ADD_MIN, SPLIT);
        else
            PIPELINE(PLAIN, NO_MIN, SPLIT);
    } else {
        struct multiples whole;
        m = &whole;
        multiply_scales(&whole, w, f);
        if (f.has_min)
            PIPELINE(PLAIN, ADD_MIN, WHOLE);
        else
            PIPELINE(PLAIN, NO_MIN, WHOLE);
    }
}

/* All input rows; with 16-column runs only two at a time, for lack of registers. */
INLINE void block_all(const struct weights *w, union block_space *space, const struct input *x,
                      const struct quant_format f, const bool is_few)
{
    const int step = f.sub == BLOCK ? 4 : 2;
    if (!is_few && f.sub == BLOCK) {
        block_many(w, space, x, f);
        return;
    }
    struct multiples m;
    int r = 0;
    if (!is_few)
        multiply_scales(&m, w, f);
    for (; r + step <= x->n_rows; r += step) {
        if (!is_few) {
            const char *ahead = (const char *)(x->q + 8 * r) + PREFETCH_INPUT_BYTES;
            _mm_prefetch(ahead, _MM_HINT_T0);
            _mm_prefetch(ahead + 64, _MM_HINT_T0);
        }
        block_rows(w, &m, x, r, step, f, is_few);
    }
    switch (x->n_rows - r) {
    case 3:
        block_rows(w, &m, x, r, 3, f, is_few);
        break;
    case 2:
        block_rows(w, &m, x, r, 2, f, is_few);
        break;
    case 1:
        block_rows(w, &m, x, r, 1, f, is_few);
        break;
    default:
        break;
    }
}

/* Weights to be read soon. Four rows and more leave few buffers of L1 for lines on their way from memory, so
 * on processors that execute them in two passes these lines stay in L2 (measured: docs/notes/kernels.md). */
INLINE void prefetch_block(const uint8_t *block, size_t n_bytes, int n_rows)
{
    if (IS_SPLIT && n_rows > FEW_ROWS_SPLIT)
        for (size_t line = 0; line < n_bytes; line += 64)
            _mm_prefetch((const char *)block + PREFETCH_WEIGHTS_L2 + line, _MM_HINT_T1);
    else
        for (size_t line = 0; line < n_bytes; line += 64)
            prefetch_weights(block + line);
}

/* The first line of space whose place in a page follows that of end. A load may wait for an earlier store at
 * the same place of another page, as if it were the same address; the totals are stored all the time. */
INLINE union block_space *after_totals(uint8_t *space, const float *end)
{
    return (union block_space *)(space + (((uintptr_t)end - (uintptr_t)space + 63) & (PAGE - 64)));
}

/* One panel. out: [2][half_rows(n_rows)][16]. */
INLINE void quantized_panel(float *out, const uint8_t *panel, const struct quant_format f,
                            const uint8_t *tile, int n_rows, int n_blocks)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    const size_t block_bytes = 2 * format_half_bytes(f), unit_bytes = format_unit_bytes(f);
    struct input x = { .total = { out, out + half_rows(n_rows) * LANES }, .n_rows = n_rows };
    const bool is_paired = IS_PAIRED && format_is_paired(f),
               is_split = IS_SPLIT && !is_paired && f.sub == BLOCK;
    const int few_rows = is_paired || (is_split && !f.has_min) ? FEW_ROWS_SPLIT : FEW_ROWS;
    _Alignas(64) uint8_t bytes[sizeof(union block_space) + PAGE];
    _Alignas(64) uint8_t wide[FORMAT_WIDE];
    union block_space *space = is_split || is_paired ? after_totals(bytes, x.total[1] + n_rows * LANES)
                                                     : NULL;
    if (is_split && n_rows > few_rows)
        for (int h = 0; h < 2; h++) {
            _mm512_store_ps(space->split.scale[h][0], _mm512_setzero_ps());
            if (f.has_min)
                _mm512_store_ps(space->split.min[h][0], _mm512_setzero_ps());
        }
    for (int h = 0; h < 2; h++)
        for (int r = 0; r < n_rows; r++) {
            _mm512_storeu_ps(x.total[h] + r * LANES, _mm512_setzero_ps());
            __asm__("" ::: "memory"); /* otherwise this becomes a slower call of memset */
        }
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *unit = panel + (size_t)(b / per_unit) * unit_bytes;
        const uint8_t *block = unit + format_param_bytes(f) + (size_t)(b % per_unit) * block_bytes;
        struct weights w;
        if (is_paired && n_rows > few_rows)
            unpack_paired(&w, block, f);
        else
            unpack_block(&w, block, f);
        if (f.is_six && b % per_unit == 0)
            format_widen(wide, unit + 2 * PANEL_ROWS);
        load_scales(&w, unit, wide, b % per_unit, f);
        prefetch_block(block, unit_bytes / (size_t)per_unit, n_rows);
        x.q = (const int32_t *)tile;
        x.rows = (const struct input_row *)(tile + n_rows * BLOCK);
        tile += (size_t)n_rows * (BLOCK + sizeof(struct input_row));
        if (n_rows <= few_rows)
            block_all(&w, space, &x, f, true);
        else
            block_all(&w, space, &x, f, false);
    }
}

#define LINEAR(name, dtype, variant)                                                                         \
    void linear_##name##_##variant(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)    \
    {                                                                                                        \
        quantized_panel(out, panel, quant_format(dtype), x, n_rows, n_in / BLOCK);                           \
    }

#endif
