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
 * is removed if all tags have it. */
#ifndef TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_H
#define TUTTI_CHECKPOINT_MINDSPORE_MINDSPORE_H

#include "checkpoint/checkpoint.h"

struct mindspore;

/* Whether bytes begin like such a file, or like an encrypted one. */
bool mindspore_is(const void *bytes, size_t n_bytes);

/* Opens and checks a whole file. On success *out is the caller's. TUTTI_E_UNSUPPORTED: an
 * encrypted file, a map tensor, a type that is not in dtype.h. TUTTI_E_FORMAT: the error names
 * the tag, with what was found and expected. */
MUST_CHECK enum tutti_status mindspore_open(struct mindspore **out, const char *path,
                                            struct tutti_error *err);

/* The same from memory, which is borrowed until mindspore_close(); name is for messages. */
MUST_CHECK enum tutti_status mindspore_open_memory(struct mindspore **out, const void *bytes, size_t n_bytes,
                                                   const char *name, struct tutti_error *err);
void mindspore_close(struct mindspore *file); /* NULL is allowed */

size_t mindspore_n_tensors(const struct mindspore *file);
const struct tensor *mindspore_tensor(const struct mindspore *file, size_t index); /* in the file's order */

#endif
