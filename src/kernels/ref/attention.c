/* Attention over a block of positions, and merging blocks. */
#include "kernels/ref/ref.h"
#include "kernels/ref/softcap.h"

enum kv_kind { KV_F32, KV_F16, KV_BF16, KV_INT8 };

/* One query, and the positions of the block that it attends to. */
struct query {
    const struct attention_work *work;
    const float *q;
    const struct attention_view *view;
    const int16_t *q_int;
    float q_scale;
    float q_rotary_scale; /* of latent pages: of the dimensions from n_latent on */
    int begin, end;       /* positions */
};

static const uint8_t *keys_of(const struct attention_work *work, int pos)
{
    return work->base + (size_t)work->page_table[pos / ATTENTION_KEYS] * work->page_bytes;
}

static float element(const uint8_t *base, enum kv_kind kind, size_t i)
{
    const uint16_t *halves = (const uint16_t *)base;
    return kind == KV_F16    ? half_to_float(halves[i])
           : kind == KV_BF16 ? bf16_to_float(halves[i])
                             : ((const float *)base)[i];
}

static float scale_of(const uint8_t *base, int head_dim, int pos)
{
    return ((const float *)(base + (size_t)ATTENTION_KEYS * (size_t)head_dim))[pos % ATTENTION_KEYS];
}

/* The sum of int8 elements begin to end - 1 of a latent row times q. */
static float int8_sum(const struct query *x, const int8_t *row, int begin, int end, float q_scale)
{
    int sum = 0;
    for (int d = begin; d < end && !isnan(q_scale); d++)
        sum += x->q_int[d] * row[d];
    return (float)sum;
}

/* The score of a position of a latent page. */
static float latent_score_of(const struct query *x, enum kv_kind kind, int pos)
{
    const uint8_t *page = keys_of(x->work, pos);
    int head_dim = x->work->head_dim, n_latent = x->work->n_latent, key = pos % ATTENTION_KEYS;
    if (kind == KV_INT8) {
        const int8_t *row = (const int8_t *)page + key * head_dim;
        const float *scales = (const float *)(page + ATTENTION_KEYS * head_dim) + key;
        float latent = int8_sum(x, row, 0, n_latent, x->q_scale) * (scales[0] * x->q_scale);
        float rotary = int8_sum(x, row, n_latent, head_dim, x->q_rotary_scale);
        return fmaf(rotary, scales[ATTENTION_KEYS] * x->q_rotary_scale, latent);
    }
    float sum[16] = { 0 };
    for (int d = 0; d < (head_dim + 15) / 16 * 16; d++) {
        bool is_padding = d >= head_dim;
        float k = is_padding ? 0 : element(page, kind, (size_t)key * (size_t)head_dim + (size_t)d);
        sum[d % 16] = fmaf(is_padding ? 0 : x->q[d], k, sum[d % 16]);
    }
    return fold16(sum);
}

static float score_of(const struct query *x, enum kv_kind kind, int pos)
{
    const uint8_t *keys = keys_of(x->work, pos);
    int head_dim = x->work->head_dim, key = pos % ATTENTION_KEYS;
    float score = 0;
    if (x->work->n_latent > 0) {
        score = latent_score_of(x, kind, pos);
    } else if (kind == KV_INT8) {
        int sum = 0;
        for (int d = 0; d < head_dim && !isnan(x->q_scale); d++)
            sum += x->q_int[d] * ((const int8_t *)keys)[(d / 2 * ATTENTION_KEYS + key) * 2 + d % 2];
        score = (float)sum * (scale_of(keys, head_dim, pos) * x->q_scale);
    } else {
        for (int d = 0; d < head_dim; d++)
            score = fmaf(x->q[d], element(keys, kind, (size_t)d * ATTENTION_KEYS + (size_t)key), score);
    }
    if (x->work->softcap > 0)
        score = softcap_one(score, x->work->softcap);
    return x->view->slope != 0 ? fmaf(x->view->slope, (float)(pos - x->view->pos), score) : score;
}

/* o = sum of p[pos % 256] * value, over the positions. */
static void add_floats(float *o, const struct query *x, enum kv_kind kind, const float *p)
{
    int value_dim = attention_value_dim(x->work), stride = x->work->head_dim;
    for (int pos = x->begin; pos < x->end; pos++) {
        const uint8_t *values = keys_of(x->work, pos) + x->work->values_offset;
        for (int d = 0; d < value_dim; d++)
            o[d] = fmaf(p[pos % ATTENTION_BLOCK],
                        element(values, kind, (size_t)(pos % ATTENTION_KEYS) * (size_t)stride + (size_t)d),
                        o[d]);
    }
}

static void add_integers(float *o, const struct query *x, const float *p)
{
    int head_dim = x->work->head_dim, value_dim = attention_value_dim(x->work);
    float weights[ATTENTION_BLOCK], top = 0;
    bool is_nan = false;
    for (int pos = x->begin; pos < x->end; pos++) {
        float scale = scale_of(keys_of(x->work, pos) + x->work->values_offset, head_dim, pos);
        float w = weights[pos % ATTENTION_BLOCK] = p[pos % ATTENTION_BLOCK] * scale;
        is_nan |= isnan(w);
        top = max_of(w, top);
    }
    if (top < 0x1p-100f && !is_nan)
        return;
    float inverse = 32767.0f / top, step = is_nan ? (float)NAN : top / 32767.0f;
    for (int d = 0; d < value_dim; d++) {
        int sum = 0;
        for (int pos = x->begin; pos < x->end && !is_nan; pos++) {
            const uint8_t *values = keys_of(x->work, pos) + x->work->values_offset;
            int key = pos % ATTENTION_KEYS;
            int w = (int)rintf(weights[pos % ATTENTION_BLOCK] * inverse);
            int at = x->work->n_latent > 0 ? key * head_dim + d : (key / 2 * head_dim + d) * 2 + key % 2;
            sum += w * ((const int8_t *)values)[at];
        }
        o[d] = (float)sum * step;
    }
}

/* max|x|, or a NaN if there is one: as integers, absolute values have the same order, and NaN is
 * the largest. */
static float max_abs(const float *x, int n)
{
    uint32_t bits = 0;
    for (int i = 0; i < n; i++)
        bits = (float_bits(x[i]) & 0x7FFFFFFF) > bits ? float_bits(x[i]) & 0x7FFFFFFF : bits;
    return bits_float(bits);
}

static float quantize_query(int16_t *q, const float *x, int n)
{
    int limit = ATTENTION_LIMIT(n);
    float max = max_abs(x, n), inverse = (float)limit / max;
    bool is_zero = max < 0x1p-100f || !isfinite(max);
    for (int i = 0; i < n; i++)
        q[i] = is_zero ? 0 : (int16_t)rintf(x[i] * inverse);
    return !isfinite(max) ? (float)NAN : is_zero ? 0 : max / (float)limit;
}

static void see_block(float *o, float *max, float *total, const struct query *x, enum kv_kind kind)
{
    float p[ATTENTION_BLOCK], top[16], sum[16] = { 0 };
    for (int d = 0; d < attention_value_dim(x->work); d++)
        o[d] = 0;
    for (int i = 0; i < 16; i++)
        top[i] = -(float)INFINITY;
    for (int pos = x->begin; pos < x->end; pos++) {
        float score = p[pos % ATTENTION_BLOCK] = score_of(x, kind, pos);
        top[pos % 16] = max_of(top[pos % 16], score);
    }
    *max = fold16_max(top);
    for (int pos = x->begin; pos < x->end; pos++) {
        float weight = p[pos % ATTENTION_BLOCK] = exp_ref(p[pos % ATTENTION_BLOCK] - *max);
        sum[pos % 16] += weight;
    }
    *total = fold16(sum);
    if (kind == KV_INT8)
        add_integers(o, x, p);
    else
        add_floats(o, x, kind, p);
}

static void attention(const struct attention_sums *sums, const struct attention_work *work, int block,
                      enum kv_kind kind)
{
    int begin = block * ATTENTION_BLOCK, end = begin + ATTENTION_BLOCK;
    int16_t q_int[ATTENTION_MAX_DIM];
    for (int i = 0; i < work->n_queries; i++) {
        const struct attention_view *view = &work->views[i];
        struct query x = { .work = work, .q = work->q + i * work->head_dim, .view = view };
        x.begin = view->begin > begin ? view->begin : begin;
        x.end = view->end < end ? view->end : end;
        sums->total[i] = 0;
        sums->max[i] = -(float)INFINITY;
        if (x.begin >= x.end)
            continue;
        if (kind == KV_INT8) {
            int n = attention_value_dim(work);
            x.q_scale = quantize_query(q_int, x.q, n);
            if (n < work->head_dim)
                x.q_rotary_scale = quantize_query(q_int + n, x.q + n, work->head_dim - n);
            x.q_int = q_int;
        }
        see_block(sums->o + i * attention_value_dim(work), &sums->max[i], &sums->total[i], &x, kind);
    }
}

void attention_f16_ref(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_F16);
}

void attention_bf16_ref(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_BF16);
}

void attention_f32_ref(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_F32);
}

void attention_int8_ref(const struct attention_sums *sums, const struct attention_work *work, int block)
{
    attention(sums, work, block, KV_INT8);
}

void attention_merge_ref(const struct attention_sums *into, const struct attention_sums *from, int n_queries,
                         int value_dim)
{
    for (int i = 0; i < n_queries; i++) {
        float *o = into->o + i * value_dim;
        const float *more = from->o + i * value_dim;
        if (from->total[i] == 0)
            continue;
        bool is_first = into->total[i] == 0;
        float top = is_first ? from->max[i] : max_of(into->max[i], from->max[i]);
        float a = exp_ref(into->max[i] - top), b = exp_ref(from->max[i] - top);
        into->max[i] = top;
        into->total[i] = is_first ? from->total[i] : fmaf(from->total[i], b, into->total[i] * a);
        for (int d = 0; d < value_dim; d++)
            o[d] = is_first ? more[d] : fmaf(more[d], b, o[d] * a);
    }
}

float to_int8_ref(int8_t *q, const float *x, int n)
{
    float max = max_abs(x, n), inverse = 127.0f / max;
    bool is_zero = max < 0x1p-100f || !isfinite(max);
    for (int i = 0; i < n; i++)
        q[i] = is_zero ? 0 : (int8_t)rintf(x[i] * inverse);
    return !isfinite(max) ? (float)NAN : is_zero ? 0 : max / 127.0f;
}

void divide_ref(float *y, const float *x, float divisor, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = x[i] / divisor;
}
