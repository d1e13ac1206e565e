/* Declares the kernels for x86-64. A file of one instruction set is compiled with its flags and
 * called only on processors that have it; nothing of it is inlined into code without those flags. */
#ifndef TUTTI_KERNELS_X86_X86_H
#define TUTTI_KERNELS_X86_X86_H

#include "kernels/vector/vector.h"

#include <stddef.h>

DECLARE_VARIANT(avx2)
DECLARE_VARIANT(avx512)
linear_fn linear_bf16_avx512bf16;
FOR_EACH_QUANTIZED(DECLARE_LINEAR, avx512split)
FOR_EACH_PAIRED(DECLARE_TILE, avx512split)
FOR_EACH_PAIRED(DECLARE_INTEGER_LINEAR, avx512paired)
FOR_EACH_QUANTIZED(DECLARE_LINEAR, amx)
FOR_EACH_QUANTIZED(DECLARE_LINEAR, vex)
FOR_EACH_QUANTIZED(DECLARE_LINEAR, evex)

/* The loops of measure.h, and the operations of one round. n: a multiple of 4096. */
enum {
    MEASURE_INT8_AVX512_OPS = 16 * 64 * 2,
    MEASURE_F32_AVX512_OPS = 16 * 16 * 2,
    MEASURE_INT8_AVX2_OPS = 8 * 32 * 2,
    MEASURE_INT8_AVXVNNI_OPS = 12 * 32 * 2,
    MEASURE_F32_AVX2_OPS = 12 * 8 * 2,
};
uint64_t measure_read_sse2(const uint8_t *bytes, size_t n);
uint64_t measure_read_avx2(const uint8_t *bytes, size_t n);
uint64_t measure_read_avx512(const uint8_t *bytes, size_t n);
uint64_t measure_int8_avx2(int64_t rounds);
uint64_t measure_int8_avx512(int64_t rounds);
uint64_t measure_int8_vex(int64_t rounds);
uint64_t measure_int8_evex(int64_t rounds);
uint64_t measure_f32_avx2(int64_t rounds);
uint64_t measure_f32_avx512(int64_t rounds);

#endif
