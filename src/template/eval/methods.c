/* Methods of strings, lists and dicts, as in Python. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <string.h>

/* ---- strings ---- */

static struct value m_strip(struct render *r, struct value self, const struct args *a)
{
    return string_strip(r, self, arg_string(r, a, 0, NULL), true, true);
}

static struct value m_lstrip(struct render *r, struct value self, const struct args *a)
{
    return string_strip(r, self, arg_string(r, a, 0, NULL), true, false);
}

static struct value m_rstrip(struct render *r, struct value self, const struct args *a)
{
    return string_strip(r, self, arg_string(r, a, 0, NULL), false, true);
}

static struct value m_split(struct render *r, struct value self, const struct args *a)
{
    return string_split(r, self, arg_string(r, a, 0, NULL), arg_int(r, a, 1, -1), false);
}

static struct value m_rsplit(struct render *r, struct value self, const struct args *a)
{
    return string_split(r, self, arg_string(r, a, 0, NULL), arg_int(r, a, 1, -1), true);
}

static struct value m_splitlines(struct render *r, struct value self, const struct args *a)
{
    return string_lines(r, self, arg_bool(a, 0, false));
}

static bool has_affix(struct value s, struct value affix, bool at_end)
{
    return s.n_bytes >= affix.n_bytes &&
           memcmp(s.bytes + (at_end ? s.n_bytes - affix.n_bytes : 0), affix.bytes, affix.n_bytes) == 0;
}

/* The affix may be a tuple of several. */
static struct value find_affix(struct render *r, struct value self, const struct args *a, bool at_end)
{
    struct value affix = a->values[0];
    if (!spend(r, self.n_bytes))
        return self;
    size_t begin = text_offset(self.bytes, self.n_bytes,
                               (size_t)(arg_int(r, a, 1, 0) > 0 ? arg_int(r, a, 1, 0) : 0));
    struct value s = value_slice(self, begin, self.n_bytes);
    if (affix.kind == VALUE_STRING)
        return value_bool(has_affix(s, affix, at_end));
    if (affix.kind != VALUE_LIST || affix.list->kind != LIST_TUPLE)
        return fail_type(r, "expected a string or a tuple of strings, found %s", value_type_name(affix));
    for (size_t i = 0; i < affix.list->n && spend(r, 0); i++) {
        if (affix.list->items[i].kind != VALUE_STRING)
            return fail_type(r, "expected a tuple of strings");
        if (!spend(r, self.n_bytes))
            break;
        if (has_affix(s, affix.list->items[i], at_end))
            return value_bool(true);
    }
    return value_bool(false);
}

static struct value m_startswith(struct render *r, struct value self, const struct args *a)
{
    return find_affix(r, self, a, false);
}

static struct value m_endswith(struct render *r, struct value self, const struct args *a)
{
    return find_affix(r, self, a, true);
}

static struct value m_removeprefix(struct render *r, struct value self, const struct args *a)
{
    struct value affix = arg_string(r, a, 0, "");
    if (!spend(r, self.n_bytes))
        return self;
    return has_affix(self, affix, false) ? value_slice(self, affix.n_bytes, self.n_bytes) : self;
}

static struct value m_removesuffix(struct render *r, struct value self, const struct args *a)
{
    struct value affix = arg_string(r, a, 0, "");
    if (!spend(r, self.n_bytes))
        return self;
    return has_affix(self, affix, true) ? value_slice(self, 0, self.n_bytes - affix.n_bytes) : self;
}

static struct value m_replace(struct render *r, struct value self, const struct args *a)
{
    struct value from = arg_string(r, a, 0, ""), to = arg_string(r, a, 1, "");
    return string_replace(r, self, from, to, arg_int(r, a, 2, -1));
}

#define MAPPED(name, mapping)                                                                                \
    static struct value name(struct render *r, struct value self, const struct args *a)                      \
    {                                                                                                        \
        (void)a;                                                                                             \
        return string_map(r, self, mapping);                                                                 \
    }
MAPPED(m_upper, CASE_UPPER)
MAPPED(m_lower, CASE_LOWER)
MAPPED(m_title, CASE_TITLE)
MAPPED(m_capitalize, CASE_CAPITALIZE)
MAPPED(m_swapcase, CASE_SWAP)

static struct value m_join(struct render *r, struct value self, const struct args *a)
{
    struct list *items = value_iterate(r, a->values[0]);
    return items ? string_join(r, self, items, false) : self;
}

/* Positions count characters. */
static int64_t find_position(struct render *r, struct value self, const struct args *a, bool last)
{
    struct value needle = arg_string(r, a, 0, "");
    int64_t skip = arg_int(r, a, 1, 0);
    size_t from = text_offset(self.bytes, self.n_bytes, (size_t)(skip > 0 ? skip : 0)), found = SIZE_MAX,
           at = from;
    if (!spend(r, self.n_bytes))
        return -1;
    while ((at = text_find(self.bytes, self.n_bytes, at, needle.bytes, needle.n_bytes)) != SIZE_MAX &&
           spend(r, 8 * needle.n_bytes)) { /* each search preprocesses the needle */
        found = at++;
        if (!last)
            break;
    }
    return found == SIZE_MAX ? -1 : (int64_t)text_length(self.bytes, found);
}

static struct value m_find(struct render *r, struct value self, const struct args *a)
{
    return value_int(find_position(r, self, a, false));
}

static struct value m_rfind(struct render *r, struct value self, const struct args *a)
{
    return value_int(find_position(r, self, a, true));
}

static struct value m_index(struct render *r, struct value self, const struct args *a)
{
    int64_t place = find_position(r, self, a, false);
    return place < 0 ? fail_type(r, "substring not found") : value_int(place);
}

static struct value m_count(struct render *r, struct value self, const struct args *a)
{
    struct value needle = arg_string(r, a, 0, "");
    int64_t n = 0;
    size_t at = 0;
    if (!spend(r, self.n_bytes))
        return self;
    if (needle.n_bytes == 0)
        return value_int((int64_t)text_length(self.bytes, self.n_bytes) + 1);
    while ((at = text_find(self.bytes, self.n_bytes, at, needle.bytes, needle.n_bytes)) != SIZE_MAX &&
           spend(r, 0)) {
        at += needle.n_bytes;
        n++;
    }
    return value_int(n);
}

static struct value m_partition(struct render *r, struct value self, const struct args *a)
{
    struct value needle = arg_string(r, a, 0, ""), out = value_list(r, LIST_TUPLE);
    if (needle.n_bytes == 0)
        return fail_type(r, "empty separator");
    size_t at = spend(r, self.n_bytes) ? text_find(self.bytes, self.n_bytes, 0, needle.bytes, needle.n_bytes)
                                       : 0;
    if (failed(r))
        return self;
    bool found = at != SIZE_MAX;
    list_add(r, out.list, found ? value_slice(self, 0, at) : self);
    list_add(r, out.list, found ? value_slice(self, at, at + needle.n_bytes) : value_cstring(""));
    list_add(r, out.list, found ? value_slice(self, at + needle.n_bytes, self.n_bytes) : value_cstring(""));
    return out;
}

static struct value method_pad(struct render *r, struct value self, const struct args *a,
                               enum padding padding)
{
    return string_pad(r, self, arg_int(r, a, 0, 0), arg_string(r, a, 1, " "), padding);
}

static struct value m_ljust(struct render *r, struct value self, const struct args *a)
{
    return method_pad(r, self, a, PAD_RIGHT);
}

static struct value m_rjust(struct render *r, struct value self, const struct args *a)
{
    return method_pad(r, self, a, PAD_LEFT);
}

static struct value m_center(struct render *r, struct value self, const struct args *a)
{
    return method_pad(r, self, a, PAD_BOTH);
}

static bool is_digit_char(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_word_char(uint32_t c)
{
    return is_digit_char(c) || text_is_letter(c);
}

static struct value all_chars(struct render *r, struct value self, bool (*is_kind)(uint32_t code))
{
    for (size_t i = 0; i < self.n_bytes;) {
        uint32_t c;
        i += (size_t)text_char(self.bytes + i, self.n_bytes - i, &c);
        if (!is_kind(c))
            return value_bool(false);
    }
    return value_bool(spend_chars(r, self.n_bytes) && self.n_bytes > 0);
}

static struct value m_isdigit(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return all_chars(r, self, is_digit_char);
}

static struct value m_isalpha(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return all_chars(r, self, text_is_letter);
}

static struct value m_isalnum(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return all_chars(r, self, is_word_char);
}

static struct value m_isspace(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return all_chars(r, self, text_is_blank);
}

static struct value m_isupper(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return value_bool(apply_test(r, "upper", self, &(struct args){ .n_given = 0 }));
}

static struct value m_islower(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return value_bool(apply_test(r, "lower", self, &(struct args){ .n_given = 0 }));
}

/* [[fill]align][sign][0][width][.precision][type]: the number as "%" formats it, then padded. */
static struct value format_spec(struct render *r, struct value value, struct value spec)
{
    struct value fill = value_cstring(" "), one = value_list(r, LIST_TUPLE);
    struct text percent = { 0 };
    enum padding padding = value.kind == VALUE_STRING ? PAD_RIGHT : PAD_LEFT;
    size_t n_first = text_offset(spec.bytes, spec.n_bytes, 1), at = 0, n_sign;
    int64_t width = 0;
    for (size_t i = 0; i <= n_first && i < spec.n_bytes; i += n_first) {
        const char *align = spec.bytes[i] ? strchr("><^", spec.bytes[i]) : NULL;
        if (!align || (i == 0 && n_first < spec.n_bytes && strchr("><^", spec.bytes[n_first])))
            continue;
        padding = *align == '>' ? PAD_LEFT : *align == '<' ? PAD_RIGHT : PAD_BOTH;
        fill = i > 0 ? value_slice(spec, 0, i) : fill;
        at = i + 1;
        break;
    }
    n_sign = at < spec.n_bytes && (spec.bytes[at] == '+' || spec.bytes[at] == ' ' || spec.bytes[at] == '-');
    text_add_cstring(r, &percent, "%");
    text_add_string(r, &percent, value_slice(spec, at, at + n_sign));
    at += n_sign;
    bool is_zero_padded = at < spec.n_bytes && spec.bytes[at] == '0';
    size_t digits = at;
    for (; at < spec.n_bytes && spec.bytes[at] >= '0' && spec.bytes[at] <= '9' && width < 10000; at++)
        width = width * 10 + (spec.bytes[at] - '0');
    if (is_zero_padded)
        text_add_string(r, &percent, value_slice(spec, digits, at));
    text_add_string(r, &percent, value_slice(spec, at, spec.n_bytes));
    if (at == spec.n_bytes || !text_is_letter((uint8_t)spec.bytes[spec.n_bytes - 1]))
        text_add_cstring(r, &percent, value.kind == VALUE_INT ? "d" : value.kind == VALUE_FLOAT ? "g" : "s");
    if (!failed(r))
        list_add(r, one.list, value);
    if (failed(r))
        return value;
    return string_pad(r, format_percent(r, text_value(&percent), one), width, fill, padding);
}

/* One "{...}" of a format: an index, a name or nothing; ":" and a specification as for "%". */
static struct value format_field(struct render *r, struct value field, const struct args *a, size_t *next)
{
    size_t colon = text_find(field.bytes, field.n_bytes, 0, ":", 1);
    struct value name = value_slice(field, 0, colon == SIZE_MAX ? field.n_bytes : colon),
                 value = value_absent();
    size_t place = 0;
    bool is_place = all_chars(r, name, is_digit_char).is_true && name.n_bytes < 9;
    for (size_t i = 0; is_place && i < name.n_bytes; i++)
        place = place * 10 + (size_t)(name.bytes[i] - '0');
    if (name.n_bytes == 0 || is_place) {
        place = is_place ? place : (*next)++;
        if (place < a->n_given)
            value = a->given[place];
    }
    for (size_t i = 0; i < a->n_keywords && name.n_bytes > 0 && !is_place; i++) {
        if (value_is_string(name, a->keywords[i].name))
            value = a->keywords[i].value;
    }
    if (value.kind == VALUE_ABSENT)
        return fail_type(r, "format: no argument for a replacement field");
    if (colon == SIZE_MAX || colon + 1 == field.n_bytes)
        return value_to_string(r, value);
    return format_spec(r, value, value_slice(field, colon + 1, field.n_bytes));
}

static struct value m_format(struct render *r, struct value self, const struct args *a)
{
    struct text out = { 0 };
    size_t next = 0, done = 0;
    for (size_t i = 0; i < self.n_bytes && spend(r, 0); i++) {
        char c = self.bytes[i];
        if (c != '{' && c != '}')
            continue;
        text_add_string(r, &out, value_slice(self, done, i));
        if (i + 1 < self.n_bytes && self.bytes[i + 1] == c) {
            done = ++i; /* doubled: the sign itself */
            continue;
        }
        size_t end = text_find(self.bytes, self.n_bytes, i, "}", 1);
        if (c == '}' || end == SIZE_MAX)
            return fail_type(r, "format: a single '%c'", c);
        text_add_string(r, &out, format_field(r, value_slice(self, i + 1, end), a, &next));
        i = end;
        done = end + 1;
    }
    text_add_string(r, &out, value_slice(self, done, self.n_bytes));
    return text_value(&out);
}

const struct builtin *string_method_find(const char *name)
{
    static const struct builtin METHODS[] = {
        { "strip", m_strip, { "chars" }, 0 },
        { "lstrip", m_lstrip, { "chars" }, 0 },
        { "rstrip", m_rstrip, { "chars" }, 0 },
        { "split", m_split, { "sep", "maxsplit" }, 0 },
        { "rsplit", m_rsplit, { "sep", "maxsplit" }, 0 },
        { "splitlines", m_splitlines, { "keepends" }, 0 },
        { "startswith", m_startswith, { "prefix", "start" }, 1 },
        { "endswith", m_endswith, { "suffix", "start" }, 1 },
        { "removeprefix", m_removeprefix, { "prefix" }, 1 },
        { "removesuffix", m_removesuffix, { "suffix" }, 1 },
        { "replace", m_replace, { "old", "new", "count" }, 2 },
        { "upper", m_upper, { NULL }, 0 },
        { "lower", m_lower, { NULL }, 0 },
        { "title", m_title, { NULL }, 0 },
        { "capitalize", m_capitalize, { NULL }, 0 },
        { "swapcase", m_swapcase, { NULL }, 0 },
        { "join", m_join, { "iterable" }, 1 },
        { "find", m_find, { "sub", "start" }, 1 },
        { "rfind", m_rfind, { "sub", "start" }, 1 },
        { "index", m_index, { "sub", "start" }, 1 },
        { "count", m_count, { "sub" }, 1 },
        { "partition", m_partition, { "sep" }, 1 },
        { "ljust", m_ljust, { "width", "fillchar" }, 1 },
        { "rjust", m_rjust, { "width", "fillchar" }, 1 },
        { "center", m_center, { "width", "fillchar" }, 1 },
        { "isdigit", m_isdigit, { NULL }, 0 },
        { "isnumeric", m_isdigit, { NULL }, 0 },
        { "isdecimal", m_isdigit, { NULL }, 0 },
        { "isalpha", m_isalpha, { NULL }, 0 },
        { "isalnum", m_isalnum, { NULL }, 0 },
        { "isspace", m_isspace, { NULL }, 0 },
        { "isupper", m_isupper, { NULL }, 0 },
        { "islower", m_islower, { NULL }, 0 },
        { "format", m_format, { NULL }, -1 },
        { 0 },
    };
    return builtin_in(METHODS, name);
}

/* ---- lists ---- */

static bool is_mutable(struct render *r, struct value self)
{
    if (self.list->kind != LIST_LIST)
        fail_type(r, "'tuple' object has no such method");
    return !failed(r);
}

static struct value m_append(struct render *r, struct value self, const struct args *a)
{
    if (is_mutable(r, self))
        list_add(r, self.list, a->values[0]);
    return value_none();
}

static struct value m_extend(struct render *r, struct value self, const struct args *a)
{
    struct list *more = is_mutable(r, self) ? value_iterate(r, a->values[0]) : NULL;
    size_t n = more ? more->n : 0; /* it may be the list itself */
    for (size_t i = 0; i < n && spend(r, 0); i++)
        list_add(r, self.list, more->items[i]);
    return value_none();
}

static struct value m_insert(struct render *r, struct value self, const struct args *a)
{
    int64_t place = arg_int(r, a, 0, 0), n = (int64_t)self.list->n;
    if (!is_mutable(r, self) || !spend(r, self.list->n) || !list_add(r, self.list, a->values[1]))
        return value_none();
    place = place < 0 ? (place + n < 0 ? 0 : place + n) : place > n ? n : place;
    struct value *at = self.list->items + place;
    memmove(at + 1, at, (size_t)(n - place) * sizeof *at);
    *at = a->values[1];
    return value_none();
}

static struct value m_list_pop(struct render *r, struct value self, const struct args *a)
{
    int64_t place = arg_int(r, a, 0, -1), n = (int64_t)self.list->n;
    if (!is_mutable(r, self) || !spend(r, self.list->n))
        return value_none();
    place += place < 0 ? n : 0;
    if (place < 0 || place >= n)
        return fail_type(r, "pop index out of range");
    struct value *at = self.list->items + place, out = *at;
    memmove(at, at + 1, (size_t)(n - place - 1) * sizeof *at);
    self.list->n--;
    return out;
}

static struct value m_list_count(struct render *r, struct value self, const struct args *a)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n && spend(r, 0); i++)
        n += value_equals(r, self.list->items[i], a->values[0]);
    return value_int(n);
}

static struct value m_list_index(struct render *r, struct value self, const struct args *a)
{
    for (size_t i = 0; i < self.list->n && spend(r, 0); i++) {
        if (value_equals(r, self.list->items[i], a->values[0]))
            return value_int((int64_t)i);
    }
    return fail_type(r, "the value is not in the list");
}

const struct builtin *list_method_find(const char *name)
{
    static const struct builtin METHODS[] = {
        { "append", m_append, { "object" }, 1 },
        { "extend", m_extend, { "iterable" }, 1 },
        { "insert", m_insert, { "index", "object" }, 2 },
        { "pop", m_list_pop, { "index" }, 0 },
        { "count", m_list_count, { "value" }, 1 },
        { "index", m_list_index, { "value" }, 1 },
        { 0 },
    };
    return builtin_in(METHODS, name);
}

/* ---- dicts ---- */

static struct value m_get(struct render *r, struct value self, const struct args *a)
{
    if (!value_is_key(r, a->values[0]))
        return self;
    struct value *found = dict_find(r, self.dict, a->values[0]);
    if (found)
        return *found;
    return a->values[1].kind == VALUE_ABSENT ? value_none() : a->values[1];
}

static struct value view(struct render *r, struct value self, enum list_kind kind)
{
    struct value out = value_list(r, kind);
    for (size_t i = 0; i < self.dict->n && spend(r, 0); i++) {
        const struct pair *pair = &self.dict->pairs[i];
        struct value item = kind == LIST_VALUES ? pair->value : pair->key;
        if (kind == LIST_ITEMS) {
            item = value_list(r, LIST_TUPLE);
            if (failed(r))
                break;
            list_add(r, item.list, pair->key);
            list_add(r, item.list, pair->value);
        }
        list_add(r, out.list, item);
    }
    return out;
}

static struct value m_items(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return view(r, self, LIST_ITEMS);
}

static struct value m_keys(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return view(r, self, LIST_KEYS);
}

static struct value m_values(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return view(r, self, LIST_VALUES);
}

static struct value m_dict_pop(struct render *r, struct value self, const struct args *a)
{
    if (!value_is_key(r, a->values[0]))
        return self;
    struct value out;
    if (dict_remove(r, self.dict, a->values[0], &out))
        return out;
    if (a->values[1].kind != VALUE_ABSENT)
        return a->values[1];
    return fail_type(r, "pop: no such key");
}

static struct value m_update(struct render *r, struct value self, const struct args *a)
{
    if (a->n_given > 1 || (a->n_given == 1 && a->given[0].kind != VALUE_DICT))
        return fail_type(r, "update: expected a dict");
    for (size_t i = 0; a->n_given == 1 && i < a->given[0].dict->n && !failed(r); i++)
        dict_set(r, self.dict, a->given[0].dict->pairs[i].key, a->given[0].dict->pairs[i].value);
    for (size_t i = 0; i < a->n_keywords && !failed(r); i++)
        dict_set(r, self.dict, value_cstring(a->keywords[i].name), a->keywords[i].value);
    return value_none();
}

static struct value m_setdefault(struct render *r, struct value self, const struct args *a)
{
    if (!value_is_key(r, a->values[0]))
        return self;
    struct value *found = dict_find(r, self.dict, a->values[0]);
    struct value value = a->values[1].kind == VALUE_ABSENT ? value_none() : a->values[1];
    if (found)
        return *found;
    dict_set(r, self.dict, a->values[0], value);
    return value;
}

static struct value m_copy(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    struct value out = value_dict(r);
    for (size_t i = 0; i < self.dict->n && !failed(r); i++)
        dict_set(r, out.dict, self.dict->pairs[i].key, self.dict->pairs[i].value);
    return out;
}

const struct builtin *dict_method_find(const char *name)
{
    static const struct builtin METHODS[] = {
        { "get", m_get, { "key", "default" }, 1 },
        { "items", m_items, { NULL }, 0 },
        { "keys", m_keys, { NULL }, 0 },
        { "values", m_values, { NULL }, 0 },
        { "pop", m_dict_pop, { "key", "default" }, 1 },
        { "update", m_update, { NULL }, -1 },
        { "setdefault", m_setdefault, { "key", "default" }, 1 },
        { "copy", m_copy, { NULL }, 0 },
        { 0 },
    };
    return builtin_in(METHODS, name);
}
