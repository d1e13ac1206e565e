#include "server/access/access.h"

#include "base/log.h"
#include "base/system/clock.h"
#include "server/access/trace.h"
#include "server/job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FIELDS = 20, PATH_CHARS = 200, METHOD_CHARS = 16 };

struct fields {
    struct log_field list[MAX_FIELDS];
    size_t n;
};

static void fields_add_text(struct fields *fields, const char *name, const char *text)
{
    if (text && *text)
        fields->list[fields->n++] = (struct log_field){ .name = name, .text = text };
}

static void fields_add_number(struct fields *fields, const char *name, double number)
{
    fields->list[fields->n++] = (struct log_field){ .name = name, .number = number };
}

static double milliseconds(uint64_t us)
{
    return round((double)us / 10) / 100;
}

static void add_job(struct fields *fields, const struct job *job)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached);
    fields_add_text(fields, "completion_id", job->id);
    fields_add_number(fields, "prompt_tokens", (double)n_prompt);
    fields_add_number(fields, "cached_tokens", (double)n_cached);
    fields_add_number(fields, "completion_tokens", (double)job_n_generated(job));
    if (job->ttft_us)
        fields_add_number(fields, "ttft_ms", milliseconds(job->ttft_us));
    if (job->total_us)
        fields_add_number(fields, "engine_ms", milliseconds(job->total_us));
}

static void log_for_machines(const struct http_conn *conn, int status, const struct trace *trace,
                             uint64_t took_us)
{
    const struct http_head *head = &http_request(conn)->head;
    char method[METHOD_CHARS + 1], path[PATH_CHARS + 1];
    struct fields fields = { .n = 0 };
    snprintf(method, sizeof method, "%s", head->method ? head->method : "");
    snprintf(path, sizeof path, "%s", head->raw_path ? head->raw_path : "");
    fields_add_text(&fields, "request_id", http_request(conn)->id);
    fields_add_text(&fields, "client", http_request(conn)->peer);
    fields_add_text(&fields, "key", http_request(conn)->caller);
    fields_add_text(&fields, "method", method);
    fields_add_text(&fields, "path", path);
    fields_add_number(&fields, "status", status);
    fields_add_number(&fields, "duration_ms", milliseconds(took_us));
    if (http_request(conn)->data)
        add_job(&fields, http_request(conn)->data);
    if (trace) {
        fields_add_text(&fields, "trace_id", trace->trace_id);
        fields_add_text(&fields, "span_id", trace->span_id);
        fields_add_text(&fields, "parent_id", trace->parent_id);
    }
    log_record(LOG_INFO, "request", fields.list, fields.n);
}

void access_log(const struct http_conn *conn, int status, bool is_complete)
{
    const struct http_head *head = &http_request(conn)->head;
    uint64_t took_us = clock_now_us() - http_request(conn)->start_us;
    struct trace found;
    const struct trace *trace = trace_find(&found, conn) ? &found : NULL;
    char tokens[256] = "";
    if (log_is_json()) {
        log_for_machines(conn, status, trace, took_us);
        return;
    }
    if (http_request(conn)->data)
        job_describe(http_request(conn)->data, tokens, sizeof tokens);
    log_info("%s %s \"%.*s %.*s\" %d %s%.1f ms%s%s%s%s%s", http_request(conn)->peer, http_request(conn)->id,
             METHOD_CHARS, head->method ? head->method : "-", PATH_CHARS,
             head->raw_path ? head->raw_path : "-", status, is_complete ? "" : "client gone after ",
             (double)took_us / 1e3, tokens, *http_request(conn)->caller ? " key=" : "",
             http_request(conn)->caller, trace ? " trace=" : "", trace ? trace->trace_id : "");
}
