/* Objects and arrays. */
#include "grammar/schema/schema_reader.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ---- */

static int32_t comma(struct schema_reader *r)
{
    return SYNTAX_SEQ(r->out, syntax_text(r->out, ","), schema_blanks(r));
}

/* One entry of prefixItems, or items. */
static int32_t item(struct schema_reader *r, const json_t *schema, const char *name, const char *number)
{
    size_t n_path = schema_enter(r, name, number);
    int32_t node = schema ? schema_value(r, schema) : schema_any_value(r);
    schema_leave(r, n_path);
    return r->status == TUTTI_OK ? schema_share(r, node) : -1;
}

/* The items after the n_before items of the prefix; the first item of an array has no comma
 * before it. */
static int32_t further_items(struct schema_reader *r, int32_t node, int32_t n_before, int32_t min,
                             int32_t max)
{
    struct syntax *s = r->out;
    int32_t left = max == REPEAT_FOREVER ? REPEAT_FOREVER : max - n_before,
            need = min > n_before ? min - n_before : 0;
    int32_t next = schema_share(r, SYNTAX_SEQ(s, comma(r), node));
    if (n_before > 0)
        return syntax_repeat(s, next, need, left);
    if (left == 0)
        return syntax_empty(s);
    int32_t more = syntax_repeat(s, next, need > 0 ? need - 1 : 0, left == REPEAT_FOREVER ? left : left - 1);
    int32_t some = SYNTAX_SEQ(s, node, more);
    return need > 0 ? some : SYNTAX_CHOICE(s, syntax_empty(s), some);
}

int32_t schema_array(struct schema_reader *r, const json_t *schema)
{
    struct syntax *s = r->out;
    const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
    int32_t min = schema_count(r, schema, "minItems", 0),
            max = schema_count(r, schema, "maxItems", REPEAT_FOREVER);
    size_t n_prefix = json_array_size(prefix);
    if (json_is_array(items))
        return schema_fail(r, "items must be a schema; a list of them is called prefixItems");
    if (prefix && !json_is_array(prefix))
        return schema_fail(r, "prefixItems must be a list");
    if (n_prefix > LIMIT_GRAMMAR_REPEAT)
        return schema_fail(r, "prefixItems has more than %d entries", LIMIT_GRAMMAR_REPEAT);
    if (max != REPEAT_FOREVER && max < min)
        return syntax_choice(s, NULL, 0);
    if (max != REPEAT_FOREVER && (size_t)max < n_prefix)
        n_prefix = (size_t)max;
    int32_t n = (int32_t)n_prefix, rest;
    if (json_is_false(items))
        rest = min > n ? syntax_choice(s, NULL, 0) : syntax_empty(s);
    else
        rest = further_items(r, item(r, items, "items", NULL), n, min, max);
    for (int32_t i = n - 1; i >= 0 && r->status == TUTTI_OK; i--) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        int32_t own = item(r, json_array_get(prefix, (size_t)i), "prefixItems", number);
        int32_t way = i > 0 ? SYNTAX_SEQ(s, comma(r), own, rest) : SYNTAX_SEQ(s, own, rest);
        rest = schema_share(r, i < min ? way : SYNTAX_CHOICE(s, syntax_empty(s), way));
    }
    return SYNTAX_SEQ(s, syntax_text(s, "["), schema_blanks(r), rest, schema_blanks(r), syntax_text(s, "]"));
}

/* ---- keys that are not listed ---- */

enum { MAX_FREE_KEY = 64 };

/* Characters that need no escape in a string. */
static const struct char_range KEY_CHARS[] = { { ' ', '!' }, { '#', '[' }, { ']', '~' } };

static int32_t key_tail(struct schema_reader *r, int n_left)
{
    struct syntax *s = r->out;
    if (n_left == 0)
        return syntax_empty(s);
    if (r->key_tails[n_left] < 0)
        r->key_tails[n_left] = schema_share(
            r, SYNTAX_CHOICE(s, syntax_empty(s),
                             SYNTAX_SEQ(s, syntax_chars(s, KEY_CHARS, 3), key_tail(r, n_left - 1))));
    return r->key_tails[n_left];
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys that share depth bytes with all of the sorted ones and then differ. */
static int32_t other_keys(struct schema_reader *r, const char *const *keys, size_t n, int depth)
{
    struct syntax *s = r->out;
    struct char_range taken[128], free_chars[130], usable[130];
    int32_t ways[132];
    size_t n_taken = 0, n_ways = 0, i = 0;
    bool is_key = n > 0 && keys[0][depth] == '\0';
    if (!is_key && depth > 0)
        ways[n_ways++] = syntax_empty(s);
    for (i = is_key; i < n && depth < MAX_FREE_KEY;) {
        unsigned char c = (unsigned char)keys[i][depth];
        size_t first = i;
        while (i < n && (unsigned char)keys[i][depth] == c)
            i++;
        if (c < ' ' || c > '~' || c == '"' || c == '\\')
            continue; /* not in free keys */
        taken[n_taken++] = (struct char_range){ c, c };
        ways[n_ways++] = SYNTAX_SEQ(s, syntax_chars(s, &taken[n_taken - 1], 1),
                                    other_keys(r, keys + first, i - first, depth + 1));
    }
    if (depth < MAX_FREE_KEY) {
        size_t n_free = ranges_invert(taken, n_taken, free_chars);
        size_t n_usable = ranges_intersect(free_chars, n_free, KEY_CHARS, 3, usable);
        ways[n_ways++] = SYNTAX_SEQ(s, syntax_chars(s, usable, n_usable),
                                    key_tail(r, MAX_FREE_KEY - 1 - depth));
    }
    return syntax_choice(s, ways, n_ways);
}

/* ---- objects ---- */

struct property {
    const char *name;
    const json_t *schema; /* NULL: anything */
    bool is_required;
};

struct properties {
    struct property *list;
    size_t n;
    const json_t *further; /* a schema; NULL: no others allowed */
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

static bool read_properties(struct schema_reader *r, const json_t *schema, struct properties *p)
{
    const json_t *own = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    const json_t *further = json_object_get(schema, "additionalProperties");
    const char *name;
    json_t *value;
    size_t n_required;
    if ((own && !json_is_object(own)) || (required && !json_is_array(required))) {
        schema_fail(r, "properties must be an object, and required a list");
        return false;
    }
    p->further = json_is_false(further) || (!further && own) ? NULL : further ? further : json_true();
    const char **names = sorted_names(required, &n_required);
    p->list = calloc(json_object_size(own) + json_array_size(required) + 1, sizeof *p->list);
    if (!names || !p->list) {
        free(names);
        schema_no_memory(r);
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)own, name, value)
    {
        bool is_required = bsearch(&name, names, n_required, sizeof *names, compare_keys);
        if (!json_is_false(value) || is_required)
            p->list[p->n++] = (struct property){ name, value, is_required };
    }
    /* Required properties without a schema are described by additionalProperties. */
    for (size_t i = 0; i < n_required; i++)
        if (!json_object_get(own, names[i]) && (i == 0 || strcmp(names[i - 1], names[i])))
            p->list[p->n++] = (struct property){ names[i], further, true };
    free(names);
    return true;
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
    return node;
}

/* A member with a key of its own. */
static int32_t further_member(struct schema_reader *r, const struct properties *p, const json_t *schema)
{
    struct syntax *s = r->out;
    const char **keys = calloc(p->n + json_object_size(json_object_get(schema, "properties")) + 1,
                               sizeof *keys);
    size_t n = 0, n_path;
    const char *name;
    json_t *value;
    if (!keys)
        return schema_no_memory(r);
    for (size_t i = 0; i < p->n; i++)
        if (strlen(p->list[i].name) <= MAX_FREE_KEY)
            keys[n++] = p->list[i].name;
    json_object_foreach(json_object_get(schema, "properties"), name, value)
    {
        if (json_is_false(value) && strlen(name) <= MAX_FREE_KEY)
            keys[n++] = name;
    }
    qsort(keys, n, sizeof *keys, compare_keys);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (n_kept == 0 || strcmp(keys[n_kept - 1], keys[i]))
            keys[n_kept++] = keys[i];
    int32_t key = SYNTAX_SEQ(s, syntax_text(s, "\""), other_keys(r, keys, n_kept, 0), syntax_text(s, "\""));
    free(keys);
    n_path = schema_enter(r, "additionalProperties", NULL);
    int32_t node = member(r, key, p->further);
    schema_leave(r, n_path);
    return r->status == TUTTI_OK ? schema_share(r, node) : -1;
}

/* From the last property to the first: the rest of the object after another member (after), and
 * as the first member (first). */
static int32_t members(struct schema_reader *r, const struct properties *p, const json_t *schema)
{
    struct syntax *s = r->out;
    int32_t after = syntax_empty(s), first = after;
    if (p->further) {
        int32_t other = further_member(r, p, schema);
        after = syntax_repeat(s, schema_share(r, SYNTAX_SEQ(s, comma(r), other)), 0, REPEAT_FOREVER);
        first = SYNTAX_CHOICE(s, syntax_empty(s), SYNTAX_SEQ(s, other, after));
    }
    for (size_t i = p->n; i-- > 0 && r->status == TUTTI_OK;) {
        int32_t own = property(r, &p->list[i]);
        if (r->status != TUTTI_OK)
            break;
        if (i > 0)
            own = schema_share(r, own);
        int32_t next = schema_share(r, after);
        int32_t with = i > 0 ? SYNTAX_SEQ(s, comma(r), own, next) : -1,
                without_comma = SYNTAX_SEQ(s, own, next);
        if (p->list[i].is_required) {
            after = with;
            first = without_comma;
        } else {
            after = i > 0 ? SYNTAX_CHOICE(s, with, next) : -1;
            first = SYNTAX_CHOICE(s, without_comma, schema_share(r, first));
        }
    }
    return first;
}

int32_t schema_object(struct schema_reader *r, const json_t *schema)
{
    struct syntax *s = r->out;
    struct properties p = { 0 };
    int32_t node = -1;
    if (read_properties(r, schema, &p)) {
        int32_t inside = members(r, &p, schema);
        node = SYNTAX_SEQ(s, syntax_text(s, "{"), schema_blanks(r), inside, schema_blanks(r),
                          syntax_text(s, "}"));
    }
    free(p.list);
    return node;
}
