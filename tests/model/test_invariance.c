/* The bits of logits depend on the sequence alone: not on chunks, neighbours in the step, threads, or the processor. */
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_IDS = 100 };

static void fill_ids(int32_t *ids, int n, int n_vocab, uint32_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)n_vocab);
    }
}

#define FLOAT8 TEST_FIXTURES "/quantized/deepseek-v3-fp8" /* with both types of 8-bit floats */

static const struct {
    const char *path, *weights, *kv;
} TYPES[] = { { TEST_SHORT_MODEL, "f32", NULL },    { TEST_SHORT_MODEL, "f16", NULL },
              { TEST_SHORT_MODEL, "bf16", NULL },   { TEST_SHORT_MODEL, "q8_0", NULL },
              { TEST_SHORT_MODEL, "q4_0", NULL },   { TEST_SHORT_MODEL, "q8_0", "int8" },
              { TEST_SHORT_MODEL, "bf16", "bf16" }, { FLOAT8, NULL, NULL } };
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

static void chunks_change_no_bit(void **state)
{
    (void)state;
    static const int CHUNKS[] = { 1, 7, 64 };
    for (int t = 0; t < N_TYPES; t++) {
        struct model *model = util_load(TYPES[t].path, TYPES[t].weights, TYPES[t].kv, 2, NULL);
        int32_t ids[N_IDS];
        fill_ids(ids, N_IDS, model->desc.n_vocab, 1);
        float *whole = util_logits(model, ids, N_IDS, N_IDS);
        for (int c = 0; c < 3; c++) {
            float *cut = util_logits(model, ids, N_IDS, CHUNKS[c]);
            assert_memory_equal(cut, whole, sizeof *cut * N_IDS * (size_t)model->desc.n_vocab);
            free(cut);
        }
        free(whole);
        model_free(model);
    }
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        float *first = NULL;
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct model *model = util_load(TYPES[t].path, TYPES[t].weights, TYPES[t].kv, n_threads, NULL);
            int32_t ids[N_IDS];
            fill_ids(ids, N_IDS, model->desc.n_vocab, 2);
            float *logits = util_logits(model, ids, N_IDS, N_IDS);
            if (!first)
                first = logits;
            else {
                assert_memory_equal(logits, first, sizeof *logits * N_IDS * (size_t)model->desc.n_vocab);
                free(logits);
            }
            model_free(model);
        }
        free(first);
    }
}

static void processors_change_no_bit(void **state)
{
    (void)state;
    static const char *const CPUS[] = { "ref", "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm" };
    for (int t = 0; t < N_TYPES; t++) {
        float *first = NULL;
        for (size_t c = 0; c < sizeof CPUS / sizeof *CPUS; c++) {
            struct tutti_model_options options = { .weight_type = TYPES[t].weights,
                                                   .kv_type = TYPES[t].kv,
                                                   .cpu = CPUS[c] };
            struct model *model = NULL;
            enum tutti_status st = model_load(&model, TYPES[t].path, &options, NULL);
            if (st == TUTTI_E_UNSUPPORTED) /* this processor has no such instructions */
                continue;
            assert_int_equal(st, TUTTI_OK);
            int32_t ids[40];
            fill_ids(ids, 40, model->desc.n_vocab, 3);
            float *logits = util_logits(model, ids, 40, 40);
            if (!first)
                first = logits;
            else {
                assert_memory_equal(logits, first, sizeof *logits * 40 * (size_t)model->desc.n_vocab);
                free(logits);
            }
            model_free(model);
        }
        free(first);
    }
}

/* Five sequences of different lengths, prompt rows and single rows mixed in every step. */
static void neighbours_change_no_bit(void **state)
{
    (void)state;
    enum { N_SEQS = 5, MAX_PAGES = 8 };
    static const int LENGTHS[N_SEQS] = { 1, 16, 17, 33, 100 };
    for (int t = 0; t < N_TYPES; t++) {
        struct model *model = util_load(TYPES[t].path, TYPES[t].weights, TYPES[t].kv, 2, NULL);
        const struct backend_ops *op = model->backend->ops;
        size_t n_vocab = (size_t)model->desc.n_vocab;
        int32_t ids[N_SEQS][N_IDS], pages[N_SEQS][MAX_PAGES];
        const int32_t *tables[N_SEQS];
        float *alone[N_SEQS], *logits;
        for (int s = 0; s < N_SEQS; s++) {
            fill_ids(ids[s], LENGTHS[s], model->desc.n_vocab, 10 + (uint32_t)s);
            alone[s] = util_logits(model, ids[s], LENGTHS[s], LENGTHS[s]);
            for (int p = 0; p < MAX_PAGES; p++)
                pages[s][p] = p * N_SEQS + s;
            tables[s] = pages[s];
        }
        struct kv_memory *kv;
        assert_int_equal(model_reserve(model, 64, 64, NULL), TUTTI_OK);
        assert_int_equal(
            op->kv_new(model->backend, &kv, N_SEQS * MAX_PAGES, N_SEQS * MAX_PAGES, model->kv_type, NULL),
            TUTTI_OK);
        logits = malloc(64 * n_vocab * sizeof *logits);
        assert_non_null(logits);
        int done[N_SEQS] = { 0 };
        for (int turn = 0;; turn++) {
            int32_t rows_ids[64], positions[64], seqs[64], outputs[64];
            int n = 0;
            for (int s = 0; s < N_SEQS; s++) {
                int take = 1 + (turn * 7 + s * 5) % 12; /* another mixture each step */
                for (; take > 0 && done[s] < LENGTHS[s] && n < 64; take--, n++) {
                    rows_ids[n] = ids[s][done[s]];
                    positions[n] = done[s]++;
                    seqs[n] = s;
                    outputs[n] = n;
                }
            }
            if (n == 0)
                break;
            struct step step = { .n_rows = n,
                                 .n_seqs = N_SEQS,
                                 .n_outputs = n,
                                 .token_ids = rows_ids,
                                 .positions = positions,
                                 .seqs = seqs,
                                 .page_tables = tables,
                                 .output_rows = outputs };
            model_read_logits(model, model_forward(model, kv, &step), step.n_outputs - step.n_hidden, logits);
            for (int r = 0; r < n; r++)
                assert_memory_equal(logits + (size_t)r * n_vocab,
                                    alone[seqs[r]] + (size_t)positions[r] * n_vocab,
                                    n_vocab * sizeof *logits);
        }
        op->kv_free(model->backend, kv);
        free(logits);
        for (int s = 0; s < N_SEQS; s++)
            free(alone[s]);
        model_free(model);
    }
}

/* A prompt in three steps: without outputs, with those of two rows in another order, and with that of the last row. */
static void rows_without_outputs_change_no_bit(void **state)
{
    static const char *const NAMES[] = { "llama-tiny",      "pangu-tiny",     "gpt2-tiny",
                                         "bloom-tiny-post", "glm4-tiny",      "gemma3-tiny",
                                         "falcon-tiny",     "gptj-tiny",      "phi2-tiny",
                                         "olmo2-tiny",      "gpt-neox-tiny",  "deepseek-v3-tiny",
                                         "gpt-oss-tiny",    "qwen2-moe-tiny", "mixtral-tiny",
                                         "gemma4-moe-tiny" };
    static const struct {
        int n_rows, n_outputs, outputs[2];
    } STEPS[] = { { 7, 0, { 0 } }, { 6, 2, { 3, 0 } }, { 7, 1, { 6 } } };
    enum { N = 20, MOST = 7, PAGES = 4 };
    (void)state;
    for (size_t f = 0; f < sizeof NAMES / sizeof *NAMES; f++) {
        char path[256];
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", NAMES[f]);
        struct model *model = util_load(path, NULL, NULL, 2, NULL);
        const struct backend_ops *op = model->backend->ops;
        size_t n_vocab = (size_t)model->desc.n_vocab;
        int32_t ids[N], pages[PAGES] = { 0, 1, 2, 3 }, positions[MOST], seqs[MOST] = { 0 }, outputs[MOST];
        const int32_t *tables[1] = { pages };
        fill_ids(ids, N, model->desc.n_vocab, 7);
        float *all = util_logits(model, ids, N, N), *logits = malloc(2 * n_vocab * sizeof *logits);
        struct kv_memory *kv;
        assert_non_null(logits);
        assert_int_equal(model_reserve(model, MOST, 2, NULL), TUTTI_OK);
        assert_int_equal(op->kv_new(model->backend, &kv, PAGES, PAGES, model->kv_type, NULL), TUTTI_OK);
        for (size_t i = 0, done = 0; i < sizeof STEPS / sizeof *STEPS; done += (size_t)STEPS[i++].n_rows) {
            for (int r = 0; r < STEPS[i].n_rows; r++)
                positions[r] = (int32_t)done + r;
            for (int o = 0; o < STEPS[i].n_outputs; o++)
                outputs[o] = STEPS[i].outputs[o];
            struct step step = { .n_rows = STEPS[i].n_rows,
                                 .n_seqs = 1,
                                 .n_outputs = STEPS[i].n_outputs,
                                 .token_ids = ids + done,
                                 .positions = positions,
                                 .seqs = seqs,
                                 .page_tables = tables,
                                 .output_rows = outputs };
            model_read_logits(model, model_forward(model, kv, &step), step.n_outputs, logits);
            for (int o = 0; o < step.n_outputs; o++)
                if (memcmp(logits + (size_t)o * n_vocab, all + (size_t)positions[outputs[o]] * n_vocab,
                           n_vocab * sizeof *logits))
                    fail_msg("%s: other logits at position %d", NAMES[f], positions[outputs[o]]);
        }
        op->kv_free(model->backend, kv);
        free(logits);
        free(all);
        model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(processors_change_no_bit),
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(rows_without_outputs_change_no_bit),
    };
    const struct CMUnitTest card_tests[] = {
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(rows_without_outputs_change_no_bit),
    };
    return util_device() ? cmocka_run_group_tests(card_tests, NULL, NULL)
                         : cmocka_run_group_tests(tests, NULL, NULL);
}
