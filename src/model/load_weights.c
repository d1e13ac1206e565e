/* Weights from their tensors into the backend's memory: matrices packed, vectors and tables as float32. */
#include "model/load.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static void progress(struct loader *l, const struct tensor *t)
{
    l->done += t->n_bytes;
    if (l->options->progress)
        l->options->progress(l->options->user, l->done, l->total);
}

/* A weight as the parts that matrix_new() takes, and the memory behind them. */
struct sources {
    struct matrix_part *parts;
    const float **biases; /* [n_parts] into floats; NULL: none */
    int n_parts;
    void *made[MAX_PARTS]; /* what does not lie in the mapping as it is needed */
    float *floats[MAX_PARTS];
};

static void sources_clear(struct sources *s)
{
    for (int i = 0; i < MAX_PARTS; i++) {
        free(s->made[i]);
        free(s->floats[i]);
    }
    free(s->parts);
    free((void *)s->biases);
}

/* Runs of rows that lie one behind the other in the one tensor, q's heads first, then k's, then v's. */
static void cut_by_head(struct sources *s, const struct weight *w)
{
    const struct matrix_part whole = s->parts[0];
    const float *bias = s->biases ? s->biases[0] : NULL;
    size_t row_bytes = w->parts[0]->n_bytes / (size_t)w->n_out;
    s->n_parts = w->n_out / w->by_head_dim;
    for (int i = 0; i < s->n_parts; i++) {
        size_t row = (size_t)weights_by_head_row(w->n_out, w->by_head_dim, (int64_t)i * w->by_head_dim);
        s->parts[i] = whole;
        s->parts[i].data = (const uint8_t *)whole.data + row * row_bytes;
        s->parts[i].n_rows = w->by_head_dim;
        if (bias)
            s->biases[i] = bias + row;
    }
}

static bool sources_fill(struct sources *s, const struct weight *w)
{
    bool has_bias = false;
    size_t n_most = w->by_head_dim > 0 ? (size_t)(w->n_out / w->by_head_dim) : (size_t)w->n_parts;
    for (int i = 0; i < w->n_parts; i++)
        has_bias = has_bias || w->biases[i];
    *s = (struct sources){ .n_parts = w->n_parts, .parts = calloc(n_most, sizeof *s->parts) };
    if (has_bias)
        s->biases = calloc(n_most, sizeof *s->biases);
    if (!s->parts || (has_bias && !s->biases))
        return false;
    for (int i = 0; i < w->n_parts; i++) {
        const struct tensor *t = w->parts[i];
        s->parts[i] = (struct matrix_part){ .dtype = t->dtype,
                                            .n_rows = (int)t->shape[w->is_transposed ? 1 : 0] };
        s->parts[i].data = w->is_transposed ? (s->made[i] = weights_transposed(t))
                                            : tensor_bytes(t, &s->made[i]);
        if (!s->parts[i].data)
            return false;
        if (w->biases[i]) {
            s->biases[i] = s->floats[i] = weights_to_floats(w->biases[i], 1);
            if (!s->floats[i])
                return false;
        }
    }
    if (w->by_head_dim > 0)
        cut_by_head(s, w);
    return true;
}

static enum tutti_status pack(struct loader *l, struct matrix **out, const struct weight *w,
                              struct tutti_error *err)
{
    struct backend *be = l->model->backend;
    struct sources s;
    enum tutti_status st = TUTTI_OK;
    if (!sources_fill(&s, w)) {
        st = load_out_of_memory(l, err);
        goto done;
    }
    enum dtype want = l->type ? weight_type_choose(l->type, &w->place) : weights_common_type(w);
    struct matrix_source source = { .name = w->name,
                                    .parts = s.parts,
                                    .n_parts = s.n_parts,
                                    .n_in = w->n_in,
                                    .type = weights_fit_type(want, w->n_in),
                                    .is_gate_up = w->is_gate_up,
                                    .biases = s.biases };
    if (source.type != want && !l->said_fallback) {
        l->said_fallback = true;
        log_info("%s: %d columns are no multiple of %d, so it and its like run as %s", w->name, w->n_in,
                 dtype_block_elems(want), dtype_name(source.type));
    }
    st = be->ops->matrix_new(be, out, &source, err);
    if (st != TUTTI_OK)
        goto done;
    l->model->weight_bytes += be->ops->matrix_bytes(*out);
    l->model->n_params += (uint64_t)w->n_in * (uint64_t)w->n_out;
    for (int i = 0; i < w->n_parts; i++) {
        tensor_forget(w->parts[i]);
        progress(l, w->parts[i]);
    }
done:
    sources_clear(&s);
    return st;
}

/* tensor NULL: there is none, and *out stays NULL. */
static enum tutti_status upload(struct loader *l, float **out, const struct tensor *tensor, int64_t n_rows,
                                struct tutti_error *err)
{
    if (!tensor)
        return TUTTI_OK;
    struct backend *be = l->model->backend;
    size_t n = (size_t)(n_rows * tensor->shape[tensor->n_dims - 1]);
    float *values = weights_to_floats(tensor, n_rows);
    *out = be->ops->alloc(be, n);
    if (values && *out)
        be->ops->upload(be, *out, values, n);
    bool ok = values && *out;
    free(values);
    l->model->n_params += n;
    l->model->weight_bytes += n * sizeof(float);
    progress(l, tensor);
    return ok ? TUTTI_OK : load_out_of_memory(l, err);
}

static enum tutti_status upload_norm(struct loader *l, struct norm *norm, const struct norm_tensors *tensors,
                                     struct tutti_error *err)
{
    enum tutti_status st = upload(l, &norm->w, tensors->w, 1, err);
    return st == TUTTI_OK ? upload(l, &norm->b, tensors->b, 1, err) : st;
}

/* The top layer's q has another input than its k and v. */
static enum tutti_status pack_top_query(struct loader *l, const struct weight *qkv, struct tutti_error *err)
{
    struct weight query = *qkv, kv = *qkv;
    query.n_parts = 1;
    query.n_out = (int)query.parts[0]->shape[query.is_transposed ? 1 : 0];
    kv.n_parts = 2;
    kv.n_out -= query.n_out;
    memmove(kv.parts, qkv->parts + 1, 2 * sizeof *kv.parts);
    memmove(kv.biases, qkv->biases + 1, 2 * sizeof *kv.biases);
    enum tutti_status st = pack(l, &l->model->top_query.query, &query, err);
    return st == TUTTI_OK ? pack(l, &l->model->top_query.kv, &kv, err) : st;
}

static enum tutti_status load_layer(struct loader *l, int index, struct tutti_error *err)
{
    const struct model_desc *d = &l->model->desc;
    struct layer *layer = &l->model->layers[index];
    struct layer_weights w;
    enum tutti_status st = weights_find_layer(&w, d, l->names, l->ck, index, err);
    if (st == TUTTI_OK && index == 0)
        l->model->weight_type = l->type ? l->type->dtype : weights_stored_type(&w);
    if (st == TUTTI_OK)
        st = upload_norm(l, &layer->attn_norm, &w.attn_norm, err);
    if (st == TUTTI_OK)
        st = d->has_top_query && index == d->n_layers - 1 ? pack_top_query(l, &w.qkv, err)
                                                          : pack(l, &layer->qkv, &w.qkv, err);
    if (st == TUTTI_OK)
        st = upload(l, &layer->q_norm, w.q_norm, 1, err);
    if (st == TUTTI_OK)
        st = upload(l, &layer->k_norm, w.k_norm, 1, err);
    if (st == TUTTI_OK)
        st = pack(l, &layer->attn_out, &w.attn_out, err);
    if (st == TUTTI_OK)
        st = upload_norm(l, &layer->attn_post_norm, &w.attn_post_norm, err);
    if (st == TUTTI_OK)
        st = upload_norm(l, &layer->ffn_norm, &w.ffn_norm, err);
    if (st == TUTTI_OK)
        st = pack(l, &layer->gate_up, &w.gate_up, err);
    if (st == TUTTI_OK)
        st = pack(l, &layer->down, &w.down, err);
    if (st == TUTTI_OK)
        st = upload_norm(l, &layer->ffn_post_norm, &w.ffn_post_norm, err);
    return st;
}

enum tutti_status load_weights(struct loader *l, struct tutti_error *err)
{
    struct model *model = l->model;
    model->layers = calloc((size_t)model->desc.n_layers, sizeof *model->layers);
    if (!model->layers)
        return load_out_of_memory(l, err);
    struct outer_weights outer;
    enum tutti_status st = weights_find_outer(&outer, &model->desc, l->names, l->ck, err);
    if (st == TUTTI_OK)
        st = pack(l, &model->embedding, &outer.embedding, err);
    if (st == TUTTI_OK)
        st = upload_norm(l, &model->embedding_norm, &outer.embedding_norm, err);
    if (st == TUTTI_OK)
        st = upload(l, &model->positions, outer.positions, model->desc.n_ctx, err);
    if (st == TUTTI_OK)
        st = upload(l, &model->top_query.table, outer.top_query, model->desc.n_ctx, err);
    for (int i = 0; i < model->desc.n_layers && st == TUTTI_OK; i++)
        st = load_layer(l, i, err);
    if (st == TUTTI_OK)
        st = upload_norm(l, &model->output_norm, &outer.output_norm, err);
    if (st == TUTTI_OK && !model->desc.tied_output)
        st = pack(l, &model->output, &outer.output, err);
    else if (st == TUTTI_OK)
        model->output = model->embedding;
    return st;
}
