/* POST /infill, as llama-server's:
 * https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md */
#include "server/job.h"
#include "server/openai/openai_reply.h"
#include "server/requests/infill_request.h"

#include <string.h>

/* ---- where the answer ends ---- */

static bool is_indentation(char c)
{
    return c == ' ' || c == '\t';
}

/* Adds the first n bytes of held to the text. */
static bool release(struct reply_choice *choice, size_t n)
{
    struct buf *held = &choice->held;
    if (n == 0)
        return true;
    if (!buf_add(&choice->text, held->bytes, n))
        return false;
    memmove(held->bytes, held->bytes + n, held->n_bytes - n);
    buf_truncate(held, held->n_bytes - n);
    return true;
}

/* Moves held text to the text, except the indentation of a line that may be too small. *is_less: the line
 * after the text is indented less than n_indent, which ends the answer before it. Empty lines do not. */
static bool release_lines(struct reply_choice *choice, size_t n_indent, bool is_end, bool *is_less)
{
    const struct buf *text = &choice->text, *held = &choice->held;
    while (held->n_bytes > 0) {
        bool is_line = n_indent > 0 && text->n_bytes > 0 && text->bytes[text->n_bytes - 1] == '\n';
        const char *line_end = memchr(held->bytes, '\n', held->n_bytes);
        size_t n_blank = 0, n = line_end ? (size_t)(line_end - held->bytes) + 1 : held->n_bytes;
        while (is_line && n_blank < held->n_bytes && is_indentation(held->bytes[n_blank]))
            n_blank++;
        if (is_line && n_blank == held->n_bytes && !is_end)
            return true;
        bool is_empty = n_blank < held->n_bytes && strchr("\r\n", held->bytes[n_blank]);
        *is_less = is_line && n_blank < n_indent && n_blank < held->n_bytes && !is_empty;
        if (*is_less)
            return true;
        if (!release(choice, n))
            return false;
    }
    return true;
}

/* ---- values ---- */

static json_t *timings_value(const struct job *job)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached), n_generated = job_n_generated(job);
    double first_ms = (double)job->ttft_us / 1e3, queue_ms = (double)job->queue_us / 1e3;
    double total_ms = (double)job->total_us / 1e3;
    bool has_token = job->ttft_us > 0;
    double prompt_ms = (has_token ? first_ms : total_ms) - queue_ms;
    double generated_ms = has_token ? total_ms - first_ms : 0;
    size_t n_computed = n_prompt - n_cached;
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n", (json_int_t)n_cached,
                     "prompt_n", (json_int_t)n_computed, "prompt_ms", prompt_ms, "prompt_per_token_ms",
                     n_computed > 0 ? prompt_ms / (double)n_computed : 0, "prompt_per_second",
                     prompt_ms > 0 ? (double)n_computed * 1e3 / prompt_ms : 0, "predicted_n",
                     (json_int_t)n_generated, "predicted_ms", generated_ms, "predicted_per_token_ms",
                     n_generated > 0 ? generated_ms / (double)n_generated : 0, "predicted_per_second",
                     generated_ms > 0 ? (double)n_generated * 1e3 / generated_ms : 0);
}

static json_t *settings_value(const struct job *job)
{
    const struct api_request *req = &job->req;
    const struct tutti_sampling *s = &req->sampling;
    json_t *stop = json_array();
    for (size_t i = 0; i < req->n_stop; i++)
        json_array_append_new(stop, json_text(req->stop[i].text, req->stop[i].n_bytes));
    return json_pack("{s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:i, s:i, s:o}", "n_ctx",
                     app_max_context(job->app), "n_predict",
                     req->no_answer        ? 0
                     : req->max_tokens > 0 ? req->max_tokens
                                           : -1,
                     "temperature", (double)s->temperature, "top_k", s->top_k, "top_p", (double)s->top_p,
                     "min_p", (double)s->min_p, "typical_p", (double)s->typical_p, "repeat_penalty",
                     (double)s->repetition_penalty, "presence_penalty", (double)s->presence_penalty,
                     "frequency_penalty", (double)s->frequency_penalty, "ignore_eos", req->ignore_eos,
                     "stream", req->stream, "n_indent", req->infill.n_indent, "t_max_predict_ms",
                     req->infill.max_predict_ms, "stop", stop);
}

static const char *stop_type(const struct reply_choice *choice)
{
    if (choice->finish == TUTTI_FINISH_LENGTH)
        return "limit";
    return choice->has_stop_token ? "eos" : "word";
}

/* The reply, or the last event of a stream. */
static json_t *final_value(const struct job *job, const struct reply_choice *choice)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached);
    bool streams = job->req.stream,
         has_lines = memchr(choice->text.bytes ? choice->text.bytes : "", '\n', choice->text.n_bytes);
    const struct tutti_string *word = choice->stop_string;
    json_t *tokens = choice->tokens && !streams ? json_incref(choice->tokens) : json_array();
    return json_pack(
        "{s:i, s:o, s:o, s:i, s:b, s:o, s:I, s:I, s:o, s:b, s:b, s:s, s:o, s:I, s:o}", "index", 0, "content",
        streams ? json_string("") : json_text(choice->text.bytes, choice->text.n_bytes), "tokens", tokens,
        "id_slot", -1, "stop", 1, "model", app_model_name(job->app, job->req.adapter), "tokens_predicted",
        (json_int_t)job_n_generated(job), "tokens_evaluated", (json_int_t)n_prompt, "generation_settings",
        settings_value(job), "has_new_line", has_lines, "truncated", job->req.infill.n_left_out > 0,
        "stop_type", stop_type(choice), "stopping_word",
        word ? json_text(word->text, word->n_bytes) : json_string(""), "tokens_cached", (json_int_t)n_cached,
        "timings", timings_value(job));
}

/* The value at a path such as "timings/prompt_n"; NULL: there is none. */
static json_t *find_value(json_t *value, const char *path)
{
    char name[64];
    while (value && path) {
        const char *slash = strchr(path, '/');
        size_t n = slash ? (size_t)(slash - path) : strlen(path);
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), path);
        value = json_object_get(value, name);
        path = slash ? slash + 1 : NULL;
    }
    return value;
}

/* Only the fields that the request names, each by its whole path. Takes ownership of value. */
static json_t *choose_fields(const struct job *job, json_t *value)
{
    const json_t *paths = json_object_get(job->req.root, "response_fields"), *path;
    size_t i;
    if (json_array_size(paths) == 0)
        return value;
    json_t *chosen = json_object();
    json_array_foreach(paths, i, path)
    {
        json_t *found = find_value(value, json_string_value(path));
        if (found)
            json_object_set(chosen, json_string_value(path), found);
    }
    json_decref(value);
    return chosen;
}

/* ---- events ---- */

static bool add_tokens(const struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    if (!job->req.scores)
        return true;
    if (!choice->tokens)
        choice->tokens = json_array();
    bool ok = choice->tokens != NULL;
    for (size_t i = 0; ok && i < event->n_tokens; i++)
        ok = json_array_append_new(choice->tokens, json_integer(event->tokens[i].id)) == 0;
    return ok;
}

/* Text and tokens since the last event. */
static bool stream_part(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    json_t *tokens = choice->tokens ? choice->tokens : json_array();
    choice->tokens = NULL;
    json_t *value = json_pack(
        "{s:i, s:o, s:o, s:b, s:i, s:I, s:I}", "index", 0, "content",
        json_text(choice->text.bytes + choice->n_sent, choice->text.n_bytes - choice->n_sent), "tokens",
        tokens, "stop", 0, "id_slot", -1, "tokens_predicted", (json_int_t)event->n_generated_tokens,
        "tokens_evaluated", (json_int_t)event->n_prompt_tokens);
    choice->n_sent = choice->text.n_bytes;
    if (value && job->req.infill.timings_per_token)
        json_object_set_new(value, "timings", timings_value(job));
    job_begin_stream(job);
    return value && job_stream_json(job, "data: ", value, "\n\n");
}

/* True: the request's time for generating is over, and the answer has a line feed after an earlier one. */
static bool is_late(const struct job *job, const struct reply_choice *choice, size_t n_before,
                    const struct tutti_event *event)
{
    uint64_t most_us = (uint64_t)job->req.infill.max_predict_ms * 1000;
    size_t n_new = choice->text.n_bytes - n_before;
    return most_us > 0 && event->total_us > event->ttft_us && event->total_us - event->ttft_us > most_us &&
           n_new > 0 && memchr(choice->text.bytes + n_before, '\n', n_new);
}

static void infill_event(struct job *job, size_t index, struct reply_choice *choice,
                         const struct tutti_event *event)
{
    bool is_end = event->finish != TUTTI_FINISH_NONE, is_less = false;
    size_t n_before = choice->text.n_bytes;
    bool ok = buf_add(&choice->held, event->text, event->n_text_bytes) && add_tokens(job, choice, event) &&
              release_lines(choice, (size_t)job->req.infill.n_indent, is_end, &is_less);
    bool is_cut = ok && (is_less || (!is_end && is_late(job, choice, n_before, event)));
    if (is_cut)
        job_end_choice(job, index);
    if (ok && job->req.stream && choice->text.n_bytes > choice->n_sent)
        ok = stream_part(job, choice, event);
    if (!ok)
        job_fail_memory(job);
}

/* The named fields of the reply. */
static json_t *chosen_value(const struct job *job)
{
    json_t *value = final_value(job, &job->choices[0]);
    return value ? choose_fields(job, value) : NULL;
}

static bool write_reply(struct job *job, struct buf *out)
{
    bool streams = job->req.stream;
    return (!streams || buf_add_string(out, "data: ")) &&
           job_write_json(out, chosen_value(job), streams ? "\n\n" : "");
}

static void infill_finish(struct job *job)
{
    if (job->req.stream)
        job_begin_stream(job);
    job_reply(job, write_reply);
}

static void infill_fail(struct app *app, struct job *job, struct http_conn *conn,
                        const struct tutti_error *err)
{
    (void)app, (void)job;
    int status = json_error_status(err->status);
    app_fail(conn, status, "data: ", json_error_value(status, err), "\n\n", err);
}

const struct job_api INFILL = { .id_prefix = "infill-",
                                .read_value = infill_read_body,
                                .event = infill_event,
                                .finish = infill_finish,
                                .fail = infill_fail };
