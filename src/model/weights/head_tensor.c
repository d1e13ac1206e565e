#include "model/weights/head_tensor.h"

#include "kernels/quantize/quantize.h"

#include <stdlib.h>
#include <string.h>

static int64_t count_columns(const struct head_tensor *t)
{
    return t->whole->shape[t->whole->n_dims - 1];
}

/* Transposes n rows of plain weights. */
static void transpose_plain(uint8_t *out, const uint8_t *in, int n, int64_t n_columns, size_t size)
{
    for (int64_t c = 0; c < n_columns; c++)
        for (int r = 0; r < n; r++, out += size)
            memcpy(out, in + (size_t)((int64_t)r * n_columns + c) * size, size);
}

/* False: out of memory. */
static bool transpose_quantized(uint8_t *out, enum dtype as, const uint8_t *in, size_t row_bytes,
                                enum dtype dtype, int n, int64_t n_columns)
{
    size_t size = (size_t)dtype_block_bytes(as);
    float *row = malloc((size_t)n_columns * sizeof *row);
    for (int r = 0; row && r < n; r++) {
        dequantize(row, in + (size_t)r * row_bytes, dtype, n_columns);
        for (int64_t c = 0; c < n_columns; c++)
            quantize(out + (size_t)(c * n + r) * size, row + c, as, 1);
    }
    free(row);
    return row != NULL;
}

static bool make(const struct tensor *tensor, void *bytes)
{
    const struct head_tensor *t = (const struct head_tensor *)tensor;
    const struct tensor *whole = t->whole;
    int64_t n_columns = count_columns(t);
    size_t row_bytes = whole->n_bytes / ((size_t)t->n_heads * (size_t)t->n_rows),
           head_bytes = tensor->n_bytes / (size_t)t->n_heads;
    void *owned;
    const uint8_t *in = tensor_bytes(whole, &owned);
    bool ok = in != NULL;
    for (int h = 0; ok && h < t->n_heads; h++) {
        const uint8_t *from = in + ((size_t)h * (size_t)t->n_rows + (size_t)t->first) * row_bytes;
        uint8_t *to = (uint8_t *)bytes + (size_t)h * head_bytes;
        if (!t->is_transposed)
            memcpy(to, from, head_bytes);
        else if (dtype_block_elems(whole->dtype) == 1)
            transpose_plain(to, from, t->n, n_columns, (size_t)dtype_block_bytes(whole->dtype));
        else
            ok = transpose_quantized(to, tensor->dtype, from, row_bytes, whole->dtype, t->n, n_columns);
    }
    free(owned);
    return ok;
}

void head_tensor_init(struct head_tensor *t)
{
    int64_t n_columns = count_columns(t), n_used = (int64_t)t->n_heads * t->n;
    bool is_whole = t->n == t->n_rows && !t->is_transposed;
    t->source = (struct tensor_source){ .make = make, .from = &t->whole, .n_from = 1 };
    t->tensor = *t->whole;
    t->tensor.n_dims = 2;
    t->tensor.shape[0] = t->is_transposed ? t->n_heads * n_columns : n_used;
    t->tensor.shape[1] = t->is_transposed ? t->n : n_columns;
    if (is_whole && !t->whole->source)
        return;
    if (t->is_transposed && dtype_block_elems(t->whole->dtype) > 1)
        t->tensor.dtype = dtype_is_float8(t->whole->dtype) ? DTYPE_F32 : DTYPE_F16;
    t->tensor.n_bytes = tensor_columns_bytes(&t->tensor, t->tensor.shape[1]) * (size_t)t->tensor.shape[0];
    t->tensor.data = NULL;
    t->tensor.map = NULL;
    t->tensor.source = &t->source;
}

void head_tensor_copy(struct head_tensor *to, const struct head_tensor *from)
{
    *to = *from;
    head_tensor_init(to);
}
