/* Finds the role of a tensor by its name, and reads splits from manifests. */
#include "checkpoint/shards/shard_manifest.h"
#include "model/description/family.h"
#include "model/ranks/split.h"
#include "model/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a number at the beginning of *name, below limit, and advances *name past it. */
static bool read_number(const char **name, long limit, int *out)
{
    if (**name < '0' || **name > '9')
        return false;
    char *end;
    long number = strtol(*name, &end, 10);
    *name = end;
    *out = (int)(number < limit ? number : 0);
    return number < limit;
}

/* Whether name is pattern with a layer's number for "%d", and an expert's for a second one, or
 * pattern itself; *layer is the layer's number, or unchanged. */
static bool fits(const char *pattern, const char *name, int *layer)
{
    int numbers[2] = { 0 };
    if (strlen(name) > LIMIT_TENSOR_NAME_BYTES)
        return false;
    for (int i = 0; i < 2; i++) {
        const char *mark = strstr(pattern, "%d");
        if (!mark)
            break;
        size_t n = (size_t)(mark - pattern);
        if (strncmp(pattern, name, n) != 0)
            return false;
        name += n;
        pattern = mark + 2;
        if (!read_number(&name, i == 0 ? LIMIT_LAYERS : LIMIT_EXPERTS, &numbers[i]))
            return false;
        if (i == 0)
            *layer = numbers[0];
    }
    return strcmp(pattern, name) == 0;
}

/* pattern NULL: no such tensor. */
static bool find(struct split_tensor *out, const char *pattern, const char *name, int *layer)
{
    char bias[LIMIT_TENSOR_NAME_BYTES];
    if (!pattern)
        return false;
    out->is_bias = false;
    if (fits(pattern, name, layer))
        return true;
    weights_bias_name(bias, sizeof bias, pattern);
    out->is_bias = fits(bias, name, layer);
    return out->is_bias;
}

/* Searches the parts of one slot, in a layer that first to last name. The layer of a name without
 * a number is the first. */
static bool find_in_slot(struct split_tensor *out, const struct model_desc *d,
                         const struct tensor_names *names, const char *name, enum weight_slot slot, int first,
                         int last)
{
    const char *const *patterns = tensor_names_of(names, slot);
    for (int i = 0; i < MAX_PARTS && patterns[i]; i++) {
        int layer = first;
        struct split_tensor t = { .is_transposed = tensor_names_transposes(names, slot),
                                  .is_merged = slot_info(slot)->is_of_experts &&
                                               !weights_is_by_expert(patterns[i]) };
        if (!find(&t, patterns[i], name, &layer) || layer < first || layer > last ||
            !slot_is_in(d, slot, layer))
            continue;
        int n_parts = slot_shape(d, slot, layer).n_parts;
        bool is_fused = n_parts > 1 && !patterns[1];
        t.target = (struct split_target){ .slot = slot,
                                          .layer = layer,
                                          .part = is_fused ? SPLIT_ALL_PARTS : i,
                                          .by_head = (is_fused && slot == SLOT_QKV && names->is_by_head) ||
                                                     (slot == SLOT_K_UP && names->has_fused_up),
                                          .alternates = is_fused && slot == SLOT_EXPERT_GATE_UP &&
                                                        names->alternates };
        *out = t;
        return i < n_parts;
    }
    return false;
}

struct split_tensor split_find(const struct model_desc *d, const struct tensor_names *names, const char *name)
{
    struct split_tensor t;
    int last = model_n_loaded(d) - 1, last_plain = d->has_top_query ? last - 1 : last;
    for (enum weight_slot slot = 0; slot < SLOT_COUNT; slot++) {
        const struct slot_info *info = slot_info(slot);
        if (info->kind != SLOT_MATRIX && split_kind(slot) != SPLIT_ELEMENTS)
            continue;
        if (find_in_slot(&t, d, names, name, slot, 0, last_plain))
            return t;
        if (d->has_top_query && info->is_of_layer && find_in_slot(&t, d, names->top, name, slot, last, last))
            return t;
    }
    return (struct split_tensor){ .target.slot = SLOT_COUNT };
}

int split_dim(const struct split_tensor *t)
{
    enum split_kind kind = split_kind(t->target.slot);
    if (kind == SPLIT_WHOLE || (t->is_bias && kind == SPLIT_COLUMNS))
        return -1;
    if (kind == SPLIT_ELEMENTS)
        return 0;
    return t->is_merged + (!t->is_bias && (kind == SPLIT_COLUMNS) != t->is_transposed);
}

/* ---- manifests ---- */

/* The kinds of layers in a manifest. That of multi-token prediction is split like the last layer, whether it is used or not. */
static int n_listed_kinds(const struct model_desc *d)
{
    return d->n_kinds - d->uses_mtp;
}

/* An empty range is left out. */
static bool put_range(json_t *object, const char *key, struct split_range range)
{
    return range.begin == range.end ||
           json_object_set_new(object, key, json_pack("[i, i]", range.begin, range.end)) == 0;
}

json_t *split_to_json(const struct split *s, const struct model_desc *d)
{
    json_t *kinds = json_array();
    for (int i = 0; i < n_listed_kinds(d); i++) {
        const struct split_layer *l = &s->kinds[i];
        json_t *kind = json_pack("{s:[i, i], s:[i, i]}", "heads", l->heads.begin, l->heads.end, "kv_heads",
                                 l->kv_heads.begin, l->kv_heads.end);
        if (!put_range(kind, "ffn", l->ffn) || !put_range(kind, "expert_ffn", l->expert_ffn) ||
            !put_range(kind, "shared_ffn", l->shared_ffn) || json_array_append(kinds, kind) != 0) {
            json_decref(kind);
            json_decref(kinds);
            return NULL;
        }
        json_decref(kind);
    }
    return json_pack("{s:o, s:[i, i]}", "kinds", kinds, "vocab", s->vocab.begin, s->vocab.end);
}

static bool read_range(struct split_range *out, const json_t *object, const char *key, int n)
{
    const json_t *range = json_object_get(object, key);
    const json_t *begin = json_array_get(range, 0), *end = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) <= json_integer_value(begin) ||
        json_integer_value(end) > n)
        return false;
    *out = (struct split_range){ (int)json_integer_value(begin), (int)json_integer_value(end) };
    return true;
}

/* The same of a width, which a layer may not have: then there is no such range. */
static bool read_width(struct split_range *out, const json_t *object, const char *key, int n)
{
    if (n == 0)
        return !json_object_get(object, key);
    return read_range(out, object, key, n);
}

/* Every query head must be on the same rank as its KV head. */
static bool heads_meet(const struct split_layer *s, const struct attn_desc *a)
{
    int n_sharing = a->n_heads / a->n_kv_heads;
    return s->heads.begin / n_sharing == s->kv_heads.begin &&
           (s->heads.end - 1) / n_sharing == s->kv_heads.end - 1 &&
           (s->heads.end - s->heads.begin) % (s->kv_heads.end - s->kv_heads.begin) == 0;
}

/* The name of the key that does not fit; NULL: all fit. */
static const char *read_layer(struct split_layer *out, const struct layer_desc *l, int n_ranks,
                              const json_t *object)
{
    struct split_layer s = { .n_kv_copies = 1 };
    if (!read_range(&s.heads, object, "heads", l->attn.n_heads))
        return "heads";
    if (!read_range(&s.kv_heads, object, "kv_heads", l->attn.n_kv_heads) || !heads_meet(&s, &l->attn))
        return "kv_heads";
    if (!read_width(&s.ffn, object, "ffn", l->ffn.d_ff))
        return "ffn";
    if (!read_width(&s.expert_ffn, object, "expert_ffn", l->ffn.experts.d_ff))
        return "expert_ffn";
    if (!read_width(&s.shared_ffn, object, "shared_ffn", l->ffn.experts.d_shared))
        return "shared_ffn";
    if (l->attn.n_kv_heads < n_ranks)
        s.n_kv_copies = n_ranks / l->attn.n_kv_heads;
    *out = s;
    return NULL;
}

enum tutti_status split_read(struct split *out, const struct model_desc *d, const struct shard_manifest *m,
                             struct tutti_error *err)
{
    struct split s = { .n_ranks = m->n_ranks, .rank = m->rank };
    char fault[64] = "";
    bool has_kinds = m->version >= SHARD_KINDS_VERSION;
    const json_t *kinds = json_object_get(m->strategy, "kinds");
    int kind = 0;
    if (strcmp(m->family, d->family) != 0)
        snprintf(fault, sizeof fault, "family");
    else if ((has_kinds ? json_array_size(kinds) : 1) != (size_t)n_listed_kinds(d))
        snprintf(fault, sizeof fault, "strategy.kinds");
    else if (!read_range(&s.vocab, m->strategy, "vocab", d->n_vocab))
        snprintf(fault, sizeof fault, "strategy.vocab");
    for (int i = 0; i < n_listed_kinds(d) && fault[0] == '\0'; i++) {
        kind = i;
        const json_t *object = has_kinds ? json_array_get(kinds, (size_t)i) : m->strategy;
        const char *key = read_layer(&s.kinds[i], &d->kinds[i], m->n_ranks, object);
        if (key && has_kinds)
            snprintf(fault, sizeof fault, "strategy.kinds[%d].%s", i, key);
        else if (key)
            snprintf(fault, sizeof fault, "strategy.%s", key);
    }
    if (fault[0] != '\0')
        return error_set(
            err, TUTTI_E_FORMAT,
            "%s: %s: it does not fit config.json (a %s model of %d heads, %d KV heads, feed-forward "
            "width %d, vocabulary %d)",
            m->path, fault, d->family, d->kinds[kind].attn.n_heads, d->kinds[kind].attn.n_kv_heads,
            d->kinds[kind].ffn.d_ff, d->n_vocab);
    if (d->uses_mtp)
        s.kinds[d->kind_of[d->n_layers]] = s.kinds[d->kind_of[d->n_layers - 1]];
    *out = s;
    return TUTTI_OK;
}
