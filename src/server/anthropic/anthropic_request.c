/* Translates requests to those of the chat API: tools and settings. */
#include "server/anthropic/anthropic_blocks.h"
#include "server/anthropic/anthropic_history.h"
#include "server/anthropic/anthropic_messages.h"
#include "server/requests/openai_fields.h"

#include <string.h>

void messages_name_field(struct tutti_error *err)
{
    static const char *const NAMES[][2] = { { "response_format", "output_config.format" },
                                            { "reasoning_effort", "output_config.effort" },
                                            { "thinking_budget", "thinking.budget_tokens" },
                                            { "continue_final_message", "messages" },
                                            { "stop", "stop_sequences" } };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(err->param, NAMES[i][0])) {
            snprintf(err->param, sizeof err->param, "%s", NAMES[i][1]);
            return;
        }
}

/* A request while it is translated. */
struct translation {
    json_t *root, *chat;
    bool is_count, shows_thinking;
    struct messages_wants wants;
};

typedef enum tutti_status translate_fn(struct translation *t, struct tutti_error *err);

static enum tutti_status check_memory(int failed, struct tutti_error *err)
{
    return failed ? error_out_of_memory("request", err) : TUTTI_OK;
}

/* Sets a field of the chat request; takes ownership of value. */
static enum tutti_status chat_set(struct translation *t, const char *name, json_t *value,
                                  struct tutti_error *err)
{
    return check_memory(json_object_set_new(t->chat, name, value), err);
}

static const char *string_field(const json_t *object, const char *name)
{
    return json_string_value(json_field(object, name));
}

static bool is_word(const char *word, const char *other)
{
    return word && !strcmp(word, other);
}

/* ---- fields of the same meaning ---- */

static enum tutti_status copy_fields(struct translation *t, struct tutti_error *err)
{
    static const struct {
        const char *name;
        enum json_kind kind;
        bool is_copied; /* to the chat's field of this name; false: it does not change the answer */
    } FIELDS[] = {
        { "model", JSON_KIND_STRING, true },
        { "stream", JSON_KIND_BOOL, true },
        { "temperature", JSON_KIND_NUMBER, true },
        { "top_p", JSON_KIND_NUMBER, true },
        { "top_k", JSON_KIND_INT, true },
        { "metadata", JSON_KIND_OBJECT, false },
        { "service_tier", JSON_KIND_STRING, false },
        { "cache_control", JSON_KIND_OBJECT, false },
        /* tutti's own, and vLLM's cache_salt */
        { "min_p", JSON_KIND_NUMBER, true },
        { "typical_p", JSON_KIND_NUMBER, true },
        { "seed", JSON_KIND_INT, true },
        { "repetition_penalty", JSON_KIND_NUMBER, true },
        { "presence_penalty", JSON_KIND_NUMBER, true },
        { "frequency_penalty", JSON_KIND_NUMBER, true },
        { "priority", JSON_KIND_INT, true },
        { "max_queue_time", JSON_KIND_NUMBER, true },
        { "speculate", JSON_KIND_INT, true },
        { "cache_salt", JSON_KIND_STRING, true },
        { "chat_template_kwargs", JSON_KIND_OBJECT, true },
    };
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        json_t *value = json_object_get(t->root, FIELDS[i].name);
        enum tutti_status st = json_check(value, FIELDS[i].kind, FIELDS[i].name, err);
        if (st == TUTTI_OK && FIELDS[i].is_copied && json_field(t->root, FIELDS[i].name))
            st = chat_set(t, FIELDS[i].name, json_incref(value), err);
        if (st != TUTTI_OK)
            return st;
    }
    t->wants.has_cache_control |= json_field(t->root, "cache_control") != NULL;
    return json_require(json_field(t->root, "model"), JSON_KIND_STRING, "model", err);
}

/* Required; 0: only fill the prefix cache. */
static enum tutti_status copy_max_tokens(struct translation *t, struct tutti_error *err)
{
    json_t *max = json_object_get(t->root, "max_tokens");
    if (t->is_count)
        return TUTTI_OK;
    enum tutti_status st = json_require(max, JSON_KIND_INT, "max_tokens", err);
    if (st == TUTTI_OK)
        st = json_check_range((double)json_integer_value(max), 0, INT32_MAX, "max_tokens", err);
    return st == TUTTI_OK && json_integer_value(max) > 0 ? chat_set(t, "max_tokens", json_incref(max), err)
                                                         : st;
}

static enum tutti_status copy_stops(struct translation *t, struct tutti_error *err)
{
    json_t *stops = json_object_get(t->root, "stop_sequences"), *stop;
    size_t i;
    if (!json_field(t->root, "stop_sequences"))
        return TUTTI_OK;
    if (!json_is_array(stops))
        return json_wrong_type("stop_sequences", "a list of strings", stops, err);
    if (json_array_size(stops) > LIMIT_STOPS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "stop_sequences",
                               "stop_sequences has %zu strings, at most %d are allowed",
                               json_array_size(stops), LIMIT_STOPS);
    json_array_foreach(stops, i, stop)
    {
        char param[40];
        snprintf(param, sizeof param, "stop_sequences[%zu]", i);
        if (!json_is_string(stop))
            return json_wrong_type(param, "a string", stop, err);
        if (json_string_length(stop) == 0)
            return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must not be empty", param);
    }
    return chat_set(t, "stop", json_incref(stops), err);
}

static enum tutti_status copy_messages(struct translation *t, struct tutti_error *err)
{
    struct history_facts facts = { 0 };
    json_t *messages = json_array();
    enum tutti_status st = chat_set(t, "messages", messages, err);
    if (st == TUTTI_OK)
        st = history_translate(messages, t->root, &facts, err);
    t->wants.has_cache_control |= facts.has_cache_control;
    if (st == TUTTI_OK && facts.ends_in_answer) {
        st = chat_set(t, "continue_final_message", json_true(), err);
        if (st == TUTTI_OK)
            st = chat_set(t, "add_generation_prompt", json_false(), err);
    }
    return st;
}

/* ---- tools ---- */

static enum tutti_status check_callers(const json_t *tool, const char *param, struct tutti_error *err)
{
    size_t i;
    const json_t *caller;
    json_array_foreach(json_field(tool, "allowed_callers"), i, caller)
    {
        if (!is_word(json_string_value(caller), "direct"))
            return error_set_param(
                err, TUTTI_E_ARGUMENT, param,
                "%s.allowed_callers: only \"direct\" is supported: this server runs no code", param);
    }
    return json_is_on(tool, "defer_loading")
               ? error_set_param(err, TUTTI_E_ARGUMENT, param,
                                 "%s.defer_loading is not supported: this server has no search for tools",
                                 param)
               : TUTTI_OK;
}

static enum tutti_status check_tool(const json_t *tool, const char *param, struct tutti_error *err)
{
    static const struct object_field FIELDS[] = {
        { "type", JSON_KIND_STRING, false, false },
        { "name", JSON_KIND_STRING, true, false },
        { "description", JSON_KIND_STRING, false, false },
        { "input_schema", JSON_KIND_OBJECT, true, false },
        { "input_examples", JSON_KIND_LIST, false, false },
        { "strict", JSON_KIND_BOOL, false, false },
        { "cache_control", JSON_KIND_OBJECT, false, false },
        { "eager_input_streaming", JSON_KIND_BOOL, false,
          false }, /* input is always streamed as it is made */
        { "defer_loading", JSON_KIND_BOOL, false, false },
        { "allowed_callers", JSON_KIND_LIST, false, false },
    };
    const char *type = string_field(tool, "type");
    if (type && strcmp(type, "custom"))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, param,
            "%s: type \"%.48s\" is not supported, only tools of type \"custom\", which the "
            "client runs",
            param, type);
    enum tutti_status st = object_check(tool, param, FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    if (st == TUTTI_OK)
        st = check_callers(tool, param, err);
    if (st == TUTTI_OK && !is_word(string_field(json_field(tool, "input_schema"), "type"), "object"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s.input_schema.type must be \"object\"",
                               param);
    return st;
}

/* The schema of a tool's input; examples are an annotation of it. */
static json_t *input_schema(const json_t *tool)
{
    json_t *schema = json_object_get(tool, "input_schema"),
           *examples = json_object_get(tool, "input_examples");
    if (json_array_size(examples) == 0 || json_object_get(schema, "examples"))
        return json_incref(schema);
    json_t *copy = json_copy(schema);
    return json_object_set(copy, "examples", examples) == 0 ? copy : NULL;
}

static enum tutti_status copy_tools(struct translation *t, struct tutti_error *err)
{
    const json_t *tools = json_field(t->root, "tools"), *tool;
    size_t i;
    if (!tools)
        return TUTTI_OK;
    if (!json_is_array(tools))
        return json_wrong_type("tools", "a list", tools, err);
    json_t *out = json_array(), *names = json_object();
    enum tutti_status st = chat_set(t, "tools", out, err);
    json_array_foreach(tools, i, tool)
    {
        char param[32];
        const char *name = string_field(tool, "name");
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (st == TUTTI_OK)
            st = check_tool(tool, param, err);
        if (st == TUTTI_OK && json_object_get(names, name))
            st = error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: duplicate name \"%.64s\"", param, name);
        if (st != TUTTI_OK)
            break;
        t->wants.has_cache_control |= json_field(tool, "cache_control") != NULL;
        json_t *function = json_pack("{s:O, s:O*, s:o, s:O*}", "name", json_object_get(tool, "name"),
                                     "description", json_field(tool, "description"), "parameters",
                                     input_schema(tool), "strict", json_field(tool, "strict"));
        int failed = json_object_set_new(names, name, json_true());
        failed |= json_array_append_new(out,
                                        json_pack("{s:s, s:o}", "type", "function", "function", function));
        st = check_memory(failed, err);
    }
    json_decref(names);
    return st;
}

static enum tutti_status copy_tool_choice(struct translation *t, struct tutti_error *err)
{
    static const struct object_field FIELDS[] = {
        { "type", JSON_KIND_STRING, true, false },
        { "name", JSON_KIND_STRING, false, false },
        { "disable_parallel_tool_use", JSON_KIND_BOOL, false, false },
    };
    static const char *const WORDS[][2] = { { "auto", "auto" }, { "any", "required" }, { "none", "none" } };
    const json_t *choice = json_field(t->root, "tool_choice");
    const char *type = string_field(choice, "type"), *name = string_field(choice, "name");
    json_t *value = NULL;
    if (!choice)
        return TUTTI_OK;
    enum tutti_status st = object_check(choice, "tool_choice", FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    if (st != TUTTI_OK)
        return st;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS && !name; i++)
        if (is_word(type, WORDS[i][0]))
            value = json_string(WORDS[i][1]);
    if (is_word(type, "tool") && name)
        value = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
    if (!value)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "tool_choice",
            "tool_choice.type must be \"auto\", \"any\", \"none\", or \"tool\" with a name");
    st = chat_set(t, "tool_choice", value, err);
    if (st == TUTTI_OK && json_is_on(choice, "disable_parallel_tool_use"))
        st = chat_set(t, "parallel_tool_calls", json_false(), err);
    return st;
}

/* ---- thinking and the form of the answer ---- */

static enum tutti_status copy_budget(struct translation *t, const json_t *thinking, struct tutti_error *err)
{
    json_t *budget = json_object_get(thinking, "budget_tokens");
    const json_t *max = json_field(t->root, "max_tokens");
    enum tutti_status st = json_require(budget, JSON_KIND_INT, "thinking.budget_tokens", err);
    if (st == TUTTI_OK)
        st = json_check_range((double)json_integer_value(budget), 1, INT32_MAX, "thinking.budget_tokens",
                              err);
    if (st == TUTTI_OK && max && json_integer_value(max) > 0 &&
        json_integer_value(budget) >= json_integer_value(max))
        return error_set_param(err, TUTTI_E_ARGUMENT, "max_tokens",
                               "max_tokens must be greater than thinking.budget_tokens: %lld, found %lld",
                               (long long)json_integer_value(budget), (long long)json_integer_value(max));
    return st == TUTTI_OK ? chat_set(t, "thinking_budget", json_incref(budget), err) : st;
}

/* Without the field there is no thinking, as clients of this API expect, unless the request switches it on
 * for the chat template. */
static enum tutti_status copy_thinking(struct translation *t, struct tutti_error *err)
{
    static const struct object_field FIELDS[] = {
        { "type", JSON_KIND_STRING, true, false },
        { "budget_tokens", JSON_KIND_INT, false, false },
        { "display", JSON_KIND_STRING, false, false },
    };
    const json_t *thinking = json_field(t->root, "thinking"),
                 *variables = json_field(t->root, "chat_template_kwargs");
    const char *type = string_field(thinking, "type"), *display = string_field(thinking, "display");
    enum tutti_status st = TUTTI_OK;
    if (thinking)
        st = object_check(thinking, "thinking", FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    if (st != TUTTI_OK)
        return st;
    bool is_enabled = is_word(type, "enabled"), is_adaptive = is_word(type, "adaptive");
    if (thinking && !is_enabled && !is_adaptive && strcmp(type, "disabled"))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "thinking",
            "thinking.type must be \"enabled\", \"adaptive\" or \"disabled\", found \"%.32s\"", type);
    if (display && strcmp(display, "summarized") && strcmp(display, "omitted"))
        return error_set_param(err, TUTTI_E_ARGUMENT, "thinking",
                               "thinking.display must be \"summarized\" or \"omitted\", found \"%.32s\"",
                               display);
    if (!is_enabled && json_field(thinking, "budget_tokens"))
        return error_set_param(err, TUTTI_E_ARGUMENT, "thinking",
                               "thinking.budget_tokens is only allowed where thinking.type is \"enabled\"");
    t->wants.omits_thinking = is_word(display, "omitted");
    t->shows_thinking = is_enabled || is_adaptive ||
                        (!thinking &&
                         (json_is_on(variables, "enable_thinking") || json_is_on(variables, "thinking")));
    if (is_enabled)
        st = copy_budget(t, thinking, err);
    if (st == TUTTI_OK && !t->shows_thinking)
        st = chat_set(t, "include_reasoning", json_false(), err);
    return st == TUTTI_OK ? chat_set(t, "enable_thinking", json_boolean(t->shows_thinking), err) : st;
}

static enum tutti_status copy_effort(struct translation *t, const json_t *config, struct tutti_error *err)
{
    static const char *const WORDS[][2] = {
        { "low", "low" }, { "medium", "medium" }, { "high", "high" }, { "xhigh", "high" }, { "max", "high" }
    };
    const char *effort = string_field(config, "effort");
    if (!effort)
        return TUTTI_OK;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (!strcmp(effort, WORDS[i][0]))
            return chat_set(t, "reasoning_effort", json_string(WORDS[i][1]), err);
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "output_config",
        "output_config.effort must be \"low\", \"medium\", \"high\", \"xhigh\" or \"max\", "
        "found \"%.32s\"",
        effort);
}

/* {"type": "json_schema", "schema"} */
static enum tutti_status copy_format(struct translation *t, const json_t *format, const char *param,
                                     struct tutti_error *err)
{
    static const struct object_field FIELDS[] = { { "type", JSON_KIND_STRING, true, false },
                                                  { "schema", JSON_KIND_OBJECT, true, false },
                                                  { "name", JSON_KIND_STRING, false, false } };
    enum tutti_status st = object_check(format, param, FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    if (st == TUTTI_OK && strcmp(string_field(format, "type"), "json_schema"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s.type must be \"json_schema\"", param);
    if (st == TUTTI_OK && json_object_get(t->chat, "response_format"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "output_format and output_config.format cannot be combined");
    return st == TUTTI_OK ? chat_set(t, "response_format",
                                     json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema",
                                               "name", "output", "schema", json_field(format, "schema")),
                                     err)
                          : st;
}

static enum tutti_status copy_output(struct translation *t, struct tutti_error *err)
{
    static const struct object_field FIELDS[] = { { "effort", JSON_KIND_STRING, false, false },
                                                  { "format", JSON_KIND_OBJECT, false, false } };
    const json_t *config = json_field(t->root, "output_config"),
                 *older = json_field(t->root, "output_format");
    enum tutti_status st = TUTTI_OK;
    if (config)
        st = object_check(config, "output_config", FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    if (st == TUTTI_OK)
        st = copy_effort(t, config, err);
    if (st == TUTTI_OK && json_field(config, "format"))
        st = copy_format(t, json_field(config, "format"), "output_config.format", err);
    return st == TUTTI_OK && older ? copy_format(t, older, "output_format", err) : st;
}

enum tutti_status messages_read(struct api_request *req, const tutti_model *model, json_t *root,
                                bool is_count, struct tutti_error *err)
{
    static translate_fn *const STEPS[] = { copy_fields, copy_max_tokens,  copy_stops,    copy_messages,
                                           copy_tools,  copy_tool_choice, copy_thinking, copy_output };
    struct translation t = { .root = root, .chat = json_object(), .is_count = is_count };
    enum tutti_status st = TUTTI_OK;
    if (!json_is_object(root))
        st = json_wrong_part("", "the body", "a JSON object", root, err);
    if (st == TUTTI_OK)
        st = api_check_fields(root, is_count ? API_MESSAGES_COUNT : API_MESSAGES, "", err);
    for (size_t i = 0; st == TUTTI_OK && i < sizeof STEPS / sizeof *STEPS; i++)
        st = STEPS[i](&t, err);
    bool is_prefill = !is_count && st == TUTTI_OK && !json_object_get(t.chat, "max_tokens");
    json_decref(root);
    if (st != TUTTI_OK) {
        json_decref(t.chat);
        return st;
    }
    st = api_request_read_value(req, API_CHAT, model, t.chat, err);
    if (st == TUTTI_OK) {
        req->no_answer = is_prefill;
        req->messages_api = t.wants;
    } else if (err) {
        messages_name_field(err);
    }
    return st;
}
