/* Weight matrices of the CPU backend: packs them at load, and looks up embedding rows. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/matrix_source.h"
#include "kernels/float8.h"
#include "kernels/pack.h"
#include "kernels/quantize/quantize.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A packing job: the whole source into the panels of m. */
struct packing {
    const struct matrix_source *source;
    struct matrix *m;
    size_t stored_row_bytes; /* of the packed type, row-major */
    uint8_t *scratch;        /* [n_threads][16 rows in the packed type, then one row of floats] */
    size_t scratch_bytes;    /* of one thread */
    struct cpu_backend *cpu;
    atomic_bool is_refused; /* by pack_panel() */
};

enum {
    PACK_PIECE = 4,     /* panels that a thread packs at a time */
    UNPACK_PIECE = 256, /* columns of a row: whole units of every type of integers (kernels/pack.h) */
};

/* The matrix row at place i of a panel; -1: padding. */
static int row_of(const struct matrix *m, int panel, int i)
{
    if (!m->is_gate_up) {
        int row = panel * PANEL_ROWS + i;
        return row < m->n_out ? row : -1;
    }
    int half = m->n_out / 2, row = panel * LANES + i % LANES;
    return row < half ? i / LANES * half + row : -1;
}

static void cpu_matrix_place_of(const struct matrix *m, int row, int *panel, int *i)
{
    int half = m->n_out / 2, is_up = m->is_gate_up && row >= half;
    int rows = m->is_gate_up ? LANES : PANEL_ROWS;
    if (is_up)
        row -= half;
    *i = row % rows + is_up * LANES;
    *panel = row / rows;
}

/* The part with this row of an expert's matrix; *row becomes the row's index in it. */
static int part_of(const struct matrix_source *source, const struct matrix *m, int expert, int *row)
{
    int p = expert * (source->n_parts / m->n_experts);
    while (*row >= source->parts[p].n_rows)
        *row -= source->parts[p++].n_rows;
    return p;
}

/* The row in the packed type: in place if it is stored in that type, else converted into converted. */
static const uint8_t *row_as(const struct packing *job, int expert, int row, uint8_t *converted,
                             float *floats)
{
    const struct matrix_part *part = &job->source->parts[part_of(job->source, job->m, expert, &row)];
    int n_in = job->source->n_in;
    size_t row_bytes = 0;
    bool fits = dtype_bytes(part->dtype, n_in, &row_bytes);
    assert(fits);
    (void)fits;
    const uint8_t *stored = (const uint8_t *)part->data +
                            (size_t)row * (part->stride > 0 ? part->stride : row_bytes);
    if (part->dtype == job->m->dtype)
        return stored;
    dequantize(floats, stored, part->dtype, n_in);
    quantize(converted, floats, job->m->dtype, n_in);
    return converted;
}

static void pack_one(struct packing *job, int thread, int expert, int panel)
{
    const struct matrix *m = job->m;
    uint8_t *converted = job->scratch + (size_t)thread * job->scratch_bytes;
    float *floats = (float *)(converted + job->scratch_bytes - (size_t)m->n_in * sizeof(float));
    const uint8_t *rows[PANEL_ROWS];
    for (int i = 0; i < PANEL_ROWS; i++) {
        int row = row_of(m, panel, i);
        rows[i] = row < 0 ? NULL
                          : row_as(job, expert, row, converted + (size_t)i * job->stored_row_bytes, floats);
    }
    if (!pack_panel(cpu_panel(m, expert, panel), rows, m->dtype, m->n_in))
        atomic_store(&job->is_refused, true);
}

static void cpu_matrix_pack_some(void *arg, int thread, int n_threads)
{
    struct packing *job = arg;
    const struct matrix *m = job->m;
    int node = team_node_of(job->cpu->team, thread), n_panels = cpu_node_panels(m, node);
    int n_near = team_first_thread(job->cpu->team, node + 1) - team_first_thread(job->cpu->team, node);
    (void)n_threads;
    /* A node's threads pack its panels: a page is allocated on the node of the thread that writes it first. */
    for (int k = 0; k < n_near; k++) {
        struct cpu_share *share = &job->cpu->shares[cpu_share_of(job->cpu, thread, k)];
        for (int begin, end; cpu_share_take(share, PACK_PIECE, &begin, &end);)
            for (int i = begin; i < end; i++)
                pack_one(job, thread, i / n_panels, m->node_begin[node] + i % n_panels);
    }
}

static void pack_bias(struct matrix *m, const struct matrix_source *source)
{
    const float *const *biases = source->biases;
    for (int k = 0; biases && k < m->n_experts * m->n_out; k++) {
        int expert = k / m->n_out, row = k % m->n_out, in_part = row, panel, i;
        const float *bias = biases[part_of(source, m, expert, &in_part)];
        cpu_matrix_place_of(m, row, &panel, &i);
        m->bias[(expert * m->n_panels + panel) * PANEL_ROWS + i] = bias ? bias[in_part] : 0.0f;
    }
}

/* The lists follow the panels in their memory. */
static void copy_orders(struct matrix *m, const struct matrix_source *source)
{
    int n_lists = m->order_stride > 0 ? m->n_experts : 1;
    m->order = (uint16_t *)(m->panels + (size_t)m->n_experts * (size_t)m->n_panels * m->panel_bytes);
    for (int e = 0; e < n_lists; e++)
        for (int c = 0; c < m->n_in; c++)
            m->order[(size_t)e * (size_t)m->n_in + (size_t)c] = source->orders[e] ? source->orders[e][c]
                                                                                  : (uint16_t)c;
}

/* Each panel has PANEL_ROWS rows, or half a panel of gate, then as many rows of up. */
static int64_t count_panels(int64_t n_out, bool is_gate_up)
{
    return is_gate_up ? (n_out / 2 + LANES - 1) / LANES : (n_out + PANEL_ROWS - 1) / PANEL_ROWS;
}

uint64_t cpu_packed_bytes(enum dtype type, int n_in, int64_t n_out, bool is_gate_up)
{
    size_t panel;
    return panel_bytes(type, n_in, &panel) ? (uint64_t)panel * (uint64_t)count_panels(n_out, is_gate_up) : 0;
}

/* Sets the fields that need no memory. */
static enum tutti_status matrix_describe(struct matrix *m, const struct matrix_source *source,
                                         struct tutti_error *err)
{
    int n_experts = matrix_source_experts(source);
    int64_t n_out;
    if (!(CPU_CAPS.weight_types >> source->type & 1))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: the CPU has no weights of type %s", source->name,
                         dtype_name(source->type));
    enum tutti_status st = matrix_source_check(source, 2 * PANEL_ROWS, &n_out, err);
    if (st != TUTTI_OK)
        return st;
    bool fits = panel_bytes(source->type, source->n_in, &m->panel_bytes);
    assert(fits);
    (void)fits;
    m->dtype = source->type;
    m->n_in = source->n_in;
    m->n_out = (int)n_out;
    m->n_experts = n_experts;
    m->is_gate_up = source->is_gate_up;
    m->n_panels = (int)count_panels(n_out, m->is_gate_up);
    if (__builtin_mul_overflow(m->panel_bytes, (size_t)m->n_panels * (size_t)n_experts, &m->n_bytes))
        return error_set(err, TUTTI_E_LIMIT, "%s: %d x %d x %d elements overflow memory", source->name,
                         n_experts, m->n_out, m->n_in);
    if (source->orders) {
        assert(dtype_is_integers(m->dtype));
        m->order_stride = matrix_source_orders_differ(source) ? (size_t)m->n_in : 0;
        m->n_bytes += (m->order_stride > 0 ? (size_t)n_experts : 1) * (size_t)m->n_in * sizeof *m->order;
    }
    return TUTTI_OK;
}

enum tutti_status cpu_matrix_new(struct backend *be, struct matrix **out, const struct matrix_source *source,
                                 struct tutti_error *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct packing job = { .cpu = cpu, .source = source, .m = calloc(1, sizeof *job.m) };
    struct matrix *m = job.m;
    int n_threads = team_n_threads(cpu->team);
    enum tutti_status st = TUTTI_OK;
    if (m)
        st = matrix_describe(m, source, err);
    if (!m || st != TUTTI_OK)
        goto done;
    bool fits = dtype_bytes(m->dtype, m->n_in, &job.stored_row_bytes);
    assert(fits);
    (void)fits;
    job.scratch_bytes = (PANEL_ROWS * job.stored_row_bytes + (size_t)m->n_in * sizeof(float) + 63) / 64 * 64;
    job.scratch = memory_new((size_t)n_threads * job.scratch_bytes);
    m->panels = memory_new(m->n_bytes);
    if (source->biases)
        m->bias = calloc((size_t)m->n_experts * (size_t)m->n_panels * PANEL_ROWS, sizeof *m->bias);
    if (!job.scratch || !m->panels || (source->biases && !m->bias)) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory for %zu bytes of packed weights", source->name,
                       m->n_bytes);
        goto done;
    }
    cpu_place_panels(cpu, m);
    cpu_share_panels(cpu, m, m->n_experts);
    team_run_bound(cpu->team, cpu_matrix_pack_some, &job);
    if (job.is_refused) {
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s: among 16 rows there are more than %d different scales of 8-bit floats, expected "
                       "blocks of more rows; a weight type such as bf16 expands them",
                       source->name, FLOAT8_SCALES);
        goto done;
    }
    if (m->bias)
        pack_bias(m, source);
    if (source->orders)
        copy_orders(m, source);
    size_t row = tile_bytes(m->dtype, 1, m->n_in);
    cpu->row_bytes = row > cpu->row_bytes ? row : cpu->row_bytes;
    cpu->has_orders = cpu->has_orders || m->order;
    if (source->n_experts > 0)
        cpu_experts_widen(&cpu->experts, m, source->n_chosen);
    *out = m;
    m = NULL;
done:
    if (!job.m)
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", source->name);
    memory_free(job.scratch, (size_t)n_threads * job.scratch_bytes);
    cpu_matrix_free(be, m);
    return st;
}

void cpu_matrix_free(struct backend *be, struct matrix *m)
{
    (void)be;
    if (!m)
        return;
    memory_free(m->panels, m->n_bytes);
    free(m->bias);
    free(m);
}

size_t cpu_matrix_bytes(const struct matrix *m)
{
    size_t n_panels = (size_t)m->n_experts * (size_t)m->n_panels;
    return m->n_bytes + (m->bias ? n_panels * PANEL_ROWS * sizeof(float) : 0);
}

void cpu_matrix_row(float *out, const struct matrix *m, int row)
{
    int panel, i;
    assert(m->n_experts == 1 && row >= 0 && row < m->n_out);
    cpu_matrix_place_of(m, row, &panel, &i);
    const uint8_t *from = cpu_panel(m, 0, panel);
    if (!m->order) {
        unpack_row(out, from, i, m->dtype, m->n_in);
        return;
    }
    float piece[UNPACK_PIECE];
    for (int c = 0; c < m->n_in; c += UNPACK_PIECE) {
        int n = m->n_in - c < UNPACK_PIECE ? m->n_in - c : UNPACK_PIECE;
        size_t n_before = 0;
        bool fits = c == 0 || panel_bytes(m->dtype, c, &n_before);
        assert(fits);
        (void)fits;
        unpack_row(piece, from + n_before, i, m->dtype, n);
        for (int k = 0; k < n; k++)
            out[m->order[c + k]] = piece[k];
    }
}

float cpu_matrix_read(struct backend *be, float *host, const struct matrix *m, int row)
{
    int panel, i;
    (void)be;
    if (host)
        cpu_matrix_row(host, m, row);
    cpu_matrix_place_of(m, row, &panel, &i);
    return m->bias ? m->bias[panel * PANEL_ROWS + i] : 0;
}

enum dtype cpu_matrix_type(const struct matrix *m)
{
    return m->dtype;
}
