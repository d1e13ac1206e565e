/* Classes of characters for PCRE2 that hold what the reference libraries' classes hold.
 *
 * PCRE2 is asked which characters it has in a property, and what it lacks is put beside it; so a class is right with any
 * version of PCRE2. Texts without characters about which the two disagree can do with PCRE2's own, which are quicker. */
#ifndef TUTTI_TOKENIZER_STAGES_PATTERN_CLASS_H
#define TUTTI_TOKENIZER_STAGES_PATTERN_CLASS_H

#include "base/buf.h"
#include "tokenizer/unicode/char_set.h"

/* What PCRE2 has, asked once for each property. Zero-initialised. */
struct class_prober {
    struct buf text;                      /* every character that is asked for */
    struct char_set known[N_SHORT_NAMES]; /* of the names of categories */
    bool is_known[N_SHORT_NAMES];
};

void class_prober_clear(struct class_prober *prober);

/* A class while it is read. Zero-initialised. */
struct char_class {
    struct char_set want, given; /* given: what the text means to PCRE2 */
    struct buf text;             /* what stands between the brackets */
};

/* Each false: out of memory. */
MUST_CHECK bool char_class_add_property(struct char_class *class, struct class_prober *prober,
                                        const struct property *property, bool is_negated);
/* Characters from..to; neither is a surrogate. */
MUST_CHECK bool char_class_add_range(struct char_class *class, uint32_t from, uint32_t to);
/* Leaves what is in another class too; of a negated one, what is not. */
MUST_CHECK bool char_class_intersect(struct char_class *class, const struct char_class *other,
                                     bool is_negated);
/* Adds what matches one character of the class, or of all others: to exact; to plain what does so in texts without the
 * characters that are added to differing. */
MUST_CHECK bool char_class_write(struct char_class *class, bool is_negated, struct buf *exact,
                                 struct buf *plain, struct char_set *differing);
void char_class_clear(struct char_class *class);

#endif
