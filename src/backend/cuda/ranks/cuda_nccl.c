/* Transfers are calls in the list of a step's launches (cuda_list_call()). */
#include "backend/cuda/ranks/cuda_nccl.h"
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/nccl.h"
#include "base/log.h"
#include "base/system/thread.h"
#include "cluster/cluster.h"
#include "kernels/cuda/cluster_args.h"

#include <stdlib.h>
#include <string.h>

enum {
    FEW_FLOATS = 128 << 10, /* up to so many, every rank computes the whole sum, which saves a transfer */
    LEAST_FLOATS = 4 << 20, /* of the scratch memory: more than a row of logits has */
    THREADS = 256,
};

struct cuda_nccl {
    const struct nccl *library;
    nccl_comm comm;
    float *parts; /* [n_floats]: what other ranks sent */
    size_t n_floats;
    int rank, n_ranks;
    bool is_aborted, has_thread;
    pthread_t thread; /* that aborts */
};

/* A transfer. */
struct nccl_call {
    struct cuda_nccl *nccl;
    enum {
        CALL_GATHER,   /* parts [n_ranks][n] = x [n] of each rank */
        CALL_EXCHANGE, /* parts [n_ranks][own n] = this rank's rows of x of each other rank */
        CALL_SPREAD,   /* x = the own rows of each rank */
        CALL_COLLECT,  /* on rank 0 parts, of n_rows rows, follow one another; x is the part of the others */
        CALL_BROADCAST /* values [n_rows] = those of rank 0 */
    } kind;
    int32_t n_rows, n; /* rows of n floats; of CALL_COLLECT n is that of the whole */
    int32_t unused;
    union {
        float *x;
        int32_t *values;
    };
    int32_t begins[CLUSTER_MAX_RANKS + 1]; /* of CALL_COLLECT */
};

/* ---- the library's calls ---- */

struct rows_of {
    size_t begin, n; /* in floats */
};

static struct rows_of rows_of(const struct nccl_call *call, int rank)
{
    int64_t begin, end;
    team_range(call->n_rows, 1, rank, call->nccl->n_ranks, &begin, &end);
    return (struct rows_of){ (size_t)begin * (size_t)call->n, (size_t)(end - begin) * (size_t)call->n };
}

static int pass(const struct nccl_call *call, const float *from, size_t n_sent, float *to, size_t n_received,
                int peer, cuda_stream stream)
{
    const struct cuda_nccl *nccl = call->nccl;
    int result = NCCL_OK;
    if (n_sent > 0)
        result = nccl->library->send(from, n_sent, NCCL_FLOAT32, peer, nccl->comm, stream);
    if (result == NCCL_OK && n_received > 0)
        result = nccl->library->receive(to, n_received, NCCL_FLOAT32, peer, nccl->comm, stream);
    return result;
}

static int pass_rows(const struct nccl_call *call, int peer, cuda_stream stream)
{
    const struct cuda_nccl *nccl = call->nccl;
    struct rows_of own = rows_of(call, nccl->rank), other = rows_of(call, peer);
    if (call->kind == CALL_EXCHANGE)
        return pass(call, call->x + other.begin, other.n, nccl->parts + (size_t)peer * own.n, own.n, peer,
                    stream);
    return pass(call, call->x + own.begin, own.n, call->x + other.begin, other.n, peer, stream);
}

static int pass_part(const struct nccl_call *call, int peer, cuda_stream stream)
{
    const struct cuda_nccl *nccl = call->nccl;
    const int32_t *b = call->begins;
    size_t rows = (size_t)call->n_rows;
    if (nccl->rank != 0)
        return peer == 0 ? pass(call, call->x, rows * (size_t)(b[nccl->rank + 1] - b[nccl->rank]), NULL, 0, 0,
                                stream)
                         : NCCL_OK;
    return pass(call, NULL, 0, nccl->parts + rows * (size_t)b[peer], rows * (size_t)(b[peer + 1] - b[peer]),
                peer, stream);
}

static bool transfer(struct cuda_backend *cuda, const void *args)
{
    const struct nccl_call *call = args;
    const struct cuda_nccl *nccl = call->nccl;
    cuda_stream stream = cuda->state->stream;
    if (call->kind == CALL_GATHER)
        return nccl->library->all_gather(call->x, nccl->parts, (size_t)call->n_rows * (size_t)call->n,
                                         NCCL_FLOAT32, nccl->comm, stream) == NCCL_OK;
    if (call->kind == CALL_BROADCAST)
        return nccl->library->broadcast(call->values, call->values, (size_t)call->n_rows, NCCL_INT32, 0,
                                        nccl->comm, stream) == NCCL_OK;
    int result = nccl->library->group_begin();
    for (int peer = 0; peer < nccl->n_ranks && result == NCCL_OK; peer++)
        if (peer != nccl->rank)
            result = call->kind == CALL_COLLECT ? pass_part(call, peer, stream)
                                                : pass_rows(call, peer, stream);
    int end = nccl->library->group_end();
    return result == NCCL_OK && end == NCCL_OK;
}

/* ---- opening ---- */

/* Rank 0 says which way data takes. */
static void report_way(const struct cluster *cluster, bool has_nccl, int n_cards)
{
    if (cluster_rank(cluster) != 0 || cluster_n_ranks(cluster) == 1)
        return;
    if (has_nccl)
        log_info("device cuda: %d ranks exchange data through NCCL", cluster_n_ranks(cluster));
    else if (cluster_n_local(cluster) > n_cards)
        log_warn("device cuda: ranks exchange data through the host: %d of them share %d card%s, and NCCL "
                 "needs a card for each",
                 cluster_n_local(cluster), n_cards, n_cards == 1 ? "" : "s");
    else
        log_warn("device cuda: ranks exchange data through the host, and steps wait for each other: %s",
                 nccl_open() ? "NCCL does not work on every rank"
                             : "libnccl.so.2 was not found; install NCCL");
}

/* All ranks succeed, or none: each joins the communicator if all can. */
struct cuda_nccl *cuda_nccl_new(struct cuda_backend *cuda, struct cluster *cluster, int n_cards)
{
    struct cuda_nccl *nccl = calloc(1, sizeof *nccl);
    const struct nccl *library = nccl_open();
    nccl_id id = { { 0 } };
    bool is_leader = cluster_rank(cluster) == 0;
    uint64_t can = nccl && library && cluster_n_ranks(cluster) > 1 && cluster_n_local(cluster) <= n_cards;
    if (can && is_leader)
        can = library->get_id(&id) == NCCL_OK;
    if (!cluster_min(cluster, &can) || !can || !cluster_broadcast(cluster, &id, sizeof id, false)) {
        free(nccl);
        report_way(cluster, false, n_cards);
        return NULL;
    }
    assert(nccl && library); /* else this rank could not */
    cuda_enter(cuda);
    nccl->library = library;
    nccl->rank = cluster_rank(cluster);
    nccl->n_ranks = cluster_n_ranks(cluster);
    can = library->comm_new(&nccl->comm, nccl->n_ranks, id, nccl->rank) == NCCL_OK;
    if (!can)
        nccl->comm = NULL;
    can = can && cuda_nccl_fit(cuda, nccl, 0);
    can = cluster_min(cluster, &can) && can;
    report_way(cluster, can, n_cards);
    if (can)
        return nccl;
    cuda_nccl_free(cuda, nccl);
    return NULL;
}

void cuda_nccl_free(struct cuda_backend *cuda, struct cuda_nccl *nccl)
{
    if (!nccl)
        return;
    cuda_enter(cuda);
    if (nccl->comm && cuda->cluster && (cluster_is_lost(cuda->cluster) || cuda_check(cuda, NULL) != TUTTI_OK))
        cuda_nccl_abort(nccl); /* the other would wait for the lost rank */
    else if (nccl->comm)
        (void)nccl->library->comm_free(nccl->comm);
    if (nccl->has_thread)
        pthread_join(nccl->thread, NULL);
    cuda->nccl = NULL;
    cuda_memory_free(cuda, nccl->parts);
    free(nccl);
}

static void *abort_comm(void *arg)
{
    struct cuda_nccl *nccl = arg;
    (void)nccl->library->comm_abort(nccl->comm);
    return NULL;
}

/* NCCL releases the card at once, but returns only after all graphs with its transfers were destroyed (commDestroySync(), NCCL 2.29), and
 * that has to wait for the card: hence a thread. Without one the card goes on waiting, until the cluster's monitor ends the process. */
void cuda_nccl_abort(struct cuda_nccl *nccl)
{
    if (nccl->is_aborted)
        return;
    nccl->is_aborted = true;
    nccl->has_thread = thread_start(&nccl->thread, abort_comm, nccl) == 0;
}

bool cuda_nccl_fit(struct cuda_backend *cuda, struct cuda_nccl *nccl, size_t n)
{
    size_t few = (size_t)nccl->n_ranks * FEW_FLOATS, least = few > LEAST_FLOATS ? few : LEAST_FLOATS;
    n = 2 * n > least ? 2 * n : least; /* rows are shared evenly but for one row of each rank */
    if (n <= nccl->n_floats)
        return true;
    cuda_memory_free(cuda, nccl->parts);
    nccl->parts = cuda_memory_new(cuda, n * sizeof *nccl->parts);
    nccl->n_floats = nccl->parts ? n : 0;
    return nccl->parts;
}

/* ---- operations ---- */

static struct nccl_call call_of(struct cuda_nccl *nccl, float *x, int n_rows, int n)
{
    struct nccl_call call;
    memset(&call, 0, sizeof call); /* lists are compared byte by byte */
    call.nccl = nccl;
    call.n_rows = n_rows;
    call.n = n;
    call.x = x;
    return call;
}

static void add_call(struct cuda_backend *cuda, const struct nccl_call *call)
{
    cuda_list_call(cuda, transfer, call, sizeof *call);
}

static void sum(struct cuda_backend *cuda, const struct cuda_nccl *nccl, float *y, size_t n)
{
    struct sum_parts_args args = { 0 };
    args.parts = nccl->parts;
    args.y = y;
    args.n = (int64_t)n;
    args.n_ranks = nccl->n_ranks;
    args.rank = nccl->rank;
    if (n > 0)
        cuda_launch(cuda, CUDA_KERNEL_sum_parts,
                    (struct cuda_grid){
                        .x = (int)((n + THREADS - 1) / THREADS), .y = 1, .z = 1, .n_threads = THREADS },
                    &args, sizeof args);
}

/* Rows of padding are summed, too: then a step of any number of rows has the same list. */
static int with_padding(const struct cuda_backend *cuda, size_t n)
{
    int n_rows = cuda->step ? cuda->step->n_rows : 0;
    if (n_rows == 0 || n % (size_t)n_rows != 0)
        return (int)n;
    return (int)(n / (size_t)n_rows) * cuda_padded_rows(cuda, n_rows);
}

void cuda_nccl_reduce(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *x, size_t n)
{
    int n_padded = with_padding(cuda, n);
    struct nccl_call call = call_of(nccl, x, n_padded, 1);
    if (n_padded > FEW_FLOATS) {
        cuda_nccl_reduce_rows(cuda, nccl, x, n_padded, 1);
        cuda_nccl_all_gather_rows(cuda, nccl, x, n_padded, 1);
        return;
    }
    call.kind = CALL_GATHER;
    add_call(cuda, &call);
    sum(cuda, nccl, x, (size_t)n_padded);
}

void cuda_nccl_reduce_rows(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *x, int n_rows, int n)
{
    struct nccl_call call = call_of(nccl, x, n_rows, n);
    struct rows_of own = rows_of(&call, nccl->rank);
    call.kind = CALL_EXCHANGE;
    assert(own.n * (size_t)nccl->n_ranks <= nccl->n_floats);
    add_call(cuda, &call);
    sum(cuda, nccl, x + own.begin, own.n);
}

void cuda_nccl_all_gather_rows(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *x, int n_rows, int n)
{
    struct nccl_call call = call_of(nccl, x, n_rows, n);
    call.kind = CALL_SPREAD;
    add_call(cuda, &call);
}

static void place(struct cuda_backend *cuda, float *whole, const float *part, int n_rows, int begin,
                  int n_part, int n_whole)
{
    struct place_columns_args args = { 0 };
    args.part = part;
    args.whole = whole;
    args.begin = begin;
    args.n_part = n_part;
    args.n_whole = n_whole;
    if (n_part > 0)
        cuda_launch(cuda, CUDA_KERNEL_place_columns,
                    (struct cuda_grid){
                        .x = n_rows, .y = (n_part + THREADS - 1) / THREADS, .z = 1, .n_threads = THREADS },
                    &args, sizeof args);
}

/* As many rows at a time as fit, on all ranks the same. */
void cuda_nccl_collect(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *whole, const float *part,
                       int n_rows, const int *begins)
{
    int n_whole = begins[nccl->n_ranks], n_part = begins[nccl->rank + 1] - begins[nccl->rank], n;
    int n_fit = (int)(LEAST_FLOATS / n_whole);
    assert(n_fit > 0);
    for (int row = 0; row < n_rows; row += n) {
        n = n_rows - row < n_fit ? n_rows - row : n_fit;
        const float *own = part + (size_t)row * (size_t)n_part;
        struct nccl_call call = call_of(nccl, (float *)(uintptr_t)own, n, n_whole);
        call.kind = CALL_COLLECT;
        for (int r = 0; r <= nccl->n_ranks; r++)
            call.begins[r] = begins[r];
        add_call(cuda, &call);
        for (int r = 0; whole && r < nccl->n_ranks; r++)
            place(cuda, whole + (size_t)row * (size_t)n_whole,
                  r == nccl->rank ? own : nccl->parts + (size_t)n * (size_t)begins[r], n, begins[r],
                  begins[r + 1] - begins[r], n_whole);
    }
}

void cuda_nccl_broadcast(struct cuda_backend *cuda, struct cuda_nccl *nccl, int32_t *values, int n)
{
    struct nccl_call call = call_of(nccl, NULL, n, 1);
    call.kind = CALL_BROADCAST;
    call.values = values;
    add_call(cuda, &call);
}
