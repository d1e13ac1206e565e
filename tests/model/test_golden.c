/* Logits and greedy answers against other people's arithmetic: NumPy for the demo model, transformers for LLaMA, the
 * authors' modelling code for ChatGLM3 (tests/fixtures/README.md). */
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *load_json(const char *path)
{
    json_error_t err;
    json_t *root = json_load_file(path, 0, &err);
    if (!root)
        fail_msg("%s: %s", path, err.text);
    return root;
}

static int read_ids(const json_t *array, int32_t *ids)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return (int)json_array_size(array);
}

/* Largest difference, and largest relative to its position's largest |logit|. */
static void compare(const float *got, const float *want, int n, int n_vocab, double *max_abs,
                    double *max_relative)
{
    for (int p = 0; p < n; p++) {
        double peak = 0, worst = 0;
        for (int i = 0; i < n_vocab; i++) {
            double w = (double)want[(size_t)p * (size_t)n_vocab + (size_t)i];
            double d = fabs((double)got[(size_t)p * (size_t)n_vocab + (size_t)i] - w);
            assert_true(d == d);
            peak = fabs(w) > peak ? fabs(w) : peak;
            worst = d > worst ? d : worst;
        }
        *max_abs = worst > *max_abs ? worst : *max_abs;
        *max_relative = worst / peak > *max_relative ? worst / peak : *max_relative;
    }
}

static void compare_file(struct model *model, const char *golden_path, const char *tensor, int n_prompts,
                         double *max_abs, double *max_relative)
{
    struct safetensors *golden;
    assert_int_equal(safetensors_open(&golden, golden_path, NULL), TUTTI_OK);
    for (int k = 0; k < n_prompts; k++) {
        const struct tensor *ids = util_golden(golden, k, "ids"), *logits = util_golden(golden, k, tensor);
        int n = (int)ids->shape[0];
        int32_t *copy = malloc(ids->n_bytes);
        float *want = malloc(logits->n_bytes);
        assert_true(copy && want);
        memcpy(copy, ids->data, ids->n_bytes);
        memcpy(want, logits->data, logits->n_bytes);
        float *got = util_logits(model, copy, n, n);
        compare(got, want, n, model->desc.n_vocab, max_abs, max_relative);
        free(got);
        free(want);
        free(copy);
    }
    safetensors_close(golden);
}

static void the_demo_models_logits_are_the_golden_ones(void **state)
{
    (void)state;
    double max_abs = 0, max_relative = 0;
    struct model *model = util_load(TEST_DEMO_MODEL, "f32", "f32", 2, NULL);
    compare_file(model, TEST_FIXTURES "/demo/golden.safetensors", "logits", 6, &max_abs, &max_relative);
    print_message("# demo: max abs %.2e, relative %.2e\n", max_abs, max_relative);
    assert_true(max_abs <= 2e-3);
    model_free(model);
}

static void the_demo_model_renders_and_answers_as_the_golden_chats(void **state)
{
    (void)state;
    json_t *chats = load_json(TEST_FIXTURES "/demo/golden.json");
    struct model *model = util_load(TEST_DEMO_MODEL, "f32", "f32", 2, NULL);
    assert_string_equal(model->desc.chat_format, "chatglm3");
    for (size_t c = 0; c < json_array_size(chats); c++) {
        const json_t *chat = json_array_get(chats, c), *list = json_object_get(chat, "messages");
        struct tutti_message messages[8];
        int32_t prompt[512], want[512], got[512];
        size_t n_messages = json_array_size(list);
        assert_true(n_messages <= 8);
        for (size_t i = 0; i < n_messages; i++) {
            const json_t *m = json_array_get(list, i);
            messages[i] = (struct tutti_message){ .role = json_string_value(json_object_get(m, "role")),
                                                  .content = json_string_value(
                                                      json_object_get(m, "content")) };
            messages[i].n_bytes = strlen(messages[i].content);
        }
        struct ids rendered = { 0 };
        int n_prompt = read_ids(json_object_get(chat, "prompt_ids"), prompt);
        int n_answer = read_ids(json_object_get(chat, "answer_ids"), want);
        assert_int_equal(
            model->chat->render(model->tokenizer, &model->desc, messages, n_messages, &rendered, NULL),
            TUTTI_OK);
        assert_int_equal(rendered.n, n_prompt);
        assert_memory_equal(rendered.ids, prompt, (size_t)n_prompt * sizeof *prompt);
        util_greedy(model, prompt, n_prompt, got, n_answer);
        assert_memory_equal(got, want, (size_t)n_answer * sizeof *want);
        ids_clear(&rendered);
    }
    model_free(model);
    json_decref(chats);
}

static void check_tiny(const char *name)
{
    char path[512];
    double max_abs = 0, max_relative = 0;
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", name);
    struct model *model = util_load(path, "f32", "f32", 2, NULL);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.safetensors", name);
    compare_file(model, path, "logits", 3, &max_abs, &max_relative);
    print_message("# %s: max abs %.2e, relative %.2e\n", name, max_abs, max_relative);
    assert_true(max_relative <= 1e-4);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.json", name);
    json_t *golden = load_json(path);
    const json_t *greedy = json_object_get(golden, "greedy");
    int32_t prompt[512], want[512], got[512];
    int n_prompt = read_ids(json_object_get(greedy, "prompt_ids"), prompt);
    int n = read_ids(json_object_get(greedy, "answer_ids"), want);
    assert_int_equal(n, 200);
    util_greedy(model, prompt, n_prompt, got, n);
    assert_memory_equal(got, want, (size_t)n * sizeof *want);
    json_decref(golden);
    model_free(model);
}

static void llama_agrees_with_transformers(void **state)
{
    (void)state;
    check_tiny("llama-tiny");
}

static void llama_with_tied_output_and_scaled_rope_agrees_with_transformers(void **state)
{
    (void)state;
    check_tiny("llama-tiny-tied");
}

static void chatglm3_agrees_with_its_authors_code(void **state)
{
    (void)state;
    check_tiny("chatglm3-tiny");
}

/* Quantized files run with the same weights in float32, so that only the dequantization and the names are on trial. */
static void check_gguf(const char *name, double bound)
{
    char path[512];
    double max_abs = 0, max_relative = 0;
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.gguf", name);
    struct model *model = util_load(path, "f32", "f32", 2, NULL);
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.golden.safetensors", name);
    compare_file(model, path, "logits", 2, &max_abs, &max_relative);
    print_message("# %s: max abs %.2e, relative %.2e\n", name, max_abs, max_relative);
    assert_true(max_relative <= bound);
    model_free(model);
}

static void gguf_files_agree_with_their_dequantized_weights(void **state)
{
    (void)state;
    check_gguf("llama-tiny-q8_0", 1e-4);
    check_gguf("llama-tiny-q4_0", 1e-4);
    check_gguf("llama-tiny-tied-bf16", 1e-4);
    check_gguf("chatglm3-tiny-q8_0", 1e-4);
}

/* Unlike blocks, bf16 weights meet activations in float32, so nothing is lost. */
static void bf16_weights_as_stored_lose_nothing(void **state)
{
    (void)state;
    double max_abs = 0, max_relative = 0;
    struct model *model = util_load(TEST_FIXTURES "/gguf/llama-tiny-tied-bf16.gguf", NULL, "f32", 2, NULL);
    assert_int_equal(model->weight_type, DTYPE_BF16);
    compare_file(model, TEST_FIXTURES "/gguf/llama-tiny-tied-bf16.golden.safetensors", "logits", 2, &max_abs,
                 &max_relative);
    print_message("# llama-tiny-tied-bf16 as stored: max abs %.2e, relative %.2e\n", max_abs, max_relative);
    assert_true(max_relative <= 1e-5);
    model_free(model);
}

/* Activations rounded to 8 bits a block cost this much on models that were made to react to everything. */
static void quantized_arithmetic_stays_near_exact_arithmetic(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "llama-tiny-q8_0", "llama-tiny-q4_0", "chatglm3-tiny-q8_0" };
    for (int i = 0; i < 3; i++) {
        char path[512];
        double max_abs = 0, max_relative = 0;
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.gguf", NAMES[i]);
        struct model *model = util_load(path, NULL, "f32", 2, NULL);
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.golden.safetensors", NAMES[i]);
        compare_file(model, path, "logits", 2, &max_abs, &max_relative);
        print_message("# %s as stored: max abs %.2e, relative %.2e\n", NAMES[i], max_abs, max_relative);
        assert_true(max_relative <= 6e-2);
        model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_models_logits_are_the_golden_ones),
        cmocka_unit_test(the_demo_model_renders_and_answers_as_the_golden_chats),
        cmocka_unit_test(llama_agrees_with_transformers),
        cmocka_unit_test(llama_with_tied_output_and_scaled_rope_agrees_with_transformers),
        cmocka_unit_test(chatglm3_agrees_with_its_authors_code),
        cmocka_unit_test(gguf_files_agree_with_their_dequantized_weights),
        cmocka_unit_test(bf16_weights_as_stored_lose_nothing),
        cmocka_unit_test(quantized_arithmetic_stays_near_exact_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
