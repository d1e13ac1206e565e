#include "kernels/measure.h"

#include "base/system/clock.h"
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
    ROUNDS = 1 << 23, /* of the peak loops: about 20 ms, so that one interruption does not matter */
};

/* One thread's result, in its own cache line. */
struct result {
    uint64_t value;    /* keeps the compiler from removing the loops */
    double per_second; /* rounds */
    uint8_t apart[48];
};

struct measure {
    struct team *team;
    unsigned cpu;
    uint8_t *buffer;
    uint64_t (*peak)(int64_t rounds);
    atomic_int next;        /* piece */
    struct result *results; /* [n_threads] */
};

/* A loop on registers, and the operations of one round. */
struct peak {
    uint64_t (*loop)(int64_t rounds);
    double operations;
};

#if defined(__x86_64__)
static uint64_t read_bytes(const uint8_t *bytes, size_t n)
{
    unsigned best = cpu_detect();
    return best & CPU_AVX512 ? measure_read_avx512(bytes, n)
           : best & CPU_AVX2 ? measure_read_avx2(bytes, n)
                             : measure_read_sse2(bytes, n);
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
static uint64_t read_bytes(const uint8_t *bytes, size_t n)
{
    return measure_read_neon(bytes, n);
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
static uint64_t read_bytes(const uint8_t *bytes, size_t n)
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

static void read_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct measure *m = arg;
    for (;;) {
        int piece = atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed);
        if (piece >= BUFFER_BYTES / PIECE_BYTES)
            return;
        m->results[thread].value += read_bytes(m->buffer + (size_t)piece * PIECE_BYTES, PIECE_BYTES);
    }
}

uint64_t measure_bytes(void)
{
    return BUFFER_BYTES;
}

struct measure *measure_new(struct team *team, unsigned cpu)
{
    struct measure *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct measure){ .team = team, .cpu = cpu, .buffer = MAP_FAILED };
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
    memset(m->buffer, 1, BUFFER_BYTES); /* pages that were never written all map one zero page */
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

double measure_read_gbps(struct measure *m)
{
    atomic_store(&m->next, 0);
    uint64_t begin = clock_now_ns();
    team_run(m->team, read_some, m);
    return (double)BUFFER_BYTES / (double)(clock_now_ns() - begin);
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
