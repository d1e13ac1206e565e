/* Linear layers of bf16 weights where sums become denormal: flushed one by one, after they are rounded. */
#include "kernels/arm/neon/bf16_pairs.h"

INLINE float32x4_t flush_four(float32x4_t x)
{
    uint32x4_t keep = vorrq_u32(vcageq_f32(x, vdupq_n_f32(0x1p-126f)), vmvnq_u32(vceqq_f32(x, x)));
    return vreinterpretq_f32_u32(
        vandq_u32(vreinterpretq_u32_f32(x), vorrq_u32(keep, vdupq_n_u32(0x80000000))));
}

INLINE vec16 flush(vec16 x)
{
    return OF_ONE(vec16, flush_four, x);
}

INLINE vec16 dot_pair(vec16 sum, weight_pair w, input_pair x)
{
    sum = flush(v_fma(flush(w.odd), flush(x.odd), sum));
    return flush(v_fma(flush(w.even), flush(x.even), sum));
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
