#include "grammar/automaton.h"

#include "base/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* An edge and its source state, in order of creation. */
struct draft_edge {
    int32_t from;
    struct edge edge;
};

/* A node still to be compiled between two states. */
struct draft_task {
    int32_t node, from, to;
};

struct automaton_draft {
    struct syntax *syntax;
    struct budget *budget; /* the syntax's */
    size_t bytes_taken;    /* from the budget */
    struct draft_task *tasks;
    size_t n_tasks, tasks_room;
    struct draft_edge *edges;
    size_t n_edges, room;
    int32_t n_states;
    int32_t *starts, *ends; /* [n_rules] -1: no states yet */
    int32_t *line;          /* [n_rules] rules to be built */
    size_t n_line;
    bool is_full, has_no_memory;
};

static bool take_bytes(struct automaton_draft *d, size_t n_bytes)
{
    d->bytes_taken += n_bytes;
    if (!budget_take_bytes(d->budget, n_bytes))
        d->is_full = true;
    return !d->is_full;
}

/* Grows an array for one more item. */
static bool grow_draft(struct automaton_draft *d, void *array, size_t *room, size_t n, size_t item_bytes)
{
    enum tutti_status st = budget_grow(d->budget, array, room, n + 1, item_bytes, &d->bytes_taken);
    d->is_full |= st != TUTTI_OK;
    d->has_no_memory |= st == TUTTI_E_MEMORY;
    return st == TUTTI_OK;
}

static int32_t add_state(struct automaton_draft *d)
{
    if (d->n_states >= LIMIT_GRAMMAR_STATES || !budget_spend(d->budget, 1))
        d->is_full = true;
    return d->is_full ? 0 : d->n_states++;
}

static void add_edge(struct automaton_draft *d, int32_t from, struct edge edge)
{
    if (d->n_edges >= LIMIT_GRAMMAR_EDGES || !budget_spend(d->budget, 1))
        d->is_full = true;
    if (!d->is_full && grow_draft(d, &d->edges, &d->room, d->n_edges, sizeof *d->edges))
        d->edges[d->n_edges++] = (struct draft_edge){ from, edge };
}

static void add_byte(struct automaton_draft *d, int32_t from, int32_t to, uint8_t low, uint8_t high)
{
    add_edge(d, from, (struct edge){ .kind = EDGE_BYTE, .low = low, .high = high, .to = to });
}

static void add_nothing(struct automaton_draft *d, int32_t from, int32_t to)
{
    add_edge(d, from, (struct edge){ .kind = EDGE_NOTHING, .to = to });
}

/* ---- characters as bytes ---- */

/* tails[k]: from this state any k continuation bytes lead to the target; created on demand. */
struct tails {
    int32_t states[4];
};

static int32_t any_tail(struct automaton_draft *d, struct tails *tails, int n)
{
    if (tails->states[n] < 0) {
        int32_t next = any_tail(d, tails, n - 1);
        tails->states[n] = add_state(d);
        add_byte(d, tails->states[n], next, 0x80, 0xBF);
    }
    return tails->states[n];
}

static bool is_all(const uint8_t *bytes, int n, uint8_t value)
{
    for (int i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* All sequences of n bytes from low to high, both within, whose tails are continuation bytes. */
static void add_sequences(struct automaton_draft *d, int32_t from, struct tails *tails, const uint8_t *low,
                          const uint8_t *high, int n)
{
    assert(n >= 1 && n <= 4);
    if (n == 1) {
        add_byte(d, from, tails->states[0], low[0], high[0]);
        return;
    }
    if (low[0] == high[0]) {
        int32_t next = is_all(low + 1, n - 1, 0x80) && is_all(high + 1, n - 1, 0xBF)
                           ? any_tail(d, tails, n - 1)
                           : add_state(d);
        add_byte(d, from, next, low[0], low[0]);
        if (next != tails->states[n - 1])
            add_sequences(d, next, tails, low + 1, high + 1, n - 1);
        return;
    }
    static const uint8_t FIRST[3] = { 0x80, 0x80, 0x80 }, LAST[3] = { 0xBF, 0xBF, 0xBF };
    uint8_t first = low[0], last = high[0];
    if (!is_all(low + 1, n - 1, 0x80)) {
        int32_t next = add_state(d);
        add_byte(d, from, next, first, first);
        add_sequences(d, next, tails, low + 1, LAST, n - 1);
        first++;
    }
    if (!is_all(high + 1, n - 1, 0xBF)) {
        int32_t next = add_state(d);
        add_byte(d, from, next, last, last);
        add_sequences(d, next, tails, FIRST, high + 1, n - 1);
        last--;
    }
    if (first <= last)
        add_byte(d, from, any_tail(d, tails, n - 1), first, last);
}

/* Compiles ranges, split by the number of UTF-8 bytes and without surrogates. */
static void build_chars(struct automaton_draft *d, const struct char_range *ranges, int32_t n, int32_t from,
                        int32_t to)
{
    static const struct char_range PARTS[] = {
        { 0, 0x7F }, { 0x80, 0x7FF }, { 0x800, 0xD7FF }, { 0xE000, 0xFFFF }, { 0x10000, MAX_CODE_POINT }
    };
    enum { N_PARTS = sizeof PARTS / sizeof *PARTS };
    struct tails tails = { { to, -1, -1, -1 } };
    for (int32_t i = 0; i < n; i++) {
        struct char_range same_length[N_PARTS];
        size_t n_lengths = ranges_intersect(&ranges[i], 1, PARTS, N_PARTS, same_length);
        for (size_t k = 0; k < n_lengths; k++) {
            char first[4], last[4];
            int n_bytes = utf8_encode(same_length[k].low, first);
            utf8_encode(same_length[k].high, last);
            add_sequences(d, from, &tails, (const uint8_t *)first, (const uint8_t *)last, n_bytes);
        }
    }
}

/* ---- nodes ---- */

static void place_rule(struct automaton_draft *d, int32_t rule)
{
    if (d->starts[rule] >= 0)
        return;
    d->starts[rule] = add_state(d);
    d->ends[rule] = add_state(d);
    d->line[d->n_line++] = rule;
}

/* Compiles a node into edges between two states. No other edges lead into from or out of to.
 * Nested nodes are queued instead of compiled recursively, because nesting may be as deep as the
 * grammar is long. */
static void add_task(struct automaton_draft *d, int32_t node, int32_t from, int32_t to)
{
    if (grow_draft(d, &d->tasks, &d->tasks_room, d->n_tasks, sizeof *d->tasks))
        d->tasks[d->n_tasks++] = (struct draft_task){ node, from, to };
}

/* x{m,n}: m copies in a row, then either a loop or n - m more, after each of which it may end. */
static void build_repeat(struct automaton_draft *d, const struct node *node, int32_t from, int32_t to)
{
    int32_t at = from;
    for (int32_t i = 0; i < node->min && !d->is_full; i++) {
        int32_t next = add_state(d);
        add_task(d, node->first, at, next);
        at = next;
    }
    if (node->max == REPEAT_FOREVER) {
        int32_t loop = add_state(d);
        add_nothing(d, at, loop);
        add_task(d, node->first, loop, loop);
        add_nothing(d, loop, to);
        return;
    }
    for (int32_t i = node->min; i < node->max && !d->is_full; i++) {
        int32_t next = add_state(d);
        add_nothing(d, at, to);
        add_task(d, node->first, at, next);
        at = next;
    }
    add_nothing(d, at, to);
}

static void build_node(struct automaton_draft *d, int32_t index, int32_t from, int32_t to)
{
    const struct syntax *s = d->syntax;
    const struct node *node = &s->nodes[index];
    switch (node->kind) {
    case NODE_EMPTY:
        add_nothing(d, from, to);
        return;
    case NODE_BYTES:
        for (int32_t i = 0; i < node->n && !d->is_full; i++) {
            uint8_t byte = (uint8_t)s->bytes.bytes[node->first + i];
            int32_t next = i + 1 < node->n ? add_state(d) : to;
            add_byte(d, from, next, byte, byte);
            from = next;
        }
        return;
    case NODE_CHARS:
        if (node->n > 0)
            build_chars(d, s->ranges + node->first, node->n, from, to);
        return;
    case NODE_SEQ:
        for (int32_t i = 0; i < node->n && !d->is_full; i++) {
            int32_t next = i + 1 < node->n ? add_state(d) : to;
            add_task(d, s->children[node->first + i], from, next);
            from = next;
        }
        return;
    case NODE_CHOICE:
        for (int32_t i = 0; i < node->n && !d->is_full; i++)
            add_task(d, s->children[node->first + i], from, to);
        return;
    case NODE_REPEAT:
        build_repeat(d, node, from, to);
        return;
    case NODE_RULE:
        place_rule(d, node->first);
        add_edge(d, from, (struct edge){ .kind = EDGE_CALL, .call = d->starts[node->first], .to = to });
        return;
    }
}

static void build(struct automaton_draft *d, int32_t node, int32_t from, int32_t to)
{
    add_task(d, node, from, to);
    while (d->n_tasks > 0 && !d->is_full) {
        struct draft_task task = d->tasks[--d->n_tasks];
        if (!budget_spend(d->budget, 1))
            d->is_full = true;
        else
            build_node(d, task.node, task.from, task.to);
    }
}

/* ---- from the draft to the automaton ---- */

static enum tutti_status too_large(const struct automaton_draft *d, struct tutti_error *err)
{
    if (d->has_no_memory)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    if (budget_is_over(d->budget))
        return budget_explain(d->budget, err);
    return error_set(
        err, TUTTI_E_LIMIT,
        "the grammar is too large: it needs more than %d states or %d edges; repetitions with large "
        "bounds cost most",
        LIMIT_GRAMMAR_STATES, LIMIT_GRAMMAR_EDGES);
}

static enum tutti_status order_edges(struct automaton *a, struct automaton_draft *d, struct tutti_error *err)
{
    size_t n_states = (size_t)d->n_states;
    assert(n_states > 0); /* the root rule's */
    /* For the work here and for the searches below, which visit each edge a few times. */
    if (!take_bytes(d, n_states * 48 + d->n_edges * (sizeof *a->edges + 24)) ||
        !budget_prepay(d->budget, (int64_t)(2 * (d->n_edges + n_states))))
        return too_large(d, err);
    a->n_states = d->n_states;
    a->n_edges = (int32_t)d->n_edges;
    a->first_edge = calloc(n_states + 2, sizeof *a->first_edge);
    a->edges = calloc(d->n_edges + 1, sizeof *a->edges);
    a->is_end = calloc(n_states, sizeof *a->is_end);
    a->needs = calloc(n_states, sizeof *a->needs);
    if (!a->first_edge || !a->edges || !a->is_end || !a->needs)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    for (size_t i = 0; i < d->n_edges; i++)
        a->first_edge[d->edges[i].from + 2]++;
    for (size_t i = 2; i <= n_states + 1; i++)
        a->first_edge[i] += a->first_edge[i - 1];
    for (size_t i = 0; i < d->n_edges; i++)
        a->edges[a->first_edge[d->edges[i].from + 1]++] = d->edges[i].edge;
    for (size_t i = 0; i < d->syntax->n_rules; i++)
        if (d->ends[i] >= 0)
            a->is_end[d->ends[i]] = true;
    return TUTTI_OK;
}

/* Edges indexed by their dependencies: the target state and, for calls, the rule's start. */
struct waiting_edges {
    int32_t *begin; /* [n_states + 2] */
    int32_t *edges; /* numbers of draft edges */
};

static bool find_waiting(struct waiting_edges *w, const struct automaton *a, const struct automaton_draft *d)
{
    size_t n = (size_t)a->n_states;
    w->begin = calloc(n + 2, sizeof *w->begin);
    w->edges = calloc(2 * d->n_edges + 1, sizeof *w->edges);
    if (!w->begin || !w->edges)
        return false;
    for (size_t i = 0; i < d->n_edges; i++) {
        w->begin[d->edges[i].edge.to + 2]++;
        if (d->edges[i].edge.kind == EDGE_CALL)
            w->begin[d->edges[i].edge.call + 2]++;
    }
    for (size_t i = 2; i <= n + 1; i++)
        w->begin[i] += w->begin[i - 1];
    for (size_t i = 0; i < d->n_edges; i++) {
        w->edges[w->begin[d->edges[i].edge.to + 1]++] = (int32_t)i;
        if (d->edges[i].edge.kind == EDGE_CALL)
            w->edges[w->begin[d->edges[i].edge.call + 1]++] = (int32_t)i;
    }
    return true;
}

/* needs: [n_states] minimum frames on a path to the end of the rule, MAX_STACK_DEPTH + 1 if there
 * is none with fewer; without over_bytes: on paths that read no byte. States are found in the
 * order of their needs. False: out of memory. */
static bool find_needs(const struct automaton *a, const struct automaton_draft *d, bool over_bytes,
                       uint16_t *needs)
{
    enum { NEVER = MAX_STACK_DEPTH + 1 };
    size_t n = (size_t)a->n_states, n_now = 0, n_later = 0;
    struct waiting_edges waiting = { 0 };
    assert(n > 0);
    /* States whose needs are known, and those that need one frame more. A state is added at most
     * twice for each of its edges. */
    int32_t *now = calloc(n, sizeof *now), *later = calloc(2 * d->n_edges + 1, sizeof *later);
    bool ok = now && later && find_waiting(&waiting, a, d);
    for (size_t i = 0; ok && i < n; i++) {
        needs[i] = a->is_end[i] ? 0 : NEVER;
        if (a->is_end[i])
            now[n_now++] = (int32_t)i;
    }
    for (uint16_t level = 0; ok && level <= MAX_STACK_DEPTH; level++) {
        while (n_now > 0) {
            int32_t state = now[--n_now];
            for (int32_t k = waiting.begin[state]; k < waiting.begin[state + 1]; k++) {
                const struct draft_edge *e = &d->edges[waiting.edges[k]];
                const struct edge *edge = &e->edge;
                if (needs[e->from] != NEVER || needs[edge->to] == NEVER ||
                    (edge->kind == EDGE_CALL && needs[edge->call] == NEVER) ||
                    (edge->kind == EDGE_BYTE && !over_bytes))
                    continue;
                /* A call that ends its rule pushes nothing. */
                int through = edge->kind == EDGE_CALL ? needs[edge->call] + !a->is_end[edge->to] : 0;
                if (through <= level) {
                    needs[e->from] = level;
                    now[n_now++] = e->from;
                } else {
                    later[n_later++] = e->from;
                }
            }
        }
        for (size_t i = 0; i < n_later; i++) {
            if (needs[later[i]] == NEVER && level < MAX_STACK_DEPTH) {
                needs[later[i]] = (uint16_t)(level + 1);
                now[n_now++] = later[i];
            }
        }
        n_later = 0;
    }
    free(waiting.begin);
    free(waiting.edges);
    free(now);
    free(later);
    return ok;
}

/* Prunes edges from which no end can be reached. */
static void prune(struct automaton *a)
{
    int32_t kept = 0;
    for (int32_t state = 0, k = 0; state < a->n_states; state++) {
        int32_t last = a->first_edge[state + 1];
        a->first_edge[state] = kept;
        for (; k < last; k++) {
            const struct edge *e = &a->edges[k];
            if (a->needs[e->to] <= MAX_STACK_DEPTH &&
                (e->kind != EDGE_CALL || a->needs[e->call] <= MAX_STACK_DEPTH))
                a->edges[kept++] = *e;
        }
    }
    a->first_edge[a->n_states] = a->n_edges = kept;
}

/* ---- rules that begin with themselves ---- */

struct left_search {
    const struct automaton *a;
    const struct automaton_draft *d;
    int32_t *rule_at;      /* [n_states] the rule that begins here; -1 */
    uint16_t *needs;       /* [n_states] to reach the end of its rule without a byte */
    int32_t *stack, *seen; /* [n_states] seen: by which search */
    int32_t n_searches;
};

/* The rules that can be called before a byte was read: one for each edge that does so. */
static size_t find_first_calls(struct left_search *l, int32_t rule, int32_t *called)
{
    const struct automaton *a = l->a;
    size_t n = 0, n_called = 0;
    int32_t mark = ++l->n_searches;
    l->stack[n++] = l->d->starts[rule];
    l->seen[l->d->starts[rule]] = mark;
    while (n > 0) {
        int32_t state = l->stack[--n];
        for (int32_t k = a->first_edge[state]; k < a->first_edge[state + 1]; k++) {
            const struct edge *e = &a->edges[k];
            if (e->kind == EDGE_CALL)
                called[n_called++] = l->rule_at[e->call];
            if (e->kind == EDGE_BYTE || (e->kind == EDGE_CALL && l->needs[e->call] > MAX_STACK_DEPTH))
                continue;
            if (l->seen[e->to] != mark) {
                l->seen[e->to] = mark;
                l->stack[n++] = e->to;
            }
        }
    }
    return n_called;
}

/* Depth-first search without recursion: a frame has a rule and the index of its next first call.
 * A call of a rule that is still open closes a cycle (left recursion). */
static int32_t find_circle(struct left_search *l)
{
    size_t n_rules = l->d->syntax->n_rules, n_edges = (size_t)l->a->n_edges + 1, n_calls = 0;
    struct grammar_frame {
        int32_t rule;
        size_t first, next, last;
    } *frames = calloc(n_rules + 1, sizeof *frames);
    int32_t *calls = calloc(n_edges, sizeof *calls);
    uint8_t *state = calloc(n_rules, 1); /* 1: open, 2: done */
    int32_t circle = -1;
    if (!frames || !calls || !state)
        circle = -2;
    for (size_t i = 0; circle == -1 && i < l->d->n_line; i++) {
        size_t depth = 0;
        int32_t next = state[l->d->line[i]] ? -1 : l->d->line[i];
        while (circle == -1 && (next >= 0 || depth > 0)) {
            if (next >= 0) {
                state[next] = 1;
                size_t n = find_first_calls(
                    l, next, calls + n_calls); /* each edge belongs to one rule, so there is room */
                frames[depth++] = (struct grammar_frame){ next, n_calls, n_calls, n_calls + n };
                n_calls += n;
            }
            struct grammar_frame *top = &frames[depth - 1];
            next = -1;
            if (top->next == top->last) {
                state[top->rule] = 2;
                n_calls = top->first;
                depth--;
                continue;
            }
            int32_t other = calls[top->next++];
            if (state[other] == 1)
                circle = other;
            else if (state[other] == 0)
                next = other;
        }
    }
    free(frames);
    free(calls);
    free(state);
    return circle;
}

static enum tutti_status refuse_left_recursion(const struct automaton *a, const struct automaton_draft *d,
                                               struct tutti_error *err)
{
    size_t n_states = (size_t)a->n_states;
    struct left_search l = { .a = a, .d = d };
    l.rule_at = malloc(n_states * sizeof *l.rule_at);
    l.needs = calloc(n_states, sizeof *l.needs);
    l.stack = calloc(n_states, sizeof *l.stack);
    l.seen = calloc(n_states, sizeof *l.seen);
    int32_t circle = -2;
    if (l.rule_at && l.needs && l.stack && l.seen && find_needs(a, d, false, l.needs)) {
        memset(l.rule_at, 0xFF, n_states * sizeof *l.rule_at);
        for (size_t i = 0; i < d->n_line; i++)
            l.rule_at[d->starts[d->line[i]]] = d->line[i];
        circle = find_circle(&l);
    }
    free(l.rule_at);
    free(l.needs);
    free(l.stack);
    free(l.seen);
    if (circle == -2)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    if (circle < 0)
        return TUTTI_OK;
    const struct rule *rule = &d->syntax->rules[circle];
    if (!rule->name)
        return error_set_param(err, TUTTI_E_ARGUMENT, "response_format",
                               "the schema refers to itself before any text");
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "grammar",
        "grammar: line %d, column %d: rule \"%.64s\" can begin with itself; write what repeats as "
        "(...)* or put it at the end",
        rule->line, rule->column, rule->name);
}

/* ---- classes of bytes ---- */

static void find_classes(struct automaton *a)
{
    bool begins[257] = { true };
    for (int32_t i = 0; i < a->n_edges; i++) {
        if (a->edges[i].kind == EDGE_BYTE) {
            begins[a->edges[i].low] = true;
            begins[a->edges[i].high + 1] = true;
        }
    }
    for (int byte = 0; byte < 256; byte++) {
        if (begins[byte])
            a->a_byte_of[a->n_classes++] = (uint8_t)byte;
        a->class_of[byte] = (uint8_t)(a->n_classes - 1);
    }
}

/* ---- all together ---- */

static enum tutti_status draft_rules(struct automaton_draft *d, struct tutti_error *err)
{
    size_t n_rules = d->syntax->n_rules;
    d->starts = malloc(n_rules * sizeof *d->starts);
    d->ends = malloc(n_rules * sizeof *d->ends);
    d->line = malloc(n_rules * sizeof *d->line);
    if (!take_bytes(d, n_rules * 3 * sizeof *d->line))
        return too_large(d, err);
    if (!d->starts || !d->ends || !d->line)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    memset(d->starts, 0xFF, n_rules * sizeof *d->starts);
    memset(d->ends, 0xFF, n_rules * sizeof *d->ends);
    place_rule(d, d->syntax->root);
    for (size_t i = 0; i < d->n_line && !d->is_full; i++)
        build(d, d->syntax->rules[d->line[i]].node, d->starts[d->line[i]], d->ends[d->line[i]]);
    return d->is_full ? too_large(d, err) : TUTTI_OK;
}

enum tutti_status automaton_new(struct automaton **out, struct syntax *syntax, struct tutti_error *err)
{
    struct automaton_draft d = { .syntax = syntax, .budget = syntax->budget };
    struct automaton *a = calloc(1, sizeof *a);
    enum tutti_status st = a ? draft_rules(&d, err)
                             : error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    if (st == TUTTI_OK)
        st = order_edges(a, &d, err);
    if (st == TUTTI_OK && !find_needs(a, &d, true, a->needs))
        st = error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    if (st == TUTTI_OK) {
        prune(a);
        a->start = d.starts[syntax->root];
        if (a->first_edge[a->start] == a->first_edge[a->start + 1])
            st = *syntax->nothing
                     ? error_set_param(
                           err, TUTTI_E_ARGUMENT, "grammar",
                           "the grammar admits no finite text: by the JSON schema, at %s, no value "
                           "is valid, or none that can be described",
                           syntax->nothing)
                     : error_set_param(err, TUTTI_E_ARGUMENT, "grammar",
                                       "the grammar admits no finite text, or none with at most %d rules "
                                       "within each other",
                                       MAX_STACK_DEPTH);
    }
    if (st == TUTTI_OK)
        st = refuse_left_recursion(a, &d, err);
    if (st == TUTTI_OK) {
        find_classes(a);
        *out = a;
        a = NULL;
    }
    free(d.starts);
    free(d.ends);
    free(d.line);
    free(d.edges);
    free(d.tasks);
    budget_return_bytes(d.budget, d.bytes_taken);
    automaton_free(a);
    return st;
}

void automaton_free(struct automaton *a)
{
    if (!a)
        return;
    free(a->first_edge);
    free(a->edges);
    free(a->is_end);
    free(a->needs);
    free(a);
}

size_t automaton_bytes(const struct automaton *a)
{
    return sizeof *a + (size_t)a->n_edges * sizeof *a->edges +
           (size_t)a->n_states * (sizeof *a->first_edge + sizeof *a->is_end + sizeof *a->needs);
}
