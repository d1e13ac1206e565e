/* Quantization of input rows with vec16: the optimized version of the one in
 * ref/linear_quantized.c. The file that includes this one defines HAS_SCALED_ROWS: whether its kernels read
 * struct scaled_row. */
#include "kernels/input_block.h"
#include "kernels/ref/exp.h"
#include "kernels/vector/vector.h"

#include <string.h>

enum {
    PREFETCH_COLUMNS = 4 * BLOCK
}; /* prefetch distance in columns: hardware cannot prefetch a stream per row */

INLINE void quantize_block(int8_t *q, struct input_row *row, const float *x, const struct quant_format f)
{
    vec16 first = v_load(x), second = v_load(x + 16);
    float inverse = input_scale(row, v_fold_max_bits(v_max_bits(v_abs(first), v_abs(second))), f);
    if (inverse == 0) {
        memset(q, 0, BLOCK);
        input_set_start(row, (int[2]){ 0, 0 }, f);
        return;
    }
    vec16 scale = v_set(inverse), magic = v_set(EXP_MAGIC);
    int sums[2] = { v_store_low_bytes(q, v_add(v_mul(first, scale), magic)),
                    v_store_low_bytes(q + 16, v_add(v_mul(second, scale), magic)) };
    input_set_start(row, sums, f);
}

INLINE void tile_quantized(uint8_t *dst, const float *x, size_t stride, int n_rows, int begin, int end,
                           const struct quant_format f)
{
    size_t n = (size_t)n_rows;
    for (int c = begin; c < end; c += BLOCK) {
        uint8_t *block = dst + (size_t)(c / BLOCK) * n * (BLOCK + sizeof(struct input_row));
        struct input_row *rows = (struct input_row *)(block + n * BLOCK);
        for (int r = 0; r < n_rows; r++) {
            const float *from = x + (size_t)r * stride + c;
            prefetch(from + PREFETCH_COLUMNS);
            prefetch(from + PREFETCH_COLUMNS + LANES);
            quantize_block((int8_t *)block + r * BLOCK, rows + r, from, f);
            if (HAS_SCALED_ROWS) {
                const struct scaled_row row = scaled_row(rows + r);
                memcpy(rows + r, &row, sizeof row);
            }
        }
    }
}

#define TILE(name, dtype)                                                                                    \
    void VARIANT(tile_##name)(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)      \
    {                                                                                                        \
        tile_quantized(dst, x, stride, n_rows, begin, end, quant_format(dtype));                             \
    }
FOR_EACH_QUANTIZED(TILE)
