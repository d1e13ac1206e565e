/* KV memory, rotary embedding and attention of the CPU backend. */
#include "backend/cpu.h"
#include "backend/memory.h"
#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t head_bytes(const struct attention_shape *shape, enum dtype dtype)
{
    return (size_t)KV_PAGE_TOKENS * (size_t)shape->head_dim * (size_t)dtype_block_bytes(dtype);
}

size_t cpu_kv_page_bytes(const struct backend *be, enum dtype dtype)
{
    const struct attention_shape *shape = &((const struct cpu_backend *)be)->shape;
    return (size_t)shape->n_layers * (size_t)shape->n_kv_heads * 2 * head_bytes(shape, dtype);
}

enum tutti_status cpu_kv_new(struct backend *be, struct kv_memory **out, int n_pages, enum dtype dtype,
                             struct tutti_error *err)
{
    const struct attention_shape *shape = &cpu_of(be)->shape;
    if (dtype != DTYPE_F16 && dtype != DTYPE_F32)
        return error_set(err, TUTTI_E_UNSUPPORTED, "KV cache: type %s, expected f16 or f32",
                         dtype_name(dtype));
    size_t n_bytes;
    if (n_pages < 1 || __builtin_mul_overflow((size_t)n_pages, cpu_kv_page_bytes(be, dtype), &n_bytes))
        return error_set(err, TUTTI_E_LIMIT, "KV cache: %d pages of %zu bytes do not fit", n_pages,
                         cpu_kv_page_bytes(be, dtype));
    struct kv_memory *kv = calloc(1, sizeof *kv);
    if (!kv)
        return error_set(err, TUTTI_E_MEMORY, "KV cache: out of memory");
    kv->dtype = dtype;
    kv->n_pages = n_pages;
    kv->head_bytes = head_bytes(shape, dtype);
    kv->page_bytes = (size_t)shape->n_kv_heads * 2 * kv->head_bytes;
    kv->layer_bytes = (size_t)n_pages * kv->page_bytes;
    kv->n_bytes = n_bytes;
    kv->base = memory_new(n_bytes);
    if (!kv->base) {
        free(kv);
        return error_set(err, TUTTI_E_MEMORY, "KV cache: no memory for %zu bytes", n_bytes);
    }
    for (size_t i = 0; i < n_bytes; i += 4096) /* commits it: serving must not find out later */
        ((volatile uint8_t *)kv->base)[i] = 0;
    *out = kv;
    return TUTTI_OK;
}

void cpu_kv_free(struct backend *be, struct kv_memory *kv)
{
    (void)be;
    if (!kv)
        return;
    memory_free(kv->base, kv->n_bytes);
    free(kv);
}

void cpu_kv_copy_page(struct backend *be, struct kv_memory *kv, int32_t dst, int32_t src)
{
    for (int layer = 0; layer < cpu_of(be)->shape.n_layers; layer++) {
        uint8_t *base = kv->base + (size_t)layer * kv->layer_bytes;
        memcpy(base + (size_t)dst * kv->page_bytes, base + (size_t)src * kv->page_bytes, kv->page_bytes);
    }
}

/* ---- the step's rows ------------------------------------------------------------------------------------------- */

/* cos_sin: [2][n_pairs] */
static void fill_turns(const struct cpu_backend *cpu, float *cos_sin, int32_t pos, int n_pairs)
{
    for (int j = 0; j < n_pairs; j++) {
        float angle = (float)pos * cpu->rope_freqs[j];
        cos_sin[j] = (float)cos((double)angle) * cpu->shape.rope_scale;
        cos_sin[n_pairs + j] = (float)sin((double)angle) * cpu->shape.rope_scale;
    }
}

static void fill_angles(void *arg, int thread, int n_threads)
{
    struct cpu_backend *cpu = arg;
    const struct step *step = cpu->step;
    const int32_t *rope_positions = step->rope_positions ? step->rope_positions : step->positions;
    int rotary_dim = cpu->shape.rotary_dim;
    int64_t begin, end;
    team_share(step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *cos_sin = cpu->cos_sin + r * rotary_dim;
        if (cpu->shape.rope == ROPE_2D) {
            fill_turns(cpu, cos_sin, rope_positions[r], rotary_dim / 4);
            fill_turns(cpu, cos_sin + rotary_dim / 2, step->block_positions ? step->block_positions[r] : 0,
                       rotary_dim / 4);
        } else {
            fill_turns(cpu, cos_sin, rope_positions[r], rotary_dim / 2);
        }
    }
}

void cpu_attention_begin(struct cpu_backend *cpu)
{
    const struct step *step = cpu->step;
    int group = cpu->shape.n_heads / cpu->shape.n_kv_heads;
    int most = group < ATTENTION_QUERIES ? ATTENTION_QUERIES / group : 1;
    assert(step->n_rows <= cpu->max_rows);
    cpu->n_row_tiles = 0;
    for (int r = 0; r < step->n_rows; r++) {
        struct row_tile *tile = cpu->n_row_tiles > 0 ? &cpu->row_tiles[cpu->n_row_tiles - 1] : NULL;
        if (tile && tile->n_rows < most && step->seqs[r] == step->seqs[r - 1])
            tile->n_rows++;
        else
            cpu->row_tiles[cpu->n_row_tiles++] = (struct row_tile){ r, 1 };
    }
    if (cpu->shape.rope != ROPE_NONE)
        team_run(cpu->team, fill_angles, cpu);
}

/* ---- rotary embedding, storing keys and values ------------------------------------------------------------------ */

struct attention_job {
    struct cpu_backend *cpu;
    float *qkv, *y;
    const float *q_norm, *k_norm;
    const struct kv_memory *kv;
    uint8_t *layer; /* of kv */
};

/* Keys go to column `at` of [head_dim][16], values to row `at` of [16][head_dim]. */
static void place_16bit(uint8_t *keys, uint8_t *values, int at, const uint16_t *k, const uint16_t *v,
                        int head_dim)
{
    uint16_t *column = (uint16_t *)keys + at;
    for (int d = 0; d < head_dim; d++)
        column[d * KV_PAGE_TOKENS] = k[d];
    memcpy((uint16_t *)values + at * head_dim, v, (size_t)head_dim * sizeof *v);
}

static void place_32bit(uint8_t *keys, uint8_t *values, int at, const float *k, const float *v, int head_dim)
{
    float *column = (float *)keys + at;
    for (int d = 0; d < head_dim; d++)
        column[d * KV_PAGE_TOKENS] = k[d];
    memcpy((float *)values + at * head_dim, v, (size_t)head_dim * sizeof *v);
}

/* kv: k [n_kv_heads][head_dim], then v. */
static void store_row(const struct attention_job *job, int row, const float *kv, uint16_t *halves)
{
    const struct attention_shape *shape = &job->cpu->shape;
    const struct step *step = job->cpu->step;
    int pos = step->positions[row], at = pos % KV_PAGE_TOKENS, n = shape->head_dim;
    size_t page_id = (size_t)step->page_tables[step->seqs[row]][pos / KV_PAGE_TOKENS];
    uint8_t *keys = job->layer + page_id * job->kv->page_bytes;
    int n_kv = shape->n_kv_heads * n;
    if (job->kv->dtype == DTYPE_F16)
        job->cpu->kernels.to_half(halves, kv, 2 * n_kv);
    for (int h = 0; h < shape->n_kv_heads; h++, keys += 2 * job->kv->head_bytes) {
        uint8_t *values = keys + job->kv->head_bytes;
        if (job->kv->dtype == DTYPE_F16)
            place_16bit(keys, values, at, halves + h * n, halves + n_kv + h * n, n);
        else
            place_32bit(keys, values, at, kv + h * n, kv + n_kv + h * n, n);
    }
}

/* The heads of q and k: k stands right behind q. */
static void turn_row(const struct cpu_backend *cpu, float *row, const float *cos_sin)
{
    const struct attention_shape *shape = &cpu->shape;
    int n_heads = shape->n_heads + shape->n_kv_heads, half = shape->rotary_dim / 2;
    switch (shape->rope) {
    case ROPE_NONE:
        break;
    case ROPE_INTERLEAVED:
        cpu->kernels.rope_interleaved(row, cos_sin, n_heads, shape->head_dim, shape->rotary_dim);
        break;
    case ROPE_HALF:
        cpu->kernels.rope_half(row, cos_sin, n_heads, shape->head_dim, shape->rotary_dim);
        break;
    case ROPE_2D:
        cpu->kernels.rope_half(row, cos_sin, n_heads, shape->head_dim, half);
        cpu->kernels.rope_half(row + half, cos_sin + half, n_heads, shape->head_dim, half);
        break;
    }
}

static void rope_store_some(void *arg, int thread, int n_threads)
{
    const struct attention_job *job = arg;
    const struct attention_shape *shape = &job->cpu->shape;
    const struct kernels *k = &job->cpu->kernels;
    int n_q = shape->n_heads * shape->head_dim, n_kv = shape->n_kv_heads * shape->head_dim;
    int64_t begin, end;
    team_share(job->cpu->step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *row = job->qkv + r * (n_q + 2 * n_kv);
        if (job->q_norm)
            k->rmsnorm(row, row, job->q_norm, shape->n_heads, shape->head_dim, shape->qk_norm_eps);
        if (job->k_norm)
            k->rmsnorm(row + n_q, row + n_q, job->k_norm, shape->n_kv_heads, shape->head_dim,
                       shape->qk_norm_eps);
        turn_row(job->cpu, row, job->cpu->cos_sin + r * shape->rotary_dim);
        store_row(job, (int)r, row + n_q, job->cpu->scratch[thread].halves);
    }
}

void cpu_rope_store(struct backend *be, float *qkv, const float *q_norm, const float *k_norm,
                    struct kv_memory *kv, int layer)
{
    struct attention_job job = {
        .cpu = cpu_of(be), .qkv = qkv, .q_norm = q_norm, .k_norm = k_norm, .kv = kv
    };
    job.layer = kv->base + (size_t)layer * kv->layer_bytes;
    if (job.cpu->step->n_rows == 1)
        rope_store_some(&job, 0, 1);
    else
        team_run(job.cpu->team, rope_store_some, &job);
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* What a row sees, but for the slope, which each head has of its own. */
static struct attention_view view_of(const struct attention_shape *shape, const struct step *step, int row)
{
    int pos = step->positions[row], prefix_len = step->prefix_lens ? step->prefix_lens[step->seqs[row]] : 0;
    return (struct attention_view){
        .begin = shape->window > 0 && pos >= shape->window ? pos - shape->window + 1 : 0,
        .end = pos < prefix_len ? prefix_len : pos + 1,
        .pos = pos,
    };
}

/* Queries of a tile: heads begin_head..+n_heads of one KV head, of every row; a query for each pair. */
static void attend(const struct attention_job *job, struct cpu_scratch *scratch, const struct row_tile *tile,
                   int kv_head, int begin_head, int n_heads)
{
    const struct attention_shape *shape = &job->cpu->shape;
    const struct step *step = job->cpu->step;
    int head_dim = shape->head_dim, n_queries = 0;
    struct attention_view views[ATTENTION_QUERIES];
    size_t q_row = (size_t)(shape->n_heads + 2 * shape->n_kv_heads) * (size_t)head_dim;
    size_t y_row = (size_t)shape->n_heads * (size_t)head_dim;
    for (int r = tile->begin; r < tile->begin + tile->n_rows; r++) {
        const float *q = job->qkv + (size_t)r * q_row + (size_t)(begin_head * head_dim);
        float *to = scratch->q + n_queries * head_dim;
        for (int i = 0; i < n_heads * head_dim; i++)
            to[i] = q[i] * shape->scale;
        struct attention_view view = view_of(shape, step, r);
        for (int h = 0; h < n_heads; h++) {
            view.slope = shape->alibi_slopes ? shape->alibi_slopes[begin_head + h] : 0;
            views[n_queries++] = view;
        }
    }
    struct attention_pages pages = {
        .base = job->layer + (size_t)kv_head * 2 * job->kv->head_bytes,
        .page_bytes = job->kv->page_bytes,
        .values_offset = job->kv->head_bytes,
        .page_table = step->page_tables[step->seqs[tile->begin]],
    };
    const struct kernels *k = &job->cpu->kernels;
    (job->kv->dtype == DTYPE_F16 ? k->attention_f16 : k->attention_f32)(scratch->o, scratch->q, views,
                                                                        n_queries, head_dim, &pages);
    size_t n = (size_t)n_heads * (size_t)head_dim;
    for (int r = 0; r < tile->n_rows; r++)
        memcpy(job->y + (size_t)(tile->begin + r) * y_row + (size_t)(begin_head * head_dim),
               scratch->o + (size_t)r * n, n * sizeof(float));
}

static void attention_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    const struct attention_job *job = arg;
    struct cpu_backend *cpu = job->cpu;
    int n_kv_heads = cpu->shape.n_kv_heads, group = cpu->shape.n_heads / n_kv_heads;
    for (;;) {
        /* The last rows of a prompt read most: they come first, so that the threads end together. */
        int piece = atomic_fetch_add_explicit(&cpu->shares[0].next, 1, memory_order_relaxed);
        if (piece >= cpu->n_row_tiles * n_kv_heads)
            return;
        int kv_head = piece % n_kv_heads;
        const struct row_tile *tile = &cpu->row_tiles[cpu->n_row_tiles - 1 - piece / n_kv_heads];
        for (int h = 0; h < group; h += ATTENTION_QUERIES) {
            int n = group - h < ATTENTION_QUERIES ? group - h : ATTENTION_QUERIES;
            attend(job, &cpu->scratch[thread], tile, kv_head, kv_head * group + h, n);
        }
    }
}

void cpu_attention(struct backend *be, float *y, const float *qkv, const struct kv_memory *kv, int layer)
{
    struct attention_job job = { .cpu = cpu_of(be), .qkv = (float *)(uintptr_t)qkv, .y = y, .kv = kv };
    job.layer = kv->base + (size_t)layer * kv->layer_bytes;
    atomic_store_explicit(&job.cpu->shares[0].next, 0, memory_order_relaxed);
    team_run(job.cpu->team, attention_some, &job);
}
