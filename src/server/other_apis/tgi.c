/* Hugging Face's Text Generation Inference: POST /generate, /generate_stream and /, GET /info.
 * https://huggingface.github.io/text-generation-inference/ */
#include "base/system/clock.h"
#include "server/openai/generated.h"
#include "server/other_apis/inputs_request.h"

#include <stdio.h>
#include <string.h>

/* ---- errors ---- */

static int status_of(enum tutti_status status, const char **type)
{
    switch (status) {
    case TUTTI_E_ARGUMENT:
    case TUTTI_E_LIMIT:
    case TUTTI_E_UNSUPPORTED:
    case TUTTI_E_NOT_FOUND:
        *type = "validation";
        return 422;
    case TUTTI_E_BUSY:
    case TUTTI_E_TIMEOUT:
        *type = "overloaded";
        return 429;
    case TUTTI_E_CLOSED:
        *type = "overloaded";
        return 503;
    case TUTTI_E_CANCELLED:
    case TUTTI_E_MEMORY:
        *type = "incomplete_generation";
        return 500;
    default:
        *type = "generation";
        return 424;
    }
}

static void tgi_fail(struct app *app, struct job *job, struct http_conn *conn, const struct tutti_error *err)
{
    (void)app, (void)job;
    const char *type;
    int status = status_of(err->status, &type);
    json_t *value = json_pack("{s:o, s:s}", "error", json_text(err->text, strlen(err->text)), "error_type",
                              type);
    app_fail(conn, status, "data: ", value, "\n\n", err);
}

/* ---- values ---- */

static json_t *seed_of(const struct job *job)
{
    return job->req.inputs.is_sampled ? json_integer((json_int_t)job->req.sampling.seed) : json_null();
}

static json_t *answer_text(const struct job *job, const struct reply_choice *choice)
{
    struct buf text = { 0 };
    bool ok = (!job->req.inputs.full_text || generated_add_prompt(job, &text)) &&
              buf_add(&text, choice->text.bytes, choice->text.n_bytes);
    json_t *value = ok ? json_text(text.bytes, text.n_bytes) : NULL;
    buf_clear(&text);
    return value;
}

/* {"finish_reason", "generated_tokens", "seed", "prefill", "tokens", "top_tokens"} */
static json_t *details_of(const struct job *job, const struct reply_choice *choice, bool has_text)
{
    json_t *prefill = job->subs[0].prompt ? json_incref(job->subs[0].prompt) : json_array();
    return json_pack("{s:s, s:I, s:o, s:o, s:O, s:o*, s:O*}", "finish_reason", generated_finish(choice),
                     "generated_tokens", (json_int_t)json_array_size(choice->tokens), "seed", seed_of(job),
                     "prefill", prefill, "tokens", choice->tokens, "generated_text",
                     has_text ? answer_text(job, choice) : NULL, "top_tokens",
                     job->req.top_logprobs > 0 ? choice->tops : NULL);
}

/* The choice with the highest mean log-probability. */
static size_t best_choice(const struct job *job)
{
    size_t best = 0;
    double best_score = 0;
    for (size_t i = 0; i < job->n_choices; i++) {
        const struct reply_choice *choice = &job->choices[i];
        double score = choice->n_scored > 0 ? choice->logprob_sum / (double)choice->n_scored : 0;
        if (i == 0 || score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

static json_t *reply_value(const struct job *job)
{
    size_t best = best_choice(job);
    const struct reply_choice *choice = &job->choices[best];
    json_t *value = json_pack("{s:o}", "generated_text", answer_text(job, choice));
    if (!value || !(job->req.inputs.details || job->req.inputs.input_details))
        return value;
    json_t *details = details_of(job, choice, false), *others = json_array();
    for (size_t i = 0; i < job->n_choices; i++)
        if (i != best)
            json_array_append_new(others, details_of(job, &job->choices[i], true));
    int failed = json_array_size(others) != job->n_choices - 1;
    if (job->n_choices > 1)
        failed |= json_object_set_new(details, "best_of_sequences", others);
    else
        json_decref(others);
    failed |= json_object_set_new(value, "details", details);
    if (!failed)
        return value;
    json_decref(value);
    return NULL;
}

/* ---- replies ---- */

static void add_number_header(struct http_conn *conn, const char *name, size_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%zu", number);
    http_header(conn, name, text);
}

static bool write_reply(struct job *job, struct buf *out)
{
    json_t *value = reply_value(job);
    return job_write_json(out, value && job->req.inputs.is_list ? json_pack("[o]", value) : value, "");
}

static void finish_whole(struct job *job)
{
    struct http_conn *conn = job->conn;
    http_header(conn, "x-compute-type", "cpu");
    add_number_header(conn, "x-total-time", (size_t)((clock_now_us() - http_request(conn)->start_us) / 1000));
    add_number_header(conn, "x-prompt-tokens", job_n_prompt_tokens(job, NULL));
    add_number_header(conn, "x-generated-tokens", json_array_size(job->choices[best_choice(job)].tokens));
    job_reply(job, write_reply);
}

static bool stream_token(struct job *job, struct reply_choice *choice, size_t i, bool is_last)
{
    json_t *token = json_array_get(choice->tokens, i), *details = json_null(), *text = json_null();
    if (is_last) {
        text = answer_text(job, choice);
        if (job->req.inputs.details)
            details = json_pack("{s:s, s:I, s:o, s:I}", "finish_reason", generated_finish(choice),
                                "generated_tokens", (json_int_t)json_array_size(choice->tokens), "seed",
                                seed_of(job), "input_length", (json_int_t)job_n_prompt_tokens(job, NULL));
    }
    json_t *tops = job->req.top_logprobs > 0 ? json_array_get(choice->tops, i) : NULL;
    json_t *value = json_pack("{s:I, s:O, s:o, s:o, s:O*}", "index", (json_int_t)i + 1, "token", token,
                              "generated_text", text, "details", details, "top_tokens", tops);
    return value && job_stream_json(job, "data: ", value, "\n\n");
}

/* Each token is an event of the stream; the last one has the whole text. An answer that ends
 * without a token ends with an event for an empty token. */
static void stream_event(struct job *job, struct reply_choice *choice, const struct tutti_event *event,
                         size_t begin)
{
    bool is_end = event->finish != TUTTI_FINISH_NONE, ok = true;
    if (is_end && json_array_size(choice->tokens) == begin)
        ok = json_array_append_new(choice->tokens, json_pack("{s:i, s:s, s:f, s:b}", "id", 0, "text", "",
                                                             "logprob", 0.0, "special", 1)) == 0 &&
             json_array_append_new(choice->tops, json_array()) == 0;
    size_t n = json_array_size(choice->tokens);
    if (n > begin)
        job_begin_stream(job);
    for (size_t i = begin; ok && i < n && job->conn; i++)
        ok = stream_token(job, choice, i, is_end && i + 1 == n);
    if (!ok)
        job_fail_memory(job);
}

static bool tgi_read_prompt(const struct job *job, struct submission *sub, const struct tutti_event *event)
{
    sub->prompt = generated_prefill(job, event);
    return sub->prompt != NULL;
}

static void tgi_take_event(struct job *job, size_t index, struct reply_choice *choice,
                           const struct tutti_event *event)
{
    (void)index;
    size_t begin = json_array_size(choice->tokens);
    if (!generated_add(job, choice, event, true))
        job_fail_memory(job);
    else if (job->req.stream)
        stream_event(job, choice, event, begin);
}

static void tgi_finish(struct job *job)
{
    if (job->req.stream)
        http_stream_end(job_take_conn(job));
    else
        finish_whole(job);
}

/* ---- requests ---- */

/* POST /generate replies with the whole answer, /generate_stream with a stream; for / the field
 * "stream" decides. */
static enum tutti_status tgi_read(struct api_request *req, struct app *app, const struct intake_body *body,
                                  struct tutti_error *err)
{
    bool is_compat = !strcmp(body->path, "/"), is_stream = !strcmp(body->path, "/generate_stream");
    const struct inputs_rules rules = { .stream = is_compat   ? INPUTS_STREAM_BY_BODY
                                                  : is_stream ? INPUTS_STREAM
                                                              : INPUTS_WHOLE };
    enum tutti_status st = inputs_request_read(req, &rules, app->model, body->text, body->n_bytes, err);
    req->reports_prompt = req->inputs.input_details;
    req->prompt_logprobs = req->inputs.input_details && !app->info.has_bidirectional_prompt;
    req->inputs.is_list = is_compat;
    if (is_compat && !req->inputs.has_full_text) /* default of the original for models that generate text */
        req->inputs.full_text = true;
    const json_t *id = json_object_get(json_object_get(req->root, "parameters"), "adapter_id");
    if (st != TUTTI_OK || !json_is_string(id))
        return st;
    st = inputs_set_model(req, json_sprintf("%s:%s", app->model_id, json_string_value(id)), err);
    if (st != TUTTI_OK || app_find_model(app, req->model, &req->adapter, NULL) == TUTTI_OK)
        return st;
    return error_set_param(err, TUTTI_E_NOT_FOUND, "adapter_id", "adapter_id: there is no adapter \"%.128s\"",
                           json_string_value(id));
}

const struct job_api TGI = { .id_prefix = "tgi-",
                             .read = tgi_read,
                             .read_prompt = tgi_read_prompt,
                             .event = tgi_take_event,
                             .finish = tgi_finish,
                             .fail = tgi_fail };

void tgi_info_request(struct app *app, struct http_conn *conn)
{
    struct tutti_stats stats;
    tutti_engine_stats(app->engine, &stats);
    app_reply_json(
        conn, 200,
        json_pack("{s:s, s:n, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:n, s:n}",
                  "model_id", app->model_id, "model_sha", "model_pipeline_tag", "text-generation",
                  "model_dtype", app->info.weight_type, "model_device_type", app->info.device,
                  "max_concurrent_requests", app->options->max_requests, "max_best_of", LIMIT_CHOICES,
                  "max_stop_sequences", LIMIT_STOPS, "max_input_tokens", stats.max_context - 1,
                  "max_total_tokens", stats.max_context, "validation_workers", 1, "max_client_batch_size", 1,
                  "router", "tutti", "version", TUTTI_VERSION, "sha", "docker_label"));
}
