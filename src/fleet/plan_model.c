#include "fleet/plan_model.h"

#include "model/weights/weights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static double vector_bytes(const struct tensor *t, int64_t n_rows)
{
    return t ? (double)n_rows * (double)t->shape[t->n_dims - 1] * sizeof(float) : 0;
}

static double norm_bytes(const struct norm_tensors *norm)
{
    return vector_bytes(norm->w, 1) + vector_bytes(norm->b, 1);
}

/* Splits by columns must respect the blocks of every layer. */
static void widen_blocks(struct split_blocks *blocks, const struct layer_weights *l,
                         const struct weight_type *type)
{
    const struct {
        const struct weight *w;
        int *block;
    } both[] = { { &l->attn_out, &blocks->attn_out }, { &l->down, &blocks->down } };
    for (int i = 0; i < 2; i++) {
        enum dtype want = type ? weight_type_choose(type, &both[i].w->place) : weights_common_type(both[i].w);
        int block = dtype_block_elems(weights_fit_type(want, both[i].w->n_in));
        if (block > *both[i].block)
            *both[i].block = block;
    }
}

static enum tutti_status sum_layers(struct plan_model *m, enum dtype *runs_as, const struct checkpoint *ck,
                                    const struct tensor_names *names, const struct weight_type *type,
                                    struct tutti_error *err)
{
    for (int i = 0; i < m->desc.n_layers; i++) {
        struct layer_weights l;
        enum tutti_status st = weights_find_layer(&l, &m->desc, names, ck, i, err);
        if (st != TUTTI_OK)
            return st;
        if (i == 0)
            *runs_as = type ? type->dtype : weights_stored_type(&l);
        m->qkv_bytes += (double)weights_packed_bytes(&l.qkv, type);
        m->attn_out_bytes += (double)weights_packed_bytes(&l.attn_out, type);
        m->gate_up_bytes += (double)weights_packed_bytes(&l.gate_up, type);
        m->down_bytes += (double)weights_packed_bytes(&l.down, type);
        m->whole_bytes += norm_bytes(&l.attn_norm) + norm_bytes(&l.attn_post_norm) + norm_bytes(&l.ffn_norm) +
                          norm_bytes(&l.ffn_post_norm) + vector_bytes(l.q_norm, 1) +
                          vector_bytes(l.k_norm, 1);
        widen_blocks(&m->blocks, &l, type);
    }
    return TUTTI_OK;
}

static enum tutti_status read_checkpoint(struct plan_model *m, enum dtype *runs_as,
                                         const struct checkpoint *ck, const struct weight_type *type,
                                         struct tutti_error *err)
{
    const struct family *family;
    struct outer_weights outer;
    enum tutti_status st = model_desc_read(&m->desc, &family, ck, err);
    if (st != TUTTI_OK)
        return st;
    const struct tensor_names *names = family_layout(family, ck);
    if (!names)
        return family_no_layout(family, ck, err);
    st = weights_find_outer(&outer, &m->desc, names, ck, err);
    if (st != TUTTI_OK)
        return st;
    m->embedding_bytes = (double)weights_packed_bytes(&outer.embedding, type);
    m->output_bytes = m->desc.tied_output ? m->embedding_bytes
                                          : (double)weights_packed_bytes(&outer.output, type);
    m->whole_bytes += norm_bytes(&outer.embedding_norm) + norm_bytes(&outer.output_norm) +
                      vector_bytes(outer.positions, m->desc.n_ctx) +
                      vector_bytes(outer.top_query, m->desc.n_ctx);
    st = sum_layers(m, runs_as, ck, names, type, err);
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
