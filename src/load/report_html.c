/* Writes the report as one HTML page with plots, without scripts or external resources. */
#include "load/course.h"
#include "load/plot.h"
#include "load/result.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { CURVE_POINTS = 240 };

/* Denser in the tail, where the percentiles are. */
static double curve_part(int i)
{
    enum { BODY = 180 };
    return i < BODY ? 0.9 * i / BODY : 0.9 + 0.1 * (i - BODY) / (CURVE_POINTS - 1 - BODY);
}

static const char HEAD[] =
    "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<style>\n"
    ":root { --paper: #fbfaf7; --ink: #23241f; --soft: #6c6d64; --line: #e2dfd6; --bad: #a33a2a;\n"
    "  --c0: #2f6f62; --c1: #b0602a; --c2: #4a5fb0; --c3: #8c3f74; color-scheme: light dark; }\n"
    "@media (prefers-color-scheme: dark) { :root { --paper: #1b1c1a; --ink: #e8e6df; --soft: #9a9b91;\n"
    "  --line: #353732; --bad: #f0a598; --c0: #7fc4b0; --c1: #e0a070; --c2: #9fb0f0; --c3: #dd96c4; } }\n"
    "body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--paper); color: "
    "var(--ink);\n"
    "  font: 15px/1.5 system-ui, sans-serif; }\n"
    "h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }\n"
    "p { color: var(--soft); }\n"
    "table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right;\n"
    "  font-weight: normal; vertical-align: top; }\n"
    "th:first-child, td.text { text-align: left; } thead th { color: var(--soft); }\n"
    "td.text { overflow-wrap: anywhere; } .bad { color: var(--bad); }\n"
    "figure { margin: 1.5rem 0; } figcaption span { margin-left: 1rem; white-space: nowrap; }\n"
    "svg { width: 100%; height: auto; } svg.key { width: 28px; height: 10px; margin-right: .4rem; }\n"
    "svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }\n"
    ".grid { stroke: var(--line); } .axis { stroke: var(--soft); fill: none; }\n"
    ".line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".line0 { stroke: var(--c0); } .line1 { stroke: var(--c1); stroke-dasharray: 8 4; }\n"
    ".line2 { stroke: var(--c2); stroke-dasharray: 2 4; }\n"
    ".line3 { stroke: var(--c3); stroke-dasharray: 8 3 2 3; }\n"
    "</style>\n";

static double per_second(const struct load_result *r, double n)
{
    return r->total_s > 0 ? n / r->total_s : 0;
}

static bool add_head(struct buf *out, const struct load_report *report)
{
    const struct load_options *o = report->options;
    char when[40] = "";
    struct tm parts;
    time_t started = (time_t)report->run->started_unix_s;
    if (gmtime_r(&started, &parts))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &parts);
    bool ok = buf_add_string(out, HEAD) && buf_add_string(out, "<title>Load on ") &&
              plot_add_text(out, o->url) && buf_add_string(out, "</title>\n<h1>Load on ") &&
              plot_add_text(out, o->url) &&
              buf_printf(out, "</h1>\n<p>%s; interface %s", when, load_api_name(o->style.api));
    if (ok && o->style.model)
        ok = buf_add_string(out, ", model ") && plot_add_text(out, o->style.model);
    if (o->rate > 0)
        ok = ok && buf_printf(out, ". Open loop: %g requests/s, %s; times count from the arrival", o->rate,
                              o->process == ARRIVALS_POISSON ? "Poisson arrivals" : "at equal distances");
    else
        ok = ok &&
             buf_printf(out, ". Closed loop: %d %s", o->concurrency, o->concurrency == 1 ? "user" : "users");
    return ok && buf_printf(out, "; seed %" PRIu64 ". tutti %s.%s</p>\n", o->seed, TUTTI_VERSION,
                            report->run->was_interrupted ? " Interrupted before its end." : "");
}

static bool add_time_row(struct buf *out, const char *name, const struct sample_summary *s)
{
    bool ok = buf_printf(out, "<tr><th>%s", name);
    const double values[] = { s->mean, s->p50, s->p90, s->p99, s->max };
    for (size_t i = 0; ok && i < sizeof values / sizeof *values; i++)
        ok = s->n ? buf_printf(out, "<td>%.1f", values[i]) : buf_add_string(out, "<td>–");
    return ok && buf_printf(out, "<td>%zu\n", s->n);
}

static bool add_amounts(struct buf *out, const struct load_report *report)
{
    const struct load_result *r = report->result;
    uint64_t n_complete = r->n_outcomes[LOAD_COMPLETE];
    bool ok = buf_printf(out,
                         "<table><thead><tr><th><th>number<th>per second</thead>\n"
                         "<tr><th>complete answers<td>%" PRIu64 "<td>%.2f\n",
                         n_complete, r->requests_per_s) &&
              buf_printf(out, "<tr><th>failed<td>%" PRIu64 "<td>\n", r->n_requests - n_complete);
    if (ok && r->has_prompt_tokens)
        ok = buf_printf(out, "<tr><th>prompt tokens<td>%" PRIu64 "<td>%.1f\n", r->prompt_tokens,
                        per_second(r, (double)r->prompt_tokens));
    if (ok && r->has_prompt_tokens && r->cached_tokens > 0)
        ok = buf_printf(out, "<tr><th>of these not read again<td>%" PRIu64 "<td>\n", r->cached_tokens);
    ok = ok && buf_printf(out, "<tr><th>output tokens<td>%" PRIu64 "<td>%.1f\n", r->output_tokens,
                          per_second(r, (double)r->output_tokens));
    if (ok && r->has_targets)
        ok = buf_printf(out, "<tr><th>answers that kept the targets<td>%" PRIu64 "<td>%.2f\n", r->n_good,
                        per_second(r, (double)r->n_good));
    ok = ok && buf_printf(out, "</table>\n<p>In %.2f seconds. Output tokens: %s.", r->total_s,
                          r->counted == LOAD_COUNTED_SERVER   ? "as the server tells"
                          : r->counted == LOAD_COUNTED_DELTAS ? "counted by the pieces of the streams"
                          : r->counted == LOAD_COUNTED_BOTH
                              ? "as the server tells, or where it does not, by the pieces of the streams"
                              : "none");
    if (ok && !isnan(report->targets.ttft_ms))
        ok = buf_printf(out, " Target: first token within %g ms.", report->targets.ttft_ms);
    if (ok && !isnan(report->targets.itl_ms))
        ok = buf_printf(out, " Target: %g ms per output token.", report->targets.itl_ms);
    return ok && buf_add_string(out, "</p>\n");
}

static bool add_failures(struct buf *out, const struct load_report *report)
{
    const struct load_result *r = report->result;
    if (r->n_requests == r->n_outcomes[LOAD_COMPLETE])
        return true;
    bool ok = buf_add_string(out, "<h2>Failures</h2>\n<table><thead><tr><th>kind<th>number<th></thead>\n");
    for (int i = LOAD_COMPLETE + 1; ok && i < LOAD_OUTCOMES; i++)
        if (r->n_outcomes[i] > 0)
            ok = buf_printf(out, "<tr><th class=\"bad\">%s<td>%" PRIu64 "<td class=\"text\">",
                            load_outcome_name((enum load_outcome)i), r->n_outcomes[i]) &&
                 plot_add_text(out, report->run->first_words[i]) && buf_add_string(out, "\n");
    return ok && buf_add_string(out, "</table>\n");
}

static bool add_times(struct buf *out, const struct load_result *r)
{
    return buf_add_string(
               out, "<h2>Times in milliseconds</h2>\n<table><thead><tr><th><th>mean<th>p50<th>p90<th>p99"
                    "<th>max<th>samples</thead>\n") &&
           add_time_row(out, "to the first token", &r->ttft_ms) &&
           add_time_row(out, "between pieces", &r->gap_ms) &&
           add_time_row(out, "time per output token", &r->token_time_ms) &&
           add_time_row(out, "whole answer", &r->latency_ms) &&
           add_time_row(out, "sent late by", &r->late_ms) && buf_add_string(out, "</table>\n");
}

/* The cumulative distribution: the fraction of samples that are at most x. */
static bool add_curves(struct buf *out, const struct load_report *report)
{
    struct {
        const char *name;
        struct samples *samples;
        double x[CURVE_POINTS], y[CURVE_POINTS];
    } curves[] = {
        { .name = "to the first token", .samples = &report->result->ttft },
        { .name = "between pieces", .samples = &report->run->gaps },
        { .name = "time per output token", .samples = &report->result->token_time },
        { .name = "whole answer", .samples = &report->result->latency },
    };
    struct plot plot = { .title = "Shares of the samples",
                         .x_name = "at most … milliseconds",
                         .y_name = "percent",
                         .log_x = true,
                         .y_max = 100 };
    for (size_t k = 0; k < sizeof curves / sizeof *curves; k++) {
        for (int i = 0; i < CURVE_POINTS; i++) {
            curves[k].x[i] = samples_quantile(curves[k].samples, curve_part(i));
            curves[k].y[i] = 100 * curve_part(i);
        }
        plot.lines[plot.n_lines++] = (struct plot_line){ curves[k].name, curves[k].x, curves[k].y,
                                                         CURVE_POINTS };
    }
    return plot_add(out, &plot);
}

static bool add_course_plots(struct buf *out, const struct load_report *report, const struct course *c)
{
    static const char SECONDS[] = "seconds since the start";
    const struct load_result *r = report->result;
    struct plot pieces = { .title = "Pieces of text received", .x_name = SECONDS, .y_name = "per second" };
    struct plot open = { .title = "Requests", .x_name = SECONDS, .y_name = "on average" };
    struct plot first = { .title = "Time to the first token",
                          .x_name = "arrival, seconds since the start",
                          .y_name = "milliseconds" };
    struct plot rates = { .title = "Arrivals and failures",
                          .x_name = SECONDS,
                          .y_name = "requests per second" };
    pieces.lines[pieces.n_lines++] = (struct plot_line){ "pieces", c->middle_s, c->pieces_per_s, c->n };
    open.lines[open.n_lines++] = (struct plot_line){ "open", c->middle_s, c->open, c->n };
    if (r->late_ms.n > 0 && r->late_ms.max > 100)
        open.lines[open.n_lines++] = (struct plot_line){ "arrived, not sent", c->middle_s, c->waiting, c->n };
    first.lines[first.n_lines++] = (struct plot_line){ "median", c->middle_s, c->ttft_p50_ms, c->n };
    first.lines[first.n_lines++] = (struct plot_line){ "99th percentile", c->middle_s, c->ttft_p99_ms, c->n };
    rates.lines[rates.n_lines++] = (struct plot_line){ "arrived", c->middle_s, c->arrived_per_s, c->n };
    if (r->n_requests > r->n_outcomes[LOAD_COMPLETE])
        rates.lines[rates.n_lines++] = (struct plot_line){ "failed", c->middle_s, c->failed_per_s, c->n };
    return plot_add(out, &pieces) && plot_add(out, &open) && plot_add(out, &first) && plot_add(out, &rates);
}

enum tutti_status load_report_html(struct buf *out, const struct load_report *report, struct tutti_error *err)
{
    struct course *course = malloc(sizeof *course);
    if (!course)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
    enum tutti_status st = course_compute(course, report->run, err);
    if (st != TUTTI_OK)
        goto done;
    if (!(add_head(out, report) && add_amounts(out, report) && add_failures(out, report) &&
          add_times(out, report->result) && add_curves(out, report) &&
          buf_printf(out, "<h2>Over time</h2>\n<p>In columns of %g seconds.</p>\n", course->width_s) &&
          add_course_plots(out, report, course) &&
          buf_printf(out, "<p>The measuring took %.0f %% of one core.</p>\n</html>\n",
                     100 * report->run->busy)))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
done:
    free(course);
    return st;
}
