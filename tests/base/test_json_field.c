/* Tests of src/base/json/json_field. */
#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "base/json/json_wide.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char TEXT[] = "{\"object\": {}, \"list\": [1], \"string\": \"x\", \"int\": 7, \"number\": 1.5, "
                           "\"large\": -1e20, "
                           "\"yes\": true, \"no\": false, \"null\": null, \"empty\": []}";

static int parse(void **state)
{
    *state = json_loads(TEXT, 0, NULL);
    return *state ? 0 : -1;
}

static int clear(void **state)
{
    json_decref(*state);
    return 0;
}

static void null_is_as_absent(void **state)
{
    assert_null(json_field(*state, "null"));
    assert_null(json_field(*state, "other"));
    assert_null(json_field(NULL, "int"));
    assert_int_equal(json_integer_value(json_field(*state, "int")), 7);
}

static void each_kind_accepts_its_values_only(void **state)
{
    static const struct {
        const char *name;
        unsigned kinds; /* bits: enum json_kind */
        const char *found;
    } CASES[] = {
        { "object", 1U << JSON_KIND_OBJECT, "an object" },
        { "list", 1U << JSON_KIND_LIST, "a list" },
        { "empty", 1U << JSON_KIND_LIST, "an empty list" },
        { "string", 1U << JSON_KIND_STRING, "a string" },
        { "int", 1U << JSON_KIND_INT | 1U << JSON_KIND_NUMBER, "an integer" },
        { "number", 1U << JSON_KIND_NUMBER, "a number" },
        { "large", 1U << JSON_KIND_NUMBER, "a number beyond 64 bits" },
        { "yes", 1U << JSON_KIND_BOOL, "true" },
        { "no", 1U << JSON_KIND_BOOL, "false" },
        { "null", 0, "null" },
        { "other", 0, "nothing" },
    };
    static const char *const EXPECTED[] = { "an object",  "a list",   "a string",
                                            "an integer", "a number", "true or false" };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const json_t *value = json_object_get(*state, CASES[i].name);
        for (unsigned kind = JSON_KIND_OBJECT; kind <= JSON_KIND_BOOL; kind++) {
            struct tutti_error err = { 0 };
            char text[128];
            bool is_one = CASES[i].kinds >> kind & 1;
            assert_int_equal(json_is_kind(value, kind), is_one);
            assert_int_equal(json_require(value, kind, "a.b", &err), is_one ? TUTTI_OK : TUTTI_E_ARGUMENT);
            if (!is_one) {
                snprintf(text, sizeof text, "a.b must be %s, found %s", EXPECTED[kind], CASES[i].found);
                assert_string_equal(err.text, text);
                assert_string_equal(err.param, "a.b");
            }
            bool may_be = is_one || CASES[i].kinds == 0;
            assert_int_equal(json_check(value, kind, "a", &err), may_be ? TUTTI_OK : TUTTI_E_ARGUMENT);
        }
    }
}

static void a_part_names_its_field(void **state)
{
    struct tutti_error err = { 0 };
    assert_int_equal(
        json_wrong_part("tools[0]", "tools[0].name", "a string", json_object_get(*state, "int"), &err),
        TUTTI_E_ARGUMENT);
    assert_string_equal(err.text, "tools[0].name must be a string, found an integer");
    assert_string_equal(err.param, "tools[0]");
}

static void ranges_are_inclusive(void **state)
{
    (void)state;
    struct tutti_error err = { 0 };
    assert_int_equal(json_check_range(0, 0, 2, "t", &err), TUTTI_OK);
    assert_int_equal(json_check_range(2, 0, 2, "t", &err), TUTTI_OK);
    assert_int_equal(json_check_range(2.5, 0, 2, "t", &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.text, "t must be between 0 and 2, found 2.5");
    assert_string_equal(err.param, "t");
}

static void fields_of_files_are_read(void **state)
{
    struct tutti_error err = { 0 };
    struct json_place at = { .file = "x.json", .prefix = "list[2].", .err = &err };
    const char *text = NULL;
    int64_t n = 0;
    assert_int_equal(json_get_string(&at, *state, "string", &text), TUTTI_OK);
    assert_string_equal(text, "x");
    assert_int_equal(json_get_int(&at, *state, "int", 7, 7, &n), TUTTI_OK);
    assert_int_equal(n, 7);
    assert_int_equal(json_get_string(&at, *state, "int", &text), TUTTI_E_FORMAT);
    assert_string_equal(err.text, "x.json: list[2].int: an integer, expected a string");
    assert_int_equal(json_get_int(&at, *state, "number", 0, 9, &n), TUTTI_E_FORMAT);
    assert_string_equal(err.text, "x.json: list[2].number: a number, expected an integer from 0 to 9");
    assert_int_equal(json_get_int(&at, *state, "int", 0, 6, &n), TUTTI_E_FORMAT);
    assert_string_equal(err.text, "x.json: list[2].int: 7, expected an integer from 0 to 6");
    at.file = NULL;
    assert_int_equal(json_unexpected(&at, "", json_object_get(*state, "empty"), "an object"), TUTTI_E_FORMAT);
    assert_string_equal(err.text, "list[2]: an empty list, expected an object");
}

/* Of a text that has an integer beyond 64 bits, all others keep their digits. */
static void integers_beyond_64_bits_become_reals(void **state)
{
    static const struct {
        const char *text, *read; /* NULL: it is refused */
    } CASES[] = {
        { "[9223372036854775807, 9223372036854775808, -9223372036854775808, -9223372036854775809]",
          "[9223372036854775807,9.223372036854776e18,-9223372036854775808,-9.223372036854776e18]" },
        { "{\"18446744073709551616\": \"a\\\"18446744073709551616\", \"b\": 18446744073709551616}",
          "{\"18446744073709551616\":\"a\\\"18446744073709551616\",\"b\":1.8446744073709552e19}" },
        { "[18446744073709551616.5, 18446744073709551616e1, 1e00000000000000000001, "
          "0.18446744073709551616, 100000000000000000000]",
          "[1.8446744073709552e19,1.844674407370955e20,10.0,0.1844674407370955,1e20]" },
        { "18446744073709551616", "1.8446744073709552e19" },
        { "[018446744073709551616]", NULL },
        { "{\"a\": 18446744073709551616, \"a\": 1}", NULL },
        { "[1e999]", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        json_error_t why;
        json_t *value = json_load_wide(CASES[i].text, strlen(CASES[i].text),
                                       JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
        char *read = value ? json_print(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        assert_int_equal(!read, !CASES[i].read);
        if (read)
            assert_string_equal(read, CASES[i].read);
        free(read);
        json_decref(value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(null_is_as_absent, parse, clear),
        cmocka_unit_test_setup_teardown(each_kind_accepts_its_values_only, parse, clear),
        cmocka_unit_test_setup_teardown(a_part_names_its_field, parse, clear),
        cmocka_unit_test(ranges_are_inclusive),
        cmocka_unit_test(integers_beyond_64_bits_become_reals),
        cmocka_unit_test_setup_teardown(fields_of_files_are_read, parse, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
