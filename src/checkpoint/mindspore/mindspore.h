/* Reads MindSpore checkpoints (.ckpt): protocol buffers of tags and tensors. Format:
 * mindspore/ccsrc/utils/checkpoint.proto and mindspore/python/mindspore/train/serialization.py of
 * MindSpore.
 *
 *     Checkpoint   { repeated Value value = 1; }
 *     Value        { string tag = 1; TensorProto tensor = 2; MapTensorProto maptensor = 3; }
 *     TensorProto  { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }
 *
 * Content above 512 MiB is split into consecutive values with the same tag and dims. Values of
 * optimizers and training loops are skipped. A prefix of the cell around the model ("network.")
 * is removed if all tags have it.
 *
 * TUTTI_E_UNSUPPORTED: an encrypted file, a map tensor, a type that is not in dtype.h.
 * TUTTI_E_FORMAT: the error names the tag, with what was found and expected. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_H

#include "checkpoint/tensor_set.h"

extern const struct checkpoint_format MINDSPORE_FORMAT;

#endif
