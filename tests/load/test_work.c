/* Prompts of files, made-up ones, and the bodies that carry them. */
#include "load/work.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum tutti_status read_text(struct work *out, const char *text, size_t n_bytes,
                                   struct tutti_error *err)
{
    *out = (struct work){ .made = { 0 } };
    assert_true(buf_add(&out->prompts.bytes, text, n_bytes));
    return prompt_file_read(&out->prompts, "prompts.jsonl", PROMPTS_TO_SEND, err);
}

static void reads_json_lines(void **state)
{
    (void)state;
    static const char TEXT[] = "\n{\"prompt\": \"one\\u0000two\"}\r\n"
                               "  \n"
                               "{\"messages\": [{\"role\": \"user\", \"content\": [1]}], \"max_tokens\": 7}\n"
                               "{\"prompt\": \"\", \"output_len\": 16777216}";
    struct work work;
    assert_int_equal(read_text(&work, TEXT, sizeof TEXT - 1, NULL), TUTTI_OK);
    assert_int_equal(work.prompts.n, 3);
    assert_int_equal(work.prompts.list[0].n_bytes, 7);
    assert_memory_equal(work.prompts.list[0].text, "one\0two", 7);
    assert_int_equal(work.prompts.list[0].max_tokens, 0);
    assert_null(work.prompts.list[1].text);
    assert_int_equal(json_array_size(work.prompts.list[1].messages), 1);
    assert_int_equal(work.prompts.list[1].max_tokens, 7);
    assert_int_equal(work.prompts.list[2].n_bytes, 0);
    assert_int_equal(work.prompts.list[2].max_tokens, 16777216);
    prompt_file_clear(&work.prompts);
}

static void reads_a_prompt_a_line(void **state)
{
    (void)state;
    static const char TEXT[] = "first\r\n\nsecond {\"prompt\": 1}\n";
    struct work work;
    assert_int_equal(read_text(&work, TEXT, sizeof TEXT - 1, NULL), TUTTI_OK);
    assert_int_equal(work.prompts.n, 2);
    assert_int_equal(work.prompts.list[0].n_bytes, 5);
    assert_memory_equal(work.prompts.list[1].text, "second {", 8);
    prompt_file_clear(&work.prompts);
}

static void broken_files_are_refused_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } CASES[] = {
        { "", "there is no prompt in it" },
        { "\n  \n", "there is no prompt in it" },
        { "\xff\n", "line 1: it is no valid UTF-8" },
        { "{\"prompt\": \"x\"}\n{\"prompt\": }", "line 2: column" },
        { "{\"prompt\": \"x\"}\n[1]", "line 2: found a list, expected an object" },
        { "{}", "line 1: expected either \"prompt\" or \"messages\"" },
        { "{\"prompt\": \"x\", \"messages\": [{\"role\": \"user\"}]}",
          "expected either \"prompt\" or \"messages\"" },
        { "{\"prompt\": 7}", "prompt: an integer, expected a string" },
        { "{\"messages\": {}}", "messages: an object, expected a list of messages" },
        { "{\"messages\": []}", "messages: an empty list" },
        { "{\"messages\": [7]}", "messages[0]: an integer, expected an object" },
        { "{\"messages\": [{\"content\": \"x\"}]}", "messages[0].role: nothing, expected a string" },
        { "{\"prompt\": \"x\", \"max_tokens\": 0}", "max_tokens: 0, expected an integer from 1 to 16777216" },
        { "{\"prompt\": \"x\", \"output_len\": 16777217}",
          "output_len: 16777217, expected an integer from 1 to" },
        { "{\"prompt\": \"x\", \"max_tokens\": 1.5}", "max_tokens: a number, expected an integer" },
        { "{\"prompt\": \"x\", \"max_tokens\": \"5\"}", "max_tokens: a string, expected an integer" },
        { "{\"prompt\": \"x\", \"max_tokens\": 5, \"output_len\": 5}",
          "either \"max_tokens\" or \"output_len\"" },
        { "{\"prompt\": \"x\", \"max_token\": 5}", "found the key \"max_token\"" },
        { "{\"prompt\": \"x\", \"prompt\": \"y\"}", "duplicate object key" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct work work;
        struct tutti_error err = { 0 };
        assert_int_not_equal(read_text(&work, CASES[i].text, strlen(CASES[i].text), &err), TUTTI_OK);
        if (!strstr(err.text, CASES[i].said) || strncmp(err.text, "prompts.jsonl", 13) != 0)
            fail_msg("%s: found '%s'", CASES[i].text, err.text);
        prompt_file_clear(&work.prompts);
    }
}

/* ---- bodies ---- */

static json_t *body_of(const struct work *work, const struct work_style *style, uint64_t index)
{
    struct buf out = { 0 };
    assert_int_equal(work_body(work, style, index, &out, NULL), TUTTI_OK);
    json_t *body = json_loadb(out.bytes, out.n_bytes, JSON_ALLOW_NUL, NULL);
    assert_non_null(body);
    buf_clear(&out);
    return body;
}

static void assert_body(const struct work *work, const struct work_style *style, uint64_t index,
                        const char *expected)
{
    json_t *body = body_of(work, style, index), *wanted = json_loads(expected, 0, NULL);
    assert_non_null(wanted);
    if (!json_equal(body, wanted)) {
        char *found = json_dumps(body, 0);
        fail_msg("found %s, expected %s", found, expected);
    }
    json_decref(body);
    json_decref(wanted);
}

static void bodies_are_those_of_their_interface(void **state)
{
    (void)state;
    static const char TEXT[] =
        "{\"prompt\": \"a \\\"b\\\"\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}], \"max_tokens\": 7}\n";
    struct work work;
    assert_int_equal(read_text(&work, TEXT, sizeof TEXT - 1, NULL), TUTTI_OK);
    json_t *more = json_loads("{\"top_p\": 0.5, \"stream_options\": {\"x\": 1}}", 0, NULL);
    json_t *parameters = json_loads("{\"parameters\": {\"top_p\": 0.5}}", 0, NULL);
    struct work_style style = { .api = LOAD_API_OPENAI, .max_tokens = 20, .temperature = NAN };
    assert_body(&work, &style, 0,
                "{\"prompt\": \"a \\\"b\\\"\", \"max_tokens\": 20, \"stream\": true, "
                "\"stream_options\": {\"include_usage\": true}}");
    assert_false(work_is_chat(&work, &style, 0));
    assert_true(work_is_chat(&work, &style, 1));
    style.model = "m";
    style.temperature = 0.5;
    style.ignore_eos = true;
    style.more = more;
    assert_body(
        &work, &style, 1,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}], \"max_tokens\": 7, \"stream\": true, "
        "\"stream_options\": {\"include_usage\": true, \"x\": 1}, \"model\": \"m\", \"temperature\": 0.5, "
        "\"ignore_eos\": true, \"top_p\": 0.5}");
    style = (struct work_style){
        .api = LOAD_API_OPENAI, .as_chat = true, .max_tokens = 1, .temperature = NAN
    };
    assert_body(&work, &style, 0,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"a \\\"b\\\"\"}], \"max_tokens\": 1, "
                "\"stream\": true, \"stream_options\": {\"include_usage\": true}}");
    style = (struct work_style){
        .api = LOAD_API_TGI, .max_tokens = 3, .temperature = NAN, .more = parameters
    };
    assert_body(&work, &style, 0,
                "{\"inputs\": \"a \\\"b\\\"\", \"parameters\": {\"max_new_tokens\": 3, \"do_sample\": false, "
                "\"details\": true, \"top_p\": 0.5}, \"stream\": true}");
    style = (struct work_style){ .api = LOAD_API_LLM_SERVING, .max_tokens = 3, .temperature = 0.5 };
    assert_body(&work, &style, 0,
                "{\"inputs\": \"a \\\"b\\\"\", \"parameters\": {\"max_new_tokens\": 3, \"do_sample\": true, "
                "\"temperature\": 0.5, \"return_full_text\": true}, \"stream\": true}");
    json_decref(more);
    json_decref(parameters);
    prompt_file_clear(&work.prompts);
}

static void what_an_interface_cannot_ask_is_refused(void **state)
{
    (void)state;
    static const char TEXT[] = "{\"prompt\": \"x\"}\n{\"messages\": [{\"role\": \"user\"}]}\n";
    static const struct {
        struct work_style style;
        const char *said;
    } CASES[] = {
        { { .api = LOAD_API_TGI }, "prompt 2 of the file has messages" },
        { { .api = LOAD_API_TGI, .as_chat = true }, "messages can only be sent with --api openai" },
        { { .api = LOAD_API_TGI, .ignore_eos = true }, "--ignore-eos" },
        { { .api = LOAD_API_LLM_SERVING, .model = "m" }, "prompt 2 of the file has messages" },
    };
    struct work work;
    assert_int_equal(read_text(&work, TEXT, sizeof TEXT - 1, NULL), TUTTI_OK);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        assert_int_equal(work_check(&work, &CASES[i].style, &err), TUTTI_E_ARGUMENT);
        assert_non_null(strstr(err.text, CASES[i].said));
    }
    assert_int_equal(work_check(&work, &(struct work_style){ .api = LOAD_API_OPENAI }, NULL), TUTTI_OK);
    prompt_file_clear(&work.prompts);
}

/* ---- made-up prompts ---- */

static int count_words(const char *text)
{
    int n = 1;
    for (; *text; text++)
        n += *text == ' ';
    return n;
}

static void made_up_prompts_follow_from_seed_and_index(void **state)
{
    (void)state;
    struct work work = { .made = { .n_words = 50, .n_shared = 10, .seed = 3 } };
    struct work_style style = { .api = LOAD_API_OPENAI, .max_tokens = 100, .temperature = NAN };
    json_t *first = body_of(&work, &style, 0), *again = body_of(&work, &style, 0),
           *second = body_of(&work, &style, 1);
    const char *a = json_string_value(json_object_get(first, "prompt"));
    const char *b = json_string_value(json_object_get(second, "prompt"));
    assert_true(json_equal(first, again));
    assert_int_equal(count_words(a), 50);
    assert_int_equal(count_words(b), 50);
    assert_int_equal(json_integer_value(json_object_get(first, "max_tokens")), 100);
    int n_same = 0;
    for (size_t i = 0; a[i] == b[i]; i++)
        n_same += a[i] == ' ';
    assert_in_range(n_same, 10, 14); /* words that are shared, and what chance adds */
    json_decref(first);
    json_decref(again);
    json_decref(second);
    prompt_file_clear(&work.prompts);
}

static void made_up_lengths_fill_their_spread(void **state)
{
    (void)state;
    enum { N = 2000 };
    struct work work = { .made = { .n_words = 40, .spread = 0.5, .seed = 9 } };
    struct work_style style = { .api = LOAD_API_OPENAI, .max_tokens = 100, .temperature = NAN };
    double words = 0, tokens = 0;
    int least = 1000, most = 0;
    for (uint64_t i = 0; i < N; i++) {
        json_t *body = body_of(&work, &style, i);
        int n_words = count_words(json_string_value(json_object_get(body, "prompt")));
        int n_tokens = (int)json_integer_value(json_object_get(body, "max_tokens"));
        assert_in_range(n_words, 20, 60);
        assert_in_range(n_tokens, 50, 150);
        words += n_words;
        tokens += n_tokens;
        least = n_tokens < least ? n_tokens : least;
        most = n_tokens > most ? n_tokens : most;
        json_decref(body);
    }
    assert_true(fabs(words / N - 40) < 5 * 11.7 / sqrt(N)); /* standard deviation of a uniform distribution */
    assert_true(fabs(tokens / N - 100) < 5 * 29 / sqrt(N));
    assert_true(least < 53 && most > 147);
    prompt_file_clear(&work.prompts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_json_lines),
        cmocka_unit_test(reads_a_prompt_a_line),
        cmocka_unit_test(broken_files_are_refused_with_their_line),
        cmocka_unit_test(bodies_are_those_of_their_interface),
        cmocka_unit_test(what_an_interface_cannot_ask_is_refused),
        cmocka_unit_test(made_up_prompts_follow_from_seed_and_index),
        cmocka_unit_test(made_up_lengths_fill_their_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
