/* What adapters change: of linear layers (cuda_lora.c), of the embedding (cuda_embedding.c), and what both have in common:
 * data of a step that say which adapter each row has (cuda_adapters.c). */
#ifndef TUTTI_BACKEND_CUDA_CUDA_LORA_H
#define TUTTI_BACKEND_CUDA_CUDA_LORA_H

#include "backend/cuda/cuda.h"
#include "kernels/cuda/experts/lora_args.h"

/* ---- cuda_adapters.c ---- */

/* A table [LORA_TABLE] on the card, by adapter. It stays from step to step and is copied to the card when one of its used
 * entries changes. Entries of adapters that no row of a step has may be outdated: they are not used. */
struct adapter_table {
    const void *key;                 /* the array of adapters that it was made for; NULL: none */
    const void *entries[LORA_TABLE]; /* as the card has them, but for is_changed */
    const void *card;
    uint64_t last_use;
    bool is_changed;
};

/* The table of a key; the least recently used one, if the key is new. NULL: no table was reserved. */
struct adapter_table *cuda_adapters_table(struct cuda_backend *cuda, const void *key);
/* entry: memory of the card, or NULL. */
void cuda_adapters_set(struct adapter_table *table, int adapter, const void *entry);
/* The table's address on the card, which then has all entries. */
const void *cuda_adapters_send(struct cuda_backend *cuda, struct adapter_table *table);

/* The card's copy of numbers [n], followed by -1 up to cuda_padded_rows(n), for the running step. */
const int32_t *cuda_adapters_rows(struct cuda_backend *cuda, const int32_t *numbers, int n);

bool cuda_adapters_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_adapters_release(struct cuda_backend *cuda);

/* ---- operations of backend.h, and the parts of cuda_ops.c ---- */

enum tutti_status cuda_lora_new(struct backend *be, struct lora **out, const struct lora_source *source,
                                struct tutti_error *err);
void cuda_lora_free(struct backend *be, struct lora *lora);
size_t cuda_lora_bytes(const struct backend *be, const struct lora *lora);
uint64_t cuda_lora_checksum(struct backend *be, const struct lora *lora);
void cuda_linear_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                         int n_rows, const struct lora *const *loras, const int32_t *adapters);
void cuda_linear_glu_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                             int n_rows, enum activation act, const struct lora *const *loras,
                             const int32_t *adapters);
bool cuda_lora_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_lora_release(struct cuda_backend *cuda);

enum tutti_status cuda_embedding_new(struct backend *be, struct embedding_update **out,
                                     const struct embedding_source *source, struct tutti_error *err);
void cuda_embedding_free(struct backend *be, struct embedding_update *update);
size_t cuda_embedding_bytes(const struct backend *be, const struct embedding_update *update);
uint64_t cuda_embedding_checksum(struct backend *be, const struct embedding_update *update);
void cuda_embed_adapted(struct backend *be, struct floats x, const struct matrix *table,
                        const struct embedding_update *const *updates, const int32_t *adapters);
bool cuda_embedding_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_embedding_release(struct cuda_backend *cuda);

#endif
