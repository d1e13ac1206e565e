/* The figures for programs. Times are milliseconds where the name says so, else seconds; null: there is none. */
#include "load/result.h"

#include <math.h>
#include <time.h>

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *summary(const struct sample_summary *s)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "count", (json_int_t)s->n, "mean",
                     number(s->mean), "deviation", number(s->deviation), "min", number(s->min), "p50",
                     number(s->p50), "p90", number(s->p90), "p99", number(s->p99), "max", number(s->max));
}

static json_t *settings(const struct load_options *o)
{
    return json_pack("{s:s, s:s, s:s?, s:o, s:s, s:i, s:o, s:I, s:f, s:I, s:s?, s:i, s:o, s:b}", "url",
                     o->url, "api", load_api_name(o->style.api), "model", o->style.model, "rate",
                     o->rate > 0 ? json_real(o->rate) : json_null(), "arrivals",
                     o->rate <= 0                     ? "closed loop"
                     : o->process == ARRIVALS_POISSON ? "poisson"
                                                      : "even",
                     "concurrency", o->concurrency, "duration",
                     o->duration_s > 0 ? json_real(o->duration_s) : json_null(), "requests",
                     (json_int_t)o->n_requests, "timeout", o->timeout_s, "seed", (json_int_t)o->seed,
                     "prompts", o->work->items ? "file" : "made", "max_tokens", o->style.max_tokens,
                     "temperature", number(o->style.temperature), "ignore_eos", (int)o->style.ignore_eos);
}

static json_t *failures(const struct load_report *report)
{
    json_t *list = json_object();
    for (int i = LOAD_COMPLETE + 1; i < LOAD_OUTCOMES; i++) {
        const char *said = report->run->first_words[i];
        json_t *one = json_pack("{s:I, s:s?}", "count", (json_int_t)report->result->n_outcomes[i], "first",
                                said[0] ? said : NULL);
        json_object_set_new(list, load_outcome_name((enum load_outcome)i), one);
    }
    return list;
}

static json_t *tokens(const struct load_result *r)
{
    double s = r->total_s > 0 ? r->total_s : NAN;
    return json_pack(
        "{s:o, s:o, s:o, s:I, s:o, s:s}", "prompt",
        r->has_prompt_tokens ? json_integer((json_int_t)r->prompt_tokens) : json_null(), "prompt_per_s",
        r->has_prompt_tokens ? number((double)r->prompt_tokens / s) : json_null(), "prompt_cached",
        r->has_prompt_tokens ? json_integer((json_int_t)r->cached_tokens) : json_null(), "output",
        (json_int_t)r->output_tokens, "output_per_s", number((double)r->output_tokens / s), "counted_by",
        load_counted_name(r->counted));
}

static json_t *goodput(const struct load_report *report)
{
    const struct load_result *r = report->result;
    if (!r->has_targets)
        return json_null();
    bool has_gaps = !isnan(report->targets.itl_ms) && r->gap_ms.n > 0;
    return json_pack("{s:o, s:o, s:I, s:o, s:o, s:o}", "ttft_target_ms", number(report->targets.ttft_ms),
                     "itl_target_ms", number(report->targets.itl_ms), "requests", (json_int_t)r->n_good,
                     "requests_per_s", number(r->total_s > 0 ? (double)r->n_good / r->total_s : NAN), "part",
                     number(r->n_requests ? (double)r->n_good / (double)r->n_requests : NAN),
                     "gaps_within_part",
                     has_gaps ? json_real((double)r->n_gaps_within / (double)r->gap_ms.n) : json_null());
}

static json_t *tool(const struct load_report *report)
{
    const struct load_run *run = report->run;
    return json_pack("{s:s, s:o, s:o, s:I}", "version", TUTTI_VERSION, "busy", number(run->busy), "late_ms",
                     summary(&report->result->late_ms), "sent_again", (json_int_t)run->n_resent);
}

static json_t *ms_between(int64_t from_us, int64_t to_us)
{
    return from_us < 0 || to_us < 0 ? json_null() : json_real((double)(to_us - from_us) / 1e3);
}

static json_t *record(const struct load_record *r)
{
    return json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "outcome",
                     load_outcome_name((enum load_outcome)r->outcome), "http_status", (int)r->status,
                     "prompt", (json_int_t)r->prompt, "arrival", json_real((double)r->scheduled_us / 1e6),
                     "late_ms", ms_between(r->scheduled_us, r->started_us), "ttft_ms",
                     ms_between(r->scheduled_us, r->first_us), "last_token_ms",
                     ms_between(r->scheduled_us, r->last_us), "latency_ms",
                     ms_between(r->scheduled_us, r->ended_us), "prompt_tokens", (json_int_t)r->prompt_tokens,
                     "output_tokens", (json_int_t)r->output_tokens, "pieces", (json_int_t)r->n_pieces);
}

static json_t *records(const struct load_run *run)
{
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_records; i++)
        json_array_append_new(list, record(&run->records[i]));
    return list;
}

static json_t *started_at(const struct load_run *run)
{
    char text[32] = "";
    struct tm parts;
    time_t when = (time_t)run->started_unix_s;
    if (gmtime_r(&when, &parts))
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

static int add_chunk(const char *bytes, size_t n_bytes, void *user)
{
    return buf_add(user, bytes, n_bytes) ? 0 : -1;
}

enum tutti_status load_report_json(struct buf *out, const struct load_report *report, bool details,
                                   struct tutti_error *err)
{
    const struct load_result *r = report->result;
    json_t *whole = json_pack(
        "{s:o, s:o, s:b, s:f, s:I, s:I, s:f, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "started",
        started_at(report->run), "settings", settings(report->options), "interrupted",
        (int)report->run->was_interrupted, "total_s", r->total_s, "requests", (json_int_t)r->n_requests,
        "complete", (json_int_t)r->n_outcomes[LOAD_COMPLETE], "requests_per_s", r->requests_per_s, "silent",
        (json_int_t)r->n_silent, "failures", failures(report), "tokens", tokens(r), "ttft_ms",
        summary(&r->ttft_ms), "itl_ms", summary(&r->gap_ms), "time_per_token_ms", summary(&r->token_time_ms),
        "latency_ms", summary(&r->latency_ms), "goodput", goodput(report), "tool", tool(report));
    bool ok = whole && (!details || json_object_set_new(whole, "records", records(report->run)) == 0);
    ok = ok && json_dump_callback(whole, add_chunk, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
         buf_add_string(out, "\n");
    json_decref(whole);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
}
