/* A sequence: one running choice or beam of a request, in a slot reserved when the engine opened.
 * Engine thread only. */
#ifndef TUTTI_SEQUENCE_H
#define TUTTI_SEQUENCE_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/request.h"

enum sequence_state {
    SEQUENCE_FREE,
    SEQUENCE_RUNNING,
    SEQUENCE_PREEMPTED, /* keeps its tokens, holds no pages, waits to be prefilled again */
    SEQUENCE_RESERVED,  /* slot of a beam, while another sequence prefills the request's prompt */
};

struct sequence {
    enum sequence_state state;
    struct request *request;
    int choice;       /* of beams: 0 */
    int beam;         /* number in request->beams */
    uint64_t order;   /* by priority, then by arrival: the smaller goes first; unique */
    uint64_t turn;    /* of its prefill: the smaller goes first */
    int n_turn;       /* tokens prefilled in that turn */
    uint64_t turn_us; /* when its last turn ended, or when it started */
    bool is_fresh;    /* no row of it was planned since it was admitted */

    int32_t *ids;        /* [max_context] prompt, then answer */
    int32_t *page_table; /* [pages of max_context] */
    int n_ids;           /* tokens known */
    int n_computed;      /* of those, tokens whose KV is in the pages */
    int n_published;     /* full pages that are in the prefix cache */
    int n_pages;
    int n_prompt;
    struct prefix prefix; /* of the prompt, where the model has bidirectional prefixes */
    int n_cached;         /* tokens of the prompt that came from the prefix cache when it started */
    int max_ids;          /* prompt and answer end at this length */

    /* Restoring (spiller.h): the full pages [n_computed / page_tokens, n_wanted) are read from
     * the spill file, in this order; reads up to page n_asked were requested. The sequence is not
     * planned before they are there. */
    bool is_returning;
    int n_asked, n_wanted;
    struct kv_copy last_asked; /* copy of page n_asked - 1, or the root */
    uint32_t return_ticket;    /* reads with another ticket are outdated */
    uint64_t return_us;        /* time of the last restored page */

    bool is_waiting;               /* for its token mask: not planned before it is there */
    int n_planned;                 /* rows in the step being planned */
    int n_drafts;                  /* of those, draft tokens; stored after ids[n_ids - 1] */
    bool is_model_draft;           /* they are from the draft model */
    size_t n_accepted, n_rejected; /* draft tokens so far */
    uint64_t queue_us, ttft_us, last_token_us;
};

/* Selects the cached pages that it may share. */
static inline struct kv_chain sequence_chain(const struct sequence *seq)
{
    return (struct kv_chain){ .tenant = seq->request->spec.tenant, .adapter = seq->request->adapter };
}

/* Tokens whose keys and values are not computed yet. */
static inline int sequence_n_pending(const struct sequence *seq)
{
    return seq->n_ids - seq->n_computed;
}

#endif
