/* Cells of four output rows and one input row, for SDOT or what stands for it. Included by a file that defines
 *     int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t q, int group): sum + products of four rows' groups of
 *     four columns with group 0..3 of q. */
#include "kernels/arm/load_here.h"

enum {
    MOST_CELLS = 4, /* 16 registers of totals, eight of inputs, four of sums */
    CELL_ROWS = 1,
    STRIPS = LANES / 4,
    STRIP_WEIGHTS = 8,
};

struct cell_bytes {
    const int8_t *q; /* [rows][32] */
};

typedef struct {
    int8x16_t low, high;
} cell_input;

INLINE void put_bytes(struct cell_bytes *to, const int8_t *q, int n_rows)
{
    (void)n_rows;
    to->q = q;
}

INLINE cell_input load_cell(const struct cell_bytes *x, int cell)
{
    return (cell_input){ vld1q_s8(x->q + cell * BLOCK), vld1q_s8(x->q + cell * BLOCK + 16) };
}

INLINE float32x4_t load_steps(const float *p)
{
    return load_here(p);
}

INLINE int32x4_t multiply(int32x4_t sum, int8x16_t w, cell_input q, const int k)
{
    return dot(sum, w, k < 4 ? q.low : q.high, k % 4);
}

INLINE void put_scales(float32x4_t *to, int four, float32x4_t x)
{
    to[four] = x;
}

INLINE void put_weights(int8x16_t (*to)[STRIP_WEIGHTS], int four, const int8x16_t *w)
{
    UNROLL
    for (int g = 0; g < 8; g++)
        to[four][g] = w[g];
}

INLINE void load_totals(float32x4_t *total, const float *out, int n_rows)
{
    (void)n_rows;
    UNROLL
    for (int strip = 0; strip < STRIPS; strip++)
        total[strip] = vld1q_f32(out + 4 * strip);
}

INLINE void store_totals(float *out, const float32x4_t *total, int n_rows)
{
    (void)n_rows;
    UNROLL
    for (int strip = 0; strip < STRIPS; strip++)
        vst1q_f32(out + 4 * strip, total[strip]);
}

#define TILES_TABLE(name) name##_1, name##_2, name##_3, name##_4
#define EXPANDED_TILES(name, runs, has_min)                                                                  \
    EXPANDED_TILE(name, runs, has_min, 1)                                                                    \
    EXPANDED_TILE(name, runs, has_min, 2)                                                                    \
    EXPANDED_TILE(name, runs, has_min, 3)                                                                    \
    EXPANDED_TILE(name, runs, has_min, 4)

INLINE int8x16_t unpack_group(const uint8_t *at, const int g, const struct quant_format f);

INLINE void unpack_strip(int8x16_t *w, const uint8_t *plane, int strip, const struct quant_format f)
{
    UNROLL
    for (int g = 0; g < 8; g++)
        w[g] = unpack_group(plane + 16 * strip, g, f);
}

#include "kernels/arm/integer_body.h"

/* A panel with up to four rows, from registers. */
#define DIRECT_TILE(name, dtype, cells)                                                                      \
    static void name##_direct_##cells(float *out, const struct half_chunk *half, const struct tile_input *x, \
                                      int n_blocks)                                                          \
    {                                                                                                        \
        const struct quant_format f = quant_format(dtype);                                                   \
        integer_tile(out, half, x, n_blocks, cells, kind_of(f), false, f);                                   \
    }

#define LINEAR_BY_ROWS(name, dtype, variant)                                                                 \
    DIRECT_TILE(name, dtype, 1)                                                                              \
    DIRECT_TILE(name, dtype, 2)                                                                              \
    DIRECT_TILE(name, dtype, 3)                                                                              \
    DIRECT_TILE(name, dtype, 4)                                                                              \
    static integer_tile_fn *const name##_direct[] = { NULL, TILES_TABLE(name##_direct) };                    \
    void linear_##name##_##variant(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)    \
    {                                                                                                        \
        const struct quant_format f = quant_format(dtype);                                                   \
        if (n_rows <= MOST_CELLS)                                                                            \
            linear_integers(out, panel, x, n_rows, n_in / BLOCK, name##_direct, false, f);                   \
        else                                                                                                 \
            linear_integers(out, panel, x, n_rows, n_in / BLOCK, expanded_tiles(f), true, f);                \
    }
