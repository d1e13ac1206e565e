#include "model/load/fingerprint.h"

#include "base/hash.h"
#include "base/rng.h"
#include "model/adapters/adapter.h"

#include <string.h>

/* Depends on the order of the calls; missing parts count too. */
static void add(uint64_t *sum, uint64_t next)
{
    *sum = mix64(mix64(*sum) ^ next);
}

static void add_floats(uint64_t *sum, const struct model *model, struct floats floats, size_t n)
{
    add(sum, floats.buffer ? model->backend->ops->checksum(model->backend, floats, n) : 0);
}

static void add_matrix(uint64_t *sum, const struct model *model, const struct matrix *m)
{
    add(sum, m ? model->backend->ops->matrix_checksum(model->backend, m) : 0);
}

uint64_t model_weights_fingerprint(const struct model *model)
{
    const struct model_desc *d = &model->desc;
    uint64_t sum = 0;
    for (struct slot_at at = SLOT_BEGIN; model->weights && slot_next(d, &at);) {
        const struct model_weight *w = model_weight(model, at.slot, at.layer);
        struct slot_shape shape = slot_shape(d, at.slot, at.layer);
        size_t n = (size_t)shape.n_out * (size_t)shape.n_in;
        add(&sum, (uint64_t)at.slot);
        add_matrix(&sum, model, w->matrix);
        add_floats(&sum, model, w->values, n);
        add_floats(&sum, model, w->bias, n);
        add(&sum, hash64(0, &w->number, sizeof w->number));
    }
    return sum;
}

/* A new field of these that affects keys and values must be added here. */
_Static_assert(sizeof(void *) != 8 || sizeof(struct layer_desc) == 1248, "see layer_fingerprint()");
_Static_assert(sizeof(void *) != 8 || sizeof(struct model_desc) == 14544, "see model_shape_fingerprint()");

static uint64_t layer_fingerprint(const struct layer_desc *l, const float *rope_freqs)
{
    const struct attn_desc *a = &l->attn;
    const struct rope_scaling *s = &a->rope_scaling;
    const struct expert_desc *e = &l->ffn.experts;
    const struct routing *r = &e->routing;
    const int64_t numbers[] = {
        a->n_heads,       a->n_kv_heads,
        a->n_latent,      a->q_rank,
        a->value_dim,     a->head_dim,
        a->window,        (int64_t)a->rope,
        a->rotary_dim,    a->has_half_freqs,
        (int64_t)s->kind, s->original_n_ctx,
        s->is_short,      a->norms_all_heads,
        a->has_qk_norm,   a->has_alibi,
        a->has_qkv_bias,  a->has_out_bias,
        l->ffn.d_ff,      l->ffn.has_gate,
        l->ffn.has_bias,  (int64_t)l->ffn.activation,
        e->d_ff,          e->d_shared,
        e->gates_shared,  e->has_choice_bias,
        r->n_experts,     r->n_chosen,
        (int64_t)r->kind, r->is_normed,
        r->n_groups,      r->n_chosen_groups,
        r->group_best,    a->has_sinks,
        s->is_exact,      e->has_router_bias,
        e->has_bias,      a->first,
        a->n_rotating,    a->keys_are_values,
        a->norms_values,  e->has_factors,
        e->has_norms,
    };
    const double reals[] = {
        (double)a->scale,
        (double)a->softcap,
        a->rope_theta,
        s->factor,
        s->low_freq_factor,
        s->high_freq_factor,
        s->beta_fast,
        s->beta_slow,
        s->attention_factor,
        (double)r->scale,
        (double)a->latent_norm_eps,
        s->query_growth,
        (double)e->router_scale,
    };
    uint64_t sum = 0;
    add(&sum, hash64(0, numbers, sizeof numbers));
    add(&sum, hash64(0, reals, sizeof reals));
    if (rope_freqs) /* they depend on the math library */
        add(&sum, hash64(0, rope_freqs, (size_t)a->rotary_dim / 2 * sizeof *rope_freqs));
    return sum;
}

uint64_t model_shape_fingerprint(const struct model *model)
{
    const struct model_desc *d = &model->desc;
    const int64_t numbers[] = {
        d->n_layers,
        d->uses_mtp,
        d->d_model,
        d->n_vocab,
        d->n_ctx,
        (int64_t)d->norm,
        d->has_embedding_norm,
        d->has_post_norms,
        d->norms_sums,
        d->has_no_pre_norms,
        d->has_layer_scale,
        (int64_t)d->ffn_place,
        d->has_output_bias,
        d->has_learned_positions,
        d->first_position_row,
        d->has_top_query,
        d->tied_output,
        d->has_prefix,
        d->has_prefix ? d->prefix_end_id : 0,
        d->has_prefix ? d->mask_ids[0] : 0,
        d->has_prefix ? d->mask_ids[1] : 0,
        d->is_encoder,
        d->is_headless,
        d->has_score,
        d->n_segments,
        (int64_t)model->weight_type,
    };
    const double reals[] = {
        (double)d->norm_eps,        (double)d->residual_scale, (double)d->block_scale,
        (double)d->embedding_scale, (double)d->logit_scale,    (double)d->logit_softcap
    };
    uint64_t sum = 0;
    add(&sum, hash64(0, d->family, strnlen(d->family, sizeof d->family)));
    add(&sum, hash64(0, numbers, sizeof numbers));
    add(&sum, hash64(0, reals, sizeof reals));
    for (int i = 0; i < d->n_kinds; i++)
        add(&sum, layer_fingerprint(&d->kinds[i], model->rope_freqs[i]));
    add(&sum, hash64(0, d->kind_of, (size_t)model_n_loaded(d)));
    return sum;
}

uint64_t model_adapter_fingerprint(const struct model *model, int adapter)
{
    uint64_t sum = 0;
    for (int i = 0; i < model->desc.n_layers * SLOT_COUNT; i++) {
        const struct lora *const *loras = model_loras(model, (enum weight_slot)(i % SLOT_COUNT),
                                                      i / SLOT_COUNT);
        const struct lora *lora = loras ? loras[adapter] : NULL;
        add(&sum, lora ? model->backend->ops->lora_checksum(model->backend, lora) : 0);
    }
    for (int i = 0; i < model->desc.n_layers * SLOT_COUNT; i++) {
        const struct norm_update *const *norms = model_norms(model, (enum weight_slot)(i % SLOT_COUNT),
                                                             i / SLOT_COUNT);
        if (norms && norms[adapter]) {
            add(&sum, (uint64_t)i);
            add_floats(&sum, model, norms[adapter]->w, (size_t)model->desc.d_model);
            add_floats(&sum, model, norms[adapter]->b, (size_t)model->desc.d_model);
        }
    }
    const struct embedding_update *const *embeddings = model_embeddings(model);
    const struct kv_prefix *const *prefixes = model_prefixes(model);
    if (embeddings && embeddings[adapter])
        add(&sum, model->backend->ops->embedding_checksum(model->backend, embeddings[adapter]));
    if (prefixes && prefixes[adapter]) {
        const struct attn_desc *a = &model->desc.kinds[0].attn;
        size_t n = (size_t)model->desc.n_layers * (size_t)prefixes[adapter]->n * 2;
        add_floats(&sum, model, prefixes[adapter]->rows, n * (size_t)(a->n_kv_heads * a->head_dim));
        add(&sum, model_adapter_virtual(model, adapter).is_before_zero);
    }
    return sum;
}
