/* A sequence: one choice of one request, or one of its beams, that runs, in a slot reserved when the engine opened. Engine thread only. */
#ifndef TUTTI_SEQUENCE_H
#define TUTTI_SEQUENCE_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/guess.h"
#include "engine/requests/request.h"

enum sequence_state {
    SEQUENCE_FREE,
    SEQUENCE_RUNNING,
    SEQUENCE_PREEMPTED, /* keeps its tokens, holds no pages, waits to be read again */
    SEQUENCE_RESERVED,  /* for a beam of a request whose prompt another sequence still reads */
};

struct sequence {
    enum sequence_state state;
    struct request *request;
    int choice;       /* of beams: 0 */
    int beam;         /* number in request->beams */
    uint64_t order;   /* by priority, then by arrival: the smaller goes first; unique */
    uint64_t turn;    /* to read its prompt: the smaller goes first */
    int n_turn;       /* tokens read in that turn */
    uint64_t turn_us; /* when the turn before it ended, or the sequence began */
    bool is_fresh;    /* no row of it was planned since it was let in */

    int32_t *ids;        /* [max_context] prompt, then answer */
    int32_t *page_table; /* [pages of max_context] */
    int n_ids;           /* tokens known */
    int n_computed;      /* of those, how many have their KV in the pages */
    int n_published;     /* full pages that the prefix cache knows */
    int n_pages;
    int n_prompt;
    struct prefix prefix; /* of the prompt, where the model reads one in both directions */
    int n_cached;         /* tokens of the prompt that came from the prefix cache, when it began */
    int max_ids;          /* prompt and answer: ends there */

    /* Of spiller.h: full pages [n_computed / KV_PAGE_TOKENS, n_wanted) come back from the file, in this order; those below n_asked
     * were asked for. Not to be planned before they are there. */
    bool is_returning;
    int n_asked, n_wanted;
    struct kv_copy last_asked; /* the copy of page n_asked - 1, or the root */
    uint32_t return_ticket;    /* answers with another one come too late */
    uint64_t return_us;        /* of the last answer */

    bool is_waiting; /* for the mask of its grammar: not to be planned before that is there */
    int n_planned;   /* rows in the step that is being planned */
    int n_guesses;   /* of those: guessed tokens, which stand behind ids [n_ids] */
    bool is_drafted; /* they are the draft model's */
    struct guesser guesser;
    size_t n_accepted, n_rejected; /* guessed tokens so far */
    uint64_t queue_us, ttft_us, last_token_us;
};

/* The chain that it shares cached pages with. */
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
