/* Compiles the grammars of requests on threads of their own, in turns.
 *
 * There are two queues with a thread each. Every request begins in the quick one, where a turn ends after COMPILE_QUICK_STEPS. What is not
 * done by then is begun again in the long queue, with the whole budget of grammar.h. In both queues the owner that has had the
 * least goes first (workers.h), counted in steps: a client with many grammars, or with grammars that never end, delays each other
 * client's by one turn. Which grammars are long does not depend on the machine.
 *
 * Grammars that are kept or in use, of requests that wait too, take up to COMPILE_SHARED_BYTES. Each counts for one client: the one whose
 * request used it first since nobody did. client_memory.h says how much a client may hold. Before a client is refused with TUTTI_E_BUSY,
 * grammars that nobody uses are dropped.
 *
 * Compiling stops within BUDGET_INTERVAL steps once the request is cancelled or its time in the queue is over. Grammars are
 * kept for later requests, and so are refusals: the same text is refused without work. */
#ifndef TUTTI_COMPILE_H
#define TUTTI_COMPILE_H

#include "engine/request.h"

struct compiler;

enum {
    COMPILE_QUICK_STEPS = 500 * 1000, /* some 20 ms; schemas of 200 properties take a tenth of them */
    COMPILE_SHARED_BYTES = 128 << 20, /* of grammars that are kept or in use */
};

/* What was done, for tests and figures. */
struct compile_counts {
    uint64_t n_quick_turns, n_long_turns; /* in which something was compiled, to its end or not */
    uint64_t n_cached, n_cached_refusals; /* requests that were answered from what is kept */
    uint64_t n_refused, n_cancelled;      /* by compiling; while compiling */
    uint64_t n_steps;
};

struct compiler_options {
    const struct token_trie *trie; /* outlives the compiler */
    int64_t long_steps;            /* of a turn in the long queue; 0: LIMIT_COMPILE_STEPS */
    size_t shared_bytes;           /* 0: COMPILE_SHARED_BYTES */
    /* Gets a request back with grammar or grammar_error set, or neither where it was cancelled. On a compiling thread. */
    void (*is_compiled)(void *user, struct request *request);
    void *user;
};

/* TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status compiler_new(struct compiler **out, const struct compiler_options *options,
                                          struct tutti_error *err);
/* Waits for the turns under way; no request is with the compiler any more, or all of them are cancelled. Grammars that it
 * compiled must be dropped before. NULL is allowed. */
void compiler_free(struct compiler *c);

/* Any thread: takes a request until is_compiled() gives it back. */
void compiler_add(struct compiler *c, struct request *request);

void compiler_counts(struct compiler *c, struct compile_counts *out);

#endif
