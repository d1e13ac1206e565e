/* OPT: LayerNorm, learned positions whose table has two more rows at its beginning, biases, ReLU
 * without a gate. */
#include "model/description/describe.h"
#include "model/families/names.h"

#define HF_NAMES(prefix)                                                                                     \
    {                                                                                                        \
        .of[SLOT_EMBEDDING] = { prefix "embed_tokens.weight" },                                              \
        .of[SLOT_POSITIONS] = { prefix "embed_positions.weight" }, .of[SLOT_OUTPUT] = { "lm_head.weight" },  \
        .of[SLOT_OUTPUT_NORM] = { prefix "final_layer_norm.weight" },                                        \
        .of[SLOT_ATTN_NORM] = { prefix "layers.%d.self_attn_layer_norm.weight" },                            \
        .of[SLOT_FFN_NORM] = { prefix "layers.%d.final_layer_norm.weight" },                                 \
        .of[SLOT_QKV] = { prefix "layers.%d.self_attn.q_proj.weight",                                        \
                          prefix "layers.%d.self_attn.k_proj.weight",                                        \
                          prefix "layers.%d.self_attn.v_proj.weight" },                                      \
        .of[SLOT_ATTN_OUT] = { prefix "layers.%d.self_attn.out_proj.weight" },                               \
        .of[SLOT_GATE_UP] = { prefix "layers.%d.fc1.weight" }, .of[SLOT_DOWN] = {                            \
            prefix "layers.%d.fc2.weight"                                                                    \
        }                                                                                                    \
    }

static const struct tensor_names LAYOUTS[] = {
    HF_NAMES("model.decoder."),
    HF_NAMES("decoder."),
    { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_UP, .of[SLOT_POSITIONS] = { "position_embd.weight" } },
};

enum { N_EMPTY_POSITIONS = 2 };

static bool opt_is_mine(const json_t *config)
{
    return describe_has_type(config, "opt");
}

static const struct config_key KEYS[] = {
    { "do_layer_norm_before", "true" }, /* the model of 350M has its norms after the blocks */
    { "_remove_final_layer_norm", "false" },
    { "layer_norm_elementwise_affine", "true" },
    { "layerdrop", NULL }, /* of training */
    { "init_std", NULL },
    { NULL, NULL },
};

static void opt_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->n_layers = config_int(c, "num_hidden_layers", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION / 4);
    a->n_heads = a->n_kv_heads = config_int(c, "num_attention_heads", 1, LIMIT_DIMENSION);
    a->head_dim = d->d_model / a->n_heads;
    f->d_ff = config_int(c, "ffn_dim", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, 2048);
    d->norm_eps = 1e-5f;
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    f->activation = describe_activation(c, "activation_function", "relu", ACTIVATIONS_WITHOUT_GATE);
    a->has_qkv_bias = a->has_out_bias = f->has_bias = config_bool_or(c, "enable_bias", true);
    if (config_int_or(c, "word_embed_proj_dim", 1, LIMIT_DIMENSION, d->d_model) != d->d_model)
        config_unsupported(c, "word_embed_proj_dim", "an embedding of another width than the model's");
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_attention_heads", "a width that is no multiple of the heads");
}

static void opt_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    d->norm = NORM_LAYER;
    d->kinds[0].ffn.has_gate = false;
    if (is_gguf) {
        describe_gguf(d, c);
        d->kinds[0].ffn.activation = ACT_RELU;
    } else {
        opt_describe_hf(d, c);
    }
    d->has_learned_positions = true;
    d->first_position_row = N_EMPTY_POSITIONS;
    d->kinds[0].attn.rope = ROPE_NONE;
    d->kinds[0].attn.rotary_dim = 0;
}

static const char *opt_find_gguf_fault(const struct model_desc *d)
{
    return d->kinds[0].ffn.activation == ACT_RELU ? NULL : "activation_function: another than relu";
}

/* llama.cpp has no architecture of this kind. */
const struct family FAMILY_OPT = {
    .name = "opt",
    .gguf_architecture = "opt-decoder",
    .is_mine = opt_is_mine,
    .keys = KEYS,
    .find_gguf_fault = opt_find_gguf_fault,
    .describe = opt_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
