/* The forward pass of any model description: residual blocks of grouped-query attention and a
 * feed-forward layer. Vaswani et al., 2017; Zhang and Sennrich, 2019 (RMSNorm); Su et al., 2021
 * (rotary positions); Shazeer, 2020 (SwiGLU); Radford et al., 2019 (GPT-2); Zeng et al., 2021
 * (PanGu-Alpha's query layer); Wang et al., 2022 (scaled residuals); DeepSeek-AI, 2024 (DeepSeek-V3,
 * section 2.2: multi-token prediction); Devlin et al., 2018 (BERT).
 *
 * Tensor parallelism: each rank computes a partial sum of a block's output (split.h). In a step
 * with many rows each rank keeps the residual stream of only its own rows: a reduce-scatter sums
 * them, the rank computes their norms, and an all-gather distributes the normed rows. This costs
 * no more communication than an all-reduce and saves every rank the norms of the other ranks'
 * rows (sequence parallelism: Korthikanti et al., 2022, section 4.2.2). In a step with few rows
 * every rank keeps all rows. */
#include "model/forward.h"

#include "model/adapters/adapter.h"
#include "model/ranks/group.h"

#include <assert.h>
#include <stdlib.h>

/* The activations, in the backend's memory. */
struct workspace {
    int max_rows, max_outputs;
    /* Shared between ranks: */
    struct floats x;      /* [max_rows][d_model]: the residual stream */
    struct floats normed; /* [max_rows][d_model] */
    struct floats delta;  /* [max_rows][d_model]: a block's output */
    struct floats
        last; /* [max_rows][d_model]: normed hidden states of the last pass, for multi-token prediction (MTP) */
    /* Of the rank: */
    struct floats qkv;      /* [max_rows][(n_heads + 2 n_kv_heads) head_dim], of the widest layer */
    struct floats attended; /* [max_rows][n_heads head_dim], of the widest layer */
    struct floats kv;       /* [max_rows][2 n_kv_heads head_dim]; with a top query or latent attention */
    struct floats latent_q; /* [max_rows][n_heads head_dim], or results of heads; with latent attention */
    struct floats hidden;   /* [max_rows][d_ff], of the widest layer */
    struct floats scores;   /* [max_rows][n_experts + 1]: of the router; empty without experts */
    struct floats
        first_out; /* [max_rows][d_model]: of the first of two parallel blocks, until the other is computed */
    struct floats gathered; /* [max_rows][d_model]: the stream of the output rows */
    struct floats logits;   /* [max_outputs][n_vocab], of this rank's part of the vocabulary */
    struct floats whole;    /* with several ranks, on rank 0: [max_outputs][n_vocab] of all ranks */
    /* With MTP: */
    struct floats previous; /* [max_rows][d_model]: hidden states of the positions before, normed again */
    struct floats pair;     /* [max_rows][2 d_model]: normed embedding and hidden state */
    int32_t *previous_rows; /* host, [max_rows] */
    /* With adapters: */
    int32_t *row_adapters, *output_adapters; /* host, [max_rows] */
};

static void free_shared(struct workspace *w, struct backend *be)
{
    be->ops->dealloc_shared(be, w->x);
    be->ops->dealloc_shared(be, w->normed);
    be->ops->dealloc_shared(be, w->delta);
    be->ops->dealloc_shared(be, w->last);
}

/* Allocates all of them, even if one fails: all ranks do this together. */
static bool alloc_shared(struct workspace *w, struct backend *be, size_t n_floats, bool has_last)
{
    w->x = be->ops->alloc_shared(be, n_floats);
    w->normed = be->ops->alloc_shared(be, n_floats);
    w->delta = be->ops->alloc_shared(be, n_floats);
    w->last = has_last ? be->ops->alloc_shared(be, n_floats) : NO_FLOATS;
    return w->x.buffer && w->normed.buffer && w->delta.buffer && (w->last.buffer || !has_last);
}

void workspace_free(struct workspace *w, struct backend *be)
{
    if (!w)
        return;
    free_shared(w, be);
    const struct floats all[] = { w->qkv,       w->attended, w->kv,     w->latent_q, w->hidden,   w->scores,
                                  w->first_out, w->gathered, w->logits, w->whole,    w->previous, w->pair };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->ops->dealloc(be, all[i]);
    free(w->previous_rows);
    free(w->row_adapters);
    free(w->output_adapters);
    free(w);
}

/* The widest rows of any layer. */
struct widths {
    int q, kv, qkv, latent_q, ffn, scores;
};

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static struct widths find_widths(const struct model_desc *d)
{
    struct widths w = { 0 };
    for (int i = 0; i < d->n_kinds; i++) {
        const struct attn_desc *a = &d->kinds[i].attn;
        if (a->n_latent > 0) {
            int q = a->n_heads * a->head_dim, results = a->n_heads * a->value_dim;
            w.q = larger(w.q, larger(a->n_heads * a->n_latent, a->q_rank));
            w.kv = larger(w.kv, attn_latent_row(a));
            w.qkv = larger(w.qkv, larger(a->n_heads * attn_latent_row(a), a->q_rank));
            w.latent_q = larger(w.latent_q, larger(q, results));
        } else {
            w.q = larger(w.q, a->n_heads * a->head_dim);
            w.kv = larger(w.kv, d->has_top_query ? 2 * a->n_kv_heads * a->head_dim : 0);
            w.qkv = larger(w.qkv, (a->n_heads + (a->keys_are_values ? 1 : 2) * a->n_kv_heads) * a->head_dim);
        }
        const struct expert_desc *e = &d->kinds[i].ffn.experts;
        w.ffn = larger(w.ffn, larger(d->kinds[i].ffn.d_ff, e->d_shared));
        w.scores = larger(w.scores, e->routing.n_experts + e->gates_shared);
    }
    return w;
}

/* Attention and the feed-forward block, or the shared expert and the others. */
static bool has_parallel_blocks(const struct model_desc *d)
{
    bool has_any = d->ffn_place != FFN_SEQUENTIAL;
    for (int i = 0; i < d->n_kinds; i++)
        has_any = has_any || d->kinds[i].ffn.experts.has_norms;
    return has_any;
}

static enum tutti_status forward_reserve(struct model *model, int max_rows, int max_outputs,
                                         struct tutti_error *err)
{
    const struct model_desc *d = &model->local;
    struct backend *be = model->backend;
    struct workspace shared = { 0 };
    bool has_shared = alloc_shared(&shared, be, (size_t)max_rows * (size_t)d->d_model, d->uses_mtp);
    struct workspace *w = malloc(sizeof *w);
    enum tutti_status st = be->ops->reserve(be, max_rows, err);
    if (st == TUTTI_OK && (!has_shared || !w))
        st = error_set(err, TUTTI_E_MEMORY, "workspace: cannot reserve %d rows of %d floats", max_rows,
                       d->d_model);
    if (st != TUTTI_OK) {
        free_shared(&shared, be);
        free(w);
        return st;
    }
    *w = shared;
    w->max_rows = max_rows;
    w->max_outputs = max_outputs;
    struct widths widest = find_widths(d);
    w->row_adapters = calloc((size_t)max_rows, sizeof *w->row_adapters);
    w->output_adapters = calloc((size_t)max_rows, sizeof *w->output_adapters);
    w->previous_rows = calloc((size_t)max_rows, sizeof *w->previous_rows);
    if (!w->row_adapters || !w->output_adapters || !w->previous_rows) {
        workspace_free(w, be);
        return error_set(err, TUTTI_E_MEMORY, "workspace: out of memory");
    }
    const struct {
        struct floats *memory;
        int n_rows, width;
    } wanted[] = {
        { &w->qkv, max_rows, widest.qkv },
        { &w->attended, max_rows, widest.q },
        { &w->kv, max_rows, widest.kv },
        { &w->latent_q, max_rows, widest.latent_q },
        { &w->hidden, max_rows, widest.ffn },
        { &w->scores, max_rows, widest.scores },
        { &w->first_out, max_rows, has_parallel_blocks(d) ? d->d_model : 0 },
        { &w->gathered, max_rows, d->d_model },
        { &w->logits, max_outputs, d->is_headless ? 0 : d->n_vocab },
        { &w->previous, max_rows, d->uses_mtp ? d->d_model : 0 },
        { &w->pair, max_rows, d->uses_mtp ? 2 * d->d_model : 0 },
        { &w->whole, max_outputs, model->group && model_rank(model) == 0 ? model->desc.n_vocab : 0 },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].memory = be->ops->alloc(be, (size_t)wanted[i].n_rows * (size_t)wanted[i].width);
        if (!wanted[i].memory->buffer) {
            workspace_free(w, be);
            return error_set(err, TUTTI_E_MEMORY, "workspace: cannot reserve %d rows of %d floats",
                             wanted[i].n_rows, wanted[i].width);
        }
    }
    workspace_free(model->workspace, be);
    model->workspace = w;
    return TUTTI_OK;
}

enum tutti_status model_reserve(struct model *model, int max_rows, int max_outputs, struct tutti_error *err)
{
    const struct workspace *w = model->workspace;
    const struct backend_caps *caps = model->backend->caps;
    struct group *group = model->group;
    bool leads = model_rank(model) == 0;
    if (max_rows < 1 || max_rows > LIMIT_CONTEXT)
        return error_set(err, TUTTI_E_ARGUMENT, "rows of a step: %d, expected 1 to %d", max_rows,
                         LIMIT_CONTEXT);
    assert(max_outputs >= 1 && max_outputs <= max_rows);
    max_rows = backend_padded_rows(caps, max_rows);
    max_outputs = backend_padded_rows(caps, max_outputs);
    if (leads && w && w->max_rows == max_rows && w->max_outputs == max_outputs)
        return TUTTI_OK;
    if (group && leads && !group_lead_reserve(group, max_rows, max_outputs))
        return model_check(model, err);
    enum tutti_status st = forward_reserve(model, max_rows, max_outputs, err);
    return group ? cluster_agree(group->cluster, st, err) : st;
}

/* The current step, and the state of its residual stream. */
struct pass {
    const struct model *model;
    struct backend *be;
    const struct backend_ops *op;
    struct workspace w; /* a copy: x and normed may be swapped */
    struct kv_memory *kv;
    struct floats input;   /* of the current block, [n_rows][d_model] */
    struct floats pending; /* still to be added to x, [n_rows][d_model]; none: nothing */
    int n_rows;
    /* Each rank has only its own rows of x, normed and pending: begin to end - 1. */
    bool splits_rows;
    int begin, end;          /* else: all rows */
    const int32_t *adapters; /* [n_rows]; NULL: no row has one */
    const struct step *step;
    bool is_lost; /* a rank was lost: results are invalid */
};

/* Sums x [n_rows][d_model] over the ranks: all-reduce, or reduce-scatter with splits_rows. */
static void all_reduce(struct pass *p, struct floats x)
{
    int width = p->model->desc.d_model;
    if (!p->model->group || p->is_lost)
        return;
    p->is_lost = p->splits_rows ? !p->op->reduce_rows(p->be, x, p->n_rows, width)
                                : !p->op->reduce(p->be, x, (size_t)p->n_rows * (size_t)width);
}

/* All-gather: all ranks get all rows of x [n_rows][d_model]. */
static void all_gather(struct pass *p, struct floats x)
{
    if (p->splits_rows && !p->is_lost)
        p->is_lost = !p->op->all_gather_rows(p->be, x, p->n_rows, p->model->desc.d_model);
}

static const struct model_weight *weight(const struct pass *p, enum weight_slot slot, int layer)
{
    return model_weight(p->model, slot, layer);
}

/* y = x . W^T + bias, plus the update of each row's adapter. */
static void linear(struct pass *p, enum weight_slot slot, int layer, struct floats y, struct floats x)
{
    const struct matrix *m = slot == SLOT_OUTPUT ? model_output(p->model) : weight(p, slot, layer)->matrix;
    const struct lora *const *loras = p->adapters ? model_loras(p->model, slot, layer) : NULL;
    if (loras)
        p->op->linear_adapted(p->be, y, m, x, p->n_rows, loras, p->adapters);
    else
        p->op->linear(p->be, y, m, x, p->n_rows);
}

/* slot: gate and up of the layer, or of its shared expert. */
static void linear_glu(struct pass *p, enum weight_slot slot, int layer)
{
    const struct matrix *m = weight(p, slot, layer)->matrix;
    struct workspace *w = &p->w;
    enum activation act = model_layer(&p->model->desc, layer)->ffn.activation;
    const struct lora *const *loras = p->adapters ? model_loras(p->model, slot, layer) : NULL;
    if (loras)
        p->op->linear_glu_adapted(p->be, w->hidden, m, p->input, p->n_rows, act, loras, p->adapters);
    else
        p->op->linear_glu(p->be, w->hidden, m, p->input, p->n_rows, act);
}

/* y = norm(x), after adding add to x, if there is one: one pass for both. For a rank's own rows. */
static void norm_rows(struct pass *p, struct floats y, struct floats x, struct floats add,
                      enum weight_slot slot, int layer)
{
    const struct model_weight *norm = weight(p, slot, layer);
    const struct model_desc *d = &p->model->desc;
    size_t at = (size_t)p->begin * (size_t)d->d_model;
    int n = p->end - p->begin;
    const struct norm_update *const *norms = p->adapters ? model_norms(p->model, slot, layer) : NULL;
    y = floats_at(y, at);
    x = floats_at(x, at);
    add = add.buffer ? floats_at(add, at) : NO_FLOATS;
    if (norms)
        p->op->norm_adapted(p->be, y, x, add, norm->values, norm->bias, n, d->d_model, d->norm_eps, norms,
                            p->adapters + p->begin);
    else if (d->norm != NORM_RMS)
        p->op->layernorm(p->be, y, x, add, norm->values, norm->bias, n, d->d_model, d->norm_eps);
    else
        p->op->rmsnorm(p->be, y, x, add, norm->values, n, d->d_model, d->norm_eps);
}

/* y = norm of the stream, after adding what is pending to it. */
static void normalize_to(struct pass *p, struct floats y, enum weight_slot slot, int layer)
{
    norm_rows(p, y, p->w.x, p->pending, slot, layer);
    p->pending = NO_FLOATS;
}

static void normalize(struct pass *p, enum weight_slot slot, int layer)
{
    normalize_to(p, p->w.normed, slot, layer);
}

/* Adds what is pending to the stream, which is not normed next. */
static void add_pending(struct pass *p)
{
    int width = p->model->desc.d_model;
    size_t at = (size_t)p->begin * (size_t)width;
    struct floats x = floats_at(p->w.x, at);
    if (p->pending.buffer)
        p->op->scale_add(p->be, x, floats_at(p->pending, at), 1, x, p->end - p->begin, width);
    p->pending = NO_FLOATS;
}

/* Makes the input of a block, of all rows: normed, or the stream itself. norm: before the block. */
static void enter_block(struct pass *p, enum weight_slot norm, int layer)
{
    bool is_normed = slot_is_in(&p->model->desc, norm, layer);
    if (is_normed)
        normalize(p, norm, layer);
    else
        add_pending(p);
    p->input = is_normed ? p->w.normed : p->w.x;
    all_gather(p, p->input);
}

static void swap_stream(struct pass *p)
{
    struct floats x = p->w.x;
    p->w.x = p->w.normed;
    p->w.normed = x;
}

/* Adds a block's output, in delta, to the stream: at the next norm, or immediately if one of the two
 * is scaled. post_norm: its norm, if the model has_post_norms; or that of the sum. */
static void forward_join(struct pass *p, enum weight_slot post_norm, int layer)
{
    const struct model_desc *d = &p->model->desc;
    struct workspace *w = &p->w;
    size_t at = (size_t)p->begin * (size_t)d->d_model;
    int n = p->end - p->begin;
    p->pending = w->delta;
    if (d->norms_sums) {
        normalize(p, post_norm, layer);
        swap_stream(p);
        return;
    }
    if (d->has_post_norms) {
        norm_rows(p, w->normed, w->delta, NO_FLOATS, post_norm, layer);
        p->pending = w->normed;
    }
    if (d->block_scale != 0) {
        p->op->scale_add(p->be, floats_at(w->x, at), floats_at(p->pending, at), d->block_scale,
                         floats_at(w->x, at), n, d->d_model);
        p->pending = NO_FLOATS;
    }
    if (d->residual_scale != 0) {
        p->op->scale_add(p->be, floats_at(w->x, at), floats_at(w->normed, at), d->residual_scale,
                         floats_at(w->delta, at), n, d->d_model);
        p->pending = NO_FLOATS;
    }
}

/* The top layer of PanGu-Alpha: its q comes from a table by position, its k and v from the
 * stream. */
static void query_by_position(struct pass *p, int layer)
{
    const struct model_desc *d = &p->model->local;
    struct workspace *w = &p->w;
    const struct attn_desc *a = &model_layer(d, layer)->attn;
    int q = a->n_heads * a->head_dim, kv = 2 * a->n_kv_heads * a->head_dim;
    linear(p, SLOT_TOP_KV, layer, w->kv, w->normed);
    p->op->positions(p->be, w->normed, weight(p, SLOT_TOP_TABLE, 0)->values, 0, p->n_rows, d->d_model,
                     POSITIONS_REPLACE);
    linear(p, SLOT_TOP_QUERY, layer, w->attended, w->normed);
    p->op->concat(p->be, w->qkv, w->attended, q, w->kv, kv, p->n_rows);
}

/* Makes queries of latent attention, and stores latents. The up-projections of keys and values are absorbed:
 * queries are multiplied by that of keys, compared with latents, and the weighted sums of latents are
 * multiplied by that of values. Every row is computed in this form, so that its bits do not depend on
 * the chunk of a prompt that it is in. */
static void store_latents(struct pass *p, int i)
{
    const struct attn_desc *a = &model_layer(&p->model->local, i)->attn;
    struct workspace *w = &p->w;
    int n = a->n_heads, row = attn_latent_row(a);
    const struct head_rows keys = { n, n * a->head_dim, a->head_dim, n * row, row };
    /* Products with one input follow one another, so that a backend prepares it once. */
    linear(p, SLOT_KV_A, i, w->kv, p->input);
    if (a->q_rank > 0) {
        linear(p, SLOT_Q_A, i, w->qkv, p->input);
        p->op->rmsnorm(p->be, w->attended, w->qkv, NO_FLOATS, weight(p, SLOT_Q_A_NORM, i)->values, p->n_rows,
                       a->q_rank, a->latent_norm_eps);
        linear(p, SLOT_Q_B, i, w->latent_q, w->attended);
    } else {
        linear(p, SLOT_LATENT_Q, i, w->latent_q, p->input);
    }
    p->op->linear_heads(p->be, w->qkv, weight(p, SLOT_K_UP, i)->matrix, w->latent_q, p->n_rows, &keys);
    p->op->latent_store(p->be, w->qkv, w->latent_q, a->head_dim, w->kv, weight(p, SLOT_KV_A_NORM, i)->values,
                        p->kv, i);
}

/* Makes queries, and stores keys and values of the input. */
static void store_keys(struct pass *p, int i)
{
    struct workspace *w = &p->w;
    const struct model_desc *d = &p->model->local;
    if (model_layer(d, i)->attn.n_latent > 0) {
        store_latents(p, i);
        return;
    }
    if (d->has_top_query && i == d->n_layers - 1)
        query_by_position(p, i);
    else
        linear(p, SLOT_QKV, i, w->qkv, p->input);
    p->op->rope_store(p->be, w->qkv, weight(p, SLOT_Q_NORM, i)->values, weight(p, SLOT_K_NORM, i)->values,
                      p->kv, i);
    if (p->adapters && model_prefixes(p->model))
        p->op->prefix_store(p->be, p->kv, i, model_prefixes(p->model), p->adapters);
}

/* Leaves the other rows out of what follows in the pass. x: the stream, or what it is made of next. */
static void keep_outputs(struct pass *p, struct floats *x)
{
    p->op->gather(p->be, p->w.gathered, *x, p->pending, p->model->desc.d_model);
    p->pending = NO_FLOATS;
    *x = p->w.gathered;
    p->begin = 0;
    p->n_rows = p->end = p->step->n_outputs;
    p->adapters = p->adapters ? p->w.output_adapters : NULL;
}

/* model_ends_rows(), unless ranks have rows of their own, or rows with two outputs make more outputs than rows. */
static bool ends_rows(const struct pass *p, int i)
{
    return model_ends_rows(&p->model->desc, i) && !p->splits_rows && p->step->n_outputs <= p->step->n_rows;
}

/* y = attention of the input. */
static void attend(struct pass *p, int i, struct floats y)
{
    struct workspace *w = &p->w;
    const struct attn_desc *a = &model_layer(&p->model->local, i)->attn;
    int n = a->n_heads;
    const struct head_rows values = { n, n * a->n_latent, a->n_latent, n * a->value_dim, a->value_dim };
    struct floats attended = w->attended;
    store_keys(p, i);
    p->op->attention(p->be, attended, w->qkv, weight(p, SLOT_SINKS, i)->values, p->kv, i);
    if (ends_rows(p, i)) {
        p->op->gather(p->be, w->qkv, attended, NO_FLOATS, n * (a->n_latent > 0 ? a->n_latent : a->head_dim));
        attended = w->qkv;
        keep_outputs(p, p->model->desc.residual_scale != 0 ? &p->w.normed : &p->w.x);
    }
    if (a->n_latent == 0) {
        linear(p, SLOT_ATTN_OUT, i, y, attended);
        return;
    }
    p->op->linear_heads(p->be, w->latent_q, weight(p, SLOT_V_UP, i)->matrix, attended, p->n_rows, &values);
    linear(p, SLOT_ATTN_OUT, i, y, w->latent_q);
}

/* delta = the feed-forward block of the input; of experts the sum of those that each row uses. */
static void run_ffn(struct pass *p, int i)
{
    const struct ffn_desc *ffn = &model_layer(&p->model->local, i)->ffn;
    struct workspace *w = &p->w;
    if (ffn->has_gate) {
        linear_glu(p, SLOT_GATE_UP, i);
    } else {
        linear(p, SLOT_GATE_UP, i, w->hidden, p->input);
        p->op->activate(p->be, w->hidden, p->n_rows, ffn->d_ff, ffn->activation);
    }
    linear(p, SLOT_DOWN, i, w->delta, w->hidden);
}

/* delta, of the experts, becomes the sum of the outputs of both blocks, each normed. */
static void join_experts(struct pass *p, int i)
{
    struct workspace *w = &p->w;
    int width = p->model->desc.d_model;
    size_t at = (size_t)p->begin * (size_t)width;
    all_reduce(p, w->delta);
    norm_rows(p, w->normed, w->delta, NO_FLOATS, SLOT_EXPERT_POST_NORM, i);
    p->op->scale_add(p->be, floats_at(w->delta, at), floats_at(w->first_out, at), 1, floats_at(w->normed, at),
                     p->end - p->begin, width);
}

static void run_experts(struct pass *p, int i)
{
    const struct ffn_desc *ffn = &model_layer(&p->model->local, i)->ffn;
    const struct expert_desc *e = &ffn->experts;
    struct workspace *w = &p->w;
    const struct expert_layer layer = { .gate_up = weight(p, SLOT_EXPERT_GATE_UP, i)->matrix,
                                        .down = weight(p, SLOT_EXPERT_DOWN, i)->matrix,
                                        .routing = &e->routing,
                                        .bias = weight(p, SLOT_ROUTER_BIAS, i)->values,
                                        .factors = weight(p, SLOT_EXPERT_FACTORS, i)->values,
                                        .activation = ffn->activation,
                                        .has_base = e->d_shared > 0 && !e->has_norms,
                                        .gates_base = e->gates_shared };
    /* The shared expert first: a card has its input from the norm in the form that it needs, the router's is another. */
    if (e->d_shared > 0) {
        linear_glu(p, SLOT_SHARED_GATE_UP, i);
        linear(p, SLOT_SHARED_DOWN, i, w->delta, w->hidden);
    }
    if (e->has_norms) {
        all_reduce(p, w->delta);
        norm_rows(p, w->first_out, w->delta, NO_FLOATS, SLOT_SHARED_POST_NORM, i);
        enter_block(p, SLOT_ROUTER_NORM, i);
    }
    linear(p, SLOT_ROUTER, i, w->scores, p->input);
    if (e->router_scale != 0)
        p->op->scale(p->be, w->scores, e->router_scale, p->n_rows, e->routing.n_experts + e->gates_shared);
    if (e->has_norms)
        enter_block(p, SLOT_EXPERT_NORM, i);
    p->op->experts(p->be, w->delta, &layer, p->input, w->scores, p->n_rows);
    if (e->has_norms)
        join_experts(p, i);
}

static void run_layer(struct pass *p, int i)
{
    const struct model_desc *d = &p->model->local;
    struct workspace *w = &p->w;
    bool is_top = d->has_top_query && i == d->n_layers - 1, is_parallel = d->ffn_place != FFN_SEQUENTIAL;
    if (is_top) { /* its input is normed by what is the final norm of other models */
        normalize(p, SLOT_OUTPUT_NORM, 0);
        swap_stream(p);
    }
    enter_block(p, SLOT_ATTN_NORM, i);
    if (ends_rows(p, i) && p->step->n_outputs == 0) {
        store_keys(p, i);
        return;
    }
    struct floats attended = is_parallel ? w->first_out : w->delta;
    attend(p, i, attended);
    if (!is_parallel) {
        all_reduce(p, w->delta);
        forward_join(p, SLOT_ATTN_POST_NORM, i);
    }
    if (d->ffn_place != FFN_PARALLEL_ONE_NORM)
        enter_block(p, SLOT_FFN_NORM, i);
    if (ffn_has_experts(&model_layer(d, i)->ffn))
        run_experts(p, i);
    else
        run_ffn(p, i);
    if (is_parallel)
        p->op->scale_add(p->be, w->delta, w->first_out, 1, w->delta, p->n_rows, d->d_model);
    if (!model_layer(d, i)->ffn.experts.has_norms)
        all_reduce(p, w->delta);
    forward_join(p, SLOT_FFN_POST_NORM, i);
    if (!d->has_layer_scale)
        return;
    add_pending(p);
    p->op->scale(p->be, floats_at(p->w.x, (size_t)p->begin * (size_t)d->d_model),
                 weight(p, SLOT_LAYER_SCALE, i)->number, p->end - p->begin, d->d_model);
}

/* Scales and caps logits. */
static void finish_logits(struct pass *p, int n_logits)
{
    const struct model_desc *d = &p->model->desc;
    if (d->logit_scale != 0)
        p->op->scale(p->be, p->w.logits, d->logit_scale, n_logits, p->model->local.n_vocab);
    if (d->logit_softcap != 0)
        p->op->softcap(p->be, p->w.logits, d->logit_softcap, n_logits, p->model->local.n_vocab);
}

/* The score of an encoder's output rows, from their hidden states in x. */
static struct floats make_scores(struct pass *p, struct floats x)
{
    struct workspace *w = &p->w;
    int n = p->n_rows;
    linear(p, SLOT_POOLER, 0, w->delta, x);
    p->op->softcap(p->be, w->delta, 1, n, p->model->desc.d_model); /* tanh */
    linear(p, SLOT_SCORE, 0, w->hidden, w->delta);
    return w->hidden;
}

/* Computes logits only for the rows that need them. */
static void make_outputs(struct pass *p)
{
    const struct model_desc *d = &p->model->desc;
    const struct step *step = p->step;
    struct workspace *w = &p->w;
    int n_logits = step->n_outputs - step->n_hidden;
    if (!ends_rows(p, d->n_layers - 1)) {
        all_gather(p, w->x);
        if (p->pending.buffer)
            all_gather(p, p->pending);
        if (p->is_lost)
            return;
        keep_outputs(p, &w->x);
    }
    if (d->has_top_query || d->norms_sums) {
        add_pending(p);
        w->normed = w->x;
    } else {
        normalize(p, SLOT_OUTPUT_NORM, 0);
    }
    size_t width = (size_t)model_hidden_width(d);
    struct floats hidden = d->has_score ? make_scores(p, w->normed) : w->normed;
    if (step->n_hidden > 0 && step->hidden) /* on rank 0 */
        p->op->download(p->be, step->hidden, floats_at(hidden, (size_t)n_logits * width),
                        (size_t)step->n_hidden * width);
    if (n_logits == 0)
        return;
    p->n_rows = n_logits;
    linear(p, SLOT_OUTPUT, 0, w->logits, w->normed);
    finish_logits(p, n_logits);
}

/* ---- multi-token prediction ---- */

/* x = the input of the MTP layer: embeddings, and hidden states of the positions before, which are those
 * of rows [n_rows] of last, or of pages. */
static void enter_mtp(struct pass *p, const int32_t *rows)
{
    const struct model_desc *d = &p->model->desc;
    struct workspace *w = &p->w;
    int layer = d->n_layers, n = p->n_rows, width = d->d_model;
    const struct model_weight *table = d->has_mtp_embedding ? weight(p, SLOT_MTP_EMBEDDING, layer)
                                                            : weight(p, SLOT_EMBEDDING, 0);
    p->op->embed(p->be, w->x, table->matrix, p->model->group ? p->model->group->split.vocab.begin : 0);
    all_reduce(p, w->x);
    if (d->embedding_scale != 0)
        p->op->scale(p->be, w->x, d->embedding_scale, n, width);
    p->op->rmsnorm(p->be, w->normed, w->x, NO_FLOATS, weight(p, SLOT_MTP_EMBEDDING_NORM, layer)->values, n,
                   width, d->norm_eps);
    p->op->previous_rows(p->be, w->delta, w->last, rows, p->kv, width);
    p->op->rmsnorm(p->be, w->previous, w->delta, NO_FLOATS, weight(p, SLOT_MTP_HIDDEN_NORM, layer)->values, n,
                   width, d->norm_eps);
    p->op->concat(p->be, w->pair, w->normed, width, w->previous, width, n);
    linear(p, SLOT_MTP_JOIN, layer, w->x, w->pair);
}

/* Computes the MTP layer's keys and values of a step whose hidden states are in last. */
static void follow_by_mtp(struct pass *done)
{
    const struct step *step = done->step;
    struct pass p = { .model = done->model,
                      .be = done->be,
                      .op = done->op,
                      .w = *done->model->workspace,
                      .kv = done->kv,
                      .step = step,
                      .n_rows = step->n_rows,
                      .end = step->n_rows };
    int layer = p.model->desc.n_layers;
    for (int r = 0; r < step->n_rows; r++)
        p.w.previous_rows[r] = r > 0 && step->seqs[r] == step->seqs[r - 1] ? r - 1 : -1;
    enter_mtp(&p, p.w.previous_rows);
    enter_block(&p, SLOT_ATTN_NORM, layer);
    store_keys(&p, layer);
    done->is_lost = p.is_lost;
}

/* Submits the step. Returns the logits, which rank 0 gathers from all ranks. */
static struct floats submit_step(struct pass *p, int n_logits)
{
    const struct group *group = p->model->group;
    struct floats logits = p->w.logits;
    if (group) {
        logits = model_rank(p->model) == 0 ? p->w.whole : NO_FLOATS;
        if (n_logits > 0 && !p->is_lost)
            (void)p->op->collect(p->be, logits, p->w.logits, n_logits,
                                 group->vocab_begins); /* on failure model_is_lost() is true */
    }
    p->op->step_submit(p->be);
    return logits;
}

struct floats model_submit_mtp(struct model *model, struct kv_memory *kv, const struct step *step,
                               const int32_t *previous)
{
    const struct model_desc *d = &model->desc;
    struct group *group = model->group;
    struct pass p = { .model = model,
                      .be = model->backend,
                      .op = model->backend->ops,
                      .w = *model->workspace,
                      .kv = kv,
                      .step = step,
                      .n_rows = step->n_rows,
                      .end = step->n_rows };
    int layer = d->n_layers;
    assert(d->uses_mtp && step->n_rows <= p.w.max_outputs);
    if (group && group->split.rank == 0)
        p.is_lost = !group_lead_step(group, step, previous, model_page_tokens(model));
    p.op->step_begin(p.be, step);
    enter_mtp(&p, previous);
    if (!p.is_lost)
        run_layer(&p, layer);
    if (!p.is_lost) {
        normalize_to(&p, p.w.last, SLOT_MTP_OUTPUT_NORM, layer);
        p.op->linear(p.be, p.w.logits,
                     d->has_mtp_output ? weight(&p, SLOT_MTP_OUTPUT, layer)->matrix : model_output(model),
                     p.w.last, step->n_rows);
        finish_logits(&p, step->n_rows);
    }
    return submit_step(&p, step->n_rows);
}

void model_store_hidden(struct model *model, struct kv_memory *kv, const int32_t *rows,
                        const int32_t *page_ids, int n)
{
    struct group *group = model->group;
    if (group && group->split.rank == 0 && !group_lead_hidden(group, rows, page_ids, n))
        return; /* model_is_lost() is true */
    model->backend->ops->kv_store_rows(model->backend, kv, model->workspace->last, rows, page_ids, n);
}

/* The adapter of each row; NULL if no row has one. */
static const int32_t *spread_adapters(struct workspace *w, const struct step *step)
{
    bool has_any = false;
    for (int s = 0; step->adapters && s < step->n_seqs; s++)
        has_any = has_any || step->adapters[s] >= 0;
    if (!has_any)
        return NULL;
    for (int r = 0; r < step->n_rows; r++)
        w->row_adapters[r] = step->adapters[step->seqs[r]];
    for (int i = 0; i < step->n_outputs; i++)
        w->output_adapters[i] = w->row_adapters[step->output_rows[i]];
    return w->row_adapters;
}

struct floats model_submit(struct model *model, struct kv_memory *kv, const struct step *step)
{
    const struct model_desc *d = &model->desc;
    struct group *group = model->group;
    struct pass p = { .model = model,
                      .be = model->backend,
                      .op = model->backend->ops,
                      .w = *model->workspace,
                      .kv = kv,
                      .step = step,
                      .n_rows = step->n_rows,
                      .end = step->n_rows };
    for (int r = 0; (d->has_learned_positions || d->has_top_query) && r < step->n_rows; r++)
        assert(step->positions[r] < d->n_ctx);
    assert(step->n_outputs <= p.w.max_rows && step->n_outputs - step->n_hidden <= p.w.max_outputs);
    if (group && group->split.rank == 0)
        p.is_lost = !group_lead_step(group, step, NULL, model_page_tokens(model));
    if (group)
        p.splits_rows = group_own_rows(group, step->n_rows, d->d_model, &p.begin, &p.end);
    p.adapters = spread_adapters(model->workspace, step);
    p.op->step_begin(p.be, step);
    if (p.adapters && model_embeddings(model))
        p.op->embed_adapted(p.be, p.w.x, model_weight(model, SLOT_EMBEDDING, 0)->matrix,
                            model_embeddings(model), p.adapters);
    else
        p.op->embed(p.be, p.w.x, model_weight(model, SLOT_EMBEDDING, 0)->matrix,
                    group ? group->split.vocab.begin : 0);
    all_reduce(&p, p.w.x);
    if (d->embedding_scale != 0)
        p.op->scale(p.be, floats_at(p.w.x, (size_t)p.begin * (size_t)d->d_model), d->embedding_scale,
                    p.end - p.begin, d->d_model);
    if (d->has_learned_positions)
        p.op->positions(p.be, floats_at(p.w.x, (size_t)p.begin * (size_t)d->d_model),
                        floats_at(model_weight(model, SLOT_POSITIONS, 0)->values,
                                  (size_t)d->first_position_row * (size_t)d->d_model),
                        p.begin, p.end, d->d_model, POSITIONS_ADD);
    if (d->n_segments > 0)
        p.op->positions(p.be, floats_at(p.w.x, (size_t)p.begin * (size_t)d->d_model),
                        model_weight(model, SLOT_SEGMENTS, 0)->values, p.begin, p.end, d->d_model,
                        POSITIONS_ADD_SECOND);
    if (d->has_embedding_norm) {
        normalize(&p, SLOT_EMBEDDING_NORM, 0);
        swap_stream(&p);
    }
    for (int i = 0; i < d->n_layers && !p.is_lost; i++)
        run_layer(&p, i);
    if (d->uses_mtp) {
        normalize_to(&p, p.w.last, SLOT_OUTPUT_NORM, 0);
        all_gather(&p, p.w.last);
    }
    if (step->n_outputs > 0 && !p.is_lost)
        make_outputs(&p);
    if (d->uses_mtp && !p.is_lost)
        follow_by_mtp(&p);
    return submit_step(&p, step->n_outputs - step->n_hidden);
}

void model_wait(struct model *model)
{
    model->backend->ops->step_wait(model->backend);
}

void model_read_logits(const struct model *model, struct floats logits, int n_rows, float *host)
{
    struct backend *be = model->backend;
    be->ops->download(be, host, logits, (size_t)n_rows * (size_t)model->desc.n_vocab);
}
