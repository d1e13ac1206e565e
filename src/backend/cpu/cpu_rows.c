/* Row-wise operations of the CPU backend. A single row is computed by the calling thread, because
 * waking the team takes longer. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <string.h>

static void run_rows(struct cpu_backend *cpu, team_fn *fn, void *job, int n_rows)
{
    if (n_rows == 1)
        fn(job, 0, 1);
    else
        team_run(cpu->team, fn, job);
}

struct norm_job {
    const struct cpu_backend *cpu;
    float *y, *x;
    const float *add;
    struct floats w, b;                       /* b none: RMSNorm */
    const struct norm_update *const *updates; /* NULL: none */
    const int32_t *adapters;
    int n_rows, n;
    float eps;
};

static void norm_some(void *arg, int thread, int n_threads)
{
    const struct norm_job *job = arg;
    int64_t begin, end;
    int node = team_node_of(job->cpu->team, thread);
    const struct kernels *k = &job->cpu->kernels;
    size_t n = (size_t)job->n;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *x = job->x + r * job->n, *y = job->y + r * job->n;
        if (job->add)
            k->add(x, job->add + r * job->n, job->n);
        const struct norm_update *update = job->updates && job->adapters[r] >= 0
                                               ? job->updates[job->adapters[r]]
                                               : NULL;
        const float *w = cpu_constants(update ? update->w : job->w, n, node),
                    *b = cpu_constants(update ? update->b : job->b, n, node);
        if (b)
            k->layernorm(y, x, w, b, 1, job->n, job->eps);
        else
            k->rmsnorm(y, x, w, 1, job->n, job->eps);
    }
}

void cpu_layernorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                   struct floats b, int n_rows, int n, float eps)
{
    cpu_norm_adapted(be, y, x, add, w, b, n_rows, n, eps, NULL, NULL);
}

void cpu_norm_adapted(struct backend *be, struct floats y, struct floats x, struct floats add,
                      struct floats w, struct floats b, int n_rows, int n, float eps,
                      const struct norm_update *const *updates, const int32_t *adapters)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct norm_job job = { .cpu = cpu,
                            .y = cpu_rows(y, n_rows, n),
                            .x = cpu_rows(x, n_rows, n),
                            .add = cpu_rows(add, n_rows, n),
                            .w = w,
                            .b = b,
                            .updates = updates,
                            .adapters = adapters,
                            .n_rows = n_rows,
                            .n = n,
                            .eps = eps };
    run_rows(cpu, norm_some, &job, n_rows);
}

void cpu_rmsnorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                 int n_rows, int n, float eps)
{
    cpu_layernorm(be, y, x, add, w, NO_FLOATS, n_rows, n, eps);
}

/* Operations that take one pass over each row's elements. */
struct rows_job {
    const struct kernels *kernels;
    const struct step *step;
    float *x;
    const float *base, *add; /* of scale_add */
    float scale;
    const float *table; /* of positions */
    int first;          /* row of the step */
    enum positions_use use;
    enum activation act;
    int n_rows, n;
};

static void scale_add_some(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    job->kernels->scale_add(job->x + begin * job->n, job->base + begin * job->n, job->scale,
                            job->add + begin * job->n, (end - begin) * job->n);
}

void cpu_scale_add(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                   int n_rows, int n)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct rows_job job = { .kernels = &cpu->kernels,
                            .x = cpu_rows(x, n_rows, n),
                            .base = cpu_rows(base, n_rows, n),
                            .scale = scale,
                            .add = cpu_rows(add, n_rows, n),
                            .n_rows = n_rows,
                            .n = n };
    run_rows(cpu, scale_add_some, &job, n_rows);
}

static void scale_some(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    float *x = job->x + begin * job->n;
    job->kernels->scale(x, x, job->scale, (end - begin) * job->n);
}

void cpu_scale(struct backend *be, struct floats x, float scale, int n_rows, int n)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct rows_job job = {
        .kernels = &cpu->kernels, .x = cpu_rows(x, n_rows, n), .scale = scale, .n_rows = n_rows, .n = n
    };
    run_rows(cpu, scale_some, &job, n_rows);
}

static void softcap_some(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    job->kernels->softcap(job->x + begin * job->n, job->scale, (end - begin) * job->n);
}

void cpu_softcap(struct backend *be, struct floats x, float cap, int n_rows, int n)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct rows_job job = {
        .kernels = &cpu->kernels, .x = cpu_rows(x, n_rows, n), .scale = cap, .n_rows = n_rows, .n = n
    };
    run_rows(cpu, softcap_some, &job, n_rows);
}

static void relu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] < 0 ? 0 : x[i];
}

static gelu_fn *activation_of(const struct kernels *k, enum activation act)
{
    return act == ACT_GELU_TANH      ? k->gelu_tanh
           : act == ACT_GELU_SIGMOID ? k->gelu_sigmoid
           : act == ACT_GELU_ERF     ? k->gelu_erf
                                     : relu;
}

static void activate_some(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    activation_of(job->kernels, job->act)(job->x + begin * job->n, (end - begin) * job->n);
}

void cpu_activate(struct backend *be, struct floats x, int n_rows, int n, enum activation act)
{
    assert(act != ACT_SILU);
    struct cpu_backend *cpu = cpu_of(be);
    struct rows_job job = {
        .kernels = &cpu->kernels, .x = cpu_rows(x, n_rows, n), .act = act, .n_rows = n_rows, .n = n
    };
    run_rows(cpu, activate_some, &job, n_rows);
}

static void positions_some(void *arg, int thread, int n_threads)
{
    const struct rows_job *job = arg;
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const int32_t *all = job->use == POSITIONS_ADD_SECOND ? job->step->block_positions
                                                              : job->step->positions;
        const float *row = job->table + (size_t)(all ? all[job->first + r] : 0) * (size_t)job->n;
        if (job->use == POSITIONS_REPLACE)
            memcpy(job->x + r * job->n, row, (size_t)job->n * sizeof *row);
        else
            job->kernels->add(job->x + r * job->n, row, job->n);
    }
}

void cpu_positions(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                   enum positions_use use)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct rows_job job = { .kernels = &cpu->kernels,
                            .step = cpu->step,
                            .x = cpu_rows(x, end - begin, n),
                            .table = cpu_floats(table, 0),
                            .first = begin,
                            .use = use,
                            .n_rows = end - begin,
                            .n = n };
    assert(job.x && job.table);
    run_rows(cpu, positions_some, &job, job.n_rows);
}

void cpu_concat(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                int n_rows)
{
    const float *left = cpu_rows(a, n_rows, n_a), *right = cpu_rows(b, n_rows, n_b);
    float *to = cpu_rows(y, n_rows, n_a + n_b);
    (void)be;
    for (int r = 0; r < n_rows; r++, left += n_a, right += n_b, to += n_a + n_b) {
        memcpy(to, left, (size_t)n_a * sizeof *to);
        memcpy(to + n_a, right, (size_t)n_b * sizeof *to);
    }
}

void cpu_gather(struct backend *be, struct floats y, struct floats x, struct floats add, int n)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct step *step = cpu->step;
    const float *from = cpu_rows(x, step->n_rows, n), *more = cpu_rows(add, step->n_rows, n);
    float *to = cpu_rows(y, step->n_outputs, n);
    for (int i = 0; i < step->n_outputs; i++, to += n) {
        size_t at = (size_t)step->output_rows[i] * (size_t)n;
        memcpy(to, from + at, (size_t)n * sizeof *to);
        if (more)
            cpu->kernels.add(to, more + at, n);
    }
}
