/* Computes the statistics of a run and writes the reports: text and JSON. */
#ifndef TUTTI_LOAD_RESULT_H
#define TUTTI_LOAD_RESULT_H

#include "load/load.h"

/* The source of token counts. */
enum load_counted {
    LOAD_COUNTED_NONE,   /* nothing to count */
    LOAD_COUNTED_SERVER, /* "usage", or the API's equivalent, in every complete answer */
    LOAD_COUNTED_DELTAS, /* stream events, because the server sent no counts */
    LOAD_COUNTED_BOTH,   /* both, in different answers */
};

struct load_targets {
    double ttft_ms, itl_ms; /* NaN: no target */
};

struct load_result {
    uint64_t n_requests, n_outcomes[LOAD_OUTCOMES];
    uint64_t n_silent;      /* complete answers without any text */
    uint64_t n_lost_pieces; /* pieces of text of incomplete answers */
    double total_s;
    double requests_per_s;                                /* complete ones */
    uint64_t prompt_tokens, cached_tokens, output_tokens; /* of complete answers */
    bool has_prompt_tokens;                               /* every complete answer has them */
    enum load_counted counted;

    /* Of complete answers, in ms. ttft and latency count from the scheduled arrival. */
    struct load_samples ttft, token_time, latency;
    struct load_samples late; /* delay from arrival to sending, of all requests sent */
    struct sample_summary ttft_ms, gap_ms, token_time_ms, latency_ms, late_ms;

    bool has_targets;
    uint64_t n_good;      /* complete answers within the targets */
    size_t n_gaps_within; /* gaps of at most itl_ms, if that target is set */
};

/* Computes all statistics; sorts run->gaps. Fills *out for load_result_clear(). TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status load_result_compute(struct load_result *out, struct load_run *run,
                                                 const struct load_targets *targets, struct tutti_error *err);
void load_result_clear(struct load_result *result);

/* The input of a report. */
struct load_report {
    const struct load_options *options;
    struct load_run *run;
    struct load_result *result;
    struct load_targets targets;
};

const char *load_counted_name(enum load_counted counted); /* "server", "deltas", "both", "none" */

/* Each adds to *out. TUTTI_E_MEMORY. details: include every request, and what bench/load-page draws:
 * the distributions of times, and the pieces received over time. */
MUST_CHECK enum tutti_status load_report_text(struct buf *out, const struct load_report *report,
                                              struct tutti_error *err);
MUST_CHECK enum tutti_status load_report_json(struct buf *out, const struct load_report *report, bool details,
                                              struct tutti_error *err);

#endif
