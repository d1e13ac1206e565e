/* Quantized uploads (tools/fixtures/quantized_fixtures.py): the weights that torch computes from their tensors, bit for
 * bit, and errors for tensors that do not fit together. */
#include "parts.h"

#include "../support/folder.h"
#include "base/half.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_set.h"
#include "kernels/quantize/quantize.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define QUANTIZED TEST_FIXTURES "/quantized/"

static const struct fixture {
    const char *name;
    enum dtype dtype; /* of a matrix of 64 columns, of qwen3-fp8 160, of deepseek-v3-fp8 256 */
    enum dtype down;  /* of one of 96, 200 or 128 columns */
    enum dtype compact, compact_down; /* of compact tensors; F32: there is none */
} FIXTURES[] = {
    { "qwen3-fp8", DTYPE_BF16, DTYPE_BF16 },
    { "llama-fp8-f32", DTYPE_F8_ROW, DTYPE_F8_ROW },
    { "llama-fp8-rows", DTYPE_F8_ROW, DTYPE_F8_ROW },
    { "llama-fp8-tensor", DTYPE_F8_ROW, DTYPE_F8_ROW },
    { "deepseek-v3-fp8", DTYPE_F8_BLOCK, DTYPE_F8_ROW },
    { "llama-gptq", DTYPE_Q4_0, DTYPE_Q4_0 },
    { "llama-gptq-order", DTYPE_F16, DTYPE_F16, DTYPE_G4Z_32, DTYPE_G4Z_32 },
    { "llama-gptq-v2", DTYPE_Q5_0, DTYPE_Q5_0, DTYPE_G4Z_32, DTYPE_G4Z_32 },
    { "llama-gptq-int8", DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_G8_64 },
    { "llama-awq", DTYPE_Q5_0, DTYPE_Q5_0, DTYPE_G4Z_32, DTYPE_G4Z_32 },
    { "llama-w4a16", DTYPE_Q4_0, DTYPE_Q4_0 },
    { "llama-w4a16-asym", DTYPE_BF16, DTYPE_BF16, DTYPE_G4Z_32, DTYPE_G4Z_32 },
    { "llama-w8a8", DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_G8_64 },
    { "llama-bnb-nf4", DTYPE_BF16, DTYPE_BF16 },
    { "llama-bnb-fp4", DTYPE_F16, DTYPE_F16 },
    { "gpt-oss-mxfp4", DTYPE_MXFP4, DTYPE_MXFP4 },
};
enum { N_FIXTURES = sizeof FIXTURES / sizeof *FIXTURES, N_CHECKED = 3 };

/* Compares the weight with the golden one. */
static void check_weight(const struct tensor *t, const struct tensor *want)
{
    void *owned;
    const void *bytes = tensor_bytes(t, &owned);
    float *values = malloc(want->n_bytes);
    assert_true(bytes && values);
    assert_int_equal(t->n_dims, want->n_dims);
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        assert_int_equal(t->shape[i], want->shape[i]);
        n *= t->shape[i];
    }
    dequantize(values, bytes, t->dtype, n);
    for (int64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const uint8_t *)want->data + 4 * i, 4);
        if (values[i] != x) /* -0 of a float8 is 0 as an integer's weight is */
            fail_msg("%s: %s: element %lld is %.9g, expected %.9g", t->file, t->name, (long long)i,
                     (double)values[i], (double)x);
    }
    free(values);
    free(owned);
    assert_parts_are_cut_out(t);
    tensor_forget(t);
}

/* Each element of the compact tensor is the golden one of its column; with an order, which files cannot have, after
 * rounding as t is rounded. */
static void check_compact(const struct tensor *t, const struct tensor *want, enum dtype dtype)
{
    const struct tensor *c = t->compact;
    void *owned;
    int64_t n_out = t->shape[0], n_in = t->shape[1], n_sorted = 0;
    const uint8_t *bytes = tensor_bytes(c, &owned);
    float *values = malloc((size_t)(n_out * n_in) * sizeof *values);
    bool *seen = calloc((size_t)n_in, sizeof *seen);
    assert_true(bytes && values && seen);
    assert_int_equal(c->dtype, dtype);
    assert_string_equal(c->name, t->name);
    assert_memory_equal(c->shape, t->shape, 2 * sizeof *t->shape);
    assert_true(c->n_bytes < t->n_bytes);
    assert_int_equal(c->order != NULL, dtype_block_elems(t->dtype) == 1);
    dequantize(values, bytes, c->dtype, n_out * n_in);
    for (int64_t i = 0; i < n_in && c->order; i++) {
        assert_true(c->order[i] < n_in && !seen[c->order[i]]);
        seen[c->order[i]] = true;
        n_sorted += c->order[i] == i;
    }
    assert_true(n_sorted < n_in / 2);
    for (int64_t i = 0; i < n_out * n_in; i++) {
        float x = values[i], expected;
        int64_t at = c->order ? i / n_in * n_in + c->order[i % n_in] : i;
        if (t->dtype == DTYPE_F16)
            x = half_to_float(float_to_half(x));
        if (t->dtype == DTYPE_BF16)
            x = bf16_to_float(float_to_bf16(x));
        memcpy(&expected, (const uint8_t *)want->data + 4 * at, sizeof expected);
        assert_true(x == expected);
    }
    free(seen);
    free(values);
    free(owned);
    assert_parts_are_cut_out(c);
}

static void weights_are_those_that_torch_computes(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        struct checkpoint *ck = NULL;
        struct tensor_set *golden = NULL;
        struct tutti_error err;
        char path[512];
        int n_checked = 0;
        snprintf(path, sizeof path, QUANTIZED "%s/golden.safetensors", FIXTURES[i].name);
        assert_int_equal(tensor_set_open_as(&golden, &SAFETENSORS_FORMAT, path, NULL), TUTTI_OK);
        snprintf(path, sizeof path, QUANTIZED "%s", FIXTURES[i].name);
        if (checkpoint_open(&ck, path, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        for (size_t k = 0; k < golden->n; k++) {
            const struct tensor *want = &golden->tensors[k];
            if (strncmp(want->name, "weights.", 8) != 0)
                continue;
            const struct tensor *t = checkpoint_find(ck, want->name + 8);
            assert_non_null(t);
            assert_int_equal(t->dtype, strstr(t->name, "down_proj") ? FIXTURES[i].down : FIXTURES[i].dtype);
            check_weight(t, want);
            enum dtype compact = strstr(t->name, "down_proj") ? FIXTURES[i].compact_down
                                                              : FIXTURES[i].compact;
            assert_int_equal(t->compact != NULL, compact != DTYPE_F32);
            if (t->compact)
                check_compact(t, want, compact);
            n_checked++;
        }
        bool has_experts = FIXTURES[i].dtype == DTYPE_MXFP4 || FIXTURES[i].dtype == DTYPE_F8_BLOCK;
        assert_int_equal(n_checked, has_experts ? 2 : N_CHECKED);
        /* The tensors that they are made of are not found any more. */
        for (size_t k = 0; k < checkpoint_n_tensors(ck); k++) {
            const char *name = checkpoint_tensor(ck, k)->name;
            if (!strstr(name, ".weight") && !strstr(name, "bias") && !strstr(name, ".experts."))
                fail_msg("%s: tensor %s is left", path, name);
            assert_ptr_equal(checkpoint_find(ck, name), checkpoint_tensor(ck, k));
            assert_false(checkpoint_is_taken(ck, k));
        }
        assert_null(checkpoint_find(ck, "model.layers.0.mlp.down_proj.weight_scale"));
        checkpoint_close(ck);
        tensor_set_close(golden);
    }
}

/* ---- changed uploads ---- */

static uint8_t *read_whole(const char *fixture, const char *name, size_t *n)
{
    char path[512];
    snprintf(path, sizeof path, QUANTIZED "%s/%s", fixture, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    uint8_t *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *n = fread(bytes, 1, 1 << 20, file);
    assert_in_range(*n, 1, (1 << 20) - 1);
    fclose(file);
    return bytes;
}

static void write_whole(const char *name, const uint8_t *bytes, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* A change of the header: text replaced by another of the same length, after the name of a tensor. */
static const struct change {
    const char *fixture, *after, *from, *to, *words;
} CHANGES[] = {
    { "llama-gptq", "", "q_proj.scales", "q_proj.scalex", "q_proj.scales is missing; " },
    { "llama-gptq", "", "q_proj.qzeros", "q_proj.qzerox", "q_proj.qzeros is missing; " },
    { "llama-gptq", "q_proj.scales", "[2,64]", "[64,2]",
      "f16 of shape [64, 2], expected f16 of shape [2, 64]" },
    { "llama-gptq", "q_proj.qzeros", "[2,8]", "[8,2]", "i32 of shape [8, 2], expected i32 of shape [2, 8]" },
    { "llama-gptq", "q_proj.g_idx", "[64]", "[8,8]", "i32 of shape [8, 8], expected i32 of shape [64]" },
    { "llama-gptq", "q_proj.qweight", "I32", "F32",
      "q_proj.qweight: f32 of shape [8, 64], expected a matrix of i32" },
    { "llama-gptq", "q_proj.scales", "\"F16", "\"I16", "q_proj.scales: type i16, expected f16, bf16 or f32" },
    { "llama-awq", "", "q_proj.scales", "q_proj.scalex", "q_proj.scales is missing; " },
    { "llama-awq", "q_proj.qzeros", "[2,8]", "[8,2]", "i32 of shape [8, 2], expected i32 of shape [2, 8]" },
    { "llama-fp8-rows", "", "q_proj.weight_scale", "q_proj.weight_scalx",
      "q_proj.weight_scale is missing; " },
    { "llama-fp8-rows", "q_proj.weight_scale", "[64,1]", "[1,64]",
      "expected a scale for all of a weight of shape [64, 64]" },
    { "llama-fp8-f32", "", "k_proj.weight_scale_inv", "k_proj.weight_scale_inx",
      "k_proj.weight_scale_inv is missing; " },
    { "llama-w4a16", "", "q_proj.weight_shape", "q_proj.weight_shapx", "q_proj.weight_shape is missing; " },
    { "llama-w4a16", "q_proj.weight_scale", "[64,2]", "[2,64]",
      "bf16 of shape [2, 64], expected bf16 of shape [64, 2]" },
    { "llama-w4a16", "q_proj.weight_packed", "[64,8]", "[8,64]",
      "i32 of shape [8, 64], expected i32 of shape [64, 8]" },
    { "llama-w4a16", "q_proj.weight_shape", "I64", "U64",
      "weight_shape: u64 of shape [2], expected two integers" },
    { "llama-w4a16-asym", "q_proj.weight_zero_point", "[8,2]", "[2,8]", "expected i32 of shape [8, 2]" },
    { "llama-w4a16-asym", "", "q_proj.weight_zero_point", "q_proj.weight_zero_poinx",
      "q_proj.weight_zero_point is missing; " },
    { "llama-gptq-order", "", "q_proj.g_idx", "q_proj.g_idy", "q_proj.g_idx is missing; " },
    { "llama-w4a16-asym", "", "q_proj.weight_g_idx", "q_proj.weight_g_idy",
      "q_proj.weight_g_idx is missing; " },
    { "gpt-oss-mxfp4", "", "down_proj_scales", "down_proj_scalex", "down_proj_scales is missing; " },
    { "gpt-oss-mxfp4", "down_proj_scales", "[3,64,3]", "[64,3,3]",
      "u8 of shape [64, 3, 3], expected u8 of shape [3, 64, 3]" },
    { "gpt-oss-mxfp4", "down_proj_blocks", "[3,64,3,16]", "[3,64,16,3]",
      "shape [3, 64, 16, 3], expected u8 of shape [..., 16]" },
    { "llama-w8a8", "", "q_proj.weight_scale", "q_proj.weight_scalx", "q_proj.weight_scale is missing; " },
    { "llama-bnb-nf4", "", "q_proj.weight.absmax", "q_proj.weight.absmay",
      "q_proj.weight.absmax is missing; " },
    { "llama-bnb-nf4", "", "q_proj.weight.quant_map", "q_proj.weight.quant_mop",
      "q_proj.weight.quant_map is missing; " },
    { "llama-bnb-nf4", "", "q_proj.weight.nested_absmax", "q_proj.weight.nested_absmay",
      "q_proj.weight.nested_absmax is missing; " },
    { "llama-bnb-nf4", "", "q_proj.weight.nested_quant_map", "q_proj.weight.nested_quant_mop",
      "q_proj.weight.nested_quant_map is missing; " },
    { "llama-bnb-nf4", "", "\"shape\": [64, 64]", "\"shape\": [64, 63]",
      "2048 bytes, expected half a byte for each of 64 x 63 weights" },
    { "llama-bnb-nf4", "", "\"shape\": [64, 64]", "\"shape\": [64, -4]", "shape: expected rows and columns" },
    { "llama-bnb-nf4", "", "\"blocksize\": 64", "\"blocksize\": 32",
      "u8 of shape [96], expected u8 of shape [192]" },
    { "llama-bnb-nf4", "", "\"blocksize\": 64", "\"blocksize\": -1",
      "blocksize: expected the elements of a block" },
    { "llama-bnb-nf4", "", "\"nested_blocksize\": 256", "\"nested_blocksize\": 0.1",
      "nested_blocksize: expected the scales of a block" },
    { "llama-bnb-nf4", "", "\"nested_blocksize\": 256", "\"nested_blocksize\": 032", "expected JSON: " },
    { "llama-bnb-nf4", "", "\"dtype\": \"bfloat16\"", "\"dtype\": \"bfloat17\"",
      "dtype: expected bfloat16, float16 or float32" },
    { "llama-bnb-fp4", "q_proj.weight.absmax", "F32", "I32",
      "q_proj.weight.absmax: i32 of shape [64], expected f32 of shape [64]" },
};

/* Replaces a text in a buffer that does not grow, except that a shape may take a blank of padding. */
static void change_text(uint8_t *bytes, size_t *n, const struct change *c)
{
    uint8_t *after = memmem(bytes, *n, c->after, strlen(c->after));
    assert_non_null(after);
    uint8_t *at = memmem(after, *n - (size_t)(after - bytes), c->from, strlen(c->from));
    assert_non_null(at);
    size_t n_from = strlen(c->from), n_to = strlen(c->to);
    uint64_t header;
    memmove(at + n_to, at + n_from, *n - (size_t)(at - bytes) - n_from);
    memcpy(at, c->to, n_to);
    memcpy(&header, bytes, 8);
    header += n_to - n_from;
    memcpy(bytes, &header, 8);
    *n += n_to - n_from;
}

static void expect_refusal(const char *words)
{
    struct checkpoint *ck = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = checkpoint_open(&ck, folder, &err);
    if (st != TUTTI_E_FORMAT || !strstr(err.text, words))
        fail_msg("status %d, \"%s\", expected \"%s\"", st, err.text, words);
    assert_null(ck);
}

static void what_does_not_fit_together_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        size_t n, n_config;
        uint8_t *bytes = read_whole(CHANGES[i].fixture, "model.safetensors", &n);
        uint8_t *config = read_whole(CHANGES[i].fixture, "config.json", &n_config);
        change_text(bytes, &n, &CHANGES[i]);
        write_whole("model.safetensors", bytes, n);
        write_whole("config.json", config, n_config);
        expect_refusal(CHANGES[i].words);
        free(bytes);
        free(config);
    }
}

static void scales_of_keys_and_values_are_ignored(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "self_attn.k_scale", "self_attn.v_scale", "self_attn.kv_scale",
                                         "self_attn.q_scale", "self_attn.prob_scale" };
    size_t n, n_config;
    uint8_t *config = read_whole("llama-fp8-tensor", "config.json", &n_config);
    write_whole("config.json", config, n_config);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct checkpoint *ck = NULL;
        uint8_t *bytes = read_whole("llama-fp8-tensor", "model.safetensors", &n);
        const struct change c = { .after = "", .from = "self_attn.k_proj.input_scale", .to = NAMES[i] };
        change_text(bytes, &n, &c);
        write_whole("model.safetensors", bytes, n);
        assert_int_equal(checkpoint_open(&ck, folder, NULL), TUTTI_OK);
        for (size_t k = 0; k < checkpoint_n_tensors(ck); k++)
            assert_null(strstr(checkpoint_tensor(ck, k)->name, NAMES[i]));
        checkpoint_close(ck);
        free(bytes);
    }
    free(config);
}

/* Files next to a config.json, and what the error must contain; NULL: it opens. */
static const struct {
    const char *config, *file, *text, *words;
} SETTINGS[] = {
    { "{}", "hf_quant_config.json", "{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}}",
      "hf_quant_config.json: quantization: the weights are quantized (quant_method modelopt)" },
    { "{}", "hf_quant_config.json",
      "{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"}}", NULL },
    { "{}", "hf_quant_config.json", "{\"producer\": {\"name\": \"modelopt\"}}", NULL },
    { "{}", "quantize_config.json", "{\"bits\": 3, \"group_size\": 128}",
      "quantize_config.json: quantization_config (gptq): bits: 3, expected 2, 4 or 8" },
    { "{\"quantization_config\": {\"quant_method\": \"hqq\"}}", "hf_quant_config.json",
      "{\"quantization\": {\"quant_algo\": \"FP8\"}}", "(quant_method hqq)" },
    { "{\"quantization\": {\"group_size\": 64, \"bits\": 4}, "
      "\"quantization_config\": {\"group_size\": 64, \"bits\": 4}}",
      "generation_config.json", "{}", "(quant_method MLX)" },
};

/* Weights may have been converted back, next to a file that only their program reads. */
static void a_file_of_quantized_weights_without_them_is_ignored(void **state)
{
    (void)state;
    static const char TEXT[] = "{\"quantization\": {\"quant_algo\": \"FP8\"}}";
    struct checkpoint *ck = NULL;
    size_t n;
    uint8_t *bytes = read_whole("llama-fp8-tensor", "golden.safetensors", &n);
    write_whole("model.safetensors", bytes, n);
    write_whole("config.json", (const uint8_t *)"{}", 2);
    write_whole("hf_quant_config.json", (const uint8_t *)TEXT, sizeof TEXT - 1);
    assert_int_equal(checkpoint_open(&ck, folder, NULL), TUTTI_OK);
    checkpoint_close(ck);
    free(bytes);
}

static void methods_are_named_wherever_uploads_have_them(void **state)
{
    (void)state;
    char path[512];
    size_t n;
    uint8_t *bytes = read_whole("llama-fp8-tensor", "model.safetensors", &n);
    write_whole("model.safetensors", bytes, n);
    free(bytes);
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
        struct checkpoint *ck = NULL;
        struct tutti_error err = { 0 };
        write_whole("config.json", (const uint8_t *)SETTINGS[i].config, strlen(SETTINGS[i].config));
        write_whole(SETTINGS[i].file, (const uint8_t *)SETTINGS[i].text, strlen(SETTINGS[i].text));
        enum tutti_status st = checkpoint_open(&ck, folder, &err);
        if (st != (SETTINGS[i].words ? TUTTI_E_UNSUPPORTED : TUTTI_OK) ||
            (SETTINGS[i].words && !strstr(err.text, SETTINGS[i].words)))
            fail_msg("%zu: status %d, \"%s\"", i, st, err.text);
        checkpoint_close(ck);
        snprintf(path, sizeof path, "%s/%s", folder, SETTINGS[i].file);
        assert_int_equal(unlink(path), 0);
    }
}

/* Sets the first element of a tensor of 32-bit integers. */
static void change_value(const char *fixture, const char *tensor, int32_t value)
{
    size_t n, n_config;
    uint8_t *bytes = read_whole(fixture, "model.safetensors", &n);
    uint8_t *config = read_whole(fixture, "config.json", &n_config);
    struct tensor_set *file = NULL;
    assert_int_equal(tensor_set_open_memory(&file, &SAFETENSORS_FORMAT, bytes, n, "x", NULL), TUTTI_OK);
    for (size_t i = 0; i < file->n; i++) {
        if (strstr(file->tensors[i].name, tensor))
            memcpy(bytes + ((const uint8_t *)file->tensors[i].data - bytes), &value, sizeof value);
    }
    tensor_set_close(file);
    write_whole("model.safetensors", bytes, n);
    write_whole("config.json", config, n_config);
    free(bytes);
    free(config);
}

static void groups_and_shapes_are_checked_by_value(void **state)
{
    (void)state;
    change_value("llama-gptq-order", "down_proj.g_idx", 3);
    expect_refusal("down_proj.g_idx: column 0 is in group 3, expected 0 to 2");
    change_value("llama-gptq-order", "down_proj.g_idx", -1);
    expect_refusal("column 0 is in group -1");
    change_value("llama-w4a16-asym", "down_proj.weight_g_idx", 3);
    expect_refusal("down_proj.weight_g_idx: column 0 is in group 3, expected 0 to 2");
    change_value("llama-w4a16", "down_proj.weight_shape", 63);
    expect_refusal("expected i32 of shape [63, 12]");
    change_value("llama-w4a16", "down_proj.weight_shape", 0);
    expect_refusal("expected a matrix with rows and columns");
}

/* A zero point other than the middle needs a type with a bit more. */
static void one_zero_point_changes_the_type(void **state)
{
    (void)state;
    struct checkpoint *ck = NULL;
    change_value("llama-gptq", "down_proj.qzeros", 0x77777770);
    assert_int_equal(checkpoint_open(&ck, folder, NULL), TUTTI_OK);
    assert_int_equal(checkpoint_find(ck, "model.layers.0.mlp.down_proj.weight")->dtype, DTYPE_Q5_0);
    assert_int_equal(checkpoint_find(ck, "model.layers.0.mlp.up_proj.weight")->dtype, DTYPE_Q4_0);
    checkpoint_close(ck);
}

/* The weights of down_proj, whose first zero points are those of word, in a file of that format, which has every word less by step;
 * freed by the caller. */
static uint8_t *read_with_zeros(const char *format, uint32_t word, uint32_t step, size_t *n_bytes)
{
    struct checkpoint *ck = NULL;
    struct tensor_set *file = NULL;
    size_t n;
    void *owned;
    uint8_t *upload = read_whole("llama-gptq-v2", "model.safetensors", &n);
    assert_int_equal(tensor_set_open_memory(&file, &SAFETENSORS_FORMAT, upload, n, "x", NULL), TUTTI_OK);
    for (size_t i = 0; i < file->n; i++) {
        uint8_t *words = upload + ((const uint8_t *)file->tensors[i].data - upload);
        bool is_changed = strstr(file->tensors[i].name, "qzeros") != NULL;
        for (size_t k = 0; is_changed && k < file->tensors[i].n_bytes; k += 4) {
            uint32_t x;
            memcpy(&x, words + k, 4);
            x = (k == 0 ? word : x) - step;
            memcpy(words + k, &x, 4);
        }
    }
    tensor_set_close(file);
    write_whole("model.safetensors", upload, n);
    free(upload);
    uint8_t *config = read_whole("llama-gptq-v2", "config.json", &n);
    config[n] = 0;
    char *at = strstr((char *)config, "\"gptq_v2\"");
    assert_non_null(at);
    memcpy(at, format, 9);
    write_whole("config.json", config, n);
    free(config);
    assert_int_equal(checkpoint_open(&ck, folder, NULL), TUTTI_OK);
    const struct tensor *t = checkpoint_find(ck, "model.layers.0.mlp.down_proj.weight");
    const uint8_t *bytes = tensor_bytes(t, &owned);
    uint8_t *copy = malloc(t->n_bytes);
    assert_true(bytes && copy);
    memcpy(copy, bytes, t->n_bytes);
    *n_bytes = t->n_bytes;
    free(owned);
    checkpoint_close(ck);
    return copy;
}

/* GPTQModel saves its own format less 1 in every number of a word, by one subtraction, and reads it by one addition
 * (convert_gptq_v2_to_v1_format and back, gptqmodel/utils/model.py). */
static void zero_points_of_0_borrow_from_the_next(void **state)
{
    static const uint32_t WORDS[] = {
        0x80808080, 0x00000008, 0x0f0f0f00, 0xf0000000, 0x00000000, 0x12345678
    };
    (void)state;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        size_t n_newer, n_older;
        uint8_t *newer = read_with_zeros("\"gptq_v2\"", WORDS[i], 0, &n_newer);
        uint8_t *older = read_with_zeros("\"gptq\"   ", WORDS[i], 0x11111111, &n_older);
        assert_int_equal(n_older, n_newer);
        assert_memory_equal(older, newer, n_newer);
        free(newer);
        free(older);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(zero_points_of_0_borrow_from_the_next, make_folder, remove_folder),
        cmocka_unit_test(weights_are_those_that_torch_computes),
        cmocka_unit_test_setup_teardown(what_does_not_fit_together_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(scales_of_keys_and_values_are_ignored, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_file_of_quantized_weights_without_them_is_ignored, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(methods_are_named_wherever_uploads_have_them, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(groups_and_shapes_are_checked_by_value, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(one_zero_point_changes_the_type, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
