/* Rotary embedding and attention of the CPU backend.
 *
 * Positions are divided into blocks of ATTENTION_BLOCK, counted from 0. A query's sums over each
 * block are computed separately and merged in order, as in flash decoding. So the bits do not
 * depend on which thread computes a block: a single long context is spread over all threads, and
 * has the same bits as with one thread. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "kernels/ref/exp.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

void cpu_attention_release(struct cpu_backend *cpu)
{
    for (int t = 0; cpu->attention_scratch && t < team_n_threads(cpu->team); t++)
        free(cpu->attention_scratch[t].q);
    free(cpu->attention_scratch);
    cpu->attention_scratch = NULL;
    for (int i = 0; cpu->kinds && i < cpu->n_kinds; i++) {
        struct cpu_kind *kind = &cpu->kinds[i];
        free(kind->cos_sin);
        free(kind->row_tiles);
        kind->cos_sin = NULL;
        kind->row_tiles = NULL;
    }
}

bool cpu_attention_reserve(struct cpu_backend *cpu, int max_rows)
{
    size_t n = (size_t)max_rows, head_dim = 0, n_kv = 0, n_values = 0; /* of the widest kind */
    int n_threads = team_n_threads(cpu->team);
    for (int i = 0; i < cpu->n_kinds; i++) {
        struct cpu_kind *kind = &cpu->kinds[i];
        size_t dim = (size_t)kind->shape.head_dim, kv = (size_t)kind->shape.n_kv_heads * dim;
        head_dim = dim > head_dim ? dim : head_dim;
        n_kv = kv > n_kv ? kv : n_kv;
        n_values = kind->shape.keys_are_values && kv > n_values ? kv : n_values;
        kind->cos_sin = calloc(n, ((size_t)kind->shape.rotary_dim + 1) * sizeof *kind->cos_sin);
        kind->row_tiles = calloc(n, sizeof *kind->row_tiles);
        if (!kind->cos_sin || !kind->row_tiles)
            return false;
    }
    size_t row = ATTENTION_ROWS * head_dim * sizeof(float),
           block = ATTENTION_QUERIES * head_dim * sizeof(float);
    size_t values = n_values * sizeof(float), kv = 2 * n_kv * sizeof(uint16_t);
    size_t views = ATTENTION_ROWS * sizeof(struct attention_view);
    cpu->attention_scratch = calloc((size_t)n_threads, sizeof *cpu->attention_scratch);
    if (!cpu->attention_scratch)
        return false;
    for (int t = 0; t < n_threads; t++) {
        struct attention_scratch *scratch = &cpu->attention_scratch[t];
        uint8_t *memory = (uint8_t *)cpu_memory_of_thread(
            cpu, t, (2 * row + block + values + kv + views) / sizeof(float) + 1);
        if (!memory)
            return false;
        scratch->q = (float *)memory;
        scratch->o = (float *)(memory + row);
        scratch->block_o = (float *)(memory + 2 * row);
        scratch->values = (float *)(memory + 2 * row + block);
        scratch->kv = memory + 2 * row + block + values;
        scratch->views = (struct attention_view *)(memory + 2 * row + block + values + kv);
    }
    return true;
}

/* Allocates sums for all blocks of all pages, if each page belongs to one decoding sequence; if
 * many sequences share pages, some tiles may stay uncut. Layers run one after the other, so that
 * all kinds of them use the same memory. */
bool cpu_attention_reserve_cuts(struct cpu_backend *cpu, int n_pages)
{
    enum { BLOCK_PAGES = ATTENTION_BLOCK / CPU_PAGE_TOKENS };
    size_t n_blocks = (size_t)n_pages / BLOCK_PAGES + CUT_UNITS * (size_t)team_n_threads(cpu->team);
    size_t block = 0, n_sums, n_bytes;
    for (int i = 0; i < cpu->n_kinds; i++) {
        const struct attention_shape *shape = &cpu->kinds[i].shape;
        size_t own = (size_t)shape->n_heads * ((size_t)cpu_value_dim(shape) + 2);
        block = own > block ? own : block;
    }
    if (__builtin_mul_overflow(n_blocks, block, &n_sums) ||
        __builtin_mul_overflow(n_sums, sizeof *cpu->cut_sums, &n_bytes))
        return false;
    if (n_sums <= cpu->n_cut_sums)
        return true;
    float *sums = cpu_memory_shared(cpu, n_bytes);
    if (!sums)
        return false;
    memory_free(cpu->cut_sums, cpu->cut_sums_bytes);
    cpu->cut_sums = sums;
    cpu->n_cut_sums = n_sums;
    cpu->cut_sums_bytes = n_bytes;
    return true;
}

/* ---- the step's rows ---- */

/* Computes cos and sin of each pair's angle. cos_sin: [2][n_pairs] */
static void fill_turns(const struct cpu_kind *kind, float *cos_sin, int32_t pos, int n_pairs)
{
    for (int j = 0; j < n_pairs; j++) {
        float angle = (float)pos * kind->rope_freqs[j];
        cos_sin[j] = (float)cos((double)angle) * kind->shape.rope_scale;
        cos_sin[n_pairs + j] = (float)sin((double)angle) * kind->shape.rope_scale;
    }
}

struct angles_job {
    const struct step *step;
    const struct cpu_kind *kind;
};

static void fill_angles(void *arg, int thread, int n_threads)
{
    const struct angles_job *job = arg;
    const struct step *step = job->step;
    const struct cpu_kind *kind = job->kind;
    const int32_t *rope_positions = step->rope_positions ? step->rope_positions : step->positions;
    int rotary_dim = kind->shape.rotary_dim;
    int64_t begin, end;
    team_range(step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *cos_sin = kind->cos_sin + r * rotary_dim;
        if (kind->shape.rope == ROPE_2D) {
            fill_turns(kind, cos_sin, rope_positions[r], rotary_dim / 4);
            fill_turns(kind, cos_sin + rotary_dim / 2, step->block_positions ? step->block_positions[r] : 0,
                       rotary_dim / 4);
        } else {
            fill_turns(kind, cos_sin, rope_positions[r], rotary_dim / 2);
        }
    }
}

/* Positions that a row attends to, without the ALiBi slope, which differs by head. */
static struct attention_view view_of(const struct attention_shape *shape, const struct step *step, int row)
{
    int pos = step->positions[row], prefix_len = step->prefix_lens ? step->prefix_lens[step->seqs[row]] : 0;
    int first = pos < shape->first ? 0 : shape->first;
    int begin = shape->window > 0 && pos >= shape->window ? pos - shape->window + 1 : 0;
    return (struct attention_view){
        .begin = begin > first ? begin : first,
        .end = pos < prefix_len ? prefix_len : pos + 1,
        .pos = pos,
    };
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Query heads of one KV head. */
static int heads_per_kv(const struct attention_shape *shape)
{
    return shape->n_heads / shape->n_kv_heads;
}

static int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Of n groups of about the same size. Latent attention computes four queries together. */
static int group_heads(const struct attention_shape *shape, int n)
{
    return n == 1 ? heads_per_kv(shape) : divide_up(divide_up(heads_per_kv(shape), n), 4) * 4;
}

/* Head groups of one KV head. */
static int groups_of_head(const struct cpu_kind *kind)
{
    return divide_up(heads_per_kv(&kind->shape), kind->group_heads);
}

static int n_head_groups(const struct cpu_kind *kind)
{
    return kind->shape.n_kv_heads * groups_of_head(kind);
}

/* Makes tiles of up to `most` rows of a sequence. Returns the number of blocks of all tiles. */
static int64_t make_tiles(struct cpu_kind *kind, const struct step *step, int most)
{
    int64_t n_blocks = 0;
    kind->n_row_tiles = 0;
    for (int r = 0; r < step->n_rows;) {
        struct row_tile tile = { .begin = r };
        int begin = INT32_MAX, end = 0;
        for (; tile.n_rows < most && r < step->n_rows && step->seqs[r] == step->seqs[tile.begin]; r++) {
            struct attention_view view = view_of(&kind->shape, step, r);
            begin = min_int(view.begin, begin);
            end = view.end > end ? view.end : end;
            tile.n_rows++;
        }
        tile.first_block = begin / ATTENTION_BLOCK;
        tile.n_blocks = (end + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK - tile.first_block;
        n_blocks += tile.n_blocks;
        kind->row_tiles[kind->n_row_tiles++] = tile;
    }
    return n_blocks;
}

/* Number of floats in cut_sums for one block and head group. */
static size_t slot_floats(const struct cpu_kind *kind, const struct row_tile *tile)
{
    return (size_t)tile->n_rows * (size_t)kind->group_heads * ((size_t)cpu_value_dim(&kind->shape) + 2);
}

/* Numbers the units, and cuts tiles that would keep one thread busy while others wait. */
static void make_units(const struct cpu_backend *cpu, struct cpu_kind *kind, int64_t n_blocks)
{
    int n_groups = n_head_groups(kind), n_pending = 0, n_threads = team_n_threads(cpu->team);
    size_t n_sums = 0;
    kind->n_slots = 0;
    for (int t = 0; t < kind->n_row_tiles; t++) {
        struct row_tile *tile = &kind->row_tiles[t];
        int n_queries = tile->n_rows * kind->group_heads;
        size_t wanted = slot_floats(kind, tile) * (size_t)(tile->n_blocks * n_groups);
        tile->is_cut = n_threads > 1 && tile->n_blocks > 1 && n_queries <= ATTENTION_QUERIES &&
                       (int64_t)tile->n_blocks * CUT_UNITS * n_threads > n_blocks * n_groups &&
                       n_pending + n_groups <= CUT_UNITS * n_threads && wanted <= cpu->n_cut_sums - n_sums;
        tile->first_slot = kind->n_slots;
        kind->n_slots += tile->is_cut ? tile->n_blocks : 1;
        if (!tile->is_cut)
            continue;
        tile->slots = n_sums;
        tile->first_pending = n_pending;
        n_sums += wanted;
        for (int i = 0; i < n_groups; i++)
            atomic_init(&kind->cut_pending[n_pending++], tile->n_blocks);
    }
}

void cpu_attention_begin(struct cpu_backend *cpu)
{
    const struct step *step = cpu->step;
    assert(step->n_rows <= cpu->max_rows);
    for (int i = 0; i < cpu->n_kinds; i++) {
        struct cpu_kind *kind = &cpu->kinds[i];
        /* Few rows make small tiles, so that there is a unit for every thread. */
        int64_t n_units = (int64_t)step->n_rows * kind->shape.n_heads / ATTENTION_ROWS;
        int n_queries = n_units >= 8 * team_n_threads(cpu->team) ? ATTENTION_ROWS : ATTENTION_QUERIES;
        /* Where a step has fewer blocks than threads, their head groups become smaller. */
        int n = divide_up(heads_per_kv(&kind->shape), ATTENTION_QUERIES);
        int64_t n_blocks;
        do {
            kind->group_heads = group_heads(&kind->shape, n);
            n_blocks = make_tiles(kind, step, n_queries / kind->group_heads);
            n *= 2;
        } while (kind->group_heads > 4 && n_blocks * n_head_groups(kind) < team_n_threads(cpu->team));
        make_units(cpu, kind, n_blocks);
        if (kind->shape.rope != ROPE_NONE)
            team_run(cpu->team, fill_angles, &(struct angles_job){ step, kind });
    }
}

/* ---- rotary embedding, storing keys and values ---- */

/* The units of one part of the KV heads, which lie on one NUMA node; its threads take them first. */
struct span {
    _Alignas(64) atomic_int next; /* unit */
    int first_group, n_groups, n_units;
};

struct attention_job {
    struct cpu_backend *cpu;
    const struct cpu_kind *kind; /* of the layer */
    float *qkv, *y;
    struct floats q_norm, k_norm;
    struct floats sinks; /* [n_heads] */
    const struct kv_memory *kv;
    int layer;
    int n_spans;
    struct span spans[NODES_MAX];
};

/* Floats of a row of the input of attention. */
static int qkv_floats(const struct attention_shape *shape)
{
    if (shape->n_latent > 0)
        return shape->n_heads * shape->head_dim;
    return attention_qkv_heads(shape) * shape->head_dim;
}

/* Rotates the heads of q and k of a row; k directly follows q. */
static void turn_row(const struct cpu_backend *cpu, const struct attention_shape *shape, float *row,
                     const float *cos_sin)
{
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

/* The values of a row: those of the row itself, or in values [n_kv_heads][head_dim] if they are its keys. */
static const float *make_values(const struct cpu_backend *cpu, const struct attention_shape *shape,
                                float *keys, float *values)
{
    static const float ONES[ATTENTION_MAX_DIM] = { [0 ... ATTENTION_MAX_DIM - 1] = 1 };
    int n = shape->head_dim, n_kv = shape->n_kv_heads * n;
    const float *from = shape->keys_are_values ? keys : keys + n_kv;
    float *to = shape->keys_are_values ? values : keys + n_kv;
    if (shape->norms_values)
        cpu->kernels.rmsnorm(to, from, ONES, shape->n_kv_heads, n, shape->qk_norm_eps);
    else if (shape->keys_are_values)
        memcpy(to, from, (size_t)n_kv * sizeof *to);
    return to;
}

static void rope_store_some(void *arg, int thread, int n_threads)
{
    const struct attention_job *job = arg;
    const struct attention_shape *shape = &job->kind->shape;
    const struct attention_scratch *scratch = &job->cpu->attention_scratch[thread];
    const struct kernels *k = &job->cpu->kernels;
    int n_q = shape->n_heads * shape->head_dim, n_kv = shape->n_kv_heads * shape->head_dim;
    bool all = shape->norms_all_heads;
    int node = team_node_of(job->cpu->team, thread);
    const float *q_norm = cpu_constants(job->q_norm, (size_t)(all ? n_q : shape->head_dim), node);
    const float *k_norm = cpu_constants(job->k_norm, (size_t)(all ? n_kv : shape->head_dim), node);
    int64_t begin, end;
    team_range(job->cpu->step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *row = job->qkv + r * qkv_floats(shape);
        const float *values = make_values(job->cpu, shape, row + n_q, scratch->values);
        if (q_norm)
            k->rmsnorm(row, row, q_norm, all ? 1 : shape->n_heads, all ? n_q : shape->head_dim,
                       shape->qk_norm_eps);
        if (k_norm)
            k->rmsnorm(row + n_q, row + n_q, k_norm, all ? 1 : shape->n_kv_heads,
                       all ? n_kv : shape->head_dim, shape->qk_norm_eps);
        turn_row(job->cpu, shape, row, job->kind->cos_sin + r * shape->rotary_dim);
        cpu_kv_store(job->cpu, job->kv, job->layer, (int)r, row + n_q, values, scratch->kv);
    }
}

void cpu_rope_store(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                    struct kv_memory *kv, int layer)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct cpu_kind *kind = cpu_kind_of(cpu, layer);
    struct attention_job job = { .cpu = cpu,
                                 .kind = kind,
                                 .qkv = cpu_rows(qkv, cpu->step->n_rows, qkv_floats(&kind->shape)),
                                 .q_norm = q_norm,
                                 .k_norm = k_norm,
                                 .kv = kv,
                                 .layer = layer };
    if (job.cpu->step->n_rows == 1)
        rope_store_some(&job, 0, 1);
    else
        team_run(job.cpu->team, rope_store_some, &job);
}

struct prefix_job {
    struct cpu_backend *cpu;
    struct kv_memory *kv;
    int layer;
    const struct kv_prefix *const *prefixes;
    const int32_t *adapters;
};

static void prefix_store_some(void *arg, int thread, int n_threads)
{
    const struct prefix_job *job = arg;
    const struct step *step = job->cpu->step;
    const struct attention_shape *shape = &cpu_kind_of(job->cpu, job->layer)->shape;
    size_t n_kv = (size_t)shape->n_kv_heads * (size_t)shape->head_dim;
    int64_t begin, end;
    team_range(step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const struct kv_prefix *prefix = job->adapters[r] >= 0 ? job->prefixes[job->adapters[r]] : NULL;
        int position = step->positions[r];
        if (!prefix || position >= prefix->n)
            continue;
        size_t at = ((size_t)job->layer * (size_t)prefix->n + (size_t)position) * 2 * n_kv;
        const float *keys = cpu_floats(floats_at(prefix->rows, at), 2 * n_kv);
        cpu_kv_store(job->cpu, job->kv, job->layer, (int)r, keys, keys + n_kv,
                     job->cpu->attention_scratch[thread].kv);
    }
}

void cpu_prefix_store(struct backend *be, struct kv_memory *kv, int layer,
                      const struct kv_prefix *const *prefixes, const int32_t *adapters)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct prefix_job job = {
        .cpu = cpu, .kv = kv, .layer = layer, .prefixes = prefixes, .adapters = adapters
    };
    if (cpu->step->n_rows == 1)
        prefix_store_some(&job, 0, 1);
    else
        team_run(cpu->team, prefix_store_some, &job);
}

struct latent_job {
    struct cpu_backend *cpu;
    const struct cpu_kind *kind;
    float *queries, *kv;
    const float *q;
    struct floats norm;
    int q_dim;
    const struct kv_memory *memory;
    int layer;
};

static void rotate_latent(const struct cpu_backend *cpu, const struct attention_shape *shape, float *heads,
                          const float *cos_sin, int n_heads)
{
    rope_fn *rope = shape->rope == ROPE_HALF ? cpu->kernels.rope_half : cpu->kernels.rope_interleaved;
    rope(heads + shape->n_latent, cos_sin, n_heads, shape->head_dim, shape->rotary_dim);
}

static void latent_store_some(void *arg, int thread, int n_threads)
{
    const struct latent_job *job = arg;
    const struct cpu_backend *cpu = job->cpu;
    const struct attention_shape *shape = &job->kind->shape;
    int head_dim = shape->head_dim, n_rotary = shape->rotary_dim;
    const float *norm = cpu_constants(job->norm, (size_t)shape->n_latent, team_node_of(cpu->team, thread));
    int64_t begin, end;
    team_range(cpu->step->n_rows, 1, thread, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *cos_sin = job->kind->cos_sin + r * n_rotary;
        const float *q = job->q + r * shape->n_heads * job->q_dim + job->q_dim - n_rotary;
        float *queries = job->queries + r * shape->n_heads * head_dim, *kv = job->kv + r * head_dim;
        for (int h = 0; h < shape->n_heads; h++)
            memcpy(queries + h * head_dim + shape->n_latent, q + h * job->q_dim,
                   (size_t)n_rotary * sizeof *q);
        rotate_latent(cpu, shape, queries, cos_sin, shape->n_heads);
        cpu->kernels.rmsnorm(kv, kv, norm, 1, shape->n_latent, shape->qk_norm_eps);
        rotate_latent(cpu, shape, kv, cos_sin, 1);
        cpu_kv_store_latent(job->cpu, job->memory, job->layer, (int)r, kv);
    }
}

void cpu_latent_store(struct backend *be, struct floats queries, struct floats q, int q_dim, struct floats kv,
                      struct floats norm, struct kv_memory *memory, int layer)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct cpu_kind *kind = cpu_kind_of(cpu, layer);
    const struct attention_shape *shape = &kind->shape;
    int n_rows = cpu->step->n_rows;
    assert(shape->n_latent > 0 && q_dim >= shape->rotary_dim);
    struct latent_job job = { .cpu = cpu,
                              .kind = kind,
                              .queries = cpu_rows(queries, n_rows, shape->n_heads * shape->head_dim),
                              .kv = cpu_rows(kv, n_rows, shape->head_dim),
                              .q = cpu_rows(q, n_rows, shape->n_heads * q_dim),
                              .norm = norm,
                              .q_dim = q_dim,
                              .memory = memory,
                              .layer = layer };
    assert(job.queries && job.q && job.kv);
    if (n_rows == 1)
        latent_store_some(&job, 0, 1);
    else
        team_run(cpu->team, latent_store_some, &job);
}

/* ---- attention ---- */

/* The query heads of a unit: heads begin..begin + n - 1, which use kv_head. */
struct heads {
    int kv_head, begin, n;
};

static struct heads heads_of_group(const struct cpu_kind *kind, int group)
{
    int heads = heads_per_kv(&kind->shape), groups = groups_of_head(kind);
    int from = group % groups * kind->group_heads, left = heads - from;
    return (struct heads){ group / groups, group / groups * heads + from, min_int(left, kind->group_heads) };
}

static const struct kv_part *part_of_head(const struct attention_job *job, int kv_head)
{
    const struct kv_part *part = job->kv->layers[job->layer].parts;
    while (kv_head >= part->first_head + part->n_heads)
        part++;
    return part;
}

/* The keys of a KV head in page 0. */
static const uint8_t *keys_of(const struct attention_job *job, int kv_head)
{
    const struct kv_part *part = part_of_head(job, kv_head);
    size_t head_bytes = job->kv->layers[job->layer].head_bytes;
    return part->base + (size_t)(kv_head - part->first_head) * 2 * head_bytes; /* latent attention has one */
}

/* Fills work for the rows of a tile from begin on: a query for each row and head. */
static void load_queries(const struct attention_job *job, const struct attention_scratch *scratch,
                         struct attention_work *work, const struct row_tile *tile, const struct heads *heads)
{
    const struct attention_shape *shape = &job->kind->shape;
    const struct step *step = job->cpu->step;
    int head_dim = shape->head_dim, n_queries = 0;
    size_t q_row = (size_t)qkv_floats(shape);
    for (int r = tile->begin; r < tile->begin + tile->n_rows; r++) {
        const float *q = job->qkv + (size_t)r * q_row + (size_t)(heads->begin * head_dim);
        job->cpu->kernels.scale(scratch->q + n_queries * head_dim, q, shape->scale,
                                (int64_t)heads->n * head_dim);
        struct attention_view view = view_of(shape, step, r);
        for (int h = 0; h < heads->n; h++) {
            view.slope = shape->alibi_slopes ? shape->alibi_slopes[heads->begin + h] : 0;
            scratch->views[n_queries++] = view;
        }
    }
    *work = (struct attention_work){
        .q = scratch->q,
        .views = scratch->views,
        .n_queries = n_queries,
        .head_dim = head_dim,
        .n_latent = shape->n_latent,
        .softcap = shape->softcap,
        .base = keys_of(job, heads->kv_head),
        .page_bytes = part_of_head(job, heads->kv_head)->page_bytes,
        .values_offset = job->kv->layers[job->layer].values_offset,
        .page_table = cpu_page_table(step, shape, step->seqs[tile->begin]),
    };
}

static attention_fn *kernel_of(const struct attention_job *job)
{
    const struct kernels *k = &job->cpu->kernels;
    return job->kv->dtype == DTYPE_F16    ? k->attention_f16
           : job->kv->dtype == DTYPE_BF16 ? k->attention_bf16
           : job->kv->dtype == DTYPE_I8   ? k->attention_int8
                                          : k->attention_f32;
}

/* The softmax denominator of a query, in units of exp(max). A sink far above max makes it infinite,
 * and the result 0. */
static float find_denominator(const struct attention_sums *sums, int query, const float *sinks, int head)
{
    return sinks ? sums->total[query] + exp_ref(sinks[head] - sums->max[query]) : sums->total[query];
}

/* Divides the sums of all queries of a tile by their softmax denominators. */
static void store_outputs(const struct attention_job *job, const struct row_tile *tile,
                          const struct heads *heads, const struct attention_sums *sums)
{
    const struct attention_shape *shape = &job->kind->shape;
    const float *sinks = cpu_floats(job->sinks, (size_t)shape->n_heads);
    int value_dim = cpu_value_dim(shape), query = 0;
    for (int r = tile->begin; r < tile->begin + tile->n_rows; r++) {
        float *y = job->y + ((size_t)r * (size_t)shape->n_heads + (size_t)heads->begin) * (size_t)value_dim;
        for (int h = 0; h < heads->n; h++, query++, y += value_dim)
            job->cpu->kernels.divide(y, sums->o + query * value_dim,
                                     find_denominator(sums, query, sinks, heads->begin + h), value_dim);
    }
}

/* The tile of a slot: the last one whose first slot is at most slot. */
static const struct row_tile *tile_of_slot(const struct cpu_kind *kind, int slot)
{
    int low = 0, high = kind->n_row_tiles - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (kind->row_tiles[middle].first_slot <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return &kind->row_tiles[low];
}

/* A unit of work: a head group of a tile, or of one of its blocks if the tile is cut. */
struct unit {
    const struct row_tile *tile;
    int group, block; /* block: of the tile; 0 if it is not cut */
};

static struct unit unit_of(const struct cpu_kind *kind, const struct span *span, int index)
{
    const struct row_tile *tile = tile_of_slot(kind, index / span->n_groups);
    int part = index - tile->first_slot * span->n_groups, n = tile->is_cut ? tile->n_blocks : 1;
    if (kind->shape.n_latent > 0) /* all groups read the same rows: a block's are computed together */
        return (struct unit){ tile, span->first_group + part % span->n_groups, part / span->n_groups };
    return (struct unit){ tile, span->first_group + part / n, part % n };
}

/* ---- prefetching: pages are at random addresses, which the hardware prefetcher cannot predict ---- */

struct ahead {
    const uint8_t *pages[ATTENTION_PREFETCH_PAGES];
};

/* The first keys of a block of a tile; the last page is repeated if there are fewer. */
static void find_ahead(const struct attention_job *job, struct ahead *ahead, const struct row_tile *tile,
                       int kv_head, int block)
{
    const struct step *step = job->cpu->step;
    const int32_t *table = cpu_page_table(step, &job->kind->shape, step->seqs[tile->begin]);
    const uint8_t *keys = keys_of(job, kv_head);
    size_t page_bytes = part_of_head(job, kv_head)->page_bytes;
    int first = block * (ATTENTION_BLOCK / CPU_PAGE_TOKENS);
    int last = step->positions[tile->begin + tile->n_rows - 1] / CPU_PAGE_TOKENS;
    for (int i = 0; i < ATTENTION_PREFETCH_PAGES; i++)
        ahead->pages[i] = keys + (size_t)table[min_int(first + i, last)] * page_bytes;
}

/* The unit that the thread will probably compute after this one, if all threads are equally fast.
 * False: none. */
static bool find_ahead_of_unit(const struct attention_job *job, const struct span *span, struct ahead *ahead,
                               int unit)
{
    const struct cpu_kind *kind = job->kind;
    int next = unit - team_n_threads(job->cpu->team) / job->n_spans;
    if (next < 0)
        return false;
    struct unit u = unit_of(kind, span, next);
    find_ahead(job, ahead, u.tile, heads_of_group(kind, u.group).kv_head, u.tile->first_block + u.block);
    return true;
}

/* Computes all blocks of a tile. Groups of rows that fit the kernel alternate at each block, while
 * it is in the cache. */
static void attend_whole(const struct attention_job *job, const struct attention_scratch *scratch,
                         const struct span *span, int unit, const struct row_tile *tile,
                         const struct heads *heads)
{
    float max[ATTENTION_ROWS] = { 0 }, total[ATTENTION_ROWS] = { 0 };
    float block_max[ATTENTION_QUERIES], block_total[ATTENTION_QUERIES];
    struct attention_sums one = { block_max, block_total, scratch->block_o };
    struct attention_work all, some;
    struct ahead ahead;
    load_queries(job, scratch, &all, tile, heads);
    int most = ATTENTION_QUERIES / heads->n * heads->n, end = tile->first_block + tile->n_blocks;
    int value_dim = attention_value_dim(&all);
    for (int block = tile->first_block; block < end; block++) {
        bool is_known = true;
        if (block + 1 < end)
            find_ahead(job, &ahead, tile, heads->kv_head, block + 1);
        else
            is_known = find_ahead_of_unit(job, span, &ahead, unit);
        for (int i = 0; i < all.n_queries; i += most) {
            struct attention_sums sums = { max + i, total + i, scratch->o + i * value_dim };
            some = all;
            some.q += i * all.head_dim;
            some.views += i;
            some.n_queries = min_int(all.n_queries - i, most);
            if (i + most >= all.n_queries && is_known)
                some.next = ahead.pages;
            kernel_of(job)(block == tile->first_block ? &sums : &one, &some, block);
            if (block > tile->first_block)
                job->cpu->kernels.attention_merge(&sums, &one, some.n_queries, value_dim);
        }
    }
    struct attention_sums sums = { max, total, scratch->o };
    store_outputs(job, tile, heads, &sums);
}

static struct attention_sums slot_of(const struct attention_job *job, const struct row_tile *tile, int group,
                                     int block)
{
    const struct cpu_kind *kind = job->kind;
    size_t index = (size_t)group * (size_t)tile->n_blocks + (size_t)block;
    float *slot = job->cpu->cut_sums + tile->slots + index * slot_floats(kind, tile);
    int n_queries = tile->n_rows * kind->group_heads;
    return (struct attention_sums){ slot, slot + n_queries, slot + 2 * n_queries };
}

/* Computes one block of a cut tile. The thread that finishes the last block of a head group merges
 * all of them, in order. */
static void attend_block(const struct attention_job *job, const struct attention_scratch *scratch,
                         const struct span *span, int unit, const struct row_tile *tile,
                         const struct heads *heads, int group, int block)
{
    const struct cpu_kind *kind = job->kind;
    struct attention_work work;
    struct attention_sums sums = slot_of(job, tile, group, block);
    load_queries(job, scratch, &work, tile, heads);
    struct ahead ahead;
    if (find_ahead_of_unit(job, span, &ahead, unit))
        work.next = ahead.pages;
    kernel_of(job)(&sums, &work, tile->first_block + block);
    atomic_int *pending = &kind->cut_pending[tile->first_pending + group];
    if (atomic_fetch_sub_explicit(pending, 1, memory_order_acq_rel) > 1)
        return;
    atomic_store_explicit(pending, tile->n_blocks, memory_order_relaxed); /* reset for the next layer */
    sums = slot_of(job, tile, group, 0);
    for (int i = 1; i < tile->n_blocks; i++) {
        struct attention_sums more = slot_of(job, tile, group, i);
        job->cpu->kernels.attention_merge(&sums, &more, work.n_queries, attention_value_dim(&work));
    }
    store_outputs(job, tile, heads, &sums);
}

static void attention_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct attention_job *job = arg;
    const struct cpu_kind *kind = job->kind;
    const struct attention_scratch *scratch = &job->cpu->attention_scratch[thread];
    int own = team_node_of(job->cpu->team, thread);
    for (int i = 0; i < job->n_spans;) {
        struct span *span = &job->spans[(own + i) % job->n_spans];
        /* The last rows of a prompt have the most work: they come first, so that all threads end
         * together. */
        int unit = span->n_units - 1 - atomic_fetch_add_explicit(&span->next, 1, memory_order_relaxed);
        if (unit < 0) {
            i++;
            continue;
        }
        struct unit u = unit_of(kind, span, unit);
        struct heads heads = heads_of_group(kind, u.group);
        if (u.tile->is_cut)
            attend_block(job, scratch, span, unit, u.tile, &heads, u.group, u.block);
        else
            attend_whole(job, scratch, span, unit, u.tile, &heads);
    }
}

void cpu_attention(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                   const struct kv_memory *kv, int layer)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct cpu_kind *kind = cpu_kind_of(cpu, layer);
    const struct attention_shape *shape = &kind->shape;
    int n_rows = cpu->step->n_rows;
    struct attention_job job = { .cpu = cpu,
                                 .kind = kind,
                                 .qkv = cpu_rows(qkv, n_rows, qkv_floats(shape)),
                                 .y = cpu_rows(y, n_rows, shape->n_heads * cpu_value_dim(shape)),
                                 .sinks = sinks,
                                 .kv = kv,
                                 .layer = layer };
    const struct kv_layer *kv_layer = &kv->layers[layer];
    job.n_spans = kv_layer->n_parts;
    for (int i = 0; i < job.n_spans; i++) {
        const struct kv_part *part = &kv_layer->parts[i];
        int n_groups = groups_of_head(kind);
        job.spans[i].first_group = part->first_head * n_groups;
        job.spans[i].n_groups = part->n_heads * n_groups;
        job.spans[i].n_units = part->n_heads * n_groups * kind->n_slots;
    }
    team_run(job.cpu->team, attention_some, &job);
}
