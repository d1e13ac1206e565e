/* Listening sockets: TCP, Unix, and those inherited from systemd. */
#ifndef TUTTI_SERVER_HTTP_LISTEN_H
#define TUTTI_SERVER_HTTP_LISTEN_H

#include "server/http/http.h"
#include "server/server.h"

struct listeners;

/* Listens on the addresses in options, or on sockets inherited from systemd, and passes connections
 * to http; also on options->metrics_listen. *out is the caller's, for listeners_close().
 * TUTTI_E_IO: the text names the address and the system's reason. */
MUST_CHECK enum tutti_status listeners_open(struct listeners **out, struct event_base *base,
                                            struct http *http, const struct server_options *options,
                                            struct tutti_error *err);
void listeners_close(struct listeners *listeners); /* removes a Unix socket's file; NULL is allowed */

/* True: the sockets were inherited from systemd. */
bool listeners_are_inherited(const struct listeners *listeners);

/* True: other machines can connect to that listener: its address is neither loopback nor a Unix
 * socket. */
bool listeners_are_reachable(const struct listeners *listeners, enum http_service service);

/* The first address: "http://127.0.0.1:8080", "https://..." or "unix:/run/tutti.sock". */
const char *listeners_address(const struct listeners *listeners);
/* The address of the metrics listener; "" if there is none. */
const char *listeners_metrics_address(const struct listeners *listeners);

/* Raises the limit of open files to what the system allows: each client needs one. */
void raise_open_files(void);

#endif
