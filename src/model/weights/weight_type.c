#include "model/weights/weight_type.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* M(name, dtype, general.file_type) */
#define FOR_EACH_TYPE(M)                                                                                     \
    M("f32", DTYPE_F32, 0)                                                                                   \
    M("f16", DTYPE_F16, 1)                                                                                   \
    M("bf16", DTYPE_BF16, 32)                                                                                \
    M("q8_0", DTYPE_Q8_0, 7)                                                                                 \
    M("q6_k", DTYPE_Q6_K, 18)                                                                                \
    M("q5_k_m", DTYPE_Q5_K, 17)                                                                              \
    M("q5_k_s", DTYPE_Q5_K, 16)                                                                              \
    M("q5_1", DTYPE_Q5_1, 9)                                                                                 \
    M("q5_0", DTYPE_Q5_0, 8)                                                                                 \
    M("q4_k_m", DTYPE_Q4_K, 15)                                                                              \
    M("q4_k_s", DTYPE_Q4_K, 14)                                                                              \
    M("q4_1", DTYPE_Q4_1, 3)                                                                                 \
    M("q4_0", DTYPE_Q4_0, 2)                                                                                 \
    M("mxfp4", DTYPE_MXFP4, 38)                                                                              \
    M("q3_k_l", DTYPE_Q3_K, 13)                                                                              \
    M("q3_k_m", DTYPE_Q3_K, 12)                                                                              \
    M("q3_k_s", DTYPE_Q3_K, 11)                                                                              \
    M("q2_k", DTYPE_Q2_K, 10)                                                                                \
    M("q2_k_s", DTYPE_Q2_K, 21)

#define NAME(name, dtype, file_type) name,
#define ROW(name, dtype, file_type)  { name, dtype, file_type },

const char *const WEIGHT_TYPE_NAMES[] = { FOR_EACH_TYPE(NAME) NULL };
static const struct weight_type TYPES[] = { FOR_EACH_TYPE(ROW) };
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

const char *const WEIGHT_TYPE_ALIASES[] = {
    "q5_k", "q5_k_m", "q4_k",    "q4_k_m", "q3_k", "q3_k_m", "fp32",     "f32",  "float32", "f32",
    "fp16", "f16",    "float16", "f16",    "half", "f16",    "bfloat16", "bf16", NULL,
};

const struct weight_type *weight_type_find(const char *name)
{
    for (int i = 0; WEIGHT_TYPE_ALIASES[i]; i += 2)
        if (strcasecmp(name, WEIGHT_TYPE_ALIASES[i]) == 0)
            name = WEIGHT_TYPE_ALIASES[i + 1];
    for (int i = 0; i < N_TYPES; i++)
        if (strcasecmp(name, TYPES[i].name) == 0)
            return &TYPES[i];
    return NULL;
}

const struct weight_type *weight_type_at(int index)
{
    return index < N_TYPES ? &TYPES[index] : NULL;
}

void weight_type_list(char *text, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < N_TYPES && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%s",
                              i == 0            ? ""
                              : i < N_TYPES - 1 ? ", "
                                                : " or ",
                              TYPES[i].name);
}

/* The first and last eighth of the layers, and every third between. */
static bool is_sensitive(int layer, int n_layers)
{
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static bool is_named(const struct weight_type *type, const char *name)
{
    return strcmp(type->name, name) == 0;
}

static enum dtype values_type(const struct weight_type *type, const struct weight_place *p)
{
    if (is_named(type, "q2_k"))
        return p->n_sharing >= 4 ? DTYPE_Q4_K : DTYPE_Q3_K;
    if (is_named(type, "q2_k_s") && p->n_sharing >= 4)
        return DTYPE_Q4_K;
    if (is_named(type, "q3_k_m"))
        return p->layer < 2 ? DTYPE_Q5_K : DTYPE_Q4_K;
    if (is_named(type, "q3_k_l"))
        return DTYPE_Q5_K;
    if ((is_named(type, "q4_k_m") || is_named(type, "q5_k_m")) && is_sensitive(p->layer, p->n_layers))
        return DTYPE_Q6_K;
    if (is_named(type, "q4_k_s") && p->layer < 4)
        return DTYPE_Q5_K;
    return type->dtype;
}

static enum dtype down_type(const struct weight_type *type, const struct weight_place *p)
{
    if (is_named(type, "q2_k"))
        return DTYPE_Q3_K;
    if (is_named(type, "q2_k_s") && p->layer < p->n_layers / 8)
        return DTYPE_Q4_K;
    if (is_named(type, "q3_k_m"))
        return p->layer < p->n_layers / 16 ? DTYPE_Q5_K : DTYPE_Q4_K;
    if (is_named(type, "q3_k_l"))
        return DTYPE_Q5_K;
    if ((is_named(type, "q4_k_m") || is_named(type, "q5_k_m")) && is_sensitive(p->layer, p->n_layers))
        return DTYPE_Q6_K;
    if (is_named(type, "q4_k_s") && p->layer < p->n_layers / 8)
        return DTYPE_Q5_K;
    return type->dtype;
}

static enum dtype attn_out_type(const struct weight_type *type)
{
    if (is_named(type, "q2_k"))
        return DTYPE_Q3_K;
    if (is_named(type, "q3_k_m"))
        return DTYPE_Q4_K;
    return is_named(type, "q3_k_l") ? DTYPE_Q5_K : type->dtype;
}

enum dtype weight_type_choose(const struct weight_type *type, const struct weight_place *place)
{
    if (place->role == WEIGHT_ROUTER)
        return DTYPE_F32;
    if (dtype_block_elems(type->dtype) == 1)
        return type->dtype;
    if (type->dtype == DTYPE_MXFP4)
        return place->is_of_experts ? DTYPE_MXFP4 : DTYPE_Q8_0;
    switch (place->role) {
    case WEIGHT_OUTPUT:
        return type->dtype == DTYPE_Q8_0 ? DTYPE_Q8_0 : DTYPE_Q6_K;
    case WEIGHT_VALUES:
        return values_type(type, place);
    case WEIGHT_ATTN_OUT:
        return attn_out_type(type);
    case WEIGHT_DOWN:
        return down_type(type, place);
    default:
        return type->dtype;
    }
}
