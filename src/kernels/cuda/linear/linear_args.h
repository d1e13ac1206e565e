/* Linear layers on a card: how weights lie in the card's memory, and the arguments of the kernels.
 *
 * A tile is 16 outputs (of gate and up: 8 of gate, then the same 8 of up). A tile's columns are cut into steps of 64, which are
 * padded with zeros. In a step, lane 4g + t of a warp has columns 16t to 16t + 15 of outputs g and g + 8, as eight pairs of
 * columns for each of the two. So a lane's numbers lie under one scale for each output, also where a scale is that of 16
 * columns; pairs 2j and 2j + 1 are its part of the j-th of four mma instructions (device.h), whose order of columns only
 * has to be the same in weights and inputs.
 *
 * A unit is the least that has whole scales: one step, or for types with super-blocks the four steps of 256 columns. It
 * consists of planes: the numbers' low bits, step by step, as many words for each lane as a number has low bits; then
 * their high bits, likewise; then the scales. A lane's words of a step lie together, up to 16 bytes, so that a warp loads
 * 512 consecutive bytes at once.
 *
 * The numbers of a word are placed so that a mask and at most one shift leave a pair of them in the
 * mantissas of two float16. A denormal half n * 2^-24 is an exact product's factor: fma(n * 2^-24, scale * 2^24, -min) is
 * the weight, rounded once. No number needs a conversion, and two weights cost about three instructions. To have 2^24 times the
 * scale in range, the scales of an output are multiplied by a power of two when they are packed, and the result by its
 * inverse (scales of struct linear_args). */
#ifndef TUTTI_KERNELS_CUDA_LINEAR_ARGS_H
#define TUTTI_KERNELS_CUDA_LINEAR_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum linear_format {
    LINEAR_F32,
    LINEAR_F16,
    LINEAR_Q4_0,
    LINEAR_Q4_1,
    LINEAR_Q5_0,
    LINEAR_Q5_1,
    LINEAR_Q8_0,
    LINEAR_Q2_K,
    LINEAR_Q3_K,
    LINEAR_Q4_K,
    LINEAR_Q5_K,
    LINEAR_Q6_K,
    LINEAR_MXFP4,
    N_LINEAR_FORMATS
};

enum {
    LINEAR_TILE = 16,       /* outputs of a tile */
    LINEAR_STEP = 64,       /* columns of a step */
    LINEAR_X_COLUMNS = 256, /* converted input rows are padded to a multiple of these, by zeros */
    LINEAR_X_ROWS = 128,    /* converted input rows that may be read, but not used, after the last */
    LINEAR_MAX_SPLITS = 8,  /* of the columns */
    LINEAR_F32_SPLITS = 16,
};

struct linear_layout {
    int low, high; /* bits of a number, in two planes */
    int zero;      /* is subtracted from a number */
    bool has_min, is_super;
    int scale_bytes; /* of a unit */
};

/* The format of a constant is a constant. */
static inline __attribute__((always_inline)) struct linear_layout linear_layout(enum linear_format format)
{
    switch (format) {
    case LINEAR_Q4_0:
        return (struct linear_layout){ .low = 4, .zero = 8, .scale_bytes = 64 };
    case LINEAR_Q4_1:
        return (struct linear_layout){ .low = 4, .has_min = true, .scale_bytes = 128 };
    case LINEAR_Q5_0:
        return (struct linear_layout){ .low = 4, .high = 1, .zero = 16, .scale_bytes = 64 };
    case LINEAR_Q5_1:
        return (struct linear_layout){ .low = 4, .high = 1, .has_min = true, .scale_bytes = 128 };
    case LINEAR_Q8_0:
        return (struct linear_layout){ .low = 8, .zero = 128, .scale_bytes = 64 };
    case LINEAR_Q2_K:
        return (struct linear_layout){ .low = 2, .has_min = true, .is_super = true, .scale_bytes = 256 + 64 };
    case LINEAR_Q3_K:
        return (struct linear_layout){
            .low = 2, .high = 1, .zero = 4, .is_super = true, .scale_bytes = 128 + 64 + 32
        };
    case LINEAR_Q4_K:
        return (struct linear_layout){ .low = 4, .has_min = true, .is_super = true, .scale_bytes = 256 + 64 };
    case LINEAR_Q5_K:
        return (struct linear_layout){
            .low = 4, .high = 1, .has_min = true, .is_super = true, .scale_bytes = 256 + 64
        };
    case LINEAR_Q6_K:
        return (struct linear_layout){
            .low = 4, .high = 2, .zero = 32, .is_super = true, .scale_bytes = 256 + 32
        };
    case LINEAR_MXFP4:
        return (struct linear_layout){ .low = 4, .scale_bytes = 32 };
    case LINEAR_F32:
        return (struct linear_layout){ .low = 32 };
    default:
        return (struct linear_layout){ .low = 16 };
    }
}

/* Steps of a unit. */
static inline __attribute__((always_inline)) int linear_unit_steps(enum linear_format format)
{
    return linear_layout(format).is_super ? 4 : 1;
}

/* Where the high bits and the scales of a unit begin. */
static inline __attribute__((always_inline)) int linear_high_at(enum linear_format format)
{
    return linear_unit_steps(format) * linear_layout(format).low * 128;
}

static inline __attribute__((always_inline)) int linear_scales_at(enum linear_format format)
{
    struct linear_layout l = linear_layout(format);
    return linear_unit_steps(format) * (l.low + l.high) * 128;
}

static inline __attribute__((always_inline)) int linear_unit_bytes(enum linear_format format)
{
    return linear_scales_at(format) + linear_layout(format).scale_bytes;
}

/* Word w of a lane's low bits of a step: bytes from the unit. */
static inline __attribute__((always_inline)) int linear_low_at(enum linear_format format, int step, int lane,
                                                               int w)
{
    int low = linear_layout(format).low;
    return step * low * 128 + (low == 2 ? lane * 8 + w * 4 : w / 4 * 512 + lane * 16 + w % 4 * 4);
}

/* The places of pair i (0..7) in the low bits of a lane: its word for output g + 8 r, and the bit of the pair's first
 * number in the low half of the word; the second is in the high half. */
static inline __attribute__((always_inline)) int linear_low_word(int low, int r, int i)
{
    return low == 2 ? r : low == 4 ? 2 * r + i / 4 : low == 8 ? 4 * r + i / 2 : i / 2 * 4 + i % 2 * 2 + r;
}

static inline __attribute__((always_inline)) int linear_low_shift(int low, int i)
{
    return low == 2 ? i * 2 : low == 4 ? i % 4 * 4 : low == 8 ? i % 2 * 8 : 0;
}

/* The same of the high bits: one bit of both outputs share a word, two bits of each have one. The two pairs 2k and 2k + 1
 * are four bits apart, as in the low bits. */
static inline __attribute__((always_inline)) int linear_high_word(int high, int r)
{
    return high == 2 ? r : 0;
}

static inline __attribute__((always_inline)) int linear_high_shift(int high, int r, int i)
{
    int k = i / 2;
    return i % 2 * 4 + (high == 2 ? k % 2 * 2 + k / 2 * 8 : 8 * r + k);
}

/* Q3_K: the words of both planes have five numbers in each half, above its bit 0; and bit b of the last number, number 15, is bit 0 of
 * word b. The number of a pair, and the word (2: of the plane of high bits) and place of its bit: */
static inline __attribute__((always_inline)) int linear_three_number(int r, int i)
{
    return i / 4 * 8 + r * 4 + i % 4;
}

static inline __attribute__((always_inline)) int linear_three_word(int number, int bit)
{
    return number < 15 ? number / 5 : bit;
}

static inline __attribute__((always_inline)) int linear_three_shift(int number, int bit)
{
    return number < 15 ? 1 + number % 5 * 3 + bit : 0;
}

/* MXFP4: the three bits of the magnitude, and the sign. */
static inline __attribute__((always_inline)) int linear_e2m1_shift(int i)
{
    return 9 - i % 4 * 3;
}

static inline __attribute__((always_inline)) int linear_e2m1_sign(int i)
{
    return i % 4 == 0 ? 15 : i % 4 == 1 ? 12 : i % 4 == 2 ? 14 : 13;
}

/* Level 90 (linear_wgmma.h): a block of two warpgroups, each with 4 m tiles and n rows, has four batches of inputs of depth steps,
 * then n pieces that the last rows of the last batch may run into, then its sums. Bytes of these in shared memory. */
enum { WIDE_THREADS = 256, WIDE_STAGES = 4 };

static inline __attribute__((always_inline)) int linear_wide_stage(int n, int depth)
{
    return depth * LINEAR_STEP * 2 * n;
}

static inline __attribute__((always_inline)) int linear_wide_sums_at(int n, int depth)
{
    return WIDE_STAGES * linear_wide_stage(n, depth) + n * 16;
}

static inline __attribute__((always_inline)) int linear_wide_shared(int n, int m, int depth)
{
    return linear_wide_sums_at(n, depth) + WIDE_THREADS * m * n * 2;
}

/* A matrix as kernels see it. Of experts: expert e has tiles e * n_tiles and following. */
struct linear_matrix {
    const uint8_t *weights; /* [n_tiles][n_units][bytes of a unit] */
    const float *scales;    /* [n_tiles][16]: an output is multiplied by it */
    const float *bias;      /* [n_tiles][16]; NULL: none */
    int32_t n_tiles, n_units;
    int32_t split_shift; /* 1 << split_shift splits of the columns, at most LINEAR_MAX_SPLITS; of F32 16 */
    int32_t n_columns;   /* outputs; of gate and up: of each of the two */
};

/* The first unit of a split. */
static inline __attribute__((always_inline)) int linear_split_begin(const struct linear_matrix *m, int split)
{
    return (int)((uint32_t)(split * m->n_units) >> m->split_shift);
}

/* Consecutive input rows that use one expert: rows begin to begin + n - 1. */
struct linear_rows {
    int32_t expert, begin, n, unused;
};

struct linear_args {
    struct linear_matrix m;
    /* [rows and LINEAR_X_ROWS][x_stride]: float16, padded; F32: float32, as it is. Level 90: float16 in pieces (halves.h) of
     * x_stride rows */
    const void *x;
    const float
        *x_scales;  /* [rows]: the inverse of what x was multiplied by; NaN: a row that has one; F32: NULL */
    float *y;       /* row r at y + r * y_stride */
    float *partial; /* [n_splits][n_tiles][n_groups][32][4]: sums of the splits; NULL: none */
    uint32_t
        *arrived; /* [y][x], zeros: of partial on level 90: blocks of this place that have stored theirs */
    /* Of experts: the rows of block y; NULL: all rows, in their order. Blocks from *n_lists on have nothing to do. */
    const struct linear_rows *lists;
    const int32_t *n_lists;
    int32_t n_rows, x_stride, y_stride;
    int32_t n_in;                   /* of F32 */
    int32_t n_groups;               /* of 8 rows, of partial */
    int32_t is_gate_up, activation; /* activation: -1: none, y gets gate, then up */
    /* Each head has a matrix of head_outputs rows, and rows of its own: x of head h at (row * n_heads + h) * x_stride, y
     * of it at row * y_stride + h * y_head. 0: none. Block z is the head. */
    int32_t n_heads, head_outputs, y_head;
};

/* Input rows to float16, or gathered as they are. Of experts: entry e is row rows[e], with the order of the columns of its expert. */
struct linear_convert_args {
    const float *x;
    void *to;                        /* [entries][to_stride], or in pieces (halves.h) */
    float *scales;                   /* [entries] */
    const int32_t *rows;             /* NULL: entry e is row e */
    const uint16_t *order;           /* [experts][n_in]: the element of each column; NULL: 0, 1, ... */
    const struct linear_rows *lists; /* block y; NULL: block x is the entry */
    const int32_t *n_lists;
    int32_t x_stride, to_stride, n_in, order_stride;
    int32_t is_f32;          /* gathered, but not converted */
    int32_t piece_rows;      /* of all entries; with heads, those of a head are consecutive. 0: no pieces */
    int32_t n_heads, x_head; /* entry e is head e % n_heads of row e / n_heads; 0: no heads */
};

enum {
    CONVERT_THREADS = 512,
    CONVERT_HELD = 16384, /* columns of a row that linear_convert_held has in registers */
};

/* Rows of a table as float32: row ids[r] - first_id, zeros if there is none. */
struct linear_read_args {
    struct linear_matrix m;
    const int32_t *ids;    /* [rows]; NULL: 0, 1, ... */
    const uint16_t *order; /* [n_in]; NULL: none */
    float *y;              /* [rows][n_in] */
    int32_t first_id, n_out, n_in, is_gate_up;
};

#endif
