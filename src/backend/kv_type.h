/* Element types of the KV cache: their names for users, and their sizes. */
#ifndef TUTTI_BACKEND_KV_TYPE_H
#define TUTTI_BACKEND_KV_TYPE_H

#include "base/dtype.h"

struct attention_shape;

/* "f16", "bf16", "f32", "int8", NULL. */
extern const char *const KV_TYPE_NAMES[];

/* Finds a type by name: F16, BF16, F32, or I8 with a float scale for each token and head. False: not
 * found. */
bool kv_type_find(const char *name, enum dtype *out);
const char *kv_type_name(enum dtype type); /* of one of those four */

/* Bytes of one token's keys, or values, of one head. type: any; 0: not a type of the KV cache. */
size_t kv_type_bytes(enum dtype type, int head_dim);

/* The same of a layer with latent attention: one row of n elements, the latent and the rotary part. I8
 * has a scale for each of the two. */
size_t kv_type_latent_bytes(enum dtype type, int n);

/* Bytes of one position in a layer of this shape (backend.h), all heads together. */
size_t kv_type_position_bytes(enum dtype type, const struct attention_shape *shape);

#endif
