/* Tables of what Unicode versions treat differently, obtained by querying the reference libraries
 * about every code point. */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_TABLES_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_TABLES_H

#include <stddef.h>
#include <stdint.h>

/* Characters first to last that are newer than Unicode 14.0. by: an older character with the same
 * classes and number of bytes (substitutes.h). */
struct substitute {
    uint32_t first, last, by;
};

struct unicode_tables {
    const struct substitute *substitutes; /* ascending */
    /* Characters that the installed library may normalize and the reference library does not: from,
     * to (excluded), ... */
    const uint32_t *not_normalized;
    size_t n_substitutes, n_not_normalized;
};

extern const struct unicode_tables UNICODE_TABLES;

#endif
