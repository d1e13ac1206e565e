/* Keys and values of the mixed backend: the pages of a layer are on the side of the layer. A page has the same number
 * everywhere, and its image in the spill file has the card's part first. */
#include "backend/mixed/mixed.h"
#include "base/limits.h"

#include <stdlib.h>

/* ---- memory ---- */

size_t mixed_side_page_bytes(const struct mixed_backend *m, enum side side, enum dtype dtype)
{
    const struct backend *be = m->sides[side];
    return m->n_layers_of[side] > 0 ? be->ops->kv_page_bytes(be, dtype) : 0;
}

size_t mixed_kv_page_bytes(const struct backend *be, enum dtype dtype)
{
    const struct mixed_backend *m = mixed_const(be);
    return mixed_side_page_bytes(m, SIDE_CARD, dtype) + mixed_side_page_bytes(m, SIDE_CPU, dtype);
}

size_t mixed_kv_window_bytes(const struct backend *be, enum dtype dtype)
{
    const struct mixed_backend *m = mixed_const(be);
    size_t n_bytes = 0;
    for (int i = 0; i < N_SIDES; i++)
        n_bytes += m->n_layers_of[i] > 0 ? m->sides[i]->ops->kv_window_bytes(m->sides[i], dtype) : 0;
    return n_bytes;
}

enum tutti_status mixed_kv_new(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                               enum dtype dtype, struct tutti_error *err)
{
    struct mixed_backend *m = mixed_of(be);
    struct kv_memory *kv = calloc(1, sizeof *kv);
    if (!kv)
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory");
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < N_SIDES && st == TUTTI_OK; i++) {
        struct backend *side = m->sides[i];
        kv->page_bytes[i] = mixed_side_page_bytes(m, (enum side)i, dtype);
        if (m->n_layers_of[i] > 0)
            st = side->ops->kv_new(side, &kv->inner[i], n_pages, n_window_pages, dtype, err);
    }
    if (st == TUTTI_OK)
        *out = kv;
    else
        mixed_kv_free(be, kv);
    return st;
}

void mixed_kv_free(struct backend *be, struct kv_memory *kv)
{
    struct mixed_backend *m = mixed_of(be);
    if (!kv)
        return;
    for (int i = 0; i < N_SIDES; i++)
        m->sides[i]->ops->kv_free(m->sides[i], kv->inner[i]);
    free(kv);
}

/* ---- whole pages ---- */

void mixed_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy)
{
    struct mixed_backend *m = mixed_of(be);
    for (int i = 0; i < N_SIDES; i++)
        if (kv->inner[i])
            m->sides[i]->ops->kv_copy_page(m->sides[i], kv->inner[i], copy);
}

/* ---- copies to and from the host: each side copies its own part ---- */

/* The memory is that of the side whose copies take time: the card, unless it has no layer. */
enum tutti_status mixed_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes,
                                        int n_copies, void **out, struct tutti_error *err)
{
    struct mixed_backend *m = mixed_of(be);
    enum side side = kv->inner[SIDE_CARD] ? SIDE_CARD : SIDE_CPU;
    return m->sides[side]->ops->kv_reserve_host(m->sides[side], kv->inner[side], n_bytes, n_copies, out, err);
}

void mixed_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host)
{
    struct mixed_backend *m = mixed_of(be);
    uint8_t *to = host;
    for (int i = 0; i < N_SIDES; to += kv->page_bytes[i++])
        if (kv->inner[i])
            m->sides[i]->ops->kv_read_begin(m->sides[i], kv->inner[i], copy, page_id, to);
}

void mixed_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host)
{
    struct mixed_backend *m = mixed_of(be);
    const uint8_t *from = host;
    for (int i = 0; i < N_SIDES; from += kv->page_bytes[i++])
        if (kv->inner[i])
            m->sides[i]->ops->kv_write_begin(m->sides[i], kv->inner[i], copy, from);
}

bool mixed_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits)
{
    struct mixed_backend *m = mixed_of(be);
    bool is_copied = true;
    for (int i = 0; i < N_SIDES && is_copied; i++)
        if (kv->inner[i])
            is_copied = m->sides[i]->ops->kv_is_copied(m->sides[i], kv->inner[i], copy, waits);
    return is_copied;
}

void mixed_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, const void *host)
{
    struct mixed_backend *m = mixed_of(be);
    const uint8_t *from = host;
    for (int i = 0; i < N_SIDES; from += kv->page_bytes[i++])
        if (kv->inner[i])
            m->sides[i]->ops->kv_write_end(m->sides[i], kv->inner[i], copy, page_id, from);
}

/* ---- the rows of floats of pages ---- */

void mixed_kv_store_rows(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                         const int32_t *page_ids, int n)
{
    struct mixed_backend *m = mixed_of(be);
    enum side of_rows = mixed_output_side(m);
    struct backend *side = mixed_use(m, of_rows);
    side->ops->kv_store_rows(side, kv->inner[of_rows], mixed_in(m, x), rows, page_ids, n);
}

void mixed_previous_rows(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                         const struct kv_memory *kv, int n)
{
    struct mixed_backend *m = mixed_of(be);
    enum side of_rows = mixed_output_side(m);
    struct backend *side = mixed_use(m, of_rows);
    struct floats from = mixed_in(m, x), to = mixed_out(m, y, mixed_rows(m->step->n_rows, n));
    side->ops->previous_rows(side, to, from, rows, kv->inner[of_rows], n);
}

/* ---- rows of a step ---- */

/* Begins an operation on the keys and values of a layer. */
static struct backend *use_layer(struct mixed_backend *m, int layer)
{
    return mixed_use(m, mixed_side_of(m, PART_LAYER, layer));
}

void mixed_rope_store(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                      struct kv_memory *kv, int layer)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_layer(m, layer);
    const struct attention_shape *a = mixed_shape(m, layer);
    struct floats q = mixed_in(m, q_norm), k = mixed_in(m, k_norm),
                  rows = mixed_inout(m, qkv,
                                     mixed_rows(m->step->n_rows, attention_qkv_heads(a) * a->head_dim));
    side->ops->rope_store(side, rows, q, k, kv->inner[m->side], mixed_inner_layer(m, layer));
}

void mixed_prefix_store(struct backend *be, struct kv_memory *kv, int layer,
                        const struct kv_prefix *const *prefixes, const int32_t *adapters)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_layer(m, layer);
    const struct attention_shape *a = mixed_shape(m, layer);
    size_t position = 2 * (size_t)a->n_kv_heads * (size_t)a->head_dim,
           n_before = (size_t)(layer - mixed_inner_layer(m, layer)); /* layers of the other side come first */
    struct kv_prefix own[LIMIT_ADAPTERS];
    const struct kv_prefix *pointers[LIMIT_ADAPTERS] = { NULL };
    for (int r = 0; r < m->step->n_rows; r++) {
        int i = adapters[r];
        assert(i < LIMIT_ADAPTERS);
        if (i < 0 || !prefixes[i] || pointers[i])
            continue;
        size_t before = n_before * (size_t)prefixes[i]->n * position;
        own[i] = (struct kv_prefix){ prefixes[i]->n, floats_at(mixed_in(m, prefixes[i]->rows), before) };
        pointers[i] = &own[i];
    }
    side->ops->prefix_store(side, kv->inner[m->side], mixed_inner_layer(m, layer), pointers, adapters);
}

void mixed_latent_store(struct backend *be, struct floats queries, struct floats q, int q_dim,
                        struct floats kv, struct floats norm, struct kv_memory *memory, int layer)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_layer(m, layer);
    const struct attention_shape *a = mixed_shape(m, layer);
    struct floats w = mixed_in(m, norm), from = mixed_in(m, q),
                  rows = mixed_inout(m, kv, mixed_rows(m->step->n_rows, a->head_dim)),
                  to = mixed_inout(m, queries, mixed_rows(m->step->n_rows, a->n_heads * a->head_dim));
    side->ops->latent_store(side, to, from, q_dim, rows, w, memory->inner[m->side],
                            mixed_inner_layer(m, layer));
}

void mixed_attention(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                     const struct kv_memory *kv, int layer)
{
    struct mixed_backend *m = mixed_of(be);
    struct backend *side = use_layer(m, layer);
    const struct attention_shape *a = mixed_shape(m, layer);
    int width = a->n_heads * (a->n_latent > 0 ? a->n_latent : a->head_dim);
    struct floats scores = mixed_in(m, sinks), from = mixed_in(m, qkv),
                  to = mixed_out(m, y, mixed_rows(m->step->n_rows, width));
    side->ops->attention(side, to, from, scores, kv->inner[m->side], mixed_inner_layer(m, layer));
}
