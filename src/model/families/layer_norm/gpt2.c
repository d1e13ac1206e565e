/* GPT-2: LayerNorm, learned positions, GELU without a gate, biases everywhere. Hugging Face
 * stores its matrices as [in][out] (Conv1D), with or without "transformer." before every name. */
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_GPT2("transformer."), .transposed = TRANSPOSED_ALL },
    { NAMES_GPT2(""), .transposed = TRANSPOSED_ALL },
    { NAMES_MINDFORMERS_BLOCK("backbone.blocks.%d."),
      .of[SLOT_EMBEDDING] = { "backbone.embedding.word_embedding.embedding_table" },
      .of[SLOT_POSITIONS] = { "backbone.embedding.position_embedding.embedding_table" },
      .of[SLOT_OUTPUT] = { "head.weight" }, .of[SLOT_OUTPUT_NORM] = { "backbone.layernorm.gamma" } },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP, .of[SLOT_POSITIONS] = { "position_embd.weight" } },
};

/* Buffers of the causal mask. */
static const char *const IGNORED[] = { ".attn.bias", "attn.masked_bias", "attention.beta",
                                       "attention.masked_beta" };

static bool gpt2_is_mine(const json_t *config)
{
    return describe_has_type(config, "gpt2");
}

static const struct config_key KEYS[] = {
    { "scale_attn_weights", "true" },
    { "scale_attn_by_inverse_layer_idx", "false" },
    { "reorder_and_upcast_attn", NULL }, /* the same results in another order */
    { "n_ctx", NULL },                   /* n_positions again */
    { "n_special", NULL },
    { "predict_special_tokens", NULL },
    { "summary_*", NULL }, /* of GPT2DoubleHeadsModel */
    { NULL, NULL },
};

static void gpt2_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    d->n_layers = config_int(c, describe_either(c, "n_layer", "num_hidden_layers"), 1, LIMIT_LAYERS);
    d->d_model = config_int(c, describe_either(c, "n_embd", "hidden_size"), 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, describe_either(c, "n_head", "num_attention_heads"), 1, LIMIT_DIMENSION);
    d->kinds[0].ffn.d_ff = config_int_or(c, "n_inner", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, describe_either(c, "n_positions", "max_position_embeddings"), 1,
                             LIMIT_CONTEXT, 1024);
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-5);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    a->n_kv_heads = a->n_heads;
    a->head_dim = d->d_model / a->n_heads;
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "n_head", "a width that is no multiple of the heads");
    d->kinds[0].ffn.activation = describe_activation(c, "activation_function", "gelu_new",
                                                     ACTIVATIONS_WITHOUT_GATE);
}

static void gpt2_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    if (is_gguf) {
        describe_gguf(d, c);
        describe_gguf_activation(d, c);
    } else {
        gpt2_describe_hf(d, c);
    }
    d->has_learned_positions = true;
    a->rope = ROPE_NONE;
    a->rotary_dim = 0;
    f->has_gate = false;
    a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
}

static void gpt2_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    describe_put_activation(w, "gpt2", d);
}

const struct family FAMILY_GPT2 = {
    .name = "gpt2",
    .gguf_architecture = "gpt2",
    .is_mine = gpt2_is_mine,
    .keys = KEYS,
    .put_metadata = gpt2_put_metadata,
    .describe = gpt2_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
