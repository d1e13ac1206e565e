/* Quantized weights as the kernels see them: one scheme for every type, with the type's
 * properties as parameters.
 *
 * A stored number u is an unsigned integer of low_bits + high_bits bits. Its weight is
 *     scale * (u - zero)      or, with has_min,      scale * u - min,
 * with one scale (and min) for each output row and run of `sub` columns. Scales and mins are
 * float16; with is_super they are signed bytes, multiplied by one float16 per 256 columns.
 *
 * Layouts on disk: base/dtype.h. Packed layout: pack.h. Dettmers et al., 2022 (blockwise
 * quantization). */
#ifndef TUTTI_KERNELS_FORMATS_H
#define TUTTI_KERNELS_FORMATS_H

#include "kernels/kernels.h"

/* M(name, dtype) for each quantized type. */
#define FOR_EACH_QUANTIZED(M)                                                                                \
    M(q4_0, DTYPE_Q4_0)                                                                                      \
    M(q4_1, DTYPE_Q4_1)                                                                                      \
    M(q5_0, DTYPE_Q5_0)                                                                                      \
    M(q5_1, DTYPE_Q5_1)                                                                                      \
    M(q8_0, DTYPE_Q8_0)                                                                                      \
    M(q2_k, DTYPE_Q2_K)                                                                                      \
    M(q3_k, DTYPE_Q3_K)                                                                                      \
    M(q4_k, DTYPE_Q4_K)                                                                                      \
    M(q5_k, DTYPE_Q5_K)                                                                                      \
    M(q6_k, DTYPE_Q6_K)

struct quant_format {
    int low_bits, high_bits; /* planes of a stored number: 2, 4 or 8, and 0, 1 or 2 */
    int zero;                /* 0, or a power of two */
    int sub;                 /* columns under one scale: 32 or 16 */
    bool has_min, is_super;
    bool is_joint; /* scale and min share a byte: low and high nibble */
};

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
        return (struct quant_format){ .low_bits = 2, .high_bits = 1, .zero = 4, .sub = 16, .is_super = true };
    case DTYPE_Q4_K:
        return (struct quant_format){ .low_bits = 4, .sub = 32, .has_min = true, .is_super = true };
    case DTYPE_Q5_K:
        return (struct quant_format){
            .low_bits = 4, .high_bits = 1, .sub = 32, .has_min = true, .is_super = true
        };
    case DTYPE_Q6_K:
        return (
            struct quant_format){ .low_bits = 4, .high_bits = 2, .zero = 32, .sub = 16, .is_super = true };
    default: /* Q8_0 */
        return (struct quant_format){ .low_bits = 8, .zero = 128, .sub = 32 };
    }
}

static inline __attribute__((always_inline)) int format_unit_columns(struct quant_format f)
{
    return f.is_super ? 256 : BLOCK;
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
    return f.is_super ? (size_t)(256 / f.sub) * PANEL_ROWS : 0;
}

static inline __attribute__((always_inline)) size_t format_param_bytes(struct quant_format f)
{
    size_t halves = 2 * PANEL_ROWS, subs = format_subs_bytes(f);
    return f.has_min ? 2 * halves + (f.is_joint ? subs : 2 * subs) : halves + subs;
}

static inline __attribute__((always_inline)) size_t format_unit_bytes(struct quant_format f)
{
    return format_param_bytes(f) + (size_t)(format_unit_columns(f) / BLOCK) * 2 * format_half_bytes(f);
}

#endif
