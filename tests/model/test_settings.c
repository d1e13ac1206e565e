/* Every setting of a configuration is honoured or refused: the table of tools/fixtures/config_fixtures.py, with transformers' logits
 * for each. */
#include "util.h"

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

static char folder[] = "/tmp/tutti-test-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tutti-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

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
    { "bloom-tiny", "n_head" },  /* beside num_attention_heads */
    { "bloom-tiny", "n_layer" }, /* missing; the class has a default */
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

/* What transformers refuses for its type of value alone, where null or a text is as good as nothing. */
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
    struct safetensors *file;
    struct counts n = { 0 };
    int32_t ids[MAX_IDS];
    int n_ids = util_read_ids(json_object_get(root, "ids"), ids);
    assert_int_equal(safetensors_open(&file, TEST_FIXTURES "/config/logits.safetensors", NULL), TUTTI_OK);
    const json_t *families = json_object_get(root, "families");
    for (size_t f = 0; f < json_array_size(families); f++) {
        const json_t *family = json_array_get(families, f), *cases = json_object_get(family, "cases");
        const char *fixture = json_string_value(json_object_get(family, "fixture"));
        const struct tensor *logits = NULL;
        for (size_t i = 0; i < safetensors_n_tensors(file); i++) {
            if (strcmp(safetensors_tensor(file, i)->name, fixture) == 0)
                logits = safetensors_tensor(file, i);
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
    safetensors_close(file);
    json_decref(root);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_setting_is_honoured_or_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
