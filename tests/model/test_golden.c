/* Logits and greedy answers against other people's arithmetic: NumPy for the demo model, transformers for LLaMA, the
 * authors' modelling code for ChatGLM3 (tests/fixtures/README.md). */
#include "model/chat/chat.h"
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void the_demo_models_logits_are_the_golden_ones(void **state)
{
    (void)state;
    struct model *model = util_load(TEST_DEMO_MODEL, "f32", "f32", 2, NULL);
    struct util_errors e = util_compare_file(model, TEST_FIXTURES "/demo/golden.safetensors", "logits", 6);
    print_message("# demo: max abs %.2e, relative %.2e\n", e.max_abs, e.max_relative);
    assert_true(e.max_abs <= 2e-3);
    model_free(model);
}

enum { MAX_MESSAGES = 40, MAX_IDS = 2048 };

/* One chat of a golden file: the ids of its prompt, and the tokens that follow by largest logit. */
static void check_chat(struct model *model, const json_t *chat)
{
    const json_t *list = json_object_get(chat, "messages"), *tools = json_object_get(chat, "tools");
    struct tutti_message messages[MAX_MESSAGES];
    static int32_t prompt[MAX_IDS], want[MAX_IDS], got[MAX_IDS];
    char *calls[MAX_MESSAGES] = { NULL };
    size_t n_messages = json_array_size(list);
    assert_true(n_messages <= MAX_MESSAGES);
    for (size_t i = 0; i < n_messages; i++) {
        const json_t *m = json_array_get(list, i), *own = json_object_get(m, "tool_calls");
        calls[i] = own ? json_dumps(own, 0) : NULL;
        messages[i] = (struct tutti_message){ .role = json_string_value(json_object_get(m, "role")),
                                              .content = json_string_value(json_object_get(m, "content")),
                                              .tool_call_id = json_string_value(
                                                  json_object_get(m, "tool_call_id")),
                                              .tool_calls = calls[i] };
        messages[i].n_bytes = strlen(messages[i].content);
    }
    char *list_of_tools = tools ? json_dumps(tools, 0) : NULL;
    struct tutti_request request = { .messages = messages, .n_messages = n_messages, .tools = list_of_tools };
    if (json_is_true(json_object_get(chat, "thinks")))
        request.template_arguments = "{\"enable_thinking\": true}";
    struct ids rendered = { 0 };
    int n_prompt = util_read_ids(json_object_get(chat, "prompt_ids"), prompt);
    int n_answer = util_read_ids(json_object_get(chat, "answer_ids"), want);
    assert_int_equal(chat_render(model, &request, &rendered, NULL), TUTTI_OK);
    assert_int_equal(rendered.n, n_prompt);
    assert_memory_equal(rendered.ids, prompt, (size_t)n_prompt * sizeof *prompt);
    util_greedy(model, prompt, n_prompt, got, n_answer);
    assert_memory_equal(got, want, (size_t)n_answer * sizeof *want);
    ids_clear(&rendered);
    free(list_of_tools);
    for (size_t i = 0; i < n_messages; i++)
        free(calls[i]);
}

/* format: NULL is the model's own template. */
static void check_chats(const char *path, const char *format)
{
    json_t *chats = util_load_json(path);
    struct tutti_model_options options = {
        .weight_type = "f32", .kv_type = "f32", .n_threads = 2, .chat_format = format
    };
    struct tutti_error err;
    struct model *model = NULL;
    if (model_load(&model, TEST_DEMO_MODEL, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_string_equal(model->desc.chat_format, format ? format : "template");
    assert_true(json_array_size(chats) > 0);
    for (size_t c = 0; c < json_array_size(chats); c++)
        check_chat(model, json_array_get(chats, c));
    print_message("# checked %zu chats, with the format %s\n", json_array_size(chats),
                  model->desc.chat_format);
    model_free(model);
    json_decref(chats);
}

static void the_demo_model_renders_and_answers_as_the_golden_chats(void **state)
{
    (void)state;
    check_chats(TEST_FIXTURES "/demo/golden.json", "chatglm3");
    check_chats(TEST_FIXTURES "/demo/golden.json", NULL);
}

static void the_demo_model_calls_tools_thinks_and_reads_long_chats(void **state)
{
    (void)state;
    check_chats(TEST_FIXTURES "/demo/features.json", NULL);
}

/* Like the text of the ids, but without white space. */
static void text_of(char *out, size_t size, const tutti_model *model, const int32_t *ids, size_t n_ids)
{
    int64_t n = tutti_detokenize(model, ids, n_ids, out, size);
    size_t kept = 0;
    assert_true(n > 0 && (size_t)n < size);
    for (int64_t i = 0; i < n; i++)
        if (!strchr(" \n", out[i]))
            out[kept++] = out[i];
    out[kept] = '\0';
}

/* The demo model's template is ChatGLM3's code in another form, with the tools on one line, and opens thinking. */
static void the_template_gives_chatglm3s_ids(void **state)
{
    (void)state;
    struct tutti_message messages[] = {
        { .role = "system", .content = "Be kind. 友好", .n_bytes = 15 },
        { .role = "user", .content = " <|user|>\n a  ", .n_bytes = 14 },
        { .role = "assistant", .content = "", .n_bytes = 0 },
        { .role = "user", .content = "", .n_bytes = 0 },
        { .role = "assistant",
          .content = "",
          .tool_calls = "[{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "
                        "\"arguments\": \"{\\\"a\\\": [1, null, true], \\\"b\\\": \\\"it's\\\"}\"}}]" },
        { .role = "tool", .content = "7", .n_bytes = 1, .tool_call_id = "1" },
    };
    static const char TOOLS[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": "
                                "\"天气 <b> \\\"x\\\"\", \"parameters\": {\"type\": \"object\"}}}]";
    struct tutti_model_options file = { .n_threads = 1 };
    struct tutti_model_options code = { .chat_format = "chatglm3", .n_threads = 1 };
    tutti_model *own = NULL, *built_in = NULL;
    assert_int_equal(tutti_model_open(&own, TEST_DEMO_MODEL, &file, NULL), TUTTI_OK);
    assert_int_equal(tutti_model_open(&built_in, TEST_DEMO_MODEL, &code, NULL), TUTTI_OK);
    for (size_t n = 1; n <= sizeof messages / sizeof *messages; n++) {
        for (int has_tools = 0; has_tools < 2; has_tools++) {
            struct tutti_request request = { .messages = messages,
                                             .n_messages = n,
                                             .tools = has_tools ? TOOLS : NULL };
            int32_t a[1024], b[1024];
            size_t n_a = 0, n_b = 0;
            assert_int_equal(tutti_apply_chat_template(own, &request, a, 1024, &n_a, NULL), TUTTI_OK);
            assert_int_equal(tutti_apply_chat_template(built_in, &request, b, 1024, &n_b, NULL), TUTTI_OK);
            if (has_tools) {
                char text_a[4096], text_b[4096];
                text_of(text_a, sizeof text_a, own, a, n_a);
                text_of(text_b, sizeof text_b, built_in, b, n_b);
                assert_string_equal(text_a, text_b);
                assert_true(n_a < n_b);
            } else {
                assert_int_equal(n_a, n_b);
                assert_memory_equal(a, b, n_a * sizeof *a);
            }
        }
    }
    struct tutti_request thinks = { .messages = messages,
                                    .n_messages = 2,
                                    .template_arguments = "{\"enable_thinking\": true}" },
                         plain = { .messages = messages, .n_messages = 2 };
    int32_t a[1024], b[1024], opened[64];
    size_t n_a = 0, n_b = 0;
    assert_int_equal(tutti_apply_chat_template(own, &thinks, a, 1024, &n_a, NULL), TUTTI_OK);
    assert_int_equal(tutti_apply_chat_template(own, &plain, b, 1024, &n_b, NULL), TUTTI_OK);
    int64_t n = tutti_tokenize_trusted(own, "\n<think>\n", 9, false, opened, 64);
    assert_true(n > 0);
    assert_int_equal(n_a, n_b + (size_t)n);
    assert_memory_equal(a, b, n_b * sizeof *a);
    assert_memory_equal(a + n_b, opened, (size_t)n * sizeof *a);
    tutti_model_close(own);
    tutti_model_close(built_in);
}

static void check_tiny(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", name);
    struct model *model = util_load(path, "f32", "f32", 2, NULL);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.safetensors", name);
    struct util_errors e = util_compare_file(model, path, "logits", 3);
    print_message("# %s: max abs %.2e, relative %.2e\n", name, e.max_abs, e.max_relative);
    assert_true(e.max_relative <= 1e-4);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.json", name);
    json_t *golden = util_load_json(path);
    const json_t *greedy = json_object_get(golden, "greedy");
    int32_t prompt[512], want[512], got[512];
    int n_prompt = util_read_ids(json_object_get(greedy, "prompt_ids"), prompt);
    int n = util_read_ids(json_object_get(greedy, "answer_ids"), want);
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
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.gguf", name);
    struct model *model = util_load(path, "f32", "f32", 2, NULL);
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.golden.safetensors", name);
    struct util_errors e = util_compare_file(model, path, "logits", 2);
    print_message("# %s: max abs %.2e, relative %.2e\n", name, e.max_abs, e.max_relative);
    assert_true(e.max_relative <= bound);
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

/* bf16 weights meet activations in bf16: 2^-9 of each product. */
static void bf16_arithmetic_stays_near_exact_arithmetic(void **state)
{
    (void)state;
    struct model *model = util_load(TEST_FIXTURES "/gguf/llama-tiny-tied-bf16.gguf", NULL, "f32", 2, NULL);
    assert_int_equal(model->weight_type, DTYPE_BF16);
    struct util_errors e = util_compare_file(
        model, TEST_FIXTURES "/gguf/llama-tiny-tied-bf16.golden.safetensors", "logits", 2);
    print_message("# llama-tiny-tied-bf16 as stored: max abs %.2e, relative %.2e\n", e.max_abs,
                  e.max_relative);
    assert_true(e.max_relative <= 3e-2);
    model_free(model);
}

/* Activations rounded to 8 bits a block cost this much on models that were made to react to everything. */
static void quantized_arithmetic_stays_near_exact_arithmetic(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "llama-tiny-q8_0", "llama-tiny-q4_0", "chatglm3-tiny-q8_0" };
    for (int i = 0; i < 3; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.gguf", NAMES[i]);
        struct model *model = util_load(path, NULL, "f32", 2, NULL);
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s.golden.safetensors", NAMES[i]);
        struct util_errors e = util_compare_file(model, path, "logits", 2);
        print_message("# %s as stored: max abs %.2e, relative %.2e\n", NAMES[i], e.max_abs, e.max_relative);
        assert_true(e.max_relative <= 6e-2);
        model_free(model);
    }
}

/* Files of llama-quantize (tools/fixtures/llama_quantize_fixtures.py), each with several types. In float32 only what is read of
 * the blocks is on trial; as stored, activations are rounded to 8 bits too, and a position may choose another of two experts with
 * nearly the same score: hence the median of the positions. */
static void files_of_llama_quantize_agree_with_transformers(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "mxfp4_moe", "iq4_nl", "iq4_xs",  "iq3_s", "iq3_xxs",
                                         "iq2_s",     "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[512], golden[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/llama-quantize/%s.gguf", NAMES[i]);
        snprintf(golden, sizeof golden, TEST_FIXTURES "/llama-quantize/%s.golden.safetensors", NAMES[i]);
        struct util_errors e[2];
        for (int is_stored = 0; is_stored < 2; is_stored++) {
            struct model *model = util_load(path, is_stored ? NULL : "f32", "f32", 2, NULL);
            e[is_stored] = util_compare_file(model, golden, "logits", 3);
            model_free(model);
        }
        print_message("# %s: relative %.2e in float32; as stored rms %.2e, of a position %.2e\n", NAMES[i],
                      e[0].max_relative, e[1].rms, e[1].median_rms);
        assert_true(e[0].max_relative <= 1e-4);
        assert_true(e[1].median_rms > 1e-4 && e[1].median_rms <= 0.03);
    }
}

/* Logits with keys and values of a type against those with f32, over 300 positions: the largest difference relative to
 * its position's largest logit, and the mean divergence of the next token's distribution. */
static void measure_kv_type(const char *path, const char *type, double *max_relative, double *mean_kl)
{
    enum { N = 300 };
    int32_t ids[N];
    float *logits[2];
    int n_vocab = 0;
    for (int i = 0; i < 2; i++) {
        struct model *model = util_load(path, NULL, i == 0 ? "f32" : type, 2, NULL);
        n_vocab = model->desc.n_vocab;
        for (int k = 0; k < N; k++)
            ids[k] = (int32_t)((unsigned)k * 2654435761u % (unsigned)model->desc.n_usable_vocab);
        logits[i] = util_logits(model, ids, N, N);
        model_free(model);
    }
    *max_relative = *mean_kl = 0;
    for (int k = 0; k < N; k++) {
        const float *want = logits[0] + (size_t)k * (size_t)n_vocab, *got = logits[1] + (want - logits[0]);
        double max = 0, sum_want = 0, sum_got = 0, error = 0, kl = 0;
        for (int i = 0; i < n_vocab; i++) {
            max = fmax(max, fabs((double)want[i]));
            error = fmax(error, fabs((double)want[i] - (double)got[i]));
            sum_want += exp((double)want[i]);
            sum_got += exp((double)got[i]);
        }
        for (int i = 0; i < n_vocab; i++)
            kl += exp((double)want[i]) / sum_want *
                  ((double)want[i] - (double)got[i] - log(sum_want) + log(sum_got));
        *max_relative = fmax(*max_relative, error / max);
        *mean_kl += kl / N;
    }
    free(logits[0]);
    free(logits[1]);
}

static void keys_and_values_of_half_the_size_change_little(void **state)
{
    (void)state;
    static const char *const PATHS[] = { TEST_DEMO_MODEL, TEST_FIXTURES "/chatglm3-tiny",
                                         TEST_FIXTURES "/llama-tiny" };
    static const struct {
        const char *type;
        double max_relative, mean_kl;
    } BOUNDS[] = { { "f16", 3e-3, 1e-5 }, { "bf16", 3e-2, 6e-4 }, { "int8", 8e-2, 3e-3 } };
    for (int i = 0; i < 3; i++)
        for (size_t t = 0; t < sizeof BOUNDS / sizeof *BOUNDS; t++) {
            double max_relative, mean_kl;
            measure_kv_type(PATHS[i], BOUNDS[t].type, &max_relative, &mean_kl);
            print_message("# %s, keys and values of %s: relative %.2e, mean divergence %.2e\n",
                          strrchr(PATHS[i], '/') + 1, BOUNDS[t].type, max_relative, mean_kl);
            assert_true(max_relative > 0 && max_relative <= BOUNDS[t].max_relative);
            assert_true(mean_kl <= BOUNDS[t].mean_kl);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_models_logits_are_the_golden_ones),
        cmocka_unit_test(the_demo_model_renders_and_answers_as_the_golden_chats),
        cmocka_unit_test(the_demo_model_calls_tools_thinks_and_reads_long_chats),
        cmocka_unit_test(the_template_gives_chatglm3s_ids),
        cmocka_unit_test(llama_agrees_with_transformers),
        cmocka_unit_test(llama_with_tied_output_and_scaled_rope_agrees_with_transformers),
        cmocka_unit_test(chatglm3_agrees_with_its_authors_code),
        cmocka_unit_test(gguf_files_agree_with_their_dequantized_weights),
        cmocka_unit_test(bf16_arithmetic_stays_near_exact_arithmetic),
        cmocka_unit_test(quantized_arithmetic_stays_near_exact_arithmetic),
        cmocka_unit_test(files_of_llama_quantize_agree_with_transformers),
        cmocka_unit_test(keys_and_values_of_half_the_size_change_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
