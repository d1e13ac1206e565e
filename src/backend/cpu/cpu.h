/* The CPU backend's internal types and functions, shared by its files. */
#ifndef TUTTI_BACKEND_CPU_CPU_H
#define TUTTI_BACKEND_CPU_CPU_H

#include "backend/cpu/cpu_open.h"
#include "base/system/nodes.h"
#include "base/system/team.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <stdatomic.h>

enum {
    LINEAR_PIECE = 8,                      /* panels that a thread takes at a time, at most */
    LINEAR_COLUMNS = LINEAR_PIECE * LANES, /* of gate, and as many of up */
    ORDERED_COLUMNS = 4 * BLOCK,           /* input columns that are gathered at a time */
};

enum { CPU_PAGE_TOKENS = ATTENTION_KEYS }; /* one vector register of scores per page and head */

struct buffer {
    float *data; /* aligned to 64 bytes */
    size_t n_floats;
    float *copies[NODES_MAX]; /* of constants, for each node; the first is data. NULL: no copies */
};

/* The only place where a handle becomes a pointer. n: floats that are used, which must be in the
 * buffer. NULL: none. */
static inline float *cpu_floats(struct floats floats, size_t n)
{
    if (!floats.buffer)
        return NULL;
    assert(floats.offset <= floats.buffer->n_floats && n <= floats.buffer->n_floats - floats.offset);
    return floats.buffer->data + floats.offset;
}

static inline float *cpu_rows(struct floats floats, int n_rows, int n)
{
    return cpu_floats(floats, (size_t)n_rows * (size_t)n);
}

/* The copy of constants for the threads of a node. */
static inline const float *cpu_constants(struct floats floats, size_t n, int node)
{
    const float *data = cpu_floats(floats, n);
    const float *copy = data ? floats.buffer->copies[node] : NULL;
    return copy ? copy + floats.offset : data;
}

/* The panels (kernels/pack.h) of one matrix. With is_gate_up, panel i holds rows 16i.. of gate in
 * one half and of up in the other, so that the activation has both.
 *
 * Each NUMA node has a range of the panels: of experts, the same range of each of them, so that the nodes
 * have the same work whichever experts are chosen. A node's panels are contiguous. */
struct matrix {
    enum dtype dtype;
    int n_in, n_out, n_panels; /* of one expert's matrix */
    int n_experts;             /* 1: a plain matrix */
    bool is_gate_up;
    size_t panel_bytes, n_bytes;
    uint8_t *panels;                        /* see cpu_panel() */
    int n_nodes, node_begin[NODES_MAX + 1]; /* the first panel of each node, then n_panels */
    float *bias; /* [n_experts][n_panels][32], in the order of the panels; NULL: none */
    /* Which element of an input row belongs to each column: [n_experts][n_in], or [n_in] if order_stride is 0,
     * as all experts have the same; NULL: 0, 1, ... It follows the panels in their memory, n_bytes long. */
    uint16_t *order;
    size_t order_stride;
};

static inline const uint16_t *cpu_matrix_order(const struct matrix *m, int expert)
{
    return m->order ? m->order + (size_t)expert * m->order_stride : NULL;
}

enum {
    CPU_LORA_COLUMNS = 64, /* columns of a block of b, which the kernel computes together */
    CPU_LORA_PADDING = LINEAR_COLUMNS,
};

/* The a factors of all parts are contiguous, so a row of the input is read once for all of them. */
struct lora {
    int n_in, n_out, n_parts, rank; /* rank: of all parts together */
    size_t n_bytes;
    bool is_half;  /* a and b are float16, else float32 */
    float *a;      /* [rank][n_in] */
    float *scales; /* [rank]: of the sums */
    /* [n_out, and CPU_LORA_PADDING for the last panel]; NULL: none */
    float *factors, *shifts;
    struct matrix *matrix; /* instead of the model's; NULL: none */
    struct lora_piece {
        int out_begin, n_out, rank_begin, rank;
        float *b; /* [n_out / CPU_LORA_COLUMNS, rounded up][rank][CPU_LORA_COLUMNS] */
    } parts[];
};

/* Rows of a tile with the same adapter; they are computed together. */
struct lora_group {
    const struct lora *lora;
    int n, rows[LORA_ROWS];
};

/* Per layer, part, page and KV head: keys, then values, in the layout of kernels.h. The heads of a part's page
 * are contiguous. With latent attention a page of a layer is one row for each position. Where pages have
 * a row of floats, that is one more layer. */
struct kv_memory {
    enum dtype dtype;
    int n_layers; /* with that of the rows */
    size_t n_bytes;
    uint8_t *base;
    struct memory_backing *backing;
    void *host; /* of cpu_kv_reserve_host() */
    struct kv_layer {
        size_t head_bytes;    /* keys of one page and KV head */
        size_t values_offset; /* from keys to values, which have the same size; 0: latent attention */
        size_t page_bytes;    /* keys and values of all heads, of all parts */
        bool has_window;
        /* For each node a range of the KV heads, of all pages. One part has all heads: on one node, or if there
         * are fewer heads than nodes. */
        int n_parts;
        struct kv_part {
            uint8_t *base; /* of page 0 */
            int first_head, n_heads;
            size_t page_bytes;
        } parts[NODES_MAX];
    } layers[];
};

/* The page table of a sequence of a step, in layers of this shape. */
static inline const int32_t *cpu_page_table(const struct step *step, const struct attention_shape *shape,
                                            int seq)
{
    return shape->window > 0 && step->window_tables ? step->window_tables[seq] : step->page_tables[seq];
}

/* A tile: consecutive rows of one sequence, which go through its blocks of positions together. Its
 * work is split into units: one for each KV head and up to 16 query heads of it (a head group). If
 * there are few units for many threads, each block is a unit of its own (the tile is cut). */
struct row_tile {
    int begin, n_rows;
    int first_block, n_blocks; /* of ATTENTION_BLOCK positions */
    int first_slot;            /* slots of all tiles before this one: blocks if a tile is cut, else 1 */
    bool is_cut;
    size_t slots;      /* cut: offset of its blocks' sums in cut_sums */
    int first_pending; /* cut: index of its first head group in cut_pending */
};

/* Scratch memory of one thread, for linear layers. */
struct cpu_scratch {
    float *out;     /* [LINEAR_PIECE][2][half_rows(TILE_ROWS)][16] */
    uint8_t *row;   /* one packed input row */
    uint8_t *heads; /* packed input rows of linear_heads(); NULL: no layer has latent attention */
    /* [TILE_ROWS][2][LINEAR_COLUMNS]: LoRA updates of gate and up; NULL: no adapters */
    float *updates;
    float *ordered; /* [TILE_ROWS][ORDERED_COLUMNS]: gathered inputs; NULL: no matrix has an order */
};

/* Scratch memory of one thread, for attention. */
struct attention_scratch {
    float *q, *o;                 /* [ATTENTION_ROWS][head_dim]: queries of a unit, and their sums */
    float *block_o;               /* [ATTENTION_QUERIES][head_dim]: sums of one block */
    float *values;                /* [n_kv_heads][head_dim]: of a row, where they are the keys */
    uint8_t *kv;                  /* [2][n_kv_heads][head_dim]: keys and values of a row, as stored */
    struct attention_view *views; /* [ATTENTION_ROWS] */
};

/* The remaining units of one thread's share of an operation. The thread takes units from the front; threads that
 * finished their own share take units of other shares (work stealing). The bits of a panel do not depend on its
 * thread. A cache line holds the shares of eight threads, without padding: a thread takes units only every 10 us
 * or more, and few lines move to the caller, which writes all shares before each operation, and to threads that
 * steal. */
struct cpu_share {
    atomic_int next;
    int end;
};

/* Scratch memory of experts(). An entry is one row's use of one expert; entries are in the order of
 * the experts, then of the rows. */
struct cpu_experts {
    int n_experts, n_chosen; /* the most of any matrix */
    int n_ff, n_wide;        /* widest gate; widest input or output */
    size_t row_bytes;        /* packed tile of one row, for the matrix that needs most */

    int32_t *ids;              /* [max_rows][n_chosen] */
    float *weights;            /* [max_rows][n_chosen] */
    int32_t *places;           /* [max_rows][n_chosen]: entry of each choice */
    int32_t *rows;             /* [entries] */
    int32_t *n_rows_of;        /* [n_experts]: entries */
    int32_t *used;             /* [n_experts]: the experts that have entries */
    int32_t *first_tile;       /* [n_experts + 1]: of used */
    struct expert_tile *tiles; /* [entries] */
    float *hidden;             /* [entries][n_ff] */
    float *wide;               /* [entries][n_wide]: inputs, later outputs */
    uint8_t *packed;           /* packed tiles of inputs, later of hidden */
    size_t hidden_bytes, wide_bytes, packed_bytes;
    uint64_t n_read; /* bytes of weights, so far */
};

/* One kind of attention, and how the rows of the running step are cut for it. */
struct cpu_kind {
    struct attention_shape shape;
    float *rope_freqs;   /* copy, [rotary_dim / 2] */
    float *alibi_slopes; /* copy, [n_heads]; NULL: none */
    /* [max_rows][rotary_dim]: cos, then sin, of each row's position; ROPE_2D: of both positions */
    float *cos_sin;
    struct row_tile *row_tiles; /* [max_rows], n_row_tiles of them in use */
    int n_row_tiles;
    int n_slots;             /* of all tiles; each has a unit for each head group */
    int group_heads;         /* query heads of a head group: of one KV head, at most ATTENTION_QUERIES */
    atomic_int *cut_pending; /* [CUT_UNITS n_threads]: blocks of each head group that are not done yet */
};

struct cpu_backend {
    struct backend backend; /* first: the two are cast to each other */
    struct kernels kernels;
    struct team *team, *own_team; /* team: the threads in use, own or another backend's */
    struct cluster *cluster;      /* NULL: a single process */
    int n_layers, n_kinds, page_floats;
    struct cpu_kind *kinds; /* [n_kinds] */
    uint8_t *layer_kinds;   /* [n_layers] */

    size_t row_bytes; /* packed tile of one row, for the matrix that needs most */
    bool has_orders;  /* a matrix has one */
    bool has_loras;
    int lora_rank;                      /* largest rank of a lora */
    int lora_n_in;                      /* of the widest lora with a matrix; 0: none has one */
    float *lora_x;                      /* [max_rows][lora_n_in]: the inputs of rows with one matrix */
    int32_t *lora_rows, *lora_adapters; /* [max_rows]: those rows, and their adapters */
    bool *lora_done;                    /* [max_rows]: rows that are computed */
    float *lora_sums;                   /* [max_rows][lora_rank]: inputs times a */
    struct lora_group *lora_groups;     /* [max_rows] */
    int *lora_tiles; /* [max_rows + 1], of the running operation: first group of each tile, then the end */
    int max_rows;    /* as reserved */
    size_t activation_bytes;
    uint8_t *activations;                        /* packed tiles of input rows */
    struct cpu_scratch *scratch;                 /* [n_threads] */
    struct attention_scratch *attention_scratch; /* [n_threads] */
    float *cut_sums;                             /* of blocks of cut tiles: max, total, o */
    size_t n_cut_sums, cut_sums_bytes;

    int n_nodes;
    struct cpu_share *shares; /* [n_threads], of the running operation */

    struct sampler **samplers; /* [n_threads]; NULL before reserve_sampling() */
    int n_sampled_vocab;       /* of the samplers */

    struct cpu_experts experts;

    const struct step *step;
};

static inline struct cpu_backend *cpu_of(struct backend *be)
{
    return (struct cpu_backend *)be;
}

static inline const struct cpu_kind *cpu_kind_of(const struct cpu_backend *cpu, int layer)
{
    return &cpu->kinds[cpu->layer_kinds[layer]];
}

enum {
    LEAST_TILE_ROWS = 8, /* smallest tile, unless there are fewer rows */
    ATTENTION_ROWS = 64, /* most queries of a unit of attention; a block is in the cache for all of them */
    CUT_UNITS = 4,       /* a unit with more than 1 / (CUT_UNITS * n_threads) of the work is cut */
};

float *cpu_memory_new(size_t n_floats); /* zeroed, aligned to 64 bytes, for free(); NULL: no memory */
struct floats cpu_alloc(struct backend *be, size_t n_floats);
struct floats cpu_alloc_constant(struct backend *be, const float *values, size_t n_floats);
void cpu_dealloc(struct backend *be, struct floats floats);
struct floats cpu_alloc_shared(struct backend *be, size_t n_floats);
void cpu_dealloc_shared(struct backend *be, struct floats floats);
void cpu_upload(struct backend *be, struct floats dst, const float *src, size_t n_floats);
void cpu_download(struct backend *be, float *host, struct floats src, size_t n_floats);

enum tutti_status cpu_matrix_new(struct backend *be, struct matrix **out, const struct matrix_source *source,
                                 struct tutti_error *err);
void cpu_matrix_free(struct backend *be, struct matrix *m);
size_t cpu_matrix_bytes(const struct matrix *m);
uint64_t cpu_packed_bytes(enum dtype type, int n_in, int64_t n_out, bool is_gate_up);
uint64_t cpu_checksum(struct backend *be, struct floats floats, size_t n_floats);
uint64_t cpu_matrix_checksum(struct backend *be, const struct matrix *m);
uint64_t cpu_lora_checksum(struct backend *be, const struct lora *lora);
uint64_t cpu_embedding_checksum(struct backend *be, const struct embedding_update *update);
uint64_t cpu_arithmetic_checksum(struct backend *be);
void cpu_embed(struct backend *be, struct floats x, const struct matrix *table, int first_id);
enum tutti_status cpu_embedding_new(struct backend *be, struct embedding_update **out,
                                    const struct embedding_source *source, struct tutti_error *err);
void cpu_embedding_free(struct backend *be, struct embedding_update *update);
size_t cpu_embedding_bytes(const struct backend *be, const struct embedding_update *update);
void cpu_embed_adapted(struct backend *be, struct floats x, const struct matrix *table,
                       const struct embedding_update *const *updates, const int32_t *adapters);
/* Row row of a matrix without experts as float32. */
void cpu_matrix_row(float *out, const struct matrix *m, int row);
bool cpu_matrix_lengths(struct backend *be, float *host, const struct matrix *m,
                        const struct lora_part *part);
float cpu_matrix_read(struct backend *be, float *host, const struct matrix *m, int row);
enum dtype cpu_matrix_type(const struct matrix *m);
void cpu_linear(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows);
void cpu_linear_glu(struct backend *be, struct floats y, const struct matrix *m, struct floats x, int n_rows,
                    enum activation act);

void cpu_linear_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                        int n_rows, const struct lora *const *loras, const int32_t *adapters);
void cpu_linear_glu_adapted(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                            int n_rows, enum activation act, const struct lora *const *loras,
                            const int32_t *adapters);
enum tutti_status cpu_lora_new(struct backend *be, struct lora **out, const struct lora_source *source,
                               struct tutti_error *err);
void cpu_lora_free(struct backend *be, struct lora *lora);
size_t cpu_lora_bytes(const struct backend *be, const struct lora *lora);
bool cpu_lora_reserve(struct cpu_backend *cpu, int max_rows); /* false: no memory */
void cpu_lora_release(struct cpu_backend *cpu);

/* The function that joins gate and up; act: one with a gate. */
glu_fn *cpu_glu(const struct kernels *k, enum activation act);
/* The most rows of a tile. */
int cpu_most_rows(const struct matrix *m);
/* The most panels that a thread takes at a time. */
int cpu_most_panels(const struct matrix *m);
/* Divides n units of work over the threads' shares, in order. */
void cpu_share_out(struct cpu_backend *cpu, int n);
/* Divides the panels of n experts of m among the threads: the panels of a node among its threads. n: 1 if m has no
 * experts. A unit is a panel of an expert; those of a node are numbered from 0, expert by expert. */
void cpu_share_panels(struct cpu_backend *cpu, const struct matrix *m, int n_experts);
/* Takes units from a share, at most piece. False: none are left. */
bool cpu_share_take(struct cpu_share *share, int piece, int *begin, int *end);
/* The thread whose share a thread takes units from in round i: its own, then those of its node, then the others. */
int cpu_share_of(const struct cpu_backend *cpu, int thread, int i);

/* Panels of each expert on a node. */
static inline int cpu_node_panels(const struct matrix *m, int node)
{
    return m->node_begin[node + 1] - m->node_begin[node];
}

static inline uint8_t *cpu_panel(const struct matrix *m, int expert, int panel)
{
    int node = 0;
    while (panel >= m->node_begin[node + 1])
        node++;
    size_t before = (size_t)m->n_experts * (size_t)m->node_begin[node], n = (size_t)cpu_node_panels(m, node);
    return m->panels + (before + (size_t)expert * n + (size_t)(panel - m->node_begin[node])) * m->panel_bytes;
}

/* Divides the panels among the nodes, and places their memory, which nothing was written to yet. */
void cpu_place_panels(const struct cpu_backend *cpu, struct matrix *m);
/* As memory_new(), for memory that the threads of all nodes use. Large memory is on the nodes in turn, page by
 * page, and is backed at once, so that no step pays for page faults. Freed by memory_free(). */
void *cpu_memory_shared(const struct cpu_backend *cpu, size_t n_bytes);
/* Puts pages on the nodes in turn. */
void cpu_spread(const struct cpu_backend *cpu, void *memory, size_t n_bytes);
void cpu_place(const struct cpu_backend *cpu, int node, void *memory, size_t n_bytes);
/* As cpu_memory_new(), on the node of a thread. */
float *cpu_memory_of_thread(const struct cpu_backend *cpu, int thread, size_t n_floats);

/* Input rows that a thread packs into a tile. */
struct cpu_packing {
    const struct cpu_backend *cpu;
    const struct matrix *m;
    int expert;
    void *tile;
    const float *x;      /* the first row; or with rows, row 0 */
    const int32_t *rows; /* [n]; NULL: consecutive rows */
    int n;
};
/* Packs columns begin to end - 1 of the rows; begin is a multiple of BLOCK. rows: only if m has an order. */
void cpu_pack_columns(const struct cpu_packing *p, int thread, int begin, int end);

/* The product of a tile with panels of one matrix, without adapters. */
struct cpu_product {
    const struct cpu_backend *cpu;
    const struct matrix *m;
    int expert;
    glu_fn *glu;          /* joins gate and up; NULL: the matrix has no gate */
    const uint8_t *input; /* packed tile */
    int n;                /* its rows */
    float *y;             /* its first row: [n][n_columns] */
    const int32_t *rows;  /* of y, for each row of the tile; NULL: consecutive rows */
    int n_columns;
};
/* Panels begin to end - 1, at most LINEAR_PIECE. out: struct cpu_scratch. */
void cpu_product_run(const struct cpu_product *product, float *out, int begin, int end);

void cpu_experts(struct backend *be, struct floats y, const struct expert_layer *layer, struct floats x,
                 struct floats scores, int n_rows);
uint64_t cpu_expert_bytes(const struct backend *be);
/* Makes room for a matrix of experts, at the next reserve(). */
void cpu_experts_widen(struct cpu_experts *experts, const struct matrix *m, int n_chosen);
bool cpu_experts_reserve(struct cpu_backend *cpu, int max_rows); /* false: no memory */
void cpu_experts_release(struct cpu_experts *experts);

/* What adapters change of one linear layer in one step. */
struct cpu_lora_work {
    struct cpu_backend *cpu;
    const float *x;     /* its input */
    int n_groups, rank; /* rank: the largest of its adapters */
};

/* Where an update is added: y [rows][stride], from element (row, column) on. */
struct cpu_lora_target {
    float *y;
    const int32_t *rows; /* of y, for row and those after it; NULL: consecutive rows */
    size_t stride;
    int row, column;
};

/* Rows are cut into n_tiles by team_range(). n_groups 0: no row has an adapter. */
void cpu_lora_plan(struct cpu_lora_work *out, struct cpu_backend *cpu, const struct lora *const *loras,
                   const int32_t *adapters, const float *x, int n_rows, int n_tiles);
static inline bool cpu_lora_has(const struct cpu_lora_work *work, int tile)
{
    return work->cpu->lora_tiles[tile] < work->cpu->lora_tiles[tile + 1];
}
/* A thread's part of the products of inputs with a. All parts must be finished before cpu_lora_up(). */
void cpu_lora_down(const struct cpu_lora_work *work, int thread, int n_threads);
/* Multiplies columns begin to end - 1 of the tile's rows by their factors, and adds their shifts. */
void cpu_lora_shift(const struct cpu_lora_work *work, int tile, const struct cpu_lora_target *to, int begin,
                    int end);
/* Adds columns begin to end - 1 of the updates to the tile's rows. */
void cpu_lora_up(const struct cpu_lora_work *work, int tile, const struct cpu_lora_target *to, int begin,
                 int end);
/* Prefetches the factors that cpu_lora_up() reads for these columns, for all tiles. */
void cpu_lora_prefetch(const struct cpu_lora_work *work, int begin, int end);

void cpu_rmsnorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                 int n_rows, int n, float eps);
void cpu_layernorm(struct backend *be, struct floats y, struct floats x, struct floats add, struct floats w,
                   struct floats b, int n_rows, int n, float eps);
void cpu_norm_adapted(struct backend *be, struct floats y, struct floats x, struct floats add,
                      struct floats w, struct floats b, int n_rows, int n, float eps,
                      const struct norm_update *const *updates, const int32_t *adapters);
void cpu_scale_add(struct backend *be, struct floats x, struct floats base, float scale, struct floats add,
                   int n_rows, int n);
void cpu_scale(struct backend *be, struct floats x, float scale, int n_rows, int n);
void cpu_softcap(struct backend *be, struct floats x, float cap, int n_rows, int n);
void cpu_activate(struct backend *be, struct floats x, int n_rows, int n, enum activation act);
void cpu_positions(struct backend *be, struct floats x, struct floats table, int begin, int end, int n,
                   enum positions_use use);
void cpu_concat(struct backend *be, struct floats y, struct floats a, int n_a, struct floats b, int n_b,
                int n_rows);
void cpu_gather(struct backend *be, struct floats y, struct floats x, struct floats add, int n);

enum tutti_status cpu_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err);
void cpu_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n);
void cpu_sampling_release(struct cpu_backend *cpu);

enum tutti_status cpu_kv_new(struct backend *be, struct kv_memory **out, int n_pages, int n_window_pages,
                             enum dtype dtype, struct tutti_error *err);
void cpu_kv_free(struct backend *be, struct kv_memory *kv);
size_t cpu_kv_page_bytes(const struct backend *be, enum dtype dtype);
void cpu_kv_store_rows(struct backend *be, struct kv_memory *kv, struct floats x, const int32_t *rows,
                       const int32_t *page_ids, int n);
void cpu_previous_rows(struct backend *be, struct floats y, struct floats x, const int32_t *rows,
                       const struct kv_memory *kv, int n);
size_t cpu_kv_window_bytes(const struct backend *be, enum dtype dtype);
void cpu_kv_copy_page(struct backend *be, struct kv_memory *kv, const struct page_copy *copy);
enum tutti_status cpu_kv_reserve_host(struct backend *be, struct kv_memory *kv, size_t n_bytes, int n_copies,
                                      void **out, struct tutti_error *err);
void cpu_kv_read_begin(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, void *host);
void cpu_kv_write_begin(struct backend *be, struct kv_memory *kv, int copy, const void *host);
bool cpu_kv_is_copied(struct backend *be, struct kv_memory *kv, int copy, bool waits);
void cpu_kv_write_end(struct backend *be, struct kv_memory *kv, int copy, int32_t page_id, const void *host);
void cpu_kv_store(struct cpu_backend *cpu, const struct kv_memory *kv, int layer, int row, const float *k,
                  const float *v, uint8_t *scratch);
void cpu_kv_store_latent(struct cpu_backend *cpu, const struct kv_memory *kv, int layer, int row,
                         const float *latent);
bool cpu_attention_reserve(struct cpu_backend *cpu, int max_rows); /* false: no memory */
void cpu_attention_release(struct cpu_backend *cpu);
bool cpu_attention_reserve_cuts(struct cpu_backend *cpu, int n_pages); /* false: no memory */
void cpu_attention_begin(struct cpu_backend *cpu); /* cuts the step's rows into tiles, fills cos_sin */
/* Elements of a value. */
static inline int cpu_value_dim(const struct attention_shape *shape)
{
    return shape->n_latent > 0 ? shape->n_latent : shape->head_dim;
}

/* Of struct cpu_scratch.heads; 0: no layer has latent attention. */
size_t cpu_heads_scratch_bytes(const struct cpu_backend *cpu);
void cpu_linear_heads(struct backend *be, struct floats y, const struct matrix *m, struct floats x,
                      int n_rows, const struct head_rows *heads);
void cpu_latent_store(struct backend *be, struct floats queries, struct floats q, int q_dim, struct floats kv,
                      struct floats norm, struct kv_memory *memory, int layer);
void cpu_prefix_store(struct backend *be, struct kv_memory *kv, int layer,
                      const struct kv_prefix *const *prefixes, const int32_t *adapters);
void cpu_rope_store(struct backend *be, struct floats qkv, struct floats q_norm, struct floats k_norm,
                    struct kv_memory *kv, int layer);
void cpu_attention(struct backend *be, struct floats y, struct floats qkv, struct floats sinks,
                   const struct kv_memory *kv, int layer);

#endif
