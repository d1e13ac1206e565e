/* Parses the prompt of a request: messages, texts or ids. */
#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "server/requests/openai_fields.h"
#include "server/requests/openai_request.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ---- */

/* Joins content that is a list of text parts, without separators. */
static enum tutti_status join_parts(struct buf *out, const json_t *parts, size_t message,
                                    struct tutti_error *err)
{
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part)
    {
        char param[64];
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", message, i);
        if (!json_is_object(part) || !json_is_string(type))
            return error_set_param(
                err, TUTTI_E_ARGUMENT, param,
                "%s must be an object with a type, such as {\"type\": \"text\", \"text\": ...}", param);
        if (strcmp(json_string_value(type), "text"))
            return error_set_param(
                err, TUTTI_E_ARGUMENT, param,
                "%s: type \"%.32s\": models read text only here, expected parts of type text", param,
                json_string_value(type));
        if (!json_is_string(text)) {
            char name[80];
            snprintf(name, sizeof name, "%s.text", param);
            return json_wrong_part(param, name, "a string", text, err);
        }
        if (!buf_add(out, json_string_value(text), json_string_length(text)))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the messages");
    }
    if (!out->bytes && !buf_add(out, "", 0))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the messages");
    return TUTTI_OK;
}

enum tutti_status api_dump(struct api_request *req, const json_t *value, const char **text,
                           struct tutti_error *err)
{
    char *dumped = json_print(value, JSON_COMPACT);
    if (!dumped)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the messages");
    req->dumped[req->n_dumped++] = dumped;
    *text = dumped;
    return TUTTI_OK;
}

/* Checks the description, parameters and strict of a function, and that none is misspelt. */
static enum tutti_status check_description(const json_t *function, const char *param, struct tutti_error *err)
{
    static const struct {
        const char *name;
        enum json_kind kind;
        const char *expected;
    } PARTS[] = { { "description", JSON_KIND_STRING, "a string" },
                  { "parameters", JSON_KIND_OBJECT, "an object" },
                  { "strict", JSON_KIND_BOOL, "true or false" } };
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        const json_t *value = json_field(function, PARTS[i].name);
        char name[96];
        snprintf(name, sizeof name, "%s.function.%s", param, PARTS[i].name);
        if (value && !json_is_kind(value, PARTS[i].kind))
            return json_wrong_part(param, name, PARTS[i].expected, value, err);
    }
    char path[80];
    snprintf(path, sizeof path, "%s.function", param);
    return api_check_fields(function, API_IN_FUNCTION, path, err);
}

/* Checks {"type": "function", "function": {"name": "..."}}, of a tool or of a call, which has
 * arguments as well. */
static enum tutti_status check_function(const json_t *value, const char *param, bool is_call,
                                        struct tutti_error *err)
{
    const json_t *type = json_object_get(value, "type"), *function = json_object_get(value, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_object(value))
        return json_wrong_type(param, "an object", value, err);
    if ((!is_call || type) && (!json_is_string(type) || strcmp(json_string_value(type), "function")))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: the only type supported is \"function\"",
                               param);
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must have a function with a name", param);
    enum tutti_status st = is_call ? TUTTI_OK : check_description(function, param, err);
    if (st != TUTTI_OK)
        return st;
    const json_t *id = json_field(value, "id");
    if (is_call && id && !json_is_string(id)) {
        char name[96];
        snprintf(name, sizeof name, "%s.id", param);
        return json_wrong_part(param, name, "a string", id, err);
    }
    if (is_call && arguments && !json_is_string(arguments) && !json_is_object(arguments)) {
        char name[96];
        snprintf(name, sizeof name, "%s.function.arguments", param);
        return json_wrong_part(param, name, "a string", arguments, err);
    }
    return TUTTI_OK;
}

enum tutti_status api_check_functions(const json_t *list, const char *name, bool is_call,
                                      struct tutti_error *err)
{
    size_t i;
    const json_t *entry;
    if (!json_is_array(list))
        return json_wrong_type(name, "a list", list, err);
    json_array_foreach(list, i, entry)
    {
        char param[64];
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        enum tutti_status st = check_function(entry, param, is_call, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* Reads a text that may be absent or null: then *out is unchanged. */
static enum tutti_status read_text(const char **out, const json_t *value, const char *name, size_t i,
                                   struct tutti_error *err)
{
    char param[64];
    const json_t *text = json_field(value, name);
    if (!text)
        return TUTTI_OK;
    snprintf(param, sizeof param, "messages[%zu].%s", i, name);
    *out = json_string_value(text);
    return json_require(text, JSON_KIND_STRING, param, err);
}

/* Reads fields of some roles: an assistant's tool calls and reasoning, a tool's tool_call_id. */
static enum tutti_status read_extras(struct api_request *req, struct tutti_message *message,
                                     const json_t *value, size_t i, struct tutti_error *err)
{
    char param[64];
    const json_t *calls = json_field(value, "tool_calls");
    enum tutti_status st = read_text(&message->name, value, "name", i, err);
    if (st == TUTTI_OK)
        st = read_text(&message->tool_call_id, value, "tool_call_id", i, err);
    if (st == TUTTI_OK)
        st = read_text(&message->reasoning, value, "reasoning", i, err);
    if (st == TUTTI_OK)
        st = read_text(&message->reasoning, value, "reasoning_content", i, err);
    if (st == TUTTI_OK)
        st = read_text(&message->reasoning, value, "thinking", i, err);
    if (st != TUTTI_OK || !calls)
        return st;
    snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
    st = api_check_functions(calls, param, true, err);
    return st == TUTTI_OK && json_array_size(calls) > 0 ? api_dump(req, calls, &message->tool_calls, err)
                                                        : st;
}

/* A mark of the begin of an answer, in the last message: "prefix" of DeepSeek and Mistral, "partial" of Moonshot and
 * DashScope. */
static enum tutti_status read_mark(struct api_request *req, const json_t *value, const char *name, size_t i,
                                   struct tutti_error *err)
{
    const json_t *mark = json_field(value, name);
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].%s", i, name);
    if (mark && !json_is_boolean(mark))
        return json_wrong_type(param, "true or false", mark, err);
    if (!json_is_true(mark))
        return TUTTI_OK;
    req->continues = true;
    if (i + 1 == req->n_messages && !strcmp(req->messages[i].role, "assistant"))
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, param,
                           "%s is only allowed in the last message, of the role assistant", param);
}

static enum tutti_status read_message(struct api_request *req, const json_t *value, size_t i,
                                      struct tutti_error *err)
{
    char param[64];
    struct tutti_message *message = &req->messages[i];
    const json_t *role = json_object_get(value, "role"), *content = json_object_get(value, "content");
    snprintf(param, sizeof param, "messages[%zu]", i);
    if (!json_is_object(value))
        return json_wrong_type(param, "an object", value, err);
    enum tutti_status st = api_check_fields(value, API_IN_MESSAGE, param, err);
    if (st != TUTTI_OK)
        return st;
    snprintf(param, sizeof param, "messages[%zu].role", i);
    if (!json_is_string(role))
        return json_wrong_type(param, "a string", role, err);
    snprintf(param, sizeof param, "messages[%zu].content", i);
    message->role = json_string_value(role);
    if (!strcmp(message->role, "developer")) /* OpenAI's newer name */
        message->role = "system";
    if (json_is_string(content)) {
        message->content = json_string_value(content);
        message->n_bytes = json_string_length(content);
    } else if (json_is_array(content)) {
        struct buf *joined = &req->joined[req->n_joined++];
        st = join_parts(joined, content, i, err);
        if (st != TUTTI_OK)
            return st;
        message->content = joined->bytes;
        message->n_bytes = joined->n_bytes;
    } else if ((!content || json_is_null(content)) && !strcmp(message->role, "assistant")) {
        message->content = "";
        message->content_kind = content ? TUTTI_CONTENT_NULL : TUTTI_CONTENT_ABSENT;
    } else {
        return json_wrong_type(param, "a string or a list of parts", content, err);
    }
    st = read_mark(req, value, "prefix", i, err);
    if (st == TUTTI_OK)
        st = read_mark(req, value, "partial", i, err);
    return st == TUTTI_OK ? read_extras(req, message, value, i, err) : st;
}

enum tutti_status api_read_messages(struct api_request *req, struct tutti_error *err)
{
    const json_t *list = json_object_get(req->root, "messages");
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0)
        return json_wrong_type("messages", "a list of at least one message", list, err);
    if (n > API_MAX_MESSAGES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "messages",
                               "messages has %zu messages, at most %d are allowed", n, API_MAX_MESSAGES);
    req->messages = calloc(n, sizeof *req->messages);
    req->joined = calloc(n, sizeof *req->joined);
    req->dumped = calloc(n + 2, sizeof *req->dumped);
    if (!req->messages || !req->joined || !req->dumped)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the messages");
    req->n_messages = n;
    for (size_t i = 0; i < n; i++) {
        enum tutti_status st = read_message(req, json_array_get(list, i), i, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* ---- texts and ids ---- */

enum tutti_status api_tokenize(struct ids *out, const tutti_model *model, api_tokenize_fn *tokenize,
                               const char *text, size_t n_bytes, bool add_special, struct tutti_error *err)
{
    /* Most texts have fewer tokens than bytes. A normalizer may make a text longer (NFKC makes 18 letters of
     * U+FDFA): the second time there is room for all of it. */
    size_t n_room = n_bytes + 64;
    int32_t *ids = NULL;
    int64_t n = 0;
    for (int i = 0; i < 2 && (i == 0 || n > (int64_t)n_room); i++) {
        n_room = i > 0 ? (size_t)n : n_room;
        free(ids);
        ids = calloc(n_room, sizeof *ids);
        if (!ids)
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the tokens");
        n = tokenize(model, text, n_bytes, add_special, ids, n_room);
    }
    bool ok = n >= 0 && ids_add_all(out, ids, (size_t)n);
    free(ids);
    if (!ok)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "the model has no tokenizer, the text exceeds one of its limits, or out of memory");
    return TUTTI_OK;
}

enum tutti_status api_read_ids(struct ids *out, const json_t *list, const char *param, int n_vocab,
                               struct tutti_error *err)
{
    size_t i;
    const json_t *value;
    json_array_foreach(list, i, value)
    {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value)) {
            char name[80];
            snprintf(name, sizeof name, "%s[%zu]", param, i);
            return json_wrong_part(param, name, "a token id", value, err);
        }
        if (id < 0 || id >= n_vocab)
            return error_set_param(err, TUTTI_E_ARGUMENT, param,
                                   "%s[%zu] is %lld, expected an id from 0 to %d of the vocabulary", param, i,
                                   (long long)id, n_vocab - 1);
        if (!ids_add(out, (int32_t)id))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for %s", param);
    }
    return TUTTI_OK;
}

static enum tutti_status prompt_read(struct api_request *req, struct api_prompt *prompt, const json_t *value,
                                     const char *name, int n_vocab, struct tutti_error *err)
{
    if (json_is_string(value)) {
        prompt->text = json_string_value(value);
        prompt->n_text_bytes = json_string_length(value);
        return TUTTI_OK;
    }
    if (!json_is_array(value) || json_array_size(value) == 0)
        return json_wrong_type(
            name, "a string, a list of strings, a list of token ids or a list of such lists", value, err);
    prompt->first_id = req->ids.n;
    prompt->n_ids = json_array_size(value);
    return api_read_ids(&req->ids, value, name, n_vocab, err);
}

enum tutti_status api_read_prompts(struct api_request *req, const char *name, int n_vocab,
                                   struct tutti_error *err)
{
    const json_t *value = json_object_get(req->root, name), *first = json_array_get(value, 0);
    bool is_list = json_is_string(first) || json_is_array(first);
    size_t n = is_list ? json_array_size(value) : 1;
    if (n > API_MAX_PROMPTS)
        return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s has %zu prompts, at most %d are allowed",
                               name, n, API_MAX_PROMPTS);
    req->prompts = calloc(n, sizeof *req->prompts);
    if (!req->prompts)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the prompts");
    req->n_prompts = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = is_list ? json_array_get(value, i) : value;
        enum tutti_status st = prompt_read(req, &req->prompts[i], entry, name, n_vocab, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* ---- documents to rank ---- */

static enum tutti_status read_document(struct api_prompt *out, const json_t *value, size_t i,
                                       struct tutti_error *err)
{
    const json_t *text = json_is_object(value) ? json_object_get(value, "text") : value;
    char param[40];
    snprintf(param, sizeof param, "documents[%zu]", i);
    if (!json_is_string(text))
        return json_wrong_type(param, "a string, or an object whose text is a string", value, err);
    *out = (struct api_prompt){ .text = json_string_value(text), .n_text_bytes = json_string_length(text) };
    return TUTTI_OK;
}

enum tutti_status api_read_documents(struct api_request *req, bool are_pairs, struct tutti_error *err)
{
    const json_t *query = json_object_get(req->root, "query");
    const json_t *list = json_object_get(req->root, "documents");
    size_t n = json_array_size(list), first = !are_pairs;
    if (!json_is_string(query))
        return json_wrong_type("query", "a string", query, err);
    if (json_string_length(query) == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "query", "query must not be empty");
    if (!json_is_array(list) || n == 0)
        return json_wrong_type("documents", "a list of at least one document", list, err);
    if (n + first > API_MAX_PROMPTS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "documents",
                               "documents has %zu entries, at most %zu are allowed", n,
                               API_MAX_PROMPTS - first);
    req->prompts = calloc(n + first, sizeof *req->prompts);
    if (!req->prompts)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the documents");
    struct api_prompt asked = { .text = json_string_value(query), .n_text_bytes = json_string_length(query) };
    req->n_prompts = n + first;
    req->prompts[0] = asked;
    for (size_t i = 0; i < n; i++) {
        struct api_prompt *prompt = &req->prompts[first + i];
        enum tutti_status st = read_document(prompt, json_array_get(list, i), i, err);
        if (st != TUTTI_OK)
            return st;
        if (are_pairs) {
            prompt->pair = prompt->text;
            prompt->n_pair_bytes = prompt->n_text_bytes;
            prompt->text = asked.text;
            prompt->n_text_bytes = asked.n_text_bytes;
        }
    }
    return TUTTI_OK;
}
