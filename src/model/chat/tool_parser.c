/* Parses tool calls in an answer, piece by piece while the model writes it, or a complete answer at
 * once. Families write calls in four ways:
 *
 *   <tool_call>{"name": ..., "arguments": {...}}</tool_call>   Qwen and others, anywhere and several
 *   {"name": ..., "parameters": {...}}                          LLaMA-3, the whole answer
 *   [{"name": ..., "arguments": {...}}, ...]                    Mistral, the whole answer
 *   NAME, a line's end, JSON or ```python tool_call(a=1)```     GLM-4, ChatGLM3, the whole answer
 *
 * JSON arguments that follow the name are passed on as the model writes them, and Python arguments
 * are converted to JSON one by one. A call written otherwise (arguments before the name, as a
 * string, or none) is passed on when its object is complete.
 *
 * Linear time: each byte of an answer is parsed a bounded number of times. A beginning that is
 * matched again with more text is at most 4 KB long; an object and a Python argument are parsed once,
 * when they are complete. Nothing here recurses. jansson parses JSON (up to 2048 levels);
 * src/template parses Python, and template.h lists what recurses there. */
#include "base/buf.h"
#include "base/error.h"
#include "base/json/json_print.h"
#include "template/template.h"

#include <stdlib.h>
#include <string.h>

static const char OPEN[] = "<tool_call>", CLOSE[] = "</tool_call>", PYTHON[] = "tool_call(";

enum { MAX_LINE = 4096 }; /* bytes of an answer that may still be the beginning of a call */

struct tutti_tool_parser {
    enum {
        CALL_AWAITED, /* the next call has not certainly begun */
        CALL_HEAD,    /* its object is next */
        CALL_NAMED,   /* after its name in a line: an object or Python is next */
        CALL_FENCE,   /* the same: Python is next */
        CALL_JSON,    /* inside JSON arguments */
        CALL_PYTHON,  /* inside Python arguments */
        CALL_OBJECT,  /* inside its object, but not in arguments that are passed on */
        CALL_CLOSING, /* after its object */
        CALL_TAIL,    /* no call can follow; the rest should be blank */
        CALL_CODE,    /* the same after Python; the rest may be the end of a code block */
        CALL_NONE,    /* no more calls will be found here: the text is not their syntax */
    } state;
    enum { SYNTAX_UNKNOWN, SYNTAX_TAGS, SYNTAX_OBJECT, SYNTAX_LIST, SYNTAX_NAME_LINE } syntax;
    const struct tutti_string *names; /* [n_names] of the tools; borrowed */
    size_t n_names;
    bool any_arguments; /* may be any JSON value */
    bool is_reported;   /* the current call's name and arguments were passed on */
    bool is_open;       /* more arguments of call number n_calls - 1 follow */
    size_t at;          /* bytes of the answer that are parsed */
    size_t n_calls;     /* that have begun */
    size_t n_searched;  /* bytes where no tag begins, while another syntax is parsed */
    size_t n_content;   /* bytes before the first call in tags */
    size_t n_sure;      /* the last result of tutti_tool_parser_content() */
    size_t begin;       /* offset of the current call's object, or of its name in a line */
    size_t n_name;      /* of the name in a line */
    int depth;          /* brackets open in the arguments or the object */
    char quote;         /* of the string that is open in them; 0: none */
    bool is_escaped;
    size_t first;       /* offset of the arguments; of the current one in Python */
    struct buf made;    /* the arguments before it, as JSON; or those of object */
    size_t n_given;     /* bytes of made that were returned */
    json_t *seen_names; /* of the arguments in made; NULL: none yet */
    json_t *object;     /* the last one that was parsed */
};

/* ---- matching ---- */

static bool has_tool(const struct tutti_tool_parser *p, const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < p->n_names; i++)
        if (p->names[i].n_bytes == n_bytes && memcmp(p->names[i].text, name, n_bytes) == 0)
            return true;
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_all_blank(const char *text, size_t n_bytes)
{
    while (n_bytes > 0 && is_blank(*text))
        text++, n_bytes--;
    return n_bytes == 0;
}

/* The result of matching: yes, no, or more text is needed. */
enum match { MATCH_YES, MATCH_NO, MATCH_LATER };

struct match_span {
    const char *at, *end;
};

static enum match skip_blanks(struct match_span *s)
{
    while (s->at < s->end && is_blank(*s->at))
        s->at++;
    return s->at < s->end ? MATCH_YES : MATCH_LATER;
}

/* Matches words after optional blanks. */
static enum match match_words(struct match_span *s, const char *words)
{
    if (skip_blanks(s) == MATCH_LATER)
        return MATCH_LATER;
    size_t n = strlen(words), n_left = (size_t)(s->end - s->at), n_same = n < n_left ? n : n_left;
    if (memcmp(s->at, words, n_same) != 0)
        return MATCH_NO;
    if (n_same < n)
        return MATCH_LATER;
    s->at += n;
    return MATCH_YES;
}

static size_t n_without_blanks(const char *text, const char *end)
{
    while (end > text && is_blank(end[-1]))
        end--;
    return (size_t)(end - text);
}

/* ---- the beginning of a call ---- */

/* Matches {"name": "...", "arguments": and then an object; s then begins at the object. */
static enum match match_head(struct match_span *s, const struct tutti_tool_parser *p,
                             struct tutti_tool_call_delta *delta)
{
    static const char *const FIRST[] = { "{", "\"name\"", ":", "\"" };
    for (size_t i = 0; i < sizeof FIRST / sizeof *FIRST; i++) {
        enum match match = match_words(s, FIRST[i]);
        if (match != MATCH_YES)
            return match;
    }
    const char *quote = memchr(s->at, '"', (size_t)(s->end - s->at));
    if (!quote)
        return MATCH_LATER; /* read_head() ends it */
    delta->name = s->at;
    delta->n_name = (size_t)(quote - s->at);
    s->at = quote + 1;
    if (!has_tool(p, delta->name, delta->n_name))
        return MATCH_NO;
    enum match match = match_words(s, ",");
    if (match != MATCH_YES)
        return match;
    struct match_span other = *s;
    match = match_words(s, "\"arguments\"");
    if (match == MATCH_NO) {
        *s = other;
        match = match_words(s, "\"parameters\"");
    }
    match = match == MATCH_YES ? match_words(s, ":") : match;
    match = match == MATCH_YES ? skip_blanks(s) : match;
    return match == MATCH_YES && *s->at != '{' ? MATCH_NO : match;
}

/* Ends the search for calls, or looks for tags only if the text only looked like another syntax. */
static void break_off(struct tutti_tool_parser *p)
{
    bool can_have_tags = p->n_calls == 0 && p->syntax != SYNTAX_TAGS;
    p->is_open = false;
    p->state = can_have_tags ? CALL_AWAITED : CALL_NONE;
    p->syntax = SYNTAX_TAGS;
    if (can_have_tags)
        p->at = 0;
}

/* Starts to count brackets at the current place. */
static void start_scan(struct tutti_tool_parser *p, int depth)
{
    p->depth = depth;
    p->quote = 0;
    p->is_escaped = false;
}

/* A call whose arguments begin at the current place. */
static bool open_call(struct tutti_tool_parser *p, struct tutti_tool_call_delta *delta)
{
    start_scan(p, 0);
    p->first = p->at;
    p->is_reported = p->is_open = true;
    json_decref(p->seen_names);
    p->seen_names = NULL;
    buf_truncate(&p->made, 0);
    p->n_given = 0;
    delta->index = p->n_calls++;
    delta->arguments = "";
    return true;
}

static bool find_tag(struct tutti_tool_parser *p, const char *text, size_t begin, size_t n_bytes)
{
    const char *open = memmem(text + begin, n_bytes - begin, OPEN, sizeof OPEN - 1);
    if (!open)
        return false;
    if (p->n_calls == 0)
        p->n_content = (size_t)(open - text);
    p->syntax = SYNTAX_TAGS;
    p->at = (size_t)(open - text) + sizeof OPEN - 1;
    p->state = CALL_HEAD;
    return true;
}

/* Finds the beginning of the next call, for the first one also its syntax. */
static void find_call(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    size_t n_left = n_bytes - p->at, n_tail = sizeof OPEN - 2; /* may be the beginning of a tag */
    if (find_tag(p, text, p->at, n_bytes))
        return;
    /* The other syntaxes take the whole answer, so they are recognized at its beginning or not at
     * all. */
    struct match_span first = { text + p->at, text + n_bytes };
    if (p->syntax == SYNTAX_UNKNOWN && p->at == 0) {
        if (skip_blanks(&first) == MATCH_LATER)
            return;
        size_t begin = (size_t)(first.at - text);
        if (*first.at == '{' || *first.at == '[') {
            p->syntax = *first.at == '{' ? SYNTAX_OBJECT : SYNTAX_LIST;
            p->at = begin + (p->syntax == SYNTAX_LIST);
            p->state = CALL_HEAD;
            return;
        }
        const char *line_end = memchr(first.at, '\n', (size_t)(first.end - first.at));
        size_t n_name = line_end ? n_without_blanks(first.at, line_end) : 0;
        if (line_end && has_tool(p, first.at, n_name)) {
            p->syntax = SYNTAX_NAME_LINE;
            p->begin = begin;
            p->n_name = n_name;
            p->at = (size_t)(line_end + 1 - text);
            p->state = CALL_NAMED;
            return;
        }
        if (!line_end && n_left <= MAX_LINE)
            return; /* it may become a name */
    }
    p->at += n_left > n_tail ? n_left - n_tail : 0;
}

/* A tag decides, as long as no call was reported: text before it that began like another syntax is
 * content. */
static void find_late_tag(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    size_t n_tail = sizeof OPEN - 2, begin = p->n_searched > n_tail ? p->n_searched - n_tail : 0;
    if (p->n_calls == 0 && p->syntax != SYNTAX_UNKNOWN && p->syntax != SYNTAX_TAGS)
        (void)find_tag(p, text, begin, n_bytes);
    p->n_searched = n_bytes;
}

/* Begins the object of a call. Arguments are reported as they come if they follow the name at once. */
static bool parse_head(struct tutti_tool_parser *p, const char *text, size_t n_bytes,
                       struct tutti_tool_call_delta *delta)
{
    struct match_span s = { text + p->at, text + n_bytes };
    enum match match = skip_blanks(&s);
    p->at = (size_t)(s.at - text);
    if (match == MATCH_LATER)
        return false;
    if (*s.at != '{') {
        break_off(p);
        return false;
    }
    match = match_head(&s, p, delta);
    if (match == MATCH_LATER && n_bytes - p->at <= MAX_LINE)
        return false; /* it is matched again with more text */
    p->begin = p->at;
    if (match == MATCH_YES) {
        p->at = (size_t)(s.at - text);
        p->state = CALL_JSON;
        return open_call(p, delta);
    }
    start_scan(p, 0);
    p->is_reported = false;
    p->state = CALL_OBJECT;
    return false;
}

/* After NAME and a line break: an object, or "tool_call(" after anything else. */
static bool parse_named(struct tutti_tool_parser *p, const char *text, size_t n_bytes,
                        struct tutti_tool_call_delta *delta)
{
    struct match_span s = { text + p->at, text + n_bytes };
    if (p->state == CALL_NAMED) {
        if (skip_blanks(&s) == MATCH_LATER)
            return false;
        p->at = (size_t)(s.at - text);
        p->state = *s.at == '{' ? CALL_JSON : CALL_FENCE;
    }
    if (p->state == CALL_FENCE) {
        size_t n_left = n_bytes - p->at, n_tail = sizeof PYTHON - 2;
        const char *python = memmem(text + p->at, n_left, PYTHON, sizeof PYTHON - 1);
        if (!python) {
            p->at += n_left > n_tail ? n_left - n_tail : 0;
            return false;
        }
        p->at = (size_t)(python - text) + sizeof PYTHON - 1;
        p->state = CALL_PYTHON;
    }
    delta->name = text + p->begin;
    delta->n_name = p->n_name;
    return open_call(p, delta);
}

/* ---- arguments ---- */

/* Whether c is a bracket or comma outside of strings. */
static bool is_structure(struct tutti_tool_parser *p, char c, const char *quotes)
{
    if (p->quote) {
        if (p->is_escaped)
            p->is_escaped = false;
        else if (c == '\\')
            p->is_escaped = true;
        else if (c == p->quote)
            p->quote = 0;
        return false;
    }
    if (strchr(quotes, c))
        p->quote = c;
    return !p->quote;
}

static bool is_json(const char *text, size_t n_bytes)
{
    json_t *value = json_loadb(text, n_bytes, JSON_ALLOW_NUL, NULL);
    json_decref(value);
    return value;
}

static bool parse_json(struct tutti_tool_parser *p, const char *text, size_t n_bytes,
                       struct tutti_tool_call_delta *delta)
{
    size_t first = p->at;
    while (p->at < n_bytes && p->is_open) {
        char c = text[p->at++];
        if (!c || !is_structure(p, c, "\""))
            continue;
        p->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        p->is_open = p->depth != 0;
    }
    *delta = (struct tutti_tool_call_delta){ .index = p->n_calls - 1,
                                             .arguments = text + first,
                                             .n_arguments = p->at - first,
                                             .is_last = !p->is_open };
    if (!p->is_open && p->syntax != SYNTAX_NAME_LINE) {
        p->state = CALL_OBJECT; /* which may have more members */
        start_scan(p, 1);
    } else if (!p->is_open) {
        p->state = is_json(text + p->first, p->at - p->first) ? CALL_TAIL : CALL_NONE;
    }
    return p->at > first;
}

/* Reports a call whose object is complete. */
static bool take_object(struct tutti_tool_parser *p, struct tutti_tool_call_delta *delta)
{
    const json_t *name = json_object_get(p->object, "name");
    const json_t *arguments = json_object_get(p->object, "arguments");
    if (!arguments)
        arguments = json_object_get(p->object, "parameters");
    if (!json_is_string(name) || !has_tool(p, json_string_value(name), json_string_length(name)))
        return false;
    bool ok = true;
    buf_truncate(&p->made, 0);
    if (!arguments)
        ok = buf_add_string(&p->made, "{}");
    else if (json_is_object(arguments) || p->any_arguments)
        ok = json_print_to(&p->made, arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    else if (json_is_string(arguments)) /* JSON as text */
        ok = buf_add(&p->made, json_string_value(arguments), json_string_length(arguments));
    else
        return false;
    *delta = (struct tutti_tool_call_delta){ .index = p->n_calls,
                                             .name = json_string_value(name),
                                             .n_name = json_string_length(name),
                                             .arguments = p->made.bytes ? p->made.bytes : "",
                                             .n_arguments = p->made.n_bytes,
                                             .is_last = true };
    p->n_calls += ok;
    return ok;
}

/* Reads to the end of a call's object, which must be JSON. */
static bool parse_object(struct tutti_tool_parser *p, const char *text, size_t n_bytes,
                         struct tutti_tool_call_delta *delta)
{
    bool is_done = false;
    while (p->at < n_bytes && !is_done) {
        char c = text[p->at++];
        if (!c || !is_structure(p, c, "\""))
            continue;
        p->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        is_done = p->depth == 0;
    }
    if (!is_done)
        return false;
    json_decref(p->object);
    p->object = json_loadb(text + p->begin, p->at - p->begin, JSON_ALLOW_NUL, NULL);
    bool has_delta = p->object && !p->is_reported && take_object(p, delta);
    if (has_delta || (p->object && p->is_reported))
        p->state = CALL_CLOSING;
    else
        break_off(p);
    return has_delta;
}

/* Adds one argument, "a=1", as JSON. False: not a named literal, or a duplicate name. */
static bool add_argument(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    struct template_output out = { 0 };
    json_t *object = NULL, *value;
    const char *name;
    if (template_read_arguments(text, n_bytes, &out, NULL) == TUTTI_OK)
        object = json_loadb(out.text, out.n_bytes, JSON_ALLOW_NUL, NULL);
    template_output_clear(&out);
    if (!p->seen_names)
        p->seen_names = json_object();
    bool ok = json_object_size(object) == 1;
    json_object_foreach(object, name, value) ok = ok && !json_object_get(p->seen_names, name) &&
                                                  json_object_set_new(p->seen_names, name, json_true()) == 0;
    char *json = ok ? json_print(object, JSON_COMPACT) : NULL;
    json_decref(object);
    ok = json && buf_add(&p->made, p->made.n_bytes > 0 ? "," : "{", 1) &&
         buf_add(&p->made, json + 1, strlen(json) - 2);
    free(json);
    return ok;
}

/* Ends an argument at a comma, or at the last bracket, where it may be empty. */
static bool end_argument(struct tutti_tool_parser *p, const char *text, size_t end, bool is_last)
{
    size_t n = end - p->first;
    bool ok = (is_last && is_all_blank(text + p->first, n)) || add_argument(p, text + p->first, n);
    p->first = end + 1;
    if (ok && is_last)
        ok = buf_add_string(&p->made, p->made.n_bytes > 0 ? "}" : "{}");
    return ok;
}

static bool parse_python(struct tutti_tool_parser *p, const char *text, size_t n_bytes,
                         struct tutti_tool_call_delta *delta)
{
    while (p->at < n_bytes && p->state == CALL_PYTHON) {
        char c = text[p->at++];
        if (!c || !is_structure(p, c, "\"'"))
            continue;
        bool is_last = c == ')' && p->depth == 0;
        p->depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        if (!is_last && !(c == ',' && p->depth == 0))
            continue;
        if (!end_argument(p, text, p->at - 1, is_last)) {
            break_off(p);
        } else if (is_last) {
            p->is_open = false;
            p->state = CALL_CODE;
        }
    }
    if (p->n_given == p->made.n_bytes)
        return false;
    *delta = (struct tutti_tool_call_delta){ .index = p->n_calls - 1,
                                             .arguments = p->made.bytes + p->n_given,
                                             .n_arguments = p->made.n_bytes - p->n_given,
                                             .is_last = p->state == CALL_CODE };
    p->n_given = p->made.n_bytes;
    return true;
}

/* ---- after a call ---- */

/* Matches what ends a call, and decides whether another one can follow. */
static void close_call(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    struct match_span s = { text + p->at, text + n_bytes }, list = s;
    enum match match = MATCH_YES;
    if (p->syntax == SYNTAX_OBJECT)
        p->state = CALL_TAIL;
    else if ((match = match_words(&s, p->syntax == SYNTAX_LIST ? "," : CLOSE)) == MATCH_YES)
        p->state = p->syntax == SYNTAX_LIST ? CALL_HEAD : CALL_AWAITED;
    else if (match == MATCH_NO && p->syntax == SYNTAX_LIST && match_words(&list, "]") == MATCH_YES)
        p->state = CALL_TAIL, s = list;
    else if (match == MATCH_NO)
        p->state = CALL_NONE;
    if (match != MATCH_LATER)
        p->at = (size_t)(s.at - text);
}

/* One step. False: no delta; if the parser's place or state changed, another step can be made. */
static bool take_step(struct tutti_tool_parser *p, const char *text, size_t n_bytes,
                      struct tutti_tool_call_delta *delta)
{
    switch (p->state) {
    case CALL_AWAITED:
        find_call(p, text, n_bytes);
        return false;
    case CALL_HEAD:
        return parse_head(p, text, n_bytes, delta);
    case CALL_NAMED:
    case CALL_FENCE:
        return parse_named(p, text, n_bytes, delta);
    case CALL_JSON:
        return parse_json(p, text, n_bytes, delta);
    case CALL_PYTHON:
        return parse_python(p, text, n_bytes, delta);
    case CALL_OBJECT:
        return parse_object(p, text, n_bytes, delta);
    case CALL_CLOSING:
        close_call(p, text, n_bytes);
        return false;
    case CALL_TAIL:
    case CALL_CODE:
    case CALL_NONE:
        break;
    }
    return false;
}

enum tutti_status tutti_tool_parser_new(tutti_tool_parser **out, const struct tutti_string *names,
                                        size_t n_names, bool any_arguments, struct tutti_error *err)
{
    if (!out || (!names && n_names > 0))
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_tool_parser_new: out and names must not be NULL");
    tutti_tool_parser *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for a parser of tool calls");
    *p = (tutti_tool_parser){ .names = names, .n_names = n_names, .any_arguments = any_arguments };
    *out = p;
    return TUTTI_OK;
}

void tutti_tool_parser_free(tutti_tool_parser *p)
{
    if (!p)
        return;
    buf_clear(&p->made);
    json_decref(p->seen_names);
    json_decref(p->object);
    free(p);
}

bool tutti_tool_parser_next(tutti_tool_parser *p, const char *text, size_t n_bytes,
                            struct tutti_tool_call_delta *delta)
{
    if (n_bytes == 0)
        return false;
    find_late_tag(p, text, n_bytes);
    for (;;) {
        const struct tutti_tool_parser before = *p;
        *delta = (struct tutti_tool_call_delta){ .index = 0 };
        if (take_step(p, text, n_bytes, delta))
            return true;
        if (p->at == before.at && p->state == before.state && p->syntax == before.syntax)
            return false;
    }
}

/* ---- complete answers ---- */

/* Whether the answer is nothing but calls, with any text before those in tags. */
static bool is_complete(const struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    if (p->n_calls == 0)
        return false;
    const char *rest = text + p->at;
    size_t n_rest = n_bytes - p->at;
    if (p->syntax == SYNTAX_TAGS) /* the last closing tag may be missing */
        return p->state == CALL_AWAITED || (p->state == CALL_CLOSING && is_all_blank(rest, n_rest));
    return p->state == CALL_CODE ? !memchr(rest, ')', n_rest)
                                 : p->state == CALL_TAIL && is_all_blank(rest, n_rest);
}

bool tutti_tool_parser_is_complete(const tutti_tool_parser *p, const char *text, size_t n_bytes,
                                   size_t *n_content)
{
    bool ok = is_complete(p, text, n_bytes);
    *n_content = !ok ? n_bytes : p->syntax == SYNTAX_TAGS ? n_without_blanks(text, text + p->n_content) : 0;
    return ok;
}

/* ---- content ---- */

/* Whether the text can still become the name of a tool and a line break. */
static bool may_be_name(const struct tutti_tool_parser *p, const char *text, size_t n)
{
    n = n < MAX_LINE ? n : MAX_LINE;
    const char *line_end = memchr(text, '\n', n);
    size_t n_name = n_without_blanks(text, line_end ? line_end : text + n);
    if (line_end)
        return has_tool(p, text, n_name);
    for (size_t i = 0; i < p->n_names; i++)
        if (p->names[i].n_bytes >= n_name && memcmp(p->names[i].text, text, n_name) == 0)
            return true;
    return false;
}

size_t tutti_tool_parser_content(tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    if (n_bytes <= p->n_sure) /* nothing new */
        return p->n_sure;
    const char *body = text, *open = memmem(text + p->n_sure, n_bytes - p->n_sure, OPEN, sizeof OPEN - 1);
    size_t n = n_bytes, n_sure = n_bytes;
    while (n > 0 && is_blank(*body))
        body++, n--;
    if (n == 0 || *body == '{' || *body == '[' || may_be_name(p, body, n))
        return 0;
    if (open)
        n_sure = (size_t)(open - text);
    /* The tail may be the beginning of a tag. */
    for (size_t k = sizeof OPEN - 2; k > 0 && !open; k--) {
        if (k <= n_bytes && memcmp(text + n_bytes - k, OPEN, k) == 0) {
            n_sure = n_bytes - k;
            break;
        }
    }
    while (n_sure > 0 && is_blank(text[n_sure - 1])) /* blanks before a call are not shown */
        n_sure--;
    return p->n_sure = n_sure;
}
