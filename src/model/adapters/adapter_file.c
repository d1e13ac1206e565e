/* Opens an adapter's folder and checks its configuration. */
#include "model/adapters/adapter_reader.h"

#include "checkpoint/json_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT_PATTERNS = 4096 };

/* ---- configuration ---- */

static enum tutti_status load_config(struct adapter_reader *r, struct tutti_error *err)
{
    enum tutti_status st = json_file_load(r->config_path, &r->config, err);
    if (st == TUTTI_OK && !r->config)
        st = error_set(err, TUTTI_E_NOT_FOUND, "%s: %s", r->config_path, strerror(ENOENT));
    return st;
}

/* Absent, null, false, or an empty list or object. */
static bool is_unset(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static enum tutti_status check_patterns(const struct adapter_reader *r, const char *key,
                                        struct tutti_error *err)
{
    const json_t *patterns = json_object_get(r->config, key), *value;
    const char *pattern;
    if (is_unset(patterns))
        return TUTTI_OK;
    if (!json_is_object(patterns) || json_object_size(patterns) > LIMIT_PATTERNS)
        return error_set(err, TUTTI_E_FORMAT, "%s: %s: expected an object of at most %d numbers",
                         r->config_path, key, LIMIT_PATTERNS);
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value)
    {
        if (!json_is_number(value) || !(fabs(json_number_value(value)) <= 1e6))
            return error_set(err, TUTTI_E_FORMAT, "%s: %s: \"%s\" is no number up to 1000000", r->config_path,
                             key, pattern);
    }
    return TUTTI_OK;
}

/* Settings without effect after training, or of which only one value is supported. */
static const struct config_key KEYS[] = {
    { "task_type", NULL },
    { "inference_mode", NULL },
    { "auto_mapping", NULL },
    { "base_model_name_or_path", NULL },
    { "revision", NULL },
    { "peft_version", NULL },
    { "*dropout*", NULL },
    { "fan_in_fan_out", NULL }, /* layout of the base weights, not of the factors */
    { "target_modules", NULL }, /* adapter_targets.c */
    { "exclude_modules", NULL },
    { "target_cells", NULL },
    { "layers_to_transform", NULL },
    { "layers_pattern", NULL },
    { "rank_pattern", NULL }, /* read for each tensor */
    { "alpha_pattern", NULL },
    { "megatron_*", NULL },
    { "merge_weights", NULL },
    { "qalora_group_size", NULL }, /* of use_qalora */
    { "runtime_config", NULL },
    { "eva_config", NULL }, /* initial values of the factors; check_init() checks if the base changed */
    { "corda_config", NULL },
    { "lora_ga_config", NULL },
    { "loftq_config", NULL },
    { "modules_to_save", NULL }, /* adapter_targets.c */
    { "trainable_token_indices", NULL },
    { "lora_bias", NULL },           /* follows from the tensors */
    { "ensure_weight_tying", NULL }, /* the tied weights have tensors of their own */
    { "freeze_*", NULL },            /* MindFormers, of training */
    { "*_init_type", NULL },
    { "*_compute_type", NULL },
    { "*_dtype", NULL },
    { "lora_a_init", NULL },
    { "lora_b_init", NULL },
    { NULL, NULL },
};

/* Some initializations change the weights of the base model too. Such an adapter does not fit the
 * original weights. */
static void check_init(struct config *c)
{
    static const char *const SAME_BASE[] = { "gaussian", "eva", "orthogonal", "mica" };
    const json_t *init = config_find(c, "init_lora_weights");
    char what[160];
    if (!init || json_is_boolean(init))
        return;
    const char *name = config_string_or(c, "init_lora_weights", "");
    for (size_t i = 0; i < sizeof SAME_BASE / sizeof *SAME_BASE; i++) {
        if (strcasecmp(name, SAME_BASE[i]) == 0)
            return;
    }
    snprintf(what, sizeof what,
             "\"%.40s\", which changes the weights of the base (save it with PEFT's "
             "path_initial_model_for_weight_conversion, or merge it),",
             name);
    config_unsupported(c, "init_lora_weights", what);
}

/* Settings of adapters that are computed in another way, with what to say about them. */
static const struct {
    const char *key, *what;
} UNSUPPORTED[] = {
    { "layer_replication", "layers that run twice are not supported; merge the adapter with PEFT" },
    { "target_parameters", "updates of experts are not supported; merge the adapter with PEFT" },
    { "alora_invocation_tokens", "aLoRA, which begins within a prompt, is not supported" },
    { "enable_lora", "updates of parts of a fused matrix are not supported" },
    { "use_qalora", "QALoRA is not supported" },
    { "use_bdlora", "block-diagonal factors are not supported" },
    { "kasa_config", "KaSA is not supported" },
    { "velora_config", "VeLoRA is not supported" },
    { "monteclora_config", "MonteCLoRA is not supported" },
    { "arrow_config", "Arrow, which mixes several adapters, is not supported" },
};

/* Settings of training and of the base model in configurations of prompts and prefixes. */
static const struct config_key PROMPT_KEYS[] = {
    { "task_type", NULL },
    { "inference_mode", NULL },
    { "auto_mapping", NULL },
    { "base_model_name_or_path", NULL },
    { "revision", NULL },
    { "peft_version", NULL },
    { "modules_to_save", NULL }, /* only unset: read_virtual_config() */
    { "token_dim", NULL },       /* the tensor's shape is checked */
    { "num_attention_heads", NULL },
    { "num_layers", NULL },
    { "encoder_*", NULL },         /* of the network that computed the saved rows */
    { "prefix_projection", NULL }, /* likewise */
    { "prompt_tuning_init*", NULL },
    { "init_weights", NULL },
    { "tokenizer_*", NULL },
    { "random_state", NULL },
    { NULL, NULL },
};

static void check_unsupported(const struct adapter_reader *r, struct config *c)
{
    for (size_t i = 0; i < sizeof UNSUPPORTED / sizeof *UNSUPPORTED; i++)
        if (c->status == TUTTI_OK && !is_unset(json_object_get(r->config, UNSUPPORTED[i].key)))
            c->status = error_set(c->err, TUTTI_E_UNSUPPORTED, "%s: %s is set: %s", r->config_path,
                                  UNSUPPORTED[i].key, UNSUPPORTED[i].what);
}

static void read_lora_config(struct adapter_reader *r, struct config *c)
{
    const char *bias = config_string_or(c, "bias", "none");
    r->rank = config_int_or(c, config_find(c, "r") ? "r" : "lora_rank", 1, LORA_MAX_RANK, 8);
    r->alpha = config_float_or(c, "lora_alpha", -1e6, 1e6, 8);
    r->is_rslora = config_bool_or(c, "use_rslora", false);
    r->is_dora = config_bool_or(c, "use_dora", false);
    check_init(c);
    if (c->status == TUTTI_OK && strcmp(bias, "none") != 0 && strcmp(bias, "all") != 0 &&
        strcmp(bias, "lora_only") != 0)
        c->status = error_set(c->err, TUTTI_E_FORMAT,
                              "%s: bias is \"%s\", expected \"none\", \"all\" or \"lora_only\"",
                              r->config_path, bias);
    check_unsupported(r, c);
}

static void read_virtual_config(struct adapter_reader *r, struct config *c)
{
    r->n_virtual = config_int(c, "num_virtual_tokens", 1, LIMIT_CONTEXT);
    if (c->status == TUTTI_OK && config_int_or(c, "num_transformer_submodules", 1, 2, 1) != 1)
        config_unsupported(c, "num_transformer_submodules", "prompts of an encoder");
    if (c->status == TUTTI_OK && !is_unset(json_object_get(r->config, "modules_to_save")))
        config_unsupported(c, "modules_to_save", "saved modules together with virtual tokens");
}

/* P-Tuning has a model's configuration, of which only the settings of the prefix matter. */
static enum tutti_status read_chatglm_config(struct adapter_reader *r, struct tutti_error *err)
{
    struct config c = { .root = r->config, .file = r->config_path, .prefix = "", .err = err };
    static const struct config_key ANY[] = { { "*", NULL }, { NULL, NULL } };
    static const struct config_key *const LISTS[] = { ANY, NULL };
    r->n_virtual = config_int(&c, "pre_seq_len", 1, LIMIT_CONTEXT);
    r->has_projection = config_bool_or(&c, "prefix_projection", false);
    bool is_mine = r->family == &FAMILY_CHATGLM || r->family == &FAMILY_CHATGLM_6B;
    if (c.status == TUTTI_OK && !is_mine)
        c.status = error_set(err, TUTTI_E_FORMAT, "%s: P-Tuning of ChatGLM, but the model's family is %s",
                             r->config_path, r->family->name);
    return config_end(&c, LISTS, "adapters");
}

static enum tutti_status read_peft_config(struct adapter_reader *r, struct tutti_error *err)
{
    struct config c = { .root = r->config, .file = r->config_path, .prefix = "", .err = err };
    static const char *const TYPES[] = { "LORA", "TRAINABLE_TOKENS", "PROMPT_TUNING", "P_TUNING",
                                         "PREFIX_TUNING" };
    static const enum adapter_kind KINDS[] = { ADAPTER_LORA, ADAPTER_TOKENS, ADAPTER_PROMPT, ADAPTER_PROMPT,
                                               ADAPTER_PREFIX };
    static const struct config_key TOKEN_KEYS[] = { { "token_indices", NULL },
                                                    { "init_weights", NULL },
                                                    { NULL, NULL } };
    enum { N_TYPES = sizeof TYPES / sizeof *TYPES };
    const char *type = config_string_or(
        &c, json_object_get(r->config, "peft_type") ? "peft_type" : "pet_type", "LORA");
    int k = 0;
    while (k < N_TYPES && strcasecmp(type, TYPES[k]) != 0)
        k++;
    if (c.status == TUTTI_OK && k == N_TYPES)
        c.status = error_set(err, TUTTI_E_UNSUPPORTED,
                             "%s: peft_type is \"%.40s\", expected LORA, TRAINABLE_TOKENS, PROMPT_TUNING, "
                             "P_TUNING or PREFIX_TUNING; merge other adapters with PEFT",
                             r->config_path, type);
    r->kind = k < N_TYPES ? KINDS[k] : ADAPTER_LORA;
    bool is_virtual = r->kind == ADAPTER_PROMPT || r->kind == ADAPTER_PREFIX;
    if (c.status == TUTTI_OK && is_virtual)
        read_virtual_config(r, &c);
    if (c.status == TUTTI_OK && r->kind == ADAPTER_LORA)
        read_lora_config(r, &c);
    const struct config_key *const lists[] = { is_virtual ? PROMPT_KEYS : KEYS,
                                               r->kind == ADAPTER_TOKENS ? TOKEN_KEYS : NULL, NULL };
    enum tutti_status st = config_end(&c, lists, "adapters");
    if (st == TUTTI_OK)
        st = adapter_check_lists(r, err);
    if (st == TUTTI_OK)
        st = check_patterns(r, "rank_pattern", err);
    return st == TUTTI_OK ? check_patterns(r, "alpha_pattern", err) : st;
}

double adapter_number_for(const struct adapter_reader *r, const char *key, const char *path, double fallback)
{
    json_t *patterns = json_object_get(r->config, key), *value;
    const char *pattern;
    json_object_foreach(patterns, pattern, value)
    {
        if (adapter_pattern_matches(pattern, path))
            return json_number_value(value);
    }
    return fallback;
}

/* ---- the folder ---- */

/* Finds the file under the first existing name of PEFT or MindFormers, or of ChatGLM's P-Tuning; if none
 * exists, the first name, for the error. False: the path is too long. */
static bool find_tensors(struct adapter_reader *r, const char *folder)
{
    static const char *const NAMES[] = { "adapter_model.safetensors", "adapter_model.bin",
                                         "adapter_model.ckpt" };
    static const char *const CHATGLM[] = { "pytorch_model.bin", "model.safetensors", "pytorch_model.bin" };
    enum { N_NAMES = sizeof NAMES / sizeof *NAMES };
    for (int i = 0; i <= N_NAMES; i++) {
        int n = snprintf(r->tensors_path, sizeof r->tensors_path, "%s/%s", folder,
                         (r->kind == ADAPTER_CHATGLM ? CHATGLM : NAMES)[i % N_NAMES]);
        if (n < 0 || (size_t)n >= sizeof r->tensors_path)
            return false;
        if (access(r->tensors_path, F_OK) == 0)
            break;
    }
    return true;
}

/* Loads adapter_config.json, or, without one, a config.json of P-Tuning. */
static enum tutti_status find_config(struct adapter_reader *r, const char *folder, struct tutti_error *err)
{
    int n = snprintf(r->config_path, sizeof r->config_path, "%s/adapter_config.json", folder);
    if (n < 0 || (size_t)n >= sizeof r->config_path)
        return error_set(err, TUTTI_E_ARGUMENT, "adapter: a path of more than %zu bytes",
                         sizeof r->config_path);
    if (access(r->config_path, F_OK) == 0)
        return load_config(r, err);
    if (snprintf(r->config_path, sizeof r->config_path, "%s/config.json", folder) > 0 &&
        access(r->config_path, F_OK) == 0) {
        enum tutti_status st = load_config(r, err);
        if (st != TUTTI_OK || !is_unset(json_object_get(r->config, "pre_seq_len"))) {
            r->kind = ADAPTER_CHATGLM;
            return st;
        }
        json_decref(r->config);
        r->config = NULL;
    }
    struct stat st;
    bool is_file = stat(folder, &st) == 0 && S_ISREG(st.st_mode);
    return error_set(err, TUTTI_E_NOT_FOUND,
                     "%s: expected a folder as PEFT saves it, with adapter_config.json and "
                     "adapter_model.safetensors, found %s",
                     folder,
                     is_file ? "a file (adapters in GGUF are not supported)" : "no adapter_config.json");
}

static enum tutti_status read_tensors(struct adapter_reader *r, struct tutti_error *err)
{
    struct tensor_set *file;
    enum tutti_status st = tensor_set_open(&file, r->tensors_path, err);
    if (st != TUTTI_OK)
        return st;
    st = r->kind == ADAPTER_LORA || r->kind == ADAPTER_TOKENS ? adapter_read_tensors(r, file, err)
                                                              : adapter_read_virtual(r, file, err);
    tensor_set_close(file);
    return st;
}

enum tutti_status adapter_file_open(struct adapter_file *out, const char *path, const struct model_desc *desc,
                                    const struct family *family, bool is_gguf, struct tutti_error *err)
{
    struct adapter_file file = { 0 };
    struct adapter_reader *r = calloc(1, sizeof *r);
    if (!r)
        return error_out_of_memory(path, err);
    r->desc = desc;
    r->family = family;
    r->is_gguf = is_gguf;
    r->out = &file;
    enum tutti_status st = find_config(r, path, err);
    if (st == TUTTI_OK && !find_tensors(r, path))
        st = error_set(err, TUTTI_E_ARGUMENT, "adapter: a path of more than %zu bytes",
                       sizeof r->tensors_path);
    if (st == TUTTI_OK)
        st = r->kind == ADAPTER_CHATGLM ? read_chatglm_config(r, err) : read_peft_config(r, err);
    if (st == TUTTI_OK)
        st = read_tensors(r, err);
    json_decref(r->config);
    free(r);
    if (st == TUTTI_OK)
        *out = file;
    else
        adapter_file_clear(&file);
    return st;
}

bool adapter_file_is_plain(const struct adapter_file *file)
{
    bool is_plain = file->n_biases == 0 && file->n_modules == 0 && file->tokens.n == 0 &&
                    file->output_tokens.n == 0 && file->embedding.rank == 0 && file->virtual.n == 0;
    for (int i = 0; i < file->n; i++)
        is_plain = is_plain && !file->updates[i].magnitudes;
    return is_plain;
}

static void clear_tokens(struct adapter_tokens *tokens)
{
    free(tokens->ids);
    free(tokens->rows);
}

void adapter_file_clear(struct adapter_file *file)
{
    for (int i = 0; i < file->n; i++) {
        free(file->updates[i].a);
        free(file->updates[i].b);
        free(file->updates[i].magnitudes);
    }
    for (int i = 0; i < file->n_biases; i++)
        free(file->biases[i].values);
    for (int i = 0; i < file->n_modules; i++) {
        free(file->modules[i].rows);
        free(file->modules[i].bias);
    }
    clear_tokens(&file->tokens);
    clear_tokens(&file->output_tokens);
    free(file->embedding.a);
    free(file->embedding.b);
    free(file->virtual.rows);
    free(file->virtual.keys);
    free(file->updates);
    free(file->biases);
    free(file->modules);
    *file = (struct adapter_file){ 0 };
}
