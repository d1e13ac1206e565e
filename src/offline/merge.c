#include "offline/merge.h"

#include <stdlib.h>
#include <string.h>

static int by_layer_and_slot(const void *a, const void *b)
{
    const struct adapter_update *x = a, *y = b;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
                                : (x->slot > y->slot) - (x->slot < y->slot);
}

/* Appends the updates of a file. */
static enum tutti_status add_adapter_file(struct merge *merge, struct adapter_file *file, double scale,
                                          const char *path, struct tutti_error *err)
{
    size_t n = (size_t)merge->n + (size_t)file->n;
    struct adapter_update *more = realloc(merge->updates, n * sizeof *more);
    if (!more)
        return error_out_of_memory(path, err);
    merge->updates = more;
    for (int i = 0; i < file->n; i++) {
        more[merge->n] = file->updates[i];
        more[merge->n++].scale *= (float)scale;
    }
    file->n = 0; /* merge owns their memory now */
    return TUTTI_OK;
}

enum tutti_status merge_open(struct merge *out, const struct merge_source *sources, int n_sources,
                             const struct model_desc *desc, const struct family *family, bool is_gguf,
                             struct tutti_error *err)
{
    struct merge merge = { 0 };
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < n_sources && st == TUTTI_OK; i++) {
        struct adapter_file file = { 0 };
        st = adapter_file_open(&file, sources[i].path, desc, family, is_gguf, err);
        for (int k = 0; k < file.n && st == TUTTI_OK; k++)
            if (file.updates[k].slot == SLOT_OUTPUT && desc->tied_output)
                st = error_set(
                    err, TUTTI_E_UNSUPPORTED,
                    "%s: it updates the output, which is the embedding too: the two cannot become one",
                    sources[i].path);
        if (st == TUTTI_OK)
            st = add_adapter_file(&merge, &file, sources[i].scale, sources[i].path, err);
        adapter_file_clear(&file);
    }
    if (st != TUTTI_OK) {
        merge_clear(&merge);
        return st;
    }
    if (merge.n > 0)
        qsort(merge.updates, (size_t)merge.n, sizeof *merge.updates, by_layer_and_slot);
    *out = merge;
    return TUTTI_OK;
}

void merge_clear(struct merge *merge)
{
    struct adapter_file file = { .updates = merge->updates, .n = merge->n };
    adapter_file_clear(&file);
    *merge = (struct merge){ 0 };
}

struct merge_rows merge_find(const struct merge *merge, enum weight_slot slot, int layer, int first_row)
{
    struct merge_rows rows = { .first_row = first_row };
    for (int i = 0; i < merge->n; i++) {
        const struct adapter_update *u = &merge->updates[i];
        if (u->slot != slot || u->layer != layer)
            continue;
        if (rows.n++ == 0)
            rows.updates = u;
    }
    return rows;
}

void merge_add(const struct merge_rows *rows, int64_t row, float *x)
{
    for (int i = 0; i < rows->n; i++) {
        const struct adapter_update *u = &rows->updates[i];
        int64_t at = rows->first_row + row - u->out_begin;
        if (at < 0 || at >= u->n_out)
            continue;
        for (int r = 0; r < u->rank; r++) {
            float factor = u->scale * u->b[at * u->rank + r];
            const float *a = u->a + (size_t)r * (size_t)u->n_in;
            for (int k = 0; k < u->n_in; k++)
                x[k] += factor * a[k];
        }
    }
}
