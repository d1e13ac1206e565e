/* Executes statements, macros and loops. */
#include "template/eval/eval.h"

#include <string.h>

/* ---- assignments ---- */

static void assign(struct render *r, struct frame *frame, const struct expr *target, struct value value)
{
    if (failed(r))
        return;
    if (target->kind == EXPR_NAME) {
        frame_set(r, frame, target->name, value);
        return;
    }
    if (target->kind == EXPR_ATTR) {
        struct value *object = frame_find(r, frame, target->left->name);
        if (!object || object->kind != VALUE_NAMESPACE)
            fail_type(r, "cannot assign attribute on non-namespace object");
        else
            dict_set(r, object->dict, value_cstring(target->name), value);
        return;
    }
    struct list *items = value_iterate(r, value);
    if (!items)
        return;
    if (items->n != target->n_args) {
        fail_type(r, "%zu values for %zu names", items->n, target->n_args);
        return;
    }
    for (size_t i = 0; i < items->n && !failed(r); i++)
        assign(r, frame, target->args[i].value, items->items[i]);
}

/* The block's output as a string; runs in its own scope. */
OUT_OF_LINE static struct value capture(struct render *r, struct frame *frame, const struct block *block)
{
    struct text text = { 0 }, *outer = r->out;
    r->out = &text;
    exec(r, frame, block);
    r->out = outer;
    return text_value(&text);
}

/* Passes a value through a chain of filters whose innermost has no left side. */
static struct value through_filters(struct render *r, struct frame *frame, const struct expr *e,
                                    struct value value)
{
    size_t n = 0;
    for (const struct expr *at = e; at; at = at->left)
        n++;
    for (; n > 0 && !failed(r); n--) {
        const struct expr *filter = e; /* a chain is short: see MAX_TREE_DEPTH */
        struct args args;
        for (size_t i = 1; i < n; i++)
            filter = filter->left;
        r->line = filter->line;
        if (eval_args(r, frame, filter->args, filter->n_args, &args))
            value = apply_filter(r, filter->name, value, &args);
    }
    return value;
}

/* ---- loops ---- */

/* The items that pass the loop's condition. */
OUT_OF_LINE static struct list *filter_items(struct render *r, struct frame *frame, const struct stmt *s,
                                             struct list *items)
{
    struct value kept = value_list(r, LIST_LIST);
    for (size_t i = 0; i < items->n && !failed(r); i++) {
        struct frame *inner = frame_new(r, frame);
        if (!inner)
            break;
        assign(r, inner, s->target, items->items[i]);
        struct value test = eval(r, inner, s->test);
        if (!failed(r) && value_is_true(test))
            list_add(r, kept.list, items->items[i]);
    }
    return failed(r) ? NULL : kept.list;
}

OUT_OF_LINE static enum flow run_loop(struct render *r, struct frame *frame, const struct stmt *s,
                                      struct value over, int level)
{
    struct list *items = value_iterate(r, over);
    if (items && s->test)
        items = filter_items(r, frame, s, items);
    struct loop *loop = take(r, 1, sizeof *loop);
    if (!items || !loop)
        return FLOW_NEXT;
    *loop = (struct loop){
        .stmt = s, .frame = frame, .items = items, .level = level, .changed = value_absent()
    };
    for (size_t i = 0; i < items->n && spend(r, 0); i++) {
        struct frame *inner = frame_new(r, frame);
        if (!inner)
            break;
        loop->index = i;
        frame_set(r, inner, "loop", (struct value){ .kind = VALUE_LOOP, .loop = loop });
        assign(r, inner, s->target, items->items[i]);
        if (!failed(r) && exec(r, inner, &s->body) == FLOW_BREAK)
            break;
    }
    if (items->n == 0) {
        struct frame *inner = frame_new(r, frame);
        if (inner)
            return exec(r, inner, &s->otherwise);
    }
    return FLOW_NEXT;
}

struct value call_loop(struct render *r, const struct loop *loop, struct value items)
{
    struct text text = { 0 }, *outer = r->out;
    if (!loop->stmt->is_recursive)
        return fail_type(r, "the loop is not marked 'recursive'");
    r->out = &text;
    if (enter(r))
        run_loop(r, loop->frame, loop->stmt, items, loop->level + 1);
    leave(r);
    r->out = outer;
    return text_value(&text);
}

/* ---- macros ---- */

OUT_OF_LINE static void bind_rest(struct render *r, struct frame *frame, const struct macro_def *def,
                                  const struct args *args, const bool *is_used)
{
    struct value rest = value_list(r, LIST_TUPLE), names = value_dict(r);
    for (size_t i = def->n_params; i < args->n_given && !failed(r); i++) {
        if (def->takes_varargs)
            list_add(r, rest.list, args->given[i]);
        else
            fail_type(r, "macro '%.40s' takes not more than %zu argument(s)", def->name, def->n_params);
    }
    for (size_t i = 0; i < args->n_keywords && !failed(r); i++) {
        const struct keyword *keyword = &args->keywords[i];
        if (is_used[i])
            continue;
        if (strcmp(keyword->name, "caller") == 0)
            frame_set(r, frame, "caller", keyword->value);
        else if (def->takes_kwargs)
            dict_set(r, names.dict, value_cstring(keyword->name), keyword->value);
        else
            fail_type(r, "macro '%.40s' takes no keyword argument '%.40s'", def->name, keyword->name);
    }
    if (def->takes_varargs)
        frame_set(r, frame, "varargs", rest);
    if (def->takes_kwargs)
        frame_set(r, frame, "kwargs", names);
}

OUT_OF_LINE static void bind_macro(struct render *r, struct frame *frame, const struct macro_def *def,
                                   const struct args *args)
{
    bool *is_used = take(r, args->n_keywords + 1, sizeof *is_used);
    for (size_t i = 0; i < def->n_params && !failed(r); i++) {
        struct value value = i < args->n_given ? args->given[i] : value_absent();
        for (size_t k = 0; k < args->n_keywords && spend(r, 0); k++) {
            if (strcmp(args->keywords[k].name, def->params[i].name) != 0)
                continue;
            if (value.kind != VALUE_ABSENT)
                fail_type(r, "macro '%.40s' got '%.40s' twice", def->name, def->params[i].name);
            value = args->keywords[k].value;
            is_used[k] = true;
        }
        if (value.kind == VALUE_ABSENT)
            value = def->params[i].value ? eval(r, frame, def->params[i].value)
                                         : value_undefined(def->params[i].name);
        frame_set(r, frame, def->params[i].name, value);
    }
    if (!failed(r))
        bind_rest(r, frame, def, args, is_used);
}

struct value call_macro(struct render *r, const struct macro *macro, struct args *args)
{
    struct value out = value_undefined("");
    struct frame *frame = frame_new(r, macro->frame);
    bool ok = enter(r);
    if (ok && frame) {
        bind_macro(r, frame, macro->def, args);
        if (!failed(r))
            out = capture(r, frame, &macro->def->body);
    }
    leave(r);
    return out;
}

static struct value make_macro(struct render *r, struct frame *frame, const struct macro_def *def)
{
    struct macro *macro = take(r, 1, sizeof *macro);
    if (!macro)
        return value_undefined("");
    *macro = (struct macro){ def, frame };
    return (struct value){ .kind = VALUE_MACRO, .macro = macro };
}

OUT_OF_LINE static void exec_call(struct render *r, struct frame *frame, const struct stmt *s)
{
    struct args args;
    struct value callee = eval(r, frame, s->value->left);
    if (!eval_args(r, frame, s->value->args, s->value->n_args, &args))
        return;
    struct keyword *keywords = take(r, args.n_keywords + 1, sizeof *keywords);
    if (!keywords)
        return;
    if (args.n_keywords > 0)
        memcpy(keywords, args.keywords, args.n_keywords * sizeof *keywords);
    keywords[args.n_keywords] = (struct keyword){ "caller", make_macro(r, frame, s->macro) };
    args.keywords = keywords;
    args.n_keywords++;
    struct value out = call_value(r, callee, &args);
    if (!failed(r))
        text_add_value(r, r->out, out);
}

/* ---- statements ---- */

OUT_OF_LINE static enum flow exec_if(struct render *r, struct frame *frame, const struct stmt *s)
{
    while (s && !failed(r)) {
        struct value test = eval(r, frame, s->test);
        if (failed(r))
            break;
        if (value_is_true(test))
            return exec(r, frame, &s->body);
        if (!s->elif)
            return exec(r, frame, &s->otherwise);
        s = s->elif;
    }
    return FLOW_NEXT;
}

/* Statements with their own scope. */
OUT_OF_LINE static enum flow exec_scope(struct render *r, struct frame *frame, const struct stmt *s)
{
    struct frame *inner = frame_new(r, frame);
    if (!inner)
        return FLOW_NEXT;
    struct value text;
    switch (s->kind) {
    case STMT_SET_BLOCK:
        text = through_filters(r, frame, s->value, capture(r, inner, &s->body));
        assign(r, frame, s->target, text);
        return FLOW_NEXT;
    case STMT_FILTER:
        text = through_filters(r, frame, s->value, capture(r, inner, &s->body));
        if (!failed(r))
            text_add_value(r, r->out, text);
        return FLOW_NEXT;
    case STMT_GENERATION:
        text = capture(r, inner, &s->body);
        text_add_value(r, r->out, text);
        return FLOW_NEXT;
    default: /* with */
        for (size_t i = 0; i < s->n_sets && !failed(r); i++)
            frame_set(r, inner, s->sets[i].name, eval(r, frame, s->sets[i].value));
        return failed(r) ? FLOW_NEXT : exec(r, inner, &s->body);
    }
}

static enum flow exec_stmt(struct render *r, struct frame *frame, const struct stmt *s)
{
    struct value value;
    r->line = s->line;
    switch (s->kind) {
    case STMT_TEXT:
        text_add(r, r->out, s->text.text, s->text.n_bytes, ORIGIN_TRUSTED);
        return FLOW_NEXT;
    case STMT_PRINT:
        value = eval(r, frame, s->value);
        if (!failed(r))
            text_add_value(r, r->out, value);
        return FLOW_NEXT;
    case STMT_IF:
        return exec_if(r, frame, s);
    case STMT_FOR:
        value = eval(r, frame, s->value);
        return failed(r) ? FLOW_NEXT : run_loop(r, frame, s, value, 0);
    case STMT_SET:
        value = eval(r, frame, s->value);
        assign(r, frame, s->target, value);
        return FLOW_NEXT;
    case STMT_MACRO:
        frame_set(r, frame, s->macro->name, make_macro(r, frame, s->macro));
        return FLOW_NEXT;
    case STMT_CALL:
        exec_call(r, frame, s);
        return FLOW_NEXT;
    case STMT_BREAK:
        return FLOW_BREAK;
    case STMT_CONTINUE:
        return FLOW_CONTINUE;
    default:
        return exec_scope(r, frame, s);
    }
}

enum flow exec(struct render *r, struct frame *frame, const struct block *block)
{
    enum flow flow = FLOW_NEXT;
    if (enter(r)) {
        for (size_t i = 0; i < block->n && flow == FLOW_NEXT && spend(r, 0); i++)
            flow = exec_stmt(r, frame, block->stmts[i]);
    }
    leave(r);
    return flow;
}
