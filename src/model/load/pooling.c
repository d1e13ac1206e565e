#include "model/load/pooling.h"

#include "checkpoint/gguf/gguf.h"

#include <stdio.h>
#include <string.h>

/* sentence-transformers' settings of its pooling: each true or false, or by name in "pooling_mode". */
static const struct {
    const char *key, *name;
    enum tutti_embedding kind; /* TUTTI_EMBEDDING_NONE: unsupported */
} MODES[] = {
    { "pooling_mode_cls_token", "cls", TUTTI_EMBEDDING_FIRST },
    { "pooling_mode_mean_tokens", "mean", TUTTI_EMBEDDING_MEAN },
    { "pooling_mode_lasttoken", "lasttoken", TUTTI_EMBEDDING_LAST },
    { "pooling_mode_max_tokens", "max", TUTTI_EMBEDDING_NONE },
    { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", TUTTI_EMBEDDING_NONE },
    { "pooling_mode_weightedmean_tokens", "weightedmean", TUTTI_EMBEDDING_NONE },
};
enum { N_MODES = sizeof MODES / sizeof *MODES };

static enum tutti_status read_mode(enum tutti_embedding *kind, const struct checkpoint *ck, const char *file,
                                   struct tutti_error *err)
{
    json_t *config = NULL;
    enum tutti_status st = checkpoint_json(ck, file, &config, err);
    const char *name = json_string_value(json_object_get(config, "pooling_mode")), *fault = NULL;
    int n_set = 0;
    for (size_t i = 0; st == TUTTI_OK && i < N_MODES; i++) {
        bool is_set = name ? strcmp(name, MODES[i].name) == 0
                           : json_is_true(json_object_get(config, MODES[i].key));
        if (!is_set)
            continue;
        n_set++;
        *kind = MODES[i].kind;
        fault = *kind == TUTTI_EMBEDDING_NONE ? MODES[i].key : fault;
    }
    if (st == TUTTI_OK && !config)
        st = error_set(err, TUTTI_E_NOT_FOUND, "%s/%s: not found, but modules.json names it",
                       checkpoint_folder(ck), file);
    else if (st == TUTTI_OK && (fault || n_set != 1))
        st = error_set(err, TUTTI_E_UNSUPPORTED,
                       "%s/%s: %s%s, expected one of pooling_mode_cls_token, pooling_mode_mean_tokens and "
                       "pooling_mode_lasttoken",
                       checkpoint_folder(ck), file, fault ? fault : "pooling_mode_*: ",
                       fault       ? ": true"
                       : n_set > 1 ? "several are true"
                                   : "none that is known is true");
    json_decref(config);
    return st;
}

/* Paths within the folder, of module names as published: "1_Pooling". */
static enum tutti_status read_pooling_module(struct model_pooling *out, const struct checkpoint *ck,
                                             const json_t *module, struct tutti_error *err)
{
    const char *path = json_string_value(json_object_get(module, "path"));
    char file[256];
    if (!path || strstr(path, "..") || *path == '/' || strlen(path) > 128)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s/modules.json: the module Pooling has no path, expected a folder in it",
                         checkpoint_folder(ck));
    snprintf(file, sizeof file, "%s%sconfig.json", path, *path ? "/" : "");
    return read_mode(&out->kind, ck, file, err);
}

/* The name of a module's class without those of its packages. */
static const char *class_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *dot = type ? strrchr(type, '.') : NULL;
    return dot ? dot + 1 : type ? type : "";
}

static enum tutti_status read_modules(struct model_pooling *out, const struct checkpoint *ck,
                                      const json_t *modules, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    out->keeps_length = true;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(modules); i++) {
        const json_t *module = json_array_get(modules, i);
        const char *class = class_of(module);
        if (strcmp(class, "Pooling") == 0)
            st = read_pooling_module(out, ck, module, err);
        else if (strcmp(class, "Normalize") == 0)
            out->keeps_length = false;
        else if (strcmp(class, "Transformer") != 0)
            st = error_set(
                err, TUTTI_E_UNSUPPORTED,
                "%s/modules.json: module %zu is %.64s, expected Transformer, Pooling and Normalize",
                checkpoint_folder(ck), i, *class ? class : "without a type");
    }
    return st;
}

/* GGUF's numbers; 0 is no pooling. */
static const enum tutti_embedding GGUF_KINDS[] = { TUTTI_EMBEDDING_NONE, TUTTI_EMBEDDING_MEAN,
                                                   TUTTI_EMBEDDING_FIRST, TUTTI_EMBEDDING_LAST };
enum {
    N_GGUF_KINDS = sizeof GGUF_KINDS / sizeof *GGUF_KINDS,
    GGUF_RANKS = 4 /* scores of pairs, by a head */
};
static const char KEEPS_LENGTH[] = "tutti.embedding_keeps_length";

static void gguf_key(char *key, size_t size, const char *architecture)
{
    snprintf(key, size, "%.64s.pooling_type", architecture ? architecture : "");
}

static enum tutti_status read_gguf(struct model_pooling *out, const struct model_desc *desc,
                                   const struct checkpoint *ck, struct tutti_error *err)
{
    const json_t *scalars = gguf_scalars(checkpoint_gguf(ck));
    char key[128];
    gguf_key(key, sizeof key, json_string_value(json_object_get(scalars, "general.architecture")));
    const json_t *value = json_object_get(scalars, key);
    json_int_t type = json_integer_value(value);
    out->keeps_length = json_is_true(json_object_get(scalars, KEEPS_LENGTH));
    if (!value || (json_is_integer(value) && type == GGUF_RANKS && desc->has_score))
        return TUTTI_OK;
    if (json_is_integer(value) && type == GGUF_RANKS)
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: %s is 4: ranking pairs of texts by a %s model is not supported; serve a cross-encoder "
            "(BERT or XLM-RoBERTa with one label), or rank by an embedding model's vectors",
            checkpoint_path(ck), key, desc->family);
    if (!json_is_integer(value) || type < 0 || type >= N_GGUF_KINDS)
        return error_set(err, TUTTI_E_FORMAT, "%s: %s: expected 0 to 4", checkpoint_path(ck), key);
    out->kind = GGUF_KINDS[type];
    return TUTTI_OK;
}

void pooling_put(struct gguf_writer *w, const char *architecture, const struct model_pooling *pooling)
{
    char key[128];
    gguf_key(key, sizeof key, architecture);
    for (uint32_t i = 1; i < N_GGUF_KINDS; i++)
        if (GGUF_KINDS[i] == pooling->kind)
            gguf_writer_u32(w, key, i);
    if (pooling->keeps_length)
        gguf_writer_bool(w, KEEPS_LENGTH, true);
}

/* ---- other settings of sentence-transformers ---- */

static enum tutti_status refuse_setting(const struct checkpoint *ck, const char *file, const char *setting,
                                        const char *advice, struct tutti_error *err)
{
    return error_set(err, TUTTI_E_UNSUPPORTED, "%s/%s: %s is not supported; %s", checkpoint_folder(ck), file,
                     setting, advice);
}

static enum tutti_status read_transformer(struct model_desc *desc, const struct checkpoint *ck,
                                          const char *file, struct tutti_error *err)
{
    json_t *config = NULL;
    enum tutti_status st = checkpoint_json(ck, file, &config, err);
    const json_t *longest = json_object_get(config, "max_seq_length");
    json_int_t n = json_integer_value(longest);
    if (st == TUTTI_OK && json_is_true(json_object_get(config, "do_lower_case")))
        st = refuse_setting(
            ck, file, "do_lower_case: true",
            "set it to false if the tokenizer lowers letters itself, or send lower-case texts", err);
    else if (st == TUTTI_OK && longest && !json_is_null(longest) && n < 1)
        st = error_set(err, TUTTI_E_FORMAT, "%s/%s: max_seq_length: expected a positive number of tokens",
                       checkpoint_folder(ck), file);
    else if (st == TUTTI_OK && n > 0 && n < desc->n_ctx)
        desc->n_ctx = (int)n;
    json_decref(config);
    return st;
}

static enum tutti_status check_prompt(const struct checkpoint *ck, struct tutti_error *err)
{
    static const char FILE_NAME[] = "config_sentence_transformers.json";
    json_t *config = NULL;
    enum tutti_status st = checkpoint_json(ck, FILE_NAME, &config, err);
    const char *name = json_string_value(json_object_get(config, "default_prompt_name"));
    const json_t *prompt = name ? json_object_get(json_object_get(config, "prompts"), name) : NULL;
    if (st == TUTTI_OK && json_string_length(prompt) > 0)
        st = refuse_setting(ck, FILE_NAME, "default_prompt_name, a prompt before every text,",
                            "set it to null, and send the prompt with the texts", err);
    json_decref(config);
    return st;
}

enum tutti_status pooling_limit_context(struct model_desc *desc, const struct checkpoint *ck,
                                        struct tutti_error *err)
{
    /* Releases of sentence-transformers named the file by the model. */
    static const char *const FILES[] = { "sentence_bert_config.json",        "sentence_roberta_config.json",
                                         "sentence_distilbert_config.json",  "sentence_camembert_config.json",
                                         "sentence_xlm-roberta_config.json", "sentence_albert_config.json" };
    json_t *modules = NULL;
    if (checkpoint_gguf(ck) || !checkpoint_folder(ck))
        return TUTTI_OK;
    enum tutti_status st = checkpoint_json_list(ck, "modules.json", &modules, err);
    bool is_of_sentences = modules != NULL; /* without it, that library reads none of the other files */
    json_decref(modules);
    if (st != TUTTI_OK || !is_of_sentences)
        return st;
    for (size_t i = 0; st == TUTTI_OK && i < sizeof FILES / sizeof *FILES; i++)
        st = read_transformer(desc, ck, FILES[i], err);
    return st == TUTTI_OK ? check_prompt(ck, err) : st;
}

enum tutti_status pooling_read(struct model_pooling *out, const struct model_desc *desc,
                               const struct checkpoint *ck, struct tutti_error *err)
{
    json_t *modules = NULL;
    *out = (struct model_pooling){ .kind = TUTTI_EMBEDDING_NONE };
    enum tutti_status st = checkpoint_gguf(ck) ? read_gguf(out, desc, ck, err)
                                               : checkpoint_json_list(ck, "modules.json", &modules, err);
    if (st == TUTTI_OK && modules)
        st = read_modules(out, ck, modules, err);
    json_decref(modules);
    if (desc->has_score)
        *out = (struct model_pooling){ .kind = TUTTI_EMBEDDING_FIRST }; /* of the head */
    else if (desc->is_encoder && out->kind == TUTTI_EMBEDDING_NONE)
        out->kind = TUTTI_EMBEDDING_MEAN;
    return st;
}
