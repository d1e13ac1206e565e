/* The stand-in for systemd's notifications in builds without libsystemd: what systemd asks for is refused, not ignored. */
#include "server/http/supervisor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void inherited_sockets_are_refused_by_name(void **state)
{
    struct tutti_error err = { 0 };
    int fds[4], n = -1;
    (void)state;
    unsetenv("LISTEN_FDS");
    assert_int_equal(supervisor_sockets(fds, 4, &n, &err), TUTTI_OK);
    assert_int_equal(n, 0);
    setenv("LISTEN_FDS", "1", 1);
    assert_int_equal(supervisor_sockets(fds, 4, &n, &err), TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "LISTEN_FDS"));
    assert_non_null(strstr(err.text, "libsystemd-dev"));
    unsetenv("LISTEN_FDS");
}

static void without_systemd_nothing_happens(void **state)
{
    struct supervisor *supervisor = (struct supervisor *)&(char){ 0 };
    (void)state;
    assert_int_equal(supervisor_new(&supervisor, NULL, NULL, NULL, NULL), TUTTI_OK);
    assert_null(supervisor);
    supervisor_ready("ready");
    supervisor_reloading();
    supervisor_stopping();
    supervisor_free(supervisor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inherited_sockets_are_refused_by_name),
        cmocka_unit_test(without_systemd_nothing_happens),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
