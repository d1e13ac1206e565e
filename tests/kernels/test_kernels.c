/* The plain C kernels against float64, and the choice of a processor level. That the other variants yield the same
 * bits is checkkernels' part. */
#include "kernels/input_block.h"
#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "kernels/quantize/quantize.h"
#include "kernels/ref/ref.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void exp_is_within_two_steps_of_a_float(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -87.33; x < 88.37; x += 0.0009765) {
        float f = (float)x;
        double exact = exp((double)f), error = fabs((double)exp_ref(f) - exact) / exact;
        worst = fmax(worst, error);
    }
    if (!(worst <= 2 * 0x1p-24))
        fail_msg("error of %g, in halves of a step %g", worst, worst / 0x1p-24);
    assert_true(exp_ref(0.0f) == 1.0f && exp_ref(-0.0f) == 1.0f);
}

static void exp_has_no_overflow_at_its_ends(void **state)
{
    (void)state;
    assert_true(exp_ref(-87.34f) == 0 && exp_ref(-1e30f) == 0 && exp_ref(-(float)INFINITY) == 0);
    assert_true(exp_ref(88.38f) == (float)INFINITY && exp_ref(3e38f) == (float)INFINITY);
    assert_true(exp_ref((float)INFINITY) == (float)INFINITY);
    assert_true(isnan(exp_ref((float)NAN)));
    assert_true(isfinite(exp_ref(88.37f)) && exp_ref(-87.33f) > 0);
    assert_true(exp_ref(1e-45f) == 1.0f);
}

static void softmax_and_gates_are_near_float64(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float x[N], y[N], up[N];
    double sum = 0, max = -INFINITY;
    for (int i = 0; i < N; i++) {
        x[i] = sinf((float)i) * 20;
        up[i] = cosf((float)i);
        max = fmax(max, (double)x[i]);
    }
    for (int i = 0; i < N; i++)
        sum += exp((double)x[i] - max);
    softmax_ref(y, x, N);
    for (int i = 0; i < N; i++) {
        double want = exp((double)x[i] - max) / sum;
        assert_true(fabs((double)y[i] - want) <= 3e-6 * want + 1e-37); /* x - max is rounded at 2^-19 */
    }
    silu_mul_ref(y, x, up, N);
    for (int i = 0; i < N; i++) {
        double want = (double)x[i] / (1 + exp(-(double)x[i])) * (double)up[i];
        assert_true(fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 1e-37);
    }
    for (int i = 0; i < N; i++)
        up[i] = cosf((float)i) * 15;
    silu_clamped_mul_ref(y, x, up, N);
    for (int i = 0; i < N; i++) {
        double gate = fmin((double)x[i], 7), rest = fmin(fmax((double)up[i], -7), 7) + 1;
        double want = gate / (1 + exp(-1.702 * gate)) * rest;
        assert_true(fabs((double)y[i] - want) <= 3e-6 * fabs(want) + 1e-37);
    }
    gelu_tanh_mul_ref(y, x, up, N);
    for (int i = 0; i < N; i++) {
        double v = (double)x[i], u = sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        double want = 0.5 * v * (1 + tanh(u)) * (double)up[i];
        assert_true(fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 1e-6);
    }
    float huge[4] = { 3e38f, -3e38f, 100, -100 }, one[4] = { 1, 1, 1, 1 };
    silu_mul_ref(y, huge, one, 4);
    assert_true(y[0] == 3e38f && y[1] == 0 && y[2] == 100 && y[3] == 0);
}

static void a_panel_gives_back_the_rows_it_was_packed_from(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        int n_in;
    } CASES[] = {
        { DTYPE_F32, 37 },       { DTYPE_F16, 37 },      { DTYPE_BF16, 71 },    { DTYPE_Q8_0, 96 },
        { DTYPE_Q4_0, 160 },     { DTYPE_Q4_1, 160 },    { DTYPE_Q5_0, 64 },    { DTYPE_Q5_1, 64 },
        { DTYPE_Q2_K, 512 },     { DTYPE_Q3_K, 512 },    { DTYPE_Q4_K, 512 },   { DTYPE_Q5_K, 256 },
        { DTYPE_Q6_K, 512 },     { DTYPE_MXFP4, 96 },    { DTYPE_MXFP4, 128 },  { DTYPE_IQ4_NL, 96 },
        { DTYPE_IQ4_XS, 512 },   { DTYPE_IQ2_XXS, 512 }, { DTYPE_IQ2_XS, 512 }, { DTYPE_IQ2_S, 512 },
        { DTYPE_IQ3_XXS, 512 },  { DTYPE_IQ3_S, 512 },   { DTYPE_IQ1_S, 512 },  { DTYPE_IQ1_M, 512 },
        { DTYPE_F8_BLOCK, 384 }, { DTYPE_F8_ROW, 160 },  { DTYPE_G4_64, 192 },  { DTYPE_G4_128, 384 },
        { DTYPE_G8_64, 192 },    { DTYPE_G8_128, 256 },  { DTYPE_G4Z_32, 160 }, { DTYPE_G4Z_64, 192 },
        { DTYPE_G4Z_64, 256 },   { DTYPE_G4Z_128, 384 },
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        enum dtype dtype = CASES[c].dtype;
        int n = CASES[c].n_in;
        size_t row_bytes = 0, size = 0;
        assert_true(dtype_bytes(dtype, n, &row_bytes) && panel_bytes(dtype, n, &size) && size % 64 == 0);
        uint8_t *stored = malloc(PANEL_ROWS * row_bytes), *panel = aligned_alloc(64, size);
        float *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
        const uint8_t *rows[PANEL_ROWS];
        for (size_t i = 0; i < PANEL_ROWS * row_bytes; i++)
            stored[i] = (uint8_t)((i * 2654435761u) >> 9) &
                        0xBB; /* no NaN: their copies need not compare equal */
        for (size_t r = 0; dtype_is_float8(dtype) && r < PANEL_ROWS; r++) {
            size_t same = dtype == DTYPE_F8_ROW ? r : r % FLOAT8_SCALES; /* as the types demand */
            for (size_t at = 0; at < row_bytes; at += (size_t)dtype_block_bytes(dtype))
                memcpy(stored + r * row_bytes + at,
                       stored + same * row_bytes + (dtype == DTYPE_F8_ROW ? 0 : at), sizeof(float));
        }
        for (int r = 0; r < PANEL_ROWS; r++)
            rows[r] = r == 13 ? NULL : stored + (size_t)r * row_bytes;
        assert_true(pack_panel(panel, rows, dtype, n));
        for (int r = 0; r < PANEL_ROWS; r++) {
            unpack_row(got, panel, r, dtype, n);
            if (rows[r])
                dequantize(want, rows[r], dtype, n);
            else
                memset(want, 0, (size_t)n * sizeof *want);
            for (int i = 0; i < n; i++)
                assert_true(got[i] == want[i]); /* a zero's sign is free */
        }
        free(stored);
        free(panel);
        free(want);
        free(got);
    }
}

/* The value of every byte, by the definition of e4m3: sign, exponent less 7, mantissa of three bits. */
static void every_float8_has_its_value(void **state)
{
    (void)state;
    enum { N = 256 };
    uint8_t row[2 * 132], *panel = aligned_alloc(64, 16384);
    const uint8_t *rows[PANEL_ROWS] = { [3] = row };
    float got[N], unpacked[N], scale = 0.375f;
    for (int i = 0; i < N; i++) {
        memcpy(row + i / 128 * 132, &scale, sizeof scale);
        row[i / 128 * 132 + 4 + i % 128] = (uint8_t)i;
    }
    dequantize(got, row, DTYPE_F8_BLOCK, N);
    assert_true(pack_panel(panel, rows, DTYPE_F8_BLOCK, N));
    unpack_row(unpacked, panel, 3, DTYPE_F8_BLOCK, N);
    for (int i = 0; i < N; i++) {
        int exponent = i >> 3 & 15, mantissa = i & 7;
        float size = exponent == 0 ? ldexpf((float)mantissa, -9)
                                   : ldexpf((float)(8 + mantissa), exponent - 10);
        float want = (i & 128 ? -size : size) * scale;
        bool is_nan = (i & 127) == 127;
        assert_true(is_nan ? isnan(got[i]) : got[i] == want);
        assert_true(is_nan || unpacked[i] == want);
        assert_int_equal(dequantize_find_nan(row, DTYPE_F8_BLOCK, i + 1), i < 127 ? -1 : 127);
    }
    free(panel);
}

static void a_scale_is_finite_and_less_than_2_100(void **state)
{
    (void)state;
    static const struct {
        float scale;
        bool is_bad;
    } CASES[] = { { 0, false },       { 0x1p-140f, false }, { -0x1.8p99f, false },
                  { 0x1p100f, true }, { INFINITY, true },   { NAN, true } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        uint8_t row[2 * 36] = { 0 };
        memcpy(row + 36, &CASES[i].scale, sizeof CASES[i].scale);
        assert_int_equal(dequantize_find_nan(row, DTYPE_F8_ROW, 64), CASES[i].is_bad ? 32 : -1);
    }
}

/* Eight lists of scales are those of seven boundaries between blocks of rows among 16 rows. */
static void a_panel_refuses_rows_of_too_many_scales(void **state)
{
    (void)state;
    uint8_t stored[PANEL_ROWS][132] = { { 0 } }, *panel = aligned_alloc(64, 8192);
    const uint8_t *rows[PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; r++)
        rows[r] = stored[r];
    for (int n = 1; n <= LANES; n++) {
        for (int r = LANES; r < PANEL_ROWS; r++) {
            float scale = (float)(1 + r % n);
            memcpy(stored[r], &scale, sizeof scale);
        }
        assert_int_equal(pack_panel(panel, rows, DTYPE_F8_BLOCK, 128), n <= FLOAT8_SCALES);
        assert_true(pack_panel(panel, rows, DTYPE_F8_ROW, 32));
    }
    free(panel);
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    size_t size;
    assert_false(panel_bytes(DTYPE_Q8_0, 40, &size));
    assert_false(panel_bytes(DTYPE_F32, 0, &size));
    assert_false(panel_bytes(DTYPE_I8, 32, &size));
    assert_true(tile_bytes(DTYPE_Q4_0, 3, 40) == 0);
    assert_true(tile_bytes(DTYPE_Q4_0, 16, 160) == 16 * 5 * (32 + sizeof(struct input_row)));
}

/* The scale of a block of inputs: the smallest with four significant bits that keeps all numbers within the format's. */
static void input_scales_are_the_smallest_of_few_bits(void **state)
{
    (void)state;
    static const enum dtype TYPES[] = { DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_MXFP4 };
    for (int e = -99; e < 110; e += 13) {
        for (int i = 0; i < 1000; i++) {
            struct quant_format f = quant_format(TYPES[i % 3]);
            double most = format_most_input(f);
            float max = ldexpf(1 + (float)i / 1000, e - 1);
            struct input_row row;
            double inverse = (double)input_scale(&row, max, f), d = (double)row.d;
            double unit = (double)(row.magic / 0x1.8p23f);
            assert_true(d == (INPUT_STEPS + input_step(&row)) * unit);
            assert_true(unit == exp2(ilogb(unit)));
            assert_true(fabs(inverse * d - 1) < 1e-6);
            assert_true((double)max / d < most + 1e-5);
            double below = input_step(&row) > 0 ? d - unit : d - unit / 2; /* the next smaller scale */
            assert_true((double)max / below > most - 1e-4);
        }
    }
    static const float UNFIT[] = { 0x1p110f, INFINITY, NAN };
    struct input_row row;
    for (size_t i = 0; i < sizeof UNFIT / sizeof *UNFIT; i++)
        assert_true(input_scale(&row, UNFIT[i], quant_format(DTYPE_Q4_0)) == 0 && isnan(row.magic) &&
                    isnan(row.d));
    assert_true(input_scale(&row, 0, quant_format(DTYPE_Q4_0)) == 0 && row.magic == 0x1.8p23f);
}

static void a_level_is_chosen_by_name_or_environment(void **state)
{
    (void)state;
    unsigned cpu = 99;
    struct tutti_error err;
    assert_int_equal(cpu_find(&cpu, "ref", &err), TUTTI_OK);
    assert_int_equal(cpu, CPU_REF);
    assert_int_equal(cpu_find(&cpu, "sse9", &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "sse9"));
    assert_non_null(strstr(err.text, "avx512"));
    char *before = getenv("TUTTI_CPU"), kept[32] = "";
    if (before)
        snprintf(kept, sizeof kept, "%s", before);
    setenv("TUTTI_CPU", "ref", 1);
    assert_int_equal(cpu_find(&cpu, NULL, &err), TUTTI_OK);
    assert_int_equal(cpu, CPU_REF);
    setenv("TUTTI_CPU", "nonsense", 1);
    assert_int_equal(cpu_find(&cpu, NULL, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "TUTTI_CPU"));
    unsetenv("TUTTI_CPU");
    assert_int_equal(cpu_find(&cpu, NULL, &err), TUTTI_OK);
    assert_int_equal(cpu, cpu_detect());
    if (before)
        setenv("TUTTI_CPU", kept, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_steps_of_a_float),
        cmocka_unit_test(exp_has_no_overflow_at_its_ends),
        cmocka_unit_test(softmax_and_gates_are_near_float64),
        cmocka_unit_test(a_panel_gives_back_the_rows_it_was_packed_from),
        cmocka_unit_test(every_float8_has_its_value),
        cmocka_unit_test(a_scale_is_finite_and_less_than_2_100),
        cmocka_unit_test(a_panel_refuses_rows_of_too_many_scales),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(input_scales_are_the_smallest_of_few_bits),
        cmocka_unit_test(a_level_is_chosen_by_name_or_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
