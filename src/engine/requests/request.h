/* A request: a validated copy of the caller's struct tutti_request, in one allocation, with the
 * state that each thread keeps about it.
 *
 * The caller's thread creates it. The text thread owns it. The engine thread may use it from the
 * moment its prompt is tokenized until the engine has sent the end of every choice. */
#ifndef TUTTI_REQUEST_H
#define TUTTI_REQUEST_H

#include "base/ids.h"
#include "base/system/workers.h"
#include "engine/requests/prompt_results.h"
#include "engine/requests/reply.h"
#include "engine/sample/beam.h"
#include "grammar/grammar.h"
#include "model/adapters/adapter.h"

#include <stdatomic.h>

struct lane;
struct share;

/* What tutti_engine_progress() reads, on any thread. */
struct request_progress {
    atomic_int phase, n_prompt, n_cached, n_computed;
};

/* One of the n choices. */
struct choice {
    atomic_bool is_ended; /* set by the text thread at a stop string or when out of memory */
    struct reply reply;   /* text thread */
    bool is_reported;     /* text thread: its last event was sent */
};

/* The result of the last attempt to take pages: the next one is left out while no pages were given back. */
struct room {
    int64_t n_wanted; /* pages, besides one for each running sequence; 0: none is known to be lacking */
    int n_skips;      /* attempts that were left out */
};

struct request {
    uint64_t id, serial; /* serial: counts submissions */
    tutti_callback callback;
    void *user;
    struct tutti_request spec;      /* every pointer points into this allocation; n_choices is 1 or more */
    int adapter;                    /* of the model; -1: none */
    struct adapter_virtual virtual; /* its tokens, with which the prompt begins */
    uint64_t seed;
    uint64_t submit_us;
    atomic_bool is_cancelled;
    struct request_progress progress;
    struct work_item item; /* while the prompt waits to be tokenized, or its grammar to be compiled */
    struct request *next;  /* in the queue to the text thread, then in the scheduler's queue */
    struct share *share;   /* of its owner */
    uint64_t deadline_us;  /* time limit in the queue; 0: none */
    int64_t work;          /* counted as waiting (forecast.h); written by the thread that has the request */
    struct request_memory *memory;  /* where held_bytes count */
    atomic_int_fast64_t *own_bytes; /* the same of its owner; NULL: they are not counted */
    int64_t held_bytes;

    /* Written by the prompt thread before the hand-over, then only read: */
    struct tutti_error refusal; /* status other than TUTTI_OK: the prompt cannot be used */
    const int32_t *prompt;      /* [n_prompt]: virtual tokens, then those of the prompt */
    int n_prompt;
    struct ids rendered;      /* where the prompt was text or messages, or has virtual tokens */
    uint16_t **stop_borders;  /* of each of spec.stop: stops.h */
    bool continues_answer;    /* the prompt ends with the beginning of the answer */
    bool begins_in_reasoning; /* the prompt opens the reasoning of the answer */
    /* Where the reasoning begins that its tokens are tracked for: a grammar waits for its end, or it
     * has a budget. */
    enum reasoning_start reasoning;
    struct beam_search *beams; /* NULL: none. Used by the engine thread after the hand-over */
    /* With spec.prompt_logprobs or spec.embedding. Used by the engine thread until all results are
     * there. */
    struct prompt_results *results;

    /* Written by the compiling thread, which has the request before its prompt is tokenized: */
    struct grammar *grammar;          /* a reference; NULL: none */
    struct tutti_error grammar_error; /* status other than TUTTI_OK: the grammar was refused */

    /* Engine thread: */
    int n_started;     /* choices 0..n_started-1 have or had a sequence */
    struct lane *lane; /* in the scheduler's queue; NULL: it is not queued */
    struct request *previous;
    int second; /* of a pair: where the second text begins */
    struct room room;
    uint64_t blocked_us; /* since when it has been the next request, but did not fit; 0: it has not */
    int n_seen;          /* prompt rows whose results are there; pages of later rows must be computed */

    /* Text thread: */
    struct reply_format format;
    int n_unreported;               /* choices whose last event has not been sent */
    int n_unfinished;               /* choices whose end the engine has not sent */
    bool has_failed, was_cancelled; /* true of one of its choices */
    bool has_sent_results;          /* prompt results were sent */
    struct choice choices[];        /* [spec.n_choices] */
};

/* Memory that requests hold, from when they are prepared to their end, for more than their prompts: log-probabilities of prompt
 * tokens, and beams. One owner (not 0) may hold a quarter of it. A request that needs little does not count. */
struct request_memory {
    atomic_int_fast64_t n_bytes; /* held */
    int64_t limit;               /* at least four times what one request can need */
};

/* Limits of an engine for one request. */
struct request_limits {
    int max_context; /* tokens of a sequence */
    int max_seqs, n_pages, page_tokens;
    /* Window slots, if there are fewer than pages: in total, those that a sequence may need for its
     * window, and those that the rows of a step may need. n_slots 0: each page has its own. */
    int n_slots, window_slots, step_slots;
    int max_queue_ms;              /* 0: no limit */
    struct request_memory *memory; /* NULL: no limit */
};

/* Checks what a prompt is rendered from. TUTTI_E_ARGUMENT: the model has no chat format, or a
 * message lacks a field. */
MUST_CHECK enum tutti_status request_check_messages(const struct tutti_request *spec,
                                                    const struct model *model, struct tutti_error *err);

/* Checks what decides about a place in the queue. TUTTI_E_ARGUMENT names the field. */
MUST_CHECK enum tutti_status request_check_place(const struct tutti_request *spec, struct tutti_error *err);

/* Validates every field and copies it.
 * TUTTI_E_ARGUMENT names the field; TUTTI_E_LIMIT; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status request_new(struct request **out, const struct tutti_request *spec,
                                         const struct model *model, const struct request_limits *limits,
                                         struct tutti_error *err);
void request_free(struct request *request); /* NULL is allowed */

/* Fills prompt and n_prompt: renders and tokenizes. TUTTI_E_LIMIT: the prompt is longer than the
 * context allows, or its beams need more than the KV cache has. TUTTI_E_BUSY: other requests hold the
 * memory for log-probabilities of prompts and beams. */
MUST_CHECK enum tutti_status request_prepare(struct request *request, const struct model *model,
                                             const struct request_limits *limits, struct tutti_error *err);

/* The most that one request can need of struct request_memory. */
int64_t request_most_memory(const struct request_limits *limits);

/* Cost of preparing the prompt: its bytes and those of the stop strings, at least 1. */
int64_t request_prompt_bytes(const struct request *request);

/* Tokens of the prompt; until it is prepared, an estimate from its length. */
int64_t request_estimate_prompt(const struct request *request);

/* Tokens of the prompt without virtual ones. */
static inline int request_n_own(const struct request *r)
{
    return r->n_prompt - r->virtual.n;
}

/* True: results of every prompt row are needed, not only of the last one. */
static inline bool request_wants_rows(const struct request *r)
{
    return r->spec.prompt_logprobs || r->spec.embedding == TUTTI_EMBEDDING_MEAN ||
           r->spec.embedding == TUTTI_EMBEDDING_FIRST;
}

/* True: its grammar is one of calls. */
static inline bool request_has_calls_grammar(const struct request *r)
{
    return r->spec.grammar_kind == TUTTI_GRAMMAR_TOOL_CALLS ||
           r->spec.grammar_kind == TUTTI_GRAMMAR_TEXT_OR_CALLS;
}

/* True: all its choices end when one sequence ends. */
static inline bool request_ends_as_one(const struct request *r)
{
    return r->beams || r->spec.no_answer;
}

enum {
    KEPT_SLOTS = 16,  /* one of so many slots is kept for owners who have few */
    OWN_PER_FREE = 8, /* sequences that an owner may have with those slots, for each that stays free */
};

/* Whether an owner (not 0) may take slots of a scheduler with max_seqs so that n_left stay free, if it had own sequences before the last
 * of them. */
static inline bool request_leaves_enough(int max_seqs, int n_left, int own)
{
    return n_left >= max_seqs / KEPT_SLOTS || OWN_PER_FREE * n_left >= own;
}

/* Slots that it needs to start: beams take theirs together. */
static inline int request_n_slots(const struct request *r)
{
    return r->beams ? r->beams->n_beams : 1;
}

/* Draft tokens that one of its sequences may have in a step. 0 with a grammar or beams, which would
 * need a mask or a beam for each of them, with a budget of reasoning, which may end within them, and
 * without kept keys and values. */
static inline int request_max_drafts(const struct request *r)
{
    if (r->beams || r->spec.grammar_kind != TUTTI_GRAMMAR_NONE || r->spec.no_kv_cache ||
        r->spec.max_reasoning_tokens != 0)
        return 0;
    if (r->spec.max_draft_tokens == 0)
        return INT32_MAX;
    return r->spec.max_draft_tokens > 0 ? r->spec.max_draft_tokens : 0;
}

/* The model's stop tokens unless ignore_eos, and the request's own. */
bool request_is_stop_id(const struct request *request, const struct model_desc *desc, int32_t id);

#endif
