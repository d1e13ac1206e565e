/* A card and the CPU that divide a model, on the stand-in for the driver: one model of each kind, with every number of layers
 * on the card, and with experts on the CPU. */
#include "cuda/standin_find.h"
#include "model/util.h"
#include "support/collect.h"
#include "support/opened.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_THREADS = 2 };

static enum tutti_status load(struct model **out, const char *name, const char *layers, const char *experts,
                              bool mtp, struct tutti_error *err)
{
    char path[512];
    const struct tutti_model_options options = { .weight_type = "f32",
                                                 .kv_type = "f32",
                                                 .n_threads = N_THREADS,
                                                 .device = "cuda",
                                                 .gpu_layers = layers,
                                                 .cpu_experts = experts,
                                                 .max_context = 64, /* only of memory for keys and values */
                                                 .mtp = mtp };
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", name);
    return model_load(out, path, &options, err);
}

static struct model *must_load(const char *name, const char *layers, const char *experts, bool mtp)
{
    struct model *model = NULL;
    struct tutti_error err = { 0 };
    if (load(&model, name, layers, experts, mtp, &err) != TUTTI_OK)
        fail_msg("%s: %s", name, err.text);
    return model;
}

/* How a model is divided. */
struct division {
    char layers[16];
    const char *experts; /* NULL: none on the CPU */
};

/* All divisions of a model but that which leaves nothing to the CPU. Returns their number. */
enum { MAX_DIVISIONS = 32 };
static int list_divisions(struct division out[MAX_DIVISIONS], const char *name)
{
    struct model *model = must_load(name, "0", NULL, false);
    int n_layers = model->desc.n_layers, n = 0;
    bool has_experts = model_has_experts(&model->desc);
    model_free(model);
    for (int i = 0; i <= n_layers; i++) {
        assert_true(n + 3 <= MAX_DIVISIONS);
        const char *const ways[] = { i < n_layers ? "" : NULL, has_experts && i > 0 ? "all" : NULL,
                                     has_experts && i == n_layers ? "1" : NULL };
        for (int k = 0; k < 3; k++) {
            if (!ways[k])
                continue;
            snprintf(out[n].layers, sizeof out[n].layers, "%d", i);
            out[n++].experts = *ways[k] ? ways[k] : NULL;
        }
    }
    return n;
}

static const char *const KINDS[] = {
    "chatglm3-tiny",         /* grouped queries, part of a head rotates */
    "gemma3-tiny",           /* windows, norms after blocks, tied output */
    "bloom-tiny",            /* ALiBi, norm of embeddings, no gate */
    "gpt2-tiny",             /* learned positions */
    "olmo2-tiny",            /* norms of all heads together, after blocks only */
    "granite-tiny",          /* scaled residuals */
    "falcon-tiny",           /* blocks in parallel */
    "chatglm-6b-tiny",       /* two positions, bidirectional prefixes, scaled residuals */
    "pangu-tiny",            /* a top layer whose queries come from a table */
    "qwen3-moe-tiny",        /* experts, norms of heads */
    "qwen2-moe-tiny",        /* a shared expert with a gate */
    "glm4-moe-tiny",         /* a shared expert, a bias of the router */
    "gpt-oss-tiny-mxfp4",    /* sinks, biases of experts, windows */
    "deepseek-v2-lite-tiny", /* latent attention, shared experts after a dense layer */
    "deepseek-v3-tiny",      /* latent attention with ranks of queries */
    "gemma4-moe-tiny", /* heads that differ by layer, keys as values, a block parallel to experts, layer scales */
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

static void every_division_gives_the_golden_logits(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        char path[512];
        struct division all[MAX_DIVISIONS];
        int n = list_divisions(all, KINDS[i]);
        double worst = 0;
        snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.safetensors", KINDS[i]);
        for (int k = 0; k < n; k++) {
            struct model *model = must_load(KINDS[i], all[k].layers, all[k].experts, false);
            assert_string_equal(model->backend->ops->name, "cuda+cpu");
            struct util_errors e = util_compare_file(model, path, "logits", 3);
            worst = e.max_relative > worst ? e.max_relative : worst;
            if (e.max_relative > 1e-4)
                fail_msg("%s, %s layers on the card, experts %s: relative %.2e", KINDS[i], all[k].layers,
                         all[k].experts ? all[k].experts : "too", e.max_relative);
            assert_int_equal(model_check(model, NULL), TUTTI_OK);
            model_free(model);
        }
        print_message("# %s: %d divisions, relative %.2e at most\n", KINDS[i], n, worst);
    }
}

static void chunks_change_no_bit(void **state)
{
    enum { N_IDS = 37 };
    static const int CHUNKS[] = { 1, 5, 20 };
    static const char *const NAMES[] = { "chatglm3-tiny", "gemma3-tiny", "qwen2-moe-tiny",
                                         "deepseek-v2-lite-tiny" };
    int32_t ids[N_IDS];
    (void)state;
    for (int i = 0; i < N_IDS; i++)
        ids[i] = 3 + i * 31 % 90;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct division all[MAX_DIVISIONS];
        int n = list_divisions(all, NAMES[i]);
        for (int k = 0; k < n; k++) {
            struct model *model = must_load(NAMES[i], all[k].layers, all[k].experts, false);
            size_t n_bytes = N_IDS * (size_t)model->desc.n_vocab * sizeof(float);
            float *want = util_logits(model, ids, N_IDS, N_IDS);
            for (size_t c = 0; c < sizeof CHUNKS / sizeof *CHUNKS; c++) {
                float *got = util_logits(model, ids, N_IDS, CHUNKS[c]);
                assert_memory_equal(got, want, n_bytes);
                free(got);
            }
            free(want);
            model_free(model);
        }
    }
}

static void adapters_are_on_the_side_of_what_they_change(void **state)
{
    static const struct {
        const char *adapter, *base;
    } CASES[] = { { "llama-all", "llama-tiny" },
                  { "llama-dora", "llama-tiny" },
                  { "llama-saved", "llama-tiny" },
                  { "llama-tied-both", "llama-tiny-tied" },
                  { "llama-embedding", "llama-tiny" },
                  { "llama-tokens", "llama-tiny" },
                  { "llama-tied-tokens", "llama-tiny-tied" },
                  { "llama-saved-layers", "llama-tiny" },
                  { "bloom-bias", "bloom-tiny" },
                  { "llama-prefix", "llama-tiny" },
                  { "chatglm3-prefix", "chatglm3-tiny" },
                  { "llama-prompt", "llama-tiny" },
                  { "qwen3-moe-router", "qwen3-moe-tiny" },
                  { "deepseek-v3-dora", "deepseek-v3-tiny" } };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[512];
        struct division all[MAX_DIVISIONS];
        struct tutti_error err = { 0 };
        int n = list_divisions(all, CASES[i].base);
        for (int k = 0; k < n; k++) {
            struct model *model = must_load(CASES[i].base, all[k].layers, all[k].experts, false);
            uint64_t before = model->weight_bytes;
            snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", CASES[i].adapter);
            if (model_add_adapter(model, "x", path, &err) != TUTTI_OK)
                fail_msg("%s", err.text);
            assert_true(model->weight_bytes > before);
            snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s/golden.safetensors", CASES[i].adapter);
            util_adapter = 0;
            struct util_errors e = util_compare_file(model, path, "logits", 3);
            util_adapter = -1;
            if (e.max_relative > 1e-4)
                fail_msg("%s, %s layers on the card: relative %.2e", CASES[i].adapter, all[k].layers,
                         e.max_relative);
            model_free(model);
        }
    }
}

/* ---- engines ---- */

enum { N_REQUESTS = 3, N_PROMPT = 50, N_ANSWER = 8 };

/* Answers of requests at once, or one by one, by an engine of its own. */
static void answer(struct collect all[N_REQUESTS], struct model *model, int max_seqs, int max_draft_tokens)
{
    const struct tutti_engine_options options = { .kv_bytes = 4 << 20,
                                                  .max_seqs = max_seqs,
                                                  .max_queue = N_REQUESTS,
                                                  .max_batch_tokens = 32,
                                                  .max_draft_tokens = max_draft_tokens };
    const struct engine_hooks hooks = { .forces_drafts = max_draft_tokens > 0 };
    tutti_engine *engine = opened_engine((tutti_model *)model, &options, &hooks);
    for (int i = 0; i < N_REQUESTS; i++) {
        int32_t ids[N_PROMPT];
        for (int k = 0; k < N_PROMPT; k++)
            ids[k] = 3 + (k * 37 + (k > 20 ? i * 11 : 0)) % 90;
        struct tutti_request request = {
            .ids = ids, .n_ids = N_PROMPT, .max_tokens = N_ANSWER, .logprobs = true, .ignore_eos = true
        };
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.temperature = i % 2 ? 0.8F : 0;
        request.sampling.has_seed = true;
        request.sampling.seed = (uint64_t)i;
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &request);
        if (max_seqs == 1)
            collect_wait(&all[i]);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&all[i]);
    tutti_engine_close(engine);
}

static void check_equal(struct collect got[N_REQUESTS], struct collect want[N_REQUESTS])
{
    for (int i = 0; i < N_REQUESTS; i++) {
        const struct collected *a = &got[i].choices[0], *b = &want[i].choices[0];
        assert_int_equal(a->ids.n, N_ANSWER);
        assert_int_equal(b->ids.n, N_ANSWER);
        assert_memory_equal(a->ids.ids, b->ids.ids, N_ANSWER * sizeof *a->ids.ids);
        assert_memory_equal(a->logprob_bits.ids, b->logprob_bits.ids, N_ANSWER * sizeof *a->ids.ids);
        collect_clear(&got[i]);
    }
}

static void clear_all(struct collect all[N_REQUESTS])
{
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&all[i]);
}

/* Drafts of the layer for multi-token prediction, which is on the side of the output. */
static void drafts_of_mtp_change_no_answer(void **state)
{
    static const char *const NAMES[] = { "mtp/glm4-moe", "mtp/deepseek-v3" };
    (void)state;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct division all[MAX_DIVISIONS];
        int n = list_divisions(all, NAMES[i]);
        for (int k = 0; k < n; k++) {
            struct collect got[N_REQUESTS], want[N_REQUESTS];
            struct model *model = must_load(NAMES[i], all[k].layers, all[k].experts, false);
            answer(want, model, 1, 0);
            model_free(model);
            model = must_load(NAMES[i], all[k].layers, all[k].experts, true);
            answer(got, model, N_REQUESTS, 2);
            check_equal(got, want);
            clear_all(want);
            model_free(model);
        }
    }
}

/* ---- pages ---- */

static struct step step_of(const int32_t *ids, const int32_t *positions, const int32_t *seqs, int n,
                           const int32_t *const *tables, const int32_t *last)
{
    return (struct step){ .n_rows = n,
                          .n_seqs = 1,
                          .n_outputs = 1,
                          .token_ids = ids,
                          .positions = positions,
                          .seqs = seqs,
                          .page_tables = tables,
                          .output_rows = last };
}

static void read_page(struct backend *be, struct kv_memory *kv, int32_t page_id, uint8_t *host)
{
    be->ops->kv_read_begin(be, kv, 0, page_id, host);
    assert_true(be->ops->kv_is_copied(be, kv, 0, true));
}

static void write_page(struct backend *be, struct kv_memory *kv, int32_t page_id, const uint8_t *host)
{
    be->ops->kv_write_begin(be, kv, 1, host);
    assert_true(be->ops->kv_is_copied(be, kv, 1, true));
    be->ops->kv_write_end(be, kv, 1, page_id, host);
}

/* The image of a page has both sides' parts, and a page that is restored elsewhere gives the same bits. */
static void pages_are_spilled_restored_and_copied(void **state)
{
    enum { N_IDS = 40, N_FIRST = 32, N_PAGES = 8 };
    static const char *const NAMES[] = { "chatglm3-tiny", "gemma3-tiny", "deepseek-v2-lite-tiny",
                                         "mtp/glm4-moe" };
    (void)state;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct division all[MAX_DIVISIONS];
        int n = list_divisions(all, NAMES[i]);
        bool mtp = strncmp(NAMES[i], "mtp/", 4) == 0;
        for (int k = 0; k < n; k++) {
            struct model *model = must_load(NAMES[i], all[k].layers, all[k].experts, mtp);
            struct backend *be = model->backend;
            struct kv_memory *kv = NULL;
            int32_t ids[N_IDS], positions[N_IDS], seqs[N_IDS] = { 0 }, first[] = { 0, 1, 2 },
                                                  other[] = { 5, 6, 7 }, last_row = N_IDS - N_FIRST - 1,
                                                  first_row = N_FIRST - 1;
            const int32_t *tables[1] = { first }, *moved[1] = { other };
            size_t page_bytes = be->ops->kv_page_bytes(be, DTYPE_F32), n_vocab = (size_t)model->desc.n_vocab;
            void *host = NULL;
            float *want = malloc(n_vocab * sizeof *want), *got = malloc(n_vocab * sizeof *got);
            for (int r = 0; r < N_IDS; r++) {
                ids[r] = 3 + r * 31 % 90;
                positions[r] = r;
            }
            assert_int_equal(model_reserve(model, N_IDS, N_IDS, NULL), TUTTI_OK);
            assert_int_equal(model_kv_new(model, &kv, N_PAGES, N_PAGES, NULL), TUTTI_OK);
            struct step begin = step_of(ids, positions, seqs, N_FIRST, tables, &first_row);
            (void)model_forward(model, kv, &begin);
            assert_int_equal(be->ops->kv_reserve_host(be, kv, 3 * page_bytes, 3, &host, NULL), TUTTI_OK);
            uint8_t *image = host, *again = image + 2 * page_bytes;
            for (int page = 0; page < 2; page++)
                read_page(be, kv, page, image + (size_t)page * page_bytes);
            struct step end = step_of(ids + N_FIRST, positions + N_FIRST, seqs, N_IDS - N_FIRST, tables,
                                      &last_row);
            model_read_logits(model, model_forward(model, kv, &end), 1, want);
            for (int page = 0; page < 2; page++) /* one is restored, the other restored and copied */
                write_page(be, kv, page == 0 ? 5 : 3, image + (size_t)page * page_bytes);
            model_kv_copy_page(model, kv,
                               &(struct page_copy){ .dst = 6, .src = 3, .window_dst = 6, .window_src = 3 });
            read_page(be, kv, 6, again);
            assert_memory_equal(again, image + page_bytes, page_bytes);
            end.page_tables = moved;
            model_read_logits(model, model_forward(model, kv, &end), 1, got);
            assert_memory_equal(got, want, n_vocab * sizeof *got);
            assert_int_equal(model_check(model, NULL), TUTTI_OK);
            free(want);
            free(got);
            model_kv_free(model, kv);
            model_free(model);
        }
    }
}

/* ---- what depends on the division ---- */

static void memory_for_pages_is_that_of_the_fuller_side(void **state)
{
    (void)state;
    struct model *model = must_load("llama-tiny", "1", NULL, false);
    const struct backend_ops *ops = model->backend->ops;
    uint64_t card = ops->memory_left(model->backend), pages = ops->pages_left(model->backend);
    /* One of three equal layers is on the card, so that pages may take three times what the card has. */
    assert_int_equal(model->desc.n_layers, 3);
    assert_true(pages <= 3 * card && pages > 3 * (card - card / 64));
    model_free(model);
}

static void checksums_tell_divisions_apart(void **state)
{
    (void)state;
    uint64_t sums[3];
    static const char *const LAYERS[3] = { "0", "1", "1" };
    for (int i = 0; i < 3; i++) {
        struct model *model = must_load("qwen3-moe-tiny", LAYERS[i], i == 2 ? "all" : NULL, false);
        sums[i] = model->backend->ops->arithmetic_checksum(model->backend);
        model_free(model);
    }
    assert_true(sums[0] != sums[1] && sums[1] != sums[2] && sums[0] != sums[2]);
}

static void wrong_divisions_are_refused_by_name(void **state)
{
    static const struct {
        const char *name, *layers, *experts, *param, *said;
    } CASES[] = {
        { "llama-tiny", "4", NULL, "gpu_layers",
          "--gpu-layers 4: expected 0 to 3, the layers of llama-tiny, or auto" },
        { "llama-tiny", "-1", NULL, "gpu_layers", "--gpu-layers -1: expected 0 to 3" },
        { "llama-tiny", "all", NULL, "gpu_layers", "--gpu-layers all: expected 0 to 3" },
        { "llama-tiny", "", NULL, "gpu_layers", "expected 0 to 3" },
        { "llama-tiny", "999999999999", NULL, "gpu_layers", "expected 0 to 3" },
        { "llama-tiny", NULL, "all", "cpu_experts", "--cpu-experts: llama-tiny has no experts" },
        { "llama-tiny", "1", "1", "cpu_experts", "--cpu-experts: llama-tiny has no experts" },
        { "qwen3-moe-tiny", NULL, "9", "cpu_experts", "--cpu-experts 9: expected 0 to " },
        { "qwen3-moe-tiny", NULL, "auto", "cpu_experts", "--cpu-experts auto: expected 0 to " },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct model *model = NULL;
        struct tutti_error err = { 0 };
        assert_int_equal(load(&model, CASES[i].name, CASES[i].layers, CASES[i].experts, false, &err),
                         TUTTI_E_ARGUMENT);
        assert_string_equal(err.param, CASES[i].param);
        assert_non_null(strstr(err.text, CASES[i].said));
        assert_null(model);
    }
}

/* ---- memory and failures ---- */

/* On cards with less and less memory. */
static void as_many_layers_as_fit_are_on_the_card(void **state)
{
    static const char NAME[] = "deepseek-v2-lite-tiny";
    int n_before = 0, n_counts = 0;
    (void)state;
    struct model *model = must_load(NAME, "auto", NULL, false);
    assert_string_equal(model->backend->ops->name, "cuda"); /* all of it fits */
    uint64_t n_bytes = model->weight_bytes;
    model_free(model);
    for (int percent = 120; percent > 30; percent -= 10) {
        char bytes[32], advice[64];
        struct tutti_error err = { 0 };
        struct model *whole = NULL;
        snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)n_bytes * (unsigned)percent / 100);
        assert_int_equal(setenv("TUTTI_STANDIN_MEMORY", bytes, 1), 0);
        enum tutti_status st = load(&whole, NAME, NULL, NULL, false, &err);
        model_free(whole);
        model = must_load(NAME, "auto", NULL, false);
        int n = model->is_divided ? model->placement.n_layers - model->placement.first_on_card : 99;
        assert_true(n_before == 0 || n <= n_before);
        assert_true(percent > 110 ||
                    model->is_divided); /* room for keys and values, and for what is computed */
        n_counts += n != n_before;
        n_before = n;
        if (st != TUTTI_OK && n > 0) {
            snprintf(advice, sizeof advice, "--gpu-layers %d of %d", n, model->desc.n_layers);
            assert_int_equal(st, TUTTI_E_MEMORY);
            assert_non_null(strstr(err.text, advice));
            assert_non_null(strstr(err.text, " would fit, with the rest on the CPU"));
        }
        model_free(model);
    }
    assert_true(n_counts > 2);
    assert_int_equal(unsetenv("TUTTI_STANDIN_MEMORY"), 0);
}

/* Loads a model, runs a step, and closes it. Returns the first error. */
static enum tutti_status live(const char *name, const char *layers, const char *experts,
                              struct tutti_error *err)
{
    enum { N_IDS = 9 };
    struct model *model = NULL;
    struct kv_memory *kv = NULL;
    enum tutti_status st = load(&model, name, layers, experts, false, err);
    if (st != TUTTI_OK)
        return st;
    int32_t ids[N_IDS], positions[N_IDS], seqs[N_IDS] = { 0 }, table[] = { 0 }, last = N_IDS - 1;
    const int32_t *tables[1] = { table };
    for (int r = 0; r < N_IDS; r++)
        ids[r] = positions[r] = r;
    st = model_reserve(model, N_IDS, 1, err);
    if (st == TUTTI_OK)
        st = model->backend->ops->reserve_sampling(model->backend, model->desc.n_vocab, err);
    if (st == TUTTI_OK)
        st = model_kv_new(model, &kv, 1, 1, err);
    if (st == TUTTI_OK) {
        struct step step = step_of(ids, positions, seqs, N_IDS, tables, &last);
        float *logits = calloc((size_t)model->desc.n_vocab, sizeof *logits);
        model_read_logits(model, model_forward(model, kv, &step), 1, logits);
        free(logits);
        st = model_check(model, err);
    }
    model_kv_free(model, kv);
    model_free(model);
    return st;
}

/* Each call of the driver fails in turn: loading and steps end with an error of the card, and nothing else happens. */
static void every_call_may_fail(void **state)
{
    static const struct {
        const char *name, *layers, *experts;
    } CASES[] = { { "llama-tiny", "1", NULL }, { "qwen2-moe-tiny", NULL, "all" } };
    const struct standin_functions *driver = standin_functions();
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        driver->fail_call(NULL, 0, 0);
        assert_int_equal(live(CASES[i].name, CASES[i].layers, CASES[i].experts, &err), TUTTI_OK);
        long n = driver->calls(NULL);
        int n_failed = 0;
        for (long call = 1; call <= n; call += 1 + call / 60) {
            memset(&err, 0, sizeof err);
            driver->fail_call(NULL, call, 719);
            enum tutti_status st = live(CASES[i].name, CASES[i].layers, CASES[i].experts, &err);
            if (st != TUTTI_OK)
                assert_true(err.text[0] != '\0');
            n_failed += st != TUTTI_OK;
        }
        driver->fail_call(NULL, 0, 0);
        print_message("# %s: %ld calls of the driver, %d failures that were tried ended it\n", CASES[i].name,
                      n, n_failed);
        assert_true(n_failed > 20);
        assert_int_equal(driver->bytes(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(every_division_gives_the_golden_logits),
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(adapters_are_on_the_side_of_what_they_change),
        cmocka_unit_test(drafts_of_mtp_change_no_answer),
        cmocka_unit_test(pages_are_spilled_restored_and_copied),
        cmocka_unit_test(memory_for_pages_is_that_of_the_fuller_side),
        cmocka_unit_test(checksums_tell_divisions_apart),
        cmocka_unit_test(wrong_divisions_are_refused_by_name),
        cmocka_unit_test(as_many_layers_as_fit_are_on_the_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
