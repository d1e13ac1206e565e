#include "engine/constraints/constraint.h"

#include "base/system/os.h"
#include "base/system/thread.h"
#include "engine/constraints/call_grammar.h"

#include <stdlib.h>
#include <string.h>

enum mask_request { REQUEST_NONE, REQUEST_TOKEN, REQUEST_FIRST, REQUEST_END };

struct slot {
    /* The mask request: written by the engine thread while n_replied == n_requested. */
    atomic_uint n_requested;
    enum mask_request kind;
    struct grammar *grammar; /* REQUEST_FIRST: a reference for the matcher */
    uint64_t owner;
    int32_t token;
    atomic_bool is_given_up; /* set by the engine thread: the mask is no longer needed */
    /* The reply: written by the mask thread while n_replied != n_requested. */
    atomic_uint n_replied;
    bool can_end, is_empty;
    enum tutti_status status;
    uint32_t *bits;
    /* Mask thread */
    struct matcher matcher;
    bool is_begun; /* the matcher has the token, the mask is being computed */
    uint64_t known_owner, owner_slice,
        own_slice; /* number of the latest slice of that owner, and of this slot */
    /* Engine thread: a request that waits for the slot; fields as above */
    enum mask_request waiting;
    struct grammar *waiting_grammar;
    uint64_t waiting_owner;
    int32_t waiting_token;
};

struct constraints {
    struct constraint_options options;
    struct token_trie *trie;
    size_t n_words;
    uint32_t *masks;  /* [max_seqs][n_words] */
    uint32_t *firsts; /* [max_seqs][n_words], engine thread: masks of constraint_first_or() */
    uint32_t *any;    /* [n_words], all bits set */
    struct slot *slots;
    int n_waiting;         /* engine thread: slots with a waiting request */
    bool has_new_requests; /* engine thread: there are new requests since the bell was rung */

    struct bell mask_bell;
    atomic_bool is_stopping;
    pthread_t mask_thread;
    bool has_mask_thread;
    uint64_t n_slices; /* mask thread */
    struct compiler *compiler;
    struct call_writer calls;
};

/* ---- mask thread ---- */

static bool is_zero(const uint32_t *words, size_t n)
{
    uint32_t all = 0;
    for (size_t i = 0; i < n; i++)
        all |= words[i];
    return all == 0;
}

/* Advances the matcher by the request's token. False: the reply is complete. */
static bool advance_matcher(struct slot *slot)
{
    struct matcher *m = &slot->matcher;
    slot->status = TUTTI_OK;
    if (slot->kind == REQUEST_END || slot->kind == REQUEST_FIRST)
        matcher_clear(m);
    if (slot->kind == REQUEST_END)
        return false;
    if (slot->kind == REQUEST_FIRST) {
        matcher_init(m, slot->grammar);
        grammar_drop(slot->grammar);
    }
    if (!matcher_take(m, slot->token)) {
        enum tutti_status st = matcher_status(m);
        slot->status = st == TUTTI_OK ? TUTTI_E_INTERNAL : st; /* the mask had allowed the token */
        return false;
    }
    return true;
}

/* Computes one slice. True: the reply is complete. */
static bool compute_mask_slice(struct constraints *c, struct slot *slot)
{
    if (!slot->is_begun && !advance_matcher(slot))
        return true;
    slot->is_begun = true;
    if (atomic_load(&slot->is_given_up) || atomic_load(&c->is_stopping)) {
        slot->status = TUTTI_E_CANCELLED;
    } else {
        slot->status = matcher_mask_slice(&slot->matcher, slot->bits, MASK_SLICE_STEPS, NULL);
    }
    if (slot->status == TUTTI_E_BUSY)
        return false;
    slot->is_begun = false;
    slot->can_end = matcher_can_end(&slot->matcher);
    slot->is_empty = is_zero(slot->bits, c->n_words);
    return true;
}

static bool is_requested(const struct slot *slot)
{
    return atomic_load_explicit(&slot->n_requested, memory_order_acquire) !=
           atomic_load_explicit(&slot->n_replied, memory_order_relaxed);
}

/* Updates the slot's owner, because another sequence may use the slot now. */
static void learn_owner(struct constraints *c, struct slot *slot)
{
    if (slot->known_owner == slot->owner)
        return;
    slot->known_owner = slot->owner;
    slot->owner_slice = 0;
    for (int i = 0; i < c->options.max_seqs; i++)
        if (c->slots[i].known_owner == slot->owner && c->slots[i].owner_slice > slot->owner_slice)
            slot->owner_slice = c->slots[i].owner_slice;
}

/* The slot for the next slice; NULL: no mask is requested. */
static struct slot *next_slot(struct constraints *c)
{
    struct slot *next = NULL;
    for (int i = 0; i < c->options.max_seqs; i++) {
        struct slot *slot = &c->slots[i];
        if (!is_requested(slot))
            continue;
        learn_owner(c, slot);
        if (!next || slot->owner_slice < next->owner_slice ||
            (slot->owner_slice == next->owner_slice && slot->own_slice < next->own_slice))
            next = slot;
    }
    return next;
}

static void note_slice(struct constraints *c, struct slot *slot, uint64_t slice)
{
    slot->own_slice = slice;
    for (int i = 0; i < c->options.max_seqs; i++)
        if (c->slots[i].known_owner == slot->known_owner)
            c->slots[i].owner_slice = slice;
}

bool constraint_compute_slice(struct constraints *c)
{
    struct slot *slot = next_slot(c);
    if (!slot)
        return false;
    note_slice(c, slot, ++c->n_slices);
    if (compute_mask_slice(c, slot)) {
        atomic_store_explicit(&slot->n_replied,
                              atomic_load_explicit(&slot->n_requested, memory_order_relaxed),
                              memory_order_release);
        bell_ring(c->options.engine_bell);
    }
    return true;
}

static void *mask_main(void *arg)
{
    struct constraints *c = arg;
    os_name_thread("tutti-mask");
    for (;;) {
        unsigned ticket = bell_ticket(&c->mask_bell);
        if (constraint_compute_slice(c))
            continue;
        if (atomic_load(&c->is_stopping))
            return NULL;
        bell_wait(&c->mask_bell, ticket);
    }
}

void constraint_compile(struct constraints *c, struct request *r)
{
    compiler_add(c->compiler, r);
}

/* ---- engine thread ---- */

static bool is_idle(const struct slot *slot)
{
    return atomic_load_explicit(&slot->n_replied, memory_order_acquire) ==
           atomic_load_explicit(&slot->n_requested, memory_order_relaxed);
}

static void request_mask(struct constraints *c, struct slot *slot, enum mask_request kind,
                         struct grammar *grammar, uint64_t owner, int32_t token)
{
    atomic_store(&slot->is_given_up, false);
    slot->kind = kind;
    slot->owner = owner;
    slot->grammar = kind == REQUEST_FIRST ? grammar_share(grammar) : NULL;
    slot->token = token;
    atomic_store_explicit(&slot->n_requested,
                          atomic_load_explicit(&slot->n_requested, memory_order_relaxed) + 1,
                          memory_order_release);
    c->has_new_requests = true;
}

static void request_or_wait(struct constraints *c, int number, enum mask_request kind,
                            struct grammar *grammar, uint64_t owner, int32_t token)
{
    struct slot *slot = &c->slots[number];
    if (slot->waiting == REQUEST_NONE && is_idle(slot)) {
        request_mask(c, slot, kind, grammar, owner, token);
        return;
    }
    if (kind != REQUEST_TOKEN)
        atomic_store(&slot->is_given_up, true);
    c->n_waiting += slot->waiting == REQUEST_NONE;
    slot->waiting = kind; /* replaces a request of an answer that has ended */
    slot->waiting_grammar = grammar;
    slot->waiting_owner = owner;
    slot->waiting_token = token;
}

void constraint_advance(struct constraints *c, int slot, const struct request *request, int32_t token,
                        bool is_first)
{
    request_or_wait(c, slot, is_first ? REQUEST_FIRST : REQUEST_TOKEN, request->grammar, request->spec.owner,
                    token);
}

void constraint_end(struct constraints *c, int slot)
{
    request_or_wait(c, slot, REQUEST_END, NULL, c->slots[slot].owner, 0);
}

void constraint_flush(struct constraints *c)
{
    for (int i = 0; i < c->options.max_seqs && c->n_waiting > 0; i++) {
        struct slot *slot = &c->slots[i];
        if (slot->waiting == REQUEST_NONE || !is_idle(slot))
            continue;
        enum mask_request kind = slot->waiting;
        slot->waiting = REQUEST_NONE;
        c->n_waiting--;
        request_mask(c, slot, kind, slot->waiting_grammar, slot->waiting_owner, slot->waiting_token);
    }
    if (c->has_new_requests)
        bell_ring(&c->mask_bell);
    c->has_new_requests = false;
}

bool constraint_is_ready(const struct constraints *c, int slot)
{
    return c->slots[slot].waiting == REQUEST_NONE && is_idle(&c->slots[slot]);
}

struct constraint_mask constraint_get(const struct constraints *c, int number, const struct grammar *grammar,
                                      int index)
{
    struct constraint_mask mask = { 0 };
    if (index == 0) {
        mask.bits = grammar_first_mask(grammar, &mask.can_end);
        mask.is_empty = is_zero(mask.bits, c->n_words);
        return mask;
    }
    const struct slot *slot = &c->slots[number];
    return (struct constraint_mask){ slot->bits, slot->can_end, slot->is_empty, slot->status };
}

struct constraint_mask constraint_any(const struct constraints *c)
{
    return (struct constraint_mask){ .bits = c->any };
}

struct constraint_mask constraint_first_or(struct constraints *c, int number, const struct grammar *grammar,
                                           int32_t token)
{
    struct constraint_mask mask = { 0 };
    uint32_t *bits = c->firsts + (size_t)number * c->n_words;
    memcpy(bits, grammar_first_mask(grammar, &mask.can_end), c->n_words * sizeof *bits);
    if (token >= 0 && token < c->options.n_vocab)
        bits[token / 32] |= UINT32_C(1) << token % 32;
    mask.bits = bits;
    mask.is_empty = is_zero(bits, c->n_words);
    return mask;
}

void constraint_explain(enum tutti_status status, struct tutti_error *err)
{
    if (status == TUTTI_E_UNSUPPORTED)
        error_set_param(err, status, "grammar",
                        "the grammar allows no token of this model's vocabulary here");
    else if (status == TUTTI_E_LIMIT)
        error_set_param(err, status, "grammar",
                        "the grammar matches the same text in too many ways, or takes too long to follow");
    else if (status == TUTTI_E_MEMORY)
        error_set(err, status, "token mask: out of memory");
    else
        error_set(err, TUTTI_E_INTERNAL, "token mask: status %s", tutti_status_name(status));
}

/* ---- all together ---- */

static enum tutti_status constraint_reserve(struct constraints *c, struct tutti_error *err)
{
    size_t n_seqs = (size_t)c->options.max_seqs;
    c->n_words = grammar_mask_words(c->options.n_vocab);
    c->slots = calloc(n_seqs, sizeof *c->slots);
    c->masks = calloc(n_seqs * c->n_words + 1, sizeof *c->masks);
    c->firsts = calloc(n_seqs * c->n_words + 1, sizeof *c->firsts);
    c->any = malloc((c->n_words + 1) * sizeof *c->any);
    if (!c->slots || !c->masks || !c->firsts || !c->any)
        return error_set(err, TUTTI_E_MEMORY, "token masks of %d sequences: out of memory",
                         c->options.max_seqs);
    memset(c->any, 0xFF, (c->n_words + 1) * sizeof *c->any);
    for (size_t i = 0; i < n_seqs; i++)
        c->slots[i].bits = c->masks + i * c->n_words;
    return token_trie_new(&c->trie, c->options.tok, c->options.n_vocab, err);
}

enum tutti_status constraints_new(struct constraints **out, const struct constraint_options *options,
                                  struct tutti_error *err)
{
    struct constraints *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, TUTTI_E_MEMORY, "token masks: out of memory");
    c->options = *options;
    enum tutti_status st = constraint_reserve(c, err);
    if (st == TUTTI_OK)
        st = bell_init(&c->mask_bell, err);
    if (st == TUTTI_OK && options->marks)
        st = call_writer_init(&c->calls, options->marks, options->tok, options->stop_ids, options->n_stop_ids,
                              err);
    if (st == TUTTI_OK) {
        struct compiler_options compiling = { .trie = c->trie,
                                              .calls = options->marks ? &c->calls : NULL,
                                              .is_compiled = options->is_compiled,
                                              .user = options->user };
        st = compiler_new(&c->compiler, &compiling, err);
    }
    if (st == TUTTI_OK && !options->has_no_mask_thread) {
        c->has_mask_thread = thread_start(&c->mask_thread, mask_main, c) == 0;
        if (!c->has_mask_thread)
            st = error_set(err, TUTTI_E_MEMORY, "cannot create the token mask thread");
    }
    if (st != TUTTI_OK) {
        constraints_free(c);
        return st;
    }
    *out = c;
    return TUTTI_OK;
}

void constraints_free(struct constraints *c)
{
    if (!c)
        return;
    atomic_store(&c->is_stopping, true);
    if (c->has_mask_thread) {
        bell_ring(&c->mask_bell);
        pthread_join(c->mask_thread, NULL);
    }
    for (int i = 0; c->slots && i < c->options.max_seqs; i++)
        matcher_clear(&c->slots[i].matcher);
    compiler_free(c->compiler);
    bell_clear(&c->mask_bell);
    token_trie_free(c->trie);
    call_writer_clear(&c->calls);
    free(c->masks);
    free(c->firsts);
    free(c->any);
    free(c->slots);
    free(c);
}
