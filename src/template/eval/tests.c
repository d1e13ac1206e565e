/* Tests: `x is NAME`. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <math.h>
#include <string.h>

static struct value t_defined(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind != VALUE_UNDEFINED);
}

static struct value t_undefined(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_UNDEFINED);
}

static struct value t_none(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_NONE);
}

static struct value t_boolean(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_BOOL);
}

static struct value t_true(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_BOOL && self.is_true);
}

static struct value t_false(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_BOOL && !self.is_true);
}

static struct value t_integer(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_INT);
}

static struct value t_float(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_FLOAT);
}

static struct value t_number(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(value_is_number(self));
}

static struct value t_string(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_STRING);
}

static struct value t_mapping(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_DICT);
}

static struct value t_iterable(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_STRING || self.kind == VALUE_LIST || self.kind == VALUE_DICT ||
                      self.kind == VALUE_UNDEFINED);
}

/* Values with a length and items, by Jinja's definition: also dicts and undefined values. */
static struct value t_sequence(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    bool is_list = self.kind == VALUE_LIST && self.list->kind <= LIST_RANGE &&
                   self.list->kind != LIST_GENERATOR;
    return value_bool(self.kind == VALUE_STRING || self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED ||
                      is_list);
}

static struct value t_callable(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_BUILTIN || self.kind == VALUE_MACRO || self.kind == VALUE_LOOP ||
                      self.kind == VALUE_UNDEFINED);
}

static struct value parity(struct render *r, struct value self, int64_t rest)
{
    struct value left = binary_value(r, TOKEN_MOD, self, value_int(2));
    return value_bool(!failed(r) && value_equals(r, left, value_int(rest)));
}

static struct value t_even(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return parity(r, self, 0);
}

static struct value t_odd(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return parity(r, self, 1);
}

static struct value t_divisibleby(struct render *r, struct value self, const struct args *a)
{
    struct value rest = binary_value(r, TOKEN_MOD, self, a->values[0]);
    return value_bool(!failed(r) && value_equals(r, rest, value_int(0)));
}

static struct value t_case(struct render *r, struct value self, enum case_mapping mapping)
{
    struct value s = value_to_string(r, self), mapped = string_map(r, s, mapping);
    struct value other = string_map(r, s, mapping == CASE_UPPER ? CASE_LOWER : CASE_UPPER);
    return value_bool(value_equals(r, s, mapped) && !value_equals(r, s, other));
}

static struct value t_upper(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return t_case(r, self, CASE_UPPER);
}

static struct value t_lower(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    return t_case(r, self, CASE_LOWER);
}

static struct value t_escaped(struct render *r, struct value self, const struct args *a)
{
    (void)r, (void)a;
    return value_bool(self.kind == VALUE_STRING && self.is_markup);
}

static struct value t_filter(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    struct text name = { 0 };
    text_add_value(r, &name, self);
    text_add(r, &name, "", 1, ORIGIN_TRUSTED);
    return value_bool(!failed(r) && filter_find(name.bytes));
}

static struct value t_test(struct render *r, struct value self, const struct args *a)
{
    (void)a;
    struct text name = { 0 };
    text_add_value(r, &name, self);
    text_add(r, &name, "", 1, ORIGIN_TRUSTED);
    return value_bool(!failed(r) && test_find(name.bytes));
}

static struct value t_sameas(struct render *r, struct value self, const struct args *a)
{
    struct value other = a->values[0];
    if (self.kind != other.kind)
        return value_bool(false);
    if (self.kind == VALUE_LIST || self.kind == VALUE_DICT)
        return value_bool(self.dict == other.dict);
    return value_bool(value_equals(r, self, other));
}

#define COMPARISON(name, op)                                                                                 \
    static struct value name(struct render *r, struct value self, const struct args *a)                      \
    {                                                                                                        \
        return value_bool(compare_values(r, op, self, a->values[0]));                                        \
    }
COMPARISON(t_eq, TOKEN_EQ)
COMPARISON(t_ne, TOKEN_NE)
COMPARISON(t_lt, TOKEN_LT)
COMPARISON(t_le, TOKEN_LE)
COMPARISON(t_gt, TOKEN_GT)
COMPARISON(t_ge, TOKEN_GE)
COMPARISON(t_in, TOKEN_IN)

static const struct builtin TESTS[] = {
    { "defined", t_defined, { NULL }, 0 },
    { "undefined", t_undefined, { NULL }, 0 },
    { "none", t_none, { NULL }, 0 },
    { "boolean", t_boolean, { NULL }, 0 },
    { "true", t_true, { NULL }, 0 },
    { "false", t_false, { NULL }, 0 },
    { "integer", t_integer, { NULL }, 0 },
    { "float", t_float, { NULL }, 0 },
    { "number", t_number, { NULL }, 0 },
    { "string", t_string, { NULL }, 0 },
    { "mapping", t_mapping, { NULL }, 0 },
    { "iterable", t_iterable, { NULL }, 0 },
    { "sequence", t_sequence, { NULL }, 0 },
    { "callable", t_callable, { NULL }, 0 },
    { "even", t_even, { NULL }, 0 },
    { "odd", t_odd, { NULL }, 0 },
    { "divisibleby", t_divisibleby, { "num" }, 1 },
    { "upper", t_upper, { NULL }, 0 },
    { "lower", t_lower, { NULL }, 0 },
    { "escaped", t_escaped, { NULL }, 0 },
    { "filter", t_filter, { NULL }, 0 },
    { "test", t_test, { NULL }, 0 },
    { "sameas", t_sameas, { "other" }, 1 },
    { "eq", t_eq, { "other" }, 1 },
    { "equalto", t_eq, { "other" }, 1 },
    { "==", t_eq, { "other" }, 1 },
    { "ne", t_ne, { "other" }, 1 },
    { "!=", t_ne, { "other" }, 1 },
    { "lt", t_lt, { "other" }, 1 },
    { "lessthan", t_lt, { "other" }, 1 },
    { "<", t_lt, { "other" }, 1 },
    { "le", t_le, { "other" }, 1 },
    { "<=", t_le, { "other" }, 1 },
    { "gt", t_gt, { "other" }, 1 },
    { "greaterthan", t_gt, { "other" }, 1 },
    { ">", t_gt, { "other" }, 1 },
    { "ge", t_ge, { "other" }, 1 },
    { ">=", t_ge, { "other" }, 1 },
    { "in", t_in, { "seq" }, 1 },
    { 0 },
};

const struct builtin *test_find(const char *name)
{
    return builtin_in(TESTS, name);
}
