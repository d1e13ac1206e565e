/* Calls of tools in answers that come byte by byte. */
#include "base/buf.h"
#include "model/chat/call_reader.h"
#include "model/chat/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char TOOLS[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}},"
                            " {\"type\": \"function\", \"function\": {\"name\": \"get_weather\"}}]";

static const struct {
    const char *text,
        *told; /* "f(ARGUMENTS) f(..." as far as it is certain; a call that is complete has its bracket */
} CASES[] = {
    /* Qwen */
    { "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}\n</tool_call>",
      "f({\"a\": [1, {\"b\": \"}\\\"\"}]})" },
    { "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> "
      "<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"x\":1}}</tool_call>",
      "f({})get_weather({\"x\":1})" },
    { "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "f({\"a\": 1" },
    { "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": 7}</tool_call><tool_call>{\"name\": \"f\", "
      "\"arguments\": {}}</tool_call>",
      "f({})f({})" },
    { "<tool_call>{\"name\": \"f\"}</tool_call>", "f({})" },
    { "<tool_call>{\"arguments\": {\"a\" : 1}, \"name\": \"f\"}</tool_call>", "f({\"a\":1})" },
    { "<tool_call>{\"arguments\": {\"a\" : 1}, \"name\": \"f\"", "" },
    { "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": }</tool_call><tool_call>{\"name\": \"f\"}",
      "f({})" },
    { "[{\"name\": \"f\", \"arguments\": {}}] and <tool_call>{\"name\": \"f\"}</tool_call>", "f({})" },
    { "f\n<tool_call>{\"name\": \"get_weather\"}</tool_call>", "get_weather({})" },
    { "{ or [ <tool_call>{\"name\": \"f\"}</tool_call>", "f({})" },
    { "{x} or [y] <tool_call>{\"name\": \"f\"}</tool_call>", "f({})" },
    { "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>", "" },
    { "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>", "f({})" },
    { "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>", "" },
    { "<tool_call>{\"name\": \"f", "" },
    { "a < b, and <tool_calm> is none", "" },
    /* LLaMA-3, Mistral */
    { " {\"name\": \"get_weather\", \"parameters\": {\"city\": \"\\\\\"}}",
      "get_weather({\"city\": \"\\\\\"})" },
    { "[{\"name\": \"f\", \"arguments\": {\"a\": 1}} , {\"name\":\"f\",\"arguments\": {\"a\":2}}]",
      "f({\"a\": 1})f({\"a\":2})" },
    { "{\"city\": \"Paris\"}", "" },
    { "[1, 2]", "" },
    /* GLM-4 */
    { "\nget_weather\n{\"city\": \"北京\"}", "get_weather({\"city\": \"北京\"})" },
    { "get_weather \n {\"city\": \"Pa", "get_weather({\"city\": \"Pa" },
    { "get_weather is a tool\n{\"city\": 1}", "" },
    { "get_weather\nHello, this is what I would have called, had I been asked to do so by anybody at all.",
      "" },
    /* ChatGLM3 */
    { "f\n ```python\ntool_call(city='北京, (x)', n=-2, l=[True, None])\n```",
      "f({\"city\":\"北京, (x)\",\"n\":-2,\"l\":[true,null]})" },
    { "f\n```python\ntool_call()\n```", "f({})" },
    { "f\ntool_call(a=1, b='it\\'s", "f({\"a\":1" },
    { "f\ntool_call(a=x, b=2)", "f(" },
    { "f\ntool_call(a=1, a=2)", "f({\"a\":1" },
    { "", "" },
    { "plain", "" },
};

static void drain(struct call_reader *r, const char *text, size_t n, const json_t *tools, struct buf *told)
{
    struct call_piece piece;
    while (call_reader_next(r, text, n, tools, &piece)) {
        assert_int_equal(piece.index, r->n_calls - 1);
        if (piece.name)
            assert_true(buf_printf(told, "%.*s(", (int)piece.n_name, piece.name));
        assert_true(buf_add(told, piece.arguments, piece.n_bytes));
        if (piece.is_last)
            assert_true(buf_add_string(told, ")"));
    }
}

static void calls_are_told_as_far_as_they_are_certain(void **state)
{
    (void)state;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t n = strlen(CASES[i].text);
        for (size_t step = 1; step <= n + 1; step += step < 8 ? 1 : n) {
            struct call_reader r = { .at = 0 };
            struct buf told = { 0 };
            assert_true(buf_add(&told, "", 0));
            for (size_t k = step; k < n; k += step)
                drain(&r, CASES[i].text, k, tools, &told);
            drain(&r, CASES[i].text, n, tools, &told);
            if (strcmp(told.bytes, CASES[i].told) != 0)
                fail_msg("%s: told %s, expected %s", CASES[i].text, told.bytes, CASES[i].told);
            buf_clear(&told);
            call_reader_clear(&r);
        }
    }
    json_decref(tools);
}

/* The same calls as at the end; the pieces mean the same JSON. */
static void what_is_told_is_what_is_found_in_the_end(void **state)
{
    (void)state;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t n = strlen(CASES[i].text), n_content;
        json_t *calls = chat_find_calls(CASES[i].text, n, tools, false, &n_content);
        struct call_reader r = { .at = 0 };
        struct call_piece piece;
        struct buf arguments = { 0 };
        while (calls && call_reader_next(&r, CASES[i].text, n, tools, &piece)) {
            const json_t *want = json_array_get(calls, piece.index);
            if (piece.name)
                assert_memory_equal(piece.name, json_string_value(json_object_get(want, "name")),
                                    piece.n_name);
            assert_true(buf_add(&arguments, piece.arguments, piece.n_bytes));
            if (!piece.is_last)
                continue;
            json_t *told = json_loadb(arguments.bytes, arguments.n_bytes, 0, NULL);
            json_t *found = json_loads(json_string_value(json_object_get(want, "arguments")), 0, NULL);
            assert_true(told && json_equal(told, found));
            json_decref(told);
            json_decref(found);
            buf_truncate(&arguments, 0);
        }
        buf_clear(&arguments);
        call_reader_clear(&r);
        json_decref(calls);
    }
    json_decref(tools);
}

static void arguments_come_before_they_are_complete(void **state)
{
    (void)state;
    static const char TEXT[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"one two";
    json_t *tools = json_loads(TOOLS, 0, NULL);
    struct call_reader r = { .at = 0 };
    struct call_piece piece;
    size_t n_told = 0, head = sizeof TEXT - 1 - strlen("{\"a\": \"one two");
    assert_false(call_reader_next(&r, TEXT, head, tools, &piece));
    assert_true(call_reader_next(&r, TEXT, head + 1, tools, &piece));
    assert_int_equal(piece.n_name, 1);
    for (size_t n = head + 1; n < sizeof TEXT; n++) {
        assert_true(call_reader_next(&r, TEXT, n, tools, &piece));
        assert_null(piece.name);
        n_told += piece.n_bytes;
        assert_int_equal(n_told, n - head);
        assert_false(call_reader_next(&r, TEXT, n, tools, &piece));
    }
    call_reader_clear(&r);
    json_decref(tools);
}

/* Ten thousand arguments in Python, and what never becomes a call: each byte is read a bounded number of times, or this takes
 * minutes. */
static void long_answers_are_read_once(void **state)
{
    static const char END[] = ",\"z\":[1]})";
    static const struct {
        const char *head, *part, *tail;
        const char *told; /* how what is told begins */
        bool is_call;
    } LONG[] = {
        { "f\ntool_call(", "a%d=1, ", "z=[1])", "f({\"a0\":1,\"a1\":1,", true },
        { "{\"name\": \"", "aaaaaaa%d", "", "", false }, /* too long for a name */
        { "<tool_call>", "       %d", "", "", false },
        { "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "text %d ", "", "f({})", false },
        { "text ", "<tool_cal%d", "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "f({})", false },
    };
    (void)state;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++) {
        struct buf text = { 0 }, told = { 0 };
        struct call_reader r = { .at = 0 };
        bool ok = buf_add_string(&text, LONG[i].head) && buf_add_string(&told, "");
        for (int k = 0; k < 10000; k++)
            ok = ok && buf_printf(&text, LONG[i].part, k);
        assert_true(ok && buf_add_string(&text, LONG[i].tail));
        size_t n_sure = 0;
        for (size_t n = 1; n <= text.n_bytes; n++) {
            drain(&r, text.bytes, n, tools, &told);
            n_sure = r.n_calls == 0 ? chat_sure_content(text.bytes, n, n_sure, tools) : n_sure;
        }
        assert_true(told.n_bytes >= strlen(LONG[i].told));
        assert_memory_equal(told.bytes, LONG[i].told, strlen(LONG[i].told));
        if (LONG[i].is_call)
            assert_string_equal(told.bytes + told.n_bytes - strlen(END), END);
        assert_int_equal(r.state, i == 1   ? CALL_OBJECT
                                  : i == 2 ? CALL_NONE
                                  : i == 3 ? CALL_AWAITED
                                           : r.state);
        buf_clear(&text);
        buf_clear(&told);
        call_reader_clear(&r);
    }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_told_as_far_as_they_are_certain),
        cmocka_unit_test(what_is_told_is_what_is_found_in_the_end),
        cmocka_unit_test(arguments_come_before_they_are_complete),
        cmocka_unit_test(long_answers_are_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
