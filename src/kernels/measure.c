#include "kernels/measure.h"

#include "base/clock.h"
#include "kernels/kernels.h"
#if defined(__x86_64__)
#include "kernels/x86/x86.h"
#endif

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    BUFFER_BYTES = 512 << 20, /* beyond the third cache of any processor that tutti would meet */
    PIECE_BYTES =
        1 << 20, /* that a thread reads at a time: a thread that is held up does not hold up the others */
    REPEATS = 15,
    ROUNDS = 1 << 20, /* of the peak loops: about ten milliseconds */
};

/* Of one thread, a cache line each. */
struct result {
    uint64_t value;    /* keeps the loops from being dropped */
    double per_second; /* rounds */
    uint8_t apart[48];
};

struct job {
    const uint8_t *buffer;
    uint64_t (*read)(const uint8_t *bytes, size_t n);
    uint64_t (*peak)(int64_t rounds);
    atomic_int next; /* piece */
    struct result *results;
};

#if !defined(__x86_64__)
static uint64_t read_plain(const uint8_t *bytes, size_t n)
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
#endif

static void read_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct job *job = arg;
    for (;;) {
        int piece = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (piece >= BUFFER_BYTES / PIECE_BYTES)
            return;
        job->results[thread].value += job->read(job->buffer + (size_t)piece * PIECE_BYTES, PIECE_BYTES);
    }
}

static double read_gbps(struct team *team, struct job *job)
{
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        atomic_store(&job->next, 0);
        uint64_t begin = clock_now_ns();
        team_run(team, read_some, job);
        double gbps = (double)BUFFER_BYTES / (double)(clock_now_ns() - begin);
        best = gbps > best ? gbps : best;
    }
    return best;
}

double measure_read_gbps(struct team *team)
{
    struct job job = { .results = calloc((size_t)team_n_threads(team), sizeof *job.results) };
    uint8_t *buffer = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double gbps = 0;
    if (!job.results || buffer == MAP_FAILED)
        goto done;
#ifdef MADV_HUGEPAGE
    (void)madvise(buffer, BUFFER_BYTES, MADV_HUGEPAGE);
#endif
    memset(buffer, 1, BUFFER_BYTES); /* pages that were never written share one of zeros */
    job.buffer = buffer;
#if defined(__x86_64__)
    unsigned cpu = cpu_detect();
    job.read = cpu & CPU_AVX512 ? measure_read_avx512
               : cpu & CPU_AVX2 ? measure_read_avx2
                                : measure_read_sse2;
#else
    job.read = read_plain;
#endif
    gbps = read_gbps(team, &job);
done:
    if (buffer != MAP_FAILED)
        munmap(buffer, BUFFER_BYTES);
    free(job.results);
    return gbps;
}

#if defined(__x86_64__)
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* By the processor time of each thread: what other programs take meanwhile does not count. */
static void peak_some(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct job *job = arg;
    double begin = thread_seconds();
    job->results[thread].value += job->peak(ROUNDS);
    double seconds = thread_seconds() - begin;
    job->results[thread].per_second = seconds > 0 ? ROUNDS / seconds : 0;
}

/* operations: of one round. All threads run at once: a processor may clock lower when all of it is busy. */
static double measure_peak(struct team *team, uint64_t (*peak)(int64_t rounds), double operations)
{
    struct job job = { .peak = peak, .results = calloc((size_t)team_n_threads(team), sizeof *job.results) };
    double best = 0;
    for (int i = 0; job.results && i < REPEATS; i++) {
        double sum = 0;
        team_run(team, peak_some, &job);
        for (int t = 0; t < team_n_threads(team); t++)
            sum += job.results[t].per_second * operations * 1e-9;
        best = sum > best ? sum : best;
    }
    free(job.results);
    return best;
}

double measure_peak_int8_gops(struct team *team, unsigned cpu)
{
    if (cpu & CPU_AVX512)
        return measure_peak(team, measure_int8_avx512, MEASURE_INT8_AVX512_OPS);
    return cpu & CPU_AVX2 ? measure_peak(team, measure_int8_avx2, MEASURE_INT8_AVX2_OPS) : 0;
}

double measure_peak_f32_gflops(struct team *team, unsigned cpu)
{
    if (cpu & CPU_AVX512)
        return measure_peak(team, measure_f32_avx512, MEASURE_F32_AVX512_OPS);
    return cpu & CPU_AVX2 ? measure_peak(team, measure_f32_avx2, MEASURE_F32_AVX2_OPS) : 0;
}
#else
double measure_peak_int8_gops(struct team *team, unsigned cpu)
{
    (void)team;
    (void)cpu;
    return 0;
}

double measure_peak_f32_gflops(struct team *team, unsigned cpu)
{
    (void)team;
    (void)cpu;
    return 0;
}
#endif
