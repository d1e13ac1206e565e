/* Reads GGUF. Counts and lengths are checked against the rest of the file before allocating. */
#include "checkpoint/gguf/gguf.h"

#include "base/bytes.h"
#include "base/files/mapping.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20,
    MAX_KEY_BYTES = 65535,
    MAX_TENSOR_NAME = 63, /* ggml's GGML_MAX_NAME less the terminator */
    MIN_KV_BYTES = 8 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8,
};

struct gguf_array {
    char *key;
    enum gguf_type type; /* of the elements */
    size_t n;
    const uint8_t *data;
    uint64_t *offsets; /* strings: [n], of each length field from data */
};

struct gguf {
    struct tensor_set set;
    json_t *scalars;
    struct gguf_array *arrays; /* sorted by key once all are read */
    size_t n_arrays;
    char *tensor_names; /* [n][MAX_TENSOR_NAME + 1], only of this file */
    struct split {
        int no, count;     /* part no of count; count 0 or 1: a whole file */
        int64_t n_tensors; /* of all parts */
    } split;
    struct gguf *
        *parts; /* [n_parts]: the others, whose tensors this first part also lists; NULL: not open yet */
    int n_parts;
};

static const struct {
    const char *name;
    int n_bytes; /* 0: of variable length */
} VALUE_TYPES[] = {
    [GGUF_U8] = { "u8", 1 },       [GGUF_I8] = { "i8", 1 },     [GGUF_U16] = { "u16", 2 },
    [GGUF_I16] = { "i16", 2 },     [GGUF_U32] = { "u32", 4 },   [GGUF_I32] = { "i32", 4 },
    [GGUF_F32] = { "f32", 4 },     [GGUF_BOOL] = { "bool", 1 }, [GGUF_STRING] = { "string", 0 },
    [GGUF_ARRAY] = { "array", 0 }, [GGUF_U64] = { "u64", 8 },   [GGUF_I64] = { "i64", 8 },
    [GGUF_F64] = { "f64", 8 },
};
enum { N_VALUE_TYPES = sizeof VALUE_TYPES / sizeof *VALUE_TYPES };

/* ggml's type numbers. dtype -1: part of the format, not supported by tutti. */
static const struct {
    const char *name;
    int dtype;
} TENSOR_TYPES[] = {
    [0] = { "F32", DTYPE_F32 },
    [1] = { "F16", DTYPE_F16 },
    [2] = { "Q4_0", DTYPE_Q4_0 },
    [3] = { "Q4_1", DTYPE_Q4_1 },
    [4] = { "Q4_2", -1 },
    [5] = { "Q4_3", -1 },
    [6] = { "Q5_0", DTYPE_Q5_0 },
    [7] = { "Q5_1", DTYPE_Q5_1 },
    [8] = { "Q8_0", DTYPE_Q8_0 },
    [9] = { "Q8_1", -1 },
    [10] = { "Q2_K", DTYPE_Q2_K },
    [11] = { "Q3_K", DTYPE_Q3_K },
    [12] = { "Q4_K", DTYPE_Q4_K },
    [13] = { "Q5_K", DTYPE_Q5_K },
    [14] = { "Q6_K", DTYPE_Q6_K },
    [15] = { "Q8_K", -1 },
    [16] = { "IQ2_XXS", DTYPE_IQ2_XXS },
    [17] = { "IQ2_XS", DTYPE_IQ2_XS },
    [18] = { "IQ3_XXS", DTYPE_IQ3_XXS },
    [19] = { "IQ1_S", DTYPE_IQ1_S },
    [20] = { "IQ4_NL", DTYPE_IQ4_NL },
    [21] = { "IQ3_S", DTYPE_IQ3_S },
    [22] = { "IQ2_S", DTYPE_IQ2_S },
    [23] = { "IQ4_XS", DTYPE_IQ4_XS },
    [24] = { "I8", DTYPE_I8 },
    [25] = { "I16", DTYPE_I16 },
    [26] = { "I32", DTYPE_I32 },
    [27] = { "I64", DTYPE_I64 },
    [28] = { "F64", DTYPE_F64 },
    [29] = { "IQ1_M", DTYPE_IQ1_M },
    [30] = { "BF16", DTYPE_BF16 },
    [31] = { "Q4_0_4_4", -1 },
    [32] = { "Q4_0_4_8", -1 },
    [33] = { "Q4_0_8_8", -1 },
    [34] = { "TQ1_0", -1 },
    [35] = { "TQ2_0", -1 },
    [36] = { "IQ4_NL_4_4", -1 },
    [37] = { "IQ4_NL_4_8", -1 },
    [38] = { "IQ4_NL_8_8", -1 },
    [39] = { "MXFP4", DTYPE_MXFP4 },
    [40] = { "NVFP4", -1 },
    [41] = { "Q1_0", -1 },
    [42] = { "Q2_0", -1 },
};
enum { N_TENSOR_TYPES = sizeof TENSOR_TYPES / sizeof *TENSOR_TYPES };

/* ---- a cursor over the file; the first short read sticks ---- */

struct cursor {
    const uint8_t *at, *end;
    bool is_short;
};

static const uint8_t *cursor_take(struct cursor *c, uint64_t n_bytes)
{
    if (c->is_short || n_bytes > (uint64_t)(c->end - c->at)) {
        c->is_short = true;
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += n_bytes;
    return p;
}

static uint64_t take_int(struct cursor *c, int n_bytes)
{
    const uint8_t *p = cursor_take(c, (uint64_t)n_bytes);
    return p ? bytes_load_le(p, n_bytes) : 0;
}

static const char *take_string(struct cursor *c, uint64_t *n_bytes)
{
    *n_bytes = take_int(c, 8);
    return (const char *)cursor_take(c, *n_bytes);
}

/* ---- metadata ---- */

static int64_t int_value(const uint8_t *p, enum gguf_type type)
{
    int n = VALUE_TYPES[type].n_bytes;
    uint64_t v = bytes_load_le(p, n);
    switch (type) {
    case GGUF_I8:
        return (int8_t)v;
    case GGUF_I16:
        return (int16_t)v;
    case GGUF_I32:
        return (int32_t)v;
    case GGUF_F32:
    case GGUF_F64:
        return 0;
    default:
        return (int64_t)v;
    }
}

static double float_value(const uint8_t *p, enum gguf_type type)
{
    if (type == GGUF_F32) {
        float f;
        uint32_t u = (uint32_t)bytes_load_le(p, 4);
        memcpy(&f, &u, sizeof f);
        return (double)f;
    }
    if (type == GGUF_F64) {
        double d;
        uint64_t u = bytes_load_le(p, 8);
        memcpy(&d, &u, sizeof d);
        return d;
    }
    return type == GGUF_U64 ? (double)(uint64_t)int_value(p, type) : (double)int_value(p, type);
}

static enum tutti_status ends_early(const struct gguf *file, const char *where, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_FORMAT, "%s: the file of %zu bytes ends inside %s", file->set.name,
                     file->set.map.n_bytes, where);
}

static enum tutti_status read_scalar(struct gguf *file, struct cursor *c, const char *key,
                                     enum gguf_type type, struct tutti_error *err)
{
    json_t *value = NULL;
    if (type == GGUF_STRING) {
        uint64_t n;
        const char *text = take_string(c, &n);
        /* Invalid UTF-8 is kept: jansson's unchecked form keeps the bytes. */
        value = text ? json_stringn_nocheck(text, n) : NULL;
    } else {
        const uint8_t *p = cursor_take(c, (uint64_t)VALUE_TYPES[type].n_bytes);
        if (!p)
            value = NULL;
        else if (type == GGUF_BOOL)
            value = json_boolean(*p != 0);
        else if (type == GGUF_F32 || type == GGUF_F64) {
            double x = float_value(p, type);
            if (x != x || x - x != 0)
                return error_set(err, TUTTI_E_FORMAT, "%s: key %s: not a finite number", file->set.name, key);
            value = json_real(x);
        } else if (type == GGUF_U64 && int_value(p, type) < 0)
            return error_set(err, TUTTI_E_FORMAT, "%s: key %s: %" PRIu64 " is too large", file->set.name, key,
                             (uint64_t)int_value(p, type));
        else
            value = json_integer(int_value(p, type));
    }
    if (c->is_short)
        return ends_early(file, key, err);
    if (!value || json_object_set_new_nocheck(file->scalars, key, value) != 0)
        return error_out_of_memory(file->set.name, err);
    return TUTTI_OK;
}

static enum tutti_status read_array(struct gguf *file, struct cursor *c, const char *key,
                                    struct tutti_error *err)
{
    uint64_t type = take_int(c, 4), n = take_int(c, 8);
    if (c->is_short)
        return ends_early(file, key, err);
    if (type >= N_VALUE_TYPES || type == GGUF_ARRAY)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: key %s: array of element type %" PRIu64 ", expected 0 to 12 but 9",
                         file->set.name, key, type);
    uint64_t smallest = type == GGUF_STRING ? 8 : (uint64_t)VALUE_TYPES[type].n_bytes;
    if (n > (uint64_t)(c->end - c->at) / smallest)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: key %s: array of %" PRIu64 " elements, but %td bytes are left", file->set.name,
                         key, n, c->end - c->at);
    struct gguf_array *array = &file->arrays[file->n_arrays];
    *array = (struct gguf_array){
        .key = strdup(key), .type = (enum gguf_type)type, .n = (size_t)n, .data = c->at
    };
    if (!array->key)
        return error_out_of_memory(file->set.name, err);
    file->n_arrays++;
    if (type != GGUF_STRING) {
        cursor_take(c, n * smallest);
        return TUTTI_OK;
    }
    array->offsets = malloc((size_t)(n ? n : 1) * sizeof *array->offsets);
    if (!array->offsets)
        return error_out_of_memory(file->set.name, err);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t n_bytes;
        array->offsets[i] = (uint64_t)(c->at - array->data);
        if (!take_string(c, &n_bytes))
            return ends_early(file, key, err);
    }
    return TUTTI_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct gguf_array *)a)->key, ((const struct gguf_array *)b)->key);
}

static enum tutti_status read_metadata(struct gguf *file, struct cursor *c, uint64_t n_kv,
                                       struct tutti_error *err)
{
    file->scalars = json_object();
    file->arrays = calloc((size_t)n_kv + 1, sizeof *file->arrays);
    if (!file->scalars || !file->arrays)
        return error_out_of_memory(file->set.name, err);
    for (uint64_t i = 0; i < n_kv; i++) {
        uint64_t n_bytes;
        const char *bytes = take_string(c, &n_bytes);
        uint64_t type = take_int(c, 4);
        if (c->is_short)
            return ends_early(file, "the metadata", err);
        if (n_bytes == 0 || n_bytes > MAX_KEY_BYTES || !utf8_is_printable(bytes, (size_t)n_bytes))
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: metadata entry %" PRIu64 ": a key of %" PRIu64
                             " bytes, expected 1 to %d of printable UTF-8",
                             file->set.name, i, n_bytes, MAX_KEY_BYTES);
        char *key = strndup(bytes, (size_t)n_bytes);
        if (!key)
            return error_out_of_memory(file->set.name, err);
        enum tutti_status st;
        if (json_object_get(file->scalars, key))
            st = error_set(err, TUTTI_E_FORMAT, "%s: duplicate key %s", file->set.name, key);
        else if (type >= N_VALUE_TYPES)
            st = error_set(err, TUTTI_E_FORMAT, "%s: key %s: value type %" PRIu64 ", expected 0 to 12",
                           file->set.name, key, type);
        else if (type == GGUF_ARRAY)
            st = read_array(file, c, key, err);
        else
            st = read_scalar(file, c, key, (enum gguf_type)type, err);
        free(key);
        if (st != TUTTI_OK)
            return st;
    }
    qsort(file->arrays, file->n_arrays, sizeof *file->arrays, by_key);
    for (size_t i = 0; i < file->n_arrays; i++) {
        const char *key = file->arrays[i].key;
        if (json_object_get(file->scalars, key) || (i > 0 && strcmp(key, file->arrays[i - 1].key) == 0))
            return error_set(err, TUTTI_E_FORMAT, "%s: duplicate key %s", file->set.name, key);
    }
    return TUTTI_OK;
}

/* ---- tensors ---- */

static enum tutti_status read_shape(const struct gguf *file, struct cursor *c, struct tensor *t,
                                    int64_t *n_elems, struct tutti_error *err)
{
    uint64_t n_dims = take_int(c, 4);
    if (c->is_short)
        return ends_early(file, "the list of tensors", err);
    if (n_dims < 1 || n_dims > GGUF_TENSOR_DIMS)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %" PRIu64 " dimensions, expected 1 to %d",
                         file->set.name, t->name, n_dims, GGUF_TENSOR_DIMS);
    t->n_dims = (int)n_dims;
    *n_elems = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        t->shape[i] = (int64_t)take_int(c, 8);
        if (c->is_short)
            return ends_early(file, "the list of tensors", err);
        if (t->shape[i] < 0)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tensor %s: dimension %d of %" PRId64 " is out of range", file->set.name,
                             t->name, i, t->shape[i]);
        if (__builtin_mul_overflow(*n_elems, t->shape[i], n_elems))
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows",
                             file->set.name, t->name);
    }
    return TUTTI_OK;
}

/* Fills all but data; *offset: from the start of the data. */
static enum tutti_status read_gguf_tensor(struct gguf *file, struct cursor *c, char *name, uint64_t *offset,
                                          struct tutti_error *err)
{
    struct tensor *t = &file->set.tensors[file->set.n];
    uint64_t n_bytes;
    const char *bytes = take_string(c, &n_bytes);
    if (c->is_short)
        return ends_early(file, "the list of tensors", err);
    if (n_bytes == 0 || n_bytes > MAX_TENSOR_NAME || !utf8_is_printable(bytes, (size_t)n_bytes))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %zu: a name of %" PRIu64 " bytes, expected 1 to %d of printable UTF-8",
                         file->set.name, file->set.n, n_bytes, MAX_TENSOR_NAME);
    memcpy(name, bytes, (size_t)n_bytes);
    name[n_bytes] = '\0';
    *t = (struct tensor){ .name = name, .file = file->set.name, .map = &file->set.map };
    int64_t n_elems = 0;
    enum tutti_status st = read_shape(file, c, t, &n_elems, err);
    if (st != TUTTI_OK)
        return st;
    uint64_t type = take_int(c, 4);
    *offset = take_int(c, 8);
    if (c->is_short)
        return ends_early(file, "the list of tensors", err);
    if (type >= N_TENSOR_TYPES || !TENSOR_TYPES[type].name)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: unknown type %" PRIu64, file->set.name, name,
                         type);
    if (TENSOR_TYPES[type].dtype < 0)
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: tensor %s: type %s is not supported, expected a file of another type, such as Q4_0 or Q8_0",
            file->set.name, name, TENSOR_TYPES[type].name);
    t->dtype = (enum dtype)TENSOR_TYPES[type].dtype;
    if (t->shape[t->n_dims - 1] % dtype_block_elems(t->dtype) != 0 ||
        !dtype_bytes(t->dtype, n_elems, &t->n_bytes))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: rows of %" PRId64 " elements, expected a multiple of %d for type %s",
                         file->set.name, name, t->shape[t->n_dims - 1], dtype_block_elems(t->dtype),
                         TENSOR_TYPES[type].name);
    file->set.n++;
    return TUTTI_OK;
}

static int by_data(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;
    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

/* Gaps between tensors are accepted; overlaps and duplicate names are not. */
static enum tutti_status check_tensors(const struct gguf *file, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    const struct tensor **sorted = malloc((file->set.n + 1) * sizeof *sorted);
    if (!sorted)
        return error_out_of_memory(file->set.name, err);
    for (size_t i = 0; i < file->set.n; i++)
        sorted[i] = &file->set.tensors[i];
    qsort(sorted, file->set.n, sizeof *sorted, by_data);
    for (size_t i = 1; i < file->set.n && st == TUTTI_OK; i++) {
        const struct tensor *a = sorted[i - 1], *b = sorted[i];
        if ((const uint8_t *)a->data + a->n_bytes > (const uint8_t *)b->data)
            st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: its data overlap those of %s", file->set.name,
                           b->name, a->name);
    }
    free((void *)sorted);
    return st == TUTTI_OK ? tensors_check_names(file->set.tensors, file->set.n, err) : st;
}

static enum tutti_status read_alignment(const struct gguf *file, size_t *out, struct tutti_error *err)
{
    *out = DEFAULT_ALIGNMENT;
    const json_t *value = json_object_get(file->scalars, "general.alignment");
    if (!value)
        return TUTTI_OK;
    json_int_t n = json_integer_value(value);
    if (n < 1 || n > MAX_ALIGNMENT || (n & (n - 1)) != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: key general.alignment: expected a power of two up to %d",
                         file->set.name, MAX_ALIGNMENT);
    *out = (size_t)n;
    return TUTTI_OK;
}

static enum tutti_status read_gguf_tensors(struct gguf *file, struct cursor *c, uint64_t n_tensors,
                                           struct tutti_error *err)
{
    size_t alignment;
    enum tutti_status st = read_alignment(file, &alignment, err);
    if (st != TUTTI_OK)
        return st;
    uint64_t *offsets = malloc(((size_t)n_tensors + 1) * sizeof *offsets);
    file->set.tensors = calloc((size_t)n_tensors + 1, sizeof *file->set.tensors);
    file->tensor_names = malloc(((size_t)n_tensors + 1) * (MAX_TENSOR_NAME + 1));
    if (!offsets || !file->set.tensors || !file->tensor_names) {
        st = error_out_of_memory(file->set.name, err);
        goto done;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        st = read_gguf_tensor(file, c, file->tensor_names + i * (MAX_TENSOR_NAME + 1), &offsets[i], err);
        if (st != TUTTI_OK)
            goto done;
    }
    size_t data_at = ((size_t)(c->at - file->set.map.bytes) + alignment - 1) / alignment * alignment;
    size_t data_bytes = data_at <= file->set.map.n_bytes ? file->set.map.n_bytes - data_at : 0;
    for (size_t i = 0; i < n_tensors; i++) {
        struct tensor *t = &file->set.tensors[i];
        if (offsets[i] % alignment != 0) {
            st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: offset %" PRIu64 " is no multiple of %zu",
                           file->set.name, t->name, offsets[i], alignment);
            goto done;
        }
        if (offsets[i] > data_bytes || t->n_bytes > data_bytes - offsets[i]) {
            st = error_set(
                err, TUTTI_E_FORMAT,
                "%s: tensor %s: %zu bytes at offset %" PRIu64
                " do not lie within %zu bytes of data; if the file is incomplete, download it again",
                file->set.name, t->name, t->n_bytes, offsets[i], data_bytes);
            goto done;
        }
        t->data = file->set.map.bytes + data_at + offsets[i];
    }
    st = check_tensors(file, err);
done:
    free(offsets);
    return st;
}

static enum tutti_status read_split(struct gguf *file, struct tutti_error *err)
{
    json_int_t count = json_integer_value(json_object_get(file->scalars, "split.count"));
    json_int_t no = json_integer_value(json_object_get(file->scalars, "split.no"));
    if (count < 0 || count > LIMIT_SHARDS || (count > 0 && (no < 0 || no >= count)))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: split.no %" JSON_INTEGER_FORMAT " of split.count %" JSON_INTEGER_FORMAT
                         ", expected at most %d parts, counted from 0",
                         file->set.name, no, count, LIMIT_SHARDS);
    file->split = (struct split){ .no = (int)no, .count = (int)count };
    file->split.n_tensors = json_integer_value(json_object_get(file->scalars, "split.tensors.count"));
    if (count > 1 && file->set.map.is_borrowed)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: a part of a split file in memory", file->set.name);
    return TUTTI_OK;
}

static bool gguf_is(const void *bytes, size_t n_bytes)
{
    return n_bytes >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

static enum tutti_status gguf_read_file(struct gguf *file, struct tutti_error *err)
{
    struct cursor c = { .at = file->set.map.bytes, .end = file->set.map.bytes + file->set.map.n_bytes };
    const uint8_t *magic = cursor_take(&c, 4);
    if (!magic || !gguf_is(magic, 4))
        return error_set(err, TUTTI_E_FORMAT, "%s: the file does not begin with \"GGUF\"", file->set.name);
    uint64_t version = take_int(&c, 4), n_tensors = take_int(&c, 8), n_kv = take_int(&c, 8);
    if (c.is_short)
        return ends_early(file, "the header", err);
    if (version == 0x03000000 || version == 0x02000000)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: a big-endian file", file->set.name);
    if (version != 2 && version != 3)
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: GGUF version %" PRIu64 ", expected 2 or 3",
                         file->set.name, version);
    uint64_t left = (uint64_t)(c.end - c.at);
    if (n_kv > left / MIN_KV_BYTES || n_tensors > left / MIN_TENSOR_BYTES || n_tensors > LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: %" PRIu64 " metadata entries and %" PRIu64 " tensors do not fit in %" PRIu64
                         " bytes",
                         file->set.name, n_kv, n_tensors, left);
    enum tutti_status st = read_metadata(file, &c, n_kv, err);
    if (st != TUTTI_OK)
        return st;
    st = read_split(file, err);
    if (st != TUTTI_OK)
        return st;
    return read_gguf_tensors(file, &c, n_tensors, err);
}

static void gguf_clear(struct tensor_set *set)
{
    struct gguf *file = (struct gguf *)set;
    for (int i = 0; i < file->n_parts; i++)
        tensor_set_close(file->parts[i] ? &file->parts[i]->set : NULL);
    free(file->parts);
    for (size_t i = 0; i < file->n_arrays; i++) {
        free(file->arrays[i].key);
        free(file->arrays[i].offsets);
    }
    free(file->arrays);
    json_decref(file->scalars);
    free(file->tensor_names);
}

/* ---- files in parts: NAME-00001-of-00003.gguf, ... ---- */

enum { MAX_PATH_END = 32 };

static void part_name(char *end, const struct split *split, int no)
{
    snprintf(end, MAX_PATH_END, "-%05d-of-%05d.gguf", no + 1, split->count);
}

/* Opens part no of first's split. path_begin: the common prefix of the parts' paths. */
static enum tutti_status open_sibling(struct gguf **out, const struct gguf *first, const char *path_begin,
                                      int n_begin, int no, struct tutti_error *err)
{
    char end[MAX_PATH_END], *path = NULL;
    struct tutti_error inner;
    part_name(end, &first->split, no);
    if (asprintf(&path, "%.*s%s", n_begin, path_begin, end) < 0)
        return error_out_of_memory(first->set.name, err);
    struct mapping map;
    enum tutti_status st = mapping_open(&map, path, &inner);
    struct gguf *part = st == TUTTI_OK ? (struct gguf *)tensor_set_new(&GGUF_FORMAT, map, &inner) : NULL;
    if (st == TUTTI_OK)
        st = part ? gguf_read_file(part, &inner) : TUTTI_E_MEMORY;
    if (st == TUTTI_E_NOT_FOUND)
        st = error_set(err, st, "%s: part %d of %d is missing", path, no + 1, first->split.count);
    else if (st != TUTTI_OK)
        st = error_set(err, st, "%s", inner.text);
    else if (part->split.no != no || part->split.count != first->split.count ||
             part->split.n_tensors != first->split.n_tensors)
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: part %d of %d of a model of %" PRId64
                       " tensors, expected part %d of %d of one of %" PRId64 ", as in %s",
                       path, part->split.no + 1, part->split.count, part->split.n_tensors, no + 1,
                       first->split.count, first->split.n_tensors, first->set.name);
    free(path);
    if (st == TUTTI_OK)
        *out = part;
    else if (part)
        tensor_set_close(&part->set);
    return st;
}

/* Gives the first part the tensors of all. */
static enum tutti_status join_tensors(struct gguf *first, struct tutti_error *err)
{
    size_t n = first->set.n;
    for (int i = 0; i < first->n_parts; i++)
        n += first->parts[i]->set.n;
    if ((int64_t)n != first->split.n_tensors || n > LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: all parts together hold %zu tensors, but split.tensors.count is %" PRId64,
                         first->set.name, n, first->split.n_tensors);
    struct tensor *all = realloc(first->set.tensors, (n + 1) * sizeof *all);
    if (!all)
        return error_out_of_memory(first->set.name, err);
    first->set.tensors = all;
    for (int i = 0; i < first->n_parts; i++) {
        const struct gguf *part = first->parts[i];
        if (part->set.n > 0)
            memcpy(all + first->set.n, part->set.tensors, part->set.n * sizeof *all);
        first->set.n += part->set.n;
    }
    return tensors_check_names(all, n, err);
}

/* Opens the other parts of given's split; *set: the first part, with the tensors of all. */
static enum tutti_status open_parts(struct tensor_set **set, struct gguf *given, struct tutti_error *err)
{
    char end[MAX_PATH_END];
    const char *path = given->set.name;
    int count = given->split.count, given_no = given->split.no;
    part_name(end, &given->split, given_no);
    size_t n_end = strlen(end), n_path = strlen(path);
    int n_begin = n_path > n_end ? (int)(n_path - n_end) : 0;
    if (n_path <= n_end || strcmp(path + n_begin, end) != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: it is part %d of %d, so its name must end with %s", path,
                         given_no + 1, count, end);
    struct gguf *first = given, **parts = calloc((size_t)count - 1, sizeof(struct gguf *));
    if (!parts)
        return error_out_of_memory(path, err);
    enum tutti_status st = given_no == 0 ? TUTTI_OK : open_sibling(&first, given, path, n_begin, 0, err);
    if (st != TUTTI_OK) {
        free(parts);
        return st;
    }
    first->parts = parts;
    first->n_parts = count - 1;
    if (given_no > 0)
        parts[given_no - 1] = given;
    *set = &first->set;
    for (int no = 1; no < count && st == TUTTI_OK; no++)
        if (no != given_no)
            st = open_sibling(&parts[no - 1], first, path, n_begin, no, err);
    return st == TUTTI_OK ? join_tensors(first, err) : st;
}

static enum tutti_status gguf_read(struct tensor_set **set, struct tutti_error *err)
{
    struct gguf *file = (struct gguf *)*set;
    enum tutti_status st = gguf_read_file(file, err);
    return st == TUTTI_OK && file->split.count > 1 ? open_parts(set, file, err) : st;
}

static const char *const ENDINGS[] = { ".gguf", NULL };

const struct checkpoint_format GGUF_FORMAT = {
    .name = "GGUF",
    .endings = ENDINGS,
    .is = gguf_is,
    .set_bytes = sizeof(struct gguf),
    .read = gguf_read,
    .clear = gguf_clear,
};

int gguf_type_number(enum dtype dtype)
{
    int number = 0;
    while (TENSOR_TYPES[number].dtype != (int)dtype || !TENSOR_TYPES[number].name)
        number++;
    return number;
}

const struct gguf *gguf_of(const struct tensor_set *set)
{
    return set->format == &GGUF_FORMAT ? (const struct gguf *)set : NULL;
}

const json_t *gguf_scalars(const struct gguf *file)
{
    return file->scalars;
}

size_t gguf_n_arrays(const struct gguf *file)
{
    return file->n_arrays;
}

const char *gguf_array_key(const struct gguf *file, size_t index)
{
    return file->arrays[index].key;
}

const struct gguf_array *gguf_find_array(const struct gguf *file, const char *key)
{
    struct gguf_array want = { .key = (char *)(uintptr_t)key };
    if (file->n_arrays == 0)
        return NULL;
    return bsearch(&want, file->arrays, file->n_arrays, sizeof *file->arrays, by_key);
}

enum gguf_type gguf_array_type(const struct gguf_array *array)
{
    return array->type;
}

size_t gguf_array_n(const struct gguf_array *array)
{
    return array->n;
}

void gguf_array_string(const struct gguf_array *array, size_t index, const char **bytes, size_t *n_bytes)
{
    const uint8_t *p = array->data + array->offsets[index];
    *n_bytes = (size_t)bytes_load_le(p, 8);
    *bytes = (const char *)p + 8;
}

int64_t gguf_array_int(const struct gguf_array *array, size_t index)
{
    const uint8_t *p = array->data + index * (size_t)VALUE_TYPES[array->type].n_bytes;
    if (array->type == GGUF_F32 || array->type == GGUF_F64) {
        double x = float_value(p, array->type);
        return x > -9e18 && x < 9e18 ? (int64_t)x : 0;
    }
    return int_value(p, array->type);
}

double gguf_array_float(const struct gguf_array *array, size_t index)
{
    return float_value(array->data + index * (size_t)VALUE_TYPES[array->type].n_bytes, array->type);
}
