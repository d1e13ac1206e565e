#include "load/result.h"

#include <math.h>

const char *load_counted_name(enum load_counted counted)
{
    static const char *const NAMES[] = { "none", "server", "deltas", "both" };
    return NAMES[counted];
}

/* Mean time per output token after the first; false: there is no second token. Pieces of several
 * tokens count by their tokens, so that servers can be compared. */
static bool token_time_us(const struct load_record *r, double *out)
{
    if (r->output_tokens < 2 || r->first_us < 0 || r->n_pieces < 2)
        return false;
    *out = (double)(r->last_us - r->first_us) / (r->output_tokens - 1);
    return true;
}

static bool keeps_targets(const struct load_record *r, const struct load_targets *targets)
{
    double itl_us;
    if (!isnan(targets->ttft_ms) &&
        (r->first_us < 0 || (double)(r->first_us - r->scheduled_us) > targets->ttft_ms * 1e3))
        return false;
    return isnan(targets->itl_ms) || !token_time_us(r, &itl_us) || itl_us <= targets->itl_ms * 1e3;
}

static bool add_complete(struct load_result *out, const struct load_record *r, bool *any_server,
                         bool *any_deltas)
{
    double itl_us;
    bool ok = samples_add(&out->latency, (uint64_t)(r->ended_us - r->scheduled_us));
    if (r->first_us >= 0)
        ok = ok && samples_add(&out->ttft, (uint64_t)(r->first_us - r->scheduled_us));
    else
        out->n_silent++;
    if (token_time_us(r, &itl_us))
        ok = ok && samples_add(&out->token_time, (uint64_t)llround(itl_us));
    out->prompt_tokens += r->prompt_tokens;
    out->cached_tokens += r->cached_tokens;
    out->output_tokens += r->output_tokens;
    out->has_prompt_tokens = out->has_prompt_tokens && r->has_prompt_tokens;
    *(r->has_usage ? any_server : any_deltas) = true;
    return ok;
}

enum tutti_status load_result_compute(struct load_result *out, struct load_run *run,
                                      const struct load_targets *targets, struct tutti_error *err)
{
    bool any_server = false, any_deltas = false, ok = true;
    *out = (struct load_result){
        .n_requests = run->n_records,
        .total_s = run->total_s,
        .has_prompt_tokens = true,
        .has_targets = !isnan(targets->ttft_ms) || !isnan(targets->itl_ms),
    };
    for (size_t i = 0; ok && i < run->n_records; i++) {
        const struct load_record *r = &run->records[i];
        out->n_outcomes[r->outcome]++;
        if (r->started_us >= 0)
            ok = samples_add(&out->late, (uint64_t)(r->started_us - r->scheduled_us));
        if (r->outcome != LOAD_COMPLETE) {
            out->n_lost_pieces += r->n_pieces;
            continue;
        }
        ok = ok && add_complete(out, r, &any_server, &any_deltas);
        out->n_good += keeps_targets(r, targets);
    }
    if (!ok) {
        load_result_clear(out);
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the figures");
    }
    uint64_t n_complete = out->n_outcomes[LOAD_COMPLETE];
    out->has_prompt_tokens = out->has_prompt_tokens && n_complete > 0;
    out->counted = any_server && any_deltas ? LOAD_COUNTED_BOTH
                   : any_server             ? LOAD_COUNTED_SERVER
                   : any_deltas             ? LOAD_COUNTED_DELTAS
                                            : LOAD_COUNTED_NONE;
    out->requests_per_s = out->total_s > 0 ? (double)n_complete / out->total_s : 0;
    out->ttft_ms = samples_summarize(&out->ttft);
    out->token_time_ms = samples_summarize(&out->token_time);
    out->latency_ms = samples_summarize(&out->latency);
    out->late_ms = samples_summarize(&out->late);
    out->gap_ms = samples_summarize(&run->gaps);
    if (!isnan(targets->itl_ms))
        out->n_gaps_within = samples_within(&run->gaps, targets->itl_ms);
    return TUTTI_OK;
}

void load_result_clear(struct load_result *result)
{
    samples_clear(&result->ttft);
    samples_clear(&result->token_time);
    samples_clear(&result->latency);
    samples_clear(&result->late);
}
