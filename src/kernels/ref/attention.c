#include "kernels/ref/ref.h"

static float element(const uint8_t *base, bool is_half, size_t i)
{
    return is_half ? half_to_float(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

static float score(const float *q, const uint8_t *keys, bool is_half, int key, int head_dim)
{
    float sum[2] = { 0, 0 };
    for (int d = 0; d < head_dim; d++)
        sum[d % 2] = fmaf(q[d], element(keys, is_half, (size_t)d * ATTENTION_KEYS + (size_t)key), sum[d % 2]);
    return sum[0] + sum[1];
}

/* One query over the page that holds positions first..; of those it sees what view says, at least one. */
static void see_page(float *o, float *max, float *total, const float *q, const struct attention_view *view,
                     int first, const uint8_t *keys, const uint8_t *values, bool is_half, int head_dim)
{
    float p[16], s[16];
    for (int i = 0; i < ATTENTION_KEYS; i++) {
        bool is_seen = first + i >= view->begin && first + i < view->end;
        p[i] = s[i] = is_seen ? score(q, keys, is_half, i, head_dim) : -(float)INFINITY;
        if (is_seen && view->slope != 0)
            p[i] = s[i] = fmaf(view->slope, (float)(first + i - view->pos), s[i]);
    }
    float top = max_of(*max, fold16_max(p));
    float c = exp_ref(*max - top);
    for (int i = 0; i < ATTENTION_KEYS; i++) {
        bool is_seen = first + i >= view->begin && first + i < view->end;
        s[i] = p[i] = is_seen ? exp_ref(s[i] - top) : 0.0f;
    }
    *max = top;
    *total = *total * c + fold16(p);
    int from = view->begin > first ? view->begin - first : 0;
    int to = view->end - first < ATTENTION_KEYS ? view->end - first : ATTENTION_KEYS;
    for (int d = 0; d < head_dim; d++) {
        float sum = o[d] * c;
        for (int i = from; i < to; i++)
            sum = fmaf(s[i], element(values, is_half, (size_t)i * (size_t)head_dim + (size_t)d), sum);
        o[d] = sum;
    }
}

static void attention(float *out, const float *q, const struct attention_view *views, int n_queries,
                      int head_dim, const struct attention_pages *pages, bool is_half)
{
    for (int i = 0; i < n_queries; i++, out += head_dim, q += head_dim) {
        float max = -(float)INFINITY, total = 0;
        for (int d = 0; d < head_dim; d++)
            out[d] = 0;
        for (int page = views[i].begin / ATTENTION_KEYS; page * ATTENTION_KEYS < views[i].end; page++) {
            const uint8_t *keys = pages->base + (size_t)pages->page_table[page] * pages->page_bytes;
            see_page(out, &max, &total, q, &views[i], page * ATTENTION_KEYS, keys,
                     keys + pages->values_offset, is_half, head_dim);
        }
        for (int d = 0; d < head_dim; d++)
            out[d] /= total;
    }
}

void attention_f16_ref(float *out, const float *q, const struct attention_view *views, int n_queries,
                       int head_dim, const struct attention_pages *pages)
{
    attention(out, q, views, n_queries, head_dim, pages, true);
}

void attention_f32_ref(float *out, const float *q, const struct attention_view *views, int n_queries,
                       int head_dim, const struct attention_pages *pages)
{
    attention(out, q, views, n_queries, head_dim, pages, false);
}
