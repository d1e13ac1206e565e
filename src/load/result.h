/* The figures of a run, and the reports that show them: text, JSON, HTML. */
#ifndef TUTTI_LOAD_RESULT_H
#define TUTTI_LOAD_RESULT_H

#include "load/load.h"

/* Who told the number of tokens. */
enum load_counted {
    LOAD_COUNTED_NONE,   /* there was nothing to count */
    LOAD_COUNTED_SERVER, /* "usage", or what the interface has in its place, in every complete answer */
    LOAD_COUNTED_DELTAS, /* the events of the streams, where a server told nothing */
    LOAD_COUNTED_BOTH,   /* some answers one way, some the other */
};

struct load_targets {
    double ttft_ms, itl_ms; /* NaN: no target */
};

struct load_result {
    uint64_t n_requests, n_outcomes[LOAD_OUTCOMES];
    uint64_t n_silent;      /* complete answers without any text */
    uint64_t n_lost_pieces; /* pieces of text of answers that did not become complete */
    double total_s;
    double requests_per_s;                                /* complete ones */
    uint64_t prompt_tokens, cached_tokens, output_tokens; /* of complete answers */
    bool has_prompt_tokens;                               /* every complete answer told them */
    enum load_counted counted;

    /* Of complete answers, in ms. ttft and latency count from the scheduled arrival. */
    struct samples ttft, token_time, latency;
    struct samples late; /* how long after its arrival each request left; of all that left */
    struct sample_summary ttft_ms, gap_ms, token_time_ms, latency_ms, late_ms;

    bool has_targets;
    uint64_t n_good;      /* complete answers that kept the targets */
    size_t n_gaps_within; /* gaps of at most itl_ms; where there is that target */
};

/* Computes all figures; sorts run->gaps. Fills *out for load_result_clear(). TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status load_result_compute(struct load_result *out, struct load_run *run,
                                                 const struct load_targets *targets, struct tutti_error *err);
void load_result_clear(struct load_result *result);

/* What a report needs. */
struct load_report {
    const struct load_options *options;
    struct load_run *run;
    struct load_result *result;
    struct load_targets targets;
};

const char *load_counted_name(enum load_counted counted); /* "server", "deltas", "both", "none" */

/* Each adds to *out. TUTTI_E_MEMORY. details: every request as well. */
MUST_CHECK enum tutti_status load_report_text(struct buf *out, const struct load_report *report,
                                              struct tutti_error *err);
MUST_CHECK enum tutti_status load_report_json(struct buf *out, const struct load_report *report, bool details,
                                              struct tutti_error *err);
MUST_CHECK enum tutti_status load_report_html(struct buf *out, const struct load_report *report,
                                              struct tutti_error *err);

#endif
