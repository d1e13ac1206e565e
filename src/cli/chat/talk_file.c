#include "cli/chat/talk_file.h"

#include "base/files/new_file.h"
#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "base/text.h"
#include "cli/chat/attachment.h"
#include "cli/terminal/input.h"
#include "server/json.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_MESSAGES = 20000, /* as the chat page reads */
    MAX_FILE_BYTES = 64 << 20,
    NAME_BYTES = 64,
};

/* The tables whose options are settings of a file, under their names with '_' for '-'. */
static const struct setting_table {
    const struct option *options;
    size_t base;
} TABLES[] = {
    { SAMPLING_OPTIONS, offsetof(struct talk, sampling) },
    { THINKING_OPTIONS, offsetof(struct talk, thinking) },
};
enum { N_TABLES = sizeof TABLES / sizeof *TABLES };

/* How thinking is shown is no setting of a file; that it is on or off is "enable_thinking". */
static bool is_display(const struct option *o)
{
    return strcmp(o->name, "thinking") == 0;
}

static const char *field_name(const struct option *o, char name[NAME_BYTES])
{
    size_t i = 0;
    for (; o->name[i] && i < NAME_BYTES - 1; i++)
        name[i] = o->name[i] == '-' ? '_' : o->name[i];
    name[i] = '\0';
    return name;
}

/* ---- writing JSON ---- */

static json_t *text_list(const struct option_texts *texts)
{
    json_t *list = json_array();
    for (int i = 0; i < texts->n; i++)
        json_array_append_new(list, json_string(texts->texts[i]));
    return list;
}

static json_t *setting_value(const struct option *o, const char *member)
{
    const void *at = member;
    switch (o->kind) {
    case OPTION_FLAG:
        return json_boolean(*(const bool *)at);
    case OPTION_INT:
        return json_integer(o->n_bytes == sizeof(int) ? *(const int *)at : *(const int64_t *)at);
    case OPTION_FLOAT:
        return json_real(*(const double *)at);
    case OPTION_TEXTS:
        return text_list(at);
    case OPTION_TEXT:
    case OPTION_CHOICE:
        return json_string(*(const char *const *)at);
    case OPTION_SIZE:
    case OPTION_INTS:
        break;
    }
    return NULL; /* no table above has such options */
}

static bool add_settings(json_t *root, const struct talk *talk)
{
    char name[NAME_BYTES];
    bool ok = true;
    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct option *o = TABLES[t].options; o->name; o++) {
            const char *values = (const char *)talk + TABLES[t].base;
            if (!is_display(o) && option_is_given(o, values))
                ok = ok &&
                     json_object_set_new(root, field_name(o, name), setting_value(o, values + o->field)) == 0;
        }
    bool is_off = thinking_is_off(&talk->thinking);
    if (is_off || (thinking_is_on(&talk->thinking) && !talk->thinking.effort))
        ok = ok && json_object_set_new(root, "enable_thinking", json_boolean(!is_off)) == 0;
    return ok;
}

bool talk_print_settings(struct buf *out, const struct talk *talk)
{
    json_t *settings = json_object(), *value;
    bool ok = settings && add_settings(settings, talk);
    size_t n_before = out->n_bytes;
    char number[NUMBER_TEXT_BYTES];
    const char *name;
    json_object_foreach(settings, name, value)
    {
        ok = ok && buf_printf(out, "%s%s ", out->n_bytes > n_before ? ", " : "", name);
        if (json_is_real(value))
            ok = ok && buf_add(out, number, number_shortest(number, json_real_value(value)));
        else
            ok = ok && json_print_to(out, value, JSON_COMPACT | JSON_ENCODE_ANY);
    }
    json_decref(settings);
    return ok;
}

static json_t *message_value(const struct tutti_message *message)
{
    json_t *value = json_pack("{s:s, s:o}", "role", message->role, "content",
                              json_stringn(message->content, message->n_bytes));
    if (value && message->reasoning &&
        json_object_set_new(value, "reasoning_content", json_string(message->reasoning)) != 0) {
        json_decref(value);
        value = NULL;
    }
    return value;
}

static bool write_json(struct buf *out, const struct talk *talk)
{
    json_t *root = json_object(), *messages = json_array();
    bool ok = root && messages;
    if (talk->model)
        ok = ok && json_object_set_new(root, "model", json_string(talk->model)) == 0;
    for (size_t i = 0; i < talk->n && ok; i++)
        ok = json_array_append_new(messages, message_value(&talk->messages[i])) == 0;
    ok = ok && json_object_set(root, "messages", messages) == 0 && add_settings(root, talk) &&
         json_print_to(out, root, JSON_INDENT(1)) && buf_add_string(out, "\n");
    json_decref(messages);
    json_decref(root);
    return ok;
}

/* ---- writing Markdown ---- */

/* A line that looks like a mark of the chat page's Markdown gets a backslash, which the page removes. */
static bool add_escaped(struct buf *out, const char *text)
{
    static const char MARK[] = "<!-- ";
    bool ok = true;
    for (const char *line = text; ok && *line;) {
        size_t n = strcspn(line, "\n") + 1, n_mark = sizeof MARK - 1;
        n -= line[n - 1] == '\0';
        const char *rest = line + n_mark;
        bool is_mark = strncmp(line, MARK, n_mark) == 0 &&
                       strncmp(rest + strspn(rest, "\\"), "tutti:", 6) == 0;
        ok = is_mark ? buf_add_string(out, "<!-- \\") && buf_add(out, rest, n - n_mark)
                     : buf_add(out, line, n);
        line += n;
    }
    return ok;
}

static bool add_section(struct buf *out, const char *kind, const char *head, const char *text)
{
    return buf_printf(out, "\n<!-- tutti: %s -->\n%s\n\n", kind, head) && add_escaped(out, text) &&
           buf_add_string(out, "\n");
}

static bool write_markdown(struct buf *out, const struct talk *talk)
{
    static const char *const HEADS[][2] = { { "system", "## System prompt" },
                                            { "user", "## User" },
                                            { "assistant", "## Assistant" } };
    bool ok = buf_printf(out, "# %s\n", talk->model ? talk->model : "Conversation");
    for (size_t i = 0; i < talk->n; i++) {
        const struct tutti_message *m = &talk->messages[i];
        size_t k = 0;
        while (k + 1 < sizeof HEADS / sizeof *HEADS && strcmp(HEADS[k][0], m->role) != 0)
            k++;
        ok = ok && add_section(out, m->role, HEADS[k][1], m->content);
        if (m->reasoning)
            ok = ok && add_section(out, "reasoning", "### Reasoning", m->reasoning);
    }
    return ok;
}

enum tutti_status talk_save(const struct talk *talk, const char *path, bool overwrites,
                            struct tutti_error *err)
{
    struct buf text = { 0 };
    if (!overwrites && access(path, F_OK) == 0)
        return error_set(err, TUTTI_E_ARGUMENT, "%s exists already; /save! %s replaces it", path, path);
    bool ok = text_ends_with(path, ".md") ? write_markdown(&text, talk) : write_json(&text, talk);
    enum tutti_status st = ok ? new_file_put(path, text.bytes, text.n_bytes, err)
                              : error_out_of_memory(path, err);
    buf_clear(&text);
    return st;
}

/* ---- reading ---- */

struct talk_reader {
    struct talk *talk;
    struct json_place at;
};

static enum tutti_status read_role(const struct talk_reader *r, const json_t *message, const char **out)
{
    static const char *const ROLES[] = { "system", "user", "assistant", NULL };
    static const char EXPECTED[] = "\"system\", \"user\" or \"assistant\"";
    const json_t *value = json_object_get(message, "role");
    const char *role = json_string_value(value);
    for (const char *const *known = ROLES; role && *known; known++)
        if (strcmp(*known, role) == 0) {
            *out = *known;
            return TUTTI_OK;
        }
    return role ? json_invalid(&r->at, "role", "found \"%.40s\", expected %s", role, EXPECTED)
                : json_unexpected(&r->at, "role", value, EXPECTED);
}

/* Refuses fields that are not in known (which ends with NULL). */
static enum tutti_status check_fields(const struct talk_reader *r, const json_t *object,
                                      const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *const *name = known;
        while (*name && strcmp(*name, key) != 0)
            name++;
        if (!*name && !json_is_null(value))
            return json_invalid(&r->at, key, "is not a field that tutti chat honours");
    }
    return TUTTI_OK;
}

/* Sets an option from a value that is no list; name: of the field. */
static enum tutti_status read_value(const struct talk_reader *r, const struct option *o, void *values,
                                    const char *name, const json_t *value)
{
    char text[64], shown[512];
    struct option_texts *stops = (struct option_texts *)(void *)((char *)values + o->field);
    snprintf(shown, sizeof shown, "%.300s: %.90s%.60s", r->at.file, r->at.prefix, name);
    if (o->kind == OPTION_TEXTS && json_is_string(value) && stops->n < OPTION_MAX_TEXTS) {
        stops->texts[stops->n++] = json_string_value(value);
        return TUTTI_OK;
    }
    bool is_int = o->kind == OPTION_INT && json_is_integer(value);
    bool is_number = o->kind == OPTION_FLOAT && json_is_number(value);
    bool is_flag = o->kind == OPTION_FLAG && json_is_boolean(value);
    bool is_word = o->kind == OPTION_CHOICE && json_is_string(value);
    const char *expected = o->kind == OPTION_INT     ? "a whole number"
                           : o->kind == OPTION_FLOAT ? "a number"
                           : o->kind == OPTION_FLAG  ? "true or false"
                           : o->kind == OPTION_TEXTS ? "a string, or a list of at most 16"
                                                     : "a string";
    if (!is_int && !is_number && !is_flag && !is_word)
        return json_unexpected(&r->at, name, value, expected);
    if (is_int)
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (is_number)
        snprintf(text, sizeof text, "%.17g", json_number_value(value));
    else
        snprintf(text, sizeof text, "%s",
                 is_word               ? json_string_value(value)
                 : json_is_true(value) ? "true"
                                       : "false");
    enum tutti_status st = option_set_text(o, values, shown, text, r->at.err);
    return st == TUTTI_OK ? st : TUTTI_E_FORMAT;
}

static enum tutti_status read_setting(const struct talk_reader *r, const struct option *o, void *values,
                                      const char *name, const json_t *value)
{
    if (o->kind != OPTION_TEXTS || !json_is_array(value))
        return read_value(r, o, values, name, value);
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < json_array_size(value) && st == TUTTI_OK; i++)
        st = read_value(r, o, values, name, json_array_get(value, i));
    return st;
}

/* Reads those fields of the object that are settings. */
static enum tutti_status read_settings(const struct talk_reader *r, const json_t *object)
{
    const json_t *enabled = json_field(object, "enable_thinking");
    char name[NAME_BYTES];
    enum tutti_status st = TUTTI_OK;
    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct option *o = TABLES[t].options; o->name && st == TUTTI_OK; o++) {
            const json_t *value = is_display(o) ? NULL : json_field(object, field_name(o, name));
            if (value)
                st = read_setting(r, o, (char *)r->talk + TABLES[t].base, name, value);
        }
    if (st == TUTTI_OK && enabled && !json_is_boolean(enabled))
        return json_unexpected(&r->at, "enable_thinking", enabled, "true or false");
    if (enabled)
        r->talk->thinking.thinking = json_is_true(enabled) ? "on" : "off";
    return st;
}

/* Adds the text of an OpenAI message's content: a string, or a list of parts with a text. */
static enum tutti_status read_content(const struct talk_reader *r, const json_t *content, struct buf *out)
{
    bool ok = true;
    if (json_is_string(content))
        return buf_add(out, json_string_value(content), json_string_length(content))
                   ? TUTTI_OK
                   : error_out_of_memory(r->at.file, r->at.err);
    if (!json_is_array(content))
        return json_unexpected(&r->at, "content", content, "a string, or a list of parts with a text");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "content[%zu]", i);
        if (!json_is_string(text) || (type && strcmp(type, "text") != 0))
            return json_unexpected(&r->at, name, part, "a part of type text");
        ok = ok && (i == 0 || buf_add_string(out, "\n")) &&
             buf_add(out, json_string_value(text), json_string_length(text));
    }
    return ok ? TUTTI_OK : error_out_of_memory(r->at.file, r->at.err);
}

/* Appends a message whose content is text, and whose thinking (NULL: none) belongs to an assistant's. */
static enum tutti_status add_message(const struct talk_reader *r, const char *role, const struct buf *text,
                                     const json_t *thinking)
{
    struct talk *talk = r->talk;
    assert(role);
    if (thinking && !json_is_string(thinking))
        return json_unexpected(&r->at, "reasoning_content", thinking, "a string");
    if (thinking && strcmp(role, "assistant") != 0)
        return json_invalid(&r->at, "reasoning_content", "is only for messages of the assistant");
    if (strcmp(role, "system") == 0 && talk->n > 0)
        return json_invalid(&r->at, "role", "found \"system\", which only the first message can have");
    enum tutti_status st = talk_add(talk, talk->n, role, text->bytes ? text->bytes : "", text->n_bytes,
                                    r->at.err);
    if (st == TUTTI_OK && json_string_length(thinking) > 0)
        st = talk_set_thinking(talk, json_string_value(thinking), json_string_length(thinking), r->at.err);
    return st;
}

static enum tutti_status read_message(const struct talk_reader *r, const json_t *value)
{
    static const char *const KNOWN[] = { "role", "content", "reasoning_content", "reasoning", NULL };
    struct buf text = { 0 };
    if (!json_is_object(value))
        return json_unexpected(&r->at, "", value, "an object");
    const json_t *thinking = json_field(value, "reasoning_content");
    const char *role = NULL;
    enum tutti_status st = read_role(r, value, &role);
    if (st == TUTTI_OK)
        st = check_fields(r, value, KNOWN);
    if (st == TUTTI_OK)
        st = read_content(r, json_object_get(value, "content"), &text);
    if (st == TUTTI_OK)
        st = add_message(r, role, &text, thinking ? thinking : json_field(value, "reasoning"));
    buf_clear(&text);
    return st;
}

static enum tutti_status read_model(const struct talk_reader *r, const json_t *object)
{
    const json_t *model = json_field(object, "model");
    if (model && !json_is_string(model))
        return json_unexpected(&r->at, "model", model, "a string");
    r->talk->model = json_string_value(model);
    return TUTTI_OK;
}

static enum tutti_status get_messages(const struct talk_reader *r, const json_t *object, const json_t **out)
{
    *out = json_object_get(object, "messages");
    if (!json_is_array(*out) || json_array_size(*out) > MAX_MESSAGES)
        return json_unexpected(&r->at, "messages", *out, "a list of at most 20000 messages");
    return TUTTI_OK;
}

static enum tutti_status read_request(struct talk_reader *r, const json_t *root)
{
    const char *known[32] = { "model", "messages", "enable_thinking" };
    char names[N_TABLES][24][NAME_BYTES];
    const json_t *messages;
    size_t n_known = 3;
    for (size_t t = 0; t < N_TABLES; t++)
        for (size_t i = 0; TABLES[t].options[i].name; i++)
            if (!is_display(&TABLES[t].options[i]))
                known[n_known++] = field_name(&TABLES[t].options[i], names[t][i]);
    enum tutti_status st = get_messages(r, root, &messages);
    if (st == TUTTI_OK)
        st = check_fields(r, root, known);
    if (st == TUTTI_OK)
        st = read_model(r, root);
    if (st == TUTTI_OK)
        st = read_settings(r, root);
    for (size_t i = 0; i < json_array_size(messages) && st == TUTTI_OK; i++) {
        snprintf(r->at.prefix, sizeof r->at.prefix, "messages[%zu].", i);
        st = read_message(r, json_array_get(messages, i));
    }
    return st;
}

/* ---- files of the chat page ---- */

static enum tutti_status read_page_files(const struct talk_reader *r, const json_t *files, struct buf *out)
{
    if (files && !json_is_array(files))
        return json_unexpected(&r->at, "files", files, "a list");
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i), *text = json_object_get(file, "text");
        const char *name = json_string_value(json_object_get(file, "name"));
        char field[NAME_BYTES];
        snprintf(field, sizeof field, "files[%zu]", i);
        if (!name || !json_is_string(text))
            return json_unexpected(&r->at, field, file, "an object with name and text");
        if (!attachment_write(out, name, json_string_value(text), json_string_length(text)))
            return error_out_of_memory(r->at.file, r->at.err);
    }
    return TUTTI_OK;
}

static enum tutti_status read_page_message(const struct talk_reader *r, const json_t *value)
{
    struct buf text = { 0 };
    const json_t *own = json_object_get(value, "text");
    const char *role = NULL;
    enum tutti_status st = read_role(r, value, &role);
    if (st == TUTTI_OK && !json_is_string(own))
        st = json_unexpected(&r->at, "text", own, "a string");
    if (st == TUTTI_OK)
        st = read_page_files(r, json_field(value, "files"), &text);
    if (st == TUTTI_OK && !buf_add(&text, json_string_value(own), json_string_length(own)))
        st = error_out_of_memory(r->at.file, r->at.err);
    if (st == TUTTI_OK)
        st = add_message(r, role, &text, json_field(value, "reasoning"));
    buf_clear(&text);
    return st;
}

/* Which message the page shows below each parent ("": the first message): the picked one, or else the last.
 * shown: from a parent's id to the message's index. */
static enum tutti_status find_shown(struct talk_reader *r, const json_t *messages, const json_t *picks,
                                    json_t *shown)
{
    json_t *ids = json_object();
    enum tutti_status st = ids ? TUTTI_OK : error_out_of_memory(r->at.file, r->at.err);
    char prefix[sizeof r->at.prefix];
    snprintf(prefix, sizeof prefix, "%s", r->at.prefix);
    for (size_t i = 0; i < json_array_size(messages) && st == TUTTI_OK; i++) {
        const json_t *message = json_array_get(messages, i), *parent = json_field(message, "parent");
        const char *id = json_string_value(json_object_get(message, "id"));
        const char *above = parent ? json_string_value(parent) : "";
        snprintf(r->at.prefix, sizeof r->at.prefix, "%.48smessages[%zu].", prefix, i);
        if (!id || !*id)
            st = json_unexpected(&r->at, "id", json_object_get(message, "id"), "a string");
        else if (json_object_get(ids, id))
            st = json_invalid(&r->at, "id", "found the id of an earlier message");
        else if (!above || (*above && !json_object_get(ids, above)))
            st = json_unexpected(&r->at, "parent", parent, "the id of an earlier message");
        else {
            const char *picked = json_string_value(json_object_get(picks, above));
            const json_t *now = json_object_get(shown, above);
            const json_t *other = now ? json_array_get(messages, (size_t)json_integer_value(now)) : NULL;
            const char *other_id = json_string_value(json_object_get(other, "id"));
            bool stays = picked && other_id && strcmp(picked, other_id) == 0;
            if (json_object_set_new(ids, id, json_true()) != 0 ||
                (!stays && json_object_set_new(shown, above, json_integer((json_int_t)i)) != 0))
                st = error_out_of_memory(r->at.file, r->at.err);
        }
    }
    snprintf(r->at.prefix, sizeof r->at.prefix, "%s", prefix);
    json_decref(ids);
    return st;
}

static enum tutti_status read_page_options(const struct talk_reader *r, const json_t *options)
{
    const json_t *system = json_field(options, "system"), *effort = json_field(options, "effort");
    const struct option *o = options_find(THINKING_OPTIONS, "reasoning_effort");
    enum tutti_status st = read_model(r, options);
    if (st == TUTTI_OK)
        st = read_settings(r, options);
    if (st == TUTTI_OK && effort)
        st = read_setting(r, o, &r->talk->thinking, "effort", effort);
    if (st == TUTTI_OK && system && !json_is_string(system))
        return json_unexpected(&r->at, "system", system, "a string");
    return st == TUTTI_OK && system ? talk_set_system(r->talk, json_string_value(system), r->at.err) : st;
}

static enum tutti_status read_page(struct talk_reader *r, const json_t *root)
{
    const json_t *all = json_object_get(root, "conversations"), *chat = json_array_get(all, 0),
                 *messages = NULL;
    json_t *shown = json_object();
    if (json_integer_value(json_object_get(root, "version")) != 1) {
        json_decref(shown);
        return json_unexpected(&r->at, "version", json_object_get(root, "version"), "1");
    }
    if (json_array_size(all) != 1) {
        json_decref(shown);
        return json_invalid(&r->at, "conversations", "found %zu, expected one: export only this conversation",
                            json_array_size(all));
    }
    snprintf(r->at.prefix, sizeof r->at.prefix, "conversations[0].");
    enum tutti_status st = shown ? get_messages(r, chat, &messages)
                                 : error_out_of_memory(r->at.file, r->at.err);
    if (st == TUTTI_OK)
        st = find_shown(r, messages, json_field(chat, "picks"), shown);
    snprintf(r->at.prefix, sizeof r->at.prefix, "conversations[0].options.");
    if (st == TUTTI_OK && json_field(chat, "options"))
        st = read_page_options(r, json_field(chat, "options"));
    const json_t *at = json_object_get(shown, "");
    while (st == TUTTI_OK && at) {
        size_t i = (size_t)json_integer_value(at);
        const json_t *message = json_array_get(messages, i);
        snprintf(r->at.prefix, sizeof r->at.prefix, "conversations[0].messages[%zu].", i);
        st = read_page_message(r, message);
        at = json_object_get(shown, json_string_value(json_object_get(message, "id")));
    }
    json_decref(shown);
    return st;
}

/* ---- the file ---- */

enum tutti_status talk_read(struct talk *out, const char *name, const char *bytes, size_t n_bytes,
                            struct tutti_error *err)
{
    struct talk talk;
    struct tutti_error own = { 0 };
    struct talk_reader r = { &talk, { .file = name, .err = err ? err : &own } };
    json_t *root = NULL;
    enum tutti_status st = json_read_object(&root, bytes, n_bytes, r.at.err);
    if (st != TUTTI_OK) {
        error_prefix(r.at.err, "%s", name);
        return st == TUTTI_E_ARGUMENT ? TUTTI_E_FORMAT : st;
    }
    talk_init(&talk);
    talk.owner = root;
    const char *format = json_string_value(json_object_get(root, "format"));
    st = format && strcmp(format, "tutti-conversations") == 0 ? read_page(&r, root) : read_request(&r, root);
    if (st == TUTTI_OK)
        *out = talk;
    else
        talk_clear(&talk);
    return st;
}

enum tutti_status talk_load(struct talk *out, const char *path, struct tutti_error *err)
{
    struct buf text = { 0 };
    enum tutti_status st = input_read_most(&text, path, MAX_FILE_BYTES, err);
    if (st == TUTTI_OK && text.n_bytes > MAX_FILE_BYTES)
        st = error_set(err, TUTTI_E_LIMIT, "%s: longer than 64 MiB, which is more than a conversation", path);
    if (st == TUTTI_OK)
        st = talk_read(out, path, text.bytes ? text.bytes : "", text.n_bytes, err);
    buf_clear(&text);
    return st;
}
