/* Calls of tools in answers that come byte by byte. */
#include "base/buf.h"
#include "base/json/json_print.h"
#include "base/utf8.h"
#include "tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": "
    "\"object\", "
    "\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}, "
    "\"note\": {\"type\": [\"string\", \"null\"]}, \"unit\": {\"enum\": [\"C\", \"F\"]}, "
    "\"maybe\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}}}}},"
    /* as Pydantic and OpenAPI describe what refers to itself, and what extends a base */
    " {\"name\": \"node\", \"parameters\": {\"$ref\": \"#/$defs/Node\", \"$defs\": {"
    "\"Node\": {\"allOf\": [{\"$ref\": \"#/$defs/Base\"}, {\"properties\": {\"zip\": {\"minLength\": 2}, "
    "\"child\": {\"anyOf\": [{\"$ref\": \"#/$defs/Node\"}, {\"type\": \"null\"}]}, "
    "\"mixed\": {\"type\": [\"string\", \"integer\"]}, \"code\": {\"$ref\": "
    "\"#/$defs/Base/properties/zip\"}}}]}, "
    "\"Base\": {\"type\": \"object\", \"properties\": {\"zip\": {\"type\": \"string\"}}}}}},"
    " {\"name\": \"g\"}]";

static tutti_tool_parser *parser_new(void)
{
    tutti_tool_parser *parser = NULL;
    assert_int_equal(tutti_tool_parser_new(&parser, NULL, TOOLS, false, NULL), TUTTI_OK);
    return parser;
}

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
    { "f\ntool_call(a=1, b c=100000000000000000000)", "f({\"a\":1" },
    { "f\ntool_call(a=1, a=2)",
      "f({\"a\":1,\"a\":2})" }, /* f lists no arguments: as in JSON, the last counts */
    { "get_weather\ntool_call(days=1, days=2)", "get_weather({\"days\":1" },
    { "", "" },
    { "plain", "" },
};

static void drain(tutti_tool_parser *r, const char *text, size_t n, struct buf *told)
{
    struct tutti_tool_call_delta delta;
    while (tutti_tool_parser_next(r, text, n, &delta)) {
        if (delta.name)
            assert_true(buf_printf(told, "%.*s(", (int)delta.n_name, delta.name));
        assert_true(buf_add(told, delta.arguments, delta.n_arguments));
        if (delta.is_last)
            assert_true(buf_add_string(told, ")"));
    }
}

static void calls_are_told_as_far_as_they_are_certain(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t n = strlen(CASES[i].text);
        for (size_t step = 1; step <= n + 1; step += step < 8 ? 1 : n) {
            tutti_tool_parser *r = parser_new();
            struct buf told = { 0 };
            assert_true(buf_add(&told, "", 0));
            for (size_t k = step; k < n; k += step)
                drain(r, CASES[i].text, k, &told);
            drain(r, CASES[i].text, n, &told);
            if (strcmp(told.bytes, CASES[i].told) != 0)
                fail_msg("%s: told %s, expected %s", CASES[i].text, told.bytes, CASES[i].told);
            buf_clear(&told);
            tutti_tool_parser_free(r);
        }
    }
}

static void arguments_come_before_they_are_complete(void **state)
{
    (void)state;
    static const char TEXT[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"one two";
    tutti_tool_parser *r = parser_new();
    struct tutti_tool_call_delta delta;
    size_t n_told = 0, head = sizeof TEXT - 1 - strlen("{\"a\": \"one two");
    assert_false(tutti_tool_parser_next(r, TEXT, head, &delta));
    assert_true(tutti_tool_parser_next(r, TEXT, head + 1, &delta));
    assert_int_equal(delta.n_name, 1);
    for (size_t n = head + 1; n < sizeof TEXT; n++) {
        assert_true(tutti_tool_parser_next(r, TEXT, n, &delta));
        assert_null(delta.name);
        n_told += delta.n_arguments;
        assert_int_equal(n_told, n - head);
        assert_false(tutti_tool_parser_next(r, TEXT, n, &delta));
    }
    tutti_tool_parser_free(r);
}

/* Feeds a text by lengths that differ by step, and joins the arguments of its only call. n_deltas: those with arguments. */
static char *streamed_arguments(const char *form, const char *text, size_t step, size_t *n_deltas)
{
    tutti_tool_parser *r = NULL;
    struct tutti_tool_call_delta delta;
    struct buf joined = { 0 };
    size_t n_all = strlen(text), n_content;
    assert_int_equal(tutti_tool_parser_new(&r, form, TOOLS, false, NULL), TUTTI_OK);
    assert_true(buf_add(&joined, "", 0));
    *n_deltas = 0;
    for (size_t n = step < n_all ? step : n_all;; n = n + step < n_all ? n + step : n_all) {
        char *copy = strndup(text, n); /* another address each time */
        while (tutti_tool_parser_next(r, copy, n, &delta)) {
            *n_deltas += delta.n_arguments > 0;
            assert_true(buf_add(&joined, delta.arguments, delta.n_arguments));
            assert_true(utf8_is_valid(delta.arguments, delta.n_arguments));
        }
        free(copy);
        if (n == n_all)
            break;
    }
    assert_true(tutti_tool_parser_is_complete(r, text, n_all, &n_content));
    tutti_tool_parser_free(r);
    return joined.bytes;
}

/* Values without quotes, of get_weather's parameters: each is given to the client while it is written, but for what may be
 * the beginning of its closing mark. */
static void values_without_quotes_are_streamed(void **state)
{
    static const struct {
        const char *form, *head, *value, *tail;
        const char *arguments;
        size_t min_deltas; /* of them, when the text comes byte by byte */
    } VALUES[] = {
        { "qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\n", "Paris and more",
          "\n</parameter>\n</function>\n</tool_call>", "{\"city\":\"Paris and more\"}", 14 },
        { "qwen3-coder", "<function=get_weather><parameter=city>", "a</param\n\n</parameterr\n",
          "\n</parameter></function>", "{\"city\":\"a</param\\n\\n</parameterr\\n\"}", 7 },
        { "qwen3-coder", "<function=get_weather><parameter=city>\n", "a\n<parameter\n </function>\n</par",
          "\n<parameter=days>\n3\n</function>",
          "{\"city\":\"a\\n<parameter\\n </function>\\n</par\",\"days\":3}", 10 },
        { "qwen3-coder", "<function=get_weather><parameter=city>", "\n", "</parameter></function>",
          "{\"city\":\"\"}", 2 },
        { "qwen3-coder", "<function=get_weather><parameter=city>", "", "</parameter></function>",
          "{\"city\":\"\"}", 2 },
        { "glm-4.5", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>",
          "\"北京\" \\ \t\x01\n\xF0\x9F\x8C\xA7</arg_valu", "</arg_value></tool_call>",
          "{\"city\":\"\\\"北京\\\" \\\\ \\t\\u0001\\n\xF0\x9F\x8C\xA7</arg_valu\"}", 10 },
        /* A text that may still become null is held back until it differs. */
        { "glm-4.5", "<tool_call>get_weather<arg_key>note</arg_key><arg_value>", "null",
          "</arg_value></tool_call>", "{\"note\":null}", 2 },
        { "glm-4.5", "<tool_call>get_weather<arg_key>note</arg_key><arg_value>", "nullify it",
          "</arg_value></tool_call>", "{\"note\":\"nullify it\"}", 7 },
        { "glm-4.5", "<tool_call>get_weather<arg_key>maybe</arg_key><arg_value>", "nul",
          "</arg_value></tool_call>", "{\"maybe\":\"nul\"}", 2 },
        { "glm-4.5", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>", "null",
          "</arg_value></tool_call>", "{\"city\":\"null\"}", 4 },
        /* Others are given when they are complete. */
        { "glm-4.5", "<tool_call>get_weather<arg_key>days</arg_key><arg_value>", "12345",
          "</arg_value></tool_call>", "{\"days\":12345}", 2 },
        { "glm-4.5", "<tool_call>get_weather<arg_key>other</arg_key><arg_value>", "{\"a\": [1, 2]}",
          "</arg_value></tool_call>", "{\"other\":{\"a\":[1,2]}}", 2 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        struct buf text = { 0 };
        assert_true(buf_printf(&text, "%s%s%s", VALUES[i].head, VALUES[i].value, VALUES[i].tail));
        for (size_t step = 1; step <= text.n_bytes; step++) {
            size_t n_deltas;
            char *arguments = streamed_arguments(VALUES[i].form, text.bytes, step, &n_deltas);
            assert_string_equal(arguments, VALUES[i].arguments);
            if (step == 1 && n_deltas < VALUES[i].min_deltas)
                fail_msg("%s: %zu deltas, expected %zu", text.bytes, n_deltas, VALUES[i].min_deltas);
            free(arguments);
        }
        buf_clear(&text);
    }
}

/* Ten thousand arguments in Python, and what never becomes a call: each byte is read a bounded number of times, or this takes
 * minutes. */
static void long_answers_are_read_once(void **state)
{
    static const char END[] = ",\"z\":[1]})";
    static const struct {
        const char *head, *part, *tail;
        const char *told; /* how what is told begins */
        bool is_call, is_complete;
    } LONG[] = {
        { "f\ntool_call(", "a%d=1, ", "z=[1])", "f({\"a0\":1,\"a1\":1,", true, true },
        { "<tool_call>get_weather<arg_key>city</arg_key><arg_value>", "text %d </arg_value",
          "</arg_value><arg_key>z</arg_key><arg_value>[1]</arg_value></tool_call>",
          "get_weather({\"city\":\"text 0 </arg_valuetext 1 ", true, true },
        { "<tool_call><function=f>", "<parameter=a%d>\n1\n", "<parameter=z>\n[1]\n</function></tool_call>",
          "f({\"a0\":1,\"a1\":1,", true, true },
        { "{\"name\": \"", "aaaaaaa%d", "", "", false, false }, /* too long for a name */
        { "<tool_call>", "       %d", "", "", false, false },
        { "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "text %d ", "", "f({})", false,
          true },
        { "text ", "<tool_cal%d", "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "f({})", false, true },
    };
    (void)state;
    for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++) {
        struct buf text = { 0 }, told = { 0 };
        tutti_tool_parser *r = parser_new();
        bool ok = buf_add_string(&text, LONG[i].head) && buf_add_string(&told, "");
        for (int k = 0; k < 10000; k++)
            ok = ok && buf_printf(&text, LONG[i].part, k);
        assert_true(ok && buf_add_string(&text, LONG[i].tail));
        for (size_t n = 1; n <= text.n_bytes; n++) {
            drain(r, text.bytes, n, &told);
            if (told.n_bytes == 0)
                tutti_tool_parser_content(r, text.bytes, n);
        }
        assert_true(told.n_bytes >= strlen(LONG[i].told));
        assert_memory_equal(told.bytes, LONG[i].told, strlen(LONG[i].told));
        if (LONG[i].is_call)
            assert_string_equal(told.bytes + told.n_bytes - strlen(END), END);
        size_t n_content;
        assert_int_equal(tutti_tool_parser_is_complete(r, text.bytes, text.n_bytes, &n_content),
                         LONG[i].is_complete);
        buf_clear(&text);
        buf_clear(&told);
        tutti_tool_parser_free(r);
    }
}

/* The calls of a complete answer as OpenAI's API has them: the arguments are JSON without blanks, as text. */
static json_t *find_calls(const char *text, size_t n, size_t *n_content)
{
    tutti_tool_parser *r = parser_new();
    struct tutti_tool_call_delta delta;
    struct buf arguments = { 0 };
    json_t *calls = json_array(), *name = NULL;
    while (tutti_tool_parser_next(r, text, n, &delta)) {
        if (delta.name) {
            json_decref(name);
            name = json_stringn(delta.name, delta.n_name);
            buf_truncate(&arguments, 0);
        }
        assert_true(buf_add(&arguments, delta.arguments, delta.n_arguments));
        if (!delta.is_last)
            continue;
        assert_int_equal(delta.index, json_array_size(calls));
        json_t *value = json_loadb(arguments.bytes, arguments.n_bytes, 0, NULL);
        char *compact = json_print(value, JSON_COMPACT);
        json_array_append_new(calls, json_pack("{s:O, s:s}", "name", name, "arguments", compact));
        free(compact);
        json_decref(value);
    }
    if (!tutti_tool_parser_is_complete(r, text, n, n_content)) {
        json_decref(calls);
        calls = NULL;
    }
    buf_clear(&arguments);
    json_decref(name);
    tutti_tool_parser_free(r);
    return calls;
}

static size_t n_sure(const char *text)
{
    tutti_tool_parser *parser = parser_new();
    size_t n = tutti_tool_parser_content(parser, text, strlen(text));
    tutti_tool_parser_free(parser);
    return n;
}

static void finds_calls_as_each_family_writes_them(void **state)
{
    static const struct {
        const char *text, *calls; /* calls NULL: none, all of it is content */
        size_t n_content;
    } ANSWERS[] = {
        { "f\n{\"a\": 1}", "[{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}]", 0 },
        { "f\n ```python\ntool_call(city='北京', n=-2, l=[True, None])\n```",
          "[{\"name\":\"f\",\"arguments\":\"{\\\"city\\\":\\\"北京\\\",\\\"n\\\":-2,\\\"l\\\":[true,null]}\"}"
          "]",
          0 },
        { "f\n```python\ntool_call()\n```", "[{\"name\":\"f\",\"arguments\":\"{}\"}]", 0 },
        { "Let me see. \n<tool_call>\n{\"name\": \"f\", \"arguments\": "
          "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n"
          "</tool_call>",
          "[{\"name\":\"f\",\"arguments\":\"{}\"},{\"name\":\"g\",\"arguments\":\"{}\"}]", 11 },
        { "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}", "[{\"name\":\"f\",\"arguments\":\"{}\"}]",
          0 },
        { " {\"name\": \"g\", \"parameters\": {\"x\": [1]}}\n",
          "[{\"name\":\"g\",\"arguments\":\"{\\\"x\\\":[1]}\"}]", 0 },
        { "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
          "[{\"name\":\"f\",\"arguments\":\"{}\"},{\"name\":\"g\",\"arguments\":\"{}\"}]", 0 },
        { "", NULL, 0 },
        { "plain", NULL, 0 },
        { "f", NULL, 0 },
        { "f\nplain", NULL, 0 },
        { "zork\n{}", NULL, 0 },
        { "{\"name\": \"zork\"}", NULL, 0 },
        { "{\"name\": \"f\", \"arguments\": 5}", NULL, 0 },
        { "[1]", NULL, 0 },
        { "[]", NULL, 0 },
        { "x <tool_call>{\"name\": \"f\"", NULL, 0 },
        { "f\ntool_call(a=range(5))", NULL, 0 },
        { "f\ntool_call(a=b)", NULL, 0 },
        { "f\ntool_call(1)", NULL, 0 },
        { "f\ntool_call(a=1) }}{{ dict(b=2)", NULL, 0 },
        { "f\ntool_call(a=1 + 1)", NULL, 0 },
        { "f\ntool_call(**{'a': 1})", NULL, 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ANSWERS / sizeof *ANSWERS; i++) {
        size_t n_content, n = strlen(ANSWERS[i].text);
        json_t *calls = find_calls(ANSWERS[i].text, n, &n_content);
        char *found = calls ? json_dumps(calls, JSON_COMPACT) : NULL;
        size_t want = ANSWERS[i].calls ? ANSWERS[i].n_content : n;
        if (!found != !ANSWERS[i].calls || (found && strcmp(found, ANSWERS[i].calls) != 0) ||
            n_content != want)
            fail_msg("%s: found %s, %zu bytes of content", ANSWERS[i].text, found ? found : "nothing",
                     n_content);
        /* What was sent while the answer grew is never taken back. */
        tutti_tool_parser *parser = parser_new();
        for (size_t k = 0, sent = 0; k <= n; k++) {
            size_t sure = tutti_tool_parser_content(parser, ANSWERS[i].text, k);
            assert_true(sure >= sent && sure <= n_content);
            sent = sure;
        }
        tutti_tool_parser_free(parser);
        free(found);
        json_decref(calls);
    }
    assert_int_equal(n_sure("hello <tool"), 5);
    assert_int_equal(n_sure("hello <toll"), 11);
    assert_int_equal(n_sure("he"), 2);
    assert_int_equal(n_sure("get_wea"), 0); /* may become a name */
}

/* One call or more in each form, as published models write them. */
static const struct {
    const char *form, *text;
    const char
        *calls; /* as in CASES, but arguments without blanks; each with its id in brackets, if it has one */
    size_t n_content;
} FORMS[] = {
    { "hermes", "I'll look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
      "f({\"a\":1})", 10 },
    { "qwen3-coder",
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\nand "
      "more\n</parameter>\n<parameter=days>\n3\n"
      "</parameter>\n</function>\n</tool_call>",
      "get_weather({\"city\":\"Paris\\nand more\",\"days\":3})", 0 },
    { "qwen3-coder",
      "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</"
      "tool_call>\n<tool_call>\n<function=g>\n"
      "<parameter=a>\n[1, 2]\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>",
      "f({\"a\":1})g({\"a\":[1,2],\"b\":true})", 0 },
    { "qwen3-coder", "Now:\n<function=f>\n</function>\n</tool_call>", "f({})", 4 },
    { "qwen3-coder",
      "<tool_call>\n<function=f>\n<parameter=code>\ndef g():\n    return "
      "\"<b>\"\n\ng()\n</parameter>\n</function>\n</tool_call>",
      "f({\"code\":\"def g():\\n    return \\\"<b>\\\"\\n\\ng()\"})", 0 },
    /* Without the mark that ends a value; within a line, the next one is text. */
    { "qwen3-coder",
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n<parameter=days>\n3\n</function>\n</"
      "tool_call>",
      "get_weather({\"city\":\"x\",\"days\":3})", 0 },
    { "qwen3-coder",
      "<tool_call>\n<function=f>\n<parameter=a>\n<parameter=b>\n\n</parameter>\n<parameter=c>\n1\n\n</"
      "function>\n</"
      "tool_call>",
      "f({\"a\":\"\",\"b\":\"\",\"c\":1})", 0 },
    { "qwen3-coder",
      "<tool_call>\n<function=get_weather>\n<parameter=city>\na <parameter=b> or\n "
      "</function>\n</parameter>\n</function>\n</tool_call>",
      "get_weather({\"city\":\"a <parameter=b> or\\n </function>\"})", 0 },
    { "seed-oss",
      "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>",
      "f({\"a\":1})", 0 },
    /* The schema of a value is found through $ref and allOf. */
    { "qwen3-coder",
      "<tool_call>\n<function=node>\n<parameter=zip>\n12345\n</parameter>\n<parameter=code>\ntrue\n</"
      "parameter>\n"
      "<parameter=mixed>\n7\n</parameter>\n<parameter=child>\nNone\n</parameter>\n</function>\n</tool_call>",
      "node({\"zip\":\"12345\",\"code\":\"true\",\"mixed\":7,\"child\":null})", 0 },
    { "glm-4.5",
      "Let me "
      "see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>北京</arg_value>\n<arg_key>days</"
      "arg_key>\n"
      "<arg_value>2</arg_value>\n</tool_call>",
      "get_weather({\"city\":\"北京\",\"days\":2})", 11 },
    { "glm-4.5",
      "<tool_call>f</tool_call><tool_call>g<arg_key>x</arg_key><arg_value>{\"y\": "
      "[null]}</arg_value></tool_call>",
      "f({})g({\"x\":{\"y\":[null]}})", 0 },
    { "glm-4.5",
      "<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value><arg_key>note</"
      "arg_key><arg_value>null</arg_value>"
      "<arg_key>unit</arg_key><arg_value>C</arg_value><arg_key>maybe</arg_key><arg_value>null</arg_value></"
      "tool_call>",
      "get_weather({\"city\":\"12\",\"note\":null,\"unit\":\"C\",\"maybe\":null})", 0 },
    /* Where a text is allowed, of Python only its words are read. */
    { "glm-4.5",
      "<tool_call>f<arg_key>a</arg_key><arg_value>1_000</arg_value><arg_key>b</arg_key><arg_value>'x' "
      "'y'</arg_value>"
      "<arg_key>c</arg_key><arg_value>False</arg_value></tool_call>",
      "f({\"a\":\"1_000\",\"b\":\"'x' 'y'\",\"c\":false})", 0 },
    { "glm-4.5",
      "<tool_call>node<arg_key>mixed</arg_key><arg_value>'x'</arg_value><arg_key>child</arg_key>"
      "<arg_value>{'zip': None}</arg_value></tool_call>",
      "node({\"mixed\":\"'x'\",\"child\":{\"zip\":null}})", 0 },
    { "glm-4", "get_weather\n{\"city\": \"Paris\"}", "get_weather({\"city\":\"Paris\"})", 0 },
    { "llama-3", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "f({\"a\":1})", 0 },
    { "llama-3",
      "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": "
      "\"g\", \"parameters\": {}}",
      "f({\"a\":1})g({})", 0 },
    { "llama-3", "[f(a=1), get_weather(city='Paris')]", "f({\"a\":1})get_weather({\"city\":\"Paris\"})", 0 },
    { "pythonic", "[get_weather(city=\"Paris (1, 2]\", days=3), f()]",
      "get_weather({\"city\":\"Paris (1, 2]\",\"days\":3})f({})", 0 },
    { "pythonic", "<|python_start|>[f(a={'b': [1, None, True]})]<|python_end|>",
      "f({\"a\":{\"b\":[1,null,true]}})", 0 },
    { "lfm2", "Sure.<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>", "f({\"a\":1})g({})", 5 },
    { "mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}]",
      "f({\"a\":1})<123456789>", 0 },
    { "mistral",
      "[TOOL_CALLS] [{\"id\": \"aB3456789\", \"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
      "\"arguments\": {}}]",
      "f({})<aB3456789>g({})", 0 },
    { "mistral", "One moment.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", "f({\"a\":1})g({})", 11 },
    { "mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}", "f({\"a\":1})<123456789>", 0 },
    { "mistral", "[TOOL_CALLS]f{\"a\": 1}", "f({\"a\":1})", 0 },
    { "deepseek",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
      "1}\n```<｜tool▁call▁end｜>\n"
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "f({\"a\":1})g({})", 0 },
    { "deepseek",
      "I see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
      "1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>"
      "{\"b\": {}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "f({\"a\":1})g({\"b\":{}})", 6 },
    { "kimi-k2",
      "OK.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"
      "\"city\": \"Paris\"}"
      "<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|><|"
      "tool_calls_section_end|>",
      "get_weather({\"city\":\"Paris\"})<functions.get_weather:0>f({})<functions.f:1>", 3 },
    { "harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
      "f({\"a\":1})", 0 },
    { "harmony", "Look.<|channel|>commentary to=functions.f<|message|>{\"a\": 1}", "f({\"a\":1})", 5 },
    { "phi-4-mini",
      "<|tool_call|>[{\"type\": \"function\", \"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/tool_call|>",
      "f({\"a\":1})", 0 },
    { "phi-4-mini",
      "<|tool_call|>[{\"arguments\": {\"a\": 1}, \"name\": \"f\"}, {\"name\": \"g\", \"arguments\": {}}]",
      "f({\"a\":1})g({})", 0 },
    { "phi-4-mini", "<|tool_call|>{\"name\": \"f\", \"arguments\": {}}", "f({})", 0 },
    { "nemotron", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>", "f({})", 0 },
    { "apriel", "Hm.\n<tool_calls>[{\"name\": \"f\", \"arguments\": {}, \"id\": \"1\"}]</tool_calls>",
      "f({})<1>", 3 },
    { "firefunction", " functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "f({\"a\":1})", 0 },
    { "functionary-v3.1", "Hi.<function=f>{\"a\": 1}</function><function=g>{}</function>",
      "f({\"a\":1})g({})", 3 },
    { "functionary-v3.2", "f\n{\"a\": 1}>>>g\n{}", "f({\"a\":1})g({})", 0 },
    { "gemma", "I will ask.\n```tool_code\nget_weather(city=\"Paris\")\n```",
      "get_weather({\"city\":\"Paris\"})", 11 },
    { "gemma", "```tool_code\nprint(f(a=1))\ng()\n```", "f({\"a\":1})g({})", 0 },
    { "gemma", "```tool_code\n[f(a=1), g()]\n```", "f({\"a\":1})g({})", 0 },
    { "gemma", "```tool_code\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\n```", "f({\"a\":1})", 0 },
    /* No calls: the client gets all of it as text. */
    { "hermes", "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>", NULL, 0 },
    { "hermes", "{\"name\": \"f\", \"arguments\": {}}", NULL, 0 }, /* another family's form */
    { "qwen3-coder", "<tool_call>\n<function=other>\n</function>\n</tool_call>", NULL, 0 },
    { "qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n1</function>", NULL, 0 },
    { "glm-4.5", "<tool_call>f<arg_key>a</arg_key></tool_call>", NULL, 0 },
    { "glm-4.5",
      "<tool_call>get_weather\n<arg_key>days</arg_key><arg_value>1</arg_value><arg_key>days</"
      "arg_key><arg_value>1</"
      "arg_value></tool_call>",
      NULL, 0 },
    { "glm-4.5",
      "<tool_call>node<arg_key>zip</arg_key><arg_value>1</arg_value><arg_key>zip</arg_key><arg_value>1</"
      "arg_value></tool_call>",
      NULL, 0 },
    { "pythonic", "[f(1)]", NULL, 0 },
    { "pythonic", "[a link](f(a=1))", NULL, 0 },
    { "mistral", "[TOOL_CALLS]f[ARGS]{\"a\": 1", NULL, 0 },
    { "mistral", "[TOOL_CALLS]f[ARGS]{\"a\": }", NULL, 0 },
    { "deepseek", "<｜tool▁calls▁begin｜>f", NULL, 0 },
    { "kimi-k2",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.zork:0<|tool_call_argument_begin|>{}", NULL,
      0 },
    { "harmony", "<|channel|>commentary to=functions.zork<|message|>{}", NULL, 0 },
    { "llama-3", "{\"city\": \"Paris\"}", NULL, 0 },
    { "llama-3", "{\"name\": ]]", NULL, 0 },
};

/* Feeds the answer in pieces whose length is drawn from seed; 0: whole. */
static char *calls_in_pieces(const char *form, const char *text, unsigned seed, size_t *n_content)
{
    tutti_tool_parser *r = NULL;
    struct tutti_tool_call_delta delta;
    struct buf arguments = { 0 }, out = { 0 };
    size_t n_all = strlen(text), n = 0, n_calls = 0, n_sent = 0;
    assert_int_equal(tutti_tool_parser_new(&r, form, TOOLS, false, NULL), TUTTI_OK);
    assert_true(buf_add_string(&out, ""));
    while (n < n_all) {
        seed = seed * 1103515245 + 12345;
        n += seed == 12345 ? n_all : 1 + (seed >> 16) % 9;
        n = n < n_all ? n : n_all;
        char *copy = strndup(text, n); /* another address each time */
        size_t sure = tutti_tool_parser_content(r, copy, n);
        assert_true(sure >= n_sent);
        n_sent = sure;
        while (tutti_tool_parser_next(r, copy, n, &delta)) {
            assert_int_equal(delta.index, delta.name ? n_calls : n_calls - 1);
            if (delta.name) {
                assert_true(buf_printf(&out, "%.*s(", (int)delta.n_name, delta.name));
                n_calls++;
            }
            assert_true(buf_add(&arguments, delta.arguments, delta.n_arguments));
            if (!delta.is_last)
                continue;
            json_t *value = json_loadb(arguments.bytes, arguments.n_bytes, 0, NULL);
            char *compact = value ? json_print(value, JSON_COMPACT) : strdup("?");
            assert_true(buf_printf(&out, "%s)", compact));
            if (tutti_tool_parser_call_id(r, delta.index))
                assert_true(buf_printf(&out, "<%s>", tutti_tool_parser_call_id(r, delta.index)));
            free(compact);
            json_decref(value);
            buf_truncate(&arguments, 0);
        }
        free(copy);
    }
    bool has_calls = tutti_tool_parser_is_complete(r, text, n_all, n_content);
    /* An id that follows the arguments is known at the end. */
    if (has_calls && !strchr(out.bytes, '<') && tutti_tool_parser_call_id(r, n_calls - 1))
        assert_true(buf_printf(&out, "<%s>", tutti_tool_parser_call_id(r, n_calls - 1)));
    assert_true(n_sent <= *n_content);
    tutti_tool_parser_free(r);
    buf_clear(&arguments);
    char *calls = has_calls ? strdup(out.bytes) : NULL;
    buf_clear(&out);
    return calls;
}

/* Whole, byte by byte (as all cases above are), and in pieces, with only this form and among all forms. */
static void every_published_form_is_parsed(void **state)
{
    enum { N_SEEDS = 40 };
    (void)state;
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
        for (unsigned seed = 0; seed < N_SEEDS; seed++) {
            bool is_alone = seed % 2 == 0;
            if (!is_alone && !FORMS[i].calls) /* may be a call in another form */
                continue;
            size_t n_content, n = FORMS[i].calls ? FORMS[i].n_content : strlen(FORMS[i].text);
            char *calls = calls_in_pieces(is_alone ? FORMS[i].form : NULL, FORMS[i].text, seed, &n_content);
            if (!calls != !FORMS[i].calls || (calls && strcmp(calls, FORMS[i].calls) != 0) || n_content != n)
                fail_msg("%s, seed %u: %s: found %s, %zu bytes of content, expected %s", FORMS[i].form, seed,
                         FORMS[i].text, calls ? calls : "nothing", n_content,
                         FORMS[i].calls ? FORMS[i].calls : "nothing");
            free(calls);
        }
    }
}

/* Amounts of a currency and identifiers have more than 64 bits; digits that begin with 0 are a text where the
 * schema allows one. */
static void digits_are_passed_on_as_they_are_written(void **state)
{
#define LONG "100000000000000000000000"
    static const struct {
        const char *form, *text, *arguments;
    } CASES_OF_DIGITS[] = {
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " LONG "}}</tool_call>",
          "{\"a\": " LONG "}" },
        { "hermes", "<tool_call>{\"arguments\": {\"a\": [-" LONG "]} , \"name\": \"f\"}</tool_call>",
          "{\"a\": [-" LONG "]}" },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": " LONG "}\"}</tool_call>",
          "{\"a\": " LONG "}" },
        { "mistral", "[TOOL_CALLS]f[ARGS]{\"a\": " LONG "}", "{\"a\": " LONG "}" },
        { "llama-3", "{\"name\": \"f\", \"parameters\": {\"a\": " LONG "}}", "{\"a\": " LONG "}" },
        { "pythonic", "[f(x=1, a = " LONG ")]", "{\"x\":1,\"a\": " LONG "}" },
        { "qwen3-coder",
          "<tool_call>\n<function=get_weather>\n<parameter=days>\n" LONG
          "\n</parameter>\n</function>\n</tool_call>",
          "{\"days\":" LONG "}" },
        { "qwen3-coder",
          "<tool_call>\n<function=f>\n<parameter=code>\n01234\n</parameter>\n</function>\n</tool_call>",
          "{\"code\":\"01234\"}" },
        { "qwen3-coder",
          "<tool_call>\n<function=get_weather>\n<parameter=days>\n03\n</parameter>\n</function>\n</"
          "tool_call>",
          "{\"days\":3}" },
    };
    size_t n_deltas;
    (void)state;
    for (size_t i = 0; i < sizeof CASES_OF_DIGITS / sizeof *CASES_OF_DIGITS; i++)
        for (size_t step = 1; step < 400; step *= 7) {
            char *arguments = streamed_arguments(CASES_OF_DIGITS[i].form, CASES_OF_DIGITS[i].text, step,
                                                 &n_deltas);
            assert_string_equal(arguments, CASES_OF_DIGITS[i].arguments);
            free(arguments);
        }
#undef LONG
}

/* JSON's readers do not take them as keys. */
static void names_with_zero_bytes_are_no_call(void **state)
{
    static const char TEXT[] = "<tool_call>f<arg_key>a\0b</arg_key><arg_value>1</arg_value></tool_call>";
    tutti_tool_parser *r = parser_new();
    struct tutti_tool_call_delta delta;
    size_t n_content, n_deltas = 0;
    (void)state;
    while (tutti_tool_parser_next(r, TEXT, sizeof TEXT - 1, &delta))
        n_deltas++;
    assert_int_equal(n_deltas, 1); /* the name */
    assert_false(tutti_tool_parser_is_complete(r, TEXT, sizeof TEXT - 1, &n_content));
    assert_int_equal(n_content, sizeof TEXT - 1);
    tutti_tool_parser_free(r);
}

/* A clone begins at the start of another answer, and needs its origin no more. */
static void a_clone_shares_form_and_tools(void **state)
{
    static const char CALL[] = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
                      OTHER[] = "{\"name\": \"f\", \"parameters\": {}}"; /* a call in the form of LLaMA 3 */
    tutti_tool_parser *origin = NULL, *clone = NULL;
    struct tutti_tool_call_delta delta;
    size_t n_content;
    (void)state;
    assert_int_equal(tutti_tool_parser_new(&origin, "hermes", TOOLS, false, NULL), TUTTI_OK);
    assert_true(tutti_tool_parser_next(origin, CALL, 40, &delta));
    assert_int_equal(tutti_tool_parser_clone(&clone, origin, NULL), TUTTI_OK);
    tutti_tool_parser_free(origin);
    assert_int_equal(tutti_tool_parser_content(clone, CALL, 5), 0);
    assert_true(tutti_tool_parser_next(clone, CALL, sizeof CALL - 1, &delta));
    assert_int_equal(delta.index, 0);
    while (tutti_tool_parser_next(clone, CALL, sizeof CALL - 1, &delta))
        continue;
    assert_true(tutti_tool_parser_is_complete(clone, CALL, sizeof CALL - 1, &n_content));
    assert_int_equal(tutti_tool_parser_clone(&origin, clone, NULL), TUTTI_OK);
    assert_false(tutti_tool_parser_next(origin, OTHER, sizeof OTHER - 1, &delta));
    tutti_tool_parser_free(origin);
    tutti_tool_parser_free(clone);
}

static void unknown_forms_are_refused(void **state)
{
    struct tutti_error err = { 0 };
    tutti_tool_parser *r = NULL;
    (void)state;
    assert_int_equal(tutti_tool_parser_new(&r, "zork", TOOLS, false, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "zork"));
    assert_int_equal(tutti_tool_parser_new(&r, NULL, "{}", false, &err), TUTTI_E_ARGUMENT);
    assert_null(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_told_as_far_as_they_are_certain),
        cmocka_unit_test(finds_calls_as_each_family_writes_them),
        cmocka_unit_test(arguments_come_before_they_are_complete),
        cmocka_unit_test(values_without_quotes_are_streamed),
        cmocka_unit_test(long_answers_are_read_once),
        cmocka_unit_test(every_published_form_is_parsed),
        cmocka_unit_test(digits_are_passed_on_as_they_are_written),
        cmocka_unit_test(names_with_zero_bytes_are_no_call),
        cmocka_unit_test(a_clone_shares_form_and_tools),
        cmocka_unit_test(unknown_forms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
