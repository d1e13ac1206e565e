/* Reads a model description from a configuration: finds the family, and does the checks that all
 * families share. */
#include "backend/kv_type.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/quantized/quantized.h"
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/load/pooling.h"
#include "model/weights/weights.h"
#include "tokenizer/json/byte_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESS(name) &FAMILY_##name,
const struct family *const FAMILIES[] = { FOR_EACH_FAMILY(ADDRESS) NULL };

const char *family_no_chat(const struct model_desc *desc, const struct tokenizer *tok, const json_t *config,
                           const json_t *tokenizer_config, const json_t *generation, const char *template)
{
    (void)desc, (void)tok, (void)config, (void)tokenizer_config, (void)generation, (void)template;
    return "";
}

enum tutti_status family_no_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err)
{
    (void)tok, (void)out, (void)err;
    return TUTTI_OK;
}

enum tutti_status family_bos_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err)
{
    int32_t bos = tokenizer_bos(tok);
    return bos < 0 || tokenizer_adds_bos(tok) == 0 || ids_add(out, bos) ? TUTTI_OK : chat_out_of_memory(err);
}

enum tutti_status family_glm_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err)
{
    enum tutti_status st = chat_add_special(tok, "[gMASK]", out, err);
    if (st != TUTTI_OK)
        return st;
    /* A GGUF vocabulary, in which spellings must be unique, spells it so if a plain piece is
     * spelled "sop". */
    bool renamed = tokenizer_find_control(tok, "sop") < 0;
    return chat_add_special(tok, renamed ? "<sop>" : "sop", out, err);
}

void family_glm_defaults(struct tutti_sampling *sampling, const char *chat_format)
{
    (void)chat_format;
    sampling->temperature = 0.8f;
    sampling->top_p = 0.8f;
}

/* A GGUF architecture may belong to two families, one of them with experts. */
static bool has_experts(const json_t *config, const char *architecture)
{
    char key[128];
    snprintf(key, sizeof key, "%s.expert_count", architecture);
    return json_integer_value(json_object_get(config, key)) > 0;
}

static bool is_of(const struct family *family, const json_t *config, const char *type, bool is_gguf)
{
    if (!is_gguf)
        return family->is_mine(config);
    if (strcmp(type, family->gguf_architecture) != 0)
        return false;
    bool is_shared = false;
    for (int i = 0; FAMILIES[i]; i++)
        is_shared = is_shared || (FAMILIES[i]->has_experts != family->has_experts &&
                                  strcmp(type, FAMILIES[i]->gguf_architecture) == 0);
    return !is_shared || has_experts(config, type) == family->has_experts;
}

static enum tutti_status find_family(const struct family **out, const struct checkpoint *ck,
                                     struct tutti_error *err)
{
    const json_t *config = checkpoint_config(ck);
    bool is_gguf = checkpoint_gguf(ck) != NULL;
    const char *key = is_gguf ? "general.architecture" : "model_type";
    const char *type = json_string_value(json_object_get(config, key));
    for (int i = 0; FAMILIES[i]; i++) {
        if ((type || !is_gguf) && is_of(FAMILIES[i], config, type, is_gguf)) {
            *out = FAMILIES[i];
            return TUTTI_OK;
        }
    }
    const char *class = describe_class(config);
    if (!type)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: %s is missing or no string%s%.64s; docs/models.md has the supported families",
                         checkpoint_config_path(ck), key, class ? ", architectures says " : "",
                         class ? class : "");
    return error_set(err, TUTTI_E_UNSUPPORTED,
                     "%s: %s \"%.64s\" is not supported; docs/models.md has the supported families",
                     checkpoint_config_path(ck), key, type);
}

static bool has_tensor(const struct checkpoint *ck, const char *pattern)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    weights_layer_name(name, sizeof name, pattern, 0);
    return checkpoint_find(ck, name) != NULL;
}

/* The tensor of a pattern in any layer: the first layers may have no experts. */
static const struct tensor *find_in_layers(const struct checkpoint *ck, const char *pattern)
{
    const struct tensor *t = NULL;
    char name[LIMIT_TENSOR_NAME_BYTES];
    for (int layer = 0; layer < LIMIT_LAYERS && !t; layer++) {
        weights_layer_name(name, sizeof name, pattern, layer);
        t = checkpoint_find(ck, name);
    }
    return t;
}

/* Whether the checkpoint's feed-forward blocks are named like this. A layout with experts is known by theirs. */
static bool has_ffn(const struct checkpoint *ck, const struct tensor_names *names)
{
    const char *pattern = names->of[SLOT_EXPERT_GATE_UP][0];
    return pattern ? find_in_layers(ck, pattern) != NULL : has_tensor(ck, names->of[SLOT_GATE_UP][0]);
}

/* Whether experts' matrices that the layout has as [experts][in][out] are stored so: the width of the model is where it
 * should be. Blocks of weights are never transposed. */
static bool has_orientation(const struct checkpoint *ck, const struct tensor_names *names)
{
    const struct tensor *table = checkpoint_find(ck, names->of[SLOT_EMBEDDING][0]);
    for (int i = 0; i < 2 && table && table->n_dims == 2; i++) {
        enum weight_slot slot = i == 0 ? SLOT_EXPERT_GATE_UP : SLOT_EXPERT_DOWN;
        const struct tensor *t = tensor_names_transposes(names, slot) ? find_in_layers(ck, names->of[slot][0])
                                                                      : NULL;
        if (t && t->n_dims == 3 && dtype_block_elems(t->dtype) == 1 && t->shape[1 + i] != table->shape[1])
            return false;
    }
    return true;
}

/* Whether the checkpoint's norms are named like this, those that the layout names. */
static bool has_norms(const struct checkpoint *ck, const struct tensor_names *names)
{
    const char *attn = names->of[SLOT_ATTN_NORM][0], *ffn = names->of[SLOT_FFN_NORM][0];
    const char *post = names->of[SLOT_ATTN_POST_NORM][0];
    return (!attn || has_tensor(ck, attn)) && (!ffn || has_tensor(ck, ffn)) &&
           (!post || has_tensor(ck, post));
}

/* Layouts may differ in only a few names. If none fits completely, one that fits partly gives
 * better errors. */
const struct tensor_names *family_layout(const struct family *family, const struct checkpoint *ck)
{
    const struct tensor_names *nearest = NULL, *fit = NULL;
    for (int i = 0; i < family->n_layouts; i++) {
        const struct tensor_names *names = &family->layouts[i];
        if (!has_tensor(ck, tensor_names_of_attention(names)))
            continue;
        if (has_tensor(ck, names->of[SLOT_EMBEDDING][0]) && has_ffn(ck, names) && has_norms(ck, names) &&
            has_orientation(ck, names)) {
            if (!names->of[SLOT_OUTPUT][0] || has_tensor(ck, names->of[SLOT_OUTPUT][0]))
                return names;
            fit = fit ? fit : names; /* tied, or another layout names the output otherwise */
        }
        nearest = nearest ? nearest : names;
    }
    return fit ? fit : nearest;
}

enum tutti_status family_no_layout(const struct family *family, const struct checkpoint *ck,
                                   struct tutti_error *err)
{
    for (int i = 0; i < family->n_layouts; i++) {
        char name[LIMIT_TENSOR_NAME_BYTES];
        weights_layer_name(name, sizeof name, tensor_names_of_attention(&family->layouts[i]), 0);
        const char *method = quantized_find(ck, name);
        if (method)
            return error_set(err, TUTTI_E_UNSUPPORTED,
                             "%s: tensor %s is missing, but its quantized form (%s) is there: %s",
                             checkpoint_path(ck), name, method, QUANTIZED_ADVICE);
    }
    return error_set(err, TUTTI_E_FORMAT, "%s: no tensor is named as in a %s model, expected for example %s",
                     checkpoint_path(ck), family->name, family->layouts[0].of[SLOT_EMBEDDING][0]);
}

/* GGUF need not contain the vocabulary size: use the embedding's rows. */
static enum tutti_status find_vocab(struct model_desc *desc, const struct family *family,
                                    const struct checkpoint *ck, struct tutti_error *err)
{
    const struct tensor_names *names = family_layout(family, ck);
    const struct tensor *table = names ? checkpoint_find(ck, names->of[SLOT_EMBEDDING][0]) : NULL;
    if (!table || table->n_dims != 2 || table->shape[0] < 1 || table->shape[0] > LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s is missing, or its shape is not [vocabulary, width]",
                         checkpoint_path(ck),
                         names ? names->of[SLOT_EMBEDDING][0] : family->layouts[0].of[SLOT_EMBEDDING][0]);
    desc->n_vocab = (int)table->shape[0];
    return TUTTI_OK;
}

/* GGUF has no keys for biases: look for the first layer's tensors. */
static bool has_bias(const struct checkpoint *ck, const char *pattern)
{
    char weight[LIMIT_TENSOR_NAME_BYTES], bias[LIMIT_TENSOR_NAME_BYTES];
    weights_layer_name(weight, sizeof weight, pattern, 0);
    weights_bias_name(bias, sizeof bias, weight);
    return checkpoint_find(ck, bias) != NULL;
}

static void find_biases(struct layer_desc *l, const struct tensor_names *names, const struct checkpoint *ck)
{
    const char *latent = names->of[SLOT_KV_A][0];
    l->attn.has_qkv_bias = l->attn.has_qkv_bias || has_bias(ck, latent ? latent : names->of[SLOT_QKV][0]);
    l->attn.has_out_bias = l->attn.has_out_bias || has_bias(ck, names->of[SLOT_ATTN_OUT][0]);
    l->ffn.has_bias = l->ffn.has_bias || has_bias(ck, names->of[SLOT_DOWN][0]);
}

/* Whether it is a decoder of which the class without a head was saved, as models for embeddings are, and whose output matrix is
 * not the embedding. */
static bool is_saved_headless(const struct model_desc *desc, const struct tensor_names *names,
                              const struct checkpoint *ck)
{
    return checkpoint_is_bare(ck) && !desc->tied_output && names && names->of[SLOT_OUTPUT][0] &&
           !checkpoint_find(ck, names->of[SLOT_OUTPUT][0]);
}

/* A file may contain an output matrix although the configuration ties it to the embedding. If the
 * two differ, transformers (version 5) runs the model untied. A rank's part needs no check: the
 * whole checkpoint was checked before it was sharded. */
static enum tutti_status check_tie(struct model_desc *desc, const struct family *family,
                                   const struct tensor_names *names, const struct checkpoint *ck,
                                   struct tutti_error *err)
{
    if (!desc->tied_output || !names || !names->of[SLOT_OUTPUT][0] || checkpoint_gguf(ck) ||
        checkpoint_shard(ck))
        return TUTTI_OK;
    const struct tensor *output = checkpoint_find(ck, names->of[SLOT_OUTPUT][0]);
    const struct tensor *table = checkpoint_find(ck, names->of[SLOT_EMBEDDING][0]);
    bool is_same = false;
    if (!output || !table)
        return TUTTI_OK;
    enum tutti_status st = weights_are_equal(&is_same, output, table, err);
    if (st != TUTTI_OK || is_same)
        return st;
    if (family->code) /* the authors' own class: its behaviour depends on the library version */
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s: it differs from %s, to which the configuration ties it; set "
                         "tie_word_embeddings to false in %s to use it, or remove the tensor",
                         output->file, output->name, table->name, checkpoint_config_path(ck));
    if (!checkpoint_is_quiet(ck))
        log_warn("%s: tie_word_embeddings: true, but %s differs from %s: the model runs untied, with both",
                 checkpoint_config_path(ck), output->name, table->name);
    desc->tied_output = false;
    desc->is_untied = true;
    return TUTTI_OK;
}

/* Configurations of MindFormers keep their own keys next to the translated ones. */
static bool is_mindformers(const struct config *c)
{
    return json_object_get(c->root, "mindformers_version") || text_ends_with(c->file, ".yaml") ||
           text_ends_with(c->file, ".yml");
}

/* Refuses every key that is neither understood nor known to have no effect. */
static enum tutti_status end_config(struct config *c, const struct family *family,
                                    const struct checkpoint *ck)
{
    const struct config_key *lists[4] = { 0 };
    int n = 0;
    bool is_gguf = checkpoint_gguf(ck) != NULL;
    const struct config_key *own = is_gguf ? family->gguf_keys : family->keys;
    char what[64];
    if (own)
        lists[n++] = own;
    lists[n++] = is_gguf ? CONFIG_KEYS_GGUF : CONFIG_KEYS_COMMON;
    if (!is_gguf && is_mindformers(c))
        lists[n++] = CONFIG_KEYS_MINDFORMERS;
    if (!is_gguf)
        describe_code(c, family->name, family->code);
    c->is_quiet = checkpoint_is_quiet(ck);
    snprintf(what, sizeof what, "%s models", family->name);
    return config_end(c, lists, what);
}

static enum tutti_status read_factor_tensor(float *factors, const struct tensor *t, int n,
                                            struct tutti_error *err)
{
    if (t->n_dims != 1 || t->shape[0] != n || t->dtype != DTYPE_F32 || n > MAX_ROPE_FACTORS)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: expected f32 of shape [%d], a factor for each of at most %d pairs",
                         t->file, t->name, n, MAX_ROPE_FACTORS);
    float *values = weights_to_floats(t, 1);
    if (!values)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", t->file);
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n && st == TUTTI_OK; i++) {
        if (!(values[i] >= 1e-6f && values[i] <= 1e6f))
            st = error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: element %d is no positive number", t->file,
                           t->name, i);
        factors[i] = values[i];
    }
    free(values);
    return st;
}

/* GGUF has llama3's scaling, and pairs that do not rotate, as a tensor of divisors: apply_rope_factors() applies it. */
static enum tutti_status check_rope_divisors(struct model_desc *d, const struct family *family,
                                             const struct checkpoint *ck, struct tutti_error *err)
{
    const struct tensor *t = checkpoint_take(ck, GGUF_ROPE_DIVISORS);
    int n = 0;
    if (!t && family->has_global_divisors)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is missing", checkpoint_path(ck),
                         GGUF_ROPE_DIVISORS);
    for (int i = 0; t && i < d->n_kinds; i++) {
        struct attn_desc *a = &d->kinds[i].attn;
        if (family->has_global_divisors && a->window > 0)
            continue;
        if (n > 0 && a->rotary_dim != 2 * n)
            return error_set(err, TUTTI_E_UNSUPPORTED,
                             "%s: tensor %s: the layers differ in the number of rotary dimensions", t->file,
                             t->name);
        n = a->rotary_dim / 2;
        if (t->n_dims != 1 || t->shape[0] != n || t->dtype != DTYPE_F32)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: expected f32 of shape [%d]", t->file,
                             t->name, n);
        a->rope_scaling.has_divisors = true;
    }
    return TUTTI_OK;
}

/* GGUF has no key for LongRoPE, but tensors. */
static enum tutti_status read_longrope_tensors(struct model_desc *d, const struct checkpoint *ck,
                                               struct tutti_error *err)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct rope_scaling *s = &a->rope_scaling;
    const struct tensor *shorter = checkpoint_take(ck, "rope_factors_short.weight");
    const struct tensor *longer = checkpoint_take(ck, "rope_factors_long.weight");
    bool has_other = s->kind != ROPE_SCALING_NONE && s->kind != ROPE_SCALING_LONGROPE;
    if (shorter && longer && !has_other && d->n_kinds == 1) {
        s->kind = ROPE_SCALING_LONGROPE;
        s->n_factors = a->rotary_dim / 2;
        enum tutti_status st = read_factor_tensor(s->short_factors, shorter, s->n_factors, err);
        return st == TUTTI_OK ? read_factor_tensor(s->long_factors, longer, s->n_factors, err) : st;
    }
    const struct tensor *any = shorter ? shorter : longer;
    if (any)
        return error_set(
            err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: it changes the rotation, %s, which is not supported",
            any->file, any->name,
            shorter && longer ? "in addition to another scaling" : "with only one of the two lists");
    if (s->kind == ROPE_SCALING_LONGROPE)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: rope.scaling.type: longrope without a tensor rope_factors_short.weight",
                         checkpoint_path(ck));
    if (!has_other && s->attention_factor != 0 && s->attention_factor != 1)
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: rope.scaling.attn_factor: a factor of attention without YaRN or LongRoPE is not "
            "supported",
            checkpoint_path(ck));
    for (int i = 0; i < d->n_kinds; i++) {
        s = &d->kinds[i].attn.rope_scaling;
        if (s->kind == ROPE_SCALING_YARN)
            continue;
        s->attention_factor = 0;
        s->original_n_ctx = 0;
    }
    return TUTTI_OK;
}

/* GGUF files that hold no model. */
static enum tutti_status check_content(const struct checkpoint *ck, struct tutti_error *err)
{
    const char *type = json_string_value(json_object_get(checkpoint_config(ck), "general.type"));
    if (type && strcmp(type, "adapter") == 0)
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: general.type: this is an adapter, expected a model; docs/adapters.md has the adapters that "
            "--lora takes",
            checkpoint_path(ck));
    if (checkpoint_n_tensors(ck) == 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: the file has a vocabulary only, expected a model's tensors",
                         checkpoint_path(ck));
    return TUTTI_OK;
}

enum tutti_status model_desc_read(struct model_desc *desc, const struct family **family,
                                  const struct checkpoint *ck, struct tutti_error *err)
{
    bool is_gguf = checkpoint_gguf(ck) != NULL;
    enum tutti_status st = find_family(family, ck, err);
    if (st == TUTTI_OK && is_gguf)
        st = check_content(ck, err);
    if (st != TUTTI_OK)
        return st;
    char prefix[64] = "";
    if (is_gguf)
        snprintf(prefix, sizeof prefix, "%.60s.",
                 json_string_value(json_object_get(checkpoint_config(ck), "general.architecture")));
    struct config c = { .root = checkpoint_config(ck),
                        .file = checkpoint_config_path(ck),
                        .prefix = prefix,
                        .is_flat = is_gguf,
                        .gguf = checkpoint_gguf(ck),
                        .err = err };
    *desc = (struct model_desc){ .n_kinds = 1, .kinds[0].ffn.has_gate = true, .bos_id = -1, .pad_id = -1 };
    snprintf(desc->family, sizeof desc->family, "%s", (*family)->name);
    (*family)->describe(desc, &c, is_gguf);
    for (int i = 0; is_gguf && i < desc->n_kinds; i++) /* no key says it */
        desc->kinds[i].attn.rope_scaling.is_exact = (*family)->has_exact_yarn;
    st = end_config(&c, *family, ck);
    if (st != TUTTI_OK)
        return st;
    if (is_gguf)
        st = read_longrope_tensors(desc, ck, err);
    if (st == TUTTI_OK && is_gguf)
        st = check_rope_divisors(desc, *family, ck, err);
    if (st != TUTTI_OK)
        return st;
    const struct tensor_names *names = family_layout(*family, ck);
    desc->is_headless = desc->is_encoder || is_saved_headless(desc, names, ck);
    if (is_gguf && names) {
        desc->tied_output = !desc->is_encoder && !checkpoint_find(ck, names->of[SLOT_OUTPUT][0]);
        for (int i = 0; i < desc->n_kinds; i++)
            find_biases(&desc->kinds[i], names, ck);
        desc->has_output_bias = desc->has_output_bias ||
                                (names->of[SLOT_OUTPUT][0] && has_bias(ck, names->of[SLOT_OUTPUT][0]));
        if ((*family)->find_parts)
            (*family)->find_parts(desc, ck);
    }
    st = check_tie(desc, *family, names, ck, err);
    if (st != TUTTI_OK)
        return st;
    if (desc->tied_output && desc->has_output_bias)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: tensor %s: a bias of the output where its matrix is the embedding is "
                         "not supported",
                         checkpoint_path(ck), is_gguf ? "output.bias" : "lm_head.bias");
    if (desc->n_vocab == 0) {
        st = find_vocab(desc, *family, ck, err);
        if (st != TUTTI_OK)
            return st;
    }
    desc->n_usable_vocab = desc->n_vocab;
    st = pooling_limit_context(desc, ck, err);
    if (st != TUTTI_OK)
        return st;
    model_limit_context(desc, 0);
    return model_desc_check(desc, checkpoint_config_path(ck), err);
}

bool model_has_experts(const struct model_desc *d)
{
    bool has_any = false;
    for (int i = 0; i < d->n_kinds; i++)
        has_any = has_any || ffn_has_experts(&d->kinds[i].ffn);
    return has_any;
}

int model_window(const struct model_desc *d)
{
    int window = 0;
    for (int i = 0; i < d->n_kinds; i++)
        window = d->kinds[i].attn.window > window ? d->kinds[i].attn.window : window;
    return window;
}

uint64_t model_layer_kv_bytes(const struct attn_desc *a, enum dtype kv_type)
{
    if (a->n_latent > 0)
        return kv_type_latent_bytes(kv_type, attn_latent_row(a));
    return 2 * (uint64_t)a->n_kv_heads * (uint64_t)kv_type_bytes(kv_type, a->head_dim);
}

uint64_t model_kv_bytes(const struct model_desc *d, enum dtype kv_type)
{
    uint64_t n_bytes = 0;
    for (int i = 0; i < model_n_loaded(d); i++)
        n_bytes += model_layer_kv_bytes(&model_layer(d, i)->attn, kv_type);
    return n_bytes;
}

int64_t model_window_slots(int window, int step_tokens, int page_tokens)
{
    return kv_pages_of(window, page_tokens) + kv_pages_of(step_tokens, page_tokens) + 2;
}

uint64_t model_context_hidden_bytes(const struct model_desc *d, int page_tokens, int n_tokens)
{
    return d->uses_mtp ? (uint64_t)kv_pages_of(n_tokens, page_tokens) * (uint64_t)d->d_model * sizeof(float)
                       : 0;
}

uint64_t model_layers_kv_bytes(const struct model_desc *d, enum dtype kv_type, int page_tokens, int n_tokens,
                               int begin, int end)
{
    int64_t n_pages = kv_pages_of(n_tokens, page_tokens);
    uint64_t n_bytes = 0;
    for (int i = begin; i < end; i++) {
        const struct attn_desc *a = &model_layer(d, i)->attn;
        int64_t n = n_pages, n_slots = model_window_slots(a->window, MODEL_STEP_TOKENS, page_tokens);
        if (a->window > 0 && n_slots < n)
            n = n_slots;
        n_bytes += model_layer_kv_bytes(a, kv_type) * (uint64_t)(n * page_tokens);
    }
    return n_bytes;
}

uint64_t model_context_kv_bytes(const struct model_desc *d, enum dtype kv_type, int page_tokens, int n_tokens)
{
    return model_layers_kv_bytes(d, kv_type, page_tokens, n_tokens, 0, model_n_loaded(d)) +
           model_context_hidden_bytes(d, page_tokens, n_tokens);
}

/* Whether longer texts would need other frequencies. */
static bool ends_at_context(const struct rope_scaling *s)
{
    return s->kind == ROPE_SCALING_DYNAMIC || s->query_growth != 0 ||
           (s->kind == ROPE_SCALING_LONGROPE && s->is_short);
}

bool model_desc_ends_at_context(const struct model_desc *d)
{
    bool ends = d->has_learned_positions || d->has_top_query;
    for (int i = 0; i < d->n_kinds; i++)
        ends = ends || ends_at_context(&d->kinds[i].attn.rope_scaling);
    return ends;
}

void model_limit_context(struct model_desc *d, int n)
{
    int n_wanted = n > 0 ? n : d->n_ctx;
    for (int i = 0; i < d->n_kinds; i++) {
        struct rope_scaling *s = &d->kinds[i].attn.rope_scaling;
        s->is_short = s->kind == ROPE_SCALING_LONGROPE && n_wanted <= s->original_n_ctx;
        if (s->is_short && s->original_n_ctx < d->n_ctx)
            d->n_ctx = s->original_n_ctx;
    }
}

struct prefix model_find_prefix(const struct model_desc *d, const int32_t *ids, int n_ids)
{
    struct prefix prefix = { .has_no_end = !d->has_prefix };
    if (!d->has_prefix)
        return prefix;
    if (d->is_encoder)
        return (struct prefix){ .n = n_ids, .has_no_end = true };
    while (prefix.n < n_ids && ids[prefix.n] != d->prefix_end_id)
        prefix.n++;
    if (prefix.n == n_ids) /* no end: attention is causal everywhere */
        return (struct prefix){ .n = 0, .has_no_end = true };
    prefix.mask_position = prefix.n;
    for (int k = 0; k < 2 && prefix.mask_position == prefix.n; k++) {
        prefix.mask_position = 0;
        while (prefix.mask_position < n_ids && ids[prefix.mask_position] != d->mask_ids[k])
            prefix.mask_position++;
        if (prefix.mask_position == n_ids)
            prefix.mask_position = prefix.n;
    }
    return prefix;
}

void model_prefix_positions(const struct prefix *prefix, int position, int32_t *rope, int32_t *block)
{
    bool is_after = !prefix->has_no_end && position >= prefix->n;
    int own = position > prefix->n_before_zero ? position - prefix->n_before_zero : 0;
    *rope = is_after ? prefix->mask_position : own;
    *block = is_after ? position - prefix->n + 1 : prefix->second > 0 && position >= prefix->second;
}

void model_prefix_shift(struct prefix *prefix, int n_virtual)
{
    prefix->n_before_zero = n_virtual;
    if (!prefix->has_no_end)
        prefix->n += n_virtual;
}

enum tutti_status model_check_generates(const struct model *model, struct tutti_error *err)
{
    return !model->desc.is_headless
               ? TUTTI_OK
               : error_set_param(
                     err, TUTTI_E_ARGUMENT, "model", "model %s %s (%s): it gives %s, and generates no text",
                     model->name, model->desc.is_encoder ? "is an encoder" : "has no output matrix",
                     model->desc.family, model->desc.has_score ? "scores of pairs of texts" : "embeddings");
}

enum tutti_status chat_out_of_memory(struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "chat: out of memory");
}

enum tutti_status chat_bad_role(const struct tutti_message *message, size_t index, const char *expected,
                                struct tutti_error *err)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].role", index);
    return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: \"%.32s\", expected %s", param, message->role,
                           expected);
}

enum tutti_status chat_add_special(const struct tokenizer *tok, const char *spelling, struct ids *out,
                                   struct tutti_error *err)
{
    int32_t id = tokenizer_find_control(tok, spelling);
    if (id < 0)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "the tokenizer has no special token %s, which the chat format needs", spelling);
    return ids_add(out, id) ? TUTTI_OK : chat_out_of_memory(err);
}
