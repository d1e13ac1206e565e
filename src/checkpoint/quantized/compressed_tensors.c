/* compressed-tensors: a configuration for groups of modules, and a format for each kind of
 * numbers: floats of 8 bits, integers of 8 bits, or integers packed in words. */
#include "checkpoint/quantized/fp8.h"
#include "checkpoint/quantized/packed_ints.h"

#include "base/json/json_field.h"
#include "base/text.h"

#include <string.h>

/* Formats of weights; naive-quantized is of floats or integers of 8 bits. */
static const char *const FORMATS[] = { "float-quantized", "int-quantized", "naive-quantized",
                                       "pack-quantized" };

static bool is_format(const json_t *format)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (strcmp(name, FORMATS[i]) == 0)
            return true;
    }
    return false;
}

/* Whether weights were grouped by activations; "weight" and "static" leave them in runs of columns. */
static bool is_ordered(const json_t *order)
{
    const char *name = json_string_value(order);
    return json_is_true(order) || (name && (strcmp(name, "group") == 0 || strcmp(name, "dynamic") == 0));
}

/* The description of one group's weights. Numbers of bits and columns must be the same in all
 * groups of integers. */
static enum tutti_status read_weights(struct quantized *q, const json_t *group, struct tutti_error *err)
{
    const json_t *format = json_field(group, "format"), *weights = json_field(group, "weights");
    const json_t *bits = json_field(weights, "num_bits"), *size = json_field(weights, "group_size");
    const json_t *block = json_field(weights, "block_structure"), *type = json_field(weights, "type");
    const char *kind = json_is_string(type) ? json_string_value(type) : "int";
    if (!weights) /* only activations */
        return TUTTI_OK;
    if (format && !is_format(format))
        return quantized_refuse(q, "format", format, "pack-quantized, float-quantized or int-quantized", err);
    for (size_t i = 0; block && i < 2; i++) {
        q->block[i] = json_integer_value(json_array_get(block, i));
        if (json_array_size(block) != 2 || q->block[i] < 1)
            return quantized_refuse(q, "block_structure", block, "[rows, columns] such as [128, 128]", err);
    }
    if (strcmp(kind, "float") == 0)
        return json_integer_value(bits) == 8 ? TUTTI_OK : quantized_refuse(q, "num_bits", bits, "8", err);
    int64_t n_bits = json_integer_value(bits), n_columns = size ? json_integer_value(size) : -1;
    if (strcmp(kind, "int") != 0 || (n_bits != 4 && n_bits != 8))
        return quantized_refuse(q, "num_bits", bits, "4 or 8 of type int, or 8 of type float", err);
    if (n_columns != -1 && n_columns < 1)
        return quantized_refuse(q, "group_size", size, "the columns of a group", err);
    if (q->n_bits != 0 && (q->n_bits != n_bits || q->group != n_columns))
        return quantized_refuse(q, "config_groups", weights, "the same bits and group_size in all groups",
                                err);
    q->has_order = (q->n_bits == 0 || q->has_order) && is_ordered(json_field(weights, "actorder"));
    q->has_zeros = (q->n_bits == 0 || q->has_zeros) && json_is_false(json_field(weights, "symmetric"));
    q->n_bits = n_bits;
    q->group = n_columns;
    return TUTTI_OK;
}

static enum tutti_status configure(struct quantized *q, struct tutti_error *err)
{
    const json_t *format = json_field(q->config, "format"), *groups = json_field(q->config, "config_groups");
    const char *name;
    json_t *group;
    enum tutti_status st = TUTTI_OK;
    const json_t *transform = json_field(q->config, "transform_config"),
                 *sparsity = json_field(q->config, "sparsity_config"),
                 *sparse = json_field(sparsity, "format");
    const char *mixed = json_is_string(format) ? json_string_value(format) : "";
    if (!is_format(format) && strcmp(mixed, "mixed-precision") != 0)
        return quantized_refuse(q, "format", format, "pack-quantized, float-quantized or int-quantized", err);
    if (json_object_size(transform) > 0) /* the weights are rotated, and so must be their inputs */
        return quantized_refuse(q, "transform_config", transform, "none", err);
    if (json_object_size(sparsity) > 0 &&
        !(json_is_string(sparse) && !strcmp(json_string_value(sparse), "dense")))
        return quantized_refuse(q, "sparsity_config", sparsity, "the format \"dense\"", err);
    if (json_object_size(groups) == 0)
        return quantized_refuse(q, "config_groups", groups, "an object of groups", err);
    q->block[0] = q->block[1] = 128;
    json_object_foreach((json_t *)(uintptr_t)groups, name, group)
    {
        if (st == TUTTI_OK)
            st = read_weights(q, group, err);
    }
    return st;
}

static enum tutti_status compressed_tensors_wrap(struct quantized *q, const struct checkpoint *ck,
                                                 const struct tensor *t, const struct tensor **made,
                                                 struct tutti_error *err)
{
    if (text_ends_with(t->name, ".weight_packed") && q->n_bits > 0)
        return packed_ints_wrap_rows(q, ck, t, made, err);
    if (t->dtype == DTYPE_F8_E4M3 && text_ends_with(t->name, ".weight"))
        return fp8_wrap(q, ck, t, "_scale", made, err);
    if (t->dtype == DTYPE_I8 && text_ends_with(t->name, ".weight"))
        return packed_ints_wrap_int8(q, ck, t, made, err);
    return TUTTI_OK;
}

const struct quantized_method COMPRESSED_TENSORS_METHOD = { .name = "compressed-tensors",
                                                            .configure = configure,
                                                            .wrap = compressed_tensors_wrap,
                                                            .ignored = QUANTIZED_ACTIVATION_SCALES };
