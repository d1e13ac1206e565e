/* Large memory in huge pages where the system gives them: a matrix is read through once a token, and with pages of
 * 4 KiB the address translation alone would cost a good part of the bandwidth. */
#ifndef TUTTI_BACKEND_MEMORY_H
#define TUTTI_BACKEND_MEMORY_H

#include <stddef.h>

/* Zeroed, aligned to 64 bytes or better. NULL: no memory. */
void *memory_new(size_t n_bytes);
void memory_free(void *memory, size_t n_bytes); /* n_bytes as for memory_new(); NULL is allowed */

/* Backs memory with real pages before it is needed, so that a system without enough says so early and no step pays for
 * it. What is small is backed at once; what is large by a thread of the lowest priority, while the memory is already in
 * use: pages hold what was written to them. The call returns at once. NULL where nothing is left to do. */
struct memory_backing;
struct memory_backing *memory_back(void *memory, size_t n_bytes);
void memory_back_stop(struct memory_backing *backing); /* before memory_free(); NULL is allowed */

#endif
