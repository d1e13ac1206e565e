/* systemd integration: inherited sockets, and the notifications "ready", "stopping" and watchdog.
 * Without systemd (detected by its environment variables) nothing happens. */
#ifndef TUTTI_SERVER_HTTP_SUPERVISOR_H
#define TUTTI_SERVER_HTTP_SUPERVISOR_H

#include "base/error.h"

struct supervisor;
struct event_base;

/* Starts the watchdog if systemd wants one: is_alive is called four times in each watchdog period,
 * and systemd is notified as long as it returns true. *out is the caller's, for supervisor_free(). */
MUST_CHECK enum tutti_status supervisor_new(struct supervisor **out, struct event_base *base,
                                            bool (*is_alive)(void *user), void *user,
                                            struct tutti_error *err);
void supervisor_free(struct supervisor *supervisor); /* NULL is allowed */

/* status: a line for "systemctl status". */
void supervisor_ready(const char *status);
void supervisor_reloading(void); /* until supervisor_ready() */
void supervisor_stopping(void);

/* The sockets that this process inherited: fds[0..*n-1], owned by the caller. */
MUST_CHECK enum tutti_status supervisor_sockets(int *fds, int max, int *n, struct tutti_error *err);

#endif
