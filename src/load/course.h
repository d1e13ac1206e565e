/* A run over time, in columns of equal width, for the report's plots. */
#ifndef TUTTI_LOAD_COURSE_H
#define TUTTI_LOAD_COURSE_H

#include "load/load.h"

enum { COURSE_MAX_COLUMNS = 180 };

struct course {
    size_t n;
    double width_s; /* a multiple of LOAD_TICK_US */
    double middle_s[COURSE_MAX_COLUMNS];
    double pieces_per_s[COURSE_MAX_COLUMNS];
    double open[COURSE_MAX_COLUMNS];    /* requests that were open, on average */
    double waiting[COURSE_MAX_COLUMNS]; /* requests arrived but not sent, on average */
    double arrived_per_s[COURSE_MAX_COLUMNS];
    double failed_per_s[COURSE_MAX_COLUMNS]; /* by end time */
    double ttft_p50_ms[COURSE_MAX_COLUMNS];  /* of requests that arrived in the column; NaN: none */
    double ttft_p99_ms[COURSE_MAX_COLUMNS];
};

/* TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status course_compute(struct course *out, const struct load_run *run,
                                            struct tutti_error *err);

#endif
