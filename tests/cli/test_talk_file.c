/* Conversations as files: what is read, what is refused and with which words, and that no input does harm. */
#include "cli/chat/talk_file.h"

#include "cli/chat/attachment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"
#define PAGE_OF(options, picks, messages)                                                                    \
    "{\"format\": \"tutti-conversations\", \"version\": 1, \"conversations\": [{\"options\": " options       \
    ", \"picks\": " picks ", \"messages\": " messages "}]}"

static const char WHOLE[] =
    "{\"model\": \"demo:red\", \"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"},"
    "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", "
    "\"text\": \"b\"}]},"
    "{\"role\": \"assistant\", \"content\": \"c\", \"reasoning_content\": \"d\"}],"
    "\"temperature\": 0.1, \"top_p\": 0.9, \"top_k\": 7, \"seed\": 5, \"max_tokens\": 12, \"stop\": [\"x\", "
    "\"y\"],"
    "\"ignore_eos\": true, \"enable_thinking\": false, \"reasoning_effort\": \"low\", \"thinking_budget\": "
    "9}";

static enum tutti_status read_text(struct talk *talk, const char *text, struct tutti_error *err)
{
    return talk_read(talk, "talk.json", text, strlen(text), err);
}

static void check_whole(const struct talk *talk)
{
    assert_int_equal(talk->n, 3);
    assert_string_equal(talk->model, "demo:red");
    assert_string_equal(talk->messages[0].role, "system");
    assert_string_equal(talk->messages[1].content, "a\nb");
    assert_null(talk->messages[1].reasoning);
    assert_string_equal(talk->messages[2].reasoning, "d");
    assert_true(talk->sampling.temperature == 0.1 && talk->sampling.top_p == 0.9);
    assert_int_equal(talk->sampling.top_k, 7);
    assert_int_equal(talk->sampling.seed, 5);
    assert_int_equal(talk->sampling.max_tokens, 12);
    assert_int_equal(talk->sampling.stop.n, 2);
    assert_string_equal(talk->sampling.stop.texts[1], "y");
    assert_true(talk->sampling.ignore_eos);
    assert_string_equal(talk->thinking.thinking, "off");
    assert_string_equal(talk->thinking.effort, "low");
    assert_int_equal(talk->thinking.budget, 9);
}

static void what_is_saved_is_read_again(void **state)
{
    (void)state;
    struct talk talk, again;
    struct tutti_error err;
    char path[] = "/tmp/tutti-talk-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(read_text(&talk, WHOLE, &err), TUTTI_OK);
    check_whole(&talk);
    assert_int_equal(talk_save(&talk, path, false, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "exists already; /save! /tmp/tutti-talk-"));
    assert_int_equal(talk_save(&talk, path, true, &err), TUTTI_OK);
    assert_int_equal(talk_load(&again, path, &err), TUTTI_OK);
    check_whole(&again);
    talk_clear(&talk);
    talk_clear(&again);
    unlink(path);
}

static void names_file_and_field(void **state)
{
    (void)state;
    static const struct {
        const char *text, *told;
    } BROKEN[] = {
        { "", "talk.json: " },
        { "[]", "talk.json: " },
        { "{\"messages\": [}", "talk.json: " },
        { "{}", "talk.json: messages: nothing, expected a list" },
        { "{\"messages\": {}}", "talk.json: messages: an object, expected a list" },
        { "{\"messages\": [1]}", "talk.json: messages[0]: an integer, expected an object" },
        { "{\"messages\": [{\"content\": \"x\"}]}",
          "talk.json: messages[0].role: nothing, expected \"system\"" },
        { "{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}",
          "talk.json: messages[0].role: found \"tool\", expected \"system\", \"user\" or \"assistant\"" },
        { "{\"messages\": [{\"role\": \"user\"}]}",
          "talk.json: messages[0].content: nothing, expected a string" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
          "talk.json: messages[0].content[0]: an object, expected a part of type text" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"tool_calls\": []}]}",
          "talk.json: messages[0].tool_calls: is not a field that tutti chat honours" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"reasoning\": \"y\"}]}",
          "talk.json: messages[0].reasoning_content: is only for messages of the assistant" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"system\", \"content\": "
          "\"x\"}]}",
          "talk.json: messages[1].role: found \"system\", which only the first message can have" },
        { "{" MESSAGES ", \"tools\": []}", "talk.json: tools: is not a field that tutti chat honours" },
        { "{" MESSAGES ", \"model\": 1}", "talk.json: model: an integer, expected a string" },
        { "{" MESSAGES ", \"temperature\": \"hot\"}", "talk.json: temperature: a string, expected a number" },
        { "{" MESSAGES ", \"temperature\": -1}",
          "talk.json: temperature: found '-1', expected a number from 0 to 100" },
        { "{" MESSAGES ", \"top_k\": 1.5}", "talk.json: top_k: a number, expected a whole number" },
        { "{" MESSAGES ", \"ignore_eos\": 1}", "talk.json: ignore_eos: an integer, expected true or false" },
        { "{" MESSAGES ", \"stop\": [1]}", "talk.json: stop: an integer, expected a string" },
        { "{" MESSAGES ", \"enable_thinking\": 1}",
          "talk.json: enable_thinking: an integer, expected true or false" },
        { "{" MESSAGES ", \"reasoning_effort\": \"hgih\"}",
          "talk.json: reasoning_effort: found 'hgih', expected none" },
        { "{" MESSAGES ", \"thinking_budget\": -2}",
          "talk.json: thinking_budget: found '-2', expected a whole number" },
        { "{\"format\": \"tutti-conversations\", \"version\": 2}",
          "talk.json: version: an integer, expected 1" },
        { "{\"format\": \"tutti-conversations\", \"version\": 1, \"conversations\": []}",
          "talk.json: conversations: found 0, expected one" },
        { PAGE_OF("{}", "{}", "3"), "talk.json: conversations[0].messages: an integer, expected a list" },
        { PAGE_OF("{}", "{}", "[{\"role\": \"user\", \"text\": \"x\"}]"),
          "talk.json: conversations[0].messages[0].id: nothing, expected a string" },
        { PAGE_OF("{}", "{}", "[{\"id\": \"a\", \"parent\": \"b\", \"role\": \"user\", \"text\": \"x\"}]"),
          "talk.json: conversations[0].messages[0].parent: a string, expected the id of an earlier message" },
        { PAGE_OF("{}", "{}",
                  "[{\"id\": \"a\", \"role\": \"user\", \"text\": \"x\"}, {\"id\": \"a\", \"parent\": \"a\", "
                  "\"role\": "
                  "\"user\", \"text\": \"x\"}]"),
          "talk.json: conversations[0].messages[1].id: found the id of an earlier message" },
        { PAGE_OF("{}", "{}", "[{\"id\": \"a\", \"role\": \"user\"}]"),
          "talk.json: conversations[0].messages[0].text: nothing, expected a string" },
        { PAGE_OF("{\"temperature\": true}", "{}", "[]"),
          "talk.json: conversations[0].options.temperature: true, expected a number" },
        { PAGE_OF("{\"effort\": \"much\"}", "{}", "[]"),
          "talk.json: conversations[0].options.effort: found 'much', expected none" },
        { PAGE_OF("{\"system\": 1}", "{}", "[]"),
          "talk.json: conversations[0].options.system: an integer, expected a string" },
    };
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        struct talk talk;
        struct tutti_error err = { 0 };
        assert_int_equal(read_text(&talk, BROKEN[i].text, &err), TUTTI_E_FORMAT);
        if (strncmp(err.text, BROKEN[i].told, strlen(BROKEN[i].told)) != 0)
            fail_msg("found '%s', expected '%s'", err.text, BROKEN[i].told);
    }
}

/* The picked question, below it the picked answer, below that the last of two questions. */
static void shows_what_the_page_shows(void **state)
{
    (void)state;
    static const char PAGE[] = PAGE_OF(
        "{\"system\": \"s\", \"effort\": \"high\", \"top_k\": null}",
        "{\"\": \"b\", \"b\": \"d\", \"d\": \"gone\"}",
        "[{\"id\": \"a\", \"role\": \"user\", \"text\": \"1\"}, {\"id\": \"b\", \"role\": \"user\", "
        "\"text\": \"2\"},"
        "{\"id\": \"c\", \"parent\": \"a\", \"role\": \"assistant\", \"text\": \"3\"},"
        "{\"id\": \"d\", \"parent\": \"b\", \"role\": \"assistant\", \"text\": \"4\"},"
        "{\"id\": \"e\", \"parent\": \"b\", \"role\": \"assistant\", \"text\": \"5\"},"
        "{\"id\": \"f\", \"parent\": \"d\", \"role\": \"user\", \"text\": \"6\"},"
        "{\"id\": \"g\", \"parent\": \"d\", \"role\": \"user\", \"text\": \"7\"}]");
    static const char *const SHOWN[] = { "s", "2", "4", "7" };
    struct talk talk;
    struct tutti_error err;
    assert_int_equal(read_text(&talk, PAGE, &err), TUTTI_OK);
    assert_int_equal(talk.n, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(talk.messages[i].content, SHOWN[i]);
    assert_string_equal(talk.thinking.effort, "high");
    talk_clear(&talk);
}

static void broken_bytes_are_errors_or_conversations(void **state)
{
    (void)state;
    static const char PAGE[] = PAGE_OF(
        "{\"temperature\": 1}", "{\"\": \"a\"}",
        "[{\"id\": \"a\", \"role\": \"user\", \"text\": \"x\", \"files\": [{\"name\": "
        "\"n\", \"text\": \"```\"}]}, {\"id\": \"b\", \"parent\": \"a\", \"role\": "
        "\"assistant\", \"text\": \"y\", \"reasoning\": \"z\"}]");
    static const char *const SOURCES[] = { WHOLE, PAGE };
    static const char BYTES[] = "\"{}[],:0 \\a-\xff";
    size_t n_read = 0;
    for (size_t s = 0; s < 2; s++)
        for (size_t i = 0; SOURCES[s][i]; i++)
            for (size_t k = 0; k < sizeof BYTES; k++) {
                char *copy = strdup(SOURCES[s]);
                struct talk talk;
                struct tutti_error err = { 0 };
                assert_non_null(copy);
                copy[i] = BYTES[k];
                if (talk_read(&talk, "x", copy, k + 1 == sizeof BYTES ? i : strlen(SOURCES[s]), &err) ==
                    TUTTI_OK) {
                    n_read++;
                    talk_clear(&talk);
                } else {
                    assert_int_equal(strncmp(err.text, "x: ", 3), 0);
                }
                free(copy);
            }
    assert_true(n_read > 100);
}

static void a_fence_is_longer_than_any_in_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *block;
    } FILES[] = {
        { "x\n", "n:\n```\nx\n```\n\n" },
        { "", "n:\n```\n\n```\n\n" },
        { "a ````` b", "n:\n``````\na ````` b\n``````\n\n" },
        { "``", "n:\n```\n``\n```\n\n" },
        { "```", "n:\n````\n```\n````\n\n" },
    };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        struct buf out = { 0 };
        assert_true(attachment_write(&out, "n", FILES[i].text, strlen(FILES[i].text)));
        assert_string_equal(out.bytes, FILES[i].block);
        buf_clear(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_read_again),
        cmocka_unit_test(names_file_and_field),
        cmocka_unit_test(shows_what_the_page_shows),
        cmocka_unit_test(broken_bytes_are_errors_or_conversations),
        cmocka_unit_test(a_fence_is_longer_than_any_in_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
