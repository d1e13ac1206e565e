/* A sequence: one running choice or beam of a request, in a slot reserved when the engine opened.
 * schedule/lifecycle.h has the transitions between its states. Engine thread only. */
#ifndef TUTTI_SEQUENCE_H
#define TUTTI_SEQUENCE_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/request.h"

enum sequence_state {
    SEQUENCE_FREE,      /* the slot has no sequence */
    SEQUENCE_RESERVED,  /* holds the slot while a sibling prefills the prompt */
    SEQUENCE_PREEMPTED, /* keeps its tokens, has no pages, waits to run again */
    /* Running: it has the pages of its tokens. */
    SEQUENCE_RESTORING, /* waits for pages from host memory or the spill file */
    SEQUENCE_PREFILL,   /* two or more tokens are to be computed */
    SEQUENCE_DECODE,    /* one token is to be computed */
    SEQUENCE_MASK_WAIT, /* likewise, and its token mask is awaited */
    SEQUENCE_COMPUTED,  /* all tokens are computed: the next ones are to be committed */
    SEQUENCE_STATES,
};

struct sequence {
    enum sequence_state state;
    struct request *request;
    struct sequence *sibling; /* ring of the beams of one search; itself where it has none */
    int choice;               /* of beams: 0 */
    int rank;                 /* its owner's sequences that started before it; siblings have the same */
    uint64_t order;           /* by priority, rank, then by arrival: the smaller goes first; unique */
    uint64_t turn;            /* of its prefill: the smaller goes first */
    int n_turn;               /* tokens prefilled in that turn */
    uint64_t turn_us;         /* when its last turn ended, or when it started */
    uint64_t preempted_us;    /* when it was preempted last */
    struct room room;         /* of its last attempt to continue */
    bool was_preempted;       /* what it takes from the prefix cache since then does not count in n_cached */
    bool is_fresh;            /* no row of it was planned since it was admitted */

    int32_t *ids;          /* [max_context] prompt, then answer */
    int32_t *page_table;   /* [pages of max_context] */
    int32_t *window_table; /* [pages of max_context] slots of the pages; of passed pages outdated */
    int n_ids;             /* tokens known, and one more with source >= 0 */
    int n_computed;        /* of those, tokens whose KV is in the pages */
    int n_published;       /* full pages that are in the prefix cache */
    int n_pages;
    int n_passed; /* the first pages: none of its rows sees them through layers with a window */
    int n_prompt;
    struct prefix prefix; /* of the prompt, where the model has bidirectional prefixes */
    bool recomputes;      /* all of its tokens for each new one: no keys and values are kept */
    bool uses_cache;      /* takes pages from the prefix cache and publishes its own */
    int n_cached; /* tokens of the prompt, virtual ones too, that came from the prefix cache when it started */
    int max_ids;  /* prompt and answer end at this length */

    /* Reasoning, if the request tracks it. A grammar applies from answer_begin on. */
    enum reasoning_start reasoning; /* REASONING_NEVER: not within it */
    int reasoning_begin, answer_begin;
    int n_forced; /* tokens of the marks that end reasoning without budget, so far */

    /* Restoring (spiller.h): the full pages [n_computed / page_tokens, n_restorable) are copied from host
     * memory or the spill file, in this order. Those up to n_loaded are on their way from host memory or
     * there already, and those up to n_requested from the file. */
    int n_loaded, n_requested, n_restorable;
    struct kv_copy last_requested; /* copy of page n_requested - 1, or the root */
    uint32_t restore_ticket;       /* of the latest restoring: reads with another ticket are outdated */
    uint64_t restored_us;          /* time of the last restored page */

    /* The last token is still being drawn by the device, as the result of this input of its sampling; -1: it is known. */
    int source;
    bool needs_host; /* the device could not draw a token of it: its steps are waited for */

    int n_planned;                 /* rows in the step being planned */
    int n_drafts;                  /* of those, draft tokens; stored after ids[n_ids - 1] */
    bool is_model_draft;           /* they are from the draft model */
    size_t n_accepted, n_rejected; /* draft tokens so far */
    uint64_t queue_us, ttft_us, last_token_us;
};

/* The bits of order: 8 for the priority, 7 for the rank, the rest for the number. */
enum { SEQUENCE_PRIORITY_SHIFT = 56, SEQUENCE_RANK_SHIFT = 49, SEQUENCE_MOST_RANK = 127 };

/* Identifies it among successive sequences of its slot: its order without priority and rank, which change. */
static inline uint64_t sequence_number(const struct sequence *seq)
{
    return seq->order & ((UINT64_C(1) << SEQUENCE_RANK_SHIFT) - 1);
}

/* True: it has pages, and takes part in steps. */
static inline bool sequence_is_running(const struct sequence *seq)
{
    return seq->state >= SEQUENCE_RESTORING;
}

/* Selects the cached pages that it may share. */
static inline struct kv_chain sequence_chain(const struct sequence *seq)
{
    return (struct kv_chain){ .tenant = seq->request->spec.tenant, .adapter = seq->request->adapter };
}

/* Tokens of the request's own prompt that came from the prefix cache. */
static inline int sequence_n_cached(const struct sequence *seq)
{
    int n = seq->n_cached - seq->request->virtual.n;
    return n > 0 ? n : 0;
}

/* Tokens whose keys and values are not computed yet. */
static inline int sequence_n_pending(const struct sequence *seq)
{
    return seq->n_ids - seq->n_computed;
}

#endif
