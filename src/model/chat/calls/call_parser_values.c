/* The values of arguments that a form writes one by one, each with its name, without JSON. */
#include "base/utf8.h"
#include "model/chat/calls/call_parser.h"
#include "model/chat/calls/call_values.h"

/* Whether the step ends at this place of the answer. *n_mark: how many bytes there belong to the step. */
static enum match match_end(const struct call_step *step, const char *at, size_t n_left, size_t *n_mark)
{
    enum match found = match_mark(step->text, at, n_left);
    *n_mark = found == MATCH_YES ? strlen(step->text) : 0;
    for (size_t i = 0; i < CALL_MAX_NEXT && step->next[i] && found != MATCH_YES && at[-1] == '\n'; i++) {
        enum match next = match_mark(step->next[i], at, n_left);
        found = next == MATCH_NO ? found : next;
    }
    return found;
}

/* Finds what ends the step from p->searched on. NULL: nothing; p->searched is then where it may begin. */
static const char *find_end(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                            size_t n_bytes, size_t *n_mark)
{
    const char *at;
    while ((at = memchr(text + p->searched, *step->text, n_bytes - p->searched))) {
        p->searched = (size_t)(at - text);
        enum match found = match_end(step, at, n_bytes - p->searched, n_mark);
        if (found != MATCH_NO)
            return found == MATCH_YES ? at : NULL;
        p->searched++;
    }
    p->searched = n_bytes;
    return NULL;
}

/* How many bytes at the end of text are an incomplete character. */
static size_t n_begun_character(const char *text, size_t n_bytes)
{
    size_t n = 1;
    while (n < 4 && n < n_bytes && utf8_is_continuation(text[n_bytes - n]))
        n++;
    return n_bytes > 0 && utf8_is_start(text + n_bytes - n, n) ? n : 0;
}

/* CALL_KEY, CALL_SKIP: everything up to the step's text. */
/* Writes an attribute's value without the escapes of its two signs. Returns its length. */
static size_t unescape(char *out, const char *text, size_t n_bytes)
{
    static const char *const ESCAPES[][2] = { { "&amp;", "&" }, { "&quot;", "\"" } };
    size_t n_out = 0;
    for (size_t at = 0; at < n_bytes; n_out++) {
        size_t n_taken = 1;
        out[n_out] = text[at];
        for (size_t i = 0; i < sizeof ESCAPES / sizeof *ESCAPES; i++) {
            size_t n = strlen(ESCAPES[i][0]);
            if (n_bytes - at >= n && memcmp(text + at, ESCAPES[i][0], n) == 0) {
                out[n_out] = *ESCAPES[i][1];
                n_taken = n;
            }
        }
        at += n_taken;
    }
    return n_out;
}

enum progress call_parse_until(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                               size_t n_bytes)
{
    if (!p->is_entered) {
        p->is_entered = true;
        p->first = p->searched = p->at;
    }
    size_t n_mark;
    const char *end = find_end(p, step, text, n_bytes, &n_mark), *from = text + p->first;
    size_t n = (end ? (size_t)(end - text) : p->searched) - p->first;
    if (n > CALL_MAX_NAME)
        return STEP_FAIL;
    if (!end)
        return STEP_WAIT;
    p->at = (size_t)(end - text) + n_mark;
    p->step++;
    if (step->op == CALL_SKIP)
        return STEP_GO;
    while (n > 0 && is_blank(*from))
        from++, n--;
    n = n_without_blanks(from, n);
    char name[CALL_MAX_NAME];
    if (step->op == CALL_ATTRIBUTE) {
        n = unescape(name, from, n);
        from = name;
    }
    return call_arguments_set_name(&p->arguments, from, n) ? STEP_GO : STEP_FAIL;
}

/* Passes on a piece of a value that is not complete. */
static enum progress give_piece(struct tutti_tool_parser *p, const char *from, size_t n)
{
    size_t n_taken;
    n -= n_begun_character(from, n);
    if (!call_arguments_add_piece(&p->arguments, from, n, &n_taken))
        return STEP_FAIL;
    p->at += n_taken;
    return n_taken > 0 ? call_parser_give(p, false) : STEP_WAIT;
}

/* The tool whose schema decides the type of the value; NULL: the value is a text. */
static const json_t *find_typed(const struct tutti_tool_parser *p, enum call_op op)
{
    const json_t *function = call_parser_tool(p);
    const char *name = json_string_value(p->arguments.name);
    bool is_text = op == CALL_TEXT;
    if (op == CALL_QUOTED && name)
        is_text = call_value_types(json_object_get(function, "parameters"), name) &
                  (CALL_TYPE_TEXT | CALL_TYPE_ANY);
    return is_text ? NULL : function;
}

/* CALL_VALUE and its like: everything up to the step's text. A text is passed on as it comes; what may be the
 * beginning of that mark, or of a character, is held back. p->at: what was passed on. */
enum progress call_parse_value(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                               size_t n_bytes)
{
    if (!p->is_entered) {
        if (p->at == n_bytes)
            return STEP_WAIT;
        if (!call_arguments_begin_value(&p->arguments, call_parser_tool(p), !find_typed(p, step->op)))
            return STEP_FAIL;
        p->is_entered = true;
        p->at += step->op == CALL_LINES && text[p->at] == '\n';
        p->searched = p->at;
    }
    size_t n_mark;
    const char *end = find_end(p, step, text, n_bytes, &n_mark), *from = text + p->at;
    size_t n = (end ? (size_t)(end - text) : p->searched) - p->at;
    if (step->op == CALL_LINES && n > 0 && from[n - 1] == '\n')
        n--;
    if (end) {
        p->at = (size_t)(end - text) + n_mark;
        p->step++;
        return call_arguments_end_value(&p->arguments, from, n) ? call_parser_give(p, false) : STEP_FAIL;
    }
    return give_piece(p, from, n);
}

/* CALL_DICT */
enum progress call_parse_dict(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                              size_t n_bytes)
{
    if (!p->is_entered) {
        if (!call_arguments_begin_value(&p->arguments, call_parser_tool(p), false))
            return STEP_FAIL;
        p->is_entered = true;
        p->scan = (struct notation_scan){ .at = p->at };
    }
    if (notation_scan_dict(&p->scan, step->text, text, n_bytes) == NOTATION_MORE)
        return STEP_WAIT;
    json_t *value = notation_parse_dict(step->text, text + p->at, p->scan.at - p->at);
    p->at = p->scan.at;
    p->step++;
    return call_arguments_set_value(&p->arguments, value) ? call_parser_give(p, false) : STEP_FAIL;
}

/* CALL_ELEMENT: the value and the tag that closes it. A text is passed on as it comes. */
enum progress call_parse_element(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                                 size_t n_bytes)
{
    const json_t *parameters = json_object_get(call_parser_tool(p), "parameters");
    const char *name = json_string_value(p->arguments.name), *from = text + p->at;
    if (!p->is_entered) {
        if (!call_arguments_begin_value(&p->arguments, call_parser_tool(p), false))
            return STEP_FAIL;
        p->is_entered = true;
        p->scan = (struct notation_scan){ .at = p->at };
    }
    enum notation_found found = notation_scan_element(&p->scan, step->text, text, n_bytes);
    size_t n = p->scan.at - p->at;
    if (found == NOTATION_MORE)
        return give_piece(p, from, n);
    size_t n_close = notation_close_bytes(step->text, text + p->scan.at, n_bytes - p->scan.at, name);
    p->at = p->scan.at + n_close;
    p->step++;
    bool ok = n_close > 0 &&
              (p->arguments.is_text
                   ? call_arguments_end_value(&p->arguments, from, n)
                   : call_arguments_set_value(&p->arguments,
                                              notation_parse_element(step->text, from, n, parameters, name)));
    return ok ? call_parser_give(p, false) : STEP_FAIL;
}
