/* Evaluates a template's tree. Names are looked up from the innermost frame outwards when they
 * are read, like the closures of Jinja's compiled code. */
#ifndef TUTTI_TEMPLATE_EVAL_EVAL_H
#define TUTTI_TEMPLATE_EVAL_EVAL_H

#include "template/syntax/syntax.h"

/* Prevents inlining into the recursive eval() and exec(): otherwise a function's variables would
 * use stack at every level, even when it does not run. */
#define OUT_OF_LINE __attribute__((noinline))

/* One scope: a loop iteration, a macro call, or a block. */
struct frame {
    struct frame *outer;
    struct binding *bindings;
};

struct binding {
    struct binding *next;
    const char *name;
    struct value value;
};

struct macro {
    const struct macro_def *def;
    struct frame *frame; /* where it was defined */
};

struct loop {
    const struct stmt *stmt; /* to call it again, if it is recursive */
    struct frame *frame;     /* the enclosing scope */
    struct list *items;
    size_t index;
    int level;
    struct value changed; /* last value of loop.changed(); absent: none */
};

/* ---- calls ---- */

enum { MAX_PARAMS = 6 };

/* Arguments of a call. */
struct args {
    /* [MAX_PARAMS] bound to a builtin's parameters while it runs; VALUE_ABSENT if not given. */
    struct value *values;
    struct value *given; /* positional, in the order of the call */
    size_t n_given;
    struct keyword {
        const char *name;
        struct value value;
    } * keywords;
    size_t n_keywords;
    int mode; /* the builtin's */
};

typedef struct value builtin_fn(struct render *r, struct value self, const struct args *a);

/* Begins the definition of a builtin_fn: self is what the builtin is applied to. Most builtins need
 * only some of the parameters. */
#define BUILTIN(name)                                                                                        \
    static struct value name(__attribute__((unused)) struct render *r,                                       \
                             __attribute__((unused)) struct value self,                                      \
                             __attribute__((unused)) const struct args *a)

/* A function, filter, test or method. */
struct builtin {
    const char *name;
    builtin_fn *call;
    const char *params[MAX_PARAMS];
    int n_required; /* -1: any arguments, unbound */
    int mode;       /* which of the variants that call implements */
};

struct bound {
    const struct builtin *builtin;
    struct value self; /* of a method */
};

struct value builtin_value(struct render *r, const struct builtin *builtin, struct value self);

const struct builtin *filter_find(const char *name); /* NULL: none */
const struct builtin *test_find(const char *name);
const struct builtin *function_find(const char *name);
const struct builtin *string_method_find(const char *name);
const struct builtin *list_method_find(const char *name);
const struct builtin *dict_method_find(const char *name);
const struct builtin *loop_method_find(const char *name);

/* The tables of builtins: each ends with a NULL name. */
extern const struct builtin TEXT_FILTERS[], LIST_FILTERS[], ORDER_FILTERS[], PICK_FILTERS[];
const struct builtin *builtin_in(const struct builtin *table, const char *name);

/* Filters that are methods of strings too. Modes: enum case_mapping; STRIP_LEFT and STRIP_RIGHT;
 * enum padding. */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
builtin_fn f_case, f_strip, f_pad;

/* Adds the named arguments. */
void dict_add_keywords(struct render *r, struct dict *dict, const struct args *args);

/* Argument i converted to the type, or the fallback. */
struct value arg_string(struct render *r, const struct args *args, int i, const char *fallback);
int64_t arg_int(struct render *r, const struct args *args, int i, int64_t fallback);
bool arg_bool(const struct args *args, int i, bool fallback);
bool arg_given(const struct args *args, int i); /* and not none */

/* ---- values ---- */

struct value eval(struct render *r, struct frame *frame, const struct expr *e);
struct value get_attr(struct render *r, struct value object, struct value name);
/* An attribute path such as "a.b.0", as in map and sort. */
struct value get_path(struct render *r, struct value object, struct value path);
struct value slice_value(struct render *r, struct value object, struct value begin, struct value end,
                         struct value step);
struct value binary_value(struct render *r, enum token_kind op, struct value a, struct value b);
bool compare_values(struct render *r, enum token_kind op, struct value a, struct value b);
struct value format_percent(struct render *r, struct value format, struct value values);
struct value call_value(struct render *r, struct value callee, struct args *args);
struct value apply_filter(struct render *r, const char *name, struct value self, struct args *args);
bool apply_test(struct render *r, const char *name, struct value self, struct args *args);
/* Evaluates the arguments of a call. False: failed. */
bool eval_args(struct render *r, struct frame *frame, const struct arg *list, size_t n, struct args *out);

struct value *frame_find(struct render *r, struct frame *frame, const char *name); /* NULL: none */
void frame_set(struct render *r, struct frame *frame, const char *name, struct value value);
struct frame *frame_new(struct render *r, struct frame *outer); /* NULL: failed */

/* ---- statements ---- */

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

enum flow exec(struct render *r, struct frame *frame, const struct block *block);
struct value call_macro(struct render *r, const struct macro *macro, struct args *args);
struct value call_loop(struct render *r, const struct loop *loop, struct value items);

#endif
