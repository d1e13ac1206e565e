/* What a terminal is shown of a stranger's text. */
#include "cli/terminal/terminal_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BAD "\xEF\xBF\xBD"

static const struct {
    const char *text, *shown;
} CASES[] = {
    { "plain, \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x91\x8B\n\ttext\n",
      "plain, \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x91\x8B\n\ttext\n" },
    { "\033[2J\033]0;title\a", BAD "[2J" BAD "]0;title" BAD },
    { "a\bb\x7F"
      "c\vd",
      "a" BAD "b" BAD "c" BAD "d" },
    { "\xC2\x9B"
      "31m\xC2\x85\xC2\xA0",
      BAD "31m" BAD "\xC2\xA0" }, /* the controls of one character */
    { "\x9B"
      "31m\xFF\xE4\xBD",
      BAD "31m" BAD },                      /* a character that never ends stays away */
    { "\xE4\xBD\033[m", BAD BAD BAD "[m" }, /* nor does it hide one */
    { "one\r\ntwo\rthree\r", "one\ntwo" BAD "three" },
    { "\r\r\n", BAD "\n" },
};
enum { N_CASES = sizeof CASES / sizeof *CASES };

static void control_characters_do_not_reach_a_terminal(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct terminal_text t = { 0 };
        struct buf out = { 0 };
        assert_true(terminal_text_add(&t, CASES[i].text, strlen(CASES[i].text), &out));
        assert_string_equal(out.bytes, CASES[i].shown);
        buf_clear(&out);
    }
}

static void a_text_may_come_in_any_parts(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        for (size_t n_part = 1; n_part < 5; n_part++) {
            struct terminal_text t = { 0 };
            struct buf out = { 0 };
            const char *text = CASES[i].text, *end = text + strlen(text);
            while (text < end) {
                size_t n = n_part < (size_t)(end - text) ? n_part : (size_t)(end - text);
                assert_true(terminal_text_add(&t, text, n, &out));
                text += n;
            }
            assert_string_equal(out.bytes, CASES[i].shown);
            buf_clear(&out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_do_not_reach_a_terminal),
        cmocka_unit_test(a_text_may_come_in_any_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
