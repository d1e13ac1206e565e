/* Command R, R7B and A, Aya 23 and Aya Expanse: attention and feed-forward layer in parallel on one normed input,
 * norms that subtract the mean and have no bias, interleaved rotary positions, a factor of the logits. In newer
 * models (cohere2) three of four layers have a window, and the others do not rotate. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "model.layers.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "model.embed_tokens.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "model.norm.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },
      .of[SLOT_QKV] = { LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight",
                        LAYER "self_attn.v_proj.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "self_attn.o_proj.weight" },
      NAMES_TRANSFORMERS_GATE_UP,
      .of[SLOT_DOWN] = { LAYER "mlp.down_proj.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

enum { PERIOD = 4 }; /* every PERIOD-th layer of cohere2 has no window */

static const struct config_key COHERE_KEYS[] = {
    CONFIG_WHOLE_HEADS,
    { "use_qk_norm", "false" }, /* Command R+: norms with a weight for each head */
    { NULL, NULL },
};

static const struct config_key COHERE2_KEYS[] = {
    CONFIG_WHOLE_HEADS,
    { "cache_implementation", NULL },
    { "layer_switch", NULL },                /* the same as sliding_window_pattern */
    { "order_of_interleaved_layers", NULL }, /* "local_attn_first" */
    { "position_embedding_type", "\"rope_gptj\"" },
    { "rotary_pct", "1.0" },
    { "use_embedding_sharing", "true" },
    { "use_gated_activation", "true" },
    { "use_parallel_block", "true" },
    { "use_parallel_embedding", NULL }, /* of training */
    { NULL, NULL },
};

static bool is_cohere(const json_t *config)
{
    return describe_has_type(config, "cohere");
}

static bool is_cohere2(const json_t *config)
{
    return describe_has_type(config, "cohere2");
}

/* rope_theta: of a file that says nothing. */
static void read_common(struct model_desc *d, struct config *c, bool is_gguf, double rope_theta)
{
    const struct transformers_defaults defaults = { .n_heads = 64,
                                                    .n_ctx = 8192,
                                                    .n_vocab = 256000,
                                                    .norm_eps = 1e-5,
                                                    .norm_key = "layer_norm_eps",
                                                    .rope_theta = rope_theta,
                                                    .is_tied = true };
    struct attn_desc *a = &d->kinds[0].attn;
    d->norm = NORM_LAYER_PLAIN;
    d->ffn_place = FFN_PARALLEL_ONE_NORM;
    if (is_gguf) {
        describe_gguf(d, c);
    } else {
        describe_transformers(d, c, &defaults);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    }
    a->rope = ROPE_INTERLEAVED;
    d->logit_scale = (float)config_float_or(c, "logit_scale", 1e-6, 1e6, is_gguf ? 1 : 0.0625);
}

static void describe_cohere(struct model_desc *d, struct config *c, bool is_gguf)
{
    read_common(d, c, is_gguf, 5e5);
    if (is_gguf)
        return;
    describe_layer_types(d, c, 0, 0);
    /* The first files' other number is that of training. */
    d->n_ctx = config_int_or(c, "model_max_length", 1, LIMIT_CONTEXT, d->n_ctx);
}

static void describe_cohere2(struct model_desc *d, struct config *c, bool is_gguf)
{
    read_common(d, c, is_gguf, 1e4);
    /* transformers rotates no layer if there is no window. */
    const char *key = is_gguf ? "attention.sliding_window" : "sliding_window";
    int window = config_has(c, key) || is_gguf ? config_int(c, key, 1, INT32_MAX) : 4096;
    int period = config_int_or(c, is_gguf ? "attention.sliding_window_pattern" : "sliding_window_pattern", 1,
                               LIMIT_LAYERS, PERIOD);
    describe_layer_periods(d, c, window, period);
    for (int i = 0; i < d->n_kinds; i++)
        if (d->kinds[i].attn.window == 0)
            d->kinds[i].attn.rope = ROPE_NONE;
}

/* llama.cpp's graph has no biases and no output matrix of its own, and its heads are together as wide as
 * the model. */
static const char *find_fault(const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    if (!d->tied_output)
        return "tie_word_embeddings: false";
    if (a->n_heads * a->head_dim != d->d_model)
        return "head_dim: another number than hidden_size / num_attention_heads";
    return a->has_qkv_bias ? "attention_bias: true" : NULL;
}

static const char *cohere2_fault(const struct model_desc *d)
{
    for (int i = 0; i < d->n_layers; i++)
        if ((model_layer(d, i)->attn.window > 0) != ((i + 1) % PERIOD != 0))
            return "layer_types: windows in other layers than those of the published models";
    return find_fault(d);
}

static void put_common(struct gguf_writer *w, const struct model_desc *d, const char *logit_scale_key,
                       const char *scaling_type_key)
{
    gguf_writer_f32(w, logit_scale_key, d->logit_scale);
    if (d->kinds[0].attn.rope_scaling.kind == ROPE_SCALING_NONE)
        gguf_writer_string(w, scaling_type_key, "none", 4);
}

static void put_cohere(struct gguf_writer *w, const struct model_desc *d)
{
    put_common(w, d, "command-r.logit_scale", "command-r.rope.scaling.type");
}

static void put_cohere2(struct gguf_writer *w, const struct model_desc *d)
{
    put_common(w, d, "cohere2.logit_scale", "cohere2.rope.scaling.type");
}

const struct family FAMILY_COHERE = {
    .name = "cohere",
    .gguf_architecture = "command-r",
    .is_mine = is_cohere,
    .keys = COHERE_KEYS,
    .describe = describe_cohere,
    .put_metadata = put_cohere,
    .find_gguf_fault = find_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};

const struct family FAMILY_COHERE2 = {
    .name = "cohere2",
    .gguf_architecture = "cohere2",
    .is_mine = is_cohere2,
    .keys = COHERE2_KEYS,
    .describe = describe_cohere2,
    .put_metadata = put_cohere2,
    .find_gguf_fault = cohere2_fault,
    .has_window_layers = true,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
