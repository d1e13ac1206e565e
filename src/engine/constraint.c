#include "engine/constraint.h"

#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_CACHED_GRAMMARS = 64,
    MAX_CACHED_BYTES = 256 << 20,
};

enum question { ASK_NOTHING, ASK_TOKEN, ASK_FIRST, ASK_END };

struct slot {
    /* The question: written by the engine thread while answered == asked. */
    atomic_uint asked;
    enum question question;
    struct grammar *grammar; /* ASK_FIRST: a share for the matcher */
    int32_t token;
    /* The answer: written by the mask thread while answered != asked. */
    atomic_uint answered;
    bool can_end, is_empty;
    enum tutti_status status;
    uint32_t *bits;
    /* Mask thread */
    struct matcher matcher;
    /* Engine thread: a question that has to wait, as its fields above */
    enum question waiting;
    struct grammar *waiting_grammar;
    int32_t waiting_token;
};

/* A compiled grammar that is kept; the compiling thread's alone. */
struct cached {
    struct cached *next; /* the one used before this */
    struct grammar *grammar;
    enum tutti_grammar_kind kind;
    size_t n_bytes;
    char text[];
};

struct constraints {
    struct constraint_options options;
    struct token_trie *trie;
    size_t n_words;
    uint32_t *masks; /* [max_seqs][n_words] */
    struct slot *slots;
    int n_waiting;    /* engine thread: slots with a question that has to wait */
    bool has_unheard; /* engine thread: a question was asked since the bell was rung */

    struct bell mask_bell, compile_bell;
    atomic_bool is_stopping;
    pthread_t mask_thread, compile_thread;
    bool has_mask_thread, has_compile_thread, has_lock;

    pthread_mutex_t lock; /* around the line to the compiling thread */
    struct request *head, *tail;
    struct cached *cache;
};

/* ---- mask thread ---- */

static enum grammar_kind kind_of(enum tutti_grammar_kind kind)
{
    return kind == TUTTI_GRAMMAR_GBNF          ? GRAMMAR_GBNF
           : kind == TUTTI_GRAMMAR_JSON_SCHEMA ? GRAMMAR_JSON_SCHEMA
           : kind == TUTTI_GRAMMAR_PATTERN     ? GRAMMAR_PATTERN
                                               : GRAMMAR_JSON_OBJECT;
}

static bool is_zero(const uint32_t *words, size_t n)
{
    uint32_t all = 0;
    for (size_t i = 0; i < n; i++)
        all |= words[i];
    return all == 0;
}

static void answer(struct constraints *c, struct slot *slot)
{
    struct matcher *m = &slot->matcher;
    slot->status = TUTTI_OK;
    if (slot->question == ASK_END || slot->question == ASK_FIRST)
        matcher_clear(m);
    if (slot->question == ASK_END)
        return;
    if (slot->question == ASK_FIRST) {
        matcher_init(m, slot->grammar);
        grammar_drop(slot->grammar);
    }
    if (!matcher_take(m, slot->token)) {
        enum tutti_status st = matcher_status(m);
        slot->status = st == TUTTI_OK ? TUTTI_E_INTERNAL : st; /* the mask allowed it */
        return;
    }
    slot->status = matcher_mask(m, slot->bits, NULL);
    slot->can_end = matcher_can_end(m);
    slot->is_empty = is_zero(slot->bits, c->n_words);
}

static bool answer_all(struct constraints *c)
{
    bool has_answered = false;
    for (int i = 0; i < c->options.max_seqs; i++) {
        struct slot *slot = &c->slots[i];
        unsigned asked = atomic_load_explicit(&slot->asked, memory_order_acquire);
        if (asked == atomic_load_explicit(&slot->answered, memory_order_relaxed))
            continue;
        answer(c, slot);
        atomic_store_explicit(&slot->answered, asked, memory_order_release);
        bell_ring(c->options.engine_bell);
        has_answered = true;
    }
    return has_answered;
}

static void *mask_main(void *arg)
{
    struct constraints *c = arg;
    pthread_setname_np(pthread_self(), "tutti-mask");
    for (;;) {
        unsigned ticket = bell_ticket(&c->mask_bell);
        if (answer_all(c))
            continue;
        if (atomic_load(&c->is_stopping))
            return NULL;
        bell_wait(&c->mask_bell, ticket);
    }
}

/* ---- compiling thread ---- */

static bool is_text_of(const struct cached *entry, const struct tutti_request *spec)
{
    return entry->kind == spec->grammar_kind && entry->n_bytes == spec->n_grammar_bytes &&
           (entry->n_bytes == 0 || memcmp(entry->text, spec->grammar, entry->n_bytes) == 0);
}

static struct cached *find_cached(struct constraints *c, const struct tutti_request *spec)
{
    for (struct cached **at = &c->cache; *at; at = &(*at)->next) {
        struct cached *entry = *at;
        if (!is_text_of(entry, spec))
            continue;
        *at = entry->next;
        entry->next = c->cache;
        c->cache = entry;
        return entry;
    }
    return NULL;
}

/* Those that were not used for longest give way. */
static void shrink_cache(struct constraints *c)
{
    size_t n = 0, n_bytes = 0;
    for (struct cached **at = &c->cache; *at;) {
        struct cached *entry = *at;
        n++;
        n_bytes += grammar_bytes(entry->grammar) + entry->n_bytes;
        if (n <= MAX_CACHED_GRAMMARS && (n_bytes <= MAX_CACHED_BYTES || n == 1)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        grammar_drop(entry->grammar);
        free(entry);
    }
}

/* Without memory it is not kept. */
static void keep(struct constraints *c, struct grammar *grammar, const struct tutti_request *spec)
{
    struct cached *entry = malloc(sizeof *entry + spec->n_grammar_bytes);
    if (!entry)
        return;
    *entry = (struct cached){ .next = c->cache,
                              .grammar = grammar_share(grammar),
                              .kind = spec->grammar_kind,
                              .n_bytes = spec->n_grammar_bytes };
    if (spec->n_grammar_bytes > 0)
        memcpy(entry->text, spec->grammar, spec->n_grammar_bytes);
    c->cache = entry;
    shrink_cache(c);
}

static void compile(struct constraints *c, struct request *r)
{
    const struct tutti_request *spec = &r->spec;
    struct cached *known = find_cached(c, spec);
    if (known) {
        r->grammar = grammar_share(known->grammar);
        return;
    }
    enum tutti_status st = grammar_new(&r->grammar, kind_of(spec->grammar_kind), spec->grammar,
                                       spec->n_grammar_bytes, c->trie, &r->grammar_error);
    if (st == TUTTI_OK)
        keep(c, r->grammar, spec);
}

static struct request *take(struct constraints *c)
{
    pthread_mutex_lock(&c->lock);
    struct request *r = c->head;
    if (r) {
        c->head = r->next;
        if (!c->head)
            c->tail = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

static void *compile_main(void *arg)
{
    struct constraints *c = arg;
    pthread_setname_np(pthread_self(), "tutti-grammar");
    for (;;) {
        unsigned ticket = bell_ticket(&c->compile_bell);
        struct request *r = take(c);
        if (r) {
            if (!atomic_load(&r->is_cancelled))
                compile(c, r);
            c->options.is_compiled(c->options.user, r);
        } else if (atomic_load(&c->is_stopping)) {
            return NULL;
        } else {
            bell_wait(&c->compile_bell, ticket);
        }
    }
}

void constraint_compile(struct constraints *c, struct request *r)
{
    r->next = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->tail)
        c->tail->next = r;
    else
        c->head = r;
    c->tail = r;
    pthread_mutex_unlock(&c->lock);
    bell_ring(&c->compile_bell);
}

/* ---- engine thread ---- */

static bool is_idle(const struct slot *slot)
{
    return atomic_load_explicit(&slot->answered, memory_order_acquire) ==
           atomic_load_explicit(&slot->asked, memory_order_relaxed);
}

static void ask(struct constraints *c, struct slot *slot, enum question question, struct grammar *grammar,
                int32_t token)
{
    slot->question = question;
    slot->grammar = question == ASK_FIRST ? grammar_share(grammar) : NULL;
    slot->token = token;
    atomic_store_explicit(&slot->asked, atomic_load_explicit(&slot->asked, memory_order_relaxed) + 1,
                          memory_order_release);
    c->has_unheard = true;
}

static void ask_or_wait(struct constraints *c, int number, enum question question, struct grammar *grammar,
                        int32_t token)
{
    struct slot *slot = &c->slots[number];
    if (slot->waiting == ASK_NOTHING && is_idle(slot)) {
        ask(c, slot, question, grammar, token);
        return;
    }
    c->n_waiting += slot->waiting == ASK_NOTHING;
    slot->waiting = question; /* in place of one whose answer is over */
    slot->waiting_grammar = grammar;
    slot->waiting_token = token;
}

void constraint_advance(struct constraints *c, int slot, struct grammar *grammar, int32_t token,
                        bool is_first)
{
    ask_or_wait(c, slot, is_first ? ASK_FIRST : ASK_TOKEN, grammar, token);
}

void constraint_end(struct constraints *c, int slot)
{
    ask_or_wait(c, slot, ASK_END, NULL, 0);
}

void constraint_flush(struct constraints *c)
{
    for (int i = 0; i < c->options.max_seqs && c->n_waiting > 0; i++) {
        struct slot *slot = &c->slots[i];
        if (slot->waiting == ASK_NOTHING || !is_idle(slot))
            continue;
        enum question question = slot->waiting;
        slot->waiting = ASK_NOTHING;
        c->n_waiting--;
        ask(c, slot, question, slot->waiting_grammar, slot->waiting_token);
    }
    if (c->has_unheard)
        bell_ring(&c->mask_bell);
    c->has_unheard = false;
}

bool constraint_is_ready(const struct constraints *c, int slot)
{
    return c->slots[slot].waiting == ASK_NOTHING && is_idle(&c->slots[slot]);
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

void constraint_explain(enum tutti_status status, struct tutti_error *err)
{
    if (status == TUTTI_E_UNSUPPORTED)
        error_set_param(err, status, "grammar",
                        "no token of this model's vocabulary goes on as the grammar demands");
    else if (status == TUTTI_E_LIMIT)
        error_set_param(
            err, status, "grammar",
            "the grammar admits the same text in too many ways, or it takes too long to follow them");
    else if (status == TUTTI_E_MEMORY)
        error_set(err, status, "the mask of a grammar: out of memory");
    else
        error_set(err, TUTTI_E_INTERNAL, "the mask of a grammar: status %s", tutti_status_name(status));
}

/* ---- all together ---- */

static enum tutti_status reserve(struct constraints *c, struct tutti_error *err)
{
    size_t n_seqs = (size_t)c->options.max_seqs;
    c->n_words = grammar_mask_words(c->options.n_vocab);
    c->slots = calloc(n_seqs, sizeof *c->slots);
    c->masks = calloc(n_seqs * c->n_words + 1, sizeof *c->masks);
    if (!c->slots || !c->masks)
        return error_set(err, TUTTI_E_MEMORY, "masks of %d sequences: out of memory", c->options.max_seqs);
    for (size_t i = 0; i < n_seqs; i++)
        c->slots[i].bits = c->masks + i * c->n_words;
    return token_trie_new(&c->trie, c->options.tok, c->options.n_vocab, err);
}

static enum tutti_status open_bells(struct constraints *c, struct tutti_error *err)
{
    if (pthread_mutex_init(&c->lock, NULL) != 0)
        return error_set(err, TUTTI_E_MEMORY, "cannot make a lock");
    c->has_lock = true;
    enum tutti_status st = bell_init(&c->mask_bell, err);
    return st == TUTTI_OK ? bell_init(&c->compile_bell, err) : st;
}

enum tutti_status constraints_new(struct constraints **out, const struct constraint_options *options,
                                  struct tutti_error *err)
{
    struct constraints *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, TUTTI_E_MEMORY, "masks: out of memory");
    c->options = *options;
    enum tutti_status st = reserve(c, err);
    if (st == TUTTI_OK)
        st = open_bells(c, err);
    if (st == TUTTI_OK) {
        c->has_mask_thread = thread_start(&c->mask_thread, mask_main, c) == 0;
        c->has_compile_thread = c->has_mask_thread && thread_start(&c->compile_thread, compile_main, c) == 0;
        if (!c->has_compile_thread)
            st = error_set(err, TUTTI_E_MEMORY, "cannot make the threads of grammars");
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
    if (c->has_compile_thread) {
        bell_ring(&c->compile_bell);
        pthread_join(c->compile_thread, NULL);
    }
    for (int i = 0; c->slots && i < c->options.max_seqs; i++)
        matcher_clear(&c->slots[i].matcher);
    for (struct cached *entry = c->cache, *next; entry; entry = next) {
        next = entry->next;
        grammar_drop(entry->grammar);
        free(entry);
    }
    bell_clear(&c->mask_bell);
    bell_clear(&c->compile_bell);
    if (c->has_lock)
        pthread_mutex_destroy(&c->lock);
    token_trie_free(c->trie);
    free(c->masks);
    free(c->slots);
    free(c);
}
