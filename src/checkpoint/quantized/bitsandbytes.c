/* Uploads that bitsandbytes quantized (transformers' load_in_4bit, QLoRA, Unsloth): codes of 4 bits, which select one of 16 values, NF4 or FP4, times a
 * scale for each block of consecutive elements of a matrix.
 *
 * NAME.weight has two codes in each byte, the first in the upper bits; NAME.weight.quant_map the table, NAME.weight.absmax the
 * scales. With nested scales (bnb_4bit_use_double_quant) absmax has codes of NAME.weight.nested_quant_map, times one of
 * NAME.weight.nested_absmax, plus nested_offset. NAME.weight.quant_state.bitsandbytes__nf4 (or __fp4) is JSON with the sizes. Weights
 * have the values and the type of bitsandbytes' own dequantization (bitsandbytes/functional.py). */
#include "checkpoint/quantized/wrapping.h"

#include "base/half.h"
#include "base/json/json_field.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE = 16, NESTED_TABLE = 256, MOST_STATE_BYTES = 4096 };

struct bnb_tensor {
    struct quantized_tensor base; /* from: weight, absmax, and nested_absmax where scales are nested */
    int64_t block, nested_block;  /* elements of a scale; scales of a nested one */
    float table[TABLE], nested_table[NESTED_TABLE], nested_offset;
};

static float scale_at(const struct bnb_tensor *b, const uint8_t *absmax, const uint8_t *nested, int64_t i)
{
    if (!nested)
        return quantized_float(absmax, DTYPE_F32, i);
    float scale = b->nested_table[absmax[i]] * quantized_float(nested, DTYPE_F32, i / b->nested_block);
    return scale + b->nested_offset;
}

/* The elements [begin, end) of the matrix, all of one block. */
static void put_run(uint8_t *to, const struct bnb_tensor *b, const uint8_t *codes, float scale, int64_t begin,
                    int64_t end)
{
    enum dtype type = b->base.tensor.dtype;
    for (int64_t i = begin; i < end; i++) {
        float x = b->table[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * scale;
        uint16_t half = type == DTYPE_F16 ? float_to_half(x) : float_to_bf16(x);
        size_t size = type == DTYPE_F32 ? sizeof x : sizeof half;
        memcpy(to, type == DTYPE_F32 ? (const void *)&x : &half, size);
        to += size;
    }
}

static bool bnb_make_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct bnb_tensor *b = (const struct bnb_tensor *)t->source;
    bool is_nested = b->base.source.n_from > 2;
    void *owned[3] = { NULL };
    const uint8_t *codes = tensor_bytes(b->base.from[0], &owned[0]);
    const uint8_t *absmax = tensor_bytes(b->base.from[1], &owned[1]);
    const uint8_t *nested = is_nested ? tensor_bytes(b->base.from[2], &owned[2]) : NULL;
    bool ok = codes && absmax && (nested || !is_nested);
    uint8_t *to = bytes;
    for (int64_t r = part->row; ok && r < part->row + part->n_rows; r++) {
        int64_t begin = r * t->shape[1] + part->column, row_end = begin + part->n_columns;
        for (int64_t end; begin < row_end; begin = end) {
            int64_t block = begin / b->block;
            end = (block + 1) * b->block < row_end ? (block + 1) * b->block : row_end;
            put_run(to, b, codes, scale_at(b, absmax, nested, block), begin, end);
            to += (size_t)(end - begin) * (t->dtype == DTYPE_F32 ? 4 : 2);
        }
    }
    for (int i = 0; i < 3; i++)
        free(owned[i]);
    return ok;
}

static bool bnb_make(const struct tensor *t, void *bytes)
{
    const struct tensor_part all = { 0, t->shape[0], 0, t->shape[1] };
    return bnb_make_part(t, &all, bytes);
}

/* ---- reading ---- */

/* A table of n finite numbers. */
static enum tutti_status read_table(float *out, int n, const struct checkpoint *ck,
                                    const struct tensor *weight, const char *name, struct tutti_error *err)
{
    const struct tensor *t;
    void *owned;
    enum tutti_status st = quantized_require(&t, ck, weight, "weight", name, err);
    if (st == TUTTI_OK)
        st = quantized_check(t, DTYPE_F32, 1, 0, n, err);
    if (st != TUTTI_OK)
        return st;
    const uint8_t *bytes = tensor_bytes(t, &owned);
    if (!bytes)
        return error_out_of_memory(t->file, err);
    memcpy(out, bytes, (size_t)n * sizeof *out);
    free(owned);
    for (int i = 0; i < n && st == TUTTI_OK; i++)
        if (!isfinite(out[i]))
            st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: value %d is not finite", t->file, t->name, i);
    return st;
}

static enum tutti_status parse_state(json_t **out, const struct tensor *t, struct tutti_error *err)
{
    void *owned = NULL;
    json_error_t at = { .text = "it is no tensor of bytes, or too long" };
    bool is_text = t->dtype == DTYPE_U8 && t->n_dims == 1 && t->n_bytes <= MOST_STATE_BYTES;
    const char *bytes = is_text ? (const char *)tensor_bytes(t, &owned) : NULL;
    if (is_text && !bytes)
        return error_out_of_memory(t->file, err);
    *out = bytes ? json_loadb(bytes, t->n_bytes, JSON_REJECT_DUPLICATES, &at) : NULL;
    free(owned);
    return *out ? TUTTI_OK
                : error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: expected JSON: %s", t->file, t->name,
                            at.text);
}

/* Sizes and the type of the result. */
static enum tutti_status read_state(struct bnb_tensor *b, const struct tensor *state, const json_t *json,
                                    struct tutti_error *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } TYPES[] = { { "bfloat16", DTYPE_BF16 }, { "float16", DTYPE_F16 }, { "float32", DTYPE_F32 } };
    struct tensor *t = &b->base.tensor;
    const json_t *shape = json_object_get(json, "shape");
    const char *type = json_string_value(json_object_get(json, "dtype")), *fault = NULL;
    bool is_known = false;
    for (size_t i = 0; type && i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(type, TYPES[i].name) == 0) {
            t->dtype = TYPES[i].dtype;
            is_known = true;
        }
    t->n_dims = 2;
    for (size_t i = 0; i < 2; i++)
        t->shape[i] = json_integer_value(json_array_get(shape, i));
    b->block = json_integer_value(json_object_get(json, "blocksize"));
    b->nested_block = json_integer_value(json_object_get(json, "nested_blocksize"));
    b->nested_offset = (float)json_number_value(json_object_get(json, "nested_offset"));
    if (!is_known)
        fault = "dtype: expected bfloat16, float16 or float32";
    else if (json_array_size(shape) != 2 || t->shape[0] < 1 || t->shape[1] < 1 || t->shape[0] > INT32_MAX ||
             t->shape[1] > INT32_MAX)
        fault = "shape: expected rows and columns";
    else if (b->block < 1 || b->block > INT32_MAX)
        fault = "blocksize: expected the elements of a block";
    else if (json_object_get(json, "nested_blocksize") &&
             (b->nested_block < 1 || b->nested_block > INT32_MAX))
        fault = "nested_blocksize: expected the scales of a block";
    else if (!isfinite(b->nested_offset))
        fault = "nested_offset: expected a finite number";
    return fault ? error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s", state->file, state->name, fault)
                 : TUTTI_OK;
}

/* The scales, plain or nested. */
static enum tutti_status read_scales(struct bnb_tensor *b, const struct checkpoint *ck,
                                     const struct tensor *t, struct tutti_error *err)
{
    const struct tensor *absmax, *nested;
    int64_t n = b->base.tensor.shape[0] * b->base.tensor.shape[1], n_scales = (n + b->block - 1) / b->block;
    enum tutti_status st = quantized_require(&absmax, ck, t, "weight", "weight.absmax", err);
    if (st != TUTTI_OK)
        return st;
    quantized_add_from(&b->base, absmax);
    if (b->nested_block == 0)
        return quantized_check(absmax, DTYPE_F32, 1, 0, n_scales, err);
    st = quantized_check(absmax, DTYPE_U8, 1, 0, n_scales, err);
    if (st == TUTTI_OK)
        st = quantized_require(&nested, ck, t, "weight", "weight.nested_absmax", err);
    if (st == TUTTI_OK)
        st = quantized_check(nested, DTYPE_F32, 1, 0, (n_scales + b->nested_block - 1) / b->nested_block,
                             err);
    if (st != TUTTI_OK)
        return st;
    quantized_add_from(&b->base, nested);
    return read_table(b->nested_table, NESTED_TABLE, ck, t, "weight.nested_quant_map", err);
}

static enum tutti_status wrap_codes(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                                    const struct tensor *state, const struct tensor **made,
                                    struct tutti_error *err)
{
    json_t *json = NULL;
    struct bnb_tensor *b = quantized_add(q, sizeof *b, t, "weight", err);
    if (!b)
        return TUTTI_E_MEMORY;
    quantized_add_from(&b->base, t);
    enum tutti_status st = parse_state(&json, state, err);
    if (st == TUTTI_OK)
        st = read_state(b, state, json, err);
    json_decref(json);
    if (st != TUTTI_OK)
        return st;
    struct tensor *out = &b->base.tensor;
    if (!tensor_measure(out))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows", t->file,
                         t->name);
    uint64_t n = (uint64_t)out->shape[0] * (uint64_t)out->shape[1];
    if (t->n_bytes != (n + 1) / 2) /* whatever the type that they are stored as (bnb_4bit_quant_storage) */
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: %zu bytes, expected half a byte for each of %" PRId64 " x %" PRId64
                         " weights",
                         t->file, t->name, (size_t)t->n_bytes, out->shape[0], out->shape[1]);
    st = read_table(b->table, TABLE, ck, t, "weight.quant_map", err);
    if (st == TUTTI_OK)
        st = read_scales(b, ck, t, err);
    if (st != TUTTI_OK)
        return st;
    b->base.source.make = bnb_make;
    b->base.source.make_part = bnb_make_part;
    checkpoint_take(ck, t->name);
    *made = out;
    return TUTTI_OK;
}

static enum tutti_status wrap(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                              const struct tensor **made, struct tutti_error *err)
{
    const struct tensor *state = NULL;
    if (!text_ends_with(t->name, ".weight"))
        return TUTTI_OK;
    if (!(state = quantized_sibling(ck, t, "weight", "weight.quant_state.bitsandbytes__nf4")))
        state = quantized_sibling(ck, t, "weight", "weight.quant_state.bitsandbytes__fp4");
    return state ? wrap_codes(q, ck, t, state, made, err) : TUTTI_OK;
}

static enum tutti_status configure(struct quantized *q, struct tutti_error *err)
{
    static const char *const KEYS[] = { "load_in_8bit", "_load_in_8bit" };
    for (int i = 0; i < 2; i++)
        if (json_is_on(q->config, KEYS[i]))
            return quantized_refuse(q, KEYS[i], json_object_get(q->config, KEYS[i]), "false", err);
    return TUTTI_OK;
}

static const char *const IGNORED[] = { NULL };

const struct quantized_method BITSANDBYTES_METHOD = {
    .name = "bitsandbytes", .configure = configure, .wrap = wrap, .ignored = IGNORED
};
