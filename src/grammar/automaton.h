/* A grammar as a pushdown automaton over bytes: for each rule a small nondeterministic automaton with a start and an end, whose
 * edges read a byte, read nothing, or call a rule and go on where the edge leads.
 *
 * From the end of a rule no edge leads on; so a call whose edge leads to the end needs no place on the stack. States from
 * which the end of their rule cannot be reached have no edges, and no text leads into a corner: needs[] says how many further
 * frames the stack must have room for. */
#ifndef TUTTI_GRAMMAR_AUTOMATON_H
#define TUTTI_GRAMMAR_AUTOMATON_H

#include "grammar/syntax.h"

enum {
    LIMIT_GRAMMAR_EDGES = 1 << 20,
    LIMIT_GRAMMAR_STATES = 1 << 19,
    MAX_STACK_DEPTH = 256, /* calls within calls; deeper ones do not fit the grammar */
};

enum edge_kind { EDGE_BYTE, EDGE_NOTHING, EDGE_CALL };

struct edge {
    uint8_t kind, low, high; /* EDGE_BYTE: both within */
    int32_t to;
    int32_t call; /* EDGE_CALL: the start of a rule */
};

struct automaton {
    int32_t n_states, n_edges;
    int32_t *first_edge; /* [n_states + 1] */
    struct edge *edges;  /* by the state that they leave */
    bool *is_end;        /* [n_states] of a rule */
    uint16_t *
        needs; /* [n_states] frames to be pushed at the least until the end of the rule; MAX_STACK_DEPTH + 1: never */
    int32_t start;
    /* Bytes that no edge tells apart are of one class. */
    uint8_t class_of[256], a_byte_of[256];
    int n_classes;
};

/* TUTTI_E_ARGUMENT: a rule begins with itself, or no finite text fits. TUTTI_E_LIMIT: too many states, or the syntax's budget is
 * spent; TUTTI_E_CANCELLED. */
MUST_CHECK enum tutti_status automaton_new(struct automaton **out, struct syntax *syntax,
                                           struct tutti_error *err);
void automaton_free(struct automaton *a); /* NULL is allowed */
size_t automaton_bytes(const struct automaton *a);

#endif
