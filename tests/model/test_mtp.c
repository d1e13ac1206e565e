/* The layer for multi-token prediction against transformers' decoder layers joined by the published formula
 * (tools/fixtures/mtp_fixtures.py): its logits for each position of a text, and for further tokens that it predicts from
 * its own. Its keys and values do not depend on how a prompt is cut. Checkpoints without it are refused. */
#include "model/adapters/adapter.h"
#include "offline/convert.h"
#include "support/mtp_text.h"
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const NAMES[] = { "glm4-moe", "deepseek-v3", "glm4-moe-lite" };
enum { N_NAMES = 3, N_PROMPTS = 3, N_CHAIN = 3, MAX_TOKENS = MTP_TEXT_TOKENS };

static struct model *load(const char *path, bool mtp)
{
    const struct tutti_model_options options = {
        .weight_type = "f32", .kv_type = "f32", .n_threads = 2, .mtp = mtp, .device = util_device()
    };
    struct tutti_error err;
    struct model *model = NULL;
    if (model_load(&model, path, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return model;
}

static struct model *load_fixture(const char *name, bool mtp)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/mtp/%s", name);
    return load(path, mtp);
}

static double error_of(const float *got, const float *want, int n)
{
    double most = 0, scale = 0;
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs((double)got[i] - (double)want[i]));
        scale = fmax(scale, fabs((double)want[i]));
    }
    return most / scale;
}

/* A copy of a golden tensor: in the file it is not aligned. */
static void *copy_of(const struct tensor_set *golden, int k, const char *name)
{
    const struct tensor *t = util_golden(golden, k, name);
    void *copy = malloc(t->n_bytes);
    assert_non_null(copy);
    return memcpy(copy, t->data, t->n_bytes);
}

/* Each position if chunk is 1; then the chain, whose logits are returned. */
static double compare(struct model *model, const struct tensor_set *golden, int k, int chunk, float *chain)
{
    int32_t *ids = copy_of(golden, k, "ids"), *more_ids = copy_of(golden, k, "chain_ids");
    float *logits = copy_of(golden, k, "logits"), *more = copy_of(golden, k, "chain_logits");
    int n = (int)util_golden(golden, k, "ids")->shape[0], n_vocab = model->desc.n_vocab;
    struct mtp_text text;
    double worst = 0;
    mtp_text_open(&text, model, ids, n);
    for (int at = 0; at < n - 1; at += chunk) {
        mtp_text_step(&text, at, n - 1 - at < chunk ? n - 1 - at : chunk);
        if (chunk > 1)
            continue;
        mtp_text_predict(&text, at + 1, -1, chain);
        worst = fmax(worst, error_of(chain, logits + (size_t)at * (size_t)n_vocab, n_vocab));
    }
    for (int i = 0; i < N_CHAIN; i++, chain += n_vocab) {
        mtp_text_predict(&text, n - 1 + i, i == 0 ? -1 : 0, chain);
        worst = fmax(worst, error_of(chain, more + (size_t)i * (size_t)n_vocab, n_vocab));
        text.ids[n + i] = more_ids[i];
    }
    model_kv_free(model, text.kv);
    free(ids);
    free(more_ids);
    free(logits);
    free(more);
    return worst;
}

static void its_logits_are_the_golden_ones(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char path[512];
        struct model *model = load_fixture(NAMES[i], true);
        struct tensor_set *golden = NULL;
        snprintf(path, sizeof path, TEST_FIXTURES "/mtp/%s/golden.safetensors", NAMES[i]);
        assert_int_equal(tensor_set_open_as(&golden, &SAFETENSORS_FORMAT, path, NULL), TUTTI_OK);
        size_t n_floats = (size_t)N_CHAIN * (size_t)model->desc.n_vocab;
        float *one = calloc(n_floats, sizeof *one), *other = calloc(n_floats, sizeof *other);
        for (int k = 0; k < N_PROMPTS; k++) {
            double worst = compare(model, golden, k, 1, one);
            print_message("# %s, prompt %d: relative %.2e\n", NAMES[i], k, worst);
            assert_true(worst <= 1e-4);
            static const int CHUNKS[] = { 5, 16, MAX_TOKENS };
            for (int c = 0; c < 3; c++) {
                assert_true(compare(model, golden, k, CHUNKS[c], other) <= 1e-4);
                assert_memory_equal(one, other, n_floats * sizeof *one);
            }
        }
        free(one);
        free(other);
        tensor_set_close(golden);
        model_free(model);
    }
}

/* It adds a layer to the model, not an embedding or output matrix that equals the model's. */
static void it_is_loaded_where_it_is_used(void **state)
{
    (void)state;
    static const bool HAS_OWN[N_NAMES] = { false, true, false };
    for (int i = 0; i < N_NAMES; i++) {
        struct model *plain = load_fixture(NAMES[i], false), *model = load_fixture(NAMES[i], true);
        const struct model_desc *d = &model->desc;
        assert_int_equal(plain->desc.n_mtp_layers, 1);
        assert_false(plain->desc.uses_mtp);
        assert_int_equal(model_n_loaded(d), plain->desc.n_layers + 1);
        assert_int_equal(d->has_mtp_embedding, HAS_OWN[i]);
        assert_int_equal(d->has_mtp_output, HAS_OWN[i]);
        assert_true(model->weight_bytes > plain->weight_bytes);
        assert_true(model_kv_bytes(d, DTYPE_F32) > model_kv_bytes(&plain->desc, DTYPE_F32));
        size_t page = model->backend->ops->kv_page_bytes(model->backend, DTYPE_F32);
        int n = model_page_tokens(model);
        assert_int_equal(page, model_context_kv_bytes(d, DTYPE_F32, n, n));
        assert_int_equal(page, (size_t)n * model_kv_bytes(d, DTYPE_F32) + (size_t)d->d_model * sizeof(float));
        model_free(model);
        model_free(plain);
    }
}

static void its_presence_does_not_change_logits(void **state)
{
    (void)state;
    int32_t ids[60];
    for (int i = 0; i < 60; i++)
        ids[i] = 5 + i * 37 % 100;
    for (int i = 0; i < N_NAMES; i++) {
        struct model *plain = load_fixture(NAMES[i], false), *model = load_fixture(NAMES[i], true);
        float *a = util_logits(plain, ids, 60, 7), *b = util_logits(model, ids, 60, 60);
        assert_memory_equal(a, b, (size_t)60 * (size_t)model->desc.n_vocab * sizeof *a);
        free(a);
        free(b);
        model_free(model);
        model_free(plain);
    }
}

/* With the names of llama.cpp, as one of the file's layers. Its architecture of DeepSeek has none for it. */
static void it_is_converted_where_gguf_names_it(void **state)
{
    (void)state;
    const struct convert_options options = { .type = weight_type_find("f32"), .n_threads = 2 };
    char path[64];
    snprintf(path, sizeof path, "/tmp/tutti-mtp-%d.gguf", (int)getpid());
    for (int i = 0; i < N_NAMES; i++) {
        char folder[512], golden_path[600];
        struct tutti_error err;
        snprintf(folder, sizeof folder, TEST_FIXTURES "/mtp/%s", NAMES[i]);
        snprintf(golden_path, sizeof golden_path, "%s/golden.safetensors", folder);
        if (convert_to_gguf(folder, path, &options, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        struct model *plain = load(path, false);
        assert_int_equal(plain->desc.n_mtp_layers, i == 0);
        assert_int_equal(plain->desc.n_layers, 2);
        model_free(plain);
        if (i > 0) {
            const struct tutti_model_options with = { .mtp = true };
            struct model *none = NULL;
            assert_int_equal(model_load(&none, path, &with, &err), TUTTI_E_UNSUPPORTED);
            unlink(path);
            continue;
        }
        struct checkpoint *ck = NULL;
        assert_int_equal(checkpoint_open(&ck, path, NULL), TUTTI_OK);
        static const char *const TENSORS[] = { "eh_proj",          "enorm",       "hnorm", "shared_head_norm",
                                               "shared_head_head", "embed_tokens" };
        for (size_t k = 0; k < sizeof TENSORS / sizeof *TENSORS; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.2.nextn.%s.weight", TENSORS[k]);
            if (!checkpoint_find(ck, name))
                fail_msg("%s is missing", name);
        }
        checkpoint_close(ck);
        struct model *model = load(path, true);
        struct tensor_set *golden;
        float *chain = calloc((size_t)N_CHAIN * (size_t)model->desc.n_vocab, sizeof *chain);
        assert_non_null(chain);
        assert_false(model->desc.has_mtp_embedding || model->desc.has_mtp_output);
        assert_int_equal(tensor_set_open_as(&golden, &SAFETENSORS_FORMAT, golden_path, NULL), TUTTI_OK);
        for (int k = 0; k < N_PROMPTS; k++)
            assert_true(compare(model, golden, k, 1, chain) <= 1e-4);
        tensor_set_close(golden);
        free(chain);
        model_free(model);
        unlink(path);
    }
}

static void checkpoints_without_it_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *words;
    } CASES[] = { { TEST_FIXTURES "/llama-tiny", "has no layer for multi-token prediction" },
                  { TEST_FIXTURES "/glm4-moe-tiny", "the checkpoint has no tensors of layer 3" },
                  { TEST_FIXTURES "/deepseek-v2-tiny", "has no layer for multi-token prediction" } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const struct tutti_model_options options = { .mtp = true };
        struct tutti_error err;
        struct model *model = NULL;
        assert_int_equal(model_load(&model, CASES[i].path, &options, &err), TUTTI_E_UNSUPPORTED);
        assert_string_equal(err.param, "draft");
        if (!strstr(err.text, CASES[i].words))
            fail_msg("%s", err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_logits_are_the_golden_ones),
        cmocka_unit_test(it_is_loaded_where_it_is_used),
        cmocka_unit_test(its_presence_does_not_change_logits),
        cmocka_unit_test(it_is_converted_where_gguf_names_it),
        cmocka_unit_test(checkpoints_without_it_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
