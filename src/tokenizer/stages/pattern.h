/* Regular expressions of tokenizer files.
 *
 * The files are written for the Oniguruma library, which runs every pattern that is not known.
 * Known patterns, which nearly all models use, run as machine code by PCRE2. */
#ifndef TUTTI_TOKENIZER_STAGES_PATTERN_H
#define TUTTI_TOKENIZER_STAGES_PATTERN_H

#include "base/buf.h"

struct pattern;

enum pattern_kind {
    PATTERN_UNKNOWN, /* any pattern in Oniguruma's syntax: runs with a step limit */
    PATTERN_KNOWN,   /* of pre_names.c: takes linear time on any text */
    PATTERN_EXACT    /* of tutti itself in PCRE2's syntax, linear: without substitutes (substitutes.h) */
};

/* Errors name the file. TUTTI_E_FORMAT: not a valid pattern, or one that is too large. */
MUST_CHECK enum tutti_status pattern_new(struct pattern **out, const char *source, size_t n_bytes,
                                         enum pattern_kind kind, const char *name, struct tutti_error *err);
/* A pattern that matches text literally. */
MUST_CHECK enum tutti_status pattern_new_literal(struct pattern **out, const char *text, size_t n_bytes,
                                                 const char *name, struct tutti_error *err);
void pattern_free(struct pattern *pattern); /* NULL is allowed */

/* Memory for matching, for one thread. */
struct pattern_matcher;
/* n_text_bytes: of all text to match. NULL: out of memory. */
struct pattern_matcher *pattern_matcher_new(size_t n_text_bytes);
void pattern_matcher_free(struct pattern_matcher *m); /* NULL is allowed */
/* The limit that a failed pattern_find() exceeded, as a sentence. NULL: out of memory. */
const char *pattern_matcher_why(const struct pattern_matcher *m);

/* Appends the text in which pattern_find() must search if substitutes_needed(text). It has the same
 * number of bytes, and characters at the same positions. False: out of memory. */
MUST_CHECK bool pattern_prepare(const struct pattern *pattern, const char *text, size_t n_bytes,
                                struct buf *out);

/* Finds the first match in text from offset from on; lookbehind sees the text before it. text:
 * valid UTF-8. Returns 1: *begin and *end are set; 0: no match; -1: pattern_matcher_why(). */
int pattern_find(const struct pattern *pattern, struct pattern_matcher *m, const char *text, size_t n_bytes,
                 size_t from, size_t *begin, size_t *end);

#endif
