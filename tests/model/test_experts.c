/* Mixtures of experts as other programs store them (tests/fixtures/experts): the logits of the published folders, in
 * every conversion too; and what does not fit together, which is refused by name. */
#include "kernels/quantize/quantize.h"
#include "model/description/family.h"
#include "offline/convert.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct {
    const char *name, *golden, *family;
} FIXTURES[] = {
    { "mixtral-tiny.gguf", "mixtral-tiny", "mixtral" },
    { "mixtral-tiny-older.gguf", "mixtral-tiny", "mixtral" },
    { "mixtral-tiny-merged", "mixtral-tiny", "mixtral" },
    { "gpt-oss-tiny.gguf", "gpt-oss-tiny", "gpt_oss" },
    { "gpt-oss-tiny-fused.gguf", "gpt-oss-tiny", "gpt_oss" },
    { "gpt-oss-tiny-mxfp4.gguf", "gpt-oss-tiny-mxfp4", "gpt_oss" },
    { "qwen2-moe-tiny.gguf", "qwen2-moe-tiny", "qwen2_moe" },
    { "qwen2-moe-tiny-merged", "qwen2-moe-tiny", "qwen2_moe" },
    { "qwen3-moe-tiny.gguf", "qwen3-moe-tiny", "qwen3_moe" },
    { "qwen3-moe-tiny-merged", "qwen3-moe-tiny", "qwen3_moe" },
    { "glm4-moe-tiny-air.gguf", "glm4-moe-tiny-air", "glm4_moe" },
    { "glm4-moe-tiny-air-merged", "glm4-moe-tiny-air", "glm4_moe" },
    { "minimax-m2-tiny-merged", "minimax-m2-tiny", "minimax_m2" },
};
enum { N_FIXTURES = sizeof FIXTURES / sizeof *FIXTURES };

static void check_logits(const char *path, const char *fixture, const char *family, double bound)
{
    char golden[512];
    snprintf(golden, sizeof golden, TEST_FIXTURES "/%s/golden.safetensors", fixture);
    struct model *model = util_load(path, "f32", "f32", 2, NULL);
    assert_string_equal(model->desc.family, family);
    struct util_errors e = util_compare_file(model, golden, "logits", 3);
    print_message("# %s: relative %.2e at most, rms %.2e\n", path, e.max_relative, e.rms);
    assert_true(e.max_relative <= bound);
    model_free(model);
}

static void files_of_other_programs_give_the_golden_logits(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/experts/%s", FIXTURES[i].name);
        check_logits(path, FIXTURES[i].golden, FIXTURES[i].family, 1e-4);
    }
}

static char file[] = "/tmp/tutti-experts-XXXXXX";

static void convert(const char *src, const char *dst, const char *type)
{
    struct convert_options options = { .type = weight_type_find(type), .n_threads = 2 };
    struct tutti_error err;
    if (convert_to_gguf(src, dst, &options, &err) != TUTTI_OK)
        fail_msg("%s: %s", src, err.text);
}

/* To f32, and from there to bf16, which the published files are: so nothing is lost. */
static void every_layout_converts_to_gguf_and_again(void **state)
{
    (void)state;
    char again[64];
    snprintf(again, sizeof again, "%s.gguf", file);
    for (int i = 0; i < N_FIXTURES; i++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/experts/%s", FIXTURES[i].name);
        convert(path, file, "f32");
        check_logits(file, FIXTURES[i].golden, FIXTURES[i].family, 1e-4);
        convert(file, again, "bf16");
        check_logits(again, FIXTURES[i].golden, FIXTURES[i].family, 1e-4);
    }
    unlink(again);
}

/* What llama.cpp reads: names, dimensions, and the types of router and bias, which are not quantized. */
static void converted_files_have_the_names_and_shapes_of_the_gguf_package(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "mixtral-tiny", "qwen2-moe-tiny",     "qwen3-moe-tiny",
                                         "gpt-oss-tiny", "gpt-oss-tiny-mxfp4", "glm4-moe-tiny-air" };
    for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++) {
        char path[512];
        struct tensor_set *theirs, *ours;
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", NAMES[k]);
        convert(path, file, "q4_0");
        assert_int_equal(tensor_set_open(&ours, file, NULL), TUTTI_OK);
        snprintf(path, sizeof path, TEST_FIXTURES "/experts/%s.gguf", NAMES[k]);
        assert_int_equal(tensor_set_open(&theirs, path, NULL), TUTTI_OK);
        assert_int_equal(ours->n, theirs->n);
        for (size_t i = 0; i < ours->n; i++) {
            const struct tensor *a = &ours->tensors[i], *b = theirs->tensors;
            while (b < theirs->tensors + theirs->n && strcmp(a->name, b->name) != 0)
                b++;
            if (b == theirs->tensors + theirs->n)
                fail_msg("%s: %s is no name of the package", NAMES[k], a->name);
            assert_int_equal(a->n_dims, b->n_dims);
            assert_memory_equal(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape);
            assert_true((a->dtype == DTYPE_F32) == (b->dtype == DTYPE_F32));
        }
        tensor_set_close(ours);
        tensor_set_close(theirs);
    }
}

/* The numbers of a tensor of MXFP4, for free(). */
static float *read_numbers(const struct tensor *t, int64_t *n)
{
    *n = t->shape[0] * t->shape[1] * t->shape[2];
    float *values = malloc((size_t)*n * sizeof *values);
    assert_non_null(values);
    assert_true(t->dtype == DTYPE_MXFP4 && t->n_dims == 3);
    dequantize(values, t->data, DTYPE_MXFP4, *n);
    return values;
}

/* The folder's blocks, and the gguf package's of the same numbers: as they are stored, both give the same bits; and the
 * folder's converted blocks hold these numbers. */
static void mxfp4_runs_and_converts_as_it_is_stored(void **state)
{
    (void)state;
    enum { N_IDS = 40, N_VOCAB = 109 };
    static const char *const PATHS[] = { TEST_FIXTURES "/gpt-oss-tiny-mxfp4",
                                         TEST_FIXTURES "/experts/gpt-oss-tiny-mxfp4.gguf" };
    float *logits[2];
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i * 29 % N_VOCAB;
    for (int i = 0; i < 2; i++) {
        struct model *model = util_load(PATHS[i], NULL, "f32", 2, NULL);
        assert_int_equal(model->weight_type, DTYPE_MXFP4);
        logits[i] = util_logits(model, ids, N_IDS, 7);
        model_free(model);
    }
    assert_memory_equal(logits[0], logits[1], N_IDS * N_VOCAB * sizeof(float));
    free(logits[0]);
    free(logits[1]);
    struct tensor_set *ours, *theirs;
    int n_blocks = 0;
    convert(PATHS[0], file, "mxfp4");
    assert_int_equal(tensor_set_open(&ours, file, NULL), TUTTI_OK);
    assert_int_equal(tensor_set_open(&theirs, PATHS[1], NULL), TUTTI_OK);
    for (size_t i = 0; i < ours->n; i++) {
        const struct tensor *a = &ours->tensors[i], *b = theirs->tensors;
        int64_t n, n_theirs;
        if (a->n_dims != 3)
            continue;
        while (strcmp(a->name, b->name) != 0)
            b++;
        float *got = read_numbers(a, &n), *want = read_numbers(b, &n_theirs);
        assert_int_equal(n, n_theirs);
        for (int64_t k = 0; k < n; k++)
            assert_true(got[k] == want[k]);
        free(got);
        free(want);
        n_blocks++;
    }
    assert_int_equal(n_blocks, 4 * 3);
    tensor_set_close(ours);
    tensor_set_close(theirs);
}

/* ---- configurations and shapes that do not fit ---- */

static char folder[] = "/tmp/tutti-experts-folder-XXXXXX";

static void copy(const char *fixture, const char *name)
{
    char from[512], to[512];
    snprintf(from, sizeof from, TEST_FIXTURES "/%s/%s", fixture, name);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    unlink(to);
    assert_int_equal(symlink(from, to), 0);
}

static void expect(const char *words)
{
    struct model *model = NULL;
    struct tutti_error err = { 0 };
    if (model_load(&model, folder, NULL, &err) == TUTTI_OK || !strstr(err.text, words))
        fail_msg("found \"%s\", expected \"%s\"", err.text, words);
}

static void write_config(const char *fixture, const char *key, const char *value)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", fixture);
    json_t *config = util_load_json(path);
    assert_int_equal(json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

static void configurations_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *key, *value, *words;
    } CASES[] = {
        { "mixtral-tiny", "num_local_experts", "0", "num_local_experts: 0, expected an integer from 1" },
        { "mixtral-tiny", "num_experts_per_tok", "4", "the number of experts of a row is above" },
        { "mixtral-tiny", "num_local_experts", "4", "gate.weight: shape [3, 72], expected [4, 72]" },
        { "mixtral-tiny", "num_local_experts", "2",
          "block_sparse_moe.gate.weight: shape [3, 72], expected [2, 72]" },
        { "mixtral-tiny", "num_experts", "4", "num_experts: another value than its other name's" },
        { "mixtral-tiny", "hidden_act", "\"relu\"", "hidden_act: relu is not supported" },
        { "gpt-oss-tiny", "num_local_experts", "4", "router.weight: shape [5, 72], expected [4, 72]" },
        { "gpt-oss-tiny", "intermediate_size", "48",
          "experts.gate_up_proj: shape [5, 72, 80], expected [5, 72, 96]" },
        { "gpt-oss-tiny", "num_experts", "3", "num_experts: another value than its other name's" },
        { "gpt-oss-tiny", "swiglu_limit", "6.0", "swiglu_limit: 6.0 is not supported" },
        { "gpt-oss-tiny", "swiglu_alpha", "1.0", "swiglu_alpha: 1.0 is not supported" },
        { "gpt-oss-tiny", "attention_bias", "false", "bias: no gpt_oss model of this configuration uses it" },
        { "gpt-oss-tiny", "num_attention_heads", "2", "self_attn.q_proj.weight: shape [96, 72]" },
        { "gpt-oss-tiny", "sliding_window", "null", "sliding_window: null" },
        { "gpt-oss-tiny", "layer_types", "[\"sliding_attention\"]", "layer_types: a list of another length" },
        { "gpt-oss-tiny", "router_scale", "2", "router_scale: 2: tutti does not know this setting" },
        { "qwen2-moe-tiny", "moe_intermediate_size", "48",
          "experts.0.gate_proj.weight: shape [40, 64], expected [48, 64]" },
        { "qwen2-moe-tiny", "shared_expert_intermediate_size", "80",
          "shared_expert.gate_proj.weight: shape [88, 64], expected [80, 64]" },
        { "qwen2-moe-tiny", "use_sliding_window", "true", "use_sliding_window: a window of attention" },
        { "qwen2-moe-tiny", "mlp_only_layers", "[1]", "model.layers.1.mlp.gate_proj.weight is missing" },
        { "qwen3-moe-tiny", "mlp_only_layers", "[\"1\"]", "mlp_only_layers: an entry that is no number" },
        { "qwen3-moe-tiny", "mlp_only_layers", "3", "mlp_only_layers: what is no list" },
        { "qwen3-moe-tiny", "decoder_sparse_step", "0", "decoder_sparse_step: 0, expected" },
        { "qwen3-moe-tiny", "expert_capacity", "4", "expert_capacity: 4: tutti does not know this setting" },
        { "glm4-moe-tiny", "n_group", "3", "the number of experts is no multiple of the number of groups" },
        { "glm4-moe-tiny", "n_group", "10",
          "num_experts_per_tok: a number of experts above that of topk_group" },
        { "glm4-moe-tiny", "topk_group", "1",
          "num_experts_per_tok: a number of experts above that of topk_group" },
        { "glm4-moe-tiny", "topk_group", "9", "topk_group: a number of groups above n_group" },
        { "glm4-moe-tiny", "n_shared_experts", "2",
          "shared_experts.gate_proj.weight: shape [40, 64], expected [80, 64]" },
        { "glm4-moe-tiny", "first_k_dense_replace", "0", "model.layers.0.mlp.gate.weight is missing" },
        { "glm4-moe-tiny", "first_k_dense_replace", "2", "model.layers.1.mlp.gate_proj.weight is missing" },
        { "glm4-moe-tiny", "use_qk_norm", "false", "k_norm.weight: no glm4_moe model" },
        { "experts/qwen3-moe-tiny-merged", "num_local_experts", "8",
          "model.layers.0.mlp.gate.weight: shape [7, 64], expected [8, 64]" },
        { "experts/qwen3-moe-tiny-merged", "moe_intermediate_size", "16",
          "experts.gate_up_proj: shape [7, 64, 64], expected [7, 32, 64]" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        copy(CASES[i].fixture, "model.safetensors");
        write_config(CASES[i].fixture, CASES[i].key, CASES[i].value);
        expect(CASES[i].words);
    }
}

static void settings_that_gguf_cannot_express_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *key, *value, *words;
    } CASES[] = {
        { "qwen3-moe-tiny-mixed", "use_cache", "true",
          "some layers have no experts, which GGUF's architecture qwen3moe cannot" },
        { "gpt-oss-tiny", "layer_types",
          "[\"full_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]",
          "layer_types: not every other layer has a window, from the first on, which GGUF's" },
        { "gpt-oss-tiny", "attention_bias", "false", "attention_bias: false, which GGUF's" },
        { "gpt-oss-tiny", "rope_scaling",
          "{\"rope_type\":\"yarn\",\"factor\":8.0,\"original_max_position_embeddings\":64}",
          "truncate: true of YaRN, which GGUF's architecture gpt-oss cannot" },
        { "qwen3-moe-tiny", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":8.0,\"truncate\":false}",
          "truncate: false of YaRN, which GGUF's architecture qwen3moe cannot" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct convert_options options = { .type = weight_type_find("f32"), .n_threads = 1 };
        struct tutti_error err;
        copy(CASES[i].fixture, "model.safetensors");
        write_config(CASES[i].fixture, CASES[i].key, CASES[i].value);
        assert_int_equal(convert_to_gguf(folder, file, &options, &err), TUTTI_E_UNSUPPORTED);
        if (!strstr(err.text, CASES[i].words))
            fail_msg("found \"%s\", expected \"%s\"", err.text, CASES[i].words);
    }
}

/* Another key gives the same model: transformers ignores what the layers after the last one hold. */
static void settings_without_effect_are_accepted(void **state)
{
    (void)state;
    static const char *const CASES[][3] = {
        { "mixtral-tiny", "router_jitter_noise", "0.01" },
        { "mixtral-tiny", "num_experts", "3" },
        { "gpt-oss-tiny", "initial_context_length", "7" },
        { "gpt-oss-tiny", "swiglu_alpha", "1.702" },
        { "gpt-oss-tiny", "layer_types", "null" },
        { "gpt-oss-tiny", "num_experts", "5" },
        { "qwen2-moe-tiny", "router_aux_loss_coef", "0.5" },
        { "qwen3-moe-tiny", "mlp_only_layers", "null" },
        { "qwen3-moe-tiny", "output_router_logits", "true" },
        { "glm4-moe-tiny", "num_nextn_predict_layers", "3" },
        { "glm4-moe-tiny", "num_local_experts", "10" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model *model = NULL;
        struct tutti_error err;
        copy(CASES[i][0], "model.safetensors");
        write_config(CASES[i][0], CASES[i][1], CASES[i][2]);
        if (model_load(&model, folder, NULL, &err) != TUTTI_OK)
            fail_msg("%s: %s", CASES[i][1], err.text);
        model_free(model);
    }
}

/* A shape in the header of a folder's file. */
static void write_shape(const char *fixture, const char *name, const char *shape)
{
    char path[512], *bytes;
    uint64_t n_header;
    long n;
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/model.safetensors", fixture);
    FILE *in = fopen(path, "rb");
    assert_true(in && fseek(in, 0, SEEK_END) == 0);
    n = ftell(in);
    rewind(in);
    bytes = malloc((size_t)n);
    assert_true(bytes && fread(bytes, 1, (size_t)n, in) == (size_t)n);
    fclose(in);
    memcpy(&n_header, bytes, sizeof n_header);
    json_t *header = json_loadb(bytes + 8, n_header, 0, NULL);
    json_object_set_new(json_object_get(header, name), "shape", json_loads(shape, 0, NULL));
    char *text = json_dumps(header, JSON_COMPACT);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    FILE *out = fopen(path, "wb");
    uint64_t n_text = strlen(text);
    assert_true(out && fwrite(&n_text, 1, sizeof n_text, out) == sizeof n_text);
    assert_int_equal(fwrite(text, 1, n_text, out), n_text);
    assert_int_equal(fwrite(bytes + 8 + n_header, 1, (size_t)n - 8 - n_header, out),
                     (size_t)n - 8 - n_header);
    fclose(out);
    free(text);
    free(bytes);
    json_decref(header);
}

/* Of as many elements as before, so that only the description shows that they are others. */
static void merged_tensors_of_other_shapes_are_refused(void **state)
{
    (void)state;
    static const char *const CASES[][3] = {
        { "model.layers.0.mlp.experts.gate_up_proj", "[14, 32, 64]", "[14, 32, 64], expected [7, 64, 64]" },
        { "model.layers.0.mlp.experts.gate_up_proj", "[448, 64]", "[448, 64], expected [7, 64, 64]" },
        { "model.layers.1.mlp.experts.gate_up_proj", "[7, 64, 32, 2]",
          "[7, 64, 32, 2], expected [7, 64, 64]" },
        { "model.layers.0.mlp.experts.down_proj", "[7, 32, 64]", "[7, 32, 64], expected [7, 64, 32]" },
        { "model.layers.1.mlp.experts.down_proj", "[1, 448, 32]", "[1, 448, 32], expected [7, 64, 32]" },
        { "model.layers.1.mlp.gate.weight", "[64, 7]", "[64, 7], expected [7, 64]" },
        { "model.layers.1.mlp.gate.weight", "[448]", "[448], expected [7, 64]" },
    };
    copy("experts/qwen3-moe-tiny-merged", "config.json");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_shape("experts/qwen3-moe-tiny-merged", CASES[i][0], CASES[i][1]);
        expect(CASES[i][2]);
    }
}

static int open_files(void **state)
{
    (void)state;
    int fd = mkstemp(file);
    return fd < 0 || close(fd) != 0 || !mkdtemp(folder);
}

static int remove_files(void **state)
{
    (void)state;
    char path[512];
    unlink(file);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_other_programs_give_the_golden_logits),
        cmocka_unit_test(every_layout_converts_to_gguf_and_again),
        cmocka_unit_test(converted_files_have_the_names_and_shapes_of_the_gguf_package),
        cmocka_unit_test(mxfp4_runs_and_converts_as_it_is_stored),
        cmocka_unit_test(settings_that_gguf_cannot_express_are_named),
        cmocka_unit_test(configurations_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(settings_without_effect_are_accepted),
        cmocka_unit_test(merged_tensors_of_other_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
