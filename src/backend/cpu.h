/* The parts of the CPU backend: what its files share. */
#ifndef TUTTI_BACKEND_CPU_H
#define TUTTI_BACKEND_CPU_H

#include "backend/backend.h"
#include "base/system/team.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

/* Panels (kernels/pack.h) of one matrix. Where is_gate_up, the halves of panel i hold rows 16i.. of gate and of up, so
 * that both are at hand when the activation joins them. */
struct matrix {
    enum dtype dtype;
    int n_in, n_out, n_panels;
    bool is_gate_up;
    size_t panel_bytes, n_bytes;
    uint8_t *panels;
    float *bias; /* [n_panels][32], in the order of the panels; NULL: none */
};

enum { CPU_LORA_COLUMNS = 64 }; /* of a factor's block: what the kernel makes side by side */

/* Each part's a behind the other, so that a row of the input is read once for all of them. */
struct lora {
    int n_in, n_out, n_parts, rank; /* rank: of all parts together */
    size_t n_bytes;
    bool is_half; /* a and b hold half precision, else float32 */
    float *a;     /* [rank][n_in] */
    struct lora_piece {
        int out_begin, n_out, rank_begin, rank;
        float scale;
        float *b; /* [n_out / CPU_LORA_COLUMNS, rounded up][rank][CPU_LORA_COLUMNS] */
    } parts[];
};

/* Rows of a tile with one adapter, which go through its factors together. */
struct lora_group {
    const struct lora *lora;
    int n, rows[LORA_ROWS];
};

/* Per layer, page and KV head: keys, then values, as kernels.h says; the heads of a page stand together. */
struct kv_memory {
    enum dtype dtype;
    int n_pages;
    size_t head_bytes;  /* keys of one page and head; values have the same size */
    size_t page_bytes;  /* of one layer, keys and values of all heads */
    size_t layer_bytes; /* all pages */
    size_t n_bytes;
    uint8_t *base;
    struct memory_backing *backing;
};

/* Neighbouring rows of one sequence, which go through its blocks of positions together. Its work is cut into units: one
 * for each KV head and up to 16 of the heads that read it (a head group); where there are few units for many threads,
 * one for each block of those too. */
struct row_tile {
    int begin, n_rows;
    int first_block, n_blocks; /* of ATTENTION_BLOCK positions */
    int first_unit;            /* units of all tiles before this one */
    bool is_cut;
    size_t slots;      /* cut: where in cut_sums its blocks' sums begin */
    int first_pending; /* cut: where in cut_pending its head groups begin */
};

/* What one thread needs for itself. */
struct cpu_scratch {
    float *out;   /* [LINEAR_PIECE][2][TILE_ROWS][16] */
    uint8_t *row; /* one packed input row */
    /* [TILE_ROWS][2][LINEAR_COLUMNS]: what adapters add to gate and up; NULL: there are none */
    float *updates;
};

/* What one thread needs for attention. */
struct attention_scratch {
    float *q, *o;   /* [ATTENTION_ROWS][head_dim]: the queries of a unit, and their sums */
    float *block_o; /* [ATTENTION_QUERIES][head_dim]: sums of a block alone */
    uint8_t *kv;    /* [2][n_kv_heads][head_dim]: keys and values of a row, as they are stored */
    struct attention_view *views; /* [ATTENTION_ROWS] */
};

/* What is left of one thread's part of an operation. It works from the front; threads that are done with their own
 * part help: which thread computes a panel has no influence on its bits. A cache line each. */
struct cpu_share {
    atomic_int next;
    int end;
    uint8_t apart[56];
};

struct cpu_backend {
    struct backend backend; /* first: the two are cast to each other */
    struct kernels kernels;
    struct team *team, *own_team; /* team: that computes, our own or another backend's */
    struct cluster *cluster;      /* NULL: none */
    struct attention_shape shape;
    float *rope_freqs;   /* our copy, [rotary_dim / 2] */
    float *alibi_slopes; /* our copy, [n_heads]; NULL: none */

    size_t row_bytes;               /* of a tile of one row, for the matrix that needs most */
    int lora_rank;                  /* of the lora that has most */
    float *lora_sums;               /* [max_rows][lora_rank]: what the inputs give with a */
    struct lora_group *lora_groups; /* [max_rows] */
    int *lora_tiles; /* [max_rows + 1]: the running operation's first group of each tile, and their number */
    int max_rows;    /* as reserved */
    int n_row_tiles;
    size_t activation_bytes;
    uint8_t *activations;        /* packed tiles of input rows */
    struct cpu_scratch *scratch; /* [n_threads] */
    float *cos_sin; /* [max_rows][rotary_dim]: cos, then sin, of each row's position; of both in turn */
    struct row_tile *row_tiles;                  /* [max_rows], n_row_tiles of them in use */
    struct attention_scratch *attention_scratch; /* [n_threads] */
    int n_units;                                 /* of attention, of all tiles */
    float *cut_sums;                             /* of blocks of cut tiles: max, total, o */
    size_t n_cut_sums, cut_sums_bytes;
    atomic_int *cut_pending; /* [CUT_UNITS n_threads]: blocks that are not done yet, of each head group */

    struct cpu_share *shares; /* [n_threads], of the running operation */

    const struct step *step;
};

static inline struct cpu_backend *cpu_of(struct backend *be)
{
    return (struct cpu_backend *)be;
}

enum {
    LINEAR_PIECE = 8,                      /* panels that a thread takes at a time, at most */
    LINEAR_COLUMNS = LINEAR_PIECE * LANES, /* of gate, and as many of up */
    LEAST_TILE_ROWS = 8,                   /* a tile is no lower, unless there are no more rows */
    ATTENTION_ROWS = 64, /* queries of a unit of attention at most; a block is in the cache for all of them */
    CUT_UNITS = 4,       /* a unit of attention above 1 / (CUT_UNITS * n_threads) of all the work is cut */
};

enum tutti_status cpu_matrix_new(struct backend *be, struct matrix **out, const struct matrix_source *source,
                                 struct tutti_error *err);
void cpu_matrix_free(struct backend *be, struct matrix *m);
size_t cpu_matrix_bytes(const struct matrix *m);
uint64_t cpu_checksum(struct backend *be, const float *memory, size_t n_floats);
uint64_t cpu_matrix_checksum(struct backend *be, const struct matrix *m);
uint64_t cpu_lora_checksum(struct backend *be, const struct lora *lora);
void cpu_embed(struct backend *be, float *x, const struct matrix *table, int first_id);
void cpu_linear(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows);
void cpu_linear_glu(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows,
                    enum activation act);

void cpu_linear_adapted(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows,
                        const struct lora *const *loras, const int32_t *adapters);
void cpu_linear_glu_adapted(struct backend *be, float *y, const struct matrix *m, const float *x, int n_rows,
                            enum activation act, const struct lora *const *loras, const int32_t *adapters);
enum tutti_status cpu_lora_new(struct backend *be, struct lora **out, const struct lora_part *parts,
                               int n_parts, int n_in, int n_out, enum dtype type, struct tutti_error *err);
void cpu_lora_free(struct backend *be, struct lora *lora);
size_t cpu_lora_bytes(const struct lora *lora);
bool cpu_lora_reserve(struct cpu_backend *cpu, int max_rows); /* false: no memory */
void cpu_lora_release(struct cpu_backend *cpu);

/* The updates of one linear layer in one step. */
struct cpu_lora_work {
    struct cpu_backend *cpu;
    const float *x;     /* its input */
    int n_groups, rank; /* rank: of the adapter that has most */
};

/* Where an update is added: y [rows][stride], from this row and column on. */
struct cpu_lora_target {
    float *y;
    size_t stride;
    int row, column;
};

/* Rows are cut into n_tiles by team_share(). n_groups 0: no row has an adapter. */
void cpu_lora_plan(struct cpu_lora_work *out, struct cpu_backend *cpu, const struct lora *const *loras,
                   const int32_t *adapters, const float *x, int n_rows, int n_tiles);
static inline bool cpu_lora_has(const struct cpu_lora_work *work, int tile)
{
    return work->cpu->lora_tiles[tile] < work->cpu->lora_tiles[tile + 1];
}
/* A thread's part of the sums of inputs with a; a barrier must follow. */
void cpu_lora_down(const struct cpu_lora_work *work, int thread, int n_threads);
/* Adds columns begin to end - 1 of what the tile's rows get. */
void cpu_lora_up(const struct cpu_lora_work *work, int tile, const struct cpu_lora_target *to, int begin,
                 int end);
/* Asks memory for what that will read, of all tiles. */
void cpu_lora_ask(const struct cpu_lora_work *work, int begin, int end);

void cpu_rmsnorm(struct backend *be, float *y, float *x, const float *add, const float *w, int n_rows, int n,
                 float eps);
void cpu_layernorm(struct backend *be, float *y, float *x, const float *add, const float *w, const float *b,
                   int n_rows, int n, float eps);
void cpu_scale_add(struct backend *be, float *x, const float *base, float scale, const float *add, int n_rows,
                   int n);
void cpu_activate(struct backend *be, float *x, int n_rows, int n, enum activation act);
void cpu_positions(struct backend *be, float *x, const float *table, int begin, int end, int n, bool adds);
void cpu_concat(struct backend *be, float *y, const float *a, int n_a, const float *b, int n_b, int n_rows);
void cpu_gather(struct backend *be, float *y, const float *x, const float *add, int n);

enum tutti_status cpu_kv_new(struct backend *be, struct kv_memory **out, int n_pages, enum dtype dtype,
                             struct tutti_error *err);
void cpu_kv_free(struct backend *be, struct kv_memory *kv);
size_t cpu_kv_page_bytes(const struct backend *be, enum dtype dtype);
void cpu_kv_copy_page(struct backend *be, struct kv_memory *kv, int32_t dst, int32_t src);
void cpu_kv_read_page(struct backend *be, const struct kv_memory *kv, int32_t page_id, void *host);
void cpu_kv_write_page(struct backend *be, struct kv_memory *kv, int32_t page_id, const void *host);
void cpu_kv_store(struct cpu_backend *cpu, const struct kv_memory *kv, int layer, int row, const float *k,
                  const float *v, uint8_t *scratch);
bool cpu_attention_reserve(struct cpu_backend *cpu, int max_rows); /* false: no memory */
void cpu_attention_release(struct cpu_backend *cpu);
bool cpu_attention_reserve_cuts(struct cpu_backend *cpu, int n_pages); /* false: no memory */
void cpu_attention_begin(struct cpu_backend *cpu); /* cuts the step's rows into tiles, fills cos_sin */
void cpu_rope_store(struct backend *be, float *qkv, const float *q_norm, const float *k_norm,
                    struct kv_memory *kv, int layer);
void cpu_attention(struct backend *be, float *y, const float *qkv, const struct kv_memory *kv, int layer);

#endif
