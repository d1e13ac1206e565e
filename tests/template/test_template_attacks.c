/* Templates of up to 1 MB, each of one construct nested or repeated as often as fits: compiled and rendered on a thread with a
 * small stack. Each gives a text, or an error that names the template and a line. */
#include "template/template.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sanitizers make frames several times as large. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

enum { STACK_BYTES = (IS_SANITIZED ? 4096 : 256) * 1024 };

struct job {
    const char *text;
    size_t n_bytes;
    json_t *user;
    enum tutti_status status;
    struct tutti_error err;
};

static void *run_job(void *arg)
{
    struct job *job = arg;
    struct template *tpl = NULL;
    struct template_output out = { 0 };
    struct template_input input = { .user = job->user };
    job->status = template_compile(&tpl, job->text, job->n_bytes, "attack", &job->err);
    if (job->status == TUTTI_OK)
        job->status = template_render(tpl, &input, &out, &job->err);
    template_output_clear(&out);
    template_free(tpl);
    return NULL;
}

static void run_with_small_stack(struct job *job)
{
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_job, job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

/* first, n times each of open, middle once, n times each of close, last. A "%zu" in open is its number. */
struct attack {
    const char *first, *open, *middle, *close, *last;
    /* NULL: it renders, however long; else a part of the error's text. */
    const char *error;
};

static char *make_text(const struct attack *a, size_t n, size_t *n_bytes)
{
    size_t size = strlen(a->first) + strlen(a->middle) + strlen(a->last) +
                  n * (strlen(a->open) + strlen(a->close) + 20) + 1,
           at = 0;
    char *text = malloc(size);
    assert_non_null(text);
    at += (size_t)snprintf(text + at, size - at, "%s", a->first);
    for (size_t i = 0; i < n; i++) {
        const char *number = strstr(a->open, "%zu");
        if (number)
            at += (size_t)snprintf(text + at, size - at, "%.*s%zu%s", (int)(number - a->open), a->open, i,
                                   number + 3);
        else
            at += (size_t)snprintf(text + at, size - at, "%s", a->open);
    }
    at += (size_t)snprintf(text + at, size - at, "%s", a->middle);
    for (size_t i = 0; i < n; i++) {
        memcpy(text + at, a->close, strlen(a->close));
        at += strlen(a->close);
    }
    at += (size_t)snprintf(text + at, size - at, "%s", a->last);
    *n_bytes = at;
    return text;
}

static const struct attack ATTACKS[] = {
    /* chains, which the parser reads in a loop */
    { "{% filter e", "|e", " %}x", "", "{% endfilter %}", "nested deeper than" },
    { "{% set x|e", "|e", " %}x", "", "{% endset %}{{ x }}", "nested deeper than" },
    { "{{ 'x'", "|e", "", "", " }}", "nested deeper than" },
    { "{{ 'x'", "|d('y')", "", "", " }}", "nested deeper than" },
    { "{{ m", ".a", "", "", " }}", "nested deeper than" },
    { "{{ m", "[0]", "", "", " }}", "nested deeper than" },
    { "{{ m", "[0:1]", "", "", " }}", "nested deeper than" },
    { "{{ m", "()", "", "", " }}", "nested deeper than" },
    { "{{ m", " is eq(1)", "", "", " }}", "nested deeper than" },
    { "{{ 1", " + 1", "", "", " }}", "nested deeper than" },
    { "{{ 1", " * 1", "", "", " }}", "nested deeper than" },
    { "{{ 1", " ** 1", "", "", " }}", "nested deeper than" },
    { "{{ 1", " and 1", "", "", " }}", "nested deeper than" },
    { "{{ 0", " or 0", "", "", " }}", "nested deeper than" },
    { "{{ 1", " if 1", "", "", " }}", "nested deeper than" },
    { "{{ 1", " if 0 else 1", "", "", " }}", "nested deeper than" },
    /* nesting */
    { "{{ ", "(", "1", ")", " }}", "too many brackets" },
    { "{{ ", "[", "1", "]", " }}", "too many brackets" },
    { "{{ ", "{1: ", "1", "}", " }}", "too many brackets" },
    { "{{ ", "f(", "1", ")", " }}", "too many brackets" },
    { "{{ ", "a[", "1", "]", " }}", "too many brackets" },
    { "{{ ", "1|d(", "1", ")", " }}", "too many brackets" },
    { "{{ ", "1 is eq(", "1", ")", " }}", "too many brackets" },
    { "{{ ", "- ", "1", "", " }}", "nested deeper than" },
    { "{{ ", "1 if 1 else ", "1", "", " }}", "nested deeper than" },
    { "{% set ", "(", "x", ")", " = 1 %}", "too many brackets" },
    { "{% for ", "(", "x", ")", " in [1] %}{% endfor %}", "too many brackets" },
    { "", "{% if 1 %}", "x", "{% endif %}", "", "nested deeper than" },
    { "", "{% if 1 %}{% else %}", "x", "{% endif %}", "", "nested deeper than" },
    { "", "{% for i in [1] %}", "x", "{% endfor %}", "", "nested deeper than" },
    { "", "{% with a = 1 %}", "x", "{% endwith %}", "", "nested deeper than" },
    { "", "{% filter e %}", "x", "{% endfilter %}", "", "nested deeper than" },
    { "", "{% set x %}", "x", "{% endset %}", "", "nested deeper than" },
    { "", "{% macro f() %}", "x", "{% endmacro %}", "", "nested deeper than" },
    { "", "{% call f() %}", "x", "{% endcall %}", "", "nested deeper than" },
    { "", "{% generation %}", "x", "{% endgeneration %}", "", "nested deeper than" },
    /* repeated: no nesting, so it may only be slow */
    { "{{ 1", " ~ 1", "", "", " }}", NULL },
    { "{{ 1", " <= 1", "", "", " }}", NULL },
    { "{{ ", "not ", "1", "", " }}", NULL },
    { "{{ ", "'a' ", "", "", " }}", NULL },
    { "{{ [", "1,", "", "", "] | length }}", NULL },
    { "{% if 0 %}", "{% elif 0 %}", "", "", "{% endif %}", NULL },
    { "{# ", "{# ", "", "", " #}", NULL },
    { "{% raw %}", "{% raw %}", "", "", "{% endraw %}", NULL },
    { "", "{{ 1 }}", "", "", "", NULL },
    { "", "\n {%- if 1 -%} \n", "", "{% endif %}", "", "nested deeper than" },
    /* quadratic, were each name compared with all others and nothing counted */
    { "", "{% set a%zu = 1 %}", "", "", "", "more than" },
    { "{{ dict(", "a%zu=1,", "", "", ") }}", "more than" },
    { "{% macro f(", "a%zu=1,", "z=1", "", ") %}{% endmacro %}{{ f() }}", "more than" },
    /* endless while it runs */
    { "{% macro f() %}", "", "{{ f() }}", "", "{% endmacro %}{{ f() }}", "nested deeper than" },
    { "{% macro f() %}{{ g() }}{% endmacro %}", "",
      "{% macro g() %}{% call f() %}{% endcall %}{% endmacro %}", "", "{{ f() }}", "nested deeper than" },
    { "{% macro f(x=f()) %}", "", "", "", "{% endmacro %}{{ f() }}", "nested deeper than" },
    { "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}", "",
      "{% call f() %}{{ g() }}{% endcall %}", "", "{% endmacro %}{{ g() }}", "nested deeper than" },
    { "{% macro f() %}{% filter e %}{% set x %}{{ [{1: (f() ~ 1)[0:f()]}] }}", "", "", "",
      "{% endset %}{{ x }}{% endfilter %}{% endmacro %}{{ f() }}", "nested deeper than" },
    { "{% for i in [1] recursive %}", "", "{{ loop([1]) }}", "", "{% endfor %}", "nested deeper than" },
    { "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}", "",
      "{{ ns.l }}", "", "", "nested deeper than" },
    { "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = {1: ns.l} %}{% endfor %}", "",
      "{{ ns.l | tojson(indent=1) }}", "", "", "nested deeper than" },
    { "{% set ns = namespace(l=[], k=[]) %}{% for i in range(9999) %}{% set ns.l = (1, ns.l) %}"
      "{% set ns.k = (1, ns.k) %}{% endfor %}",
      "", "{{ ns.l < ns.k }}", "", "", "nested deeper than" },
    { "{% set ns = namespace(l=[], k=[]) %}{% for i in range(9999) %}{% set ns.l = {1: ns.l} %}"
      "{% set ns.k = {1: ns.k} %}{% endfor %}",
      "", "{{ ns.l == ns.k }}", "", "", "nested deeper than" },
    { "{% set ns = namespace(l=(1,), k=(1,)) %}{% for i in range(9999) %}{% set ns.l = (ns.l,) %}"
      "{% set ns.k = (ns.k,) %}{% endfor %}",
      "", "{{ {ns.l: 1}[ns.k] }}", "", "", "nested deeper than" },
    { "{% set ns = namespace(l=[], k=[]) %}{% for i in range(9999) %}{% set ns.l = [1, ns.l] %}"
      "{% set ns.k = [1, ns.k] %}{% endfor %}",
      "", "{{ [ns.l, ns.k] | sort }}", "", "", "nested deeper than" },
    { "{% set l = [] %}{% set _ = l.append(l) %}", "", "{{ l | string | length }}", "", "",
      "nested deeper than" },
    { "{{ [[1]] | map('map'", ", 'map'", "", "", ") | list }}", "not iterable" },
};

static void check_attack(const struct attack *a, size_t n)
{
    struct job job = { .user = json_pack("{s:[]}", "m") };
    char *text = make_text(a, n, &job.n_bytes);
    job.text = text;
    run_with_small_stack(&job);
    bool names_line = strstr(job.err.text, "attack: line ");
    if (a->error ? job.status == TUTTI_OK || !strstr(job.err.text, a->error) || !names_line
                 : job.status != TUTTI_OK)
        fail_msg("%s%s ... %zu times: status %d, \"%s\", expected \"%s\"", a->first, a->open, n, job.status,
                 job.err.text, a->error ? a->error : "");
    free(text);
    json_decref(job.user);
}

/* Text of 100 KB, and of nearly 1 MB, which is the most that a template may have. */
static void ends_without_a_deep_stack(void **state)
{
    static const size_t SIZES[] = { 100 * 1000, 1000 * 1000 };
    (void)state;
    for (size_t i = 0; i < sizeof ATTACKS / sizeof *ATTACKS; i++) {
        const struct attack *a = &ATTACKS[i];
        size_t each = strlen(a->open) + strlen(a->close) + (strstr(a->open, "%zu") ? 3 : 0);
        for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES && (each > 0 || s == 0); s++)
            check_attack(a, each > 0 ? SIZES[s] / each : 0);
    }
}

/* As deep as is allowed: the depth that a template can reach fits the stack with room to spare, and works. */
static void runs_what_is_nested_less(void **state)
{
    static const struct attack FINE[] = {
        { "{% filter e", "|e", " %}x", "", "{% endfilter %}", NULL },
        { "{{ 'x'", "|d('y')", "", "", " }}", NULL },
        { "{{ 1", " + 1", "", "", " }}", NULL },
        { "{{ m", " is eq(1)", "", "", " }}", NULL },
    };
    static const struct attack NESTED[] = {
        { "{{ ", "(", "1", ")", " }}", NULL },
        { "{{ ", "[", "1", "]", " }}", NULL },
        { "{{ ", "1|d(", "1", ")", " }}", NULL },
        { "", "{% filter e %}", "x", "{% endfilter %}", "", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof FINE / sizeof *FINE; i++)
        check_attack(&FINE[i], 190);
    for (size_t i = 0; i < sizeof NESTED / sizeof *NESTED; i++)
        check_attack(&NESTED[i], 50);
}

/* What a request brings may be nested as deeply as its JSON parser allows. */
static void bounds_the_depth_of_values(void **state)
{
    static const struct attack PRINT = { "{{ x | tojson }}", "", "", "", "", NULL };
    struct job job = { .user = json_object() };
    json_t *list = json_array();
    (void)state;
    for (int i = 0; i < 1500; i++)
        list = json_pack("[o]", list);
    json_object_set_new(job.user, "x", list);
    char *text = make_text(&PRINT, 0, &job.n_bytes);
    job.text = text;
    run_with_small_stack(&job);
    assert_int_equal(job.status, TUTTI_E_LIMIT);
    assert_non_null(strstr(job.err.text, "attack: line 1: nested deeper than"));
    free(text);
    json_decref(job.user);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_without_a_deep_stack),
        cmocka_unit_test(runs_what_is_nested_less),
        cmocka_unit_test(bounds_the_depth_of_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
