/* Broken configurations and tensors: each with the words its error must contain. */
#include "model/family.h"
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

static char folder[] = "/tmp/tutti-test-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tutti-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static void path_of(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const FILES[] = { "config.json", "model.safetensors" };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        char path[256];
        path_of(path, sizeof path, FILES[i]);
        unlink(path);
    }
    return rmdir(folder);
}

/* The fixture's configuration with one key changed; value NULL: without it. */
static void write_config(const char *fixture, const char *key, const char *value)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", fixture);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (key && value)
        assert_int_equal(json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else if (key)
        json_object_del(config, key);
    path_of(path, sizeof path, "config.json");
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

/* The fixture's tensors; where old is not NULL, its name in the header becomes new (of the same length). */
static void write_tensors(const char *fixture, const char *old, const char *new)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/model.safetensors", fixture);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    size_t n = (size_t)ftell(in);
    rewind(in);
    char *bytes = malloc(n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, n, in), n);
    fclose(in);
    if (old) {
        char *at = memmem(bytes, n, old, strlen(old));
        assert_non_null(at);
        memcpy(at, new, strlen(new));
    }
    path_of(path, sizeof path, "model.safetensors");
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    fclose(out);
    free(bytes);
}

static void expect(const char *what, enum tutti_status status, const char *words)
{
    struct model *model = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = model_load(&model, folder, NULL, &err);
    if (st != status || !strstr(err.text, words))
        fail_msg("%s: status %d, \"%s\", expected %d, \"%s\"", what, st, err.text, status, words);
}

static void a_broken_configuration_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *key, *value, *words;
        enum tutti_status status;
    } CASES[] = {
        { "chatglm3-tiny", "model_type", NULL, "model_type is missing", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "model_type", "\"mamba\"", "\"mamba\" is not supported", TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "num_layers", NULL, "num_layers: missing, expected an integer from 1",
          TUTTI_E_FORMAT },
        { "chatglm3-tiny", "num_layers", "0", "num_layers: 0, expected", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "num_layers", "99999999999", "num_layers: 99999999999, expected", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "num_layers", "\"3\"", "num_layers: a string", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "num_layers", "4", "is missing", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "hidden_size", "64", "expected", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "multi_query_group_num", "3", "no multiple", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "kv_channels", "12", "head dimension", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "layernorm_epsilon", "0", "epsilon", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "layernorm_epsilon", "\"x\"", "layernorm_epsilon: a string", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "rmsnorm", "false", "LayerNorm is not supported", TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "apply_residual_connection_post_layernorm", "true", "residual",
          TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "add_bias_linear", "true", "add_bias_linear", TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "add_qkv_bias", "1", "true or false", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "quantization_bit", "4", "quantization_bit", TUTTI_E_UNSUPPORTED },
        { "chatglm-6b-tiny", "bos_token_id", "109", "bos_token_id: 109, expected", TUTTI_E_FORMAT },
        { "chatglm-6b-tiny", "position_encoding_2d", "false", "one stream", TUTTI_E_UNSUPPORTED },
        { "chatglm-6b-tiny", "quantization_bit", "8", "quantization_bit", TUTTI_E_UNSUPPORTED },
        { "pangu-tiny", "num_layers", "1", "num_layers: 1, expected", TUTTI_E_FORMAT },
        { "pangu-tiny", "num_layers", "3", "backbone.blocks.1.layernorm1.gamma is missing", TUTTI_E_FORMAT },
        { "pangu-tiny", "hidden_act", "\"gelu\"", "gelu is not supported", TUTTI_E_UNSUPPORTED },
        { "pangu-tiny", "seq_length", "225", "224 rows, expected one for each of 225", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_parameters", "{\"rope_type\":\"dynamic\",\"rope_theta\":10000}", "dynamic",
          TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":10000}",
          "rope_parameters.factor: missing", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_scaling", "{\"type\":\"yarn\",\"factor\":4,\"mscale\":1}", "mscale",
          TUTTI_E_UNSUPPORTED },
        { "qwen2-tiny", "tie_word_embeddings", "false", "lm_head.weight is missing", TUTTI_E_FORMAT },
        { "mistral-tiny", "sliding_window", "0", "sliding_window: 0, expected", TUTTI_E_FORMAT },
        { "qwen3-tiny", "head_dim", "32", "q_proj.weight: shape [96, 64], expected [128, 64]",
          TUTTI_E_FORMAT },
        { "glm4-tiny", "attention_bias", "true", "q_proj.bias is missing", TUTTI_E_FORMAT },
        { "glm4-tiny", "model_type", "\"glm4_moe\"", "\"glm4_moe\" is not supported", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "n_positions", "257", "256 rows, expected one for each of 257", TUTTI_E_FORMAT },
        { "gpt2-tiny", "n_embd", "62", "multiple of the heads", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "activation_function", "\"relu\"", "relu is not supported", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "scale_attn_by_inverse_layer_idx", "true", "inverse_layer_idx", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "n_inner", "128", "c_fc.weight: shape [64, 160], expected [64, 128]", TUTTI_E_FORMAT },
        { "bloom-tiny", "n_embed", "1000000000", "n_embed: 1000000000, expected", TUTTI_E_FORMAT },
        { "bloom-tiny", "num_attention_heads", "5", "multiple of the heads", TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "hidden_act", "\"gelu\"", "gelu is not supported", TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "vocab_size", "301", "expected [301, 64]", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "attention_bias", "true", "q_proj.bias is missing", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "num_attention_heads", "0", "num_attention_heads: 0", TUTTI_E_FORMAT },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_tensors(CASES[i].fixture, NULL, NULL);
        write_config(CASES[i].fixture, CASES[i].key, CASES[i].value);
        expect(CASES[i].key, CASES[i].status, CASES[i].words);
    }
}

static void a_tensor_that_is_not_there_is_named(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "model.layers.1.mlp.up_proj.weight", "model.norm.weight",
                                         "model.layers.2.self_attn.k_proj.weight",
                                         "model.embed_tokens.weight" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char quoted[128], changed[128];
        snprintf(quoted, sizeof quoted, "\"%s\"", NAMES[i]);
        snprintf(changed, sizeof changed, "\"%s\"", NAMES[i]);
        changed[1] = 'x';
        write_config("llama-tiny-tied", NULL, NULL);
        write_tensors("llama-tiny-tied", quoted, changed);
        expect(NAMES[i], TUTTI_E_FORMAT, NAMES[i]);
    }
}

static void a_tensor_of_another_type_or_shape_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new, *words[2];
    } CASES[] = {
        { "\"model.norm.weight\":{\"dtype\":\"BF16\"",
          "\"model.norm.weight\":{\"dtype\": \"I16\"",
          { "tensor model.norm.weight: type i16", "expected f32, f16, bf16" } },
        { "\"model.layers.1.mlp.up_proj.weight\":{\"dtype\":\"BF16\"",
          "\"model.layers.1.mlp.up_proj.weight\":{\"dtype\": \"U16\"",
          { "tensor model.layers.1.mlp.up_proj.weight: type u16", "expected f32, f16, bf16" } },
        { "\"model.layers.1.mlp.up_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[96,64]",
          "\"model.layers.1.mlp.up_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[64,96]",
          { "tensor model.layers.1.mlp.up_proj.weight: shape [64, 96]", "expected [96, 64]" } },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_config("llama-tiny-tied", NULL, NULL);
        write_tensors("llama-tiny-tied", CASES[i].old, CASES[i].new);
        expect(CASES[i].words[0], TUTTI_E_FORMAT, CASES[i].words[0]);
        expect(CASES[i].words[1], TUTTI_E_FORMAT, CASES[i].words[1]);
    }
}

/* Equal factors leave no frequencies between scaled and unscaled ones: 0 / 0 at the border otherwise. */
static void equal_factors_of_llama3_scaling_give_finite_frequencies(void **state)
{
    (void)state;
    float freqs[8];
    struct model_desc desc = { .rotary_dim = 16,
                               .rope_theta = 10000,
                               .rope_scaling = { .kind = ROPE_SCALING_LLAMA3,
                                                 .factor = 8,
                                                 .low_freq_factor = 1,
                                                 .high_freq_factor = 1 } };
    for (int original = 1; original <= 8192; original++) {
        desc.rope_scaling.original_n_ctx = original;
        desc.rope_scaling.low_freq_factor = desc.rope_scaling.high_freq_factor = original / (2 * M_PI);
        model_rope_freqs(&desc, freqs);
        for (int j = 0; j < desc.rotary_dim / 2; j++)
            assert_true(isfinite(freqs[j]));
    }
}

static void random_changes_of_a_header_give_an_error_or_a_model(void **state)
{
    (void)state;
    write_config("llama-tiny-tied", NULL, NULL);
    char path[256];
    path_of(path, sizeof path, "model.safetensors");
    uint32_t seed = 7;
    for (int i = 0; i < 200; i++) {
        write_tensors("llama-tiny-tied", NULL, NULL);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        seed = seed * 1664525 + 1013904223;
        fseek(file, 8 + (long)((seed >> 8) % 2000), SEEK_SET);
        fputc((int)(seed >> 24 & 0x7F), file);
        fclose(file);
        struct model *model = NULL;
        struct tutti_error err = { 0 };
        if (model_load(&model, folder, NULL, &err) != TUTTI_OK)
            assert_true(err.text[0] != '\0' && !model);
        model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_broken_configuration_is_told_what_is_wrong, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_tensor_that_is_not_there_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_tensor_of_another_type_or_shape_is_named, make_folder,
                                        remove_folder),
        cmocka_unit_test(equal_factors_of_llama3_scaling_give_finite_frequencies),
        cmocka_unit_test_setup_teardown(random_changes_of_a_header_give_an_error_or_a_model, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
