/* Parses expressions, from lowest to highest precedence: if-else, or, and, not, comparisons, + -,
 * ~, * / // %, **, unary, then attributes, items, calls, filters and tests. As in Jinja, ~ has
 * higher precedence than +, and unary minus lower than a filter. */
#include "template/syntax/syntax.h"

#include <string.h>

enum { MAX_DEPTH = 120 }; /* of the parser's own recursion */

/* Counts the levels below e. A chain such as a|b|c or a.b.c is parsed in a loop, but makes a tree
 * as deep as it is long. */
static bool add_child(struct parser *p, struct expr *e, const struct expr *child)
{
    if (child && e->depth <= child->depth)
        e->depth = child->depth + 1;
    if (e->depth > MAX_TREE_DEPTH)
        parser_fail(p, TUTTI_E_LIMIT, "an expression nested deeper than %d", MAX_TREE_DEPTH);
    return p->status == TUTTI_OK;
}

static struct expr *new_expr(struct parser *p, enum expr_kind kind, struct expr *left)
{
    struct expr *e = parser_take(p, 1, sizeof *e);
    if (!e)
        return NULL;
    e->kind = kind;
    e->line = parser_token(p)->line;
    e->left = left;
    e->depth = 1;
    return add_child(p, e, left) ? e : NULL;
}

static struct expr *binary(struct parser *p, enum token_kind op, struct expr *left, struct expr *right)
{
    struct expr *e = new_expr(p, EXPR_BINARY, left);
    if (!e)
        return NULL;
    e->line = left ? left->line : e->line;
    e->op = op;
    e->right = right;
    return add_child(p, e, right) ? e : NULL;
}

struct arg *parser_add_arg(struct parser *p, struct arg **args, size_t *n)
{
    if ((*n & (*n - 1)) == 0) { /* full at every power of two */
        struct arg *more = parser_take(p, *n ? *n * 2 : 1, sizeof *more);
        if (!more)
            return NULL;
        if (*n > 0)
            memcpy(more, *args, *n * sizeof *more);
        *args = more;
    }
    (*args)[*n] = (struct arg){ 0 };
    return &(*args)[(*n)++];
}

static bool list_add_item(struct parser *p, struct expr *list, struct expr *item)
{
    struct arg *arg = parser_add_arg(p, &list->args, &list->n_args);
    if (arg)
        arg->value = item;
    return arg && item && add_child(p, list, item);
}

static struct expr *parse_unary(struct parser *p, bool with_filters);

/* ---- primaries ---- */

static struct expr *constant(struct parser *p, struct value value)
{
    struct expr *e = new_expr(p, EXPR_CONST, NULL);
    if (e)
        e->value = value;
    return e;
}

static struct expr *parse_name(struct parser *p)
{
    static const char *const TRUE_WORDS[] = { "true", "True" }, *const FALSE_WORDS[] = { "false", "False" };
    for (int i = 0; i < 2; i++) {
        if (parser_skip_name(p, TRUE_WORDS[i]))
            return constant(p, value_bool(true));
        if (parser_skip_name(p, FALSE_WORDS[i]))
            return constant(p, value_bool(false));
    }
    if (parser_skip_name(p, "none") || parser_skip_name(p, "None"))
        return constant(p, value_none());
    struct expr *e = new_expr(p, EXPR_NAME, NULL);
    if (!e)
        return NULL;
    e->name = parser_next(p)->text;
    if (p->macro && strcmp(e->name, "varargs") == 0)
        p->macro->takes_varargs = true;
    if (p->macro && strcmp(e->name, "kwargs") == 0)
        p->macro->takes_kwargs = true;
    return e;
}

/* Adjacent strings are concatenated. */
static struct expr *parse_string(struct parser *p)
{
    const struct token *first = parser_next(p);
    if (parser_token(p)->kind != TOKEN_STRING)
        return constant(p, value_string(first->text, first->n_bytes));
    size_t n = first->n_bytes, begin = p->at;
    for (; parser_token(p)->kind == TOKEN_STRING; parser_next(p))
        n += parser_token(p)->n_bytes;
    char *text = parser_take(p, n + 1, 1);
    if (!text)
        return NULL;
    memcpy(text, first->text, first->n_bytes);
    n = first->n_bytes;
    for (size_t at = begin; at < p->at; at++) {
        const struct token *token = &p->tpl->tokens.tokens[at];
        memcpy(text + n, token->text, token->n_bytes);
        n += token->n_bytes;
    }
    return constant(p, value_string(text, n));
}

/* [a, b] or {a: b}, from the opening bracket on. */
static struct expr *parse_display(struct parser *p, enum expr_kind kind, enum token_kind close)
{
    struct expr *display = new_expr(p, kind, NULL);
    parser_next(p);
    while (display && p->status == TUTTI_OK && parser_token(p)->kind != close) {
        if (display->n_args > 0 && !parser_expect(p, TOKEN_COMMA))
            return NULL;
        if (parser_token(p)->kind == close)
            break;
        if (!list_add_item(p, display, parse_expression(p, true)))
            return NULL;
        if (kind == EXPR_DICT &&
            !(parser_expect(p, TOKEN_COLON) && list_add_item(p, display, parse_expression(p, true))))
            return NULL;
    }
    return display && parser_expect(p, close) ? display : NULL;
}

static struct expr *parse_primary(struct parser *p)
{
    const struct token *token = parser_token(p);
    struct expr *e;
    switch (token->kind) {
    case TOKEN_NAME:
        return parse_name(p);
    case TOKEN_STRING:
        return parse_string(p);
    case TOKEN_INT:
        parser_next(p);
        return constant(p, value_int(token->i));
    case TOKEN_FLOAT:
        parser_next(p);
        return constant(p, value_float(token->f));
    case TOKEN_LPAREN:
        parser_next(p);
        if (parser_skip(p, TOKEN_RPAREN))
            return new_expr(p, EXPR_TUPLE, NULL);
        e = parse_tuple(p, true);
        return e && parser_expect(p, TOKEN_RPAREN) ? e : NULL;
    case TOKEN_LBRACKET:
        return parse_display(p, EXPR_LIST, TOKEN_RBRACKET);
    case TOKEN_LBRACE:
        return parse_display(p, EXPR_DICT, TOKEN_RBRACE);
    default:
        parser_fail(p, TUTTI_E_FORMAT, "found %s, expected a value", token_name(token->kind));
        return NULL;
    }
}

static bool ends_tuple(const struct parser *p)
{
    enum token_kind kind = parser_token(p)->kind;
    return kind == TOKEN_PRINT_END || kind == TOKEN_BLOCK_END || kind == TOKEN_RPAREN || kind == TOKEN_END ||
           parser_is_name(p, "in") || parser_is_name(p, "recursive");
}

struct expr *parse_tuple(struct parser *p, bool with_if)
{
    struct expr *first = parse_expression(p, with_if), *tuple;
    if (!first || parser_token(p)->kind != TOKEN_COMMA)
        return first;
    tuple = new_expr(p, EXPR_TUPLE, NULL);
    if (!tuple || !list_add_item(p, tuple, first))
        return NULL;
    while (parser_skip(p, TOKEN_COMMA) && !ends_tuple(p)) {
        if (!list_add_item(p, tuple, parse_expression(p, with_if)))
            return NULL;
    }
    return tuple;
}

/* ---- attributes, items, calls ---- */

static bool parse_args(struct parser *p, struct expr *call)
{
    parser_next(p); /* ( */
    for (size_t n = 0; p->status == TUTTI_OK && parser_token(p)->kind != TOKEN_RPAREN; n++) {
        if (n > 0 && !parser_expect(p, TOKEN_COMMA))
            return false;
        if (parser_token(p)->kind == TOKEN_RPAREN)
            break;
        struct arg *arg = parser_add_arg(p, &call->args, &call->n_args);
        if (!arg)
            return false;
        size_t place = call->n_args - 1;
        bool after_name = place > 0 && (call->args[place - 1].name || call->args[place - 1].n_stars == 2);
        if (parser_skip(p, TOKEN_MUL))
            arg->n_stars = 1;
        else if (parser_skip(p, TOKEN_POW))
            arg->n_stars = 2;
        else if (parser_token(p)->kind == TOKEN_NAME && parser_peek(p)->kind == TOKEN_ASSIGN) {
            arg->name = parser_next(p)->text;
            parser_next(p);
        } else if (after_name) {
            parser_fail(p, TUTTI_E_FORMAT, "an argument without a name after one with a name");
            return false;
        }
        struct expr *value = parse_expression(p, true);
        if (!value || !add_child(p, call, value))
            return false;
        arg->value = value;
    }
    return parser_expect(p, TOKEN_RPAREN);
}

static struct expr *parse_call(struct parser *p, struct expr *left)
{
    struct expr *call = new_expr(p, EXPR_CALL, left);
    return call && parse_args(p, call) ? call : NULL;
}

static struct expr *parse_subscript(struct parser *p, struct expr *left)
{
    struct expr *e = new_expr(p, EXPR_SLICE, left);
    parser_next(p); /* [ */
    for (int part = 0; e && part < 3; part++) {
        enum token_kind kind = parser_token(p)->kind;
        struct arg *arg = parser_add_arg(p, &e->args, &e->n_args);
        if (!arg)
            return NULL;
        if (kind != TOKEN_COLON && kind != TOKEN_RBRACKET) {
            struct expr *value = part == 0 ? parse_tuple(p, true) : parse_expression(p, true);
            if (!value || !add_child(p, e, value))
                return NULL;
            arg->value = value;
        }
        if (!parser_skip(p, TOKEN_COLON))
            break;
        e->op = TOKEN_COLON; /* a slice, not an item */
    }
    if (!e || !parser_expect(p, TOKEN_RBRACKET))
        return NULL;
    if (e->op == TOKEN_COLON)
        return e;
    e->kind = EXPR_ITEM;
    e->right = e->args[0].value;
    if (!e->right)
        parser_fail(p, TUTTI_E_FORMAT, "'[]' without an index");
    return e->right ? e : NULL;
}

static struct expr *parse_dot(struct parser *p, struct expr *left)
{
    struct expr *e = new_expr(p, EXPR_ATTR, left);
    parser_next(p); /* . */
    const struct token *token = parser_token(p);
    if (!e)
        return NULL;
    if (token->kind == TOKEN_NAME) {
        e->name = parser_next(p)->text;
        return e;
    }
    if (token->kind != TOKEN_INT) {
        parser_fail(p, TUTTI_E_FORMAT, "found %s, expected a name after '.'", token_name(token->kind));
        return NULL;
    }
    parser_next(p);
    e->kind = EXPR_ITEM;
    e->right = constant(p, value_int(token->i));
    return e->right ? e : NULL;
}

static struct expr *parse_postfix(struct parser *p, struct expr *e)
{
    while (e && p->status == TUTTI_OK) {
        enum token_kind kind = parser_token(p)->kind;
        if (kind == TOKEN_DOT)
            e = parse_dot(p, e);
        else if (kind == TOKEN_LBRACKET)
            e = parse_subscript(p, e);
        else if (kind == TOKEN_LPAREN)
            e = parse_call(p, e);
        else
            break;
    }
    return e;
}

/* ---- filters and tests ---- */

/* A name of several words separated by dots. */
static const char *parse_dotted_name(struct parser *p)
{
    if (parser_token(p)->kind != TOKEN_NAME) {
        parser_expect(p, TOKEN_NAME);
        return NULL;
    }
    const char *name = parser_next(p)->text;
    if (parser_token(p)->kind == TOKEN_DOT) {
        parser_fail(p, TUTTI_E_UNSUPPORTED, "a filter or test with dots in its name is not supported");
        return NULL;
    }
    return name;
}

static struct expr *parse_filter(struct parser *p, struct expr *left)
{
    struct expr *e = new_expr(p, EXPR_FILTER, left);
    if (!e || !(e->name = parse_dotted_name(p)))
        return NULL;
    if (parser_token(p)->kind == TOKEN_LPAREN && !parse_args(p, e))
        return NULL;
    return e;
}

/* Whether one argument without parentheses follows. */
static bool takes_bare_argument(const struct parser *p)
{
    switch (parser_token(p)->kind) {
    case TOKEN_NAME:
        return !parser_is_name(p, "else") && !parser_is_name(p, "or") && !parser_is_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INT:
    case TOKEN_FLOAT:
    case TOKEN_LBRACKET:
    case TOKEN_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct expr *parse_test(struct parser *p, struct expr *left)
{
    parser_next(p); /* is */
    bool negated = parser_skip_name(p, "not");
    struct expr *e = new_expr(p, EXPR_TEST, left);
    if (!e || !(e->name = parse_dotted_name(p)))
        return NULL;
    if (parser_token(p)->kind == TOKEN_LPAREN) {
        if (!parse_args(p, e))
            return NULL;
    } else if (takes_bare_argument(p)) {
        if (parser_is_name(p, "is")) {
            parser_fail(p, TUTTI_E_FORMAT, "a test of a test");
            return NULL;
        }
        struct expr *value = parse_postfix(p, parse_primary(p));
        if (!value || !list_add_item(p, e, value))
            return NULL;
    }
    if (!negated)
        return e;
    struct expr *not = new_expr(p, EXPR_UNARY, e);
    if (not )
        not ->op = TOKEN_NOT;
    return not ;
}

struct expr *parse_filters(struct parser *p, struct expr *left, bool starts_inside)
{
    struct expr *e = left;
    while (p->status == TUTTI_OK && (e || starts_inside)) {
        if (starts_inside || parser_token(p)->kind == TOKEN_PIPE) {
            if (!starts_inside)
                parser_next(p);
            starts_inside = false;
            e = parse_filter(p, e);
        } else if (left && parser_is_name(p, "is")) {
            e = parse_test(p, e);
        } else if (left && parser_token(p)->kind == TOKEN_LPAREN) {
            e = parse_call(p, e);
        } else {
            break;
        }
    }
    return e;
}

/* ---- operators ---- */

static struct expr *parse_unary(struct parser *p, bool with_filters)
{
    struct expr *e = NULL;
    enum token_kind kind = parser_token(p)->kind;
    if (++p->depth > MAX_DEPTH) {
        parser_fail(p, TUTTI_E_LIMIT, "an expression nested deeper than %d", MAX_DEPTH);
    } else if (kind == TOKEN_SUB || kind == TOKEN_ADD) {
        parser_next(p);
        struct expr *operand = parse_unary(p, false);
        e = operand ? new_expr(p, EXPR_UNARY, operand) : NULL;
        if (e)
            e->op = kind;
    } else {
        e = parse_primary(p);
    }
    e = parse_postfix(p, e);
    if (with_filters && e)
        e = parse_filters(p, e, false);
    p->depth--;
    return e;
}

/* The levels of binary operators, from lowest to highest precedence. */
enum level { LEVEL_OR, LEVEL_AND, LEVEL_SUM, LEVEL_PRODUCT, LEVEL_POW };

static struct expr *parse_not(struct parser *p);
static struct expr *parse_concat(struct parser *p);
static struct expr *parse_binary(struct parser *p, enum level level);

static struct expr *parse_operand(struct parser *p, enum level level)
{
    switch (level) {
    case LEVEL_OR:
        return parse_binary(p, LEVEL_AND);
    case LEVEL_AND:
        return parse_not(p);
    case LEVEL_SUM:
        return parse_concat(p);
    case LEVEL_PRODUCT:
        return parse_binary(p, LEVEL_POW);
    default:
        return parse_unary(p, true);
    }
}

/* The level's operator that comes next; TOKEN_END: none of them does. */
static enum token_kind binary_operator(const struct parser *p, enum level level)
{
    static const enum token_kind OPERATORS[][5] = {
        [LEVEL_OR] = { TOKEN_OR },
        [LEVEL_AND] = { TOKEN_AND },
        [LEVEL_SUM] = { TOKEN_ADD, TOKEN_SUB },
        [LEVEL_PRODUCT] = { TOKEN_MUL, TOKEN_DIV, TOKEN_FLOORDIV, TOKEN_MOD },
        [LEVEL_POW] = { TOKEN_POW },
    };
    enum token_kind kind = parser_is_name(p, "or")    ? TOKEN_OR
                           : parser_is_name(p, "and") ? TOKEN_AND
                                                      : parser_token(p)->kind;
    for (const enum token_kind *op = OPERATORS[level]; *op != TOKEN_END; op++) {
        if (*op == kind)
            return kind;
    }
    return TOKEN_END;
}

static struct expr *parse_binary(struct parser *p, enum level level)
{
    struct expr *left = parse_operand(p, level);
    enum token_kind op;
    while (left && p->status == TUTTI_OK && (op = binary_operator(p, level)) != TOKEN_END) {
        parser_next(p);
        struct expr *right = parse_operand(p, level);
        left = right ? binary(p, op, left, right) : NULL;
    }
    return left;
}

static struct expr *parse_concat(struct parser *p)
{
    struct expr *first = parse_binary(p, LEVEL_PRODUCT);
    if (!first || parser_token(p)->kind != TOKEN_TILDE)
        return first;
    struct expr *e = new_expr(p, EXPR_CONCAT, NULL);
    if (!e || !list_add_item(p, e, first))
        return NULL;
    while (parser_skip(p, TOKEN_TILDE)) {
        if (!list_add_item(p, e, parse_binary(p, LEVEL_PRODUCT)))
            return NULL;
    }
    return e;
}

static enum token_kind comparison(struct parser *p)
{
    enum token_kind kind = parser_token(p)->kind;
    if (kind >= TOKEN_EQ && kind <= TOKEN_GE)
        return parser_next(p)->kind;
    if (parser_skip_name(p, "in"))
        return TOKEN_IN;
    const struct token *next = parser_peek(p);
    if (parser_is_name(p, "not") && next->kind == TOKEN_NAME && strcmp(next->text, "in") == 0) {
        parser_next(p);
        parser_next(p);
        return TOKEN_NOT_IN;
    }
    return TOKEN_END;
}

static struct expr *parse_comparison(struct parser *p)
{
    struct expr *left = parse_binary(p, LEVEL_SUM), *e = NULL;
    while (left) {
        enum token_kind op = comparison(p);
        if (op == TOKEN_END)
            return e ? e : left;
        if (!e && !(e = new_expr(p, EXPR_COMPARE, left)))
            return NULL;
        if (!list_add_item(p, e, parse_binary(p, LEVEL_SUM)))
            return NULL;
        e->args[e->n_args - 1].op = op;
    }
    return NULL;
}

static struct expr *parse_not(struct parser *p)
{
    size_t n_nots = 0;
    while (parser_is_name(p, "not")) {
        parser_next(p);
        n_nots++;
    }
    struct expr *e = parse_comparison(p);
    if (!e || n_nots == 0)
        return e;
    /* An even number of them makes a boolean too. */
    for (size_t i = 0; i < (n_nots % 2 ? 1 : 2) && e; i++) {
        e = new_expr(p, EXPR_UNARY, e);
        if (e)
            e->op = TOKEN_NOT;
    }
    return e;
}

struct expr *parse_expression(struct parser *p, bool with_if)
{
    struct expr *e = NULL;
    if (++p->depth > MAX_DEPTH)
        parser_fail(p, TUTTI_E_LIMIT, "an expression nested deeper than %d", MAX_DEPTH);
    else
        e = parse_binary(p, LEVEL_OR);
    while (e && with_if && parser_skip_name(p, "if")) {
        struct expr *choice = new_expr(p, EXPR_IF, e);
        if (!choice || !(choice->right = parse_binary(p, LEVEL_OR)) || !add_child(p, choice, choice->right))
            e = NULL;
        else if (parser_skip_name(p, "else") &&
                 (!(choice->third = parse_expression(p, true)) || !add_child(p, choice, choice->third)))
            e = NULL;
        else
            e = choice;
    }
    p->depth--;
    return p->status == TUTTI_OK ? e : NULL;
}

/* ---- targets of assignments ---- */

static struct expr *parse_one_target(struct parser *p, bool with_attribute)
{
    if (parser_skip(p, TOKEN_LPAREN)) {
        struct expr *inner = NULL;
        if (++p->depth > MAX_DEPTH)
            parser_fail(p, TUTTI_E_LIMIT, "a target nested deeper than %d", MAX_DEPTH);
        else
            inner = parse_target(p, false);
        p->depth--;
        return inner && parser_expect(p, TOKEN_RPAREN) ? inner : NULL;
    }
    if (parser_token(p)->kind != TOKEN_NAME) {
        parser_expect(p, TOKEN_NAME);
        return NULL;
    }
    struct expr *e = parse_name(p);
    if (e && e->kind != EXPR_NAME) {
        parser_fail(p, TUTTI_E_FORMAT, "a constant cannot be assigned to");
        return NULL;
    }
    if (e && with_attribute && parser_token(p)->kind == TOKEN_DOT) {
        e = parse_dot(p, e);
        if (e && e->kind != EXPR_ATTR) {
            parser_fail(p, TUTTI_E_FORMAT, "found a number, expected an attribute's name");
            return NULL;
        }
    }
    return e;
}

struct expr *parse_target(struct parser *p, bool with_attribute)
{
    struct expr *first = parse_one_target(p, with_attribute), *tuple;
    if (!first || parser_token(p)->kind != TOKEN_COMMA)
        return first;
    tuple = new_expr(p, EXPR_TUPLE, NULL);
    if (!tuple || !list_add_item(p, tuple, first))
        return NULL;
    while (parser_skip(p, TOKEN_COMMA) && !ends_tuple(p) && parser_token(p)->kind != TOKEN_ASSIGN) {
        if (!list_add_item(p, tuple, parse_one_target(p, with_attribute)))
            return NULL;
    }
    return tuple;
}

struct expr *parse_call_target(struct parser *p)
{
    struct expr *e = parse_postfix(p, parse_primary(p));
    if (e && e->kind != EXPR_CALL) {
        parser_fail(p, TUTTI_E_FORMAT, "'call' without a call");
        return NULL;
    }
    return e;
}
