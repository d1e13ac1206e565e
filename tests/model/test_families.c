/* Every family against other people's arithmetic, on tiny random checkpoints in its publishers' layouts
 * (tests/fixtures/README.md): logits of every position, greedy answers, every type, and answers that do not depend on how
 * the rows were cut into steps. */
#include "support/on_card.h"
#include "util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bounds of the error of all logits together: what rounding the weights, and for the quantized types also the
 * activations, costs models that were made to react to everything. Their rows are 64 wide, so that the K types become the
 * types of 32 that docs/quantization.md names; the demo model's are 256 wide (but for one matrix of seven), and it was trained. */
static const struct {
    const char *type;
    double tiny, wide;
} BOUNDS[] = {
    { "f16", 0.002, 1e-06 },   { "bf16", 0.02, 0.003 },  { "q8_0", 0.07, 0.0095 }, { "q6_k", 0.07, 0.02 },
    { "q5_k_m", 0.3, 0.027 },  { "q5_k_s", 0.3, 0.027 }, { "q5_1", 0.3, 0.027 },   { "q5_0", 0.35, 0.031 },
    { "q4_k_m", 0.35, 0.05 },  { "q4_k_s", 0.35, 0.05 }, { "q4_1", 0.55, 0.053 },  { "q4_0", 0.6, 0.057 },
    { "mxfp4", 0.35, 0.0095 }, { "q3_k_l", 0.5, 0.083 }, { "q3_k_m", 0.5, 0.083 }, { "q3_k_s", 0.6, 0.09 },
    { "q2_k", 0.6, 0.18 },     { "q2_k_s", 0.6, 0.18 },
};
enum { N_TYPES = sizeof BOUNDS / sizeof *BOUNDS };

static const struct fixture {
    const char *name, *family;
} FIXTURES[] = {
    /* clang-format off */
    { "qwen2-tiny", "qwen2" },
    { "qwen2-tiny-yarn", "qwen2" },
    { "qwen3-tiny", "qwen3" },
    { "qwen3-tiny-windows", "qwen3" },
    { "mistral-tiny", "llama" },
    { "phi3-tiny", "phi3" },
    { "phi4-mini-tiny", "phi3" },
    { "smollm3-tiny", "smollm3" },
    { "starcoder2-tiny", "starcoder2" },
    { "olmo2-tiny", "olmo2" },
    { "olmo3-tiny", "olmo2" },
    { "exaone4-tiny", "exaone4" },
    { "exaone4-tiny-hybrid", "exaone4" },
    { "phi2-tiny", "phi" },
    { "gpt-neox-tiny", "gpt_neox" },
    { "gpt-neox-tiny-serial", "gpt_neox" },
    { "gpt-bigcode-tiny", "gpt_bigcode" },
    { "exaone-tiny", "exaone" },
    { "qwen1-tiny", "qwen" },
    { "minicpm3-tiny", "minicpm3" },
    { "stablelm-tiny", "stablelm" },
    { "ernie-tiny", "ernie4_5" },
    { "ernie-moe-tiny", "ernie4_5_moe" },
    { "granite-moe-tiny", "granitemoe" },
    { "granite4-tiny", "granitemoehybrid" },
    { "gptj-tiny", "gptj" },
    { "falcon-tiny", "falcon" },
    { "falcon-40b-tiny", "falcon" },
    { "falcon-11b-tiny", "falcon" },
    { "falcon-serial-tiny", "falcon" },
    { "ministral-tiny", "llama" },
    { "mistral3-tiny", "llama" },
    { "ministral3-tiny", "ministral3" },
    { "internlm3-tiny", "internlm3" },
    { "internlm2-tiny", "internlm2" },
    { "baichuan-7b-tiny", "baichuan" },
    { "baichuan2-tiny", "baichuan" },
    { "baichuan2-13b-tiny", "baichuan" },
    { "pangu-embedded-tiny", "pangu_embedded" },
    { "qwen2-vl-tiny", "qwen2_vl" },
    { "qwen2.5-vl-tiny", "qwen2_vl" },
    { "qwen3-vl-tiny", "qwen3_vl" },
    { "qwen3-vl-moe-tiny", "qwen3_vl_moe" },
    { "glm4v-tiny", "glm4" },
    { "glm4v-moe-tiny", "glm4_moe" },
    { "opt-tiny", "opt" },
    { "cohere-tiny", "cohere" },
    { "cohere2-tiny", "cohere2" },
    { "gemma-tiny", "gemma" },
    { "seed-oss-tiny", "seed_oss" },
    { "gemma2-tiny", "gemma2" },
    { "gemma3-tiny", "gemma3" },
    { "gemma3-vl-tiny", "gemma3" },
    { "gemma4-tiny", "gemma4" },
    { "gemma4-vl-tiny", "gemma4" },
    { "gemma4-moe-tiny", "gemma4_moe" },
    { "glm-4-9b-tiny", "chatglm" },
    { "chatglm3-tiny", "chatglm" },
    { "llama-tiny", "llama" },
    { "llama-tiny-tied", "llama" },
    { "llama-linear-tiny", "llama" },
    { "granite-tiny", "granite" },
    { "mixtral-tiny", "mixtral" },
    { "gpt-oss-tiny", "gpt_oss" },
    { "gpt-oss-tiny-mxfp4", "gpt_oss" },
    { "qwen2-moe-tiny", "qwen2_moe" },
    { "qwen3-moe-tiny", "qwen3_moe" },
    { "qwen3-moe-tiny-mixed", "qwen3_moe" },
    { "glm4-moe-tiny", "glm4_moe" },
    { "glm4-moe-tiny-air", "glm4_moe" },
    { "minimax-m2-tiny", "minimax_m2" },
    { "olmoe-tiny", "olmoe" },
    { "deepseek-v2-lite-tiny", "deepseek_v2" },
    { "deepseek-v2-tiny", "deepseek_v2" },
    { "deepseek-v3-tiny", "deepseek_v3" },
    { "glm4-moe-lite-tiny", "glm4_moe_lite" },
    { "glm4-moe-lite-tiny-dense", "glm4_moe_lite" },
    { "glm-tiny", "glm" },
    { "glm4-tiny", "glm4" },
    { "gpt2-tiny", "gpt2" },
    { "bloom-tiny", "bloom" },
    { "bloom-tiny-post", "bloom-post" },
    { "pangu-tiny", "pangualpha" },
    { "chatglm-6b-tiny", "chatglm-6b" },
    /* clang-format on */
};
enum { N_FIXTURES = sizeof FIXTURES / sizeof *FIXTURES };

static struct model *load_fixture(const struct fixture *f, const char *type, int n_threads, const char *cpu)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", f->name);
    struct model *model = util_load(path, type, "f32", n_threads, cpu);
    assert_string_equal(model->desc.family, f->family);
    return model;
}

static struct util_errors compare(const struct fixture *f, const char *type)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.safetensors", f->name);
    struct model *model = load_fixture(f, type, 2, NULL);
    struct util_errors e = util_compare_file(model, path, "logits", 3);
    print_message("# %s %s: relative %.2e at most, rms %.2e\n", f->name, type, e.max_relative, e.rms);
    model_free(model);
    return e;
}

static void logits_agree_with_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++)
        assert_true(compare(&FIXTURES[i], "f32").max_relative <= 1e-4);
}

/* As the gguf package names them, with up-projections of three dimensions; and in one quantized tensor, as
 * in older files. */
static void gguf_files_with_latent_attention_give_the_golden_logits(void **state)
{
    (void)state;
    static const struct {
        const char *file, *golden;
        double bound;
    } CASES[] = {
        { "gguf/deepseek-v2-lite-tiny.gguf", "deepseek-v2-lite-tiny", 1e-4 },
        { "gguf/deepseek-v3-tiny-fused.gguf", "deepseek-v3-tiny", 0.05 }, /* kv_b in Q8_0 */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512], golden[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", CASES[i].file);
        snprintf(golden, sizeof golden, TEST_FIXTURES "/%s/golden.safetensors", CASES[i].golden);
        struct model *model = util_load(path, "f32", "f32", 2, NULL);
        struct util_errors e = util_compare_file(model, golden, "logits", 3);
        print_message("# %s: relative %.2e at most, rms %.2e\n", CASES[i].file, e.max_relative, e.rms);
        assert_true(i == 0 ? e.max_relative <= CASES[i].bound : e.rms <= CASES[i].bound && e.rms > 1e-4);
        model_free(model);
    }
}

/* Keys and names that tutti does not write: tools/fixtures/converter_fixtures.py. */
static void files_of_llama_cpps_converter_give_the_golden_logits(void **state)
{
    (void)state;
    static const struct {
        const char *file, *golden;
        double bound;
    } CASES[] = {
        /* clang-format off */
        { "deepseek-v2-lite-tiny", "deepseek-v2-lite-tiny", 1e-4 },
        { "exaone4-tiny", "exaone4-tiny", 1e-4 },
        { "glm4-moe-lite-tiny", "glm4-moe-lite-tiny", 3e-4 }, /* the file gives the norms of latents another epsilon */
        { "glm4-moe-tiny", "glm4-moe-tiny", 1e-4 },
        { "glm4v-moe-tiny-sections", "glm4v-moe-tiny", 1e-4 },
        { "granite-tiny", "granite-tiny", 1e-4 },
        { "gemma4-moe-tiny", "gemma4-moe-tiny", 1e-4 },
        { "minicpm3-tiny", "minicpm3-tiny", 3e-4 }, /* the same */
        { "minimax-m2-tiny", "minimax-m2-tiny", 1e-4 },
        { "ministral3-tiny", "ministral3-tiny", 1e-4 },
        { "mistral3-tiny-fused", "mistral3-tiny", 1e-4 },
        { "olmo3-tiny", "olmo3-tiny", 1e-4 },
        { "phi4-mini-tiny", "phi4-mini-tiny", 1e-4 },
        { "qwen2-tiny-fused", "qwen2-tiny", 1e-4 },
        { "smollm3-tiny", "smollm3-tiny", 1e-4 },
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512], golden[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/converted/%s.gguf", CASES[i].file);
        snprintf(golden, sizeof golden, TEST_FIXTURES "/%s/golden.safetensors", CASES[i].golden);
        struct model *model = util_load(path, "f32", "f32", 2, NULL);
        struct util_errors e = util_compare_file(model, golden, "logits", 3);
        print_message("# %s: relative %.2e at most, rms %.2e\n", path, e.max_relative, e.rms);
        assert_true(e.max_relative <= CASES[i].bound);
        model_free(model);
    }
}

/* Language parts, whose files tell how images' positions would rotate. GLM-4.1V's has q and k in another
 * order than files of GLM-4. */
static void gguf_files_with_rotary_sections_give_the_golden_logits(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "glm4v-tiny", "qwen3-vl-tiny" };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[512], golden[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s-sections.gguf", NAMES[i]);
        snprintf(golden, sizeof golden, TEST_FIXTURES "/%s/golden.safetensors", NAMES[i]);
        struct model *model = util_load(path, "f32", "f32", 2, NULL);
        struct util_errors e = util_compare_file(model, golden, "logits", 3);
        print_message("# %s as GGUF: relative %.2e at most\n", NAMES[i], e.max_relative);
        assert_true(e.max_relative <= 1e-4);
        model_free(model);
    }
}

/* One row of latent and rotary part for each position and layer; int8: and a scale of each. */
static void a_token_takes_as_much_as_its_latents(void **state)
{
    (void)state;
    struct model *model = util_load(TEST_FIXTURES "/deepseek-v2-lite-tiny", NULL, "f32", 1, NULL);
    static const struct {
        enum dtype type;
        uint64_t n_bytes;
    } CASES[] = { { DTYPE_F32, (40 + 16) * 4 }, { DTYPE_F16, (40 + 16) * 2 }, { DTYPE_I8, 40 + 16 + 8 } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const struct backend *be = model->backend;
        assert_int_equal(model_kv_bytes(&model->desc, CASES[i].type), 2 * CASES[i].n_bytes);
        assert_int_equal(be->ops->kv_page_bytes(be, CASES[i].type),
                         2 * CASES[i].n_bytes * (uint64_t)be->caps->page_tokens);
    }
    model_free(model);
}

/* Twice the small bounds where a row that was rounded may use another expert, and where the rounding of forty
 * layers adds up. */
static double bound_of(const struct fixture *f, double tiny)
{
    struct model *model = load_fixture(f, NULL, 1, NULL);
    bool has_more = model_has_experts(&model->desc) || model->desc.n_layers >= 40;
    model_free(model);
    return has_more && tiny < 0.1 ? 2 * tiny : tiny;
}

/* In emulation, one type for each way in which a card's kernels unpack weights. */
static bool is_tried(const char *type)
{
    static const char *const ON_CARD[] = { "f16", "bf16", "q8_0", "q4_0", "q5_k_m", "q6_k", "mxfp4" };
    for (size_t i = 0; i < sizeof ON_CARD / sizeof *ON_CARD; i++)
        if (strcmp(type, ON_CARD[i]) == 0)
            return true;
    return !on_card();
}

static void other_types_cost_no_more_than_they_must(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        for (int t = 0; t < N_TYPES && is_tried_in_full(FIXTURES[i].name); t++)
            if (is_tried(BOUNDS[t].type))
                assert_true(compare(&FIXTURES[i], BOUNDS[t].type).rms <=
                            bound_of(&FIXTURES[i], BOUNDS[t].tiny));
    }
    for (int t = 0; t < N_TYPES && !on_card(); t++) {
        struct model *model = util_load(TEST_DEMO_MODEL, BOUNDS[t].type, "f32", 2, NULL);
        struct util_errors e = util_compare_file(model, TEST_FIXTURES "/demo/golden.safetensors", "logits",
                                                 6);
        print_message("# demo %s: rms %.2e\n", BOUNDS[t].type, e.rms);
        assert_true(e.rms <= BOUNDS[t].wide);
        model_free(model);
    }
}

static void greedy_answers_are_the_same(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        char path[512];
        int32_t prompt[512], want[512], got[512];
        if (!is_tried_in_full(FIXTURES[i].name))
            continue;
        snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.json", FIXTURES[i].name);
        json_t *golden = util_load_json(path);
        const json_t *greedy = json_object_get(golden, "greedy");
        int n_prompt = util_read_ids(json_object_get(greedy, "prompt_ids"), prompt);
        int n = util_read_ids(json_object_get(greedy, "answer_ids"), want);
        assert_true(n >= 100);
        struct model *model = load_fixture(&FIXTURES[i], "f32", 2, NULL);
        util_greedy(model, prompt, n_prompt, got, n);
        assert_memory_equal(got, want, (size_t)n * sizeof *want);
        model_free(model);
        json_decref(golden);
    }
}

/* Up to its first context a model with LongRoPE has other frequencies; which ones follows the context that the model is opened
 * for, so that a position's bits do not depend on the length of its text. The golden prompts before the fourth are longer. */
static void longrope_follows_the_context(void **state)
{
    (void)state;
    enum { FIRST = 16 };
    static const struct {
        int max_context, n_ctx;
    } CASES[] = { { 0, 512 }, { FIRST + 1, 512 }, { FIRST, FIRST }, { 3, FIRST } };
    const char *folder = TEST_FIXTURES "/phi4-mini-tiny";
    struct tensor_set *golden = NULL;
    assert_int_equal(tensor_set_open_as(&golden, &SAFETENSORS_FORMAT,
                                        TEST_FIXTURES "/phi4-mini-tiny/golden.safetensors", NULL),
                     TUTTI_OK);
    const struct tensor *ids = util_golden(golden, 3, "ids"), *want = util_golden(golden, 3, "logits");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        bool is_short = CASES[i].n_ctx == FIRST;
        struct tutti_model_options options = {
            .weight_type = "f32", .kv_type = "f32", .n_threads = 2, .max_context = CASES[i].max_context
        };
        struct model *model = NULL;
        assert_int_equal(model_load(&model, folder, &options, NULL), TUTTI_OK);
        assert_int_equal(model->desc.n_ctx, CASES[i].n_ctx);
        assert_int_equal(model_desc_ends_at_context(&model->desc), is_short);
        assert_int_equal(ids->shape[0], FIRST);
        float *got = util_logits(model, ids->data, FIRST, FIRST);
        double worst = 0;
        for (int64_t k = 0; k < want->shape[0] * want->shape[1]; k++)
            worst = fmax(worst, fabs((double)got[k] - (double)((const float *)want->data)[k]));
        print_message("# opened for %d tokens: %.2e\n", CASES[i].max_context, worst);
        assert_true(is_short ? worst < 1e-4 : worst > 0.1);
        free(got);
        model_free(model);
    }
    tensor_set_close(golden);
}

/* ---- the bits do not depend on how rows are cut into steps, on threads, on the processor ---- */

enum { N_IDS = 70 };

static void fill_ids(int32_t *ids, const struct model_desc *d)
{
    uint32_t seed = 5;
    for (int i = 0; i < N_IDS; i++) {
        seed = seed * 1664525 + 1013904223;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)d->n_vocab);
    }
    for (int i = 0; d->has_prefix && i < N_IDS; i++) /* the prefix ends at 27 */
        ids[i] = i == 26 ? d->mask_ids[0] : i == 27 ? d->prefix_end_id : ids[i] % 50;
}

static void check_bits(const struct fixture *f, const char *type, int n_threads, const char *cpu, int chunk,
                       const float *want)
{
    int32_t ids[N_IDS];
    struct model *model = load_fixture(f, type, n_threads, cpu);
    fill_ids(ids, &model->desc);
    float *got = util_logits(model, ids, N_IDS, chunk);
    size_t n = (size_t)N_IDS * (size_t)model->desc.n_vocab;
    if (memcmp(got, want, n * sizeof *got) != 0)
        fail_msg("%s as %s, %d threads, %s, %d rows a step: other bits", f->name, type, n_threads,
                 cpu ? cpu : "best processor", chunk);
    free(got);
    model_free(model);
}

static void steps_threads_and_processors_change_no_bit(void **state)
{
    (void)state;
    static const char *const TYPES[] = { "f32", "q8_0" };
    for (int i = 0; i < N_FIXTURES; i++) {
        for (int t = 0; t < 2 && is_tried_in_full(FIXTURES[i].name); t++) {
            const struct fixture *f = &FIXTURES[i];
            int32_t ids[N_IDS];
            struct model *model = load_fixture(f, TYPES[t], 1, NULL);
            fill_ids(ids, &model->desc);
            float *want = util_logits(model, ids, N_IDS, N_IDS);
            check_bits(f, TYPES[t], 2, NULL, 1, want);
            check_bits(f, TYPES[t], 3, NULL, 19, want);
            check_bits(f, TYPES[t], 2, on_card() ? NULL : "ref", 33, want);
            free(want);
            model_free(model);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_agree_with_the_reference),
        cmocka_unit_test(gguf_files_with_latent_attention_give_the_golden_logits),
        cmocka_unit_test(files_of_llama_cpps_converter_give_the_golden_logits),
        cmocka_unit_test(gguf_files_with_rotary_sections_give_the_golden_logits),
        cmocka_unit_test(a_token_takes_as_much_as_its_latents),
        cmocka_unit_test(other_types_cost_no_more_than_they_must),
        cmocka_unit_test(greedy_answers_are_the_same),
        cmocka_unit_test(longrope_follows_the_context),
        cmocka_unit_test(steps_threads_and_processors_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
