#include "model/slots.h"

#include "model/model.h"

#include <assert.h>

static bool has_embedding_norm(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_embedding_norm;
}

static bool has_positions(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_learned_positions;
}

static bool has_segments(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->n_segments > 0;
}

static bool has_top_table(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_top_query;
}

static bool is_top(const struct model_desc *d, int layer)
{
    return d->has_top_query && layer == d->n_layers - 1;
}

static bool is_latent(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->attn.n_latent > 0;
}

static bool has_q_rank(const struct model_desc *d, int layer)
{
    return is_latent(d, layer) && model_layer(d, layer)->attn.q_rank > 0;
}

static bool has_latent_q(const struct model_desc *d, int layer)
{
    return is_latent(d, layer) && !has_q_rank(d, layer);
}

static bool has_qkv(const struct model_desc *d, int layer)
{
    return !is_top(d, layer) && !is_latent(d, layer);
}

static bool has_head_norms(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->attn.has_qk_norm;
}

static bool has_post_norms(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_post_norms;
}

static bool has_output(const struct model_desc *d, int layer)
{
    (void)layer;
    return !d->tied_output && !d->is_headless;
}

static bool has_output_norm(const struct model_desc *d, int layer)
{
    (void)layer;
    return !d->norms_sums;
}

static bool has_score(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_score;
}

static bool has_pre_norms(const struct model_desc *d, int layer)
{
    (void)layer;
    return !d->has_no_pre_norms;
}

static bool has_ffn_norm(const struct model_desc *d, int layer)
{
    (void)layer;
    return !d->has_no_pre_norms && d->ffn_place != FFN_PARALLEL_ONE_NORM;
}

static bool output_has_bias(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_output_bias;
}

static bool norm_has_bias(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->norm == NORM_LAYER;
}

static bool qkv_has_bias(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->attn.has_qkv_bias;
}

static bool attn_out_has_bias(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->attn.has_out_bias;
}

static bool has_sinks(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->attn.has_sinks;
}

static bool is_dense(const struct model_desc *d, int layer)
{
    return !ffn_has_experts(&model_layer(d, layer)->ffn);
}

static bool has_experts(const struct model_desc *d, int layer)
{
    return !is_dense(d, layer);
}

static bool has_choice_bias(const struct model_desc *d, int layer)
{
    return has_experts(d, layer) && model_layer(d, layer)->ffn.experts.has_choice_bias;
}

static bool has_shared(const struct model_desc *d, int layer)
{
    return has_experts(d, layer) && model_layer(d, layer)->ffn.experts.d_shared > 0;
}

static bool has_expert_factors(const struct model_desc *d, int layer)
{
    return has_experts(d, layer) && model_layer(d, layer)->ffn.experts.has_factors;
}

static bool has_expert_norms(const struct model_desc *d, int layer)
{
    return has_experts(d, layer) && model_layer(d, layer)->ffn.experts.has_norms;
}

static bool has_layer_scale(const struct model_desc *d, int layer)
{
    (void)layer;
    return d->has_layer_scale;
}

static bool router_has_bias(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->ffn.experts.has_router_bias;
}

static bool experts_have_bias(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->ffn.experts.has_bias;
}

static bool is_mtp(const struct model_desc *d, int layer)
{
    return layer >= d->n_layers;
}

static bool has_mtp_embedding(const struct model_desc *d, int layer)
{
    return is_mtp(d, layer) && d->has_mtp_embedding;
}

static bool has_mtp_output(const struct model_desc *d, int layer)
{
    return is_mtp(d, layer) && d->has_mtp_output;
}

static bool mlp_has_bias(const struct model_desc *d, int layer)
{
    return model_layer(d, layer)->ffn.has_bias;
}

#define NORM(columns_) .kind = SLOT_NORM, .columns = (columns_)
#define LAYER          .is_of_layer = true

static const struct slot_info SLOTS[SLOT_COUNT] = {
    [SLOT_EMBEDDING] = { "embedding", .rows = { DIM_VOCAB }, .columns = DIM_MODEL, .role = WEIGHT_EMBEDDING },
    [SLOT_EMBEDDING_NORM] = { "embedding_norm", NORM(DIM_MODEL), .is_in = has_embedding_norm,
                              .has_bias = norm_has_bias },
    [SLOT_POSITIONS] = { "positions", .kind = SLOT_TABLE, .is_in = has_positions, .rows = { DIM_POSITIONS },
                         .columns = DIM_MODEL },
    [SLOT_SEGMENTS] = { "segments", .kind = SLOT_TABLE, .is_in = has_segments, .rows = { DIM_SEGMENTS },
                        .columns = DIM_MODEL },
    [SLOT_TOP_TABLE] = { "top_table", .kind = SLOT_TABLE, .is_in = has_top_table, .rows = { DIM_CONTEXT },
                         .columns = DIM_MODEL },

    [SLOT_ATTN_NORM] = { "attn_norm", LAYER, NORM(DIM_MODEL), .is_in = has_pre_norms,
                         .has_bias = norm_has_bias },
    [SLOT_QKV] = { "qkv", LAYER, .is_in = has_qkv, .has_bias = qkv_has_bias,
                   .rows = { DIM_QUERIES, DIM_KV, DIM_VALUES }, .columns = DIM_MODEL, .role = WEIGHT_VALUES,
                   .can_adapt = true },
    [SLOT_TOP_QUERY] = { "top_query", LAYER, .is_in = is_top, .has_bias = qkv_has_bias,
                         .rows = { DIM_QUERIES }, .columns = DIM_MODEL, .can_adapt = true },
    [SLOT_TOP_KV] = { "top_kv", LAYER, .is_in = is_top, .has_bias = qkv_has_bias,
                      .rows = { DIM_KV, DIM_VALUES }, .columns = DIM_MODEL, .role = WEIGHT_VALUES,
                      .can_adapt = true },
    [SLOT_Q_NORM] = { "q_norm", LAYER, NORM(DIM_Q_NORM), .is_in = has_head_norms },
    [SLOT_K_NORM] = { "k_norm", LAYER, NORM(DIM_K_NORM), .is_in = has_head_norms },
    [SLOT_LATENT_Q] = { "latent_q", LAYER, .is_in = has_latent_q, .rows = { DIM_QUERIES },
                        .columns = DIM_MODEL, .can_adapt = true },
    [SLOT_Q_A] = { "q_a", LAYER, .is_in = has_q_rank, .has_bias = qkv_has_bias, .rows = { DIM_Q_RANK },
                   .columns = DIM_MODEL, .can_adapt = true },
    [SLOT_Q_A_NORM] = { "q_a_norm", LAYER, NORM(DIM_Q_RANK), .is_in = has_q_rank },
    [SLOT_Q_B] = { "q_b", LAYER, .is_in = has_q_rank, .rows = { DIM_QUERIES }, .columns = DIM_Q_RANK,
                   .can_adapt = true },
    [SLOT_KV_A] = { "kv_a", LAYER, .is_in = is_latent, .has_bias = qkv_has_bias, .rows = { DIM_LATENT_ROW },
                    .columns = DIM_MODEL, .can_adapt = true },
    [SLOT_KV_A_NORM] = { "kv_a_norm", LAYER, NORM(DIM_LATENT), .is_in = is_latent },
    [SLOT_K_UP] = { "k_up", LAYER, .is_in = is_latent, .rows = { DIM_LATENT_HEADS }, .columns = DIM_UNROTATED,
                    .is_by_head = true },
    [SLOT_V_UP] = { "v_up", LAYER, .is_in = is_latent, .rows = { DIM_ATTENDED }, .columns = DIM_LATENT,
                    .is_by_head = true },
    [SLOT_SINKS] = { "sinks", LAYER, .kind = SLOT_VECTOR, .is_in = has_sinks, .columns = DIM_HEADS },
    [SLOT_ATTN_OUT] = { "attn_out", LAYER, .has_bias = attn_out_has_bias, .rows = { DIM_MODEL },
                        .columns = DIM_ATTENDED, .role = WEIGHT_ATTN_OUT, .can_adapt = true },
    [SLOT_ATTN_POST_NORM] = { "attn_post_norm", LAYER, NORM(DIM_MODEL), .is_in = has_post_norms,
                              .has_bias = norm_has_bias },
    [SLOT_FFN_NORM] = { "ffn_norm", LAYER, NORM(DIM_MODEL), .is_in = has_ffn_norm,
                        .has_bias = norm_has_bias },
    [SLOT_GATE_UP] = { "gate_up", LAYER, .is_in = is_dense, .has_bias = mlp_has_bias,
                       .rows = { DIM_FF, DIM_FF }, .columns = DIM_MODEL, .can_adapt = true },
    [SLOT_DOWN] = { "down", LAYER, .is_in = is_dense, .has_bias = mlp_has_bias, .rows = { DIM_MODEL },
                    .columns = DIM_FF, .role = WEIGHT_DOWN, .can_adapt = true },
    [SLOT_ROUTER] = { "router", LAYER, .is_in = has_experts, .has_bias = router_has_bias,
                      .rows = { DIM_EXPERTS, DIM_SHARED_GATE }, .columns = DIM_MODEL, .role = WEIGHT_ROUTER },
    [SLOT_ROUTER_BIAS] = { "router_bias", LAYER, .kind = SLOT_VECTOR, .is_in = has_choice_bias,
                           .columns = DIM_EXPERTS },
    [SLOT_EXPERT_GATE_UP] = { "expert_gate_up", LAYER, .is_in = has_experts, .has_bias = experts_have_bias,
                              .rows = { DIM_EXPERT_FF, DIM_EXPERT_FF }, .columns = DIM_MODEL,
                              .is_of_experts = true },
    [SLOT_EXPERT_DOWN] = { "expert_down", LAYER, .is_in = has_experts, .has_bias = experts_have_bias,
                           .rows = { DIM_MODEL }, .columns = DIM_EXPERT_FF, .role = WEIGHT_DOWN,
                           .is_of_experts = true },
    [SLOT_SHARED_GATE_UP] = { "shared_gate_up", LAYER, .is_in = has_shared,
                              .rows = { DIM_SHARED_FF, DIM_SHARED_FF }, .columns = DIM_MODEL,
                              .can_adapt = true },
    [SLOT_SHARED_DOWN] = { "shared_down", LAYER, .is_in = has_shared, .rows = { DIM_MODEL },
                           .columns = DIM_SHARED_FF, .role = WEIGHT_DOWN, .can_adapt = true },
    [SLOT_EXPERT_FACTORS] = { "expert_factors", LAYER, .kind = SLOT_VECTOR, .is_in = has_expert_factors,
                              .columns = DIM_EXPERTS },
    [SLOT_ROUTER_NORM] = { "router_norm", LAYER, NORM(DIM_MODEL), .is_in = has_expert_norms },
    [SLOT_EXPERT_NORM] = { "expert_norm", LAYER, NORM(DIM_MODEL), .is_in = has_expert_norms },
    [SLOT_SHARED_POST_NORM] = { "shared_post_norm", LAYER, NORM(DIM_MODEL), .is_in = has_expert_norms },
    [SLOT_EXPERT_POST_NORM] = { "expert_post_norm", LAYER, NORM(DIM_MODEL), .is_in = has_expert_norms },
    [SLOT_FFN_POST_NORM] = { "ffn_post_norm", LAYER, NORM(DIM_MODEL), .is_in = has_post_norms,
                             .has_bias = norm_has_bias },
    [SLOT_LAYER_SCALE] = { "layer_scale", LAYER, .kind = SLOT_NUMBER, .is_in = has_layer_scale,
                           .columns = DIM_ONE },

    [SLOT_MTP_EMBEDDING] = { "mtp_embedding", LAYER, .is_in = has_mtp_embedding, .rows = { DIM_VOCAB },
                             .columns = DIM_MODEL, .role = WEIGHT_EMBEDDING },
    [SLOT_MTP_EMBEDDING_NORM] = { "mtp_embedding_norm", LAYER, NORM(DIM_MODEL), .is_in = is_mtp },
    [SLOT_MTP_HIDDEN_NORM] = { "mtp_hidden_norm", LAYER, NORM(DIM_MODEL), .is_in = is_mtp },
    [SLOT_MTP_JOIN] = { "mtp_join", LAYER, .is_in = is_mtp, .rows = { DIM_MODEL }, .columns = DIM_PAIR },
    [SLOT_MTP_OUTPUT_NORM] = { "mtp_output_norm", LAYER, NORM(DIM_MODEL), .is_in = is_mtp },
    [SLOT_MTP_OUTPUT] = { "mtp_output", LAYER, .is_in = has_mtp_output, .rows = { DIM_VOCAB },
                          .columns = DIM_MODEL, .role = WEIGHT_OUTPUT },

    [SLOT_OUTPUT_NORM] = { "output_norm", NORM(DIM_MODEL), .is_in = has_output_norm,
                           .has_bias = norm_has_bias },
    [SLOT_OUTPUT] = { "output", .is_in = has_output, .has_bias = output_has_bias, .rows = { DIM_VOCAB },
                      .columns = DIM_MODEL, .role = WEIGHT_OUTPUT, .can_adapt = true },
    [SLOT_POOLER] = { "pooler", .is_in = has_score, .has_bias = has_score, .rows = { DIM_MODEL },
                      .columns = DIM_MODEL, .role = WEIGHT_OUTPUT },
    [SLOT_SCORE] = { "score", .is_in = has_score, .has_bias = has_score, .rows = { DIM_ONE },
                     .columns = DIM_MODEL, .role = WEIGHT_OUTPUT },
};

const struct slot_info *slot_info(enum weight_slot slot)
{
    assert(slot >= 0 && slot < SLOT_COUNT);
    return &SLOTS[slot];
}

bool slot_is_in(const struct model_desc *d, enum weight_slot slot, int layer)
{
    const struct slot_info *info = slot_info(slot);
    return !info->is_in || info->is_in(d, layer);
}

bool slot_has_zero_bias(const struct model_desc *d, enum weight_slot slot)
{
    return slot_info(slot)->has_bias == norm_has_bias && d->norm == NORM_LAYER_PLAIN;
}

int slot_dim(const struct model_desc *d, enum dim dim, int layer)
{
    const struct attn_desc *a = &model_layer(d, layer)->attn;
    const struct ffn_desc *f = &model_layer(d, layer)->ffn;
    switch (dim) {
    case DIM_MODEL:
        return d->d_model;
    case DIM_PAIR:
        return 2 * d->d_model;
    case DIM_Q_NORM:
        return a->norms_all_heads ? a->n_heads * a->head_dim : a->head_dim;
    case DIM_K_NORM:
        return a->norms_all_heads ? a->n_kv_heads * a->head_dim : a->head_dim;
    case DIM_QUERIES:
        return a->n_heads * a->head_dim;
    case DIM_ATTENDED:
        return a->n_heads * attn_value_dim(a);
    case DIM_Q_RANK:
        return a->q_rank;
    case DIM_LATENT:
        return a->n_latent;
    case DIM_LATENT_ROW:
        return attn_latent_row(a);
    case DIM_LATENT_HEADS:
        return a->n_heads * a->n_latent;
    case DIM_UNROTATED:
        return a->head_dim - a->rotary_dim;
    case DIM_KV:
        return a->n_kv_heads * a->head_dim;
    case DIM_VALUES:
        return a->keys_are_values ? 0 : a->n_kv_heads * a->head_dim;
    case DIM_HEADS:
        return a->n_heads;
    case DIM_FF:
        return f->d_ff;
    case DIM_EXPERTS:
        return f->experts.routing.n_experts;
    case DIM_EXPERT_FF:
        return f->experts.d_ff;
    case DIM_SHARED_FF:
        return f->experts.d_shared;
    case DIM_SHARED_GATE:
        return f->experts.gates_shared;
    case DIM_VOCAB:
        return d->n_vocab;
    case DIM_POSITIONS:
        return d->n_ctx + d->first_position_row;
    case DIM_CONTEXT:
        return d->n_ctx;
    case DIM_SEGMENTS:
        return d->n_segments;
    case DIM_ONE:
    case DIM_NONE:
        break;
    }
    return 1;
}

static bool is_gate_up(enum weight_slot slot)
{
    return slot == SLOT_GATE_UP || slot == SLOT_EXPERT_GATE_UP || slot == SLOT_SHARED_GATE_UP;
}

struct slot_shape slot_shape(const struct model_desc *d, enum weight_slot slot, int layer)
{
    const struct slot_info *info = slot_info(slot);
    bool has_gate = model_layer(d, layer)->ffn.has_gate;
    struct slot_shape shape = { .n_in = slot_dim(d, info->columns, layer),
                                .has_bias = info->has_bias && info->has_bias(d, layer),
                                .is_gate_up = is_gate_up(slot) && has_gate,
                                .n_experts = info->is_of_experts ? slot_dim(d, DIM_EXPERTS, layer) : 1 };
    do
        shape.n_out += shape.rows[shape.n_parts] = slot_dim(d, info->rows[shape.n_parts], layer);
    while (++shape.n_parts < MAX_PARTS && info->rows[shape.n_parts] != DIM_NONE &&
           slot_dim(d, info->rows[shape.n_parts], layer) > 0 && (!is_gate_up(slot) || has_gate));
    return shape;
}

bool slot_next(const struct model_desc *d, struct slot_at *at)
{
    do {
        bool ends_layer = at->slot >= 0 && SLOTS[at->slot].is_of_layer && !SLOTS[at->slot + 1].is_of_layer;
        if (ends_layer && at->layer < model_n_loaded(d) - 1) {
            at->slot = SLOT_ATTN_NORM;
            at->layer++;
        } else {
            at->slot++;
            at->layer = at->slot < SLOT_COUNT && SLOTS[at->slot].is_of_layer ? at->layer : 0;
        }
    } while (at->slot < SLOT_COUNT && !slot_is_in(d, at->slot, at->layer));
    return at->slot < SLOT_COUNT;
}

bool slot_next_expert(const struct model_desc *d, struct slot_at *at)
{
    bool is_of_experts = at->slot >= 0 && at->slot < SLOT_COUNT && SLOTS[at->slot].is_of_experts;
    if (is_of_experts && at->expert + 1 < slot_dim(d, DIM_EXPERTS, at->layer)) {
        at->expert++;
        return true;
    }
    at->expert = 0;
    return slot_next(d, at);
}

struct slot_params slot_params(const struct model_desc *d)
{
    struct slot_params params = { 0 };
    for (struct slot_at at = SLOT_BEGIN; slot_next(d, &at);) {
        struct slot_shape shape = slot_shape(d, at.slot, at.layer);
        int n_active = shape.n_experts > 1 ? model_layer(d, at.layer)->ffn.experts.routing.n_chosen : 1;
        bool is_matrix = SLOTS[at.slot].kind == SLOT_MATRIX;
        uint64_t n_bias = shape.has_bias ? (uint64_t)(is_matrix ? shape.n_out : shape.n_in) : 0;
        uint64_t n = (uint64_t)shape.n_in * (uint64_t)shape.n_out + n_bias;
        params.all += n * (uint64_t)shape.n_experts;
        params.active += n * (uint64_t)n_active;
    }
    return params;
}
