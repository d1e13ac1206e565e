/* Linear layers: the input rows are packed in tiles once, then every thread takes pieces of the output columns and
 * runs them over all tiles, so that weights are read from memory once and tiles stay in the second cache. */
#include "backend/cpu.h"

#include <assert.h>
#include <string.h>

enum { PIECE_BYTES = 384 * 1024 }; /* of weights: half of the second cache of current processors, or less */

struct linear_job {
    struct cpu_backend *cpu;
    const struct matrix *m;
    const float *x;
    float *y;
    int n_rows, n_tiles, piece;
    bool is_glu;
};

/* n_rows over the tiles as evenly as can be: 17 rows make tiles of 9 and 8, not of 16 and 1. */
static void tile_rows(const struct linear_job *job, int tile, int *begin, int *n)
{
    int64_t first, last;
    team_share(job->n_rows, 1, tile, job->n_tiles, &first, &last);
    *begin = (int)first;
    *n = (int)(last - first);
}

/* The packed tiles that the thread is to read. A single row is packed by each thread for itself: that takes less time
 * than to wait for one another. */
static const uint8_t *pack_input(const struct linear_job *job, int thread, int n_threads)
{
    struct cpu_backend *cpu = job->cpu;
    int n_in = job->m->n_in;
    tile_fn *pack = cpu->kernels.tile[job->m->dtype];
    if (job->n_rows == 1) {
        pack(cpu->scratch[thread].row, job->x, (size_t)n_in, 1, 0, n_in);
        return cpu->scratch[thread].row;
    }
    int64_t begin, end;
    team_share(n_in, 2 * BLOCK, thread, n_threads, &begin, &end);
    for (int tile = 0; tile < job->n_tiles && begin < end; tile++) {
        int row, n;
        tile_rows(job, tile, &row, &n);
        pack(cpu->activations + (size_t)tile * cpu->tile_bytes, job->x + (size_t)row * (size_t)n_in,
             (size_t)n_in, n, (int)begin, (int)end);
    }
    team_barrier(cpu->team);
    return cpu->activations;
}

static void add_bias(float *tile, const float *bias, int n_panels, int n)
{
    for (int p = 0; p < n_panels; p++, bias += PANEL_ROWS)
        for (int r = 0; r < n; r++, tile += PANEL_ROWS)
            for (int i = 0; i < PANEL_ROWS; i++)
                tile[i] += bias[i];
}

/* tile: [n rows][16] of the output columns from column on; y: the first row of the tile. */
static void store(float *y, int n_columns, int column, const float *tile, int n)
{
    size_t n_here = (size_t)(n_columns - column < PANEL_ROWS ? n_columns - column : PANEL_ROWS);
    for (int r = 0; r < n; r++)
        memcpy(y + (size_t)r * (size_t)n_columns + (size_t)column, tile + r * PANEL_ROWS, n_here * sizeof *y);
}

/* Panels begin..end-1 over one tile. */
static void run_piece(const struct linear_job *job, float *out, const uint8_t *input, int tile, int begin,
                      int end)
{
    const struct matrix *m = job->m;
    const struct kernels *k = &job->cpu->kernels;
    int row, n;
    tile_rows(job, tile, &row, &n);
    k->linear[m->dtype](out, m->panels + (size_t)begin * m->panel_bytes, end - begin,
                        input + (size_t)tile * job->cpu->tile_bytes, n, m->n_in, tile == 0);
    if (m->bias)
        add_bias(out, m->bias + (size_t)begin * PANEL_ROWS, end - begin, n);
    size_t panel = (size_t)n * PANEL_ROWS;
    if (!job->is_glu) {
        for (int p = begin; p < end; p++, out += panel)
            store(job->y + (size_t)row * (size_t)m->n_out, m->n_out, p * PANEL_ROWS, out, n);
        return;
    }
    for (int p = begin; p < end; p += 2, out += 2 * panel) {
        k->silu_mul(out, out, out + panel, (int64_t)panel);
        store(job->y + (size_t)row * (size_t)(m->n_out / 2), m->n_out / 2, p / 2 * PANEL_ROWS, out, n);
    }
}

/* Takes panels of a share: pieces that grow smaller towards its end, so that the threads end together. */
static bool take(const struct linear_job *job, struct cpu_share *share, int *begin, int *end)
{
    int left = share->end - atomic_load_explicit(&share->next, memory_order_relaxed);
    int piece = left / 8 * 2;
    piece = piece < 2 ? 2 : piece > job->piece ? job->piece : piece;
    if (left <= 0)
        return false;
    *begin = atomic_fetch_add_explicit(&share->next, piece, memory_order_relaxed);
    *end = *begin + piece < share->end ? *begin + piece : share->end;
    return *begin < *end;
}

static void linear_some(void *arg, int thread, int n_threads)
{
    struct linear_job *job = arg;
    const uint8_t *input = pack_input(job, thread, n_threads);
    for (int i = 0; i < n_threads; i++) {
        struct cpu_share *share = &job->cpu->shares[(thread + i) % n_threads];
        int begin, end;
        while (take(job, share, &begin, &end))
            for (int tile = 0; tile < job->n_tiles; tile++)
                run_piece(job, job->cpu->scratch[thread].tile, input, tile, begin, end);
    }
}

static void run(struct linear_job *job)
{
    if (job->n_rows == 0)
        return;
    assert(job->n_rows <= job->cpu->max_rows);
    int n_threads = team_n_threads(job->cpu->team);
    int piece = (int)(PIECE_BYTES / job->m->panel_bytes) / 2 * 2;
    job->piece = piece < 2 ? 2 : piece > LINEAR_PIECE ? LINEAR_PIECE : piece;
    job->n_tiles = (job->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    assert((size_t)job->n_tiles * job->cpu->tile_bytes <=
           job->cpu->activation_bytes); /* else made after reserve() */
    for (int t = 0; t < n_threads; t++) {
        int64_t begin, end;
        team_share(job->m->n_panels, 2, t, n_threads, &begin, &end);
        atomic_store_explicit(&job->cpu->shares[t].next, (int)begin, memory_order_relaxed);
        job->cpu->shares[t].end = (int)end;
    }
    team_run(job->cpu->team, linear_some, job);
}

void cpu_linear(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows)
{
    assert(!m->is_gate_up);
    run(&(struct linear_job){ .cpu = cpu_of(be), .m = m, .x = x, .y = y, .n_rows = n_rows });
}

void cpu_linear_glu(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows,
                    enum activation act)
{
    assert(m->is_gate_up && act == ACT_SILU);
    (void)act;
    run(&(struct linear_job){ .cpu = cpu_of(be), .m = m, .x = x, .y = y, .n_rows = n_rows, .is_glu = true });
}
