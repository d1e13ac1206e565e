#include "base/files/unfinished.h"

#include "base/containers/array.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static const int SIGNALS[] = { SIGINT, SIGTERM, SIGHUP };
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS };

/* Read by the signal handler; only changed while the signals are blocked. */
static const char **paths;
static size_t n_paths, capacity;

static void remove_unfinished(int number)
{
    int saved = errno; /* the signal ends the process only after this function */
    for (size_t i = n_paths; i > 0; i--) {
        if (unlink(paths[i - 1]) != 0) /* both async-signal-safe */
            rmdir(paths[i - 1]);
    }
    signal(number, SIG_DFL);
    raise(number);
    errno = saved;
}

static void block(sigset_t *old)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaddset(&set, SIGNALS[i]);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

/* Replaces the handler by another one, where it is this one: a signal that is ignored (nohup) or that the program
 * handles itself does not end it, and stays as it is. */
static void replace_handlers(void (*from)(int), void (*to)(int))
{
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction now;
        if (sigaction(SIGNALS[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == from)
            signal(SIGNALS[i], to);
    }
}

bool unfinished_add(const char *path)
{
    sigset_t old;
    block(&old);
    bool ok = array_grow(&paths, n_paths, &capacity, sizeof *paths);
    if (ok) {
        paths[n_paths++] = path;
        if (n_paths == 1)
            replace_handlers(SIG_DFL, remove_unfinished);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

void unfinished_drop(const char *path)
{
    sigset_t old;
    block(&old);
    size_t n = 0;
    for (size_t i = 0; i < n_paths; i++) {
        if (paths[i] != path)
            paths[n++] = paths[i];
    }
    bool was_last = n_paths > 0 && n == 0;
    n_paths = n;
    if (was_last) {
        replace_handlers(remove_unfinished, SIG_DFL);
        free((void *)paths);
        paths = NULL;
        capacity = 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}
