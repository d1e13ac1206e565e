/* Sampling: rows of logits after a step, each row by some blocks. What a row yields is that of the CPU's sampler
 * (backend/sampler.c): sums over whole rows have the same bits, weights and arrivals are the same source (kernels/race.h). Candidates are keys (sample_args.h). */
#include "kernels/cuda/sample/sample_block.h"

enum {
    SUM_LANES = 16, /* of kernels' sum_exp */
    GROUPS_PART = SAMPLE_GROUPS / SAMPLE_PARTS,
    BINS_EACH = 8, /* of a distance of 1 */
    CHUNK = 2048,  /* logits that are loaded between two barriers */
};

#define LEAST_FLOAT   (-3.40282347e38f)
#define WINDOW_MARGIN 1.0001 /* more than what bins lose by rounding */

struct candidates {
    uint64_t keys[SAMPLE_CANDIDATES];
    struct reduction reduction;
    uint32_t n;
};

/* Sorts n keys, a power of two, the largest first: a bitonic network. */
DEVICE void block_sort(uint64_t *keys, int n)
{
    for (int size = 2; size <= n; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            block_sync();
            for (int pair = thread_id(); pair < n / 2; pair += SAMPLE_THREADS) {
                int i = 2 * pair - (pair & (step - 1)), j = i + step;
                uint64_t first = keys[i], second = keys[j];
                if ((first < second) == ((i & size) == 0)) {
                    keys[i] = second;
                    keys[j] = first;
                }
            }
        }
    }
    block_sync();
}

/* ---- bias, penalties, mask ---- */

/* Avoids infinity, so that the distribution stays finite. */
DEVICE float clamped(float x)
{
    const float most = 3.40282347e38f / 2;
    return x > most ? most : x < -most ? -most : x;
}

DEVICE void add_biases(const struct draw *d)
{
    for (int i = thread_id(); i < d->n_biases; i += SAMPLE_THREADS) {
        struct draw_bias bias = d->biases[i];
        if (!bias.is_first)
            continue;
        float x = d->x[bias.id] + bias.bias;
        while (bias.next >= 0) {
            bias = d->biases[bias.next];
            x += bias.bias;
        }
        d->x[bias.id] = x;
    }
}

/* The mask's words are read once, side by side: they may be in the host's memory. */
DEVICE void keep_allowed(const struct draw *d)
{
    SHARED(uint32_t, words, SAMPLE_THREADS);
    enum { BITS = 32 };
    for (int begin = 0; begin < d->n; begin += SAMPLE_THREADS * BITS) {
        int word = begin / BITS + thread_id();
        block_sync();
        words[thread_id()] = word * BITS < d->n ? d->allowed[word] : 0;
        block_sync();
        for (int j = 0; j < BITS; j++) {
            int at = j * SAMPLE_THREADS + thread_id(), i = begin + at;
            if (i < d->n)
                d->x[i] = words[at / BITS] >> at % BITS & 1 ? clamped(d->x[i]) : LEAST_FLOAT;
        }
    }
}

KERNEL(sample_prepare, struct sample_args, SAMPLE_THREADS)
{
    SHARED(struct draw, d, 1);
    load_draw(d, &a.draws[block_id()]);
    float *x = d->x;
    if (!x)
        return;
    for (int i = thread_id(); i < d->n; i += SAMPLE_THREADS)
        x[i] = d->kind == DRAW_BEST ? (float)((double)d->logits[i] - d->total) : d->logits[i];
    block_sync();
    add_biases(d);
    block_sync();
    for (int i = thread_id(); i < d->n_penalties; i += SAMPLE_THREADS) {
        float *at = &x[d->penalties[i].id], v = *at;
        int n_answer = d->penalties[i].n_answer;
        v = v < 0 ? v * d->repetition : v / d->repetition;
        if (n_answer > 0)
            v -= d->presence + d->frequency * (float)n_answer;
        *at = v;
    }
    block_sync();
    if (d->allowed)
        keep_allowed(d);
}

/* ---- the largest logit ---- */

/* The maxima of groups of ids, and of all: the first thread gets the latter. */
DEVICE void scan_part(const float *x, struct part part, uint64_t *largest, int32_t *bad, uint32_t *groups,
                      struct reduction *r)
{
    SHARED(uint32_t, maxima, SAMPLE_THREADS);
    uint64_t most = 0;
    uint32_t first_bad = INT32_MAX;
    for (int i = part.begin + thread_id(); i < part.end; i += SAMPLE_THREADS) {
        float v = x[i];
        uint64_t key = key_of(v, i);
        most = key > most ? key : most;
        if ((f32_bits(v) & 0x7f800000) == 0x7f800000 && (uint32_t)i < first_bad)
            first_bad = (uint32_t)i;
    }
    maxima[thread_id()] = (uint32_t)(most >> 32);
    most = block_max(most, r);
    first_bad = 0xffffffffu - (uint32_t)block_max(0xffffffffu - first_bad, r);
    if (thread_id() == 0) {
        *largest = most;
        *bad = (int32_t)first_bad;
    }
    if (thread_id() < GROUPS_PART) {
        uint32_t group = 0;
        UNROLL for (int i = 0; i < SAMPLE_THREADS; i += GROUPS_PART)
        {
            uint32_t other = maxima[thread_id() + i];
            group = other > group ? other : group;
        }
        groups[thread_id()] = group;
    }
    block_sync();
}

KERNEL(sample_scan, struct sample_args, SAMPLE_THREADS)
{
    SHARED(struct reduction, r, 1);
    SHARED(struct draw, d, 1);
    int row = block_id_y();
    load_draw(d, &a.draws[row]);
    struct draw_scan *out = &a.outs[row].scans[block_id()];
    struct draw_scratch *scratch = &a.scratch[row];
    struct part part = part_of(d->n, block_id());
    scan_part(d->logits, part, &out->largest, &out->bad, scratch->groups[0] + block_id() * GROUPS_PART, r);
    if (d->x)
        scan_part(d->x, part, &out->largest_x, &out->bad_x, scratch->groups[1] + block_id() * GROUPS_PART, r);
    if (block_id() == 0) {
        scratch->bins[thread_id()] = 0;
        if (thread_id() == 0)
            a.outs[row].is_wide = d->kind == DRAW_WIDE;
    }
    struct draw_wide *wide = &a.wide[row];
    if (block_id() == 1 && (d->kind == DRAW_WIDE || d->kind == DRAW_TRUNCATED)) {
        for (int i = thread_id(); i < WIDE_BINS; i += SAMPLE_THREADS)
            wide->bins[0][i] = 0;
        if (thread_id() == 0)
            wide->searches[1] = (struct draw_search){ .farthest = 0xffffffffu, .stage = -1 };
    }
}

/* ---- a plain draw: all tokens race ---- */

/* Only tokens that may arrive before the earliest so far are weighed exactly. */
DEVICE void race_part(const struct draw *d, const float *x, struct part part, uint64_t best,
                      struct draw_race *out, struct reduction *r)
{
    float max = draw_key_value(best);
    struct race race = { d->seed, __builtin_inf(), -1 };
    race_join(&race, draw_key_id(best), 1);
    for (int i = part.begin + thread_id(); i < part.end; i += SAMPLE_THREADS) {
        float early = (float)(mix64(d->seed ^ (uint32_t)i) >> 40) * 0x1p-24f;
        if (early < (float)race.first * ARRIVAL_MARGIN * exp_f32((x[i] - max) * d->reciprocal))
            join(&race, i, x[i], max, d);
    }
    finish_race(race, d->logits, out, r);
}

/* ---- sums of exponentials, with the bits of kernels' sum_exp ---- */

/* Bin of a distance; the last has all that have no weight. */
DEVICE int bin_of(float distance)
{
    return distance < (float)(SAMPLE_BINS / BINS_EACH) ? (int)(distance * BINS_EACH) : SAMPLE_BINS - 1;
}

DEVICE float bin_begin(int bin)
{
    return (float)bin * (1.0f / BINS_EACH);
}

/* The number that weight 1 is at the beginning of a bin: all weights of a row add up to at most 2^31. */
DEVICE float bin_unit(int n)
{
    return 2147483520.0f / (float)n;
}

/* A half of a warp adds up a tile: element i is added to the sum of lane i % 16, and the sums are folded by halves. factors:
 * of bins, by which a weight becomes a number of its bin; NULL: no bins. */
DEVICE void sum_tiles(const float *x, int n, float max, float scale, float *sums, uint32_t *bins,
                      const float *factors)
{
    int lane = lane_id() % SUM_LANES, n_tiles = (n + RACE_TILE - 1) / RACE_TILE;
    float unit = bin_unit(n);
    /* Both halves of a warp meet at the shuffles. Neighbouring tiles are in different blocks. */
    for (int first = block_id() % SAMPLE_PARTS; first < n_tiles; first += SAMPLE_PARTS * 2 * WARPS) {
        int tile = first + SAMPLE_PARTS * (thread_id() / SUM_LANES), begin = tile * RACE_TILE;
        int end = begin + RACE_TILE < n ? begin + RACE_TILE : n;
        float sum = 0;
#ifdef __NVPTX__
#pragma unroll 8
#endif
        for (int i = begin + lane; i < end; i += SUM_LANES) {
            float e = exp_f32((x[i] - max) * scale);
            sum += e;
            if (bins) {
                int bin = bin_of((max - x[i]) * scale);
                float w = e * factors[bin];
                if (bin < SAMPLE_BINS - 1)
                    (void)atomic_add_u32(&bins[bin], (uint32_t)(w < unit ? w : unit));
            }
        }
        sum = warp_sum_f32(sum, SUM_LANES);
        if (lane == 0 && tile < n_tiles)
            sums[tile] = sum;
    }
}

/* Blocks of a row: SAMPLE_PARTS for the sum that log-probabilities need, and as many for that of top-p, which also add up
 * the weights by bin. */
KERNEL(sample_sums, struct sample_args, SAMPLE_THREADS)
{
    SHARED(struct draw, d, 1);
    SHARED(uint32_t, bins, SAMPLE_BINS);
    SHARED(float, factors, SAMPLE_BINS);
    int row = block_id_y();
    uint64_t best;
    load_draw(d, &a.draws[row]);
    if (block_id() < SAMPLE_PARTS) {
        if (d->has_logprobs && largest_of(&a.outs[row], false, &best))
            sum_tiles(d->logits, d->n, draw_key_value(best), 1, tile_sums_of(&a, row, false), NULL, NULL);
        return;
    }
    if (!draw_has_mass(d) || !largest_of(&a.outs[row], d->x != NULL, &best))
        return;
    bins[thread_id()] = 0;
    factors[thread_id()] = exp_f32(bin_begin(thread_id())) * bin_unit(d->n);
    block_sync();
    sum_tiles(d->x ? d->x : d->logits, d->n, draw_key_value(best), d->reciprocal, tile_sums_of(&a, row, true),
              bins, factors);
    block_sync();
    if (bins[thread_id()] > 0)
        (void)atomic_add_u32(&a.scratch[row].bins[thread_id()], bins[thread_id()]);
}

/* ---- candidates ---- */

DEVICE void start_candidates(struct candidates *s)
{
    block_sync();
    if (thread_id() == 0)
        s->n = 0;
    block_sync();
}

/* Adds those of a chunk of logits whose keys are from bound on. There is room for all of them. */
DEVICE void add_chunk(const float *x, int begin, int n, uint64_t bound, struct candidates *s)
{
    float v[CHUNK / SAMPLE_THREADS]; /* loaded before any is stored */
    UNROLL for (int j = 0; j < CHUNK / SAMPLE_THREADS; j++)
    {
        int i = begin + j * SAMPLE_THREADS + thread_id();
        v[j] = i < n ? x[i] : 0;
    }
    UNROLL for (int j = 0; j < CHUNK / SAMPLE_THREADS; j++)
    {
        int i = begin + j * SAMPLE_THREADS + thread_id();
        uint64_t key = key_of(v[j], i);
        if (i < n && key >= bound)
            s->keys[atomic_add_u32(&s->n, 1)] = key;
    }
}

/* Sorts the candidates that were added. */
DEVICE void sort_candidates(struct candidates *s)
{
    block_sync();
    int n = (int)s->n, room = 2;
    while (room < n)
        room *= 2;
    for (int i = n + thread_id(); i < room; i += SAMPLE_THREADS)
        s->keys[i] = 0;
    block_sort(s->keys, room);
}

/* Whether the next chunk may not fit. */
DEVICE bool is_full(const struct candidates *s)
{
    block_sync();
    bool full = s->n > SAMPLE_CANDIDATES - CHUNK;
    block_sync();
    return full;
}

/* Adds the k largest and perhaps some more, sorted; k: at most SAMPLE_MOST_K. The k-th largest of the groups' maxima is at most
 * the k-th largest logit: mostly, few others are as large. When memory is full, the k largest so far remain. */
DEVICE void take_largest(const float *x, int n, int k, const uint32_t *groups, struct candidates *s)
{
    uint64_t bound = 0;
    if (n > SAMPLE_CANDIDATES) {
        block_sync();
        for (int i = thread_id(); i < SAMPLE_GROUPS; i += SAMPLE_THREADS)
            s->keys[i] = groups[i];
        block_sort(s->keys, SAMPLE_GROUPS);
        bound = s->keys[k - 1] << 32;
    }
    start_candidates(s);
    for (int begin = 0; begin < n; begin += CHUNK) {
        add_chunk(x, begin, n, bound, s);
        if (!is_full(s) || begin + CHUNK >= n)
            continue;
        sort_candidates(s);
        bound = s->keys[k - 1];
        block_sync();
        if (thread_id() == 0)
            s->n = (uint32_t)k;
        block_sync();
    }
    sort_candidates(s);
}

/* Adds the largest, as many as have the mass together and perhaps some more, sorted. False: they are too many. */
DEVICE bool take_mass(const float *x, int n, float max, float reciprocal, uint64_t mass, const uint32_t *bins,
                      struct candidates *s)
{
    int last = SAMPLE_BINS - 1;
    if (n > SAMPLE_CANDIDATES) {
        float weight = (float)bins[thread_id()] / bin_unit(n) * exp_f32(-bin_begin(thread_id()));
        uint64_t units = (uint64_t)(weight * RACE_UNIT), all, before;
        before = block_sum_before(units, &all, &s->reduction);
        last = (int)block_count((double)(before + units) < (double)mass * WINDOW_MARGIN, &s->reduction);
        last = last < SAMPLE_BINS - 1 ? last : SAMPLE_BINS - 1;
    }
    start_candidates(s);
    for (int i = thread_id(); i < n; i += SAMPLE_THREADS) {
        if (bin_of((max - x[i]) * reciprocal) > last)
            continue;
        uint32_t at = atomic_add_u32(&s->n, 1);
        if (at < SAMPLE_CANDIDATES)
            s->keys[at] = key_of(x[i], i);
    }
    block_sync();
    if (s->n > SAMPLE_CANDIDATES)
        return false;
    sort_candidates(s);
    return true;
}

/* ---- a draw with top-k or top-p ---- */

/* The candidates of a thread, which follow each other. */
struct share {
    int begin, end;
};

DEVICE struct share share_of(int n)
{
    int each = (n + SAMPLE_THREADS - 1) / SAMPLE_THREADS, begin = thread_id() * each;
    return (struct share){ begin, begin + each < n ? begin + each : n };
}

/* The units of all n first candidates, and of those before this thread's. */
DEVICE uint64_t weigh(const struct draw *d, float max, int n, uint64_t *total, struct candidates *s)
{
    uint64_t sum = 0;
    struct share mine = share_of(n);
    NO_UNROLL for (int i = mine.begin; i < mine.end; i++) sum += units_of(d, max, draw_key_value(s->keys[i]));
    return block_sum_before(sum, total, &s->reduction);
}

/* The smallest number of the n first candidates that have the mass. before: from weigh(). */
DEVICE int cut_by_mass(const struct draw *d, float max, int n, uint64_t before, uint64_t mass,
                       struct candidates *s)
{
    uint32_t n_below = 0;
    struct share mine = share_of(n);
    NO_UNROLL for (int i = mine.begin; i < mine.end && before < mass; i++)
    {
        before += units_of(d, max, draw_key_value(s->keys[i]));
        n_below += before < mass;
    }
    int n_kept = (int)block_count(n_below, &s->reduction) + 1;
    return n_kept < n ? n_kept : n;
}

/* sums: of the tiles of x. */
DEVICE void draw_truncated(const struct draw *d, const float *x, uint64_t best,
                           const struct draw_scratch *scratch, const float *sums, struct draw_out *out,
                           struct candidates *s)
{
    float max = draw_key_value(best);
    uint64_t mass = 0, total = 0;
    int n_kept = d->top_k < d->n ? d->top_k : d->n;
    bool fits = true;
    if (d->top_k > 0) {
        take_largest(x, d->n, n_kept, scratch->groups[d->x != NULL], s);
    } else {
        mass = mass_of_top_p(d, sums);
        fits = take_mass(x, d->n, max, d->reciprocal, mass, scratch->bins, s);
        n_kept = (int)s->n;
    }
    if (fits) {
        uint64_t before = weigh(d, max, n_kept, &total, s);
        mass = d->top_k > 0 ? race_mass((double)d->top_p * (double)total) : mass;
        /* Bins lose by rounding, so candidates may be missing. */
        fits = d->top_k > 0 || n_kept == d->n || total >= mass;
        n_kept = d->top_p < 1.0f ? cut_by_mass(d, max, n_kept, before, mass, s) : n_kept;
    }
    if (!fits) {
        if (thread_id() == 0)
            out->is_wide = 1;
        return;
    }
    struct race race = { d->seed, __builtin_inf(), -1 };
    struct share mine = share_of(n_kept);
    NO_UNROLL for (int i = mine.begin; i < mine.end; i++)
        join(&race, draw_key_id(s->keys[i]), draw_key_value(s->keys[i]), max, d);
    finish_race(race, d->logits, &out->races[0], &s->reduction);
}

/* ---- log-probabilities ---- */

/* The n_top largest of x. */
DEVICE void find_top(const struct draw *d, const float *x, const uint32_t *groups, struct draw_out *out,
                     struct draw_found *top, struct candidates *s)
{
    int n_top = d->n_top < d->n ? d->n_top : d->n;
    if (n_top > 0)
        take_largest(x, d->n, n_top, groups, s);
    if (thread_id() < n_top) {
        int id = draw_key_id(s->keys[thread_id()]);
        top[thread_id()] = (struct draw_found){ id, d->logits[id], x[id] };
    }
    if (thread_id() == 0)
        out->n_top = n_top;
}

/* sums: of the tiles of the logits. */
DEVICE void find_logprobs(const struct draw *d, uint64_t best, const struct draw_scratch *scratch,
                          const float *sums, struct draw_out *out, struct draw_found *top,
                          struct candidates *s)
{
    int token = d->token >= 0 ? d->token : draw_key_id(best);
    if (thread_id() == 0) {
        out->sum_exp = sum_of_tiles(sums, d->n);
        out->token = (struct draw_found){ token, d->logits[token], 0 };
    }
    find_top(d, d->logits, scratch->groups[0], out, top, s);
}

/* Blocks of a row: SAMPLE_PARTS for the parts of a plain draw, one for a truncated draw, one for log-probabilities. */
KERNEL(sample_draw, struct sample_args, SAMPLE_THREADS)
{
    SHARED(struct draw, d, 1);
    SHARED(struct candidates, s, 1);
    int row = block_id_y();
    struct draw_out *out = &a.outs[row];
    struct draw_found *top = a.tops + (size_t)row * SAMPLE_MOST_TOP;
    uint64_t best;
    load_draw(d, &a.draws[row]);
    if (!largest_of(out, false, &best) || (d->x && !largest_of(out, true, &best)))
        return; /* an error, or left to the host */
    const float *x = d->x ? d->x : d->logits;
    if (block_id() < SAMPLE_PARTS) {
        if (d->kind == DRAW_PLAIN)
            race_part(d, x, part_of(d->n, block_id()), best, &out->races[block_id()], &s->reduction);
    } else if (block_id() == SAMPLE_PARTS) {
        if (d->kind == DRAW_TRUNCATED)
            draw_truncated(d, x, best, &a.scratch[row], tile_sums_of(&a, row, true), out, s);
        else if (d->kind == DRAW_BEST)
            find_top(d, x, a.scratch[row].groups[1], out, top, s);
    } else if (d->has_logprobs) {
        find_logprobs(d, best, &a.scratch[row], tile_sums_of(&a, row, false), out, top, s);
    }
}

/* ---- results ---- */

DEVICE uint64_t warp_max(uint64_t v)
{
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        uint64_t other = shuffle_xor_u64(v, mask);
        v = other > v ? other : v;
    }
    return v;
}

/* The token that arrives first, of all parts; the lower id of equal ones. Each lane has a part. */
DEVICE struct draw_found first_of(const struct draw_race *races, int n_parts)
{
    const struct draw_race *mine = &races[lane_id() < n_parts ? lane_id() : 0];
    uint64_t key = ~race_bits(mine->arrival), earliest = warp_max(key);
    uint32_t id = (uint32_t)mine->found.id;
    uint64_t lowest = warp_max(key == earliest ? 0xffffffffu - id : 0);
    uint32_t lanes = ballot(key == earliest && 0xffffffffu - id == lowest), lane = 0;
    while (lane < WARP - 1 && !(lanes >> lane & 1))
        lane++;
    return races[(int)lane < n_parts ? lane : 0].found;
}

/* A warp for each row. */
KERNEL(sample_finish, struct sample_args, WARP)
{
    const struct draw *d = &a.draws[block_id()];
    const struct draw_out *out = &a.outs[block_id()];
    const struct draw_scan *scan = &out->scans[lane_id() % SAMPLE_PARTS];
    bool has_x = d->x != NULL;
    int kind = d->kind, wanted = d->token;
    struct draw_result result = { 0 };
    result.largest = warp_max(scan->largest);
    uint64_t best = has_x ? warp_max(scan->largest_x) : result.largest;
    result.bad = (int32_t)(INT32_MAX - warp_max((uint64_t)(INT32_MAX - scan->bad)));
    result.is_left = ballot(has_x && scan->bad_x != INT32_MAX) != 0;
    struct draw_found found = kind == DRAW_PLAIN || out->is_wide ? first_of(out->races, SAMPLE_PARTS)
                              : kind == DRAW_TRUNCATED           ? first_of(out->races, 1)
                                                                 : out->token;
    found.id = kind == DRAW_GREEDY ? draw_key_id(best) : kind == DRAW_NOTHING ? wanted : found.id;
    if (result.bad == INT32_MAX && !result.is_left && found.id >= 0 && found.id < d->n)
        result.token = found.id;
    result.logit = found.logit;
    result.sum_exp = out->sum_exp;
    result.n_top = out->n_top;
    if (lane_id() == 0)
        a.results[block_id()] = result;
}
