/* The speed of linear layers and attention at each processor level, beside what this machine can do at most. */
#include "base/clock.h"
#include "check.h"
#include "kernels/measure.h"
#include "kernels/pack.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const int ROWS[] = { 1, 2, 4, 8, 16, 17, 32, 256 };
static const int SHAPES[][2] = { { 4096, 4096 }, { 4096, 13696 }, { 13696, 4096 } }; /* n_out, n_in */
static const enum dtype TYPES[] = { DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_F16,  DTYPE_BF16, DTYPE_F32,
                                    DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q5_K, DTYPE_Q4_1, DTYPE_Q5_0,
                                    DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K };

struct job {
    const struct kernels *k;
    struct team *team;
    enum dtype type;
    int n_in, n_panels, n_rows, n_tiles, piece, n_copies;
    size_t stride, tile_stride;
    uint8_t *panels, *tiles;
    const float *x;
    float *out; /* of each thread */
    struct measure *limits;
    int copy; /* which of the copies of the matrix: together they exceed the caches */
    _Alignas(64) atomic_int next;
};

static void *big(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "checkkernels: no memory\n");
        exit(1);
    }
    madvise(p, n_bytes, MADV_HUGEPAGE);
    return p;
}

/* As the backend does it: input rows packed, then pieces of the panels over all tiles. */
static void run_linear(void *arg, int thread, int n_threads)
{
    struct job *job = arg;
    int64_t first, last, begin, end;
    team_share(job->n_in, GROUP, thread, n_threads, &begin, &end);
    for (int tile = 0; tile < job->n_tiles && begin < end; tile++) {
        team_share(job->n_rows, 1, tile, job->n_tiles, &first, &last);
        job->k->tile[job->type](job->tiles + (size_t)tile * job->tile_stride, job->x + first * job->n_in,
                                (size_t)job->n_in, (int)(last - first), (int)begin, (int)end);
    }
    team_barrier(job->team);
    float *out = job->out + (size_t)thread * 4 * TILE_ROWS * PANEL_ROWS;
    const uint8_t *panels = job->panels + (size_t)job->copy * job->stride * (size_t)job->n_panels;
    for (;;) {
        int from = atomic_fetch_add_explicit(&job->next, job->piece, memory_order_relaxed);
        if (from >= job->n_panels)
            return;
        int n = job->n_panels - from < job->piece ? job->n_panels - from : job->piece;
        for (int tile = 0; tile < job->n_tiles; tile++) {
            team_share(job->n_rows, 1, tile, job->n_tiles, &first, &last);
            job->k->linear[job->type](out, panels + (size_t)from * job->stride, n,
                                      job->tiles + (size_t)tile * job->tile_stride, (int)(last - first),
                                      job->n_in, tile == 0);
        }
    }
}

/* Medians of repetitions, each beside a look at what the machine can do at that moment. */
struct timing {
    double seconds, read_gbps, peak; /* peak: Gop/s of the arithmetic that the type uses */
};

static struct timing time_linear(struct job *job, bool is_block)
{
    enum { MOST = 60, LEAST = 9 };
    double seconds[MOST], read[MOST], peak[MOST], total = 0;
    int n = 0;
    for (; n < MOST && (n < LEAST || total < 0.3); n++) {
        read[n] = n < LEAST ? measure_read_gbps(job->limits) : read[n - 1];
        peak[n] = is_block ? measure_int8_gops(job->limits) : measure_f32_gflops(job->limits);
        job->copy = n % job->n_copies;
        atomic_store(&job->next, 0);
        uint64_t begin = clock_now_ns();
        team_run(job->team, run_linear, job);
        seconds[n] = (double)(clock_now_ns() - begin) * 1e-9;
        total += seconds[n];
    }
    return (struct timing){ measure_median(seconds, n), measure_median(read, n < LEAST ? n : LEAST),
                            measure_median(peak, n) };
}

static void bench_matrix(struct check *c, enum dtype type, int n_out, int n_in)
{
    enum { MOST_ROWS = 256 };
    struct job *job = aligned_alloc(64, (sizeof *job + 63) / 64 * 64);
    *job = (struct job){ .k = c->k,
                         .team = c->team,
                         .limits = c->limits,
                         .type = type,
                         .n_in = n_in,
                         .n_panels = n_out / PANEL_ROWS };
    panel_bytes(type, n_in, &job->stride);
    size_t n_bytes = job->stride * (size_t)job->n_panels;
    job->n_copies = (int)((size_t)200000000 / n_bytes) + 1;
    job->panels = big(n_bytes * (size_t)job->n_copies);
    for (size_t i = 0; i < n_bytes * (size_t)job->n_copies; i++) /* small numbers in every type */
        job->panels[i] = (uint8_t)((i * 2654435761u) >> 13) & 0x3B;
    job->tile_stride = tile_bytes(type, TILE_ROWS, n_in);
    job->tiles = big(job->tile_stride * (MOST_ROWS / 8));
    float *x = big(sizeof *x * (size_t)n_in * MOST_ROWS);
    for (size_t i = 0; i < (size_t)n_in * MOST_ROWS; i++)
        x[i] = (float)(int32_t)check_random(c) * 0x1p-31f;
    job->x = x;
    job->out = big((size_t)team_n_threads(c->team) * 4 * TILE_ROWS * PANEL_ROWS * sizeof *job->out);
    job->piece = (int)(384 * 1024 / job->stride);
    job->piece = job->piece < 1 ? 1 : job->piece > 4 ? 4 : job->piece;
    int most = (int)(512 * 1024 / tile_bytes(type, 1, n_in));
    most = most < 8 ? 8 : most > TILE_ROWS ? TILE_ROWS : most;
    bool is_block = dtype_block_elems(type) > 1;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        job->n_rows = ROWS[i];
        job->n_tiles = (ROWS[i] + most - 1) / most;
        if (c->level == CPU_REF && ROWS[i] > 1)
            break;
        struct timing t = time_linear(job, is_block);
        double gbps = (double)n_bytes * 1e-9 / t.seconds,
               gops = 2.0 * n_out * n_in * ROWS[i] * 1e-9 / t.seconds;
        printf("%-6s %-5s %5d x %5d %4d rows %8.1f us %7.1f GB/s %3.0f%% %8.1f Gop/s %3.0f%%\n",
               cpu_name(c->level), dtype_name(type), n_out, n_in, ROWS[i], t.seconds * 1e6, gbps,
               100 * gbps / t.read_gbps, gops, t.peak > 0 ? 100 * gops / t.peak : 0);
        fflush(stdout);
    }
    munmap(job->panels, n_bytes * (size_t)job->n_copies);
    munmap(job->tiles, job->tile_stride * (MOST_ROWS / 8));
    munmap(x, sizeof *x * (size_t)n_in * MOST_ROWS);
    munmap(job->out, (size_t)team_n_threads(c->team) * 4 * TILE_ROWS * PANEL_ROWS * sizeof *job->out);
    free(job);
}

static const struct attention_kind {
    const char *name;
    size_t head_bytes; /* of the keys of a page of 128 dimensions */
} ATTENTION_KINDS[] = { { "f16", 4096 }, { "int8", 2048 + 64 }, { "f32", 8192 } };
enum { HEAD_DIM = 128, N_ATTENTION_KINDS = sizeof ATTENTION_KINDS / sizeof *ATTENTION_KINDS };

/* Half precision or int8 of both signs, small; scales that are powers of two. */
static void fill_kv(struct check *c, uint8_t *kv, size_t n_bytes, int kind)
{
    size_t head_bytes = ATTENTION_KINDS[kind].head_bytes;
    for (size_t i = 0; i < n_bytes; i += 4) {
        uint32_t bits = check_random(c);
        if (kind == 1 ? i % head_bytes >= 2048 : kind == 2)
            bits = 0x3C000000;
        else if (kind == 0)
            bits = 0x30003000 | (bits & 0x83FF83FF);
        memcpy(kv + i, &bits, sizeof bits);
    }
}

static void bench_attention(struct check *c, int kind, int n_queries, int length)
{
    int n_pages = (length + 15) / 16, n_floats = n_queries * HEAD_DIM;
    size_t head_bytes = ATTENTION_KINDS[kind].head_bytes, n_bytes = 2 * head_bytes * (size_t)n_pages;
    attention_fn *const attention[] = { c->k->attention_f16, c->k->attention_int8, c->k->attention_f32 };
    uint8_t *kv = big(n_bytes);
    int32_t *table = calloc((size_t)n_pages, sizeof *table);
    struct attention_view views[ATTENTION_QUERIES];
    float *floats = big(sizeof *floats * 4 * (size_t)n_floats), max[2][ATTENTION_QUERIES],
          total[2][ATTENTION_QUERIES];
    fill_kv(c, kv, n_bytes, kind);
    for (int i = 0; i < n_pages; i++)
        table[i] = (i * 7) % n_pages;
    for (int i = 0; i < n_queries; i++)
        views[i] = (struct attention_view){ .end = length, .pos = length - 1 };
    for (int i = 0; i < n_floats; i++)
        floats[i] = (float)(int32_t)check_random(c) * 0x1p-31f;
    struct attention_sums all = { max[0], total[0], floats + n_floats };
    struct attention_sums one = { max[1], total[1], floats + 2 * n_floats };
    struct attention_work work = { .q = floats,
                                   .views = views,
                                   .n_queries = n_queries,
                                   .head_dim = HEAD_DIM,
                                   .base = kv,
                                   .page_bytes = 2 * head_bytes,
                                   .values_offset = head_bytes,
                                   .page_table = table,
                                   .scratch = (int16_t *)(floats + 3 * n_floats) };
    double best = 0;
    for (int i = 0; i < 20; i++) {
        uint64_t begin = clock_now_ns();
        memset(total[0], 0, sizeof total[0]);
        for (int block = 0; block * ATTENTION_BLOCK < length; block++) {
            attention[kind](&one, &work, block);
            c->k->attention_merge(&all, &one, n_queries, HEAD_DIM);
        }
        double seconds = (double)(clock_now_ns() - begin) * 1e-9;
        best = best == 0 || seconds < best ? seconds : best;
    }
    printf("%-6s attention %-4s one thread, %2d queries x %3d, %5d keys %8.1f us %6.1f GB/s %6.1f Gflop/s\n",
           cpu_name(c->level), ATTENTION_KINDS[kind].name, n_queries, HEAD_DIM, length, best * 1e6,
           (double)n_bytes * 1e-9 / best, 4.0 * n_queries * HEAD_DIM * length * 1e-9 / best);
    munmap(kv, n_bytes);
    munmap(floats, sizeof *floats * 4 * (size_t)n_floats);
    free(table);
}

void bench_all(struct check *c)
{
    static const unsigned LEVELS[] = { CPU_AVX2 | CPU_AVX512 | CPU_BF16, CPU_AVX2 | CPU_AVX512, CPU_AVX2,
                                       CPU_REF };
    c->random = 88172645463325252u;
    for (size_t l = 0; l < sizeof LEVELS / sizeof *LEVELS; l++) {
        struct kernels k;
        if ((LEVELS[l] & ~cpu_detect()) != 0 ||
            (c->only && strcmp(c->only, cpu_name(LEVELS[l])) != 0 && l > 0))
            continue;
        kernels_init(&k, LEVELS[l]);
        c->k = &k;
        c->level = LEVELS[l];
        c->limits = measure_new(c->team, c->level);
        if (!c->limits) {
            fprintf(stderr, "checkkernels: no memory\n");
            exit(1);
        }
        printf("%s, %d threads: reads %.1f GB/s, %.0f Gop/s int8, %.0f Gflop/s float32\n", cpu_name(c->level),
               team_n_threads(c->team), measure_read_gbps(c->limits), measure_int8_gops(c->limits),
               measure_f32_gflops(c->limits));
        for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++)
            for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
                if (!c->only || strcmp(c->only, dtype_name(TYPES[t])) == 0 ||
                    strcmp(c->only, cpu_name(c->level)) == 0)
                    bench_matrix(c, TYPES[t], SHAPES[s][0], SHAPES[s][1]);
        if (!c->only || strcmp(c->only, "attention") == 0)
            for (int kind = 0; kind < N_ATTENTION_KINDS; kind++)
                for (int length = 256; length <= 16384; length *= 8)
                    for (int n_queries = 1; n_queries <= ATTENTION_QUERIES; n_queries *= 4)
                        bench_attention(c, kind, n_queries, length);
        measure_free(c->limits);
    }
}
