/* The adapters of a loaded model: a table of updates by matrix and adapter. */
#include "model/adapters/adapter.h"

#include "model/forward.h"
#include "model/ranks/group.h"

#include <stdlib.h>
#include <string.h>

struct adapters {
    int n;
    char (*names)[LIMIT_ADAPTER_NAME]; /* [n] */
    struct lora **loras;               /* [n_sites][n] */
    bool *is_used;                     /* [n_sites] */
    int n_sites;                       /* of all layers */
};

static size_t site_of(enum weight_slot slot, int layer)
{
    return (size_t)layer * SLOT_COUNT + (size_t)slot;
}

void adapters_free(struct adapters *all, struct backend *be)
{
    if (!all)
        return;
    for (size_t i = 0; all->loras && i < (size_t)all->n_sites * (size_t)all->n; i++)
        be->ops->lora_free(be, all->loras[i]);
    free((void *)all->loras);
    free(all->is_used);
    free(all->names);
    free(all);
}

int model_n_adapters(const struct model *model)
{
    return model->adapters ? model->adapters->n : 0;
}

const char *model_adapter_name(const struct model *model, int adapter)
{
    return model->adapters->names[adapter];
}

int model_find_adapter(const struct model *model, const char *name)
{
    for (int i = 0; i < model_n_adapters(model); i++)
        if (strcmp(model->adapters->names[i], name) == 0)
            return i;
    return -1;
}

const struct lora *const *model_loras(const struct model *model, enum weight_slot slot, int layer)
{
    const struct adapters *all = model->adapters;
    size_t at = site_of(slot, layer);
    return all && all->is_used[at] ? (const struct lora *const *)all->loras + at * (size_t)all->n : NULL;
}

static enum tutti_status check_name(const struct model *model, const char *name, struct tutti_error *err)
{
    size_t n = strlen(name);
    bool is_fit = n > 0 && n < LIMIT_ADAPTER_NAME && !strchr(name, ':');
    for (size_t i = 0; i < n; i++)
        is_fit = is_fit && (uint8_t)name[i] >= 0x20 && (uint8_t)name[i] != 0x7f;
    if (!is_fit)
        return error_set_param(err, TUTTI_E_ARGUMENT, "adapter",
                               "adapter name \"%s\", expected 1 to %d bytes without ':'", name,
                               LIMIT_ADAPTER_NAME - 1);
    if (model_find_adapter(model, name) >= 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "adapter", "adapter %s is there already", name);
    if (model_n_adapters(model) == LIMIT_ADAPTERS)
        return error_set_param(err, TUTTI_E_LIMIT, "adapter", "adapter %s: %d adapters are loaded already",
                               name, LIMIT_ADAPTERS);
    return TUTTI_OK;
}

/* Uploads the updates of one matrix, updates[0..n-1], to the backend. */
static enum tutti_status upload(struct model *model, struct lora **out, const struct adapter_update *updates,
                                int n, struct tutti_error *err)
{
    struct backend *be = model->backend;
    struct lora_part *parts = calloc((size_t)n, sizeof *parts);
    if (!parts)
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    struct slot_shape shape = slot_shape(&model->local, updates[0].slot, updates[0].layer);
    for (int i = 0; i < n; i++)
        parts[i] = (struct lora_part){ .out_begin = updates[i].out_begin,
                                       .n_out = updates[i].n_out,
                                       .rank = updates[i].rank,
                                       .scale = updates[i].scale,
                                       .a = updates[i].a,
                                       .b = updates[i].b };
    /* Compared with the rounding of the weights, float16 factors are precise enough. */
    enum dtype type = model->weight_type == DTYPE_F32 ? DTYPE_F32 : DTYPE_F16;
    enum tutti_status st = be->ops->lora_new(be, out, parts, n, shape.n_in, shape.n_out, type, err);
    if (st == TUTTI_OK)
        model->weight_bytes += be->ops->lora_bytes(*out);
    free(parts);
    return st;
}

/* Copies the table with room for one more adapter, whose column is empty. NULL: out of memory. */
static struct adapters *grow(const struct model *model, const char *name)
{
    const struct adapters *old = model->adapters;
    struct adapters *all = calloc(1, sizeof *all);
    if (!all)
        return NULL;
    size_t n_old = old ? (size_t)old->n : 0, n = n_old + 1, n_sites = site_of(0, model->desc.n_layers);
    all->n = (int)n;
    all->n_sites = (int)n_sites;
    all->names = calloc(n, sizeof *all->names);
    all->loras = calloc(n_sites * n, sizeof(struct lora *));
    all->is_used = calloc(n_sites, sizeof *all->is_used);
    if (!all->names || !all->loras || !all->is_used) {
        free((void *)all->loras);
        all->loras = NULL;
        adapters_free(all, model->backend);
        return NULL;
    }
    for (size_t i = 0; i < n_old; i++)
        strcpy(all->names[i], old->names[i]);
    strcpy(all->names[n_old], name);
    for (size_t site = 0; site < n_sites && old; site++) {
        all->is_used[site] = old->is_used[site];
        for (size_t i = 0; i < n_old; i++)
            all->loras[site * n + i] = old->loras[site * n_old + i];
    }
    return all;
}

/* Frees a table whose updates are also in another table; with has_last also the updates of the
 * last adapter. */
static void discard(struct model *model, struct adapters *all, bool has_last)
{
    if (!all)
        return;
    for (int site = 0; site < all->n_sites && has_last; site++)
        model->backend->ops->lora_free(model->backend, all->loras[(site + 1) * all->n - 1]);
    free((void *)all->loras);
    all->loras = NULL;
    adapters_free(all, model->backend);
}

/* ---- a rank's part of an adapter ---- */

/* The part of the update for the rows of one run, which begin at out_begin in the rank's matrix.
 * False: empty. */
static bool cut_update_rows(struct adapter_update *out, const struct adapter_update *u,
                            struct split_range run, int out_begin)
{
    int begin = u->out_begin > run.begin ? u->out_begin : run.begin;
    int end = u->out_begin + u->n_out < run.end ? u->out_begin + u->n_out : run.end;
    *out = *u;
    out->out_begin = out_begin + begin - run.begin;
    out->n_out = end - begin;
    out->b = u->b + (ptrdiff_t)(begin - u->out_begin) * u->rank; /* borrowed, as is a */
    return begin < end;
}

/* Copies a for the run's columns: [rank][columns], freed by the caller. NULL: out of memory. */
static float *cut_update_columns(const struct adapter_update *u, struct split_range run)
{
    size_t n = (size_t)(run.end - run.begin);
    float *a = malloc(n * (size_t)u->rank * sizeof *a);
    for (int i = 0; a && i < u->rank; i++)
        memcpy(a + (size_t)i * n, u->a + (size_t)i * (size_t)u->n_in + run.begin, n * sizeof *a);
    return a;
}

/* cut: receives the rank's part of updates [n], with room for SPLIT_MAX_RUNS times as many; if
 * split by columns it owns a. Returns their number; -1: out of memory. */
static int cut_updates(const struct model *model, struct adapter_update *cut,
                       const struct adapter_update *updates, int n)
{
    int n_cut = 0;
    for (int i = 0; i < n; i++) {
        const struct adapter_update *u = &updates[i];
        const struct split_target target = { .slot = u->slot, .layer = u->layer, .part = SPLIT_ALL_PARTS };
        struct split_part part = split_part(&model->group->split, &model->desc, &target);
        if (part.kind == SPLIT_COLUMNS) {
            cut[n_cut] = *u;
            cut[n_cut].a = cut_update_columns(u, part.runs[0]);
            cut[n_cut].n_in = part.n;
            if (!cut[n_cut++].a)
                return -1;
            continue;
        }
        for (int k = 0, row = 0; k < part.n_runs; row += part.runs[k].end - part.runs[k].begin, k++)
            n_cut += cut_update_rows(&cut[n_cut], u, part.runs[k], row);
    }
    return n_cut;
}

/* Adds an adapter from sorted updates. */
static enum tutti_status add_whole(struct model *model, const char *name,
                                   const struct adapter_update *updates, int n_updates,
                                   struct tutti_error *err)
{
    uint64_t weight_bytes = model->weight_bytes;
    struct adapters *all = grow(model, name);
    enum tutti_status st = TUTTI_OK;
    if (!all)
        return error_set(err, TUTTI_E_MEMORY, "adapter %s: out of memory", name);
    for (int i = 0, n; i < n_updates && st == TUTTI_OK; i += n) {
        const struct adapter_update *first = &updates[i];
        for (n = 1; i + n < n_updates && first[n].slot == first->slot && first[n].layer == first->layer;)
            n++;
        size_t at = site_of(first->slot, first->layer);
        st = upload(model, &all->loras[at * (size_t)all->n + (size_t)all->n - 1], first, n, err);
        all->is_used[at] = true;
    }
    if (st != TUTTI_OK) {
        discard(model, all, true);
        model->weight_bytes = weight_bytes;
        return st;
    }
    discard(model, model->adapters, false);
    model->adapters = all;
    workspace_free(model->workspace, model->backend); /* too small for the updates' scratch memory */
    model->workspace = NULL;
    return TUTTI_OK;
}

static enum tutti_status add_updates(struct model *model, const char *name,
                                     const struct adapter_update *updates, int n_updates,
                                     struct tutti_error *err)
{
    if (!model->group)
        return add_whole(model, name, updates, n_updates, err);
    struct adapter_update *cut = calloc(SPLIT_MAX_RUNS * (size_t)n_updates + 1, sizeof *cut);
    int n = cut ? cut_updates(model, cut, updates, n_updates) : -1;
    enum tutti_status st = n < 0 ? error_set(err, TUTTI_E_MEMORY, "adapter %s: out of memory", name)
                                 : add_whole(model, name, cut, n, err);
    for (int i = 0; cut && i < (int)SPLIT_MAX_RUNS * n_updates; i++)
        if (split_kind(cut[i].slot) == SPLIT_COLUMNS)
            free(cut[i].a);
    free(cut);
    return st;
}

enum tutti_status model_add_adapter(struct model *model, const char *name, const char *path,
                                    struct tutti_error *err)
{
    struct adapter_file file = { 0 };
    enum tutti_status st = check_name(model, name, err);
    if (st == TUTTI_OK && !model->family)
        st = error_set_param(err, TUTTI_E_UNSUPPORTED, "adapter",
                             "model %s has random weights: no adapter fits", model->name);
    if (st == TUTTI_OK)
        st = adapter_file_open(&file, path, &model->desc, model->family, model->is_gguf, err);
    if (st == TUTTI_OK)
        st = add_updates(model, name, file.updates, file.n, err);
    adapter_file_clear(&file);
    return model->group ? cluster_agree(model->group->cluster, st, err) : st;
}

enum tutti_status model_make_adapter(struct model *model, const char *name, int rank, struct tutti_error *err)
{
    const struct model_desc *d = &model->desc;
    struct adapter_update *updates = calloc((size_t)d->n_layers * SLOT_COUNT, sizeof *updates);
    int n = 0, largest = 1;
    enum tutti_status st = check_name(model, name, err);
    for (struct slot_at at = SLOT_BEGIN; updates && slot_next(d, &at);) {
        const struct slot_info *info = slot_info(at.slot);
        struct slot_shape shape = slot_shape(d, at.slot, at.layer);
        if (!info->can_adapt || !info->is_of_layer)
            continue;
        updates[n++] = (struct adapter_update){ .slot = at.slot,
                                                .layer = at.layer,
                                                .n_out = shape.n_out,
                                                .n_in = shape.n_in,
                                                .rank = rank,
                                                .scale = 0.01f };
        largest = shape.n_in > largest ? shape.n_in : largest;
        largest = shape.n_out > largest ? shape.n_out : largest;
    }
    float *values = calloc((size_t)largest * (size_t)rank,
                           sizeof *values); /* the same values for all: only speed matters */
    if (st == TUTTI_OK && (!updates || !values))
        st = error_set(err, TUTTI_E_MEMORY, "adapter %s: out of memory", name);
    for (size_t i = 0; values && i < (size_t)largest * (size_t)rank; i++)
        values[i] = (float)(i * 2654435761 % 1024) * 0x1p-10f - 0.5f;
    for (int i = 0; i < n; i++)
        updates[i].a = updates[i].b = values;
    if (st == TUTTI_OK)
        st = add_updates(model, name, updates, n, err);
    free(values);
    free(updates);
    return model->group ? cluster_agree(model->group->cluster, st, err) : st;
}
