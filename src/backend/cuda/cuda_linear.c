/* Products of rows with matrices: chooses kernels. Which one runs never changes a row's bits (linear.h of kernels/cuda). */
#include "backend/cuda/cuda_linear_state.h"

#include <stdlib.h>

enum {
    FEW_ROWS = 8,
    SOME_ROWS = 16,
    STREAM_THREADS = 256,
    STREAM_WARPS = 8,
    TILE_OUTPUTS = 8, /* tiles of 16 outputs of a block of more rows */
    TILE_STAGES = 3,
    JOIN_GROUP = 8,
    NO_ACTIVATION = -1,
};

/* The kernels of a format: see LINEAR_KERNELS() of linear.h. */
static const struct format_kernels {
    enum cuda_kernel few, some, tile_32, tile_64, tile_128, read;
} KERNELS[N_LINEAR_FORMATS] = {
#define FORMAT(name)                                                                                         \
    {                                                                                                        \
        CUDA_KERNEL_linear_##name##_few, CUDA_KERNEL_linear_##name##_some,                                   \
            CUDA_KERNEL_linear_##name##_tile_32, CUDA_KERNEL_linear_##name##_tile_64,                        \
            CUDA_KERNEL_linear_##name##_tile_128, CUDA_KERNEL_linear_##name##_read                           \
    }
    [LINEAR_F32] = { .few = CUDA_KERNEL_linear_f32, .read = CUDA_KERNEL_linear_f32_read },
    [LINEAR_F16] = FORMAT(f16),
    [LINEAR_Q4_0] = FORMAT(q4_0),
    [LINEAR_Q4_1] = FORMAT(q4_1),
    [LINEAR_Q5_0] = FORMAT(q5_0),
    [LINEAR_Q5_1] = FORMAT(q5_1),
    [LINEAR_Q8_0] = FORMAT(q8_0),
    [LINEAR_Q2_K] = FORMAT(q2_k),
    [LINEAR_Q3_K] = FORMAT(q3_k),
    [LINEAR_Q4_K] = FORMAT(q4_k),
    [LINEAR_Q5_K] = FORMAT(q5_k),
    [LINEAR_Q6_K] = FORMAT(q6_k),
    [LINEAR_MXFP4] = FORMAT(mxfp4),
#undef FORMAT
};

static int divide_up(int64_t n, int by)
{
    return (int)((n + by - 1) / by);
}

bool cuda_linear_load(struct cuda_backend *cuda, enum linear_format format)
{
    return cuda_need(cuda, KERNELS[format].few, CUDA_NEED_FILE) &&
           cuda_need(cuda, CUDA_KERNEL_linear_convert, CUDA_NEED_FILE);
}

/* ---- scratch memory ---- */

struct cuda_linear *cuda_linear_of(struct cuda_backend *cuda)
{
    if (!cuda->linear)
        cuda->linear = calloc(1, sizeof *cuda->linear);
    return cuda->linear;
}

static void release_rows(struct cuda_backend *cuda)
{
    struct cuda_linear *linear = cuda->linear;
    cuda_memory_free(cuda, linear->halves);
    cuda_memory_free(cuda, linear->scales);
    cuda_memory_free(cuda, linear->partial);
    cuda_memory_free(cuda, linear->arrived);
    linear->halves = NULL;
    linear->scales = linear->partial = NULL;
    linear->arrived = NULL;
}

void cuda_linear_release(struct cuda_backend *cuda)
{
    if (!cuda->linear)
        return;
    release_rows(cuda);
    cuda_pinned_free(cuda, cuda->linear->staging);
    free(cuda->linear);
    cuda->linear = NULL;
}

static int padded_columns(int n_in)
{
    return divide_up(n_in, LINEAR_X_COLUMNS) * LINEAR_X_COLUMNS;
}

size_t cuda_converted_bytes(enum linear_format format, int n, int n_in)
{
    size_t element = format == LINEAR_F32 ? sizeof(float) : sizeof(uint16_t);
    return ((size_t)n + LINEAR_X_ROWS) * (size_t)padded_columns(n_in) * element;
}

/* The matrices of heads have at most as many columns as a latent or a head. */
bool cuda_linear_reserve(struct cuda_backend *cuda, int max_rows)
{
    struct cuda_linear *linear = cuda_linear_of(cuda);
    if (!linear)
        return false;
    release_rows(cuda);
    int most_heads = 1;
    if (linear->max_columns == 0)
        return true;
    size_t bytes = cuda_converted_bytes(LINEAR_F16, max_rows, linear->max_columns);
    for (int i = 0; i < cuda->n_kinds; i++) {
        const struct attention_shape *shape = &cuda->kinds[i].shape;
        size_t of_heads = 0;
        if (shape->n_latent > 0)
            of_heads = cuda_converted_bytes(linear->has_f32 ? LINEAR_F32 : LINEAR_F16,
                                            max_rows * shape->n_heads, shape->head_dim);
        bytes = of_heads > bytes ? of_heads : bytes;
        if (of_heads > 0 && shape->n_heads > most_heads)
            most_heads = shape->n_heads;
    }
    linear->halves = cuda_memory_new(cuda, bytes);
    linear->scales = cuda_memory_new(cuda, (size_t)max_rows * (size_t)most_heads * sizeof *linear->scales);
    linear->partial = cuda_memory_new(cuda, LINEAR_PARTIAL_BYTES);
    linear->arrived = cuda_memory_new(cuda, LINEAR_PLACES * sizeof *linear->arrived);
    return linear->halves && linear->scales && linear->partial && linear->arrived;
}

/* ---- launches ---- */

/* Whether nothing was added to the step since the launch that note_last() saw. */
static bool is_last(struct cuda_backend *cuda)
{
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    const void *args = cuda_last_launch(cuda, &kernel, &grid);
    return args && args == cuda->linear->last_args && (int)kernel == cuda->linear->last_kernel;
}

static void note_last(struct cuda_backend *cuda)
{
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    cuda->linear->last_args = cuda_last_launch(cuda, &kernel, &grid);
    cuda->linear->last_kernel = cuda->linear->last_args ? (int)kernel : N_CUDA_KERNELS;
}

/* All launches of this file: another operation in between may have changed what was converted. */
static void launch_linear(struct cuda_backend *cuda, enum cuda_kernel kernel, struct cuda_grid grid,
                          const void *args, size_t n_bytes)
{
    if (!is_last(cuda))
        cuda->linear->converted.x = NULL;
    cuda_launch(cuda, kernel, grid, args, n_bytes);
    note_last(cuda);
}

/* ---- input rows ---- */

/* Rows of a piece (halves.h of kernels/cuda) of n converted rows; 0: they are not in pieces. */
static int piece_rows(const struct cuda_backend *cuda, const struct matrix *m, int n)
{
    return cuda->level >= 90 && m->format != LINEAR_F32 ? n : 0;
}

static bool keeps_rows(const struct matrix *m, const struct cuda_entries *entries)
{
    return m->format == LINEAR_F32 && (!entries || !entries->rows);
}

static struct cuda_input convert(struct cuda_backend *cuda, struct linear_convert_args *args,
                                 const struct matrix *m, int n_rows, const struct cuda_entries *entries)
{
    args->to_stride = padded_columns(m->n_in);
    args->n_in = m->n_in;
    args->order = m->order;
    args->order_stride = (int32_t)m->order_stride;
    args->is_f32 = m->format == LINEAR_F32;
    args->piece_rows = piece_rows(cuda, m, entries ? entries->n_entries : n_rows);
    struct cuda_grid grid = { n_rows, 1, 1, CONVERT_THREADS, 0 };
    bool is_held = !args->is_f32 && !args->order && args->to_stride <= CONVERT_HELD && m->n_in % 4 == 0 &&
                   args->x_stride % 4 == 0 && args->x_head % 4 == 0 && (uintptr_t)args->x % 16 == 0;
    if (entries) {
        args->rows = entries->rows;
        args->lists = entries->lists;
        args->n_lists = entries->n_lists;
        grid.x = entries->list_rows;
        grid.y = entries->most_lists;
    }
    launch_linear(cuda, is_held ? CUDA_KERNEL_linear_convert_held : CUDA_KERNEL_linear_convert, grid, args,
                  sizeof *args);
    return (struct cuda_input){ args->to, args->scales,
                                args->piece_rows > 0 ? args->piece_rows : args->to_stride };
}

struct cuda_input cuda_convert(struct cuda_backend *cuda, void *to, float *scales, const struct matrix *m,
                               const float *x, int x_stride, int n_rows, const struct cuda_entries *entries)
{
    if (keeps_rows(m, entries))
        return (struct cuda_input){ x, NULL, x_stride };
    struct linear_convert_args args = { .x = x, .to = to, .scales = scales, .x_stride = x_stride };
    return convert(cuda, &args, m, n_rows, entries);
}

/* Rows that an earlier product converted are used again; where the operation before is the norm that gives them, it
 * converts them, too. */
static struct cuda_input input_of(struct cuda_backend *cuda, const struct matrix *m, const float *x,
                                  int n_rows)
{
    struct cuda_linear *linear = cuda->linear;
    struct linear_converted key = { x, m->order, n_rows, m->n_in }, *known = &linear->converted;
    int pieces = piece_rows(cuda, m, n_rows), stride = padded_columns(m->n_in);
    struct cuda_input input = { linear->halves, linear->scales, pieces > 0 ? pieces : stride };
    if (keeps_rows(m, NULL))
        return (struct cuda_input){ x, NULL, m->n_in };
    if (known->x == x && known->order == key.order && known->n_rows == n_rows && known->n_in == m->n_in &&
        is_last(cuda))
        return input;
    if (!m->order &&
        cuda_norm_halves(cuda, x, n_rows, m->n_in, linear->halves, stride, pieces, linear->scales))
        note_last(cuda);
    else
        input = cuda_convert(cuda, linear->halves, linear->scales, m, x, m->n_in, n_rows, NULL);
    *known = key;
    return input;
}

/* ---- products ---- */

static struct linear_matrix matrix_args(const struct matrix *m)
{
    return (struct linear_matrix){ .weights = m->weights,
                                   .scales = m->scales,
                                   .bias = m->bias,
                                   .n_tiles = m->n_tiles,
                                   .n_units = m->n_units,
                                   .split_shift = m->split_shift,
                                   .n_columns = m->is_gate_up ? m->n_out / 2 : m->n_out };
}

int cuda_list_rows(int n)
{
    enum { N = sizeof LINEAR_LIST_ROWS / sizeof *LINEAR_LIST_ROWS };
    for (int i = 0; i < N; i++)
        if (n <= LINEAR_LIST_ROWS[i])
            return LINEAR_LIST_ROWS[i];
    return LINEAR_LIST_ROWS[N - 1];
}

/* Level 90: any number of rows. The splits are different blocks where there are too few for the card; the last of a place to
 * finish adds their sums. */
static void launch_wide(struct cuda_backend *cuda, enum linear_format format, struct linear_args *args,
                        struct cuda_grid grid, int n_tiles, int rows)
{
    const struct format_kernels *k = &KERNELS[format];
    const struct wide {
        int rows, tiles, depth; /* of a block; steps of a batch of inputs */
        enum cuda_kernel kernel;
    } few = { 8, 8, 4, k->few }, some = { 16, 8, 4, k->some }, tile_32 = { 32, 16, 4, k->tile_32 },
      tile_64 = { 64, 16, 4, k->tile_64 }, tile_128 = { 128, 16, 1, k->tile_128 },
      *wide = rows <= 8    ? &few
              : rows <= 16 ? &some
              : rows <= 32 ? &tile_32
                           : &tile_64;
    if (rows > 64 && !args->lists && (int64_t)divide_up(n_tiles, 16) * divide_up(rows, 128) >= cuda->n_sms)
        wide = &tile_128;
    int most_lists = grid.y, groups = args->lists ? most_lists * (wide->rows / 8) : divide_up(rows, 8);
    grid.x = divide_up(n_tiles, wide->tiles);
    grid.y = args->lists ? most_lists : divide_up(rows, wide->rows);
    grid.n_threads = WIDE_THREADS;
    grid.shared_bytes = (size_t)linear_wide_shared(wide->rows, wide->tiles / 8, wide->depth);
    int64_t n_places = (int64_t)grid.x * grid.y;
    size_t partial_bytes = ((size_t)args->m.n_tiles << args->m.split_shift) * (size_t)groups * 32 * 4 *
                           sizeof(float);
    if (args->m.split_shift > 0 && args->n_heads == 0 && n_places < 2 * (int64_t)cuda->n_sms &&
        n_places <= LINEAR_PLACES && partial_bytes <= LINEAR_PARTIAL_BYTES) {
        args->partial = cuda->linear->partial;
        args->arrived = cuda->linear->arrived;
        args->n_groups = groups;
        grid.z = 1 << args->m.split_shift;
    }
    launch_linear(cuda, wide->kernel, grid, args, sizeof *args);
}

/* Kernels for more than 16 rows: the sums of splits go through memory where there are too few blocks for the card. */
static void launch_tiles(struct cuda_backend *cuda, enum linear_format format, struct linear_args *args,
                         struct cuda_grid grid, int n_tiles, int rows)
{
    const struct format_kernels *k = &KERNELS[format];
    int groups = divide_up(rows, JOIN_GROUP), block_rows = rows <= 32 ? 32 : 64,
        n_splits = 1 << args->m.split_shift;
    grid.x = divide_up(n_tiles, TILE_OUTPUTS);
    if (rows > 64 && !args->lists && (int64_t)grid.x * divide_up(rows, 128) >= cuda->n_sms)
        block_rows = 128;
    enum cuda_kernel kernel = block_rows == 32 ? k->tile_32 : block_rows == 64 ? k->tile_64 : k->tile_128;
    grid.n_threads = block_rows == 128 ? 256 : 128;
    grid.shared_bytes = (size_t)TILE_STAGES * (size_t)block_rows * LINEAR_STEP * sizeof(uint16_t);
    if (!args->lists)
        grid.y = divide_up(rows, block_rows);
    size_t partial_bytes = (size_t)n_splits * (size_t)args->m.n_tiles * (size_t)groups * 32 * 4 *
                           sizeof(float);
    bool is_split = n_splits > 1 && !args->lists && args->n_heads == 0 && grid.x * grid.y < 2 * cuda->n_sms &&
                    partial_bytes <= LINEAR_PARTIAL_BYTES;
    if (is_split) {
        args->partial = cuda->linear->partial;
        args->n_groups = groups;
        grid.z = n_splits;
    }
    launch_linear(cuda, kernel, grid, args, sizeof *args);
    if (is_split)
        launch_linear(cuda, CUDA_KERNEL_linear_join,
                      (struct cuda_grid){ divide_up(n_tiles, STREAM_WARPS), groups, 1, STREAM_THREADS, 0 },
                      args, sizeof *args);
}

/* rows: of a list, or all. n_tiles: that a block's job has, which are those of a head where there are heads. */
static void launch(struct cuda_backend *cuda, enum linear_format format, struct linear_args *args,
                   struct cuda_grid grid, int n_tiles, int rows)
{
    grid.n_threads = STREAM_THREADS;
    if (format == LINEAR_F32) {
        grid.x = n_tiles;
        grid.y = args->lists ? grid.y : divide_up(rows, FEW_ROWS);
        launch_linear(cuda, CUDA_KERNEL_linear_f32, grid, args, sizeof *args);
    } else if (cuda->level >= 90) {
        launch_wide(cuda, format, args, grid, n_tiles, rows);
    } else if (rows <= SOME_ROWS) {
        grid.x = divide_up((int64_t)n_tiles << args->m.split_shift, STREAM_WARPS);
        launch_linear(cuda, rows <= FEW_ROWS ? KERNELS[format].few : KERNELS[format].some, grid, args,
                      sizeof *args);
    } else {
        launch_tiles(cuda, format, args, grid, n_tiles, rows);
    }
}

void cuda_product(struct cuda_backend *cuda, float *y, int y_stride, const struct matrix *m,
                  const struct cuda_input *input, int n_rows, int activation,
                  const struct cuda_entries *entries)
{
    struct linear_args args = { .m = matrix_args(m),
                                .x = input->rows,
                                .x_scales = input->scales,
                                .y = y,
                                .n_rows = n_rows,
                                .x_stride = input->stride,
                                .y_stride = y_stride,
                                .n_in = m->n_in,
                                .is_gate_up = m->is_gate_up,
                                .activation = activation };
    struct cuda_grid grid = { 1, 1, 1, 0, 0 };
    const float *known = cuda->linear->converted.x; /* the product may write these rows */
    if (known && y < known + (size_t)cuda->linear->converted.n_rows * (size_t)cuda->linear->converted.n_in &&
        (entries || known < y + (size_t)n_rows * (size_t)y_stride))
        cuda->linear->converted.x = NULL;
    if (entries) {
        args.lists = entries->lists;
        args.n_lists = entries->n_lists;
        grid.y = entries->most_lists;
    }
    launch(cuda, m->format, &args, grid, m->n_tiles, entries ? entries->list_rows : n_rows);
}

/* ---- operations ---- */

void cuda_linear(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows)
{
    struct cuda_backend *cuda = cuda_of(be);
    assert(!m->is_gate_up && m->n_experts == 1);
    if (n_rows == 0)
        return;
    int n = cuda_padded_rows(cuda, n_rows);
    struct cuda_input input = input_of(cuda, m, cuda_floats(x, (size_t)n * (size_t)m->n_in), n);
    cuda_product(cuda, cuda_floats(y, (size_t)n * (size_t)m->n_out), m->n_out, m, &input, n, NO_ACTIVATION,
                 NULL);
}

void cuda_linear_glu(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows,
                     enum activation act)
{
    struct cuda_backend *cuda = cuda_of(be);
    assert(m->is_gate_up && m->n_experts == 1);
    assert(act == ACT_SILU || act == ACT_SILU_CLAMPED || act == ACT_GELU_TANH);
    if (n_rows == 0)
        return;
    int n = cuda_padded_rows(cuda, n_rows), n_columns = m->n_out / 2;
    struct cuda_input input = input_of(cuda, m, cuda_floats(x, (size_t)n * (size_t)m->n_in), n);
    cuda_product(cuda, cuda_floats(y, (size_t)n * (size_t)n_columns), n_columns, m, &input, n, (int)act,
                 NULL);
}

void cuda_linear_raw(struct cuda_backend *cuda, float *y, const struct matrix *m, const float *x, int n_rows)
{
    struct cuda_input input = input_of(cuda, m, x, n_rows);
    cuda_product(cuda, y, m->n_out, m, &input, n_rows, NO_ACTIVATION, NULL);
}

void cuda_linear_heads(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                       int n_rows, const struct head_rows *heads)
{
    struct cuda_backend *cuda = cuda_of(be);
    assert(!m->is_gate_up && !m->bias && !m->order && m->n_out % heads->n_heads == 0);
    if (n_rows == 0)
        return;
    int n = cuda_padded_rows(cuda, n_rows), n_out = m->n_out / heads->n_heads;
    const float *from = cuda_floats(x, (size_t)n * (size_t)heads->x_row);
    struct linear_args args = { .m = matrix_args(m),
                                .y = cuda_floats(y, (size_t)n * (size_t)heads->y_row),
                                .n_rows = n,
                                .y_stride = heads->y_row,
                                .n_in = m->n_in,
                                .activation = NO_ACTIVATION,
                                .n_heads = heads->n_heads,
                                .head_outputs = n_out,
                                .y_head = heads->y_head };
    struct linear_convert_args convert_args = { .x = from,
                                                .to = cuda->linear->halves,
                                                .scales = cuda->linear->scales,
                                                .x_stride = heads->x_row,
                                                .n_heads = heads->n_heads,
                                                .x_head = heads->x_head };
    cuda->linear->converted.x = NULL;
    struct cuda_input input = convert(cuda, &convert_args, m, n * heads->n_heads, NULL);
    args.x = input.rows;
    args.x_scales = input.scales;
    args.x_stride = input.stride;
    /* A head's outputs may begin and end inside of tiles. */
    int n_tiles = n_out % LINEAR_TILE == 0 ? n_out / LINEAR_TILE : n_out / LINEAR_TILE + 2;
    launch(cuda, m->format, &args, (struct cuda_grid){ 1, 1, heads->n_heads, 0, 0 }, n_tiles, n);
}

void cuda_read_rows(struct cuda_backend *cuda, float *y, const struct matrix *m, const int32_t *ids,
                    int first_id, int n)
{
    struct linear_read_args args = { .m = matrix_args(m),
                                     .ids = ids,
                                     .order = m->order,
                                     .y = y,
                                     .first_id = first_id,
                                     .n_out = m->n_out,
                                     .n_in = m->n_in,
                                     .is_gate_up = m->is_gate_up };
    launch_linear(cuda, KERNELS[m->format].read, (struct cuda_grid){ n, 1, 1, 128, 0 }, &args, sizeof args);
}

void cuda_embed(struct backend *be, struct floats x, const struct matrix *table, int first_id)
{
    struct cuda_backend *cuda = cuda_of(be);
    int n = cuda->n_padded_rows;
    cuda_read_rows(cuda, cuda_floats(x, (size_t)n * (size_t)table->n_in), table, cuda->rows.token_ids,
                   first_id, n);
}
