/* Reads an adapter's folder: checks its configuration and tensors against the model. */
#include "model/adapters/adapter_names.h"

#include "checkpoint/json_file.h"
#include "checkpoint/tensor_set.h"
#include "model/weights/weights.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    PATTERN_STEPS = 100000, /* limit for matching one pattern with one path */
    PATTERN_DEPTH = 1000,
    LIMIT_PATTERNS = 4096,
};

struct adapter_reader {
    const struct model_desc *desc;
    const struct family *family;
    bool is_gguf;
    char config_path[PATH_MAX], tensors_path[PATH_MAX];
    json_t *config;
    double rank, alpha;
    bool is_rslora;
    struct adapter_file *out;
};

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
    { "target_modules", NULL }, /* follows from the tensors */
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
    { "ensure_weight_tying", NULL }, /* of modules_to_save */
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

static enum tutti_status read_config(struct adapter_reader *r, struct tutti_error *err)
{
    struct config c = { .root = r->config, .file = r->config_path, .prefix = "", .err = err };
    const char *type = config_string_or(
        &c, json_object_get(r->config, "peft_type") ? "peft_type" : "pet_type", "LORA");
    const char *bias = config_string_or(&c, "bias", "none");
    static const char *const UNSUPPORTED[] = { "use_dora",
                                               "modules_to_save",
                                               "lora_bias",
                                               "layer_replication",
                                               "trainable_token_indices",
                                               "target_parameters",
                                               "enable_lora",
                                               "use_qalora",
                                               "alora_invocation_tokens",
                                               "use_bdlora",
                                               "kasa_config",
                                               "velora_config",
                                               "monteclora_config",
                                               "arrow_config" };
    r->rank = config_int_or(&c, config_find(&c, "r") ? "r" : "lora_rank", 1, LORA_MAX_RANK, 8);
    r->alpha = config_float_or(&c, "lora_alpha", -1e6, 1e6, 8);
    r->is_rslora = config_bool_or(&c, "use_rslora", false);
    check_init(&c);
    if (c.status == TUTTI_OK && strcmp(type, "LORA") != 0 && strcmp(type, "lora") != 0)
        c.status = error_set(err, TUTTI_E_UNSUPPORTED, "%s: peft_type is \"%s\", expected \"LORA\"",
                             r->config_path, type);
    if (c.status == TUTTI_OK && strcmp(bias, "none") != 0)
        c.status = error_set(err, TUTTI_E_UNSUPPORTED, "%s: bias is \"%s\", expected \"none\"",
                             r->config_path, bias);
    for (size_t i = 0; i < sizeof UNSUPPORTED / sizeof *UNSUPPORTED; i++)
        if (c.status == TUTTI_OK && !is_unset(json_object_get(r->config, UNSUPPORTED[i])))
            c.status = error_set(err, TUTTI_E_UNSUPPORTED,
                                 "%s: %s is set: only plain low-rank updates of linear layers are run",
                                 r->config_path, UNSUPPORTED[i]);
    static const struct config_key *const LISTS[] = { KEYS, NULL };
    enum tutti_status st = config_end(&c, LISTS, "adapters");
    if (st == TUTTI_OK)
        st = check_patterns(r, "rank_pattern", err);
    return st == TUTTI_OK ? check_patterns(r, "alpha_pattern", err) : st;
}

/* As in PEFT: the expression must match the whole path, or its end after a dot. */
static bool pattern_matches(const char *pattern, const char *path)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "^(?:(.*\\.)?(%s)$)", pattern), code;
    PCRE2_SIZE at;
    if (n < 0 || (size_t)n >= sizeof text)
        return false;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)n, PCRE2_UTF, &code, &at, NULL);
    pcre2_match_data *data = compiled ? pcre2_match_data_create_from_pattern(compiled, NULL) : NULL;
    pcre2_match_context *limits = data ? pcre2_match_context_create(NULL) : NULL;
    bool is_match = false;
    if (limits) {
        pcre2_set_match_limit(limits, PATTERN_STEPS);
        pcre2_set_depth_limit(limits, PATTERN_DEPTH);
        is_match = pcre2_match(compiled, (PCRE2_SPTR)path, strlen(path), 0, 0, data, limits) >= 0;
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    return is_match;
}

static double number_for(const struct adapter_reader *r, const char *key, const char *path, double fallback)
{
    json_t *patterns = json_object_get(r->config, key), *value;
    const char *pattern;
    json_object_foreach(patterns, pattern, value)
    {
        if (pattern_matches(pattern, path))
            return json_number_value(value);
    }
    return fallback;
}

/* ---- tensors ---- */

/* A tensor and the path of its linear layer. */
struct adapter_entry {
    char *path;
    enum factor factor;
    const struct tensor *tensor;
};

static int compare_entries(const void *a, const void *b)
{
    const struct adapter_entry *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    return order != 0 ? order : (x->factor > y->factor) - (x->factor < y->factor);
}

static enum tutti_status no_factor(const struct tensor *t, struct tutti_error *err)
{
    const char *what = strstr(t->name, "lora_embedding_") ? "an update of the embedding"
                       : strstr(t->name, "lora_magnitude_vector")
                           ? "DoRA"
                           : "a whole tensor in addition to the low-rank updates";
    return error_set(err, TUTTI_E_UNSUPPORTED, "%s: tensor %s: %s, expected only pairs of lora_A and lora_B",
                     t->file, t->name, what);
}

/* A copy of a base weight has no effect if its shape fits; otherwise the adapter is for another
 * model. */
static enum tutti_status check_base(const struct adapter_reader *r, const struct tensor *t, const char *path,
                                    struct tutti_error *err)
{
    struct adapter_place place;
    if (adapter_find_place(&place, path, r->desc, r->family, r->is_gguf) && t->n_dims == 2 &&
        t->shape[0] == place.n_out && t->shape[1] == place.n_in)
        return TUTTI_OK;
    return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: it is not as large as the model's own", t->file,
                     t->name);
}

/* *n_entries: only the factors. */
static enum tutti_status list_entries(struct adapter_reader *r, const struct tensor_set *file,
                                      struct adapter_entry *entries, size_t *n_entries,
                                      struct tutti_error *err)
{
    char path[LIMIT_TENSOR_NAME_BYTES];
    size_t n = file->n;
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &file->tensors[i];
        struct adapter_entry *entry = &entries[*n_entries];
        *entry = (struct adapter_entry){ .tensor = t, .factor = adapter_split_name(path, t->name) };
        if (entry->factor == FACTOR_NONE)
            return no_factor(t, err);
        if (entry->factor == FACTOR_BASE) {
            enum tutti_status st = check_base(r, t, path, err);
            if (st != TUTTI_OK)
                return st;
            continue;
        }
        entry->path = strdup(path);
        if (!entry->path)
            return error_out_of_memory(r->tensors_path, err);
        ++*n_entries;
    }
    qsort(entries, *n_entries, sizeof *entries, compare_entries);
    return TUTTI_OK;
}

/* Checks one pair of factors against its place in the model. */
static enum tutti_status check_pair(const struct adapter_reader *r, const struct adapter_place *place,
                                    const char *path, const struct tensor *a, const struct tensor *b,
                                    struct tutti_error *err)
{
    const struct tensor *both[] = { a, b };
    if (place->layer >= r->desc->n_layers)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: layer %d, but the model has %d", a->file,
                         a->name, place->layer, r->desc->n_layers);
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = both[i];
        if (t->n_dims != 2)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: %d dimensions, expected 2", t->file,
                             t->name, t->n_dims);
        if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: type %s, expected f32, f16 or bf16",
                             t->file, t->name, dtype_name(t->dtype));
    }
    double rank = number_for(r, "rank_pattern", path, r->rank);
    if (a->shape[0] < 1 || a->shape[0] > LORA_MAX_RANK || (double)a->shape[0] != rank ||
        a->shape[1] != place->n_in)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: shape [%" PRId64 ", %" PRId64
                         "], expected [%g, %d] (the configuration's rank, the model's input)",
                         a->file, a->name, a->shape[0], a->shape[1], rank, place->n_in);
    if (b->shape[0] != place->n_out || b->shape[1] != a->shape[0])
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: shape [%" PRId64 ", %" PRId64 "], expected [%d, %" PRId64
                         "] (the model's output, the rank)",
                         b->file, b->name, b->shape[0], b->shape[1], place->n_out, a->shape[0]);
    return TUTTI_OK;
}

/* Copies B's rows in the order of the loaded model. */
static void order_rows(float *to, const float *from, const struct adapter_place *place, int rank)
{
    int head_dim = place->head_dim;
    for (int row = 0; row < place->n_out; row++) {
        int64_t source = row;
        if (row < place->n_permuted) {
            int j = row % head_dim;
            source = row - j + j / 2 + j % 2 * (head_dim / 2);
        }
        if (place->is_by_head)
            source = weights_by_head_row(place->n_out, head_dim, source);
        memcpy(to + (size_t)row * (size_t)rank, from + (size_t)source * (size_t)rank,
               (size_t)rank * sizeof *to);
    }
}

static enum tutti_status read_pair(struct adapter_reader *r, const char *path, const struct tensor *a,
                                   const struct tensor *b, struct tutti_error *err)
{
    struct adapter_place place;
    if (!adapter_find_place(&place, path, r->desc, r->family, r->is_gguf))
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tensor %s: a %s model has no linear layer %s that can be adapted", a->file,
                         a->name, r->family->name, path);
    enum tutti_status st = check_pair(r, &place, path, a, b, err);
    if (st != TUTTI_OK)
        return st;
    int rank = (int)a->shape[0];
    double alpha = number_for(r, "alpha_pattern", path, r->alpha);
    float scale = (float)(alpha / (r->is_rslora ? sqrt(rank) : rank));
    struct adapter_update *u = &r->out->updates[r->out->n++];
    *u = (struct adapter_update){ .slot = place.slot,
                                  .layer = place.layer,
                                  .out_begin = place.out_begin,
                                  .n_out = place.n_out,
                                  .n_in = place.n_in,
                                  .rank = rank,
                                  .scale = scale,
                                  .a = weights_to_floats(a, rank),
                                  .b = malloc((size_t)place.n_out * (size_t)rank * sizeof(float)) };
    float *stored = weights_to_floats(b, place.n_out);
    if (u->a && u->b && stored)
        order_rows(u->b, stored, &place, rank);
    else
        st = error_out_of_memory(r->tensors_path, err);
    free(stored);
    return st;
}

static enum tutti_status read_pairs(struct adapter_reader *r, const struct adapter_entry *entries, size_t n,
                                    struct tutti_error *err)
{
    r->out->updates = calloc(n / 2 + 1, sizeof *r->out->updates);
    if (!r->out->updates)
        return error_out_of_memory(r->tensors_path, err);
    for (size_t i = 0; i < n; i += 2) {
        const struct adapter_entry *a = &entries[i], *b = i + 1 < n ? &entries[i + 1] : NULL;
        if (!b || strcmp(a->path, b->path) != 0 || a->factor != FACTOR_A || b->factor != FACTOR_B)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tensor %s: it is not one of a pair of lora_A and lora_B", a->tensor->file,
                             a->tensor->name);
        enum tutti_status st = read_pair(r, a->path, a->tensor, b->tensor, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

static int compare_updates(const void *a, const void *b)
{
    const struct adapter_update *x = a, *y = b;
    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
           : x->slot != y->slot ? (x->slot > y->slot) - (x->slot < y->slot)
                                : (x->out_begin > y->out_begin) - (x->out_begin < y->out_begin);
}

/* Names of several layouts could update a matrix twice. */
static enum tutti_status check_overlaps(const struct adapter_reader *r, struct tutti_error *err)
{
    qsort(r->out->updates, (size_t)r->out->n, sizeof *r->out->updates, compare_updates);
    for (int i = 1; i < r->out->n; i++) {
        const struct adapter_update *u = &r->out->updates[i], *before = u - 1;
        if (u->layer == before->layer && u->slot == before->slot &&
            u->out_begin < before->out_begin + before->n_out)
            return error_set(
                err, TUTTI_E_FORMAT,
                "%s: layer %d: two pairs of lora_A and lora_B change the same rows of one matrix",
                r->tensors_path, u->layer);
    }
    return TUTTI_OK;
}

/* Each target of a list must have tensors: otherwise the file is incomplete. */
static enum tutti_status check_targets(const struct adapter_reader *r, const struct adapter_entry *entries,
                                       size_t n, struct tutti_error *err)
{
    const json_t *targets = json_object_get(r->config, "target_modules");
    for (size_t i = 0; i < json_array_size(targets); i++) {
        const char *target = json_string_value(json_array_get(targets, i));
        if (!target)
            return error_set(err, TUTTI_E_FORMAT, "%s: target_modules[%zu]: expected a string",
                             r->config_path, i);
        size_t n_target = strlen(target), k = 0;
        for (; k < n; k++) {
            size_t n_path = strlen(entries[k].path);
            if (n_path >= n_target && strcmp(entries[k].path + n_path - n_target, target) == 0 &&
                (n_path == n_target || entries[k].path[n_path - n_target - 1] == '.'))
                break;
        }
        if (k == n)
            return error_set(err, TUTTI_E_FORMAT, "%s: target_modules names %s, but %s has no tensor for it",
                             r->config_path, target, r->tensors_path);
    }
    return TUTTI_OK;
}

/* Finds the file under the first existing name of PEFT or MindFormers; if none exists, the first
 * name, for the error. False: the path is too long. */
static bool find_tensors(struct adapter_reader *r, const char *folder)
{
    static const char *const NAMES[] = { "safetensors", "bin", "ckpt" };
    enum { N_NAMES = sizeof NAMES / sizeof *NAMES };
    for (int i = 0; i <= N_NAMES; i++) {
        int n = snprintf(r->tensors_path, sizeof r->tensors_path, "%s/adapter_model.%s", folder,
                         NAMES[i % N_NAMES]);
        if (n < 0 || (size_t)n >= sizeof r->tensors_path)
            return false;
        if (access(r->tensors_path, F_OK) == 0)
            break;
    }
    return true;
}

static enum tutti_status read_tensors(struct adapter_reader *r, struct tutti_error *err)
{
    struct tensor_set *file;
    enum tutti_status st = tensor_set_open(&file, r->tensors_path, err);
    if (st != TUTTI_OK)
        return st;
    size_t n = 0;
    struct adapter_entry *entries = calloc(file->n + 1, sizeof *entries);
    st = entries ? list_entries(r, file, entries, &n, err) : error_out_of_memory(r->tensors_path, err);
    if (st == TUTTI_OK && n == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: no tensors, expected pairs of lora_A and lora_B",
                       r->tensors_path);
    if (st == TUTTI_OK)
        st = read_pairs(r, entries, n, err);
    if (st == TUTTI_OK)
        st = check_overlaps(r, err);
    if (st == TUTTI_OK)
        st = check_targets(r, entries, n, err);
    for (size_t i = 0; entries && i < n; i++)
        free(entries[i].path);
    free(entries);
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
    int n = snprintf(r->config_path, sizeof r->config_path, "%s/adapter_config.json", path);

    enum tutti_status st = TUTTI_OK;
    if (n < 0 || (size_t)n >= sizeof r->config_path || !find_tensors(r, path))
        st = error_set(err, TUTTI_E_ARGUMENT, "adapter: a path of more than %zu bytes",
                       sizeof r->config_path);
    if (st == TUTTI_OK)
        st = load_config(r, err);
    if (st == TUTTI_OK)
        st = read_config(r, err);
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

void adapter_file_clear(struct adapter_file *file)
{
    for (int i = 0; i < file->n; i++) {
        free(file->updates[i].a);
        free(file->updates[i].b);
    }
    free(file->updates);
    *file = (struct adapter_file){ 0 };
}
