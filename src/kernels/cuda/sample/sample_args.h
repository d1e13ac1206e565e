/* What host and card exchange to sample rows of logits (sample.c and sample_wide.c of this folder). */
#ifndef TUTTI_KERNELS_CUDA_SAMPLE_ARGS_H
#define TUTTI_KERNELS_CUDA_SAMPLE_ARGS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SAMPLE_THREADS = 512,
    SAMPLE_PARTS = 16,        /* of a row, scanned by a block each. Their number does not change results */
    SAMPLE_CANDIDATES = 4096, /* that a truncated draw sorts; with more it is a wide one */
    SAMPLE_MOST_K = 1024,     /* top-k of a truncated draw; with more it is a wide one */
    SAMPLE_MOST_TOP = 128,    /* log-probabilities, or candidates of a beam */
    SAMPLE_GROUPS = 2048,     /* of ids, whose maxima bound the k-th largest logit */
    SAMPLE_BINS = SAMPLE_THREADS, /* of the distance from the largest logit, in temperatures */
};

/* How a token is drawn. A truncated draw has top-k or top-p, and sorts its candidates in shared memory. A wide one has
 * typical-p too, or more candidates: it reads the row several times. */
enum { DRAW_NOTHING, DRAW_GREEDY, DRAW_PLAIN, DRAW_TRUNCATED, DRAW_WIDE, DRAW_BEST };

/* What a launch of sample_wide finds, in this order. WIDE_TOP_K, WIDE_TOP_P and WIDE_TYPICAL are searches for the last
 * candidate that is kept, of WIDE_DIGITS launches each. */
enum { WIDE_TOP_K, WIDE_TOP_P, WIDE_ENTROPY, WIDE_TYPICAL, WIDE_RACE };
enum {
    WIDE_DIGITS = 3,
    WIDE_BINS = 2048, /* of a digit */
    WIDE_RINGS = 3,   /* bins of the launch before, of this one, and cleared ones for the next */
};

/* Biases of an id are added in order. */
struct draw_bias {
    int32_t id;
    float bias;
    int32_t next;     /* index of the next of this id; -1: none */
    int32_t is_first; /* of its id */
};

/* An id of the prompt or of the answer. */
struct draw_penalty {
    int32_t id, n_answer; /* times that it is in the answer */
};

/* A row to be sampled; n usable logits. */
struct draw {
    const float *logits;
    float *x; /* the row after bias, penalties and mask; NULL: there are none */
    const struct draw_bias *biases;
    const struct draw_penalty *penalties; /* an id comes once */
    const uint32_t *allowed;              /* the mask, with the stop tokens' bits; NULL: none */
    double total;  /* DRAW_BEST: logarithm of the sum of exponentials: x begins as log-probabilities */
    uint64_t seed; /* of the race */
    int32_t n, n_biases, n_penalties;
    float repetition, presence, frequency;
    float temperature, reciprocal; /* the latter finite */
    float top_p, min_p, typical_p; /* typical_p: 0: off */
    int32_t top_k;                 /* 0: off */
    int32_t kind;                  /* DRAW_... */
    int32_t has_logprobs;          /* sum_exp and top are wanted */
    int32_t n_top, token;          /* token: whose logit is wanted; -1: that of the largest of x */
};

/* Whether top-p keeps a part of the whole row. */
static inline bool draw_has_mass(const struct draw *d)
{
    return (d->kind == DRAW_TRUNCATED || d->kind == DRAW_WIDE) && d->top_k == 0 && d->top_p < 1.0f;
}

/* Whether a wide draw has a stage, WIDE_TOP_K to WIDE_RACE. */
static inline bool draw_has_stage(const struct draw *d, int stage)
{
    switch (stage) {
    case WIDE_TOP_K:
        return d->top_k > 0;
    case WIDE_TOP_P:
        return d->top_p < 1.0f;
    case WIDE_ENTROPY:
    case WIDE_TYPICAL:
        return d->typical_p > 0;
    default:
        return true;
    }
}

struct draw_found {
    int32_t id;
    float logit; /* of the unchanged row */
    float x;     /* DRAW_BEST: of x */
};

/* What is found, by part. */
struct draw_out {
    struct draw_scan {
        uint64_t largest, largest_x; /* keys (sample.c) of the logits and of x */
        int32_t bad, bad_x;          /* the first id that is not finite; INT32_MAX: none */
    } scans[SAMPLE_PARTS];
    struct draw_race {
        double arrival; /* infinity: nothing arrives */
        struct draw_found found;
    } races[SAMPLE_PARTS]; /* of a plain or wide draw; of a truncated one the first */
    struct draw_found token;
    double sum_exp; /* of the logits minus the largest */
    int32_t n_top;
    int32_t is_wide; /* 1: a wide draw, or a truncated one with too many candidates */
};

/* What becomes of a row. */
struct draw_result {
    uint64_t largest; /* key (sample.c) of the logits */
    double sum_exp;   /* as in draw_out */
    int32_t
        token; /* that is drawn, or whose logit is wanted; if there is none, 0: the next step may be fed with it */
    float
        logit; /* of the token, in the unchanged row; only with has_logprobs, or of a token that was drawn by a race */
    int32_t bad;     /* the first id whose logit is not finite; INT32_MAX: none */
    int32_t is_left; /* 1: the host must do this row */
    int32_t n_top, unused;
};

/* A candidate is a key of 64 bits: its logit, as an integer of the same order, above the complement of its id. So a larger
 * key comes first in the order of candidates: the larger logit, of equals the lower id. */
static inline int32_t draw_key_id(uint64_t key)
{
    return (int32_t)(0xffffffffu - (uint32_t)key);
}

static inline float draw_key_value(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    union {
        uint32_t u;
        float f;
    } v = { .u = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits };
    return v.f;
}

/* What blocks of a row pass on to the next launch: of the logits, and of x if there is one. */
struct draw_scratch {
    uint32_t groups[2][SAMPLE_GROUPS]; /* largest logits, as the high half of keys */
    uint32_t bins[SAMPLE_BINS];        /* sums of weights (sample_sums) */
};

/* What a launch of sample_wide passes on to the next. A search is for the last kept one of the candidates, in their order, by its
 * digits, the highest first: they are kept until the sum of their amounts reaches a mass. */
struct draw_search {
    uint64_t bound;    /* the candidates are the keys from here on */
    uint64_t left;     /* the rest of the mass, for candidates with these digits */
    uint32_t digits;   /* so far */
    uint32_t farthest; /* bits of the largest distance from the entropy that is kept */
    float mean;        /* of the logarithms of weights: the entropy, but for sign and a constant */
    int32_t stage;     /* WIDE_..., of the launch before; -1: it left nothing in its bins */
    int32_t digit;     /* of that launch; WIDE_DIGITS: the search has ended */
    int32_t unused;
};

struct draw_wide {
    uint64_t bins[WIDE_RINGS][WIDE_BINS]; /* sums of amounts */
    struct draw_search searches[2];       /* after even launches, and after odd ones */
};

/* draws may be host memory that is pinned: a block reads its draw once. */
struct sample_args {
    const struct draw *draws;
    struct draw_out *outs;
    struct draw_found *tops; /* [draws][SAMPLE_MOST_TOP] */
    struct draw_result *results;
    struct draw_scratch *scratch;
    float *tile_sums; /* [draws][logits, x][most_tiles]: of RACE_TILE logits each */
    int32_t most_tiles;
    int32_t launch, stage,
        digit; /* sample_wide: number of the launch from 0, WIDE_..., and the digit of a search */
    struct draw_wide *wide; /* [draws] */
};

#endif
