/* Several models behind one server: a process for each, started when a request names the model, stopped to
 * make room for another or after a time without requests, and started again when it dies. Requests wait
 * meanwhile; none is lost. Thread of the event loop only. */
#ifndef TUTTI_SERVER_MODELS_MODEL_SET_H
#define TUTTI_SERVER_MODELS_MODEL_SET_H

#include "server/app.h"

struct model_set;

/* folder: for the sockets; places and spawner of options are borrowed. */
MUST_CHECK enum tutti_status model_set_new(struct model_set **out, struct app *app,
                                           const struct server_models *models, struct tutti_error *err);
/* Ends all children and waits for them. Connections must be closed before. NULL is allowed. */
void model_set_free(struct model_set *set);

/* Passes the request on to the process of its model. */
void model_set_forward(struct model_set *set, struct http_conn *conn);

/* Replies to GET /v1/models; name: NULL: all. */
void model_set_list(struct model_set *set, struct http_conn *conn, const char *name);

/* {MODEL: "loaded", "loading", "waiting" or "unloaded"} */
json_t *model_set_states(const struct model_set *set);

/* Replies to GET /metrics: own, the server's figures, released; and those of all running children, with the
 * label model. */
void model_set_metrics(struct model_set *set, struct http_conn *conn, struct buf *own);

/* Replies to GET /slots: the requests that wait for a model, and those of all processes. */
void model_set_slots(struct model_set *set, struct http_conn *conn);

/* Starts a new process for each running model whose files have changed; when it is ready it gets the new
 * requests, and the old one ends after its last. */
void model_set_reload(struct model_set *set);

/* Tells all children to reread their keys. */
void model_set_reload_keys(struct model_set *set);

/* TUTTI_E_IO: no process can be started any more, which has ended the server. */
MUST_CHECK enum tutti_status model_set_check(const struct model_set *set, struct tutti_error *err);

/* Requests under way end with an error. */
void model_set_stop(struct model_set *set);

#endif
