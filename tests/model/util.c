#include "util.h"

#include "support/on_card.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int32_t util_adapter = -1;

const char *util_device(void)
{
    return getenv("TUTTI_TEST_DEVICE");
}

struct model *util_load(const char *path, const char *weight_type, const char *kv_type, int n_threads,
                        const char *cpu)
{
    struct tutti_model_options options = { .weight_type = weight_type,
                                           .kv_type = kv_type,
                                           .n_threads = n_threads,
                                           .cpu = cpu,
                                           .device = util_device() };
    struct tutti_error err = { 0 };
    struct model *model = NULL;
    (void)next_division(&options, "");
    enum tutti_status st;
    do {
        st = model_load(&model, path, &options, &err);
    } while (st != TUTTI_OK && next_division(&options, err.param));
    if (st != TUTTI_OK)
        fail_msg("%s", err.text);
    return model;
}

/* A sequence with pages of its own, fed in chunks. It begins with the adapter's virtual tokens. */
struct run {
    struct model *model;
    struct kv_memory *kv;
    int32_t *pages, *prompt; /* prompt: [n_prompt], with virtual tokens */
    int n_prompt, n_virtual;
    struct prefix prefix;
    int n_done;
};

static struct run start(struct model *model, const int32_t *prompt, int n_prompt, int n_more, int max_rows)
{
    struct adapter_virtual virtual = model_adapter_virtual(model, util_adapter);
    struct run run = { .model = model,
                       .prefix = model_find_prefix(&model->desc, prompt, n_prompt),
                       .n_prompt = virtual.n + n_prompt,
                       .n_virtual = virtual.n };
    int n_pages = model_pages_of(model, run.n_prompt + n_more);
    if (virtual.is_before_zero)
        model_prefix_shift(&run.prefix, virtual.n);
    max_rows = max_rows < run.prefix.n ? run.prefix.n : max_rows;
    assert_int_equal(model_reserve(model, max_rows, max_rows, NULL), TUTTI_OK);
    assert_int_equal(
        model->backend->ops->kv_new(model->backend, &run.kv, n_pages, n_pages, model->kv_type, NULL),
        TUTTI_OK);
    run.pages = malloc((size_t)n_pages * sizeof *run.pages);
    run.prompt = calloc((size_t)run.n_prompt, sizeof *run.prompt);
    assert_true(run.pages && run.prompt);
    memcpy(run.prompt + virtual.n, prompt, (size_t)n_prompt * sizeof *prompt);
    for (int i = 0; i < n_pages; i++)
        run.pages[i] = n_pages - 1 - i; /* not in order: positions go through the table */
    return run;
}

static void feed(struct run *run, const int32_t *ids, int n, bool all_outputs, float *logits)
{
    int32_t *numbers = malloc(5 * (size_t)n * sizeof *numbers), *positions = numbers, *seqs = numbers + n,
            *outputs = numbers + 2 * n, *ropes = numbers + 3 * n, *blocks = numbers + 4 * n;
    bool has_prefix = run->model->desc.has_prefix;
    assert_non_null(numbers);
    assert_true(run->n_done >= run->prefix.n || n >= run->prefix.n); /* prefixes are not cut */
    for (int i = 0; i < n; i++) {
        positions[i] = run->n_done + i;
        model_prefix_positions(&run->prefix, positions[i], &ropes[i], &blocks[i]);
        seqs[i] = 0;
        outputs[i] = all_outputs ? i : n - 1;
    }
    const int32_t *tables[1] = { run->pages };
    struct step step = { .n_rows = n,
                         .n_seqs = 1,
                         .n_outputs = all_outputs ? n : 1,
                         .token_ids = ids,
                         .positions = positions,
                         .seqs = seqs,
                         .page_tables = tables,
                         .output_rows = outputs,
                         .prefix_lens = has_prefix ? &run->prefix.n : NULL,
                         .rope_positions = has_prefix || run->prefix.n_before_zero > 0 ? ropes : NULL,
                         .block_positions = has_prefix ? blocks : NULL,
                         .adapters = &util_adapter };
    model_read_logits(run->model, model_forward(run->model, run->kv, &step), step.n_outputs - step.n_hidden,
                      logits);
    run->n_done += n;
    free(numbers);
}

static void stop(struct run *run)
{
    run->model->backend->ops->kv_free(run->model->backend, run->kv);
    free(run->pages);
    free(run->prompt);
}

float *util_logits(struct model *model, const int32_t *ids, int n, int chunk)
{
    size_t n_vocab = (size_t)model->desc.n_vocab;
    struct run run = start(model, ids, n, 0, chunk < n ? chunk : n);
    int n_rows = run.n_prompt, n_virtual = run.n_virtual;
    float *logits = malloc((size_t)n_rows * n_vocab * sizeof *logits);
    assert_non_null(logits);
    chunk = chunk < n ? chunk : n;
    for (int at = 0, take; at < n_rows; at += take) {
        take = at < run.prefix.n && chunk < run.prefix.n ? run.prefix.n : chunk;
        take = n_rows - at < take ? n_rows - at : take;
        feed(&run, run.prompt + at, take, true, logits + (size_t)at * n_vocab);
    }
    stop(&run);
    memmove(logits, logits + (size_t)n_virtual * n_vocab, (size_t)n * n_vocab * sizeof *logits);
    return logits;
}

static int32_t largest(const float *x, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    return best;
}

void util_greedy(struct model *model, const int32_t *prompt, int n_prompt, int32_t *answer, int n)
{
    int n_vocab = model->desc.n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    assert_non_null(logits);
    struct run run = start(model, prompt, n_prompt, n,
                           n_prompt + model_adapter_virtual(model, util_adapter).n);
    feed(&run, run.prompt, run.n_prompt, false, logits);
    for (int i = 0; i < n; i++) {
        answer[i] = largest(logits, n_vocab);
        feed(&run, &answer[i], 1, false, logits);
    }
    stop(&run);
    free(logits);
}

const struct tensor *util_golden(const struct tensor_set *file, int k, const char *name)
{
    char want[64];
    snprintf(want, sizeof want, "%d.%s", k, name);
    for (size_t i = 0; i < file->n; i++) {
        if (strcmp(file->tensors[i].name, want) == 0)
            return &file->tensors[i];
    }
    fail_msg("golden tensor %s is missing", want);
    return NULL;
}

json_t *util_load_json(const char *path)
{
    json_error_t err;
    json_t *root = json_load_file(path, 0, &err);
    if (!root)
        fail_msg("%s: %s", path, err.text);
    return root;
}

int util_read_ids(const json_t *array, int32_t *ids)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return (int)json_array_size(array);
}

/* rms: of each position. */
static void compare(struct util_errors *e, double *rms, const float *got, const float *want, int n,
                    int n_vocab)
{
    for (int p = 0; p < n; p++) {
        double peak = 0, worst = 0, squares = 0, squared_errors = 0;
        for (int i = 0; i < n_vocab; i++) {
            double w = (double)want[(size_t)p * (size_t)n_vocab + (size_t)i];
            double d = fabs((double)got[(size_t)p * (size_t)n_vocab + (size_t)i] - w);
            assert_true(d == d);
            peak = fabs(w) > peak ? fabs(w) : peak;
            worst = d > worst ? d : worst;
            squares += w * w;
            squared_errors += d * d;
        }
        e->sum_squares += squares;
        e->sum_squared_errors += squared_errors;
        rms[p] = sqrt(squared_errors / squares);
        e->max_abs = worst > e->max_abs ? worst : e->max_abs;
        e->max_relative = worst / peak > e->max_relative ? worst / peak : e->max_relative;
    }
    e->rms = sqrt(e->sum_squared_errors / e->sum_squares);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct util_errors util_compare_file(struct model *model, const char *golden_path, const char *tensor,
                                     int n_prompts)
{
    enum { MOST_POSITIONS = 4096 };
    struct util_errors errors = { 0 };
    double *rms = malloc(MOST_POSITIONS * sizeof *rms);
    int n_positions = 0;
    struct tensor_set *golden;
    assert_non_null(rms);
    assert_int_equal(tensor_set_open_as(&golden, &SAFETENSORS_FORMAT, golden_path, NULL), TUTTI_OK);
    for (int k = 0; k < n_prompts; k++) {
        const struct tensor *ids = util_golden(golden, k, "ids"), *logits = util_golden(golden, k, tensor);
        int n = (int)ids->shape[0];
        int32_t *copy = malloc(ids->n_bytes);
        float *want = malloc(logits->n_bytes);
        assert_true(copy && want);
        memcpy(copy, ids->data, ids->n_bytes);
        memcpy(want, logits->data, logits->n_bytes);
        float *got = util_logits(model, copy, n, n);
        assert_true(n > 0 && n <= MOST_POSITIONS - n_positions);
        compare(&errors, rms + n_positions, got, want, n, model->desc.n_vocab);
        n_positions += n;
        free(got);
        free(want);
        free(copy);
    }
    tensor_set_close(golden);
    qsort(rms, (size_t)n_positions, sizeof *rms, compare_doubles);
    errors.median_rms = rms[n_positions / 2];
    free(rms);
    return errors;
}
