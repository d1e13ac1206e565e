#include "checkpoint/quantized/wrapping.h"

#include "base/half.h"
#include "base/json/json_field.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct quantized_method *const METHODS[] = {
    &FP8_METHOD,   &FBGEMM_FP8_METHOD,   &GPTQ_METHOD, &AWQ_METHOD, &COMPRESSED_TENSORS_METHOD,
    &MXFP4_METHOD, &BITSANDBYTES_METHOD,
};
enum { N_METHODS = sizeof METHODS / sizeof *METHODS };

/* Last words of tensors' names that replace "weight", with the method that uses them. */
static const struct {
    const char *end, *method;
} ENDS[] = {
    { "qweight", "GPTQ or AWQ" },
    { "B", "Marlin" },
    { "weight_packed", "compressed-tensors" },
    { "weight_scale_inv", "fp8" },
    { "SCB", "bitsandbytes" },
    { "weight.absmax", "bitsandbytes" },
    { "Wq", "HQQ" },
    { "codebooks", "AQLM" },
};

const char *quantized_find(const struct checkpoint *ck, const char *name)
{
    char other[LIMIT_TENSOR_NAME_BYTES + 32];
    const char *dot = strrchr(name, '.');
    if (!dot || strlen(name) > LIMIT_TENSOR_NAME_BYTES)
        return NULL;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        snprintf(other, sizeof other, "%.*s.%s", (int)(dot - name), name, ENDS[i].end);
        if (checkpoint_find(ck, other))
            return ENDS[i].method;
    }
    return NULL;
}

/* The method's name in the object; bitsandbytes did not always write it, and MLX does not, which repeats its object under
 * a key of its own. */
static const char *method_of(const json_t *object, bool is_repeated)
{
    const char *method = json_string_value(json_object_get(object, "quant_method"));
    if (!method)
        method = json_string_value(json_object_get(object, "quant_algo"));
    if (method)
        return method;
    if (json_is_on(object, "load_in_4bit") || json_is_on(object, "load_in_8bit") ||
        json_is_on(object, "_load_in_4bit") || json_is_on(object, "_load_in_8bit"))
        return "bitsandbytes";
    if (is_repeated)
        return "MLX";
    return "of a kind that is not named";
}

static const struct quantized_method *find_method(const char *name)
{
    for (int i = 0; i < N_METHODS; i++) {
        if (strcmp(METHODS[i]->name, name) == 0)
            return METHODS[i];
    }
    return NULL;
}

/* Writes the names of all methods, separated by commas. */
static void list_methods(char *text, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < N_METHODS && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%s",
                              i == 0               ? ""
                              : i == N_METHODS - 1 ? " or "
                                                   : ", ",
                              METHODS[i]->name);
}

static enum tutti_status refuse_method(const char *path, const char *key, const char *name,
                                       struct tutti_error *err)
{
    char known[128];
    list_methods(known, sizeof known);
    return error_set(err, TUTTI_E_UNSUPPORTED,
                     "%s: %s: the weights are quantized (quant_method %.64s), expected f32, f16 or bf16, "
                     "or quant_method %s: %s",
                     path, key, name, known, QUANTIZED_ADVICE);
}

/* ---- a method that a file of its own names, and that tutti does not know ---- */

static enum tutti_status noted_configure(struct quantized *q, struct tutti_error *err)
{
    (void)q, (void)err;
    return TUTTI_OK;
}

static enum tutti_status noted_wrap(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                                    const struct tensor **made, struct tutti_error *err)
{
    (void)ck, (void)made;
    bool is_quantized = t->dtype == DTYPE_F8_E4M3 || t->dtype == DTYPE_U8 || t->dtype == DTYPE_I8;
    return is_quantized && text_ends_with(t->name, ".weight")
               ? refuse_method(q->path, "quantization", method_of(q->config, false), err)
               : TUTTI_OK;
}

static const struct quantized_method NOTED_METHOD = {
    .name = "", .configure = noted_configure, .wrap = noted_wrap, .ignored = QUANTIZED_ACTIVATION_SCALES
};

enum tutti_status quantized_open(struct quantized **out, const json_t *config, const char *own_path,
                                 const char *path, struct tutti_error *err)
{
    /* The second: compressed-tensors' first versions. The third: MLX. */
    static const char *const KEYS[] = { "quantization_config", "compression_config", "quantization" };
    const json_t *object = NULL;
    int i = 0;
    *out = NULL;
    for (; i < 3 && json_object_size(object = json_object_get(config, KEYS[i])) == 0; i++)
        continue;
    if (i == 3)
        return TUTTI_OK;
    const char *name = i == 2   ? "MLX"
                       : i == 1 ? "compressed-tensors"
                                : method_of(object, json_object_get(config, KEYS[2]) != NULL);
    const struct quantized_method *method = find_method(name);
    if (!method && (i > 0 || !own_path))
        return refuse_method(path, KEYS[i], name, err);
    struct quantized *q = calloc(1, sizeof *q);
    if (!q)
        return error_out_of_memory(path, err);
    *q = (struct quantized){ .method = method ? method : &NOTED_METHOD,
                             .path = i == 0 && own_path ? own_path : path,
                             .key = KEYS[i],
                             .config = object };
    enum tutti_status st = q->method->configure(q, err);
    if (st == TUTTI_OK)
        *out = q;
    else
        quantized_close(q);
    return st;
}

void quantized_close(struct quantized *q)
{
    for (struct quantized_tensor *t = q ? q->last : NULL, *before; t; t = before) {
        before = t->before;
        free(t);
    }
    free(q);
}

enum tutti_status quantized_wrap(struct quantized *q, const struct checkpoint *ck, const struct tensor *t,
                                 const struct tensor **made, struct tutti_error *err)
{
    *made = NULL;
    for (const char *const *end = q->method->ignored; *end; end++) {
        if (text_ends_with(t->name, *end)) {
            checkpoint_take(ck, t->name);
            return TUTTI_OK;
        }
    }
    return q->method->wrap(q, ck, t, made, err);
}

/* ---- for the methods ---- */

const char *const QUANTIZED_ACTIVATION_SCALES[] = {
    ".input_scale",
    ".input_scale_ub",
    ".input_zero_point",
    ".activation_scale",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".prob_scale",
    ".k_zero_point",
    ".v_zero_point",
    NULL,
};

void *quantized_add(struct quantized *q, size_t n_bytes, const struct tensor *t, const char *end,
                    struct tutti_error *err)
{
    struct quantized_tensor *new = calloc(1, n_bytes);
    if (!new) {
        error_out_of_memory(q->path, err);
        return NULL;
    }
    snprintf(new->name, sizeof new->name, "%.*sweight", (int)(strlen(t->name) - strlen(end)), t->name);
    new->tensor = (struct tensor){ .name = new->name, .file = t->file, .source = &new->source };
    new->source.from = new->from;
    new->before = q->last;
    q->last = new;
    return new;
}

void quantized_add_from(struct quantized_tensor *q, const struct tensor *from)
{
    q->from[q->source.n_from++] = from;
}

static void sibling_name(char *out, size_t size, const struct tensor *t, const char *end, const char *other)
{
    snprintf(out, size, "%.*s%s", (int)(strlen(t->name) - strlen(end)), t->name, other);
}

const struct tensor *quantized_sibling(const struct checkpoint *ck, const struct tensor *t, const char *end,
                                       const char *other)
{
    char name[LIMIT_TENSOR_NAME_BYTES + 32];
    sibling_name(name, sizeof name, t, end, other);
    return checkpoint_take(ck, name);
}

enum tutti_status quantized_require(const struct tensor **out, const struct checkpoint *ck,
                                    const struct tensor *t, const char *end, const char *other,
                                    struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES + 32];
    *out = quantized_sibling(ck, t, end, other);
    if (*out)
        return TUTTI_OK;
    sibling_name(name, sizeof name, t, end, other);
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is missing; %s is quantized and needs it",
                     checkpoint_path(ck), name, t->name);
}

enum tutti_status quantized_check(const struct tensor *t, enum dtype dtype, int n_dims, int64_t rows,
                                  int64_t columns, struct tutti_error *err)
{
    const int64_t want[2] = { rows, columns }, *wanted = n_dims == 2 ? want : want + 1;
    if (t->dtype == dtype && t->n_dims == n_dims &&
        memcmp(t->shape, wanted, (size_t)n_dims * sizeof *wanted) == 0)
        return TUTTI_OK;
    char found[128], expected[128];
    tensor_shape_text(found, sizeof found, t->shape, t->n_dims);
    tensor_shape_text(expected, sizeof expected, wanted, n_dims);
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %s of shape %s, expected %s of shape %s", t->file,
                     t->name, dtype_name(t->dtype), found, dtype_name(dtype), expected);
}

enum tutti_status quantized_check_float(const struct tensor *t, struct tutti_error *err)
{
    if (t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F32)
        return TUTTI_OK;
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: type %s, expected f16, bf16 or f32", t->file,
                     t->name, dtype_name(t->dtype));
}

float quantized_float(const void *bytes, enum dtype dtype, int64_t i)
{
    float x;
    uint16_t half;
    if (dtype == DTYPE_F32) {
        memcpy(&x, (const uint8_t *)bytes + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, (const uint8_t *)bytes + 2 * i, sizeof half);
    return dtype == DTYPE_F16 ? half_to_float(half) : bf16_to_float(half);
}

enum tutti_status quantized_refuse(const struct quantized *q, const char *key, const json_t *found,
                                   const char *expected, struct tutti_error *err)
{
    char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);
    enum tutti_status st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: %s (%s): %s: %.64s, expected %s: %s",
                                     q->path, q->key, q->method->name, key, text ? text : "(none)", expected,
                                     QUANTIZED_ADVICE);
    free(text);
    return st;
}
