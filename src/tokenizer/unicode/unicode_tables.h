/* Tables of the character classes of the reference libraries, obtained by querying every code
 * point.
 *
 * PCRE2 and utf8proc use the system's Unicode version, which differs from the one that
 * vocabularies were made with; these tables correct the differences. tokenizers has four Unicode
 * versions: that of its regular expressions (16.0, also in tiktoken), those of its Punctuation
 * step and of its normalizers (older), and that of its Digits step (newer). */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_TABLES_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_TABLES_H

#include <stddef.h>
#include <stdint.h>

/* A general category is a bit of a mask, in the order of Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd
 * Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn. */
enum { N_CATEGORIES = 30, ALL_CATEGORIES = (1 << N_CATEGORIES) - 1 };

/* The first ones are L M N P S Z C, then each category. */
enum { N_SHORT_NAMES = 7 + N_CATEGORIES };
struct category_name { /* "l", "lu", "uppercaseletter", "lc" */
    const char *name;
    uint32_t mask;
};

struct script_name {
    const char *name; /* "han", "hani" */
    uint8_t script;
};

/* Characters of these categories, inverted between every two of toggles. */
struct named_set {
    const char *name;
    uint32_t mask;
    const uint32_t *toggles; /* NULL: none */
    size_t n_toggles;
};

/* Runs: first code point << 8 | the value of the code points up to the next run. Names:
 * lowercase, without blanks. */
struct unicode_tables {
    const uint32_t *category_runs, *script_runs;
    const struct script_name *scripts;
    const struct category_name *categories;
    const struct named_set *sets;
    const uint32_t *not_normalized; /* from, to (excluded), ... */
    size_t n_category_runs, n_script_runs, n_scripts, n_categories, n_sets, n_not_normalized;
};

extern const struct unicode_tables UNICODE_TABLES;

#endif
