/* Splits a template into tokens, with Jinja's rules for white space around tags: a newline after
 * a block is dropped (trim_blocks), and so are blanks before a block at the start of a line
 * (lstrip_blocks); `-` strips all, `+` keeps all. */
#include "template/syntax/syntax.h"

#include "base/text.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPEN = 200 }; /* brackets inside one tag */

struct lexer {
    struct template *tpl;
    char *text; /* newlines are '\n'; the last one is removed */
    size_t n, at;
    int line;
    bool at_line_start; /* the last tag included the line break */
    enum tutti_status status;
    struct tutti_error *err;
};

static void lex_fail(struct lexer *l, enum tutti_status status, const char *what)
{
    if (l->status == TUTTI_OK)
        l->status = error_set(l->err, status, "%s: line %d: %s", l->tpl->name, l->line, what);
}

/* An allocation from the arena failed. */
static void lex_no_room(struct lexer *l)
{
    bool is_too_large = l->tpl->arena.is_over_limit;
    lex_fail(l, is_too_large ? TUTTI_E_LIMIT : TUTTI_E_MEMORY,
             is_too_large ? "the template is too large" : "out of memory");
}

static void lexer_add_token(struct lexer *l, struct token token)
{
    struct token_list *list = &l->tpl->tokens;
    if (!arena_grow(&l->tpl->arena, &list->tokens, list->n, &list->capacity, sizeof *list->tokens)) {
        lex_no_room(l);
        return;
    }
    token.line = token.line ? token.line : l->line;
    list->tokens[list->n++] = token;
}

static char *copy(struct lexer *l, const char *bytes, size_t n)
{
    char *out = arena_take_raw(&l->tpl->arena, n + 1);
    if (!out) {
        lex_no_room(l);
        return NULL;
    }
    memcpy(out, bytes, n);
    out[n] = '\0';
    return out;
}

static bool starts(const struct lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= l->n && n <= l->n - at && memcmp(l->text + at, what, n) == 0;
}

/* Advances to `to`, counting lines. */
static void go(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->text[l->at] == '\n';
}

static size_t lexer_skip_blanks(const struct lexer *l, size_t at)
{
    uint32_t c;
    while (at < l->n) {
        size_t n = (size_t)text_char(l->text + at, l->n - at, &c);
        if (!text_is_blank(c))
            break;
        at += n;
    }
    return at;
}

/* The beginning of the blanks that text[begin..end) ends with. */
static size_t trim_end(const struct lexer *l, size_t begin, size_t end)
{
    size_t kept = begin;
    for (size_t at = begin; at < end;) {
        uint32_t c;
        at += (size_t)text_char(l->text + at, end - at, &c);
        if (!text_is_blank(c))
            kept = at;
    }
    return kept;
}

/* ---- inside a tag ---- */

/* Resolves one escape after the backslash; returns the bytes consumed. */
static size_t unescape(struct lexer *l, const char *text, size_t n, char *out, size_t *n_out)
{
    static const char FROM[] = "ntrabfv\\'\"", TO[] = "\n\t\r\a\b\f\v\\'\"";
    const char *at = n > 0 && text[0] ? strchr(FROM, text[0]) : NULL;
    if (at) {
        out[(*n_out)++] = TO[at - FROM];
        return 1;
    }
    if (n > 0 && text[0] == '\n')
        return 1;
    uint32_t code = 0;
    size_t used = 0;
    if (n > 0 && text[0] >= '0' && text[0] <= '7') {
        for (; used < 3 && used < n && text[used] >= '0' && text[used] <= '7'; used++)
            code = code * 8 + (uint32_t)(text[used] - '0');
    } else if (n > 0 && (text[0] == 'x' || text[0] == 'u' || text[0] == 'U')) {
        int n_digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : 8;
        bool ok = hex_read(text + 1, n - 1, n_digits, &code);
        if (!ok || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            lex_fail(l, TUTTI_E_FORMAT, "an escape of a string has no such character");
        used = (size_t)n_digits + 1;
    } else if (n > 0 && text[0] == 'N') {
        lex_fail(l, TUTTI_E_UNSUPPORTED, "escapes by a character's name (\\N) are not supported");
        return 1;
    } else {
        out[(*n_out)++] = '\\'; /* as in Python, an unknown escape is literal */
        return 0;
    }
    if (l->status == TUTTI_OK) /* four bytes at most, and as many were read: "\\0" is two */
        *n_out += (size_t)utf8_encode(code, out + *n_out);
    return used < n ? used : n;
}

static void lex_string(struct lexer *l)
{
    char quote = l->text[l->at];
    size_t begin = l->at + 1, end = begin, n = 0;
    while (end < l->n && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->n) {
        lex_fail(l, TUTTI_E_FORMAT, "a string without an end");
        return;
    }
    char *out = copy(l, l->text + begin, end - begin);
    for (size_t i = begin; out && i < end && l->status == TUTTI_OK;) {
        if (l->text[i] == '\\')
            i += 1 + unescape(l, l->text + i + 1, end - i - 1, out, &n);
        else
            out[n++] = l->text[i++];
    }
    if (!out || l->status != TUTTI_OK)
        return;
    out[n] = '\0';
    lexer_add_token(l, (struct token){ .kind = TOKEN_STRING, .text = out, .n_bytes = n });
    go(l, end + 1);
}

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->n && l->text[at] >= '0' && l->text[at] <= '9';
}

/* Copies digits, without underscores. */
static size_t take_digits(const struct lexer *l, size_t at, char *out, size_t *n, size_t size)
{
    while (is_digit(l, at) || (at < l->n && l->text[at] == '_' && is_digit(l, at + 1))) {
        if (l->text[at] != '_' && *n + 1 < size)
            out[(*n)++] = l->text[at];
        at++;
    }
    return at;
}

static void lex_number(struct lexer *l)
{
    char digits[400];
    size_t n = 0, at = take_digits(l, l->at, digits, &n, sizeof digits);
    bool is_float = false;
    if (at < l->n && l->text[at] == '.' && is_digit(l, at + 1)) {
        is_float = true;
        if (n + 1 < sizeof digits)
            digits[n++] = '.';
        at = take_digits(l, at + 1, digits, &n, sizeof digits);
    }
    if (at < l->n && (l->text[at] | 32) == 'e') {
        size_t sign = at + 1 < l->n && (l->text[at + 1] == '+' || l->text[at + 1] == '-');
        if (is_digit(l, at + 1 + sign)) {
            is_float = true;
            if (n + 2 < sizeof digits) {
                digits[n++] = 'e';
                if (sign)
                    digits[n++] = l->text[at + 1];
            }
            at = take_digits(l, at + 1 + sign, digits, &n, sizeof digits);
        }
    }
    digits[n] = '\0';
    errno = 0;
    if (n + 2 >= sizeof digits)
        lex_fail(l, TUTTI_E_LIMIT, "a number of too many digits");
    else if (is_float)
        lexer_add_token(l, (struct token){ .kind = TOKEN_FLOAT, .f = strtod(digits, NULL) });
    else
        lexer_add_token(l, (struct token){ .kind = TOKEN_INT, .i = strtoll(digits, NULL, 10) });
    if (errno == ERANGE && !is_float)
        lex_fail(l, TUTTI_E_LIMIT, "a number beyond 64 bits");
    go(l, at);
}

static bool is_name_char(char c, bool is_first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) ||
           (!is_first && c >= '0' && c <= '9');
}

static const struct {
    const char *text;
    enum token_kind kind;
} OPERATORS[] = {
    /* longer ones first */
    { "//", TOKEN_FLOORDIV }, { "**", TOKEN_POW },   { "==", TOKEN_EQ },      { "!=", TOKEN_NE },
    { "<=", TOKEN_LE },       { ">=", TOKEN_GE },    { "+", TOKEN_ADD },      { "-", TOKEN_SUB },
    { "*", TOKEN_MUL },       { "/", TOKEN_DIV },    { "%", TOKEN_MOD },      { "~", TOKEN_TILDE },
    { "|", TOKEN_PIPE },      { ".", TOKEN_DOT },    { ",", TOKEN_COMMA },    { ":", TOKEN_COLON },
    { ";", TOKEN_SEMICOLON }, { "=", TOKEN_ASSIGN }, { "<", TOKEN_LT },       { ">", TOKEN_GT },
    { "(", TOKEN_LPAREN },    { ")", TOKEN_RPAREN }, { "[", TOKEN_LBRACKET }, { "]", TOKEN_RBRACKET },
    { "{", TOKEN_LBRACE },    { "}", TOKEN_RBRACE },
};

const char *token_name(enum token_kind kind)
{
    static const char *const WORDS[] = {
        [TOKEN_END] = "the template's end",
        [TOKEN_TEXT] = "text",
        [TOKEN_PRINT_BEGIN] = "'{{'",
        [TOKEN_PRINT_END] = "'}}'",
        [TOKEN_BLOCK_BEGIN] = "'{%'",
        [TOKEN_BLOCK_END] = "'%}'",
        [TOKEN_NAME] = "a name",
        [TOKEN_STRING] = "a string",
        [TOKEN_INT] = "a number",
        [TOKEN_FLOAT] = "a number",
    };
    if (kind <= TOKEN_FLOAT)
        return WORDS[kind];
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        if (OPERATORS[i].kind == kind)
            return OPERATORS[i].text;
    }
    return "an operator";
}

static void lex_operator(struct lexer *l, int *n_open)
{
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        if (!starts(l, l->at, OPERATORS[i].text))
            continue;
        enum token_kind kind = OPERATORS[i].kind;
        if (kind == TOKEN_LPAREN || kind == TOKEN_LBRACKET || kind == TOKEN_LBRACE)
            ++*n_open;
        if (kind == TOKEN_RPAREN || kind == TOKEN_RBRACKET || kind == TOKEN_RBRACE)
            --*n_open;
        if (*n_open < 0)
            lex_fail(l, TUTTI_E_FORMAT, "a bracket that was not opened");
        if (*n_open > MAX_OPEN)
            lex_fail(l, TUTTI_E_LIMIT, "too many brackets inside one another");
        lexer_add_token(l, (struct token){ .kind = kind });
        go(l, l->at + strlen(OPERATORS[i].text));
        return;
    }
    lex_fail(l, TUTTI_E_FORMAT, "a character that has no meaning here");
}

/* The end of a tag at `at`, such as "-%}", including the white space that it strips; 0: none. */
static size_t tag_end(const struct lexer *l, size_t at, const char *end, bool is_block)
{
    if (at < l->n && l->text[at] == '-' && starts(l, at + 1, end))
        return lexer_skip_blanks(l, at + 3);
    if (is_block && at < l->n && l->text[at] == '+' && starts(l, at + 1, end))
        return at + 3;
    if (!starts(l, at, end))
        return 0;
    return at + 2 + (is_block && at + 2 < l->n && l->text[at + 2] == '\n');
}

static void lex_tag(struct lexer *l, bool is_block)
{
    int n_open = 0, first_line = l->line;
    while (l->status == TUTTI_OK) {
        go(l, lexer_skip_blanks(l, l->at));
        size_t end = n_open == 0 ? tag_end(l, l->at, is_block ? "%}" : "}}", is_block) : 0;
        if (end) {
            lexer_add_token(l, (struct token){ .kind = is_block ? TOKEN_BLOCK_END : TOKEN_PRINT_END });
            go(l, end);
            l->at_line_start = l->text[end - 1] == '\n';
            return;
        }
        if (l->at >= l->n) {
            l->line = first_line;
            lex_fail(l, TUTTI_E_FORMAT, is_block ? "'{%' without '%}'" : "'{{' without '}}'");
        } else if (is_digit(l, l->at)) {
            lex_number(l);
        } else if (is_name_char(l->text[l->at], true)) {
            size_t to = l->at;
            while (to < l->n && is_name_char(l->text[to], false))
                to++;
            lexer_add_token(l, (struct token){ .kind = TOKEN_NAME,
                                               .text = copy(l, l->text + l->at, to - l->at),
                                               .n_bytes = to - l->at });
            go(l, to);
        } else if (l->text[l->at] == '"' || l->text[l->at] == '\'') {
            lex_string(l);
        } else {
            lex_operator(l, &n_open);
        }
    }
}

/* ---- between tags ---- */

static void lexer_add_text(struct lexer *l, size_t begin, size_t end)
{
    if (end > begin)
        lexer_add_token(l, (struct token){ .kind = TOKEN_TEXT,
                                           .text = copy(l, l->text + begin, end - begin),
                                           .n_bytes = end - begin });
}

/* The end of the text before a tag, which may strip blanks. */
static size_t text_end(const struct lexer *l, size_t begin, size_t tag, bool is_print)
{
    char sign = tag + 2 < l->n ? l->text[tag + 2] : '\0';
    if (sign == '-')
        return trim_end(l, begin, tag);
    if (sign == '+' || is_print)
        return tag;
    size_t line = tag;
    while (line > begin && l->text[line - 1] != '\n')
        line--;
    bool starts_line = line > begin || l->at_line_start;
    return starts_line && trim_end(l, line, tag) == line ? line : tag;
}

static bool find_tag(const struct lexer *l, size_t from, size_t *tag)
{
    for (size_t at = from; at + 1 < l->n; at++) {
        if (l->text[at] == '{' && strchr("{%#", l->text[at + 1]) && l->text[at + 1]) {
            *tag = at;
            return true;
        }
    }
    return false;
}

static void lex_comment(struct lexer *l)
{
    for (size_t at = l->at + 2; at < l->n; at++) {
        size_t end = tag_end(l, at, "#}", true);
        if (end) {
            go(l, end);
            l->at_line_start = l->text[end - 1] == '\n';
            return;
        }
    }
    lex_fail(l, TUTTI_E_FORMAT, "'{#' without '#}'");
}

/* At "{%": the position after "raw %}", or 0 if this is not a raw block. */
static size_t raw_begin(const struct lexer *l, size_t at, const char *word)
{
    at += 2;
    at += at < l->n && (l->text[at] == '-' || l->text[at] == '+');
    at = lexer_skip_blanks(l, at);
    if (!starts(l, at, word))
        return 0;
    return lexer_skip_blanks(l, at + strlen(word));
}

static void lex_raw(struct lexer *l, size_t inside)
{
    go(l, starts(l, inside, "-%}") ? lexer_skip_blanks(l, inside + 3) : inside + 2);
    for (size_t at = l->at; at < l->n; at++) {
        size_t end = starts(l, at, "{%") ? raw_begin(l, at, "endraw") : 0;
        size_t after = end ? tag_end(l, end, "%}", true) : 0;
        if (!after)
            continue;
        l->at_line_start = false;
        lexer_add_text(l, l->at, text_end(l, l->at, at, false));
        go(l, after);
        l->at_line_start = l->text[after - 1] == '\n';
        return;
    }
    lex_fail(l, TUTTI_E_FORMAT, "'{% raw %}' without '{% endraw %}'");
}

static void lex_all(struct lexer *l)
{
    while (l->at < l->n && l->status == TUTTI_OK) {
        size_t tag;
        if (!find_tag(l, l->at, &tag)) {
            lexer_add_text(l, l->at, l->n);
            go(l, l->n);
            break;
        }
        char kind = l->text[tag + 1];
        lexer_add_text(l, l->at, text_end(l, l->at, tag, kind == '{'));
        go(l, tag);
        l->at_line_start = false;
        size_t inside = kind == '%' ? raw_begin(l, tag, "raw") : 0;
        if (inside && (starts(l, inside, "%}") || starts(l, inside, "-%}"))) {
            lex_raw(l, inside);
        } else if (kind == '#') {
            lex_comment(l);
        } else {
            size_t begin = tag + 2;
            begin += begin < l->n && (l->text[begin] == '-' || l->text[begin] == '+');
            lexer_add_token(l, (struct token){ .kind = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN });
            go(l, begin);
            lex_tag(l, kind == '%');
        }
    }
    lexer_add_token(l, (struct token){ .kind = TOKEN_END });
}

enum tutti_status lex(struct template *tpl, const char *text, size_t n_bytes, struct tutti_error *err)
{
    struct lexer l = { .tpl = tpl, .line = 1, .at_line_start = true, .err = err };
    l.text = arena_take_raw(&tpl->arena, n_bytes + 1);
    if (!l.text) {
        lex_no_room(&l);
        return l.status;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        bool is_cr = text[i] == '\r';
        l.text[l.n++] = is_cr ? '\n' : text[i];
        if (is_cr && i + 1 < n_bytes && text[i + 1] == '\n')
            i++;
    }
    if (l.n > 0 && l.text[l.n - 1] == '\n')
        l.n--;
    l.text[l.n] = '\0';
    lex_all(&l);
    return l.status;
}
