/* Rewrites replies as the GLM family's authors do before showing them, in text that arrives in
 * parts: "[[训练时间]]" (the time of training) becomes "2023年"; with widens_marks, each of , ! : ; ?
 * directly after or before a character of U+4E00 to U+9FFF becomes full-width.
 *
 * Text is held back only while it may be the beginning of "[[训练时间]]", or is one of those
 * punctuation marks. */
#ifndef TUTTI_REWRITE_H
#define TUTTI_REWRITE_H

#include "base/buf.h"

/* Zero-initialised: the start of a text. Free it with rewrite_clear(). */
struct rewrite {
    struct buf held;
    bool is_behind_han; /* the output so far ends with a character of U+4E00 to U+9FFF */
};

void rewrite_clear(struct rewrite *r);

/* Appends to out the text that is certain by now. is_end: nothing follows. False: out of memory. */
MUST_CHECK bool rewrite_push(struct rewrite *r, const char *text, size_t n_bytes, bool widens_marks,
                             bool is_end, struct buf *out);

#endif
