/* Quantization of input rows over vec16: the twin of tile_quantized() in ref/linear.c. */
#include "kernels/ref/exp.h"
#include "kernels/x86/x86.h"

#include <math.h>
#include <string.h>

INLINE void quantize_block(int8_t *q, float *d, int32_t *start, const float *x, int zero_point)
{
    vec16 a = v_load(x), b = v_load(x + 16), limit = v_set(3.40282347e38f);
    float max = v_fold_max(v_max(v_abs(a), v_abs(b)));
    bool is_finite = (v_bits(v_less_equal(v_abs(a), limit)) & v_bits(v_less_equal(v_abs(b), limit))) ==
                     0xFFFF;
    if (!is_finite || max < 0x1p-100f) {
        memset(q, 0, BLOCK);
        *d = is_finite ? 0.0f : (float)NAN;
        *start = 0;
        return;
    }
    *d = max / 127;
    vec16 inverse = v_set(127 / max), magic = v_set(EXP_MAGIC);
    int sum = v_store_low_bytes(q, v_add(v_mul(a, inverse), magic)) +
              v_store_low_bytes(q + 16, v_add(v_mul(b, inverse), magic));
    *start = -zero_point * sum;
}

INLINE void tile_quantized(uint8_t *dst, const float *x, size_t stride, int n_rows, int begin, int end,
                           int zero_point)
{
    size_t block_bytes = (size_t)n_rows * (BLOCK + 8);
    for (int c = begin; c < end; c += BLOCK) {
        int8_t *q = (int8_t *)(dst + (size_t)(c / BLOCK) * block_bytes);
        float *d = (float *)(q + n_rows * BLOCK);
        int32_t *start = (int32_t *)(d + n_rows);
        for (int r = 0; r < n_rows; r++)
            quantize_block(q + r * BLOCK, d + r, start + r, x + (size_t)r * stride + c, zero_point);
    }
}

void VARIANT(tile_q8_0)(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    tile_quantized(dst, x, stride, n_rows, begin, end, 128);
}

void VARIANT(tile_q4_0)(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    tile_quantized(dst, x, stride, n_rows, begin, end, 8);
}
