/* Loads weights into the backend's memory: matrices are packed, vectors and tables converted to
 * float32. */
#include "model/load/load.h"

#include "base/log.h"
#include "checkpoint/shards/shard_manifest.h"
#include "model/forward.h"
#include "model/load/assemble.h"
#include "model/ranks/group.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void progress(struct loader *l, const struct tensor *t)
{
    l->done += t->n_bytes;
    if (l->options->progress)
        l->options->progress(l->options->user, l->done, l->total);
}

/* A weight as the parts for matrix_new(), and their memory. */
struct sources {
    struct matrix_part *parts;
    const float **biases;    /* [n_parts] into floats; NULL: none */
    const uint16_t **orders; /* of joined matrices, [n]: of their columns; NULL: none */
    int n_parts;
    void *made[MAX_PARTS]; /* copies of parts that cannot be used in the mapping */
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
    free((void *)s->orders);
}

/* Splits the one tensor, whose heads are stored by KV head, into runs of rows in the model's order. */
static void cut_by_head(struct sources *s, const struct weight *w)
{
    const struct matrix_part whole = s->parts[0];
    const float *bias = s->biases ? s->biases[0] : NULL;
    size_t row_bytes = w->parts[0]->n_bytes / (size_t)w->n_out;
    int head_dim = w->order.head_dim;
    s->n_parts = w->n_out / head_dim;
    for (int i = 0; i < s->n_parts; i++) {
        size_t row = (size_t)weights_stored_row(&w->order, w->n_out, (int64_t)i * head_dim);
        s->parts[i] = whole;
        s->parts[i].data = (const uint8_t *)whole.data + row * row_bytes;
        s->parts[i].n_rows = head_dim;
        if (bias)
            s->biases[i] = bias + row;
    }
}

/* NULL: out of memory. */
static float *make_unit_rows(struct matrix_part *part, const struct tensor *t)
{
    float *rows = weights_to_floats(t, t->shape[0]);
    if (rows)
        weights_make_unit_rows(rows, t->shape[0], t->shape[1]);
    part->dtype = DTYPE_F32;
    return rows;
}

/* Whether weights are stored as 8-bit floats. */
static bool is_from_float8(const struct tensor *t)
{
    while (t->source && t->source->n_from > 0)
        t = t->source->from[0];
    return t->dtype == DTYPE_F8_E4M3;
}

/* 8-bit floats have a code for what is no number, which linear layers would take for one. TUTTI_E_FORMAT:
 * there is such a weight. */
static enum tutti_status check_float8(struct backend *be, const void *bytes, const struct tensor *t,
                                      struct tutti_error *err)
{
    if (!is_from_float8(t))
        return TUTTI_OK;
    int64_t n_columns = t->shape[1], at = assemble_find_nan(be, bytes, t->dtype, t->shape[0], n_columns);
    if (at < 0)
        return TUTTI_OK;
    return error_set(
        err, TUTTI_E_FORMAT,
        "%s: tensor %s: the weight in row %lld and column %lld is no number, or its scale is "
        "not or is 2^100 or more, expected finite weights: the file is damaged, or was quantized "
        "from such weights",
        t->file, t->name, (long long)(at / n_columns), (long long)(at % n_columns));
}

static enum tutti_status sources_fill(struct backend *be, struct sources *s, const struct weight *w,
                                      struct tutti_error *err)
{
    bool has_bias = false;
    size_t n_most = w->order.head_dim > 0 ? (size_t)(w->n_out / w->order.head_dim) : (size_t)w->n_parts;
    assert(n_most > 0);
    for (int i = 0; i < w->n_parts; i++)
        has_bias = has_bias || w->biases[i];
    *s = (struct sources){ .n_parts = w->n_parts, .parts = calloc(n_most, sizeof *s->parts) };
    if (has_bias)
        s->biases = calloc(n_most, sizeof *s->biases);
    if (!s->parts || (has_bias && !s->biases))
        return error_out_of_memory(w->name, err);
    for (int i = 0; i < w->n_parts; i++) {
        const struct tensor *t = w->parts[i];
        s->parts[i] = (struct matrix_part){ .dtype = t->dtype,
                                            .n_rows = (int)t->shape[w->is_transposed ? 1 : 0] };
        if (w->has_unit_rows)
            s->parts[i].data = s->made[i] = make_unit_rows(&s->parts[i], t);
        else
            s->parts[i].data = assemble_matrix(be, t, w->is_transposed, &s->made[i]);
        if (!s->parts[i].data)
            return error_out_of_memory(t->file, err);
        enum tutti_status st = w->has_unit_rows ? TUTTI_OK : check_float8(be, s->parts[i].data, t, err);
        if (st != TUTTI_OK)
            return st;
        if (w->biases[i]) {
            s->biases[i] = s->floats[i] = weights_to_floats(w->biases[i], 1);
            if (!s->floats[i])
                return error_out_of_memory(t->file, err);
        }
    }
    if (w->order.head_dim > 0)
        cut_by_head(s, w);
    return TUTTI_OK;
}

/* Keeps only the rows of the runs, in their order. False: out of memory. */
static bool cut_rows(struct sources *s, const struct split_part *part, int n_in)
{
    int n_most = s->n_parts * part->n_runs, n = 0;
    struct matrix_part *parts = calloc((size_t)n_most, sizeof *parts);
    const float **biases = s->biases ? calloc((size_t)n_most, sizeof *biases) : NULL;
    if (!parts || (s->biases && !biases)) {
        free(parts);
        free((void *)biases);
        return false;
    }
    for (int k = 0; k < part->n_runs; k++) {
        for (int i = 0, row = 0; i < s->n_parts; row += s->parts[i++].n_rows) {
            const struct matrix_part *whole = &s->parts[i];
            int begin = part->runs[k].begin - row, end = part->runs[k].end - row;
            size_t row_bytes = 0;
            begin = begin > 0 ? begin : 0;
            end = end < whole->n_rows ? end : whole->n_rows;
            if (begin >= end || !dtype_bytes(whole->dtype, n_in, &row_bytes))
                continue; /* matrix_new() names a type whose blocks do not fit */
            parts[n] = *whole;
            parts[n].data = (const uint8_t *)whole->data + (size_t)begin * row_bytes;
            parts[n].n_rows = end - begin;
            if (biases)
                biases[n] = s->biases[i] ? s->biases[i] + begin : NULL;
            n++;
        }
    }
    free(s->parts);
    free((void *)s->biases);
    s->parts = parts;
    s->biases = biases;
    s->n_parts = n;
    return true;
}

/* Keeps only the columns of the one run, which begins and ends at block borders. Only rank 0 adds
 * the bias. */
static void cut_columns(struct sources *s, const struct split_part *part, int n_in, bool has_bias)
{
    for (int i = 0; i < s->n_parts; i++) {
        size_t before = 0;
        if (!dtype_bytes(s->parts[i].dtype, n_in, &s->parts[i].stride) ||
            !dtype_bytes(s->parts[i].dtype, part->runs[0].begin, &before))
            continue;
        s->parts[i].data = (const uint8_t *)s->parts[i].data + before;
    }
    if (!has_bias) {
        free((void *)s->biases);
        s->biases = NULL;
    }
}

/* The type in which a matrix runs. It depends on the whole matrix, of all n_experts, so that the
 * number of ranks makes no difference. */
static enum dtype type_of(const struct loader *l, const struct weight *w, int n_experts, enum dtype *want)
{
    *want = weights_run_type(w, l->type);
    for (int e = 1; e < n_experts; e++)
        *want = weights_finer_type(*want, weights_run_type(&w[e], l->type));
    return weights_fit_type(*want, w->n_in);
}

/* The description that the stored tensors must match. */
static const struct model_desc *stored_desc(const struct loader *l)
{
    return l->is_cut ? &l->model->local : &l->model->desc;
}

/* Keeps only part of the whole weight. If the tensors are already this rank's part, only decides
 * about the bias. False: out of memory. */
static bool cut(const struct loader *l, struct sources *s, const struct weight *w,
                const struct split_part *part)
{
    bool has_bias = model_rank(l->model) == 0;
    if (part->kind == SPLIT_ROWS && !l->is_cut)
        return cut_rows(s, part, w->n_in);
    if (part->kind == SPLIT_COLUMNS && !l->is_cut)
        cut_columns(s, part, w->n_in, has_bias);
    if (part->kind == SPLIT_COLUMNS && l->is_cut && !has_bias) {
        free((void *)s->biases);
        s->biases = NULL;
    }
    return true;
}

/* Joins the parts of n matrices, which have equally many; w: these. False: out of memory. */
static bool weights_join_parts(struct sources *out, const struct sources *s, const struct weight *w, int n)
{
    size_t n_all = (size_t)n * (size_t)s->n_parts;
    assert(n_all > 0);
    *out = (struct sources){ .parts = calloc(n_all, sizeof *out->parts) };
    if (s->biases)
        out->biases = calloc(n_all, sizeof *out->biases);
    bool has_order = false; /* the groups may be in order in one expert and not in another */
    for (int e = 0; e < n; e++)
        has_order = has_order || w[e].parts[0]->order;
    if (has_order)
        out->orders = calloc((size_t)n, sizeof *out->orders);
    if (!out->parts || (s->biases && !out->biases) || (has_order && !out->orders))
        return false;
    for (int e = 0; e < n; e++) {
        if (has_order)
            out->orders[e] = w[e].parts[0]->order;
        for (int i = 0; i < s[e].n_parts; i++, out->n_parts++) {
            out->parts[out->n_parts] = s[e].parts[i];
            if (out->biases)
                out->biases[out->n_parts] = s[e].biases[i];
        }
    }
    return true;
}

/* A matrix that is loaded: of experts all of theirs. */
struct packing {
    struct weight *weights;  /* [n] */
    struct sources *sources; /* [n] */
    struct sources all;
    int n;
};

static void packing_clear(struct packing *p)
{
    for (int e = 0; p->sources && e < p->n; e++)
        sources_clear(&p->sources[e]);
    sources_clear(&p->all);
    free(p->sources);
    free(p->weights);
}

/* Whether ranks share the matrix' columns: then it has no compact type, whatever their number. */
static bool splits_columns(const struct loader *l, enum weight_slot slot)
{
    return l->model->group && split_kind(slot) == SPLIT_COLUMNS;
}

static enum tutti_status find_all(struct loader *l, struct packing *p, const struct slot_at *at,
                                  struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    p->n = slot_shape(stored_desc(l), at->slot, at->layer).n_experts;
    p->weights = calloc((size_t)p->n, sizeof *p->weights);
    p->sources = calloc((size_t)p->n, sizeof *p->sources);
    if (!p->weights || !p->sources)
        return load_out_of_memory(l, err);
    for (int e = 0; e < p->n && st == TUTTI_OK; e++) {
        const struct slot_at of_expert = { at->slot, at->layer, e };
        st = weights_find(&p->weights[e], stored_desc(l), l->names, l->ck, &of_expert, err);
        p->weights[e].place = weights_place(&l->model->desc, at->slot, at->layer);
    }
    if (st == TUTTI_OK && !l->type)
        weights_use_compact(p->weights, p->n, splits_columns(l, at->slot));
    return st;
}

static void weights_count(struct loader *l, const struct packing *p, const struct split_part *part,
                          int n_whole)
{
    for (int e = 0; e < p->n; e++) {
        const struct weight *w = &p->weights[e];
        uint64_t n_params = (uint64_t)w->n_in * (uint64_t)w->n_out; /* of the whole model, on every rank */
        bool is_part = l->is_cut && part->kind != SPLIT_WHOLE;
        l->model->n_params += is_part ? n_params / (uint64_t)part->n * (uint64_t)n_whole : n_params;
        for (int i = 0; i < w->n_parts; i++) {
            tensor_forget(w->parts[i]);
            progress(l, w->parts[i]);
        }
    }
}

/* part: this rank's part of it, of n_whole rows or columns. */
static enum tutti_status pack_part(struct loader *l, struct matrix **out, struct packing *p,
                                   const struct split_part *part, int n_whole, struct tutti_error *err)
{
    struct backend *be = l->model->backend;
    const struct weight *w = p->weights;
    bool is_of_experts = slot_info(w->slot)->is_of_experts;
    for (int e = 0; e < p->n; e++) {
        enum tutti_status st = sources_fill(be, &p->sources[e], &w[e], err);
        if (st != TUTTI_OK)
            return st;
        if (!cut(l, &p->sources[e], &w[e], part))
            return load_out_of_memory(l, err);
    }
    if (!weights_join_parts(&p->all, p->sources, w, p->n))
        return load_out_of_memory(l, err);
    enum dtype want, type = type_of(l, w, p->n, &want);
    struct matrix_source source = { .name = w->name,
                                    .parts = p->all.parts,
                                    .n_parts = p->all.n_parts,
                                    .n_in = part->kind == SPLIT_COLUMNS ? part->n : w->n_in,
                                    .type = type,
                                    .is_gate_up = w->is_gate_up,
                                    .orders = p->all.orders,
                                    .biases = p->all.biases };
    if (is_of_experts) {
        source.n_experts = p->n;
        source.n_chosen = model_layer(&l->model->desc, w->layer)->ffn.experts.routing.n_chosen;
    }
    if (type != want && !l->said_fallback) {
        l->said_fallback = true;
        log_info("%s: %d columns are no multiple of %d, so it and its like run as %s", w->name, w->n_in,
                 dtype_block_elems(want), dtype_name(type));
    }
    enum tutti_status st = be->ops->matrix_new(be, out, &source, err);
    if (st != TUTTI_OK)
        return st;
    l->model->weight_bytes += be->ops->matrix_bytes(*out);
    weights_count(l, p, part, n_whole);
    return TUTTI_OK;
}

/* Packs a matrix: this rank's part of it. */
static enum tutti_status pack(struct loader *l, struct matrix **out, const struct slot_at *at,
                              struct tutti_error *err)
{
    const struct split_target target = { .slot = at->slot, .layer = at->layer, .part = SPLIT_ALL_PARTS };
    struct split_part part = { .kind = SPLIT_WHOLE };
    struct packing p = { 0 };
    if (l->model->group)
        part = split_part(&l->model->group->split, &l->model->desc, &target);
    enum tutti_status st = find_all(l, &p, at, err);
    if (st == TUTTI_OK)
        st = pack_part(l, out, &p, &part, split_n_whole(&l->model->desc, &target), err);
    packing_clear(&p);
    return st;
}

/* tensor NULL: none, *out stays none. added: to every element. own: the elements that this rank has;
 * NULL: all. */
static enum tutti_status upload(struct loader *l, struct floats *out, const struct tensor *tensor,
                                int64_t n_rows, float added, const struct split_range *own,
                                struct tutti_error *err)
{
    if (!tensor)
        return TUTTI_OK;
    struct backend *be = l->model->backend;
    size_t n = (size_t)(n_rows * tensor->shape[tensor->n_dims - 1]);
    size_t first = own ? (size_t)own->begin : 0, n_own = own ? (size_t)(own->end - own->begin) : n;
    float *values = weights_to_floats(tensor, n_rows);
    for (size_t i = 0; values && added != 0 && i < n; i++)
        values[i] += added;
    if (values)
        *out = be->ops->alloc_constant(be, values + first, n_own);
    bool ok = out->buffer != NULL;
    free(values);
    l->model->n_params += n;
    l->model->weight_bytes += n_own * sizeof(float);
    progress(l, tensor);
    return ok ? TUTTI_OK : load_out_of_memory(l, err);
}

/* A norm that subtracts the mean, but has no bias: the backend adds zeros. */
static enum tutti_status add_zero_bias(struct loader *l, struct model_weight *out, int n,
                                       struct tutti_error *err)
{
    float *zeros = calloc((size_t)n, sizeof *zeros);
    if (zeros)
        out->bias = l->model->backend->ops->alloc_constant(l->model->backend, zeros, (size_t)n);
    free(zeros);
    l->model->weight_bytes += (uint64_t)n * sizeof *zeros;
    return out->bias.buffer ? TUTTI_OK : load_out_of_memory(l, err);
}

static enum tutti_status load_number(struct loader *l, float *out, const struct tensor *tensor,
                                     struct tutti_error *err)
{
    float *value = weights_to_floats(tensor, 1);
    if (!value)
        return load_out_of_memory(l, err);
    *out = value[0];
    free(value);
    l->model->n_params++;
    progress(l, tensor);
    return TUTTI_OK;
}

static enum tutti_status load_weight(struct loader *l, const struct slot_at *at, struct tutti_error *err)
{
    struct model_weight *out = model_weight(l->model, at->slot, at->layer);
    struct weight w;
    const struct split_target target = { .slot = at->slot, .layer = at->layer, .part = SPLIT_ALL_PARTS };
    struct split_part part = { .kind = SPLIT_WHOLE };
    weight_part_begin(l->model, at->slot, at->layer);
    if (slot_info(at->slot)->kind == SLOT_MATRIX)
        return pack(l, &out->matrix, at, err);
    if (l->model->group && !l->is_cut)
        part = split_part(&l->model->group->split, &l->model->desc, &target);
    enum tutti_status st = weights_find(&w, stored_desc(l), l->names, l->ck, at, err);
    if (st == TUTTI_OK && slot_info(at->slot)->kind == SLOT_NUMBER)
        return load_number(l, &out->number, w.parts[0], err);
    if (st == TUTTI_OK)
        st = upload(l, &out->values, w.parts[0], w.n_out, w.is_less_one ? 1 : 0,
                    part.kind == SPLIT_ELEMENTS ? &part.runs[0] : NULL, err);
    if (st == TUTTI_OK && w.has_zero_bias)
        return add_zero_bias(l, out, w.n_in, err);
    return st == TUTTI_OK ? upload(l, &out->bias, w.biases[0], 1, 0, NULL, err) : st;
}

/* The larger of the block sizes of the stored type and the type to run: all are 1, 32, 128 or 256. */
static int block_of(const struct loader *l, const struct weight *w)
{
    enum dtype want;
    int n = dtype_block_elems(type_of(l, w, 1, &want)), n_stored = dtype_block_elems(weights_common_type(w));
    return n > n_stored ? n : n_stored;
}

/* Checks that the parts are split as in this run. */
static enum tutti_status check_cut(const struct loader *l, struct tutti_error *err)
{
    const struct shard_manifest *manifest = checkpoint_shard(l->ck);
    const struct split *own = &l->model->group->split;
    struct split s;
    enum tutti_status st = split_read(&s, &l->model->desc, manifest, err);
    if (st == TUTTI_OK && memcmp(&s, own, sizeof s) != 0)
        st = error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: strategy: the model is cut in another way than it runs; cut it again by tutti shard",
            manifest->path);
    return st;
}

enum tutti_status load_cut(struct loader *l, struct tutti_error *err)
{
    const struct model_desc *d = &l->model->desc;
    struct split_blocks blocks = { 0 };
    if (l->is_cut) { /* sharded checkpoints have plain types */
        enum tutti_status st = group_cut(l->model, &blocks, err);
        return st == TUTTI_OK ? check_cut(l, err) : st;
    }
    for (struct slot_at at = SLOT_BEGIN; slot_next(d, &at);) {
        struct weight w;
        if (split_kind(at.slot) != SPLIT_COLUMNS)
            continue;
        enum tutti_status st = weights_find(&w, d, l->names, l->ck, &at, err);
        if (st != TUTTI_OK)
            return st;
        split_widen(&blocks, w.slot, block_of(l, &w));
    }
    return group_cut(l->model, &blocks, err);
}

/* The part of a weight that this rank packs. */
static double share_of(const struct loader *l, const struct slot_at *at)
{
    const struct model_desc *d = &l->model->desc;
    if (!l->model->group || l->is_cut)
        return 1;
    const struct split_target all = { .slot = at->slot, .layer = at->layer, .part = SPLIT_ALL_PARTS };
    struct split_part part = split_part(&l->model->group->split, d, &all);
    return part.kind == SPLIT_WHOLE ? 1 : (double)part.n / split_n_whole(d, &all);
}

enum tutti_status load_check_memory(struct loader *l, struct weight_parts *parts, struct tutti_error *err)
{
    struct model *model = l->model;
    struct fit_sizes sizes = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (l->type)
        model->weight_type = l->type->dtype;
    else
        st = weights_stored_type(&model->weight_type, stored_desc(l), l->names, l->ck, err);
    for (struct slot_at at = SLOT_BEGIN; st == TUTTI_OK && slot_next_expert(stored_desc(l), &at);) {
        struct weight w;
        st = weights_find(&w, stored_desc(l), l->names, l->ck, &at, err);
        if (st == TUTTI_OK && !l->type)
            weights_use_compact(&w, 1, splits_columns(l, at.slot));
        if (st != TUTTI_OK)
            break;
        fit_add(&sizes, &w, l->type, share_of(l, &at), model->backend->caps);
        weight_parts_add(parts, stored_desc(l), &at, &w, l->type);
    }
    if (st != TUTTI_OK)
        return st;
    const struct weights_to_fit weights = { .name = checkpoint_path(l->ck),
                                            .type = l->type ? l->type->name : dtype_name(model->weight_type),
                                            .sizes = &sizes,
                                            .parts = parts,
                                            .host_bytes = l->memory_bytes };
    return device_check_fits(model, l->options, &weights, err);
}

enum tutti_status load_weights(struct loader *l, struct tutti_error *err)
{
    struct model *model = l->model;
    enum tutti_status st = TUTTI_OK;
    model->weights = calloc((size_t)model_n_loaded(&model->desc) * SLOT_COUNT, sizeof *model->weights);
    if (!model->weights)
        return load_out_of_memory(l, err);
    for (struct slot_at at = SLOT_BEGIN; st == TUTTI_OK && slot_next(&model->desc, &at);)
        st = load_weight(l, &at, err);
    return st == TUTTI_OK ? model_check(model, err) : st;
}
