/* A CUDA backend without a driver, for tests of single operations: its memory is the host's, and launches are carried out
 * at once by the emulator. Defines the functions of cuda.h that operations call. */
#ifndef TUTTI_TESTS_CUDA_LAUNCHES_H
#define TUTTI_TESTS_CUDA_LAUNCHES_H

#include "backend/cuda/cuda.h"

/* A launch waits until the next operation, so that cuda_last_launch() finds it; false: it is carried out now. */
void launches_wait(bool waits);

/* Of a step of up to max_rows rows. Freed by launches_clear(). */
struct cuda_backend *launches_new(int max_rows);

/* Floats on the card: n of them, then NaNs that nobody may use. values NULL: NaNs. Freed by launches_clear(), if not before. */
struct floats launches_floats(const float *values, size_t n);
void launches_floats_free(struct floats floats);

/* The teardown of a group of tests: frees what these functions made, and the data of steps. */
int launches_clear(void **state);

extern int n_launches;         /* so far */
extern size_t cuda_copied_out; /* bytes, so far */

#endif
