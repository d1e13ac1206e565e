/* Character classes for PCRE2 that contain exactly the characters of the reference libraries'
 * classes.
 *
 * The code asks PCRE2 which characters have a property, and adds the missing ones explicitly. So
 * a class is correct with any version of PCRE2. For texts without differing characters PCRE2's
 * own, faster classes are used. */
#ifndef TUTTI_TOKENIZER_STAGES_PATTERN_CLASS_H
#define TUTTI_TOKENIZER_STAGES_PATTERN_CLASS_H

#include "base/buf.h"
#include "tokenizer/unicode/char_set.h"

/* Caches PCRE2's characters of each property. Zero-initialise. */
struct class_prober {
    struct buf text;                      /* every character to test */
    struct char_set known[N_SHORT_NAMES]; /* of the names of categories */
    bool is_known[N_SHORT_NAMES];
};

void class_prober_clear(struct class_prober *prober);

/* A class being parsed. Zero-initialise. */
struct char_class {
    struct char_set want, given; /* given: the meaning of text for PCRE2 */
    struct buf text;             /* the text between the brackets */
};

/* Each false: out of memory. */
MUST_CHECK bool char_class_add_property(struct char_class *class, struct class_prober *prober,
                                        const struct property *property, bool is_negated);
/* Characters from..to; neither is a surrogate. */
MUST_CHECK bool char_class_add_range(struct char_class *class, uint32_t from, uint32_t to);
/* Intersects the class with another one; is_negated: with its complement. */
MUST_CHECK bool char_class_intersect(struct char_class *class, const struct char_class *other,
                                     bool is_negated);
/* Writes a pattern for one character of the class (is_negated: of its complement) to exact.
 * Writes to plain a faster one, valid for texts without the characters that are added to
 * differing. */
MUST_CHECK bool char_class_write(struct char_class *class, bool is_negated, struct buf *exact,
                                 struct buf *plain, struct char_set *differing);
void char_class_clear(struct char_class *class);

#endif
