/* What torch.save() wrote: a pickle of named tensors and their storages, in a zip archive (since PyTorch 1.6) or one behind the
 * other (before). Format: torch/serialization.py and torch/_utils.py of PyTorch; of the pickle only what tensors need, see
 * pickle.h.
 *
 * The tensors are those of the dict that was saved, or of its "state_dict" or "module" where itself holds none. Contiguous
 * ones lie in the mapping; views with other strides have a source. */
#ifndef TUTTI_CHECKPOINT_PYTORCH_PYTORCH_H
#define TUTTI_CHECKPOINT_PYTORCH_PYTORCH_H

#include "checkpoint/checkpoint.h"

struct pytorch;

/* True where bytes begin like such a file. */
bool pytorch_is(const void *bytes, size_t n_bytes);

/* Opens and checks a whole file. On success *out is the caller's. TUTTI_E_UNSUPPORTED: a pickle that asks for anything but
 * tensors (it is named), a compressed archive, a big-endian file. TUTTI_E_FORMAT names the tensor, or the place in the pickle. */
MUST_CHECK enum tutti_status pytorch_open(struct pytorch **out, const char *path, struct tutti_error *err);

/* The same from memory, which is borrowed until pytorch_close(); name is for messages. */
MUST_CHECK enum tutti_status pytorch_open_memory(struct pytorch **out, const void *bytes, size_t n_bytes,
                                                 const char *name, struct tutti_error *err);
void pytorch_close(struct pytorch *file); /* NULL is allowed */

size_t pytorch_n_tensors(const struct pytorch *file);
const struct tensor *pytorch_tensor(const struct pytorch *file, size_t index); /* in the dict's order */

#endif
