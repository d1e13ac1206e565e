/* ChatGLM-6B's rules around its unigram model: pieces for line feeds, tabs and runs of blanks, which SentencePiece's
 * normalizer would lose. The model's name is icetk's text model. */
#ifndef TUTTI_TOKENIZER_LEGACY_ICETEXT_H
#define TUTTI_TOKENIZER_LEGACY_ICETEXT_H

#include "tokenizer/vocab/vocab.h"

/* In front of a vocabulary: the tokens of images, which text never reaches. */
MUST_CHECK enum tutti_status icetext_add_images(struct tokenizer *tok, int32_t n, const char *name,
                                                struct tutti_error *err);

/* Behind a file that holds text pieces alone (the first release): the special tokens, tabs, blanks and bytes. A file
 * that holds them already stays as it is. */
MUST_CHECK enum tutti_status icetext_add_specials(struct tokenizer *tok, const char *name,
                                                  struct tutti_error *err);

/* Finds what the rules need. TUTTI_E_FORMAT: a piece is missing. */
MUST_CHECK enum tutti_status icetext_finish(struct tokenizer *tok, const char *name, struct tutti_error *err);

/* Rewrites a text with those pieces' spellings. False: out of memory. */
MUST_CHECK bool icetext_rewrite(const char *text, size_t n_bytes, struct buf *out);

/* What such a piece stands for: *n times *c. False: it is an ordinary one. */
bool icetext_surface(const struct tokenizer *tok, int32_t id, char *c, int *n);

#endif
