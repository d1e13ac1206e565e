/* Linear layers of quantized weights with tiles (AMX): the optimized ref/linear_quantized.c for more than a few rows.
 *
 * TDPBSSD multiplies up to 16 input rows by 16 output rows over the columns of a block, which share a scale. The sums are
 * integers and exact, so each row has the bits of the kernels with vpdpbusd, which compute few rows. Sums leave a tile through
 * memory: total = fma(sum * d, scale, total), input_block.h.
 *
 * A panel is computed in pieces of some blocks. A piece's weights, unpacked as signed bytes, stay in the L1 cache while all
 * rows pass, 16 at a time: first all tiles of these rows are multiplied and stored; then the totals of each half of the panel
 * run through the piece in registers. Loads and stores of tiles occupy the front end, so that hardly anything overlaps
 * with them (measured: docs/notes/kernels.md). */
#include "kernels/input_block.h"
#include "kernels/x86/avx512/unpack.h"
#include "kernels/x86/x86.h"

enum {
    TILE = 16,        /* rows of a tile */
    PIECE_BLOCKS = 8, /* their weights, sums and scales take half of an L1 cache of 48 KiB */
};

/* Tile registers: sums of both halves, inputs; weights of both halves; the first three for the rows after the last 16. */
#define SUM_0      "tmm0"
#define SUM_1      "tmm1"
#define INPUT      "tmm2"
#define WEIGHT_0   "tmm3"
#define WEIGHT_1   "tmm4"
#define REST_SUM_0 "tmm5"
#define REST_SUM_1 "tmm6"
#define REST_INPUT "tmm7"
enum { N_TILES = 8, FIRST_WEIGHT = 3, FIRST_REST = 5 };

/* The operand of LDTILECFG: Intel's Software Developer's Manual, volume 1, section 18.3. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

struct piece {
    _Alignas(64) int8_t w[PIECE_BLOCKS][2][BLOCK * LANES]; /* [block][half], then [group of columns][16][4] */
    _Alignas(64) float scale[PIECE_BLOCKS][2][LANES], min[PIECE_BLOCKS][2][LANES];
    /* Of the current rows: */
    _Alignas(64) int32_t sums[2][PIECE_BLOCKS][TILE * LANES]; /* [half] */
    _Alignas(64) float d[PIECE_BLOCKS][TILE];                 /* where there are fewer than 16 rows */
    _Alignas(64) float least[PIECE_BLOCKS][TILE];             /* -sum(q) * d times input_factor() */
};

/* The input rows of a piece. */
struct inputs {
    const uint8_t *tile; /* from the piece's first block on */
    size_t block_bytes;
    int n_rows, n_blocks;
};

INLINE const uint8_t *q_of(const struct inputs *x, int block, int row)
{
    return x->tile + (size_t)block * x->block_bytes + row * BLOCK;
}

INLINE const struct input_row *rows_of(const struct inputs *x, int block, int row)
{
    return (const struct input_row *)q_of(x, block, x->n_rows) + row;
}

/* Sizes of the tiles. rest: input rows after the last 16. */
INLINE void configure(int rest)
{
    struct tile_config c = { .palette = 1 };
    for (int i = 0; i < (rest > 0 ? N_TILES : FIRST_REST); i++) {
        c.row_bytes[i] = 4 * LANES;
        c.n_rows[i] = i < FIRST_REST ? TILE : (uint8_t)rest;
    }
    c.n_rows[FIRST_WEIGHT] = c.n_rows[FIRST_WEIGHT + 1] = BLOCK / 4;
    c.row_bytes[FIRST_WEIGHT - 1] = BLOCK;
    if (rest > 0)
        c.row_bytes[N_TILES - 1] = BLOCK;
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

#define LOAD(tile, from, stride)                                                                             \
    __asm__ volatile("tileloadd (%0,%1,1), %%" tile ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define MULTIPLY(sum, input, weight, to)                                                                     \
    __asm__ volatile("tilezero %%" sum "\n\ttdpbssd %%" weight ", %%" input ", %%" sum                       \
                     "\n\ttilestored %%" sum ", (%0,%1,1)" ::"r"(to),                                        \
                     "r"((int64_t)(4 * LANES))                                                               \
                     : "memory")
#define MULTIPLY_ALL(sum_0, sum_1, input)                                                                    \
    for (int b = 0; b < x->n_blocks; b++) {                                                                  \
        LOAD(input, q_of(x, b, row), BLOCK);                                                                 \
        LOAD(WEIGHT_0, p->w[b][0], 4 * LANES);                                                               \
        LOAD(WEIGHT_1, p->w[b][1], 4 * LANES);                                                               \
        MULTIPLY(sum_0, input, WEIGHT_0, p->sums[0][b]);                                                     \
        MULTIPLY(sum_1, input, WEIGHT_1, p->sums[1][b]);                                                     \
    }

/* The sums of up to 16 rows. */
INLINE void multiply(struct piece *p, const struct inputs *x, int row)
{
    if (x->n_rows - row >= TILE)
        MULTIPLY_ALL(SUM_0, SUM_1, INPUT)
    else
        MULTIPLY_ALL(REST_SUM_0, REST_SUM_1, REST_INPUT)
}

/* Rows after the last get 0: what their sums and totals contain must not be slow to compute with. */
INLINE void find_factors(struct piece *p, const struct inputs *x, int row, const bool has_min)
{
    int n = x->n_rows - row;
    for (int b = 0; b < x->n_blocks && (has_min || n < TILE); b++) {
        const struct input_row *from = rows_of(x, b, row);
        for (int r = 0; r < TILE; r++) {
            p->d[b][r] = r < n ? from[r].d : 0;
            if (has_min)
                p->least[b][r] = r < n ? (bits_float((uint32_t)from[r].start[0]) - from[r].magic) *
                                             (float)(INPUT_STEPS + input_step(&from[r]))
                                       : 0;
        }
    }
}

/* Adds the sums of half h to the totals of n rows, of which there are at most `most`: 16 or fewer. */
INLINE void add_sums(float *total, const struct piece *p, const struct inputs *x, int row, int h,
                     const int most, const bool has_min, bool is_first)
{
    const int n = x->n_rows - row;
    __m512 t[TILE];
    UNROLL
    for (int r = 0; r < most; r++)
        t[r] = is_first || r >= n ? _mm512_setzero_ps() : _mm512_loadu_ps(total + r * LANES);
    for (int b = 0; b < x->n_blocks; b++) {
        const struct input_row *from = rows_of(x, b, row);
        const int32_t *sums = p->sums[h][b];
        __m512 scale = _mm512_load_ps(p->scale[b][h]), min = _mm512_load_ps(p->min[b][h]);
        UNROLL
        for (int r = 0; r < most; r++) {
            __m512 d = most == TILE ? _mm512_set1_ps(from[r].d) : _mm512_set1_ps(p->d[b][r]);
            __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * LANES));
            t[r] = _mm512_fmadd_ps(_mm512_mul_ps(sum, d), scale, t[r]);
            if (has_min)
                t[r] = _mm512_fmadd_ps(_mm512_set1_ps(p->least[b][r]), min, t[r]);
        }
    }
    UNROLL
    for (int r = 0; r < most; r++)
        if (r < n)
            _mm512_storeu_ps(total + r * LANES, t[r]);
}

/* A piece with all rows. out: [2][half_rows(n_rows)][16]. */
INLINE void multiply_piece(float *out, struct piece *p, const struct inputs *x, const bool has_min,
                           bool is_first)
{
    for (int row = 0; row < x->n_rows; row += TILE) {
        multiply(p, x, row);
        find_factors(p, x, row, has_min);
        for (int h = 0; h < 2; h++) {
            float *total = out + (h * half_rows(x->n_rows) + row) * LANES;
            int n = x->n_rows - row;
            if (n >= TILE)
                add_sums(total, p, x, row, h, TILE, has_min, is_first);
            else if (n > 12)
                add_sums(total, p, x, row, h, TILE - 1, has_min, is_first);
            else if (n > 8)
                add_sums(total, p, x, row, h, 12, has_min, is_first);
            else if (n > 4)
                add_sums(total, p, x, row, h, 8, has_min, is_first);
            else
                add_sums(total, p, x, row, h, 4, has_min, is_first);
        }
    }
}

typedef void piece_fn(float *out, struct piece *p, const struct inputs *x, bool is_first);

static __attribute__((noinline)) void piece_plain(float *out, struct piece *p, const struct inputs *x,
                                                  bool is_first)
{
    multiply_piece(out, p, x, false, is_first);
}

static __attribute__((noinline)) void piece_min(float *out, struct piece *p, const struct inputs *x,
                                                bool is_first)
{
    multiply_piece(out, p, x, true, is_first);
}

/* Unpacks block b of the panel as block i of the piece. */
INLINE void unpack_to(struct piece *p, int i, const uint8_t *panel, int b, const struct quant_format f)
{
    const int per_unit = format_unit_columns(f) / BLOCK;
    const size_t block_bytes = 2 * format_half_bytes(f), unit_bytes = format_unit_bytes(f);
    const uint8_t *unit = panel + (size_t)(b / per_unit) * unit_bytes;
    const uint8_t *block = unit + format_param_bytes(f) + (size_t)(b % per_unit) * block_bytes;
    const __m512i zero = _mm512_set1_epi8((char)f.zero);
    struct weights w;
    unpack_block(&w, block, f);
    load_scales(&w, unit, NULL, b % per_unit, f);
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int g = 0; g < BLOCK / 4; g++)
            _mm512_store_si512(p->w[i][h] + 4 * LANES * g, _mm512_sub_epi8(w.w[h][g], zero));
        _mm512_store_ps(p->scale[i][h], w.scale[h][0]);
        _mm512_store_ps(p->min[i][h], w.min[h][0]);
    }
    for (size_t line = 0; line < unit_bytes / (size_t)per_unit; line += 64)
        _mm_prefetch((const char *)block + weights_ahead_bytes + line, _MM_HINT_T0);
}

/* One panel of a format with one scale for a block. */
INLINE void tiles_panel(float *out, const uint8_t *panel, const struct quant_format f, const uint8_t *tile,
                        int n_rows, int n_blocks)
{
    struct piece p;
    struct inputs x = { .tile = tile,
                        .block_bytes = (size_t)n_rows * (BLOCK + sizeof(struct input_row)),
                        .n_rows = n_rows };
    configure(n_rows % TILE);
    for (int first = 0; first < n_blocks; first += PIECE_BLOCKS) {
        x.n_blocks = n_blocks - first < PIECE_BLOCKS ? n_blocks - first : PIECE_BLOCKS;
        for (int i = 0; i < x.n_blocks; i++)
            unpack_to(&p, i, panel, first + i, f);
        (f.has_min ? piece_min : piece_plain)(out, &p, &x, first == 0);
        x.tile += (size_t)x.n_blocks * x.block_bytes;
    }
    __asm__ volatile("tilerelease");
}

/* Whether tiles are faster than vpdpbusd, whose time grows row by row. With two scales for a block, a tile would have half
 * as many columns, at the same cost. */
INLINE bool is_for_tiles(const struct quant_format f, int n_rows)
{
    int n_padded = (n_rows + TILE - 1) / TILE * TILE;
    return f.sub == BLOCK && 4 * n_rows >= 3 * n_padded;
}

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_amx(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)          \
    {                                                                                                        \
        const struct quant_format f = quant_format(dtype);                                                   \
        if (is_for_tiles(f, n_rows))                                                                         \
            tiles_panel(out, panel, f, x, n_rows, n_in / BLOCK);                                             \
        else                                                                                                 \
            linear_##name##_avx512(out, panel, x, n_rows, n_in);                                             \
    }
FOR_EACH_QUANTIZED(LINEAR)
