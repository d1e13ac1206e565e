/* Translates requests of the responses API to those of the chat API. */
#include "base/json/json_field.h"
#include "server/openai/openai_responses.h"
#include "server/requests/openai_fields.h"

#include <string.h>

/* The field with the original request in the translated one; clients cannot set it. */
static const char ORIGINAL[] = "response_request";

/* The field of the translated request with the functions' names, as the model calls them: null, or for a function in a
 * namespace {"namespace", "name"}. */
static const char FUNCTIONS[] = "response_functions";

const json_t *responses_function(const struct api_request *req, const char *name)
{
    return json_field(json_object_get(req->root, FUNCTIONS), name);
}

const json_t *responses_field(const struct api_request *req, const char *name)
{
    return json_field(json_object_get(req->root, ORIGINAL), name);
}

void responses_name_field(struct tutti_error *err)
{
    static const char *const NAMES[][2] = { { "messages", "input" },
                                            { "response_format", "text.format" },
                                            { "max_completion_tokens", "max_output_tokens" } };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        size_t n = strlen(NAMES[i][0]);
        /* Items and messages need not have the same numbers. */
        if (!strncmp(err->param, NAMES[i][0], n) && strchr("[.", err->param[n]))
            snprintf(err->param, sizeof err->param, "%s", NAMES[i][1]);
    }
}

/* failed: not 0 if memory ran out. */
static enum tutti_status check_memory(int failed, struct tutti_error *err)
{
    return failed ? error_out_of_memory("request", err) : TUTTI_OK;
}

/* ---- items ---- */

/* The texts of an item's content or output, concatenated. */
static enum tutti_status read_content(const json_t *content, size_t item, const char *field, struct buf *out,
                                      struct tutti_error *err)
{
    size_t i;
    const json_t *part;
    char param[64];
    snprintf(param, sizeof param, "input[%zu].%s", item, field);
    if (json_is_string(content))
        return check_memory(!buf_add(out, json_string_value(content), json_string_length(content)), err);
    if (!json_is_array(content))
        return json_wrong_type(param, "a string or a list of parts", content, err);
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        bool is_text = type &&
                       (!strcmp(type, "input_text") || !strcmp(type, "output_text") || !strcmp(type, "text"));
        if (!is_text || !json_is_string(text))
            return error_set_param(
                err, TUTTI_E_ARGUMENT, param,
                "%s[%zu]: this model supports only parts of type input_text and output_text", param, i);
        if (!buf_add(out, json_string_value(text), json_string_length(text)))
            return error_out_of_memory("request", err);
    }
    return TUTTI_OK;
}

static enum tutti_status input_add_message(json_t *messages, const char *role, const char *text,
                                           size_t n_bytes, struct tutti_error *err)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", json_text(text, n_bytes));
    return check_memory(json_array_append_new(messages, message), err);
}

static const char *string_field(const json_t *item, const char *name)
{
    return json_string_value(json_object_get(item, name));
}

/* The name by which the model calls a function: the name itself, or NAMESPACE__NAME. space NULL: it is in no namespace.
 * NULL: name is no string, or out of memory. */
static json_t *model_name(const json_t *space, const json_t *name)
{
    const char *before = json_is_string(space) ? json_string_value(space) : "",
               *own = json_string_value(name);
    size_t n = strlen(before);
    bool has_end = n == 0 ||
                   (n >= 2 && !strcmp(before + n - 2, "__")); /* MCP servers of Codex: "mcp__NAME__" */
    return own ? json_sprintf("%s%s%s", before, has_end ? "" : "__", own) : NULL;
}

/* {"type": "function_call", "call_id", "name", "arguments", "namespace" of a function in one}: appended to the assistant's message
 * before it. */
static enum tutti_status add_call(json_t *messages, const json_t *item, const char *param,
                                  struct tutti_error *err)
{
    const json_t *space = json_field(item, "namespace");
    if (!string_field(item, "call_id") || !string_field(item, "name") || !string_field(item, "arguments") ||
        (space && !json_is_string(space)))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, param,
            "%s must have call_id, name and arguments, and may have namespace, all strings", param);
    size_t n = json_array_size(messages);
    json_t *last = n > 0 ? json_array_get(messages, n - 1) : NULL;
    const char *role = string_field(last, "role");
    int failed = 0;
    if (!role || strcmp(role, "assistant")) {
        last = json_pack("{s:s, s:n}", "role", "assistant", "content");
        failed = json_array_append_new(messages, last);
    }
    if (!failed && !json_object_get(last, "tool_calls"))
        failed = json_object_set_new(last, "tool_calls", json_array());
    json_t *call = json_pack("{s:O, s:s, s:{s:o, s:O}}", "id", json_object_get(item, "call_id"), "type",
                             "function", "function", "name", model_name(space, json_object_get(item, "name")),
                             "arguments", json_object_get(item, "arguments"));
    failed |= json_array_append_new(json_object_get(last, "tool_calls"), call);
    return check_memory(failed, err);
}

/* {"type": "function_call_output", "call_id", "output"} */
static enum tutti_status add_output(json_t *messages, const json_t *item, size_t i, const char *param,
                                    struct tutti_error *err)
{
    struct buf text = { 0 };
    if (!string_field(item, "call_id"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must have a call_id, a string", param);
    enum tutti_status st = read_content(json_object_get(item, "output"), i, "output", &text, err);
    if (st == TUTTI_OK)
        st = input_add_message(messages, "tool", text.bytes, text.n_bytes, err);
    buf_clear(&text);
    if (st != TUTTI_OK)
        return st;
    json_t *message = json_array_get(messages, json_array_size(messages) - 1);
    return check_memory(json_object_set(message, "tool_call_id", json_object_get(item, "call_id")), err);
}

/* {"type": "reasoning", "content": [{"type": "reasoning_text", "text"}], "summary": [...]}: what the
 * assistant's next message or call follows. */
static enum tutti_status add_reasoning(json_t *messages, const json_t *item, const char *param,
                                       struct tutti_error *err)
{
    static const char *const LISTS[] = { "content", "summary" };
    struct buf text = { 0 };
    size_t i;
    const json_t *part;
    bool ok = true;
    for (size_t k = 0; k < sizeof LISTS / sizeof *LISTS && text.n_bytes == 0; k++) {
        const json_t *list = json_field(item, LISTS[k]);
        if (list && !json_is_array(list)) {
            char name[96];
            buf_clear(&text); /* a list of empty texts came before */
            snprintf(name, sizeof name, "%s.%s", param, LISTS[k]);
            return json_wrong_part(param, name, "a list of parts", list, err);
        }
        json_array_foreach(list, i, part)
        {
            const json_t *words = json_object_get(part, "text");
            /* Templates get reasoning as a C string. */
            if (!json_is_string(words) || strlen(json_string_value(words)) != json_string_length(words)) {
                buf_clear(&text);
                return error_set_param(
                    err, TUTTI_E_ARGUMENT, param,
                    "%s.%s[%zu] must be an object whose text is a string without the character U+0000", param,
                    LISTS[k], i);
            }
            ok = ok && buf_add(&text, json_string_value(words), json_string_length(words));
        }
    }
    if (ok && text.n_bytes > 0)
        ok = json_array_append_new(messages,
                                   json_pack("{s:s, s:n, s:o}", "role", "assistant", "content",
                                             "reasoning_content", json_text(text.bytes, text.n_bytes))) == 0;
    buf_clear(&text);
    return check_memory(!ok, err);
}

/* The message of the assistant that has nothing but reasoning so far; NULL: the last one is another. */
static json_t *open_message(json_t *messages)
{
    size_t n = json_array_size(messages);
    json_t *last = n > 0 ? json_array_get(messages, n - 1) : NULL;
    bool is_open = json_object_get(last, "reasoning_content") && !json_object_get(last, "tool_calls") &&
                   json_is_null(json_object_get(last, "content"));
    return is_open ? last : NULL;
}

static enum tutti_status input_add_item(json_t *messages, const json_t *item, size_t i,
                                        struct tutti_error *err)
{
    char param[64];
    const char *type = string_field(item, "type"), *role = string_field(item, "role");
    snprintf(param, sizeof param, "input[%zu]", i);
    enum tutti_status st = api_check_fields(item, API_IN_ITEM, param, err);
    if (st != TUTTI_OK)
        return st;
    if (!type && json_field(item, "type")) {
        char name[80];
        snprintf(name, sizeof name, "%s.type", param);
        return json_wrong_part(param, name, "a string", json_field(item, "type"), err);
    }
    if (type && !strcmp(type, "function_call"))
        return add_call(messages, item, param, err);
    if (type && !strcmp(type, "function_call_output"))
        return add_output(messages, item, i, param, err);
    if (type && !strcmp(type, "reasoning"))
        return add_reasoning(messages, item, param, err);
    if (type && strcmp(type, "message"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: items of type %.64s are not supported",
                               param, type);
    if (!json_is_object(item) || !role)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must be an object with role and content",
                               param);
    struct buf text = { 0 };
    st = read_content(json_object_get(item, "content"), i, "content", &text, err);
    json_t *open = strcmp(role, "assistant") ? NULL : open_message(messages);
    if (st == TUTTI_OK && open)
        st = check_memory(json_object_set_new(open, "content", json_text(text.bytes, text.n_bytes)), err);
    else if (st == TUTTI_OK)
        st = input_add_message(messages, role, text.bytes, text.n_bytes, err);
    buf_clear(&text);
    return st;
}

static enum tutti_status read_input(const json_t *root, json_t *messages, struct tutti_error *err)
{
    const json_t *input = json_field(root, "input"), *instructions = json_field(root, "instructions"), *item;
    size_t i;
    enum tutti_status st = TUTTI_OK;
    if (instructions && !json_is_string(instructions))
        return json_wrong_type("instructions", "a string", instructions, err);
    if (instructions)
        st = input_add_message(messages, "system", json_string_value(instructions),
                               json_string_length(instructions), err);
    if (st != TUTTI_OK)
        return st;
    if (json_is_string(input))
        return input_add_message(messages, "user", json_string_value(input), json_string_length(input), err);
    if (!json_is_array(input) || json_array_size(input) == 0)
        return json_wrong_type("input", "a string or a list of at least one item", input, err);
    json_array_foreach(input, i, item) if (st == TUTTI_OK) st = input_add_item(messages, item, i, err);
    return st;
}

/* ---- tools ---- */

struct tool_lists {
    json_t *functions; /* in the chat API's form */
    json_t *names;     /* FUNCTIONS of the translated request */
};

/* In this API a tool is the function itself; in the chat API the tool has a field "function". space: its namespace; NULL: none. */
static enum tutti_status add_function(struct tool_lists *lists, const json_t *tool, const json_t *space,
                                      const char *param, struct tutti_error *err)
{
    static const char *const SAME[] = { "description", "parameters", "strict" };
    const json_t *own = json_field(tool, "name");
    enum tutti_status st = api_check_fields(tool, API_IN_FUNCTION, param, err);
    if (st == TUTTI_OK && !json_is_string(own))
        st = error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must have a name, a string", param);
    if (st != TUTTI_OK)
        return st;
    json_t *function = json_object(), *name = model_name(space, own);
    const char *text = json_string_value(name);
    const json_t *other = text ? json_object_get(lists->names, text) : NULL;
    if (other && (space || json_is_object(other)))
        st = error_set_param(err, TUTTI_E_ARGUMENT, param,
                             "%s: the model would know this function as %.64s, which is another one, too; "
                             "rename one of them",
                             param, text);
    int failed = json_object_set(function, "name", name);
    for (size_t k = 0; k < sizeof SAME / sizeof *SAME; k++)
        if (json_field(tool, SAME[k]))
            failed |= json_object_set(function, SAME[k], json_object_get(tool, SAME[k]));
    failed |= json_object_set_new(lists->names, text ? text : "",
                                  space ? json_pack("{s:O, s:O}", "namespace", space, "name", own)
                                        : json_null());
    failed |= json_array_append_new(lists->functions,
                                    json_pack("{s:s, s:o}", "type", "function", "function", function));
    json_decref(name);
    return st == TUTTI_OK ? check_memory(failed, err) : st;
}

/* Other tools than functions are left out, as in llama-server: some run at OpenAI, and a model that was not trained for the
 * others cannot call them. Agents send them in each request. */
static enum tutti_status add_tool(struct tool_lists *lists, const json_t *tool, const json_t *space,
                                  const char *param, struct tutti_error *err)
{
    const char *type = string_field(tool, "type");
    if (!type)
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s must be an object with a type, such as \"function\"", param);
    if (!strcmp(type, "function"))
        return add_function(lists, tool, space, param, err);
    api_warn_ignored("a tool of type", type, ": models call functions only");
    return TUTTI_OK;
}

/* {"type": "namespace", "name", "tools": [...]} */
static enum tutti_status add_namespace(struct tool_lists *lists, const json_t *space, const char *param,
                                       struct tutti_error *err)
{
    enum { MAX_NAME = 128 }; /* bytes: the name is copied for each of the functions */
    char path[80];
    size_t i;
    const json_t *name = json_field(space, "name"), *tools = json_object_get(space, "tools"), *tool;
    if (!json_is_string(name) || !json_is_array(tools))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s must have a name, a string, and tools, a list", param);
    if (json_string_length(name) > MAX_NAME)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s.name has %zu bytes, at most %d are allowed",
                               param, json_string_length(name), MAX_NAME);
    enum tutti_status st = TUTTI_OK;
    json_array_foreach(tools, i, tool)
    {
        snprintf(path, sizeof path, "%s.tools[%zu]", param, i);
        if (st == TUTTI_OK)
            st = add_tool(lists, tool, name, path, err);
    }
    return st;
}

static enum tutti_status copy_tools(json_t *chat, json_t *root, struct tutti_error *err)
{
    const json_t *tools = json_field(root, "tools"), *tool;
    size_t i;
    if (!tools)
        return TUTTI_OK;
    if (!json_is_array(tools))
        return json_wrong_type("tools", "a list", tools, err);
    struct tool_lists lists = { json_array(), json_object() };
    int failed = json_object_set_new(chat, "tools", lists.functions);
    failed |= json_object_set_new(chat, FUNCTIONS, lists.names);
    enum tutti_status st = check_memory(failed, err);
    json_array_foreach(tools, i, tool)
    {
        char param[32];
        const char *type = string_field(tool, "type");
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (st == TUTTI_OK)
            st = type && !strcmp(type, "namespace") ? add_namespace(&lists, tool, param, err)
                                                    : add_tool(&lists, tool, NULL, param, err);
    }
    return st;
}

static enum tutti_status refuse_choice(const json_t *tool, struct tutti_error *err)
{
    const char *name = string_field(tool, "name");
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "tool_choice",
        "tool_choice names %.64s%sa tool of type \"%.32s\": only functions can be called here, "
        "other tools are left out",
        name ? name : "", name ? ", " : "", string_field(tool, "type"));
}

static bool is_other_type(const json_t *tool)
{
    const char *type = string_field(tool, "type");
    return type && strcmp(type, "function") != 0;
}

/* A function in the chat API's form, of which only the name is needed. */
static json_t *named_function(const json_t *tool)
{
    json_t *name = model_name(json_field(tool, "namespace"), json_field(tool, "name"));
    return json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name", name ? name : json_string(""));
}

/* {"type": "allowed_tools", "mode", "tools": [{"type": "function", "name"}]} */
static enum tutti_status copy_allowed(json_t *chat, const json_t *choice, struct tutti_error *err)
{
    json_t *names = json_array(), *mode = json_object_get(choice, "mode");
    const json_t *entry;
    size_t i;
    enum tutti_status st = check_memory(names ? 0 : -1, err);
    json_array_foreach(json_object_get(choice, "tools"), i, entry)
    {
        if (st == TUTTI_OK && is_other_type(entry))
            st = refuse_choice(entry, err);
        if (st == TUTTI_OK)
            st = check_memory(json_array_append_new(names, named_function(entry)), err);
    }
    json_t *allowed = json_pack("{s:s, s:{s:O*, s:o}}", "type", "allowed_tools", "allowed_tools", "mode",
                                mode, "tools", names);
    int failed = json_object_set_new(chat, "tool_choice", allowed);
    return st == TUTTI_OK ? check_memory(failed, err) : st;
}

static enum tutti_status copy_choice(json_t *chat, json_t *root, struct tutti_error *err)
{
    const json_t *choice = json_field(root, "tool_choice");
    const char *type = string_field(choice, "type");
    if (!choice)
        return TUTTI_OK;
    if (json_is_string(choice))
        return check_memory(json_object_set(chat, "tool_choice", json_object_get(root, "tool_choice")), err);
    if (type && !strcmp(type, "allowed_tools"))
        return copy_allowed(chat, choice, err);
    if (is_other_type(choice))
        return refuse_choice(choice, err);
    if (!type || !string_field(choice, "name"))
        return error_set_param(err, TUTTI_E_ARGUMENT, "tool_choice",
                               "tool_choice must be \"auto\", \"none\", \"required\", {\"type\": "
                               "\"function\", \"name\": ...} or {\"type\": \"allowed_tools\", ...}");
    return check_memory(json_object_set_new(chat, "tool_choice", named_function(choice)), err);
}

/* ---- settings ---- */

/* Refuses fields that would change the answer in a way that is not supported. */
static enum tutti_status refuse_unsupported(const json_t *root, struct tutti_error *err)
{
    static const char *const FIELDS[] = { "previous_response_id", "conversation", "prompt" };
    const json_t *background = json_field(root, "background"), *truncation = json_field(root, "truncation");
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (json_field(root, FIELDS[i]))
            return error_set_param(err, TUTTI_E_ARGUMENT, FIELDS[i],
                                   "%s is not supported: responses are not stored", FIELDS[i]);
    if (background && !json_is_false(background))
        return error_set_param(err, TUTTI_E_ARGUMENT, "background",
                               json_is_true(background) ? "background is not supported"
                                                        : "background must be true or false");
    if (truncation && (!json_is_string(truncation) || strcmp(json_string_value(truncation), "disabled")))
        return error_set_param(err, TUTTI_E_ARGUMENT, "truncation", "truncation must be \"disabled\"");
    return TUTTI_OK;
}

/* Translates text.format to the chat API. */
static enum tutti_status copy_format(json_t *chat, json_t *root, struct tutti_error *err)
{
    const json_t *text = json_field(root, "text");
    if (text && !json_is_object(text))
        return json_wrong_type("text", "an object", text, err);
    static const char *const KNOWN[] = { "format", "verbosity", NULL };
    static const char *const OF_FORMAT[] = { "type", "name", "schema", "strict", "description", NULL };
    json_t *format = json_object_get(text, "format");
    enum tutti_status st = json_check_names("text", "text", text, KNOWN, err);
    if (st == TUTTI_OK)
        st = json_check_names("text.format", "text.format", format, OF_FORMAT, err);
    if (st != TUTTI_OK)
        return st;
    const char *type = string_field(format, "type");
    int failed = 0;
    if (type && !strcmp(type, "json_schema"))
        failed = json_object_set_new(chat, "response_format",
                                     json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", format));
    else if (format && !json_is_null(format))
        failed = json_object_set(chat, "response_format", format);
    return check_memory(failed, err);
}

/* "include" requests log-probabilities by name. Of the other names of OpenAI's API no answer here has anything. */
static enum tutti_status check_included(const char *name, struct tutti_error *err)
{
    static const char *const KNOWN[] = { "message.output_text.logprobs",
                                         "reasoning.encrypted_content",
                                         "message.input_image.image_url",
                                         "file_search_call.results",
                                         "web_search_call.results",
                                         "web_search_call.action.sources",
                                         "computer_call_output.output.image_url",
                                         "code_interpreter_call.outputs" };
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (!strcmp(name, KNOWN[i]))
            return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, "include",
                           "include has the unknown name \"%.64s\", expected message.output_text.logprobs",
                           name);
}

static enum tutti_status copy_logprobs(json_t *chat, json_t *root, struct tutti_error *err)
{
    const json_t *include = json_field(root, "include"), *top = json_field(root, "top_logprobs"), *entry;
    bool is_wanted = false;
    size_t i;
    if (include && !json_is_array(include))
        return json_wrong_type("include", "a list", include, err);
    json_array_foreach(include, i, entry)
    {
        const char *name = json_string_value(entry);
        if (!name) {
            char place[40];
            snprintf(place, sizeof place, "include[%zu]", i);
            return json_wrong_part("include", place, "a string", entry, err);
        }
        enum tutti_status st = check_included(name, err);
        if (st != TUTTI_OK)
            return st;
        is_wanted |= !strcmp(name, "message.output_text.logprobs");
    }
    int failed = 0;
    if (top)
        failed |= json_object_set(chat, "top_logprobs", json_object_get(root, "top_logprobs"));
    /* top_logprobs requests them too. */
    if (is_wanted || json_integer_value(top) > 0)
        failed |= json_object_set_new(chat, "logprobs", json_true());
    return check_memory(failed, err);
}

static enum tutti_status copy_settings(json_t *chat, json_t *root, struct tutti_error *err)
{
    static const char *const SAME[] = {
        "model",
        "temperature",
        "top_p",
        "stream",
        "user",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "cache_salt",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "priority",
        "repetition_penalty",
        "max_queue_time",
        "typical_p",
        "parallel_tool_calls",
        "chat_template_kwargs",
        "reasoning_effort",
        "enable_thinking",
        "thinking_budget",
        "thinking_token_budget",
        "thinking_budget_tokens",
        "speculate",
        "presence_penalty",
        "frequency_penalty",
    };
    const json_t *max = json_field(root, "max_output_tokens"), *metadata = json_field(root, "metadata");
    int failed = 0;
    if (max && (!json_is_integer(max) || json_integer_value(max) < 1))
        return error_set_param(err, TUTTI_E_ARGUMENT, "max_output_tokens",
                               "max_output_tokens must be an integer of at least 1");
    if (metadata && !json_is_object(metadata))
        return json_wrong_type("metadata", "an object", metadata, err);
    const json_t *reasoning = json_field(root, "reasoning");
    if (reasoning && !json_is_object(reasoning))
        return json_wrong_type("reasoning", "an object", reasoning, err);
    static const char *const KNOWN[] = { "effort", "summary", "generate_summary", NULL };
    enum tutti_status st = json_check_names("reasoning", "reasoning", reasoning, KNOWN, err);
    if (st != TUTTI_OK)
        return st;
    if (json_field(reasoning, "effort"))
        failed |= json_object_set(chat, "reasoning_effort", json_object_get(reasoning, "effort"));
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++)
        if (json_field(root, SAME[i]))
            failed |= json_object_set(chat, SAME[i], json_object_get(root, SAME[i]));
    if (max)
        failed |= json_object_set(chat, "max_completion_tokens", json_object_get(root, "max_output_tokens"));
    failed |= json_object_set(chat, ORIGINAL, root); /* for the reply, which repeats it */
    return check_memory(failed, err);
}

/* Builds the chat request, with the original in ORIGINAL. */
static enum tutti_status make_chat(json_t *root, json_t **out, struct tutti_error *err)
{
    static enum tutti_status (*const COPIES[])(json_t * chat, json_t * root, struct tutti_error * err) = {
        copy_settings, copy_format, copy_logprobs, copy_tools, copy_choice
    };
    json_t *chat = json_object(), *messages = json_array();
    enum tutti_status st = check_memory(json_object_set_new(chat, "messages", messages), err);
    if (st == TUTTI_OK)
        st = refuse_unsupported(root, err);
    if (st == TUTTI_OK)
        st = read_input(root, messages, err);
    for (size_t i = 0; st == TUTTI_OK && i < sizeof COPIES / sizeof *COPIES; i++)
        st = COPIES[i](chat, root, err);
    if (st == TUTTI_OK)
        *out = chat;
    else
        json_decref(chat);
    return st;
}

/* Bytes of what the reply may have from the request: all but the input. */
static size_t repeated_bytes(const json_t *root)
{
    size_t n_bytes = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, name, value)
    {
        if (strcmp(name, "input") != 0)
            n_bytes += json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    }
    return n_bytes;
}

enum tutti_status responses_read(struct api_request *req, struct app *app, json_t *root,
                                 struct tutti_error *err)
{
    json_t *chat = NULL;
    enum tutti_status st = TUTTI_OK;
    if (!json_is_object(root))
        st = json_wrong_part("", "the body", "a JSON object", root, err);
    if (st == TUTTI_OK)
        st = api_check_fields(root, API_RESPONSES, "", err);
    if (st == TUTTI_OK)
        st = make_chat(root, &chat, err);
    json_decref(root);
    if (st != TUTTI_OK)
        return st;
    st = api_request_read_value(req, API_CHAT, app->model, chat, err);
    if (st == TUTTI_OK)
        req->n_repeated_bytes = repeated_bytes(json_object_get(chat, ORIGINAL));
    else if (err)
        responses_name_field(err);
    return st;
}
