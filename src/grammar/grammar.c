#include "grammar/grammar.h"

#include "grammar/gbnf.h"
#include "grammar/schema.h"
#include "grammar/sets.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEPT_BYTES = 48 << 20, /* of sets and of what states say; beyond it they are made anew */
    KEPT_MASKS = 64,           /* whole masks of sets */
    BUDGET_OF_A_MASK = 8 * 1000 *
                       1000, /* about a second where everything is new; usual ones need some thousands */
};

/* What a state that reads a byte says about the vocabulary, whatever stands on the stack. */
struct verdict {
    uint32_t *bits;    /* [words] the tokens that are read to their end within the rule; NULL: few, then */
    int32_t *tokens;   /* [n_tokens] these are they */
    int32_t *leavings; /* [n_leavings] nodes with children, behind which the rule may be over */
    size_t n_tokens, n_leavings, n_bytes;
};

/* The mask of a set whose tokens reach beyond many rules' ends. */
struct kept_mask {
    int32_t set; /* SET_NOT_KNOWN: free */
    uint64_t last_use;
    uint32_t *bits;
};

struct grammar {
    atomic_int n_shares;
    const struct token_trie *trie;
    struct automaton *automaton;
    size_t n_words;
    uint32_t *first_mask; /* [n_words] */
    bool first_can_end;

    /* The matchers' thread: */
    struct sets sets;
    int32_t first_set;
    struct verdict **verdicts; /* [n_states] NULL: not asked for yet */
    size_t verdict_bytes;
    struct kept_mask kept[KEPT_MASKS];
    uint64_t n_uses;
    struct matcher *matchers; /* all of them, so that their sets can be moved */
    int32_t *stack;           /* [max depth + 1] sets on the way of a walk */
    int32_t *list;            /* [n_tokens + n_nodes] scratch */
    atomic_size_t n_bytes;
};

/* ---- making ---- */

static const char *param_of(enum grammar_kind kind)
{
    return kind == GRAMMAR_GBNF || kind == GRAMMAR_PATTERN ? "grammar" : "response_format";
}

static enum tutti_status read_syntax(struct syntax *syntax, enum grammar_kind kind, const char *text,
                                     size_t n_bytes, struct tutti_error *err)
{
    const char *param = param_of(kind);
    if (n_bytes > LIMIT_GRAMMAR_BYTES)
        return error_set_param(err, TUTTI_E_LIMIT, param, "the grammar has %zu bytes, at most %d are allowed",
                               n_bytes, LIMIT_GRAMMAR_BYTES);
    switch (kind) {
    case GRAMMAR_GBNF:
        return gbnf_read(syntax, text, n_bytes, err);
    case GRAMMAR_JSON_SCHEMA:
        return schema_read(syntax, text, n_bytes, err);
    case GRAMMAR_PATTERN:
        return schema_read_pattern(syntax, text, n_bytes, err);
    default:
        return schema_any_object(syntax, err);
    }
}

static void note_bytes(struct grammar *g)
{
    atomic_store(&g->n_bytes, automaton_bytes(g->automaton) + sets_bytes(&g->sets) + g->verdict_bytes +
                                  (size_t)g->automaton->n_states * sizeof *g->verdicts +
                                  (KEPT_MASKS / 4 + 1) * g->n_words * 4 +
                                  (size_t)(g->trie->n_nodes + g->trie->n_tokens) * 4);
}

static enum tutti_status reserve(struct grammar *g, struct tutti_error *err)
{
    const struct token_trie *trie = g->trie;
    g->n_words = grammar_mask_words(trie->n_vocab);
    g->first_mask = calloc(g->n_words + 1, sizeof *g->first_mask);
    g->verdicts = calloc((size_t)g->automaton->n_states, sizeof *g->verdicts);
    g->stack = calloc((size_t)trie->max_depth + 2, sizeof *g->stack);
    g->list = calloc((size_t)trie->n_nodes + (size_t)trie->n_tokens + 1, sizeof *g->list);
    if (!g->first_mask || !g->verdicts || !g->stack || !g->list)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    return sets_init(&g->sets, g->automaton, err);
}

/* What failed in the sets, in words. */
static enum tutti_status explain(const struct grammar *g, struct tutti_error *err)
{
    switch (g->sets.status) {
    case TUTTI_OK:
        return TUTTI_OK;
    case TUTTI_E_LIMIT:
        return error_set(
            err, TUTTI_E_LIMIT,
            "the grammar admits the same text in too many ways: more than %d at a time, or it takes too "
            "long to follow them",
            MAX_PLACES);
    default:
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    }
}

static enum tutti_status begin(struct grammar *g, struct tutti_error *err)
{
    struct matcher first = { 0 };
    g->sets.budget = BUDGET_OF_A_MASK;
    g->first_set = sets_close(&g->sets, g->automaton->start, STACK_EMPTY);
    enum tutti_status st = explain(g, err);
    if (st != TUTTI_OK)
        return st;
    matcher_init(&first, g);
    st = matcher_mask(&first, g->first_mask, err);
    g->first_can_end = matcher_can_end(&first);
    matcher_clear(&first);
    return st;
}

enum tutti_status grammar_new(struct grammar **out, enum grammar_kind kind, const char *text, size_t n_bytes,
                              const struct token_trie *trie, struct tutti_error *err)
{
    struct syntax syntax = { 0 };
    struct grammar *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    atomic_init(&g->n_shares, 1);
    g->trie = trie;
    enum tutti_status st = read_syntax(&syntax, kind, text, n_bytes, err);
    if (st == TUTTI_OK)
        st = automaton_new(&g->automaton, &syntax, err);
    syntax_clear(&syntax);
    if (st == TUTTI_OK)
        st = reserve(g, err);
    if (st == TUTTI_OK)
        st = begin(g, err);
    if (st == TUTTI_OK) {
        note_bytes(g);
        *out = g;
        g = NULL;
    } else if (err && st != TUTTI_E_MEMORY) {
        snprintf(err->param, sizeof err->param, "%s", param_of(kind));
    }
    grammar_drop(g);
    return st;
}

struct grammar *grammar_share(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->n_shares, 1, memory_order_relaxed);
    return g;
}

static void verdict_free(struct verdict *v)
{
    if (!v)
        return;
    free(v->bits);
    free(v->tokens);
    free(v->leavings);
    free(v);
}

static void forget_verdicts(struct grammar *g)
{
    for (int32_t i = 0; g->verdicts && i < g->automaton->n_states; i++) {
        verdict_free(g->verdicts[i]);
        g->verdicts[i] = NULL;
    }
    g->verdict_bytes = 0;
}

void grammar_drop(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->n_shares, 1, memory_order_acq_rel) > 1)
        return;
    if (g->automaton)
        forget_verdicts(g);
    for (int i = 0; i < KEPT_MASKS; i++)
        free(g->kept[i].bits);
    sets_clear(&g->sets);
    automaton_free(g->automaton);
    free(g->verdicts);
    free(g->first_mask);
    free(g->stack);
    free(g->list);
    free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return atomic_load(&g->n_bytes);
}

const uint32_t *grammar_first_mask(const struct grammar *g, bool *can_end)
{
    *can_end = g->first_can_end;
    return g->first_mask;
}

/* ---- memory ---- */

/* The same stack among other frames; -1: no memory. */
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
        struct place at = from->places[old->first + i];
        at.stack = move_stack(from, to, at.stack);
        if (at.stack < 0)
            return SET_DEAD;
        to->found[i] = at;
    }
    return sets_intern(to, to->found, (size_t)old->n, old->can_end, old->escapes);
}

/* Forgets everything but where the matchers are. False: there was no memory; nothing has changed. */
static bool start_over(struct grammar *g)
{
    struct sets fresh;
    if (sets_init(&fresh, g->automaton, NULL) != TUTTI_OK)
        return false;
    int32_t first = move_set(&g->sets, &fresh, g->first_set);
    for (struct matcher *m = g->matchers; m; m = m->next)
        (void)move_set(&g->sets, &fresh, m->set);
    if (fresh.status != TUTTI_OK) {
        sets_clear(&fresh);
        return false;
    }
    for (struct matcher *m = g->matchers; m; m = m->next) /* all are there: found, not made */
        m->set = move_set(&g->sets, &fresh, m->set);
    sets_clear(&g->sets);
    g->sets = fresh;
    g->first_set = first;
    forget_verdicts(g);
    for (int i = 0; i < KEPT_MASKS; i++)
        g->kept[i].set = SET_NOT_KNOWN;
    return true;
}

static void begin_work(struct grammar *g)
{
    g->sets.status = TUTTI_OK;
    if (sets_bytes(&g->sets) + g->verdict_bytes > MAX_KEPT_BYTES)
        (void)start_over(g); /* else it goes on as long as there is memory */
    g->sets.budget = BUDGET_OF_A_MASK;
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

/* A step through a table costs about an eighth of a place that is looked at. */
static void charge(struct grammar *g, int32_t n_steps)
{
    g->sets.budget -= n_steps / 8 + 1;
    if (g->sets.budget < 0 && g->sets.status == TUTTI_OK)
        g->sets.status = TUTTI_E_LIMIT;
}

/* Allows the tokens below a node, when what stands on the way to it has led to a set. */
static void walk(struct grammar *g, int32_t from, int32_t set, uint32_t *mask)
{
    const struct token_trie *trie = g->trie;
    int32_t end = trie->end[from], n_visited = 0;
    g->stack[trie->depth[from]] = set;
    for (int32_t i = from + 1; i < end; n_visited++) {
        int32_t next = sets_step(&g->sets, g->stack[trie->depth[i] - 1], trie->byte[i]);
        if (next == SET_DEAD) {
            i = trie->end[i];
            continue;
        }
        allow_node(g, i, mask);
        g->stack[trie->depth[i]] = next;
        i++;
    }
    charge(g, n_visited);
}

/* Walks through the whole vocabulary from one state over an unknown stack. */
static void judge(struct grammar *g, int32_t set, struct verdict *v)
{
    const struct token_trie *trie = g->trie;
    int32_t *tokens = g->list, *leavings = g->list + trie->n_tokens;
    size_t n_tokens = 0, n_leavings = 0;
    int32_t n_visited = 0;
    g->stack[0] = set;
    for (int32_t i = 1; i < trie->n_nodes; n_visited++) {
        int32_t next = sets_step(&g->sets, g->stack[trie->depth[i] - 1], trie->byte[i]);
        if (next == SET_DEAD) {
            i = trie->end[i];
            continue;
        }
        for (int32_t t = trie->first_token[i]; t < trie->first_token[i + 1]; t++)
            tokens[n_tokens++] = trie->sorted[t];
        if (g->sets.sets[next].escapes && trie->end[i] > i + 1)
            leavings[n_leavings++] = i;
        g->stack[trie->depth[i]] = next;
        i++;
    }
    v->n_tokens = n_tokens;
    v->n_leavings = n_leavings;
    charge(g, n_visited);
}

static struct verdict *keep_verdict(struct grammar *g, const struct verdict *found)
{
    const int32_t *tokens = g->list, *leavings = g->list + g->trie->n_tokens;
    struct verdict *v = calloc(1, sizeof *v);
    bool has_bits = found->n_tokens > g->n_words;
    if (v) {
        *v = *found;
        v->n_bytes = sizeof *v + (has_bits ? g->n_words : v->n_tokens) * 4 + v->n_leavings * 4;
        v->leavings = malloc((v->n_leavings + 1) * sizeof *v->leavings);
        if (has_bits)
            v->bits = calloc(g->n_words, sizeof *v->bits);
        else
            v->tokens = malloc((v->n_tokens + 1) * sizeof *v->tokens);
    }
    if (!v || !v->leavings || !(v->bits || v->tokens)) {
        verdict_free(v);
        g->sets.status = TUTTI_E_MEMORY;
        return NULL;
    }
    memcpy(v->leavings, leavings, v->n_leavings * sizeof *leavings);
    for (size_t i = 0; i < v->n_tokens && v->bits; i++)
        allow(v->bits, tokens[i]);
    if (v->tokens)
        memcpy(v->tokens, tokens, v->n_tokens * sizeof *tokens);
    return v;
}

/* NULL: sets.status says why. */
static const struct verdict *verdict_of(struct grammar *g, int32_t state)
{
    if (g->verdicts[state])
        return g->verdicts[state];
    struct verdict found = { 0 };
    g->sets.found[0] = (struct place){ state, STACK_UNKNOWN };
    int32_t set = sets_intern(&g->sets, g->sets.found, 1, false, false);
    if (g->sets.status == TUTTI_OK)
        judge(g, set, &found);
    if (g->sets.status != TUTTI_OK)
        return NULL;
    struct verdict *v = keep_verdict(g, &found);
    if (v) {
        g->verdicts[state] = v;
        g->verdict_bytes += v->n_bytes;
    }
    return v;
}

static void add_place(struct grammar *g, struct place at, uint32_t *mask, size_t *n_leavings)
{
    const struct verdict *v = verdict_of(g, at.state);
    if (!v)
        return;
    for (size_t i = 0; v->bits && i < g->n_words; i++)
        mask[i] |= v->bits[i];
    for (size_t i = 0; !v->bits && i < v->n_tokens; i++)
        allow(mask, v->tokens[i]);
    if (at.stack == STACK_EMPTY || v->n_leavings == 0)
        return;
    const struct frame *frame = &g->sets.frames[at.stack];
    int32_t outside = sets_close(&g->sets, frame->state, frame->below);
    for (size_t i = 0; i < v->n_leavings && outside != SET_DEAD && g->sets.status == TUTTI_OK; i++)
        walk(g, v->leavings[i], outside, mask);
    *n_leavings += v->n_leavings;
}

static struct kept_mask *find_kept(struct grammar *g, int32_t set)
{
    for (int i = 0; i < KEPT_MASKS; i++)
        if (g->kept[i].set == set)
            return &g->kept[i];
    return NULL;
}

/* Keeps a mask that was dear, in the place of the one that was not asked for longest. Without memory it is not kept. */
static void keep_mask(struct grammar *g, int32_t set, const uint32_t *mask)
{
    struct kept_mask *oldest = &g->kept[0];
    for (int i = 1; i < KEPT_MASKS; i++)
        if (g->kept[i].last_use < oldest->last_use)
            oldest = &g->kept[i];
    if (!oldest->bits)
        oldest->bits = malloc((g->n_words + 1) * sizeof *oldest->bits);
    if (!oldest->bits)
        return;
    memcpy(oldest->bits, mask, g->n_words * sizeof *mask);
    oldest->set = set;
    oldest->last_use = ++g->n_uses;
}

enum tutti_status matcher_mask(struct matcher *m, uint32_t *mask, struct tutti_error *err)
{
    enum { DEAR = 512 }; /* leavings; a walk behind one costs some 20 ns, a kept mask 2 us and some KB */
    struct grammar *g = m->grammar;
    begin_work(g);
    struct kept_mask *kept = find_kept(g, m->set);
    if (kept) {
        memcpy(mask, kept->bits, g->n_words * sizeof *mask);
        kept->last_use = ++g->n_uses;
        return TUTTI_OK;
    }
    size_t n_leavings = 0;
    memset(mask, 0, g->n_words * sizeof *mask);
    struct set set = g->sets.sets[m->set];
    for (int32_t i = 0; i < set.n && g->sets.status == TUTTI_OK; i++)
        add_place(g, g->sets.places[set.first + i], mask, &n_leavings);
    if (g->sets.status == TUTTI_OK && n_leavings > DEAR)
        keep_mask(g, m->set, mask);
    note_bytes(g);
    return explain(g, err);
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
    begin_work(g);
    int32_t set = m->set;
    for (size_t i = 0; i < n_bytes && set != SET_DEAD; i++)
        set = sets_step(&g->sets, set, (uint8_t)bytes[i]);
    if (set == SET_DEAD)
        return false;
    m->set = set;
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
