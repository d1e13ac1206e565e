/* Methods of strings, lists and dicts, as in Python. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <string.h>

/* ---- strings ---- */

enum { FROM_LEFT, FROM_RIGHT };

BUILTIN(m_split)
{
    return string_split(r, self, arg_string(r, a, 0, NULL), arg_int(r, a, 1, -1), a->mode == FROM_RIGHT);
}

BUILTIN(m_splitlines)
{
    return string_lines(r, self, arg_bool(a, 0, false));
}

static bool has_affix(struct value s, struct value affix, bool at_end)
{
    return s.n_bytes >= affix.n_bytes &&
           memcmp(s.bytes + (at_end ? s.n_bytes - affix.n_bytes : 0), affix.bytes, affix.n_bytes) == 0;
}

/* The byte where a search starts at a character: negative numbers count from the end. */
static size_t search_begin(struct value s, int64_t start)
{
    if (start < 0)
        start += (int64_t)text_length(s.bytes, s.n_bytes);
    return text_offset(s.bytes, s.n_bytes, (size_t)(start > 0 ? start : 0));
}

enum { AT_START, AT_END };

/* startswith and endswith; the affix may be a tuple of several. */
BUILTIN(m_has_affix)
{
    struct value affix = a->values[0];
    bool at_end = a->mode == AT_END;
    if (!spend(r, self.n_bytes))
        return self;
    struct value s = value_slice(self, search_begin(self, arg_int(r, a, 1, 0)), self.n_bytes);
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

/* removeprefix and removesuffix. */
BUILTIN(m_remove_affix)
{
    struct value affix = arg_string(r, a, 0, "");
    if (!spend(r, self.n_bytes) || !has_affix(self, affix, a->mode == AT_END))
        return self;
    return a->mode == AT_END ? value_slice(self, 0, self.n_bytes - affix.n_bytes)
                             : value_slice(self, affix.n_bytes, self.n_bytes);
}

BUILTIN(m_replace)
{
    struct value from = arg_string(r, a, 0, ""), to = arg_string(r, a, 1, "");
    return string_replace(r, self, from, to, arg_int(r, a, 2, -1));
}

BUILTIN(m_join)
{
    struct list *items = value_iterate(r, a->values[0]);
    return items ? string_join(r, self, items, false) : self;
}

enum { FIND_FIRST = 0, FIND_LAST = 1, FIND_REQUIRED = 2 };

/* find, rfind, index and rindex: positions count characters. */
BUILTIN(m_find)
{
    struct value needle = arg_string(r, a, 0, "");
    size_t at = search_begin(self, arg_int(r, a, 1, 0)), found = SIZE_MAX;
    if (!spend(r, self.n_bytes))
        return self;
    while ((at = text_find(self.bytes, self.n_bytes, at, needle.bytes, needle.n_bytes)) != SIZE_MAX &&
           spend(r, 8 * needle.n_bytes)) { /* each search preprocesses the needle */
        found = at++;
        if (!(a->mode & FIND_LAST))
            break;
    }
    if (found == SIZE_MAX)
        return a->mode & FIND_REQUIRED ? fail_type(r, "substring not found") : value_int(-1);
    return value_int((int64_t)text_length(self.bytes, found));
}

BUILTIN(m_count)
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

/* partition and rpartition. */
BUILTIN(m_partition)
{
    struct value needle = arg_string(r, a, 0, ""), out = value_list(r, LIST_TUPLE);
    if (needle.n_bytes == 0)
        return fail_type(r, "empty separator");
    bool is_last = a->mode == FROM_RIGHT;
    size_t found = SIZE_MAX, at = 0;
    bool goes_on = spend(r, self.n_bytes);
    while (goes_on &&
           (at = text_find(self.bytes, self.n_bytes, at, needle.bytes, needle.n_bytes)) != SIZE_MAX) {
        found = at++;
        goes_on = spend(r, 8 * needle.n_bytes) && is_last; /* each search preprocesses the needle */
    }
    if (failed(r))
        return self;
    size_t begin = found != SIZE_MAX ? found : is_last ? 0 : self.n_bytes;
    size_t end = found != SIZE_MAX ? found + needle.n_bytes : begin;
    list_add(r, out.list, value_slice(self, 0, begin));
    list_add(r, out.list, value_slice(self, begin, end));
    list_add(r, out.list, value_slice(self, end, self.n_bytes));
    return out;
}

BUILTIN(m_zfill)
{
    size_t n_sign = self.n_bytes > 0 && strchr("+-", self.bytes[0]) && self.bytes[0];
    struct value rest = string_pad(r, value_slice(self, n_sign, self.n_bytes),
                                   arg_int(r, a, 0, 0) - (int64_t)n_sign, value_cstring("0"), PAD_LEFT);
    return failed(r) ? self : binary_value(r, TOKEN_ADD, value_slice(self, 0, n_sign), rest);
}

BUILTIN(m_isascii)
{
    size_t i = 0;
    while (i < self.n_bytes && (unsigned char)self.bytes[i] < 0x80)
        i++;
    return value_bool(spend_chars(r, self.n_bytes) && i == self.n_bytes);
}

static bool is_digit_char(uint32_t c)
{
    return c >= '0' && c <= '9';
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

enum { ARE_DIGITS, ARE_LETTERS, ARE_WORD, ARE_BLANKS };

/* isdigit and the like: of a string of at least one character. */
BUILTIN(m_are)
{
    static bool (*const KINDS[])(uint32_t) = {
        [ARE_DIGITS] = is_digit_char,
        [ARE_LETTERS] = text_is_letter,
        [ARE_WORD] = text_is_alnum,
        [ARE_BLANKS] = text_is_blank,
    };
    return all_chars(r, self, KINDS[a->mode]);
}

BUILTIN(m_is_case)
{
    return value_bool(apply_test(r, a->mode == CASE_UPPER ? "upper" : "lower", self, &(struct args){ 0 }));
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

BUILTIN(m_format)
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
        { "strip", f_strip, { "chars" }, 0, STRIP_LEFT | STRIP_RIGHT },
        { "lstrip", f_strip, { "chars" }, 0, STRIP_LEFT },
        { "rstrip", f_strip, { "chars" }, 0, STRIP_RIGHT },
        { "split", m_split, { "sep", "maxsplit" }, 0, FROM_LEFT },
        { "rsplit", m_split, { "sep", "maxsplit" }, 0, FROM_RIGHT },
        { "splitlines", m_splitlines, { "keepends" }, 0 },
        { "startswith", m_has_affix, { "prefix", "start" }, 1, AT_START },
        { "endswith", m_has_affix, { "suffix", "start" }, 1, AT_END },
        { "removeprefix", m_remove_affix, { "prefix" }, 1, AT_START },
        { "removesuffix", m_remove_affix, { "suffix" }, 1, AT_END },
        { "replace", m_replace, { "old", "new", "count" }, 2 },
        { "upper", f_case, { NULL }, 0, CASE_UPPER },
        { "lower", f_case, { NULL }, 0, CASE_LOWER },
        { "title", f_case, { NULL }, 0, CASE_TITLE },
        { "capitalize", f_case, { NULL }, 0, CASE_CAPITALIZE },
        { "swapcase", f_case, { NULL }, 0, CASE_SWAP },
        { "join", m_join, { "iterable" }, 1 },
        { "find", m_find, { "sub", "start" }, 1, FIND_FIRST },
        { "rfind", m_find, { "sub", "start" }, 1, FIND_LAST },
        { "index", m_find, { "sub", "start" }, 1, FIND_REQUIRED },
        { "rindex", m_find, { "sub", "start" }, 1, FIND_LAST | FIND_REQUIRED },
        { "count", m_count, { "sub" }, 1 },
        { "partition", m_partition, { "sep" }, 1, FROM_LEFT },
        { "rpartition", m_partition, { "sep" }, 1, FROM_RIGHT },
        { "zfill", m_zfill, { "width" }, 1 },
        { "isascii", m_isascii, { NULL }, 0 },
        { "ljust", f_pad, { "width", "fillchar" }, 1, PAD_RIGHT },
        { "rjust", f_pad, { "width", "fillchar" }, 1, PAD_LEFT },
        { "center", f_pad, { "width", "fillchar" }, 1, PAD_BOTH },
        { "isdigit", m_are, { NULL }, 0, ARE_DIGITS },
        { "isnumeric", m_are, { NULL }, 0, ARE_DIGITS },
        { "isdecimal", m_are, { NULL }, 0, ARE_DIGITS },
        { "isalpha", m_are, { NULL }, 0, ARE_LETTERS },
        { "isalnum", m_are, { NULL }, 0, ARE_WORD },
        { "isspace", m_are, { NULL }, 0, ARE_BLANKS },
        { "isupper", m_is_case, { NULL }, 0, CASE_UPPER },
        { "islower", m_is_case, { NULL }, 0, CASE_LOWER },
        { "format", m_format, { NULL }, -1 },
        { 0 },
    };
    return builtin_in(METHODS, name);
}

/* ---- lists ---- */

/* Before a list changes. */
static bool is_mutable(struct render *r, struct value self)
{
    if (self.list->kind != LIST_LIST)
        fail_type(r, "'tuple' object has no such method");
    return !failed(r) && list_unshare(r, self.list);
}

BUILTIN(m_append)
{
    if (is_mutable(r, self))
        list_add(r, self.list, a->values[0]);
    return value_none();
}

BUILTIN(m_extend)
{
    if (is_mutable(r, self))
        list_add_all(r, self.list, value_iterate(r, a->values[0]));
    return value_none();
}

BUILTIN(m_insert)
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

BUILTIN(m_list_pop)
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

BUILTIN(m_list_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n && spend(r, 0); i++)
        n += value_equals(r, self.list->items[i], a->values[0]);
    return value_int(n);
}

BUILTIN(m_list_index)
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

BUILTIN(m_get)
{
    if (!value_is_key(r, a->values[0]))
        return self;
    struct value *found = dict_find(r, self.dict, a->values[0]);
    if (found)
        return *found;
    return a->values[1].kind == VALUE_ABSENT ? value_none() : a->values[1];
}

/* keys, values and items. */
BUILTIN(m_view)
{
    struct value out = value_list(r, (enum list_kind)a->mode);
    for (size_t i = 0; i < self.dict->n && spend(r, 0); i++) {
        const struct pair *pair = &self.dict->pairs[i];
        list_add(r, out.list,
                 a->mode == LIST_KEYS     ? pair->key
                 : a->mode == LIST_VALUES ? pair->value
                                          : value_pair(r, pair->key, pair->value));
    }
    return out;
}

BUILTIN(m_dict_pop)
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

BUILTIN(m_update)
{
    if (a->n_given > 1 || (a->n_given == 1 && a->given[0].kind != VALUE_DICT))
        return fail_type(r, "update: expected a dict");
    if (a->n_given == 1)
        dict_update(r, self.dict, a->given[0].dict);
    dict_add_keywords(r, self.dict, a);
    return value_none();
}

BUILTIN(m_setdefault)
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

BUILTIN(m_copy)
{
    struct value out = value_dict(r);
    dict_update(r, out.dict, self.dict);
    return out;
}

const struct builtin *dict_method_find(const char *name)
{
    static const struct builtin METHODS[] = {
        { "get", m_get, { "key", "default" }, 1 },
        { "items", m_view, { NULL }, 0, LIST_ITEMS },
        { "keys", m_view, { NULL }, 0, LIST_KEYS },
        { "values", m_view, { NULL }, 0, LIST_VALUES },
        { "pop", m_dict_pop, { "key", "default" }, 1 },
        { "update", m_update, { NULL }, -1 },
        { "setdefault", m_setdefault, { "key", "default" }, 1 },
        { "copy", m_copy, { NULL }, 0 },
        { 0 },
    };
    return builtin_in(METHODS, name);
}
