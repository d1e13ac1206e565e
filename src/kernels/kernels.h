/* The arithmetic: one table of kernels, filled for a processor at start.
 *
 * ref/ holds each operation in plain C and is the truth; x86/ holds its twins for AVX2 (with FMA and F16C) and for
 * AVX-512 (F, BW, DQ, VL, VNNI). Twins yield the same bits as ref: the order of every sum is part of the contract
 * written here, exp is our own polynomial, and nothing calls the mathematical library. Only the payload and sign of a
 * NaN may differ.
 *
 * Every output row depends on its own input row alone, so callers may cut rows into tiles as they like.
 *
 * Matrices are packed in panels (pack.h): 32 output rows side by side, as two halves of 16, so that one vector register
 * holds one column slice of a half and both halves share what was loaded of the input. Activations are packed in tiles
 * of up to TILE_ROWS input rows side by side. */
#ifndef TUTTI_KERNELS_KERNELS_H
#define TUTTI_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/error.h"

enum {
    LANES = 16,              /* output rows of half a panel */
    PANEL_ROWS = 2 * LANES,  /* output rows of a panel of weights */
    TILE_ROWS = 128,         /* input rows of a tile, at most */
    BLOCK = 32,              /* columns of a block of quantized weights */
    LINEAR_RUN = 512,        /* columns that a float sum runs over before it is added to the total */
    ATTENTION_KEYS = 16,     /* positions of a KV page */
    ATTENTION_QUERIES = 16,  /* queries that attention works on at once, at most */
    ATTENTION_MAX_DIM = 512, /* of a head */
    ATTENTION_BLOCK = 256,   /* positions that are summed up on their own, then merged */
    ATTENTION_AHEAD = 4,     /* pages that are asked for before they are read */
};

/* Counts the changes of the bits that operations yield: results of an earlier number, kept in a file, are not mixed with new ones. */
enum { KERNELS_BITS = 1 };

/* Bits of a processor level. Each includes the ones below it. */
enum { CPU_REF = 0, CPU_AVX2 = 1, CPU_AVX512 = 2, CPU_BF16 = 4 /* vdpbf16ps, beside AVX-512 */ };

/* What processor and operating system offer. */
unsigned cpu_detect(void);

/* name: "ref", "avx2", "avx512": at most that; NULL: environment variable TUTTI_CPU, else the best there is.
 * TUTTI_E_ARGUMENT: an unknown name. TUTTI_E_UNSUPPORTED: this processor lacks it. */
MUST_CHECK enum tutti_status cpu_find(unsigned *out, const char *name, struct tutti_error *err);

/* "ref", "avx2", "avx512": the highest level in cpu. */
const char *cpu_name(unsigned cpu);

/* ---- linear ---------------------------------------------------------------------------------------------------- */

/* Packs columns begin..end-1 of a tile of input rows (n_rows: 1..TILE_ROWS) as the weights' type wants them.
 * x: row r at x + r * stride. begin: a multiple of 32; end too, or n_in. dst: the whole tile, 64-byte aligned,
 * tile_bytes() long.
 *
 * F32 and F16 weights: float [n_in][n_rows].
 * BF16 weights: bf16 [n_in / 2, rounded up][n_rows][2 columns], rounded to nearest even.
 * Quantized weights: blocks of 32 columns, as int8 with one scale for each (input_block.h). A block below 2^-100 is zero;
 * one with a NaN, an infinity or a number of 2^110 and more makes its row NaN. */
typedef void tile_fn(void *dst, const float *x, size_t stride, int n_rows, int begin, int end);

/* out[h][r][i] = sum over columns of row 16h + i of the panel with input row r. out: [2][n_rows][16].
 * panel: packed weights of n_in columns; what stands behind it is asked for ahead. x: a tile of n_rows input rows.
 *
 * F32 and F16 weights: fma over runs of 512 columns, from the first; each run starts at 0 and is added to the total.
 * BF16 weights: the same, but of each pair of columns the odd one comes first, and denormals are zero, in what goes in
 * and in every sum: what vdpbf16ps does.
 * Quantized weights (formats.h): one block of 32 columns after the other, total = fma(number * d, scale, total) for each of
 * its runs of sub columns, where number is the exact integer sum of (u - zero) * q, and d the activations' scale;
 * then, where has_min, total = fma(-sum(q) * d, min, total) for each of them. All factors are exact. */
typedef void linear_fn(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in);

/* ---- rows ------------------------------------------------------------------------------------------------------ */

/* y[r][i] = x[r][i] * w[i] / sqrt(mean(x[r][:]^2) + eps). x, y: [n_rows][n], may be the same; w: [n].
 * Element i goes into sum i % 16 by fused multiply-add; the 16 sums are folded by halves. Zhang and Sennrich, 2019,
 * equation 4. */
typedef void rmsnorm_fn(float *y, const float *x, const float *w, int n_rows, int n, float eps);

/* y[r][i] = (x[r][i] - mean) * (1 / sqrt(variance + eps)) * w[i] + b[i]; mean and variance (biased) of row r, each from 16
 * sums as above. x, y: [n_rows][n], may be the same; w, b: [n]. Ba et al., 2016. */
typedef void layernorm_fn(float *y, const float *x, const float *w, const float *b, int n_rows, int n,
                          float eps);

/* x += y, n elements. */
typedef void add_fn(float *x, const float *y, int64_t n);

/* x = fma(scale, base, add), n elements. x may be base or add. */
typedef void scale_add_fn(float *x, const float *base, float scale, const float *add, int64_t n);

/* y[i] = gate[i] / (1 + exp(-gate[i])) * up[i]. y may be gate or up. Shazeer, 2020 (SwiGLU). */
typedef void silu_mul_fn(float *y, const float *gate, const float *up, int64_t n);

/* x = x / (1 + exp(-z)), n elements in place; Hendrycks and Gimpel, 2016.
 * gelu_tanh: z = 2 sqrt(2 / pi) x (1 + 0.044715 x^2), which is their approximation by tanh; gelu_sigmoid: z = 1.702 x. */
typedef void gelu_fn(float *x, int64_t n);

/* y = exp(x - max(x)) / sum. Element i goes into sum i % 16, folded by halves. y may be x. n >= 1. */
typedef void softmax_fn(float *y, const float *x, int n);

/* Rotates n_heads heads of head_dim floats in place: u' = u cos - v sin, v' = v cos + u sin.
 * cos_sin: [2][rotary_dim / 2]. Pairs are (2j, 2j + 1) or (j, j + rotary_dim / 2). Su et al., 2021. */
typedef void rope_fn(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim);

/* A low-rank update y += B . (A . x) of n_rows rows that have the same factors, in two halves. Hu et al., 2021 (LoRA),
 * equation 3. A row's bits are the same in any company.
 * down: t[r][i] = a[i] . x[r]; a: [rank][n]. Element k goes into sum k % 16 by fused multiply-add, folded by halves.
 * up: y[r][j] += sum over i, from 0 and the first, of t[r][i] * b[i][j] by fused multiply-add; row i of b begins at
 * i * stride, and y and b may begin at any column, as elements do not depend on each other.
 * n_rows: 1..LORA_ROWS; so many share what it costs to read and widen the factors. */
enum { LORA_ROWS = 4 };
typedef void lora_down_fn(float *const *t, const float *a, const float *const *x, int n_rows, int rank,
                          int n);
typedef void lora_up_fn(float *const *y, const float *b, size_t stride, const float *const *t, int n_rows,
                        int rank, int n);
/* The same with a and b in half precision. */
typedef void lora_down_half_fn(float *const *t, const uint16_t *a, const float *const *x, int n_rows,
                               int rank, int n);
typedef void lora_up_half_fn(float *const *y, const uint16_t *b, size_t stride, const float *const *t,
                             int n_rows, int rank, int n);

/* float32 to half precision, to nearest even. */
typedef void to_half_fn(uint16_t *y, const float *x, int n);

/* ---- attention ------------------------------------------------------------------------------------------------- */

/* Keys and values of a page and head, for float types: keys [head_dim][16], values [16][head_dim]. For int8, so that two
 * products at a time make one 32-bit sum: keys [head_dim / 2][16][2] and float scales [16]; values [8][head_dim][2] (two
 * positions side by side) and float scales [16]. An element is int8 * the scale of its position.
 *
 * Rows of keys and values become int8 as to_int8_fn says. */

/* What one query sees: positions begin..end-1, at least one. */
struct attention_view {
    int begin, end;
    int pos;     /* its own position */
    float slope; /* ALiBi; 0: none */
};

/* Up to 16 queries that read the same keys. */
struct attention_work {
    const float *q;                     /* [n_queries][head_dim], multiplied by the scale */
    const struct attention_view *views; /* [n_queries] */
    int n_queries, head_dim;            /* head_dim: a multiple of 8 up to ATTENTION_MAX_DIM */
    const uint8_t *base;                /* of the keys of this layer and head in page 0 */
    size_t page_bytes;                  /* from one page to the next */
    size_t values_offset;               /* from keys to values */
    const int32_t *page_table;          /* page_table[p / 16] holds position p */
    const uint8_t *const
        *next; /* [ATTENTION_AHEAD] keys of pages that will be read behind this block; NULL: nobody knows */
};

/* The state of queries of which some blocks are done. total 0: none yet; then the rest has no meaning. */
struct attention_sums {
    float *max, *total; /* [n_queries]: the largest score; the sum of exp(score - max) */
    float *o;           /* [n_queries][head_dim]: the sum of exp(score - max) * value */
};

/* Positions 256 block .. 256 block + 255 alone, into sums; a query that sees none of them gets total 0. What a query does
 * not see has no influence on it, whatever the page holds there.
 *
 * A score is a chain of fma over the dimensions; with a slope, fma(slope, (float)(key's position - pos), score).
 * p = exp(score - max); total: position i goes into sum i % 16, folded by halves; o: fma(p, value, o) from 0, one
 * position after the other.
 *
 * int8: q is quantized like a row of keys, but to +-limit, the largest number up to 32767 with which no sum overflows:
 * score = (float)(integer sum) * (key's scale * q's scale). Let w = p * value's scale, and top the largest w; then
 * o = (float)(integer sum of values with w rounded to 32767ths of top) * (top / 32767), or 0 where top < 2^-100. */
typedef void attention_fn(const struct attention_sums *sums, const struct attention_work *work, int block);

/* Adds the blocks of from to those of into, which all lie before: scale a = exp(into's max - top), b of from likewise;
 * into = fma(from, b, into * a), for totals and o. After Milakov and Gimelshein, 2018, and Dao et al., 2022; to cut a
 * long context at fixed positions and merge in order makes the bits independent of who computes which block. */
typedef void attention_merge_fn(const struct attention_sums *into, const struct attention_sums *from,
                                int n_queries, int head_dim);

/* q = x * (127 / max|x|) rounded to nearest even; returns the scale max|x| / 127. Where max|x| < 2^-100, q and scale are 0;
 * where an x is no finite number, q = 0 and the scale is NaN. */
typedef float to_int8_fn(int8_t *q, const float *x, int n);

/* y = x / divisor, n elements. */
typedef void divide_fn(float *y, const float *x, float divisor, int n);

/* ---- sampling -------------------------------------------------------------------------------------------------- */

struct logits_scan {
    bool is_finite; /* no NaN, no infinity; else the rest has no meaning */
    float max;
    int argmax;        /* the lowest index that holds max */
    float log_sum_exp; /* log(sum(exp(x))) */
};

/* The vector part of logits_scan(): false where any element is NaN or infinite. */
typedef bool scan_max_fn(const float *x, int n, float *max);
/* sum of exp((x - max) * scale), element i into sum i % 16, folded by halves. */
typedef float sum_exp_fn(const float *x, int n, float max, float scale);
/* Index of the first element in begin..n-1 that is > bound, else n. NaN is never found. */
typedef int find_above_fn(const float *x, int begin, int n, float bound);

/* A race of n tokens: token i arrives after -log(1 - v) / w, where v = mix64(seed ^ i) / 2^64 and w = exp((x - max) * scale). */
struct rivals {
    uint64_t seed;
    float max, scale;
    float first; /* nobody who arrives later is looked for; finite */
};

/* Index of the first token in begin..n-1 that may arrive before r->first, else n. It misses none, and finds few that do not: it
 * takes v for the time, of which it sees 24 bits, and allows for exp() being inexact. */
typedef int find_rival_fn(const float *x, int begin, int n, const struct rivals *r);

/* ---- the table ------------------------------------------------------------------------------------------------- */

struct kernels {
    unsigned cpu;
    tile_fn *tile[DTYPE_COUNT];     /* by weight type */
    linear_fn *linear[DTYPE_COUNT]; /* by weight type */
    rmsnorm_fn *rmsnorm;
    layernorm_fn *layernorm;
    add_fn *add;
    scale_add_fn *scale_add;
    silu_mul_fn *silu_mul;
    gelu_fn *gelu_tanh, *gelu_sigmoid;
    softmax_fn *softmax;
    rope_fn *rope_interleaved, *rope_half;
    attention_fn *attention_f16, *attention_f32, *attention_int8;
    attention_merge_fn *attention_merge;
    to_int8_fn *to_int8;
    divide_fn *divide;
    scan_max_fn *scan_max;
    sum_exp_fn *sum_exp;
    find_above_fn *find_above;
    find_rival_fn *find_rival;
    to_half_fn *to_half;
    lora_down_fn *lora_down;
    lora_up_fn *lora_up;
    lora_down_half_fn *lora_down_half;
    lora_up_half_fn *lora_up_half;
};

void kernels_init(struct kernels *k, unsigned cpu); /* cpu: what cpu_find() gave; less, to test */

/* ---- built on the table ---------------------------------------------------------------------------------------- */

/* Bytes of a tile of n_rows input rows for weights of this type: 0 where n_in does not fit the type's block. */
size_t tile_bytes(enum dtype dtype, int n_rows, int n_in);

/* The lowest index of the largest x; -1: a NaN or an infinity is there. n >= 1. */
int logits_argmax(const struct kernels *k, const float *x, int n);

/* A look at one row of logits. n >= 1. */
struct logits_scan logits_scan(const struct kernels *k, const float *x, int n);

#endif
