/* Tests of hex_digit() and hex_read(): against strtoul(), for every byte. */
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_byte_is_a_digit_or_none(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        char text[2] = { (char)c, '\0' }, *end;
        long value = strtol(text, &end, 16);
        assert_int_equal(hex_digit((char)c), end == text + 1 ? value : -1);
    }
    assert_int_equal(hex_digit('\0'), -1);
}

static void numbers_are_read(void **state)
{
    (void)state;
    static const char *const TEXTS[] = { "0", "7f", "00e9", "20AC", "1F600", "DeadBeef", "ffffffff" };
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        uint32_t value = 0;
        size_t n = strlen(TEXTS[i]);
        assert_true(hex_read(TEXTS[i], n, (int)n, &value));
        assert_int_equal(value, strtoul(TEXTS[i], NULL, 16));
    }
}

static void short_and_broken_texts_are_refused(void **state)
{
    (void)state;
    uint32_t value = 5;
    assert_false(hex_read("12", 2, 4, &value));
    assert_false(hex_read("12g4", 4, 4, &value));
    assert_false(hex_read("\x11\x12", 2, 2, &value)); /* with bit 5 they would be digits */
    assert_false(hex_read(" 1", 2, 2, &value));
    assert_false(hex_read("-1", 2, 2, &value));
    assert_int_equal(value, 5);
    assert_true(hex_read("12zz", 4, 2, &value));
    assert_int_equal(value, 0x12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_a_digit_or_none),
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(short_and_broken_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
