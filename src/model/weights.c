#include "model/weights.h"

#include "kernels/quantize.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void shape_text(char *text, size_t size, const int64_t *shape, int n_dims)
{
    size_t n = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < n_dims && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < size)
        snprintf(text + n, size - n, "]");
}

/* n_rows -1: any number of rows. */
static enum tutti_status find_tensor(const struct tensor **out, const struct checkpoint *ck, const char *name,
                                     int n_dims, int64_t n_rows, int64_t n_cols, struct tutti_error *err)
{
    const struct tensor *t = checkpoint_find(ck, name);
    if (!t)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is missing", checkpoint_path(ck), name);
    int64_t want[2] = { n_rows, n_cols };
    const int64_t *wanted = n_dims == 2 ? want : want + 1;
    bool fits = t->n_dims == n_dims;
    for (int i = 0; i < n_dims && fits; i++)
        fits = wanted[i] == -1 ? t->shape[i] >= 1 : t->shape[i] == wanted[i];
    if (!fits) {
        char found[128], expected[128];
        shape_text(found, sizeof found, t->shape, t->n_dims);
        shape_text(expected, sizeof expected, wanted, n_dims);
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: shape %s, expected %s", t->file, name, found,
                         expected);
    }
    if (!dtype_is_weight(t->dtype))
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: type %s, expected f32, f16, bf16, q8_0 or q4_0",
                         t->file, name, dtype_name(t->dtype));
    *out = t;
    return TUTTI_OK;
}

static void layer_name(char *out, size_t size, const char *pattern, int layer)
{
    const char *mark = strstr(pattern, "%d");
    if (mark)
        snprintf(out, size, "%.*s%d%s", (int)(mark - pattern), pattern, layer, mark + 2);
    else
        snprintf(out, size, "%s", pattern);
}

static enum tutti_status find_bias(const struct tensor **out, const struct checkpoint *ck,
                                   const char *weight_name, int64_t n, struct tutti_error *err)
{
    static const char END[] = "weight";
    char name[LIMIT_TENSOR_NAME_BYTES];
    size_t stem = strlen(weight_name) - (sizeof END - 1);
    snprintf(name, sizeof name, "%.*sbias", (int)stem, weight_name);
    return find_tensor(out, ck, name, 1, 0, n, err);
}

/* patterns: [n_parts] names; rows: [n_parts]. */
static enum tutti_status find_weight(struct weight *w, const struct checkpoint *ck,
                                     const char *const *patterns, const int *rows, int n_parts, int n_in,
                                     int layer, bool has_bias, struct tutti_error *err)
{
    *w = (struct weight){ .n_parts = n_parts, .n_in = n_in };
    layer_name(w->name, sizeof w->name, patterns[0], layer);
    for (int i = 0; i < n_parts; i++) {
        char name[LIMIT_TENSOR_NAME_BYTES];
        layer_name(name, sizeof name, patterns[i], layer);
        enum tutti_status st = find_tensor(&w->parts[i], ck, name, 2, rows[i], n_in, err);
        if (st == TUTTI_OK && has_bias)
            st = find_bias(&w->biases[i], ck, name, rows[i], err);
        if (st != TUTTI_OK)
            return st;
        w->n_out += rows[i];
    }
    return TUTTI_OK;
}

static enum tutti_status find_vector(const struct tensor **out, const struct checkpoint *ck,
                                     const char *pattern, int layer, int n, struct tutti_error *err)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    layer_name(name, sizeof name, pattern, layer);
    return find_tensor(out, ck, name, 1, 0, n, err);
}

enum tutti_status weights_find_layer(struct layer_weights *out, const struct model_desc *d,
                                     const struct tensor_names *names, const struct checkpoint *ck, int layer,
                                     struct tutti_error *err)
{
    int q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim;
    bool one_qkv = !names->qkv[1], one_gate_up = !names->gate_up[1];
    int qkv_rows[3] = { one_qkv ? q + 2 * kv : q, kv, kv };
    int gate_rows[2] = { one_gate_up ? 2 * d->d_ff : d->d_ff, d->d_ff };
    enum tutti_status st = find_vector(&out->attn_norm, ck, names->attn_norm, layer, d->d_model, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->qkv, ck, names->qkv, qkv_rows, one_qkv ? 1 : 3, d->d_model, layer,
                         d->has_qkv_bias, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->attn_out, ck, &names->attn_out, &d->d_model, 1, q, layer, d->has_attn_out_bias,
                         err);
    if (st == TUTTI_OK)
        st = find_vector(&out->ffn_norm, ck, names->ffn_norm, layer, d->d_model, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->gate_up, ck, names->gate_up, gate_rows, one_gate_up ? 1 : 2, d->d_model, layer,
                         d->has_mlp_bias, err);
    if (st == TUTTI_OK)
        st = find_weight(&out->down, ck, &names->down, &d->d_model, 1, d->d_ff, layer, d->has_mlp_bias, err);
    out->gate_up.is_gate_up = true;
    return st;
}

enum tutti_status weights_find_outer(struct outer_weights *out, const struct model_desc *d,
                                     const struct tensor_names *names, const struct checkpoint *ck,
                                     struct tutti_error *err)
{
    *out = (struct outer_weights){ 0 };
    enum tutti_status st = find_weight(&out->embedding, ck, &names->embedding, &d->n_vocab, 1, d->d_model, 0,
                                       false, err);
    if (st == TUTTI_OK)
        st = find_vector(&out->output_norm, ck, names->output_norm, 0, d->d_model, err);
    if (st == TUTTI_OK && !d->tied_output)
        st = find_weight(&out->output, ck, &names->output, &d->n_vocab, 1, d->d_model, 0, false, err);
    return st;
}

enum dtype weights_fit_type(enum dtype want, int n_in)
{
    return n_in % dtype_block_elems(want) == 0 ? want : DTYPE_F16;
}

enum dtype weights_stored_type(const struct layer_weights *layer)
{
    int64_t elems[DTYPE_COUNT] = { 0 };
    const struct weight *all[] = { &layer->qkv, &layer->attn_out, &layer->gate_up, &layer->down };
    for (int i = 0; i < 4; i++) {
        for (int p = 0; p < all[i]->n_parts; p++)
            elems[all[i]->parts[p]->dtype] += all[i]->parts[p]->shape[0] * all[i]->n_in;
    }
    enum dtype best = DTYPE_F32;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (elems[i] > elems[best])
            best = (enum dtype)i;
    }
    return best;
}

float *weights_to_floats(const struct tensor *tensor)
{
    int64_t n = tensor->shape[0];
    float *values = malloc((size_t)n * sizeof *values);
    if (values)
        dequantize(values, tensor->data, tensor->dtype, n);
    return values;
}
