/* Declares the kernels for AArch64. A file of one instruction set is compiled with its flags and called only on
 * processors that have it.
 *
 * neon/ needs nothing beyond ARMv8.0. Linear layers of quantized weights have further variants: dotprod/ for
 * processors with SDOT (ARMv8.2), i8mm/ for those with SMMLA (ARMv8.6). */
#ifndef TUTTI_KERNELS_ARM_ARM_H
#define TUTTI_KERNELS_ARM_ARM_H

#include "kernels/vector/vector.h"

DECLARE_VARIANT(neon)
FOR_EACH_QUANTIZED(DECLARE_LINEAR, dotprod)
FOR_EACH_QUANTIZED(DECLARE_LINEAR, i8mm)

/* The levels that processor and operating system support: detect.c. */
unsigned arm_detect(void);

/* The loops of measure.h, and the operations of one round. n: a multiple of 4096. */
enum {
    MEASURE_INT8_NEON_OPS = 4 * 16 * 2,
    MEASURE_INT8_DOTPROD_OPS = 16 * 16 * 2,
    MEASURE_INT8_I8MM_OPS = 16 * 32 * 2,
    MEASURE_F32_NEON_OPS = 16 * 4 * 2,
};
uint64_t measure_read_neon(const uint8_t *bytes, size_t n);
uint64_t measure_int8_neon(int64_t rounds);
uint64_t measure_int8_dotprod(int64_t rounds);
uint64_t measure_int8_i8mm(int64_t rounds);
uint64_t measure_f32_neon(int64_t rounds);

#endif
