#include "engine/compile.h"

#include "base/clock.h"
#include "base/workers.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CACHED_GRAMMARS = 64,
    MAX_CACHED_BYTES = COMPILE_SHARED_BYTES / 2,
    MAX_CACHED_REFUSALS = 256,
    MAX_REFUSAL_BYTES = 16 << 20,
};

/* Turns of one length, taken by one thread. */
struct compile_queue {
    struct workers *workers;
    int64_t n_steps; /* of a turn */
    struct compiler *compiler;
};

/* A compiled grammar that is kept, or the refusal of one. */
struct cached {
    struct cached *next;     /* the one used before this */
    struct grammar *grammar; /* NULL: refused */
    struct tutti_error error;
    enum tutti_grammar_kind kind;
    uint64_t hash;
    size_t n_bytes;
    char text[];
};

enum { QUICK, LONG, N_QUEUES };

struct compiler {
    struct compiler_options options;
    struct compile_queue queues[N_QUEUES];
    pthread_mutex_t lock; /* around all below */
    bool has_lock;
    struct cached *grammars, *refusals;
    struct shared_memory memory; /* of all grammars that live */
    struct compile_counts counts;
};

/* ---- what is kept ---- */

static enum grammar_kind kind_of(enum tutti_grammar_kind kind)
{
    return kind == TUTTI_GRAMMAR_GBNF          ? GRAMMAR_GBNF
           : kind == TUTTI_GRAMMAR_JSON_SCHEMA ? GRAMMAR_JSON_SCHEMA
           : kind == TUTTI_GRAMMAR_PATTERN     ? GRAMMAR_PATTERN
                                               : GRAMMAR_JSON_OBJECT;
}

static uint64_t hash_text(const char *text, size_t n_bytes)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n_bytes; i++)
        h = (h ^ (uint8_t)text[i]) * 1099511628211u;
    return h;
}

/* Under the lock. Moves what it finds to the front. */
static struct cached *find_cached(struct cached **list, const struct tutti_request *spec, uint64_t hash)
{
    for (struct cached **at = list; *at; at = &(*at)->next) {
        struct cached *entry = *at;
        if (entry->hash != hash || entry->kind != spec->grammar_kind ||
            entry->n_bytes != spec->n_grammar_bytes ||
            (entry->n_bytes > 0 && memcmp(entry->text, spec->grammar, entry->n_bytes) != 0))
            continue;
        *at = entry->next;
        entry->next = *list;
        *list = entry;
        return entry;
    }
    return NULL;
}

/* Those that were not used for longest give way. Under the lock. */
static void shrink(struct cached **list, size_t max_n, size_t max_bytes)
{
    size_t n = 0, n_bytes = 0;
    for (struct cached **at = list; *at;) {
        struct cached *entry = *at;
        n++;
        n_bytes += entry->n_bytes + (entry->grammar ? grammar_bytes(entry->grammar) : 0);
        if (n <= max_n && (n_bytes <= max_bytes || n == 1)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        grammar_drop(entry->grammar);
        free(entry);
    }
}

/* Drops grammars that are kept, until there is memory for more. False: others are in use. */
static bool make_room(struct compiler *c)
{
    if (atomic_load(&c->memory.n_bytes) <= c->memory.limit)
        return true;
    pthread_mutex_lock(&c->lock);
    shrink(&c->grammars, 0, 0);
    pthread_mutex_unlock(&c->lock);
    return atomic_load(&c->memory.n_bytes) <= c->memory.limit;
}

/* Without memory it is not kept. */
static void keep(struct compiler *c, const struct request *r, uint64_t hash)
{
    const struct tutti_request *spec = &r->spec;
    struct cached *entry = malloc(sizeof *entry + spec->n_grammar_bytes);
    struct cached **list = r->grammar ? &c->grammars : &c->refusals;
    if (!entry)
        return;
    *entry = (struct cached){ .grammar = r->grammar ? grammar_share(r->grammar) : NULL,
                              .error = r->grammar_error,
                              .kind = spec->grammar_kind,
                              .hash = hash,
                              .n_bytes = spec->n_grammar_bytes };
    if (spec->n_grammar_bytes > 0)
        memcpy(entry->text, spec->grammar, spec->n_grammar_bytes);
    pthread_mutex_lock(&c->lock);
    entry->next = *list;
    *list = entry;
    shrink(&c->grammars, MAX_CACHED_GRAMMARS, MAX_CACHED_BYTES);
    shrink(&c->refusals, MAX_CACHED_REFUSALS, MAX_REFUSAL_BYTES);
    pthread_mutex_unlock(&c->lock);
}

/* Answers a request by what is kept. */
static bool is_known(struct compiler *c, struct request *r, uint64_t hash)
{
    pthread_mutex_lock(&c->lock);
    const struct cached *grammar = find_cached(&c->grammars, &r->spec, hash);
    const struct cached *refusal = grammar ? NULL : find_cached(&c->refusals, &r->spec, hash);
    if (grammar)
        r->grammar = grammar_share(grammar->grammar);
    if (refusal)
        r->grammar_error = refusal->error;
    c->counts.n_cached += grammar != NULL;
    c->counts.n_cached_refusals += refusal != NULL;
    pthread_mutex_unlock(&c->lock);
    return grammar || refusal;
}

/* ---- turns ---- */

static bool is_unwanted(void *user)
{
    const struct request *r = user;
    return atomic_load_explicit(&r->is_cancelled, memory_order_relaxed) ||
           (r->deadline_us > 0 && clock_now_us() >= r->deadline_us);
}

/* False: the turn's steps were not enough. */
static bool compile(struct compile_queue *q, struct request *r, uint64_t hash)
{
    struct compiler *c = q->compiler;
    const struct tutti_request *spec = &r->spec;
    struct budget budget;
    bool is_full = !make_room(c);
    budget_init(&budget,
                &(struct budget_limits){ .n_steps = q->n_steps,
                                         .n_bytes = is_full ? COMPILE_LEAST_BYTES : LIMIT_COMPILE_BYTES,
                                         .is_unwanted = is_unwanted,
                                         .user = r,
                                         .memory = &c->memory });
    enum tutti_status st = grammar_new(&r->grammar, kind_of(spec->grammar_kind), spec->grammar,
                                       spec->n_grammar_bytes, c->options.trie, &budget, &r->grammar_error);
    bool is_too_long = st == TUTTI_E_LIMIT && budget.end == BUDGET_OUT_OF_STEPS && q == &c->queues[QUICK];
    if (st == TUTTI_E_LIMIT && is_full && budget.end == BUDGET_OUT_OF_BYTES)
        st = error_set(
            &r->grammar_error, TUTTI_E_BUSY,
            "grammars of requests that run and wait take %zu MiB; try again when some of them have ended",
            c->memory.limit >> 20);
    if (is_too_long || st == TUTTI_E_CANCELLED)
        r->grammar_error = (struct tutti_error){ 0 };
    if (st == TUTTI_OK || (!is_too_long && (st == TUTTI_E_ARGUMENT || st == TUTTI_E_LIMIT)))
        keep(c, r, hash);
    pthread_mutex_lock(&c->lock);
    c->counts.n_quick_turns += q == &c->queues[QUICK];
    c->counts.n_long_turns += q == &c->queues[LONG];
    c->counts.n_steps += (uint64_t)budget_steps(&budget);
    c->counts.n_refused += r->grammar_error.status != TUTTI_OK;
    c->counts.n_cancelled += st == TUTTI_E_CANCELLED;
    pthread_mutex_unlock(&c->lock);
    workers_charge(q->workers, spec->owner, (uint64_t)budget_steps(&budget));
    return !is_too_long;
}

static void enqueue(struct compile_queue *q, struct request *r)
{
    r->item.cost = 1 + r->spec.n_grammar_bytes;
    if (workers_add(q->workers, r->spec.owner, &r->item))
        return;
    error_set(&r->grammar_error, TUTTI_E_MEMORY, "compiling a grammar: out of memory");
    q->compiler->options.is_compiled(q->compiler->options.user, r);
}

static void take_turn(void *user, struct work_item *item)
{
    struct compile_queue *q = user;
    struct compiler *c = q->compiler;
    struct request *r = (struct request *)(void *)((char *)item - offsetof(struct request, item));
    uint64_t hash = hash_text(r->spec.grammar, r->spec.n_grammar_bytes);
    if (is_unwanted(r) || is_known(c, r, hash) || compile(q, r, hash))
        c->options.is_compiled(c->options.user, r);
    else
        enqueue(&c->queues[LONG], r);
}

void compiler_add(struct compiler *c, struct request *r)
{
    enqueue(&c->queues[QUICK], r);
}

void compiler_counts(struct compiler *c, struct compile_counts *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->counts;
    pthread_mutex_unlock(&c->lock);
}

/* ---- all together ---- */

static enum tutti_status start(struct compiler *c, struct tutti_error *err)
{
    int64_t long_steps = c->options.long_steps > 0 ? c->options.long_steps : LIMIT_COMPILE_STEPS;
    if (pthread_mutex_init(&c->lock, NULL) != 0)
        return error_set(err, TUTTI_E_MEMORY, "cannot make a lock");
    c->has_lock = true;
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < N_QUEUES && st == TUTTI_OK; i++) {
        struct compile_queue *q = &c->queues[i];
        const struct workers_options options = {
            .name = "tutti-grammar", .n_threads = 1, .work = take_turn, .user = q
        };
        q->compiler = c;
        q->n_steps = i == QUICK ? COMPILE_QUICK_STEPS : long_steps;
        st = workers_new(&q->workers, &options, err);
    }
    return st;
}

enum tutti_status compiler_new(struct compiler **out, const struct compiler_options *options,
                               struct tutti_error *err)
{
    struct compiler *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, TUTTI_E_MEMORY, "grammars: out of memory");
    c->options = *options;
    c->memory.limit = options->shared_bytes > 0 ? options->shared_bytes : COMPILE_SHARED_BYTES;
    enum tutti_status st = start(c, err);
    if (st == TUTTI_OK)
        *out = c;
    else
        compiler_free(c);
    return st;
}

void compiler_free(struct compiler *c)
{
    if (!c)
        return;
    for (int i = 0; i < N_QUEUES; i++) /* the quick one first: it hands on to the long one */
        workers_free(c->queues[i].workers);
    if (c->has_lock) {
        shrink(&c->grammars, 0, 0);
        shrink(&c->refusals, 0, 0);
        pthread_mutex_destroy(&c->lock);
    }
    free(c);
}
