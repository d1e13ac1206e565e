/* What a transformer needs of a machine: memory, and about a dozen operations over the rows of a step.
 *
 * Memory that a backend hands out (float *, struct matrix, struct kv_memory) may lie on another device: only its own
 * operations look inside, except where "host" is said. Operations run in the order of the calls; on return of
 * step_end() their results are there. One thread calls them.
 *
 * Contract of every operation: the bits of an output row depend on that row's inputs alone, never on n_rows, on the
 * other rows, or on the number of threads.
 *
 * No operation of a step allocates. */
#ifndef TUTTI_BACKEND_H
#define TUTTI_BACKEND_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/system/team.h"

enum { KV_PAGE_TOKENS = 16 }; /* one vector register of scores per page and head */

struct cluster;   /* cluster/cluster.h */
struct matrix;    /* a linear layer's weights [n_out][n_in], packed for the kernels, and its bias */
struct kv_memory; /* keys and values of all pages and layers */

/* Rows of one stored matrix: n_rows rows of n_in elements, row-major, as GGUF or safetensors store them. */
struct matrix_part {
    const void *data; /* host; no alignment is promised */
    enum dtype dtype; /* a weight type */
    int n_rows;
    size_t stride; /* bytes from one row to the next, where those are wider than n_in; 0: they are not */
};

struct matrix_source {
    const char *name; /* for messages */
    const struct matrix_part *parts;
    int n_parts;
    int n_in;
    enum dtype type; /* type to run; n_in must be a multiple of its block */
    bool is_gate_up; /* two halves of n_out / 2 rows, gate then up, for linear_glu() alone */
    /* Host; NULL: none; else [n_parts], each [n_rows of the part] or NULL for zeros. */
    const float *const *biases;
};

/* The low-rank updates that one adapter makes to one matrix: to each run of rows its own, W += scale * B . A.
 * Hu et al., 2021 (LoRA). */
struct lora;

struct lora_part {
    int out_begin, n_out; /* rows of the matrix, for linear_glu() gate rows first; parts do not overlap */
    int rank;             /* 1..LORA_MAX_RANK */
    float scale;
    const float *a; /* host, [rank][n_in] */
    const float *b; /* host, [n_out][rank] */
};
enum { LORA_MAX_RANK = 4096 };

enum rope_kind {
    ROPE_NONE,        /* positions come from elsewhere: learned, or ALiBi */
    ROPE_INTERLEAVED, /* pairs (2j, 2j+1) */
    ROPE_HALF,        /* pairs (j, j + rotary_dim/2); also called NEOX */
    ROPE_2D,          /* dimensions 0..rotary_dim/2-1 turn with rope_positions, the next rotary_dim/2 with
                         block_positions, each as ROPE_HALF. Du et al., 2022 (GLM), section 2.2 */
};
enum activation {
    ACT_SILU,         /* with a gate */
    ACT_GELU_TANH,    /* without one: GELU's approximation by tanh */
    ACT_GELU_SIGMOID, /* without one: x * sigmoid(1.702 x) */
};

/* The shape of attention, the same in every layer. A qkv row: q [n_heads][head_dim], k and v [n_kv_heads][head_dim],
 * one behind the other. Query head h reads KV head h / (n_heads / n_kv_heads). */
struct attention_shape {
    int n_layers, n_heads, n_kv_heads, head_dim;
    int rotary_dim; /* even (ROPE_2D: a multiple of 4), <= head_dim: dimensions 0..rotary_dim-1 of a head turn */
    enum rope_kind rope;
    /* Host, [rotary_dim / 2], ROPE_2D: [rotary_dim / 4]: angle = (float)position * freq, in float32. */
    const float *rope_freqs;
    float rope_scale; /* cos and sin are multiplied by it; 1 for most */
    float scale;      /* of q . k; usually 1 / sqrt(head_dim) */
    int window;       /* a row sees positions from its own - window + 1 on; 0: from 0 on */
    /* Host, [n_heads]; a score gets slope * (key's position - row's position) added. NULL: none. Press et al., 2021. */
    const float *alibi_slopes;
    float qk_norm_eps; /* of the norms that rope_store() may be given */
};

/* The rows of one step, in host memory. Row r is token token_ids[r] at position positions[r] of sequence seqs[r];
 * rows of one sequence stand in order of position, and the KV of all earlier positions is in its pages (or earlier
 * in this step).
 *
 * A row sees the positions up to its own, and those before prefix_lens[s] of its sequence too: a prefix is read in both
 * directions. What a layer makes of a position of the prefix then depends on all of the prefix, so a prefix is never
 * cut: its positions 0..prefix_len-1 are all rows of one step, and pages that hold only a part of a prefix (or the same
 * tokens as part of a longer one) must not be reused. Behind the prefix, rows may come in any chunks. */
struct step {
    int n_rows, n_seqs, n_outputs;
    int n_hidden; /* of the outputs, the last ones: their normed hidden states are wanted, not their logits */
    const int32_t *token_ids;          /* [n_rows] */
    const int32_t *positions;          /* [n_rows] */
    const int32_t *seqs;               /* [n_rows], 0..n_seqs-1 */
    const int32_t *const *page_tables; /* [n_seqs]: page_tables[s][p / KV_PAGE_TOKENS] holds position p */
    const int32_t *output_rows;        /* [n_outputs]: rows whose logits are wanted, then those of n_hidden */
    float *hidden;                     /* host, [n_hidden][d_model]: is filled; NULL where there are none */
    const int32_t *prefix_lens;        /* [n_seqs]; NULL: 0 for all */
    const int32_t *rope_positions;     /* [n_rows]: what rope turns by; NULL: positions */
    const int32_t *block_positions;    /* [n_rows]: the second ones of ROPE_2D; NULL: 0 for all */
    const int32_t *adapters;           /* [n_seqs]: the model's adapter of each; -1, or NULL for all: none */
};

struct backend;

struct backend_ops {
    const char *name;
    void (*free)(struct backend *be);

    /* Zeroed, aligned to 64 bytes. NULL: no memory. */
    float *(*alloc)(struct backend *be, size_t n_floats);
    void (*dealloc)(struct backend *be, float *memory); /* NULL is allowed */
    /* The same for what reduce() and its kin work on: all ranks call them together, in the same order. */
    float *(*alloc_shared)(struct backend *be, size_t n_floats);
    void (*dealloc_shared)(struct backend *be, float *memory);
    /* Copies host floats to the backend's memory. */
    void (*upload)(struct backend *be, float *dst, const float *src, size_t n_floats);

    /* Packs (and converts to source->type where the stored type differs, through float32). TUTTI_E_UNSUPPORTED: n_in
     * does not fit the type's block. */
    enum tutti_status (*matrix_new)(struct backend *be, struct matrix **out,
                                    const struct matrix_source *source, struct tutti_error *err);
    void (*matrix_free)(struct backend *be, struct matrix *m); /* NULL is allowed */
    size_t (*matrix_bytes)(const struct matrix *m);

    /* Sums that tell apart what gives other bits (base/checksum.h): of n_floats of alloc()ed memory, of a matrix with its bias,
     * of a lora. They depend on what was uploaded, not on addresses or threads. */
    uint64_t (*checksum)(struct backend *be, const float *memory, size_t n_floats);
    uint64_t (*matrix_checksum)(struct backend *be, const struct matrix *m);
    uint64_t (*lora_checksum)(struct backend *be, const struct lora *lora);

    /* Copies the parts. n_in, n_out: of the matrix. type: F32, or F16, which halves what a step has to read; each part's
     * factors are then scaled by powers of two, so that none is too large or too small for it. */
    enum tutti_status (*lora_new)(struct backend *be, struct lora **out, const struct lora_part *parts,
                                  int n_parts, int n_in, int n_out, enum dtype type, struct tutti_error *err);
    void (*lora_free)(struct backend *be, struct lora *lora); /* NULL is allowed */
    size_t (*lora_bytes)(const struct lora *lora);

    /* n_pages pages for every layer; dtype as in kv_type.h. Memory is reserved here; the system backs it soon. */
    enum tutti_status (*kv_new)(struct backend *be, struct kv_memory **out, int n_pages, enum dtype dtype,
                                struct tutti_error *err);
    void (*kv_free)(struct backend *be, struct kv_memory *kv);           /* NULL is allowed */
    size_t (*kv_page_bytes)(const struct backend *be, enum dtype dtype); /* all layers, keys and values */
    void (*kv_copy_page)(struct backend *be, struct kv_memory *kv, int32_t dst, int32_t src);
    /* Between steps: what a page holds in all layers, kv_page_bytes of it, as the backend stores it, to host and back. */
    void (*kv_read_page)(struct backend *be, const struct kv_memory *kv, int32_t page_id, void *host);
    void (*kv_write_page)(struct backend *be, struct kv_memory *kv, int32_t page_id, const void *host);

    /* Sizes scratch memory for steps of up to max_rows rows; before the first step, after the last matrix_new() and
     * lora_new(). */
    enum tutti_status (*reserve)(struct backend *be, int max_rows, struct tutti_error *err);

    /* ---- one step; step and all it points to stay as they are until step_end() ---- */
    void (*step_begin)(struct backend *be, const struct step *step);
    /* x [n_rows][n_in of table] = rows token_ids of table, as float32. The table holds the rows of ids from first_id on; rows
     * of x with other ids become 0. */
    void (*embed)(struct backend *be, float *x, const struct matrix *table, int first_id);
    /* if add: x += add first. Then y[r] = x[r] * w / sqrt(mean(x[r]^2) + eps). [n_rows][n]; y differs from x, but may be add. */
    void (*rmsnorm)(struct backend *be, float *y, float *x, const float *add, const float *w, int n_rows,
                    int n, float eps);
    /* if add: x += add first. Then y[r] = (x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * w + b. As rmsnorm. */
    void (*layernorm)(struct backend *be, float *y, float *x, const float *add, const float *w,
                      const float *b, int n_rows, int n, float eps);
    /* x = scale * base + add, all [n_rows][n] */
    void (*scale_add)(struct backend *be, float *x, const float *base, float scale, const float *add,
                      int n_rows, int n);
    /* x = act(x), [n_rows][n], in place */
    void (*activate)(struct backend *be, float *x, int n_rows, int n, enum activation act);
    /* x [end - begin][n], rows begin to end - 1 of the step: x[r] = table[positions[r]], or that is added to it. table: [more
     * than any position][n] */
    void (*positions)(struct backend *be, float *x, const float *table, int begin, int end, int n, bool adds);
    /* y[r] = a[r] and behind it b[r]: [n_rows][n_a], [n_rows][n_b] */
    void (*concat)(struct backend *be, float *y, const float *a, int n_a, const float *b, int n_b,
                   int n_rows);
    /* y [n_rows][n_out] = x [n_rows][n_in] . W^T + bias */
    void (*linear)(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows);
    /* y [n_rows][n_out / 2] = act(gate) * up, of a matrix made with is_gate_up */
    void (*linear_glu)(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows,
                       enum activation act);
    /* As linear() and linear_glu(), and what loras[adapters[r]] adds to row r: to gate and up before the activation. Rows with
     * adapter -1, or whose lora is NULL, get nothing added. loras: host, [adapters]; adapters: host, [n_rows]. */
    void (*linear_adapted)(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows,
                           const struct lora *const *loras, const int32_t *adapters);
    void (*linear_glu_adapted)(struct backend *be, float *y, const struct matrix *m, const float *x,
                               int n_rows, enum activation act, const struct lora *const *loras,
                               const int32_t *adapters);
    /* Rotates q and k of each row of qkv in place, and puts k and v into the row's page. q_norm, k_norm: [head_dim]
     * weights of an RMSNorm of each head of q, of k, before that; NULL: none. */
    void (*rope_store)(struct backend *be, float *qkv, const float *q_norm, const float *k_norm,
                       struct kv_memory *kv, int layer);
    /* y [n_rows][n_heads * head_dim] = attention of each row over the positions of its sequence that it sees */
    void (*attention)(struct backend *be, float *y, const float *qkv, const struct kv_memory *kv, int layer);
    /* y [n_outputs][n] = x[output_rows[i]] + add[output_rows[i]] (add may be NULL) */
    void (*gather)(struct backend *be, float *y, const float *x, const float *add, int n);
    /* host [n_floats] = src, there on return of step_end() */
    void (*download)(struct backend *be, float *host, const float *src, size_t n_floats);
    /* ---- across the ranks of options.cluster, where there is one. False: a rank was lost, so what this step computes is
     * of no use ---- */
    /* x [n] = the sum of all ranks' x, in the order of the ranks */
    bool (*reduce)(struct backend *be, float *x, size_t n);
    /* The same in two halves, x [n_rows][n]: each rank has its own rows of the sum, all ranks have the own rows of all. What may be
     * done in between: cluster/cluster.h. */
    bool (*reduce_rows)(struct backend *be, float *x, int n_rows, int n);
    bool (*share_rows)(struct backend *be, float *x, int n_rows, int n);
    /* On rank 0 host [n_rows][begins[ranks]] gets all ranks' parts side by side; part of rank r: [n_rows][begins[r + 1] - begins[r]].
     * host is NULL elsewhere. */
    bool (*collect)(struct backend *be, float *host, const float *part, int n_rows, const int *begins);

    /* Waits for all of it; copies n_floats of result to host. result may be NULL. */
    void (*step_end)(struct backend *be, const float *result, float *host, size_t n_floats);

    /* Between steps: runs host work (sampling) on the backend's compute threads. NULL: there are none to lend. */
    void (*run)(struct backend *be, team_fn *fn, void *arg);

    /* Between steps: from now on the threads of another backend, which lives on until this is undone, compute; NULL: be's own again. For
     * two that work in turn: threads that wait for work of one would take cores from those of the other. False: they are not of one
     * kind and number, and each keeps its own. The operation may be NULL. */
    bool (*share_threads)(struct backend *be, struct backend *other);
};

struct backend {
    const struct backend_ops *ops;
};

struct backend_options {
    int n_threads; /* 0: one for each core */
    bool pin_threads;
    const char *cpu; /* NULL: best; "ref", "avx2", "avx512" */
    struct attention_shape attention;
    struct cluster *cluster; /* borrowed; NULL: this process is alone */
};

/* The CPU backend. On success *out is the caller's, for (*out)->ops->free(). */
MUST_CHECK enum tutti_status backend_cpu_new(struct backend **out, const struct backend_options *options,
                                             struct tutti_error *err);

#endif
