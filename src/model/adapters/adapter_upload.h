/* Makes what the backend needs of an adapter's file. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_UPLOAD_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_UPLOAD_H

#include "model/adapters/adapter.h"

/* The changes of one weight; all arrays are parts of those of the file. */
struct adapter_changes {
    enum weight_slot slot;
    int layer;
    const struct adapter_update *updates;
    const struct adapter_bias *biases;
    const struct adapter_module *modules;
    int n, n_biases, n_modules;
    const struct adapter_tokens *tokens; /* of the output; n 0: none */
};

/* A norm's weights; those that are the model's own are not freed with it. */
struct adapter_norm {
    struct norm_update update; /* first: the tables point to it */
    bool has_weight, has_bias;
};

/* Errors name path. *out: the caller's. */
MUST_CHECK enum tutti_status adapter_upload_matrix(struct model *model, struct lora **out,
                                                   const struct adapter_changes *changes, const char *path,
                                                   struct tutti_error *err);
MUST_CHECK enum tutti_status adapter_upload_norm(struct model *model, struct adapter_norm **out,
                                                 const struct adapter_module *module, const char *path,
                                                 struct tutti_error *err);
void adapter_norm_free(struct adapter_norm *norm, struct backend *be); /* NULL is allowed */

/* *out NULL: the adapter leaves the embedding as it is. */
MUST_CHECK enum tutti_status adapter_upload_embedding(struct model *model, struct embedding_update **out,
                                                      const struct adapter_file *file, const char *path,
                                                      struct tutti_error *err);
/* *out NULL: there is no prefix. */
MUST_CHECK enum tutti_status adapter_upload_prefix(struct model *model, struct kv_prefix **out,
                                                   const struct adapter_file *file, const char *path,
                                                   struct tutti_error *err);
void adapter_prefix_free(struct kv_prefix *prefix, struct backend *be); /* NULL is allowed */

#endif
