/* Attention over latents: one row of a position is its key, and the first n_latent elements of it are its value, for all
 * heads. A block of eight warps has a tile of up to 32 queries, and walks through the positions in leaves of 32, which are
 * copied to shared memory while the leaf before is computed; int8 rows are float16 there, rounded once. Pages of bfloat16 have two
 * parts of queries and weights, as in attention_mma.h.
 *
 * A leaf has three parts. Scores: warp w has positions 16 (w % 2) to 16 (w % 2) + 15 and a quarter of the dimensions; the four
 * quarters are added in order. Softmax: warp w has queries 4 w to 4 w + 3, and a lane a position; the largest score and total of
 * a block run on from leaf to leaf. Values: warp w has dimensions 64 w to 64 w + 63. Queries and weights are rounded as in
 * attention_mma.h. Within a block what is summed so far is multiplied by exp(largest score before - after); blocks are merged
 * as everywhere. What a query does not see changes nothing: its factor is exactly 1, and its weights are 0. */
#include "kernels/cuda/attention/attention_body.h"

enum {
    LATENT_WARPS = 8,
    LATENT_THREADS = LATENT_WARPS * WARP,
    QUARTERS = 4,
    SCORE_STRIDE = CUDA_LATENT_LEAF + 1,  /* floats */
    WEIGHT_STRIDE = CUDA_LATENT_LEAF + 8, /* halves */
    LATENT_COLUMNS = 8,                   /* of eight dimensions, of a warp */
    OWN_QUERIES = CUDA_LATENT_QUERIES / LATENT_WARPS,
    LATENT_LEAVES = CUDA_ATTENTION_BLOCK / CUDA_LATENT_LEAF,
};

/* The queries' fragments follow: [part][2][dimensions / 16][lane] of 16 bytes; then the leaves. */
struct latent_shared {
    float scores[QUARTERS][CUDA_LATENT_QUERIES][SCORE_STRIDE];
    uint16_t weights[2][CUDA_LATENT_QUERIES][WEIGHT_STRIDE]; /* of each part */
    float factor[CUDA_LATENT_QUERIES];                       /* of products of a query */
    float decay[CUDA_LATENT_QUERIES];                        /* of what is summed before a leaf */
    struct softmax_state block[CUDA_LATENT_QUERIES], run[CUDA_LATENT_QUERIES];
    struct merge_factors merge[CUDA_LATENT_QUERIES];
    float inverse[CUDA_LATENT_QUERIES];
    uint32_t flag;
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct latent_shared) <= CUDA_LATENT_SHARED, "the host knows its size");

/* What all threads know of a tile. Lane i has the query i. */
struct latent_tile {
    struct tile_query own;
    float slope;                             /* of the lane's query */
    int first, last_end, all_first, all_end; /* the positions that some, and that all queries see */
    int n_queries;
    const int32_t *table;
    u32x4 *queries;
    uint8_t *leaves; /* shared */
    int stride;      /* halves */
};

DEVICE int warp_min(int v)
{
    UNROLL for (int mask = 1; mask < WARP; mask *= 2) v = min_i32(v, (int)shuffle_xor_u32((uint32_t)v, mask));
    return v;
}

/* Warp: rounds the queries 4 w to 4 w + 3, and stores them as fragments. */
DEVICE void latent_round_queries(const struct attention_args *a, struct latent_shared *s,
                                 const struct latent_tile *tile, int type)
{
    int n = a->head_dim, n_steps = (n + 15) / 16;
    uint32_t *words = (uint32_t *)tile->queries;
    for (int i = 0; i < OWN_QUERIES; i++) {
        int query = warp_id() * OWN_QUERIES + i;
        int row = (int)shuffle_u32((uint32_t)tile->own.row, query),
            head = (int)shuffle_u32((uint32_t)tile->own.head, query);
        const float *q = a->q + (int64_t)row * a->q_row + head * n;
        bool is_there = query < tile->n_queries;
        uint32_t top = 0;
        for (int d = lane_id(); d < n && is_there; d += WARP) {
            uint32_t bits = f32_bits(q[d] * a->scale) & 0x7fffffff;
            top = bits > top ? bits : top;
        }
        top = warp_max_u32(top, WARP);
        int exponent = query_exponent(top, type);
        bool is_finite = top < 0x7f800000u;
        float inverse = is_finite ? bits_f32((uint32_t)exponent << 23) : __builtin_nanf("");
        if (lane_id() == 0)
            s->factor[query] = is_finite ? bits_f32((uint32_t)(254 - exponent) << 23) : __builtin_nanf("");
        int r = query % 16, tile_half = query / 16;
        for (int d = 2 * lane_id(); d < 16 * n_steps; d += 2 * WARP) {
            f32x2 v = { 0, 0 };
            if (is_there && d < n)
                v = *(const f32x2 *)(q + d);
            int reg = d % 16 / 8 * 2 + r / 8, lane = r % 8 * 4 + d % 8 / 2;
            UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
                words[(((2 * part + tile_half) * n_steps + d / 16) * WARP + lane) * 4 + reg] = factors_of(
                    v[0] * a->scale * inverse, v[1] * a->scale * inverse, type, part);
        }
    }
}

/* Begins to copy leaf number to its stage. Positions that no query sees are zeros. */
DEVICE void latent_load(const struct attention_args *a, const struct latent_tile *tile, int number, int type)
{
    int n = a->head_dim;
    uint8_t *leaf = tile->leaves + number % a->n_stages * (CUDA_LATENT_LEAF * tile->stride * 2);
    UNROLL for (int i = 0; i < CUDA_LATENT_LEAF / LATENT_WARPS; i++)
    {
        int key = warp_id() + i * LATENT_WARPS, pos = number * CUDA_LATENT_LEAF + key,
            at = pos % CUDA_KV_PAGE;
        bool is_there = pos >= tile->first && pos < tile->last_end;
        const uint8_t *page = a->pages;
        if (is_there)
            page += (uint64_t)tile->table[pos / CUDA_KV_PAGE] * a->page_bytes;
        uint8_t *to = leaf + key * tile->stride * 2;
        if (type != CUDA_KV_I8) {
            for (int piece = lane_id(); 8 * piece < n; piece += WARP)
                copy_16(to + 16 * piece, page + 2 * (at * n + 8 * piece), is_there);
            continue;
        }
        const float *scales = (const float *)(page + CUDA_KV_PAGE * n) + at;
        for (int piece = lane_id(); 8 * piece < n; piece += WARP) {
            u32x4 v = { 0 };
            if (is_there) {
                const int8_t *from = (const int8_t *)page + at * n + 8 * piece;
                float scale = scales[8 * piece < a->n_latent ? 0 : CUDA_KV_PAGE];
                u32x2 bytes = *(const u32x2 *)from;
                UNROLL for (int k = 0; k < 4; k++)
                {
                    uint32_t pair = bytes[k / 2] >> k % 2 * 16;
                    v[k] = half2_of((float)(int8_t)(pair & 255) * scale,
                                    (float)(int8_t)(pair >> 8 & 255) * scale);
                }
            }
            *(u32x4 *)(to + 16 * piece) = v;
        }
    }
}

/* Zeros after the rows of the leaves. */
DEVICE void latent_clear(const struct attention_args *a, const struct latent_tile *tile)
{
    int n_rows = a->n_stages * CUDA_LATENT_LEAF;
    for (int i = thread_id(); i < n_rows; i += LATENT_THREADS)
        for (int d = a->head_dim; d < tile->stride; d += 8)
            *(u32x4 *)(tile->leaves + (i * tile->stride + d) * 2) = (u32x4){ 0 };
}

/* Warp: a quarter of the products of all queries with 16 positions. */
DEVICE void latent_scores(const struct attention_args *a, struct latent_shared *s,
                          const struct latent_tile *tile, const uint8_t *leaf, int type)
{
    int lane = lane_id(), g = lane / 4, t = lane % 4, from = warp_id() % 2 * 16, quarter = warp_id() / 2;
    int n_steps = (a->head_dim + 15) / 16, per = (n_steps + QUARTERS - 1) / QUARTERS;
    float acc[2][2][4];
    UNROLL for (int i = 0; i < 16; i++) acc[i / 8][i / 4 % 2][i % 4] = 0;
    /* Matrices of 8 positions x 8 dimensions: two of the first positions, two of the others. */
    const uint8_t *row = leaf + (((from + lane / 16 * 8 + lane % 8) * tile->stride) + lane / 8 % 2 * 8) * 2;
    int end = min_i32((quarter + 1) * per, n_steps);
    for (int step = quarter * per; step < end; step++) {
        uint32_t k[4];
        load_matrices(k, row + 32 * step);
        UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
            UNROLL for (int m = 0; m < 2; m++) if (16 * m < tile->n_queries)
        {
            u32x4 v = tile->queries[((2 * part + m) * n_steps + step) * WARP + lane];
            uint32_t q[4] = { v[0], v[1], v[2], v[3] };
            mma_factors(acc[m][0], q, k, type);
            mma_factors(acc[m][1], q, k + 2, type);
        }
    }
    UNROLL for (int m = 0; m < 2; m++) UNROLL for (int c = 0; c < 2; c++) UNROLL for (int i = 0; i < 4; i++)
        s->scores[quarter][16 * m + g + i / 2 * 8][from + 8 * c + 2 * t + i % 2] = acc[m][c][i];
}

/* Warp: the weights of a leaf for the queries 4 w to 4 w + 3. */
DEVICE void latent_softmax(const struct attention_args *a, struct latent_shared *s,
                           const struct latent_tile *tile, int number, int type)
{
    int lane = lane_id(), pos = number * CUDA_LATENT_LEAF + lane;
    UNROLL for (int i = 0; i < OWN_QUERIES; i++)
    {
        int query = warp_id() * OWN_QUERIES + i;
        int begin = (int)shuffle_u32((uint32_t)tile->own.begin, query),
            end = (int)shuffle_u32((uint32_t)tile->own.end, query);
        int own_pos = (int)shuffle_u32((uint32_t)tile->own.pos, query);
        float slope = shuffle_f32(tile->slope, query), score = s->scores[0][query][lane];
        UNROLL for (int k = 1; k < QUARTERS; k++) score += s->scores[k][query][lane];
        score = finish_score(a, score * s->factor[query], slope, pos - own_pos);
        score = pos >= begin && pos < end ? score : MINUS_INFINITY;
        struct softmax_state block = s->block[query];
        float top = max_f32(block.max, warp_max_f32(score, WARP));
        /* If all that it sees is -infinity, the weights are NaNs. */
        bool sees = begin < (number + 1) * CUDA_LATENT_LEAF &&
                    end > number / LATENT_LEAVES * CUDA_ATTENTION_BLOCK;
        float p = exp_f32(score - (sees ? top : 0)), sum = warp_sum_f32(p, WARP);
        float decay = block.total == 0 ? 1 : exp_f32(block.max - top);
        warp_sync();
        if (lane == 0) {
            s->decay[query] = decay;
            s->block[query] = (struct softmax_state){ top, fma_f32(block.total, decay, sum) };
        }
        UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
            s->weights[part][query][lane] = (uint16_t)factors_of(p, 0, type, part);
    }
}

DEVICE void latent_mask(half2 v[2], int base, int begin, int end)
{
    UNROLL for (int i = 0; i < 2; i++)
    {
        int pos = base + 8 * i;
        v[i] &= (pos >= begin && pos < end ? 0xffffu : 0) |
                (pos + 1 >= begin && pos + 1 < end ? 0xffff0000u : 0);
    }
}

/* Adds the products of 16 positions and 8 dimensions to both halves of the tile. base: the lane's first position. If not all
 * queries see them all, and there is an element that is not finite, each query gets its product only from what it sees. */
DEVICE void latent_add(float acc[2][LATENT_COLUMNS][4], int n, uint32_t p[2][2][4], const half2 v[2],
                       const struct latent_tile *tile, int base, bool is_full, int type)
{
    if (is_full || ballot(has_nonfinite(v, type)) == 0) {
        UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
            UNROLL for (int m = 0; m < 2; m++) if (16 * m < tile->n_queries)
                mma_factors(acc[m][n], p[part][m], v, type);
        return;
    }
    for (int query = 0; query < tile->n_queries; query++) {
        int begin = (int)shuffle_u32((uint32_t)tile->own.begin, query),
            end = (int)shuffle_u32((uint32_t)tile->own.end, query);
        half2 own[2] = { v[0], v[1] };
        latent_mask(own, base, begin, end);
        UNROLL for (int m = 0; m < 2; m++)
        {
            float sum[4] = { acc[m][n][0], acc[m][n][1], acc[m][n][2], acc[m][n][3] };
            UNROLL for (int part = 0; part < cuda_query_parts(type); part++)
                mma_factors(sum, p[part][m], own, type);
            UNROLL for (int i = 0; i < 4; i++)
                acc[m][n][i] = 16 * m + lane_id() / 4 + i / 2 * 8 == query ? sum[i] : acc[m][n][i];
        }
    }
}

/* Warp: adds the values of a leaf, of dimensions 64 w to 64 w + 63. */
DEVICE void latent_values(const struct attention_args *a, struct latent_shared *s,
                          const struct latent_tile *tile, float acc[2][LATENT_COLUMNS][4],
                          const uint8_t *leaf, int number, int type)
{
    int lane = lane_id(), g = lane / 4, t = lane % 4, from = warp_id() * 8 * LATENT_COLUMNS;
    float decay[2][2];
    bool is_one = true;
    UNROLL for (int i = 0; i < 4; i++)
    {
        decay[i / 2][i % 2] = s->decay[16 * (i / 2) + g + 8 * (i % 2)];
        is_one = is_one && decay[i / 2][i % 2] == 1;
    }
    if (ballot(!is_one) != 0)
        UNROLL for (int n = 0; n < LATENT_COLUMNS; n++) UNROLL for (int i = 0; i < 8; i++)
            acc[i / 4][n][i % 4] *= decay[i / 4][i / 2 % 2];
    UNROLL for (int step = 0; step < CUDA_LATENT_LEAF / 16; step++)
    {
        int base = number * CUDA_LATENT_LEAF + 16 * step;
        bool is_full = base >= tile->all_first && base + 16 <= tile->all_end;
        uint32_t p[2][2][4];
        /* Matrices of 8 queries x 8 positions. */
        UNROLL for (int part = 0; part < cuda_query_parts(type); part++) UNROLL for (int m = 0; m < 2; m++)
            load_matrices(p[part][m], &s->weights[part][16 * m + lane % 16][16 * step + lane / 16 * 8]);
        const uint8_t *row = leaf + ((16 * step + lane / 8 % 2 * 8 + lane % 8) * tile->stride + from +
                                     lane / 16 * 8) *
                                        2;
        UNROLL for (int n = 0; n < LATENT_COLUMNS; n += 2) if (from + 8 * n < a->n_latent)
        {
            uint32_t v[4]; /* 16 positions of 8 dimensions, and of the next 8 */
            load_matrices_transposed(v, row + 16 * n);
            latent_add(acc, n, p, v, tile, base + 2 * t, is_full, type);
            latent_add(acc, n + 1, p, v + 2, tile, base + 2 * t, is_full, type);
        }
    }
}

/* Threads 0..31: how a block is merged into those before it. */
DEVICE void latent_factors(const struct attention_args *a, struct latent_shared *s,
                           const struct latent_tile *tile, int at)
{
    int query = thread_id();
    if (query >= tile->n_queries)
        return;
    struct softmax_state run = s->run[query];
    if (at == 0)
        run = (struct softmax_state){ 0, 0 };
    s->merge[query] = merge_state(&run, s->block[query]);
    s->run[query] = run;
    s->inverse[query] = divide_exact(1.0f, denominator_of(a, run, tile->own.head));
}

/* Warp: stores a block's values. */
DEVICE void latent_store_block(const struct attention_args *a, struct latent_shared *s,
                               const struct latent_tile *tile, const struct attention_unit *unit,
                               const struct head_group *heads, int group, float acc[2][LATENT_COLUMNS][4],
                               int at)
{
    int g = lane_id() / 4, t = lane_id() % 4, from = warp_id() * 8 * LATENT_COLUMNS;
    bool is_cut = unit->slot >= 0, is_last = at == unit->n_blocks - 1;
    UNROLL for (int k = 0; k < 4; k++)
    {
        int query = 8 * k + g;
        if (query >= tile->n_queries)
            continue;
        int64_t row = unit->row + query / heads->n;
        float *to = is_cut ? partial_of(a, unit, group, unit->at + at, query)
                           : a->y + (row * a->n_heads + heads->begin + query % heads->n) * a->value_dim;
        if (is_cut && from == 0 && t == 0)
            *(f32x2 *)(to + a->value_dim) = (f32x2){ s->block[query].max, s->block[query].total };
        struct merge_factors f = s->merge[query];
        float inverse = s->inverse[query];
        to += from + 2 * t;
        UNROLL for (int n = 0; n < LATENT_COLUMNS; n++) if (from + 8 * n < a->n_latent)
        {
            f32x2 v = { acc[k / 2][n][k % 2 * 2], acc[k / 2][n][k % 2 * 2 + 1] };
            if (!is_cut) {
                f32x2 before = { 0, 0 };
                if (at > 0)
                    before = *(const f32x2 *)(to + 8 * n);
                UNROLL for (int i = 0; i < 2; i++)
                {
                    v[i] = merge_value(before[i], v[i], &f);
                    v[i] = is_last ? v[i] * inverse : v[i];
                }
            }
            *(f32x2 *)(to + 8 * n) = v;
        }
    }
}

/* Block: one block of positions of a tile. The leaf with which it begins is being copied, if there is a stage for it. */
DEVICE void latent_block(const struct attention_args *a, struct latent_shared *s,
                         const struct latent_tile *tile, const struct attention_unit *unit,
                         const struct head_group *heads, int group, int at, int type)
{
    float acc[2][LATENT_COLUMNS][4];
    UNROLL for (int n = 0; n < LATENT_COLUMNS; n++) UNROLL for (int i = 0; i < 8; i++)
        acc[i / 4][n][i % 4] = 0;
    if (thread_id() < CUDA_LATENT_QUERIES)
        s->block[thread_id()] = (struct softmax_state){ MINUS_INFINITY, 0 };
    int base = (unit->first_block + at) * LATENT_LEAVES;
    int first = max_i32(base, tile->first / CUDA_LATENT_LEAF);
    int end = min_i32(base + LATENT_LEAVES, (tile->last_end + CUDA_LATENT_LEAF - 1) / CUDA_LATENT_LEAF);
    if (a->n_stages > 1)
        latent_load(a, tile, first, type);
    copy_commit();
    for (int number = first; number < end; number++) {
        if (a->n_stages == 1)
            latent_load(a, tile, number, type);
        else if (number + 1 < end)
            latent_load(a, tile, number + 1, type);
        copy_commit();
        if (a->n_stages == 1)
            copy_wait(0);
        else
            copy_wait(1);
        block_sync();
        const uint8_t *leaf = tile->leaves + number % a->n_stages * (CUDA_LATENT_LEAF * tile->stride * 2);
        latent_scores(a, s, tile, leaf, type);
        block_sync();
        latent_softmax(a, s, tile, number, type);
        block_sync();
        latent_values(a, s, tile, acc, leaf, number, type);
        block_sync();
    }
    latent_factors(a, s, tile, at);
    block_sync();
    latent_store_block(a, s, tile, unit, heads, group, acc, at);
    block_sync();
}

DEVICE struct latent_tile latent_tile_of(const struct attention_args *a, const struct attention_unit *unit,
                                         const struct head_group *heads, struct latent_shared *s, int type)
{
    struct latent_tile tile = { .own = tile_query_of(a, unit, heads, lane_id()),
                                .n_queries = n_tile_queries(unit, heads),
                                .table = a->tables + (int64_t)unit->table * a->max_pages,
                                .queries = (u32x4 *)((uint8_t *)s + CUDA_LATENT_SHARED),
                                .stride = (int)cuda_latent_stride(a->head_dim) };
    bool is_there = tile.own.is_there;
    tile.leaves = (uint8_t *)(tile.queries + 2 * cuda_query_parts(type) * ((a->head_dim + 15) / 16) * WARP);
    tile.slope = a->slopes && is_there ? a->slopes[tile.own.head] : 0;
    tile.first = warp_min(is_there ? tile.own.begin : INT32_MAX);
    tile.last_end = -warp_min(is_there ? -tile.own.end : INT32_MAX);
    tile.all_first = -warp_min(is_there ? -tile.own.begin : INT32_MAX);
    tile.all_end = warp_min(is_there ? tile.own.end : INT32_MAX);
    return tile;
}

DEVICE void attend_latents(const struct attention_args *a, struct latent_shared *s, int type)
{
    int n_units = a->plan->n_units * a->n_groups;
    for (int u = block_id(); u < n_units; u += n_blocks()) {
        struct attention_unit unit = a->plan->units[u / a->n_groups];
        int group = u % a->n_groups;
        struct head_group heads = head_group_of(a, group);
        struct latent_tile tile = latent_tile_of(a, &unit, &heads, s, type);
        latent_round_queries(a, s, &tile, type);
        latent_clear(a, &tile);
        block_sync();
        for (int at = 0; at < unit.n_blocks; at++)
            latent_block(a, s, &tile, &unit, &heads, group, at, type);
        if (unit.slot >= 0 && is_last_unit(a, &unit, group, &s->flag))
            merge_tile(a, &unit, &heads, group, LATENT_THREADS, false);
        block_sync();
    }
}

KERNEL(attention_latent_f16, struct attention_args, LATENT_THREADS)
{
    DYNAMIC_SHARED(struct latent_shared, s);
    attend_latents(&a, s, CUDA_KV_F16);
}

KERNEL(attention_latent_bf16, struct attention_args, LATENT_THREADS)
{
    DYNAMIC_SHARED(struct latent_shared, s);
    if (LEVEL >= 80)
        attend_latents(&a, s, CUDA_KV_BF16);
}

KERNEL(attention_latent_i8, struct attention_args, LATENT_THREADS)
{
    DYNAMIC_SHARED(struct latent_shared, s);
    attend_latents(&a, s, CUDA_KV_I8);
}
