/* Whole chat prompts as ids, template and tokenizer together, against transformers with the real tokenizers' words:
 * tests/fixtures/chat/, made by tools/fixtures/make_chat_tokens.py. */
#include "model/chat/chat.h"
#include "tokenizer/json/byte_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    json_t *root;
    struct tokenizer *tok;
    struct model_desc desc;
    const struct chat_format *format;
    struct chat_template *tpl;
};

static void open_fixture(struct fixture *f, const char *name, const char *option)
{
    char path[512];
    struct tutti_error err = { 0 };
    *f = (struct fixture){ .desc = { .n_layers = 1, .pad_id = -1 } };
    snprintf(path, sizeof path, "%s/chat/%s.json", TEST_FIXTURES, name);
    f->root = json_load_file(path, 0, NULL);
    assert_non_null(f->root);
    const json_t *config = json_object_get(f->root, "config");
    char *text = json_dumps(json_object_get(f->root, "tokenizer"), 0);
    struct byte_file file = { text, strlen(text), name };
    if (tokenizer_from_json(&f->tok, &file, config, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    free(text);
    json_t *none = json_object();
    struct chat_source source = {
        .option = option, .desc = &f->desc, .config = none, .tokenizer_config = config
    };
    if (chat_choose(&f->format, &f->tpl, &source, f->tok, &err) != TUTTI_OK || !f->format)
        fail_msg("%s: %s", name, err.text);
    json_decref(none);
}

static void close_fixture(struct fixture *f)
{
    chat_template_free(f->tpl);
    tokenizer_free(f->tok);
    json_decref(f->root);
}

static void check_case(const struct fixture *f, const char *name, size_t number, const json_t *spec)
{
    const json_t *list = json_object_get(spec, "messages"), *want = json_object_get(spec, "ids"),
                 *tools = json_object_get(spec, "tools"), *arguments = json_object_get(spec, "arguments");
    struct tutti_message messages[8] = { { 0 } };
    size_t n = json_array_size(list);
    assert_true(n > 0 && n <= 8);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, i), *content = json_object_get(message, "content");
        messages[i] = (struct tutti_message){ .role = json_string_value(json_object_get(message, "role")),
                                              .content = json_string_value(content),
                                              .n_bytes = json_string_length(content) };
    }
    struct chat_call call = { .tok = f->tok,
                              .desc = &f->desc,
                              .tpl = f->tpl,
                              .messages = messages,
                              .n_messages = n,
                              .tools = json_is_array(tools) ? tools : NULL,
                              .arguments = json_is_object(arguments) ? arguments : NULL };
    struct ids got = { 0 };
    struct tutti_error err = { 0 };
    if (f->format->render(&call, &got, &err) != TUTTI_OK)
        fail_msg("%s: case %zu: %s", name, number, err.text);
    for (size_t i = 0; i < got.n && i < json_array_size(want); i++) {
        if (got.ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: case %zu: id %zu is %d, expected %d", name, number, i, got.ids[i],
                     (int)json_integer_value(json_array_get(want, i)));
    }
    assert_int_equal(got.n, json_array_size(want));
    ids_clear(&got);
}

static void check_all(const char *name, const char *option)
{
    struct fixture f;
    size_t i;
    const json_t *spec;
    open_fixture(&f, name, option);
    const json_t *cases = json_object_get(f.root, "cases");
    assert_true(json_array_size(cases) >= 6);
    json_array_foreach(cases, i, spec) check_case(&f, name, i, spec);
    close_fixture(&f);
    print_message("# checked %s with the %s format\n", name, option ? option : "checkpoint's");
}

static void a_checkpoints_template_gives_its_authors_ids(void **state)
{
    (void)state;
    check_all("qwen2.5", NULL);
    check_all("qwen3", NULL);
    check_all("llama3", NULL);
}

static void own_formats_give_the_same_ids(void **state)
{
    (void)state;
    check_all("qwen2.5", "qwen2.5");
    check_all("qwen3", "qwen3");
    check_all("llama3", "llama3.1");
    check_all("glm-4-9b", "glm4");
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(a_checkpoints_template_gives_its_authors_ids),
        cmocka_unit_test(own_formats_give_the_same_ids),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
