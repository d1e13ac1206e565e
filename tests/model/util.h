/* What the tests of the model room share: golden files, and one sequence run by hand. */
#ifndef TUTTI_TESTS_MODEL_UTIL_H
#define TUTTI_TESTS_MODEL_UTIL_H

#include "checkpoint/safetensors.h"
#include "engine/engine.h"

/* NULL fields of options: the test fails with the error's text where loading fails. */
struct model *util_load(const char *path, const char *weight_type, const char *kv_type, int n_threads,
                        const char *cpu);

/* Logits of every position, [n][n_vocab], freed by the caller; chunk rows a step. */
float *util_logits(struct model *model, const int32_t *ids, int n, int chunk);

/* n greedy tokens behind the prompt, one row a step. */
void util_greedy(struct model *model, const int32_t *prompt, int n_prompt, int32_t *answer, int n);

/* Tensor "k.name" of a golden file; the test fails where it is missing. */
const struct tensor *util_golden(const struct safetensors *file, int k, const char *name);

#endif
