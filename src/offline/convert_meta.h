/* Writes the GGUF metadata of a converted file that llama.cpp and tutti need to run it. */
#ifndef TUTTI_OFFLINE_CONVERT_META_H
#define TUTTI_OFFLINE_CONVERT_META_H

#include "checkpoint/gguf/gguf.h"
#include "model/description/family.h"

/* Writes the model's hyperparameters. name: of the model. */
void convert_describe(struct gguf_writer *w, const struct family *family, const struct model_desc *desc,
                      const char *name, uint32_t file_type);

/* Writes the tokenizer. tok: including the tokens that the family appends. TUTTI_E_UNSUPPORTED:
 * GGUF cannot express its rules. */
MUST_CHECK enum tutti_status convert_tokenizer(struct gguf_writer *w, const struct family *family,
                                               const struct model_desc *desc, const struct tokenizer *tok,
                                               const struct checkpoint *ck, struct tutti_error *err);

/* Writes the added tokens with their flags, for which GGUF has no keys:
 * model/load/tokenizer_bytes.h. */
MUST_CHECK enum tutti_status convert_added_tokens(struct gguf_writer *w, const struct tokenizer *tok,
                                                  const char *name, struct tutti_error *err);

/* Writes a byte-level vocabulary. pre: the name of its rules. */
MUST_CHECK enum tutti_status convert_byte_vocab(struct gguf_writer *w, const struct tokenizer *tok,
                                                const char *pre, int n_vocab, const char *name,
                                                struct tutti_error *err);

/* Writes a vocabulary that merges characters in the form of a SentencePiece model. */
MUST_CHECK enum tutti_status convert_text_vocab(struct gguf_writer *w, const struct tokenizer *tok,
                                                int n_vocab, const char *name, struct tutti_error *err);

#endif
