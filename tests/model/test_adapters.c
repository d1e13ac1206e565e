/* Low-rank adapters: PEFT's figures on every family, the bits of a row in any batch, and broken folders. */
#include "model/adapters/adapter.h"
#include "offline/convert.h"
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fixture {
    const char *name, *base;
    enum { PLAIN, SINGLE, NEVER } merge; /* SINGLE: without others and with scale 1 */
} FIXTURES[] = {
    /* clang-format off */
    { "llama-qv", "llama-tiny" },
    { "llama-all", "llama-tiny" },
    { "llama-tied", "llama-tiny-tied" },
    { "llama-tied", "gguf/llama-tiny-tied-bf16.gguf" },
    { "mistral", "mistral-tiny" },
    { "qwen2", "qwen2-tiny" },
    { "qwen3", "qwen3-tiny" },
    { "glm", "glm-tiny" },
    { "glm4", "glm4-tiny" },
    { "mixtral", "mixtral-tiny" },
    { "qwen2-moe", "qwen2-moe-tiny" },
    { "qwen3-moe", "qwen3-moe-tiny" },
    { "glm4-moe", "glm4-moe-tiny" },
    { "deepseek-v2-lite", "deepseek-v2-lite-tiny" },
    { "deepseek-v2-lite", "gguf/deepseek-v2-lite-tiny.gguf" },
    { "deepseek-v3", "deepseek-v3-tiny" },
    { "glm4-moe-lite", "glm4-moe-lite-tiny" },
    { "gpt2", "gpt2-tiny" },
    { "bloom", "bloom-tiny" },
    { "chatglm3", "chatglm3-tiny" },
    { "glm-4-9b", "glm-4-9b-tiny" },
    { "chatglm-6b", "chatglm-6b-tiny" },
    { "pangu", "pangu-tiny" },
    { "granite", "granite-tiny" },
    { "phi3", "phi3-tiny" },
    { "gemma2", "gemma2-tiny" },
    { "gemma3", "gemma3-tiny" },
    { "smollm3", "smollm3-tiny" },
    { "starcoder2", "starcoder2-tiny" },
    { "olmo2", "olmo2-tiny" },
    { "olmo3", "olmo3-tiny" },
    { "exaone4", "exaone4-tiny" },
    { "phi2", "phi2-tiny" },
    { "gpt-neox", "gpt-neox-tiny" },
    { "gptj", "gptj-tiny" },
    { "falcon", "falcon-tiny" },
    { "falcon-40b", "falcon-40b-tiny" },
    { "opt", "opt-tiny" },
    { "internlm2", "internlm2-tiny" },
    { "baichuan2", "baichuan2-tiny" },
    { "pangu-embedded", "pangu-embedded-tiny" },
    { "mistral3", "mistral3-tiny" },
    { "qwen2-vl", "qwen2-vl-tiny" },
    { "qwen3-vl", "qwen3-vl-tiny" },
    { "qwen3-vl-moe", "qwen3-vl-moe-tiny" },
    { "glm4v", "glm4v-tiny" },
    { "glm4v-moe", "glm4v-moe-tiny" },
    { "gpt-oss", "gpt-oss-tiny" },
    { "llama-dora", "llama-tiny", SINGLE },
    { "qwen2-dora", "qwen2-tiny", SINGLE },
    { "gpt2-dora", "gpt2-tiny", SINGLE },
    { "glm4-dora", "glm4-tiny", SINGLE },
    { "deepseek-v3-dora", "deepseek-v3-tiny", SINGLE },
    { "qwen2-bias", "qwen2-tiny", SINGLE },
    { "gpt2-bias", "gpt2-tiny", SINGLE },
    { "bloom-bias", "bloom-tiny", SINGLE },
    { "llama-lora-bias", "llama-tiny", NEVER },
    { "llama-saved", "llama-tiny", SINGLE },
    { "llama-saved-layers", "llama-tiny", SINGLE },
    { "llama-tied-saved", "llama-tiny-tied", NEVER },
    { "llama-tied-both", "llama-tiny-tied", SINGLE },
    { "qwen3-moe-router", "qwen3-moe-tiny", SINGLE },
    { "llama-embedding", "llama-tiny", SINGLE },
    { "llama-tied-embedding", "llama-tiny-tied", NEVER },
    { "gemma2-embedding", "gemma2-tiny", NEVER },
    { "llama-tokens", "llama-tiny", SINGLE },
    { "llama-tied-tokens", "llama-tiny-tied", SINGLE },
    { "llama-tied-tokens", "gguf/llama-tiny-tied-bf16.gguf", SINGLE },
    { "llama-only-tokens", "llama-tiny", SINGLE },
    { "llama-tied-only-tokens", "llama-tiny-tied", SINGLE },
    { "llama-pissa", "llama-tiny" },
    { "llama-olora", "llama-tiny" },
    { "qwen3-all-linear", "qwen3-tiny" },
    { "llama-layers", "llama-tiny" },
    { "llama-scales", "llama-tiny" },
    { "llama-expression", "llama-tiny" },
    { "llama-prefix", "llama-tiny", NEVER },
    { "llama-prefix-mlp", "llama-tiny", NEVER },
    { "qwen3-prefix", "qwen3-tiny", NEVER },
    { "gpt2-prefix", "gpt2-tiny", NEVER },
    { "llama-prompt", "llama-tiny", NEVER },
    { "gpt2-prompt", "gpt2-tiny", NEVER },
    { "granite-prompt", "granite-tiny", NEVER },
    { "gemma2-prompt", "gemma2-tiny", NEVER },
    { "llama-p-tuning", "llama-tiny", NEVER },
    { "chatglm3-prefix", "chatglm3-tiny", NEVER },
    { "chatglm3-prefix-mlp", "chatglm3-tiny", NEVER },
    { "chatglm-6b-prefix", "chatglm-6b-tiny", NEVER },
    { "chatglm-6b-prefix-mlp", "chatglm-6b-tiny", NEVER },
    /* clang-format on */
};
enum { N_FIXTURES = sizeof FIXTURES / sizeof *FIXTURES };

static struct model *load_base(const char *base, const char *type, int n_threads)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", base);
    return util_load(path, type, "f32", n_threads, NULL);
}

static void add_fixture(struct model *model, const char *as, const char *name)
{
    char path[512];
    struct tutti_error err;
    snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", name);
    if (model_add_adapter(model, as, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
}

static void logits_and_greedy_answers_are_those_of_peft(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        const struct fixture *f = &FIXTURES[i];
        char path[512];
        int32_t prompt[512], want[512], got[512];
        struct model *model = load_base(f->base, "f32", 2);
        add_fixture(model, "a", f->name);
        util_adapter = 0;
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s/golden.safetensors", f->name);
        struct util_errors e = util_compare_file(model, path, "logits", 3);
        print_message("# %s on %s: relative %.2e\n", f->name, f->base, e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s/golden.json", f->name);
        json_t *golden = util_load_json(path);
        const json_t *greedy = json_object_get(golden, "greedy");
        int n_prompt = util_read_ids(json_object_get(greedy, "prompt_ids"), prompt);
        int n = util_read_ids(json_object_get(greedy, "answer_ids"), want);
        assert_int_equal(n, 100);
        util_greedy(model, prompt, n_prompt, got, n);
        assert_memory_equal(got, want, (size_t)n * sizeof *want);
        util_adapter = -1;
        json_decref(golden);
        model_free(model);
    }
}

/* With f16 weights the factors are f16 too: the adapter adds no larger error than the weights' own. It may be twice as large
 * where a row that was rounded may use another expert. */
static void adapters_beside_rounded_weights_are_exact_enough(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        const struct fixture *f = &FIXTURES[i];
        char path[512];
        struct model *model = load_base(f->base, "f16", 2);
        add_fixture(model, "a", f->name);
        util_adapter = 0;
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s/golden.safetensors", f->name);
        struct util_errors e = util_compare_file(model, path, "logits", 3);
        util_adapter = -1;
        print_message("# %s on %s as f16: rms %.2e\n", f->name, f->base, e.rms);
        assert_true(e.rms <= (model_has_experts(&model->desc) ? 2e-2 : 1e-2));
        model_free(model);
    }
}

static void adapters_in_other_formats_give_the_same_bits(void **state)
{
    (void)state;
    static const char *const NAMES[][3] = { { "llama-qv", "llama-qv-bin", "llama-tiny" },
                                            { "pangu", "pangu-ckpt", "pangu-tiny" } };
    for (int i = 0; i < 2; i++) {
        int32_t ids[20];
        for (int k = 0; k < 20; k++)
            ids[k] = k * 7 % 100;
        struct model *model = load_base(NAMES[i][2], "f32", 2);
        add_fixture(model, "one", NAMES[i][0]);
        add_fixture(model, "other", NAMES[i][1]);
        util_adapter = 0;
        float *want = util_logits(model, ids, 20, 20);
        util_adapter = 1;
        float *got = util_logits(model, ids, 20, 20);
        util_adapter = -1;
        assert_memory_equal(got, want, 20 * (size_t)model->desc.n_vocab * sizeof *got);
        free(want);
        free(got);
        model_free(model);
    }
}

/* The logits of a golden file, within a bound. */
static void check_merged(struct model *model, const struct fixture *f)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s/golden.safetensors", f->name);
    struct util_errors e = util_compare_file(model, path, "logits", 3);
    print_message("# %s merged into %s: relative %.2e\n", f->name, f->base, e.max_relative);
    assert_true(e.max_relative <= 1e-4);
}

/* Half of an adapter, twice, is the adapter. */
static void merged_weights_give_what_the_adapter_gives(void **state)
{
    (void)state;
    char file[] = "/tmp/tutti-merged-XXXXXX.gguf", path[512], base[512];
    assert_true(mkstemps(file, 5) >= 0);
    for (int i = 0; i < N_FIXTURES; i++) {
        const struct fixture *f = &FIXTURES[i];
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", f->name);
        snprintf(base, sizeof base, TEST_FIXTURES "/%s", f->base);
        bool is_once = i % 2 || f->merge != PLAIN;
        const struct merge_source merges[] = { { path, is_once ? 1 : 0.5 }, { path, 0.5 } };
        struct convert_options options = {
            .type = weight_type_find("f32"), .n_threads = 2, .merges = merges, .n_merges = is_once ? 1 : 2
        };
        struct tutti_error err;
        if (f->merge == NEVER) {
            assert_int_equal(convert_to_gguf(base, file, &options, &err), TUTTI_E_UNSUPPORTED);
            assert_non_null(strstr(err.text, f->name));
            continue;
        }
        if (convert_to_gguf(base, file, &options, &err) != TUTTI_OK)
            fail_msg("%s: %s", f->name, err.text);
        struct model *model = util_load(file, "f32", "f32", 2, NULL);
        check_merged(model, f);
        model_free(model);
    }
    unlink(file);
}

/* GGUF has q and k in another order, q, k and v one after the other, and other names; adapters of the folder are read in the
 * order of the file. */
static void adapters_fit_the_gguf_file_of_their_base(void **state)
{
    (void)state;
    char file[] = "/tmp/tutti-gguf-XXXXXX.gguf", path[512];
    struct convert_options options = { .type = weight_type_find("f32"), .n_threads = 2 };
    struct tutti_error err;
    assert_true(mkstemps(file, 5) >= 0);
    for (int i = 0; i < N_FIXTURES; i++) {
        const struct fixture *f = &FIXTURES[i];
        if (strstr(f->base, ".gguf"))
            continue;
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", f->base);
        if (convert_to_gguf(path, file, &options, &err) != TUTTI_OK)
            fail_msg("%s: %s", f->base, err.text);
        struct model *model = util_load(file, "f32", "f32", 2, NULL);
        assert_true(model->is_gguf);
        add_fixture(model, "a", f->name);
        util_adapter = 0;
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s/golden.safetensors", f->name);
        struct util_errors e = util_compare_file(model, path, "logits", 3);
        util_adapter = -1;
        print_message("# %s on %s as GGUF: relative %.2e\n", f->name, f->base, e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
    }
    unlink(file);
}

static void what_cannot_be_merged_is_refused(void **state)
{
    (void)state;
    struct tutti_error err;
    const struct merge_source merge = { TEST_FIXTURES "/adapters/llama-all", 1 };
    struct convert_options options = {
        .type = weight_type_find("f32"), .n_threads = 1, .merges = &merge, .n_merges = 1
    };
    assert_int_equal(
        convert_to_gguf(TEST_FIXTURES "/llama-tiny-tied", "/tmp/tutti-not-written.gguf", &options, &err),
        TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "adapter_model.safetensors: tensor"));
    const struct merge_source twice[] = { { TEST_FIXTURES "/adapters/llama-dora", 1 },
                                          { TEST_FIXTURES "/adapters/llama-qv", 1 } };
    const struct merge_source half = { TEST_FIXTURES "/adapters/llama-dora", 0.5 };
    for (int i = 0; i < 2; i++) {
        options.merges = i ? &half : twice;
        options.n_merges = i ? 1 : 2;
        assert_int_equal(
            convert_to_gguf(TEST_FIXTURES "/llama-tiny", "/tmp/tutti-not-written.gguf", &options, &err),
            TUTTI_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "merged without others"));
    }
    assert_int_equal(access("/tmp/tutti-not-written.gguf", F_OK), -1);
}

static void a_sequence_without_an_adapter_is_answered_as_if_there_were_none(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        const struct fixture *f = &FIXTURES[i];
        int32_t ids[40];
        for (int k = 0; k < 40; k++)
            ids[k] = k * 7 % 100;
        struct model *plain = load_base(f->base, "q8_0", 2), *adapted = load_base(f->base, "q8_0", 2);
        add_fixture(adapted, "a", f->name);
        float *want = util_logits(plain, ids, 40, 40), *got = util_logits(adapted, ids, 40, 40);
        assert_memory_equal(got, want, 40 * (size_t)plain->desc.n_vocab * sizeof *got);
        free(want);
        free(got);
        model_free(plain);
        model_free(adapted);
    }
}

enum { N_SEQS = 6, MAX_IDS = 50, N_PAGES = 4, MAX_ROWS = 40 };
static const int LENGTHS[N_SEQS] = { 1, 16, 17, 33, 50, 40 };
static const int32_t ADAPTERS[N_SEQS] = { 0, -1, 1, 0, 1, -1 };

/* The logits of all positions of six sequences, rows of all of them mixed in each step. */
static void run_mixed(struct model *model, int32_t ids[N_SEQS][MAX_IDS], float **logits)
{
    const struct backend_ops *op = model->backend->ops;
    size_t n_vocab = (size_t)model->desc.n_vocab;
    int32_t pages[N_SEQS][N_PAGES];
    const int32_t *tables[N_SEQS];
    struct kv_memory *kv;
    float *rows = malloc(MAX_ROWS * n_vocab * sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(model_reserve(model, MAX_ROWS, MAX_ROWS, NULL), TUTTI_OK);
    assert_int_equal(
        op->kv_new(model->backend, &kv, N_SEQS * N_PAGES, N_SEQS * N_PAGES, model->kv_type, NULL), TUTTI_OK);
    for (int s = 0; s < N_SEQS; s++) {
        for (int p = 0; p < N_PAGES; p++)
            pages[s][p] = p * N_SEQS + s;
        tables[s] = pages[s];
    }
    int done[N_SEQS] = { 0 };
    for (int turn = 0;; turn++) {
        int32_t row_ids[MAX_ROWS], positions[MAX_ROWS], seqs[MAX_ROWS], outputs[MAX_ROWS];
        int n = 0;
        for (int s = 0; s < N_SEQS; s++) {
            for (int take = 1 + (turn * 7 + s * 5) % 12; take > 0 && done[s] < LENGTHS[s] && n < MAX_ROWS;
                 take--, n++) {
                row_ids[n] = ids[s][done[s]];
                positions[n] = done[s]++;
                seqs[n] = s;
                outputs[n] = n;
            }
        }
        if (n == 0)
            break;
        struct step step = { .n_rows = n,
                             .n_seqs = N_SEQS,
                             .n_outputs = n,
                             .token_ids = row_ids,
                             .positions = positions,
                             .seqs = seqs,
                             .page_tables = tables,
                             .output_rows = outputs,
                             .adapters = ADAPTERS };
        model_read_logits(model, model_forward(model, kv, &step), step.n_outputs - step.n_hidden, rows);
        for (int r = 0; r < n; r++)
            memcpy(logits[seqs[r]] + (size_t)positions[r] * n_vocab, rows + (size_t)r * n_vocab,
                   n_vocab * sizeof *rows);
    }
    op->kv_free(model->backend, kv);
    free(rows);
}

static void adapters_in_one_batch_change_no_bit_of_each_other(void **state)
{
    (void)state;
    static const char *const TYPES[] = { "f32", "q8_0" };
    for (int t = 0; t < 2; t++) {
        float *want[N_SEQS], *got[N_SEQS];
        int32_t ids[N_SEQS][MAX_IDS];
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct model *model = load_base("llama-tiny", TYPES[t], n_threads);
            size_t row_bytes = (size_t)model->desc.n_vocab * sizeof(float);
            add_fixture(model, "some", "llama-qv");
            add_fixture(model, "all", "llama-all");
            for (int s = 0; s < N_SEQS; s++) {
                for (int k = 0; k < LENGTHS[s]; k++)
                    ids[s][k] = (s * 31 + k * 17) % model->desc.n_vocab;
                got[s] = malloc((size_t)LENGTHS[s] * row_bytes);
                assert_non_null(got[s]);
                util_adapter = ADAPTERS[s];
                if (n_threads == 1)
                    want[s] = util_logits(model, ids[s], LENGTHS[s], 7);
                util_adapter = -1;
            }
            run_mixed(model, ids, got);
            for (int s = 0; s < N_SEQS; s++) {
                assert_memory_equal(got[s], want[s], (size_t)LENGTHS[s] * row_bytes);
                free(got[s]);
            }
            model_free(model);
        }
        for (int s = 0; s < N_SEQS; s++)
            free(want[s]);
    }
}

/* ---- broken folders ---- */

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
    char header[4096] = "{", text[2048], *rest = text, *word;
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

static void broken_folders_are_refused_by_name(void **state)
{
    (void)state;
    char folder[] = "/tmp/tutti-adapter-XXXXXX", config[64], tensors[64];
    assert_non_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    snprintf(tensors, sizeof tensors, "%s/adapter_model.safetensors", folder);
    struct model *model = load_base("llama-tiny", "f32", 1);
    for (int i = -2; i < N_BROKEN; i++) { /* -1: a sound one; -2: with names of other models' modules */
        struct tutti_error err = { 0 };
        unlink(config);
        unlink(tensors);
        const char *others = CONFIG ", \"target_modules\": [\"q_proj\", \"qkv\", \"c_attn\"], "
                                    "\"modules_to_save\": [\"classifier\"]}";
        const struct broken sound = { i == -2 ? others : CONFIG "}", PAIR, TUTTI_OK, { "" } };
        const struct broken *b = i < 0 ? &sound : &BROKEN[i];
        if (b->config)
            write_file(config, "", 0, b->config, strlen(b->config), 0);
        if (b->tensors)
            write_tensors(tensors, b->tensors);
        enum tutti_status st = model_add_adapter(model, "x", folder, &err);
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
    unlink(config);
    unlink(tensors);
    rmdir(folder);
    model_free(model);
}

/* Releases of transformers have put the language part of a model with images at different places. */
static void names_of_every_release_fit_a_language_part(void **state)
{
    (void)state;
    static const char *const HEADS[] = { "base_model.model.model.layers.",
                                         "base_model.model.model.language_model.layers.",
                                         "base_model.model.language_model.model.layers.",
                                         "model.language_model.layers.", "layers." };
    char folder[] = "/tmp/tutti-adapter-XXXXXX", config[64], tensors[64], text[512];
    assert_non_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    snprintf(tensors, sizeof tensors, "%s/adapter_model.safetensors", folder);
    write_file(config, "", 0, CONFIG "}", strlen(CONFIG "}"), 0);
    for (size_t i = 0; i < sizeof HEADS / sizeof *HEADS; i++) {
        struct tutti_error err = { 0 };
        struct model *model = load_base("qwen2-vl-tiny", "f32", 1);
        snprintf(text, sizeof text,
                 "%s1.self_attn.q_proj.lora_A.weight:4,64 %s1.self_attn.q_proj.lora_B.weight:64,4", HEADS[i],
                 HEADS[i]);
        write_tensors(tensors, text);
        if (model_add_adapter(model, "x", folder, &err) != TUTTI_OK)
            fail_msg("%s: %s", HEADS[i], err.text);
        model_free(model);
    }
    unlink(config);
    unlink(tensors);
    rmdir(folder);
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
    char folder[] = "/tmp/tutti-adapter-XXXXXX", config[64], tensors[64];
    assert_non_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    snprintf(tensors, sizeof tensors, "%s/adapter_model.safetensors", folder);
    struct model *model = load_base("qwen3-moe-tiny", "f32", 1);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        write_file(config, "", 0, CASES[i].config, strlen(CASES[i].config), 0);
        write_tensors(tensors, CASES[i].tensors);
        assert_int_equal(model_add_adapter(model, "x", folder, &err), CASES[i].status);
        if (!strstr(err.text, CASES[i].words[0]))
            fail_msg("\"%s\" is not in: %s", CASES[i].words[0], err.text);
    }
    unlink(config);
    unlink(tensors);
    rmdir(folder);
    model_free(model);
}

/* The up-projections of latent attention are absorbed: kv_b_proj is no matrix that an update could be added to. */
static void adapters_of_absorbed_matrices_are_refused_by_name(void **state)
{
    (void)state;
    static const char TENSORS[] = "model.layers.0.self_attn.kv_b_proj.lora_A.weight:4,32 "
                                  "model.layers.0.self_attn.kv_b_proj.lora_B.weight:128,4";
    char folder[] = "/tmp/tutti-adapter-XXXXXX", config[64], tensors[64];
    assert_non_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    snprintf(tensors, sizeof tensors, "%s/adapter_model.safetensors", folder);
    write_file(config, "", 0, CONFIG "}", strlen(CONFIG "}"), 0);
    write_tensors(tensors, TENSORS);
    struct model *model = load_base("deepseek-v3-tiny", "f32", 1);
    struct tutti_error err = { 0 };
    assert_int_equal(model_add_adapter(model, "x", folder, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "no linear layer model.layers.0.self_attn.kv_b_proj"));
    assert_int_equal(model_n_adapters(model), 0);
    unlink(config);
    unlink(tensors);
    rmdir(folder);
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
    char folder[] = "/tmp/tutti-test-XXXXXX", config[64], tensors[64];
    assert_non_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    snprintf(tensors, sizeof tensors, "%s/adapter_model.safetensors", folder);
    write_tensors(tensors, PAIR);
    json_t *rows = json_load_file(TEST_FIXTURES "/adapters/inits.json", 0, NULL);
    struct model *model = load_base("llama-tiny", "f32", 1);
    assert_true(json_array_size(rows) >= 10);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool changes = json_is_true(json_object_get(row, "changes_base"));
        char *value = json_dumps(json_object_get(row, "value"), JSON_ENCODE_ANY), text[256], name[32];
        struct tutti_error err = { 0 };
        int n = snprintf(text, sizeof text, CONFIG ", \"init_lora_weights\": %s}", value);
        write_file(config, "", 0, text, (size_t)n, 0);
        snprintf(name, sizeof name, "a%zu", i);
        enum tutti_status st = model_add_adapter(model, name, folder, &err);
        if (st != (changes ? TUTTI_E_UNSUPPORTED : TUTTI_OK) ||
            (changes && (!strstr(err.text, "init_lora_weights") || !strstr(err.text, value))))
            fail_msg("%s: status %s, \"%s\"", value, tutti_status_name(st), err.text);
        free(value);
    }
    model_free(model);
    json_decref(rows);
    unlink(config);
    unlink(tensors);
    rmdir(folder);
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

static void names_are_checked_and_found(void **state)
{
    (void)state;
    struct model *model = load_base("llama-tiny", "f32", 1);
    struct tutti_error err;
    add_fixture(model, "one", "llama-qv");
    add_fixture(model, "two", "llama-all");
    assert_int_equal(model_find_adapter(model, "two"), 1);
    assert_int_equal(model_find_adapter(model, "three"), -1);
    static const char *const BAD[] = { "", "a:b", "one", "tab\t" };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(model_add_adapter(model, BAD[i], TEST_FIXTURES "/adapters/llama-qv", &err),
                         TUTTI_E_ARGUMENT);
        assert_string_equal(err.param, "adapter");
    }
    assert_int_equal(model_n_adapters(model), 2);
    model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ways_to_begin_that_change_the_base_are_refused),
        cmocka_unit_test(logits_and_greedy_answers_are_those_of_peft),
        cmocka_unit_test(adapters_beside_rounded_weights_are_exact_enough),
        cmocka_unit_test(adapters_in_other_formats_give_the_same_bits),
        cmocka_unit_test(merged_weights_give_what_the_adapter_gives),
        cmocka_unit_test(adapters_fit_the_gguf_file_of_their_base),
        cmocka_unit_test(what_cannot_be_merged_is_refused),
        cmocka_unit_test(a_sequence_without_an_adapter_is_answered_as_if_there_were_none),
        cmocka_unit_test(adapters_in_one_batch_change_no_bit_of_each_other),
        cmocka_unit_test(broken_folders_are_refused_by_name),
        cmocka_unit_test(names_of_every_release_fit_a_language_part),
        cmocka_unit_test(adapters_of_experts_are_refused_by_name),
        cmocka_unit_test(adapters_of_absorbed_matrices_are_refused_by_name),
        cmocka_unit_test(mutated_files_are_read_or_refused),
        cmocka_unit_test(names_are_checked_and_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
