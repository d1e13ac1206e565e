/* Translates requests of the responses API to those of the chat API. */
#include "base/json/json_field.h"
#include "server/openai/openai_responses.h"
#include "server/requests/openai_fields.h"

#include <string.h>

/* The field with the original request in the translated one; clients cannot set it. */
static const char ORIGINAL[] = "response_request";

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

/* {"type": "function_call", "call_id", "name", "arguments"}: appended to the assistant's message
 * before it. */
static enum tutti_status add_call(json_t *messages, const json_t *item, const char *param,
                                  struct tutti_error *err)
{
    if (!string_field(item, "call_id") || !string_field(item, "name") || !string_field(item, "arguments"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s must have call_id, name and arguments, all strings", param);
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
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(item, "call_id"), "type",
                             "function", "function", "name", json_object_get(item, "name"), "arguments",
                             json_object_get(item, "arguments"));
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

/* In this API a tool is the function itself; in the chat API the tool has a field "function". */
static enum tutti_status copy_tools(json_t *chat, json_t *root, struct tutti_error *err)
{
    const json_t *tools = json_field(root, "tools"), *tool;
    size_t i;
    if (!tools)
        return TUTTI_OK;
    if (!json_is_array(tools))
        return json_wrong_type("tools", "a list", tools, err);
    json_t *out = json_array();
    int failed = json_object_set_new(chat, "tools", out);
    json_array_foreach(tools, i, tool)
    {
        static const char *const SAME[] = { "name", "description", "parameters", "strict" };
        char param[32];
        const char *type = string_field(tool, "type");
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!type || strcmp(type, "function"))
            return error_set_param(err, TUTTI_E_ARGUMENT, param,
                                   "%s: the only type supported is \"function\"", param);
        enum tutti_status st = api_check_fields(tool, API_IN_FUNCTION, param, err);
        if (st != TUTTI_OK)
            return st;
        json_t *function = json_object();
        for (size_t k = 0; k < sizeof SAME / sizeof *SAME; k++)
            if (json_field(tool, SAME[k]))
                failed |= json_object_set(function, SAME[k], json_object_get(tool, SAME[k]));
        failed |= json_array_append_new(out,
                                        json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    return check_memory(failed, err);
}

/* {"type": "allowed_tools", "mode", "tools": [{"type": "function", "name"}]} */
static enum tutti_status copy_allowed(json_t *chat, const json_t *choice, struct tutti_error *err)
{
    json_t *names = json_array(), *mode = json_object_get(choice, "mode");
    const json_t *entry;
    size_t i;
    int failed = names ? 0 : -1;
    json_array_foreach(json_object_get(choice, "tools"), i, entry)
    {
        const char *name = string_field(entry, "name");
        failed |= json_array_append_new(
            names, json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name ? name : ""));
    }
    json_t *allowed = failed ? NULL
                             : json_pack("{s:s, s:{s:O*, s:O}}", "type", "allowed_tools", "allowed_tools",
                                         "mode", mode, "tools", names);
    json_decref(names);
    return check_memory(json_object_set_new(chat, "tool_choice", allowed), err);
}

static enum tutti_status copy_choice(json_t *chat, json_t *root, struct tutti_error *err)
{
    const json_t *choice = json_field(root, "tool_choice");
    const char *type = string_field(choice, "type"), *name = string_field(choice, "name");
    if (!choice)
        return TUTTI_OK;
    if (json_is_string(choice))
        return check_memory(json_object_set(chat, "tool_choice", json_object_get(root, "tool_choice")), err);
    if (type && !strcmp(type, "allowed_tools"))
        return copy_allowed(chat, choice, err);
    if (!type || strcmp(type, "function") || !name)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tool_choice",
                               "tool_choice must be \"auto\", \"none\", \"required\", {\"type\": "
                               "\"function\", \"name\": ...} or {\"type\": \"allowed_tools\", ...}");
    json_t *named = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
    return check_memory(json_object_set_new(chat, "tool_choice", named), err);
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
    if (st != TUTTI_OK && err)
        responses_name_field(err);
    return st;
}
