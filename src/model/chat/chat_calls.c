/* Finds tool calls in the text of an answer. Families write them in four ways:
 *   <tool_call>{"name": ..., "arguments": {...}}</tool_call>   Qwen and others, anywhere and several
 *   {"name": ..., "parameters": {...}}                          LLaMA-3, the whole answer
 *   [{"name": ..., "arguments": {...}}, ...]                    Mistral, the whole answer
 *   NAME, a line's end, JSON or ```python tool_call(a=1)```     GLM-4, ChatGLM3, the whole answer
 * Only tools that the request lists are called; anything else stays text. */
#include "model/chat/chat.h"

#include "base/json/json_print.h"

#include <stdlib.h>
#include <string.h>

static const char OPEN[] = "<tool_call>", CLOSE[] = "</tool_call>";

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void trim(const char **text, size_t *n)
{
    while (*n > 0 && is_blank(**text))
        (*text)++, (*n)--;
    while (*n > 0 && is_blank((*text)[*n - 1]))
        (*n)--;
}

/* Adds {"name", "arguments": JSON as text}; false: out of memory, or no such tool. */
static bool add_call(json_t *calls, const json_t *tools, const json_t *name, const json_t *arguments)
{
    if (!json_is_string(name) || !chat_has_tool(tools, json_string_value(name), json_string_length(name)))
        return false;
    char *text = NULL;
    if (json_is_string(arguments))
        text = strdup(json_string_value(arguments));
    else if (!arguments || json_is_object(arguments))
        text = arguments ? json_print(arguments, JSON_COMPACT) : strdup("{}");
    json_t *call = text ? json_pack("{s:O, s:s}", "name", name, "arguments", text) : NULL;
    free(text);
    return call && json_array_append_new(calls, call) == 0;
}

static bool add_object(json_t *calls, const json_t *tools, const json_t *object)
{
    const json_t *arguments = json_object_get(object, "arguments");
    return add_call(calls, tools, json_object_get(object, "name"),
                    arguments ? arguments : json_object_get(object, "parameters"));
}

static bool read_object(json_t *calls, const json_t *tools, const char *text, size_t n)
{
    json_t *object = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    bool ok = json_is_object(object) && add_object(calls, tools, object);
    json_decref(object);
    return ok;
}

/* ---- the four ways ---- */

static bool read_tagged(json_t *calls, const json_t *tools, const char *text, size_t n)
{
    const char *end = text + n, *open;
    while ((open = memmem(text, (size_t)(end - text), OPEN, sizeof OPEN - 1))) {
        const char *body = open + sizeof OPEN - 1;
        const char *close = memmem(body, (size_t)(end - body), CLOSE, sizeof CLOSE - 1);
        size_t n_body = (size_t)((close ? close : end) - body);
        trim(&body, &n_body);
        if (!read_object(calls, tools, body, n_body))
            return false;
        if (!close)
            break;
        text = close + sizeof CLOSE - 1;
    }
    return json_array_size(calls) > 0;
}

static bool read_list(json_t *calls, const json_t *tools, const char *text, size_t n)
{
    json_t *list = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    bool ok = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list) && ok; i++)
        ok = json_is_object(json_array_get(list, i)) && add_object(calls, tools, json_array_get(list, i));
    json_decref(list);
    return ok;
}

/* Converts "tool_call(a=1, b='x')" to {"a": 1, "b": "x"}. Python literals are those of the
 * template language; nothing but literals is allowed. */
static json_t *read_python(const char *text, size_t n)
{
    static const char HEAD[] = "tool_call(";
    const char *begin = memmem(text, n, HEAD, sizeof HEAD - 1), *end = text + n;
    while (begin && end > begin && end[-1] != ')')
        end--;
    if (!begin || end == begin)
        return NULL;
    begin += sizeof HEAD - 1;
    struct template_output out = { 0 };
    json_t *object = NULL;
    if (template_read_arguments(begin, (size_t)(end - 1 - begin), &out, NULL) == TUTTI_OK)
        object = json_loadb(out.text, out.n_bytes, JSON_ALLOW_NUL, NULL);
    template_output_clear(&out);
    return object;
}

static bool read_named(json_t *calls, const json_t *tools, const char *text, size_t n)
{
    const char *line_end = memchr(text, '\n', n);
    size_t n_name = line_end ? (size_t)(line_end - text) : 0;
    const char *name = text, *body = text + n_name;
    size_t n_body = n - n_name;
    trim(&name, &n_name);
    trim(&body, &n_body);
    if (n_name == 0 || !chat_has_tool(tools, name, n_name))
        return false;
    json_t *arguments = n_body > 0 && *body == '{' ? json_loadb(body, n_body, JSON_ALLOW_NUL, NULL)
                                                   : read_python(body, n_body);
    json_t *own = json_stringn(name, n_name);
    bool ok = json_is_object(arguments) && own && add_call(calls, tools, own, arguments);
    json_decref(arguments);
    json_decref(own);
    return ok;
}

json_t *chat_find_calls(const char *text, size_t n_bytes, const json_t *tools, size_t *n_content)
{
    const char *body = text, *open = memmem(text, n_bytes, OPEN, sizeof OPEN - 1);
    size_t n = n_bytes;
    json_t *calls = json_array();
    bool ok;
    trim(&body, &n);
    *n_content = 0;
    if (open) {
        ok = calls && read_tagged(calls, tools, open, n_bytes - (size_t)(open - text));
        *n_content = (size_t)(open - text);
    } else if (n > 0 && *body == '{') {
        ok = calls && read_object(calls, tools, body, n);
    } else if (n > 0 && *body == '[') {
        ok = calls && read_list(calls, tools, body, n);
    } else {
        ok = calls && read_named(calls, tools, body, n);
    }
    while (*n_content > 0 && is_blank(text[*n_content - 1]))
        --*n_content;
    if (ok)
        return calls;
    json_decref(calls);
    *n_content = n_bytes;
    return NULL;
}

/* ---- while the answer comes ---- */

enum { MAX_NAME = 4096 }; /* bytes that may still become the name of a tool */

/* Whether the text can still become the name of a tool and a line break. */
static bool may_be_name(const char *text, size_t n, const json_t *tools)
{
    n = n < MAX_NAME ? n : MAX_NAME;
    const char *line_end = memchr(text, '\n', n), *name = text;
    size_t n_name = line_end ? (size_t)(line_end - text) : n, i;
    const json_t *tool;
    trim(&name, &n_name);
    if (line_end)
        return chat_has_tool(tools, name, n_name);
    json_array_foreach(tools, i, tool)
    {
        const json_t *own = json_object_get(chat_tool_function(tool), "name");
        if (json_string_length(own) >= n_name && memcmp(json_string_value(own), name, n_name) == 0)
            return true;
    }
    return false;
}

size_t chat_sure_content(const char *text, size_t n_bytes, size_t n_known, const json_t *tools)
{
    const char *body = text, *open = memmem(text + n_known, n_bytes - n_known, OPEN, sizeof OPEN - 1);
    size_t n = n_bytes, n_sure = n_bytes;
    while (n > 0 && is_blank(*body))
        body++, n--;
    if (n == 0 || *body == '{' || *body == '[' || may_be_name(body, n, tools))
        return 0;
    if (open)
        n_sure = (size_t)(open - text);
    /* The tail may be the beginning of a tag. */
    for (size_t k = sizeof OPEN - 2; k > 0 && !open; k--) {
        if (k <= n_bytes && memcmp(text + n_bytes - k, OPEN, k) == 0) {
            n_sure = n_bytes - k;
            break;
        }
    }
    while (n_sure > 0 && is_blank(text[n_sure - 1])) /* blanks before a call are not shown */
        n_sure--;
    return n_sure;
}
