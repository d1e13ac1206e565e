/* What the tests of the model room share: golden files, and one sequence run by hand. */
#ifndef TUTTI_TESTS_MODEL_UTIL_H
#define TUTTI_TESTS_MODEL_UTIL_H

#include "checkpoint/safetensors.h"
#include "engine/run/engine.h"
#include "model/adapters/adapter.h"

/* NULL fields of options: the test fails with the error's text where loading fails. */
struct model *util_load(const char *path, const char *weight_type, const char *kv_type, int n_threads,
                        const char *cpu);

/* The device that the tests' models run on: TUTTI_TEST_DEVICE, such as cuda with the stand-in for the driver (tests/cuda); NULL:
 * the processor. */
const char *util_device(void);

/* The adapter of what util_logits() and util_greedy() run; -1 (as it begins): none. */
extern int32_t util_adapter;

/* Logits of every position, [n][n_vocab], freed by the caller; chunk rows a step, but a prefix in one. */
float *util_logits(struct model *model, const int32_t *ids, int n, int chunk);

/* n greedy tokens after the prompt, one row a step. */
void util_greedy(struct model *model, const int32_t *prompt, int n_prompt, int32_t *answer, int n);

/* Tensor "k.name" of a golden file; the test fails where it is missing. */
const struct tensor *util_golden(const struct tensor_set *file, int k, const char *name);

json_t *util_load_json(const char *path);

/* Returns how many there are. */
int util_read_ids(const json_t *array, int32_t *ids);

struct util_errors {
    double max_abs, max_relative; /* relative: to the largest |logit| of its position */
    double rms;                   /* of all errors, relative to that of all logits */
    double median_rms;            /* of the positions' own: one that chooses another expert changes little */
    double sum_squares, sum_squared_errors;
};

/* Logits of the prompts of a golden file against its tensors "k.TENSOR". */
struct util_errors util_compare_file(struct model *model, const char *golden_path, const char *tensor,
                                     int n_prompts);

#endif
