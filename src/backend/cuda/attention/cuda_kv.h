/* Pages of the CUDA backend, for its own files. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_KV_H
#define TUTTI_BACKEND_CUDA_CUDA_KV_H

#include "backend/cuda/cuda.h"
#include "kernels/cuda/attention/kv_args.h"

struct kv_memory {
    enum dtype dtype;
    uint8_t *base;                      /* all pages: layer by layer, then the rows of floats of pages */
    size_t image_bytes;                 /* of a page: all layers in order */
    struct cuda_kv_copies *copies;      /* NULL: not reserved */
    const struct kv_layer_pages *table; /* layers, on the card */
    int n_layers;                       /* with the rows of floats, if pages have them */
    struct kv_layer_pages layers[];
};

/* In the order of the launches: a page to an image on the card, or from one. */
void cuda_kv_to_image(struct cuda_backend *cuda, const struct kv_memory *kv, int32_t page_id, uint8_t *image);
void cuda_kv_from_image(struct cuda_backend *cuda, const struct kv_memory *kv, int32_t page_id,
                        const uint8_t *image);

/* Waits for all copies, and frees them with their host memory. NULL is allowed. */
void cuda_kv_copies_free(struct cuda_backend *cuda, struct cuda_kv_copies *copies);

/* The type of pages, as kernels know it. */
enum cuda_kv_type cuda_kv_type_of(enum dtype dtype);

/* The page tables of layers of a kind. */
const int32_t *cuda_kv_tables(const struct cuda_backend *cuda, const struct cuda_kind *kind);

/* Scratch memory of attention() for contexts of n_pages pages together. False: the card is out of memory. */
bool cuda_attention_reserve_cuts(struct cuda_backend *cuda, int n_pages);

/* Host memory for the prefixes of a step's rows, [max_rows]. */
struct prefix_row *cuda_attention_prefixes(struct cuda_backend *cuda);

#endif
