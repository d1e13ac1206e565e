/* Pages of the CUDA backend, for its own files. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_KV_H
#define TUTTI_BACKEND_CUDA_CUDA_KV_H

#include "backend/cuda/cuda.h"
#include "kernels/cuda/attention/kv_args.h"

struct kv_memory {
    enum dtype dtype;
    uint8_t *base;  /* all pages: layer by layer, then the rows of floats of pages */
    uint8_t *image; /* of one page, all layers */
    size_t image_bytes;
    const struct kv_layer_pages *table; /* layers, on the card */
    int n_layers;                       /* with the rows of floats, if pages have them */
    struct kv_layer_pages layers[];
};

/* The type of pages, as kernels know it. */
enum cuda_kv_type cuda_kv_type_of(enum dtype dtype);

/* The page tables of layers of a kind. */
const int32_t *cuda_kv_tables(const struct cuda_backend *cuda, const struct cuda_kind *kind);

/* Scratch memory of attention() for contexts of n_pages pages together. False: the card is out of memory. */
bool cuda_attention_reserve_cuts(struct cuda_backend *cuda, int n_pages);

/* Host memory for the prefixes of a step's rows, [max_rows]. */
struct prefix_row *cuda_attention_prefixes(struct cuda_backend *cuda);

#endif
