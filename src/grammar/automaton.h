/* Compiles a grammar into a pushdown automaton over bytes. Each rule is a nondeterministic
 * automaton with a start and an end; an edge reads a byte, reads nothing, or calls a rule and
 * continues at the edge's target.
 *
 * No edge leaves the end of a rule, so a call whose edge leads to the end is a tail call and
 * needs no stack frame. States that cannot reach the end of their rule have no edges, so a text
 * never gets stuck. needs[] is the number of further frames that the stack must have room for. */
#ifndef TUTTI_GRAMMAR_AUTOMATON_H
#define TUTTI_GRAMMAR_AUTOMATON_H

#include "grammar/syntax.h"

enum {
    LIMIT_GRAMMAR_EDGES = 1 << 20,
    LIMIT_GRAMMAR_STATES = 1 << 19,
    MAX_STACK_DEPTH = 256, /* nested calls; deeper texts are not accepted */
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
    struct edge *edges;  /* sorted by source state */
    bool *is_end;        /* [n_states] of a rule */
    /* [n_states] minimum number of frames pushed up to the end of the rule; MAX_STACK_DEPTH + 1:
     * unreachable. */
    uint16_t *needs;
    int32_t start;
    /* Byte classes: bytes that no edge distinguishes are in one class. */
    uint8_t class_of[256], a_byte_of[256];
    int n_classes;
};

/* TUTTI_E_ARGUMENT: a left-recursive rule, or no finite text matches. TUTTI_E_LIMIT: too many
 * states, or the syntax's budget is spent; TUTTI_E_CANCELLED. */
MUST_CHECK enum tutti_status automaton_new(struct automaton **out, struct syntax *syntax,
                                           struct tutti_error *err);
void automaton_free(struct automaton *a); /* NULL is allowed */
size_t automaton_bytes(const struct automaton *a);

#endif
