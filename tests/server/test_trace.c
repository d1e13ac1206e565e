/* Tests of src/server/trace: W3C Trace Context, section 3.2. */
#include "server/access/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static void what_the_recommendation_allows_is_read(void **state)
{
    (void)state;
    const struct {
        const char *value;
        bool is_sampled;
    } good[] = {
        { "00-" TRACE "-" PARENT "-01", true },
        { "00-" TRACE "-" PARENT "-00", false },
        { "00-" TRACE "-" PARENT "-ff", true },
        { "00-" TRACE "-" PARENT "-02", false },
        { "cc-" TRACE "-" PARENT "-01", true },
        { "cc-" TRACE "-" PARENT "-01-what-the-future-will-be", true },
        { "fe-" TRACE "-" PARENT "-01-", true },
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct trace trace;
        assert_true(trace_parse(&trace, good[i].value));
        assert_string_equal(trace.trace_id, TRACE);
        assert_string_equal(trace.parent_id, PARENT);
        assert_int_equal(trace.is_sampled, good[i].is_sampled);
    }
}

static void anything_else_counts_as_absent(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "00",
        "00-" TRACE "-" PARENT,
        "00-" TRACE "-" PARENT "-",
        "00-" TRACE "-" PARENT "-0",
        "00-" TRACE "-" PARENT "-011",
        "00-" TRACE "-" PARENT "-01-",
        "00-" TRACE "-" PARENT "-01-more",
        "cc-" TRACE "-" PARENT "-01more",
        "cc-" TRACE "-" PARENT "-01.",
        "ff-" TRACE "-" PARENT "-01",
        "0x-" TRACE "-" PARENT "-01",
        "CC-" TRACE "-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473g-" PARENT "-01",
        "00-" TRACE "-00F067AA0BA902B7-01",
        "00-" TRACE "-00f067aa0ba902b.-01",
        "00-" TRACE "-" PARENT "-0g",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "_" PARENT "-01",
        "00-" TRACE "-" PARENT "_01",
        "00-" TRACE " -" PARENT "-01",
        "00- " TRACE "-" PARENT "-01",
        "00-\xc3\xa4 f92f3577b34da6a3ce929d0e0e4736-" PARENT "-01",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace trace;
        assert_false(trace_parse(&trace, bad[i]));
    }
}

/* Each byte of a good value, put to each other value: accepted exactly where the grammar has it. */
static void every_changed_byte_is_judged(void **state)
{
    (void)state;
    static const char good[] = "00-" TRACE "-" PARENT "-01";
    for (size_t at = 0; at + 1 < sizeof good; at++) {
        for (int byte = 1; byte < 256; byte++) {
            char value[sizeof good];
            struct trace trace;
            memcpy(value, good, sizeof good);
            value[at] = (char)byte;
            bool is_hex = strchr("0123456789abcdef", byte) != NULL;
            bool want = good[at] == '-' ? byte == '-'
                                        : is_hex; /* other versions of this length are allowed */
            assert_int_equal(trace_parse(&trace, value), want);
        }
    }
}

static void a_reply_names_the_request_as_parent(void **state)
{
    (void)state;
    struct trace trace;
    char text[TRACE_TEXT_BYTES];
    assert_true(trace_parse(&trace, "cc-" TRACE "-" PARENT "-03-x"));
    memcpy(trace.span_id, "0123456789abcdef", sizeof trace.span_id);
    trace_write(&trace, text);
    assert_string_equal(text, "00-" TRACE "-0123456789abcdef-01");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_recommendation_allows_is_read),
        cmocka_unit_test(anything_else_counts_as_absent),
        cmocka_unit_test(every_changed_byte_is_judged),
        cmocka_unit_test(a_reply_names_the_request_as_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
