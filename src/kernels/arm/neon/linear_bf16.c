/* Linear layers of bf16 weights. Denormals are zero in inputs and sums (kernels.h). The processor does that by
 * itself in a mode of its own, with one difference: it looks at a sum before it is rounded, the contract after
 * that. So a sum just below the smallest normal number, which rounds up to it, would become zero. The processor
 * notes whether it made any sum zero. If so, linear_bf16_careful.c computes the panel again.
 *
 * BFMMLA and BFDOT are not used: they round the sum of a pair's products, or round to odd, so their bits differ
 * from those of two fused multiply-adds. */
#include "kernels/arm/neon/bf16_pairs.h"

INLINE vec16 dot_pair(vec16 sum, weight_pair w, input_pair x)
{
    return v_fma(w.even, x.even, v_fma(w.odd, x.odd, sum));
}

INLINE vec16 add_sums(vec16 a, vec16 b)
{
    return v_add(a, b);
}

#include "kernels/arm/neon/linear_bf16_tiles_body.h"

/* Bits of the floating-point control register, and of the status register. */
#define FLUSH_TO_ZERO (1ull << 24)
#define HAS_UNDERFLOW (1ull << 3)

linear_fn linear_bf16_neon_careful;

void linear_bf16_neon(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)
{
    uint64_t mode, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(mode), "=r"(status)::"memory");
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(mode | FLUSH_TO_ZERO), "r"(status & ~HAS_UNDERFLOW)
                     : "memory");
    linear_bf16(out, panel, x, n_rows, n_in);
    __asm__ volatile("mrs %0, fpsr\n\tmsr fpcr, %1" : "=&r"(status) : "r"(mode) : "memory");
    if (status & HAS_UNDERFLOW)
        linear_bf16_neon_careful(out, panel, x, n_rows, n_in);
}
