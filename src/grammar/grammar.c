#include "grammar/grammar.h"

#include "base/ids.h"
#include "grammar/gbnf.h"
#include "grammar/schema/schema.h"
#include "grammar/sets.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEPT_BYTES = 48 << 20, /* of sets and state masks; beyond it they are rebuilt */
    KEPT_MASKS = 64,           /* whole masks of sets */
    FIRST_MASK_SLICE = 200 * 1000,
};

/* The cached mask of a state that reads a byte: the context-independent tokens, and where a walk
 * must continue with the actual stack. */
struct state_mask {
    uint32_t *bits;  /* [words] tokens that end within the rule; NULL: few tokens, listed in */
    int32_t *tokens; /* [n_tokens] those tokens */
    int32_t *exits;  /* [n_exits] nodes with children, after which the rule may be over */
    size_t n_tokens, n_exits, n_bytes;
    int32_t reach; /* stack frames that it needs above the current stack */
};

/* The state mask in progress. The next matcher of this grammar that needs a state mask continues
 * it. */
struct state_walk {
    int32_t state; /* -1: none */
    int32_t node;  /* the next node of the vocabulary trie */
    int32_t reach;
    struct ids tokens, exits;
    int32_t *stack; /* [max depth + 1] sets on the way to the node */
};

/* A cached whole mask, of a set with many rule exits. */
struct kept_mask {
    int32_t set; /* SET_NOT_KNOWN: free */
    uint64_t last_use;
    uint32_t *bits;
};

struct grammar {
    atomic_int n_references;
    const struct token_trie *trie;
    struct automaton *automaton;
    size_t n_words;
    uint32_t *first_mask; /* [n_words] */
    bool first_can_end;

    /* The matchers' thread: */
    struct sets sets;
    int32_t first_set;
    struct state_mask **state_masks; /* [n_states] NULL: not computed yet */
    size_t state_mask_bytes;
    struct kept_mask kept[KEPT_MASKS];
    int n_kept;
    uint64_t n_uses;
    struct matcher *matchers; /* all of them, so that their sets can be moved */
    struct state_walk state_walk;
    int32_t *stack;       /* [max depth + 1] sets on the way of a walk */
    struct budget budget; /* of the current slice */
    atomic_size_t n_bytes;
    struct client_memory *memory; /* NULL, or the client memory that counts the grammar */
};

/* ---- compiling ---- */

static const char *param_of(enum grammar_kind kind)
{
    return kind == GRAMMAR_GBNF || kind == GRAMMAR_PATTERN ? "grammar" : "response_format";
}

struct grammar_text {
    enum grammar_kind kind;
    const char *text;
    size_t n_bytes;
};

static enum tutti_status read_text(void *user, struct syntax *syntax, struct tutti_error *err)
{
    const struct grammar_text *t = user;
    if (t->n_bytes > LIMIT_GRAMMAR_BYTES)
        return error_set_param(err, TUTTI_E_LIMIT, param_of(t->kind),
                               "the grammar has %zu bytes, at most %d are allowed", t->n_bytes,
                               LIMIT_GRAMMAR_BYTES);
    switch (t->kind) {
    case GRAMMAR_GBNF:
        return gbnf_read(syntax, t->text, t->n_bytes, err);
    case GRAMMAR_JSON_SCHEMA:
        return schema_read(syntax, t->text, t->n_bytes, err);
    case GRAMMAR_PATTERN:
        return schema_read_pattern(syntax, t->text, t->n_bytes, err);
    default:
        return schema_any_object(syntax, err);
    }
}

static void begin_slice(struct grammar *g, int64_t n_steps);

static void note_bytes(struct grammar *g)
{
    size_t n = automaton_bytes(g->automaton) + sets_bytes(&g->sets) + g->state_mask_bytes +
               (size_t)g->automaton->n_states * sizeof *g->state_masks +
               (size_t)(g->n_kept + 1) * g->n_words * 4 +
               (g->state_walk.tokens.capacity + g->state_walk.exits.capacity) * 4;
    size_t before = atomic_exchange(&g->n_bytes, n);
    if (g->memory)
        client_memory_grow(g->memory, n - before);
}

static enum tutti_status grammar_reserve(struct grammar *g, struct tutti_error *err)
{
    const struct token_trie *trie = g->trie;
    g->n_words = grammar_mask_words(trie->n_vocab);
    g->first_mask = calloc(g->n_words + 1, sizeof *g->first_mask);
    g->state_masks = calloc((size_t)g->automaton->n_states, sizeof *g->state_masks);
    g->stack = calloc((size_t)trie->max_depth + 2, sizeof *g->stack);
    g->state_walk.stack = calloc((size_t)trie->max_depth + 2, sizeof *g->stack);
    g->state_walk.state = -1;
    if (!g->first_mask || !g->state_masks || !g->stack || !g->state_walk.stack)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    return sets_init(&g->sets, g->automaton, &g->budget, err);
}

/* Sets the error for a failure in the sets. */
static enum tutti_status explain(const struct grammar *g, struct tutti_error *err)
{
    switch (g->sets.status) {
    case TUTTI_OK:
        return TUTTI_OK;
    case TUTTI_E_LIMIT:
        return error_set(
            err, TUTTI_E_LIMIT,
            "the grammar admits the same text in too many ways, or has too many alternatives in one "
            "place: more than %d at a time; shorten its lists of alternatives (enum, anyOf, |)",
            MAX_PLACES);
    default:
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    }
}

/* The first mask is part of compiling, in its slices. */
static enum tutti_status find_first_mask(struct grammar *g, struct budget *budget, struct tutti_error *err)
{
    struct matcher first;
    enum tutti_status st;
    matcher_init(&first, g);
    do {
        st = matcher_mask_slice(&first, g->first_mask, FIRST_MASK_SLICE, err);
        if (!budget_spend(budget, budget_steps(&g->budget)))
            st = budget_explain(budget, err);
    } while (st == TUTTI_E_BUSY);
    g->first_can_end = matcher_can_end(&first);
    matcher_clear(&first);
    return st;
}

static enum tutti_status grammar_begin(struct grammar *g, struct budget *budget, struct tutti_error *err)
{
    g->first_set = sets_close(&g->sets, g->automaton->start, STACK_EMPTY);
    enum tutti_status st = explain(g, err);
    return st == TUTTI_OK ? find_first_mask(g, budget, err) : st;
}

static enum tutti_status compile(struct grammar *g, const struct grammar_source *source,
                                 struct budget *budget, struct tutti_error *err)
{
    struct syntax syntax = { .budget = budget };
    enum tutti_status st = source->read(source->user, &syntax, err);
    if (st == TUTTI_OK)
        st = automaton_new(&g->automaton, &syntax, err);
    syntax_clear(&syntax);
    if (st == TUTTI_OK)
        st = grammar_reserve(g, err);
    return st == TUTTI_OK ? grammar_begin(g, budget, err) : st;
}

enum tutti_status grammar_new_from(struct grammar **out, const struct grammar_source *source,
                                   const struct token_trie *trie, struct budget *budget,
                                   struct tutti_error *err)
{
    static const struct budget_limits LIMITS = { .n_steps = LIMIT_COMPILE_STEPS,
                                                 .n_bytes = LIMIT_COMPILE_BYTES };
    struct budget own;
    struct grammar *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    budget_init(&own, &LIMITS);
    atomic_init(&g->n_references, 1);
    g->trie = trie;
    g->memory = budget ? budget->limits.memory : NULL;
    if (g->memory)
        atomic_fetch_add(&g->memory->n_grammars, 1);
    begin_slice(g, LIMIT_MASK_STEPS);
    enum tutti_status st = compile(g, source, budget ? budget : &own, err);
    if (st == TUTTI_OK) {
        note_bytes(g);
        *out = g;
        g = NULL;
    } else if (err && source->param && st != TUTTI_E_MEMORY) {
        snprintf(err->param, sizeof err->param, "%s", source->param);
    }
    grammar_drop(g);
    return st;
}

enum tutti_status grammar_new(struct grammar **out, enum grammar_kind kind, const char *text, size_t n_bytes,
                              const struct token_trie *trie, struct budget *budget, struct tutti_error *err)
{
    struct grammar_text own = { kind, text, n_bytes };
    struct grammar_source source = { read_text, &own, param_of(kind) };
    return grammar_new_from(out, &source, trie, budget, err);
}

struct grammar *grammar_share(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->n_references, 1, memory_order_relaxed);
    return g;
}

static void state_mask_free(struct state_mask *v)
{
    if (!v)
        return;
    free(v->bits);
    free(v->tokens);
    free(v->exits);
    free(v);
}

static void drop_state_masks(struct grammar *g)
{
    for (int32_t i = 0; g->state_masks && i < g->automaton->n_states; i++) {
        state_mask_free(g->state_masks[i]);
        g->state_masks[i] = NULL;
    }
    g->state_mask_bytes = 0;
}

static void leave_memory(struct grammar *g)
{
    client_memory_grow(g->memory, 0 - grammar_bytes(g));
    atomic_fetch_sub(&g->memory->n_grammars, 1); /* the last access: the struct may be gone now */
}

void grammar_drop(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->n_references, 1, memory_order_acq_rel) > 1)
        return;
    if (g->automaton)
        drop_state_masks(g);
    if (g->memory)
        leave_memory(g);
    for (int i = 0; i < KEPT_MASKS; i++)
        free(g->kept[i].bits);
    sets_clear(&g->sets);
    automaton_free(g->automaton);
    free(g->state_masks);
    free(g->first_mask);
    free(g->stack);
    free(g->state_walk.stack);
    ids_clear(&g->state_walk.tokens);
    ids_clear(&g->state_walk.exits);
    free(g);
}

bool grammar_is_shared(const struct grammar *g)
{
    return atomic_load_explicit(&g->n_references, memory_order_acquire) > 1;
}

size_t grammar_bytes(const struct grammar *g)
{
    return atomic_load(&g->n_bytes);
}

void grammar_move(struct grammar *g, struct client_memory *memory)
{
    atomic_fetch_add(&memory->n_grammars, 1);
    client_memory_grow(memory, grammar_bytes(g));
    leave_memory(g);
    g->memory = memory;
}

const uint32_t *grammar_first_mask(const struct grammar *g, bool *can_end)
{
    *can_end = g->first_can_end;
    return g->first_mask;
}

/* ---- memory ---- */

/* Copies a stack to other frames; -1: out of memory. */
static int32_t move_stack(const struct sets *from, struct sets *to, int32_t stack)
{
    int32_t states[MAX_STACK_DEPTH], n = 0;
    for (; stack > STACK_UNKNOWN; stack = from->frames[stack].below)
        states[n++] = from->frames[stack].state;
    while (n > 0 && stack >= 0)
        stack = sets_push(to, stack, states[--n]);
    return stack;
}

static int32_t move_set(const struct sets *from, struct sets *to, int32_t set)
{
    const struct set *old = &from->sets[set];
    for (int32_t i = 0; i < old->n; i++) {
        struct grammar_position at = from->places[old->first + i];
        at.stack = move_stack(from, to, at.stack);
        if (at.stack < 0)
            return SET_DEAD;
        to->found[i] = at;
    }
    int32_t moved = sets_intern(to, to->found, (size_t)old->n, old->can_end, old->escapes);
    if (moved != SET_DEAD)
        to->sets[moved].reach = old->reach;
    return moved;
}

/* Drops all caches, except the positions of the matchers and of the state mask in progress.
 * False: out of memory; nothing has changed. */
static bool drop_caches(struct grammar *g)
{
    struct sets fresh;
    struct state_walk *q = &g->state_walk;
    int n_open = q->state < 0 ? 0 : q->node < g->trie->n_nodes ? g->trie->depth[q->node] : 1;
    if (sets_init(&fresh, g->automaton, &g->budget, NULL) != TUTTI_OK)
        return false;
    int32_t first = move_set(&g->sets, &fresh, g->first_set);
    for (struct matcher *m = g->matchers; m; m = m->next)
        (void)move_set(&g->sets, &fresh, m->set);
    for (int i = 0; i < n_open; i++)
        (void)move_set(&g->sets, &fresh, q->stack[i]);
    if (fresh.status != TUTTI_OK) {
        sets_clear(&fresh);
        return false;
    }
    for (struct matcher *m = g->matchers; m; m = m->next) { /* all exist: only looked up */
        m->set = move_set(&g->sets, &fresh, m->set);
        m->progress.place = m->progress.rule_exit = m->progress
                                                        .node = 0; /* places may have changed their order */
    }
    for (int i = 0; i < n_open; i++)
        q->stack[i] = move_set(&g->sets, &fresh, q->stack[i]);
    sets_clear(&g->sets);
    g->sets = fresh;
    g->first_set = first;
    drop_state_masks(g);
    for (int i = 0; i < KEPT_MASKS; i++)
        g->kept[i].set = SET_NOT_KNOWN;
    return true;
}

static void begin_slice(struct grammar *g, int64_t n_steps)
{
    budget_init(&g->budget, &(struct budget_limits){ .n_steps = n_steps, .n_bytes = INT64_MAX });
}

static void begin_work(struct grammar *g, int64_t n_steps)
{
    g->sets.status = TUTTI_OK;
    begin_slice(g, INT64_MAX);
    bool has_room = !g->memory || client_memory_room(g->memory) == ROOM_FOR_ANY;
    if (sets_bytes(&g->sets) + g->state_mask_bytes > (has_room ? MAX_KEPT_BYTES : LEAST_KEPT_BYTES))
        (void)drop_caches(g); /* otherwise continue with the memory there is */
    begin_slice(g, n_steps);
}

/* ---- masks ---- */

static inline void allow(uint32_t *mask, int32_t token)
{
    mask[token >> 5] |= 1u << (token & 31);
}

static void allow_node(const struct grammar *g, int32_t node, uint32_t *mask)
{
    const struct token_trie *trie = g->trie;
    for (int32_t i = trie->first_token[node]; i < trie->first_token[node + 1]; i++)
        allow(mask, trie->sorted[i]);
}

enum { STEPS_PER_COST = 8 }; /* a table look-up costs an eighth of a visited place */

/* Whether the walk may continue after n_visited nodes. */
static bool goes_on(struct grammar *g, int32_t n_visited)
{
    if (n_visited % STEPS_PER_COST == 0)
        budget_spend(&g->budget, 1);
    return !budget_is_over(&g->budget) && g->sets.status == TUTTI_OK;
}

/* Recomputes the sets on the path from a node to the one before node, as walk() left them. */
static void recompute_path(struct grammar *g, int32_t from, int32_t node)
{
    const struct token_trie *trie = g->trie;
    for (int32_t at = from; g->sets.status == TUTTI_OK;) {
        int32_t child = at + 1;
        while (trie->end[child] <= node)
            child = trie->end[child];
        if (child == node)
            return;
        g->stack[trie->depth[child]] = sets_step(&g->sets, g->stack[trie->depth[at]], trie->byte[child]);
        at = child;
    }
}

/* Walks the trie below a node, from the set that the bytes up to it lead to, and allows the
 * accepted tokens. False: to be continued from p->node, or failed with sets.status. */
static bool walk(struct grammar *g, struct mask_progress *p, int32_t from, int32_t set, uint32_t *mask)
{
    const struct token_trie *trie = g->trie;
    int32_t end = trie->end[from], i = p->node > 0 ? p->node : from + 1, n_visited = 0;
    if (set == SET_DEAD)
        return g->sets.status == TUTTI_OK;
    g->stack[trie->depth[from]] = set;
    if (p->node > 0)
        recompute_path(g, from, p->node);
    while (i < end) {
        if (!goes_on(g, ++n_visited)) {
            p->node = i;
            return false;
        }
        int32_t next = sets_step(&g->sets, g->stack[trie->depth[i] - 1], trie->byte[i]);
        if (next == SET_DEAD) {
            i = g->sets.status == TUTTI_OK ? trie->end[i] : i;
            continue;
        }
        allow_node(g, i, mask);
        g->stack[trie->depth[i]] = next;
        i++;
    }
    p->node = 0;
    return g->sets.status == TUTTI_OK;
}

/* Continues the walk through the whole vocabulary from one state with an unknown stack. False: as
 * walk(). */
static bool walk_state(struct grammar *g)
{
    const struct token_trie *trie = g->trie;
    struct state_walk *q = &g->state_walk;
    int32_t n_visited = 0;
    while (q->node < trie->n_nodes) {
        int32_t i = q->node;
        if (!goes_on(g, ++n_visited))
            return false;
        int32_t next = sets_step(&g->sets, q->stack[trie->depth[i] - 1], trie->byte[i]);
        if (next == SET_DEAD) {
            q->node = g->sets.status == TUTTI_OK ? trie->end[i] : i;
            continue;
        }
        const struct set *set = &g->sets.sets[next];
        int32_t first = trie->first_token[i];
        bool ok = ids_add_all(&q->tokens, trie->sorted + first, (size_t)(trie->first_token[i + 1] - first)) &&
                  (!set->escapes || trie->end[i] == i + 1 || ids_add(&q->exits, i));
        if (!ok) {
            g->sets.status = TUTTI_E_MEMORY;
            return false;
        }
        if (set->reach > q->reach)
            q->reach = set->reach;
        q->stack[trie->depth[i]] = next;
        q->node++;
    }
    return g->sets.status == TUTTI_OK;
}

static void begin_state_walk(struct grammar *g, int32_t state)
{
    struct state_walk *q = &g->state_walk;
    g->sets.found[0] = (struct grammar_position){ state, STACK_UNKNOWN };
    int32_t set = sets_intern(&g->sets, g->sets.found, 1, false, false);
    if (g->sets.status != TUTTI_OK)
        return;
    q->state = state;
    q->node = 1;
    q->reach = g->automaton->needs[state];
    q->tokens.n = q->exits.n = 0;
    q->stack[0] = set;
}

/* Frees its lists if they are long; most are short. */
static void end_state_walk(struct grammar *g)
{
    enum { SHORT = 1024 };
    struct state_walk *q = &g->state_walk;
    q->state = -1;
    if (q->tokens.capacity > SHORT)
        ids_clear(&q->tokens);
    if (q->exits.capacity > SHORT)
        ids_clear(&q->exits);
}

/* Stores the result of the walk as a state mask. */
static void store_state_mask(struct grammar *g)
{
    const struct state_walk *q = &g->state_walk;
    size_t n_tokens = q->tokens.n, n_exits = q->exits.n;
    struct state_mask *v = calloc(1, sizeof *v);
    bool has_bits = n_tokens > g->n_words;
    if (v) {
        *v = (struct state_mask){ .n_tokens = n_tokens, .n_exits = n_exits, .reach = q->reach };
        v->n_bytes = sizeof *v + n_exits * sizeof *v->exits +
                     (has_bits ? g->n_words : n_tokens) * sizeof *v->bits;
        v->exits = malloc(n_exits * sizeof *v->exits + 1);
        v->bits = has_bits ? calloc(g->n_words, sizeof *v->bits) : NULL;
        v->tokens = has_bits ? NULL : malloc(n_tokens * sizeof *v->tokens + 1);
    }
    if (!v || !v->exits || (!v->bits && !v->tokens)) {
        state_mask_free(v);
        g->sets.status = TUTTI_E_MEMORY;
        return;
    }
    if (n_exits > 0)
        memcpy(v->exits, q->exits.ids, n_exits * sizeof *v->exits);
    for (size_t i = 0; i < n_tokens && v->bits; i++)
        allow(v->bits, q->tokens.ids[i]);
    if (v->tokens && n_tokens > 0)
        memcpy(v->tokens, q->tokens.ids, n_tokens * sizeof *v->tokens);
    g->state_masks[q->state] = v;
    g->state_mask_bytes += v->n_bytes;
}

/* NULL: to be continued, or failed with sets.status. */
static const struct state_mask *state_mask_of(struct grammar *g, int32_t state)
{
    struct state_walk *q = &g->state_walk;
    while (!g->state_masks[state]) {
        if (q->state < 0)
            begin_state_walk(g, state);
        bool is_own = q->state == state;
        bool is_done = q->state >= 0 && walk_state(g);
        if (is_done)
            store_state_mask(g);
        bool has_failed = g->sets.status != TUTTI_OK;
        if (is_done || has_failed)
            end_state_walk(g);
        if (has_failed && is_own)
            return NULL;
        if (has_failed) /* of another state: reported where that state is needed */
            g->sets.status = TUTTI_OK;
        if (budget_is_over(&g->budget) && !g->state_masks[state])
            return NULL;
    }
    return g->state_masks[state];
}

/* False: as walk(). */
static bool add_place(struct grammar *g, struct mask_progress *p, struct grammar_position at, uint32_t *mask)
{
    const struct state_mask *v = state_mask_of(g, at.state);
    if (!v)
        return false;
    if (g->sets.frames[at.stack].depth + v->reach > MAX_STACK_DEPTH) { /* not valid at this stack depth */
        g->sets.found[0] = at;
        int32_t set = sets_intern(&g->sets, g->sets.found, 1, false, false);
        p->n_exits += g->trie->n_nodes;
        return walk(g, p, 0, set, mask);
    }
    budget_spend(&g->budget, (int64_t)(1 + (v->bits ? g->n_words : v->n_tokens) / 64));
    for (size_t i = 0; v->bits && i < g->n_words; i++)
        mask[i] |= v->bits[i];
    for (size_t i = 0; !v->bits && i < v->n_tokens; i++)
        allow(mask, v->tokens[i]);
    if (at.stack == STACK_EMPTY || v->n_exits == 0)
        return true;
    const struct grammar_frame *frame = &g->sets.frames[at.stack];
    int32_t outside = sets_close(&g->sets, frame->state, frame->below);
    for (; (size_t)p->rule_exit < v->n_exits; p->rule_exit++)
        if (!walk(g, p, v->exits[p->rule_exit], outside, mask))
            return false;
    p->n_exits += (int64_t)v->n_exits;
    p->rule_exit = 0;
    return g->sets.status == TUTTI_OK;
}

static struct kept_mask *find_kept(struct grammar *g, int32_t set)
{
    for (int i = 0; i < KEPT_MASKS; i++)
        if (g->kept[i].set == set)
            return &g->kept[i];
    return NULL;
}

/* Caches an expensive mask, replacing the least recently used one. Without memory it is not
 * cached. */
static void keep_mask(struct grammar *g, int32_t set, const uint32_t *mask)
{
    struct kept_mask *oldest = &g->kept[0];
    for (int i = 1; i < KEPT_MASKS; i++)
        if (g->kept[i].last_use < oldest->last_use)
            oldest = &g->kept[i];
    if (!oldest->bits) {
        oldest->bits = malloc((g->n_words + 1) * sizeof *oldest->bits);
        g->n_kept += oldest->bits != NULL;
    }
    if (!oldest->bits)
        return;
    memcpy(oldest->bits, mask, g->n_words * sizeof *mask);
    oldest->set = set;
    oldest->last_use = ++g->n_uses;
}

static enum tutti_status too_long(struct tutti_error *err)
{
    return error_set(err, TUTTI_E_LIMIT,
                     "the grammar admits the same text in too many ways: a mask takes more than %d steps",
                     LIMIT_MASK_STEPS);
}

enum tutti_status matcher_mask_slice(struct matcher *m, uint32_t *mask, int64_t n_steps,
                                     struct tutti_error *err)
{
    enum { DEAR = 512 }; /* exits; a walk beyond one costs about 20 ns, a cached mask 2 us and a few KB */
    struct grammar *g = m->grammar;
    struct mask_progress *p = &m->progress;
    begin_work(g, n_steps);
    struct kept_mask *kept = p->is_begun ? NULL : find_kept(g, m->set);
    if (kept) {
        memcpy(mask, kept->bits, g->n_words * sizeof *mask);
        kept->last_use = ++g->n_uses;
        return TUTTI_OK;
    }
    if (!p->is_begun) {
        memset(mask, 0, g->n_words * sizeof *mask);
        *p = (struct mask_progress){ .is_begun = true };
    }
    struct set set = g->sets.sets[m->set];
    while (p->place < set.n && add_place(g, p, g->sets.places[set.first + p->place], mask))
        p->place++;
    p->n_steps += budget_steps(&g->budget);
    note_bytes(g);
    bool is_done = p->place == set.n, has_failed = g->sets.status != TUTTI_OK;
    if (!is_done && !has_failed && p->n_steps <= LIMIT_MASK_STEPS)
        return TUTTI_E_BUSY;
    p->is_begun = false;
    if (has_failed)
        return explain(g, err);
    if (!is_done)
        return too_long(err);
    if (p->n_exits > DEAR)
        keep_mask(g, m->set, mask);
    return TUTTI_OK;
}

/* ---- matchers ---- */

void matcher_init(struct matcher *m, struct grammar *g)
{
    *m = (struct matcher){
        .grammar = grammar_share(g), .set = g->first_set, .next = g->matchers, .link = &g->matchers
    };
    if (m->next)
        m->next->link = &m->next;
    g->matchers = m;
}

void matcher_clear(struct matcher *m)
{
    if (!m->grammar)
        return;
    *m->link = m->next;
    if (m->next)
        m->next->link = m->link;
    grammar_drop(m->grammar);
    *m = (struct matcher){ 0 };
}

bool matcher_take_bytes(struct matcher *m, const char *bytes, size_t n_bytes)
{
    struct grammar *g = m->grammar;
    begin_work(g, LIMIT_TOKEN_STEPS);
    int32_t set = m->set;
    for (size_t i = 0; i < n_bytes && set != SET_DEAD; i++) {
        set = sets_step(&g->sets, set, (uint8_t)bytes[i]);
        if (budget_is_over(&g->budget) && g->sets.status == TUTTI_OK)
            g->sets.status = TUTTI_E_LIMIT;
    }
    if (set == SET_DEAD || g->sets.status != TUTTI_OK)
        return false;
    m->set = set;
    m->progress.is_begun = false;
    return true;
}

bool matcher_take(struct matcher *m, int32_t token)
{
    const struct token_trie *trie = m->grammar->trie;
    if (token < 0 || token >= trie->n_vocab)
        return false;
    size_t n_bytes;
    const char *bytes = token_trie_bytes(trie, token, &n_bytes);
    return n_bytes > 0 && matcher_take_bytes(m, bytes, n_bytes);
}

enum tutti_status matcher_status(const struct matcher *m)
{
    return m->grammar->sets.status;
}

bool matcher_can_end(const struct matcher *m)
{
    return m->grammar->sets.sets[m->set].can_end;
}
