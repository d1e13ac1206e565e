#include "fleet/plan_model.h"

#include "model/weights/mtp.h"
#include "model/weights/weights.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool alloc_parts(struct plan_model *m, const struct plan_model_options *options)
{
    m->parts = weight_parts_new(&m->desc, options->kv_type, options->context);
    return m->parts != NULL;
}

static enum tutti_status sum_weights(struct plan_model *m, const struct checkpoint *ck,
                                     const struct tensor_names *names,
                                     const struct plan_model_options *options, struct tutti_error *err)
{
    const struct weight_type *type = options->type;
    for (struct slot_at at = SLOT_BEGIN; slot_next_expert(&m->desc, &at);) {
        struct weight w, divided;
        enum tutti_status st = weights_find(&w, &m->desc, names, ck, &at, err);
        if (st != TUTTI_OK)
            return st;
        divided = w;
        if (!type) { /* a plan may cut columns, but not where a card and the CPU divide the layers */
            weights_use_compact(&w, 1, split_kind(w.slot) == SPLIT_COLUMNS);
            weights_use_compact(&divided, 1, false);
        }
        weight_parts_add(m->parts, &m->desc, &at, &divided, type);
        fit_add(&m->sizes, &w, type, 1, options->caps);
        m->bytes[m->desc.kind_of[at.layer]][w.slot] += (double)weights_bytes(&w, type, options->caps);
        if (split_kind(w.slot) != SPLIT_COLUMNS)
            continue;
        /* Splits by columns must respect the blocks of every layer. */
        split_widen(&m->blocks, w.slot,
                    dtype_block_elems(weights_fit_type(weights_run_type(&w, type), w.n_in)));
    }
    return TUTTI_OK;
}

static enum tutti_status read_checkpoint(struct plan_model *m, enum dtype *runs_as,
                                         const struct checkpoint *ck,
                                         const struct plan_model_options *options, struct tutti_error *err)
{
    const struct family *family;
    enum tutti_status st = model_desc_read(&m->desc, &family, ck, err);
    if (st != TUTTI_OK)
        return st;
    const struct tensor_names *names = family_layout(family, ck);
    if (!names)
        return family_no_layout(family, ck, err);
    if (options->mtp)
        st = mtp_describe(&m->desc, names, ck, false, err);
    if (st == TUTTI_OK && !alloc_parts(m, options))
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", checkpoint_path(ck));
    if (st == TUTTI_OK)
        st = sum_weights(m, ck, names, options, err);
    if (options->type)
        *runs_as = options->type->dtype;
    else if (st == TUTTI_OK)
        st = weights_stored_type(runs_as, &m->desc, names, ck, err);
    return st == TUTTI_OK ? weights_check_all(&m->desc, family, names, ck, err) : st;
}

/* As in model_make(). False: out of memory. */
static bool fill_shape(struct plan_model *m, const struct model_desc *d, enum dtype type,
                       const struct plan_model_options *options)
{
    m->desc = *d;
    m->blocks = split_blocks_of(d, dtype_block_elems(type));
    if (!alloc_parts(m, options))
        return false;
    for (struct slot_at at = SLOT_BEGIN; slot_next(d, &at);) {
        struct slot_shape shape = slot_shape(d, at.slot, at.layer);
        struct fit_sizes one = { 0 };
        fit_add_shape(&one, &shape, at.slot, type, options->caps);
        fit_add_shape(&m->sizes, &shape, at.slot, type, options->caps);
        weight_parts_add_shape(m->parts, d, &at, type);
        m->bytes[d->kind_of[at.layer]][at.slot] += (double)one.current;
    }
    return true;
}

void plan_model_clear(struct plan_model *model)
{
    free(model->parts);
    model->parts = NULL;
}

enum tutti_status plan_model_read(struct plan_model *out, enum dtype *runs_as, const char *path,
                                  const struct plan_model_options *options, struct tutti_error *err)
{
    struct plan_model m = {
        .kv_type = options->kv_type,
    };
    struct stat info;
    const struct model_desc *shape = model_shape(path);
    enum tutti_status st = TUTTI_OK;
    bool is_shape = shape && stat(path, &info) != 0;
    if (is_shape && options->mtp) {
        st = error_set_param(err, TUTTI_E_UNSUPPORTED, "draft",
                             "shape %s has no layer for multi-token prediction (MTP)", path);
    } else if (is_shape) {
        *runs_as = options->type ? options->type->dtype : model_shape_type(path);
        if (!fill_shape(&m, shape, *runs_as, options))
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    } else {
        struct checkpoint *ck = NULL;
        st = checkpoint_open(&ck, path, err);
        if (st == TUTTI_E_NOT_FOUND && !strchr(path, '/') && stat(path, &info) != 0)
            st = error_set(err, st,
                           "%s: no such file or folder, and no known shape; 'tutti bench --shape list' lists "
                           "the shapes",
                           path);
        if (st == TUTTI_OK)
            st = read_checkpoint(&m, runs_as, ck, options, err);
        checkpoint_close(ck);
    }
    if (st == TUTTI_OK)
        *out = m;
    else
        plan_model_clear(&m);
    return st;
}
