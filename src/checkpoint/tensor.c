#include "checkpoint/tensor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const void *tensor_bytes(const struct tensor *tensor, void **owned)
{
    *owned = NULL;
    if (!tensor->source)
        return tensor->data;
    void *bytes = malloc(tensor->n_bytes ? tensor->n_bytes : 1);
    if (bytes && !tensor->source->make(tensor, bytes)) {
        free(bytes);
        bytes = NULL;
    }
    *owned = bytes;
    return bytes;
}

/* ---- parts ---- */

static int64_t count_rows(const struct tensor *t)
{
    return t->n_dims > 0 ? t->shape[0] : 1;
}

static int64_t count_columns(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

size_t tensor_columns_bytes(const struct tensor *tensor, int64_t n_columns)
{
    return (size_t)(n_columns / dtype_block_elems(tensor->dtype)) * (size_t)dtype_block_bytes(tensor->dtype);
}

bool tensor_view_init(struct tensor_view *view, const struct tensor *tensor)
{
    *view = (struct tensor_view){ .tensor = tensor,
                                  .n_rows = count_rows(tensor),
                                  .n_columns = count_columns(tensor) };
    if (tensor->source && tensor->source->make_part)
        return true;
    view->bytes = tensor_bytes(tensor, &view->owned);
    return view->bytes || tensor->n_bytes == 0;
}

void tensor_view_clear(struct tensor_view *view)
{
    free(view->owned);
    *view = (struct tensor_view){ 0 };
}

bool tensor_view_copy(const struct tensor_view *view, const struct tensor_part *part, void *bytes)
{
    const struct tensor *t = view->tensor;
    if (part->n_rows == 0 || part->n_columns == 0)
        return true;
    if (!view->bytes)
        return t->source->make_part(t, part, bytes);
    size_t stride = tensor_columns_bytes(t, view->n_columns), n = tensor_columns_bytes(t, part->n_columns);
    const uint8_t *from = (const uint8_t *)view->bytes + (size_t)part->row * stride +
                          tensor_columns_bytes(t, part->column);
    uint8_t *to = bytes;
    if (n == stride) {
        memcpy(to, from, n * (size_t)part->n_rows);
        return true;
    }
    for (int64_t r = 0; r < part->n_rows; r++, from += stride, to += n)
        memcpy(to, from, n);
    return true;
}

static bool make_slice(const struct tensor *tensor, void *bytes)
{
    const struct tensor_slice *slice = (const struct tensor_slice *)tensor;
    struct tensor_view view;
    bool ok = tensor_view_init(&view, slice->whole);
    struct tensor_part part = { .n_rows = view.n_rows, .n_columns = view.n_columns };
    if (slice->whole->n_dims > 1) {
        part.row = slice->index;
        part.n_rows = 1;
    }
    ok = ok && tensor_view_copy(&view, &part, bytes);
    tensor_view_clear(&view);
    return ok;
}

void tensor_slice_init(struct tensor_slice *slice, const struct tensor *whole, int64_t index)
{
    bool is_vector = whole->n_dims == 1;
    size_t n_bytes = is_vector ? whole->n_bytes : whole->n_bytes / (size_t)whole->shape[0];
    assert(is_vector ? index == 0 : whole->n_dims == 3 && index >= 0 && index < whole->shape[0]);
    slice->whole = whole;
    slice->index = index;
    slice->source = (struct tensor_source){ .make = make_slice, .from = &slice->whole, .n_from = 1 };
    slice->tensor = *whole;
    slice->tensor.n_dims = 2;
    slice->tensor.shape[0] = is_vector ? 1 : whole->shape[1];
    slice->tensor.shape[1] = is_vector ? whole->shape[0] : whole->shape[2];
    slice->tensor.n_bytes = n_bytes;
    if (whole->source)
        slice->tensor.source = &slice->source;
    else
        slice->tensor.data = (const uint8_t *)whole->data + (size_t)index * n_bytes;
}

void tensor_forget(const struct tensor *tensor)
{
    if (tensor->map && tensor->data)
        mapping_forget(tensor->map, tensor->data, tensor->n_bytes);
    for (size_t i = 0; tensor->source && i < tensor->source->n_from; i++)
        tensor_forget(tensor->source->from[i]);
}

bool tensor_measure(struct tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(n, tensor->shape[i], &n))
            return false;
    }
    return dtype_bytes(tensor->dtype, n, &tensor->n_bytes);
}

void tensor_shape_text(char *text, size_t size, const int64_t *shape, int n_dims)
{
    size_t n = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < n_dims && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < size)
        snprintf(text + n, size - n, "]");
}

static const char *const TYPE_NAMES[DTYPE_COUNT][N_TENSOR_FORMATS] = {
    [DTYPE_F32] = { "F32", "Float32" },    [DTYPE_F16] = { "F16", "Float16" },
    [DTYPE_BF16] = { "BF16", "BFloat16" }, [DTYPE_F64] = { "F64", "Float64" },
    [DTYPE_I8] = { "I8", "Int8" },         [DTYPE_I16] = { "I16", "Int16" },
    [DTYPE_I32] = { "I32", "Int32" },      [DTYPE_I64] = { "I64", "Int64" },
    [DTYPE_U8] = { "U8", "UInt8" },        [DTYPE_U16] = { "U16", "UInt16" },
    [DTYPE_U32] = { "U32", "UInt32" },     [DTYPE_U64] = { "U64", "UInt64" },
    [DTYPE_BOOL] = { "BOOL", "Bool" },     [DTYPE_F8_E4M3] = { "F8_E4M3" },
    [DTYPE_F8_E8M0] = { "F8_E8M0" },
};

const char *tensor_type_name(enum tensor_format format, enum dtype dtype)
{
    return TYPE_NAMES[dtype][format];
}

bool tensor_type_find(enum tensor_format format, const char *name, size_t n_bytes, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const char *known = TYPE_NAMES[i][format];
        if (known && strlen(known) == n_bytes && memcmp(known, name, n_bytes) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

const struct tensor **tensors_sorted(const struct tensor *tensors, size_t n)
{
    const struct tensor **sorted = malloc((n + 1) * sizeof *sorted);
    for (size_t i = 0; sorted && i < n; i++)
        sorted[i] = &tensors[i];
    if (sorted)
        qsort((void *)sorted, n, sizeof *sorted, by_name);
    return sorted;
}

const struct tensor *tensors_find(const struct tensor *const *sorted, size_t n, const char *name)
{
    const struct tensor key = { .name = name }, *like = &key;
    const struct tensor *const *found = bsearch(&like, (const void *)sorted, n, sizeof *sorted, by_name);
    return found ? *found : NULL;
}

enum tutti_status tensors_check_names(const struct tensor *tensors, size_t n, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    const struct tensor **sorted = tensors_sorted(tensors, n);
    if (!sorted)
        return error_set(err, TUTTI_E_MEMORY, "the names of %zu tensors: out of memory", n);
    for (size_t i = 1; i < n && st == TUTTI_OK; i++) {
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            st = error_set(err, TUTTI_E_FORMAT, "%s: duplicate tensor %s", sorted[i]->file, sorted[i]->name);
    }
    free((void *)sorted);
    return st;
}
