#include "kernels/measure.h"

#include "base/system/clock.h"
#include "base/system/nodes.h"
#include "kernels/kernels.h"
#if defined(__x86_64__)
#include "kernels/x86/x86.h"
#elif defined(__aarch64__)
#include "kernels/arm/arm.h"
#endif

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    BUFFER_BYTES = 512 << 20, /* larger than the last-level cache of any supported processor */
    PIECE_BYTES =
        1 << 20, /* that a thread reads at a time, so that a preempted thread does not delay the others */
    N_PIECES = BUFFER_BYTES / PIECE_BYTES,
    N_NODE_SAMPLES = 9,
    N_READ_SAMPLES = 5, /* of each loop */
    N_FORKS = 1001,
    SPIN_NS = 20000,  /* work of each thread while fork and join are measured */
    ROUNDS = 1 << 23, /* of the peak loops: about 20 ms, so that one interruption does not matter */
};

typedef uint64_t read_fn(const uint8_t *bytes, size_t n);

/* One thread's result, in its own cache line. */
struct result {
    uint64_t value;    /* keeps the compiler from removing the loops */
    double per_second; /* rounds */
    uint64_t end_ns;
    uint8_t apart[40];
};

struct measure {
    struct team *team;
    unsigned cpu;
    uint8_t *buffer;
    read_fn *read; /* chosen once: CPUID exits to the hypervisor in a virtual machine */
    uint64_t (*peak)(int64_t rounds);
    struct {
        _Alignas(64) atomic_int next; /* piece */
        int begin, end;
    } nodes[NODES_MAX];
    uint64_t begin_ns;
    struct result *results; /* [n_threads] */
};

/* A loop on registers, and the operations of one round. */
struct peak {
    uint64_t (*loop)(int64_t rounds);
    double operations;
};

#if defined(__x86_64__)
static read_fn *best_read(void)
{
    unsigned best = cpu_detect();
    return best & CPU_AVX512 ? measure_read_avx512 : best & CPU_AVX2 ? measure_read_avx2 : measure_read_sse2;
}

static struct peak int8_peak(unsigned cpu)
{
    if (cpu & CPU_AVX512)
        return (struct peak){ measure_int8_avx512, MEASURE_INT8_AVX512_OPS };
    if (cpu & CPU_AVXVNNI)
        return (struct peak){ cpu & CPU_VEX ? measure_int8_vex : measure_int8_evex,
                              MEASURE_INT8_AVXVNNI_OPS };
    return cpu & CPU_AVX2 ? (struct peak){ measure_int8_avx2, MEASURE_INT8_AVX2_OPS }
                          : (struct peak){ NULL, 0 };
}

static struct peak f32_peak(unsigned cpu)
{
    if (cpu & CPU_AVX512)
        return (struct peak){ measure_f32_avx512, MEASURE_F32_AVX512_OPS };
    return cpu & CPU_AVX2 ? (struct peak){ measure_f32_avx2, MEASURE_F32_AVX2_OPS }
                          : (struct peak){ NULL, 0 };
}
#elif defined(__aarch64__)
static read_fn *best_read(void)
{
    return measure_read_neon;
}

static struct peak int8_peak(unsigned cpu)
{
    if (cpu & CPU_I8MM)
        return (struct peak){ measure_int8_i8mm, MEASURE_INT8_I8MM_OPS };
    if (cpu & CPU_DOTPROD)
        return (struct peak){ measure_int8_dotprod, MEASURE_INT8_DOTPROD_OPS };
    return cpu & CPU_NEON ? (struct peak){ measure_int8_neon, MEASURE_INT8_NEON_OPS }
                          : (struct peak){ NULL, 0 };
}

static struct peak f32_peak(unsigned cpu)
{
    return cpu & CPU_NEON ? (struct peak){ measure_f32_neon, MEASURE_F32_NEON_OPS }
                          : (struct peak){ NULL, 0 };
}
#else
static uint64_t read_words(const uint8_t *bytes, size_t n)
{
    uint64_t sum[8] = { 0 };
    for (size_t i = 0; i < n; i += 64)
        for (size_t j = 0; j < 8; j++) {
            uint64_t word;
            memcpy(&word, bytes + i + 8 * j, 8);
            sum[j] += word;
        }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static read_fn *best_read(void)
{
    return read_words;
}

static struct peak int8_peak(unsigned cpu)
{
    (void)cpu;
    return (struct peak){ NULL, 0 };
}

static struct peak f32_peak(unsigned cpu)
{
    (void)cpu;
    return (struct peak){ NULL, 0 };
}
#endif

/* The next piece of the thread's node; NULL: all pieces are taken. */
static uint8_t *next_piece(struct measure *m, int thread)
{
    int node = team_node_of(m->team, thread);
    int piece = atomic_fetch_add_explicit(&m->nodes[node].next, 1, memory_order_relaxed);
    return piece < m->nodes[node].end ? m->buffer + (size_t)piece * PIECE_BYTES : NULL;
}

static void read_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct measure *m = arg;
    for (const uint8_t *piece; (piece = next_piece(m, thread));)
        m->results[thread].value += m->read(piece, PIECE_BYTES);
    m->results[thread].end_ns = clock_now_ns();
}

/* Pages that were never written all map one zero page. */
static void write_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    for (uint8_t *piece; (piece = next_piece(arg, thread));)
        memset(piece, 1, PIECE_BYTES);
}

static void begin_pieces(struct measure *m)
{
    for (int node = 0; node < team_nodes(m->team)->n; node++) {
        m->nodes[node].begin = (int)team_node_begin(m->team, N_PIECES, node);
        m->nodes[node].end = (int)team_node_begin(m->team, N_PIECES, node + 1);
        atomic_store_explicit(&m->nodes[node].next, m->nodes[node].begin, memory_order_relaxed);
    }
    m->begin_ns = clock_now_ns();
}

uint64_t measure_bytes(void)
{
    return BUFFER_BYTES;
}

double measure_read_gbps(struct measure *m)
{
    begin_pieces(m);
    team_run(m->team, read_some, m);
    return (double)BUFFER_BYTES / (double)(clock_now_ns() - m->begin_ns);
}

/* Chooses the faster loop: some processors read faster with prefetches, others without them (Zen 3: by 8 %). */
static void choose_read(struct measure *m)
{
#if defined(__x86_64__)
    read_fn *const loops[] = { m->read, measure_read_sse2 }, *best = m->read;
    double most = 0;
    for (int i = 0; i < 2 * N_READ_SAMPLES; i++) {
        m->read = loops[i % 2];
        double gbps = measure_read_gbps(m);
        if (gbps > most) {
            most = gbps;
            best = m->read;
        }
    }
    m->read = best;
#else
    (void)m;
#endif
}

struct measure *measure_new(struct team *team, unsigned cpu)
{
    struct measure *m = aligned_alloc(64, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct measure){ .team = team, .cpu = cpu, .buffer = MAP_FAILED, .read = best_read() };
    m->results = calloc((size_t)team_n_threads(team), sizeof *m->results);
    if (m->results)
        m->buffer = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->buffer == MAP_FAILED) {
        measure_free(m);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(m->buffer, BUFFER_BYTES, MADV_HUGEPAGE);
#endif
    begin_pieces(m);
    for (int node = 0; team_nodes(team)->n > 1 && node < team_nodes(team)->n; node++)
        (void)node_place(&team_nodes(team)->nodes[node],
                         m->buffer + (size_t)m->nodes[node].begin * PIECE_BYTES,
                         (size_t)(m->nodes[node].end - m->nodes[node].begin) * PIECE_BYTES);
    team_run_bound(team, write_some, m); /* places it where node_place() is refused */
    choose_read(m);
    return m;
}

void measure_free(struct measure *m)
{
    if (!m)
        return;
    if (m->buffer != MAP_FAILED)
        munmap(m->buffer, BUFFER_BYTES);
    free(m->results);
    free(m);
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_median(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, compare_times);
    return n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

double measure_node_gbps(struct measure *m, int node)
{
    double samples[N_NODE_SAMPLES];
    for (int i = 0; i < N_NODE_SAMPLES; i++) {
        uint64_t end_ns = 0;
        (void)measure_read_gbps(m);
        for (int t = team_first_thread(m->team, node); t < team_first_thread(m->team, node + 1); t++)
            end_ns = m->results[t].end_ns > end_ns ? m->results[t].end_ns : end_ns;
        samples[i] = (double)(m->nodes[node].end - m->nodes[node].begin) * PIECE_BYTES /
                     (double)(end_ns - m->begin_ns);
    }
    return measure_median(samples, N_NODE_SAMPLES);
}

/* Without work the caller would take the shares of the others before they arrive. */
static void spin(void *arg, int thread, int n_threads)
{
    (void)arg;
    (void)thread;
    (void)n_threads;
    for (uint64_t end = clock_now_ns() + SPIN_NS; clock_now_ns() < end;)
        ;
}

double measure_fork_us(struct measure *m)
{
    double samples[N_FORKS];
    for (int i = 0; i < N_FORKS; i++) {
        uint64_t begin = clock_now_ns();
        team_run(m->team, spin, NULL);
        samples[i] = ((double)(clock_now_ns() - begin) - SPIN_NS) / 1e3;
    }
    return measure_median(samples, N_FORKS);
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Uses the CPU time of each thread, so other programs do not count. */
static void peak_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct measure *m = arg;
    double begin = thread_seconds();
    m->results[thread].value += m->peak(ROUNDS);
    double seconds = thread_seconds() - begin;
    m->results[thread].per_second = seconds > 0 ? ROUNDS / seconds : 0;
}

/* All threads run at once, because a fully loaded processor may lower its clock. */
static double measure_peak(struct measure *m, struct peak peak)
{
    double sum = 0;
    if (!peak.loop)
        return 0;
    m->peak = peak.loop;
    team_run(m->team, peak_some, m);
    for (int t = 0; t < team_n_threads(m->team); t++)
        sum += m->results[t].per_second * peak.operations * 1e-9;
    return sum;
}

double measure_int8_gops(struct measure *m)
{
    return measure_peak(m, int8_peak(m->cpu));
}

double measure_f32_gflops(struct measure *m)
{
    return measure_peak(m, f32_peak(m->cpu));
}
