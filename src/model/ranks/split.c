#include "model/ranks/split.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int range_n(struct split_range range)
{
    return range.end - range.begin;
}

/* Divides n elements over the ranks in whole units, as evenly as possible; the remainder of n
 * goes to the last rank. */
static struct split_range share(int n, int unit, int n_ranks, int rank)
{
    int64_t n_units = n / unit + (n % unit != 0);
    int64_t begin = n_units * rank / n_ranks * unit, end = n_units * (rank + 1) / n_ranks * unit;
    return (struct split_range){ .begin = (int)begin, .end = end < n ? (int)end : n };
}

static bool heads_divide(const struct attn_desc *a, int n_ranks)
{
    bool kv_divide = a->n_kv_heads >= n_ranks ? a->n_kv_heads % n_ranks == 0 : n_ranks % a->n_kv_heads == 0;
    return a->n_heads % n_ranks == 0 && kv_divide && (n_ranks == 1 || !a->norms_all_heads);
}

/* The unit for splitting a width. Plain types may be split anywhere, but units of 32 suit vector
 * registers and a later quantization. Smaller units are used if otherwise a rank had an eighth
 * more than another. */
static int width_unit(int width, int block, int n_ranks)
{
    int unit = block > 1 ? block : 32;
    while (block <= 1 && unit > 1 && (width % unit != 0 || width / unit < 8 * n_ranks))
        unit /= 2;
    return unit;
}

/* The widths of a feed-forward block that are dealt out, each with the range of a rank. */
enum { FFN_DENSE, FFN_EXPERT, FFN_SHARED, N_FFN_WIDTHS };

struct ffn_width {
    const char *name; /* for messages */
    int width, block; /* width 0: the layer has none */
};

static struct ffn_width ffn_width(const struct ffn_desc *f, const struct split_blocks *blocks, int which)
{
    if (which == FFN_DENSE)
        return (struct ffn_width){ "feed-forward layer's", f->d_ff, blocks->down };
    if (which == FFN_EXPERT)
        return (struct ffn_width){ "experts'", f->experts.d_ff, blocks->expert_down };
    return (struct ffn_width){ "shared expert's", f->experts.d_shared, blocks->shared_down };
}

/* The output's rows are packed 16 by 16. */
static int vocab_unit(const struct model_desc *d, int n_ranks)
{
    return d->n_vocab / 16 >= n_ranks ? 16 : 1;
}

static int attn_columns(const struct attn_desc *a, int n_ranks)
{
    return a->n_heads / n_ranks * attn_value_dim(a);
}

/* Whether splits by columns fall between blocks. */
static bool attn_divides(const struct attn_desc *a, const struct split_blocks *blocks, int n_ranks)
{
    return n_ranks == 1 || blocks->attn_out <= 1 || attn_columns(a, n_ranks) % blocks->attn_out == 0;
}

static bool width_divides(const struct ffn_width *w, int n_ranks)
{
    int unit = width_unit(w->width, w->block, n_ranks);
    return n_ranks == 1 || w->width == 0 || (w->width / unit >= n_ranks && w->width % unit == 0);
}

static bool ffn_divides(const struct ffn_desc *f, const struct split_blocks *blocks, int n_ranks)
{
    bool divides = true;
    for (int i = 0; i < N_FFN_WIDTHS; i++) {
        struct ffn_width w = ffn_width(f, blocks, i);
        divides = divides && width_divides(&w, n_ranks);
    }
    return divides;
}

static bool layers_divide(const struct model_desc *d, const struct split_blocks *blocks, int n_ranks)
{
    for (int i = 0; i < d->n_kinds; i++) {
        const struct layer_desc *l = &d->kinds[i];
        if (!heads_divide(&l->attn, n_ranks) || !attn_divides(&l->attn, blocks, n_ranks) ||
            !ffn_divides(&l->ffn, blocks, n_ranks))
            return false;
    }
    return true;
}

/* Lists every possible number of ranks: "1, 2, 4". */
static void list_possible(const struct model_desc *d, const struct split_blocks *blocks, char *text,
                          size_t size)
{
    text[0] = '\0';
    for (int n = 1; n <= d->kinds[0].attn.n_heads && n <= LIMIT_RANKS && n <= d->n_vocab; n++) {
        size_t used = strlen(text);
        if (layers_divide(d, blocks, n) && used + 8 < size)
            snprintf(text + used, size - used, "%s%d", n > 1 ? ", " : "", n);
    }
}

static enum tutti_status check_layer(const struct layer_desc *l, const struct split_blocks *blocks,
                                     int n_ranks, const char *possible, struct tutti_error *err)
{
    const struct attn_desc *a = &l->attn;
    if (n_ranks > 1 && a->norms_all_heads)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "tp",
            "tp %d: the norms of q and k are over all heads together, which no rank has, expected tp %s",
            n_ranks, possible);
    if (!heads_divide(a, n_ranks))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "tp",
            "tp %d: %d heads with %d KV heads cannot be dealt out over %d ranks, expected tp %s", n_ranks,
            a->n_heads, a->n_kv_heads, n_ranks, possible);
    if (!attn_divides(a, blocks, n_ranks))
        return error_set_param(err, TUTTI_E_ARGUMENT, "tp",
                               "tp %d: of attention's output matrix each rank would have %d columns (%d "
                               "heads of %d), no multiple "
                               "of its blocks of %d weights, expected tp %s, or weights of another type",
                               n_ranks, attn_columns(a, n_ranks), a->n_heads / n_ranks, attn_value_dim(a),
                               blocks->attn_out, possible);
    for (int i = 0; i < N_FFN_WIDTHS; i++) {
        struct ffn_width w = ffn_width(&l->ffn, blocks, i);
        if (!width_divides(&w, n_ranks))
            return error_set_param(err, TUTTI_E_ARGUMENT, "tp",
                                   "tp %d: the %d columns of the %s down matrix are not as many blocks of %d "
                                   "as there are ranks, expected tp %s, or weights of another type",
                                   n_ranks, w.width, w.name, width_unit(w.width, w.block, n_ranks), possible);
    }
    return TUTTI_OK;
}

static enum tutti_status check(const struct model_desc *d, const struct split_blocks *blocks, int n_ranks,
                               struct tutti_error *err)
{
    char possible[256];
    if (n_ranks < 1 || n_ranks > LIMIT_RANKS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tp", "tp %d, expected 1 to %d ranks", n_ranks,
                               LIMIT_RANKS);
    list_possible(d, blocks, possible, sizeof possible);
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < d->n_kinds && st == TUTTI_OK; i++)
        st = check_layer(&d->kinds[i], blocks, n_ranks, possible, err);
    if (st == TUTTI_OK && d->n_vocab < n_ranks)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tp",
                               "tp %d: a vocabulary of %d is too small, expected tp %s", n_ranks, d->n_vocab,
                               possible);
    return st;
}

static struct split_layer deal_layer(const struct layer_desc *l, const struct split_blocks *blocks,
                                     int n_ranks, int rank)
{
    struct split_layer s = { .heads = share(l->attn.n_heads, 1, n_ranks, rank), .n_kv_copies = 1 };
    if (l->attn.n_kv_heads >= n_ranks) {
        s.kv_heads = share(l->attn.n_kv_heads, 1, n_ranks, rank);
    } else {
        s.n_kv_copies = n_ranks / l->attn.n_kv_heads;
        s.kv_heads.begin = rank / s.n_kv_copies;
        s.kv_heads.end = s.kv_heads.begin + 1;
    }
    struct split_range *const ranges[N_FFN_WIDTHS] = { &s.ffn, &s.expert_ffn, &s.shared_ffn };
    for (int i = 0; i < N_FFN_WIDTHS; i++) {
        struct ffn_width w = ffn_width(&l->ffn, blocks, i);
        *ranges[i] = share(w.width, width_unit(w.width, w.block, n_ranks), n_ranks, rank);
    }
    return s;
}

static struct split deal(const struct model_desc *d, const struct split_blocks *blocks, int n_ranks, int rank)
{
    struct split s = { .n_ranks = n_ranks,
                       .rank = rank,
                       .vocab = share(d->n_vocab, vocab_unit(d, n_ranks), n_ranks, rank) };
    for (int i = 0; i < d->n_kinds; i++)
        s.kinds[i] = deal_layer(&d->kinds[i], blocks, n_ranks, rank);
    return s;
}

enum tutti_status split_make(struct split *out, const struct model_desc *d, const struct split_blocks *blocks,
                             int n_ranks, int rank, struct tutti_error *err)
{
    enum tutti_status st = check(d, blocks, n_ranks, err);
    if (st != TUTTI_OK)
        return st;
    assert(rank >= 0 && rank < n_ranks);
    *out = deal(d, blocks, n_ranks, rank);
    return TUTTI_OK;
}

struct split split_whole(const struct model_desc *d)
{
    return deal(d, &(struct split_blocks){ 0 }, 1, 0);
}

void split_widen(struct split_blocks *blocks, enum weight_slot slot, int n)
{
    enum dim columns = slot_info(slot)->columns;
    int *block = columns == DIM_ATTENDED    ? &blocks->attn_out
                 : columns == DIM_EXPERT_FF ? &blocks->expert_down
                 : columns == DIM_SHARED_FF ? &blocks->shared_down
                                            : &blocks->down;
    *block = *block > n ? *block : n;
}

struct split_blocks split_blocks_of(const struct model_desc *d, int n)
{
    struct split_blocks blocks = { 0 };
    for (struct slot_at at = SLOT_BEGIN; slot_next(d, &at);)
        if (split_kind(at.slot) == SPLIT_COLUMNS && slot_shape(d, at.slot, at.layer).n_in % n == 0)
            split_widen(&blocks, at.slot, n);
    return blocks;
}

/* The part of a dimension that a rank owns, as a range of units of *unit elements. False: all ranks hold the
 * whole dimension. */
static bool owned(struct split_range *out, int *unit, const struct split *s, const struct model_desc *d,
                  enum dim dim, int layer)
{
    const struct split_layer *own = &s->kinds[d->kind_of[layer]];
    const struct attn_desc *a = &model_layer(d, layer)->attn;
    bool is_of_heads = dim == DIM_QUERIES || dim == DIM_KV || dim == DIM_VALUES;
    *unit = is_of_heads               ? a->head_dim
            : dim == DIM_ATTENDED     ? attn_value_dim(a)
            : dim == DIM_LATENT_HEADS ? a->n_latent
                                      : 1;
    switch (dim) {
    case DIM_QUERIES:
    case DIM_ATTENDED:
    case DIM_LATENT_HEADS:
        *out = own->heads;
        return true;
    case DIM_KV:
    case DIM_VALUES:
        *out = own->kv_heads;
        return true;
    case DIM_HEADS:
        *out = own->heads;
        return true;
    case DIM_FF:
        *out = own->ffn;
        return true;
    case DIM_EXPERT_FF:
        *out = own->expert_ffn;
        return true;
    case DIM_SHARED_FF:
        *out = own->shared_ffn;
        return true;
    case DIM_VOCAB:
        *out = s->vocab;
        return true;
    default:
        return false;
    }
}

static bool is_dealt_out(enum dim dim)
{
    return dim == DIM_QUERIES || dim == DIM_ATTENDED || dim == DIM_LATENT_HEADS || dim == DIM_KV ||
           dim == DIM_VALUES || dim == DIM_HEADS || dim == DIM_FF || dim == DIM_EXPERT_FF ||
           dim == DIM_SHARED_FF || dim == DIM_VOCAB;
}

enum split_kind split_kind(enum weight_slot slot)
{
    if (slot < SLOT_COUNT && slot_info(slot)->kind == SLOT_VECTOR && is_dealt_out(slot_info(slot)->columns))
        return SPLIT_ELEMENTS;
    if (slot == SLOT_COUNT || slot_info(slot)->kind != SLOT_MATRIX)
        return SPLIT_WHOLE;
    if (is_dealt_out(slot_info(slot)->rows[0]))
        return SPLIT_ROWS;
    return is_dealt_out(slot_info(slot)->columns) ? SPLIT_COLUMNS : SPLIT_WHOLE;
}

static void add_run(struct split_part *part, struct split_range range, int factor, int offset)
{
    part->runs[part->n_runs++] = (struct split_range){ offset + range.begin * factor,
                                                       offset + range.end * factor };
    part->n += range_n(range) * factor;
}

/* Heads of a tensor of q, k, v that is stored by KV head: whole groups, or some queries of one group with
 * its key and value, of which other ranks have copies. */
static void add_groups(struct split_part *part, struct split_range heads, const struct attn_desc *a)
{
    int n_queries = a->n_heads / a->n_kv_heads, group = heads.begin / n_queries;
    int group_rows = (n_queries + 2) * a->head_dim, first = group * group_rows;
    if (heads.begin % n_queries == 0 && heads.end % n_queries == 0) {
        add_run(part, (struct split_range){ group, heads.end / n_queries }, group_rows, 0);
        return;
    }
    struct split_range queries = { heads.begin - group * n_queries, heads.end - group * n_queries };
    add_run(part, queries, a->head_dim, first);
    add_run(part, (struct split_range){ n_queries, n_queries + 2 }, a->head_dim, first);
}

struct split_part split_part(const struct split *s, const struct model_desc *d,
                             const struct split_target *target)
{
    struct split_part part = { .kind = split_kind(target->slot) };
    struct split_range range;
    int unit;
    if (part.kind == SPLIT_WHOLE)
        return part;
    const struct slot_info *info = slot_info(target->slot);
    if (part.kind == SPLIT_COLUMNS || part.kind == SPLIT_ELEMENTS) {
        if (owned(&range, &unit, s, d, info->columns, target->layer))
            add_run(&part, range, unit, 0);
        return part;
    }
    if (target->by_head) {
        const struct attn_desc *a = &model_layer(d, target->layer)->attn;
        struct split_range heads = s->kinds[d->kind_of[target->layer]].heads;
        if (info->is_by_head)
            add_run(&part, heads, a->head_dim - a->rotary_dim + a->value_dim, 0);
        else
            add_groups(&part, heads, a);
        return part;
    }
    struct slot_shape shape = slot_shape(d, target->slot, target->layer);
    if (target->alternates) {
        if (owned(&range, &unit, s, d, info->rows[0], target->layer))
            add_run(&part, range, shape.n_parts * unit, 0);
        return part;
    }
    for (int i = 0, offset = 0; i < shape.n_parts; i++) {
        if (target->part != SPLIT_ALL_PARTS && target->part != i)
            continue;
        if (owned(&range, &unit, s, d, info->rows[i], target->layer))
            add_run(&part, range, unit, offset);
        offset += shape.rows[i];
    }
    return part;
}

int split_n_whole(const struct model_desc *d, const struct split_target *target)
{
    struct split whole = split_whole(d);
    return split_part(&whole, d, target).n;
}

struct model_desc split_desc(const struct split *s, const struct model_desc *d)
{
    struct model_desc local = *d;
    for (int i = 0; i < d->n_kinds; i++) {
        local.kinds[i].attn.n_heads = range_n(s->kinds[i].heads);
        local.kinds[i].attn.n_kv_heads = range_n(s->kinds[i].kv_heads);
        local.kinds[i].ffn.d_ff = range_n(s->kinds[i].ffn);
        local.kinds[i].ffn.experts.d_ff = range_n(s->kinds[i].expert_ffn);
        local.kinds[i].ffn.experts.d_shared = range_n(s->kinds[i].shared_ffn);
    }
    local.n_vocab = range_n(s->vocab);
    return local;
}
