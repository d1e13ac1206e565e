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

#include <string.h>

enum {
    FEW_ROWS = 8,       /* up to here, multiplying by the step is cheaper than a table of multiples */
    FEW_ROWS_SPLIT = 3, /* up to here, than the smaller table of a type without mins, and than pairs */
    PAGE = 4096,
    /* Of the input rows: with many rows a tile comes from the L3 cache. */
    PREFETCH_INPUT_BYTES = IS_SPLIT ? 6144 : 24576,
    /* Ahead, of weights that only L2 fetches from memory, and that L1 then takes from it. */
    SPLIT_AHEAD_L2 = 6912,
    SPLIT_AHEAD_L1 = 576,
};

/* The scales and mins of a block times 8, 9, ... 15. */
struct multiples {
    _Alignas(64) float scale[2][2][INPUT_STEPS][LANES], min[2][2][INPUT_STEPS][LANES];
};

/* The same as sums: 0 and 1 times; 8, 10, 12 and 14 times. [half]; 0 and 1 times scale and min are set by C. */
struct split_multiples {
    _Alignas(64) float scale[2][6][LANES], min[2][6][LANES];
};

/* What kernels for columns in pairs read in place of struct input_row, of the formats with format_is_paired(). A sum that starts at
 * INPUT_MAGIC becomes a float times d by one multiply-subtract, (magic + sum) d - magic d, which is exact. */
struct paired_row {
    union {
        int32_t start; /* of products that are not paired: INPUT_MAGIC's bits - zero sum(q) */
        float least;   /* of a format with mins: -sum(q) d, times the zero point if there is one */
    };
    int32_t paired_start;
    float magic_d, d;
};

/* The mins of a block whose columns are paired. */
struct paired_block {
    _Alignas(64) float min[2][LANES];
};

/* Of one block, at a place in a page that follows the totals. */
union block_space {
    struct split_multiples split;
    struct paired_block paired;
};

/* The input rows of one block, and their totals. */
struct input {
    const int32_t *q; /* [n_rows][8] times four bytes */
    union {
        const struct input_row *rows;
        const struct paired_row *paired; /* of a format whose columns are paired */
    };
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

/* Adds to the sums of n rows, of each half and run, the products of all columns. */
INLINE void add_products(__m512i sum[4][2][2], const struct weights *w, const int32_t *rows, const int n,
                         const int per_run)
{
    UNROLL
    for (int g = 0; g < 8; g++) {
        UNROLL
        for (int i = 0; i < n; i++) {
            __m512i q;
            /* Loaded once; the compiler would fold a load into each product. */
            __asm__("vpbroadcastd %1, %0" : "=v"(q) : "m"(rows[i * 8 + g]));
            sum[i][0][g / per_run] = dot(sum[i][0][g / per_run], w->w[0][g], q);
            sum[i][1][g / per_run] = dot(sum[i][1][g / per_run], w->w[1][g], q);
        }
    }
}

/* One block of a format whose columns are paired, with n input rows from row r on, whose products are not: they are few. */
INLINE void unpaired_rows(const struct weights *w, const struct input *x, int r, const int n,
                          const struct quant_format f)
{
    const struct paired_row *rows = x->paired + r;
    __m512i sum[4][2][2];
    UNROLL
    for (int i = 0; i < n; i++)
        sum[i][0][0] = sum[i][1][0] = f.has_min ? _mm512_castps_si512(_mm512_set1_ps(INPUT_MAGIC))
                                                : _mm512_set1_epi32(rows[i].start);
    add_products(sum, w, x->q + 8 * r, n, 8);
    UNROLL
    for (int i = 0; i < n; i++) {
        const __m512 d = _mm512_set1_ps(rows[i].d), magic_d = _mm512_set1_ps(rows[i].magic_d),
                     least = f.has_min ? _mm512_set1_ps(rows[i].least) : _mm512_setzero_ps();
        UNROLL
        for (int h = 0; h < 2; h++) {
            float *at = x->total[h] + (r + i) * LANES;
            __m512 number = _mm512_fmsub_ps(_mm512_castsi512_ps(sum[i][h][0]), d, magic_d);
            if (f.has_min && f.zero != 0)
                number = _mm512_add_ps(number, least); /* exact */
            __m512 total = _mm512_fmadd_ps(number, w->scale[h][0], _mm512_loadu_ps(at));
            if (f.has_min)
                total = _mm512_fmadd_ps(least, w->min[h][0], total);
            _mm512_storeu_ps(at, total);
        }
    }
}

/* One block with n input rows from row r on; n and is_few are compile-time constants. */
INLINE void block_rows(const struct weights *w, const struct multiples *m, const struct input *x, int r,
                       const int n, const struct quant_format f, const bool is_few)
{
    if (IS_PAIRED && format_is_paired(f)) {
        unpaired_rows(w, x, r, n, f);
        return;
    }
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
    add_products(sum, w, x->q + 8 * r, n, per_run);
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

/* The sum of (q + 128) r - (q + r) middle over q = p[8..19] and r = p[20..31]. */
INLINE int sum_paired(const int8_t *p, int middle)
{
    __m128i low = _mm_loadu_si128((const __m128i *)(p + 8)),
            high = _mm_loadu_si128((const __m128i *)(p + 16));
    __m256i q = _mm256_cvtepi8_epi16(low), r = _mm256_cvtepi8_epi16(_mm_srli_si128(high, 4));
    /* (q + 128 - middle) r - q middle; four numbers of q too many meet zeros. */
    __m256i twelve = _mm256_setr_epi16(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    __m256i products = _mm256_madd_epi16(_mm256_add_epi16(q, _mm256_set1_epi16((short)(128 - middle))), r);
    __m256i rest = _mm256_madd_epi16(q, _mm256_mullo_epi16(twelve, _mm256_set1_epi16((short)middle)));
    __m256i both = _mm256_sub_epi32(products, rest);
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xB1)));
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
            const uint8_t *at = block + (size_t)h * format_half_bytes(f) + 64 * g;
            /* With a table loading once is no faster (measured). */
            __m512i bytes = f.table == NUMBERS_PLAIN ? load_once(at) : _mm512_load_si512(at);
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

/* The sums of the products of paired weights of one half of a block. */
INLINE __m512i paired_weights(const __m512i w[8])
{
    __m512i sum = _mm512_setzero_si512();
    UNROLL
    for (int g = 2; g < 5; g++)
        sum = dot(sum, w[g + 3], w[g]);
    return sum;
}

/* All rows of a block with one scale and min for all its columns; four rows or more. */
INLINE void block_many(const struct weights *w, union block_space *space, const struct input *x,
                       const struct quant_format f)
{
    const bool is_paired = IS_PAIRED && format_is_paired(f);
    const void *start = f.zero == 0 ? (const void *)&x->rows->magic : &x->rows->start[0], *m = space;
    int64_t i = 0, step, odd, end = 16 * (int64_t)(x->n_rows / 4 * 4);
    if (is_paired) {
        const __m512i extra[2] = { paired_weights(w->w[0]), paired_weights(w->w[1]) };
        if (f.has_min) {
            _mm512_store_ps(space->paired.min[0], w->min[0][0]);
            _mm512_store_ps(space->paired.min[1], w->min[1][0]);
            PIPELINE(PAIRED, ADD_MIN, NO_TABLE);
        } else {
            PIPELINE(PAIRED, NO_MIN, NO_TABLE);
        }
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

/* Input rows that are multiplied together; with 16-column runs only two, for lack of registers. */
INLINE int rows_at_once(const struct quant_format f)
{
    return f.sub == BLOCK ? 4 : 2;
}

/* Where a block of weights is in its unit. */
struct place {
    const uint8_t *unit;
    int block;
};

/* Fetches lines of weights ahead, for few rows and for many. Lines on their way from memory into L1 occupy its buffers, which inputs
 * need; on processors that execute 512 bits in two passes it is faster to bring them into L2 first. */
INLINE void prefetch_few(const uint8_t *line)
{
    if (IS_SPLIT)
        PREFETCH(PREFETCH_L2, line + SPLIT_AHEAD_L2);
    else
        prefetch_weights(line);
}

INLINE void prefetch_many(const uint8_t *line)
{
    prefetch_few(line);
    if (IS_SPLIT)
        prefetch(line + SPLIT_AHEAD_L1);
}

/* Zen 4 reads ahead by itself where each block is as far from the next one, and one or two rows follow them fast enough: more lines at
 * a time than prefetches bring, which hold a buffer of L1 each. */
INLINE bool needs_prefetch(int n_rows, const struct quant_format f)
{
    return !IS_SPLIT || n_rows > 2 || format_unit_columns(f) > 2 * BLOCK;
}

/* Fetches ahead of one of the halves of a block of weights, with few rows. */
INLINE void prefetch_half(const struct place *at, int half, const struct quant_format f)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    prefetch_part(at->unit, format_unit_bytes(f), 2 * at->block + half, 2 * per_unit, prefetch_few);
}

/* Between the rows of a block: the second half of its prefetches, and the rows two blocks ahead, which come from L2. */
INLINE void prefetch_between(const struct place *at, const struct input *x, const struct quant_format f)
{
    const int block_bytes = x->n_rows * (BLOCK + (int)sizeof *x->rows);
    const char *ahead = (const char *)x->q + 2 * block_bytes;
    prefetch_half(at, 1, f);
    for (int i = 0; i < block_bytes; i += 64)
        prefetch(ahead + i);
}

/* All input rows. */
INLINE void block_all(const struct weights *w, union block_space *space, const struct input *x,
                      const struct quant_format f, const bool is_few, const struct place *at)
{
    const int step = rows_at_once(f);
    if (!is_few && f.sub == BLOCK) {
        block_many(w, space, x, f);
        return;
    }
    struct multiples m;
    int r = 0;
    if (!is_few)
        multiply_scales(&m, w, f);
    for (; r + step <= x->n_rows; r += step) {
        if (is_few && r == step)
            prefetch_between(at, x, f);
        if (!is_few) {
            const char *ahead = (const char *)(x->q + 8 * r) + PREFETCH_INPUT_BYTES;
            prefetch(ahead);
            prefetch(ahead + 64);
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

/* The first line of space whose place in a page follows that of end. A load may wait for an earlier store at
 * the same place of another page, as if it were the same address; the totals are stored all the time. */
INLINE union block_space *after_totals(uint8_t *space, const float *end)
{
    return (union block_space *)(space + (((uintptr_t)end - (uintptr_t)space + 63) & (PAGE - 64)));
}

/* The blocks of a panel. is_few: the loops for few rows and for many are compiled apart, as one loop for both read weights from
 * memory a tenth slower with one row. */
INLINE void panel_blocks(struct input x, union block_space *space, const uint8_t *panel,
                         const struct quant_format f, const uint8_t *tile, int n_blocks, const bool is_few)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    const size_t block_bytes = 2 * format_half_bytes(f), unit_bytes = format_unit_bytes(f);
    const bool is_ahead = is_few && needs_prefetch(x.n_rows, f);
    _Alignas(64) uint8_t wide[FORMAT_WIDE];
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *unit = panel + (size_t)(b / per_unit) * unit_bytes;
        const uint8_t *block = unit + format_param_bytes(f) + (size_t)(b % per_unit) * block_bytes;
        struct weights w;
        const struct place at = { unit, b % per_unit };
        /* With few rows before the block's own loads, with many after them (measured: docs/notes/kernels.md). */
        if (is_ahead)
            prefetch_half(&at, 0, f);
        if (is_ahead && x.n_rows < 2 * rows_at_once(f))
            prefetch_half(&at, 1, f);
        if (IS_PAIRED && format_is_paired(f) && !is_few)
            unpack_paired(&w, block, f);
        else
            unpack_block(&w, block, f);
        if (f.is_six && b % per_unit == 0)
            format_widen(wide, unit + 2 * PANEL_ROWS);
        load_scales(&w, unit, wide, b % per_unit, f);
        if (!is_few)
            prefetch_part(unit, unit_bytes, b % per_unit, per_unit, prefetch_many);
        x.q = (const int32_t *)tile;
        x.rows = (const struct input_row *)(tile + x.n_rows * BLOCK);
        tile += (size_t)x.n_rows * (BLOCK + sizeof(struct input_row));
        block_all(&w, space, &x, f, is_few, &at);
    }
}

/* One panel. out: [2][half_rows(n_rows)][16]. */
INLINE void quantized_panel(float *out, const uint8_t *panel, const struct quant_format f,
                            const uint8_t *tile, int n_rows, int n_blocks)
{
    struct input x = { .total = { out, out + half_rows(n_rows) * LANES }, .n_rows = n_rows };
    const bool is_paired = IS_PAIRED && format_is_paired(f),
               is_split = IS_SPLIT && !is_paired && f.sub == BLOCK;
    const int few_rows = is_paired || (is_split && !f.has_min) ? FEW_ROWS_SPLIT : FEW_ROWS;
    _Alignas(64) uint8_t bytes[sizeof(union block_space) + PAGE];
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
    if (n_rows <= few_rows)
        panel_blocks(x, space, panel, f, tile, n_blocks, true);
    else
        panel_blocks(x, space, panel, f, tile, n_blocks, false);
}

/* A row of a tile as the kernels for columns in pairs read it. */
INLINE struct paired_row pair_row(const struct input_row *row, const int8_t *q, const struct quant_format f)
{
    const int32_t bits = (int32_t)float_bits(INPUT_MAGIC),
                  start = bits + (f.zero == 0 ? 0 : input_start(row, 0));
    struct paired_row to = { .start = start,
                             .paired_start = start - sum_paired(q, format_middle(f)),
                             .magic_d = INPUT_MAGIC * row->d,
                             .d = row->d };
    if (f.has_min)
        to.least = (float)input_start(row, 0) * row->d;
    return to;
}

/* Replaces each struct input_row of the blocks from column begin to end of a tile. */
INLINE void pair_tile(uint8_t *tile, int n_rows, int begin, int end, const struct quant_format f)
{
    const size_t n = (size_t)n_rows, block_bytes = n * (BLOCK + sizeof(struct input_row));
    for (int b = begin / BLOCK; b < end / BLOCK; b++) {
        uint8_t *block = tile + (size_t)b * block_bytes, *rows = block + n * BLOCK;
        for (size_t r = 0; r < n; r++) {
            struct input_row row;
            memcpy(&row, rows + r * sizeof row, sizeof row);
            struct paired_row paired = pair_row(&row, (const int8_t *)block + r * BLOCK, f);
            memcpy(rows + r * sizeof row, &paired, sizeof paired);
        }
    }
}

#define PAIRED_TILE(name, dtype, variant)                                                                    \
    void tile_##name##_##variant(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)   \
    {                                                                                                        \
        tile_##name##_avx512(dst, x, stride, n_rows, begin, end);                                            \
        pair_tile(dst, n_rows, begin, end, quant_format(dtype));                                             \
    }

#define LINEAR(name, dtype, variant)                                                                         \
    void linear_##name##_##variant(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)    \
    {                                                                                                        \
        quantized_panel(out, panel, quant_format(dtype), x, n_rows, n_in / BLOCK);                           \
    }

#endif
