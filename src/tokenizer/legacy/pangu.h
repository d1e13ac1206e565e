/* PanGu-Alpha's rules around its unigram model: a text is cut into words with jieba, its spaces and line feeds become
 * characters of their own, and single spaces join the words. Decoding drops all spaces and brings those characters back. */
#ifndef TUTTI_TOKENIZER_LEGACY_PANGU_H
#define TUTTI_TOKENIZER_LEGACY_PANGU_H

#include "tokenizer/vocab/vocab.h"

/* False: out of memory. */
MUST_CHECK bool pangu_rewrite(const struct tokenizer *tok, const char *text, size_t n_bytes, struct buf *out);

/* Adds what decoded text stands for. It may come in parts, but in whole characters. False: out of memory. */
MUST_CHECK bool pangu_restore(const char *text, size_t n_bytes, struct buf *out);

#endif
