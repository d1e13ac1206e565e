/* The layer for multi-token prediction (MTP) of a checkpoint, which follows those of the model: whether
 * it is there, and its description. */
#ifndef TUTTI_MODEL_WEIGHTS_MTP_H
#define TUTTI_MODEL_WEIGHTS_MTP_H

#include "model/description/family.h"

/* Whether the checkpoint has its tensors, in a layout that names them. */
bool mtp_is_stored(const struct model_desc *desc, const struct tensor_names *names,
                   const struct checkpoint *ck);

/* Adds the layer to a description without it: sets uses_mtp. Copies of the model's embedding and output
 * matrix do not count as the layer's own, unless keeps_copies. TUTTI_E_UNSUPPORTED with param draft: the
 * checkpoint has none, or several. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status mtp_describe(struct model_desc *desc, const struct tensor_names *names,
                                          const struct checkpoint *ck, bool keeps_copies,
                                          struct tutti_error *err);

/* Whether a tensor belongs to such a layer; to_run: to one that runs, and is not a copy of the model's
 * embedding or output matrix. */
bool mtp_has_tensor(const struct model_desc *desc, const struct tensor_names *names, const char *name,
                    bool to_run);

#endif
