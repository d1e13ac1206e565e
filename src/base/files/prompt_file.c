#include "base/files/prompt_file.h"

#include "base/containers/array.h"
#include "base/files/prompt_lines.h"
#include "base/json/json_field.h"
#include "base/json/json_type.h"
#include "base/limits.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static enum tutti_status check_message(const json_t *message, size_t index, enum prompt_use use,
                                       struct tutti_error *err)
{
    struct json_place at = { .err = err };
    const char *text;
    snprintf(at.prefix, sizeof at.prefix, "messages[%zu].", index);
    if (!json_is_object(message))
        return json_unexpected(&at, "", message, "an object");
    enum tutti_status st = json_get_string(&at, message, "role", &text);
    if (st == TUTTI_OK && use == PROMPTS_TO_RUN)
        st = json_get_string(&at, message, "content", &text);
    if (st == TUTTI_OK && use == PROMPTS_TO_RUN && json_field(message, "name"))
        st = json_get_string(&at, message, "name", &text);
    return st;
}

static enum tutti_status check_messages(const json_t *messages, enum prompt_use use, struct tutti_error *err)
{
    size_t i;
    const json_t *message;
    struct json_place at = { .err = err };
    enum tutti_status st = TUTTI_OK;
    if (json_array_size(messages) == 0)
        return json_unexpected(&at, "messages", messages, "a list of messages");
    json_array_foreach(messages, i, message) if (st == TUTTI_OK) st = check_message(message, i, use, err);
    return st;
}

static enum tutti_status set_member(struct file_prompt *prompt, const json_t *line, const char *key,
                                    json_t *value, struct tutti_error *err)
{
    struct json_place at = { .err = err };
    if (strcmp(key, "prompt") == 0) {
        prompt->n_bytes = json_string_length(value);
        return json_get_string(&at, line, key, &prompt->text);
    }
    if (strcmp(key, "messages") == 0) {
        prompt->messages = value;
        return TUTTI_OK;
    }
    if (strcmp(key, "max_tokens") != 0 && strcmp(key, "output_len") != 0)
        return error_set(err, TUTTI_E_FORMAT,
                         "found the key \"%.64s\", expected \"prompt\", \"messages\", \"max_tokens\" or "
                         "\"output_len\"",
                         key);
    int64_t n = 0;
    if (prompt->max_tokens)
        return error_set(err, TUTTI_E_FORMAT, "expected either \"max_tokens\" or \"output_len\"");
    enum tutti_status st = json_get_int(&at, line, key, 1, LIMIT_CONTEXT, &n);
    prompt->max_tokens = (int)n;
    return st;
}

static enum tutti_status add_json(struct prompt_file *prompts, const char *line, size_t n_bytes,
                                  enum prompt_use use, struct tutti_error *err)
{
    json_error_t json_err;
    json_t *value = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &json_err), *member;
    const char *key;
    if (!value)
        return error_set(err, TUTTI_E_FORMAT, "column %d: %s", json_err.column, json_err.text);
    if (json_array_append_new(prompts->values, value) != 0)
        return error_out_of_memory("the prompts", err);
    if (!json_is_object(value))
        return error_set(err, TUTTI_E_FORMAT, "found %s, expected an object", json_type_name(value));
    enum tutti_status st = prompt_file_add(prompts, NULL, 0, err);
    json_object_foreach(value, key, member)
    {
        if (st == TUTTI_OK)
            st = set_member(&prompts->list[prompts->n - 1], value, key, member, err);
    }
    if (st != TUTTI_OK)
        return st;
    const struct file_prompt *prompt = &prompts->list[prompts->n - 1];
    if (!prompt->text == !prompt->messages)
        return error_set(err, TUTTI_E_FORMAT, "expected either \"prompt\" or \"messages\"");
    return prompt->messages ? check_messages(prompt->messages, use, err) : TUTTI_OK;
}

enum tutti_status prompt_file_read(struct prompt_file *out, const char *name, enum prompt_use use,
                                   struct tutti_error *err)
{
    struct prompt_lines lines = { .bytes = out->bytes.bytes, .n_bytes = out->bytes.n_bytes };
    enum tutti_status st = TUTTI_OK;
    out->values = json_array();
    if (!out->values)
        return error_out_of_memory("the prompts", err);
    while (st == TUTTI_OK && prompt_lines_next(&lines)) {
        if (lines.is_json)
            st = add_json(out, lines.line, lines.n_line_bytes, use, err);
        else if (use == PROMPTS_TO_SEND && !utf8_is_valid(lines.line, lines.n_line_bytes))
            st = error_set(err, TUTTI_E_FORMAT, "it is no valid UTF-8");
        else
            st = prompt_file_add(out, lines.line, lines.n_line_bytes, err);
        if (st != TUTTI_OK)
            error_prefix(err, "%s, line %zu", name, lines.number);
    }
    if (st == TUTTI_OK && out->n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: there is no prompt in it", name);
    return st;
}

enum tutti_status prompt_file_add(struct prompt_file *out, const char *text, size_t n_bytes,
                                  struct tutti_error *err)
{
    if (!array_grow(&out->list, out->n, &out->capacity, sizeof *out->list))
        return error_out_of_memory("the prompts", err);
    out->list[out->n++] = (struct file_prompt){ .text = text, .n_bytes = n_bytes };
    return TUTTI_OK;
}

void prompt_file_clear(struct prompt_file *prompts)
{
    free(prompts->list);
    json_decref(prompts->values);
    buf_clear(&prompts->bytes);
    *prompts = (struct prompt_file){ 0 };
}
