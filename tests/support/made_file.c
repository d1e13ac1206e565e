#include "support/made_file.h"

#include "checkpoint/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct made_values {
    struct made_values *before;
    size_t at, n_bytes;
    uint8_t bytes[];
};

void made_add(struct made_file *file, const char *name, enum dtype dtype, int n_dims, const int64_t *shape)
{
    struct tensor t = { .dtype = dtype, .n_dims = n_dims };
    json_t *dims = json_array();
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    assert_true(tensor_measure(&t));
    for (int i = 0; i < n_dims; i++)
        assert_int_equal(json_array_append_new(dims, json_integer(shape[i])), 0);
    if (!file->header)
        file->header = json_object();
    json_t *entry = json_pack(
        "{s:s, s:o, s:[I, I]}", "dtype", tensor_type_name(TENSOR_FORMAT_SAFETENSORS, dtype), "shape", dims,
        "data_offsets", (json_int_t)file->n_bytes, (json_int_t)(file->n_bytes + t.n_bytes));
    assert_int_equal(json_object_set_new(file->header, name, entry), 0);
    file->n_bytes += t.n_bytes;
}

void made_add_values(struct made_file *file, const char *name, enum dtype dtype, int n_dims,
                     const int64_t *shape, const void *bytes)
{
    size_t at = file->n_bytes;
    made_add(file, name, dtype, n_dims, shape);
    size_t n = file->n_bytes - at;
    struct made_values *v = malloc(sizeof *v + n);
    assert_non_null(v);
    *v = (struct made_values){ file->values, at, n };
    memcpy(v->bytes, bytes, n);
    file->values = v;
}

/* A byte that is half of a small bf16, a small float8, an exponent near that of 1, or two numbers of four bits: it has no NaN in
 * any type. */
static uint8_t byte_at(size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u;
    return i % 2 ? (uint8_t)(0x38 | (x >> 24 & 0x81)) : (uint8_t)(0x30 | (x >> 24 & 0x0F));
}

void made_write(struct made_file *file, const char *folder, const char *name, bool is_sparse)
{
    char path[512], *text = json_dumps(file->header, JSON_COMPACT);
    assert_non_null(text);
    uint64_t n_header = strlen(text);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(&n_header, 1, sizeof n_header, out), sizeof n_header);
    assert_int_equal(fwrite(text, 1, n_header, out), n_header);
    for (size_t i = 0; !is_sparse && i < file->n_bytes; i++)
        assert_int_not_equal(fputc(byte_at(i), out), EOF);
    assert_int_equal(fflush(out), 0);
    for (struct made_values *v = file->values, *before; v; v = before) {
        off_t at = (off_t)(sizeof n_header + n_header + v->at);
        assert_int_equal(pwrite(fileno(out), v->bytes, v->n_bytes, at), v->n_bytes);
        before = v->before;
        free(v);
    }
    assert_int_equal(ftruncate(fileno(out), (off_t)(sizeof n_header + n_header + file->n_bytes)), 0);
    assert_int_equal(fclose(out), 0);
    free(text);
    json_decref(file->header);
    *file = (struct made_file){ 0 };
}

void made_text(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}
