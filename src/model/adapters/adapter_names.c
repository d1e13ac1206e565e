#include "model/adapters/adapter_names.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Suffixes of names, compared case-insensitively: PEFT's, which may contain the adapter's name;
 * MindFormers', old and new. */
static const struct {
    const char *end;
    enum factor factor;
} ENDS[] = {
    { ".lora_a.weight", FACTOR_A },
    { ".lora_b.weight", FACTOR_B },
    { ".lora_a.default.weight", FACTOR_A },
    { ".lora_b.default.weight", FACTOR_B },
    { ".mindpet_delta_lora_a", FACTOR_A },
    { ".mindpet_delta_lora_b", FACTOR_B },
    { ".tk_delta_lora_a", FACTOR_A },
    { ".tk_delta_lora_b", FACTOR_B },
    { ".base_layer.weight", FACTOR_BASE },
    { ".lora_a", FACTOR_A },
    { ".lora_b", FACTOR_B },
};

enum factor adapter_split_name(char *path, const char *name)
{
    static const char WRAPPER[] = "base_model.model.";
    if (strncmp(name, WRAPPER, sizeof WRAPPER - 1) == 0)
        name += sizeof WRAPPER - 1;
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        size_t n_end = strlen(ENDS[i].end);
        if (n <= n_end || n - n_end >= LIMIT_TENSOR_NAME_BYTES ||
            strcasecmp(name + n - n_end, ENDS[i].end) != 0)
            continue;
        memcpy(path, name, n - n_end);
        path[n - n_end] = '\0';
        return ENDS[i].factor;
    }
    return FACTOR_NONE;
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
static bool matches(const char *pattern, const char *path, int *layer)
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

void adapter_site_shape(const struct model_desc *d, enum site site, int layer, int *n_in, int *n_out)
{
    int q = d->n_heads * d->head_dim, kv = 2 * d->n_kv_heads * d->head_dim;
    bool is_top = d->has_top_query && layer == d->n_layers - 1;
    *n_in = d->d_model;
    switch (site) {
    case SITE_QKV:
        *n_out = is_top ? kv : q + kv;
        break;
    case SITE_TOP_QUERY:
        *n_out = is_top ? q : 0;
        break;
    case SITE_ATTN_OUT:
        *n_in = q;
        *n_out = d->d_model;
        break;
    case SITE_GATE_UP:
        *n_out = d->has_gate ? 2 * d->d_ff : d->d_ff;
        break;
    case SITE_DOWN:
        *n_in = d->d_ff;
        *n_out = d->d_model;
        break;
    default: /* SITE_OUTPUT */
        *n_out = d->n_vocab;
    }
}

/* part: of qkv: 0, 1, 2 if they are three tensors, else 0. */
static void place_qkv(struct adapter_place *out, const struct model_desc *d, const struct tensor_names *names,
                      int part, bool permutes)
{
    int q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim;
    bool is_fused = !names->qkv[1], is_top = d->has_top_query && out->layer == d->n_layers - 1;
    out->site = SITE_QKV;
    out->n_out = is_fused ? q + 2 * kv : part == 0 ? q : kv;
    out->out_begin = part == 0 ? 0 : part == 1 ? q : q + kv;
    out->by_head_dim = is_fused && names->is_by_head ? d->head_dim : 0;
    out->n_permuted = !permutes ? 0 : is_fused ? q + kv : part < 2 ? out->n_out : 0;
    if (is_top && part == 0)
        out->site = SITE_TOP_QUERY;
    else if (is_top)
        out->out_begin -= q;
}

/* Searches one layout. names: with is_top those of the top layer. */
static bool find_in(struct adapter_place *out, const char *path, const struct model_desc *d,
                    const struct tensor_names *names, bool is_top, bool permutes)
{
    const struct {
        const char *pattern;
        enum site site;
        int part;
    } all[] = {
        { names->qkv[0], SITE_QKV, 0 },         { names->qkv[1], SITE_QKV, 1 },
        { names->qkv[2], SITE_QKV, 2 },         { names->attn_out, SITE_ATTN_OUT, 0 },
        { names->gate_up[0], SITE_GATE_UP, 0 }, { names->gate_up[1], SITE_GATE_UP, 1 },
        { names->down, SITE_DOWN, 0 },          { is_top ? NULL : names->output, SITE_OUTPUT, 0 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int layer;
        if (!all[i].pattern || !matches(all[i].pattern, path, &layer))
            continue;
        if (is_top)
            layer = d->n_layers - 1;
        else if (d->has_top_query && layer == d->n_layers - 1)
            return false; /* the top layer has its own names */
        *out = (struct adapter_place){ .site = all[i].site, .layer = layer < 0 ? 0 : layer };
        adapter_site_shape(d, out->site, out->layer, &out->n_in, &out->n_out);
        if (out->site == SITE_QKV) {
            place_qkv(out, d, names, all[i].part, permutes);
        } else if (out->site == SITE_GATE_UP && names->gate_up[1]) {
            out->n_out = d->d_ff;
            out->out_begin = all[i].part * d->d_ff;
        }
        return true;
    }
    return false;
}

bool adapter_find_place(struct adapter_place *out, const char *path, const struct model_desc *d,
                        const struct family *family, bool is_gguf)
{
    for (int i = 0; i < family->n_layouts; i++) {
        const struct tensor_names *names = &family->layouts[i];
        bool permutes = is_gguf && !names->is_gguf && family->is_permuted_in_gguf &&
                        d->rope == ROPE_INTERLEAVED;
        if (find_in(out, path, d, names, false, permutes) ||
            (names->top && find_in(out, path, d, names->top, true, permutes)))
            return true;
    }
    return false;
}
