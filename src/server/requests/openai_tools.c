/* tools and tool_choice: which functions an answer may call, and which it must.
 *
 * An answer that must be a call is constrained by a grammar of calls in the model's form. */
#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "server/requests/openai_request.h"

#include <stdlib.h>
#include <string.h>

/* Constrains the answer by a grammar of calls in the model's form. name NULL: of any tool. */
static enum tutti_status constrain(struct api_request *req, enum tutti_grammar_kind kind, const char *name,
                                   const json_t *tools, struct tutti_error *err)
{
    bool is_parallel = !name && !req->one_tool_call;
    json_t *grammar = json_pack("{s:O, s:b, s:b}", "tools", tools, "parallel", is_parallel, "reasoning",
                                req->max_reasoning_tokens != TUTTI_NO_REASONING);
    bool ok = grammar && (!name || json_object_set_new(grammar, "name", json_string(name)) == 0);
    char *text = ok ? json_print(grammar, JSON_COMPACT) : NULL;
    json_decref(grammar);
    if (!text)
        return error_out_of_memory("tools", err);
    free(req->schema);
    req->schema = text;
    req->grammar_kind = kind;
    req->grammar = text;
    req->n_grammar_bytes = strlen(text);
    return TUTTI_OK;
}

/* An answer that must be a call. */
static enum tutti_status force(struct api_request *req, enum api_forced forced, const char *name,
                               const json_t *tools, struct tutti_error *err)
{
    req->forced = forced;
    return constrain(req, TUTTI_GRAMMAR_TOOL_CALLS, name, tools, err);
}

static bool has_strict(const json_t *tools)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict")))
            return true;
    }
    return false;
}

/* An answer that may have calls: those of strict tools have valid arguments. With a grammar of its own the
 * answer has no calls. */
static enum tutti_status allow_calls(struct api_request *req, const json_t *tools, struct tutti_error *err)
{
    if (req->grammar_kind != TUTTI_GRAMMAR_NONE || !has_strict(tools))
        return TUTTI_OK;
    if (req->n_beams > 1)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tools",
                               "a strict tool cannot be combined with num_beams");
    return constrain(req, TUTTI_GRAMMAR_TEXT_OR_CALLS, NULL, tools, err);
}

/* ---- tool_choice ---- */

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

/* The tools of a list, or the entries of a list of names in the same format, by name. NULL: out of memory. */
static json_t *by_name(const json_t *list)
{
    json_t *out = json_object();
    size_t i;
    const json_t *entry;
    int failed = out ? 0 : -1;
    json_array_foreach(list, i, entry)
    {
        const char *name = name_of(entry);
        if (name)
            failed |= json_object_set(out, name, (json_t *)(uintptr_t)entry);
    }
    if (!failed)
        return out;
    json_decref(out);
    return NULL;
}

static enum tutti_status fail_unknown(const char *name, struct tutti_error *err)
{
    return error_set_param(err, TUTTI_E_ARGUMENT, "tool_choice",
                           "tool_choice names %.64s, which is not in tools", name);
}

/* Leaves only the chosen tools of the request, all of which must be known. */
static enum tutti_status keep_tools(struct api_request *req, const json_t *names, const json_t *known,
                                    const json_t *chosen, struct tutti_error *err)
{
    const json_t *tools = json_object_get(req->root, "tools"), *entry;
    size_t i;
    json_array_foreach(names, i, entry)
    {
        const char *name = name_of(entry);
        if (!name || !json_object_get(known, name))
            return fail_unknown(name ? name : "none", err);
    }
    json_t *kept = json_array();
    int failed = kept ? 0 : -1;
    json_array_foreach(tools, i, entry)
    {
        if (json_object_get(chosen, name_of(entry)))
            failed |= json_array_append(kept, json_array_get(tools, i));
    }
    failed |= json_object_set_new(req->root, "tools", kept);
    return failed ? error_out_of_memory("tools", err) : TUTTI_OK;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function",
 * "function": {"name": "..."}}]}}: the request is treated as if it had only these tools, and the
 * mode as its tool_choice. */
static enum tutti_status narrow_tools(struct api_request *req, struct tutti_error *err)
{
    const json_t *tools = json_object_get(req->root, "tools"),
                 *choice = json_object_get(req->root, "tool_choice");
    const json_t *allowed = json_object_get(choice, "allowed_tools"), *names, *mode;
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (!type || strcmp(type, "allowed_tools"))
        return TUTTI_OK;
    names = json_object_get(allowed, "tools");
    mode = json_object_get(allowed, "mode");
    bool is_known = json_is_string(mode) && (!strcmp(json_string_value(mode), "auto") ||
                                             !strcmp(json_string_value(mode), "required"));
    if (!is_known || json_array_size(names) == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tool_choice",
                               "tool_choice.allowed_tools must have a mode, \"auto\" or \"required\", and a "
                               "list of tools");
    json_t *known = by_name(tools), *chosen = by_name(names);
    enum tutti_status st = known && chosen ? keep_tools(req, names, known, chosen, err)
                                           : error_out_of_memory("tools", err);
    json_decref(known);
    json_decref(chosen);
    if (st == TUTTI_OK && json_object_set(req->root, "tool_choice", json_object_get(allowed, "mode")) != 0)
        st = error_out_of_memory("tools", err);
    return st;
}

/* {"type": "function", "function": {"name": "..."}} */
static enum tutti_status read_named(struct api_request *req, const json_t *choice, const json_t *tools,
                                    struct tutti_error *err)
{
    const char *type = json_string_value(json_object_get(choice, "type")), *name = name_of(choice);
    if (!type || strcmp(type, "function") || !name)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "tool_choice",
            "tool_choice must be \"auto\", \"none\", \"required\", {\"type\": \"function\", "
            "\"function\": {\"name\": ...}} or {\"type\": \"allowed_tools\", \"allowed_tools\": ...}");
    json_t *known = by_name(tools);
    enum tutti_status st = !known                         ? error_out_of_memory("tools", err)
                           : json_object_get(known, name) ? force(req, API_FORCED_NAMED, name, tools, err)
                                                          : fail_unknown(name, err);
    json_decref(known);
    return st;
}

static enum tutti_status read_tool_choice(struct api_request *req, const json_t *choice, const json_t *tools,
                                          struct tutti_error *err)
{
    const char *word = json_string_value(choice);
    if (word && !strcmp(word, "none"))
        return TUTTI_OK;
    if (!choice || json_is_null(choice) || (word && !strcmp(word, "auto")))
        return allow_calls(req, tools, err);
    bool is_required = word && !strcmp(word, "required");
    if (json_array_size(tools) == 0 && (is_required || json_is_object(choice)))
        return error_set_param(err, TUTTI_E_ARGUMENT, "tool_choice",
                               "tool_choice is only allowed with tools that are functions");
    /* response_format applies to answers without a call. */
    bool has_grammar = req->grammar_field && strcmp(req->grammar_field, "response_format") != 0;
    if (req->n_beams > 1 || has_grammar)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tool_choice",
                               "a required call cannot be combined with %s",
                               req->n_beams > 1 ? "num_beams" : req->grammar_field);
    if (is_required)
        return force(req, API_FORCED_ANY, NULL, tools, err);
    return read_named(req, choice, tools, err);
}

/* ---- variables of chat templates, other than messages and tools ---- */

/* Fields of a request that are variables of templates, or options of rendering (struct
 * tutti_request). */
static const struct {
    const char *name;
    enum json_kind kind;
} TEMPLATE_FIELDS[] = {
    { "add_generation_prompt", JSON_KIND_BOOL },
    { "continue_final_message", JSON_KIND_BOOL },
    { "documents", JSON_KIND_LIST },
    { "enable_thinking", JSON_KIND_BOOL },
    { "reasoning_effort", JSON_KIND_STRING },
};

/* Variables of a template that chat_template_kwargs cannot set, and arguments of apply_chat_template() that are no
 * variables. */
static enum tutti_status check_variables(const json_t *kwargs, struct tutti_error *err)
{
    static const struct {
        const char *name, *hint;
    } REFUSED[] = { { "messages", "it is a field of the request" },
                    { "tools", "it is a field of the request" },
                    { "chat_template", "the server chooses it with --chat-format" },
                    { "tokenize", "use /tokenize" } };
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++)
        if (json_field(kwargs, REFUSED[i].name))
            return error_set_param(err, TUTTI_E_ARGUMENT, "chat_template_kwargs",
                                   "chat_template_kwargs.%s is not supported: %s", REFUSED[i].name,
                                   REFUSED[i].hint);
    return TUTTI_OK;
}

static enum tutti_status read_template_fields(struct api_request *req, struct tutti_error *err)
{
    const json_t *kwargs = json_field(req->root, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs))
        return json_wrong_type("chat_template_kwargs", "an object", kwargs, err);
    enum tutti_status st = check_variables(kwargs, err);
    if (st != TUTTI_OK)
        return st;
    json_t *arguments = kwargs ? json_copy((json_t *)(uintptr_t)kwargs) : json_object();
    st = arguments ? TUTTI_OK : error_out_of_memory("tools", err);
    for (size_t i = 0; i < sizeof TEMPLATE_FIELDS / sizeof *TEMPLATE_FIELDS && st == TUTTI_OK; i++) {
        const char *name = TEMPLATE_FIELDS[i].name;
        json_t *value = json_object_get(req->root, name);
        st = json_check(value, TEMPLATE_FIELDS[i].kind, name, err);
        if (st == TUTTI_OK && json_field(req->root, name) && json_object_set(arguments, name, value) != 0)
            st = error_out_of_memory("tools", err);
    }
    if (st == TUTTI_OK && req->continues &&
        json_object_set_new(arguments, "continue_final_message", json_true()) != 0)
        st = error_out_of_memory("tools", err);
    if (st == TUTTI_OK && (kwargs || json_object_size(arguments) > 0))
        st = api_dump(req, arguments, &req->template_arguments, err);
    json_decref(arguments);
    return st;
}

enum tutti_status api_read_tools(struct api_request *req, struct tutti_error *err)
{
    const json_t *tools = json_object_get(req->root, "tools"), *choice;
    enum tutti_status st = TUTTI_OK;
    if (tools && !json_is_null(tools))
        st = api_check_functions(tools, "tools", false, err);
    if (st == TUTTI_OK)
        st = narrow_tools(req, err);
    tools = json_object_get(req->root, "tools");
    choice = json_object_get(req->root, "tool_choice");
    const char *word = json_string_value(choice);
    if (st == TUTTI_OK)
        st = read_tool_choice(req, choice, tools, err);
    if (st == TUTTI_OK && json_array_size(tools) > 0 && !(word && !strcmp(word, "none")))
        st = api_dump(req, tools, &req->tools, err);
    return st == TUTTI_OK ? read_template_fields(req, err) : st;
}

enum tutti_status api_prepare_calls(struct api_request *req, const struct tutti_model_info *info,
                                    struct tutti_error *err)
{
    bool is_grammar_of_calls = req->grammar_kind >= TUTTI_GRAMMAR_TOOL_CALLS;
    /* With another grammar the whole answer is content, whatever it looks like. */
    if (!req->tools || (req->grammar_kind != TUTTI_GRAMMAR_NONE && !is_grammar_of_calls))
        return TUTTI_OK;
    const char *form = is_grammar_of_calls && info->written_form ? info->written_form : info->tool_form;
    return tutti_tool_parser_new(&req->tool_parser, form, req->tools, false, err);
}
