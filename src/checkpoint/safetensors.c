#include "checkpoint/safetensors.h"

#include "base/bytes.h"
#include "base/files/mapping.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100000000 }; /* the format's own limit */

struct safetensors {
    struct tensor_set set;
    json_t *header; /* holds the tensors' names */
};

static const char *const KNOWN_BUT_NOT_RUN[] = { "F8_E5M2", "F4", "F6_E2M3", "F6_E3M2", "C64" };

static enum tutti_status read_dtype(const struct safetensors *file, const char *tensor, const json_t *value,
                                    enum dtype *out, struct tutti_error *err)
{
    const char *text = json_string_value(value);
    if (!text)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: dtype is missing or no string", file->set.name,
                         tensor);
    if (tensor_type_find(TENSOR_FORMAT_SAFETENSORS, text, strlen(text), out))
        return TUTTI_OK;
    for (size_t i = 0; i < sizeof KNOWN_BUT_NOT_RUN / sizeof *KNOWN_BUT_NOT_RUN; i++) {
        if (strcmp(text, KNOWN_BUT_NOT_RUN[i]) == 0)
            return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported",
                             file->set.name, tensor, text);
    }
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: unknown dtype \"%.32s\"", file->set.name, tensor,
                     text);
}

static enum tutti_status read_shape(const struct safetensors *file, const json_t *value, struct tensor *t,
                                    int64_t *n_elems, struct tutti_error *err)
{
    if (!json_is_array(value))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: shape is missing or no array", file->set.name,
                         t->name);
    size_t n_dims = json_array_size(value);
    if (n_dims > LIMIT_TENSOR_DIMS)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: %zu dimensions, expected at most %d",
                         file->set.name, t->name, n_dims, LIMIT_TENSOR_DIMS);
    t->n_dims = (int)n_dims;
    *n_elems = 1;
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *dim = json_array_get(value, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: shape[%zu] is no number of elements",
                             file->set.name, t->name, i);
        t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(*n_elems, t->shape[i], n_elems))
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows",
                             file->set.name, t->name);
    }
    return TUTTI_OK;
}

static enum tutti_status read_header_entry(struct safetensors *file, const char *name, const json_t *entry,
                                           const uint8_t *data, size_t data_bytes, struct tutti_error *err)
{
    struct tensor *t = &file->set.tensors[file->set.n];
    *t = (struct tensor){ .name = name, .file = file->set.name, .map = &file->set.map };
    if (strlen(name) > LIMIT_TENSOR_NAME_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: a tensor's name has %zu bytes, expected at most %d",
                         file->set.name, strlen(name), LIMIT_TENSOR_NAME_BYTES);
    if (!json_is_object(entry))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its header entry is no object", file->set.name,
                         name);
    int64_t n_elems = 0;
    enum tutti_status st = read_dtype(file, name, json_object_get(entry, "dtype"), &t->dtype, err);
    if (st == TUTTI_OK)
        st = read_shape(file, json_object_get(entry, "shape"), t, &n_elems, err);
    if (st != TUTTI_OK)
        return st;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin_value = json_array_get(offsets, 0), *end_value = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin_value) || !json_is_integer(end_value))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: data_offsets is not [begin, end]",
                         file->set.name, name);
    int64_t begin = json_integer_value(begin_value), end = json_integer_value(end_value);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return error_set(
            err, TUTTI_E_FORMAT,
            "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64
            "] do not lie within %zu bytes of data; if the file is incomplete, download it again",
            file->set.name, name, begin, end, data_bytes);
    size_t want;
    if (!dtype_bytes(t->dtype, n_elems, &want) || want != (size_t)(end - begin))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: %" PRId64 " bytes of data, but its shape holds %" PRId64
                         " elements of %s",
                         file->set.name, name, end - begin, n_elems, dtype_name(t->dtype));
    t->data = data + begin;
    t->n_bytes = want;
    file->set.n++;
    return TUTTI_OK;
}

static int by_data(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

/* Sorted by offset, each tensor must begin where the previous one ends, and the last must end
 * with the file. */
static enum tutti_status check_cover(const struct safetensors *file, const uint8_t *data, size_t data_bytes,
                                     struct tutti_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < file->set.n; i++) {
        const struct tensor *t = &file->set.tensors[i];
        size_t begin = (size_t)((const uint8_t *)t->data - data);
        if (begin != at)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its data begin at %zu, expected %zu (%s)",
                             file->set.name, t->name, begin, at,
                             begin < at ? "they overlap another tensor's" : "a hole lies before");
        at += t->n_bytes;
    }
    if (at != data_bytes)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu bytes of data, but its tensors hold %zu",
                         file->set.name, data_bytes, at);
    return TUTTI_OK;
}

static enum tutti_status safetensors_read(struct tensor_set **set, struct tutti_error *err)
{
    struct safetensors *file = (struct safetensors *)*set;
    size_t n_bytes = file->set.map.n_bytes;
    if (n_bytes < 8)
        return error_set(err, TUTTI_E_FORMAT, "%s: file of %zu bytes, expected at least 8", file->set.name,
                         n_bytes);
    uint64_t header_bytes = bytes_load_le(file->set.map.bytes, 8);
    if (header_bytes > n_bytes - 8) /* 8 + header_bytes could wrap */
        return error_set(err, TUTTI_E_FORMAT, "%s: file of %zu bytes, expected 8 and a header of %" PRIu64,
                         file->set.name, n_bytes, header_bytes);
    if (header_bytes > MAX_HEADER_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: header of %" PRIu64 " bytes, expected at most %d",
                         file->set.name, header_bytes, MAX_HEADER_BYTES);
    const char *text = (const char *)file->set.map.bytes + 8;
    if (header_bytes == 0 || text[0] != '{')
        return error_set(err, TUTTI_E_FORMAT, "%s: the header does not begin with '{'", file->set.name);
    json_error_t json_err;
    file->header = json_loadb(text, (size_t)header_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &json_err);
    if (!file->header && json_err.text[0] == '\0') /* jansson sets a text for all other errors */
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file->set.name);
    if (!json_is_object(file->header))
        return error_set(err, TUTTI_E_FORMAT, "%s: header: %s at byte %d", file->set.name, json_err.text,
                         json_err.position);
    size_t n = json_object_size(file->header);
    if (n > LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, expected at most %d", file->set.name, n,
                         LIMIT_TENSORS);
    file->set.tensors = calloc(n ? n : 1, sizeof *file->set.tensors);
    if (!file->set.tensors)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file->set.name);
    const uint8_t *data = file->set.map.bytes + 8 + header_bytes;
    size_t data_bytes = n_bytes - 8 - (size_t)header_bytes;
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        enum tutti_status st = read_header_entry(file, name, entry, data, data_bytes, err);
        if (st != TUTTI_OK)
            return st;
    }
    qsort(file->set.tensors, file->set.n, sizeof *file->set.tensors, by_data);
    return check_cover(file, data, data_bytes, err);
}

static void safetensors_clear(struct tensor_set *set)
{
    json_decref(((struct safetensors *)set)->header);
}

const json_t *safetensors_metadata(const struct tensor_set *set)
{
    const struct safetensors *file = (const struct safetensors *)set;
    return set->format == &SAFETENSORS_FORMAT ? json_object_get(file->header, "__metadata__") : NULL;
}

/* The length of the header, below 2^56, and its first byte. */
static bool safetensors_is(const void *bytes, size_t n_bytes)
{
    const uint8_t *b = bytes;
    return n_bytes >= 9 && b[8] == '{' && b[7] == 0;
}

static const char *const ENDINGS[] = { ".safetensors", NULL };

const struct checkpoint_format SAFETENSORS_FORMAT = {
    .name = "safetensors",
    .endings = ENDINGS,
    .is = safetensors_is,
    .set_bytes = sizeof(struct safetensors),
    .read = safetensors_read,
    .clear = safetensors_clear,
    .file = "model.safetensors",
    .index = "model.safetensors.index.json",
};
