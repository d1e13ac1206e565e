/* Chats of families whose checkpoints come with a template: prompts as Jinja2 renders them, and tool calls parsed from what the
 * template writes. tests/fixtures/template/families.json, made by tools/fixtures/family_chat_fixtures.py. */
#include "base/buf.h"
#include "base/json/json_print.h"
#include "model/chat/calls/call_forms.h"
#include "model/chat/chat.h"
#include "model/chat/reasoning.h"
#include "tokenizer/json/byte_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MAX_MESSAGES = 8, MAX_CALLS = 4 };

/* The templates, and the form of tool calls that their text tells. */
static const struct {
    const char *name, *form;
} TEMPLATES[] = {
    { "granite-3.3", "phi-4-mini" },
    { "phi-3.5", NULL },
    { "phi-4-reasoning", NULL },
    { "smollm3", NULL },
    { "internlm2", NULL },
    { "mistral-small-3.2", "mistral" },
    { "ministral-3", "mistral" },
    { "qwen2-vl", NULL },
    { "qwen2.5-vl", NULL },
    { "qwen3-vl", "hermes" },
    { "qwen2", NULL },
    { "qwen3-coder", "qwen3-coder" },
    { "glm-4.5", "glm-4.5" },
    { "glm-4.6", "glm-4.5" },
    { "glm-4.7-flash", "glm-4.5" },
    { "minimax-m2", "minimax-m2" },
    { "seed-oss", "seed-oss" },
    { "deepseek-v2", NULL },
    { "deepseek-v3", "deepseek" },
    { "deepseek-v3.1", "deepseek" },
    { "gemma-3", NULL },
    { "gemma-3-pythonic", "pythonic" },
    { "gemma-4", "gemma-4" },
    { "falcon", NULL },
    { "phi-4-mini", "firefunction" },
    { "internlm2-tools", "internlm2" },
    { "mixtral-8x22b", "mistral" },
    { "glm-4.5v", "glm-4.5" },
    { "deepseek-v3-tools", "deepseek" },
    { "deepseek-v3.1-tools", "deepseek" },
    { "deepseek-r1-tools", "deepseek" },
    { "muse-glimmer", "muse" },
    { "deepseek-r1-distill", "deepseek" },
    { "gemma-2", NULL },
    { "mistral-v1", NULL },
    { "mistral-nemo", "mistral" },
    { "qwen3", "hermes" },
    { "gpt-oss", "harmony" },
};
enum { N_TEMPLATES = sizeof TEMPLATES / sizeof *TEMPLATES };

static json_t *families;
static struct tokenizer *tok; /* of bytes: its pieces are the text */

static json_t *load_json(const char *name)
{
    char path[512];
    json_error_t where;
    snprintf(path, sizeof path, "%s/%s", TEST_FIXTURES, name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root)
        fail_msg("%s: %s", path, where.text);
    return root;
}

static int open_all(void **state)
{
    (void)state;
    struct tutti_error err = { 0 };
    json_t *root = load_json("text/falcon/tokenizer.json");
    char *text = json_dumps(root, 0);
    struct byte_file file = { text, strlen(text), "falcon" };
    families = load_json("template/families.json");
    if (tokenizer_from_json(&tok, &file, NULL, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    free(text);
    json_decref(root);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_free(tok);
    json_decref(families);
    return 0;
}

/* Its text is in the list, or in another file of templates. */
static struct chat_template *make_template(const char *name)
{
    const json_t *entry = json_object_get(json_object_get(families, "templates"), name);
    const char *file = json_string_value(json_object_get(entry, "file"));
    char path[128];
    json_t *other = NULL;
    const json_t *text = json_object_get(entry, "text");
    if (file) {
        snprintf(path, sizeof path, "template/%s", file);
        other = load_json(path);
        text = json_object_get(json_object_get(other, "templates"),
                               json_string_value(json_object_get(entry, "name")));
    }
    assert_true(json_is_string(text));
    struct chat_template_source source = { .name = name,
                                           .text = json_string_value(text),
                                           .n_bytes = json_string_length(text),
                                           .tokens = json_object_get(entry, "tokens") };
    struct chat_template *tpl = NULL;
    struct tutti_error err;
    if (chat_template_new(&tpl, &source, tok, &err) != TUTTI_OK)
        fail_msg("%s: %s", name, err.text);
    json_decref(other);
    return tpl;
}

/* ---- prompts ---- */

/* The golden text, with today's date in the places that have a format of strftime between two marks. */
static void fill_dates(struct buf *out, const json_t *text)
{
    const char *at = json_string_value(text), *mark;
    time_t now = time(NULL);
    struct tm parts;
    char format[64], date[128];
    buf_truncate(out, 0);
    assert_non_null(localtime_r(&now, &parts));
    for (; (mark = strchr(at, '\x01')); at = strchr(mark, '\x02') + 1) {
        size_t n = (size_t)(strchr(mark, '\x02') - mark - 1);
        assert_true(n < sizeof format);
        memcpy(format, mark + 1, n);
        format[n] = '\0';
        assert_true(strftime(date, sizeof date, format, &parts) > 0);
        assert_true(buf_add(out, at, (size_t)(mark - at)) && buf_add_string(out, date));
    }
    assert_true(buf_add_string(out, at));
}

static void read_messages(struct tutti_message *out, char **calls, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *message = json_array_get(list, i), *content = json_object_get(message, "content"),
                     *of = json_object_get(message, "tool_calls");
        calls[i] = of ? json_dumps(of, 0) : NULL;
        out[i] = (struct tutti_message){
            .role = json_string_value(json_object_get(message, "role")),
            .content = json_is_string(content) ? json_string_value(content) : "",
            .n_bytes = json_string_length(content),
            .content_kind = json_is_string(content) ? TUTTI_CONTENT_TEXT : TUTTI_CONTENT_NULL,
            .name = json_string_value(json_object_get(message, "name")),
            .tool_calls = calls[i],
            .tool_call_id = json_string_value(json_object_get(message, "tool_call_id")),
            .reasoning = json_string_value(json_object_get(message, "reasoning_content")),
        };
    }
}

static void add_prompt(struct buf *out, const struct chat_call *call, const char *name)
{
    struct ids ids = { 0 };
    struct tutti_error err = { 0 };
    buf_truncate(out, 0);
    if (chat_render_template(call, &ids, &err) != TUTTI_OK)
        fail_msg("%s: %s", name, err.text);
    for (size_t i = 0; i < ids.n; i++) {
        struct piece piece = tokenizer_piece(tok, ids.ids[i]);
        assert_true(buf_add(out, piece.bytes, piece.n_bytes));
    }
    assert_true(buf_add_string(out, ""));
    ids_clear(&ids);
}

static void check_prompt(const struct chat_template *tpl, const char *name, const json_t *spec)
{
    const json_t *list = json_object_get(spec, "messages"), *tools = json_object_get(spec, "tools"),
                 *golden = json_object_get(spec, "text");
    struct tutti_message messages[MAX_MESSAGES];
    char *calls[MAX_MESSAGES] = { NULL };
    size_t n = json_array_size(list);
    assert_true(n > 0 && n <= MAX_MESSAGES);
    read_messages(messages, calls, list);
    struct model_desc desc = { .n_layers = 1 };
    struct chat_call call = { .tok = tok,
                              .desc = &desc,
                              .tpl = tpl,
                              .messages = messages,
                              .n_messages = n,
                              .tools = json_is_array(tools) ? tools : NULL,
                              .arguments = json_object_get(spec, "arguments") };
    struct buf want = { 0 }, got = { 0 }, later = { 0 };
    do { /* again, if the date changed */
        fill_dates(&want, golden);
        add_prompt(&got, &call, name);
        fill_dates(&later, golden);
    } while (strcmp(want.bytes, later.bytes) != 0);
    if (strcmp(got.bytes, want.bytes) != 0)
        fail_msg("%s: found \"%s\", Jinja has \"%s\"", name, got.bytes, want.bytes);
    buf_clear(&want);
    buf_clear(&got);
    buf_clear(&later);
    for (size_t i = 0; i < n; i++)
        free(calls[i]);
}

static void prompts_are_those_of_jinja(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TEMPLATES; t++) {
        struct chat_template *tpl = make_template(TEMPLATES[t].name);
        size_t n = 0, i;
        const json_t *spec;
        json_array_foreach(json_object_get(families, "cases"), i, spec)
        {
            if (strcmp(json_string_value(json_object_get(spec, "template")), TEMPLATES[t].name) != 0)
                continue;
            check_prompt(tpl, TEMPLATES[t].name, spec);
            n++;
        }
        assert_true(n >= 2);
        print_message("# checked %s: %zu prompts\n", TEMPLATES[t].name, n);
        chat_template_free(tpl);
    }
}

/* ---- calls ---- */

/* What remains of an answer after its reasoning. */
static void take_answer(struct buf *out, const struct reasoning_form *form, const char *text)
{
    tutti_reasoning_parser *parser = NULL;
    struct tutti_reasoning_part part;
    assert_true(buf_add_string(out, form ? "" : text));
    if (!form)
        return;
    assert_int_equal(tutti_reasoning_parser_new(&parser, form->name, false, NULL), TUTTI_OK);
    while (tutti_reasoning_parser_next(parser, text, strlen(text), true, &part))
        assert_true(part.is_reasoning || buf_add(out, part.text, part.n_bytes));
    assert_true(buf_add_string(out, ""));
    tutti_reasoning_parser_free(parser);
}

/* The calls of an answer that comes in pieces of n_step bytes, as [{"name", "arguments"}]. */
static json_t *parse_calls(const char *form, const char *tools, const struct buf *answer, size_t n_step)
{
    tutti_tool_parser *parser = NULL;
    struct tutti_tool_call_delta delta;
    struct buf arguments = { 0 };
    json_t *calls = json_array(), *name = NULL;
    size_t n_content;
    assert_int_equal(tutti_tool_parser_new(&parser, form, tools, false, NULL), TUTTI_OK);
    for (size_t n = 0; n < answer->n_bytes;) {
        n = n + n_step < answer->n_bytes ? n + n_step : answer->n_bytes;
        while (tutti_tool_parser_next(parser, answer->bytes, n, &delta)) {
            if (delta.name)
                name = json_stringn(delta.name, delta.n_name);
            assert_true(buf_add(&arguments, delta.arguments, delta.n_arguments));
            if (!delta.is_last)
                continue;
            json_t *value = json_loadb(arguments.bytes, arguments.n_bytes, 0, NULL);
            assert_true(value && name);
            json_array_append_new(calls, json_pack("{s:o, s:o}", "name", name, "arguments", value));
            buf_truncate(&arguments, 0);
        }
    }
    assert_true(tutti_tool_parser_is_complete(parser, answer->bytes, answer->n_bytes, &n_content));
    tutti_tool_parser_free(parser);
    buf_clear(&arguments);
    return calls;
}

static void check_calls(const struct chat_template *tpl, const char *name, const char *want_form,
                        const json_t *spec)
{
    const struct call_form *row;
    const struct reasoning_form *reasoning;
    chat_template_forms(tpl, &row, &reasoning);
    const char *form = row ? row->name : "none";
    assert_string_equal(form, want_form);
    struct buf answer = { 0 };
    char *tools = json_dumps(json_object_get(spec, "tools"), 0);
    take_answer(&answer, reasoning, json_string_value(json_object_get(spec, "text")));
    const json_t *list = json_object_get(spec, "calls");
    for (size_t step = 1; step < 2000; step = step * 7 + 2) {
        json_t *got = parse_calls(form, tools, &answer, step);
        if (json_array_size(got) != json_array_size(list))
            fail_msg("%s: %zu calls, expected %zu in: %s", name, json_array_size(got), json_array_size(list),
                     answer.bytes);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *want = json_array_get(list, i), *one = json_array_get(got, i);
            json_t *arguments = json_loads(json_string_value(json_object_get(want, "arguments")), 0, NULL);
            assert_true(json_equal(json_object_get(one, "name"), json_object_get(want, "name")));
            assert_true(json_equal(json_object_get(one, "arguments"), arguments));
            json_decref(arguments);
        }
        json_decref(got);
    }
    free(tools);
    buf_clear(&answer);
}

static void calls_that_a_template_writes_are_parsed(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TEMPLATES; t++) {
        const char *name = TEMPLATES[t].name;
        struct chat_template *tpl = make_template(name);
        size_t n = 0, i;
        const json_t *spec;
        json_array_foreach(json_object_get(families, "calls"), i, spec)
        {
            if (strcmp(json_string_value(json_object_get(spec, "template")), name) != 0)
                continue;
            check_calls(tpl, name, TEMPLATES[t].form, spec);
            n++;
        }
        assert_int_equal(n > 0, TEMPLATES[t].form != NULL);
        if (n > 0)
            print_message("# checked %s: %zu answers\n", name, n);
        chat_template_free(tpl);
    }
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(prompts_are_those_of_jinja),
        cmocka_unit_test(calls_that_a_template_writes_are_parsed),
    };
    return cmocka_run_group_tests(TESTS, open_all, close_all);
}
