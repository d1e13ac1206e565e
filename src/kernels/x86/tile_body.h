/* Quantization of input rows over vec16: the twin of tile_quantized_ref(). */
#include "kernels/ref/exp.h"
#include "kernels/x86/x86.h"

#include <math.h>
#include <string.h>

INLINE void quantize_group(int8_t *q, int32_t *sums, float *d, size_t block_bytes, const float *x,
                           int n_blocks)
{
    vec16 max16 = v_set(0);
    for (int i = 0; i < 2 * n_blocks; i++)
        max16 = v_max_bits(v_abs(v_load(x + 16 * i)), max16);
    float max = v_fold_max_bits(max16);
    bool is_finite = max <= 3.40282347e38f;
    if (!is_finite || max < 0x1p-100f) {
        for (int b = 0; b < n_blocks; b++) {
            memset(q + (size_t)b * block_bytes, 0, BLOCK);
            memset((uint8_t *)sums + (size_t)b * block_bytes, 0, 2 * sizeof *sums);
        }
        *d = is_finite ? 0.0f : (float)NAN;
        return;
    }
    *d = max / 127;
    vec16 inverse = v_set(127 / max), magic = v_set(EXP_MAGIC);
    for (int b = 0; b < n_blocks; b++, x += BLOCK, q += block_bytes, sums += block_bytes / sizeof *sums) {
        int first = v_store_low_bytes(q, v_add(v_mul(v_load(x), inverse), magic));
        int second = v_store_low_bytes(q + 16, v_add(v_mul(v_load(x + 16), inverse), magic));
        sums[0] = -(first + second);
        sums[1] = -first;
    }
}

void VARIANT(tile_quantized)(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    size_t n = (size_t)n_rows, block_bytes = n * (BLOCK + 8);
    for (int c = begin; c < end; c += GROUP) {
        int n_blocks = (end - c < GROUP ? end - c : GROUP) / BLOCK;
        uint8_t *group = (uint8_t *)dst + (size_t)(c / BLOCK) * block_bytes +
                         (size_t)(c / GROUP) * n * sizeof(float);
        float *d = (float *)(group + (size_t)n_blocks * block_bytes);
        for (int r = 0; r < n_rows; r++)
            quantize_group((int8_t *)group + r * BLOCK, (int32_t *)(group + n * BLOCK) + 2 * r, d + r,
                           block_bytes, x + (size_t)r * stride + c, n_blocks);
    }
}
