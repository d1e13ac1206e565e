/* Merges LoRA adapters into the weights during conversion: W + scale * B . A. */
#ifndef TUTTI_OFFLINE_MERGE_H
#define TUTTI_OFFLINE_MERGE_H

#include "model/adapters/adapter.h"

struct merge_source {
    const char *path; /* an adapter's folder */
    double scale;     /* multiplies the adapter's own scale; usually 1 */
};

/* The updates of all sources. Zero-initialised: none. */
struct merge {
    struct adapter_update *updates; /* [n], by layer and slot */
    int n;
};

/* TUTTI_E_UNSUPPORTED: an update of a tied output matrix. */
MUST_CHECK enum tutti_status merge_open(struct merge *out, const struct merge_source *sources, int n_sources,
                                        const struct model_desc *desc, const struct family *family,
                                        bool is_gguf, struct tutti_error *err);
void merge_clear(struct merge *merge);

/* Some rows of one matrix of the forward pass, and their updates. */
struct merge_rows {
    const struct adapter_update *updates; /* [n] */
    int n;                                /* 0: the rows do not change */
    int first_row;
};

struct merge_rows merge_find(const struct merge *merge, enum weight_slot slot, int layer, int first_row);

/* Adds the updates of row number row of these rows. x: [n_in]. */
void merge_add(const struct merge_rows *rows, int64_t row, float *x);

#endif
