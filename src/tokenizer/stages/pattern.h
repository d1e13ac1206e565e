/* Regular expressions of tokenizer files, run by PCRE2.
 *
 * The files are written for the Oniguruma library (Ruby syntax) or Rust's fancy-regex. Syntax
 * with the same meaning in PCRE2 is passed on; syntax with a different meaning is rewritten
 * (white space, nested classes) or refused. */
#ifndef TUTTI_TOKENIZER_STAGES_PATTERN_H
#define TUTTI_TOKENIZER_STAGES_PATTERN_H

#include "base/buf.h"

struct pattern;

/* is_known: a published pattern that is known to take linear time on any text. Other patterns run
 * with a step limit. TUTTI_E_UNSUPPORTED: the error gives the position in the pattern and the
 * reason. TUTTI_E_FORMAT: not a valid pattern. */
MUST_CHECK enum tutti_status pattern_new(struct pattern **out, const char *source, size_t n_bytes,
                                         bool is_known, const char *name, struct tutti_error *err);
/* A pattern that matches text literally. */
MUST_CHECK enum tutti_status pattern_new_literal(struct pattern **out, const char *text, size_t n_bytes,
                                                 const char *name, struct tutti_error *err);
void pattern_free(struct pattern *pattern); /* NULL is allowed */

/* Memory for matching, for one thread. */
struct pattern_matcher;
/* n_text_bytes: of all text to match. NULL: out of memory. */
struct pattern_matcher *pattern_matcher_new(size_t n_text_bytes);
void pattern_matcher_free(struct pattern_matcher *m); /* NULL is allowed */

/* Whether text has characters that PCRE2 and the reference libraries classify differently. text:
 * valid UTF-8. */
bool pattern_differs(const struct pattern *pattern, const char *text, size_t n_bytes);

/* Finds the first match in text from offset from on; lookbehind sees the text before it. text:
 * valid UTF-8. differs: pattern_differs(); true is always correct, but slower. Returns 1: *begin
 * and *end are set; 0: no match; -1: out of memory, or the step limit (which grows with
 * n_text_bytes) is reached. */
int pattern_find(const struct pattern *pattern, struct pattern_matcher *m, bool differs, const char *text,
                 size_t n_bytes, size_t from, size_t *begin, size_t *end);

#endif
