/* Any text as an answer that may call tools and reason, in each form, whole and as it grows: what was sent as content
 * stays content. */
#include "model/chat/call_forms.h"
#include "tutti.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static tutti_tool_parser *parser_new(const char *form)
{
    static const char TOOLS[] =
        "[{\"name\": \"weather\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"string\"}}}}, "
        "{\"name\": \"f\"}]";
    tutti_tool_parser *parser;
    if (tutti_tool_parser_new(&parser, form, TOOLS, false, NULL) != TUTTI_OK)
        abort();
    return parser;
}

static void parse_calls(const char *form, const char *text, size_t n_bytes)
{
    size_t n_content = n_bytes, n_sent = 0, n_calls = 0;
    struct tutti_tool_call_delta delta;
    tutti_tool_parser *whole = parser_new(form);
    while (tutti_tool_parser_next(whole, text, n_bytes, &delta)) {
        assert(delta.name ? delta.index == n_calls : n_calls > 0 && delta.index == n_calls - 1);
        n_calls = delta.index + 1;
    }
    bool has_calls = tutti_tool_parser_is_complete(whole, text, n_bytes, &n_content);
    assert(n_content <= n_bytes && (!has_calls || n_calls > 0));
    tutti_tool_parser_free(whole);

    tutti_tool_parser *parser = parser_new(form);
    for (size_t n = 1; n <= n_bytes && n <= 300; n++) {
        size_t n_sure = tutti_tool_parser_content(parser, text, n);
        assert(n_sure <= n && n_sure >= n_sent);
        n_sent = n_sure;
        while (tutti_tool_parser_next(parser, text, n, &delta))
            assert(delta.name || delta.n_arguments > 0);
        assert(!tutti_tool_parser_next(parser, text, n - 1, &delta)); /* less text than before */
    }
    assert(!has_calls || n_sent <= n_content);
    tutti_tool_parser_free(parser);
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
    static const char *const REASONING[] = { "think", "harmony", "granite-3.3", "mistral" };
    const char *text = (const char *)bytes + 1;
    if (n_bytes < 2)
        return 0;
    n_bytes -= 1;
    size_t row = bytes[0] % (call_forms_count() + 1);
    parse_calls(row < call_forms_count() ? call_form_at(row)->name : NULL, text, n_bytes);
    if (n_bytes <= 300)
        split_reasoning(REASONING[bytes[0] % 4], bytes[0] & 64, text, n_bytes);
    return 0;
}
