/* Every setting of a configuration is honoured or refused: the table of tools/fixtures/config_fixtures.py, with transformers' logits
 * for each. */
#include "util.h"

#include "../support/folder.h"
#include "base/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CASES TEST_FIXTURES "/config/cases.json"

enum { MAX_IDS = 64, N_POSITIONS = 2 };

/* A file of the fixture in the folder. */
static void link_file(const char *fixture, const char *name)
{
    char from[512], to[128];
    snprintf(from, sizeof from, TEST_FIXTURES "/%s/%s", fixture, name);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    unlink(to);
    char *real = realpath(from, NULL);
    assert_non_null(real);
    assert_int_equal(symlink(real, to), 0);
    free(real);
}

static void write_config(const json_t *base, const json_t *set, const json_t *unset)
{
    char path[128];
    json_t *config = json_deep_copy(base);
    for (size_t i = 0; i < json_array_size(unset); i++)
        json_object_del(config, json_string_value(json_array_get(unset, i)));
    assert_int_equal(json_object_update(config, (json_t *)(uintptr_t)set), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

/* Largest difference, relative to the largest logit of its position. */
static double distance(const float *got, const float *want, int n_vocab)
{
    double worst = 0;
    for (int p = 0; p < N_POSITIONS; p++) {
        double peak = 0, off = 0;
        for (int i = p * n_vocab; i < (p + 1) * n_vocab; i++) {
            peak = fmax(peak, fabs((double)want[i]));
            off = fmax(off, fabs((double)want[i] - (double)got[i]));
        }
        worst = fmax(worst, off / peak);
    }
    return worst;
}

/* Changes nothing of transformers' logits, and is refused all the same, since other programs heed it or a reader would. */
static const struct {
    const char *fixture, *key;
} REFUSED[] = {
    { "", "num_experts" },
    { "", "logit_scale" },
    { "", "attn_logit_softcapping" },
    { "", "final_logit_softcapping" },
    { "", "query_pre_attn_scalar" },
    { "", "embedding_multiplier" },
    { "", "residual_multiplier" },
    { "", "logits_scaling" },
    { "", "clip_qkv" },
    { "", "use_qk_norm" },
    { "", "no_rope_layers" },
    { "", "attention_chunk_size" },
    { "", "hidden_activation" },
    { "", "norm_type" },
    { "", "num_nextn_predict_layers" },
    { "", "layer_types" },
    { "", "use_sliding_window" }, /* of a class without windows */
    { "", "max_window_layers" },
    { "", "partial_rotary_factor" },
    { "", "original_max_position_embeddings" },
    { "llama-tiny-tied", "sliding_window" },
    { "glm-tiny", "sliding_window" },
    { "glm4-tiny", "sliding_window" },
    { "glm4-moe-tiny", "sliding_window" },
    { "qwen2-moe-tiny", "intermediate_size" }, /* missing; the class has a default, and may not use it */
    { "qwen3-moe-tiny", "intermediate_size" },
    { "gpt2-tiny", "" }, /* settings of other families */
    { "bloom-tiny", "" },
    { "", "mlp_bias" },
    { "", "attention_bias" },
    { "", "n_ctx" },
    { "", "n_special" },
    { "", "predict_special_tokens" },
    { "", "rope_scaling" },
    { "", "rope_parameters" },
    { "", "is_encoder_decoder" },
    { "gpt-oss-tiny", "hidden_act" }, /* the class has an activation of its own */
    { "bloom-tiny", "n_head" },       /* another name of num_attention_heads */
    { "bloom-tiny", "n_layer" },      /* missing; the class has a default */
};

static bool may_refuse(const char *fixture, const char *key)
{
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        if ((!*REFUSED[i].fixture || strcmp(REFUSED[i].fixture, fixture) == 0) &&
            (!*REFUSED[i].key || strcmp(REFUSED[i].key, key) == 0))
            return true;
    }
    return false;
}

/* Settings that transformers refuses only for the type of their value, where null or a text has no effect. */
static bool is_only_typed(const json_t *set, const char *key)
{
    static const char *const HARMLESS[] = { "return_dict", "quantization_config", "pad_token_id",
                                            "summary_activation", "initializer_range" };
    for (size_t i = 0; i < sizeof HARMLESS / sizeof *HARMLESS; i++) {
        if (strcmp(key, HARMLESS[i]) == 0)
            return true;
    }
    return json_object_size(set) == 1 && json_is_null(json_object_get(set, key));
}

static bool names_any(const char *text, const json_t *set, const char *key)
{
    const char *name;
    json_t *value;
    bool found = strstr(text, key);
    json_object_foreach((json_t *)(uintptr_t)set, name, value) found = found || strstr(text, name);
    return found;
}

struct counts {
    int same, other, refused, n_wrong;
};

static void wrong(struct counts *n, const char *fixture, const json_t *c, const char *what)
{
    char *text = json_dumps(c, JSON_COMPACT);
    print_error("%s: %s: %s\n", fixture, text, what);
    free(text);
    n->n_wrong++;
}

static void check_case(struct counts *n, const char *fixture, const json_t *base, const json_t *c,
                       const struct tensor *logits, const int32_t *ids, int n_ids)
{
    const char *key = json_string_value(json_object_get(c, "key"));
    const char *result = json_string_value(json_object_get(c, "result"));
    const json_t *set = json_object_get(c, "set");
    struct model *model = NULL;
    struct tutti_error err = { 0 };
    struct tutti_model_options options = { .weight_type = "f32", .kv_type = "f32", .n_threads = 1 };
    write_config(base, set, json_object_get(c, "unset"));
    if (model_load(&model, folder, &options, &err) != TUTTI_OK) {
        n->refused++;
        if (strcmp(result, "error") != 0 && !names_any(err.text, set, key))
            wrong(n, fixture, c, err.text);
        else if (strcmp(result, "same") == 0 && !may_refuse(fixture, key))
            wrong(n, fixture, c, err.text);
        return;
    }
    int n_vocab = model->desc.n_vocab;
    float *got = util_logits(model, ids, n_ids, n_ids);
    const float *rows = (const float *)logits->data;
    json_int_t row = json_integer_value(json_object_get(c, "logits")); /* of no other: 0, the file as it is */
    double off = n_vocab != logits->shape[2] ? INFINITY
                                             : distance(got + (size_t)(n_ids - N_POSITIONS) * (size_t)n_vocab,
                                                        rows + row * N_POSITIONS * n_vocab, n_vocab);
    if (strcmp(result, "error") == 0 && !is_only_typed(set, key))
        wrong(n, fixture, c, "transformers refuses it, tutti runs it");
    else if (strcmp(result, "error") != 0 && !(off < 2e-5))
        wrong(n, fixture, c, "other logits than transformers'");
    n->same += row == 0;
    n->other += row > 0;
    free(got);
    model_free(model);
}

static void every_setting_is_honoured_or_refused(void **state)
{
    (void)state;
    json_t *root = util_load_json(CASES);
    struct tensor_set *file;
    struct counts n = { 0 };
    int32_t ids[MAX_IDS];
    int n_ids = util_read_ids(json_object_get(root, "ids"), ids);
    assert_int_equal(
        tensor_set_open_as(&file, &SAFETENSORS_FORMAT, TEST_FIXTURES "/config/logits.safetensors", NULL),
        TUTTI_OK);
    const json_t *families = json_object_get(root, "families");
    for (size_t f = 0; f < json_array_size(families); f++) {
        const json_t *family = json_array_get(families, f), *cases = json_object_get(family, "cases");
        const char *fixture = json_string_value(json_object_get(family, "fixture"));
        const struct tensor *logits = NULL;
        for (size_t i = 0; i < file->n; i++) {
            if (strcmp(file->tensors[i].name, fixture) == 0)
                logits = &file->tensors[i];
        }
        assert_non_null(logits);
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", fixture);
        json_t *base = util_load_json(path);
        link_file(fixture, "model.safetensors");
        for (size_t i = 0; i < json_array_size(cases); i++)
            check_case(&n, fixture, base, json_array_get(cases, i), logits, ids, n_ids);
        json_decref(base);
    }
    print_message("# %d as they are, %d with transformers' other logits, %d refused\n", n.same, n.other,
                  n.refused);
    assert_int_equal(n.n_wrong, 0);
    assert_true(n.same > 400 && n.other > 150 && n.refused > 300);
    tensor_set_close(file);
    json_decref(root);
}

/* Further settings of published folders; "model_type" is the fixture's. refused NULL: it opens. */
static const struct {
    const char *what, *fixture, *settings, *refused;
} PUBLISHED[] = {
    { "gpt2", "gpt2-tiny",
      "{\"architectures\":[\"GPT2LMHeadModel\"],\"attn_pdrop\":0.1,\"n_ctx\":256,\"n_special\":0,"
      "\"predict_special_tokens\":true,\"resid_pdrop\":0.1,\"summary_activation\":null,"
      "\"summary_first_dropout\":0.1,\"summary_proj_to_labels\":true,\"summary_type\":\"cls_index\","
      "\"summary_use_proj\":true,\"task_specific_params\":{\"text-generation\":{\"do_sample\":true,"
      "\"max_length\":50}}}",
      NULL },
    { "distilgpt2", "gpt2-tiny",
      "{\"_num_labels\":1,\"id2label\":{\"0\":\"LABEL_0\"},\"label2id\":{\"LABEL_0\":0},"
      "\"gradient_checkpointing\":false,\"scale_attn_weights\":true,\"reorder_and_upcast_attn\":false,"
      "\"scale_attn_by_inverse_layer_idx\":false,\"use_cache\":true}",
      NULL },
    { "bloomz", "bloom-tiny",
      "{\"attention_softmax_in_fp32\":true,\"bias_dropout_fusion\":true,\"n_inner\":null,\"offset_alibi\":"
      "100,"
      "\"pretraining_tp\":2,\"skip_bias_add\":true,\"skip_bias_add_qkv\":false,\"slow_but_exact\":false,"
      "\"unk_token_id\":0,\"use_cache\":true,\"transformers_version\":\"4.20.0\"}",
      NULL },
    { "Llama 2", "llama-tiny-tied",
      "{\"_name_or_path\":\"meta-llama/Llama-2-7b-chat-hf\",\"pretraining_tp\":1,\"attention_dropout\":0.0,"
      "\"max_length\":4096,\"pad_token_id\":0}",
      NULL },
    { "Llama 3.2 by Unsloth", "llama-tiny-tied",
      "{\"unsloth_fixed\":true,\"unsloth_version\":\"2024.9\",\"pad_token_id\":4,\"quantization_config\":"
      "null}",
      NULL },
    { "saved by transformers 5", "llama-tiny-tied",
      "{\"dtype\":\"bfloat16\",\"chunk_size_feed_forward\":0,\"id2label\":{\"0\":\"LABEL_0\"},"
      "\"label2id\":{\"LABEL_0\":0},\"is_encoder_decoder\":false,\"output_attentions\":false,"
      "\"output_hidden_states\":false,\"problem_type\":null,\"return_dict\":true,\"pad_token_id\":null}",
      NULL },
    { "saved by transformers 4", "mistral-tiny",
      "{\"_attn_implementation_autoset\":true,\"add_cross_attention\":false,\"bad_words_ids\":null,"
      "\"begin_suppress_tokens\":null,\"cross_attention_hidden_size\":null,\"decoder_start_token_id\":null,"
      "\"diversity_penalty\":0.0,\"do_sample\":false,\"early_stopping\":false,"
      "\"encoder_no_repeat_ngram_size\":0,\"exponential_decay_length_penalty\":null,\"finetuning_task\":null,"
      "\"forced_bos_token_id\":null,\"forced_eos_token_id\":null,\"is_decoder\":false,\"length_penalty\":1.0,"
      "\"max_length\":20,\"min_length\":0,\"no_repeat_ngram_size\":0,\"num_beam_groups\":1,\"num_beams\":1,"
      "\"num_return_sequences\":1,\"output_scores\":false,\"prefix\":null,\"pruned_heads\":{},"
      "\"remove_invalid_values\":false,\"repetition_penalty\":1.0,\"return_dict_in_generate\":false,"
      "\"sep_token_id\":null,\"suppress_tokens\":null,\"temperature\":1.0,\"tf_legacy_loss\":false,"
      "\"tie_encoder_decoder\":false,\"tokenizer_class\":null,\"top_k\":50,\"top_p\":1.0,\"torchscript\":"
      "false,"
      "\"typical_p\":1.0,\"use_bfloat16\":false}",
      NULL },
    { "Qwen2.5", "qwen2-tiny",
      "{\"attention_dropout\":0.0,\"max_window_layers\":70,\"sliding_window\":131072,"
      "\"use_sliding_window\":false,\"use_mrope\":false,\"rope_scaling\":null}",
      NULL },
    { "Qwen3", "qwen3-tiny",
      "{\"attention_bias\":false,\"max_window_layers\":28,\"rope_scaling\":null,\"sliding_window\":null,"
      "\"use_sliding_window\":false}",
      NULL },
    { "ChatGLM2", "chatglm3-tiny",
      "{\"auto_map\":{\"AutoConfig\":\"configuration_chatglm.ChatGLMConfig\","
      "\"AutoModel\":\"modeling_chatglm.ChatGLMForConditionalGeneration\","
      "\"AutoModelForSeq2SeqLM\":\"modeling_chatglm.ChatGLMForConditionalGeneration\","
      "\"AutoModelForSequenceClassification\":\"modeling_chatglm.ChatGLMForSequenceClassification\"},"
      "\"classifier_dropout\":null,\"quantization_bit\":0,\"pre_seq_len\":null,\"prefix_projection\":false,"
      "\"transformers_version\":\"4.30.2\",\"original_rope\":true}",
      NULL },
    { "ChatGLM-6B", "chatglm-6b-tiny",
      "{\"auto_map\":{\"AutoModel\":\"THUDM/chatglm-6b--modeling_chatglm.ChatGLMForConditionalGeneration\"},"
      "\"pre_seq_len\":null,\"prefix_projection\":false,\"quantization_bit\":0,"
      "\"quantization_embeddings\":false}",
      NULL },
    { "GLM-4-9B", "glm-4-9b-tiny",
      "{\"attn_implementation\":\"sdpa\",\"num_hidden_layers\":40,\"vocab_size\":151552,"
      "\"tokenizer_class\":\"ChatGLM4Tokenizer\"}",
      NULL },
    { "a note", "qwen2-tiny", "{\"trained_on\":\"my own texts\",\"dataset\":\"org/data\"}", NULL },
    { "Qwen2.5-1M", "qwen2-tiny",
      "{\"dual_chunk_attention_config\":{\"chunk_size\":262144,\"local_size\":8192}}", NULL },
    { "gte-Qwen2", "qwen2-tiny", "{\"is_causal\":false}", "is_causal: false" },
    { "Yarn-Llama", "llama-tiny-tied",
      "{\"auto_map\":{\"AutoConfig\":\"configuration_llama.LlamaConfig\","
      "\"AutoModelForCausalLM\":\"modeling_llama_together_yarn.LlamaForCausalLM\"}}",
      "auto_map.AutoConfig" },
    { "a note that is a number", "qwen2-tiny", "{\"epochs\":3}", "epochs: 3: tutti does not know" },
};

static void published_settings_open_or_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof PUBLISHED / sizeof *PUBLISHED; i++) {
        char path[512];
        struct model *model = NULL;
        struct tutti_error err = { 0 };
        snprintf(path, sizeof path, TEST_FIXTURES "/%s/config.json", PUBLISHED[i].fixture);
        json_t *base = util_load_json(path), *settings = json_loads(PUBLISHED[i].settings, 0, NULL);
        assert_non_null(settings);
        link_file(PUBLISHED[i].fixture, "model.safetensors");
        write_config(base, settings, NULL);
        bool is_open = model_load(&model, folder, NULL, &err) == TUTTI_OK;
        if (is_open != !PUBLISHED[i].refused || (!is_open && !strstr(err.text, PUBLISHED[i].refused)))
            fail_msg("%s: \"%s\"", PUBLISHED[i].what, err.text);
        if (is_open)
            model_free(model);
        json_decref(base);
        json_decref(settings);
    }
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(published_settings_open_or_are_refused_by_name, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(every_setting_is_honoured_or_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
