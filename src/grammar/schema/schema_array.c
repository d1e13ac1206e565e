/* Grammars of arrays. */
#include "grammar/schema/schema_reader.h"

#include "base/ids.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_ARRAY_STATES = 16384, /* items so far, times items found by contains */
    MAX_ANY_ORDER = 8,        /* this many different values of uniqueItems come in any order */
    N_UNIQUE_CLASSES = 8,     /* items of uniqueItems that are not listed values */
};

int32_t schema_comma(struct schema_reader *r)
{
    return SYNTAX_SEQ(r->out, syntax_text(r->out, ","), schema_blanks(r));
}

static int32_t bracketed(struct schema_reader *r, int32_t inside)
{
    struct syntax *s = r->out;
    return SYNTAX_SEQ(s, syntax_text(s, "["), schema_blanks(r), inside, schema_blanks(r),
                      syntax_text(s, "]"));
}

/* One entry of prefixItems, or items. */
static int32_t item(struct schema_reader *r, const json_t *schema, const char *name, const char *number)
{
    size_t n_path = schema_enter(r, name, number);
    int32_t node = schema ? schema_value(r, schema) : schema_any_value(r);
    schema_leave(r, n_path);
    return r->status == TUTTI_OK ? schema_share(r, node) : -1;
}

/* The keywords of an array. */
struct array_rules {
    const json_t *prefix, *items;
    size_t n_prefix;
    int32_t min, max;
};

/* ---- items without contains ---- */

/* The items after the n_before items of the prefix; the first item of an array has no comma
 * before it. */
static int32_t further_items(struct schema_reader *r, int32_t node, int32_t n_before, int32_t min,
                             int32_t max)
{
    struct syntax *s = r->out;
    int32_t left = max == REPEAT_FOREVER ? REPEAT_FOREVER : max - n_before,
            need = min > n_before ? min - n_before : 0;
    int32_t next = schema_share(r, SYNTAX_SEQ(s, schema_comma(r), node));
    if (n_before > 0)
        return syntax_repeat(s, next, need, left);
    if (left == 0)
        return syntax_empty(s);
    int32_t more = syntax_repeat(s, next, need > 0 ? need - 1 : 0, left == REPEAT_FOREVER ? left : left - 1);
    int32_t some = SYNTAX_SEQ(s, node, more);
    return need > 0 ? some : SYNTAX_CHOICE(s, syntax_empty(s), some);
}

static int32_t plain_items(struct schema_reader *r, const struct array_rules *a)
{
    struct syntax *s = r->out;
    size_t n_prefix = a->max != REPEAT_FOREVER && (size_t)a->max < a->n_prefix ? (size_t)a->max : a->n_prefix;
    int32_t n = (int32_t)n_prefix, rest;
    if (json_is_false(a->items))
        rest = a->min > n ? syntax_choice(s, NULL, 0) : syntax_empty(s);
    else
        rest = further_items(r, item(r, a->items, "items", NULL), n, a->min, a->max);
    for (int32_t i = n - 1; i >= 0 && r->status == TUTTI_OK; i--) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        int32_t own = item(r, json_array_get(a->prefix, (size_t)i), "prefixItems", number);
        int32_t way = i > 0 ? SYNTAX_SEQ(s, schema_comma(r), own, rest) : SYNTAX_SEQ(s, own, rest);
        rest = schema_share(r, i < a->min ? way : SYNTAX_CHOICE(s, syntax_empty(s), way));
    }
    return rest;
}

/* ---- contains ---- */

/* States: the number of items so far, and of those that contains has found. With maxContains an item
 * that is not counted is one that contains does not find. */
struct contains_rules {
    int32_t min, max;      /* minContains, maxContains */
    int32_t last, cap;     /* larger counts are as these */
    int32_t *others, *own; /* nodes of an item [n_prefix + 1]: not counted, counted; -1: none */
};

static bool contains_items(struct schema_reader *r, const struct array_rules *a, const json_t *contains,
                           struct contains_rules *c)
{
    const json_t *other = c->max == REPEAT_FOREVER ? NULL : schema_inverse(r, contains);
    for (size_t i = 0; i <= a->n_prefix && r->status == TUTTI_OK; i++) {
        const json_t *own = i < a->n_prefix ? json_array_get(a->prefix, i) : a->items;
        c->others[i] = c->own[i] = -1;
        if (json_is_false(own))
            continue;
        c->own[i] = item(r, schema_both(r, own, contains), "contains", NULL);
        c->others[i] = item(r, schema_both(r, own, other), "items", NULL);
    }
    return r->status == TUTTI_OK;
}

static void define_contains_state(struct schema_reader *r, const struct array_rules *a,
                                  const struct contains_rules *c, const int32_t *rules, int32_t i, int32_t k)
{
    struct syntax *s = r->out;
    int32_t ways[3], width = c->cap + 1, next = i < c->last ? i + 1 : i, found = k < c->cap ? k + 1 : k;
    size_t n = 0, at = (size_t)i < a->n_prefix ? (size_t)i : a->n_prefix;
    bool may_go_on = a->max == REPEAT_FOREVER || i < a->max;
    int32_t comma = i > 0 ? schema_comma(r) : syntax_empty(s);
    if (i >= a->min && k >= c->min)
        ways[n++] = syntax_empty(s);
    if (may_go_on && c->others[at] >= 0)
        ways[n++] = SYNTAX_SEQ(s, comma, c->others[at], syntax_rule(s, rules[next * width + k]));
    if (may_go_on && c->own[at] >= 0 && (c->max == REPEAT_FOREVER ? k < c->min : k < c->max))
        ways[n++] = SYNTAX_SEQ(s, comma, c->own[at], syntax_rule(s, rules[next * width + found]));
    syntax_define(s, rules[i * width + k], syntax_choice(s, ways, n));
}

static int32_t counted_items(struct schema_reader *r, const struct array_rules *a, const json_t *schema)
{
    struct contains_rules c = { .min = schema_count(r, schema, "minContains", 1),
                                .max = schema_count(r, schema, "maxContains", REPEAT_FOREVER) };
    int32_t longest = a->min > (int32_t)a->n_prefix ? a->min : (int32_t)a->n_prefix;
    c.last = a->max != REPEAT_FOREVER ? a->max : longest > 0 ? longest : 1;
    c.cap = c.max != REPEAT_FOREVER ? c.max : c.min;
    if (r->status != TUTTI_OK)
        return -1;
    if ((int64_t)(c.last + 1) * (c.cap + 1) > MAX_ARRAY_STATES)
        return schema_fail(r,
                           "contains with these minItems, maxItems, minContains and maxContains needs more "
                           "than %d states",
                           MAX_ARRAY_STATES);
    size_t n_states = (size_t)(c.last + 1) * (size_t)(c.cap + 1);
    int32_t *rules = calloc(n_states, sizeof *rules);
    c.others = calloc(2 * (a->n_prefix + 1), sizeof *c.others);
    c.own = c.others ? c.others + a->n_prefix + 1 : NULL;
    bool ok = rules && c.others;
    if (!ok)
        schema_no_memory(r);
    ok = ok && schema_spend(r, n_states) && contains_items(r, a, json_object_get(schema, "contains"), &c);
    for (size_t i = 0; i < n_states && ok; i++)
        ok = (rules[i] = syntax_add_rule(r->out, NULL, 0)) >= 0;
    for (int32_t i = 0; i <= c.last && ok; i++)
        for (int32_t k = 0; k <= c.cap; k++)
            define_contains_state(r, a, &c, rules, i, k);
    int32_t node = ok ? syntax_rule(r->out, rules[0]) : -1;
    free(rules);
    free(c.others);
    return node;
}

/* ---- uniqueItems ---- */

/* Items that differ: each node is for values that no other node has. */
struct different_items {
    struct ids nodes;
    bool is_sorted; /* too many for any order: they come in theirs */
};

/* Adds the values that a flat schema lists. False: it lists none, or error. */
static bool list_values(struct schema_reader *r, const json_t *flat, json_t *values)
{
    json_t *list = json_object_get(flat, "enum"), *only = json_object_get(flat, "const"), *value;
    size_t i, k;
    json_t *own = only                  ? json_pack("[O]", only)
                  : json_is_array(list) ? json_incref(list)
                  : (schema_named_types(r, flat) & ~(unsigned)(TYPE_NULL | TYPE_BOOLEAN)) == 0
                      ? json_pack("[n, b, b]", 0, 1)
                      : NULL;
    json_array_foreach(own, i, value)
    {
        bool is_new = schema_allows_listed(r, flat, value);
        for (k = 0; k < json_array_size(values) && is_new; k++)
            is_new = !schema_equal(r, json_array_get(values, k), value);
        if (is_new && json_array_append(values, value) != 0)
            schema_no_memory(r);
    }
    json_decref(own);
    return own && r->status == TUTTI_OK;
}

/* Strings by their last character. */
static void add_different_strings(struct schema_reader *r, struct different_items *d, const json_t *flat)
{
    int32_t term = schema_string_term(r, flat);
    for (uint32_t class = 0; class < N_UNIQUE_CLASSES && r->status == TUTTI_OK; class ++) {
        struct char_range last[32];
        size_t n = 0;
        for (uint32_t code = ' ' + class; code < 0x80; code += N_UNIQUE_CLASSES)
            last[n++] = (struct char_range){ code, code };
        if (class == 0)
            last[n++] = (struct char_range){ 0x80, MAX_CODE_POINT };
        int32_t ending = regex_cat(r, regex_any(r), regex_chars(r, last, n));
        int32_t own = regex_and(r, (int32_t[]){ term, ending }, 2);
        bool is_none = false;
        if (own >= 0 && regex_check_none(r, own, &is_none) && !is_none &&
            !ids_add(&d->nodes, schema_share(r, schema_quoted(r, regex_node(r, own)))))
            schema_no_memory(r);
    }
}

/* Integers by their remainder. Other numbers by their last digit, which is no 0. */
static void add_different_numbers(struct schema_reader *r, struct different_items *d, const json_t *flat,
                                  bool is_integer)
{
    struct schema_bounds b = schema_bounds(r, flat);
    for (int32_t class = 0; class < N_UNIQUE_CLASSES && r->status == TUTTI_OK; class ++) {
        int32_t node = schema_remainders(r, &b, N_UNIQUE_CLASSES, class), fraction = -1;
        char pattern[64];
        snprintf(pattern, sizeof pattern, "-?(0|[1-9][0-9]{0,14})\\.[0-9]{0,8}%d", class + 1);
        if (!is_integer && !b.has_any)
            node = SYNTAX_CHOICE(r->out, node, schema_raw(r, pattern, &fraction));
        if (!ids_add(&d->nodes, schema_share(r, node)))
            schema_no_memory(r);
    }
}

/* False: error, or the items cannot be told apart: then there are no nodes. */
static bool find_different_items(struct schema_reader *r, const json_t *items, struct different_items *d)
{
    json_t *ways = items && !json_is_true(items) ? schema_flatten(r, items) : NULL, *values = json_array(),
           *flat;
    bool are_listed = ways && values;
    size_t i;
    json_array_foreach(ways, i, flat) are_listed = are_listed && list_values(r, flat, values);
    size_t n = are_listed ? json_array_size(values) : 0;
    for (i = 0; i < n && r->status == TUTTI_OK; i++)
        if (!ids_add(&d->nodes, schema_literal(r, json_array_get(values, i))))
            schema_no_memory(r);
    json_decref(values);
    d->is_sorted = n > MAX_ANY_ORDER;
    if (are_listed || json_array_size(ways) != 1 || r->status != TUTTI_OK)
        return r->status == TUTTI_OK;
    flat = json_array_get(ways, 0);
    unsigned types = json_object_get(flat, "type") ? schema_named_types(r, flat) : schema_infer_types(flat);
    if (types == TYPE_STRING)
        add_different_strings(r, d, flat);
    else if (!(types & ~(unsigned)(TYPE_NUMBER | TYPE_INTEGER)) && !json_object_get(flat, "multipleOf"))
        add_different_numbers(r, d, flat, !(types & TYPE_NUMBER));
    return r->status == TUTTI_OK;
}

/* Each node at most once, in any order: a rule for each set of the nodes that were used. */
static int32_t in_any_order(struct schema_reader *r, const struct ids *nodes, int32_t min, int32_t max)
{
    struct syntax *s = r->out;
    int32_t rules[1 << MAX_ANY_ORDER], ways[MAX_ANY_ORDER + 1], n = (int32_t)nodes->n;
    for (int32_t set = (1 << n) - 1; set >= 0; set--) {
        int32_t count = __builtin_popcount((unsigned)set);
        size_t n_ways = 0;
        rules[set] = syntax_add_rule(s, NULL, 0);
        if (rules[set] < 0 || !schema_spend(r, (size_t)n))
            return -1;
        if (count >= min)
            ways[n_ways++] = syntax_empty(s);
        for (int32_t i = 0; i < n && count < max; i++) {
            if (set >> i & 1)
                continue;
            int32_t comma = count > 0 ? schema_comma(r) : syntax_empty(s);
            ways[n_ways++] = SYNTAX_SEQ(s, comma, nodes->ids[i], syntax_rule(s, rules[set | 1 << i]));
        }
        syntax_define(s, rules[set], syntax_choice(s, ways, n_ways));
    }
    return syntax_rule(s, rules[0]);
}

/* Each node at most once, in their order: from the last to the first, by the number of items so far. */
static int32_t in_order(struct schema_reader *r, const struct ids *nodes, int32_t min, int32_t max)
{
    struct syntax *s = r->out;
    int32_t n = (int32_t)nodes->n, cap = max < n ? max : n, node = -1;
    if ((int64_t)n * (cap + 1) > MAX_ARRAY_STATES)
        cap = min > 0 ? min : 1; /* more than cap are counted as cap, if there is no effective maxItems */
    bool is_capped = cap < (max < n ? max : n);
    if ((is_capped && max < n) || (int64_t)n * (cap + 1) > MAX_ARRAY_STATES)
        return schema_fail(
            r, "uniqueItems of %d values with these minItems and maxItems needs more than %d states", n,
            MAX_ARRAY_STATES);
    int32_t *rest = calloc((size_t)cap + 1, sizeof *rest);
    if (!rest)
        return schema_no_memory(r);
    for (int32_t k = 0; k <= cap; k++)
        rest[k] = k >= min ? syntax_empty(s) : syntax_choice(s, NULL, 0);
    for (int32_t i = n; i-- > 0 && schema_spend(r, (size_t)cap + 1);)
        for (int32_t k = 0; k <= cap; k++) {
            int32_t comma = k > 0 ? schema_comma(r) : syntax_empty(s);
            int32_t next = k < cap ? rest[k + 1] : is_capped ? rest[k] : -1;
            if (next >= 0)
                rest[k] = schema_share(r,
                                       SYNTAX_CHOICE(s, rest[k], SYNTAX_SEQ(s, comma, nodes->ids[i], next)));
        }
    node = rest[0];
    free(rest);
    return r->status == TUTTI_OK ? node : -1;
}

static int32_t unique_items(struct schema_reader *r, const struct array_rules *a)
{
    struct different_items d = { 0 };
    struct array_rules single = *a;
    int32_t node = -1, max = a->max == REPEAT_FOREVER ? INT32_MAX : a->max;
    size_t n_path = schema_enter(r, "items", NULL);
    bool ok = a->n_prefix > 0 || json_is_false(a->items) || find_different_items(r, a->items, &d);
    schema_leave(r, n_path);
    if (ok && d.nodes.n > 0) {
        node = d.is_sorted ? in_order(r, &d.nodes, a->min, max) : in_any_order(r, &d.nodes, a->min, max);
    } else if (ok) { /* items that cannot be told apart: one */
        single.max = max > 1 ? 1 : max;
        node = a->min > 1 ? schema_fail(r,
                                        "uniqueItems with minItems %d is only supported for items that are "
                                        "listed values, strings or numbers",
                                        a->min)
                          : plain_items(r, &single);
    }
    ids_clear(&d.nodes);
    return node;
}

int32_t schema_array(struct schema_reader *r, const json_t *schema)
{
    struct array_rules a = { .prefix = schema_prefix_items(schema),
                             .items = schema_further_items(schema),
                             .min = schema_count(r, schema, "minItems", 0),
                             .max = schema_count(r, schema, "maxItems", REPEAT_FOREVER) };
    bool is_unique = json_is_true(json_object_get(schema, "uniqueItems")) && a.max != 0 && a.max != 1;
    a.n_prefix = json_array_size(a.prefix);
    if (a.prefix && !json_is_array(a.prefix))
        return schema_fail(r, "prefixItems must be a list");
    if (a.n_prefix > LIMIT_GRAMMAR_REPEAT)
        return schema_fail(r, "prefixItems has more than %d entries", LIMIT_GRAMMAR_REPEAT);
    if (r->status != TUTTI_OK)
        return -1;
    if (a.max != REPEAT_FOREVER && a.max < a.min)
        return syntax_choice(r->out, NULL, 0);
    if (json_object_get(schema, "contains")) {
        if (is_unique)
            return schema_fail(r, "uniqueItems together with contains is not supported");
        return bracketed(r, counted_items(r, &a, schema));
    }
    return bracketed(r, is_unique ? unique_items(r, &a) : plain_items(r, &a));
}
