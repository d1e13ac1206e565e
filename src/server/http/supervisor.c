#include "server/http/supervisor.h"

#include "base/log.h"

#include <event2/event.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <time.h>

struct supervisor {
    struct event *watchdog; /* NULL: none */
    bool (*is_alive)(void *user);
    void *user;
};

static void notify(const char *state)
{
    int result = sd_notify(0, state); /* 0: not under systemd */
    if (result < 0)
        log_warn("cannot notify systemd \"%.32s\": %s", state, strerror(-result));
}

static void on_watchdog(evutil_socket_t fd, short what, void *arg)
{
    const struct supervisor *supervisor = arg;
    (void)fd, (void)what;
    if (supervisor->is_alive(supervisor->user))
        notify("WATCHDOG=1");
}

enum tutti_status supervisor_new(struct supervisor **out, struct event_base *base,
                                 bool (*is_alive)(void *user), void *user, struct tutti_error *err)
{
    uint64_t period_us = 0;
    struct supervisor *supervisor = calloc(1, sizeof *supervisor);
    if (!supervisor)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    supervisor->is_alive = is_alive;
    supervisor->user = user;
    int wanted = sd_watchdog_enabled(0, &period_us);
    if (wanted < 0)
        log_warn("WATCHDOG_USEC and WATCHDOG_PID are invalid: no watchdog");
    if (wanted > 0) {
        struct timeval tv = { .tv_sec = (time_t)(period_us / 4 / 1000000),
                              .tv_usec = (suseconds_t)(period_us / 4 % 1000000) };
        supervisor->watchdog = event_new(base, -1, EV_PERSIST, on_watchdog, supervisor);
        if (!supervisor->watchdog || event_add(supervisor->watchdog, &tv)) {
            supervisor_free(supervisor);
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
        }
    }
    *out = supervisor;
    return TUTTI_OK;
}

void supervisor_free(struct supervisor *supervisor)
{
    if (!supervisor)
        return;
    if (supervisor->watchdog)
        event_free(supervisor->watchdog);
    free(supervisor);
}

void supervisor_ready(const char *status)
{
    char state[1024];
    snprintf(state, sizeof state, "READY=1\nSTATUS=%s", status);
    notify(state);
}

void supervisor_reloading(void)
{
    struct timespec now;
    char state[128];
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
             (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u);
    notify(state);
}

void supervisor_stopping(void)
{
    notify("STOPPING=1\nSTATUS=draining");
}

enum tutti_status supervisor_sockets(int *fds, int max, int *n, struct tutti_error *err)
{
    int found = sd_listen_fds(0);
    if (found < 0)
        return error_set(err, TUTTI_E_ARGUMENT, "LISTEN_FDS and LISTEN_PID are invalid: %s",
                         strerror(-found));
    if (found > max)
        return error_set(err, TUTTI_E_LIMIT, "found %d sockets in LISTEN_FDS, expected %d at most", found,
                         max);
    for (int i = 0; i < found; i++) {
        fds[i] = SD_LISTEN_FDS_START + i;
        if (sd_is_socket(fds[i], AF_UNSPEC, SOCK_STREAM, 1) <= 0)
            return error_set(err, TUTTI_E_ARGUMENT,
                             "descriptor %d of LISTEN_FDS is not a listening stream socket", fds[i]);
    }
    *n = found;
    return TUTTI_OK;
}
