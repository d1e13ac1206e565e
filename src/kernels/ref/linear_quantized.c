#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#include <string.h>

/* One group of one row: n_blocks blocks, q and sums of the first at q and sums, of the next block_bytes further. */
static void quantize_group(int8_t *q, int32_t *sums, float *d, size_t block_bytes, const float *x,
                           int n_blocks)
{
    float max = 0;
    bool is_finite = true;
    for (int i = 0; i < n_blocks * BLOCK; i++) {
        is_finite = is_finite && fabsf(x[i]) <= 3.40282347e38f;
        max = max_of(fabsf(x[i]), max);
    }
    bool is_zero = !is_finite || max < 0x1p-100f;
    float inverse = is_zero ? 0 : 127 / max; /* |x * inverse| < 127.5 */
    *d = !is_finite ? (float)NAN : is_zero ? 0 : max / 127;
    for (int b = 0; b < n_blocks; b++, x += BLOCK, q += block_bytes, sums += block_bytes / sizeof *sums) {
        sums[0] = sums[1] = 0;
        for (int i = 0; i < BLOCK; i++) {
            float rounded = x[i] * inverse + EXP_MAGIC;
            q[i] = is_zero ? 0 : (int8_t)(float_bits(rounded) - float_bits(EXP_MAGIC));
            sums[0] -= q[i];
            sums[1] -= i < BLOCK / 2 ? q[i] : 0;
        }
    }
}

void tile_quantized_ref(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)
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

/* What one block adds to the sum of its group, for one output row and input row. */
struct block {
    const uint8_t *unit, *half;
    const int8_t *q;
    const int32_t *sums;
    int row;   /* of the panel */
    int block; /* of the unit */
};

static int number(const struct block *b, struct quant_format f, int begin, int end)
{
    int sum = 0;
    for (int c = begin; c < end; c++)
        sum += (packed_number(b->half, f, b->row % LANES, c) - f.zero) * b->q[c];
    return sum;
}

static float add_block(const struct block *b, struct quant_format f, float g, bool is_first)
{
    int n = BLOCK / f.sub;
    for (int i = 0; i < n; i++) {
        float value = (float)number(b, f, i * f.sub, (i + 1) * f.sub);
        float scale = packed_scale(b->unit, f, b->row, b->block * n + i);
        g = is_first && i == 0 ? value * scale : fmaf(value, scale, g);
    }
    for (int i = 0; f.has_min && i < n; i++) {
        int sum = n == 1 ? b->sums[0] : i == 0 ? b->sums[1] : b->sums[0] - b->sums[1];
        g = fmaf((float)sum, packed_min(b->unit, f, b->row, b->block * n + i), g);
    }
    return g;
}

/* One output row with one input row of the tile. */
static float dot_row(const uint8_t *panel, struct quant_format f, int row, const uint8_t *x, int r,
                     int n_rows, int n_in)
{
    float total = 0, g = 0;
    int per_unit = format_unit_columns(f) / BLOCK, n_blocks = n_in / BLOCK;
    for (int b = 0; b < n_blocks; b++, x += (size_t)n_rows * (BLOCK + 8)) {
        const uint8_t *unit = panel + (size_t)(b / per_unit) * format_unit_bytes(f);
        size_t half = (size_t)(b % per_unit * 2 + row / LANES);
        struct block block = { .unit = unit,
                               .half = unit + format_param_bytes(f) + half * format_half_bytes(f),
                               .q = (const int8_t *)x + r * BLOCK,
                               .sums = (const int32_t *)(x + (size_t)n_rows * BLOCK) + 2 * r,
                               .row = row,
                               .block = b % per_unit };
        g = add_block(&block, f, g, b % (GROUP / BLOCK) == 0);
        if (b % (GROUP / BLOCK) == GROUP / BLOCK - 1 || b == n_blocks - 1) {
            total = fmaf(g, ((const float *)(x + (size_t)n_rows * (BLOCK + 8)))[r], total);
            x += (size_t)n_rows * sizeof(float);
        }
    }
    return total;
}

static void linear_quantized(float *out, const uint8_t *panels, enum dtype dtype, int n_panels,
                             const uint8_t *x, int n_rows, int n_in)
{
    struct quant_format f = quant_format(dtype);
    size_t stride = 0;
    panel_bytes(dtype, n_in, &stride);
    for (int p = 0; p < n_panels; p++, panels += stride)
        for (int hr = 0; hr < 2 * n_rows; hr++)
            for (int i = 0; i < LANES; i++)
                *out++ = dot_row(panels, f, hr / n_rows * LANES + i, x, hr % n_rows, n_rows, n_in);
}

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_ref(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows,     \
                             int n_in, bool is_cold)                                                         \
    {                                                                                                        \
        (void)is_cold;                                                                                       \
        linear_quantized(out, panels, dtype, n_panels, x, n_rows, n_in);                                     \
    }
FOR_EACH_QUANTIZED(LINEAR)
