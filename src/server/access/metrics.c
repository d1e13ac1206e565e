/* GET /metrics in Prometheus' text format, version 0.0.4. */
#include "base/json/json_print.h"
#include "base/text.h"
#include "server/access/keys.h"
#include "server/app.h"
#include "server/http/tls.h"
#include "server/intake.h"
#include "server/models/model_set.h"

/* A counter, if its name ends with "_total", or else a gauge. */
struct figure {
    const char *name, *help;
    uint64_t value;
};

static const char *type_of(const char *name)
{
    return text_ends_with(name, "_total") ? "counter" : "gauge";
}

/* Adds metrics with their help. False: out of memory. */
static bool add_figures(struct buf *out, const struct figure *figures, size_t n)
{
    bool ok = true;
    for (const struct figure *f = figures; ok && f < figures + n; f++) {
        char number[NUMBER_TEXT_BYTES];
        number_shortest(number, (double)f->value);
        ok = buf_printf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s %s\ntutti_%s %s\n", f->name, f->help,
                        f->name, type_of(f->name), f->name, number);
    }
    return ok;
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
        const char *name, *help, *label; /* help NULL: as before */
    } FIGURES[] = {
        { "key_tokens_total", "Tokens by key.", ",kind=\"prompt\"" },
        { "key_tokens_total", NULL, ",kind=\"generated\"" },
        { "key_requests_total", "Requests by key, including refused ones.", "" },
        { "key_refused_total", "Requests refused at a limit of the key.", ",reason=\"tokens_per_minute\"" },
        { "key_refused_total", NULL, ",reason=\"concurrency\"" },
        { "key_answers_running", "Answers of the key that run or wait.", "" },
    };
    bool ok = true;
    const char *names[MAX_SERIES + 1];
    size_t n_names = app->keys ? list_keys(app, names) : 0;
    for (size_t i = 0; ok && app->keys && i < sizeof FIGURES / sizeof *FIGURES; i++) {
        if (FIGURES[i].help)
            ok = buf_printf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s %s\n", FIGURES[i].name, FIGURES[i].help,
                            FIGURES[i].name, type_of(FIGURES[i].name));
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

/* Of a device with memory of its own. */
static bool add_device(struct buf *out, const struct app *app)
{
    struct tutti_device d;
    tutti_engine_device(app->engine, &d);
    if (!d.name[0])
        return true;
    const struct figure memory[] = {
        { "device_memory_bytes", "Memory of the device.", d.memory_bytes },
        { "device_memory_used_bytes", "Of it, used by any process.", d.memory_bytes - d.free_bytes },
        { "device_memory_free_bytes", "Of it, free.", d.free_bytes },
    };
    return buf_printf(out,
                      "# HELP tutti_device_info The device that computes; always 1.\n"
                      "# TYPE tutti_device_info gauge\n"
                      "tutti_device_info{device=\"%s\",name=\"",
                      d.id) &&
           add_label(out, d.name) &&
           buf_printf(out,
                      "\",compute_capability=\"%d.%d\",kernels=\"%d\",cuda=\"%d.%d\"} 1\n"
                      "# HELP tutti_device_busy_seconds_total Time in which the device worked on steps.\n"
                      "# TYPE tutti_device_busy_seconds_total counter\n"
                      "tutti_device_busy_seconds_total %.9g\n"
                      "# HELP tutti_device_load_seconds Time that compiling and loading the kernels took.\n"
                      "# TYPE tutti_device_load_seconds gauge\n"
                      "tutti_device_load_seconds %.9g\n",
                      d.capability / 10, d.capability % 10, d.kernel_level, d.driver / 1000,
                      d.driver % 1000 / 10, d.busy_seconds, d.loading_seconds) &&
           add_figures(out, memory, d.free_bytes > 0 ? sizeof memory / sizeof *memory : 1);
}

static bool add_engine(struct buf *out, const struct app *app)
{
    struct tutti_stats s;
    tutti_engine_stats(app->engine, &s);
    const struct figure figures[] = {
        { "requests_waiting", "Requests in the queue.", s.n_waiting },
        { "sequences_running", "Sequences in the batch.", s.n_running },
        { "kv_pages", "Pages of the KV cache.", s.kv_pages_total },
        { "kv_pages_used", "Pages of the KV cache held by sequences.", s.kv_pages_used },
        { "kv_pages_cached", "Pages of the KV cache kept by the prefix cache.", s.kv_pages_cached },
        { "kv_pages_free", "Pages of the KV cache that are free.", s.kv_pages_free },
        { "kv_page_tokens", "Tokens per page.", s.kv_page_tokens },
        { "engine_requests_total", "Requests submitted to the engine.", s.n_requests },
        { "engine_requests_finished_total", "Requests that ended without an error.", s.n_finished },
        { "engine_requests_cancelled_total", "Requests cancelled.", s.n_cancelled },
        { "engine_requests_failed_total", "Requests that ended in an error.", s.n_failed },
        { "engine_requests_refused_total", "Requests that the engine refused.", s.n_refused },
        { "prompt_tokens_total", "Prompt tokens.", s.n_prompt_tokens },
        { "prefix_cache_hit_tokens_total", "Prompt tokens taken from the prefix cache.", s.n_cached_tokens },
        { "generated_tokens_total", "Generated tokens.", s.n_generated_tokens },
        { "steps_total", "Steps of the engine.", s.n_steps },
        { "ahead_steps_total", "Steps submitted before the tokens of the step before were known.",
          s.n_ahead_steps },
        { "speculation_accepted_tokens_total", "Draft tokens that were accepted.", s.n_accepted_drafts },
        { "speculation_rejected_tokens_total", "Draft tokens that were rejected.", s.n_rejected_drafts },
        { "draft_accepted_tokens_total", "Accepted draft tokens of the draft model or MTP layer.",
          s.n_accepted_model_drafts },
        { "draft_rejected_tokens_total", "Rejected draft tokens of the draft model or MTP layer.",
          s.n_rejected_model_drafts },
        { "draft_passes_total", "Forward passes of the draft model or MTP layer.", s.n_draft_passes },
        { "draft_rows_total", "Rows in these passes.", s.n_draft_rows },
        { "draft_kv_pages_used", "Pages of the draft model's KV cache held by sequences.",
          s.draft_pages_used },
        { "draft_kv_pages_cached", "Pages of the draft model's KV cache kept by its prefix cache.",
          s.draft_pages_cached },
        { "preemptions_total", "Sequences preempted, to be recomputed.", s.n_preemptions },
        { "evictions_total", "Pages evicted from the prefix cache.", s.n_evictions },
        { "queue_tokens", "Work in the queue: prompt tokens, plus twice the expected generated tokens.",
          (uint64_t)s.waiting_tokens },
        { "queue_tokens_per_second",
          "Rate at which work from the queue starts, measured when requests last waited; 0: not known.",
          (uint64_t)s.waiting_tokens_per_s },
        { "kv_spill_slots", "Capacity of the KV spill file in pages; 0: no spill file.", s.kv_spill_slots },
        { "kv_spill_pages", "Pages in the KV spill file.", s.kv_spill_pages },
        { "kv_spill_host_slots", "Capacity of host memory for spilled KV pages; 0: none.",
          s.kv_spill_host_slots },
        { "kv_spill_host_pages", "KV pages in host memory.", s.kv_spill_host_pages },
        { "kv_spill_host_bytes", "Bytes of these.", s.kv_spill_host_bytes },
        { "kv_spill_written_pages_total", "Pages written to the KV spill file.", s.n_spilled_pages },
        { "kv_spill_written_bytes_total", "Bytes of these.", s.n_spilled_bytes },
        { "kv_spill_restored_pages_total", "Pages restored from host memory and the KV spill file.",
          s.n_restored_pages },
        { "kv_spill_restored_bytes_total", "Bytes of these.", s.n_restored_bytes },
        { "kv_spill_host_restored_pages_total", "Of these, from host memory, without the file.",
          s.n_host_restored_pages },
        { "kv_spill_looked_up_pages_total",
          "Prompt pages that missed the prefix cache and were looked up among the spilled ones.",
          s.n_spill_looked_up_pages },
        { "kv_spill_found_pages_total", "Of these, found in host memory or the KV spill file.",
          s.n_spill_found_pages },
        { "kv_spill_evictions_total", "Pages evicted from the KV spill file.", s.n_spill_evictions },
        { "kv_spill_host_evictions_total", "Pages evicted from host memory.", s.n_spill_host_evictions },
        { "kv_spill_lost_pages_total", "Cached pages evicted before they were copied.",
          s.n_spill_lost_pages },
        { "kv_spill_write_errors_total", "Pages that could not be written to the KV spill file.",
          s.n_spill_write_errors },
        { "kv_spill_read_errors_total", "Pages that could not be restored, or were damaged.",
          s.n_spill_read_errors },
        { "text_waits_total", "Steps that waited for the text thread.", s.n_text_waits },
        { "max_context_tokens", "Largest number of tokens of one sequence.",
          s.max_context > 0 ? (uint64_t)s.max_context : 0 },
    };
    return add_figures(out, figures, sizeof figures / sizeof *figures) && add_device(out, app) &&
           add_waiting(out, &s) && add_refusals(out, app, &s) &&
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
    const struct figure figures[] = {
        { "http_connections", "Connections open now.", h.n_open },
        { "http_connections_total", "Connections accepted.", h.n_accepted },
        { "http_disconnects_total", "Clients that disconnected before their reply was complete.",
          h.n_disconnects },
        { "http_slow_readers_total", "Clients dropped because they read too slowly.", h.n_slow_readers },
        { "http_timeouts_total", "Requests that did not arrive in time.", h.n_timeouts },
        { "http_evicted_requests_total", "Unfinished requests dropped to free memory for others.",
          h.n_evicted },
        { "http_request_bytes", "Memory of requests that are unfinished or not yet parsed.", h.n_body_bytes },
        { "http_reply_bytes", "Memory of replies that are being collected or sent.", h.n_reply_bytes },
        { "intake_waiting", "Tasks that wait for an intake thread.", in.n_waiting },
        { "intake_running", "Tasks on the intake threads.", in.n_running },
        { "intake_requests_total", "Requests whose body was parsed.", in.n_read },
        { "intake_bytes_total", "Bytes of these.", in.n_bytes },
        { "intake_refused_total", "Of those, refused as invalid or by a limit of their client.",
          in.n_refused },
        { "http_connections_closed_for_room_total", "Idle connections closed for new ones.",
          h.n_closed_for_room },
        { "http_connections_refused_total",
          "Connections refused because all others of their address, or of all, were busy.", h.n_refused },
        { "tls_handshake_failures_total", "TLS handshakes that failed or timed out.", h.n_tls_failures },
        { "answers_total", "Requests answered completely.", app->n_answered },
        { "good_answers_total", "Of those, within --ttft-target and --itl-target.", app->n_good },
        { "reloads_total", "Reloads of keys and certificates, at SIGHUP.", app->n_reloads },
        { "reload_failures_total", "Failed reloads, which changed nothing.", app->n_failed_reloads },
        { "start_time_seconds", "Start of the server, Unix time.", (uint64_t)app->start_time },
    };
    const struct figure certificate = { "tls_certificate_end_seconds",
                                        "End of the server's certificate, Unix time.",
                                        app->tls ? (uint64_t)tls_end_time(app->tls) : 0 };
    bool ok =
        add_figures(out, figures, sizeof figures / sizeof *figures) &&
        (!app->tls || add_figures(out, &certificate, 1)) &&
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
    bool ok = (app->models || add_engine(&text, app)) && add_server(&text, app) &&
              (app->models || add_keys(&text, app));
    if (ok && app->models) {
        model_set_metrics(app->models, conn, &text);
        return;
    }
    if (ok) {
        http_reply(conn, 200, "text/plain; version=0.0.4; charset=utf-8", text.bytes, text.n_bytes);
    } else {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the metrics");
        app_reply_error(conn, 503, &err);
    }
    buf_clear(&text);
}
