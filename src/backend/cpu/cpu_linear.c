/* Linear layers: the input rows are packed in tiles once. Then each thread takes pieces of the
 * output columns and computes them for all tiles, so weights are read from memory once, and tiles
 * stay in the L2 or L3 cache. */
#include "backend/cpu/cpu.h"

#include "kernels/input_block.h"

#include <assert.h>
#include <string.h>

enum {
    PIECE_BYTES = 320 * 1024,      /* of weights: they stay in the L2 cache for all tiles */
    FLOAT_TILE_BYTES = 700 * 1024, /* of inputs of float weights: they stay in the L2 cache */
    PREFETCH_ROWS = 3,             /* rows prefetched for writing */
};

struct linear_job {
    struct cpu_backend *cpu;
    const struct matrix *m;
    const float *x;
    float *y;
    const int32_t *rows; /* [n_rows]: of y; NULL: 0 to n_rows - 1 */
    int n_rows, n_tiles, piece;
    size_t tile_stride;               /* bytes */
    glu_fn *glu;                      /* joins gate and up; NULL: the matrix has no gate */
    const struct cpu_lora_work *lora; /* NULL: no row has an adapter */
};

/* Distributes n_rows evenly over the tiles: 17 rows make tiles of 9 and 8, not of 16 and 1. */
static void tile_rows(const struct linear_job *job, int tile, int *begin, int *n)
{
    int64_t first, last;
    team_range(job->n_rows, 1, tile, job->n_tiles, &first, &last);
    *begin = (int)first;
    *n = (int)(last - first);
}

/* In pieces: a tile of integers is one block of columns after the other (input_block.h). */
void cpu_pack_columns(const struct cpu_packing *p, int thread, int begin, int end)
{
    const struct matrix *m = p->m;
    tile_fn *pack = p->cpu->kernels.tile[m->dtype];
    size_t n_in = (size_t)m->n_in, block_bytes = (size_t)p->n * (BLOCK + sizeof(struct input_row));
    const uint16_t *order = cpu_matrix_order(m, p->expert);
    float *ordered = p->cpu->scratch[thread].ordered;
    if (!order) {
        assert(!p->rows);
        pack(p->tile, p->x, n_in, p->n, begin, end);
        return;
    }
    assert(begin % BLOCK == 0 && ordered); /* else the matrix was made after reserve() */
    for (int n; begin < end; begin += n) {
        n = end - begin < ORDERED_COLUMNS ? end - begin : ORDERED_COLUMNS;
        for (int r = 0; r < p->n; r++) {
            const float *x = p->x + (size_t)(p->rows ? p->rows[r] : r) * n_in;
            for (int c = 0; c < n; c++)
                ordered[r * ORDERED_COLUMNS + c] = x[order[begin + c]];
        }
        pack((uint8_t *)p->tile + (size_t)(begin / BLOCK) * block_bytes, ordered, ORDERED_COLUMNS, p->n, 0,
             n);
    }
}

/* Packs a thread's columns of all input rows into tiles; the sums of adapters are made meanwhile. */
static void cpu_linear_pack_some(void *arg, int thread, int n_threads)
{
    const struct linear_job *job = arg;
    const struct cpu_backend *cpu = job->cpu;
    int n_in = job->m->n_in;
    int64_t begin, end;
    if (job->lora)
        cpu_lora_down(job->lora, thread, n_threads);
    if (job->n_rows == 1)
        return; /* see input_of() */
    team_range(n_in, BLOCK, thread, n_threads, &begin, &end);
    for (int tile = 0; tile < job->n_tiles && begin < end; tile++) {
        int row, n;
        tile_rows(job, tile, &row, &n);
        const struct cpu_packing packing = { .cpu = cpu,
                                             .m = job->m,
                                             .tile = cpu->activations + (size_t)tile * job->tile_stride,
                                             .x = job->x + (size_t)row * (size_t)n_in,
                                             .n = n };
        cpu_pack_columns(&packing, thread, (int)begin, (int)end);
    }
}

/* The packed tiles. If there is a single row, each thread packs it for itself: that takes less time
 * than a second team_run(). */
static const uint8_t *cpu_linear_input_of(const struct linear_job *job, int thread)
{
    const struct cpu_backend *cpu = job->cpu;
    if (job->n_rows > 1)
        return cpu->activations;
    const struct cpu_packing packing = {
        .cpu = cpu, .m = job->m, .tile = cpu->scratch[thread].row, .x = job->x, .n = 1
    };
    cpu_pack_columns(&packing, thread, 0, job->m->n_in);
    return packing.tile;
}

static void add_bias(float *restrict out, const float *restrict bias, int n)
{
    for (int h = 0; h < 2; h++, bias += LANES, out += half_rows(n) * LANES)
        for (int r = 0; r < n; r++)
            for (int i = 0; i < LANES; i++)
                out[r * LANES + i] += bias[i];
}

/* The output of panels for one tile: n rows of y from column on; each panel has one or two halves
 * of 16 columns. */
struct output {
    float *y; /* first row of the tile */
    const int32_t *rows;
    int n_columns, column, n, n_halves;
};

typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

/* Copies half a row, 64 bytes. (The compiler turns memcpy of that size into rep movs, which takes
 * longer to start than this to run.) */
static inline void copy_lanes(float *to, const float *from)
{
    for (int i = 0; i < LANES; i += 4)
        *(four_floats *)(to + i) = *(const four_floats *)(from + i);
}

/* The adapter groups of one tile. */
static const struct lora_group *groups_of(const struct linear_job *job, int tile, int *n)
{
    const int *first = job->cpu->lora_tiles + tile;
    *n = first[1] - first[0];
    return job->cpu->lora_groups + first[0];
}

/* The updates begin with the shifts of the columns from column on. */
static void clear_updates(const struct linear_job *job, float *updates, int tile, int row, int column)
{
    int n, n_ff = job->m->n_out / 2;
    for (const struct lora_group *g = groups_of(job, tile, &n); n > 0; n--, g++) {
        const float *shifts = g->lora->shifts;
        for (int r = 0; r < g->n; r++) {
            float *update = updates + (g->rows[r] - row) * 2 * LINEAR_COLUMNS;
            memset(update, 0, 2 * LINEAR_COLUMNS * sizeof *updates);
            for (int h = 0; shifts && h < 2; h++)
                memcpy(update + h * LINEAR_COLUMNS, shifts + h * n_ff + column,
                       LINEAR_COLUMNS * sizeof *shifts);
        }
    }
}

/* Computes the LoRA updates to gate and up of a tile, panels begin..end-1; row: the tile's first. */
static void make_updates(const struct linear_job *job, float *updates, int tile, int row, int begin, int end)
{
    int n_ff = job->m->n_out / 2, last = end * LANES < n_ff ? end * LANES : n_ff;
    clear_updates(job, updates, tile, row, begin * LANES);
    for (int h = 0; h < 2; h++) {
        struct cpu_lora_target to = { .y = updates + h * LINEAR_COLUMNS,
                                      .stride = 2 * LINEAR_COLUMNS,
                                      .row = row,
                                      .column = h * n_ff + begin * LANES };
        cpu_lora_up(job->lora, tile, &to, h * n_ff + begin * LANES, h * n_ff + last);
    }
}

static inline void multiply_lanes(float *to, const float *factors)
{
    for (int i = 0; i < LANES; i += 4)
        *(four_floats *)(to + i) *= *(const four_floats *)(factors + i);
}

static inline void add_lanes(float *to, const float *from)
{
    for (int i = 0; i < LANES; i += 4)
        *(four_floats *)(to + i) += *(const four_floats *)(from + i);
}

/* Multiplies the halves of a panel of n rows, from column on, by their factors, and adds the updates,
 * which begin at column begin. */
static void add_updates(const struct linear_job *job, float *out, const float *updates, int tile, int row,
                        int n, int begin, int column)
{
    int n_groups, n_ff = job->m->n_out / 2;
    for (const struct lora_group *g = groups_of(job, tile, &n_groups); n_groups > 0; n_groups--, g++) {
        for (int i = 0; i < g->n; i++) {
            int r = g->rows[i] - row;
            const float *update = updates + r * 2 * LINEAR_COLUMNS + column - begin,
                        *factors = g->lora->factors;
            if (factors) {
                multiply_lanes(out + r * LANES, factors + column);
                multiply_lanes(out + (half_rows(n) + r) * LANES, factors + n_ff + column);
            }
            add_lanes(out + r * LANES, update);
            add_lanes(out + (half_rows(n) + r) * LANES, update + LINEAR_COLUMNS);
        }
    }
}

/* Prefetches a cache line for writing. (The compiler drops a function of nothing but
 * __builtin_prefetch() as having no effect, and for generic x86-64 it would prefetch for reading.) */
static inline void prefetch_for_write(float *line)
{
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" ::"m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline float *row_of(const struct output *o, int r)
{
    return o->y + (size_t)(o->rows ? o->rows[r] : r) * (size_t)o->n_columns + (size_t)o->column;
}

/* Stores row by row. out: [n_panels][2][half_rows(n)][16]. The lines that one panel writes in consecutive rows
 * are a row of y apart, so they map to few sets of the L1 cache; another core may own them too. So
 * they are prefetched some rows ahead. */
static void store(const struct output *o, const float *out, int n_panels)
{
    int n_halves = n_panels * o->n_halves, left = o->n_columns - o->column,
        ahead = n_halves * LANES <= left ? PREFETCH_ROWS : o->n;
    size_t panel = (size_t)panel_floats(o->n);
    for (int r = 0; r < o->n; r++) {
        float *y = row_of(o, r);
        for (int i = 0; i < n_halves && r + ahead < o->n; i++)
            prefetch_for_write(row_of(o, r + ahead) + i * LANES);
        for (int i = 0; i < n_halves && i * LANES < left; i++) {
            const float *from = out + (size_t)(i / o->n_halves) * panel +
                                (size_t)(i % o->n_halves * half_rows(o->n) + r) * LANES;
            if (left - i * LANES >= LANES)
                copy_lanes(y + i * LANES, from);
            else
                memcpy(y + i * LANES, from, (size_t)(left - i * LANES) * sizeof *y);
        }
    }
}

/* One panel for n rows: [2][half_rows(n)][16]. */
static void run_panel(const struct cpu_product *p, float *out, int panel)
{
    const struct matrix *m = p->m;
    size_t at = (size_t)p->expert * (size_t)m->n_panels + (size_t)panel;
    const float *bias = m->bias ? m->bias + at * PANEL_ROWS : NULL;
    if (bias) /* comes from memory while the product is computed */
        for (int h = 0; h < 2; h++)
            __builtin_prefetch(bias + h * LANES);
    p->cpu->kernels.linear[m->dtype](out, cpu_panel(m, p->expert, panel), p->input, p->n, m->n_in);
    if (bias)
        add_bias(out, bias, p->n);
}

static void store_panels(const struct cpu_product *p, const float *out, int begin, int end)
{
    int n_halves = p->glu ? 1 : 2;
    store(&(struct output){ .y = p->y,
                            .rows = p->rows,
                            .n_columns = p->n_columns,
                            .column = begin * n_halves * LANES,
                            .n = p->n,
                            .n_halves = n_halves },
          out, end - begin);
}

void cpu_product_run(const struct cpu_product *p, float *out, int begin, int end)
{
    float *next = out;
    for (int panel = begin; panel < end; panel++, next += panel_floats(p->n)) {
        run_panel(p, next, panel);
        if (p->glu)
            p->glu(next, next, next + half_rows(p->n) * LANES, (int64_t)p->n * LANES);
    }
    store_panels(p, out, begin, end);
}

/* The same with updates to gate and up, which the activation needs. row: the tile's first. */
static void run_updated_glu(const struct linear_job *job, const struct cpu_product *p,
                            const struct cpu_scratch *scratch, int tile, int row, int begin, int end)
{
    float *out = scratch->out;
    make_updates(job, scratch->updates, tile, row, begin, end);
    for (int panel = begin; panel < end; panel++, out += panel_floats(p->n)) {
        run_panel(p, out, panel);
        add_updates(job, out, scratch->updates, tile, row, p->n, begin * LANES, panel * LANES);
        p->glu(out, out, out + half_rows(p->n) * LANES, (int64_t)p->n * LANES);
    }
    store_panels(p, scratch->out, begin, end);
}

/* Computes panels begin..end-1 for one tile. */
static void run_piece(const struct linear_job *job, const struct cpu_scratch *scratch, const uint8_t *input,
                      int tile, int begin, int end)
{
    const struct matrix *m = job->m;
    int row, n;
    tile_rows(job, tile, &row, &n);
    int n_columns = job->glu ? m->n_out / 2 : m->n_out;
    struct cpu_product p = { .cpu = job->cpu,
                             .m = m,
                             .glu = job->glu,
                             .input = input + (size_t)tile * job->tile_stride,
                             .n = n,
                             .y = job->y + (job->rows ? 0 : (size_t)row * (size_t)n_columns),
                             .rows = job->rows ? job->rows + row : NULL,
                             .n_columns = n_columns };
    bool is_updated = job->lora && cpu_lora_has(job->lora, tile);
    if (is_updated && job->glu) {
        run_updated_glu(job, &p, scratch, tile, row, begin, end);
        return;
    }
    cpu_product_run(&p, scratch->out, begin, end);
    if (is_updated) {
        struct cpu_lora_target to = { .y = p.y, .rows = p.rows, .stride = (size_t)n_columns, .row = row };
        int last = end * PANEL_ROWS < m->n_out ? end * PANEL_ROWS : m->n_out;
        cpu_lora_shift(job->lora, tile, &to, begin * PANEL_ROWS, last);
        cpu_lora_up(job->lora, tile, &to, begin * PANEL_ROWS, last);
    }
}

/* Prefetches the LoRA factors for a piece. */
static void prefetch_factors(const struct linear_job *job, int begin, int end)
{
    int n_ff = job->m->n_out / 2;
    if (!job->glu) {
        cpu_lora_prefetch(job->lora, begin * PANEL_ROWS, end * PANEL_ROWS);
        return;
    }
    cpu_lora_prefetch(job->lora, begin * LANES, end * LANES < n_ff ? end * LANES : n_ff);
    cpu_lora_prefetch(job->lora, n_ff + begin * LANES, n_ff + end * LANES);
}

static void linear_some(void *arg, int thread, int n_threads)
{
    struct linear_job *job = arg;
    const uint8_t *input = NULL;
    for (int i = 0; i < n_threads; i++) {
        int owner = cpu_share_of(job->cpu, thread, i), begin, end;
        int first = job->m->node_begin[team_node_of(job->cpu->team, owner)];
        while (cpu_share_take(&job->cpu->shares[owner], job->piece, &begin, &end)) {
            begin += first;
            end += first;
            if (!input)
                input = cpu_linear_input_of(job, thread);
            if (job->lora)
                prefetch_factors(job, begin, end);
            for (int tile = 0; tile < job->n_tiles; tile++)
                run_piece(job, &job->cpu->scratch[thread], input, tile, begin, end);
        }
    }
}

/* Most rows of a tile. With quantized weights, tiles are read sequentially and prefetched, so they
 * may be in the L3 cache, and larger tiles spend less time on anything but multiplying. With 8-bit
 * floats, which are expanded once for a tile, a run of columns is read at a time. With other floats, a
 * tile is read again for every few rows. */
int cpu_most_rows(const struct matrix *m)
{
    if (dtype_block_elems(m->dtype) > 1)
        return TILE_ROWS;
    int most = (int)(FLOAT_TILE_BYTES / tile_bytes(m->dtype, 1, m->n_in));
    return most < LEAST_TILE_ROWS ? LEAST_TILE_ROWS : most > TILE_ROWS ? TILE_ROWS : most;
}

int cpu_most_panels(const struct matrix *m)
{
    int piece = (int)(PIECE_BYTES / m->panel_bytes);
    return piece < 1 ? 1 : piece > LINEAR_PIECE ? LINEAR_PIECE : piece;
}

/* loras NULL: no adapters. */
static void run(struct linear_job *job, const struct lora *const *loras, const int32_t *adapters)
{
    struct cpu_lora_work updates;
    if (job->n_rows == 0)
        return;
    assert(job->n_rows <= job->cpu->max_rows);
    const struct matrix *m = job->m;
    job->piece = cpu_most_panels(m);
    int most = cpu_most_rows(m);
    job->n_tiles = (job->n_rows + most - 1) / most;
    job->tile_stride = tile_bytes(m->dtype, (job->n_rows + job->n_tiles - 1) / job->n_tiles, m->n_in);
    assert((size_t)job->n_tiles * job->tile_stride <=
           job->cpu->activation_bytes); /* else the matrix was made after reserve() */
    if (loras) {
        cpu_lora_plan(&updates, job->cpu, loras, adapters, job->x, job->n_rows, job->n_tiles);
        job->lora = updates.n_groups > 0 ? &updates : NULL;
    }
    cpu_share_panels(job->cpu, m, 1);
    if (job->n_rows > 1 || job->lora)
        team_run(job->cpu->team, cpu_linear_pack_some, job);
    team_run(job->cpu->team, linear_some, job);
}

/* The matrix that a row uses. */
static const struct matrix *matrix_for(const struct linear_job *job, const struct lora *const *loras,
                                       int adapter)
{
    const struct lora *lora = adapter >= 0 ? loras[adapter] : NULL;
    return lora && lora->matrix ? lora->matrix : job->m;
}

/* Runs the rows of each matrix that rows use: their inputs are gathered, their outputs scattered. */
static void run_by_matrix(struct linear_job *job, const struct lora *const *loras, const int32_t *adapters)
{
    struct cpu_backend *cpu = job->cpu;
    const struct matrix *first = job->n_rows > 0 ? matrix_for(job, loras, adapters[0]) : job->m;
    bool has_one = true;
    for (int r = 1; r < job->n_rows && has_one; r++)
        has_one = matrix_for(job, loras, adapters[r]) == first;
    if (has_one) {
        job->m = first;
        run(job, loras, adapters);
        return;
    }
    assert(cpu->lora_x && job->n_rows <= cpu->max_rows);
    size_t n_in = (size_t)job->m->n_in;
    memset(cpu->lora_done, 0, (size_t)job->n_rows * sizeof *cpu->lora_done);
    for (int begin = 0; begin < job->n_rows; begin++) {
        struct linear_job part = *job;
        if (cpu->lora_done[begin])
            continue;
        part.m = matrix_for(job, loras, adapters[begin]);
        part.x = cpu->lora_x;
        part.rows = cpu->lora_rows;
        part.n_rows = 0;
        for (int r = begin; r < job->n_rows; r++) {
            if (cpu->lora_done[r] || matrix_for(job, loras, adapters[r]) != part.m)
                continue;
            memcpy(cpu->lora_x + (size_t)part.n_rows * n_in, job->x + (size_t)r * n_in,
                   n_in * sizeof *job->x);
            cpu->lora_rows[part.n_rows] = r;
            cpu->lora_adapters[part.n_rows++] = adapters[r];
            cpu->lora_done[r] = true;
        }
        run(&part, loras, cpu->lora_adapters);
    }
}

void cpu_linear(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows)
{
    cpu_linear_adapted(be, y, m, x, n_rows, NULL, NULL);
}

void cpu_linear_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                        int n_rows, const struct lora *const *loras, const int32_t *adapters)
{
    assert(!m->is_gate_up);
    struct linear_job job = { .cpu = cpu_of(be),
                              .m = m,
                              .x = cpu_rows(x, n_rows, m->n_in),
                              .y = cpu_rows(y, n_rows, m->n_out),
                              .n_rows = n_rows };
    if (loras)
        run_by_matrix(&job, loras, adapters);
    else
        run(&job, NULL, NULL);
}

glu_fn *cpu_glu(const struct kernels *k, enum activation act)
{
    assert(act == ACT_SILU || act == ACT_SILU_CLAMPED || act == ACT_GELU_TANH);
    return act == ACT_SILU ? k->silu_mul : act == ACT_SILU_CLAMPED ? k->silu_clamped_mul : k->gelu_tanh_mul;
}

void cpu_linear_glu(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows,
                    enum activation act)
{
    cpu_linear_glu_adapted(be, y, m, x, n_rows, act, NULL, NULL);
}

void cpu_linear_glu_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                            int n_rows, enum activation act, const struct lora *const *loras,
                            const int32_t *adapters)
{
    assert(m->is_gate_up);
    struct linear_job job = { .cpu = cpu_of(be),
                              .m = m,
                              .x = cpu_rows(x, n_rows, m->n_in),
                              .y = cpu_rows(y, n_rows, m->n_out / 2),
                              .n_rows = n_rows,
                              .glu = cpu_glu(&cpu_of(be)->kernels, act) };
    if (loras)
        run_by_matrix(&job, loras, adapters);
    else
        run(&job, NULL, NULL);
}
