/* The arithmetic of one leaf of positions by matrix instructions, for kernels whose warps have a tile of 16 queries each.
 *
 * With lane = 4 g + t, a lane has queries g and g + 8 of the tile. The scores of a page of 16 positions are two matrices of 8
 * columns: column 2 t' + i of matrix m is position 4 t' + 2 m + i, so that a lane's scores are those of positions 4t to
 * 4t + 3. As weights they are a fragment of the next product, whose other fragment is four adjacent elements of a dimension
 * of the values, which are stored transposed. Of 32 dimensions of a key a lane has 8t to 8t + 7 (linear.c has the same order).
 *
 * Queries are multiplied by the scale, and by a power of two that makes their largest element at least 2^14 and less than
 * 2^15, and rounded to float16. Keys and values are float16, int8 as the float16 of the integer: the scale of a key multiplies
 * the score, that of a value the weight. Weights are rounded to float16, those of int8 after a multiplication by a power of
 * two that makes the largest of the leaf at least 1 and less than 2.
 *
 * With pages of bfloat16, queries and weights are the sum of two bfloat16 (factors_of()), and a product takes two matrix
 * instructions: 16 bits of them are kept, where one bfloat16 would round them more coarsely than float16 does.
 *
 * What a query gets from a leaf: the largest score; the total, in a lane over its 16 positions in ascending order, then over
 * t; and the values by matrix instructions, page by page. Positions that a query does not see have the weight 0, and their
 * values are zero, or finite, or do not come near the query: see leaf_values(). */
#ifndef TUTTI_KERNELS_CUDA_ATTENTION_MMA_H
#define TUTTI_KERNELS_CUDA_ATTENTION_MMA_H

#include "kernels/cuda/attention/attention_body.h"

enum {
    LEAF_PAGES = CUDA_ATTENTION_LEAF / CUDA_KV_PAGE,
    CHUNK_COLUMNS = CUDA_VALUE_CHUNK / 8,
};

/* What a query sees. */
struct query_view {
    int begin, end, pos;
    float slope;
} __attribute__((aligned(16)));

/* A tile, in shared memory: a leaf needs registers for other things. */
struct mma_tile {
    struct query_view views[CUDA_TILE_QUERIES];
    float factor[CUDA_TILE_QUERIES]; /* of products of the query */
    /* Of all queries of the tile: the positions that some, and that all of them see. */
    int first, last_end, all_first, all_end;
    const int32_t *table;
    const uint8_t *keys; /* of the KV head, in page 0 */
    struct attention_unit unit;
    struct head_group heads;
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct mma_tile) == CUDA_TILE_BYTES, "the host knows its size");

DEVICE int reduce_min(int v)
{
    UNROLL for (int mask = 4; mask < WARP; mask *= 2) v = min_i32(v, (int)shuffle_xor_u32((uint32_t)v, mask));
    return v;
}

/* Fragments of 16 bytes of one part of a tile's queries. */
DEVICE int query_fragments(int head_dim)
{
    return (head_dim + 31) / 32 * 2 * WARP;
}

/* Warp: writes a tile, and its queries as fragments [part][dimensions / 16][lane], of which this warp writes those of
 * 32-dimension chunks warp, warp + n_warps, ...; warp 0 writes the tile, which is known after the next barrier. */
DEVICE const struct mma_tile *mma_tile_of(const struct attention_args *a, const struct attention_unit *unit,
                                          const struct head_group *heads, int type, int head_dim,
                                          u32x4 *queries, int warp, int n_warps)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    struct mma_tile *tile = (struct mma_tile *)(queries + cuda_query_parts(type) * query_fragments(head_dim));
    const float *q[2];
    float inverse[2];
    int first = INT32_MAX, last_end = INT32_MAX, all_first = INT32_MAX, all_end = INT32_MAX;
    UNROLL for (int j = 0; j < 2; j++)
    {
        struct tile_query x = tile_query_of(a, unit, heads, g + 8 * j);
        q[j] = x.is_there ? a->q + (int64_t)x.row * a->q_row + x.head * head_dim : NULL;
        if (warp == 0 && t == 0)
            tile->views[g + 8 * j] = (struct query_view){ x.begin, x.end, x.pos,
                                                          a->slopes && x.is_there ? a->slopes[x.head] : 0 };
        if (x.is_there) {
            first = min_i32(first, x.begin);
            last_end = min_i32(last_end, -x.end);
            all_first = min_i32(all_first, -x.begin);
            all_end = min_i32(all_end, x.end);
        }
        uint32_t top = 0; /* as integers, absolute values have the same order, and NaN is the largest */
        for (int d = 8 * t; d < head_dim && q[j]; d += 32) {
            f32x4 low = *(const f32x4 *)(q[j] + d), high = *(const f32x4 *)(q[j] + d + 4);
            UNROLL for (int i = 0; i < 4; i++)
            {
                uint32_t l = f32_bits(low[i] * a->scale) & 0x7fffffff,
                         h = f32_bits(high[i] * a->scale) & 0x7fffffff;
                top = l > top ? l : top;
                top = h > top ? h : top;
            }
        }
        top = warp_max_u32(top, 4);
        int exponent = query_exponent(top, type);
        bool is_finite = top < 0x7f800000u;
        inverse[j] = is_finite ? bits_f32((uint32_t)exponent << 23) : __builtin_nanf("");
        if (warp == 0 && t == 0)
            tile->factor[g + 8 * j] = is_finite ? bits_f32((uint32_t)(254 - exponent) << 23)
                                                : __builtin_nanf("");
    }
    first = reduce_min(first);
    last_end = -reduce_min(last_end);
    all_first = -reduce_min(all_first);
    all_end = reduce_min(all_end);
    if (warp == 0 && lane_id() == 0) {
        tile->first = first;
        tile->last_end = last_end;
        tile->all_first = all_first;
        tile->all_end = all_end;
        tile->table = a->tables + (int64_t)unit->table * a->max_pages;
        tile->keys = a->pages + (uint64_t)heads->kv_head * 2 * cuda_kv_head_bytes(type, head_dim);
        tile->unit = *unit;
        tile->heads = *heads;
    }
    for (int c = warp; 32 * c < head_dim; c += n_warps) {
        float x[2][8]; /* [query][dimensions 8t to 8t + 7] */
        UNROLL for (int j = 0; j < 2; j++)
        {
            f32x4 low = { 0 }, high = { 0 };
            if (q[j] && 32 * c + 8 * t < head_dim) {
                low = *(const f32x4 *)(q[j] + 32 * c + 8 * t);
                high = *(const f32x4 *)(q[j] + 32 * c + 8 * t + 4);
            }
            UNROLL for (int i = 0; i < 8; i++)
                x[j][i] = (i < 4 ? low[i % 4] : high[i % 4]) * a->scale * inverse[j];
        }
        UNROLL for (int part = 0; part < cuda_query_parts(type); part++) UNROLL for (int i = 0; i < 2; i++)
        {
            u32x4 v;
            UNROLL for (int k = 0; k < 4; k++)
                v[k] = factors_of(x[k % 2][4 * i + k / 2 * 2], x[k % 2][4 * i + k / 2 * 2 + 1], type, part);
            queries[part * query_fragments(head_dim) + (2 * c + i) * WARP + lane_id()] = v;
        }
    }
    return tile;
}

/* Four int8 as float16: u = b + 128 is in the low bits of 1024 + u. */
DEVICE void int8_halves(half2 to[2], uint32_t bytes)
{
    uint32_t u = bytes ^ 0x80808080u;
    to[0] = half2_sub(permute_bytes(u, 0x64646464u, 0x4140), 0x64806480u);
    to[1] = half2_sub(permute_bytes(u, 0x64646464u, 0x4342), 0x64806480u);
}

/* Eight elements of a key. once: the bytes are not needed again soon. */
DEVICE void load_key(half2 to[4], const uint8_t *row, int type, int d, bool once)
{
    if (type == CUDA_KV_I8) {
        u32x2 v = once ? load_once_8(row + d) : *(const u32x2 *)(row + d);
        int8_halves(to, v[0]);
        int8_halves(to + 2, v[1]);
        return;
    }
    u32x4 v = once ? load_once_16(row + 2 * d) : *(const u32x4 *)(row + 2 * d);
    UNROLL for (int i = 0; i < 4; i++) to[i] = v[i];
}

/* Elements 4t to 4t + 3 of a dimension of the values. */
DEVICE void load_value(half2 to[2], const uint8_t *values, int type, int d, int t, bool once)
{
    if (type == CUDA_KV_I8) {
        int8_halves(to, *(const uint32_t *)(values + d * CUDA_KV_PAGE + 4 * t));
        return;
    }
    const uint8_t *from = values + 2 * (d * CUDA_KV_PAGE + 4 * t);
    u32x2 v = once ? load_once_8(from) : *(const u32x2 *)from;
    to[0] = v[0];
    to[1] = v[1];
}

/* A leaf as a lane has it. */
struct leaf {
    int first_page;                     /* of the sequence */
    bool is_full;                       /* all queries see all positions */
    const uint8_t *pages[LEAF_PAGES];   /* the head's keys; pages that no query sees are replaced by others */
    uint32_t weights[2][LEAF_PAGES][4]; /* fragments of each part */
    struct softmax_state state[2];      /* total 0: the query sees nothing here */
    float unit[2];                      /* what the values must be multiplied by */
};

/* Whether some query of the tile sees a position of a leaf. */
DEVICE bool leaf_is_seen(const struct mma_tile *tile, int leaf)
{
    int base = leaf * CUDA_ATTENTION_LEAF;
    return base < tile->last_end && base + CUDA_ATTENTION_LEAF > tile->first;
}

/* Loads the keys of a leaf for dimensions 32 c to 32 c + 31, and adds the products. */
DEVICE void add_products(float s[LEAF_PAGES][2][4], const struct leaf *leaf, const u32x4 *queries, int c,
                         int type, int head_dim, bool once)
{
    int g = lane_id() / 4, t = lane_id() % 4, key = 4 * (g / 2) + g % 2;
    int row_bytes = type == CUDA_KV_I8 ? head_dim : 2 * head_dim;
    half2 k[LEAF_PAGES][2][4];
    bool is_there = 32 * c + 8 * t < head_dim;
    UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int m = 0; m < 2; m++)
    {
        UNROLL for (int i = 0; i < 4; i++) k[p][m][i] = 0;
        if (is_there)
            load_key(k[p][m], leaf->pages[p] + (key + 2 * m) * row_bytes, type, 32 * c + 8 * t, once);
    }
    UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
    {
        const u32x4 *from = queries + part * query_fragments(head_dim) + 2 * c * WARP + lane_id();
        u32x4 low = from[0], high = from[WARP];
        uint32_t q[2][4];
        UNROLL for (int i = 0; i < 4; i++)
        {
            q[0][i] = low[i];
            q[1][i] = high[i];
        }
        UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int m = 0; m < 2; m++)
        {
            mma_factors(s[p][m], q[0], k[p][m], type);
            mma_factors(s[p][m], q[1], k[p][m] + 2, type);
        }
    }
}

DEVICE void leaf_products(float s[LEAF_PAGES][2][4], const struct leaf *leaf, const u32x4 *queries, int type,
                          int head_dim, bool once)
{
    UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int m = 0; m < 2; m++)
        UNROLL for (int i = 0; i < 4; i++) s[p][m][i] = 0;
    if (once) { /* from memory: as many loads at a time as registers allow */
        for (int c = 0; 32 * c < head_dim; c++)
            add_products(s, leaf, queries, c, type, head_dim, once);
    } else { /* the registers have the block's values */
        NO_UNROLL for (int c = 0; 32 * c < head_dim; c++)
            add_products(s, leaf, queries, c, type, head_dim, once);
    }
}

/* Four scales that belong to positions 4t to 4t + 3 of a page; part: the keys' or values' of a head. */
DEVICE f32x4 load_scales(const uint8_t *part, int head_dim, int t)
{
    return *(const f32x4 *)(part + CUDA_KV_PAGE * head_dim + 16 * t);
}

/* What must be done to scores before they are compared. Without it, as for most leaves, they remain multiples of the scores:
 * multiplying by tile->factor, a power of two, is a part of the subtraction of the largest.
 * Returns whether the factor was multiplied already. */
DEVICE bool leaf_finish_scores(float s[LEAF_PAGES][2][4], const struct attention_args *a,
                               const struct mma_tile *tile, const struct leaf *leaf, int type, int head_dim)
{
    int base = leaf->first_page * CUDA_KV_PAGE, first = base + lane_id() % 4 * 4;
    if (type == CUDA_KV_I8)
        UNROLL for (int p = 0; p < LEAF_PAGES; p++)
        {
            f32x4 scales = load_scales(leaf->pages[p], head_dim, lane_id() % 4);
            UNROLL for (int i = 0; i < 8; i++) s[p][i / 4][i % 4] *= scales[i / 4 * 2 + i % 2];
        }
    bool is_finished = a->softcap > 0 || a->slopes;
    if (is_finished)
        UNROLL for (int j = 0; j < 2; j++)
        {
            struct query_view view = tile->views[lane_id() / 4 + 8 * j];
            UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 4; i++)
            {
                float *score = &s[p][i / 2][2 * j + i % 2];
                *score = finish_score(a, *score * tile->factor[lane_id() / 4 + 8 * j], view.slope,
                                      first + p * CUDA_KV_PAGE + i - view.pos);
            }
        }
    if (!leaf->is_full)
        UNROLL for (int j = 0; j < 2; j++)
        {
            struct query_view view = tile->views[lane_id() / 4 + 8 * j];
            UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 4; i++)
            {
                int pos = first + p * CUDA_KV_PAGE + i;
                float *score = &s[p][i / 2][2 * j + i % 2];
                *score = pos >= view.begin && pos < view.end ? *score : MINUS_INFINITY;
            }
        }
    return is_finished;
}

/* Weights of int8 values: times the values' scales, in units of a power of two. */
DEVICE void leaf_scale_weights(float s[LEAF_PAGES][2][4], struct leaf *leaf, int head_dim)
{
    int t = lane_id() % 4;
    f32x4 scales[LEAF_PAGES];
    uint32_t largest = 0; /* as integers, infinities and NaNs are the largest, and negative numbers */
    UNROLL for (int p = 0; p < LEAF_PAGES; p++)
    {
        scales[p] = load_scales(leaf->pages[p] + cuda_kv_head_bytes(CUDA_KV_I8, head_dim), head_dim, t);
        UNROLL for (int i = 0; i < 4; i++)
        {
            uint32_t bits = f32_bits(scales[p][i]);
            largest = bits > largest ? bits : largest;
        }
    }
    float top[2] = { 0, 0 }, inverse[2];
    if (largest < 0x7f800000u)
        UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 8; i++)
            s[p][i / 4][i % 4] *= scales[p][i / 4 * 2 + i % 2];
    else /* zero times such a scale is not zero, and the position may be one that the query does not see */
        UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 8; i++)
        {
            float w = s[p][i / 4][i % 4];
            s[p][i / 4][i % 4] = w == 0 ? 0 : w * scales[p][i / 4 * 2 + i % 2];
        }
    UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 8; i++)
        top[i / 2 % 2] = max_f32(top[i / 2 % 2], s[p][i / 4][i % 4]);
    UNROLL for (int j = 0; j < 2; j++)
    {
        top[j] = warp_max_f32(top[j], 4);
        int exponent = 254 - (int)(f32_bits(top[j]) >> 23 & 255);
        exponent = top[j] == 0 ? 127 : max_i32(min_i32(exponent, 253), 1);
        inverse[j] = bits_f32((uint32_t)exponent << 23);
        leaf->unit[j] = bits_f32((uint32_t)(254 - exponent) << 23);
    }
    UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int m = 0; m < 2; m++)
        UNROLL for (int i = 0; i < 4; i++) s[p][m][i] *= inverse[i / 2];
}

/* Warp: the softmax of a leaf that some query sees. Keys of pages outside of what the tile sees are not read. */
DEVICE struct leaf leaf_of(const struct attention_args *a, const struct mma_tile *tile, const u32x4 *queries,
                           int number, int type, int head_dim, bool once)
{
    struct leaf leaf = { .first_page = number * LEAF_PAGES,
                         .is_full = number * CUDA_ATTENTION_LEAF >= tile->all_first &&
                                    (number + 1) * CUDA_ATTENTION_LEAF <= tile->all_end };
    float s[LEAF_PAGES][2][4];
    int low = tile->first / CUDA_KV_PAGE, high = (tile->last_end - 1) / CUDA_KV_PAGE;
    UNROLL for (int p = 0; p < LEAF_PAGES; p++)
    {
        int page = max_i32(min_i32(leaf.first_page + p, high), low);
        leaf.pages[p] = tile->keys + (uint64_t)tile->table[page] * a->page_bytes;
    }
    leaf_products(s, &leaf, queries, type, head_dim, once);
    bool is_finished = leaf_finish_scores(s, a, tile, &leaf, type, head_dim);
    UNROLL for (int j = 0; j < 2; j++)
    {
        float top = MINUS_INFINITY, sum = 0, factor = is_finished ? 1 : tile->factor[lane_id() / 4 + 8 * j];
        UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 4; i++)
            top = max_f32(top, s[p][i / 2][2 * j + i % 2]);
        top = warp_max_f32(top, 4);
        bool sees = true;
        if (!leaf.is_full) {
            struct query_view view = tile->views[lane_id() / 4 + 8 * j];
            sees = number * CUDA_ATTENTION_LEAF < view.end && (number + 1) * CUDA_ATTENTION_LEAF > view.begin;
        }
        top *= factor;
        float from = sees ? top : 0; /* if all that it sees is -infinity, the weights are NaNs */
        UNROLL for (int p = 0; p < LEAF_PAGES; p++) UNROLL for (int i = 0; i < 4; i++)
        {
            float e = exp_below_f32(fma_f32(s[p][i / 2][2 * j + i % 2], factor, -from));
            s[p][i / 2][2 * j + i % 2] = e;
            sum += e;
        }
        UNROLL for (int mask = 1; mask < 4; mask *= 2) sum += shuffle_xor_f32(sum, mask);
        leaf.state[j] = (struct softmax_state){ top, sum };
        leaf.unit[j] = 1;
    }
    if (type == CUDA_KV_I8)
        leaf_scale_weights(s, &leaf, head_dim);
    UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
        UNROLL for (int i = 0; i < 4 * LEAF_PAGES; i++)
    {
        const float *two = &s[i / 4][i / 2 % 2][i % 2 * 2];
        leaf.weights[part][i / 4][i % 4] = factors_of(two[0], two[1], type, part);
    }
    return leaf;
}

/* Bits of the elements of positions 4t to 4t + 3 that are in begin..end - 1. */
DEVICE void mask_values(half2 v[2], int base, int begin, int end)
{
    UNROLL for (int i = 0; i < 2; i++)
    {
        int pos = base + 2 * i;
        uint32_t low = pos >= begin && pos < end ? 0xffffu : 0,
                 high = pos + 1 >= begin && pos + 1 < end ? 0xffff0000u : 0;
        v[i] &= low | high;
    }
}

/* Adds the products of both parts of the weights of page p of a leaf. */
DEVICE void add_page(float acc[4], const struct leaf *leaf, int p, const half2 v[2], int type)
{
    UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
        mma_factors(acc, leaf->weights[part][p], v, type);
}

/* The products of page p, whose values are not all finite, for each query by itself from the positions that it sees: zero times
 * infinity is no zero. */
DEVICE void add_page_by_query(float acc[][4], const int n_acc, const struct mma_tile *tile,
                              const struct leaf *leaf, int p, half2 v[][2], int base, int type)
{
    NO_UNROLL for (int query = 0; query < CUDA_TILE_QUERIES; query++)
    {
        struct query_view view = tile->views[query];
        UNROLL for (int n = 0; n < n_acc; n++)
        {
            half2 own[2] = { v[n][0], v[n][1] };
            float sum[4] = { acc[n][0], acc[n][1], acc[n][2], acc[n][3] };
            mask_values(own, base, view.begin, view.end);
            add_page(sum, leaf, p, own, type);
            UNROLL for (int i = 0; i < 4; i++) acc[n][i] = lane_id() / 4 + i / 2 * 8 == query ? sum[i]
                                                                                              : acc[n][i];
        }
    }
}

/* Adds the products of page p of a leaf. is_full: all queries see all of the page; a constant. */
DEVICE void add_values(float acc[][4], const int n_acc, const struct mma_tile *tile, const struct leaf *leaf,
                       int p, int from, int type, int head_dim, bool once, const bool is_full)
{
    const uint8_t *values = leaf->pages[p] + cuda_kv_head_bytes(type, head_dim);
    int g = lane_id() / 4, t = lane_id() % 4;
    half2 v[CHUNK_COLUMNS][2];
    UNROLL for (int n = 0; n < n_acc; n++)
    {
        v[n][0] = v[n][1] = 0;
        if (from + 8 * n < head_dim)
            load_value(v[n], values, type, from + 8 * n + g, t, once);
    }
    if (type != CUDA_KV_I8 && !is_full) {
        /* The page may have anything where no query sees it. */
        int base = forget(leaf->first_page + p) * CUDA_KV_PAGE + 4 * t;
        bool is_finite = true;
        UNROLL for (int n = 0; n < n_acc; n++)
        {
            mask_values(v[n], base, tile->first, tile->last_end);
            is_finite = is_finite && !has_nonfinite(v[n], type);
        }
        if (ballot(!is_finite) != 0) {
            add_page_by_query(acc, n_acc, tile, leaf, p, v, base, type);
            return;
        }
    }
    UNROLL for (int n = 0; n < n_acc; n++) if (from + 8 * n < head_dim) add_page(acc[n], leaf, p, v[n], type);
}

/* Warp: the values of a leaf, of n_acc times eight dimensions, from the dimension from on: acc [n] has columns from + 8 n + 2t and
 * 2t + 1. n_acc: a constant. */
DEVICE void leaf_values(float acc[][4], const int n_acc, const struct mma_tile *tile, const struct leaf *leaf,
                        int from, int type, int head_dim, bool once)
{
    UNROLL for (int n = 0; n < n_acc; n++) UNROLL for (int i = 0; i < 4; i++) acc[n][i] = 0;
    if (leaf->is_full)
        UNROLL for (int p = 0; p < LEAF_PAGES; p++)
            add_values(acc, n_acc, tile, leaf, p, from, type, head_dim, once, true);
    else
        UNROLL for (int p = 0; p < LEAF_PAGES; p++)
        {
            int base = (leaf->first_page + p) * CUDA_KV_PAGE;
            if (base < tile->last_end && base + CUDA_KV_PAGE > tile->first)
                add_values(acc, n_acc, tile, leaf, p, from, type, head_dim, once, false);
        }
    if (type == CUDA_KV_I8)
        UNROLL for (int n = 0; n < n_acc; n++) UNROLL for (int i = 0; i < 4; i++)
            acc[n][i] *= leaf->unit[i / 2];
}

#endif
