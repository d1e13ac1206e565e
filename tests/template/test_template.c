/* Chat templates against Jinja2: tests/fixtures/template/, written by tools/oracle/compare_templates.py. The origin of
 * text, limits and errors have tests of their own. */
#include "template/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER TEST_FIXTURES "/template/"

static const char *const ROLES[] = { "system", "user", "assistant", "tool", NULL };

static struct template *compile(const char *text)
{
    struct template *tpl = NULL;
    struct tutti_error err;
    if (template_compile(&tpl, text, strlen(text), "test", &err) != TUTTI_OK)
        fail_msg("%s: %s", text, err.text);
    return tpl;
}

/* ---- the same as Jinja ---- */

static void check_case(const json_t *file, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "template"));
    const char *what = json_string_value(json_object_get(entry, "what"));
    const json_t *text = json_object_get(json_object_get(file, "templates"), name),
                 *want = json_object_get(entry, "text");
    struct template_input input = { .trusted = json_object_get(entry, "trusted"),
                                    .user = json_object_get(entry, "user"),
                                    .roles = ROLES,
                                    .now = json_integer_value(json_object_get(file, "now")) };
    struct template *tpl = NULL;
    struct template_output out = { 0 };
    struct tutti_error err = { 0 };
    enum tutti_status st = template_compile(&tpl, json_string_value(text), json_string_length(text), "test",
                                            &err);
    if (st == TUTTI_OK)
        st = template_render(tpl, &input, &out, &err);
    if (json_is_null(want)) {
        if (st == TUTTI_OK)
            fail_msg("%s, %s: Jinja refuses, found \"%s\"", name, what, out.text);
        assert_non_null(strstr(err.text, "test: line "));
    } else if (st != TUTTI_OK) {
        fail_msg("%s, %s: %s", name, what, err.text);
    } else if (out.n_bytes != json_string_length(want) ||
               memcmp(out.text, json_string_value(want), out.n_bytes) != 0) {
        fail_msg("%s, %s: found \"%s\", Jinja has \"%s\"", name, what, out.text, json_string_value(want));
    }
    template_output_clear(&out);
    template_free(tpl);
}

static void check_file(const char *path, size_t at_least)
{
    json_error_t where;
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!file)
        fail_msg("%s: %s", path, where.text);
    const json_t *cases = json_object_get(file, "cases");
    assert_true(json_array_size(cases) >= at_least);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(file, json_array_get(cases, i));
    json_decref(file);
}

static void speaks_the_language_of_jinja(void **state)
{
    (void)state;
    check_file(FOLDER "language.json", 300);
}

static void renders_published_templates_as_jinja(void **state)
{
    (void)state;
    check_file(FOLDER "chats.json", 40);
    check_file(FOLDER "harmony.json", 80);
}

/* A slice shares the items of its list until one of the two changes. */
static void a_slice_costs_no_copy_and_is_one(void **state)
{
    static const struct {
        const char *template, *want;
    } CASES[] = {
        { "{% set l = [1, 2, 3, 4] %}{% set s = l[1:] %}{% set _ = s.append(5) %}{% set _ = l.pop() %}"
          "{% set _ = l.append(9) %}{% set _ = s.pop(0) %}{{ l }}{{ s }}",
          "[1, 2, 3, 9][3, 4, 5]" },
        { "{% set l = [1, 2, 3] %}{% set s = l[:2] %}{% set t = s[1:] %}{% set _ = l.insert(0, 7) %}"
          "{% set _ = s.extend(s) %}{% set _ = t.append(8) %}{{ l }}{{ s }}{{ t }}{{ l[2:1] }}",
          "[7, 1, 2, 3][1, 2, 1, 2][2, 8][]" },
        { "{{ 'a.b.c'.rpartition('.') }}{{ 'abc'.rpartition('.') }}{{ 'abc'.partition('.') }}{{ "
          "'a.b.c'.partition('.') }}",
          "('a.b', '.', 'c')('', '', 'abc')('abc', '', '')('a', '.', 'b.c')" },
        { "{{ 'a.b.c'.rindex('.') }}{{ 'a.b.c'.rfind('.') }}{{ 'a.b.c'.index('.') }}{{ 'a'.rfind('.') }}",
          "331-1" },
        { "{{ '-42'.zfill(5) }} {{ '7'.zfill(3) }} {{ ''.zfill(2) }} {{ '123'.zfill(2) }} {{ '+'.zfill(3) }}",
          "-0042 007 00 123 +00" },
        { "{{ 'aZ~'.isascii() }}{{ ''.isascii() }}{{ 'a\xC3\xA9'.isascii() }}", "TrueTrueFalse" },
        { "{{ [1, 2, 3, 4, 5] | slice(2) | list }}{{ [1, 2, 3] | slice(2, 0) | list }}{{ [1, 2] | slice(2, "
          "0) | list }}"
          "{{ [1] | slice(3) | list }}",
          "[[1, 2, 3], [4, 5]][[1, 2], [3, 0]][[1, 0], [2, 0]][[1], [], []]" },
        { "{{ 5[1:2] is defined }}{{ {'a': 1}[:1] is defined }}{{ none[::2] is undefined }}[{{ 5[1:] }}]",
          "FalseFalseTrue[]" },
        { "{% set l = range(3000) | list %}{% for i in l %}{{ 'end' if not l[loop.index:] }}{% endfor %}",
          "end" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct template *tpl = compile(CASES[i].template);
        struct template_input input = { .roles = ROLES };
        struct template_output out;
        struct tutti_error err;
        if (template_render(tpl, &input, &out, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        assert_string_equal(out.text, CASES[i].want);
        template_output_clear(&out);
        template_free(tpl);
    }
}

/* ---- whose text it is ---- */

/* Renders with the variable u = "us<er" of the user and t = "trust" of the template's side; the user's bytes come back in
 * brackets. */
static char *marked(const char *text)
{
    static char out[1024];
    json_t *user = json_pack("{s:s, s:[{s:s, s:s}], s:i}", "u", "us<er", "m", "role", "user", "content",
                             "user", "n", 7);
    json_t *trusted = json_pack("{s:s}", "t", "trust");
    struct template_input input = { .user = user, .trusted = trusted, .roles = ROLES };
    struct template *tpl = compile(text);
    struct template_output result;
    struct tutti_error err;
    size_t n = 0, begin = 0;
    if (template_render(tpl, &input, &result, &err) != TUTTI_OK)
        fail_msg("%s: %s", text, err.text);
    for (size_t i = 0; i < result.n_segments; begin = result.segments[i++].end) {
        const struct template_segment *s = &result.segments[i];
        assert_true(s->end > begin && (i == 0 || s->is_user != s[-1].is_user));
        n += (size_t)snprintf(out + n, sizeof out - n, s->is_user ? "[%.*s]" : "%.*s", (int)(s->end - begin),
                              result.text + begin);
    }
    assert_int_equal(begin, result.n_bytes);
    out[n] = '\0';
    template_output_clear(&result);
    template_free(tpl);
    json_decref(user);
    json_decref(trusted);
    return out;
}

static void marks_each_byte_that_came_from_the_user(void **state)
{
    static const struct {
        const char *template, *want;
    } CASES[] = {
        { "{{ t }}{{ u }}", "trust[us<er]" },
        { "<{{ u }}>", "<[us<er]>" },
        { "{{ '<|' + u + '|>' }}", "<|[us<er]|>" },
        { "{{ '<|' ~ u ~ '|>' }}", "<|[us<er]|>" },
        { "{{ ('a' + u + 'b')[1:4] }}{{ ('a' + u)[0] }}", "[us<]a" },
        { "{{ (' ' + u + ' ') | trim }}", "[us<er]" },
        { "{{ u | upper }}{{ t | upper }}{{ u | title }}", "[US<ER]TRUST[Us<Er]" },
        { "{{ u | replace('<', '|') }}", "[us]|[er]" },
        { "{{ 'aXb' | replace('X', u) }}", "a[us<er]b" },
        { "{{ u.split('<') | join('-') }}", "[us]-[er]" },
        { "{{ u[::-1] }}", "[re<su]" },
        { "{{ [u, 'x', t] | join(u) }}", "[us<erus<er]x[us<er]trust" },
        { "{{ u | list | join }}{{ u | first }}", "[us<eru]" },
        { "{{ '%s|%s' % (u, 'a') }}{{ '{}|'.format(u) }}", "[us<er]|a[us<er]|" },
        { "{{ {'k': u} | tojson }}", "{\"k\": \"[us<er]\"}" },
        { "{{ [u] }}", "['[us<er]']" },
        { "{{ u | e }}", "[us&lt;er]" },
        { "{{ u | indent(2, true) }}", "  [us<er]" },
        { "{% set x %}a{{ u }}{% endset %}{{ x * 2 }}", "a[us<er]a[us<er]" },
        { "{% macro f(v) %}({{ v }}){% endmacro %}{{ f(u) }}{{ f(t) }}", "([us<er])(trust)" },
        { "{% for c in u %}{{ c }}{{ loop.index }}{% endfor %}", "[u]1[s]2[<]3[e]4[r]5" },
        { "{{ u ~ n }}{{ u | length }}", "[us<er]75" },
        { "{{ u | default('x') }}{{ none | default(u, true) }}", "[us<erus<er]" },
        { "{{ m[0].role }}{{ m[0].content }}", "user[user]" },
        { "{% for k, v in m[0].items() %}{{ k }}{% endfor %}", "[rolecontent]" },
        { "{{ u if t == 'trust' else t }}", "[us<er]" },
        { "{{ 'us<er' if u == 'us<er' }}", "us<er" },
        { "{{ u.partition('<')[2] }}{{ u.strip('u') }}{{ u | truncate(4, true, '..', 0) }}", "[ers<erus].." },
        { "{% filter upper %}a{{ u }}{% endfilter %}{% generation %}{{ u }}{% endgeneration %}",
          "A[US<ERus<er]" },
        { "{{ strftime_now(u) }}", "[us<er]" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        assert_string_equal(marked(CASES[i].template), CASES[i].want);
}

/* ---- what must fail ---- */

static void check_error(const char *text, const struct template_limits *limits, enum tutti_status want,
                        const char *words)
{
    json_t *user = json_pack("{s:[{s:s}], s:s}", "messages", "content", "x", "long",
                             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    struct template_input input = { .user = user };
    struct template *tpl = NULL;
    struct template_output out = { 0 };
    struct tutti_error err = { 0 };
    if (limits)
        input.limits = *limits;
    enum tutti_status st = template_compile(&tpl, text, strlen(text), "t", &err);
    if (st == TUTTI_OK)
        st = template_render(tpl, &input, &out, &err);
    if (st != want || !strstr(err.text, words))
        fail_msg("%s: status %d, \"%s\", expected %d and \"%s\"", text, st, err.text, want, words);
    template_output_clear(&out);
    template_free(tpl);
    json_decref(user);
}

static void names_the_line_of_an_error(void **state)
{
    static const struct {
        const char *template;
        enum tutti_status status;
        const char *words;
    } CASES[] = {
        { "a\n{{ 1", TUTTI_E_FORMAT, "t: line 2: '{{' without '}}'" },
        { "{% if x %}", TUTTI_E_FORMAT, "line 1: found the template's end, expected 'endif'" },
        { "\n\n{% endfor %}", TUTTI_E_FORMAT, "line 3: unexpected 'endfor'" },
        { "{{ 'a }}", TUTTI_E_FORMAT, "a string without an end" },
        { "{{ a b }}", TUTTI_E_FORMAT, "found 'b', expected '}}'" },
        { "{{ 1 + }}", TUTTI_E_FORMAT, "found '}}', expected a value" },
        { "{% include 'x' %}", TUTTI_E_UNSUPPORTED, "'include' is not supported" },
        { "{# x", TUTTI_E_FORMAT, "'{#' without '#}'" },
        { "{{ ) }}", TUTTI_E_FORMAT, "a bracket that was not opened" },
        { "{{ 99999999999999999999 }}", TUTTI_E_LIMIT, "a number beyond 64 bits" },
        { "{{ '\\uD800' }}", TUTTI_E_FORMAT, "no such character" },
        { "\n{{ raise_exception('no system') }}", TUTTI_E_ARGUMENT, "t: line 2: no system" },
        { "{{ a.b }}", TUTTI_E_ARGUMENT, "line 1: 'a' is undefined" },
        { "{{ messages[0].zork.x }}", TUTTI_E_ARGUMENT, "'zork' is undefined" },
        { "{{ 1 + 'a' }}", TUTTI_E_ARGUMENT, "unsupported operand types for +: 'int' and 'str'" },
        { "{{ 1 | zork }}", TUTTI_E_ARGUMENT, "no filter named 'zork'" },
        { "{{ 'a' | trim(1, 2) }}", TUTTI_E_ARGUMENT, "trim takes at most 1 arguments, found 2" },
        { "{{ 'a' | replace('b') }}", TUTTI_E_ARGUMENT, "replace needs the argument 'new'" },
        { "{{ 'a' | trim(zork=1) }}", TUTTI_E_ARGUMENT, "trim has no argument 'zork'" },
        { "{{ 1 // 0 }}", TUTTI_E_ARGUMENT, "division by zero" },
        { "{{ 9223372036854775807 + 1 }}", TUTTI_E_ARGUMENT, "a number beyond 64 bits" },
        { "{{ 'a'() }}", TUTTI_E_ARGUMENT, "'str' object is not callable" },
        { "{{ x | tojson }}", TUTTI_E_ARGUMENT, "Undefined is not JSON serializable" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_error(CASES[i].template, NULL, CASES[i].status, CASES[i].words);
}

static void stays_within_its_limits(void **state)
{
    static const struct {
        const char *template, *words;
        struct template_limits limits;
    } CASES[] = {
        { "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}", "", { 0 } },
        { "{% for i in range(99999) %}{% endfor %}", "more than 1000 steps", { .n_steps = 1000 } },
        { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper than", { 0 } },
        { "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "nested deeper than", { 0 } },
        { "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", "nested deeper than", { 0 } },
        { "{% set l = [] %}{% set k = [] %}{% set _ = l.append([l]) %}{% set _ = k.append([k]) %}{{ l == k "
          "}}",
          "nested deeper than",
          { 0 } },
        { "{{ 'x' * 999999999999 }}", "more than", { 0 } },
        { "{{ [0] * 999999999999 }}", "", { 0 } },
        { "{{ '%9999d' % 1 }}{{ range(9999999) }}", "more than 100000 numbers", { 0 } },
        { "{{ '' | center(999999999999) }}", "", { 0 } },
        { "{{ 'a\nb' | indent(999999999999) }}", "", { 0 } },
        { "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
          "bytes",
          { 0 } },
        { "{{ long }}{{ long }}", "more than 40 bytes of text", { .output_bytes = 40 } },
        { "{{ [1, 2, 3, 4] * 400 }}", "more than 5000 bytes of memory", { .memory_bytes = 5000 } },
        { "{{ 1 }}{{ 2 }}{{ 3 }}{{ 4 }}{{ 5 }}", "more than 6 steps", { .n_steps = 6 } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        check_error(CASES[i].template, &CASES[i].limits, TUTTI_E_LIMIT, CASES[i].words);
    char deep[4000];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{ ", 3);
    deep[sizeof deep - 1] = '\0';
    check_error(deep, NULL, TUTTI_E_LIMIT, "too many brackets");
    for (size_t i = 3; i < 300; i++)
        deep[i] = i % 2 ? '-' : ' ';
    strcpy(deep + 300, "1 }}");
    check_error(deep, NULL, TUTTI_E_LIMIT, "nested deeper than");
}

static void knows_the_variables_it_speaks_of(void **state)
{
    (void)state;
    struct template *tpl = compile("{% if tools %}{{ messages }}{% endif %}");
    assert_true(template_mentions(tpl, "tools"));
    assert_false(template_mentions(tpl, "enable_thinking"));
    template_free(tpl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speaks_the_language_of_jinja),
        cmocka_unit_test(renders_published_templates_as_jinja),
        cmocka_unit_test(a_slice_costs_no_copy_and_is_one),
        cmocka_unit_test(marks_each_byte_that_came_from_the_user),
        cmocka_unit_test(names_the_line_of_an_error),
        cmocka_unit_test(stays_within_its_limits),
        cmocka_unit_test(knows_the_variables_it_speaks_of),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
