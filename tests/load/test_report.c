/* Plots, the course of a run over time, and reports of runs without anything in them. */
#include "load/course.h"
#include "load/plot.h"
#include "load/result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("found %.12g, expected %.12g", found, expected);
}

/* ---- plots ---- */

static void a_line_goes_through_its_points(void **state)
{
    (void)state;
    static const double X[] = { 0, 5, 10 }, Y[] = { 0, 100, 50 };
    struct buf out = { 0 };
    struct plot plot = { .title = "a < b", .x_name = "x", .y_name = "y & z", .y_max = 100, .n_lines = 1 };
    plot.lines[0] = (struct plot_line){ "\"line\"", X, Y, 3 };
    assert_true(plot_add(&out, &plot));
    /* The frame goes from 64 to 704 and, upwards, from 256 to 12. */
    assert_non_null(strstr(out.bytes, "d=\"M64.0 256.0h0L384.0 12.0L704.0 134.0\""));
    assert_non_null(strstr(out.bytes, "a &lt; b"));
    assert_non_null(strstr(out.bytes, "y &amp; z"));
    assert_non_null(strstr(out.bytes, "&quot;line&quot;"));
    assert_non_null(strstr(out.bytes, ">10</text>"));
    assert_null(strstr(out.bytes, "-0<"));
    buf_clear(&out);
}

static void a_logarithmic_axis_gives_each_decade_the_same_room(void **state)
{
    (void)state;
    static const double X[] = { 1, 10, 100 }, Y[] = { 0, 50, 100 };
    struct buf out = { 0 };
    struct plot plot = { .title = "", .x_name = "", .y_name = "", .log_x = true, .y_max = 100, .n_lines = 1 };
    plot.lines[0] = (struct plot_line){ "", X, Y, 3 };
    assert_true(plot_add(&out, &plot));
    assert_non_null(strstr(out.bytes, "d=\"M64.0 256.0h0L384.0 134.0L704.0 12.0\""));
    buf_clear(&out);
}

static void points_that_are_no_numbers_are_gaps(void **state)
{
    (void)state;
    static const double X[] = { 0, 1, 2, 3, 4 }, Y[] = { 1, NAN, 1, 1, INFINITY };
    struct buf out = { 0 };
    struct plot plot = { .title = "", .x_name = "", .y_name = "", .n_lines = 1 };
    plot.lines[0] = (struct plot_line){ "", X, Y, 5 };
    assert_true(plot_add(&out, &plot));
    const char *path = strstr(out.bytes, "class=\"line line0\" d=\"M64");
    assert_non_null(path);
    assert_int_equal(count(out.bytes, "h0"), 2);
    assert_null(strstr(out.bytes, "nan"));
    assert_null(strstr(out.bytes, "inf"));
    buf_clear(&out);
}

static void plots_of_hostile_ranges_are_finite(void **state)
{
    (void)state;
    static const struct {
        double x[2], y[2];
        size_t n;
    } CASES[] = {
        { .n = 0 },
        { { 0, 0 }, { 0, 0 }, 1 },
        { { 0, 0 }, { 0, 0 }, 2 },
        { { 1e-300, 1e300 }, { 1e300, 1e-300 }, 2 },
        { { NAN, NAN }, { NAN, NAN }, 2 },
        { { 5, 5 }, { 5, 5 }, 2 },
        { { 1e9, 1e9 + 1 }, { 1e12, 1e12 }, 2 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int log_x = 0; log_x < 2; log_x++) {
            struct buf out = { 0 };
            struct plot plot = { .title = "", .x_name = "", .y_name = "", .log_x = log_x, .n_lines = 1 };
            plot.lines[0] = (struct plot_line){ "", CASES[i].x, CASES[i].y, CASES[i].n };
            assert_true(plot_add(&out, &plot));
            assert_true(out.n_bytes < 100000);
            assert_null(strstr(out.bytes, "nan"));
            assert_null(strstr(out.bytes, "inf"));
            buf_clear(&out);
        }
}

/* ---- the course ---- */

static void columns_hold_the_times_that_they_cover(void **state)
{
    (void)state;
    uint32_t ticks[10] = { 1, 0, 0, 4, 0, 0, 0, 0, 0, 2 };
    struct load_record records[] = {
        { .scheduled_us = 0, .started_us = 50000, .first_us = 150000, .last_us = 250000, .ended_us = 250000 },
        { .scheduled_us = 0, .started_us = 0, .first_us = 50000, .last_us = 60000, .ended_us = 100000 },
        { .scheduled_us = 900000,
          .started_us = 900000,
          .first_us = -1,
          .last_us = -1,
          .ended_us = 1000000,
          .outcome = LOAD_CUT },
        { .scheduled_us = 950000,
          .started_us = -1,
          .first_us = -1,
          .last_us = -1,
          .ended_us = -1,
          .outcome = LOAD_UNFINISHED },
    };
    struct load_run run = { .records = records, .n_records = 4, .ticks = ticks, .n_ticks = 10, .total_s = 1 };
    struct course *c = malloc(sizeof *c);
    assert_non_null(c);
    assert_int_equal(course_compute(c, &run, NULL), TUTTI_OK);
    assert_int_equal(c->n, 10);
    assert_near(c->width_s, 0.1);
    assert_near(c->middle_s[3], 0.35);
    assert_near(c->pieces_per_s[0], 10);
    assert_near(c->pieces_per_s[3], 40);
    assert_near(c->open[0], 1.5);
    assert_near(c->open[1], 1);
    assert_near(c->open[2], 0.5);
    assert_near(c->open[3], 0);
    assert_near(c->open[9], 1);
    assert_near(c->waiting[0], 0.5);
    assert_near(c->waiting[9], 0.5);
    assert_near(c->arrived_per_s[0], 20);
    assert_near(c->failed_per_s[9], 20);
    assert_near(c->ttft_p50_ms[0], 100);
    assert_true(isnan(c->ttft_p50_ms[1]) && isnan(c->ttft_p99_ms[9]));
    free(c);
}

static void long_runs_have_wider_columns_not_more_of_them(void **state)
{
    (void)state;
    enum { TICKS = 604800 * 10 };
    struct load_run run = { .n_ticks = TICKS, .ticks = calloc(TICKS, sizeof *run.ticks), .total_s = 604800 };
    struct course *c = malloc(sizeof *c);
    assert_non_null(run.ticks);
    assert_non_null(c);
    run.ticks[TICKS - 1] = 7;
    assert_int_equal(course_compute(c, &run, NULL), TUTTI_OK);
    assert_int_equal(c->n, COURSE_MAX_COLUMNS);
    assert_near(c->width_s, 3360);
    assert_near(c->pieces_per_s[COURSE_MAX_COLUMNS - 1], 7.0 / 3360);
    free(c);
    load_run_clear(&run);
}

/* ---- reports ---- */

static void a_run_without_requests_has_reports(void **state)
{
    (void)state;
    struct work work = { 0 };
    struct load_options options = { .url = "http://h", .work = &work, .rate = 1 };
    options.style.temperature = NAN;
    struct load_targets targets = { 1, 1 };
    struct load_run run = { 0 };
    struct load_result result;
    assert_int_equal(load_result_compute(&result, &run, &targets, NULL), TUTTI_OK);
    struct load_report report = { &options, &run, &result, targets };
    struct buf text = { 0 }, json = { 0 }, html = { 0 };
    assert_int_equal(load_report_text(&text, &report, NULL), TUTTI_OK);
    assert_int_equal(load_report_json(&json, &report, true, NULL), TUTTI_OK);
    assert_int_equal(load_report_html(&html, &report, NULL), TUTTI_OK);
    json_t *value = json_loadb(json.bytes, json.n_bytes, 0, NULL);
    assert_true(json_is_null(json_object_get(json_object_get(value, "ttft_ms"), "p99")));
    assert_int_equal(json_integer_value(json_object_get(value, "requests")), 0);
    assert_null(strstr(text.bytes, "nan"));
    assert_null(strstr(html.bytes, "nan<"));
    assert_int_equal(count(html.bytes, "no data"), 2); /* the curves, and first tokens over time */
    json_decref(value);
    buf_clear(&text);
    buf_clear(&json);
    buf_clear(&html);
    load_result_clear(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_goes_through_its_points),
        cmocka_unit_test(a_logarithmic_axis_gives_each_decade_the_same_room),
        cmocka_unit_test(points_that_are_no_numbers_are_gaps),
        cmocka_unit_test(plots_of_hostile_ranges_are_finite),
        cmocka_unit_test(columns_hold_the_times_that_they_cover),
        cmocka_unit_test(long_runs_have_wider_columns_not_more_of_them),
        cmocka_unit_test(a_run_without_requests_has_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
