#include "model/chat/call_reader.h"

#include "base/json/json_print.h"
#include "model/chat/chat.h"
#include "template/template.h"

#include <stdlib.h>
#include <string.h>

static const char OPEN[] = "<tool_call>", CLOSE[] = "</tool_call>", PYTHON[] = "tool_call(";

enum {
    MAX_FENCE = 64,  /* bytes between the name of a tool and its arguments in Python */
    MAX_LINE = 4096, /* bytes of an answer that may still be a tool's name, or the text before it */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The result of matching: yes, no, or more text is needed. */
enum look { LOOK_YES, LOOK_NO, LOOK_LATER };

struct span {
    const char *at, *end;
};

static enum look skip_blanks(struct span *s)
{
    while (s->at < s->end && is_blank(*s->at))
        s->at++;
    return s->at < s->end ? LOOK_YES : LOOK_LATER;
}

/* Matches words after optional blanks. */
static enum look take(struct span *s, const char *words)
{
    if (skip_blanks(s) == LOOK_LATER)
        return LOOK_LATER;
    size_t n = strlen(words), n_left = (size_t)(s->end - s->at), n_same = n < n_left ? n : n_left;
    if (memcmp(s->at, words, n_same) != 0)
        return LOOK_NO;
    if (n_same < n)
        return LOOK_LATER;
    s->at += n;
    return LOOK_YES;
}

static size_t n_without_blanks(const char *text, const char *end)
{
    while (end > text && is_blank(end[-1]))
        end--;
    return (size_t)(end - text);
}

/* ---- the beginning of a call ---- */

/* Matches {"name": "...", "arguments": and then an object; s then begins at the object. */
static enum look take_head(struct span *s, const json_t *tools, struct call_piece *piece)
{
    static const char *const FIRST[] = { "{", "\"name\"", ":", "\"" };
    for (size_t i = 0; i < sizeof FIRST / sizeof *FIRST; i++) {
        enum look look = take(s, FIRST[i]);
        if (look != LOOK_YES)
            return look;
    }
    const char *quote = memchr(s->at, '"', (size_t)(s->end - s->at));
    if (!quote)
        return LOOK_LATER; /* begin_call() ends it */
    piece->name = s->at;
    piece->n_name = (size_t)(quote - s->at);
    s->at = quote + 1;
    if (!chat_has_tool(tools, piece->name, piece->n_name))
        return LOOK_NO;
    enum look look = take(s, ",");
    if (look != LOOK_YES)
        return look;
    struct span other = *s;
    look = take(s, "\"arguments\"");
    if (look == LOOK_NO) {
        *s = other;
        look = take(s, "\"parameters\"");
    }
    look = look == LOOK_YES ? take(s, ":") : look;
    look = look == LOOK_YES ? skip_blanks(s) : look;
    return look == LOOK_YES && *s->at != '{' ? LOOK_NO : look;
}

/* Matches NAME, a line break, and then an object, or "tool_call(" within MAX_FENCE bytes. */
static enum look take_named(struct call_reader *r, struct span *s, const json_t *tools,
                            struct call_piece *piece)
{
    const char *line_end = memchr(s->at, '\n', (size_t)(s->end - s->at));
    if (!line_end)
        return LOOK_LATER;
    piece->name = s->at;
    piece->n_name = n_without_blanks(s->at, line_end);
    if (!chat_has_tool(tools, piece->name, piece->n_name))
        return LOOK_NO;
    s->at = line_end + 1;
    if (skip_blanks(s) == LOOK_LATER)
        return LOOK_LATER;
    if (*s->at == '{')
        return LOOK_YES;
    size_t n = (size_t)(s->end - s->at), n_near = n < MAX_FENCE ? n : MAX_FENCE;
    const char *python = memmem(s->at, n_near, PYTHON, sizeof PYTHON - 1);
    if (!python)
        return n < MAX_FENCE ? LOOK_LATER : LOOK_NO;
    s->at = python + sizeof PYTHON - 1;
    r->state = CALL_PYTHON;
    return LOOK_YES;
}

/* Detects the call syntax, and advances to the start of the first call. */
static enum look choose_way(struct call_reader *r, struct span *s, const json_t *tools)
{
    size_t n_left = (size_t)(s->end - s->at), n_tail = sizeof OPEN - 2;
    const char *open = memmem(s->at, n_left, OPEN, sizeof OPEN - 1);
    if (open) {
        r->way = WAY_TAGGED;
        r->at += (size_t)(open - s->at);
        s->at = open + sizeof OPEN - 1;
        return LOOK_YES;
    }
    /* The other syntaxes take the whole answer, so they are recognized at its beginning or not at
     * all. */
    struct span first = *s;
    if (skip_blanks(&first) == LOOK_LATER)
        return LOOK_LATER;
    if (r->at == 0 && (*first.at == '{' || *first.at == '[')) {
        r->way = *first.at == '{' ? WAY_OBJECT : WAY_LIST;
        s->at = first.at + (r->way == WAY_LIST);
        return LOOK_YES;
    }
    const char *line_end = r->at == 0 ? memchr(first.at, '\n', (size_t)(first.end - first.at)) : NULL;
    if (line_end && chat_has_tool(tools, first.at, n_without_blanks(first.at, line_end))) {
        r->way = WAY_NAMED;
        s->at = first.at;
        return LOOK_YES;
    }
    if (r->at > 0 || line_end || n_left > MAX_LINE)
        r->at += n_left > n_tail ? n_left - n_tail : 0; /* the tail may be the beginning of a tag */
    return LOOK_LATER;
}

static enum look find_call(struct call_reader *r, struct span *s, const json_t *tools,
                           struct call_piece *piece)
{
    if (r->way == WAY_UNKNOWN) {
        enum look look = choose_way(r, s, tools);
        if (look != LOOK_YES)
            return look;
    } else if (r->way == WAY_TAGGED) {
        size_t n_left = (size_t)(s->end - s->at), n_tail = sizeof OPEN - 2;
        const char *open = memmem(s->at, n_left, OPEN, sizeof OPEN - 1);
        if (!open) {
            r->at += n_left > n_tail ? n_left - n_tail : 0; /* the tail may be the beginning of a tag */
            return LOOK_LATER;
        }
        r->at += (size_t)(open - s->at);
        s->at = open + sizeof OPEN - 1;
    }
    return r->way == WAY_NAMED ? take_named(r, s, tools, piece) : take_head(s, tools, piece);
}

static bool begin_call(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                       struct call_piece *piece)
{
    struct span s = { text + r->at, text + n_bytes };
    struct call_reader before = *r;
    enum look look = find_call(r, &s, tools, piece);
    /* The beginning of a call is matched again with more text, while it is short. */
    if (look == LOOK_LATER && r->way != WAY_UNKNOWN && r->at + MAX_LINE < n_bytes)
        look = LOOK_NO;
    if (look == LOOK_NO)
        r->state = CALL_NONE;
    else if (look == LOOK_LATER)
        r->way = before.way;
    if (look != LOOK_YES)
        return false;
    json_decref(r->names);
    r->names = NULL;
    r->state = r->state == CALL_PYTHON ? CALL_PYTHON : CALL_JSON;
    r->at = r->first = (size_t)(s.at - text);
    r->depth = 0;
    r->quote = 0;
    r->is_escaped = false;
    piece->index = r->n_calls++;
    piece->arguments = "";
    return true;
}

/* ---- arguments ---- */

/* Whether c is a bracket or comma outside of strings. */
static bool is_structure(struct call_reader *r, char c, const char *quotes)
{
    if (r->quote) {
        if (r->is_escaped)
            r->is_escaped = false;
        else if (c == '\\')
            r->is_escaped = true;
        else if (c == r->quote)
            r->quote = 0;
        return false;
    }
    if (strchr(quotes, c))
        r->quote = c;
    return !r->quote;
}

static bool read_json(struct call_reader *r, const char *text, size_t n_bytes, struct call_piece *piece)
{
    size_t first = r->at;
    while (r->at < n_bytes && r->state == CALL_JSON) {
        char c = text[r->at++];
        if (!c || !is_structure(r, c, "\""))
            continue;
        r->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (r->depth == 0)
            r->state = CALL_ENDED;
    }
    *piece = (struct call_piece){ .index = r->n_calls - 1,
                                  .arguments = text + first,
                                  .n_bytes = r->at - first,
                                  .is_last = r->state == CALL_ENDED };
    return r->at > first;
}

/* Adds one argument, "a=1", as JSON. False: not a named literal, or a duplicate name. */
static bool add_argument(struct call_reader *r, const char *text, size_t n_bytes)
{
    struct template_output out = { 0 };
    json_t *object = NULL, *value;
    const char *name;
    if (template_read_arguments(text, n_bytes, &out, NULL) == TUTTI_OK)
        object = json_loadb(out.text, out.n_bytes, JSON_ALLOW_NUL, NULL);
    template_output_clear(&out);
    if (!r->names)
        r->names = json_object();
    bool ok = json_object_size(object) == 1;
    json_object_foreach(object, name, value)
        ok = ok && !json_object_get(r->names, name) && json_object_set_new(r->names, name, json_true()) == 0;
    char *json = ok ? json_print(object, JSON_COMPACT) : NULL;
    json_decref(object);
    ok = json && buf_add(&r->made, r->made.n_bytes > 0 ? "," : "{", 1) &&
         buf_add(&r->made, json + 1, strlen(json) - 2);
    free(json);
    return ok;
}

static bool is_all_blank(const char *text, size_t n_bytes)
{
    while (n_bytes > 0 && is_blank(*text))
        text++, n_bytes--;
    return n_bytes == 0;
}

/* Ends an argument at a comma, or at the last bracket, where it may be empty. */
static bool end_argument(struct call_reader *r, const char *text, size_t end, bool is_last)
{
    size_t n = end - r->first;
    bool ok = (is_last && is_all_blank(text + r->first, n)) || add_argument(r, text + r->first, n);
    r->first = end + 1;
    if (ok && is_last)
        ok = buf_add_string(&r->made, r->made.n_bytes > 0 ? "}" : "{}");
    return ok;
}

static bool read_python(struct call_reader *r, const char *text, size_t n_bytes, struct call_piece *piece)
{
    while (r->at < n_bytes && r->state == CALL_PYTHON) {
        char c = text[r->at++];
        if (!c || !is_structure(r, c, "\"'"))
            continue;
        bool is_last = c == ')' && r->depth == 0;
        r->depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        if (!is_last && !(c == ',' && r->depth == 0))
            continue;
        r->state = is_last ? CALL_ENDED : CALL_PYTHON;
        if (!end_argument(r, text, r->at - 1, is_last)) {
            r->state = CALL_NONE;
            break;
        }
    }
    if (r->n_given == r->made.n_bytes)
        return false;
    *piece = (struct call_piece){ .index = r->n_calls - 1,
                                  .arguments = r->made.bytes + r->n_given,
                                  .n_bytes = r->made.n_bytes - r->n_given,
                                  .is_last = r->state == CALL_ENDED };
    r->n_given = r->made.n_bytes;
    return true;
}

/* ---- behind a call ---- */

/* Completes a call and decides whether another one can follow. */
static void end_call(struct call_reader *r, const char *text, size_t n_bytes)
{
    struct span s = { text + r->at, text + n_bytes };
    enum look look = r->way == WAY_NAMED || r->way == WAY_OBJECT ? LOOK_NO : take(&s, "}");
    if (look == LOOK_YES)
        look = take(&s, r->way == WAY_LIST ? "," : CLOSE);
    if (look == LOOK_LATER)
        return;
    r->state = look == LOOK_YES ? CALL_AWAITED : CALL_NONE;
    r->at = (size_t)(s.at - text);
}

bool call_reader_next(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece)
{
    *piece = (struct call_piece){ .index = 0 };
    if (r->state == CALL_JSON)
        return read_json(r, text, n_bytes, piece);
    if (r->state == CALL_PYTHON)
        return read_python(r, text, n_bytes, piece);
    if (r->state == CALL_ENDED)
        end_call(r, text, n_bytes);
    return r->state == CALL_AWAITED && begin_call(r, text, n_bytes, tools, piece);
}

void call_reader_clear(struct call_reader *r)
{
    buf_clear(&r->made);
    json_decref(r->names);
    *r = (struct call_reader){ .at = 0 };
}
