#include "base/dtype.h"

#include <strings.h>

static const struct {
    const char *name;
    int block_elems, block_bytes;
} DTYPES[DTYPE_COUNT] = {
    [DTYPE_F32] = { "f32", 1, 4 },
    [DTYPE_F16] = { "f16", 1, 2 },
    [DTYPE_BF16] = { "bf16", 1, 2 },
    [DTYPE_Q8_0] = { "q8_0", 32, 34 },
    [DTYPE_Q4_0] = { "q4_0", 32, 18 },
    [DTYPE_Q4_1] = { "q4_1", 32, 20 },
    [DTYPE_Q5_0] = { "q5_0", 32, 22 },
    [DTYPE_Q5_1] = { "q5_1", 32, 24 },
    [DTYPE_Q2_K] = { "q2_k", 256, 84 },
    [DTYPE_Q3_K] = { "q3_k", 256, 110 },
    [DTYPE_Q4_K] = { "q4_k", 256, 144 },
    [DTYPE_Q5_K] = { "q5_k", 256, 176 },
    [DTYPE_Q6_K] = { "q6_k", 256, 210 },
    [DTYPE_MXFP4] = { "mxfp4", 32, 17 },
    [DTYPE_IQ4_NL] = { "iq4_nl", 32, 18 },
    [DTYPE_IQ4_XS] = { "iq4_xs", 256, 136 },
    [DTYPE_IQ2_XXS] = { "iq2_xxs", 256, 66 },
    [DTYPE_IQ2_XS] = { "iq2_xs", 256, 74 },
    [DTYPE_IQ2_S] = { "iq2_s", 256, 82 },
    [DTYPE_IQ3_XXS] = { "iq3_xxs", 256, 98 },
    [DTYPE_IQ3_S] = { "iq3_s", 256, 110 },
    [DTYPE_IQ1_S] = { "iq1_s", 256, 50 },
    [DTYPE_IQ1_M] = { "iq1_m", 256, 56 },
    [DTYPE_F8_BLOCK] = { "f8_block", 128, 132 },
    [DTYPE_F8_ROW] = { "f8_row", 32, 36 },
    [DTYPE_G4_64] = { "g4_64", 64, 34 },
    [DTYPE_G4_128] = { "g4_128", 128, 66 },
    [DTYPE_G8_64] = { "g8_64", 64, 66 },
    [DTYPE_G8_128] = { "g8_128", 128, 130 },
    [DTYPE_G4Z_32] = { "g4z_32", 32, 19 },
    [DTYPE_G4Z_64] = { "g4z_64", 64, 35 },
    [DTYPE_G4Z_128] = { "g4z_128", 128, 67 },
    [DTYPE_F64] = { "f64", 1, 8 },
    [DTYPE_I8] = { "i8", 1, 1 },
    [DTYPE_I16] = { "i16", 1, 2 },
    [DTYPE_I32] = { "i32", 1, 4 },
    [DTYPE_I64] = { "i64", 1, 8 },
    [DTYPE_U8] = { "u8", 1, 1 },
    [DTYPE_U16] = { "u16", 1, 2 },
    [DTYPE_U32] = { "u32", 1, 4 },
    [DTYPE_U64] = { "u64", 1, 8 },
    [DTYPE_BOOL] = { "bool", 1, 1 },
    [DTYPE_F8_E4M3] = { "f8_e4m3", 1, 1 },
    [DTYPE_F8_E8M0] = { "f8_e8m0", 1, 1 },
};

const char *dtype_name(enum dtype dtype)
{
    return DTYPES[dtype].name;
}

bool dtype_find(const char *name, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcasecmp(name, DTYPES[i].name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

int dtype_block_elems(enum dtype dtype)
{
    return DTYPES[dtype].block_elems;
}

int dtype_block_bytes(enum dtype dtype)
{
    return DTYPES[dtype].block_bytes;
}

bool dtype_is_weight(enum dtype dtype)
{
    return dtype < DTYPE_F64;
}

bool dtype_is_float8(enum dtype dtype)
{
    return dtype == DTYPE_F8_BLOCK || dtype == DTYPE_F8_ROW;
}

bool dtype_is_integers(enum dtype dtype)
{
    return DTYPES[dtype].block_elems > 1 && !dtype_is_float8(dtype);
}

bool dtype_bytes(enum dtype dtype, int64_t n_elems, size_t *out)
{
    int block = DTYPES[dtype].block_elems;
    if (n_elems < 0 || n_elems % block != 0)
        return false;
    size_t n_bytes;
    if (__builtin_mul_overflow((size_t)(n_elems / block), (size_t)DTYPES[dtype].block_bytes, &n_bytes))
        return false;
    *out = n_bytes;
    return true;
}
