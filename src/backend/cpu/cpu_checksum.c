/* Checksums of weights, computed by all threads at memory bandwidth. */
#include "backend/cpu/cpu.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/rng.h"

#include <math.h>

enum {
    PIECE_BYTES = 1 << 20,
    SAMPLE_POSITIONS = 4096, /* of all up to LIMIT_CONTEXT */
};

/* What a checksum is of: the panels of a matrix, or bytes. */
struct sum_input {
    const struct matrix *m; /* each panel is a piece, in the order of experts and panels; NULL: bytes */
    const uint8_t *bytes;
    size_t n_bytes;
};

struct sum_job {
    struct sum_input in;
    atomic_size_t next;       /* piece */
    atomic_uint_fast64_t sum; /* of the pieces' checksums, so their order has no influence */
};

static void sum_pieces(void *arg, int thread, int n_threads)
{
    struct sum_job *job = arg;
    const struct sum_input *in = &job->in;
    const struct matrix *m = in->m;
    size_t n_pieces = m ? (size_t)m->n_experts * (size_t)m->n_panels
                        : (in->n_bytes + PIECE_BYTES - 1) / PIECE_BYTES,
           i;
    uint64_t sum = 0;
    (void)thread;
    (void)n_threads;
    while ((i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < n_pieces) {
        size_t begin = i * PIECE_BYTES, left = in->n_bytes - begin;
        if (m)
            sum += hash64(i, cpu_panel(m, (int)(i / (size_t)m->n_panels), (int)(i % (size_t)m->n_panels)),
                          m->panel_bytes);
        else
            sum += hash64(i, in->bytes + begin, left < PIECE_BYTES ? left : PIECE_BYTES);
    }
    atomic_fetch_add_explicit(&job->sum, sum, memory_order_relaxed);
}

/* The checksum of the input and what was summed before it. */
static uint64_t sum_on(struct cpu_backend *cpu, uint64_t before, const struct sum_input *in)
{
    struct sum_job job = { .in = *in };
    if (in->n_bytes > PIECE_BYTES)
        team_run(cpu->team, sum_pieces, &job);
    else
        sum_pieces(&job, 0, 1);
    return mix64(before ^ mix64(atomic_load(&job.sum) ^ in->n_bytes));
}

static uint64_t sum_bytes(struct cpu_backend *cpu, uint64_t before, const void *bytes, size_t n_bytes)
{
    return sum_on(cpu, before, &(struct sum_input){ .bytes = bytes, .n_bytes = n_bytes });
}

uint64_t cpu_checksum(struct backend *be, struct floats floats, size_t n_floats)
{
    return sum_bytes(cpu_of(be), 0, cpu_floats(floats, n_floats), n_floats * sizeof(float));
}

uint64_t cpu_matrix_checksum(struct backend *be, const struct matrix *m)
{
    const int32_t shape[] = { (int32_t)m->dtype, m->n_in, m->n_out, m->is_gate_up, m->n_experts };
    size_t n_panels = (size_t)m->n_experts * (size_t)m->n_panels;
    uint64_t sum = sum_on(cpu_of(be), hash64(0, shape, sizeof shape),
                          &(struct sum_input){ .m = m, .n_bytes = m->n_bytes });
    for (int e = 0; m->order && e < m->n_experts; e++)
        sum = sum_bytes(cpu_of(be), sum, cpu_matrix_order(m, e), (size_t)m->n_in * sizeof *m->order);
    return m->bias ? sum_bytes(cpu_of(be), sum, m->bias, n_panels * PANEL_ROWS * sizeof *m->bias) : sum;
}

uint64_t cpu_lora_checksum(struct backend *be, const struct lora *lora)
{
    size_t factor_bytes = lora->is_half ? sizeof(uint16_t) : sizeof(float);
    const int32_t shape[] = { lora->n_in, lora->n_out, lora->n_parts, lora->rank, lora->is_half };
    size_t output_bytes = (size_t)lora->n_out * sizeof(float);
    uint64_t sum = hash64(lora->matrix ? cpu_matrix_checksum(be, lora->matrix) : 0, shape, sizeof shape);
    sum = lora->factors ? mix64(hash64(sum, lora->factors, output_bytes)) : sum;
    sum = lora->shifts ? hash64(sum, lora->shifts, output_bytes) : sum;
    sum = hash64(sum, lora->scales, (size_t)lora->rank * sizeof *lora->scales);
    sum = sum_bytes(cpu_of(be), sum, lora->a, (size_t)lora->rank * (size_t)lora->n_in * factor_bytes);
    for (int i = 0; i < lora->n_parts; i++) {
        const struct lora_piece *part = &lora->parts[i];
        const int32_t place[] = { part->out_begin, part->n_out, part->rank_begin, part->rank };
        sum = hash64(sum, place, sizeof place);
        size_t n_blocks = ((size_t)part->n_out + CPU_LORA_COLUMNS - 1) / CPU_LORA_COLUMNS;
        sum = sum_bytes(cpu_of(be), sum, part->b,
                        n_blocks * CPU_LORA_COLUMNS * (size_t)part->rank * factor_bytes);
    }
    return sum;
}

/* Rotary embedding takes sines and cosines from the system's math library. Most versions give the
 * same bits on every processor, but that is not guaranteed. */
static uint64_t sum_of_library(const struct cpu_kind *kind)
{
    const struct attention_shape *shape = &kind->shape;
    int n_freqs = shape->rope == ROPE_NONE ? 0 : shape->rotary_dim / (shape->rope == ROPE_2D ? 4 : 2);
    uint64_t sum = 0;
    for (int64_t i = 0, pos = 0; i < SAMPLE_POSITIONS; i++, pos = i * LIMIT_CONTEXT / SAMPLE_POSITIONS) {
        for (int j = 0; j < n_freqs; j++) {
            double angle = (double)((float)pos * kind->rope_freqs[j]);
            double both[2] = { cos(angle), sin(angle) };
            sum = hash64(sum, both, sizeof both);
        }
    }
    return sum;
}

uint64_t cpu_arithmetic_checksum(struct backend *be)
{
    const struct cpu_backend *cpu = cpu_of(be);
    const uint64_t numbers[] = { KERNELS_BITS, CPU_PAGE_TOKENS };
    uint64_t sum = hash64(0, numbers, sizeof numbers);
    for (int i = 0; i < cpu->n_kinds; i++)
        sum = mix64(sum ^ sum_of_library(&cpu->kinds[i]));
    return sum;
}
