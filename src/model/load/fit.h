/* Which weight types, contexts and numbers of users fit in a memory: what a refusal and a plan advise. */
#ifndef TUTTI_MODEL_LOAD_FIT_H
#define TUTTI_MODEL_LOAD_FIT_H

#include "model/weights/weights.h"

enum { FIT_MAX_TYPES = 32 }; /* of WEIGHT_TYPE_NAMES */

/* Bytes of all weights of a model, or of one rank's part of it: matrices packed, without their biases. */
struct fit_sizes {
    uint64_t current; /* as stored, or as the requested type */
    uint64_t as[FIT_MAX_TYPES];
};

/* Adds a weight of a checkpoint. type: the requested one, NULL: as stored. share: the rank's part, 0 to 1. */
void fit_add(struct fit_sizes *sizes, const struct weight *w, const struct weight_type *type, double share,
             const struct backend_caps *caps);

/* Bytes of all n_experts matrices of a slot, or of a vector, of a known shape, whose matrices are to have a type. */
uint64_t fit_shape_bytes(const struct slot_shape *shape, enum weight_slot slot, enum dtype type,
                         const struct backend_caps *caps);

/* The same for all n_experts matrices of a slot of a known shape, whose matrices are to have a type. */
void fit_add_shape(struct fit_sizes *sizes, const struct slot_shape *shape, enum weight_slot slot,
                   enum dtype type, const struct backend_caps *caps);

struct fit_request {
    const struct model_desc *desc; /* of the rank */
    enum dtype kv_type;
    int page_tokens, n_ctx;
    uint64_t memory_bytes;
    bool
        has_headroom; /* memory other than weights, keys and values comes from memory_bytes too: fit_kv_bytes() */
    const char *divisions; /* between a card and the CPU that would fit; NULL or "": none */
};

/* A type with which at least one user fits. */
struct fit_room {
    const struct weight_type *type; /* NULL: the current one */
    uint64_t weight_bytes;
    int n_ctx; /* of each user; below the request's n_ctx: the longest that fits */
    int64_t n_users;
};

/* Finds the largest type with which any context fits, and the largest with which the whole context
 * fits; a type is not considered if it is larger than the current one. Returns their number: 1 if both
 * are the same. */
enum { FIT_MAX_ROOMS = 2 };
int fit_find(struct fit_room rooms[FIT_MAX_ROOMS], const struct fit_sizes *sizes,
             const struct fit_request *request);

/* Advice for an error: the n rooms, or the smallest type's need. Returns text. */
enum { FIT_TEXT_BYTES = 384 };
const char *fit_text(char text[FIT_TEXT_BYTES], const struct fit_room *rooms, int n,
                     const struct fit_sizes *sizes);

/* The part of free memory that keys and values get, unless the user says how much: 512 MiB and an
 * eighth are left for activations, requests and everything else. */
uint64_t fit_kv_bytes(uint64_t bytes_left);

/* A size in the format of flags ("512M"), rounded up by less than 1%. Returns text. */
enum { FIT_SIZE_BYTES = 32 };
const char *fit_size_text(char text[FIT_SIZE_BYTES], uint64_t n_bytes);

/* TUTTI_E_MEMORY: the current weights need more than the request's memory. type: a name for them.
 * is_given: the user set the memory. */
MUST_CHECK enum tutti_status fit_check(const char *model, const char *type, const struct fit_sizes *sizes,
                                       const struct fit_request *request, bool is_given,
                                       struct tutti_error *err);

#endif
