#include "base/system/ending.h"

#include <pthread.h>
#include <unistd.h>

static const int SIGNALS[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU };
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS };

static void end_process(int number)
{
    _exit(128 + number);
}

signal_handler ending_default(void)
{
    return getpid() == 1 ? end_process : SIG_DFL;
}

void ending_replace(signal_handler from, signal_handler to)
{
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction now;
        if (sigaction(SIGNALS[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == from)
            signal(SIGNALS[i], to);
    }
}

void ending_block(sigset_t *old)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaddset(&set, SIGNALS[i]);
    pthread_sigmask(SIG_BLOCK, &set, old);
}
