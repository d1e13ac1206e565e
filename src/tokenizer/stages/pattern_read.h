/* Translates patterns from Oniguruma's syntax (Ruby) to PCRE2. */
#ifndef TUTTI_TOKENIZER_STAGES_PATTERN_READ_H
#define TUTTI_TOKENIZER_STAGES_PATTERN_READ_H

#include "base/buf.h"
#include "tokenizer/unicode/char_set.h"

enum { PATTERN_MAX_NESTING = 64 };

/* A pattern for PCRE2 (UTF, UCP, MULTILINE). Zero-initialised. */
struct pattern_text {
    struct buf exact, plain;   /* plain: faster, for texts without the characters of differing */
    struct char_set differing; /* empty: exact and plain are the same */
};

/* False: *why names the syntax at byte *at with different meanings in PCRE2 and Oniguruma; or
 * *why is NULL: out of memory. */
MUST_CHECK bool pattern_read(const char *source, size_t n_bytes, struct pattern_text *out, const char **why,
                             size_t *at);
void pattern_text_clear(struct pattern_text *text);

#endif
