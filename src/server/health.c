/* GET /health and GET /ready: whether the process works, and whether it is to get requests.
 *
 * They differ where a server is alive but must not get new requests: it drains, or its queue is full. Whoever
 * restarts a process that does not answer (a liveness probe) asks /health, and whoever chooses where requests
 * go (a load balancer, a readiness probe) asks /ready. While the model is being loaded both say 503, as
 * clients of llama-server and vLLM that wait for /health expect. */
#include "server/models/model_set.h"

#include <string.h>

static bool is_loading(const struct app *app)
{
    return !app->engine && !app->models;
}

static void reply_state(struct app *app, struct http_conn *conn, int status, const char *state)
{
    if (status == 503)
        http_header(conn, "Retry-After", "1");
    app_reply_json(conn, status,
                   json_pack("{s:s, s:o*}", "status", state, "models",
                             app->models && status == 200 ? model_set_states(app->models) : NULL));
}

void health_request(struct app *app, struct http_conn *conn)
{
    if (is_loading(app))
        reply_state(app, conn, 503, "loading");
    else
        app_reply_json(conn, 200, json_pack("{s:s}", "status", "ok"));
}

/* The processes of several models have queues of their own, of which one may be full. */
static bool is_full(struct app *app)
{
    struct tutti_stats stats;
    if (app->models)
        return false;
    tutti_engine_stats(app->engine, &stats);
    return stats.is_full;
}

void ready_request(struct app *app, struct http_conn *conn)
{
    const char *query = http_request(conn)->head.query;
    bool ignores_queue = !strcmp(query, "queue=ignore");
    struct tutti_error err;
    if (*query && !ignores_queue) {
        error_set(&err, TUTTI_E_ARGUMENT, "/ready takes only ?queue=ignore, found ?%.64s", query);
        app_reply_error(conn, 400, &err);
    } else if (is_loading(app)) {
        reply_state(app, conn, 503, "loading");
    } else if (app->is_leaving) {
        reply_state(app, conn, 503, "draining");
    } else if (!ignores_queue && is_full(app)) {
        reply_state(app, conn, 503, "full");
    } else {
        reply_state(app, conn, 200, "ready");
    }
}
