/* The list of built-in chat formats, rendering of a request's prompt, and helpers that formats
 * share. */
#include "model/chat/chat.h"

#include "base/json/json_wide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of templates/, as embed.py names them. They render the same as the authors' templates. */
extern const char CHAT_TEMPLATE_CHATML[], CHAT_TEMPLATE_LLAMA3[], CHAT_TEMPLATE_LLAMA3_1[],
    CHAT_TEMPLATE_MISTRAL[];

#define OWN(format)                                                                                          \
    {                                                                                                        \
        .name = (format), .render = chat_render_template, .is_own_template = true                            \
    }
static const struct own_template {
    struct chat_format format;
    const char *text, *settings; /* settings are rendered first */
} OWN_TEMPLATES[] = {
    { OWN("chatml"), CHAT_TEMPLATE_CHATML, "" },
    { OWN("qwen2"), CHAT_TEMPLATE_CHATML, "{%- set system = 'You are a helpful assistant.' -%}" },
    { OWN("qwen2.5"), CHAT_TEMPLATE_CHATML,
      "{%- set system = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -%}" },
    { OWN("qwen3"), CHAT_TEMPLATE_CHATML, "{%- set thinks = true -%}" },
    { OWN("llama3"), CHAT_TEMPLATE_LLAMA3, "" },
    { OWN("llama3.1"), CHAT_TEMPLATE_LLAMA3_1, "" },
    { OWN("mistral-v1"), CHAT_TEMPLATE_MISTRAL,
      "{%- set before, after, at_first = ' [INST] ', ' [/INST]', true -%}" },
    { OWN("mistral-v3"), CHAT_TEMPLATE_MISTRAL,
      "{%- set before, after, at_first = '[INST] ', '[/INST]', false -%}" },
};

const struct chat_format *chat_format_at(size_t i)
{
    static const struct chat_format *const CODE[] = { &CHAT_CHATGLM, &CHAT_CHATGLM2, &CHAT_CHATGLM3,
                                                      &CHAT_GLM4,    &CHAT_LLAMA2,   &CHAT_BAICHUAN };
    size_t n_code = sizeof CODE / sizeof *CODE, n_own = sizeof OWN_TEMPLATES / sizeof *OWN_TEMPLATES;
    if (i < n_code)
        return CODE[i];
    return i < n_code + n_own ? &OWN_TEMPLATES[i - n_code].format : NULL;
}

bool chat_add_own_template(const struct chat_format *format, struct buf *out)
{
    const struct own_template *own = (const void *)format; /* its first member */
    return buf_add_string(out, own->settings) && buf_add_string(out, own->text);
}

const struct chat_format *chat_format_find(const char *name)
{
    const struct chat_format *format;
    for (size_t i = 0; (format = chat_format_at(i)); i++) {
        if (strcmp(format->name, name) == 0)
            return format;
    }
    return NULL;
}

/* ---- a request's prompt ---- */

static enum tutti_status read_json(json_t **out, const char *text, const char *param, bool is_list,
                                   struct tutti_error *err)
{
    json_error_t where;
    *out = NULL;
    if (!text)
        return TUTTI_OK;
    *out = json_load_wide(text, strlen(text), JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (*out && (is_list ? json_is_array(*out) : json_is_object(*out)))
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: %s", param,
                           *out          ? is_list ? "expected a list" : "expected an object"
                           : *where.text ? where.text
                                         : "no JSON");
}

static const char CONTINUES[] = "continue_final_message";

static enum tutti_status check_beginning(const struct chat_call *call, struct tutti_error *err)
{
    const struct tutti_message *last = call->n_messages > 0 ? &call->messages[call->n_messages - 1] : NULL;
    const char *why = json_is_true(json_object_get(call->arguments, "add_generation_prompt"))
                          ? "cannot go together with add_generation_prompt"
                      : !last || strcmp(last->role, "assistant") != 0
                          ? "the last message must come from the assistant"
                      : last->tool_calls   ? "the last message has tool calls"
                      : last->n_bytes == 0 ? "the last message has no content"
                                           : NULL;
    if (!why)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, CONTINUES, "%s: %s", CONTINUES, why);
}

enum tutti_status chat_add_beginning(const struct chat_call *call, struct ids *out, struct tutti_error *err)
{
    const struct tutti_message *last = &call->messages[call->n_messages - 1];
    return !call->continues || tokenizer_encode(call->tok, last->content, last->n_bytes, out)
               ? TUTTI_OK
               : tokenizer_encode_error(out, err);
}

bool chat_continues(const struct tutti_request *request)
{
    json_t *arguments = NULL;
    enum tutti_status st = read_json(&arguments, request->template_arguments, "", false, NULL);
    bool continues = st == TUTTI_OK && json_is_true(json_object_get(arguments, CONTINUES));
    json_decref(arguments);
    return continues;
}

enum tutti_status chat_render_code(const struct chat_format *format, const struct chat_call *call,
                                   struct ids *out, struct tutti_error *err)
{
    const char *param = NULL;
    if (call->continues) {
        enum tutti_status st = check_beginning(call, err);
        if (st != TUTTI_OK)
            return st;
    } else if (json_is_false(json_object_get(call->arguments, "add_generation_prompt"))) {
        param = "add_generation_prompt";
    }
    if (json_array_size(json_object_get(call->arguments, "documents")) > 0)
        param = "documents";
    if (param)
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s is not supported by the chat format %s, which is no template", param,
                               format->name);
    return format->render(call, out, err);
}

enum tutti_status chat_render(const struct model *model, const struct tutti_request *request, struct ids *out,
                              struct tutti_error *err)
{
    json_t *tools = NULL, *arguments = NULL;
    enum tutti_status st = read_json(&tools, request->tools, "tools", true, err);
    if (st == TUTTI_OK)
        st = read_json(&arguments, request->template_arguments, "chat_template_kwargs", false, err);
    if (st == TUTTI_OK) {
        struct chat_call call = { .tok = model->tokenizer,
                                  .desc = &model->desc,
                                  .tpl = model->chat_template,
                                  .messages = request->messages,
                                  .n_messages = request->n_messages,
                                  .tools = json_array_size(tools) > 0 ? tools : NULL,
                                  .arguments = arguments,
                                  .continues = json_is_true(json_object_get(arguments, CONTINUES)) };
        st = model->chat_template ? model->chat->render(&call, out, err)
                                  : chat_render_code(model->chat, &call, out, err);
    }
    /* A template renders text, which cannot mark the end of the bidirectional prefix. */
    if (st == TUTTI_OK && model->desc.has_prefix &&
        model_find_prefix(&model->desc, out->ids, (int)out->n).has_no_end)
        st = model_text_suffix(model, out, err);
    json_decref(tools);
    json_decref(arguments);
    return st;
}

/* ---- for formats ---- */

enum tutti_status chat_print(struct buf *out, const char *source, const json_t *x, struct tutti_error *err)
{
    struct template *tpl = NULL;
    struct template_output text = { 0 };
    json_t *variables = json_object();
    enum tutti_status st;
    if (!variables || json_object_set(variables, "x", (json_t *)(uintptr_t)x) != 0)
        st = chat_out_of_memory(err);
    else
        st = template_compile(&tpl, source, strlen(source), "chat", err);
    if (st == TUTTI_OK)
        st = template_render(tpl, &(struct template_input){ .user = variables }, &text, err);
    if (st == TUTTI_OK && !buf_add(out, text.text, text.n_bytes))
        st = chat_out_of_memory(err);
    template_output_clear(&text);
    template_free(tpl);
    json_decref(variables);
    return st;
}

const json_t *chat_tool_function(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return json_is_object(function) ? function : tool;
}

enum tutti_status chat_refuse_tools(const struct chat_call *call, const char *format, struct tutti_error *err)
{
    if (call->tools)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tools", "the chat format %s knows no tools", format);
    for (size_t i = 0; i < call->n_messages; i++) {
        if (call->messages[i].tool_calls)
            return error_set_param(err, TUTTI_E_ARGUMENT, "messages",
                                   "messages[%zu]: the chat format %s knows no tools", i, format);
    }
    return TUTTI_OK;
}

static json_t *read_call(const json_t *entry)
{
    const json_t *function = chat_tool_function(entry), *arguments = json_object_get(function, "arguments");
    json_t *parsed = NULL;
    json_error_t why;
    if (json_is_string(arguments))
        parsed = json_load_wide(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL,
                                &why);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        parsed = arguments ? json_incref((json_t *)(uintptr_t)arguments) : json_object();
    }
    return json_pack("{s:O?, s:o}", "name", json_object_get(function, "name"), "arguments", parsed);
}

enum tutti_status chat_read_calls(json_t **out, const struct tutti_message *message, size_t index,
                                  struct tutti_error *err)
{
    char param[64];
    json_t *list = NULL, *calls = NULL;
    size_t i;
    const json_t *entry;
    snprintf(param, sizeof param, "messages[%zu].tool_calls", index);
    enum tutti_status st = read_json(&list, message->tool_calls, param, true, err);
    if (st != TUTTI_OK)
        goto done;
    calls = json_array();
    json_array_foreach(list, i, entry)
    {
        if (!json_is_string(json_object_get(chat_tool_function(entry), "name"))) {
            st = error_set_param(err, TUTTI_E_ARGUMENT, param, "%s[%zu] has no function name", param, i);
            goto done;
        }
        if (json_array_append_new(calls, read_call(entry)) != 0) {
            st = chat_out_of_memory(err);
            goto done;
        }
    }
    if (!calls) {
        st = chat_out_of_memory(err);
        goto done;
    }
    *out = calls;
    calls = NULL;
done:
    json_decref(list);
    json_decref(calls);
    return st;
}
