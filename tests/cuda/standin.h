/* How tests steer the stand-in for NVIDIA's driver. A test finds these functions by dlsym() in libcuda.so.1.
 *
 * Environment: TUTTI_STANDIN_MEMORY (bytes of a card, 2 GiB), TUTTI_STANDIN_LEVEL (80), TUTTI_STANDIN_CARDS (1),
 * TUTTI_STANDIN_VERSION (12040), TUTTI_STANDIN_FAIL (NAME:COUNT:ERROR, as standin_fail(); NAME may be "any"),
 * TUTTI_STANDIN_QUERIES (1: queries of an event that find it not reached yet). */
#ifndef TUTTI_TESTS_CUDA_STANDIN_H
#define TUTTI_TESTS_CUDA_STANDIN_H

#include <stdbool.h>
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
/* For the stand-in of another library. Counts a call of a function of that library. Nonzero: it shall fail. */
typedef int standin_called_fn(const char *name);
/* Work of that library on the card, after what the stream was given before: call(args) with a copy of args, again and again until it returns
 * true. Nonzero: the stream is none. */
typedef bool standin_call_fn(void *args);
typedef int standin_enqueue_fn(void *stream, standin_call_fn *call, const void *args, size_t n_bytes);
/* In such a call: copies to or from memory of the card. */
typedef void standin_move_fn(void *to, const void *from, size_t n_bytes);
/* Whether a stream or a graph has a call, not yet carried out, whose args begin with this pointer. */
typedef bool standin_is_in_use_fn(const void *user);
/* Bytes of the card in use. */
typedef size_t standin_bytes_fn(void);

#endif
