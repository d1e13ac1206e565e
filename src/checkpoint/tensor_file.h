/* Opens a file of tensors of any format: safetensors, GGUF (also split), PyTorch, MindSpore; or a
 * folder of MindSpore's rank_N. */
#ifndef TUTTI_CHECKPOINT_TENSOR_FILE_H
#define TUTTI_CHECKPOINT_TENSOR_FILE_H

#include "checkpoint/checkpoint.h"

struct tensor_file;

/* The format is detected by the file's first bytes, or else by its name. On success *out is the
 * caller's. Errors are those of the format's reader. */
MUST_CHECK enum tutti_status tensor_file_open(struct tensor_file **out, const char *path,
                                              struct tutti_error *err);
void tensor_file_close(struct tensor_file *file); /* NULL is allowed */

/* Borrowed, until tensor_file_close(). */
size_t tensor_file_n_tensors(const struct tensor_file *file);
const struct tensor *tensor_file_tensor(const struct tensor_file *file,
                                        size_t index);               /* in the file's order */
const struct gguf *tensor_file_gguf(const struct tensor_file *file); /* NULL: another format */

#endif
