/* Writes the report as text for a terminal. */
#include "load/result.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static bool add_row(struct buf *out, const char *name, const struct sample_summary *s)
{
    if (s->n == 0)
        return buf_printf(out, "%-22s %10s\n", name, "-");
    return buf_printf(out, "%-22s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name, s->mean, s->p50, s->p90,
                      s->p99, s->max);
}

static double per_second(const struct load_result *r, double n)
{
    return r->total_s > 0 ? n / r->total_s : 0;
}

static bool add_head(struct buf *out, const struct load_report *report)
{
    const struct load_options *o = report->options;
    bool ok = buf_printf(out, "%s (%s%s%s), seed %" PRIu64 "\n", o->url, LOAD_API_NAMES[o->style.api],
                         o->style.model ? ", model " : "", o->style.model ? o->style.model : "", o->seed);
    if (o->rate > 0)
        return ok && buf_printf(out, "open loop: %g requests/s, %s\n", o->rate,
                                o->process == ARRIVALS_POISSON ? "Poisson arrivals" : "equal intervals");
    return ok &&
           buf_printf(out, "closed loop: %d %s\n", o->concurrency, o->concurrency == 1 ? "user" : "users");
}

static bool add_failures(struct buf *out, const struct load_report *report)
{
    const struct load_result *r = report->result;
    bool ok = true;
    for (int i = LOAD_COMPLETE + 1; ok && i < LOAD_OUTCOMES; i++) {
        const char *said = report->run->first_words[i];
        if (r->n_outcomes[i] > 0)
            ok = buf_printf(out, "  %-20s %10" PRIu64 "%s%s\n", load_outcome_name((enum load_outcome)i),
                            r->n_outcomes[i], said[0] ? "   first: " : "", said);
    }
    if (ok && report->run->n_retry_after > 0)
        ok = buf_printf(out, "  %-20s %10" PRIu64 "   %.1f s on average\n", "with Retry-After",
                        report->run->n_retry_after,
                        (double)report->run->retry_after_s / (double)report->run->n_retry_after);
    if (ok && r->n_silent > 0)
        ok = buf_printf(out, "answers without text   %10" PRIu64 "\n", r->n_silent);
    return ok;
}

static bool add_amounts(struct buf *out, const struct load_result *r)
{
    uint64_t n_complete = r->n_outcomes[LOAD_COMPLETE];
    bool ok = buf_printf(out, "total time             %10.2f s\n", r->total_s) &&
              buf_printf(out, "complete               %10" PRIu64 "   %.2f/s\n", n_complete,
                         r->requests_per_s) &&
              buf_printf(out, "failed                 %10" PRIu64 "\n", r->n_requests - n_complete);
    return ok;
}

static bool add_tokens(struct buf *out, const struct load_result *r)
{
    bool ok = true;
    if (r->has_prompt_tokens)
        ok = buf_printf(out, "prompt tokens          %10" PRIu64 "   %.1f/s\n", r->prompt_tokens,
                        per_second(r, (double)r->prompt_tokens));
    else
        ok = buf_printf(out, "prompt tokens          %10s   not reported by the server\n", "-");
    if (ok && r->cached_tokens > 0)
        ok = buf_printf(out, "  of these cached      %10" PRIu64 "   %.1f %%\n", r->cached_tokens,
                        100 * (double)r->cached_tokens / (double)r->prompt_tokens);
    const char *how = r->counted == LOAD_COUNTED_SERVER   ? "as reported by the server"
                      : r->counted == LOAD_COUNTED_DELTAS ? "counted as streamed pieces"
                      : r->counted == LOAD_COUNTED_BOTH
                          ? "reported by the server in some answers, counted as streamed pieces in others"
                          : "";
    return ok && buf_printf(out, "output tokens          %10" PRIu64 "   %.1f/s%s%s\n", r->output_tokens,
                            per_second(r, (double)r->output_tokens), *how ? ", " : "", how);
}

static bool add_targets(struct buf *out, const struct load_report *report)
{
    const struct load_result *r = report->result;
    const struct load_targets *t = &report->targets;
    char ttft[48] = "", itl[48] = "";
    if (!r->has_targets)
        return true;
    if (!isnan(t->ttft_ms))
        snprintf(ttft, sizeof ttft, " first token <= %g ms", t->ttft_ms);
    if (!isnan(t->itl_ms))
        snprintf(itl, sizeof itl, "%s time per token <= %g ms", *ttft ? "," : "", t->itl_ms);
    bool ok = buf_printf(out, "\ngoodput (%s%s): %.2f requests/s; %" PRIu64 " of %" PRIu64 " (%.1f %%)\n",
                         *ttft ? ttft + 1 : "", *ttft ? itl : itl + 1, per_second(r, (double)r->n_good),
                         r->n_good, r->n_requests,
                         r->n_requests ? 100 * (double)r->n_good / (double)r->n_requests : 0);
    if (ok && !isnan(t->itl_ms) && r->gap_ms.n > 0)
        ok = buf_printf(out, "gaps of at most %g ms: %.2f %%\n", t->itl_ms,
                        100 * (double)r->n_gaps_within / (double)r->gap_ms.n);
    return ok;
}

/* The load of the measuring process itself, which limits the accuracy. */
static bool add_tool(struct buf *out, const struct load_report *report)
{
    const struct load_result *r = report->result;
    bool ok = buf_printf(out, "\nthis tool: %.0f %% of a core", 100 * report->run->busy);
    if (report->options->rate > 0 && r->late_ms.n > 0)
        ok = ok && buf_printf(out, "; requests were sent late by %.2f ms (p50), %.2f ms (p99), %.2f ms (max)",
                              r->late_ms.p50, r->late_ms.p99, r->late_ms.max);
    ok = ok && buf_add_string(out, "\n");
    if (report->run->n_resent > 0)
        ok = ok &&
             buf_printf(out,
                        "sent again, because the server had closed a kept-alive connection: %" PRIu64 "\n",
                        report->run->n_resent);
    if (report->run->busy > 0.8)
        ok = ok && buf_add_string(out, "This tool was near the limit of its one thread: the server may be "
                                       "faster than these figures.\n");
    return ok;
}

enum tutti_status load_report_text(struct buf *out, const struct load_report *report, struct tutti_error *err)
{
    const struct load_result *r = report->result;
    bool ok = add_head(out, report) && buf_add_string(out, "\n") && add_amounts(out, r) &&
              add_failures(out, report) && add_tokens(out, r) &&
              buf_printf(out, "\n%-22s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90",
                         "p99", "max") &&
              add_row(out, "to the first token", &r->ttft_ms) && add_row(out, "between pieces", &r->gap_ms) &&
              add_row(out, "time per output token", &r->token_time_ms) &&
              add_row(out, "whole answer", &r->latency_ms) && add_targets(out, report) &&
              add_tool(out, report);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
}
