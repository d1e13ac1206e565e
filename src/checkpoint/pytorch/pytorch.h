/* Reads files of torch.save(): a pickle of named tensors and their storages, in a zip archive
 * (since PyTorch 1.6) or concatenated (before). Format: torch/serialization.py and
 * torch/_utils.py of PyTorch. Only the parts of pickle that tensors need are supported, see
 * pickle.h.
 *
 * The tensors are those of the saved dict, or of its "state_dict" or "module" if it has none
 * itself. Contiguous tensors point into the mapping; views with other strides have a
 * tensor_source. */
#ifndef TUTTI_CHECKPOINT_PYTORCH_PYTORCH_H
#define TUTTI_CHECKPOINT_PYTORCH_PYTORCH_H

#include "checkpoint/checkpoint.h"

struct pytorch;

/* Whether bytes begin like such a file. */
bool pytorch_is(const void *bytes, size_t n_bytes);

/* Opens and checks a whole file. On success *out is the caller's. TUTTI_E_UNSUPPORTED: a pickle
 * with other objects than tensors (the error names them), a compressed archive, a big-endian
 * file. TUTTI_E_FORMAT: the error names the tensor, or the offset in the pickle. */
MUST_CHECK enum tutti_status pytorch_open(struct pytorch **out, const char *path, struct tutti_error *err);

/* The same from memory, which is borrowed until pytorch_close(); name is for messages. */
MUST_CHECK enum tutti_status pytorch_open_memory(struct pytorch **out, const void *bytes, size_t n_bytes,
                                                 const char *name, struct tutti_error *err);
void pytorch_close(struct pytorch *file); /* NULL is allowed */

size_t pytorch_n_tensors(const struct pytorch *file);
const struct tensor *pytorch_tensor(const struct pytorch *file, size_t index); /* in the dict's order */

#endif
