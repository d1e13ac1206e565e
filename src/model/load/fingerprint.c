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
        struct slot_shape shape = slot_shape(d, at.slot);
        size_t n = (size_t)shape.n_out * (size_t)shape.n_in;
        add(&sum, (uint64_t)at.slot);
        add_matrix(&sum, model, w->matrix);
        add_floats(&sum, model, w->values, n);
        add_floats(&sum, model, w->bias, n);
    }
    return sum;
}

/* A new field of the description that affects keys and values must be added here. */
_Static_assert(sizeof(void *) != 8 || sizeof(struct model_desc) == 520, "see model_shape_fingerprint()");

uint64_t model_shape_fingerprint(const struct model *model)
{
    const struct model_desc *d = &model->desc;
    const struct rope_scaling *s = &d->rope_scaling;
    const int64_t numbers[] = {
        d->n_layers,
        d->d_model,
        d->n_heads,
        d->n_kv_heads,
        d->head_dim,
        d->d_ff,
        d->n_vocab,
        d->n_ctx,
        (int64_t)d->norm,
        d->has_embedding_norm,
        d->has_post_norms,
        d->has_learned_positions,
        d->has_top_query,
        (int64_t)d->rope,
        d->rotary_dim,
        d->has_half_freqs,
        (int64_t)s->kind,
        s->original_n_ctx,
        d->has_qk_norm,
        d->has_alibi,
        d->window,
        d->has_qkv_bias,
        d->has_attn_out_bias,
        d->has_mlp_bias,
        d->has_gate,
        d->tied_output,
        (int64_t)d->activation,
        d->has_prefix,
        d->has_prefix ? d->prefix_end_id : 0,
        d->has_prefix ? d->mask_ids[0] : 0,
        d->has_prefix ? d->mask_ids[1] : 0,
        (int64_t)model->weight_type,
    };
    const double reals[] = { (double)d->norm_eps, (double)d->residual_scale, d->rope_theta, s->factor,
                             s->low_freq_factor,  s->high_freq_factor,       s->beta_fast,  s->beta_slow,
                             s->attention_factor };
    uint64_t sum = 0;
    add(&sum, hash64(0, d->family, strnlen(d->family, sizeof d->family)));
    add(&sum, hash64(0, numbers, sizeof numbers));
    add(&sum, hash64(0, reals, sizeof reals));
    if (model->rope_freqs) /* they depend on the math library */
        add(&sum, hash64(0, model->rope_freqs, (size_t)d->rotary_dim / 2 * sizeof *model->rope_freqs));
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
    return sum;
}
