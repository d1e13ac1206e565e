#include "checkpoint/text_part.h"

#include <stdio.h>
#include <string.h>

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
};

bool text_part_unwrap(json_t *config, bool *has_vision)
{
    json_t *text = json_object_get(config, "text_config");
    *has_vision = json_is_object(text);
    if (!*has_vision)
        return true;
    json_incref(text);
    json_object_del(config, "text_config");
    for (size_t i = 0; i < sizeof VISION_SETTINGS / sizeof *VISION_SETTINGS; i++)
        json_object_del(config, VISION_SETTINGS[i]);
    bool ok = json_object_update(config, text) == 0;
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
                                          "visual." };
    const char *rest = after(name, "language_model."), *part = after(name, "model.");
    for (size_t i = 0; i < sizeof VISION / sizeof *VISION; i++) {
        if (after(name, VISION[i]) || (part && after(part, VISION[i])))
            return NULL;
    }
    const char *inner = part ? after(part, "language_model.") : NULL;
    if (!rest && inner && snprintf(out, size, "model.%s", inner) < (int)size)
        return out;
    return rest ? rest : name;
}
