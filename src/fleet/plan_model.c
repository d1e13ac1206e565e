#include "fleet/plan_model.h"

#include "model/weights/weights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The sum to which a weight's bytes belong. */
static double *sum_of(struct plan_model *m, enum weight_slot slot)
{
    switch (slot) {
    case SLOT_EMBEDDING:
        return &m->embedding_bytes;
    case SLOT_OUTPUT:
        return &m->output_bytes;
    case SLOT_QKV:
    case SLOT_TOP_QUERY:
    case SLOT_TOP_KV:
        return &m->qkv_bytes;
    case SLOT_ATTN_OUT:
        return &m->attn_out_bytes;
    case SLOT_GATE_UP:
        return &m->gate_up_bytes;
    case SLOT_DOWN:
        return &m->down_bytes;
    default:
        return &m->whole_bytes;
    }
}

static enum tutti_status sum_weights(struct plan_model *m, const struct checkpoint *ck,
                                     const struct tensor_names *names, const struct weight_type *type,
                                     struct tutti_error *err)
{
    for (struct slot_at at = SLOT_BEGIN; slot_next(&m->desc, &at);) {
        struct weight w;
        enum tutti_status st = weights_find(&w, &m->desc, names, ck, &at, err);
        if (st != TUTTI_OK)
            return st;
        *sum_of(m, w.slot) += (double)weights_bytes(&w, type);
        if (split_kind(w.slot) != SPLIT_COLUMNS)
            continue;
        /* Splits by columns must respect the blocks of every layer. */
        enum dtype want = type ? weight_type_choose(type, &w.place) : weights_common_type(&w);
        split_widen(&m->blocks, w.slot, dtype_block_elems(weights_fit_type(want, w.n_in)));
    }
    return TUTTI_OK;
}

static enum tutti_status read_checkpoint(struct plan_model *m, enum dtype *runs_as,
                                         const struct checkpoint *ck, const struct weight_type *type,
                                         struct tutti_error *err)
{
    const struct family *family;
    enum tutti_status st = model_desc_read(&m->desc, &family, ck, err);
    if (st != TUTTI_OK)
        return st;
    const struct tensor_names *names = family_layout(family, ck);
    if (!names)
        return family_no_layout(family, ck, err);
    st = sum_weights(m, ck, names, type, err);
    if (m->desc.tied_output)
        m->output_bytes = m->embedding_bytes;
    if (type)
        *runs_as = type->dtype;
    else if (st == TUTTI_OK)
        st = weights_stored_type(runs_as, &m->desc, names, ck, err);
    return st == TUTTI_OK ? weights_check_all(&m->desc, family, names, ck, err) : st;
}

/* As in model_make(), every matrix has the same type. */
static void fill_shape(struct plan_model *m, const struct model_desc *d, enum dtype type)
{
    int q = d->n_heads * d->head_dim, qkv = q + 2 * d->n_kv_heads * d->head_dim;
    double layers = d->n_layers;
    bool fits = q % dtype_block_elems(type) == 0, down_fits = d->d_ff % dtype_block_elems(type) == 0;
    m->desc = *d;
    m->qkv_bytes = layers * (double)weights_type_bytes(type, d->d_model, qkv);
    m->attn_out_bytes = layers * (double)weights_type_bytes(type, q, d->d_model);
    m->gate_up_bytes = layers *
                       (double)weights_type_bytes(type, d->d_model, (d->has_gate ? 2 : 1) * (int64_t)d->d_ff);
    m->down_bytes = layers * (double)weights_type_bytes(type, d->d_ff, d->d_model);
    m->embedding_bytes = m->output_bytes = (double)weights_type_bytes(type, d->d_model, d->n_vocab);
    m->whole_bytes = (2 * layers + 1) * d->d_model * sizeof(float) * (d->norm == NORM_LAYER ? 2 : 1);
    if (d->has_learned_positions)
        m->whole_bytes += (double)d->n_ctx * d->d_model * sizeof(float) * (d->has_top_query ? 2 : 1);
    m->blocks.attn_out = fits ? dtype_block_elems(type) : 1;
    m->blocks.down = down_fits ? dtype_block_elems(type) : 1;
}

enum tutti_status plan_model_read(struct plan_model *out, enum dtype *runs_as, const char *path,
                                  const struct weight_type *type, enum dtype kv_type, struct tutti_error *err)
{
    struct plan_model m = { .kv_type = kv_type, .blocks = { 1, 1 } };
    struct stat info;
    const struct model_desc *shape = model_shape(path);
    enum tutti_status st = TUTTI_OK;
    if (shape && stat(path, &info) != 0) {
        *runs_as = type ? type->dtype : DTYPE_Q4_0;
        fill_shape(&m, shape, *runs_as);
    } else {
        struct checkpoint *ck = NULL;
        st = checkpoint_open(&ck, path, err);
        if (st == TUTTI_OK)
            st = read_checkpoint(&m, runs_as, ck, type, err);
        checkpoint_close(ck);
    }
    if (st == TUTTI_OK)
        *out = m;
    return st;
}
