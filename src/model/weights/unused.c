/* Checks the tensors of a checkpoint that the description does not use. Such a tensor may be
 * harmless (buffers, the head of another task), or it shows that the model differs from its
 * configuration: a bias, a norm, an expert. */
#include "base/buf.h"
#include "base/log.h"
#include "base/text.h"
#include "model/weights/mtp.h"
#include "model/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Suffixes of tensor names without weights, in any family: buffers saved by older libraries, and
 * optimizer state. */
static const char *const BUFFERS[] = {
    "rotary_emb.inv_freq",
    "rotary_pos_emb.inv_freq",
    ".attn.masked_bias",
    ".attention.masked_bias",
    ".position_ids",
    ".attn_rot_embd.weight",
    "key_past",
    "value_past",
    ".key_cache",
    ".value_cache",
    "freqs_cos",
    "freqs_sin",
    "causal_mask",
};
static const char *const OPTIMIZER[] = { "adam_m.",  "adam_v.",     "moments.", "moment1.",
                                         "moment2.", "accu_grads.", "exp_avg." };

bool weights_is_ignored(const struct family *family, const char *name)
{
    for (int i = 0; i < family->n_ignored; i++) {
        const char *part = family->ignored[i];
        bool is_start = text_ends_with(part, ".");
        if (is_start ? strncmp(name, part, strlen(part)) == 0 : text_ends_with(name, part))
            return true;
    }
    for (size_t i = 0; i < sizeof BUFFERS / sizeof *BUFFERS; i++) {
        if (text_ends_with(name, BUFFERS[i]))
            return true;
    }
    for (size_t i = 0; i < sizeof OPTIMIZER / sizeof *OPTIMIZER; i++) {
        if (strncmp(name, OPTIMIZER[i], strlen(OPTIMIZER[i])) == 0)
            return true;
    }
    return false;
}

enum tutti_status weights_are_equal(bool *out, const struct tensor *a, const struct tensor *b,
                                    struct tutti_error *err)
{
    *out = a->dtype == b->dtype && a->n_dims == b->n_dims && a->n_bytes == b->n_bytes &&
           memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) == 0;
    if (!*out || (a->data && a->data == b->data))
        return TUTTI_OK;
    void *owned_a = NULL, *owned_b = NULL;
    const void *bytes_a = tensor_bytes(a, &owned_a);
    const void *bytes_b = bytes_a ? tensor_bytes(b, &owned_b) : NULL;
    if (bytes_b)
        *out = memcmp(bytes_a, bytes_b, a->n_bytes) == 0;
    free(owned_a);
    free(owned_b);
    return bytes_b ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", a->file);
}

/* The number of name's layer, if its path begins like that of the layers (pattern: one of their
 * tensors, with "%d"). -1: none. */
static int layer_of(const char *pattern, const char *name)
{
    const char *mark = strstr(pattern, "%d");
    size_t n = mark ? (size_t)(mark - pattern) : 0;
    if (!mark || strncmp(name, pattern, n) != 0)
        return -1;
    char *end;
    long layer = strtol(name + n, &end, 10);
    return end > name + n && *end == '.' && layer >= 0 && layer < LIMIT_LAYERS ? (int)layer : -1;
}

/* Whether name belongs to the extra top layer, whose tensor names differ only in the last two
 * words. */
static bool is_of_top(const struct tensor_names *top, const char *name)
{
    const char *norm = top ? top->of[SLOT_ATTN_NORM][0] : NULL, *end = norm ? strrchr(norm, '.') : NULL;
    while (end && end > norm && end[-1] != '.')
        end--;
    return end && !strstr(norm, "%d") && strncmp(name, norm, (size_t)(end - norm)) == 0;
}

/* The used tensor that name belongs to: x.weight for x.bias and for x.weight.absmax. NULL: none. */
static const char *find_sibling(const struct checkpoint *ck, const struct tensor_names *names,
                                const char *name)
{
    const char *dot = strrchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : 0;
    for (enum weight_slot slot = 0; n > 0 && slot < SLOT_COUNT; slot++) {
        const char *other = slot_info(slot)->is_of_layer ? NULL : names->of[slot][0];
        if (!other || !checkpoint_find(ck, other))
            continue;
        const char *last = strrchr(other, '.');
        size_t n_stem = last ? (size_t)(last - other) : strlen(other);
        if ((n == n_stem || n == strlen(other)) && strncmp(name, other, n) == 0)
            return other;
    }
    return NULL;
}

/* *out: whether every element is zero; then adding the tensor changes nothing. */
static enum tutti_status is_zero(bool *out, const struct tensor *t, struct tutti_error *err)
{
    *out = false;
    if (t->n_dims != 1 || !dtype_is_weight(t->dtype) || t->shape[0] < 1)
        return TUTTI_OK;
    float *values = weights_to_floats(t, 1);
    if (!values)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", t->file);
    *out = true;
    for (int64_t i = 0; i < t->shape[0]; i++)
        *out = *out && values[i] == 0;
    free(values);
    return TUTTI_OK;
}

static bool is_bias(const char *name)
{
    return text_ends_with(name, ".bias") || text_ends_with(name, ".beta");
}

/* The settings that may be the cause of an unused tensor. */
static const char *setting_hint(const char *name)
{
    if (is_bias(name))
        return " (such as attention_bias, qkv_bias, mlp_bias)";
    return text_ends_with(name, "q_norm.weight") || text_ends_with(name, "k_norm.weight")
               ? " (such as use_qk_norm)"
               : "";
}

/* Whether two names are the same but for their last two words: model.norm.weight, model.embed_norm.bias. */
static bool has_same_parent(const char *a, const char *b)
{
    size_t n[2];
    const char *const names[] = { a, b };
    for (int i = 0; i < 2; i++) {
        n[i] = strlen(names[i]);
        for (int n_dots = 0; n[i] > 0 && (names[i][n[i] - 1] != '.' || ++n_dots < 2);)
            n[i]--;
    }
    return n[0] == n[1] && strncmp(a, b, n[0]) == 0;
}

/* Whether a layer is beyond those that a GGUF file says that it has; also those that do not run are among these. */
static bool is_beyond_blocks(const struct checkpoint *ck, int layer)
{
    const json_t *config = checkpoint_config(ck);
    char key[128];
    snprintf(key, sizeof key, "%.64s.block_count",
             json_string_value(json_object_get(config, "general.architecture")));
    return layer >= json_integer_value(json_object_get(config, key));
}

/* Why an unused tensor may change what is computed. NULL: it does not. */
static const char *find_reason(const struct model_desc *d, const struct tensor_names *names,
                               const struct checkpoint *ck, const char *name)
{
    int layer = layer_of(names->of[SLOT_ATTN_OUT][0], name);
    if ((layer >= 0 && layer < d->n_layers) || is_of_top(names->top, name) ||
        mtp_has_tensor(d, names, name, true))
        return "it belongs to a layer that runs";
    if (layer >= 0 && checkpoint_gguf(ck) && is_beyond_blocks(ck, layer))
        return "it belongs to a layer beyond block_count";
    if (find_sibling(ck, names, name))
        return "it belongs to a tensor that is used";
    if (strncmp(name, "rope_factors_", 13) == 0)
        return "it changes the rotation";
    if (names->of[SLOT_OUTPUT_NORM][0] && (strstr(name, "norm") || strstr(name, "ln_")) &&
        has_same_parent(names->of[SLOT_OUTPUT_NORM][0], name))
        return "it is a norm outside of the layers";
    return NULL;
}

static enum tutti_status check_unused(const struct model_desc *d, const struct family *family,
                                      const struct tensor_names *names, const struct checkpoint *ck,
                                      struct tutti_error *err)
{
    enum { N_SHOWN = 5 };
    struct buf shown = { 0 };
    size_t n_unused = 0;
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < checkpoint_n_tensors(ck) && st == TUTTI_OK; i++) {
        const struct tensor *t = checkpoint_tensor(ck, i);
        bool is_tied_output = d->tied_output && names->of[SLOT_OUTPUT][0] &&
                              strcmp(t->name, names->of[SLOT_OUTPUT][0]) == 0;
        if (checkpoint_is_taken(ck, i) || is_tied_output || weights_is_ignored(family, t->name))
            continue;
        const char *reason = find_reason(d, names, ck, t->name);
        if (!reason && mtp_has_tensor(d, names, t->name, false))
            continue;
        bool has_no_effect = false;
        if (reason && is_bias(t->name))
            st = is_zero(&has_no_effect, t, err);
        if (st == TUTTI_OK && reason && !has_no_effect)
            st = error_set(
                err, TUTTI_E_UNSUPPORTED,
                "%s: tensor %s: no %s model of this configuration uses it, but %s, so the model may be "
                "another one than %s says; correct the configuration%s, or remove the tensor",
                t->file, t->name, family->name, reason, checkpoint_config_path(ck), setting_hint(t->name));
        if (reason || st != TUTTI_OK)
            continue;
        if (n_unused++ < N_SHOWN && !buf_printf(&shown, "%s%s", n_unused > 1 ? ", " : "", t->name))
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(ck));
    }
    if (st == TUTTI_OK && n_unused > 0 && !checkpoint_is_quiet(ck))
        log_warn("%s: %zu tensor%s unused: %.*s%s", checkpoint_path(ck), n_unused,
                 n_unused == 1 ? " is" : "s are", (int)shown.n_bytes, shown.bytes,
                 n_unused > N_SHOWN ? ", ..." : "");
    buf_clear(&shown);
    return st;
}

enum tutti_status weights_check_all(const struct model_desc *desc, const struct family *family,
                                    const struct tensor_names *names, const struct checkpoint *ck,
                                    struct tutti_error *err)
{
    struct weight w;
    enum tutti_status st = TUTTI_OK;
    for (struct slot_at at = SLOT_BEGIN; st == TUTTI_OK && slot_next_expert(desc, &at);)
        st = weights_find(&w, desc, names, ck, &at, err);
    return st == TUTTI_OK ? check_unused(desc, family, names, ck, err) : st;
}
