#include "model/weights/weights.h"

#include "checkpoint/quantized.h"
#include "kernels/quantize.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* n_rows -1: any number of rows. */
static enum tutti_status find_tensor(const struct tensor **out, const struct checkpoint *ck, const char *name,
                                     int n_dims, int64_t n_rows, int64_t n_cols, struct tutti_error *err)
{
    const struct tensor *t = checkpoint_take(ck, name);
    const char *method = t ? NULL : quantized_find(ck, name);
    if (method)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s is missing, but its quantized form (%s) is there: %s",
                         checkpoint_path(ck), name, method, QUANTIZED_ADVICE);
    if (!t)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is missing", checkpoint_path(ck), name);
    int64_t want[2] = { n_rows, n_cols };
    const int64_t *wanted = n_dims == 2 ? want : want + 1;
    bool fits = t->n_dims == n_dims;
    for (int i = 0; i < n_dims && fits; i++)
        fits = wanted[i] == -1 ? t->shape[i] >= 1 : t->shape[i] == wanted[i];
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

void weights_layer_name(char *out, size_t size, const char *pattern, int layer)
{
    const char *mark = strstr(pattern, "%d");
    if (mark)
        snprintf(out, size, "%.*s%d%s", (int)(mark - pattern), pattern, layer, mark + 2);
    else
        snprintf(out, size, "%s", pattern);
}

void weights_bias_name(char *out, size_t size, const char *weight_name)
{
    size_t n = strlen(weight_name), gamma = sizeof "gamma" - 1, weight = sizeof "weight" - 1;
    if (n > gamma && strcmp(weight_name + n - gamma, "gamma") == 0)
        snprintf(out, size, "%.*sbeta", (int)(n - gamma), weight_name);
    else
        snprintf(out, size, "%.*sbias", (int)(n - weight), weight_name);
}

static enum tutti_status find_bias(const struct tensor **out, const struct checkpoint *ck,
                                   const char *weight_name, int64_t n, struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    weights_bias_name(name, sizeof name, weight_name);
    return find_tensor(out, ck, name, 1, 0, n, err);
}

/* The expected shape of a matrix: the rows of each part, and the columns. */
struct wanted {
    int rows[MAX_PARTS];
    int n_parts, n_in;
    bool has_bias, is_transposed;
};

static enum tutti_status find_weight(struct weight *w, const struct checkpoint *ck,
                                     const char *const *patterns, const struct wanted *want, int layer,
                                     struct tutti_error *err)
{
    *w = (struct weight){ .n_parts = want->n_parts,
                          .n_in = want->n_in,
                          .is_transposed = want->is_transposed };
    weights_layer_name(w->name, sizeof w->name, patterns[0], layer);
    for (int i = 0; i < want->n_parts; i++) {
        char name[LIMIT_TENSOR_NAME_BYTES];
        int rows = want->rows[i];
        weights_layer_name(name, sizeof name, patterns[i], layer);
        enum tutti_status st = want->is_transposed
                                   ? find_tensor(&w->parts[i], ck, name, 2, want->n_in, rows, err)
                                   : find_tensor(&w->parts[i], ck, name, 2, rows, want->n_in, err);
        if (st == TUTTI_OK && want->is_transposed && dtype_block_elems(w->parts[i]->dtype) != 1)
            st = error_set(err, TUTTI_E_UNSUPPORTED,
                           "%s: tensor %s: type %s stored as [in, out], expected f32, f16 or bf16",
                           w->parts[i]->file, name, dtype_name(w->parts[i]->dtype));
        if (st == TUTTI_OK && want->has_bias)
            st = find_bias(&w->biases[i], ck, name, rows, err);
        if (st != TUTTI_OK)
            return st;
        w->n_out += rows;
    }
    return TUTTI_OK;
}

/* The norms of q's and k's heads. */
static enum tutti_status find_head_norms(struct layer_weights *out, const struct model_desc *d,
                                         const struct tensor_names *names, const struct checkpoint *ck,
                                         int layer, struct tutti_error *err)
{
    out->q_norm = out->k_norm = NULL;
    if (!d->has_qk_norm)
        return TUTTI_OK;
    char name[LIMIT_TENSOR_NAME_BYTES];
    weights_layer_name(name, sizeof name, names->q_norm, layer);
    enum tutti_status st = find_tensor(&out->q_norm, ck, name, 1, 0, d->head_dim, err);
    weights_layer_name(name, sizeof name, names->k_norm, layer);
    return st == TUTTI_OK ? find_tensor(&out->k_norm, ck, name, 1, 0, d->head_dim, err) : st;
}

/* pattern NULL: none. */
static enum tutti_status find_norm(struct norm_tensors *out, const struct model_desc *d,
                                   const struct checkpoint *ck, const char *pattern, int layer,
                                   struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    *out = (struct norm_tensors){ 0 };
    if (!pattern)
        return TUTTI_OK;
    weights_layer_name(name, sizeof name, pattern, layer);
    enum tutti_status st = find_tensor(&out->w, ck, name, 1, 0, d->d_model, err);
    if (st == TUTTI_OK && d->norm == NORM_LAYER)
        st = find_bias(&out->b, ck, name, d->d_model, err);
    return st;
}

enum tutti_status weights_find_layer(struct layer_weights *out, const struct model_desc *d,
                                     const struct tensor_names *names, const struct checkpoint *ck, int layer,
                                     struct tutti_error *err)
{
    if (d->has_top_query && layer == d->n_layers - 1)
        names = names->top;
    int q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim;
    bool one_qkv = !names->qkv[1], one_gate_up = !names->gate_up[1];
    unsigned transposed = names->transposed;
    struct wanted qkv = { .rows = { one_qkv ? q + 2 * kv : q, kv, kv },
                          .n_parts = one_qkv ? 1 : 3,
                          .n_in = d->d_model,
                          .has_bias = d->has_qkv_bias,
                          .is_transposed = transposed & TRANSPOSED_QKV };
    struct wanted attn_out = { .rows = { d->d_model },
                               .n_parts = 1,
                               .n_in = q,
                               .has_bias = d->has_attn_out_bias,
                               .is_transposed = transposed & TRANSPOSED_ATTN_OUT };
    struct wanted gate_up = { .rows = { one_gate_up && d->has_gate ? 2 * d->d_ff : d->d_ff, d->d_ff },
                              .n_parts = one_gate_up ? 1 : 2,
                              .n_in = d->d_model,
                              .has_bias = d->has_mlp_bias,
                              .is_transposed = transposed & TRANSPOSED_MLP };
    struct wanted down = { .rows = { d->d_model },
                           .n_parts = 1,
                           .n_in = d->d_ff,
                           .has_bias = d->has_mlp_bias,
                           .is_transposed = transposed & TRANSPOSED_MLP };
    enum tutti_status st = find_norm(&out->attn_norm, d, ck, names->attn_norm, layer, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->qkv, ck, names->qkv, &qkv, layer, err);
    if (st == TUTTI_OK)
        st = find_head_norms(out, d, names, ck, layer, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->attn_out, ck, &names->attn_out, &attn_out, layer, err);
    if (st == TUTTI_OK)
        st = find_norm(&out->attn_post_norm, d, ck, names->attn_post_norm, layer, err);
    if (st == TUTTI_OK)
        st = find_norm(&out->ffn_norm, d, ck, names->ffn_norm, layer, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->gate_up, ck, names->gate_up, &gate_up, layer, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->down, ck, &names->down, &down, layer, err);
    if (st == TUTTI_OK)
        st = find_norm(&out->ffn_post_norm, d, ck, names->ffn_post_norm, layer, err);
    const struct weight_place place = { .layer = layer,
                                        .n_layers = d->n_layers,
                                        .n_sharing = d->n_heads / d->n_kv_heads };
    out->qkv.place = out->attn_out.place = out->gate_up.place = out->down.place = place;
    out->qkv.place.role = WEIGHT_VALUES;
    out->attn_out.place.role = WEIGHT_ATTN_OUT;
    out->down.place.role = WEIGHT_DOWN;
    out->qkv.by_head_dim = names->is_by_head ? d->head_dim : 0;
    out->gate_up.is_gate_up = d->has_gate;
    return st;
}

/* A table by position may have more rows than the context. name NULL: none. */
static enum tutti_status find_table(const struct tensor **out, const struct model_desc *d,
                                    const struct checkpoint *ck, const char *name, struct tutti_error *err)
{
    if (!name)
        return TUTTI_OK;
    enum tutti_status st = find_tensor(out, ck, name, 2, -1, d->d_model, err);
    if (st == TUTTI_OK && (*out)->shape[0] < d->n_ctx)
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: tensor %s: %" PRId64 " rows, expected one for each of %d positions", (*out)->file,
                       name, (*out)->shape[0], d->n_ctx);
    return st;
}

enum tutti_status weights_find_outer(struct outer_weights *out, const struct model_desc *d,
                                     const struct tensor_names *names, const struct checkpoint *ck,
                                     struct tutti_error *err)
{
    *out = (struct outer_weights){ 0 };
    struct wanted table = { .rows = { d->n_vocab }, .n_parts = 1, .n_in = d->d_model };
    enum tutti_status st = find_weight(&out->embedding, ck, &names->embedding, &table, 0, err);
    if (st == TUTTI_OK)
        st = find_table(&out->positions, d, ck, names->positions, err);
    if (st == TUTTI_OK)
        st = find_table(&out->top_query, d, ck, names->top_query, err);
    if (st == TUTTI_OK)
        st = find_norm(&out->embedding_norm, d, ck, names->embedding_norm, 0, err);
    if (st == TUTTI_OK)
        st = find_norm(&out->output_norm, d, ck, names->output_norm, 0, err);
    if (st == TUTTI_OK && !d->tied_output)
        st = find_weight(&out->output, ck, &names->output, &table, 0, err);
    out->embedding.place.role = d->tied_output ? WEIGHT_OUTPUT : WEIGHT_EMBEDDING;
    out->output.place.role = WEIGHT_OUTPUT;
    return st;
}

int64_t weights_by_head_row(int64_t n_rows, int head_dim, int64_t row)
{
    int64_t third = n_rows / 3, d = head_dim;
    int64_t kind = row / third, head = row % third / d;
    return (3 * head + kind) * d + row % d;
}

void *weights_transposed(const struct tensor *part)
{
    int64_t n_in = part->shape[0], n_out = part->shape[1];
    int size = dtype_block_bytes(part->dtype);
    void *owned;
    const uint8_t *in = tensor_bytes(part, &owned);
    uint8_t *out = in ? malloc(part->n_bytes) : NULL;
    enum { SQUARE = 32 }; /* in elements: the rows that are read and written stay in the L1 cache */
    for (int64_t r0 = 0; out && r0 < n_out; r0 += SQUARE) {
        for (int64_t c = 0; c < n_in; c++) {
            for (int64_t r = r0; r < n_out && r < r0 + SQUARE; r++)
                memcpy(out + (size_t)((r * n_in + c) * size), in + (size_t)((c * n_out + r) * size),
                       (size_t)size);
        }
    }
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

/* The more precise type of the two. */
static enum dtype finer(enum dtype a, enum dtype b)
{
    bool a_is_plain = dtype_block_elems(a) == 1, b_is_plain = dtype_block_elems(b) == 1;
    if (a == b)
        return a;
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
        type = finer(type, w->parts[p]->dtype);
    return type;
}

/* Panels of 32 rows: n_out is rounded up. */
uint64_t weights_type_bytes(enum dtype type, int n_in, int64_t n_out)
{
    size_t row = 0;
    if (!dtype_bytes(weights_fit_type(type, n_in), n_in, &row))
        return 0;
    return (uint64_t)((n_out + 31) / 32 * 32) * row;
}

uint64_t weights_packed_bytes(const struct weight *w, const struct weight_type *type)
{
    return weights_type_bytes(type ? weight_type_choose(type, &w->place) : weights_common_type(w), w->n_in,
                              w->n_out);
}

enum dtype weights_stored_type(const struct layer_weights *layer)
{
    int64_t elems[DTYPE_COUNT] = { 0 };
    const struct weight *all[] = { &layer->qkv, &layer->attn_out, &layer->gate_up, &layer->down };
    for (int i = 0; i < 4; i++) {
        for (int p = 0; p < all[i]->n_parts; p++)
            elems[all[i]->parts[p]->dtype] += all[i]->parts[p]->shape[0] * all[i]->parts[p]->shape[1];
    }
    enum dtype best = DTYPE_F32;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (elems[i] > elems[best])
            best = (enum dtype)i;
    }
    return best;
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
