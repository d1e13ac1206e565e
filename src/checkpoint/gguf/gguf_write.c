/* Writes GGUF version 3. */
#include "base/buf.h"
#include "base/containers/array.h"
#include "base/files/new_file.h"
#include "checkpoint/gguf/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, VERSION = 3 };

struct gguf_writer {
    struct new_file *file;
    char *path;
    struct buf metadata, infos;
    uint64_t n_kv, n_tensors;
    size_t capacity;     /* of tensors */
    size_t *tensors;     /* [n_tensors] bytes of each */
    uint64_t data_bytes; /* of all tensors so far, with padding: the next one's offset */
    size_t current;      /* index of the tensor being written */
    size_t written;      /* bytes of it */
    struct tutti_error first_error;
};

static void stick(struct gguf_writer *w, bool ok)
{
    if (!ok && w->first_error.status == TUTTI_OK)
        error_set(&w->first_error, TUTTI_E_MEMORY, "%s: out of memory", w->path);
}

static bool add_le(struct buf *buf, uint64_t value, int n_bytes)
{
    uint8_t bytes[8];
    for (int i = 0; i < n_bytes; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    return buf_add(buf, bytes, (size_t)n_bytes);
}

static bool add_string(struct buf *buf, const char *bytes, size_t n_bytes)
{
    return add_le(buf, n_bytes, 8) && buf_add(buf, bytes, n_bytes);
}

static bool gguf_write_key(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    w->n_kv++;
    return add_string(&w->metadata, key, strlen(key)) && add_le(&w->metadata, type, 4);
}

static bool add_float(struct buf *buf, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return add_le(buf, bits, 4);
}

enum tutti_status gguf_writer_open(struct gguf_writer **out, const char *path, struct tutti_error *err)
{
    enum tutti_status st;
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path))) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
        goto done;
    }
    st = new_file_open(&w->file, path, err);
    if (st != TUTTI_OK)
        goto done;
    *out = w;
    w = NULL;
done:
    gguf_writer_free(w);
    return st;
}

void gguf_writer_free(struct gguf_writer *w)
{
    if (!w)
        return;
    new_file_free(w->file);
    buf_clear(&w->metadata);
    buf_clear(&w->infos);
    free(w->tensors);
    free(w->path);
    free(w);
}

void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t value)
{
    stick(w, gguf_write_key(w, key, GGUF_U32) && add_le(&w->metadata, value, 4));
}

void gguf_writer_f32(struct gguf_writer *w, const char *key, float value)
{
    stick(w, gguf_write_key(w, key, GGUF_F32) && add_float(&w->metadata, value));
}

void gguf_writer_bool(struct gguf_writer *w, const char *key, bool value)
{
    stick(w, gguf_write_key(w, key, GGUF_BOOL) && add_le(&w->metadata, value, 1));
}

void gguf_writer_string(struct gguf_writer *w, const char *key, const char *bytes, size_t n_bytes)
{
    stick(w, gguf_write_key(w, key, GGUF_STRING) && add_string(&w->metadata, bytes, n_bytes));
}

static bool add_array(struct gguf_writer *w, const char *key, enum gguf_type type, size_t n)
{
    return gguf_write_key(w, key, GGUF_ARRAY) && add_le(&w->metadata, type, 4) && add_le(&w->metadata, n, 8);
}

void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *strings,
                         const size_t *n_bytes, size_t n)
{
    bool ok = add_array(w, key, GGUF_STRING, n);
    for (size_t i = 0; ok && i < n; i++)
        ok = add_string(&w->metadata, strings[i], n_bytes[i]);
    stick(w, ok);
}

void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *values, size_t n)
{
    bool ok = add_array(w, key, GGUF_F32, n);
    for (size_t i = 0; ok && i < n; i++)
        ok = add_float(&w->metadata, values[i]);
    stick(w, ok);
}

void gguf_writer_i32s(struct gguf_writer *w, const char *key, const int32_t *values, size_t n)
{
    bool ok = add_array(w, key, GGUF_I32, n);
    for (size_t i = 0; ok && i < n; i++)
        ok = add_le(&w->metadata, (uint32_t)values[i], 4);
    stick(w, ok);
}

void gguf_writer_u8s(struct gguf_writer *w, const char *key, const uint8_t *values, size_t n)
{
    stick(w, add_array(w, key, GGUF_U8, n) && buf_add(&w->metadata, values, n));
}

void gguf_writer_bools(struct gguf_writer *w, const char *key, const bool *values, size_t n)
{
    bool ok = add_array(w, key, GGUF_BOOL, n);
    for (size_t i = 0; ok && i < n; i++)
        ok = add_le(&w->metadata, values[i], 1);
    stick(w, ok);
}

static bool gguf_add_tensor(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                            const int64_t *shape, size_t n_bytes)
{
    if (!array_grow(&w->tensors, (size_t)w->n_tensors, &w->capacity, sizeof *w->tensors))
        return false;
    w->tensors[w->n_tensors++] = n_bytes;
    bool ok = add_string(&w->infos, name, strlen(name)) && add_le(&w->infos, (uint64_t)n_dims, 4);
    for (int i = n_dims - 1; ok && i >= 0; i--)
        ok = add_le(&w->infos, (uint64_t)shape[i], 8);
    ok = ok && add_le(&w->infos, (uint64_t)gguf_type_number(dtype), 4) && add_le(&w->infos, w->data_bytes, 8);
    w->data_bytes += (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return ok;
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                        const int64_t *shape)
{
    struct tensor tensor = { .dtype = dtype, .n_dims = n_dims };
    bool fits = n_dims >= 1 && n_dims <= GGUF_TENSOR_DIMS && dtype_is_weight(dtype) && strlen(name) < 64;
    if (fits)
        memcpy(tensor.shape, shape, (size_t)n_dims * sizeof *shape);
    if (!fits || shape[n_dims - 1] % dtype_block_elems(dtype) != 0 || !tensor_measure(&tensor)) {
        if (w->first_error.status == TUTTI_OK)
            error_set(&w->first_error, TUTTI_E_FORMAT,
                      "%s: tensor %s: its name, shape or type %s is not supported by GGUF", w->path, name,
                      dtype_name(dtype));
        return;
    }
    stick(w, gguf_add_tensor(w, name, dtype, n_dims, shape, tensor.n_bytes));
}

static enum tutti_status pad_file(struct gguf_writer *w, uint64_t n_bytes, struct tutti_error *err)
{
    static const char ZEROS[ALIGNMENT];
    uint64_t more = (ALIGNMENT - n_bytes % ALIGNMENT) % ALIGNMENT;
    return new_file_write(w->file, ZEROS, (size_t)more, err);
}

/* Tensors without data need no write of their own. */
static void skip_empty(struct gguf_writer *w)
{
    while (w->current < w->n_tensors && w->tensors[w->current] == 0)
        w->current++;
}

enum tutti_status gguf_writer_begin_data(struct gguf_writer *w, struct tutti_error *err)
{
    struct buf head = { 0 };
    stick(w, buf_add(&head, "GGUF", 4) && add_le(&head, VERSION, 4) && add_le(&head, w->n_tensors, 8) &&
                 add_le(&head, w->n_kv, 8));
    enum tutti_status st = w->first_error.status;
    if (st != TUTTI_OK) {
        error_set(err, st, "%s", w->first_error.text);
        goto done;
    }
    st = new_file_write(w->file, head.bytes, head.n_bytes, err);
    if (st == TUTTI_OK)
        st = new_file_write(w->file, w->metadata.bytes, w->metadata.n_bytes, err);
    if (st == TUTTI_OK)
        st = new_file_write(w->file, w->infos.bytes, w->infos.n_bytes, err);
    if (st == TUTTI_OK)
        st = pad_file(w, head.n_bytes + w->metadata.n_bytes + w->infos.n_bytes, err);
    skip_empty(w);
done:
    buf_clear(&head);
    return st;
}

enum tutti_status gguf_writer_data(struct gguf_writer *w, const void *bytes, size_t n_bytes,
                                   struct tutti_error *err)
{
    if (n_bytes == 0)
        return TUTTI_OK;
    if (w->current >= w->n_tensors || n_bytes > w->tensors[w->current] - w->written)
        return error_set(err, TUTTI_E_INTERNAL, "%s: more data than the tensors were declared with", w->path);
    enum tutti_status st = new_file_write(w->file, bytes, n_bytes, err);
    if (st != TUTTI_OK)
        return st;
    w->written += n_bytes;
    if (w->written < w->tensors[w->current])
        return TUTTI_OK;
    st = pad_file(w, w->written, err);
    w->written = 0;
    w->current++;
    skip_empty(w);
    return st;
}

enum tutti_status gguf_writer_finish(struct gguf_writer *w, struct tutti_error *err)
{
    if (w->current < w->n_tensors)
        return error_set(err, TUTTI_E_INTERNAL, "%s: tensor %zu of %zu has no data yet", w->path, w->current,
                         (size_t)w->n_tensors);
    return new_file_finish(w->file, err);
}
