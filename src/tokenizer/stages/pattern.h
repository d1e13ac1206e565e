/* Regular expressions of tokenizer files, run by PCRE2.
 *
 * The files are written for the Oniguruma library (in Ruby's syntax) or Rust's fancy-regex. What these and PCRE2 read
 * alike is passed on; what they read differently is rewritten (white space, classes within classes) or refused. */
#ifndef TUTTI_TOKENIZER_STAGES_PATTERN_H
#define TUTTI_TOKENIZER_STAGES_PATTERN_H

#include "base/buf.h"

struct pattern;

/* is_known: a published pattern, of which we know that no text takes it more than linear time. Others run with a limit
 * on their steps. TUTTI_E_UNSUPPORTED, with where in the pattern and why; TUTTI_E_FORMAT: it is no pattern. */
MUST_CHECK enum tutti_status pattern_new(struct pattern **out, const char *source, size_t n_bytes,
                                         bool is_known, const char *name, struct tutti_error *err);
/* A pattern that matches a text itself. */
MUST_CHECK enum tutti_status pattern_new_literal(struct pattern **out, const char *text, size_t n_bytes,
                                                 const char *name, struct tutti_error *err);
void pattern_free(struct pattern *pattern); /* NULL is allowed */

/* Memory for matching, for one thread. */
struct pattern_matcher;
struct pattern_matcher *
pattern_matcher_new(size_t n_text_bytes);             /* of all text to come; NULL: out of memory */
void pattern_matcher_free(struct pattern_matcher *m); /* NULL is allowed */

/* Does text hold characters about which PCRE2 and the reference libraries disagree? text: valid UTF-8. */
bool pattern_differs(const struct pattern *pattern, const char *text, size_t n_bytes);

/* Finds the first match in text from `from` on; lookbehind sees what is before. text: valid UTF-8. differs: see above; true
 * is never wrong, but slower. 1: *begin and *end are set, 0: there is none, -1: out of memory, or out of the steps that the
 * length of all text grants. */
int pattern_find(const struct pattern *pattern, struct pattern_matcher *m, bool differs, const char *text,
                 size_t n_bytes, size_t from, size_t *begin, size_t *end);

#endif
