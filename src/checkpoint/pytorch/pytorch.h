/* Reads files of torch.save(): a pickle of named tensors and their storages, in a zip archive
 * (since PyTorch 1.6) or concatenated (before). Format: torch/serialization.py and
 * torch/_utils.py of PyTorch. Only the parts of pickle that tensors need are supported, see
 * pickle.h.
 *
 * The tensors are those of the saved dict, or of its "state_dict" or "module" if it has none
 * itself. Contiguous tensors point into the mapping; views with other strides have a
 * tensor_source.
 *
 * TUTTI_E_UNSUPPORTED: a pickle with other objects than tensors (the error names them), a compressed
 * archive, a big-endian file. TUTTI_E_FORMAT: the error names the tensor, or the offset in the
 * pickle. Tensors are in the dict's order. */
#ifndef TUTTI_CHECKPOINT_PYTORCH_PYTORCH_H
#define TUTTI_CHECKPOINT_PYTORCH_PYTORCH_H

#include "checkpoint/tensor_set.h"

extern const struct checkpoint_format PYTORCH_FORMAT;

#endif
