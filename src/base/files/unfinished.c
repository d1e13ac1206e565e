#include "base/files/unfinished.h"

#include "base/containers/array.h"
#include "base/system/ending.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

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
    signal(number, ending_default());
    raise(number);
    errno = saved;
}

bool unfinished_add(const char *path)
{
    sigset_t old;
    ending_block(&old);
    bool ok = array_grow(&paths, n_paths, &capacity, sizeof *paths);
    if (ok) {
        paths[n_paths++] = path;
        if (n_paths == 1)
            ending_replace(ending_default(), remove_unfinished);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

void unfinished_drop(const char *path)
{
    sigset_t old;
    ending_block(&old);
    size_t n = 0;
    for (size_t i = 0; i < n_paths; i++) {
        if (paths[i] != path)
            paths[n++] = paths[i];
    }
    bool was_last = n_paths > 0 && n == 0;
    n_paths = n;
    if (was_last) {
        ending_replace(remove_unfinished, ending_default());
        free((void *)paths);
        paths = NULL;
        capacity = 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}
