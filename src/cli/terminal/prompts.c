#include "cli/terminal/prompts.h"

#include "base/array.h"
#include "base/buf.h"
#include "base/files/prompt_lines.h"
#include "base/json/json_field.h"
#include "cli/terminal/input.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Texts of plain prompts point into the bytes of the file, those of JSON Lines into the parsed
 * values. */
struct prompt_storage {
    struct buf bytes;
    json_t *values; /* array */
};

static struct prompt_storage *storage_of(struct prompts *prompts)
{
    if (!prompts->storage)
        prompts->storage = calloc(1, sizeof(struct prompt_storage));
    return prompts->storage;
}

static struct prompt *add_prompt(struct prompts *prompts)
{
    if (!array_grow(&prompts->prompts, prompts->n, &prompts->capacity, sizeof *prompts->prompts))
        return NULL;
    struct prompt *prompt = &prompts->prompts[prompts->n++];
    *prompt = (struct prompt){ 0 };
    return prompt;
}

static enum tutti_status set_message(struct tutti_message *message, const json_t *value, size_t index,
                                     struct tutti_error *err)
{
    struct json_place at = { .err = err };
    snprintf(at.prefix, sizeof at.prefix, "messages[%zu].", index);
    *message = (struct tutti_message){ .n_bytes = json_string_length(json_object_get(value, "content")) };
    if (!json_is_object(value))
        return json_unexpected(&at, "", value, "an object");
    enum tutti_status st = json_get_string(&at, value, "role", &message->role);
    if (st == TUTTI_OK)
        st = json_get_string(&at, value, "content", &message->content);
    if (st == TUTTI_OK && json_field(value, "name"))
        st = json_get_string(&at, value, "name", &message->name);
    return st;
}

static enum tutti_status set_messages(struct prompt *prompt, const json_t *messages, struct tutti_error *err)
{
    struct json_place at = { .err = err };
    size_t n = json_array_size(messages);
    if (n == 0)
        return json_unexpected(&at, "messages", messages, "a list of messages");
    prompt->messages = calloc(n, sizeof *prompt->messages);
    if (!prompt->messages)
        return error_out_of_memory("the prompts", err);
    for (; prompt->n_messages < n; prompt->n_messages++) {
        enum tutti_status st = set_message(&prompt->messages[prompt->n_messages],
                                           json_array_get(messages, prompt->n_messages), prompt->n_messages,
                                           err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* values takes ownership of the parsed JSON. */
static enum tutti_status add_json(struct prompts *prompts, json_t *values, const char *line, size_t n_bytes,
                                  struct tutti_error *err)
{
    json_error_t json_err;
    json_t *value = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &json_err);
    if (!value)
        return error_set(err, TUTTI_E_FORMAT, "column %d: %s", json_err.column, json_err.text);
    if (json_array_append_new(values, value) != 0)
        return error_out_of_memory("the prompts", err);
    const json_t *text = json_object_get(value, "prompt"), *messages = json_object_get(value, "messages");
    const char *key;
    json_t *member;
    json_object_foreach(
        value, key,
        member) if (strcmp(key, "prompt") != 0 &&
                    strcmp(key, "messages") !=
                        0) return error_set(err, TUTTI_E_FORMAT,
                                            "found the key \"%.64s\", expected \"prompt\" or \"messages\"",
                                            key);
    if (!text == !messages)
        return error_set(err, TUTTI_E_FORMAT, "expected either \"prompt\" or \"messages\"");
    struct prompt *prompt = add_prompt(prompts);
    if (!prompt)
        return error_out_of_memory("the prompts", err);
    if (messages)
        return set_messages(prompt, messages, err);
    struct json_place at = { .err = err };
    prompt->n_bytes = json_string_length(text);
    return json_get_string(&at, value, "prompt", &prompt->text);
}

static enum tutti_status add_prompt_line(struct prompts *prompts, const struct prompt_lines *lines,
                                         struct tutti_error *err)
{
    struct prompt_storage *storage = prompts->storage;
    if (lines->is_json)
        return add_json(prompts, storage->values, lines->line, lines->n_line_bytes, err);
    struct prompt *prompt = add_prompt(prompts);
    if (!prompt)
        return error_out_of_memory("the prompts", err);
    prompt->text = lines->line;
    prompt->n_bytes = lines->n_line_bytes;
    return TUTTI_OK;
}

enum tutti_status prompts_read(struct prompts *out, const char *path, struct tutti_error *err)
{
    struct prompt_storage *storage = storage_of(out);
    if (!storage || !(storage->values = json_array()))
        return error_out_of_memory("the prompts", err);
    enum tutti_status st = input_read(&storage->bytes, path, err);
    struct prompt_lines lines = { .bytes = storage->bytes.bytes, .n_bytes = storage->bytes.n_bytes };
    while (st == TUTTI_OK && prompt_lines_next(&lines)) {
        st = add_prompt_line(out, &lines, err);
        if (st != TUTTI_OK)
            error_prefix(err, "%s, line %zu", input_name(path), lines.number);
    }
    if (st == TUTTI_OK && out->n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: there is no prompt in it", input_name(path));
    return st;
}

enum tutti_status prompts_borrow(struct prompts *out, const char *text, size_t n_bytes,
                                 struct tutti_error *err)
{
    struct prompt *prompt = add_prompt(out);
    if (!prompt)
        return error_out_of_memory("the prompts", err);
    prompt->text = text;
    prompt->n_bytes = n_bytes;
    return TUTTI_OK;
}

enum tutti_status prompts_single(struct prompts *out, const char *text, size_t n_bytes,
                                 struct tutti_error *err)
{
    struct prompt_storage *storage = storage_of(out);
    if (!storage || !buf_add(&storage->bytes, text, n_bytes))
        return error_out_of_memory("the prompts", err);
    struct prompt *prompt = add_prompt(out);
    if (!prompt)
        return error_out_of_memory("the prompts", err);
    prompt->text = storage->bytes.bytes;
    prompt->n_bytes = storage->bytes.n_bytes;
    return TUTTI_OK;
}

void prompts_clear(struct prompts *prompts)
{
    struct prompt_storage *storage = prompts->storage;
    for (size_t i = 0; i < prompts->n; i++)
        free(prompts->prompts[i].messages);
    free(prompts->prompts);
    if (storage) {
        buf_clear(&storage->bytes);
        json_decref(storage->values);
        free(storage);
    }
    *prompts = (struct prompts){ 0 };
}
