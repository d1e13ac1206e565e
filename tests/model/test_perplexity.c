/* Windows of a text, figures over them, and the file that one model's opinion travels in. */
#include "offline/logits_base.h"
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_IDS = 700 };
static int32_t ids[N_IDS];
static char path[128];

static int setup(void **state)
{
    static struct model *model;
    model = util_load(TEST_FIXTURES "/llama-tiny", "q8_0", NULL, 2, NULL);
    uint32_t x = 1;
    for (int i = 0; i < N_IDS; i++) {
        x = x * 1664525 + 1013904223;
        ids[i] = (int32_t)(x >> 8) % model->desc.n_vocab;
    }
    snprintf(path, sizeof path, "/tmp/tutti-perplexity-%d.base", (int)getpid());
    *state = model;
    return 0;
}

static int teardown(void **state)
{
    model_free(*state);
    unlink(path);
    return 0;
}

/* ---- windows ---- */

struct expected {
    struct model *model, *other; /* other: the same, to compare with; the first is in the middle of a step */
    const struct windows *windows;
    int window, row; /* that must come next */
    const int32_t *head;
    int n_head;
};

static enum tutti_status compare_rows(void *user, int window, int row, int n_rows, const float *logits,
                                      struct tutti_error *err)
{
    (void)err;
    struct expected *e = user;
    const struct windows *w = e->windows;
    int n_vocab = e->model->desc.n_vocab;
    assert_int_equal(window, e->window);
    assert_int_equal(row, e->row);
    e->row += n_rows;
    if (e->row == windows_n_scored(w)) {
        e->row = 0;
        e->window++;
    }
    int32_t one[N_IDS];
    memcpy(one, w->ids + window * w->step, (size_t)w->n_context * sizeof *one);
    memcpy(one, e->head, (size_t)e->n_head * sizeof *one);
    float *want = util_logits(e->other, one, w->n_context, 17);
    for (int i = 0; i < n_rows; i++) {
        assert_memory_equal(logits + (size_t)i * (size_t)n_vocab,
                            want + (size_t)(w->first + row + i) * (size_t)n_vocab,
                            (size_t)n_vocab * sizeof *want);
        assert_int_equal(windows_target(w, window, row + i),
                         w->ids[window * w->step + w->first + row + i + 1]);
    }
    free(want);
    return TUTTI_OK;
}

static void rows_have_the_bits_of_each_window_alone(void **state)
{
    static const int32_t HEAD[] = { 5, 6 };
    static const struct windows CASES[] = {
        { .n = 7, .n_context = 64, .step = 64, .first = 32 },    /* four in a step, then three */
        { .n = 2, .n_context = 300, .step = 300, .first = 150 }, /* more than a step */
        { .n = 3, .n_context = 300, .step = 100, .first = 280 }, /* scored rows in the second step alone */
        { .n = 9, .n_context = 40, .step = 10, .first = 29, .head = HEAD, .n_head = 2 },
        { .n = 1, .n_context = 2, .step = 2, .first = 0, .head = HEAD, .n_head = 1 },
    };
    struct model *other = util_load(TEST_FIXTURES "/llama-tiny", "q8_0", NULL, 1, NULL);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct windows w = CASES[i];
        struct expected e = {
            .model = *state, .other = other, .windows = &w, .head = w.head ? w.head : ids, .n_head = w.n_head
        };
        struct tutti_error err;
        w.ids = ids;
        if (windows_run(*state, &w, compare_rows, &e, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        assert_int_equal(e.window, w.n);
    }
    model_free(other);
}

/* ChatGLM-6B reads what stands before its <sop> in both directions, which must then be one step. */
static void a_prefix_is_not_cut(void **state)
{
    (void)state;
    static const char PATH[] = TEST_FIXTURES "/chatglm-6b-tiny";
    static const int ENDS[] = { 10, 280, 400 }; /* 400: none in the window */
    struct model *model = util_load(PATH, NULL, NULL, 2, NULL), *other = util_load(PATH, NULL, NULL, 1, NULL);
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        int32_t text[600];
        for (int p = 0; p < 600; p++)
            text[p] = p % 300 == ENDS[i]       ? model->desc.prefix_end_id
                      : p % 300 == ENDS[i] - 1 ? model->desc.mask_ids[0]
                                               : 5 + ids[p] % 50;
        struct windows w = { .ids = text, .n = 2, .n_context = 300, .step = 300, .first = 285 };
        struct expected e = { .model = model, .other = other, .windows = &w, .head = text };
        struct tutti_error err;
        if (windows_run(model, &w, compare_rows, &e, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        assert_int_equal(e.window, 2);
    }
    model_free(model);
    model_free(other);
}

static enum tutti_status stop_at_once(void *user, int window, int row, int n_rows, const float *logits,
                                      struct tutti_error *err)
{
    (void)window, (void)row, (void)n_rows, (void)logits;
    ++*(int *)user;
    return error_set(err, TUTTI_E_IO, "enough");
}

static void windows_that_cannot_be_are_refused(void **state)
{
    struct windows w = { .ids = ids, .n = 2, .n_context = 16, .step = 16, .first = 8 };
    struct tutti_error err;
    int calls = 0;
    assert_int_equal(windows_run(*state, &w, stop_at_once, &calls, &err), TUTTI_E_IO);
    assert_int_equal(calls, 1);
    w.first = 15;
    assert_int_equal(windows_run(*state, &w, stop_at_once, &calls, &err), TUTTI_E_ARGUMENT);
    w.first = 8;
    w.n = 0;
    assert_int_equal(windows_run(*state, &w, stop_at_once, &calls, &err), TUTTI_E_ARGUMENT);
    w.n = 2;
    int32_t kept = ids[20];
    ids[20] = 317;
    assert_int_equal(windows_run(*state, &w, stop_at_once, &calls, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "token id 317 at 20"));
    ids[20] = kept;
    assert_int_equal(calls, 1);
}

/* ---- figures ---- */

enum { N_VOCAB = 50, N_ROWS = 400 };

static float noise(uint32_t *x)
{
    *x = *x * 1664525 + 1013904223;
    return (float)(*x >> 8) * 0x1p-24f;
}

static void fill(float *logits, uint32_t seed, float spread)
{
    noise(&seed);
    for (int i = 0; i < N_VOCAB; i++)
        logits[i] += (noise(&seed) - 0.5f) * spread;
}

static void log_softmax(double *out, const float *logits)
{
    double sum = 0;
    for (int i = 0; i < N_VOCAB; i++)
        sum += exp((double)logits[i]);
    for (int i = 0; i < N_VOCAB; i++)
        out[i] = (double)logits[i] - log(sum);
}

static void near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%.9g, expected %.9g", found, expected);
}

static void figures_are_what_their_definitions_say(void **state)
{
    (void)state;
    struct perplexity p;
    uint16_t codes[N_VOCAB];
    double nll = 0, base_nll = 0, squares = 0, kl = 0, ratio_squares = 0, largest = 0, n = N_ROWS;
    int same = 0;
    assert_int_equal(perplexity_init(&p, N_VOCAB, true, NULL), TUTTI_OK);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        float base[N_VOCAB] = { 0 }, logits[N_VOCAB];
        double a[N_VOCAB], b[N_VOCAB], row_kl = 0;
        int target = (int)(r * 7 % N_VOCAB), top = 0, base_top = 0;
        struct coded_row coded = { .codes = codes, .has_nll = true };
        fill(base, r * 2654435761u, 12);
        memcpy(logits, base, sizeof logits);
        fill(logits, ~r * 2654435761u, 2);
        log_softmax(a, logits);
        log_softmax(b, base);
        assert_true(perplexity_encode(&p, base, &coded.scale, &coded.min, codes));
        coded.nll = (float)-b[target];
        assert_int_equal(perplexity_add(&p, logits, target, &coded, NULL), TUTTI_OK);
        for (int i = 0; i < N_VOCAB; i++) {
            near((double)coded.scale * codes[i] + (double)coded.min, b[i], 2e-4);
            row_kl += exp(b[i]) * (b[i] - a[i]);
            top = logits[i] > logits[top] ? i : top;
            base_top = base[i] > base[base_top] ? i : base_top;
        }
        nll -= a[target];
        base_nll -= b[target];
        squares += a[target] * a[target];
        ratio_squares += (a[target] - b[target]) * (a[target] - b[target]);
        kl += row_kl;
        largest = row_kl > largest ? row_kl : largest;
        same += top == base_top;
    }
    double mean = nll / n, ratio = (nll - base_nll) / n;
    near(perplexity_value(&p).value, exp(mean), 1e-4 * exp(mean));
    near(perplexity_value(&p).error, exp(mean) * sqrt((squares / n - mean * mean) / (n - 1)), 1e-4);
    near(perplexity_base_value(&p).value, exp(base_nll / n), 1e-3);
    near(perplexity_log_ratio(&p).value, ratio, 1e-5);
    near(perplexity_log_ratio(&p).error, sqrt((ratio_squares / n - ratio * ratio) / (n - 1)), 1e-5);
    near(perplexity_difference(&p).value, exp(mean) - exp(base_nll / n), 1e-3);
    near(perplexity_kl(&p).value, kl / n, 1e-4);
    near(perplexity_kl_quantile(&p, 1), largest, 1e-3);
    assert_true(perplexity_kl_quantile(&p, 0.5) < perplexity_kl_quantile(&p, 0.99));
    near(perplexity_same_top(&p).value, same / n, 0);
    assert_in_range(same, N_ROWS / 2, N_ROWS - 1);
    perplexity_clear(&p);
}

static void rows_far_apart_equal_or_broken_are_coded(void **state)
{
    (void)state;
    struct perplexity p;
    float logits[N_VOCAB] = { 0 }, scale, min;
    uint16_t codes[N_VOCAB];
    assert_int_equal(perplexity_init(&p, N_VOCAB, false, NULL), TUTTI_OK);
    assert_true(perplexity_encode(&p, logits, &scale, &min, codes)); /* all equal */
    near((double)scale * codes[7] + (double)min, -log(N_VOCAB), 1e-5);
    logits[3] = 1e30f;
    logits[4] = -1e30f;
    assert_true(perplexity_encode(&p, logits, &scale, &min, codes));
    assert_int_equal(codes[3], 65535);
    assert_int_equal(codes[4], 0);
    near((double)scale * codes[3] + (double)min, 0, 1e-4);
    near((double)min, -16, 1e-4);
    logits[5] = NAN;
    assert_false(perplexity_encode(&p, logits, &scale, &min, codes));
    struct tutti_error err;
    assert_int_equal(perplexity_add(&p, logits, 0, NULL, &err), TUTTI_E_NUMERIC);
    perplexity_clear(&p);
}

/* ---- the file ---- */

static void write_base(struct model *model, const struct windows *w)
{
    struct logits_base_writer *writer;
    struct perplexity p;
    int n_vocab = model->desc.n_vocab;
    float *logits = calloc((size_t)n_vocab, sizeof *logits);
    assert_int_equal(perplexity_init(&p, n_vocab, false, NULL), TUTTI_OK);
    assert_int_equal(logits_base_create(&writer, path, model, w, NULL), TUTTI_OK);
    for (int i = 0; i < w->n * windows_n_scored(w); i++) {
        logits[i % n_vocab] = (float)i * 0.25f;
        assert_int_equal(logits_base_add(writer, &p, logits, i % n_vocab, NULL), TUTTI_OK);
    }
    assert_int_equal(logits_base_finish(writer, NULL), TUTTI_OK);
    logits_base_writer_free(writer);
    perplexity_clear(&p);
    free(logits);
}

static const struct windows WINDOWS = {
    .ids = ids, .n = 3, .n_context = 8, .step = 6, .first = 4, .head = ids + 9, .n_head = 1
};

static void a_base_comes_back(void **state)
{
    struct model *model = *state;
    struct logits_base *base;
    struct tutti_error err;
    struct coded_row row;
    write_base(model, &WINDOWS);
    if (logits_base_open(&base, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    const struct windows *w = logits_base_windows(base);
    assert_int_equal(w->n, 3);
    assert_int_equal(w->n_context, 8);
    assert_int_equal(w->step, 6);
    assert_int_equal(w->first, 4);
    assert_memory_equal(w->ids, ids, 20 * sizeof *ids);
    assert_int_equal(w->n_head, 1);
    assert_int_equal(w->head[0], ids[9]);
    assert_string_equal(logits_base_name(base), "llama-tiny");
    assert_int_equal(logits_base_n_vocab(base), model->desc.n_vocab);
    assert_true(logits_base_fits(base, model));
    assert_false(logits_base_is_llama(base));
    for (int i = 0; i < 9; i++) {
        assert_int_equal(logits_base_next(base, &row, &err), TUTTI_OK);
        assert_true(row.has_nll && row.nll >= 0);
        assert_int_equal(row.codes[i == 0 ? 3 : i], i == 0 ? 0 : 65535); /* the first row is flat */
    }
    assert_int_equal(logits_base_next(base, &row, &err), TUTTI_E_INTERNAL);
    logits_base_close(base);
    model->desc.n_layers++;
    assert_int_equal(logits_base_open(&base, path, &err), TUTTI_OK);
    assert_false(logits_base_fits(base, model));
    logits_base_close(base);
    model->desc.n_layers--;
}

static void rewrite(const uint8_t *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static uint8_t *read_base(size_t *n)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    assert_true(file && fstat(fileno(file), &info) == 0);
    *n = (size_t)info.st_size;
    uint8_t *bytes = malloc(*n);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    fclose(file);
    return bytes;
}

static void broken_bases_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *words;
    } CASES[] = {
        { 0, 0x12345678, "does not begin with" },
        { 8, 0, "vocabulary of 0" },
        { 8, UINT32_MAX, "vocabulary of 4294967295" },
        { 12, 0, "number of windows 0" },
        { 12, 0x7FFFFFFF, "it is cut off" },
        { 16, 1, "window of 1" },
        { 20, 0, "step of 0" },
        { 20, 9, "step of 9" },
        { 24, 7, "first scored row 7" },
        { 28, 6, "head of 6" },
        { 28, 2, "it is cut off" },
        { 32, 1, "were changed" },
        { 112, 5000, "were changed" },
    };
    struct logits_base *base = NULL;
    struct tutti_error err;
    struct coded_row row;
    size_t n;
    write_base(*state, &WINDOWS);
    uint8_t *bytes = read_base(&n);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        uint8_t kept[4];
        memcpy(kept, bytes + CASES[i].at, 4);
        memcpy(bytes + CASES[i].at, &CASES[i].value, 4);
        rewrite(bytes, n);
        memcpy(bytes + CASES[i].at, kept, 4);
        assert_int_equal(logits_base_open(&base, path, &err), TUTTI_E_FORMAT);
        if (!strstr(err.text, CASES[i].words) || !strstr(err.text, path))
            fail_msg("\"%s\", expected \"%s\"", err.text, CASES[i].words);
    }
    for (size_t cut = 0; cut < n; cut += cut < 200 ? 1 : 97) {
        rewrite(bytes, cut);
        assert_int_equal(logits_base_open(&base, path, &err), TUTTI_E_FORMAT);
    }
    float nan = NAN;
    memcpy(bytes + 112 + 4 * 21, &nan, sizeof nan); /* the first row's scale */
    rewrite(bytes, n);
    assert_int_equal(logits_base_open(&base, path, &err), TUTTI_OK);
    assert_int_equal(logits_base_next(base, &row, &err), TUTTI_E_FORMAT);
    logits_base_close(base);
    assert_int_equal(logits_base_open(&base, "/no/such.base", &err), TUTTI_E_NOT_FOUND);
    free(bytes);
}

/* Whatever is changed, opening and reading say yes or no. */
static void changed_bases_are_read_or_refused(void **state)
{
    size_t n;
    uint32_t x = 5;
    write_base(*state, &WINDOWS);
    uint8_t *bytes = read_base(&n), *changed = malloc(n);
    int n_opened = 0;
    for (int round = 0; round < 400; round++) {
        struct logits_base *base = NULL;
        struct coded_row row;
        struct tutti_error err = { 0 };
        memcpy(changed, bytes, n);
        for (int i = 0; i < 1 + round % 4; i++) {
            x = x * 1664525 + 1013904223;
            size_t at = (x >> 8) % (round % 2 ? 112 : n);
            changed[at] = (uint8_t)(round % 3 ? changed[at] ^ 1u << (x >> 5) % 8 : x >> 24);
        }
        rewrite(changed, n);
        if (logits_base_open(&base, path, &err) == TUTTI_OK) {
            n_opened++;
            for (int i = 0; i < 9 && logits_base_next(base, &row, &err) == TUTTI_OK; i++)
                assert_true(isfinite(row.scale) && isfinite(row.min));
            logits_base_close(base);
        } else {
            assert_true(err.text[0] != '\0');
        }
    }
    assert_in_range(n_opened, 50, 350);
    free(bytes);
    free(changed);
}

/* Two windows of four ids of a vocabulary of three: one row each, two numbers and four codes. */
static void a_base_of_llama_perplexity_is_read(void **state)
{
    (void)state;
    struct {
        char magic[8];
        int32_t numbers[3], ids[8];
        struct {
            float numbers[2];
            uint16_t codes[4];
        } rows[2];
    } file = {
        "", { 4, 3, 2 }, { 0, 1, 2, 0, 1, 2, 0, 1 }, { { { 0.5f, -3 }, { 1, 2, 6 } }, { { 0, -1 }, { 0 } } }
    };
    memcpy(file.magic, "_logits_", 8);
    struct logits_base *base;
    struct tutti_error err;
    struct coded_row row;
    rewrite((const uint8_t *)&file, sizeof file);
    if (logits_base_open(&base, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_true(logits_base_is_llama(base));
    assert_int_equal(logits_base_windows(base)->first, 2);
    assert_int_equal(windows_target(logits_base_windows(base), 1, 0), 1);
    assert_int_equal(logits_base_next(base, &row, &err), TUTTI_OK);
    assert_true(row.scale == 0.5f && row.min == -3 && row.codes[2] == 6 && !row.has_nll);
    assert_int_equal(logits_base_next(base, &row, &err), TUTTI_OK);
    logits_base_close(base);
    file.ids[3] = 3;
    rewrite((const uint8_t *)&file, sizeof file);
    assert_int_equal(logits_base_open(&base, path, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "id 3 at 3, expected 0 to 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_each_window_alone),
        cmocka_unit_test(a_prefix_is_not_cut),
        cmocka_unit_test(windows_that_cannot_be_are_refused),
        cmocka_unit_test(figures_are_what_their_definitions_say),
        cmocka_unit_test(rows_far_apart_equal_or_broken_are_coded),
        cmocka_unit_test(a_base_comes_back),
        cmocka_unit_test(broken_bases_are_refused),
        cmocka_unit_test(changed_bases_are_read_or_refused),
        cmocka_unit_test(a_base_of_llama_perplexity_is_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
