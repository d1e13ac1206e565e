/* Describes a checkpoint and the memory needed to serve it, without loading its weights. */
#ifndef TUTTI_OFFLINE_INSPECT_H
#define TUTTI_OFFLINE_INSPECT_H

#include "base/error.h"
#include "model/weights/weight_type.h"
#include "tutti.h"

#include <stdio.h>

struct inspect_options {
    bool as_json;
    bool lists_tensors;
    const struct weight_type *type;       /* to run the weights as; NULL: as stored */
    enum dtype kv_type;                   /* as in backend/kv_type.h */
    const char *device;                   /* as backend_caps_of() takes it; NULL: the CPU */
    const char *gpu_layers, *cpu_experts; /* as division_read() takes them; NULL: not given */
    uint64_t memory_bytes;                /* for weights and KV cache together; 0: memory_left() */
    uint64_t host_bytes;                  /* with gpu_layers or cpu_experts: the CPU's for its part */
    int context;                          /* tokens of one user; 0: the model's context */
    bool mtp;                             /* with the layer for multi-token prediction */
    const char *root;                     /* of memory_left(); NULL: "" */
};

/* Writes the report to out: description, tensors, sizes, KV bytes for each token, users that fit
 * into memory. */
MUST_CHECK enum tutti_status model_inspect(const char *path, const struct inspect_options *options, FILE *out,
                                           struct tutti_error *err);

/* Fills what the configuration and the chat template tell: n_ctx, only_embeds, has_score, embedding, has_chat,
 * tool_form and reasoning_form. All else is zero. Reads neither weights nor the vocabulary. */
MUST_CHECK enum tutti_status model_inspect_info(const char *path, struct tutti_model_info *out,
                                                struct tutti_error *err);

#endif
