/* Experts whose tensors or settings do not fit together, in every format: an error that names the file, and the tensor or the key. */
#include "../support/folder.h"
#include "base/log.h"
#include "model/load/load.h"
#include "support/made_model.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_EXPERTS = 3 };

/* Replaces each from in a file of the folder by to, which is as long. */
static void change_file(const char *name, const char *from, const char *to)
{
    char path[128], *bytes = malloc(1 << 20);
    int n_changes = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb+");
    assert_true(file && bytes && strlen(from) == strlen(to));
    size_t n = fread(bytes, 1, 1 << 20, file);
    for (char *at = bytes; (at = memmem(at, n - (size_t)(at - bytes), from, strlen(from))); n_changes++)
        memcpy(at, to, strlen(to));
    rewind(file);
    assert_true(n_changes > 0 && n < 1 << 20);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

static void expect(const char *what, const char *words)
{
    struct model *model = NULL;
    struct tutti_error err = { 0 };
    if (model_load(&model, folder, NULL, &err) == TUTTI_OK)
        fail_msg("%s: it is loaded, expected \"%s\"", what, words);
    if (!strstr(err.text, words) || !strstr(err.text, folder))
        fail_msg("%s: found \"%s\", expected \"%s\"", what, err.text, words);
}

struct broken {
    enum made_kind kind;
    const char *from, *to, *words;
};

static void check_changes(const char *name, const struct broken *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char what[128];
        made_experts(folder, cases[i].kind, N_EXPERTS);
        change_file(name, cases[i].from, cases[i].to);
        snprintf(what, sizeof what, "%s: %s", MADE_NAMES[cases[i].kind], cases[i].to);
        expect(what, cases[i].words);
    }
}

#define EXPERT "model.layers.0.mlp.experts."

static void tensors_that_do_not_fit_are_named(void **state)
{
    (void)state;
    static const struct broken CASES[] = {
        { MADE_BF16, "experts.down_proj", "experts.down_prox", "tensor " EXPERT "down_proj is missing" },
        { MADE_BF16, "[3,64,64]", "[6,32,64]",
          EXPERT "gate_up_proj: shape [6, 32, 64], expected [3, 64, 64]" },
        { MADE_MXFP4, "down_proj_scales", "down_proj_scalex", EXPERT "down_proj_scales is missing; " },
        { MADE_MXFP4, "[3,64,1,16]", "[3,64,16,1]",
          EXPERT "down_proj_blocks: u8 of shape [3, 64, 16, 1], expected" },
        { MADE_MXFP4, "[3,64,2]", "[3,2,64]",
          EXPERT "gate_up_proj_scales: u8 of shape [3, 2, 64], expected" },
        { MADE_FP8_BLOCKS, "1.up_proj", "7.up_proj", EXPERT "1.up_proj.weight is missing" },
        { MADE_FP8_BLOCKS, "2.up_proj.weight_scale_inv", "2.up_proj.weight_scale_inw",
          EXPERT "2.up_proj.weight_scale_inv is missing; " },
        { MADE_FP8_BLOCKS, "[1,2]", "[2,1]",
          "gate_proj.weight_scale_inv: shape [2, 1], expected a scale for all" },
        { MADE_FP8_BLOCKS, "1.down_proj", "2.down_proj", "model.safetensors: header: duplicate object key" },
        { MADE_FP8_ROWS, "0.gate_proj.weight_scale", "0.gate_proj.weight_scalx",
          EXPERT "0.gate_proj.weight_scale is missing; " },
        { MADE_GPTQ, "2.down_proj", "3.down_proj", EXPERT "2.down_proj.weight is missing" },
        { MADE_GPTQ, "1.gate_proj.scales", "1.gate_proj.scalez", EXPERT "1.gate_proj.scales is missing; " },
        { MADE_GPTQ, "1.gate_proj.qzeros", "1.gate_proj.qzeroz", EXPERT "1.gate_proj.qzeros is missing; " },
        { MADE_GPTQ, "0.up_proj.qweight", "1.up_proj.qweight",
          "model.safetensors: header: duplicate object key" },
        { MADE_GPTQ_ORDER, "\"dtype\":\"I32\",\"shape\":[64]", "\"dtype\":\"U32\",\"shape\":[64]",
          "gate_proj.g_idx: u32 of shape [64], expected i32 of shape [64]" },
        { MADE_AWQ, "2.gate_proj", "9.gate_proj", EXPERT "2.gate_proj.weight is missing" },
        { MADE_AWQ, "[64,4]", "[4,64]",
          "gate_proj.scales: bf16 of shape [4, 32], expected bf16 of shape [1, 512]" },
        { MADE_AWQ, "0.up_proj.qzeros", "0.up_proj.qzeroz", EXPERT "0.up_proj.qzeros is missing; " },
        { MADE_PACKED, "2.up_proj.weight_shape", "2.up_proj.weight_shapx",
          EXPERT "2.up_proj.weight_shape is missing; " },
        { MADE_PACKED, "1.up_proj", "8.up_proj", EXPERT "1.up_proj.weight is missing" },
        { MADE_PACKED, "[32,4]", "[4,32]",
          "weight_scale: bf16 of shape [4, 32], expected bf16 of shape [32, 4]" },
    };
    check_changes("model.safetensors", CASES, sizeof CASES / sizeof *CASES);
}

static void settings_that_do_not_fit_are_named(void **state)
{
    (void)state;
    static const struct broken CASES[] = {
        { MADE_GPTQ, "\"group_size\": 16", "\"group_size\": 24",
          "scales: bf16 of shape [4, 32], expected bf16 of shape [3, 32]" },
        { MADE_AWQ, "\"group_size\": 16", "\"group_size\": 24",
          "scales: bf16 of shape [4, 32], expected bf16 of shape [3, 32]" },
        { MADE_PACKED, "\"group_size\": 16", "\"group_size\": 24",
          "weight_scale: bf16 of shape [32, 4], expected bf16 of shape [32, 3]" },
        { MADE_GPTQ, "\"group_size\": 16", "\"group_size\":  0",
          "quantization_config (gptq): group_size: 0, expected" },
        { MADE_GPTQ, "\"group_size\": 16", "\"group_size\": -9",
          "quantization_config (gptq): group_size: -9, expected" },
        { MADE_AWQ, "\"bits\": 4", "\"bits\": 3", "quantization_config (awq): bits: 3, expected 4" },
        { MADE_FP8_BLOCKS, "[32, 32]", "[32,  0]",
          "quantization_config (fp8): weight_block_size: [32,0], expected" },
        { MADE_FP8_BLOCKS, "[32, 32]", "[32, -1]",
          "quantization_config (fp8): weight_block_size: [32,-1], expected" },
        { MADE_MXFP4, "mxfp4", "mxfp8", "quant_method mxfp8), expected" },
    };
    check_changes("config.json", CASES, sizeof CASES / sizeof *CASES);
}

static void change_setting(const char *key, json_int_t value)
{
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    assert_int_equal(json_object_set_new(config, key, json_integer(value)), 0);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

static void impossible_numbers_of_experts_are_refused_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        json_int_t value;
        const char *words;
    } CASES[] = {
        { "num_experts", 1000000000,
          "config.json: num_experts: 1000000000, expected an integer from 1 to 1024" },
        { "num_experts", INT64_MAX, "num_experts: 9223372036854775807, expected an integer from 1 to 1024" },
        { "num_experts", 1024, "mlp.gate.weight: shape [3, 64], expected [1024, 64]" },
        { "num_experts", 2, "mlp.gate.weight: shape [3, 64], expected [2, 64]" },
        { "num_experts_per_tok", 4, "config.json: num_experts_per_tok (expert_used_count): " },
        { "num_experts_per_tok", 1000000000,
          "num_experts_per_tok: 1000000000, expected an integer from 1 to" },
    };
    for (enum made_kind kind = 0; kind < MADE_KINDS; kind++) {
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
            made_experts(folder, kind, N_EXPERTS);
            change_setting(CASES[i].key, CASES[i].value);
            expect(MADE_NAMES[kind], CASES[i].words);
        }
    }
}

/* Writes bytes into the values of a tensor. */
static void change_tensor(const char *name, long at, const uint8_t *bytes, size_t n_bytes)
{
    char path[128], header[1 << 16];
    uint64_t n_header;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "rb+");
    assert_non_null(file);
    assert_int_equal(fread(&n_header, sizeof n_header, 1, file), 1);
    assert_true(n_header < sizeof header);
    assert_int_equal(fread(header, 1, n_header, file), n_header);
    json_t *all = json_loadb(header, n_header, 0, NULL);
    json_t *offsets = json_object_get(json_object_get(all, name), "data_offsets");
    assert_non_null(offsets);
    long begin = (long)(sizeof n_header + n_header +
                        (uint64_t)json_integer_value(json_array_get(offsets, 0)));
    assert_int_equal(fseek(file, begin + at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
    json_decref(all);
}

/* In types that keep the 8 bits, and in those that are expanded: blocks of 32 columns of 64. */
static void floats_of_8_bits_that_are_no_numbers_are_named(void **state)
{
    (void)state;
    static const struct {
        enum made_kind kind;
        const char *tensor;
        long at;
        uint8_t bytes[2];
        size_t n_bytes;
        const char *words;
    } CASES[] = {
        { MADE_FP8_ROWS,
          EXPERT "1.up_proj.weight",
          2 * 64 + 5,
          { 0x7F },
          1,
          EXPERT "1.up_proj.weight: the weight in row 2 and column 5 is no number" },
        { MADE_FP8_ROWS,
          EXPERT "2.down_proj.weight",
          63 * 32 + 31,
          { 0xFF },
          1,
          EXPERT "2.down_proj.weight: the weight in row 63 and column 31 is no number" },
        { MADE_FP8_ROWS,
          EXPERT "0.gate_proj.weight_scale",
          2 * 31,
          { 0x80, 0x7F },
          2,
          EXPERT "0.gate_proj.weight: the weight in row 31 and column 0 is no number, or its scale is not" },
        { MADE_FP8_ROWS,
          EXPERT "0.gate_proj.weight_scale",
          2 * 3,
          { 0x80, 0x71 },
          2, /* 2^100 */
          EXPERT "0.gate_proj.weight: the weight in row 3 and column 0" },
        { MADE_FP8_BLOCKS,
          EXPERT "1.up_proj.weight",
          3 * 64 + 33,
          { 0xFF },
          1,
          EXPERT "1.up_proj.weight: the weight in row 3 and column 33 is no number" },
        { MADE_FP8_BLOCKS,
          EXPERT "1.up_proj.weight_scale_inv",
          2,
          { 0xC0, 0x7F },
          2,
          EXPERT "1.up_proj.weight: the weight in row 0 and column 32 is no number" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        made_experts(folder, CASES[i].kind, N_EXPERTS);
        change_tensor(CASES[i].tensor, CASES[i].at, CASES[i].bytes, CASES[i].n_bytes);
        expect(CASES[i].tensor, CASES[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_that_do_not_fit_are_named),
        cmocka_unit_test(settings_that_do_not_fit_are_named),
        cmocka_unit_test(impossible_numbers_of_experts_are_refused_at_once),
        cmocka_unit_test(floats_of_8_bits_that_are_no_numbers_are_named),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
