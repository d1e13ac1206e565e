/* Quantized weights as the kernels see them: one scheme for every type, with the type's
 * properties as parameters.
 *
 * A stored number u is an unsigned integer of low_bits + high_bits bits, or, with a table, the
 * number at that place of the table. Its weight is
 *     scale * (u - zero)      or, with has_min,      scale * u - min,
 * with one scale (and min) for each output row and run of `sub` columns. Scales and mins are
 * float16; with is_super they are signed bytes, multiplied by one float16 per 256 columns. A scale may
 * serve a longer group of columns, and the min then be a signed byte times the scale. The
 * types of grids (IQ1 to IQ3) are expanded to places of four bits when they are packed, which
 * loses nothing.
 *
 * Layouts on disk: base/dtype.h. Packed layout: pack.h. Dettmers et al., 2022 (blockwise
 * quantization). */
#ifndef TUTTI_KERNELS_FORMATS_H
#define TUTTI_KERNELS_FORMATS_H

#include "kernels/kernels.h"

/* M(name, dtype, further arguments) for each quantized type; first for those with format_is_paired(). */
#define FOR_EACH_PAIRED(M, ...)                                                                              \
    M(q4_0, DTYPE_Q4_0, ##__VA_ARGS__)                                                                       \
    M(q4_1, DTYPE_Q4_1, ##__VA_ARGS__)                                                                       \
    M(q4_k, DTYPE_Q4_K, ##__VA_ARGS__)                                                                       \
    M(mxfp4, DTYPE_MXFP4, ##__VA_ARGS__)                                                                     \
    M(g4_64, DTYPE_G4_64, ##__VA_ARGS__)                                                                     \
    M(g4_128, DTYPE_G4_128, ##__VA_ARGS__)                                                                   \
    M(g4z_32, DTYPE_G4Z_32, ##__VA_ARGS__)                                                                   \
    M(g4z_64, DTYPE_G4Z_64, ##__VA_ARGS__)                                                                   \
    M(g4z_128, DTYPE_G4Z_128, ##__VA_ARGS__)
#define FOR_EACH_QUANTIZED(M, ...)                                                                           \
    FOR_EACH_PAIRED(M, ##__VA_ARGS__)                                                                        \
    M(q5_0, DTYPE_Q5_0, ##__VA_ARGS__)                                                                       \
    M(q5_1, DTYPE_Q5_1, ##__VA_ARGS__)                                                                       \
    M(q8_0, DTYPE_Q8_0, ##__VA_ARGS__)                                                                       \
    M(q2_k, DTYPE_Q2_K, ##__VA_ARGS__)                                                                       \
    M(q3_k, DTYPE_Q3_K, ##__VA_ARGS__)                                                                       \
    M(q5_k, DTYPE_Q5_K, ##__VA_ARGS__)                                                                       \
    M(q6_k, DTYPE_Q6_K, ##__VA_ARGS__)                                                                       \
    M(iq4_nl, DTYPE_IQ4_NL, ##__VA_ARGS__)                                                                   \
    M(iq4_xs, DTYPE_IQ4_XS, ##__VA_ARGS__)                                                                   \
    M(iq2_xxs, DTYPE_IQ2_XXS, ##__VA_ARGS__)                                                                 \
    M(iq2_xs, DTYPE_IQ2_XS, ##__VA_ARGS__)                                                                   \
    M(iq2_s, DTYPE_IQ2_S, ##__VA_ARGS__)                                                                     \
    M(iq3_xxs, DTYPE_IQ3_XXS, ##__VA_ARGS__)                                                                 \
    M(iq3_s, DTYPE_IQ3_S, ##__VA_ARGS__)                                                                     \
    M(iq1_s, DTYPE_IQ1_S, ##__VA_ARGS__)                                                                     \
    M(iq1_m, DTYPE_IQ1_M, ##__VA_ARGS__)                                                                     \
    M(g8_64, DTYPE_G8_64, ##__VA_ARGS__)                                                                     \
    M(g8_128, DTYPE_G8_128, ##__VA_ARGS__)

/* Tables of 16 numbers, for types whose stored numbers are places in a table: format_largest(). */
enum number_table {
    NUMBERS_PLAIN, /* none: a number is itself */
    NUMBERS_E2M1,
    NUMBERS_IQ4,
    NUMBERS_IQ2, /* bit 2 of the place is the sign; of IQ3 bit 3 */
    NUMBERS_IQ3_XXS,
    NUMBERS_IQ3_S,
    NUMBERS_IQ1, /* in eighths; bit 2: the offset is negative */
    NUMBERS_COUNT
};
extern const uint8_t number_tables[NUMBERS_COUNT][16]; /* grids.c */

struct quant_format {
    int low_bits, high_bits; /* planes of a stored number: 2, 4 or 8, and 0, 1 or 2 */
    int zero;                /* 0, or a power of two */
    int sub;                 /* columns under one scale: 32 or 16 */
    bool has_min, is_super;
    bool is_joint; /* scale and min share a byte: low and high nibble */
    enum number_table table;
    bool is_exponent; /* a scale is 2^(byte - 128), and a unit has two blocks */
    bool is_eighth;   /* scales are multiplied by 1 / 8 */
    bool is_six;      /* the 16 sub-scales of a unit have six bits: format_widen() */
    int group; /* columns with one scale, whose unit has n_groups of them; 0: sub, or of is_super 256 */
    int n_groups;
    bool has_zero; /* with a group: min is the scale times a signed byte of each group; has_min is set, too */
};

#define GRID_FORMAT(zero_, sub_, table_, is_eighth_)                                                         \
    ((struct quant_format){ .low_bits = 4,                                                                   \
                            .zero = (zero_),                                                                 \
                            .sub = (sub_),                                                                   \
                            .is_super = true,                                                                \
                            .table = (table_),                                                               \
                            .is_eighth = (is_eighth_) })

/* One group has its zeros in a line of their own; two of them share one. */
#define GROUP_FORMAT(bits, group_, has_zero_)                                                                \
    ((struct quant_format){ .low_bits = (bits),                                                              \
                            .zero = 1 << ((bits)-1),                                                         \
                            .sub = 32,                                                                       \
                            .group = (group_),                                                               \
                            .n_groups = (has_zero_) && (group_) < 128 ? 2 : 1,                               \
                            .has_min = (has_zero_),                                                          \
                            .has_zero = (has_zero_) })

/* dtype: a quantized type. If it is a compile-time constant, so is the result. */
static inline __attribute__((always_inline)) struct quant_format quant_format(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q4_0:
        return (struct quant_format){ .low_bits = 4, .zero = 8, .sub = 32 };
    case DTYPE_Q4_1:
        return (struct quant_format){ .low_bits = 4, .sub = 32, .has_min = true };
    case DTYPE_Q5_0:
        return (struct quant_format){ .low_bits = 4, .high_bits = 1, .zero = 16, .sub = 32 };
    case DTYPE_Q5_1:
        return (struct quant_format){ .low_bits = 4, .high_bits = 1, .sub = 32, .has_min = true };
    case DTYPE_Q2_K:
        return (struct quant_format){
            .low_bits = 2, .sub = 16, .has_min = true, .is_super = true, .is_joint = true
        };
    case DTYPE_Q3_K:
        return (struct quant_format){
            .low_bits = 2, .high_bits = 1, .zero = 4, .sub = 16, .is_super = true, .is_six = true
        };
    case DTYPE_Q4_K:
        return (struct quant_format){ .low_bits = 4, .sub = 32, .has_min = true, .is_super = true };
    case DTYPE_Q5_K:
        return (struct quant_format){
            .low_bits = 4, .high_bits = 1, .sub = 32, .has_min = true, .is_super = true
        };
    case DTYPE_Q6_K:
        return (
            struct quant_format){ .low_bits = 4, .high_bits = 2, .zero = 32, .sub = 16, .is_super = true };
    case DTYPE_MXFP4:
        return (struct quant_format){
            .low_bits = 4, .zero = 16, .sub = 32, .table = NUMBERS_E2M1, .is_exponent = true
        };
    case DTYPE_IQ4_NL:
        return (struct quant_format){ .low_bits = 4, .zero = 128, .sub = 32, .table = NUMBERS_IQ4 };
    case DTYPE_IQ4_XS:
        return (struct quant_format){
            .low_bits = 4, .zero = 128, .sub = 32, .is_super = true, .table = NUMBERS_IQ4
        };
    case DTYPE_IQ2_XXS:
        return GRID_FORMAT(64, 32, NUMBERS_IQ2, true);
    case DTYPE_IQ2_XS:
    case DTYPE_IQ2_S:
        return GRID_FORMAT(64, 16, NUMBERS_IQ2, true);
    case DTYPE_IQ3_XXS:
        return GRID_FORMAT(64, 32, NUMBERS_IQ3_XXS, true);
    case DTYPE_IQ3_S:
        return GRID_FORMAT(16, 32, NUMBERS_IQ3_S, false);
    case DTYPE_IQ1_S:
        return GRID_FORMAT(16, 32, NUMBERS_IQ1, true);
    case DTYPE_IQ1_M:
        return GRID_FORMAT(16, 16, NUMBERS_IQ1, true);
    case DTYPE_G4_64:
        return GROUP_FORMAT(4, 64, false);
    case DTYPE_G4_128:
        return GROUP_FORMAT(4, 128, false);
    case DTYPE_G8_64:
        return GROUP_FORMAT(8, 64, false);
    case DTYPE_G8_128:
        return GROUP_FORMAT(8, 128, false);
    case DTYPE_G4Z_32:
        return GROUP_FORMAT(4, 32, true);
    case DTYPE_G4Z_64:
        return GROUP_FORMAT(4, 64, true);
    case DTYPE_G4Z_128:
        return GROUP_FORMAT(4, 128, true);
    default: /* Q8_0 */
        return (struct quant_format){ .low_bits = 8, .zero = 128, .sub = 32 };
    }
}

static inline __attribute__((always_inline)) int format_unit_columns(struct quant_format f)
{
    return f.group > 0 ? f.group * f.n_groups : f.is_super ? 256 : f.is_exponent ? 2 * BLOCK : BLOCK;
}

/* A bound of the numbers u. */
static inline __attribute__((always_inline)) int format_largest(struct quant_format f)
{
    return f.table == NUMBERS_PLAIN ? (1 << (f.low_bits + f.high_bits)) - 1 : f.zero == 16 ? 31 : 255;
}

/* Whether some columns of a block can be multiplied in pairs (input_block.h): with one run, and numbers of which none is
 * further than 12 from format_middle(). */
static inline __attribute__((always_inline)) bool format_is_paired(struct quant_format f)
{
    return f.sub == BLOCK && f.low_bits == 4 && f.high_bits == 0 &&
           (f.table == NUMBERS_PLAIN || f.table == NUMBERS_E2M1);
}

/* What paired columns subtract from the numbers u. */
static inline __attribute__((always_inline)) int format_middle(struct quant_format f)
{
    return f.table == NUMBERS_PLAIN ? 8 : f.zero;
}

/* The bound of an input's number: signed bytes, which in pairs hold the sum with a weight of -8 to 7 or -12 to 12. */
static inline __attribute__((always_inline)) int format_most_input(struct quant_format f)
{
    return !format_is_paired(f) ? 127 : f.table == NUMBERS_PLAIN ? 120 : 115;
}

/* Bytes of a plane of one block and 16 rows: 512 numbers. */
static inline __attribute__((always_inline)) size_t format_low_bytes(struct quant_format f)
{
    return 64 * (size_t)f.low_bits;
}

static inline __attribute__((always_inline)) size_t format_half_bytes(struct quant_format f)
{
    return 64 * (size_t)(f.low_bits + f.high_bits);
}

/* Bytes of a unit's sub-scales (or mins); 0 if the type has none. */
static inline __attribute__((always_inline)) size_t format_subs_bytes(struct quant_format f)
{
    return f.is_six ? 12 * PANEL_ROWS : f.is_super ? (size_t)(256 / f.sub) * PANEL_ROWS : 0;
}

static inline __attribute__((always_inline)) size_t format_param_bytes(struct quant_format f)
{
    size_t halves = 2 * PANEL_ROWS, subs = format_subs_bytes(f);
    if (f.is_exponent)
        return 2 * PANEL_ROWS;
    if (f.group > 0)
        return (size_t)f.n_groups * halves + (f.has_zero ? 64 : 0);
    return f.has_min ? 2 * halves + (f.is_joint ? subs : 2 * subs) : halves + subs;
}

enum { FORMAT_WIDE = 16 * PANEL_ROWS };

/* Sub-scales of six bits, less 32, as bytes: [16][32]. Packed, the low four bits of s and s + 8 share a byte,
 * [8][32], then the high two bits of s, s + 4, s + 8 and s + 12, [4][32]. */
static inline __attribute__((always_inline)) void format_widen(uint8_t wide[FORMAT_WIDE],
                                                               const uint8_t *packed)
{
    enum { N = 4 * PANEL_ROWS };
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < N; i++)
            wide[k * N + i] = (uint8_t)(((packed[k % 2 * N + i] >> (k / 2 * 4) & 15) |
                                         (packed[2 * N + i] >> (2 * k) & 3) << 4) -
                                        32);
}

/* Where the float16 scales of a block of the unit begin, and the zeros of its group. */
static inline __attribute__((always_inline)) size_t format_scale_at(struct quant_format f, int block)
{
    return f.group > 0 ? 2 * PANEL_ROWS * (size_t)(block * BLOCK / f.group) : 0;
}

static inline __attribute__((always_inline)) size_t format_zero_at(struct quant_format f, int block)
{
    return 2 * PANEL_ROWS * (size_t)f.n_groups + PANEL_ROWS * (size_t)(block * BLOCK / f.group);
}

static inline __attribute__((always_inline)) size_t format_unit_bytes(struct quant_format f)
{
    return format_param_bytes(f) + (size_t)(format_unit_columns(f) / BLOCK) * 2 * format_half_bytes(f);
}

#endif
