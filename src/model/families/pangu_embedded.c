/* openPangu-Embedded 1B and 7B: LLaMA's layers with biases on q, k, v and the output of attention. GGUF
 * stores q and k for half-split rotary embedding. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static bool pangu_embedded_is_mine(const json_t *config)
{
    return describe_has_type(config, "PanguEmbedded");
}

static void pangu_embedded_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { 0, 0, 32768, 1e-5, .rope_theta = 16e6 };
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "bias", true);
}

const struct family FAMILY_PANGU_EMBEDDED = {
    .name = "pangu_embedded",
    .gguf_architecture = "pangu-embedded",
    .is_mine = pangu_embedded_is_mine,
    .keys = CONFIG_KEYS_ROTARY,
    .code = "PanguEmbedded",
    .describe = pangu_embedded_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
