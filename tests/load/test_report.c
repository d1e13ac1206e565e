/* Reports of runs without requests, and the distributions in the details. */
#include "load/result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("found %.12g, expected %.12g", found, expected);
}

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
    struct buf text = { 0 }, json = { 0 };
    assert_int_equal(load_report_text(&text, &report, NULL), TUTTI_OK);
    assert_int_equal(load_report_json(&json, &report, true, NULL), TUTTI_OK);
    json_t *value = json_loadb(json.bytes, json.n_bytes, 0, NULL);
    assert_true(json_is_null(json_object_get(json_object_get(value, "ttft_ms"), "p99")));
    assert_int_equal(json_integer_value(json_object_get(value, "requests")), 0);
    const json_t *percentiles = json_object_get(value, "percentiles_ms");
    assert_int_equal(json_object_size(percentiles), 4);
    assert_true(json_is_array(json_object_get(percentiles, "itl")));
    assert_int_equal(json_array_size(json_object_get(percentiles, "itl")), 0);
    assert_int_equal(json_array_size(json_object_get(json_object_get(value, "pieces"), "counts")), 0);
    assert_null(strstr(text.bytes, "nan"));
    json_decref(value);
    buf_clear(&text);
    buf_clear(&json);
    load_result_clear(&result);
}

static void details_have_percentiles_and_pieces_over_time(void **state)
{
    (void)state;
    enum { N_TICKS = 3, N_GAPS = 5 };
    static const uint32_t GAPS_US[N_GAPS] = { 9000, 1000, 5000, 3000, 7000 };
    struct work work = { 0 };
    struct load_options options = { .url = "http://h", .work = &work, .rate = 1 };
    options.style.temperature = NAN;
    struct load_run run = { .n_ticks = N_TICKS, .ticks = calloc(N_TICKS, sizeof *run.ticks), .total_s = 0.3 };
    struct load_targets none = { NAN, NAN };
    struct load_result result;
    struct buf json = { 0 };
    assert_non_null(run.ticks);
    run.ticks[1] = 7;
    for (int i = 0; i < N_GAPS; i++)
        assert_true(samples_add(&run.gaps, GAPS_US[i]));
    assert_int_equal(load_result_compute(&result, &run, &none, NULL), TUTTI_OK);
    assert_int_equal(
        load_report_json(&json, &(struct load_report){ &options, &run, &result, none }, true, NULL),
        TUTTI_OK);
    json_t *value = json_loadb(json.bytes, json.n_bytes, 0, NULL);
    const json_t *itl = json_object_get(json_object_get(value, "percentiles_ms"), "itl");
    assert_int_equal(json_array_size(itl), 101);
    for (size_t i = 0; i <= 100; i++) /* on a line from 1 to 9 ms */
        assert_near(json_number_value(json_array_get(itl, i)), 1 + 0.08 * (double)i);
    const json_t *pieces = json_object_get(value, "pieces");
    assert_near(json_number_value(json_object_get(pieces, "tick_s")), 0.1);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(pieces, "counts"), 1)), 7);
    json_decref(value);
    buf_clear(&json);
    load_result_clear(&result);
    load_run_clear(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_without_requests_has_reports),
        cmocka_unit_test(details_have_percentiles_and_pieces_over_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
