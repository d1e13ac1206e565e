/* The syntax tree of a grammar: rules over Unicode characters, built by the readers of GBNF and
 * of JSON Schema.
 *
 * Nodes are in one array and referred to by index; a node may be used several times. Builders
 * need not check every result: after running out of memory, of room or of its budget, a syntax
 * stays full, and syntax_check() reports that at the end. Nesting is only limited by the number
 * of nodes, so code that walks the tree must not recurse. */
#ifndef TUTTI_GRAMMAR_SYNTAX_H
#define TUTTI_GRAMMAR_SYNTAX_H

#include "base/buf.h"
#include "grammar/budget.h"

enum {
    LIMIT_GRAMMAR_NODES = 1 << 19,
    LIMIT_GRAMMAR_RULES = 1 << 16,
    LIMIT_GRAMMAR_REPEAT = 1 << 16, /* the m and n of {m,n} */
    LIMIT_GRAMMAR_NESTING = 64,
    MAX_CODE_POINT = 0x10FFFF,
};

enum node_kind {
    NODE_EMPTY,
    NODE_BYTES,  /* first, n: in the syntax's bytes */
    NODE_CHARS,  /* first, n: in its ranges; one character of any of them */
    NODE_SEQ,    /* first, n: in its children */
    NODE_CHOICE, /* first, n: in its children; n 0: matches nothing */
    NODE_REPEAT, /* first: the child; min, max */
    NODE_RULE,   /* first: the rule */
};

enum { REPEAT_FOREVER = -1 };

struct node {
    enum node_kind kind;
    int32_t first, n;
    int32_t min, max;
};

struct char_range {
    uint32_t low, high; /* code points, both within */
};

struct rule {
    int32_t node;     /* -1: not defined yet */
    char *name;       /* owned; NULL: created by a reader */
    int line, column; /* of the first place that names it; 0: none */
};

struct syntax {
    struct node *nodes;
    int32_t *children;
    struct char_range *ranges;
    struct rule *rules;
    struct buf bytes;
    size_t n_nodes, n_children, n_ranges, n_rules;
    size_t nodes_room, children_room, ranges_room, rules_room;
    int32_t root;      /* a rule */
    char nothing[200]; /* path of the first schema that no text matches; "": none */
    bool is_full, has_no_memory;
    struct budget *budget; /* set by the owner before anything else */
    size_t bytes_taken;    /* from the budget */
};

/* False: the budget is spent, and the syntax is full. */
bool syntax_spend(struct syntax *s, size_t n_steps);

void syntax_clear(struct syntax *s); /* a zeroed one is allowed */

/* Each returns a node. Without room: node 0 or -1, which can still be passed to the other
 * functions. */
int32_t syntax_empty(struct syntax *s);
int32_t syntax_bytes(struct syntax *s, const char *bytes, size_t n_bytes);
int32_t syntax_text(struct syntax *s, const char *text);
int32_t syntax_chars(struct syntax *s, const struct char_range *ranges, size_t n); /* sorted or not */
int32_t syntax_seq(struct syntax *s, const int32_t *nodes, size_t n);
int32_t syntax_choice(struct syntax *s, const int32_t *nodes, size_t n);
int32_t syntax_repeat(struct syntax *s, int32_t node, int32_t min, int32_t max);
/* How often * + and ? repeat. False: another character. */
bool syntax_repeat_sign(char sign, int32_t *min, int32_t *max);
int32_t syntax_rule(struct syntax *s, int32_t rule);

/* syntax_seq(s, (int32_t[]){ ... }, count) */
#define SYNTAX_SEQ(s, ...)                                                                                   \
    syntax_seq(s, (const int32_t[]){ __VA_ARGS__ },                                                          \
               sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))
#define SYNTAX_CHOICE(s, ...)                                                                                \
    syntax_choice(s, (const int32_t[]){ __VA_ARGS__ },                                                       \
                  sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

/* Adds a rule without a definition, for syntax_define(). name (may be NULL) is copied. -1: no
 * room. */
int32_t syntax_add_rule(struct syntax *s, const char *name, size_t n_bytes);
void syntax_define(struct syntax *s, int32_t rule, int32_t node);

/* TUTTI_E_LIMIT: the grammar is too large, or its budget is spent; TUTTI_E_CANCELLED; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status syntax_check(const struct syntax *s, struct tutti_error *err);

/* Out of memory: the syntax is full. Returns -1. */
int32_t syntax_no_memory(struct syntax *s);

/* Sorts the ranges and merges overlaps, in place; returns their number. */
size_t ranges_normalize(struct char_range *ranges, size_t n);
/* The complement. out: room for n + 1. ranges must be normalized. */
size_t ranges_invert(const struct char_range *ranges, size_t n, struct char_range *out);
/* What is in a range of a and in one of b. out: room for n_a * n_b. */
size_t ranges_intersect(const struct char_range *a, size_t n_a, const struct char_range *b, size_t n_b,
                        struct char_range *out);

#endif
