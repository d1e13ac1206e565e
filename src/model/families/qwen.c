/* Qwen2 and Qwen2.5: LLaMA's block with biases on q, k, v. Qwen3: without them, but with norms of
 * the heads of q and k. GGUF stores q and k for half-split rotary embedding. The language parts of
 * Qwen2-VL, Qwen2.5-VL and Qwen3-VL are the same models; in GGUF they have architectures of their own. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

/* MindFormers' newer models. */
#define NAMES_CORE                                                                                           \
    .of[SLOT_EMBEDDING] = { "embedding.word_embeddings.weight" },                                            \
    .of[SLOT_OUTPUT] = { "output_layer.weight" },                                                            \
    .of[SLOT_OUTPUT_NORM] = { "decoder.final_layernorm.weight" },                                            \
    .of[SLOT_ATTN_NORM] = { "decoder.layers.%d.input_layernorm.weight" },                                    \
    .of[SLOT_FFN_NORM] = { "decoder.layers.%d.pre_mlp_layernorm.weight" },                                   \
    .of[SLOT_QKV] = { "decoder.layers.%d.self_attention.linear_q.weight",                                    \
                      "decoder.layers.%d.self_attention.linear_k.weight",                                    \
                      "decoder.layers.%d.self_attention.linear_v.weight" },                                  \
    .of[SLOT_ATTN_OUT] = { "decoder.layers.%d.self_attention.linear_proj.weight" },                          \
    .of[SLOT_GATE_UP] = { "decoder.layers.%d.mlp.gating.weight",                                             \
                          "decoder.layers.%d.mlp.linear_fc1.weight" },                                       \
    .of[SLOT_DOWN] = { "decoder.layers.%d.mlp.linear_fc2.weight" }

static const struct tensor_names QWEN2_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP }, { NAMES_MINDFORMERS, NAMES_MINDFORMERS_SPLIT },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_FUSED },     { NAMES_CORE },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const struct tensor_names QWEN3_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, NAMES_QK_NORMS },
    { NAMES_CORE, .of[SLOT_Q_NORM] = { "decoder.layers.%d.self_attention.q_layernorm.weight" },
      .of[SLOT_K_NORM] = { "decoder.layers.%d.self_attention.k_layernorm.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_QK_NORMS),
};

static bool is_qwen2(const json_t *config)
{
    return describe_has_type(config, "qwen2");
}

static bool is_qwen3(const json_t *config)
{
    return describe_has_type(config, "qwen3");
}

/* Older files have the settings of the language part at top level, with the type of the whole. */
static bool is_qwen2_vl(const json_t *config)
{
    return describe_has_type(config, "qwen2_vl_text") || describe_has_type(config, "qwen2_5_vl_text") ||
           describe_has_type(config, "qwen2_vl") || describe_has_type(config, "qwen2_5_vl");
}

static bool is_qwen3_vl(const json_t *config)
{
    return describe_has_type(config, "qwen3_vl_text");
}

static const struct config_key VL_GGUF_KEYS[] = {
    { GGUF_IMAGE_SECTIONS, NULL },
    { "n_deepstack_layers", NULL }, /* layers to which rows of images are added */
    { NULL, NULL },
};

/* Files contain a window size even if it is not used. Without layer_types it applies to the
 * layers from max_window_layers on. */
/* first: max_window_layers where the file does not say it. */
static void read_window(struct model_desc *d, struct config *c, int first)
{
    int window = config_int_or(c, "sliding_window", 1, INT32_MAX, config_has(c, "sliding_window") ? 0 : 4096);
    first = config_int_or(c, "max_window_layers", 0, INT32_MAX, first);
    if (!config_bool_or(c, "use_sliding_window", false))
        window = 0;
    describe_layer_types(d, c, window, first);
}

/* Dual chunk attention of Qwen2.5's models of a million tokens: plain attention up to the end of the first
 * chunk, where the context ends. */
static void read_chunks(struct model_desc *d, struct config *c)
{
#define CHUNKS "dual_chunk_attention_config"
    if (!config_has_object(c, CHUNKS))
        return;
    int size = config_int(c, CHUNKS ".chunk_size", 1, LIMIT_CONTEXT);
    int length = size - config_int(c, CHUNKS ".local_size", 0, size - 1);
    int original = config_int_or(c, CHUNKS ".original_max_position_embeddings", 1, LIMIT_CONTEXT, length);
    length = length < original ? length : original;
    d->n_ctx = d->n_ctx < length ? d->n_ctx : length;
#undef CHUNKS
}

static void describe_gguf_qwen(struct model_desc *d, struct config *c)
{
    describe_gguf(d, c);
    d->kinds[0].attn.rope = ROPE_HALF;
}

static void describe_qwen2(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { 32, 0, 32768, 1e-6, 0 };
    d->kinds[0].attn.has_qkv_bias = true;
    if (is_gguf) {
        describe_gguf_qwen(d, c);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    read_window(d, c, 28);
    read_chunks(d, c);
}

static void describe_qwen3(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { 32, 128, 32768, 1e-6, 0 };
    a->has_qk_norm = true;
    if (is_gguf) {
        describe_gguf_qwen(d, c);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    read_window(d, c, 28);
}

static void describe_qwen2_vl(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_kv_heads = 8, .n_ctx = 32768, .norm_eps = 1e-5, .rope_theta = 1e6, .has_image_sections = true
    };
    d->kinds[0].attn.has_qkv_bias = true;
    if (is_gguf) {
        describe_gguf_qwen(d, c);
        describe_gguf_image_sections(d, c);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    read_window(d, c, 80);
}

static void describe_qwen3_vl(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 32,
                                                           .head_dim = 128,
                                                           .n_ctx = 128000,
                                                           .norm_eps = 1e-6,
                                                           .rope_theta = 5e5,
                                                           .has_image_sections = true };
    struct attn_desc *a = &d->kinds[0].attn;
    a->has_qk_norm = true;
    if (is_gguf) {
        describe_gguf_qwen(d, c);
        describe_gguf_image_sections(d, c);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
}

static void put_qwen2_vl(struct gguf_writer *w, const struct model_desc *d)
{
    describe_put_image_sections(w, "qwen2vl", d);
}

static void put_qwen3_vl(struct gguf_writer *w, const struct model_desc *d)
{
    describe_put_image_sections(w, "qwen3vl", d);
}

/* Windows in some layers are refused for all families without them. */
static const char *find_fault(const struct model_desc *d)
{
    return model_window(d) > 0 ? "use_sliding_window: true" : NULL;
}

static const char *find_vl_fault(const struct model_desc *d)
{
    return d->image_sections[0] == 0 ? "no mrope_section" : find_fault(d);
}

const struct family FAMILY_QWEN2 = {
    .name = "qwen2",
    .gguf_architecture = "qwen2",
    .is_mine = is_qwen2,
    .keys = CONFIG_KEYS_ROTARY,
    .find_gguf_fault = find_fault,
    .describe = describe_qwen2,
    .layouts = QWEN2_LAYOUTS,
    .n_layouts = sizeof QWEN2_LAYOUTS / sizeof *QWEN2_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_QWEN3 = {
    .name = "qwen3",
    .gguf_architecture = "qwen3",
    .is_mine = is_qwen3,
    .keys = CONFIG_KEYS_ROTARY,
    .find_gguf_fault = find_fault,
    .describe = describe_qwen3,
    .layouts = QWEN3_LAYOUTS,
    .n_layouts = sizeof QWEN3_LAYOUTS / sizeof *QWEN3_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_QWEN2_VL = {
    .name = "qwen2_vl",
    .gguf_architecture = "qwen2vl",
    .is_mine = is_qwen2_vl,
    .keys = CONFIG_KEYS_ROTARY,
    .gguf_keys = VL_GGUF_KEYS,
    .describe = describe_qwen2_vl,
    .put_metadata = put_qwen2_vl,
    .find_gguf_fault = find_vl_fault,
    .layouts = QWEN2_LAYOUTS,
    .n_layouts = sizeof QWEN2_LAYOUTS / sizeof *QWEN2_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_QWEN3_VL = {
    .name = "qwen3_vl",
    .gguf_architecture = "qwen3vl",
    .is_mine = is_qwen3_vl,
    .keys = CONFIG_KEYS_ROTARY,
    .gguf_keys = VL_GGUF_KEYS,
    .describe = describe_qwen3_vl,
    .put_metadata = put_qwen3_vl,
    .find_gguf_fault = find_vl_fault,
    .layouts = QWEN3_LAYOUTS,
    .n_layouts = sizeof QWEN3_LAYOUTS / sizeof *QWEN3_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
