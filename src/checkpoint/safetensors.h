/* Reads a safetensors file: a JSON header of names, types, shapes and offsets, then the data.
 * Format: https://github.com/huggingface/safetensors, section "Format". */
#ifndef TUTTI_SAFETENSORS_H
#define TUTTI_SAFETENSORS_H

#include "checkpoint/checkpoint.h"

struct safetensors;

/* Opens and checks a whole file: header size, JSON, types, shapes, and that the data of all
 * tensors together cover the data area exactly, without overlap or hole. TUTTI_E_UNSUPPORTED: a
 * tensor's type is part of the format, but not supported by tutti (8-bit floats, sub-byte types). */
MUST_CHECK enum tutti_status safetensors_open(struct safetensors **out, const char *path,
                                              struct tutti_error *err);

/* The same from memory, which is borrowed until safetensors_close(); name is for messages. */
MUST_CHECK enum tutti_status safetensors_open_memory(struct safetensors **out, const void *bytes,
                                                     size_t n_bytes, const char *name,
                                                     struct tutti_error *err);
void safetensors_close(struct safetensors *file); /* NULL is allowed */

/* The header's __metadata__, borrowed and not validated: an object of strings by the format.
 * NULL: none. */
const json_t *safetensors_metadata(const struct safetensors *file);

size_t safetensors_n_tensors(const struct safetensors *file);
const struct tensor *safetensors_tensor(const struct safetensors *file,
                                        size_t index); /* in the order of the data */

#endif
