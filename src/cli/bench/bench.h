/* The parts of tutti bench: settings, measurements and results. */
#ifndef TUTTI_CLI_BENCH_BENCH_H
#define TUTTI_CLI_BENCH_BENCH_H

#include "base/limits.h"
#include "cli/options/options.h"
#include "kernels/measure.h"
#include "model/model.h"

enum bench_phase { BENCH_DECODE, BENCH_PREFILL };

struct bench_plan {
    struct option_ints users; /* numbers of sequences in a decode step */
    int context;              /* tokens of context of each sequence */
    int n_prefill;            /* tokens of the prompt to prefill; 0: none */
    int n_repetitions;        /* 0: as many as fit in a few seconds */
    int max_lookup_drafts;    /* engine only: prompt-lookup draft tokens; 0: none */
    struct model *draft;      /* engine only: draft model; NULL: none */
    int max_draft_tokens;
    const char *schema; /* engine only: JSON schema of the answers; NULL: none */
    size_t n_schema_bytes;
};

/* Resident memory of each rank with the weights and KV memory of a run, without the buffer for
 * measuring limits. */
struct bench_memory {
    uint64_t rank_bytes[LIMIT_RANKS];
    int n_ranks;
    struct tutti_device device; /* of rank 0, with the same; name "": the CPU */
};

/* One sample of the limits of the model's device. host: of the machine, for a device that measures none of its own. */
void bench_look(struct backend_limits *out, struct measure *host, const struct model *model);
/* Each limit's median over n looks, at least 1. scratch: [n] */
struct backend_limits bench_median_limits(const struct backend_limits *looks, int n, double *scratch);

/* Of n repetitions: median, and spread, (third quartile - first quartile) / median. */
struct bench_time {
    double median_s, spread;
    int n;
};

/* Communication time of rank 0 in a step, waiting for other ranks included: means per step. All 0
 * with a single rank. */
struct bench_ranks {
    double reduce_s, gather_s, plan_broadcast_s; /* all-reduce, gather of logits, broadcast of the step */
    double n_reduces, reduce_bytes;              /* bytes: of the vectors that are reduced */
};

/* Bytes that a step reads, and its operations; a multiply-add is two. */
struct bench_work {
    double matrix_bytes, kv_bytes, linear_ops, attention_ops;
    double read_s; /* of what takes longer to read than to compute */
};

struct bench_result {
    enum bench_phase phase;
    int n_users, context, n_tokens; /* tokens of one repetition */
    struct bench_time time;
    struct backend_limits limits; /* during the measurement: medians */
    struct bench_work work;
    double expert_bytes; /* of a repetition: weights of the experts that its rows used */
    double tok_s, limit_tok_s;
    double
        limit_read; /* part of the limit's time that is bound by reading; the rest is bound by arithmetic */
    double busy; /* part of the steps' time in which the device worked; of a device with memory of its own */
    bool has_adapters;
    /* has_adapters: the relative slowdown of a step by the adapters: median over pairs of
     * neighbouring steps with and without them, and its 95 % confidence interval. */
    double adapter_cost, adapter_cost_low, adapter_cost_high;
    struct bench_ranks ranks;
};

/* q . k, and weights . v, of a row with one position, in a layer. */
double bench_position_ops(const struct attn_desc *attn);

/* Sets work and limit_tok_s, from what was run, the machine's limits and expert_bytes. */
void bench_find_limit(const struct model *model, struct bench_result *result);

/* Sorts seconds. n: at least 1. */
struct bench_time bench_time_of(double *seconds, int n);

/* ---- model steps only: no scheduler, no sampling, no text ---- */

/* results: [plan->users.n + 1]. limits: measured around each repetition. memory: NULL: not
 * wanted. */
MUST_CHECK enum tutti_status bench_steps(struct model *model, const struct bench_plan *plan,
                                         struct measure *limits, struct bench_result *results, int *n_results,
                                         struct bench_memory *memory, struct tutti_error *err);

/* ---- attention only, for f16 and int8 keys and values ---- */

enum { BENCH_ATTENTION_POINTS = 4 }; /* maximum results per context: types times numbers of rows */

struct bench_attention_result {
    enum dtype kv_type;
    int context,
        n_rows; /* n_rows: 1 for decode, more for the last prefill chunk of a prompt of context tokens */
    double read_bytes, ops; /* of all layers: keys and values read once; multiplications and additions */
    struct bench_time time; /* of all layers */
    struct backend_limits limits;
};

/* results: [BENCH_ATTENTION_POINTS * contexts->n]. n_repetitions 0: each is repeated for half a second, or for
 * three seconds with the limits. limits: measured before each repetition, which also evicts the caches. */
MUST_CHECK enum tutti_status bench_attention(struct model *model, const struct option_ints *contexts,
                                             int n_repetitions, struct measure *limits,
                                             struct bench_attention_result *results, int *n_results,
                                             struct tutti_error *err);

/* ---- the whole engine: scheduler, sampling and text thread included ---- */

enum bench_text {
    BENCH_PLAIN,
    BENCH_TEXT_WORK, /* with 20 log-probabilities per token and 16 stop strings */
    BENCH_COPIED,    /* the same token repeated: every draft token is accepted */
    BENCH_OWN,       /* the model's own greedy output after random tokens */
    BENCH_SCHEMA,    /* JSON constrained by a schema */
    BENCH_RANDOM,    /* 16 random tokens, repeated from the prompt: always drafts, mostly rejected */
};

struct bench_engine_result {
    enum bench_text text;
    enum bench_drafts { BENCH_NO_DRAFTS, BENCH_LOOKUP_DRAFTS, BENCH_MODEL_DRAFTS } drafts;
    int n_users, context, n_tokens; /* n_tokens: output tokens per user */
    int n_rounds; /* alternating with the variant that this is compared with: the previous result */
    double tok_s; /* of all users, from the first token of any to the last; median of the rounds */
    double ratio, ratio_spread; /* of tok_s to that of the other variant in the same round; 0: none */
    double ttft_ms;             /* median; all prompts arrive at once */
    double step_ms;             /* mean */
    /* Of all rounds */
    uint64_t n_steps, n_text_waits;  /* steps that waited for the text thread */
    uint64_t n_accepted, n_rejected; /* draft tokens */
    uint64_t n_passes;               /* of the draft model */
    uint64_t n_late_masks;           /* tokens not sampled in their step because the token mask was late */
};

/* Maximum results per number of users. */
enum { BENCH_ENGINE_PAIRS = 8, BENCH_ENGINE_POINTS = 2 * BENCH_ENGINE_PAIRS };

/* results: [BENCH_ENGINE_POINTS * plan->users.n]. */
MUST_CHECK enum tutti_status bench_engine(struct model *model, const struct bench_plan *plan,
                                          struct bench_engine_result *results, int *n_results,
                                          struct tutti_error *err);

/* Fills ids with pseudo-random token ids, determined by seed. */
void bench_fill_ids(int32_t *ids, int n, int n_vocab, uint64_t seed);

#endif
