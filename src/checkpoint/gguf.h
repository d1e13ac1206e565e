/* GGUF version 3 (and 2, which has the same layout), read and written.
 * Format: docs/gguf.md of the ggml project. */
#ifndef TUTTI_GGUF_H
#define TUTTI_GGUF_H

#include "checkpoint/checkpoint.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf;
struct gguf_array; /* one array value of the metadata */

MUST_CHECK enum tutti_status gguf_open(struct gguf **out, const char *path, struct tutti_error *err);
/* The same from memory, which is borrowed until gguf_close(); name is for messages. */
MUST_CHECK enum tutti_status gguf_open_memory(struct gguf **out, const void *bytes, size_t n_bytes,
                                              const char *name, struct tutti_error *err);
void gguf_close(struct gguf *file); /* NULL is allowed */
size_t gguf_n_tensors(const struct gguf *file);
const struct tensor *gguf_tensor(const struct gguf *file, size_t index);
const json_t *gguf_scalars(const struct gguf *file);
void gguf_forget(const struct gguf *file, const struct tensor *tensor);

/* NULL: no such key, or it is no array. */
const struct gguf_array *gguf_find_array(const struct gguf *file, const char *key);
enum gguf_type gguf_array_type(const struct gguf_array *array);
size_t gguf_array_n(const struct gguf_array *array);

/* Element index of an array of strings: bytes in the mapping, not terminated, any bytes. */
void gguf_array_string(const struct gguf_array *array, size_t index, const char **bytes, size_t *n_bytes);
/* Element index of an array of numbers or bools, converted; 0 where a float does not fit an integer. */
int64_t gguf_array_int(const struct gguf_array *array, size_t index);
double gguf_array_float(const struct gguf_array *array, size_t index);

/* ---- writing: first all metadata and tensor declarations, then the data of each tensor in that order ---- */

struct gguf_writer;

/* Writes beside path under a temporary name; gguf_writer_finish() renames. */
MUST_CHECK enum tutti_status gguf_writer_open(struct gguf_writer **out, const char *path,
                                              struct tutti_error *err);
void gguf_writer_free(
    struct gguf_writer *w); /* removes the temporary file unless finished; NULL is allowed */

/* The first error sticks and is returned by gguf_writer_begin_data(). */
void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float value);
void gguf_writer_bool(struct gguf_writer *w, const char *key, bool value);
void gguf_writer_string(struct gguf_writer *w, const char *key, const char *bytes, size_t n_bytes);
void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *strings,
                         const size_t *n_bytes, size_t n);
void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *values, size_t n);
void gguf_writer_i32s(struct gguf_writer *w, const char *key, const int32_t *values, size_t n);

/* shape as C indexes, as in struct tensor. */
void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                        const int64_t *shape);
MUST_CHECK enum tutti_status gguf_writer_begin_data(struct gguf_writer *w, struct tutti_error *err);
/* The next bytes of the current tensor; padding between tensors is the writer's business. */
MUST_CHECK enum tutti_status gguf_writer_data(struct gguf_writer *w, const void *bytes, size_t n_bytes,
                                              struct tutti_error *err);
/* All data must have come. Flushes to disk, then renames onto path. */
MUST_CHECK enum tutti_status gguf_writer_finish(struct gguf_writer *w, struct tutti_error *err);

#endif
