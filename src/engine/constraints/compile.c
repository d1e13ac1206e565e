#include "engine/constraints/compile.h"

#include "base/hash.h"
#include "base/system/clock.h"
#include "base/system/workers.h"
#include "engine/constraints/call_grammar.h"

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

/* A queue with its thread. An attempt compiles a grammar within a number of steps. */
struct compile_queue {
    struct workers *workers;
    int64_t n_steps; /* of an attempt */
    struct compiler *compiler;
};

/* The memory of a client's grammars; lives as long as one of them. */
struct client {
    struct client *next;
    uint64_t owner;
    struct client_memory memory;
};

/* A cached grammar, or a cached refusal. */
struct cached {
    struct cached *next;     /* used less recently */
    struct grammar *grammar; /* NULL: refused */
    struct client *client;   /* the client whose memory it counts in */
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
    pthread_mutex_t lock; /* of everything below */
    bool has_lock;
    struct cached *grammars, *refusals;
    struct client *clients;
    struct memory_pool memory; /* of all existing grammars */
    struct compile_counts counts;
};

/* ---- the cache ---- */

static enum grammar_kind kind_of(enum tutti_grammar_kind kind)
{
    return kind == TUTTI_GRAMMAR_GBNF          ? GRAMMAR_GBNF
           : kind == TUTTI_GRAMMAR_JSON_SCHEMA ? GRAMMAR_JSON_SCHEMA
           : kind == TUTTI_GRAMMAR_PATTERN     ? GRAMMAR_PATTERN
                                               : GRAMMAR_JSON_OBJECT;
}

/* Moves the entry to the front. Under the lock. */
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

static size_t entry_bytes(const struct cached *entry)
{
    return entry->n_bytes + (entry->grammar ? grammar_bytes(entry->grammar) : 0);
}

static void drop_entry(struct cached **at)
{
    struct cached *entry = *at;
    *at = entry->next;
    grammar_drop(entry->grammar);
    free(entry);
}

/* Drops the least recently used entries. Under the lock. */
static void shrink(struct cached **list, size_t max_n, size_t max_bytes)
{
    size_t n = 0, n_bytes = 0;
    for (struct cached **at = list; *at;) {
        struct cached *entry = *at;
        n++;
        n_bytes += entry_bytes(entry);
        if (n <= max_n && (n_bytes <= max_bytes || n == 1))
            at = &entry->next;
        else
            drop_entry(at);
    }
}

/* ---- memory of clients ---- */

/* Finds or creates the client of an owner; it exists at least until client_put(). NULL: out of
 * memory. Under the lock. */
static struct client *client_get(struct compiler *c, uint64_t owner)
{
    struct client *found = NULL;
    for (struct client **at = &c->clients; *at;) {
        struct client *client = *at;
        if (client->owner == owner) {
            found = client;
        } else if (atomic_load(&client->memory.n_grammars) == 0) {
            *at = client->next;
            free(client);
            continue;
        }
        at = &client->next;
    }
    if (!found && (found = calloc(1, sizeof *found))) {
        found->owner = owner;
        found->memory.pool = &c->memory;
        found->next = c->clients;
        c->clients = found;
    }
    if (found)
        atomic_fetch_add(&found->memory.n_grammars, 1);
    return found;
}

static void client_put(struct client *client)
{
    atomic_fetch_sub(&client->memory.n_grammars, 1);
}

static size_t client_bytes(const struct client *client)
{
    return atomic_load(&client->memory.n_bytes);
}

/* Evicts an unused grammar: the least recently used one of the client that holds most. Under the
 * lock. */
static bool evict_unused(struct compiler *c)
{
    struct cached **victim = NULL;
    for (struct cached **at = &c->grammars; *at; at = &(*at)->next)
        if (!grammar_is_shared((*at)->grammar) &&
            (!victim || client_bytes((*at)->client) >= client_bytes((*victim)->client)))
            victim = at;
    if (victim)
        drop_entry(victim);
    return victim != NULL;
}

/* How much memory a client has left, after evicting unused grammars if that helps. Under the lock. */
static enum memory_room compile_make_room(struct compiler *c, const struct client *client)
{
    enum memory_room room;
    do
        room = client_memory_room(&client->memory);
    while (room != ROOM_FOR_ANY && evict_unused(c));
    return room;
}

/* True: the client's request may have this grammar, which is counted in the client's memory
 * already. Under the lock. */
static bool has_room(struct compiler *c, const struct client *client, const struct grammar *grammar)
{
    enum memory_room room = compile_make_room(c, client);
    return room == ROOM_FOR_ANY || (room == ROOM_FOR_SMALL && grammar_bytes(grammar) <= CLIENT_MEMORY_LEAST);
}

static enum tutti_status refuse_for_memory(const struct compiler *c, const struct client *client,
                                           struct request *r)
{
    grammar_drop(r->grammar);
    r->grammar = NULL;
    return error_set(
        &r->grammar_error, TUTTI_E_BUSY,
        "the grammars of your running and waiting requests hold %zu MiB of the %zu MiB for all clients; "
        "try again when some of these requests have ended",
        client_bytes(client) >> 20, c->memory.limit >> 20);
}

static bool is_within(const struct cached *list, size_t max_n, size_t max_bytes)
{
    size_t n = 0, n_bytes = 0;
    for (const struct cached *entry = list; entry; entry = entry->next) {
        n++;
        n_bytes += entry_bytes(entry);
    }
    return n <= max_n && n_bytes <= max_bytes;
}

/* Adds the result to the cache, if there is memory. Under the lock. */
static void cache_result(struct compiler *c, const struct request *r, struct client *client, uint64_t hash)
{
    const struct tutti_request *spec = &r->spec;
    struct cached *entry = malloc(sizeof *entry + spec->n_grammar_bytes);
    struct cached **list = r->grammar ? &c->grammars : &c->refusals;
    if (!entry)
        return;
    *entry = (struct cached){ .grammar = r->grammar ? grammar_share(r->grammar) : NULL,
                              .client = r->grammar ? client : NULL,
                              .error = r->grammar_error,
                              .kind = spec->grammar_kind,
                              .hash = hash,
                              .n_bytes = spec->n_grammar_bytes };
    if (spec->n_grammar_bytes > 0)
        memcpy(entry->text, spec->grammar, spec->n_grammar_bytes);
    entry->next = *list;
    *list = entry;
    while (!is_within(c->grammars, MAX_CACHED_GRAMMARS, MAX_CACHED_BYTES) && evict_unused(c))
        ;
    shrink(&c->grammars, MAX_CACHED_GRAMMARS, MAX_CACHED_BYTES);
    shrink(&c->refusals, MAX_CACHED_REFUSALS, MAX_REFUSAL_BYTES);
}

/* Gives a request a cached grammar. A grammar that was unused counts for this client from now on.
 * False: out of memory. Under the lock. */
static bool use_cached(struct compiler *c, struct request *r, struct cached *entry)
{
    struct client *client = client_get(c, r->spec.owner);
    if (!client)
        return false;
    bool was_unused = !grammar_is_shared(entry->grammar);
    if (was_unused && entry->client != client) {
        grammar_move(entry->grammar, &client->memory);
        entry->client = client;
    }
    r->grammar = grammar_share(entry->grammar);
    if (was_unused && !has_room(c, client, r->grammar))
        (void)refuse_for_memory(c, client, r);
    client_put(client);
    return true;
}

/* Serves a request from the cache. */
static bool is_known(struct compiler *c, struct request *r, uint64_t hash)
{
    pthread_mutex_lock(&c->lock);
    struct cached *grammar = find_cached(&c->grammars, &r->spec, hash);
    const struct cached *refusal = grammar ? NULL : find_cached(&c->refusals, &r->spec, hash);
    bool is_used = grammar && use_cached(c, r, grammar);
    if (refusal)
        r->grammar_error = refusal->error;
    c->counts.n_cached += is_used;
    c->counts.n_cached_refusals += refusal != NULL;
    pthread_mutex_unlock(&c->lock);
    return is_used || refusal;
}

/* ---- attempts ---- */

static bool is_unwanted(void *user)
{
    const struct request *r = user;
    return atomic_load_explicit(&r->is_cancelled, memory_order_relaxed) ||
           (r->deadline_us > 0 && clock_now_us() >= r->deadline_us);
}

/* The client of a request, from client_get(), and its memory left. NULL: the request is refused. */
static struct client *begin_compiling(struct compiler *c, struct request *r, enum memory_room *room)
{
    pthread_mutex_lock(&c->lock);
    struct client *client = client_get(c, r->spec.owner);
    if (!client) {
        error_set(&r->grammar_error, TUTTI_E_MEMORY, "compiling a grammar: out of memory");
    } else if ((*room = compile_make_room(c, client)) == ROOM_FOR_NONE) {
        (void)refuse_for_memory(c, client, r);
        client_put(client);
        client = NULL;
    }
    c->counts.n_refused += client == NULL;
    pthread_mutex_unlock(&c->lock);
    return client;
}

struct calls_text {
    const struct call_writer *writer;
    const struct tutti_request *spec;
};

static enum tutti_status read_calls(void *user, struct syntax *out, struct tutti_error *err)
{
    const struct calls_text *text = user;
    bool has_text = text->spec->grammar_kind == TUTTI_GRAMMAR_TEXT_OR_CALLS;
    return call_grammar_read(text->writer, text->spec->grammar, text->spec->n_grammar_bytes, has_text, out,
                             err);
}

static enum tutti_status compile_grammar(struct compiler *c, struct request *r, struct budget *budget)
{
    const struct tutti_request *spec = &r->spec;
    if (!request_has_calls_grammar(r))
        return grammar_new(&r->grammar, kind_of(spec->grammar_kind), spec->grammar, spec->n_grammar_bytes,
                           c->options.trie, budget, &r->grammar_error);
    if (!c->options.calls)
        return error_set_param(&r->grammar_error, TUTTI_E_ARGUMENT, "tools", "this model has no chat format");
    struct calls_text text = { c->options.calls, spec };
    struct grammar_source source = { .read = read_calls, .user = &text, .param = "tools" };
    return grammar_new_from(&r->grammar, &source, c->options.trie, budget, &r->grammar_error);
}

/* False: the grammar needs more steps than an attempt of this queue has. */
static bool compile_request(struct compile_queue *q, struct request *r, uint64_t hash)
{
    struct compiler *c = q->compiler;
    const struct tutti_request *spec = &r->spec;
    enum memory_room room = ROOM_FOR_NONE;
    struct budget budget;
    struct client *client = begin_compiling(c, r, &room);
    if (!client)
        return true;
    budget_init(&budget, &(struct budget_limits){ .n_steps = q->n_steps,
                                                  .n_bytes = room == ROOM_FOR_ANY ? LIMIT_COMPILE_BYTES
                                                                                  : CLIENT_MEMORY_LEAST,
                                                  .is_unwanted = is_unwanted,
                                                  .user = r,
                                                  .memory = &client->memory });
    enum tutti_status st = compile_grammar(c, r, &budget);
    bool is_too_long = st == TUTTI_E_LIMIT && budget.end == BUDGET_OUT_OF_STEPS && q == &c->queues[QUICK];
    pthread_mutex_lock(&c->lock);
    if (st == TUTTI_OK ? !has_room(c, client, r->grammar)
                       : st == TUTTI_E_LIMIT && room != ROOM_FOR_ANY && budget.end == BUDGET_OUT_OF_BYTES)
        st = refuse_for_memory(c, client, r);
    if (is_too_long || st == TUTTI_E_CANCELLED)
        r->grammar_error = (struct tutti_error){ 0 };
    if (st == TUTTI_OK || (!is_too_long && (st == TUTTI_E_ARGUMENT || st == TUTTI_E_LIMIT)))
        cache_result(c, r, client, hash);
    c->counts.n_quick_attempts += q == &c->queues[QUICK];
    c->counts.n_long_attempts += q == &c->queues[LONG];
    c->counts.n_steps += (uint64_t)budget_steps(&budget);
    c->counts.n_refused += r->grammar_error.status != TUTTI_OK;
    c->counts.n_cancelled += st == TUTTI_E_CANCELLED;
    client_put(client);
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

static void attempt(void *user, struct work_item *item)
{
    struct compile_queue *q = user;
    struct compiler *c = q->compiler;
    struct request *r = (struct request *)(void *)((char *)item - offsetof(struct request, item));
    uint64_t hash = hash64(0, r->spec.grammar, r->spec.n_grammar_bytes);
    if (is_unwanted(r) || is_known(c, r, hash) || compile_request(q, r, hash))
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
        return error_set(err, TUTTI_E_MEMORY, "cannot create a mutex");
    c->has_lock = true;
    enum tutti_status st = TUTTI_OK;
    for (int i = 0; i < N_QUEUES && st == TUTTI_OK; i++) {
        struct compile_queue *q = &c->queues[i];
        const struct workers_options options = {
            .name = "tutti-grammar", .n_threads = 1, .work = attempt, .user = q
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
    for (int i = 0; i < N_QUEUES; i++) /* the quick one first: its thread adds to the long one */
        workers_free(c->queues[i].workers);
    if (c->has_lock) {
        shrink(&c->grammars, 0, 0);
        shrink(&c->refusals, 0, 0);
        pthread_mutex_destroy(&c->lock);
    }
    for (struct client *next; c->clients; c->clients = next) {
        next = c->clients->next;
        free(c->clients);
    }
    free(c);
}
