/* Writes safetensors files of any size whose numbers do not matter. A test fails where a file cannot be written. */
#ifndef TEST_MADE_FILE_H
#define TEST_MADE_FILE_H

#include "base/dtype.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct made_values; /* numbers that were given */

struct made_file {
    json_t *header;
    size_t n_bytes; /* of the data */
    struct made_values *values;
};

/* Zero-initialise. Adds a tensor of a type that safetensors has. */
void made_add(struct made_file *file, const char *name, enum dtype dtype, int n_dims, const int64_t *shape);

/* The same with these numbers, which are copied. */
void made_add_values(struct made_file *file, const char *name, enum dtype dtype, int n_dims,
                     const int64_t *shape, const void *bytes);

/* Writes folder/name, and empties file. Numbers are small, scales too. is_sparse: all numbers are zeros that take no room. */
void made_write(struct made_file *file, const char *folder, const char *name, bool is_sparse);

/* Writes a text as folder/name. */
void made_text(const char *folder, const char *name, const char *text);

/* Shapes of made_add(). */
#define MADE_SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

#endif
