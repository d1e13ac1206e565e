/* Linear layers of bf16 weights while denormals are flushed. Included after the definitions that
 * linear_bf16_body.h needs. */
INLINE vec16 add_sums(vec16 a, vec16 b)
{
    return v_add(a, b);
}

#include "kernels/vector/linear_bf16_body.h"

#define LINEAR_BF16(variant)                                                                                 \
    void linear_bf16_##variant(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)        \
    {                                                                                                        \
        unsigned mode = _mm_getcsr();                                                                        \
        _mm_setcsr(mode | 0x8040); /* flush to zero, denormals are zero */                                   \
        linear_bf16(out, panel, x, n_rows, n_in);                                                            \
        _mm_setcsr(mode);                                                                                    \
    }
