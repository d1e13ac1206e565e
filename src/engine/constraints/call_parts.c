#include "engine/constraints/call_parts.h"

#include "base/json/json_print.h"
#include "base/utf8.h"
#include "model/chat/calls/call_values.h"
#include "model/chat/reasoning.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256 }; /* bytes of a name that the parser takes */

/* ---- the writer ---- */

static bool is_mentioned(const struct call_writer *w, const struct reasoning_form *r, struct piece piece)
{
    const char *mark;
    for (size_t i = 0; r && (mark = reasoning_form_mark(r, i)); i++)
        if (memmem(mark, strlen(mark), piece.bytes, piece.n_bytes))
            return true;
    return call_form_mentions(w->rows, piece.bytes, piece.n_bytes);
}

static bool is_among(int32_t id, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

enum tutti_status call_writer_init(struct call_writer *w, const struct chat_marks *marks,
                                   const struct tokenizer *tok, const int32_t *stop_ids, size_t n_stop_ids,
                                   struct tutti_error *err)
{
    const struct reasoning_form *r = marks->reasoning;
    struct call_token *tokens = NULL;
    size_t n = 0, room = 0;
    const struct call_form *form = marks->written ? marks->written : call_form_written(NULL);
    *w = (struct call_writer){ .form = form,
                               .rows = call_forms_find(form->name),
                               .has_channels = r && r->close && !r->open,
                               .ends_answers = r && (r->answer_ends[0] || r->again) };
    for (int32_t id = 0; id < tokenizer_n_pieces(tok); id++) {
        struct piece piece = tokenizer_piece(tok, id);
        if (!token_trie_has_code(piece) || piece.n_bytes < 2 || !is_mentioned(w, r, piece))
            continue;
        if (n == room) {
            room = room ? 2 * room : 16;
            struct call_token *more = realloc(tokens, room * sizeof *more);
            if (!more) {
                free(tokens);
                return error_set(err, TUTTI_E_MEMORY, "marks of tool calls: out of memory");
            }
            tokens = more;
        }
        tokens[n++] = (struct call_token){ piece.bytes, piece.n_bytes, id,
                                           is_among(id, stop_ids, n_stop_ids) };
    }
    w->tokens = tokens;
    w->n_tokens = n;
    return TUTTI_OK;
}

void call_writer_clear(struct call_writer *w)
{
    free(w->tokens);
    *w = (struct call_writer){ 0 };
}

/* ---- errors ---- */

bool call_parts_are_ok(const struct call_parts *p)
{
    return p->status == TUTTI_OK && (!p->values || p->values->status == TUTTI_OK) &&
           (!p->texts || p->texts->status == TUTTI_OK) && !p->s->is_full;
}

int32_t call_parts_fail(struct call_parts *p, const char *format, ...)
{
    char text[256];
    va_list args;
    if (!call_parts_are_ok(p))
        return -1;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->status = error_set_param(p->err, TUTTI_E_ARGUMENT, "tools", "%s", text);
    return -1;
}

static int32_t call_parts_no_memory(struct call_parts *p)
{
    if (call_parts_are_ok(p))
        p->status = error_set(p->err, TUTTI_E_MEMORY, "a grammar of tool calls: out of memory");
    return -1;
}

static struct call_tool *tool_at(struct call_parts *p, int tool)
{
    return &p->tools[tool - 1];
}

/* ---- marks ---- */

static const struct call_token *token_at(const struct call_writer *w, const char *text)
{
    const struct call_token *longest = NULL;
    for (size_t i = 0; i < w->n_tokens; i++)
        if (strncmp(text, w->tokens[i].text, w->tokens[i].n_bytes) == 0 &&
            (!longest || w->tokens[i].n_bytes > longest->n_bytes))
            longest = &w->tokens[i];
    return longest;
}

int32_t call_parts_mark(struct call_parts *p, const char *text)
{
    struct buf bytes = { 0 };
    bool ok = true;
    while (*text && ok) {
        const struct call_token *token = token_at(p->writer, text);
        char code[TOKEN_CODE_BYTES];
        if (token) {
            token_trie_code(token->id, code);
            ok = buf_add(&bytes, code, sizeof code);
            text += token->n_bytes;
        } else {
            ok = buf_add(&bytes, text++, 1);
        }
    }
    int32_t node = ok ? syntax_bytes(p->s, bytes.bytes, bytes.n_bytes) : call_parts_no_memory(p);
    buf_clear(&bytes);
    return node;
}

bool call_parts_lacks_token(const struct call_parts *p, const char *text)
{
    return !token_at(p->writer, text);
}

bool call_parts_is_stop(const struct call_parts *p, const char *text)
{
    const struct call_token *token = token_at(p->writer, text);
    return token && token->ends && token->n_bytes == strlen(text);
}

static int32_t pattern(struct call_parts *p, const char *text)
{
    int32_t node = -1;
    return schema_raw(p->texts, text, &node);
}

int32_t call_parts_blanks(struct call_parts *p)
{
    if (p->blanks < 0)
        p->blanks = schema_share(p->texts, pattern(p, "| |\n[ \t]{0,8}"));
    return p->blanks;
}

int32_t call_parts_message(struct call_parts *p)
{
    return pattern(p, "([\\t\\n\\r -;=-\\u{10FFFF}]|<+[\\t\\n\\r -;=-{}-\\u{10FFFF}])*");
}

int32_t call_parts_id(struct call_parts *p)
{
    return pattern(p, "[A-Za-z0-9]{9}");
}

static int32_t number(struct call_parts *p)
{
    return pattern(p, "0|[1-9][0-9]{0,2}");
}

/* ---- names ---- */

bool call_parts_may_call(const struct call_parts *p, int tool)
{
    return p->tools[tool - 1].is_wanted;
}

/* Whether the parser reads the name as it is written before one of these bytes. */
static bool is_writable(const char *name, const char *ends)
{
    size_t n = strlen(name);
    return n > 0 && n <= MAX_NAME && !strpbrk(name, ends) && !strpbrk(name, " \t\r\n");
}

int32_t call_parts_name(struct call_parts *p, int tool, const struct call_step *step)
{
    const char *name = tool_at(p, tool)->name;
    struct syntax *s = p->s;
    if (!is_writable(name, step->text))
        return call_parts_fail(
            p, "the name of the tool %.64s cannot be written in this model's form of calls", name);
    if (step->op != CALL_NAME_ID)
        return syntax_text(s, name);
    return SYNTAX_SEQ(s, syntax_text(s, "functions."), syntax_text(s, name), syntax_text(s, ":"), number(p));
}

static int32_t quoted_name(struct call_parts *p, const char *name)
{
    json_t *text = json_string(name);
    char *json = text ? json_print(text, JSON_ENCODE_ANY) : NULL;
    int32_t node = json ? syntax_bytes(p->s, json + 1, strlen(json) - 2) : call_parts_no_memory(p);
    json_decref(text);
    free(json);
    return node;
}

/* ---- arguments as one object ---- */

/* Lets the readers look up references in the schema of a tool. */
static bool begin_tool(struct call_parts *p, int number)
{
    struct call_tool *tool = tool_at(p, number);
    if (p->tool == number || !call_parts_are_ok(p))
        return call_parts_are_ok(p);
    p->tool = number;
    const json_t *parameters = json_object_get(tool->function, "parameters");
    parameters = json_is_null(parameters) || tool->is_loose ? NULL : parameters;
    const json_t *schema = schema_begin_tool(p->values, parameters);
    (void)schema_begin_tool(p->texts, parameters);
    tool->schema = tool->schema ? tool->schema : schema;
    return call_parts_are_ok(p);
}

int32_t call_parts_json(struct call_parts *p, int number)
{
    struct call_tool *tool = tool_at(p, number);
    if (tool->json < 0 && begin_tool(p, number))
        tool->json = schema_argument_value(p->values, tool->schema);
    return tool->json;
}

int32_t call_parts_object(struct call_parts *p, int tool, const char *published)
{
    struct syntax *s = p->s;
    struct ids nodes = { 0 };
    bool ok = true;
    for (const char *at = published; *at && ok; at++) {
        bool is_open = *at == '{', is_close = *at == '}';
        if (is_close)
            ok = ids_add(&nodes, call_parts_blanks(p));
        int32_t node = *at == '@'   ? quoted_name(p, tool_at(p, tool)->name)
                       : *at == '$' ? call_parts_json(p, tool)
                       : *at == '#' ? number(p)
                       : *at == ' ' ? call_parts_blanks(p)
                                    : syntax_bytes(s, at, 1);
        ok = ok && ids_add(&nodes, node) && (!is_open || ids_add(&nodes, call_parts_blanks(p)));
    }
    int32_t node = ok ? syntax_seq(s, nodes.ids, nodes.n) : call_parts_no_memory(p);
    ids_clear(&nodes);
    return node;
}

/* ---- arguments one by one ---- */

static bool read_ways(struct call_parts *p, int number)
{
    struct call_tool *tool = tool_at(p, number);
    if (tool->ways || !begin_tool(p, number))
        return call_parts_are_ok(p);
    tool->ways = schema_list_arguments(p->values, tool->schema, &tool->n_ways);
    if (!tool->ways)
        return false;
    tool->values = calloc(tool->n_ways + 1, sizeof *tool->values);
    bool ok = tool->values;
    for (size_t i = 0; ok && i < tool->n_ways; i++) {
        size_t n = tool->ways[i].n + 1;
        tool->values[i] = malloc(n * sizeof **tool->values);
        ok = tool->values[i];
        for (size_t k = 0; ok && k < n; k++)
            tool->values[i][k] = -1;
    }
    return ok || call_parts_no_memory(p) >= 0;
}

size_t call_parts_n_ways(struct call_parts *p, int tool)
{
    return read_ways(p, tool) ? tool_at(p, tool)->n_ways : 0;
}

const struct schema_arguments *call_parts_way(struct call_parts *p, int tool, int way)
{
    return read_ways(p, tool) ? &tool_at(p, tool)->ways[way - 1] : NULL;
}

static bool is_identifier(const char *name)
{
    static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_",
                      DIGITS[] = "0123456789";
    size_t n = strspn(name, LETTERS);
    while (n > 0 && name[n] && (strchr(LETTERS, name[n]) || strchr(DIGITS, name[n])))
        n++;
    return n > 0 && !name[n];
}

/* Whether the parser reads an argument's name as it is written. */
static bool is_writable_key(const char *name, const char *end)
{
    static const char BLANKS[] = " \t\r\n";
    size_t n = strlen(name);
    if (end[0] == '=')
        return is_identifier(name);
    return n > 0 && n <= MAX_NAME && !strstr(name, end) && !strchr(BLANKS, name[0]) &&
           !strchr(BLANKS, name[n - 1]);
}

int32_t call_parts_key(struct call_parts *p, int tool, int way, int argument, const char *end)
{
    const struct schema_arguments *arguments = call_parts_way(p, tool, way);
    if (!arguments)
        return -1;
    const char *name = arguments->list[argument].name;
    if (!is_writable_key(name, end))
        return call_parts_fail(
            p, "tool %.64s: the argument \"%.64s\" cannot be written in this model's form of calls",
            tool_at(p, tool)->name, name);
    return syntax_text(p->s, name);
}

int32_t call_parts_further_key(struct call_parts *p, int tool, int way, bool is_python)
{
    const struct schema_arguments *arguments = call_parts_way(p, tool, way);
    return arguments && begin_tool(p, tool) ? schema_argument_name(p->texts, arguments, is_python) : -1;
}

/* The schema of an argument; NULL: any value. */
static const json_t *schema_of(const struct schema_arguments *way, int argument)
{
    const json_t *schema = (size_t)argument < way->n ? way->list[argument].schema : way->further;
    return json_is_true(schema) ? NULL : schema;
}

static unsigned types_of(struct call_parts *p, int tool, const struct schema_arguments *way, int argument)
{
    if ((size_t)argument >= way->n)
        return CALL_TYPE_OTHER;
    return call_value_types(json_object_get(tool_at(p, tool)->function, "parameters"),
                            way->list[argument].name);
}

/* The value, the line breaks around it where they are published, and the mark that ends it. */
static int32_t with_end(struct call_parts *p, int32_t value, const struct call_step *step)
{
    struct syntax *s = p->s;
    int32_t end = call_parts_mark(p, step->text);
    if (step->op != CALL_LINES || !step->to)
        return SYNTAX_SEQ(s, value, end);
    return SYNTAX_SEQ(s, syntax_text(s, "\n"), value, syntax_text(s, "\n"), end);
}

int32_t call_parts_value(struct call_parts *p, int tool, int way, int argument, const struct call_step *step)
{
    const struct schema_arguments *arguments = call_parts_way(p, tool, way);
    if (!arguments || !begin_tool(p, tool))
        return -1;
    const json_t *schema = schema_of(arguments, argument);
    unsigned types = types_of(p, tool, arguments, argument);
    bool is_text = types & CALL_TYPE_TEXT && !(types & CALL_TYPE_OTHER), may_be_null = types & CALL_TYPE_NULL;
    /* A mark before the value that only parsers take would be one within it, too. */
    bool has_other = step > p->writer->form->steps && step[-1].op == CALL_IF &&
                     step[-1].writing == WRITE_NEVER;
    const struct schema_text text = { .marks = { step->text, has_other ? step[-1].text : step->next[0],
                                                 has_other ? NULL : step->next[1] },
                                      .may_be_null = may_be_null && step->op != CALL_TEXT };
    if (tool_at(p, tool)->is_loose && (step->op == CALL_TEXT || !p->has_text))
        return with_end(p, schema_argument_text(p->texts, NULL, &text), step);
    if (!is_text)
        return step->op == CALL_TEXT ? CALL_PARTS_NO_VALUE
                                     : with_end(p, schema_argument_value(p->values, schema), step);
    if (step->op == CALL_TEXT || !p->has_text)
        return with_end(p, schema_argument_text(p->texts, schema, &text), step);
    /* Where texts are marked as such, only null is none. */
    if (!may_be_null)
        return CALL_PARTS_NO_VALUE;
    return with_end(p, schema_argument_value(p->values, schema_null_of(p->values, schema)), step);
}

int32_t call_parts_python_value(struct call_parts *p, int tool, int way, int argument)
{
    const struct schema_arguments *arguments = call_parts_way(p, tool, way);
    if (!arguments || !begin_tool(p, tool))
        return -1;
    int32_t *value = &tool_at(p, tool)->values[way - 1][argument];
    if (*value < 0)
        *value = schema_argument_value(p->values, schema_of(arguments, argument));
    return *value;
}

/* ---- the request ---- */

static bool has_op(const struct call_form *form, enum call_op op)
{
    for (size_t i = 0; i < form->n_steps; i++)
        if (form->steps[i].op == op)
            return true;
    return false;
}

static enum schema_dialect dialect_of(const struct call_writer *w)
{
    if (has_op(w->form, CALL_PYTHON))
        return SCHEMA_PYTHON;
    return has_op(w->form, CALL_KEY) || w->has_channels || w->ends_answers ? SCHEMA_JSON_IN_MARKS
                                                                           : SCHEMA_JSON;
}

static bool read_tools(struct call_parts *p, bool only_strict)
{
    const json_t *list = json_object_get(p->spec, "tools"), *tool;
    const char *only = json_string_value(json_object_get(p->spec, "name"));
    size_t n = json_array_size(list), i;
    bool has_any = false;
    p->tools = n > 0 && n <= LIMIT_CALL_TOOLS ? calloc(n, sizeof *p->tools) : NULL;
    if (!p->tools)
        return n == 0 || n > LIMIT_CALL_TOOLS
                   ? call_parts_fail(p, "%zu tools, expected 1 to %d", n, LIMIT_CALL_TOOLS) >= 0
                   : call_parts_no_memory(p) >= 0;
    json_array_foreach(list, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        function = function ? function : tool;
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name)
            return call_parts_fail(p, "a tool has no name") >= 0;
        p->tools[p->n_tools++] = (struct call_tool){ .function = function,
                                                     .name = name,
                                                     .is_wanted = !only || strcmp(only, name) == 0,
                                                     .is_loose = only_strict && !json_is_true(json_object_get(
                                                                                    function, "strict")),
                                                     .json = -1 };
        has_any |= p->tools[i].is_wanted;
    }
    return has_any || call_parts_fail(p, "no tool is named %.64s", only) >= 0;
}

bool call_parts_init(struct call_parts *p, const struct call_writer *w, const char *text, size_t n_bytes,
                     bool only_strict, struct syntax *s, struct tutti_error *err)
{
    *p = (struct call_parts){
        .writer = w, .s = s, .err = err, .blanks = -1, .has_text = has_op(w->form, CALL_TEXT)
    };
    p->values = schema_reader_new(s, err);
    p->texts = schema_reader_new(s, err);
    if (!p->values || !p->texts)
        return call_parts_no_memory(p) >= 0;
    p->values->dialect = dialect_of(w);
    p->texts->is_raw = true;
    p->spec = schema_parse(p->values, text, n_bytes);
    if (!p->spec)
        return false;
    p->is_parallel = json_is_true(json_object_get(p->spec, "parallel"));
    p->has_reasoning = !json_is_false(json_object_get(p->spec, "reasoning"));
    return read_tools(p, only_strict);
}

/* The first error of the readers, with the tool that it is about. */
static enum tutti_status explain(struct call_parts *p, enum tutti_status st)
{
    if (p->err && st == TUTTI_E_ARGUMENT && p->status == TUTTI_OK) {
        if (p->tool > 0)
            error_prefix(p->err, "tool %.64s", tool_at(p, p->tool)->name);
        snprintf(p->err->param, sizeof p->err->param, "tools");
    }
    return p->status != TUTTI_OK ? p->status : st;
}

enum tutti_status call_parts_finish(struct call_parts *p)
{
    enum tutti_status st = p->status, of_values = TUTTI_OK, of_texts = TUTTI_OK;
    if (p->values)
        of_values = schema_finish(p->values, -1, false);
    if (p->texts)
        of_texts = schema_finish(p->texts, -1, false);
    st = explain(p, st != TUTTI_OK ? st : of_values != TUTTI_OK ? of_values : of_texts);
    for (int i = 0; i < p->n_tools; i++) {
        for (size_t k = 0; p->tools[i].values && k < p->tools[i].n_ways; k++)
            free(p->tools[i].values[k]);
        free(p->tools[i].values);
        schema_free_arguments(p->tools[i].ways, p->tools[i].n_ways);
    }
    free(p->tools);
    json_decref(p->spec);
    return st;
}
