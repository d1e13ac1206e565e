/* Linear layers of quantized weights for AArch64: the optimized ref/linear_quantized.c. Included by a file of one
 * instruction set after by_rows_body.h or by_pairs_body.h, which say what a register of sums holds.
 *
 * A cell is a register of four sums: of four output rows with one input row, or of two with two. A strip is the
 * output rows of a cell. A tile is half a panel times up to MOST_CELLS cells of input rows; its totals stay in
 * registers over a chunk of blocks. For each cell, strip and run of columns that share a scale:
 *     sum starts at the run's starting sum (input_block.h) and takes the products;
 *     value = sum, read as a float, * (8 + step) - magic * (8 + step), which is exact;
 *     total = value * scale + total.
 * So there are two multiply-adds besides the products, and whatever is constant in the four lanes is loaded as a
 * vector, since loads have room: struct cell, which prepare() makes once for both halves of a panel.
 *
 * Weights are expanded to a buffer in the L1 cache for all input rows, or in registers where one tile has all
 * rows. Numbers that would not fit int8 have their zero point subtracted while they are expanded. */
#include "kernels/input_block.h"
#include "kernels/pack.h"

enum {
    CHUNK = 8, /* blocks; divides those of a unit of 256 columns */
    TILE_CELLS_ROWS = MOST_CELLS * CELL_ROWS,
    FOURS = LANES / 4,
};

/* A cell's part of a block, the same for all strips. */
struct cell {
    uint32_t start[2][4];
    float negative[4], steps[4]; /* -magic * (8 + step); 8 + step */
    float least[2][4];           /* has_min: the input's part of the minimum of each run */
};

/* The weights of half a panel in a chunk. */
struct half_chunk {
    int8x16_t weights[CHUNK][STRIPS][STRIP_WEIGHTS];
    float32x4_t scales[CHUNK][2][STRIPS], mins[CHUNK][2][STRIPS];
    const uint8_t *planes[CHUNK]; /* as packed */
};

/* The input rows of a tile in a chunk. */
struct tile_input {
    struct cell cells[CHUNK][MOST_CELLS];
    struct cell_bytes bytes[CHUNK];
    int n_rows; /* 1..TILE_CELLS_ROWS */
};

/* What the compiler must know of a format to compile a tile of expanded weights. */
struct tile_kind {
    int runs;
    bool has_min;
};

INLINE struct tile_kind kind_of(const struct quant_format f)
{
    return (struct tile_kind){ .runs = BLOCK / f.sub, .has_min = f.has_min };
}

/* Whether expanded numbers have their zero point subtracted. */
INLINE bool is_centred(const struct quant_format f)
{
    return f.table != NUMBERS_PLAIN || f.low_bits == 8;
}

/* ---- weights ---- */

/* Group g of four output rows. at: of these rows in the low plane. */
INLINE int8x16_t unpack_group(const uint8_t *at, const int g, const struct quant_format f)
{
    const int n = f.low_bits, m = f.high_bits, last = n < 8 ? 8 / n - 1 : 0;
    uint8x16_t w = vld1q_u8(at + 64 * (g % n));
    if (n == 8)
        return vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(0x80)));
    const int place = g / n;
    if (place > 0)
        w = w >> (uint8_t)(place * n);
    if (place < last)
        w = vandq_u8(w, vdupq_n_u8((uint8_t)((1 << n) - 1)));
    if (f.table != NUMBERS_PLAIN) {
        int8x16_t table = vreinterpretq_s8_u8(
            vsubq_u8(vld1q_u8(number_tables[f.table]), vdupq_n_u8((uint8_t)f.zero)));
        return vqtbl1q_s8(table, w);
    }
    if (m > 0) {
        const int up = n - g / (m > 0 ? m : 1) * m;
        uint8x16_t bytes = vld1q_u8(at + format_low_bytes(f) + 64 * (g % (m > 0 ? m : 1)));
        bytes = up >= 0 ? bytes << (uint8_t)up : bytes >> (uint8_t)-up;
        w = vorrq_u8(w, vandq_u8(bytes, vdupq_n_u8((uint8_t)(((1 << m) - 1) << n))));
    }
    return vreinterpretq_s8_u8(w);
}

/* The eight groups of four output rows. */
INLINE void unpack_four(int8x16_t *w, const uint8_t *plane, int four, const struct quant_format f)
{
    UNROLL
    for (int g = 0; g < 8; g++)
        w[g] = unpack_group(plane + 16 * four, g, f);
}

INLINE float32x4_t load_halves(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p)));
}

INLINE uint8x8_t load_four(const uint8_t *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return vreinterpret_u8_u32(vdup_n_u32(word));
}

INLINE float32x4_t load_unsigned(uint8x8_t bytes)
{
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

INLINE float32x4_t load_signed(const uint8_t *p)
{
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(p))))));
}

/* 2^(byte - 128) of four bytes: stored.h. */
INLINE float32x4_t load_exponents(const uint8_t *p)
{
    uint32x4_t bytes = vmovl_u16(vget_low_u16(vmovl_u8(load_four(p))));
    uint32x4_t normal = vshlq_n_u32(vsubq_u32(bytes, vdupq_n_u32(1)), 23);
    uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(bytes));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(bytes, vdupq_n_u32(2)), small, normal));
}

/* Scales and minimums of a block of the unit, for four output rows from row of the panel on. wide: of
 * format_widen(). */
INLINE void load_scales(float32x4_t *scales, float32x4_t *mins, const uint8_t *unit, const uint8_t *wide,
                        int row, int block, const struct quant_format f)
{
    const int n = BLOCK / f.sub;
    const uint8_t *subs = (f.is_six ? wide : unit + (f.has_min ? 4 : 2) * PANEL_ROWS) +
                          (size_t)(block * n) * PANEL_ROWS + row;
    float32x4_t scale = f.is_exponent ? load_exponents(unit + block * PANEL_ROWS + row)
                                      : load_halves(unit + format_scale_at(f, block) + 2 * row);
    if (f.is_eighth)
        scale = vmulq_n_f32(scale, 0.125f);
    float32x4_t min = f.has_min && !f.has_zero ? load_halves(unit + 2 * PANEL_ROWS + 2 * row)
                                               : vdupq_n_f32(0);
    if (f.has_zero)
        min = vmulq_f32(scale, vmulq_n_f32(load_signed(unit + format_zero_at(f, block) + row),
                                           1.0f / (float)input_factor(f)));
    UNROLL
    for (int i = 0; i < n; i++, subs += PANEL_ROWS) {
        if (f.is_joint) {
            uint8x8_t both = load_four(subs);
            scales[i] = vmulq_f32(scale, load_unsigned(vand_u8(both, vdup_n_u8(15))));
            mins[i] = vmulq_f32(min, load_unsigned(vshr_n_u8(both, 4)));
        } else {
            scales[i] = f.is_super ? vmulq_f32(scale, load_signed(subs)) : scale;
            mins[i] = f.is_super && f.has_min ? vmulq_f32(min, load_signed(subs + format_subs_bytes(f)))
                                              : min;
        }
    }
}

/* Prepares n blocks of a panel from block begin on. expands: numbers too. */
INLINE void prepare_weights(struct half_chunk *halves, const uint8_t *panel, int begin, int n,
                            const bool expands, const struct quant_format f)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    uint8_t wide[FORMAT_WIDE];
    for (int b = 0; b < n; b++) {
        const uint8_t *unit = panel + (size_t)((begin + b) / per_unit) * format_unit_bytes(f);
        const int index = (begin + b) % per_unit;
        const uint8_t *plane = unit + format_param_bytes(f) + (size_t)index * 2 * format_half_bytes(f);
        if (f.is_six && index == 0) /* a chunk begins with a unit */
            format_widen(wide, unit + 2 * PANEL_ROWS);
        prefetch_part(unit, format_unit_bytes(f), index, per_unit, prefetch_weights);
        for (int h = 0; h < 2; h++, plane += format_half_bytes(f)) {
            struct half_chunk *half = halves + h;
            half->planes[b] = plane;
            UNROLL
            for (int four = 0; four < FOURS; four++) {
                float32x4_t scales[2], mins[2];
                load_scales(scales, mins, unit, wide, h * LANES + 4 * four, index, f);
                UNROLL
                for (int run = 0; run < BLOCK / f.sub; run++) {
                    put_scales(half->scales[b][run], four, scales[run]);
                    if (f.has_min)
                        put_scales(half->mins[b][run], four, mins[run]);
                }
                if (expands) {
                    int8x16_t w[8];
                    unpack_four(w, plane, four, f);
                    put_weights(half->weights[b], four, w);
                }
            }
        }
    }
}

/* ---- inputs ---- */

/* Two words, twice. Through general registers, since the vector pipes are what the kernels wait for. */
INLINE void put_twice(void *to, uint32_t first, uint32_t second)
{
    uint64_t both = first | (uint64_t)second << 32;
    __asm__("" : "+r"(both));
    memcpy(to, &both, sizeof both);
    memcpy((char *)to + sizeof both, &both, sizeof both);
}

/* The cells of one block. rows: n of them, at most TILE_CELLS_ROWS = 4. */
INLINE void prepare_cells(struct cell *cells, const struct input_row *rows, int n,
                          const struct quant_format f)
{
    struct input_row few[4];
    uint32_t start[2][4], negative[4], steps[4], least[2][4];
    if (n < 4) {
        for (int i = 0; i < 4; i++)
            few[i] = rows[i < n ? i : n - 1];
        rows = few;
    }
    const int32x4x4_t all = vld4q_s32((const int32_t *)rows);
    const float32x4_t magic = vreinterpretq_f32_s32(all.val[2]);
    const int32x4_t bits = vandq_s32(vshrq_n_s32(all.val[3], 20), vdupq_n_s32(INPUT_STEPS - 1));
    const float32x4_t step = vcvtq_f32_s32(vaddq_s32(bits, vdupq_n_s32(INPUT_STEPS))); /* input_step() */
    vst1q_u32(negative, vreinterpretq_u32_f32(vnegq_f32(vmulq_f32(magic, step))));
    vst1q_u32(steps, vreinterpretq_u32_f32(step));
    const int runs = BLOCK / f.sub;
    for (int run = 0; run < runs; run++) {
        const bool is_magic = f.zero == 0 || is_centred(f);
        vst1q_u32(start[run], vreinterpretq_u32_s32(is_magic ? all.val[2] : all.val[run]));
        if (f.has_min) {
            float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(all.val[run]), magic);
            vst1q_u32(least[run], vreinterpretq_u32_f32(vmulq_f32(sum, step)));
        }
    }
    for (int i = 0; i < MOST_CELLS && i * CELL_ROWS < n; i++, cells++) {
        const int first = i * CELL_ROWS, second = first + CELL_ROWS - 1;
        put_twice(cells->negative, negative[first], negative[second]);
        put_twice(cells->steps, steps[first], steps[second]);
        for (int run = 0; run < runs; run++) {
            put_twice(cells->start[run], start[run][first], start[run][second]);
            if (f.has_min)
                put_twice(cells->least[run], least[run][first], least[run][second]);
        }
    }
}

/* Rows row..row + x->n_rows - 1 of a tile of n_rows, in n blocks from block begin on. */
INLINE void prepare_input(struct tile_input *x, const uint8_t *tile, int n_rows, int row, int begin, int n,
                          const struct quant_format f)
{
    const size_t block_bytes = (size_t)n_rows * (BLOCK + sizeof(struct input_row));
    tile += (size_t)begin * block_bytes;
    for (int b = 0; b < n; b++, tile += block_bytes) {
        put_bytes(&x->bytes[b], (const int8_t *)tile + row * BLOCK, x->n_rows);
        prepare_cells(x->cells[b], (const struct input_row *)(tile + n_rows * BLOCK) + row, x->n_rows, f);
    }
}

/* ---- tiles ---- */

/* out: of the half and the tile's first input row. n_cells, kind and expands are compile-time constants, f too
 * unless it expands. */
INLINE void integer_tile(float *out, const struct half_chunk *half, const struct tile_input *x, int n_blocks,
                         const int n_cells, const struct tile_kind kind, const bool expands,
                         const struct quant_format f)
{
    const int per_run = STRIP_WEIGHTS / kind.runs;
    float32x4_t total[MOST_CELLS][STRIPS];
    UNROLL
    for (int i = 0; i < n_cells; i++)
        load_totals(total[i], out + i * CELL_ROWS * LANES, x->n_rows - i * CELL_ROWS);
    for (int b = 0; b < n_blocks; b++) {
        const struct cell *cells = x->cells[b];
        cell_input q[MOST_CELLS];
        UNROLL
        for (int i = 0; i < n_cells; i++)
            q[i] = load_cell(&x->bytes[b], i);
        UNROLL
        for (int strip = 0; strip < STRIPS; strip++) {
            int8x16_t w[STRIP_WEIGHTS];
            if (expands) {
                UNROLL
                for (int k = 0; k < STRIP_WEIGHTS; k++)
                    w[k] = half->weights[b][strip][k];
            } else {
                unpack_strip(w, half->planes[b], strip, f);
            }
            UNROLL
            for (int run = 0; run < kind.runs; run++) {
                int32x4_t sum[MOST_CELLS];
                UNROLL
                for (int i = 0; i < n_cells; i++)
                    sum[i] = vreinterpretq_s32_f32(load_here(cells[i].start[run]));
                UNROLL
                for (int k = run * per_run; k < (run + 1) * per_run; k++)
                    UNROLL
                for (int i = 0; i < n_cells; i++)
                    sum[i] = multiply(sum[i], w[k], q[i], k);
                UNROLL
                for (int i = 0; i < n_cells; i++) {
                    float32x4_t value = vfmaq_f32(load_here(cells[i].negative), vreinterpretq_f32_s32(sum[i]),
                                                  load_steps(cells[i].steps));
                    total[i][strip] = vfmaq_f32(total[i][strip], value, half->scales[b][run][strip]);
                }
            }
            if (kind.has_min) {
                UNROLL
                for (int run = 0; run < kind.runs; run++)
                    UNROLL
                for (int i = 0; i < n_cells; i++)
                    total[i][strip] = vfmaq_f32(total[i][strip], load_here(cells[i].least[run]),
                                                half->mins[b][run][strip]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n_cells; i++)
        store_totals(out + i * CELL_ROWS * LANES, total[i], x->n_rows - i * CELL_ROWS);
}

typedef void integer_tile_fn(float *out, const struct half_chunk *half, const struct tile_input *x,
                             int n_blocks);

/* All panels' tiles of a chunk. tiles: by cells. */
INLINE void chunk_tiles(float *out, const struct half_chunk *halves, struct tile_input *x,
                        const uint8_t *tile, int n_rows, int begin, int n, integer_tile_fn *const *tiles,
                        const struct quant_format f)
{
    int n_tiles = (n_rows + TILE_CELLS_ROWS - 1) / TILE_CELLS_ROWS;
    for (int t = 0; t < n_tiles; t++) { /* of even height: 13 rows make 3, 3, 3 and 4 */
        int row = n_rows * t / n_tiles;
        x->n_rows = n_rows * (t + 1) / n_tiles - row;
        prepare_input(x, tile, n_rows, row, begin, n, f);
        for (int h = 0; h < 2; h++)
            tiles[(x->n_rows + CELL_ROWS - 1) / CELL_ROWS](out + (h * half_rows(n_rows) + row) * LANES,
                                                           halves + h, x, n);
    }
}

INLINE void linear_integers(float *out, const uint8_t *panel, const uint8_t *tile, int n_rows, int n_blocks,
                            integer_tile_fn *const *tiles, const bool expands, const struct quant_format f)
{
    struct half_chunk halves[2];
    struct tile_input x;
    clear_outputs(out, n_rows);
    for (int begin = 0; begin < n_blocks; begin += CHUNK) {
        int n = n_blocks - begin < CHUNK ? n_blocks - begin : CHUNK;
        prepare_weights(halves, panel, begin, n, expands, f);
        chunk_tiles(out, halves, &x, tile, n_rows, begin, n, tiles, f);
    }
}

/* ---- tiles of expanded weights: the same for all formats of a kind ---- */

#define EXPANDED_TILE(name, runs_, has_min_, cells)                                                          \
    static void name##_##cells(float *out, const struct half_chunk *half, const struct tile_input *x,        \
                               int n_blocks)                                                                 \
    {                                                                                                        \
        const struct tile_kind kind = { .runs = (runs_), .has_min = (has_min_) };                            \
        integer_tile(out, half, x, n_blocks, cells, kind, true, (struct quant_format){ 0 });                 \
    }
#define EXPANDED_KIND(name, runs_, has_min_)                                                                 \
    EXPANDED_TILES(name, runs_, has_min_)                                                                    \
    static integer_tile_fn *const name[] = { NULL, TILES_TABLE(name) };

EXPANDED_KIND(expanded_32, 1, false)
EXPANDED_KIND(expanded_32_min, 1, true)
EXPANDED_KIND(expanded_16, 2, false)
EXPANDED_KIND(expanded_16_min, 2, true)

INLINE integer_tile_fn *const *expanded_tiles(const struct quant_format f)
{
    if (f.sub == BLOCK)
        return f.has_min ? expanded_32_min : expanded_32;
    return f.has_min ? expanded_16_min : expanded_16;
}
