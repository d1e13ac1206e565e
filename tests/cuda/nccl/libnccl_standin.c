/* A stand-in for NCCL, whose ranks are threads of one process and whose cards have the host's memory. A call waits until the
 * other ranks have made theirs, and for what they launched before. After a failure its process ends, as a rank's does. */
#include "backend/cuda/ranks/nccl.h"
#include "cuda/standin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_RANKS = 8, SYSTEM_ERROR = 2 };

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
    int error; /* of a call of the group */
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

/* Counts a call. Nonzero: it shall fail. */
static int called(const char *name)
{
    standin_called_fn *count;
    *(void **)&count = driver_function("standin_called");
    return count(name);
}

/* Not CUDA_OK: the stream captures, which this stand-in cannot; or the wait was made to fail. */
static cuda_result wait_for(cuda_stream stream)
{
    cuda_result (*stream_wait)(cuda_stream stream);
    *(void **)&stream_wait = driver_function("cuStreamSynchronize");
    return stream_wait(stream);
}

/* n values of four bytes. Only the driver may touch the memory of cards. */
static cuda_result copy(void *to, const void *from, size_t n, cuda_stream stream)
{
    cuda_result (*copy_within)(cuda_address to, cuda_address from, size_t n_bytes, cuda_stream stream);
    *(void **)&copy_within = driver_function("cuMemcpyDtoDAsync_v2");
    return n > 0 ? copy_within(to, (cuda_address)(uintptr_t)from, n * sizeof(float), stream) : CUDA_OK;
}

/* An id is the address of its world. */
EXPORT int ncclGetUniqueId(nccl_id *id);
int ncclGetUniqueId(nccl_id *id)
{
    int error = called(__func__);
    struct world *world = error == 0 ? calloc(1, sizeof *world) : NULL;
    memcpy(id->bytes, &world, sizeof world);
    return world ? NCCL_OK : 1;
}

EXPORT int ncclCommInitRank(nccl_comm *comm, int n_ranks, nccl_id id, int rank);
int ncclCommInitRank(nccl_comm *comm, int n_ranks, nccl_id id, int rank)
{
    int error = called(__func__);
    if (error != 0)
        return error;
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

/* They free whatever happens. */
static int comm_free(nccl_comm comm, int error)
{
    pthread_mutex_lock(&lock);
    bool is_last = --comm->world->n_users == 0;
    pthread_mutex_unlock(&lock);
    if (is_last) {
        pthread_barrier_destroy(&comm->world->barrier);
        free(comm->world);
    }
    free(comm);
    return error;
}

EXPORT int ncclCommDestroy(nccl_comm comm);
int ncclCommDestroy(nccl_comm comm)
{
    return comm_free(comm, called(__func__));
}

EXPORT int ncclCommAbort(nccl_comm comm);
int ncclCommAbort(nccl_comm comm)
{
    return comm_free(comm, called(__func__));
}

EXPORT int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream)
{
    struct world *world = comm->world;
    int error = called(__func__);
    if (error != 0 || wait_for(stream) != CUDA_OK)
        return error != 0 ? error : SYSTEM_ERROR;
    world->sent[comm->rank][comm->rank] = (struct message){ from, n };
    pthread_barrier_wait(&world->barrier);
    for (int r = 0; r < world->n_ranks; r++) {
        const struct message *m = &world->sent[r][r];
        if (m->n != n || type != NCCL_FLOAT32)
            abort();
        if (copy((float *)to + (size_t)r * n, m->from, n, stream) != CUDA_OK)
            error = SYSTEM_ERROR;
    }
    if (wait_for(stream) != CUDA_OK)
        error = SYSTEM_ERROR;
    pthread_barrier_wait(&world->barrier);
    world->sent[comm->rank][comm->rank].n = 0;
    pthread_barrier_wait(&world->barrier);
    return error;
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, nccl_comm comm,
                         cuda_stream stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, nccl_comm comm,
                  cuda_stream stream)
{
    struct world *world = comm->world;
    int error = called(__func__);
    if (error != 0 || wait_for(stream) != CUDA_OK)
        return error != 0 ? error : SYSTEM_ERROR;
    struct message *m = &world->sent[root][root];
    if (comm->rank == root)
        *m = (struct message){ from, n };
    pthread_barrier_wait(&world->barrier);
    if (m->n != n || type != NCCL_INT32)
        abort();
    if (copy(to, m->from, n, stream) != CUDA_OK || wait_for(stream) != CUDA_OK)
        error = SYSTEM_ERROR;
    pthread_barrier_wait(&world->barrier);
    if (comm->rank == root)
        m->n = 0;
    pthread_barrier_wait(&world->barrier);
    return error;
}

EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
    memset(&group, 0, sizeof group);
    return called(__func__);
}

EXPORT int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream);
int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    int error = called(__func__);
    if (error != 0)
        return group.error = error;
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
    int error = called(__func__);
    if (error != 0)
        return group.error = error;
    if (type != NCCL_FLOAT32)
        abort();
    group.comm = comm;
    group.stream = stream;
    group.received[peer].to = to;
    group.received[peer].n = n;
    return NCCL_OK;
}

/* Every rank has something to pass in each group of the tests, unless a call of the group failed. */
EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    int error = called(__func__);
    error = error != 0 ? error : group.error;
    if (!group.comm)
        return error != 0 ? error : SYSTEM_ERROR;
    struct world *world = group.comm->world;
    int rank = group.comm->rank;
    if (error == 0 && wait_for(group.stream) != CUDA_OK)
        error = SYSTEM_ERROR;
    if (error == 0) {
        pthread_barrier_wait(&world->barrier);
        for (int r = 0; r < world->n_ranks; r++) {
            if (world->sent[r][rank].n != group.received[r].n)
                abort();
            if (copy(group.received[r].to, world->sent[r][rank].from, group.received[r].n, group.stream) !=
                CUDA_OK)
                error = SYSTEM_ERROR;
        }
        if (wait_for(group.stream) != CUDA_OK)
            error = SYSTEM_ERROR;
        pthread_barrier_wait(&world->barrier);
    }
    for (int r = 0; r < world->n_ranks; r++)
        world->sent[rank][r].n = 0;
    if (error == 0)
        pthread_barrier_wait(&world->barrier);
    return error;
}
