/* ChatGLM-6B's tokenizer (icetk's text model): a unigram model with extra pieces for line feeds,
 * tabs and runs of blanks, which SentencePiece's normalizer would lose. */
#ifndef TUTTI_TOKENIZER_LEGACY_ICETEXT_H
#define TUTTI_TOKENIZER_LEGACY_ICETEXT_H

#include "tokenizer/vocab/vocab.h"

/* Adds image tokens before the vocabulary. Text never yields them. */
MUST_CHECK enum tutti_status icetext_add_images(struct tokenizer *tok, int32_t n, const char *name,
                                                struct tutti_error *err);

/* Adds special tokens, tabs, blanks and bytes after a file that has only text pieces (the first
 * release). A file that already has them is unchanged. */
MUST_CHECK enum tutti_status icetext_add_specials(struct tokenizer *tok, const char *name,
                                                  struct tutti_error *err);

/* Looks up the pieces that the rules need. TUTTI_E_FORMAT: a piece is missing. */
MUST_CHECK enum tutti_status icetext_finish(struct tokenizer *tok, const char *name, struct tutti_error *err);

/* Rewrites a text with those pieces' spellings. False: out of memory. */
MUST_CHECK bool icetext_rewrite(const char *text, size_t n_bytes, struct buf *out);

/* The text of such a piece: *n times *c. False: it is an ordinary piece. */
bool icetext_surface(const struct tokenizer *tok, int32_t id, char *c, int *n);

#endif
