/* Downloads in a build without libcurl. */
#include "hub/pull.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void the_missing_library_is_named(void **state)
{
    struct tutti_error err = { 0 };
    struct hub_name name = { .model = "org/name" };
    struct buf path = { 0 };
    bool is_new = true;
    (void)state;
    assert_int_equal(hub_pull(&name, NULL, &path, &is_new, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "libcurl4-openssl-dev"));
    assert_false(is_new);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_missing_library_is_named) };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
