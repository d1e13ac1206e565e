/* Characters of a Unicode property, as ECMA-262's \p{...} and \P{...} name it. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_UNICODE_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_UNICODE_H

#include "grammar/syntax.h"

/* What schema_unicode_ranges() costs. */
enum { UNICODE_STEPS = 1 << 16 };

/* Writes the characters that have the property, or with is_negated those that lack it. Versions of Unicode
 * differ: with is_wide the characters of any version are meant, which are all unassigned ones too, otherwise
 * those on which versions agree. ranges: ascending; room for max of them. Returns their number, which may exceed max;
 * -1: no property of this name is known. */
int schema_unicode_ranges(const char *name, size_t n_bytes, bool is_negated, bool is_wide,
                          struct char_range *ranges, int max);

#endif
