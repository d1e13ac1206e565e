#include "checkpoint/gguf/row_ints.h"

#include "base/half.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 }; /* elements of a block of Q4_0 and Q8_0 */

/* Column c of a row. */
static int value(const int8_t *row, int n_bits, int64_t c)
{
    if (n_bits == 8)
        return row[c];
    int nibble = c % 2 == 0 ? (uint8_t)row[c / 2] >> 4 : row[c / 2] & 15;
    return nibble < 8 ? nibble : nibble - 16;
}

static float load_scale(const uint8_t *scales, enum dtype dtype, int64_t row)
{
    uint16_t half;
    float x;
    if (dtype == DTYPE_F32) {
        memcpy(&x, scales + row * 4, 4);
        return x;
    }
    memcpy(&half, scales + row * 2, 2);
    return dtype == DTYPE_F16 ? half_to_float(half) : bf16_to_float(half);
}

/* Writes block b of a row after its scale. In Q4_0 byte j has elements j and j + 16, with 8 added
 * to each. */
static void row_ints_put_block(uint8_t *to, const int8_t *row, int n_bits, int64_t b)
{
    if (n_bits == 8) {
        memcpy(to, row + b * BLOCK, BLOCK);
        return;
    }
    const uint8_t *from = (const uint8_t *)row + b * (BLOCK / 2);
    for (int k = 0; k < BLOCK / 4; k++) {
        unsigned low = from[k] ^ 0x88u,
                 high = from[k + BLOCK / 4] ^ 0x88u; /* elements 2k, 2k + 1; and 16 on */
        to[2 * k] = (uint8_t)(low >> 4 | (high & 0xF0));
        to[2 * k + 1] = (uint8_t)((low & 15) | high << 4);
    }
}

static bool make_row_ints(const struct tensor *t, void *bytes)
{
    const struct row_ints *r = (const struct row_ints *)t->source;
    void *owned_ints, *owned_scales;
    const int8_t *ints = tensor_bytes(r->from[0], &owned_ints);
    const uint8_t *scales = tensor_bytes(r->from[1], &owned_scales);
    int64_t n_out = t->shape[0], n_in = t->shape[1], row_bytes = r->from[0]->shape[1];
    size_t block_bytes = (size_t)dtype_block_bytes(t->dtype);
    uint8_t *to = bytes;
    bool ok = ints && scales;
    for (int64_t i = 0; ok && i < n_out; i++) {
        const int8_t *row = ints + i * row_bytes;
        if (t->dtype != DTYPE_F32) {
            for (int64_t b = 0; b < n_in / BLOCK; b++, to += block_bytes) {
                memcpy(to, scales + i * 2, 2);
                row_ints_put_block(to + 2, row, r->n_bits, b);
            }
            continue;
        }
        float scale = load_scale(scales, r->from[1]->dtype, i);
        for (int64_t c = 0; c < n_in; c++, to += sizeof scale) {
            float x = (float)value(row, r->n_bits, c) * scale;
            memcpy(to, &x, sizeof x);
        }
    }
    free(owned_ints);
    free(owned_scales);
    return ok;
}

enum tutti_status row_ints_init(struct row_ints *out, const struct tensor *weight, const struct tensor *scale,
                                int n_bits, struct tutti_error *err)
{
    char found[96];
    tensor_shape_text(found, sizeof found, weight->shape, weight->n_dims);
    if (weight->dtype != DTYPE_I8 || weight->n_dims != 2 || weight->shape[1] > INT64_MAX / 2)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s of shape %s, expected a matrix of i8",
                         weight->file, weight->name, dtype_name(weight->dtype), found);
    bool is_float = scale->dtype == DTYPE_F16 || scale->dtype == DTYPE_BF16 || scale->dtype == DTYPE_F32;
    tensor_shape_text(found, sizeof found, scale->shape, scale->n_dims);
    if (!is_float || scale->n_dims != 1 || scale->shape[0] != weight->shape[0])
        return error_set(
            err, TUTTI_E_FORMAT, "%s: tensor %s: %s of shape %s, expected f16, bf16 or f32 of shape [%lld]",
            scale->file, scale->name, dtype_name(scale->dtype), found, (long long)weight->shape[0]);
    *out = (struct row_ints){ .from = { weight, scale }, .n_bits = n_bits };
    out->source = (struct tensor_source){ .make = make_row_ints, .from = out->from, .n_from = 2 };
    out->tensor = (struct tensor){ .name = weight->name,
                                   .file = weight->file,
                                   .dtype = n_bits == 8 ? DTYPE_Q8_0 : DTYPE_Q4_0,
                                   .n_dims = 2,
                                   .shape = { weight->shape[0], weight->shape[1] * (8 / n_bits) },
                                   .source = &out->source };
    if (out->tensor.shape[1] % BLOCK != 0 || scale->dtype != DTYPE_F16)
        out->tensor.dtype = DTYPE_F32;
    if (!tensor_measure(&out->tensor))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows", weight->file,
                         weight->name);
    return TUTTI_OK;
}
