/* The mixed backend: a card and the CPU as one backend, for models that a card's memory cannot hold. Types and functions
 * that its files share.
 *
 * A weight, and the keys and values of a layer, are on one side (backend/placement.h). A buffer of rows is on both, and
 * its struct buffer knows which side has the newest values. An operation runs on the side of its weights or pages; without
 * them, where its inputs are newest. Rows cross only when an operation on the other side needs them: so a layer on the CPU
 * between layers of the card costs two crossings a step, and experts on the CPU copy their inputs down and their sum up.
 *
 * Which side computes follows from the weights and the order of the operations, never from the rows of a step. Both sides
 * compute rows independently of each other, so the whole does. */
#ifndef TUTTI_BACKEND_MIXED_MIXED_H
#define TUTTI_BACKEND_MIXED_MIXED_H

#include "backend/mixed/mixed_open.h"

#include <assert.h>

enum side { SIDE_CARD, SIDE_CPU, N_SIDES, BOTH_SIDES = N_SIDES };

/* The handles of the two backends have the same types as those of this one, and the names inner or on. Only their own
 * backend looks into them. */
struct buffer {
    struct floats on[N_SIDES]; /* buffer NULL: none there, of constants */
    size_t n_floats, n_valid;  /* n_valid: floats from the first on that were written, which cross together */
    enum side newest;          /* BOTH_SIDES: the two are equal */
};

struct matrix {
    struct matrix *inner;
    const struct backend_ops *ops; /* of its side */
    enum side side;
    int n_in, n_out, n_experts;
};

struct kv_memory {
    struct kv_memory *inner[N_SIDES]; /* NULL: the side has no layer */
    size_t page_bytes[N_SIDES];
};

struct mixed_backend {
    struct backend backend; /* first: the two are cast to each other */
    struct backend_caps caps;
    struct backend *sides[N_SIDES];
    struct placement placement;
    struct attention_shape *kinds; /* [n_kinds]; only their numbers are used */
    uint8_t *layer_kinds;          /* [placement.n_layers] */
    int n_layers_of[N_SIDES];      /* layers whose keys and values a side has */

    enum side weights_side; /* of the weights that are made */
    /* What lora_new() and embedding_new() gave: the side's own handles, which its operations get in arrays. */
    struct handle {
        const void *inner;
        enum side side;
    } * handles;
    size_t n_handles, handles_room;

    const struct step *step; /* the caller's; NULL: between steps */
    enum side side;          /* of the operation that is running, or ran last */
};

static inline struct mixed_backend *mixed_of(struct backend *be)
{
    return (struct mixed_backend *)be;
}

static inline const struct mixed_backend *mixed_const(const struct backend *be)
{
    return (const struct mixed_backend *)be;
}

static inline enum side mixed_side_of(const struct mixed_backend *m, enum weight_part part, int layer)
{
    return placement_is_on_card(&m->placement, part, layer) ? SIDE_CARD : SIDE_CPU;
}

/* The side of the output, which also has the rows of floats of pages. */
static inline enum side mixed_output_side(const struct mixed_backend *m)
{
    return mixed_side_of(m, PART_OUTPUT, 0);
}

/* The number of a layer in its own side's backend. */
static inline int mixed_inner_layer(const struct mixed_backend *m, int layer)
{
    return layer - (mixed_side_of(m, PART_LAYER, layer) == SIDE_CARD ? m->placement.first_on_card : 0);
}

static inline const struct attention_shape *mixed_shape(const struct mixed_backend *m, int layer)
{
    return &m->kinds[m->layer_kinds[layer]];
}

/* The floats of n_rows rows of n. */
static inline size_t mixed_rows(int n_rows, int n)
{
    return (size_t)n_rows * (size_t)n;
}

extern const struct backend_ops MIXED_OPS; /* mixed.c */

/* ---- mixed_weights.c ---- */
struct floats mixed_alloc(struct backend *be, size_t n_floats);
void mixed_dealloc(struct backend *be, struct floats floats);
struct floats mixed_alloc_constant(struct backend *be, const float *values, size_t n_floats);
void mixed_begin_weights(struct backend *be, enum weight_part part, int layer);
enum tutti_status mixed_matrix_new(struct backend *be, struct matrix **out,
                                   const struct matrix_source *source, struct tutti_error *err);
void mixed_matrix_free(struct backend *be, struct matrix *matrix);
size_t mixed_matrix_bytes(const struct matrix *matrix);
enum dtype mixed_matrix_type(const struct matrix *matrix);
float mixed_matrix_read(struct backend *be, float *host, const struct matrix *matrix, int row);
bool mixed_matrix_lengths(struct backend *be, float *host, const struct matrix *matrix,
                          const struct lora_part *part);
uint64_t mixed_checksum(struct backend *be, struct floats floats, size_t n_floats);
uint64_t mixed_matrix_checksum(struct backend *be, const struct matrix *matrix);
enum tutti_status mixed_lora_new(struct backend *be, struct lora **out, const struct lora_source *source,
                                 struct tutti_error *err);
void mixed_lora_free(struct backend *be, struct lora *lora);
size_t mixed_lora_bytes(const struct backend *be, const struct lora *lora);
uint64_t mixed_lora_checksum(struct backend *be, const struct lora *lora);
enum tutti_status mixed_embedding_new(struct backend *be, struct embedding_update **out,
                                      const struct embedding_source *source, struct tutti_error *err);
void mixed_embedding_free(struct backend *be, struct embedding_update *update);
size_t mixed_embedding_bytes(const struct backend *be, const struct embedding_update *update);
uint64_t mixed_embedding_checksum(struct backend *be, const struct embedding_update *update);

/* ---- rows: mixed_ops.c ---- */

/* Begins an operation on a side. */
struct backend *mixed_use(struct mixed_backend *m, enum side side);
/* The floats on the side of the running operation, which reads them, writes n of them, or both. The newest values cross
 * first, if they are needed. None stays none. */
struct floats mixed_in(struct mixed_backend *m, struct floats floats);
struct floats mixed_out(struct mixed_backend *m, struct floats floats, size_t n);
struct floats mixed_inout(struct mixed_backend *m, struct floats floats, size_t n);

void mixed_upload(struct backend *be, struct floats dst, const float *src, size_t n_floats);
void mixed_download(struct backend *be, float *host, struct floats src, size_t n_floats);
void mixed_fetch(struct backend *be, float *host, struct floats src, size_t n_floats);
void mixed_embed(struct backend *be, struct floats x, const struct matrix *table, int first_id);
void mixed_embed_adapted(struct backend *be, struct floats x, const struct matrix *table,
                         const struct embedding_update *const *updates, const int32_t *adapters);
void mixed_rmsnorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                   int n_rows, int n, float eps);
void mixed_layernorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                     struct floats b, int n_rows, int n, float eps);
void mixed_norm_adapted(struct backend *be, struct floats y, struct floats x, struct floats add,
                        struct floats w, struct floats b, int n_rows, int n, float eps,
                        const struct norm_update *const *updates, const int32_t *adapters);
void mixed_scale_add(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                     int n_rows, int n);
void mixed_scale(struct backend *be, struct floats x, float scale, int n_rows, int n);
void mixed_softcap(struct backend *be, struct floats x, float cap, int n_rows, int n);
void mixed_activate(struct backend *be, struct floats x, int n_rows, int n, enum activation act);
void mixed_positions(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                     enum positions_use use);
void mixed_concat(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                  int n_rows);
void mixed_linear(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                  int n_rows);
void mixed_linear_glu(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                      int n_rows, enum activation act);
void mixed_linear_adapted(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                          int n_rows, const struct lora *const *loras, const int32_t *adapters);
void mixed_linear_glu_adapted(struct backend *be, struct floats y, const struct matrix *matrix,
                              struct floats x, int n_rows, enum activation act,
                              const struct lora *const *loras, const int32_t *adapters);
void mixed_linear_heads(struct backend *be, struct floats y, const struct matrix *matrix, struct floats x,
                        int n_rows, const struct head_rows *heads);
void mixed_experts(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                   struct floats scores, int n_rows);
void mixed_gather(struct backend *be, struct floats y, struct floats x, struct floats add, int n);
enum tutti_status mixed_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err);
void mixed_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n);

/* ---- keys and values: mixed_kv.c ---- */
enum tutti_status mixed_kv_new(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                               enum dtype dtype, struct tutti_error *err);
void mixed_kv_free(struct backend *be, struct kv_memory *kv);
/* Bytes of a page that a side has. */
size_t mixed_side_page_bytes(const struct mixed_backend *m, enum side side, enum dtype dtype);
size_t mixed_kv_page_bytes(const struct backend *be, enum dtype dtype);
size_t mixed_kv_window_bytes(const struct backend *be, enum dtype dtype);
void mixed_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy);
enum tutti_status mixed_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes,
                                        int n_copies, void **out, struct tutti_error *err);
void mixed_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host);
void mixed_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host);
bool mixed_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits);
void mixed_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id,
                        const void *host);
void mixed_kv_store_rows(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                         const int32_t *page_ids, int n);
void mixed_previous_rows(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                         const struct kv_memory *kv, int n);
void mixed_rope_store(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                      struct kv_memory *kv, int layer);
void mixed_prefix_store(struct backend *be, struct kv_memory *kv, int layer,
                        const struct kv_prefix *const *prefixes, const int32_t *adapters);
void mixed_latent_store(struct backend *be, struct floats queries, struct floats q, int q_dim,
                        struct floats kv, struct floats norm, struct kv_memory *memory, int layer);
void mixed_attention(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                     const struct kv_memory *kv, int layer);

#endif
