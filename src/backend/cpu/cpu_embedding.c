/* The embedding with what adapters change of it. */
#include "backend/cpu/cpu.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct embedding_update {
    int n_vocab, n_columns, n_ids, rank, n_virtual;
    struct matrix *table; /* NULL: the model's */
    int32_t *ids;         /* [n_ids], ascending */
    float *rows;          /* [n_ids][n_columns] */
    float *a;             /* [n_vocab][rank], with the scale */
    float *b;             /* [rank][n_columns] */
    float *virtual_rows;  /* [n_virtual][n_columns] */
};

void cpu_embedding_free(struct backend *be, struct embedding_update *u)
{
    if (!u)
        return;
    cpu_matrix_free(be, u->table);
    free(u->ids);
    free(u->rows);
    free(u->a);
    free(u->b);
    free(u->virtual_rows);
    free(u);
}

static float *copy_floats(const float *from, size_t n)
{
    float *to = malloc((n + 1) * sizeof *to);
    if (to && n > 0)
        memcpy(to, from, n * sizeof *to);
    return to;
}

/* to [n_columns][n_rows] = scale * from [n_rows][n_columns]. NULL: out of memory. */
static float *copy_transposed(const float *from, int n_rows, int n_columns, float scale)
{
    float *to = malloc(((size_t)n_rows * (size_t)n_columns + 1) * sizeof *to);
    for (int r = 0; to && r < n_rows; r++)
        for (int c = 0; c < n_columns; c++)
            to[(size_t)c * (size_t)n_rows + (size_t)r] = scale *
                                                         from[(size_t)r * (size_t)n_columns + (size_t)c];
    return to;
}

enum tutti_status cpu_embedding_new(struct backend *be, struct embedding_update **out,
                                    const struct embedding_source *source, struct tutti_error *err)
{
    struct embedding_update *u = calloc(1, sizeof *u);
    if (!u) {
        cpu_matrix_free(be, source->table);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    assert(!source->table ||
           (source->table->n_in == source->n_columns && source->table->n_out == source->n_vocab));
    size_t n = (size_t)source->n_columns;
    *u = (struct embedding_update){ .n_vocab = source->n_vocab,
                                    .n_columns = source->n_columns,
                                    .n_ids = source->n_ids,
                                    .rank = source->rank,
                                    .n_virtual = source->n_virtual,
                                    .table = source->table };
    u->ids = malloc(((size_t)u->n_ids + 1) * sizeof *u->ids);
    u->rows = copy_floats(source->rows, (size_t)u->n_ids * n);
    u->a = copy_transposed(source->a, u->rank, u->n_vocab, source->scale);
    u->b = copy_transposed(source->b, u->n_columns, u->rank, 1);
    u->virtual_rows = copy_floats(source->virtual_rows, (size_t)u->n_virtual * n);
    if (!u->ids || !u->rows || !u->a || !u->b || !u->virtual_rows) {
        cpu_embedding_free(be, u);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    if (u->n_ids > 0)
        memcpy(u->ids, source->ids, (size_t)u->n_ids * sizeof *u->ids);
    *out = u;
    return TUTTI_OK;
}

/* The floats of its arrays. */
static size_t count_floats(const struct embedding_update *u)
{
    size_t n = (size_t)u->n_columns;
    return ((size_t)u->n_ids + (size_t)u->n_virtual + (size_t)u->rank) * n +
           (size_t)u->rank * (size_t)u->n_vocab;
}

size_t cpu_embedding_bytes(const struct backend *be, const struct embedding_update *u)
{
    (void)be;
    return count_floats(u) * sizeof(float) + (size_t)u->n_ids * sizeof *u->ids +
           (u->table ? cpu_matrix_bytes(u->table) : 0);
}

uint64_t cpu_embedding_checksum(struct backend *be, const struct embedding_update *u)
{
    const int32_t shape[] = { u->n_vocab, u->n_columns, u->n_ids, u->rank, u->n_virtual };
    size_t n = (size_t)u->n_columns * sizeof(float);
    uint64_t sum = hash64(u->table ? cpu_matrix_checksum(be, u->table) : 0, shape, sizeof shape);
    sum = hash64(sum, u->ids, (size_t)u->n_ids * sizeof *u->ids);
    sum = hash64(sum, u->rows, (size_t)u->n_ids * n);
    sum = hash64(sum, u->a, (size_t)u->rank * (size_t)u->n_vocab * sizeof *u->a);
    sum = hash64(sum, u->b, (size_t)u->rank * n);
    return hash64(sum, u->virtual_rows, (size_t)u->n_virtual * n);
}

/* ---- a step ---- */

struct embed_job {
    const struct matrix *table;
    const struct step *step;
    float *x;
    int first_id;
    const struct embedding_update *const *updates; /* NULL: none */
    const int32_t *adapters;
};

/* The replaced row of an id; NULL: the adapter has none. */
static const float *find_row(const struct embedding_update *u, int32_t id)
{
    int first = 0, last = u->n_ids;
    while (first < last) {
        int middle = first + (last - first) / 2;
        if (u->ids[middle] < id)
            first = middle + 1;
        else
            last = middle;
    }
    return first < u->n_ids && u->ids[first] == id ? u->rows + (size_t)first * (size_t)u->n_columns : NULL;
}

static void embed_updated(float *x, const struct matrix *table, const struct embedding_update *u, int32_t id,
                          int position)
{
    size_t n = (size_t)u->n_columns;
    if (position < u->n_virtual) {
        memcpy(x, u->virtual_rows + (size_t)position * n, n * sizeof *x);
        return;
    }
    const float *row = find_row(u, id);
    if (row)
        memcpy(x, row, n * sizeof *x);
    else
        cpu_matrix_row(x, u->table ? u->table : table, id);
    for (int k = 0; k < u->rank; k++) {
        float factor = u->a[(size_t)id * (size_t)u->rank + (size_t)k];
        const float *b = u->b + (size_t)k * n;
        for (size_t i = 0; i < n; i++)
            x[i] += factor * b[i];
    }
}

static void embed_some(void *arg, int thread, int n_threads)
{
    const struct embed_job *job = arg;
    int64_t begin, end;
    team_range(job->step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int id = job->step->token_ids[r] - job->first_id, n = job->table->n_in;
        float *x = job->x + (size_t)r * (size_t)n;
        const struct embedding_update *u = job->updates && job->adapters[r] >= 0
                                               ? job->updates[job->adapters[r]]
                                               : NULL;
        if (u)
            embed_updated(x, job->table, u, id, job->step->positions[r]);
        else if (id >= 0 && id < job->table->n_out)
            cpu_matrix_row(x, job->table, id);
        else
            memset(x, 0, (size_t)n * sizeof *x);
    }
}

static void embed(struct backend *be, struct floats x, struct embed_job *job)
{
    struct cpu_backend *cpu = cpu_of(be);
    job->step = cpu->step;
    job->x = cpu_rows(x, cpu->step->n_rows, job->table->n_in);
    for (int r = 0; r < cpu->step->n_rows; r++) /* other ranks have the rest of the vocabulary */
        assert(cpu->step->token_ids[r] >= 0 && (cpu->cluster || cpu->step->token_ids[r] < job->table->n_out));
    team_run(cpu->team, embed_some, job);
}

void cpu_embed(struct backend *be, struct floats x, const struct matrix *table, int first_id)
{
    embed(be, x, &(struct embed_job){ .table = table, .first_id = first_id });
}

void cpu_embed_adapted(struct backend *be, struct floats x, const struct matrix *table,
                       const struct embedding_update *const *updates, const int32_t *adapters)
{
    embed(be, x, &(struct embed_job){ .table = table, .updates = updates, .adapters = adapters });
}
