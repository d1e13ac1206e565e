/* Baichuan and Baichuan2: LLaMA's layers with q, k and v in one tensor, one after the other. The models of
 * 7B rotate; those of 13B have ALiBi. Baichuan2 divides the rows of its output matrix by their lengths.
 * GGUF has q, k and v apart, q and k permuted for interleaved rotation, and no key for ALiBi: llama.cpp
 * expects it of 40 layers. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"
#include "model/weights/weights.h"

#include <math.h>
#include <stdlib.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS_BUT_QKV, NAMES_TRANSFORMERS_GATE_UP,
      .of[SLOT_QKV] = { "model.layers.%d.self_attn.W_pack.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const char *const IGNORED[] = { "future_mask" };

enum { ALIBI_LAYERS = 40, BAICHUAN2_VOCAB = 125696 };

static bool baichuan_is_mine(const json_t *config)
{
    return describe_has_type(config, "baichuan");
}

static void set_alibi(struct attn_desc *a)
{
    a->has_alibi = true;
    a->rope = ROPE_NONE;
    a->rotary_dim = 0;
}

/* The class of the models with ALiBi names its context model_max_length only; the class of those that
 * rotate also has max_position_embeddings. Only Baichuan2's class has z_loss_weight. */
static void describe_folder(struct model_desc *d, struct config *c)
{
    static const struct transformers_defaults DEFAULTS = { 0, 0, 4096, 1e-6, 0 };
    bool has_alibi = config_has(c, "model_max_length") && !config_has(c, "max_position_embeddings");
    bool is_second = config_has(c, "z_loss_weight"); /* of training */
    describe_transformers(d, c, &DEFAULTS);
    int n_ctx = config_int_or(c, "model_max_length", 1, LIMIT_CONTEXT, d->n_ctx);
    if (has_alibi) {
        d->n_ctx = n_ctx;
        set_alibi(&d->kinds[0].attn);
    }
    d->has_unit_output = is_second || d->n_vocab == BAICHUAN2_VOCAB;
}

static void baichuan_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
        if (d->n_layers == ALIBI_LAYERS)
            set_alibi(a);
    } else {
        describe_folder(d, c);
    }
    if (a->n_kv_heads != a->n_heads)
        config_unsupported(c, is_gguf ? "attention.head_count_kv" : "num_key_value_heads",
                           "another number than that of heads");
}

/* Base models have the same vocabularies; only the chat models' generation_config.json names the tokens of
 * roles. */
static const char *baichuan_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                        const json_t *config, const json_t *tokenizer_config,
                                        const json_t *generation, const char *template)
{
    (void)desc, (void)tok, (void)config, (void)tokenizer_config, (void)template;
    bool is_chat = json_integer_value(json_object_get(generation, "user_token_id")) == BAICHUAN_USER_ID &&
                   json_integer_value(json_object_get(generation, "assistant_token_id")) ==
                       BAICHUAN_ASSISTANT_ID;
    return is_chat ? "baichuan" : "";
}

/* GGUF has no key for this, and llama.cpp's converter leaves the rows as they are: some files were made of divided
 * rows, others were not. Divided ones stay as they are stored. */
static void baichuan_find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    enum { N_ROWS = 256 };
    const struct tensor *t = checkpoint_find(ck, "output.weight");
    if (!t || t->n_dims != 2 || t->shape[0] != BAICHUAN2_VOCAB || t->shape[1] < 1 ||
        t->shape[1] > LIMIT_DIMENSION || !dtype_is_weight(t->dtype))
        return;
    float *rows = weights_to_floats(t, N_ROWS);
    d->has_unit_output = !rows; /* out of memory: to divide once more changes nothing but the rounding */
    for (int r = 0; rows && r < N_ROWS; r++) {
        double squares = 0;
        for (int64_t i = 0; i < t->shape[1]; i++)
            squares += (double)rows[r * t->shape[1] + i] * (double)rows[r * t->shape[1] + i];
        /* Types of few bits change lengths by some percent; rows of padding may be zero. */
        d->has_unit_output = d->has_unit_output || (squares > 0 && fabs(sqrt(squares) - 1) > 0.1);
    }
    free(rows);
}

static const char *baichuan_find_gguf_fault(const struct model_desc *d)
{
    bool has_alibi = d->kinds[0].attn.has_alibi;
    if (has_alibi && d->n_layers != ALIBI_LAYERS)
        return "ALiBi with another number of layers than 40";
    return !has_alibi && d->n_layers == ALIBI_LAYERS ? "40 layers with rotary embedding" : NULL;
}

const struct family FAMILY_BAICHUAN = {
    .name = "baichuan",
    .gguf_architecture = "baichuan",
    .is_permuted_in_gguf = true,
    .is_mine = baichuan_is_mine,
    .keys = CONFIG_KEYS_ROTARY,
    .code = "Baichuan|BaiChuan",
    .describe = baichuan_describe,
    .find_parts = baichuan_find_parts,
    .find_gguf_fault = baichuan_find_gguf_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = baichuan_choose_chat,
    .text_prefix = family_no_prefix,
};
