/* Declares the kernels for x86-64. A file of one instruction set is compiled with its flags and
 * called only on processors that have it; nothing of it is inlined into code without those flags. */
#ifndef TUTTI_KERNELS_X86_X86_H
#define TUTTI_KERNELS_X86_X86_H

#include "kernels/vector/vector.h"

#include <stddef.h>

DECLARE_VARIANT(avx2)
DECLARE_VARIANT(avx512)
linear_fn linear_bf16_avx512bf16;
#define DECLARE_SPLIT(name, dtype) linear_fn linear_##name##_avx512split;
FOR_EACH_QUANTIZED(DECLARE_SPLIT)
#undef DECLARE_SPLIT
#define DECLARE_PAIRED(name, dtype) linear_fn linear_##name##_avx512paired;
FOR_EACH_PAIRED(DECLARE_PAIRED)
#undef DECLARE_PAIRED
#define DECLARE_AMX(name, dtype) linear_fn linear_##name##_amx;
FOR_EACH_QUANTIZED(DECLARE_AMX)
#undef DECLARE_AMX
#define DECLARE_VNNI(name, dtype) linear_fn linear_##name##_vex, linear_##name##_evex;
FOR_EACH_QUANTIZED(DECLARE_VNNI)
#undef DECLARE_VNNI

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
