/* GET /metrics in Prometheus' text format, version 0.0.4. */
#include "base/json/json_print.h"
#include "server/access/keys.h"
#include "server/app.h"
#include "server/http/tls.h"
#include "server/intake.h"

/* Adds one metric with its help. False: out of memory. */
static bool add_figure(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    char number[NUMBER_TEXT_BYTES];
    number_shortest(number, value);
    return buf_printf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s %s\ntutti_%s %s\n", name, help, name, type,
                      name, number);
}

static bool add_histogram(struct buf *out, const char *name, const char *help,
                          const struct tutti_histogram *h)
{
    bool ok = buf_printf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s histogram\n", name, help, name);
    for (int i = 0; ok && i < TUTTI_HISTOGRAM_BUCKETS; i++)
        if (h->bound[i] > 0)
            ok = buf_printf(out, "tutti_%s_bucket{le=\"%.9g\"} %llu\n", name, h->bound[i],
                            (unsigned long long)h->count[i]);
    return ok && buf_printf(out,
                            "tutti_%s_bucket{le=\"+Inf\"} %llu\n"
                            "tutti_%s_sum %.9g\n"
                            "tutti_%s_count %llu\n",
                            name, (unsigned long long)h->n, name, h->sum, name, (unsigned long long)h->n);
}

/* Waiting requests by priority; if none waits, the default priority with 0, so that the series
 * always exists. */
static bool add_waiting(struct buf *out, const struct tutti_stats *s)
{
    bool ok = true;
    for (int age = 0; ok && age < 2; age++) {
        ok = buf_add_string(
            out,
            age ? "# HELP tutti_queue_oldest_seconds How long the oldest request in the queue has waited.\n"
                  "# TYPE tutti_queue_oldest_seconds gauge\n"
                : "# HELP tutti_queue_requests Requests in the queue, by priority.\n"
                  "# TYPE tutti_queue_requests gauge\n");
        for (int i = 0; ok && i < TUTTI_PRIORITIES; i++) {
            const struct tutti_waiting *class = &s->waiting[i];
            int priority = i + TUTTI_PRIORITY_FIRST;
            if (class->n > 0 || priority == 0)
                ok = buf_printf(out, "tutti_queue_%s{priority=\"%d\"} %.9g\n",
                                age ? "oldest_seconds" : "requests", priority,
                                age ? (double)class->oldest_us * 1e-6 : (double)class->n);
        }
    }
    return ok;
}

static bool add_refusals(struct buf *out, const struct app *app, const struct tutti_stats *s)
{
    struct client_counts all = { 0 };
    clients_count(app->clients, &all);
    const struct {
        const char *reason;
        uint64_t n;
    } reasons[] = { { "queue_full", s->n_refused_full },
                    { "overload", s->n_refused_early },
                    { "deadline", s->n_timed_out },
                    { "tokens_per_minute", all.n_refused[CLIENT_TOO_MANY_TOKENS] },
                    { "concurrency", all.n_refused[CLIENT_TOO_MANY_ANSWERS] } };
    bool ok = buf_add_string(out, "# HELP tutti_requests_refused_total Requests refused, by reason.\n"
                                  "# TYPE tutti_requests_refused_total counter\n");
    for (size_t i = 0; ok && i < sizeof reasons / sizeof *reasons; i++)
        ok = buf_printf(out, "tutti_requests_refused_total{reason=\"%s\"} %llu\n", reasons[i].reason,
                        (unsigned long long)reasons[i].n);
    return ok;
}

/* Adds a label's value, escaped for Prometheus. */
static bool add_label(struct buf *out, const char *text)
{
    bool ok = true;
    for (const char *p = text; ok && *p; p++)
        ok = (*p != '"' && *p != '\\') || buf_add_string(out, "\\") ? buf_add(out, p, 1) : false;
    return ok;
}

enum { MAX_SERIES = 1000 }; /* of one metric, by key */

/* The keys that have series: every name of the file, so that each series begins at 0; if the file
 * has more than MAX_SERIES names, those that have sent requests. */
static size_t list_keys(const struct app *app, const char **names)
{
    size_t n = 0;
    if (keys_count(app->keys) > MAX_SERIES)
        return clients_seen(app->clients, names, MAX_SERIES);
    while ((names[n] = keys_name(app->keys, n)))
        n++;
    return n;
}

static bool add_keys(struct buf *out, const struct app *app)
{
    static const struct {
        const char *name, *type, *help, *label;
    } FIGURES[] = {
        { "key_tokens_total", "counter", "Tokens by key.", ",kind=\"prompt\"" },
        { "key_tokens_total", NULL, NULL, ",kind=\"generated\"" },
        { "key_requests_total", "counter", "Requests by key, including refused ones.", "" },
        { "key_refused_total", "counter", "Requests refused at a limit of the key.",
          ",reason=\"tokens_per_minute\"" },
        { "key_refused_total", NULL, NULL, ",reason=\"concurrency\"" },
        { "key_answers_running", "gauge", "Answers of the key that run or wait.", "" },
    };
    bool ok = true;
    const char *names[MAX_SERIES + 1];
    size_t n_names = app->keys ? list_keys(app, names) : 0;
    for (size_t i = 0; ok && app->keys && i < sizeof FIGURES / sizeof *FIGURES; i++) {
        if (FIGURES[i].type)
            ok = buf_printf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s %s\n", FIGURES[i].name, FIGURES[i].help,
                            FIGURES[i].name, FIGURES[i].type);
        for (size_t k = 0; ok && k < n_names; k++) {
            const struct client *client = clients_find(app->clients, names[k]);
            struct client_counts counts = client ? client->counts : (struct client_counts){ 0 };
            const uint64_t values[] = { counts.n_prompt_tokens,
                                        counts.n_generated_tokens,
                                        counts.n_requests,
                                        counts.n_refused[CLIENT_TOO_MANY_TOKENS],
                                        counts.n_refused[CLIENT_TOO_MANY_ANSWERS],
                                        client ? (uint64_t)client->n_running : 0 };
            ok = buf_printf(out, "tutti_%s{key=\"", FIGURES[i].name) && add_label(out, names[k]) &&
                 buf_printf(out, "\"%s} %llu\n", FIGURES[i].label, (unsigned long long)values[i]);
        }
    }
    return ok;
}

static bool add_engine(struct buf *out, const struct app *app)
{
    struct tutti_stats s;
    tutti_engine_stats(app->engine, &s);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } figures[] = {
        { "requests_waiting", "gauge", "Requests in the queue.", s.n_waiting },
        { "sequences_running", "gauge", "Sequences in the batch.", s.n_running },
        { "kv_pages", "gauge", "Pages of the KV cache.", s.kv_pages_total },
        { "kv_pages_used", "gauge", "Pages of the KV cache held by sequences.", s.kv_pages_used },
        { "kv_pages_cached", "gauge", "Pages of the KV cache kept by the prefix cache.", s.kv_pages_cached },
        { "kv_pages_free", "gauge", "Pages of the KV cache that are free.", s.kv_pages_free },
        { "kv_page_tokens", "gauge", "Tokens per page.", s.kv_page_tokens },
        { "engine_requests_total", "counter", "Requests submitted to the engine.", s.n_requests },
        { "engine_requests_finished_total", "counter", "Requests that ended without an error.",
          s.n_finished },
        { "engine_requests_cancelled_total", "counter", "Requests cancelled.", s.n_cancelled },
        { "engine_requests_failed_total", "counter", "Requests that ended in an error.", s.n_failed },
        { "engine_requests_refused_total", "counter", "Requests that the engine refused.", s.n_refused },
        { "prompt_tokens_total", "counter", "Prompt tokens.", s.n_prompt_tokens },
        { "prefix_cache_hit_tokens_total", "counter", "Prompt tokens taken from the prefix cache.",
          s.n_cached_tokens },
        { "generated_tokens_total", "counter", "Generated tokens.", s.n_generated_tokens },
        { "steps_total", "counter", "Steps of the engine.", s.n_steps },
        { "speculation_accepted_tokens_total", "counter", "Draft tokens that were accepted.",
          s.n_accepted_drafts },
        { "speculation_rejected_tokens_total", "counter", "Draft tokens that were rejected.",
          s.n_rejected_drafts },
        { "draft_accepted_tokens_total", "counter", "Accepted draft tokens of the draft model.",
          s.n_accepted_model_drafts },
        { "draft_rejected_tokens_total", "counter", "Rejected draft tokens of the draft model.",
          s.n_rejected_model_drafts },
        { "draft_passes_total", "counter", "Forward passes of the draft model.", s.n_draft_passes },
        { "draft_rows_total", "counter", "Rows in these passes.", s.n_draft_rows },
        { "draft_kv_pages_used", "gauge", "Pages of the draft model's KV cache held by sequences.",
          s.draft_pages_used },
        { "draft_kv_pages_cached", "gauge", "Pages of the draft model's KV cache kept by its prefix cache.",
          s.draft_pages_cached },
        { "preemptions_total", "counter", "Sequences preempted, to be recomputed.", s.n_preemptions },
        { "evictions_total", "counter", "Pages evicted from the prefix cache.", s.n_evictions },
        { "queue_tokens", "gauge",
          "Work in the queue: prompt tokens, plus twice the expected generated tokens.",
          (uint64_t)s.waiting_tokens },
        { "queue_tokens_per_second", "gauge",
          "Rate at which work from the queue starts, measured when requests last waited; 0: not known.",
          (uint64_t)s.waiting_tokens_per_s },
        { "kv_spill_slots", "gauge", "Capacity of the KV spill file in pages; 0: no spill file.",
          s.kv_spill_slots },
        { "kv_spill_pages", "gauge", "Pages in the KV spill file.", s.kv_spill_pages },
        { "kv_spill_written_pages_total", "counter", "Pages written to the KV spill file.",
          s.n_spilled_pages },
        { "kv_spill_written_bytes_total", "counter", "Bytes of these.", s.n_spilled_bytes },
        { "kv_spill_restored_pages_total", "counter", "Pages restored from the KV spill file.",
          s.n_restored_pages },
        { "kv_spill_restored_bytes_total", "counter", "Bytes of these.", s.n_restored_bytes },
        { "kv_spill_looked_up_pages_total", "counter",
          "Prompt pages that missed the prefix cache and were looked up in the KV spill file.",
          s.n_spill_looked_up_pages },
        { "kv_spill_found_pages_total", "counter", "Of these, found in the KV spill file.",
          s.n_spill_found_pages },
        { "kv_spill_evictions_total", "counter", "Pages evicted from the KV spill file.",
          s.n_spill_evictions },
        { "kv_spill_lost_pages_total", "counter",
          "Cached pages evicted before they were written to the file.", s.n_spill_lost_pages },
        { "kv_spill_write_errors_total", "counter", "Pages that could not be written to the KV spill file.",
          s.n_spill_write_errors },
        { "kv_spill_read_errors_total", "counter", "Pages that could not be restored, or were damaged.",
          s.n_spill_read_errors },
        { "text_waits_total", "counter", "Steps that waited for the text thread.", s.n_text_waits },
        { "max_context_tokens", "gauge", "Largest number of tokens of one sequence.",
          s.max_context > 0 ? (uint64_t)s.max_context : 0 },
    };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof figures / sizeof *figures; i++)
        ok = add_figure(out, figures[i].name, figures[i].type, figures[i].help, (double)figures[i].value);
    return ok && add_waiting(out, &s) && add_refusals(out, app, &s) &&
           add_histogram(out, "time_to_first_token_seconds", "Time to first token, from submission.",
                         &s.ttft) &&
           add_histogram(out, "inter_token_seconds", "Inter-token latency.", &s.inter_token) &&
           add_histogram(out, "step_seconds", "Duration of a step.", &s.step) &&
           add_histogram(out, "queue_seconds", "Time in the queue, from submission to the first step.",
                         &s.queue);
}

static bool add_server(struct buf *out, const struct app *app)
{
    struct http_counts h;
    http_counts(app->http, &h);
    struct intake_counts in;
    intake_counts(app->intake, &in);
    bool ok =
        add_figure(out, "http_connections", "gauge", "Connections open now.", (double)h.n_open) &&
        add_figure(out, "http_connections_total", "counter", "Connections accepted.", (double)h.n_accepted) &&
        add_figure(out, "http_disconnects_total", "counter",
                   "Clients that disconnected before their reply was complete.", (double)h.n_disconnects) &&
        add_figure(out, "http_slow_readers_total", "counter", "Clients dropped because they read too slowly.",
                   (double)h.n_slow_readers) &&
        add_figure(out, "http_timeouts_total", "counter", "Requests that did not arrive in time.",
                   (double)h.n_timeouts) &&
        add_figure(out, "http_evicted_requests_total", "counter",
                   "Unfinished requests dropped to free memory for others.", (double)h.n_evicted) &&
        add_figure(out, "http_request_bytes", "gauge",
                   "Memory of requests that are unfinished or not yet parsed.", (double)h.n_body_bytes) &&
        add_figure(out, "intake_waiting", "gauge", "Tasks that wait for an intake thread.",
                   (double)in.n_waiting) &&
        add_figure(out, "intake_running", "gauge", "Tasks on the intake threads.", (double)in.n_running) &&
        add_figure(out, "intake_requests_total", "counter", "Requests whose body was parsed.",
                   (double)in.n_read) &&
        add_figure(out, "intake_bytes_total", "counter", "Bytes of these.", (double)in.n_bytes) &&
        add_figure(out, "intake_refused_total", "counter",
                   "Of those, refused as invalid or by a limit of their client.", (double)in.n_refused) &&
        add_figure(out, "http_connections_closed_for_room_total", "counter",
                   "Idle connections closed for new ones.", (double)h.n_closed_for_room) &&
        add_figure(out, "http_connections_refused_total", "counter",
                   "Connections refused because all others of their address, or of all, were busy.",
                   (double)h.n_refused) &&
        add_figure(out, "tls_handshake_failures_total", "counter", "TLS handshakes that failed or timed out.",
                   (double)h.n_tls_failures) &&
        (!app->tls ||
         add_figure(out, "tls_certificate_end_seconds", "gauge",
                    "End of the server's certificate, Unix time.", (double)tls_end_time(app->tls))) &&
        add_figure(out, "answers_total", "counter", "Requests answered completely.",
                   (double)app->n_answered) &&
        add_figure(out, "good_answers_total", "counter", "Of those, within --ttft-target and --itl-target.",
                   (double)app->n_good) &&
        add_figure(out, "reloads_total", "counter", "Reloads of keys and certificates, at SIGHUP.",
                   (double)app->n_reloads) &&
        add_figure(out, "reload_failures_total", "counter", "Failed reloads, which changed nothing.",
                   (double)app->n_failed_reloads) &&
        add_figure(out, "start_time_seconds", "gauge", "Start of the server, Unix time.",
                   (double)app->start_time) &&
        buf_add_string(
            out,
            "# HELP tutti_http_requests_total Requests by path and status; 499: the client disconnected.\n"
            "# TYPE tutti_http_requests_total counter\n");
    for (int route = 0; ok && route_name(route); route++)
        for (int column = 0; ok && route_status(column); column++)
            if (app->counts.n[route][column])
                ok = buf_printf(out, "tutti_http_requests_total{path=\"%s\",status=\"%d\"} %llu\n",
                                route_name(route), route_status(column),
                                (unsigned long long)app->counts.n[route][column]);
    return ok;
}

void metrics_request(struct app *app, struct http_conn *conn)
{
    struct buf text = { 0 };
    struct tutti_error err;
    if (add_engine(&text, app) && add_server(&text, app) && add_keys(&text, app)) {
        http_reply(conn, 200, "text/plain; version=0.0.4; charset=utf-8", text.bytes, text.n_bytes);
    } else {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the metrics");
        app_reply_error(conn, 503, NULL, &err);
    }
    buf_clear(&text);
}
