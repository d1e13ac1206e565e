/* Linear layers of bf16 weights where sums become denormal: flushed one by one, after they are rounded. */
#include "kernels/arm/neon/bf16_pairs.h"

/* x, or a zero of its sign where `scaled`, 2^64 times x, is smaller than the smallest normal number times 2^64. */
INLINE float32x4_t flush_four(float32x4_t x, float32x4_t scaled)
{
    uint32x4_t keep = vorrq_u32(vcageq_f32(scaled, vdupq_n_f32(0x1p-62f)),
                                vmvnq_u32(vceqq_f32(scaled, scaled)));
    return vreinterpretq_f32_u32(
        vandq_u32(vreinterpretq_u32_f32(x), vorrq_u32(keep, vdupq_n_u32(0x80000000))));
}

INLINE vec16 scale(vec16 x)
{
    return v_mul(x, v_set(0x1p64f));
}

INLINE vec16 flush(vec16 x)
{
    return OF_TWO(vec16, flush_four, x, scale(x));
}

/* Flushed if the sum would be too small with 24 bits, as if there were smaller exponents (kernels.h). */
INLINE vec16 multiply_add(vec16 sum, vec16 w, vec16 x)
{
    return OF_TWO(vec16, flush_four, v_fma(w, x, sum), v_fma(scale(w), x, scale(sum)));
}

INLINE vec16 dot_pair(vec16 sum, weight_pair w, input_pair x)
{
    return multiply_add(multiply_add(sum, flush(w.odd), flush(x.odd)), flush(w.even), flush(x.even));
}

INLINE vec16 add_sums(vec16 a, vec16 b)
{
    return flush(v_add(a, b));
}

#include "kernels/arm/neon/linear_bf16_tiles_body.h"

linear_fn linear_bf16_neon_careful;

void linear_bf16_neon_careful(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)
{
    linear_bf16(out, panel, x, n_rows, n_in);
}
