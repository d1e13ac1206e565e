/* Collectives of ranks on cards by NCCL: nothing goes through the host, and a step stays one graph. The results have the
 * bits of those through the host. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_NCCL_H
#define TUTTI_BACKEND_CUDA_CUDA_NCCL_H

#include "backend/cuda/cuda.h"

struct cuda_nccl;

/* Called by all ranks together. NULL: the ranks do without NCCL, since one of them lacks the library, or several of a
 * machine share a card, or it fails. */
struct cuda_nccl *cuda_nccl_new(struct cuda_backend *cuda, struct cluster *cluster, int n_cards);
void cuda_nccl_free(struct cuda_backend *cuda, struct cuda_nccl *nccl); /* NULL is allowed */

/* Transfers that wait for a lost rank end soon, with anything, and no further ones may be requested. Does nothing a second time. */
void cuda_nccl_abort(struct cuda_nccl *nccl);

/* Makes room for operands of n floats. False: out of memory. */
bool cuda_nccl_fit(struct cuda_backend *cuda, struct cuda_nccl *nccl, size_t n);

/* As the operations of backend.h, on the card's memory. */
void cuda_nccl_reduce(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *x, size_t n);
void cuda_nccl_reduce_rows(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *x, int n_rows, int n);
void cuda_nccl_all_gather_rows(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *x, int n_rows,
                               int n);
void cuda_nccl_collect(struct cuda_backend *cuda, struct cuda_nccl *nccl, float *whole, const float *part,
                       int n_rows, const int *begins);

/* values [n] of rank 0 on every rank; on the card. */
void cuda_nccl_broadcast(struct cuda_backend *cuda, struct cuda_nccl *nccl, int32_t *values, int n);

#endif
