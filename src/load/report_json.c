/* Writes the report as JSON. Times are in milliseconds if the name says so, else in seconds;
 * null: none. */
#include "base/json/json_list.h"
#include "load/result.h"

#include <math.h>
#include <time.h>

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *report_json_count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *text(const char *value)
{
    return value && *value ? json_string(value) : json_null();
}

static json_t *summary(const struct sample_summary *s)
{
    const struct json_member members[] = {
        { "count", report_json_count(s->n) },
        { "mean", number_or_null(s->mean) },
        { "deviation", number_or_null(s->deviation) },
        { "min", number_or_null(s->min) },
        { "p50", number_or_null(s->p50) },
        { "p90", number_or_null(s->p90) },
        { "p99", number_or_null(s->p99) },
        { "max", number_or_null(s->max) },
    };
    return JSON_MEMBERS(members);
}

static json_t *made_prompts(const struct work *work)
{
    const struct json_member members[] = {
        { "prompt_tokens", report_json_count((uint64_t)work->made.n_words) },
        { "shared_tokens", report_json_count((uint64_t)work->made.n_shared) },
        { "spread", number_or_null(work->made.spread) },
    };
    return JSON_MEMBERS(members);
}

static json_t *settings(const struct load_options *o)
{
    const char *arrivals = o->rate <= 0 ? "closed loop" : o->process == ARRIVALS_POISSON ? "poisson" : "even";
    const struct json_member members[] = {
        { "url", text(o->url) },
        { "api", text(LOAD_API_NAMES[o->style.api]) },
        { "model", text(o->style.model) },
        { "rate", o->rate > 0 ? number_or_null(o->rate) : json_null() },
        { "arrivals", text(arrivals) },
        { "concurrency", o->concurrency > 0 ? report_json_count((uint64_t)o->concurrency) : json_null() },
        { "duration", o->duration_s > 0 ? number_or_null(o->duration_s) : json_null() },
        { "requests", o->n_requests > 0 ? report_json_count(o->n_requests) : json_null() },
        { "timeout", number_or_null(o->timeout_s) },
        { "drain", number_or_null(o->drain_s) },
        { "seed", report_json_count(o->seed) },
        { "prompts", text(o->work->prompts.list ? "file" : "made") },
        { "made", o->work->prompts.list ? json_null() : made_prompts(o->work) },
        { "max_tokens", report_json_count((uint64_t)o->style.max_tokens) },
        { "temperature", number_or_null(o->style.temperature) },
        { "ignore_eos", json_boolean(o->style.ignore_eos) },
        { "chat", json_boolean(o->style.as_chat) },
        { "body", o->style.more ? json_deep_copy(o->style.more) : json_null() },
    };
    return JSON_MEMBERS(members);
}

static json_t *failures(const struct load_report *report)
{
    struct json_member kinds[LOAD_OUTCOMES - 1];
    for (int i = LOAD_COMPLETE + 1; i < LOAD_OUTCOMES; i++) {
        const struct json_member members[] = {
            { "count", report_json_count(report->result->n_outcomes[i]) },
            { "first", text(report->run->first_words[i]) },
        };
        kinds[i - 1] = (struct json_member){ load_outcome_name((enum load_outcome)i), JSON_MEMBERS(members) };
    }
    return JSON_MEMBERS(kinds);
}

static json_t *tokens(const struct load_result *r)
{
    double s = r->total_s > 0 ? r->total_s : NAN;
    bool is_known = r->has_prompt_tokens;
    const struct json_member members[] = {
        { "prompt", is_known ? report_json_count(r->prompt_tokens) : json_null() },
        { "prompt_per_s", is_known ? number_or_null((double)r->prompt_tokens / s) : json_null() },
        { "prompt_cached", is_known ? report_json_count(r->cached_tokens) : json_null() },
        { "output", report_json_count(r->output_tokens) },
        { "output_per_s", number_or_null((double)r->output_tokens / s) },
        { "counted_by", text(load_counted_name(r->counted)) },
    };
    return JSON_MEMBERS(members);
}

static json_t *goodput(const struct load_report *report)
{
    const struct load_result *r = report->result;
    bool has_gaps = !isnan(report->targets.itl_ms) && r->gap_ms.n > 0;
    if (!r->has_targets)
        return json_null();
    const struct json_member members[] = {
        { "ttft_target_ms", number_or_null(report->targets.ttft_ms) },
        { "itl_target_ms", number_or_null(report->targets.itl_ms) },
        { "requests", report_json_count(r->n_good) },
        { "requests_per_s", number_or_null(r->total_s > 0 ? (double)r->n_good / r->total_s : NAN) },
        { "part", number_or_null(r->n_requests ? (double)r->n_good / (double)r->n_requests : NAN) },
        { "gaps_within_part",
          number_or_null(has_gaps ? (double)r->n_gaps_within / (double)r->gap_ms.n : NAN) },
    };
    return JSON_MEMBERS(members);
}

static json_t *tool(const struct load_report *report)
{
    const struct json_member members[] = {
        { "version", text(TUTTI_VERSION) },
        { "busy", number_or_null(report->run->busy) },
        { "late_ms", summary(&report->result->late_ms) },
        { "sent_again", report_json_count(report->run->n_resent) },
    };
    return JSON_MEMBERS(members);
}

static json_t *retry_after(const struct load_run *run)
{
    const struct json_member members[] = {
        { "count", report_json_count(run->n_retry_after) },
        { "mean_s", number_or_null(
                        run->n_retry_after ? (double)run->retry_after_s / (double)run->n_retry_after : NAN) },
    };
    return JSON_MEMBERS(members);
}

static json_t *ms_between(int64_t from_us, int64_t to_us)
{
    return from_us < 0 || to_us < 0 ? json_null() : json_real((double)(to_us - from_us) / 1e3);
}

/* index: of the record, which determines the API key used. */
static json_t *record(const void *user, size_t index)
{
    const struct load_report *report = user;
    const struct load_record *r = &report->run->records[index];
    size_t n_keys = report->options->n_keys;
    const struct json_member members[] = {
        { "outcome", text(load_outcome_name((enum load_outcome)r->outcome)) },
        { "http_status", report_json_count(r->status) },
        { "prompt", report_json_count(r->prompt) },
        { "key", n_keys ? report_json_count(index % n_keys) : json_null() },
        { "arrival", number_or_null((double)r->scheduled_us / 1e6) },
        { "late_ms", ms_between(r->scheduled_us, r->started_us) },
        { "ttft_ms", ms_between(r->scheduled_us, r->first_us) },
        { "last_token_ms", ms_between(r->scheduled_us, r->last_us) },
        { "longest_gap_ms", number_or_null(r->n_pieces > 1 ? r->longest_gap_us / 1e3 : NAN) },
        { "latency_ms", ms_between(r->scheduled_us, r->ended_us) },
        { "prompt_tokens", r->has_prompt_tokens ? report_json_count(r->prompt_tokens) : json_null() },
        { "output_tokens", report_json_count(r->output_tokens) },
        { "pieces", report_json_count(r->n_pieces) },
    };
    return JSON_MEMBERS(members);
}

static json_t *percentile(const void *samples, size_t index)
{
    return json_real(samples_quantile((struct load_samples *)(uintptr_t)samples, (double)index / 100));
}

/* The 0th to the 100th percentile in milliseconds; empty without samples. */
static json_t *percentiles(const struct load_samples *s)
{
    return json_list(s->n > 0 ? 101 : 0, percentile, s);
}

static json_t *all_percentiles(const struct load_report *report)
{
    struct load_result *r = report->result;
    const struct json_member members[] = {
        { "ttft", percentiles(&r->ttft) },
        { "itl", percentiles(&report->run->gaps) },
        { "time_per_token", percentiles(&r->token_time) },
        { "latency", percentiles(&r->latency) },
    };
    return JSON_MEMBERS(members);
}

static json_t *tick(const void *user, size_t index)
{
    return report_json_count(((const uint32_t *)user)[index]);
}

static json_t *pieces(const struct load_run *run)
{
    const struct json_member members[] = {
        { "tick_s", number_or_null(LOAD_TICK_US / 1e6) },
        { "counts", json_list(run->n_ticks, tick, run->ticks) },
    };
    return JSON_MEMBERS(members);
}

static bool add_details(json_t *whole, const struct load_report *report)
{
    return json_object_set_new(whole, "percentiles_ms", all_percentiles(report)) == 0 &&
           json_object_set_new(whole, "pieces", pieces(report->run)) == 0 &&
           json_object_set_new(whole, "records", json_list(report->run->n_records, record, report)) == 0;
}

static json_t *started_at(const struct load_run *run)
{
    char when[32] = "";
    struct tm parts;
    time_t started = (time_t)run->started_unix_s;
    if (gmtime_r(&started, &parts))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text(when);
}

static int add_chunk(const char *bytes, size_t n_bytes, void *user)
{
    return buf_add(user, bytes, n_bytes) ? 0 : -1;
}

enum tutti_status load_report_json(struct buf *out, const struct load_report *report, bool details,
                                   struct tutti_error *err)
{
    const struct load_result *r = report->result;
    const struct json_member members[] = {
        { "started", started_at(report->run) },
        { "settings", settings(report->options) },
        { "interrupted", json_boolean(report->run->was_interrupted) },
        { "total_s", number_or_null(r->total_s) },
        { "requests", report_json_count(r->n_requests) },
        { "complete", report_json_count(r->n_outcomes[LOAD_COMPLETE]) },
        { "requests_per_s", number_or_null(r->requests_per_s) },
        { "silent", report_json_count(r->n_silent) },
        { "failures", failures(report) },
        { "retry_after", retry_after(report->run) },
        { "tokens", tokens(r) },
        { "ttft_ms", summary(&r->ttft_ms) },
        { "itl_ms", summary(&r->gap_ms) },
        { "time_per_token_ms", summary(&r->token_time_ms) },
        { "latency_ms", summary(&r->latency_ms) },
        { "goodput", goodput(report) },
        { "tool", tool(report) },
    };
    json_t *whole = JSON_MEMBERS(members);
    bool ok = whole && (!details || add_details(whole, report));
    ok = ok && json_dump_callback(whole, add_chunk, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
         buf_add_string(out, "\n");
    json_decref(whole);
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
}
