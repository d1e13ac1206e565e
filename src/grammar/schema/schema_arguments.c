#include "grammar/schema/schema_arguments.h"

#include "base/ids.h"

#include <stdlib.h>
#include <string.h>

/* ---- parameters ---- */

const json_t *schema_begin_tool(struct schema_reader *r, const json_t *parameters)
{
    bool is_any = !parameters || (json_is_object(parameters) && json_object_size(parameters) == 0);
    json_t *object = json_pack("{s:s}", "type", "object");
    if (!object || json_array_append_new(r->made, object) != 0) {
        schema_no_memory(r);
        return NULL;
    }
    json_decref(r->root);
    r->root = is_any ? json_incref(object) : json_incref((json_t *)(uintptr_t)parameters);
    r->n_path = 1;
    r->path[1] = '\0';
    const char *type = json_string_value(json_object_get(r->root, "type"));
    return type && strcmp(type, "object") == 0 ? r->root : schema_both(r, r->root, object);
}

struct schema_arguments *schema_list_arguments(struct schema_reader *r, const json_t *schema, size_t *n)
{
    json_t *flat, *list = schema_check_keywords(r, schema) ? schema_flatten(r, schema) : NULL;
    struct schema_arguments *ways = list ? calloc(json_array_size(list) + 1, sizeof *ways) : NULL;
    size_t i;
    *n = 0;
    if (list && !ways)
        schema_no_memory(r);
    json_array_foreach(list, i, flat)
    {
        if (ways && r->status == TUTTI_OK && schema_list_properties(r, flat, &ways[*n]))
            ++*n;
    }
    if (r->status == TUTTI_OK)
        return ways;
    schema_free_arguments(ways, *n);
    return NULL;
}

void schema_free_arguments(struct schema_arguments *ways, size_t n)
{
    for (size_t i = 0; ways && i < n; i++)
        free(ways[i].list);
    free(ways);
}

int32_t schema_argument_value(struct schema_reader *r, const json_t *schema)
{
    int32_t node = schema ? schema_share(r, schema_value(r, schema)) : schema_any_value(r);
    schema_define_refs(r);
    return node;
}

const json_t *schema_null_of(struct schema_reader *r, const json_t *schema)
{
    json_t *null = json_pack("{s:s}", "type", "null");
    if (!null || json_array_append_new(r->made, null) != 0) {
        schema_no_memory(r);
        return NULL;
    }
    return schema ? schema_both(r, schema, null) : null;
}

/* ---- texts ---- */

/* Texts without control characters other than tabs and line breaks. */
static int32_t clean_text(struct schema_reader *r)
{
    static const struct char_range CLEAN[] = { { '\t', '\n' }, { '\r', '\r' }, { ' ', MAX_CODE_POINT } };
    return regex_repeat(r, regex_chars(r, CLEAN, 3), 0, REPEAT_FOREVER);
}

static int32_t containing(struct schema_reader *r, const char *text)
{
    int32_t any = regex_any(r);
    return regex_cat(r, any, regex_cat(r, regex_text(r, text, strlen(text)), any));
}

/* The strings of a flat schema. */
static int32_t strings_of(struct schema_reader *r, const json_t *flat)
{
    const json_t *only = json_object_get(flat, "const");
    unsigned types = json_object_get(flat, "type") ? schema_named_types(r, flat) : (unsigned)TYPE_ANY;
    if (!(types & TYPE_STRING))
        return regex_none(r);
    if (!only)
        return schema_string_term(r, flat);
    bool is_text = json_is_string(only) && schema_allows_listed(r, flat, (json_t *)(uintptr_t)only);
    return is_text ? regex_text(r, json_string_value(only), json_string_length(only)) : regex_none(r);
}

/* Whether a flat schema allows null. */
static bool allows_null(struct schema_reader *r, const json_t *flat)
{
    const json_t *only = json_object_get(flat, "const"), *list = json_object_get(flat, "enum"), *entry;
    bool is_listed = false;
    size_t i;
    if (json_object_get(flat, "type") && !(schema_named_types(r, flat) & TYPE_NULL))
        return false;
    json_array_foreach(list, i, entry) is_listed = is_listed || json_is_null(entry);
    return only ? json_is_null(only) : list ? is_listed : json_object_get(flat, "type") != NULL;
}

/* The texts of a schema that are strings, and null where the text null means null. */
static int32_t texts_of(struct schema_reader *r, const json_t *schema, bool may_be_null)
{
    int32_t term = schema ? regex_none(r) : regex_any(r), null = regex_text(r, "null", 4);
    json_t *ways = schema ? schema_flatten(r, schema) : NULL, *flat;
    bool has_null = !schema;
    size_t i;
    json_array_foreach(ways, i, flat)
    {
        term = regex_or(r, (int32_t[]){ term, strings_of(r, flat) }, 2);
        has_null = has_null || (may_be_null && allows_null(r, flat));
    }
    if (!may_be_null || r->status != TUTTI_OK)
        return term;
    term = regex_and(r, (int32_t[]){ term, regex_not(r, null) }, 2);
    return has_null ? regex_or(r, (int32_t[]){ term, null }, 2) : term;
}

int32_t schema_argument_text(struct schema_reader *r, const json_t *schema, const struct schema_text *text)
{
    int32_t terms[2 + SCHEMA_MAX_MARKS] = { texts_of(r, schema, text->may_be_null), clean_text(r) };
    size_t n = 2;
    for (size_t i = 0; i < SCHEMA_MAX_MARKS && text->marks[i]; i++)
        terms[n++] = regex_not(r, containing(r, text->marks[i]));
    return regex_node(r, regex_and(r, terms, n));
}

int32_t schema_argument_name(struct schema_reader *r, const struct schema_arguments *listed, bool is_plain)
{
    static const char NAME[] = "[A-Za-z_][A-Za-z0-9_.-]{0,63}", PLAIN[] = "[A-Za-z_][A-Za-z0-9_]{0,63}";
    const char *pattern = is_plain ? PLAIN : NAME;
    struct ids texts = { 0 };
    const char *name;
    json_t *value;
    bool ok = true;
    for (size_t i = 0; i < listed->n && ok; i++)
        ok = ids_add(&texts, regex_text(r, listed->list[i].name, strlen(listed->list[i].name)));
    json_object_foreach((json_t *)(uintptr_t)listed->properties, name, value)
    {
        ok = ok && ids_add(&texts, regex_text(r, name, strlen(name)));
    }
    int32_t term = schema_pattern(r, pattern, strlen(pattern), true, false);
    if (ok && texts.n > 0)
        term = regex_and(r, (int32_t[]){ term, regex_not(r, regex_or(r, texts.ids, texts.n)) }, 2);
    ids_clear(&texts);
    return ok ? regex_node(r, term) : schema_no_memory(r);
}
