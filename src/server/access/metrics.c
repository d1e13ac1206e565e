/* GET /metrics in Prometheus' text format, version 0.0.4. */
#include "base/json/json_print.h"
#include "server/access/keys.h"
#include "server/app.h"
#include "server/http/tls.h"
#include "server/intake.h"

/* One figure with its help. False: out of memory. */
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

/* Requests that wait, by priority; of none that wait only the usual priority, so that the series is never gone. */
static bool add_waiting(struct buf *out, const struct tutti_stats *s)
{
    bool ok = true;
    for (int age = 0; ok && age < 2; age++) {
        ok = buf_add_string(
            out, age ? "# HELP tutti_queue_oldest_seconds How long the request that came first has waited.\n"
                       "# TYPE tutti_queue_oldest_seconds gauge\n"
                     : "# HELP tutti_queue_requests Requests that wait for their first step, by priority.\n"
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

/* A label's value, with what Prometheus wants escaped. */
static bool add_label(struct buf *out, const char *text)
{
    bool ok = true;
    for (const char *p = text; ok && *p; p++)
        ok = (*p != '"' && *p != '\\') || buf_add_string(out, "\\") ? buf_add(out, p, 1) : false;
    return ok;
}

enum { MAX_SERIES = 1000 }; /* of one figure, by key */

/* The keys with series: every name of the file, so that each series begins at 0; of a file with more than MAX_SERIES names, those
 * that have sent requests. */
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
        { "key_requests_total", "counter", "Requests by key, those that were refused among them.", "" },
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
        { "kv_pages", "gauge", "Pages of the KV cache in all.", s.kv_pages_total },
        { "kv_pages_used", "gauge", "Pages held by sequences.", s.kv_pages_used },
        { "kv_pages_cached", "gauge", "Pages kept for prompts to come.", s.kv_pages_cached },
        { "kv_pages_free", "gauge", "Pages that hold nothing.", s.kv_pages_free },
        { "kv_page_tokens", "gauge", "Tokens of a page.", s.kv_page_tokens },
        { "engine_requests_total", "counter", "Requests submitted to the engine.", s.n_requests },
        { "engine_requests_finished_total", "counter", "Requests that ended well.", s.n_finished },
        { "engine_requests_cancelled_total", "counter", "Requests cancelled.", s.n_cancelled },
        { "engine_requests_failed_total", "counter", "Requests that ended in an error.", s.n_failed },
        { "engine_requests_refused_total", "counter", "Requests that the engine did not take.", s.n_refused },
        { "prompt_tokens_total", "counter", "Tokens of prompts.", s.n_prompt_tokens },
        { "prefix_cache_hit_tokens_total", "counter", "Tokens of prompts taken from the prefix cache.",
          s.n_cached_tokens },
        { "generated_tokens_total", "counter", "Tokens of answers.", s.n_generated_tokens },
        { "steps_total", "counter", "Steps of the model.", s.n_steps },
        { "speculation_accepted_tokens_total", "counter", "Guessed tokens that were drawn.",
          s.n_accepted_guesses },
        { "speculation_rejected_tokens_total", "counter", "Guessed tokens that were verified in vain.",
          s.n_rejected_guesses },
        { "draft_accepted_tokens_total", "counter", "Of those that were drawn, guessed by the draft model.",
          s.n_accepted_drafts },
        { "draft_rejected_tokens_total", "counter", "Of those in vain, guessed by the draft model.",
          s.n_rejected_drafts },
        { "draft_passes_total", "counter", "Passes of the draft model.", s.n_draft_passes },
        { "draft_rows_total", "counter", "Rows of all of them.", s.n_draft_rows },
        { "draft_kv_pages_used", "gauge", "Pages of the draft model's KV cache held by sequences.",
          s.draft_pages_used },
        { "draft_kv_pages_cached", "gauge", "Pages of it kept for prompts to come.", s.draft_pages_cached },
        { "preemptions_total", "counter", "Sequences put back to be recomputed.", s.n_preemptions },
        { "evictions_total", "counter", "Cached pages given away.", s.n_evictions },
        { "queue_tokens", "gauge", "Work that waits, in tokens: of prompts, and twice those of answers.",
          (uint64_t)s.waiting_tokens },
        { "queue_tokens_per_second", "gauge",
          "How fast such work began when it last had to wait; 0: not known.",
          (uint64_t)s.waiting_tokens_per_s },
        { "kv_spill_slots", "gauge", "Pages that the spill file can hold; 0: pages do not spill.",
          s.kv_spill_slots },
        { "kv_spill_pages", "gauge", "Pages that the spill file holds.", s.kv_spill_pages },
        { "kv_spill_written_pages_total", "counter", "Pages written to the spill file.", s.n_spilled_pages },
        { "kv_spill_written_bytes_total", "counter", "Bytes of these.", s.n_spilled_bytes },
        { "kv_spill_returned_pages_total", "counter", "Pages that came back from the spill file.",
          s.n_returned_pages },
        { "kv_spill_returned_bytes_total", "counter", "Bytes of these.", s.n_returned_bytes },
        { "kv_spill_asked_pages_total", "counter",
          "Pages of prompts that memory did not have, looked for in the spill file.", s.n_spill_asked_pages },
        { "kv_spill_found_pages_total", "counter", "Pages of these that the spill file had.",
          s.n_spill_found_pages },
        { "kv_spill_evictions_total", "counter", "Pages of the spill file that made room for others.",
          s.n_spill_evictions },
        { "kv_spill_lost_pages_total", "counter", "Cached pages given away before they were written.",
          s.n_spill_lost_pages },
        { "kv_spill_write_errors_total", "counter", "Pages that could not be written to the spill file.",
          s.n_spill_write_errors },
        { "kv_spill_read_errors_total", "counter", "Pages that could not be read back, or were damaged.",
          s.n_spill_read_errors },
        { "text_waits_total", "counter", "Steps that had to wait for the text thread.", s.n_text_waits },
        { "max_context_tokens", "gauge", "Tokens that one sequence may hold.",
          s.max_context > 0 ? (uint64_t)s.max_context : 0 },
    };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof figures / sizeof *figures; i++)
        ok = add_figure(out, figures[i].name, figures[i].type, figures[i].help, (double)figures[i].value);
    return ok && add_waiting(out, &s) && add_refusals(out, app, &s) &&
           add_histogram(out, "time_to_first_token_seconds", "From submission to the first token.",
                         &s.ttft) &&
           add_histogram(out, "inter_token_seconds", "Between two tokens of an answer.", &s.inter_token) &&
           add_histogram(out, "step_seconds", "Duration of a step.", &s.step) &&
           add_histogram(out, "queue_seconds", "From submission to the first step.", &s.queue);
}

static bool add_server(struct buf *out, const struct app *app)
{
    struct http_counts h;
    http_counts(app->http, &h);
    struct intake_counts in;
    intake_counts(app->intake, &in);
    bool ok = add_figure(out, "http_connections", "gauge", "Connections open now.", (double)h.n_open) &&
              add_figure(out, "http_connections_total", "counter", "Connections accepted.",
                         (double)h.n_accepted) &&
              add_figure(out, "http_disconnects_total", "counter",
                         "Clients that left before their reply was complete.", (double)h.n_disconnects) &&
              add_figure(out, "http_slow_readers_total", "counter",
                         "Clients dropped since they read too slowly.", (double)h.n_slow_readers) &&
              add_figure(out, "http_timeouts_total", "counter", "Requests that did not arrive in time.",
                         (double)h.n_timeouts) &&
              add_figure(out, "http_evicted_requests_total", "counter",
                         "Unfinished requests that made room in memory for others.", (double)h.n_evicted) &&
              add_figure(out, "http_request_bytes", "gauge",
                         "Memory of requests that are unfinished or not yet parsed.",
                         (double)h.n_body_bytes) &&
              add_figure(out, "intake_waiting", "gauge", "Work that waits for an intake thread.",
                         (double)in.n_waiting) &&
              add_figure(out, "intake_running", "gauge", "Work on the intake threads.",
                         (double)in.n_running) &&
              add_figure(out, "intake_requests_total", "counter", "Requests whose body was read.",
                         (double)in.n_read) &&
              add_figure(out, "intake_bytes_total", "counter", "Bytes of these.", (double)in.n_bytes) &&
              add_figure(out, "intake_refused_total", "counter",
                         "Of those, the ones refused for what they hold or for the limits of their client.",
                         (double)in.n_refused) &&
              add_figure(out, "http_connections_closed_for_room_total", "counter",
                         "Connections closed to make room for others.", (double)h.n_closed_for_room) &&
              add_figure(out, "http_connections_refused_total", "counter",
                         "Connections refused since all others of their address, or of all, had work.",
                         (double)h.n_refused) &&
              add_figure(out, "tls_handshake_failures_total", "counter",
                         "TLS handshakes that failed or were not done in time.", (double)h.n_tls_failures) &&
              (!app->tls ||
               add_figure(out, "tls_certificate_end_seconds", "gauge",
                          "End of the server's certificate, Unix time.", (double)tls_end_time(app->tls))) &&
              add_figure(out, "answers_total", "counter", "Requests answered to the end.",
                         (double)app->n_answered) &&
              add_figure(out, "good_answers_total", "counter",
                         "Of those, the ones within --ttft-target and --itl-target.", (double)app->n_good) &&
              add_figure(out, "reloads_total", "counter", "Keys and certificates read again, at SIGHUP.",
                         (double)app->n_reloads) &&
              add_figure(out, "reload_failures_total", "counter", "Attempts at that which changed nothing.",
                         (double)app->n_failed_reloads) &&
              add_figure(out, "start_time_seconds", "gauge", "Start of the server, Unix time.",
                         (double)app->start_time) &&
              buf_add_string(
                  out, "# HELP tutti_http_requests_total Requests by path and status; 499: the client left.\n"
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
