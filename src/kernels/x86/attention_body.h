/* Attention over vec16: the twin of ref/attention.c. Included by a file of one instruction set.
 *
 * Queries go through a page together, so that its keys and values are loaded (and widened from half precision) once
 * for several of them. Pages that not all queries see whole are done query by query. */
#include "kernels/x86/exp_body.h"
#include "kernels/x86/x86.h"

#include <math.h>

struct page_work {
    const uint8_t *keys, *values;
    const float *q; /* of the first query */
    float *o;
    float *p;     /* [queries][16]: scores, then probabilities */
    int first;    /* position of the page's first key */
    int from, to; /* keys of the page that all of these queries see */
    int head_dim;
};

INLINE vec16 load_16(const uint8_t *base, bool is_half, int i)
{
    return is_half ? v_load_half((const uint16_t *)base + i) : v_load((const float *)base + i);
}

INLINE vec16 load_8(const uint8_t *base, bool is_half, int i)
{
    return is_half ? v_load_half_n((const uint16_t *)base + i, 8) : v_load_n((const float *)base + i, 8);
}

/* Scores of n queries with the 16 keys of a page; n is known when it is compiled. */
INLINE void scores(const struct page_work *w, int first, const int n, const bool is_half)
{
    vec16 even[8], odd[8];
    const float *q = w->q + first * w->head_dim;
    UNROLL
    for (int i = 0; i < n; i++)
        even[i] = odd[i] = v_set(0);
    for (int d = 0; d < w->head_dim; d += 2) {
        vec16 k0 = load_16(w->keys, is_half, d * ATTENTION_KEYS);
        vec16 k1 = load_16(w->keys, is_half, (d + 1) * ATTENTION_KEYS);
        UNROLL
        for (int i = 0; i < n; i++) {
            even[i] = v_fma(v_set(q[i * w->head_dim + d]), k0, even[i]);
            odd[i] = v_fma(v_set(q[i * w->head_dim + d + 1]), k1, odd[i]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        v_store(w->p + (first + i) * ATTENTION_KEYS, v_add(even[i], odd[i]));
}

/* Adds the page's values to columns of n queries' outputs: n_vecs times 16 of them, from column on. */
INLINE void add_values(const struct page_work *w, const float *c, int first, const int n, int column,
                       const int n_vecs, const bool is_half)
{
    vec16 sum[16];
    float *o = w->o + first * w->head_dim + column;
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int v = 0; v < n_vecs; v++)
        sum[i * n_vecs + v] = v_mul(v_load(o + i * w->head_dim + 16 * v), v_set(c[first + i]));
    for (int key = w->from; key < w->to; key++) {
        vec16 value[16];
        UNROLL
        for (int v = 0; v < n_vecs; v++)
            value[v] = load_16(w->values, is_half, key * w->head_dim + column + 16 * v);
        UNROLL
        for (int i = 0; i < n; i++)
            UNROLL
        for (int v = 0; v < n_vecs; v++)
            sum[i * n_vecs + v] = v_fma(v_set(w->p[(first + i) * ATTENTION_KEYS + key]), value[v],
                                        sum[i * n_vecs + v]);
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int v = 0; v < n_vecs; v++)
        v_store(o + i * w->head_dim + 16 * v, sum[i * n_vecs + v]);
}

/* The last eight columns, where head_dim is an odd multiple of 8. */
INLINE void add_last_values(const struct page_work *w, const float *c, int query, const bool is_half)
{
    int column = w->head_dim - 8;
    float *o = w->o + query * w->head_dim + column;
    vec16 sum = v_mul(v_load_n(o, 8), v_set(c[query]));
    for (int key = w->from; key < w->to; key++)
        sum = v_fma(v_set(w->p[query * ATTENTION_KEYS + key]),
                    load_8(w->values, is_half, key * w->head_dim + column), sum);
    v_store_n(o, sum, 8);
}

INLINE void add_all_values(const struct page_work *w, const float *c, int first, const int n,
                           const int n_vecs, const bool is_half)
{
    int column = 0;
    for (; column + 16 * n_vecs <= w->head_dim; column += 16 * n_vecs)
        add_values(w, c, first, n, column, n_vecs, is_half);
    for (; column + 16 <= w->head_dim; column += 16)
        add_values(w, c, first, n, column, 1, is_half);
    for (int i = 0; i < n && column < w->head_dim; i++)
        add_last_values(w, c, first + i, is_half);
}

/* slope * (key's position - pos) is added to the scores of a page. */
INLINE vec16 add_slope(const struct page_work *w, const struct attention_view *view, vec16 score)
{
    static const float STEPS[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    vec16 distance = v_add(v_set((float)(w->first - view->pos)), v_load(STEPS)); /* exact */
    return v_fma(v_set(view->slope), distance, score);
}

/* n_queries queries through one page; max and total: their running state. */
INLINE void see_page(const struct page_work *w, const struct attention_view *views, float *max, float *total,
                     int n_queries, const bool is_half)
{
    enum { MOST = VEC_TOTALS / 2 }; /* two sums a query */
    float change[ATTENTION_QUERIES];
    int i = 0;
    for (; i + MOST <= n_queries; i += MOST)
        scores(w, i, MOST, is_half);
    for (; i < n_queries; i++)
        scores(w, i, 1, is_half);
    mask16 before = first_lanes(w->from), seen = first_lanes(w->to);
    for (i = 0; i < n_queries; i++) {
        vec16 s = v_load(w->p + i * ATTENTION_KEYS), unseen = v_set(-(float)INFINITY);
        if (views[i].slope != 0)
            s = add_slope(w, &views[i], s);
        float page_max = v_fold_max(v_select(before, unseen, v_select(seen, s, unseen)));
        float top = max[i] > page_max ? max[i] : page_max;
        /* The change of scale in lane 0 of a vector of its own: one exp for both would need a lane to spare. */
        vec16 p = v_select(before, v_set(0), v_select(seen, v_exp(v_sub(s, v_set(top))), v_set(0)));
        float c[16];
        v_store(c, v_exp(v_set(max[i] - top)));
        change[i] = c[0];
        max[i] = top;
        total[i] = total[i] * change[i] + v_fold(p);
        v_store(w->p + i * ATTENTION_KEYS, p);
    }
    for (i = 0; i + MOST <= n_queries; i += MOST)
        add_all_values(w, change, i, MOST, 2, is_half);
    for (; i < n_queries; i++)
        add_all_values(w, change, i, 1, MOST, is_half);
}

/* n_queries queries over positions begin..end-1, which all of them see. */
INLINE void see_pages(struct page_work *w, const struct attention_pages *pages,
                      const struct attention_view *views, float *max, float *total, int n_queries, int begin,
                      int end, const bool is_half)
{
    while (begin < end) {
        int page = begin / ATTENTION_KEYS;
        w->first = page * ATTENTION_KEYS;
        w->from = begin - w->first;
        w->to = end - w->first < ATTENTION_KEYS ? end - w->first : ATTENTION_KEYS;
        w->keys = pages->base + (size_t)pages->page_table[page] * pages->page_bytes;
        w->values = w->keys + pages->values_offset;
        see_page(w, views, max, total, n_queries, is_half);
        begin = w->first + ATTENTION_KEYS;
    }
}

INLINE void attention(float *out, const float *q, const struct attention_view *views, int n_queries,
                      int head_dim, const struct attention_pages *pages, const bool is_half)
{
    float max[ATTENTION_QUERIES], total[ATTENTION_QUERIES] = { 0 };
    _Alignas(64) float p[ATTENTION_QUERIES * ATTENTION_KEYS];
    int begin = 0, end = views[0].end; /* the pages that all queries see whole */
    for (int i = 0; i < n_queries; i++) {
        max[i] = -(float)INFINITY;
        begin = views[i].begin > begin ? views[i].begin : begin;
        end = views[i].end < end ? views[i].end : end;
    }
    begin = (begin + ATTENTION_KEYS - 1) / ATTENTION_KEYS * ATTENTION_KEYS;
    end = end / ATTENTION_KEYS * ATTENTION_KEYS;
    if (end < begin)
        end = begin;
    for (int i = 0; i < n_queries * head_dim; i++)
        out[i] = 0;
    struct page_work w = { .q = q, .o = out, .p = p, .head_dim = head_dim };
    for (int i = 0; i < n_queries; i++) {
        w.q = q + i * head_dim;
        w.o = out + i * head_dim;
        see_pages(&w, pages, views + i, max + i, total + i, 1, views[i].begin,
                  views[i].end < begin ? views[i].end : begin, is_half);
    }
    w.q = q;
    w.o = out;
    see_pages(&w, pages, views, max, total, n_queries, begin, end, is_half);
    for (int i = 0; i < n_queries; i++) {
        w.q = q + i * head_dim;
        w.o = out + i * head_dim;
        see_pages(&w, pages, views + i, max + i, total + i, 1, end, views[i].end, is_half);
        int d = 0;
        for (; d + 16 <= head_dim; d += 16)
            v_store(w.o + d, v_div(v_load(w.o + d), v_set(total[i])));
        if (d < head_dim)
            v_store_n(w.o + d, v_div(v_load_n(w.o + d, 8), v_set(total[i])), 8);
    }
}

void VARIANT(attention_f16)(float *out, const float *q, const struct attention_view *views, int n_queries,
                            int head_dim, const struct attention_pages *pages)
{
    attention(out, q, views, n_queries, head_dim, pages, true);
}

void VARIANT(attention_f32)(float *out, const float *q, const struct attention_view *views, int n_queries,
                            int head_dim, const struct attention_pages *pages)
{
    attention(out, q, views, n_queries, head_dim, pages, false);
}
