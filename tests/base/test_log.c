/* Tests of src/base/log: what is written to standard error, byte by byte. */
#include "base/log.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char said[64 * 1024];

/* Runs write with standard error in a file; said: what it wrote. */
static void listen_to(void (*write_lines)(void))
{
    FILE *file = tmpfile();
    assert_non_null(file);
    int before = dup(STDERR_FILENO);
    assert_true(before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    write_lines();
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
}

static const char LONG[] = "0123456789";

static void write_lines(void)
{
    char *large = malloc(10001);
    memset(large, '"', 10000);
    large[10000] = '\0';
    const struct log_field fields[] = {
        { .name = "path", .text = "/a\"b\\c\n\x1b[31m\xff\xc3\xa9" },
        { .name = "status", .number = 200 },
        { .name = "ms", .number = 0.25 },
        { .name = "none", .number = NAN },
        { .name = "large", .text = large },
        { .name = "large_too", .text = large },
        { .name = "large_three", .text = large },
        { .name = "large_four", .text = large },
        { .name = "last", .text = LONG },
    };
    log_debug("not shown");
    log_info("a \"text\" of %d\n\\", 7);
    log_warn("%s", large);
    log_record(LOG_ERROR, "request", fields, sizeof fields / sizeof *fields);
    free(large);
}

static void each_line_for_machines_is_an_object(void **state)
{
    (void)state;
    static const char *const levels[] = { "info", "warn", "error" };
    log_set_format(LOG_JSON);
    assert_true(log_is_json());
    listen_to(write_lines);
    log_set_format(LOG_TEXT);
    char *line = said;
    json_t *object = NULL;
    for (size_t i = 0; i < 3; i++) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        json_decref(object);
        object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        assert_string_equal(json_string_value(json_object_get(object, "level")), levels[i]);
        const char *at = json_string_value(json_object_get(object, "time"));
        assert_true(at && strlen(at) == strlen("2026-01-31T12:00:00.123Z") && at[19] == '.' && at[23] == 'Z');
        if (i == 0)
            assert_string_equal(json_string_value(json_object_get(object, "message")), "a \"text\" of 7?\\");
        if (i == 1)
            assert_int_equal(strlen(json_string_value(json_object_get(object, "message"))), 1023);
        line = end + 1;
    }
    assert_string_equal(line, "");
    assert_string_equal(json_string_value(json_object_get(object, "path")), "/a\"b\\c??[31m?\xc3\xa9");
    assert_int_equal(json_integer_value(json_object_get(object, "status")), 200);
    assert_float_equal(json_real_value(json_object_get(object, "ms")), 0.25, 0);
    assert_true(json_is_null(json_object_get(object, "none")));
    assert_int_equal(strlen(json_string_value(json_object_get(object, "large_three"))), 1024);
    assert_null(json_object_get(object, "large_four")); /* no room: left out, and nothing cut open */
    assert_string_equal(json_string_value(json_object_get(object, "last")), LONG);
    json_decref(object);
}

static void lines_for_people_are_short(void **state)
{
    (void)state;
    listen_to(write_lines);
    assert_string_equal(said + strlen("2026-01-31T12:00:0"), strstr(said, "Z info a \"text\" of 7?\\\n") - 1);
    assert_non_null(strstr(said, " status=200 ms=0.25 none=null"));
    assert_null(strstr(said, "not shown"));
    assert_null(strchr(said, '\x1b'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_line_for_machines_is_an_object),
        cmocka_unit_test(lines_for_people_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
