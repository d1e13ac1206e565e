/* A converted checkpoint runs with the bits of the one it came from. */
#include "model/chat/chat.h"
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

static const int32_t IDS[] = { 5, 17, 3, 105, 9, 11, 42, 100, 7, 8, 1, 2, 3, 4, 5, 6, 7, 60 };
enum { N = sizeof IDS / sizeof *IDS };

static void make_path(char *path, size_t size)
{
    snprintf(path, size, "/tmp/tutti-convert-%d.gguf", (int)getpid());
}

static void convert(const char *src, const char *dst, const char *type)
{
    struct convert_options options = { .type = weight_type_find(type), .n_threads = 2 };
    struct tutti_error err;
    if (convert_to_gguf(src, dst, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
}

static void check_same_logits(const char *a, const char *a_type, const char *b, bool bits)
{
    struct model *x = util_load(a, a_type, "f32", 2, NULL), *y = util_load(b, NULL, "f32", 2, NULL);
    int32_t ids[N];
    memcpy(ids, IDS, sizeof ids);
    if (x->desc.has_prefix) {
        ids[8] = x->desc.mask_ids[0];
        ids[9] = x->desc.prefix_end_id;
    }
    float *p = util_logits(x, ids, N, N), *q = util_logits(y, ids, N, N);
    size_t n = (size_t)N * (size_t)x->desc.n_vocab;
    assert_int_equal(x->desc.n_vocab, y->desc.n_vocab);
    for (size_t i = 0; i < n; i++) {
        /* Where rows of q and k were permuted, scores are summed in another order. */
        double d = (double)p[i] - (double)q[i];
        if (bits ? p[i] != q[i] : d > 2e-3 || d < -2e-3)
            fail_msg("%s: logit %zu: %.9g, expected %.9g", b, i, (double)q[i], (double)p[i]);
    }
    free(p);
    free(q);
    model_free(x);
    model_free(y);
}

static void a_converted_chatglm_has_the_same_bits(void **state)
{
    (void)state;
    static const char *const TYPES[] = { "f32", "f16", "bf16", "q8_0", "q5_1", "q4_0", "q4_k_m" };
    char path[128];
    make_path(path, sizeof path);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        convert(TEST_FIXTURES "/chatglm3-tiny", path, TYPES[i]);
        check_same_logits(TEST_FIXTURES "/chatglm3-tiny", TYPES[i], path, true);
    }
    unlink(path);
}

/* Converted beforehand or while loading: the same types for the same matrices. */
static void types_mean_the_same_wherever_they_are_asked_for(void **state)
{
    (void)state;
    static const char *const TYPES[] = { "Q5_K", "q3_k_l" };
    char path[128];
    make_path(path, sizeof path);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        convert(TEST_DEMO_MODEL, path, TYPES[i]);
        check_same_logits(TEST_DEMO_MODEL, TYPES[i], path, true);
    }
    unlink(path);
}

static void *read_whole(const char *path, size_t *n_bytes)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    assert_true(file && fstat(fileno(file), &info) == 0);
    *n_bytes = (size_t)info.st_size;
    void *bytes = malloc(*n_bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, file), *n_bytes);
    fclose(file);
    return bytes;
}

static void bytes_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    char path[128];
    void *first = NULL;
    size_t n_first = 0;
    make_path(path, sizeof path);
    for (int n_threads = 1; n_threads <= 4; n_threads += 3) {
        struct convert_options options = { .type = weight_type_find("q4_k_m"), .n_threads = n_threads };
        assert_int_equal(convert_to_gguf(TEST_DEMO_MODEL, path, &options, NULL), TUTTI_OK);
        size_t n;
        void *bytes = read_whole(path, &n);
        if (n_threads == 1) {
            first = bytes;
            n_first = n;
            continue;
        }
        assert_int_equal(n, n_first);
        assert_memory_equal(bytes, first, n);
        free(bytes);
    }
    free(first);
    unlink(path);
}

/* What a report is made of, summed up. */
struct seen {
    int n, n_of[DTYPE_COUNT], n_misfits;
    uint64_t n_bytes;
    double worst; /* relative error of a tensor */
};

static void on_result(void *user, const struct convert_result *r)
{
    struct seen *seen = user;
    double error = r->squares > 0 ? sqrt(r->squared_error / r->squares) : 0;
    seen->n++;
    seen->n_of[r->to]++;
    seen->n_misfits += r->to != r->wanted;
    seen->n_bytes += r->n_bytes;
    seen->worst = error > seen->worst ? error : seen->worst;
    assert_true(r->n_elems > 0 && r->name && r->n_dims >= 1);
    if (r->to == DTYPE_F32)
        assert_true(error == 0 && r->max_error == 0);
    else
        assert_true(r->max_error <= sqrt(r->squared_error) * 1.0001);
}

static void convert_seen(struct seen *seen, const char *type, bool is_pure)
{
    char path[128];
    make_path(path, sizeof path);
    struct convert_options options = {
        .type = weight_type_find(type), .is_pure = is_pure, .report = on_result, .user = seen
    };
    *seen = (struct seen){ 0 };
    assert_int_equal(convert_to_gguf(TEST_DEMO_MODEL, path, &options, NULL), TUTTI_OK);
    unlink(path);
}

static void a_report_tells_types_and_errors(void **state)
{
    (void)state;
    struct seen seen, pure, eight;
    convert_seen(&seen, "q4_k_m", false);
    convert_seen(&pure, "q4_k_m", true);
    convert_seen(&eight, "q8_0", false);
    assert_int_equal(seen.n, pure.n);
    assert_int_equal(pure.n_of[DTYPE_Q6_K], 0);
    assert_int_equal(seen.n_of[DTYPE_Q6_K] + seen.n_of[DTYPE_Q4_K], pure.n_of[DTYPE_Q4_K]);
    assert_int_equal(seen.n_of[DTYPE_Q6_K], 1 + 2); /* the output, and the values of layers 2 and 5 */
    assert_int_equal(seen.n_misfits, 6);            /* rows of 688 */
    assert_int_equal(pure.n_of[DTYPE_F16], 6);
    assert_true(pure.n_bytes < seen.n_bytes && seen.n_bytes < eight.n_bytes);
    assert_true(pure.worst > 0.06 && pure.worst < 0.08);
    assert_true(eight.worst > 0.004 && eight.worst < 0.008);
}

static void a_converted_llama_has_the_same_logits(void **state)
{
    (void)state;
    char path[128];
    make_path(path, sizeof path);
    convert(TEST_FIXTURES "/llama-tiny", path, "f32");
    check_same_logits(TEST_FIXTURES "/llama-tiny", "f32", path, false);
    convert(TEST_FIXTURES "/llama-tiny-tied", path, "f32"); /* rope scaling becomes a tensor */
    check_same_logits(TEST_FIXTURES "/llama-tiny-tied", "f32", path, false);
    unlink(path);
}

/* Rows of q, k, v that stood by head, matrices that stood transposed, norms, tables: the same bits come out, except of llama,
 * whose q and k change their order. */
static void every_family_that_gguf_knows_converts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *architecture;
        bool bits;
    } CASES[] = {
        { "qwen2-tiny", "qwen2", true },
        { "qwen2-tiny-yarn", "qwen2", true },
        { "qwen3-tiny", "qwen3", true },
        { "mistral-tiny", "llama", false },
        { "glm-4-9b-tiny", "chatglm", true },
        { "glm-tiny", "chatglm", true },
        { "glm4-tiny", "glm4", true },
        { "gpt2-tiny", "gpt2", true },
        { "bloom-tiny", "bloom", true },
        { "granite-tiny", "granite", false },
        { "cohere-tiny", "command-r", true },
        { "cohere2-tiny", "cohere2", true },
        { "gemma-tiny", "gemma", true },
        { "seed-oss-tiny", "seed_oss", true },
        { "gemma2-tiny", "gemma2", true },
        { "falcon-tiny", "falcon", true },
        { "falcon-40b-tiny", "falcon", true },
        { "falcon-11b-tiny", "falcon", true },
        { "mistral3-tiny", "llama", false },
        { "ministral3-tiny", "mistral3", false },
        { "internlm3-tiny", "llama", false },
        { "internlm2-tiny", "internlm2", false },
        { "baichuan-7b-tiny", "baichuan", false },
        { "baichuan2-tiny", "baichuan", false },
        { "baichuan2-13b-tiny", "baichuan", true },
        { "pangu-embedded-tiny", "pangu-embedded", true },
        { "qwen2-vl-tiny", "qwen2vl", true },
        { "qwen2.5-vl-tiny", "qwen2vl", true },
        { "qwen3-vl-tiny", "qwen3vl", true },
        { "qwen3-vl-moe-tiny", "qwen3vlmoe", true },
        { "glm4v-tiny", "glm4", true },
        { "glm4v-moe-tiny", "glm4moe", true },
        { "smollm3-tiny", "smollm3", false },
        { "starcoder2-tiny", "starcoder2", true },
        { "gpt-bigcode-tiny", "starcoder", true },
        { "exaone-tiny", "exaone", true },
        { "qwen1-tiny", "qwen", true },
        { "stablelm-tiny", "stablelm", true },
        { "minicpm3-tiny", "minicpm3", false }, /* loading transposes the keys of quantized up-projections */
        { "ernie-tiny", "ernie4_5", true },
        { "ernie-moe-tiny", "ernie4_5-moe", true },
        { "granite-moe-tiny", "granitemoe", false },
        { "granite4-tiny", "granite", false },
        { "olmo2-tiny", "olmo2", true },
        { "olmo3-tiny", "olmo2", true },
        { "minimax-m2-tiny", "minimax-m2", true },
        { "olmoe-tiny", "olmoe", true },
        { "exaone4-tiny", "exaone4", true },
        { "phi2-tiny", "phi2", true },
        { "gpt-neox-tiny", "gptneox", true },
        { "gpt-neox-tiny-serial", "gptneox", true },
        { "gemma3-tiny", "gemma3", true },
        { "gemma3-vl-tiny", "gemma3", true },
        { "gemma4-tiny", "gemma4", true },
        { "gemma4-vl-tiny", "gemma4", true },
        { "gemma4-moe-tiny", "gemma4", true },
        { "phi3-tiny", "phi3", true },
        { "phi4-mini-tiny", "phi3", true },
        { "deepseek-v2-lite-tiny", "deepseek2", true },
        { "gpt-oss-tiny", "gpt-oss", true },
        { "gpt-oss-tiny-mxfp4", "gpt-oss", true },
        { "deepseek-v2-tiny", "deepseek2", true },
        { "deepseek-v3-tiny", "deepseek2", true },
        { "glm4-moe-lite-tiny", "deepseek2", true },
        { "glm4-moe-lite-tiny-dense", "deepseek2", true },
    };
    char path[128], source[512];
    make_path(path, sizeof path);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        snprintf(source, sizeof source, TEST_FIXTURES "/%s", CASES[i].name);
        convert(source, path, "f32");
        check_same_logits(source, "f32", path, CASES[i].bits);
        convert(source, path, "q8_0");
        if (CASES[i].bits)
            check_same_logits(source, "q8_0", path, true);
        struct model *model = util_load(path, NULL, NULL, 1, NULL);
        assert_string_equal(model->family->gguf_architecture, CASES[i].architecture);
        model_free(model);
    }
    unlink(path);
}

/* Slices in several files, integers in another packing, zip archives, split files: all of them stream through. */
static void every_format_that_is_read_converts(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "mindspore/ranks",
                                         "pytorch/sharded",
                                         "pytorch/old",
                                         "chatglm-ints/glm-4-9b-tiny-int4",
                                         "chatglm-ints/glm-4-9b-tiny-int8",
                                         "gguf-split/llama-tiny-q4_0-00001-of-00003.gguf" };
    char path[128], source[512];
    make_path(path, sizeof path);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        snprintf(source, sizeof source, TEST_FIXTURES "/%s", NAMES[i]);
        convert(source, path, "f32");
        check_same_logits(source, "f32", path, true);
        convert(source, path, "q5_1");
        check_same_logits(source, "q5_1", path, true);
    }
    unlink(path);
}

static bool is_among(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

/* Families that llama.cpp has no architecture for get one with a name that it does not know, so that it refuses them. */
static void families_that_gguf_does_not_know_have_an_architecture_of_their_own(void **state)
{
    (void)state;
    static const char *const CASES[][2] = {
        { "chatglm-6b-tiny", "chatglm-6b" }, { "chatglm-ints/chatglm-6b-tiny-int4", "chatglm-6b" },
        { "pangu-tiny", "pangu-alpha" },     { "gptj-tiny", "gpt-j" },
        { "opt-tiny", "opt-decoder" },       { "bloom-tiny-post", "bloom-post" }
    };
    static const char *const THEIRS[] = { "bloom", "gpt2", "chatglm", "glm4", "pangu-embedded", NULL };
    static const char *const TYPES[] = { "f32",  "f16",  "bf16", "q8_0", "q5_1", "q5_0", "q4_1",
                                         "q4_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k" };
    char path[128], source[512];
    make_path(path, sizeof path);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        snprintf(source, sizeof source, TEST_FIXTURES "/%s", CASES[i][0]);
        /* Mixes give values that stand apart more bits than queries and keys; while loading the three are one. */
        static const char *const APART[] = { "pangu-alpha", "gpt-j", "opt-decoder", NULL };
        bool is_apart = is_among(CASES[i][1], APART);
        for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES - (is_apart ? 4 : 0); t++) {
            convert(source, path, TYPES[t]);
            check_same_logits(source, TYPES[t], path, true);
        }
        struct model *model = util_load(path, NULL, NULL, 1, NULL);
        assert_string_equal(model->family->gguf_architecture, CASES[i][1]);
        assert_false(is_among(model->family->gguf_architecture, THEIRS));
        model_free(model);
        /* and from there to another type */
        char again[160];
        snprintf(again, sizeof again, "%s.gguf", path);
        convert(source, path, "f32");
        convert(path, again, "q5_1");
        check_same_logits(source, "q5_1", again, true);
        unlink(again);
    }
    unlink(path);
}

static void a_gguf_file_converts_to_another_type(void **state)
{
    (void)state;
    char path[128];
    make_path(path, sizeof path);
    convert(TEST_FIXTURES "/gguf/llama-tiny-q8_0.gguf", path, "f32");
    check_same_logits(TEST_FIXTURES "/gguf/llama-tiny-q8_0.gguf", "f32", path, true);
    unlink(path);
}

static void the_demo_model_keeps_its_tokenizer_and_chat(void **state)
{
    (void)state;
    char path[128];
    make_path(path, sizeof path);
    convert(TEST_DEMO_MODEL, path, "q8_0");
    struct model *a = util_load(TEST_DEMO_MODEL, NULL, NULL, 1, NULL),
                 *b = util_load(path, NULL, NULL, 1, NULL);
    assert_string_equal(b->desc.chat_format, "template");
    assert_int_equal(a->desc.n_usable_vocab, b->desc.n_usable_vocab);
    static const char TEXT[] =
        "  Tell me a story about a fox named Mia.\n\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 \xFF";
    struct ids x = { 0 }, y = { 0 };
    struct tutti_message message = { .role = "user", .content = TEXT, .n_bytes = sizeof TEXT - 1 };
    struct tutti_request request = { .messages = &message, .n_messages = 1 };
    assert_int_equal(chat_render(a, &request, &x, NULL), TUTTI_OK);
    assert_int_equal(chat_render(b, &request, &y, NULL), TUTTI_OK);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
    assert_int_equal(a->desc.n_stop_ids, b->desc.n_stop_ids);
    ids_clear(&x);
    ids_clear(&y);
    model_free(a);
    model_free(b);
    unlink(path);
}

/* The folder llama-tiny with a unigram tokenizer.model. Removed by remove_unigram_llama(). */
static const char *const UNIGRAM_FILES[] = { "config.json", "model-00001-of-00002.safetensors",
                                             "model-00002-of-00002.safetensors",
                                             "model.safetensors.index.json", "tokenizer.model" };
enum { N_UNIGRAM_FILES = sizeof UNIGRAM_FILES / sizeof *UNIGRAM_FILES };

static void make_unigram_llama(const char *folder)
{
    assert_int_equal(mkdir(folder, 0700), 0);
    for (int i = 0; i < N_UNIGRAM_FILES; i++) {
        char from[512], to[512];
        bool is_last = i == N_UNIGRAM_FILES - 1;
        snprintf(from, sizeof from, "%s/%s",
                 is_last ? TEST_FIXTURES "/tokenizer" : TEST_FIXTURES "/llama-tiny",
                 is_last ? "unigram.model" : UNIGRAM_FILES[i]);
        snprintf(to, sizeof to, "%s/%s", folder, UNIGRAM_FILES[i]);
        assert_int_equal(symlink(from, to), 0);
    }
}

static void remove_unigram_llama(const char *folder)
{
    for (int i = 0; i < N_UNIGRAM_FILES; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, UNIGRAM_FILES[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void a_unigram_tokenizer_is_kept_with_its_map(void **state)
{
    (void)state;
    static const char *const TEXTS[] = { "  hello  \xEF\xBC\xA6ull \xE2\x80\xA6 world ",
                                         "the \xEF\xAC\x81ne house", "\xD0\x96 unknown \xFF", "", " " };
    char path[128], folder[128];
    make_path(path, sizeof path);
    snprintf(folder, sizeof folder, "/tmp/tutti-convert-%d", (int)getpid());
    make_unigram_llama(folder);
    convert(folder, path, "q8_0");
    struct model *a = util_load(folder, NULL, NULL, 1, NULL), *b = util_load(path, NULL, NULL, 1, NULL);
    assert_int_equal(tokenizer_unk(a->tokenizer), tokenizer_unk(b->tokenizer));
    assert_int_equal(tokenizer_eos(a->tokenizer), tokenizer_eos(b->tokenizer));
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        struct ids x = { 0 }, y = { 0 };
        assert_true(tokenizer_encode(a->tokenizer, TEXTS[i], strlen(TEXTS[i]), &x));
        assert_true(tokenizer_encode(b->tokenizer, TEXTS[i], strlen(TEXTS[i]), &y));
        assert_int_equal(x.n, y.n);
        assert_true(x.n > 0 || i >= 3);
        for (size_t k = 0; k < x.n; k++)
            assert_int_equal(x.ids[k], y.ids[k]);
        ids_clear(&x);
        ids_clear(&y);
    }
    model_free(a);
    model_free(b);
    remove_unigram_llama(folder);
    unlink(path);
}

static void a_checkpoint_is_never_its_own_target(void **state)
{
    (void)state;
    char path[128];
    struct tutti_error err;
    struct convert_options options = { .type = weight_type_find("f16") };
    make_path(path, sizeof path);
    convert(TEST_FIXTURES "/chatglm3-tiny", path, "f32");
    assert_int_equal(convert_to_gguf(path, path, &options, &err), TUTTI_E_ARGUMENT);
    assert_int_equal(convert_to_gguf(path, "/tmp", &options, &err), TUTTI_E_ARGUMENT);
    assert_int_equal(convert_to_gguf("/no/such", path, &options, &err), TUTTI_E_NOT_FOUND);
    assert_int_equal(convert_to_gguf(path, "/no/such/folder/x.gguf", &options, &err), TUTTI_E_NOT_FOUND);
    unlink(path);
}

/* What inspect says of the demo model in 64 MiB; freed by json_decref(). */
static json_t *inspect_demo(enum dtype kv_type)
{
    struct inspect_options options = {
        .as_json = true, .lists_tensors = true, .kv_type = kv_type, .memory_bytes = 64 << 20, .context = 100
    };
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_int_equal(model_inspect(TEST_DEMO_MODEL, &options, out, NULL), TUTTI_OK);
    fclose(out);
    json_t *report = json_loads(text, 0, NULL);
    assert_non_null(report);
    free(text);
    return report;
}

/* GGUF's architectures have one window for all layers. */
static void windows_in_some_layers_do_not_convert(void **state)
{
    (void)state;
    struct convert_options options = { .type = weight_type_find("f32") };
    struct tutti_error err = { 0 };
    char path[128];
    make_path(path, sizeof path);
    assert_int_equal(convert_to_gguf(TEST_FIXTURES "/qwen3-tiny-windows", path, &options, &err),
                     TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "qwen3-tiny-windows/config.json: layer_types: "));
    assert_int_not_equal(access(path, F_OK), 0);
}

static void inspect_counts_users(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        const char *name;
        int head_bytes; /* of 32 dimensions */
    } KV[] = { { DTYPE_F16, "f16", 64 },
               { DTYPE_BF16, "bf16", 64 },
               { DTYPE_F32, "f32", 128 },
               { DTYPE_I8, "int8", 36 } };
    for (size_t i = 0; i < sizeof KV / sizeof *KV; i++) {
        json_t *report = inspect_demo(KV[i].type);
        json_int_t kv = json_integer_value(json_object_get(report, "kv_bytes_per_token"));
        json_int_t weights = json_integer_value(json_object_get(report, "weight_bytes"));
        assert_int_equal(kv, 2 * 6 * 2 * KV[i].head_bytes); /* keys and values, layers, KV heads */
        assert_string_equal(json_string_value(json_object_get(report, "kv_type")), KV[i].name);
        assert_int_equal(json_integer_value(json_object_get(report, "users")),
                         ((64 << 20) - weights) / (112 * kv));
        assert_int_equal(json_array_size(json_object_get(report, "tensors")), 45);
        struct model *model = util_load(TEST_DEMO_MODEL, NULL, KV[i].name, 1, NULL);
        struct tutti_model_info info;
        tutti_model_info((const tutti_model *)model, &info);
        assert_int_equal(json_integer_value(json_object_get(report, "params")), info.n_params);
        assert_int_equal(info.kv_bytes_per_token, kv); /* the model takes what was calculated before */
        assert_string_equal(info.kv_type, KV[i].name);
        model_free(model);
        json_decref(report);
    }
}

/* What inspect counts is what loading makes, of every kind of weight. */
static void inspect_counts_what_is_loaded(void **state)
{
    (void)state;
    static const struct {
        const char *name, *key, *value;
    } CASES[] = {
        { "qwen2-tiny-yarn", "rope_scaling", "\"yarn\"" },
        { "qwen3-tiny", "qk_norm", "true" },
        { "qwen3-tiny-windows", "kv_bytes_per_token", "576" },
        { "deepseek-v2-lite-tiny", "kv_bytes_per_token", "224" }, /* 2 layers of 40 + 16 elements in f16 */
        { "mistral-tiny", "window", "23" },
        { "glm4-tiny", "post_norms", "true" },
        { "gpt2-tiny", "positions", "\"learned\"" },
        { "bloom-tiny", "positions", "\"alibi\"" },
        { "pangu-tiny", "top_query", "true" },
        { "chatglm-6b-tiny", "bidirectional_prefix", "true" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct inspect_options options = { .as_json = true, .kv_type = DTYPE_F16, .memory_bytes = 64 << 20 };
        char *text = NULL, path[512];
        size_t n = 0;
        FILE *out = open_memstream(&text, &n);
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", CASES[i].name);
        assert_int_equal(model_inspect(path, &options, out, NULL), TUTTI_OK);
        fclose(out);
        json_t *report = json_loads(text, 0, NULL);
        json_t *want = json_loads(CASES[i].value, JSON_DECODE_ANY, NULL);
        assert_true(json_equal(json_object_get(report, CASES[i].key), want));
        struct model *model = util_load(path, NULL, NULL, 1, NULL);
        assert_int_equal(json_integer_value(json_object_get(report, "params")), model->n_params);
        model_free(model);
        json_decref(want);
        json_decref(report);
        free(text);
    }
}

static void inspect_lists_kinds_of_layers(void **state)
{
    (void)state;
    struct inspect_options options = { .as_json = true, .kv_type = DTYPE_F16, .memory_bytes = 64 << 20 };
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_int_equal(model_inspect(TEST_FIXTURES "/qwen3-tiny-windows", &options, out, NULL), TUTTI_OK);
    fclose(out);
    json_t *report = json_loads(text, 0, NULL), *want = json_loads("[[[0, 2], 0], [[1], 23]]", 0, NULL);
    json_t *kinds = json_object_get(report, "layer_kinds"), *got = json_array();
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        json_t *kind = json_array_get(kinds, i);
        json_array_append_new(
            got, json_pack("[O, O]", json_object_get(kind, "layers"), json_object_get(kind, "window")));
    }
    assert_true(json_equal(got, want));
    json_decref(got);
    json_decref(want);
    json_decref(report);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_converted_chatglm_has_the_same_bits),
        cmocka_unit_test(types_mean_the_same_wherever_they_are_asked_for),
        cmocka_unit_test(bytes_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(a_report_tells_types_and_errors),
        cmocka_unit_test(a_converted_llama_has_the_same_logits),
        cmocka_unit_test(every_family_that_gguf_knows_converts),
        cmocka_unit_test(every_format_that_is_read_converts),
        cmocka_unit_test(families_that_gguf_does_not_know_have_an_architecture_of_their_own),
        cmocka_unit_test(a_gguf_file_converts_to_another_type),
        cmocka_unit_test(the_demo_model_keeps_its_tokenizer_and_chat),
        cmocka_unit_test(a_unigram_tokenizer_is_kept_with_its_map),
        cmocka_unit_test(windows_in_some_layers_do_not_convert),
        cmocka_unit_test(a_checkpoint_is_never_its_own_target),
        cmocka_unit_test(inspect_counts_users),
        cmocka_unit_test(inspect_counts_what_is_loaded),
        cmocka_unit_test(inspect_lists_kinds_of_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
