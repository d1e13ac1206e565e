#include "server/anthropic/anthropic_blocks.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BLOCK_FIELDS = 8 };

#define TYPE_AND_CACHE                                                                                       \
    { "type", JSON_KIND_STRING, true, false },                                                               \
    {                                                                                                        \
        "cache_control", JSON_KIND_OBJECT, false, false                                                      \
    }

/* Every type of block that is supported, its places and its fields. */
static const struct {
    const char *name;
    enum block_type type;
    unsigned places;
    struct object_field fields[MAX_BLOCK_FIELDS]; /* ends with an empty one */
} BLOCKS[] = {
    { "text",
      BLOCK_TEXT,
      IN_USER | IN_ASSISTANT | IN_SYSTEM | IN_RESULT | IN_DOCUMENT,
      { TYPE_AND_CACHE,
        { "text", JSON_KIND_STRING, true, false },
        { "citations", JSON_KIND_LIST, false, false } } },
    { "document",
      BLOCK_DOCUMENT,
      IN_USER | IN_RESULT,
      { TYPE_AND_CACHE,
        { "source", JSON_KIND_OBJECT, true, false },
        { "title", JSON_KIND_STRING, false, false },
        { "context", JSON_KIND_STRING, false, false },
        { "citations", JSON_KIND_OBJECT, false, false } } },
    { "search_result",
      BLOCK_SEARCH_RESULT,
      IN_USER | IN_RESULT,
      { TYPE_AND_CACHE,
        { "source", JSON_KIND_STRING, true, false },
        { "title", JSON_KIND_STRING, true, false },
        { "content", JSON_KIND_LIST, true, false },
        { "citations", JSON_KIND_OBJECT, false, false } } },
    { "tool_result",
      BLOCK_TOOL_RESULT,
      IN_USER,
      { TYPE_AND_CACHE,
        { "tool_use_id", JSON_KIND_STRING, true, false },
        { "content", JSON_KIND_STRING, false, true },
        { "is_error", JSON_KIND_BOOL, false, false },
        { "toolset_name", JSON_KIND_STRING, false, false } } },
    { "tool_use",
      BLOCK_TOOL_USE,
      IN_ASSISTANT,
      { TYPE_AND_CACHE,
        { "id", JSON_KIND_STRING, true, false },
        { "name", JSON_KIND_STRING, true, false },
        { "input", JSON_KIND_OBJECT, true, false },
        { "caller", JSON_KIND_OBJECT, false, false },
        { "toolset_name", JSON_KIND_STRING, false, false } } },
    { "thinking",
      BLOCK_THINKING,
      IN_ASSISTANT,
      { TYPE_AND_CACHE,
        { "thinking", JSON_KIND_STRING, true, false },
        { "signature", JSON_KIND_STRING, false, false } } },
    { "redacted_thinking",
      BLOCK_REDACTED_THINKING,
      IN_ASSISTANT,
      { TYPE_AND_CACHE, { "data", JSON_KIND_STRING, true, false } } },
};

enum { N_BLOCKS = sizeof BLOCKS / sizeof *BLOCKS };

/* ---- fields ---- */

static const struct object_field *find_field(const struct object_field *fields, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

enum tutti_status object_check(const json_t *object, const char *param, const struct object_field *fields,
                               size_t n, struct tutti_error *err)
{
    const char *key;
    json_t *value;
    char place[BLOCK_PARAM_BYTES + 32];
    if (!json_is_object(object))
        return json_wrong_type(param, "an object", object, err);
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const struct object_field *field = find_field(fields, n, key);
        if (!field && json_is_null(value))
            continue;
        if (!field)
            return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s.%.64s is no known field", param, key);
        snprintf(place, sizeof place, "%s.%s", param, field->name);
        enum tutti_status st = field->is_any ? TUTTI_OK : json_check(value, field->kind, place, err);
        if (st != TUTTI_OK)
            return st;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(place, sizeof place, "%s.%s", param, fields[i].name);
        enum tutti_status st = fields[i].is_required ? json_require(json_field(object, fields[i].name),
                                                                    fields[i].kind, place, err)
                                                     : TUTTI_OK;
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* ---- types ---- */

/* Lists the types that belong to a place. */
static void list_types(char *out, size_t size, enum block_place place)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < N_BLOCKS; i++)
        if ((BLOCKS[i].places & place) && n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n > 0 ? ", " : "", BLOCKS[i].name);
}

static enum tutti_status refuse_type(const char *param, const char *type, enum block_place place,
                                     struct tutti_error *err)
{
    char types[128];
    list_types(types, sizeof types, place);
    return error_set_param(err, TUTTI_E_ARGUMENT, param,
                           "%s: blocks of type \"%.32s\" are not supported here, expected one of: %s%s",
                           param, type, types, !strcmp(type, "image") ? "; models read text only here" : "");
}

enum tutti_status block_check(const json_t *block, enum block_place place, const char *param,
                              enum block_type *type, struct tutti_error *err)
{
    const char *name = json_string_value(json_object_get(block, "type"));
    if (!json_is_object(block) || !name)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, param,
            "%s must be an object with a type, such as {\"type\": \"text\", \"text\": ...}", param);
    for (size_t i = 0; i < N_BLOCKS; i++) {
        size_t n = 0;
        if (strcmp(BLOCKS[i].name, name) || !(BLOCKS[i].places & place))
            continue;
        while (n < MAX_BLOCK_FIELDS && BLOCKS[i].fields[n].name)
            n++;
        *type = BLOCKS[i].type;
        return object_check(block, param, BLOCKS[i].fields, n, err);
    }
    return refuse_type(param, name, place, err);
}

/* ---- texts ---- */

enum tutti_status text_join(struct buf *out, const char *separator, const json_t *text,
                            struct tutti_error *err)
{
    bool ok = (out->n_bytes == 0 || buf_add_string(out, separator)) &&
              buf_add(out, json_string_value(text), json_string_length(text));
    return ok ? TUTTI_OK : error_out_of_memory("request", err);
}

/* Citations would be blocks of the answer that no model here writes. */
static enum tutti_status refuse_citations(const json_t *block, const char *param, struct tutti_error *err)
{
    return json_is_on(json_field(block, "citations"), "enabled")
               ? error_set_param(err, TUTTI_E_ARGUMENT, param,
                                 "%s.citations are not supported, only {\"enabled\": false}", param)
               : TUTTI_OK;
}

/* The content of a document or search result: a string, or a list of blocks of text. */
static enum tutti_status add_content(struct buf *out, const json_t *content, const char *param,
                                     struct tutti_error *err)
{
    size_t i;
    const json_t *block;
    char place[BLOCK_PARAM_BYTES];
    enum block_type type;
    snprintf(place, sizeof place, "%.80s.content", param);
    if (json_is_string(content))
        return text_join(out, "\n", content, err);
    if (!json_is_array(content))
        return json_wrong_type(place, "a string or a list of blocks", content, err);
    json_array_foreach(content, i, block)
    {
        snprintf(place, sizeof place, "%.60s.content[%zu]", param, i);
        enum tutti_status st = block_check(block, IN_DOCUMENT, place, &type, err);
        if (st == TUTTI_OK)
            st = text_join(out, "\n", json_field(block, "text"), err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

/* A document: {"type": "text", "media_type": "text/plain", "data"} or {"type": "content", "content"}. */
static enum tutti_status add_source(struct buf *out, const json_t *source, const char *param,
                                    struct tutti_error *err)
{
    static const struct object_field FIELDS[] = { { "type", JSON_KIND_STRING, true, false },
                                                  { "media_type", JSON_KIND_STRING, false, false },
                                                  { "data", JSON_KIND_STRING, false, false },
                                                  { "content", JSON_KIND_STRING, false, true } };
    const char *type = json_string_value(json_field(source, "type"));
    const char *media = json_string_value(json_field(source, "media_type"));
    char place[BLOCK_PARAM_BYTES + 16];
    snprintf(place, sizeof place, "%s.source", param);
    if (type && !strcmp(type, "content"))
        return add_content(out, json_field(source, "content"), place, err);
    if (!type || strcmp(type, "text") || (media && strcmp(media, "text/plain")))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s: documents must be plain text: expected type \"text\" with media_type "
                               "\"text/plain\", or type \"content\"",
                               place);
    enum tutti_status st = object_check(source, place, FIELDS, sizeof FIELDS / sizeof *FIELDS, err);
    snprintf(place, sizeof place, "%s.source.data", param);
    if (st == TUTTI_OK)
        st = json_require(json_field(source, "data"), JSON_KIND_STRING, place, err);
    return st == TUTTI_OK ? text_join(out, "\n", json_field(source, "data"), err) : st;
}

enum tutti_status block_add_text(struct buf *out, const json_t *block, enum block_type type,
                                 const char *param, struct tutti_error *err)
{
    static const char *const HEADINGS[] = { "title", "context" };
    if (type == BLOCK_TEXT) {
        const json_t *text = json_field(block, "text");
        return buf_add(out, json_string_value(text), json_string_length(text))
                   ? TUTTI_OK
                   : error_out_of_memory("request", err);
    }
    struct buf document = { 0 };
    enum tutti_status st = refuse_citations(block, param, err);
    for (size_t i = 0; i < 2 && st == TUTTI_OK; i++)
        if (json_field(block, HEADINGS[i]))
            st = text_join(&document, "\n", json_field(block, HEADINGS[i]), err);
    if (st == TUTTI_OK && type == BLOCK_DOCUMENT)
        st = add_source(&document, json_field(block, "source"), param, err);
    if (st == TUTTI_OK && type == BLOCK_SEARCH_RESULT)
        st = text_join(&document, "\n", json_field(block, "source"), err);
    if (st == TUTTI_OK && type == BLOCK_SEARCH_RESULT)
        st = add_content(&document, json_field(block, "content"), param, err);
    if (st == TUTTI_OK && !buf_add(out, document.bytes, document.n_bytes))
        st = error_out_of_memory("request", err);
    buf_clear(&document);
    return st;
}

/* Anthropic's own clients put metadata in front of the system prompt. It changes with each request, so it
 * would defeat the prefix cache, and it is no text for the model. */
static bool is_metadata(const json_t *block, enum block_place place)
{
    static const char PREFIX[] = "x-anthropic-billing-header:";
    const char *text = json_string_value(json_field(block, "text"));
    return place == IN_SYSTEM && text && !strncmp(text, PREFIX, sizeof PREFIX - 1);
}

enum tutti_status blocks_add_text(struct buf *out, const json_t *content, enum block_place place,
                                  const char *param, bool *has_cache_control, struct tutti_error *err)
{
    size_t i;
    const json_t *block;
    enum tutti_status st = TUTTI_OK;
    if (json_is_string(content))
        return text_join(out, "\n", content, err);
    if (!json_is_array(content))
        return json_wrong_type(param, "a string or a list of blocks", content, err);
    json_array_foreach(content, i, block)
    {
        char at[BLOCK_PARAM_BYTES];
        enum block_type type = BLOCK_TEXT;
        snprintf(at, sizeof at, "%.72s[%zu]", param, i);
        st = block_check(block, place, at, &type, err);
        if (st == TUTTI_OK)
            *has_cache_control |= json_field(block, "cache_control") != NULL;
        if (st == TUTTI_OK && is_metadata(block, place))
            continue;
        if (st == TUTTI_OK && out->n_bytes > 0 && !buf_add_string(out, "\n"))
            st = error_out_of_memory("request", err);
        if (st == TUTTI_OK)
            st = block_add_text(out, block, type, at, err);
        if (st != TUTTI_OK)
            return st;
    }
    return st;
}
