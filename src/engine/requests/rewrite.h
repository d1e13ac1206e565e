/* What the GLM family's authors change in a reply before they show it, done to text that arrives in parts:
 * "[[训练时间]]" (the time of training) becomes "2023年"; and where asked, , ! : ; ? that stand directly behind or before a
 * character of U+4E00 to U+9FFF become full-width.
 *
 * No more is held back than the beginning of that mark, or one such sign. */
#ifndef TUTTI_REWRITE_H
#define TUTTI_REWRITE_H

#include "base/buf.h"

/* Zero-initialised is the start of a text; for rewrite_clear(). */
struct rewrite {
    struct buf held;
    bool is_behind_han; /* what was given out last */
};

void rewrite_clear(struct rewrite *r);

/* Adds to out what is certain of the text so far. is_end: nothing follows. False: out of memory. */
MUST_CHECK bool rewrite_push(struct rewrite *r, const char *text, size_t n_bytes, bool widens_marks,
                             bool is_end, struct buf *out);

#endif
