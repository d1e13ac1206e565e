/* Evaluates expressions. */
#include "template/eval/eval.h"

#include <string.h>

/* ---- names ---- */

struct value *frame_find(struct render *r, struct frame *frame, const char *name)
{
    for (; frame; frame = frame->outer) {
        for (struct binding *b = frame->bindings; b; b = b->next) {
            r->n_steps++;
            if (strcmp(b->name, name) == 0)
                return &b->value;
        }
    }
    return NULL;
}

void frame_set(struct render *r, struct frame *frame, const char *name, struct value value)
{
    for (struct binding *b = frame->bindings; b && spend(r, 0); b = b->next) {
        if (strcmp(b->name, name) == 0) {
            b->value = value;
            return;
        }
    }
    struct binding *b = take(r, 1, sizeof *b);
    if (!b)
        return;
    *b = (struct binding){ frame->bindings, name, value };
    frame->bindings = b;
}

struct frame *frame_new(struct render *r, struct frame *outer)
{
    struct frame *frame = take(r, 1, sizeof *frame);
    if (frame)
        frame->outer = outer;
    return frame;
}

/* ---- attributes and items ---- */

static struct value get_method(struct render *r, struct value object, const char *name)
{
    const struct builtin *method = NULL;
    if (object.kind == VALUE_STRING)
        method = string_method_find(name);
    else if (object.kind == VALUE_LIST && (object.list->kind == LIST_LIST || object.list->kind == LIST_TUPLE))
        method = list_method_find(name);
    else if (object.kind == VALUE_DICT)
        method = dict_method_find(name);
    else if (object.kind == VALUE_LOOP)
        method = loop_method_find(name);
    return method ? builtin_value(r, method, object) : value_absent();
}

static struct value loop_attr(const struct loop *loop, const char *name)
{
    size_t n = loop->items->n, i = loop->index;
    const struct {
        const char *name;
        struct value value;
    } attrs[] = {
        { "index", value_int((int64_t)i + 1) },
        { "index0", value_int((int64_t)i) },
        { "revindex", value_int((int64_t)n - (int64_t)i) },
        { "revindex0", value_int((int64_t)n - (int64_t)i - 1) },
        { "first", value_bool(i == 0) },
        { "last", value_bool(i + 1 >= n) },
        { "length", value_int((int64_t)n) },
        { "depth", value_int(loop->level + 1) },
        { "depth0", value_int(loop->level) },
        { "previtem",
          i > 0 && i <= n ? loop->items->items[i - 1] : value_undefined("there is no previous item") },
        { "nextitem", i + 1 < n ? loop->items->items[i + 1] : value_undefined("there is no next item") },
    };
    for (size_t a = 0; a < sizeof attrs / sizeof *attrs; a++) {
        if (strcmp(attrs[a].name, name) == 0)
            return attrs[a].value;
    }
    return value_absent();
}

static struct value attr_or_absent(struct render *r, struct value object, const char *name)
{
    struct value method = get_method(r, object, name);
    if (method.kind != VALUE_ABSENT)
        return method;
    if (object.kind == VALUE_LOOP)
        return loop_attr(object.loop, name);
    if (object.kind == VALUE_NAMESPACE) {
        struct value *found = dict_find_name(r, object.dict, name);
        return found ? *found : value_absent();
    }
    if (object.kind == VALUE_MACRO && strcmp(name, "name") == 0)
        return value_cstring(object.macro->def->name);
    return value_absent();
}

static struct value is_undefined(struct render *r, struct value object)
{
    return fail_type(r, "'%.*s' is undefined", (int)(object.n_bytes < 100 ? object.n_bytes : 100),
                     object.bytes);
}

struct value get_attr(struct render *r, struct value object, struct value name)
{
    if (object.kind == VALUE_UNDEFINED)
        return is_undefined(r, object);
    const char *text = value_name(r, name);
    struct value attr = attr_or_absent(r, object, text);
    if (attr.kind != VALUE_ABSENT)
        return attr;
    struct value *found = object.kind == VALUE_DICT ? dict_find(r, object.dict, name) : NULL;
    return found ? *found : value_undefined(text);
}

static bool is_sequence(struct value value)
{
    return value.kind == VALUE_LIST && value.list->kind != LIST_GENERATOR && value.list->kind < LIST_KEYS;
}

OUT_OF_LINE static struct value char_at(struct render *r, struct value string, int64_t index)
{
    if (!spend_chars(r, string.n_bytes))
        return string;
    int64_t n = (int64_t)text_length(string.bytes, string.n_bytes);
    index += index < 0 ? n : 0;
    if (index < 0 || index >= n)
        return value_undefined("a character beyond the string");
    size_t begin = text_offset(string.bytes, string.n_bytes, (size_t)index);
    size_t end = begin + text_offset(string.bytes + begin, string.n_bytes - begin, 1);
    return value_slice(string, begin, end);
}

OUT_OF_LINE static struct value get_item(struct render *r, struct value object, struct value index)
{
    if (object.kind == VALUE_UNDEFINED)
        return is_undefined(r, object);
    bool is_index = value_is_integer(index);
    int64_t i = is_index ? value_integer(index) : 0;
    if (object.kind == VALUE_DICT) {
        struct value *found = dict_find(r, object.dict, index);
        if (found)
            return *found;
    } else if (object.kind == VALUE_STRING && is_index) {
        return char_at(r, object, i);
    } else if (is_sequence(object) && is_index) {
        int64_t n = (int64_t)object.list->n;
        i += i < 0 ? n : 0;
        return i >= 0 && i < n ? object.list->items[i] : value_undefined("an item beyond the list");
    }
    if (index.kind == VALUE_STRING) {
        const char *name = value_name(r, index);
        struct value attr = attr_or_absent(r, object, name);
        return attr.kind == VALUE_ABSENT ? value_undefined(name) : attr;
    }
    return value_undefined("an item");
}

struct value get_path(struct render *r, struct value object, struct value path)
{
    if (path.kind != VALUE_STRING)
        return get_item(r, object, path);
    size_t begin = 0;
    while (begin <= path.n_bytes && !failed(r)) {
        size_t end = text_find(path.bytes, path.n_bytes, begin, ".", 1);
        end = end == SIZE_MAX ? path.n_bytes : end;
        struct value part = value_slice(path, begin, end);
        int64_t index = 0;
        bool is_number = end > begin && end - begin < 10;
        for (size_t i = begin; i < end && is_number; i++) {
            is_number = path.bytes[i] >= '0' && path.bytes[i] <= '9';
            index = index * 10 + (path.bytes[i] - '0');
        }
        object = get_item(r, object, is_number ? value_int(index) : part);
        begin = end + 1;
    }
    return object;
}

/* ---- calls ---- */

OUT_OF_LINE static bool add_keyword(struct render *r, struct args *out, size_t *capacity, const char *name,
                                    struct value value)
{
    for (size_t i = 0; i < out->n_keywords && spend(r, 0); i++) {
        if (strcmp(out->keywords[i].name, name) == 0) {
            fail_type(r, "two arguments of the name '%.40s'", name);
            return false;
        }
    }
    if (!take_room(r, &out->keywords, out->n_keywords, capacity, sizeof *out->keywords))
        return false;
    out->keywords[out->n_keywords++] = (struct keyword){ name, value };
    return true;
}

OUT_OF_LINE static bool add_stars(struct render *r, struct args *out, size_t *capacity, struct value value)
{
    if (value.kind != VALUE_DICT) {
        fail_type(r, "the argument after ** must be a dict, not %s", value_type_name(value));
        return false;
    }
    for (size_t i = 0; i < value.dict->n && spend(r, 0); i++) {
        if (value.dict->pairs[i].key.kind != VALUE_STRING)
            fail_type(r, "names of arguments must be strings");
        else
            add_keyword(r, out, capacity, value_name(r, value.dict->pairs[i].key),
                        value.dict->pairs[i].value);
    }
    return !failed(r);
}

bool eval_args(struct render *r, struct frame *frame, const struct arg *list, size_t n, struct args *out)
{
    *out = (struct args){ 0 };
    if (n == 0)
        return !failed(r);
    struct list given = { 0 };
    size_t capacity = 0;
    for (size_t i = 0; i < n && !failed(r); i++) {
        struct value value = eval(r, frame, list[i].value);
        if (failed(r))
            break;
        if (list[i].n_stars == 1)
            list_add_all(r, &given, value_iterate(r, value));
        else if (list[i].n_stars == 2)
            add_stars(r, out, &capacity, value);
        else if (list[i].name)
            add_keyword(r, out, &capacity, list[i].name, value);
        else
            list_add(r, &given, value);
    }
    out->given = given.items;
    out->n_given = given.n;
    return !failed(r);
}

static int find_param(const struct builtin *builtin, const char *name)
{
    for (int i = 0; i < MAX_PARAMS && builtin->params[i]; i++) {
        if (strcmp(builtin->params[i], name) == 0)
            return i;
    }
    return -1;
}

static bool bind_params(struct render *r, const struct builtin *builtin, struct args *args)
{
    size_t n_params = 0;
    while (n_params < MAX_PARAMS && builtin->params[n_params])
        n_params++;
    for (size_t i = 0; i < args->n_given && i < n_params; i++)
        args->values[i] = args->given[i];
    if (args->n_given > n_params)
        fail_type(r, "%s takes at most %zu arguments, found %zu", builtin->name, n_params, args->n_given);
    for (size_t i = 0; i < args->n_keywords && !failed(r); i++) {
        int param = find_param(builtin, args->keywords[i].name);
        if (param < 0)
            fail_type(r, "%s has no argument '%.40s'", builtin->name, args->keywords[i].name);
        else if (args->values[param].kind != VALUE_ABSENT)
            fail_type(r, "%s: '%.40s' is given twice", builtin->name, args->keywords[i].name);
        else
            args->values[param] = args->keywords[i].value;
    }
    for (int i = 0; i < builtin->n_required && !failed(r); i++) {
        if (args->values[i].kind == VALUE_ABSENT)
            fail_type(r, "%s needs the argument '%s'", builtin->name, builtin->params[i]);
    }
    return !failed(r);
}

OUT_OF_LINE static struct value call_builtin(struct render *r, const struct builtin *builtin,
                                             struct value self, struct args *args)
{
    struct value out = value_undefined(""), values[MAX_PARAMS];
    if (!spend(r, 0))
        return out;
    for (size_t i = 0; i < MAX_PARAMS; i++)
        values[i] = value_absent();
    args->values = values;
    args->mode = builtin->mode;
    bool ok = enter(r);
    if (ok && builtin->n_required >= 0)
        ok = bind_params(r, builtin, args);
    if (ok)
        out = builtin->call(r, self, args);
    args->values = NULL;
    leave(r);
    return out;
}

struct value builtin_value(struct render *r, const struct builtin *builtin, struct value self)
{
    struct bound *bound = take(r, 1, sizeof *bound);
    if (!bound)
        return value_undefined("");
    *bound = (struct bound){ builtin, self };
    return (struct value){ .kind = VALUE_BUILTIN, .bound = bound };
}

struct value call_value(struct render *r, struct value callee, struct args *args)
{
    switch (callee.kind) {
    case VALUE_BUILTIN:
        return call_builtin(r, callee.bound->builtin, callee.bound->self, args);
    case VALUE_MACRO:
        return call_macro(r, callee.macro, args);
    case VALUE_LOOP:
        if (args->n_given != 1 || args->n_keywords)
            return fail_type(r, "loop() takes one argument");
        return call_loop(r, callee.loop, args->given[0]);
    case VALUE_UNDEFINED:
        return is_undefined(r, callee);
    default:
        return fail_type(r, "'%s' object is not callable", value_type_name(callee));
    }
}

const struct builtin *builtin_in(const struct builtin *table, const char *name)
{
    for (; table->name; table++) {
        if (strcmp(table->name, name) == 0)
            return table;
    }
    return NULL;
}

struct value apply_filter(struct render *r, const char *name, struct value self, struct args *args)
{
    const struct builtin *filter = filter_find(name);
    if (!filter)
        return fail_type(r, "no filter named '%.40s'", name);
    return call_builtin(r, filter, self, args);
}

bool apply_test(struct render *r, const char *name, struct value self, struct args *args)
{
    const struct builtin *test = test_find(name);
    if (!test) {
        fail_type(r, "no test named '%.40s'", name);
        return false;
    }
    return value_is_true(call_builtin(r, test, self, args));
}

/* ---- the kinds of expressions ---- */

static struct value eval_name(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value *found = frame_find(r, frame, e->name);
    if (found)
        return *found;
    const struct builtin *function = function_find(e->name);
    return function ? builtin_value(r, function, value_none()) : value_undefined(e->name);
}

OUT_OF_LINE static struct value eval_list(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value out = value_list(r, e->kind == EXPR_TUPLE ? LIST_TUPLE : LIST_LIST);
    for (size_t i = 0; i < e->n_args && !failed(r); i++)
        list_add(r, out.list, eval(r, frame, e->args[i].value));
    return out;
}

OUT_OF_LINE static struct value eval_dict(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value out = value_dict(r);
    for (size_t i = 0; i + 1 < e->n_args && !failed(r); i += 2) {
        struct value key = eval(r, frame, e->args[i].value);
        dict_set(r, out.dict, key, eval(r, frame, e->args[i + 1].value));
    }
    return out;
}

OUT_OF_LINE static struct value eval_slice(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value object = eval(r, frame, e->left), parts[3];
    for (size_t i = 0; i < 3; i++)
        parts[i] = i < e->n_args && e->args[i].value ? eval(r, frame, e->args[i].value) : value_none();
    return failed(r) ? object : slice_value(r, object, parts[0], parts[1], parts[2]);
}

OUT_OF_LINE static struct value eval_call(struct render *r, struct frame *frame, const struct expr *e)
{
    struct args args;
    struct value left = eval(r, frame, e->left);
    if (!eval_args(r, frame, e->args, e->n_args, &args))
        return left;
    r->line = e->line;
    if (e->kind == EXPR_FILTER)
        return apply_filter(r, e->name, left, &args);
    if (e->kind == EXPR_TEST)
        return value_bool(apply_test(r, e->name, left, &args));
    return call_value(r, left, &args);
}

OUT_OF_LINE static struct value eval_unary(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value value = eval(r, frame, e->left);
    if (failed(r))
        return value;
    if (e->op == TOKEN_NOT)
        return value_bool(!value_is_true(value));
    if (!value_is_number(value))
        return fail_type(r, "bad operand type for unary %s: '%s'", token_name(e->op), value_type_name(value));
    if (value.kind == VALUE_FLOAT)
        return value_float(e->op == TOKEN_SUB ? -value.f : value.f);
    int64_t i = value_integer(value);
    if (e->op == TOKEN_SUB && __builtin_sub_overflow(0, i, &i))
        return fail_type(r, "a number beyond 64 bits");
    return value_int(i);
}

OUT_OF_LINE static struct value eval_binary(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value left = eval(r, frame, e->left);
    if (failed(r))
        return left;
    if (e->op == TOKEN_AND)
        return value_is_true(left) ? eval(r, frame, e->right) : left;
    if (e->op == TOKEN_OR)
        return value_is_true(left) ? left : eval(r, frame, e->right);
    struct value right = eval(r, frame, e->right);
    r->line = e->line;
    return failed(r) ? left : binary_value(r, e->op, left, right);
}

OUT_OF_LINE static struct value eval_compare(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value left = eval(r, frame, e->left);
    bool holds = true;
    for (size_t i = 0; i < e->n_args && holds && !failed(r); i++) {
        struct value right = eval(r, frame, e->args[i].value);
        holds = !failed(r) && compare_values(r, e->args[i].op, left, right);
        left = right;
    }
    return value_bool(holds);
}

OUT_OF_LINE static struct value eval_concat(struct render *r, struct frame *frame, const struct expr *e)
{
    struct text text = { 0 };
    for (size_t i = 0; i < e->n_args && !failed(r); i++)
        text_add_value(r, &text, eval(r, frame, e->args[i].value));
    return text_value(&text);
}

OUT_OF_LINE static struct value eval_if(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value test = eval(r, frame, e->right);
    if (failed(r))
        return test;
    if (value_is_true(test))
        return eval(r, frame, e->left);
    return e->third ? eval(r, frame, e->third) : value_undefined("an inline if without else");
}

static struct value eval_kind(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value left;
    switch (e->kind) {
    case EXPR_CONST:
        return e->value;
    case EXPR_NAME:
        return eval_name(r, frame, e);
    case EXPR_LIST:
    case EXPR_TUPLE:
        return eval_list(r, frame, e);
    case EXPR_DICT:
        return eval_dict(r, frame, e);
    case EXPR_ATTR:
        left = eval(r, frame, e->left);
        r->line = e->line;
        return failed(r) ? left : get_attr(r, left, value_cstring(e->name));
    case EXPR_ITEM:
        left = eval(r, frame, e->left);
        if (!failed(r)) {
            struct value index = eval(r, frame, e->right);
            r->line = e->line;
            return failed(r) ? left : get_item(r, left, index);
        }
        return left;
    case EXPR_SLICE:
        return eval_slice(r, frame, e);
    case EXPR_CALL:
    case EXPR_FILTER:
    case EXPR_TEST:
        return eval_call(r, frame, e);
    case EXPR_UNARY:
        return eval_unary(r, frame, e);
    case EXPR_BINARY:
        return eval_binary(r, frame, e);
    case EXPR_COMPARE:
        return eval_compare(r, frame, e);
    case EXPR_CONCAT:
        return eval_concat(r, frame, e);
    case EXPR_IF:
        return eval_if(r, frame, e);
    }
    return value_undefined("");
}

struct value eval(struct render *r, struct frame *frame, const struct expr *e)
{
    struct value out = value_undefined("");
    bool ok = enter(r) && spend(r, 0);
    if (ok) {
        r->line = e->line;
        out = eval_kind(r, frame, e);
    }
    leave(r);
    return failed(r) ? value_undefined("") : out;
}
