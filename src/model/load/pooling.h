/* Reads how a checkpoint makes an embedding of hidden states: modules.json and 1_Pooling/config.json of
 * sentence-transformers' folders, or GGUF's pooling_type. */
#ifndef TUTTI_MODEL_LOAD_POOLING_H
#define TUTTI_MODEL_LOAD_POOLING_H

#include "model/model.h"

struct gguf_writer;

/* An encoder whose files do not say it has TUTTI_EMBEDDING_MEAN. TUTTI_E_UNSUPPORTED: a pooling, or a
 * further module, that tutti does not compute; the error names the file and the setting. */
MUST_CHECK enum tutti_status pooling_read(struct model_pooling *out, const struct model_desc *desc,
                                          const struct checkpoint *ck, struct tutti_error *err);

/* Lowers the context to the longest text of a sentence-transformers folder (max_seq_length), which that library cuts texts
 * to. TUTTI_E_UNSUPPORTED: a setting that changes texts. */
MUST_CHECK enum tutti_status pooling_limit_context(struct model_desc *desc, const struct checkpoint *ck,
                                                   struct tutti_error *err);

/* Writes it as pooling_read() reads it from a GGUF file. */
void pooling_put(struct gguf_writer *w, const char *architecture, const struct model_pooling *pooling);

#endif
