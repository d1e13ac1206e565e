/* Allocates large memory in huge pages where the system has them: every token reads each matrix
 * once, and with pages of 4 KiB the address translation would cost a good part of the bandwidth. */
#ifndef TUTTI_BACKEND_CPU_MEMORY_H
#define TUTTI_BACKEND_CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed, aligned to 64 bytes or better. NULL: out of memory. */
void *memory_new(size_t n_bytes);
/* Of its own pages, which are not backed yet. */
bool memory_is_mapped(size_t n_bytes);
void memory_free(void *memory, size_t n_bytes); /* n_bytes as for memory_new(); NULL is allowed */

/* Backs memory with physical pages before it is needed: a lack of memory shows early, and no step
 * pays for page faults. Small memory is backed at once. Large memory is backed by up to n_threads
 * threads of the lowest priority while the memory is already in use; its contents are kept. The call
 * returns at once. NULL: nothing is left to do. */
struct memory_backing;
struct memory_backing *memory_back(void *memory, size_t n_bytes, int n_threads);
void memory_back_stop(struct memory_backing *backing); /* before memory_free(); NULL is allowed */

#endif
