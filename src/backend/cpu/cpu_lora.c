/* What adapters change of linear layers. LoRA updates: the input of a row is multiplied by A, then the
 * result by B. DoRA and trained biases: outputs are multiplied by factors and shifted.
 *
 * Both products are computed within the linear layer that they change (cpu_linear.c): A while the
 * input is packed, B piece by piece, while the outputs that it is added to are in the cache. A step
 * may have rows of several adapters; the rows of one adapter in a tile form a group. A row without an
 * adapter costs one comparison. */
#include "backend/cpu/cpu.h"

#include "backend/lora_factor.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 4, /* sums that a thread computes at a time, as many as the kernel computes together */
    SUMS = 64, /* sums that are multiplied into an output at a time */
    COLUMNS = CPU_LORA_COLUMNS,
};

/* ---- factors ---- */

static float *alloc_factors(struct lora *lora, size_t n)
{
    size_t n_floats = lora->is_half ? n / 2 + 1 : n;
    lora->n_bytes += n * (lora->is_half ? sizeof(uint16_t) : sizeof(float));
    return cpu_memory_new(n_floats);
}

/* b is stored in blocks of outputs, each [rank][COLUMNS], so that it is read sequentially. False:
 * out of memory. */
static bool copy_part(struct lora *lora, const struct lora_part *part, int rank_begin)
{
    size_t n_in = (size_t)lora->n_in, n_out = (size_t)part->n_out, rank = (size_t)part->rank;
    size_t n_padded = (n_out + COLUMNS - 1) / COLUMNS * COLUMNS;
    struct lora_piece *to = &lora->parts[lora->n_parts];
    *to = (struct lora_piece){ .out_begin = part->out_begin,
                               .n_out = part->n_out,
                               .rank_begin = rank_begin,
                               .rank = part->rank,
                               .b = alloc_factors(lora, rank * n_padded) };
    if (!to->b)
        return false;
    lora->n_parts++;
    for (size_t i = 0; i < rank; i++) {
        struct lora_rank as = lora_rank_of(part, lora->n_in, i, lora->is_half);
        size_t sum = (size_t)rank_begin + i;
        lora->scales[sum] = as.scale;
        for (size_t k = 0; k < n_in; k++)
            lora_put_factor(lora->a, sum * n_in + k, part->a[i * n_in + k], lora->is_half, as.a_exponent);
        for (size_t j = 0; j < n_out; j++)
            lora_put_factor(to->b, (j / COLUMNS * rank + i) * COLUMNS + j % COLUMNS, part->b[j * rank + i],
                            lora->is_half, as.b_exponent);
    }
    return true;
}

/* Copies one number for each output. False: out of memory. */
static bool copy_outputs(struct lora *lora, float **to, const float *from)
{
    size_t n = (size_t)lora->n_out;
    if (!from)
        return true;
    *to = cpu_memory_new(n + CPU_LORA_PADDING);
    if (!*to)
        return false;
    memcpy(*to, from, n * sizeof **to);
    lora->n_bytes += n * sizeof **to;
    return true;
}

static bool copy_source(struct lora *lora, const struct lora_source *source)
{
    for (int i = 0; i < source->n_parts; i++) {
        const struct lora_part *part = &source->parts[i];
        assert(part->rank >= 1 && part->rank <= LORA_MAX_RANK && part->out_begin >= 0 &&
               part->out_begin + part->n_out <= source->n_out);
        lora->rank += part->rank;
    }
    lora->a = alloc_factors(lora, (size_t)lora->rank * (size_t)lora->n_in);
    lora->scales = cpu_memory_new((size_t)lora->rank);
    lora->n_bytes += (size_t)lora->rank * sizeof *lora->scales;
    bool has_all = lora->a && lora->scales && copy_outputs(lora, &lora->factors, source->factors) &&
                   copy_outputs(lora, &lora->shifts, source->shifts);
    for (int i = 0, rank = 0; has_all && i < source->n_parts; i++) {
        has_all = copy_part(lora, &source->parts[i], rank);
        rank += source->parts[i].rank;
    }
    return has_all;
}

enum tutti_status cpu_lora_new(struct backend *be, struct lora **out, const struct lora_source *source,
                               struct tutti_error *err)
{
    assert(source->type == DTYPE_F32 || source->type == DTYPE_F16);
    struct cpu_backend *cpu = cpu_of(be);
    struct lora *lora = calloc(1, sizeof *lora + (size_t)source->n_parts * sizeof *lora->parts);
    if (!lora) {
        cpu_matrix_free(be, source->matrix);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    lora->n_in = source->n_in;
    lora->n_out = source->n_out;
    lora->is_half = source->type == DTYPE_F16;
    lora->matrix = source->matrix;
    if (!copy_source(lora, source)) {
        cpu_lora_free(be, lora);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    cpu->has_loras = true;
    if (lora->matrix) {
        assert(lora->matrix->n_in == lora->n_in && lora->matrix->n_out == lora->n_out);
        lora->n_bytes += cpu_matrix_bytes(lora->matrix);
        cpu->lora_n_in = lora->n_in > cpu->lora_n_in ? lora->n_in : cpu->lora_n_in;
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
        free(lora->parts[i].b);
    cpu_matrix_free(be, lora->matrix);
    free(lora->factors);
    free(lora->shifts);
    free(lora->scales);
    free(lora->a);
    free(lora);
}

size_t cpu_lora_bytes(const struct backend *be, const struct lora *lora)
{
    (void)be;
    return lora->n_bytes;
}

/* ---- lengths of rows, of DoRA ---- */

struct lengths_job {
    const struct kernels *kernels;
    const struct matrix *m;
    const struct lora_part *part;
    const double *products; /* [rank][rank]: A . A^T */
    float *scratch;         /* [n_threads][n_in + rank + RANKS] */
    float *lengths;
};

/* sums [n] = a [n][n_in] . x */
static void multiply(const struct kernels *k, float *sums, const float *a, const float *x, int n, int n_in)
{
    for (int first = 0; first < n; first += RANKS) {
        float *to = sums + first;
        k->lora_down(&to, a + (size_t)first * (size_t)n_in, &x, 1, n - first < RANKS ? n - first : RANKS,
                     n_in);
    }
}

/* |w + s b A|^2 = |w|^2 + 2 s b . (A w) + s^2 b (A A^T) b. */
static float length_of(const struct lengths_job *job, int row, float *scratch)
{
    const struct lora_part *part = job->part;
    int n_in = job->m->n_in, rank = part->rank;
    float *w = scratch, *sums = scratch + n_in, square;
    const float *b = part->b + (size_t)row * (size_t)rank;
    double s = (double)part->scale, cross = 0, update = 0;
    cpu_matrix_row(w, job->m, part->out_begin + row);
    multiply(job->kernels, &square, w, w, 1, n_in);
    multiply(job->kernels, sums, part->a, w, rank, n_in);
    for (int i = 0; i < rank; i++) {
        double sum = 0;
        cross += (double)b[i] * (double)sums[i];
        for (int j = 0; j < rank; j++)
            sum += job->products[(size_t)i * (size_t)rank + (size_t)j] * (double)b[j];
        update += sum * (double)b[i];
    }
    double total = (double)square + 2 * s * cross + s * s * update;
    return (float)sqrt(total > 0 ? total : 0);
}

static void lengths_some(void *arg, int thread, int n_threads)
{
    const struct lengths_job *job = arg;
    int64_t begin, end;
    team_range(job->part->n_out, 1, thread, n_threads, &begin, &end);
    float *scratch = job->scratch + (size_t)thread * (size_t)(job->m->n_in + job->part->rank + RANKS);
    for (int64_t row = begin; row < end; row++)
        job->lengths[row] = length_of(job, (int)row, scratch);
}

bool cpu_matrix_lengths(struct backend *be, float *host, const struct matrix *m, const struct lora_part *part)
{
    struct cpu_backend *cpu = cpu_of(be);
    size_t rank = (size_t)part->rank, n_in = (size_t)m->n_in;
    double *products = malloc(rank * rank * sizeof *products);
    float *scratch = malloc((size_t)team_n_threads(cpu->team) * (n_in + rank + RANKS) * sizeof *scratch);
    for (size_t i = 0; products && i < rank; i++) {
        for (size_t j = 0; j < rank; j++) {
            double sum = 0;
            for (size_t k = 0; k < n_in; k++)
                sum += (double)part->a[i * n_in + k] * (double)part->a[j * n_in + k];
            products[i * rank + j] = sum;
        }
    }
    if (products && scratch)
        team_run(cpu->team, lengths_some,
                 &(struct lengths_job){ .kernels = &cpu->kernels,
                                        .m = m,
                                        .part = part,
                                        .products = products,
                                        .scratch = scratch,
                                        .lengths = host });
    bool has_all = products && scratch;
    free(products);
    free(scratch);
    return has_all;
}

/* ---- scratch memory ---- */

bool cpu_lora_reserve(struct cpu_backend *cpu, int max_rows)
{
    if (!cpu->has_loras)
        return true;
    size_t n_rows = (size_t)max_rows;
    cpu->lora_sums = cpu_memory_new(n_rows * (size_t)(cpu->lora_rank + 1));
    cpu->lora_groups = calloc(n_rows, sizeof *cpu->lora_groups);
    cpu->lora_tiles = calloc(n_rows + 1, sizeof *cpu->lora_tiles);
    bool has_all = cpu->lora_sums && cpu->lora_groups && cpu->lora_tiles;
    if (cpu->lora_n_in == 0)
        return has_all;
    cpu->lora_x = cpu_memory_new(n_rows * (size_t)cpu->lora_n_in);
    cpu->lora_rows = calloc(n_rows, sizeof *cpu->lora_rows);
    cpu->lora_adapters = calloc(n_rows, sizeof *cpu->lora_adapters);
    cpu->lora_done = calloc(n_rows, sizeof *cpu->lora_done);
    return has_all && cpu->lora_x && cpu->lora_rows && cpu->lora_adapters && cpu->lora_done;
}

void cpu_lora_release(struct cpu_backend *cpu)
{
    free(cpu->lora_sums);
    free(cpu->lora_groups);
    free(cpu->lora_tiles);
    free(cpu->lora_x);
    free(cpu->lora_rows);
    free(cpu->lora_adapters);
    free(cpu->lora_done);
    cpu->lora_x = NULL;
    cpu->lora_rows = cpu->lora_adapters = NULL;
    cpu->lora_done = NULL;
    cpu->lora_sums = NULL;
    cpu->lora_groups = NULL;
    cpu->lora_tiles = NULL;
}

/* ---- a step ---- */

static float *sums_of(const struct cpu_lora_work *work, int row)
{
    return work->cpu->lora_sums + (size_t)row * (size_t)work->cpu->lora_rank;
}

/* The group that a row with this adapter joins: each adapter has at most one group with room in a
 * tile. */
static struct lora_group *find_group(struct cpu_lora_work *work, int first, const struct lora *lora)
{
    struct lora_group *groups = work->cpu->lora_groups;
    for (int i = work->n_groups - 1; i >= first; i--) {
        if (groups[i].lora != lora)
            continue;
        if (groups[i].n < LORA_ROWS)
            return &groups[i];
        break;
    }
    groups[work->n_groups] = (struct lora_group){ .lora = lora };
    return &groups[work->n_groups++];
}

void cpu_lora_plan(struct cpu_lora_work *out, struct cpu_backend *cpu, const struct lora *const *loras,
                   const int32_t *adapters, const float *x, int n_rows, int n_tiles)
{
    *out = (struct cpu_lora_work){ .cpu = cpu, .x = x };
    for (int tile = 0; tile < n_tiles; tile++) {
        int64_t begin, end;
        team_range(n_rows, 1, tile, n_tiles, &begin, &end);
        int first = cpu->lora_tiles[tile] = out->n_groups;
        for (int r = (int)begin; r < end; r++) {
            const struct lora *lora = adapters[r] >= 0 ? loras[adapters[r]] : NULL;
            if (!lora)
                continue;
            assert(lora->rank <= cpu->lora_rank); /* else the lora was made after reserve() */
            out->rank = lora->rank > out->rank ? lora->rank : out->rank;
            struct lora_group *group = find_group(out, first, lora);
            group->rows[group->n++] = r;
        }
    }
    cpu->lora_tiles[n_tiles] = out->n_groups;
}

/* Ranges of sums, over all groups. */
void cpu_lora_down(const struct cpu_lora_work *work, int thread, int n_threads)
{
    const struct kernels *k = &work->cpu->kernels;
    int n_runs = (work->rank + RANKS - 1) / RANKS;
    int64_t begin, end;
    team_range((int64_t)work->n_groups * n_runs, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const struct lora_group *group = &work->cpu->lora_groups[i / n_runs];
        const struct lora *lora = group->lora;
        int first = (int)(i % n_runs) * RANKS, left = lora->rank - first;
        if (left <= 0)
            continue;
        size_t at = (size_t)first * (size_t)lora->n_in;
        const float *x[LORA_ROWS];
        float *sums[LORA_ROWS];
        for (int r = 0; r < group->n; r++) {
            x[r] = work->x + (size_t)group->rows[r] * (size_t)lora->n_in;
            sums[r] = sums_of(work, group->rows[r]) + first;
        }
        left = left < RANKS ? left : RANKS;
        if (lora->is_half)
            k->lora_down_half(sums, (const uint16_t *)lora->a + at, x, group->n, left, lora->n_in);
        else
            k->lora_down(sums, lora->a + at, x, group->n, left, lora->n_in);
    }
}

/* Scales n sums of a group's rows, from number first on. */
static void scale_sums(const struct cpu_lora_work *work, const struct lora_group *group, int first, int n,
                       float scaled[][SUMS])
{
    const float *scales = group->lora->scales + first;
    for (int r = 0; r < group->n; r++) {
        const float *sums = sums_of(work, group->rows[r]) + first;
        for (int i = 0; i < n; i++)
            scaled[r][i] = sums[i] * scales[i];
    }
}

static float *target_at(const struct cpu_lora_target *to, int row, int column)
{
    int i = row - to->row;
    return to->y + (size_t)(to->rows ? to->rows[i] : i) * to->stride + (column - to->column);
}

/* Columns first..last-1, all of one part, for one group's rows. */
static void up_part(const struct cpu_lora_work *work, const struct lora_group *group,
                    const struct lora_piece *part, const struct cpu_lora_target *to, int first, int last)
{
    const struct kernels *k = &work->cpu->kernels;
    float scaled[LORA_ROWS][SUMS];
    const float *t[LORA_ROWS];
    for (int r = 0; r < group->n; r++)
        t[r] = scaled[r];
    for (int done = 0, n_sums; done < part->rank; done += n_sums) {
        n_sums = part->rank - done < SUMS ? part->rank - done : SUMS;
        scale_sums(work, group, part->rank_begin + done, n_sums, scaled);
        for (int column = first, n; column < last; column += n) {
            int block = (column - part->out_begin) / COLUMNS, skipped = (column - part->out_begin) % COLUMNS;
            n = last - column < COLUMNS - skipped ? last - column : COLUMNS - skipped;
            float *y[LORA_ROWS];
            for (int r = 0; r < group->n; r++)
                y[r] = target_at(to, group->rows[r], column);
            size_t at = ((size_t)block * (size_t)part->rank + (size_t)done) * COLUMNS + (size_t)skipped;
            if (group->lora->is_half)
                k->lora_up_half(y, (const uint16_t *)part->b + at, COLUMNS, t, group->n, n_sums, n);
            else
                k->lora_up(y, part->b + at, COLUMNS, t, group->n, n_sums, n);
        }
    }
}

/* Intersects columns begin..end-1 with those of a part; false: none in common. */
static bool cut_to_part(const struct lora_piece *part, int *begin, int *end)
{
    if (*begin < part->out_begin)
        *begin = part->out_begin;
    if (*end > part->out_begin + part->n_out)
        *end = part->out_begin + part->n_out;
    return *begin < *end;
}

void cpu_lora_shift(const struct cpu_lora_work *work, int tile, const struct cpu_lora_target *to, int begin,
                    int end)
{
    const struct cpu_backend *cpu = work->cpu;
    for (int i = cpu->lora_tiles[tile]; i < cpu->lora_tiles[tile + 1]; i++) {
        const struct lora_group *group = &cpu->lora_groups[i];
        const float *factors = group->lora->factors, *shifts = group->lora->shifts;
        for (int r = 0; r < group->n; r++) {
            float *y = target_at(to, group->rows[r], begin);
            for (int k = 0; factors && k < end - begin; k++)
                y[k] *= factors[begin + k];
            for (int k = 0; shifts && k < end - begin; k++)
                y[k] += shifts[begin + k];
        }
    }
}

void cpu_lora_up(const struct cpu_lora_work *work, int tile, const struct cpu_lora_target *to, int begin,
                 int end)
{
    const struct cpu_backend *cpu = work->cpu;
    for (int i = cpu->lora_tiles[tile]; i < cpu->lora_tiles[tile + 1]; i++) {
        const struct lora_group *group = &cpu->lora_groups[i];
        for (int p = 0; p < group->lora->n_parts; p++) {
            int first = begin, last = end;
            if (cut_to_part(&group->lora->parts[p], &first, &last))
                up_part(work, group, &group->lora->parts[p], to, first, last);
        }
    }
}

void cpu_lora_prefetch(const struct cpu_lora_work *work, int begin, int end)
{
    enum { LINE = 64 };
    for (int i = 0; i < work->n_groups; i++) {
        const struct lora *lora = work->cpu->lora_groups[i].lora;
        if (i > 0 && lora == work->cpu->lora_groups[i - 1].lora)
            continue;
        for (int p = 0; p < lora->n_parts; p++) {
            const struct lora_piece *part = &lora->parts[p];
            size_t block_bytes = (size_t)part->rank * COLUMNS *
                                 (lora->is_half ? sizeof(uint16_t) : sizeof(float));
            int first = begin, last = end;
            if (!cut_to_part(part, &first, &last))
                continue;
            const uint8_t *b = (const uint8_t *)part->b;
            size_t from = (size_t)((first - part->out_begin) / COLUMNS) * block_bytes,
                   to = (size_t)((last - part->out_begin + COLUMNS - 1) / COLUMNS) * block_bytes;
            for (size_t at = from; at < to; at += LINE)
                __builtin_prefetch(b + at);
        }
    }
}
