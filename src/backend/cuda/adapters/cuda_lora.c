/* What adapters change of linear layers. The product of all rows is computed first, then each row's change is added; gate
 * and up are kept as they are in between, since the activation needs the changed ones. */
#include "backend/cuda/adapters/cuda_lora.h"
#include "backend/cuda/adapters/lora_pack.h"
#include "backend/cuda/cuda_matrix.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_ROWS = 64,       /* rows that the scratch memory has room for at least, and a bucket of rows */
    RAW_FLOATS = 32 << 20, /* of the scratch memory for all rows: more rows are computed in pieces */
    N_MATRICES = LORA_TABLE + 1, /* that rows of a step may use */
    THREADS = 256,
};

struct lora {
    int n_in, n_out, rank;
    bool has_change;       /* besides the matrix */
    struct matrix *matrix; /* used instead of the model's; NULL: none */
    uint8_t *card;         /* begins with its struct lora_change */
    size_t n_bytes;
    uint64_t sum;
};

/* What the adapters of a backend need at most, and the scratch memory for it, all of it by rows of a step. */
struct cuda_loras {
    int rank, n_out; /* of all adapters' changes */
    int own_in;      /* of those with a matrix of their own; 0: there is none */
    int max_rows, raw_rows;
    float *sums;                /* [max_rows][rank] */
    struct buffer raw;          /* [raw_rows][n_out]: products that are not yet changed */
    struct buffer own_x, own_y; /* [raw_rows][own_in], [raw_rows][n_out]: rows of one matrix */
    int32_t *rows;              /* [max_rows]: of one matrix */
};

/* ---- making ---- */

static struct cuda_loras *loras_of(struct cuda_backend *cuda)
{
    if (!cuda->loras)
        cuda->loras = calloc(1, sizeof *cuda->loras);
    return cuda->loras;
}

static bool copy_to_card(struct cuda_backend *cuda, struct lora *lora, const struct lora_source *source)
{
    size_t n = lora_pack(NULL, NULL, source);
    uint8_t *host = calloc(1, n);
    lora->card = cuda_memory_new(cuda, n);
    bool has_all = host && lora->card;
    if (has_all) {
        lora_pack(host, lora->card, source);
        cuda_copy_in(cuda, lora->card, host, n);
        lora->sum = lora_hash(host, n, source);
        lora->n_bytes = n;
    }
    free(host);
    return has_all;
}

static void grow_to(int *most, int n)
{
    *most = n > *most ? n : *most;
}

enum tutti_status cuda_lora_new(struct backend *be, struct lora **out, const struct lora_source *source,
                                struct tutti_error *err)
{
    assert(source->type == DTYPE_F32 || source->type == DTYPE_F16);
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_loras *all = loras_of(cuda);
    struct lora *lora = calloc(1, sizeof *lora);
    if (!all || !lora) {
        free(lora);
        be->ops->matrix_free(be, source->matrix);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory");
    }
    lora->n_in = source->n_in;
    lora->n_out = source->n_out;
    lora->matrix = source->matrix;
    lora->has_change = source->n_parts > 0 || source->factors || source->shifts;
    for (int i = 0; i < source->n_parts; i++)
        lora->rank += source->parts[i].rank;
    if (!copy_to_card(cuda, lora, source)) {
        cuda_lora_free(be, lora);
        return error_set(err, TUTTI_E_MEMORY, "adapter: out of memory on the card");
    }
    (void)cuda_need(cuda, CUDA_KERNEL_lora_rows, CUDA_NEED_FILE);
    enum tutti_status st = cuda_check(cuda, err);
    if (st != TUTTI_OK) {
        cuda_lora_free(be, lora);
        return st;
    }
    grow_to(&all->rank, lora->rank);
    grow_to(&all->n_out, lora->n_out);
    if (lora->matrix) {
        lora->n_bytes += be->ops->matrix_bytes(lora->matrix);
        grow_to(&all->own_in, lora->n_in);
    }
    *out = lora;
    return TUTTI_OK;
}

void cuda_lora_free(struct backend *be, struct lora *lora)
{
    if (!lora)
        return;
    be->ops->matrix_free(be, lora->matrix);
    cuda_memory_free(cuda_of(be), lora->card);
    free(lora);
}

size_t cuda_lora_bytes(const struct backend *be, const struct lora *lora)
{
    (void)be;
    return lora->n_bytes;
}

uint64_t cuda_lora_checksum(struct backend *be, const struct lora *lora)
{
    uint64_t sum = lora->matrix ? be->ops->matrix_checksum(be, lora->matrix) : 0;
    return hash64(sum, &lora->sum, sizeof lora->sum);
}

/* ---- scratch memory ---- */

static bool new_rows(struct cuda_backend *cuda, struct buffer *buffer, int n_rows, int n)
{
    buffer->n_floats = (size_t)n_rows * (size_t)n;
    buffer->data = cuda_memory_new(cuda, buffer->n_floats * sizeof(float));
    return buffer->data;
}

static void free_scratch(struct cuda_backend *cuda, struct cuda_loras *all)
{
    cuda_memory_free(cuda, all->sums);
    cuda_memory_free(cuda, all->raw.data);
    cuda_memory_free(cuda, all->own_x.data);
    cuda_memory_free(cuda, all->own_y.data);
    free(all->rows);
    *all = (struct cuda_loras){ .rank = all->rank, .n_out = all->n_out, .own_in = all->own_in };
}

bool cuda_lora_reserve(struct cuda_backend *cuda, int max_rows)
{
    struct cuda_loras *all = cuda->loras;
    if (!all)
        return true;
    free_scratch(cuda, all);
    int n_fit = all->n_out > 0 ? RAW_FLOATS / all->n_out / LEAST_ROWS * LEAST_ROWS : LEAST_ROWS;
    all->max_rows = max_rows;
    all->raw_rows = n_fit < LEAST_ROWS ? LEAST_ROWS : n_fit;
    all->raw_rows = all->raw_rows < max_rows ? all->raw_rows : max_rows;
    all->rows = calloc((size_t)max_rows, sizeof *all->rows);
    all->sums = cuda_memory_new(cuda, (size_t)max_rows * (size_t)(all->rank + 1) * sizeof *all->sums);
    bool has_all = all->rows && all->sums && new_rows(cuda, &all->raw, all->raw_rows, all->n_out);
    if (all->own_in > 0)
        has_all = has_all && new_rows(cuda, &all->own_x, all->raw_rows, all->own_in) &&
                  new_rows(cuda, &all->own_y, all->raw_rows, all->n_out);
    return has_all;
}

void cuda_lora_release(struct cuda_backend *cuda)
{
    if (!cuda->loras)
        return;
    free_scratch(cuda, cuda->loras);
    free(cuda->loras);
    cuda->loras = NULL;
}

/* ---- a step ---- */

/* A linear layer with adapters. */
struct adapted {
    struct cuda_backend *cuda;
    const struct matrix *m;
    const struct lora *const *loras;
    const int32_t *adapters; /* host */
    struct floats x, y;
    int n_rows, n_in, n_out;
    bool has_change, has_matrix;
    const void *changes;          /* card: table of struct lora_change */
    const int32_t *card_adapters; /* [padded rows] */
};

static const struct lora *lora_of(const struct adapted *job, int row)
{
    return job->adapters[row] >= 0 ? job->loras[job->adapters[row]] : NULL;
}

/* Finds what the rows' adapters change. False: nothing. */
static bool plan(struct adapted *job)
{
    struct adapter_table *table = NULL;
    for (int r = 0; r < job->n_rows; r++) {
        const struct lora *lora = lora_of(job, r);
        if (lora) {
            job->n_in = lora->n_in;
            job->n_out = lora->n_out;
            job->has_change = job->has_change || lora->has_change;
            job->has_matrix = job->has_matrix || lora->matrix;
        }
        if (job->adapters[r] < 0 || (r > 0 && job->adapters[r] == job->adapters[r - 1]))
            continue;
        table = table ? table : cuda_adapters_table(job->cuda, job->loras);
        assert(table && job->cuda->loras); /* else reserve() was not called after lora_new() */
        cuda_adapters_set(table, job->adapters[r], lora ? lora->card : NULL);
    }
    if (job->has_change || job->has_matrix) {
        job->changes = cuda_adapters_send(job->cuda, table);
        job->card_adapters = cuda_adapters_rows(job->cuda, job->adapters, job->n_rows);
    }
    return job->has_change || job->has_matrix;
}

static const struct matrix *matrix_of(const struct adapted *job, int row)
{
    const struct lora *lora = lora_of(job, row);
    return lora && lora->matrix ? lora->matrix : job->m;
}

static void move_rows(struct cuda_backend *cuda, const float *x, float *y, const int32_t *card_rows,
                      int n_rows, int n, bool scatters)
{
    struct lora_rows_args args = { 0 };
    args.rows = card_rows;
    args.x = x;
    args.y = y;
    args.n = n;
    args.scatters = scatters;
    cuda_launch(
        cuda, CUDA_KERNEL_lora_rows,
        (struct cuda_grid){ .x = n_rows, .y = (n + THREADS - 1) / THREADS, .z = 1, .n_threads = THREADS },
        &args, sizeof args);
}

/* The rows of begin to end - 1 that use matrix m, to the same rows of y, whose row 0 is begin. */
static void multiply_some(struct adapted *job, const struct matrix *m, float *y, int begin, int end)
{
    struct cuda_loras *all = job->cuda->loras;
    int n = 0;
    for (int r = begin; r < end; r++)
        if (matrix_of(job, r) == m)
            all->rows[n++] = r - begin;
    const int32_t *rows = cuda_adapters_rows(job->cuda, all->rows, n);
    int n_padded = cuda_padded_rows(job->cuda, n);
    const float *x = cuda_floats(job->x, 0) + (size_t)begin * (size_t)job->n_in;
    assert(n_padded <= all->raw_rows && job->n_in <= all->own_in);
    move_rows(job->cuda, x, all->own_x.data, rows, n_padded, job->n_in, false);
    cuda_linear_raw(job->cuda, all->own_y.data, m, all->own_x.data, n_padded);
    move_rows(job->cuda, all->own_y.data, y, rows, n_padded, job->n_out, true);
}

/* y, whose row 0 is begin, = the products of rows begin to end - 1 with the matrices that they use. */
static void multiply(struct adapted *job, float *y, int begin, int end)
{
    const struct matrix *done[N_MATRICES];
    int n_done = 0;
    bool has_one = true;
    for (int r = begin + 1; r < end; r++)
        has_one = has_one && matrix_of(job, r) == matrix_of(job, begin);
    if (has_one) {
        int n_padded = cuda_padded_rows(job->cuda, end - begin);
        const float *x = cuda_floats(job->x, (size_t)(begin + n_padded) * (size_t)job->n_in);
        cuda_linear_raw(job->cuda, y, matrix_of(job, begin), x + (size_t)begin * (size_t)job->n_in, n_padded);
        return;
    }
    for (int r = begin; r < end; r++) {
        const struct matrix *m = matrix_of(job, r);
        bool is_done = false;
        for (int i = 0; i < n_done; i++)
            is_done = is_done || done[i] == m;
        if (is_done)
            continue;
        done[n_done++] = m;
        multiply_some(job, m, y, begin, end);
    }
}

/* Sums of all rows for the changes. */
static void make_sums(const struct adapted *job)
{
    const struct cuda_loras *all = job->cuda->loras;
    struct lora_down_args args = { 0 };
    int n_rows = cuda_padded_rows(job->cuda, job->n_rows),
        n_tile = n_rows <= LORA_FEW_ROWS ? 1 : LORA_TILE_ROWS;
    int n_blocks = (all->rank + 7) / 8;
    args.changes = job->changes;
    args.adapters = job->card_adapters;
    args.x = cuda_floats(job->x, (size_t)n_rows * (size_t)job->n_in);
    args.sums = all->sums;
    args.n_rows = n_rows;
    args.n_in = job->n_in;
    args.max_rank = all->rank;
    assert(job->n_in % LORA_COLUMNS != 0 || (uintptr_t)args.x % 16 == 0);
    if (n_blocks > 0)
        cuda_launch(job->cuda, n_tile == 1 ? CUDA_KERNEL_lora_down_1 : CUDA_KERNEL_lora_down_8,
                    (struct cuda_grid){ .x = n_blocks < LORA_RANK_BLOCKS ? n_blocks : LORA_RANK_BLOCKS,
                                        .y = (n_rows + n_tile - 1) / n_tile,
                                        .z = 1,
                                        .n_threads = THREADS },
                    &args, sizeof args);
}

/* Changes y, of rows begin to end - 1; with raw: y = act(gate) * up of the changed raw. */
static void change_rows(const struct adapted *job, float *y, const float *raw, int begin, int end, int act)
{
    const struct cuda_loras *all = job->cuda->loras;
    struct lora_up_args args = { 0 };
    int n_tile = end - begin <= LORA_FEW_ROWS ? 1 : LORA_TILE_ROWS, n = raw ? job->n_out / 2 : job->n_out;
    enum cuda_kernel few = raw ? CUDA_KERNEL_lora_up_glu_1 : CUDA_KERNEL_lora_up_1;
    enum cuda_kernel many = raw ? CUDA_KERNEL_lora_up_glu_8 : CUDA_KERNEL_lora_up_8;
    args.changes = job->changes;
    args.adapters = job->card_adapters + begin;
    args.sums = all->sums + (size_t)begin * (size_t)all->rank;
    args.y = y;
    args.raw = raw;
    args.n_rows = end - begin;
    args.n_out = job->n_out;
    args.max_rank = all->rank;
    args.act = act;
    cuda_launch(job->cuda, n_tile == 1 ? few : many,
                (struct cuda_grid){ .x = (n + THREADS - 1) / THREADS,
                                    .y = (end - begin + n_tile - 1) / n_tile,
                                    .z = 1,
                                    .n_threads = THREADS },
                &args, sizeof args);
}

/* Rows are computed in pieces that fit into the scratch memory. A piece is a whole bucket, so that no padding is beyond the
 * rows of x; the last piece may begin within the one before it, whose rows get the same bits again. */
static int next_piece(const struct adapted *job, int done, int *begin)
{
    int room = job->cuda->loras->raw_rows;
    *begin = job->n_rows - done >= room || done == 0 ? done : job->n_rows - room;
    return job->n_rows - *begin < room ? job->n_rows - *begin : room;
}

void cuda_linear_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                         int n_rows, const struct lora *const *loras, const int32_t *adapters)
{
    struct adapted job = {
        .cuda = cuda_of(be), .m = m, .loras = loras, .adapters = adapters, .x = x, .y = y, .n_rows = n_rows
    };
    if (n_rows == 0)
        return;
    if (!plan(&job)) {
        be->ops->linear(be, y, m, x, n_rows);
        return;
    }
    if (job.has_matrix) {
        for (int done = 0, begin, n; done < n_rows; done = begin + n) {
            n = next_piece(&job, done, &begin);
            multiply(&job, cuda_floats(y, 0) + (size_t)begin * (size_t)job.n_out, begin, begin + n);
        }
    } else {
        be->ops->linear(be, y, m, x, n_rows);
    }
    if (!job.has_change)
        return;
    int n_padded = cuda_padded_rows(job.cuda, n_rows);
    make_sums(&job);
    change_rows(&job, cuda_floats(y, (size_t)n_padded * (size_t)job.n_out), NULL, 0, n_padded, 0);
}

void cuda_linear_glu_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                             int n_rows, enum activation act, const struct lora *const *loras,
                             const int32_t *adapters)
{
    struct adapted job = {
        .cuda = cuda_of(be), .m = m, .loras = loras, .adapters = adapters, .x = x, .y = y, .n_rows = n_rows
    };
    if (n_rows == 0)
        return;
    if (!plan(&job)) {
        be->ops->linear_glu(be, y, m, x, n_rows, act);
        return;
    }
    struct cuda_loras *all = job.cuda->loras;
    size_t n_ff = (size_t)job.n_out / 2;
    if (job.has_change)
        make_sums(&job);
    for (int done = 0, begin, n; done < n_rows; done = begin + n) {
        n = next_piece(&job, done, &begin);
        int n_padded = cuda_padded_rows(job.cuda, n);
        multiply(&job, all->raw.data, begin, begin + n);
        change_rows(&job, cuda_floats(y, 0) + (size_t)begin * n_ff, all->raw.data, begin, begin + n_padded,
                    (int)act);
    }
}
