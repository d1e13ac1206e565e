/* Beam search: keeps the n_beams most probable continuations of a prompt.
 *
 * Which beams are kept, when the search ends and how a finished answer is scored is as in
 * transformers 5 with one prompt (GenerationMixin._beam_search). Ties are ordered by beam, then by
 * id, as there. Scores are float32 as there. After Lowerre, 1976, and Wu et al., 2016 (length
 * penalty).
 *
 * Memory comes from the thread that prepares the request; the engine thread allocates nothing. */
#ifndef TUTTI_BEAM_H
#define TUTTI_BEAM_H

#include "backend/sample.h"

struct sequence;

/* A beam: an unfinished continuation. */
struct beam {
    struct sequence *seq;
    float score;                         /* sum of log-probabilities, after bias and penalties */
    float *logprobs;                     /* [max_new] of its tokens, before bias and penalties */
    struct sample_candidate *candidates; /* [n_candidates], the best first */
    bool has_candidates;                 /* finite ones, from the logits of its last token */
};

/* A finished answer. */
struct beam_answer {
    float score;     /* divided by length ^ length_penalty */
    int n;           /* tokens, without the stop token */
    bool has_stop;   /* ended with a stop token */
    int32_t *ids;    /* [max_new] */
    float *logprobs; /* [max_new] */
};

/* The next token of one beam, and the current beam that it continues. */
struct beam_next {
    int parent;
    int32_t token;
    float score, logprob;
};

struct beam_search {
    int n_beams, n_candidates, max_new; /* max_new: tokens of an answer, including the stop token */
    double length_penalty;
    enum tutti_early_stopping early_stopping;
    int n_live;    /* beams 0..n_live-1 are unfinished: 1 during prefill, then all */
    int n_answers; /* 0..n_beams */
    int n_next;
    struct beam *beams;          /* [n_beams], the best first */
    struct beam *reordered;      /* [n_beams] scratch */
    struct beam_answer *answers; /* [n_beams], the best first */
    struct beam_next *next;      /* [n_beams] */
    int *heads;                  /* [n_beams] scratch */
};

/* The beam of a sequence. */
static inline struct beam *beam_of(const struct beam_search *search, const struct sequence *seq)
{
    int i = 0;
    while (search->beams[i].seq != seq)
        i++;
    return &search->beams[i];
}

/* n_candidates: n_beams + the number of different stop tokens. */
MUST_CHECK enum tutti_status beam_search_new(struct beam_search **out, int n_beams, int n_candidates,
                                             int max_new, struct tutti_error *err);
size_t beam_search_bytes(int n_beams, int n_candidates, int max_new); /* that it takes; SIZE_MAX: too much */
void beam_search_free(struct beam_search *search);                    /* NULL is allowed */

/* Chooses among the candidates of all live beams: fills next, moves finished ones to answers.
 * n_new: tokens of each answer, including the one chosen now; ids[i]: the n_new - 1 tokens before
 * it, of beam i. False: the search is over. */
bool beam_search_choose(struct beam_search *search, int n_new, const int32_t *const *ids,
                        bool (*is_stop)(const void *user, int32_t id), const void *user);

#endif
