#include "support/ranks.h"

#include "cluster/transport.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct letter {
    struct letter *next;
    size_t n_bytes;
    char bytes[];
};

struct ranks_world {
    pthread_mutex_t lock;
    int n_ranks;
    struct letter **heads; /* [n_ranks][n_ranks]: from, to */
};

struct memory_transport {
    struct transport transport;
    struct ranks_world *world;
    struct message receives[TRANSPORT_MESSAGES];
    bool is_done[TRANSPORT_MESSAGES];
    int n_receives;
};

static bool memory_begin(struct transport *t, const struct message *sends, int n_sends,
                         const struct message *receives, int n_receives)
{
    struct memory_transport *m = (struct memory_transport *)t;
    struct ranks_world *world = m->world;
    pthread_mutex_lock(&world->lock);
    for (int i = 0; i < n_sends; i++) {
        struct letter *letter = malloc(sizeof *letter + sends[i].n_bytes);
        struct letter **at = &world->heads[t->rank * world->n_ranks + sends[i].peer];
        assert(letter);
        letter->next = NULL;
        letter->n_bytes = sends[i].n_bytes;
        memcpy(letter->bytes, sends[i].bytes, sends[i].n_bytes);
        while (*at)
            at = &(*at)->next;
        *at = letter;
    }
    pthread_mutex_unlock(&world->lock);
    memcpy(m->receives, receives, (size_t)n_receives * sizeof *receives);
    memset(m->is_done, 0, sizeof m->is_done);
    m->n_receives = n_receives;
    return true;
}

/* Of each peer the oldest letter goes to the first message that waits for it. */
static int memory_test(struct transport *t)
{
    struct memory_transport *m = (struct memory_transport *)t;
    struct ranks_world *world = m->world;
    int n_done = 0;
    pthread_mutex_lock(&world->lock);
    for (int i = 0; i < m->n_receives; i++) {
        struct letter **at = &world->heads[m->receives[i].peer * world->n_ranks + t->rank], *letter = *at;
        if (!m->is_done[i] && letter) {
            assert(letter->n_bytes <= m->receives[i].n_bytes);
            memcpy(m->receives[i].bytes, letter->bytes, letter->n_bytes);
            *at = letter->next;
            free(letter);
            m->is_done[i] = true;
        }
        n_done += m->is_done[i];
        if (!m->is_done[i])
            break; /* the later ones keep their order */
    }
    pthread_mutex_unlock(&world->lock);
    return n_done == m->n_receives;
}

static void memory_close(struct transport *t, bool is_orderly)
{
    (void)is_orderly;
    free(t);
}

static const struct transport_ops MEMORY_OPS = { "memory", memory_begin, memory_test, memory_close };

struct ranks_world *ranks_world(int n_ranks)
{
    struct ranks_world *world = calloc(1, sizeof *world);
    assert(world);
    world->n_ranks = n_ranks;
    world->heads = calloc((size_t)n_ranks * (size_t)n_ranks, sizeof(struct letter *));
    assert(world->heads);
    pthread_mutex_init(&world->lock, NULL);
    return world;
}

void ranks_world_free(struct ranks_world *world)
{
    for (int i = 0; i < world->n_ranks * world->n_ranks; i++)
        while (world->heads[i]) {
            struct letter *letter = world->heads[i];
            world->heads[i] = letter->next;
            free(letter);
        }
    pthread_mutex_destroy(&world->lock);
    free((void *)world->heads);
    free(world);
}

struct transport *ranks_transport(struct ranks_world *world, int rank)
{
    struct memory_transport *m = calloc(1, sizeof *m);
    assert(m);
    m->world = world;
    m->transport = (struct transport){ &MEMORY_OPS, rank, world->n_ranks, world->n_ranks, world->n_ranks };
    return &m->transport;
}

struct rank_thread {
    pthread_t thread;
    struct ranks_world *world;
    int rank;
    const struct ranks_setting *setting;
    void (*fn)(void *arg, struct cluster *cluster);
    void *arg;
};

static void *run_rank(void *arg)
{
    struct rank_thread *r = arg;
    const struct ranks_setting *s = r->setting;
    struct cluster *cluster = NULL;
    struct tutti_error err = { 0 };
    struct cluster_options options = {
        .n_ranks = s->n_ranks, .n_groups = s->n_groups, .direct_bytes = s->direct_bytes, .stays = true
    };
    struct transport *transport = ranks_transport(r->world, r->rank);
    transport->local = s->is_apart ? 0 : r->rank;
    if (s->is_apart)
        transport->n_local = transport->n_sharing = 1;
    if (cluster_new(&cluster, transport, &options, s->has_monitor, &err) != TUTTI_OK) {
        fprintf(stderr, "rank %d: %s\n", r->rank, err.text);
        abort();
    }
    r->fn(r->arg, cluster);
    return NULL;
}

void ranks_run_in(const struct ranks_setting *setting, void (*fn)(void *arg, struct cluster *cluster),
                  void *arg)
{
    int n = setting->n_ranks * setting->n_groups;
    struct rank_thread *threads = calloc((size_t)n, sizeof *threads);
    struct ranks_world *world = ranks_world(n);
    assert(threads);
    for (int i = n - 1; i >= 0; i--) {
        threads[i] = (struct rank_thread){
            .world = world, .rank = i, .setting = setting, .fn = fn, .arg = arg
        };
        int rc = i > 0 ? pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]) : 0;
        assert(rc == 0);
        (void)rc;
    }
    run_rank(&threads[0]); /* here a test may fail */
    for (int i = 1; i < n; i++)
        pthread_join(threads[i].thread, NULL);
    ranks_world_free(world);
    free(threads);
}

void ranks_run(int n_ranks, int n_groups, bool has_monitor, void (*fn)(void *arg, struct cluster *cluster),
               void *arg)
{
    struct ranks_setting setting = { .n_ranks = n_ranks, .n_groups = n_groups, .has_monitor = has_monitor };
    ranks_run_in(&setting, fn, arg);
}
