/* InternLM2 and InternLM2.5: LLaMA's layers with q, k and v in one tensor, by KV head: its queries, then its
 * key and value. GGUF stores them apart, q and k permuted for interleaved rotation, as for LLaMA. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <string.h>

#define LAYER "model.layers.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "model.tok_embeddings.weight" },
      .of[SLOT_OUTPUT] = { "output.weight" },
      .of[SLOT_OUTPUT_NORM] = { "model.norm.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "attention_norm.weight" },
      .of[SLOT_FFN_NORM] = { LAYER "ffn_norm.weight" },
      .of[SLOT_QKV] = { LAYER "attention.wqkv.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "attention.wo.weight" },
      .of[SLOT_GATE_UP] = { LAYER "feed_forward.w1.weight", LAYER "feed_forward.w3.weight" },
      .of[SLOT_DOWN] = { LAYER "feed_forward.w2.weight" },
      .is_by_head = true },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

/* The first release has the type of the generation before it. */
static bool internlm2_is_mine(const json_t *config)
{
    const char *class = describe_class(config);
    return describe_has_type(config, "internlm2") ||
           (describe_has_type(config, "internlm") && class && strcmp(class, "InternLM2ForCausalLM") == 0);
}

static void internlm2_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { 0, 0, 2048, 1e-6, 0 };
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "bias", true);
}

static const char *internlm2_find_gguf_fault(const struct model_desc *d)
{
    return d->kinds[0].attn.has_qkv_bias ? "bias: true" : NULL;
}

const struct family FAMILY_INTERNLM2 = {
    .name = "internlm2",
    .gguf_architecture = "internlm2",
    .is_permuted_in_gguf = true,
    .is_mine = internlm2_is_mine,
    .keys = CONFIG_KEYS_ROTARY,
    .code = "InternLM",
    .describe = internlm2_describe,
    .find_gguf_fault = internlm2_find_gguf_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
