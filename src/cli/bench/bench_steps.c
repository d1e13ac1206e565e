/* Times single model steps: rows at their positions, with real page tables. */
#include "base/system/clock.h"
#include "cli/bench/bench.h"
#include "cli/terminal/progress.h"
#include "model/adapters/adapter.h"
#include "model/ranks/group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_REPETITIONS = 200,
    MIN_REPETITIONS = 3,
    CHUNK_ROWS = 256, /* rows of a prefill step that fills the KV cache */
};

/* Steps of a point are repeated until they have taken MIN_S in total, but at most MAX_S after the
 * minimum number. The machine's limits are measured around each step, which takes a hundred times
 * as long as a step of a tiny model, so the total time is limited too. */
static const double MIN_S = 1.5, MAX_S = 20, MAX_WITH_LIMITS_S = 4;

struct bench {
    struct model *model;
    struct progress progress;
    uint64_t n_done, n_points; /* that are measured */
    double busy_s, step_s;     /* of the repetitions of a point: how long the device worked, and in all */
    struct measure *measure;
    struct kv_memory *kv;
    int n_users, pages_per_user, max_rows;
    int32_t *ids;                /* [max_rows] */
    int32_t *positions, *seqs;   /* [max_rows] */
    int32_t *outputs;            /* [n_users]: rows with logits */
    int32_t *adapters;           /* [n_users]: the first has none */
    int32_t *pages;              /* [n_users * pages_per_user] */
    const int32_t **page_tables; /* [n_users] */
};

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

void bench_fill_ids(int32_t *ids, int n, int n_vocab, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
        ids[i] = (int32_t)((seed >> 33) % (uint64_t)n_vocab);
    }
}

/* Sorts them. */
struct bench_time bench_time_of(double *seconds, int n)
{
    double median = measure_median(seconds, n);
    return (struct bench_time){
        .median_s = median,
        .spread = median > 0 ? (seconds[(3 * n - 1) / 4] - seconds[n / 4]) / median : 0,
        .n = n,
    };
}

/* ---- the steps ---- */

/* Prefills n_rows tokens of user 0 from position first on; logits of the last one. */
static void run_prompt(struct bench *b, int first, int n_rows)
{
    for (int i = 0; i < n_rows; i++) {
        b->positions[i] = first + i;
        b->seqs[i] = 0;
    }
    b->outputs[0] = n_rows - 1;
    struct step step = {
        .n_rows = n_rows,
        .n_seqs = 1,
        .n_outputs = 1,
        .token_ids = b->ids,
        .positions = b->positions,
        .seqs = b->seqs,
        .page_tables = b->page_tables,
        .output_rows = b->outputs,
    };
    (void)model_forward(b->model, b->kv, &step);
}

/* Decodes one token for each of n_users, at position context; adapts: the users use the adapters
 * in rotation. */
static void run_decode(struct bench *b, int n_users, int context, bool adapts)
{
    for (int i = 0; i < n_users; i++) {
        b->positions[i] = context;
        b->seqs[i] = b->outputs[i] = i;
        b->adapters[i] = i % (model_n_adapters(b->model) + 1) - 1;
    }
    struct step step = {
        .n_rows = n_users,
        .n_seqs = n_users,
        .n_outputs = n_users,
        .token_ids = b->ids,
        .positions = b->positions,
        .seqs = b->seqs,
        .page_tables = b->page_tables,
        .output_rows = b->outputs,
        .adapters = adapts ? b->adapters : NULL,
    };
    (void)model_forward(b->model, b->kv, &step);
}

/* Prefills a chunk for one user and copies its pages to all others: attention then has the same
 * work. */
static void fill_cache(struct bench *b, int context)
{
    int n_read = context < CHUNK_ROWS ? context : CHUNK_ROWS, n_pages = n_read / model_page_tokens(b->model);
    if (n_read > 0)
        run_prompt(b, 0, n_read);
    for (int user = 0; user < b->n_users; user++)
        for (int page = user == 0 ? model_pages_of(b->model, n_read) : 0;
             page < model_pages_of(b->model, context); page++) {
            int32_t dst = b->pages[user * b->pages_per_user + page];
            int32_t src = b->pages[n_pages > 0 ? page % n_pages : 0];
            model_kv_copy_page(b->model, b->kv, &(struct page_copy){ dst, src, dst, src });
        }
}

/* ---- measuring ---- */

/* spent_s: of the steps; passed_s: with the limits. */
static bool needs_more(int n, double spent_s, double passed_s, int n_wanted)
{
    if (n_wanted > 0)
        return n < n_wanted;
    return n < MIN_REPETITIONS || (n < MAX_REPETITIONS && spent_s < MIN_S && passed_s < MAX_WITH_LIMITS_S);
}

static double seconds_since(uint64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) / 1e9;
}

/* The repetitions of a point, and the machine's limits before each and after the last. */
struct step_samples {
    double *seconds;              /* [n_most] */
    struct backend_limits *looks; /* [n_most + 1] */
    double *ratios;  /* [n_most] relative to the same step without adapters, just before or after */
    double *scratch; /* [n_most] */
};

static double mean(double a, double b)
{
    return (a + b) / 2;
}

/* The median limits over n repetitions: for each, the mean of the limits just before and just
 * after, since they change over time. */
static struct backend_limits limits_of(struct step_samples *s, int n)
{
    for (int i = 0; i < n; i++) {
        const struct backend_limits *a = &s->looks[i], *b = &s->looks[i + 1];
        s->looks[i] = (struct backend_limits){ mean(a->read_gbps, b->read_gbps),
                                               mean(a->int8_gops, b->int8_gops),
                                               mean(a->f32_gflops, b->f32_gflops),
                                               mean(a->half_gflops, b->half_gflops) };
    }
    return bench_median_limits(s->looks, n, s->scratch);
}

static struct cluster_cost cost_now(const struct bench *b)
{
    struct cluster_cost cost = { 0 };
    if (b->model->group)
        cluster_read_cost(b->model->group->cluster, &cost);
    return cost;
}

/* Adds the cost since begin, of one of n repetitions. */
static void add_cost(struct bench_ranks *ranks, const struct cluster_cost *begin,
                     const struct cluster_cost *end)
{
    ranks->reduce_s += (double)(end->reduce_ns - begin->reduce_ns) / 1e9;
    ranks->gather_s += (double)(end->gather_ns - begin->gather_ns) / 1e9;
    ranks->plan_broadcast_s += (double)(end->broadcast_ns - begin->broadcast_ns) / 1e9;
    ranks->n_reduces += (double)(end->n_reduces - begin->n_reduces);
    ranks->reduce_bytes += (double)(end->n_reduced_bytes - begin->n_reduced_bytes);
}

static void divide_cost(struct bench_ranks *ranks, int n)
{
    ranks->reduce_s /= n;
    ranks->gather_s /= n;
    ranks->plan_broadcast_s /= n;
    ranks->n_reduces /= n;
    ranks->reduce_bytes /= n;
}

static double seconds_of_decode(struct bench *b, const struct bench_result *result, bool has_adapters)
{
    uint64_t begin = clock_now_ns();
    run_decode(b, result->n_users, result->context, has_adapters);
    return (double)(clock_now_ns() - begin) / 1e9;
}

static uint64_t expert_bytes(const struct model *model)
{
    return model->backend->ops->expert_bytes(model->backend);
}

/* Of a device with memory of its own; else 0. */
static double busy_seconds(const struct model *model)
{
    struct tutti_device device = { .busy_seconds = 0 };
    if (model->backend->ops->describe)
        model->backend->ops->describe(model->backend, &device);
    return device.busy_seconds;
}

/* Times one step, or prompt. */
static double seconds_of_step(struct bench *b, struct bench_result *result)
{
    double busy_before = busy_seconds(b->model);
    struct cluster_cost before = cost_now(b), after;
    uint64_t read_before = expert_bytes(b->model);
    uint64_t begin = clock_now_ns();
    if (result->phase == BENCH_PREFILL)
        run_prompt(b, 0, result->n_tokens);
    else
        run_decode(b, result->n_users, result->context, true);
    double seconds = (double)(clock_now_ns() - begin) / 1e9;
    after = cost_now(b);
    b->busy_s += busy_seconds(b->model) - busy_before;
    b->step_s += seconds;
    result->expert_bytes = (double)(expert_bytes(b->model) - read_before); /* the same in each */
    add_cost(&result->ranks, &before, &after);
    return seconds;
}

/* Alternates steps with and without adapters, and the order of the two, so that both run under
 * the same conditions. */
static double compare_adapters(struct bench *b, struct bench_result *result, bool is_odd, double *ratio)
{
    run_decode(b, result->n_users, result->context, false); /* wakes the threads */
    double plain = is_odd ? 0 : seconds_of_decode(b, result, false);
    double adapted = seconds_of_step(b, result);
    if (is_odd)
        plain = seconds_of_decode(b, result, false);
    *ratio = adapted / plain;
    return adapted;
}

/* The median of n ratios and its 95 % confidence interval: n / 2 ratios are below the median,
 * with a standard deviation of sqrt(n / 4) (David and Nagaraja, Order Statistics, section 7.1).
 * Sorts them. */
static void find_adapter_cost(struct bench_result *result, double *ratios, int n)
{
    double half = 1.96 * sqrt(n / 4.0);
    int low = (int)floor((n - 1) / 2.0 - half), high = (int)ceil((n - 1) / 2.0 + half);
    result->adapter_cost = measure_median(ratios, n) - 1;
    result->adapter_cost_low = ratios[low < 0 ? 0 : low] - 1;
    result->adapter_cost_high = ratios[high > n - 1 ? n - 1 : high] - 1;
}

static void measure_point(struct bench *b, const struct bench_plan *plan, struct step_samples *s,
                          struct bench_result *result)
{
    double spent = 0;
    uint64_t begin_ns = clock_now_ns();
    int n = 0;
    result->has_adapters = result->phase == BENCH_DECODE && model_n_adapters(b->model) > 0;
    for (int i = -1; i < 0 || needs_more(n, spent, seconds_since(begin_ns), plan->n_repetitions);
         i++) { /* -1: to warm up */
        progress_update(&b->progress, b->n_done, b->n_points);
        if (b->model->group) /* wakes the other ranks, which were idle */
            run_decode(b, 1, result->context, false);
        s->seconds[n] = result->has_adapters ? compare_adapters(b, result, i % 2 != 0, &s->ratios[n])
                                             : seconds_of_step(b, result);
        if (model_is_lost(b->model))
            return;
        bench_look(&s->looks[i + 1], b->measure, b->model);
        if (i < 0) {
            result->ranks = (struct bench_ranks){ .reduce_s = 0 };
            b->busy_s = b->step_s = 0;
            continue;
        }
        spent += s->seconds[n++];
        if (plan->n_repetitions == 0 && n >= MIN_REPETITIONS && spent > MAX_S)
            break;
    }
    divide_cost(&result->ranks, n);
    result->busy = b->busy_s / b->step_s;
    result->time = bench_time_of(s->seconds, n);
    result->tok_s = result->n_tokens / result->time.median_s;
    if (result->has_adapters)
        find_adapter_cost(result, s->ratios, n);
    result->limits = limits_of(s, n);
    bench_find_limit(b->model, result);
}

/* ---- memory ---- */

static void clear(struct bench *b)
{
    if (b->kv)
        model_kv_free(b->model, b->kv);
    free(b->ids);
    free(b->positions);
    free(b->seqs);
    free(b->outputs);
    free(b->adapters);
    free(b->pages);
    free(b->page_tables);
}

/* The plan's numbers have bounds (bench.c) that keep these products within int. */
static enum tutti_status init(struct bench *b, struct model *model, const struct bench_plan *plan,
                              struct tutti_error *err)
{
    *b = (struct bench){ .model = model, .n_users = 1 };
    for (int i = 0; i < plan->users.n; i++)
        b->n_users = max_int(b->n_users, (int)plan->users.ints[i]);
    b->pages_per_user = model_pages_of(model, max_int(plan->context + 1, plan->n_prefill));
    b->max_rows = max_int(max_int(b->n_users, plan->n_prefill), CHUNK_ROWS);
    int decode_pages = model_pages_of(model, plan->context + 1), n_pages = b->n_users * decode_pages;
    size_t rows = (size_t)b->max_rows, users = (size_t)b->n_users;
    b->ids = calloc(rows, sizeof *b->ids);
    b->positions = calloc(rows, sizeof *b->positions);
    b->seqs = calloc(rows, sizeof *b->seqs);
    b->outputs = calloc(users, sizeof *b->outputs);
    b->adapters = calloc(users, sizeof *b->adapters);
    b->pages = calloc(users * (size_t)b->pages_per_user, sizeof *b->pages);
    b->page_tables = calloc(users, sizeof *b->page_tables);
    if (!b->ids || !b->positions || !b->seqs || !b->outputs || !b->adapters || !b->pages || !b->page_tables)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the steps of %d users", b->n_users);
    bench_fill_ids(b->ids, b->max_rows, model->desc.n_usable_vocab, 1);
    /* Only user 0 has pages for the prompt; every user has pages for the context. */
    for (int user = 0; user < b->n_users; user++) {
        b->page_tables[user] = b->pages + user * b->pages_per_user;
        for (int page = 0; page < decode_pages; page++)
            b->pages[user * b->pages_per_user + page] = user * decode_pages + page;
    }
    for (int page = decode_pages; page < b->pages_per_user; page++)
        b->pages[page] = n_pages++;
    enum tutti_status st = model_reserve(model, b->max_rows, b->max_rows, err);
    return st == TUTTI_OK ? model_kv_new(model, &b->kv, n_pages, n_pages, err) : st;
}

/* Subtracts this rank's buffer for measuring limits, which the model does not use. */
static void look_at_memory(struct model *model, struct bench_memory *memory)
{
    memory->n_ranks = model_memory_taken(model, memory->rank_bytes);
    if (memory->n_ranks > 0 && memory->rank_bytes[0] > measure_bytes())
        memory->rank_bytes[0] -= measure_bytes();
    if (model->backend->ops->describe)
        model->backend->ops->describe(model->backend, &memory->device);
}

enum tutti_status bench_steps(struct model *model, const struct bench_plan *plan, struct measure *limits,
                              struct bench_result *results, int *n_results, struct bench_memory *memory,
                              struct tutti_error *err)
{
    struct bench b;
    int n = 0, n_repetitions = plan->n_repetitions > 0 ? plan->n_repetitions : MAX_REPETITIONS;
    uint64_t total = (uint64_t)plan->users.n + (plan->n_prefill > 0);
    size_t n_most = (size_t)n_repetitions + 1;
    double *numbers = calloc(3 * n_most, sizeof *numbers);
    struct backend_limits *looks = calloc(n_most, sizeof *looks);
    enum tutti_status st = init(&b, model, plan, err);
    if (st == TUTTI_OK && !(numbers && looks))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for %d repetitions", n_repetitions);
    if (st != TUTTI_OK)
        goto done;
    struct step_samples s = { numbers, looks, numbers + n_most, numbers + 2 * n_most };
    b.measure = limits;
    b.n_points = total;
    progress_begin(&b.progress, "measuring", PROGRESS_STEPS);
    fill_cache(&b, plan->context);
    for (int i = 0; i < plan->users.n; i++) {
        int n_users = (int)plan->users.ints[i];
        results[n] = (struct bench_result){
            .phase = BENCH_DECODE, .n_users = n_users, .context = plan->context, .n_tokens = n_users
        };
        measure_point(&b, plan, &s, &results[n++]);
        b.n_done = (uint64_t)n;
    }
    if (plan->n_prefill > 0) {
        results[n] = (struct bench_result){ .phase = BENCH_PREFILL,
                                            .n_users = 1,
                                            .n_tokens = plan->n_prefill };
        measure_point(&b, plan, &s, &results[n++]);
    }
    progress_end(&b.progress);
    *n_results = n;
    if (memory)
        look_at_memory(model, memory);
    st = model_check(model, err);
done:
    clear(&b);
    free(looks);
    free(numbers);
    return st;
}
