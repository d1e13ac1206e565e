#include "load/course.h"

#include <math.h>

static size_t column_of(const struct course *c, int64_t us)
{
    double column = (double)us / 1e6 / c->width_s;
    return column < 0 ? 0 : column >= (double)c->n ? c->n - 1 : (size_t)column;
}

/* Adds to each column's average the fraction of the column that the time span covers. */
static void add_span(const struct course *c, double *average, int64_t from_us, int64_t to_us)
{
    double from = (double)from_us / 1e6, to = (double)to_us / 1e6;
    for (size_t i = column_of(c, from_us); i <= column_of(c, to_us); i++) {
        double begin = fmax(from, (double)i * c->width_s), end = fmin(to, (double)(i + 1) * c->width_s);
        if (end > begin)
            average[i] += (end - begin) / c->width_s;
    }
}

/* Records are in order of arrival, so those of a column are adjacent. */
static enum tutti_status add_ttft(struct course *c, const struct load_run *run, struct tutti_error *err)
{
    struct samples column = { 0 };
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0, next = 0; i < c->n && st == TUTTI_OK; i++) {
        column.n = 0;
        column.is_sorted = false;
        for (; next < run->n_records && column_of(c, run->records[next].scheduled_us) == i; next++) {
            const struct load_record *r = &run->records[next];
            if (r->outcome == LOAD_COMPLETE && r->first_us >= 0 &&
                !samples_add(&column, (uint64_t)(r->first_us - r->scheduled_us)))
                st = error_set(err, TUTTI_E_MEMORY, "out of memory for the report");
        }
        c->ttft_p50_ms[i] = samples_quantile(&column, 0.5);
        c->ttft_p99_ms[i] = samples_quantile(&column, 0.99);
    }
    samples_clear(&column);
    return st;
}

enum tutti_status course_compute(struct course *out, const struct load_run *run, struct tutti_error *err)
{
    double tick_s = LOAD_TICK_US / 1e6;
    size_t n_ticks = (size_t)ceil(run->total_s / tick_s);
    n_ticks = n_ticks < run->n_ticks ? run->n_ticks : n_ticks;
    n_ticks = n_ticks ? n_ticks : 1;
    size_t per_column = (n_ticks + COURSE_MAX_COLUMNS - 1) / COURSE_MAX_COLUMNS;
    *out = (struct course){ .n = (n_ticks + per_column - 1) / per_column,
                            .width_s = (double)per_column * tick_s };
    for (size_t i = 0; i < out->n; i++)
        out->middle_s[i] = ((double)i + 0.5) * out->width_s;
    for (size_t i = 0; i < run->n_ticks; i++)
        out->pieces_per_s[i / per_column] += run->ticks[i] / out->width_s;
    for (size_t i = 0; i < run->n_records; i++) {
        const struct load_record *r = &run->records[i];
        int64_t end_us = r->ended_us >= 0 ? r->ended_us : (int64_t)(run->total_s * 1e6);
        out->arrived_per_s[column_of(out, r->scheduled_us)] += 1 / out->width_s;
        add_span(out, out->waiting, r->scheduled_us, r->started_us >= 0 ? r->started_us : end_us);
        if (r->started_us >= 0)
            add_span(out, out->open, r->started_us, end_us);
        if (r->outcome != LOAD_COMPLETE)
            out->failed_per_s[column_of(out, end_us)] += 1 / out->width_s;
    }
    return add_ttft(out, run, err);
}
