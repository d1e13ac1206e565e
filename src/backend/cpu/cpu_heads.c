/* Products of each head's part of the rows with the head's own matrix: latent attention multiplies
 * queries and results by the up-projections of keys and values.
 *
 * The matrices of all heads are packed as one, row by row, so that a panel may have rows of two heads:
 * then it is computed for each of them. A thread takes a few panels of a head, packs the rows of that
 * head into its own tile, and computes the panels for them. */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <string.h>

enum {
    HEAD_TILE_BYTES = 256 * 1024, /* of packed input rows: they stay in the L2 cache */
    HEAD_PIECE = LINEAR_PIECE,    /* panels that a thread takes at a time, at most */
};

struct heads_job {
    struct cpu_backend *cpu;
    const struct matrix *m;
    const float *x;
    float *y;
    const struct head_rows *heads;
    int n_rows, tile_rows;
    int n_out;    /* of a head */
    int n_panels; /* that have rows of a head, at most */
    int piece, n_pieces;
};

size_t cpu_heads_scratch_bytes(const struct cpu_backend *cpu)
{
    bool has_any = false;
    for (int i = 0; i < cpu->n_kinds; i++)
        has_any = has_any || cpu->kinds[i].shape.n_latent > 0;
    size_t least = LEAST_TILE_ROWS * cpu->row_bytes;
    return !has_any ? 0 : least > HEAD_TILE_BYTES ? least : HEAD_TILE_BYTES;
}

/* Stores the rows of a head, of a panel. out: [2][half_rows(n)][16]. */
static void store_panel(const struct heads_job *job, const float *out, int panel, int head, int row, int n)
{
    int begin = head * job->n_out, end = begin + job->n_out;
    for (int half = 0; half < 2; half++, out += half_rows(n) * LANES) {
        int first = panel * PANEL_ROWS + half * LANES, from = first > begin ? first : begin;
        int to = first + LANES < end ? first + LANES : end;
        if (from >= to)
            continue;
        float *y = job->y + (size_t)row * (size_t)job->heads->y_row +
                   (size_t)head * (size_t)job->heads->y_head + (from - begin);
        for (int r = 0; r < n; r++, y += job->heads->y_row)
            memcpy(y, out + r * LANES + (from - first), (size_t)(to - from) * sizeof *y);
    }
}

/* Panels begin to end - 1 of the matrix for the rows of a head. */
static void run_panels(const struct heads_job *job, const struct cpu_scratch *scratch, int head, int begin,
                       int end)
{
    const struct matrix *m = job->m;
    const struct kernels *k = &job->cpu->kernels;
    for (int row = 0; row < job->n_rows; row += job->tile_rows) {
        int n = job->n_rows - row < job->tile_rows ? job->n_rows - row : job->tile_rows;
        const float *x = job->x + (size_t)row * (size_t)job->heads->x_row +
                         (size_t)head * (size_t)job->heads->x_head;
        k->tile[m->dtype](scratch->heads, x, (size_t)job->heads->x_row, n, 0, m->n_in);
        for (int panel = begin; panel < end; panel++) {
            k->linear[m->dtype](scratch->out, cpu_panel(m, 0, panel), scratch->heads, n, m->n_in);
            store_panel(job, scratch->out, panel, head, row, n);
        }
    }
}

static void heads_some(void *arg, int thread, int n_threads)
{
    struct heads_job *job = arg;
    for (int k = 0; k < n_threads; k++) {
        struct cpu_share *share = &job->cpu->shares[cpu_share_of(job->cpu, thread, k)];
        for (int i, next; cpu_share_take(share, 1, &i, &next);) {
            int head = i / job->n_pieces, first = head * job->n_out / PANEL_ROWS;
            int last = ((head + 1) * job->n_out + PANEL_ROWS - 1) / PANEL_ROWS; /* panels of the head */
            int begin = first + i % job->n_pieces * job->piece;
            int end = begin + job->piece < last ? begin + job->piece : last;
            if (begin < end)
                run_panels(job, &job->cpu->scratch[thread], head, begin, end);
        }
    }
}

void cpu_linear_heads(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                      int n_rows, const struct head_rows *heads)
{
    struct cpu_backend *cpu = cpu_of(be);
    if (n_rows == 0)
        return;
    assert(!m->is_gate_up && !m->bias && !m->order && m->n_out % heads->n_heads == 0);
    struct heads_job job = { .cpu = cpu,
                             .m = m,
                             .x = cpu_rows(x, n_rows, heads->x_row),
                             .y = cpu_rows(y, n_rows, heads->y_row),
                             .heads = heads,
                             .n_rows = n_rows,
                             .n_out = m->n_out / heads->n_heads };
    job.n_panels = (job.n_out - 1) / PANEL_ROWS + 2;
    int n_all = job.n_panels * heads->n_heads, most = n_all / (4 * team_n_threads(cpu->team));
    job.piece = most < 1 ? 1 : most > HEAD_PIECE ? HEAD_PIECE : most;
    job.n_pieces = (job.n_panels + job.piece - 1) / job.piece;
    int fitting = (int)(cpu_heads_scratch_bytes(cpu) / tile_bytes(m->dtype, 1, m->n_in));
    job.tile_rows = fitting < TILE_ROWS ? fitting : TILE_ROWS;
    assert(job.tile_rows > 0 && tile_bytes(m->dtype, job.tile_rows, m->n_in) <= cpu_heads_scratch_bytes(cpu));
    cpu_share_out(cpu, job.n_pieces * heads->n_heads);
    team_run(cpu->team, heads_some, &job);
}
