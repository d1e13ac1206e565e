/* PanGu-Alpha's rules around its unigram model. Encoding splits the text into words with jieba,
 * replaces spaces and line feeds by special characters, and joins the words with single spaces.
 * Decoding drops all spaces and restores the replaced characters. */
#ifndef TUTTI_TOKENIZER_LEGACY_PANGU_H
#define TUTTI_TOKENIZER_LEGACY_PANGU_H

#include "tokenizer/vocab/vocab.h"

/* Rewrites a text for the unigram model. False: out of memory. */
MUST_CHECK bool pangu_rewrite(const struct tokenizer *tok, const char *text, size_t n_bytes, struct buf *out);

/* Restores decoded text. It may come in parts, but only in whole characters. False: out of
 * memory. */
MUST_CHECK bool pangu_restore(const char *text, size_t n_bytes, struct buf *out);

#endif
