/* The readers of src/checkpoint: what the real libraries wrote, and what nobody should have written. */
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/text_part.h"
#include "kernels/quantize/quantize.h"

#include "base/files/mapping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- good files ---- */

static void the_demo_folder_opens_with_all_its_tensors(void **state)
{
    (void)state;
    struct checkpoint *ck;
    assert_int_equal(checkpoint_open(&ck, TEST_DEMO_MODEL, NULL), TUTTI_OK);
    assert_int_equal(checkpoint_n_tensors(ck), 45);
    const struct tensor *t = checkpoint_find(ck, "transformer.embedding.word_embeddings.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 4160);
    assert_int_equal(t->shape[1], 256);
    assert_null(checkpoint_find(ck, "no such tensor"));
    assert_int_equal(json_integer_value(json_object_get(checkpoint_config(ck), "num_layers")), 6);
    uint16_t first;
    memcpy(&first, t->data, sizeof first);
    tensor_forget(t); /* it may still be read */
    uint16_t again;
    memcpy(&again, t->data, sizeof again);
    assert_int_equal(first, again);
    json_t *json;
    assert_int_equal(checkpoint_json(ck, "generation_config.json", &json, NULL), TUTTI_OK);
    assert_non_null(json);
    json_decref(json);
    assert_int_equal(checkpoint_json(ck, "nothing.json", &json, NULL), TUTTI_OK);
    assert_null(json);
    checkpoint_close(ck);
}

static void shards_are_one_checkpoint(void **state)
{
    (void)state;
    struct checkpoint *ck;
    assert_int_equal(checkpoint_open(&ck, TEST_FIXTURES "/llama-tiny/", NULL), TUTTI_OK);
    assert_int_equal(checkpoint_n_tensors(ck), 30);
    const struct tensor *a = checkpoint_find(ck, "model.embed_tokens.weight"),
                        *b = checkpoint_find(ck, "model.norm.weight");
    assert_true(a && b);
    checkpoint_close(ck);
}

/* tiny-types.gguf holds tensors "f32", "f16", ... whose values the gguf package wrote to the expected file. */
static void gguf_tensors_have_the_values_that_the_library_wrote(void **state)
{
    (void)state;
    static const char *const FILES[] = { "tiny-types", "tiny-align64" };
    for (int f = 0; f < 2; f++) {
        char path[512];
        struct tensor_set *gguf;
        struct tensor_set *expected;
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.gguf", FILES[f]);
        assert_int_equal(tensor_set_open_as(&gguf, &GGUF_FORMAT, path, NULL), TUTTI_OK);
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.expected.safetensors", FILES[f]);
        assert_int_equal(tensor_set_open_as(&expected, &SAFETENSORS_FORMAT, path, NULL), TUTTI_OK);
        int n_checked = 0;
        for (size_t i = 0; i < expected->n; i++) {
            const struct tensor *want = &expected->tensors[i], *got = NULL;
            for (size_t k = 0; k < gguf->n; k++) {
                if (strcmp(gguf->tensors[k].name, want->name) == 0)
                    got = &gguf->tensors[k];
            }
            if (!got || want->dtype != DTYPE_F32 || !dtype_is_weight(got->dtype))
                continue;
            int64_t n = (int64_t)(want->n_bytes / 4);
            float *values = malloc(want->n_bytes + 4);
            assert_non_null(values);
            dequantize(values, got->data, got->dtype, n);
            assert_memory_equal(values, want->data, want->n_bytes);
            assert_int_equal(got->n_dims, want->n_dims);
            for (int d = 0; d < want->n_dims; d++)
                assert_int_equal(got->shape[d], want->shape[d]);
            free(values);
            n_checked++;
        }
        assert_true(n_checked >= 5);
        tensor_set_close(expected);
        tensor_set_close(gguf);
    }
}

static void what_is_written_is_read_again(void **state)
{
    (void)state;
    char path[] = "/tmp/tutti-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct gguf_writer *w;
    static const char *const STRINGS[] = { "a", "", "\xE4\xBD\xA0" };
    static const size_t LENGTHS[] = { 1, 0, 3 };
    static const float FLOATS[] = { 1.5f, -2 };
    static const int32_t INTS[] = { -7, 8 };
    static const int64_t SHAPE[] = { 2, 32 }, ONE[] = { 5 };
    uint8_t data[68] = { 1, 2, 3 };
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_u32(w, "u", 4000000000u);
    gguf_writer_f32(w, "f", 0.25f);
    gguf_writer_bool(w, "b", true);
    gguf_writer_string(w, "s", "text", 4);
    gguf_writer_strings(w, "strings", STRINGS, LENGTHS, 3);
    gguf_writer_f32s(w, "floats", FLOATS, 2);
    gguf_writer_i32s(w, "ints", INTS, 2);
    gguf_writer_tensor(w, "q", DTYPE_Q8_0, 2, SHAPE);
    gguf_writer_tensor(w, "v", DTYPE_F32, 1, ONE);
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_data(w, data, 60, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_E_INTERNAL); /* not all data has come */
    assert_int_equal(gguf_writer_data(w, data + 60, 8, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_data(w, FLOATS, 8, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_data(w, data, 12, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_data(w, data, 1, NULL), TUTTI_E_INTERNAL); /* more than was declared */
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);

    struct tensor_set *g;
    assert_int_equal(tensor_set_open_as(&g, &GGUF_FORMAT, path, NULL), TUTTI_OK);
    const json_t *s = gguf_scalars(gguf_of(g));
    assert_true(json_integer_value(json_object_get(s, "u")) == 4000000000);
    assert_true(json_real_value(json_object_get(s, "f")) == 0.25);
    assert_true(json_is_true(json_object_get(s, "b")));
    assert_string_equal(json_string_value(json_object_get(s, "s")), "text");
    const struct gguf_array *strings = gguf_find_array(gguf_of(g), "strings");
    const char *bytes;
    size_t n;
    assert_int_equal(gguf_array_n(strings), 3);
    gguf_array_string(strings, 2, &bytes, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(bytes, STRINGS[2], 3);
    assert_true(gguf_array_float(gguf_find_array(gguf_of(g), "floats"), 1) == -2);
    assert_int_equal(gguf_array_int(gguf_find_array(gguf_of(g), "ints"), 0), -7);
    assert_null(gguf_find_array(gguf_of(g), "u"));
    assert_int_equal(g->n, 2);
    assert_memory_equal(g->tensors[0].data, data, 68);
    assert_memory_equal(g->tensors[1].data, FLOATS, 8);
    tensor_set_close(g);
    unlink(path);
}

static void an_unfinished_file_leaves_nothing_behind(void **state)
{
    (void)state;
    char folder[] = "/tmp/tutti-test-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    struct gguf_writer *w;
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_u32(w, "u", 1);
    gguf_writer_free(w);
    assert_int_equal(rmdir(folder), 0); /* the folder is empty */
}

/* ---- broken safetensors ---- */

/* The header's text between its length and n_data bytes of data. */
static size_t make_safetensors(uint8_t *out, const char *header, size_t n_data)
{
    size_t n = strlen(header);
    memset(out, 0, 8);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, n_data);
    return 8 + n + n_data;
}

static void a_broken_safetensors_file_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        const char *words;
        enum tutti_status status;
    } CASES[] = {
        { "", 0, "does not begin with '{'", TUTTI_E_FORMAT },
        { "[]", 0, "does not begin with '{'", TUTTI_E_FORMAT },
        { "{", 0, "header:", TUTTI_E_FORMAT },
        { "{} x", 0, "header:", TUTTI_E_FORMAT },
        { "{}", 1, "1 bytes of data, but its tensors hold 0", TUTTI_E_FORMAT },
        { "{\"a\":1}", 0, "tensor a: its header entry is no object", TUTTI_E_FORMAT },
        { "{\"a\":{}}", 0, "dtype is missing", TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F99\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"F99\"",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
          "F8_E5M2 is not supported", TUTTI_E_UNSUPPORTED },
        { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape is missing", TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape[0]",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "shape[0]",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "6 dimensions",
          TUTTI_E_UNSUPPORTED },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}", 4,
          "overflows", TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]}}", 4,
          "4 bytes of data", TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "8 bytes of data",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 2, "do not lie within 2",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "do not lie within",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "do not lie within",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "[begin, end]",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "a hole lies before",
          TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
          6, "overlap", TUTTI_E_FORMAT },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
          1, "header:", TUTTI_E_FORMAT },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        uint8_t bytes[1024];
        struct tensor_set *file = NULL;
        struct tutti_error err = { 0 };
        size_t n = make_safetensors(bytes, CASES[i].header, CASES[i].n_data);
        enum tutti_status st = tensor_set_open_memory(&file, &SAFETENSORS_FORMAT, bytes, n, "x.safetensors",
                                                      &err);
        if (st != CASES[i].status || !strstr(err.text, CASES[i].words) || !strstr(err.text, "x.safetensors"))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, st, err.text, CASES[i].words);
        assert_null(file);
    }
}

static void a_header_larger_than_the_file_is_refused(void **state)
{
    (void)state;
    static const uint8_t BYTES[] = { 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, '{', '}' };
    struct tensor_set *file;
    struct tutti_error err;
    for (size_t n = 0; n <= sizeof BYTES; n++) {
        assert_int_equal(tensor_set_open_memory(&file, &SAFETENSORS_FORMAT, BYTES, n, "x", &err),
                         TUTTI_E_FORMAT);
        assert_non_null(strstr(err.text, n < 8 ? "expected at least 8" : "expected 8 and a header"));
    }
}

/* ---- broken GGUF ---- */

struct bytes {
    uint8_t bytes[4096];
    size_t n;
};

static void put(struct bytes *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        b->bytes[b->n++] = (uint8_t)(value >> (8 * i));
}

static void put_string(struct bytes *b, const char *text)
{
    put(b, strlen(text), 8);
    memcpy(b->bytes + b->n, text, strlen(text));
    b->n += strlen(text);
}

static void put_head(struct bytes *b, uint64_t version, uint64_t n_tensors, uint64_t n_kv)
{
    *b = (struct bytes){ 0 };
    memcpy(b->bytes, "GGUF", 4);
    b->n = 4;
    put(b, version, 4);
    put(b, n_tensors, 8);
    put(b, n_kv, 8);
}

static void put_tensor(struct bytes *b, const char *name, uint64_t n_dims, const uint64_t *ne, uint64_t type,
                       uint64_t offset)
{
    put_string(b, name);
    put(b, n_dims, 4);
    for (uint64_t i = 0; i < n_dims && i < 8; i++)
        put(b, ne[i], 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static void put_data(struct bytes *b, size_t n)
{
    b->n = (b->n + 31) / 32 * 32 + n;
}

static void expect_gguf(struct bytes *b, enum tutti_status status, const char *words)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = tensor_set_open_memory(&file, &GGUF_FORMAT, b->bytes, b->n, "x.gguf", &err);
    if (st != status || !strstr(err.text, words) || !strstr(err.text, "x.gguf"))
        fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, status, words);
    assert_null(file);
}

static void a_broken_gguf_header_is_told_what_is_wrong(void **state)
{
    (void)state;
    struct bytes b = { .bytes = "GGML", .n = 4 };
    expect_gguf(&b, TUTTI_E_FORMAT, "does not begin with \"GGUF\"");
    b.n = 0;
    expect_gguf(&b, TUTTI_E_FORMAT, "does not begin with \"GGUF\"");
    put_head(&b, 1, 0, 0);
    expect_gguf(&b, TUTTI_E_UNSUPPORTED, "version 1, expected 2 or 3");
    put_head(&b, 0x03000000, 0, 0);
    expect_gguf(&b, TUTTI_E_UNSUPPORTED, "big-endian");
    put_head(&b, 3, UINT64_MAX, 0);
    expect_gguf(&b, TUTTI_E_FORMAT, "do not fit in");
    put_head(&b, 3, 0, UINT64_MAX);
    expect_gguf(&b, TUTTI_E_FORMAT, "do not fit in");
    put_head(&b, 3, 0, 1);
    b.n -= 3;
    expect_gguf(&b, TUTTI_E_FORMAT, "ends inside the header");
}

static void a_broken_gguf_value_is_told_what_is_wrong(void **state)
{
    (void)state;
    struct bytes b;
    put_head(&b, 3, 0, 1);
    put_string(&b, "a\nb");
    put(&b, GGUF_U32, 4);
    put(&b, 1, 4);
    expect_gguf(&b, TUTTI_E_FORMAT, "printable");
    put_head(&b, 3, 0, 1);
    put(&b, UINT64_MAX, 8); /* the length of a key */
    put(&b, 0, 8);
    put(&b, 0, 8);
    expect_gguf(&b, TUTTI_E_FORMAT, "ends inside the metadata");
    put_head(&b, 3, 0, 1);
    put_string(&b, "key");
    put(&b, 99, 4);
    put(&b, 0, 8);
    expect_gguf(&b, TUTTI_E_FORMAT, "key: value type 99");
    put_head(&b, 3, 0, 1);
    put_string(&b, "key");
    put(&b, GGUF_STRING, 4);
    put(&b, UINT64_MAX - 3, 8);
    expect_gguf(&b, TUTTI_E_FORMAT, "ends inside key");
    put_head(&b, 3, 0, 1);
    put_string(&b, "key");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_ARRAY, 4);
    put(&b, 1, 8);
    expect_gguf(&b, TUTTI_E_FORMAT, "array of element type 9");
    put_head(&b, 3, 0, 1);
    put_string(&b, "key");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_U8, 4);
    put(&b, UINT64_MAX, 8);
    expect_gguf(&b, TUTTI_E_FORMAT, "bytes are left");
    put_head(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_string(&b, "key");
        put(&b, GGUF_U32, 4);
        put(&b, 1, 4);
    }
    expect_gguf(&b, TUTTI_E_FORMAT, "duplicate key key");
    put_head(&b, 3, 0, 1);
    put_string(&b, "general.alignment");
    put(&b, GGUF_U32, 4);
    put(&b, 24, 4);
    expect_gguf(&b, TUTTI_E_FORMAT, "general.alignment");
    put_head(&b, 3, 0, 1);
    put_string(&b, "split.count");
    put(&b, GGUF_U16, 4);
    put(&b, 3, 2);
    expect_gguf(&b, TUTTI_E_UNSUPPORTED, "split");
}

static void a_broken_gguf_tensor_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t n_dims, ne[4], type, offset;
        const char *words;
        enum tutti_status status;
    } CASES[] = {
        { "t", 0, { 0 }, 0, 0, "0 dimensions", TUTTI_E_FORMAT },
        { "t", 5, { 1 }, 0, 0, "5 dimensions", TUTTI_E_FORMAT },
        { "t", 1, { UINT64_MAX }, 0, 0, "out of range", TUTTI_E_FORMAT },
        { "t", 2, { 1ull << 62, 4 }, 0, 0, "product overflows", TUTTI_E_FORMAT },
        { "t", 1, { 8 }, 77, 0, "unknown type 77", TUTTI_E_FORMAT },
        { "t", 1, { 256 }, 34, 0, "type TQ1_0 is not supported", TUTTI_E_UNSUPPORTED },
        { "t",
          1,
          { 256 },
          31,
          0,
          "type Q4_0_4_4 is not supported, expected a file of another type",
          TUTTI_E_UNSUPPORTED },
        { "t", 1, { 256 }, 41, 0, "type Q1_0 is not supported", TUTTI_E_UNSUPPORTED },
        { "t", 1, { 16 }, 8, 0, "expected a multiple of 32", TUTTI_E_FORMAT },
        { "t", 1, { 8 }, 0, 4, "no multiple of 32", TUTTI_E_FORMAT },
        { "t", 1, { 8 }, 0, 1ull << 60, "do not lie within", TUTTI_E_FORMAT },
        { "t", 1, { 17 }, 0, 0, "do not lie within", TUTTI_E_FORMAT },
        { "", 1, { 8 }, 0, 0, "a name of 0 bytes", TUTTI_E_FORMAT },
        { "t\x1B[2J", 1, { 8 }, 0, 0, "of printable UTF-8", TUTTI_E_FORMAT },
        { "t\xFF", 1, { 8 }, 0, 0, "of printable UTF-8", TUTTI_E_FORMAT },
    };
    struct bytes b;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        put_head(&b, 3, 1, 0);
        put_tensor(&b, CASES[i].name, CASES[i].n_dims, CASES[i].ne, CASES[i].type, CASES[i].offset);
        put_data(&b, 64);
        expect_gguf(&b, CASES[i].status, CASES[i].words);
    }
    static const uint64_t EIGHT[] = { 8 };
    static const char LONG[] = "a.tensor.with.a.name.of.32.bytes";
    put_head(&b, 3, 1, 0);
    put_tensor(&b, LONG, 1, EIGHT, 0, 0);
    for (size_t n = b.n - 1; n >= 24 + 8 + strlen(LONG); n--) { /* cut in every field after the name */
        b.n = n;
        expect_gguf(&b, TUTTI_E_FORMAT, "ends inside the list of tensors");
    }
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "a", 1, EIGHT, 0, 0);
    put_tensor(&b, "b", 1, EIGHT, 0, 0);
    put_data(&b, 64);
    expect_gguf(&b, TUTTI_E_FORMAT, "overlap");
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "a", 1, EIGHT, 0, 0);
    put_tensor(&b, "a", 1, EIGHT, 0, 32);
    put_data(&b, 64);
    expect_gguf(&b, TUTTI_E_FORMAT, "duplicate tensor a");
}

/* ---- any file, cut and changed ---- */

typedef bool open_fn(const void *bytes, size_t n_bytes);

static bool opens_gguf(const void *bytes, size_t n_bytes)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    bool ok = tensor_set_open_memory(&file, &GGUF_FORMAT, bytes, n_bytes, "x", &err) == TUTTI_OK;
    assert_true(ok || err.text[0] != '\0');
    tensor_set_close(file);
    return ok;
}

static bool opens_safetensors(const void *bytes, size_t n_bytes)
{
    struct tensor_set *file = NULL;
    struct tutti_error err = { 0 };
    bool ok = tensor_set_open_memory(&file, &SAFETENSORS_FORMAT, bytes, n_bytes, "x", &err) == TUTTI_OK;
    assert_true(ok || err.text[0] != '\0');
    tensor_set_close(file);
    return ok;
}

static void cut_and_change(const char *path, open_fn *opens, bool prefixes_are_errors)
{
    struct mapping map;
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    assert_true(opens(map.bytes, map.n_bytes));
    for (size_t n = 0; n + 32 < map.n_bytes; n++) { /* the last bytes may be padding */
        uint8_t *exact = malloc(n ? n : 1);         /* so that a sanitizer sees a read beyond */
        assert_non_null(exact);
        memcpy(exact, map.bytes, n);
        bool ok = opens(exact, n);
        assert_true(!ok || !prefixes_are_errors);
        free(exact);
        if (n > 4096)
            n += 97;
    }
    uint8_t *copy = malloc(map.n_bytes);
    assert_non_null(copy);
    uint32_t state = 1;
    for (int i = 0; i < 2000; i++) {
        memcpy(copy, map.bytes, map.n_bytes);
        for (int k = 0; k <= i % 3; k++) {
            state = state * 1664525 + 1013904223;
            copy[(state >> 8) % (map.n_bytes < 4096 ? map.n_bytes : 4096)] = (uint8_t)(state >> 24);
        }
        opens(copy, map.n_bytes); /* an error or a correct read, never a crash */
    }
    free(copy);
    mapping_close(&map);
}

static void cut_and_changed_files_are_errors_or_correct_reads(void **state)
{
    (void)state;
    cut_and_change(TEST_FIXTURES "/gguf/tiny-types.gguf", opens_gguf, true);
    cut_and_change(TEST_FIXTURES "/gguf/tiny-types.expected.safetensors", opens_safetensors, true);
}

/* ---- folders ---- */

static char folder[] = "/tmp/tutti-test-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tutti-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static void remove_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const FILES[] = { "config.json",   "model.safetensors", "model.safetensors.index.json",
                                         "a.safetensors", "b.safetensors",     "pytorch_model.bin" };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
        remove_file(FILES[i]);
    return rmdir(folder);
}

static void expect_folder(enum tutti_status status, const char *words)
{
    struct checkpoint *ck = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = checkpoint_open(&ck, folder, &err);
    if (st != status || !strstr(err.text, words))
        fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, status, words);
    assert_null(ck);
}

static void a_broken_folder_is_told_what_is_wrong(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    size_t n;
    expect_folder(TUTTI_E_NOT_FOUND, "there is neither config.json nor");
    write_text("b.gguf", "");
    write_text("a.GGUF", "");
    expect_folder(TUTTI_E_NOT_FOUND, "(.yaml). For a GGUF file, give its path as the model: /tmp/");
    expect_folder(TUTTI_E_NOT_FOUND, "/a.GGUF");
    remove_file("a.GGUF");
    remove_file("b.gguf");
    write_text("config.json", "{\n \"a\": ,\n}");
    expect_folder(TUTTI_E_FORMAT, "line 2");
    write_text("config.json", "[1]");
    expect_folder(TUTTI_E_FORMAT, "expected an object");
    write_text("config.json", "{}");
    expect_folder(TUTTI_E_NOT_FOUND, "neither model.safetensors nor");
    write_text("pytorch_model.bin", "x");
    expect_folder(TUTTI_E_FORMAT, "not a file of torch.save()");
    write_text("model.safetensors.index.json", "{}");
    expect_folder(TUTTI_E_FORMAT, "weight_map");
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../a.safetensors\"}}");
    expect_folder(TUTTI_E_FORMAT, "plain name");
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": 3}}");
    expect_folder(TUTTI_E_FORMAT, "plain name");
    write_text("model.safetensors.index.json",
               "{\"weight_map\": {\"a\": \"a.safetensors\", \"c\": \"a.safetensors\"}}");
    expect_folder(TUTTI_E_NOT_FOUND, "a.safetensors");
    n = make_safetensors(bytes, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    write_file("a.safetensors", bytes, n);
    expect_folder(TUTTI_E_FORMAT, "tensor c is not in a.safetensors");
    write_file("b.safetensors", bytes, n);
    write_text("model.safetensors.index.json",
               "{\"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\"}}");
    expect_folder(TUTTI_E_FORMAT, "it is also in");
    struct checkpoint *ck;
    write_text("model.safetensors.index.json",
               "{\"weight_map\": {\"a\": \"a.safetensors\", \"lm_head.weight\": \"a.safetensors\"}}");
    assert_int_equal(checkpoint_open(&ck, folder, NULL), TUTTI_OK);
    checkpoint_close(ck);
}

/* Each with the words that name the quantization, or NULL for weights that are not quantized. */
static void a_quantized_upload_is_named(void **state)
{
    (void)state;
#define GPTQ(dynamic)                                                                                        \
    "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, "              \
    "\"dynamic\": " dynamic "}}"
    static const struct {
        const char *config, *words;
    } CASES[] = {
        { "{\"quantization_config\": {\"quant_method\": \"hqq\"}}", "quant_method hqq" },
        { "{\"quantization_config\": {\"quant_method\": \"aqlm\"}}",
          "expected f32, f16 or bf16, or quant_method fp8" },
        { "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 128}}",
          "(gptq): bits: 3, expected 2, 4 or 8: take the upload that is not quantized" },
        { "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, "
          "\"rotation\": "
          "\"hadamard\"}}",
          "rotation: \"hadamard\", expected null" },
        { GPTQ("{\"-:.*mlp.gate$\": {}, \"+:.*down_proj.*\": {\"bits\": 8, \"group_size\": 64}}"),
          "(gptq): dynamic: \"+:.*down_proj.*\": {\"bits\":8,\"group_size\":64}, expected the bits" },
        { GPTQ("{\".*up_proj.*\": {\"bits\": 4, \"group_size\": 32}}"), "dynamic: \".*up_proj.*\"" },
        { GPTQ("{\"-:.*mlp.gate$\": {}, \"-:lm_head\": {\"bits\": 8}, \".*\": {\"bits\": 4}}"), NULL },
        { GPTQ("null"), NULL },
        { "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}}",
          "group_size: 0, expected the columns of a group, or -1" },
        { "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": "
          "\"marlin\"}}",
          "checkpoint_format: \"marlin\", expected \"gptq\" or \"gptq_v2\"" },
        { "{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}}",
          "version: \"gemv\", expected \"gemm\"" },
        { "{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}}",
          "fmt: \"e5m2\", expected \"e4m3\"" },
        { "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}}",
          "weight_block_size: [128], expected [rows, columns]" },
        { "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}}",
          "format: \"marlin-24\", expected pack-quantized" },
        { "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
          "\"pack-quantized\", "
          "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 3, \"type\": \"int\"}}}}}",
          "num_bits: 3, expected 4 or 8 of type int" },
        { "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
          "\"pack-quantized\", "
          "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4}}, \"group_1\": {\"weights\": "
          "{\"num_bits\": 8}}}}}",
          "the same bits and group_size in all groups" },
        { "{\"quantization_config\": {\"_load_in_8bit\": true}}",
          "(bitsandbytes): _load_in_8bit: true, expected false" },
        { "{\"quantization_config\": {\"load_in_8bit\": true}}",
          "(bitsandbytes): load_in_8bit: true, expected false" },
        { "{\"quantization_config\": {\"bits\": 3}}", "of a kind that is not named" },
        { "{\"compression_config\": {\"format\": \"x\"}}", "compression_config" },
        { "{\"quantization\": {\"group_size\": 64, \"bits\": 4}}", "MLX" },
        { "{\"quantization_config\": null, \"quantization\": {}}", NULL },
    };
    uint8_t bytes[256];
    size_t n = make_safetensors(bytes, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    write_file("model.safetensors", bytes, n);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_text("config.json", CASES[i].config);
        if (CASES[i].words) {
            expect_folder(TUTTI_E_UNSUPPORTED, CASES[i].words);
            continue;
        }
        struct checkpoint *ck = NULL;
        assert_int_equal(checkpoint_open(&ck, folder, NULL), TUTTI_OK);
        checkpoint_close(ck);
    }
}

static void what_is_not_there_is_said_with_what_to_do(void **state)
{
    (void)state;
    static const struct {
        const char *path, *words;
        bool is_hub;
    } CASES[] = {
        { "Qwen/Qwen2.5-0.5B", "give the tutti command hf:Qwen/Qwen2.5-0.5B,", true },
        { "Qwen/Qwen3-0.6B-GGUF:q8_0", "give the tutti command hf:Qwen/Qwen3-0.6B-GGUF:q8_0,", true },
        { "org/name@main:a/b.gguf", "give the tutti command hf:org/name@main:a/b.gguf,", true },
        { "org/name:", "no such file", false },
        { "org:a/b", "no such file", false },
        { "org/", "org: no such file or folder", false },
        { "./Qwen/Qwen2.5", "no such file", false },
        { "a/b/c", "no such file", false },
        { "/Qwen", "no such file", false },
        { "org/a b", "no such file", false },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct checkpoint *ck = NULL;
        struct tutti_error err = { 0 };
        assert_int_equal(checkpoint_open(&ck, CASES[i].path, &err), TUTTI_E_NOT_FOUND);
        if (!strstr(err.text, CASES[i].words) || !strstr(err.text, "hf:") == CASES[i].is_hub)
            fail_msg("%s: \"%s\"", CASES[i].path, err.text);
    }
}

#define TIED "tie_word_embeddings"

/* The names of tensors as Gemma 3, Mistral Small 3.1 and newer releases of transformers save them. */
static void the_language_part_has_its_own_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *within; /* NULL: of the vision part */
    } CASES[] = {
        { "language_model.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight" },
        { "model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight" },
        { "language_model.lm_head.weight", "lm_head.weight" },
        { "lm_head.weight", "lm_head.weight" },
        { "model.norm.weight", "model.norm.weight" },
        { "vision_tower.vision_model.post_layernorm.weight", NULL },
        { "model.vision_tower.ln_pre.weight", NULL },
        { "multi_modal_projector.norm.weight", NULL },
        { "model.visual.blocks.0.attn.qkv.weight", NULL },
        { "visual.merger.mlp.0.bias", NULL },
    };
    char text[64];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const char *got = text_part_name(CASES[i].name, text, sizeof text);
        if (CASES[i].within)
            assert_string_equal(got, CASES[i].within);
        else
            assert_null(got);
    }
    json_t *config = json_pack("{s:s, s:i, s:f, s:i, s:{s:s, s:i}, s:{s:i}}", "model_type", "gemma3",
                               "hidden_size", 1, "rope_theta", 500.0, "eos_token_id", 7, "text_config",
                               "model_type", "gemma3_text", "hidden_size", 72, "vision_config", "hidden_size",
                               16);
    bool has_vision = false;
    assert_true(text_part_unwrap(config, &has_vision) && has_vision);
    assert_int_equal(json_integer_value(json_object_get(config, "hidden_size")), 72);
    assert_null(json_object_get(config, "rope_theta")); /* transformers does not read it there */
    assert_int_equal(json_integer_value(json_object_get(config, "eos_token_id")), 7);
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "gemma3_text");
    assert_null(json_object_get(config, "vision_config"));
    assert_true(text_part_unwrap(config, &has_vision) && !has_vision);
    json_decref(config);
    config = json_pack("{s:s, s:i, s:b, s:{s:i}}", "model_type", "qwen2_vl", "hidden_size", 72, TIED, true,
                       "vision_config", "hidden_size", 16);
    assert_true(text_part_unwrap(config, &has_vision) && has_vision);
    assert_int_equal(json_integer_value(json_object_get(config, "hidden_size")), 72);
    assert_null(json_object_get(config, "vision_config"));
    json_decref(config);
}

/* Releases of transformers differ in which of the two places they save it. */
static void an_output_is_tied_if_either_place_says_so(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool has_vision = false, outer = i & 1, inner = i & 2;
        json_t *config = json_pack("{s:b, s:{s:b}}", TIED, outer, "text_config", TIED, inner);
        assert_true(text_part_unwrap(config, &has_vision) && has_vision);
        assert_int_equal(json_is_true(json_object_get(config, TIED)), outer || inner);
        json_decref(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_folder_opens_with_all_its_tensors),
        cmocka_unit_test_setup_teardown(a_quantized_upload_is_named, make_folder, remove_folder),
        cmocka_unit_test(what_is_not_there_is_said_with_what_to_do),
        cmocka_unit_test(shards_are_one_checkpoint),
        cmocka_unit_test(gguf_tensors_have_the_values_that_the_library_wrote),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(an_unfinished_file_leaves_nothing_behind),
        cmocka_unit_test(a_broken_safetensors_file_is_told_what_is_wrong),
        cmocka_unit_test(a_header_larger_than_the_file_is_refused),
        cmocka_unit_test(a_broken_gguf_header_is_told_what_is_wrong),
        cmocka_unit_test(a_broken_gguf_value_is_told_what_is_wrong),
        cmocka_unit_test(a_broken_gguf_tensor_is_told_what_is_wrong),
        cmocka_unit_test(cut_and_changed_files_are_errors_or_correct_reads),
        cmocka_unit_test_setup_teardown(a_broken_folder_is_told_what_is_wrong, make_folder, remove_folder),
        cmocka_unit_test(the_language_part_has_its_own_names),
        cmocka_unit_test(an_output_is_tied_if_either_place_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
