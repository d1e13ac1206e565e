/* ChatGLM-6B, the first generation: a bidirectional prefix, rotary embedding with two position
 * ids, residuals taken from the normed input and scaled, GELU without a gate. Du et al., 2022
 * (GLM); Zeng et al., 2022 (GLM-130B). Its vocabulary has two versions: the first begins with
 * 20000 image tokens. */
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>

#define LAYER "transformer.layers.%d."

/* scale: the name of a norm's weight. MindFormers changes only that and the embedding's name. */
#define NAMES(table, scale)                                                                                  \
    {                                                                                                        \
        .of[SLOT_EMBEDDING] = { "transformer.word_embeddings." table },                                      \
        .of[SLOT_OUTPUT] = { "lm_head.weight" },                                                             \
        .of[SLOT_OUTPUT_NORM] = { "transformer.final_layernorm." scale },                                    \
        .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm." scale },                                            \
        .of[SLOT_FFN_NORM] = { LAYER "post_attention_layernorm." scale },                                    \
        .of[SLOT_QKV] = { LAYER "attention.query_key_value.weight" },                                        \
        .of[SLOT_ATTN_OUT] = { LAYER "attention.dense.weight" },                                             \
        .of[SLOT_GATE_UP] = { LAYER "mlp.dense_h_to_4h.weight" },                                            \
        .of[SLOT_DOWN] = { LAYER "mlp.dense_4h_to_h.weight" }, .is_by_head = true,                           \
    }

static const struct tensor_names LAYOUTS[] = {
    NAMES("weight", "weight"),
    NAMES("embedding_table", "gamma"),
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP },
};

static const char *const IGNORED[] = { ".weight_scale" };

static bool chatglm_6b_is_mine(const json_t *config)
{
    return describe_has_type(config, "chatglm") &&
           (json_object_get(config, "inner_hidden_size") || json_object_get(config, "position_encoding_2d"));
}

static const struct config_key KEYS[] = {
    { "position_encoding_2d", "true" },
    { "prefix_projection", NULL }, /* of pre_seq_len */
    { "quantization_embeddings", "false" },
    { NULL, NULL },
};

/* The first release's configuration lacks the mask tokens; that of any other vocabulary must have
 * them. */
static void read_specials(struct model_desc *d, struct config *c)
{
    static const struct {
        int n_vocab, mask_id;
    } RELEASES[] = { { 150528, 150000 }, { 130528, 130000 } };
    int last = d->n_vocab - 1;
    for (int i = 0; i < 2; i++) {
        if (d->n_vocab == RELEASES[i].n_vocab) {
            int mask_id = RELEASES[i].mask_id;
            d->mask_ids[0] = config_int_or(c, "gmask_token_id", 0, last, mask_id + 1);
            d->mask_ids[1] = config_int_or(c, "mask_token_id", 0, last, mask_id);
            d->prefix_end_id = config_int_or(c, "bos_token_id", 0, last, mask_id + 4);
            return;
        }
    }
    d->mask_ids[0] = config_int(c, "gmask_token_id", 0, last);
    d->mask_ids[1] = config_int(c, "mask_token_id", 0, last);
    d->prefix_end_id = config_int(c, "bos_token_id", 0, last);
}

static void chatglm_6b_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    int n_bits = config_int_or(c, "quantization_bit", 0, 32,
                               0); /* the checkpoint's reader converts the matrices */
    if (n_bits != 0 && n_bits != 4 && n_bits != 8)
        config_unsupported(c, "quantization_bit", "a checkpoint of integers of other than 4 or 8 bits");
    if (config_int_or(c, "pre_seq_len", 0, LIMIT_CONTEXT, 0) != 0)
        config_unsupported(c, "pre_seq_len",
                           "P-Tuning (give the folder of the prefix to --lora, with the base model)");
    d->n_layers = config_int(c, "num_layers", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, "num_attention_heads", 1, LIMIT_DIMENSION);
    d->kinds[0].ffn.d_ff = config_int_or(c, "inner_hidden_size", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "max_sequence_length", 1, LIMIT_CONTEXT, 2048);
    d->norm_eps = (float)config_float_or(c, "layernorm_epsilon", 0, 1, 1e-5);
    a->n_kv_heads = a->n_heads;
    a->head_dim = d->d_model / a->n_heads;
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_attention_heads", "a width that is no multiple of the heads");
    d->residual_scale = sqrtf(2.0f * (float)d->n_layers);
    a->rotary_dim = a->head_dim;
    a->rope_theta = 10000;
    /* Files contain the output matrix too, but the authors' class ties it. */
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    read_specials(d, c);
}

static void read_metadata(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    describe_gguf(d, c);
    int last = config_int(c, "vocab_size", 1, LIMIT_VOCAB) - 1;
    d->residual_scale = (float)config_float(c, "residual_scale", 1e-3, 1e3);
    if (a->rotary_dim != a->head_dim)
        config_unsupported(c, "rope.dimension_count", "a rotation of a part of each head");
    d->mask_ids[0] = config_int(c, "gmask_token_id", 0, last);
    d->mask_ids[1] = config_int(c, "mask_token_id", 0, last);
    d->prefix_end_id = config_int(c, "prefix_end_token_id", 0, last);
}

#define KEY(name) "chatglm-6b." name
static void chatglm_6b_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    gguf_writer_f32(w, KEY("residual_scale"), d->residual_scale);
    gguf_writer_u32(w, KEY("gmask_token_id"), (uint32_t)d->mask_ids[0]);
    gguf_writer_u32(w, KEY("mask_token_id"), (uint32_t)d->mask_ids[1]);
    gguf_writer_u32(w, KEY("prefix_end_token_id"), (uint32_t)d->prefix_end_id);
}

static void chatglm_6b_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    if (is_gguf)
        read_metadata(d, c);
    else
        chatglm_6b_describe_hf(d, c);
    a->rope = ROPE_2D;
    a->has_half_freqs = true;
    f->has_gate = false;
    f->activation = ACT_GELU_TANH;
    a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
    d->has_prefix = true;
}

static enum tutti_status text_suffix(const struct model_desc *d, struct ids *out, struct tutti_error *err)
{
    return ids_add(out, d->mask_ids[0]) && ids_add(out, d->prefix_end_id) ? TUTTI_OK
                                                                          : chat_out_of_memory(err);
}

static const char *chatglm_6b_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                          const json_t *config, const json_t *tokenizer_config,
                                          const json_t *generation, const char *template)
{
    (void)desc, (void)tok, (void)config, (void)tokenizer_config, (void)generation, (void)template;
    return "chatglm";
}

static void defaults(struct tutti_sampling *sampling, const char *chat_format)
{
    (void)chat_format;
    sampling->temperature = 0.95f;
    sampling->top_p = 0.7f;
}

const struct family FAMILY_CHATGLM_6B = {
    .name = "chatglm-6b",
    .gguf_architecture = "chatglm-6b",
    .is_mine = chatglm_6b_is_mine,
    .keys = KEYS,
    .code = "ChatGLM",
    .describe = chatglm_6b_describe,
    .put_metadata = chatglm_6b_put_metadata,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = chatglm_6b_choose_chat,
    .defaults = defaults,
    .text_prefix = family_no_prefix,
    .text_suffix = text_suffix,
};
