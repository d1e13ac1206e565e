/* Reads virtual tokens: the soft prompts and prefixes that PEFT saves as prompt_embeddings, and the prefixes
 * of ChatGLM's P-Tuning v2. */
#include "model/adapters/adapter_reader.h"

#include "model/weights/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Floats of the keys of one position in a layer; 0: layers differ, or have no keys of their own. */
static int key_floats(const struct model_desc *d)
{
    const struct attn_desc *first = &d->kinds[0].attn;
    for (int i = 0; i < d->n_kinds; i++) {
        const struct attn_desc *a = &d->kinds[i].attn;
        if (a->n_latent > 0 || a->head_dim != first->head_dim || a->n_kv_heads != first->n_kv_heads)
            return 0;
    }
    return first->n_kv_heads * first->head_dim;
}

/* The source of key element i: GGUF's order of the pairs of a head differs where they are permuted. */
static int source_of(const struct adapter_reader *r, int i)
{
    const struct attn_desc *a = &r->desc->kinds[0].attn;
    int j = i % a->head_dim;
    if (!r->is_gguf || !r->family->is_permuted_in_gguf || a->rope != ROPE_INTERLEAVED)
        return i;
    return i - j + j / 2 + j % 2 * (a->head_dim / 2);
}

/* rows: [n][layers][keys, values][width], as every program stores a prefix. */
static enum tutti_status set_prefix(struct adapter_reader *r, const float *rows, int n,
                                    struct tutti_error *err)
{
    size_t n_layers = (size_t)r->desc->n_layers, width = (size_t)key_floats(r->desc), n_rows = (size_t)n;
    float *keys = malloc(n_layers * n_rows * 2 * width * sizeof *keys);
    if (!keys)
        return error_out_of_memory(r->tensors_path, err);
    for (size_t layer = 0; layer < n_layers; layer++) {
        for (size_t p = 0; p < n_rows; p++) {
            const float *from = rows + (p * n_layers + layer) * 2 * width;
            float *to = keys + (layer * n_rows + p) * 2 * width;
            for (size_t i = 0; i < width; i++)
                to[i] = from[source_of(r, (int)i)];
            memcpy(to + width, from + width, width * sizeof *to);
        }
    }
    r->out->virtual.keys = keys;
    r->out->virtual.n = n;
    return TUTTI_OK;
}

static enum tutti_status check_prefix(const struct adapter_reader *r, struct tutti_error *err)
{
    if (key_floats(r->desc) > 0)
        return TUTTI_OK;
    return error_set(err, TUTTI_E_UNSUPPORTED,
                     "%s: a prefix of keys and values does not fit a %s model, whose layers have latents, or "
                     "heads of several sizes",
                     r->config_path, r->family->name);
}

static enum tutti_status read_peft(struct adapter_reader *r, const struct tensor_set *file,
                                   struct tutti_error *err)
{
    const struct tensor *t = &file->tensors[0];
    bool is_prefix = r->kind == ADAPTER_PREFIX;
    bool is_chatglm = r->family == &FAMILY_CHATGLM || r->family == &FAMILY_CHATGLM_6B;
    const char *what = is_prefix ? "the configuration's tokens, the keys and values of all layers"
                                 : "the configuration's tokens, the model's width";
    if (file->n != 1 || strcmp(t->name, "prompt_embeddings") != 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: expected only the tensor prompt_embeddings",
                         r->tensors_path);
    enum tutti_status st = is_prefix ? check_prefix(r, err) : TUTTI_OK;
    if (r->desc->is_encoder || (!is_prefix && r->desc->has_prefix))
        st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: soft prompts do not fit a %s model", r->config_path,
                       r->family->name);
    int64_t n_columns = is_prefix ? (int64_t)r->desc->n_layers * 2 * key_floats(r->desc) : r->desc->d_model;
    if (st == TUTTI_OK)
        st = adapter_check_tensor(t, r->n_virtual, n_columns, what, err);
    float *rows = st == TUTTI_OK ? weights_to_floats(t, r->n_virtual) : NULL;
    if (st == TUTTI_OK && !rows)
        st = error_out_of_memory(r->tensors_path, err);
    if (st == TUTTI_OK && is_prefix)
        st = set_prefix(r, rows, r->n_virtual, err);
    r->out->virtual.is_before_zero = is_prefix && is_chatglm; /* their code counts its own ids only */
    if (st == TUTTI_OK && !is_prefix) {
        r->out->virtual.n = r->n_virtual;
        r->out->virtual.rows = rows;
        rows = NULL;
        /* The forward pass scales all embeddings. */
        bool is_scaled = r->desc->embedding_scale != 0 && !r->family->scales_soft_prompts;
        size_t n_floats = (size_t)r->n_virtual * (size_t)n_columns;
        for (size_t i = 0; is_scaled && i < n_floats; i++)
            r->out->virtual.rows[i] /= r->desc->embedding_scale;
    }
    free(rows);
    return st;
}

/* ---- ChatGLM ---- */

static const struct tensor *find_tensor(const struct tensor_set *file, const char *end)
{
    for (size_t i = 0; i < file->n; i++) {
        const char *at = strstr(file->tensors[i].name, "prefix_encoder.");
        if (at && strcmp(at + sizeof "prefix_encoder." - 1, end) == 0)
            return &file->tensors[i];
    }
    return NULL;
}

/* A layer of the network that computes a prefix: y [n][n_out] = x [n][n_in] . W^T + bias. */
struct projection {
    const struct tensor *weight, *bias;
    int64_t n_in, n_out;
};

static enum tutti_status find_projection(const struct adapter_reader *r, struct projection *out,
                                         const struct tensor_set *file, const char *weight, const char *bias,
                                         struct tutti_error *err)
{
    out->weight = find_tensor(file, weight);
    out->bias = find_tensor(file, bias);
    if (!out->weight || !out->bias)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: no tensor prefix_encoder.%s, which prefix_projection needs", r->tensors_path,
                         out->weight ? bias : weight);
    if (out->weight->n_dims != 2 || out->weight->shape[0] < 1 || out->weight->shape[1] < 1)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: expected a matrix", r->tensors_path,
                         out->weight->name);
    out->n_out = out->n_out > 0 ? out->n_out : out->weight->shape[0];
    enum tutti_status st = adapter_check_tensor(out->weight, out->n_out, out->n_in,
                                                "the next layer's width, the one before", err);
    return st == TUTTI_OK ? adapter_check_tensor(out->bias, out->n_out, 0, "the layer's width", err) : st;
}

/* NULL: out of memory. */
static float *project(const struct projection *p, const float *x, int n)
{
    float *w = weights_to_floats(p->weight, p->n_out), *bias = weights_to_floats(p->bias, 1);
    float *y = calloc((size_t)n * (size_t)p->n_out, sizeof *y);
    for (int64_t r = 0; w && bias && y && r < n; r++) {
        for (int64_t j = 0; j < p->n_out; j++) {
            double sum = (double)bias[j];
            for (int64_t i = 0; i < p->n_in; i++)
                sum += (double)w[j * p->n_in + i] * (double)x[r * p->n_in + i];
            y[r * p->n_out + j] = (float)sum;
        }
    }
    if (!w || !bias) {
        free(y);
        y = NULL;
    }
    free(w);
    free(bias);
    return y;
}

/* rows [n_virtual][...] of the embedding become the prefix; they are freed. NULL: error. */
static float *project_rows(struct adapter_reader *r, const struct tensor_set *file, float *rows,
                           int64_t n_columns, int64_t n_prefix, enum tutti_status *st,
                           struct tutti_error *err)
{
    struct projection first = { .n_in = n_columns }, second = { .n_out = n_prefix };
    *st = find_projection(r, &first, file, "trans.0.weight", "trans.0.bias", err);
    second.n_in = first.n_out;
    if (*st == TUTTI_OK)
        *st = find_projection(r, &second, file, "trans.2.weight", "trans.2.bias", err);
    float *hidden = *st == TUTTI_OK ? project(&first, rows, r->n_virtual) : NULL;
    for (int64_t i = 0; hidden && i < (int64_t)r->n_virtual * first.n_out; i++)
        hidden[i] = tanhf(hidden[i]);
    float *prefix = hidden ? project(&second, hidden, r->n_virtual) : NULL;
    if (*st == TUTTI_OK && !prefix)
        *st = error_out_of_memory(r->tensors_path, err);
    free(hidden);
    free(rows);
    return prefix;
}

static enum tutti_status read_chatglm(struct adapter_reader *r, const struct tensor_set *file,
                                      struct tutti_error *err)
{
    const struct tensor *t = find_tensor(file, "embedding.weight");
    size_t n_expected = r->has_projection ? 5 : 1;
    enum tutti_status st = check_prefix(r, err);
    if (st == TUTTI_OK && !t)
        st = error_set(err, TUTTI_E_FORMAT, "%s: no tensor transformer.prefix_encoder.embedding.weight",
                       r->tensors_path);
    for (size_t i = 0; i < file->n && st == TUTTI_OK; i++)
        if (file->n != n_expected || !strstr(file->tensors[i].name, "prefix_encoder."))
            st = error_set(err, TUTTI_E_UNSUPPORTED,
                           "%s: %zu tensors, one of them %s, expected the %zu of prefix_encoder only: open a "
                           "whole checkpoint as a model",
                           r->tensors_path, file->n, file->tensors[i].name, n_expected);
    if (st != TUTTI_OK)
        return st;
    int64_t n_prefix = (int64_t)r->desc->n_layers * 2 * key_floats(r->desc);
    int64_t n_columns = r->has_projection && t->n_dims == 2 && t->shape[1] > 0 ? t->shape[1] : n_prefix;
    st = adapter_check_tensor(t, r->n_virtual, n_columns, "pre_seq_len, the keys and values of all layers",
                              err);
    if (st != TUTTI_OK)
        return st;
    float *rows = weights_to_floats(t, r->n_virtual);
    if (!rows)
        return error_out_of_memory(r->tensors_path, err);
    if (r->has_projection)
        rows = project_rows(r, file, rows, n_columns, n_prefix, &st, err);
    if (st == TUTTI_OK)
        st = set_prefix(r, rows, r->n_virtual, err);
    r->out->virtual.is_before_zero = true;
    free(rows);
    return st;
}

enum tutti_status adapter_read_virtual(struct adapter_reader *r, const struct tensor_set *file,
                                       struct tutti_error *err)
{
    if (file->n == 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: no tensors", r->tensors_path);
    return r->kind == ADAPTER_CHATGLM ? read_chatglm(r, file, err) : read_peft(r, file, err);
}
