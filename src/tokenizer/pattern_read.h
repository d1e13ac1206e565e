/* Patterns as Oniguruma reads them (in Ruby's syntax), written for PCRE2. */
#ifndef TUTTI_TOKENIZER_PATTERN_READ_H
#define TUTTI_TOKENIZER_PATTERN_READ_H

#include "base/buf.h"

enum { PATTERN_MAX_NESTING = 64 };

/* Adds to out what means the same to PCRE2 (UTF, UCP, MULTILINE). False: *why says what the two read differently in the
 * pattern, at byte *at; or *why is NULL: out of memory. */
MUST_CHECK bool pattern_read(const char *source, size_t n_bytes, struct buf *out, const char **why,
                             size_t *at);

#endif
