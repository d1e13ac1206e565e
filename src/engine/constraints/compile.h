/* Compiles the grammars of requests on separate threads, and caches them.
 *
 * There are two queues with a thread each. Every request begins in the quick queue, where compiling
 * stops after COMPILE_QUICK_STEPS. A grammar that needs more steps is compiled again in the long
 * queue, with the whole budget of grammar.h. In both queues the client that has used the fewest
 * steps goes first (workers.h). So a client with many or endless grammars delays a grammar of
 * another client by one compilation. Which grammars are long does not depend on the machine.
 *
 * Grammars in the cache and grammars of running and waiting requests take up to
 * COMPILE_SHARED_BYTES. Each counts for one client: the first one that used the grammar after it
 * was unused. client_memory.h says how much a client may hold. Unused grammars are evicted before a
 * client is refused with TUTTI_E_BUSY.
 *
 * Compiling stops within BUDGET_INTERVAL steps after the request was cancelled or its time in the
 * queue was over. Refusals are cached as well: the same text is refused without work. */
#ifndef TUTTI_COMPILE_H
#define TUTTI_COMPILE_H

#include "engine/requests/request.h"

struct compiler;
struct call_writer; /* call_grammar.h */

enum {
    COMPILE_QUICK_STEPS = 500 * 1000, /* some 20 ms; schemas of 200 properties take a tenth of them */
    COMPILE_SHARED_BYTES = 128 << 20, /* of grammars that are kept or in use */
};

/* Counters, for tests. */
struct compile_counts {
    uint64_t n_quick_attempts, n_long_attempts; /* compilations in each queue, finished or not */
    uint64_t n_cached, n_cached_refusals;       /* requests that the cache served */
    uint64_t n_refused, n_cancelled;            /* refused by the compiler; cancelled while compiling */
    uint64_t n_steps;
};

struct compiler_options {
    const struct token_trie *trie; /* outlives the compiler */
    int64_t long_steps;            /* of a compilation in the long queue; 0: LIMIT_COMPILE_STEPS */
    size_t shared_bytes;           /* 0: COMPILE_SHARED_BYTES */
    /* Returns a request with grammar or grammar_error set, or neither if it was cancelled. On a
     * compiling thread. */
    void (*is_compiled)(void *user, struct request *request);
    void *user;
    const struct call_writer *calls; /* outlives the compiler; NULL: the model writes no calls */
};

/* TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status compiler_new(struct compiler **out, const struct compiler_options *options,
                                          struct tutti_error *err);
/* Waits for compilations under way. By then the compiler must have returned its requests, or all
 * must be cancelled, and grammars that it compiled must have been dropped. NULL is allowed. */
void compiler_free(struct compiler *c);

/* Any thread: queues a request; the compiler owns it until is_compiled() returns it. */
void compiler_add(struct compiler *c, struct request *request);

void compiler_counts(struct compiler *c, struct compile_counts *out);

#endif
