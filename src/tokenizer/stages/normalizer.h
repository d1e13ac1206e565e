/* Normalizers of the Hugging Face tokenizers library: steps that rewrite a text before
 * pre-tokenization. */
#ifndef TUTTI_TOKENIZER_STAGES_NORMALIZER_H
#define TUTTI_TOKENIZER_STAGES_NORMALIZER_H

#include "tokenizer/stages/pattern.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/unicode_case.h"
#include "tokenizer/vocab/vocab.h"

enum { MAX_NORMALIZERS = 16 };

struct normalizer {
    enum {
        NORMALIZE_FORM,
        NORMALIZE_REPLACE,   /* replaces from, or matches of pattern, by to */
        NORMALIZE_PREPEND,   /* prepends to, if the text is not empty */
        NORMALIZE_LOWERCASE, /* character by character */
        NORMALIZE_STRIP,     /* white space at the ends */
        NORMALIZE_REMOVE,    /* the characters of a set */
        NORMALIZE_SPACES,    /* every white-space character becomes a space */
        NORMALIZE_CHINESE,   /* spaces around every Chinese character */
        NORMALIZE_NMT,       /* removes control characters; special spaces become spaces */
        NORMALIZE_CHARSMAP,  /* SentencePiece's table, as the library applies it */
        NORMALIZE_BYTES      /* every byte as a character of byte_map.h */
    } kind;
    enum unicode_form form;
    bool strips_left, strips_right;
    struct buf from, to;
    struct pattern *pattern;             /* REPLACE by a regular expression; NULL: by text */
    const struct character_set *removed; /* REMOVE */
    struct buf map_bytes;                /* CHARSMAP */
    struct charsmap map;
};

struct normalizers {
    struct normalizer steps[MAX_NORMALIZERS];
    int n;
};

/* Adds the steps of BertNormalizer. False: more than MAX_NORMALIZERS. */
struct bert_options {
    bool cleans, parts_chinese, strips_accents, lowers;
};
MUST_CHECK bool normalizers_add_bert(struct normalizers *normalizers, const struct bert_options *options);

/* Appends the normalized text to out. text: valid UTF-8. False: *why is the limit that a pattern or
 * the text exceeded; or it is unchanged: out of memory. */
MUST_CHECK bool normalizers_run(const struct normalizers *normalizers, const char *text, size_t n_bytes,
                                struct buf *out, const char **why);
void normalizers_clear(struct normalizers *normalizers);

#endif
