#include "base/system/workers.h"

#include "base/rng.h"
#include "base/system/os.h"
#include "base/system/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    N_BUCKETS = 1024,
    N_REMEMBERED = 4096, /* owners without work whose debt is kept */
    NICE = 5,            /* about a third of the weight of the process' other threads */
};

/* An owner, its queue and its service. An owner is in the list of waiting owners or of idle ones,
 * or one of its items is being processed. */
struct owner {
    uint64_t id;
    struct owner *next;          /* in its bucket */
    struct owner *older, *newer; /* in its list */
    struct work_item *head, *tail;
    uint64_t service; /* cost of its items so far; when it stops being idle, raised to workers.now */
    bool is_running;
};

struct owners {
    struct owner *oldest, *newest;
    size_t n;
};

struct workers {
    struct workers_options options;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct owner *buckets[N_BUCKETS];
    struct owners waiting, idle;
    uint64_t now;     /* service of the owner served last */
    uint64_t highest; /* of all services */
    struct workers_counts counts;
    bool is_closing;
    int n_started;
    pthread_t threads[];
};

/* ---- owners, under the lock ---- */

static void owners_remove(struct owners *list, struct owner *o)
{
    *(o->older ? &o->older->newer : &list->oldest) = o->newer;
    *(o->newer ? &o->newer->older : &list->newest) = o->older;
    o->older = o->newer = NULL;
    list->n--;
}

static void owners_add(struct owners *list, struct owner *o)
{
    o->older = list->newest;
    o->newer = NULL;
    *(list->newest ? &list->newest->newer : &list->oldest) = o;
    list->newest = o;
    list->n++;
}

static struct owner **owner_bucket(struct workers *w, uint64_t id)
{
    return &w->buckets[mix64(id) % N_BUCKETS];
}

static struct owner *owner_find(struct workers *w, uint64_t id)
{
    struct owner *o = *owner_bucket(w, id);
    while (o && o->id != id)
        o = o->next;
    return o;
}

static void owner_forget(struct workers *w, struct owner *o)
{
    struct owner **at = owner_bucket(w, o->id);
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    owners_remove(&w->idle, o);
    w->counts.n_owners--;
    free(o);
}

/* Reviews the owner that has been idle longest: without a debt it is forgotten, otherwise
 * reviewed again later. */
static void review_idle(struct workers *w)
{
    struct owner *o = w->idle.oldest;
    if (!o)
        return;
    if (o->service <= w->now || w->idle.n > N_REMEMBERED) {
        owner_forget(w, o);
        return;
    }
    owners_remove(&w->idle, o);
    owners_add(&w->idle, o);
}

static void owner_charge(struct workers *w, struct owner *o, uint64_t cost)
{
    o->service += cost;
    if (o->service > w->highest)
        w->highest = o->service;
}

/* Puts an owner into its list, after an item was processed or the first item was queued. */
static void owner_settle(struct workers *w, struct owner *o)
{
    owners_add(o->head ? &w->waiting : &w->idle, o);
    if (w->counts.n_waiting == 0 && w->counts.n_running == 0)
        w->now = w->highest; /* no owner waits: all debts are paid */
}

static struct owner *owner_get(struct workers *w, uint64_t id)
{
    struct owner *o = owner_find(w, id);
    if (o)
        return o;
    o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->id = id;
    o->next = *owner_bucket(w, id);
    *owner_bucket(w, id) = o;
    owners_add(&w->idle, o);
    w->counts.n_owners++;
    return o;
}

/* The waiting owner with the least service; of equal ones, the one that has waited longest. */
static struct owner *owner_next(struct workers *w)
{
    struct owner *best = w->waiting.oldest;
    for (struct owner *o = best ? best->newer : NULL; o; o = o->newer)
        if (o->service < best->service)
            best = o;
    return best;
}

/* ---- the threads ---- */

static struct work_item *begin_item(struct workers *w, struct owner *o)
{
    struct work_item *item = o->head;
    o->head = item->next;
    if (!o->head)
        o->tail = NULL;
    item->next = NULL;
    owners_remove(&w->waiting, o);
    o->is_running = true;
    if (o->service > w->now)
        w->now = o->service;
    owner_charge(w, o, item->cost > 0 ? item->cost : 1);
    w->counts.n_waiting--;
    w->counts.n_running++;
    return item;
}

static void *worker_main(void *arg)
{
    struct workers *w = arg;
    os_name_thread(w->options.name);
    os_lower_thread(NICE);
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct owner *o = owner_next(w);
        if (!o) {
            if (w->is_closing)
                break;
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        struct work_item *item = begin_item(w, o);
        pthread_mutex_unlock(&w->lock);
        w->options.work(w->options.user, item);
        pthread_mutex_lock(&w->lock);
        o->is_running = false;
        w->counts.n_running--;
        w->counts.n_done++;
        owner_settle(w, o);
        review_idle(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

bool workers_add(struct workers *w, uint64_t owner, struct work_item *item)
{
    pthread_mutex_lock(&w->lock);
    struct owner *o = owner_get(w, owner);
    if (o) {
        bool was_idle = !o->head && !o->is_running;
        item->next = NULL;
        *(o->tail ? &o->tail->next : &o->head) = item;
        o->tail = item;
        w->counts.n_waiting++;
        if (was_idle) {
            owners_remove(&w->idle, o);
            if (o->service < w->now)
                o->service = w->now;
            owner_settle(w, o);
        }
        review_idle(w);
        /* Within the lock: as soon as the item has run, the workers may be freed. */
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return o != NULL;
}

void workers_charge(struct workers *w, uint64_t owner, uint64_t cost)
{
    pthread_mutex_lock(&w->lock);
    struct owner *o = owner_find(w, owner);
    if (o)
        owner_charge(w, o, cost);
    pthread_mutex_unlock(&w->lock);
}

void workers_counts(struct workers *w, struct workers_counts *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->counts;
    pthread_mutex_unlock(&w->lock);
}

/* ---- starting and stopping ---- */

enum tutti_status workers_new(struct workers **out, const struct workers_options *options,
                              struct tutti_error *err)
{
    struct workers *w = calloc(1, sizeof *w + (size_t)options->n_threads * sizeof w->threads[0]);
    if (!w)
        return error_set(err, TUTTI_E_MEMORY, "%s threads: out of memory", options->name);
    w->options = *options;
    int rc = pthread_mutex_init(&w->lock, NULL);
    if (rc == 0 && (rc = pthread_cond_init(&w->wake, NULL)) != 0)
        pthread_mutex_destroy(&w->lock);
    if (rc != 0) {
        free(w);
        return error_set(err, TUTTI_E_MEMORY, "cannot make a lock: %s", strerror(rc));
    }
    for (; w->n_started < options->n_threads; w->n_started++) {
        rc = thread_start(&w->threads[w->n_started], worker_main, w);
        if (rc != 0) {
            workers_free(w);
            return error_set(err, TUTTI_E_MEMORY, "cannot make a %s thread: %s", options->name, strerror(rc));
        }
    }
    *out = w;
    return TUTTI_OK;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_mutex_unlock(&w->lock);
    pthread_cond_broadcast(&w->wake);
    for (int i = 0; i < w->n_started; i++)
        pthread_join(w->threads[i], NULL);
    while (w->idle.oldest)
        owner_forget(w, w->idle.oldest);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
