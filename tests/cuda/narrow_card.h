/* Options for a backend of one layer with one head of 8 dimensions, for tests of operations other than attention. */
#ifndef TUTTI_TESTS_CUDA_NARROW_CARD_H
#define TUTTI_TESTS_CUDA_NARROW_CARD_H

#include "backend/backend.h"

/* cluster: NULL: a single process. */
static inline struct backend_options narrow_options(struct cluster *cluster)
{
    static const float freqs[4] = { 1, 1, 1, 1 };
    static const struct attention_shape shape = { .n_heads = 1,
                                                  .n_kv_heads = 1,
                                                  .head_dim = 8,
                                                  .rotary_dim = 8,
                                                  .rope = ROPE_HALF,
                                                  .rope_freqs = freqs,
                                                  .rope_scale = 1,
                                                  .scale = 1 };
    return (struct backend_options){
        .n_threads = 1, .n_layers = 1, .n_kinds = 1, .attention = &shape, .cluster = cluster
    };
}

#endif
