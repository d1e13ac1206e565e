/* One transformer, over any description: pre-norm residual blocks of grouped attention and a gated feed-forward layer.
 * Vaswani et al., 2017; Zhang and Sennrich, 2019 (RMSNorm); Su et al., 2021 (rotary positions); Shazeer, 2020 (SwiGLU). */
#include "model/forward.h"

#include <stdlib.h>

/* The backend's memory. A residual stream, and what is computed from it on the way. */
struct workspace {
    int max_rows;
    float *x;        /* [max_rows][d_model]: the residual stream */
    float *normed;   /* [max_rows][d_model] */
    float *delta;    /* [max_rows][d_model]: what a block adds to the stream */
    float *qkv;      /* [max_rows][(n_heads + 2 n_kv_heads) head_dim] */
    float *attended; /* [max_rows][n_heads head_dim] */
    float *hidden;   /* [max_rows][d_ff] */
    float *gathered; /* [max_rows][d_model]: the stream of the rows that sample */
    float *logits;   /* [max_rows][n_vocab]; touched only as far as a step has outputs */
};

void workspace_free(struct workspace *w, struct backend *be)
{
    if (!w)
        return;
    float *const all[] = {
        w->x, w->normed, w->delta, w->qkv, w->attended, w->hidden, w->gathered, w->logits
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->ops->dealloc(be, all[i]);
    free(w);
}

enum tutti_status model_reserve(struct model *model, int max_rows, struct tutti_error *err)
{
    const struct model_desc *d = &model->desc;
    struct backend *be = model->backend;
    if (max_rows < 1 || max_rows > LIMIT_CONTEXT)
        return error_set(err, TUTTI_E_ARGUMENT, "rows of a step: %d, expected 1 to %d", max_rows,
                         LIMIT_CONTEXT);
    if (model->workspace && model->workspace->max_rows == max_rows)
        return TUTTI_OK;
    enum tutti_status st = be->ops->reserve(be, max_rows, err);
    if (st != TUTTI_OK)
        return st;
    struct workspace *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(err, TUTTI_E_MEMORY, "workspace: out of memory");
    w->max_rows = max_rows;
    int q = d->n_heads * d->head_dim, qkv = q + 2 * d->n_kv_heads * d->head_dim;
    const struct {
        float **memory;
        int width;
    } wanted[] = { { &w->x, d->d_model },        { &w->normed, d->d_model },
                   { &w->delta, d->d_model },    { &w->qkv, qkv },
                   { &w->attended, q },          { &w->hidden, d->d_ff },
                   { &w->gathered, d->d_model }, { &w->logits, d->n_vocab } };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].memory = be->ops->alloc(be, (size_t)max_rows * (size_t)wanted[i].width);
        if (!*wanted[i].memory) {
            workspace_free(w, be);
            return error_set(err, TUTTI_E_MEMORY, "workspace: cannot reserve %d rows of %d floats", max_rows,
                             wanted[i].width);
        }
    }
    workspace_free(model->workspace, be);
    model->workspace = w;
    return TUTTI_OK;
}

void model_forward(struct model *model, struct kv_memory *kv, const struct step *step, float *logits)
{
    const struct model_desc *d = &model->desc;
    const struct workspace *w = model->workspace;
    struct backend *be = model->backend;
    const struct backend_ops *op = be->ops;
    int n = step->n_rows;

    op->step_begin(be, step);
    op->embed(be, w->x, model->embedding);
    for (int i = 0; i < d->n_layers; i++) {
        const struct layer *layer = &model->layers[i];
        /* The feed-forward output of the layer before joins the stream here, in one pass with the norm. */
        op->rmsnorm(be, w->normed, w->x, i > 0 ? w->delta : NULL, layer->attn_norm.w, n, d->d_model,
                    d->norm_eps);
        op->linear(be, w->qkv, layer->qkv, w->normed, n);
        op->rope_store(be, w->qkv, NULL, NULL, kv, i);
        op->attention(be, w->attended, w->qkv, kv, i);
        op->linear(be, w->delta, layer->attn_out, w->attended, n);
        op->rmsnorm(be, w->normed, w->x, w->delta, layer->ffn_norm.w, n, d->d_model, d->norm_eps);
        op->linear_glu(be, w->hidden, layer->gate_up, w->normed, n, d->activation);
        op->linear(be, w->delta, layer->down, w->hidden, n);
    }
    int n_outputs = step->n_outputs;
    if (n_outputs > 0) { /* only rows that sample pay for the vocabulary */
        op->gather(be, w->gathered, w->x, w->delta, d->d_model);
        op->rmsnorm(be, w->normed, w->gathered, NULL, model->output_norm.w, n_outputs, d->d_model,
                    d->norm_eps);
        op->linear(be, w->logits, model->output, w->normed, n_outputs);
    }
    op->step_end(be, w->logits, logits, (size_t)n_outputs * (size_t)d->n_vocab);
}
