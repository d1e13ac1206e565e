/* PanGu-Alpha: GPT-2's block with the quick GELU, and on top a layer whose queries come from a
 * table by position. Published only with MindSpore's names; its projections are stored as
 * [in][out], q, k and v are not. Zeng et al., 2021. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <string.h>

static const struct tensor_names TOP_LAYER = { NAMES_MINDFORMERS_BLOCK("backbone.top_query_layer.") };

static const struct tensor_names GGUF_TOP_LAYER = { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_UP };

static const struct tensor_names LAYOUTS[] = {
    {
        NAMES_MINDFORMERS_BLOCK("backbone.blocks.%d."),
        .of[SLOT_EMBEDDING] = { "backbone.embedding.word_embedding.embedding_table" },
        .of[SLOT_POSITIONS] = { "backbone.embedding.position_embedding.embedding_table" },
        .of[SLOT_OUTPUT_NORM] = { "backbone.layernorm.gamma" },
        .of[SLOT_TOP_TABLE] = { "backbone.top_query_embedding.embedding_table" },
        .top = &TOP_LAYER,
    },
    {
        NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_UP, .of[SLOT_POSITIONS] = { "position_embd.weight" },
        .of[SLOT_TOP_TABLE] = { "top_query_embd.weight" }, .top = &GGUF_TOP_LAYER, /* the last block */
    },
};

static bool pangu_is_mine(const json_t *config)
{
    return describe_has_type(config, "pangualpha") || describe_has_type(config, "pangu_alpha");
}

static void describe_mindformers(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    d->n_layers = config_int(c, "num_layers", 2, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, "num_heads", 1, LIMIT_DIMENSION);
    d->kinds[0].ffn.d_ff = config_int_or(c, "ffn_hidden_size", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "seq_length", 1, LIMIT_CONTEXT, 1024);
    d->norm_eps = (float)config_float_or(c, "layernorm_epsilon", 0, 1, 1e-5);
    a->n_kv_heads = a->n_heads;
    a->head_dim = d->d_model / a->n_heads;
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_heads", "a width that is no multiple of the heads");
    const char *act = config_string_or(c, "hidden_act", "fast_gelu");
    if (strcmp(act, "fast_gelu") != 0)
        config_unsupported(c, "hidden_act", act);
    if (config_bool_or(c, "post_layernorm_residual", false))
        config_unsupported(c, "post_layernorm_residual", "a residual taken after the norm");
}

static void pangu_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    if (is_gguf)
        describe_gguf(d, c);
    else
        describe_mindformers(d, c);
    if (d->n_layers < 2)
        config_unsupported(c, "block_count", "a model that has only the query layer");
    a->rotary_dim = 0;
    d->has_learned_positions = true;
    d->has_top_query = true;
    d->tied_output = true;
    a->rope = ROPE_NONE;
    f->has_gate = false;
    f->activation = ACT_GELU_SIGMOID;
    a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
}

const struct family FAMILY_PANGU = {
    .name = "pangualpha",
    .gguf_architecture = "pangu-alpha",
    .is_mine = pangu_is_mine,
    .keys = CONFIG_KEYS_MINDFORMERS,
    .describe = pangu_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
