/* Draws with typical-p, or with more candidates than a block's shared memory holds: blocks of a row pass over it several times, and
 * a launch continues where the one before ended. Nothing is sorted. The last candidate that top-k, top-p or typical-p keeps is found
 * by its digits, as a radix sort would: a launch adds up the candidates, or their units, by the next digit, and the following one
 * picks the bin in which the mass is reached. Sums are integers (kernels/race.h), so they do not depend on the order of blocks,
 * and are those of the CPU's sampler. */
#include "kernels/cuda/sample/sample_block.h"

enum { BINS_EACH = WIDE_BINS / SAMPLE_THREADS, PART_BINS = WIDE_BINS / SAMPLE_PARTS };

/* A block's row. */
struct wide_row {
    const struct draw *d;
    const float *x;
    float max;
    struct draw_search *now; /* shared memory */
    struct reduction *r;
};

/* Digits have 11, 11 and 10 bits. The lowest bit of one: */
DEVICE int digit_begin(int digit)
{
    return digit == 0 ? 21 : digit == 1 ? 10 : 0;
}

/* ---- candidates ---- */

DEVICE bool is_candidate(const struct wide_row *w, float x, int id)
{
    return key_of(x, id) >= w->now->bound;
}

/* The weight is computed exactly only if the other one, which differs less than the margin, leaves it open. */
DEVICE bool is_over_min_p(const struct wide_row *w, float x, float weight)
{
    const float margin = 0.001f, least = 1e-25f; /* below it the margin may be too small */
    float min_p = w->d->min_p;
    if (min_p <= 0)
        return true;
    if (min_p > least && !(weight > min_p * (1 - margin) && weight < min_p * (1 + margin)))
        return weight > min_p;
    return race_weight(x, w->max, w->d->temperature) >= (double)min_p;
}

DEVICE uint32_t distance_bits(const struct wide_row *w, float log_weight)
{
    float distance = w->now->mean - log_weight;
    return f32_bits(distance < 0 ? -distance : distance + 0.0f);
}

/* What the digits are of: a larger value comes first. False: no candidate of the stage. */
DEVICE bool value_of(const struct wide_row *w, int stage, int id, uint32_t *value)
{
    float x = w->x[id];
    if (!is_candidate(w, x, id))
        return false;
    *value = ordered_bits(x);
    if (stage != WIDE_TYPICAL)
        return true;
    float log_weight = (x - w->max) * w->d->reciprocal;
    *value = ~distance_bits(w, log_weight);
    return is_over_min_p(w, x, exp_f32(log_weight));
}

/* ---- what the launch before left ---- */

/* The id of the n-th candidate, from 1, with this logit. */
DEVICE int find_equal(const struct wide_row *w, uint32_t value, uint64_t n)
{
    SHARED(int, found, 1);
    int each = (w->d->n + SAMPLE_THREADS - 1) / SAMPLE_THREADS, begin = thread_id() * each;
    int end = begin + each < w->d->n ? begin + each : w->d->n;
    uint64_t mine = 0, all, before;
    for (int i = begin; i < end; i++)
        mine += ordered_bits(w->x[i]) == value && is_candidate(w, w->x[i], i);
    before = block_sum_before(mine, &all, w->r);
    if (before < n && n <= before + mine) {
        for (int i = begin; i < end && before < n; i++) {
            if (ordered_bits(w->x[i]) == value && is_candidate(w, w->x[i], i) && ++before == n)
                *found = i;
        }
    }
    block_sync();
    return *found;
}

/* All digits are known. amount: of the candidates with this value. */
DEVICE void end_search(const struct wide_row *w, uint64_t amount)
{
    struct draw_search *now = w->now;
    uint32_t value = now->digits;
    uint64_t each = now->stage == WIDE_TOP_K ? 1
                                             : units_of(w->d, w->max, draw_key_value((uint64_t)value << 32));
    uint64_t bound = (uint64_t)value << 32;
    if (now->stage != WIDE_TYPICAL) { /* which keeps all of them */
        uint64_t n_kept = (now->left + each - 1) / each;
        if (n_kept * each < amount)
            bound = key_of(draw_key_value(bound), find_equal(w, value, n_kept));
    }
    block_sync();
    if (thread_id() == 0) {
        if (now->stage == WIDE_TYPICAL)
            now->farthest = ~value;
        else if (bound > now->bound)
            now->bound = bound;
        now->digit = WIDE_DIGITS;
    }
}

/* Picks the bin of a digit in which the mass is reached. If all candidates have less, all are kept. */
DEVICE void pick_bin(const struct wide_row *w, const uint64_t *bins)
{
    SHARED(uint64_t, amount, 1);
    struct draw_search *now = w->now;
    int first = WIDE_BINS - 1 - thread_id() * BINS_EACH;
    uint64_t sum = 0, all, before;
    UNROLL for (int j = 0; j < BINS_EACH; j++) sum += bins[first - j];
    before = block_sum_before(sum, &all, w->r);
    uint64_t left = now->left;
    if (now->stage == WIDE_TOP_P && now->digit == 0 && w->d->top_k > 0)
        left = race_mass((double)w->d->top_p * (double)all);
    block_sync();
    if (all < left) {
        if (thread_id() == 0)
            now->digit = WIDE_DIGITS;
        block_sync();
        return;
    }
    bool is_last = now->digit == WIDE_DIGITS - 1;
    if (before < left && left <= before + sum) {
        int bin = first;
        while (before + bins[bin] < left)
            before += bins[bin--];
        now->left = left - before;
        now->digits = now->digits << (is_last ? 10 : 11) | (uint32_t)bin;
        *amount = bins[bin];
    }
    block_sync();
    if (is_last)
        end_search(w, *amount);
    block_sync();
}

/* bins: sums of units and of units times the logarithm, negated. */
DEVICE void take_entropy(const struct wide_row *w, const uint64_t *bins)
{
    if (thread_id() == 0) {
        w->now->mean = -(float)((double)bins[1] / (double)bins[0]);
        w->now->left = race_mass((double)w->d->typical_p * (double)bins[0]);
    }
    block_sync();
}

/* Ends what the launch before began. bins: its own. */
DEVICE void settle(const struct wide_row *w, const uint64_t *bins)
{
    if (w->now->stage == WIDE_ENTROPY)
        take_entropy(w, bins);
    else if (w->now->stage >= 0 && w->now->digit < WIDE_DIGITS)
        pick_bin(w, bins);
}

/* ---- what this launch adds up ---- */

/* Amounts of candidates by digit. The bins' halves are added up apart, since shared memory has no addition of 64 bits. */
DEVICE void add_by_digit(const struct wide_row *w, int stage, int digit, uint64_t *bins)
{
    SHARED(uint32_t, low, WIDE_BINS);
    SHARED(uint32_t, high, WIDE_BINS);
    int begin = digit_begin(digit);
    struct part part = part_of(w->d->n, block_id());
    for (int i = thread_id(); i < WIDE_BINS; i += SAMPLE_THREADS)
        low[i] = high[i] = 0;
    block_sync();
    uint32_t digits = w->now->digits, value;
    for (int i = part.begin + thread_id(); i < part.end; i += SAMPLE_THREADS) {
        if (!value_of(w, stage, i, &value) || (digit > 0 && value >> digit_begin(digit - 1) != digits))
            continue;
        uint64_t amount = stage == WIDE_TOP_K ? 1 : units_of(w->d, w->max, w->x[i]);
        uint32_t bin = value >> begin & (digit == WIDE_DIGITS - 1 ? WIDE_BINS / 2 - 1 : WIDE_BINS - 1);
        uint32_t add = (uint32_t)amount, before = add != 0 ? atomic_add_u32(&low[bin], add) : 0;
        uint32_t carry = (uint32_t)(amount >> 32) + (before + add < before);
        if (carry != 0)
            (void)atomic_add_u32(&high[bin], carry);
    }
    block_sync();
    for (int i = thread_id(); i < WIDE_BINS; i += SAMPLE_THREADS)
        if ((low[i] | high[i]) != 0)
            (void)atomic_add_u64(&bins[i], (uint64_t)high[i] << 32 | low[i]);
}

DEVICE void add_entropy(const struct wide_row *w, uint64_t *bins)
{
    struct part part = part_of(w->d->n, block_id());
    uint64_t units = 0, energy = 0;
    for (int i = part.begin + thread_id(); i < part.end; i += SAMPLE_THREADS) {
        float x = w->x[i], log_weight = (x - w->max) * w->d->reciprocal, weight = exp_f32(log_weight);
        if (weight > 0 && is_candidate(w, x, i) && is_over_min_p(w, x, weight)) {
            units += race_units(weight);
            energy += race_units(weight * -log_weight);
        }
    }
    uint64_t all_units, all_energy;
    (void)block_sum_before(units, &all_units, w->r);
    (void)block_sum_before(energy, &all_energy, w->r);
    if (thread_id() == 0) {
        (void)atomic_add_u64(&bins[0], all_units);
        (void)atomic_add_u64(&bins[1], all_energy);
    }
}

/* Those that are kept race. The most probable one may not be among them. */
DEVICE void race_kept(const struct wide_row *w, struct draw_race *out)
{
    const struct draw *d = w->d;
    struct part part = part_of(d->n, block_id());
    bool is_typical = d->typical_p > 0;
    struct race race = { d->seed, __builtin_inf(), -1 };
    for (int i = part.begin + thread_id(); i < part.end; i += SAMPLE_THREADS) {
        float x = w->x[i], log_weight = (x - w->max) * d->reciprocal;
        if (!is_candidate(w, x, i) || (is_typical && distance_bits(w, log_weight) > w->now->farthest))
            continue;
        float early = (float)(mix64(d->seed ^ (uint32_t)i) >> 40) * 0x1p-24f;
        if (early < (float)race.first * ARRIVAL_MARGIN * exp_f32(log_weight))
            join(&race, i, x, w->max, d);
    }
    finish_race(race, d->logits, out, w->r);
}

/* Blocks of a row: SAMPLE_PARTS. All of them pick the same bin, and the first stores the search for the next launch. */
KERNEL(sample_wide, struct sample_args, SAMPLE_THREADS)
{
    SHARED(struct draw, d, 1);
    SHARED(struct draw_search, now, 1);
    SHARED(struct reduction, r, 1);
    int row = block_id_y();
    uint64_t best;
    struct draw_out *out = &a.outs[row];
    if (!out->is_wide)
        return;
    load_draw(d, &a.draws[row]);
    if (!largest_of(out, false, &best) || (d->x && !largest_of(out, true, &best)))
        return; /* an error, or left to the host */
    struct draw_wide *wide = &a.wide[row];
    struct wide_row w = { d, d->x ? d->x : d->logits, draw_key_value(best), now, r };
    if (thread_id() == 0)
        *now = wide->searches[(a.launch + 1) % 2];
    block_sync();
    settle(&w, wide->bins[(a.launch + WIDE_RINGS - 1) % WIDE_RINGS]);
    bool is_search = draw_has_stage(d, a.stage) && (a.digit == 0 || now->digit < WIDE_DIGITS);
    block_sync();
    if (is_search && a.digit == 0 && thread_id() == 0) {
        now->digits = 0;
        if (a.stage == WIDE_TOP_K)
            now->left = (uint64_t)(d->top_k < d->n ? d->top_k : d->n);
        else if (a.stage == WIDE_TOP_P && d->top_k == 0)
            now->left = mass_of_top_p(d, tile_sums_of(&a, row, true));
    }
    block_sync();
    uint64_t *bins = wide->bins[a.launch % WIDE_RINGS];
    if (is_search && a.stage == WIDE_RACE)
        race_kept(&w, &out->races[block_id()]);
    else if (is_search && a.stage == WIDE_ENTROPY)
        add_entropy(&w, bins);
    else if (is_search)
        add_by_digit(&w, a.stage, a.digit, bins);
    if (thread_id() < PART_BINS)
        wide->bins[(a.launch + 1) % WIDE_RINGS][block_id() * PART_BINS + thread_id()] = 0;
    block_sync();
    if (block_id() == 0 && thread_id() == 0) {
        now->stage = is_search ? a.stage : -1;
        now->digit = is_search ? a.digit : WIDE_DIGITS;
        wide->searches[a.launch % 2] = *now;
    }
}
