/* Any text as an answer that may call tools, whole and as it grows: what was sent as content stays content. */
#include "base/utf8.h"
#include "model/chat/call_reader.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static json_t *tools;
    if (!tools)
        tools = json_pack("[{s:s, s:{s:s}}, {s:s, s:{s:s}}]", "type", "function", "function", "name",
                          "weather", "type", "function", "function", "name", "f");
    const char *text = (const char *)bytes;
    size_t n_content = n_bytes, n_sent = 0, i;
    const json_t *call;
    json_t *calls = chat_find_calls(text, n_bytes, tools, false, &n_content);
    assert(n_content <= n_bytes && (!calls || json_array_size(calls) > 0));
    json_array_foreach(calls, i, call) assert(json_is_string(json_object_get(call, "name")) &&
                                              json_is_string(json_object_get(call, "arguments")));
    bool has_calls = calls != NULL;
    json_decref(calls);
    for (size_t n = 1; n <= n_bytes && n <= 300; n++) {
        size_t n_sure = chat_sure_content(text, n, n_sent, tools);
        assert(n_sure <= n && n_sure >= n_sent);
        n_sent = n_sure;
    }
    assert(!has_calls || n_sent <= n_content);
    struct call_reader reader = { .at = 0 };
    struct call_piece piece;
    for (size_t n = 1; n <= n_bytes && n <= 300; n++)
        while (call_reader_next(&reader, text, n, tools, &piece))
            assert(piece.index == reader.n_calls - 1 && reader.at <= n && (piece.name || piece.n_bytes > 0));
    call_reader_clear(&reader);
    return 0;
}
