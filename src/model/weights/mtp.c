#include "model/weights/mtp.h"

#include "model/weights/weights.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The tensor of a slot of the layer; NULL: none. */
static const struct tensor *find_tensor(const struct model_desc *d, const struct tensor_names *names,
                                        const struct checkpoint *ck, enum weight_slot slot)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    if (!names->of[slot][0])
        return NULL;
    weights_layer_name(name, sizeof name, names->of[slot][0], d->n_layers);
    return checkpoint_find(ck, name);
}

bool mtp_is_stored(const struct model_desc *d, const struct tensor_names *names, const struct checkpoint *ck)
{
    return d->n_mtp_layers > 0 && find_tensor(d, names, ck, SLOT_MTP_JOIN) != NULL;
}

/* *out: whether the layer has an embedding, or output matrix, that differs from the model's. */
static enum tutti_status find_other(bool *out, const struct model_desc *d, const struct tensor_names *names,
                                    const struct checkpoint *ck, enum weight_slot slot, enum weight_slot own,
                                    struct tutti_error *err)
{
    const struct tensor *a = find_tensor(d, names, ck, slot), *b = checkpoint_find(ck, names->of[own][0]);
    bool is_equal = true;
    enum tutti_status st = a && b ? weights_are_equal(&is_equal, a, b, err) : TUTTI_OK;
    *out = a && (!b || !is_equal);
    return st;
}

enum tutti_status mtp_describe(struct model_desc *d, const struct tensor_names *names,
                               const struct checkpoint *ck, bool keeps_copies, struct tutti_error *err)
{
    const char *path = checkpoint_path(ck);
    assert(!d->uses_mtp);
    if (d->n_mtp_layers == 0 || !names->of[SLOT_MTP_JOIN][0])
        return error_set_param(err, TUTTI_E_UNSUPPORTED, "draft",
                               "%s: the %s model has no layer for multi-token prediction (MTP) that could "
                               "draft tokens; give a draft model instead, or none",
                               path, d->family);
    if (!mtp_is_stored(d, names, ck))
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "draft",
            "%s: the configuration names a layer for multi-token prediction (MTP), but the "
            "checkpoint has no tensors of layer %d; take the publisher's files, give a draft "
            "model instead, or none",
            path, d->n_layers);
    if (d->n_mtp_layers > 1)
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "draft",
            "%s: %d layers for multi-token prediction (MTP), expected 1; give a draft model "
            "instead, or none",
            path, d->n_mtp_layers);
    if (d->n_layers >= LIMIT_LAYERS || d->n_kinds >= MAX_LAYER_KINDS)
        return error_set_param(err, TUTTI_E_LIMIT, "draft",
                               "%s: %d layers of %d kinds leave no room for that of multi-token prediction",
                               path, d->n_layers, d->n_kinds);
    d->has_mtp_embedding = find_tensor(d, names, ck, SLOT_MTP_EMBEDDING) != NULL;
    d->has_mtp_output = find_tensor(d, names, ck, SLOT_MTP_OUTPUT) != NULL;
    enum tutti_status st = TUTTI_OK;
    if (!keeps_copies)
        st = find_other(&d->has_mtp_embedding, d, names, ck, SLOT_MTP_EMBEDDING, SLOT_EMBEDDING, err);
    if (st == TUTTI_OK && !keeps_copies)
        st = find_other(&d->has_mtp_output, d, names, ck, SLOT_MTP_OUTPUT,
                        d->tied_output ? SLOT_EMBEDDING : SLOT_OUTPUT, err);
    struct layer_desc *kind = &d->kinds[d->n_kinds];
    *kind = *model_layer(d, d->n_layers - 1);
    kind->attn.first = 1; /* its row of position 0 would need the hidden state of the position before */
    d->kind_of[d->n_layers] = (uint8_t)d->n_kinds++;
    d->uses_mtp = true;
    return st;
}

bool mtp_has_tensor(const struct model_desc *d, const struct tensor_names *names, const char *name,
                    bool to_run)
{
    const char *pattern = names->of[SLOT_MTP_JOIN][0], *mark = pattern ? strstr(pattern, "%d") : NULL;
    size_t n = mark ? (size_t)(mark - pattern) : 0;
    char copy[LIMIT_TENSOR_NAME_BYTES];
    if (!mark || strncmp(name, pattern, n) != 0)
        return false;
    char *end;
    long layer = strtol(name + n, &end, 10);
    if (end == name + n || *end != '.' || layer < d->n_layers || layer >= d->n_layers + d->n_mtp_layers)
        return false;
    for (int i = 0; i < 2 && to_run; i++) {
        const char *const *of = names->of[i ? SLOT_MTP_OUTPUT : SLOT_MTP_EMBEDDING];
        weights_layer_name(copy, sizeof copy, of[0], d->n_layers);
        if (strcmp(name, copy) == 0)
            return false;
    }
    return !to_run || d->uses_mtp;
}
