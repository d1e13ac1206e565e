/* Filters over lists and dicts: splitting, selecting, mapping. Sorting is in filters_order.c. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <string.h>

BUILTIN(f_length)
{
    if (self.kind == VALUE_UNDEFINED)
        return value_int(0);
    if (self.kind == VALUE_STRING && spend_chars(r, self.n_bytes))
        return value_int((int64_t)text_length(self.bytes, self.n_bytes));
    if (self.kind == VALUE_DICT)
        return value_int((int64_t)self.dict->n);
    if (self.kind == VALUE_LIST && self.list->kind != LIST_GENERATOR)
        return value_int((int64_t)self.list->n);
    return fail_type(r, "object of type '%s' has no len()", value_type_name(self));
}

BUILTIN(f_default)
{
    bool takes_default = self.kind == VALUE_UNDEFINED || (arg_bool(a, 1, false) && !value_is_true(self));
    if (!takes_default)
        return self;
    return a->values[0].kind == VALUE_ABSENT ? value_cstring("") : a->values[0];
}

BUILTIN(f_first)
{
    struct list *items = value_iterate(r, self);
    return items && items->n > 0 ? items->items[0] : value_undefined("No first item, sequence was empty.");
}

BUILTIN(f_last)
{
    if (self.kind == VALUE_LIST && self.list->kind == LIST_GENERATOR)
        return fail_type(r, "'generator' object is not reversible");
    struct list *items = value_iterate(r, self);
    return items && items->n > 0 ? items->items[items->n - 1]
                                 : value_undefined("No last item, sequence was empty.");
}

BUILTIN(f_list)
{
    struct list *items = value_iterate(r, self);
    struct value out = value_list(r, LIST_LIST);
    list_add_all(r, out.list, items);
    return out;
}

BUILTIN(f_reverse)
{
    if (self.kind == VALUE_STRING)
        return slice_value(r, self, value_none(), value_none(), value_int(-1));
    bool is_generator = self.kind == VALUE_LIST && self.list->kind == LIST_GENERATOR;
    struct list *items = value_iterate(r, self);
    struct value out = value_list(r, is_generator ? LIST_LIST : LIST_GENERATOR);
    for (size_t i = items ? items->n : 0; i-- > 0 && spend(r, 0);)
        list_add(r, out.list, items->items[i]);
    return out;
}

BUILTIN(f_items)
{
    struct value out = value_list(r, LIST_GENERATOR);
    if (self.kind == VALUE_UNDEFINED)
        return out;
    if (self.kind != VALUE_DICT)
        return fail_type(r, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < self.dict->n && spend(r, 0); i++)
        list_add(r, out.list, value_pair(r, self.dict->pairs[i].key, self.dict->pairs[i].value));
    return out;
}

BUILTIN(f_join)
{
    struct value separator = a->values[0].kind == VALUE_ABSENT ? value_cstring("")
                                                               : value_to_string(r, a->values[0]);
    struct list *items = value_iterate(r, self);
    if (!items)
        return self;
    if (!arg_given(a, 1))
        return string_join(r, separator, items, true);
    struct value parts = value_list(r, LIST_LIST);
    for (size_t i = 0; i < items->n && !failed(r); i++)
        list_add(r, parts.list, get_path(r, items->items[i], a->values[1]));
    return failed(r) ? self : string_join(r, separator, parts.list, true);
}

/* fill_with also goes to the last slices of equal ones, as in Jinja. */
BUILTIN(f_slice)
{
    struct list *items = value_iterate(r, self);
    struct value out = value_list(r, LIST_GENERATOR);
    int64_t n = arg_int(r, a, 0, 1);
    if (n < 1)
        return fail_type(r, "slice: expected a count of at least 1");
    size_t n_long = items ? items->n % (size_t)n : 0, at = 0;
    for (size_t i = 0; items && i < (size_t)n && spend(r, 0); i++) {
        struct value row = value_list(r, LIST_LIST);
        size_t end = at + items->n / (size_t)n + (i < n_long);
        for (; at < end && spend(r, 0); at++)
            list_add(r, row.list, items->items[at]);
        if (!failed(r) && arg_given(a, 1) && i >= n_long)
            list_add(r, row.list, a->values[1]);
        list_add(r, out.list, row);
    }
    return out;
}

BUILTIN(f_batch)
{
    struct list *items = value_iterate(r, self);
    struct value out = value_list(r, LIST_GENERATOR), row = value_absent();
    int64_t n = arg_int(r, a, 0, 1);
    if (n < 1)
        return fail_type(r, "batch: expected a count of at least 1");
    for (size_t i = 0; items && i < items->n && spend(r, 0); i++) {
        if (row.kind == VALUE_ABSENT || row.list->n == (size_t)n) {
            row = value_list(r, LIST_LIST);
            if (failed(r))
                break;
            list_add(r, out.list, row);
        }
        list_add(r, row.list, items->items[i]);
    }
    while (!failed(r) && row.kind == VALUE_LIST && arg_given(a, 1) && row.list->n < (size_t)n && spend(r, 0))
        list_add(r, row.list, a->values[1]);
    return out;
}

BUILTIN(f_sum)
{
    struct list *items = value_iterate(r, self);
    struct value sum = a->values[1].kind == VALUE_ABSENT ? value_int(0) : a->values[1];
    for (size_t i = 0; items && i < items->n && spend(r, 0); i++) {
        struct value item = arg_given(a, 0) ? get_path(r, items->items[i], a->values[0]) : items->items[i];
        if (!failed(r))
            sum = binary_value(r, TOKEN_ADD, sum, item);
    }
    return sum;
}

/* ---- select, reject, map ---- */

/* The rest of a call's arguments from `from` on. */
static struct args rest_of(const struct args *a, size_t from)
{
    struct args rest = { 0 };
    if (a->n_given > from) {
        rest.given = a->given + from;
        rest.n_given = a->n_given - from;
    }
    rest.keywords = a->keywords;
    rest.n_keywords = a->n_keywords;
    return rest;
}

static const char *name_arg(struct render *r, const struct args *a, size_t i, const char *what)
{
    if (i < a->n_given && a->given[i].kind == VALUE_STRING)
        return value_name(r, a->given[i]);
    fail_type(r, "%s must be a string", what);
    return "";
}

/* Only attributes of the object, never items. */
BUILTIN(f_attr)
{
    const char *name = name_arg(r, a, 0, "an attribute's name");
    if (self.kind == VALUE_DICT && !dict_method_find(name))
        return value_undefined("an attribute");
    return failed(r) ? self : get_attr(r, self, a->given[0]);
}

enum { BY_ATTR = 1, REJECTS = 2 };

/* select, reject, selectattr, rejectattr: keeps items that pass a test (arguments: the test's name and
 * arguments), or that are true. */
BUILTIN(f_select)
{
    struct value out = value_list(r, LIST_GENERATOR);
    bool by_attr = a->mode & BY_ATTR, keeps = !(a->mode & REJECTS);
    size_t first = by_attr;
    if (!value_is_true(self)) /* also for none, as in Jinja */
        return out;
    struct list *items = value_iterate(r, self);
    if (by_attr && a->n_given == 0)
        return fail_type(r, "selectattr and rejectattr need an attribute's name");
    const char *test = a->n_given > first ? name_arg(r, a, first, "a test's name") : NULL;
    for (size_t i = 0; items && i < items->n && spend(r, 0); i++) {
        struct value item = by_attr ? get_path(r, items->items[i], a->given[0]) : items->items[i];
        struct args rest = rest_of(a, first + 1);
        bool passes = !failed(r) && (test ? apply_test(r, test, item, &rest) : value_is_true(item));
        if (!failed(r) && passes == keeps)
            list_add(r, out.list, items->items[i]);
    }
    return out;
}

static struct value keyword_arg(const struct args *a, const char *name)
{
    for (size_t i = 0; i < a->n_keywords; i++) {
        if (strcmp(a->keywords[i].name, name) == 0)
            return a->keywords[i].value;
    }
    return value_absent();
}

BUILTIN(f_map)
{
    struct list *items = value_is_true(self) ? value_iterate(r, self) : NULL;
    struct value out = value_list(r, LIST_GENERATOR), attribute = keyword_arg(a, "attribute");
    struct value fallback = keyword_arg(a, "default");
    bool by_attr = a->n_given == 0;
    if (!items)
        return out;
    if (by_attr && attribute.kind == VALUE_ABSENT)
        return fail_type(r, "map needs a filter's name or an attribute");
    const char *filter = by_attr ? NULL : name_arg(r, a, 0, "a filter's name");
    for (size_t i = 0; items && i < items->n && spend(r, 0); i++) {
        struct value item = items->items[i];
        struct args rest = rest_of(a, 1);
        item = by_attr ? get_path(r, item, attribute) : apply_filter(r, filter, item, &rest);
        if (by_attr && item.kind == VALUE_UNDEFINED && fallback.kind != VALUE_ABSENT)
            item = fallback;
        list_add(r, out.list, item);
    }
    return out;
}

const struct builtin LIST_FILTERS[] = {
    { "batch", f_batch, { "linecount", "fill_with" }, 1 },
    { "count", f_length, { NULL }, 0 },
    { "d", f_default, { "default_value", "boolean" }, 0 },
    { "default", f_default, { "default_value", "boolean" }, 0 },
    { "first", f_first, { NULL }, 0 },
    { "items", f_items, { NULL }, 0 },
    { "join", f_join, { "d", "attribute" }, 0 },
    { "last", f_last, { NULL }, 0 },
    { "length", f_length, { NULL }, 0 },
    { "list", f_list, { NULL }, 0 },
    { "reverse", f_reverse, { NULL }, 0 },
    { "slice", f_slice, { "slices", "fill_with" }, 1 },
    { "sum", f_sum, { "attribute", "start" }, 0 },
    { 0 },
};

const struct builtin PICK_FILTERS[] = {
    { "attr", f_attr, { NULL }, -1 },
    { "map", f_map, { NULL }, -1 },
    { "reject", f_select, { NULL }, -1, REJECTS },
    { "rejectattr", f_select, { NULL }, -1, BY_ATTR | REJECTS },
    { "select", f_select, { NULL }, -1 },
    { "selectattr", f_select, { NULL }, -1, BY_ATTR },
    { 0 },
};
