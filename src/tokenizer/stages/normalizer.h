/* Normalizers of the Hugging Face tokenizers library: steps that rewrite a text before it is cut into words. */
#ifndef TUTTI_TOKENIZER_STAGES_NORMALIZER_H
#define TUTTI_TOKENIZER_STAGES_NORMALIZER_H

#include "tokenizer/stages/pattern.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/vocab/vocab.h"

enum { MAX_NORMALIZERS = 16 };

struct normalizer {
    enum {
        NORMALIZE_FORM,
        NORMALIZE_REPLACE,   /* from, or what pattern matches, by to */
        NORMALIZE_PREPEND,   /* to, to a text that is not empty */
        NORMALIZE_LOWERCASE, /* character by character */
        NORMALIZE_STRIP,     /* white space at the ends */
        NORMALIZE_REMOVE,    /* the characters of a set */
        NORMALIZE_SPACES,    /* every white space becomes a blank */
        NORMALIZE_CHINESE,   /* blanks around every Chinese character */
        NORMALIZE_NMT,       /* control characters are removed, odd blanks become blanks */
        NORMALIZE_CHARSMAP,  /* SentencePiece's table, as the library applies it */
        NORMALIZE_BYTES      /* every byte as a character of byte_map.h */
    } kind;
    enum unicode_form form;
    bool strips_left, strips_right;
    struct buf from, to;
    struct pattern *pattern; /* REPLACE by a regular expression; NULL: by text */
    const uint32_t *toggles; /* REMOVE: [n_toggles], see char_set.h */
    size_t n_toggles;
    struct buf map_bytes; /* CHARSMAP */
    struct charsmap map;
};

struct normalizers {
    struct normalizer steps[MAX_NORMALIZERS];
    int n;
};

/* BertNormalizer, as the steps that it consists of. False: there are too many. */
struct bert_options {
    bool cleans, parts_chinese, strips_accents, lowers;
};
MUST_CHECK bool normalizers_add_bert(struct normalizers *normalizers, const struct bert_options *options);

/* Adds a text as the steps leave it. text: valid UTF-8. False: out of memory, a pattern takes more steps than it is granted,
 * or the text grows beyond reason. */
MUST_CHECK bool normalizers_run(const struct normalizers *normalizers, const char *text, size_t n_bytes,
                                struct buf *out);
void normalizers_clear(struct normalizers *normalizers);

#endif
