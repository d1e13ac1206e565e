/* Tables of lowercase letters, accents and control characters of the tokenizers library's
 * normalizers, obtained by querying every code point. Its Unicode versions are older than the
 * system's. */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_CASE_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_CASE_H

#include <stddef.h>
#include <stdint.h>

/* Uppercase letters first, first + step, ..., last: the lowercase letter of each is at + delta. */
struct case_run {
    uint32_t first, last;
    int32_t step, delta;
};

/* Sets: [n] ascending; characters from the first on are in the set, from the second on are not, and so on. */
struct case_tables {
    const struct case_run *lower; /* ascending; without U+0130, which becomes two characters */
    const uint32_t *accents;      /* removed by StripAccents */
    const uint32_t *bert_accents; /* removed by BertNormalizer's strip_accents, after NFD */
    const uint32_t *bert_removed; /* removed by BertNormalizer's clean_text */
    size_t n_lower, n_accents, n_bert_accents, n_bert_removed;
};

extern const struct case_tables CASE_TABLES;

#endif
