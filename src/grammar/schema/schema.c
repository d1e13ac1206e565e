/* Compiles a schema: values, references, alternatives, and listed values. */
#include "grammar/schema/schema_reader.h"

#include "base/containers/array.h"
#include "base/json/json_wide.h"
#include "base/limits.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors and their path ---- */

int32_t schema_fail(struct schema_reader *r, const char *format, ...)
{
    char text[256];
    va_list args;
    if (r->status != TUTTI_OK)
        return -1;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->is_raw)
        r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "grammar", "%s", text);
    else
        r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "response_format", "the JSON schema, at %s: %s",
                                    r->path, text);
    return -1;
}

int32_t schema_no_memory(struct schema_reader *r)
{
    if (r->status == TUTTI_OK)
        r->status = error_set(r->err, TUTTI_E_MEMORY, "the JSON schema: out of memory");
    return -1;
}

bool schema_spend(struct schema_reader *r, size_t n_steps)
{
    if (r->status == TUTTI_OK && !syntax_spend(r->out, n_steps))
        r->status = syntax_check(r->out, r->err);
    return r->status == TUTTI_OK;
}

bool schema_take_bytes(struct schema_reader *r, size_t n_bytes)
{
    r->bytes_taken += n_bytes;
    if (!budget_take_bytes(r->out->budget, n_bytes) && r->status == TUTTI_OK)
        r->status = budget_explain(r->out->budget, r->err);
    return r->status == TUTTI_OK;
}

bool schema_grow(struct schema_reader *r, void *array, size_t *room, size_t n, size_t item_bytes)
{
    enum tutti_status st = r->status == TUTTI_OK
                               ? budget_grow(r->out->budget, array, room, n, item_bytes, &r->bytes_taken)
                               : r->status;
    if (st == TUTTI_E_LIMIT)
        schema_take_bytes(r, 0); /* sets the error */
    else if (st != TUTTI_OK)
        schema_no_memory(r);
    return st == TUTTI_OK;
}

size_t schema_enter(struct schema_reader *r, const char *part, const char *name)
{
    size_t before = r->n_path;
    int n = snprintf(r->path + before, sizeof r->path - before, name ? ".%s.%s" : ".%s", part, name);
    size_t after = before + (size_t)(n > 0 ? n : 0);
    r->n_path = after < sizeof r->path ? after : sizeof r->path - 1;
    return before;
}

void schema_leave(struct schema_reader *r, size_t n_path)
{
    r->n_path = n_path;
    r->path[n_path] = '\0';
}

int32_t schema_note_nothing(struct schema_reader *r, int32_t node)
{
    struct syntax *s = r->out;
    bool is_known = r->status == TUTTI_OK && node >= 0 && !s->is_full;
    if (is_known && !r->is_raw && !*s->nothing && s->nodes[node].kind == NODE_CHOICE && s->nodes[node].n == 0)
        snprintf(s->nothing, sizeof s->nothing, "%s", r->path);
    return node;
}

/* ---- pieces ---- */

int32_t schema_share(struct schema_reader *r, int32_t node)
{
    int32_t rule = syntax_add_rule(r->out, NULL, 0);
    if (rule < 0)
        return -1;
    syntax_define(r->out, rule, node);
    return syntax_rule(r->out, rule);
}

int32_t schema_blanks(struct schema_reader *r)
{
    int32_t node = -1;
    if (r->blanks < 0)
        r->blanks = schema_share(r, schema_raw(r, "| |\n[ \t]{0,40}", &node));
    return r->blanks;
}

/* {...} or [...]: items separated by commas. */
static int32_t any_list(struct schema_reader *r, const char *open, int32_t item, const char *close)
{
    struct syntax *s = r->out;
    int32_t blanks = schema_blanks(r);
    int32_t more = syntax_repeat(s, SYNTAX_SEQ(s, syntax_text(s, ","), blanks, item), 0, REPEAT_FOREVER);
    int32_t items = SYNTAX_CHOICE(s, syntax_empty(s), SYNTAX_SEQ(s, item, more));
    return SYNTAX_SEQ(s, syntax_text(s, open), blanks, items, blanks, syntax_text(s, close));
}

static void make_any(struct schema_reader *r)
{
    struct syntax *s = r->out;
    int32_t value = syntax_add_rule(s, NULL, 0);
    if (value < 0)
        return;
    r->any_value = syntax_rule(s, value);
    r->any_number = schema_share(r, schema_number(r, NULL, false)); /* no keywords */
    r->any_integer = schema_share(r, schema_number(r, NULL, true));
    int32_t colon = SYNTAX_SEQ(s, syntax_text(s, ":"), syntax_repeat(s, syntax_text(s, " "), 0, 1));
    int32_t member = schema_share(r, SYNTAX_SEQ(s, schema_any_string(r), colon, r->any_value));
    r->any_object = schema_share(r, any_list(r, "{", member, "}"));
    r->any_array = schema_share(r, any_list(r, "[", r->any_value, "]"));
    syntax_define(s, value,
                  SYNTAX_CHOICE(s, r->any_object, r->any_array, schema_any_string(r), r->any_number,
                                schema_word(r, "true"), schema_word(r, "false"), schema_word(r, "null")));
}

int32_t schema_any_value(struct schema_reader *r)
{
    if (r->any_value < 0)
        make_any(r);
    return r->any_value;
}

int32_t schema_count(struct schema_reader *r, const json_t *schema, const char *name, int32_t fallback)
{
    const json_t *value = json_object_get(schema, name);
    if (!value)
        return fallback;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number != (double)(json_int_t)number)
        return schema_fail(r, "%s must be an integer of 0 or more", name);
    if (number > LIMIT_GRAMMAR_REPEAT && strncmp(name, "min", 3) == 0) /* a smaller number would allow more */
        return schema_fail(r, "%s must be at most %d", name, LIMIT_GRAMMAR_REPEAT);
    return number > LIMIT_GRAMMAR_REPEAT ? LIMIT_GRAMMAR_REPEAT : (int32_t)number;
}

/* ---- values ---- */

static int32_t of_ref(struct schema_reader *r, const json_t *ref)
{
    const json_t *target = schema_resolve(r, ref);
    if (!target)
        return -1;
    int32_t rule = key_map_find(&r->refs, schema_key(target));
    if (rule >= 0)
        return syntax_rule(r->out, rule);
    if (r->refs.n == MAX_SCHEMA_REFS)
        return schema_fail(r, "more than %d references", MAX_SCHEMA_REFS);
    rule = syntax_add_rule(r->out, NULL, 0);
    if (rule < 0)
        return -1;
    /* At most MAX_SCHEMA_REFS. */
    if (!array_grow(&r->pending, r->n_pending, &r->pending_room, sizeof *r->pending) ||
        !key_map_add(&r->refs, schema_key(target), rule))
        return schema_no_memory(r);
    r->pending[r->n_pending++] = (struct schema_ref){ target, json_string_value(ref), rule };
    return syntax_rule(r->out, rule);
}

/* Including references that are found meanwhile. */
void schema_define_refs(struct schema_reader *r)
{
    while (r->n_pending > 0 && r->status == TUTTI_OK) {
        struct schema_ref ref = r->pending[--r->n_pending];
        int n = snprintf(r->path, sizeof r->path, "%s", ref.name);
        r->n_path = (size_t)n < sizeof r->path ? (size_t)n : sizeof r->path - 1;
        int32_t node = schema_value(r, ref.target);
        syntax_define(r->out, ref.rule, node);
    }
}

static int32_t of_list(struct schema_reader *r, const json_t *list, const char *name)
{
    size_t n = json_array_size(list), i;
    const json_t *way;
    if (n == 0)
        return schema_fail(r, "%s must be a list of at least one schema", name);
    int32_t *nodes = calloc(n, sizeof *nodes);
    if (!nodes)
        return schema_no_memory(r);
    json_array_foreach(list, i, way)
    {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        size_t n_path = schema_enter(r, name, number);
        nodes[i] = schema_value(r, way);
        schema_leave(r, n_path);
        if (r->status != TUTTI_OK)
            break;
    }
    int32_t node = r->status == TUTTI_OK ? syntax_choice(r->out, nodes, n) : -1;
    free(nodes);
    return node;
}

static int32_t of_enum(struct schema_reader *r, const json_t *schema, const json_t *list)
{
    size_t n_kept = 0, i;
    json_t *value;
    int32_t *nodes = calloc(json_array_size(list) + 1, sizeof *nodes);
    if (!nodes)
        return schema_no_memory(r);
    json_array_foreach((json_t *)(uintptr_t)list, i, value)
    {
        if (schema_allows_listed(r, schema, value))
            nodes[n_kept++] = schema_literal(r, value);
        if (r->status != TUTTI_OK)
            break;
    }
    int32_t node = r->status == TUTTI_OK ? syntax_choice(r->out, nodes, n_kept) : -1;
    free(nodes);
    return node;
}

static int32_t of_types(struct schema_reader *r, const json_t *schema)
{
    int32_t ways[8];
    size_t n = 0;
    unsigned types = json_object_get(schema, "type") ? schema_named_types(r, schema)
                                                     : schema_infer_types(schema);
    if (r->status != TUTTI_OK)
        return -1;
    if (types == TYPE_ANY && !schema_says_more(schema, "type"))
        return schema_any_value(r);
    if (types & TYPE_NULL)
        ways[n++] = schema_word(r, "null");
    if (types & TYPE_BOOLEAN)
        ways[n++] = SYNTAX_CHOICE(r->out, schema_word(r, "true"), schema_word(r, "false"));
    if (types & (TYPE_NUMBER | TYPE_INTEGER))
        ways[n++] = schema_number(r, schema, !(types & TYPE_NUMBER));
    if (types & TYPE_STRING)
        ways[n++] = schema_string(r, schema);
    if (types & TYPE_ARRAY)
        ways[n++] = schema_array(r, schema);
    if (types & TYPE_OBJECT)
        ways[n++] = schema_object(r, schema);
    return r->status == TUTTI_OK ? syntax_choice(r->out, ways, n) : -1;
}

static int32_t of_flat(struct schema_reader *r, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "enum"), *value = json_object_get(schema, "const");
    if (list && !json_is_array(list))
        return schema_fail(r, "enum must be a list");
    if (list)
        return of_enum(r, schema, list);
    if (value)
        return schema_allows_listed(r, schema, (json_t *)(uintptr_t)value) ? schema_literal(r, value)
               : r->status == TUTTI_OK                                     ? syntax_choice(r->out, NULL, 0)
                                                                           : -1;
    return of_types(r, schema);
}

/* A schema whose keywords must be merged first. */
static int32_t of_mixture(struct schema_reader *r, const json_t *schema)
{
    json_t *ways = schema_flatten(r, schema);
    size_t n = json_array_size(ways);
    int32_t nodes[MAX_SCHEMA_WAYS];
    for (size_t i = 0; ways && i < n && r->status == TUTTI_OK; i++)
        nodes[i] = of_flat(r, json_array_get(ways, i));
    return ways && r->status == TUTTI_OK ? syntax_choice(r->out, nodes, n) : -1;
}

static int32_t of_object(struct schema_reader *r, const json_t *schema)
{
    const json_t *ref = json_object_get(schema, "$ref"), *any = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "oneOf"), *all = json_object_get(schema, "allOf");
    if (!schema_check_keywords(r, schema))
        return -1;
    if (ref && !schema_says_more(schema, "$ref"))
        return of_ref(r, ref);
    if (any && !schema_says_more(schema, "anyOf"))
        return json_is_array(any) ? of_list(r, any, "anyOf") : schema_fail(r, "anyOf must be a list");
    if (one && !schema_says_more(schema, "oneOf") && schema_is_disjoint_list(r, NULL, one))
        return of_list(r, one, "oneOf");
    if (all && !schema_says_more(schema, "allOf") && json_array_size(all) == 1)
        return of_list(r, all, "allOf");
    return schema_combines(schema) ? of_mixture(r, schema) : of_flat(r, schema);
}

int32_t schema_value(struct schema_reader *r, const json_t *schema)
{
    if (r->status != TUTTI_OK)
        return -1;
    if (json_is_true(schema))
        return schema_any_value(r);
    if (json_is_false(schema))
        return syntax_choice(r->out, NULL, 0);
    if (!json_is_object(schema))
        return schema_fail(r, "a schema must be an object, true or false");
    if (!schema_spend(r, 1))
        return -1;
    if (++r->depth > MAX_SCHEMA_DEPTH)
        return schema_fail(r, "schemas nest deeper than %d levels", MAX_SCHEMA_DEPTH);
    int32_t node = schema_note_nothing(r, of_object(r, schema));
    r->depth--;
    return node;
}

/* ---- all together ---- */

struct schema_reader *schema_reader_new(struct syntax *out, struct tutti_error *err)
{
    struct schema_reader *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->out = out;
    r->err = err;
    r->made = json_array();
    r->path[r->n_path++] = '$';
    r->blanks = r->any_value = r->any_object = r->any_array = r->any_string = r->any_number = r->any_integer =
        -1;
    r->free_text = r->plain_char = -1;
    if (!r->made) {
        free(r);
        return NULL;
    }
    return r;
}

enum tutti_status schema_finish(struct schema_reader *r, int32_t node, bool is_whole)
{
    schema_define_refs(r);
    if (r->status == TUTTI_OK && is_whole) {
        r->out->root = syntax_add_rule(r->out, NULL, 0);
        syntax_define(r->out, r->out->root, node);
    }
    enum tutti_status st = r->status;
    if (st == TUTTI_OK)
        st = syntax_check(r->out, r->err);
    json_decref(r->made);
    json_decref(r->root);
    key_map_clear(&r->refs);
    key_map_clear(&r->strings);
    free(r->pending);
    regexes_clear(&r->regexes);
    budget_return_bytes(r->out->budget, r->bytes_taken);
    free(r);
    return st;
}

/* jansson parses recursively, so too deep nesting is refused before. *n_bytes_of_values: memory
 * that the parsed values will take. */
static bool nests_too_deep(const char *text, size_t n_bytes, size_t *n_bytes_of_values)
{
    enum { OBJECT_BYTES = 256, ARRAY_BYTES = 144, VALUE_BYTES = 112 };
    int depth = 0;
    bool in_string = false;
    *n_bytes_of_values = n_bytes + VALUE_BYTES;
    for (size_t i = 0; i < n_bytes; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        if (in_string)
            continue;
        if (c == '{' || c == '[') {
            depth++;
            *n_bytes_of_values += c == '{' ? OBJECT_BYTES : ARRAY_BYTES;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',' || c == ':') {
            *n_bytes_of_values += VALUE_BYTES;
        }
        if (depth > 4 * LIMIT_JSON_DEPTH)
            return true;
    }
    return false;
}

json_t *schema_parse(struct schema_reader *r, const char *text, size_t n_bytes)
{
    json_error_t at;
    size_t n_bytes_of_values;
    if (nests_too_deep(text, n_bytes, &n_bytes_of_values)) {
        r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "response_format",
                                    "the JSON schema nests deeper than %d levels", 4 * LIMIT_JSON_DEPTH);
        return NULL;
    }
    if (!schema_take_bytes(r, n_bytes_of_values) || !schema_spend(r, n_bytes))
        return NULL;
    json_t *value = json_load_wide(text, n_bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &at);
    if (!value)
        r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "response_format",
                                    "the JSON schema is not valid JSON: line %d, column %d: %s", at.line,
                                    at.column, at.text);
    return value;
}

enum tutti_status schema_read(struct syntax *out, const char *text, size_t n_bytes, struct tutti_error *err)
{
    struct schema_reader *r = schema_reader_new(out, err);
    if (!r)
        return error_set(err, TUTTI_E_MEMORY, "the JSON schema: out of memory");
    r->root = schema_parse(r, text, n_bytes);
    return schema_finish(r, r->root ? schema_value(r, r->root) : -1, true);
}

enum tutti_status schema_read_pattern(struct syntax *out, const char *text, size_t n_bytes,
                                      struct tutti_error *err)
{
    if (!utf8_is_valid(text, n_bytes))
        return error_set_param(err, TUTTI_E_ARGUMENT, "grammar", "the pattern is not valid UTF-8");
    struct schema_reader *r = schema_reader_new(out, err);
    if (!r)
        return error_set(err, TUTTI_E_MEMORY, "the pattern: out of memory");
    r->is_raw = true;
    return schema_finish(r, regex_node(r, schema_pattern(r, text, n_bytes, true, false)), true);
}

enum tutti_status schema_any_object(struct syntax *out, struct tutti_error *err)
{
    struct schema_reader *r = schema_reader_new(out, err);
    if (!r)
        return error_set(err, TUTTI_E_MEMORY, "the JSON schema: out of memory");
    schema_any_value(r);
    return schema_finish(r, r->any_object, true);
}
