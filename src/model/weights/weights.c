#include "model/weights/weights.h"

#include "base/text.h"
#include "base/transpose.h"
#include "checkpoint/quantized/quantized.h"
#include "kernels/quantize/quantize.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* wanted [n_dims]: -1: any number. */
static enum tutti_status find_tensor(const struct tensor **out, const struct checkpoint *ck, const char *name,
                                     int n_dims, const int64_t *wanted, struct tutti_error *err)
{
    const struct tensor *t = checkpoint_take(ck, name);
    const char *method = t ? NULL : quantized_find(ck, name);
    if (method)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s is missing, but its quantized form (%s) is there: %s",
                         checkpoint_path(ck), name, method, QUANTIZED_ADVICE);
    if (!t)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is missing", checkpoint_path(ck), name);
    /* A vector may be stored as a matrix of one row. */
    const int64_t *shape = n_dims == 1 && t->n_dims == 2 && t->shape[0] == 1 ? t->shape + 1 : t->shape;
    bool fits = t->n_dims - (int)(shape - t->shape) == n_dims;
    for (int i = 0; i < n_dims && fits; i++)
        fits = wanted[i] == -1 ? shape[i] >= 1 : shape[i] == wanted[i];
    if (!fits) {
        char found[128], expected[128];
        tensor_shape_text(found, sizeof found, t->shape, t->n_dims);
        tensor_shape_text(expected, sizeof expected, wanted, n_dims);
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: shape %s, expected %s", t->file, name, found,
                         expected);
    }
    if (!dtype_is_weight(t->dtype))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: type %s, expected f32, f16, bf16 or a quantized type", t->file, name,
                         dtype_name(t->dtype));
    *out = t;
    return TUTTI_OK;
}

static enum tutti_status find_vector(const struct tensor **out, const struct checkpoint *ck, const char *name,
                                     int64_t n, struct tutti_error *err)
{
    return find_tensor(out, ck, name, 1, &n, err);
}

void weights_expert_name(char *out, size_t size, const char *pattern, int layer, int expert)
{
    const char *mark = strstr(pattern, "%d"), *second = mark ? strstr(mark + 2, "%d") : NULL;
    if (second)
        snprintf(out, size, "%.*s%d%.*s%d%s", (int)(mark - pattern), pattern, layer, (int)(second - mark - 2),
                 mark + 2, expert, second + 2);
    else if (mark)
        snprintf(out, size, "%.*s%d%s", (int)(mark - pattern), pattern, layer, mark + 2);
    else
        snprintf(out, size, "%s", pattern);
}

void weights_layer_name(char *out, size_t size, const char *pattern, int layer)
{
    weights_expert_name(out, size, pattern, layer, 0);
}

bool weights_is_by_expert(const char *pattern)
{
    const char *mark = strstr(pattern, "%d");
    return mark && strstr(mark + 2, "%d");
}

void weights_bias_name(char *out, size_t size, const char *weight_name)
{
    size_t n = strlen(weight_name), gamma = sizeof "gamma" - 1, weight = sizeof "weight" - 1;
    if (text_ends_with(weight_name, "gamma"))
        snprintf(out, size, "%.*sbeta", (int)(n - gamma), weight_name);
    else if (text_ends_with(weight_name, "weight"))
        snprintf(out, size, "%.*sbias", (int)(n - weight), weight_name);
    else
        snprintf(out, size, "%s_bias", weight_name);
}

static enum tutti_status find_bias(const struct tensor **out, const struct checkpoint *ck,
                                   const char *weight_name, int64_t n, struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    weights_bias_name(name, sizeof name, weight_name);
    return find_vector(out, ck, name, n, err);
}

/* Finds part i of the matrix of an expert in tensors with those of all: [experts][rows][n_in], or
 * [experts][n_in][rows]. Blocks of weights lie along a row, so tensors of blocks are not transposed. */
static enum tutti_status find_merged_part(struct weight *w, int i, const struct slot_shape *shape, int rows,
                                          const struct checkpoint *ck, const char *name,
                                          struct tutti_error *err)
{
    const struct tensor *t = checkpoint_find(ck, name), *bias;
    struct slice_rows part = { .index = w->expert, .is_transposed = w->is_transposed };
    if (t && dtype_block_elems(t->dtype) != 1)
        part.is_transposed = false;
    if (w->alternates) {
        rows = shape->n_out;
        part.first = i;
        part.step = shape->n_parts;
    }
    int64_t wanted[3] = { shape->n_experts, rows, w->n_in };
    if (part.is_transposed) {
        wanted[1] = w->n_in;
        wanted[2] = rows;
    }
    enum tutti_status st = find_tensor(&t, ck, name, 3, wanted, err);
    if (st != TUTTI_OK)
        return st;
    tensor_slice_init(&w->slices[i], t, &part);
    w->parts[i] = &w->slices[i].tensor;
    if (!shape->has_bias)
        return TUTTI_OK;
    char bias_name[LIMIT_TENSOR_NAME_BYTES];
    const int64_t bias_wanted[2] = { shape->n_experts, rows };
    weights_bias_name(bias_name, sizeof bias_name, name);
    st = find_tensor(&bias, ck, bias_name, 2, bias_wanted, err);
    if (st != TUTTI_OK)
        return st;
    if (dtype_block_elems(bias->dtype) != 1)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: type %s, expected f32, f16 or bf16", bias->file,
                         bias->name, dtype_name(bias->dtype));
    part.is_transposed = false;
    tensor_slice_init(&w->bias_slices[i], bias, &part);
    w->biases[i] = &w->bias_slices[i].tensor;
    return TUTTI_OK;
}

/* Finds part i of a matrix, which has so many rows: a tensor [rows][n_in]; a single row may also be a
 * vector. */
static enum tutti_status find_part(struct weight *w, int i, const struct slot_shape *shape, int rows,
                                   const struct checkpoint *ck, const char *pattern, struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    const int64_t wanted[2] = { w->is_transposed ? w->n_in : rows, w->is_transposed ? rows : w->n_in };
    weights_expert_name(name, sizeof name, pattern, w->layer, w->expert);
    if (slot_info(w->slot)->is_of_experts && !weights_is_by_expert(pattern))
        return find_merged_part(w, i, shape, rows, ck, name, err);
    const struct tensor *t = checkpoint_find(ck, name);
    bool is_row = rows == 1 && t && t->n_dims == 1;
    enum tutti_status st = find_tensor(&t, ck, name, is_row ? 1 : 2, is_row ? wanted + 1 : wanted, err);
    if (st == TUTTI_OK && w->is_transposed && dtype_block_elems(t->dtype) != 1)
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s: tensor %s: type %s stored as [in, out], expected f32, f16 or bf16", t->file, name,
                       dtype_name(t->dtype));
    if (st == TUTTI_OK && shape->has_bias)
        st = find_bias(&w->biases[i], ck, name, rows, err);
    if (st != TUTTI_OK)
        return st;
    if (is_row)
        tensor_slice_init(&w->slices[i], t, &(struct slice_rows){ 0 });
    w->parts[i] = is_row ? &w->slices[i].tensor : t;
    return TUTTI_OK;
}

/* Finds an up-projection of latent attention: one tensor with those of keys and values, or its own. */
static enum tutti_status find_by_head(struct weight *w, const struct attn_desc *a,
                                      const struct tensor_names *names, const struct checkpoint *ck,
                                      struct tutti_error *err)
{
    bool is_keys = w->slot == SLOT_K_UP, is_fused = names->has_fused_up;
    int n_keys = a->head_dim - a->rotary_dim, n_rows = w->n_out / a->n_heads;
    const int64_t both[] = { (int64_t)a->n_heads * (n_keys + a->value_dim), a->n_latent };
    const int64_t own[] = { a->n_heads, n_rows, w->n_in };
    struct head_tensor *t = &w->heads;
    *t = (struct head_tensor){ .n_heads = a->n_heads, .n_rows = n_rows, .n = n_rows };
    if (is_fused) {
        t->n_rows = n_keys + a->value_dim;
        t->first = is_keys ? 0 : n_keys;
        t->n = is_keys ? n_keys : a->value_dim;
        t->is_transposed = is_keys;
    }
    enum tutti_status st = find_tensor(&t->whole, ck, w->name, is_fused ? 2 : 3, is_fused ? both : own, err);
    if (st != TUTTI_OK)
        return st;
    head_tensor_init(t);
    w->parts[0] = &t->tensor;
    return TUTTI_OK;
}

/* Finds the tensors of a matrix. */
static enum tutti_status find_matrix(struct weight *w, const struct slot_shape *shape,
                                     const struct checkpoint *ck, const char *const *patterns,
                                     struct tutti_error *err)
{
    bool is_fused = shape->n_parts > 1 && !patterns[1];
    enum tutti_status st = TUTTI_OK;
    w->n_parts = is_fused && !w->alternates ? 1 : shape->n_parts;
    w->is_gate_up = shape->is_gate_up;
    for (int i = 0; i < w->n_parts && st == TUTTI_OK; i++)
        st = find_part(w, i, shape, is_fused ? shape->n_out : shape->rows[i], ck,
                       patterns[w->alternates ? 0 : i], err);
    if (slot_info(w->slot)->is_of_experts && !weights_is_by_expert(patterns[0]))
        w->is_transposed = false;
    return st;
}

static enum tutti_status find_norm(struct weight *w, const struct slot_shape *shape,
                                   const struct checkpoint *ck, struct tutti_error *err)
{
    enum tutti_status st = find_vector(&w->parts[0], ck, w->name, w->n_in, err);
    return st == TUTTI_OK && shape->has_bias ? find_bias(&w->biases[0], ck, w->name, w->n_in, err) : st;
}

/* A table by position may have more rows than the context. */
static enum tutti_status find_table(struct weight *w, const struct checkpoint *ck, struct tutti_error *err)
{
    const int64_t wanted[] = { -1, w->n_in };
    enum tutti_status st = find_tensor(&w->parts[0], ck, w->name, 2, wanted, err);
    if (st == TUTTI_OK && w->parts[0]->shape[0] < w->n_out)
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: tensor %s: %" PRId64 " rows, expected one for each of %d positions",
                       w->parts[0]->file, w->name, w->parts[0]->shape[0], w->n_out);
    return st;
}

/* As llama.cpp tells them: by the GGUF architecture. The 80 layers of "qwen2" include Qwen1.5-72B, which
 * shares no KV heads. */
static bool is_70b(const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    return d->n_layers == 80 && (strcmp(d->family, "qwen2") == 0 ||
                                 (strcmp(d->family, "llama") == 0 && a->n_heads != a->n_kv_heads));
}

struct weight_place weights_place(const struct model_desc *d, enum weight_slot slot, int layer)
{
    const struct slot_info *info = slot_info(slot);
    const struct attn_desc *a = &model_layer(d, layer)->attn;
    struct weight_place place = { .role = slot == SLOT_EMBEDDING && d->tied_output ? WEIGHT_OUTPUT
                                                                                   : info->role,
                                  .is_of_experts = info->is_of_experts,
                                  .is_falcon = strcmp(d->family, "falcon") == 0,
                                  .is_70b = is_70b(d) };
    for (int i = 0; i < d->n_kinds; i++)
        if (ffn_has_experts(&d->kinds[i].ffn))
            place.n_experts = d->kinds[i].ffn.experts.routing.n_experts;
    if (info->is_of_layer) {
        place.layer = layer;
        place.n_layers = d->n_layers;
        place.n_sharing = a->n_heads / a->n_kv_heads;
    }
    return place;
}

enum tutti_status weights_find(struct weight *out, const struct model_desc *d,
                               const struct tensor_names *names, const struct checkpoint *ck,
                               const struct slot_at *at, struct tutti_error *err)
{
    enum weight_slot slot = at->slot;
    const struct slot_info *info = slot_info(slot);
    struct slot_shape shape = slot_shape(d, slot, at->layer);
    const struct attn_desc *a = &model_layer(d, at->layer)->attn;
    if (d->has_top_query && info->is_of_layer && at->layer == d->n_layers - 1)
        names = names->top;
    const char *const *patterns = tensor_names_of(names, slot);
    *out = (struct weight){ .slot = slot,
                            .layer = at->layer,
                            .expert = at->expert,
                            .n_parts = 1,
                            .n_in = shape.n_in,
                            .n_out = shape.n_out,
                            .is_less_one = names->has_norms_less_one && info->kind == SLOT_NORM,
                            .has_zero_bias = slot_has_zero_bias(d, slot),
                            .has_unit_rows = slot == SLOT_OUTPUT && d->has_unit_output,
                            .is_transposed = tensor_names_transposes(names, slot),
                            .alternates = names->alternates && slot == SLOT_EXPERT_GATE_UP };
    if (!patterns[0])
        return error_set(err, TUTTI_E_FORMAT, "%s: no name is known for the tensor of %s",
                         checkpoint_path(ck), info->name);
    weights_expert_name(out->name, sizeof out->name, patterns[0], at->layer, at->expert);
    if (slot == SLOT_QKV && !patterns[1] && names->is_by_head)
        out->order = (struct head_order){ .head_dim = a->head_dim, .n_queries = a->n_heads / a->n_kv_heads };
    out->place = weights_place(d, slot, at->layer);
    if (info->is_by_head)
        return find_by_head(out, a, names, ck, err);
    if (info->kind == SLOT_MATRIX)
        return find_matrix(out, &shape, ck, patterns, err);
    return info->kind == SLOT_TABLE ? find_table(out, ck, err) : find_norm(out, &shape, ck, err);
}

static bool has_same_order(const struct tensor *a, const struct tensor *b)
{
    size_t n = (size_t)a->shape[1];
    return a->order == b->order ||
           (a->order && b->order && memcmp(a->order, b->order, n * sizeof *a->order) == 0);
}

static bool has_compact(const struct weight *w, enum dtype type, bool is_cut)
{
    const struct slot_info *info = slot_info(w->slot);
    bool ok = info->kind == SLOT_MATRIX && !info->is_by_head && w->slot != SLOT_EMBEDDING &&
              !w->has_unit_rows;
    for (int i = 0; i < w->n_parts && ok; i++) {
        const struct tensor *t = w->parts[i]->compact;
        ok = t && t->dtype == type && !(t->order && is_cut) && has_same_order(t, w->parts[0]->compact);
    }
    return ok;
}

void weights_use_compact(struct weight *weights, int n, bool is_cut)
{
    const struct tensor *first = weights[0].parts[0]->compact;
    for (int e = 0; e < n; e++)
        if (!first || !has_compact(&weights[e], first->dtype, is_cut))
            return;
    for (int e = 0; e < n; e++)
        for (int i = 0; i < weights[e].n_parts; i++)
            weights[e].parts[i] = weights[e].parts[i]->compact;
}

int64_t weights_stored_row(const struct head_order *order, int64_t n_rows, int64_t row)
{
    int64_t d = order->head_dim, n_queries = order->n_queries, n_heads = n_queries + 2; /* of a group */
    int64_t n_groups = n_rows / (n_heads * d), head = row / d, first_key = n_groups * n_queries;
    int64_t group, within;
    if (head < first_key) {
        group = head / n_queries;
        within = head % n_queries;
    } else { /* a key or a value */
        group = (head - first_key) % n_groups;
        within = n_queries + (head - first_key) / n_groups;
    }
    return (group * n_heads + within) * d + row % d;
}

/* Tiles of whole cache lines of both matrices. The columns of a row of tiles are stored one after the other, as the
 * processor prefetches them. */
void weights_transpose_rows(void *out, const struct tensor *part, const void *stored, int64_t begin,
                            int64_t end)
{
    int64_t n_in = part->shape[0], n_out = part->shape[1];
    size_t size = (size_t)dtype_block_bytes(part->dtype), in_stride = (size_t)n_out * size;
    size_t out_stride = (size_t)n_in * size;
    const bool has_lines = size == 2 || size == 4;
    const int64_t tile = size == 2 ? TRANSPOSE_LINE / 2 : TRANSPOSE_LINE / 4;
    const uint8_t *rows[TRANSPOSE_LINE / 2];
    for (int64_t c = 0; c < n_in; c += tile)
        for (int64_t r = begin; r < end; r += tile) {
            const uint8_t *from = (const uint8_t *)stored + (size_t)c * in_stride + (size_t)r * size;
            uint8_t *to = (uint8_t *)out + (size_t)r * out_stride + (size_t)c * size;
            int64_t n_rows = end - r < tile ? end - r : tile, n_columns = n_in - c < tile ? n_in - c : tile;
            for (int64_t k = 0; k < n_columns; k++)
                rows[k] = from + (size_t)k * in_stride;
            if (has_lines && n_rows == tile && n_columns == tile) {
                transpose_lines(to, out_stride, rows, (int)tile, size);
                continue;
            }
            for (int64_t i = 0; i < n_rows; i++)
                for (int64_t k = 0; k < n_columns; k++)
                    memcpy(to + (size_t)i * out_stride + (size_t)k * size, rows[k] + (size_t)i * size, size);
        }
}

void *weights_transposed(const struct tensor *part)
{
    void *owned;
    const void *in = tensor_bytes(part, &owned);
    void *out = in ? malloc(part->n_bytes) : NULL;
    if (out)
        weights_transpose_rows(out, part, in, 0, part->shape[1]);
    free(owned);
    return out;
}

enum dtype weights_fit_type(enum dtype want, int n_in)
{
    static const enum dtype SMALLER[DTYPE_COUNT] = { [DTYPE_Q2_K] = DTYPE_Q4_0,
                                                     [DTYPE_Q3_K] = DTYPE_Q4_0,
                                                     [DTYPE_Q4_K] = DTYPE_Q5_0,
                                                     [DTYPE_Q5_K] = DTYPE_Q5_1,
                                                     [DTYPE_Q6_K] = DTYPE_Q8_0 };
    if (n_in % dtype_block_elems(want) == 0)
        return want;
    return dtype_block_elems(want) == 256 && n_in % 32 == 0 ? SMALLER[want] : DTYPE_F16;
}

enum dtype weights_finer_type(enum dtype a, enum dtype b)
{
    bool a_is_plain = dtype_block_elems(a) == 1, b_is_plain = dtype_block_elems(b) == 1;
    if (a == b)
        return a;
    if (dtype_is_float8(a) && dtype_is_float8(b)) /* scales by row and by block */
        return DTYPE_BF16;
    if (!a_is_plain && !b_is_plain)
        return DTYPE_Q8_0;
    if (a_is_plain && b_is_plain) /* F32 and another, or F16 and BF16, which do not contain each other */
        return DTYPE_F32;
    return a_is_plain ? a : b;
}

enum dtype weights_common_type(const struct weight *w)
{
    enum dtype type = w->parts[0]->dtype;
    for (int p = 1; p < w->n_parts; p++)
        type = weights_finer_type(type, w->parts[p]->dtype);
    return type;
}

enum dtype weights_run_type(const struct weight *w, const struct weight_type *type)
{
    if (w->place.role == WEIGHT_ROUTER)
        return DTYPE_F32;
    return type ? weight_type_choose(type, &w->place) : weights_common_type(w);
}

uint64_t weights_packed_bytes(const struct slot_shape *shape, enum dtype type,
                              const struct backend_caps *caps)
{
    return caps->packed_bytes(weights_fit_type(type, shape->n_in), shape->n_in, shape->n_out,
                              shape->is_gate_up);
}

uint64_t weights_n_params(const struct weight *w)
{
    uint64_t n = (uint64_t)w->n_in * (uint64_t)w->n_out;
    return slot_info(w->slot)->kind != SLOT_MATRIX && w->biases[0] ? 2 * n : n;
}

uint64_t weights_bytes(const struct weight *w, const struct weight_type *type,
                       const struct backend_caps *caps)
{
    if (slot_info(w->slot)->kind != SLOT_MATRIX)
        return (weights_n_params(w) + (w->has_zero_bias ? (uint64_t)w->n_in : 0)) * sizeof(float);
    const struct slot_shape shape = { .n_in = w->n_in, .n_out = w->n_out, .is_gate_up = w->is_gate_up };
    uint64_t order = w->parts[0]->order ? (uint64_t)w->n_in * sizeof *w->parts[0]->order : 0;
    return weights_packed_bytes(&shape, weights_run_type(w, type), caps) + order;
}

enum tutti_status weights_stored_type(enum dtype *out, const struct model_desc *d,
                                      const struct tensor_names *names, const struct checkpoint *ck,
                                      struct tutti_error *err)
{
    int64_t elems[DTYPE_COUNT] = { 0 };
    for (struct slot_at at = SLOT_BEGIN; slot_next(d, &at) && at.layer == 0;) {
        struct weight w;
        const struct slot_info *info = slot_info(at.slot);
        if (!info->is_of_layer || info->kind != SLOT_MATRIX)
            continue;
        enum tutti_status st = weights_find(&w, d, names, ck, &at, err);
        if (st != TUTTI_OK)
            return st;
        weights_use_compact(&w, 1, false);
        for (int p = 0; p < w.n_parts; p++)
            elems[w.parts[p]->dtype] += w.parts[p]->shape[0] * w.parts[p]->shape[1] *
                                        slot_shape(d, at.slot, 0).n_experts;
    }
    *out = DTYPE_F32;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (elems[i] > elems[*out])
            *out = (enum dtype)i;
    }
    return TUTTI_OK;
}

void weights_make_unit_rows(float *rows, int64_t n_rows, int64_t n)
{
    for (int64_t r = 0; r < n_rows; r++, rows += n) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++)
            squares += (double)rows[i] * (double)rows[i];
        double length = fmax(sqrt(squares), 1e-12); /* rows of padding may be zero */
        for (int64_t i = 0; i < n; i++)
            rows[i] = (float)((double)rows[i] / length);
    }
}

float *weights_to_floats(const struct tensor *tensor, int64_t n_rows)
{
    int64_t n = n_rows * tensor->shape[tensor->n_dims - 1];
    void *owned;
    const void *bytes = tensor_bytes(tensor, &owned);
    float *values = bytes ? malloc((size_t)n * sizeof *values) : NULL;
    if (values)
        dequantize(values, bytes, tensor->dtype, n);
    free(owned);
    return values;
}
