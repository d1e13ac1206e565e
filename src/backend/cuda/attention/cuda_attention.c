/* Attention of the CUDA backend: the units of a step, and the launches.
 *
 * The list of units is made on the host when the first layer of a kind needs it, and is sent with the step, so that the
 * launches depend on the step's shape only: a grid has a power of two of blocks, which take one unit after the other. */
#include "backend/cuda/attention/attention_plan.h"
#include "backend/cuda/attention/cuda_kv.h"

#include <stdlib.h>
#include <string.h>

enum {
    SPLIT_BLOCKS =
        3, /* of attention.c that a multiprocessor computes at the same time, and of attention_wide.c */
    WIDE_BLOCKS = 2,
    LEAST_WIDE = 8, /* tiles times head groups for each multiprocessor: two blocks of attention_wide.c */
};

/* The plan of a kind of attention. */
struct kind_plan {
    struct attention_plan *split, *wide;                 /* on the host, for max_rows */
    const struct attention_plan *card_split, *card_wide; /* of the running step; NULL: not sent */
    uint32_t *pending; /* on the card, [max_rows][n_groups]; 0 between launches */
    bool is_made;
};

struct cuda_attention {
    int max_rows;
    struct prefix_row *prefixes; /* [max_rows] */
    float *partials;             /* on the card: layers run one after the other, all kinds use the same */
    size_t n_partials;           /* floats */
    struct kind_plan kinds[];    /* [n_kinds] */
};

static int value_dim(const struct attention_shape *shape)
{
    return shape->n_latent > 0 ? shape->n_latent : shape->head_dim;
}

/* A partial result of one query: values, largest score, total; a multiple of 32 bytes. */
static int slot_floats(const struct attention_shape *shape)
{
    return value_dim(shape) + 8;
}

/* ---- memory ---- */

static struct cuda_attention *attention_of(struct cuda_backend *cuda)
{
    if (!cuda->attention)
        cuda->attention = calloc(1, sizeof *cuda->attention +
                                        (size_t)cuda->n_kinds * sizeof *cuda->attention->kinds);
    return cuda->attention;
}

static void release_plans(struct cuda_backend *cuda)
{
    struct cuda_attention *all = cuda->attention;
    for (int i = 0; i < cuda->n_kinds; i++) {
        free(all->kinds[i].split);
        free(all->kinds[i].wide);
        cuda_memory_free(cuda, all->kinds[i].pending);
        all->kinds[i] = (struct kind_plan){ 0 };
    }
    free(all->prefixes);
    all->prefixes = NULL;
}

void cuda_attention_release(struct cuda_backend *cuda)
{
    if (!cuda->attention)
        return;
    release_plans(cuda);
    cuda_memory_free(cuda, cuda->attention->partials);
    free(cuda->attention);
    cuda->attention = NULL;
}

static struct attention_limits limits_of(const struct cuda_backend *cuda, const struct attention_shape *shape,
                                         bool has_wide)
{
    return (struct attention_limits){ .n_resident = cuda->n_sms * SPLIT_BLOCKS,
                                      .least_wide = has_wide ? cuda->n_sms * LEAST_WIDE : 0,
                                      .n_slots = (int64_t)(cuda->attention->n_partials /
                                                           (size_t)slot_floats(shape)) };
}

static size_t plan_bytes(const struct cuda_backend *cuda, const struct attention_shape *shape, int n_rows)
{
    struct attention_limits limits = limits_of(cuda, shape, true);
    return sizeof(struct attention_plan) +
           (size_t)attention_plan_units(shape, &limits, n_rows) * sizeof(struct attention_unit);
}

bool cuda_attention_reserve(struct cuda_backend *cuda, int max_rows)
{
    struct cuda_attention *all = attention_of(cuda);
    if (!all)
        return false;
    release_plans(cuda);
    all->max_rows = max_rows;
    all->prefixes = calloc((size_t)max_rows, sizeof *all->prefixes);
    bool has_all = all->prefixes != NULL;
    for (int i = 0; i < cuda->n_kinds && has_all; i++) {
        const struct attention_shape *shape = &cuda->kinds[i].shape;
        struct kind_plan *plan = &all->kinds[i];
        size_t n_pending = (size_t)max_rows * (size_t)head_groups_of(shape).n_groups;
        plan->split = calloc(1, plan_bytes(cuda, shape, max_rows));
        plan->wide = calloc(1, plan_bytes(cuda, shape, max_rows));
        plan->pending = cuda_memory_new(cuda, n_pending * sizeof *plan->pending);
        has_all = plan->split && plan->wide && plan->pending;
    }
    return has_all;
}

/* Allocates partial results for all blocks of all pages, if each page belongs to one decoding sequence; if many sequences
 * share pages, some tiles may stay whole. */
bool cuda_attention_reserve_cuts(struct cuda_backend *cuda, int n_pages)
{
    struct cuda_attention *all = attention_of(cuda);
    size_t n_blocks = (size_t)n_pages / (CUDA_ATTENTION_BLOCK / CUDA_PAGE_TOKENS) +
                      (size_t)(cuda->n_sms * SPLIT_BLOCKS);
    size_t block = 0, n_floats;
    if (!all)
        return false;
    for (int i = 0; i < cuda->n_kinds; i++) {
        const struct attention_shape *shape = &cuda->kinds[i].shape;
        size_t own = (size_t)shape->n_heads * (size_t)slot_floats(shape);
        block = own > block ? own : block;
    }
    if (__builtin_mul_overflow(n_blocks, block, &n_floats) || n_floats > SIZE_MAX / sizeof(float))
        return false;
    if (n_floats <= all->n_partials)
        return true;
    float *partials = cuda_memory_new(cuda, n_floats * sizeof *partials);
    if (!partials)
        return false;
    cuda_memory_free(cuda, all->partials);
    all->partials = partials;
    all->n_partials = n_floats;
    return true;
}

struct prefix_row *cuda_attention_prefixes(struct cuda_backend *cuda)
{
    return cuda->attention->prefixes;
}

/* ---- a step ---- */

void cuda_attention_begin(struct cuda_backend *cuda)
{
    for (int i = 0; cuda->attention && i < cuda->n_kinds; i++)
        cuda->attention->kinds[i].is_made = false;
}

static const struct attention_plan *send(struct cuda_backend *cuda, const struct attention_shape *shape,
                                         const struct attention_plan *plan)
{
    size_t n_bytes = sizeof *plan + (size_t)plan->n_units * sizeof *plan->units;
    return plan->n_units == 0
               ? NULL
               : cuda_step_data(cuda, plan, n_bytes, plan_bytes(cuda, shape, cuda->n_padded_rows));
}

static const struct kind_plan *plan_of(struct cuda_backend *cuda, const struct cuda_kind *kind, bool has_wide)
{
    struct kind_plan *plan = &cuda->attention->kinds[kind - cuda->kinds];
    if (plan->is_made)
        return plan;
    struct attention_limits limits = limits_of(cuda, &kind->shape, has_wide);
    attention_plan_make(plan->split, plan->wide, &kind->shape, &limits, cuda->step);
    plan->card_split = send(cuda, &kind->shape, plan->split);
    plan->card_wide = send(cuda, &kind->shape, plan->wide);
    plan->is_made = true;
    return plan;
}

/* Blocks of a launch for n parts of work: few different numbers, so that steps are alike. */
static int n_blocks_of(int64_t n, int most)
{
    int64_t blocks = 1;
    while (blocks < n && blocks < most)
        blocks *= 2;
    return blocks < most ? (int)blocks : most;
}

static void launch(struct cuda_backend *cuda, enum cuda_kernel kernel, int n_blocks, int n_threads,
                   size_t shared_bytes, const struct attention_args *args)
{
    struct cuda_grid grid = {
        .x = n_blocks, .y = 1, .z = 1, .n_threads = n_threads, .shared_bytes = shared_bytes
    };
    cuda_launch(cuda, kernel, grid, args, sizeof *args);
}

void cuda_attention(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                    const struct kv_memory *kv, int layer)
{
    struct cuda_backend *cuda = cuda_of(be);
    const struct cuda_kind *kind = cuda_kind_of(cuda, layer);
    const struct attention_shape *shape = &kind->shape;
    struct attention_kernels kernels = attention_kernels_of(shape, cuda_kv_type_of(kv->dtype),
                                                            cuda->shared_bytes, cuda->level);
    const struct kind_plan *plan = plan_of(cuda, kind, kernels.wide != N_CUDA_KERNELS);
    struct head_groups groups = head_groups_of(shape);
    size_t n_rows = (size_t)cuda->step->n_rows;
    int n_in = shape->n_latent > 0 ? shape->n_heads : attention_qkv_heads(shape);
    struct attention_args args = {
        .y = cuda_floats(y, n_rows * (size_t)(shape->n_heads * value_dim(shape))),
        .q = cuda_floats(qkv, n_rows * (size_t)(n_in * shape->head_dim)),
        .sinks = cuda_floats(sinks, (size_t)shape->n_heads),
        .slopes = shape->alibi_slopes,
        .pages = kv->layers[layer].pages,
        .positions = cuda->rows.positions,
        .seqs = cuda->rows.seqs,
        .prefix_lens = cuda->rows.prefix_lens,
        .tables = cuda_kv_tables(cuda, kind),
        .partials = cuda->attention->partials,
        .pending = plan->pending,
        .page_bytes = kv->layers[layer].page_bytes,
        .max_pages = cuda->rows.max_pages,
        .q_row = n_in * shape->head_dim,
        .slot_floats = slot_floats(shape),
        .n_heads = shape->n_heads,
        .heads_of_kv = groups.heads_of_kv,
        .n_groups = groups.n_groups,
        .groups_of_kv = groups.groups_of_kv,
        .head_dim = shape->head_dim,
        .value_dim = value_dim(shape),
        .n_latent = shape->n_latent,
        .window = shape->window,
        .first = shape->first,
        .tile_queries = groups.tile_queries,
        .n_stages = kernels.n_stages,
        .scale = shape->scale,
        .softcap = shape->softcap,
    };
    args.plan = plan->card_split;
    if (args.plan)
        launch(cuda, kernels.split,
               n_blocks_of((int64_t)plan->split->n_units * groups.n_groups, cuda->n_sms * SPLIT_BLOCKS),
               kernels.split_threads, kernels.split_shared, &args);
    args.plan = plan->card_wide;
    if (args.plan)
        launch(cuda, kernels.wide,
               n_blocks_of(((int64_t)plan->wide->n_units * groups.n_groups + kernels.wide_tiles - 1) /
                               kernels.wide_tiles,
                           cuda->n_sms * WIDE_BLOCKS),
               kernels.wide_threads, kernels.wide_shared, &args);
}
