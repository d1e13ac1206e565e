/* What tutti uses of NCCL (libnccl.so.2), opened at run time: names and types as in nccl.h of versions 2.7 and later.
 * It only transfers: sums are computed by kernels, in the order of the ranks, which NCCL does not promise. */
#ifndef TUTTI_BACKEND_CUDA_NCCL_H
#define TUTTI_BACKEND_CUDA_NCCL_H

#include "backend/cuda/driver.h"

typedef struct nccl_comm *nccl_comm;
typedef struct nccl_id {
    char bytes[128];
} nccl_id;
enum { NCCL_OK = 0, NCCL_INT32 = 2, NCCL_FLOAT32 = 7 };

#define NCCL_FUNCTIONS(F)                                                                                    \
    F(get_id, "ncclGetUniqueId", (nccl_id * id))                                                             \
    F(comm_new, "ncclCommInitRank", (nccl_comm * comm, int n_ranks, nccl_id id, int rank))                   \
    F(comm_free, "ncclCommDestroy", (nccl_comm comm))                                                        \
    F(comm_abort, "ncclCommAbort", (nccl_comm comm))                                                         \
    F(all_gather, "ncclAllGather",                                                                           \
      (const void *from, void *to, size_t n, int type, nccl_comm comm, cuda_stream stream))                  \
    F(broadcast, "ncclBroadcast",                                                                            \
      (const void *from, void *to, size_t n, int type, int root, nccl_comm comm, cuda_stream stream))        \
    F(send, "ncclSend",                                                                                      \
      (const void *from, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream))                  \
    F(receive, "ncclRecv", (void *to, size_t n, int type, int peer, nccl_comm comm, cuda_stream stream))     \
    F(group_begin, "ncclGroupStart", (void))                                                                 \
    F(group_end, "ncclGroupEnd", (void))

struct nccl {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): arguments has its own */
#define NCCL_FIELD(field, symbol, arguments) int(*field) arguments;
    NCCL_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
};

/* Opens the library once for the process. NULL: there is none, or it lacks a function. */
const struct nccl *nccl_open(void);

#endif
