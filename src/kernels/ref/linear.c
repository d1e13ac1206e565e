#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#include <string.h>

/* In strips of a cache line: rows that lie a power of two apart would drive each other out of the cache. */
void tile_float_ref(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    enum { STRIP = 16 };
    for (int first = begin; first < end; first += STRIP) {
        int n = end - first < STRIP ? end - first : STRIP;
        for (int r = 0; r < n_rows; r++) {
            float *to = (float *)dst + (size_t)first * (size_t)n_rows + (size_t)r;
            for (int c = 0; c < n; c++)
                to[c * n_rows] = x[(size_t)r * stride + (size_t)(first + c)];
        }
    }
}

/* One block of one row. */
static void quantize_block(int8_t q[BLOCK], float *d, int32_t *start, const float *x, int zero_point)
{
    float max = 0;
    bool is_finite = true;
    for (int i = 0; i < BLOCK; i++) {
        is_finite = is_finite && fabsf(x[i]) <= 3.40282347e38f;
        max = max_of(fabsf(x[i]), max);
    }
    memset(q, 0, BLOCK);
    *start = 0;
    if (!is_finite || max < 0x1p-100f) {
        *d = is_finite ? 0.0f : (float)NAN;
        return;
    }
    *d = max / 127;
    float inverse = 127 / max; /* |x * inverse| < 127.5 */
    int sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        float rounded = x[i] * inverse + EXP_MAGIC;
        q[i] = (int8_t)(float_bits(rounded) - float_bits(EXP_MAGIC));
        sum += q[i];
    }
    *start = -zero_point * sum;
}

static void tile_quantized(uint8_t *dst, const float *x, size_t stride, int n_rows, int begin, int end,
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

void tile_q8_0_ref(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    tile_quantized(dst, x, stride, n_rows, begin, end, 128);
}

void tile_q4_0_ref(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    tile_quantized(dst, x, stride, n_rows, begin, end, 8);
}

static float weight_at(const uint8_t *panel, enum dtype dtype, size_t i)
{
    if (dtype == DTYPE_F32)
        return ((const float *)panel)[i];
    uint16_t half = ((const uint16_t *)panel)[i];
    return dtype == DTYPE_F16 ? half_to_float(half) : bf16_to_float(half);
}

static void linear_float(float *out, const uint8_t *panels, enum dtype dtype, int n_panels, const float *x,
                         int n_rows, int n_in)
{
    size_t stride = 0;
    panel_bytes(dtype, n_in, &stride);
    for (int p = 0; p < n_panels; p++, panels += stride) {
        for (int r = 0; r < n_rows; r++, out += PANEL_ROWS) {
            for (int i = 0; i < PANEL_ROWS; i++) {
                float total = 0;
                for (int begin = 0; begin < n_in; begin += LINEAR_RUN) {
                    int end = n_in - begin < LINEAR_RUN ? n_in : begin + LINEAR_RUN;
                    float run = 0;
                    for (int c = begin; c < end; c++)
                        run = fmaf(weight_at(panels, dtype, (size_t)c * PANEL_ROWS + (size_t)i),
                                   x[(size_t)c * (size_t)n_rows + (size_t)r], run);
                    total += run;
                }
                out[i] = total;
            }
        }
    }
}

void linear_f32_ref(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                    bool is_cold)
{
    (void)is_cold;
    linear_float(out, panels, DTYPE_F32, n_panels, x, n_rows, n_in);
}

void linear_f16_ref(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                    bool is_cold)
{
    (void)is_cold;
    linear_float(out, panels, DTYPE_F16, n_panels, x, n_rows, n_in);
}

void linear_bf16_ref(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                     bool is_cold)
{
    (void)is_cold;
    linear_float(out, panels, DTYPE_BF16, n_panels, x, n_rows, n_in);
}

static int dot_q8_0(const uint8_t *quants, int row, const int8_t *x, int sum)
{
    for (int c = 0; c < BLOCK; c++)
        sum += quants[(c / 4 * PANEL_ROWS + row) * 4 + c % 4] * x[c];
    return sum;
}

static int dot_q4_0(const uint8_t *quants, int row, const int8_t *x, int sum)
{
    for (int c = 0; c < BLOCK / 2; c++) {
        int two = quants[(c / 4 * PANEL_ROWS + row) * 4 + c % 4];
        sum += (two & 15) * x[c] + (two >> 4) * x[c + BLOCK / 2];
    }
    return sum;
}

typedef int dot_fn(const uint8_t *quants, int row, const int8_t *x, int sum);

static void linear_quantized(float *out, const uint8_t *panels, dot_fn *dot, size_t packed, int n_panels,
                             const uint8_t *x, int n_rows, int n_in)
{
    int n_blocks = n_in / BLOCK;
    size_t group = PACK_SCALE_BYTES + 2 * packed, block_bytes = (size_t)n_rows * (BLOCK + 8);
    for (int p = 0; p < n_panels;
         p++, out += n_rows * PANEL_ROWS, panels += (size_t)(n_blocks + 1) / 2 * group) {
        memset(out, 0, (size_t)n_rows * PANEL_ROWS * sizeof *out);
        for (int b = 0; b < n_blocks; b++) {
            const uint8_t *at = panels + (size_t)(b / 2) * group;
            const uint16_t *scales = (const uint16_t *)at + b % 2 * PANEL_ROWS;
            const uint8_t *quants = at + PACK_SCALE_BYTES + (size_t)(b % 2) * packed;
            const int8_t *q = (const int8_t *)(x + (size_t)b * block_bytes);
            const float *d = (const float *)(q + n_rows * BLOCK);
            const int32_t *start = (const int32_t *)(d + n_rows);
            for (int r = 0; r < n_rows; r++)
                for (int i = 0; i < PANEL_ROWS; i++) {
                    float *total = &out[r * PANEL_ROWS + i];
                    int sum = dot(quants, i, q + r * BLOCK, start[r]);
                    *total = fmaf((float)sum, half_to_float(scales[i]) * d[r], *total);
                }
        }
    }
}

void linear_q8_0_ref(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                     bool is_cold)
{
    (void)is_cold;
    linear_quantized(out, panels, dot_q8_0, PACK_Q8_0_BLOCK, n_panels, x, n_rows, n_in);
}

void linear_q4_0_ref(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows, int n_in,
                     bool is_cold)
{
    (void)is_cold;
    linear_quantized(out, panels, dot_q4_0, PACK_Q4_0_BLOCK, n_panels, x, n_rows, n_in);
}
