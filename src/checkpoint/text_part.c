#include "checkpoint/text_part.h"

#include <stdio.h>
#include <string.h>

/* True in either place means that the two are tied. */
static const char TIED[] = "tie_word_embeddings";

/* Settings of the part that turns images into rows of the embedding. */
static const char *const VISION_SETTINGS[] = {
    "vision_config",
    "audio_config",
    "mm_tokens_per_image",
    "projector_hidden_act",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "multimodal_projector_bias",
    "image_seq_length",
    "spatial_merge_size",
    "vision_soft_tokens_per_image",
};

/* Settings of the language part, which transformers reads from text_config only if a file has it. Some files repeat
 * them at top level. */
static const char *const TEXT_SETTINGS[] = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "hidden_activation",
    "attention_bias",
    "use_qk_norm",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "layer_types",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "mlp_only_layers",
};

/* Whether the settings of the language part are at top level, next to those of the vision part. */
static bool is_flat(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && (strcmp(type, "qwen2_vl") == 0 || strcmp(type, "qwen2_5_vl") == 0) &&
           json_is_object(json_object_get(config, "vision_config"));
}

bool text_part_unwrap(json_t *config, bool *has_vision)
{
    json_t *text = json_object_get(config, "text_config");
    bool has_text = json_is_object(text), is_tied = json_is_true(json_object_get(config, TIED));
    *has_vision = has_text || is_flat(config);
    if (!*has_vision)
        return true;
    json_incref(text);
    json_object_del(config, "text_config");
    for (size_t i = 0; i < sizeof VISION_SETTINGS / sizeof *VISION_SETTINGS; i++)
        json_object_del(config, VISION_SETTINGS[i]);
    for (size_t i = 0; has_text && i < sizeof TEXT_SETTINGS / sizeof *TEXT_SETTINGS; i++)
        json_object_del(config, TEXT_SETTINGS[i]);
    bool ok = !has_text || json_object_update(config, text) == 0;
    if (is_tied)
        ok = json_object_set_new(config, TIED, json_true()) == 0 && ok;
    json_decref(text);
    return ok;
}

static const char *after(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

const char *text_part_name(const char *name, char *out, size_t size)
{
    static const char *const VISION[] = { "vision_tower.", "vision_model.", "multi_modal_projector.",
                                          "visual.",       "embed_vision.", "audio_tower.",
                                          "embed_audio." };
    static const char *const BARE[] = { "embed_tokens.", "layers.", "norm." };
    const char *rest = after(name, "language_model."), *part = after(name, "model.");
    for (size_t i = 0; i < sizeof VISION / sizeof *VISION; i++) {
        if (after(name, VISION[i]) || (part && after(part, VISION[i])))
            return NULL;
    }
    const char *inner = part ? after(part, "language_model.") : NULL;
    if (!rest && inner && snprintf(out, size, "model.%s", inner) < (int)size)
        return out;
    if (rest)
        return rest;
    for (size_t i = 0; i < sizeof BARE / sizeof *BARE; i++) {
        if (after(name, BARE[i]) && snprintf(out, size, "model.%s", name) < (int)size)
            return out;
    }
    return name;
}
