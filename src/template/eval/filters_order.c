/* Filters that sort or compare items: sort, dictsort, unique, min, max, groupby. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <string.h>

struct keyed {
    struct value key, item;
};

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

/* A stable merge sort, also in reverse order. */
static void sort_keyed(struct render *r, struct keyed *items, struct keyed *scratch, size_t n,
                       bool is_reversed)
{
    size_t half = n / 2, a = 0, b = half;
    if (n < 2 || failed(r))
        return;
    sort_keyed(r, items, scratch, half, is_reversed);
    sort_keyed(r, items + half, scratch, n - half, is_reversed);
    for (size_t i = 0; i < n && !failed(r); i++) {
        bool takes_b = a == half;
        if (a < half && b < n) {
            bool same = value_equals(r, items[b].key, items[a].key); /* even if they cannot be ordered */
            int order = same ? 0 : value_compare(r, items[b].key, items[a].key);
            takes_b = is_reversed ? order > 0 : order < 0;
        }
        scratch[i] = takes_b ? items[b++] : items[a++];
        spend(r, 0);
    }
    if (!failed(r))
        memcpy(items, scratch, n * sizeof *items);
}

static struct keyed *keyed_items(struct render *r, struct value self, struct value attribute,
                                 bool case_sensitive, size_t *n)
{
    struct list *items = value_iterate(r, self);
    struct keyed *out = items ? take(r, items->n + 1, sizeof *out) : NULL;
    *n = out ? items->n : 0;
    for (size_t i = 0; i < *n && !failed(r); i++)
        out[i] = (struct keyed){ key_of(r, items->items[i], attribute, case_sensitive), items->items[i] };
    return failed(r) ? NULL : out;
}

static struct value sorted(struct render *r, struct keyed *items, size_t n, bool is_reversed)
{
    struct keyed *scratch = take(r, n + 1, sizeof *scratch);
    struct value out = value_list(r, LIST_LIST);
    if (!items || !scratch)
        return out;
    sort_keyed(r, items, scratch, n, is_reversed);
    for (size_t i = 0; i < n && !failed(r); i++)
        list_add(r, out.list, items[i].item);
    return out;
}

static struct value f_sort(struct render *r, struct value self, const struct args *a)
{
    size_t n;
    struct keyed *items = keyed_items(r, self, a->values[2], arg_bool(a, 1, false), &n);
    return sorted(r, items, n, arg_bool(a, 0, false));
}

static struct value f_dictsort(struct render *r, struct value self, const struct args *a)
{
    struct value by = arg_string(r, a, 1, "key");
    bool by_value = value_is_string(by, "value");
    if (self.kind != VALUE_DICT)
        return fail_type(r, "dictsort: expected a dict, found %s", value_type_name(self));
    if (!by_value && !value_is_string(by, "key"))
        return fail_type(r, "dictsort: by must be key or value");
    struct keyed *items = take(r, self.dict->n + 1, sizeof *items);
    for (size_t i = 0; i < self.dict->n && !failed(r); i++) {
        const struct pair *pair = &self.dict->pairs[i];
        struct value tuple = value_list(r, LIST_TUPLE);
        if (failed(r))
            break;
        list_add(r, tuple.list, pair->key);
        list_add(r, tuple.list, pair->value);
        items[i] = (struct keyed){ fold(r, by_value ? pair->value : pair->key, arg_bool(a, 0, false)),
                                   tuple };
    }
    return sorted(r, failed(r) ? NULL : items, self.dict->n, arg_bool(a, 2, false));
}

static struct value f_unique(struct render *r, struct value self, const struct args *a)
{
    size_t n;
    struct keyed *items = keyed_items(r, self, a->values[1], arg_bool(a, 0, false), &n);
    struct value out = value_list(r, LIST_GENERATOR), seen = value_dict(r);
    for (size_t i = 0; items && i < n && !failed(r); i++) {
        if (dict_find(r, seen.dict, items[i].key))
            continue;
        dict_set(r, seen.dict, items[i].key, value_none());
        list_add(r, out.list, items[i].item);
    }
    return out;
}

static struct value extreme(struct render *r, struct value self, const struct args *a, int sign)
{
    size_t n, best = 0;
    struct keyed *items = keyed_items(r, self, a->values[1], arg_bool(a, 0, false), &n);
    if (!items || n == 0)
        return value_undefined("No aggregated item, sequence was empty.");
    for (size_t i = 1; i < n && spend(r, 0); i++) {
        if (value_compare(r, items[i].key, items[best].key) * sign > 0)
            best = i;
    }
    return items[best].item;
}

static struct value f_min(struct render *r, struct value self, const struct args *a)
{
    return extreme(r, self, a, -1);
}

static struct value f_max(struct render *r, struct value self, const struct args *a)
{
    return extreme(r, self, a, 1);
}

static struct value f_groupby(struct render *r, struct value self, const struct args *a)
{
    size_t n;
    bool case_sensitive = arg_bool(a, 2, false);
    struct keyed *items = keyed_items(r, self, a->values[0], case_sensitive, &n);
    struct value order = sorted(r, items, n, false), out = value_list(r, LIST_LIST), last = value_absent();
    struct value group = value_absent();
    for (size_t i = 0; !failed(r) && i < order.list->n; i++) {
        struct value key = items[i].key;
        if (last.kind == VALUE_ABSENT || !value_equals(r, key, last)) {
            struct value pair = value_list(r, LIST_TUPLE);
            group = value_list(r, LIST_LIST);
            if (failed(r))
                break;
            list_add(r, pair.list, get_path(r, items[i].item, a->values[0]));
            list_add(r, pair.list, group);
            list_add(r, out.list, pair);
            last = key;
        }
        list_add(r, group.list, items[i].item);
    }
    return out;
}

const struct builtin ORDER_FILTERS[] = {
    { "dictsort", f_dictsort, { "case_sensitive", "by", "reverse" }, 0 },
    { "groupby", f_groupby, { "attribute", "default", "case_sensitive" }, 1 },
    { "max", f_max, { "case_sensitive", "attribute" }, 0 },
    { "min", f_min, { "case_sensitive", "attribute" }, 0 },
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
