/* Threads and the signals of the program. */
#include "base/system/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static sigset_t mask_inside;
static int pipe_fds[2];
static volatile sig_atomic_t n_handled;
static pthread_t handler_thread;

static void *look(void *arg)
{
    char byte;
    pthread_sigmask(SIG_SETMASK, NULL, &mask_inside);
    (void)!read(pipe_fds[0], &byte, 1);
    return arg;
}

static void on_signal(int number)
{
    (void)number;
    handler_thread = pthread_self();
    n_handled++;
}

static void signals_are_the_starters(void **state)
{
    (void)state;
    pthread_t thread;
    sigset_t before, after;
    void *result = NULL;
    int here = 0;
    assert_int_equal(pipe(pipe_fds), 0);
    signal(SIGUSR1, on_signal);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, look, &here), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 0; i < 100; i++)
        kill(getpid(), SIGUSR1); /* one after the other: each is handled before kill() returns */
    assert_int_equal(n_handled, 100);
    assert_true(pthread_equal(handler_thread, pthread_self()));
    assert_int_equal(write(pipe_fds[1], "x", 1), 1);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &here);
    for (int number = 1; number < 32; number++)
        assert_int_equal(sigismember(&before, number), sigismember(&after, number));
    assert_true(sigismember(&mask_inside, SIGTERM) && sigismember(&mask_inside, SIGINT) &&
                sigismember(&mask_inside, SIGXFSZ));
    assert_false(sigismember(&mask_inside, SIGSEGV) || sigismember(&mask_inside, SIGBUS) ||
                 sigismember(&mask_inside, SIGPROF));
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_are_the_starters),
    };
    return cmocka_run_group_tests_name("base: thread", tests, NULL, NULL);
}
