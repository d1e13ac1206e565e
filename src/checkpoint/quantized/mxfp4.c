/* MXFP4 as gpt-oss stores its experts: NAME_blocks, u8 [...][n / 32][16], two numbers a byte, and
 * NAME_scales, u8 [...][n / 32], the exponents (OCP Microscaling Formats, version 1.0). They become
 * one tensor NAME [...][n] of type MXFP4, with the same numbers in ggml's order: nothing is
 * computed. (transformers' dequantized tensors of these names are transposed.) */
#include "checkpoint/quantized/wrapping.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, HALF = BLOCK / 2 };

/* A stored byte j has the numbers 2j and 2j + 1; in the type MXFP4 it has j and j + 16. */
static void mxfp4_put_block(uint8_t *to, uint8_t exponent, const uint8_t *from)
{
    to[0] = exponent;
    for (int k = 0; k < HALF / 2; k++) {
        unsigned low = from[k], high = from[k + HALF / 2]; /* numbers 2k, 2k + 1; and 16 on */
        to[1 + 2 * k] = (uint8_t)((low & 15) | (high & 15) << 4);
        to[2 + 2 * k] = (uint8_t)(low >> 4 | (high & 0xF0));
    }
}

static bool mxfp4_make_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct quantized_tensor *q = (const struct quantized_tensor *)t->source;
    void *owned_blocks, *owned_scales;
    const uint8_t *blocks = tensor_bytes(q->from[0], &owned_blocks);
    const uint8_t *scales = tensor_bytes(q->from[1], &owned_scales);
    size_t per_row = (size_t)q->from[1]->n_bytes / (size_t)t->shape[0]; /* in blocks */
    uint8_t *to = bytes;
    bool ok = blocks && scales;
    for (int64_t r = 0; ok && r < part->n_rows; r++) {
        size_t begin = (size_t)(part->row + r) * per_row + (size_t)(part->column / BLOCK);
        for (size_t b = begin; b < begin + (size_t)(part->n_columns / BLOCK); b++, to += 1 + HALF)
            mxfp4_put_block(to, scales[b], blocks + b * HALF);
    }
    free(owned_blocks);
    free(owned_scales);
    return ok;
}

static bool mxfp4_make(const struct tensor *t, void *bytes)
{
    int64_t n_columns = 1;
    for (int i = 1; i < t->n_dims; i++)
        n_columns *= t->shape[i];
    const struct tensor_part all = { 0, t->shape[0], 0, n_columns };
    return mxfp4_make_part(t, &all, bytes);
}

static enum tutti_status mxfp4_wrap(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                                    const struct tensor **made, struct tutti_error *err)
{
    static const char END[] = "_blocks";
    const struct tensor *scales = NULL;
    char found[96], expected[96];
    int n_dims = t->n_dims - 1;
    if (!text_ends_with(t->name, END))
        return TUTTI_OK;
    tensor_shape_text(found, sizeof found, t->shape, t->n_dims);
    if (t->dtype != DTYPE_U8 || n_dims < 2 || t->n_bytes == 0 || t->shape[n_dims] != HALF)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s of shape %s, expected u8 of shape [..., %d]",
                         t->file, t->name, dtype_name(t->dtype), found, HALF);
    enum tutti_status st = quantized_require(&scales, ck, t, END, "_scales", err);
    if (st != TUTTI_OK)
        return st;
    if (scales->dtype != DTYPE_U8 || scales->n_dims != n_dims ||
        memcmp(scales->shape, t->shape, (size_t)n_dims * sizeof *t->shape) != 0) {
        tensor_shape_text(found, sizeof found, scales->shape, scales->n_dims);
        tensor_shape_text(expected, sizeof expected, t->shape, n_dims);
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s of shape %s, expected u8 of shape %s",
                         scales->file, scales->name, dtype_name(scales->dtype), found, expected);
    }
    struct quantized_tensor *new = quantized_add(q, sizeof *new, t, END, err);
    if (!new)
        return TUTTI_E_MEMORY;
    new->name[strlen(t->name) - strlen(END)] = '\0';
    quantized_add_from(new, t);
    quantized_add_from(new, scales);
    new->source.make = mxfp4_make;
    new->source.make_part = mxfp4_make_part;
    new->tensor.dtype = DTYPE_MXFP4;
    new->tensor.n_dims = n_dims;
    memcpy(new->tensor.shape, t->shape, (size_t)n_dims * sizeof *t->shape);
    new->tensor.shape[n_dims - 1] *= BLOCK; /* the blocks have 16 bytes each, so this cannot overflow */
    if (!tensor_measure(&new->tensor))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows", t->file,
                         t->name);
    checkpoint_take(ck, t->name);
    *made = &new->tensor;
    return TUTTI_OK;
}

static enum tutti_status mxfp4_configure(struct quantized *q, struct tutti_error *err)
{
    (void)q, (void)err;
    return TUTTI_OK;
}

static const char *const IGNORED[] = { NULL };

const struct quantized_method MXFP4_METHOD = {
    .name = "mxfp4", .configure = mxfp4_configure, .wrap = mxfp4_wrap, .ignored = IGNORED
};
