/* A mixture of experts on the card. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_EXPERTS_H
#define TUTTI_BACKEND_CUDA_CUDA_EXPERTS_H

#include "backend/cuda/cuda.h"

/* Notes a matrix with experts, each row of which uses up to n_chosen, for the next reserve(). False: out of memory. */
bool cuda_experts_note(struct cuda_backend *cuda, const struct matrix *m, int n_chosen);

void cuda_experts(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                  struct floats scores, int n_rows);
uint64_t cuda_expert_bytes_read(const struct backend *be);

bool cuda_experts_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_experts_release(struct cuda_backend *cuda);

#endif
