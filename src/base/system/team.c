/* Fork and join. Threads form groups of GROUP, so that few of them share a cache line: the caller starts each
 * group by one store, and the last thread of a group to finish counts the group as done. According to the model of
 * bench/team_model.py, 128 threads need less than half of the time of one counter for all.
 *
 * A waiting thread first polls on its core, then yields the core between polls (there may be more threads
 * than cores, or other programs). A worker finally sleeps.
 *
 * Each thread's share is taken before it runs: by its own thread or, after the caller has finished its own
 * share, by the caller. A worker that wakes up late finds its share taken and waits for the next work. */
#include "base/system/team.h"

#include "base/system/cgroup.h"
#include "base/system/clock.h"
#include "base/system/nodes.h"
#include "base/system/os.h"
#include "base/system/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_THREADS = 256,
    GROUP = 8,          /* cores that share a cache on most large processors */
    SPINS = 1000,       /* about 10 us of pauses: covers most waits between the operations of a step */
    SPINS_CROWDED = 50, /* more threads than cores: spinning delays the threads that are waited for */
    YIELD_US = 200,     /* then it yields for so long: covers the time between two steps */
    PATIENCE = 100,     /* pauses before the caller, with several groups, takes shares that no thread took */
};

/* A worker's sleep. The thread that clears is_asleep posts wake. */
struct worker {
    _Alignas(64) atomic_bool is_asleep;
    union os_semaphore wake;
    bool has_wake;
};

/* generation << 32, and a bit for each share of the group that no thread has taken yet. */
typedef uint64_t work_word;

struct group {
    _Alignas(64) _Atomic work_word work;
    _Alignas(64) atomic_int n_running; /* shares that are not finished */
};

struct team {
    int n_threads, n_started, n_groups;
    unsigned spins;
    bool pin;
    uint32_t generation;
    pthread_t threads[MAX_THREADS];
    struct nodes nodes;
    int first_threads[NODES_MAX + 1];
    uint8_t node_of[MAX_THREADS];
    team_fn *fn;
    void *arg;
    atomic_bool stop; /* workers whose share was taken may read it at any time */
    struct group groups[(MAX_THREADS + GROUP - 1) / GROUP];
    _Alignas(64) atomic_int n_groups_running; /* groups with shares that are not finished */
    _Alignas(64) atomic_int n_sleeping;
    struct worker workers[MAX_THREADS];
};

struct worker_arg {
    struct team *team;
    int thread;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
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

static inline uint32_t generation_of(work_word work)
{
    return (uint32_t)(work >> 32);
}

/* The shares of workers of a group. Thread 0 is the caller, which runs its own share at once. */
static work_word shares_of(const struct team *team, int group)
{
    int n = team->n_threads - group * GROUP;
    work_word all = (UINT64_C(1) << (n < GROUP ? n : GROUP)) - 1;
    return group == 0 ? all & ~UINT64_C(1) : all;
}

/* ---- binding ---- */

static void bind_thread(const struct team *team, int thread)
{
    int node = team->node_of[thread];
    if (team->pin)
        nodes_bind_one(&team->nodes.nodes[node].cores, thread - team->first_threads[node]);
    else if (team->nodes.n > 1)
        nodes_bind(&team->nodes.nodes[node].cores);
}

void team_bind_caller(struct team *team)
{
    bind_thread(team, 0);
}

/* Gives each node its part of the threads; nodes without threads are left out. */
static void divide_threads(struct team *team, bool by_node)
{
    struct nodes all = { 0 };
    int n_cores = 0, before = 0;
    nodes_find(&all, NULL);
    for (int i = 0; i < all.n; i++)
        n_cores += all.nodes[i].n_cores;
    if (!by_node) { /* one node, in the order of the nodes' cores: only pin needs them */
        for (int i = 1; i < all.n; i++)
            CPU_OR(&all.nodes[0].cores, &all.nodes[0].cores, &all.nodes[i].cores);
        all.n = 1;
        all.nodes[0].n_cores = n_cores;
    }
    for (int i = 0, first = 0; i < all.n; i++) {
        before += all.nodes[i].n_cores;
        int end = i + 1 == all.n ? team->n_threads : (int)((int64_t)team->n_threads * before / n_cores);
        if (end == first)
            continue;
        team->first_threads[team->nodes.n] = first;
        for (; first < end; first++)
            team->node_of[first] = (uint8_t)team->nodes.n;
        team->nodes.nodes[team->nodes.n++] = all.nodes[i];
    }
    team->first_threads[team->nodes.n] = team->n_threads;
}

const struct nodes *team_nodes(const struct team *team)
{
    return &team->nodes;
}

int team_node_of(const struct team *team, int thread)
{
    return team->node_of[thread];
}

int team_first_thread(const struct team *team, int node)
{
    return team->first_threads[node];
}

int64_t team_node_begin(const struct team *team, int64_t n, int node)
{
    return n * team->first_threads[node] / team->n_threads;
}

/* ---- sleeping ---- */

/* Wakes workers of a group, at most `most`. */
static void wake(struct team *team, int group, int most)
{
    int end = (group + 1) * GROUP < team->n_threads ? (group + 1) * GROUP : team->n_threads;
    for (int i = group == 0 ? 1 : group * GROUP; i < end && most > 0; i++) {
        struct worker *w = &team->workers[i];
        if (atomic_load(&w->is_asleep) && atomic_exchange(&w->is_asleep, false)) {
            os_semaphore_post(&w->wake);
            most--;
        }
    }
}

/* Returns when the group's work is of another generation than last. Each side first stores its state (is_asleep here,
 * work in start()), then modifies n_sleeping, then loads the other side's state: the side that modifies n_sleeping
 * second sees the store of the first. */
static work_word sleep_until_work(struct team *team, int thread, uint32_t last)
{
    struct worker *self = &team->workers[thread];
    struct group *group = &team->groups[thread / GROUP];
    work_word work;
    do {
        atomic_store(&self->is_asleep, true);
        atomic_fetch_add(&team->n_sleeping, 1);
        work = atomic_load(&group->work);
        if (generation_of(work) == last || !atomic_exchange(&self->is_asleep, false)) /* else no post comes */
            os_semaphore_wait(&self->wake);
        atomic_fetch_sub(&team->n_sleeping, 1);
        work = atomic_load(&group->work);
    } while (generation_of(work) == last);
    if (thread >= GROUP) /* of other groups than its own, the caller wakes one worker */
        wake(team, thread / GROUP, GROUP);
    return work;
}

/* By time, not by number: a yield to another program can take some milliseconds, and the system counts a thread that yields among
 * those that need a core, so it moves others. */
static work_word wait_for_work(struct team *team, int thread, uint32_t last)
{
    const struct group *group = &team->groups[thread / GROUP];
    uint64_t end = 0;
    for (unsigned i = 0; i <= team->spins || clock_now_us() < end; i++) {
        work_word work = atomic_load_explicit(&group->work, memory_order_acquire);
        if (generation_of(work) != last)
            return work;
        if (i == team->spins)
            end = clock_now_us() + YIELD_US;
        pass_time(team, i);
    }
    return sleep_until_work(team, thread, last);
}

/* ---- work ---- */

/* Runs the share unless another thread has taken it. fn and arg do not change while a share that was taken is
 * unfinished. *work: as seen before; set to what was found. */
static void run_share(struct team *team, int thread, work_word *work)
{
    struct group *group = &team->groups[thread / GROUP];
    work_word own = UINT64_C(1) << thread % GROUP;
    if (!(*work & own))
        return;
    *work = atomic_fetch_and_explicit(&group->work, ~own, memory_order_acq_rel);
    if (!(*work & own))
        return;
    team->fn(team->arg, thread, team->n_threads);
    if (atomic_fetch_sub_explicit(&group->n_running, 1, memory_order_acq_rel) == 1)
        atomic_fetch_sub_explicit(&team->n_groups_running, 1, memory_order_release);
}

static void *worker_main(void *arg)
{
    struct worker_arg worker = *(struct worker_arg *)arg;
    struct team *team = worker.team;
    free(arg);
    bind_thread(team, worker.thread);
    work_word work = 0;
    do {
        work = wait_for_work(team, worker.thread, generation_of(work));
        run_share(team, worker.thread, &work); /* may find that the team has ended since */
    } while (!atomic_load_explicit(&team->stop, memory_order_relaxed));
    return NULL;
}

/* Never waits for a worker, not even for one that was woken and has no core yet, as a condition
 * variable might. */
static void start(struct team *team, bool has_shares)
{
    int n_groups = 0;
    for (int g = 0; g < team->n_groups; g++) {
        work_word shares = has_shares ? shares_of(team, g) : 0;
        atomic_store_explicit(&team->groups[g].n_running, __builtin_popcountll(shares), memory_order_relaxed);
        n_groups += shares != 0;
    }
    atomic_store_explicit(&team->n_groups_running, n_groups, memory_order_relaxed);
    team->generation++;
    for (int g = 0; g < team->n_groups; g++)
        atomic_store_explicit(&team->groups[g].work,
                              (work_word)team->generation << 32 | (has_shares ? shares_of(team, g) : 0),
                              memory_order_release);
    if (atomic_fetch_add(&team->n_sleeping, 0) > 0)
        for (int g = 0; g < team->n_groups; g++)
            wake(team, g, g == 0 ? GROUP : 1);
}

/* Runs the shares that no thread has taken. */
static void take_rest(struct team *team)
{
    for (int g = 0; g < team->n_groups; g++) {
        work_word work = atomic_load_explicit(&team->groups[g].work, memory_order_relaxed);
        for (int i = 0; i < GROUP && (uint32_t)work != 0; i++)
            run_share(team, g * GROUP + i, &work);
    }
}

void team_run(struct team *team, team_fn *fn, void *arg)
{
    if (team->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    unsigned patience = team->n_groups > 1 && team->spins == SPINS ? PATIENCE : 0;
    team->fn = fn;
    team->arg = arg;
    start(team, true);
    fn(arg, 0, team->n_threads);
    for (unsigned i = 0; atomic_load_explicit(&team->n_groups_running, memory_order_acquire) != 0; i++) {
        if (i == patience)
            take_rest(team);
        else
            pass_time(team, i);
    }
}

void team_run_bound(struct team *team, team_fn *fn, void *arg)
{
    cpu_set_t before;
    nodes_bound(&before);
    bind_thread(team, 0);
    team_run(team, fn, arg);
    nodes_bind(&before);
}

/* ---- starting and ending ---- */

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

enum tutti_status team_new(struct team **out, const struct team_options *options, struct tutti_error *err)
{
    if (options->n_threads < 0 || options->n_threads > MAX_THREADS)
        return error_set(err, TUTTI_E_ARGUMENT, "threads: %d, expected 0 to %d", options->n_threads,
                         MAX_THREADS);
    struct team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (!team)
        return error_set(err, TUTTI_E_MEMORY, "thread team: out of memory");
    memset(team, 0, sizeof *team);
    int n_cores = team_n_cores();
    team->n_threads = options->n_threads > 0  ? options->n_threads
                      : n_cores < MAX_THREADS ? n_cores
                                              : MAX_THREADS;
    team->n_groups = (team->n_threads + GROUP - 1) / GROUP;
    team->pin = options->pin;
    team->spins = team->n_threads > n_cores ? SPINS_CROWDED : SPINS;
    divide_threads(team, options->by_node);
    enum tutti_status st = TUTTI_OK;
    for (int i = 1; i < team->n_threads; i++) {
        team->workers[i].has_wake = os_semaphore_init(&team->workers[i].wake);
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
        start(team, false);
        for (int g = 0; g < team->n_groups; g++)
            wake(team, g, GROUP);
        for (int i = 1; i <= team->n_started; i++)
            pthread_join(team->threads[i], NULL);
    }
    for (int i = 1; i < team->n_threads; i++)
        if (team->workers[i].has_wake)
            os_semaphore_clear(&team->workers[i].wake);
    free(team);
}

int team_n_threads(const struct team *team)
{
    return team->n_threads;
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
    int n = os_n_cores(), quota = cgroup_cores("");
    if (quota > 0 && quota < n)
        n = quota;
    return n;
}
