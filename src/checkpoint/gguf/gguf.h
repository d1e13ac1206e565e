/* Reads and writes GGUF version 3 (and 2, which has the same layout). Format: docs/gguf.md of the
 * ggml project.
 *
 * Reading copies nothing but scalars and names: tensors and arrays point into the mapped file.
 * Counts and lengths are checked against the rest of the file before memory is allocated for
 * them, so allocations stay within a small multiple of the file's size. No function is slower
 * than n log n in the file's size. */
#ifndef TUTTI_GGUF_H
#define TUTTI_GGUF_H

#include "checkpoint/tensor_set.h"

#include <jansson.h>

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
enum { GGUF_TENSOR_DIMS = 4 }; /* at most */
struct gguf_array;             /* one array value of the metadata */

/* Opening checks the whole file. If it is part of a split (NAME-00001-of-00003.gguf, as llama.cpp's
 * gguf-split names them), all parts are opened; the metadata are those of the first. Gaps between
 * tensors are accepted, overlaps are not. Keys and tensor names must be printable UTF-8. Errors name
 * the file and the key or tensor, with what was found and expected. TUTTI_E_UNSUPPORTED: version 1,
 * big-endian, or a tensor of an unsupported type (the error names it). TUTTI_E_FORMAT: anything
 * that breaks the format's rules; an array of arrays; a number that JSON cannot represent
 * (infinity, NaN, above INT64_MAX); a part of another file. TUTTI_E_NOT_FOUND (also a part),
 * TUTTI_E_IO, TUTTI_E_MEMORY: the system. Tensors are in the order of their declarations. */
extern const struct checkpoint_format GGUF_FORMAT;

/* The metadata of an open file; NULL: the set has another format. Everything below is borrowed, and
 * lives as long as the set. */
const struct gguf *gguf_of(const struct tensor_set *set);

/* Every value of the metadata except arrays, by key. A string keeps its bytes, even invalid
 * UTF-8: check before passing it on (json_dumps() refuses it). */
const json_t *gguf_scalars(const struct gguf *file);

/* Arrays of the metadata, sorted by key. index: below gguf_n_arrays(). */
size_t gguf_n_arrays(const struct gguf *file);
const char *gguf_array_key(const struct gguf *file, size_t index);

/* NULL: no such key, or not an array. */
const struct gguf_array *gguf_find_array(const struct gguf *file, const char *key);
enum gguf_type gguf_array_type(const struct gguf_array *array); /* of its elements */
size_t gguf_array_n(const struct gguf_array *array);

/* index: below gguf_array_n(). All in constant time. */

/* Element of an array of strings: bytes in the mapping, not terminated, any bytes. */
void gguf_array_string(const struct gguf_array *array, size_t index, const char **bytes, size_t *n_bytes);

/* Element of an array of numbers or bools, converted; 0 where a float does not fit an integer. A
 * u64 above INT64_MAX becomes negative as an integer. */
int64_t gguf_array_int(const struct gguf_array *array, size_t index);
double gguf_array_float(const struct gguf_array *array, size_t index);

/* ggml's number of a type of weights. */
int gguf_type_number(enum dtype dtype);

/* ---- writing ---- */

/* Call the functions in this order: all metadata and tensor declarations, gguf_writer_begin_data(),
 * the data of each tensor in the order of the declarations, gguf_writer_finish(). */

struct gguf_writer;

/* Writes to a temporary file in the same folder (base/files/new_file.h); gguf_writer_finish()
 * renames. On success *out is the caller's, for gguf_writer_free(). */
MUST_CHECK enum tutti_status gguf_writer_open(struct gguf_writer **out, const char *path,
                                              struct tutti_error *err);
/* Removes the temporary file unless it was finished. NULL is allowed. */
void gguf_writer_free(struct gguf_writer *w);

/* Everything is copied. The first error sticks and is returned by gguf_writer_begin_data(). */
void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float value);
void gguf_writer_bool(struct gguf_writer *w, const char *key, bool value);
void gguf_writer_string(struct gguf_writer *w, const char *key, const char *bytes, size_t n_bytes);
void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *strings,
                         const size_t *n_bytes, size_t n);
void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *values, size_t n);
void gguf_writer_i32s(struct gguf_writer *w, const char *key, const int32_t *values, size_t n);
void gguf_writer_u8s(struct gguf_writer *w, const char *key, const uint8_t *values, size_t n);
void gguf_writer_bools(struct gguf_writer *w, const char *key, const bool *values, size_t n);

/* shape as C indexes, as in struct tensor. dtype: one that dtype_is_weight(). */
void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                        const int64_t *shape);

/* Writes the header. No metadata or tensor declaration may follow. TUTTI_E_FORMAT: GGUF does not
 * support a tensor's name, shape or type. Duplicate names are not detected. TUTTI_E_IO: the
 * system's reason, such as a full disk. */
MUST_CHECK enum tutti_status gguf_writer_begin_data(struct gguf_writer *w, struct tutti_error *err);

/* The next bytes of the current tensor; the writer adds the padding between tensors. A call must
 * not reach into the next tensor (TUTTI_E_INTERNAL, as for any wrong order of calls). */
MUST_CHECK enum tutti_status gguf_writer_data(struct gguf_writer *w, const void *bytes, size_t n_bytes,
                                              struct tutti_error *err);

/* All data must have been written. Flushes to disk, then renames onto path. */
MUST_CHECK enum tutti_status gguf_writer_finish(struct gguf_writer *w, struct tutti_error *err);

#endif
