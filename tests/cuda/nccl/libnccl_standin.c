/* A stand-in for NCCL, whose ranks are threads of one process and whose cards have the host's memory. A call waits until the
 * other ranks have made theirs, and for what they launched before. */
#include "backend/cuda/ranks/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_RANKS = 8 };

struct message {
    const void *from;
    size_t n;
};

/* The ranks of one id. */
struct world {
    pthread_barrier_t barrier;
    int n_ranks, n_users;
    struct message sent[MAX_RANKS][MAX_RANKS]; /* [from][to] */
};

struct nccl_comm {
    struct world *world;
    int rank;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct group {
    struct nccl_comm *comm;
    cuda_stream stream;
    struct {
        void *to;
        size_t n;
    } received[MAX_RANKS];
} group;

/* A function of the driver, or of its stand-in. */
static void *driver_function(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD),
         *function = library ? dlsym(library, name) : NULL;
    if (!function)
        abort();
    dlclose(library);
    return function;
}

static void wait_for(cuda_stream stream)
{
    cuda_result (*stream_wait)(cuda_stream stream);
    *(void **)&stream_wait = driver_function("cuStreamSynchronize");
    if (stream_wait(stream) != CUDA_OK)
        abort();
}

/* Only the driver may touch the memory of cards. */
static void copy(void *to, const void *from, size_t n, cuda_stream stream)
{
    cuda_result (*copy_within)(cuda_address to, cuda_address from, size_t n_bytes, cuda_stream stream);
    *(void **)&copy_within = driver_function("cuMemcpyDtoDAsync_v2");
    if (n > 0 && copy_within(to, (cuda_address)(uintptr_t)from, n * sizeof(float), stream) != CUDA_OK)
        abort();
}

/* An id is the address of its world. */
EXPORT int ncclGetUniqueId(nccl_id *id);
int ncclGetUniqueId(nccl_id *id)
{
    struct world *world = calloc(1, sizeof *world);
    memcpy(id->bytes, &world, sizeof world);
    return world ? NCCL_OK : 1;
}

EXPORT int ncclCommInitRank(nccl_comm *comm, int n_ranks, nccl_id id, int rank);
int ncclCommInitRank(nccl_comm *comm, int n_ranks, nccl_id id, int rank)
{
    struct nccl_comm *c = calloc(1, sizeof *c);
    if (!c || n_ranks > MAX_RANKS)
        abort();
    memcpy(&c->world, id.bytes, sizeof c->world);
    c->rank = rank;
    pthread_mutex_lock(&lock);
    if (c->world->n_users++ == 0)
        pthread_barrier_init(&c->world->barrier, NULL, (unsigned)n_ranks);
    c->world->n_ranks = n_ranks;
    pthread_mutex_unlock(&lock);
    *comm = c;
    return NCCL_OK;
}

EXPORT int ncclCommDestroy(nccl_comm comm);
int ncclCommDestroy(nccl_comm comm)
{
    pthread_mutex_lock(&lock);
    bool is_last = --comm->world->n_users == 0;
    pthread_mutex_unlock(&lock);
    if (is_last) {
        pthread_barrier_destroy(&comm->world->barrier);
        free(comm->world);
    }
    free(comm);
    return NCCL_OK;
}

EXPORT int ncclCommAbort(nccl_comm comm);
int ncclCommAbort(nccl_comm comm)
{
    return ncclCommDestroy(comm);
}

EXPORT int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream)
{
    struct world *world = comm->world;
    wait_for(stream);
    world->sent[comm->rank][comm->rank] = (struct message){ from, n };
    pthread_barrier_wait(&world->barrier);
    for (int r = 0; r < world->n_ranks; r++) {
        const struct message *m = &world->sent[r][r];
        if (m->n != n || type != NCCL_FLOAT32)
            abort();
        copy((float *)to + (size_t)r * n, m->from, n, stream);
    }
    wait_for(stream);
    pthread_barrier_wait(&world->barrier);
    world->sent[comm->rank][comm->rank].n = 0;
    pthread_barrier_wait(&world->barrier);
    return NCCL_OK;
}

EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
    memset(&group, 0, sizeof group);
    return NCCL_OK;
}

EXPORT int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream);
int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    if (type != NCCL_FLOAT32 || comm->world->sent[comm->rank][peer].n > 0)
        abort();
    group.comm = comm;
    group.stream = stream;
    comm->world->sent[comm->rank][peer] = (struct message){ from, n };
    return NCCL_OK;
}

EXPORT int ncclRecv(void *to, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream);
int ncclRecv(void *to, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    if (type != NCCL_FLOAT32)
        abort();
    group.comm = comm;
    group.stream = stream;
    group.received[peer].to = to;
    group.received[peer].n = n;
    return NCCL_OK;
}

/* Every rank has something to pass in each group of the tests. */
EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    struct world *world = group.comm->world;
    int rank = group.comm->rank;
    wait_for(group.stream);
    pthread_barrier_wait(&world->barrier);
    for (int r = 0; r < world->n_ranks; r++) {
        if (world->sent[r][rank].n != group.received[r].n)
            abort();
        copy(group.received[r].to, world->sent[r][rank].from, group.received[r].n, group.stream);
    }
    wait_for(group.stream);
    pthread_barrier_wait(&world->barrier);
    for (int r = 0; r < world->n_ranks; r++)
        world->sent[rank][r].n = 0;
    pthread_barrier_wait(&world->barrier);
    return NCCL_OK;
}
