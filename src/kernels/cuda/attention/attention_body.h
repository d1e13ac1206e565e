/* What the kernels of attention share: the queries of a tile, what they see, and merging partial results.
 *
 * Merging, as attention_merge_fn of kernels.h: into = from * b + into * a, with a and b the exponentials of both largest scores
 * minus the larger of the two. Sums without any position (total 0) change nothing. */
#ifndef TUTTI_KERNELS_CUDA_ATTENTION_BODY_H
#define TUTTI_KERNELS_CUDA_ATTENTION_BODY_H

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/math.h"

#define MINUS_INFINITY (-__builtin_inff())

DEVICE int min_i32(int a, int b)
{
    return a < b ? a : b;
}

DEVICE int max_i32(int a, int b)
{
    return a > b ? a : b;
}

/* The exponent, plus 127, of the power of two that a query is multiplied by, whose largest magnitude has these bits. It becomes
 * 2^14 to 2^15 for float16, and 1 to 2 for bfloat16, which has the range of floats: keys may be as large as they are. */
DEVICE int query_exponent(uint32_t top, int type)
{
    int exponent = (type == CUDA_KV_BF16 ? 254 : 268) - (int)(top >> 23);
    return max_i32(min_i32(exponent, 253), 1);
}

/* Two floats as factors of a matrix instruction: float16, rounded to nearest; or bfloat16, of which part 0 has the upper 8 bits of
 * the numbers, and part 1 the next 8 (both rounded toward zero, so that they have the same sign). */
DEVICE uint32_t factors_of(float low, float high, int type, int part)
{
    if (type != CUDA_KV_BF16)
        return half2_of(low, high);
    uint32_t l = f32_bits(low), h = f32_bits(high);
    if (part == 1) {
        l = f32_bits(low - bits_f32(l & 0xffff0000u));
        h = f32_bits(high - bits_f32(h & 0xffff0000u));
    }
    return permute_bytes(l, h, 0x7632);
}

/* Warp: the products of pages of 16 bits, or of int8 as float16. */
DEVICE void mma_factors(float acc[4], const uint32_t a[4], const uint32_t b[2], int type)
{
    if (type == CUDA_KV_BF16)
        mma_bf16(acc, a, b);
    else
        mma_half(acc, a, b);
}

/* Whether one of four numbers of a page of 16 bits is not finite. */
DEVICE bool has_nonfinite(const uint32_t v[2], int type)
{
    if (type == CUDA_KV_BF16) {
        uint32_t low = v[0] & 0x7f807f80u, high = v[1] & 0x7f807f80u;
        return (low & 0xffff) == 0x7f80 || low >> 16 == 0x7f80 || (high & 0xffff) == 0x7f80 ||
               high >> 16 == 0x7f80;
    }
    /* Zero times an infinity or a NaN is a NaN, whose bits are not zero without its sign. */
    half2 sum = half2_fma(v[1], 0, half2_mul(v[0], 0));
    return (sum & 0x7fff7fffu) != 0;
}

/* The query heads of a head group. */
struct head_group {
    int kv_head, begin, n, number;
};

DEVICE struct head_group head_group_of(const struct attention_args *a, int group)
{
    int kv_head = group / a->groups_of_kv, from = group % a->groups_of_kv * a->tile_queries;
    return (struct head_group){ kv_head, kv_head * a->heads_of_kv + from,
                                min_i32(a->heads_of_kv - from, a->tile_queries), group };
}

/* One query of a tile, and the positions that it sees: begin..end - 1. */
struct tile_query {
    bool is_there;
    int row, head;
    int pos, begin, end;
};

DEVICE struct tile_query tile_query_of(const struct attention_args *a, const struct attention_unit *unit,
                                       const struct head_group *heads, int query)
{
    int in_tile = query / heads->n;
    struct tile_query x = { .is_there = in_tile < unit->n_rows, .head = heads->begin + query % heads->n };
    if (!x.is_there)
        return x;
    x.row = unit->row + in_tile;
    x.pos = a->positions[x.row];
    int prefix_len = a->prefix_lens[a->seqs[x.row]];
    int first = x.pos < a->first ? 0 : a->first;
    x.begin = max_i32(a->window > 0 ? x.pos - a->window + 1 : 0, first);
    x.end = x.pos < prefix_len ? prefix_len : x.pos + 1;
    return x;
}

/* A score from a product q . k. */
DEVICE float finish_score(const struct attention_args *a, float score, float slope, int distance)
{
    if (a->softcap > 0)
        score = softcap_f32(score, a->softcap);
    if (a->slopes)
        score = fma_f32(slope, (float)distance, score);
    return score;
}

/* The largest score and the sum of exponentials of the positions seen so far; total 0: none. */
struct softmax_state {
    float max, total;
};

struct merge_factors {
    float into, from;
    bool is_empty; /* of what is merged: nothing changes */
};

/* Merges the states, and says how to merge the values. */
DEVICE struct merge_factors merge_state(struct softmax_state *into, struct softmax_state from)
{
    struct merge_factors f = { .into = 1, .from = 0, .is_empty = from.total == 0 };
    if (f.is_empty)
        return f;
    bool is_first = into->total == 0;
    float top = is_first ? from.max : max_f32(into->max, from.max);
    f.into = is_first ? 0 : exp_f32(into->max - top);
    f.from = is_first ? 1 : exp_f32(from.max - top);
    into->total = is_first ? from.total : fma_f32(from.total, f.from, into->total * f.into);
    into->max = top;
    return f;
}

/* into: 0 before the first. */
DEVICE float merge_value(float into, float from, const struct merge_factors *f)
{
    return f->is_empty ? into : fma_f32(from, f->from, into * f->into);
}

/* What the values are divided by. A sink far above the largest score makes it infinite, and the result 0. */
DEVICE float denominator_of(const struct attention_args *a, struct softmax_state state, int head)
{
    return a->sinks ? state.total + exp_f32(a->sinks[head] - state.max) : state.total;
}

DEVICE int n_tile_queries(const struct attention_unit *unit, const struct head_group *heads)
{
    return unit->n_rows * heads->n;
}

/* The slot of partial results of a query and a block of its tile (at: counted from the tile's first block). */
DEVICE float *partial_of(const struct attention_args *a, const struct attention_unit *unit, int group, int at,
                         int query)
{
    int group_queries = unit->n_rows * min_i32(a->heads_of_kv, a->tile_queries);
    int64_t slot = unit->slot + ((int64_t)at * a->n_groups + group) * group_queries + query;
    return a->partials + slot * a->slot_floats;
}

/* Block: whether the tile's blocks are finished with this unit's, after all of them stored their
 * partial results. flag: shared. */
DEVICE bool is_last_unit(const struct attention_args *a, const struct attention_unit *unit, int group,
                         uint32_t *flag)
{
    memory_fence();
    block_sync();
    if (thread_id() == 0) {
        uint32_t *pending = a->pending + (int64_t)unit->row * a->n_groups + group;
        *flag = atomic_add_u32(pending, (uint32_t)unit->n_blocks) + (uint32_t)unit->n_blocks ==
                (uint32_t)unit->n_tile_blocks;
        if (*flag)
            *pending = 0; /* for the next layer */
    }
    block_sync();
    memory_fence();
    return *flag != 0;
}

/* Block: merges a tile's partial results in the order of the blocks, four dimensions a thread. divides: by the denominator, as
 * the reference; else its inverse is multiplied. */
DEVICE void merge_tile(const struct attention_args *a, const struct attention_unit *unit,
                       const struct head_group *heads, int group, int n_threads, bool divides)
{
    int n_quads = a->value_dim / 4, n = n_tile_queries(unit, heads) * n_quads;
    for (int i = thread_id(); i < n; i += n_threads) {
        int query = i / n_quads, d = i % n_quads * 4, head = heads->begin + query % heads->n;
        struct softmax_state state = { 0, 0 };
        f32x4 o = { 0 };
        for (int block = 0; block < unit->n_tile_blocks; block++) {
            const float *from = partial_of(a, unit, group, block, query);
            f32x4 more = *(const f32x4 *)(from + d);
            f32x2 sums = *(const f32x2 *)(from + a->value_dim);
            struct merge_factors f = merge_state(&state, (struct softmax_state){ sums[0], sums[1] });
            UNROLL for (int k = 0; k < 4; k++) o[k] = merge_value(o[k], more[k], &f);
        }
        float divisor = denominator_of(a, state, head), inverse = divide_exact(1.0f, divisor);
        UNROLL for (int k = 0; k < 4; k++) o[k] = divides ? divide_exact(o[k], divisor) : o[k] * inverse;
        int64_t row = unit->row + query / heads->n;
        *(f32x4 *)(a->y + (row * a->n_heads + head) * a->value_dim + d) = o;
    }
}

#endif
