/* Everything in the fixtures that the gguf package wrote: every type of value, alone and in arrays, and every tensor;
 * and every fixture changed at random, read to its last byte. */
#include "base/files/mapping.h"
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/safetensors.h"
#include "kernels/quantize/quantize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER TEST_FIXTURES "/gguf/"

static const char *const TYPES[] = {
    [GGUF_U8] = "u8",   [GGUF_I8] = "i8",         [GGUF_U16] = "u16", [GGUF_I16] = "i16",
    [GGUF_U32] = "u32", [GGUF_I32] = "i32",       [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
    [GGUF_U64] = "u64", [GGUF_STRING] = "string", [GGUF_I64] = "i64", [GGUF_F64] = "f64",
};

struct fixture {
    struct tensor_set *gguf;
    struct tensor_set *values;
    json_t *expected;
};

static struct fixture open_fixture(const char *name)
{
    struct fixture f = { 0 };
    char path[512];
    snprintf(path, sizeof path, FOLDER "%s.gguf", name);
    assert_int_equal(tensor_set_open_as(&f.gguf, &GGUF_FORMAT, path, NULL), TUTTI_OK);
    snprintf(path, sizeof path, FOLDER "%s.expected.safetensors", name);
    assert_int_equal(tensor_set_open_as(&f.values, &SAFETENSORS_FORMAT, path, NULL), TUTTI_OK);
    snprintf(path, sizeof path, FOLDER "%s.expected.json", name);
    f.expected = json_load_file(path, 0, NULL);
    assert_non_null(f.expected);
    return f;
}

static void close_fixture(struct fixture *f)
{
    tensor_set_close(f->gguf);
    tensor_set_close(f->values);
    json_decref(f->expected);
}

static const char *const NAMES[] = { "tiny-types", "tiny-align64" };
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

/* 64-bit integers stand there as decimal strings. */
static int64_t expected_int(const json_t *value)
{
    if (json_is_boolean(value))
        return json_is_true(value);
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10) : json_integer_value(value);
}

static void check_scalar(const char *key, const char *type, const json_t *want, const json_t *got)
{
    if (!got)
        fail_msg("%s is missing", key);
    if (strcmp(type, "string") == 0) {
        assert_int_equal(json_string_length(got), json_string_length(want));
        assert_memory_equal(json_string_value(got), json_string_value(want), json_string_length(want));
    } else if (type[0] == 'f') {
        double a = json_real_value(got), b = json_real_value(want);
        assert_true(json_is_real(got) && json_is_real(want));
        assert_memory_equal(&a, &b, sizeof a);
    } else if (strcmp(type, "bool") == 0) {
        assert_true(json_is_boolean(got) && json_is_true(got) == json_is_true(want));
    } else {
        assert_true(json_is_integer(got));
        if (json_integer_value(got) != expected_int(want))
            fail_msg("%s: %" JSON_INTEGER_FORMAT, key, json_integer_value(got));
    }
}

static void scalars_have_the_values_that_the_library_wrote(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct fixture f = open_fixture(NAMES[i]);
        json_t *metadata = json_object_get(f.expected, "metadata"), *entry;
        const char *key;
        assert_true(json_object_size(metadata) >= 18);
        json_object_foreach(metadata, key, entry) check_scalar(
            key, json_string_value(json_object_get(entry, "type")), json_object_get(entry, "value"),
            json_object_get(gguf_scalars(gguf_of(f.gguf)), key));
        assert_null(gguf_find_array(gguf_of(f.gguf), "scalar.u8"));
        close_fixture(&f);
    }
}

/* {"hex": ...} for what JSON cannot hold. */
static void check_string(const json_t *want, const char *bytes, size_t n_bytes)
{
    const char *hex = json_string_value(json_object_get(want, "hex"));
    if (!hex) {
        assert_int_equal(n_bytes, json_string_length(want));
        assert_memory_equal(bytes, json_string_value(want), n_bytes);
        return;
    }
    assert_int_equal(n_bytes, strlen(hex) / 2);
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        assert_int_equal((uint8_t)bytes[i], byte);
    }
}

static void check_array(const struct gguf_array *array, const json_t *values)
{
    assert_int_equal(gguf_array_n(array), json_array_size(values));
    for (size_t i = 0; i < gguf_array_n(array); i++) {
        const json_t *want = json_array_get(values, i);
        if (gguf_array_type(array) == GGUF_STRING) {
            const char *bytes;
            size_t n_bytes;
            gguf_array_string(array, i, &bytes, &n_bytes);
            check_string(want, bytes, n_bytes);
        } else if (json_is_real(want)) {
            double a = gguf_array_float(array, i), b = json_real_value(want);
            assert_memory_equal(&a, &b, sizeof a); /* -0 too */
        } else {
            assert_true(gguf_array_int(array, i) == expected_int(want));
            assert_true(gguf_array_float(array, i) == (double)expected_int(want));
        }
    }
}

static void arrays_have_the_values_that_the_library_wrote(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct fixture f = open_fixture(NAMES[i]);
        json_t *arrays = json_object_get(f.expected, "arrays"), *entry;
        const char *key;
        assert_true(json_object_size(arrays) >= 12);
        json_object_foreach(arrays, key, entry)
        {
            const struct gguf_array *array = gguf_find_array(gguf_of(f.gguf), key);
            if (!array)
                fail_msg("%s is missing", key);
            assert_string_equal(TYPES[gguf_array_type(array)],
                                json_string_value(json_object_get(entry, "type")));
            check_array(array, json_object_get(entry, "value"));
            assert_null(json_object_get(gguf_scalars(gguf_of(f.gguf)), key));
        }
        close_fixture(&f);
    }
}

static const struct tensor *find_value(const struct tensor_set *file, const char *name)
{
    for (size_t i = 0; i < file->n; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    fail_msg("%s has no expected values", name);
    return NULL;
}

static void check_values(const struct tensor *got, const struct tensor *want)
{
    if (!dtype_is_weight(got->dtype)) {
        assert_int_equal(got->dtype, want->dtype);
        assert_int_equal(got->n_bytes, want->n_bytes);
        assert_memory_equal(got->data, want->data, want->n_bytes);
        return;
    }
    assert_int_equal(want->dtype, DTYPE_F32);
    float *values = malloc(want->n_bytes);
    assert_non_null(values);
    dequantize(values, got->data, got->dtype, (int64_t)(want->n_bytes / sizeof *values));
    assert_memory_equal(values, want->data, want->n_bytes);
    free(values);
}

static void check_tensors(const char *name, size_t least)
{
    struct fixture f = open_fixture(name);
    const json_t *tensors = json_object_get(f.expected, "tensors");
    assert_int_equal(f.gguf->n, json_array_size(tensors));
    assert_true(json_array_size(tensors) >= least);
    for (size_t k = 0; k < f.gguf->n; k++) {
        const struct tensor *got = &f.gguf->tensors[k];
        const json_t *want = json_array_get(tensors, k), *shape = json_object_get(want, "shape");
        enum dtype dtype;
        assert_string_equal(got->name, json_string_value(json_object_get(want, "name")));
        assert_true(dtype_find(json_string_value(json_object_get(want, "type")), &dtype));
        assert_int_equal(got->dtype, dtype);
        assert_int_equal(got->n_dims, json_array_size(shape));
        for (int d = 0; d < got->n_dims; d++)
            assert_true(got->shape[d] == json_integer_value(json_array_get(shape, (size_t)d)));
        check_values(got, find_value(f.values, got->name));
    }
    close_fixture(&f);
}

static void tensors_of_every_type_stand_in_order_with_their_values(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++)
        check_tensors(NAMES[i], 18);
    check_tensors("tiny-quants", 8);
    check_tensors("tiny-tables", 10);
}

/* ---- changed at random ---- */

static volatile unsigned sink; /* so that reading is not optimized away */

static void read_tensor(const struct tensor *t)
{
    const uint8_t *data = t->data;
    unsigned sum = 0;
    for (size_t i = 0; i < t->n_bytes; i++)
        sum += data[i];
    sink = sum;
}

static void read_arrays(const struct gguf *file, const json_t *keys)
{
    json_t *arrays = json_object_get(keys, "arrays"), *entry;
    const char *key;
    json_object_foreach(arrays, key, entry)
    {
        const struct gguf_array *array = gguf_find_array(file, key);
        for (size_t i = 0; array && i < gguf_array_n(array); i++) {
            const char *bytes = "";
            size_t n = 0;
            if (gguf_array_type(array) == GGUF_STRING)
                gguf_array_string(array, i, &bytes, &n);
            else
                sink = (unsigned)gguf_array_int(array, i) + (gguf_array_float(array, i) > 0);
            for (size_t k = 0; k < n; k++)
                sink = (uint8_t)bytes[k];
        }
    }
}

static void read_gguf(const uint8_t *bytes, size_t n_bytes, const json_t *keys)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    if (tensor_set_open_memory(&file, &GGUF_FORMAT, bytes, n_bytes, "changed", &err) != TUTTI_OK) {
        assert_true(!file && strstr(err.text, "changed"));
        return;
    }
    for (size_t i = 0; i < file->n; i++)
        read_tensor(&file->tensors[i]);
    read_arrays(gguf_of(file), keys);
    tensor_set_close(file);
}

static void read_safetensors(const uint8_t *bytes, size_t n_bytes, const json_t *keys)
{
    (void)keys;
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    if (tensor_set_open_memory(&file, &SAFETENSORS_FORMAT, bytes, n_bytes, "changed", &err) != TUTTI_OK) {
        assert_true(!file && strstr(err.text, "changed"));
        return;
    }
    for (size_t i = 0; i < file->n; i++)
        read_tensor(&file->tensors[i]);
    tensor_set_close(file);
}

typedef void read_fn(const uint8_t *bytes, size_t n_bytes, const json_t *keys);

/* The header is where a change can do harm: for the larger files it is hit by most of the changes. */
static void change(const char *name, size_t n_header, read_fn *read, const json_t *keys)
{
    char path[512];
    struct mapping map;
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", name);
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    if (n_header > map.n_bytes)
        n_header = map.n_bytes;
    uint8_t *copy = malloc(map.n_bytes); /* of exactly this size, so that a sanitizer sees a read beyond */
    assert_non_null(copy);
    memcpy(copy, map.bytes, map.n_bytes);
    uint32_t seed = 5;
    for (int i = 0; i < 200; i++) {
        size_t at[3];
        for (int k = 0; k <= i % 3; k++) {
            seed = seed * 1664525 + 1013904223;
            at[k] = (seed >> 8) % (i % 8 == 7 ? map.n_bytes : n_header);
            seed = seed * 1664525 + 1013904223;
            copy[at[k]] = (uint8_t)(seed >> 24);
        }
        read(copy, map.n_bytes, keys);
        for (int k = 0; k <= i % 3; k++)
            copy[at[k]] = ((const uint8_t *)map.bytes)[at[k]];
    }
    assert_memory_equal(copy, map.bytes, map.n_bytes);
    free(copy);
    mapping_close(&map);
}

static void every_changed_fixture_is_an_error_or_can_be_read(void **state)
{
    (void)state;
    json_t *keys = json_load_file(FOLDER "tiny-types.expected.json", 0, NULL);
    assert_non_null(keys);
    change("gguf/tiny-types.gguf", 6000, read_gguf, keys);
    change("gguf/tiny-align64.gguf", 6000, read_gguf, keys);
    change("gguf/tiny-quants.gguf", 600, read_gguf, keys);
    change("gguf/llama-tiny-q8_0.gguf", 12000, read_gguf, keys);
    change("gguf/llama-tiny-q4_0.gguf", 12000, read_gguf, keys);
    change("gguf/llama-tiny-tied-bf16.gguf", 12000, read_gguf, keys);
    change("gguf/chatglm3-tiny-q8_0.gguf", 12000, read_gguf, keys);
    change("gguf/tiny-types.expected.safetensors", 2000, read_safetensors, keys);
    change("llama-tiny/model-00001-of-00002.safetensors", 2000, read_safetensors, keys);
    change("llama-tiny/model-00002-of-00002.safetensors", 2000, read_safetensors, keys);
    change("llama-tiny-tied/model.safetensors", 2000, read_safetensors, keys);
    change("chatglm3-tiny/model.safetensors", 2000, read_safetensors, keys);
    json_decref(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_have_the_values_that_the_library_wrote),
        cmocka_unit_test(arrays_have_the_values_that_the_library_wrote),
        cmocka_unit_test(tensors_of_every_type_stand_in_order_with_their_values),
        cmocka_unit_test(every_changed_fixture_is_an_error_or_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
