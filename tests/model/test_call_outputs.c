/* Answers of many models with calls (tests/fixtures/calls/outputs.txt), read as a server reads them: the reasoning is split
 * off, and the rest is parsed for calls. Each is given whole, cut at every byte, and byte by byte. */
#include "base/buf.h"
#include "base/utf8.h"
#include "tutti.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_CALLS = 8 };

struct expected_call {
    char *name, *id; /* id NULL: none */
    struct buf arguments;
};

struct output {
    char name[128], form[64], reasoning_form[64];
    bool is_open, is_text;
    bool is_named; /* the form must be known */
    struct buf answer, reasoning, content;
    struct expected_call calls[MAX_CALLS];
    size_t n_calls;
};

static char *tools;

static char *read_whole(const char *path)
{
    struct buf text = { 0 };
    FILE *file = fopen(path, "r");
    char bytes[4096];
    assert_non_null(file);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;)
        assert_true(buf_add(&text, bytes, n));
    fclose(file);
    return text.bytes;
}

static void output_clear(struct output *o)
{
    buf_clear(&o->answer);
    buf_clear(&o->reasoning);
    buf_clear(&o->content);
    for (size_t i = 0; i < o->n_calls; i++) {
        free(o->calls[i].name);
        free(o->calls[i].id);
        buf_clear(&o->calls[i].arguments);
    }
    *o = (struct output){ .n_calls = 0 };
}

/* "--- answer" and its like. Returns where the block's lines go; NULL: nowhere. */
static struct buf *begin_block(struct output *o, const char *line)
{
    char kind[16], tool[64], id[64];
    int n = sscanf(line, "--- %15s %63s %63s", kind, tool, id);
    if (strcmp(kind, "answer") == 0)
        return &o->answer;
    if (strcmp(kind, "reasoning") == 0)
        return &o->reasoning;
    if (strcmp(kind, "content") == 0)
        return &o->content;
    if (strcmp(kind, "text") == 0) {
        o->is_text = true;
        return NULL;
    }
    assert_true(strcmp(kind, "call") == 0 && n >= 2 && o->n_calls < MAX_CALLS);
    struct expected_call *call = &o->calls[o->n_calls++];
    call->name = strdup(tool);
    call->id = n == 3 ? strdup(id) : NULL;
    return &call->arguments;
}

static void add_line(struct buf *block, const char *line)
{
    assert_true(buf_add_string(block, line) && buf_add_string(block, "\n"));
}

static void end_line(struct buf *block)
{
    if (block->n_bytes > 0)
        buf_truncate(block, block->n_bytes - 1);
}

/* ---- an answer as it comes ---- */

struct reader {
    tutti_reasoning_parser *splitter;
    tutti_tool_parser *parser;
    struct buf reasoning, text;
    size_t n_sent; /* bytes of text that the client has */
    struct buf names[MAX_CALLS], arguments[MAX_CALLS];
    size_t n_calls;
};

static void reader_clear(struct reader *r)
{
    tutti_reasoning_parser_free(r->splitter);
    tutti_tool_parser_free(r->parser);
    buf_clear(&r->reasoning);
    buf_clear(&r->text);
    for (size_t i = 0; i < MAX_CALLS; i++) {
        buf_clear(&r->names[i]);
        buf_clear(&r->arguments[i]);
    }
}

static void reader_init(struct reader *r, const struct output *o, bool has_form)
{
    *r = (struct reader){ .n_calls = 0 };
    if (*o->reasoning_form)
        assert_int_equal(tutti_reasoning_parser_new(&r->splitter, o->reasoning_form, o->is_open, NULL),
                         TUTTI_OK);
    assert_int_equal(tutti_tool_parser_new(&r->parser, has_form ? o->form : NULL, tools, false, NULL),
                     TUTTI_OK);
    assert_true(buf_add(&r->text, "", 0) && buf_add(&r->reasoning, "", 0));
}

static void take_calls(struct reader *r)
{
    struct tutti_tool_call_delta delta;
    size_t n_sure = tutti_tool_parser_content(r->parser, r->text.bytes, r->text.n_bytes);
    assert_true(n_sure >= r->n_sent);
    r->n_sent = n_sure;
    while (tutti_tool_parser_next(r->parser, r->text.bytes, r->text.n_bytes, &delta)) {
        assert_true(delta.index < MAX_CALLS);
        assert_int_equal(delta.index, delta.name ? r->n_calls : r->n_calls - 1);
        if (delta.name) {
            assert_true(buf_add(&r->names[delta.index], delta.name, delta.n_name));
            r->n_calls++;
        }
        assert_true(buf_add(&r->arguments[delta.index], delta.arguments, delta.n_arguments));
    }
}

/* The first n bytes of the answer have come. */
static void read_to(struct reader *r, const struct output *o, size_t n)
{
    struct tutti_reasoning_part part;
    char *copy = strndup(o->answer.bytes, n); /* another address each time */
    bool is_end = n == o->answer.n_bytes;
    if (!r->splitter) {
        buf_truncate(&r->text, 0);
        assert_true(buf_add(&r->text, copy, n));
    } else {
        while (tutti_reasoning_parser_next(r->splitter, copy, n, is_end, &part))
            assert_true(buf_add(part.is_reasoning ? &r->reasoning : &r->text, part.text, part.n_bytes));
    }
    take_calls(r);
    free(copy);
}

static void check_arguments(const struct output *o, const struct expected_call *call, const struct buf *found)
{
    json_t *want = json_loadb(call->arguments.bytes, call->arguments.n_bytes, 0, NULL);
    json_t *got = json_loadb(found->bytes ? found->bytes : "", found->n_bytes, 0, NULL);
    assert_non_null(want);
    if (!got || !json_equal(want, got))
        fail_msg("%s: %s has the arguments %s, expected %s", o->name, call->name, found->bytes,
                 call->arguments.bytes);
    json_decref(want);
    json_decref(got);
}

/* The whole answer has come. way: how, for messages. */
static void check_output(struct reader *r, const struct output *o, const char *way, size_t at)
{
    size_t n_content;
    const char *text = r->text.bytes, *want = o->content.bytes ? o->content.bytes : "";
    bool has_calls = tutti_tool_parser_is_complete(r->parser, text, r->text.n_bytes, &n_content);
    assert_true(r->n_sent <= n_content);
    if (has_calls != (o->n_calls > 0))
        fail_msg("%s, %s %zu: %s calls in %s", o->name, way, at, has_calls ? "has" : "has no", text);
    if (o->is_text)
        assert_string_equal(text, o->answer.bytes);
    else if (strlen(want) != n_content || memcmp(text, want, n_content) != 0)
        fail_msg("%s, %s %zu: the content is %.*s, expected %s", o->name, way, at, (int)n_content, text,
                 want);
    assert_string_equal(r->reasoning.bytes, o->reasoning.bytes ? o->reasoning.bytes : "");
    if (has_calls)
        assert_int_equal(r->n_calls, o->n_calls);
    for (size_t i = 0; i < o->n_calls; i++) {
        const char *id = tutti_tool_parser_call_id(r->parser, i);
        assert_string_equal(r->names[i].bytes, o->calls[i].name);
        assert_string_equal(id ? id : "", o->calls[i].id ? o->calls[i].id : "");
    }
}

/* However the answer is cut, the arguments are the same bytes. */
static void check_same(const struct reader *whole, const struct reader *r, const struct output *o)
{
    for (size_t i = 0; i < o->n_calls; i++)
        assert_string_equal(whole->arguments[i].bytes, r->arguments[i].bytes);
}

static void check_ways(const struct output *o, bool has_form)
{
    struct reader whole, r;
    size_t n = o->answer.n_bytes;
    reader_init(&whole, o, has_form);
    read_to(&whole, o, n);
    check_output(&whole, o, has_form ? "whole" : "whole, in any form", n);
    for (size_t i = 0; i < o->n_calls; i++)
        check_arguments(o, &o->calls[i], &whole.arguments[i]);
    for (size_t cut = 1; cut < n; cut++) {
        reader_init(&r, o, has_form);
        read_to(&r, o, cut);
        read_to(&r, o, n);
        check_output(&r, o, "cut at", cut);
        check_same(&whole, &r, o);
        reader_clear(&r);
    }
    reader_init(&r, o, has_form);
    for (size_t i = 1; i <= n; i++)
        read_to(&r, o, i);
    check_output(&r, o, "byte by byte", n);
    check_same(&whole, &r, o);
    reader_clear(&r);
    reader_clear(&whole);
}

/* ---- the file ---- */

static void check(struct output *o, size_t *n_outputs)
{
    if (!*o->name)
        return;
    end_line(&o->answer);
    end_line(&o->reasoning);
    end_line(&o->content);
    assert_true(o->answer.n_bytes > 0);
    check_ways(o, true);
    /* A call in a form with marks is found for a model whose form is not known. */
    if (o->n_calls > 0 && !o->is_named && strcmp(o->form, "llama-3") != 0)
        check_ways(o, false);
    output_clear(o);
    ++*n_outputs;
}

static void every_answer_means_the_same_however_it_is_cut(void **state)
{
    char *text = read_whole(TEST_FIXTURES "/calls/outputs.txt"), *next = text;
    struct output o = { .n_calls = 0 };
    struct buf *block = NULL;
    size_t n_outputs = 0;
    (void)state;
    tools = read_whole(TEST_FIXTURES "/calls/tools.json");
    for (char *line; (line = strsep(&next, "\n"));) {
        if (strncmp(line, "=== ", 4) == 0) {
            check(&o, &n_outputs);
            snprintf(o.name, sizeof o.name, "%s", line + 4);
            block = NULL;
        } else if (strncmp(line, "--- ", 4) == 0) {
            block = begin_block(&o, line);
        } else if (block && next &&
                   (*line || strncmp(next, "===", 3) != 0)) { /* a blank line ends an output */
            add_line(block, line);
        } else if (strncmp(line, "form: ", 6) == 0) {
            char word[8] = "";
            assert_true(sscanf(line, "form: %63s %7s", o.form, word) >= 1);
            o.is_named = strcmp(word, "known") == 0;
        } else if (strncmp(line, "reasoning: ", 11) == 0) {
            char word[8] = "";
            assert_true(sscanf(line, "reasoning: %63s %7s", o.reasoning_form, word) >= 1);
            o.is_open = strcmp(word, "open") == 0;
        }
    }
    check(&o, &n_outputs);
    assert_true(n_outputs >= 186);
    free(tools);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_means_the_same_however_it_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
