/* Reads the settings of mixtures of experts that families share. */
#include "model/description/describe.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void describe_expert_layers(struct model_desc *d, const struct expert_desc *experts, const uint8_t *is_dense)
{
    struct layer_desc kinds[MAX_LAYER_KINDS];
    int found[MAX_LAYER_KINDS][2], n = 0; /* 1 + the new kind of an old one, with and without experts */
    memset(found, 0, sizeof found);
    for (int i = 0; i < d->n_layers; i++) {
        int *kind = &found[d->kind_of[i]][is_dense && is_dense[i]];
        if (*kind == 0) {
            assert(n < MAX_LAYER_KINDS); /* twice the kinds that attention has */
            kinds[n] = d->kinds[d->kind_of[i]];
            if (!is_dense || !is_dense[i]) {
                kinds[n].ffn.d_ff = 0;
                kinds[n].ffn.experts = *experts;
            }
            *kind = ++n;
        }
        d->kind_of[i] = (uint8_t)(*kind - 1);
    }
    d->n_kinds = n;
    memcpy(d->kinds, kinds, (size_t)n * sizeof *kinds);
}

void describe_mtp(struct model_desc *d, struct config *c)
{
    const char *key = describe_either(c, "num_nextn_predict_layers", "num_mtp_layers");
    d->n_mtp_layers = config_int_or(c, key, 0, LIMIT_LAYERS, 0);
}

void describe_gguf_experts(struct model_desc *d, struct config *c)
{
    struct expert_desc *e = &d->kinds[0].ffn.experts;
    e->routing.n_experts = config_int(c, "expert_count", 1, LIMIT_EXPERTS);
    e->routing.n_chosen = config_int(c, "expert_used_count", 1, LIMIT_EXPERTS);
}

const struct layer_desc *describe_find_kind(const struct model_desc *d, bool has_experts)
{
    for (int i = 0; i < d->n_kinds; i++)
        if (ffn_has_experts(&d->kinds[i].ffn) == has_experts)
            return &d->kinds[i];
    return NULL;
}

void describe_first_dense(struct model_desc *d, const struct expert_desc *experts, int n_dense)
{
    uint8_t is_dense[LIMIT_LAYERS] = { 0 };
    for (int i = 0; i < d->n_layers && i < n_dense; i++)
        is_dense[i] = 1;
    describe_expert_layers(d, experts, is_dense);
}

int describe_count_dense(const struct model_desc *d)
{
    int n = 0;
    while (n < d->n_layers && !ffn_has_experts(&model_layer(d, n)->ffn))
        n++;
    return n;
}

int describe_shared_width(int n, int d_expert)
{
    int64_t width = (int64_t)n * d_expert;
    return width < LIMIT_DIMENSION ? (int)width : LIMIT_DIMENSION;
}

void describe_find_choice_bias(struct model_desc *d, const struct checkpoint *ck)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    for (int i = 0; i < d->n_layers; i++) {
        struct layer_desc *l = &d->kinds[d->kind_of[i]];
        snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", i);
        if (ffn_has_experts(&l->ffn) && checkpoint_find(ck, name))
            l->ffn.experts.has_choice_bias = true;
    }
}
