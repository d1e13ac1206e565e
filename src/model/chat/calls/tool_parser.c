/* Parses tool calls in an answer, piece by piece while the model writes it, or a complete answer at
 * once. call_forms.h has the forms as programs of steps, which this file interprets.
 *
 * A form begins at one of its openings, or with the answer. Until a form has reported a call it can
 * turn out not to apply: then the next one with this opening is tried from the same place, and after
 * the last one the search for openings goes on. From the report on, a mismatch ends all parsing.
 *
 * Linear time: each byte of an answer is parsed a bounded number of times. A form that fails is
 * parsed again by at most as many forms as there are, and only if it failed within MAX_RETRY bytes
 * after its opening; the forms that take the whole answer are tried once. A mark or a name that is
 * matched again with more text has at most CALL_MAX_NAME bytes. Objects and values are scanned as they
 * come, and parsed once, when they are complete. Nothing recurses but nested elements, up to 32 levels.
 * jansson parses JSON (up to 2048 levels); src/template parses Python, and template.h lists what recurses
 * there. */
#include "base/error.h"
#include "base/json/json_print.h"
#include "base/json/json_wide.h"
#include "model/chat/calls/call_parser.h"
#include "model/chat/calls/call_values.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RETRY = 4096 };

/* ---- names and blanks ---- */

static const json_t *find_tool(const struct tutti_tool_parser *p, const char *name, size_t n_bytes)
{
    return call_tool_find(p->tools, name, n_bytes);
}

const json_t *call_parser_tool(const struct tutti_tool_parser *p)
{
    return find_tool(p, p->name.bytes, p->name.n_bytes);
}

static bool is_all_blank(const char *text, size_t n_bytes)
{
    while (n_bytes > 0 && is_blank(*text))
        text++, n_bytes--;
    return n_bytes == 0;
}

/* ---- calls ---- */

static void scan_start(struct tutti_tool_parser *p)
{
    p->depth = 0;
    p->quote = 0;
    p->is_escaped = false;
}

/* Sets the name of the call that begins next. False: out of memory. */
static bool set_name(struct tutti_tool_parser *p, const char *name, size_t n_bytes)
{
    buf_truncate(&p->name, 0);
    return buf_add(&p->name, name, n_bytes);
}

static void set_id(struct tutti_tool_parser *p, const char *id, size_t n_bytes)
{
    json_decref(p->id);
    p->id = json_stringn(id, n_bytes);
}

/* Reports the call whose name is known. */
static enum progress begin_call(struct tutti_tool_parser *p)
{
    if (json_array_append_new(p->ids, p->id ? p->id : json_null()) != 0) {
        p->id = NULL;
        return STEP_FAIL;
    }
    p->id = NULL;
    if (p->n_calls == 0)
        p->n_content = p->mark;
    p->has_begun = p->is_open = true;
    p->delta = (struct tutti_tool_call_delta){
        .index = p->n_calls++, .name = p->name.bytes, .n_name = p->name.n_bytes, .arguments = ""
    };
    return STEP_DELTA;
}

enum progress call_parser_give(struct tutti_tool_parser *p, bool is_last)
{
    const struct buf *json = &p->arguments.json;
    p->delta = (struct tutti_tool_call_delta){
        .index = p->n_calls - 1, .arguments = json->bytes, .n_arguments = json->n_bytes, .is_last = is_last
    };
    p->is_open = !is_last;
    return STEP_DELTA;
}

/* ---- JSON ---- */

/* Counts brackets. True: c is outside of strings. */
static bool scan_byte(struct tutti_tool_parser *p, char c, const char *quotes)
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
    if (c && strchr(quotes, c))
        p->quote = c;
    else
        p->depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
    return !p->quote;
}

/* Passes on the arguments as they are written, up to the end of their object. */
static enum progress stream_json(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    size_t first = p->at;
    bool is_over = false;
    while (p->at < n_bytes && !is_over) {
        scan_byte(p, text[p->at++], "\"");
        is_over = p->depth == 0 && !p->quote;
    }
    if (p->at == first)
        return STEP_WAIT;
    p->is_open = !is_over;
    p->is_streamed = !is_over;
    p->delta = (struct tutti_tool_call_delta){
        .index = p->n_calls - 1, .arguments = text + first, .n_arguments = p->at - first, .is_last = is_over
    };
    return STEP_DELTA;
}

/* CALL_JSON */
static enum progress parse_json(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    if (p->is_streamed)
        return stream_json(p, text, n_bytes);
    if (p->is_entered) { /* its end was passed on */
        json_error_t why;
        json_t *value = json_load_wide(text + p->first, p->at - p->first, JSON_ALLOW_NUL, &why);
        bool is_json = value;
        json_decref(value);
        p->step++;
        return is_json ? STEP_GO : STEP_FAIL;
    }
    while (p->at < n_bytes && is_blank(text[p->at]))
        p->at++;
    if (p->at == n_bytes)
        return STEP_WAIT;
    if (text[p->at] != '{')
        return STEP_FAIL;
    scan_start(p);
    p->first = p->at;
    p->is_entered = p->is_streamed = true;
    return begin_call(p);
}

/* Notes a member of a call's object whose value is not the arguments. False: this is no call. */
static bool take_member(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    n_bytes = n_without_blanks(text, n_bytes);
    bool is_plain = n_bytes >= 2 && text[0] == '"' && !memchr(text, '\\', n_bytes);
    if (p->key == KEY_ID && is_plain && !p->is_reported)
        set_id(p, text + 1, n_bytes - 2);
    if (p->key != KEY_NAME || !is_plain)
        return true;
    return find_tool(p, text + 1, n_bytes - 2) && set_name(p, text + 1, n_bytes - 2);
}

/* A member that has one of three names. */
static const json_t *member(const json_t *object, const char *name, const char *other, const char *third)
{
    const json_t *value = json_object_get(object, name);
    value = value ? value : json_object_get(object, other);
    return value || !third ? value : json_object_get(object, third);
}

/* Prints the arguments of a complete object, which writes them as text. False: they are no object, nor a text
 * that contains one. */
static bool print_arguments(struct tutti_tool_parser *p, const json_t *value, const char *text,
                            size_t n_bytes)
{
    json_t *parsed = NULL;
    bool is_quoted = !p->any_arguments && json_is_string(value);
    if (is_quoted) {
        text = json_string_value(value);
        n_bytes = json_string_length(value);
        value = parsed = json_loadb(text, n_bytes, JSON_ALLOW_NUL, NULL);
    }
    bool may_be_wide = n_bytes > 0 && (p->any_arguments || *text == '{') && !parsed;
    if (may_be_wide && call_value_is_wide(text, n_bytes))
        return buf_add(&p->arguments.json, text, n_bytes);
    bool ok = value && (p->any_arguments || json_is_object(value)) &&
              json_print_to(&p->arguments.json, value, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(parsed);
    return ok;
}

/* Reports a call whose object is complete. */
static enum progress report_object(struct tutti_tool_parser *p, const char *text)
{
    const json_t *name = member(p->object, "name", "tool_name", NULL);
    const json_t *arguments = member(p->object, "arguments", "parameters", "args");
    struct buf *json = &p->arguments.json;
    bool is_tool = json_is_string(name) && find_tool(p, json_string_value(name), json_string_length(name));
    if (!is_tool || !set_name(p, json_string_value(name), json_string_length(name)))
        return STEP_FAIL;
    if (!arguments && (p->is_first || call_form_at((size_t)p->form)->is_part))
        return STEP_FAIL; /* without a mark, an object that has only a name is data */
    call_arguments_begin(&p->arguments);
    bool is_empty = !arguments || (json_is_null(arguments) && !p->any_arguments);
    if (!(is_empty ? call_arguments_end(&p->arguments)
                   : print_arguments(p, arguments, text + p->written, p->n_written)))
        return STEP_FAIL;
    enum progress progress = begin_call(p);
    p->delta.arguments = json->bytes;
    p->delta.n_arguments = json->n_bytes;
    p->delta.is_last = true;
    p->is_open = false;
    return progress;
}

/* The object is complete: it must be JSON. */
static enum progress end_object(struct tutti_tool_parser *p, const char *text)
{
    p->step++;
    json_decref(p->object);
    json_error_t why;
    p->object = json_load_wide(text + p->begin, p->at - p->begin, JSON_ALLOW_NUL, &why);
    if (!p->object)
        return STEP_FAIL;
    const json_t *id = member(p->object, "id", "tool_call_id", NULL);
    if (p->is_reported && json_is_string(id) && json_is_null(json_array_get(p->ids, p->n_calls - 1)))
        json_array_set(p->ids, p->n_calls - 1, (json_t *)(uintptr_t)id);
    return p->is_reported ? STEP_GO : report_object(p, text);
}

/* False: no member of a call has this name. An object that is the whole answer, or a list's, may be
 * anything else, and the client waits for it. */
static bool take_key(struct tutti_tool_parser *p, const char *key, size_t n_bytes)
{
    static const struct {
        const char *name;
        enum call_key key;
    } KEYS[] = { { "name", KEY_NAME },      { "arguments", KEY_ARGUMENTS }, { "parameters", KEY_ARGUMENTS },
                 { "tool_name", KEY_NAME }, /* Command-R */
                 { "args", KEY_ARGUMENTS }, /* Inkling */
                 { "id", KEY_ID },          { "tool_call_id", KEY_ID },     { "type", KEY_OTHER } };
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        p->key = KEYS[i].key;
        if (strlen(KEYS[i].name) == n_bytes && memcmp(KEYS[i].name, key, n_bytes) == 0)
            return true;
    }
    p->key = KEY_OTHER;
    return p->is_reported || !p->is_first;
}

/* A value begins. Arguments are passed on as they come if the name is known. */
static enum progress begin_value(struct tutti_tool_parser *p, char c)
{
    scan_start(p);
    p->first = p->at;
    p->place = OBJECT_IN_VALUE;
    if (p->key != KEY_ARGUMENTS || c != '{' || p->is_reported || p->name.n_bytes == 0)
        return STEP_GO;
    p->is_reported = p->is_streamed = true;
    return begin_call(p);
}

/* One byte of the object. */
static enum progress object_byte(struct tutti_tool_parser *p, const char *text)
{
    char c = text[p->at];
    switch (p->place) {
    case OBJECT_BEGIN:
        if (c != '{' && !is_blank(c))
            return STEP_FAIL;
        if (c == '{') {
            p->begin = p->at;
            p->n_written = 0;
            p->place = OBJECT_KEY;
        }
        break;
    case OBJECT_KEY:
        if (c == '}') {
            p->at++;
            return end_object(p, text);
        }
        if (c == '"') {
            p->first = p->at + 1;
            p->place = OBJECT_IN_KEY;
        } else if (c != ',' && !is_blank(c)) {
            return STEP_FAIL;
        }
        break;
    case OBJECT_IN_KEY:
        if (c == '\\' && !p->is_escaped) {
            p->is_escaped = true;
            break;
        }
        if (c == '"' && !p->is_escaped) {
            if (!take_key(p, text + p->first, p->at - p->first))
                return STEP_FAIL;
            p->place = OBJECT_COLON;
        }
        p->is_escaped = false;
        break;
    case OBJECT_COLON:
        if (c != ':' && !is_blank(c))
            return STEP_FAIL;
        p->place = c == ':' ? OBJECT_VALUE : OBJECT_COLON;
        break;
    case OBJECT_VALUE:
        if (!is_blank(c))
            return begin_value(p, c);
        break;
    case OBJECT_IN_VALUE:
        if (p->depth == 0 && !p->quote && (c == ',' || c == '}')) {
            p->place = OBJECT_KEY;
            p->is_escaped = false;
            if (p->key == KEY_ARGUMENTS) {
                p->written = p->first;
                p->n_written = n_without_blanks(text + p->first, p->at - p->first);
            }
            return take_member(p, text + p->first, p->at - p->first) ? STEP_GO : STEP_FAIL;
        }
        scan_byte(p, c, "\"");
        if (p->depth < 0)
            return STEP_FAIL;
        break;
    }
    p->at++;
    return STEP_GO;
}

/* CALL_OBJECT */
static enum progress parse_object(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    enum progress progress = STEP_GO;
    int step = p->step;
    if (p->is_streamed)
        return stream_json(p, text, n_bytes);
    if (!p->is_entered) {
        p->is_entered = true;
        p->place = OBJECT_BEGIN;
        p->is_reported = p->is_escaped = false;
        buf_truncate(&p->name, 0);
    }
    while (p->at < n_bytes && p->step == step && progress == STEP_GO)
        progress = object_byte(p, text);
    return progress == STEP_GO && p->step == step ? STEP_WAIT : progress;
}

/* ---- Python ---- */

/* Ends an argument at a comma, or at the last bracket, where it may be empty. */
static bool end_argument(struct tutti_tool_parser *p, const char *text, size_t end, bool is_last)
{
    size_t n = end - p->first;
    bool ok = (is_last && is_all_blank(text + p->first, n)) ||
              call_arguments_add_python(&p->arguments, call_parser_tool(p), text + p->first, n);
    p->first = end + 1;
    return ok && (!is_last || call_arguments_end(&p->arguments));
}

/* CALL_PYTHON */
static enum progress parse_python(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    if (!p->is_entered) {
        p->is_entered = true;
        scan_start(p);
        p->first = p->at;
        call_arguments_begin(&p->arguments);
        return begin_call(p);
    }
    while (p->at < n_bytes) {
        char c = text[p->at++];
        if (!scan_byte(p, c, "\"'"))
            continue;
        bool is_last = p->depth < 0;
        if (!is_last && !(c == ',' && p->depth == 0))
            continue;
        if ((is_last && c != ')') || !end_argument(p, text, p->at - 1, is_last))
            return STEP_FAIL;
        p->step += is_last;
        return call_parser_give(p, is_last);
    }
    return STEP_WAIT;
}

/* ---- marks and names ---- */

static enum progress parse_mark(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                                size_t n_bytes)
{
    if (!p->is_entered)
        p->searched = p->at;
    p->is_entered = true;
    while (p->searched < n_bytes && is_blank(text[p->searched]))
        p->searched++;
    size_t at = p->searched;
    if (at == n_bytes)
        return STEP_WAIT;
    enum match match = match_mark(step->text, text + at, n_bytes - at);
    if (match == MATCH_LATER)
        return STEP_WAIT;
    if (match == MATCH_YES)
        p->at = step->op == CALL_PEEK ? at : at + strlen(step->text);
    else if (step->op == CALL_MARK || step->op == CALL_CLOSE)
        return STEP_FAIL;
    bool is_jump = step->op == CALL_IF || step->op == CALL_PEEK;
    p->step = match == MATCH_YES && is_jump ? step->to : p->step + 1;
    return STEP_GO;
}

/* A name, or an id, up to one of the bytes that end it. */
static enum progress parse_name(struct tutti_tool_parser *p, const struct call_step *step, const char *text,
                                size_t n_bytes)
{
    static const char PREFIX[] = "functions.";
    while (p->at < n_bytes && is_blank(text[p->at]))
        p->at++;
    const char *name = text + p->at;
    size_t n_left = n_bytes - p->at, n = 0;
    while (n < n_left && n <= CALL_MAX_NAME && !(name[n] && strchr(step->text, name[n])))
        n++;
    if (n > CALL_MAX_NAME ||
        (step->op == CALL_NAME && !call_tool_may_be(p->tools, name, n_without_blanks(name, n))))
        return STEP_FAIL;
    if (n == n_left)
        return STEP_WAIT;
    p->at += n;
    p->step++;
    n = n_without_blanks(name, n);
    if (step->op == CALL_ID || step->op == CALL_NAME_ID)
        set_id(p, name, n);
    if (step->op == CALL_ID)
        return n > 0 ? STEP_GO : STEP_FAIL;
    if (step->op == CALL_NAME_ID) {
        size_t n_name = n;
        while (n_name > 0 && name[n_name - 1] != ':')
            n_name--;
        n = n_name > 0 ? n_name - 1 : n;
        if (n >= sizeof PREFIX - 1 && memcmp(name, PREFIX, sizeof PREFIX - 1) == 0) {
            name += sizeof PREFIX - 1;
            n -= sizeof PREFIX - 1;
        }
    }
    return find_tool(p, name, n) && set_name(p, name, n) ? STEP_GO : STEP_FAIL;
}

/* ---- forms ---- */

static bool is_allowed(const struct tutti_tool_parser *p, size_t form)
{
    return p->forms >> form & 1;
}

/* Whether the form may begin at this place. */
static enum match match_opening(const struct call_form *form, const char *text, size_t n_bytes,
                                size_t *n_mark)
{
    enum match found = MATCH_NO;
    for (size_t i = 0; i < CALL_MAX_OPENINGS && form->openings[i]; i++) {
        enum match match = match_mark(form->openings[i], text, n_bytes);
        *n_mark = form->is_part ? 0 : strlen(form->openings[i]);
        if (match == MATCH_YES)
            return match;
        found = match == MATCH_LATER ? match : found;
    }
    return found;
}

static void enter_form(struct tutti_tool_parser *p, size_t form, size_t at)
{
    p->state = PARSER_FORM;
    p->form = (int)form;
    p->step = 0;
    p->at = at;
    p->has_begun = p->is_entered = p->is_streamed = false;
    json_decref(p->id);
    p->id = NULL;
}

/* Begins the next form, from row first on, that may begin at p->mark. */
static enum match find_form(struct tutti_tool_parser *p, size_t first, const char *text, size_t n_bytes)
{
    for (size_t i = first; i < call_forms_count(); i++) {
        const struct call_form *form = call_form_at(i);
        size_t n_mark = 0;
        if (!is_allowed(p, i) || !form->openings[0] != p->is_first)
            continue;
        enum match match = p->is_first ? MATCH_YES
                                       : match_opening(form, text + p->mark, n_bytes - p->mark, &n_mark);
        if (match == MATCH_YES)
            enter_form(p, i, p->mark + n_mark);
        if (match != MATCH_NO)
            return match;
    }
    return MATCH_NO;
}

static void find_starts(struct tutti_tool_parser *p)
{
    size_t n = 0;
    for (size_t i = 0; i < call_forms_count(); i++)
        for (size_t k = 0; k < CALL_MAX_OPENINGS && is_allowed(p, i) && call_form_at(i)->openings[k]; k++) {
            char c = *call_form_at(i)->openings[k];
            assert(n + 1 < sizeof p->starts);
            if (!strchr(p->starts, c))
                p->starts[n++] = c;
        }
}

/* Finds the next opening. */
static enum progress search_opening(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    for (; p->at < n_bytes; p->at++) {
        if (!text[p->at] || !strchr(p->starts, text[p->at]))
            continue;
        p->mark = p->at;
        enum match match = find_form(p, 0, text, n_bytes);
        if (match != MATCH_NO)
            return match == MATCH_YES ? STEP_GO : STEP_WAIT;
    }
    return STEP_WAIT;
}

/* The text is not of the current form. */
static void leave_form(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    size_t end = p->at;
    p->is_open = false;
    if (p->has_begun) {
        p->state = PARSER_NONE;
        return;
    }
    p->at = p->mark;
    if ((p->is_first || end - p->mark <= MAX_RETRY) &&
        find_form(p, (size_t)p->form + 1, text, n_bytes) == MATCH_YES)
        return;
    p->state = PARSER_SEARCH;
    p->at = p->is_first ? 0 : end - p->mark <= MAX_RETRY ? p->mark + 1 : end;
    p->is_first = false;
}

static enum progress take_step(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    const struct call_step *step = &call_form_at((size_t)p->form)->steps[p->step];
    switch (step->op) {
    case CALL_MARK:
    case CALL_CLOSE:
    case CALL_OPTION:
    case CALL_IF:
    case CALL_PEEK:
        return parse_mark(p, step, text, n_bytes);
    case CALL_GOTO:
        p->step = step->to;
        return STEP_GO;
    case CALL_NAME:
    case CALL_NAME_ID:
    case CALL_ID:
        return parse_name(p, step, text, n_bytes);
    case CALL_OBJECT:
        return parse_object(p, text, n_bytes);
    case CALL_JSON:
        return parse_json(p, text, n_bytes);
    case CALL_PYTHON:
        return parse_python(p, text, n_bytes);
    case CALL_PAIRS:
        p->step++;
        call_arguments_begin(&p->arguments);
        return begin_call(p);
    case CALL_SKIP:
    case CALL_KEY:
    case CALL_ATTRIBUTE:
        return call_parse_until(p, step, text, n_bytes);
    case CALL_VALUE:
    case CALL_LINES:
    case CALL_TEXT:
    case CALL_QUOTED:
        return call_parse_value(p, step, text, n_bytes);
    case CALL_DICT:
        return call_parse_dict(p, step, text, n_bytes);
    case CALL_ELEMENT:
        return call_parse_element(p, step, text, n_bytes);
    case CALL_PAIRS_OVER:
        p->step++;
        return call_arguments_end(&p->arguments) ? call_parser_give(p, true) : STEP_FAIL;
    case CALL_DONE:
        p->state = PARSER_SEARCH;
        p->is_first = false;
        return STEP_GO;
    case CALL_LAST:
        p->state = PARSER_TAIL;
        return STEP_GO;
    }
    return STEP_FAIL;
}

/* Parses up to the next delta. False: none until the answer grows. */
static bool parser_advance(struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    enum progress progress = STEP_GO;
    if (n_bytes < p->n_seen)
        return false;
    p->n_seen = n_bytes;
    buf_truncate(&p->arguments.json, 0); /* the last delta's */
    while (progress == STEP_GO && p->state <= PARSER_FORM) {
        int step = p->step;
        if (p->is_first && p->state == PARSER_SEARCH) { /* the answer's beginning */
            while (p->mark < n_bytes && is_blank(text[p->mark]))
                p->mark++;
            if (p->mark == n_bytes)
                return false;
            p->form = -1;
            leave_form(p, text, n_bytes); /* finds the first form */
            continue;
        }
        progress = p->state == PARSER_SEARCH ? search_opening(p, text, n_bytes) : take_step(p, text, n_bytes);
        if (progress == STEP_FAIL) {
            leave_form(p, text, n_bytes);
            progress = STEP_GO;
        } else if (p->step != step) {
            p->is_entered = false;
        }
    }
    return progress == STEP_DELTA;
}

/* ---- the interface ---- */

/* Takes over tools, also on failure. */
static enum tutti_status parser_create(tutti_tool_parser **out, uint64_t forms, json_t *tools,
                                       bool any_arguments, struct tutti_error *err)
{
    tutti_tool_parser *p = calloc(1, sizeof *p);
    json_t *ids = json_array();
    if (!p || !ids) {
        free(p);
        json_decref(ids);
        json_decref(tools);
        return error_set(err, TUTTI_E_MEMORY, "out of memory for a parser of tool calls");
    }
    *p = (tutti_tool_parser){
        .tools = tools, .forms = forms, .any_arguments = any_arguments, .is_first = true, .ids = ids
    };
    find_starts(p);
    *out = p;
    return TUTTI_OK;
}

enum tutti_status tutti_tool_parser_new(tutti_tool_parser **out, const char *form, const char *tools,
                                        bool any_arguments, struct tutti_error *err)
{
    if (!out || !tools)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_tool_parser_new: out and tools must not be NULL");
    uint64_t forms = call_forms_find(form);
    if (forms == 0)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_tool_parser_new: no form of tool calls is named %.64s",
                         form);
    json_error_t why;
    json_t *list = json_load_wide(tools, strlen(tools), JSON_ALLOW_NUL, &why);
    if (!json_is_array(list)) {
        json_decref(list);
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_tool_parser_new: tools must be a list in JSON");
    }
    return parser_create(out, forms, list, any_arguments, err);
}

enum tutti_status tutti_tool_parser_clone(tutti_tool_parser **out, const tutti_tool_parser *parser,
                                          struct tutti_error *err)
{
    if (!out || !parser)
        return error_set(err, TUTTI_E_ARGUMENT, "tutti_tool_parser_clone: out and parser must not be NULL");
    return parser_create(out, parser->forms, json_incref(parser->tools), parser->any_arguments, err);
}

void tutti_tool_parser_free(tutti_tool_parser *p)
{
    if (!p)
        return;
    call_arguments_clear(&p->arguments);
    buf_clear(&p->name);
    json_decref(p->tools);
    json_decref(p->ids);
    json_decref(p->id);
    json_decref(p->object);
    free(p);
}

bool tutti_tool_parser_next(tutti_tool_parser *p, const char *text, size_t n_bytes,
                            struct tutti_tool_call_delta *delta)
{
    bool has_delta = p->is_pending || parser_advance(p, text, n_bytes);
    p->is_pending = false;
    if (has_delta)
        *delta = p->delta;
    return has_delta;
}

const char *tutti_tool_parser_call_id(const tutti_tool_parser *p, size_t index)
{
    return json_string_value(json_array_get(p->ids, index));
}

/* Whether the answer is nothing but calls, with any text before those with an opening. */
static bool is_complete(const struct tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    if (p->n_calls == 0 || p->is_open)
        return false;
    bool is_rest_blank = is_all_blank(text + p->at, n_bytes - p->at);
    if (p->state == PARSER_SEARCH)
        return true;
    if (p->state != PARSER_FORM)
        return p->state == PARSER_TAIL && is_rest_blank;
    /* Marks that only end a call may be missing at the end of an answer. */
    const struct call_step *step = &call_form_at((size_t)p->form)->steps[p->step];
    while (step->op == CALL_CLOSE || step->op == CALL_OPTION || step->op == CALL_IF || step->op == CALL_PEEK)
        step++;
    return is_rest_blank && step->op >= CALL_DONE;
}

bool tutti_tool_parser_is_complete(const tutti_tool_parser *p, const char *text, size_t n_bytes,
                                   size_t *n_content)
{
    bool ok = is_complete(p, text, n_bytes);
    *n_content = ok ? n_without_blanks(text, p->n_content) : n_bytes;
    return ok;
}

size_t tutti_tool_parser_content(tutti_tool_parser *p, const char *text, size_t n_bytes)
{
    if (p->n_calls == 0 && !p->is_pending)
        p->is_pending = parser_advance(p, text, n_bytes);
    size_t n = p->n_calls > 0                              ? p->n_content
               : p->state == PARSER_FORM                   ? p->mark
               : p->state == PARSER_SEARCH && !p->is_first ? p->at
                                                           : 0;
    n = n < n_bytes ? n : n_bytes;
    for (; p->scanned < n; p->scanned++)
        if (!is_blank(text[p->scanned]))
            p->n_solid = p->scanned + 1;
    return p->n_solid < n ? p->n_solid : n;
}
