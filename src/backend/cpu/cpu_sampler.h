/* The sampler of the CPU backend: works on one row of logits, with one thread. Nothing allocates after
 * sampler_new(). */
#ifndef TUTTI_BACKEND_CPU_SAMPLER_H
#define TUTTI_BACKEND_CPU_SAMPLER_H

#include "backend/sample.h"

struct kernels; /* kernels/kernels.h */
struct sampler; /* scratch memory for one thread */

/* For rows of up to n_vocab usable logits. kernels: borrowed. */
MUST_CHECK enum tutti_status sampler_new(struct sampler **out, const struct kernels *kernels, int n_vocab,
                                         struct tutti_error *err);
void sampler_free(struct sampler *sampler); /* NULL is allowed */

/* Processes in with its rows of logits [rows][n_vocab], by the function below for in->kind. */
void sampler_run(struct sampler *sampler, float *logits, int n_vocab, struct sample_input *in);

/* Of one row. False: a logit is NaN or infinite; out->token is then its id. */
MUST_CHECK bool sampler_draw(struct sampler *sampler, const float *logits, const struct sample_input *in,
                             struct sample *out);
MUST_CHECK bool sampler_score(struct sampler *sampler, const float *logits, const struct sample_input *in,
                              struct sample *out);

/* Bias and penalties apply to log-probabilities here, as in transformers. row: logits on entry,
 * log-probabilities on return. False: a logit is NaN or infinite, and *bad_id is its id. */
MUST_CHECK bool sampler_best(struct sampler *sampler, float *row, const struct sample_input *in,
                             int32_t *bad_id);

#endif
