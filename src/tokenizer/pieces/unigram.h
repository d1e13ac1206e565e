/* SentencePiece's unigram model, used by tokenizer_encode(). */
#ifndef TUTTI_TOKENIZER_PIECES_UNIGRAM_H
#define TUTTI_TOKENIZER_PIECES_UNIGRAM_H

#include "tokenizer/vocab/vocab.h"

/* Prepares a vocabulary that vocab_finish() has indexed. */
MUST_CHECK enum tutti_status unigram_finish(struct tokenizer *tok, const char *name, struct tutti_error *err);

/* Adds the ids of normalized text, in time linear in it. False: out of memory. */
MUST_CHECK bool unigram_encode(const struct tokenizer *tok, const char *text, size_t n_bytes,
                               bool takes_marks, struct ids *out);

#endif
