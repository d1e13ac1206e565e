/* Large memory in huge pages where the system gives them: a matrix is read through once a token, and with pages of
 * 4 KiB the address translation alone would cost a good part of the bandwidth. */
#ifndef TUTTI_BACKEND_MEMORY_H
#define TUTTI_BACKEND_MEMORY_H

#include <stddef.h>

/* Zeroed, aligned to 64 bytes or better. NULL: no memory. */
void *memory_new(size_t n_bytes);
void memory_free(void *memory, size_t n_bytes); /* n_bytes as for memory_new(); NULL is allowed */

#endif
