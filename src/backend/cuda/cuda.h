/* The CUDA backend's internal types and functions, shared by its files.
 *
 * Memory of the card is addressed by ordinary pointers that the host never follows (a 64-bit address on both sides).
 * An operation of a step adds launches to a list; step_submit() hands the list to the card: as one graph if the same
 * list was seen before, else launch by launch. The list is compared byte by byte, so a graph is only used where it does
 * exactly what the operations requested. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_H
#define TUTTI_BACKEND_CUDA_CUDA_H

#include "backend/cuda/cuda_open.h"
#include "base/system/team.h"
#include "kernels/cuda/args.h"

#include <assert.h>
#include <stdbool.h>

enum { CUDA_PAGE_TOKENS = 16 };

/* CUDA_KERNEL_<name> of each kernel of kernels/cuda/list.h. */
enum cuda_kernel {
#define CUDA_FILE(file)
#define CUDA_KERNEL(name) CUDA_KERNEL_##name,
#include "kernels/cuda/list.h"
#undef CUDA_FILE
#undef CUDA_KERNEL
    N_CUDA_KERNELS
};

/* Blocks of a launch, threads of a block (those of KERNEL()), bytes of dynamic shared memory. */
struct cuda_grid {
    int x, y, z, n_threads;
    size_t shared_bytes;
};

struct cuda_adapters;   /* cuda_adapters.c */
struct cuda_loras;      /* cuda_lora.c */
struct cuda_embeddings; /* cuda_embedding.c */
struct cuda_experts;    /* cuda_experts.c */
struct cuda_attention;  /* cuda_attention.c */

struct buffer {
    float *data; /* on the card */
    float *host; /* of shared memory: what the other ranks of this machine read; else NULL */
    size_t n_floats;
};

/* One kind of attention; arrays on the card. */
struct cuda_kind {
    struct attention_shape shape; /* rope_freqs and alibi_slopes: on the card */
    float *cos_sin; /* [max_rows][rotary_dim]: cos, then sin, of each row's position; ROPE_2D: of both */
};

struct cuda_driver;
struct cuda_state;
struct cuda_linear;

struct cuda_backend {
    struct backend backend; /* first: the two are cast to each other */
    const struct cuda_driver *driver;
    struct cuda_state *state; /* of cuda.c: context, stream, modules, list of launches, graphs */
    struct team *team;        /* host threads: they pack matrices */
    int level;                /* of the kernels: 75, 80 or 90 */
    bool overlaps;  /* a kernel begins before the one before it ends (kernels/cuda/device.h, grid_wait()) */
    int capability; /* of the card: 10 * major + minor */
    int n_sms;      /* multiprocessors */
    size_t shared_bytes;  /* of a block, at most, dynamic */
    uint64_t n_bytes;     /* the card's memory */
    void *measure_buffer; /* of cuda_measure(); NULL: none yet */
    int n_layers, n_kinds, page_floats;
    struct cuda_kind *kinds;    /* [n_kinds] */
    uint8_t *layer_kinds;       /* [n_layers] */
    int max_rows;               /* as reserved */
    struct cuda_linear *linear; /* of cuda_linear.c: scratch memory of products; NULL: there is no matrix */

    uint64_t *checksum_word;        /* on the card; NULL: none yet */
    struct cuda_adapters *adapters; /* NULL: not reserved */
    struct cuda_loras *loras;       /* NULL: no adapter was loaded, and so on */
    struct cuda_embeddings *embeddings;
    struct cuda_experts *experts;
    struct cluster *cluster;          /* NULL: a single process */
    struct cuda_nccl *nccl;           /* NULL: collectives go through the host */
    bool has_met;                     /* the ranks have tried to use NCCL */
    float *staging;                   /* of collect(), pinned */
    struct cuda_sampling *sampling;   /* of cuda_sample.c; NULL before reserve_sampling() */
    struct cuda_attention *attention; /* NULL: not reserved */

    const struct step *step; /* the caller's */
    struct step_rows rows;   /* of the running step, on the card */
    int n_padded_rows;       /* of the running step */
};

static inline struct cuda_backend *cuda_of(struct backend *be)
{
    return (struct cuda_backend *)be;
}

static inline struct cuda_kind *cuda_kind_of(const struct cuda_backend *cuda, int layer)
{
    return &cuda->kinds[cuda->layer_kinds[layer]];
}

/* The card's address of a handle. n: floats that are used, which must be in the buffer. NULL: none. */
static inline float *cuda_floats(struct floats floats, size_t n)
{
    if (!floats.buffer)
        return NULL;
    assert(floats.offset <= floats.buffer->n_floats && n <= floats.buffer->n_floats - floats.offset);
    return floats.buffer->data + floats.offset;
}

/* The rows that are computed for n rows of an operation: the bucket, at most max_rows. Buffers of rows have max_rows. */
int cuda_padded_rows(const struct cuda_backend *cuda, int n);

/* Loads a kernel, or all kernels of its file, which compiles them unless the driver has done so before: between steps,
 * before the first launch. False: a kept failure. */
enum cuda_need { CUDA_NEED_FILE, CUDA_NEED_KERNEL };
bool cuda_need(struct cuda_backend *cuda, enum cuda_kernel kernel, enum cuda_need what);

/* Adds a launch to the running step; between steps: launches at once and does not wait. args is copied; its bytes
 * decide whether a step is like an earlier one, so padding must be zero (initialize with { 0 }). A failure is kept
 * (cuda_check()). */
void cuda_launch(struct cuda_backend *cuda, enum cuda_kernel kernel, struct cuda_grid grid, const void *args,
                 size_t n_bytes);

/* The arguments of the step's last launch, if it is the last thing that was added: they may be changed before the next is.
 * So an operation can let the one before do what it needs. NULL: there is none. */
void *cuda_last_launch(struct cuda_backend *cuda, enum cuda_kernel *kernel, struct cuda_grid *grid);

/* Before work is handed to the card, and after the last of it (cuda_busy.c): a begin after a begin does nothing. */
void cuda_busy_begin(struct cuda_backend *cuda);
void cuda_busy_end(struct cuda_backend *cuda);

/* Copies data of the running step, such as the adapter of each row, to the card before the step's first launch. It is valid
 * until step_wait(). A step's calls get the same addresses as those of any step of as many padded rows with the same
 * calls. room_bytes: at least n_bytes, and the same in all these steps; the rest is not defined. NULL: no room, which is
 * a kept failure. */
void *cuda_step_data(struct cuda_backend *cuda, const void *host, size_t n_bytes, size_t room_bytes);
/* In the order of the launches, in a step or between steps. */
void cuda_fill_zero(struct cuda_backend *cuda, void *to, size_t n_bytes);

/* ---- memory of the card, between steps. A failure of the copies is kept ---- */
void *cuda_memory_new(struct cuda_backend *cuda,
                      size_t n_bytes); /* aligned to 256 bytes, zeroed; NULL: no memory */
void cuda_memory_free(struct cuda_backend *cuda, void *memory); /* NULL is allowed */
void cuda_copy_in(struct cuda_backend *cuda, void *to, const void *host, size_t n_bytes);
void cuda_copy_out(struct cuda_backend *cuda, void *host, const void *from,
                   size_t n_bytes); /* waits for what was launched */
void cuda_copy_within(struct cuda_backend *cuda, void *to, const void *from,
                      size_t n_bytes); /* in the order of launches */

/* To pinned memory, in the order of the launches: it is there when cuda_wait_samples() returns. */
void cuda_copy_out_later(struct cuda_backend *cuda, void *pinned, const void *from, size_t n_bytes);
/* Marks the end of what was launched so far, and waits for the last mark; launches after it go on. */
void cuda_mark_samples(struct cuda_backend *cuda);
void cuda_wait_samples(struct cuda_backend *cuda);

/* Host memory that the card copies from and to at full speed. NULL: no memory. */
void *cuda_pinned_new(struct cuda_backend *cuda, size_t n_bytes);
void cuda_pinned_free(struct cuda_backend *cuda, void *memory); /* NULL is allowed */

/* The first failure of the driver since the backend was opened, as a status with its text; TUTTI_OK: none. */
enum tutti_status cuda_check(const struct cuda_backend *cuda, struct tutti_error *err);

extern const struct backend_ops CUDA_OPS; /* cuda_ops.c */

/* Scratch memory of the operations, for steps of up to max_rows rows; cuda_ops.c has the list of parts. False: the card is
 * out of memory. */
bool cuda_parts_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_parts_release(struct cuda_backend *cuda);

/* ---- matrices and linear layers: cuda_matrix.c, cuda_linear.c; what other parts use: cuda_matrix.h ---- */
uint64_t cuda_packed_bytes(enum dtype type, int n_in, int64_t n_out, bool is_gate_up);
enum tutti_status cuda_matrix_new(struct backend *be, struct matrix **out, const struct matrix_source *source,
                                  struct tutti_error *err);
void cuda_matrix_free(struct backend *be, struct matrix *m);
size_t cuda_matrix_bytes(const struct matrix *m);
enum dtype cuda_matrix_type(const struct matrix *m);
float cuda_matrix_read(struct backend *be, float *host, const struct matrix *m, int row);
bool cuda_matrix_lengths(struct backend *be, float *host, const struct matrix *m,
                         const struct lora_part *part);
uint64_t cuda_matrix_checksum(struct backend *be, const struct matrix *m);
bool cuda_linear_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_linear_release(struct cuda_backend *cuda);
void cuda_embed(struct backend *be, struct floats x, const struct matrix *table, int first_id);
void cuda_linear(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows);
void cuda_linear_glu(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows,
                     enum activation act);
void cuda_linear_heads(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                       int n_rows, const struct head_rows *heads);

/* ---- keys and values, attention: cuda_kv.c, cuda_kv_copies.c, cuda_attention.c ---- */

/* When a step begins: forgets how the work of the step before was divided. */
void cuda_attention_begin(struct cuda_backend *cuda);
bool cuda_attention_reserve(struct cuda_backend *cuda, int max_rows);
void cuda_attention_release(struct cuda_backend *cuda);

enum tutti_status cuda_kv_new(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                              enum dtype dtype, struct tutti_error *err);
void cuda_kv_free(struct backend *be, struct kv_memory *kv);
size_t cuda_kv_page_bytes(const struct backend *be, enum dtype dtype);
size_t cuda_kv_window_bytes(const struct backend *be, enum dtype dtype);
void cuda_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy);
enum tutti_status cuda_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes, int n_copies,
                                       void **out, struct tutti_error *err);
void cuda_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host);
void cuda_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host);
bool cuda_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits);
void cuda_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, const void *host);
void cuda_kv_store_rows(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                        const int32_t *page_ids, int n);
void cuda_previous_rows(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                        const struct kv_memory *kv, int n);
void cuda_rope_store(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                     struct kv_memory *kv, int layer);
void cuda_prefix_store(struct backend *be, struct kv_memory *kv, int layer,
                       const struct kv_prefix *const *prefixes, const int32_t *adapters);
void cuda_latent_store(struct backend *be, struct floats queries, struct floats q, int q_dim,
                       struct floats kv, struct floats norm, struct kv_memory *memory, int layer);
void cuda_attention(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                    const struct kv_memory *kv, int layer);

/* ---- rows, sampling, checksums: cuda_rows.c, cuda_sample.c, cuda_checksum.c ---- */

/* After the rows of a step are known: fills cos_sin of every kind. */
void cuda_rope_tables(struct cuda_backend *cuda);
/* If the last operation was a norm that gives y [n_rows][n]: it also gives the rows as linear layers take them (norm_args of
 * rows_args.h). half: [n_rows][half_stride], or pieces of piece_rows rows. False: it was another. */
bool cuda_norm_halves(struct cuda_backend *cuda, const float *y, int n_rows, int n, uint16_t *half,
                      int half_stride, int piece_rows, float *scales);
/* Between steps: a checksum of the card's memory. bytes: a multiple of 8. */
uint64_t cuda_checksum_bytes(struct cuda_backend *cuda, const void *bytes, size_t n_bytes);
void cuda_checksum_release(struct cuda_backend *cuda);

void cuda_rmsnorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                  int n_rows, int n, float eps);
void cuda_layernorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                    struct floats b, int n_rows, int n, float eps);
void cuda_norm_adapted(struct backend *be, struct floats y, struct floats x, struct floats add,
                       struct floats w, struct floats b, int n_rows, int n, float eps,
                       const struct norm_update *const *updates, const int32_t *adapters);
void cuda_scale_add(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                    int n_rows, int n);
void cuda_scale(struct backend *be, struct floats x, float scale, int n_rows, int n);
void cuda_softcap(struct backend *be, struct floats x, float cap, int n_rows, int n);
void cuda_activate(struct backend *be, struct floats x, int n_rows, int n, enum activation act);
void cuda_positions(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                    enum positions_use use);
void cuda_concat(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                 int n_rows);
void cuda_gather(struct backend *be, struct floats y, struct floats x, struct floats add, int n);
uint64_t cuda_checksum(struct backend *be, struct floats floats, size_t n_floats);
uint64_t cuda_arithmetic_checksum(struct backend *be);
enum tutti_status cuda_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err);
void cuda_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n);
bool cuda_sample_submit(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs,
                        int n);
void cuda_sample_wait(struct backend *be);
/* The results of the last sampling, on the card, by input of cuda_sample_submit(). NULL: sampling is not reserved. */
const struct draw_result *cuda_sample_results(const struct cuda_backend *cuda);
void cuda_sampling_release(struct cuda_backend *cuda);

/* ---- limits: cuda_measure.c ---- */
void cuda_measure(struct backend *be, struct backend_limits *out);
void cuda_measure_release(struct cuda_backend *cuda);

#endif
