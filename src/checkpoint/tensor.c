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

/* Copies the used rows of the matrix, or elements of the vector, one by one. */
static bool slice_copy_rows(const struct tensor_slice *slice, const struct tensor_view *view, uint8_t *to)
{
    const struct slice_rows *rows = &slice->rows;
    int64_t n_columns = slice->whole->n_dims > 2 ? slice->whole->shape[2] : 1;
    struct tensor_part part = {
        .row = rows->index, .n_rows = 1, .column = rows->first * n_columns, .n_columns = n_columns
    };
    bool ok = true;
    for (int64_t r = 0; r < slice->tensor.shape[0] && ok; r++) {
        ok = tensor_view_copy(view, &part, to);
        part.column += rows->step * n_columns;
        to += tensor_columns_bytes(slice->whole, n_columns);
    }
    return ok;
}

static bool slice_transpose(const struct tensor_slice *slice, const struct tensor_view *view, uint8_t *to)
{
    enum { SQUARE = 32 }; /* in elements: the rows that are read and written stay in the L1 cache */
    const struct tensor *t = &slice->tensor;
    int64_t n_rows = t->shape[0], n_columns = t->shape[1], n_stored = slice->whole->shape[2];
    int64_t step = slice->rows.step > 0 ? slice->rows.step : 1;
    size_t size = (size_t)dtype_block_bytes(t->dtype);
    const struct tensor_part part = { .row = slice->rows.index, .n_rows = 1, .n_columns = view->n_columns };
    uint8_t *from = malloc((size_t)view->n_columns * size);
    bool ok = from && tensor_view_copy(view, &part, from);
    for (int64_t r0 = 0; ok && r0 < n_rows; r0 += SQUARE) {
        for (int64_t c = 0; c < n_columns; c++) {
            const uint8_t *row = from + (size_t)(c * n_stored + slice->rows.first) * size;
            for (int64_t r = r0; r < n_rows && r < r0 + SQUARE; r++)
                memcpy(to + (size_t)(r * n_columns + c) * size, row + (size_t)(r * step) * size, size);
        }
    }
    free(from);
    return ok;
}

static bool make_slice(const struct tensor *tensor, void *bytes)
{
    const struct tensor_slice *slice = (const struct tensor_slice *)tensor;
    struct tensor_view view;
    bool ok = tensor_view_init(&view, slice->whole);
    struct tensor_part part = { .n_rows = view.n_rows, .n_columns = view.n_columns };
    if (slice->whole->n_dims > 1) {
        part.row = slice->rows.index;
        part.n_rows = 1;
    }
    if (ok && slice->rows.is_transposed)
        ok = slice_transpose(slice, &view, bytes);
    else if (ok && slice->rows.step > 0)
        ok = slice_copy_rows(slice, &view, bytes);
    else
        ok = ok && tensor_view_copy(&view, &part, bytes);
    tensor_view_clear(&view);
    return ok;
}

bool tensor_slice_is_run(const struct tensor_slice *slice)
{
    return slice->rows.step == 0 && !slice->rows.is_transposed;
}

void tensor_slice_init(struct tensor_slice *slice, const struct tensor *whole, const struct slice_rows *rows)
{
    struct tensor *t = &slice->tensor;
    bool is_transposed = rows->is_transposed, is_vector = whole->n_dims == 1;
    assert(is_vector ? rows->index == 0 && rows->step == 0
                     : whole->n_dims <= 3 && rows->index >= 0 && rows->index < whole->shape[0]);
    assert(!is_transposed || (whole->n_dims == 3 && dtype_block_elems(whole->dtype) == 1));
    slice->whole = whole;
    slice->rows = *rows;
    slice->source = (struct tensor_source){ .make = make_slice, .from = &slice->whole, .n_from = 1 };
    *t = *whole;
    t->n_dims = is_vector ? 2 : whole->n_dims - 1;
    t->shape[0] = is_vector ? 1 : whole->shape[is_transposed ? 2 : 1];
    t->shape[1] = is_vector ? whole->shape[0] : whole->shape[is_transposed ? 1 : 2];
    if (rows->step > 0)
        t->shape[0] = (t->shape[0] - rows->first + rows->step - 1) / rows->step;
    t->n_bytes = tensor_columns_bytes(t, t->n_dims == 1 ? t->shape[0] : t->shape[0] * t->shape[1]);
    if (!whole->source && tensor_slice_is_run(slice)) {
        t->data = (const uint8_t *)whole->data + (size_t)rows->index * t->n_bytes;
        return;
    }
    t->data = NULL;
    t->map = NULL;
    t->source = &slice->source;
}

void tensor_slice_copy(struct tensor_slice *to, const struct tensor_slice *from)
{
    tensor_slice_init(to, from->whole, &from->rows);
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
