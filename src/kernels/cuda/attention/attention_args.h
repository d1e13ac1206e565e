/* What the kernels of attention get: a list of units of work, made by the host for each step, and the shape of a layer.
 *
 * A tile is up to 16 queries over the same keys, 32 over latents: consecutive rows of one sequence times the query heads of
 * one KV head (of them at most that many: a head group). Positions are divided into blocks of CUDA_ATTENTION_BLOCK, counted
 * from 0, and blocks into leaves. A unit is a tile and some of its blocks, for every head group; what a query gets from a
 * block does not depend on the unit that computes it. */
#ifndef TUTTI_KERNELS_CUDA_ATTENTION_ARGS_H
#define TUTTI_KERNELS_CUDA_ATTENTION_ARGS_H

#include <stdint.h>

enum {
    CUDA_KV_PAGE = 16,          /* positions of a page */
    CUDA_TILE_QUERIES = 16,     /* rows of a matrix instruction */
    CUDA_LATENT_QUERIES = 32,   /* of a tile over latents: what is read from memory once has more to do */
    CUDA_LATENT_LEAF = 32,      /* positions of latents that are in shared memory */
    CUDA_MAX_LATENT = 512,      /* of latent.c; with more, attention_plain.c */
    CUDA_ATTENTION_LEAF = 64,   /* positions whose largest score is found before their exponentials */
    CUDA_ATTENTION_BLOCK = 256, /* positions of a partial result */
    CUDA_LEAVES = CUDA_ATTENTION_BLOCK / CUDA_ATTENTION_LEAF,
    CUDA_VALUE_CHUNK = 64, /* dimensions of values that are accumulated at a time */
    CUDA_MAX_HEAD_DIM = 576,
};

/* Bytes of dynamic shared memory: of the kernels of attention.c and, for a warp, attention_wide.c. */
enum { CUDA_SPLIT_SHARED = 20240 };

/* The types of pages, which kernels get as a constant. */
enum cuda_kv_type { CUDA_KV_F16, CUDA_KV_BF16, CUDA_KV_I8, CUDA_KV_F32 };

/* 16-bit terms into which an element of a query, or a softmax weight, is split: attention_mma.h. */
static inline int32_t cuda_query_parts(int type)
{
    return type == CUDA_KV_BF16 ? 2 : 1;
}

/* Shared memory for a tile: the fragments of its queries, then struct mma_tile. */
enum { CUDA_TILE_BYTES = 400 };

static inline uint32_t cuda_query_bytes(int32_t head_dim, int32_t n_parts)
{
    return (uint32_t)((head_dim + 31) / 32 * 2 * 32 * 16 * n_parts + CUDA_TILE_BYTES);
}

/* Halves from one row to the next of a leaf of latents: the rows after each other begin in other banks, and at least 8 zeros
 * follow a row. */
static inline uint32_t cuda_latent_stride(int32_t head_dim)
{
    return (uint32_t)head_dim + (head_dim / 8 % 2 == 0 ? 8 : 16);
}

/* The same of latent.c. */
enum { CUDA_LATENT_SHARED = 23552 };

static inline uint32_t cuda_latent_bytes(int32_t head_dim, int32_t n_stages, int32_t n_parts)
{
    uint32_t queries = 2 * (uint32_t)((head_dim + 15) / 16 * n_parts) * 32 * 16;
    return CUDA_LATENT_SHARED + queries +
           (uint32_t)n_stages * CUDA_LATENT_LEAF * cuda_latent_stride(head_dim) * 2;
}

struct attention_unit {
    int32_t row, n_rows;           /* of the tile: rows of one sequence */
    int32_t table;                 /* the sequence's row of the page tables */
    int32_t first_block, n_blocks; /* that the unit computes */
    int32_t
        slot; /* the tile's first slot of partial results; -1: the unit has all blocks of its tile, and writes y */
    int32_t at, n_tile_blocks; /* of the unit's first block in its tile; blocks of the tile */
};

struct attention_plan {
    int32_t n_units, padding[7];
    struct attention_unit units[];
};

struct attention_args {
    float *y;                          /* [rows][n_heads][value_dim], 16-byte aligned */
    const float *q;                    /* row r at r * q_row: [n_heads][head_dim], 16-byte aligned */
    const float *sinks;                /* [n_heads], or NULL */
    const float *slopes;               /* [n_heads], or NULL */
    const uint8_t *pages;              /* the layer's, [page][page_bytes], 16-byte aligned */
    const struct attention_plan *plan; /* 32-byte aligned */
    const int32_t *positions, *seqs;   /* [rows] */
    const int32_t *prefix_lens;        /* [seqs] */
    const int32_t *tables;             /* [slots][max_pages] */
    float *partials;                   /* slots of slot_floats: o [value_dim], largest score, total */
    uint32_t *pending; /* [rows][n_groups]: finished blocks of a cut tile; 0 before and after */
    uint64_t page_bytes;
    int32_t max_pages, q_row, slot_floats;
    int32_t n_heads, heads_of_kv; /* query heads of a KV head */
    int32_t n_groups, groups_of_kv;
    int32_t head_dim, value_dim; /* multiples of 8 */
    int32_t n_latent; /* > 0: a page has rows [16][head_dim], whose first value_dim elements are the values */
    int32_t window, first; /* of struct attention_shape */
    int32_t tile_queries;  /* CUDA_TILE_QUERIES, of latents CUDA_LATENT_QUERIES */
    int32_t n_stages;      /* of latent.c: leaves in shared memory, 1 or 2 */
    float scale, softcap;
    uint32_t padding;
};

/* Bytes of the keys, or values, of one head in a page; type: enum cuda_kv_type. int8: [16] float scales follow. */
static inline uint32_t cuda_kv_head_bytes(int type, int32_t head_dim)
{
    uint32_t n = (uint32_t)CUDA_KV_PAGE * (uint32_t)head_dim;
    return type == CUDA_KV_I8    ? n + CUDA_KV_PAGE * (uint32_t)sizeof(float)
           : type == CUDA_KV_F32 ? 4 * n
                                 : 2 * n;
}

#endif
