/* Perplexity of a model on a text, and KL divergence from another model, as sums over scored
 * tokens.
 *
 * The figures are those of llama.cpp's llama-perplexity: perplexity is exp of the mean negative
 * log-probability. The Kullback-Leibler divergence is that of the base's distribution from this
 * one, over tokens whose probability in the base is at least exp(-16). */
#ifndef TUTTI_OFFLINE_PERPLEXITY_H
#define TUTTI_OFFLINE_PERPLEXITY_H

#include "base/error.h"
#include "kernels/kernels.h"

/* A distribution with 16 bits per token: log-probability scale * code + min. Values more than 16
 * below the largest are clamped to that. */
struct coded_row {
    float scale, min;
    const uint16_t *codes; /* [n_vocab], aligned */
    bool has_nll;
    float nll; /* of the next id: exact, even if its code was clamped */
};

struct mean {
    double value, error; /* standard error */
};

struct perplexity {
    struct kernels kernels;
    int n_vocab;
    bool has_base;
    uint64_t n, n_same_top;
    double nll, nll_squares, base_nll, base_nll_squares, cross; /* sums over tokens */
    double kl, kl_squares, change_squares, change_fourths; /* change: of the correct token's probability */
    float *kls;                                            /* [n] */
    size_t capacity;
};

MUST_CHECK enum tutti_status perplexity_init(struct perplexity *p, int n_vocab, bool has_base,
                                             struct tutti_error *err);
void perplexity_clear(struct perplexity *p);

/* Encodes a row. codes: [n_vocab]. False: the logits are not finite. */
MUST_CHECK bool perplexity_encode(const struct perplexity *p, const float *logits, float *scale, float *min,
                                  uint16_t *codes);

/* The same, with the exact probability of the next id, target. codes: [n_vocab], borrowed by
 * *out. TUTTI_E_NUMERIC: the logits are not finite. */
MUST_CHECK enum tutti_status perplexity_code(const struct perplexity *p, const float *logits, int32_t target,
                                             uint16_t *codes, struct coded_row *out, struct tutti_error *err);

/* Scores one row. base: NULL without has_base. TUTTI_E_NUMERIC: the logits are not finite. */
MUST_CHECK enum tutti_status perplexity_add(struct perplexity *p, const float *logits, int32_t target,
                                            const struct coded_row *base, struct tutti_error *err);

/* The results, after at least one row. */
struct mean perplexity_value(const struct perplexity *p);
struct mean perplexity_base_value(const struct perplexity *p);
struct mean perplexity_log_ratio(const struct perplexity *p);  /* ln(value / base value) */
struct mean perplexity_difference(const struct perplexity *p); /* value - base value */
struct mean perplexity_kl(const struct perplexity *p);
struct mean perplexity_same_top(const struct perplexity *p); /* a fraction */
struct mean perplexity_change(const struct perplexity *p);   /* root of the mean square, a fraction */

/* The quantile of the divergence over all rows; part: 0 to 1. Sorts the rows' values. */
double perplexity_kl_quantile(struct perplexity *p, double part);

#endif
