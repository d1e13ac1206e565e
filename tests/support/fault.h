/* Makes the n-th call of an allocating function fail, and ends the program at an allocation inside a decode step.
 * A test program that links this (guard_dep) has malloc, calloc, realloc, aligned_alloc, posix_memalign, mmap,
 * pthread_create, pthread_mutex_init and pthread_cond_init of all code linked into it replaced by the linker (--wrap),
 * and jansson's allocations too. What the C library does for itself is not seen. */
#ifndef TEST_FAULT_H
#define TEST_FAULT_H

#include <stdbool.h>
#include <stddef.h>

/* The n-th call from now on fails, in whatever thread; 0: none does. Forgets what was counted. */
void fault_arm(long n);

/* Bytes that were allocated since fault_arm(), without those that the C library and jansson ask for. */
size_t fault_n_bytes(void);

/* Calls since fault_arm(), and whether one of them was made to fail. */
long fault_n_calls(void);
bool fault_has_hit(void);
/* The function that failed, "malloc", or "jansson" for its allocations; "" where none did. */
const char *fault_function(void);

#endif
