/* TLS on accepted connections: OpenSSL under libevent's buffered sockets.
 *
 * The files can be read anew while connections live: each keeps the certificate that it was opened with. Everything
 * runs on the thread of the event loop. */
#ifndef TUTTI_SERVER_HTTP_TLS_H
#define TUTTI_SERVER_HTTP_TLS_H

#include "base/error.h"

struct tls;
struct bufferevent;
struct event_base;

/* PEM files; strings are borrowed as long as the struct tls lives. */
struct tls_files {
    const char *cert; /* the server's certificate, then those between it and a root that clients know */
    const char *key;  /* its private key, without a passphrase */
    /* NULL: anyone may connect; else those whose certificate one of these has signed. */
    const char *client_ca;
};

/* TUTTI_E_IO: a file cannot be read. TUTTI_E_FORMAT: not what is expected, or the key belongs to another certificate. The text
 * names the file. *out is the caller's, for tls_free(). */
MUST_CHECK enum tutti_status tls_new(struct tls **out, const struct tls_files *files,
                                     struct tutti_error *err);
void tls_free(struct tls *tls); /* connections may live on; NULL is allowed */

/* Reads the files again, for connections to come. After a failure nothing has changed. */
MUST_CHECK enum tutti_status tls_reload(struct tls *tls, struct tutti_error *err);

/* When the server's certificate ends, Unix time. */
int64_t tls_end_time(const struct tls *tls);

/* A buffered socket that begins with the handshake, whose end is BEV_EVENT_CONNECTED; it owns fd from then on. NULL: out of
 * memory, and fd is still the caller's. */
struct bufferevent *tls_accept(struct tls *tls, struct event_base *base, int fd);

/* Tells the client that nothing follows. Does nothing where the connection is a plain one. */
void tls_say_end(struct bufferevent *bev);

/* Why the handshake failed, for a log; a constant string. */
const char *tls_why(struct bufferevent *bev);

#endif
