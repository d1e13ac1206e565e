/* The compute kernels: one table of functions, chosen for the processor at start.
 *
 * ref/ has the reference implementation of each operation in plain C. x86/ has optimized ones for
 * AVX2 (with FMA and F16C) and for AVX-512 (F, BW, DQ, VL, VNNI), arm/ for NEON, its dot products and
 * matrix products of int8. Most are written once, in vector/, in terms of a vector of sixteen floats, which
 * each instruction set defines in its vec16.h. All implementations give the
 * same bits: the order of every sum is part of the contract below, exp is a polynomial of our
 * own, and nothing calls the math library. Only the payload and sign of a NaN may differ.
 *
 * Every output row depends only on its own input row, so callers may split rows into tiles
 * freely.
 *
 * Matrices are packed in panels (pack.h): 32 interleaved output rows, as two halves of 16. One
 * vector register holds one column of a half, and both halves use the same loaded input.
 * Activations are packed in tiles of up to TILE_ROWS interleaved input rows. */
#ifndef TUTTI_KERNELS_KERNELS_H
#define TUTTI_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/error.h"

enum {
    LANES = 16,                   /* output rows of half a panel */
    PANEL_ROWS = 2 * LANES,       /* output rows of a panel of weights */
    TILE_ROWS = 128,              /* input rows of a tile, at most */
    BLOCK = 32,                   /* columns of a block of quantized weights */
    LINEAR_RUN = 512,             /* columns of a partial float sum before it is added to the total */
    ATTENTION_KEYS = 16,          /* positions of a KV page */
    ATTENTION_QUERIES = 16,       /* queries of one attention call, at most */
    ATTENTION_MAX_DIM = 576,      /* of a head; of a latent with its rotary part */
    ATTENTION_BLOCK = 256,        /* positions of a partial result, which are then merged */
    ATTENTION_PREFETCH_PAGES = 4, /* pages to prefetch */
};

/* Version of the numerical results: increased when an operation's bits change, so that saved
 * results (KV pages on disk) of another version are not reused. */
enum { KERNELS_BITS = 2 };

/* Bits of a processor level. AVX-512 and AVX-VNNI include AVX2; the two after AVX-512, and CPU_PAIRED, are kinds of it. Each of
 * NEON's includes the ones before it. */
enum {
    CPU_REF = 0,
    CPU_AVX2 = 1,
    CPU_AVX512 = 2,
    CPU_BF16 = 4,  /* with vdpbf16ps */
    CPU_SPLIT = 8, /* 512 bits take two passes of 256, and as for CPU_PAIRED */
    CPU_NEON = 16,
    CPU_DOTPROD = 32,
    CPU_I8MM = 64,
    CPU_AVXVNNI = 128, /* vpdpbusd of 256 bits, in the encoding of AVX-512 or, with the next bit, its own */
    CPU_VEX = 256,
    CPU_AMX = 512,     /* tiles of bytes; with AVX-512, for rows that are not few */
    CPU_PAIRED = 1024, /* twice as many units of 512 bits add as multiply */
};

/* The levels that processor and operating system support. */
unsigned cpu_detect(void);

/* The same, and the kinds of AVX-512 whose kernels run here, though others are faster. */
unsigned cpu_runnable(void);

/* name: "ref", "avx2", "avxvnni", "avx512", "amx", "neon", "dotprod" or "i8mm", the highest level to use; NULL: environment
 * variable TUTTI_CPU, else the best supported one. TUTTI_E_ARGUMENT: an unknown name. TUTTI_E_UNSUPPORTED:
 * this processor lacks it. */
MUST_CHECK enum tutti_status cpu_find(unsigned *out, const char *name, struct tutti_error *err);

/* The name of the highest level in cpu. */
const char *cpu_name(unsigned cpu);

/* ---- linear ---- */

/* Packs columns begin..end-1 of a tile of input rows (n_rows: 1..TILE_ROWS) in the layout for the
 * weights' type. x: row r at x + r * stride. begin: a multiple of 32; end too, or n_in. dst: the
 * whole tile, 64-byte aligned, tile_bytes() long.
 *
 * F32, F16 and 8-bit float weights: float [n_in][n_rows].
 * BF16 weights: bf16 [n_in / 2, rounded up][n_rows][2 columns], rounded to nearest even.
 * Quantized weights: blocks of 32 columns of int8 with one scale each (input_block.h). A block
 * below 2^-100 becomes zero; a block with a NaN, an infinity or a number of 2^110 or more makes
 * its row NaN. */
typedef void tile_fn(void *dst, const float *x, size_t stride, int n_rows, int begin, int end);

/* Rows from one half of a panel's outputs to the other: n_rows, or more where an element of one half would
 * have nearly the same place in a page as an element of the other in the same row. Processors take a load
 * from there, while the store is under way, for one of the same address, and wait. */
static inline int half_rows(int n_rows)
{
    return n_rows <= 40 ? n_rows : (n_rows + 31) / 64 * 64 + 32;
}

/* Floats of the outputs of a panel for n_rows rows. */
static inline int panel_floats(int n_rows)
{
    return 2 * half_rows(n_rows) * LANES;
}

/* out[h][r][i] = sum over columns of row 16h + i of the panel with input row r. out:
 * [2][half_rows(n_rows)][16], of each half n_rows. panel: packed weights of n_in columns; memory after it is prefetched. x: a
 * tile of n_rows input rows.
 *
 * F32 and F16 weights: fma over runs of 512 columns, from the first; each run starts at 0 and is
 * added to the total. BF16 weights: the same, but the odd column of each pair comes first, and
 * denormals are zero in inputs and in every sum, as vdpbf16ps does. 8-bit floats (float8.h): fma of
 * 2^-8 times the number over runs of 128 columns, each from 0; F8_BLOCK: total = fma(run, 2^8 times the
 * run's scale, total); F8_ROW: total += run, and the last total is multiplied by 2^8 times the scale.
 * Quantized weights
 * (formats.h): block by block of 32 columns, total = fma(number * d, scale, total) for each run
 * of sub columns, where number is the exact integer sum of (u - zero) * q, and d the activations'
 * scale. Then, with has_min, total = fma(-sum(q) * d, min, total) for each run; where a zero point is
 * subtracted as well, of that many times the sum and the min divided by it. All factors are exact. */
typedef void linear_fn(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in);

/* ---- rows ---- */

/* y[r][i] = x[r][i] * w[i] / sqrt(mean(x[r][:]^2) + eps). x, y: [n_rows][n], may be the same; w:
 * [n]. Element i goes into sum i % 16 by fused multiply-add; the 16 sums are reduced pairwise (i
 * with i + 8, then 4, 2, 1). Zhang and Sennrich, 2019, equation 4. */
typedef void rmsnorm_fn(float *y, const float *x, const float *w, int n_rows, int n, float eps);

/* y[r][i] = (x[r][i] - mean) * (1 / sqrt(variance + eps)) * w[i] + b[i]; mean and variance
 * (biased) of row r, each from 16 sums as above. x, y: [n_rows][n], may be the same; w, b: [n].
 * Ba et al., 2016. */
typedef void layernorm_fn(float *y, const float *x, const float *w, const float *b, int n_rows, int n,
                          float eps);

/* x += y, n elements. */
typedef void add_fn(float *x, const float *y, int64_t n);

/* y = x * factor, n elements; may be the same. */
typedef void scale_fn(float *y, const float *x, float factor, int64_t n);

/* x = fma(scale, base, add), n elements. x may be base or add. */
typedef void scale_add_fn(float *x, const float *base, float scale, const float *add, int64_t n);

/* y[i] = gate[i] / (1 + exp(-z)) * up[i]. y may be gate or up. silu_mul: z = gate[i]; gelu_tanh_mul: z
 * as in gelu_fn. Shazeer, 2020 (SwiGLU, GEGLU). silu_clamped_mul: gate is at most 7, up within +-7, z =
 * 1.702 gate, and the second factor is up + 1; OpenAI, 2025 (gpt-oss). NaN is not clamped. */
typedef void glu_fn(float *y, const float *gate, const float *up, int64_t n);

/* x = x / (1 + exp(-z)), n elements in place; Hendrycks and Gimpel, 2016. gelu_tanh: z = 2 sqrt(2
 * / pi) x (1 + 0.044715 x^2), the tanh approximation; gelu_sigmoid: z = 1.702 x. gelu_erf: x times
 * the normal distribution's integral up to x. */
typedef void gelu_fn(float *x, int64_t n);

/* x = cap tanh(x / cap), n elements in place: bounds values softly. cap > 0. */
typedef void softcap_fn(float *x, float cap, int64_t n);

/* y = exp(x - max(x)) / sum. Element i goes into sum i % 16, reduced as in rmsnorm_fn. y may be
 * x. n >= 1. */
typedef void softmax_fn(float *y, const float *x, int n);

/* Rotates n_heads heads of head_dim floats in place: u' = u cos - v sin, v' = v cos + u sin.
 * cos_sin: [2][rotary_dim / 2]. Pairs are (2j, 2j + 1) or (j, j + rotary_dim / 2). Su et al., 2021. */
typedef void rope_fn(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim);

/* A low-rank update y += B . (A . x) of n_rows rows with the same factors, in two functions. Hu
 * et al., 2021 (LoRA), equation 3. A row's bits do not depend on the other rows. down: t[r][i] =
 * a[i] . x[r]; a: [rank][n]. Element k goes into sum k % 16 by fused multiply-add, reduced as in
 * rmsnorm_fn. up: y[r][j] += sum over i of t[r][i] * b[i][j], starting at 0 with i = 0, by fused
 * multiply-add. Row i of b begins at i * stride. y and b may begin at any column, as elements are
 * independent. n_rows: 1..LORA_ROWS, which amortizes reading and widening the factors. */
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

/* ---- attention ---- */

/* Layout of keys and values of one page and head. Float types: keys [head_dim][16], values
 * [16][head_dim]. int8, interleaved so that two products are added to one 32-bit sum: keys
 * [head_dim / 2][16][2] and float scales [16]; values [8][head_dim][2] (pairs of positions) and
 * float scales [16]. An element is int8 * the scale of its position.
 *
 * Latent pages (multi-head latent attention, DeepSeek-AI, 2024, section 2.1): one row for each
 * position, [16][head_dim], which is the key; its first n_latent elements are the value too. int8:
 * rows, then float scales [16] of the first n_latent elements and [16] of the others, whose range
 * differs.
 *
 * Rows of keys and values are quantized by to_int8_fn. */

/* The positions that one query attends to: begin..end-1, at least one. */
struct attention_view {
    int begin, end;
    int pos;     /* its own position */
    float slope; /* ALiBi; 0: none */
};

/* The input of attention: up to 16 queries over the same keys. */
struct attention_work {
    const float *q;                     /* [n_queries][head_dim], multiplied by the scale */
    const struct attention_view *views; /* [n_queries] */
    int n_queries, head_dim;            /* head_dim: a multiple of 8 up to ATTENTION_MAX_DIM */
    int n_latent;                       /* > 0: latent pages; a multiple of 8, less than head_dim */
    float softcap;                      /* of scores, as softcap_fn; 0: none. Not together with a slope */
    const uint8_t *base;                /* of the keys of this layer and head in page 0 */
    size_t page_bytes;                  /* from one page to the next */
    size_t values_offset;               /* from keys to values; of latent pages 0 */
    const int32_t *page_table;          /* page_table[p / 16] holds position p */
    /* [ATTENTION_PREFETCH_PAGES] keys of the pages to read after this block, for prefetch; NULL: unknown */
    const uint8_t *const *next;
};

static inline int attention_value_dim(const struct attention_work *work)
{
    return work->n_latent > 0 ? work->n_latent : work->head_dim;
}

/* The online-softmax state of queries after some blocks. total 0: no block yet, the rest is
 * undefined. */
struct attention_sums {
    float *max, *total; /* [n_queries]: the largest score; the sum of exp(score - max) */
    float *o;           /* [n_queries][attention_value_dim()]: the sum of exp(score - max) * value */
};

/* Attention over positions 256 block .. 256 block + 255 only, into sums. A query that attends to
 * none of them gets total 0. Positions outside a query's view do not influence it, whatever the
 * page contains there.
 *
 * A score is a chain of fma over the dimensions; of a latent page, whose rows are contiguous, dimension
 * d goes into sum d % 16 by fma, and the sums are reduced as in rmsnorm_fn. Then the softcap is applied.
 * With a slope: fma(slope, (float)(key's position - pos), score). p = exp(score - max). total: position i
 * goes into sum i % 16, reduced as in rmsnorm_fn. o: fma(p, value, o) from 0, position by position.
 *
 * int8: q is quantized like a row of keys, but to +-limit, the largest number up to 32767 for
 * which no sum overflows: score = (float)(integer sum) * (key's scale * q's scale). Let w = p *
 * value's scale, and top the largest w; then o = (float)(integer sum of values with w rounded to
 * 32767ths of top) * (top / 32767), or 0 where top < 2^-100. Latent pages: q's first n_latent dimensions
 * and the others are quantized separately, and score = fma((float)(sum of the others), scale * q's
 * scale of them, product of the first). */
typedef void attention_fn(const struct attention_sums *sums, const struct attention_work *work, int block);

/* Merges the blocks of from into those of into, which all come before: scale a = exp(into's max -
 * top), b of from likewise; into = fma(from, b, into * a), for totals and o. After Milakov and
 * Gimelshein, 2018, and Dao et al., 2022; splitting a long context at fixed positions and merging
 * in order makes the bits independent of which thread computes which block. */
typedef void attention_merge_fn(const struct attention_sums *into, const struct attention_sums *from,
                                int n_queries, int value_dim);

/* q = x * (127 / max|x|) rounded to nearest even; returns the scale max|x| / 127. Where max|x| <
 * 2^-100, q and scale are 0; if an x is not finite, q = 0 and the scale is NaN. */
typedef float to_int8_fn(int8_t *q, const float *x, int n);

/* y = x / divisor, n elements. */
typedef void divide_fn(float *y, const float *x, float divisor, int n);

/* ---- sampling ---- */

struct logits_scan {
    bool is_finite; /* no NaN, no infinity; else the rest is undefined */
    float max;
    int argmax;        /* the lowest index of max */
    float log_sum_exp; /* log(sum(exp(x))) */
};

/* The vector part of logits_scan(): false where any element is NaN or infinite. */
typedef bool scan_max_fn(const float *x, int n, float *max);
/* sum of exp((x - max) * scale), element i into sum i % 16, reduced as in rmsnorm_fn. */
typedef float sum_exp_fn(const float *x, int n, float max, float scale);
/* out[i] = exp((x[i] - max) * scale), the terms of that sum. */
typedef void exps_fn(const float *x, int n, float max, float scale, float *out);
/* Index of the first element in begin..n-1 that is > bound, else n. NaN is never found. */
typedef int find_above_fn(const float *x, int begin, int n, float bound);

/* Sampling as a race of exponential clocks (the Gumbel-max trick): token i arrives at time -log(1
 * - v) / w, where v = mix64(seed ^ i) / 2^64 and w = exp((x - max) * scale). The first token to
 * arrive is the sample. */
struct arrival_bound {
    uint64_t seed;
    float max, scale;
    float first; /* finite; tokens that arrive later are not searched for */
};

/* Index of the first token in begin..n-1 that may arrive before r->first, else n. It has no false
 * negatives and few false positives: it uses the upper 24 bits of v as the time, with a margin
 * for the error of exp(). */
typedef int find_arrival_fn(const float *x, int begin, int n, const struct arrival_bound *r);

/* ---- the table ---- */

struct kernels {
    unsigned cpu;
    tile_fn *tile[DTYPE_COUNT];     /* by weight type */
    linear_fn *linear[DTYPE_COUNT]; /* by weight type */
    rmsnorm_fn *rmsnorm;
    layernorm_fn *layernorm;
    add_fn *add;
    scale_fn *scale;
    scale_add_fn *scale_add;
    glu_fn *silu_mul, *silu_clamped_mul, *gelu_tanh_mul;
    gelu_fn *gelu_tanh, *gelu_sigmoid, *gelu_erf;
    softcap_fn *softcap;
    softmax_fn *softmax;
    rope_fn *rope_interleaved, *rope_half;
    attention_fn *attention_f16, *attention_bf16, *attention_f32, *attention_int8;
    attention_merge_fn *attention_merge;
    to_int8_fn *to_int8;
    divide_fn *divide;
    scan_max_fn *scan_max;
    sum_exp_fn *sum_exp;
    exps_fn *exps;
    find_above_fn *find_above;
    find_arrival_fn *find_arrival;
    to_half_fn *to_half;
    lora_down_fn *lora_down;
    lora_up_fn *lora_up;
    lora_down_half_fn *lora_down_half;
    lora_up_half_fn *lora_up_half;
};

void kernels_init(struct kernels *k, unsigned cpu); /* cpu: from cpu_find(), or a lower level in tests */

/* ---- functions that use the table ---- */

/* Bytes of a tile of n_rows input rows for weights of this type; 0 if n_in is no multiple of the
 * type's block. */
size_t tile_bytes(enum dtype dtype, int n_rows, int n_in);

/* The lowest index of the largest x; -1: x contains a NaN or an infinity. n >= 1. */
int logits_argmax(const struct kernels *k, const float *x, int n);

/* Maximum, argmax and log-sum-exp of one row of logits. n >= 1. */
struct logits_scan logits_scan(const struct kernels *k, const float *x, int n);

#endif
