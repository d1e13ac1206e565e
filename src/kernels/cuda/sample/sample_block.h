/* What the kernels that sample share: a block's draw, keys of candidates, reductions of a block, and the race of a part of a row.
 * All threads of a block call what has the reduction as an argument. */
#ifndef TUTTI_KERNELS_CUDA_SAMPLE_BLOCK_H
#define TUTTI_KERNELS_CUDA_SAMPLE_BLOCK_H

#include "kernels/cuda/math.h"
#include "kernels/cuda/sample/sample_args.h"
#include "kernels/race.h"

enum { WARPS = SAMPLE_THREADS / WARP };

/* Shared memory of a block, of its sums and maxima. */
struct reduction {
    uint64_t sums[WARPS];
    uint64_t most[WARPS];
    uint32_t counts[WARPS];
};

/* A block's draw, in shared memory. */
DEVICE void load_draw(struct draw *to, const struct draw *from)
{
    if (thread_id() < (int)(sizeof *to / sizeof(uint32_t)))
        ((uint32_t *)to)[thread_id()] = ((const uint32_t *)from)[thread_id()];
    block_sync();
}

/* ---- keys ---- */

DEVICE uint32_t ordered_bits(float x)
{
    uint32_t bits = f32_bits(x + 0.0f); /* no negative zero */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE uint64_t key_of(float x, int id)
{
    return (uint64_t)ordered_bits(x) << 32 | (0xffffffffu - (uint32_t)id);
}

/* ---- operations of a block: all threads call them, with the same shared memory ---- */

DEVICE uint64_t shuffle_xor_u64(uint64_t v, int mask)
{
    uint32_t low = shuffle_xor_u32((uint32_t)v, mask), high = shuffle_xor_u32((uint32_t)(v >> 32), mask);
    return (uint64_t)high << 32 | low;
}

DEVICE uint64_t shuffle_u64(uint64_t v, int lane)
{
    uint32_t low = shuffle_u32((uint32_t)v, lane), high = shuffle_u32((uint32_t)(v >> 32), lane);
    return (uint64_t)high << 32 | low;
}

DEVICE uint64_t block_max(uint64_t v, struct reduction *r)
{
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        uint64_t other = shuffle_xor_u64(v, mask);
        v = other > v ? other : v;
    }
    block_sync();
    if (lane_id() == 0)
        r->most[warp_id()] = v;
    block_sync();
    UNROLL for (int i = 0; i < WARPS; i++) v = r->most[i] > v ? r->most[i] : v;
    return v;
}

DEVICE uint32_t block_count(uint32_t v, struct reduction *r)
{
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) v += shuffle_xor_u32(v, mask);
    block_sync();
    if (lane_id() == 0)
        r->counts[warp_id()] = v;
    block_sync();
    v = 0;
    UNROLL for (int i = 0; i < WARPS; i++) v += r->counts[i];
    return v;
}

/* The sum of the v of the threads before this one; *total: of all. */
DEVICE uint64_t block_sum_before(uint64_t v, uint64_t *total, struct reduction *r)
{
    int lane = lane_id();
    uint64_t sum = v;
    UNROLL for (int step = 1; step < WARP; step *= 2)
    {
        uint64_t before = shuffle_u64(sum, lane - step);
        sum += lane >= step ? before : 0;
    }
    block_sync();
    if (lane == WARP - 1)
        r->sums[warp_id()] = sum;
    block_sync();
    uint64_t of_warps = 0, all = 0;
    UNROLL for (int i = 0; i < WARPS; i++)
    {
        of_warps = i == warp_id() ? all : of_warps;
        all += r->sums[i];
    }
    *total = all;
    return of_warps + sum - v;
}

/* ---- rows ---- */

struct part {
    int begin, end;
};

DEVICE struct part part_of(int n, int i)
{
    int each = (n + SAMPLE_PARTS - 1) / SAMPLE_PARTS, begin = i * each < n ? i * each : n;
    return (struct part){ begin, begin + each < n ? begin + each : n };
}

/* Of all parts. False: a logit is not finite. */
DEVICE bool largest_of(const struct draw_out *out, bool is_x, uint64_t *largest)
{
    bool is_finite = true;
    *largest = 0;
    UNROLL_4 for (int i = 0; i < SAMPLE_PARTS; i++)
    {
        uint64_t key = is_x ? out->scans[i].largest_x : out->scans[i].largest;
        *largest = key > *largest ? key : *largest;
        is_finite = is_finite && (is_x ? out->scans[i].bad_x : out->scans[i].bad) == INT32_MAX;
    }
    return is_finite;
}

/* The units (kernels/race.h) of a logit. */
DEVICE uint64_t units_of(const struct draw *d, float max, float x)
{
    return race_units(exp_f32((x - max) * d->reciprocal));
}

/* ---- races ---- */

DEVICE void join(struct race *race, int id, float x, float max, const struct draw *d)
{
    double w = race_weight(x, max, d->temperature);
    if (w >= (double)d->min_p)
        race_join(race, id, w);
}

/* The earliest of the block; the first thread stores it. */
DEVICE void finish_race(struct race race, const float *logits, struct draw_race *out, struct reduction *r)
{
    /* Arrivals are positive: their bits are in their order. Of equal ones the lower id. */
    uint64_t earliest = block_max(~race_bits(race.first), r);
    bool is_first = race_bits(race.first) == ~earliest && race.winner >= 0;
    uint64_t winner = block_max(is_first ? 0xffffffffu - (uint32_t)race.winner : 0, r);
    if (thread_id() != 0)
        return;
    out->arrival = race_double(~earliest);
    out->found.id = winner ? (int32_t)(0xffffffffu - (uint32_t)winner) : -1;
    out->found.logit = winner ? logits[out->found.id] : 0;
}

/* ---- sums of tiles ---- */

DEVICE float *tile_sums_of(const struct sample_args *a, int row, bool is_x)
{
    return a->tile_sums + ((size_t)row * 2 + is_x) * (size_t)a->most_tiles;
}

/* In the order of the tiles. */
DEVICE double sum_of_tiles(const float *sums, int n)
{
    double sum = 0;
    for (int i = 0; i * RACE_TILE < n; i++)
        sum += (double)sums[i];
    return sum;
}

/* The units of draw_has_mass(). sums: of the tiles of x. */
DEVICE uint64_t mass_of_top_p(const struct draw *d, const float *sums)
{
    return race_mass_of((double)d->top_p * sum_of_tiles(sums, d->n));
}

#endif
