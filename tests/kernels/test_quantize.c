/* The quantizers against the gguf package, bit for bit (tests/fixtures/gguf/quantize.*). */
#include "base/half.h"
#include "kernels/quantize.h"

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

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    size_t n_bytes;
    uint64_t n_header;
    f->bytes = read_file(TEST_FIXTURES "/gguf/quantize.safetensors", &n_bytes);
    memcpy(&n_header, f->bytes, 8);
    f->header = json_loadb(f->bytes + 8, n_header, 0, NULL);
    f->data = f->bytes + 8 + n_header;
    f->names = json_load_file(TEST_FIXTURES "/gguf/quantize.json", 0, NULL);
    *state = f;
    return f->header && f->names ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    json_decref(f->header);
    json_decref(f->names);
    free(f->bytes);
    free(f);
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
    static const struct {
        enum dtype dtype;
        const char *name;
        size_t row_bytes;
    } TYPES[] = { { DTYPE_Q8_0, "rows.q8_0", 68 }, { DTYPE_Q4_0, "rows.q4_0", 36 } };
    for (int t = 0; t < 2; t++) {
        int n, n_want;
        float *rows = tensor(f, "rows", &n);
        uint8_t *want = tensor(f, TYPES[t].name, &n_want), got[68];
        assert_int_equal(n, n_want);
        for (int r = 0; r < n; r++) {
            quantize(got, rows + r * 64, TYPES[t].dtype, 64);
            for (size_t i = 0; i < TYPES[t].row_bytes; i++)
                if (got[i] != want[(size_t)r * TYPES[t].row_bytes + i])
                    fail_msg("%s of %s: byte %zu is %d, expected %d", TYPES[t].name,
                             json_string_value(json_array_get(json_object_get(f->names, "rows"), (size_t)r)),
                             i, got[i], want[(size_t)r * TYPES[t].row_bytes + i]);
        }
        free(rows);
        free(want);
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

/* No conversion of a NaN or an infinity to an integer may happen, whatever the rows hold. */
static void rows_without_meaning_are_written_all_the_same(void **state)
{
    (void)state;
    float x[32];
    uint8_t block[34];
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < 32; i++)
            x[i] = (float)i;
        x[5] = c == 0 ? NAN : c == 1 ? INFINITY : c == 2 ? -INFINITY : 1e-45f;
        quantize(block, x, DTYPE_Q8_0, 32);
        quantize(block, x, DTYPE_Q4_0, 32);
        assert_in_range(block[2] & 15, 0, 15);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_the_bytes_that_gguf_makes_of_them),
        cmocka_unit_test(halves_are_rounded_to_even),
        cmocka_unit_test(blocks_stand_for_quant_times_scale),
        cmocka_unit_test(rows_without_meaning_are_written_all_the_same),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
