/* Beam search: of one prompt, the n_beams most probable continuations are followed side by side.
 *
 * What is kept, when it ends and what a finished answer is worth is what transformers 5 does with one prompt
 * (GenerationMixin._beam_search); so is the order of equal scores, by beam and then by id. Scores are float32 as there.
 * After Lowerre, 1976, and Wu et al., 2016 (length penalty).
 *
 * Memory comes from the thread that prepares the request; the engine thread allocates nothing. */
#ifndef TUTTI_BEAM_H
#define TUTTI_BEAM_H

#include "engine/sample/sampler.h"

struct sequence;

/* A continuation that goes on. */
struct beam {
    struct sequence *seq;
    float score;                         /* sum of log-probabilities, after bias and penalties */
    float *logprobs;                     /* [max_new] of its tokens, as the model gave them */
    struct sample_candidate *candidates; /* [n_candidates], the best first */
    bool has_candidates;                 /* of the token that comes next */
};

/* One that ended. */
struct beam_answer {
    float score;     /* divided by length ^ length_penalty */
    int n;           /* tokens, without the stop token */
    bool has_stop;   /* it ended by itself */
    int32_t *ids;    /* [max_new] */
    float *logprobs; /* [max_new] */
};

/* What the next token of beam number i is, and of which present beam it continues. */
struct beam_next {
    int parent;
    int32_t token;
    float score, logprob;
};

struct beam_search {
    int n_beams, n_candidates, max_new; /* max_new: tokens of an answer, the stop token counted */
    double length_penalty;
    enum tutti_early_stopping early_stopping;
    int n_live;    /* beams 0..n_live-1 go on: 1 while the prompt is being read, then all */
    int n_answers; /* 0..n_beams */
    int n_next;
    struct beam *beams;          /* [n_beams], the best first */
    struct beam *reordered;      /* [n_beams] scratch */
    struct beam_answer *answers; /* [n_beams], the best first */
    struct beam_next *next;      /* [n_beams] */
    int *heads;                  /* [n_beams] scratch */
};

/* n_candidates: n_beams and the number of different stop tokens. */
MUST_CHECK enum tutti_status beam_search_new(struct beam_search **out, int n_beams, int n_candidates,
                                             int max_new, struct tutti_error *err);
void beam_search_free(struct beam_search *search); /* NULL is allowed */

/* Chooses among the candidates of all live beams: fills next, takes ended ones into answers. n_new: tokens of each
 * answer with the one that is chosen now; ids[i]: the n_new - 1 before it, of beam i. False: the search is over. */
bool beam_search_choose(struct beam_search *search, int n_new, const int32_t *const *ids,
                        bool (*is_stop)(const void *user, int32_t id), const void *user);

#endif
