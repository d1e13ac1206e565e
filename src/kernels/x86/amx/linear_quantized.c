/* Linear layers of quantized weights with tiles (AMX): the optimized ref/linear_quantized.c for more than a few rows.
 *
 * TDPBSSD multiplies up to 16 input rows by 16 output rows over the columns of a block, which share a scale. The sums are
 * integers and exact, so each row has the bits of the kernels with vpdpbusd, which compute few rows. Sums leave a tile through
 * memory: total = fma(sum * d, scale, total), input_block.h.
 *
 * A panel is computed in pieces of some blocks. A piece's weights, unpacked as signed bytes, stay in the L1 cache while all
 * rows pass, 8 to 16 at a time: first all tiles of these rows are multiplied and stored; then the totals of each half of the panel
 * run through the piece in registers. A product occupies one of the two ports of multiplications and additions, so that the second
 * part would not overlap with the first one.
 *
 * The sums of a tile go on from block to block, which takes no time, where setting them to 0 would wait for the product
 * before. So a block's sum is the difference of two stored sums. They start at the bits of a float of which 1 is the unit in
 * the last place, and are read as floats.
 *
 * Few tile registers are in use: two threads of a core share those from which registers are renamed. With eight, a
 * product took 70 instead of 20 cycles where the other thread was busy (measured: docs/notes/kernels.md). */
#include "kernels/input_block.h"
#include "kernels/x86/avx512/unpack.h"
#include "kernels/x86/x86.h"

enum {
    TILE = 16,        /* rows of a tile */
    AT_ONCE = 12,     /* rows whose totals and last sums are in registers */
    PIECE_BLOCKS = 4, /* 14 KiB, of an L1 cache of 48 that two threads may share */
    /* How far ahead lines of weights are fetched into L1 and, before that, into L2, a few with each block of a tile's sums. With more
     * tiles than these they are fetched all at once, when the weights are unpacked. */
    AHEAD = 2304,
    AHEAD_L2 = 4608,
    MOST_SPREAD = 3,
};

/* Tile registers. */
#define SUM_0  "tmm0"
#define SUM_1  "tmm1"
#define INPUT  "tmm2"
#define WEIGHT "tmm3"
enum { N_TILES = 4, N_SUMS = 2, FIRST_WEIGHT = 3 };

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
    _Alignas(64) float sums[2][PIECE_BLOCKS][TILE * LANES]; /* [half]: START and all blocks up to this one */
    _Alignas(64) float least[PIECE_BLOCKS][TILE];           /* -sum(q) * d times input_factor() */
    /* Weights are fetched ahead from this line to the end of the piece's, so many lines at once; 0: not while rows are computed. */
    const uint8_t *line, *end;
    int at_once;
};

/* Fetches ahead of the next lines. */
INLINE void prefetch_some(struct piece *p)
{
    for (int i = 0; i < p->at_once && p->line < p->end; i++, p->line += 64) {
        PREFETCH(PREFETCH_L2, p->line + AHEAD_L2);
        prefetch(p->line + AHEAD);
    }
}

/* The input rows of a piece. They are distributed evenly over the tiles, since a product takes as long as a tile has rows. */
struct inputs {
    const uint8_t *tile; /* from the piece's first block on */
    size_t block_bytes;
    int n_rows, n_blocks, n_tiles;
};

INLINE const uint8_t *q_of(const struct inputs *x, int block, int row)
{
    return x->tile + (size_t)block * x->block_bytes + row * BLOCK;
}

INLINE const struct input_row *rows_of(const struct inputs *x, int block, int row)
{
    return (const struct input_row *)q_of(x, block, x->n_rows) + row;
}

/* Sets the sizes of the tiles for n input rows. */
INLINE void configure(int n)
{
    struct tile_config c = { .palette = 1 };
    for (int i = 0; i < N_TILES; i++) {
        c.row_bytes[i] = i < N_SUMS || i >= FIRST_WEIGHT ? 4 * LANES : BLOCK;
        c.n_rows[i] = i < FIRST_WEIGHT ? (uint8_t)n : BLOCK / 4;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* 1.5 * 2^23: an integer up to 2^22 added to its bits is added to its value. */
#define START 0x1.8p23f
static const _Alignas(64) float start_line[LANES] = {
    START, START, START, START, START, START, START, START,
    START, START, START, START, START, START, START, START
};

_Static_assert(128 * 127 * BLOCK * PIECE_BLOCKS <= 1 << 22, "the sums of a piece, of 8-bit numbers");

#define LOAD(tile, from, stride)                                                                             \
    __asm__ volatile("tileloadd (%0,%1,1), %%" tile ::"r"(from), "r"((int64_t)(stride)) : "memory")
#define STORE(tile, to)                                                                                      \
    __asm__ volatile("tilestored %%" tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(4 * LANES)) : "memory")
#define MULTIPLY(sum, input, weight)                                                                         \
    __asm__ volatile("tdpbssd %%" weight ", %%" input ", %%" sum ::: "memory")

/* The sums of a tile's rows. */
INLINE void multiply(struct piece *p, const struct inputs *x, int row)
{
    const int last = x->n_blocks - 1;
    LOAD(SUM_0, start_line, 0);
    LOAD(SUM_1, start_line, 0);
    LOAD(INPUT, q_of(x, 0, row), BLOCK);
    LOAD(WEIGHT, p->w[0][0], 4 * LANES);
    MULTIPLY(SUM_0, INPUT, WEIGHT);
    LOAD(WEIGHT, p->w[0][1], 4 * LANES);
    MULTIPLY(SUM_1, INPUT, WEIGHT);
    for (int b = 1; b <= last; b++) {
        LOAD(INPUT, q_of(x, b, row), BLOCK);
        LOAD(WEIGHT, p->w[b][0], 4 * LANES);
        STORE(SUM_0, p->sums[0][b - 1]);
        MULTIPLY(SUM_0, INPUT, WEIGHT);
        LOAD(WEIGHT, p->w[b][1], 4 * LANES);
        STORE(SUM_1, p->sums[1][b - 1]);
        MULTIPLY(SUM_1, INPUT, WEIGHT);
    }
    STORE(SUM_0, p->sums[0][last]);
    STORE(SUM_1, p->sums[1][last]);
}

/* piece.least of n rows from row on. The numbers of four rows are transposed within 128 bits, which leaves those of row r at
 * place r % 4 * 4 + r / 4. */
INLINE void find_least(struct piece *p, const struct inputs *x, int row, int n)
{
    enum { AT_A_TIME = sizeof(__m512i) / sizeof(struct input_row) };
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __mmask16 there[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        int rest = n - i * AT_A_TIME;
        there[i] = (__mmask16)(rest >= AT_A_TIME ? 0xFFFF : rest > 0 ? (1 << rest * 4) - 1 : 0);
    }
    for (int b = 0; b < x->n_blocks; b++) {
        const struct input_row *from = rows_of(x, b, row);
        __m512i rows[4], pair[4];
        UNROLL
        for (int i = 0; i < 4; i++)
            rows[i] = _mm512_maskz_loadu_epi32(there[i], from + i * AT_A_TIME);
        UNROLL
        for (int i = 0; i < 2; i++) {
            pair[i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);     /* start */
            pair[2 + i] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]); /* magic, d */
        }
        __m512 start = _mm512_castsi512_ps(_mm512_unpacklo_epi64(pair[0], pair[1]));
        __m512 magic = _mm512_castsi512_ps(_mm512_unpacklo_epi64(pair[2], pair[3]));
        __m512i d = _mm512_unpackhi_epi64(pair[2], pair[3]);
        __m512i step = _mm512_and_si512(_mm512_srli_epi32(d, 20), _mm512_set1_epi32(INPUT_STEPS - 1));
        __m512 factor = _mm512_cvtepi32_ps(_mm512_add_epi32(step, _mm512_set1_epi32(INPUT_STEPS)));
        __m512 least = _mm512_mul_ps(_mm512_sub_ps(start, magic), factor);
        _mm512_store_ps(p->least[b], _mm512_permutexvar_ps(order, least));
    }
}

INLINE void add_block(__m512 t[], __m512 before[], const struct piece *p, const struct inputs *x, int row,
                      int in_tile, int h, int b, const int n, const bool has_min)
{
    const struct input_row *from = rows_of(x, b, row);
    const float *sums = p->sums[h][b] + in_tile * LANES;
    __m512 scale = _mm512_load_ps(p->scale[b][h]), min = _mm512_load_ps(p->min[b][h]);
    UNROLL
    for (int r = 0; r < n; r++) {
        __m512 sum = _mm512_load_ps(sums + r * LANES);
        __m512 number = _mm512_mul_ps(_mm512_sub_ps(sum, before[r]), _mm512_set1_ps(from[r].d));
        before[r] = sum;
        t[r] = _mm512_fmadd_ps(number, scale, t[r]);
        if (has_min)
            t[r] = _mm512_fmadd_ps(_mm512_set1_ps(p->least[b][in_tile + r]), min, t[r]);
    }
}

/* Adds the sums of half h to the totals of n rows from row on, which are those of the tile from in_tile on. */
INLINE void add_sums(float *total, struct piece *p, const struct inputs *x, int row, int in_tile, int h,
                     const int n, const bool has_min, bool is_first)
{
    __m512 t[AT_ONCE], before[AT_ONCE];
    UNROLL
    for (int r = 0; r < n; r++) {
        t[r] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(total + r * LANES);
        before[r] = _mm512_set1_ps(START);
    }
    for (int b = 0; b < x->n_blocks; b++) {
        prefetch_some(p);
        add_block(t, before, p, x, row, in_tile, h, b, n, has_min);
    }
    UNROLL
    for (int r = 0; r < n; r++)
        _mm512_storeu_ps(total + r * LANES, t[r]);
}

/* The same of n rows from row on, which are all of a tile: 8 to 16. */
INLINE void add_tile(float *total, struct piece *p, const struct inputs *x, int row, int h, int n,
                     const bool has_min, bool is_first)
{
    int at = 0;
    if (n > AT_ONCE) {
        add_sums(total, p, x, row, 0, h, 8, has_min, is_first);
        at = 8;
    }
    switch (n - at) {
#define REST(n)                                                                                              \
    case n:                                                                                                  \
        add_sums(total + at * LANES, p, x, row + at, at, h, n, has_min, is_first);                           \
        break;
        REST(5)
        REST(6)
        REST(7)
        REST(8)
        REST(9)
        REST(10)
        REST(11)
        REST(12)
#undef REST
    }
}

/* A piece with all rows. out: [2][half_rows(n_rows)][16]. All tiles are read with as many rows as the last one has; those with
 * one less leave it to the next. */
INLINE void multiply_piece(float *out, struct piece *p, const struct inputs *x, const bool has_min,
                           bool is_first)
{
    for (int t = 0, row = 0, end; t < x->n_tiles; t++, row = end) {
        end = (t + 1) * x->n_rows / x->n_tiles;
        multiply(p, x, row);
        if (has_min)
            find_least(p, x, row, end - row);
        for (int h = 0; h < 2; h++)
            add_tile(out + (h * half_rows(x->n_rows) + row) * LANES, p, x, row, h, end - row, has_min,
                     is_first);
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
    if (p->at_once == 0)
        prefetch_part(unit, unit_bytes, b % per_unit, per_unit, prefetch_weights);
}

/* One panel of a format with one scale for a block. */
INLINE void tiles_panel(float *out, const uint8_t *panel, const struct quant_format f, const uint8_t *tile,
                        int n_rows, int n_blocks)
{
    struct piece p;
    struct inputs x = { .tile = tile,
                        .block_bytes = (size_t)n_rows * (BLOCK + sizeof(struct input_row)),
                        .n_rows = n_rows,
                        .n_tiles = (n_rows + TILE - 1) / TILE };
    const size_t unit_bytes = format_unit_bytes(f), per_unit = (size_t)(format_unit_columns(f) / BLOCK);
    p.line = panel;
    p.at_once = x.n_tiles <= MOST_SPREAD ? (int)(unit_bytes / per_unit / 64) / (2 * x.n_tiles) + 1 : 0;
    configure((n_rows + x.n_tiles - 1) / x.n_tiles);
    for (int first = 0; first < n_blocks; first += PIECE_BLOCKS) {
        x.n_blocks = n_blocks - first < PIECE_BLOCKS ? n_blocks - first : PIECE_BLOCKS;
        for (int i = 0; i < x.n_blocks; i++)
            unpack_to(&p, i, panel, first + i, f);
        p.end = panel + (size_t)(first + x.n_blocks) * unit_bytes / per_unit;
        (f.has_min ? piece_min : piece_plain)(out, &p, &x, first == 0);
        x.tile += (size_t)x.n_blocks * x.block_bytes;
    }
    /* Configuring each panel takes 200 cycles, but with tiles left in use everything is slower where two threads share a core. */
    __asm__ volatile("tilerelease");
}

/* Whether tiles are faster than vpdpbusd, whose time grows row by row. With two scales for a block, a tile would have half
 * as many columns, at the same cost. */
INLINE bool is_for_tiles(const struct quant_format f, int n_rows)
{
    return f.sub == BLOCK && n_rows > 8;
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
