/* The speed of linear layers and attention at each processor level, compared with this machine's limits. */
#include "backend/backend.h"
#include "base/system/clock.h"
#include "check.h"
#include "device.h"
#include "kernels/measure.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const int ROWS[] = { 1, 2, 4, 8, 16, 17, 32, 256 };
static const int SHAPES[][2] = { { 4096, 4096 }, { 4096, 13696 }, { 13696, 4096 } }; /* n_out, n_in */
static const enum dtype TYPES[] = { DTYPE_Q4_0,   DTYPE_Q8_0,    DTYPE_F16,   DTYPE_BF16,     DTYPE_F32,
                                    DTYPE_Q4_K,   DTYPE_Q6_K,    DTYPE_Q5_K,  DTYPE_Q4_1,     DTYPE_Q5_0,
                                    DTYPE_Q5_1,   DTYPE_Q2_K,    DTYPE_Q3_K,  DTYPE_MXFP4,    DTYPE_IQ4_NL,
                                    DTYPE_IQ4_XS, DTYPE_IQ2_XXS, DTYPE_IQ3_S, DTYPE_F8_BLOCK, DTYPE_F8_ROW };

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

/* Medians of repetitions; the machine's limits are measured with each of them. */
struct timing {
    double seconds, read_gbps, peak; /* peak: Gop/s of the arithmetic that the type uses */
};

/* Copies of a matrix, which together exceed the caches. */
struct matrices {
    struct backend *be;
    struct matrix *copy[64];
    int n;
    struct floats x, y;
};

static struct timing time_linear(struct measure *limits, const struct matrices *m, int n_rows,
                                 bool is_integers)
{
    enum { MOST = 60, LEAST = 9 };
    double seconds[MOST], read[MOST], peak[MOST], total = 0;
    int n = 0;
    for (; n < MOST && (n < LEAST || total < 0.3); n++) {
        read[n] = n < LEAST ? measure_read_gbps(limits) : read[n - 1];
        peak[n] = is_integers ? measure_int8_gops(limits) : measure_f32_gflops(limits);
        m->be->ops->linear(m->be, m->y, m->copy[n % m->n], m->x, 1); /* wakes the threads */
        uint64_t begin = clock_now_ns();
        m->be->ops->linear(m->be, m->y, m->copy[(n + 1) % m->n], m->x, n_rows);
        seconds[n] = (double)(clock_now_ns() - begin) * 1e-9;
        total += seconds[n];
    }
    return (struct timing){ measure_median(seconds, n), measure_median(read, n < LEAST ? n : LEAST),
                            measure_median(peak, n) };
}

static void must(enum tutti_status st, const struct tutti_error *err)
{
    if (st != TUTTI_OK) {
        fprintf(stderr, "checkkernels: %s\n", err->text);
        exit(1);
    }
}

/* Weights of small numbers in every type. */
static void make_matrices(struct matrices *m, enum dtype type, int n_out, int n_in)
{
    struct tutti_error err;
    size_t row = 0;
    if (!dtype_bytes(type, n_in, &row))
        exit(1);
    uint8_t *stored = big(row * (size_t)n_out);
    for (size_t i = 0; i < row * (size_t)n_out; i++)
        stored[i] = (uint8_t)((i * 2654435761u) >> 13) & 0x3B;
    for (size_t i = 0; type == DTYPE_F8_BLOCK && i < row * (size_t)n_out;
         i += (size_t)dtype_block_bytes(type))
        memcpy(stored + i, "\0\0\x80\x3b", 4); /* one scale: rows of a panel share a few */
    struct matrix_part part = { stored, type, n_out };
    struct matrix_source source = {
        .name = "bench", .parts = &part, .n_parts = 1, .n_in = n_in, .type = type
    };
    for (m->n = 0; m->n == 0 || (size_t)m->n * row * (size_t)n_out < 200000000; m->n++)
        must(m->be->ops->matrix_new(m->be, &m->copy[m->n], &source, &err), &err);
    munmap(stored, row * (size_t)n_out);
}

static void bench_matrix(struct check *c, enum dtype type, int n_out, int n_in)
{
    enum { MOST_ROWS = 256 };
    struct tutti_error err;
    struct matrices m = { 0 };
    size_t n_x = (size_t)n_in * MOST_ROWS;
    float *x = big(n_x * sizeof *x);
    m.be = device_open_small(team_n_threads(c->team), cpu_name(c->level));
    make_matrices(&m, type, n_out, n_in);
    must(m.be->ops->reserve(m.be, MOST_ROWS, &err), &err);
    for (size_t i = 0; i < n_x; i++)
        x[i] = (float)(int32_t)check_random(c) * 0x1p-31f;
    m.x = m.be->ops->alloc(m.be, n_x);
    m.y = m.be->ops->alloc(m.be, (size_t)n_out * MOST_ROWS);
    if (!m.x.buffer || !m.y.buffer)
        must(error_set(&err, TUTTI_E_MEMORY, "no memory"), &err);
    m.be->ops->upload(m.be, m.x, x, n_x);
    munmap(x, n_x * sizeof *x);
    bool is_integers = dtype_is_integers(type);
    size_t n_bytes = m.be->ops->matrix_bytes(m.copy[0]);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && (c->level != CPU_REF || i == 0); i++) {
        struct timing t = time_linear(c->limits, &m, ROWS[i], is_integers);
        double gbps = (double)n_bytes * 1e-9 / t.seconds,
               gops = 2.0 * n_out * n_in * ROWS[i] * 1e-9 / t.seconds;
        printf("%-6s %-5s %5d x %5d %4d rows %8.1f us %7.1f GB/s %3.0f%% %8.1f Gop/s %3.0f%%\n",
               cpu_name(c->level), dtype_name(type), n_out, n_in, ROWS[i], t.seconds * 1e6, gbps,
               100 * gbps / t.read_gbps, gops, t.peak > 0 ? 100 * gops / t.peak : 0);
        fflush(stdout);
    }
    for (int i = 0; i < m.n; i++)
        m.be->ops->matrix_free(m.be, m.copy[i]);
    m.be->ops->dealloc(m.be, m.x);
    m.be->ops->dealloc(m.be, m.y);
    m.be->ops->free(m.be);
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
    float *floats = big(sizeof *floats * 3 * (size_t)n_floats), max[2][ATTENTION_QUERIES],
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
                                   .page_table = table };
    const uint8_t *next[ATTENTION_PREFETCH_PAGES];
    double best = 0;
    for (int i = 0; i < 20; i++) {
        uint64_t begin = clock_now_ns();
        memset(total[0], 0, sizeof total[0]);
        for (int block = 0; block * ATTENTION_BLOCK < length; block++) {
            bool has_next = (block + 2) * ATTENTION_BLOCK <= length;
            for (int j = 0; j < ATTENTION_PREFETCH_PAGES && has_next; j++)
                next[j] = kv + (size_t)table[(block + 1) * (ATTENTION_BLOCK / ATTENTION_KEYS) + j] * 2 *
                                   head_bytes;
            work.next = has_next ? next : NULL;
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
    munmap(floats, sizeof *floats * 3 * (size_t)n_floats);
    free(table);
}

void bench_all(struct check *c)
{
    static const unsigned LEVELS[] = { CPU_AVX2 | CPU_AVX512 | CPU_AMX,
                                       CPU_AVX2 | CPU_AVX512 | CPU_BF16,
                                       CPU_AVX2 | CPU_AVXVNNI,
                                       CPU_AVX2,
                                       CPU_NEON | CPU_DOTPROD | CPU_I8MM,
                                       CPU_NEON | CPU_DOTPROD,
                                       CPU_NEON,
                                       CPU_REF };
    c->random = 88172645463325252u;
    bool is_best = true; /* a type is measured at this processor's highest level only */
    for (size_t l = 0; l < sizeof LEVELS / sizeof *LEVELS; l++) {
        struct kernels k;
        if ((LEVELS[l] & ~cpu_detect()) != 0)
            continue;
        bool is_wanted = !c->only || is_best || strcmp(c->only, cpu_name(LEVELS[l])) == 0;
        is_best = false;
        if (!is_wanted)
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
