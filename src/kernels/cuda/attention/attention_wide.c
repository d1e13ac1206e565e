/* Attention for prompts: each warp has a tile of its own and walks through all its blocks. Tiles of the same sequence and head
 * are neighbors in a block, so that keys and values are read from the cache after the first of them.
 *
 * The order of sums is that of attention.c: leaves are merged into their block, blocks into the result. */
#include "kernels/cuda/attention/attention_mma.h"

enum { WIDE_WARPS = 4, WIDE_THREADS = 32 * WIDE_WARPS };

/* Merges a block's values o into y, and multiplies by the inverse of the denominator after the last block. */
DEVICE void wide_store(const struct attention_args *a, const struct attention_unit *unit,
                       const struct head_group *heads, float o[][4], const struct softmax_state block[2],
                       struct softmax_state run[2], int at, int head_dim, int n_columns)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    UNROLL for (int j = 0; j < 2; j++)
    {
        int query = g + 8 * j;
        struct merge_factors f = merge_state(&run[j], block[j]);
        if (query >= n_tile_queries(unit, heads))
            continue;
        int head = heads->begin + query % heads->n;
        int64_t row = unit->row + query / heads->n;
        float *to = a->y + (row * a->n_heads + head) * a->value_dim + 2 * t;
        float inverse = divide_exact(1.0f, denominator_of(a, run[j], head));
        bool is_last = at == unit->n_blocks - 1;
        UNROLL for (int n = 0; n < n_columns; n++) if (8 * n < head_dim)
        {
            f32x2 v = { 0 };
            if (at > 0)
                v = *(const f32x2 *)(to + 8 * n);
            UNROLL for (int i = 0; i < 2; i++)
            {
                v[i] = merge_value(v[i], o[n][2 * j + i], &f);
                v[i] = is_last ? v[i] * inverse : v[i];
            }
            *(f32x2 *)(to + 8 * n) = v;
        }
    }
}

/* n_columns: of a constant number of values, eight dimensions each; head_dim is at most 8 n_columns. */
#define WIDE_BODY(type, dim, columns)                                                                        \
    DYNAMIC_SHARED(u32x4, shared);                                                                           \
    const int head_dim = (dim);                                                                              \
    u32x4 *queries = shared +                                                                                \
                     (uint32_t)warp_id() * (cuda_query_bytes(head_dim, cuda_query_parts(type)) / 16);        \
    int n_units = a.plan->n_units, n = n_units * a.n_groups;                                                 \
    for (int u = block_id() * WIDE_WARPS + warp_id(); u < n; u += n_blocks() * WIDE_WARPS) {                 \
        float o[columns][4];                                                                                 \
        wide_unit(&a, u, n_units, queries, o, type, head_dim, columns);                                      \
        warp_sync();                                                                                         \
    }

DEVICE void wide_unit(const struct attention_args *a, int number, int n_units, u32x4 *queries, float o[][4],
                      int type, int head_dim, int n_columns)
{
    /* With 256 dimensions, fewer at a time: the block's values take half of the registers. */
    const int n_acc = n_columns > 16 ? CHUNK_COLUMNS / 2 : CHUNK_COLUMNS;
    const struct attention_unit *own = &a->plan->units[number % n_units];
    struct head_group own_heads = head_group_of(a, number / n_units);
    const struct mma_tile *tile = mma_tile_of(a, own, &own_heads, type, head_dim, queries, 0, 1);
    const struct attention_unit *unit = &tile->unit;
    struct softmax_state run[2] = { { 0, 0 }, { 0, 0 } };
    warp_sync();
    for (int at = 0; at < unit->n_blocks; at++) {
        struct softmax_state block[2] = { { 0, 0 }, { 0, 0 } };
        UNROLL for (int n = 0; n < n_columns; n++) UNROLL for (int i = 0; i < 4; i++) o[n][i] = 0;
        for (int w = 0; w < CUDA_LEAVES; w++) {
            int number = (unit->first_block + at) * CUDA_LEAVES + w;
            if (!leaf_is_seen(tile, number))
                continue;
            struct leaf leaf = leaf_of(a, tile, queries, number, type, head_dim, false);
            struct merge_factors f[2];
            UNROLL for (int j = 0; j < 2; j++) f[j] = merge_state(&block[j], leaf.state[j]);
            UNROLL for (int c = 0; c < n_columns; c += n_acc) if (8 * c < head_dim)
            {
                float acc[CHUNK_COLUMNS][4];
                leaf_values(acc, n_acc, tile, &leaf, 8 * c, type, head_dim, false);
                UNROLL for (int n = 0; n < n_acc; n++) UNROLL for (int i = 0; i < 4; i++)
                    o[c + n][i] = merge_value(o[c + n][i], acc[n][i], &f[i / 2]);
            }
        }
        wide_store(a, unit, &tile->heads, o, block, run, at, head_dim, n_columns);
    }
}

KERNEL(attention_wide_f16_64, struct attention_args, WIDE_THREADS){ WIDE_BODY(CUDA_KV_F16, 64, 8) }

KERNEL(attention_wide_f16_128, struct attention_args, WIDE_THREADS){ WIDE_BODY(CUDA_KV_F16, 128, 16) }

KERNEL(attention_wide_f16_to128, struct attention_args,
       WIDE_THREADS){ WIDE_BODY(CUDA_KV_F16, a.head_dim, 16) }

KERNEL(attention_wide_f16_to256, struct attention_args,
       WIDE_THREADS){ WIDE_BODY(CUDA_KV_F16, a.head_dim, 32) }

/* bfloat16: see attention.c. */
KERNEL(attention_wide_bf16_64, struct attention_args, WIDE_THREADS)
{
    if (LEVEL >= 80) {
        WIDE_BODY(CUDA_KV_BF16, 64, 8)
    }
}

KERNEL(attention_wide_bf16_128, struct attention_args, WIDE_THREADS)
{
    if (LEVEL >= 80) {
        WIDE_BODY(CUDA_KV_BF16, 128, 16)
    }
}

KERNEL(attention_wide_bf16_to128, struct attention_args, WIDE_THREADS)
{
    if (LEVEL >= 80) {
        WIDE_BODY(CUDA_KV_BF16, a.head_dim, 16)
    }
}

KERNEL(attention_wide_bf16_to256, struct attention_args, WIDE_THREADS)
{
    if (LEVEL >= 80) {
        WIDE_BODY(CUDA_KV_BF16, a.head_dim, 32)
    }
}

KERNEL(attention_wide_i8_128, struct attention_args, WIDE_THREADS){ WIDE_BODY(CUDA_KV_I8, 128, 16) }

KERNEL(attention_wide_i8_to128, struct attention_args, WIDE_THREADS){ WIDE_BODY(CUDA_KV_I8, a.head_dim, 16) }

KERNEL(attention_wide_i8_to256, struct attention_args, WIDE_THREADS)
{
    WIDE_BODY(CUDA_KV_I8, a.head_dim, 32)
}
