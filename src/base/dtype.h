/* Types of stored tensors, in the block forms of GGUF; plain types are blocks of one element.
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
    DTYPE_Q8_0, /* 32 elements: f16 d; i8 q[32]; value q * d */
    DTYPE_Q4_0, /* 32 elements: f16 d; u8 q[16]; element j is the low nibble of q[j], j + 16 the high one;
                   value (q - 8) * d */
    DTYPE_F64,  /* the rest can be stored in checkpoints, but holds no weights that tutti runs */
    DTYPE_I8,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_BOOL,
    DTYPE_COUNT
};

/* "f32", "q4_0", ...; never NULL for a valid dtype. */
const char *dtype_name(enum dtype dtype);

/* By name, in lower or upper case; false: there is none. */
bool dtype_find(const char *name, enum dtype *out);

int dtype_block_elems(enum dtype dtype); /* 1 or 32 */
int dtype_block_bytes(enum dtype dtype);

/* True for the types that can hold a weight matrix: F32, F16, BF16, Q8_0, Q4_0. */
bool dtype_is_weight(enum dtype dtype);

/* Bytes of n_elems elements. False: n_elems is negative, no multiple of the block, or the product overflows. */
bool dtype_bytes(enum dtype dtype, int64_t n_elems, size_t *out);

#endif
