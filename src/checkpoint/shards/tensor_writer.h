/* Writes one file of tensors: safetensors or MindSpore's .ckpt (for the formats see
 * checkpoint/safetensors.h and mindspore.h). First declare every tensor, then write the data of
 * each in that order, in chunks of any size. */
#ifndef TUTTI_CHECKPOINT_SHARDS_TENSOR_WRITER_H
#define TUTTI_CHECKPOINT_SHARDS_TENSOR_WRITER_H

#include "checkpoint/tensor.h"

struct tensor_writer;

/* Receives the bytes of the file. */
typedef enum tutti_status tensor_sink_fn(void *user, const void *bytes, size_t n_bytes,
                                         struct tutti_error *err);

/* name: of the file, for messages. On success *out is the caller's, for tensor_writer_free(). */
MUST_CHECK enum tutti_status tensor_writer_new(struct tensor_writer **out, enum tensor_format format,
                                               const char *name, tensor_sink_fn *sink, void *user,
                                               struct tutti_error *err);
void tensor_writer_free(struct tensor_writer *w); /* NULL is allowed */

/* Adds a metadata entry, if the format supports metadata. */
MUST_CHECK enum tutti_status tensor_writer_metadata(struct tensor_writer *w, const char *key,
                                                    const char *value, struct tutti_error *err);

/* Declares a tensor by name, type and shape; n_bytes is computed. TUTTI_E_UNSUPPORTED: the format
 * does not support the type. */
MUST_CHECK enum tutti_status tensor_writer_declare(struct tensor_writer *w, const struct tensor *tensor,
                                                   struct tutti_error *err);

/* Writes the next bytes of the current tensor. They must not extend into the next one
 * (TUTTI_E_INTERNAL). */
MUST_CHECK enum tutti_status tensor_writer_data(struct tensor_writer *w, const void *bytes, size_t n_bytes,
                                                struct tutti_error *err);

/* All data must have been written (else TUTTI_E_INTERNAL). */
MUST_CHECK enum tutti_status tensor_writer_finish(struct tensor_writer *w, struct tutti_error *err);

#endif
