/* tutti bench: measures the speed of a model, compared with the limit of the machine. */
#include "cli/bench/bench.h"

#include "backend/kv_type.h"
#include "base/json/json_list.h"
#include "base/system/clock.h"
#include "base/system/nodes.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/input.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"
#include "engine/run/engine.h"
#include "kernels/kernels.h"
#include "kernels/measure.h"
#include "model/adapters/adapter.h"
#include "model/weights/weight_type.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_USERS = 4096, MAX_TOKENS = 1 << 17, MAX_REPETITIONS = 10000 };
static const size_t MAX_ATTENTION_BYTES = (size_t)8 << 30; /* keys and values of --attention */

struct bench_values {
    struct bench_plan plan; /* without the draft model and the schema */
    const char *shape, *json_schema;
    struct option_ints attention;
    int random_lora, n_layers;
    bool json, engine;
    struct model_flags model;
    struct adapter_flags adapters;
    struct draft_flags draft;
};

#define VALUES struct bench_values
static const struct option OPTIONS[] = {
    TEXT_OPTION(VALUES, shape, "shape", "NAME",
                "instead of MODEL: a known shape with random weights, such as chatglm3-6b, in q4_0 "
                "(gpt-oss-20b in mxfp4) unless --type is given; list prints all names"),
    INT_OPTION(VALUES, n_layers, "layers", "N",
               "with --shape: only its first N layers, if the whole shape does not fit into memory", .min = 1,
               .max = LIMIT_LAYERS, .needs = "shape"),
    INTS_OPTION(VALUES, plan.users, "users", "LIST", "numbers of sequences that decode together",
                .letter = 'u', .min = 1, .max = MAX_USERS, .initial = "1,8,17,32"),
    INT_OPTION(VALUES, plan.context, "context", "N", "tokens of context of each sequence while decoding",
               .letter = 'c', .max = MAX_TOKENS, .initial = "64"),
    INT_OPTION(VALUES, plan.n_prefill, "prefill", "N", "tokens of the prompt to prefill in one step; 0: none",
               .max = MAX_TOKENS, .initial = "256"),
    INTS_OPTION(VALUES, attention, "attention", "LIST",
                "time only attention at these contexts, with f16 and with int8 keys and values", .min = 1,
                .max = MAX_TOKENS),
    INT_OPTION(VALUES, plan.n_repetitions, "repetitions", "N",
               "repetitions of each point, after a warm-up (with --engine at most 100); without it, as many "
               "as fit in a few "
               "seconds, at least 3",
               .letter = 'r', .min = 1, .max = MAX_REPETITIONS),
    FLAG_OPTION(VALUES, engine, "engine",
                "also measure the whole engine, with scheduler, sampling and text thread"),
    INT_OPTION(VALUES, plan.max_lookup_drafts, "speculate", "N",
               "with --engine: speculate up to N draft tokens per step (prompt lookup), for random answers, "
               "the model's own ones, and ones that repeat one token; each alternates with the same run "
               "without speculation",
               .max = 32, .initial = "0", .needs = "engine"),
    TEXT_OPTION(VALUES, json_schema, "json-schema", "FILE",
                "with --engine: answers constrained by the JSON Schema of the file, alternating with "
                "unconstrained ones, instead of those with much text work",
                .needs = "engine"),
    INT_OPTION(VALUES, random_lora, "random-lora", "RANK",
               "add a LoRA adapter of this rank with random weights for every linear layer. The first user "
               "has no adapter, the next ones one of the given adapters in rotation; each step is also timed "
               "without adapters",
               .min = 1, .max = LORA_MAX_RANK),
    FLAG_OPTION(VALUES, json, "json", "print one JSON object"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { "Model", MODEL_OPTIONS, offsetof(VALUES, model) },
    { "Adapters", ADAPTER_OPTIONS, offsetof(VALUES, adapters) },
    { "Draft model", DRAFT_OPTIONS, offsetof(VALUES, draft) },
    { .title = NULL },
};

struct bench_report {
    const char *name, *cpu;
    int n_threads, n_ranks;
    struct backend_limits limits;
    double node_gbps[NODES_MAX], fork_us;
    double load_s; /* from opening the checkpoint until its weights are packed; 0: random weights */
    int n_nodes;
    struct bench_memory memory;
    struct bench_result *results;
    struct bench_engine_result *engine_results;
    struct bench_attention_result *attention_results;
    double *samples;              /* [n_results], for medians */
    struct backend_limits *looks; /* [n_results] */
    int n_results, n_engine_results, n_attention_results;
};

/* ---- machine limits ---- */

/* Uses as many threads as the model, whose threads are idle meanwhile. */
static enum tutti_status open_limits(const struct model_flags *flags, struct bench_report *report,
                                     struct team **team, struct measure **limits, struct tutti_error *err)
{
    unsigned cpu;
    enum tutti_status st = cpu_find(&cpu, flags->options.cpu, err);
    if (st == TUTTI_OK)
        st = team_new(team,
                      &(struct team_options){ .n_threads = flags->options.n_threads,
                                              .pin = flags->options.pin_threads,
                                              .by_node = !flags->options.numa ||
                                                         strcmp(flags->options.numa, "off") != 0 },
                      err);
    if (st != TUTTI_OK)
        return st;
    report->cpu = cpu_name(cpu);
    report->n_threads = team_n_threads(*team);
    report->n_ranks = flags->tp;
    *limits = measure_new(*team, cpu);
    report->n_nodes = team_nodes(*team)->n;
    return *limits ? TUTTI_OK
                   : error_set(err, TUTTI_E_MEMORY, "no memory to measure the machine's read bandwidth in");
}

/* Medians over all measurements. */
static void sum_up_limits(struct bench_report *report)
{
    for (int i = 0; i < report->n_results; i++)
        report->looks[i] = report->results[i].limits;
    report->limits = bench_median_limits(report->looks, report->n_results, report->samples);
}

static const char *device_of(const struct model *model)
{
    return model->backend->ops->name;
}

/* ---- printing ---- */

static const char *phase_name(enum bench_phase phase)
{
    return phase == BENCH_DECODE ? "decode" : "prefill";
}

static const char *engine_result_name(const struct bench_engine_result *r)
{
    static const char *const names[][3] = {
        { "plain", "plain, lookup", "plain, draft" },    { "text", "text, lookup", "text, draft" },
        { "copied", "copied, lookup", "copied, draft" }, { "own", "own, lookup", "own, draft" },
        { "schema", "schema, lookup", "schema, draft" }, { "random", "random, lookup", "random, draft" },
    };
    return names[r->text][r->drafts];
}

/* Pages of f16 and int8 are multiplied by matrix instructions where the device has some. */
static double attention_peak(const struct bench_attention_result *r)
{
    return r->limits.half_gflops > 0 ? r->limits.half_gflops : r->limits.f32_gflops;
}

static void print_attention(const struct bench_report *report)
{
    output_printf("\n%-9s %4s %8s %5s %9s %8s %7s %6s %9s %9s %6s %7s\n", "attention", "KV", "context",
                  "rows", "ms a row", "MB read", "GB/s", "memory", "of memory", "Gflop/s",
                  report->limits.half_gflops > 0 ? "of f16" : "of f32", "spread");
    for (int i = 0; i < report->n_attention_results; i++) {
        const struct bench_attention_result *r = &report->attention_results[i];
        double s = r->time.median_s, gbps = r->read_bytes / s / 1e9, gflops = r->ops / s / 1e9;
        output_printf("%-9s %4s %8d %5d %9.3f %8.1f %7.1f %6.1f %7.1f %% %9.1f %4.0f %% %5.1f %%\n",
                      r->n_rows == 1 ? "decode" : "prompt", kv_type_name(r->kv_type), r->context, r->n_rows,
                      s * 1e3 / r->n_rows, r->read_bytes / 1e6, gbps, r->limits.read_gbps,
                      100 * gbps / r->limits.read_gbps, gflops, 100 * gflops / attention_peak(r),
                      100 * r->time.spread);
    }
}

/* "of that": relative to the line above, with which it alternated */
static void print_engine_result(const struct bench_engine_result *r)
{
    char ratio[16] = "", spread[16] = "";
    if (r->ratio > 0) {
        snprintf(ratio, sizeof ratio, "%.3f", r->ratio);
        snprintf(spread, sizeof spread, "%.1f %%", 100 * r->ratio_spread);
    }
    output_printf("%-16s %6d %8d %7d %10.2f %7s %7s %7d %9.1f %8.2f %7" PRIu64 " %11" PRIu64 " %9" PRIu64
                  " %9" PRIu64 " %7" PRIu64 " %5" PRIu64 "\n",
                  engine_result_name(r), r->n_users, r->context, r->n_tokens, r->tok_s, ratio, spread,
                  r->n_rounds, r->ttft_ms, r->step_ms, r->n_steps, r->n_text_waits, r->n_accepted,
                  r->n_rejected, r->n_passes, r->n_late_masks);
}

/* The communication cost of steps on several ranks. */
static void print_ranks(const struct bench_report *report)
{
    if (report->n_ranks == 1)
        return;
    output_printf("\n%-8s %6s %10s %6s %10s %8s %10s %10s\n", "ranks", "users", "sums: ms", "of it", "KiB",
                  "number", "logits: ms", "plan: ms");
    for (int i = 0; i < report->n_results; i++) {
        const struct bench_result *r = &report->results[i];
        const struct bench_ranks *ranks = &r->ranks;
        output_printf("%-8s %6d %10.3f %4.1f %% %10.1f %8.0f %10.3f %10.3f\n", phase_name(r->phase),
                      r->n_users, ranks->reduce_s * 1e3, 100 * ranks->reduce_s / r->time.median_s,
                      ranks->reduce_bytes / 1024, ranks->n_reduces, ranks->gather_s * 1e3,
                      ranks->plan_broadcast_s * 1e3);
    }
}

static void print_card(const struct bench_report *report)
{
    const struct backend_limits *limits = &report->limits;
    const struct tutti_device *d = &report->memory.device;
    char memory[NUMBER_SIZE_BYTES], used[NUMBER_SIZE_BYTES];
    output_printf("%s: %s, compute capability %d.%d with kernels of level %d, CUDA %d.%d", d->id, d->name,
                  d->capability / 10, d->capability % 10, d->kernel_level, d->driver / 1000,
                  d->driver % 1000 / 10);
    if (d->clock_mhz > 0)
        output_printf("; %d multiprocessors at up to %d MHz", d->n_multiprocessors, d->clock_mhz);
    output_printf("\n%s of memory", number_write_size(memory, d->memory_bytes));
    if (d->free_bytes > 0)
        output_printf(", %s used", number_write_size(used, d->memory_bytes - d->free_bytes));
    output_printf("; kernels loaded in %.2f s\n", d->loading_seconds);
    output_printf("this card: reads %.1f GB/s", limits->read_gbps);
    if (d->memory_gbps > 0)
        output_printf(" (%.0f %% of its memory's %.0f)", 100 * limits->read_gbps / d->memory_gbps,
                      d->memory_gbps);
    output_printf(", computes %.1f Tflop/s in f16, %.1f Tflop/s in f32\n", limits->half_gflops / 1e3,
                  limits->f32_gflops / 1e3);
}

static void print_table(const struct bench_report *report, const struct model *model)
{
    char weights[NUMBER_SIZE_BYTES];
    const struct backend_limits *limits = &report->limits;
    output_printf("%s: %s of %s weights, %s keys and values; %d threads, %s\n", report->name,
                  number_write_size(weights, model->weight_bytes), dtype_name(model->weight_type),
                  kv_type_name(model->kv_type), report->n_threads,
                  strcmp(device_of(model), "cpu") == 0 ? report->cpu : device_of(model));
    if (report->n_ranks > 1)
        output_printf("%d ranks: weights, threads and limits are those of one\n", report->n_ranks);
    output_printf("in memory%s: ", report->n_ranks > 1 ? ", rank by rank" : "");
    for (int r = 0; r < report->memory.n_ranks; r++)
        output_printf("%s%s", r > 0 ? ", " : "", number_write_size(weights, report->memory.rank_bytes[r]));
    output_printf("\n");
    if (report->load_s > 0)
        output_printf("loaded in %.2f s: %.2f GB/s of packed weights\n", report->load_s,
                      (double)model->weight_bytes / 1e9 / report->load_s);
    if (limits->half_gflops > 0)
        print_card(report);
    else
        output_printf(
            "this machine: reads %.1f GB/s, computes %.0f Gop/s in int8, %.0f Gflop/s in f32; starting "
            "and joining the threads takes %.1f us\n",
            limits->read_gbps, limits->int8_gops, limits->f32_gflops, report->fork_us);
    for (int node = 0; report->n_nodes > 1 && node < report->n_nodes; node++)
        output_printf("%s%.1f%s", node == 0 ? "its NUMA nodes read, each from its own memory: " : ", ",
                      report->node_gbps[node], node + 1 == report->n_nodes ? " GB/s\n" : "");
    output_printf("\n");
    bool has_device = report->memory.device.name[0] != '\0';
    output_printf("%-8s %6s %8s %7s %10s %10s %9s %7s%s\n", "phase", "users", "context", "tokens", "tokens/s",
                  "limit", "of limit", "spread", has_device ? "     busy  bound by" : "");
    for (int i = 0; i < report->n_results; i++) {
        const struct bench_result *r = &report->results[i];
        output_printf("%-8s %6d %8d %7d %10.2f %10.2f %7.1f %% %5.1f %%", phase_name(r->phase), r->n_users,
                      r->context, r->n_tokens, r->tok_s, r->limit_tok_s, 100 * r->tok_s / r->limit_tok_s,
                      100 * r->time.spread);
        if (has_device)
            output_printf(" %6.1f %%  %s", 100 * r->busy,
                          r->limit_read >= 0.5 ? "memory" : "matrix instructions");
        output_printf("\n");
    }
    print_ranks(report);
    for (int i = 0; i < report->n_results; i++) {
        const struct bench_result *r = &report->results[i];
        if (r->has_adapters)
            output_printf("%sadapters lengthen the step of %d users by %.2f %% (%.2f to %.2f %% with 95 %% "
                          "confidence)\n",
                          i == 0 ? "\n" : "", r->n_users, 100 * r->adapter_cost, 100 * r->adapter_cost_low,
                          100 * r->adapter_cost_high);
    }
    if (report->n_engine_results > 0)
        output_printf("\n%-16s %6s %8s %7s %10s %7s %7s %7s %9s %8s %7s %11s %9s %9s %7s %5s\n", "engine",
                      "users", "context", "tokens", "tokens/s", "of that", "spread", "rounds", "TTFT ms",
                      "step ms", "steps", "text waits", "accepted", "rejected", "passes", "late");
    for (int i = 0; i < report->n_engine_results; i++)
        print_engine_result(&report->engine_results[i]);
    if (report->n_attention_results > 0)
        print_attention(report);
}

static json_t *result_json(const void *user, size_t index)
{
    const struct bench_report *report = user;
    const struct bench_result *r = &report->results[index];
    json_t *cost = r->has_adapters ? json_real(r->adapter_cost) : NULL;
    json_t *range = r->has_adapters ? json_pack("[f, f]", r->adapter_cost_low, r->adapter_cost_high) : NULL;
    const struct bench_ranks *ranks = &r->ranks;
    json_t *object = json_pack(
        "{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:o*, s:o*}", "phase",
        phase_name(r->phase), "users", r->n_users, "context", r->context, "tokens", r->n_tokens, "tok_s",
        r->tok_s, "limit_tok_s", r->limit_tok_s, "of_limit", r->tok_s / r->limit_tok_s, "limit_read",
        r->limit_read, "matrix_bytes", r->work.matrix_bytes, "expert_bytes", r->expert_bytes, "kv_bytes",
        r->work.kv_bytes, "linear_ops", r->work.linear_ops, "attention_ops", r->work.attention_ops, "spread",
        r->time.spread, "repetitions", r->time.n, "adapter_cost", cost, "adapter_cost_range", range);
    if (report->memory.device.name[0] &&
        json_object_set_new(object, "device_busy", json_real(r->busy)) != 0) {
        json_decref(object);
        object = NULL; /* json_merge() takes it */
    }
    json_t *more = report->n_ranks > 1 ? json_pack("{s:f, s:f, s:f, s:I, s:I}", "reduce_ms",
                                                   ranks->reduce_s * 1e3, "gather_ms", ranks->gather_s * 1e3,
                                                   "plan_ms", ranks->plan_broadcast_s * 1e3, "reduces",
                                                   (json_int_t)(ranks->n_reduces + 0.5), "reduce_bytes",
                                                   (json_int_t)(ranks->reduce_bytes + 0.5))
                                       : json_object();
    return json_merge(object, more);
}

static json_t *attention_json(const void *user, size_t index)
{
    const struct bench_attention_result *r = &((const struct bench_report *)user)->attention_results[index];
    double s = r->time.median_s, gbps = r->read_bytes / s / 1e9, gflops = r->ops / s / 1e9;
    return json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "kv_type",
                     kv_type_name(r->kv_type), "context", r->context, "rows", r->n_rows, "row_ms",
                     s * 1e3 / r->n_rows, "read_bytes", r->read_bytes, "gbps", gbps, "read_gbps",
                     r->limits.read_gbps, "of_read", gbps / r->limits.read_gbps, "gflops", gflops,
                     r->limits.half_gflops > 0 ? "of_f16" : "of_f32", gflops / attention_peak(r), "spread",
                     r->time.spread, "repetitions", r->time.n);
}

static json_t *engine_result_json(const void *user, size_t index)
{
    const struct bench_engine_result *r = &((const struct bench_report *)user)->engine_results[index];
    json_t *ratio = r->ratio > 0 ? json_real(r->ratio) : NULL;
    json_t *spread = r->ratio > 0 ? json_real(r->ratio_spread) : NULL;
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:b, s:f, s:o*, s:o*, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "kind",
        engine_result_name(r), "users", r->n_users, "context", r->context, "tokens", r->n_tokens, "rounds",
        r->n_rounds, "text_work", r->text == BENCH_TEXT_WORK, "tok_s", r->tok_s, "ratio", ratio,
        "ratio_spread", spread, "ttft_ms", r->ttft_ms, "step_ms", r->step_ms, "steps", (json_int_t)r->n_steps,
        "text_waits", (json_int_t)r->n_text_waits, "accepted", (json_int_t)r->n_accepted, "rejected",
        (json_int_t)r->n_rejected, "draft_passes", (json_int_t)r->n_passes, "late_masks",
        (json_int_t)r->n_late_masks);
}

static json_t *memory_json(const void *user, size_t index)
{
    return json_integer((json_int_t)((const struct bench_report *)user)->memory.rank_bytes[index]);
}

static json_t *node_json(const void *user, size_t index)
{
    return json_real(((const struct bench_report *)user)->node_gbps[index]);
}

/* Adds a list under a name unless it is empty. */
static bool add_list(json_t *object, const char *name, int n, json_item_fn *item,
                     const struct bench_report *report)
{
    return n == 0 || json_object_set_new(object, name, json_list((size_t)n, item, report)) == 0;
}

static json_t *card_json(const struct tutti_device *d)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:I, s:I, s:f}", "device", d->id, "name",
                     d->name, "capability", d->capability, "kernels", d->kernel_level, "cuda", d->driver,
                     "multiprocessors", d->n_multiprocessors, "clock_mhz", d->clock_mhz, "memory_gbps",
                     d->memory_gbps, "memory_bytes", (json_int_t)d->memory_bytes, "free_bytes",
                     (json_int_t)d->free_bytes, "load_s", d->loading_seconds);
}

static void print_report_json(const struct bench_report *report, const struct model *model)
{
    json_t *object = json_pack(
        "{s:s, s:i, s:s, s:s, s:i, s:i, s:s, s:f, s:f, s:f, s:I, s:o, s:I, s:o}", "model", report->name,
        "layers", model->desc.n_layers, "type", dtype_name(model->weight_type), "kv_type",
        kv_type_name(model->kv_type), "threads", report->n_threads, "ranks", report->n_ranks, "cpu",
        report->cpu, "read_gbps", report->limits.read_gbps, "peak_int8_gops", report->limits.int8_gops,
        "peak_f32_gflops", report->limits.f32_gflops, "weight_bytes", (json_int_t)model->weight_bytes,
        "memory_bytes", json_list((size_t)report->memory.n_ranks, memory_json, report), "n_params",
        (json_int_t)model->n_params, "results", json_list((size_t)report->n_results, result_json, report));
    bool ok = json_object_set_new(object, "device", json_string(device_of(model))) == 0 &&
              json_object_set_new(object, "peak_f16_gflops", json_real(report->limits.half_gflops)) == 0 &&
              (!report->memory.device.name[0] ||
               json_object_set_new(object, "card", card_json(&report->memory.device)) == 0) &&
              json_object_set_new(object, "fork_us", json_real(report->fork_us)) == 0 &&
              json_object_set_new(object, "load_s", json_real(report->load_s)) == 0 &&
              add_list(object, "node_gbps", report->n_nodes, node_json, report) &&
              add_list(object, "engine", report->n_engine_results, engine_result_json, report) &&
              add_list(object, "attention", report->n_attention_results, attention_json, report);
    output_json(ok ? object : NULL, true); /* NULL fails; output_flush() reports it */
    json_decref(object);
}

/* ---- running ---- */

static enum tutti_status load_model(const struct bench_values *values, tutti_ranks *ranks, const char *path,
                                    struct model **out, struct tutti_error *err)
{
    struct tutti_model_options options = values->model.options;
    struct progress progress;
    enum dtype type = options.weight_type ? weight_type_find(options.weight_type)->dtype
                      : path              ? DTYPE_Q4_0
                                          : model_shape_type(values->shape);
    enum tutti_status st;
    progress_begin(&progress, path ? "loading" : "making weights", PROGRESS_BYTES);
    options.ranks = ranks;
    options.progress = progress_update;
    options.user = &progress;
    st = path ? model_load(out, path, &options, err)
              : model_make(out, values->shape, values->n_layers, type, &options, err);
    progress_end(&progress);
    return st;
}

/* With adapters, whose time does not count as loading. */
static enum tutti_status open_model(const struct bench_values *values, tutti_ranks *ranks, const char *path,
                                    struct model **out, double *load_s, struct tutti_error *err)
{
    uint64_t begin_ns = clock_now_ns();
    enum tutti_status st = load_model(values, ranks, path, out, err);
    *load_s = path ? (double)(clock_now_ns() - begin_ns) / 1e9 : 0;
    if (st == TUTTI_OK)
        st = model_check_generates(*out, err);
    if (st == TUTTI_OK)
        st = adapter_flags_load(&values->adapters, model_handle(*out), err);
    if (st == TUTTI_OK && values->random_lora > 0)
        st = model_make_adapter(*out, "made", values->random_lora, err);
    return st;
}

static enum tutti_status measure_model(const struct bench_values *values, struct model *model,
                                       struct model *draft, struct measure *limits,
                                       struct bench_report *report, const struct buf *schema,
                                       struct tutti_error *err)
{
    struct bench_plan plan = values->plan;
    plan.draft = draft;
    plan.max_draft_tokens = values->draft.tokens;
    plan.schema = values->json_schema ? schema->bytes : NULL;
    plan.n_schema_bytes = schema->n_bytes;
    cpu_set_t before;
    nodes_bound(&before); /* the engine's threads must not inherit this thread's binding */
    if (model->backend->ops->bind_caller)
        model->backend->ops->bind_caller(model->backend);
    for (int node = 0; node < report->n_nodes; node++)
        report->node_gbps[node] = measure_node_gbps(limits, node);
    report->fork_us = measure_fork_us(limits);
    enum tutti_status st = bench_steps(model, &plan, limits, report->results, &report->n_results,
                                       &report->memory, err);
    if (st == TUTTI_OK && values->attention.n > 0)
        st = bench_attention(model, &values->attention, plan.n_repetitions, limits, report->attention_results,
                             &report->n_attention_results, err);
    nodes_bind(&before);
    if (st == TUTTI_OK && values->engine)
        st = bench_engine(model, &plan, report->engine_results, &report->n_engine_results, err);
    return st;
}

static enum tutti_status check_context(const struct bench_values *values, const struct model *model,
                                       struct tutti_error *err)
{
    if (values->plan.context + 1 > model->desc.n_ctx)
        return error_set(err, TUTTI_E_ARGUMENT, "--context: found %d, expected at most %d for this model",
                         values->plan.context, model->desc.n_ctx - 1);
    if (values->plan.n_prefill > model->desc.n_ctx)
        return error_set(err, TUTTI_E_ARGUMENT, "--prefill: found %d, expected at most %d for this model",
                         values->plan.n_prefill, model->desc.n_ctx);
    for (int i = 0; i < values->attention.n; i++) {
        size_t n_pages = (size_t)model_pages_of(model, values->attention.ints[i]);
        size_t n_bytes = n_pages * model->backend->ops->kv_page_bytes(model->backend, DTYPE_F16);
        if (n_bytes > MAX_ATTENTION_BYTES)
            return error_set(err, TUTTI_E_LIMIT,
                             "--attention: %" PRId64
                             " tokens of this model take %zu bytes, at most %zu are measured",
                             values->attention.ints[i], n_bytes, MAX_ATTENTION_BYTES);
    }
    return TUTTI_OK;
}

static enum tutti_status read_schema(const struct bench_values *values, struct buf *out,
                                     struct tutti_error *err)
{
    enum tutti_status st = input_read(out, values->json_schema, err);
    if (st == TUTTI_OK && out->n_bytes == 0)
        st = error_set(err, TUTTI_E_ARGUMENT, "%s is empty", input_name(values->json_schema));
    return st;
}

static enum tutti_status run_bench(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct bench_values *values = v;
    struct bench_report report = { 0 };
    struct model *model = NULL;
    struct measure *limits = NULL;
    struct team *team = NULL;
    tutti_ranks *ranks = NULL;
    tutti_model *draft = NULL;
    struct buf schema = { 0 };
    const char *path = operands[0];
    if (values->shape && strcmp(values->shape, "list") == 0) {
        for (int i = 0; model_shape_name(i); i++)
            output_printf("%s\n", model_shape_name(i));
        return TUTTI_OK;
    }
    if (!path == !values->shape)
        return error_set(err, TUTTI_E_ARGUMENT, "expected either MODEL or --shape NAME");
    if (draft_flags_are_mtp(&values->draft))
        return error_set_param(
            err, TUTTI_E_UNSUPPORTED, "draft",
            "--draft mtp: tutti bench measures draft models; compare tutti load on a server "
            "with and without it");
    if (values->draft.draft && !values->engine)
        return error_set_param(err, TUTTI_E_ARGUMENT, "draft", "--draft has no effect without --engine");
    size_t n_users = (size_t)values->plan.users.n;
    report.results = calloc(n_users + 1, sizeof *report.results);
    report.engine_results = calloc(BENCH_ENGINE_POINTS * n_users, sizeof *report.engine_results);
    report.attention_results = calloc(BENCH_ATTENTION_POINTS * (size_t)values->attention.n + 1,
                                      sizeof *report.attention_results);
    report.samples = calloc(n_users + 1, sizeof *report.samples);
    report.looks = calloc(n_users + 1, sizeof *report.looks);
    enum tutti_status st = TUTTI_OK;
    if (!report.results || !report.engine_results || !report.attention_results || !report.samples ||
        !report.looks)
        st = error_set(err, TUTTI_E_MEMORY, "out of memory");
    if (st == TUTTI_OK && values->json_schema)
        st = read_schema(values, &schema, err);
    if (st == TUTTI_OK)
        st = model_flags_ranks(&values->model, &ranks, err);
    if (st == TUTTI_OK)
        st = open_model(values, ranks, path, &model, &report.load_s, err);
    if (tutti_ranks_rank(ranks) > 0) { /* rank 0 reports a failure of all ranks */
        st = st == TUTTI_OK ? model_follow(model, err) : st == TUTTI_E_IO ? st : TUTTI_OK;
        goto done;
    }
    if (st == TUTTI_OK)
        st = check_context(values, model, err);
    if (st == TUTTI_OK)
        st = draft_flags_open(&values->draft, &values->model, &draft, err);
    if (st == TUTTI_OK)
        st = open_limits(&values->model, &report, &team, &limits, err);
    if (st == TUTTI_OK)
        st = measure_model(values, model, model_of(draft), limits, &report, &schema, err);
    if (st == TUTTI_OK) {
        report.name = path ? model->name : values->shape;
        sum_up_limits(&report);
        values->json ? print_report_json(&report, model) : print_table(&report, model);
    }
done:
    buf_clear(&schema);
    measure_free(limits);
    team_free(team);
    free(report.samples);
    free(report.looks);
    tutti_model_close(draft);
    model_free(model);
    tutti_ranks_close(ranks);
    free(report.results);
    free(report.engine_results);
    free(report.attention_results);
    return st;
}

const struct command COMMAND_BENCH = {
    .name = "bench",
    .summary = "measure a model's speed, compared with the limit of this machine",
    .about =
        "Times decode steps, with one token for each user, and the prefill of a prompt, each by itself. "
        "Results are medians; spread is the distance between the quartiles, relative to the median.\n\n"
        "The limit of a step is what this machine allows at best: the sum, over all matrices and the "
        "attention of each layer, of the longer of two times, to read the weights (or keys and values) at "
        "memory bandwidth, and to compute at the peak of the arithmetic units. Bandwidth and peak are "
        "measured just before and just after each repetition. Weights that fit into the processor's caches "
        "can exceed the limit.\n\n"
        "With --engine each user requests 32 tokens; tokens/s counts from the first token of any user to the "
        "last one of all. Plain runs alternate with runs with much text work (20 log-probabilities per "
        "token, 16 stop strings). \"text waits\" counts the steps that waited for the text thread, \"late\" "
        "the tokens that waited for the token mask of a schema. Where two variants alternate, \"of that\" is "
        "the speed of the second relative to the first: the median of their ratios.",
    .example = "tutti bench models/demo --engine\n"
               "tutti bench --shape chatglm3-6b --type q4_0 --json",
    .options = OPTION_SET(GROUPS, "[MODEL]", 0, 1, ""),
    .n_models = 1,
    .values_bytes = sizeof(struct bench_values),
    .run = run_bench,
};
