/* supervisor.h for builds without libsystemd. If systemd's environment variables request a function,
 * an error or a log line says that this build lacks it. */
#include "base/log.h"
#include "server/http/supervisor.h"

#include <stdlib.h>

enum tutti_status supervisor_new(struct supervisor **out, struct event_base *base,
                                 bool (*is_alive)(void *user), void *user, struct tutti_error *err)
{
    (void)base, (void)is_alive, (void)user, (void)err;
    if (getenv("NOTIFY_SOCKET") || getenv("WATCHDOG_USEC"))
        log_warn("built without libsystemd: systemd gets no notifications, and its watchdog would end this "
                 "process; install libsystemd-dev and build again");
    *out = NULL;
    return TUTTI_OK;
}

void supervisor_free(struct supervisor *supervisor)
{
    (void)supervisor;
}

void supervisor_ready(const char *status)
{
    (void)status;
}

void supervisor_reloading(void)
{
}

void supervisor_stopping(void)
{
}

enum tutti_status supervisor_sockets(int *fds, int max, int *n, struct tutti_error *err)
{
    (void)fds, (void)max;
    *n = 0;
    if (getenv("LISTEN_FDS"))
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "LISTEN_FDS is set, but this tutti was built without libsystemd, which takes over inherited "
            "sockets; install libsystemd-dev and build again");
    return TUTTI_OK;
}
