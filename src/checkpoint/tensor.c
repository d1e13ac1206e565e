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

static int by_name(const void *a, const void *b)
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
    qsort(sorted, n, sizeof *sorted, by_name);
    for (size_t i = 1; i < n && st == TUTTI_OK; i++) {
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: it stands there twice", sorted[i]->file,
                           sorted[i]->name);
    }
    free((void *)sorted);
    return st;
}
