/* The same model from files of every format gives the same logits. */
#include "util.h"

#include "../support/folder.h"
#include "offline/convert.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void files_of_every_format_give_the_golden_logits(void **state)
{
    (void)state;
    static const struct {
        const char *path, *golden;
        int n_prompts;
    } CASES[] = {
        { "pytorch/sharded", "glm-4-9b-tiny/golden", 3 },
        { "pytorch/old", "gpt2-tiny/golden", 3 },
        { "mindspore/glm", "glm-4-9b-tiny/golden", 3 },
        { "mindspore/ranks", "glm-4-9b-tiny/golden", 3 },
        { "mindspore/pangu/pangu.ckpt", "pangu-tiny/golden", 3 },
        { "gguf-split/llama-tiny-q4_0-00001-of-00003.gguf", "gguf/llama-tiny-q4_0.golden", 2 },
        { "chatglm-ints/glm-4-9b-tiny-int4", "chatglm-ints/glm-4-9b-tiny-int4/golden", 3 },
        { "chatglm-ints/glm-4-9b-tiny-int8", "chatglm-ints/glm-4-9b-tiny-int8/golden", 3 },
        { "chatglm-ints/chatglm3-tiny-int4", "chatglm-ints/chatglm3-tiny-int4/golden", 3 },
        { "chatglm-ints/chatglm-6b-tiny-int4", "chatglm-ints/chatglm-6b-tiny-int4/golden", 3 },
        { "chatglm-ints/chatglm-6b-tiny-int8", "chatglm-ints/chatglm-6b-tiny-int8/golden", 3 },
        { "quantized/qwen3-fp8", "quantized/qwen3-fp8/golden", 2 },
        { "quantized/deepseek-v3-fp8", "quantized/deepseek-v3-fp8/golden", 2 },
        { "quantized/llama-fp8-f32", "quantized/llama-fp8-f32/golden", 2 },
        { "quantized/llama-fp8-rows", "quantized/llama-fp8-rows/golden", 2 },
        { "quantized/llama-fp8-tensor", "quantized/llama-fp8-tensor/golden", 2 },
        { "quantized/llama-gptq", "quantized/llama-gptq/golden", 2 },
        { "quantized/llama-gptq-order", "quantized/llama-gptq-order/golden", 2 },
        { "quantized/llama-gptq-v2", "quantized/llama-gptq-v2/golden", 2 },
        { "quantized/llama-gptq-int8", "quantized/llama-gptq-int8/golden", 2 },
        { "quantized/llama-awq", "quantized/llama-awq/golden", 2 },
        { "quantized/llama-w4a16", "quantized/llama-w4a16/golden", 2 },
        { "quantized/llama-w4a16-asym", "quantized/llama-w4a16-asym/golden", 2 },
        { "quantized/llama-w8a8", "quantized/llama-w8a8/golden", 2 },
        { "quantized/llama-bnb-nf4", "quantized/llama-bnb-nf4/golden", 2 },
        { "quantized/llama-bnb-fp4", "quantized/llama-bnb-fp4/golden", 2 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", CASES[i].path);
        struct model *model = util_load(path, "f32", "f32", 2, NULL);
        snprintf(path, sizeof path, TEST_FIXTURES "/%s.safetensors", CASES[i].golden);
        struct util_errors e = util_compare_file(model, path, "logits", CASES[i].n_prompts);
        print_message("# %s: relative %.2e at most\n", CASES[i].path, e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
    }
}

/* In blocks with the row's scale, as any file of these types: only activations are rounded. */
static void integers_of_chatglm_run_as_they_are_stored(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtype type;
    } CASES[] = { { "glm-4-9b-tiny-int4", DTYPE_Q4_0 },
                  { "glm-4-9b-tiny-int8", DTYPE_Q8_0 },
                  { "chatglm3-tiny-int4", DTYPE_Q4_0 },
                  { "chatglm-6b-tiny-int4", DTYPE_Q4_0 },
                  { "chatglm-6b-tiny-int8", DTYPE_Q8_0 } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/chatglm-ints/%s", CASES[i].name);
        struct model *model = util_load(path, NULL, "f32", 2, NULL);
        assert_int_equal(model->weight_type, CASES[i].type);
        snprintf(path, sizeof path, TEST_FIXTURES "/chatglm-ints/%s/golden.safetensors", CASES[i].name);
        struct util_errors e = util_compare_file(model, path, "logits", 3);
        print_message("# %s as stored: relative %.2e at most\n", CASES[i].name, e.max_relative);
        assert_true(e.max_relative <= 8e-2);
        model_free(model);
    }
}

/* Weights of 8 bits are multiplied as they are, and no activation is rounded: as near as float32 to the
 * logits that transformers computes from dequantized weights. */
static void floats_of_8_bits_run_as_they_are_stored(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        enum dtype type;
    } CASES[] = { { TEST_FIXTURES "/quantized/deepseek-v3-fp8", DTYPE_F8_BLOCK },
                  { TEST_FIXTURES "/quantized/llama-fp8-f32", DTYPE_F8_ROW },
                  { TEST_FIXTURES "/quantized/llama-fp8-rows", DTYPE_F8_ROW },
                  { TEST_FIXTURES "/quantized/llama-fp8-tensor", DTYPE_F8_ROW } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512];
        struct model *model = util_load(CASES[i].path, NULL, "f32", 2, NULL);
        assert_int_equal(model->weight_type, CASES[i].type);
        snprintf(path, sizeof path, "%s/golden.safetensors", CASES[i].path);
        struct util_errors e = util_compare_file(model, path, "logits", 2);
        model_free(model);
        model = util_load(CASES[i].path, "bf16", "f32", 2, NULL);
        struct util_errors expanded = util_compare_file(model, path, "logits", 2);
        print_message("# %s as stored: relative %.2e at most; as bf16 %.2e\n", CASES[i].path, e.max_relative,
                      expanded.max_relative);
        assert_true(e.max_relative <= 1e-4 && e.max_relative < expanded.max_relative / 100);
        model_free(model);
    }
}

/* Act-order: columns are sorted by group and inputs are gathered, so that weights keep their bits, and only
 * activations are rounded. Gate and up have different orders in these files, so their weights become 16-bit floats. */
static void weights_in_an_order_run_as_they_are_stored(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "llama-gptq-order", "llama-w4a16-asym" };
    static const struct {
        enum weight_slot slot;
        bool is_compact;
    } SLOTS[] = { { SLOT_QKV, true }, { SLOT_ATTN_OUT, true }, { SLOT_GATE_UP, false }, { SLOT_DOWN, true } };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/quantized/%s", NAMES[i]);
        struct model *model = util_load(path, NULL, "f32", 2, NULL);
        for (size_t k = 0; k < sizeof SLOTS / sizeof *SLOTS; k++) {
            const struct matrix *m = model_weight(model, SLOTS[k].slot, 0)->matrix;
            enum dtype type = model->backend->ops->matrix_type(m);
            assert_true(SLOTS[k].is_compact ? type == DTYPE_G4Z_32 : type == DTYPE_F16 || type == DTYPE_BF16);
        }
        snprintf(path, sizeof path, TEST_FIXTURES "/quantized/%s/golden.safetensors", NAMES[i]);
        struct util_errors e = util_compare_file(model, path, "logits", 2);
        print_message("# %s as stored: relative %.2e at most\n", NAMES[i], e.max_relative);
        assert_true(e.max_relative <= 8e-2);
        model_free(model);
    }
}

static void conversions_of_floats_of_8_bits_give_the_golden_logits(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "deepseek-v3-fp8", "llama-fp8-rows" };
    struct convert_options options = { .type = weight_type_find("f32"), .n_threads = 2 };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct tutti_error err;
        char path[512], to[64];
        snprintf(path, sizeof path, TEST_FIXTURES "/quantized/%s", NAMES[i]);
        snprintf(to, sizeof to, "%s/%s.gguf", folder, NAMES[i]);
        if (convert_to_gguf(path, to, &options, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        struct model *model = util_load(to, NULL, "f32", 2, NULL);
        snprintf(path, sizeof path, TEST_FIXTURES "/quantized/%s/golden.safetensors", NAMES[i]);
        struct util_errors e = util_compare_file(model, path, "logits", 2);
        print_message("# %s as GGUF: relative %.2e at most\n", NAMES[i], e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_every_format_give_the_golden_logits),
        cmocka_unit_test(integers_of_chatglm_run_as_they_are_stored),
        cmocka_unit_test(floats_of_8_bits_run_as_they_are_stored),
        cmocka_unit_test(weights_in_an_order_run_as_they_are_stored),
        cmocka_unit_test_setup_teardown(conversions_of_floats_of_8_bits_give_the_golden_logits, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
