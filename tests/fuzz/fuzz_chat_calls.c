/* Any text as an answer that may call tools, whole and as it grows: what was sent as content stays content. */
#include "tutti.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static tutti_tool_parser *parser_new(void)
{
    static const struct tutti_string NAMES[] = { { "weather", 7 }, { "f", 1 } };
    tutti_tool_parser *parser;
    if (tutti_tool_parser_new(&parser, NAMES, 2, false, NULL) != TUTTI_OK)
        abort();
    return parser;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    const char *text = (const char *)bytes;
    size_t n_content = n_bytes, n_sent = 0, n_calls = 0;
    struct tutti_tool_call_delta delta;
    tutti_tool_parser *whole = parser_new();
    while (tutti_tool_parser_next(whole, text, n_bytes, &delta)) {
        assert(delta.name ? delta.index == n_calls : n_calls > 0 && delta.index == n_calls - 1);
        n_calls = delta.index + 1;
    }
    bool has_calls = tutti_tool_parser_is_complete(whole, text, n_bytes, &n_content);
    assert(n_content <= n_bytes && (!has_calls || n_calls > 0));
    tutti_tool_parser_free(whole);

    tutti_tool_parser *parser = parser_new();
    for (size_t n = 1; n <= n_bytes && n <= 300; n++) {
        size_t n_sure = tutti_tool_parser_content(parser, text, n);
        assert(n_sure <= n && n_sure >= n_sent);
        n_sent = n_sure;
    }
    assert(!has_calls || n_sent <= n_content);
    for (size_t n = 1; n <= n_bytes && n <= 300; n++)
        while (tutti_tool_parser_next(parser, text, n, &delta))
            assert(delta.name || delta.n_arguments > 0);
    tutti_tool_parser_free(parser);
    return 0;
}
