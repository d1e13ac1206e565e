/* What cuts a text into the words that merges work in: patterns, one after another. */
#ifndef TUTTI_TOKENIZER_STAGES_PRETOKENIZE_H
#define TUTTI_TOKENIZER_STAGES_PRETOKENIZE_H

#include "tokenizer/stages/pattern.h"

enum { MAX_PRE_STEPS = 16 };

/* What becomes of matches, as the Hugging Face tokenizers library names it. */
enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS };

/* Spaces become marks, and one is put in front; words are cut off there. */
struct metaspace {
    enum metaspace_prepends { METASPACE_NEVER, METASPACE_FIRST, METASPACE_ALWAYS } prepends;
    bool splits;
    char mark[5]; /* one character, [n_mark] */
    size_t n_mark;
};

enum pre_kind {
    PRE_PATTERN,
    PRE_PREFIX, /* puts a space before a text without one */
    PRE_METASPACE,
    PRE_BYTES /* writes text in the alphabet of byte_map.h; later steps see that */
};

struct pre_step {
    enum pre_kind kind;
    struct metaspace metaspace;
    struct pattern *pattern;
    char *source; /* of the pattern; NULL: known to none of the names */
    enum split_behavior behavior;
    bool is_inverted; /* what lies between matches counts as match */
};

struct pretokenizer {
    struct pre_step steps[MAX_PRE_STEPS];
    int n_steps;
};

/* A set of steps that models share, by the name that GGUF files give it. */
struct pre_name {
    const char *name;
    const char *same; /* further names, between blanks; the first of all is the one that is written */
    bool ignores_merges;
    bool is_composed;    /* text is brought into the form NFC */
    bool adds_bos;       /* unless the file says otherwise */
    bool has_characters; /* tokens are text, with marks for blanks and <0xHH> for bytes */
    bool drops_blanks;   /* white space parts words and is lost */
    bool is_costly;      /* some texts take the first pattern more than linear time */
    const char *patterns[8];
};

/* NULL: no such name. */
const struct pre_name *pre_name_find(const char *name);
/* The name that steps go by; NULL: none. */
const struct pre_name *pre_name_of(const struct pretokenizer *pre, bool is_composed, bool ignores_merges);

/* Is it a published pattern that takes linear time on any text? */
bool pre_pattern_is_known(const char *source);

extern const char PATTERN_GPT2[];
/* Of the steps Digits and Punctuation, which have a Unicode of their own; the names of these properties are known here alone. */
extern const char PATTERN_DIGITS[], PATTERN_PUNCTUATION[], PATTERN_BLANK[];

/* Each adds a step. Errors name the file. */
MUST_CHECK enum tutti_status pretokenizer_add(struct pretokenizer *pre, const char *source, size_t n_bytes,
                                              enum split_behavior behavior, bool is_inverted,
                                              const char *name, struct tutti_error *err);
MUST_CHECK enum tutti_status pretokenizer_add_literal(struct pretokenizer *pre, const char *text,
                                                      size_t n_bytes, enum split_behavior behavior,
                                                      bool is_inverted, const char *name,
                                                      struct tutti_error *err);
MUST_CHECK enum tutti_status pretokenizer_add_prefix(struct pretokenizer *pre, const char *name,
                                                     struct tutti_error *err);
MUST_CHECK enum tutti_status pretokenizer_add_bytes(struct pretokenizer *pre, const char *name,
                                                    struct tutti_error *err);
MUST_CHECK enum tutti_status pretokenizer_add_metaspace(struct pretokenizer *pre,
                                                        const struct metaspace *metaspace, const char *name,
                                                        struct tutti_error *err);
MUST_CHECK enum tutti_status pretokenizer_add_named(struct pretokenizer *pre, const struct pre_name *named,
                                                    const char *name, struct tutti_error *err);
void pretokenizer_clear(struct pretokenizer *pre);

/* Gives every word of a text to `word`, in order. False: it did, or see pattern_find(). text: valid UTF-8; is_first: it
 * begins all of the text. */
typedef bool word_fn(void *to, const char *word, size_t n_bytes);
MUST_CHECK bool pretokenize(const struct pretokenizer *pre, struct pattern_matcher *m, const char *text,
                            size_t n_bytes, bool is_first, word_fn *word, void *to);

#endif
