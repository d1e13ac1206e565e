#include "kernels/input_block.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#include <string.h>

/* One block of one row. */
static void quantize_block(int8_t *q, struct input_row *row, const float *x, struct quant_format f)
{
    float max = 0;
    for (int i = 0; i < BLOCK; i++)
        max = max_of(isnan(x[i]) ? (float)INFINITY : fabsf(x[i]), max);
    float inverse = input_scale(row, max, f);
    int sums[2] = { 0, 0 };
    for (int i = 0; i < BLOCK; i++) {
        float rounded = x[i] * inverse + EXP_MAGIC;
        q[i] = inverse == 0 ? 0 : (int8_t)(float_bits(rounded) - float_bits(EXP_MAGIC));
        sums[i / LANES] += q[i];
    }
    input_set_start(row, sums, f);
}

static void tile_quantized(uint8_t *dst, const float *x, size_t stride, int n_rows, int begin, int end,
                           struct quant_format f)
{
    size_t n = (size_t)n_rows;
    for (int c = begin; c < end; c += BLOCK) {
        uint8_t *block = dst + (size_t)(c / BLOCK) * n * (BLOCK + sizeof(struct input_row));
        struct input_row *rows = (struct input_row *)(block + n * BLOCK);
        for (int r = 0; r < n_rows; r++)
            quantize_block((int8_t *)block + r * BLOCK, rows + r, x + (size_t)r * stride + c, f);
    }
}

#define TILE(name, dtype)                                                                                    \
    void tile_##name##_ref(void *dst, const float *x, size_t stride, int n_rows, int begin, int end)         \
    {                                                                                                        \
        tile_quantized(dst, x, stride, n_rows, begin, end, quant_format(dtype));                             \
    }
FOR_EACH_QUANTIZED(TILE)

/* One block of a panel, and of one input row. */
struct weight_block {
    const uint8_t *unit, *half;
    const int8_t *q;
    const struct input_row *input;
    int row;   /* of the panel */
    int block; /* of the unit */
};

static int partial_sum(const struct weight_block *b, struct quant_format f, int begin, int end)
{
    int sum = 0;
    for (int c = begin; c < end; c++)
        sum += (packed_number(b->half, f, b->row % LANES, c) - f.zero) * b->q[c];
    return sum;
}

static float add_block(const struct weight_block *b, struct quant_format f, float total)
{
    int n = BLOCK / f.sub;
    float d = b->input->d;
    for (int i = 0; i < n; i++) {
        float value = (float)partial_sum(b, f, i * f.sub, (i + 1) * f.sub) * d; /* exact */
        total = fmaf(value, packed_scale(b->unit, f, b->row, b->block * n + i), total);
    }
    for (int i = 0; f.has_min && i < n; i++) {
        float value = (float)input_start(b->input, i) * d;
        float min = packed_min(b->unit, f, b->row, b->block * n + i) / (float)input_factor(f);
        total = fmaf(value, min, total);
    }
    return total;
}

/* One output row with one input row of the tile. */
static float dot_row(const uint8_t *panel, struct quant_format f, int row, const uint8_t *x, int r,
                     int n_rows, int n_in)
{
    float total = 0;
    size_t n = (size_t)n_rows;
    int per_unit = format_unit_columns(f) / BLOCK, n_blocks = n_in / BLOCK;
    for (int b = 0; b < n_blocks; b++, x += n * (BLOCK + sizeof(struct input_row))) {
        const uint8_t *unit = panel + (size_t)(b / per_unit) * format_unit_bytes(f);
        size_t half = (size_t)(b % per_unit) * 2 + (size_t)(row / LANES);
        struct weight_block block = { .unit = unit,
                                      .half = unit + format_param_bytes(f) + half * format_half_bytes(f),
                                      .q = (const int8_t *)x + r * BLOCK,
                                      .input = (const struct input_row *)(x + n * BLOCK) + r,
                                      .row = row,
                                      .block = b % per_unit };
        total = add_block(&block, f, total);
    }
    return total;
}

static void linear_quantized(float *out, const uint8_t *panel, struct quant_format f, const uint8_t *x,
                             int n_rows, int n_in)
{
    for (int h = 0; h < 2; h++, out += half_rows(n_rows) * LANES)
        for (int i = 0; i < n_rows * LANES; i++)
            out[i] = dot_row(panel, f, h * LANES + i % LANES, x, i / LANES, n_rows, n_in);
}

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_ref(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)          \
    {                                                                                                        \
        linear_quantized(out, panel, quant_format(dtype), x, n_rows, n_in);                                  \
    }
FOR_EACH_QUANTIZED(LINEAR)
