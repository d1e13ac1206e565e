/* MindFormers' YAML files: as it publishes them, and as nobody should write them. */
#include "checkpoint/checkpoint.h"
#include "checkpoint/mindspore/mindformers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tutti-yaml-%d", (int)getpid());
    return mkdir(folder, 0700);
}

static void path_of(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", folder, name);
}

static const char *const NAMES[] = { "a.yaml", "b.yml", "model.ckpt", "model.yaml", "config.json" };

static int remove_folder(void **state)
{
    (void)state;
    char path[128];
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        path_of(path, sizeof path, NAMES[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void write_text(const char *name, const char *text)
{
    char path[128];
    path_of(path, sizeof path, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    fclose(out);
}

static json_t *read_yaml(const char *text)
{
    char path[128];
    json_t *config = NULL;
    struct tutti_error err = { 0 };
    write_text("a.yaml", text);
    path_of(path, sizeof path, "a.yaml");
    if (mindformers_read(&config, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return config;
}

static void expect_error(const char *text, enum tutti_status status, const char *words)
{
    char path[128];
    json_t *config = NULL;
    struct tutti_error err = { 0 };
    write_text("a.yaml", text);
    path_of(path, sizeof path, "a.yaml");
    enum tutti_status st = mindformers_read(&config, path, &err);
    assert_null(config);
    if (st != status || !strstr(err.text, words))
        fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, status, words);
}

static json_int_t int_of(const json_t *config, const char *key)
{
    assert_true(json_is_integer(json_object_get(config, key)));
    return json_integer_value(json_object_get(config, key));
}

#define MODEL "model:\n  model_config:\n"

static void a_published_file_becomes_a_config(void **state)
{
    (void)state;
    json_t *c = read_yaml(MODEL "    type: LlamaConfig\n    batch_size: 1 # add for increase predict\n"
                                "    seq_length: 2048\n    hidden_size: 4096\n    num_layers: 32\n"
                                "    num_heads: 32\n    vocab_size: 32000\n    multiple_of: 256\n"
                                "    rms_norm_eps: 1.0e-6\n    extend_method: \"None\"\n    offset: 0\n");
    assert_int_equal(int_of(c, "num_hidden_layers"), 32);
    assert_int_equal(int_of(c, "num_attention_heads"), 32);
    assert_int_equal(int_of(c, "intermediate_size"), 11008); /* LLaMA-7B's */
    assert_int_equal(int_of(c, "max_position_embeddings"), 2048);
    assert_string_equal(json_string_value(json_object_get(c, "model_type")), "llama");
    assert_null(json_object_get(c, "rope_scaling"));
    json_decref(c);
    c = read_yaml(MODEL "    type: LlamaConfig\n    hidden_size: 8192\n    multiple_of: 4096\n"
                        "    ffn_dim_multiplier: 1.3\n");
    assert_int_equal(int_of(c, "intermediate_size"), 28672); /* LLaMA-2-70B's */
    json_decref(c);
    c = read_yaml("processor:\n  tokenizer:\n    type: ChatGLM3Tokenizer\n" MODEL
                  "    type: ChatGLM2Config\n    pre_seq_len: None\n    seq_length: 193\n");
    assert_string_equal(json_string_value(json_object_get(c, "_name_or_path")), "chatglm3-6b");
    assert_true(json_is_null(json_object_get(c, "pre_seq_len")));
    assert_int_equal(int_of(c, "padded_vocab_size"), 65024);
    assert_int_equal(int_of(c, "seq_length"), 193);
    json_decref(c);
}

static void rotations_are_stretched_as_told(void **state)
{
    (void)state;
    json_t *c = read_yaml(MODEL "    type: LlamaConfig\n    extend_method: NTK\n    scaling_factor: 4\n"
                                "    theta: 20000.0\n");
    assert_true(json_number_value(json_object_get(c, "rope_theta")) == 80000);
    json_decref(c);
    c = read_yaml(MODEL "    type: LlamaConfig\n    extend_method: PI\n    scaling_factor: 2\n");
    const json_t *rope = json_object_get(c, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(rope, "type")), "linear");
    assert_true(json_number_value(json_object_get(rope, "factor")) == 2);
    json_decref(c);
    c = read_yaml(MODEL
                  "    type: LlamaConfig\n    extend_method: YARN\n    scaling_factor:\n      factor: 4.0\n"
                  "      original_max_position_embeddings: 32768\n      beta_slow: 1\n      beta_fast: 32\n"
                  "      mscale: 1.0\n      mscale_all_dim: 1.0\n");
    rope = json_object_get(c, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(rope, "type")), "yarn");
    assert_true(json_number_value(json_object_get(rope, "attention_factor")) == 1);
    assert_null(json_object_get(rope, "mscale"));
    json_decref(c);
}

static void another_yaml_file_is_no_model(void **state)
{
    (void)state;
    assert_null(read_yaml("services:\n  web:\n    image: debian\n"));
    assert_null(read_yaml("model:\n  model_config: [1, 2]\n"));
    assert_null(read_yaml("- a\n- b\n"));
    assert_null(read_yaml(""));
}

static void a_wrong_file_is_told_what_is_wrong(void **state)
{
    (void)state;
    expect_error(MODEL "    type: QwenConfig\n", TUTTI_E_UNSUPPORTED, "\"QwenConfig\" is not supported");
    expect_error("model: [\n", TUTTI_E_FORMAT, "a.yaml: ");
    expect_error(MODEL "    type: LlamaConfig\n    hidden_size: much\n", TUTTI_E_FORMAT,
                 "model_config.hidden_size: a string");
    expect_error(MODEL "    type: LlamaConfig\n    multiple_of: 0\n", TUTTI_E_FORMAT,
                 "model_config.multiple_of: out of range");
    expect_error(MODEL "    type: LlamaConfig\n    extend_method: DYNAMIC_NTK\n", TUTTI_E_UNSUPPORTED,
                 "model_config.extend_method: DYNAMIC_NTK");
    expect_error(MODEL "    type: LlamaConfig\n    extend_method: LLAMA3\n    scaling_factor: 8\n",
                 TUTTI_E_UNSUPPORTED, "extend_method: LLAMA3");
    expect_error(MODEL "    type: LlamaConfig\n    moe_config:\n      expert_num: 8\n", TUTTI_E_UNSUPPORTED,
                 "mixture of experts");
    expect_error(MODEL "    type: ChatGLM2Config\n    use_rearrange_rope: True\n", TUTTI_E_UNSUPPORTED,
                 "use_rearrange_rope");
    expect_error(MODEL "    type: GLMConfig\n    layernorm_order: pre\n", TUTTI_E_UNSUPPORTED,
                 "layernorm_order");
    expect_error(MODEL "    type: BloomConfig\n    a: &a [*a]\n", TUTTI_E_FORMAT, "levels deep");
    expect_error(MODEL "    type: BloomConfig\n    \"\\xff\\0\": 1\n    b: \"x\\0y\"\n", TUTTI_E_FORMAT,
                 "expected at most");
    expect_error(MODEL "    type: BloomConfig\n    ? [1]\n    : 2\n", TUTTI_E_FORMAT, "names and values");
}

/* Each of nine lists holds the one before nine times: 9^9 values, were they written out. */
static void aliases_do_not_multiply(void **state)
{
    (void)state;
    expect_error("a: &a [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]\n"
                 "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
                 "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" MODEL
                 "    type: BloomConfig\n    c: *c\n",
                 TUTTI_E_FORMAT, "expected at most 10000");
}

static void open_folder(const char *name, enum tutti_status status, const char *words)
{
    char path[128];
    struct checkpoint *ck = NULL;
    struct tutti_error err = { 0 };
    path_of(path, sizeof path, name);
    enum tutti_status st = checkpoint_open(&ck, path, &err);
    if (st != status || !strstr(err.text, words))
        fail_msg("status %d, \"%s\", expected %d, \"%s\"", st, err.text, status, words);
    checkpoint_close(ck);
}

static void a_folder_has_one_configuration(void **state)
{
    (void)state;
    write_text("a.yaml", MODEL "    type: BloomConfig\n");
    write_text("b.yml", "other: 1\n");
    open_folder("", TUTTI_E_NOT_FOUND,
                "there is neither model.safetensors"); /* the weights are missed next */
    write_text("b.yml", MODEL "    type: GPT2Config\n");
    open_folder("", TUTTI_E_FORMAT, "a.yaml and b.yml describe different models");
    write_text("b.yml", MODEL "    type: BloomConfig\n");
    open_folder("", TUTTI_E_NOT_FOUND, "there is neither model.safetensors"); /* told twice is told once */
    write_text("b.yml", MODEL "    type: GPT2Config\n");
    char path[128]; /* the file of the weights' own name decides */
    path_of(path, sizeof path, "model.ckpt");
    assert_int_equal(symlink(TEST_FIXTURES "/mindspore/glm/glm.ckpt", path), 0);
    open_folder("model.ckpt", TUTTI_E_FORMAT, "a.yaml and b.yml describe different models");
    write_text("model.yaml", MODEL "    type: GPT2Config\n    n_anything: 1\n");
    open_folder("model.ckpt", TUTTI_OK, "");
}

static void a_saved_config_is_translated(void **state)
{
    (void)state;
    json_t *c = json_pack("{s:s, s:s, s:i, s:i}", "mindformers_version", "1.3", "model_type", "llama",
                          "num_layers", 3, "num_heads", 4);
    assert_int_equal(mindformers_translate(c, "config.json", NULL), TUTTI_OK);
    assert_int_equal(int_of(c, "num_hidden_layers"), 3);
    json_decref(c);
    c = json_pack("{s:s, s:i}", "model_type", "llama", "num_layers", 3);
    assert_int_equal(mindformers_translate(c, "config.json", NULL), TUTTI_OK);
    assert_null(json_object_get(c, "num_hidden_layers")); /* nobody says that it is MindFormers' */
    json_decref(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define YAML_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
        YAML_TEST(a_published_file_becomes_a_config), YAML_TEST(rotations_are_stretched_as_told),
        YAML_TEST(another_yaml_file_is_no_model),     YAML_TEST(a_wrong_file_is_told_what_is_wrong),
        YAML_TEST(aliases_do_not_multiply),           YAML_TEST(a_folder_has_one_configuration),
        YAML_TEST(a_saved_config_is_translated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
