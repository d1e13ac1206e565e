/* Tests: `x is NAME`. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <math.h>
#include <string.h>

/* Sets of kinds of values, for rows of t_kind. */
enum {
    IS_UNDEFINED = 1 << VALUE_UNDEFINED,
    IS_NONE = 1 << VALUE_NONE,
    IS_BOOL = 1 << VALUE_BOOL,
    IS_INT = 1 << VALUE_INT,
    IS_FLOAT = 1 << VALUE_FLOAT,
    IS_NUMBER = IS_BOOL | IS_INT | IS_FLOAT,
    IS_STRING = 1 << VALUE_STRING,
    IS_DICT = 1 << VALUE_DICT,
    IS_ITERABLE = IS_STRING | 1 << VALUE_LIST | IS_DICT | IS_UNDEFINED,
    IS_CALLABLE = 1 << VALUE_BUILTIN | 1 << VALUE_MACRO | 1 << VALUE_LOOP | IS_UNDEFINED,
};

BUILTIN(t_kind)
{
    return value_bool(a->mode & 1 << self.kind);
}

BUILTIN(t_truth)
{
    return value_bool(self.kind == VALUE_BOOL && self.is_true == a->mode);
}

/* Values with a length and items, by Jinja's definition: also dicts and undefined values. */
BUILTIN(t_sequence)
{
    bool is_list = self.kind == VALUE_LIST && self.list->kind <= LIST_RANGE &&
                   self.list->kind != LIST_GENERATOR;
    return value_bool(self.kind == VALUE_STRING || self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED ||
                      is_list);
}

static struct value has_rest(struct render *r, struct value self, struct value divisor, int64_t rest)
{
    struct value found = binary_value(r, TOKEN_MOD, self, divisor);
    return value_bool(!failed(r) && value_equals(r, found, value_int(rest)));
}

/* even and odd. */
BUILTIN(t_parity)
{
    return has_rest(r, self, value_int(2), a->mode);
}

BUILTIN(t_divisibleby)
{
    return has_rest(r, self, a->values[0], 0);
}

BUILTIN(t_case)
{
    struct value s = value_to_string(r, self);
    struct value mapped = string_map(r, s, (enum case_mapping)a->mode);
    struct value other = string_map(r, s, a->mode == CASE_UPPER ? CASE_LOWER : CASE_UPPER);
    return value_bool(value_equals(r, s, mapped) && !value_equals(r, s, other));
}

BUILTIN(t_escaped)
{
    return value_bool(self.kind == VALUE_STRING && self.is_markup);
}

/* Whether there is a filter, or a test, of that name. */
enum { OF_FILTERS, OF_TESTS };
BUILTIN(t_known)
{
    const char *name = value_name(r, value_to_string(r, self));
    return value_bool(!failed(r) && (a->mode == OF_FILTERS ? filter_find(name) : test_find(name)));
}

BUILTIN(t_sameas)
{
    struct value other = a->values[0];
    if (self.kind != other.kind)
        return value_bool(false);
    if (self.kind == VALUE_LIST || self.kind == VALUE_DICT)
        return value_bool(self.dict == other.dict);
    return value_bool(value_equals(r, self, other));
}

BUILTIN(t_compare)
{
    return value_bool(compare_values(r, (enum token_kind)a->mode, self, a->values[0]));
}

const struct builtin *test_find(const char *name)
{
    static const struct builtin TESTS[] = {
        { "defined", t_kind, { NULL }, 0, ~IS_UNDEFINED },
        { "undefined", t_kind, { NULL }, 0, IS_UNDEFINED },
        { "none", t_kind, { NULL }, 0, IS_NONE },
        { "boolean", t_kind, { NULL }, 0, IS_BOOL },
        { "integer", t_kind, { NULL }, 0, IS_INT },
        { "float", t_kind, { NULL }, 0, IS_FLOAT },
        { "number", t_kind, { NULL }, 0, IS_NUMBER },
        { "string", t_kind, { NULL }, 0, IS_STRING },
        { "mapping", t_kind, { NULL }, 0, IS_DICT },
        { "iterable", t_kind, { NULL }, 0, IS_ITERABLE },
        { "callable", t_kind, { NULL }, 0, IS_CALLABLE },
        { "true", t_truth, { NULL }, 0, true },
        { "false", t_truth, { NULL }, 0, false },
        { "sequence", t_sequence, { NULL }, 0 },
        { "even", t_parity, { NULL }, 0, 0 },
        { "odd", t_parity, { NULL }, 0, 1 },
        { "divisibleby", t_divisibleby, { "num" }, 1 },
        { "upper", t_case, { NULL }, 0, CASE_UPPER },
        { "lower", t_case, { NULL }, 0, CASE_LOWER },
        { "escaped", t_escaped, { NULL }, 0 },
        { "filter", t_known, { NULL }, 0, OF_FILTERS },
        { "test", t_known, { NULL }, 0, OF_TESTS },
        { "sameas", t_sameas, { "other" }, 1 },
        { "eq", t_compare, { "other" }, 1, TOKEN_EQ },
        { "equalto", t_compare, { "other" }, 1, TOKEN_EQ },
        { "==", t_compare, { "other" }, 1, TOKEN_EQ },
        { "ne", t_compare, { "other" }, 1, TOKEN_NE },
        { "!=", t_compare, { "other" }, 1, TOKEN_NE },
        { "lt", t_compare, { "other" }, 1, TOKEN_LT },
        { "lessthan", t_compare, { "other" }, 1, TOKEN_LT },
        { "<", t_compare, { "other" }, 1, TOKEN_LT },
        { "le", t_compare, { "other" }, 1, TOKEN_LE },
        { "<=", t_compare, { "other" }, 1, TOKEN_LE },
        { "gt", t_compare, { "other" }, 1, TOKEN_GT },
        { "greaterthan", t_compare, { "other" }, 1, TOKEN_GT },
        { ">", t_compare, { "other" }, 1, TOKEN_GT },
        { "ge", t_compare, { "other" }, 1, TOKEN_GE },
        { ">=", t_compare, { "other" }, 1, TOKEN_GE },
        { "in", t_compare, { "seq" }, 1, TOKEN_IN },
        { 0 },
    };
    return builtin_in(TESTS, name);
}
