/* Attention by fused multiply-adds, query after query: of F32 pages, of BF16 pages on level 75, and of pages of latents whose rows
 * do not fit the kernel of latent.c. Of keys and values in F32 and BF16 the results have the bits of kernels/ref.
 *
 * A score is a chain over the dimensions; of latents, dimension d goes into sum d % 16, and the sums are folded by halves. The
 * total is folded from 16 sums of the positions by their number % 16; a value is a chain over the positions. Leaves are not
 * used: a block's largest score is known before its exponentials. */
#include "kernels/cuda/attention/attention_body.h"

enum { PLAIN_THREADS = 128 };

/* What the threads of a block share. */
struct plain_shared {
    float q[CUDA_MAX_HEAD_DIM];
    float p[CUDA_ATTENTION_BLOCK];
    float warp_max[PLAIN_THREADS / WARP];
    struct softmax_state block, run;
    struct merge_factors factors;
    float divisor;
    uint32_t flag;
};

DEVICE float plain_element(const uint8_t *base, int type, int i)
{
    return type == CUDA_KV_F32    ? ((const float *)base)[i]
           : type == CUDA_KV_F16  ? half_float(((const uint16_t *)base)[i])
           : type == CUDA_KV_BF16 ? bits_f32((uint32_t)((const uint16_t *)base)[i] << 16)
                                  : (float)((const int8_t *)base)[i];
}

DEVICE float plain_sum16(const uint8_t *row, int type, const float *q, int begin, int end)
{
    float sum[16] = { 0 };
    for (int d = begin; d < end; d += 8) { /* begin and end are multiples of 8 */
        if ((d & 8) == 0)
            UNROLL for (int i = 0; i < 8; i++)
                sum[i] = fma_f32(q[d + i], plain_element(row, type, d + i), sum[i]);
        else
            UNROLL for (int i = 0; i < 8; i++)
                sum[8 + i] = fma_f32(q[d + i], plain_element(row, type, d + i), sum[8 + i]);
    }
    UNROLL for (int half = 8; half > 0; half /= 2) UNROLL for (int i = 0; i < half; i++)
        sum[i] += sum[i + half];
    return sum[0];
}

/* page: the head's keys, or the latents' rows. */
DEVICE float plain_score(const struct attention_args *a, const uint8_t *page, int type, bool is_latent,
                         const float *q, int key)
{
    int n = a->head_dim;
    if (is_latent) {
        const uint8_t *row = page + (type == CUDA_KV_F32 ? 4 : type == CUDA_KV_I8 ? 1 : 2) * key * n;
        if (type != CUDA_KV_I8)
            return plain_sum16(row, type, q, 0, n);
        const float *scales = (const float *)(page + CUDA_KV_PAGE * n) + key;
        float latent = plain_sum16(row, type, q, 0, a->n_latent) * scales[0];
        return fma_f32(plain_sum16(row, type, q, a->n_latent, n), scales[CUDA_KV_PAGE], latent);
    }
    const uint8_t *row = page + (type == CUDA_KV_F32 ? 4 : 2) * key * n;
    float sum = 0;
    for (int d = 0; d < n; d += 8) {
        u32x4 v[2] = { *(const u32x4 *)(row + (type == CUDA_KV_F32 ? 4 : 2) * d) };
        if (type == CUDA_KV_F32)
            v[1] = *(const u32x4 *)(row + 4 * d + 16);
        UNROLL for (int i = 0; i < 8; i++)
        {
            uint32_t bits = type == CUDA_KV_F32 ? v[i / 4][i % 4]
                            : i % 2 == 0        ? v[0][i / 2] << 16
                                                : v[0][i / 2] & 0xffff0000u;
            sum = fma_f32(q[d + i], bits_f32(bits), sum);
        }
    }
    return sum;
}

/* o = sum of p * value of dimension d, over the positions begin..end - 1. */
DEVICE float plain_value(const struct attention_args *a, const uint8_t *pages, const int32_t *table, int type,
                         bool is_latent, const float *p, int begin, int end, int d)
{
    float o = 0;
    for (int pos = begin; pos < end; pos++) {
        const uint8_t *page = pages + (uint64_t)table[pos / CUDA_KV_PAGE] * a->page_bytes;
        int key = pos % CUDA_KV_PAGE;
        float weight = p[pos % CUDA_ATTENTION_BLOCK];
        if (is_latent && type == CUDA_KV_I8)
            weight *= ((const float *)(page + CUDA_KV_PAGE * a->head_dim))[key];
        o = fma_f32(weight,
                    plain_element(page, type, is_latent ? key * a->head_dim + d : d * CUDA_KV_PAGE + key), o);
    }
    return o;
}

/* Block: the largest score of a block of positions, and the exponentials and their total. is_empty: the query sees none of them. */
DEVICE void plain_softmax(struct plain_shared *s, float score[CUDA_ATTENTION_BLOCK / PLAIN_THREADS],
                          bool is_empty)
{
    float top = MINUS_INFINITY;
    UNROLL for (int i = 0; i < CUDA_ATTENTION_BLOCK / PLAIN_THREADS; i++) top = max_f32(top, score[i]);
    top = warp_max_f32(top, WARP);
    if (lane_id() == 0)
        s->warp_max[warp_id()] = top;
    block_sync();
    UNROLL for (int w = 0; w < PLAIN_THREADS / WARP; w++) top = max_f32(top, s->warp_max[w]);
    UNROLL for (int i = 0; i < CUDA_ATTENTION_BLOCK / PLAIN_THREADS; i++)
    {
        float p = exp_f32(score[i] - (is_empty ? 0 : top));
        s->p[thread_id() + PLAIN_THREADS * i] = p;
    }
    block_sync();
    if (warp_id() > 0)
        return;
    float sum = 0;
    for (int i = lane_id(); i < CUDA_ATTENTION_BLOCK && lane_id() < 16; i += 16)
        sum += s->p[i];
    sum = warp_sum_f32(sum, 16);
    if (lane_id() == 0)
        s->block = (struct softmax_state){ top, sum };
}

/* Block: a query and one block of positions. is_last: of the unit. */
DEVICE void plain_block(const struct attention_args *a, struct plain_shared *s,
                        const struct attention_unit *unit, const struct tile_query *x, const uint8_t *pages,
                        int type, bool is_latent, int group, int query, int at)
{
    const int32_t *table = a->tables + (int64_t)unit->table * a->max_pages;
    int block = unit->first_block + at, base = block * CUDA_ATTENTION_BLOCK;
    int begin = max_i32(x->begin, base), end = min_i32(x->end, base + CUDA_ATTENTION_BLOCK);
    float score[CUDA_ATTENTION_BLOCK / PLAIN_THREADS], slope = a->slopes ? a->slopes[x->head] : 0;
    UNROLL for (int i = 0; i < CUDA_ATTENTION_BLOCK / PLAIN_THREADS; i++)
    {
        int pos = base + thread_id() + PLAIN_THREADS * i;
        score[i] = MINUS_INFINITY;
        if (pos >= begin && pos < end) {
            const uint8_t *page = pages + (uint64_t)table[pos / CUDA_KV_PAGE] * a->page_bytes;
            score[i] = finish_score(a, plain_score(a, page, type, is_latent, s->q, pos % CUDA_KV_PAGE), slope,
                                    pos - x->pos);
        }
    }
    plain_softmax(s, score, begin >= end);
    bool is_last = at == unit->n_blocks - 1, is_cut = unit->slot >= 0;
    if (thread_id() == 0 && !is_cut) {
        s->factors = merge_state(&s->run, s->block);
        s->divisor = denominator_of(a, s->run, x->head);
    }
    block_sync();
    float *to = is_cut ? partial_of(a, unit, group, unit->at + at, query)
                       : a->y + ((int64_t)x->row * a->n_heads + x->head) * a->value_dim;
    const uint8_t *values = is_latent ? pages : pages + cuda_kv_head_bytes(type, a->head_dim);
    for (int d = thread_id(); d < a->value_dim; d += PLAIN_THREADS) {
        float o = plain_value(a, values, table, type, is_latent, s->p, begin, end, d);
        if (!is_cut) {
            o = merge_value(at == 0 ? 0 : to[d], o, &s->factors);
            o = is_last ? divide_exact(o, s->divisor) : o;
        }
        to[d] = o;
    }
    if (is_cut && thread_id() == 0) {
        to[a->value_dim] = s->block.max;
        to[a->value_dim + 1] = s->block.total;
    }
    block_sync();
}

DEVICE void attend_plain(const struct attention_args *a, struct plain_shared *s, int type, bool is_latent)
{
    int n_units = a->plan->n_units * a->n_groups;
    for (int u = block_id(); u < n_units; u += n_blocks()) {
        struct attention_unit unit = a->plan->units[u / a->n_groups];
        int group = u % a->n_groups;
        struct head_group heads = head_group_of(a, group);
        const uint8_t *pages = a->pages + (uint64_t)heads.kv_head * 2 * cuda_kv_head_bytes(type, a->head_dim);
        for (int query = 0; query < n_tile_queries(&unit, &heads); query++) {
            struct tile_query x = tile_query_of(a, &unit, &heads, query);
            const float *q = a->q + (int64_t)x.row * a->q_row + x.head * a->head_dim;
            for (int d = thread_id(); d < a->head_dim; d += PLAIN_THREADS)
                s->q[d] = q[d] * a->scale;
            if (thread_id() == 0)
                s->run = (struct softmax_state){ 0, 0 };
            block_sync();
            for (int at = 0; at < unit.n_blocks; at++)
                plain_block(a, s, &unit, &x, pages, type, is_latent, group, query, at);
        }
        if (unit.slot >= 0 && is_last_unit(a, &unit, group, &s->flag))
            merge_tile(a, &unit, &heads, group, PLAIN_THREADS, true);
        block_sync();
    }
}

KERNEL(attention_f32, struct attention_args, PLAIN_THREADS)
{
    SHARED(struct plain_shared, s, 1);
    attend_plain(&a, s, CUDA_KV_F32, false);
}

KERNEL(attention_plain_bf16, struct attention_args, PLAIN_THREADS)
{
    SHARED(struct plain_shared, s, 1);
    attend_plain(&a, s, CUDA_KV_BF16, false);
}

KERNEL(attention_latent_f32, struct attention_args, PLAIN_THREADS)
{
    SHARED(struct plain_shared, s, 1);
    attend_plain(&a, s, CUDA_KV_F32, true);
}

KERNEL(attention_latent_plain_f16, struct attention_args, PLAIN_THREADS)
{
    SHARED(struct plain_shared, s, 1);
    attend_plain(&a, s, CUDA_KV_F16, true);
}

KERNEL(attention_latent_plain_bf16, struct attention_args, PLAIN_THREADS)
{
    SHARED(struct plain_shared, s, 1);
    attend_plain(&a, s, CUDA_KV_BF16, true);
}

KERNEL(attention_latent_plain_i8, struct attention_args, PLAIN_THREADS)
{
    SHARED(struct plain_shared, s, 1);
    attend_plain(&a, s, CUDA_KV_I8, true);
}
