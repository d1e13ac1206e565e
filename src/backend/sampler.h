/* Samples a row of logits in host memory, with one thread: all rows of the CPU backend, and those of the CUDA backend that
 * its kernels leave to the host. Nothing allocates after
 * sampler_new(). */
#ifndef TUTTI_BACKEND_SAMPLER_H
#define TUTTI_BACKEND_SAMPLER_H

#include "backend/sample.h"

enum { MAX_SAMPLE_STOPS = 512 }; /* more than a model and a request can have */

struct kernels; /* kernels/kernels.h */
struct sampler; /* scratch memory for one thread */

/* For rows of up to n_vocab usable logits. kernels: borrowed. */
MUST_CHECK enum tutti_status sampler_new(struct sampler **out, const struct kernels *kernels, int n_vocab,
                                         struct tutti_error *err);
void sampler_free(struct sampler *sampler); /* NULL is allowed */

/* Whether the sampling changes logits before the token mask, and whether it has typical-p. */
bool sampler_has_processors(const struct tutti_sampling *p);
bool sampler_has_typical(const struct tutti_sampling *p);

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
