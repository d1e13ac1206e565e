/* The arguments of kernels/cuda/attention/kv.c. Types: enum cuda_kv_type; kinds of rope: enum rope_kind of backend.h. */
#ifndef TUTTI_KERNELS_CUDA_KV_ARGS_H
#define TUTTI_KERNELS_CUDA_KV_ARGS_H

#include "kernels/cuda/args.h"
#include "kernels/cuda/attention/attention_args.h"

enum { CUDA_ROPE_NONE, CUDA_ROPE_INTERLEAVED, CUDA_ROPE_HALF, CUDA_ROPE_2D };

/* Where the rows of a step are stored, in one layer. Padding rows are not stored. */
struct kv_place {
    uint8_t *pages;                          /* [page][page_bytes] */
    const int32_t *positions, *seqs, *slots; /* of struct step_rows */
    const int32_t *tables;                   /* [slots][max_pages]: pages, or window slots */
    const struct step_counts *counts;
    uint64_t page_bytes;
    int32_t max_pages, type;
    int32_t n_kv_heads, head_dim;
};

struct rope_store_args {
    struct kv_place place;
    float *qkv;                   /* [rows][n_heads, k, v: n_kv_heads][head_dim]; no v with keys_are_values */
    const float *q_norm, *k_norm; /* or NULL */
    const float *cos_sin;         /* [rows][rotary_dim] */
    int32_t n_heads, rotary_dim, rope;
    int32_t has_joint_norms;               /* over all heads of q, or k; then a grid has one block in y */
    int32_t keys_are_values, norms_values; /* of struct attention_shape */
    float eps;
};

/* What a row gets from the prefix of its adapter, instead of its own keys and values. */
struct prefix_row {
    const float *rows; /* keys, then values [n_kv_heads * head_dim], of layer 0; NULL: nothing */
    uint64_t layer;    /* floats from a layer to the next */
};

struct prefix_store_args {
    struct kv_place place;
    const struct prefix_row *prefixes; /* [rows] */
    uint64_t layer;
};

struct latent_store_args {
    struct kv_place place; /* of one KV head */
    float *queries;        /* [rows][n_heads][head_dim] */
    const float *q;        /* [rows][n_heads][q_dim] */
    const float *kv;       /* [rows][head_dim] */
    const float *norm;     /* [n_latent] */
    const float *cos_sin;
    int32_t n_heads, n_latent, q_dim, rope;
    float eps;
    uint32_t padding;
};

struct previous_rows_args {
    float *y;
    const float *x;         /* [rows][n] */
    const int32_t *rows;    /* [rows] */
    const float *page_rows; /* [page][page_floats] */
    const int32_t *positions, *seqs, *slots, *tables;
    const struct step_counts *counts;
    int32_t max_pages, n, page_floats;
    uint32_t padding;
};

/* A layer's pages, and where one of them is in an image of all layers. */
struct kv_layer_pages {
    uint8_t *pages;
    uint64_t page_bytes; /* a multiple of 4 */
    uint64_t offset;
    uint64_t has_window;
};

/* Copies a page of all layers, or between it and an image. */
struct copy_page_args {
    const struct kv_layer_pages *layers;
    uint8_t *to_image;                        /* or NULL */
    const uint8_t *from_image;                /* or NULL */
    int32_t dst, src, window_dst, window_src; /* with an image: dst or src is that of all layers */
    int32_t n_parts;                          /* blocks in y */
    uint32_t padding;
};

#endif
