/* Functions of one value for the kernels: the CPU's bits, except sine and cosine.
 *
 * exp and what is made of it are kernels/ref's own source, so a value has the same bits on the card and on the CPU. Sine and
 * cosine are computed in double and rounded once: they are those of a math library that rounds correctly, in all but some
 * of 2^28 arguments. Double operations are slow on cards that are not for data centers: none belongs into a loop over
 * weights or keys. */
#ifndef TUTTI_KERNELS_CUDA_MATH_H
#define TUTTI_KERNELS_CUDA_MATH_H

#include "kernels/activation.h"
#include "kernels/cuda/device.h"
#include "kernels/ref/exp.h"
#include "kernels/ref/gelu.h"
#include "kernels/ref/silu.h"
#include "kernels/ref/softcap.h"

DEVICE float exp_f32(float x)
{
    return exp_ref(x);
}

/* exp of a number that is not above 0, or NaN, in 13 instructions: exp_f32 of it down to EXP_LOW; below that less than 2^-126; 0 of
 * -infinity. */
DEVICE float exp_below_f32(float x)
{
    return exp_in_range_ref(at_least_f32(x, -88.0f)); /* whose power of two has the bits of 0 */
}

DEVICE float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_ref(-x));
}

DEVICE float softcap_f32(float x, float cap)
{
    return softcap_one(x, cap);
}

DEVICE float relu_f32(float x)
{
    return x < 0 ? 0 : x;
}

/* Of an activation without a gate. */
DEVICE float activate_f32(float x, int act)
{
    switch (act) {
    case ACT_GELU_TANH:
        return gelu_tanh_ref_one(x);
    case ACT_GELU_SIGMOID:
        return gelu_sigmoid_ref_one(x);
    case ACT_GELU_ERF:
        return gelu_erf_ref_one(x);
    default:
        return relu_f32(x);
    }
}

/* act(gate) * up, of an activation with a gate. */
DEVICE float glu_f32(float gate, float up, int act)
{
    switch (act) {
    case ACT_GELU_TANH:
        return gelu_tanh_ref_one(gate) * up;
    case ACT_SILU_CLAMPED:
        return silu_clamped_ref_one(gate, up);
    default:
        return silu_ref_one(gate) * up;
    }
}

DEVICE uint64_t f64_bits(double f)
{
    union {
        double f;
        uint64_t u;
    } v = { .f = f };
    return v.u;
}

/* Sine and cosine of an angle of at most 2^31. The angle is reduced by the nearest multiple of pi / 2, whose two parts have
 * 106 bits: no float of this size is nearer to one than 2^-40. The polynomials are those of fdlibm (Sun Microsystems, 1993). */
DEVICE void sin_cos_f32(float angle, float *sin, float *cos)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer, which is in the low bits */
    double shifted = __builtin_fma((double)angle, 0.63661977236758134308, magic), n = shifted - magic;
    uint32_t quadrant = (uint32_t)f64_bits(shifted);
    double x = __builtin_fma(n, -1.57079632679489655800, (double)angle);
    x = __builtin_fma(n, -6.12323399573676603587e-17, x);
    double z = x * x;
    double s = __builtin_fma(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08);
    s = __builtin_fma(z, s, 2.75573137070700676789e-06);
    s = __builtin_fma(z, s, -1.98412698298579493134e-04);
    s = __builtin_fma(z, s, 8.33333333332248946124e-03);
    s = __builtin_fma(z, s, -1.66666666666666324348e-01);
    s = __builtin_fma(z * x, s, x);
    double c = __builtin_fma(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09);
    c = __builtin_fma(z, c, -2.75573143513906633035e-07);
    c = __builtin_fma(z, c, 2.48015872894767294178e-05);
    c = __builtin_fma(z, c, -1.38888888888741095749e-03);
    c = __builtin_fma(z, c, 4.16666666666666019037e-02);
    c = 1.0 - __builtin_fma(z, 0.5, -(z * z * c));
    double first = quadrant & 1 ? c : s, second = quadrant & 1 ? s : c;
    *sin = (float)(quadrant & 2 ? -first : first);
    *cos = (float)((quadrant + 1) & 2 ? -second : second);
}

#endif
