#include "checkpoint/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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
