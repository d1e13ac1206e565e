#include "model/chat/calls/call_notation.h"

#include "base/buf.h"
#include "base/json/json_print.h"
#include "model/chat/calls/call_values.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NESTED = 32 };

static const char ITEM[] = "item"; /* the name of the elements of a list */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_bracket(char c)
{
    return c && strchr("{}[],:", c);
}

/* Whether text begins with mark, or with as much of it as there is. */
static bool may_begin(const char *mark, const char *text, size_t n_bytes)
{
    size_t n = strlen(mark);
    return memcmp(text, mark, n < n_bytes ? n : n_bytes) == 0;
}

/* ---- Gemma ---- */

enum notation_found notation_scan_dict(struct notation_scan *scan, const char *mark, const char *text,
                                       size_t n_bytes)
{
    size_t n_mark = strlen(mark);
    while (scan->at < n_bytes) {
        char c = text[scan->at];
        if (may_begin(mark, text + scan->at, n_bytes - scan->at)) {
            if (n_bytes - scan->at < n_mark)
                return NOTATION_MORE;
            scan->is_text = !scan->is_text;
            scan->at += n_mark;
            continue;
        }
        if (!scan->is_text && scan->depth == 0 && (c == ',' || c == '}' || c == ']'))
            return NOTATION_END;
        if (!scan->is_text)
            scan->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        scan->at++;
    }
    return NOTATION_MORE;
}

static bool add_json(struct buf *out, json_t *value)
{
    bool ok = value && json_print_to(out, value, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(value);
    return ok;
}

/* Prints a word without marks: a name if a colon follows, else a value. Returns where it ends; 0: out of
 * memory, or no UTF-8. */
static size_t add_word(struct buf *out, const char *mark, const char *text, size_t at, size_t n_bytes)
{
    size_t n_mark = strlen(mark), end = at, last = at;
    for (; end < n_bytes && !is_bracket(text[end]); end++) {
        if (n_bytes - end >= n_mark && memcmp(text + end, mark, n_mark) == 0)
            break;
        if (!is_blank(text[end]))
            last = end + 1;
    }
    bool is_name = end < n_bytes && text[end] == ':';
    json_t *word = is_name ? json_stringn(text + at, last - at)
                           : call_value_parse(text + at, last - at, false);
    return add_json(out, word) ? end : 0;
}

json_t *notation_parse_dict(const char *mark, const char *text, size_t n_bytes)
{
    size_t n_mark = strlen(mark), at = 0;
    struct buf json = { 0 };
    json_t *value = NULL;
    bool ok = true;
    while (ok && at < n_bytes) {
        if (is_blank(text[at])) {
            at++;
        } else if (is_bracket(text[at])) {
            ok = buf_add(&json, text + at++, 1);
        } else if (n_bytes - at >= n_mark && memcmp(text + at, mark, n_mark) == 0) {
            const char *from = text + at + n_mark, *end = memmem(from, n_bytes - at - n_mark, mark, n_mark);
            ok = end && add_json(&json, json_stringn(from, (size_t)(end - from)));
            at = ok ? (size_t)(end - text) + n_mark : n_bytes;
        } else {
            at = add_word(&json, mark, text, at, n_bytes);
            ok = at > 0;
        }
    }
    if (ok && json.n_bytes > 0)
        value = json_loadb(json.bytes, json.n_bytes,
                           JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    buf_clear(&json);
    return value;
}

/* ---- elements ---- */

enum notation_found notation_scan_element(struct notation_scan *scan, const char *mark, const char *text,
                                          size_t n_bytes)
{
    size_t n_mark = strlen(mark);
    while (scan->at < n_bytes) {
        const char *tag = text + scan->at;
        size_t n_left = n_bytes - scan->at;
        if (!may_begin(mark, tag, n_left)) {
            scan->at++;
            continue;
        }
        if (n_left < n_mark + 2)
            return NOTATION_MORE;
        bool is_close = memcmp(tag + n_mark, "</", 2) == 0;
        if (is_close && scan->depth == 0)
            return memchr(tag + n_mark, '>', n_left - n_mark) ? NOTATION_END : NOTATION_MORE;
        if (tag[n_mark] == '<')
            scan->depth += is_close ? -1 : 1;
        scan->at += n_mark;
    }
    return NOTATION_MORE;
}

size_t notation_close_bytes(const char *mark, const char *text, size_t n_bytes, const char *name)
{
    size_t n_mark = strlen(mark), n_name = strlen(name), n = n_mark + 2 + n_name + 1;
    bool ok = n_bytes >= n && memcmp(text, mark, n_mark) == 0 && memcmp(text + n_mark, "</", 2) == 0 &&
              memcmp(text + n_mark + 2, name, n_name) == 0 && text[n - 1] == '>';
    return ok ? n : 0;
}

struct element {
    const char *mark;
    const json_t *root; /* the schema of all arguments */
    json_t *lists;      /* the children's values by name, each name with a list */
    size_t n_children;
    const char *text;
    size_t n_bytes;
};

static json_t *parse_element(const struct element *parent, const char *text, size_t n_bytes,
                             const json_t *schema, int n_deeper);

/* Reads one child from *at on. */
static bool parse_child(struct element *e, size_t *at, const json_t *schema, int n_deeper)
{
    size_t n_mark = strlen(e->mark), n_left = e->n_bytes - *at;
    const char *tag = e->text + *at, *name = tag + n_mark + 1;
    bool is_tag = n_left > n_mark && memcmp(tag, e->mark, n_mark) == 0 && tag[n_mark] == '<';
    const char *end = is_tag ? memchr(name, '>', n_left - n_mark - 1) : NULL;
    if (!end || memchr(name, '\0', (size_t)(end - name)))
        return false;
    size_t begin = (size_t)(end - e->text) + 1, n_close = 0;
    struct notation_scan scan = { .at = begin };
    char *copy = strndup(name, (size_t)(end - name));
    if (copy && notation_scan_element(&scan, e->mark, e->text, e->n_bytes) == NOTATION_END)
        n_close = notation_close_bytes(e->mark, e->text + scan.at, e->n_bytes - scan.at, copy);
    bool ok = n_close > 0;
    if (ok && !json_object_get(e->lists, copy))
        ok = json_object_set_new(e->lists, copy, json_array()) == 0;
    const json_t *below = call_schema_below(e->root, schema, copy);
    if (ok && !below && strcmp(copy, ITEM) == 0)
        below = call_schema_below(e->root, schema, NULL);
    ok = ok &&
         json_array_append_new(json_object_get(e->lists, copy),
                               parse_element(e, e->text + begin, scan.at - begin, below, n_deeper)) == 0;
    free(copy);
    *at = scan.at + n_close;
    e->n_children++;
    return ok;
}

/* A list, if all children are items and the schema has no member of that name; else an object, in which
 * several children of one name are a list. */
static json_t *join_children(const struct element *e, const json_t *schema)
{
    json_t *items = json_object_get(e->lists, ITEM), *object = json_object(), *list;
    const char *name;
    if (items && json_array_size(items) == e->n_children && !call_schema_below(e->root, schema, ITEM)) {
        json_decref(object);
        return json_incref(items);
    }
    bool ok = object;
    json_object_foreach(e->lists, name, list)
    {
        json_t *value = json_array_size(list) == 1 ? json_array_get(list, 0) : list;
        ok = ok && json_object_set(object, name, value) == 0;
    }
    if (!ok)
        json_decref(object);
    return ok ? object : NULL;
}

/* Recursive, up to MAX_NESTED levels. */
static json_t *parse_element(const struct element *parent, const char *text, size_t n_bytes,
                             const json_t *schema, int n_deeper)
{
    unsigned types = call_schema_types(parent->root, schema);
    bool has_tags = memmem(text, n_bytes, parent->mark, strlen(parent->mark));
    if (types & CALL_TYPE_TEXT && (has_tags || !(types & CALL_TYPE_OTHER)))
        return json_stringn(text, n_bytes);
    if (!has_tags)
        return call_value_parse(text, n_bytes, types & (CALL_TYPE_TEXT | CALL_TYPE_ANY));
    struct element e = {
        .mark = parent->mark, .root = parent->root, .lists = json_object(), .text = text, .n_bytes = n_bytes
    };
    bool ok = n_deeper > 0 && e.lists;
    for (size_t at = 0; ok && at < n_bytes;) {
        if (is_blank(text[at]))
            at++;
        else
            ok = parse_child(&e, &at, schema, n_deeper - 1);
    }
    json_t *value = ok ? join_children(&e, schema) : NULL;
    json_decref(e.lists);
    return value;
}

json_t *notation_parse_element(const char *mark, const char *text, size_t n_bytes, const json_t *parameters,
                               const char *name)
{
    struct element e = { .mark = mark, .root = parameters };
    return parse_element(&e, text, n_bytes, call_schema_below(parameters, parameters, name), MAX_NESTED);
}
