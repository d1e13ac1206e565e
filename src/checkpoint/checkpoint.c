/* Detects a checkpoint's format, opens its files, and indexes all tensors by name. */
#include "checkpoint/checkpoint.h"

#include "base/buf.h"
#include "base/containers/array.h"
#include "base/containers/key_map.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/gguf/gguf.h"
#include "checkpoint/gguf/row_ints.h"
#include "checkpoint/json_file.h"
#include "checkpoint/mindspore/mindformers.h"
#include "checkpoint/quantized/quantized.h"
#include "checkpoint/shards/shards.h"
#include "checkpoint/tensor_set.h"
#include "checkpoint/text_part.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct checkpoint {
    char *path;   /* as given */
    char *folder; /* NULL for GGUF */
    json_t *config;
    char *config_path;       /* NULL for GGUF */
    char *quantization_path; /* of a file of its own with the settings of quantized weights; NULL: none */
    struct tensor_set **sets;
    int n_sets;
    int rank;                      /* the open rank of a sharded checkpoint; -1: all */
    const struct tensor **tensors; /* [n_tensors], in the files' order */
    size_t n_tensors;
    uint8_t *taken; /* [n_tensors]: set by checkpoint_take() */
    bool is_quiet;
    struct key_map by_name;    /* indices of tensors, by the hash of their name */
    bool has_vision;           /* only the language part is there */
    struct text_tensor *text;  /* [n_tensors]: its tensors with their names; NULL: others */
    struct row_ints *row_ints; /* matrices that replace their integers in tensors */
    size_t n_row_ints;
    struct quantized *quantized; /* the same for other methods; NULL: none */
};

/* A tensor under another name. */
struct text_tensor {
    struct tensor tensor;
    char name[LIMIT_TENSOR_NAME_BYTES];
};

static char *checkpoint_join(const char *folder, const char *file)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, file) < 0 ? NULL : path;
}

static bool file_exists(const char *folder, const char *file)
{
    char path[PATH_MAX]; /* no allocation: out of memory must not look like a missing file */
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

/* Makes room for one more set. */
static enum tutti_status grow_sets(struct checkpoint *ck, struct tutti_error *err)
{
    if (!array_resize(&ck->sets, (size_t)ck->n_sets + 1, sizeof(struct tensor_set *)))
        return error_out_of_memory(ck->path, err);
    return TUTTI_OK;
}

static enum tutti_status open_set(struct checkpoint *ck, const char *path, struct tutti_error *err)
{
    enum tutti_status st = grow_sets(ck, err);
    if (st == TUTTI_OK)
        st = tensor_set_open(&ck->sets[ck->n_sets], path, err);
    ck->n_sets += st == TUTTI_OK;
    return st;
}

static enum tutti_status open_in_folder(struct checkpoint *ck, const char *file, struct tutti_error *err)
{
    char *path = checkpoint_join(ck->folder, file);
    enum tutti_status st = path ? open_set(ck, path, err) : error_out_of_memory(ck->path, err);
    free(path);
    return st;
}

/* A shard's name comes from an untrusted file: it must name a file in this folder. */
static bool is_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\') &&
           strlen(name) < 256;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum tutti_status open_index_files(struct checkpoint *ck, const char *index_path, const json_t *map,
                                          struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    size_t n = json_object_size(map);
    if (n == 0 || n > LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT, "%s: weight_map is missing, empty or no object of tensor names",
                         index_path);
    const char **files = malloc(n * sizeof *files);
    if (!files)
        return error_out_of_memory(ck->path, err);
    size_t n_files = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const char *file = json_string_value(value);
        if (!file || !is_plain_name(file)) {
            st = error_set(
                err, TUTTI_E_FORMAT,
                "%s: tensor %s: expected the plain name of a file in the same folder, found \"%.64s\"",
                index_path, name, file ? file : "(no string)");
            goto done;
        }
        files[n_files++] = file;
    }
    qsort(files, n_files, sizeof *files, compare_strings);
    for (size_t i = 0; i < n_files && st == TUTTI_OK; i++) {
        if (i > 0 && strcmp(files[i], files[i - 1]) == 0)
            continue;
        if (ck->n_sets >= LIMIT_SHARDS)
            st = error_set(err, TUTTI_E_FORMAT, "%s: more than %d files", index_path, LIMIT_SHARDS);
        else
            st = open_in_folder(ck, files[i], err);
    }
done:
    free((void *)files);
    return st;
}

/* The index of a tensor; -1: none. */
static int32_t find_by_name(const struct checkpoint *ck, const char *name)
{
    uint64_t key = hash64_string(0, name), at = key;
    int32_t i;
    while ((i = key_map_next(&ck->by_name, key, &at)) >= 0 && strcmp(ck->tensors[i]->name, name) != 0)
        ;
    return i;
}

static enum tutti_status index_tensor(struct checkpoint *ck, const struct tensor *tensor,
                                      struct tutti_error *err)
{
    int32_t other = find_by_name(ck, tensor->name);
    if (other >= 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s: duplicate, it is also in %s", tensor->file,
                         tensor->name, ck->tensors[other]->file);
    if (!key_map_add(&ck->by_name, hash64_string(0, tensor->name), (int32_t)ck->n_tensors))
        return error_out_of_memory(ck->path, err);
    ck->tensors[ck->n_tensors++] = tensor;
    return TUTTI_OK;
}

/* Makes an empty index for n tensors. */
static enum tutti_status index_begin(struct checkpoint *ck, size_t n, struct tutti_error *err)
{
    ck->tensors = calloc(n + 1, sizeof *ck->tensors);
    ck->taken = calloc(n + 1, sizeof *ck->taken);
    return ck->tensors && ck->taken ? TUTTI_OK : error_out_of_memory(ck->path, err);
}

static enum tutti_status index_tensors(struct checkpoint *ck, struct tutti_error *err)
{
    size_t n = 0;
    for (int i = 0; i < ck->n_sets; i++)
        n += ck->sets[i]->n;
    if (n > LIMIT_TENSORS)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu tensors, expected at most %d", ck->path, n,
                         LIMIT_TENSORS);
    enum tutti_status st = index_begin(ck, n, err);
    for (int k = 0; k < ck->n_sets && st == TUTTI_OK; k++) {
        for (size_t i = 0; i < ck->sets[k]->n && st == TUTTI_OK; i++)
            st = index_tensor(ck, &ck->sets[k]->tensors[i], err);
    }
    return st;
}

/* The tensor of row scales for a tensor of integers; NULL: not such a tensor. */
static const struct tensor *find_scale(const struct checkpoint *ck, const struct tensor *t)
{
    char name[LIMIT_TENSOR_NAME_BYTES + sizeof "_scale"];
    if (t->dtype != DTYPE_I8 || !text_ends_with(t->name, ".weight"))
        return NULL;
    snprintf(name, sizeof name, "%s_scale", t->name);
    return checkpoint_find(ck, name);
}

/* ChatGLM's configuration contains the number of bits of its integers. */
static enum tutti_status wrap_row_ints(struct checkpoint *ck, struct tutti_error *err)
{
    json_int_t n_bits = json_integer_value(json_object_get(ck->config, "quantization_bit"));
    if (n_bits != 4 && n_bits != 8)
        return TUTTI_OK;
    size_t n = 0;
    for (size_t i = 0; i < ck->n_tensors; i++)
        n += find_scale(ck, ck->tensors[i]) != NULL;
    ck->row_ints = calloc(n + 1, sizeof *ck->row_ints);
    if (!ck->row_ints)
        return error_out_of_memory(ck->path, err);
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < ck->n_tensors && st == TUTTI_OK; i++) {
        const struct tensor *scale = find_scale(ck, ck->tensors[i]);
        if (!scale)
            continue;
        struct row_ints *r = &ck->row_ints[ck->n_row_ints++];
        st = row_ints_init(r, ck->tensors[i], scale, (int)n_bits, err);
        if (st == TUTTI_OK)
            ck->tensors[i] = &r->tensor; /* same name, so the index stays valid */
    }
    return st;
}

/* Indexes again: each replaced tensor in its place, without the tensors that it is made of, which
 * are marked as used. replaced: [n_tensors], NULL for a tensor that stays. */
static enum tutti_status index_replaced(struct checkpoint *ck, const struct tensor *const *replaced,
                                        struct tutti_error *err)
{
    const struct tensor **before = ck->tensors;
    uint8_t *is_used = ck->taken;
    size_t n = ck->n_tensors;
    key_map_clear(&ck->by_name);
    ck->n_tensors = 0;
    enum tutti_status st = index_begin(ck, n, err);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        const struct tensor *t = replaced[i] ? replaced[i] : is_used[i] ? NULL : before[i];
        if (t)
            st = index_tensor(ck, t, err);
    }
    free((void *)before);
    free(is_used);
    return st;
}

static enum tutti_status wrap_quantized(struct checkpoint *ck, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (!ck->quantized)
        return st;
    const struct tensor **replaced = calloc(ck->n_tensors + 1, sizeof *replaced);
    if (!replaced)
        return error_out_of_memory(ck->path, err);
    for (size_t i = 0; i < ck->n_tensors && st == TUTTI_OK; i++)
        st = quantized_wrap(ck->quantized, ck, ck->tensors[i], &replaced[i], err);
    if (st == TUTTI_OK)
        st = index_replaced(ck, replaced, err);
    free((void *)replaced);
    return st;
}

/* Keeps the tensors of the language part, under the names that they have in a model that generates text. */
static enum tutti_status take_text_part(struct checkpoint *ck, struct tutti_error *err)
{
    size_t n = ck->n_tensors, n_text = 0;
    enum tutti_status st = TUTTI_OK;
    if (!ck->has_vision && !checkpoint_find(ck, BARE_EMBEDDING))
        return TUTTI_OK;
    ck->text = calloc(n + 1, sizeof *ck->text);
    if (!ck->text)
        return error_out_of_memory(ck->path, err);
    key_map_clear(&ck->by_name);
    ck->n_tensors = 0;
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        struct text_tensor *t = &ck->text[n_text];
        const char *name = text_part_name(ck->tensors[i]->name, t->name, sizeof t->name);
        if (!name)
            continue;
        t->tensor = *ck->tensors[i];
        t->tensor.name = name;
        n_text++;
        st = index_tensor(ck, &t->tensor, err);
    }
    return st;
}

/* Some indexes name a tied output matrix, which no file has; if it is needed, loading reports it. */
static enum tutti_status check_mapped_tensors(const struct checkpoint *ck, const char *index_path,
                                              const json_t *map, struct tutti_error *err)
{
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        if (!checkpoint_find(ck, name) && !text_ends_with(name, "lm_head.weight"))
            return error_set(err, TUTTI_E_FORMAT, "%s: tensor %s is not in %s, nor in another file",
                             index_path, name, json_string_value(file));
    }
    return TUTTI_OK;
}

/* Reads name, a YAML file of the folder. found: the name of an earlier file with a configuration;
 * a second one must be equal. */
static enum tutti_status read_yaml(struct checkpoint *ck, const char *name, char *found, size_t size,
                                   struct tutti_error *err)
{
    json_t *config = NULL;
    char *path = checkpoint_join(ck->folder, name);
    enum tutti_status st = path ? mindformers_read(&config, path, err) : error_out_of_memory(ck->path, err);
    if (config && ck->config && !json_equal(config, ck->config))
        st = error_set(err, TUTTI_E_FORMAT, "%s: %s and %s describe different models", ck->folder,
                       strcmp(name, found) < 0 ? name : found, strcmp(name, found) < 0 ? found : name);
    if (config && !ck->config) {
        ck->config = json_incref(config);
        ck->config_path = path;
        path = NULL;
        snprintf(found, size, "%s", name);
    }
    json_decref(config);
    free(path);
    return st;
}

/* Reads the YAML files that MindFormers writes next to its weights. NAME.yaml next to NAME.ckpt
 * has priority. */
static enum tutti_status read_yamls(struct checkpoint *ck, struct tutti_error *err)
{
    char found[NAME_MAX + 1] = "", own[NAME_MAX + 1] = "";
    const char *slash = strrchr(ck->path, '/'), *name = slash ? slash + 1 : ck->path;
    enum tutti_status st = TUTTI_OK;
    if (text_ends_with(name, ".ckpt") &&
        snprintf(own, sizeof own, "%.*s.yaml", (int)(strlen(name) - 5), name) < (int)sizeof own &&
        file_exists(ck->folder, own))
        st = read_yaml(ck, own, found, sizeof found, err);
    DIR *folder = st == TUTTI_OK && !ck->config ? opendir(ck->folder) : NULL;
    if (!folder)
        return st; /* if the folder cannot be read, looking for weights reports it */
    for (const struct dirent *entry; st == TUTTI_OK && (entry = readdir(folder));) {
        if (entry->d_name[0] != '.' &&
            (text_ends_with(entry->d_name, ".yaml") || text_ends_with(entry->d_name, ".yml")))
            st = read_yaml(ck, entry->d_name, found, sizeof found, err);
    }
    closedir(folder);
    return st;
}

/* Files with the settings of quantized weights, of uploads whose config.json says nothing of them. */
static const struct {
    const char *file, *key; /* the settings are the object under key; NULL: the file itself */
    const char *method;     /* quant_method, where the settings do not name it */
} QUANTIZATION_FILES[] = {
    { "quantize_config.json", NULL, "gptq" },               /* older uploads of AutoGPTQ */
    { "hf_quant_config.json", "quantization", "modelopt" }, /* NVIDIA's Model Optimizer */
};

/* Makes settings those of config.json; *is_taken false: they are of keys and values only, for which Model Optimizer names
 * no algorithm. False: out of memory. */
static bool take_quantization(struct checkpoint *ck, json_t *settings, const char *method, bool *is_taken)
{
    *is_taken = json_is_object(settings) && !json_is_null(json_object_get(settings, "quant_algo"));
    return !*is_taken || ((json_object_get(settings, "quant_method") ||
                           json_object_set_new(settings, "quant_method", json_string(method)) == 0) &&
                          json_object_set(ck->config, "quantization_config", settings) == 0);
}

/* Sets ck->quantization_path if a file of its own has the settings. */
static enum tutti_status read_quantization_files(struct checkpoint *ck, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < sizeof QUANTIZATION_FILES / sizeof *QUANTIZATION_FILES; i++) {
        json_t *root = NULL;
        bool is_taken = false;
        if (st != TUTTI_OK || json_object_get(ck->config, "quantization_config"))
            break;
        char *path = checkpoint_join(ck->folder, QUANTIZATION_FILES[i].file);
        st = path ? json_file_load(path, &root, err) : error_out_of_memory(ck->path, err);
        json_t *settings = QUANTIZATION_FILES[i].key ? json_object_get(root, QUANTIZATION_FILES[i].key)
                                                     : root;
        if (st == TUTTI_OK && !take_quantization(ck, settings, QUANTIZATION_FILES[i].method, &is_taken))
            st = error_out_of_memory(path, err);
        json_decref(root);
        if (is_taken)
            ck->quantization_path = path;
        else
            free(path);
    }
    return st;
}

/* ck->config stays NULL if the folder has none. */
static enum tutti_status read_config(struct checkpoint *ck, struct tutti_error *err)
{
    char *path = checkpoint_join(ck->folder, "config.json");
    enum tutti_status st = path ? json_file_load(path, &ck->config, err) : error_out_of_memory(ck->path, err);
    if (st == TUTTI_OK && ck->config) {
        ck->config_path = path;
        if (!text_part_unwrap(ck->config, &ck->has_vision))
            return error_out_of_memory(path, err);
        st = read_quantization_files(ck, err);
        if (st == TUTTI_OK)
            st = quantized_open(&ck->quantized, ck->config, ck->quantization_path, path, err);
        return st == TUTTI_OK ? mindformers_translate(ck->config, path, err) : st;
    }
    free(path);
    return st == TUTTI_OK ? read_yamls(ck, err) : st;
}

static enum tutti_status open_indexed(struct checkpoint *ck, const char *file, struct tutti_error *err)
{
    json_t *index = NULL;
    char *path = checkpoint_join(ck->folder, file);
    enum tutti_status st = path ? json_file_load(path, &index, err) : error_out_of_memory(ck->path, err);
    if (st == TUTTI_OK && !index) /* it existed a moment ago */
        st = error_set(err, TUTTI_E_NOT_FOUND, "%s: it is gone", path);
    const json_t *map = json_object_get(index, "weight_map");
    if (st == TUTTI_OK)
        st = open_index_files(ck, path, map, err);
    if (st == TUTTI_OK)
        st = index_tensors(ck, err);
    if (st == TUTTI_OK)
        st = check_mapped_tensors(ck, path, map, err);
    json_decref(index);
    free(path);
    return st;
}

/* Finds the folder's only file with an ending of the format. name: "" if there is none. */
static enum tutti_status find_only_file(const struct checkpoint *ck, const struct checkpoint_format *format,
                                        char *name, size_t size, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    DIR *folder = opendir(ck->folder);
    name[0] = '\0';
    if (!folder)
        return error_set(err, TUTTI_E_IO, "%s: %s", ck->folder, strerror(errno));
    for (const struct dirent *entry; st == TUTTI_OK && (entry = readdir(folder));) {
        if (!checkpoint_format_has_file(format, entry->d_name))
            continue;
        if (name[0])
            st = error_set(err, TUTTI_E_FORMAT,
                           "%s: both %s and %s are here; give the path of the one that is meant", ck->folder,
                           strcmp(name, entry->d_name) < 0 ? name : entry->d_name,
                           strcmp(name, entry->d_name) < 0 ? entry->d_name : name);
        snprintf(name, size, "%s", entry->d_name);
    }
    closedir(folder);
    return st;
}

/* Every rank has the configuration and the tokenizer. rank -1: all ranks, with those of rank_0. */
static enum tutti_status open_sharded(struct checkpoint *ck, int rank, struct tutti_error *err)
{
    char name[32];
    enum tutti_status st = grow_sets(ck, err);
    if (st == TUTTI_OK)
        st = rank < 0 ? tensor_set_open(&ck->sets[0], ck->path, err)
                      : shards_open_rank(&ck->sets[0], ck->path, rank, err);
    if (st != TUTTI_OK)
        return st;
    ck->n_sets = 1;
    ck->rank = rank;
    snprintf(name, sizeof name, "rank_%d", rank < 0 ? 0 : rank);
    free(ck->folder);
    ck->folder = checkpoint_join(ck->path, name);
    st = ck->folder ? read_config(ck, err) : error_out_of_memory(ck->path, err);
    if (st == TUTTI_OK && !ck->config)
        st = error_set(err, TUTTI_E_NOT_FOUND, "%s: there is no config.json", ck->folder);
    return st;
}

/* Refuses a rank's folder, which looks like a model's. */
static enum tutti_status check_not_a_rank(const struct checkpoint *ck, struct tutti_error *err)
{
    struct shard_manifest *m;
    if (!file_exists(ck->folder, SHARD_MANIFEST_FILE))
        return TUTTI_OK;
    enum tutti_status st = shard_manifest_read(&m, ck->folder, err);
    if (st != TUTTI_OK)
        return st;
    if (m && m->n_ranks > 1)
        st = error_set(err, TUTTI_E_ARGUMENT,
                       "%s: it holds rank %d of %d; give its parent folder as the model", ck->path, m->rank,
                       m->n_ranks);
    shard_manifest_free(m);
    return st;
}

/* Opens the weights of a format, if the folder has them. A single file has priority over an index. */
static enum tutti_status open_format(struct checkpoint *ck, const struct checkpoint_format *format,
                                     bool *is_there, struct tutti_error *err)
{
    char only[NAME_MAX + 1] = "";
    enum tutti_status st = TUTTI_OK;
    *is_there = true;
    if (format->is_folder && format->is_folder(ck->folder))
        return open_set(ck, ck->folder, err);
    if (format->file && file_exists(ck->folder, format->file))
        return open_in_folder(ck, format->file, err);
    if (format->index && file_exists(ck->folder, format->index))
        return open_indexed(ck, format->index, err);
    if (format->is_only_file)
        st = find_only_file(ck, format, only, sizeof only, err);
    *is_there = only[0];
    return st == TUTTI_OK && only[0] ? open_in_folder(ck, only, err) : st;
}

/* Sets the error for a folder without a model, which lacks what missing says. Folders of GGUF files are common in other
 * programs, and here each file is a model. */
static enum tutti_status no_model(const struct checkpoint *ck, const char *missing, struct tutti_error *err)
{
    char name[256] = "";
    DIR *folder = opendir(ck->folder);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        size_t n = strlen(entry->d_name);
        if (n > 5 && strcasecmp(entry->d_name + n - 5, ".gguf") == 0 &&
            (!name[0] || strcmp(entry->d_name, name) < 0))
            snprintf(name, sizeof name, "%s", entry->d_name);
    }
    if (folder)
        closedir(folder);
    if (!name[0])
        return error_set(err, TUTTI_E_NOT_FOUND, "%s: there is neither %s", ck->folder, missing);
    return error_set(err, TUTTI_E_NOT_FOUND,
                     "%s: there is neither %s. For a GGUF file, give its path as the model: %s/%s",
                     ck->folder, missing, ck->folder, name);
}

static enum tutti_status open_folder(struct checkpoint *ck, struct tutti_error *err)
{
    if (SHARDS_FORMAT.is_folder(ck->folder))
        return open_sharded(ck, -1, err);
    enum tutti_status st = check_not_a_rank(ck, err);
    if (st == TUTTI_OK)
        st = read_config(ck, err);
    if (st != TUTTI_OK)
        return st;
    if (!ck->config)
        return no_model(ck, "config.json nor MindFormers' configuration (.yaml)", err);
    for (const struct checkpoint_format *const *f = CHECKPOINT_FORMATS; *f; f++) {
        bool is_there;
        st = open_format(ck, *f, &is_there, err);
        if (st != TUTTI_OK || is_there)
            return st;
    }
    return no_model(ck,
                    "model.safetensors nor pytorch_model.bin, nor an index of either (.index.json), nor a "
                    "MindSpore checkpoint (.ckpt, or folders rank_0, ...)",
                    err);
}

/* The path of a weights file is treated as its folder. */
static enum tutti_status open_weights_file(struct checkpoint *ck, struct tutti_error *err)
{
    const char *slash = strrchr(ck->path, '/');
    ck->folder = slash ? strndup(ck->path, (size_t)(slash - ck->path) + (slash == ck->path)) : strdup(".");
    if (!ck->folder)
        return error_out_of_memory(ck->path, err);
    enum tutti_status st = read_config(ck, err);
    if (st == TUTTI_OK && !ck->config)
        st = error_set(err, TUTTI_E_NOT_FOUND,
                       "%s: expected config.json or MindFormers' .yaml in the same folder", ck->path);
    return st;
}

/* Whether a path looks like a model's name on a hub: ORG/NAME of the characters that hubs allow there, optionally
 * with @REVISION, :TYPE or :FILE. */
static bool is_hub_name(const char *path)
{
    size_t n = strcspn(path, "@:"); /* of ORG/NAME */
    const char *slash = memchr(path, '/', n);
    if (!slash || slash == path || slash + 1 == path + n || path[0] == '.' || path[0] == '-' ||
        memchr(slash + 1, '/', n - (size_t)(slash + 1 - path)) || (path[n] && !path[n + 1]))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)path[i]) && !strchr("-_./", path[i]))
            return false;
    }
    return true;
}

/* Sets the error for a path that does not exist. */
static enum tutti_status not_found(const struct checkpoint *ck, struct tutti_error *err)
{
    if (!is_hub_name(ck->path))
        return error_set(err, TUTTI_E_NOT_FOUND, "%s: no such file or folder", ck->path);
    return error_set(err, TUTTI_E_NOT_FOUND,
                     "%s: no such file or folder. For a model of Hugging Face, give the tutti command hf:%s, "
                     "which it downloads",
                     ck->path, ck->path);
}

static enum tutti_status open_any(struct checkpoint *ck, int rank, struct tutti_error *err)
{
    if (rank >= 0)
        return open_sharded(ck, rank, err);
    struct stat info;
    if (stat(ck->path, &info) != 0)
        return errno == ENOENT ? not_found(ck, err)
                               : error_set(err, TUTTI_E_IO, "%s: %s", ck->path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        ck->folder = strdup(ck->path);
        return ck->folder ? open_folder(ck, err) : error_out_of_memory(ck->path, err);
    }
    enum tutti_status st = open_set(ck, ck->path, err);
    if (st == TUTTI_OK && checkpoint_gguf(ck))
        ck->config = json_incref((json_t *)(uintptr_t)gguf_scalars(checkpoint_gguf(ck)));
    else if (st == TUTTI_OK)
        st = open_weights_file(ck, err);
    return st;
}

/* rank -1: the whole. */
static enum tutti_status open_path(struct checkpoint **out, const char *path, int rank,
                                   struct tutti_error *err)
{
    enum tutti_status st;
    struct checkpoint *ck = calloc(1, sizeof *ck);
    if (!ck || !(ck->path = strdup(path))) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
        goto done;
    }
    for (size_t n = strlen(ck->path); n > 1 && ck->path[n - 1] == '/'; n--)
        ck->path[n - 1] = '\0';
    st = open_any(ck, rank, err);
    if (st == TUTTI_OK && !ck->tensors)
        st = index_tensors(ck, err);
    if (st == TUTTI_OK)
        st = wrap_row_ints(ck, err);
    if (st == TUTTI_OK)
        st = wrap_quantized(ck, err);
    if (st == TUTTI_OK)
        st = take_text_part(ck, err);
    if (st != TUTTI_OK)
        goto done;
    *out = ck;
    ck = NULL;
done:
    checkpoint_close(ck);
    return st;
}

enum tutti_status checkpoint_open(struct checkpoint **out, const char *path, struct tutti_error *err)
{
    return open_path(out, path, -1, err);
}

enum tutti_status checkpoint_open_rank(struct checkpoint **out, const char *path, int rank, int n_ranks,
                                       struct tutti_error *err)
{
    char folder[PATH_MAX];
    struct stat info;
    struct shard_manifest *m = NULL;
    enum tutti_status st = TUTTI_OK;
    shards_rank_folder(folder, sizeof folder, path, rank);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) /* a GGUF file has no folders */
        st = shard_manifest_read(&m, folder, err);
    if (st != TUTTI_OK)
        return st;
    bool is_mine = m && m->n_ranks == n_ranks && n_ranks > 1;
    shard_manifest_free(m);
    st = open_path(out, path, is_mine ? rank : -1, err);
    if (st == TUTTI_OK)
        (*out)->is_quiet = rank > 0;
    return st;
}

void checkpoint_close(struct checkpoint *ck)
{
    if (!ck)
        return;
    key_map_clear(&ck->by_name);
    free((void *)ck->tensors);
    free(ck->taken);
    free(ck->row_ints);
    quantized_close(ck->quantized);
    free(ck->text);
    json_decref(ck->config);
    for (int i = 0; i < ck->n_sets; i++)
        tensor_set_close(ck->sets[i]);
    free(ck->sets);
    free(ck->config_path);
    free(ck->quantization_path);
    free(ck->folder);
    free(ck->path);
    free(ck);
}

const char *checkpoint_path(const struct checkpoint *ck)
{
    return ck->path;
}

const char *checkpoint_folder(const struct checkpoint *ck)
{
    return ck->folder;
}

size_t checkpoint_n_tensors(const struct checkpoint *ck)
{
    return ck->n_tensors;
}

const struct tensor *checkpoint_tensor(const struct checkpoint *ck, size_t index)
{
    return ck->tensors[index];
}

const struct tensor *checkpoint_find(const struct checkpoint *ck, const char *name)
{
    int32_t i = find_by_name(ck, name);
    return i >= 0 ? ck->tensors[i] : NULL;
}

const struct tensor *checkpoint_take(const struct checkpoint *ck, const char *name)
{
    int32_t i = find_by_name(ck, name);
    if (i >= 0)
        ck->taken[i] = 1;
    return i >= 0 ? ck->tensors[i] : NULL;
}

bool checkpoint_is_taken(const struct checkpoint *ck, size_t index)
{
    return ck->taken[index];
}

bool checkpoint_is_bare(const struct checkpoint *ck)
{
    return ck->text && !ck->has_vision;
}

bool checkpoint_is_quiet(const struct checkpoint *ck)
{
    return ck->is_quiet;
}

const json_t *checkpoint_config(const struct checkpoint *ck)
{
    return ck->config;
}

const char *checkpoint_config_path(const struct checkpoint *ck)
{
    return ck->config_path ? ck->config_path : ck->path;
}

const struct gguf *checkpoint_gguf(const struct checkpoint *ck)
{
    return ck->n_sets > 0 ? gguf_of(ck->sets[0]) : NULL;
}

const struct shard_manifest *checkpoint_shard(const struct checkpoint *ck)
{
    const struct shards *shards = ck->n_sets > 0 ? shards_of(ck->sets[0]) : NULL;
    return shards && !shards_is_whole(shards) ? shards_manifest(shards, ck->rank) : NULL;
}

const struct shards *checkpoint_shards(const struct checkpoint *ck)
{
    const struct shards *shards = ck->n_sets > 0 ? shards_of(ck->sets[0]) : NULL;
    return shards && shards_is_whole(shards) ? shards : NULL;
}

typedef enum tutti_status load_fn(const char *path, json_t **out, struct tutti_error *err);

static enum tutti_status load_of_folder(const struct checkpoint *ck, const char *file, load_fn *load,
                                        json_t **out, struct tutti_error *err)
{
    *out = NULL;
    if (!ck->folder)
        return TUTTI_OK;
    char *path = checkpoint_join(ck->folder, file);
    if (!path)
        return error_out_of_memory(ck->path, err);
    enum tutti_status st = load(path, out, err);
    free(path);
    return st;
}

enum tutti_status checkpoint_json(const struct checkpoint *ck, const char *file, json_t **out,
                                  struct tutti_error *err)
{
    return load_of_folder(ck, file, json_file_load, out, err);
}

enum tutti_status checkpoint_json_list(const struct checkpoint *ck, const char *file, json_t **out,
                                       struct tutti_error *err)
{
    return load_of_folder(ck, file, json_file_load_list, out, err);
}
