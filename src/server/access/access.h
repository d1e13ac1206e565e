/* The access log: one line for each request, as text or, with LOG_JSON, as JSON
 * (docs/operations.md). */
#ifndef TUTTI_SERVER_ACCESS_ACCESS_H
#define TUTTI_SERVER_ACCESS_ACCESS_H

#include "server/http/http.h"

/* status: of the reply, or the log's code for a client that has disconnected. */
void access_log(const struct http_conn *conn, int status, bool is_complete);

#endif
