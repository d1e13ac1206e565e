/* A folder of this process for readers that want a path; in memory where the machine has such a place, removed at the end. */
#ifndef TUTTI_FUZZ_SCRATCH_H
#define TUTTI_FUZZ_SCRATCH_H

#include <stddef.h>

enum { SCRATCH_MAX_PATH = 160 };

const char *scratch_folder(void);

/* Makes the file name hold the bytes; returns its path, valid until the next call. */
const char *scratch_write(const char *name, const void *bytes, size_t n_bytes);
void scratch_remove(const char *name);

#endif
