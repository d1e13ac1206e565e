/* Measures the rates of this machine's kernels, for a plan. */
#include "cli/plan/plan.h"

#include "backend/kv_type.h"
#include "cli/bench/bench.h"
#include "cli/terminal/progress.h"
#include "kernels/kernels.h"

#include <math.h>

enum {
    MEASURED_BYTES = 512 << 20, /* of layers: beyond every cache */
    MEASURED_ROWS = 64,         /* enough to be compute-bound */
    MEASURED_CONTEXT = 64,
    MEASURED_ATTENTION = 1024,
    MIN_VOCAB = 256,
};

static void add_sample(struct plan_sample *out, const struct bench_result *r)
{
    *out = (struct plan_sample){ .n_rows = r->n_tokens,
                                 .seconds = r->time.median_s,
                                 .matrix_bytes = r->work.matrix_bytes,
                                 .kv_bytes = r->work.kv_bytes,
                                 .linear_ops = r->work.linear_ops,
                                 .attention_ops = r->work.attention_ops };
}

enum { N_STEP_POINTS = 2, N_POINTS = 3 };

static void show_steps(void *user, uint64_t done, uint64_t total)
{
    (void)total;
    if (user)
        progress_update(user, done, N_POINTS);
}

static void show_attention(void *user, uint64_t done, uint64_t total)
{
    (void)total;
    if (user)
        progress_update(user, N_STEP_POINTS + done, N_POINTS);
}

enum tutti_status plan_probe_run(const struct plan_probe *probe, struct plan *p, int n_repetitions,
                                 struct progress *progress, struct tutti_error *err)
{
    const struct model_desc *d = &probe->part->desc;
    struct bench_plan steps = { .users = { .ints = { 1, MEASURED_ROWS }, .n = N_STEP_POINTS },
                                .context = d->n_ctx > MEASURED_CONTEXT ? MEASURED_CONTEXT : 0,
                                .n_repetitions = n_repetitions };
    struct option_ints contexts = { .ints = { d->n_ctx < MEASURED_ATTENTION ? d->n_ctx : MEASURED_ATTENTION },
                                    .n = 1 };
    struct bench_result results[3];
    struct bench_attention_result attention[BENCH_ATTENTION_POINTS];
    struct plan_sample samples[3];
    struct plan_attention_sample alone = { 0 };
    int n = 0, n_attention = 0;
    enum tutti_status st = bench_steps(probe->part, &steps, probe->limits, results, &n, NULL, show_steps,
                                       progress, err);
    if (st == TUTTI_OK)
        st = bench_attention(probe->part, &contexts, &p->model.kv_type, n_repetitions, probe->limits,
                             attention, &n_attention, show_attention, progress, err);
    if (st != TUTTI_OK)
        return st;
    for (int i = 0; i < n; i++)
        add_sample(&samples[i], &results[i]);
    for (int i = 0; i < n_attention; i++) {
        const struct bench_attention_result *a = &attention[i];
        if (a->n_rows == 1 && a->kv_type == p->model.kv_type)
            alone = (struct plan_attention_sample){ a->time.median_s, a->read_bytes, a->ops,
                                                    a->limits.read_gbps, a->limits.peak_f32_gflops };
    }
    return plan_rates_fit(&p->rates, samples, n, &alone, results[0].limits.read_gbps,
                          results[0].limits.peak_f32_gflops, err);
}

static struct model_desc part_of(const struct plan *p)
{
    struct model_desc part = p->model.desc;
    double bytes = p->model.qkv_bytes + p->model.attn_out_bytes + p->model.gate_up_bytes +
                   p->model.down_bytes;
    double n_layers = ceil(MEASURED_BYTES / (bytes / part.n_layers));
    part.n_layers = n_layers < 2 ? 2 : n_layers < part.n_layers ? (int)n_layers : part.n_layers;
    if (part.n_layers > p->model.desc.n_layers)
        part.n_layers = p->model.desc.n_layers;
    int64_t n_vocab = (int64_t)part.n_vocab * part.n_layers / p->model.desc.n_layers / 32 * 32;
    part.n_vocab = n_vocab < MIN_VOCAB ? part.n_vocab : (int)n_vocab;
    return part;
}

enum tutti_status plan_probe_open(struct plan_probe *probe, struct plan *p, struct tutti_error *err)
{
    struct model_desc part = part_of(p);
    struct tutti_model_options options = { .n_threads = p->values->threads > 0 ? (int)p->values->threads : 0,
                                           .kv_type = p->values->kv_type };
    unsigned cpu;
    *probe = (struct plan_probe){ 0 };
    enum tutti_status st = cpu_find(&cpu, NULL, err);
    if (st == TUTTI_OK)
        st = model_make_like(&probe->part, p->name, &part, p->type, &options, err);
    if (st == TUTTI_OK)
        st = team_new(&probe->team, options.n_threads, false, err);
    if (st == TUTTI_OK && !(probe->limits = measure_new(probe->team, cpu)))
        st = error_set(err, TUTTI_E_MEMORY, "no memory to measure the machine's read bandwidth in");
    if (st == TUTTI_OK)
        p->rates = (struct plan_rates){ .type = p->type, .n_cores = team_n_threads(probe->team) };
    return st;
}

void plan_probe_close(struct plan_probe *probe)
{
    measure_free(probe->limits);
    team_free(probe->team);
    model_free(probe->part);
}
