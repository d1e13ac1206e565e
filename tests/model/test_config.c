/* Broken configurations and tensors: each with the words its error must contain. */
#include "model/description/family.h"
#include "offline/convert.h"
#include "offline/inspect.h"
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
    if (key && strcmp(key, "rope_parameters") == 0) /* else it would not be heeded */
        json_object_del(config, "rope_scaling");
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
        { "chatglm3-tiny", "rmsnorm", "false",
          "rmsnorm: false is not supported for chatglm models, expected true", TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "apply_residual_connection_post_layernorm", "true",
          "residual_connection_post_layernorm: true", TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "add_bias_linear", "true", "add_bias_linear", TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "add_qkv_bias", "1", "true or false", TUTTI_E_FORMAT },
        { "chatglm3-tiny", "quantization_bit", "2", "quantization_bit", TUTTI_E_UNSUPPORTED },
        { "chatglm-6b-tiny", "bos_token_id", "109", "bos_token_id: 109, expected", TUTTI_E_FORMAT },
        { "chatglm-6b-tiny", "gmask_token_id", NULL, "gmask_token_id: missing", TUTTI_E_FORMAT },
        { "chatglm-6b-tiny", "position_encoding_2d", "false", "position_encoding_2d: false",
          TUTTI_E_UNSUPPORTED },
        { "chatglm-6b-tiny", "quantization_bit", "2", "quantization_bit", TUTTI_E_UNSUPPORTED },
        { "pangu-tiny", "num_layers", "1", "num_layers: 1, expected", TUTTI_E_FORMAT },
        { "pangu-tiny", "num_layers", "3", "backbone.blocks.1.layernorm1.gamma is missing", TUTTI_E_FORMAT },
        { "pangu-tiny", "hidden_act", "\"gelu\"", "gelu is not supported", TUTTI_E_UNSUPPORTED },
        { "pangu-tiny", "seq_length", "225", "224 rows, expected one for each of 225", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_parameters", "{\"rope_type\":\"longrope\",\"rope_theta\":10000}",
          "rope_parameters.short_factor: a list of 0 factors for 8 pairs", TUTTI_E_UNSUPPORTED },
        { "phi4-mini-tiny", "partial_rotary_factor", "1.0", "short_factor: a list of 6 factors for 8 pairs",
          TUTTI_E_UNSUPPORTED },
        { "phi4-mini-tiny", "rope_scaling",
          "{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1],\"long_factor\":[1,1,1,0,1,1]}",
          "long_factor: factor 3, which is no positive number", TUTTI_E_UNSUPPORTED },
        { "phi4-mini-tiny", "rope_scaling",
          "{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1],\"long_factor\":[1,1,1,1,1,1],"
          "\"original_max_position_embeddings\":48}",
          "another number than original_max_position_embeddings at top level", TUTTI_E_UNSUPPORTED },
        { "olmo3-tiny", "original_max_position_embeddings", "16",
          "original_max_position_embeddings: another number than that of the scaling", TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "rope_parameters", "{\"rope_type\":\"dynamic\",\"rope_theta\":10000}",
          "rope_parameters.factor: missing", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_parameters",
          "{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":4,\"truncate\":0}",
          "truncate: an integer, expected true or false", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":10000}",
          "rope_parameters.factor: missing", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_scaling", "{\"type\":\"yarn\",\"factor\":4,\"mscale\":true}",
          "mscale: true", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "rope_scaling", "{\"type\":\"yarn\",\"factor\":4,\"long_factor\":[1,2]}",
          "rope_scaling.long_factor: [1,2]: tutti does not know this setting of llama models",
          TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "embedding_multiplier", "12", "embedding_multiplier: 12: tutti does not know",
          TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "is_causal", "false",
          "is_causal: false is not supported for llama models, expected true", TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "vision_config", "{\"depth\":2}",
          "vision_config: {\"depth\":2}: tutti does not know", TUTTI_E_UNSUPPORTED },
        { "qwen2-tiny", "auto_map",
          "{\"AutoTokenizer\":[\"t.T\",null],\"AutoModelForCausalLM\":\"modeling_qwen2.Qwen2ForCausalLM\"}",
          "auto_map.AutoModelForCausalLM: \"modeling_qwen2.Qwen2ForCausalLM\" is code of the folder",
          TUTTI_E_UNSUPPORTED },
        { "chatglm3-tiny", "auto_map", "{\"AutoModel\":\"org/other--modeling_x.OtherModel\"}",
          "auto_map.AutoModel", TUTTI_E_UNSUPPORTED },
        { "qwen2-tiny", "tie_word_embeddings", "false", "lm_head.weight is missing", TUTTI_E_FORMAT },
        { "mistral-tiny", "sliding_window", "0", "sliding_window: 0, expected", TUTTI_E_FORMAT },
        { "qwen3-tiny", "head_dim", "32", "q_proj.weight: shape [96, 64], expected [128, 64]",
          TUTTI_E_FORMAT },
        { "glm4-tiny", "attention_bias", "true", "q_proj.bias is missing", TUTTI_E_FORMAT },
        { "glm4-tiny", "model_type", "\"glm4v_moe\"", "\"glm4v_moe\" is not supported", TUTTI_E_UNSUPPORTED },
        { "gpt-neox-tiny", "rope_theta", "700", "rope_theta: another number than rotary_emb_base's",
          TUTTI_E_UNSUPPORTED },
        { "gpt-neox-tiny", "partial_rotary_factor", "0.75",
          "partial_rotary_factor: another number than rotary_pct's", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "n_positions", "257", "256 rows, expected one for each of 257", TUTTI_E_FORMAT },
        { "gpt2-tiny", "n_embd", "62", "multiple of the heads", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "activation_function", "\"silu\"", "silu is not supported", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "scale_attn_by_inverse_layer_idx", "true", "inverse_layer_idx", TUTTI_E_UNSUPPORTED },
        { "gpt2-tiny", "n_inner", "128", "c_fc.weight: shape [64, 160], expected [64, 128]", TUTTI_E_FORMAT },
        { "bloom-tiny", "n_embed", "1000000000", "n_embed: 1000000000, expected", TUTTI_E_FORMAT },
        { "bloom-tiny", "num_attention_heads", "5", "multiple of the heads", TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "hidden_act", "\"gelu\"", "gelu is not supported", TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "vocab_size", "301", "expected [301, 64]", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "attention_bias", "true", "q_proj.bias is missing", TUTTI_E_FORMAT },
        { "llama-tiny-tied", "num_attention_heads", "0", "num_attention_heads: 0", TUTTI_E_FORMAT },
        { "deepseek-v3-tiny", "rope_interleave", "false", "rope_interleave", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "rope_interleave", "null",
          "rope_interleave: null is not supported for deepseek_v3 models, expected true",
          TUTTI_E_UNSUPPORTED },
        { "llama-tiny-tied", "is_causal", "null", "is_causal: null is not supported", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "num_key_value_heads", "2", "num_key_value_heads", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "topk_method", "\"greedy\"", "topk_method", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "scoring_func", "\"softmax\"", "scoring_func", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "moe_layer_freq", "2", "moe_layer_freq", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "qk_head_dim", "41", "qk_head_dim", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "kv_lora_rank", "36", "kv_lora_rank) is no positive multiple of 8",
          TUTTI_E_FORMAT },
        { "deepseek-v3-tiny", "qk_rope_head_dim", "20", "qk_rope_head_dim) is no positive multiple",
          TUTTI_E_FORMAT },
        { "deepseek-v3-tiny", "kv_lora_rank", "40", "kv_a_proj_with_mqa.weight: shape [56, 72]",
          TUTTI_E_FORMAT },
        { "deepseek-v3-tiny", "v_head_dim", "24", "kv_b_proj.weight: shape [128, 32], expected [160, 32]",
          TUTTI_E_FORMAT },
        { "deepseek-v3-tiny", "q_lora_rank", "null", "q_proj.weight is missing", TUTTI_E_FORMAT },
        { "deepseek-v3-tiny", "attention_bias", "true", "q_a_proj.bias is missing", TUTTI_E_FORMAT },
        { "deepseek-v2-tiny", "topk_method", "\"best\"", "best is not supported", TUTTI_E_UNSUPPORTED },
        { "deepseek-v2-tiny", "norm_topk_prob", "true", "norm_topk_prob", TUTTI_E_UNSUPPORTED },
        { "deepseek-v3-tiny", "norm_topk_prob", "null", "norm_topk_prob: null, expected true or false",
          TUTTI_E_FORMAT },
        { "glm4-tiny", "partial_rotary_factor", "null", "partial_rotary_factor: null, expected a number",
          TUTTI_E_FORMAT },
        { "qwen2-tiny", "dual_chunk_attention_config", "{\"local_size\":8}",
          "dual_chunk_attention_config.chunk_size: missing", TUTTI_E_FORMAT },
        { "qwen2-tiny", "dual_chunk_attention_config", "{\"chunk_size\":64,\"local_size\":64}",
          "dual_chunk_attention_config.local_size: 64, expected an integer from 0 to 63", TUTTI_E_FORMAT },
        { "qwen2-tiny", "dual_chunk_attention_config",
          "{\"chunk_size\":64,\"local_size\":8,\"sparse_attention_enabled\":true}",
          "dual_chunk_attention_config.sparse_attention_enabled: true", TUTTI_E_UNSUPPORTED },
        { "deepseek-v2-tiny", "num_experts_per_tok", NULL, "num_experts_per_tok: missing", TUTTI_E_FORMAT },
        { "glm4-moe-lite-tiny", "mlp_layer_types", "[\"dense\"]", "mlp_layer_types", TUTTI_E_UNSUPPORTED },
        { "glm4-moe-lite-tiny", "mlp_layer_types", "[\"dense\",\"other\"]", "mlp_layer_types",
          TUTTI_E_UNSUPPORTED },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_tensors(CASES[i].fixture, NULL, NULL);
        write_config(CASES[i].fixture, CASES[i].key, CASES[i].value);
        expect(CASES[i].key, CASES[i].status, CASES[i].words);
    }
}

/* What the configurations of published models say, as far as it decides a shape. */
static const struct published {
    const char *config, *family;
    int n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab, n_ctx, rotary_dim;
    double rope_theta;
    bool has_qkv_bias, tied_output;
} PUBLISHED[] = {
    { "{\"model_type\":\"chatglm\",\"hidden_size\":4096,\"inner_hidden_size\":16384,\"num_layers\":28,"
      "\"num_attention_heads\":32,\"layernorm_epsilon\":1e-05,\"max_sequence_length\":2048,"
      "\"position_encoding_2d\":true,\"vocab_size\":130528,\"bos_token_id\":130004,\"eos_token_id\":130005,"
      "\"mask_token_id\":130000,\"gmask_token_id\":130001,\"pad_token_id\":3}",
      "chatglm-6b", 28, 4096, 32, 32, 128, 16384, 130528, 2048, 128, 10000, true, true },
    { "{\"model_type\":\"chatglm\",\"hidden_size\":4096,\"inner_hidden_size\":16384,\"num_layers\":28,"
      "\"num_attention_heads\":32,\"layernorm_epsilon\":1e-05,\"max_sequence_length\":2048,"
      "\"position_encoding_2d\":true,\"vocab_size\":150528,\"bos_token_id\":150004,\"eos_token_id\":150005}",
      "chatglm-6b", 28, 4096, 32, 32, 128, 16384, 150528, 2048, 128, 10000, true, true },
    { "{\"model_type\":\"chatglm\",\"add_bias_linear\":false,\"add_qkv_bias\":true,\"ffn_hidden_size\":13696,"
      "\"hidden_size\":4096,\"kv_channels\":128,\"layernorm_epsilon\":1.5625e-07,"
      "\"multi_query_attention\":true,\"multi_query_group_num\":2,\"num_attention_heads\":32,"
      "\"num_layers\":40,\"padded_vocab_size\":151552,\"rmsnorm\":true,\"rope_ratio\":500,"
      "\"seq_length\":131072,\"eos_token_id\":[151329,151336,151338]}",
      "chatglm", 40, 4096, 32, 2, 128, 13696, 151552, 131072, 64, 5e6, true, false },
    { "{\"model_type\":\"glm\",\"hidden_size\":4096,\"intermediate_size\":13696,\"num_hidden_layers\":40,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":2,\"head_dim\":128,\"hidden_act\":\"silu\","
      "\"max_position_embeddings\":131072,\"rms_norm_eps\":1.5625e-07,\"rope_theta\":5000000.0,"
      "\"attention_bias\":true,\"vocab_size\":151552}",
      "glm", 40, 4096, 32, 2, 128, 13696, 151552, 131072, 64, 5e6, true, false },
    { "{\"model_type\":\"glm4\",\"hidden_size\":6144,\"intermediate_size\":23040,\"num_hidden_layers\":61,"
      "\"num_attention_heads\":48,\"num_key_value_heads\":2,\"head_dim\":128,\"attention_bias\":false,"
      "\"partial_rotary_factor\":0.5,\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-05,"
      "\"rope_theta\":10000.0,\"vocab_size\":151552,"
      "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}}",
      "glm4", 61, 6144, 48, 2, 128, 23040, 151552, 131072, 64, 10000, false, false },
    { "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
      "\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"vocab_size\":128256,\"rope_scaling\":{\"factor\":8.0,"
      "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,"
      "\"rope_type\":\"llama3\"}}",
      "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 128, 500000, false, false },
    { "{\"model_type\":\"mistral\",\"hidden_size\":5120,\"intermediate_size\":14336,\"num_hidden_layers\":40,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":128,"
      "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000.0,"
      "\"sliding_window\":null,\"vocab_size\":131072}",
      "llama", 40, 5120, 32, 8, 128, 14336, 131072, 131072, 128, 1e6, false, false },
    { "{\"model_type\":\"mistral\",\"hidden_size\":5120,\"intermediate_size\":32768,\"num_hidden_layers\":40,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":128,\"hidden_act\":\"silu\","
      "\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-05,\"rope_theta\":100000000.0,"
      "\"sliding_window\":null,\"vocab_size\":131072}", /* Mistral Small 3 */
      "llama", 40, 5120, 32, 8, 128, 32768, 131072, 32768, 128, 1e8, false, false },
    { "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":32,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"max_position_embeddings\":4096,"
      "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":5000000.0,"
      "\"vocab_size\":64000}", /* Yi */
      "llama", 32, 4096, 32, 4, 128, 11008, 64000, 4096, 128, 5e6, false, false },
    { "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":11008,\"num_hidden_layers\":30,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":4096,"
      "\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":10000.0,\"attention_bias\":false,"
      "\"vocab_size\":102400}", /* DeepSeek-LLM */
      "llama", 30, 4096, 32, 32, 128, 11008, 102400, 4096, 128, 10000, false, false },
    { "{\"model_type\":\"llama\",\"hidden_size\":576,\"intermediate_size\":1536,\"num_hidden_layers\":30,"
      "\"num_attention_heads\":9,\"num_key_value_heads\":3,\"max_position_embeddings\":2048,"
      "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,\"vocab_size\":49152}", /* SmolLM */
      "llama", 30, 576, 9, 3, 64, 1536, 49152, 2048, 64, 10000, false, true },
    { "{\"model_type\":\"phi3\",\"hidden_size\":5120,\"intermediate_size\":17920,\"num_hidden_layers\":40,"
      "\"num_attention_heads\":40,\"num_key_value_heads\":10,\"max_position_embeddings\":16384,"
      "\"original_max_position_embeddings\":16384,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
      "\"rope_theta\":250000,\"sliding_window\":null,\"tie_word_embeddings\":false,\"vocab_size\":100352}",
      "phi3", 40, 5120, 40, 10, 128, 17920, 100352, 16384, 128, 250000, false, false },
    /* The text_config of a model with a vision part has few settings of its own; the first layer has the window. */
    { "{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_"
      "layers\":34,"
      "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024}",
      "gemma3", 34, 2560, 8, 4, 256, 10240, 262208, 131072, 256, 10000, false, true },
    { "{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,"
      "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"max_position_embeddings\":32768,"
      "\"max_window_layers\":21,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":32768,"
      "\"tie_word_embeddings\":true,\"use_sliding_window\":false,\"vocab_size\":151936}",
      "qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, 64, 1e6, true, true },
    { "{\"model_type\":\"qwen2\",\"dual_chunk_attention_config\":{\"chunk_size\":262144,\"local_size\":8192,"
      "\"original_max_position_embeddings\":262144},\"hidden_size\":3584,\"intermediate_size\":18944,"
      "\"num_hidden_layers\":28,\"num_attention_heads\":28,\"num_key_value_heads\":4,"
      "\"max_position_embeddings\":1010000,\"max_window_layers\":28,\"rms_norm_eps\":1e-05,"
      "\"rope_theta\":10000000.0,\"sliding_window\":null,\"use_sliding_window\":false,"
      "\"vocab_size\":152064}", /* Qwen2.5-7B-Instruct-1M: the context ends with the first chunk */
      "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, 253952, 128, 1e7, true, false },
    { "{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":3072,\"num_hidden_layers\":28,"
      "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,\"attention_bias\":false,"
      "\"max_position_embeddings\":40960,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000,"
      "\"tie_word_embeddings\":true,\"vocab_size\":151936}",
      "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 128, 1e6, false, true },
    { "{\"model_type\":\"deepseek_v2\",\"first_k_dense_replace\":1,\"hidden_size\":2048,"
      "\"intermediate_size\":10944,\"kv_lora_rank\":512,\"max_position_embeddings\":163840,"
      "\"moe_intermediate_size\":1408,\"n_group\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,"
      "\"norm_topk_prob\":false,\"num_attention_heads\":16,\"num_experts_per_tok\":6,"
      "\"num_hidden_layers\":27,\"num_key_value_heads\":16,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,"
      "\"qk_rope_head_dim\":64,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,"
      "\"mscale\":0.707,\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096,"
      "\"type\":\"yarn\"},\"topk_group\":1,\"topk_method\":\"greedy\",\"v_head_dim\":128,"
      "\"vocab_size\":102400}",
      "deepseek_v2", 27, 2048, 16, 1, 192, 10944, 102400, 163840, 64, 10000, false, false },
    { "{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":3,\"hidden_size\":7168,"
      "\"intermediate_size\":18432,\"kv_lora_rank\":512,\"max_position_embeddings\":163840,"
      "\"moe_intermediate_size\":2048,\"n_group\":8,\"n_routed_experts\":256,\"n_shared_experts\":1,"
      "\"num_attention_heads\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":61,"
      "\"num_key_value_heads\":128,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
      "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,"
      "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},"
      "\"routed_scaling_factor\":2.5,\"topk_group\":4,\"v_head_dim\":128,\"vocab_size\":129280}",
      "deepseek_v3", 61, 7168, 128, 1, 192, 18432, 129280, 163840, 64, 10000, false, false },
    { "{\"model_type\":\"kimi_k2\",\"first_k_dense_replace\":1,\"hidden_size\":7168,"
      "\"intermediate_size\":18432,\"kv_lora_rank\":512,\"max_position_embeddings\":131072,"
      "\"moe_intermediate_size\":2048,\"n_group\":1,\"n_routed_experts\":384,\"n_shared_experts\":1,"
      "\"num_attention_heads\":64,\"num_experts_per_tok\":8,\"num_hidden_layers\":61,"
      "\"num_key_value_heads\":64,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
      "\"rope_scaling\":{\"beta_fast\":1.0,\"beta_slow\":1.0,\"factor\":32.0,\"mscale\":1.0,"
      "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},"
      "\"rope_theta\":50000.0,\"routed_scaling_factor\":2.827,\"topk_group\":1,\"v_head_dim\":128,"
      "\"vocab_size\":163840}",
      "deepseek_v3", 61, 7168, 64, 1, 192, 18432, 163840, 131072, 64, 50000, false, false },
    { "{\"model_type\":\"glm4_moe_lite\",\"first_k_dense_replace\":1,\"hidden_size\":2048,"
      "\"intermediate_size\":10240,\"kv_lora_rank\":512,\"max_position_embeddings\":202752,"
      "\"moe_intermediate_size\":1536,\"n_group\":1,\"n_routed_experts\":64,\"n_shared_experts\":1,"
      "\"num_attention_heads\":20,\"num_experts_per_tok\":4,\"num_hidden_layers\":47,"
      "\"num_key_value_heads\":20,\"q_lora_rank\":768,\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,"
      "\"rms_norm_eps\":1e-05,\"rope_theta\":1000000,\"routed_scaling_factor\":1.8,\"topk_group\":1,"
      "\"v_head_dim\":256,\"vocab_size\":154880}",
      "glm4_moe_lite", 47, 2048, 20, 1, 256, 10240, 154880, 202752, 64, 1e6, false, false },
    { "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,"
      "\"n_ctx\":1024,\"n_embd\":768,\"n_head\":12,\"n_layer\":12,\"n_positions\":1024,"
      "\"vocab_size\":50257}",
      "gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024, 0, 0, true, true },
    { "{\"model_type\":\"bloom\",\"apply_residual_connection_post_layernorm\":false,\"n_layer\":24,"
      "\"num_attention_heads\":16,\"n_embed\":1024,\"layer_norm_epsilon\":1e-05,\"seq_length\":2048,"
      "\"vocab_size\":250880}",
      "bloom", 24, 1024, 16, 16, 64, 4096, 250880, 2048, 0, 0, true, true },
    { "{\"model_type\":\"bloom\",\"hidden_size\":4096,\"n_head\":32,\"n_layer\":30,"
      "\"vocab_size\":250880}",
      "bloom", 30, 4096, 32, 32, 128, 16384, 250880, 2048, 0, 0, true, true },
    { "{\"model_type\":\"pangualpha\",\"hidden_size\":2560,\"num_layers\":32,\"num_heads\":32,"
      "\"seq_length\":1024,\"vocab_size\":40000}",
      "pangualpha", 32, 2560, 32, 32, 80, 10240, 40000, 1024, 0, 0, true, true },
};

static const struct family *family_of(const json_t *config)
{
    for (int i = 0; FAMILIES[i]; i++) {
        if (FAMILIES[i]->is_mine(config))
            return FAMILIES[i];
    }
    fail_msg("no family");
    return NULL;
}

static void published_configurations_are_described(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof PUBLISHED / sizeof *PUBLISHED; i++) {
        const struct published *p = &PUBLISHED[i];
        json_t *root = json_loads(p->config, 0, NULL);
        assert_non_null(root);
        const struct family *family = family_of(root);
        assert_string_equal(family->name, p->family);
        struct tutti_error err = { 0 };
        struct model_desc d = { .kinds[0].ffn.has_gate = true };
        struct config c = { .root = root, .file = p->family, .prefix = "", .err = &err };
        family->describe(&d, &c, false);
        if (c.status != TUTTI_OK)
            fail_msg("%s", err.text);
        json_decref(c.read);
        d.n_usable_vocab = d.n_vocab;
        assert_int_equal(model_desc_check(&d, p->family, &err), TUTTI_OK);
        const int got[] = { d.n_layers,
                            d.d_model,
                            d.kinds[0].attn.n_heads,
                            d.kinds[0].attn.n_kv_heads,
                            d.kinds[0].attn.head_dim,
                            d.kinds[0].ffn.d_ff,
                            d.n_vocab,
                            d.n_ctx,
                            d.kinds[0].attn.rotary_dim },
                  want[] = { p->n_layers, p->d_model, p->n_heads, p->n_kv_heads, p->head_dim,
                             p->d_ff,     p->n_vocab, p->n_ctx,   p->rotary_dim };
        for (size_t k = 0; k < sizeof got / sizeof *got; k++) {
            if (got[k] != want[k])
                fail_msg("%s, number %zu, field %zu: %d, expected %d", p->family, i, k, got[k], want[k]);
        }
        assert_true(d.kinds[0].attn.rope_theta == p->rope_theta);
        assert_int_equal(d.kinds[0].attn.has_qkv_bias, p->has_qkv_bias);
        assert_int_equal(d.tied_output, p->tied_output);
        if (d.has_prefix) { /* [MASK], [gMASK], two others, <sop> */
            assert_int_equal(d.prefix_end_id, d.mask_ids[1] + 4);
            assert_int_equal(d.mask_ids[0], d.mask_ids[1] + 1);
            assert_int_equal(d.mask_ids[1], d.n_vocab - 528);
        }
        json_decref(root);
    }
}

static json_t *load_config(const char *fixture)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", fixture);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    return root;
}

static enum tutti_status describe(struct model_desc *d, const json_t *root, struct tutti_error *err)
{
    *d = (struct model_desc){ .kinds[0].ffn.has_gate = true };
    struct config c = { .root = root, .file = "config.json", .prefix = "", .err = err };
    family_of(root)->describe(d, &c, false);
    json_decref(c.read);
    return c.status;
}

/* Their classes do not read layer_types: with sliding_window every layer has the window. */
static void a_window_in_some_layers_of_mixtral_or_mistral_is_refused(void **state)
{
    (void)state;
    static const char *const FIXTURES[] = { "mixtral-tiny", "mistral-tiny" };
    for (size_t i = 0; i < sizeof FIXTURES / sizeof *FIXTURES; i++) {
        struct model_desc d;
        struct tutti_error err = { 0 };
        json_t *root = load_config(FIXTURES[i]), *types = json_array();
        json_int_t n_layers = json_integer_value(json_object_get(root, "num_hidden_layers"));
        json_object_set_new(root, "layer_types", types);
        json_object_set_new(root, "sliding_window", json_integer(5));
        for (json_int_t layer = 0; layer < n_layers; layer++)
            json_array_append_new(types, json_string("sliding_attention"));
        assert_int_equal(describe(&d, root, &err), TUTTI_OK);
        json_array_set_new(types, 0, json_string("full_attention"));
        assert_int_equal(describe(&d, root, &err), TUTTI_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "layer_types: full attention together with a sliding_window"));
        json_decref(root);
    }
}

/* The fixture's configuration with settings of another one, whose text is JSON. */
static void describe_with(struct model_desc *d, const char *fixture, const char *settings,
                          const struct family **family)
{
    struct tutti_error err = { 0 };
    json_t *root = load_config(fixture), *changes = json_loads(settings, 0, NULL);
    assert_non_null(changes);
    json_object_del(root, "rope_scaling");
    assert_int_equal(json_object_update(root, changes), 0);
    *family = family_of(root);
    if (describe(d, root, &err) != TUTTI_OK)
        fail_msg("%s: %s", settings, err.text);
    json_decref(changes);
    json_decref(root);
}

static void rotary_settings_are_those_that_the_class_reads(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *settings;
        double theta; /* of layers without a window */
    } CASES[] = {
        /* Those by kind take the place of others next to them. */
        { "gemma3-tiny",
          "{\"rope_theta\":90.0,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0,"
          "\"rope_theta\":300.0,\"full_attention\":{\"rope_type\":\"default\"},"
          "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":50.0}}}",
          90 },
        { "olmo3-tiny",
          "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0,\"full_attention\":"
          "{\"rope_type\":\"default\",\"rope_theta\":70.0}}}",
          70 },
        /* Only a missing object means the class's YaRN. */
        { "gpt-oss-tiny", "{\"rope_theta\":500.0,\"rope_parameters\":{}}", 500 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model_desc d;
        const struct family *family;
        describe_with(&d, CASES[i].fixture, CASES[i].settings, &family);
        for (int kind = 0; kind < d.n_kinds; kind++) {
            const struct attn_desc *a = &d.kinds[kind].attn;
            assert_int_equal(a->rope_scaling.kind, ROPE_SCALING_NONE);
            if (a->window == 0)
                assert_true(fabs(a->rope_theta - CASES[i].theta) < 1e-9);
        }
    }
}

/* GLM's attention_bias and ChatGLM's add_qkv_bias may be false, and no key of GGUF says it. */
static void biases_of_chatglm_in_gguf_follow_from_the_tensors(void **state)
{
    (void)state;
    struct tutti_error err = { 0 };
    struct model_desc d = { .kinds[0].ffn.has_gate = true };
    json_t *root = json_loads("{\"chatglm.block_count\":2,\"chatglm.embedding_length\":64,"
                              "\"chatglm.attention.head_count\":4,\"chatglm.feed_forward_length\":96,"
                              "\"chatglm.context_length\":128,"
                              "\"chatglm.attention.layer_norm_rms_epsilon\":1e-5}",
                              0, NULL);
    struct config c = {
        .root = root, .file = "chatglm.gguf", .prefix = "chatglm.", .is_flat = true, .err = &err
    };
    FAMILY_CHATGLM.describe(&d, &c, true);
    assert_int_equal(c.status, TUTTI_OK);
    assert_false(d.kinds[0].attn.has_qkv_bias);
    json_decref(c.read);
    json_decref(root);
}

/* Else a file would be written that cannot be read again. */
static void what_an_architecture_cannot_express_is_not_converted(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *settings, *fault;
    } CASES[] = {
        { "qwen2-tiny", "{\"use_sliding_window\":true,\"sliding_window\":5,\"max_window_layers\":0}",
          "use_sliding_window: true" },
        { "qwen3-tiny", "{\"use_sliding_window\":true,\"sliding_window\":5,\"max_window_layers\":0}",
          "use_sliding_window: true" },
        { "exaone4-tiny", "{\"sliding_window\":5,\"layer_types\":[\"full_attention\",\"full_attention\"]}",
          "sliding_window: layers without rotary embedding, unlike those of the published model" },
        { "qwen2-moe-tiny", "{\"qkv_bias\":false}", "qkv_bias: false" },
        { "glm4-moe-lite-tiny", "{\"num_hidden_layers\":2,\"mlp_layer_types\":[\"sparse\",\"dense\"]}",
          "mlp_layer_types: layers without experts after layers with experts" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model_desc d;
        const struct family *family;
        describe_with(&d, CASES[i].fixture, CASES[i].settings, &family);
        assert_string_equal(family->find_gguf_fault(&d), CASES[i].fault);
        describe_with(&d, CASES[i].fixture, "{}", &family);
        assert_null(family->find_gguf_fault(&d));
    }
}

static void a_scaling_that_gguf_has_for_all_layers_is_not_converted_from_some(void **state)
{
    (void)state;
#define SIXTEEN "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"
    static const struct {
        const char *fixture, *scaling, *words;
    } CASES[] = {
        { "gemma2-tiny",
          "{\"rope_type\":\"longrope\",\"factor\":2,\"short_factor\":" SIXTEEN ",\"long_factor\":" SIXTEEN
          "}",
          "rope_type: longrope with several kinds of layers" },
        { "gemma3-tiny",
          "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
          "\"original_max_position_embeddings\":64}",
          "rope_type: llama3 in some layers only" },
        { "gemma3-tiny", "{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":1.5}",
          "rope_scaling: a factor of attention of its own" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct convert_options options = { .type = weight_type_find("f32") };
        struct tutti_error err = { 0 };
        char path[512];
        path_of(path, sizeof path, "model.gguf");
        write_tensors(CASES[i].fixture, NULL, NULL);
        write_config(CASES[i].fixture, "rope_scaling", CASES[i].scaling);
        assert_int_equal(convert_to_gguf(folder, path, &options, &err), TUTTI_E_UNSUPPORTED);
        if (!strstr(err.text, CASES[i].words))
            fail_msg("%s, expected %s", err.text, CASES[i].words);
    }
}

/* A file without an epsilon: that of the class in transformers. */
static void a_missing_epsilon_is_the_default_of_the_class(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *key;
        double eps;
    } CASES[] = {
        { "encoder/bert-tiny", "layer_norm_eps", 1e-12 },
        { "encoder/xlm-roberta-tiny", "layer_norm_eps", 1e-12 },
        { "encoder/roberta-ranker-tiny", "layer_norm_eps", 1e-12 },
        { "llama-tiny", "rms_norm_eps", 1e-6 },
        { "mixtral-tiny", "rms_norm_eps", 1e-5 },
        { "glm-tiny", "rms_norm_eps", 1.5625e-7 },
        { "olmo2-tiny", "rms_norm_eps", 1e-5 },
        { "starcoder2-tiny", "norm_epsilon", 1e-5 },
        { "falcon-tiny", "layer_norm_epsilon", 1e-5 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model_desc d;
        struct tutti_error err = { 0 };
        json_t *root = load_config(CASES[i].fixture);
        json_object_del(root, CASES[i].key);
        if (describe(&d, root, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        if (d.norm_eps < (float)CASES[i].eps || d.norm_eps > (float)CASES[i].eps)
            fail_msg("%s: %g, expected %g", CASES[i].fixture, (double)d.norm_eps, CASES[i].eps);
        json_decref(root);
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

/* transformers adds the bias to the logits of the embedding. */
static void a_tied_output_with_a_bias_is_refused(void **state)
{
    (void)state;
    static const char *const FIXTURES[] = { "phi2-tiny", "gptj-tiny" };
    for (size_t i = 0; i < sizeof FIXTURES / sizeof *FIXTURES; i++) {
        write_config(FIXTURES[i], "tie_word_embeddings", "true");
        write_tensors(FIXTURES[i], "\"lm_head.weight\"", "\"xx_head.weight\"");
        expect(FIXTURES[i], TUTTI_E_UNSUPPORTED, "tensor lm_head.bias: a bias of the output");
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
    struct attn_desc attn = { .rotary_dim = 16,
                              .rope_theta = 10000,
                              .rope_scaling = { .kind = ROPE_SCALING_LLAMA3,
                                                .factor = 8,
                                                .low_freq_factor = 1,
                                                .high_freq_factor = 1 } };
    for (int original = 1; original <= 8192; original++) {
        attn.rope_scaling.original_n_ctx = original;
        attn.rope_scaling.low_freq_factor = attn.rope_scaling.high_freq_factor = original / (2 * M_PI);
        model_rope_freqs(&attn, freqs);
        for (int j = 0; j < attn.rotary_dim / 2; j++)
            assert_true(isfinite(freqs[j]));
    }
}

/* 101 [gMASK], 100 [MASK], 104 <sop>: Du et al., 2022, and the release's positions. */
static void a_prefix_ends_where_the_answer_begins(void **state)
{
    (void)state;
    struct model_desc d = { .has_prefix = true, .prefix_end_id = 104, .mask_ids = { 101, 100 } };
    static const struct {
        int32_t ids[8];
        int n, n_prefix, mask_position;
        bool has_no_end;
    } CASES[] = {
        { { 5, 6, 101, 104, 7, 8 }, 6, 3, 2, false },
        { { 5, 100, 101, 104, 104 }, 5, 3, 2, false }, /* the first end; [gMASK] before [MASK] */
        { { 5, 100, 6, 104 }, 4, 3, 1, false },
        { { 5, 6, 104 }, 3, 2, 2, false }, /* no mask: where it ends */
        { { 104, 5 }, 2, 0, 0, false },
        { { 5, 101, 6 }, 3, 0, 0, true },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct prefix p = model_find_prefix(&d, CASES[i].ids, CASES[i].n);
        assert_int_equal(p.n, CASES[i].n_prefix);
        assert_int_equal(p.mask_position, CASES[i].mask_position);
        assert_int_equal(p.has_no_end, CASES[i].has_no_end);
    }
    struct prefix p = model_find_prefix(&d, CASES[0].ids, 6);
    static const int32_t ROPE[] = { 0, 1, 2, 2, 2, 2 }, BLOCKS[] = { 0, 0, 0, 1, 2, 3 };
    for (int pos = 0; pos < 6; pos++) {
        int32_t rope, block;
        model_prefix_positions(&p, pos, &rope, &block);
        assert_int_equal(rope, ROPE[pos]);
        assert_int_equal(block, BLOCKS[pos]);
    }
    d.has_prefix = false;
    assert_int_equal(model_find_prefix(&d, CASES[0].ids, 6).n, 0);
}

static void linear_scaling_divides_every_frequency(void **state)
{
    (void)state;
    float plain[8], scaled[8];
    struct attn_desc attn = { .rotary_dim = 16, .rope = ROPE_HALF, .rope_theta = 10000 };
    model_rope_freqs(&attn, plain);
    attn.rope_scaling.kind = ROPE_SCALING_LINEAR;
    attn.rope_scaling.factor = 4;
    model_rope_freqs(&attn, scaled);
    for (int j = 0; j < 8; j++) {
        assert_true(fabs((double)plain[j] - pow(10000, -j / 8.0)) <= 1e-6 * (double)plain[j]);
        assert_true(scaled[j] == plain[j] / 4);
    }
    assert_true(model_rope_scale(&attn) == 1);
}

/* Its base follows from the length of a text only where that is beyond the context: transformers' rule. */
static void dynamic_scaling_changes_nothing_within_the_context(void **state)
{
    (void)state;
    static const char *const ROPES[] = {
        "{\"rope_type\":\"default\",\"rope_theta\":500}",
        "{\"rope_type\":\"dynamic\",\"rope_theta\":500,\"factor\":4}",
    };
    static const int32_t IDS[] = { 5, 17, 3, 105, 9, 11, 42, 100, 7 };
    enum { N = sizeof IDS / sizeof *IDS, N_CTX = 8 };
    float *logits[2];
    struct model *model = NULL;
    size_t n = 0;
    write_tensors("llama-tiny-tied", NULL, NULL);
    for (int i = 0; i < 2; i++) {
        write_config("llama-tiny-tied", "rope_parameters", ROPES[i]);
        model_free(model);
        model = util_load(folder, "f32", "f32", 1, NULL);
        n = (size_t)N * (size_t)model->desc.n_vocab;
        logits[i] = util_logits(model, IDS, N, N);
    }
    assert_memory_equal(logits[0], logits[1], n * sizeof *logits[0]);
    struct tutti_error err;
    model->desc.n_ctx = N_CTX;
    assert_int_equal(tutti_model_logits((tutti_model *)model, IDS, N, logits[0], &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "a context of 8 tokens"));
    model_free(model);
    free(logits[0]);
    free(logits[1]);
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

static void put_file(const char *path, const char *text)
{
    char full[512];
    path_of(full, sizeof full, path);
    for (char *slash = full + strlen(folder) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *out = fopen(full, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    fclose(out);
}

static json_int_t inspected(const char *root, const char *key)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *report = open_memstream(&text, &n_bytes);
    assert_non_null(report);
    const struct inspect_options options = { .as_json = true, .kv_type = DTYPE_F16, .root = root };
    assert_int_equal(model_inspect(TEST_FIXTURES "/llama-tiny", &options, report, NULL), TUTTI_OK);
    fclose(report);
    json_t *root_object = json_loadb(text, n_bytes, 0, NULL);
    json_int_t value = json_integer_value(json_object_get(root_object, key));
    json_decref(root_object);
    free(text);
    return value;
}

/* A machine of 64 GiB, then a control group in it that has 6 MiB left. */
static void inspect_counts_users_within_the_control_group(void **state)
{
    (void)state;
    put_file("proc/meminfo", "MemTotal: 134217728 kB\nMemAvailable: 67108864 kB\n");
    assert_true(inspected(folder, "memory_bytes") == (json_int_t)64 << 30);
    json_int_t machine_users = inspected(folder, "users");
    put_file("proc/self/cgroup", "0::/pod\n");
    put_file("sys/fs/cgroup/pod/memory.max", "8388608\n");
    put_file("sys/fs/cgroup/pod/memory.current", "2097152\n");
    put_file("sys/fs/cgroup/pod/memory.stat", "anon 2097152\nfile 0\n");
    assert_true(inspected(folder, "memory_bytes") == 6 << 20);
    json_int_t left = (6 << 20) - inspected(folder, "weight_bytes");
    assert_int_equal(inspected(folder, "users"), left / (512 * inspected(folder, "kv_bytes_per_token")));
    assert_true(machine_users > 1000 * inspected(folder, "users"));
    char command[512];
    snprintf(command, sizeof command, "rm -r '%s/proc' '%s/sys'", folder, folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(inspect_counts_users_within_the_control_group, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_broken_configuration_is_told_what_is_wrong, make_folder,
                                        remove_folder),
        cmocka_unit_test(published_configurations_are_described),
        cmocka_unit_test(a_window_in_some_layers_of_mixtral_or_mistral_is_refused),
        cmocka_unit_test(rotary_settings_are_those_that_the_class_reads),
        cmocka_unit_test(what_an_architecture_cannot_express_is_not_converted),
        cmocka_unit_test(biases_of_chatglm_in_gguf_follow_from_the_tensors),
        cmocka_unit_test_setup_teardown(a_scaling_that_gguf_has_for_all_layers_is_not_converted_from_some,
                                        make_folder, remove_folder),
        cmocka_unit_test(a_missing_epsilon_is_the_default_of_the_class),
        cmocka_unit_test_setup_teardown(a_tensor_that_is_not_there_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_tied_output_with_a_bias_is_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_tensor_of_another_type_or_shape_is_named, make_folder,
                                        remove_folder),
        cmocka_unit_test(equal_factors_of_llama3_scaling_give_finite_frequencies),
        cmocka_unit_test(linear_scaling_divides_every_frequency),
        cmocka_unit_test_setup_teardown(dynamic_scaling_changes_nothing_within_the_context, make_folder,
                                        remove_folder),
        cmocka_unit_test(a_prefix_ends_where_the_answer_begins),
        cmocka_unit_test_setup_teardown(random_changes_of_a_header_give_an_error_or_a_model, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
