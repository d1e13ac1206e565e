#include "checkpoint/shards/tensor_writer.h"

#include "base/buf.h"
#include "base/containers/array.h"
#include "base/json/json_list.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A protocol buffer message has at most 2 GiB; MindSpore splits at a quarter of that. */
enum { SLICE_BYTES = 512 << 20 };

struct declared {
    char *name;
    enum dtype dtype;
    int n_dims;
    int64_t shape[LIMIT_TENSOR_DIMS];
    size_t n_bytes;
};

struct tensor_writer {
    enum tensor_format format;
    char *name;
    tensor_sink_fn *sink;
    void *user;
    json_t *metadata;
    struct declared *tensors;
    size_t n_tensors, capacity;
    bool has_begun;
    size_t at;    /* index of the current tensor */
    size_t n_put; /* bytes of it so far */
};

enum tutti_status tensor_writer_new(struct tensor_writer **out, enum tensor_format format, const char *name,
                                    tensor_sink_fn *sink, void *user, struct tutti_error *err)
{
    struct tensor_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->name = strdup(name);
        w->metadata = json_object();
    }
    if (!w || !w->name || !w->metadata) {
        tensor_writer_free(w);
        return error_out_of_memory(name, err);
    }
    w->format = format;
    w->sink = sink;
    w->user = user;
    *out = w;
    return TUTTI_OK;
}

void tensor_writer_free(struct tensor_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_tensors; i++)
        free(w->tensors[i].name);
    free(w->tensors);
    json_decref(w->metadata);
    free(w->name);
    free(w);
}

enum tutti_status tensor_writer_metadata(struct tensor_writer *w, const char *key, const char *value,
                                         struct tutti_error *err)
{
    return json_object_set_new(w->metadata, key, json_string(value)) == 0 ? TUTTI_OK
                                                                          : error_out_of_memory(w->name, err);
}

enum tutti_status tensor_writer_declare(struct tensor_writer *w, const struct tensor *tensor,
                                        struct tutti_error *err)
{
    struct tensor measured = *tensor;
    if (!tensor_type_name(w->format, tensor->dtype))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: the format has no type for %s", w->name,
                         tensor->name, dtype_name(tensor->dtype));
    if (!tensor_measure(&measured))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its size overflows", w->name, tensor->name);
    if (!array_grow(&w->tensors, w->n_tensors, &w->capacity, sizeof *w->tensors))
        return error_out_of_memory(w->name, err);
    struct declared *d = &w->tensors[w->n_tensors];
    *d = (struct declared){ .name = strdup(tensor->name),
                            .dtype = tensor->dtype,
                            .n_dims = tensor->n_dims,
                            .n_bytes = measured.n_bytes };
    if (!d->name)
        return error_out_of_memory(w->name, err);
    memcpy(d->shape, tensor->shape, sizeof d->shape);
    w->n_tensors++;
    return TUTTI_OK;
}

/* ---- safetensors ---- */

static enum tutti_status put_header(struct tensor_writer *w, struct tutti_error *err)
{
    json_t *root = json_object();
    bool ok = root &&
              (json_object_size(w->metadata) == 0 || json_object_set(root, "__metadata__", w->metadata) == 0);
    json_int_t end = 0;
    for (size_t i = 0; i < w->n_tensors && ok; i++) {
        const struct declared *d = &w->tensors[i];
        json_t *about = json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor_type_name(w->format, d->dtype),
                                  "shape", json_integers(d->shape, (size_t)d->n_dims), "data_offsets", end,
                                  end + (json_int_t)d->n_bytes);
        ok = json_object_set_new(root, d->name, about) == 0;
        end += (json_int_t)d->n_bytes;
    }
    struct buf text = { 0 };
    char *json = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    uint8_t length[8] = { 0 };
    ok = json && buf_add(&text, length, sizeof length) && buf_add_string(&text, json);
    while (ok && text.n_bytes % 8 != 0) /* so that data are aligned */
        ok = buf_add_string(&text, " ");
    for (size_t i = 0; ok && i < sizeof length; i++)
        text.bytes[i] = (char)((text.n_bytes - sizeof length) >> (8 * i) & 0xFF);
    enum tutti_status st = ok ? w->sink(w->user, text.bytes, text.n_bytes, err)
                              : error_out_of_memory(w->name, err);
    free(json);
    buf_clear(&text);
    json_decref(root);
    return st;
}

/* ---- MindSpore ---- */

static bool put_varint(struct buf *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (uint8_t)(value | 0x80);
    bytes[n++] = (uint8_t)value;
    return buf_add(out, bytes, n);
}

static bool put_bytes(struct buf *out, int number, const void *bytes, size_t n_bytes)
{
    return put_varint(out, (uint64_t)number << 3 | 2) && put_varint(out, n_bytes) &&
           buf_add(out, bytes, n_bytes);
}

static size_t varint_bytes(uint64_t value)
{
    size_t n = 1;
    for (; value >= 0x80; value >>= 7)
        n++;
    return n;
}

/* Writes a value without the n_bytes of content that follow: Value { tag; tensor { dims; type;
 * content } }. */
static enum tutti_status put_value_head(struct tensor_writer *w, const struct declared *d, size_t n_bytes,
                                        struct tutti_error *err)
{
    struct buf tag = { 0 }, tensor = { 0 }, head = { 0 };
    const char *type = tensor_type_name(w->format, d->dtype);
    bool ok = put_bytes(&tag, 1, d->name, strlen(d->name));
    for (int i = 0; i < d->n_dims; i++)
        ok = ok && put_varint(&tensor, 1 << 3 | 0) && put_varint(&tensor, (uint64_t)d->shape[i]);
    ok = ok && put_bytes(&tensor, 2, type, strlen(type)) && put_varint(&tensor, 3 << 3 | 2) &&
         put_varint(&tensor, n_bytes);
    size_t n_tensor = tensor.n_bytes + n_bytes;
    ok = ok && put_varint(&head, 1 << 3 | 2) &&
         put_varint(&head, tag.n_bytes + 1 + varint_bytes(n_tensor) + n_tensor) &&
         buf_add(&head, tag.bytes, tag.n_bytes) && put_varint(&head, 2 << 3 | 2) &&
         put_varint(&head, n_tensor) && buf_add(&head, tensor.bytes, tensor.n_bytes);
    enum tutti_status st = ok ? w->sink(w->user, head.bytes, head.n_bytes, err)
                              : error_out_of_memory(w->name, err);
    buf_clear(&tag);
    buf_clear(&tensor);
    buf_clear(&head);
    return st;
}

/* ---- both ---- */

/* Writes the headers of empty tensors, up to the next one with data. */
static enum tutti_status skip_empty(struct tensor_writer *w, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (; st == TUTTI_OK && w->at < w->n_tensors && w->n_put == w->tensors[w->at].n_bytes; w->at++) {
        if (w->format == TENSOR_FORMAT_MINDSPORE && w->tensors[w->at].n_bytes == 0)
            st = put_value_head(w, &w->tensors[w->at], 0, err);
        w->n_put = 0;
    }
    return st;
}

static enum tutti_status writer_begin(struct tensor_writer *w, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (w->has_begun)
        return st;
    w->has_begun = true;
    if (w->format == TENSOR_FORMAT_SAFETENSORS)
        st = put_header(w, err);
    return st == TUTTI_OK ? skip_empty(w, err) : st;
}

enum tutti_status tensor_writer_data(struct tensor_writer *w, const void *bytes, size_t n_bytes,
                                     struct tutti_error *err)
{
    const uint8_t *next = bytes;
    enum tutti_status st = writer_begin(w, err);
    if (st == TUTTI_OK && n_bytes > 0 &&
        (w->at == w->n_tensors || n_bytes > w->tensors[w->at].n_bytes - w->n_put))
        return error_set(err, TUTTI_E_INTERNAL, "%s: more data than its tensors hold", w->name);
    while (st == TUTTI_OK && n_bytes > 0) {
        const struct declared *d = &w->tensors[w->at];
        size_t n = n_bytes;
        if (w->format == TENSOR_FORMAT_MINDSPORE) {
            size_t in_slice = w->n_put % SLICE_BYTES, left = d->n_bytes - (w->n_put - in_slice);
            size_t slice = left < SLICE_BYTES ? left : SLICE_BYTES;
            if (in_slice == 0)
                st = put_value_head(w, d, slice, err);
            n = n < slice - in_slice ? n : slice - in_slice;
        }
        if (st == TUTTI_OK)
            st = w->sink(w->user, next, n, err);
        next += n;
        n_bytes -= n;
        w->n_put += n;
    }
    return st == TUTTI_OK ? skip_empty(w, err) : st;
}

enum tutti_status tensor_writer_finish(struct tensor_writer *w, struct tutti_error *err)
{
    enum tutti_status st = writer_begin(w, err);
    if (st == TUTTI_OK && w->at < w->n_tensors)
        st = error_set(err, TUTTI_E_INTERNAL, "%s: tensor %s: %zu of %zu bytes came", w->name,
                       w->tensors[w->at].name, w->n_put, w->tensors[w->at].n_bytes);
    return st;
}
