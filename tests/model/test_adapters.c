/* Low-rank adapters: PEFT's figures on every family, and the bits of a row in any batch. */
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
    { "minimax-m2", "minimax-m2-tiny" },
    { "olmoe", "olmoe-tiny" },
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
    { "cohere", "cohere-tiny" },
    { "cohere2", "cohere2-tiny" },
    { "gemma", "gemma-tiny" },
    { "seed-oss", "seed-oss-tiny" },
    { "gemma2", "gemma2-tiny" },
    { "gemma3", "gemma3-tiny" },
    { "gemma4", "gemma4-tiny" },
    { "gemma4-moe", "gemma4-moe-tiny" },
    { "smollm3", "smollm3-tiny" },
    { "starcoder2", "starcoder2-tiny" },
    { "olmo2", "olmo2-tiny" },
    { "olmo3", "olmo3-tiny" },
    { "exaone4", "exaone4-tiny" },
    { "phi2", "phi2-tiny" },
    { "gpt-neox", "gpt-neox-tiny" },
    { "gpt-bigcode", "gpt-bigcode-tiny" },
    { "exaone", "exaone-tiny" },
    { "qwen1", "qwen1-tiny" },
    { "minicpm3", "minicpm3-tiny" },
    { "stablelm", "stablelm-tiny" },
    { "granite4", "granite4-tiny" },
    { "ernie", "ernie-tiny" },
    { "ernie-moe", "ernie-moe-tiny" },
    { "granite-moe", "granite-moe-tiny" },
    { "gptj", "gptj-tiny" },
    { "falcon", "falcon-tiny" },
    { "falcon-40b", "falcon-40b-tiny" },
    { "opt", "opt-tiny" },
    { "internlm2", "internlm2-tiny" },
    { "baichuan2", "baichuan2-tiny" },
    { "pangu-embedded", "pangu-embedded-tiny" },
    { "mistral3", "mistral3-tiny" },
    { "ministral3", "ministral3-tiny" },
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
    { "llama-left-out", "llama-tiny" },
    { "llama-left-out-layers", "llama-tiny" },
    { "llama-tied-base", "llama-tiny-tied", SINGLE },
    { "llama-tied-base-layer", "llama-tiny-tied", NEVER },
    { "llama-scales", "llama-tiny" },
    { "gpt2-saved-bias", "gpt2-tiny", SINGLE },
    { "gemma2-norms", "gemma2-tiny", SINGLE },
    { "olmo2-norms", "olmo2-tiny", SINGLE },
    { "phi2-tokens", "phi2-tiny", SINGLE },
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
        cmocka_unit_test(logits_and_greedy_answers_are_those_of_peft),
        cmocka_unit_test(adapters_beside_rounded_weights_are_exact_enough),
        cmocka_unit_test(adapters_in_other_formats_give_the_same_bits),
        cmocka_unit_test(merged_weights_give_what_the_adapter_gives),
        cmocka_unit_test(adapters_fit_the_gguf_file_of_their_base),
        cmocka_unit_test(what_cannot_be_merged_is_refused),
        cmocka_unit_test(a_sequence_without_an_adapter_is_answered_as_if_there_were_none),
        cmocka_unit_test(adapters_in_one_batch_change_no_bit_of_each_other),
        cmocka_unit_test(names_are_checked_and_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
