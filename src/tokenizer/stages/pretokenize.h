/* Pre-tokenization: splits a text into words by a sequence of patterns. */
#ifndef TUTTI_TOKENIZER_STAGES_PRETOKENIZE_H
#define TUTTI_TOKENIZER_STAGES_PRETOKENIZE_H

#include "tokenizer/stages/pattern.h"

enum { MAX_PRE_STEPS = 16 };

/* What happens to matches, by the names of the Hugging Face tokenizers library. */
enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS };

/* Metaspace: replaces spaces by marks, prepends a mark, and splits words at marks. */
struct metaspace {
    enum metaspace_prepends { METASPACE_NEVER, METASPACE_FIRST, METASPACE_ALWAYS } prepends;
    bool splits;
    char mark[5]; /* one character, [n_mark] */
    size_t n_mark;
};

enum pre_kind {
    PRE_PATTERN,
    PRE_PREFIX, /* prepends a space if the text does not begin with one */
    PRE_METASPACE,
    PRE_BYTES /* converts text to the alphabet of byte_map.h, also for later steps */
};

struct pre_step {
    enum pre_kind kind;
    struct metaspace metaspace;
    struct pattern *pattern;
    char *source; /* of the pattern; NULL: not part of any name */
    enum split_behavior behavior;
    bool is_inverted; /* the text between matches counts as match */
    bool is_literal;  /* the pattern is the text itself */
};

struct pretokenizer {
    struct pre_step steps[MAX_PRE_STEPS];
    int n_steps;
};

/* A named pre-tokenization of GGUF (tokenizer.ggml.pre) that models share. */
struct pre_name {
    const char *name;
    const char *same; /* aliases separated by blanks; name itself is used for writing */
    bool ignores_merges;
    bool is_composed;    /* text is normalized to NFC */
    bool adds_bos;       /* unless the file says otherwise */
    bool has_characters; /* tokens are text, with marks for blanks and <0xHH> for bytes */
    bool drops_blanks;   /* white space separates words and is dropped */
    bool is_costly;      /* its patterns are not linear on some texts */
    const char *patterns[8];
};

/* NULL: no such name. */
const struct pre_name *pre_name_find(const char *name);
/* The name that has exactly these steps; NULL: none. */
const struct pre_name *pre_name_of(const struct pretokenizer *pre, bool is_composed, bool ignores_merges);

/* PATTERN_UNKNOWN, unless it is a published pattern that takes linear time on any text. */
enum pattern_kind pre_pattern_kind(const char *source);

extern const char PATTERN_GPT2[];
/* Patterns of steps of the Hugging Face library that have no regular expressions there. */
extern const char PATTERN_DIGITS[], PATTERN_PUNCTUATION[], PATTERN_BLANK[], PATTERN_WORDS[];

/* Adds a step. source: of its pattern, [n_bytes]; NULL where it has none. Errors name the file. */
MUST_CHECK enum tutti_status pretokenizer_add(struct pretokenizer *pre, struct pre_step step,
                                              const char *source, size_t n_bytes, const char *name,
                                              struct tutti_error *err);
MUST_CHECK enum tutti_status pretokenizer_add_named(struct pretokenizer *pre, const struct pre_name *named,
                                                    const char *name, struct tutti_error *err);
void pretokenizer_clear(struct pretokenizer *pre);

/* Calls word with every word of a text, in order. False: word returned false, or pattern_find()
 * failed. text: valid UTF-8. is_first: it is the start of the whole text. */
typedef bool word_fn(void *to, const char *word, size_t n_bytes);
MUST_CHECK bool pretokenize(const struct pretokenizer *pre, struct pattern_matcher *m, const char *text,
                            size_t n_bytes, bool is_first, word_fn *word, void *to);

#endif
