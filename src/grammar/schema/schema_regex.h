/* Regular languages over code points, as terms that are closed under intersection and complement.
 *
 * Equal terms have one number, so the derivatives of a term (Brzozowski, "Derivatives of Regular
 * Expressions", 1964) are the states of a deterministic automaton. A term without intersections and
 * complements is written into the grammar as it is; any other becomes its automaton, with a rule for
 * each state.
 *
 * Every function returns -1, or false, after an error in the reader, and takes -1 for a term. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_REGEX_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_REGEX_H

#include "base/containers/key_map.h"
#include "grammar/syntax.h"

struct schema_reader;

enum {
    MAX_REGEX_STATES = 32768, /* of one automaton */
    MAX_REGEX_CLASSES = 250,  /* sets of characters that one term tells apart */
    MAX_REGEX_DEPTH = 256,    /* of terms within each other */
};

struct regexes {
    struct regex_term {
        enum regex_kind {
            REGEX_CHARS, /* first, n: in ranges */
            REGEX_EMPTY,
            REGEX_CAT, /* first: a term that is no REGEX_CAT; n: the rest */
            REGEX_OR,  /* first, n: in children, sorted */
            REGEX_AND,
            REGEX_NOT,    /* first */
            REGEX_REPEAT, /* first, min, max */
        } kind;
        bool accepts_empty, is_plain; /* plain: without REGEX_AND and REGEX_NOT */
        int16_t depth;
        int32_t first, n, min, max;
        int32_t shortest, longest; /* bounds of the length in characters; REPEAT_FOREVER */
    } * terms;
    struct char_range *ranges;
    int32_t *children;
    size_t n_terms, terms_room, n_ranges, ranges_room, n_children, children_room;
    struct key_map by_content, rules; /* rules: those of states, by term */
    struct key_map derivatives;       /* of one automaton, by term and class */
};

void regexes_clear(struct regexes *x);

int32_t regex_none(struct schema_reader *r); /* no text */
int32_t regex_empty(struct schema_reader *r);
int32_t regex_any(struct schema_reader *r); /* every text */
int32_t regex_chars(struct schema_reader *r, const struct char_range *ranges, size_t n);
int32_t regex_text(struct schema_reader *r, const char *text, size_t n_bytes);
int32_t regex_cat(struct schema_reader *r, int32_t a, int32_t b);
int32_t regex_or(struct schema_reader *r, const int32_t *terms, size_t n);
int32_t regex_and(struct schema_reader *r, const int32_t *terms, size_t n);
int32_t regex_not(struct schema_reader *r, int32_t term);
int32_t regex_repeat(struct schema_reader *r, int32_t term, int32_t min, int32_t max);

/* Bounds of the length: exact for plain terms. */
void regex_lengths(const struct schema_reader *r, int32_t term, int32_t *min, int32_t *max);
bool regex_accepts(struct schema_reader *r, int32_t term, const char *text, size_t n_bytes);
/* *is_none: no text is in the language. False: error. */
bool regex_check_none(struct schema_reader *r, int32_t term, bool *is_none);

/* A node of the grammar, for the inside of a string: schema_chars(). */
int32_t regex_node(struct schema_reader *r, int32_t term);

#endif
