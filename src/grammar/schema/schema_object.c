/* Grammars of objects: the listed properties in their order, then others. */
#include "grammar/schema/schema_reader.h"

#include "base/ids.h"
#include "grammar/schema/schema_arguments.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_FREE_KEY = 64,         /* characters of a property that is not listed */
    MAX_PATTERNS = 6,          /* in patternProperties */
    MAX_OBJECT_STATES = 65536, /* properties times their count */
    MAX_DIFFERENT_KEYS = 32,   /* properties that are not listed, but needed for minProperties */
};

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* ---- properties ---- */

struct property {
    const char *name;
    const json_t *schema; /* NULL: anything */
    bool is_required;
    int32_t node;
};

struct properties {
    const json_t *schema;
    struct property *list;
    size_t n;
    const json_t *further;          /* properties that no keyword names: a schema; NULL: none allowed */
    const json_t *patterns, *names; /* patternProperties, propertyNames */
    json_t *listed_names;           /* all names that propertyNames allows, if it lists them; else NULL */
};

static const char **sorted_names(const json_t *list, size_t *n)
{
    size_t i;
    const json_t *entry;
    const char **names = calloc(json_array_size(list) + 1, sizeof *names);
    *n = 0;
    json_array_foreach(list, i, entry)
    {
        if (names && json_is_string(entry))
            names[(*n)++] = json_string_value(entry);
    }
    if (names)
        qsort(names, *n, sizeof *names, compare_keys);
    return names;
}

static bool matches(struct schema_reader *r, const char *pattern, const char *name)
{
    return regex_accepts(r, schema_pattern(r, pattern, strlen(pattern), false, true), name, strlen(name));
}

bool schema_matches_any(struct schema_reader *r, const json_t *patterns, const char *name)
{
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value)
    {
        if (matches(r, pattern, name))
            return true;
    }
    return false;
}

/* What holds for a property: its own schema (own; NULL: none), those of the patterns that match its name,
 * or else the one for further properties. False is returned as the schema false. */
static const json_t *described(struct schema_reader *r, const struct properties *p, const char *name,
                               const json_t *own)
{
    const char *pattern;
    json_t *value;
    bool is_known = own;
    json_object_foreach((json_t *)(uintptr_t)p->patterns, pattern, value)
    {
        if (matches(r, pattern, name)) {
            own = schema_both(r, own, value);
            is_known = true;
        }
    }
    if (p->names) {
        json_t *text = json_string(name);
        bool is_allowed = text && schema_allows(r, p->names, text);
        json_decref(text);
        if (!is_allowed)
            return json_false();
    }
    if (is_known)
        return own;
    return json_object_get(p->schema, "additionalProperties");
}

/* All strings that propertyNames allows, if it lists them. */
static json_t *list_names(struct schema_reader *r, const json_t *names)
{
    json_t *ways = names && !json_is_boolean(names) ? schema_flatten(r, names) : NULL, *flat, *value;
    json_t *out = ways ? json_array() : NULL;
    size_t i, k;
    json_array_foreach(ways, i, flat)
    {
        json_t *only = json_object_get(flat, "const"), *list = json_object_get(flat, "enum");
        if (!only && !json_is_array(list)) {
            json_decref(out);
            return NULL;
        }
        if (only && json_is_string(only) && schema_allows_listed(r, flat, only))
            json_array_append(out, only);
        json_array_foreach(list, k, value)
        {
            if (json_is_string(value) && schema_allows_listed(r, flat, value))
                json_array_append(out, value);
        }
    }
    return out;
}

static void add_property(struct schema_reader *r, struct properties *p, const char *name, const json_t *own,
                         bool is_required)
{
    const json_t *schema = described(r, p, name, own);
    if (!json_is_false(schema) || is_required)
        p->list[p->n++] = (struct property){ name, schema, is_required, -1 };
}

static bool read_properties(struct schema_reader *r, const json_t *schema, struct properties *p)
{
    const json_t *own = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    const json_t *further = json_object_get(schema, "additionalProperties"), *entry;
    const char *name;
    json_t *value;
    size_t n_required, i;
    p->schema = schema;
    p->patterns = json_object_get(schema, "patternProperties");
    p->names = json_object_get(schema, "propertyNames");
    if ((own && !json_is_object(own)) || (required && !json_is_array(required)) ||
        (p->patterns && !json_is_object(p->patterns))) {
        schema_fail(r, "properties and patternProperties must be objects, and required a list");
        return false;
    }
    bool is_closed = json_is_false(further) || (!further && (own || p->patterns));
    p->further = is_closed ? NULL : further ? further : json_true();
    p->listed_names = list_names(r, p->names);
    const char **names = sorted_names(required, &n_required);
    p->list = calloc(json_object_size(own) + json_array_size(required) + json_array_size(p->listed_names) + 1,
                     sizeof *p->list);
    if (!names || !p->list) {
        free(names);
        schema_no_memory(r);
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)own, name, value)
    {
        bool is_required = bsearch(&name, names, n_required, sizeof *names, compare_keys);
        if (r->status == TUTTI_OK)
            add_property(r, p, name, value, is_required);
    }
    /* The names that are listed, and those that are required, without a schema of their own. */
    json_array_foreach(p->listed_names, i, entry)
    {
        name = json_string_value(entry);
        bool is_required = bsearch(&name, names, n_required, sizeof *names, compare_keys);
        const json_t *known = json_object_get(own, name);
        bool is_new = !known && (!is_closed || p->patterns);
        for (size_t k = 0; k < p->n && is_new; k++)
            is_new = strcmp(p->list[k].name, name) != 0;
        if (is_new && !is_required && schema_spend(r, 1 + p->n / 8) &&
            (!is_closed || schema_matches_any(r, p->patterns, name)))
            add_property(r, p, name, NULL, false);
    }
    for (i = 0; i < n_required; i++)
        if (!json_object_get(own, names[i]) && (i == 0 || strcmp(names[i - 1], names[i])))
            add_property(r, p, names[i], NULL, true);
    free(names);
    return r->status == TUTTI_OK;
}

/* "name": value */
static int32_t member(struct schema_reader *r, int32_t key, const json_t *schema)
{
    struct syntax *s = r->out;
    int32_t value = schema ? schema_value(r, schema) : schema_any_value(r);
    return SYNTAX_SEQ(s, key, syntax_text(s, ":"), syntax_repeat(s, syntax_text(s, " "), 0, 1), value);
}

static int32_t property(struct schema_reader *r, const struct property *p)
{
    json_t *name = json_string(p->name);
    if (!name)
        return schema_no_memory(r);
    int32_t key = schema_literal(r, name);
    json_decref(name);
    size_t n_path = schema_enter(r, "properties", p->name);
    int32_t node = member(r, key, p->schema);
    schema_leave(r, n_path);
    return r->status == TUTTI_OK ? schema_share(r, node) : -1;
}

/* ---- properties that are not listed ---- */

/* Properties whose names match the same patterns of patternProperties. */
struct key_class {
    int32_t names; /* a term */
    const json_t *schema;
    const char *part; /* for the path */
    int32_t value;    /* node */
};

struct key_classes {
    struct key_class list[1 << MAX_PATTERNS];
    size_t n;
};

/* The names that no listed property has, and that propertyNames allows. */
static int32_t free_names(struct schema_reader *r, const struct properties *p)
{
    struct ids texts = { 0 };
    const char *name;
    json_t *value, *flat;
    size_t i;
    bool ok = true;
    for (i = 0; i < p->n && ok; i++)
        ok = ids_add(&texts, regex_text(r, p->list[i].name, strlen(p->list[i].name)));
    json_object_foreach(json_object_get(p->schema, "properties"), name, value)
    {
        if (json_is_false(value) && ok)
            ok = ids_add(&texts, regex_text(r, name, strlen(name)));
    }
    int32_t term = ok ? regex_not(r, regex_or(r, texts.ids, texts.n)) : schema_no_memory(r);
    ids_clear(&texts);
    if (!p->names || json_is_true(p->names) || r->status != TUTTI_OK)
        return term;
    json_t *ways = json_is_false(p->names) ? NULL : schema_flatten(r, p->names);
    int32_t allowed = regex_none(r);
    json_array_foreach(ways, i, flat)
    {
        if (schema_named_types(r, flat) & TYPE_STRING)
            allowed = regex_or(r, (int32_t[]){ allowed, schema_string_term(r, flat) }, 2);
    }
    return regex_and(r, (int32_t[]){ term, allowed }, 2);
}

static bool add_class(struct schema_reader *r, struct key_classes *c, int32_t names, const json_t *schema,
                      const char *part)
{
    bool is_none = json_is_false(schema);
    if (!is_none && !regex_check_none(r, names, &is_none))
        return false;
    if (is_none)
        return true;
    size_t n_path = schema_enter(r, part, NULL);
    int32_t value = schema ? schema_value(r, schema) : schema_any_value(r);
    schema_leave(r, n_path);
    if (r->status == TUTTI_OK)
        c->list[c->n++] = (struct key_class){ names, schema, part, schema_share(r, value) };
    return r->status == TUTTI_OK;
}

/* Adds the properties that match these patterns (bits of set) and no others. */
static bool add_pattern_class(struct schema_reader *r, const struct properties *p, struct key_classes *c,
                              int32_t names, unsigned set)
{
    /* Characters that need no escape in a string. */
    static const struct char_range PLAIN[] = {
        { ' ', '!' }, { '#', '[' }, { ']', '~' }, { 0xA0, MAX_CODE_POINT }
    };
    int32_t terms[MAX_PATTERNS + 2];
    size_t n = 0, i = 0;
    const char *pattern;
    json_t *value;
    const json_t *schema = NULL;
    json_object_foreach((json_t *)(uintptr_t)p->patterns, pattern, value)
    {
        bool is_in = set >> i++ & 1;
        int32_t term = schema_pattern(r, pattern, strlen(pattern), false, !is_in);
        terms[n++] = is_in ? term : regex_not(r, term);
        if (is_in)
            schema = schema_both(r, schema, value);
    }
    terms[n++] = names;
    if (set != 0)
        return r->status == TUTTI_OK && add_class(r, c, regex_and(r, terms, n), schema, "patternProperties");
    terms[n++] = regex_repeat(r, regex_chars(r, PLAIN, sizeof PLAIN / sizeof *PLAIN), 1, MAX_FREE_KEY);
    return r->status == TUTTI_OK &&
           add_class(r, c, regex_and(r, terms, n), p->further, "additionalProperties");
}

static bool find_key_classes(struct schema_reader *r, const struct properties *p, struct key_classes *c)
{
    size_t n_patterns = json_object_size(p->patterns);
    if (p->listed_names || (!p->further && n_patterns == 0))
        return true;
    if (n_patterns > MAX_PATTERNS)
        return schema_fail(r, "patternProperties has more than %d patterns", MAX_PATTERNS) >= 0;
    int32_t names = free_names(r, p);
    for (unsigned set = p->further ? 0 : 1; set < 1u << n_patterns && r->status == TUTTI_OK; set++)
        if (!add_pattern_class(r, p, c, names, set))
            return false;
    return r->status == TUTTI_OK;
}

/* Any member of the classes. With n_ways above 1: only names whose length has this remainder, so that
 * members with different remainders have different names. */
static int32_t further_member(struct schema_reader *r, const struct key_classes *c, int32_t n_ways,
                              int32_t remainder)
{
    static const struct char_range ANY_CHAR = { 0, MAX_CODE_POINT };
    struct syntax *s = r->out;
    int32_t ways[1 << MAX_PATTERNS];
    int32_t one = regex_chars(r, &ANY_CHAR, 1);
    for (size_t i = 0; i < c->n && r->status == TUTTI_OK; i++) {
        int32_t names = c->list[i].names;
        if (n_ways > 1)
            names = regex_and(
                r,
                (int32_t[]){ names, regex_cat(r, regex_repeat(r, one, remainder, remainder),
                                              regex_repeat(r, regex_repeat(r, one, n_ways, n_ways), 0,
                                                           REPEAT_FOREVER)) },
                2);
        ways[i] = SYNTAX_SEQ(s, schema_string_of_term(r, names), syntax_text(s, ":"),
                             syntax_repeat(s, syntax_text(s, " "), 0, 1), c->list[i].value);
    }
    return r->status == TUTTI_OK ? schema_share(r, syntax_choice(s, ways, c->n)) : -1;
}

/* ---- members ---- */

/* The members after some others, by their count (up to cap): a rule for each. */
struct member_counts {
    int32_t need, max; /* minProperties, maxProperties; REPEAT_FOREVER */
    int32_t cap;       /* without a maximum, larger counts are as this one */
    int32_t *rest;     /* [cap + 1] nodes */
};

static int32_t with_comma(struct schema_reader *r, int32_t count, int32_t node)
{
    return count > 0 ? SYNTAX_SEQ(r->out, schema_comma(r), node) : node;
}

/* Further members only, after count others. Those that minProperties needs have different names. */
static int32_t further_members(struct schema_reader *r, const struct key_classes *c,
                               const struct member_counts *m, const int32_t *different, int32_t other,
                               int32_t count)
{
    struct syntax *s = r->out;
    int32_t nodes[MAX_DIFFERENT_KEYS + 1], missing = m->need > count ? m->need - count : 0;
    if (c->n == 0)
        return missing > 0 ? syntax_choice(s, NULL, 0) : syntax_empty(s);
    for (int32_t i = 0; i < missing; i++)
        nodes[i] = with_comma(r, count + i, different[i]);
    count += missing;
    int32_t left = m->max == REPEAT_FOREVER ? m->max : m->max - count;
    int32_t next = schema_share(r, SYNTAX_SEQ(s, schema_comma(r), other));
    if (left == 0)
        nodes[missing] = syntax_empty(s);
    else if (count > 0)
        nodes[missing] = syntax_repeat(s, next, 0, left);
    else
        nodes[missing] = SYNTAX_CHOICE(
            s, syntax_empty(s),
            SYNTAX_SEQ(s, other, syntax_repeat(s, next, 0, left == REPEAT_FOREVER ? left : left - 1)));
    return schema_share(r, syntax_seq(s, nodes, (size_t)missing + 1));
}

static bool end_members(struct schema_reader *r, const struct properties *p, struct member_counts *m)
{
    struct key_classes *c = calloc(1, sizeof *c);
    int32_t different[MAX_DIFFERENT_KEYS], other = -1;
    bool ok = c || schema_no_memory(r) >= 0;
    assert(!ok || c);
    ok = ok && find_key_classes(r, p, c);
    if (ok && c->n > 0 && m->need > MAX_DIFFERENT_KEYS)
        ok = schema_fail(r, "minProperties is %d, at most %d is supported for properties that are not listed",
                         m->need, MAX_DIFFERENT_KEYS) >= 0;
    if (ok && c->n > 0)
        other = further_member(r, c, 1, 0);
    for (int32_t i = 0; ok && c->n > 0 && i < m->need; i++)
        different[i] = m->need == 1 ? other : further_member(r, c, m->need, i);
    for (int32_t k = 0; k <= m->cap && ok && r->status == TUTTI_OK; k++)
        m->rest[k] = further_members(r, c, m, different, other, k);
    free(c);
    return r->status == TUTTI_OK;
}

/* Puts a property before the rest. */
static void put_before(struct schema_reader *r, const struct property *p, struct member_counts *m)
{
    struct syntax *s = r->out;
    for (int32_t k = 0; k <= m->cap; k++) {
        int32_t next = k < m->cap ? k + 1 : m->max == REPEAT_FOREVER ? k : -1;
        int32_t with = next < 0 ? syntax_choice(s, NULL, 0)
                                : SYNTAX_SEQ(s, with_comma(r, k, p->node), m->rest[next]);
        m->rest[k] = schema_share(r, p->is_required ? with : SYNTAX_CHOICE(s, with, m->rest[k]));
    }
}

/* From the last property to the first. */
static int32_t members(struct schema_reader *r, const struct properties *p)
{
    struct member_counts m = { .need = schema_count(r, p->schema, "minProperties", 0),
                               .max = schema_count(r, p->schema, "maxProperties", REPEAT_FOREVER) };
    if (r->status != TUTTI_OK)
        return -1;
    bool is_closed = !p->further && json_object_size(p->patterns) == 0;
    if (is_closed && m.max != REPEAT_FOREVER && (size_t)m.max >= p->n)
        m.max = REPEAT_FOREVER;
    if (m.max != REPEAT_FOREVER && m.max < m.need)
        return syntax_choice(r->out, NULL, 0);
    m.cap = m.max != REPEAT_FOREVER ? m.max : m.need > 1 ? m.need : 1;
    if ((int64_t)(m.cap + 1) * (int64_t)(p->n + 1) > MAX_OBJECT_STATES)
        return schema_fail(r, "minProperties or maxProperties needs more than %d states", MAX_OBJECT_STATES);
    m.rest = calloc((size_t)m.cap + 1, sizeof *m.rest);
    if (!m.rest)
        return schema_no_memory(r);
    bool ok = end_members(r, p, &m);
    for (size_t i = p->n; i-- > 0 && ok;) {
        p->list[i].node = property(r, &p->list[i]);
        ok = r->status == TUTTI_OK && schema_spend(r, (size_t)m.cap + 1);
        if (ok)
            put_before(r, &p->list[i], &m);
    }
    int32_t node = ok ? m.rest[0] : -1;
    free(m.rest);
    return node;
}

int32_t schema_object(struct schema_reader *r, const json_t *schema)
{
    struct syntax *s = r->out;
    struct properties p = { 0 };
    int32_t node = -1;
    if (read_properties(r, schema, &p)) {
        int32_t inside = members(r, &p);
        node = SYNTAX_SEQ(s, syntax_text(s, "{"), schema_blanks(r), inside, schema_blanks(r),
                          syntax_text(s, "}"));
    }
    free(p.list);
    json_decref(p.listed_names);
    return node;
}

/* ---- arguments ---- */

/* Arguments that are written one by one cannot be counted, nor named by a pattern. */
static bool check_listed(struct schema_reader *r, const struct properties *p)
{
    size_t n_required = 0;
    for (size_t i = 0; i < p->n; i++)
        n_required += p->list[i].is_required;
    int32_t min = schema_count(r, p->schema, "minProperties", 0),
            max = schema_count(r, p->schema, "maxProperties", REPEAT_FOREVER);
    bool is_small = max != REPEAT_FOREVER && (p->further || (size_t)max < p->n);
    const char *keyword = json_object_size(p->patterns) > 0            ? "patternProperties"
                          : p->names && p->further && !p->listed_names ? "propertyNames"
                          : min > (int32_t)n_required                  ? "minProperties"
                          : is_small                                   ? "maxProperties"
                          : json_object_get(p->schema, "enum")         ? "enum"
                          : json_object_get(p->schema, "const")        ? "const"
                                                                       : NULL;
    if (keyword)
        schema_fail(r,
                    "\"%s\" of the parameters themselves cannot be enforced where the model writes each "
                    "argument by itself",
                    keyword);
    return r->status == TUTTI_OK;
}

bool schema_list_properties(struct schema_reader *r, const json_t *flat, struct schema_arguments *out)
{
    struct properties p = { 0 };
    bool ok = read_properties(r, flat, &p) && check_listed(r, &p);
    *out = (struct schema_arguments){ .n = p.n, .properties = json_object_get(flat, "properties") };
    if (ok) {
        out->list = calloc(p.n + 1, sizeof *out->list);
        ok = out->list || schema_no_memory(r) >= 0;
        assert(!ok || out->list);
    }
    for (size_t i = 0; ok && i < p.n; i++)
        out->list[i] = (struct schema_argument){ p.list[i].name, p.list[i].schema, p.list[i].is_required };
    if (ok && !p.listed_names)
        out->further = p.further;
    free(p.list);
    json_decref(p.listed_names);
    return ok;
}
