/* Falcon: attention and feed-forward layer in parallel, LayerNorm, GELU; q, k and v in one tensor, by KV
 * head. 7B has one KV head and one norm; 40B and 180B have groups of heads and a norm for each of the two;
 * 11B has groups and one norm. Models without parallel layers run too. */
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "transformer.h.%d."
#define FALCON_NAMES                                                                                         \
    .of[SLOT_EMBEDDING] = { "transformer.word_embeddings.weight" }, .of[SLOT_OUTPUT] = { "lm_head.weight" }, \
    .of[SLOT_OUTPUT_NORM] = { "transformer.ln_f.weight" },                                                   \
    .of[SLOT_QKV] = { LAYER "self_attention.query_key_value.weight" },                                       \
    .of[SLOT_ATTN_OUT] = { LAYER "self_attention.dense.weight" },                                            \
    .of[SLOT_GATE_UP] = { LAYER "mlp.dense_h_to_4h.weight" },                                                \
    .of[SLOT_DOWN] = { LAYER "mlp.dense_4h_to_h.weight" }, .is_by_head = true

#define FALCON_GGUF_NAMES NAMES_GGUF_BUT_NORMS, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP

/* Of layouts with the same names, those with more norms come first. */
static const struct tensor_names LAYOUTS[] = {
    { FALCON_NAMES, .of[SLOT_ATTN_NORM] = { LAYER "ln_attn.weight" },
      .of[SLOT_FFN_NORM] = { LAYER "ln_mlp.weight" } },
    { FALCON_NAMES, .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },
      .of[SLOT_FFN_NORM] = { LAYER "post_attention_layernorm.weight" } },
    { FALCON_NAMES, .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" } },
    /* GGUF's first norm of two is that of the feed-forward layer. */
    { FALCON_GGUF_NAMES, .of[SLOT_ATTN_NORM] = { "blk.%d.attn_norm_2.weight" },
      .of[SLOT_FFN_NORM] = { "blk.%d.attn_norm.weight" } },
    { FALCON_GGUF_NAMES, .of[SLOT_ATTN_NORM] = { "blk.%d.attn_norm.weight" } },
};

/* RefinedWeb: the first releases' names of the types, of 40B and of the others. */
static bool falcon_is_mine(const json_t *config)
{
    return describe_has_type(config, "falcon") || describe_has_type(config, "RefinedWeb") ||
           describe_has_type(config, "RefinedWebModel");
}

static const struct config_key KEYS[] = {
    { "alibi", "false" }, /* the class rounds ALiBi to bfloat16, by absolute positions */
    { "apply_residual_connection_post_layernorm", "false" },
    { "ff_factor", NULL }, /* ffn_hidden_size is used */
    { "partial_rotary_factor", "1.0" },
    { "rope_parameters.partial_rotary_factor", "1.0" },
    { NULL, NULL },
};

/* How many norms a layer has, and how q, k and v are grouped. */
static void describe_blocks(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    bool is_first_40b = describe_has_type(c->root, "RefinedWeb");
    bool is_grouped = config_bool_or(c, "new_decoder_architecture", is_first_40b);
    bool is_multi_query = config_bool_or(c, "multi_query", true);
    bool is_parallel = config_bool_or(c, "parallel_attn", true) || is_grouped;
    int n_kv_heads = config_int_or(c, describe_either(c, "num_kv_heads", "n_head_kv"), 1, LIMIT_DIMENSION,
                                   a->n_heads);
    int n_norms = config_int_or(c, "num_ln_in_parallel_attn", 1, 2, is_grouped ? 2 : 1);
    a->n_kv_heads = is_grouped || !is_multi_query ? n_kv_heads : 1;
    if (!is_grouped && a->n_kv_heads > 1 && a->n_kv_heads != a->n_heads)
        config_unsupported(c, "num_kv_heads", "groups of heads without new_decoder_architecture");
    if (is_grouped && !config_bool_or(c, "parallel_attn", true))
        config_unsupported(c, "parallel_attn", "false with new_decoder_architecture");
    if (!is_grouped && n_norms != 1)
        config_unsupported(c, "num_ln_in_parallel_attn", "2 without new_decoder_architecture");
    if (!is_parallel)
        d->ffn_place = FFN_SEQUENTIAL;
    else
        d->ffn_place = is_grouped && n_norms == 2 ? FFN_PARALLEL : FFN_PARALLEL_ONE_NORM;
}

static void falcon_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    f->has_gate = false;
    if (is_gguf) {
        d->ffn_place = FFN_PARALLEL_ONE_NORM;
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        describe_gguf_activation(d, c);
        return;
    }
    d->n_layers = config_int(c, describe_either(c, "num_hidden_layers", "n_layer"), 1, LIMIT_LAYERS);
    d->d_model = config_int(c, describe_either(c, "hidden_size", "n_embed"), 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, describe_either(c, "num_attention_heads", "n_head"), 1, LIMIT_DIMENSION);
    describe_blocks(d, c);
    a->head_dim = d->d_model / a->n_heads;
    f->d_ff = config_int_or(c, "ffn_hidden_size", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, 2048);
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-5);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    f->activation = describe_activation(c, "activation", "gelu", ACTIVATIONS_WITHOUT_GATE);
    a->has_qkv_bias = a->has_out_bias = f->has_bias = config_bool_or(c, "bias", false);
    describe_rotation(d, c, &(struct transformers_defaults){ 0 });
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_attention_heads", "a width that is no multiple of the heads");
}

/* GGUF has no key for the second norm. */
static void falcon_find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    if (checkpoint_find(ck, "blk.0.attn_norm_2.weight"))
        d->ffn_place = FFN_PARALLEL;
}

static const char *falcon_find_gguf_fault(const struct model_desc *d)
{
    if (d->ffn_place == FFN_SEQUENTIAL)
        return "parallel_attn: false";
    return d->kinds[0].ffn.has_bias ? "bias: true" : NULL;
}

static void falcon_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    describe_put_activation(w, "falcon", d);
}

const struct family FAMILY_FALCON = {
    .name = "falcon",
    .gguf_architecture = "falcon",
    .is_mine = falcon_is_mine,
    .keys = KEYS,
    .code = "Falcon|RW",
    .put_metadata = falcon_put_metadata,
    .find_parts = falcon_find_parts,
    .find_gguf_fault = falcon_find_gguf_fault,
    .describe = falcon_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
