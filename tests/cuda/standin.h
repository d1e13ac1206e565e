/* How tests steer the stand-in for NVIDIA's driver. A test finds these functions by dlsym() in libcuda.so.1.
 *
 * Environment: TUTTI_STANDIN_MEMORY (bytes of a card, 2 GiB), TUTTI_STANDIN_LEVEL (80), TUTTI_STANDIN_CARDS (1),
 * TUTTI_STANDIN_VERSION (12040), TUTTI_STANDIN_FAIL (NAME:COUNT:ERROR, as standin_fail(); NAME may be "any"),
 * TUTTI_STANDIN_QUERIES (1: queries of an event that find it not reached yet). */
#ifndef TUTTI_TESTS_CUDA_STANDIN_H
#define TUTTI_TESTS_CUDA_STANDIN_H

#include <stddef.h>

/* From now on, call number count (1: the next) of this function fails, once, with this error. name NULL: of any function.
 * count 0: none fails. A function that frees does so and then fails. */
typedef void standin_fail_fn(const char *name, long count, int error);
/* Calls of a function (NULL: of all) since the last standin_fail(). */
typedef long standin_calls_fn(const char *name);
/* Whether the failure has been given, and by which function. NULL: not yet. */
typedef const char *standin_failed_fn(void);
/* From now on, seen gets each call, before it is carried out or fails: its number (1: the first since standin_fail()), its
 * function, and the return addresses of the functions on the stack, from that of the driver's function on. NULL: none. */
enum { STANDIN_CALLERS = 4 };
typedef void standin_seen_fn(long number, const char *function, void *const *callers, int n_callers);
typedef void standin_trace_fn(standin_seen_fn *seen);
/* Counts a call of a function of another library, which the stand-in for that library makes. Nonzero: it shall fail. */
typedef int standin_called_fn(const char *name);
/* Bytes of the card in use. */
typedef size_t standin_bytes_fn(void);

#endif
