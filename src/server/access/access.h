/* The access log: one line for each request, for people or, with LOG_JSON, for machines (docs/operations.md). */
#ifndef TUTTI_SERVER_ACCESS_ACCESS_H
#define TUTTI_SERVER_ACCESS_ACCESS_H

#include "server/http/http.h"

/* status: that of the reply, or what the log calls a client that has gone. */
void access_log(const struct http_conn *conn, int status, bool is_complete);

#endif
