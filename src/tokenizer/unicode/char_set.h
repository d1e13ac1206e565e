/* Sets of Unicode characters, and Unicode properties as sets. */
#ifndef TUTTI_TOKENIZER_UNICODE_CHAR_SET_H
#define TUTTI_TOKENIZER_UNICODE_CHAR_SET_H

#include "base/error.h"
#include "tokenizer/unicode/unicode_tables.h"

enum { CODE_POINTS = 0x110000 };

/* toggles: [n] ascending; characters from the first on are in the set, from the second on are
 * not, and so on. Zero is the empty set. */
struct char_set {
    uint32_t *toggles;
    size_t n, capacity;
};

enum set_operation { SET_OR, SET_AND, SET_AND_NOT, SET_XOR };

/* set = set (operation) the set of other's toggles. False: out of memory; the set is as before. */
MUST_CHECK bool char_set_join(struct char_set *set, enum set_operation operation, const uint32_t *toggles,
                              size_t n);
/* Appends characters from..to (inclusive), which must be greater than all in the set. */
MUST_CHECK bool char_set_append(struct char_set *set, uint32_t from, uint32_t to);
void char_set_clear(struct char_set *set);

/* Whether c is in the set of n ascending toggles. */
bool toggles_have(const uint32_t *toggles, size_t n, uint32_t c);

/* A property by its name: a general category, a script, or a class such as "alpha" or "word". */
struct property {
    uint32_t mask;               /* general categories; 0 with script */
    const struct named_set *set; /* NULL: the categories alone */
    const char *script;          /* NULL: no script */
    int script_id;
};

/* Case, blanks, '_' and '-' in a name are ignored. False: not found. */
MUST_CHECK bool property_find(struct property *out, const char *name, size_t n_bytes);
/* Adds its characters to an empty set. */
MUST_CHECK bool property_set(const struct property *property, struct char_set *set);
bool property_has(const struct property *property, uint32_t c);

#endif
