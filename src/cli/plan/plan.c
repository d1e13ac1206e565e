/* tutti plan: predicts a model's performance on several machines. */
#include "cli/plan/plan.h"

#include "backend/kv_type.h"
#include "cli/options/command.h"
#include "cli/options/flags.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "cli/terminal/progress.h"
#include "fleet/plan_model.h"
#include "fleet/plan_rates.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { USUAL_CONTEXT = 1024, MAX_USERS = 1 << 20 };

#define VALUES struct plan_values
static const struct option OPTIONS[] = {
    { .name = "hosts",
      INT_IN(VALUES, hosts),
      .value = "N",
      .min = 1,
      .max = LIMIT_RANKS,
      .initial = "1",
      .help = "number of machines, each of which runs one rank" },
    { .name = "cores",
      INT_IN(VALUES, cores),
      .value = "N",
      .min = 1,
      .max = 4096,
      .help = "cores of each machine; without it, as many as the rates were measured with. Arithmetic "
              "is assumed to scale with them, bandwidth is not" },
    { .name = "bandwidth",
      FLOAT_IN(VALUES, bandwidth),
      .value = "GB/s",
      .above_min = true,
      .max = 1e6,
      .help = "memory bandwidth of each machine; without it, as measured" },
    { .name = "memory",
      .letter = 'm',
      SIZE_IN(VALUES, memory),
      .value = "SIZE",
      .min = 1,
      .max = INFINITY,
      .help = "memory of each machine for weights, keys and values; without it, what this machine has" },
    { .name = "link",
      FLOAT_IN(VALUES, link),
      .value = "GBPS",
      .above_min = true,
      .max = 1e6,
      .initial = "10",
      .help = "bandwidth of each machine's link in gigabits per second" },
    { .name = "latency",
      FLOAT_IN(VALUES, latency),
      .value = "US",
      .max = 1e6,
      .initial = "20",
      .help = "latency between two machines in microseconds" },
    { .name = "users",
      .letter = 'u',
      INTS_IN(VALUES, users),
      .value = "LIST",
      .min = 1,
      .max = MAX_USERS,
      .initial = "1,16,64,256",
      .help = "numbers of sequences that decode at the same time, on all machines together" },
    { .name = "context",
      .letter = 'c',
      INT_IN(VALUES, context),
      .value = "N",
      .max = LIMIT_CONTEXT,
      .help = "tokens of context of each sequence; without it 1024, or the model's maximum" },
    { .name = "type",
      CHOICE_IN(VALUES, type),
      .value = "TYPE",
      .choices = WEIGHT_TYPE_NAMES,
      .aliases = WEIGHT_TYPE_ALIASES,
      .help = "type of the weights; without it, as stored (of a known shape: q4_0)" },
    { .name = "kv-type",
      CHOICE_IN(VALUES, kv_type),
      .value = "TYPE",
      .choices = KV_TYPE_NAMES,
      .initial = "f16",
      .help = "type of keys and values" },
    { .name = "rates",
      TEXT_IN(VALUES, rates),
      .value = "FILE",
      .help = "output of tutti bench --json on such a machine, with weights of the same type; without "
              "it, a few layers are measured here" },
    { .name = "threads",
      .letter = 't',
      INT_IN(VALUES, threads),
      .value = "N",
      .min = 1,
      .max = 256,
      .help = "threads for the measurement; without it, one for each core that this process may use" },
    { .name = "check",
      FLAG_IN(VALUES, check),
      .help = "instead of a plan: measure the whole model on this machine, alternating with the rates, "
              "and print the errors of the predictions for one host" },
    { .name = "json", FLAG_IN(VALUES, json), .help = "print one JSON object" },
    { .name = NULL },
};

static const struct option_group GROUPS[] = { { "Options", OPTIONS, 0 }, { .title = NULL } };

/* ---- the plan -------------------------------------------------------------------------------------------------- */

struct point {
    const struct plan_layout *layout;
    int64_t n_users;
    double tok_s;
    struct plan_step step;
    bool fits;
};

static struct point reckon(const struct plan *p, const struct plan_layout *layout, int64_t n_users)
{
    struct point at = { .layout = layout, .n_users = n_users, .fits = n_users <= layout->n_users_fit };
    at.tok_s = plan_tokens(&p->rates, &p->model, &p->hosts, layout, n_users, p->context, &at.step);
    return at;
}

/* The rate of one user: one token per step in the fullest replica. */
static double user_tok_s(const struct point *at)
{
    return 1 / at->step.total_s;
}

static double prompt_tok_s(const struct plan *p, const struct plan_layout *layout)
{
    int n = p->model.desc.n_ctx < PLAN_PROMPT_TOKENS ? p->model.desc.n_ctx : PLAN_PROMPT_TOKENS;
    struct plan_work work = plan_prefill(&p->model, n);
    struct plan_step step = plan_reckon(&p->rates, &p->model, &p->hosts, layout->tp, &work);
    return layout->dp * n / step.total_s;
}

/* The layout with the highest total rate over all numbers of users that fit; layout NULL: none
 * fits. */
static struct point best_for_all(const struct plan *p)
{
    struct point best = { 0 };
    for (int l = 0; l < p->n_layouts; l++) {
        for (int i = 0; i < p->values->users.n; i++) {
            struct point at = reckon(p, &p->layouts[l], p->values->users.ints[i]);
            if (at.fits && at.tok_s > best.tok_s)
                best = at;
        }
    }
    return best;
}

static struct point best_for_one(const struct plan *p)
{
    struct point best = { 0 };
    for (int l = 0; l < p->n_layouts; l++) {
        struct point at = reckon(p, &p->layouts[l], 1);
        if (at.fits && at.tok_s > best.tok_s)
            best = at;
    }
    return best;
}

static void print_best(const char *what, const struct point *best)
{
    if (best->layout)
        output_printf("best for %s: tp %d, dp %d (%.1f tokens/s with %" PRId64 " user%s)\n", what,
                      best->layout->tp, best->layout->dp, best->tok_s, best->n_users,
                      best->n_users == 1 ? "" : "s");
    else
        output_printf("best for %s: none fits into the memory\n", what);
}

static void print_table(const struct plan *p)
{
    char weights[NUMBER_SIZE_BYTES], memory[NUMBER_SIZE_BYTES];
    const struct plan_hosts *h = &p->hosts;
    output_printf("%s: %s weights, %s keys and values; %d tokens of context per user\n", p->name,
                  dtype_name(p->type), kv_type_name(p->model.kv_type), p->context);
    output_printf(
        "rates (%s, %d cores): matrices %.1f GB/s and %.0f Gop/s, attention %.1f GB/s and %.0f Gflop/s\n",
        p->values->rates ? p->values->rates : "measured here", p->rates.n_cores, p->rates.linear_gbps,
        p->rates.linear_gops, p->rates.attention_gbps, p->rates.attention_gflops);
    output_printf("%d host%s of %d cores and %s, links of %g Gbit/s, %g us\n\n", h->n_hosts,
                  h->n_hosts == 1 ? "" : "s", h->n_cores,
                  number_write_size(memory, (uint64_t)h->memory_bytes), h->link_gbps, h->latency_us);
    output_printf("%4s %4s %12s %9s %8s %10s %8s %9s %9s %11s %9s %10s\n", "tp", "dp", "weights each",
                  "users fit", "users", "tokens/s", "each", "step ms", "memory", "arithmetic", "network",
                  "prompts");
    for (int l = 0; l < p->n_layouts; l++) {
        const struct plan_layout *layout = &p->layouts[l];
        for (int i = 0; i < p->values->users.n; i++) {
            struct point at = reckon(p, layout, p->values->users.ints[i]);
            output_printf("%4d %4d %12s %9" PRId64 " %8" PRId64 " ", layout->tp, layout->dp,
                          number_write_size(weights, (uint64_t)layout->weight_bytes), layout->n_users_fit,
                          at.n_users);
            if (!at.fits)
                output_printf("%10s\n", "no memory");
            else
                output_printf("%10.1f %8.2f %9.2f %9.2f %11.2f %9.2f %10.1f\n", at.tok_s, user_tok_s(&at),
                              at.step.total_s * 1e3, at.step.read_s * 1e3, at.step.compute_s * 1e3,
                              at.step.network_s * 1e3, prompt_tok_s(p, layout));
        }
    }
    struct point all = best_for_all(p), one = best_for_one(p);
    output_printf("\n");
    print_best("throughput", &all);
    print_best("one user", &one);
}

static json_t *layout_json(const struct plan *p, const struct plan_layout *layout)
{
    json_t *points = json_array();
    bool ok = points;
    for (int i = 0; i < p->values->users.n && ok; i++) {
        struct point at = reckon(p, layout, p->values->users.ints[i]);
        ok = json_array_append_new(points, json_pack("{s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f}", "users",
                                                     (json_int_t)at.n_users, "fits", at.fits, "tok_s",
                                                     at.tok_s, "user_tok_s", user_tok_s(&at), "step_ms",
                                                     at.step.total_s * 1e3, "memory_ms", at.step.read_s * 1e3,
                                                     "arithmetic_ms", at.step.compute_s * 1e3, "network_ms",
                                                     at.step.network_s * 1e3)) == 0;
    }
    if (!ok) {
        json_decref(points);
        return NULL;
    }
    return json_pack("{s:i, s:i, s:f, s:f, s:I, s:f, s:o}", "tp", layout->tp, "dp", layout->dp,
                     "weight_bytes", layout->weight_bytes, "user_bytes", layout->user_bytes, "users_fit",
                     (json_int_t)layout->n_users_fit, "prompt_tok_s", prompt_tok_s(p, layout), "points",
                     points);
}

static json_t *best_json(const struct point *best)
{
    return best->layout ? json_pack("{s:i, s:i, s:I, s:f}", "tp", best->layout->tp, "dp", best->layout->dp,
                                    "users", (json_int_t)best->n_users, "tok_s", best->tok_s)
                        : json_null();
}

static void print_json(const struct plan *p)
{
    struct point all = best_for_all(p), one = best_for_one(p);
    json_t *layouts = json_array();
    bool ok = layouts;
    for (int l = 0; l < p->n_layouts && ok; l++)
        ok = json_array_append_new(layouts, layout_json(p, &p->layouts[l])) == 0;
    json_t *rates = json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "cores", p->rates.n_cores, "read_gbps",
                              p->rates.read_gbps, "linear_gbps", p->rates.linear_gbps, "linear_gops",
                              p->rates.linear_gops, "attention_gbps", p->rates.attention_gbps,
                              "attention_gflops", p->rates.attention_gflops);
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "model", p->name, "type",
                             dtype_name(p->type), "kv_type", kv_type_name(p->model.kv_type), "context",
                             p->context, "hosts", p->hosts.n_hosts, "cores", p->hosts.n_cores, "rates", rates,
                             "layouts", layouts, "best_throughput", best_json(&all), "best_one_user",
                             best_json(&one));
    output_json(ok ? root : NULL, true); /* NULL: fails, which output_flush() reports */
    json_decref(root);
}

static double machine_bytes(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

static enum tutti_status check_values(const struct plan *p, struct tutti_error *err)
{
    const struct plan_values *values = p->values;
    if (values->check && (values->rates || values->hosts > 1 || values->cores > 0 || values->bandwidth > 0))
        return error_set(
            err, TUTTI_E_ARGUMENT,
            "--check measures this machine: --rates, --hosts, --cores and --bandwidth have no place");
    if (values->context >= p->model.desc.n_ctx)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "--context: found %" PRId64 ", expected at most %d for this model", values->context,
                         p->model.desc.n_ctx - 1);
    return TUTTI_OK;
}

static enum tutti_status measure_rates(struct plan *p, struct tutti_error *err)
{
    struct plan_probe probe;
    struct progress progress;
    fprintf(stderr,
            "tutti: measuring this machine's kernels for about 10 s; --rates FILE takes the rates from "
            "'tutti bench --json' instead\n");
    progress_begin(&progress, "measuring", PROGRESS_STEPS);
    enum tutti_status st = plan_probe_open(&probe, p, err);
    if (st == TUTTI_OK)
        st = plan_probe_run(&probe, p, 0, &progress, err);
    plan_probe_close(&probe);
    progress_end(&progress);
    return st;
}

static enum tutti_status run(const void *v, const char *const *operands, int n_operands,
                             struct tutti_error *err)
{
    (void)n_operands;
    const struct plan_values *values = v;
    enum dtype kv_type;
    struct plan *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, TUTTI_E_MEMORY, "out of memory");
    p->name = operands[0];
    p->values = values;
    enum tutti_status st = TUTTI_OK;
    if (!kv_type_find(values->kv_type, &kv_type))
        st = error_set(err, TUTTI_E_ARGUMENT, "--kv-type: unknown type '%s'", values->kv_type);
    if (st == TUTTI_OK)
        st = plan_model_read(&p->model, &p->type, operands[0],
                             values->type ? weight_type_find(values->type) : NULL, kv_type, err);
    if (st == TUTTI_OK)
        st = check_values(p, err);
    p->context = p->model.desc.n_ctx > USUAL_CONTEXT ? USUAL_CONTEXT : p->model.desc.n_ctx - 1;
    if (values->context >= 0)
        p->context = (int)values->context;
    if (st == TUTTI_OK && values->check) {
        st = plan_check(p, err);
        goto done;
    }
    if (st == TUTTI_OK)
        st = values->rates ? plan_rates_read(&p->rates, values->rates, p->type, kv_type, err)
                           : measure_rates(p, err);
    if (st == TUTTI_OK) {
        p->hosts = (struct plan_hosts){ .n_hosts = (int)values->hosts,
                                        .n_cores = values->cores > 0 ? (int)values->cores : p->rates.n_cores,
                                        .read_gbps = values->bandwidth > 0 ? values->bandwidth : 0,
                                        .link_gbps = values->link,
                                        .latency_us = values->latency,
                                        .memory_bytes = values->memory > 0 ? (double)values->memory
                                                                           : machine_bytes() };
        p->n_layouts = plan_layouts(p->layouts, &p->model, &p->hosts, p->context + 1);
        values->json ? print_json(p) : print_table(p);
    }
done:
    free(p);
    return st;
}

const struct command COMMAND_PLAN = {
    .name = "plan",
    .summary = "predict speed and users on several machines",
    .about = "Predicts how a model would run on N machines: for each split over tp machines, with dp "
             "replicas, it prints tokens per second, users, memory, and where a step's time goes. "
             "Every machine runs one rank. MODEL is a checkpoint, of which only the headers are read, "
             "or the name of a known shape (tutti bench --shape list).\n\nRates are those of real "
             "kernels, not peaks: measured here in about 10 seconds, on a few layers with random "
             "weights, or on another machine by tutti bench --json. Memory accesses and arithmetic "
             "overlap; messages overlap with nothing. All users are assumed to decode at once, each "
             "one token per step.\n\n--check also loads the whole model and measures both "
             "alternately, so that both run under the same conditions.",
    .example = "tutti plan llama-7b --hosts 4 --cores 16 --link 25\n"
               "tutti bench MODEL --attention 1024 --json > rates.json\n"
               "tutti plan MODEL --rates rates.json --hosts 8 --link 100 --latency 5 --users 1,64,512\n"
               "tutti plan MODEL --check --users 1,8,32 --context 64",
    .options = OPTION_SET(GROUPS, "MODEL", 1, 1, "expected MODEL, a checkpoint or the name of a shape"),
    .values_bytes = sizeof(struct plan_values),
    .run = run,
};
