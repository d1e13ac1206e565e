/* The card's limits, for comparison with measured speeds. Launches are repeated until their time hides that of
 * launching and waiting. */
#include "backend/cuda/cuda.h"
#include "base/system/clock.h"
#include "kernels/cuda/measure_args.h"

enum {
    MOST_BYTES = 1 << 30, /* of the buffer: twenty times the largest L2 cache */
    PART_OF_MEMORY = 64,  /* and at most this part of the card's memory */
    BLOCKS_OF_SM = 4,     /* blocks of a multiprocessor: they fit at the same time */
    ENOUGH_NS = 4000000,  /* launching and waiting take some 20 us */
    MOST_ITERATIONS = 1 << 20,
    ACCUMULATORS = 8,           /* of a thread, or warp */
    WARP_OPS = 2 * 16 * 8 * 16, /* of a matrix instruction of a warp: multiply-adds count twice */
    WARPGROUP_OPS = 2 * 64 * 128 * 16,
};

/* Finite, and not 1: 0.5 as float32, and two halves of 0.5. */
static const uint32_t HALF_OF_FLOAT = 0x3f000000, HALVES = 0x38003800, RARE = 0x7fc12345;

void cuda_measure_release(struct cuda_backend *cuda)
{
    cuda_memory_free(cuda, cuda->measure_buffer);
    cuda->measure_buffer = NULL;
}

/* NULL: no memory. */
static void *find_buffer(struct cuda_backend *cuda, size_t *n_bytes)
{
    size_t most = cuda->n_bytes / PART_OF_MEMORY / 4096 * 4096;
    *n_bytes = most < MOST_BYTES ? most : MOST_BYTES;
    if (!cuda->measure_buffer)
        cuda->measure_buffer = cuda_memory_new(cuda, *n_bytes);
    return cuda->measure_buffer;
}

static struct cuda_grid grid_of(const struct cuda_backend *cuda)
{
    return (
        struct cuda_grid){ .x = cuda->n_sms * BLOCKS_OF_SM, .y = 1, .z = 1, .n_threads = MEASURE_THREADS };
}

/* Waits for what was launched: nanoseconds since begin. */
static uint64_t finish(struct cuda_backend *cuda, uint64_t begin_ns)
{
    uint32_t word;
    cuda_copy_out(cuda, &word, cuda->measure_buffer, sizeof word);
    return clock_now_ns() - begin_ns;
}

static double measure_read(struct cuda_backend *cuda, size_t n_bytes)
{
    struct measure_read_args args = { .words = cuda->measure_buffer,
                                      .out = cuda->measure_buffer,
                                      .rare = RARE };
    args.n = (int64_t)(n_bytes / sizeof(uint32_t[4]));
    uint64_t ns = 0;
    int n = 1;
    for (; n < MOST_ITERATIONS; n *= 2) {
        uint64_t begin = clock_now_ns();
        for (int i = 0; i < n; i++)
            cuda_launch(cuda, CUDA_KERNEL_measure_read, grid_of(cuda), &args, sizeof args);
        ns = finish(cuda, begin);
        if (ns >= ENOUGH_NS || cuda_check(cuda, NULL) != TUTTI_OK)
            break;
    }
    return (double)n_bytes * n / (double)ns;
}

/* ops: of a thread, for each iteration. */
static double measure_arithmetic(struct cuda_backend *cuda, enum cuda_kernel kernel, uint32_t bits,
                                 size_t shared_bytes, double ops)
{
    struct cuda_grid grid = grid_of(cuda);
    grid.shared_bytes = shared_bytes;
    struct measure_arithmetic_args args = { .out = cuda->measure_buffer, .n = 1, .bits = bits, .rare = RARE };
    uint64_t ns = 0;
    for (;; args.n *= 2) {
        uint64_t begin = clock_now_ns();
        cuda_launch(cuda, kernel, grid, &args, sizeof args);
        ns = finish(cuda, begin);
        if (ns >= ENOUGH_NS || args.n >= MOST_ITERATIONS || cuda_check(cuda, NULL) != TUTTI_OK)
            break;
    }
    return ops * args.n * grid.x * grid.n_threads / (double)ns;
}

void cuda_measure(struct backend *be, struct backend_limits *out)
{
    struct cuda_backend *cuda = cuda_of(be);
    size_t n_bytes;
    *out = (struct backend_limits){ 0 };
    if (!find_buffer(cuda, &n_bytes) || !cuda_need(cuda, CUDA_KERNEL_measure_read, CUDA_NEED_FILE))
        return;
    out->read_gbps = measure_read(cuda, n_bytes);
    bool is_wide = cuda->level >= 90;
    out->f32_gflops = measure_arithmetic(cuda, CUDA_KERNEL_measure_float, HALF_OF_FLOAT, 0,
                                         2.0 * ACCUMULATORS);
    out->half_gflops = measure_arithmetic(
        cuda, CUDA_KERNEL_measure_half, HALVES, is_wide ? MEASURE_SHARED : 0,
        is_wide ? (double)WARPGROUP_OPS * MEASURE_WGMMA / 128 : (double)WARP_OPS * ACCUMULATORS / 32);
}
