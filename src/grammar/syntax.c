#include "grammar/syntax.h"

#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void syntax_clear(struct syntax *s)
{
    for (size_t i = 0; i < s->n_rules; i++)
        free(s->rules[i].name);
    free(s->nodes);
    free(s->children);
    free(s->ranges);
    free(s->rules);
    buf_clear(&s->bytes);
    if (s->budget)
        budget_return_bytes(s->budget, s->bytes_taken);
    *s = (struct syntax){ 0 };
}

bool syntax_spend(struct syntax *s, size_t n_steps)
{
    if (!budget_spend(s->budget, (int64_t)n_steps))
        s->is_full = true;
    return !s->is_full;
}

int32_t syntax_no_memory(struct syntax *s)
{
    s->is_full = s->has_no_memory = true;
    return -1;
}

static bool take_bytes(struct syntax *s, size_t n_bytes)
{
    s->bytes_taken += n_bytes;
    if (!budget_take_bytes(s->budget, n_bytes))
        s->is_full = true;
    return !s->is_full;
}

/* Makes room for n more of an array that has n_used of *room. False: the syntax is full now. */
static bool syntax_grow(struct syntax *s, void *array, size_t *room, size_t n_used, size_t n,
                        size_t item_bytes, size_t limit)
{
    if (!syntax_spend(s, 1 + n) || n > limit || n_used > limit - n) {
        s->is_full = true;
        return false;
    }
    if (n_used + n <= *room)
        return true;
    switch (budget_grow(s->budget, array, room, n_used + n, item_bytes, &s->bytes_taken)) {
    case TUTTI_OK:
        return true;
    case TUTTI_E_MEMORY:
        return syntax_no_memory(s) >= 0;
    default:
        s->is_full = true;
        return false;
    }
}

static int32_t add_node(struct syntax *s, struct node node)
{
    if (!syntax_grow(s, &s->nodes, &s->nodes_room, s->n_nodes, 1, sizeof *s->nodes, LIMIT_GRAMMAR_NODES))
        return -1;
    assert(s->nodes);
    s->nodes[s->n_nodes] = node;
    return (int32_t)s->n_nodes++;
}

int32_t syntax_empty(struct syntax *s)
{
    return add_node(s, (struct node){ .kind = NODE_EMPTY });
}

int32_t syntax_bytes(struct syntax *s, const char *bytes, size_t n_bytes)
{
    size_t first = s->bytes.n_bytes;
    if (n_bytes == 0)
        return syntax_empty(s);
    if (n_bytes > LIMIT_GRAMMAR_NODES || first > 64u * LIMIT_GRAMMAR_NODES) {
        s->is_full = true;
        return -1;
    }
    if (!syntax_spend(s, n_bytes / 8) || !take_bytes(s, n_bytes))
        return -1;
    if (!buf_add(&s->bytes, bytes, n_bytes))
        return syntax_no_memory(s);
    return add_node(s, (struct node){ .kind = NODE_BYTES, .first = (int32_t)first, .n = (int32_t)n_bytes });
}

int32_t syntax_text(struct syntax *s, const char *text)
{
    return syntax_bytes(s, text, strlen(text));
}

int32_t syntax_chars(struct syntax *s, const struct char_range *ranges, size_t n)
{
    if (!syntax_grow(s, &s->ranges, &s->ranges_room, s->n_ranges, n, sizeof *s->ranges,
                     4u * LIMIT_GRAMMAR_NODES))
        return -1;
    size_t first = s->n_ranges;
    if (n > 0)
        memcpy(s->ranges + first, ranges, n * sizeof *ranges);
    n = n > 0 ? ranges_normalize(s->ranges + first, n) : 0;
    s->n_ranges += n;
    return add_node(s, (struct node){ .kind = NODE_CHARS, .first = (int32_t)first, .n = (int32_t)n });
}

static int32_t add_list(struct syntax *s, enum node_kind kind, const int32_t *nodes, size_t n)
{
    if (!syntax_grow(s, &s->children, &s->children_room, s->n_children, n, sizeof *s->children,
                     4u * LIMIT_GRAMMAR_NODES))
        return -1;
    size_t first = s->n_children;
    if (n > 0)
        memcpy(s->children + first, nodes, n * sizeof *nodes);
    s->n_children += n;
    return add_node(s, (struct node){ .kind = kind, .first = (int32_t)first, .n = (int32_t)n });
}

int32_t syntax_seq(struct syntax *s, const int32_t *nodes, size_t n)
{
    if (n == 1)
        return nodes[0];
    return n == 0 ? syntax_empty(s) : add_list(s, NODE_SEQ, nodes, n);
}

/* ---- common prefixes of alternatives ---- */

/* "a" x | "a" y becomes "a" (x | y). Otherwise each level of
 * "(" expr "+" expr ")" | "(" expr "-" expr ")" would double the number of ways to match a text. */

/* factor() recurses to MAX_FACTOR_DEPTH, with 5 KB of each call on the stack. */
enum { MAX_FACTORED = 256, FACTOR_SLOTS = 2 * MAX_FACTORED, MAX_FACTOR_DEPTH = 64 };

static int32_t way_part(const struct syntax *s, int32_t way, int32_t skip)
{
    if (way < 0)
        return -1;
    const struct node *node = &s->nodes[way];
    if (node->kind == NODE_SEQ)
        return skip < node->n ? s->children[node->first + skip] : -1;
    return skip == 0 && node->kind != NODE_EMPTY ? way : -1;
}

/* The content by which nodes are compared: bytes or ranges; for other kinds, first is sufficient. */
static const void *contents_of(const struct syntax *s, const struct node *node, size_t *n_bytes)
{
    *n_bytes = 0;
    if (node->kind == NODE_BYTES) {
        *n_bytes = (size_t)node->n;
        return s->bytes.bytes + node->first;
    }
    if (node->kind == NODE_CHARS && node->n > 0) {
        *n_bytes = (size_t)node->n * sizeof *s->ranges;
        return s->ranges + node->first;
    }
    return NULL;
}

static bool are_equal(struct syntax *s, int32_t a, int32_t b)
{
    size_t n_a, n_b;
    if (a < 0 || b < 0 || a == b)
        return a == b;
    const struct node *x = &s->nodes[a], *y = &s->nodes[b];
    if (x->kind != y->kind)
        return false;
    if (x->kind == NODE_RULE)
        return x->first == y->first;
    if (x->kind != NODE_BYTES && x->kind != NODE_CHARS)
        return false;
    const void *of_x = contents_of(s, x, &n_a), *of_y = contents_of(s, y, &n_b);
    syntax_spend(s, n_a / 64);
    return n_a == n_b && (n_a == 0 || memcmp(of_x, of_y, n_a) == 0);
}

/* A hash: equal for equal nodes. */
static uint64_t hash_node(struct syntax *s, int32_t index)
{
    size_t n_bytes;
    const struct node *node = &s->nodes[index];
    const uint8_t *bytes = contents_of(s, node, &n_bytes);
    if (node->kind != NODE_BYTES && node->kind != NODE_CHARS) {
        int32_t own = node->kind == NODE_RULE ? node->first : index;
        return hash64((uint64_t)node->kind, &own, sizeof own);
    }
    syntax_spend(s, n_bytes / 8);
    return hash64((uint64_t)node->kind, bytes, n_bytes);
}

/* The rest of an alternative after skip parts. */
static int32_t rest_of(struct syntax *s, int32_t way, int32_t skip)
{
    int32_t first = s->nodes[way].first, n = s->nodes[way].n, left;
    if (skip == 0)
        return way;
    if (way_part(s, way, skip) < 0)
        return syntax_empty(s);
    left = n - skip;
    if (left == 1)
        return s->children[first + skip];
    /* The parts are already in the children. */
    return add_node(s, (struct node){ .kind = NODE_SEQ, .first = first + skip, .n = left });
}

/* Alternatives grouped by their first part. */
struct factor_groups {
    int32_t heads[MAX_FACTORED]; /* -1: the alternative has ended */
    int32_t first[MAX_FACTORED], last[MAX_FACTORED],
        next[MAX_FACTORED]; /* linked lists of alternatives; -1: end */
    size_t n;
};

static void group_ways(struct syntax *s, struct factor_groups *g, const int32_t *ways, size_t n, int32_t skip)
{
    int16_t slots[FACTOR_SLOTS] = { 0 }; /* a group + 1 */
    g->n = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t head = way_part(s, ways[i], skip), group = -1;
        size_t k = head < 0 ? 0 : hash_node(s, head) % FACTOR_SLOTS;
        for (; group < 0 && slots[k] != 0; k = (k + 1) % FACTOR_SLOTS)
            if (are_equal(s, head, g->heads[slots[k] - 1]) && head >= 0)
                group = slots[k] - 1;
        g->next[i] = -1;
        if (group >= 0) {
            g->next[g->last[group]] = (int32_t)i;
            g->last[group] = (int32_t)i;
            continue;
        }
        slots[k] = (int16_t)(g->n + 1);
        g->heads[g->n] = head;
        g->first[g->n] = g->last[g->n] = (int32_t)i;
        g->n++;
    }
}

static int32_t factor(struct syntax *s, const int32_t *ways, size_t n, int32_t skip, int depth)
{
    struct factor_groups groups;
    int32_t out[MAX_FACTORED], group[MAX_FACTORED];
    size_t n_out = 0;
    bool has_ended = false;
    syntax_spend(s, n);
    group_ways(s, &groups, ways, n, skip);
    for (size_t i = 0; i < groups.n && !s->is_full; i++) {
        size_t n_group = 0;
        for (int32_t k = groups.first[i]; k >= 0; k = groups.next[k])
            group[n_group++] = ways[k];
        if (groups.heads[i] < 0 && has_ended)
            continue; /* one empty alternative is enough */
        has_ended |= groups.heads[i] < 0;
        if (n_group == 1 || depth == MAX_FACTOR_DEPTH) {
            for (size_t k = 0; k < n_group; k++)
                out[n_out++] = rest_of(s, group[k], skip);
        } else {
            int32_t tail = factor(s, group, n_group, skip + 1, depth + 1);
            out[n_out++] = SYNTAX_SEQ(s, groups.heads[i], tail);
        }
    }
    return n_out == 1 ? out[0] : add_list(s, NODE_CHOICE, out, n_out);
}

/* ---- a choice of texts ---- */

/* "ab" | "ac" | "b" becomes "a" ("b" | "c") | "b". So a text has one place in a list of any length, and a byte
 * leads to few others. */

struct literal {
    const uint8_t *bytes;
    int32_t first, n; /* of the syntax's bytes */
};

/* A point of the tree whose texts are not all known yet. */
struct branch {
    int32_t depth;    /* bytes that its texts have in common */
    size_t first_way; /* its ways, so far: from this one to the last */
};

struct literal_tree {
    struct literal *sorted; /* [n], different ones */
    struct branch *open;    /* [n], from the root on */
    int32_t *ways;          /* [n] nodes */
    size_t n, n_open, n_ways;
};

static int compare_literals(const void *a, const void *b)
{
    const struct literal *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, (size_t)(x->n < y->n ? x->n : y->n));
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static int32_t common_bytes(const struct literal *a, const struct literal *b)
{
    int32_t n = 0, most = a->n < b->n ? a->n : b->n;
    while (n < most && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

static int32_t bytes_within(struct syntax *s, const struct literal *l, int32_t begin, int32_t end)
{
    return begin == end
               ? syntax_empty(s)
               : add_node(s,
                          (struct node){ .kind = NODE_BYTES, .first = l->first + begin, .n = end - begin });
}

/* Joins the ways of the last branch, whose texts begin with l's, into one way of the branch before it, or of a
 * new one at this depth, if that is deeper. */
static void close_branch(struct syntax *s, struct literal_tree *t, const struct literal *l, int32_t depth)
{
    struct branch *last = &t->open[t->n_open - 1], *below = last - 1;
    int32_t own = last->depth, end = below->depth > depth ? below->depth : depth;
    int32_t node = add_list(s, NODE_CHOICE, t->ways + last->first_way, t->n_ways - last->first_way);
    t->n_ways = last->first_way;
    t->ways[t->n_ways++] = SYNTAX_SEQ(s, bytes_within(s, l, end, own), node);
    if (below->depth < depth)
        last->depth = depth;
    else
        t->n_open--;
}

static int32_t build_tree(struct syntax *s, struct literal_tree *t)
{
    t->open[t->n_open++] = (struct branch){ 0 };
    for (size_t i = 0; i < t->n && !s->is_full; i++) {
        const struct literal *l = &t->sorted[i];
        int32_t next = i + 1 < t->n ? common_bytes(l, l + 1) : 0;
        if (next > t->open[t->n_open - 1].depth)
            t->open[t->n_open++] = (struct branch){ .depth = next, .first_way = t->n_ways };
        t->ways[t->n_ways++] = bytes_within(s, l, t->open[t->n_open - 1].depth, l->n);
        while (t->open[t->n_open - 1].depth > next)
            close_branch(s, t, l, next);
    }
    return t->n_ways == 1 ? t->ways[0] : add_list(s, NODE_CHOICE, t->ways, t->n_ways);
}

static void sort_literals(struct syntax *s, struct literal_tree *t, const int32_t *nodes, size_t n)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const struct node *node = &s->nodes[nodes[i]];
        t->sorted[i] = (struct literal){ .bytes = (const uint8_t *)s->bytes.bytes + node->first,
                                         .first = node->first,
                                         .n = node->n };
        n_bytes += (size_t)node->n;
    }
    syntax_spend(s, n * 16 + n_bytes);
    qsort(t->sorted, n, sizeof *t->sorted, compare_literals);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || compare_literals(&t->sorted[t->n - 1], &t->sorted[i]) != 0)
            t->sorted[t->n++] = t->sorted[i];
}

static int32_t choice_of_literals(struct syntax *s, const int32_t *nodes, size_t n)
{
    struct literal_tree t = { .sorted = calloc(n, sizeof *t.sorted),
                              .open = calloc(n, sizeof *t.open),
                              .ways = calloc(n, sizeof *t.ways) };
    int32_t node = -1;
    if (t.sorted && t.open && t.ways) {
        sort_literals(s, &t, nodes, n);
        node = build_tree(s, &t);
    } else {
        syntax_no_memory(s);
    }
    free(t.sorted);
    free(t.open);
    free(t.ways);
    return node;
}

static bool are_literals(const struct syntax *s, const int32_t *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (nodes[i] < 0 || s->nodes[nodes[i]].kind != NODE_BYTES)
            return false;
    return true;
}

int32_t syntax_choice(struct syntax *s, const int32_t *nodes, size_t n)
{
    if (n == 1)
        return nodes[0];
    if (n == 0 || s->is_full)
        return add_list(s, NODE_CHOICE, nodes, n);
    if (are_literals(s, nodes, n))
        return choice_of_literals(s, nodes, n);
    return n > MAX_FACTORED ? add_list(s, NODE_CHOICE, nodes, n) : factor(s, nodes, n, 0, 0);
}

bool syntax_repeat_sign(char sign, int32_t *min, int32_t *max)
{
    *min = sign == '+';
    *max = sign == '?' ? 1 : REPEAT_FOREVER;
    return sign == '*' || sign == '+' || sign == '?';
}

int32_t syntax_repeat(struct syntax *s, int32_t node, int32_t min, int32_t max)
{
    if (max == 0)
        return syntax_empty(s);
    if (min == 1 && max == 1)
        return node;
    /* (x+)? and the like become x*: nested repetitions would multiply the ways to match a text. */
    const struct node *inner = node >= 0 && !s->is_full ? &s->nodes[node] : NULL;
    bool is_simple = min <= 1 && (max == 1 || max == REPEAT_FOREVER);
    if (is_simple && inner && inner->kind == NODE_REPEAT && inner->min <= 1 &&
        (inner->max == 1 || inner->max == REPEAT_FOREVER)) {
        min = inner->min * min;
        max = max == 1 && inner->max == 1 ? 1 : REPEAT_FOREVER;
        if (min == inner->min && max == inner->max)
            return node;
        node = inner->first;
    }
    return add_node(s, (struct node){ .kind = NODE_REPEAT, .first = node, .min = min, .max = max });
}

int32_t syntax_rule(struct syntax *s, int32_t rule)
{
    return add_node(s, (struct node){ .kind = NODE_RULE, .first = rule });
}

int32_t syntax_add_rule(struct syntax *s, const char *name, size_t n_bytes)
{
    if (!syntax_grow(s, &s->rules, &s->rules_room, s->n_rules, 1, sizeof *s->rules, LIMIT_GRAMMAR_RULES))
        return -1;
    if (!take_bytes(s, n_bytes))
        return -1;
    char *copy = name ? strndup(name, n_bytes) : NULL;
    if (name && !copy)
        return syntax_no_memory(s);
    s->rules[s->n_rules] = (struct rule){ .node = -1, .name = copy };
    return (int32_t)s->n_rules++;
}

void syntax_define(struct syntax *s, int32_t rule, int32_t node)
{
    if (rule >= 0)
        s->rules[rule].node = node;
}

enum tutti_status syntax_check(const struct syntax *s, struct tutti_error *err)
{
    if (s->has_no_memory)
        return error_set(err, TUTTI_E_MEMORY, "grammar: out of memory");
    if (budget_is_over(s->budget))
        return budget_explain(s->budget, err);
    if (s->is_full)
        return error_set(err, TUTTI_E_LIMIT, "the grammar is too large: more than %d parts or %d rules",
                         LIMIT_GRAMMAR_NODES, LIMIT_GRAMMAR_RULES);
    return TUTTI_OK;
}

/* ---- ranges ---- */

static int compare_ranges(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

size_t ranges_normalize(struct char_range *ranges, size_t n)
{
    size_t n_kept = 0;
    if (n > 1)
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (n_kept > 0 && ranges[i].low <= ranges[n_kept - 1].high + 1) {
            if (ranges[i].high > ranges[n_kept - 1].high)
                ranges[n_kept - 1].high = ranges[i].high;
        } else {
            ranges[n_kept++] = ranges[i];
        }
    }
    return n_kept;
}

size_t ranges_invert(const struct char_range *ranges, size_t n, struct char_range *out)
{
    uint32_t next = 0;
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].low > next)
            out[n_out++] = (struct char_range){ next, ranges[i].low - 1 };
        next = ranges[i].high + 1;
    }
    if (next <= MAX_CODE_POINT)
        out[n_out++] = (struct char_range){ next, MAX_CODE_POINT };
    return n_out;
}

size_t ranges_intersect(const struct char_range *a, size_t n_a, const struct char_range *b, size_t n_b,
                        struct char_range *out)
{
    size_t n = 0;
    for (size_t i = 0; i < n_a; i++) {
        for (size_t k = 0; k < n_b; k++) {
            uint32_t low = a[i].low > b[k].low ? a[i].low : b[k].low;
            uint32_t high = a[i].high < b[k].high ? a[i].high : b[k].high;
            if (low <= high)
                out[n++] = (struct char_range){ low, high };
        }
    }
    return n;
}
