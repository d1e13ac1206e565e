/* Open MPI (or another MPI) as a transport: a module that uses no symbols of the program that loads
 * it. */
#include "cluster/transport.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 1 };

struct mpi_transport {
    struct transport transport; /* first: the two are cast to each other */
    MPI_Comm comm;              /* a private duplicate, which returns errors */
    int n_requests;
    MPI_Request requests[2 * TRANSPORT_MESSAGES];
};

static struct mpi_transport *mpi_of(struct transport *t)
{
    return (struct mpi_transport *)t;
}

static bool mpi_begin(struct transport *t, const struct message *sends, int n_sends,
                      const struct message *receives, int n_receives)
{
    struct mpi_transport *mpi = mpi_of(t);
    mpi->n_requests = 0;
    for (int i = 0; i < n_receives; i++)
        if (MPI_Irecv(receives[i].bytes, (int)receives[i].n_bytes, MPI_BYTE, receives[i].peer, TAG, mpi->comm,
                      &mpi->requests[mpi->n_requests++]) != MPI_SUCCESS)
            return false;
    for (int i = 0; i < n_sends; i++)
        if (MPI_Isend(sends[i].bytes, (int)sends[i].n_bytes, MPI_BYTE, sends[i].peer, TAG, mpi->comm,
                      &mpi->requests[mpi->n_requests++]) != MPI_SUCCESS)
            return false;
    return true;
}

static int mpi_test(struct transport *t)
{
    struct mpi_transport *mpi = mpi_of(t);
    int is_done = 0;
    if (MPI_Testall(mpi->n_requests, mpi->requests, &is_done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
        return -1;
    return is_done;
}

static void mpi_close(struct transport *t, bool is_orderly)
{
    struct mpi_transport *mpi = mpi_of(t);
    if (is_orderly) {
        MPI_Comm_free(&mpi->comm);
        MPI_Finalize();
    }
    free(mpi);
}

static const struct transport_ops MPI_OPS = {
    .name = "MPI",
    .begin = mpi_begin,
    .test = mpi_test,
    .close = mpi_close,
};

/* How many ranks may run on this rank's cores: launchers bind each to its own cores, or let all use
 * the same ones. */
static int count_sharing(MPI_Comm local, int n_local)
{
    cpu_set_t own, both;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own) != 0)
        return n_local;
    cpu_set_t *all = calloc((size_t)n_local, sizeof *all);
    int n_sharing = 0;
    if (all && MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, local) == MPI_SUCCESS) {
        for (int i = 0; i < n_local; i++) {
            CPU_AND(&both, &own, &all[i]);
            n_sharing += CPU_COUNT(&both) > 0;
        }
    }
    free(all);
    return n_sharing > 0 ? n_sharing : n_local;
}

static bool mpi_fail(char *why, size_t why_bytes, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    snprintf(why, why_bytes, "%s: %s", what, text);
    return false;
}

__attribute__((visibility("default"))) bool tutti_transport_open(struct transport **out, char *why,
                                                                 size_t why_bytes);

bool tutti_transport_open(struct transport **out, char *why, size_t why_bytes)
{
    int provided = 0, rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (rc != MPI_SUCCESS)
        return mpi_fail(why, why_bytes, "MPI_Init_thread", rc);
    struct mpi_transport *mpi = calloc(1, sizeof *mpi);
    if (!mpi || provided < MPI_THREAD_SERIALIZED) {
        free(mpi);
        snprintf(why, why_bytes, "this MPI library cannot be called from several threads");
        return false;
    }
    MPI_Comm local;
    rc = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    if (rc != MPI_SUCCESS) {
        free(mpi);
        return mpi_fail(why, why_bytes, "MPI_Comm_dup", rc);
    }
    mpi->transport.ops = &MPI_OPS;
    MPI_Comm_rank(mpi->comm, &mpi->transport.rank);
    MPI_Comm_size(mpi->comm, &mpi->transport.n_ranks);
    MPI_Comm_size(local, &mpi->transport.n_local);
    MPI_Comm_rank(local, &mpi->transport.local);
    mpi->transport.n_sharing = count_sharing(local, mpi->transport.n_local);
    MPI_Comm_free(&local);
    *out = &mpi->transport;
    return true;
}
