/* tutti load of a build without libcurl. */
#include "cli/options/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void the_missing_library_is_named(void **state)
{
    struct tutti_error err = { 0 };
    (void)state;
    assert_string_equal(COMMAND_LOAD.name, "load");
    assert_int_equal(COMMAND_LOAD.run(NULL, NULL, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "libcurl4-openssl-dev"));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_missing_library_is_named) };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
