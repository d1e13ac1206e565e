/* The interface of a compute backend: memory, and operations on the rows of a step.
 *
 * Memory from a backend (struct floats, struct matrix, struct kv_memory) may be on another device.
 * Only the backend's own operations access it: outside of the backend it is a handle and an offset,
 * never a pointer. A pointer in this header is to host memory. Operations run in the order of the
 * calls; their results are complete when step_wait() returns. One thread calls them. With
 * sample_submit() two steps may be in flight.
 *
 * Every operation is row-independent: the bits of an output row depend only on that row's inputs,
 * never on n_rows, on other rows, or on the number of threads.
 *
 * No operation of a step allocates. */
#ifndef TUTTI_BACKEND_H
#define TUTTI_BACKEND_H

#include "backend/placement.h"
#include "backend/sample.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/system/team.h"
#include "kernels/activation.h"
#include "kernels/route.h"

/* What a backend can do, and how it lays out memory. */
struct backend_caps {
    int page_tokens;                 /* positions of a KV page */
    uint64_t kv_types, weight_types; /* bit 1 << dtype: kv_new() and matrix_new() take it */
    /* Memory of a matrix [n_out][n_in] that matrix_new() packs as type, without its bias; is_gate_up:
     * as in struct matrix_source. 0: rows of n_in elements cannot have the type. */
    uint64_t (*packed_bytes)(enum dtype type, int n_in, int64_t n_out, bool is_gate_up);
    /* The operations between step_begin() and step_submit() can be recorded once for a shape of step
     * and replayed, as CUDA graphs are. */
    bool can_capture;
    /* Rows that an operation on n_rows rows may write: memory of rows has room for as many, and reserve() is given them.
     * NULL: n_rows. */
    int (*padded_rows)(int n_rows);
};

static inline int backend_padded_rows(const struct backend_caps *caps, int n_rows)
{
    return caps->padded_rows ? caps->padded_rows(n_rows) : n_rows;
}

/* Pages of page_tokens positions that n_tokens take. */
static inline int64_t kv_pages_of(int64_t n_tokens, int page_tokens)
{
    return (n_tokens + page_tokens - 1) / page_tokens;
}

struct cluster;   /* cluster/cluster.h */
struct buffer;    /* an allocation of floats in the backend's memory */
struct matrix;    /* a linear layer's weights [n_out][n_in], packed for the kernels, and its bias */
struct kv_memory; /* keys and values of all pages and layers */

/* Floats of a buffer, from an offset on. An operation uses as many as its shapes say. */
struct floats {
    struct buffer *buffer; /* NULL: none */
    size_t offset;         /* in floats */
};

#define NO_FLOATS ((struct floats){ 0 })

static inline struct floats floats_at(struct floats floats, size_t n)
{
    return (struct floats){ floats.buffer, floats.offset + n };
}

/* Rows of one stored matrix: n_rows rows of n_in elements, row-major, as GGUF or safetensors store
 * them. */
struct matrix_part {
    const void *data; /* host; no alignment is promised */
    enum dtype dtype; /* a weight type */
    int n_rows;
    size_t stride; /* bytes from one row to the next; 0: rows are contiguous */
};

struct matrix_source {
    const char *name; /* for messages */
    const struct matrix_part *parts;
    int n_parts;
    int n_in;
    enum dtype type; /* type to pack as; n_in must be a multiple of its block */
    bool is_gate_up; /* two halves of n_out / 2 rows, gate then up; only for linear_glu() and experts() */
    /* For experts(): the source has n_experts matrices of equal shape, one after the other, each of
     * n_parts / n_experts parts. n_chosen: the most experts that a row uses. 0: a single matrix. */
    int n_experts, n_chosen;
    /* Host; NULL: none; else [n_parts], each [n_rows of the part] or NULL for zeros. */
    const float *const *biases;
    /* Host; NULL: no matrix has an order. Else for each matrix a permutation [n_in], the element of an input row that
     * belongs to each column; NULL: 0, 1, ... Only for parts of one type of integers (dtype_is_integers()) that is
     * kept. */
    const uint16_t *const *orders;
};

/* What one adapter changes of one matrix. Hu et al., 2021 (LoRA); Liu et al., 2024 (DoRA). */
struct lora;

/* A low-rank update of a range of rows: W += scale * B . A. */
struct lora_part {
    int out_begin, n_out; /* rows of the matrix, for linear_glu() gate rows first; parts do not overlap */
    int rank;             /* 1..LORA_MAX_RANK */
    float scale;
    const float *a; /* host, [rank][n_in] */
    const float *b; /* host, [n_out][rank] */
};
enum { LORA_MAX_RANK = 4096 };

struct lora_source {
    int n_in, n_out; /* of the matrix */
    const struct lora_part *parts;
    int n_parts;
    /* Of the factors of the parts: F32, or F16, which halves the bytes that a step reads; each rank is
     * then scaled by powers of two to keep F16's precision. */
    enum dtype type;
    /* Host, [n_out]; NULL: ones, zeros. An output, with its bias, is multiplied by its factor; then its
     * shift and the updates are added. */
    const float *factors, *shifts;
    struct matrix *matrix; /* used instead of the matrix and its bias; NULL: none */
};

/* What one adapter changes of the embedding. */
struct embedding_update;

/* The row of an id is taken from rows if the id is one of ids, else from table if there is one, else
 * from the model's table. Then scale * B . A[:, id] is added to the row. The first n_virtual positions of
 * a sequence have the rows of virtual_rows instead. All arrays are host memory. */
struct embedding_source {
    int n_vocab, n_columns;
    struct matrix *table;      /* [n_vocab][n_columns]; NULL: none */
    const int32_t *ids;        /* [n_ids], ascending */
    const float *rows;         /* [n_ids][n_columns] */
    const float *a;            /* [rank][n_vocab] */
    const float *b;            /* [n_columns][rank] */
    const float *virtual_rows; /* [n_virtual][n_columns] */
    int n_ids, rank, n_virtual;
    float scale;
};

/* The weights of a norm that an adapter replaces; b: of layernorm(). */
struct norm_update {
    struct floats w, b;
};

/* Keys and values of the first positions of all sequences of an adapter. Li and Liang, 2021 (prefix
 * tuning); Liu et al., 2022 (P-Tuning v2). */
struct kv_prefix {
    int n;              /* positions */
    struct floats rows; /* [layers][n][keys, values][n_kv_heads * head_dim], keys as they are stored */
};

enum rope_kind {
    ROPE_NONE,        /* no rotary embedding: learned positions, or ALiBi */
    ROPE_INTERLEAVED, /* pairs (2j, 2j+1) */
    ROPE_HALF,        /* pairs (j, j + rotary_dim/2); also called NEOX */
    ROPE_2D,          /* dimensions 0..rotary_dim/2-1 rotate by rope_positions, the next rotary_dim/2 by
                         block_positions, each as ROPE_HALF. Du et al., 2022 (GLM), section 2.2 */
};
/* The shape of one kind of attention; layers may be of several kinds. A qkv row is
 * q [n_heads][head_dim], then k, then v [n_kv_heads][head_dim], without v where keys_are_values. Query head h uses
 * KV head h / (n_heads / n_kv_heads). */
struct attention_shape {
    int n_heads, n_kv_heads, head_dim;
    /* > 0: latent attention (MLA). n_latent is a multiple of 8, n_kv_heads is 1, and head_dim is n_latent
     * + rotary_dim. The key of a position is its latent followed by its rotary part; the value is the
     * latent. So a page holds one row of head_dim elements for each position. See latent_store(). */
    int n_latent;
    /* Dimensions 0..rotary_dim-1 of a head are rotated. Even (ROPE_2D: a multiple of 4), <= head_dim. */
    int rotary_dim;
    enum rope_kind rope;
    /* Host, [rotary_dim / 2], ROPE_2D: [rotary_dim / 4]: angle = (float)position * freq, in float32. */
    const float *rope_freqs;
    float rope_scale; /* factor of cos and sin; mostly 1 */
    float scale;      /* factor of q . k; mostly 1 / sqrt(head_dim) */
    float softcap;    /* a score s becomes softcap tanh(s / softcap); 0: it stays. Not with alibi_slopes */
    int window; /* sliding window: a row attends to the last window positions, its own included; 0: to all */
    int first;  /* rows from this position on attend to no position before it */
    /* Host, [n_heads]: slope * (key's position - row's position) is added to a score. NULL: none.
     * Press et al., 2021 (ALiBi). */
    const float *alibi_slopes;
    float qk_norm_eps;    /* of the norms given to rope_store() and latent_store() */
    bool norms_all_heads; /* those of rope_store() are over all heads of q, or of k, together */
    bool keys_are_values; /* v is k as it is in the qkv row: before its norm and rotation */
    bool norms_values;    /* each head of v is divided by the root of its mean square, with qk_norm_eps */
};

/* Heads of a qkv row. */
static inline int attention_qkv_heads(const struct attention_shape *shape)
{
    return shape->n_heads + (shape->keys_are_values ? 1 : 2) * shape->n_kv_heads;
}

/* The rows of one step, in host memory. Row r is token token_ids[r] at position positions[r] of
 * sequence seqs[r]. Rows of one sequence are in order of position. The KV of all earlier positions
 * is in the sequence's pages, or is computed earlier in this step.
 *
 * A row attends to the positions up to its own. In a model with bidirectional prefixes it also
 * attends to all positions before prefix_lens[s] of its sequence. Each layer's output at a prefix
 * position then depends on the whole prefix, so a prefix is never split: its positions
 * 0..prefix_len-1 are all rows of one step. Pages that hold a part of a prefix (or the same tokens
 * as part of a longer one) must not be reused. After the prefix, rows may come in any chunks. */
struct step {
    int n_rows, n_seqs, n_outputs;
    int n_hidden;             /* the last n_hidden outputs give normed hidden states instead of logits */
    const int32_t *token_ids; /* [n_rows] */
    /* [n_rows]: the row's token is that of this input of the last sample_submit(), -1: token_ids[r]. NULL: -1 for all.
     * Only with feeds_tokens(). With several ranks rank 0 has sampled, and the others have the same array. */
    const int32_t *token_sources;
    const int32_t *positions;          /* [n_rows] */
    const int32_t *seqs;               /* [n_rows], 0..n_seqs-1 */
    const int32_t *const *page_tables; /* [n_seqs]: page_tables[s][p / page_tokens] holds position p */
    /* [n_seqs]: the same for the layers with a window, whose entries are window slots; NULL: page_tables.
     * Entries for positions that no row of the step attends to may be any slot. */
    const int32_t *const *window_tables;
    const int32_t *output_rows;     /* [n_outputs]: rows that need logits, then the n_hidden rows */
    float *hidden;                  /* host, [n_hidden][width]: output; NULL if n_hidden is 0 */
    const int32_t *prefix_lens;     /* [n_seqs]; NULL: 0 for all */
    const int32_t *rope_positions;  /* [n_rows]: positions for rope; NULL: positions */
    const int32_t *block_positions; /* [n_rows]: second positions: of ROPE_2D, or segments; NULL: 0 for all */
    /* [n_seqs]: a number that a sequence keeps from step to step, so that its page table can be sent
     * as changes (page_tables.h); NULL: its index in this step. */
    const int32_t *slots;
    const int32_t *adapters; /* [n_seqs]: index of the adapter, -1: none; NULL: none for all */
};

/* What positions() does with the rows of its table. */
enum positions_use {
    POSITIONS_REPLACE,   /* x[r] = table[positions[r]] */
    POSITIONS_ADD,       /* x[r] += table[positions[r]] */
    POSITIONS_ADD_SECOND /* x[r] += table[block_positions[r]] */
};

/* The rows of linear_heads(): element i of head h of row r is at r * row + h * head + i. */
struct head_rows {
    int n_heads;
    int x_row, x_head, y_row, y_head; /* in floats */
};

/* A page to copy, by page numbers, and by window slots for the layers with a window. */
struct page_copy {
    int32_t dst, src, window_dst, window_src;
};

/* The experts of a layer. */
struct expert_layer {
    const struct matrix *gate_up, *down; /* of all experts */
    const struct routing *routing;
    struct floats bias, factors; /* [n_experts]: of route_row(); none: NULL */
    enum activation activation;
    bool has_base;   /* y has values to which the experts' outputs are added: the shared expert's */
    bool gates_base; /* these are first multiplied by the sigmoid of the row's last score */
};

/* What a device can do: bytes of streaming reads, operations of its arithmetic units; a multiply-add is two. 1 G = 1e9. */
struct backend_limits {
    double read_gbps;
    double int8_gops;   /* 0: quantized weights are not multiplied as int8 */
    double f32_gflops;  /* float32 */
    double half_gflops; /* matrix instructions of float16; 0: none */
};

struct backend;

struct backend_ops {
    const char *name;
    void (*free)(struct backend *be);

    /* Bytes of the device's memory that are free. NULL: its memory is the host's. */
    uint64_t (*memory_left)(const struct backend *be);
    /* Describes the device. From any thread; a failure of the driver is none of the backend. NULL: it is the host. */
    void (*describe)(const struct backend *be, struct tutti_device *out);
    /* Bytes that pages of all layers may have, where they lie in several memories; NULL: memory_left(). */
    uint64_t (*pages_left)(const struct backend *be);

    /* Says what the weights are of that the following calls make, up to the next call: constants, matrices, and what
     * adapters change. layer: of PART_LAYER and PART_EXPERTS. NULL: all weights are in one memory. */
    void (*begin_weights)(struct backend *be, enum weight_part part, int layer);

    /* Allocates zeroed floats, at offset 0. buffer NULL: out of memory. */
    struct floats (*alloc)(struct backend *be, size_t n_floats);
    void (*dealloc)(struct backend *be, struct floats floats); /* as allocated; none is allowed */
    /* Memory for the buffers of reduce(), reduce_rows() and all_gather_rows(): all ranks call these
     * together, in the same order. */
    struct floats (*alloc_shared)(struct backend *be, size_t n_floats);
    void (*dealloc_shared)(struct backend *be, struct floats floats);
    /* Allocates floats that no operation writes, with these values: small weights, which every thread
     * reads. For dealloc(). buffer NULL: out of memory. */
    struct floats (*alloc_constant)(struct backend *be, const float *values, size_t n_floats);
    /* Copies host floats to the backend's memory; in a step, in the order of the operations. */
    void (*upload)(struct backend *be, struct floats dst, const float *src, size_t n_floats);

    /* Packs a matrix. If source->type differs from the stored type, converts it through float32.
     * TUTTI_E_UNSUPPORTED: n_in is not a multiple of the type's block. */
    enum tutti_status (*matrix_new)(struct backend *be, struct matrix **out,
                                    const struct matrix_source *source, struct tutti_error *err);
    void (*matrix_free)(struct backend *be, struct matrix *m); /* NULL is allowed */
    size_t (*matrix_bytes)(const struct matrix *m);
    enum dtype (*matrix_type)(const struct matrix *m);
    /* Between steps: copies a row of a matrix without experts to host [n_in] as float32, if host is not
     * NULL; of gate and up, rows of gate come first. Returns its bias, or 0. */
    float (*matrix_read)(struct backend *be, float *host, const struct matrix *m, int row);
    /* Between steps: the Euclidean lengths of the part's rows of W + scale * B . A, [n_out of the part].
     * False: out of memory. */
    bool (*matrix_lengths)(struct backend *be, float *host, const struct matrix *m,
                           const struct lora_part *part);

    /* Checksums (base/hash.h) of n_floats of alloc()ed memory, of a matrix with its bias, and
     * of a lora: equal sums mean bit-identical results. They depend on what was uploaded, not on
     * addresses or threads. */
    uint64_t (*checksum)(struct backend *be, struct floats floats, size_t n_floats);
    uint64_t (*matrix_checksum)(struct backend *be, const struct matrix *m);
    uint64_t (*lora_checksum)(struct backend *be, const struct lora *lora);
    /* Checksum of all else that decides the bits of results and the layout of pages: kernels, math
     * library, page size. */
    uint64_t (*arithmetic_checksum)(struct backend *be);

    /* Copies the source, but takes its matrix, even if it fails. */
    enum tutti_status (*lora_new)(struct backend *be, struct lora **out, const struct lora_source *source,
                                  struct tutti_error *err);
    void (*lora_free)(struct backend *be, struct lora *lora); /* NULL is allowed */
    size_t (*lora_bytes)(const struct backend *be, const struct lora *lora);
    /* Likewise for the embedding and source->table. */
    enum tutti_status (*embedding_new)(struct backend *be, struct embedding_update **out,
                                       const struct embedding_source *source, struct tutti_error *err);
    void (*embedding_free)(struct backend *be, struct embedding_update *update); /* NULL is allowed */
    size_t (*embedding_bytes)(const struct backend *be, const struct embedding_update *update);
    uint64_t (*embedding_checksum)(struct backend *be, const struct embedding_update *update);

    /* Allocates n_pages pages for every layer without a window, n_window_pages for every layer with
     * one; dtype as in kv_type.h. May return before the memory has physical pages
     * (backend/cpu/memory.h). */
    enum tutti_status (*kv_new)(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                                enum dtype dtype, struct tutti_error *err);
    void (*kv_free)(struct backend *be, struct kv_memory *kv);           /* NULL is allowed */
    size_t (*kv_page_bytes)(const struct backend *be, enum dtype dtype); /* all layers, and the row */
    size_t (*kv_window_bytes)(const struct backend *be,
                              enum dtype dtype); /* of those, layers with a window */
    void (*kv_copy_page)(struct backend *be, struct kv_memory *kv, const struct page_copy *copy);

    /* ---- copies of pages to and from the host, while steps compute ----
     * A copy is kv_page_bytes of all layers, as the backend stores them; the page has the same number in all layers.
     * The calls begin and end copies, and return at once: never between step_begin() and step_submit(), but a submitted
     * step may be running. Copies are numbered by the caller. They complete in the order in which they began. After a
     * failure of the device (check()) they count as complete, and nothing is copied. */
    /* Allocates n_bytes of host memory for these copies, which the device can access while it computes, and room on the
     * device for the copies 0 to n_copies - 1. Once for a kv_memory; kv_free() frees it. *out: aligned to 64 bytes.
     * TUTTI_E_MEMORY. */
    enum tutti_status (*kv_reserve_host)(struct backend *be, struct kv_memory *kv, size_t n_bytes,
                                         int n_copies, void **out, struct tutti_error *err);
    /* Begins a copy of the page to host, in that memory, which has it when kv_is_copied(). The page has what the
     * operations called before this one stored in it. Operations called after it may change the page at once. */
    void (*kv_read_begin)(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host);
    /* Begins a copy from host, in that memory, which must not change until kv_write_end(). No page changes yet. */
    void (*kv_write_begin)(struct backend *be, struct kv_memory *kv, int copy, const void *host);
    /* True: the copy is complete, and a read has ended. waits: waits until it is. */
    bool (*kv_is_copied)(struct backend *be, struct kv_memory *kv, int copy, bool waits);
    /* Ends a copy that kv_write_begin() began and kv_is_copied() found complete: operations called after this one find it
     * in the page; -1: in none, it is given up. host: as before; from now on it may change. */
    void (*kv_write_end)(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id,
                         const void *host);

    /* Between steps: the row of page page_ids[i] becomes x[rows[i]], of page_floats floats (struct
     * backend_options). rows, page_ids: host, [n] */
    void (*kv_store_rows)(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                          const int32_t *page_ids, int n);

    /* Room for the page tables of n_slots sequences, of max_pages each; without this call, a step makes room. Between
     * steps. NULL: the backend has no tables of its own. */
    enum tutti_status (*reserve_tables)(struct backend *be, int n_slots, int max_pages,
                                        struct tutti_error *err);

    /* Allocates scratch memory for steps of up to max_rows rows. Call it before the first step,
     * after the last matrix_new() and lora_new(). */
    enum tutti_status (*reserve)(struct backend *be, int max_rows, struct tutti_error *err);

    /* ---- one step; step and all it points to must not change until step_wait(), with feeds_tokens() until
     * step_submit() ---- */
    void (*step_begin)(struct backend *be, const struct step *step);
    /* x [n_rows][n_in of table] = rows token_ids of table, as float32. Row 0 of the table is id
     * first_id; rows of x whose id is not in the table become 0. */
    void (*embed)(struct backend *be, struct floats x, const struct matrix *table, int first_id);
    /* The same for a table of all ids, with updates[adapters[r]] for row r; -1 or NULL: none. */
    void (*embed_adapted)(struct backend *be, struct floats x, const struct matrix *table,
                          const struct embedding_update *const *updates, const int32_t *adapters);
    /* If add: first x += add. Then y[r] = x[r] * w / sqrt(mean(x[r]^2) + eps). [n_rows][n]; y must
     * not be x, but may be add. */
    void (*rmsnorm)(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                    int n_rows, int n, float eps);
    /* If add: first x += add. Then y[r] = (x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * w + b.
     * Shapes as rmsnorm. */
    void (*layernorm)(struct backend *be, struct floats y, struct floats x, struct floats add,
                      struct floats w, struct floats b, int n_rows, int n, float eps);
    /* As rmsnorm (b none) or layernorm, but row r has the weights updates[adapters[r]] instead of w and
     * b; -1 or NULL: w and b. */
    void (*norm_adapted)(struct backend *be, struct floats y, struct floats x, struct floats add,
                         struct floats w, struct floats b, int n_rows, int n, float eps,
                         const struct norm_update *const *updates, const int32_t *adapters);
    /* x = scale * base + add, all [n_rows][n] */
    void (*scale_add)(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                      int n_rows, int n);
    /* x = scale * x, [n_rows][n] */
    void (*scale)(struct backend *be, struct floats x, float scale, int n_rows, int n);
    /* x = cap tanh(x / cap), [n_rows][n] */
    void (*softcap)(struct backend *be, struct floats x, float cap, int n_rows, int n);
    /* x = act(x), [n_rows][n], in place */
    void (*activate)(struct backend *be, struct floats x, int n_rows, int n, enum activation act);
    /* x [end - begin][n], rows begin to end - 1 of the step. table: [more than any position][n] */
    void (*positions)(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                      enum positions_use use);
    /* y[r] = a[r] followed by b[r]: [n_rows][n_a], [n_rows][n_b] */
    void (*concat)(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                   int n_rows);
    /* y [n_rows][n_out] = x [n_rows][n_in] . W^T + bias */
    void (*linear)(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows);
    /* y [n_rows][n_out / 2] = act(gate) * up, of a matrix made with is_gate_up */
    void (*linear_glu)(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                       int n_rows, enum activation act);
    /* As linear() and linear_glu(), with the changes of loras[adapters[r]] for row r, for linear_glu
     * before the activation. Rows with adapter -1, or whose lora is NULL, have none. loras: host,
     * [adapters]; adapters: host, [n_rows]. A matrix that no row uses is not read. */
    void (*linear_adapted)(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                           int n_rows, const struct lora *const *loras, const int32_t *adapters);
    void (*linear_glu_adapted)(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                               int n_rows, enum activation act, const struct lora *const *loras,
                               const int32_t *adapters);
    /* y [n_rows][n_out of down] = the sum over the experts that row r uses (route_row()) of weight *
     * (act(gate) * up) . down^T, with gate and up of the expert; the sum is in the order of the
     * experts' ids. scores [n_rows][n_experts, and one more with gates_base]: the router's logits,
     * overwritten. The weights of an expert are read once for all rows that use it. Weights of unused
     * experts are not read. */
    void (*experts)(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                    struct floats scores, int n_rows);
    /* Bytes of experts' weights that experts() has read since the backend was opened. */
    uint64_t (*expert_bytes)(const struct backend *be);
    /* Rotates q and k of each row of qkv in place, and stores k and v in the row's page. q_norm,
     * k_norm: [head_dim] weights of an RMSNorm applied to each head of q, or k, before, or with
     * norms_all_heads to all heads as one row; NULL: none. */
    void (*rope_store)(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                       struct kv_memory *kv, int layer);
    /* After rope_store(): in the pages of rows at positions before prefixes[adapters[r]]->n, stores that
     * prefix's keys and values of the layer instead. -1 or NULL: no prefix. */
    void (*prefix_store)(struct backend *be, struct kv_memory *kv, int layer,
                         const struct kv_prefix *const *prefixes, const int32_t *adapters);
    /* For each head y [n_out / n_heads] = x [n_in] . W^T of its n_out / n_heads rows of m, which has no
     * bias. y and x must not overlap. */
    void (*linear_heads)(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                         int n_rows, const struct head_rows *heads);
    /* Of layers with latent attention, instead of rope_store(). queries [n_rows][n_heads][head_dim] have
     * their first n_latent elements already: the others become the last rotary_dim elements of the heads
     * of q [n_rows][n_heads][q_dim], rotated. kv [n_rows][head_dim]: an RMSNorm with the weights norm
     * [n_latent] is applied to its first n_latent elements, the others are rotated, and the row is stored
     * in its page. */
    void (*latent_store)(struct backend *be, struct floats queries, struct floats q, int q_dim,
                         struct floats kv, struct floats norm, struct kv_memory *memory, int layer);
    /* y [n_rows][n_heads * head_dim] = attention of each row over the positions of its sequence
     * that it may attend to. With latent attention qkv are the queries only, and y is
     * [n_rows][n_heads * n_latent]. sinks [n_heads]: a score of no position, whose exponential is
     * added to the softmax's denominator (Xiao et al., 2023; OpenAI, 2025); NULL: none. */
    void (*attention)(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                      const struct kv_memory *kv, int layer);
    /* y[r] = x[rows[r]]; where rows[r] is -1, the row of the page of the position before that of r, or 0
     * at position 0. [n_rows][n]; rows: host */
    void (*previous_rows)(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                          const struct kv_memory *kv, int n);
    /* y [n_outputs][n] = x[output_rows[i]] + add[output_rows[i]] (add may be none) */
    void (*gather)(struct backend *be, struct floats y, struct floats x, struct floats add, int n);
    /* host [n_floats] = src, complete when step_wait() returns; between steps, at once */
    void (*download)(struct backend *be, float *host, struct floats src, size_t n_floats);
    /* In a step: host [n_floats] = src as the operations so far leave it. Waits for them. Between steps: at once. */
    void (*fetch)(struct backend *be, float *host, struct floats src, size_t n_floats);
    /* ---- collectives of the ranks of options.cluster, if there is one. False: a rank was lost, so
     * the results of this step are invalid ---- */
    /* All-reduce: x [n] = the sum of all ranks' x, in the order of the ranks. */
    bool (*reduce)(struct backend *be, struct floats x, size_t n);
    /* Reduce-scatter by rows: each rank's own rows of x [n_rows][n] become the sum. Then
     * all-gather: every rank gets the own rows of all. cluster/cluster.h says what may be done in
     * between. */
    bool (*reduce_rows)(struct backend *be, struct floats x, int n_rows, int n);
    bool (*all_gather_rows)(struct backend *be, struct floats x, int n_rows, int n);
    /* Gather on rank 0: whole [n_rows][begins[ranks]] gets all ranks' parts as columns; part of rank
     * r: [n_rows][begins[r + 1] - begins[r]]. On other ranks whole is none. */
    bool (*collect)(struct backend *be, struct floats whole, struct floats part, int n_rows,
                    const int *begins);

    /* Hands the operations since step_begin() to the device. It may return before they are computed:
     * between step_submit() and step_wait() the caller does work that needs no result. */
    void (*step_submit)(struct backend *be);
    /* Waits until they are computed. */
    void (*step_wait)(struct backend *be);
    /* Whether the step that was submitted last is computed, without waiting. With feeds_tokens() only. */
    bool (*step_is_done)(struct backend *be);

    /* The first failure of the device since the backend was opened, such as a card that fell off the bus; TUTTI_OK: none.
     * After a failure results are invalid, and every operation returns without doing anything. NULL: the device
     * cannot fail. From any thread. */
    enum tutti_status (*check)(const struct backend *be, struct tutti_error *err);

    /* ---- sampling, between steps ---- */
    /* Allocates what sample() needs for n_vocab usable ids. */
    enum tutti_status (*reserve_sampling)(struct backend *be, int n_vocab, struct tutti_error *err);
    /* Processes the n inputs (sample.h), each with its rows of logits [rows][n_vocab], and sets their
     * results. Logits stay in the backend's memory: only results are copied to the host. */
    void (*sample)(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n);
    /* Whether steps may have token_sources, known after reserve(): with several ranks their devices must pass tokens on
     * without the host. NULL: no. */
    bool (*feeds_tokens)(const struct backend *be);
    /* Submits sampling of n inputs after the step that was submitted last, which need not be computed yet. The next step
     * may be submitted before sample_wait(), with these inputs' tokens in its rows (struct step's token_sources), if the
     * step in flight has no results for the host (n_hidden). What inputs point to must stay until sample_wait(). False:
     * an input cannot be sampled without the host (SAMPLE_BEST, draft tokens, and what the device lacks); nothing was
     * done. With feeds_tokens() only. */
    bool (*sample_submit)(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs,
                          int n);
    /* Sets the results of the last sample_submit(), and does not wait for what was submitted after it. n_out is 0 where
     * only the host can sample the row: then the next step was fed with a wrong token. */
    void (*sample_wait)(struct backend *be);

    /* Between steps: one sample of the device's limits, which takes some milliseconds. NULL: they are those of the host's
     * memory and processor (kernels/measure.h). */
    void (*measure)(struct backend *be, struct backend_limits *out);

    /* Binds the calling thread, which submits the steps, to the cores that the backend chooses. NULL: no binding. */
    void (*bind_caller)(struct backend *be);

    /* Between steps: runs host work on the backend's compute threads. NULL: it has no
     * threads for that. */
    void (*run)(struct backend *be, team_fn *fn, void *arg);

    /* Between steps: from now on the backend computes on the threads of other, which must outlive it;
     * NULL: on its own threads again. For two backends that compute alternately: otherwise the
     * waiting threads of one would take cores from the other. False: their threads differ in kind or
     * number, and each backend keeps its own. The operation may be NULL. */
    bool (*share_threads)(struct backend *be, struct backend *other);
};

struct backend {
    const struct backend_ops *ops;
    const struct backend_caps *caps;
};

struct backend_options {
    int n_threads; /* 0: one for each core */
    bool pin_threads;
    const char *numa; /* one of NUMA_MODES; NULL: the first */
    const char *cpu;  /* NULL: best; a name of cpu_find() */
    int n_layers, n_kinds;
    const struct attention_shape *attention; /* [n_kinds], copied */
    const uint8_t *kinds;    /* [n_layers], copied: of each layer, an index of attention; NULL: 0 for all */
    int page_floats;         /* each page also has a row of so many floats; 0: none */
    struct cluster *cluster; /* borrowed; NULL: a single process */
    /* Which weights a card has in its memory, copied; the CPU computes with the others. NULL: the device has all. */
    const struct placement *placement;
};

/* The devices, for the flags of every command; ends with NULL. The first is the default. "auto" is the card if there
 * is one, else the CPU. A device may be followed by a colon and a number: "cuda:1". */
extern const char *const DEVICE_NAMES[];

/* "auto", "off"; ends with NULL. */
extern const char *const NUMA_MODES[];

/* device: one of DEVICE_NAMES; NULL: the first. On success *out is the caller's, for
 * (*out)->ops->free(). TUTTI_E_ARGUMENT with param device: there is no device of this name. TUTTI_E_UNSUPPORTED with
 * param device: this machine, or this build, has none. */
MUST_CHECK enum tutti_status backend_open(struct backend **out, const char *device,
                                          const struct backend_options *options, struct tutti_error *err);

/* Checks the options' kinds of attention, for backends. TUTTI_E_UNSUPPORTED: a shape that no kernel has. */
MUST_CHECK enum tutti_status backend_check_attention(const struct backend_options *options,
                                                     struct tutti_error *err);

/* Describes the devices other than the CPU that this machine has, at most max. *n: their number. Opens each for a moment to read its
 * free memory. TUTTI_E_UNSUPPORTED with param device: there is no driver, or no device. */
MUST_CHECK enum tutti_status backend_devices(struct tutti_device *out, int max, int *n,
                                             struct tutti_error *err);

/* What a device can do, for plans that open no backend, which need not be there; NULL: not found. */
const struct backend_caps *backend_caps_of(const char *device);

/* Whether the device is a card: "cuda", with or without a number. NULL, or an unknown name: false. */
bool backend_is_card(const char *device);

#endif
