/* Attention with vec16: the optimized ref/attention.c. Included by a file of one instruction set.
 *
 * A block takes three passes: scores of all its positions, their softmax, and the weighted sum of
 * the values. Register tiles of queries times pages (scores) or queries times columns (values)
 * load and widen data once for several queries. Pages are processed in groups that fit the L1
 * cache, so that further tiles of queries find them there.
 *
 * Pages are at random addresses and too short for the hardware prefetcher. So while the first
 * tile of queries reads a group, it prefetches the same offsets in the pages of the next group,
 * into L2: many L1 caches have no room for two groups. */
#include "kernels/ref/ref.h"
#include "kernels/vector/softcap_body.h"

#include <string.h>

enum {
    PAGE_GROUP = ATTENTION_PREFETCH_PAGES, /* pages */
    GROUP_KEYS = PAGE_GROUP * ATTENTION_KEYS,
    BLOCK_PAGES = ATTENTION_BLOCK / ATTENTION_KEYS,
    Q_STRIDE = ATTENTION_MAX_DIM +
               64, /* a compile-time constant: one base address for all queries of a tile */
};
enum kv_kind { KV_F32, KV_F16, KV_BF16, KV_INT8 };

/* The current block. Pages are numbered from its begin. */
struct score_block {
    const struct attention_work *work;
    int first;                    /* position */
    int begin_page, end_page;     /* union of the queries' views */
    int begin[ATTENTION_QUERIES]; /* positions relative to first; begin = end: none */
    int end[ATTENTION_QUERIES];
    int common_begin, common_end; /* intersection of the queries' views */
    int value_dim, value_stride;  /* elements of a value; from the value of one position to the next */
    /* Keys. Padded with the first and last page: tiles may read, but not use, pages outside the
     * view. */
    const uint8_t *pages[BLOCK_PAGES];
    const uint8_t *next[PAGE_GROUP];         /* the next group, to prefetch: keys or values of a page each */
    float q_scale[ATTENTION_QUERIES];        /* int8 */
    float q_rotary_scale[ATTENTION_QUERIES]; /* int8, latent pages */
    int16_t *q_int;                          /* int8: [n_queries][Q_STRIDE] */
    float *o;
    float *p;       /* [n_queries][ATTENTION_BLOCK]: scores, then exp(score - max) */
    int16_t *p_int; /* int8: [n_queries][ATTENTION_BLOCK] */
};

/* Queries of the next register tile, of rest that remain. */
INLINE int tile_queries(int rest, const enum kv_kind kind)
{
    if (VEC_TOTALS >= 16)
        return rest >= 8 ? 8 : rest >= 4 ? 4 : rest;
    const int most = kind == KV_INT8 ? VEC_TOTALS : VEC_ROWS; /* iv_dot() needs registers for itself */
    int n_tiles = (rest + most - 1) / most;                   /* of even height */
    return (rest + n_tiles - 1) / n_tiles;
}

/* CALL(n), with n as a compile-time constant: one that tile_queries() returns. */
#define CALL_TILE(CALL, n)                                                                                   \
    do {                                                                                                     \
        if (VEC_TOTALS >= 16 && (n) == 8)                                                                    \
            CALL(8);                                                                                         \
        else if (VEC_ROWS == 6 && (n) == 6)                                                                  \
            CALL(6);                                                                                         \
        else if (VEC_ROWS == 6 && (n) == 5)                                                                  \
            CALL(5);                                                                                         \
        else if ((n) == 4)                                                                                   \
            CALL(4);                                                                                         \
        else if ((n) == 3)                                                                                   \
            CALL(3);                                                                                         \
        else if ((n) == 2)                                                                                   \
            CALL(2);                                                                                         \
        else                                                                                                 \
            CALL(1);                                                                                         \
    } while (0)

/* Vectors of totals for each of n queries: a power of two, at most most. */
INLINE int vectors_of_each(const int n, const int most)
{
    const int fit = VEC_TOTALS / n >= 8 ? 8 : VEC_TOTALS / n >= 4 ? 4 : VEC_TOTALS / n >= 2 ? 2 : 1;
    return fit < most ? fit : most;
}

INLINE int bytes_of(const enum kv_kind kind, int n)
{
    return kind == KV_F32 ? 4 * n : kind == KV_INT8 ? n : 2 * n;
}

INLINE vec16 load_16(const uint8_t *base, const enum kv_kind kind, int i)
{
    return kind == KV_F16    ? v_load_half((const uint16_t *)base + i)
           : kind == KV_BF16 ? v_load_bf16((const uint16_t *)base + i)
                             : v_load((const float *)base + i);
}

INLINE vec16 load_lanes(const float *p, const int lanes)
{
    return lanes == 16 ? v_load(p) : v_load_n(p, lanes);
}

INLINE void store_lanes(float *p, vec16 x, const int lanes)
{
    if (lanes == 16)
        v_store(p, x);
    else
        v_store_n(p, x, lanes);
}

INLINE vec16 load_8(const uint8_t *base, const enum kv_kind kind, int i)
{
    return kind == KV_F16    ? v_load_half_n((const uint16_t *)base + i, 8)
           : kind == KV_BF16 ? v_load_bf16_n((const uint16_t *)base + i, 8)
                             : v_load_n((const float *)base + i, 8);
}

/* Sets next to the group after the one that begins at page: the next of the same kind, else the
 * first group of values, else the pages to read after this block. */
INLINE void set_next_group(struct score_block *b, int page, bool is_values)
{
    const struct attention_work *work = b->work;
    size_t offset = is_values ? work->values_offset : 0;
    page += PAGE_GROUP;
    if (page >= b->end_page && !is_values) {
        page = b->begin_page / PAGE_GROUP * PAGE_GROUP;
        offset = work->values_offset;
    } else if (page >= b->end_page) {
        for (int j = 0; j < PAGE_GROUP; j++)
            b->next[j] = work->next ? work->next[j] : b->pages[0];
        return;
    }
    for (int j = 0; j < PAGE_GROUP; j++)
        b->next[j] = b->pages[page + j] + offset;
}

/* ---- scores ---- */

/* Scores of n queries with n_pages pages from page on; both are compile-time constants. */
INLINE void score_tile(const struct score_block *b, int query, const int n, int page, const int n_pages,
                       const enum kv_kind kind)
{
    enum { LINE = 64 };
    const int n_dims = LINE / bytes_of(kind, ATTENTION_KEYS);
    int head_dim = b->work->head_dim;
    /* Every third query: those between have the same distances, in fewer registers. */
    const float *q0 = b->work->q + query * head_dim, *q3 = q0 + 3 * head_dim, *q6 = q3 + 3 * head_dim;
    const uint8_t *keys[PAGE_GROUP], *next[PAGE_GROUP];
    vec16 sum[16];
    UNROLL
    for (int j = 0; j < n_pages; j++) {
        keys[j] = b->pages[page + j];
        next[j] = b->next[(page + j) % PAGE_GROUP];
    }
    UNROLL
    for (int i = 0; i < n * n_pages; i++)
        sum[i] = v_set(0);
    for (int line = 0; line < head_dim; line += n_dims) {
        UNROLL
        for (int j = 0; j < n_pages && query == 0; j++)
            prefetch_into_l2(next[j] + bytes_of(kind, line * ATTENTION_KEYS));
        UNROLL
        for (int d = line; d < line + n_dims; d++) {
            vec16 k[PAGE_GROUP];
            UNROLL
            for (int j = 0; j < n_pages; j++)
                k[j] = load_16(keys[j], kind, d * ATTENTION_KEYS);
            UNROLL
            for (int i = 0; i < n; i++) {
                vec16 x = v_set((i < 3 ? q0 : i < 6 ? q3 : q6)[i % 3 * head_dim + d]);
                UNROLL
                for (int j = 0; j < n_pages; j++)
                    sum[i * n_pages + j] = v_fma(x, k[j], sum[i * n_pages + j]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        float *p = b->p + (query + i) * ATTENTION_BLOCK + page * ATTENTION_KEYS;
        UNROLL
        for (int j = 0; j < n_pages; j++)
            v_store(p + j * ATTENTION_KEYS, sum[i * n_pages + j]);
    }
}

INLINE void score_tile_int8(const struct score_block *b, int query, const int n, int page, const int n_pages)
{
    int head_dim = b->work->head_dim;
    const int16_t *q = b->q_int + query * Q_STRIDE;
    const int8_t *keys[PAGE_GROUP];
    const uint8_t *next[PAGE_GROUP];
    ivec16 sum[16];
    UNROLL
    for (int j = 0; j < n_pages; j++) {
        keys[j] = (const int8_t *)b->pages[page + j];
        next[j] = b->next[(page + j) % PAGE_GROUP];
    }
    UNROLL
    for (int i = 0; i < n * n_pages; i++)
        sum[i] = iv_zero();
    for (int line = 0; line < head_dim; line += 4) {
        UNROLL
        for (int j = 0; j < n_pages && query == 0; j++)
            prefetch_into_l2(next[j] + line * ATTENTION_KEYS);
        UNROLL
        for (int d = line; d < line + 4; d += 2) {
            ivec16 k[PAGE_GROUP];
            UNROLL
            for (int j = 0; j < n_pages; j++)
                k[j] = iv_load_bytes(keys[j] + d * ATTENTION_KEYS);
            UNROLL
            for (int i = 0; i < n; i++) {
                ivec16 x = iv_set_pair(q + i * Q_STRIDE + d);
                UNROLL
                for (int j = 0; j < n_pages; j++)
                    sum[i * n_pages + j] = iv_dot(x, k[j], sum[i * n_pages + j]);
            }
        }
    }
    UNROLL
    for (int j = 0; j < n_pages; j++) {
        vec16 scale = v_load((const float *)(keys[j] + head_dim * ATTENTION_KEYS));
        UNROLL
        for (int i = 0; i < n; i++)
            v_store(b->p + (query + i) * ATTENTION_BLOCK + (page + j) * ATTENTION_KEYS,
                    v_mul(v_from_int(sum[i * n_pages + j]), v_mul(scale, v_set(b->q_scale[query + i]))));
    }
}

/* n queries, a group of pages. */
INLINE void score_group(const struct score_block *b, int query, const int n, int page,
                        const enum kv_kind kind)
{
    const int n_pages = vectors_of_each(n, PAGE_GROUP);
    for (int j = 0; j < PAGE_GROUP && page + j < b->end_page; j += n_pages) {
        if (kind == KV_INT8)
            score_tile_int8(b, query, n, page + j, n_pages);
        else
            score_tile(b, query, n, page + j, n_pages, kind);
    }
}

#include "kernels/vector/latent_body.h"

INLINE void score_block(struct score_block *b, const enum kv_kind kind)
{
    int n_queries = b->work->n_queries;
    if (b->work->n_latent > 0) {
        score_latent_block(b, kind);
        return;
    }
    for (int page = b->begin_page / PAGE_GROUP * PAGE_GROUP; page < b->end_page; page += PAGE_GROUP) {
        set_next_group(b, page, false);
        for (int i = 0, n; i < n_queries; i += n) {
            n = tile_queries(n_queries - i, kind);
#define SCORE_GROUP(n) score_group(b, i, n, page, kind)
            CALL_TILE(SCORE_GROUP, n);
#undef SCORE_GROUP
        }
    }
}

/* ---- softmax ---- */

/* Masks the scores of a page that are outside a query's view. */
INLINE vec16 mask_page(const struct score_block *b, int query, int page, vec16 score)
{
    int from = b->begin[query] - page * ATTENTION_KEYS, to = b->end[query] - page * ATTENTION_KEYS;
    if (to < ATTENTION_KEYS)
        score = v_select(first_lanes(to), score, v_set(-(float)INFINITY));
    if (from > 0)
        score = v_select(first_lanes(from), v_set(-(float)INFINITY), score);
    return score;
}

/* Softmax without the division: replaces scores by exp(score - max). */
INLINE void softmax_scores(const struct score_block *b, int query, float *max, float *total)
{
    static const float STEPS[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const struct attention_view *view = &b->work->views[query];
    float *p = b->p + query * ATTENTION_BLOCK;
    int begin = b->begin[query] / ATTENTION_KEYS;
    int end = (b->end[query] + ATTENTION_KEYS - 1) / ATTENTION_KEYS;
    vec16 top = v_set(-(float)INFINITY), sum = v_set(0);
    for (int page = begin; page < end; page++) {
        vec16 s = v_load(p + page * ATTENTION_KEYS);
        if (b->work->softcap > 0)
            s = v_softcap(s, b->work->softcap);
        if (view->slope != 0) {
            float distance = (float)(b->first + page * ATTENTION_KEYS - view->pos); /* sums below are exact */
            s = v_fma(v_set(view->slope), v_add(v_set(distance), v_load(STEPS)), s);
        }
        s = mask_page(b, query, page, s);
        v_store(p + page * ATTENTION_KEYS, s);
        top = v_max(top, s);
    }
    *max = v_fold_max(top);
    for (int page = begin; page < end; page++) {
        vec16 e = v_exp(v_sub(v_load(p + page * ATTENTION_KEYS), v_set(*max)));
        v_store(p + page * ATTENTION_KEYS, e);
        sum = v_add(sum, e);
    }
    *total = v_fold(sum);
}

/* The last group of values can have fewer pages than a full group. Prefetches this query's part
 * of the next block's pages that such a group has no counterparts for. */
INLINE void prefetch_rest(const struct score_block *b, int query, const enum kv_kind kind)
{
    const struct attention_work *work = b->work;
    int n_bytes = bytes_of(kind, work->head_dim * ATTENTION_KEYS),
        n_prefetched = (b->end_page - 1) % PAGE_GROUP + 1;
    for (int at = 64 * query; at < n_bytes && work->next; at += 64 * work->n_queries)
        for (int j = n_prefetched; j < PAGE_GROUP; j++)
            prefetch_into_l2(work->next[j] + at);
}

/* ---- values ---- */

/* Adds positions from..to-1 of the block to columns of n queries' outputs: n_vecs times 16 of
 * them, from column on. */
INLINE void value_tile(const struct score_block *b, int query, const int n, int from, int to, int column,
                       const int n_vecs, const enum kv_kind kind)
{
    int value_dim = b->value_dim;
    float *o = b->o + query * value_dim + column;
    const float *p = b->p + query * ATTENTION_BLOCK;
    vec16 sum[16];
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int v = 0; v < n_vecs; v++)
        sum[i * n_vecs + v] = v_load(o + i * value_dim + 16 * v);
    while (from < to) {
        int page = from / ATTENTION_KEYS, last = (page + 1) * ATTENTION_KEYS;
        const uint8_t *values = b->pages[page] + b->work->values_offset, *next = b->next[page % PAGE_GROUP];
        last = last < to ? last : to;
        for (; from < last; from++) {
            int first = from % ATTENTION_KEYS * b->value_stride + column;
            for (int line = 0; line < bytes_of(kind, 16 * n_vecs) && query == 0; line += 64)
                prefetch_into_l2(next + bytes_of(kind, first) + line);
            vec16 value[8];
            UNROLL
            for (int v = 0; v < n_vecs; v++)
                value[v] = load_16(values, kind, first + 16 * v);
            UNROLL
            for (int i = 0; i < n; i++) {
                vec16 x = v_set(p[i * ATTENTION_BLOCK + from]);
                UNROLL
                for (int v = 0; v < n_vecs; v++)
                    sum[i * n_vecs + v] = v_fma(x, value[v], sum[i * n_vecs + v]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int v = 0; v < n_vecs; v++)
        v_store(o + i * value_dim + 16 * v, sum[i * n_vecs + v]);
}

/* The last eight columns, if value_dim is an odd multiple of 8. */
INLINE void value_tail(const struct score_block *b, int query, int from, int to, const enum kv_kind kind)
{
    int column = b->value_dim - 8;
    float *o = b->o + query * b->value_dim + column;
    vec16 sum = v_load_n(o, 8);
    for (; from < to; from++) {
        const uint8_t *values = b->pages[from / ATTENTION_KEYS] + b->work->values_offset;
        sum = v_fma(v_set(b->p[query * ATTENTION_BLOCK + from]),
                    load_8(values, kind, from % ATTENTION_KEYS * b->value_stride + column), sum);
    }
    v_store_n(o, sum, 8);
}

/* n queries, all columns. */
INLINE void value_rows(const struct score_block *b, int query, const int n, int from, int to,
                       const enum kv_kind kind)
{
    const int most = vectors_of_each(n, 8);
    int value_dim = b->value_dim, column = 0;
    for (; column + 16 * most <= value_dim; column += 16 * most)
        value_tile(b, query, n, from, to, column, most, kind);
    for (; most > 2 && column + 32 <= value_dim; column += 32)
        value_tile(b, query, n, from, to, column, 2, kind);
    for (; column + 16 <= value_dim; column += 16)
        value_tile(b, query, n, from, to, column, 1, kind);
    for (int i = 0; i < n && column < value_dim; i++)
        value_tail(b, query + i, from, to, kind);
}

/* Positions in the view of all queries. */
INLINE void value_common(const struct score_block *b, int from, int to, const enum kv_kind kind)
{
    int n_queries = b->work->n_queries;
    for (int i = 0, n; i < n_queries; i += n) {
        n = tile_queries(n_queries - i, kind);
#define VALUE_ROWS(n) value_rows(b, i, n, from, to, kind)
        CALL_TILE(VALUE_ROWS, n);
#undef VALUE_ROWS
    }
}

INLINE void value_block(struct score_block *b, const enum kv_kind kind)
{
    int n_queries = b->work->n_queries;
    set_next_group(b, b->common_begin / GROUP_KEYS * PAGE_GROUP, true);
    for (int i = 0; i < n_queries; i++) {
        int end = b->end[i] < b->common_begin ? b->end[i] : b->common_begin;
        if (b->begin[i] < end)
            value_rows(b, i, 1, b->begin[i], end, kind);
    }
    for (int from = b->common_begin; from < b->common_end;) {
        int to = (from / GROUP_KEYS + 1) * GROUP_KEYS;
        to = to < b->common_end ? to : b->common_end;
        set_next_group(b, from / GROUP_KEYS * PAGE_GROUP, true);
        value_common(b, from, to, kind);
        from = to;
    }
    for (int i = 0; i < n_queries; i++) {
        int begin = b->begin[i] > b->common_end ? b->begin[i] : b->common_end;
        if (begin < b->end[i])
            value_rows(b, i, 1, begin, b->end[i], kind);
    }
}

/* ---- values of int8 ---- */

/* Zeroes weights outside a query's view, where the scales can be anything. */
INLINE vec16 mask_weights(const struct score_block *b, int query, int page, vec16 w)
{
    int from = b->begin[query] - page * ATTENTION_KEYS, to = b->end[query] - page * ATTENTION_KEYS;
    if (to < ATTENTION_KEYS)
        w = v_select(first_lanes(to), w, v_set(0));
    if (from > 0)
        w = v_select(first_lanes(from), v_set(0), w);
    return w;
}

/* Quantizes p to integers, for all pages of the union of views; 0 outside of this query's view.
 * Returns the quantization step. */
INLINE float quantize_weights(const struct score_block *b, int query)
{
    float *p = b->p + query * ATTENTION_BLOCK;
    int16_t *p_int = b->p_int + query * ATTENTION_BLOCK;
    int begin = b->begin[query] / ATTENTION_KEYS;
    int end = (b->end[query] + ATTENTION_KEYS - 1) / ATTENTION_KEYS;
    size_t scales = b->work->values_offset + (size_t)b->value_stride * ATTENTION_KEYS;
    vec16 top = v_set(0);
    for (int page = begin; page < end; page++) {
        vec16 w = v_mul(v_load(p + page * ATTENTION_KEYS), v_load((const float *)(b->pages[page] + scales)));
        w = mask_weights(b, query, page, w);
        v_store(p + page * ATTENTION_KEYS, w);
        top = v_max_bits(top, w);
    }
    float max = v_fold_max_bits(top);
    bool is_zero = max < 0x1p-100f;
    vec16 inverse = v_set(is_zero ? 0 : 32767.0f / max), magic = v_set(EXP_MAGIC);
    for (int page = b->begin_page; page < b->end_page; page++) {
        bool is_seen = page >= begin && page < end;
        vec16 w = is_seen ? v_load(p + page * ATTENTION_KEYS) : v_set(0);
        v_store_low_words(p_int + page * ATTENTION_KEYS, v_add(v_mul(w, inverse), magic));
    }
    return is_zero ? 0 : max / 32767.0f;
}

/* Adds the pages of a group to columns of n queries' sums: lanes of each of n_vecs vectors. The
 * integer sums are kept in o until the block is done. */
INLINE void value_tile_int8(const struct score_block *b, int query, const int n, int page, int column,
                            const int n_vecs, const int lanes, const bool is_latent)
{
    int value_dim = b->value_dim, stride = is_latent ? b->value_stride : value_dim,
        end = page + PAGE_GROUP < b->end_page ? page + PAGE_GROUP : b->end_page;
    const int16_t *p = b->p_int + query * ATTENTION_BLOCK;
    float *o = b->o + query * value_dim + column;
    ivec16 sum[16];
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int v = 0; v < n_vecs; v++)
        sum[i * n_vecs + v] = iv_cast(load_lanes(o + i * value_dim + 16 * v, lanes));
    for (page = page < b->begin_page ? b->begin_page : page; page < end; page++) {
        int first = is_latent ? column : 2 * column;
        const int8_t *values = (const int8_t *)b->pages[page] + b->work->values_offset + first;
        const uint8_t *next = b->next[page % PAGE_GROUP] + first;
        for (int key = 0; key < ATTENTION_KEYS; key += 2, values += 2 * stride, next += 2 * stride) {
            ivec16 value[8];
            for (int line = 0; line < 32 * n_vecs && query == 0; line += 64)
                prefetch_into_l2(next + line);
            UNROLL
            for (int v = 0; v < n_vecs; v++) /* of 8 lanes, the rest may be scales */
                value[v] = is_latent ? iv_load_two_rows(values + 16 * v, values + stride + 16 * v)
                                     : iv_load_bytes(values + 32 * v);
            UNROLL
            for (int i = 0; i < n; i++) {
                ivec16 x = iv_set_pair(p + i * ATTENTION_BLOCK + page * ATTENTION_KEYS + key);
                UNROLL
                for (int v = 0; v < n_vecs; v++)
                    sum[i * n_vecs + v] = iv_dot(x, value[v], sum[i * n_vecs + v]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int v = 0; v < n_vecs; v++)
        store_lanes(o + i * value_dim + 16 * v, v_cast(sum[i * n_vecs + v]), lanes);
}

INLINE void value_rows_int8(const struct score_block *b, int query, const int n, int page,
                            const bool is_latent)
{
    const int most = vectors_of_each(n, 8);
    int value_dim = b->value_dim, column = 0;
    for (; column + 16 * most <= value_dim; column += 16 * most)
        value_tile_int8(b, query, n, page, column, most, 16, is_latent);
    for (; most > 2 && column + 32 <= value_dim; column += 32)
        value_tile_int8(b, query, n, page, column, 2, 16, is_latent);
    for (; column + 16 <= value_dim; column += 16)
        value_tile_int8(b, query, n, page, column, 1, 16, is_latent);
    if (column < value_dim)
        value_tile_int8(b, query, n, page, column, 1, 8, is_latent);
}

INLINE void value_block_int8(struct score_block *b, const bool is_latent)
{
    int n_queries = b->work->n_queries, value_dim = b->value_dim;
    float step[ATTENTION_QUERIES];
    for (int i = 0; i < n_queries; i++)
        step[i] = quantize_weights(b, i);
    for (int page = b->begin_page / PAGE_GROUP * PAGE_GROUP; page < b->end_page; page += PAGE_GROUP) {
        set_next_group(b, page, true);
        for (int i = 0, n; i < n_queries; i += n) {
            n = tile_queries(n_queries - i, KV_INT8);
#define VALUE_ROWS(n) value_rows_int8(b, i, n, page, is_latent)
            CALL_TILE(VALUE_ROWS, n);
#undef VALUE_ROWS
        }
    }
    for (int i = 0; i < n_queries; i++)
        for (int d = 0; d < value_dim; d += 16) {
            float *o = b->o + i * value_dim + d;
            const int lanes = value_dim - d < 16 ? 8 : 16;
            store_lanes(o, v_mul(v_from_int(iv_cast(load_lanes(o, lanes))), v_set(step[i])), lanes);
        }
}

/* ---- a block ---- */

/* Returns the scale. */
INLINE float quantize_query(int16_t *q, const float *x, int n)
{
    const float limit = (float)ATTENTION_LIMIT(n);
    vec16 top = v_set(0), magic = v_set(EXP_MAGIC);
    for (int i = 0; i < n; i += 16)
        top = v_max_bits(top, v_abs(v_load_n(x + i, lanes_left(i, n))));
    float max = v_fold_max_bits(top);
    bool is_finite = max <= 3.40282347e38f, is_zero = max < 0x1p-100f || !is_finite;
    vec16 inverse = v_set(limit / max);
    for (int i = 0; i < n; i += 16) {
        int16_t words[16] = { 0 };
        if (!is_zero)
            v_store_low_words(words, v_add(v_mul(v_load_n(x + i, lanes_left(i, n)), inverse), magic));
        memcpy(q + i, words, (size_t)lanes_left(i, n) * sizeof *words);
    }
    return !is_finite ? __builtin_nanf("") : is_zero ? 0 : max / limit;
}

/* Computes the queries' views of the block; false: all are empty. */
INLINE bool find_views(struct score_block *b, const struct attention_work *work, int block)
{
    int begin = ATTENTION_BLOCK, end = 0;
    b->work = work;
    b->value_dim = attention_value_dim(work);
    b->value_stride = work->head_dim;
    b->first = block * ATTENTION_BLOCK;
    b->common_begin = 0;
    b->common_end = ATTENTION_BLOCK;
    for (int i = 0; i < work->n_queries; i++) {
        int from = work->views[i].begin - b->first, to = work->views[i].end - b->first;
        from = from > 0 ? from : 0;
        to = to < ATTENTION_BLOCK ? to : ATTENTION_BLOCK;
        if (from >= to)
            from = to = 0; /* nothing */
        b->begin[i] = from;
        b->end[i] = to;
        b->common_begin = from > b->common_begin ? from : b->common_begin;
        b->common_end = to < b->common_end ? to : b->common_end;
        if (from < to) {
            begin = from < begin ? from : begin;
            end = to > end ? to : end;
        }
    }
    if (b->common_end < b->common_begin)
        b->common_end = b->common_begin;
    b->begin_page = begin / ATTENTION_KEYS;
    b->end_page = (end + ATTENTION_KEYS - 1) / ATTENTION_KEYS;
    for (int page = 0; page < BLOCK_PAGES && begin < end; page++) {
        int known = page < b->begin_page ? b->begin_page : page < b->end_page ? page : b->end_page - 1;
        int32_t page_id = work->page_table[b->first / ATTENTION_KEYS + known];
        b->pages[page] = work->base + (size_t)page_id * work->page_bytes;
    }
    return begin < end;
}

/* Quantizes a query of latent pages: its latent and its rotary part, each followed by zeros. */
INLINE void quantize_latent_query(struct score_block *b, int query)
{
    const struct attention_work *work = b->work;
    const float *q = work->q + query * work->head_dim;
    int16_t *to = b->q_int + query * Q_STRIDE;
    memset(to, 0, Q_STRIDE * sizeof *to);
    b->q_scale[query] = quantize_query(to, q, work->n_latent);
    b->q_rotary_scale[query] = quantize_query(to + rotary_at(work), q + work->n_latent,
                                              work->head_dim - work->n_latent);
}

INLINE void attention(const struct attention_sums *sums, const struct attention_work *work, int block,
                      const enum kv_kind kind)
{
    _Alignas(64) float p[ATTENTION_QUERIES * ATTENTION_BLOCK];
    _Alignas(64) int16_t p_int[ATTENTION_QUERIES * ATTENTION_BLOCK];
    _Alignas(64) int16_t q_int[ATTENTION_QUERIES * Q_STRIDE];
    struct score_block b;
    b.p = p;
    b.q_int = q_int;
    b.p_int = p_int;
    b.o = sums->o;
    bool sees_some = find_views(&b, work, block);
    for (int i = 0; i < work->n_queries; i++) {
        sums->max[i] = -__builtin_inff();
        sums->total[i] = 0;
        if (kind == KV_INT8 && sees_some && work->n_latent > 0)
            quantize_latent_query(&b, i);
        else if (kind == KV_INT8 && sees_some)
            b.q_scale[i] = quantize_query(q_int + i * Q_STRIDE, work->q + i * work->head_dim, work->head_dim);
    }
    if (!sees_some)
        return;
    score_block(&b, kind);
    for (int i = 0; i < work->n_queries; i++) {
        prefetch_rest(&b, i, kind);
        if (b.begin[i] < b.end[i])
            softmax_scores(&b, i, &sums->max[i], &sums->total[i]);
    }
    memset(sums->o, 0, sizeof(float) * (size_t)(work->n_queries * b.value_dim));
    if (kind == KV_INT8 && work->n_latent > 0)
        value_block_int8(&b, true);
    else if (kind == KV_INT8)
        value_block_int8(&b, false);
    else
        value_block(&b, kind);
}

void VARIANT(attention_f16)(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_F16);
}

void VARIANT(attention_bf16)(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_BF16);
}

void VARIANT(attention_f32)(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_F32);
}

void VARIANT(attention_int8)(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_INT8);
}

/* ---- merging and storing ---- */

void VARIANT(attention_merge)(const struct attention_sums *into, const struct attention_sums *from,
                              int n_queries, int value_dim)
{
    for (int i = 0; i < n_queries; i++) {
        float *o = into->o + i * value_dim;
        const float *more = from->o + i * value_dim;
        if (from->total[i] == 0)
            continue;
        if (into->total[i] == 0) {
            into->max[i] = from->max[i];
            into->total[i] = from->total[i];
            memcpy(o, more, (size_t)value_dim * sizeof *o);
            continue;
        }
        float top = into->max[i] > from->max[i] ? into->max[i] : from->max[i];
        float a = exp_ref(into->max[i] - top), b = exp_ref(from->max[i] - top);
        into->max[i] = top;
        into->total[i] = fmaf(from->total[i], b, into->total[i] * a);
        int d = 0;
        for (; d + 16 <= value_dim; d += 16)
            v_store(o + d, v_fma(v_load(more + d), v_set(b), v_mul(v_load(o + d), v_set(a))));
        if (d < value_dim)
            v_store_n(o + d, v_fma(v_load_n(more + d, 8), v_set(b), v_mul(v_load_n(o + d, 8), v_set(a))), 8);
    }
}

float VARIANT(to_int8)(int8_t *q, const float *x, int n)
{
    vec16 top = v_set(0), magic = v_set(EXP_MAGIC);
    for (int i = 0; i < n; i += 16)
        top = v_max_bits(top, v_abs(v_load_n(x + i, lanes_left(i, n))));
    float max = v_fold_max_bits(top);
    bool is_finite = max <= 3.40282347e38f;
    if (!is_finite || max < 0x1p-100f) {
        memset(q, 0, (size_t)n);
        return is_finite ? 0 : __builtin_nanf("");
    }
    vec16 inverse = v_set(127.0f / max);
    for (int i = 0; i < n; i += 16) {
        int8_t bytes[16];
        v_store_low_bytes(bytes, v_add(v_mul(v_load_n(x + i, lanes_left(i, n)), inverse), magic));
        memcpy(q + i, bytes, (size_t)lanes_left(i, n));
    }
    return max / 127.0f;
}

void VARIANT(divide)(float *y, const float *x, float divisor, int n)
{
    for (int i = 0; i < n; i += 16)
        v_store_n(y + i, v_div(v_load_n(x + i, lanes_left(i, n)), v_set(divisor)), lanes_left(i, n));
}
