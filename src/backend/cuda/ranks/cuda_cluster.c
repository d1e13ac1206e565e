/* By NCCL, if it is there and each rank has a card of its own. Else a collective ends what was launched of the step so
 * far, copies the operand to the host, calls that of cluster/, and copies the result to the card. */
#include "backend/cuda/ranks/cuda_cluster.h"
#include "backend/cuda/cuda_state.h"
#include "backend/cuda/ranks/cuda_nccl.h"
#include "cluster/cluster.h"

#include <sched.h>
#include <stdlib.h>

enum { STAGING_FLOATS = 4 << 20 }; /* of collect(), which computes as many rows at a time as fit */

bool cuda_cluster_open(struct cuda_backend *cuda, struct cluster *cluster)
{
    cuda->cluster = cluster;
    if (!cluster)
        return true;
    cuda->staging = cuda_pinned_new(cuda, STAGING_FLOATS * sizeof *cuda->staging);
    return cuda->staging;
}

void cuda_cluster_close(struct cuda_backend *cuda)
{
    cuda_nccl_free(cuda, cuda->nccl);
    cuda_pinned_free(cuda, cuda->staging);
    cuda->staging = NULL;
}

int cuda_cluster_card(const struct cluster *cluster, int n_cards)
{
    return n_cards > 0 ? cluster_local_rank(cluster) % n_cards : 0;
}

/* ---- waiting ---- */

/* A rank was lost: ends what the card may wait for. */
static void abort_transfers(struct cuda_backend *cuda)
{
    struct tutti_error err;
    if (cluster_check(cuda->cluster, &err) != TUTTI_OK)
        cuda_keep_error(cuda, &err);
    cuda_nccl_abort(cuda->nccl);
}

/* event NULL: all of the stream. */
static cuda_result wait_for(struct cuda_backend *cuda, cuda_stream stream, cuda_event event)
{
    const struct cuda_driver *d = cuda->driver;
    while (cuda->nccl && !cluster_is_lost(cuda->cluster)) {
        cuda_result result = event ? d->event_query(event) : d->stream_query(stream);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
        sched_yield();
    }
    if (cuda->nccl)
        abort_transfers(cuda); /* then they end soon */
    cuda_result result = event ? d->event_wait(event) : d->stream_wait(stream);
    return cuda->nccl && result == CUDA_OK ? CUDA_ERROR_UNKNOWN : result;
}

cuda_result cuda_wait_event(struct cuda_backend *cuda, cuda_event event)
{
    return wait_for(cuda, NULL, event);
}

cuda_result cuda_wait_stream(struct cuda_backend *cuda, cuda_stream stream)
{
    return wait_for(cuda, stream, NULL);
}

/* ---- shared memory: on the card, with a copy on the host that the other ranks of this machine read ---- */

/* The first allocation of shared memory is where all ranks are known to be together: before it, one of them may have
 * failed to open its backend without the others. */
static void meet_ranks(struct cuda_backend *cuda)
{
    int n_cards = 0;
    if (!cuda->cluster || cuda->has_met)
        return;
    cuda->has_met = true;
    (void)cuda_is_ok(cuda, cuda->driver->device_count(&n_cards), "counting the cards");
    (void)cuda_need(cuda, CUDA_KERNEL_sum_parts, CUDA_NEED_FILE);
    cuda->nccl = cuda_nccl_new(cuda, cuda->cluster, n_cards);
}

struct floats cuda_alloc_shared(struct backend *be, size_t n_floats)
{
    struct cuda_backend *cuda = cuda_of(be);
    meet_ranks(cuda);
    struct floats floats = cuda_alloc(be, n_floats);
    float *host = cuda->cluster ? cluster_alloc(cuda->cluster, n_floats) : NULL; /* all ranks call it */
    bool fits = !cuda->nccl || cuda_nccl_fit(cuda, cuda->nccl, n_floats);
    if (fits && floats.buffer && (host || !cuda->cluster)) {
        floats.buffer->host = host;
        return floats;
    }
    if (cuda->cluster)
        cluster_dealloc(cuda->cluster, host);
    cuda_dealloc(be, floats);
    return NO_FLOATS;
}

void cuda_dealloc_shared(struct backend *be, struct floats floats)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (!floats.buffer)
        return;
    if (cuda->cluster)
        cluster_dealloc(cuda->cluster, floats.buffer->host);
    cuda_dealloc(be, floats);
}

/* The host's copy of x [n]. */
static float *host_of(struct floats x, size_t n)
{
    assert(x.buffer && x.buffer->host && n <= x.buffer->n_floats && x.offset <= x.buffer->n_floats - n);
    return x.buffer->host + x.offset;
}

/* Floats begin to end - 1 of x. False: the card failed. Then this rank takes no part in the collective, since the others would
 * use what it never computed. They wait until its process ends, which they notice. */
static bool fetch_floats(struct cuda_backend *cuda, struct floats x, size_t begin, size_t end)
{
    cuda_copy_out(cuda, host_of(x, end) + begin, cuda_floats(x, end) + begin, (end - begin) * sizeof(float));
    return cuda_check(cuda, NULL) == TUTTI_OK;
}

static void send_floats(struct cuda_backend *cuda, struct floats x, size_t begin, size_t end)
{
    cuda_copy_in(cuda, cuda_floats(x, end) + begin, host_of(x, end) + begin, (end - begin) * sizeof(float));
}

/* ---- operations ---- */

bool cuda_reduce(struct backend *be, struct floats x, size_t n)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (cuda->nccl) {
        cuda_nccl_reduce(cuda, cuda->nccl, cuda_floats(x, n), n);
        return !cluster_is_lost(cuda->cluster);
    }
    if (!fetch_floats(cuda, x, 0, n) || !cluster_reduce(cuda->cluster, cuda->team, host_of(x, n), n))
        return false;
    send_floats(cuda, x, 0, n);
    return true;
}

bool cuda_reduce_rows(struct backend *be, struct floats x, int n_rows, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    size_t n_floats = (size_t)n_rows * (size_t)n;
    int begin, end;
    if (cuda->nccl) {
        cuda_nccl_reduce_rows(cuda, cuda->nccl, cuda_floats(x, n_floats), n_rows, n);
        return !cluster_is_lost(cuda->cluster);
    }
    if (!fetch_floats(cuda, x, 0, n_floats) ||
        !cluster_reduce_rows(cuda->cluster, cuda->team, host_of(x, n_floats), n_rows, n))
        return false;
    cluster_own_rows(cuda->cluster, n_rows, &begin, &end);
    send_floats(cuda, x, (size_t)begin * (size_t)n, (size_t)end * (size_t)n);
    return true;
}

bool cuda_all_gather_rows(struct backend *be, struct floats x, int n_rows, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    size_t n_floats = (size_t)n_rows * (size_t)n;
    int begin, end;
    if (cuda->nccl) {
        cuda_nccl_all_gather_rows(cuda, cuda->nccl, cuda_floats(x, n_floats), n_rows, n);
        return !cluster_is_lost(cuda->cluster);
    }
    cluster_own_rows(cuda->cluster, n_rows, &begin, &end);
    if (!fetch_floats(cuda, x, (size_t)begin * (size_t)n, (size_t)end * (size_t)n) ||
        !cluster_all_gather_rows(cuda->cluster, cuda->team, host_of(x, n_floats), n_rows, n))
        return false;
    send_floats(cuda, x, 0, n_floats);
    return true;
}

/* Parts of at most as many rows as fit, on all ranks the same: their columns are known to all. */
bool cuda_collect(struct backend *be, struct floats whole, struct floats part, int n_rows, const int *begins)
{
    struct cuda_backend *cuda = cuda_of(be);
    int rank = cluster_rank(cuda->cluster), n_whole = begins[cluster_n_ranks(cuda->cluster)];
    size_t n_all = (size_t)n_whole, n_part = (size_t)(begins[rank + 1] - begins[rank]);
    int n_fit = STAGING_FLOATS / 2 / n_whole, n;
    assert(n_fit > 0);
    if (cuda->nccl) {
        cuda_nccl_collect(cuda, cuda->nccl, cuda_floats(whole, 0), cuda_floats(part, 0), n_rows, begins);
        return !cluster_is_lost(cuda->cluster);
    }
    for (int row = 0; row < n_rows; row += n) {
        n = n_rows - row < n_fit ? n_rows - row : n_fit;
        size_t first = (size_t)row, count = (size_t)n;
        float *own = cuda->staging + STAGING_FLOATS / 2, *all = whole.buffer ? cuda->staging : NULL;
        cuda_copy_out(cuda, own, cuda_floats(floats_at(part, first * n_part), count * n_part),
                      count * n_part * sizeof *own);
        if (cuda_check(cuda, NULL) != TUTTI_OK || /* as above */
            !cluster_gather_rows(cuda->cluster, all, own, n, begins))
            return false;
        if (all)
            cuda_copy_in(cuda, cuda_floats(floats_at(whole, first * n_all), count * n_all), all,
                         count * n_all * sizeof *all);
    }
    return true;
}

/* ---- tokens that rank 0 draws ---- */

/* Through the host they would be known only after the host has waited for them. */
bool cuda_feeds_tokens(const struct backend *be)
{
    const struct cuda_backend *cuda = cuda_of((struct backend *)(uintptr_t)be);
    return !cuda->cluster || cluster_n_ranks(cuda->cluster) == 1 || cuda->nccl;
}

bool cuda_draws_tokens(const struct cuda_backend *cuda)
{
    return !cuda->cluster || cluster_rank(cuda->cluster) == 0;
}

void cuda_share_tokens(struct cuda_backend *cuda, int32_t *token_ids, int n)
{
    if (cuda->nccl && !cluster_is_lost(cuda->cluster)) /* else the card would wait for the lost rank */
        cuda_nccl_broadcast(cuda, cuda->nccl, token_ids, n);
}
