/* Failures of the stand-in for NVIDIA's driver that tests order by the functions of standin.h, for libcuda_standin.c, which
 * calls failure_next() under its lock. */
#ifndef TUTTI_TESTS_CUDA_STANDIN_FAILURES_H
#define TUTTI_TESTS_CUDA_STANDIN_FAILURES_H

#include "cuda/standin.h"

#define EXPORT __attribute__((visibility("default")))

/* A number from the environment; value: without one. */
long setting(const char *name, long value);

/* Counts a call of a function from this address. Nonzero: the call shall fail with this error. */
int failure_next(const char *name, const void *caller);

#endif
