/* Fork and join by one generation counter. A waiting thread first polls on its core, then yields the
 * core between polls (there may be more threads than cores, or other programs). A worker finally
 * sleeps.
 *
 * Each thread's share of a generation is claimed before it runs: by its own thread or, after the
 * caller has finished its own share, by the caller. A worker that wakes up late finds its share
 * claimed and waits for the next generation. */
#include "base/system/team.h"

#include "base/system/cgroup.h"
#include "base/system/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_THREADS = 256,
    SPINS = 1000,       /* about 10 us of pauses: covers most waits between the operations of a step */
    SPINS_CROWDED = 50, /* more threads than cores: spinning delays the threads that are waited for */
    YIELDS = 300,       /* about 0.2 ms on an idle core: covers the time between two steps */
};

/* One worker's share of the work, and its sleep. It has its own cache line, so that a worker that
 * begins does not slow down the others. */
struct worker {
    _Alignas(64) atomic_uint claimed; /* the last generation in which a thread took the share */
    atomic_bool is_asleep;            /* it waits for wake; the thread that clears this posts wake */
    sem_t wake;
    bool has_wake;
};

struct team {
    int n_threads, n_started;
    unsigned spins;
    bool pin;
    pthread_t threads[MAX_THREADS];
    team_fn *fn;
    void *arg;
    atomic_bool stop;                    /* a worker whose share was taken may look at any time */
    _Alignas(64) atomic_uint generation; /* incremented to start work */
    _Alignas(64) atomic_int n_running;   /* shares of workers that are not finished in this generation */
    struct worker workers[MAX_THREADS];
    _Alignas(64) atomic_int n_sleeping;
};

struct worker_arg {
    struct team *team;
    int thread;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Spins or yields between two checks; i: their number. */
static inline void pass_time(const struct team *team, unsigned i)
{
    if (i < team->spins)
        relax();
    else
        sched_yield();
}

static void pin_to_core(int index)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    int n = CPU_COUNT(&all), want = n > 0 ? index % n : 0;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET((size_t)core, &all) && want-- == 0) {
            CPU_ZERO(&one);
            CPU_SET((size_t)core, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
    }
}

static void wait_for_generation(struct team *team, int thread, unsigned last)
{
    for (unsigned i = 0; i < team->spins + YIELDS; i++) {
        if (atomic_load_explicit(&team->generation, memory_order_acquire) != last)
            return;
        pass_time(team, i);
    }
    struct worker *self = &team->workers[thread];
    atomic_fetch_add(&team->n_sleeping, 1);
    while (atomic_load(&team->generation) == last) {
        atomic_store(&self->is_asleep, true);
        if (atomic_load(&team->generation) != last && atomic_exchange(&self->is_asleep, false))
            break; /* no post is under way */
        while (sem_wait(&self->wake) != 0 && errno == EINTR)
            ;
    }
    atomic_fetch_sub(&team->n_sleeping, 1);
}

/* Runs the share unless another thread has claimed it. fn and arg do not change while a claimed
 * share is unfinished. */
static void run_share(struct team *team, int thread, unsigned generation)
{
    unsigned before = generation - 1;
    if (!atomic_compare_exchange_strong_explicit(&team->workers[thread].claimed, &before, generation,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return;
    team->fn(team->arg, thread, team->n_threads);
    atomic_fetch_sub_explicit(&team->n_running, 1, memory_order_release);
}

static void *worker_main(void *arg)
{
    struct worker_arg worker = *(struct worker_arg *)arg;
    struct team *team = worker.team;
    free(arg);
    if (team->pin)
        pin_to_core(worker.thread);
    unsigned last = 0;
    for (;;) {
        wait_for_generation(team, worker.thread, last);
        last = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (atomic_load_explicit(&team->stop, memory_order_relaxed))
            return NULL;
        run_share(team, worker.thread, last);
    }
}

/* Never waits for a worker, not even for one that was woken and has no core yet, as a condition
 * variable might. */
static unsigned start_generation(struct team *team)
{
    unsigned generation = atomic_fetch_add(&team->generation, 1) + 1;
    for (int i = 1; atomic_load(&team->n_sleeping) > 0 && i < team->n_threads; i++)
        if (atomic_load(&team->workers[i].is_asleep) && atomic_exchange(&team->workers[i].is_asleep, false))
            sem_post(&team->workers[i].wake);
    return generation;
}

static enum tutti_status start_threads(struct team *team, struct tutti_error *err)
{
    for (int i = 1; i < team->n_threads; i++) {
        struct worker_arg *arg = malloc(sizeof *arg);
        if (!arg)
            return error_set(err, TUTTI_E_MEMORY, "thread team: out of memory");
        *arg = (struct worker_arg){ .team = team, .thread = i };
        int rc = thread_start(&team->threads[i], worker_main, arg);
        if (rc != 0) {
            free(arg);
            return error_set(err, TUTTI_E_MEMORY, "thread team: cannot make compute thread %d of %d: %s",
                             i + 1, team->n_threads, strerror(rc));
        }
        team->n_started++;
    }
    return TUTTI_OK;
}

enum tutti_status team_new(struct team **out, int n_threads, bool pin, struct tutti_error *err)
{
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return error_set(err, TUTTI_E_ARGUMENT, "threads: %d, expected 0 to %d", n_threads, MAX_THREADS);
    struct team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (!team)
        return error_set(err, TUTTI_E_MEMORY, "thread team: out of memory");
    memset(team, 0, sizeof *team);
    team->n_threads = n_threads > 0 ? n_threads : team_n_cores();
    if (team->n_threads > MAX_THREADS)
        team->n_threads = MAX_THREADS;
    team->pin = pin;
    team->spins = team->n_threads > team_n_cores() ? SPINS_CROWDED : SPINS;
    enum tutti_status st = TUTTI_OK;
    for (int i = 1; i < team->n_threads; i++) {
        team->workers[i].has_wake = sem_init(&team->workers[i].wake, 0, 0) == 0;
        if (!team->workers[i].has_wake) {
            st = error_set(err, TUTTI_E_MEMORY, "thread team: %s", strerror(errno));
            goto done;
        }
    }
    st = start_threads(team, err);
    if (st != TUTTI_OK)
        goto done;
    *out = team;
    team = NULL;
done:
    team_free(team);
    return st;
}

void team_free(struct team *team)
{
    if (!team)
        return;
    if (team->n_started > 0) {
        atomic_store(&team->stop, true);
        start_generation(team);
        for (int i = 1; i <= team->n_started; i++)
            pthread_join(team->threads[i], NULL);
    }
    for (int i = 1; i < team->n_threads; i++)
        if (team->workers[i].has_wake)
            sem_destroy(&team->workers[i].wake);
    free(team);
}

int team_n_threads(const struct team *team)
{
    return team->n_threads;
}

void team_run(struct team *team, team_fn *fn, void *arg)
{
    if (team->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->n_running, team->n_threads - 1, memory_order_relaxed);
    unsigned generation = start_generation(team);
    fn(arg, 0, team->n_threads);
    for (int i = 1; i < team->n_threads; i++)
        if (atomic_load_explicit(&team->workers[i].claimed, memory_order_relaxed) != generation)
            run_share(team, i, generation);
    for (unsigned i = 0; atomic_load_explicit(&team->n_running, memory_order_acquire) != 0; i++)
        pass_time(team, i);
}

void team_range(int64_t n, int64_t step, int thread, int n_threads, int64_t *begin, int64_t *end)
{
    int64_t n_steps = (n + step - 1) / step;
    int64_t each = n_steps / n_threads, more = n_steps % n_threads;
    int64_t first = thread * each + (thread < more ? thread : more);
    int64_t last = first + each + (thread < more ? 1 : 0);
    *begin = first * step < n ? first * step : n;
    *end = last * step < n ? last * step : n;
}

int team_n_cores(void)
{
    cpu_set_t set;
    int n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    int quota = cgroup_cores("");
    if (quota > 0 && quota < n)
        n = quota;
    return n > 0 ? n : 1;
}
