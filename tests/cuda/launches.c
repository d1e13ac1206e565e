#include "cuda/launches.h"
#include "backend/cuda/attention/cuda_kv.h"
#include "cuda/emulator.h"
#include "kernels/cuda/linear/linear_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_FLOATS = 64 };

int n_launches;
size_t cuda_copied_out;

static const char *const NAMES[] = {
#define CUDA_FILE(file)
#define CUDA_KERNEL(name) #name,
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
};

/* What tests made, and the data of steps: a card's step takes its data away. */
static struct made {
    struct made *next;
    void *memory;
} * made;

static void *keep(void *memory)
{
    struct made *m = calloc(1, sizeof *m);
    assert(m && memory);
    *m = (struct made){ made, memory };
    made = m;
    return memory;
}

static void drop(const void *memory)
{
    struct made **at = &made;
    while ((*at)->memory != memory)
        at = &(*at)->next;
    struct made *m = *at;
    *at = m->next;
    free(m->memory);
    free(m);
}

int launches_clear(void **state)
{
    (void)state;
    while (made)
        drop(made->memory);
    return 0;
}

struct cuda_backend *launches_new(int max_rows)
{
    struct cuda_backend *cuda = keep(calloc(1, sizeof *cuda));
    cuda->max_rows = max_rows;
    cuda->level = 80;
    cuda->capability = 80;
    cuda->n_sms = 3;
    cuda->shared_bytes = 99 << 10;
    return cuda;
}

struct floats launches_floats(const float *values, size_t n)
{
    struct buffer *buffer = keep(calloc(1, sizeof *buffer));
    buffer->n_floats = n;
    buffer->data = keep(aligned_alloc(64, (n + 2 * GUARD_FLOATS) / 16 * 64));
    memset(buffer->data, 0xff, (n + GUARD_FLOATS) * sizeof(float));
    if (values)
        memcpy(buffer->data, values, n * sizeof(float));
    return (struct floats){ .buffer = buffer };
}

void launches_floats_free(struct floats floats)
{
    drop(floats.buffer->data);
    drop(floats.buffer);
}

int cuda_padded_rows(const struct cuda_backend *cuda, int n)
{
    int padded = (n + 3) / 4 * 4;
    assert(n <= cuda->max_rows);
    return padded < cuda->max_rows ? padded : cuda->max_rows;
}

/* ---- launches ---- */

static struct {
    const struct emulated_kernel *kernel;
    enum cuda_kernel number;
    struct cuda_grid grid;
    int level;
    uint64_t args[512]; /* 4 KiB, as the driver allows */
} waiting;
static bool is_waiting;

/* Whether a kernel begins before the launch before it ends: products on level 90. */
static bool is_early(const struct emulated_kernel *kernel)
{
    char name[64];
    return sscanf(kernel->name, "linear_%63s", name) == 1 && strncmp(name, "f32", 3) != 0 &&
           (strstr(name, "_few") || strstr(name, "_some") || strstr(name, "_tile"));
}

/* Hides the input rows and the number of lists of a product from it, or shows them. */
static void hide_inputs(bool hides)
{
    static int32_t n_lists;
    const struct linear_args *a = (const void *)waiting.args;
    size_t n_columns = (size_t)a->m.n_units * (strstr(waiting.kernel->name, "_k_") ? 4 : 1) * LINEAR_STEP;
    n_columns = (n_columns + LINEAR_X_COLUMNS - 1) / LINEAR_X_COLUMNS * LINEAR_X_COLUMNS;
    uint16_t *x = (uint16_t *)(uintptr_t)a->x;
    for (size_t i = 0; i < n_columns * (size_t)a->x_stride; i++)
        x[i] ^= 0x7c00; /* float16 becomes an infinity, or much smaller or larger */
    if (a->n_lists && hides)
        n_lists = *a->n_lists;
    if (a->n_lists)
        *(int32_t *)(uintptr_t)a->n_lists = hides ? 0 : n_lists;
}

static void launch_waiting(void)
{
    struct cuda_grid grid = waiting.grid;
    const struct emulated_grid on_host = { grid.x, grid.y, grid.z, grid.n_threads, grid.shared_bytes };
    if (waiting.kernel) {
        emulated_before_wait(waiting.level >= 90 && is_early(waiting.kernel) ? hide_inputs : NULL);
        emulate(waiting.kernel, &on_host, waiting.args);
    }
    waiting.kernel = NULL;
}

void launches_wait(bool waits)
{
    launch_waiting();
    is_waiting = waits;
}

bool cuda_need(struct cuda_backend *cuda, enum cuda_kernel kernel, enum cuda_need what)
{
    (void)cuda;
    (void)what;
    return kernel < N_CUDA_KERNELS;
}

void cuda_busy_begin(struct cuda_backend *cuda)
{
    (void)cuda;
}

void cuda_busy_end(struct cuda_backend *cuda)
{
    (void)cuda;
}

void cuda_launch(struct cuda_backend *cuda, enum cuda_kernel kernel, struct cuda_grid grid, const void *args,
                 size_t n_bytes)
{
    launch_waiting();
    waiting.kernel = emulated_find_level(NAMES[kernel], cuda->level);
    waiting.number = kernel;
    waiting.level = cuda->level;
    waiting.grid = grid;
    assert(waiting.kernel && waiting.kernel->args_bytes == n_bytes && n_bytes <= sizeof waiting.args);
    memcpy(waiting.args, args, n_bytes);
    n_launches++;
    if (!is_waiting)
        launch_waiting();
}

void *cuda_last_launch(struct cuda_backend *cuda, enum cuda_kernel *kernel, struct cuda_grid *grid)
{
    (void)cuda;
    *kernel = waiting.number;
    *grid = waiting.grid;
    return waiting.kernel ? waiting.args : NULL;
}

void *cuda_step_data(struct cuda_backend *cuda, const void *host, size_t n_bytes, size_t room_bytes)
{
    void *memory = keep(cuda_memory_new(cuda, room_bytes));
    memset(memory, 0xff, room_bytes);
    memcpy(memory, host, n_bytes);
    return memory;
}

void cuda_fill_zero(struct cuda_backend *cuda, void *to, size_t n_bytes)
{
    (void)cuda;
    memset(to, 0, n_bytes);
}

void *cuda_memory_new(struct cuda_backend *cuda, size_t n_bytes)
{
    (void)cuda;
    void *memory = aligned_alloc(256, (n_bytes / 256 + 1) * 256);
    assert(memory);
    memset(memory, 0, n_bytes);
    return memory;
}

void cuda_memory_free(struct cuda_backend *cuda, void *memory)
{
    (void)cuda;
    free(memory);
}

void cuda_copy_in(struct cuda_backend *cuda, void *to, const void *host, size_t n_bytes)
{
    (void)cuda;
    memcpy(to, host, n_bytes);
}

void cuda_copy_out(struct cuda_backend *cuda, void *host, const void *from, size_t n_bytes)
{
    (void)cuda;
    memcpy(host, from, n_bytes);
    cuda_copied_out += n_bytes;
}

void cuda_copy_out_later(struct cuda_backend *cuda, void *pinned, const void *from, size_t n_bytes)
{
    cuda_copy_out(cuda, pinned, from, n_bytes);
}

void cuda_mark_samples(struct cuda_backend *cuda)
{
    (void)cuda;
}

void cuda_wait_samples(struct cuda_backend *cuda)
{
    (void)cuda;
}

void cuda_copy_within(struct cuda_backend *cuda, void *to, const void *from, size_t n_bytes)
{
    (void)cuda;
    memcpy(to, from, n_bytes);
}

void *cuda_pinned_new(struct cuda_backend *cuda, size_t n_bytes)
{
    return cuda_memory_new(cuda, n_bytes);
}

void cuda_pinned_free(struct cuda_backend *cuda, void *memory)
{
    cuda_memory_free(cuda, memory);
}

/* Copies need streams: on the stand-in for the driver only. */
void cuda_kv_copies_free(struct cuda_backend *cuda, struct cuda_kv_copies *copies)
{
    (void)cuda;
    assert(!copies);
}

enum tutti_status cuda_check(const struct cuda_backend *cuda, struct tutti_error *err)
{
    (void)cuda;
    (void)err;
    return TUTTI_OK;
}
