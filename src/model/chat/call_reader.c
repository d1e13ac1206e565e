#include "model/chat/call_reader.h"

#include "base/json/json_print.h"
#include "model/chat/chat.h"
#include "template/template.h"

#include <stdlib.h>
#include <string.h>

static const char OPEN[] = "<tool_call>", CLOSE[] = "</tool_call>", PYTHON[] = "tool_call(";

enum { MAX_LINE = 4096 }; /* bytes of an answer that may still be the beginning of a call */

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

/* Ends the search for calls, or looks for tags only if the text only looked like another syntax. */
static void break_off(struct call_reader *r)
{
    bool can_have_tags = r->n_calls == 0 && r->way != WAY_TAGGED;
    r->is_open = false;
    r->state = can_have_tags ? CALL_AWAITED : CALL_NONE;
    r->way = WAY_TAGGED;
    if (can_have_tags)
        r->at = 0;
}

/* Starts to count brackets at the current place. */
static void start_scan(struct call_reader *r, int depth)
{
    r->depth = depth;
    r->quote = 0;
    r->is_escaped = false;
}

/* A call whose arguments begin at the current place. */
static bool open_call(struct call_reader *r, struct call_piece *piece)
{
    start_scan(r, 0);
    r->first = r->at;
    r->is_told = r->is_open = true;
    json_decref(r->names);
    r->names = NULL;
    buf_truncate(&r->made, 0);
    r->n_given = 0;
    piece->index = r->n_calls++;
    piece->arguments = "";
    return true;
}

static bool find_tag(struct call_reader *r, const char *text, size_t begin, size_t n_bytes)
{
    const char *open = memmem(text + begin, n_bytes - begin, OPEN, sizeof OPEN - 1);
    if (!open)
        return false;
    if (r->n_calls == 0)
        r->n_content = (size_t)(open - text);
    r->way = WAY_TAGGED;
    r->at = (size_t)(open - text) + sizeof OPEN - 1;
    r->state = CALL_HEAD;
    return true;
}

/* Finds the beginning of the next call, for the first one also its syntax. */
static void find_call(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools)
{
    size_t n_left = n_bytes - r->at, n_tail = sizeof OPEN - 2; /* may be the beginning of a tag */
    if (find_tag(r, text, r->at, n_bytes))
        return;
    /* The other syntaxes take the whole answer, so they are recognized at its beginning or not at
     * all. */
    struct span first = { text + r->at, text + n_bytes };
    if (r->way == WAY_UNKNOWN && r->at == 0) {
        if (skip_blanks(&first) == LOOK_LATER)
            return;
        size_t begin = (size_t)(first.at - text);
        if (*first.at == '{' || *first.at == '[') {
            r->way = *first.at == '{' ? WAY_OBJECT : WAY_LIST;
            r->at = begin + (r->way == WAY_LIST);
            r->state = CALL_HEAD;
            return;
        }
        const char *line_end = memchr(first.at, '\n', (size_t)(first.end - first.at));
        size_t n_name = line_end ? n_without_blanks(first.at, line_end) : 0;
        if (line_end && chat_has_tool(tools, first.at, n_name)) {
            r->way = WAY_NAMED;
            r->begin = begin;
            r->n_name = n_name;
            r->at = (size_t)(line_end + 1 - text);
            r->state = CALL_NAMED;
            return;
        }
        if (!line_end && n_left <= MAX_LINE)
            return; /* it may become a name */
    }
    r->at += n_left > n_tail ? n_left - n_tail : 0;
}

/* A tag decides, as long as no call was told: text before it that began like another syntax is
 * content. */
static void find_late_tag(struct call_reader *r, const char *text, size_t n_bytes)
{
    size_t n_tail = sizeof OPEN - 2, begin = r->n_searched > n_tail ? r->n_searched - n_tail : 0;
    if (r->n_calls == 0 && r->way != WAY_UNKNOWN && r->way != WAY_TAGGED)
        (void)find_tag(r, text, begin, n_bytes);
    r->n_searched = n_bytes;
}

/* Begins the object of a call. Arguments are told as they come if they follow the name at once. */
static bool read_head(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece)
{
    struct span s = { text + r->at, text + n_bytes };
    enum look look = skip_blanks(&s);
    r->at = (size_t)(s.at - text);
    if (look == LOOK_LATER)
        return false;
    if (*s.at != '{') {
        break_off(r);
        return false;
    }
    look = take_head(&s, tools, piece);
    if (look == LOOK_LATER && n_bytes - r->at <= MAX_LINE)
        return false; /* it is matched again with more text */
    r->begin = r->at;
    if (look == LOOK_YES) {
        r->at = (size_t)(s.at - text);
        r->state = CALL_JSON;
        return open_call(r, piece);
    }
    start_scan(r, 0);
    r->is_told = false;
    r->state = CALL_OBJECT;
    return false;
}

/* After NAME and a line break: an object, or "tool_call(" after anything else. */
static bool read_named(struct call_reader *r, const char *text, size_t n_bytes, struct call_piece *piece)
{
    struct span s = { text + r->at, text + n_bytes };
    if (r->state == CALL_NAMED) {
        if (skip_blanks(&s) == LOOK_LATER)
            return false;
        r->at = (size_t)(s.at - text);
        r->state = *s.at == '{' ? CALL_JSON : CALL_FENCE;
    }
    if (r->state == CALL_FENCE) {
        size_t n_left = n_bytes - r->at, n_tail = sizeof PYTHON - 2;
        const char *python = memmem(text + r->at, n_left, PYTHON, sizeof PYTHON - 1);
        if (!python) {
            r->at += n_left > n_tail ? n_left - n_tail : 0;
            return false;
        }
        r->at = (size_t)(python - text) + sizeof PYTHON - 1;
        r->state = CALL_PYTHON;
    }
    piece->name = text + r->begin;
    piece->n_name = r->n_name;
    return open_call(r, piece);
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

static bool is_json(const char *text, size_t n_bytes)
{
    json_t *value = json_loadb(text, n_bytes, JSON_ALLOW_NUL, NULL);
    json_decref(value);
    return value;
}

static bool read_json(struct call_reader *r, const char *text, size_t n_bytes, struct call_piece *piece)
{
    size_t first = r->at;
    while (r->at < n_bytes && r->is_open) {
        char c = text[r->at++];
        if (!c || !is_structure(r, c, "\""))
            continue;
        r->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        r->is_open = r->depth != 0;
    }
    *piece = (struct call_piece){
        .index = r->n_calls - 1, .arguments = text + first, .n_bytes = r->at - first, .is_last = !r->is_open
    };
    if (!r->is_open && r->way != WAY_NAMED) {
        r->state = CALL_OBJECT; /* which may have more members */
        start_scan(r, 1);
    } else if (!r->is_open) {
        r->state = is_json(text + r->first, r->at - r->first) ? CALL_TAIL : CALL_NONE;
    }
    return r->at > first;
}

/* Tells a call whose object is complete. */
static bool take_object(struct call_reader *r, const json_t *tools, struct call_piece *piece)
{
    const json_t *name = json_object_get(r->object, "name");
    const json_t *arguments = json_object_get(r->object, "arguments");
    if (!arguments)
        arguments = json_object_get(r->object, "parameters");
    if (!json_is_string(name) || !chat_has_tool(tools, json_string_value(name), json_string_length(name)))
        return false;
    bool ok = true;
    buf_truncate(&r->made, 0);
    if (!arguments)
        ok = buf_add_string(&r->made, "{}");
    else if (json_is_object(arguments) || r->takes_any)
        ok = json_print_to(&r->made, arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    else if (json_is_string(arguments)) /* JSON as text */
        ok = buf_add(&r->made, json_string_value(arguments), json_string_length(arguments));
    else
        return false;
    *piece = (struct call_piece){ .index = r->n_calls,
                                  .name = json_string_value(name),
                                  .n_name = json_string_length(name),
                                  .arguments = r->made.bytes ? r->made.bytes : "",
                                  .n_bytes = r->made.n_bytes,
                                  .is_last = true };
    r->n_calls += ok;
    return ok;
}

/* Reads to the end of a call's object, which must be JSON. */
static bool read_object(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                        struct call_piece *piece)
{
    bool is_done = false;
    while (r->at < n_bytes && !is_done) {
        char c = text[r->at++];
        if (!c || !is_structure(r, c, "\""))
            continue;
        r->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        is_done = r->depth == 0;
    }
    if (!is_done)
        return false;
    json_decref(r->object);
    r->object = json_loadb(text + r->begin, r->at - r->begin, JSON_ALLOW_NUL, NULL);
    bool has_piece = r->object && !r->is_told && take_object(r, tools, piece);
    if (has_piece || (r->object && r->is_told))
        r->state = CALL_CLOSING;
    else
        break_off(r);
    return has_piece;
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
        if (!end_argument(r, text, r->at - 1, is_last)) {
            break_off(r);
        } else if (is_last) {
            r->is_open = false;
            r->state = CALL_CODE;
        }
    }
    if (r->n_given == r->made.n_bytes)
        return false;
    *piece = (struct call_piece){ .index = r->n_calls - 1,
                                  .arguments = r->made.bytes + r->n_given,
                                  .n_bytes = r->made.n_bytes - r->n_given,
                                  .is_last = r->state == CALL_CODE };
    r->n_given = r->made.n_bytes;
    return true;
}

/* ---- after a call ---- */

/* Matches what ends a call, and decides whether another one can follow. */
static void close_call(struct call_reader *r, const char *text, size_t n_bytes)
{
    struct span s = { text + r->at, text + n_bytes }, list = s;
    enum look look = LOOK_YES;
    if (r->way == WAY_OBJECT)
        r->state = CALL_TAIL;
    else if ((look = take(&s, r->way == WAY_LIST ? "," : CLOSE)) == LOOK_YES)
        r->state = r->way == WAY_LIST ? CALL_HEAD : CALL_AWAITED;
    else if (look == LOOK_NO && r->way == WAY_LIST && take(&list, "]") == LOOK_YES)
        r->state = CALL_TAIL, s = list;
    else if (look == LOOK_NO)
        r->state = CALL_NONE;
    if (look != LOOK_LATER)
        r->at = (size_t)(s.at - text);
}

/* One step. False: no piece; the reader's place and state tell whether another step can be made. */
static bool take_step(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece)
{
    switch (r->state) {
    case CALL_AWAITED:
        find_call(r, text, n_bytes, tools);
        return false;
    case CALL_HEAD:
        return read_head(r, text, n_bytes, tools, piece);
    case CALL_NAMED:
    case CALL_FENCE:
        return read_named(r, text, n_bytes, piece);
    case CALL_JSON:
        return read_json(r, text, n_bytes, piece);
    case CALL_PYTHON:
        return read_python(r, text, n_bytes, piece);
    case CALL_OBJECT:
        return read_object(r, text, n_bytes, tools, piece);
    case CALL_CLOSING:
        close_call(r, text, n_bytes);
        return false;
    case CALL_TAIL:
    case CALL_CODE:
    case CALL_NONE:
        break;
    }
    return false;
}

bool call_reader_next(struct call_reader *r, const char *text, size_t n_bytes, const json_t *tools,
                      struct call_piece *piece)
{
    find_late_tag(r, text, n_bytes);
    for (;;) {
        const struct call_reader before = *r;
        *piece = (struct call_piece){ .index = 0 };
        if (take_step(r, text, n_bytes, tools, piece))
            return true;
        if (r->at == before.at && r->state == before.state && r->way == before.way)
            return false;
    }
}

void call_reader_clear(struct call_reader *r)
{
    buf_clear(&r->made);
    json_decref(r->names);
    json_decref(r->object);
    *r = (struct call_reader){ .at = 0 };
}

/* ---- complete answers ---- */

/* Whether the answer is nothing but calls, with any text before those in tags. */
static bool is_complete(const struct call_reader *r, const char *text, size_t n_bytes)
{
    const char *rest = text + r->at;
    size_t n_rest = n_bytes - r->at;
    if (r->n_calls == 0)
        return false;
    if (r->way == WAY_TAGGED) /* the last closing tag may be missing */
        return r->state == CALL_AWAITED || (r->state == CALL_CLOSING && is_all_blank(rest, n_rest));
    return r->state == CALL_CODE ? !memchr(rest, ')', n_rest)
                                 : r->state == CALL_TAIL && is_all_blank(rest, n_rest);
}

static bool add_call(json_t *calls, const json_t *name, const struct buf *arguments)
{
    const char *bytes = arguments->bytes ? arguments->bytes : "";
    json_t *value = json_loadb(bytes, arguments->n_bytes, JSON_ALLOW_NUL, NULL);
    char *compact = value ? json_print(value, JSON_COMPACT) : NULL;
    json_t *text = compact ? json_string(compact) : json_stringn(bytes, arguments->n_bytes);
    free(compact);
    json_decref(value);
    return json_array_append_new(calls, json_pack("{s:O, s:o}", "name", name, "arguments", text)) == 0;
}

json_t *chat_find_calls(const char *text, size_t n_bytes, const json_t *tools, bool takes_any,
                        size_t *n_content)
{
    struct call_reader r = { .takes_any = takes_any };
    struct call_piece piece;
    struct buf arguments = { 0 };
    json_t *calls = json_array(), *name = NULL;
    bool ok = calls;
    while (ok && call_reader_next(&r, text, n_bytes, tools, &piece)) {
        if (piece.name) {
            json_decref(name);
            name = json_stringn(piece.name, piece.n_name);
            buf_truncate(&arguments, 0);
        }
        ok = name && buf_add(&arguments, piece.arguments, piece.n_bytes);
        if (ok && piece.is_last)
            ok = add_call(calls, name, &arguments);
    }
    ok = ok && is_complete(&r, text, n_bytes);
    *n_content = !ok ? n_bytes : r.way == WAY_TAGGED ? n_without_blanks(text, text + r.n_content) : 0;
    buf_clear(&arguments);
    json_decref(name);
    call_reader_clear(&r);
    if (ok)
        return calls;
    json_decref(calls);
    return NULL;
}

/* Whether the text can still become the name of a tool and a line break. */
static bool may_be_name(const char *text, size_t n, const json_t *tools)
{
    n = n < MAX_LINE ? n : MAX_LINE;
    const char *line_end = memchr(text, '\n', n);
    size_t n_name = n_without_blanks(text, line_end ? line_end : text + n), i;
    const json_t *tool;
    if (line_end)
        return chat_has_tool(tools, text, n_name);
    json_array_foreach(tools, i, tool)
    {
        const json_t *own = json_object_get(chat_tool_function(tool), "name");
        if (json_string_length(own) >= n_name && memcmp(json_string_value(own), text, n_name) == 0)
            return true;
    }
    return false;
}

size_t chat_sure_content(const char *text, size_t n_bytes, size_t n_known, const json_t *tools)
{
    const char *body = text, *open = memmem(text + n_known, n_bytes - n_known, OPEN, sizeof OPEN - 1);
    size_t n = n_bytes, n_sure = n_bytes;
    while (n > 0 && is_blank(*body))
        body++, n--;
    if (n == 0 || *body == '{' || *body == '[' || may_be_name(body, n, tools))
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
    return n_sure;
}
