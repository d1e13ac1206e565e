/* Listening sockets: TCP, Unix, and those that systemd has opened. */
#ifndef TUTTI_SERVER_HTTP_LISTEN_H
#define TUTTI_SERVER_HTTP_LISTEN_H

#include "server/http/http.h"
#include "server/server.h"

struct listeners;

/* Listens where options say, or on the sockets that the process was started with, and hands connections to http; also on
 * options->metrics_listen. *out is the caller's, for listeners_close().
 * TUTTI_E_IO: the text names the address and the system's reason. */
MUST_CHECK enum tutti_status listeners_open(struct listeners **out, struct event_base *base,
                                            struct http *http, const struct server_options *options,
                                            struct tutti_error *err);
void listeners_close(struct listeners *listeners); /* removes a Unix socket's file; NULL is allowed */

/* The sockets are systemd's. */
bool listeners_are_inherited(const struct listeners *listeners);

/* Clients of other machines can connect through that door: an address is not a loopback address, nor a Unix socket. */
bool listeners_are_reachable(const struct listeners *listeners, enum http_door door);

/* "http://127.0.0.1:8080", "https://..." or "unix:/run/tutti.sock"; of several the first. */
const char *listeners_address(const struct listeners *listeners);
/* The same of the listener for metrics; "" where there is none. */
const char *listeners_metrics_address(const struct listeners *listeners);

/* Lets the process open as many files as the system allows it: each client is one. */
void raise_open_files(void);

#endif
