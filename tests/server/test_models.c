/* Tests of src/server/models: the name of a request's model, and merged metrics. */
#include "server/models/metrics_merge.h"
#include "server/models/name_scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The name found with slices of n_slice bytes; "-": none. */
static char *name_of(const char *text, size_t n_slice)
{
    struct name_scan scan = { 0 };
    size_t n = strlen(text), n_calls = 0;
    while (!name_scan(&scan, text, n, n_slice))
        assert_true(++n_calls <= n); /* each call gets on */
    return scan.end > 0 ? strndup(text + scan.begin, scan.end - scan.begin) : strdup("-");
}

static void the_name_is_the_outer_objects_member(void **state)
{
    (void)state;
    const struct {
        const char *text, *name;
    } cases[] = {
        { "{\"model\":\"a\"}", "a" },
        { "{\"mod\\u0065l\":\"a\"}", "a" },
        { "{\"\\u006D\\u006fdel\":\"a\"}", "a" },
        { "{\"mod\\u0065\":\"a\"}", "-" },
        { "{\"mode\\u006\":\"a\"}", "-" },
        { "{\"mode\\u006cx\":\"a\"}", "-" },
        { " {\n\t\"model\" : \"a\" , \"x\":1}", "a" },
        { "{\"x\":{\"model\":\"b\"},\"y\":[\"model\",\"b\"],\"model\":\"a\"}", "a" },
        { "{\"x\":\"model\",\"model\":\"a\"}", "a" },
        { "{\"x\":\"\\\"model\\\":\\\"b\\\"\",\"model\":\"a\"}", "a" },
        { "{\"x\":\"\\\\\",\"model\":\"a\"}", "a" },
        { "{\"x\":\"{[\",\"model\":\"a\"}", "a" },
        { "{\"model\":\"a\\u0062\"}", "a\\u0062" },
        { "{\"model\":\"\"}", "" },
        { "{\"model\":null,\"x\":\"b\"}", "-" },
        { "{\"model\":[\"b\"]}", "-" },
        { "{\"models\":\"b\",\"mode\":\"b\"}", "-" },
        { "{\"x\":1}{\"model\":\"b\"}", "-" },
        { "[\"model\",\"b\"]", "-" },
        { "{\"model\":\"a", "-" },
        { "{\"model\"", "-" },
        { "]}{\"model\":\"b\"}", "-" },
        { "", "-" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n_slice = 1; n_slice < 40; n_slice += 3) {
            char *name = name_of(cases[i].text, n_slice);
            assert_string_equal(name, cases[i].name);
            free(name);
        }
}

static void a_query_has_the_name_with_escapes(void **state)
{
    (void)state;
    const struct {
        const char *query, *name;
    } cases[] = {
        { "", "" },
        { "model=a", "a" },
        { "x=1&model=a&model=b", "a" },
        { "model=org%2Fname%3aq8_0&x", "org/name:q8_0" },
        { "model=a+b", "a b" },
        { "model=%", "%" },
        { "model=%4", "%4" },
        { "model=%zz%41", "%zzA" },
        { "model=", "" },
        { "models=a&amodel=b&x&", "" },
        { "model=0123456789abcdefgh", "0123456789abcdef" },
        { "model=0123456789abcde%41%42", "0123456789abcdeA" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        size_t n = name_of_query(cases[i].query, name, sizeof name);
        assert_int_equal(n, strlen(cases[i].name));
        assert_memory_equal(name, cases[i].name, n);
    }
}

static void nesting_without_end_is_scanned(void **state)
{
    (void)state;
    enum { DEPTH = 1 << 20 };
    char *text = malloc(DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = '\0';
    char *name = name_of(text, 1 << 16);
    assert_string_equal(name, "-");
    free(name);
    free(text);
}

static void metrics_of_processes_are_one_list(void **state)
{
    (void)state;
    struct metrics_merge merge = { 0 };
    struct buf out = { 0 };
    assert_true(metrics_merge_add(&merge, "# HELP a An a.\n# TYPE a counter\na 1\n", NULL));
    assert_true(
        metrics_merge_add(&merge,
                          "# HELP a An a.\n# TYPE a counter\na 2\n# HELP h Hours.\n# TYPE h histogram\n"
                          "h_bucket{le=\"1\"} 3\nh_sum 4\nh_count 5\n",
                          "x"));
    assert_true(
        metrics_merge_add(&merge, "# HELP h Hours.\n# TYPE h histogram\nh_bucket{le=\"1\"} 6\n", "y/z"));
    assert_true(metrics_merge_write(&merge, &out));
    assert_string_equal(out.bytes, "# HELP a An a.\n# TYPE a counter\na 1\na{model=\"x\"} 2\n"
                                   "# HELP h Hours.\n# TYPE h histogram\nh_bucket{model=\"x\",le=\"1\"} 3\n"
                                   "h_sum{model=\"x\"} 4\nh_count{model=\"x\"} 5\n"
                                   "h_bucket{model=\"y/z\",le=\"1\"} 6\n");
    buf_clear(&out);
    metrics_merge_clear(&merge);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_name_is_the_outer_objects_member),
        cmocka_unit_test(a_query_has_the_name_with_escapes),
        cmocka_unit_test(nesting_without_end_is_scanned),
        cmocka_unit_test(metrics_of_processes_are_one_list),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
