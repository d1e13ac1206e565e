/* Numbers in their shortest form. Expected texts are Python's repr() of the same numbers, in jansson's layout. */
#include "base/json/json_print.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *number, *expected; /* NULL: unchanged */
} NUMBERS[] = {
    { "0.1", NULL },
    { "-0.1", NULL },
    { "1.0", NULL },
    { "-0.0", NULL },
    { "0.3", NULL },
    { "0.30000000000000004", NULL },
    { "0.69314718055994531", "0.6931471805599453" },
    { "3.1415926535897931", "3.141592653589793" },
    { "123456789.123456789", "123456789.12345679" },
    { "1e+20", "1e20" },
    { "1E-07", "1e-7" },
    { "1.5e300", NULL },
    { "2.2250738585072014e-308", NULL },
    { "5e-324", NULL },
    { "9007199254740993.0", "9007199254740992.0" },
    { "17", NULL },
    { "-9223372036854775808", NULL },
};

static void prints_each_number_in_its_shortest_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        const char *expected = NUMBERS[i].expected ? NUMBERS[i].expected : NUMBERS[i].number;
        json_t *value = json_loads(NUMBERS[i].number, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        char *text = json_print(value, JSON_ENCODE_ANY);
        assert_string_equal(text, expected);
        json_t *back = json_loads(text, JSON_DECODE_ANY, NULL);
        assert_true(json_equal(value, back));
        free(text);
        json_decref(back);
        json_decref(value);
    }
}

static void leaves_strings_and_layout_alone(void **state)
{
    static const char TEXT[] = "{\"0.10000000000000001\": [\"\\\\\", \"a\\\"0.10000000000000001\", "
                               "0.10000000000000001, true, null, 2.5], \"e\": -0.20000000000000001}",
                      EXPECTED[] = "{\"0.10000000000000001\":[\"\\\\\",\"a\\\"0.10000000000000001\","
                                   "0.1,true,null,2.5],\"e\":-0.2}";
    (void)state;
    struct buf out = { 0 };
    json_t *value = json_loads(TEXT, 0, NULL);
    assert_true(buf_add_string(&out, "0.10000000000000001 "));
    assert_true(json_print_to(&out, value, JSON_COMPACT));
    assert_string_equal(out.bytes + 20, EXPECTED);
    assert_memory_equal(out.bytes, "0.10000000000000001 ", 20);
    assert_false(json_print_to(&out, NULL, JSON_COMPACT));
    buf_clear(&out);
    json_decref(value);
}

/* But for reals the text is jansson's, with every layout. */
static void texts_are_those_of_jansson(void **state)
{
    static const char TEXT[] = "{\"\": {}, \"a\": [], \"b\": [1, [2, {\"c\": null, \"d\": [true, false]}], "
                               "-9007199254740993], \"e\\\"\": "
                               "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f "
                               "\\\"/\\\\\\u007f\\u00e9\\u2028\\ud83e\\udd8a\", \"f\": {\"g\": \"\"}}";
    static const size_t FLAGS[] = { 0, JSON_COMPACT, JSON_INDENT(1), JSON_INDENT(4),
                                    JSON_INDENT(2) | JSON_COMPACT };
    (void)state;
    json_t *value = json_loads(TEXT, JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        char *expected = json_dumps(value, FLAGS[i]), *text = json_print(value, FLAGS[i]);
        assert_string_equal(text, expected);
        free(expected);
        free(text);
    }
    assert_null(json_print(json_object_get(value, "e\""), 0)); /* no list or object */
    json_decref(value);
}

static void floats_get_their_shortest_decimal(void **state)
{
    static const struct {
        float number;
        const char *text;
    } CASES[] = { { 0.1f, "0.1" },
                  { -0.7f, "-0.7" },
                  { 16777216.0f, "16777216.0" },
                  { 0.0f, "0.0" },
                  { -0.0f, "-0.0" },
                  { -12.345679f, "-12.345679" },
                  { 3.4e-5f, "3.4e-5" },
                  { -9999.0f, "-9999.0" },
                  { 1e-12f, "1e-12" },
                  { 3e38f, "3.0000000054977558e38" } };
    uint32_t bits = 0x9E3779B9u;
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        json_t *value = json_real(number_of_float(CASES[i].number));
        char *text = json_print(value, JSON_ENCODE_ANY);
        assert_string_equal(text, CASES[i].text);
        free(text);
        json_decref(value);
    }
    for (int i = 0; i < 200000; i++) {
        float number;
        bits ^= bits << 13, bits ^= bits >> 17, bits ^= bits << 5;
        uint32_t of_range = (bits & 0x807FFFFFu) | (0x70u + (bits >> 23 & 31) % 29) << 23; /* 2^-15 to 2^14 */
        memcpy(&number, &of_range, sizeof number);
        json_t *value = json_real(number_of_float(number));
        char *text = json_print(value, JSON_ENCODE_ANY), shortest[NUMBER_TEXT_BYTES];
        size_t n = number_shortest(shortest, json_real_value(value));
        assert_true(strtof(text, NULL) == number && strlen(text) <= 16);
        assert_true(strncmp(text, shortest, n) == 0 || strchr(shortest, 'e')); /* ".0" may follow */
        free(text);
        json_decref(value);
    }
}

static void random_numbers_read_back(void **state)
{
    char text[NUMBER_TEXT_BYTES];
    uint64_t bits = 0x9E3779B97F4A7C15u;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        double number;
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        memcpy(&number, &bits, sizeof number);
        if (number != number || number - number != 0)
            continue;
        assert_true(number_shortest(text, number) < NUMBER_TEXT_BYTES);
        assert_true(strtod(text, NULL) == number);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_each_number_in_its_shortest_form),
        cmocka_unit_test(leaves_strings_and_layout_alone),
        cmocka_unit_test(texts_are_those_of_jansson),
        cmocka_unit_test(floats_get_their_shortest_decimal),
        cmocka_unit_test(random_numbers_read_back),
    };
    return cmocka_run_group_tests_name("json_print", tests, NULL, NULL);
}
