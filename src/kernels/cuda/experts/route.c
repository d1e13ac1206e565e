/* The router of a mixture of experts: what kernels/route.c computes, by the same operations in the same order, so that
 * equal logits choose equal experts with equal weights on every device. Then rows in the order of their experts. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/experts/experts_args.h"
#include "kernels/cuda/math.h"

enum { GROUP_THREADS = 256, GROUP_WARPS = GROUP_THREADS / WARP, NOTHING = INT32_MAX };

/* Ascending as the floats are; -0 is 0, and what is no number comes before all. Never 0. */
DEVICE uint32_t order_key(float f)
{
    uint32_t u = f32_bits(f + 0.0f);
    if (f != f)
        return 1;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Warp: the index of the largest of n keys; of equal ones the first. NOTHING: all are 0. */
DEVICE int find_largest(const uint32_t *keys, int n)
{
    uint32_t best = 0, at = NOTHING;
    for (int i = lane_id(); i < n; i += WARP) {
        if (keys[i] > best) {
            best = keys[i];
            at = (uint32_t)i;
        }
    }
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        uint32_t other = shuffle_xor_u32(best, mask), other_at = shuffle_xor_u32(at, mask);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
    return (int)at;
}

/* Element i goes into sum i % 16 of 16, which are folded by halves (kernels.h). */
DEVICE void softmax_row(float *y, const float *x, int n)
{
    float top = -__builtin_inff(), sum = 0;
    for (int i = lane_id(); i < n; i += WARP)
        top = x[i] > top ? x[i] : top;
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        float other = shuffle_xor_f32(top, mask);
        top = other > top ? other : top;
    }
    for (int first = 0; first < n; first += WARP) {
        int i = first + lane_id();
        float e = i < n ? exp_f32(x[i] - top) : 0.0f;
        float next = shuffle_f32(e, lane_id() | 16);
        sum += e; /* only lanes 0 to 15 have sums that are used */
        sum += next;
        if (i < n)
            y[i] = e;
    }
    sum = shuffle_f32(warp_sum_f32(sum, 16), 0);
    for (int i = lane_id(); i < n; i += WARP)
        y[i] = divide_exact(y[i], sum);
}

/* The sum of the best one or two of n floats, given as their bits. */
DEVICE float group_score(const uint32_t *choice, int n, int n_best)
{
    float best = -__builtin_inff(), second = -__builtin_inff();
    for (int i = 0; i < n; i++) {
        float c = bits_f32(choice[i]);
        if (c > best) {
            second = best;
            best = c;
        } else if (c > second) {
            second = c;
        }
    }
    return n_best > 1 ? best + second : best;
}

/* Warp: keys of groups [n_groups] become 0 for the best groups. */
DEVICE void choose_groups(const struct route_args *a, const uint32_t *choice, uint32_t *groups)
{
    int n = a->n_experts / a->n_groups;
    for (int g = lane_id(); g < a->n_groups; g += WARP)
        groups[g] = order_key(group_score(choice + g * n, n, a->group_best));
    warp_sync();
    for (int i = 0; i < a->n_chosen_groups; i++) {
        int best = find_largest(groups, a->n_groups);
        warp_sync();
        if (lane_id() == 0 && best != NOTHING)
            groups[best] = 0;
        warp_sync();
    }
}

/* Warp: choice [n_experts], bits of floats, become keys, which are 0 outside of the best groups. Then the experts with
 * the largest keys get a mark of 1 in marks [n_experts], the others 0. */
DEVICE void choose_experts(const struct route_args *a, uint32_t *choice, uint32_t *marks)
{
    bool has_groups = a->n_groups > 1;
    int n_of = has_groups ? a->n_experts / a->n_groups : 1;
    if (has_groups)
        choose_groups(a, choice, marks);
    for (int i = lane_id(); i < a->n_experts; i += WARP)
        choice[i] = has_groups && marks[i / n_of] != 0 ? 0 : order_key(bits_f32(choice[i]));
    warp_sync();
    for (int i = lane_id(); i < a->n_experts; i += WARP)
        marks[i] = 0;
    warp_sync();
    for (int c = 0; c < a->n_chosen; c++) {
        int best = find_largest(choice, a->n_experts);
        warp_sync();
        if (lane_id() == 0 && best != NOTHING) {
            choice[best] = 0;
            marks[best] = 1;
        }
        warp_sync();
    }
}

/* Warp: writes the marked experts in ascending order, and their weights, whose sum is in that order. */
DEVICE void weigh(const struct route_args *a, const float *scores, const uint32_t *is_chosen, int row)
{
    int32_t *ids = a->ids + (int64_t)row * a->n_chosen;
    float *weights = a->weights + (int64_t)row * a->n_chosen, sum = 1e-20f;
    for (int first = 0; first < a->n_experts; first += WARP) {
        int i = first + lane_id();
        for (uint32_t left = ballot(i < a->n_experts && is_chosen[i]); left != 0; left &= left - 1)
            sum += scores[first + __builtin_ctz(left)];
    }
    for (int first = 0, n = 0; first < a->n_experts; first += WARP) {
        int i = first + lane_id();
        bool is_mine = i < a->n_experts && is_chosen[i];
        uint32_t all = ballot(is_mine);
        if (is_mine) {
            int at = n + __builtin_popcount(all & ((1u << lane_id()) - 1));
            float weight = a->is_normed ? divide_exact(scores[i], sum) : scores[i];
            ids[at] = i;
            weight = a->scale != 0 ? weight * a->scale : weight;
            weights[at] = a->factors ? weight * a->factors[i] : weight;
            if (a->n_rows_of)
                atomic_add_u32(&a->n_rows_of[i], 1);
        }
        n += __builtin_popcount(all);
    }
}

/* Warp: the experts of a row and their weights. memory: [3 * n_experts], shared. */
DEVICE void route_row(const struct route_args *a, uint32_t *memory, int row)
{
    int n = a->n_experts;
    float *scores = (float *)memory;
    uint32_t *choice = memory + n, *marks = choice + n;
    const float *logits = a->scores + (int64_t)row * a->n_scores;
    if (row >= a->counts->n_rows) {
        for (int c = lane_id(); c < a->n_chosen; c += WARP)
            a->ids[(int64_t)row * a->n_chosen + c] = -1;
        return;
    }
    if (a->is_sigmoid) {
        for (int i = lane_id(); i < n; i += WARP)
            scores[i] = divide_exact(1.0f, 1.0f + exp_f32(-logits[i]));
    } else {
        softmax_row(scores, logits, n);
    }
    for (int i = lane_id(); i < n; i += WARP)
        choice[i] = f32_bits(a->bias ? scores[i] + a->bias[i] : scores[i]);
    warp_sync();
    choose_experts(a, choice, marks);
    weigh(a, scores, marks, row);
}

/* Block: a row. A warp of its own, so that its experts are chosen without barriers. */
KERNEL(route_rows, struct route_args, WARP)
{
    DYNAMIC_SHARED(uint32_t, memory);
    route_row(&a, memory, block_id());
}

/* ---- rows by expert ---- */

/* Block: what the experts before this one have, and all experts together. */
struct expert_sums {
    uint32_t begin, first_list; /* of this expert */
    uint32_t n_lists, n_used;   /* of all */
};

DEVICE struct expert_sums sum_counts(const struct group_args *a, int expert, uint32_t *shared)
{
    if (thread_id() < 4)
        shared[thread_id()] = 0;
    block_sync();
    for (int i = thread_id(); i < a->n_experts; i += GROUP_THREADS) {
        uint32_t n = a->n_rows_of[i], n_lists = (n + (uint32_t)a->list_rows - 1) / (uint32_t)a->list_rows;
        if (n == 0)
            continue;
        if (i < expert) {
            atomic_add_u32(&shared[0], n);
            atomic_add_u32(&shared[1], n_lists);
        }
        atomic_add_u32(&shared[2], n_lists);
        atomic_add_u32(&shared[3], 1);
    }
    block_sync();
    return (struct expert_sums){ shared[0], shared[1], shared[2], shared[3] };
}

/* Warp: for each choice begin to end - 1 of the expert, entry, entry + 1, ... if it stores. Returns their number. */
DEVICE uint32_t scan_choices(const struct group_args *a, int expert, int begin, int end, uint32_t entry,
                             bool stores)
{
    enum { LOADS = 8 }; /* in flight together */
    uint32_t n = 0;
    for (int first = begin; first < end; first += LOADS * WARP) {
        int32_t ids[LOADS];
        UNROLL for (int l = 0; l < LOADS; l++)
        {
            int i = first + l * WARP + lane_id();
            ids[l] = i < end ? a->ids[i] : -1;
        }
        UNROLL for (int l = 0; l < LOADS; l++)
        {
            int i = first + l * WARP + lane_id();
            uint32_t all = ballot(ids[l] == expert);
            if (stores && ids[l] == expert) {
                uint32_t at = entry + n + (uint32_t)__builtin_popcount(all & ((1u << lane_id()) - 1));
                a->entries[i] = (int32_t)at;
                a->rows[at] = i / a->n_chosen;
            }
            n += (uint32_t)__builtin_popcount(all);
        }
    }
    return n;
}

/* Block: an expert. Each warp takes a run of the choices: it counts those of the expert, then numbers them from where the
 * warps before it end. */
KERNEL(group_rows, struct group_args, GROUP_THREADS)
{
    SHARED(uint32_t, sums, 4);
    SHARED(uint32_t, counts, GROUP_WARPS);
    int expert = block_id();
    struct expert_sums s = sum_counts(&a, expert, sums);
    int n = (int)a.n_rows_of[expert], n_lists = (n + a.list_rows - 1) / a.list_rows;
    if (expert == 0 && thread_id() == 0) {
        *a.n_lists = (int32_t)s.n_lists;
        *a.n_read += s.n_used * a.expert_bytes;
    }
    if (n == 0)
        return;
    for (int t = thread_id(); t < n_lists; t += GROUP_THREADS) {
        int left = n - t * a.list_rows;
        a.lists[(int)s.first_list + t] = (struct linear_rows){ .expert = expert,
                                                               .begin = (int)s.begin + t * a.list_rows,
                                                               .n = left < a.list_rows ? left : a.list_rows };
    }
    int run = (a.n_choices + GROUP_WARPS * WARP - 1) / (GROUP_WARPS * WARP) * WARP, begin = warp_id() * run;
    int end = begin + run < a.n_choices ? begin + run : a.n_choices;
    uint32_t mine = scan_choices(&a, expert, begin, end, 0, false), entry = s.begin;
    if (lane_id() == 0)
        counts[warp_id()] = mine;
    block_sync();
    for (int w = 0; w < warp_id(); w++)
        entry += counts[w];
    if (mine > 0)
        scan_choices(&a, expert, begin, end, entry, true);
}

/* ---- few rows: router and order in one block ---- */

/* Block: begins [n_experts + 1], where the entries of each expert begin, and the lists, from ids in shared memory. */
DEVICE void list_few(const struct group_args *a, const int32_t *ids, uint32_t *counts, uint32_t *begins)
{
    for (int e = thread_id(); e < a->n_experts; e += ROUTE_FEW_THREADS) {
        uint32_t n = 0;
        for (int c = 0; c < a->n_choices; c++)
            n += ids[c] == e;
        counts[e] = n;
    }
    block_sync();
    for (int e = thread_id(); e <= a->n_experts; e += ROUTE_FEW_THREADS) {
        int begin = 0, n_used = 0, n_lists = 0;
        for (int i = 0; i < e; i++) {
            int n = (int)counts[i];
            begin += n;
            n_used += n > 0;
            n_lists += (n + a->list_rows - 1) / a->list_rows;
        }
        begins[e] = (uint32_t)begin;
        if (e == a->n_experts) {
            *a->n_lists = n_lists;
            *a->n_read += (uint64_t)n_used * a->expert_bytes;
            continue;
        }
        for (int done = 0, n = (int)counts[e]; done < n; done += a->list_rows)
            a->lists[n_lists++] = (struct linear_rows){
                .expert = e, .begin = begin + done, .n = n - done < a->list_rows ? n - done : a->list_rows
            };
    }
    block_sync();
}

/* A single block, of which each warp has a row. */
KERNEL(route_few, struct route_few_args, ROUTE_FEW_THREADS)
{
    DYNAMIC_SHARED(uint32_t, memory);
    uint32_t *counts = memory + a.group.n_choices / a.group.n_chosen * 3 * a.group.n_experts,
             *begins = counts + a.group.n_experts;
    int32_t *ids = (int32_t *)(begins + a.group.n_experts + 1);
    if (warp_id() * a.group.n_chosen < a.group.n_choices)
        route_row(&a.route, memory + warp_id() * 3 * a.group.n_experts, warp_id());
    block_sync();
    for (int c = thread_id(); c < a.group.n_choices; c += ROUTE_FEW_THREADS)
        ids[c] = a.route.ids[c];
    block_sync();
    list_few(&a.group, ids, counts, begins);
    for (int c = thread_id(); c < a.group.n_choices; c += ROUTE_FEW_THREADS) {
        int entry = ids[c] >= 0 ? (int)begins[ids[c]] : 0;
        if (ids[c] < 0)
            continue;
        for (int i = 0; i < c; i++)
            entry += ids[i] == ids[c];
        a.group.entries[c] = entry;
        a.group.rows[entry] = c / a.group.n_chosen;
    }
}

/* ---- the sum of a row's experts ---- */

/* Grid x: a row; y: 256 of its columns. Products are added in the order of the experts, by fused multiply-add. */
KERNEL(sum_experts, struct sum_args, 256)
{
    int row = block_id(), i = block_id_y() * 256 + thread_id();
    if (row == 0 && block_id_y() == 0)
        for (int e = thread_id(); e < a.n_experts; e += 256)
            a.n_rows_of[e] = 0;
    if (i >= a.n)
        return;
    float *y = a.y + (int64_t)row * a.n + i, sum = a.has_base ? *y : 0.0f;
    if (a.scores) {
        float logit = a.scores[(int64_t)row * a.n_scores + a.n_scores - 1];
        sum *= divide_exact(1.0f, 1.0f + exp_f32(-logit));
    }
    for (int c = 0; row < a.counts->n_rows && c < a.n_chosen; c++) {
        int64_t choice = (int64_t)row * a.n_chosen + c;
        sum = fma_f32(a.weights[choice], a.products[(int64_t)a.entries[choice] * a.n + i], sum);
    }
    *y = sum;
}
