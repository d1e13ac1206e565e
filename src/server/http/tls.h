/* TLS on accepted connections: OpenSSL under libevent's buffered sockets.
 *
 * The files can be reloaded while connections exist: each connection keeps the certificate that it
 * was opened with. Everything runs on the thread of the event loop. */
#ifndef TUTTI_SERVER_HTTP_TLS_H
#define TUTTI_SERVER_HTTP_TLS_H

#include "base/error.h"

struct tls;
struct bufferevent;
struct event_base;

/* PEM files; strings are borrowed until tls_free(). */
struct tls_files {
    const char *cert; /* the server's certificate, then the intermediate ones */
    const char *key;  /* its private key, without a passphrase */
    /* NULL: any client may connect; else clients need a certificate signed by a CA in this file. */
    const char *client_ca;
};

/* TUTTI_E_IO: a file cannot be read. TUTTI_E_FORMAT: a file is invalid, or the key does not match
 * the certificate. The text names the file. *out is the caller's, for tls_free(). */
MUST_CHECK enum tutti_status tls_new(struct tls **out, const struct tls_files *files,
                                     struct tutti_error *err);
void tls_free(struct tls *tls); /* connections may exist longer; NULL is allowed */

/* Reloads the files for new connections. On failure nothing changes. */
MUST_CHECK enum tutti_status tls_reload(struct tls *tls, struct tutti_error *err);

/* When the server's certificate expires, Unix time. */
int64_t tls_end_time(const struct tls *tls);

/* Creates a buffered socket that starts with the handshake; BEV_EVENT_CONNECTED reports its end. It
 * owns fd. NULL: out of memory, and fd is still the caller's. */
struct bufferevent *tls_accept(struct tls *tls, struct event_base *base, int fd);

/* Sends close_notify. Does nothing on a plain connection. */
void tls_say_end(struct bufferevent *bev);

/* Why the handshake failed, for a log; a constant string. */
const char *tls_why(struct bufferevent *bev);

#endif
