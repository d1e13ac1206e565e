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

/* ---- which matrices get another type than most ---- */

enum models { OF_ANY, OF_FALCON, OF_8_EXPERTS, OF_SHARING_4 /* query heads per KV head */, WITH_IMATRIX };

/* Sensitive: the first and last eighth, and every third between. */
enum layers { IN_ALL, IN_FIRST_2, IN_FIRST_4, IN_FIRST_8TH, IN_FIRST_16TH, IN_SENSITIVE };

enum { MAX_RULE_TYPES = 5 };

/* The first rule that applies gives the type; without one it is that of most matrices. */
static const struct rule {
    enum models models;
    enum weight_role role;
    enum layers layers;
    enum dtype dtype;
    const char *types[MAX_RULE_TYPES]; /* names; the first is NULL: all quantized types */
} RULES[] = {
    { OF_FALCON, WEIGHT_OUTPUT, IN_ALL, DTYPE_Q8_0 },
    { OF_ANY, WEIGHT_OUTPUT, IN_ALL, DTYPE_Q8_0, { "q8_0" } },
    { OF_ANY, WEIGHT_OUTPUT, IN_ALL, DTYPE_Q6_K },

    { OF_8_EXPERTS, WEIGHT_VALUES, IN_ALL, DTYPE_Q8_0 },
    { OF_8_EXPERTS, WEIGHT_KEYS, IN_ALL, DTYPE_Q8_0 },
    { OF_SHARING_4, WEIGHT_VALUES, IN_ALL, DTYPE_Q4_K, { "q2_k", "q2_k_s" } },
    { OF_ANY, WEIGHT_VALUES, IN_ALL, DTYPE_Q3_K, { "q2_k" } },
    { OF_ANY, WEIGHT_VALUES, IN_FIRST_2, DTYPE_Q5_K, { "q3_k_m" } },
    { OF_ANY, WEIGHT_VALUES, IN_ALL, DTYPE_Q4_K, { "q3_k_m" } },
    { OF_ANY, WEIGHT_VALUES, IN_ALL, DTYPE_Q5_K, { "q3_k_l" } },
    { OF_ANY, WEIGHT_VALUES, IN_FIRST_4, DTYPE_Q5_K, { "q4_k_s" } },
    { OF_ANY, WEIGHT_VALUES, IN_SENSITIVE, DTYPE_Q6_K, { "q4_k_m", "q5_k_m" } },

    { OF_FALCON, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q2_K, { "q2_k" } },
    { OF_FALCON, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q3_K, { "q3_k_m" } },
    { OF_FALCON, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q4_K, { "q3_k_l" } },
    { OF_8_EXPERTS, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q5_K, { "q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m" } },
    { OF_8_EXPERTS, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q3_K, { "q3_k_l" } },
    { OF_ANY, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q3_K, { "q2_k" } },
    { OF_ANY, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q4_K, { "q3_k_m" } },
    { OF_ANY, WEIGHT_ATTN_OUT, IN_ALL, DTYPE_Q5_K, { "q3_k_l" } },

    { OF_FALCON, WEIGHT_DOWN, IN_FIRST_16TH, DTYPE_Q6_K, { "q4_k_m" } },
    { OF_FALCON, WEIGHT_DOWN, IN_SENSITIVE, DTYPE_Q5_K, { "q4_k_m" } },
    { OF_FALCON, WEIGHT_DOWN, IN_ALL, DTYPE_Q4_K, { "q3_k_l", "q4_k_s", "q4_k_m" } },
    { OF_ANY, WEIGHT_DOWN, IN_FIRST_16TH, DTYPE_Q5_K, { "q3_k_m" } },
    { OF_FALCON, WEIGHT_DOWN, IN_SENSITIVE, DTYPE_Q4_K, { "q3_k_m" } },
    { OF_FALCON, WEIGHT_DOWN, IN_ALL, DTYPE_Q3_K, { "q3_k_m" } },
    { OF_ANY, WEIGHT_DOWN, IN_ALL, DTYPE_Q3_K, { "q2_k" } },
    { OF_ANY, WEIGHT_DOWN, IN_FIRST_8TH, DTYPE_Q4_K, { "q2_k_s" } },
    { OF_ANY, WEIGHT_DOWN, IN_ALL, DTYPE_Q4_K, { "q3_k_m" } },
    { OF_ANY, WEIGHT_DOWN, IN_ALL, DTYPE_Q5_K, { "q3_k_l" } },
    { OF_ANY, WEIGHT_DOWN, IN_FIRST_8TH, DTYPE_Q5_K, { "q4_k_s" } },
    { OF_ANY, WEIGHT_DOWN, IN_SENSITIVE, DTYPE_Q6_K, { "q4_k_m", "q5_k_m" } },
    { WITH_IMATRIX, WEIGHT_DOWN, IN_FIRST_8TH, DTYPE_Q4_1, { "q4_0" } },
    { WITH_IMATRIX, WEIGHT_DOWN, IN_FIRST_8TH, DTYPE_Q5_1, { "q5_0" } },
};

static bool names_type(const struct rule *r, const struct weight_type *type)
{
    for (int i = 0; i < MAX_RULE_TYPES && r->types[i]; i++)
        if (strcmp(r->types[i], type->name) == 0)
            return true;
    return !r->types[0];
}

static bool is_of_models(const struct weight_place *p, enum models models)
{
    switch (models) {
    case OF_FALCON:
        return p->is_falcon;
    case OF_8_EXPERTS:
        return p->n_experts == 8;
    case OF_SHARING_4:
        return p->n_sharing >= 4;
    case WITH_IMATRIX:
        return p->has_imatrix;
    case OF_ANY:
        break;
    }
    return true;
}

static bool is_in_layers(const struct weight_place *p, enum layers layers)
{
    int i = p->layer, n = p->n_layers;
    switch (layers) {
    case IN_FIRST_2:
        return i < 2;
    case IN_FIRST_4:
        return i < 4;
    case IN_FIRST_8TH:
        return i < n / 8;
    case IN_FIRST_16TH:
        return i < n / 16;
    case IN_SENSITIVE:
        return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case IN_ALL:
        break;
    }
    return true;
}

static enum dtype type_by_rules(const struct weight_type *type, const struct weight_place *p)
{
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        const struct rule *r = &RULES[i];
        if (r->role == p->role && names_type(r, type) && is_of_models(p, r->models) &&
            is_in_layers(p, r->layers))
            return r->dtype;
    }
    return type->dtype;
}

enum dtype weight_type_choose(const struct weight_type *type, const struct weight_place *place)
{
    if (place->role == WEIGHT_ROUTER)
        return DTYPE_F32;
    if (dtype_block_elems(type->dtype) == 1)
        return type->dtype;
    if (type->dtype == DTYPE_MXFP4)
        return place->is_of_experts ? DTYPE_MXFP4 : DTYPE_Q8_0;
    enum dtype chosen = type_by_rules(type, place);
    /* Values are so small a part of these models that more bits for them cost little. */
    if (place->is_70b && place->role == WEIGHT_VALUES && (chosen == DTYPE_Q3_K || chosen == DTYPE_Q4_K))
        return DTYPE_Q5_K;
    return chosen;
}
