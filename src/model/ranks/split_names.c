/* Finds the role of a tensor by its name, and reads splits from manifests. */
#include "checkpoint/shards/shard_manifest.h"
#include "model/description/family.h"
#include "model/ranks/split.h"
#include "model/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether name is pattern with a layer's number for "%d", or pattern itself; *layer is that
 * number, or unchanged. */
static bool fits(const char *pattern, const char *name, int *layer)
{
    const char *mark = strstr(pattern, "%d");
    if (!mark)
        return strcmp(pattern, name) == 0;
    size_t n = (size_t)(mark - pattern);
    if (strncmp(pattern, name, n) != 0 || name[n] < '0' || name[n] > '9' || strlen(name + n) > 256)
        return false;
    char *end;
    long number = strtol(name + n, &end, 10);
    if (number >= LIMIT_LAYERS || strcmp(mark + 2, end) != 0)
        return false;
    *layer = (int)number;
    return true;
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

/* Searches the parts of one slot. *layer: of the name; -1: it has none. */
static bool find_slot(struct split_tensor *out, const struct model_desc *d, const struct tensor_names *names,
                      const char *name, enum weight_slot slot, int *layer)
{
    const char *const *patterns = tensor_names_of(names, slot);
    struct slot_shape shape = slot_shape(d, slot);
    bool is_fused = shape.n_parts > 1 && !patterns[1];
    for (int i = 0; i < (is_fused ? 1 : shape.n_parts); i++) {
        *layer = -1;
        *out = (struct split_tensor){
            .target = { .slot = slot,
                        .part = is_fused ? SPLIT_ALL_PARTS : i,
                        .by_head = is_fused && slot == SLOT_QKV && names->is_by_head },
            .is_transposed = tensor_names_transposes(names, slot),
        };
        if (find(out, patterns[i], name, layer))
            return true;
    }
    return false;
}

struct split_tensor split_find(const struct model_desc *d, const struct tensor_names *names, const char *name)
{
    struct split_tensor t;
    int last = d->n_layers - 1, n_plain = d->has_top_query ? last : d->n_layers, layer;
    for (enum weight_slot slot = 0; slot < SLOT_COUNT; slot++) {
        const struct slot_info *info = slot_info(slot);
        if (info->kind != SLOT_MATRIX)
            continue;
        bool is_in_plain = !info->is_of_layer || slot_is_in(d, slot, 0);
        if (is_in_plain && find_slot(&t, d, names, name, slot, &layer) && layer < n_plain)
            return t;
        bool is_in_top = d->has_top_query && info->is_of_layer && slot_is_in(d, slot, last);
        if (is_in_top && find_slot(&t, d, names->top, name, slot, &layer) &&
            (layer == last || layer == -1)) /* its names may have no number */
            return t;
    }
    return (struct split_tensor){ .target.slot = SLOT_COUNT };
}

int split_dim(const struct split_tensor *t)
{
    enum split_kind kind = split_kind(t->target.slot);
    if (kind == SPLIT_WHOLE || (t->is_bias && kind == SPLIT_COLUMNS))
        return -1;
    if (t->is_bias)
        return 0;
    return (kind == SPLIT_COLUMNS) != t->is_transposed;
}

/* ---- manifests ---- */

json_t *split_to_json(const struct split *s)
{
    return json_pack("{s:[i, i], s:[i, i], s:[i, i], s:[i, i]}", "heads", s->heads.begin, s->heads.end,
                     "kv_heads", s->kv_heads.begin, s->kv_heads.end, "ffn", s->ffn.begin, s->ffn.end, "vocab",
                     s->vocab.begin, s->vocab.end);
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

/* Every query head must be on the same rank as its KV head. */
static bool heads_meet(const struct split *s, const struct model_desc *d)
{
    int n_sharing = d->n_heads / d->n_kv_heads;
    return s->heads.begin / n_sharing == s->kv_heads.begin &&
           (s->heads.end - 1) / n_sharing == s->kv_heads.end - 1 &&
           (s->heads.end - s->heads.begin) % (s->kv_heads.end - s->kv_heads.begin) == 0;
}

enum tutti_status split_read(struct split *out, const struct model_desc *d, const struct shard_manifest *m,
                             struct tutti_error *err)
{
    struct split s = { .n_ranks = m->n_ranks, .rank = m->rank, .n_kv_copies = 1 };
    const char *fault = NULL;
    if (strcmp(m->family, d->family) != 0)
        fault = "family";
    else if (!read_range(&s.heads, m->strategy, "heads", d->n_heads))
        fault = "strategy.heads";
    else if (!read_range(&s.kv_heads, m->strategy, "kv_heads", d->n_kv_heads) || !heads_meet(&s, d))
        fault = "strategy.kv_heads";
    else if (!read_range(&s.ffn, m->strategy, "ffn", d->d_ff))
        fault = "strategy.ffn";
    else if (!read_range(&s.vocab, m->strategy, "vocab", d->n_vocab))
        fault = "strategy.vocab";
    if (fault)
        return error_set(
            err, TUTTI_E_FORMAT,
            "%s: %s: it does not fit config.json (a %s model of %d heads, %d KV heads, feed-forward "
            "width %d, vocabulary %d)",
            m->path, fault, d->family, d->n_heads, d->n_kv_heads, d->d_ff, d->n_vocab);
    if (d->n_kv_heads < m->n_ranks)
        s.n_kv_copies = m->n_ranks / d->n_kv_heads;
    *out = s;
    return TUTTI_OK;
}
