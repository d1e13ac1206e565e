/* Collectives of ranks that each have a card: by NCCL, or the ranks of a machine exchange through the host's memory, and
 * with those of other machines through the transport of their cluster. Sums are those of cluster/, so they have the same bits for any
 * device, and on every rank. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_CLUSTER_H
#define TUTTI_BACKEND_CUDA_CUDA_CLUSTER_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/driver.h"

/* Keeps the cluster (NULL: a single process) and allocates memory for collect(). False: out of memory. */
bool cuda_cluster_open(struct cuda_backend *cuda, struct cluster *cluster);
void cuda_cluster_close(struct cuda_backend *cuda);

/* The host waits for an event, or for all that a stream was given. If a rank was lost, the card may wait for it in NCCL for ever: then
 * transfers are aborted, the backend keeps the loss as its failure, and the result is an error. */
cuda_result cuda_wait_event(struct cuda_backend *cuda, cuda_event event);
cuda_result cuda_wait_stream(struct cuda_backend *cuda, cuda_stream stream);

/* The number of the card that a rank uses, of n_cards. */
int cuda_cluster_card(const struct cluster *cluster, int n_cards);

struct floats cuda_alloc_shared(struct backend *be, size_t n_floats);
void cuda_dealloc_shared(struct backend *be, struct floats floats);
bool cuda_reduce(struct backend *be, struct floats x, size_t n);
bool cuda_reduce_rows(struct backend *be, struct floats x, int n_rows, int n);
bool cuda_all_gather_rows(struct backend *be, struct floats x, int n_rows, int n);
bool cuda_collect(struct backend *be, struct floats whole, struct floats part, int n_rows, const int *begins);

bool cuda_feeds_tokens(const struct backend *be);
/* Whether this process draws tokens: it is the only one, or rank 0. */
bool cuda_draws_tokens(const struct cuda_backend *cuda);
/* In a step with token_sources: token_ids [n], on the card, become those of rank 0. */
void cuda_share_tokens(struct cuda_backend *cuda, int32_t *token_ids, int n);

#endif
