/* String functions shared by filters and methods. They keep the origin (template or user) of
 * every byte. */
#ifndef TUTTI_TEMPLATE_VALUES_STRINGS_H
#define TUTTI_TEMPLATE_VALUES_STRINGS_H

#include "template/values/value.h"

enum case_mapping { CASE_UPPER, CASE_LOWER, CASE_SWAP, CASE_CAPITALIZE, CASE_TITLE, CASE_TITLE_FILTER };
enum padding { PAD_LEFT, PAD_RIGHT, PAD_BOTH };

/* chars: a string of characters to strip; absent or none: blanks. */
struct value string_strip(struct render *r, struct value s, struct value chars, bool left, bool right);
struct value string_map(struct render *r, struct value s, enum case_mapping mapping);
/* n: maximum number of replacements; negative: all. */
struct value string_replace(struct render *r, struct value s, struct value from, struct value to, int64_t n);
/* separator absent or none: runs of blanks. n: maximum number of splits; negative: all. */
struct value string_split(struct render *r, struct value s, struct value separator, int64_t n,
                          bool from_right);
struct value string_lines(struct render *r, struct value s, bool keeps_ends);
struct value string_pad(struct render *r, struct value s, int64_t width, struct value fill,
                        enum padding padding);
struct value string_join(struct render *r, struct value separator, const struct list *items, bool converts);

#endif
