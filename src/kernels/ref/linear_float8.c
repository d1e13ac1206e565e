#include "kernels/float8.h"
#include "kernels/ref/ref.h"

static float run_sum(const uint8_t *numbers, int row, const float *x, int r, int n_rows, int n)
{
    float run = 0;
    for (int c = 0; c < n; c++)
        run = fmaf(half_to_float(float8_half_bits(numbers[float8_place(c, row)])),
                   x[(size_t)c * (size_t)n_rows + (size_t)r], run);
    return run;
}

static float dot_row(const uint8_t *panel, enum dtype dtype, int row, const float *x, int r, int n_rows,
                     int n_in)
{
    float total = 0;
    for (int begin = 0; begin < n_in; begin += FLOAT8_RUN) {
        int n = n_in - begin < FLOAT8_RUN ? n_in - begin : FLOAT8_RUN;
        float run = run_sum(panel + float8_column_at(dtype, begin), row, x + (size_t)begin * (size_t)n_rows,
                            r, n_rows, n);
        if (dtype == DTYPE_F8_ROW)
            total += run;
        else
            total = fmaf(run, float8_packed_scale(panel, dtype, begin, row), total);
    }
    return dtype == DTYPE_F8_ROW ? total * float8_packed_scale(panel, dtype, 0, row) : total;
}

static void linear_float8(float *out, const uint8_t *panel, enum dtype dtype, const float *x, int n_rows,
                          int n_in)
{
    for (int h = 0; h < 2; h++, out += half_rows(n_rows) * LANES)
        for (int i = 0; i < n_rows * LANES; i++)
            out[i] = dot_row(panel, dtype, h * LANES + i % LANES, x, i / LANES, n_rows, n_in);
}

#define LINEAR(name, dtype)                                                                                  \
    void linear_##name##_ref(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)          \
    {                                                                                                        \
        linear_float8(out, panel, dtype, x, n_rows, n_in);                                                   \
    }
FOR_EACH_FLOAT8(LINEAR)
