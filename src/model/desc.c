/* From configuration to description: which family, its values, and the checks that every family shares. */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct family *const FAMILIES[] = { &FAMILY_CHATGLM, &FAMILY_LLAMA };
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

enum tutti_status family_find(const struct family **out, const struct checkpoint *ck, struct tutti_error *err)
{
    const json_t *config = checkpoint_config(ck);
    bool is_gguf = checkpoint_gguf(ck) != NULL;
    const char *key = is_gguf ? "general.architecture" : "model_type";
    const char *type = json_string_value(json_object_get(config, key));
    if (!type)
        return error_set(err, TUTTI_E_FORMAT, "%s: %s is missing or no string", checkpoint_path(ck), key);
    for (int i = 0; i < N_FAMILIES; i++) {
        if (is_gguf ? strcmp(type, FAMILIES[i]->gguf_architecture) == 0 : FAMILIES[i]->is_mine(config)) {
            *out = FAMILIES[i];
            return TUTTI_OK;
        }
    }
    return error_set(err, TUTTI_E_UNSUPPORTED, "%s: %s \"%.64s\" is not supported, expected chatglm or llama",
                     checkpoint_path(ck), key, type);
}

enum tutti_status model_desc_check(const struct model_desc *d, const char *file, struct tutti_error *err)
{
    const char *fault = NULL;
    if (d->n_heads % d->n_kv_heads != 0)
        fault = "the number of heads is no multiple of the number of KV heads";
    else if (d->head_dim < 8 || d->head_dim % 8 != 0)
        fault = "the head dimension is no positive multiple of 8";
    else if (d->head_dim > 1024)
        fault = "the head dimension is above 1024";
    else if (d->rotary_dim < 0 || d->rotary_dim % 2 != 0 || d->rotary_dim > d->head_dim)
        fault = "the rotary dimension is odd or larger than the head";
    else if ((int64_t)(d->n_heads + 2 * (int64_t)d->n_kv_heads) * d->head_dim > LIMIT_DIMENSION)
        fault = "heads times head dimension is too large";
    else if (2 * (int64_t)d->d_ff > LIMIT_DIMENSION)
        fault = "the feed-forward width is too large";
    else if (!(d->norm_eps > 0))
        fault = "the epsilon of the norms is not positive";
    else if (d->n_usable_vocab < 1 || d->n_usable_vocab > d->n_vocab)
        fault = "the tokenizer's vocabulary does not fit the model's";
    for (int i = 0; i < d->n_stop_ids && !fault; i++) {
        if (d->stop_ids[i] < 0 || d->stop_ids[i] >= d->n_vocab)
            fault = "a stop id lies outside the vocabulary";
    }
    return fault ? error_set(err, TUTTI_E_FORMAT,
                             "%s: %s (heads %d, KV heads %d, head dimension %d, rotary dimension %d, "
                             "vocabulary %d of %d)",
                             file, fault, d->n_heads, d->n_kv_heads, d->head_dim, d->rotary_dim,
                             d->n_usable_vocab, d->n_vocab)
                 : TUTTI_OK;
}

const struct tensor_names *family_layout(const struct family *family, const struct checkpoint *ck)
{
    for (int i = 0; i < family->n_layouts; i++) {
        char name[LIMIT_TENSOR_NAME_BYTES];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(name, sizeof name, family->layouts[i].qkv[0], 0);
#pragma GCC diagnostic pop
        if (checkpoint_find(ck, name))
            return &family->layouts[i];
    }
    return NULL;
}

/* GGUF need not say how large the vocabulary is: the embedding's rows tell. */
static enum tutti_status find_vocab(struct model_desc *desc, const struct family *family,
                                    const struct checkpoint *ck, struct tutti_error *err)
{
    const struct tensor_names *names = family_layout(family, ck);
    const struct tensor *table = names ? checkpoint_find(ck, names->embedding) : NULL;
    if (!table || table->n_dims != 2 || table->shape[0] < 1 || table->shape[0] > LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s is missing, or its shape is not [vocabulary, width]",
                         checkpoint_path(ck), names ? names->embedding : family->layouts[0].embedding);
    desc->n_vocab = (int)table->shape[0];
    return TUTTI_OK;
}

enum tutti_status model_desc_read(struct model_desc *desc, const struct family **family,
                                  const struct checkpoint *ck, struct tutti_error *err)
{
    enum tutti_status st = family_find(family, ck, err);
    if (st != TUTTI_OK)
        return st;
    bool is_gguf = checkpoint_gguf(ck) != NULL;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%s", is_gguf ? (*family)->gguf_architecture : "", is_gguf ? "." : "");
    struct config c = { .root = checkpoint_config(ck),
                        .file = checkpoint_path(ck),
                        .prefix = prefix,
                        .is_flat = is_gguf,
                        .err = err };
    *desc = (struct model_desc){ .bos_id = -1, .pad_id = -1 };
    snprintf(desc->family, sizeof desc->family, "%s", (*family)->name);
    (*family)->describe(desc, &c, is_gguf);
    if (c.status != TUTTI_OK)
        return c.status;
    if (is_gguf) {
        const struct tensor_names *names = family_layout(*family, ck);
        desc->tied_output = names && !checkpoint_find(ck, names->output);
    }
    if (desc->n_vocab == 0) {
        st = find_vocab(desc, *family, ck, err);
        if (st != TUTTI_OK)
            return st;
    }
    desc->n_usable_vocab = desc->n_vocab;
    return model_desc_check(desc, checkpoint_path(ck), err);
}

static double llama3_scaled(const struct model_desc *d, double freq)
{
    double wavelength = 2 * M_PI / freq, original = d->rope_scaling.original_n_ctx;
    double low = d->rope_scaling.low_freq_factor, high = d->rope_scaling.high_freq_factor;
    double factor = d->rope_scaling.factor;
    if (wavelength < original / high)
        return freq;
    if (wavelength >= original / low) /* where both factors are equal nothing is left between them */
        return freq / factor;
    double smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * freq / factor + smooth * freq;
}

void model_rope_freqs(const struct model_desc *d, float *freqs)
{
    for (int j = 0; j < d->rotary_dim / 2; j++) {
        /* The reference computes exponent, power and inverse in float32, each rounded. */
        float exponent = (float)(2 * j) / (float)d->rotary_dim;
        float freq = 1.0f / (float)pow(d->rope_theta, (double)exponent);
        if (d->rope_scaling.kind == ROPE_SCALING_LINEAR)
            freq = (float)((double)freq / d->rope_scaling.factor);
        else if (d->rope_scaling.kind == ROPE_SCALING_LLAMA3)
            freq = (float)llama3_scaled(d, (double)freq);
        freqs[j] = freq;
    }
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
    return error_set_param(err, TUTTI_E_ARGUMENT, param, "role \"%.32s\", expected %s", message->role,
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
