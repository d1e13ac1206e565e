/* Which chat format a checkpoint has, and what formats share. */
#include "model/chat.h"

#include "base/log.h"
#include "base/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The checkpoint's own template, or a file's. */
static const struct chat_format CHAT_TEMPLATE = { .name = "template", .render = chat_render_template };

#define OWN(format)                                                                                          \
    {                                                                                                        \
        .name = (format), .render = chat_render_template, .is_own_template = true                            \
    }
static const struct chat_format OWN_FORMATS[] = { OWN("chatml"),     OWN("qwen2"),     OWN("qwen2.5"),
                                                  OWN("qwen3"),      OWN("llama3"),    OWN("llama3.1"),
                                                  OWN("mistral-v1"), OWN("mistral-v3") };

/* Every format that goes by a name. NULL behind the last. */
static const struct chat_format *format_at(size_t i)
{
    static const struct chat_format *const CODE[] = { &CHAT_CHATGLM, &CHAT_CHATGLM2, &CHAT_CHATGLM3,
                                                      &CHAT_GLM4, &CHAT_LLAMA2 };
    size_t n_code = sizeof CODE / sizeof *CODE, n_own = sizeof OWN_FORMATS / sizeof *OWN_FORMATS;
    if (i < n_code)
        return CODE[i];
    return i < n_code + n_own ? &OWN_FORMATS[i - n_code] : NULL;
}

const struct chat_format *chat_format_find(const char *name)
{
    const struct chat_format *format;
    for (size_t i = 0; (format = format_at(i)); i++) {
        if (strcmp(format->name, name) == 0)
            return format;
    }
    return NULL;
}

/* ---- choosing ---- */

struct choice {
    const struct chat_source *source;
    const struct tokenizer *tok;
    const struct chat_format **format;
    struct chat_template **tpl;
};

static enum tutti_status choose_own(const struct choice *c, const struct chat_format *format,
                                    struct tutti_error *err)
{
    struct buf text = { 0 };
    enum tutti_status st = TUTTI_OK;
    const char *part;
    for (size_t i = 0; format->is_own_template && (part = chat_source(format->name, i)); i++) {
        if (!buf_add_string(&text, part))
            st = chat_out_of_memory(err);
    }
    if (st == TUTTI_OK && format->is_own_template)
        st = chat_template_new(c->tpl, text.bytes, NULL, format->name, c->tok, c->source->tokenizer_config,
                               err);
    if (st == TUTTI_OK)
        *c->format = format;
    buf_clear(&text);
    return st;
}

static enum tutti_status choose_file(const struct choice *c, const char *path, struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    struct buf text = { 0 };
    st = buf_add(&text, map.bytes ? (const char *)map.bytes : "", map.n_bytes) ? TUTTI_OK
                                                                               : chat_out_of_memory(err);
    if (st == TUTTI_OK)
        st = chat_template_new(c->tpl, text.bytes, NULL, path, c->tok, c->source->tokenizer_config, err);
    if (st == TUTTI_OK)
        *c->format = &CHAT_TEMPLATE;
    buf_clear(&text);
    mapping_close(&map);
    return st;
}

const char *chat_template_of_list(const json_t *list, const char *name)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(list, i, entry)
    {
        const char *own = json_string_value(json_object_get(entry, "name"));
        if (own && strcmp(own, name) == 0)
            return json_string_value(json_object_get(entry, "template"));
    }
    return NULL;
}

/* False: the checkpoint has none. */
static bool choose_checkpoint(const struct choice *c, enum tutti_status *st, struct tutti_error *err)
{
    char path[4096];
    const struct chat_source *source = c->source;
    if (source->folder &&
        snprintf(path, sizeof path, "%s/chat_template.jinja", source->folder) < (int)sizeof path &&
        access(path, F_OK) == 0) {
        *st = choose_file(c, path, err);
        return true;
    }
    const json_t *value = json_object_get(source->tokenizer_config, "chat_template");
    const char *text = json_string_value(value), *tool_text = NULL;
    if (json_is_array(value)) {
        text = chat_template_of_list(value, "default");
        tool_text = chat_template_of_list(value, "tool_use");
    }
    if (!text && !source->folder) {
        text = json_string_value(json_object_get(source->config, "tokenizer.chat_template"));
        tool_text = json_string_value(json_object_get(source->config, "tokenizer.chat_template.tool_use"));
    }
    if (!text)
        return false;
    *st = chat_template_new(c->tpl, text, tool_text, "chat_template", c->tok, source->tokenizer_config, err);
    if (*st == TUTTI_OK)
        *c->format = &CHAT_TEMPLATE;
    return true;
}

/* Without a template: by the special tokens that only one format has. */
static const char *guess_name(const struct tokenizer *tok)
{
    if (tokenizer_find_control(tok, "<|im_start|>") >= 0)
        return "chatml";
    if (tokenizer_find_control(tok, "<|start_header_id|>") >= 0 &&
        tokenizer_find_control(tok, "<|eot_id|>") >= 0)
        return "llama3";
    if (tokenizer_find_control(tok, "[INST]") >= 0 && tokenizer_find_control(tok, "[/INST]") >= 0)
        return "mistral-v3";
    return NULL;
}

static enum tutti_status unknown_name(const char *name, struct tutti_error *err)
{
    char known[256] = "";
    const struct chat_format *format;
    for (size_t i = 0; (format = format_at(i)); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s, ", format->name);
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "chat_format",
        "chat format \"%.64s\", expected %stemplate (the checkpoint's own) or a file of a template", name,
        known);
}

static enum tutti_status choose_option(const struct choice *c, struct tutti_error *err)
{
    const char *name = c->source->option;
    const struct chat_format *format = chat_format_find(name);
    enum tutti_status st;
    if (format)
        return choose_own(c, format, err);
    if (strcmp(name, "template") == 0) {
        if (choose_checkpoint(c, &st, err))
            return st;
        return error_set_param(err, TUTTI_E_ARGUMENT, "chat_format", "the checkpoint has no chat template");
    }
    return access(name, F_OK) == 0 || strchr(name, '/') ? choose_file(c, name, err) : unknown_name(name, err);
}

enum tutti_status chat_choose(const struct chat_format **format, struct chat_template **tpl,
                              const struct chat_source *source, const struct tokenizer *tok,
                              struct tutti_error *err)
{
    struct choice c = { source, tok, format, tpl };
    enum tutti_status st;
    struct tutti_error inner;
    *format = NULL;
    *tpl = NULL;
    if (source->option)
        return choose_option(&c, err);
    const struct chat_format *own = chat_format_find(source->family);
    if (own)
        return choose_own(&c, own, err);
    if (choose_checkpoint(&c, &st, &inner)) {
        if (st == TUTTI_E_MEMORY)
            return error_set(err, st, "%s", inner.text);
        if (st != TUTTI_OK)
            log_warn("no chat format, so messages are refused: %s", inner.text);
        return TUTTI_OK;
    }
    const char *guess = guess_name(tok);
    return guess ? choose_own(&c, chat_format_find(guess), err) : TUTTI_OK;
}

/* ---- a request's prompt ---- */

static enum tutti_status read_json(json_t **out, const char *text, const char *param, bool is_list,
                                   struct tutti_error *err)
{
    json_error_t where;
    *out = NULL;
    if (!text)
        return TUTTI_OK;
    *out = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (*out && (is_list ? json_is_array(*out) : json_is_object(*out)))
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: %s", param,
                           *out          ? is_list ? "expected a list" : "expected an object"
                           : *where.text ? where.text
                                         : "no JSON");
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
                                  .arguments = arguments };
        st = model->chat->render(&call, out, err);
    }
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

bool chat_has_tool(const json_t *tools, const char *name, size_t n_bytes)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *own = json_object_get(chat_tool_function(tool), "name");
        if (json_string_length(own) == n_bytes && memcmp(json_string_value(own), name, n_bytes) == 0)
            return true;
    }
    return false;
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
    if (json_is_string(arguments))
        parsed = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL,
                            NULL);
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
