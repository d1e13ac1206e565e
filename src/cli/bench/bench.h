/* The parts of tutti bench: what a run measures, and the figures it gives. */
#ifndef TUTTI_CLI_BENCH_BENCH_H
#define TUTTI_CLI_BENCH_BENCH_H

#include "base/limits.h"
#include "cli/options/options.h"
#include "kernels/measure.h"
#include "model/model.h"

enum bench_phase { BENCH_DECODE, BENCH_PREFILL };

struct bench_plan {
    struct option_ints users; /* of the decoding steps */
    int context;              /* tokens that each of them has behind it */
    int n_prefill;            /* tokens of the prompt that is read; 0: none */
    int n_repetitions;        /* 0: as many as a few seconds hold */
    int max_guesses;          /* through the engine, of repeated text; 0: none */
    struct model *draft;      /* through the engine; NULL: none */
    int max_draft_tokens;
    const char *schema; /* through the engine: answers that are valid by it; NULL: none */
    size_t n_schema_bytes;
};

/* What each rank has in memory with the weights, keys and values of a run, without the buffer that limits are measured in. */
struct bench_memory {
    uint64_t rank_bytes[LIMIT_RANKS];
    int n_ranks;
};

/* What the machine could do at most while something was measured: medians. */
struct bench_limits {
    double read_gbps, peak_int8_gops, peak_f32_gflops;
};

/* Of n repetitions: median, and spread, (third quartile - first quartile) / median. */
struct bench_time {
    double median_s, spread;
    int n;
};

/* What a step of several ranks costs rank 0 beside its own arithmetic, waiting for the others included: means. All 0 where one rank runs
 * alone. */
struct bench_ranks {
    double reduce_s, gather_s, tell_s; /* sums, logits of the others, the message that begins a step */
    double n_reduces, reduce_bytes;    /* bytes: of the vectors that are summed */
};

/* What a step reads, and its operations; a multiply-add is two. */
struct bench_work {
    double matrix_bytes, kv_bytes, linear_ops, attention_ops;
};

struct bench_result {
    enum bench_phase phase;
    int n_users, context, n_tokens; /* tokens of one repetition */
    struct bench_time time;
    struct bench_limits limits;
    struct bench_work work;
    double tok_s, limit_tok_s;
    bool has_adapters;
    /* has_adapters: by how much the step takes longer than without them, of that: the median of neighbouring steps' ratios; and
     * from where to where it is with a confidence of 95 %. */
    double adapter_cost, adapter_cost_low, adapter_cost_high;
    struct bench_ranks ranks;
};

/* Sorts seconds, at least 1. */
struct bench_time bench_time_of(double *seconds, int n);

typedef void bench_progress_fn(void *user, uint64_t done, uint64_t total);
bench_progress_fn bench_no_progress;

/* ---- steps of the model alone: no scheduler, no sampling, no text ---- */

/* results: [plan->users.n + 1]. limits: looked at around each repetition. memory: NULL: is not asked for. */
MUST_CHECK enum tutti_status bench_steps(struct model *model, const struct bench_plan *plan,
                                         struct measure *limits, struct bench_result *results, int *n_results,
                                         struct bench_memory *memory, bench_progress_fn *progress, void *user,
                                         struct tutti_error *err);

/* ---- attention alone, for f16 and int8 keys and values ---- */

enum { BENCH_ATTENTION_POINTS = 4 }; /* results of a context, at most: types times numbers of rows */

struct bench_attention_result {
    enum dtype kv_type;
    int context, n_rows;    /* n_rows: 1 to decode, more for the end of a prompt of context tokens */
    double read_bytes, ops; /* of all layers: keys and values read once; multiplications and additions */
    struct bench_time time; /* of all layers */
    struct bench_limits limits;
};

/* results: [BENCH_ATTENTION_POINTS * contexts->n]. decode_type: NULL: all points; else only one row, with keys and values of that
 * type. n_repetitions: of each, up to 50; 0: as many as fit half a second, or three seconds with the limits. limits: measured
 * before each repetition, which also empties the caches. */
MUST_CHECK enum tutti_status bench_attention(struct model *model, const struct option_ints *contexts,
                                             const enum dtype *decode_type, int n_repetitions,
                                             struct measure *limits, struct bench_attention_result *results,
                                             int *n_results, bench_progress_fn *progress, void *user,
                                             struct tutti_error *err);

/* ---- the same through the engine: scheduler, sampling and text thread included ---- */

enum bench_text {
    BENCH_PLAIN,
    BENCH_TEXT_WORK, /* log-probabilities of 20 tokens each and 16 stop strings */
    BENCH_COPIED,    /* the same token again and again: every guess is right */
    BENCH_OWN,       /* what the model says to random tokens by itself, greedily */
    BENCH_SCHEMA,    /* JSON that is valid by a schema */
    BENCH_RANDOM, /* 16 tokens at random behind a prompt of such: there is always a guess, and mostly a wrong one */
};

struct bench_engine_result {
    enum bench_text text;
    enum bench_guesses { BENCH_NO_GUESSES, BENCH_GUESSED, BENCH_DRAFTED } guesses;
    int n_users, context, n_tokens; /* n_tokens: that each user was answered with */
    int n_rounds; /* in turn with the kind that it is compared with, which is the one before */
    double tok_s; /* sum over the users of each one's rate behind its first token; median of the rounds */
    double ratio, ratio_spread; /* of that to the other kind's of the same round; 0: there is no other */
    double ttft_ms;             /* median; all prompts arrive at once */
    double step_ms;             /* mean */
    /* Of all rounds */
    uint64_t n_steps, n_text_waits;  /* steps that waited for the text thread */
    uint64_t n_accepted, n_rejected; /* guessed tokens */
    uint64_t n_passes;               /* of the draft model */
    uint64_t
        n_late_masks; /* tokens that a step could not draw, since what the schema allows was not known yet */
};

/* For a number of users, at most. */
enum { BENCH_ENGINE_PAIRS = 8, BENCH_ENGINE_POINTS = 2 * BENCH_ENGINE_PAIRS };

/* results: [BENCH_ENGINE_POINTS * plan->users.n]. */
MUST_CHECK enum tutti_status bench_engine(struct model *model, const struct bench_plan *plan,
                                          struct bench_engine_result *results, int *n_results,
                                          bench_progress_fn *progress, void *user, struct tutti_error *err);

/* Token ids without meaning, always the same ones. */
void bench_fill_ids(int32_t *ids, int n, int n_vocab, uint64_t seed);

#endif
