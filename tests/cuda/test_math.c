/* Functions of one value of the kernels for NVIDIA cards, against the math library in double precision, and against the
 * CPU's kernels bit for bit. */
#include "kernels/cuda/math.h"

#include "backend/backend.h"
#include "base/rng.h"
#include "kernels/ref/ref.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { N = 20000 };

/* From -limit to limit. */
static float random_value(int i, float limit)
{
    return (float)(rng_uniform(7, 1, (uint64_t)i) * 2 - 1) * limit;
}

/* Units in the last place of want between two floats. */
static double ulps(float got, double want)
{
    float rounded = (float)want;
    double unit = (double)nextafterf(fabsf(rounded), INFINITY) - (double)fabsf(rounded);
    return fabs((double)got - want) / unit;
}

/* The same bits, or NaN of any kind. */
static bool is_same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void exp_is_within_two_ulp(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        float x = random_value(i, 87);
        assert_true(ulps(exp_f32(x), exp((double)x)) <= 2);
    }
    assert_true(exp_f32(0) == 1 && exp_f32(-INFINITY) == 0 && exp_f32(100) == INFINITY &&
                isnan(exp_f32(NAN)));
}

static void exp_of_what_is_not_above_0_has_the_bits_of_exp(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        float x = -fabsf(random_value(i, i % 2 == 0 ? 87.3f : 1)), below = -87.34f * (1 + (float)i / 100);
        assert_true(is_same(exp_below_f32(x), exp_f32(x)));
        float least = exp_below_f32(below);
        assert_true(least >= 0 && least < 0x1p-126f);
    }
    assert_true(exp_below_f32(0) == 1 && exp_below_f32(-0.0f) == 1 && is_same(exp_below_f32(-INFINITY), 0) &&
                is_same(exp_below_f32(-FLT_MAX), 0) && isnan(exp_below_f32(NAN)));
}

static void sigmoid_and_softcap_are_near_their_definitions(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        float x = random_value(i, 60);
        double want = 1 / (1 + exp(-(double)x));
        assert_true(fabs((double)sigmoid_f32(x) - want) <= 4e-7 * want);
        assert_true(fabs((double)softcap_f32(x, 30) - 30 * tanh((double)x / 30)) <= 2e-5);
    }
}

static void activations_have_the_bits_of_the_reference(void **state)
{
    static float x[N], up[N], want[N];
    static const float odd[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 3e38f, -3e38f, 7, -7 };
    (void)state;
    for (int i = 0; i < N; i++) {
        x[i] = i < 11 ? odd[i] : random_value(i, 40);
        up[i] = i < 121 ? odd[i / 11] : random_value(i + N, 20);
    }
    for (int act = ACT_GELU_TANH; act <= ACT_RELU; act++) {
        memcpy(want, x, sizeof want);
        if (act == ACT_RELU)
            for (int i = 0; i < N; i++)
                want[i] = x[i] < 0 ? 0 : x[i];
        else
            (act == ACT_GELU_TANH  ? gelu_tanh_ref
             : act == ACT_GELU_ERF ? gelu_erf_ref
                                   : gelu_sigmoid_ref)(want, N);
        for (int i = 0; i < N; i++) {
            float got = activate_f32(x[i], act);
            assert_true(is_same(got, want[i]));
        }
    }
    static const struct {
        int act;
        void (*fn)(float *y, const float *gate, const float *up, int64_t n);
    } gates[] = { { ACT_SILU, silu_mul_ref },
                  { ACT_GELU_TANH, gelu_tanh_mul_ref },
                  { ACT_SILU_CLAMPED, silu_clamped_mul_ref } };
    for (size_t k = 0; k < sizeof gates / sizeof *gates; k++) {
        gates[k].fn(want, x, up, N);
        for (int i = 0; i < N; i++) {
            float got = glu_f32(x[i], up[i], gates[k].act);
            assert_true(is_same(got, want[i]));
        }
    }
}

static void sine_and_cosine_are_within_one_ulp_up_to_the_longest_context(void **state)
{
    static const float limits[] = { 0.7f, 7, 1000, 131072, 16777216 };
    int n_other = 0;
    (void)state;
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < N; i++) {
            float x = random_value(i, limits[k]), s, c;
            sin_cos_f32(x, &s, &c);
            assert_true(ulps(s, sin((double)x)) <= 0.5001 && ulps(c, cos((double)x)) <= 0.5001);
            n_other += s != (float)sin((double)x) || c != (float)cos((double)x);
        }
    }
    for (int pos = 0; pos < 131072; pos += 3) { /* every angle of frequency 1 */
        float s, c;
        sin_cos_f32((float)pos, &s, &c);
        n_other += s != (float)sin((double)pos) || c != (float)cos((double)pos);
    }
    assert_int_equal(n_other, 0); /* rounded as libm's doubles are */
    float s, c;
    sin_cos_f32(0, &s, &c);
    assert_true(s == 0 && c == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(exp_of_what_is_not_above_0_has_the_bits_of_exp),
        cmocka_unit_test(sigmoid_and_softcap_are_near_their_definitions),
        cmocka_unit_test(activations_have_the_bits_of_the_reference),
        cmocka_unit_test(sine_and_cosine_are_within_one_ulp_up_to_the_longest_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
