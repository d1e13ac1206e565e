/* A mixture of experts: each row uses a few of many matrices. Rows that use the same expert run
 * together, so its weights are read once. Work is divided over the threads by expert and panel:
 * many small experts then give every thread as much to do as one large matrix.
 *
 * A row's result is summed in the order of its experts' ids, and the bits of each product depend
 * only on the row (kernels.h). So the batch does not change them. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/memory.h"
#include "kernels/input_block.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PACK_COLUMNS = 512 }; /* columns of a tile that a thread packs at a time */

/* Consecutive entries of one expert, which are multiplied together. */
struct expert_tile {
    int expert, begin, n;
    size_t offset; /* of the packed tile, bytes */
};

struct experts_job {
    struct cpu_backend *cpu;
    const struct expert_layer *layer;
    const float *x;
    float *scores, *y;
    int n_rows, n_scores; /* scores of a row */
    int n_used, n_tiles;
};

void cpu_experts_widen(struct cpu_experts *e, const struct matrix *m, int n_chosen)
{
    int n_columns = m->is_gate_up ? m->n_out / 2 : m->n_out;
    int *width = m->is_gate_up ? &e->n_ff : &e->n_wide;
    size_t row = tile_bytes(m->dtype, 1, m->n_in);
    assert(n_chosen >= 1 && n_chosen <= m->n_experts);
    *width = n_columns > *width ? n_columns : *width;
    if (m->is_gate_up)
        e->n_wide = m->n_in > e->n_wide ? m->n_in : e->n_wide;
    e->n_experts = m->n_experts > e->n_experts ? m->n_experts : e->n_experts;
    e->n_chosen = n_chosen > e->n_chosen ? n_chosen : e->n_chosen;
    e->row_bytes = row > e->row_bytes ? row : e->row_bytes;
}

bool cpu_experts_reserve(struct cpu_backend *cpu, int max_rows)
{
    struct cpu_experts *e = &cpu->experts;
    size_t n_entries, n_experts = (size_t)e->n_experts;
    if (e->n_experts == 0)
        return true;
    if (__builtin_mul_overflow((size_t)max_rows, (size_t)e->n_chosen, &n_entries) ||
        __builtin_mul_overflow(n_entries, (size_t)e->n_ff * sizeof(float), &e->hidden_bytes) ||
        __builtin_mul_overflow(n_entries, (size_t)e->n_wide * sizeof(float), &e->wide_bytes) ||
        __builtin_mul_overflow(n_entries, e->row_bytes, &e->packed_bytes))
        return false;
    e->ids = calloc(n_entries, sizeof *e->ids);
    e->weights = calloc(n_entries, sizeof *e->weights);
    e->places = calloc(n_entries, sizeof *e->places);
    e->rows = calloc(n_entries, sizeof *e->rows);
    e->n_rows_of = calloc(n_experts, sizeof *e->n_rows_of);
    e->used = calloc(n_experts, sizeof *e->used);
    e->first_tile = calloc(n_experts + 1, sizeof *e->first_tile);
    e->tiles = calloc(n_entries, sizeof *e->tiles);
    e->hidden = cpu_memory_shared(cpu, e->hidden_bytes);
    e->wide = cpu_memory_shared(cpu, e->wide_bytes);
    e->packed = cpu_memory_shared(cpu, e->packed_bytes);
    return e->ids && e->weights && e->places && e->rows && e->n_rows_of && e->used && e->first_tile &&
           e->tiles && e->hidden && e->wide && e->packed;
}

void cpu_experts_release(struct cpu_experts *e)
{
    free(e->ids);
    free(e->weights);
    free(e->places);
    free(e->rows);
    free(e->n_rows_of);
    free(e->used);
    free(e->first_tile);
    free(e->tiles);
    memory_free(e->hidden, e->hidden_bytes);
    memory_free(e->wide, e->wide_bytes);
    memory_free(e->packed, e->packed_bytes);
    *e = (struct cpu_experts){ .n_experts = e->n_experts,
                               .n_chosen = e->n_chosen,
                               .n_ff = e->n_ff,
                               .n_wide = e->n_wide,
                               .row_bytes = e->row_bytes,
                               .n_read = e->n_read };
}

uint64_t cpu_expert_bytes(const struct backend *be)
{
    return ((const struct cpu_backend *)be)->experts.n_read;
}

static void route_some(void *arg, int thread, int n_threads)
{
    const struct experts_job *job = arg;
    const struct cpu_experts *e = &job->cpu->experts;
    const struct routing *routing = job->layer->routing;
    size_t n = (size_t)routing->n_experts;
    int node = team_node_of(job->cpu->team, thread);
    const float *bias = cpu_constants(job->layer->bias, n, node);
    const float *factors = cpu_constants(job->layer->factors, n, node);
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        route_row(&job->cpu->kernels, routing, bias, factors, job->scores + r * job->n_scores,
                  e->ids + r * routing->n_chosen, e->weights + r * routing->n_chosen);
}

/* Orders the choices of all rows by expert, and cuts those of each expert into tiles of equal
 * size. */
static void group_rows(struct experts_job *job)
{
    struct cpu_experts *e = &job->cpu->experts;
    const struct matrix *up = job->layer->gate_up, *down = job->layer->down;
    int n_chosen = job->layer->routing->n_chosen, n_choices = job->n_rows * n_chosen, n_entries = 0;
    int most = cpu_most_rows(up) < cpu_most_rows(down) ? cpu_most_rows(up) : cpu_most_rows(down);
    size_t row_bytes = tile_bytes(up->dtype, 1, up->n_in),
           down_bytes = tile_bytes(down->dtype, 1, down->n_in);
    row_bytes = row_bytes > down_bytes ? row_bytes : down_bytes;
    memset(e->n_rows_of, 0, (size_t)up->n_experts * sizeof *e->n_rows_of);
    for (int i = 0; i < n_choices; i++)
        e->n_rows_of[e->ids[i]]++;
    job->n_used = job->n_tiles = 0;
    for (int expert = 0; expert < up->n_experts; expert++) {
        int n = e->n_rows_of[expert], n_tiles = (n + most - 1) / most;
        if (n == 0)
            continue;
        e->used[job->n_used] = expert;
        e->first_tile[job->n_used++] = job->n_tiles;
        for (int i = 0; i < n_tiles; i++) {
            int64_t begin, end;
            team_range(n, 1, i, n_tiles, &begin, &end);
            e->tiles[job->n_tiles++] = (struct expert_tile){ .expert = expert,
                                                             .begin = n_entries + (int)begin,
                                                             .n = (int)(end - begin),
                                                             .offset = (size_t)(n_entries + begin) *
                                                                       row_bytes };
        }
        e->n_rows_of[expert] = n_entries; /* from here on: its next entry */
        n_entries += n;
    }
    e->first_tile[job->n_used] = job->n_tiles;
    for (int i = 0; i < n_choices; i++) {
        e->places[i] = e->n_rows_of[e->ids[i]]++;
        e->rows[e->places[i]] = i / n_chosen;
    }
}

/* ---- products ---- */

/* One of the two products of all entries. */
struct phase {
    struct experts_job *job;
    const struct matrix *m;
    glu_fn *glu; /* NULL: of down */
    float *x;    /* [entries][n_in] */
    float *y;    /* [entries][n_columns] */
    int n_columns, piece;
    bool gathers;   /* x is filled with the entries' rows first */
    bool quantizes; /* instead with all rows, each a tile by itself (input_block.h), to be copied */
};

/* Rows are quantized once for all of their experts. */
static void quantize_some(void *arg, int thread, int n_threads)
{
    const struct phase *p = arg;
    const struct experts_job *job = p->job;
    size_t n_in = (size_t)p->m->n_in, row_bytes = tile_bytes(p->m->dtype, 1, p->m->n_in);
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        job->cpu->kernels.tile[p->m->dtype]((uint8_t *)p->x + (size_t)r * row_bytes,
                                            job->x + (size_t)r * n_in, n_in, 1, 0, p->m->n_in);
}

/* Columns of a tile, copied from the rows that quantize_some() made. */
static void copy_quantized(const struct phase *p, const struct expert_tile *tile, int begin, int end)
{
    enum { ROW_BYTES = sizeof(struct input_row), BLOCK_BYTES = BLOCK + ROW_BYTES }; /* of one row and block */
    const struct cpu_experts *e = &p->job->cpu->experts;
    size_t n = (size_t)tile->n, row_bytes = tile_bytes(p->m->dtype, 1, p->m->n_in);
    for (size_t r = 0; r < n; r++) {
        const uint8_t *from = (const uint8_t *)p->x + (size_t)e->rows[tile->begin + (int)r] * row_bytes;
        for (size_t b = (size_t)(begin / BLOCK); b < (size_t)(end / BLOCK); b++) {
            uint8_t *to = e->packed + tile->offset + b * n * BLOCK_BYTES;
            memcpy(to + r * BLOCK, from + b * BLOCK_BYTES, BLOCK);
            memcpy(to + n * BLOCK + r * ROW_BYTES, from + b * BLOCK_BYTES + BLOCK, ROW_BYTES);
        }
    }
}

/* Packs a piece of the columns of each tile; with gathers it first copies them, unless the matrix has an
 * order, which takes columns from anywhere in a row. */
static void cpu_experts_pack_some(void *arg, int thread, int n_threads)
{
    const struct phase *p = arg;
    const struct experts_job *job = p->job;
    const struct cpu_experts *e = &job->cpu->experts;
    size_t n_in = (size_t)p->m->n_in;
    int n_pieces = (p->m->n_in + PACK_COLUMNS - 1) / PACK_COLUMNS;
    int64_t first, last;
    team_range((int64_t)job->n_tiles * n_pieces, 1, thread, n_threads, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct expert_tile *tile = &e->tiles[i / n_pieces];
        int begin = (int)(i % n_pieces) * PACK_COLUMNS;
        int end = begin + PACK_COLUMNS < p->m->n_in ? begin + PACK_COLUMNS : p->m->n_in;
        float *x = p->x + (size_t)tile->begin * n_in;
        if (p->quantizes) {
            copy_quantized(p, tile, begin, end);
            continue;
        }
        struct cpu_packing packing = { .cpu = job->cpu,
                                       .m = p->m,
                                       .expert = tile->expert,
                                       .tile = e->packed + tile->offset,
                                       .x = x,
                                       .n = tile->n };
        if (p->gathers && p->m->order) {
            packing.x = job->x;
            packing.rows = e->rows + tile->begin;
        }
        for (int r = 0; p->gathers && !p->m->order && r < tile->n; r++)
            memcpy(x + (size_t)r * n_in + begin, job->x + (size_t)e->rows[tile->begin + r] * n_in + begin,
                   (size_t)(end - begin) * sizeof *x);
        cpu_pack_columns(&packing, thread, begin, end);
    }
}

/* Of a single row each thread packs the input for itself: that takes less time than another
 * team_run(). packed: the row that is in the thread's scratch memory, or where the columns have an order, the
 * order; NULL: none. */
static const uint8_t *cpu_experts_input_of(const struct phase *p, const struct expert_tile *tile, int thread,
                                           const void **packed)
{
    const struct cpu_backend *cpu = p->job->cpu;
    if (p->job->n_rows > 1)
        return cpu->experts.packed + tile->offset;
    const float *row = p->gathers ? p->job->x : p->x + (size_t)tile->begin * (size_t)p->m->n_in;
    const uint16_t *order = p->gathers || p->m->order_stride > 0 ? cpu_matrix_order(p->m, tile->expert)
                                                                 : NULL;
    const void *key = order ? (const void *)order : row;
    const struct cpu_packing packing = {
        .cpu = cpu, .m = p->m, .expert = tile->expert, .tile = cpu->scratch[thread].row, .x = row, .n = 1
    };
    if (*packed != key)
        cpu_pack_columns(&packing, thread, 0, p->m->n_in);
    *packed = key;
    return packing.tile;
}

/* Panels begin to end - 1 of an expert, for all of its tiles. used: its index in e->used. */
static void run_piece(const struct phase *p, int used, int begin, int end, int thread, const void **packed)
{
    const struct cpu_experts *e = &p->job->cpu->experts;
    for (int t = e->first_tile[used]; t < e->first_tile[used + 1]; t++) {
        const struct expert_tile *tile = &e->tiles[t];
        struct cpu_product product = { .cpu = p->job->cpu,
                                       .m = p->m,
                                       .expert = tile->expert,
                                       .glu = p->glu,
                                       .input = cpu_experts_input_of(p, tile, thread, packed),
                                       .n = tile->n,
                                       .y = p->y + (size_t)tile->begin * (size_t)p->n_columns,
                                       .n_columns = p->n_columns };
        cpu_product_run(&product, p->job->cpu->scratch[thread].out, begin, end);
    }
}

static void multiply_some(void *arg, int thread, int n_threads)
{
    const struct phase *p = arg;
    const void *packed = NULL;
    for (int i = 0; i < n_threads; i++) {
        int owner = cpu_share_of(p->job->cpu, thread, i), node = team_node_of(p->job->cpu->team, owner);
        int first = p->m->node_begin[node], n_panels = cpu_node_panels(p->m, node), begin, end;
        while (cpu_share_take(&p->job->cpu->shares[owner], p->piece, &begin, &end)) {
            for (int n; begin < end; begin += n) { /* a piece may begin in one expert and end in the next */
                int panel = begin % n_panels, left = n_panels - panel;
                n = end - begin < left ? end - begin : left;
                run_piece(p, begin / n_panels, first + panel, first + panel + n, thread, &packed);
            }
        }
    }
}

static void run_phase(struct phase *p)
{
    struct cpu_backend *cpu = p->job->cpu;
    p->piece = cpu_most_panels(p->m);
    cpu_share_panels(cpu, p->m, p->job->n_used);
    p->quantizes = p->gathers && !p->m->order && dtype_is_integers(p->m->dtype);
    if (p->job->n_rows > 1 && p->quantizes)
        team_run(cpu->team, quantize_some, p);
    if (p->job->n_rows > 1)
        team_run(cpu->team, cpu_experts_pack_some, p);
    team_run(cpu->team, multiply_some, p);
    cpu->experts.n_read += (uint64_t)p->job->n_used * (uint64_t)p->m->n_panels * p->m->panel_bytes;
}

/* ---- sums ---- */

static void sum_some(void *arg, int thread, int n_threads)
{
    const struct experts_job *job = arg;
    const struct cpu_experts *e = &job->cpu->experts;
    const struct expert_layer *layer = job->layer;
    int n = layer->down->n_out, n_chosen = layer->routing->n_chosen;
    int64_t begin, end;
    team_range(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *y = job->y + r * n;
        if (!layer->has_base)
            memset(y, 0, (size_t)n * sizeof *y);
        if (layer->gates_base) {
            float gate = route_sigmoid(job->scores[r * job->n_scores + layer->routing->n_experts]);
            job->cpu->kernels.scale(y, y, gate, n);
        }
        for (int64_t c = r * n_chosen; c < (r + 1) * n_chosen; c++)
            job->cpu->kernels.scale_add(y, e->wide + (size_t)e->places[c] * (size_t)n, e->weights[c], y, n);
    }
}

static void run_rows(struct experts_job *job, team_fn *fn)
{
    if (job->n_rows == 1)
        fn(job, 0, 1);
    else
        team_run(job->cpu->team, fn, job);
}

void cpu_experts(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                 struct floats scores, int n_rows)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct cpu_experts *e = &cpu->experts;
    const struct matrix *up = layer->gate_up, *down = layer->down;
    int n_scores = layer->routing->n_experts + (layer->gates_base ? 1 : 0);
    struct experts_job job = { .cpu = cpu,
                               .layer = layer,
                               .x = cpu_rows(x, n_rows, up->n_in),
                               .scores = cpu_rows(scores, n_rows, n_scores),
                               .y = cpu_rows(y, n_rows, down->n_out),
                               .n_rows = n_rows,
                               .n_scores = n_scores };
    if (n_rows == 0)
        return;
    assert(n_rows <= cpu->max_rows && up->is_gate_up && up->n_experts == layer->routing->n_experts &&
           down->n_experts == up->n_experts && down->n_in == up->n_out / 2);
    run_rows(&job, route_some);
    group_rows(&job);
    struct phase first = { .job = &job,
                           .m = up,
                           .glu = cpu_glu(&cpu->kernels, layer->activation),
                           .x = e->wide,
                           .y = e->hidden,
                           .n_columns = down->n_in,
                           .gathers = true };
    struct phase second = { .job = &job, .m = down, .x = e->hidden, .y = e->wide, .n_columns = down->n_out };
    run_phase(&first);
    run_phase(&second);
    run_rows(&job, sum_some);
}
