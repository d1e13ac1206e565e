/* Stores all durations, so that percentiles are exact, without histogram buckets. */
#ifndef TUTTI_LOAD_SAMPLES_H
#define TUTTI_LOAD_SAMPLES_H

#include "base/error.h"

/* Microseconds, saturated at an hour and eleven minutes (UINT32_MAX). Zero-initialised is empty
 * and valid. */
struct load_samples {
    uint32_t *us;
    size_t n, capacity;
    bool is_sorted;
};

/* Milliseconds; all NaN without samples. */
struct sample_summary {
    size_t n;
    double mean, deviation; /* deviation: of the population */
    double min, p50, p90, p99, max;
};

MUST_CHECK bool samples_add(struct load_samples *s,
                            uint64_t us); /* false: out of memory, or n would overflow */
void samples_clear(struct load_samples *s);

/* Sorts s. Percentiles are interpolated linearly between the two nearest samples, as in NumPy
 * (type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996). */
struct sample_summary samples_summarize(struct load_samples *s);

/* Sorts s. The quantile for part (0 to 1) in milliseconds; NaN without samples. */
double samples_quantile(struct load_samples *s, double part);

/* Sorts s. The number of samples of at most limit_ms. */
size_t samples_within(struct load_samples *s, double limit_ms);

#endif
