/* Any text as an answer that may call tools and reason, in each form, whole and as it grows: what was sent as content
 * stays content. */
#include "base/buf.h"
#include "base/utf8.h"
#include "model/chat/calls/call_forms.h"
#include "tutti.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { MAX_GROWN = 300 }; /* bytes of a text that is parsed byte by byte */

/* The tools of tests/fixtures/calls, whose schemas have every kind of value, and two more. */
static char *read_tools(void)
{
    json_t *more = json_loads(
        "[{\"name\": \"weather\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"string\"}, "
        "\"b\": {\"type\": [\"string\", \"null\"]}}}}, {\"name\": \"f\"}]",
        0, NULL);
    json_t *tools = json_load_file(FUZZ_FIXTURES "/calls/tools.json", 0, NULL);
    if (!tools || json_array_extend(tools, more) != 0)
        abort();
    char *text = json_dumps(tools, JSON_COMPACT);
    json_decref(tools);
    json_decref(more);
    return text;
}

static tutti_tool_parser *parser_new(const char *form)
{
    static char *tools; /* read once; kept until the process ends */
    tutti_tool_parser *parser;
    if (!tools)
        tools = read_tools();
    if (tutti_tool_parser_new(&parser, form, tools, false, NULL) != TUTTI_OK)
        abort();
    return parser;
}

/* Adds the deltas to a text: each call as its name, a zero byte, its arguments, a zero byte. */
static void take_deltas(tutti_tool_parser *parser, const char *text, size_t n_bytes, struct buf *calls,
                        size_t *n_calls)
{
    struct tutti_tool_call_delta delta;
    while (tutti_tool_parser_next(parser, text, n_bytes, &delta)) {
        assert(delta.name ? delta.index == *n_calls : *n_calls > 0 && delta.index == *n_calls - 1);
        assert(delta.name || delta.n_arguments > 0);
        *n_calls = delta.index + 1;
        if ((delta.name && !(buf_add(calls, delta.name, delta.n_name) && buf_add(calls, "", 1))) ||
            !buf_add(calls, delta.arguments, delta.n_arguments) || (delta.is_last && !buf_add(calls, "", 1)))
            abort();
    }
}

/* The arguments of complete calls are objects of JSON. */
static void check_arguments(const struct buf *calls)
{
    for (size_t at = 0; at < calls->n_bytes;) {
        const char *arguments = calls->bytes + at + strlen(calls->bytes + at) + 1;
        json_t *value = json_loads(arguments, JSON_ALLOW_NUL, NULL);
        assert(json_is_object(value));
        json_decref(value);
        at = (size_t)(arguments - calls->bytes) + strlen(arguments) + 1;
    }
}

static void parse_calls(const char *form, const char *text, size_t n_bytes)
{
    size_t n_content = n_bytes, n_sent = 0, n_whole = 0, n_grown = 0, n_grown_content;
    struct buf whole_calls = { 0 }, grown_calls = { 0 };
    tutti_tool_parser *whole = parser_new(form);
    take_deltas(whole, text, n_bytes, &whole_calls, &n_whole);
    bool has_calls = tutti_tool_parser_is_complete(whole, text, n_bytes, &n_content);
    assert(n_content <= n_bytes && (!has_calls || n_whole > 0));
    tutti_tool_parser_free(whole);
    if (has_calls)
        check_arguments(&whole_calls);

    tutti_tool_parser *parser = parser_new(form);
    for (size_t n = 1; n <= n_bytes && n <= MAX_GROWN; n++) {
        size_t n_sure = tutti_tool_parser_content(parser, text, n);
        struct tutti_tool_call_delta delta;
        assert(n_sure <= n && n_sure >= n_sent);
        n_sent = n_sure;
        take_deltas(parser, text, n, &grown_calls, &n_grown);
        assert(!tutti_tool_parser_next(parser, text, n - 1, &delta)); /* less text than before */
    }
    assert(!has_calls || n_sent <= n_content);
    if (n_bytes <= MAX_GROWN) { /* the same calls, to the byte */
        assert(tutti_tool_parser_is_complete(parser, text, n_bytes, &n_grown_content) == has_calls);
        assert(n_grown == n_whole && n_grown_content == n_content);
        if (has_calls || utf8_is_valid(text, n_bytes)) {
            assert(grown_calls.n_bytes == whole_calls.n_bytes);
            assert(n_whole == 0 || memcmp(grown_calls.bytes, whole_calls.bytes, whole_calls.n_bytes) == 0);
        }
    }
    tutti_tool_parser_free(parser);
    buf_clear(&whole_calls);
    buf_clear(&grown_calls);
}

/* The parts of the text, whole and as it grows, are the same. */
static void split_reasoning(const char *form, bool is_open, const char *text, size_t n_bytes)
{
    size_t n_parts[2][2] = { { 0 } }; /* bytes; [grows][is reasoning] */
    for (int grows = 0; grows < 2; grows++) {
        tutti_reasoning_parser *parser;
        struct tutti_reasoning_part part;
        if (tutti_reasoning_parser_new(&parser, form, is_open, NULL) != TUTTI_OK)
            abort();
        for (size_t n = grows ? 1 : n_bytes; n <= n_bytes; n++)
            while (tutti_reasoning_parser_next(parser, text, n, n == n_bytes, &part)) {
                assert(part.n_bytes > 0);
                n_parts[grows][part.is_reasoning] += part.n_bytes;
            }
        tutti_reasoning_parser_free(parser);
    }
    assert(memcmp(n_parts[0], n_parts[1], sizeof n_parts[0]) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const char *const REASONING[] = { "think",      "harmony",          "granite-3.3",
                                             "mistral",    "functionary-v2",   "gemma-4",
                                             "kimi-k3",    "functionary-v3.2", "hunyuan",
                                             "cohere-text" };
    enum { N_REASONING = sizeof REASONING / sizeof *REASONING };
    const char *text = (const char *)bytes + 1;
    if (n_bytes < 2)
        return 0;
    n_bytes -= 1;
    size_t row = bytes[0] % (call_forms_count() + 1);
    parse_calls(row < call_forms_count() ? call_form_at(row)->name : NULL, text, n_bytes);
    if (n_bytes <= MAX_GROWN)
        split_reasoning(REASONING[bytes[0] % N_REASONING], bytes[0] & 64, text, n_bytes);
    return 0;
}
