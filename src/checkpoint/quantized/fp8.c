#include "checkpoint/quantized/fp8.h"

#include "base/half.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_BLOCK_ROWS = 4 }; /* of F8_BLOCK: few enough scales among neighbouring rows (kernels/float8.h) */

struct fp8_tensor {
    struct quantized_tensor base;      /* from: weight, scales */
    int64_t block_rows, block_columns; /* of a scale */
    int64_t n_columns;                 /* of the grid of scales */
};

/* e8m0: 2^(byte - 127); 255 is no number. */
static float scale_at(const void *bytes, enum dtype dtype, int64_t i)
{
    if (dtype != DTYPE_F8_E8M0)
        return quantized_float(bytes, dtype, i);
    int byte = ((const uint8_t *)bytes)[i];
    return byte == 255 ? (float)NAN : ldexpf(1, byte - 127);
}

/* The product of each byte's value with a scale, in the type of the result. */
static void fill_products(uint16_t products[256], float scale, enum dtype dtype)
{
    for (int i = 0; i < 256; i++) {
        float x = float8_to_float((uint8_t)i) * scale;
        products[i] = dtype == DTYPE_F16 ? float_to_half(x) : float_to_bf16(x);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* As products with the scales. Scale by scale, so that those of its 256 values are computed once. */
static void expand_blocks(uint8_t *out, const struct fp8_tensor *f, const uint8_t *values, const void *scales,
                          const struct tensor_part *part)
{
    const struct tensor *t = &f->base.tensor;
    int64_t row_end = part->row + part->n_rows, column_end = part->column + part->n_columns;
    for (int64_t r0 = part->row, r1; r0 < row_end; r0 = r1) {
        r1 = least((r0 / f->block_rows + 1) * f->block_rows, row_end);
        for (int64_t c0 = part->column, c1; c0 < column_end; c0 = c1) {
            c1 = least((c0 / f->block_columns + 1) * f->block_columns, column_end);
            uint16_t products[256];
            int64_t scale = r0 / f->block_rows * f->n_columns + c0 / f->block_columns;
            fill_products(products, scale_at(scales, f->base.from[1]->dtype, scale), t->dtype);
            for (int64_t r = r0; r < r1; r++) {
                const uint8_t *from = values + r * t->shape[1];
                uint8_t *to = out + 2 * ((r - part->row) * part->n_columns - part->column);
                for (int64_t c = c0; c < c1; c++)
                    memcpy(to + 2 * c, &products[from[c]], 2);
            }
        }
    }
}

/* As blocks of the type: a scale in float32, then the values as they are. */
static void copy_blocks(uint8_t *out, const struct fp8_tensor *f, const uint8_t *values, const void *scales,
                        const struct tensor_part *part)
{
    const struct tensor *t = &f->base.tensor;
    int n = dtype_block_elems(t->dtype);
    for (int64_t r = part->row; r < part->row + part->n_rows; r++)
        for (int64_t c = part->column; c < part->column + part->n_columns; c += n) {
            int64_t at = r / f->block_rows * f->n_columns + c / f->block_columns;
            float scale = scale_at(scales, f->base.from[1]->dtype, at);
            memcpy(out, &scale, sizeof scale);
            memcpy(out + sizeof scale, values + r * t->shape[1] + c, (size_t)n);
            out += dtype_block_bytes(t->dtype);
        }
}

static bool fp8_make_part(const struct tensor *t, const struct tensor_part *part, void *bytes)
{
    const struct fp8_tensor *f = (const struct fp8_tensor *)t->source;
    void *owned_values, *owned_scales;
    const uint8_t *values = tensor_bytes(f->base.from[0], &owned_values);
    const void *scales = tensor_bytes(f->base.from[1], &owned_scales);
    bool ok = values && scales;
    if (ok && dtype_is_float8(t->dtype))
        copy_blocks(bytes, f, values, scales, part);
    else if (ok)
        expand_blocks(bytes, f, values, scales, part);
    free(owned_values);
    free(owned_scales);
    return ok;
}

static bool fp8_make(const struct tensor *t, void *bytes)
{
    const struct tensor_part all = { 0, t->shape[0], 0, t->shape[1] };
    return fp8_make_part(t, &all, bytes);
}

static int64_t count_blocks(int64_t n, int64_t block)
{
    return n / block + (n % block != 0);
}

/* Sets which weights share a scale, from the shape of the scales. */
static enum tutti_status read_grid(struct fp8_tensor *f, const struct quantized *q, struct tutti_error *err)
{
    const struct tensor *t = f->base.from[0], *s = f->base.from[1];
    int64_t rows = s->n_dims > 0 ? s->shape[0] : 1, columns = s->n_dims == 2 ? s->shape[1] : 1;
    int64_t grid[2] = { count_blocks(t->shape[0], q->block[0]), count_blocks(t->shape[1], q->block[1]) };
    bool fits = s->n_dims <= 2;
    f->n_columns = columns;
    if (rows == grid[0] && columns == grid[1]) {
        f->block_rows = q->block[0];
        f->block_columns = q->block[1];
    } else if (columns == 1 && (rows == 1 || rows == t->shape[0])) {
        f->block_rows = rows == 1 ? t->shape[0] : 1;
        f->block_columns = t->shape[1];
    } else {
        fits = false;
    }
    if (fits)
        return TUTTI_OK;
    char found[128], of[128];
    tensor_shape_text(found, sizeof found, s->shape, s->n_dims);
    tensor_shape_text(of, sizeof of, t->shape, t->n_dims);
    return error_set(err, TUTTI_E_FORMAT,
                     "%s: tensor %s: shape %s, expected a scale for all of a weight of shape %s, for each "
                     "row, or for each block of %" PRId64 " x %" PRId64 ", which is [%" PRId64 ", %" PRId64
                     "]",
                     s->file, s->name, found, of, q->block[0], q->block[1], grid[0], grid[1]);
}

/* The type that keeps the 8 bits. A shape or blocks that do not fit one are expanded. */
static enum dtype choose_type(const struct fp8_tensor *f)
{
    int64_t n_in = f->base.from[0]->shape[1];
    if (f->block_columns >= n_in && n_in % 32 == 0)
        return DTYPE_F8_ROW;
    if (f->block_columns % 128 == 0 && n_in % 128 == 0 && f->block_rows >= LEAST_BLOCK_ROWS)
        return DTYPE_F8_BLOCK;
    return f->base.from[1]->dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
}

enum tutti_status fp8_wrap(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                           const char *scale_end, const struct tensor **made, struct tutti_error *err)
{
    char other[32];
    const struct tensor *scale;
    snprintf(other, sizeof other, "weight%s", scale_end);
    if (t->n_dims != 2 || t->shape[0] < 1 || t->shape[1] < 1)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s: %d dimensions of f8_e4m3, expected a matrix", t->file, t->name,
                         t->n_dims);
    enum tutti_status st = quantized_require(&scale, ck, t, "weight", other, err);
    if (st == TUTTI_OK && scale->dtype != DTYPE_F8_E8M0)
        st = quantized_check_float(scale, err);
    if (st != TUTTI_OK)
        return st;
    struct fp8_tensor *f = quantized_add(q, sizeof *f, t, "weight", err);
    if (!f)
        return TUTTI_E_MEMORY;
    quantized_add_from(&f->base, t);
    quantized_add_from(&f->base, scale);
    st = read_grid(f, q, err);
    if (st != TUTTI_OK)
        return st;
    f->base.source.make = fp8_make;
    f->base.source.make_part = fp8_make_part;
    f->base.tensor.dtype = choose_type(f);
    f->base.tensor.n_dims = 2;
    memcpy(f->base.tensor.shape, t->shape, 2 * sizeof *t->shape);
    if (!tensor_measure(&f->base.tensor))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: the shape's product overflows", t->file,
                         t->name);
    checkpoint_take(ck, t->name);
    *made = &f->base.tensor;
    return TUTTI_OK;
}

/* ---- the methods ---- */

/* weight_block_size: [rows, columns]; absent: one scale for a matrix or a row. */
static enum tutti_status read_block_size(struct quantized *q, struct tutti_error *err)
{
    const json_t *size = json_object_get(q->config, "weight_block_size");
    q->block[0] = q->block[1] = 128;
    for (size_t i = 0; i < 2 && size && !json_is_null(size); i++) {
        q->block[i] = json_integer_value(json_array_get(size, i));
        if (json_array_size(size) != 2 || q->block[i] < 1)
            return quantized_refuse(q, "weight_block_size", size, "[rows, columns] such as [128, 128]", err);
    }
    return TUTTI_OK;
}

static enum tutti_status fp8_configure(struct quantized *q, struct tutti_error *err)
{
    const json_t *format = json_object_get(q->config, "fmt");
    const char *name = json_string_value(format);
    if (format && (!name || (strcmp(name, "e4m3") != 0 &&
                             strcmp(name, "float8_e4m3fn") != 0))) /* the second: MiniMax-M2 */
        return quantized_refuse(q, "fmt", format, "\"e4m3\"", err);
    return read_block_size(q, err);
}

/* fp8 names scales weight_scale_inv, its first uploads weight_scale. */
static enum tutti_status wrap(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                              const struct tensor **made, struct tutti_error *err)
{
    if (t->dtype != DTYPE_F8_E4M3 || !text_ends_with(t->name, ".weight"))
        return TUTTI_OK;
    bool is_plain = q->method == &FBGEMM_FP8_METHOD || quantized_sibling(ck, t, "weight", "weight_scale");
    return fp8_wrap(q, ck, t, is_plain ? "_scale" : "_scale_inv", made, err);
}

const struct quantized_method FP8_METHOD = {
    .name = "fp8", .configure = fp8_configure, .wrap = wrap, .ignored = QUANTIZED_ACTIVATION_SCALES
};
const struct quantized_method FBGEMM_FP8_METHOD = {
    .name = "fbgemm_fp8", .configure = fp8_configure, .wrap = wrap, .ignored = QUANTIZED_ACTIVATION_SCALES
};
