/* Types of stored tensors, with GGUF's block formats; plain types are blocks of one element.
 * Block sizes: ggml's type table (docs/gguf.md of the format's specification). */
#ifndef TUTTI_BASE_DTYPE_H
#define TUTTI_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    /* Blocks of 32 elements: */
    DTYPE_Q8_0, /* f16 d; i8 q[32]; value q * d */
    DTYPE_Q4_0, /* f16 d; u8 q[16]: element j is the low nibble of q[j], j + 16 the high one;
                   value (q - 8) * d */
    DTYPE_Q4_1, /* f16 d, m; u8 q[16] as in Q4_0; value q * d + m */
    DTYPE_Q5_0, /* f16 d; u32 high; u8 q[16] as in Q4_0, bit j of high is the fifth bit of element j;
                   value (q - 16) * d */
    DTYPE_Q5_1, /* f16 d, m; u32 high; u8 q[16] as in Q5_0; value q * d + m */
    /* Blocks of 256 elements, in eight runs of 32 (or sixteen of 16), each with a scale that is
     * multiplied by d: */
    DTYPE_Q2_K,  /* u8 scale and min nibbles[16]; u8 q[64]; f16 d, dmin; element 128 i + 32 j + l is
                   bits 2j and 2j + 1 of q[32 i + l]; value d * scale * q - dmin * min */
    DTYPE_Q3_K,  /* u8 high[32]; u8 q[64] as in Q2_K; u8 scales[12]; f16 d; element 32 r + l has bit r
                   of high[l] above its two bits of q; value d * (scale - 32) * (q - 4) */
    DTYPE_Q4_K,  /* f16 d, dmin; u8 scales and mins[12], six bits each; u8 q[128]: runs 2i and 2i + 1
                   are the low and the high nibbles of q[32 i..]; value d * scale * q - dmin * min */
    DTYPE_Q5_K,  /* as Q4_K, with u8 high[32] before q: bit r of high[l] is the fifth bit of element l
                   of run r */
    DTYPE_Q6_K,  /* u8 q[128]; u8 high[64]; i8 scales[16]; f16 d; value d * scale * (q - 32). Of each
                   128 elements, runs 0, 1 and 2, 3 are the low and high nibbles of 64 bytes of q;
                   run r has bits 2r and 2r + 1 of 32 bytes of high */
    DTYPE_MXFP4, /* 32: u8 e; u8 q[16] as in Q4_0, numbers of e2m1 (sign, two bits of exponent, one of
                    mantissa); value e2m1 * 2^(e - 127); an e above 252 counts as 252 */
    /* Types of ggml whose numbers are in tables (kernels/grids.h). IQ4: q is a place in a list of 16. */
    DTYPE_IQ4_NL, /* 32: f16 d; u8 q[16] as in Q4_0; value d * list[q] */
    DTYPE_IQ4_XS, /* 256: f16 d; u16 high bits and u8 low nibbles[4] of the scales of 32, less 32;
                     u8 q[128], as in Q4_0 for each run of 32 */
    /* 256 elements; the magnitudes of four or eight are a line of a grid, their signs are apart. */
    DTYPE_IQ2_XXS, /* f16 d; for each 32: u8 lines[4]; u32 of four times 7 signs (the eighth makes
                      their number even) and 4 bits of scale */
    DTYPE_IQ2_XS,  /* f16 d; u16 of 9 bits of line, 7 signs[32]; u8 scales of 16 as nibbles[8] */
    DTYPE_IQ2_S,   /* f16 d; u8 lines[32], signs[32], high bits of lines[8], scales as nibbles[8] */
    DTYPE_IQ3_XXS, /* f16 d; u8 lines[64]; u32 of signs and scale as in IQ2_XXS[8] */
    DTYPE_IQ3_S,   /* f16 d; u8 lines[64], high bits[8], signs[32], scales of 32 as nibbles[4] */
    DTYPE_IQ1_S,   /* f16 d; u8 lines[32]; u16 of four times 3 high bits, 3 bits of scale, the sign of
                      the offset[8] */
    DTYPE_IQ1_M,   /* u8 lines[32]; u8 of twice 3 high bits and the offset's sign[16]; u16 of four
                      times 3 bits of scale of 16, and a nibble of f16 d[4] */
    /* 8-bit floats (e4m3: base/half.h) with scales, in which checkpoint/quantized/fp8.h reads them. */
    DTYPE_F8_BLOCK, /* 128: f32 d; u8 q[128]; value q * d */
    DTYPE_F8_ROW,   /* 32: f32 d, the same in all blocks of a row; u8 q[32]; value q * d */
    /* Groups of integers with one scale, as checkpoint/quantized/packed_ints.h reads them; of each 32 elements the
     * numbers are as in Q4_0 or Q8_0. */
    DTYPE_G4_64,   /* 64: f16 d; u8 q[32]; value (q - 8) * d */
    DTYPE_G4_128,  /* 128: f16 d; u8 q[64] */
    DTYPE_G8_64,   /* 64: f16 d; i8 q[64]; value q * d */
    DTYPE_G8_128,  /* 128: f16 d; i8 q[128] */
    DTYPE_G4Z_32,  /* 32: f16 d; i8 z; u8 q[16]; value (q - 8 - z) * d */
    DTYPE_G4Z_64,  /* 64: f16 d; i8 z; u8 q[32] */
    DTYPE_G4Z_128, /* 128: f16 d; i8 z; u8 q[64] */
    /* Types of tensors in checkpoints that are not weights which tutti runs: */
    DTYPE_F64,
    DTYPE_I8,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_BOOL,
    DTYPE_F8_E4M3, /* checkpoint/quantized/fp8.h */
    DTYPE_F8_E8M0, /* a power of two: 2^(u8 - 127) */
    DTYPE_COUNT
};

/* "f32", "q4_0", ...; never NULL for a valid dtype. */
const char *dtype_name(enum dtype dtype);

/* By name, in lower or upper case; false: not found. */
bool dtype_find(const char *name, enum dtype *out);

int dtype_block_elems(enum dtype dtype); /* 1, 32, 64, 128 or 256 */
int dtype_block_bytes(enum dtype dtype);

/* True for the types of weight matrices: those before F64. */
bool dtype_is_weight(enum dtype dtype);

/* Whether weights are 8-bit floats with scales. */
bool dtype_is_float8(enum dtype dtype);

/* Whether weights are integers with scales (or places in a table of such), which are multiplied by
 * integers; else floats. */
bool dtype_is_integers(enum dtype dtype);

/* Bytes of n_elems elements. False: n_elems is negative or no multiple of the block, or the product
 * overflows. */
bool dtype_bytes(enum dtype dtype, int64_t n_elems, size_t *out);

#endif
