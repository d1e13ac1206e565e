#include "model/load/tokenizer_bytes.h"

#include "base/json/json_wide.h"
#include "tokenizer/json/byte_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct byte_file file_of(const struct mapping *map, const char *name)
{
    return (struct byte_file){ .bytes = map->bytes ? (const char *)map->bytes : "",
                               .n_bytes = map->n_bytes,
                               .name = name };
}

enum tutti_status tokenizer_read_json(struct tokenizer **out, const struct tokenizer_source *s,
                                      const struct mapping *map, struct tutti_error *err)
{
    (void)map;
    if (!s->json)
        return error_set(err, s->json_error.status, "%s", s->json_error.text);
    if (tokenizer_json_has_wrong_prefix(s))
        return error_set(
            err, TUTTI_E_UNSUPPORTED,
            "%s: it puts a blank before a text, but add_prefix_space in tokenizer_config.json is "
            "false; add tokenizer.model, or remove the key",
            s->path);
    enum tutti_status st = tokenizer_apply_bert_settings(s, err);
    return st != TUTTI_OK ? st : tokenizer_from_json_root(out, s->json, s->path, s->tokenizer_config, err);
}

static bool is_family(const struct tokenizer_source *s, const char *name)
{
    return strcmp(s->family->name, name) == 0;
}

/* These two files do not define the pre-tokenization: it follows from the tokenizer's class, else
 * from the family. */
static const char *find_pre(const struct tokenizer_source *s)
{
    const char *class = json_string_value(json_object_get(s->tokenizer_config, "tokenizer_class"));
    if (class && strncmp(class, "Qwen2", 5) == 0)
        return "qwen2";
    if (class && strncmp(class, "GPT2", 4) == 0)
        return "gpt-2";
    if (is_family(s, "qwen2") || is_family(s, "qwen3"))
        return "qwen2";
    return is_family(s, "gpt2") ? "gpt-2" : NULL;
}

enum tutti_status tokenizer_read_vocab(struct tokenizer **out, const struct tokenizer_source *s,
                                       const struct mapping *map, struct tutti_error *err)
{
    struct mapping merges = { 0 };
    char path[4096];
    const char *pre = find_pre(s);
    if (!pre)
        return error_set(err, TUTTI_E_UNSUPPORTED,
                         "%s: how text is cut is known for tokenizers of the classes GPT2Tokenizer and "
                         "Qwen2Tokenizer only (tokenizer_class in tokenizer_config.json)",
                         s->path);
    if (json_is_true(json_object_get(s->tokenizer_config, "add_prefix_space")))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s/tokenizer_config.json: add_prefix_space is true",
                         s->folder);
    if (snprintf(path, sizeof path, "%s/merges.txt", s->folder) >= (int)sizeof path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", s->folder);
    enum tutti_status st = mapping_open(&merges, path, err);
    if (st != TUTTI_OK)
        return st;
    struct byte_file vocab_file = file_of(map, s->path), merges_file = file_of(&merges, path);
    st = tokenizer_from_vocab_merges(out, &vocab_file, &merges_file, pre, s->tokenizer_config, err);
    mapping_close(&merges);
    return st;
}

/* ---- tiktoken files, whose special tokens are defined in the models' code ---- */

static const char *const GLM4_SPECIALS[] = {
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
};
enum { N_GLM4_SPECIALS = sizeof GLM4_SPECIALS / sizeof *GLM4_SPECIALS, N_LLAMA3_SPECIALS = 256 };

/* LLaMA-3's 256: ten by name with reserved ones between, the rest reserved. */
struct llama3_specials {
    char text[N_LLAMA3_SPECIALS][40];
    const char *list[N_LLAMA3_SPECIALS];
};

static void fill_llama3(struct llama3_specials *s)
{
    static const char *const NAMES[10] = { [0] = "<|begin_of_text|>",
                                           [1] = "<|end_of_text|>",
                                           [6] = "<|start_header_id|>",
                                           [7] = "<|end_header_id|>",
                                           [9] = "<|eot_id|>" };
    int n_reserved = 0;
    for (int i = 0; i < N_LLAMA3_SPECIALS; i++) {
        if (i < 10 && NAMES[i])
            snprintf(s->text[i], sizeof s->text[i], "%s", NAMES[i]);
        else
            snprintf(s->text[i], sizeof s->text[i], "<|reserved_special_token_%d|>", n_reserved++);
        s->list[i] = s->text[i];
    }
}

static enum tutti_status read_llama3(struct tokenizer **out, const struct tokenizer_source *s,
                                     const struct byte_file *file, struct tutti_error *err)
{
    struct llama3_specials *specials = malloc(sizeof *specials);
    json_t *config = s->tokenizer_config ? json_incref(s->tokenizer_config)
                                         : json_pack("{s:s, s:s, s:b}", "bos_token", "<|begin_of_text|>",
                                                     "eos_token", "<|end_of_text|>", "add_bos_token", 1);
    enum tutti_status st = TUTTI_OK;
    if (!specials || !config) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", s->path);
    } else {
        fill_llama3(specials);
        st = tokenizer_from_tiktoken(out, file, "llama-bpe", specials->list, N_LLAMA3_SPECIALS, config, err);
    }
    json_decref(config);
    free(specials);
    return st;
}

/* Qwen's first generation: three by name, then <|extra_0|> to <|extra_204|>. */
enum { N_QWEN_NAMED = 3, N_QWEN_EXTRA = 205, N_QWEN_SPECIALS = N_QWEN_NAMED + N_QWEN_EXTRA };

static enum tutti_status read_qwen(struct tokenizer **out, const struct tokenizer_source *s,
                                   const struct byte_file *file, struct tutti_error *err)
{
    const char *list[N_QWEN_SPECIALS] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    char extra[N_QWEN_EXTRA][16];
    for (int i = 0; i < N_QWEN_EXTRA; i++) {
        snprintf(extra[i], sizeof extra[i], "<|extra_%d|>", i);
        list[N_QWEN_NAMED + i] = extra[i];
    }
    return tokenizer_from_tiktoken(out, file, "qwen2", list, N_QWEN_SPECIALS, s->tokenizer_config, err);
}

enum tutti_status tokenizer_read_tiktoken(struct tokenizer **out, const struct tokenizer_source *s,
                                          const struct mapping *map, struct tutti_error *err)
{
    struct byte_file file = file_of(map, s->path);
    if (is_family(s, "llama"))
        return read_llama3(out, s, &file, err);
    if (is_family(s, "chatglm") || is_family(s, "glm") || is_family(s, "glm4"))
        return tokenizer_from_tiktoken(out, &file, "glm4", GLM4_SPECIALS, N_GLM4_SPECIALS,
                                       s->tokenizer_config, err);
    if (is_family(s, "qwen"))
        return read_qwen(out, s, &file, err);
    return error_set(err, TUTTI_E_UNSUPPORTED,
                     "%s: the pre-tokenization of a tiktoken file is only known for LLaMA-3, GLM-4 and Qwen",
                     s->path);
}

/* ---- GGUF ---- */

#define LOWERCASE_KEY "tokenizer.ggml.normalizer.lowercase"
#define ACCENTS_KEY   "tokenizer.ggml.normalizer.strip_accents"

static int32_t id_of(const json_t *scalars, const char *key, size_t n)
{
    const json_t *value = json_object_get(scalars, key);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    return id >= 0 && (uint64_t)id < n ? (int32_t)id : -1;
}

/* An array of strings as pieces of type NORMAL. *n 0: none. */
static struct piece *read_strings(const struct gguf_array *array, size_t *n)
{
    *n = array && gguf_array_type(array) == GGUF_STRING ? gguf_array_n(array) : 0;
    struct piece *pieces = calloc(*n + 1, sizeof *pieces);
    for (size_t i = 0; pieces && i < *n; i++) {
        gguf_array_string(array, i, &pieces[i].bytes, &pieces[i].n_bytes);
        pieces[i].type = PIECE_NORMAL;
    }
    return pieces;
}

static enum tutti_status read_types(struct piece *tokens, size_t n, const struct gguf *gguf, const char *path,
                                    struct tutti_error *err)
{
    const struct gguf_array *types = gguf_find_array(gguf, "tokenizer.ggml.token_type");
    if (!types)
        return TUTTI_OK;
    if (gguf_array_type(types) == GGUF_STRING || gguf_array_n(types) != n)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.token_type: expected %zu numbers, one for each token", path, n);
    for (size_t i = 0; i < n; i++) {
        int64_t type = gguf_array_int(types, i);
        if (type < PIECE_NORMAL || type > PIECE_BYTE)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tokenizer.ggml.token_type[%zu] is %lld, expected 1 to 6", path, i,
                             (long long)type);
        tokens[i].type = (enum piece_type)type;
    }
    return TUTTI_OK;
}

/* Two more kinds have merges; each has its own pre-tokenizer. */
static const char *pre_of(const json_t *scalars)
{
    const char *kind = json_string_value(json_object_get(scalars, "tokenizer.ggml.model")),
               *pre = json_string_value(json_object_get(scalars, "tokenizer.ggml.pre"));
    if (kind && (strcmp(kind, "gemma4") == 0 || strcmp(kind, "whitespace") == 0))
        return kind;
    return pre ? pre : "default";
}

enum tutti_status tokenizer_read_gguf(struct tokenizer **out, const struct gguf *gguf, const char *path,
                                      struct tutti_error *err)
{
    const json_t *scalars = gguf_scalars(gguf),
                 *adds = json_object_get(scalars, "tokenizer.ggml.add_bos_token");
    size_t n_tokens, n_merges;
    json_t *added = NULL;
    struct piece *tokens = read_strings(gguf_find_array(gguf, "tokenizer.ggml.tokens"), &n_tokens);
    struct piece *merges = read_strings(gguf_find_array(gguf, "tokenizer.ggml.merges"), &n_merges);
    enum tutti_status st = TUTTI_OK;
    if (!tokens || !merges)
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    else if (n_tokens == 0 || n_merges == 0)
        st = error_set(err, TUTTI_E_FORMAT, "%s: tokenizer.ggml.%s is missing, empty or no array of strings",
                       path, n_tokens == 0 ? "tokens" : "merges");
    else
        st = read_types(tokens, n_tokens, gguf, path, err);
    if (st == TUTTI_OK)
        st = tokenizer_read_added(&added, gguf, path, err);
    if (st == TUTTI_OK) {
        struct byte_vocab vocab = {
            .tokens = tokens,
            .n_tokens = n_tokens,
            .merges = merges,
            .n_merges = n_merges,
            .pre = pre_of(scalars),
            .adds_bos = json_is_boolean(adds) ? json_is_true(adds) : -1,
            .adds_eos = json_is_true(json_object_get(scalars, "tokenizer.ggml.add_eos_token")),
            .lowers = json_is_true(json_object_get(scalars, LOWERCASE_KEY)),
            .added = added,
            .unk_id = -1, /* every byte is a token */
            .bos_id = id_of(scalars, "tokenizer.ggml.bos_token_id", n_tokens),
            .eos_id = id_of(scalars, "tokenizer.ggml.eos_token_id", n_tokens),
        };
        st = tokenizer_from_byte_vocab(out, &vocab, path, err);
    }
    json_decref(added);
    free(tokens);
    free(merges);
    return st;
}

/* The id of a key, or llama.cpp's default if the file has none. */
static int32_t id_or(const json_t *scalars, const char *key, int32_t usual, size_t n)
{
    return json_object_get(scalars, key) ? id_of(scalars, key, n) : (size_t)usual < n ? usual : -1;
}

enum tutti_status tokenizer_read_gguf_bert(struct tokenizer **out, const struct gguf *gguf, const char *path,
                                           struct tutti_error *err)
{
    enum { BERT_UNK = 100, BERT_CLS = 101, BERT_SEP = 102 };
    const json_t *scalars = gguf_scalars(gguf), *accents = json_object_get(scalars, ACCENTS_KEY);
    size_t n_tokens;
    struct piece *tokens = read_strings(gguf_find_array(gguf, "tokenizer.ggml.tokens"), &n_tokens);
    enum tutti_status st = TUTTI_OK;
    if (!tokens)
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    else if (n_tokens == 0)
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: tokenizer.ggml.tokens is missing, empty or no array of strings", path);
    else
        st = read_types(tokens, n_tokens, gguf, path, err);
    if (st == TUTTI_OK) {
        struct bert_vocab vocab = {
            .tokens = tokens,
            .n_tokens = n_tokens,
            .lowers = !json_is_false(json_object_get(scalars, LOWERCASE_KEY)),
            .unk_id = id_or(scalars, "tokenizer.ggml.unknown_token_id", BERT_UNK, n_tokens),
            .bos_id = id_or(scalars, "tokenizer.ggml.bos_token_id", BERT_CLS, n_tokens),
            .sep_id = id_or(scalars, "tokenizer.ggml.seperator_token_id", BERT_SEP, n_tokens),
        };
        vocab.strips_accents = json_is_boolean(accents) ? json_is_true(accents) : vocab.lowers;
        st = tokenizer_from_bert_vocab(out, &vocab, path, err);
    }
    free(tokens);
    return st;
}

enum tutti_status tokenizer_read_gguf_json(struct tokenizer **out, const struct gguf *gguf, const char *path,
                                           struct tutti_error *err)
{
    const json_t *scalars = gguf_scalars(gguf);
    const json_t *text = json_object_get(scalars, TOKENIZER_JSON_KEY),
                 *settings = json_object_get(scalars, TOKENIZER_JSON_CONFIG_KEY);
    json_t *config = NULL;
    char name[4200];
    if (!json_is_string(text))
        return error_set(err, TUTTI_E_FORMAT, "%s: " TOKENIZER_JSON_KEY " is missing or no text", path);
    if (settings) {
        json_error_t where;
        config = json_load_wide(json_string_value(settings), json_string_length(settings), 0, &where);
        if (!json_is_object(config)) {
            json_decref(config);
            return error_set(err, TUTTI_E_FORMAT, "%s: " TOKENIZER_JSON_CONFIG_KEY " is no JSON object",
                             path);
        }
    }
    snprintf(name, sizeof name, "%s: " TOKENIZER_JSON_KEY, path);
    struct byte_file file = { .bytes = json_string_value(text),
                              .n_bytes = json_string_length(text),
                              .name = name };
    enum tutti_status st = tokenizer_from_json(out, &file, config, err);
    json_decref(config);
    return st;
}
