#include "server/anthropic/anthropic_history.h"

#include "base/json/json_print.h"
#include "server/anthropic/anthropic_blocks.h"
#include "server/requests/openai_request.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The message being collected, from messages of one role in a row. */
struct history {
    json_t *messages; /* of the chat request */
    struct history_facts *facts;
    const char *role; /* NULL: no message so far */
    struct buf text, reasoning;
    bool has_text; /* a user's message has more than results of tools */
    json_t *calls; /* of an assistant's message */
    /* Sets of ids: of every call so far, and of those of the last assistant's message that have no result. */
    json_t *ids, *open_ids;
};

static enum tutti_status check_memory(int failed, struct tutti_error *err)
{
    return failed ? error_out_of_memory("request", err) : TUTTI_OK;
}

/* ---- the end of a message ---- */

static enum tutti_status refuse_open_calls(const struct history *h, struct tutti_error *err)
{
    const char *id = json_object_iter_key(json_object_iter(h->open_ids));
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "messages",
        "messages: tool_use \"%.64s\" has no tool_result: the user's message after a tool_use "
        "must begin with the tool_result of each",
        id ? id : "");
}

static json_t *text_value(const struct buf *text)
{
    return json_text(text->bytes, text->n_bytes);
}

/* Appends the collected message; the next one has another role. */
static enum tutti_status history_flush(struct history *h, struct tutti_error *err)
{
    bool is_assistant = h->role && !strcmp(h->role, "assistant"), has_calls = json_array_size(h->calls) > 0;
    int failed = 0;
    if (h->role && !is_assistant && json_object_size(h->open_ids) > 0)
        return refuse_open_calls(h, err);
    if (is_assistant || h->has_text) {
        json_t *content = has_calls && h->text.n_bytes == 0 ? json_null() : text_value(&h->text);
        json_t *message = json_pack("{s:s, s:o, s:O*}", "role", h->role, "content", content, "tool_calls",
                                    has_calls ? h->calls : NULL);
        if (h->reasoning.n_bytes > 0)
            failed = json_object_set_new(message, "reasoning_content", text_value(&h->reasoning));
        failed |= json_array_append_new(h->messages, message);
    }
    json_decref(h->calls);
    h->calls = NULL;
    h->role = NULL;
    h->has_text = false;
    buf_truncate(&h->text, 0);
    buf_truncate(&h->reasoning, 0);
    return check_memory(failed, err);
}

/* ---- blocks ---- */

static enum tutti_status add_tool_use(struct history *h, const json_t *block, const char *param,
                                      struct tutti_error *err)
{
    const char *id = json_string_value(json_field(block, "id"));
    const char *caller = json_string_value(json_field(json_field(block, "caller"), "type"));
    if (caller && strcmp(caller, "direct"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s.caller.type must be \"direct\": this server runs no tools itself", param);
    if (json_object_get(h->ids, id))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: duplicate id \"%.64s\" of a tool_use",
                               param, id);
    char *arguments = json_print(json_field(block, "input"), JSON_COMPACT);
    json_t *call = json_pack("{s:s, s:s, s:{s:O, s:s}}", "id", id, "type", "function", "function", "name",
                             json_object_get(block, "name"), "arguments", arguments ? arguments : "");
    if (!h->calls)
        h->calls = json_array();
    int failed = arguments ? 0 : -1;
    failed |= json_array_append_new(h->calls, call);
    failed |= json_object_set_new(h->ids, id, json_true());
    failed |= json_object_set_new(h->open_ids, id, json_true());
    free(arguments);
    return check_memory(failed, err);
}

/* Chats have no mark for a failed call, so its result says that it is an error. */
static enum tutti_status mark_error(struct buf *text, struct tutti_error *err)
{
    static const char MARK[] = "Error";
    struct buf marked = { 0 };
    bool is_marked = text->n_bytes >= sizeof MARK - 1 && !strncasecmp(text->bytes, MARK, sizeof MARK - 1);
    if (is_marked)
        return TUTTI_OK;
    bool ok = buf_add_string(&marked, MARK) && (text->n_bytes == 0 || buf_add_string(&marked, ": ")) &&
              buf_add(&marked, text->bytes, text->n_bytes);
    buf_clear(text);
    *text = marked;
    return check_memory(!ok, err);
}

static enum tutti_status add_tool_result(struct history *h, const json_t *block, const char *param,
                                         struct tutti_error *err)
{
    const char *id = json_string_value(json_field(block, "tool_use_id"));
    const json_t *content = json_field(block, "content");
    char place[BLOCK_PARAM_BYTES];
    struct buf text = { 0 };
    if (!json_object_get(h->open_ids, id))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, param,
            json_object_get(h->ids, id)
                ? "%s: tool_use_id \"%.64s\" is of no tool_use in the message before that "
                  "has no tool_result yet"
                : "%s: unexpected tool_use_id \"%.64s\": the message before has no tool_use "
                  "with this id",
            param, id);
    if (h->has_text)
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s: blocks of type tool_result must come first in their message", param);
    snprintf(place, sizeof place, "%.80s.content", param);
    enum tutti_status st = TUTTI_OK;
    if (content)
        st = blocks_add_text(&text, content, IN_RESULT, place, &h->facts->has_cache_control, err);
    if (st == TUTTI_OK && json_is_on(block, "is_error"))
        st = mark_error(&text, err);
    if (st == TUTTI_OK) {
        int failed = json_array_append_new(
            h->messages,
            json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", id, "content", text_value(&text)));
        st = check_memory(failed | json_object_del(h->open_ids, id), err);
    }
    buf_clear(&text);
    return st;
}

/* Blocks of a user or of the system are paragraphs; those of an assistant are the text as it was written. */
static enum tutti_status add_text(struct history *h, const json_t *block, enum block_type type,
                                  const char *param, struct tutti_error *err)
{
    bool is_joined = strcmp(h->role, "assistant") && h->text.n_bytes > 0;
    h->has_text = true;
    if (is_joined && !buf_add_string(&h->text, "\n"))
        return error_out_of_memory("request", err);
    return block_add_text(&h->text, block, type, param, err);
}

static enum tutti_status history_add_block(struct history *h, const json_t *block, enum block_place place,
                                           const char *param, struct tutti_error *err)
{
    enum block_type type = BLOCK_TEXT;
    enum tutti_status st = block_check(block, place, param, &type, err);
    if (st != TUTTI_OK)
        return st;
    h->facts->has_cache_control |= json_field(block, "cache_control") != NULL;
    switch (type) {
    case BLOCK_TOOL_USE:
        return add_tool_use(h, block, param, err);
    case BLOCK_TOOL_RESULT:
        return add_tool_result(h, block, param, err);
    case BLOCK_THINKING:
        return text_join(&h->reasoning, "\n", json_field(block, "thinking"), err);
    case BLOCK_REDACTED_THINKING:
        return TUTTI_OK; /* encrypted by the server that wrote it */
    default:
        return add_text(h, block, type, param, err);
    }
}

/* ---- messages ---- */

static enum tutti_status find_place(const json_t *message, const char *param, enum block_place *place,
                                    struct tutti_error *err)
{
    static const struct object_field FIELDS[] = { { "role", JSON_KIND_STRING, true, false },
                                                  { "content", JSON_KIND_STRING, false, true } };
    enum tutti_status st = object_check(message, param, FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    const char *role = json_string_value(json_field(message, "role"));
    if (st != TUTTI_OK)
        return st;
    if (!strcmp(role, "user"))
        *place = IN_USER;
    else if (!strcmp(role, "assistant"))
        *place = IN_ASSISTANT;
    else if (!strcmp(role, "system"))
        *place = IN_SYSTEM;
    else
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s.role must be \"user\", \"assistant\" or \"system\", found \"%.32s\"",
                               param, role);
    return TUTTI_OK;
}

static enum tutti_status history_add_message(struct history *h, const json_t *message, size_t index,
                                             struct tutti_error *err)
{
    char param[BLOCK_PARAM_BYTES];
    enum block_place place = IN_USER;
    size_t i;
    const json_t *content = json_object_get(message, "content"), *block;
    snprintf(param, sizeof param, "messages[%zu]", index);
    enum tutti_status st = find_place(message, param, &place, err);
    if (st != TUTTI_OK)
        return st;
    const char *role = json_string_value(json_object_get(message, "role"));
    if (h->role && strcmp(h->role, role))
        st = history_flush(h, err);
    h->role = role;
    snprintf(param, sizeof param, "messages[%zu].content", index);
    if (st != TUTTI_OK)
        return st;
    if (json_is_string(content)) {
        h->has_text = true;
        return text_join(&h->text, place == IN_ASSISTANT ? "" : "\n", content, err);
    }
    if (!json_is_array(content))
        return json_wrong_type(param, "a string or a list of blocks", content, err);
    h->has_text |= json_array_size(content) == 0;
    json_array_foreach(content, i, block)
    {
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", index, i);
        st = history_add_block(h, block, place, param, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

static enum tutti_status add_system(struct history *h, const json_t *root, struct tutti_error *err)
{
    const json_t *system = json_field(root, "system");
    if (!system)
        return TUTTI_OK;
    enum tutti_status st = blocks_add_text(&h->text, system, IN_SYSTEM, "system",
                                           &h->facts->has_cache_control, err);
    h->role = "system";
    h->has_text = h->text.n_bytes > 0; /* an empty one is none */
    return st == TUTTI_OK ? history_flush(h, err) : st;
}

static enum tutti_status add_messages(struct history *h, const json_t *root, struct tutti_error *err)
{
    const json_t *list = json_field(root, "messages");
    size_t n = json_array_size(list);
    enum tutti_status st = TUTTI_OK;
    if (n == 0)
        return json_wrong_type("messages", "a list of at least one message", list, err);
    if (n > API_MAX_MESSAGES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "messages",
                               "messages has %zu messages, at most %d are allowed", n, API_MAX_MESSAGES);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++)
        st = history_add_message(h, json_array_get(list, i), i, err);
    if (st != TUTTI_OK)
        return st;
    h->facts->ends_in_answer = !strcmp(h->role, "assistant");
    if (json_object_size(h->open_ids) > 0)
        return refuse_open_calls(h, err);
    return history_flush(h, err);
}

enum tutti_status history_translate(json_t *messages, const json_t *root, struct history_facts *facts,
                                    struct tutti_error *err)
{
    struct history h = {
        .messages = messages, .facts = facts, .ids = json_object(), .open_ids = json_object()
    };
    enum tutti_status st = check_memory(h.ids && h.open_ids ? 0 : -1, err);
    if (st == TUTTI_OK)
        st = add_system(&h, root, err);
    if (st == TUTTI_OK)
        st = add_messages(&h, root, err);
    json_decref(h.ids);
    json_decref(h.open_ids);
    json_decref(h.calls);
    buf_clear(&h.text);
    buf_clear(&h.reasoning);
    return st;
}
