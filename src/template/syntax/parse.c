/* Parses statements, with helpers to walk over the tokens. */
#include "template/syntax/syntax.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NESTED_BLOCKS = 100 };

/* ---- tokens ---- */

const struct token *parser_token(const struct parser *p)
{
    return &p->tpl->tokens.tokens[p->at];
}

const struct token *parser_peek(const struct parser *p)
{
    const struct token_list *list = &p->tpl->tokens;
    return &list->tokens[p->at + 1 < list->n ? p->at + 1 : p->at];
}

const struct token *parser_next(struct parser *p)
{
    const struct token *token = parser_token(p);
    if (token->kind != TOKEN_END)
        p->at++;
    return token;
}

bool parser_is_name(const struct parser *p, const char *name)
{
    return parser_token(p)->kind == TOKEN_NAME && strcmp(parser_token(p)->text, name) == 0;
}

bool parser_skip(struct parser *p, enum token_kind kind)
{
    if (p->status != TUTTI_OK || parser_token(p)->kind != kind)
        return false;
    parser_next(p);
    return true;
}

bool parser_skip_name(struct parser *p, const char *name)
{
    if (p->status != TUTTI_OK || !parser_is_name(p, name))
        return false;
    parser_next(p);
    return true;
}

bool parser_expect(struct parser *p, enum token_kind kind)
{
    const struct token *token = parser_token(p);
    if (parser_skip(p, kind))
        return true;
    if (token->kind == TOKEN_NAME)
        parser_fail(p, TUTTI_E_FORMAT, "found '%.40s', expected %s", token->text, token_name(kind));
    else
        parser_fail(p, TUTTI_E_FORMAT, "found %s, expected %s", token_name(token->kind), token_name(kind));
    return false;
}

void parser_fail(struct parser *p, enum tutti_status status, const char *format, ...)
{
    if (p->status != TUTTI_OK)
        return;
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->status = error_set(p->err, status, "%s: line %d: %s", p->tpl->name, parser_token(p)->line, text);
}

static void arena_refusal(struct parser *p)
{
    if (p->tpl->arena.is_over_limit)
        parser_fail(p, TUTTI_E_LIMIT, "the template is too large");
    else
        parser_fail(p, TUTTI_E_MEMORY, "out of memory");
}

void *parser_take(struct parser *p, size_t n_items, size_t item_bytes)
{
    if (p->status != TUTTI_OK)
        return NULL;
    void *at = arena_take(&p->tpl->arena, n_items * item_bytes); /* bounded by the text's length */
    if (!at)
        arena_refusal(p);
    return at;
}

bool parser_take_room(struct parser *p, void *array, size_t n, size_t *capacity, size_t item_bytes)
{
    if (p->status == TUTTI_OK && !arena_grow(&p->tpl->arena, array, n, capacity, item_bytes))
        arena_refusal(p);
    return p->status == TUTTI_OK;
}

/* ---- statements ---- */

static struct stmt *new_stmt(struct parser *p, enum stmt_kind kind)
{
    struct stmt *s = parser_take(p, 1, sizeof *s);
    if (!s)
        return NULL;
    s->kind = kind;
    s->line = parser_token(p)->line;
    return s;
}

static bool parse_block(struct parser *p, struct block *block, const char *const *ends);

/* Parses the body up to and including `{% end %}`. */
static bool parse_body(struct parser *p, struct block *block, const char *end)
{
    const char *const ends[] = { end, NULL };
    return parse_block(p, block, ends) && parser_skip_name(p, end) && parser_expect(p, TOKEN_BLOCK_END);
}

/* The same for a statement whose tag ends here. */
static struct stmt *with_body(struct parser *p, struct stmt *s, const char *end)
{
    return s && parser_expect(p, TOKEN_BLOCK_END) && parse_body(p, &s->body, end) ? s : NULL;
}

static struct stmt *parse_if(struct parser *p)
{
    static const char *const ENDS[] = { "elif", "else", "endif", NULL };
    struct stmt *first = new_stmt(p, STMT_IF), *s = first;
    while (s) {
        s->test = parse_tuple(p, false);
        if (!s->test || !parser_expect(p, TOKEN_BLOCK_END) || !parse_block(p, &s->body, ENDS))
            return NULL;
        if (parser_skip_name(p, "elif")) {
            s->elif = new_stmt(p, STMT_IF);
            s = s->elif;
            continue;
        }
        if (parser_skip_name(p, "endif"))
            return parser_expect(p, TOKEN_BLOCK_END) ? first : NULL;
        parser_next(p); /* else */
        return parser_expect(p, TOKEN_BLOCK_END) && parse_body(p, &s->otherwise, "endif") ? first : NULL;
    }
    return NULL;
}

static struct stmt *parse_for(struct parser *p)
{
    static const char *const ENDS[] = { "else", "endfor", NULL };
    struct stmt *s = new_stmt(p, STMT_FOR);
    if (!s || !(s->target = parse_target(p, false)))
        return NULL;
    if (!parser_skip_name(p, "in")) {
        parser_fail(p, TUTTI_E_FORMAT, "'for' without 'in'");
        return NULL;
    }
    if (!(s->value = parse_tuple(p, false)))
        return NULL;
    if (parser_skip_name(p, "if") && !(s->test = parse_expression(p, true)))
        return NULL;
    s->is_recursive = parser_skip_name(p, "recursive");
    if (!parser_expect(p, TOKEN_BLOCK_END) || !parse_block(p, &s->body, ENDS))
        return NULL;
    if (parser_skip_name(p, "endfor"))
        return parser_expect(p, TOKEN_BLOCK_END) ? s : NULL;
    parser_next(p); /* else */
    return parser_expect(p, TOKEN_BLOCK_END) && parse_body(p, &s->otherwise, "endfor") ? s : NULL;
}

static struct stmt *parse_set(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_SET);
    if (!s || !(s->target = parse_target(p, true)))
        return NULL;
    if (parser_skip(p, TOKEN_ASSIGN)) {
        s->value = parse_tuple(p, true);
        return s->value && parser_expect(p, TOKEN_BLOCK_END) ? s : NULL;
    }
    s->kind = STMT_SET_BLOCK;
    s->value = parse_filters(p, NULL, false);
    if (parser_skip(p, TOKEN_PIPE))
        s->value = parse_filters(p, NULL, true);
    return with_body(p, s, "endset");
}

static bool parse_params(struct parser *p, struct macro_def *macro)
{
    size_t capacity = 0;
    while (p->status == TUTTI_OK && parser_token(p)->kind != TOKEN_RPAREN) {
        if (macro->n_params > 0 && !parser_expect(p, TOKEN_COMMA))
            return false;
        if (!parser_take_room(p, &macro->params, macro->n_params, &capacity, sizeof *macro->params))
            return false;
        struct param *param = &macro->params[macro->n_params];
        const struct token *name = parser_token(p);
        if (!parser_expect(p, TOKEN_NAME))
            return false;
        param->name = name->text;
        bool had_default = macro->n_params > 0 && param[-1].value;
        macro->n_params++;
        if (parser_skip(p, TOKEN_ASSIGN)) {
            if (!(param->value = parse_expression(p, true)))
                return false;
        } else if (had_default) {
            parser_fail(p, TUTTI_E_FORMAT, "a parameter without a default after one with a default");
            return false;
        }
    }
    return parser_expect(p, TOKEN_RPAREN);
}

static bool parse_macro_body(struct parser *p, struct macro_def *macro, const char *end)
{
    struct macro_def *outer = p->macro;
    p->macro = macro;
    bool ok = parse_body(p, &macro->body, end);
    p->macro = outer;
    return ok;
}

static struct stmt *parse_macro(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_MACRO);
    struct macro_def *macro = parser_take(p, 1, sizeof *macro);
    const struct token *name = parser_token(p);
    if (!s || !macro || !parser_expect(p, TOKEN_NAME) || !parser_expect(p, TOKEN_LPAREN))
        return NULL;
    macro->name = name->text;
    s->macro = macro;
    return parse_params(p, macro) && parser_expect(p, TOKEN_BLOCK_END) &&
                   parse_macro_body(p, macro, "endmacro")
               ? s
               : NULL;
}

static struct stmt *parse_call_block(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_CALL);
    struct macro_def *macro = parser_take(p, 1, sizeof *macro);
    if (!s || !macro)
        return NULL;
    macro->name = "caller";
    s->macro = macro;
    if (parser_skip(p, TOKEN_LPAREN) && !parse_params(p, macro))
        return NULL;
    s->value = parse_call_target(p);
    return s->value && parser_expect(p, TOKEN_BLOCK_END) && parse_macro_body(p, macro, "endcall") ? s : NULL;
}

static struct stmt *parse_filter_block(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_FILTER);
    if (!s || !(s->value = parse_filters(p, NULL, true)))
        return NULL;
    return with_body(p, s, "endfilter");
}

static struct stmt *parse_with(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_WITH);
    while (s && p->status == TUTTI_OK && parser_token(p)->kind != TOKEN_BLOCK_END) {
        if (s->n_sets > 0 && !parser_expect(p, TOKEN_COMMA))
            return NULL;
        const struct token *name = parser_token(p);
        struct arg *set = parser_add_arg(p, &s->sets, &s->n_sets);
        if (!set || !parser_expect(p, TOKEN_NAME) || !parser_expect(p, TOKEN_ASSIGN))
            return NULL;
        set->name = name->text;
        if (!(set->value = parse_expression(p, true)))
            return NULL;
    }
    return with_body(p, s, "endwith");
}

static struct stmt *parse_generation(struct parser *p)
{
    return with_body(p, new_stmt(p, STMT_GENERATION), "endgeneration");
}

static struct stmt *parse_break(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_BREAK);
    return s && parser_expect(p, TOKEN_BLOCK_END) ? s : NULL;
}

static struct stmt *parse_continue(struct parser *p)
{
    struct stmt *s = new_stmt(p, STMT_CONTINUE);
    return s && parser_expect(p, TOKEN_BLOCK_END) ? s : NULL;
}

static struct stmt *parse_statement(struct parser *p)
{
    static const struct {
        const char *word;
        struct stmt *(*parse)(struct parser *p);
    } STATEMENTS[] = {
        { "if", parse_if },           { "for", parse_for },
        { "set", parse_set },         { "macro", parse_macro },
        { "call", parse_call_block }, { "filter", parse_filter_block },
        { "with", parse_with },       { "generation", parse_generation },
        { "break", parse_break },     { "continue", parse_continue },
    };
    static const char *const UNSUPPORTED[] = { "block",      "extends", "include", "import", "from",
                                               "autoescape", "print",   "do",      "debug",  "trans" };
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof *STATEMENTS; i++) {
        if (parser_skip_name(p, STATEMENTS[i].word))
            return STATEMENTS[i].parse(p);
    }
    for (size_t i = 0; i < sizeof UNSUPPORTED / sizeof *UNSUPPORTED; i++) {
        if (parser_is_name(p, UNSUPPORTED[i]))
            parser_fail(p, TUTTI_E_UNSUPPORTED, "'%s' is not supported in chat templates", UNSUPPORTED[i]);
    }
    if (parser_token(p)->kind == TOKEN_NAME)
        parser_fail(p, TUTTI_E_FORMAT, "unexpected '%.40s'", parser_token(p)->text);
    parser_expect(p, TOKEN_NAME);
    return NULL;
}

static bool is_end(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++) {
        if (parser_is_name(p, *ends))
            return true;
    }
    return false;
}

static bool add_stmt(struct parser *p, struct block *block, struct stmt *s)
{
    if (!s || !parser_take_room(p, &block->stmts, block->n, &block->capacity, sizeof(struct stmt *)))
        return false;
    block->stmts[block->n++] = s;
    return true;
}

static bool parse_piece(struct parser *p, struct block *block)
{
    struct stmt *s;
    const struct token *token = parser_token(p);
    switch (token->kind) {
    case TOKEN_TEXT:
        s = new_stmt(p, STMT_TEXT);
        if (s)
            s->text = *parser_next(p);
        return add_stmt(p, block, s);
    case TOKEN_PRINT_BEGIN:
        s = new_stmt(p, STMT_PRINT);
        parser_next(p);
        return s && (s->value = parse_tuple(p, true)) && parser_expect(p, TOKEN_PRINT_END) &&
               add_stmt(p, block, s);
    default:
        parser_next(p); /* {% */
        return add_stmt(p, block, parse_statement(p));
    }
}

/* Statements up to one of the words in ends, which is then the token looked at; ends NULL: up to
 * the template's end. */
static bool parse_block(struct parser *p, struct block *block, const char *const *ends)
{
    bool ok = true;
    if (++p->depth > MAX_NESTED_BLOCKS)
        parser_fail(p, TUTTI_E_LIMIT, "blocks nested deeper than %d", MAX_NESTED_BLOCKS);
    while (ok && p->status == TUTTI_OK) {
        if (parser_token(p)->kind == TOKEN_END) {
            if (ends)
                parser_fail(p, TUTTI_E_FORMAT, "found the template's end, expected '%s'",
                            ends[1] ? ends[ends[2] ? 2 : 1] : ends[0]);
            break;
        }
        if (parser_token(p)->kind == TOKEN_BLOCK_BEGIN) {
            p->at++;
            if (is_end(p, ends))
                break;
            p->at--;
        }
        ok = parse_piece(p, block);
    }
    p->depth--;
    return ok && p->status == TUTTI_OK;
}

enum tutti_status parse(struct template *tpl, struct tutti_error *err)
{
    struct parser p = { .tpl = tpl, .err = err };
    if (!parse_block(&p, &tpl->body, NULL) && p.status == TUTTI_OK)
        parser_fail(&p, TUTTI_E_INTERNAL, "the parser stopped");
    return p.status;
}
