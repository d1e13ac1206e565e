/* SmolLM3: LLaMA's layers, of which some do not rotate. GGUF stores q and k permuted, as for LLaMA. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

enum { PERIOD = 4 }; /* of the layers that do not rotate: in GGUF, and without a list */

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static bool smollm3_is_mine(const json_t *config)
{
    return describe_has_type(config, "smollm3");
}

static const struct config_key KEYS[] = {
    { "max_window_layers", NULL }, /* no layer has a window */
    { "use_sliding_window", "false" },  { "sliding_window", "null" },
    { "partial_rotary_factor", "1.0" }, { NULL, NULL },
};

/* marks: the layers that do not rotate. The list says with 1 that a layer rotates. */
static void read_rotating(struct model_desc *d, struct config *c, bool *marks)
{
    const json_t *list = config_find(c, "no_rope_layers");
    int period = config_int_or(c, "no_rope_layer_interval", 1, LIMIT_LAYERS, PERIOD);
    if (list && json_array_size(list) != (size_t)d->n_layers)
        config_unsupported(c, "no_rope_layers", "a list of another length than the number of layers");
    for (int i = 0; i < d->n_layers; i++)
        marks[i] = list ? json_integer_value(json_array_get(list, (size_t)i)) == 0 : (i + 1) % period == 0;
}

static void smollm3_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = {
        .n_kv_heads = 4, .n_ctx = 32768, .norm_eps = 1e-6, .is_tied = true, .rope_theta = 2e6
    };
    bool marks[LIMIT_LAYERS];
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
        for (int i = 0; i < d->n_layers; i++)
            marks[i] = (i + 1) % PERIOD == 0;
    } else {
        describe_transformers(d, c, &DEFAULTS);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
        d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
        describe_layer_types(d, c, 0, 0);
        read_rotating(d, c, marks);
    }
    struct layer_split split = describe_split(d, marks);
    if (split.marked >= 0)
        d->kinds[split.marked].attn.rope = ROPE_NONE;
}

static const char *smollm3_find_gguf_fault(const struct model_desc *d)
{
    for (int i = 0; i < d->n_layers; i++)
        if ((model_layer(d, i)->attn.rope == ROPE_NONE) != ((i + 1) % PERIOD == 0))
            return "no_rope_layers: others than every fourth layer";
    return NULL;
}

const struct family FAMILY_SMOLLM3 = {
    .name = "smollm3",
    .gguf_architecture = "smollm3",
    .is_mine = smollm3_is_mine,
    .is_permuted_in_gguf = true,
    .keys = KEYS,
    .find_gguf_fault = smollm3_find_gguf_fault,
    .describe = smollm3_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
