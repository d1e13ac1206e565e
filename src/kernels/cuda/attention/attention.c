/* Attention for decoding: the four warps of a block share a tile, and compute a leaf of each block of positions.
 *
 * Their leaves are merged in order, through shared memory; so are the blocks of a unit, or, if a tile is cut into several
 * units, all its blocks by the unit that finishes last. */
#include "kernels/cuda/attention/attention_mma.h"

enum {
    SPLIT_THREADS = 32 * CUDA_LEAVES,
    VALUE_STRIDE = CUDA_VALUE_CHUNK + 8, /* floats; no two lanes meet in a bank */
};

/* What the warps share; the queries' fragments follow. */
struct split_shared {
    float o[CUDA_LEAVES][CUDA_TILE_QUERIES][VALUE_STRIDE];
    struct softmax_state leaves[CUDA_LEAVES][CUDA_TILE_QUERIES];
    struct merge_factors leaf_factors[CUDA_LEAVES][CUDA_TILE_QUERIES];
    struct softmax_state block[CUDA_TILE_QUERIES], run[CUDA_TILE_QUERIES];
    struct merge_factors run_factors[CUDA_TILE_QUERIES];
    float inverse[CUDA_TILE_QUERIES];
    uint32_t flag;
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct split_shared) == CUDA_SPLIT_SHARED, "the host knows its size");

/* Threads 0..15: how the leaves of a block are merged, and the block into those before it. */
DEVICE void split_factors(const struct attention_args *a, struct split_shared *s,
                          const struct attention_unit *unit, const struct head_group *heads, int at)
{
    int query = thread_id();
    if (query >= CUDA_TILE_QUERIES)
        return;
    struct softmax_state block = { 0, 0 };
    UNROLL for (int w = 0; w < CUDA_LEAVES; w++)
        s->leaf_factors[w][query] = merge_state(&block, s->leaves[w][query]);
    struct softmax_state run = s->run[query];
    if (at == 0)
        run = (struct softmax_state){ 0, 0 };
    s->run_factors[query] = merge_state(&run, block);
    s->block[query] = block;
    s->run[query] = run;
    if (query < n_tile_queries(unit, heads))
        s->inverse[query] = divide_exact(1.0f, denominator_of(a, run, heads->begin + query % heads->n));
}

/* Merges the leaves' values of dimensions from..from + 63, and stores them. */
DEVICE void split_store(const struct attention_args *a, struct split_shared *s,
                        const struct attention_unit *unit, const struct head_group *heads, int from, int at)
{
    int d = thread_id() % (CUDA_VALUE_CHUNK / 4) * 4;
    bool is_cut = unit->slot >= 0, is_last = at == unit->n_blocks - 1;
    for (int query = thread_id() / (CUDA_VALUE_CHUNK / 4); query < n_tile_queries(unit, heads);
         query += SPLIT_THREADS / (CUDA_VALUE_CHUNK / 4)) {
        if (from + d >= a->value_dim)
            break;
        f32x4 o = { 0 };
        UNROLL for (int w = 0; w < CUDA_LEAVES; w++)
        {
            struct merge_factors f = s->leaf_factors[w][query];
            f32x4 more = *(const f32x4 *)&s->o[w][query][d];
            UNROLL for (int k = 0; k < 4; k++) o[k] = merge_value(o[k], more[k], &f);
        }
        if (is_cut) {
            float *to = partial_of(a, unit, heads->number, unit->at + at, query);
            *(f32x4 *)(to + from + d) = o;
            if (from + d == 0)
                *(f32x2 *)(to + a->value_dim) = (f32x2){ s->block[query].max, s->block[query].total };
            continue;
        }
        int64_t row = unit->row + query / heads->n;
        f32x4 *to = (f32x4 *)(a->y + (row * a->n_heads + heads->begin + query % heads->n) * a->value_dim +
                              from + d);
        struct merge_factors f = s->run_factors[query];
        f32x4 before = { 0 };
        if (at > 0)
            before = *to;
        UNROLL for (int k = 0; k < 4; k++)
        {
            o[k] = merge_value(before[k], o[k], &f);
            o[k] = is_last ? o[k] * s->inverse[query] : o[k];
        }
        *to = o;
    }
}

/* Block: one block of positions of a tile. at: of the unit's blocks. */
DEVICE void split_block(const struct attention_args *a, struct split_shared *s,
                        const struct attention_unit *unit, const struct head_group *heads,
                        const struct mma_tile *tile, const u32x4 *queries, int at, int type, int head_dim)
{
    int number = (unit->first_block + at) * CUDA_LEAVES + warp_id();
    bool is_seen = leaf_is_seen(tile, number);
    struct leaf leaf = { .state = { { MINUS_INFINITY, 0 }, { MINUS_INFINITY, 0 } } };
    if (is_seen)
        leaf = leaf_of(a, tile, queries, number, type, head_dim, true);
    /* The leaf need not keep what is computed from the thread's number again. */
    int thread = forget(thread_id()), warp = thread / WARP, g = thread % WARP / 4, t = thread % 4;
    if (t == 0)
        UNROLL for (int j = 0; j < 2; j++) s->leaves[warp][g + 8 * j] = leaf.state[j];
    block_sync();
    split_factors(a, s, unit, heads, at);
    for (int from = 0; from < head_dim; from += CUDA_VALUE_CHUNK) {
        if (is_seen) {
            float acc[CHUNK_COLUMNS][4];
            leaf_values(acc, CHUNK_COLUMNS, tile, &leaf, from, type, head_dim, true);
            UNROLL for (int n = 0; n < CHUNK_COLUMNS; n++) UNROLL for (int j = 0; j < 2; j++) *
                (f32x2 *)&s->o[warp][g + 8 * j][8 * n + 2 * t] = (f32x2){ acc[n][2 * j], acc[n][2 * j + 1] };
        }
        block_sync();
        split_store(a, s, unit, heads, from, at);
        block_sync();
    }
}

/* head_dim: a constant, or that of a. */
DEVICE void attend_split(const struct attention_args *a, struct split_shared *s, int type, int head_dim)
{
    u32x4 *queries = (u32x4 *)(s + 1);
    int n_units = a->plan->n_units * a->n_groups;
    for (int u = block_id(); u < n_units; u += n_blocks()) {
        const struct attention_unit *own = &a->plan->units[u / a->n_groups];
        struct head_group own_heads = head_group_of(a, u % a->n_groups);
        const struct mma_tile *tile = mma_tile_of(a, own, &own_heads, type, head_dim, queries, warp_id(),
                                                  CUDA_LEAVES);
        block_sync();
        const struct attention_unit *unit = &tile->unit;
        const struct head_group *heads = &tile->heads;
        for (int at = 0; at < unit->n_blocks; at++)
            split_block(a, s, unit, heads, tile, queries, at, type, head_dim);
        if (unit->slot >= 0 && is_last_unit(a, unit, heads->number, &s->flag))
            merge_tile(a, unit, heads, heads->number, SPLIT_THREADS, false);
        block_sync();
    }
}

KERNEL(attention_f16, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    attend_split(&a, s, CUDA_KV_F16, a.head_dim);
}

KERNEL_FOR_BLOCKS(attention_f16_64, struct attention_args, SPLIT_THREADS, 3)
{
    DYNAMIC_SHARED(struct split_shared, s);
    attend_split(&a, s, CUDA_KV_F16, 64);
}

KERNEL(attention_f16_128, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    attend_split(&a, s, CUDA_KV_F16, 128);
}

/* bfloat16: level 75 has no such matrix instructions, and uses attention_plain.c. */
KERNEL(attention_bf16, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    if (LEVEL >= 80)
        attend_split(&a, s, CUDA_KV_BF16, a.head_dim);
}

KERNEL(attention_bf16_64, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    if (LEVEL >= 80)
        attend_split(&a, s, CUDA_KV_BF16, 64);
}

KERNEL(attention_bf16_128, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    if (LEVEL >= 80)
        attend_split(&a, s, CUDA_KV_BF16, 128);
}

KERNEL(attention_i8, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    attend_split(&a, s, CUDA_KV_I8, a.head_dim);
}

KERNEL(attention_i8_128, struct attention_args, SPLIT_THREADS)
{
    DYNAMIC_SHARED(struct split_shared, s);
    attend_split(&a, s, CUDA_KV_I8, 128);
}
