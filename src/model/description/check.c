/* Checks of a description: ranges and relations that forward.c and the backend rely on. */
#include "model/description/family.h"

static const char *find_expert_fault(const struct ffn_desc *f)
{
    const struct expert_desc *e = &f->experts;
    const struct routing *r = &e->routing;
    if (!ffn_has_experts(f))
        return f->d_ff < 1 ? "the feed-forward width is not positive" : NULL;
    if (!f->has_gate || f->has_bias || f->d_ff != 0)
        return "experts need a gate and no biases";
    if (r->n_experts > LIMIT_EXPERTS || r->n_chosen < 1 || r->n_chosen > r->n_experts)
        return "num_experts_per_tok (expert_used_count): the number of experts of a row is above the number "
               "of "
               "experts";
    if (e->d_ff < 1 || e->d_shared < 0 || 2 * (int64_t)e->d_ff > LIMIT_DIMENSION ||
        2 * (int64_t)e->d_shared > LIMIT_DIMENSION || (e->gates_shared && e->d_shared == 0))
        return "the width of the experts is not positive, or too large";
    if (r->n_groups <= 1)
        return NULL;
    if (r->n_experts % r->n_groups != 0)
        return "the number of experts is no multiple of the number of groups";
    if (r->n_chosen_groups < 1 || r->n_chosen_groups > r->n_groups ||
        r->n_chosen > r->n_chosen_groups * (r->n_experts / r->n_groups))
        return "the chosen groups of experts have fewer experts than a row uses";
    return r->group_best > r->n_experts / r->n_groups ? "a group of experts has only one" : NULL;
}

static const char *find_latent_fault(const struct attn_desc *a)
{
    if (a->n_latent < 8 || a->n_latent % 8 != 0)
        return "the rank of the latents (kv_lora_rank) is no positive multiple of 8";
    if (a->rotary_dim < 8 || a->rotary_dim % 8 != 0)
        return "the rotary part of the latents (qk_rope_head_dim) is no positive multiple of 8";
    if (a->head_dim <= a->rotary_dim || a->value_dim < 1 || a->q_rank < 0)
        return "a head of latent attention has no elements";
    if (a->n_kv_heads != 1 || (a->rope != ROPE_INTERLEAVED && a->rope != ROPE_HALF) || a->has_qk_norm ||
        a->has_alibi)
        return "latent attention is combined with another kind";
    int64_t widest = a->head_dim > a->value_dim ? a->head_dim : a->value_dim;
    widest = widest > attn_latent_row(a) ? widest : attn_latent_row(a);
    return widest * a->n_heads > LIMIT_DIMENSION ? "heads times head dimension is too large" : NULL;
}

static const char *find_attention_fault(const struct attn_desc *a)
{
    if (a->n_heads % a->n_kv_heads != 0)
        return "the number of heads is no multiple of the number of KV heads";
    if (a->n_latent > 0)
        return find_latent_fault(a);
    if (a->head_dim < 8 || a->head_dim % 8 != 0)
        return "the head dimension is no positive multiple of 8";
    if (a->head_dim > 1024)
        return "the head dimension is above 1024";
    if (a->rotary_dim < 0 || a->rotary_dim % 2 != 0 || a->rotary_dim > a->head_dim)
        return "the rotary dimension is odd or larger than the head";
    if (a->rope == ROPE_2D && a->rotary_dim % 4 != 0)
        return "the rotary dimension is no multiple of 4, as two streams of positions need";
    if ((int64_t)(a->n_heads + 2 * (int64_t)a->n_kv_heads) * a->head_dim > LIMIT_DIMENSION)
        return "heads times head dimension is too large";
    return NULL;
}

static const char *find_layer_fault(const struct layer_desc *l)
{
    const char *fault = find_attention_fault(&l->attn);
    if (fault)
        return fault;
    return 2 * (int64_t)l->ffn.d_ff > LIMIT_DIMENSION ? "the feed-forward width is too large"
                                                      : find_expert_fault(&l->ffn);
}

enum tutti_status model_desc_check(const struct model_desc *d, const char *file, struct tutti_error *err)
{
    const char *fault = NULL;
    const struct attn_desc *a = &d->kinds[0].attn; /* of the fault */
    for (int i = 0; i < d->n_kinds && !fault; i++) {
        a = &d->kinds[i].attn;
        fault = find_layer_fault(&d->kinds[i]);
    }
    if (!fault && !(d->norm_eps > 0))
        fault = "the epsilon of the norms is not positive";
    if (!fault && (d->n_usable_vocab < 1 || d->n_usable_vocab > d->n_vocab))
        fault = "the tokenizer's vocabulary does not fit the model's";
    for (int i = 0; i < model_desc_n_stops(d, true) && !fault; i++) {
        if (d->stop_ids[i] < 0 || d->stop_ids[i] >= d->n_vocab)
            fault = "a stop id lies outside the vocabulary";
    }
    return fault ? error_set(err, TUTTI_E_FORMAT,
                             "%s: %s (heads %d, KV heads %d, head dimension %d, rotary dimension %d, "
                             "vocabulary %d of %d)",
                             file, fault, a->n_heads, a->n_kv_heads, a->head_dim, a->rotary_dim,
                             d->n_usable_vocab, d->n_vocab)
                 : TUTTI_OK;
}
