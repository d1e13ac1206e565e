/* The streams of the three interfaces: whole, cut at every byte, broken, hostile. */
#include "load/answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char COMPLETIONS[] =
    "data: "
    "{\"id\":\"1\",\"choices\":[{\"index\":0,\"text\":\"He\",\"finish_reason\":null}],\"usage\":null}\n\n"
    ": a comment\n\n"
    "event: message\nid: 7\ndata: "
    "{\"choices\":[{\"index\":0,\"text\":\"\\u4f60\",\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
    "data: [DONE]\n\n";

static const char CHAT[] =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: [DONE]\n\n";

static const char TGI[] =
    "data:{\"index\":1,\"token\":{\"id\":5,\"text\":\"He\",\"logprob\":-1.5,\"special\":false},"
    "\"generated_text\":null,\"details\":null}\n\n"
    "data:{\"index\":2,\"token\":{\"id\":2,\"text\":\"</s>\",\"logprob\":-0.5,\"special\":true},"
    "\"generated_text\":\"He\",\"details\":{\"finish_reason\":\"eos_token\",\"generated_tokens\":2,"
    "\"input_length\":11}}\n\n";

static const char LLM_SERVING[] =
    "{\"event\":\"message\",\"retry\":30000,\"data\":[{\"details\":null,\"generated_text\":\"He\","
    "\"tokens\":{\"id\":5,\"logprob\":-1.5,\"special\":false,\"text\":\"He\"},\"top_tokens\":[]}]}\n"
    "{\"event\":\"message\",\"retry\":30000,\"data\":[{\"details\":null,\"generated_text\":\"y\","
    "\"tokens\":{\"id\":6,\"logprob\":-1.5,\"special\":false,\"text\":\"y\"},\"top_tokens\":[]}]}\n"
    "{\"event\":\"message\",\"retry\":30000,\"data\":[{\"generated_text\":\"Hey\",\"finish_reason\":"
    "\"length\","
    "\"generated_tokens\":2,\"prefill\":[],\"seed\":1,\"tokens\":[],\"top_tokens\":[]}]}\n";

static struct answer feed(enum load_api api, const char *text, size_t step)
{
    struct answer a = { .api = api };
    for (size_t i = 0, n = strlen(text); i < n; i += step)
        answer_feed(&a, text + i, n - i < step ? n - i : step);
    return a;
}

static void reads_the_same_however_the_bytes_are_cut(void **state)
{
    (void)state;
    static const struct {
        enum load_api api;
        const char *text;
        uint32_t n_pieces, n_tokens, output_tokens, prompt_tokens, cached_tokens;
        bool has_usage, has_prompt_tokens;
    } CASES[] = {
        { LOAD_API_OPENAI, COMPLETIONS, 2, 2, 5, 9, 4, true, true },
        { LOAD_API_OPENAI, CHAT, 3, 3, 0, 0, 0, false, false },
        { LOAD_API_TGI, TGI, 1, 2, 2, 11, 0, true, true },
        { LOAD_API_LLM_SERVING, LLM_SERVING, 2, 2, 2, 0, 0, true, false },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (size_t step = 1; step <= strlen(CASES[i].text); step += 1 + step / 8) {
            struct answer a = feed(CASES[i].api, CASES[i].text, step);
            assert_int_equal(a.state, ANSWER_COMPLETE);
            assert_int_equal(a.n_pieces, CASES[i].n_pieces);
            assert_int_equal(a.n_tokens, CASES[i].n_tokens);
            assert_int_equal(a.output_tokens, CASES[i].output_tokens);
            assert_int_equal(a.prompt_tokens, CASES[i].prompt_tokens);
            assert_int_equal(a.cached_tokens, CASES[i].cached_tokens);
            assert_int_equal(a.has_usage, CASES[i].has_usage);
            assert_int_equal(a.has_prompt_tokens, CASES[i].has_prompt_tokens);
            assert_true(answer_end(&a));
            answer_clear(&a);
        }
}

static void every_way_to_end_a_line_is_one(void **state)
{
    (void)state;
    static const char *const ENDS[] = { "\n", "\r\n", "\r" };
    for (size_t k = 0; k < 3; k++) {
        struct buf text = { 0 };
        for (const char *c = COMPLETIONS; *c; c++)
            assert_true(*c == '\n' ? buf_add_string(&text, ENDS[k]) : buf_add(&text, c, 1));
        for (size_t step = 1; step < 5; step++) {
            struct answer a = feed(LOAD_API_OPENAI, text.bytes, step);
            assert_true(answer_end(&a));
            assert_int_equal(a.n_pieces, 2);
            answer_clear(&a);
        }
        buf_clear(&text);
    }
}

static void data_of_several_lines_is_one_event(void **state)
{
    (void)state;
    struct answer a = feed(LOAD_API_OPENAI,
                           "data: {\"choices\":\ndata: [{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n", 3);
    assert_int_equal(a.state, ANSWER_COMPLETE);
    assert_int_equal(a.n_pieces, 1);
    answer_clear(&a);
}

static void a_last_line_that_was_left_open_counts(void **state)
{
    (void)state;
    struct answer a = feed(LOAD_API_OPENAI, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]", 100);
    assert_int_equal(a.state, ANSWER_RUNNING);
    assert_true(answer_end(&a));
    answer_clear(&a);
    a = feed(LOAD_API_LLM_SERVING, "{\"data\":[{\"generated_text\":\"x\",\"tokens\":{}}]}", 100);
    assert_true(answer_end(&a));
    assert_int_equal(a.n_pieces, 1);
    answer_clear(&a);
}

static void a_stream_that_stops_before_its_end_is_cut(void **state)
{
    (void)state;
    static const struct {
        enum load_api api;
        const char *text;
    } CASES[] = {
        { LOAD_API_OPENAI, "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n" },
        { LOAD_API_TGI, "data:{\"token\":{\"text\":\"x\"},\"generated_text\":null}\n\n" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct answer a = feed(CASES[i].api, CASES[i].text, 7);
        assert_false(answer_end(&a));
        assert_int_equal(a.state, ANSWER_RUNNING);
        assert_int_equal(a.n_pieces, 1);
        answer_clear(&a);
    }
}

static void an_openai_stream_may_end_behind_its_finish_reason(void **state)
{
    (void)state;
    struct answer a = feed(LOAD_API_OPENAI,
                           "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\n", 9);
    assert_int_equal(a.state, ANSWER_RUNNING); /* usage may follow */
    assert_true(answer_end(&a));
    answer_clear(&a);
}

static void broken_streams_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        enum load_api api;
        enum answer_state state;
        const char *text, *said;
    } CASES[] = {
        { LOAD_API_OPENAI, ANSWER_BAD, "data: nonsense\n\n", "no JSON object" },
        { LOAD_API_OPENAI, ANSWER_BAD, "data: {\"choices\":[\n\n", "no JSON object" },
        { LOAD_API_OPENAI, ANSWER_BAD, "data: [1]\n\n", "without the array \"choices\"" },
        { LOAD_API_OPENAI, ANSWER_BAD, "data: {\"choices\":7}\n\n", "without the array \"choices\"" },
        { LOAD_API_OPENAI, ANSWER_BAD, "data: {}\n\n", "without the array \"choices\"" },
        { LOAD_API_OPENAI, ANSWER_BAD, "data: \"\xff\"\n\n", "no JSON object" },
        { LOAD_API_OPENAI, ANSWER_BAD, "data: [DONE] \n\n", "no JSON object" },
        { LOAD_API_OPENAI, ANSWER_BAD, "<html>not found</html>\n", "no event in the whole answer" },
        { LOAD_API_OPENAI, ANSWER_BAD, "{\"choices\":[{\"text\":\"whole\"}]}",
          "no event in the whole answer" },
        { LOAD_API_OPENAI, ANSWER_BAD, "", "no event in the whole answer" },
        { LOAD_API_OPENAI, ANSWER_ERROR, "data: {\"error\":{\"message\":\"too hot\"}}\n\n", "too hot" },
        { LOAD_API_OPENAI, ANSWER_ERROR, "data: {\"error\":{}}\n\n", "an error without a message" },
        { LOAD_API_TGI, ANSWER_ERROR, "data:{\"error\":\"overloaded\",\"error_type\":\"x\"}\n\n",
          "overloaded" },
        { LOAD_API_TGI, ANSWER_BAD, "data:{\"generated_text\":\"x\"}\n\n", "without the object \"token\"" },
        { LOAD_API_LLM_SERVING, ANSWER_BAD, "data: {\"data\":[{}]}\n", "no JSON object" },
        { LOAD_API_LLM_SERVING, ANSWER_BAD, "{\"data\":[]}\n", "without an object in the array \"data\"" },
        { LOAD_API_LLM_SERVING, ANSWER_BAD, "{\"data\":[7]}\n", "without an object in the array \"data\"" },
        { LOAD_API_LLM_SERVING, ANSWER_ERROR, "{\"error\":\"full\"}\n", "full" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (size_t step = 1; step < 50; step += 24) {
            struct answer a = feed(CASES[i].api, CASES[i].text, step);
            assert_false(answer_end(&a));
            if (a.state != CASES[i].state || !strstr(a.text, CASES[i].said))
                fail_msg("%s: found state %d, '%s'", CASES[i].text, a.state, a.text);
            answer_clear(&a);
        }
}

static void huge_lines_end_the_answer_instead_of_filling_memory(void **state)
{
    (void)state;
    static char block[65536];
    memset(block, 'x', sizeof block);
    for (int api = LOAD_API_OPENAI; api <= LOAD_API_TGI; api++) {
        struct answer a = { .api = (enum load_api)api };
        answer_feed(&a, "data: \"", 7);
        for (int i = 0; i < 2000 && a.state == ANSWER_RUNNING; i++)
            answer_feed(&a, block, sizeof block);
        assert_int_equal(a.state, ANSWER_BAD);
        assert_non_null(strstr(a.text, "a line of more than"));
        assert_true(a.line.capacity < 64u << 20);
        answer_clear(&a);
    }
    struct answer a = { .api = LOAD_API_OPENAI }; /* and many lines of one event */
    for (int i = 0; i < 2000 && a.state == ANSWER_RUNNING; i++) {
        answer_feed(&a, "data: ", 6);
        answer_feed(&a, block, sizeof block);
        answer_feed(&a, "\n", 1);
    }
    assert_int_equal(a.state, ANSWER_BAD);
    assert_non_null(strstr(a.text, "an event of more than"));
    answer_clear(&a);
}

static void wrong_counts_are_left_out(void **state)
{
    (void)state;
    static const char *const COUNTS[] = { "-1", "1.5", "\"7\"", "null", "99999999999999999", "{}" };
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        struct buf text = { 0 };
        assert_true(buf_printf(&text,
                               "data: {\"choices\":[{\"text\":\"x\"}],\"usage\":{\"completion_tokens\":%s,"
                               "\"prompt_tokens\":%s}}\n\ndata: [DONE]\n\n",
                               COUNTS[i], COUNTS[i]));
        struct answer a = feed(LOAD_API_OPENAI, text.bytes, 100);
        assert_int_equal(a.state, ANSWER_COMPLETE);
        assert_false(a.has_usage || a.has_prompt_tokens);
        assert_int_equal(a.n_tokens, 1);
        answer_clear(&a);
        buf_clear(&text);
    }
}

static void storage_serves_the_next_answer(void **state)
{
    (void)state;
    struct answer a = feed(LOAD_API_OPENAI, "data: {\"choi", 100);
    answer_reset(&a, LOAD_API_TGI);
    answer_feed(&a, TGI, strlen(TGI));
    assert_true(answer_end(&a));
    assert_int_equal(a.n_tokens, 2);
    answer_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_same_however_the_bytes_are_cut),
        cmocka_unit_test(every_way_to_end_a_line_is_one),
        cmocka_unit_test(data_of_several_lines_is_one_event),
        cmocka_unit_test(a_last_line_that_was_left_open_counts),
        cmocka_unit_test(a_stream_that_stops_before_its_end_is_cut),
        cmocka_unit_test(an_openai_stream_may_end_behind_its_finish_reason),
        cmocka_unit_test(broken_streams_are_told_apart),
        cmocka_unit_test(huge_lines_end_the_answer_instead_of_filling_memory),
        cmocka_unit_test(wrong_counts_are_left_out),
        cmocka_unit_test(storage_serves_the_next_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
