#include "model/adapters/adapter_upload.h"

#include "model/weights/weight_part.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct matrix *base_matrix(const struct model *model, const struct adapter_changes *c)
{
    return c->slot == SLOT_OUTPUT ? model_output(model) : model_weight(model, c->slot, c->layer)->matrix;
}

/* ---- matrices that replace the model's ---- */

static enum tutti_status check_rows(const struct adapter_module *modules, int n, int n_out, const char *path,
                                    struct tutti_error *err)
{
    int row = 0;
    for (int i = 0; i < n && modules[i].out_begin == row; i++)
        row += modules[i].n_out;
    if (row == n_out)
        return TUTTI_OK;
    return error_set(
        err, TUTTI_E_UNSUPPORTED,
        "%s: layer %d: it replaces a part of %s, which is one matrix here: all its parts (q, k and "
        "v; gate and up) can be replaced only together",
        path, modules[0].layer, slot_info(modules[0].slot)->name);
}

/* Packs the modules [n], in the type of the model's own matrix. *out NULL: the two are equal. */
static enum tutti_status pack_modules(struct model *model, struct matrix **out, const struct matrix *base,
                                      const struct adapter_module *modules, int n, const char *path,
                                      struct tutti_error *err)
{
    const struct backend_ops *op = model->backend->ops;
    struct slot_shape shape = slot_shape(&model->local, modules[0].slot, modules[0].layer);
    struct matrix_part parts[MAX_PARTS];
    const float *biases[MAX_PARTS];
    enum tutti_status st = check_rows(modules, n, shape.n_out, path, err);
    if (st != TUTTI_OK)
        return st;
    float *bias = malloc((size_t)shape.n_out * sizeof *bias);
    if (!bias)
        return error_out_of_memory(path, err);
    for (int row = 0; row < shape.n_out; row++)
        bias[row] = op->matrix_read(model->backend, NULL, base, row);
    for (int i = 0; i < n; i++) {
        parts[i] = (struct matrix_part){ .data = modules[i].rows,
                                         .dtype = modules[i].dtype,
                                         .n_rows = modules[i].n_out };
        biases[i] = bias + modules[i].out_begin;
    }
    struct matrix_source source = { .name = slot_info(modules[0].slot)->name,
                                    .parts = parts,
                                    .n_parts = n,
                                    .n_in = shape.n_in,
                                    .type = op->matrix_type(base),
                                    .is_gate_up = shape.is_gate_up,
                                    .biases = shape.has_bias ? biases : NULL };
    st = op->matrix_new(model->backend, out, &source, err);
    free(bias);
    if (st == TUTTI_OK &&
        op->matrix_checksum(model->backend, *out) == op->matrix_checksum(model->backend, base)) {
        op->matrix_free(model->backend, *out);
        *out = NULL;
    }
    return st;
}

/* ---- linear layers ---- */

/* A source for lora_new(), and its memory. */
struct upload {
    struct lora_source source;
    struct lora_part *parts;
    float *factors, *shifts; /* [n_out]; NULL: none */
    float **made;            /* [n parts]: copies of b, or rows of a; NULL: none */
    int n_most;
};

static void upload_clear(struct upload *u)
{
    for (int i = 0; u->made && i < u->n_most; i++)
        free(u->made[i]);
    free(u->made);
    free(u->parts);
    free(u->factors);
    free(u->shifts);
}

static bool upload_alloc(struct upload *u, const struct adapter_changes *c, int n_out)
{
    bool has_dora = false;
    size_t n = (size_t)c->n + (size_t)(c->tokens ? c->tokens->n : 0) + 1;
    for (int i = 0; i < c->n; i++)
        has_dora = has_dora || c->updates[i].magnitudes;
    u->n_most = (int)n;
    u->parts = calloc(n, sizeof *u->parts);
    u->made = calloc(n, sizeof *u->made);
    if (has_dora)
        u->factors = malloc((size_t)n_out * sizeof *u->factors);
    if (has_dora || c->n_biases > 0)
        u->shifts = calloc((size_t)n_out, sizeof *u->shifts);
    for (int row = 0; u->factors && row < n_out; row++)
        u->factors[row] = 1;
    return u->parts && u->made && (u->factors || !has_dora) && (u->shifts || !(has_dora || c->n_biases > 0));
}

/* DoRA: rows of the base and the update get the lengths magnitudes together, so both are multiplied by
 * factors. */
static enum tutti_status set_factors(struct model *model, struct upload *u, const struct matrix *base,
                                     const struct adapter_update *update, int i, const char *path,
                                     struct tutti_error *err)
{
    struct lora_part *part = &u->parts[i];
    size_t n = (size_t)update->n_out, rank = (size_t)update->rank;
    float *factors = u->factors + update->out_begin, *b = malloc(n * rank * sizeof *b);
    u->made[i] = b;
    if (!b || !model->backend->ops->matrix_lengths(model->backend, factors, base, part))
        return error_out_of_memory(path, err);
    for (size_t row = 0; row < n; row++) {
        factors[row] = update->magnitudes[row] / factors[row];
        if (!isfinite(factors[row]))
            return error_set(err, TUTTI_E_NUMERIC,
                             "%s: layer %d: %s: DoRA scales row %zu to the length %g, but it has no finite "
                             "length above 0",
                             path, update->layer, slot_info(update->slot)->name,
                             (size_t)update->out_begin + row, (double)update->magnitudes[row]);
        for (size_t k = 0; k < rank; k++)
            b[row * rank + k] = factors[row] * update->b[row * rank + k];
    }
    part->b = b;
    return TUTTI_OK;
}

/* The trained tokens of the output as updates of rank 1: each adds what the row differs. */
static enum tutti_status add_tokens(struct model *model, struct upload *u, const struct matrix *base,
                                    const struct adapter_changes *c, const char *path,
                                    struct tutti_error *err)
{
    static const float ONE = 1;
    size_t n_in = (size_t)u->source.n_in;
    for (int i = 0; c->tokens && i < c->tokens->n; i++) {
        float *a = malloc(n_in * sizeof *a);
        int row = c->tokens->ids[i];
        u->made[u->source.n_parts] = a;
        if (!a)
            return error_out_of_memory(path, err);
        (void)model->backend->ops->matrix_read(model->backend, a, base, row);
        for (size_t k = 0; k < n_in; k++)
            a[k] = c->tokens->rows[(size_t)i * n_in + k] - a[k];
        u->parts[u->source.n_parts++] = (struct lora_part){
            .out_begin = row, .n_out = 1, .rank = 1, .scale = 1, .a = a, .b = &ONE
        };
    }
    return TUTTI_OK;
}

/* Sets the shifts so that an output becomes factor * W x + bias, with the trained bias if there is one. */
static void set_shifts(struct model *model, struct upload *u, const struct matrix *base,
                       const struct adapter_changes *c)
{
    for (int i = 0; i < c->n_biases; i++) {
        const struct adapter_bias *b = &c->biases[i];
        for (int row = 0; row < b->n_out; row++) {
            float *shift = &u->shifts[b->out_begin + row];
            if (b->is_added)
                *shift += b->values[row];
            else
                *shift += b->values[row] -
                          model->backend->ops->matrix_read(model->backend, NULL, base, b->out_begin + row);
        }
    }
    for (int row = 0; u->factors && row < u->source.n_out; row++)
        u->shifts[row] += (1 - u->factors[row]) *
                          model->backend->ops->matrix_read(model->backend, NULL, base, row);
}

static enum tutti_status fill_upload(struct model *model, struct upload *u, const struct matrix *base,
                                     const struct adapter_changes *c, const char *path,
                                     struct tutti_error *err)
{
    if (!upload_alloc(u, c, u->source.n_out))
        return error_out_of_memory(path, err);
    for (int i = 0; i < c->n; i++) {
        const struct adapter_update *update = &c->updates[i];
        u->parts[i] = (struct lora_part){ .out_begin = update->out_begin,
                                          .n_out = update->n_out,
                                          .rank = update->rank,
                                          .scale = update->scale,
                                          .a = update->a,
                                          .b = update->b };
        enum tutti_status st = update->magnitudes ? set_factors(model, u, base, update, i, path, err)
                                                  : TUTTI_OK;
        if (st != TUTTI_OK)
            return st;
    }
    u->source.n_parts = c->n;
    if (c->n > 0 && c->tokens && c->tokens->n > 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: low-rank updates and trained tokens of the output together", path);
    enum tutti_status st = add_tokens(model, u, base, c, path, err);
    if (u->shifts)
        set_shifts(model, u, base, c);
    u->source.parts = u->parts;
    u->source.factors = u->factors;
    u->source.shifts = u->shifts;
    return st;
}

enum tutti_status adapter_upload_matrix(struct model *model, struct lora **out,
                                        const struct adapter_changes *c, const char *path,
                                        struct tutti_error *err)
{
    const struct backend_ops *op = model->backend->ops;
    const struct matrix *base = base_matrix(model, c);
    struct slot_shape shape = slot_shape(&model->local, c->slot, c->layer);
    struct matrix *own = NULL;
    enum tutti_status st = TUTTI_OK;
    *out = NULL;
    weight_part_begin(model, c->slot, c->layer);
    if (c->n_modules > 0)
        st = pack_modules(model, &own, base, c->modules, c->n_modules, path, err);
    if (st != TUTTI_OK || (!own && c->n == 0 && c->n_biases == 0 && (!c->tokens || c->tokens->n == 0)))
        return st;
    /* Compared with the rounding of the weights, float16 factors are precise enough. */
    struct upload u = { .source = { .n_in = shape.n_in,
                                    .n_out = shape.n_out,
                                    .type = model->weight_type == DTYPE_F32 ? DTYPE_F32 : DTYPE_F16 } };
    st = fill_upload(model, &u, own ? own : base, c, path, err);
    u.source.matrix = own;
    if (st == TUTTI_OK)
        st = op->lora_new(model->backend, out, &u.source, err);
    else
        op->matrix_free(model->backend, own);
    upload_clear(&u);
    if (st == TUTTI_OK)
        model->weight_bytes += op->lora_bytes(model->backend, *out);
    return st;
}

/* ---- norms, embedding, prefix ---- */

void adapter_norm_free(struct adapter_norm *norm, struct backend *be)
{
    if (!norm)
        return;
    if (norm->has_weight)
        be->ops->dealloc(be, norm->update.w);
    if (norm->has_bias)
        be->ops->dealloc(be, norm->update.b);
    free(norm);
}

/* Copies host floats into memory of their own. False: out of memory. */
static bool upload_floats(struct model *model, struct floats *to, const float *from, size_t n)
{
    *to = model->backend->ops->alloc_constant(model->backend, from, n);
    if (!to->buffer)
        return false;
    model->weight_bytes += n * sizeof *from;
    return true;
}

enum tutti_status adapter_upload_norm(struct model *model, struct adapter_norm **out,
                                      const struct adapter_module *module, const char *path,
                                      struct tutti_error *err)
{
    const struct model_weight *own = model_weight(model, module->slot, module->layer);
    struct adapter_norm *norm = calloc(1, sizeof *norm);
    size_t n = (size_t)module->n_in;
    if (!norm)
        return error_out_of_memory(path, err);
    weight_part_begin(model, module->slot, module->layer);
    norm->update = (struct norm_update){ .w = own->values, .b = own->bias };
    norm->has_weight = module->rows && upload_floats(model, &norm->update.w, (float *)module->rows, n);
    norm->has_bias = module->bias && upload_floats(model, &norm->update.b, module->bias, n);
    if ((module->rows && !norm->has_weight) || (module->bias && !norm->has_bias)) {
        adapter_norm_free(norm, model->backend);
        return error_out_of_memory(path, err);
    }
    *out = norm;
    return TUTTI_OK;
}

enum tutti_status adapter_upload_embedding(struct model *model, struct embedding_update **out,
                                           const struct adapter_file *file, const char *path,
                                           struct tutti_error *err)
{
    const struct backend_ops *op = model->backend->ops;
    struct slot_shape shape = slot_shape(&model->local, SLOT_EMBEDDING, 0);
    struct embedding_source source = { .n_vocab = shape.n_out,
                                       .n_columns = shape.n_in,
                                       .ids = file->tokens.ids,
                                       .rows = file->tokens.rows,
                                       .n_ids = file->tokens.n,
                                       .a = file->embedding.a,
                                       .b = file->embedding.b,
                                       .rank = file->embedding.rank,
                                       .scale = file->embedding.scale,
                                       .virtual_rows = file->virtual.rows,
                                       .n_virtual = file->virtual.rows ? file->virtual.n : 0 };
    enum tutti_status st = TUTTI_OK;
    *out = NULL;
    weight_part_begin(model, SLOT_EMBEDDING, 0);
    for (int i = 0; i < file->n_modules && st == TUTTI_OK; i++)
        if (file->modules[i].slot == SLOT_EMBEDDING)
            st = pack_modules(model, &source.table, model_weight(model, SLOT_EMBEDDING, 0)->matrix,
                              &file->modules[i], 1, path, err);
    if (st != TUTTI_OK || (!source.table && source.n_ids == 0 && source.rank == 0 && source.n_virtual == 0))
        return st;
    st = op->embedding_new(model->backend, out, &source, err);
    if (st == TUTTI_OK)
        model->weight_bytes += op->embedding_bytes(model->backend, *out);
    return st;
}

void adapter_prefix_free(struct kv_prefix *prefix, struct backend *be)
{
    if (prefix)
        be->ops->dealloc(be, prefix->rows);
    free(prefix);
}

enum tutti_status adapter_upload_prefix(struct model *model, struct kv_prefix **out,
                                        const struct adapter_file *file, const char *path,
                                        struct tutti_error *err)
{
    const struct attn_desc *a = &model->desc.kinds[0].attn;
    *out = NULL;
    if (!file->virtual.keys)
        return TUTTI_OK;
    size_t n = (size_t)model->desc.n_layers * (size_t)file->virtual.n * 2 *
               (size_t)(a->n_kv_heads * a->head_dim);
    struct kv_prefix *prefix = calloc(1, sizeof *prefix);
    if (model->backend->ops->begin_weights) /* each layer reads its part */
        model->backend->ops->begin_weights(model->backend, PART_SHARED, 0);
    if (!prefix || !upload_floats(model, &prefix->rows, file->virtual.keys, n)) {
        free(prefix);
        return error_out_of_memory(path, err);
    }
    prefix->n = file->virtual.n;
    *out = prefix;
    return TUTTI_OK;
}
