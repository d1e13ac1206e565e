#include "hub/select.h"

#include "base/limits.h"
#include "base/text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Weights of a folder, in the order in which they are preferred. Each is one file, or an index and the
 * files that it names. */
static const struct {
    const char *file, *index;
} WEIGHTS[] = {
    { "model.safetensors", "model.safetensors.index.json" },
    { "pytorch_model.bin", "pytorch_model.bin.index.json" },
    { "adapter_model.safetensors", NULL },
    { "adapter_model.bin", NULL },
};
enum { N_WEIGHTS = sizeof WEIGHTS / sizeof *WEIGHTS };

/* What else of a folder describes the model, its tokenizer and its chat templates. */
static const char *const COMPANIONS[] = {
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "quantize_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "ice_text.model",
    "vocab.model",
    "qwen.tiktoken",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    NULL,
};

static bool is_companion(const char *path)
{
    static const char TEMPLATES[] = "additional_chat_templates/";
    for (const char *const *c = COMPANIONS; *c; c++)
        if (strcmp(path, *c) == 0)
            return true;
    return strncmp(path, TEMPLATES, sizeof TEMPLATES - 1) == 0 && text_ends_with(path, ".jinja") &&
           !strchr(path + sizeof TEMPLATES - 1, '/');
}

static enum tutti_status add_file(struct hub_choice *choice, const struct hub_listing *listing,
                                  const struct hub_file *file, struct tutti_error *err)
{
    if (!choice->files) {
        choice->files = calloc(listing->n_files, sizeof(const struct hub_file *));
        choice->is_chosen = calloc(listing->n_files, sizeof *choice->is_chosen);
    }
    if (!choice->files || !choice->is_chosen)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the list of files");
    bool *is_chosen = &choice->is_chosen[file - listing->files];
    if (*is_chosen)
        return TUTTI_OK;
    *is_chosen = true;
    choice->files[choice->n_files++] = file;
    choice->n_bytes += file->n_bytes;
    return TUTTI_OK;
}

/* ---- GGUF ---- */

/* A GGUF file in parts: "NAME-00002-of-00003.gguf". */
struct parts {
    size_t n_stem; /* length of NAME */
    int part, n;   /* n 0: the file is whole */
};

static struct parts parts_of(const char *path)
{
    enum { N_NUMBER = 5, N_END = sizeof "-00001-of-00003.gguf" - 1 };
    size_t n = strlen(path);
    struct parts parts = { .n_stem = n - (sizeof ".gguf" - 1) };
    if (n <= N_END)
        return parts;
    const char *end = path + n - N_END;
    for (int i = 0; i < N_NUMBER; i++)
        if (!text_is_digit(end[1 + i]) || !text_is_digit(end[10 + i]))
            return parts;
    if (end[0] != '-' || strncmp(end + 6, "-of-", 4) != 0)
        return parts;
    parts.part = atoi(end + 1); /* ends at the dash */
    parts.n = atoi(end + 10);
    if (parts.n == 0 || parts.n > LIMIT_SHARDS)
        return (struct parts){ .n_stem = parts.n_stem };
    parts.n_stem = n - N_END;
    return parts;
}

/* Bytes of the type that text begins with: letters, a digit, and then letters, digits and '_'. */
static size_t type_length(const char *text)
{
    static const char *const LETTERS[] = { "q", "iq", "tq", "f", "bf", "fp", "mxfp", "nvfp", NULL };
    for (const char *const *l = LETTERS; *l; l++) {
        size_t n = strlen(*l);
        if (strncasecmp(text, *l, n) != 0 || !text_is_digit(text[n]))
            continue;
        while (text_is_digit(text[n]) || (text[n] >= 'a' && text[n] <= 'z') ||
               (text[n] >= 'A' && text[n] <= 'Z') || text[n] == '_')
            n++;
        return n;
    }
    return 0;
}

/* The type in a file's name, such as "Q4_K_M": the last one. *n 0: none. */
static const char *type_in(const char *path, size_t *n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *found = name;
    *n = 0;
    for (const char *c = name; *c; c++) {
        size_t length = c == name || strchr("-._", c[-1]) ? type_length(c) : 0;
        if (length > 0) {
            found = c;
            *n = length;
            c += length - 1;
        }
    }
    return found;
}

/* Whether it is a model: no projector of images and no importance matrix. A model that was quantized with such
 * a matrix may say so in its name, before the type: "NAME-imatrix-Q4_K_M.gguf". */
static bool is_gguf_model(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *matrix = strcasestr(name, "imatrix");
    size_t n_type;
    const char *type = type_in(path, &n_type);
    return strlen(path) > sizeof ".gguf" - 1 && text_ends_with(path, ".gguf") &&
           strncasecmp(name, "mmproj", 6) != 0 && (!matrix || (matrix > name && n_type > 0 && type > matrix));
}

/* The file under which a model is listed: the whole file, or the first of its parts. */
static bool is_gguf_head(const char *path)
{
    return is_gguf_model(path) && parts_of(path).part <= 1;
}

static bool has_type(const char *path, const char *type)
{
    size_t n;
    const char *found = type_in(path, &n);
    return n > 0 && n == strlen(type) && strncasecmp(found, type, n) == 0;
}

/* Adds a GGUF file with all its parts, and opens the first. */
static enum tutti_status choose_gguf(struct hub_choice *out, const struct hub_listing *listing,
                                     const struct hub_file *file, struct tutti_error *err)
{
    struct parts parts = parts_of(file->path);
    if (parts.n == 0) {
        out->open = file;
        return add_file(out, listing, file, err);
    }
    enum tutti_status st = TUTTI_OK;
    for (int i = 1; i <= parts.n && st == TUTTI_OK; i++) {
        char *path = NULL;
        if (asprintf(&path, "%.*s-%05d-of-%05d.gguf", (int)parts.n_stem, file->path, i, parts.n) < 0)
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the list of files");
        const struct hub_file *part = hub_listing_find(listing, path);
        if (i == 1)
            out->open = part;
        st = part ? add_file(out, listing, part, err)
                  : error_set(err, TUTTI_E_NOT_FOUND, "%s is one of %d parts, but the hub has no %s",
                              file->path, parts.n, path);
        free(path);
    }
    return st;
}

/* "q4_k_m (1.2 GB), q8_0 (2 GB)": what could be chosen, cut to what an error can hold. */
static void describe_gguf(const struct hub_listing *listing, const char *type, char *text, size_t size)
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < listing->n_files && n < size; i++) {
        const struct hub_file *file = &listing->files[i];
        size_t n_type;
        const char *found = type_in(file->path, &n_type);
        if (!is_gguf_head(file->path) || (type && !has_type(file->path, type)))
            continue;
        bool is_type = n_type > 0 && !type;
        n += (size_t)snprintf(text + n, size - n, "%s%.*s", n > 0 ? ", " : "",
                              is_type ? (int)n_type : (int)strlen(file->path), is_type ? found : file->path);
    }
}

/* The only GGUF file of the type; type NULL: of any. */
static enum tutti_status choose_type(struct hub_choice *out, const struct hub_listing *listing,
                                     const struct hub_name *name, const char *type, struct tutti_error *err)
{
    const struct hub_file *found = NULL;
    size_t n = 0;
    char have[240];
    for (size_t i = 0; i < listing->n_files; i++)
        if (is_gguf_head(listing->files[i].path) && (!type || has_type(listing->files[i].path, type))) {
            found = &listing->files[i];
            n++;
        }
    if (n == 1)
        return choose_gguf(out, listing, found, err);
    describe_gguf(listing, n > 1 ? type : NULL, have, sizeof have);
    if (n > 1 && !type)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "%s has %zu GGUF files; append the type of one, as %s:TYPE: %s", name->model, n,
                         name->model, have);
    if (n > 1)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "%s has %zu GGUF files of type %s; append one, as %s:FILE: %s", name->model, n, type,
                         name->model, have);
    return error_set(err, TUTTI_E_NOT_FOUND, "%s has no GGUF file of type %s; it has: %s", name->model, type,
                     *have ? have : "no GGUF files");
}

/* ---- folders ---- */

static bool add_weights(struct hub_choice *out, const struct hub_listing *listing, enum tutti_status *st,
                        struct tutti_error *err)
{
    for (int i = 0; i < N_WEIGHTS; i++) {
        const struct hub_file *file = hub_listing_find(listing, WEIGHTS[i].file);
        const struct hub_file *index = WEIGHTS[i].index && !file ? hub_listing_find(listing, WEIGHTS[i].index)
                                                                 : NULL;
        if (!file && !index)
            continue;
        out->index = index;
        *st = add_file(out, listing, file ? file : index, err);
        return true;
    }
    return false;
}

static enum tutti_status choose_folder(struct hub_choice *out, const struct hub_listing *listing,
                                       const struct hub_name *name, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    bool has_gguf = false;
    if (!add_weights(out, listing, &st, err)) {
        for (size_t i = 0; i < listing->n_files; i++)
            has_gguf |= is_gguf_head(listing->files[i].path);
        return has_gguf ? choose_type(out, listing, name, NULL, err)
                        : error_set(err, TUTTI_E_NOT_FOUND,
                                    "%s has no weights that tutti reads: expected model.safetensors, "
                                    "pytorch_model.bin, an index of either (.index.json), or GGUF files; "
                                    "append :FILE to download a certain file",
                                    name->model);
    }
    for (size_t i = 0; i < listing->n_files && st == TUTTI_OK; i++)
        if (is_companion(listing->files[i].path))
            st = add_file(out, listing, &listing->files[i], err);
    return st;
}

/* Puts the chosen files into the listing's order. */
static void sort_choice(struct hub_choice *choice, const struct hub_listing *listing)
{
    size_t n = 0;
    for (size_t i = 0; i < listing->n_files && n < choice->n_files; i++)
        if (choice->is_chosen[i])
            choice->files[n++] = &listing->files[i];
}

enum tutti_status hub_choose_indexed(struct hub_choice *choice, const struct hub_listing *listing,
                                     const char *bytes, size_t n_bytes, struct tutti_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(bytes, n_bytes, 0, &why);
    const json_t *map = json_object_get(root, "weight_map");
    const char *index = choice->index->path, *tensor;
    enum tutti_status st = TUTTI_OK;
    json_t *value;
    if (!root)
        return error_set(err, TUTTI_E_FORMAT, "%s: %s (line %d)", index, why.text, why.line);
    if (json_object_size(map) == 0 || json_object_size(map) > LIMIT_TENSORS)
        st = error_set(err, TUTTI_E_FORMAT, "%s: weight_map is missing, empty or too large", index);
    const char *last = "";
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *path = json_string_value(value);
        if (st != TUTTI_OK)
            break;
        if (path && strcmp(path, last) == 0) /* most tensors are in the file of the one before */
            continue;
        const struct hub_file *file = path ? hub_listing_find(listing, path) : NULL;
        st = !file ? error_set(err, TUTTI_E_NOT_FOUND, "%s: tensor %.80s: the hub has no file \"%.120s\"",
                               index, tensor, path ? path : "(no string)")
             : strchr(path, '/') ? error_set(err, TUTTI_E_FORMAT,
                                             "%s: tensor %.80s: expected a file in the same folder, found "
                                             "\"%.120s\"",
                                             index, tensor, path)
                                 : add_file(choice, listing, file, err);
        last = path ? path : "";
    }
    choice->index = NULL;
    sort_choice(choice, listing);
    json_decref(root);
    return st;
}

static enum tutti_status choose_selection(struct hub_choice *out, const struct hub_listing *listing,
                                          const struct hub_name *name, struct tutti_error *err)
{
    const char *selection = name->selection;
    if (!*selection)
        return choose_folder(out, listing, name, err);
    const struct hub_file *file = hub_listing_find(listing, selection);
    if (file && is_gguf_model(selection))
        return choose_gguf(out, listing, file, err);
    if (file) {
        out->open = file;
        return add_file(out, listing, file, err);
    }
    if (type_length(selection) == strlen(selection))
        return choose_type(out, listing, name, selection, err);
    char have[240];
    describe_gguf(listing, NULL, have, sizeof have);
    return error_set(err, TUTTI_E_NOT_FOUND, "%s has no file '%s', and that is no type such as q4_k_m%s%s",
                     name->model, selection, *have ? "; it has GGUF files of the types: " : "", have);
}

enum tutti_status hub_choose(struct hub_choice *out, const struct hub_listing *listing,
                             const struct hub_name *name, struct tutti_error *err)
{
    *out = (struct hub_choice){ 0 };
    enum tutti_status st = choose_selection(out, listing, name, err);
    if (st == TUTTI_OK)
        sort_choice(out, listing);
    return st;
}

void hub_choice_clear(struct hub_choice *choice)
{
    free((void *)choice->files);
    free(choice->is_chosen);
    *choice = (struct hub_choice){ 0 };
}
