#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#include <string.h>

/* In strips, as tile_float_ref(). */
void tile_bf16_ref(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
{
    enum { STRIP = 32 };
    uint16_t *tile = dst;
    for (int first = begin; first < end; first += STRIP) {
        int n = end - first < STRIP ? end - first : STRIP;
        for (int r = 0; r < n_rows; r++) {
            const float *from = x + (size_t)r * stride + (size_t)first;
            uint16_t *to = tile + ((size_t)(first / 2) * (size_t)n_rows + (size_t)r) * 2;
            for (int c = 0; c < n; c++)
                to[c / 2 * n_rows * 2 + c % 2] = float_to_bf16(from[c]);
            if (n % 2 != 0)
                to[n / 2 * n_rows * 2 + 1] = 0;
        }
    }
}

/* Flushes denormals to zero, as vdpbf16ps does. */
static float flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* x * y + sum, flushed if it would be too small with 24 bits, as if there were smaller exponents. */
static float multiply_add(float x, float y, float sum)
{
    float scaled = fmaf(x * 0x1p64f, y, sum * 0x1p64f), result = fmaf(x, y, sum);
    return fabsf(scaled) < 0x1p-62f ? copysignf(0, result) : result;
}

static float dot_row(const uint16_t *weights, const uint16_t *x, int row, int r, int n_rows, int n_in)
{
    float total = 0;
    for (int begin = 0; begin < n_in; begin += LINEAR_RUN) {
        int end = n_in - begin < LINEAR_RUN ? n_in : begin + LINEAR_RUN;
        float run = 0;
        for (int c = begin / 2; c < (end + 1) / 2; c++) {
            const uint16_t *w = weights + (c * PANEL_ROWS + row) * 2, *v = x + (c * n_rows + r) * 2;
            for (int i = 1; i >= 0; i--)
                run = multiply_add(flush(bf16_to_float(w[i])), flush(bf16_to_float(v[i])), run);
        }
        total = flush(total + run);
    }
    return total;
}

void linear_bf16_ref(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)
{
    for (int h = 0; h < 2; h++, out += half_rows(n_rows) * LANES)
        for (int i = 0; i < n_rows * LANES; i++)
            out[i] = dot_row((const uint16_t *)panel, x, h * LANES + i % LANES, i / LANES, n_rows, n_in);
}
