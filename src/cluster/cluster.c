/* Opens a cluster; waiting, gathering and agreement over a transport. */
#include "cluster/cluster.h"

#include "base/system/clock.h"
#include "base/system/team.h"
#include "cluster/module.h"
#include "cluster/monitor.h"
#include "cluster/state.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SPINS = 200, /* pauses between polls, about 10 us: the latency of a message on the same machine */
    YIELD_NS = 20 * 1000 * 1000,   /* then yields between polls: how far ranks are apart within a step */
    NAP_NS = 50 * 1000,            /* then the thread sleeps this long */
    IDLE_YIELD_NS = 1000 * 1000,   /* between steps, for work that may not come: yields this long, */
    IDLE_NAP_NS = 4 * 1000 * 1000, /* then sleep, growing up to this */
    MESSAGE_BYTES = 1 << 30,
    MONITOR_WAIT_MS =
        4000, /* after a failure of the transport: wait for the monitor, which knows the reason */
};

/* ---- opening ---- */

/* Calls on_loss. On the monitor's thread. */
static void report_loss(void *user)
{
    struct cluster *c = user;
    pthread_mutex_lock(&c->lock);
    if (c->on_loss)
        c->on_loss(c->on_loss_user);
    c->on_loss = NULL;
    pthread_mutex_unlock(&c->lock);
}

/* Sends the invitation to all ranks of all groups. */
static bool invite(struct cluster *c, struct monitor_invitation *invitation)
{
    int n_others = c->transport->rank == 0 ? c->transport->n_ranks - 1 : 1;
    for (int i = 0; i < n_others; i++) {
        struct message message = { .peer = c->transport->rank == 0 ? i + 1 : 0,
                                   .bytes = invitation,
                                   .n_bytes = sizeof *invitation };
        *(c->transport->rank == 0 ? &c->sends[i] : &c->receives[i]) = message;
    }
    return c->transport->rank == 0 ? cluster_exchange(c, n_others, 0, true)
                                   : cluster_exchange(c, 0, n_others, true);
}

static enum tutti_status cluster_watch(struct cluster *c, const struct cluster_options *options,
                                       struct tutti_error *err)
{
    struct monitor_options monitor = { .rank = c->transport->rank,
                                       .n_ranks = c->transport->n_ranks,
                                       .is_local = c->transport->n_local == c->transport->n_ranks,
                                       .stays = options->stays,
                                       .lost = report_loss,
                                       .user = c };
    struct monitor_invitation invitation = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (monitor.rank == 0)
        st = monitor_listen(&c->monitor, &monitor, &invitation, err);
    if (!invite(c, &invitation))
        return cluster_check(c, err);
    if (monitor.rank > 0)
        st = monitor_join(&c->monitor, &monitor, &invitation, err);
    return st == TUTTI_OK ? monitor_start(c->monitor, err) : st;
}

enum tutti_status cluster_new(struct cluster **out, struct transport *transport,
                              const struct cluster_options *options, bool has_monitor,
                              struct tutti_error *err)
{
    int n_groups = options->n_groups > 0 ? options->n_groups : 1;
    enum tutti_status st = TUTTI_OK;
    struct cluster *c = calloc(1, sizeof *c);
    if (!c) {
        transport->ops->close(transport, false);
        return error_set(err, TUTTI_E_MEMORY, "cluster: out of memory");
    }
    c->transport = transport;
    pthread_mutex_init(&c->lock, NULL);
    if (options->n_ranks < 1 || options->n_ranks > CLUSTER_MAX_RANKS) {
        st = error_set_param(err, TUTTI_E_ARGUMENT, "tp",
                             "tensor parallelism over %d ranks, expected 1 to %d", options->n_ranks,
                             CLUSTER_MAX_RANKS);
        goto done;
    }
    if ((int64_t)options->n_ranks * n_groups != transport->n_ranks && n_groups == 1) {
        st = error_set_param(err, TUTTI_E_ARGUMENT, "tp",
                             "%d ranks were started, but tensor parallelism over %d needs %d",
                             transport->n_ranks, options->n_ranks, options->n_ranks);
        goto done;
    }
    if ((int64_t)options->n_ranks * n_groups != transport->n_ranks ||
        transport->n_ranks > CLUSTER_MAX_RANKS) {
        st = error_set_param(err, TUTTI_E_ARGUMENT, "dp",
                             "%d ranks were started, but %d replicas of %d rank%s each need %lld, %d at most",
                             transport->n_ranks, n_groups, options->n_ranks, options->n_ranks == 1 ? "" : "s",
                             (long long)options->n_ranks * n_groups, CLUSTER_MAX_RANKS);
        goto done;
    }
    c->n_ranks = options->n_ranks;
    c->rank = transport->rank % c->n_ranks;
    c->group = transport->rank / c->n_ranks;
    c->n_groups = n_groups;
    if (has_monitor && transport->n_ranks > 1)
        st = cluster_watch(c, options, err);
    if (st == TUTTI_OK)
        st = cluster_open_sums(c, options->direct_bytes, err);
    if (st != TUTTI_OK)
        goto done;
    *out = c;
    c = NULL;
done:
    cluster_close(c);
    return st;
}

enum tutti_status cluster_open(struct cluster **out, const struct cluster_options *options,
                               struct tutti_error *err)
{
    struct transport *transport;
    enum tutti_status st = module_open(&transport, err);
    return st == TUTTI_OK ? cluster_new(out, transport, options, true, err) : st;
}

void cluster_close(struct cluster *c)
{
    if (!c)
        return;
    bool is_orderly = c->is_ended && !cluster_is_lost(c);
    monitor_free(c->monitor, is_orderly);
    c->transport->ops->close(c->transport, is_orderly);
    pthread_mutex_destroy(&c->lock);
    cluster_close_sums(c);
    free(c);
}

int cluster_rank(const struct cluster *c)
{
    return c->rank;
}

int cluster_n_ranks(const struct cluster *c)
{
    return c->n_ranks;
}

int cluster_group(const struct cluster *c)
{
    return c->group;
}

int cluster_n_local(const struct cluster *c)
{
    return c->transport->n_local;
}

int cluster_local_rank(const struct cluster *c)
{
    return c->transport->local;
}

int cluster_n_threads(const struct cluster *c)
{
    int n_sharing = c->transport->n_sharing, n = team_n_cores() / (n_sharing > 0 ? n_sharing : 1);
    return n > 0 ? n : 1;
}

/* ---- waiting ---- */

static void nap(long ns)
{
    struct timespec time = { .tv_nsec = ns };
    nanosleep(&time, NULL);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool cluster_is_lost(const struct cluster *c)
{
    return atomic_load_explicit(&c->is_broken, memory_order_relaxed) ||
           (c->monitor && monitor_lost(c->monitor) >= 0);
}

void cluster_on_loss(struct cluster *c, void (*fn)(void *user), void *user)
{
    pthread_mutex_lock(&c->lock);
    c->on_loss = fn;
    c->on_loss_user = user;
    pthread_mutex_unlock(&c->lock);
    if (fn && cluster_is_lost(c))
        report_loss(c);
}

bool cluster_wait(struct cluster *c, struct waiting *w, bool is_idle)
{
    if (cluster_is_lost(c))
        return false;
    if (w->n_looks++ < SPINS) {
        relax();
        return true;
    }
    uint64_t now_ns = clock_now_ns();
    if (w->begin_ns == 0)
        *w = (struct waiting){ w->n_looks, now_ns, NAP_NS };
    if (now_ns - w->begin_ns < (is_idle ? IDLE_YIELD_NS : YIELD_NS)) {
        sched_yield();
    } else if (is_idle) {
        nap(w->nap_ns);
        w->nap_ns = w->nap_ns + w->nap_ns / 8 < IDLE_NAP_NS ? w->nap_ns + w->nap_ns / 8 : IDLE_NAP_NS;
    } else {
        nap(NAP_NS);
    }
    return true;
}

static bool goes_on_always(void *user)
{
    (void)user;
    return true;
}

/* Waits until all started messages are complete, and calls goes_on(user) meanwhile. */
static bool cluster_finish(struct cluster *c, bool is_idle, bool (*goes_on)(void *user), void *user)
{
    struct waiting w = { 0 };
    for (;;) {
        int done = c->transport->ops->test(c->transport);
        if (done > 0)
            return true;
        if (done < 0)
            atomic_store(&c->is_broken, true);
        if (!goes_on(user) || !cluster_wait(c, &w, is_idle))
            return false;
    }
}

/* Starts messages. False: the transport failed, or did before. */
static bool cluster_begin(struct cluster *c, int n_sends, int n_receives)
{
    if (cluster_is_lost(c))
        return false;
    c->is_ended = false;
    for (int i = 0; i < n_sends; i++)
        c->cost.n_sent_bytes += c->sends[i].n_bytes;
    if (!c->transport->ops->begin(c->transport, c->sends, n_sends, c->receives, n_receives)) {
        atomic_store(&c->is_broken, true);
        return false;
    }
    return true;
}

bool cluster_exchange(struct cluster *c, int n_sends, int n_receives, bool is_idle)
{
    return cluster_begin(c, n_sends, n_receives) && cluster_finish(c, is_idle, goes_on_always, NULL);
}

struct message cluster_message(const struct cluster *c, int rank, const void *bytes, size_t n_bytes)
{
    return (struct message){ .peer = c->group * c->n_ranks + rank,
                             .bytes = (void *)(uintptr_t)bytes,
                             .n_bytes = n_bytes };
}

enum tutti_status cluster_check(const struct cluster *c, struct tutti_error *err)
{
    if (!cluster_is_lost(c))
        return TUTTI_OK;
    for (int ms = 0; c->monitor && monitor_lost(c->monitor) < 0 && ms < MONITOR_WAIT_MS; ms++)
        nap(1000000);
    if (c->monitor && monitor_lost(c->monitor) >= 0)
        return error_set(err, TUTTI_E_IO, "%s", monitor_text(c->monitor));
    return error_set(err, TUTTI_E_IO, "rank %d of %d cannot reach the others: %s failed", c->rank, c->n_ranks,
                     c->transport->ops->name);
}

/* ---- gathers and broadcasts ---- */

bool cluster_gather_rows(struct cluster *c, float *whole, const float *part, int n_rows, const int *begins)
{
    uint64_t begin_ns = clock_now_ns();
    size_t width = (size_t)begins[c->n_ranks], n_own = (size_t)(begins[c->rank + 1] - begins[c->rank]);
    int n_others = c->rank == 0 ? c->n_ranks - 1 : 1;
    int at_once = n_others > 0 ? TRANSPORT_MESSAGES / n_others : n_rows;
    bool ok = true;
    for (int row = 0; row < n_rows && ok; row += at_once) {
        int count = 0, end = n_rows - row < at_once ? n_rows : row + at_once;
        for (int i = row; i < end; i++) {
            const float *own = part + (size_t)i * n_own;
            if (c->rank > 0) {
                c->sends[count++] = cluster_message(c, 0, own, n_own * sizeof *own);
                continue;
            }
            float *to = whole + (size_t)i * width;
            memcpy(to, own, n_own * sizeof *to);
            for (int r = 1; r < c->n_ranks; r++)
                c->receives[count++] = cluster_message(c, r, to + begins[r],
                                                       (size_t)(begins[r + 1] - begins[r]) * sizeof *to);
        }
        ok = cluster_exchange(c, c->rank > 0 ? count : 0, c->rank > 0 ? 0 : count, false);
    }
    c->cost.gather_ns += clock_now_ns() - begin_ns;
    return ok;
}

bool cluster_broadcast(struct cluster *c, void *bytes, size_t n_bytes, bool is_idle)
{
    uint64_t begin_ns = clock_now_ns();
    bool ok;
    if (c->rank > 0) {
        c->receives[0] = cluster_message(c, 0, bytes, n_bytes);
        ok = cluster_exchange(c, 0, 1, is_idle);
    } else {
        for (int r = 1; r < c->n_ranks; r++)
            c->sends[r - 1] = cluster_message(c, r, bytes, n_bytes);
        ok = cluster_exchange(c, c->n_ranks - 1, 0, false);
    }
    c->cost.broadcast_ns += clock_now_ns() - begin_ns;
    return ok;
}

bool cluster_await(struct cluster *c, void *bytes, size_t n_bytes, bool (*goes_on)(void *user), void *user)
{
    uint64_t begin_ns = clock_now_ns();
    assert(c->rank > 0);
    c->receives[0] = cluster_message(c, 0, bytes, n_bytes);
    bool ok = cluster_begin(c, 0, 1) && cluster_finish(c, true, goes_on, user);
    c->cost.broadcast_ns += clock_now_ns() - begin_ns;
    return ok;
}

/* Sends bytes to, or receives them from, another group: one message at a time, long ones in pieces.
 * bytes is not written when sending. */
static bool pass_on(struct cluster *c, int group, void *bytes, size_t n_bytes)
{
    bool ok = true;
    for (size_t at = 0; at < n_bytes && ok;) {
        size_t n_now = n_bytes - at < MESSAGE_BYTES ? n_bytes - at : MESSAGE_BYTES;
        struct message message = { .peer = c->group > 0 ? 0 : group * c->n_ranks,
                                   .bytes = (char *)bytes + at,
                                   .n_bytes = n_now };
        c->sends[0] = c->receives[0] = message;
        ok = cluster_exchange(c, c->group > 0, c->group == 0, true);
        at += n_now;
    }
    return ok;
}

enum tutti_status cluster_collect(struct cluster *c, const void *bytes, size_t n_bytes,
                                  void (*take)(void *user, int group, const void *bytes, size_t n_bytes),
                                  void *user, struct tutti_error *err)
{
    if (c->group > 0) {
        uint64_t size = n_bytes;
        c->is_ended = pass_on(c, 0, &size, sizeof size) && pass_on(c, 0, (void *)(uintptr_t)bytes, n_bytes);
        return c->is_ended ? TUTTI_OK : cluster_check(c, err);
    }
    for (int group = 1; group < c->n_groups; group++) {
        uint64_t size = 0;
        if (!pass_on(c, group, &size, sizeof size))
            return cluster_check(c, err);
        void *theirs = size < SIZE_MAX ? malloc((size_t)size + 1) : NULL;
        if (!theirs) {
            c->is_broken = true; /* messages of other ranks were not received: do not wait for any rank */
            return error_set(err, TUTTI_E_MEMORY, "out of memory for %llu bytes of replica %d",
                             (unsigned long long)size, group);
        }
        bool ok = pass_on(c, group, theirs, (size_t)size);
        if (ok)
            take(user, group, theirs, (size_t)size);
        free(theirs);
        if (!ok)
            return cluster_check(c, err);
    }
    c->is_ended = true; /* no other group waits for this one any more */
    return TUTTI_OK;
}

/* All-gather of n_bytes: [n_ranks][n_bytes], where the caller has filled its own part. */
bool cluster_all_gather(struct cluster *c, void *all, size_t n_bytes)
{
    int count = 0;
    for (int r = 0; r < c->n_ranks; r++) {
        if (r == c->rank)
            continue;
        c->sends[count] = cluster_message(c, r, (char *)all + (size_t)c->rank * n_bytes, n_bytes);
        c->receives[count++] = cluster_message(c, r, (char *)all + (size_t)r * n_bytes, n_bytes);
    }
    return cluster_exchange(c, count, count, true); /* idle: a rank may still be loading its weights */
}

bool cluster_end(struct cluster *c)
{
    uint8_t all[CLUSTER_MAX_RANKS] = { 0 };
    c->is_ended = cluster_all_gather(c, all, 1);
    return c->is_ended;
}

bool cluster_values(struct cluster *c, uint64_t value, uint64_t *all)
{
    all[c->rank] = value;
    return cluster_all_gather(c, all, sizeof *all);
}

bool cluster_min(struct cluster *c, uint64_t *value)
{
    uint64_t all[CLUSTER_MAX_RANKS] = { 0 };
    if (!cluster_values(c, *value, all))
        return false;
    for (int r = 0; r < c->n_ranks; r++)
        *value = all[r] < *value ? all[r] : *value;
    return true;
}

enum tutti_status cluster_agree(struct cluster *c, enum tutti_status st, struct tutti_error *err)
{
    struct tutti_error *all = calloc((size_t)c->n_ranks, sizeof *all);
    if (!all)
        return error_set(err, TUTTI_E_MEMORY, "cluster: out of memory");
    if (st != TUTTI_OK && err)
        all[c->rank] = *err;
    all[c->rank].status = st;
    if (!cluster_all_gather(c, all, sizeof *all)) {
        free(all);
        return cluster_check(c, err);
    }
    for (int r = 0; r < c->n_ranks; r++) {
        if (all[r].status == TUTTI_OK)
            continue;
        st = all[r].status;
        if (err)
            *err = all[r];
        if (r != c->rank && r > 0)
            error_prefix(err, "rank %d", r);
        c->is_ended = c->n_groups == 1; /* all ranks of this group end; other groups may go on */
        break;
    }
    free(all);
    return st;
}

void cluster_read_cost(const struct cluster *c, struct cluster_cost *out)
{
    *out = c->cost;
}
