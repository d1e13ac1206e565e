/* Creates and compares values, lists and dicts. */
#include "template/values/value.h"

#include "base/hash.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { HASHED_FROM = 12 }; /* pairs: below that, a linear search is cheaper */

/* ---- the rendering's bounds ---- */

struct value fail(struct render *r, enum tutti_status status, const char *format, ...)
{
    if (failed(r))
        return value_undefined("");
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = error_set(r->err, status, "%s: line %d: %s", r->name, r->line, text);
    return value_undefined("");
}

bool spend(struct render *r, size_t n_bytes)
{
    if (failed(r))
        return false;
    r->n_steps += 1 + n_bytes / 64;
    if (r->n_steps <= r->limits.n_steps)
        return true;
    fail(r, TUTTI_E_LIMIT, "more than %llu steps", (unsigned long long)r->limits.n_steps);
    return false;
}

bool enter(struct render *r)
{
    r->depth++;
    if (r->depth > r->limits.depth)
        fail(r, TUTTI_E_LIMIT, "nested deeper than %d", r->limits.depth);
    return !failed(r);
}

void leave(struct render *r)
{
    r->depth--;
}

static void *no_memory(struct render *r)
{
    if (r->arena.is_over_limit)
        fail(r, TUTTI_E_LIMIT, "more than %zu bytes of memory", r->arena.limit);
    else
        fail(r, TUTTI_E_MEMORY, "out of memory");
    return NULL;
}

void *take(struct render *r, size_t n_items, size_t item_bytes)
{
    size_t n;
    if (failed(r))
        return NULL;
    if (__builtin_mul_overflow(n_items, item_bytes, &n)) {
        r->arena.is_over_limit = true;
        return no_memory(r);
    }
    void *at = arena_take(&r->arena, n);
    return at ? at : no_memory(r);
}

bool take_room(struct render *r, void *array, size_t n, size_t *capacity, size_t item_bytes)
{
    if (failed(r))
        return false;
    return arena_grow(&r->arena, array, n, capacity, item_bytes) || no_memory(r);
}

/* ---- constructors ---- */

struct value value_undefined(const char *name)
{
    return (struct value){ .kind = VALUE_UNDEFINED, .bytes = name, .n_bytes = strlen(name) };
}

struct value value_none(void)
{
    return (struct value){ .kind = VALUE_NONE };
}

struct value value_absent(void)
{
    return (struct value){ .kind = VALUE_ABSENT };
}

struct value value_bool(bool is_true)
{
    return (struct value){ .kind = VALUE_BOOL, .is_true = is_true };
}

struct value value_int(int64_t i)
{
    return (struct value){ .kind = VALUE_INT, .i = i };
}

struct value value_float(double f)
{
    return (struct value){ .kind = VALUE_FLOAT, .f = f };
}

struct value value_string(const char *bytes, size_t n_bytes)
{
    return (struct value){ .kind = VALUE_STRING, .bytes = bytes, .n_bytes = n_bytes };
}

struct value value_cstring(const char *text)
{
    return value_string(text, strlen(text));
}

struct value value_slice(struct value string, size_t begin, size_t end)
{
    string.bytes += begin;
    string.n_bytes = end - begin;
    if (string.marks)
        string.marks += begin;
    return string;
}

struct value value_list(struct render *r, enum list_kind kind)
{
    struct list *list = take(r, 1, sizeof *list);
    if (!list)
        return value_undefined("");
    list->kind = kind;
    return (struct value){ .kind = VALUE_LIST, .list = list };
}

struct value value_dict(struct render *r)
{
    struct dict *dict = take(r, 1, sizeof *dict);
    return dict ? (struct value){ .kind = VALUE_DICT, .dict = dict } : value_undefined("");
}

struct value value_pair(struct render *r, struct value first, struct value second)
{
    struct value pair = value_list(r, LIST_TUPLE);
    list_add(r, pair.list, first);
    list_add(r, pair.list, second);
    return pair;
}

static struct value string_from_json(struct render *r, const json_t *json, enum origin origin, bool is_role)
{
    struct value string = value_string(json_string_value(json), json_string_length(json));
    string.origin = origin;
    for (const char *const *role = r->roles; is_role && role && *role; role++) {
        if (value_is_string(string, *role))
            string.origin = ORIGIN_TRUSTED;
    }
    return string;
}

static struct value dict_from_json(struct render *r, const json_t *json, enum origin origin)
{
    struct value out = value_dict(r);
    /* jansson's iterators need a mutable object and do not change it. */
    json_t *object = (json_t *)(uintptr_t)json;
    for (void *at = json_object_iter(object); at && !failed(r); at = json_object_iter_next(object, at)) {
        struct value key = value_string(json_object_iter_key(at), json_object_iter_key_len(at));
        key.origin = origin;
        struct value item = value_from_json(r, json_object_iter_value(at), origin,
                                            value_is_string(key, "role"));
        dict_set(r, out.dict, key, item);
    }
    return out;
}

struct value value_from_json(struct render *r, const json_t *json, enum origin origin, bool is_role)
{
    struct value out = value_none();
    if (!enter(r) || !spend(r, 0)) {
        leave(r);
        return out;
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        out = dict_from_json(r, json, origin);
        break;
    case JSON_ARRAY:
        out = value_list(r, LIST_LIST);
        for (size_t i = 0; i < json_array_size(json) && !failed(r); i++)
            list_add(r, out.list, value_from_json(r, json_array_get(json, i), origin, false));
        break;
    case JSON_STRING:
        out = string_from_json(r, json, origin, is_role);
        break;
    case JSON_INTEGER:
        out = value_int(json_integer_value(json));
        break;
    case JSON_REAL:
        out = value_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        out = value_bool(json_is_true(json));
        break;
    case JSON_NULL:
        break;
    }
    leave(r);
    return out;
}

/* ---- lists and dicts ---- */

bool list_add(struct render *r, struct list *list, struct value item)
{
    if (failed(r) || !take_room(r, &list->items, list->n, &list->capacity, sizeof *list->items))
        return false;
    list->items[list->n++] = item;
    return true;
}

bool list_add_all(struct render *r, struct list *to, const struct list *from)
{
    size_t n = from ? from->n : 0;
    for (size_t i = 0; i < n && spend(r, 0); i++)
        list_add(r, to, from->items[i]);
    return !failed(r);
}

bool list_unshare(struct render *r, struct list *list)
{
    struct list own = { .kind = list->kind };
    if (list->is_shared && list_add_all(r, &own, list))
        *list = own;
    return !failed(r);
}

/* Equal values have equal hashes: 1, 1.0 and true are equal. */
static uint64_t hash_value(struct value key)
{
    if (key.kind == VALUE_STRING)
        return hash64(0, key.bytes, key.n_bytes);
    if (value_is_number(key)) {
        double number = value_number(key) + 0.0; /* no -0 */
        return hash64(0, &number, sizeof number);
    }
    return (uint64_t)key.kind;
}

static void put_slot(struct dict *dict, size_t pair)
{
    size_t at = hash_value(dict->pairs[pair].key) & (dict->n_slots - 1);
    while (dict->slots[at])
        at = (at + 1) & (dict->n_slots - 1);
    dict->slots[at] = (uint32_t)pair + 1;
}

static bool index_pairs(struct render *r, struct dict *dict)
{
    size_t n = 32;
    while (n < dict->n * 3)
        n *= 2;
    dict->slots = take(r, n, sizeof *dict->slots);
    dict->n_slots = dict->slots ? n : 0;
    for (size_t i = 0; i < dict->n && dict->slots; i++)
        put_slot(dict, i);
    return dict->slots != NULL;
}

bool value_is_key(struct render *r, struct value key)
{
    bool is_tuple = key.kind == VALUE_LIST && key.list->kind == LIST_TUPLE;
    if (!is_tuple && (key.kind == VALUE_LIST || key.kind == VALUE_DICT || key.kind == VALUE_UNDEFINED))
        fail_type(r, "unhashable type: '%s'", value_type_name(key));
    return !failed(r);
}

bool dict_set(struct render *r, struct dict *dict, struct value key, struct value value)
{
    if (failed(r))
        return false;
    if (!value_is_key(r, key))
        return false;
    struct value *there = dict_find(r, dict, key);
    if (there || failed(r)) {
        if (there)
            *there = value;
        return !failed(r);
    }
    if (dict->n >= UINT32_MAX - 1 ||
        !take_room(r, &dict->pairs, dict->n, &dict->capacity, sizeof *dict->pairs))
        return false;
    dict->pairs[dict->n++] = (struct pair){ key, value };
    if (dict->n < HASHED_FROM)
        return true;
    if (dict->n * 2 > dict->n_slots)
        return index_pairs(r, dict);
    put_slot(dict, dict->n - 1);
    return true;
}

bool dict_update(struct render *r, struct dict *to, const struct dict *from)
{
    for (size_t i = 0; !failed(r) && i < from->n; i++)
        dict_set(r, to, from->pairs[i].key, from->pairs[i].value);
    return !failed(r);
}

struct value *dict_find(struct render *r, const struct dict *dict, struct value key)
{
    if (!spend(r, key.kind == VALUE_STRING ? key.n_bytes : 0))
        return NULL;
    if (!dict->slots) {
        for (size_t i = 0; i < dict->n && !failed(r); i++) {
            if (value_equals(r, dict->pairs[i].key, key))
                return &dict->pairs[i].value;
        }
        return NULL;
    }
    size_t at = hash_value(key) & (dict->n_slots - 1);
    for (; dict->slots[at] && spend(r, 0); at = (at + 1) & (dict->n_slots - 1)) {
        struct pair *pair = &dict->pairs[dict->slots[at] - 1];
        if (value_equals(r, pair->key, key))
            return &pair->value;
    }
    return NULL;
}

struct value *dict_find_name(struct render *r, const struct dict *dict, const char *name)
{
    return dict_find(r, dict, value_cstring(name));
}

bool dict_remove(struct render *r, struct dict *dict, struct value key, struct value *out)
{
    struct value *there = dict_find(r, dict, key);
    if (!there || !spend(r, dict->n * sizeof *dict->pairs))
        return false;
    *out = *there;
    size_t i = (size_t)((struct pair *)((char *)there - offsetof(struct pair, value)) - dict->pairs);
    memmove(&dict->pairs[i], &dict->pairs[i + 1], (dict->n - i - 1) * sizeof *dict->pairs);
    dict->n--;
    if (dict->slots)
        return index_pairs(r, dict);
    return true;
}

/* scratch: room for n pairs. */
static void merge_sort(struct render *r, struct pair *pairs, struct pair *scratch, size_t n, bool is_reversed)
{
    size_t half = n / 2, a = 0, b = half;
    if (n < 2 || failed(r))
        return;
    merge_sort(r, pairs, scratch, half, is_reversed);
    merge_sort(r, pairs + half, scratch, n - half, is_reversed);
    for (size_t i = 0; i < n && !failed(r); i++) {
        bool takes_b = a == half;
        if (a < half && b < n) {
            bool same = value_equals(r, pairs[b].key, pairs[a].key); /* even if they cannot be ordered */
            int order = same ? 0 : value_compare(r, pairs[b].key, pairs[a].key);
            takes_b = is_reversed ? order > 0 : order < 0;
        }
        scratch[i] = takes_b ? pairs[b++] : pairs[a++];
        spend(r, 0);
    }
    if (!failed(r))
        memcpy(pairs, scratch, n * sizeof *pairs);
}

void pairs_sort(struct render *r, struct pair *pairs, size_t n, bool is_reversed)
{
    struct pair *scratch = take(r, n, sizeof *scratch);
    if (scratch)
        merge_sort(r, pairs, scratch, n, is_reversed);
}

static struct list *list_of_chars(struct render *r, struct value string)
{
    struct value out = value_list(r, LIST_LIST);
    for (size_t i = 0; i < string.n_bytes && spend(r, 0);) {
        uint32_t code;
        size_t n = (size_t)text_char(string.bytes + i, string.n_bytes - i, &code);
        list_add(r, out.list, value_slice(string, i, i + n));
        i += n;
    }
    return failed(r) ? NULL : out.list;
}

struct list *value_iterate(struct render *r, struct value value)
{
    struct value out;
    if (failed(r))
        return NULL;
    switch (value.kind) {
    case VALUE_LIST:
        if (value.list->kind != LIST_GENERATOR)
            return value.list;
        out = value_list(r, LIST_LIST);
        if (failed(r))
            return NULL;
        out.list->items = value.list->items;
        out.list->n = out.list->capacity = value.list->n;
        value.list->n = 0; /* a generator can be consumed only once */
        return out.list;
    case VALUE_DICT:
        out = value_list(r, LIST_LIST);
        for (size_t i = 0; i < value.dict->n && !failed(r); i++)
            list_add(r, out.list, value.dict->pairs[i].key);
        return failed(r) ? NULL : out.list;
    case VALUE_STRING:
        return list_of_chars(r, value);
    case VALUE_UNDEFINED:
        out = value_list(r, LIST_LIST);
        return failed(r) ? NULL : out.list;
    default:
        fail_type(r, "'%s' object is not iterable", value_type_name(value));
        return NULL;
    }
}

/* ---- queries ---- */

bool value_is_true(struct value value)
{
    switch (value.kind) {
    case VALUE_UNDEFINED:
    case VALUE_ABSENT:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return value.is_true;
    case VALUE_INT:
        return value.i != 0;
    case VALUE_FLOAT:
        return value.f < 0 || value.f > 0 || isnan(value.f);
    case VALUE_STRING:
        return value.n_bytes > 0;
    case VALUE_LIST:
        return value.list->kind == LIST_GENERATOR || value.list->n > 0;
    case VALUE_DICT:
        return value.dict->n > 0;
    default:
        return true;
    }
}

bool value_is_number(struct value value)
{
    return value_is_integer(value) || value.kind == VALUE_FLOAT;
}

double value_number(struct value value)
{
    return value.kind == VALUE_FLOAT ? value.f : (double)value_integer(value);
}

bool value_is_string(struct value value, const char *text)
{
    size_t n = strlen(text);
    return value.kind == VALUE_STRING && value.n_bytes == n && memcmp(value.bytes, text, n) == 0;
}

bool value_is_integer(struct value value)
{
    return value.kind == VALUE_BOOL || value.kind == VALUE_INT;
}

int64_t value_integer(struct value value)
{
    return value.kind == VALUE_BOOL ? value.is_true : value.i;
}

const char *value_name(struct render *r, struct value string)
{
    char *name = take(r, string.n_bytes + 1, 1);
    if (name && string.n_bytes > 0)
        memcpy(name, string.bytes, string.n_bytes);
    return name ? name : "";
}

static int order(bool less, bool more)
{
    return less ? -1 : more;
}

static int compare_numbers(struct value a, struct value b)
{
    if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT)
        return order(value_integer(a) < value_integer(b), value_integer(a) > value_integer(b));
    return order(value_number(a) < value_number(b), value_number(a) > value_number(b));
}

static bool lists_equal(struct render *r, const struct list *a, const struct list *b)
{
    bool same_kind = a->kind == b->kind || (a->kind != LIST_TUPLE && b->kind != LIST_TUPLE);
    if (a == b)
        return true;
    if (!same_kind || a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        if (!spend(r, 0) || !value_equals(r, a->items[i], b->items[i]))
            return false;
    }
    return true;
}

static bool dicts_equal(struct render *r, const struct dict *a, const struct dict *b)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        struct value *other = dict_find(r, b, a->pairs[i].key);
        if (!other || !value_equals(r, a->pairs[i].value, *other))
            return false;
    }
    return true;
}

bool value_equals(struct render *r, struct value a, struct value b)
{
    if (value_is_number(a) && value_is_number(b)) {
        bool is_nan = isnan(value_number(a)) || isnan(value_number(b));
        return !is_nan && compare_numbers(a, b) == 0;
    }
    if (a.kind != b.kind)
        return false;
    bool equal = false;
    switch (a.kind) {
    case VALUE_STRING:
        return a.n_bytes == b.n_bytes && spend(r, a.n_bytes) && memcmp(a.bytes, b.bytes, a.n_bytes) == 0;
    case VALUE_LIST:
    case VALUE_DICT:
        if (enter(r) && spend(r, 0))
            equal = a.kind == VALUE_LIST ? lists_equal(r, a.list, b.list) : dicts_equal(r, a.dict, b.dict);
        leave(r);
        return equal && !failed(r);
    case VALUE_NONE:
    case VALUE_UNDEFINED:
        return true;
    default:
        return a.dict == b.dict; /* the same object */
    }
}

static int compare_lists(struct render *r, const struct list *a, const struct list *b)
{
    int result = 0;
    size_t i = 0;
    if (enter(r)) {
        while (i < a->n && i < b->n && spend(r, 0) && value_equals(r, a->items[i], b->items[i]))
            i++;
        if (i < a->n && i < b->n)
            result = failed(r) ? 0 : value_compare(r, a->items[i], b->items[i]);
        else
            result = order(a->n<b->n, a->n> b->n);
    }
    leave(r);
    return result;
}

int value_compare(struct render *r, struct value a, struct value b)
{
    if (value_is_number(a) && value_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == VALUE_STRING && b.kind == VALUE_STRING) {
        size_t n = a.n_bytes < b.n_bytes ? a.n_bytes : b.n_bytes;
        /* The order of UTF-8 bytes is that of code points. */
        int first = spend(r, n) && n > 0 ? memcmp(a.bytes, b.bytes, n) : 0;
        return first ? order(first < 0, true) : order(a.n_bytes<b.n_bytes, a.n_bytes> b.n_bytes);
    }
    if (a.kind == VALUE_LIST && b.kind == VALUE_LIST && a.list->kind == b.list->kind)
        return compare_lists(r, a.list, b.list);
    fail_type(r, "'%s' and '%s' have no order", value_type_name(a), value_type_name(b));
    return 0;
}

const char *value_type_name(struct value value)
{
    static const char *const NAMES[] = {
        [VALUE_UNDEFINED] = "Undefined", [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",           [VALUE_INT] = "int",
        [VALUE_FLOAT] = "float",         [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",           [VALUE_DICT] = "dict",
        [VALUE_NAMESPACE] = "Namespace", [VALUE_BUILTIN] = "function",
        [VALUE_MACRO] = "Macro",         [VALUE_LOOP] = "LoopContext",
        [VALUE_ABSENT] = "nothing",
    };
    static const char *const LISTS[] = {
        [LIST_LIST] = "list",        [LIST_TUPLE] = "tuple",    [LIST_GENERATOR] = "generator",
        [LIST_RANGE] = "range",      [LIST_KEYS] = "dict_keys", [LIST_VALUES] = "dict_values",
        [LIST_ITEMS] = "dict_items",
    };
    return value.kind == VALUE_LIST ? LISTS[value.list->kind] : NAMES[value.kind];
}
