/* Row-wise operations of the CUDA backend: norms, sums, activations, copies of rows, and tables of rotary embeddings. */
#include "backend/cuda/adapters/cuda_lora.h"
#include "backend/cuda/cuda.h"
#include "base/limits.h"
#include "kernels/cuda/rows_args.h"

static float *rows_of(struct floats floats, int n_rows, int n)
{
    return cuda_floats(floats, (size_t)n_rows * (size_t)n);
}

static bool is_aligned(const void *address)
{
    return (uintptr_t)address % 16 == 0; /* NULL is */
}

/* ---- norms ---- */

/* Weights of the adapters up to the last that a row uses, on the card. NULL: no row uses one, or a kept failure. */
static const struct norm_weights *send_updates(struct cuda_backend *cuda,
                                               const struct norm_update *const *updates,
                                               const int32_t *adapters, int n_rows, int n,
                                               bool *is_all_aligned)
{
    struct norm_weights weights[LIMIT_ADAPTERS] = { 0 };
    int n_used = 0, room = 1;
    bool has_any = false;
    for (int r = 0; updates && r < n_rows; r++) {
        int i = adapters[r];
        assert(i < LIMIT_ADAPTERS);
        n_used = i >= n_used ? i + 1 : n_used;
        if (i < 0 || !updates[i] || weights[i].w)
            continue;
        has_any = true;
        weights[i] = (struct norm_weights){ cuda_floats(updates[i]->w, (size_t)n),
                                            cuda_floats(updates[i]->b, (size_t)n) };
        *is_all_aligned = *is_all_aligned && is_aligned(weights[i].w) && is_aligned(weights[i].b);
    }
    while (room < n_used)
        room *= 2;
    return has_any ? cuda_step_data(cuda, weights, (size_t)n_used * sizeof *weights,
                                    (size_t)room * sizeof *weights)
                   : NULL;
}

void cuda_norm_adapted(struct backend *be, struct floats y, struct floats x, struct floats add,
                       struct floats w, struct floats b, int n_rows, int n, float eps,
                       const struct norm_update *const *updates, const int32_t *adapters)
{
    struct cuda_backend *cuda = cuda_of(be);
    int n_padded = cuda_padded_rows(cuda, n_rows);
    struct norm_args args = { .y = rows_of(y, n_padded, n),
                              .x = rows_of(x, n_padded, n),
                              .add = rows_of(add, n_padded, n),
                              .weights = { cuda_floats(w, (size_t)n), cuda_floats(b, (size_t)n) },
                              .n = n,
                              .eps = eps };
    bool is_held = n % 4 == 0 && n <= NORM_HELD && is_aligned(args.y) && is_aligned(args.x) &&
                   is_aligned(args.add) && is_aligned(args.weights.w) && is_aligned(args.weights.b);
    args.updates = send_updates(cuda, updates, adapters, n_rows, n, &is_held);
    if (args.updates) {
        args.adapters = cuda_adapters_rows(cuda, adapters, n_rows);
        args.updates = args.adapters ? args.updates : NULL;
    }
    enum cuda_kernel kernel = !is_held    ? CUDA_KERNEL_norm_any
                              : n <= 2048 ? CUDA_KERNEL_norm_2048
                              : n <= 4096 ? CUDA_KERNEL_norm_4096
                                          : CUDA_KERNEL_norm_8192;
    cuda_launch(cuda, kernel, (struct cuda_grid){ n_padded, 1, 1, NORM_THREADS, 0 }, &args, sizeof args);
}

bool cuda_norm_halves(struct cuda_backend *cuda, const float *y, int n_rows, int n, uint16_t *half,
                      int half_stride, int piece_rows, float *scales)
{
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    struct norm_args *args = cuda_last_launch(cuda, &kernel, &grid);
    if (!args || (kernel != CUDA_KERNEL_norm_2048 && kernel != CUDA_KERNEL_norm_4096 &&
                  kernel != CUDA_KERNEL_norm_8192 && kernel != CUDA_KERNEL_norm_any))
        return false;
    if (args->y != y || grid.x != n_rows || args->n != n || args->half)
        return false;
    args->half = half;
    args->half_stride = half_stride;
    args->half_piece_rows = piece_rows;
    args->scales = scales;
    return true;
}

void cuda_layernorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                    struct floats b, int n_rows, int n, float eps)
{
    cuda_norm_adapted(be, y, x, add, w, b, n_rows, n, eps, NULL, NULL);
}

void cuda_rmsnorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                  int n_rows, int n, float eps)
{
    cuda_norm_adapted(be, y, x, add, w, NO_FLOATS, n_rows, n, eps, NULL, NULL);
}

/* ---- operations on elements ---- */

/* vectors: the kernel for multiples of 4 elements, which follows the one for any number. */
static void launch_elements(struct cuda_backend *cuda, enum cuda_kernel any, enum cuda_kernel vectors,
                            struct elements_args *args, int n_rows, int n)
{
    args->n = (int64_t)n_rows * n;
    bool is_vector = n % 4 == 0 && is_aligned(args->x) && is_aligned(args->base) && is_aligned(args->add);
    int64_t n_threads = is_vector ? args->n / 4 : args->n;
    struct cuda_grid grid = { (int)((n_threads + ROWS_THREADS - 1) / ROWS_THREADS), 1, 1, ROWS_THREADS, 0 };
    if (grid.x > 0)
        cuda_launch(cuda, is_vector ? vectors : any, grid, args, sizeof *args);
}

void cuda_scale_add(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                    int n_rows, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    n_rows = cuda_padded_rows(cuda, n_rows);
    struct elements_args args = { .x = rows_of(x, n_rows, n),
                                  .base = rows_of(base, n_rows, n),
                                  .add = rows_of(add, n_rows, n),
                                  .factor = scale };
    launch_elements(cuda, CUDA_KERNEL_scale_add, CUDA_KERNEL_scale_add_vectors, &args, n_rows, n);
}

void cuda_scale(struct backend *be, struct floats x, float scale, int n_rows, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    n_rows = cuda_padded_rows(cuda, n_rows);
    struct elements_args args = { .x = rows_of(x, n_rows, n), .factor = scale };
    launch_elements(cuda, CUDA_KERNEL_scale, CUDA_KERNEL_scale_vectors, &args, n_rows, n);
}

void cuda_softcap(struct backend *be, struct floats x, float cap, int n_rows, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    n_rows = cuda_padded_rows(cuda, n_rows);
    struct elements_args args = { .x = rows_of(x, n_rows, n), .factor = cap };
    launch_elements(cuda, CUDA_KERNEL_softcap, CUDA_KERNEL_softcap_vectors, &args, n_rows, n);
}

void cuda_activate(struct backend *be, struct floats x, int n_rows, int n, enum activation act)
{
    struct cuda_backend *cuda = cuda_of(be);
    assert(act != ACT_SILU && act != ACT_SILU_CLAMPED);
    n_rows = cuda_padded_rows(cuda, n_rows);
    struct elements_args args = { .x = rows_of(x, n_rows, n), .activation = (int32_t)act };
    launch_elements(cuda, CUDA_KERNEL_activate, CUDA_KERNEL_activate_vectors, &args, n_rows, n);
}

/* ---- copies of rows: a block for each row ---- */

static struct cuda_grid rows_grid(int n_rows)
{
    return (struct cuda_grid){ n_rows, 1, 1, ROWS_THREADS, 0 };
}

void cuda_positions(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                    enum positions_use use)
{
    struct cuda_backend *cuda = cuda_of(be);
    int n_rows = cuda_padded_rows(cuda, end - begin);
    n_rows = n_rows < cuda->n_padded_rows - begin ? n_rows : cuda->n_padded_rows - begin;
    const int32_t *all = use == POSITIONS_ADD_SECOND ? cuda->rows.block_positions : cuda->rows.positions;
    struct positions_args args = { .x = rows_of(x, n_rows, n),
                                   .table = cuda_floats(table, (size_t)n),
                                   .positions = all + begin,
                                   .n = n,
                                   .adds = use != POSITIONS_REPLACE };
    cuda_launch(cuda, CUDA_KERNEL_positions, rows_grid(n_rows), &args, sizeof args);
}

void cuda_concat(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                 int n_rows)
{
    struct cuda_backend *cuda = cuda_of(be);
    n_rows = cuda_padded_rows(cuda, n_rows);
    struct concat_args args = { .y = rows_of(y, n_rows, n_a + n_b),
                                .a = rows_of(a, n_rows, n_a),
                                .b = rows_of(b, n_rows, n_b),
                                .n_a = n_a,
                                .n_b = n_b };
    cuda_launch(cuda, CUDA_KERNEL_concat, rows_grid(n_rows), &args, sizeof args);
}

void cuda_gather(struct backend *be, struct floats y, struct floats x, struct floats add, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (cuda->step->n_outputs == 0)
        return;
    int n_outputs = cuda_padded_rows(cuda, cuda->step->n_outputs);
    struct gather_args args = { .y = rows_of(y, n_outputs, n),
                                .x = rows_of(x, cuda->step->n_rows, n),
                                .add = rows_of(add, cuda->step->n_rows, n),
                                .output_rows = cuda->rows.output_rows,
                                .n = n };
    cuda_launch(cuda, CUDA_KERNEL_gather, rows_grid(n_outputs), &args, sizeof args);
}

/* ---- rotary embedding ---- */

void cuda_rope_tables(struct cuda_backend *cuda)
{
    for (int i = 0; i < cuda->n_kinds; i++) {
        const struct cuda_kind *kind = &cuda->kinds[i];
        const struct attention_shape *shape = &kind->shape;
        if (shape->rope == ROPE_NONE || shape->rotary_dim == 0)
            continue;
        int n_parts = shape->rope == ROPE_2D ? 2 : 1;
        struct rope_tables_args args = { .cos_sin = kind->cos_sin,
                                         .positions = { cuda->rows.rope_positions,
                                                        cuda->rows.block_positions },
                                         .freqs = shape->rope_freqs,
                                         .n_rows = cuda->n_padded_rows,
                                         .n_parts = n_parts,
                                         .n_pairs = shape->rotary_dim / 2 / n_parts,
                                         .scale = shape->rope_scale };
        int64_t n_threads = (int64_t)args.n_rows * n_parts * args.n_pairs;
        struct cuda_grid grid = { (int)((n_threads + ROWS_THREADS - 1) / ROWS_THREADS), 1, 1, ROWS_THREADS,
                                  0 };
        cuda_launch(cuda, CUDA_KERNEL_rope_tables, grid, &args, sizeof args);
    }
}
