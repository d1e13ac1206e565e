/* Filters that sort or compare items: sort, dictsort, unique, min, max, groupby. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <string.h>

/* Items to compare are pairs: the key by which an item is compared, and the item. */

/* Strings are compared case-insensitively by default. */
static struct value fold(struct render *r, struct value key, bool case_sensitive)
{
    return key.kind == VALUE_STRING && !case_sensitive ? string_map(r, key, CASE_LOWER) : key;
}

/* Several attributes separated by commas make a list of keys. */
static struct value key_of(struct render *r, struct value item, struct value attribute, bool case_sensitive)
{
    if (attribute.kind == VALUE_ABSENT || attribute.kind == VALUE_NONE)
        return fold(r, item, case_sensitive);
    bool is_plain = attribute.kind != VALUE_STRING ||
                    text_find(attribute.bytes, attribute.n_bytes, 0, ",", 1) == SIZE_MAX;
    if (is_plain)
        return fold(r, get_path(r, item, attribute), case_sensitive);
    struct value names = string_split(r, attribute, value_cstring(","), -1, false),
                 keys = value_list(r, LIST_LIST);
    for (size_t i = 0; !failed(r) && i < names.list->n; i++)
        list_add(r, keys.list, fold(r, get_path(r, item, names.list->items[i]), case_sensitive));
    return keys;
}

static struct pair *keyed_items(struct render *r, struct value self, struct value attribute,
                                bool case_sensitive, size_t *n)
{
    struct list *items = value_iterate(r, self);
    struct pair *out = items ? take(r, items->n + 1, sizeof *out) : NULL;
    *n = out ? items->n : 0;
    for (size_t i = 0; i < *n && !failed(r); i++)
        out[i] = (struct pair){ key_of(r, items->items[i], attribute, case_sensitive), items->items[i] };
    return failed(r) ? NULL : out;
}

/* Sorts in place; returns the items as a list. */
static struct value sorted(struct render *r, struct pair *items, size_t n, bool is_reversed)
{
    struct value out = value_list(r, LIST_LIST);
    if (failed(r) || !items)
        return out;
    pairs_sort(r, items, n, is_reversed);
    for (size_t i = 0; i < n && !failed(r); i++)
        list_add(r, out.list, items[i].value);
    return out;
}

BUILTIN(f_sort)
{
    size_t n;
    struct pair *items = keyed_items(r, self, a->values[2], arg_bool(a, 1, false), &n);
    return sorted(r, items, n, arg_bool(a, 0, false));
}

BUILTIN(f_dictsort)
{
    struct value by = arg_string(r, a, 1, "key");
    bool by_value = value_is_string(by, "value");
    if (self.kind != VALUE_DICT)
        return fail_type(r, "dictsort: expected a dict, found %s", value_type_name(self));
    if (!by_value && !value_is_string(by, "key"))
        return fail_type(r, "dictsort: by must be key or value");
    struct pair *items = take(r, self.dict->n + 1, sizeof *items);
    for (size_t i = 0; i < self.dict->n && !failed(r); i++) {
        const struct pair *pair = &self.dict->pairs[i];
        items[i].key = fold(r, by_value ? pair->value : pair->key, arg_bool(a, 0, false));
        items[i].value = value_pair(r, pair->key, pair->value);
    }
    return sorted(r, failed(r) ? NULL : items, self.dict->n, arg_bool(a, 2, false));
}

BUILTIN(f_unique)
{
    size_t n;
    struct pair *items = keyed_items(r, self, a->values[1], arg_bool(a, 0, false), &n);
    struct value out = value_list(r, LIST_GENERATOR), seen = value_dict(r);
    for (size_t i = 0; items && i < n && !failed(r); i++) {
        if (dict_find(r, seen.dict, items[i].key))
            continue;
        dict_set(r, seen.dict, items[i].key, value_none());
        list_add(r, out.list, items[i].value);
    }
    return out;
}

/* min and max; mode: the sign of the order. */
BUILTIN(f_extreme)
{
    size_t n, best = 0;
    struct pair *items = keyed_items(r, self, a->values[1], arg_bool(a, 0, false), &n);
    if (!items || n == 0)
        return value_undefined("No aggregated item, sequence was empty.");
    for (size_t i = 1; i < n && spend(r, 0); i++) {
        if (value_compare(r, items[i].key, items[best].key) * a->mode > 0)
            best = i;
    }
    return items[best].value;
}

BUILTIN(f_groupby)
{
    size_t n;
    bool case_sensitive = arg_bool(a, 2, false);
    if (a->values[1].kind != VALUE_ABSENT && a->values[1].kind != VALUE_NONE)
        return fail_type(r, "groupby: default is not supported");
    struct pair *items = keyed_items(r, self, a->values[0], case_sensitive, &n);
    struct value order = sorted(r, items, n, false), out = value_list(r, LIST_LIST), last = value_absent();
    struct value group = value_absent();
    for (size_t i = 0; !failed(r) && i < order.list->n; i++) {
        struct value key = items[i].key;
        if (last.kind == VALUE_ABSENT || !value_equals(r, key, last)) {
            group = value_list(r, LIST_LIST);
            list_add(r, out.list, value_pair(r, get_path(r, items[i].value, a->values[0]), group));
            last = key;
        }
        list_add(r, group.list, items[i].value);
    }
    return out;
}

const struct builtin ORDER_FILTERS[] = {
    { "dictsort", f_dictsort, { "case_sensitive", "by", "reverse" }, 0 },
    { "groupby", f_groupby, { "attribute", "default", "case_sensitive" }, 1 },
    { "max", f_extreme, { "case_sensitive", "attribute" }, 0, 1 },
    { "min", f_extreme, { "case_sensitive", "attribute" }, 0, -1 },
    { "sort", f_sort, { "reverse", "case_sensitive", "attribute" }, 0 },
    { "unique", f_unique, { "case_sensitive", "attribute" }, 0 },
    { 0 },
};

const struct builtin *filter_find(const char *name)
{
    const struct builtin *const tables[] = { TEXT_FILTERS, LIST_FILTERS, PICK_FILTERS, ORDER_FILTERS };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const struct builtin *found = builtin_in(tables[i], name);
        if (found)
            return found;
    }
    return NULL;
}
