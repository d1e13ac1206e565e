/* Operations on whole rows, and what sampling asks. */
#include "base/rng.h"
#include "check.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

static const int LENGTHS[] = { 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 80, 256, 1003, 4096, 4099 };
enum { N_LENGTHS = sizeof LENGTHS / sizeof *LENGTHS };

static void check_rmsnorm(struct check *c, int n)
{
    size_t all = 5 * (size_t)n;
    if (check_next(c, (any_fn *)c->k->rmsnorm, "rmsnorm_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, all), *w = check_floats(c, (size_t)n);
        float *want = check_floats(c, all), *got = check_floats(c, all);
        check_fill(c, x, all);
        check_fill(c, w, (size_t)n);
        rmsnorm_ref(want, x, w, 5, n, 1e-5f);
        c->k->rmsnorm(got, x, w, 5, n, 1e-5f);
        check_bits(c, want, got, all);
        c->k->rmsnorm(got, x + 3 * n, w, 1, n, 1e-5f); /* row 3 alone: the same bits again */
        check_bits(c, want + 3 * n, got, (size_t)n);
        c->k->rmsnorm(x, x, w, 5, n, 1e-5f); /* in place */
        check_bits(c, want, x, all);
        check_done(c);
    }
}

static void check_layernorm(struct check *c, int n)
{
    size_t all = 5 * (size_t)n;
    if (check_next(c, (any_fn *)c->k->layernorm, "layernorm_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, all), *w = check_floats(c, (size_t)n), *b = check_floats(c, (size_t)n);
        float *want = check_floats(c, all), *got = check_floats(c, all);
        check_fill(c, x, all);
        check_fill(c, w, (size_t)n);
        check_fill(c, b, (size_t)n);
        layernorm_ref(want, x, w, b, 5, n, 1e-5f);
        c->k->layernorm(got, x, w, b, 5, n, 1e-5f);
        check_bits(c, want, got, all);
        c->k->layernorm(got, x + 3 * n, w, b, 1, n, 1e-5f); /* row 3 alone: the same bits again */
        check_bits(c, want + 3 * n, got, (size_t)n);
        c->k->layernorm(x, x, w, b, 5, n, 1e-5f); /* in place */
        check_bits(c, want, x, all);
        check_done(c);
    }
}

/* The definitions in double precision; exp is within 2 ulp, the rest rounds a few times. */
static double exact_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double exact_sigmoid(double x)
{
    return x / (1 + exp(-1.702 * x));
}

static double exact_erf(double x)
{
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

static void check_gelu(struct check *c, int n)
{
    const struct {
        const char *name;
        gelu_fn *variant, *ref;
        double (*exact)(double x);
    } kinds[] = { { "tanh", c->k->gelu_tanh, gelu_tanh_ref, exact_tanh },
                  { "sigmoid", c->k->gelu_sigmoid, gelu_sigmoid_ref, exact_sigmoid },
                  { "erf", c->k->gelu_erf, gelu_erf_ref, exact_erf } };
    for (int k = 0; k < 3; k++) {
        if (!check_next(c, (any_fn *)kinds[k].variant, "gelu_%s_%d_%d", kinds[k].name, n, (int)c->fill))
            continue;
        float *x = check_floats(c, (size_t)n), *want = check_floats(c, (size_t)n),
              *got = check_floats(c, (size_t)n);
        check_fill(c, x, (size_t)n);
        for (int i = 0; i < n; i++) /* where exp has something to say */
            x[i] *= c->fill == FILL_RANDOM ? 10.0f : 1.0f;
        memcpy(want, x, (size_t)n * sizeof *x);
        memcpy(got, x, (size_t)n * sizeof *x);
        kinds[k].ref(want, n);
        kinds[k].variant(got, n);
        check_bits(c, want, got, (size_t)n);
        for (int i = 0; c->fill == FILL_RANDOM && i < n; i++) {
            double exact = kinds[k].exact((double)x[i]);
            check_true(c, fabs((double)got[i] - exact) <= 1e-6 * fabs(exact) + 1e-6, "inexact");
        }
        check_done(c);
    }
}

static void check_softcap(struct check *c, int n)
{
    if (check_next(c, (any_fn *)c->k->softcap, "softcap_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, (size_t)n), *want = check_floats(c, (size_t)n),
              *got = check_floats(c, (size_t)n);
        check_fill(c, x, (size_t)n);
        for (int i = 0; i < n; i++)
            x[i] *= c->fill == FILL_RANDOM ? 100.0f : 1.0f;
        memcpy(want, x, (size_t)n * sizeof *x);
        memcpy(got, x, (size_t)n * sizeof *x);
        softcap_ref(want, 30, n);
        c->k->softcap(got, 30, n);
        check_bits(c, want, got, (size_t)n);
        for (int i = 0; c->fill == FILL_RANDOM && i < n; i++)
            check_true(c, fabs((double)got[i] - 30 * tanh((double)x[i] / 30)) <= 1e-5, "inexact");
        check_done(c);
    }
}

static void check_scale(struct check *c, int n)
{
    if (check_next(c, (any_fn *)c->k->scale, "scale_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, (size_t)n), *want = check_floats(c, (size_t)n),
              *got = check_floats(c, (size_t)n);
        check_fill(c, x, (size_t)n);
        scale_ref(want, x, 7.48f, n);
        c->k->scale(got, x, 7.48f, n);
        check_bits(c, want, got, (size_t)n);
        c->k->scale(x, x, 7.48f, n);
        check_bits(c, want, x, (size_t)n);
        check_done(c);
    }
}

static void check_scale_add(struct check *c, int n)
{
    if (check_next(c, (any_fn *)c->k->scale_add, "scale_add_%d_%d", n, (int)c->fill)) {
        float *base = check_floats(c, (size_t)n), *add = check_floats(c, (size_t)n),
              *want = check_floats(c, (size_t)n), *got = check_floats(c, (size_t)n);
        check_fill(c, base, (size_t)n);
        check_fill(c, add, (size_t)n);
        scale_add_ref(want, base, 7.48f, add, n);
        c->k->scale_add(got, base, 7.48f, add, n);
        check_bits(c, want, got, (size_t)n);
        c->k->scale_add(base, base, 7.48f, add, n); /* in place */
        check_bits(c, want, base, (size_t)n);
        check_done(c);
    }
}

static void check_glu(struct check *c, const char *name, glu_fn *variant, glu_fn *ref, int n)
{
    if (check_next(c, (any_fn *)variant, "%s_%d_%d", name, n, (int)c->fill)) {
        float *gate = check_floats(c, (size_t)n), *up = check_floats(c, (size_t)n),
              *want = check_floats(c, (size_t)n);
        check_fill(c, gate, (size_t)n);
        check_fill(c, up, (size_t)n);
        for (int i = 0; i < n; i++) { /* where exp and limits have something to say */
            gate[i] *= c->fill == FILL_RANDOM ? 100.0f : 1.0f;
            up[i] *= c->fill == FILL_RANDOM ? 20.0f : 1.0f;
        }
        ref(want, gate, up, n);
        variant(gate, gate, up, n);
        check_bits(c, want, gate, (size_t)n);
        check_done(c);
    }
}

static void check_elements(struct check *c, int n)
{
    if (check_next(c, (any_fn *)c->k->add, "add_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, (size_t)n), *y = check_floats(c, (size_t)n),
              *want = check_floats(c, (size_t)n);
        check_fill(c, x, (size_t)n);
        check_fill(c, y, (size_t)n);
        memcpy(want, x, (size_t)n * sizeof *x);
        add_ref(want, y, n);
        c->k->add(x, y, n);
        check_bits(c, want, x, (size_t)n);
        check_done(c);
    }
    check_glu(c, "silu_mul", c->k->silu_mul, silu_mul_ref, n);
    check_glu(c, "silu_clamped_mul", c->k->silu_clamped_mul, silu_clamped_mul_ref, n);
    check_glu(c, "gelu_tanh_mul", c->k->gelu_tanh_mul, gelu_tanh_mul_ref, n);
    if (check_next(c, (any_fn *)c->k->softmax, "softmax_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, (size_t)n), *want = check_floats(c, (size_t)n),
              *got = check_floats(c, (size_t)n);
        check_fill(c, x, (size_t)n);
        for (int i = 0; i < n; i++)
            x[i] *= c->fill == FILL_RANDOM ? 50.0f : 1.0f;
        softmax_ref(want, x, n);
        c->k->softmax(got, x, n);
        check_bits(c, want, got, (size_t)n);
        check_done(c);
    }
    if (check_next(c, (any_fn *)c->k->to_half, "to_half_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, (size_t)n);
        uint16_t *want = check_bytes(c, (size_t)n * 2), *got = check_bytes(c, (size_t)n * 2);
        check_fill(c, x, (size_t)n);
        for (int i = 0; i < n; i++)
            x[i] = c->fill == FILL_DENORMAL ? x[i] * 0x1p106f
                   : c->fill == FILL_HUGE   ? x[i] * 0x1p-111f
                                            : x[i];
        to_half_ref(want, x, n);
        c->k->to_half(got, x, n);
        check_same(c, want, got, (size_t)n * 2);
        check_done(c);
    }
}

static void check_rope(struct check *c, int head_dim, int rotary_dim)
{
    for (int half = 0; half < 2; half++) {
        rope_fn *variant = half ? c->k->rope_half : c->k->rope_interleaved;
        if (check_next(c, (any_fn *)variant, "rope_%d_%d_%d_%d", half, head_dim, rotary_dim, (int)c->fill)) {
            size_t n = 3 * (size_t)head_dim;
            float *x = check_floats(c, n), *want = check_floats(c, n),
                  *angles = check_floats(c, (size_t)rotary_dim);
            check_fill(c, x, n);
            check_fill(c, angles, (size_t)rotary_dim);
            memcpy(want, x, n * sizeof *x);
            (half ? rope_half_ref : rope_interleaved_ref)(want, angles, 3, head_dim, rotary_dim);
            variant(x, angles, 3, head_dim, rotary_dim);
            check_bits(c, want, x, n);
            check_done(c);
        }
    }
}

void check_rows(struct check *c)
{
    static const int HEADS[][2] = { { 8, 2 },    { 16, 16 },   { 32, 16 },  { 64, 64 }, { 80, 32 },
                                    { 128, 64 }, { 128, 128 }, { 256, 96 }, { 24, 6 } };
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (int i = 0; i < N_LENGTHS; i++) {
            check_rmsnorm(c, LENGTHS[i]);
            check_layernorm(c, LENGTHS[i]);
            check_gelu(c, LENGTHS[i]);
            check_softcap(c, LENGTHS[i]);
            check_scale(c, LENGTHS[i]);
            check_scale_add(c, LENGTHS[i]);
            check_elements(c, LENGTHS[i]);
        }
        for (size_t i = 0; i < sizeof HEADS / sizeof *HEADS; i++)
            check_rope(c, HEADS[i][0], HEADS[i][1]);
    }
}

static void check_find(struct check *c, int n)
{
    if (check_next(c, (any_fn *)c->k->find_above, "find_above_%d_%d", n, (int)c->fill)) {
        float *x = check_floats(c, (size_t)n);
        check_fill(c, x, (size_t)n);
        for (int begin = 0; begin < n; begin += 1 + n / 20) {
            float bound = begin % 3 == 0 ? x[begin] : begin % 3 == 1 ? -1.0f : -(float)INFINITY;
            check_true(c, c->k->find_above(x, begin, n, bound) == find_above_ref(x, begin, n, bound),
                       "another index");
        }
        check_done(c);
    }
}

static void check_exps(struct check *c, int n)
{
    if (!check_next(c, (any_fn *)c->k->exps, "exps_%d_%d", n, (int)c->fill))
        return;
    float *x = check_floats(c, (size_t)n), *want = check_floats(c, (size_t)n),
          *got = check_floats(c, (size_t)n);
    check_fill(c, x, (size_t)n);
    for (int k = 0; k < 3; k++) {
        float scale = k == 0 ? 1 : k == 1 ? 0.1f : 30;
        exps_ref(x, n, x[0], scale, want);
        c->k->exps(x, n, x[0], scale, got);
        check_bits(c, want, got, (size_t)n);
    }
    check_done(c);
}

/* Against the definition: nobody who arrives before `first` is passed over; against the plain one: the same bits, so the same index. */
static void check_rivals(struct check *c, int n)
{
    if (!check_next(c, (any_fn *)c->k->find_arrival, "find_rival_%d_%d", n, (int)c->fill))
        return;
    float *x = check_floats(c, (size_t)n), max;
    check_fill(c, x, (size_t)n);
    if (!scan_max_ref(x, n, &max)) {
        for (int i = 0; i < n; i++)
            x[i] = (float)(i % 13);
        max = n > 12 ? 12 : (float)(n - 1);
    }
    for (int k = 0; k < 40; k++) {
        struct arrival_bound r = { .seed = mix64((uint64_t)(n + k)),
                                   .max = max,
                                   .scale = k % 4 == 0   ? 1
                                            : k % 4 == 1 ? 0.1f
                                            : k % 4 == 2 ? 30
                                                         : 3.40282347e38f,
                                   .first = k % 3 == 0   ? 1e-3f
                                            : k % 3 == 1 ? 1
                                                         : 36 };
        int begin = k * n / 50, found = c->k->find_arrival(x, begin, n, &r), passed = 0;
        check_true(c, found == find_arrival_ref(x, begin, n, &r), "another index");
        for (int i = begin; i < found; i++) {
            double v = ((double)(mix64(r.seed ^ (uint32_t)i) >> 12) + 0.5) * 0x1p-52;
            double w = exp(((double)x[i] - (double)max) * (double)r.scale);
            passed += w > 0 && -log1p(-v) / w < (double)r.first;
        }
        check_true(c, passed == 0, "passed a rival over");
    }
    check_done(c);
}

static void check_scan(struct check *c, int n)
{
    if (!check_next(c, (any_fn *)c->k->scan_max, "logits_scan_%d_%d", n, (int)c->fill))
        return;
    float *x = check_floats(c, (size_t)n), max;
    check_fill(c, x, (size_t)n);
    struct kernels ref;
    kernels_init(&ref, CPU_REF);
    struct logits_scan want = logits_scan(&ref, x, n), got = logits_scan(c->k, x, n);
    check_true(c, want.is_finite == got.is_finite, "is_finite");
    check_true(c, scan_max_ref(x, n, &max) == want.is_finite, "scan_max");
    if (want.is_finite) {
        check_bits(c, &want.max, &got.max, 1);
        check_true(c, want.argmax == got.argmax, "argmax");
        check_bits(c, &want.log_sum_exp, &got.log_sum_exp, 1);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += exp((double)x[i] - (double)want.max);
        double exact = (double)want.max + log(sum);
        check_true(c, fabs((double)want.log_sum_exp - exact) <= 2e-6 * (1 + fabs(exact)),
                   "log_sum_exp is inexact");
    }
    check_done(c);
}

void check_sampling(struct check *c)
{
    for (int fill = 0; fill < FILL_COUNT; fill++) {
        c->fill = (enum fill)fill;
        for (int i = 0; i < N_LENGTHS; i++) {
            check_find(c, LENGTHS[i]);
            check_exps(c, LENGTHS[i]);
            check_scan(c, LENGTHS[i]);
            check_rivals(c, LENGTHS[i]);
        }
    }
}
