/* GET /slots: what runs and what waits, for monitors. Each entry is one request; none has a text of it. */
#ifndef TUTTI_SERVER_SLOTS_H
#define TUTTI_SERVER_SLOTS_H

#include "server/app.h"

/* Entries of a reply: those of the requests that came first. The header X-Total-Count has the number of all. */
enum { SLOTS_MAX = 1000 };

void slots_request(struct app *app, struct http_conn *conn);

/* Sends a list, which is released. n: of all. */
void slots_reply(struct http_conn *conn, json_t *list, size_t n);

/* A request that has no job: it waits for its model. */
json_t *slots_waiting(const struct http_conn *conn, const char *model);

#endif
