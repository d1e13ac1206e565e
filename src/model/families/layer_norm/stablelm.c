/* StableLM 3B and StableLM 2 1.6B: LLaMA's layers with LayerNorm and a rotated part of each head. Those of 12B, whose heads of q and k
 * have LayerNorms of their own, are refused. GGUF has no key for the biases of q, k, v, but the tensors. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"
#include "model/weights/weights.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const struct config_key KEYS[] = {
    { "qk_layernorm", "false" },
    { NULL, NULL },
};

#define KEY_PARALLEL "use_parallel_residual"

static bool stablelm_is_mine(const json_t *config)
{
    return describe_has_type(config, "stablelm");
}

static void stablelm_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 32,
                                                           .n_ctx = 4096,
                                                           .norm_eps = 1e-5,
                                                           .norm_key = "layer_norm_eps",
                                                           .n_heads = 32,
                                                           .n_vocab = 50304,
                                                           .rotary_part = 0.25 };
    struct attn_desc *a = &d->kinds[0].attn;
    d->norm = NORM_LAYER;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        config_skip(
            c,
            KEY_PARALLEL); /* as in llama.cpp, the tensors say it: files have true where config.json says nothing */
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    describe_layer_types(d, c, 0, 0);
    a->has_qkv_bias = config_bool_or(c, "use_qkv_bias", false);
    d->ffn_place = config_bool_or(c, KEY_PARALLEL, false) ? FFN_PARALLEL_ONE_NORM : FFN_SEQUENTIAL;
}

static void stablelm_find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    d->ffn_place = checkpoint_find(ck, "blk.0.ffn_norm.weight") ? FFN_SEQUENTIAL : FFN_PARALLEL_ONE_NORM;
}

static void stablelm_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    gguf_writer_bool(w, "stablelm." KEY_PARALLEL, d->ffn_place != FFN_SEQUENTIAL);
}

static const char *stablelm_find_gguf_fault(const struct model_desc *d)
{
    return d->tied_output ? "tie_word_embeddings: true" : NULL;
}

const struct family FAMILY_STABLELM = {
    .name = "stablelm",
    .gguf_architecture = "stablelm",
    .is_mine = stablelm_is_mine,
    .keys = KEYS,
    .code = "StableLM",
    .describe = stablelm_describe,
    .find_parts = stablelm_find_parts,
    .put_metadata = stablelm_put_metadata,
    .find_gguf_fault = stablelm_find_gguf_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
