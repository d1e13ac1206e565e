/* Low-rank updates: first every sum of a row's input with a, then, behind a barrier, those times b.
 * Rows of any adapters go through together, those of one adapter in groups; rows without one cost a comparison each. */
#include "backend/cpu.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 4, /* sums that a thread makes at a time: what the kernel makes side by side */
    SUMS = 64, /* that go into an output at a time */
    COLUMNS = CPU_LORA_COLUMNS,
};

/* ---- factors ---- */

/* The exponent of the largest of n numbers; 0 where that is no finite one, or 0. */
static int exponent_of(const float *x, size_t n)
{
    float most = 0;
    int exponent = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    if (most > 0 && isfinite(most))
        frexpf(most, &exponent);
    return exponent;
}

/* Factor number i of memory, times 2^-exponent. */
static void put_factor(struct lora *lora, float *memory, size_t i, float x, int exponent)
{
    if (lora->is_half)
        ((uint16_t *)memory)[i] = float_to_half(ldexpf(x, -exponent));
    else
        memory[i] = x;
}

static float *alloc_factors(struct backend *be, struct lora *lora, size_t n)
{
    size_t n_floats = lora->is_half ? n / 2 + 1 : n;
    lora->n_bytes += n * (lora->is_half ? sizeof(uint16_t) : sizeof(float));
    return be->ops->alloc(be, n_floats);
}

/* b goes by blocks of outputs, each [rank][COLUMNS], so that it is read from one end to the other. False: no memory. */
static bool copy_part(struct backend *be, struct lora *lora, const struct lora_part *part, int rank_begin)
{
    size_t n_in = (size_t)lora->n_in, n_out = (size_t)part->n_out, rank = (size_t)part->rank;
    size_t n_padded = (n_out + COLUMNS - 1) / COLUMNS * COLUMNS;
    struct lora_piece *to = &lora->parts[lora->n_parts];
    *to = (struct lora_piece){ .out_begin = part->out_begin,
                               .n_out = part->n_out,
                               .rank_begin = rank_begin,
                               .rank = part->rank,
                               .scale = part->scale,
                               .b = alloc_factors(be, lora, rank * n_padded) };
    if (!to->b)
        return false;
    lora->n_parts++;
    int a_exponent = exponent_of(part->a, rank * n_in), b_exponent = exponent_of(part->b, rank * n_out);
    if (lora->is_half)
        to->scale = ldexpf(part->scale, a_exponent + b_exponent);
    for (size_t i = 0; i < rank * n_in; i++)
        put_factor(lora, lora->a, (size_t)rank_begin * n_in + i, part->a[i], a_exponent);
    for (size_t j = 0; j < n_out; j++)
        for (size_t i = 0; i < rank; i++)
            put_factor(lora, to->b, (j / COLUMNS * rank + i) * COLUMNS + j % COLUMNS, part->b[j * rank + i],
                       b_exponent);
    return true;
}

enum tutti_status cpu_lora_new(struct backend *be, struct lora **out, const struct lora_part *parts,
                               int n_parts, int n_in, int n_out, enum dtype type, struct tutti_error *err)
{
    assert(type == DTYPE_F32 || type == DTYPE_F16);
    struct cpu_backend *cpu = cpu_of(be);
    struct lora *lora = calloc(1, sizeof *lora + (size_t)n_parts * sizeof *lora->parts);
    if (!lora)
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    lora->n_in = n_in;
    lora->n_out = n_out;
    lora->is_half = type == DTYPE_F16;
    for (int i = 0; i < n_parts; i++) {
        assert(parts[i].rank >= 1 && parts[i].rank <= LORA_MAX_RANK && parts[i].out_begin >= 0 &&
               parts[i].out_begin + parts[i].n_out <= n_out);
        lora->rank += parts[i].rank;
    }
    lora->a = alloc_factors(be, lora, (size_t)lora->rank * (size_t)n_in);
    bool has_all = lora->a != NULL;
    for (int i = 0, rank = 0; has_all && i < n_parts; i++) {
        has_all = copy_part(be, lora, &parts[i], rank);
        rank += parts[i].rank;
    }
    if (!has_all) {
        cpu_lora_free(be, lora);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    if (lora->rank > cpu->lora_rank)
        cpu->lora_rank = lora->rank;
    *out = lora;
    return TUTTI_OK;
}

void cpu_lora_free(struct backend *be, struct lora *lora)
{
    if (!lora)
        return;
    for (int i = 0; i < lora->n_parts; i++)
        be->ops->dealloc(be, lora->parts[i].b);
    be->ops->dealloc(be, lora->a);
    free(lora);
}

size_t cpu_lora_bytes(const struct lora *lora)
{
    return lora->n_bytes;
}

/* ---- scratch memory ---- */

bool cpu_lora_reserve(struct cpu_backend *cpu, int max_rows)
{
    if (cpu->lora_rank == 0)
        return true;
    size_t n_rows = (size_t)max_rows;
    cpu->lora_sums = cpu->backend.ops->alloc(&cpu->backend, n_rows * (size_t)cpu->lora_rank);
    cpu->lora_groups = calloc(n_rows, sizeof *cpu->lora_groups);
    return cpu->lora_sums && cpu->lora_groups;
}

void cpu_lora_release(struct cpu_backend *cpu)
{
    cpu->backend.ops->dealloc(&cpu->backend, cpu->lora_sums);
    free(cpu->lora_groups);
    cpu->lora_sums = NULL;
    cpu->lora_groups = NULL;
}

/* ---- a step ---- */

struct lora_job {
    struct cpu_backend *cpu;
    const struct lora_group *groups; /* [n] */
    const float *x;
    float *y;
    int n, rank, n_out; /* rank: of the adapter that has most */
    bool is_new;
};

static float *sums_of(const struct lora_job *job, int row)
{
    return job->cpu->lora_sums + (size_t)row * (size_t)job->cpu->lora_rank;
}

/* Runs of sums, over all groups. */
static void run_down(const struct lora_job *job, int thread, int n_threads)
{
    const struct kernels *k = &job->cpu->kernels;
    int n_runs = (job->rank + RANKS - 1) / RANKS;
    int64_t begin, end;
    team_share((int64_t)job->n * n_runs, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const struct lora_group *group = &job->groups[i / n_runs];
        const struct lora *lora = group->lora;
        int first = (int)(i % n_runs) * RANKS, left = lora->rank - first;
        if (left <= 0)
            continue;
        size_t at = (size_t)first * (size_t)lora->n_in;
        const float *x[LORA_ROWS];
        float *sums[LORA_ROWS];
        for (int r = 0; r < group->n; r++) {
            x[r] = job->x + (size_t)group->rows[r] * (size_t)lora->n_in;
            sums[r] = sums_of(job, group->rows[r]) + first;
        }
        left = left < RANKS ? left : RANKS;
        if (lora->is_half)
            k->lora_down_half(sums, (const uint16_t *)lora->a + at, x, group->n, left, lora->n_in);
        else
            k->lora_down(sums, lora->a + at, x, group->n, left, lora->n_in);
    }
}

/* The sums of one group's rows with one part, scaled: number first and those behind it, n of them. */
static void scale_sums(const struct lora_job *job, const struct lora_group *group,
                       const struct lora_piece *part, int first, int n, float scaled[][SUMS])
{
    for (int r = 0; r < group->n; r++) {
        const float *sums = sums_of(job, group->rows[r]) + part->rank_begin + first;
        for (int i = 0; i < n; i++)
            scaled[r][i] = sums[i] * part->scale;
    }
}

/* Columns first..last-1, all of them of one part, of one group's rows. */
static void run_up_part(const struct lora_job *job, const struct lora_group *group,
                        const struct lora_piece *part, int first, int last)
{
    const struct kernels *k = &job->cpu->kernels;
    float scaled[LORA_ROWS][SUMS];
    const float *t[LORA_ROWS];
    for (int r = 0; r < group->n; r++)
        t[r] = scaled[r];
    for (int done = 0, n_sums; done < part->rank; done += n_sums) {
        n_sums = part->rank - done < SUMS ? part->rank - done : SUMS;
        scale_sums(job, group, part, done, n_sums, scaled);
        for (int column = first, n; column < last; column += n) {
            int block = (column - part->out_begin) / COLUMNS, skipped = (column - part->out_begin) % COLUMNS;
            n = last - column < COLUMNS - skipped ? last - column : COLUMNS - skipped;
            float *y[LORA_ROWS];
            for (int r = 0; r < group->n; r++)
                y[r] = job->y + (size_t)group->rows[r] * (size_t)job->n_out + column;
            size_t at = ((size_t)block * (size_t)part->rank + (size_t)done) * COLUMNS + (size_t)skipped;
            if (group->lora->is_half)
                k->lora_up_half(y, (const uint16_t *)part->b + at, COLUMNS, t, group->n, n_sums, n);
            else
                k->lora_up(y, part->b + at, COLUMNS, t, group->n, n_sums, n);
        }
    }
}

/* Columns begin..end-1 of one group's rows. */
static void run_up(const struct lora_job *job, const struct lora_group *group, int begin, int end)
{
    for (int r = 0; job->is_new && r < group->n; r++)
        memset(job->y + (size_t)group->rows[r] * (size_t)job->n_out + begin, 0,
               (size_t)(end - begin) * sizeof *job->y);
    for (int p = 0; p < group->lora->n_parts; p++) {
        const struct lora_piece *part = &group->lora->parts[p];
        int first = begin > part->out_begin ? begin : part->out_begin;
        int last = end < part->out_begin + part->n_out ? end : part->out_begin + part->n_out;
        if (first < last)
            run_up_part(job, group, part, first, last);
    }
}

static void lora_some(void *arg, int thread, int n_threads)
{
    const struct lora_job *job = arg;
    run_down(job, thread, n_threads);
    if (n_threads > 1)
        team_barrier(job->cpu->team);
    int64_t n_runs = (job->n_out + COLUMNS - 1) / COLUMNS, begin, end;
    team_share(job->n * n_runs, 1, thread, n_threads, &begin, &end);
    while (begin < end) { /* of one group after the other */
        int64_t first = begin % n_runs, last = first + end - begin;
        last = last < n_runs ? last : n_runs;
        run_up(job, &job->groups[begin / n_runs], (int)(first * COLUMNS),
               last < n_runs ? (int)(last * COLUMNS) : job->n_out);
        begin += last - first;
    }
}

/* The group that a row with this adapter joins: of those that have room there is at most one for each adapter. */
static struct lora_group *find_group(struct lora_job *job, const struct lora *lora)
{
    struct lora_group *groups = job->cpu->lora_groups;
    for (int i = job->n - 1; i >= 0; i--) {
        if (groups[i].lora != lora)
            continue;
        if (groups[i].n < LORA_ROWS)
            return &groups[i];
        break;
    }
    groups[job->n] = (struct lora_group){ .lora = lora };
    return &groups[job->n++];
}

void cpu_lora(struct backend *be, float *y, const struct lora *const *loras, const int32_t *adapters,
              const float *x, int n_rows, bool is_new)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct lora_job job = { .cpu = cpu, .groups = cpu->lora_groups, .x = x, .y = y, .is_new = is_new };
    assert(n_rows <= cpu->max_rows);
    for (int r = 0; r < n_rows; r++) {
        const struct lora *lora = adapters[r] >= 0 ? loras[adapters[r]] : NULL;
        if (!lora)
            continue;
        assert(lora->rank <= cpu->lora_rank); /* else made after reserve() */
        job.rank = lora->rank > job.rank ? lora->rank : job.rank;
        job.n_out = lora->n_out;
        struct lora_group *group = find_group(&job, lora);
        group->rows[group->n++] = r;
    }
    if (job.n > 0)
        team_run(cpu->team, lora_some, &job);
}
