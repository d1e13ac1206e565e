/* Reads importance matrices: for each matrix of a model the mean of the squared inputs of each
 * column, over a text, by llama.cpp's llama-imatrix. Two forms: .dat files, and GGUF files with
 * NAME.in_sum2 and NAME.counts. Names are those of the converted file (blk.0.attn_q.weight). */
#ifndef TUTTI_OFFLINE_IMATRIX_H
#define TUTTI_OFFLINE_IMATRIX_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct imatrix;

/* Of one matrix, or of several of the same number of columns (experts), one after the other. */
struct imatrix_entry {
    const char *name;
    float *values; /* [n], finite and not negative; all 0 where no input was seen */
    int64_t n;
};

/* On success *out is the caller's, for imatrix_close(). TUTTI_E_FORMAT: another file, or a value that
 * is negative or not finite; the error names the entry. */
MUST_CHECK enum tutti_status imatrix_open(struct imatrix **out, const char *path, struct tutti_error *err);

/* The same from memory; name is for messages. */
MUST_CHECK enum tutti_status imatrix_open_memory(struct imatrix **out, const void *bytes, size_t n_bytes,
                                                 const char *name, struct tutti_error *err);
void imatrix_close(struct imatrix *m); /* NULL is allowed */

/* Borrowed. NULL: not found. */
const struct imatrix_entry *imatrix_find(const struct imatrix *m, const char *name);

const char *imatrix_name(const struct imatrix *m); /* of the file, for messages */

#endif
