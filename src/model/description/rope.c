/* Rotary frequencies with the kinds of scaling, and ALiBi's slopes. */
#include "base/half.h"
#include "model/description/family.h"

#include <math.h>

static double llama3_scaled(const struct attn_desc *a, double freq)
{
    double wavelength = 2 * M_PI / freq, original = a->rope_scaling.original_n_ctx;
    double low = a->rope_scaling.low_freq_factor, high = a->rope_scaling.high_freq_factor;
    double factor = a->rope_scaling.factor;
    if (wavelength < original / high)
        return freq;
    if (wavelength >= original / low) /* with equal factors there is no range between them */
        return freq / factor;
    double smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * freq / factor + smooth * freq;
}

/* Peng et al., 2023 (YaRN): high frequencies are kept, low ones divided, with a ramp between
 * them. */
struct yarn {
    double low, high; /* of the ramp, in pairs */
};

/* The pair that completes n periods within the original context. */
static double yarn_pair(const struct attn_desc *a, double n)
{
    return a->rotary_dim * log(a->rope_scaling.original_n_ctx / (2 * M_PI * n)) / (2 * log(a->rope_theta));
}

static struct yarn yarn_range(const struct attn_desc *a)
{
    struct yarn y = { yarn_pair(a, a->rope_scaling.beta_fast), yarn_pair(a, a->rope_scaling.beta_slow) };
    if (!a->rope_scaling.is_exact)
        y = (struct yarn){ floor(y.low), ceil(y.high) };
    y.low = y.low > 0 ? y.low : 0;
    y.high = y.high < a->rotary_dim - 1 ? y.high : a->rotary_dim - 1;
    return y;
}

static double yarn_scaled(const struct attn_desc *a, const struct yarn *y, int pair, double freq)
{
    double width = y->high - y->low > 0.001 ? y->high - y->low : 0.001;
    double ramp = (pair - y->low) / width;
    ramp = ramp > 1 ? 1 : ramp > 0 ? ramp : 0;
    return freq * (1 - ramp) + freq / a->rope_scaling.factor * ramp;
}

double model_yarn_scale(double factor)
{
    return 0.1 * log(factor) + 1;
}

float model_rope_scale(const struct attn_desc *a)
{
    double given = a->rope_scaling.attention_factor;
    if (a->rope_scaling.kind == ROPE_SCALING_LONGROPE)
        return (float)given;
    if (a->rope_scaling.kind != ROPE_SCALING_YARN)
        return 1;
    return (float)(given > 0 ? given : model_yarn_scale(a->rope_scaling.factor));
}

void model_rope_freqs(const struct attn_desc *a, float *freqs)
{
    struct yarn yarn = yarn_range(a);
    const struct rope_scaling *s = &a->rope_scaling;
    const float *factors = s->is_short ? s->short_factors : s->long_factors;
    int n = a->rope == ROPE_2D ? a->rotary_dim / 2
                               : a->rotary_dim; /* each of the two positions rotates one half */
    for (int j = 0; j < n / 2; j++) {
        /* The reference computes exponent, power and inverse in float32, each rounded. */
        float exponent = (float)(2 * j) / (float)n, power = (float)pow(a->rope_theta, (double)exponent);
        float freq = 1.0f / power;
        if (a->rope_scaling.kind == ROPE_SCALING_LONGROPE)
            freq = 1.0f / (factors[j] * power);
        else if (a->rope_scaling.kind == ROPE_SCALING_LINEAR)
            freq = (float)((double)freq / a->rope_scaling.factor);
        else if (a->rope_scaling.kind == ROPE_SCALING_LLAMA3)
            freq = (float)llama3_scaled(a, (double)freq);
        else if (a->rope_scaling.kind == ROPE_SCALING_YARN)
            freq = (float)yarn_scaled(a, &yarn, j, (double)freq);
        freqs[j] = a->has_half_freqs ? half_to_float(float_to_half(freq)) : freq;
        freqs[j] = a->n_rotating > 0 && j >= a->n_rotating ? 0 : freqs[j];
    }
}

/* Press et al., 2021: a geometric sequence for a power of two heads; others take every other one
 * of twice as many. */
void model_alibi_slopes(const struct attn_desc *a, float *slopes)
{
    int n = 1;
    while (2 * n <= a->n_heads)
        n *= 2;
    for (int h = 0; h < a->n_heads; h++)
        slopes[h] = (float)(h < n ? exp2(-8.0 * (h + 1) / n) : exp2(-4.0 * (2 * (h - n) + 1) / n));
}
