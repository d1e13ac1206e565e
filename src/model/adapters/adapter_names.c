#include "model/adapters/adapter_names.h"

#include "checkpoint/text_part.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Suffixes of names, compared case-insensitively; the longest that fits counts. PEFT's, which may contain the adapter's name;
 * MindFormers', old and new. */
static const struct {
    const char *end;
    enum factor factor;
} ENDS[] = {
    { ".lora_a.weight", FACTOR_A },
    { ".lora_b.weight", FACTOR_B },
    { ".lora_b.bias", FACTOR_B_BIAS },
    { ".lora_a.default.weight", FACTOR_A },
    { ".lora_b.default.weight", FACTOR_B },
    { ".lora_b.default.bias", FACTOR_B_BIAS },
    { ".lora_magnitude_vector", FACTOR_MAGNITUDE },
    { ".lora_magnitude_vector.weight", FACTOR_MAGNITUDE },
    { ".lora_magnitude_vector.default", FACTOR_MAGNITUDE },
    { ".lora_magnitude_vector.default.weight", FACTOR_MAGNITUDE },
    { ".lora_embedding_a", FACTOR_EMBEDDING_A },
    { ".lora_embedding_b", FACTOR_EMBEDDING_B },
    { ".lora_embedding_a.default", FACTOR_EMBEDDING_A },
    { ".lora_embedding_b.default", FACTOR_EMBEDDING_B },
    { ".token_adapter.trainable_tokens_delta", FACTOR_TOKENS },
    { ".token_adapter.trainable_tokens_delta.default", FACTOR_TOKENS },
    { ".trainable_tokens_delta", FACTOR_TOKENS },
    { ".mindpet_delta_lora_a", FACTOR_A },
    { ".mindpet_delta_lora_b", FACTOR_B },
    { ".tk_delta_lora_a", FACTOR_A },
    { ".tk_delta_lora_b", FACTOR_B },
    { ".lora_a", FACTOR_A },
    { ".lora_b", FACTOR_B },
    { ".base_layer.weight", FACTOR_WEIGHT },
    { ".base_layer.bias", FACTOR_BIAS },
    { ".token_adapter.base_layer.weight", FACTOR_WEIGHT },
    { ".token_adapter.base_layer.bias", FACTOR_BIAS },
    { ".weight", FACTOR_WEIGHT },
    { ".bias", FACTOR_BIAS },
};

/* Removes a part of the path, given with its dot. False: it has no such part. */
static bool cut_part(char *path, const char *part)
{
    size_t n = strlen(part);
    for (char *at = strstr(path, part); at; at = strstr(at + 1, part)) {
        if (at[n] != '.' && at[n] != '\0')
            continue;
        memmove(at, at + n, strlen(at + n) + 1);
        return true;
    }
    return false;
}

enum factor adapter_split_name(char *path, const char *name)
{
    static const char WRAPPER[] = "base_model.model.";
    if (strncmp(name, WRAPPER, sizeof WRAPPER - 1) == 0)
        name += sizeof WRAPPER - 1;
    size_t n = strlen(name);
    size_t n_longest = 0;
    enum factor factor = FACTOR_COUNT;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        size_t n_end = strlen(ENDS[i].end);
        if (n <= n_end || n_end <= n_longest || n - n_end >= LIMIT_TENSOR_NAME_BYTES ||
            strcasecmp(name + n - n_end, ENDS[i].end) != 0)
            continue;
        n_longest = n_end;
        factor = ENDS[i].factor;
    }
    if (factor == FACTOR_COUNT)
        return factor;
    memcpy(path, name, n - n_longest);
    path[n - n_longest] = '\0';
    if (cut_part(path, ".original_module"))
        return FACTOR_ORIGINAL;
    if (cut_part(path, ".modules_to_save"))
        cut_part(path, ".default");
    return factor;
}

/* Whether the texts are equal, or one is the end of the other after a dot: prefixes of wrapper
 * classes may be missing in either. */
static bool is_end_of(const char *a, size_t n_a, const char *b, size_t n_b)
{
    if (n_a > n_b)
        return is_end_of(b, n_b, a, n_a);
    return memcmp(b + n_b - n_a, a, n_a) == 0 &&
           (n_a == n_b || n_a == 0 || b[n_b - n_a - 1] == '.' || a[0] == '.');
}

/* pattern: of a weight, "%d" for the layer, or without one; then *layer is -1. */
static bool name_matches(const char *pattern, const char *path, int *layer)
{
    size_t n_path = strlen(path), n_pattern = strlen(pattern);
    static const char WEIGHT[] = ".weight";
    *layer = -1;
    if (n_pattern < sizeof WEIGHT || strcmp(pattern + n_pattern - (sizeof WEIGHT - 1), WEIGHT) != 0)
        return false;
    n_pattern -= sizeof WEIGHT - 1;
    const char *mark = strstr(pattern, "%d");
    if (!mark)
        return is_end_of(pattern, n_pattern, path, n_path);
    size_t n_head = (size_t)(mark - pattern), n_tail = n_pattern - n_head - 2;
    if (n_path < n_tail || memcmp(path + n_path - n_tail, mark + 2, n_tail) != 0)
        return false;
    size_t end = n_path - n_tail, begin = end;
    while (begin > 0 && path[begin - 1] >= '0' && path[begin - 1] <= '9')
        begin--;
    if (begin == end || end - begin > 6 || (begin > 0 && path[begin - 1] != '.'))
        return false;
    *layer = atoi(path + begin);
    return is_end_of(pattern, n_head, path, begin);
}

/* The rows of part i of a slot's matrix, or of all its parts, where they are one tensor. */
static void place_rows(struct adapter_place *out, const struct attn_desc *a, const struct tensor_names *names,
                       const struct slot_shape *shape, int part, bool is_fused, bool permutes)
{
    bool is_qkv = slot_named_as(out->slot) == SLOT_QKV;
    out->n_in = shape->n_in;
    out->n_out = is_fused ? shape->n_out : shape->rows[part];
    for (int i = 0; i < part; i++)
        out->out_begin += shape->rows[i];
    out->head_dim = a->head_dim;
    if (is_qkv && is_fused && names->is_by_head)
        out->order = (struct head_order){ .head_dim = a->head_dim, .n_queries = a->n_heads / a->n_kv_heads };
    if (is_qkv && permutes && a->rope == ROPE_INTERLEAVED) { /* all but the values, which come last */
        int n_values = a->n_kv_heads * a->head_dim;
        bool has_values = is_fused || (out->slot != SLOT_TOP_QUERY && part == shape->n_parts - 1);
        out->n_permuted = has_values ? out->n_out - n_values : out->n_out;
    }
}

static bool allows(enum place_kind kind, enum weight_slot slot)
{
    const struct slot_info *info = slot_info(slot);
    if (kind == PLACE_LINEAR || info->can_adapt)
        return info->can_adapt;
    return slot == SLOT_EMBEDDING || slot == SLOT_ROUTER ||
           (info->kind == SLOT_NORM && info->columns == DIM_MODEL);
}

/* Searches one layout. names: with is_top those of the top layer. permutes: rows of q and k are
 * stored in another order than they run, where they rotate as interleaved pairs. */
static bool find_in(struct adapter_place *out, const char *path, enum place_kind kind,
                    const struct model_desc *d, const struct tensor_names *names, bool is_top, bool permutes)
{
    for (enum weight_slot slot = 0; slot < SLOT_COUNT; slot++) {
        const struct slot_info *info = slot_info(slot);
        const char *const *patterns = tensor_names_of(names, slot);
        int last = d->n_layers - 1;
        if (!allows(kind, slot) || (is_top && !info->is_of_layer) ||
            (slot == SLOT_OUTPUT && d->has_unit_output))
            continue;
        for (int i = 0; i < MAX_PARTS && patterns[i]; i++) {
            int layer;
            if (!name_matches(patterns[i], path, &layer))
                continue;
            if (is_top)
                layer = last;
            else if (d->has_top_query && layer == last)
                return false;                                    /* the top layer has its own names */
            int known = layer >= 0 && layer <= last ? layer : 0; /* the caller refuses others */
            struct slot_shape shape = slot_shape(d, slot, known);
            if ((info->is_of_layer && !slot_is_in(d, slot, known)) || i >= shape.n_parts)
                continue;
            *out = (struct adapter_place){ .slot = slot,
                                           .layer = layer < 0 ? 0 : layer,
                                           .is_transposed = tensor_names_transposes(names, slot),
                                           .is_less_one = info->kind == SLOT_NORM &&
                                                          names->has_norms_less_one };
            place_rows(out, &model_layer(d, known)->attn, names, &shape, i, shape.n_parts > 1 && !patterns[1],
                       permutes);
            return true;
        }
    }
    return false;
}

static bool find_in_family(struct adapter_place *out, const char *path, enum place_kind kind,
                           const struct model_desc *d, const struct family *family, bool is_gguf)
{
    for (int i = 0; i < family->n_layouts; i++) {
        const struct tensor_names *names = &family->layouts[i];
        bool permutes = is_gguf && !names->is_gguf && family->is_permuted_in_gguf;
        if (find_in(out, path, kind, d, names, false, permutes) ||
            (names->top && find_in(out, path, kind, d, names->top, true, permutes)))
            return true;
    }
    return false;
}

bool adapter_find_place(struct adapter_place *out, const char *path, enum place_kind kind,
                        const struct model_desc *d, const struct family *family, bool is_gguf)
{
    char text[LIMIT_TENSOR_NAME_BYTES];
    path = text_part_name(path, text, sizeof text);
    if (path && find_in_family(out, path, kind, d, family, is_gguf))
        return true;
    for (int i = 0; path && is_gguf && FAMILIES[i]; i++) {
        if (FAMILIES[i] != family && strcmp(FAMILIES[i]->gguf_architecture, family->gguf_architecture) == 0 &&
            find_in_family(out, path, kind, d, FAMILIES[i], is_gguf))
            return true;
    }
    return false;
}
