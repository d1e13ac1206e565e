/* Tests of src/base/utf8: against the definition, for every code point and every short sequence of bytes. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* RFC 3629, section 3, the other way round: from code points to bytes. */
static int encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)((0xF00 >> n & 0xFF) | code);
    return n;
}

static bool is_character(uint32_t code)
{
    return code < 0xD800 || (code > 0xDFFF && code <= 0x10FFFF);
}

static void every_code_point_is_a_character_unless_a_surrogate_or_too_large(void **state)
{
    (void)state;
    char bytes[4];
    for (uint32_t code = 0; code < 0x200000; code++) {
        int n = encode(code, bytes);
        if (utf8_char(bytes, (size_t)n) != (is_character(code) ? n : 0))
            fail_msg("U+%04X", code);
        for (int cut = 1; cut < n; cut++) {
            if (utf8_char(bytes, (size_t)cut) != 0)
                fail_msg("U+%04X cut after %d bytes", code, cut);
        }
        if (utf8_is_start(bytes, (size_t)n))
            fail_msg("U+%04X is whole, and no start", code);
    }
}

/* Compared with the encoder above, which shares nothing with the one that is tested. */
static void every_character_is_decoded_and_encoded(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        char bytes[5], written[4];
        uint32_t read = 0xFFFFFFFF;
        size_t length = 9;
        int n = encode(code, bytes);
        bytes[n] = 'x';
        if (!is_character(code)) {
            assert_int_equal(utf8_decode(bytes, 5, &read), 0);
            assert_int_equal(read, 0xFFFFFFFF);
            assert_int_equal(utf8_code_at(bytes, 5, &length), -1);
            assert_int_equal(length, 1);
            continue;
        }
        if (utf8_decode(bytes, (size_t)n + 1, &read) != n || read != code)
            fail_msg("U+%04X is read as U+%04X", code, read);
        if (utf8_code_at(bytes, (size_t)n, &length) != (int32_t)code || length != (size_t)n)
            fail_msg("U+%04X: %zu bytes", code, length);
        if (utf8_encode(code, written) != n || memcmp(written, bytes, (size_t)n) != 0)
            fail_msg("U+%04X is written as other bytes", code);
        if (utf8_count(bytes, (size_t)n + 1) != 2)
            fail_msg("U+%04X and a letter are not two characters", code);
        for (int i = 0; i <= n; i++)
            assert_int_equal(utf8_is_continuation(bytes[i]), i > 0 && i < n);
    }
}

/* Every sequence of up to three bytes: those that begin a character are marked from the code points. */
static void only_beginnings_of_characters_are_starts(void **state)
{
    (void)state;
    uint8_t *is_start = calloc(1 << 24, 1), *is_whole = calloc(1 << 24, 1);
    assert_non_null(is_start);
    assert_non_null(is_whole);
    char bytes[4];
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (!is_character(code))
            continue;
        int n = encode(code, bytes);
        uint32_t prefix = 0;
        for (int i = 0; i < n && i < 3; i++) {
            prefix = prefix << 8 | (uint8_t)bytes[i];
            uint8_t bit = (uint8_t)(1 << i);
            *(i + 1 < n ? &is_start[prefix] : &is_whole[prefix]) |= bit;
        }
    }
    for (int n = 1; n <= 3; n++) {
        for (uint32_t code = 0; code < (uint32_t)1 << (8 * n); code++) {
            for (int i = 0; i < n; i++)
                bytes[i] = (char)(code >> (8 * (n - 1 - i)));
            bool start = is_start[code] >> (n - 1) & 1, whole = is_whole[code] >> (n - 1) & 1;
            if (utf8_is_start(bytes, (size_t)n) != start || (utf8_char(bytes, (size_t)n) == n) != whole)
                fail_msg("%d bytes %0*X", n, 2 * n, code);
        }
    }
    free(is_start);
    free(is_whole);
}

static void no_byte_behind_the_end_is_read(void **state)
{
    (void)state;
    for (int lead = 0; lead < 256; lead++) {
        char *bytes = malloc(1); /* memory checkers watch its end */
        assert_non_null(bytes);
        bytes[0] = (char)lead;
        assert_int_equal(utf8_char(bytes, 1), lead < 0x80);
        assert_int_equal(utf8_is_start(bytes, 1), lead >= 0xC2 && lead <= 0xF4);
        assert_int_equal(utf8_is_valid(bytes, 1), lead < 0x80);
        free(bytes);
    }
    assert_true(utf8_is_valid("", 0));
    assert_int_equal(utf8_char("", 0), 0);
}

static void a_text_is_valid_as_a_whole(void **state)
{
    (void)state;
    static const char GOOD[] = "a\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80\0b";
    assert_true(utf8_is_valid(GOOD, sizeof GOOD - 1));
    static const char *const BAD[] = {
        "a\x80",    "\xC0\x80", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80",
        "\xE4\xB8", "\xFF"
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        assert_false(utf8_is_valid(BAD[i], strlen(BAD[i])));
}

static void a_byte_order_mark_is_found_at_the_start_only(void **state)
{
    (void)state;
    static const char TEXT[] = "\xEF\xBB\xBF\xEF\xBB\xBFx";
    assert_int_equal(utf8_mark_bytes(TEXT, sizeof TEXT - 1), 3);
    assert_int_equal(utf8_mark_bytes(TEXT, 3), 3);
    assert_int_equal(utf8_mark_bytes(TEXT, 2), 0);
    assert_int_equal(utf8_mark_bytes(TEXT + 1, sizeof TEXT - 2), 0);
    assert_int_equal(utf8_mark_bytes("", 0), 0);
}

static void control_characters_cannot_be_printed(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x100; c++) { /* as a character: U+0000 to U+00FF */
        char text[2] = { (char)(c < 0x80 ? c : 0xC0 | c >> 6), (char)(0x80 | (c & 0x3F)) };
        assert_int_equal(utf8_is_printable(text, c < 0x80 ? 1 : 2), c >= 0xA0 || (c >= 0x20 && c < 0x7F));
    }
    assert_true(utf8_is_printable("", 0));
    assert_true(utf8_is_printable("model.\xE4\xBD\xA0 \xF0\x9F\x8E\xBB", 14));
    assert_false(utf8_is_printable("model.\xE4\xBD", 8));
    assert_false(utf8_is_printable("ab\n", 3));
    char text[] = "a\n\xC2\x9B\xE4\xBD\xA0\xE4\xBD\033";
    utf8_make_printable(text, sizeof text - 1);
    assert_string_equal(text, "a???\xE4\xBD\xA0???");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_a_character_unless_a_surrogate_or_too_large),
        cmocka_unit_test(every_character_is_decoded_and_encoded),
        cmocka_unit_test(only_beginnings_of_characters_are_starts),
        cmocka_unit_test(no_byte_behind_the_end_is_read),
        cmocka_unit_test(a_text_is_valid_as_a_whole),
        cmocka_unit_test(a_byte_order_mark_is_found_at_the_start_only),
        cmocka_unit_test(control_characters_cannot_be_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
