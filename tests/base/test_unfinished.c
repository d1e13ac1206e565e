/* Tests of unfinished_add(): files that a signal removes, and the handlers of the program. */
#include "base/files/unfinished.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static volatile sig_atomic_t n_handled;

static void count(int number)
{
    (void)number;
    n_handled++;
}

static void the_program_keeps_its_own_handlers(void **state)
{
    (void)state;
    struct sigaction own = { .sa_handler = count, .sa_flags = SA_RESTART }, now;
    n_handled = 0;
    assert_int_equal(sigaction(SIGINT, &own, NULL), 0);
    assert_true(unfinished_add("/nowhere/file"));
    raise(SIGINT);
    unfinished_drop("/nowhere/file");
    raise(SIGINT);
    assert_int_equal(n_handled, 2);
    assert_int_equal(sigaction(SIGINT, NULL, &now), 0);
    assert_true(now.sa_handler == count && (now.sa_flags & SA_RESTART));
    signal(SIGINT, SIG_DFL);
}

static void ignored_signals_stay_ignored(void **state)
{
    (void)state;
    signal(SIGHUP, SIG_IGN);
    assert_true(unfinished_add("/nowhere/file"));
    raise(SIGHUP);
    unfinished_drop("/nowhere/file");
    raise(SIGHUP);
    assert_true(signal(SIGHUP, SIG_DFL) == SIG_IGN);
}

static void signals_that_end_the_program_remove_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tutti-unfinished-XXXXXX";
    int fd = mkstemp(path), status = 0;
    assert_true(fd >= 0);
    close(fd);
    pid_t child = fork();
    if (child == 0) {
        if (unfinished_add(path))
            raise(SIGTERM);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_program_keeps_its_own_handlers),
        cmocka_unit_test(ignored_signals_stay_ignored),
        cmocka_unit_test(signals_that_end_the_program_remove_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
