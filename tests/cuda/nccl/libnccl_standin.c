/* A stand-in for NCCL between cards of the stand-in for the driver. Ranks are threads or processes of one machine: what they pass goes
 * through memory that they share. As on a card, a transfer is work of a stream, which is not done before the other ranks have come to
 * theirs: of a rank that is lost never. It can be recorded in graphs. */
#include "backend/cuda/ranks/nccl.h"
#include "cuda/standin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_RANKS = 8, SYSTEM_ERROR = 2, AREA_BYTES = 64 << 20 };

/* Memory of all ranks of an id, with an area of each rank for what it sends. */
struct world {
    atomic_long n_arrived[MAX_RANKS]; /* twice for each transfer: sent, received */
    struct {
        size_t offset, n;         /* in bytes; offset: in the area of the sender */
    } sent[MAX_RANKS][MAX_RANKS]; /* [from][to] */
    uint8_t areas[MAX_RANKS][AREA_BYTES];
};

struct nccl_comm {
    struct world *world;
    int rank, n_ranks;
    long n_transfers;
    atomic_bool is_aborted;
};

/* One rank's part in a transfer. */
struct transfer {
    struct nccl_comm *comm; /* first: standin_is_in_use_fn */
    enum { SENDING, RECEIVING, LEAVING } phase;
    struct {
        const void *from;
        size_t n; /* in bytes */
    } sent[MAX_RANKS];
    struct {
        void *to;
        size_t n;
    } received[MAX_RANKS];
};

static _Thread_local struct group {
    struct transfer transfer;
    cuda_stream stream;
    int error; /* of a call of the group */
} group;

/* A function of the stand-in for the driver. */
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

/* ---- transfers ---- */

static void send_parts(struct transfer *t)
{
    struct world *world = t->comm->world;
    standin_move_fn *move;
    int rank = t->comm->rank;
    size_t offset = 0;
    *(void **)&move = driver_function("standin_move");
    for (int r = 0; r < t->comm->n_ranks; r++) {
        size_t n = t->sent[r].n;
        if (n > AREA_BYTES - offset)
            abort();
        world->sent[rank][r].offset = offset;
        world->sent[rank][r].n = n;
        if (n > 0)
            move(world->areas[rank] + offset, t->sent[r].from, n);
        offset += n;
    }
}

static void receive_parts(struct transfer *t)
{
    const struct world *world = t->comm->world;
    standin_move_fn *move;
    int rank = t->comm->rank;
    *(void **)&move = driver_function("standin_move");
    for (int r = 0; r < t->comm->n_ranks; r++) {
        size_t n = world->sent[r][rank].n;
        if (n != t->received[r].n)
            abort(); /* the ranks disagree */
        if (n > 0)
            move(t->received[r].to, world->areas[r] + world->sent[r][rank].offset, n);
    }
}

static void arrive(struct nccl_comm *comm)
{
    atomic_fetch_add_explicit(&comm->world->n_arrived[comm->rank], 1, memory_order_release);
}

static bool have_all_arrived(struct nccl_comm *comm, long n)
{
    for (int r = 0; r < comm->n_ranks; r++)
        if (atomic_load_explicit(&comm->world->n_arrived[r], memory_order_acquire) < n)
            return false;
    return true;
}

/* Goes on as far as the other ranks allow. */
static bool transfer_parts(void *args)
{
    struct transfer *t = args;
    struct nccl_comm *comm = t->comm;
    if (atomic_load(&comm->is_aborted))
        return true;
    if (t->phase == SENDING) {
        send_parts(t);
        arrive(comm);
        t->phase = RECEIVING;
    }
    if (t->phase == RECEIVING) {
        if (!have_all_arrived(comm, 2 * comm->n_transfers + 1))
            return false;
        receive_parts(t);
        arrive(comm);
        t->phase = LEAVING;
    }
    if (!have_all_arrived(comm, 2 * comm->n_transfers + 2)) /* until then the areas are read */
        return false;
    comm->n_transfers++;
    return true;
}

static int enqueue(const struct transfer *t, cuda_stream stream)
{
    standin_enqueue_fn *enqueue_call;
    *(void **)&enqueue_call = driver_function("standin_enqueue");
    return enqueue_call(stream, transfer_parts, t, sizeof *t) == CUDA_OK ? NCCL_OK : SYSTEM_ERROR;
}

static struct transfer transfer_of(nccl_comm comm)
{
    struct transfer t;
    memset(&t, 0, sizeof t);
    t.comm = comm;
    return t;
}

EXPORT int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream);
int ncclAllGather(const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream)
{
    int error = called(__func__);
    struct transfer t = transfer_of(comm);
    n *= sizeof(float);
    if (error != 0 || type != NCCL_FLOAT32)
        return error != 0 ? error : SYSTEM_ERROR;
    for (int r = 0; r < comm->n_ranks; r++) {
        t.sent[r].from = from;
        t.received[r].to = (uint8_t *)to + (size_t)r * n;
        t.sent[r].n = t.received[r].n = n;
    }
    return enqueue(&t, stream);
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, nccl_comm comm,
                         cuda_stream stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, nccl_comm comm,
                  cuda_stream stream)
{
    int error = called(__func__);
    struct transfer t = transfer_of(comm);
    n *= sizeof(int32_t);
    if (error != 0 || type != NCCL_INT32)
        return error != 0 ? error : SYSTEM_ERROR;
    for (int r = 0; r < comm->n_ranks && comm->rank == root; r++) {
        t.sent[r].from = from;
        t.sent[r].n = n;
    }
    t.received[root].to = to;
    t.received[root].n = n;
    return enqueue(&t, stream);
}

EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
    memset(&group, 0, sizeof group);
    return called(__func__);
}

/* Notes the communicator and the stream of a call of the group. Nonzero: the call fails. */
static int join_group(const char *name, int type, nccl_comm comm, cuda_stream stream)
{
    int error = called(name);
    if (error == 0 && type != NCCL_FLOAT32)
        error = SYSTEM_ERROR;
    group.transfer.comm = comm;
    group.stream = stream;
    return group.error = group.error != 0 ? group.error : error;
}

EXPORT int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream);
int ncclSend(const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    group.transfer.sent[peer].from = from;
    group.transfer.sent[peer].n = n * sizeof(float);
    return join_group(__func__, type, comm, stream);
}

EXPORT int ncclRecv(void *to, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream);
int ncclRecv(void *to, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    group.transfer.received[peer].to = to;
    group.transfer.received[peer].n = n * sizeof(float);
    return join_group(__func__, type, comm, stream);
}

/* Every rank has something to pass in each group of the tests, unless a call of the group failed. */
EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    int error = called(__func__);
    error = error != 0 ? error : group.error;
    if (error != 0 || !group.transfer.comm)
        return error != 0 ? error : SYSTEM_ERROR;
    return enqueue(&group.transfer, group.stream);
}

/* ---- communicators ---- */

/* An id is the path of the world's memory, a file of rank 0's process. */
EXPORT int ncclGetUniqueId(nccl_id *id);
int ncclGetUniqueId(nccl_id *id)
{
    int error = called(__func__);
    if (error != 0)
        return error;
    int fd = memfd_create("nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct world)) != 0)
        return SYSTEM_ERROR;
    snprintf(id->bytes, sizeof id->bytes, "/proc/%d/fd/%d", (int)getpid(), fd);
    return NCCL_OK;
}

EXPORT int ncclCommInitRank(nccl_comm *comm, int n_ranks, nccl_id id, int rank);
int ncclCommInitRank(nccl_comm *comm, int n_ranks, nccl_id id, int rank)
{
    int error = called(__func__);
    if (error != 0)
        return error;
    struct nccl_comm *c = calloc(1, sizeof *c);
    int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    if (!c || fd < 0 || n_ranks > MAX_RANKS)
        abort();
    c->world = mmap(NULL, sizeof *c->world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->world == MAP_FAILED)
        abort();
    c->rank = rank;
    c->n_ranks = n_ranks;
    *comm = c;
    return NCCL_OK;
}

/* They free whatever happens, after all graphs with transfers were destroyed, and all transfers have left the streams. */
static int comm_free(nccl_comm comm, int error)
{
    standin_is_in_use_fn *is_in_use;
    *(void **)&is_in_use = driver_function("standin_is_in_use");
    while (is_in_use(comm))
        sched_yield();
    munmap(comm->world, sizeof *comm->world);
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
    atomic_store(&comm->is_aborted, true);
    return comm_free(comm, called(__func__));
}
