/* Tokens and chat formats through include/tutti.h, on the demo model: SentencePiece pieces, the format of ChatGLM3. */
#include "tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct tutti_message QUESTION = { .role = "user", .content = "Hi", .n_bytes = 2 };

static int open_demo(void **state)
{
    tutti_model *model = NULL;
    struct tutti_error err = { 0 };
    if (tutti_model_open(&model, TEST_DEMO_MODEL, &(struct tutti_model_options){ .n_threads = 1 }, &err) !=
        TUTTI_OK)
        fail_msg("%s", err.text);
    *state = model;
    return 0;
}

static int close_demo(void **state)
{
    tutti_model_close(*state);
    return 0;
}

static int32_t only_id(const tutti_model *model, const char *text)
{
    int32_t ids[4];
    assert_int_equal(tutti_tokenize(model, text, strlen(text), false, ids, 4), 1);
    return ids[0];
}

static void a_token_has_a_spelling_and_bytes(void **state)
{
    tutti_model *model = *state;
    struct tutti_model_info info;
    struct tutti_token_info token;
    char bytes[8] = "";
    int32_t id = only_id(model, "the");
    tutti_model_info(model, &info);
    assert_true(tutti_token_info(model, id, &token));
    assert_int_equal(token.n_bytes, strlen("\xe2\x96\x81the"));
    assert_memory_equal(token.spelling, "\xe2\x96\x81the", token.n_bytes);
    assert_false(token.is_special);
    assert_int_equal(tutti_token_bytes(model, id, bytes, 2), 4);
    assert_string_equal(bytes, " t");
    assert_int_equal(tutti_token_bytes(model, id, bytes, sizeof bytes), 4);
    assert_string_equal(bytes, " the");

    assert_true(tutti_token_info(model, info.eos_id, &token));
    assert_true(token.is_special);
    assert_memory_equal(token.spelling, "</s>", token.n_bytes);
    assert_int_equal(tutti_token_bytes(model, info.eos_id, bytes, sizeof bytes), 0);
    assert_true(info.bos_id >= 0 && info.bos_id != info.eos_id);
    assert_true(info.n_usable_vocab < info.n_vocab);
    assert_int_equal(tutti_token_bytes(model, info.n_usable_vocab, bytes, sizeof bytes), 0);
    assert_false(tutti_token_info(model, info.n_usable_vocab, &token));

    assert_false(tutti_token_info(model, -1, &token));
    assert_int_equal(token.n_bytes, 0);
    assert_false(tutti_token_info(model, info.n_vocab, &token));
    assert_int_equal(tutti_token_bytes(model, info.n_vocab, bytes, sizeof bytes), -1);
    assert_false(tutti_token_info(NULL, 0, &token));
    assert_int_equal(tutti_token_bytes(NULL, 0, bytes, sizeof bytes), -1);
}

static void messages_are_rendered_as_a_trusted_text_would_be(void **state)
{
    static const char PROMPT[] = "[gMASK]sop<|user|>\n Hi<|assistant|>";
    tutti_model *model = *state;
    int32_t want[64], got[64] = { 0 };
    size_t n = 0;
    struct tutti_error err = { 0 };
    struct tutti_request request = { .messages = &QUESTION, .n_messages = 1 };
    int64_t n_want = tutti_tokenize_trusted(model, PROMPT, sizeof PROMPT - 1, false, want, 64);
    assert_int_equal(tutti_apply_chat_template(model, &request, got, 64, &n, &err), TUTTI_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(got, want, n * sizeof *got);

    memset(got, 0, sizeof got);
    assert_int_equal(tutti_apply_chat_template(model, &request, got, 3, &n, &err), TUTTI_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(got, want, 3 * sizeof *got);
    assert_int_equal(got[3], 0);
    assert_int_equal(tutti_apply_chat_template(model, &request, NULL, 0, &n, &err), TUTTI_OK);
    assert_int_equal(n, n_want);
}

static void messages_that_cannot_be_rendered_are_refused(void **state)
{
    tutti_model *model = *state;
    static const struct tutti_message NO_ROLE = { .content = "Hi", .n_bytes = 2 },
                                      NO_CONTENT = { .role = "user", .n_bytes = 2 };
    static const struct {
        struct tutti_request request;
        const char *param;
    } CASES[] = {
        { { .messages = &NO_ROLE, .n_messages = 1 }, "messages[0].role" },
        { { .messages = &NO_CONTENT, .n_messages = 1 }, "messages[0].content" },
        { { .messages = &QUESTION, .n_messages = 1, .tools = "[{" }, "tools" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        size_t n = 7;
        assert_int_equal(tutti_apply_chat_template(model, &CASES[i].request, NULL, 0, &n, &err),
                         TUTTI_E_ARGUMENT);
        assert_string_equal(err.param, CASES[i].param);
        assert_int_equal(n, 7);
    }
    assert_int_equal(tutti_apply_chat_template(model, NULL, NULL, 0, NULL, NULL), TUTTI_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_has_a_spelling_and_bytes),
        cmocka_unit_test(messages_are_rendered_as_a_trusted_text_would_be),
        cmocka_unit_test(messages_that_cannot_be_rendered_are_refused),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
