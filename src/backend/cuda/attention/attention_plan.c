#include "backend/cuda/attention/attention_plan.h"

#include <limits.h>
#include <string.h>

/* Units for each block of the card that can run at the same time, at most, if all tiles are cut. More even out the work of the
 * multiprocessors better; fewer read queries and store partial results less often. */
enum { UNITS_FOR_EACH = 4 };

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

struct head_groups head_groups_of(const struct attention_shape *shape)
{
    int most = shape->n_latent > 0 ? CUDA_LATENT_QUERIES : CUDA_TILE_QUERIES;
    int heads = shape->n_heads / shape->n_kv_heads, groups = (heads + most - 1) / most;
    return (struct head_groups){ .tile_queries = most,
                                 .heads_of_kv = heads,
                                 .groups_of_kv = groups,
                                 .n_groups = groups * shape->n_kv_heads,
                                 .tile_rows = most / min_int(heads, most) };
}

/* Of pages of keys and values, by their type: for any head dimension, and for some of them. */
static const struct {
    enum cuda_kernel any, of_64, of_128, wide_to_128, wide_to_256, wide_64, wide_128;
} MMA_KERNELS[] = {
    [CUDA_KV_F16] = { CUDA_KERNEL_attention_f16, CUDA_KERNEL_attention_f16_64, CUDA_KERNEL_attention_f16_128,
                      CUDA_KERNEL_attention_wide_f16_to128, CUDA_KERNEL_attention_wide_f16_to256,
                      CUDA_KERNEL_attention_wide_f16_64, CUDA_KERNEL_attention_wide_f16_128 },
    [CUDA_KV_BF16] = { CUDA_KERNEL_attention_bf16, CUDA_KERNEL_attention_bf16_64,
                       CUDA_KERNEL_attention_bf16_128, CUDA_KERNEL_attention_wide_bf16_to128,
                       CUDA_KERNEL_attention_wide_bf16_to256, CUDA_KERNEL_attention_wide_bf16_64,
                       CUDA_KERNEL_attention_wide_bf16_128 },
    [CUDA_KV_I8] = { CUDA_KERNEL_attention_i8, CUDA_KERNEL_attention_i8, CUDA_KERNEL_attention_i8_128,
                     CUDA_KERNEL_attention_wide_i8_to128, CUDA_KERNEL_attention_wide_i8_to256,
                     CUDA_KERNEL_attention_wide_i8_to128, CUDA_KERNEL_attention_wide_i8_128 },
};

/* Of pages of latents, by their type: with matrix instructions, and without. */
static const struct {
    enum cuda_kernel mma, plain;
} LATENT_KERNELS[] = {
    [CUDA_KV_F16] = { CUDA_KERNEL_attention_latent_f16, CUDA_KERNEL_attention_latent_plain_f16 },
    [CUDA_KV_BF16] = { CUDA_KERNEL_attention_latent_bf16, CUDA_KERNEL_attention_latent_plain_bf16 },
    [CUDA_KV_I8] = { CUDA_KERNEL_attention_latent_i8, CUDA_KERNEL_attention_latent_plain_i8 },
};

static struct attention_kernels plain_kernel(enum cuda_kernel kernel)
{
    return (struct attention_kernels){ .split = kernel, .wide = N_CUDA_KERNELS, .split_threads = 128 };
}

static struct attention_kernels mma_kernels_of(int n, enum cuda_kv_type type)
{
    size_t query_bytes = cuda_query_bytes(n, cuda_query_parts((int)type));
    return (struct attention_kernels){
        .split = n == 128  ? MMA_KERNELS[type].of_128
                 : n == 64 ? MMA_KERNELS[type].of_64
                           : MMA_KERNELS[type].any,
        .wide = n == 128   ? MMA_KERNELS[type].wide_128
                : n == 64  ? MMA_KERNELS[type].wide_64
                : n <= 128 ? MMA_KERNELS[type].wide_to_128
                : n <= 256 ? MMA_KERNELS[type].wide_to_256
                           : N_CUDA_KERNELS,
        .split_threads = 128,
        .wide_threads = 128,
        .split_shared = CUDA_SPLIT_SHARED + query_bytes,
        .wide_shared = 4 * query_bytes,
        .wide_tiles = 4,
    };
}

static struct attention_kernels latent_kernels_of(const struct attention_shape *shape, enum cuda_kv_type type,
                                                  bool has_mma, size_t shared_bytes)
{
    struct attention_kernels k = { .split = LATENT_KERNELS[type].mma,
                                   .wide = N_CUDA_KERNELS,
                                   .split_threads = 256 };
    int n_parts = cuda_query_parts((int)type);
    for (k.n_stages = 2; k.n_stages > 0 && has_mma && shape->n_latent <= CUDA_MAX_LATENT; k.n_stages--) {
        k.split_shared = cuda_latent_bytes(shape->head_dim, k.n_stages, n_parts);
        if (k.split_shared <= shared_bytes)
            return k;
    }
    return plain_kernel(LATENT_KERNELS[type].plain);
}

struct attention_kernels attention_kernels_of(const struct attention_shape *shape, enum cuda_kv_type type,
                                              size_t shared_bytes, int level)
{
    bool is_latent = shape->n_latent > 0, has_mma = type != CUDA_KV_BF16 || level >= 80;
    if (type == CUDA_KV_F32)
        return plain_kernel(is_latent ? CUDA_KERNEL_attention_latent_f32 : CUDA_KERNEL_attention_f32);
    if (is_latent)
        return latent_kernels_of(shape, type, has_mma, shared_bytes);
    return has_mma ? mma_kernels_of(shape->head_dim, type) : plain_kernel(CUDA_KERNEL_attention_plain_bf16);
}

int attention_plan_units(const struct attention_shape *shape, const struct attention_limits *limits,
                         int n_rows)
{
    return 2 * n_rows + UNITS_FOR_EACH * limits->n_resident / head_groups_of(shape).n_groups;
}

/* The tile that begins with a row. */
static struct attention_unit tile_of(const struct attention_shape *shape, const struct step *step, int row,
                                     int most)
{
    int seq = step->seqs[row], prefix_len = step->prefix_lens ? step->prefix_lens[seq] : 0, begin = INT_MAX,
        end = 0;
    struct attention_unit tile = { .row = row, .table = step->slots ? step->slots[seq] : seq, .slot = -1 };
    for (int r = row; r < step->n_rows && r < row + most && step->seqs[r] == seq; r++) {
        int pos = step->positions[r], first = pos < shape->first ? 0 : shape->first;
        int own = shape->window > 0 ? max_int(pos - shape->window + 1, first) : first;
        begin = min_int(begin, own);
        end = max_int(end, pos < prefix_len ? prefix_len : pos + 1);
        tile.n_rows++;
    }
    tile.first_block = begin / CUDA_ATTENTION_BLOCK;
    tile.n_blocks = tile.n_tile_blocks = (end + CUDA_ATTENTION_BLOCK - 1) / CUDA_ATTENTION_BLOCK -
                                         tile.first_block;
    return tile;
}

/* Rows of the same sequence from a row on. */
static int run_length(const struct step *step, int row)
{
    int n = 1;
    while (row + n < step->n_rows && step->seqs[row + n] == step->seqs[row])
        n++;
    return n;
}

struct totals {
    int64_t n_blocks;
    int n_wide; /* tiles of runs of rows that need several */
};

static struct totals count(const struct attention_shape *shape, const struct step *step, int most)
{
    struct totals totals = { 0 };
    for (int row = 0, n; row < step->n_rows; row += n) {
        n = run_length(step, row);
        if (n > most)
            totals.n_wide += (n + most - 1) / most;
        for (int r = row; r < row + n; r += most)
            totals.n_blocks += tile_of(shape, step, r, min_int(most, row + n - r)).n_blocks;
    }
    return totals;
}

/* The parts of a tile, so that no unit keeps one block of the card busy while the others wait. */
static void add_split(struct attention_plan *plan, struct attention_unit tile,
                      const struct head_groups *groups, const struct attention_limits *limits,
                      int64_t n_blocks, int64_t *n_slots)
{
    int64_t wanted = (int64_t)tile.n_blocks * tile.n_rows * groups->n_groups *
                     min_int(groups->heads_of_kv, groups->tile_queries);
    /* Rounded up, so that n_blocks / span is within what attention_plan_units() counts. */
    int64_t most = (int64_t)UNITS_FOR_EACH * limits->n_resident,
            span = (n_blocks * groups->n_groups + most - 1) / most;
    if (tile.n_blocks <= span || wanted > limits->n_slots - *n_slots) {
        plan->units[plan->n_units++] = tile;
        return;
    }
    tile.slot = (int32_t)*n_slots;
    *n_slots += wanted;
    int first = tile.first_block;
    for (int at = 0; at < tile.n_tile_blocks; at += (int)span) {
        tile.at = at;
        tile.first_block = first + at;
        tile.n_blocks = min_int((int)span, tile.n_tile_blocks - at);
        plan->units[plan->n_units++] = tile;
    }
}

/* The last tiles of a prompt have the most work: they come first, so that all blocks of the card end together. */
static void turn_over(struct attention_unit *units, int n)
{
    for (int i = 0; i < n / 2; i++) {
        struct attention_unit unit = units[i];
        units[i] = units[n - 1 - i];
        units[n - 1 - i] = unit;
    }
}

void attention_plan_make(struct attention_plan *split, struct attention_plan *wide,
                         const struct attention_shape *shape, const struct attention_limits *limits,
                         const struct step *step)
{
    struct head_groups groups = head_groups_of(shape);
    int most = groups.tile_rows;
    struct totals totals = count(shape, step, most);
    bool has_wide = limits->least_wide > 0 && (int64_t)totals.n_wide * groups.n_groups >= limits->least_wide;
    int64_t n_slots = 0;
    memset(split, 0, sizeof *split);
    memset(wide, 0, sizeof *wide);
    for (int row = 0, n; row < step->n_rows; row += n) {
        n = run_length(step, row);
        for (int r = row; r < row + n; r += most) {
            struct attention_unit tile = tile_of(shape, step, r, min_int(most, row + n - r));
            if (has_wide && n > most)
                wide->units[wide->n_units++] = tile;
            else
                add_split(split, tile, &groups, limits, totals.n_blocks, &n_slots);
        }
    }
    turn_over(wide->units, wide->n_units);
    turn_over(split->units, split->n_units);
}
