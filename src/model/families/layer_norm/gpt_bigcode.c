/* GPTBigCode (StarCoder, SantaCoder, WizardCoder): GPT-2's layers with one KV head for all heads. Its matrices are stored as
 * [out][in]; c_attn holds q, then k, then v. */
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_GPT2("transformer.") },
    { NAMES_GPT2("") },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP, .of[SLOT_POSITIONS] = { "position_embd.weight" } },
};

static const char *const IGNORED[] = { ".attn.bias" }; /* the causal mask */

static bool gpt_bigcode_is_mine(const json_t *config)
{
    return describe_has_type(config, "gpt_bigcode");
}

static const struct config_key KEYS[] = {
    { "multi_query", "true" },
    { "num_key_value_heads", "1" }, /* saved by transformers 5 */
    { "scale_attn_weights", "true" },
    { "attention_softmax_in_fp32", NULL }, /* the precision of scores, which are float32 here */
    { "scale_attention_softmax_in_fp32", NULL },
    { "inference_runner",
      NULL }, /* 0 to 2, and the next five: how the authors' server stored keys and values */
    { "pad_key_length", NULL },
    { "pre_allocate_kv_cache", NULL },
    { "max_sequence_length", NULL },
    { "max_batch_size", NULL },
    { "validate_runner_input", NULL },
    { "summary_*", NULL },
    { NULL, NULL },
};

static void gpt_bigcode_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    d->n_layers = config_int_or(c, describe_either(c, "n_layer", "num_hidden_layers"), 1, LIMIT_LAYERS, 12);
    d->d_model = config_int_or(c, describe_either(c, "n_embd", "hidden_size"), 1, LIMIT_DIMENSION / 4, 768);
    a->n_heads = config_int_or(c, describe_either(c, "n_head", "num_attention_heads"), 1, LIMIT_DIMENSION,
                               12);
    d->kinds[0].ffn.d_ff = config_int_or(c, "n_inner", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int_or(c, "vocab_size", 1, LIMIT_VOCAB, 50257);
    d->n_ctx = config_int_or(c, describe_either(c, "n_positions", "max_position_embeddings"), 1,
                             LIMIT_CONTEXT, 1024);
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-5);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    a->n_kv_heads = 1;
    a->head_dim = d->d_model / a->n_heads;
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "n_head", "a width that is no multiple of the heads");
    d->kinds[0].ffn.activation = describe_activation(c, "activation_function", "gelu_pytorch_tanh",
                                                     ACTIVATIONS_WITHOUT_GATE);
}

static void gpt_bigcode_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    if (is_gguf) {
        describe_gguf(d, c);
        describe_gguf_activation(d, c);
    } else {
        gpt_bigcode_describe_hf(d, c);
    }
    d->has_learned_positions = true;
    a->rope = ROPE_NONE;
    a->rotary_dim = 0;
    f->has_gate = false;
    a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
}

static void gpt_bigcode_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    describe_put_activation(w, "starcoder", d);
}

const struct family FAMILY_GPT_BIGCODE = {
    .name = "gpt_bigcode",
    .gguf_architecture = "starcoder",
    .is_mine = gpt_bigcode_is_mine,
    .keys = KEYS,
    .put_metadata = gpt_bigcode_put_metadata,
    .describe = gpt_bigcode_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
