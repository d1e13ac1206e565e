/* Reads a safetensors file: a JSON header of names, types, shapes and offsets, then the data.
 * Format: https://github.com/huggingface/safetensors, section "Format".
 *
 * Opening checks the whole file: header size, JSON, types, shapes, and that the data of all tensors
 * together cover the data area exactly, without overlap or hole. TUTTI_E_UNSUPPORTED: a tensor's
 * type is part of the format, but not supported by tutti (8-bit floats, sub-byte types). Tensors are
 * in the order of the data. */
#ifndef TUTTI_SAFETENSORS_H
#define TUTTI_SAFETENSORS_H

#include "checkpoint/tensor_set.h"

#include <jansson.h>

extern const struct checkpoint_format SAFETENSORS_FORMAT;

/* The header's __metadata__, borrowed and not validated: an object of strings by the format.
 * NULL: none, or the set has another format. */
const json_t *safetensors_metadata(const struct tensor_set *set);

#endif
