/* The parts of tutti plan: what it was asked, what it measures, what it reckons. */
#ifndef TUTTI_CLI_PLAN_PLAN_H
#define TUTTI_CLI_PLAN_PLAN_H

#include "cli/options/options.h"
#include "fleet/plan.h"

enum { PLAN_PROMPT_TOKENS = 256 };

struct plan_values {
    const char *type, *kv_type, *rates;
    int64_t hosts, cores, memory, context, threads;
    double link, latency, bandwidth;
    struct option_ints users;
    bool json, check;
};

struct plan {
    const char *name;
    struct plan_model model;
    enum dtype type;
    struct plan_rates rates;
    struct plan_hosts hosts;
    const struct plan_values *values;
    int context;
    struct plan_layout layouts[LIMIT_RANKS];
    int n_layouts;
};

struct measure;

/* What rates are measured with: as many of the model's layers as no cache holds, with made-up weights, and as large a part of the
 * vocabulary, so that everything has the share of the time that it has in the whole. */
struct plan_probe {
    struct model *part;
    struct measure *limits;
    struct team *team;
};

/* Sets p->rates, too. n_repetitions: 0: as many as some seconds hold. On failure the probe is to be closed all the same. */
MUST_CHECK enum tutti_status plan_probe_open(struct plan_probe *probe, struct plan *p,
                                             struct tutti_error *err);
struct progress;

/* progress: NULL: none is shown. */
MUST_CHECK enum tutti_status plan_probe_run(const struct plan_probe *probe, struct plan *p, int n_repetitions,
                                            struct progress *progress, struct tutti_error *err);
void plan_probe_close(struct plan_probe *probe);

/* Measures the whole model and its rates in turns, and prints how far each prediction is from what was measured. */
MUST_CHECK enum tutti_status plan_check(struct plan *p, struct tutti_error *err);

#endif
