/* The tokens and the syntax tree of a template. Both are in the template's arena and do not
 * change after parsing. */
#ifndef TUTTI_TEMPLATE_SYNTAX_SYNTAX_H
#define TUTTI_TEMPLATE_SYNTAX_SYNTAX_H

#include "template/values/value.h"

enum token_kind {
    TOKEN_END, /* of the template */
    TOKEN_TEXT,
    TOKEN_PRINT_BEGIN, /* {{ */
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN, /* {% */
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_ADD,
    TOKEN_SUB,
    TOKEN_MUL,
    TOKEN_DIV,
    TOKEN_FLOORDIV,
    TOKEN_MOD,
    TOKEN_POW,
    TOKEN_TILDE,
    TOKEN_PIPE,
    TOKEN_DOT,
    TOKEN_COMMA,
    TOKEN_COLON,
    TOKEN_SEMICOLON,
    TOKEN_ASSIGN,
    TOKEN_EQ,
    TOKEN_NE,
    TOKEN_LT,
    TOKEN_LE,
    TOKEN_GT,
    TOKEN_GE,
    TOKEN_LPAREN,
    TOKEN_RPAREN,
    TOKEN_LBRACKET,
    TOKEN_RBRACKET,
    TOKEN_LBRACE,
    TOKEN_RBRACE,
    TOKEN_IN, /* made by the parser, for comparisons */
    TOKEN_NOT_IN,
    TOKEN_AND,
    TOKEN_OR,
    TOKEN_NOT,
};

struct token {
    enum token_kind kind;
    int line;
    const char *text; /* of names, strings (escapes resolved) and template text; ends with a zero */
    size_t n_bytes;
    int64_t i;
    double f;
};

struct token_list {
    struct token *tokens;
    size_t n, capacity;
};

/* Maximum depth of an expression's tree. CPython, which runs Jinja2's compiled templates, stops
 * at 200 open brackets. */
enum { MAX_TREE_DEPTH = 200 };

struct expr;

struct arg {          /* of a call */
    const char *name; /* NULL: by position */
    struct expr *value;
    int n_stars;        /* 1: the items of a list, 2: the pairs of a dict */
    enum token_kind op; /* of a comparison: the operator before it */
};

enum expr_kind {
    EXPR_CONST,
    EXPR_NAME,
    EXPR_LIST,    /* args */
    EXPR_TUPLE,   /* args */
    EXPR_DICT,    /* args: keys and values alternating */
    EXPR_ATTR,    /* left.name */
    EXPR_ITEM,    /* left[right] */
    EXPR_SLICE,   /* left[args[0]:args[1]:args[2]], values NULL where absent */
    EXPR_CALL,    /* left(args) */
    EXPR_FILTER,  /* left|name(args); left NULL: of a filter block */
    EXPR_TEST,    /* left is name(args) */
    EXPR_UNARY,   /* op left */
    EXPR_BINARY,  /* left op right */
    EXPR_COMPARE, /* left, then args with an op before each */
    EXPR_CONCAT,  /* args */
    EXPR_IF,      /* left if right else third; third NULL: undefined */
};

struct expr {
    enum expr_kind kind;
    int line;
    int depth; /* of this subtree, itself included: at most MAX_TREE_DEPTH */
    enum token_kind op;
    const char *name;
    struct value value;
    struct expr *left, *right, *third;
    struct arg *args;
    size_t n_args;
};

enum stmt_kind {
    STMT_TEXT,
    STMT_PRINT,
    STMT_IF,
    STMT_FOR,
    STMT_SET,       /* target = value */
    STMT_SET_BLOCK, /* target = the body's text, through the filters of value */
    STMT_MACRO,
    STMT_CALL,   /* value is a call, the body its caller() */
    STMT_FILTER, /* the body's text through the filters of value */
    STMT_WITH,
    STMT_GENERATION,
    STMT_BREAK,
    STMT_CONTINUE,
};

struct block {
    struct stmt **stmts;
    size_t n, capacity;
};

struct macro_def {
    const char *name;
    struct param {
        const char *name;
        struct expr *value; /* NULL: none */
    } * params;
    size_t n_params;
    bool takes_varargs, takes_kwargs; /* its body uses varargs, kwargs */
    struct block body;
};

struct stmt {
    enum stmt_kind kind;
    int line;
    struct token text;
    struct expr *target; /* name, tuple, or attribute of a namespace */
    struct expr *value, *test;
    bool is_recursive;
    struct block body, otherwise;
    struct macro_def *macro;
    struct stmt *elif; /* of STMT_IF: the next branch, instead of otherwise */
    struct arg *sets;  /* of STMT_WITH */
    size_t n_sets;
};

struct template
{
    struct arena arena;
    char *name;
    struct block body;
    struct token_list tokens;
};

/* Compilation: lex() fills tpl->tokens, parse() builds tpl->body from them. */
MUST_CHECK enum tutti_status lex(struct template *tpl, const char *text, size_t n_bytes,
                                 struct tutti_error *err);
MUST_CHECK enum tutti_status parse(struct template *tpl, struct tutti_error *err);

/* ---- between the parser's files ---- */

struct parser {
    struct template *tpl;
    size_t at; /* index of the current token */
    int depth;
    struct macro_def *macro; /* being parsed; NULL: none */
    enum tutti_status status;
    struct tutti_error *err;
};

const struct token *parser_token(const struct parser *p);
const struct token *parser_peek(const struct parser *p); /* the token after the current one */
const struct token *parser_next(struct parser *p);       /* advances; returns the token before */
bool parser_is_name(const struct parser *p, const char *name);
bool parser_skip(struct parser *p, enum token_kind kind);
bool parser_skip_name(struct parser *p, const char *name);
bool parser_expect(struct parser *p, enum token_kind kind); /* false: failed */
void *parser_take(struct parser *p, size_t n_items, size_t item_bytes);
/* arena_grow(); false: failed. */
bool parser_take_room(struct parser *p, void *array, size_t n, size_t *capacity, size_t item_bytes);
void parser_fail(struct parser *p, enum tutti_status status, const char *format, ...) PRINTF_LIKE(3, 4);
const char *token_name(enum token_kind kind);
/* Appends an item to a list of arguments; NULL: failed. */
struct arg *parser_add_arg(struct parser *p, struct arg **args, size_t *n);

struct expr *parse_expression(struct parser *p, bool with_if); /* never NULL unless failed */
/* Several expressions separated by commas are a tuple. */
struct expr *parse_tuple(struct parser *p, bool with_if);
struct expr *parse_filters(struct parser *p, struct expr *left, bool starts_inside);
struct expr *parse_target(struct parser *p, bool with_attribute);
struct expr *parse_call_target(struct parser *p);

#endif
