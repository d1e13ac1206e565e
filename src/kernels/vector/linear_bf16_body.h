/* Linear layers of bf16 weights with vec16: the optimized ref/linear_bf16.c. Included by a file
 * of one instruction set, which defines MAX_ROWS, BF16_TILES, BF16_TILES_TABLE, struct weight_pair with
 * load_weights(), struct input_pair with load_input(), dot_pair() and add_sums(); and IS_WIDE: more rows than MAX_ROWS
 * take the tiles of wide_body.h, whose inputs it makes: INPUT_STRIDE and expand_inputs().
 *
 * vdpbf16ps flushes denormals in inputs and results to zero; the variants without it do the same. Their
 * processors do so in a mode of their own, into which the including file puts them. */
#include "kernels/pack.h"
#include "kernels/vector/vector.h"

#include <string.h>

/* out: [2][half_rows(out_rows)][16], zeroed; x: [pairs of columns][out_rows]. n_rows is a compile-time
 * constant. */
INLINE void bf16_tile(float *out, int out_rows, const uint8_t *panel, const uint32_t *x, const int n_rows,
                      int n_pairs, bool is_cold)
{
    for (int begin = 0; begin < n_pairs; begin += LINEAR_RUN / 2) {
        int end = n_pairs - begin < LINEAR_RUN / 2 ? n_pairs : begin + LINEAR_RUN / 2;
        vec16 run[2][MAX_ROWS];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            run[0][r] = run[1][r] = v_set(0);
        const uint32_t *at = x + (size_t)begin * (size_t)out_rows;
        for (int c = begin; c < end; c++, at += out_rows) {
            const uint8_t *column = panel + (size_t)c * 128;
            weight_pair w0 = load_weights(column), w1 = load_weights(column + 64);
            if (is_cold) {
                prefetch_ahead(column, n_rows > TILE_FEW_ROWS ? weights_ahead_many : weights_ahead);
                prefetch_ahead(column + 64, n_rows > TILE_FEW_ROWS ? weights_ahead_many : weights_ahead);
            }
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                input_pair value = load_input(at + r);
                run[0][r] = dot_pair(run[0][r], w0, value);
                run[1][r] = dot_pair(run[1][r], w1, value);
            }
        }
        UNROLL
        for (int r = 0; r < n_rows; r++)
            UNROLL
        for (int h = 0; h < 2; h++) {
            float *total = out + (h * half_rows(out_rows) + r) * LANES;
            v_store(total, add_sums(v_load(total), run[h][r]));
        }
    }
}

typedef void bf16_tile_fn(float *out, int out_rows, const uint8_t *panel, const uint32_t *x, int n_pairs,
                          bool is_cold);

#define BF16_TILE(rows)                                                                                      \
    static void tile_##rows(float *out, int out_rows, const uint8_t *panel, const uint32_t *x, int n_pairs,  \
                            bool is_cold)                                                                    \
    {                                                                                                        \
        bf16_tile(out, out_rows, panel, x, rows, n_pairs, is_cold);                                          \
    }

BF16_TILES
static bf16_tile_fn *const TILES[] = { NULL, BF16_TILES_TABLE };

#if IS_WIDE
#include "kernels/vector/wide_body.h"

WIDE_ADDS(pairs, DTYPE_BF16)

/* More rows than MAX_ROWS. */
INLINE void linear_wide(float *out, const uint8_t *panel, const uint32_t *x, int n_rows, int n_pairs)
{
    _Alignas(64) float inputs[LINEAR_RUN * INPUT_STRIDE];
    int n_tiles = (n_rows + WIDE_ROWS - 1) / WIDE_ROWS;
    for (int begin = 0; begin < n_pairs; begin += LINEAR_RUN / 2) {
        int n = n_pairs - begin < LINEAR_RUN / 2 ? n_pairs - begin : LINEAR_RUN / 2;
        struct wide_run run = { .weights = panel + (size_t)begin * 128,
                                .n = 2 * n,
                                .x = inputs,
                                .x_stride = INPUT_STRIDE,
                                .out_rows = n_rows };
        for (int tile = 0; tile < n_tiles; tile++) { /* of even height: 13 rows make 4, 4 and 5 */
            int first = n_rows * tile / n_tiles, last = n_rows * (tile + 1) / n_tiles;
            expand_inputs(inputs, x + (size_t)begin * (size_t)n_rows + first, n_rows, last - first, n);
            run.prefetches = tile == 0;
            WIDE_pairs[last - first](out + first * LANES, &run);
        }
    }
}
#endif

INLINE void linear_bf16(float *out, const uint8_t *panel, const uint32_t *x, int n_rows, int n_in)
{
    clear_outputs(out, n_rows);
#if IS_WIDE
    if (n_rows > MAX_ROWS) {
        linear_wide(out, panel, x, n_rows, (n_in + 1) / 2);
        return;
    }
#endif
    int n_tiles = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int tile = 0; tile < n_tiles; tile++) { /* of even height: 13 rows make 7 and 6 */
        int begin = n_rows * tile / n_tiles, end = n_rows * (tile + 1) / n_tiles;
        TILES[end - begin](out + begin * LANES, n_rows, panel, x + begin, (n_in + 1) / 2, tile == 0);
    }
}
