#include "checkpoint/tensor.h"

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

int tensors_by_name(const void *a, const void *b)
{
    return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

enum tutti_status tensors_check_names(const struct tensor *tensors, size_t n, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (n < 2)
        return st;
    const struct tensor **sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", tensors->file);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, n, sizeof *sorted, tensors_by_name);
    for (size_t i = 1; i < n && st == TUTTI_OK; i++) {
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            st = error_set(err, TUTTI_E_FORMAT, "%s: duplicate tensor %s", sorted[i]->file, sorted[i]->name);
    }
    free((void *)sorted);
    return st;
}
