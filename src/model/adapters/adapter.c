/* The adapters of a loaded model: tables of changes by weight and adapter. */
#include "model/adapters/adapter_upload.h"

#include "base/limits.h"
#include "base/utf8.h"
#include "model/forward.h"
#include "model/ranks/group.h"

#include <stdlib.h>
#include <string.h>

struct adapters {
    int n;
    char (*names)[LIMIT_ADAPTER_NAME];    /* [n] */
    struct lora **loras;                  /* [n_sites][n] */
    struct adapter_norm **norms;          /* [n_sites][n] */
    struct embedding_update **embeddings; /* [n] */
    struct kv_prefix **prefixes;          /* [n] */
    struct adapter_virtual *virtuals;     /* [n] */
    bool *is_used, *has_norms;            /* [n_sites] */
    bool has_embeddings, has_prefixes;
    int n_sites; /* of all layers */
};

static size_t site_of(enum weight_slot slot, int layer)
{
    return (size_t)layer * SLOT_COUNT + (size_t)slot;
}

/* Frees the tables only. */
static void free_tables(struct adapters *all)
{
    free((void *)all->loras);
    free((void *)all->norms);
    free((void *)all->embeddings);
    free((void *)all->prefixes);
    free(all->virtuals);
    free(all->is_used);
    free(all->has_norms);
    free(all->names);
    free(all);
}

/* Frees what an adapter has in the tables. */
static void free_column(struct adapters *all, int adapter, struct backend *be)
{
    for (int site = 0; site < all->n_sites; site++) {
        be->ops->lora_free(be, all->loras[site * all->n + adapter]);
        adapter_norm_free(all->norms[site * all->n + adapter], be);
    }
    be->ops->embedding_free(be, all->embeddings[adapter]);
    adapter_prefix_free(all->prefixes[adapter], be);
}

void adapters_free(struct adapters *all, struct backend *be)
{
    if (!all)
        return;
    for (int i = 0; i < all->n; i++)
        free_column(all, i, be);
    free_tables(all);
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

const struct norm_update *const *model_norms(const struct model *model, enum weight_slot slot, int layer)
{
    const struct adapters *all = model->adapters;
    size_t at = site_of(slot, layer);
    return all && all->has_norms[at] ? (const struct norm_update *const *)all->norms + at * (size_t)all->n
                                     : NULL;
}

const struct embedding_update *const *model_embeddings(const struct model *model)
{
    const struct adapters *all = model->adapters;
    return all && all->has_embeddings ? (const struct embedding_update *const *)all->embeddings : NULL;
}

const struct kv_prefix *const *model_prefixes(const struct model *model)
{
    const struct adapters *all = model->adapters;
    return all && all->has_prefixes ? (const struct kv_prefix *const *)all->prefixes : NULL;
}

struct adapter_virtual model_adapter_virtual(const struct model *model, int adapter)
{
    return adapter >= 0 ? model->adapters->virtuals[adapter] : (struct adapter_virtual){ 0 };
}

bool model_shifts_positions(const struct model *model)
{
    bool shifts = false;
    for (int i = 0; i < model_n_adapters(model); i++)
        shifts = shifts || model->adapters->virtuals[i].is_before_zero;
    return shifts;
}

static enum tutti_status check_name(const struct model *model, const char *name, struct tutti_error *err)
{
    size_t n = strlen(name);
    bool is_fit = n > 0 && n < LIMIT_ADAPTER_NAME && !strchr(name, ':') && strcmp(name, "none") != 0;
    if (!is_fit || !utf8_is_printable(name, n))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "adapter",
            "adapter name \"%s\", expected 1 to %d bytes of printable UTF-8 without ':', and "
            "not \"none\"",
            name, LIMIT_ADAPTER_NAME - 1);
    if (model_find_adapter(model, name) >= 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "adapter",
                               "two adapters are called %s; expected a name of its own for each", name);
    if (model_n_adapters(model) == LIMIT_ADAPTERS)
        return error_set_param(err, TUTTI_E_LIMIT, "adapter", "adapter %s: %d adapters are loaded already",
                               name, LIMIT_ADAPTERS);
    return TUTTI_OK;
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
    all->loras = calloc(n_sites * n, sizeof *all->loras);
    all->norms = calloc(n_sites * n, sizeof *all->norms);
    all->embeddings = calloc(n, sizeof *all->embeddings);
    all->prefixes = calloc(n, sizeof *all->prefixes);
    all->virtuals = calloc(n, sizeof *all->virtuals);
    all->is_used = calloc(n_sites, sizeof *all->is_used);
    all->has_norms = calloc(n_sites, sizeof *all->has_norms);
    if (!all->names || !all->loras || !all->norms || !all->embeddings || !all->prefixes || !all->virtuals ||
        !all->is_used || !all->has_norms) {
        free_tables(all);
        return NULL;
    }
    strcpy(all->names[n_old], name);
    if (!old)
        return all;
    all->has_embeddings = old->has_embeddings;
    all->has_prefixes = old->has_prefixes;
    memcpy(all->names, old->names, n_old * sizeof *all->names);
    memcpy((void *)all->embeddings, (void *)old->embeddings, n_old * sizeof *all->embeddings);
    memcpy((void *)all->prefixes, (void *)old->prefixes, n_old * sizeof *all->prefixes);
    memcpy(all->virtuals, old->virtuals, n_old * sizeof *all->virtuals);
    memcpy(all->is_used, old->is_used, n_sites * sizeof *all->is_used);
    memcpy(all->has_norms, old->has_norms, n_sites * sizeof *all->has_norms);
    for (size_t site = 0; site < n_sites; site++) {
        memcpy((void *)&all->loras[site * n], (void *)&old->loras[site * n_old], n_old * sizeof *all->loras);
        memcpy((void *)&all->norms[site * n], (void *)&old->norms[site * n_old], n_old * sizeof *all->norms);
    }
    return all;
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
        if (part.kind == SPLIT_WHOLE) { /* every rank computes the whole matrix */
            cut[n_cut++] = *u;
            continue;
        }
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

/* cut: receives the rank's rows of modules [n], with room for SPLIT_MAX_RUNS times as many; their rows are
 * borrowed. Returns their number; -1: ranks cannot replace one of these weights. */
static int cut_modules(const struct model *model, struct adapter_module *cut,
                       const struct adapter_module *modules, int n)
{
    int n_cut = 0;
    for (int i = 0; i < n; i++) {
        const struct adapter_module *m = &modules[i];
        const struct split_target target = { .slot = m->slot, .layer = m->layer, .part = SPLIT_ALL_PARTS };
        struct split_part part = split_part(&model->group->split, &model->desc, &target);
        size_t row_bytes;
        if (m->slot == SLOT_EMBEDDING || part.kind != SPLIT_ROWS ||
            !dtype_bytes(m->dtype, m->n_in, &row_bytes))
            return -1;
        for (int k = 0, row = 0; k < part.n_runs; row += part.runs[k].end - part.runs[k].begin, k++) {
            int begin = m->out_begin > part.runs[k].begin ? m->out_begin : part.runs[k].begin;
            int end = m->out_begin + m->n_out < part.runs[k].end ? m->out_begin + m->n_out : part.runs[k].end;
            if (begin >= end)
                continue;
            cut[n_cut] = *m;
            cut[n_cut].out_begin = row + begin - part.runs[k].begin;
            cut[n_cut].n_out = end - begin;
            cut[n_cut++].rows = m->rows + (size_t)(begin - m->out_begin) * row_bytes;
        }
    }
    return n_cut;
}

/* The changes of the next weight that the adapter changes, after those of before. False: there is none.
 * The arrays of file are sorted by layer and slot. */
static bool next_changes(struct adapter_changes *c, const struct adapter_file *file)
{
    const struct adapter_update *u = c->updates + c->n, *u_end = file->updates + file->n;
    const struct adapter_bias *b = c->biases + c->n_biases, *b_end = file->biases + file->n_biases;
    const struct adapter_module *m = c->modules + c->n_modules, *m_end = file->modules + file->n_modules;
    size_t at = SIZE_MAX;
    if (u < u_end)
        at = site_of(u->slot, u->layer);
    if (b < b_end && site_of(b->slot, b->layer) < at)
        at = site_of(b->slot, b->layer);
    if (m < m_end && site_of(m->slot, m->layer) < at)
        at = site_of(m->slot, m->layer);
    *c = (struct adapter_changes){ .slot = (enum weight_slot)(at % SLOT_COUNT),
                                   .layer = (int)(at / SLOT_COUNT),
                                   .updates = u,
                                   .biases = b,
                                   .modules = m };
    while (u + c->n < u_end && site_of(u[c->n].slot, u[c->n].layer) == at)
        c->n++;
    while (b + c->n_biases < b_end && site_of(b[c->n_biases].slot, b[c->n_biases].layer) == at)
        c->n_biases++;
    while (m + c->n_modules < m_end && site_of(m[c->n_modules].slot, m[c->n_modules].layer) == at)
        c->n_modules++;
    return at != SIZE_MAX;
}

/* Uploads the changes of one weight to the last column of the tables. */
static enum tutti_status upload_changes(struct model *model, struct adapters *all,
                                        const struct adapter_changes *c, const char *path,
                                        struct tutti_error *err)
{
    size_t at = site_of(c->slot, c->layer), last = at * (size_t)all->n + (size_t)all->n - 1;
    if (c->slot == SLOT_EMBEDDING)
        return TUTTI_OK; /* adapter_upload_embedding() */
    if (slot_info(c->slot)->kind == SLOT_NORM) {
        all->has_norms[at] = true;
        return adapter_upload_norm(model, &all->norms[last], c->modules, path, err);
    }
    enum tutti_status st = adapter_upload_matrix(model, &all->loras[last], c, path, err);
    all->is_used[at] = all->is_used[at] || all->loras[last];
    return st;
}

/* Uploads a file to the last column. */
static enum tutti_status upload_file(struct model *model, struct adapters *all,
                                     const struct adapter_file *file, const char *path,
                                     struct tutti_error *err)
{
    size_t last = (size_t)all->n - 1;
    struct adapter_changes c = { .updates = file->updates, .biases = file->biases, .modules = file->modules };
    bool has_tokens = file->output_tokens.n > 0;
    enum tutti_status st = TUTTI_OK;
    while (st == TUTTI_OK && next_changes(&c, file)) {
        if (c.slot == SLOT_OUTPUT && has_tokens)
            c.tokens = &file->output_tokens;
        has_tokens = has_tokens && c.slot != SLOT_OUTPUT;
        st = upload_changes(model, all, &c, path, err);
    }
    if (st == TUTTI_OK && has_tokens)
        st = upload_changes(model, all,
                            &(struct adapter_changes){ .slot = SLOT_OUTPUT, .tokens = &file->output_tokens },
                            path, err);
    if (st == TUTTI_OK)
        st = adapter_upload_embedding(model, &all->embeddings[last], file, path, err);
    if (st == TUTTI_OK)
        st = adapter_upload_prefix(model, &all->prefixes[last], file, path, err);
    all->has_embeddings = all->has_embeddings || all->embeddings[last];
    all->has_prefixes = all->has_prefixes || all->prefixes[last];
    all->virtuals[last] = (struct adapter_virtual){ .n = file->virtual.n,
                                                    .is_before_zero = file->virtual.is_before_zero };
    return st;
}

static enum tutti_status add_whole(struct model *model, const char *name, const struct adapter_file *file,
                                   const char *path, struct tutti_error *err)
{
    uint64_t weight_bytes = model->weight_bytes;
    struct adapters *all = grow(model, name);
    if (!all)
        return error_set(err, TUTTI_E_MEMORY, "adapter %s: out of memory", name);
    enum tutti_status st = upload_file(model, all, file, path, err);
    if (st != TUTTI_OK) {
        free_column(all, all->n - 1, model->backend);
        free_tables(all);
        model->weight_bytes = weight_bytes;
        return st;
    }
    if (model->adapters)
        free_tables(model->adapters);
    model->adapters = all;
    workspace_free(model->workspace, model->backend); /* too small for the updates' scratch memory */
    model->workspace = NULL;
    return TUTTI_OK;
}

static enum tutti_status add_file(struct model *model, const char *name, const struct adapter_file *file,
                                  const char *path, struct tutti_error *err)
{
    if (!model->group)
        return add_whole(model, name, file, path, err);
    struct adapter_file rest = *file;
    rest.n_modules = 0;
    struct adapter_update *cut = calloc(SPLIT_MAX_RUNS * (size_t)file->n + 1, sizeof *cut);
    struct adapter_module *modules = calloc(SPLIT_MAX_RUNS * (size_t)file->n_modules + 1, sizeof *modules);
    int n_modules = modules ? cut_modules(model, modules, file->modules, file->n_modules) : 0;
    int n = cut ? cut_updates(model, cut, file->updates, file->n) : -1;
    enum tutti_status st = TUTTI_OK;
    if (!modules || n < 0)
        st = error_set(err, TUTTI_E_MEMORY, "adapter %s: out of memory", name);
    else if (n_modules < 0 || !adapter_file_is_plain(&rest))
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s: with several ranks only low-rank updates of linear layers and matrices that are "
                       "split by rows are supported, no DoRA, biases, other whole weights, trained tokens or "
                       "virtual tokens",
                       path);
    if (st == TUTTI_OK)
        st = add_whole(
            model, name,
            &(struct adapter_file){ .updates = cut, .n = n, .modules = modules, .n_modules = n_modules },
            path, err);
    for (int i = 0; cut && i < (int)SPLIT_MAX_RUNS * file->n; i++)
        if (split_kind(cut[i].slot) == SPLIT_COLUMNS)
            free(cut[i].a);
    free(cut);
    free(modules);
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
        st = add_file(model, name, &file, path, err);
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
        if (!info->can_adapt || !info->is_of_layer || at.layer == d->n_layers)
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
        st = add_file(model, name, &(struct adapter_file){ .updates = updates, .n = n }, name, err);
    free(values);
    free(updates);
    return model->group ? cluster_agree(model->group->cluster, st, err) : st;
}
