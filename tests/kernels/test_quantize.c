/* The quantizers against the gguf package, bit for bit (tests/fixtures/gguf/quantize.*), and against the errors that ggml's
 * leave (quality.*). */
#include "base/half.h"
#include "kernels/quantize/quantize.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    char *bytes;
    json_t *header, *names;
    const char *data;
};

static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    *n_bytes = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*n_bytes);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, file), *n_bytes);
    fclose(file);
    return bytes;
}

static void fixture_open(struct fixture *f, const char *name)
{
    char path[512];
    size_t n_bytes;
    uint64_t n_header;
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.safetensors", name);
    f->bytes = read_file(path, &n_bytes);
    memcpy(&n_header, f->bytes, 8);
    f->header = json_loadb(f->bytes + 8, n_header, 0, NULL);
    f->data = f->bytes + 8 + n_header;
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.json", name);
    f->names = json_load_file(path, 0, NULL);
    assert_true(f->header && f->names);
}

static void fixture_close(struct fixture *f)
{
    json_decref(f->header);
    json_decref(f->names);
    free(f->bytes);
}

static int setup(void **state)
{
    static struct fixture fixture;
    fixture_open(&fixture, "quantize");
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    return 0;
}

/* A copy of a tensor of the fixture, aligned. n: elements of the first dimension. */
static void *tensor(const struct fixture *f, const char *name, int *n)
{
    json_t *entry = json_object_get(f->header, name), *offsets = json_object_get(entry, "data_offsets");
    assert_non_null(entry);
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    *n = (int)json_integer_value(json_array_get(json_object_get(entry, "shape"), 0));
    void *copy = malloc(end - begin);
    assert_non_null(copy);
    memcpy(copy, f->data + begin, end - begin);
    return copy;
}

static void rows_become_the_bytes_that_gguf_makes_of_them(void **state)
{
    const struct fixture *f = *state;
    int n, n_want;
    float *rows = tensor(f, "rows", &n);
    uint8_t *want = tensor(f, "rows.q8_0", &n_want), got[68];
    assert_int_equal(n, n_want);
    for (int r = 0; r < n; r++) {
        quantize(got, rows + r * 64, DTYPE_Q8_0, 64);
        for (size_t i = 0; i < sizeof got; i++)
            if (got[i] != want[(size_t)r * sizeof got + i])
                fail_msg("%s: byte %zu is %d, expected %d",
                         json_string_value(json_array_get(json_object_get(f->names, "rows"), (size_t)r)), i,
                         got[i], want[(size_t)r * sizeof got + i]);
    }
    free(rows);
    free(want);
}

static double squared_error(const float *x, const void *stored, enum dtype dtype, int n)
{
    float *back = malloc((size_t)n * sizeof *back);
    double sum = 0;
    assert_non_null(back);
    dequantize(back, stored, dtype, n);
    for (int i = 0; i < n; i++)
        sum += ((double)back[i] - (double)x[i]) * ((double)back[i] - (double)x[i]);
    free(back);
    return sum;
}

/* Rows made to break a search: huge, tiny, equal, one of its kind. Where the plain rule overflows, the error is finite. */
static void no_row_is_worse_than_by_the_plain_rule(void **state)
{
    const struct fixture *f = *state;
    int n, n_want;
    float *rows = tensor(f, "rows", &n);
    uint8_t *plain = tensor(f, "rows.q4_0", &n_want), got[36];
    for (int r = 0; r < n; r++) {
        quantize(got, rows + r * 64, DTYPE_Q4_0, 64);
        double ours = squared_error(rows + r * 64, got, DTYPE_Q4_0, 64);
        double theirs = squared_error(rows + r * 64, plain + (size_t)r * 36, DTYPE_Q4_0, 64);
        if (!isfinite(ours) || (isfinite(theirs) && ours > theirs * 1.000001))
            fail_msg("%s: squared error %g, by the plain rule %g",
                     json_string_value(json_array_get(json_object_get(f->names, "rows"), (size_t)r)), ours,
                     theirs);
    }
    free(rows);
    free(plain);
}

static const enum dtype BLOCK_TYPES[] = { DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,
                                          DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K,
                                          DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_MXFP4 };
enum { N_BLOCK_TYPES = sizeof BLOCK_TYPES / sizeof *BLOCK_TYPES };

static void errors_are_no_larger_than_those_of_ggml(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, "quality");
    int n_rows;
    uint16_t *halves = tensor(&f, "rows", &n_rows);
    const json_t *kinds = json_object_get(f.names, "kinds"),
                 *errors = json_object_get(f.names, "mean_squared_error");
    int n = 1024 * (int)json_integer_value(json_object_get(f.names, "rows_of_a_kind"));
    assert_int_equal((size_t)n_rows * 1024, (size_t)n * json_array_size(kinds));
    float *x = malloc((size_t)n * sizeof *x);
    uint8_t *stored = malloc((size_t)n * sizeof *x);
    for (int t = 0; t < N_BLOCK_TYPES; t++) {
        const json_t *of_type = json_object_get(errors, dtype_name(BLOCK_TYPES[t]));
        for (size_t k = 0; k < json_array_size(kinds); k++) {
            const char *kind = json_string_value(json_array_get(kinds, k));
            double bound = json_real_value(json_object_get(of_type, kind));
            assert_true(bound > 0);
            for (int i = 0; i < n; i++)
                x[i] = half_to_float(halves[k * (size_t)n + (size_t)i]);
            quantize(stored, x, BLOCK_TYPES[t], n);
            double error = squared_error(x, stored, BLOCK_TYPES[t], n) / n;
            if (!(error <= 1.01 * bound))
                fail_msg("%s, %s: mean squared error %g, of ggml %g", dtype_name(BLOCK_TYPES[t]), kind, error,
                         bound);
        }
    }
    free(x);
    free(stored);
    free(halves);
    fixture_close(&f);
}

/* The search finds a block's own scales again, or others that are as good. */
static void stored_values_are_nearly_kept(void **state)
{
    (void)state;
    float x[512], once[512], twice[512];
    uint8_t stored[2048];
    for (int i = 0; i < 512; i++)
        x[i] = sinf((float)i * 1.7f) * (1 + (float)(i % 37)) * 0.01f;
    for (int t = 0; t < N_BLOCK_TYPES; t++) {
        enum dtype type = BLOCK_TYPES[t];
        double lost = 0, size = 0, lost_again = 0;
        quantize(stored, x, type, 512);
        dequantize(once, stored, type, 512);
        quantize(stored, once, type, 512);
        dequantize(twice, stored, type, 512);
        for (int i = 0; i < 512; i++) {
            size += (double)x[i] * (double)x[i];
            lost += ((double)x[i] - (double)once[i]) * ((double)x[i] - (double)once[i]);
            lost_again += ((double)once[i] - (double)twice[i]) * ((double)once[i] - (double)twice[i]);
        }
        assert_true(lost > 0 && lost < 0.1 * size);
        if (lost_again > 0.15 * lost)
            fail_msg("%s: error %g, and again %g", dtype_name(type), lost, lost_again);
    }
}

static double weighted_error(const float *x, const uint8_t *stored, enum dtype type, const float *weights,
                             int n)
{
    float back[1024];
    double sum = 0;
    dequantize(back, stored, type, n);
    for (int i = 0; i < n; i++)
        sum += (double)weights[i] * ((double)x[i] - (double)back[i]) * ((double)x[i] - (double)back[i]);
    return sum;
}

/* Weights that differ by orders of magnitude: their sum of errors becomes smaller. Equal weights of any size, and weights of 0,
 * change nothing. */
static void errors_that_count_more_become_smaller(void **state)
{
    (void)state;
    float x[1024], weights[1024], same[1024], zeros[1024] = { 0 };
    uint8_t plain[4096], weighted[4096];
    for (int i = 0; i < 1024; i++) {
        x[i] = sinf((float)i * 12.9898f) * (1 + (float)(i % 29)) * 0.01f;
        weights[i] = i % 7 == 0 ? 300 : 0.02f * (float)(1 + i % 5);
        same[i] = 0.375f;
    }
    for (int t = 0; t < N_BLOCK_TYPES; t++) {
        enum dtype type = BLOCK_TYPES[t];
        size_t n_bytes;
        assert_true(dtype_bytes(type, 1024, &n_bytes));
        quantize(plain, x, type, 1024);
        quantize_weighted(weighted, x, type, 1024, weights);
        double before = weighted_error(x, plain, type, weights, 1024);
        double after = weighted_error(x, weighted, type, weights, 1024);
        print_message("# %s: weighted error %.3f of that without weights\n", dtype_name(type),
                      after / before);
        if (type == DTYPE_MXFP4) /* of two exponents the better one */
            assert_true(after < before);
        else
            assert_true(type == DTYPE_Q8_0 ? after == before : after < 0.75 * before);
        quantize_weighted(weighted, x, type, 1024, same);
        assert_memory_equal(weighted, plain, n_bytes);
        quantize_weighted(weighted, x, type, 1024, zeros);
        assert_memory_equal(weighted, plain, n_bytes);
    }
}

/* Zeros come back as zeros, a block's bytes do not depend on its neighbours, nothing after the block is written. */
static void blocks_stand_alone(void **state)
{
    (void)state;
    float x[1024], back[1024];
    uint8_t together[4096], alone[4096];
    for (int i = 0; i < 1024; i++)
        x[i] = i >= 256 && i < 512 ? 0 : cosf((float)i * 0.7f) * (i < 256 ? 1 : 1e-3f);
    for (int t = 0; t < N_BLOCK_TYPES; t++) {
        enum dtype type = BLOCK_TYPES[t];
        size_t n_bytes;
        assert_true(dtype_bytes(type, 256, &n_bytes));
        memset(together, 0xAB, sizeof together);
        quantize(together, x, type, 1024);
        assert_int_equal(together[4 * n_bytes], 0xAB);
        for (int b = 0; b < 4; b++) {
            quantize(alone, x + 256 * b, type, 256);
            assert_memory_equal(alone, together + (size_t)b * n_bytes, n_bytes);
        }
        dequantize(back, together, type, 1024);
        for (int i = 256; i < 512; i++)
            assert_true(back[i] == 0);
    }
}

static void halves_are_rounded_to_even(void **state)
{
    const struct fixture *f = *state;
    int n, n_want;
    float *x = tensor(f, "halves.f32", &n);
    uint16_t *f16 = tensor(f, "halves.f16", &n_want), *bf16 = tensor(f, "halves.bf16", &n_want);
    uint16_t *got = malloc((size_t)n * sizeof *got);
    assert_int_equal(n, n_want);
    quantize(got, x, DTYPE_F16, n);
    assert_memory_equal(got, f16, (size_t)n * sizeof *got);
    quantize(got, x, DTYPE_BF16, n);
    assert_memory_equal(got, bf16, (size_t)n * sizeof *got);
    free(x);
    free(f16);
    free(bf16);
    free(got);
    x = tensor(f, "halves.nan_f32_bits", &n);
    bf16 = tensor(f, "halves.nan_bf16", &n_want);
    for (int i = 0; i < n; i++) {
        uint16_t half;
        quantize(&half, x + i, DTYPE_BF16, 1);
        assert_int_equal(half, bf16[i]);
    }
    free(x);
    free(bf16);
}

/* Every stored value of a block type, from the definition of the format. */
static void blocks_stand_for_quant_times_scale(void **state)
{
    (void)state;
    uint8_t q8[34], q4[18];
    float x[32];
    uint16_t half = float_to_half(-0.37f);
    float d = half_to_float(half);
    memcpy(q8, &half, 2);
    memcpy(q4, &half, 2);
    for (int first = -128; first < 128; first += 32) {
        for (int i = 0; i < 32; i++)
            q8[2 + i] = (uint8_t)(first + i);
        dequantize(x, q8, DTYPE_Q8_0, 32);
        for (int i = 0; i < 32; i++)
            assert_true(x[i] == (float)(first + i) * d);
    }
    for (int i = 0; i < 16; i++)
        q4[2 + i] = (uint8_t)(i | (15 - i) << 4);
    dequantize(x, q4, DTYPE_Q4_0, 32);
    for (int i = 0; i < 16; i++) {
        assert_true(x[i] == (float)(i - 8) * d);
        assert_true(x[i + 16] == (float)(7 - i) * d);
    }
}

/* Every number with every exponent comes back: a block of MXFP4 from a file, quantized again, has the same values. Ties go to
 * the even number, and what lies beyond the largest number takes the larger exponent if that is nearer. */
static void mxfp4_keeps_its_own_values(void **state)
{
    (void)state;
    uint8_t stored[17], again[17];
    float x[32], back[32];
    for (int e = 0; e <= 252; e++) {
        for (int top = 1; top < 8; top++) {
            stored[0] = (uint8_t)e;
            for (int i = 0; i < 16; i++)
                stored[1 + i] = (uint8_t)(i % (top + 1) | (8 + (i * 5) % (top + 1)) << 4);
            stored[1] = (uint8_t)(top | 8 << 4);
            dequantize(x, stored, DTYPE_MXFP4, 32);
            quantize(again, x, DTYPE_MXFP4, 32);
            dequantize(back, again, DTYPE_MXFP4, 32);
            for (int i = 0; i < 32; i++)
                assert_true(x[i] == back[i]);
        }
    }
    static const float TIES[][2] = { { 0.25f, 0 }, { 0.75f, 1 },  { -1.25f, -1 }, { 1.75f, 2 },
                                     { 2.5f, 2 },  { -3.5f, -4 }, { 5, 4 } };
    memset(x, 0, sizeof x);
    for (int i = 0; i < 7; i++)
        x[i] = TIES[i][0];
    x[7] = 6;
    quantize(again, x, DTYPE_MXFP4, 32);
    dequantize(back, again, DTYPE_MXFP4, 32);
    assert_int_equal(again[0], 127);
    for (int i = 0; i < 7; i++)
        assert_true(back[i] == TIES[i][1]);
    for (int i = 0; i < 32; i++)
        x[i] = 7.9f;
    quantize(again, x, DTYPE_MXFP4, 32);
    assert_int_equal(again[0], 128);
}

/* No conversion of a NaN or an infinity to an integer may happen, whatever the rows hold. */
static void rows_without_meaning_are_written_all_the_same(void **state)
{
    (void)state;
    static const float ODD[] = { NAN, INFINITY, -INFINITY, 1e-45f, 3.4e38f, -0.0f };
    float x[256], back[256];
    uint8_t block[512];
    for (int t = 0; t < N_BLOCK_TYPES; t++) {
        for (size_t c = 0; c < sizeof ODD / sizeof *ODD; c++) {
            for (int all = 0; all < 2; all++) {
                for (int i = 0; i < 256; i++)
                    x[i] = all ? ODD[c] : (float)i;
                x[5] = ODD[c];
                quantize(block, x, BLOCK_TYPES[t], 256);
                dequantize(back, block, BLOCK_TYPES[t], 256);
                for (int i = 0; i < 256 && BLOCK_TYPES[t] != DTYPE_Q8_0; i++)
                    assert_true(isfinite(back[i]));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_the_bytes_that_gguf_makes_of_them),
        cmocka_unit_test(no_row_is_worse_than_by_the_plain_rule),
        cmocka_unit_test(errors_are_no_larger_than_those_of_ggml),
        cmocka_unit_test(stored_values_are_nearly_kept),
        cmocka_unit_test(errors_that_count_more_become_smaller),
        cmocka_unit_test(blocks_stand_alone),
        cmocka_unit_test(halves_are_rounded_to_even),
        cmocka_unit_test(blocks_stand_for_quant_times_scale),
        cmocka_unit_test(mxfp4_keeps_its_own_values),
        cmocka_unit_test(rows_without_meaning_are_written_all_the_same),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
