/* Lowercase letters, accents and control characters of the tokenizers library's normalizers, obtained by
 * querying every code point: what utf8proc says, and the differences to it. */
#ifndef TUTTI_TOKENIZER_UNICODE_UNICODE_CASE_H
#define TUTTI_TOKENIZER_UNICODE_UNICODE_CASE_H

#include <stddef.h>
#include <stdint.h>

/* Uppercase letters first, first + step, ..., last: the lowercase letter of each is at + delta. */
struct case_run {
    uint32_t first, last;
    int32_t step, delta;
};

/* The characters of some categories of utf8proc without a set (unicode_set_has()) of those that are newer
 * than the normalizer's Unicode, and those of another category today. */
struct character_set {
    uint32_t categories; /* bits 1 << UTF8PROC_CATEGORY_... */
    const uint32_t *without;
    size_t n_without;
    uint32_t first_other, last_other;
};

struct case_tables {
    const struct case_run *newer_capitals; /* ascending; those that utf8proc does not know */
    size_t n_newer_capitals;
    struct character_set accents;      /* removed by StripAccents */
    struct character_set bert_accents; /* removed by BertNormalizer's strip_accents, after NFD */
    struct character_set bert_removed; /* removed by BertNormalizer's clean_text */
};

extern const struct case_tables CASE_TABLES;

#endif
