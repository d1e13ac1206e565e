/* The API of MindSpore's llm-serving: https://gitee.com/mindspore/llm-serving
 *
 * Whole answers are one line of JSON. Streams are lines of JSON with the content type
 * text/event-stream; if return_protocol is given and is not "sse", each line begins with "data:".
 * The project's own Python client requests "sse" but understands only lines with "data:", so it
 * gets those. The name in the path may be an adapter's; any other name means the model, because its
 * clients use the name of a model family there. */
#include "base/text.h"
#include "server/openai/generated.h"
#include "server/other_apis/inputs_request.h"

#include <string.h>

enum { DEFAULT_NEW_TOKENS = 300, DEFAULT_TOP_K = 3 }; /* as in llm-serving */

/* ---- errors ---- */

static void llm_serving_fail(struct app *app, struct job *job, struct http_conn *conn,
                             const struct tutti_error *err)
{
    (void)app, (void)job;
    int status = json_error_status(err->status);
    json_t *value = json_pack("{s:o, s:s?}", "error", json_text(err->text, strlen(err->text)), "param",
                              err->param[0] ? err->param : NULL);
    app_fail(conn, status == 400 ? 422 : status, "", value, "\n", err); /* 422: as in FastAPI */
}

/* ---- values ---- */

/* The most probable tokens for token i if requested; else the token itself. */
static json_t *tops_of(const struct job *job, const struct reply_choice *choice, size_t i)
{
    if (job->req.top_logprobs > 0)
        return json_incref(json_array_get(choice->tops, i));
    return json_pack("[O]", json_array_get(choice->tokens, i));
}

/* {"generated_text", "finish_reason", "generated_tokens", "prefill", "seed", "tokens",
 * "top_tokens", "details"} */
static json_t *whole_value(const struct job *job, const struct reply_choice *choice)
{
    json_t *tokens = choice->tokens ? json_incref(choice->tokens) : json_array(), *prefill = json_array();
    json_t *tops = json_array(), *first = json_array_get(tokens, 0);
    size_t n = json_array_size(tokens), n_tops = job->req.top_logprobs > 0 ? n : n > 0;
    int failed = first ? json_array_append(prefill, first) : 0;
    for (size_t i = 0; i < n_tops; i++)
        failed |= json_array_append_new(tops, tops_of(job, choice, i));
    json_t *value = json_pack("{s:o, s:s, s:I, s:o, s:I, s:o, s:o, s:n}", "generated_text",
                              json_text(choice->text.bytes, choice->text.n_bytes), "finish_reason",
                              generated_finish(choice), "generated_tokens", (json_int_t)n, "prefill", prefill,
                              "seed", (json_int_t)(job->req.inputs.is_sampled ? job->req.sampling.seed : 0),
                              "tokens", tokens, "top_tokens", tops, "details");
    if (!failed)
        return value;
    json_decref(value);
    return NULL;
}

/* Sends one line: an envelope with protocol "sse", else the value after "data:". */
static bool stream_line(struct job *job, json_t *value)
{
    if (job->req.inputs.has_other_protocol)
        return value && job_stream_json(job, "data:", value, "\n");
    value = json_pack("{s:s, s:i, s:[o]}", "event", "message", "retry", 30000, "data", value);
    return value && job_stream_json(job, "", value, "\n");
}

/* ---- replies ---- */

static void llm_serving_take_event(struct job *job, size_t index, struct reply_choice *choice,
                                   const struct tutti_event *event)
{
    (void)index;
    size_t begin = json_array_size(choice->tokens);
    bool ok = generated_add(job, choice, event, false);
    size_t n = json_array_size(choice->tokens);
    if (ok && job->req.stream)
        job_begin_stream(job);
    for (size_t i = begin; ok && job->req.stream && i < n && job->conn; i++) {
        json_t *token = json_array_get(choice->tokens, i);
        ok = stream_line(job, json_pack("{s:n, s:O, s:O, s:o}", "details", "generated_text",
                                        json_object_get(token, "text"), "tokens", token, "top_tokens",
                                        tops_of(job, choice, i)));
    }
    if (!ok)
        job_fail_memory(job);
}

static bool write_reply(struct job *job, struct buf *out)
{
    return job_write_json(out, whole_value(job, &job->choices[0]), "\n");
}

static void llm_serving_finish(struct job *job)
{
    const struct reply_choice *choice = &job->choices[0];
    bool ok = true;
    if (job->req.stream) {
        if (job->req.inputs.full_text)
            ok = stream_line(job, whole_value(job, choice));
        if (ok)
            http_stream_end(job_take_conn(job));
        else
            job_fail_memory(job);
        return;
    }
    job_reply(job, write_reply);
}

/* ---- requests ---- */

/* The adapter named in the path, if there is one of that name. */
static enum tutti_status read_name(struct api_request *req, const struct app *app, const char *name,
                                   size_t n_name, struct tutti_error *err)
{
    size_t n_id = strlen(app->model_id);
    if (n_name <= n_id || strncmp(name, app->model_id, n_id) || name[n_id] != ':')
        return TUTTI_OK;
    return inputs_set_model(req, json_text(name, n_name), err);
}

/* POST /models/NAME/generate replies with the whole answer, /models/NAME/generate_stream with a stream;
 * for /models/NAME the field "stream" decides. */
static enum tutti_status llm_serving_read(struct api_request *req, struct app *app,
                                          const struct intake_body *body, struct tutti_error *err)
{
    static const char WHOLE[] = "/generate", STREAM[] = "/generate_stream", PREFIX[] = "/models/";
    static const char OWN_CLIENT[] = "mindspoer_serving/"; /* its own spelling */
    const char *name = body->path + sizeof PREFIX - 1;
    bool is_whole = text_ends_with(name, WHOLE), is_stream = text_ends_with(name, STREAM);
    size_t n_name = strlen(name) - (is_whole ? sizeof WHOLE - 1 : is_stream ? sizeof STREAM - 1 : 0);
    const struct inputs_rules rules = { .is_lenient = true,
                                        .max_new_tokens = DEFAULT_NEW_TOKENS,
                                        .top_k = DEFAULT_TOP_K,
                                        .stream = is_whole    ? INPUTS_WHOLE
                                                  : is_stream ? INPUTS_STREAM
                                                              : INPUTS_STREAM_BY_BODY };
    enum tutti_status st = inputs_request_read(req, &rules, app->model, body->text, body->n_bytes, err);
    req->n = 1; /* best_of does not exist in this API */
    if (!strncmp(body->agent, OWN_CLIENT, sizeof OWN_CLIENT - 1))
        req->inputs.has_other_protocol = true;
    return st == TUTTI_OK ? read_name(req, app, name, n_name, err) : st;
}

const struct job_api LLM_SERVING = { .id_prefix = "llms-",
                                     .read = llm_serving_read,
                                     .event = llm_serving_take_event,
                                     .finish = llm_serving_finish,
                                     .fail = llm_serving_fail };

/* ---- statistics ---- */

/* True: the client accepts text/event-stream or, as llm-serving's own client, sends Cache-Control:
 * no-cache. */
static bool reads_events(const struct http_conn *conn)
{
    const char *accept = http_head_find(&http_request(conn)->head, "Accept");
    const char *cache = http_head_find(&http_request(conn)->head, "Cache-Control");
    return (accept && strstr(accept, "text/event-stream")) || (cache && strstr(cache, "no-cache"));
}

/* Replies with JSON; clients that accept text/event-stream get it as a server-sent event. */
static void reply_figure(struct http_conn *conn, json_t *value)
{
    if (reads_events(conn))
        app_reply_value(conn, 200, "text/event-stream; charset=utf-8", "data: ", value, "\r\n\r\n");
    else
        app_reply_value(conn, 200, "application/json", "", value, "\n");
}

/* GET /serving/get_bs: the sequences in the batch; /serving/get_request_numbers: the queue. */
void llm_serving_count_request(struct app *app, struct http_conn *conn)
{
    struct tutti_stats stats;
    tutti_engine_stats(app->engine, &stats);
    bool is_batch = text_ends_with(http_request(conn)->head.path, "/get_bs");
    json_int_t n = (json_int_t)(is_batch ? stats.n_running : stats.n_waiting);
    reply_figure(conn, json_pack("{s:s, s:i, s:I}", "event", "message", "retry", 30000, "data", n));
}

void llm_serving_info_request(struct app *app, struct http_conn *conn)
{
    struct tutti_stats stats;
    tutti_engine_stats(app->engine, &stats);
    reply_figure(conn,
                 json_pack("{s:s, s:I, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:s}", "docker_label", "",
                           "max_batch_total_tokens",
                           (json_int_t)stats.kv_pages_total * (json_int_t)stats.kv_page_tokens,
                           "max_concurrent_requests", app->options->max_requests, "max_input_length",
                           stats.max_context - 1, "max_total_tokens", stats.max_context, "model_device_type",
                           "CPU", "model_dtype", app->info.weight_type, "model_id", app->model_id,
                           "model_pipeline_tag", "text-generation", "version", TUTTI_VERSION));
}
