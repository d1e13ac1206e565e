/* Models and engines that a test needs: where one cannot be opened, the test fails with what was said. */
#ifndef TEST_OPENED_H
#define TEST_OPENED_H

#include "engine/run/engine.h"

/* On the device of TUTTI_TEST_DEVICE (tests/model/util.h). path may be a name in the folder of fixtures. Types as in struct tutti_model_options. */
tutti_model *opened_model(const char *path, const char *weight_type, const char *kv_type, int n_threads);

/* The part of a rank, which all ranks open together. */
tutti_model *opened_on_rank(const char *path, tutti_ranks *ranks);

/* hooks: NULL is allowed. */
tutti_engine *opened_engine(tutti_model *model, const struct tutti_engine_options *options,
                            const struct engine_hooks *hooks);

#endif
