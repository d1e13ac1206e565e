/* What the server and systemd tell each other: sockets that are listened on already, "ready", "stopping", the watchdog.
 * Without systemd, whose environment variables say that it is there, nothing happens. */
#ifndef TUTTI_SERVER_HTTP_SUPERVISOR_H
#define TUTTI_SERVER_HTTP_SUPERVISOR_H

#include "base/error.h"

struct supervisor;
struct event_base;

/* Starts the watchdog where one is wanted: is_alive is asked four times in each of its periods, and told to systemd as long as
 * it is true. *out is the caller's, for supervisor_free(). */
MUST_CHECK enum tutti_status supervisor_new(struct supervisor **out, struct event_base *base,
                                            bool (*is_alive)(void *user), void *user,
                                            struct tutti_error *err);
void supervisor_free(struct supervisor *supervisor); /* NULL is allowed */

/* status: a line for "systemctl status". */
void supervisor_ready(const char *status);
void supervisor_reloading(void); /* until supervisor_ready() */
void supervisor_stopping(void);

/* The sockets that this process was started with: fds[0..return-1], the caller's. */
MUST_CHECK enum tutti_status supervisor_sockets(int *fds, int max, int *n, struct tutti_error *err);

#endif
