/* The folders of adapters: which tensors of them are used, and broken ones. */
#include "model/adapters/adapter.h"
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct model *load_base(const char *base, const char *type, int n_threads)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", base);
    return util_load(path, type, "f32", n_threads, NULL);
}

#define CONFIG "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"bias\": \"none\""
#define Q      "base_model.model.model.layers.0.self_attn.q_proj"
#define EMBED  "base_model.model.model.embed_tokens"
#define PAIR   Q ".lora_A.weight:4,128 " Q ".lora_B.weight:128,4"

/* tensors: NAME:SHAPE, all zeros in float32. NULL: no such file. For llama-tiny. */
static const struct broken {
    const char *config, *tensors;
    enum tutti_status status;
    const char *words[3];
} BROKEN[] = {
    { NULL, PAIR, TUTTI_E_NOT_FOUND, { "adapter_config.json" } },
    { CONFIG "}",
      PAIR
      " model.visual.blocks.0.attn.qkv.lora_A.weight:4,16 model.visual.blocks.0.attn.qkv.lora_B.weight:48,4",
      TUTTI_E_UNSUPPORTED,
      { "model.visual.blocks.0.attn.qkv.lora_A.weight: updates of the vision part are not supported" } },
    { CONFIG "}", NULL, TUTTI_E_NOT_FOUND, { "adapter_model.safetensors" } },
    { "[]", PAIR, TUTTI_E_FORMAT, { "adapter_config.json", "expected an object" } },
    { "{\"peft_type\": \"LORA\"", PAIR, TUTTI_E_FORMAT, { "adapter_config.json", "line 1" } },
    { "{\"peft_type\": \"IA3\"}", PAIR, TUTTI_E_UNSUPPORTED, { "peft_type is \"IA3\"", "LORA" } },
    { "{\"peft_type\": \"LOHA\"}", PAIR, TUTTI_E_UNSUPPORTED, { "peft_type is \"LOHA\"" } },
    { "{\"peft_type\": \"LOKR\"}", PAIR, TUTTI_E_UNSUPPORTED, { "peft_type is \"LOKR\"" } },
    { "{\"peft_type\": \"VERA\"}", PAIR, TUTTI_E_UNSUPPORTED, { "peft_type is \"VERA\"" } },
    { "{\"r\": 0}", PAIR, TUTTI_E_FORMAT, { "r", "0" } },
    { "{\"r\": 8}", PAIR, TUTTI_E_FORMAT, { Q ".lora_A.weight", "[4, 128], expected [8, 128]" } },
    { "{\"r\": \"four\"}", PAIR, TUTTI_E_FORMAT, { "r" } },
    { CONFIG ", \"use_dora\": true}", PAIR, TUTTI_E_FORMAT, { "use_dora", "lora_magnitude_vector" } },
    { CONFIG ", \"use_dora\": true}",
      PAIR " " Q ".lora_magnitude_vector:127",
      TUTTI_E_FORMAT,
      { "[127], expected [128]" } },
    { CONFIG ", \"use_dora\": true}",
      PAIR " " Q ".lora_magnitude_vector:128 " Q ".lora_B.bias:128",
      TUTTI_E_UNSUPPORTED,
      { "lora_bias" } },
    { CONFIG ", \"use_dora\": true}",
      PAIR " " Q ".lora_magnitude_vector:128 " EMBED ".lora_embedding_A:4,317 " EMBED
           ".lora_embedding_B:128,4",
      TUTTI_E_UNSUPPORTED,
      { "DoRA of the embedding" } },
    { CONFIG ", \"modules_to_save\": [\"lm_head\"]}",
      PAIR,
      TUTTI_E_FORMAT,
      { "modules_to_save names lm_head" } },
    { CONFIG ", \"modules_to_save\": [\"score\"]}",
      PAIR " base_model.model.score.weight:2,128",
      TUTTI_E_FORMAT,
      { "a llama model has no weight score" } },
    { CONFIG ", \"modules_to_save\": [\"q_proj\"]}",
      PAIR " " Q ".weight:128,128",
      TUTTI_E_UNSUPPORTED,
      { "a part of qkv" } },
    { CONFIG ", \"target_parameters\": [\"mlp.experts.gate_up_proj\"]}",
      PAIR,
      TUTTI_E_UNSUPPORTED,
      { "target_parameters", "experts" } },
    { CONFIG ", \"alora_invocation_tokens\": [1, 2]}",
      PAIR,
      TUTTI_E_UNSUPPORTED,
      { "alora_invocation_tokens" } },
    { CONFIG ", \"layer_replication\": [[0, 2], [1, 3]]}",
      PAIR,
      TUTTI_E_UNSUPPORTED,
      { "layer_replication" } },
    { CONFIG ", \"trainable_token_indices\": [1, 1]}",
      PAIR " " EMBED ".token_adapter.trainable_tokens_delta:2,128",
      TUTTI_E_FORMAT,
      { "trained token 1 is listed twice" } },
    { CONFIG ", \"trainable_token_indices\": [1, 317]}",
      PAIR " " EMBED ".token_adapter.trainable_tokens_delta:2,128",
      TUTTI_E_FORMAT,
      { "expected an id of 0 to 316" } },
    { CONFIG ", \"trainable_token_indices\": {\"lm_head\": [1, 2]}}",
      PAIR " " EMBED ".token_adapter.trainable_tokens_delta:2,128",
      TUTTI_E_FORMAT,
      { "lists no ids" } },
    { CONFIG ", \"trainable_token_indices\": {\"lm_head\": [1, 2]}}",
      "lm_head.token_adapter.trainable_tokens_delta:2,128 lm_head.lora_A.weight:4,128 "
      "lm_head.lora_B.weight:317,4",
      TUTTI_E_UNSUPPORTED,
      { "trained tokens of the output together" } },
    { "{\"peft_type\": \"PREFIX_TUNING\", \"num_virtual_tokens\": 4}",
      "prompt_embeddings:4,191",
      TUTTI_E_FORMAT,
      { "prompt_embeddings", "[4, 191], expected [4, 192]" } },
    { "{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 4}",
      "prompt_embeddings:5,128",
      TUTTI_E_FORMAT,
      { "[5, 128], expected [4, 128]" } },
    { "{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 4}",
      PAIR,
      TUTTI_E_FORMAT,
      { "expected only the tensor prompt_embeddings" } },
    { "{\"peft_type\": \"PROMPT_TUNING\"}",
      "prompt_embeddings:4,128",
      TUTTI_E_FORMAT,
      { "num_virtual_tokens" } },
    { "{\"peft_type\": \"P_TUNING\", \"num_virtual_tokens\": 4, \"num_transformer_submodules\": 2}",
      "prompt_embeddings:4,128",
      TUTTI_E_UNSUPPORTED,
      { "num_transformer_submodules" } },
    { CONFIG ", \"use_something\": true}",
      PAIR,
      TUTTI_E_UNSUPPORTED,
      { "use_something: true: tutti does not know" } },
    { CONFIG ", \"lora_magnitude\": [1]}", PAIR, TUTTI_E_UNSUPPORTED, { "lora_magnitude" } },
    { "{\"r\": 4, \"bias\": \"some\"}", PAIR, TUTTI_E_FORMAT, { "bias is \"some\"" } },
    { CONFIG "}", PAIR " " Q ".base_layer.bias:127", TUTTI_E_FORMAT, { "[127], expected [128]" } },
    { CONFIG "}",
      PAIR " model.layers.0.input_layernorm.bias:128",
      TUTTI_E_FORMAT,
      { "input_layernorm.bias", "no bias" } },
    { CONFIG "}", PAIR " model.norm.weight:127", TUTTI_E_FORMAT, { "model.norm.weight", "[127]" } },
    { CONFIG "}", PAIR " something:4", TUTTI_E_UNSUPPORTED, { "something" } },
    { CONFIG ", \"target_modules\": [\"q_proj\", \"v_proj\"]}", PAIR, TUTTI_E_FORMAT, { "v_proj" } },
    { CONFIG ", \"target_modules\": [7]}", PAIR, TUTTI_E_FORMAT, { "target_modules[0]" } },
    { CONFIG ", \"target_modules\": \"q_proj(\"}",
      PAIR,
      TUTTI_E_FORMAT,
      { "target_modules: \"q_proj(\" is not a regular expression" } },
    { CONFIG ", \"target_modules\": [\"q_proj\", \"k_proj\"], \"exclude_modules\": \".*v_proj\"}",
      PAIR,
      TUTTI_E_FORMAT,
      { "target_modules names k_proj" } },
    { CONFIG ", \"target_modules\": [\"q_proj\", \"k_proj\"], \"layers_to_transform\": [0]}",
      PAIR,
      TUTTI_E_FORMAT,
      { "target_modules names k_proj" } },
    { CONFIG ", \"modules_to_save\": [\"mlp\"]}", PAIR, TUTTI_E_FORMAT, { "modules_to_save names mlp" } },
    { CONFIG ", \"alpha_pattern\": {\"q_proj\": \"x\"}}",
      PAIR,
      TUTTI_E_FORMAT,
      { "alpha_pattern", "q_proj" } },
    { CONFIG ", \"rank_pattern\": {\"q_proj\": 5}}", PAIR, TUTTI_E_FORMAT, { "expected [5, 128]" } },
    { CONFIG ", \"rank_pattern\": [5]}", PAIR, TUTTI_E_FORMAT, { "rank_pattern" } },
    { CONFIG "}", "", TUTTI_E_FORMAT, { "no tensors" } },
    { CONFIG "}", Q ".lora_A.weight:4,128", TUTTI_E_FORMAT, { "not one of a pair" } },
    { CONFIG "}", Q ".lora_B.weight:128,4", TUTTI_E_FORMAT, { "not one of a pair" } },
    { CONFIG "}", PAIR " " Q ".lora_b:128,4", TUTTI_E_FORMAT, { "the same part" } },
    { CONFIG "}",
      Q ".lora_A.weight:4,64 " Q ".lora_B.weight:128,4",
      TUTTI_E_FORMAT,
      { "[4, 64]", "[4, 128]" } },
    { CONFIG "}",
      Q ".lora_A.weight:4,128 " Q ".lora_B.weight:64,4",
      TUTTI_E_FORMAT,
      { "[64, 4]", "[128, 4]" } },
    { CONFIG "}", Q ".lora_A.weight:4,128 " Q ".lora_B.weight:128,3", TUTTI_E_FORMAT, { "[128, 3]" } },
    { CONFIG "}", Q ".lora_A.weight:512 " Q ".lora_B.weight:128,4", TUTTI_E_FORMAT, { "1 dimensions" } },
    { CONFIG "}", PAIR " " EMBED ".lora_embedding_A:4,317", TUTTI_E_FORMAT, { "not one of a pair" } },
    { CONFIG "}",
      EMBED ".lora_embedding_A:4,316 " EMBED ".lora_embedding_B:128,4",
      TUTTI_E_FORMAT,
      { "[4, 316], expected [4, 317]" } },
    { CONFIG "}",
      PAIR " " Q ".lora_magnitude_vector.weight:128",
      TUTTI_E_FORMAT,
      { "DoRA", "does not set use_dora" } },
    { CONFIG "}",
      PAIR " lm_head.base_layer.weight:318,128",
      TUTTI_E_FORMAT,
      { "lm_head", "[318, 128], expected [317, 128]", "a model of this size" } },
    { CONFIG "}",
      "model.layers.3.self_attn.q_proj.lora_A.weight:4,128 "
      "model.layers.3.self_attn.q_proj.lora_B.weight:128,4",
      TUTTI_E_FORMAT,
      { "layer 3, but the model has 3" } },
    { CONFIG "}",
      "h.0.attn.c_attn.lora_A.weight:4,128 h.0.attn.c_attn.lora_B.weight:128,4",
      TUTTI_E_FORMAT,
      { "a llama model has no linear layer h.0.attn.c_attn" } },
    { CONFIG "}",
      "model.layers.x.self_attn.q_proj.lora_A.weight:4,128 "
      "model.layers.x.self_attn.q_proj.lora_B.weight:128,4",
      TUTTI_E_FORMAT,
      { "no linear layer" } },
    { CONFIG "}",
      PAIR " model.layers.0.attention.wq.lora_a:4,128 model.layers.0.attention.wq.lora_b:128,4",
      TUTTI_E_FORMAT,
      { "layer 0", "same rows" } },
};
enum { N_BROKEN = sizeof BROKEN / sizeof *BROKEN };

static void write_file(const char *path, const void *head, size_t n_head, const char *text, size_t n_text,
                       size_t n_zeros)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, n_head, f), n_head);
    assert_int_equal(fwrite(text, 1, n_text, f), n_text);
    for (size_t i = 0; i < n_zeros; i++)
        assert_int_equal(fputc(0, f), 0);
    assert_int_equal(fclose(f), 0);
}

static void write_tensors(const char *path, const char *tensors)
{
    char header[8192] = "{", text[4096], *rest = text, *word;
    size_t n = 1, at = 0;
    snprintf(text, sizeof text, "%s", tensors);
    while ((word = strtok_r(rest, " ", &rest))) {
        char *colon = strrchr(word, ':');
        size_t elems = 1;
        *colon = '\0';
        for (const char *d = colon + 1; d; d = strchr(d, ',') ? strchr(d, ',') + 1 : NULL)
            elems *= (size_t)atoi(d);
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                              at > 0 ? "," : "", word, colon + 1, at, at + 4 * elems);
        at += 4 * elems;
    }
    n += (size_t)snprintf(header + n, sizeof header - n, "}");
    uint64_t n_bytes = n;
    write_file(path, &n_bytes, sizeof n_bytes, header, n, at);
}

/* The folder of an adapter with tensors of zeros. */
struct folder {
    char path[32], config[64], tensors[64];
};

static struct folder folder_new(void)
{
    struct folder f = { "/tmp/tutti-adapter-XXXXXX", "", "" };
    assert_non_null(mkdtemp(f.path));
    snprintf(f.config, sizeof f.config, "%s/adapter_config.json", f.path);
    snprintf(f.tensors, sizeof f.tensors, "%s/adapter_model.safetensors", f.path);
    return f;
}

static void folder_write(const struct folder *f, const char *config, const char *tensors)
{
    write_file(f->config, "", 0, config, strlen(config), 0);
    write_tensors(f->tensors, tensors);
}

static void folder_remove(const struct folder *f)
{
    unlink(f->config);
    unlink(f->tensors);
    rmdir(f->path);
}

static void broken_folders_are_refused_by_name(void **state)
{
    (void)state;
    struct folder folder = folder_new();
    struct model *model = load_base("llama-tiny", "f32", 1);
    static const char *const SOUND[] = {
        CONFIG "}",
        CONFIG
        ", \"target_modules\": [\"q_proj\", \"qkv\", \"c_attn\"], \"modules_to_save\": [\"classifier\"]}",
        CONFIG ", \"target_modules\": [\"q_proj\", \"k_proj\"], \"exclude_modules\": \".*k_proj\"}",
        CONFIG ", \"target_modules\": [\"q_proj\", \"k_proj\"], \"exclude_modules\": "
               "\"model\\\\.language_model\\\\..*k_proj\"}",
    };
    for (int i = -(int)(sizeof SOUND / sizeof *SOUND); i < N_BROKEN; i++) {
        struct tutti_error err = { 0 };
        unlink(folder.config);
        unlink(folder.tensors);
        const struct broken sound = { i < 0 ? SOUND[-i - 1] : NULL, PAIR, TUTTI_OK, { "" } };
        const struct broken *b = i < 0 ? &sound : &BROKEN[i];
        if (b->config)
            write_file(folder.config, "", 0, b->config, strlen(b->config), 0);
        if (b->tensors)
            write_tensors(folder.tensors, b->tensors);
        enum tutti_status st = model_add_adapter(model, "x", folder.path, &err);
        if (st != b->status)
            fail_msg("case %d: status %s, expected %s: %s", i, tutti_status_name(st),
                     tutti_status_name(b->status), err.text);
        for (int w = 0; w < 3 && b->words[w] && st != TUTTI_OK; w++)
            if (!strstr(err.text, b->words[w]))
                fail_msg("case %d: \"%s\" is not in: %s", i, b->words[w], err.text);
        if (i < 0) {
            model_free(model);
            model = load_base("llama-tiny", "f32", 1);
        }
        assert_int_equal(model_n_adapters(model), 0);
    }
    folder_remove(&folder);
    model_free(model);
}

#define LAYER(n)      "base_model.model.model.layers." n ".self_attn."
#define PAIR_OF(path) path ".lora_A.weight:4,128 " path ".lora_B.weight:128,4 "
#define PAIRS                                                                                                \
    PAIR_OF(LAYER("0") "q_proj")                                                                             \
    PAIR_OF(LAYER("1") "q_proj") PAIR_OF(LAYER("0") "o_proj") PAIR_OF(LAYER("1") "o_proj")
#define HEAD    "base_model.model.lm_head"
#define Q_AND_O ", \"target_modules\": [\"q_proj\", \"o_proj\"]"

/* What of a file PEFT loads, by its rules in tuners_utils.py and save_and_load.py. Parts of 0: refused. */
static void tensors_that_peft_does_not_load_are_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *base, *config, *tensors;
        int n, n_biases, n_modules;
    } CASES[] = {
        { "llama-tiny", "", PAIRS, 4, 0, 0 },
        { "llama-tiny", Q_AND_O, PAIRS, 4, 0, 0 },
        { "llama-tiny", ", \"target_modules\": [\"q_proj\"]", PAIRS, 2, 0, 0 },
        { "llama-tiny", ", \"target_modules\": [\"proj\"]", PAIRS, 0, 0, 0 },
        { "llama-tiny", ", \"target_modules\": \".*q_proj\"", PAIRS, 2, 0, 0 },
        { "llama-tiny", ", \"target_modules\": \"q_proj\"", PAIRS, 0, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"exclude_modules\": [\"o_proj\"]", PAIRS, 2, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"exclude_modules\": \".*\\\\.0\\\\..*\"", PAIRS, 2, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"exclude_modules\": \"0\\\\..*\"", PAIRS, 4, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"layers_to_transform\": [1, 2]", PAIRS, 2, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"layers_to_transform\": 0", PAIRS, 2, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"layers_to_transform\": [1], \"layers_pattern\": [\"h\", \"layers\"]",
          PAIRS, 2, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"layers_to_transform\": [1], \"layers_pattern\": \"h\"", PAIRS, 0, 0, 0 },
        { "llama-tiny",
          ", \"target_modules\": [\"model.layers.0.self_attn.q_proj\", \"o_proj\"], \"layers_to_transform\": "
          "[1]",
          PAIRS, 2, 0, 0 },
        { "llama-tiny", ", \"target_modules\": \"all-linear\"",
          PAIRS HEAD ".lora_A.weight:4,128 " HEAD ".lora_B.weight:317,4", 4, 0, 0 },
        { "llama-tiny", Q_AND_O ", \"modules_to_save\": [\"o_proj\"]",
          PAIRS LAYER("0") "o_proj.weight:128,128", 2, 0, 1 },
        /* Biases and weights of the model itself, and of what PEFT adapts. */
        { "llama-tiny", ", \"target_modules\": [\"q_proj\"]",
          PAIR_OF(LAYER("0") "q_proj")
              LAYER("0") "q_proj.base_layer.bias:128 " LAYER("0") "q_proj.bias:128 " LAYER(
                  "0") "o_proj.base_layer.weight:128,128 " LAYER("0") "o_proj.bias:128",
          1, 2, 0 },
        { "llama-tiny", ", \"modules_to_save\": [\"lm_head\"]",
          PAIRS HEAD ".weight:317,128 " HEAD ".modules_to_save.weight:317,128 " HEAD
                     ".original_module.weight:317,128",
          4, 0, 1 },
        /* A weight that two modules have in common, and a module's own. */
        { "llama-tiny-tied", "", EMBED ".weight:300,64", 0, 0, 2 },
        { "llama-tiny-tied", "", HEAD ".weight:300,64", 0, 0, 2 },
        { "llama-tiny-tied", "", EMBED ".weight:300,64 " HEAD ".weight:300,64", 0, 0, 2 },
        { "llama-tiny-tied", ", \"target_modules\": [\"lm_head\"]",
          HEAD ".base_layer.weight:300,64 " HEAD ".lora_A.weight:4,64 " HEAD ".lora_B.weight:300,4", 1, 0,
          2 },
        { "llama-tiny-tied", ", \"modules_to_save\": [\"embed_tokens\"]", EMBED ".weight:300,64", 0, 0, 1 },
    };
    struct folder folder = folder_new();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char config[1024];
        struct adapter_file file = { 0 };
        struct tutti_error err = { 0 };
        struct model *model = load_base(CASES[i].base, "f32", 1);
        snprintf(config, sizeof config, "%s%s}", CONFIG, CASES[i].config);
        folder_write(&folder, config, CASES[i].tensors);
        enum tutti_status st = adapter_file_open(&file, folder.path, &model->desc, model->family, false,
                                                 &err);
        bool is_refused = CASES[i].n + CASES[i].n_biases + CASES[i].n_modules == 0;
        if (st != (is_refused ? TUTTI_E_FORMAT : TUTTI_OK) || file.n != CASES[i].n ||
            file.n_biases != CASES[i].n_biases || file.n_modules != CASES[i].n_modules)
            fail_msg("case %zu: status %s, %d updates, %d biases, %d modules: %s", i, tutti_status_name(st),
                     file.n, file.n_biases, file.n_modules, err.text);
        adapter_file_clear(&file);
        model_free(model);
    }
    folder_remove(&folder);
}

static void values_that_are_not_finite_are_refused_by_tensor(void **state)
{
    (void)state;
    static const float VALUES[] = { NAN, INFINITY, -INFINITY };
    static const struct {
        const char *config, *tensors, *words; /* the last tensor is the bad one */
    } CASES[] = {
        { CONFIG "}", PAIR, Q ".lora_B.weight: element 511 is NaN or infinite" },
        { CONFIG "}", PAIR " " Q ".base_layer.bias:128", Q ".base_layer.bias: element 127 is" },
        { CONFIG "}", PAIR " model.norm.weight:128", "model.norm.weight: element 127 is" },
        { CONFIG "}", PAIR " " EMBED ".weight:317,128", EMBED ".weight: element 40575 is" },
        { CONFIG "}", EMBED ".lora_embedding_A:4,317 " EMBED ".lora_embedding_B:128,4", "element 511 is" },
        { CONFIG ", \"trainable_token_indices\": [1]}",
          PAIR " " EMBED ".token_adapter.trainable_tokens_delta:1,128",
          "trainable_tokens_delta: element 127" },
        { "{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 4}", "prompt_embeddings:4,128",
          "prompt_embeddings: element 511" },
    };
    struct folder folder = folder_new();
    struct model *model = load_base("llama-tiny", "f32", 1);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        folder_write(&folder, CASES[i].config, CASES[i].tensors);
        FILE *f = fopen(folder.tensors, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, -(long)sizeof(float), SEEK_END), 0);
        assert_int_equal(fwrite(&VALUES[i % 3], sizeof(float), 1, f), 1);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(model_add_adapter(model, "x", folder.path, &err), TUTTI_E_FORMAT);
        if (!strstr(err.text, CASES[i].words))
            fail_msg("\"%s\" is not in: %s", CASES[i].words, err.text);
    }
    model_free(model);
    folder_remove(&folder);
}

/* BLOOM norms its embedding. All tokens are equal after a norm whose weights are zeros. */
static void a_norm_of_the_embedding_is_replaced(void **state)
{
    (void)state;
    enum { N = 20 };
    static const char NORM[] = "base_model.model.transformer.word_embeddings_layernorm.weight:48 "
                               "base_model.model.transformer.word_embeddings_layernorm.bias:48";
    struct folder folder = folder_new();
    struct model *model = load_base("bloom-tiny", "f32", 2);
    struct tutti_error err = { 0 };
    int32_t ids[2][N];
    for (int k = 0; k < N; k++) {
        ids[0][k] = k;
        ids[1][k] = 2 * k + 1;
    }
    folder_write(&folder, CONFIG ", \"modules_to_save\": [\"word_embeddings_layernorm\"]}", NORM);
    if (model_add_adapter(model, "x", folder.path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (util_adapter = 0; util_adapter >= -1; util_adapter--) {
        float *first = util_logits(model, ids[0], N, N), *second = util_logits(model, ids[1], N, N);
        bool is_same = memcmp(first, second, (size_t)(N * model->desc.n_vocab) * sizeof *first) == 0;
        assert_int_equal(is_same, util_adapter == 0);
        free(first);
        free(second);
    }
    util_adapter = -1;
    model_free(model);
    folder_remove(&folder);
}

/* Releases of transformers have put the language part of a model with images at different places. */
static void names_of_every_release_fit_a_language_part(void **state)
{
    (void)state;
    static const char *const HEADS[] = { "base_model.model.model.layers.",
                                         "base_model.model.model.language_model.layers.",
                                         "base_model.model.language_model.model.layers.",
                                         "model.language_model.layers.", "layers." };
    struct folder folder = folder_new();
    char text[512];
    for (size_t i = 0; i < sizeof HEADS / sizeof *HEADS; i++) {
        struct tutti_error err = { 0 };
        struct model *model = load_base("qwen2-vl-tiny", "f32", 1);
        snprintf(text, sizeof text,
                 "%s1.self_attn.q_proj.lora_A.weight:4,64 %s1.self_attn.q_proj.lora_B.weight:64,4", HEADS[i],
                 HEADS[i]);
        folder_write(&folder, CONFIG "}", text);
        if (model_add_adapter(model, "x", folder.path, &err) != TUTTI_OK)
            fail_msg("%s: %s", HEADS[i], err.text);
        model_free(model);
    }
    folder_remove(&folder);
}

/* Attention and the shared expert can be adapted (FIXTURES), the other experts and the router not. */
static void adapters_of_experts_are_refused_by_name(void **state)
{
    (void)state;
    static const struct broken CASES[] = {
        { CONFIG "}",
          "model.layers.0.mlp.experts.3.gate_proj.lora_A.weight:4,64 "
          "model.layers.0.mlp.experts.3.gate_proj.lora_B.weight:32,4",
          TUTTI_E_FORMAT,
          { "a qwen3_moe model has no linear layer model.layers.0.mlp.experts.3.gate_proj" } },
        { CONFIG "}",
          "model.layers.0.mlp.gate.lora_A.weight:4,64 model.layers.0.mlp.gate.lora_B.weight:7,4",
          TUTTI_E_FORMAT,
          { "no linear layer model.layers.0.mlp.gate " } },
        { CONFIG ", \"target_parameters\": [\"mlp.experts.gate_up_proj\"]}",
          PAIR,
          TUTTI_E_UNSUPPORTED,
          { "target_parameters" } },
    };
    struct folder folder = folder_new();
    struct model *model = load_base("qwen3-moe-tiny", "f32", 1);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        folder_write(&folder, CASES[i].config, CASES[i].tensors);
        assert_int_equal(model_add_adapter(model, "x", folder.path, &err), CASES[i].status);
        if (!strstr(err.text, CASES[i].words[0]))
            fail_msg("\"%s\" is not in: %s", CASES[i].words[0], err.text);
    }
    folder_remove(&folder);
    model_free(model);
}

/* The up-projections of latent attention are absorbed: kv_b_proj is no matrix that an update could be added to. */
static void adapters_of_absorbed_matrices_are_refused_by_name(void **state)
{
    (void)state;
    static const char TENSORS[] = "model.layers.0.self_attn.kv_b_proj.lora_A.weight:4,32 "
                                  "model.layers.0.self_attn.kv_b_proj.lora_B.weight:128,4";
    struct folder folder = folder_new();
    folder_write(&folder, CONFIG "}", TENSORS);
    struct model *model = load_base("deepseek-v3-tiny", "f32", 1);
    struct tutti_error err = { 0 };
    assert_int_equal(model_add_adapter(model, "x", folder.path, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "no linear layer model.layers.0.self_attn.kv_b_proj"));
    assert_int_equal(model_n_adapters(model), 0);
    folder_remove(&folder);
    model_free(model);
}

static char *read_file(const char *name, size_t *n)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", name);
    FILE *f = fopen(path, "rb");
    char *bytes = malloc(1 << 20);
    assert_true(f && bytes);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

/* By PEFT: a base that was changed when training began is not the model's. */
static void ways_to_begin_that_change_the_base_are_refused(void **state)
{
    (void)state;
    struct folder folder = folder_new();
    json_t *rows = json_load_file(TEST_FIXTURES "/adapters/inits.json", 0, NULL);
    struct model *model = load_base("llama-tiny", "f32", 1);
    assert_true(json_array_size(rows) >= 10);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool changes = json_is_true(json_object_get(row, "changes_base"));
        char *value = json_dumps(json_object_get(row, "value"), JSON_ENCODE_ANY), text[256], name[32];
        struct tutti_error err = { 0 };
        snprintf(text, sizeof text, CONFIG ", \"init_lora_weights\": %s}", value);
        folder_write(&folder, text, PAIR);
        snprintf(name, sizeof name, "a%zu", i);
        enum tutti_status st = model_add_adapter(model, name, folder.path, &err);
        if (st != (changes ? TUTTI_E_UNSUPPORTED : TUTTI_OK) ||
            (changes && (!strstr(err.text, "init_lora_weights") || !strstr(err.text, value))))
            fail_msg("%s: status %s, \"%s\"", value, tutti_status_name(st), err.text);
        free(value);
    }
    model_free(model);
    json_decref(rows);
    folder_remove(&folder);
}

/* Bytes changed, left out and cut off, in either file: an error with words, or an adapter that can run. */
static void mutated_files_are_read_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *config, *tensors, *base;
    } KINDS[] = {
        { "llama-qv", "adapter_config.json", "adapter_model.safetensors", "llama-tiny" },
        { "llama-qv-bin", "adapter_config.json", "adapter_model.bin", "llama-tiny" },
        { "llama-dora", "adapter_config.json", "adapter_model.safetensors", "llama-tiny" },
        { "llama-lora-bias", "adapter_config.json", "adapter_model.safetensors", "llama-tiny" },
        { "llama-saved", "adapter_config.json", "adapter_model.safetensors", "llama-tiny" },
        { "llama-tied-tokens", "adapter_config.json", "adapter_model.safetensors", "llama-tiny-tied" },
        { "llama-tied-embedding", "adapter_config.json", "adapter_model.safetensors", "llama-tiny-tied" },
        { "gpt2-bias", "adapter_config.json", "adapter_model.safetensors", "gpt2-tiny" },
        { "llama-prefix", "adapter_config.json", "adapter_model.safetensors", "llama-tiny" },
        { "chatglm3-prefix", "config.json", "pytorch_model.bin", "chatglm3-tiny" },
        { "chatglm3-prefix-mlp", "config.json", "pytorch_model.bin", "chatglm3-tiny" },
    };
    enum { N_KINDS = sizeof KINDS / sizeof *KINDS };
    char folder[] = "/tmp/tutti-mutated-XXXXXX", paths[2][64], name[64];
    uint64_t random = 1;
    int n_read = 0, n_refused = 0;
    assert_non_null(mkdtemp(folder));
    for (int kind = 0; kind < N_KINDS; kind++) {
        char *files[2];
        size_t sizes[2];
        snprintf(name, sizeof name, "%s/%s", KINDS[kind].name, KINDS[kind].config);
        files[0] = read_file(name, &sizes[0]);
        snprintf(name, sizeof name, "%s/%s", KINDS[kind].name, KINDS[kind].tensors);
        files[1] = read_file(name, &sizes[1]);
        snprintf(paths[0], sizeof paths[0], "%s/%s", folder, KINDS[kind].config);
        snprintf(paths[1], sizeof paths[1], "%s/%s", folder, KINDS[kind].tensors);
        for (int i = 0; i < (kind < 2 ? 200 : 80); i++) {
            struct model *model = load_base(KINDS[kind].base, "f32", 1);
            for (int which = 0; which < 2; which++) {
                char *copy = malloc(sizes[which]);
                assert_non_null(copy);
                memcpy(copy, files[which], sizes[which]);
                size_t n = sizes[which];
                random = random * 6364136223846793005u + 1442695040888963407u;
                size_t at = (size_t)(random >> 33) % (which && i % 3 ? 2500 : n);
                if (which == i % 2 && i % 8 == 7)
                    n = at;
                else if (which == i % 2)
                    copy[at] = (char)(i % 4 ? random >> 20 : (uint64_t)copy[at] ^ 1u << i / 4 % 8);
                write_file(paths[which], copy, n, "", 0, 0);
                free(copy);
            }
            struct tutti_error err = { 0 };
            if (model_add_adapter(model, "x", folder, &err) == TUTTI_OK) {
                n_read++;
            } else {
                n_refused++;
                assert_true(strlen(err.text) > 10);
                assert_int_equal(model_n_adapters(model), 0);
            }
            model_free(model);
        }
        for (int which = 0; which < 2; which++) {
            unlink(paths[which]);
            free(files[which]);
        }
    }
    rmdir(folder);
    print_message("# %d mutated adapters read, %d refused\n", n_read, n_refused);
    assert_true(n_read > 0 && n_refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_folders_are_refused_by_name),
        cmocka_unit_test(tensors_that_peft_does_not_load_are_left_out),
        cmocka_unit_test(values_that_are_not_finite_are_refused_by_tensor),
        cmocka_unit_test(a_norm_of_the_embedding_is_replaced),
        cmocka_unit_test(names_of_every_release_fit_a_language_part),
        cmocka_unit_test(adapters_of_experts_are_refused_by_name),
        cmocka_unit_test(adapters_of_absorbed_matrices_are_refused_by_name),
        cmocka_unit_test(mutated_files_are_read_or_refused),
        cmocka_unit_test(ways_to_begin_that_change_the_base_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
