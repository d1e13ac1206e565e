#include "kernels/pack.h"
#include "kernels/ref/ref.h"

/* In strips of a cache line: rows at a power-of-two distance would evict each other from the
 * cache. */
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

static float weight_at(const uint8_t *panel, enum dtype dtype, int column, int row)
{
    size_t c = (size_t)column, r = (size_t)row;
    const uint16_t *halves = (const uint16_t *)panel;
    if (dtype == DTYPE_F32)
        return ((const float *)panel)[c * PANEL_ROWS + r];
    return half_to_float(halves[c * PANEL_ROWS + r]);
}

static void linear_float(float *out, const uint8_t *panel, enum dtype dtype, const float *x, int n_rows,
                         int n_in)
{
    for (int h = 0; h < 2; h++, out += half_rows(n_rows) * LANES) {
        for (int i = 0; i < n_rows * LANES; i++) {
            int r = i / LANES, row = h * LANES + i % LANES;
            float total = 0;
            for (int begin = 0; begin < n_in; begin += LINEAR_RUN) {
                int end = n_in - begin < LINEAR_RUN ? n_in : begin + LINEAR_RUN;
                float run = 0;
                for (int c = begin; c < end; c++)
                    run = fmaf(weight_at(panel, dtype, c, row), x[(size_t)c * (size_t)n_rows + (size_t)r],
                               run);
                total += run;
            }
            out[i] = total;
        }
    }
}

void linear_f32_ref(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)
{
    linear_float(out, panel, DTYPE_F32, x, n_rows, n_in);
}

void linear_f16_ref(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)
{
    linear_float(out, panel, DTYPE_F16, x, n_rows, n_in);
}
