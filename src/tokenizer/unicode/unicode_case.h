/* Small letters, accents and control characters as the tokenizers library's normalizers have them: every code point, asked
 * one by one. Its versions of Unicode are older than the system's. */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_CASE_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_CASE_H

#include <stddef.h>
#include <stdint.h>

/* Capital letters first, first + step, ..., last: each has its small letter `delta` further. */
struct case_run {
    uint32_t first, last;
    int32_t step, delta;
};

/* Sets: [n] ascending; characters from the first on are in the set, from the second on are not, and so on. */
struct case_tables {
    const struct case_run *lower; /* ascending; U+0130, which becomes two characters, is in none */
    const uint32_t *accents;      /* what StripAccents takes away */
    const uint32_t *bert_accents; /* what BertNormalizer's strip_accents takes away, after NFD */
    const uint32_t *bert_removed; /* what BertNormalizer's clean_text takes away */
    size_t n_lower, n_accents, n_bert_accents, n_bert_removed;
};

extern const struct case_tables CASE_TABLES;

#endif
