/* Global functions of templates, methods of loops, and helpers for builtin arguments. */
#include "template/eval/eval.h"

#include <string.h>
#include <time.h>

enum { MAX_RANGE = 100000 }; /* as in Jinja's sandbox */

/* ---- arguments ---- */

bool arg_given(const struct args *args, int i)
{
    return args->values[i].kind != VALUE_ABSENT && args->values[i].kind != VALUE_NONE;
}

struct value arg_string(struct render *r, const struct args *args, int i, const char *fallback)
{
    struct value value = args->values[i];
    if (!arg_given(args, i))
        return fallback ? value_cstring(fallback) : value_absent();
    if (value.kind != VALUE_STRING)
        fail_type(r, "expected a string, found %s", value_type_name(value));
    return failed(r) ? value_cstring("") : value;
}

int64_t arg_int(struct render *r, const struct args *args, int i, int64_t fallback)
{
    struct value value = args->values[i];
    if (!arg_given(args, i))
        return fallback;
    if (!value_is_integer(value))
        fail_type(r, "expected a whole number, found %s", value_type_name(value));
    return failed(r) ? fallback : value_integer(value);
}

bool arg_bool(const struct args *args, int i, bool fallback)
{
    return args->values[i].kind == VALUE_ABSENT ? fallback : value_is_true(args->values[i]);
}

void dict_add_keywords(struct render *r, struct dict *dict, const struct args *args)
{
    for (size_t i = 0; i < args->n_keywords && !failed(r); i++)
        dict_set(r, dict, value_cstring(args->keywords[i].name), args->keywords[i].value);
}

/* ---- functions ---- */

BUILTIN(g_raise_exception)
{
    struct value text = value_to_string(r, a->values[0]);
    return fail_type(r, "%.*s", (int)(text.n_bytes < 350 ? text.n_bytes : 350), text.bytes);
}

BUILTIN(g_strftime_now)
{
    struct value format = arg_string(r, a, 0, "");
    time_t now = r->now ? (time_t)r->now : time(NULL);
    struct tm parts;
    char text[512];
    enum { MAX_FORMAT = 127 };
    if (format.n_bytes > MAX_FORMAT)
        return fail_type(r, "strftime_now: the format has more than %d bytes", MAX_FORMAT);
    if (failed(r) || !localtime_r(&now, &parts))
        return fail_type(r, "strftime_now: no such time");
    size_t n = strftime(text, sizeof text, value_name(r, format), &parts);
    struct text out = { 0 };
    text_add(r, &out, text, n, format.origin == ORIGIN_TRUSTED ? ORIGIN_TRUSTED : ORIGIN_USER);
    return text_value(&out);
}

BUILTIN(g_range)
{
    bool has_end = arg_given(a, 1);
    int64_t begin = has_end ? arg_int(r, a, 0, 0) : 0, end = arg_int(r, a, has_end ? 1 : 0, 0);
    int64_t step = arg_int(r, a, 2, 1), span;
    if (step == 0)
        return fail_type(r, "range: the step must not be 0");
    if (__builtin_sub_overflow(end, begin, &span) || step == INT64_MIN ||
        (span != 0 && (span < 0) == (step < 0) && span / step > MAX_RANGE))
        return fail(r, TUTTI_E_LIMIT, "range: more than %d numbers", MAX_RANGE);
    struct value out = value_list(r, LIST_RANGE);
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && spend(r, 0);) {
        list_add(r, out.list, value_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return out;
}

/* dict and namespace. */
BUILTIN(g_dict)
{
    struct value out = value_dict(r);
    if (a->n_given > 1)
        return fail_type(r, "expected at most 1 argument, found %zu", a->n_given);
    if (a->n_given == 1 && a->given[0].kind == VALUE_DICT) {
        dict_update(r, out.dict, a->given[0].dict);
    } else if (a->n_given == 1) {
        struct list *pairs = value_iterate(r, a->given[0]);
        for (size_t i = 0; pairs && i < pairs->n && !failed(r); i++) {
            struct list *pair = value_iterate(r, pairs->items[i]);
            if (pair && pair->n != 2)
                fail_type(r, "a dict is made of pairs");
            else if (pair)
                dict_set(r, out.dict, pair->items[0], pair->items[1]);
        }
    }
    dict_add_keywords(r, out.dict, a);
    if (!failed(r))
        out.kind = (enum value_kind)a->mode;
    return out;
}

/* joiner() has state: a list of the separator, stored in the function value, becomes a tuple at the first call. */
BUILTIN(call_joiner)
{
    if (self.list->kind == LIST_LIST) { /* the first call */
        self.list->kind = LIST_TUPLE;
        return value_cstring("");
    }
    return self.list->items[0];
}

BUILTIN(g_joiner)
{
    static const struct builtin JOINER = { "joiner", call_joiner, { NULL }, 0 };
    struct value state = value_list(r, LIST_LIST);
    if (!failed(r))
        list_add(r, state.list, a->values[0].kind == VALUE_ABSENT ? value_cstring(", ") : a->values[0]);
    return failed(r) ? state : builtin_value(r, &JOINER, state);
}

static const struct builtin FUNCTIONS[] = {
    { "raise_exception", g_raise_exception, { "message" }, 1 },
    { "strftime_now", g_strftime_now, { "format" }, 1 },
    { "range", g_range, { "start", "stop", "step" }, 1 },
    { "namespace", g_dict, { NULL }, -1, VALUE_NAMESPACE },
    { "dict", g_dict, { NULL }, -1, VALUE_DICT },
    { "joiner", g_joiner, { "sep" }, 0 },
    { 0 },
};

const struct builtin *function_find(const char *name)
{
    return builtin_in(FUNCTIONS, name);
}

/* ---- loops ---- */

BUILTIN(m_cycle)
{
    if (a->n_given == 0)
        return fail_type(r, "loop.cycle needs items to cycle through");
    return a->given[self.loop->index % a->n_given];
}

BUILTIN(m_changed)
{
    struct value now = value_list(r, LIST_TUPLE);
    list_add_all(r, now.list, &(struct list){ .items = a->given, .n = a->n_given });
    bool same = !failed(r) && self.loop->changed.kind != VALUE_ABSENT &&
                value_equals(r, now, self.loop->changed);
    self.loop->changed = now;
    return value_bool(!same);
}

const struct builtin *loop_method_find(const char *name)
{
    static const struct builtin METHODS[] = {
        { "cycle", m_cycle, { NULL }, -1 },
        { "changed", m_changed, { NULL }, -1 },
        { 0 },
    };
    return builtin_in(METHODS, name);
}
