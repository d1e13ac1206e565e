#include "backend/kv_type.h"

#include "backend/backend.h"

#include <strings.h>

static const enum dtype TYPES[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_I8 }; /* of KV_TYPE_NAMES */
const char *const KV_TYPE_NAMES[] = { "f16", "bf16", "f32", "int8", NULL };

bool kv_type_find(const char *name, enum dtype *out)
{
    for (int i = 0; KV_TYPE_NAMES[i]; i++)
        if (strcasecmp(name, KV_TYPE_NAMES[i]) == 0) {
            *out = TYPES[i];
            return true;
        }
    return false;
}

const char *kv_type_name(enum dtype type)
{
    for (int i = 0; KV_TYPE_NAMES[i]; i++)
        if (TYPES[i] == type)
            return KV_TYPE_NAMES[i];
    return dtype_name(type);
}

size_t kv_type_bytes(enum dtype type, int head_dim)
{
    size_t scale = type == DTYPE_I8 ? sizeof(float) : 0;
    for (int i = 0; KV_TYPE_NAMES[i]; i++)
        if (TYPES[i] == type)
            return (size_t)head_dim * (size_t)dtype_block_bytes(type) + scale;
    return 0;
}

size_t kv_type_latent_bytes(enum dtype type, int n)
{
    return kv_type_bytes(type, n) + (type == DTYPE_I8 ? sizeof(float) : 0);
}

size_t kv_type_position_bytes(enum dtype type, const struct attention_shape *shape)
{
    if (shape->n_latent > 0)
        return kv_type_latent_bytes(type, shape->head_dim);
    return (size_t)shape->n_kv_heads * 2 * kv_type_bytes(type, shape->head_dim);
}
