/* Linear layers: packed input rows, register tiles of every number of rows, every weight type. */
#include "base/half.h"
#include "check.h"
#include "kernels/float8.h"
#include "kernels/input_block.h"
#include "kernels/pack.h"

#include <string.h>

static const enum dtype TYPES[] = { DTYPE_F32,    DTYPE_F16,     DTYPE_BF16,   DTYPE_Q8_0,     DTYPE_Q4_0,
                                    DTYPE_Q4_1,   DTYPE_Q5_0,    DTYPE_Q5_1,   DTYPE_Q2_K,     DTYPE_Q3_K,
                                    DTYPE_Q4_K,   DTYPE_Q5_K,    DTYPE_Q6_K,   DTYPE_MXFP4,    DTYPE_IQ4_NL,
                                    DTYPE_IQ4_XS, DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_IQ2_S,    DTYPE_IQ3_XXS,
                                    DTYPE_IQ3_S,  DTYPE_IQ1_S,   DTYPE_IQ1_M,  DTYPE_F8_BLOCK, DTYPE_F8_ROW,
                                    DTYPE_G4_64,  DTYPE_G4_128,  DTYPE_G8_64,  DTYPE_G8_128,   DTYPE_G4Z_32,
                                    DTYPE_G4Z_64, DTYPE_G4Z_128 };
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

/* Where the upper bytes of a block's floats or halves stand. */
static int high_bytes(enum dtype dtype, size_t high[2])
{
    static const size_t SECOND[DTYPE_COUNT] = {
        [DTYPE_Q4_1] = 3, [DTYPE_Q5_1] = 3, [DTYPE_Q4_K] = 3, [DTYPE_Q5_K] = 3, [DTYPE_Q2_K] = 83
    };
    high[0] = dtype == DTYPE_F32 || dtype_is_float8(dtype) ? 3
              : dtype == DTYPE_Q2_K                        ? 81
              : dtype == DTYPE_Q3_K                        ? 109
              : dtype == DTYPE_Q6_K                        ? 209
              : dtype == DTYPE_MXFP4                       ? 0
              : dtype == DTYPE_IQ1_M                       ? 55
                                                           : 1;
    high[1] = SECOND[dtype];
    return high[1] > 0 ? 2 : 1;
}

/* Weights of any bytes at all: what a hostile file could hold. In floats every NaN and denormal occurs; scales of
 * blocks are kept finite in half of the cases, so that sums are seen too. */
static void fill_stored(struct check *c, uint8_t *bytes, enum dtype dtype, size_t n_bytes, bool is_tame)
{
    for (size_t i = 0; i < n_bytes; i++)
        bytes[i] = (uint8_t)check_random(c);
    if (!is_tame)
        return;
    size_t step = (size_t)dtype_block_bytes(dtype), high[2];
    int n = high_bytes(dtype, high);
    for (size_t i = 0; i + step <= n_bytes; i += step)
        for (int h = 0; h < n; h++)
            bytes[i + high[h]] = dtype == DTYPE_MXFP4 /* of the order of one */
                                     ? (uint8_t)(124 + bytes[i] % 8)
                                     : (uint8_t)((bytes[i + high[h]] & 0x83) | 0x34);
}

/* Copies the scales of the first eight rows to the others: no more may differ. */
static void share_scales(uint8_t *stored, enum dtype dtype, size_t row_bytes)
{
    size_t step = (size_t)dtype_block_bytes(dtype);
    for (size_t row = FLOAT8_SCALES; row < PANEL_ROWS; row++)
        for (size_t at = 0; at < row_bytes; at += step)
            memcpy(stored + row * row_bytes + at, stored + row % FLOAT8_SCALES * row_bytes + at,
                   sizeof(float));
}

static uint8_t *packed_panel(struct check *c, enum dtype dtype, int n_in, bool is_tame)
{
    size_t row_bytes = 0, n_bytes = 0;
    if (!dtype_bytes(dtype, n_in, &row_bytes) || !panel_bytes(dtype, n_in, &n_bytes))
        return NULL;
    uint8_t *stored = check_bytes(c, PANEL_ROWS * row_bytes), *panel = check_bytes(c, n_bytes);
    const uint8_t *rows[PANEL_ROWS];
    fill_stored(c, stored, dtype, PANEL_ROWS * row_bytes, is_tame);
    if (dtype_is_float8(dtype))
        share_scales(stored, dtype, row_bytes);
    for (int i = 0; i < PANEL_ROWS; i++)
        rows[i] = i == 5 && !is_tame ? NULL : stored + (size_t)i * row_bytes;
    return pack_panel(panel, rows, dtype, n_in) ? panel : NULL;
}

uint8_t *check_tame_panel(struct check *c, enum dtype dtype, int n_in)
{
    return packed_panel(c, dtype, n_in, true);
}

/* The rows of a tile of ref as those of AVX2's. */
static void scale_rows(uint8_t *tile, int n_rows, int n_in)
{
    for (int b = 0; b < n_in / BLOCK; b++) {
        tile += n_rows * BLOCK;
        for (int r = 0; r < n_rows; r++, tile += sizeof(struct input_row)) {
            struct input_row row;
            memcpy(&row, tile, sizeof row);
            const struct scaled_row scaled = scaled_row(&row);
            memcpy(tile, &scaled, sizeof scaled);
        }
    }
}

static void check_tile(struct check *c, const struct kernels *ref, enum dtype type, int n_rows, int n_in)
{
    if (check_next(c, (any_fn *)c->k->tile[type], "tile_%s_%dx%d_%d", dtype_name(type), n_rows, n_in,
                   (int)c->fill)) {
        size_t stride = (size_t)n_in + 3, n_bytes = tile_bytes(type, n_rows, n_in);
        float *x = check_floats(c, (size_t)(n_rows - 1) * stride + (size_t)n_in);
        uint8_t *want = check_bytes(c, n_bytes), *got = check_bytes(c, n_bytes);
        check_fill(c, x, (size_t)(n_rows - 1) * stride + (size_t)n_in);
        int middle = n_in / 512 * 256; /* in two parts, as two threads do it */
        /* Kernels for columns in pairs have rows of their own (struct paired_row). */
        bool is_own = (c->k->cpu & (CPU_SPLIT | CPU_PAIRED)) && dtype_block_elems(type) > 1 &&
                      format_is_paired(quant_format(type));
        (is_own ? c->k : ref)->tile[type](want, x, stride, n_rows, 0, n_in);
        if ((c->k->cpu & CPU_AVX2) && !(c->k->cpu & CPU_AVX512) && dtype_block_elems(type) > 1)
            scale_rows(want, n_rows, n_in);
        c->k->tile[type](got, x, stride, n_rows, middle, n_in);
        c->k->tile[type](got, x, stride, n_rows, 0, middle);
        check_same(c, want, got, n_bytes);
        check_done(c);
    }
}

static void check_panel(struct check *c, const struct kernels *ref, enum dtype type, int n_rows, int n_in)
{
    if (check_next(c, (any_fn *)c->k->linear[type], "linear_%s_%dx%d_%d", dtype_name(type), n_rows, n_in,
                   (int)c->fill)) {
        size_t n_out = (size_t)n_rows * LANES, half = (size_t)half_rows(n_rows) * LANES, row = 0;
        uint8_t *panel = packed_panel(c, type, n_in, c->fill != FILL_HOSTILE);
        float *x = check_floats(c, (size_t)n_rows * (size_t)n_in);
        uint8_t *tile = check_bytes(c, tile_bytes(type, n_rows, n_in)),
                *single = check_bytes(c, tile_bytes(type, 1, n_in));
        float *want = check_floats(c, 2 * half), *got = check_floats(c, 2 * half),
              *one = check_floats(c, PANEL_ROWS);
        check_fill(c, x, (size_t)n_rows * (size_t)n_in);
        ref->tile[type](tile, x, (size_t)n_in, n_rows, 0, n_in);
        ref->linear[type](want, panel, tile, n_rows, n_in);
        c->k->tile[type](tile, x, (size_t)n_in, n_rows, 0, n_in);
        c->k->linear[type](got, panel, tile, n_rows, n_in);
        for (size_t h = 0; h < 2; h++)
            check_bits(c, want + h * half, got + h * half, n_out);
        row = (size_t)n_rows / 2; /* as the only one: the same bits */
        c->k->tile[type](single, x + row * (size_t)n_in, (size_t)n_in, 1, 0, n_in);
        c->k->linear[type](one, panel, single, 1, n_in);
        for (size_t h = 0; h < 2; h++)
            check_bits(c, want + h * half + row * LANES, one + h * LANES, LANES);
        check_done(c);
    }
}

/* Sums of bf16 around the smallest normal number: 2^-126 - k 2^-154 for each output row k. */
static void check_small_sums(struct check *c, const struct kernels *ref)
{
    if (check_next(c, (any_fn *)c->k->linear[DTYPE_BF16], "linear_bf16_small_sums")) {
        enum { N_IN = 4, N_ROWS = 3 };
        size_t n_bytes = 0;
        uint8_t *panel = panel_bytes(DTYPE_BF16, N_IN, &n_bytes) ? check_bytes(c, n_bytes) : NULL;
        uint8_t *tile = check_bytes(c, tile_bytes(DTYPE_BF16, N_ROWS, N_IN));
        size_t half = (size_t)half_rows(N_ROWS) * LANES;
        float *x = check_floats(c, N_ROWS * N_IN), *want = check_floats(c, 2 * half),
              *got = check_floats(c, 2 * half);
        uint16_t stored[PANEL_ROWS][N_IN];
        const uint8_t *rows[PANEL_ROWS];
        for (int k = 0; k < PANEL_ROWS; k++) {
            const float w[N_IN] = { 0x1p-63f, 0, (float)-k * 0x1p-77f, 0 };
            for (int i = 0; i < N_IN; i++)
                stored[k][i] = float_to_bf16(w[i]);
            rows[k] = (const uint8_t *)stored[k];
        }
        for (int i = 0; i < N_ROWS * N_IN; i++)
            x[i] = i % N_IN == 0 ? 0x1p-63f : i % N_IN == 2 ? 0x1p-77f : 0;
        check_true(c, panel && pack_panel(panel, rows, DTYPE_BF16, N_IN), "packed");
        ref->tile[DTYPE_BF16](tile, x, N_IN, N_ROWS, 0, N_IN);
        ref->linear[DTYPE_BF16](want, panel, tile, N_ROWS, N_IN);
        c->k->linear[DTYPE_BF16](got, panel, tile, N_ROWS, N_IN);
        for (size_t h = 0; h < 2; h++)
            check_bits(c, want + h * half, got + h * half, (size_t)N_ROWS * LANES);
        check_done(c);
    }
}

/* The next number of rows: all that make register tiles of another height, then some; 127 at last. */
static int next_rows(const struct check *c, int n_rows)
{
    if (c->is_brief && n_rows >= 9)
        return n_rows == 9 ? 31 : n_rows == 31 ? 43 : TILE_ROWS + 1; /* from 41 rows on halves are apart */
    return n_rows + (n_rows < 36 ? 1 : 7);
}

void check_linear(struct check *c)
{
    struct kernels ref;
    kernels_init(&ref, CPU_REF);
    check_small_sums(c, &ref);
    for (int t = 0; t < N_TYPES; t++)
        for (int n_rows = 1; n_rows <= TILE_ROWS; n_rows = next_rows(c, n_rows)) {
            bool is_block = dtype_block_elems(TYPES[t]) > 1;
            c->fill = (enum fill)(n_rows % FILL_COUNT);
            int n_in = is_block ? dtype_block_elems(TYPES[t]) * (1 + n_rows % 6) : 29 + 37 * (n_rows % 4);
            check_panel(c, &ref, TYPES[t], n_rows, n_in);
            check_tile(c, &ref, TYPES[t], n_rows, n_in);
            if (n_rows == 1 || n_rows == 2 || n_rows == 7 || n_rows == 16 || (n_rows == 31 && !c->is_brief))
                for (int fill = 0; fill < FILL_COUNT; fill++) {
                    c->fill = (enum fill)fill;
                    check_panel(c, &ref, TYPES[t], n_rows,
                                dtype_block_elems(TYPES[t]) > 32 ? 1024
                                : is_block                       ? 1056
                                                                 : 1043);
                    check_tile(c, &ref, TYPES[t], n_rows,
                               dtype_block_elems(TYPES[t]) > 32 ? 512
                               : is_block                       ? 416
                                                                : 51);
                }
        }
}
