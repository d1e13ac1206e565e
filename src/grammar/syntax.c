#include "grammar/syntax.h"

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
    *s = (struct syntax){ 0 };
}

/* Makes room for n more of an array that has n_used of *room. False: the syntax is full now. */
static bool grow(struct syntax *s, void *array, size_t *room, size_t n_used, size_t n, size_t item_bytes,
                 size_t limit)
{
    if (s->is_full || n > limit || n_used > limit - n) {
        s->is_full = true;
        return false;
    }
    if (n_used + n <= *room)
        return true;
    size_t more = *room ? *room * 2 : 64;
    while (more < n_used + n)
        more *= 2;
    void *grown = realloc(*(void **)array, more * item_bytes);
    if (!grown) {
        s->is_full = s->has_no_memory = true;
        return false;
    }
    *(void **)array = grown;
    *room = more;
    return true;
}

static int32_t add_node(struct syntax *s, struct node node)
{
    if (!grow(s, &s->nodes, &s->nodes_room, s->n_nodes, 1, sizeof *s->nodes, LIMIT_GRAMMAR_NODES))
        return -1;
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
    if (!buf_add(&s->bytes, bytes, n_bytes)) {
        s->is_full = s->has_no_memory = true;
        return -1;
    }
    return add_node(s, (struct node){ .kind = NODE_BYTES, .first = (int32_t)first, .n = (int32_t)n_bytes });
}

int32_t syntax_text(struct syntax *s, const char *text)
{
    return syntax_bytes(s, text, strlen(text));
}

int32_t syntax_chars(struct syntax *s, const struct char_range *ranges, size_t n)
{
    if (!grow(s, &s->ranges, &s->ranges_room, s->n_ranges, n, sizeof *s->ranges, 4u * LIMIT_GRAMMAR_NODES))
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
    if (!grow(s, &s->children, &s->children_room, s->n_children, n, sizeof *s->children,
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

/* ---- alternatives that begin alike ----
 * "a" x | "a" y becomes "a" (x | y): otherwise each level of "(" expr "+" expr ")" | "(" expr "-" expr ")" would double the ways
 * in which a text can be read. */

enum { MAX_FACTORED = 256, MAX_FACTOR_DEPTH = 64 };

static int32_t part_of(const struct syntax *s, int32_t way, int32_t skip)
{
    const struct node *node = &s->nodes[way];
    if (node->kind == NODE_SEQ)
        return skip < node->n ? s->children[node->first + skip] : -1;
    return skip == 0 && node->kind != NODE_EMPTY ? way : -1;
}

static bool are_equal(const struct syntax *s, int32_t a, int32_t b)
{
    if (a < 0 || b < 0 || a == b)
        return a == b;
    const struct node *x = &s->nodes[a], *y = &s->nodes[b];
    if (x->kind != y->kind || x->n != y->n)
        return false;
    switch (x->kind) {
    case NODE_RULE:
        return x->first == y->first;
    case NODE_BYTES:
        return memcmp(s->bytes.bytes + x->first, s->bytes.bytes + y->first, (size_t)x->n) == 0;
    case NODE_CHARS:
        return x->n == 0 ||
               memcmp(s->ranges + x->first, s->ranges + y->first, (size_t)x->n * sizeof *s->ranges) == 0;
    default:
        return false;
    }
}

/* What is left of a way behind skip parts. */
static int32_t rest_of(struct syntax *s, int32_t way, int32_t skip)
{
    int32_t first = s->nodes[way].first, n = s->nodes[way].n, left;
    if (skip == 0)
        return way;
    if (part_of(s, way, skip) < 0)
        return syntax_empty(s);
    left = n - skip;
    if (left == 1)
        return s->children[first + skip];
    /* The parts stand in the children already. */
    return add_node(s, (struct node){ .kind = NODE_SEQ, .first = first + skip, .n = left });
}

static int32_t factor(struct syntax *s, const int32_t *ways, size_t n, int32_t skip, int depth)
{
    int32_t out[MAX_FACTORED], group[MAX_FACTORED];
    bool is_taken[MAX_FACTORED] = { false };
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        size_t n_group = 1;
        int32_t head = part_of(s, ways[i], skip);
        if (is_taken[i])
            continue;
        group[0] = ways[i];
        for (size_t k = i + 1; k < n; k++) {
            if (!is_taken[k] && are_equal(s, head, part_of(s, ways[k], skip))) {
                is_taken[k] = true;
                group[n_group++] = ways[k];
            }
        }
        if (n_group == 1 || head < 0 || depth == MAX_FACTOR_DEPTH) {
            for (size_t k = 0; k < (head < 0 ? 1 : n_group); k++)
                out[n_out++] = rest_of(s, group[k], skip);
        } else {
            int32_t tail = factor(s, group, n_group, skip + 1, depth + 1);
            out[n_out++] = SYNTAX_SEQ(s, head, tail);
        }
    }
    return n_out == 1 ? out[0] : add_list(s, NODE_CHOICE, out, n_out);
}

int32_t syntax_choice(struct syntax *s, const int32_t *nodes, size_t n)
{
    if (n == 1)
        return nodes[0];
    return n == 0 || n > MAX_FACTORED || s->is_full ? add_list(s, NODE_CHOICE, nodes, n)
                                                    : factor(s, nodes, n, 0, 0);
}

int32_t syntax_repeat(struct syntax *s, int32_t node, int32_t min, int32_t max)
{
    if (max == 0)
        return syntax_empty(s);
    if (min == 1 && max == 1)
        return node;
    return add_node(s, (struct node){ .kind = NODE_REPEAT, .first = node, .min = min, .max = max });
}

int32_t syntax_rule(struct syntax *s, int32_t rule)
{
    return add_node(s, (struct node){ .kind = NODE_RULE, .first = rule });
}

int32_t syntax_add_rule(struct syntax *s, const char *name, size_t n_bytes)
{
    if (!grow(s, &s->rules, &s->rules_room, s->n_rules, 1, sizeof *s->rules, LIMIT_GRAMMAR_RULES))
        return -1;
    char *copy = name ? strndup(name, n_bytes) : NULL;
    if (name && !copy) {
        s->is_full = s->has_no_memory = true;
        return -1;
    }
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
