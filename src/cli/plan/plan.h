/* The parts of tutti plan: its options, its measurements and its predictions. */
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

/* The partial model on which rates are measured: random weights, and enough of the model's layers
 * to exceed the caches. It has the same fraction of the vocabulary as of the layers, so every
 * part takes the same proportion of time as in the whole model. */
struct plan_probe {
    struct model *part;
    struct measure *limits;
    struct team *team;
};

/* Also sets p->rates. The probe must be closed even after a failure. */
MUST_CHECK enum tutti_status plan_probe_open(struct plan_probe *probe, struct plan *p,
                                             struct tutti_error *err);
struct progress;

/* n_repetitions: 0: as many as fit in a few seconds. progress: NULL: none is shown. */
MUST_CHECK enum tutti_status plan_probe_run(const struct plan_probe *probe, struct plan *p, int n_repetitions,
                                            struct progress *progress, struct tutti_error *err);
void plan_probe_close(struct plan_probe *probe);

/* Measures the whole model and the rates alternately, and prints the error of each prediction. */
MUST_CHECK enum tutti_status plan_check(struct plan *p, struct tutti_error *err);

#endif
