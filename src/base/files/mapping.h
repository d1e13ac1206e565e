/* A whole file mapped read-only, or memory of the caller in its place, with a name for messages. */
#ifndef TUTTI_BASE_FILES_MAPPING_H
#define TUTTI_BASE_FILES_MAPPING_H

#include "base/error.h"

struct mapping {
    const uint8_t *bytes; /* NULL where the file is empty */
    size_t n_bytes;
    char *name;       /* the path, or the name that the caller gave */
    bool is_borrowed; /* the caller's memory: neither unmapped nor forgotten */
};

/* Fills *out, for mapping_close(). The error names the path. TUTTI_E_FORMAT: not a regular file,
 * or a Git LFS pointer. If another program truncates the mapped file, reading it ends the process
 * with SIGBUS: replace checkpoints by rename, do not rewrite them in place. */
MUST_CHECK enum tutti_status mapping_open(struct mapping *out, const char *path, struct tutti_error *err);
void mapping_close(struct mapping *map); /* a zeroed one is allowed */

/* The caller's memory as if it were a file; it must outlive the mapping. name is copied. */
MUST_CHECK enum tutti_status mapping_borrow(struct mapping *out, const void *bytes, size_t n_bytes,
                                            const char *name, struct tutti_error *err);

/* Removes the pages wholly within [data, data + n_bytes) from the process's resident memory.
 * Reading them loads them again. */
void mapping_forget(const struct mapping *map, const void *data, size_t n_bytes);

#endif
