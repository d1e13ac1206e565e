/* Durations, every one of them kept, so that percentiles are exact and no histogram's border shows in a figure. */
#ifndef TUTTI_LOAD_SAMPLES_H
#define TUTTI_LOAD_SAMPLES_H

#include "base/error.h"

/* Microseconds; more than an hour and eleven minutes counts as that. Zero-initialised is empty and valid. */
struct samples {
    uint32_t *us;
    size_t n, capacity;
    bool is_sorted;
};

/* Milliseconds; all NaN where there is no sample. */
struct sample_summary {
    size_t n;
    double mean, deviation; /* deviation: of the population */
    double min, p50, p90, p99, max;
};

MUST_CHECK bool samples_add(struct samples *s,
                            uint64_t us); /* false: out of memory, or more than fits a size */
void samples_clear(struct samples *s);

/* Sorts s. Percentiles lie on the line between the two nearest samples (type 7 of Hyndman and Fan, "Sample Quantiles in
 * Statistical Packages", 1996), as NumPy's do. */
struct sample_summary samples_summarize(struct samples *s);

/* Sorts s. part: 0 to 1; in milliseconds, NaN where there is none. */
double samples_quantile(struct samples *s, double part);

/* Sorts s. How many are at most limit_ms. */
size_t samples_within(struct samples *s, double limit_ms);

#endif
