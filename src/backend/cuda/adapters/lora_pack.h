/* What an adapter changes of a matrix or of the embedding, as one run of bytes for the card's memory. */
#ifndef TUTTI_BACKEND_CUDA_LORA_PACK_H
#define TUTTI_BACKEND_CUDA_LORA_PACK_H

#include "backend/backend.h"
#include "kernels/cuda/experts/lora_args.h"

/* Returns the bytes of a source, for memory aligned to 16 bytes, which begins with its struct lora_change. host: [bytes],
 * written, zeroed by the caller, or NULL to count only. card: where the bytes will be. */
size_t lora_pack(uint8_t *host, const uint8_t *card, const struct lora_source *source);
/* The same with struct embedding_change. table: the number of source->table; 0: none. */
size_t embedding_pack(uint8_t *host, const uint8_t *card, const struct embedding_source *source, int table);

/* A hash of what lora_pack() or embedding_pack() wrote, which does not depend on addresses. */
uint64_t lora_hash(const uint8_t *host, size_t n_bytes, const struct lora_source *source);
uint64_t embedding_hash(const uint8_t *host, size_t n_bytes, const struct embedding_source *source);

#endif
