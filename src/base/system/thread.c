#include "base/system/thread.h"

#include <signal.h>
#include <stddef.h>

int thread_start(pthread_t *thread, void *(*entry)(void *arg), void *arg)
{
    static const int OWN[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF };
    sigset_t blocked, old;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        sigdelset(&blocked, OWN[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &old);
    int error = pthread_create(thread, NULL, entry, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}
