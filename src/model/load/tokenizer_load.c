/* Loads the tokenizer of a checkpoint: from a file of a folder, or from a GGUF file's metadata. */
#include "base/files/mapping.h"
#include "base/log.h"
#include "checkpoint/gguf/gguf.h"
#include "model/load/tokenizer_bytes.h"
#include "model/load/tokenizer_settings.h"
#include "model/load/word_list.h"
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/byte_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A SentencePiece file begins with field 1 (a piece), wire type 2. GLM-4's file of the same name
 * is lines of text. */
static bool is_sentencepiece(const struct mapping *map)
{
    return map->n_bytes > 0 && map->bytes[0] == 0x0A;
}

/* Whether there is such a file; s->path is then its path. */
static bool has_file(struct tokenizer_source *s, const char *name)
{
    int n = snprintf(s->path, sizeof s->path, "%s/%s", s->folder, name);
    return n < (int)sizeof s->path && access(s->path, F_OK) == 0;
}

static enum tutti_status read_tokenizer_model(struct tokenizer **out, const struct tokenizer_source *s,
                                              const struct mapping *map, struct tutti_error *err)
{
    if (is_sentencepiece(map))
        return tokenizer_read_sentencepiece(out, s, map, err);
    if (tokenizer_is_tiktoken(map->bytes, map->n_bytes))
        return tokenizer_read_tiktoken(out, s, map, err);
    return error_set(err, TUTTI_E_UNSUPPORTED, "%s: neither a SentencePiece file nor one of tiktoken",
                     s->path);
}

/* ChatGLM-6B's file. The first release does not contain the number of image tokens at the start:
 * it follows from the model's vocabulary. */
static enum tutti_status read_icetext(struct tokenizer **out, const struct tokenizer_source *s,
                                      const struct mapping *map, struct tutti_error *err)
{
    enum { FIRST_RELEASE_VOCAB = 150528, FIRST_RELEASE_IMAGES = 20000 };
    const json_t *value = json_object_get(s->tokenizer_config, "num_image_tokens");
    json_int_t n = s->desc->n_vocab == FIRST_RELEASE_VOCAB ? FIRST_RELEASE_IMAGES : 0;
    if (value) {
        n = json_is_integer(value) ? json_integer_value(value) : -1;
        if (n < 0 || n > s->desc->n_vocab)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s/tokenizer_config.json: num_image_tokens: expected a number of 0 to %d",
                             s->folder, s->desc->n_vocab);
    }
    return tokenizer_from_icetext(out, map->bytes, map->n_bytes, (int32_t)n, s->path, err);
}

/* PanGu-Alpha's file. The original splits text into words with the Python package jieba. */
static enum tutti_status read_pangu(struct tokenizer **out, const struct tokenizer_source *s,
                                    const struct mapping *map, struct tutti_error *err)
{
    struct word_list words;
    enum tutti_status st = word_list_open(&words, s->folder, err);
    if (st == TUTTI_OK)
        st = tokenizer_from_pangu(out, map->bytes, map->n_bytes, words.is_there ? words.name : NULL, s->path,
                                  err);
    word_list_close(&words);
    return st;
}

/* By name, in the order in which they are tried. */
static const struct {
    const char *name;
    enum tutti_status (*read)(struct tokenizer **out, const struct tokenizer_source *s,
                              const struct mapping *map, struct tutti_error *err);
} FILES[] = {
    { "tokenizer.json", tokenizer_read_json },
    { "tokenizer.model", read_tokenizer_model },
    { "vocab.json", tokenizer_read_vocab },
    { "ice_text.model", read_icetext },
    { "vocab.model", read_pangu },
    { "qwen.tiktoken", tokenizer_read_tiktoken },
    { "vocab.txt", tokenizer_read_wordpiece },
};

enum { N_FILES = sizeof FILES / sizeof *FILES };

static enum tutti_status read_file(struct tokenizer **out, struct tokenizer_source *s, size_t i,
                                   struct tutti_error *err)
{
    struct mapping map = { 0 };
    enum tutti_status st = mapping_open(&map, s->path, err);
    if (st == TUTTI_OK)
        st = FILES[i].read(out, s, &map, err);
    mapping_close(&map);
    return st;
}

/* Whether the folder's own tokenizer class has no fast variant: such a class reads tokenizer.model. */
static bool has_only_slow_class(const struct tokenizer_source *s)
{
    const json_t *classes = json_object_get(json_object_get(s->tokenizer_config, "auto_map"),
                                            "AutoTokenizer");
    return json_is_string(json_array_get(classes, 0)) && json_is_null(json_array_get(classes, 1));
}

/* A file that is no JSON is only an error if no other file has the tokenizer. */
static enum tutti_status parse_json(struct tokenizer_source *s, struct tutti_error *err)
{
    struct mapping map = { 0 };
    enum tutti_status st = has_file(s, FILES[0].name) ? mapping_open(&map, s->path, &s->json_error)
                                                      : TUTTI_E_NOT_FOUND;
    if (st == TUTTI_OK)
        st = byte_config_parse(&s->json, map.bytes, map.n_bytes, s->path, &s->json_error);
    mapping_close(&map);
    return st == TUTTI_E_MEMORY ? error_set(err, st, "%s", s->json_error.text) : TUTTI_OK;
}

/* Reads the first file that exists. If it cannot be read, the next one is used, with a warning:
 * they hold the same tokenizer in different formats. */
static enum tutti_status read_first_file(struct tokenizer **out, struct tokenizer_source *s,
                                         struct tutti_error *err)
{
    struct tutti_error first;
    enum tutti_status st = parse_json(s, err);
    if (st != TUTTI_OK)
        return st;
    st = TUTTI_E_NOT_FOUND;
    bool starts_with_model = has_file(s, FILES[1].name) &&
                             (has_only_slow_class(s) || tokenizer_json_hides_marks(s) ||
                              tokenizer_json_has_wrong_prefix(s));
    for (size_t k = 0; k < N_FILES; k++) {
        struct tutti_error inner;
        size_t i = starts_with_model && k < 2 ? 1 - k : k;
        if (!has_file(s, FILES[i].name))
            continue;
        enum tutti_status own = read_file(out, s, i, &inner);
        if (own == TUTTI_OK && st != TUTTI_E_NOT_FOUND)
            log_warn("%s; %s is used in its place", first.text, FILES[i].name);
        if (own == TUTTI_OK || own == TUTTI_E_MEMORY)
            return own == TUTTI_OK ? own : error_set(err, own, "%s", inner.text);
        if (st == TUTTI_E_NOT_FOUND) {
            st = own;
            first = inner;
        }
    }
    if (st != TUTTI_E_NOT_FOUND)
        return error_set(err, st, "%s", first.text);
    char looked_for[256] = "";
    for (size_t i = 0; i < N_FILES; i++)
        snprintf(looked_for + strlen(looked_for), sizeof looked_for - strlen(looked_for), "%s%s",
                 i == 0             ? ""
                 : i + 1 == N_FILES ? " or "
                                    : ", ",
                 FILES[i].name);
    return error_set(err, TUTTI_E_UNSUPPORTED, "%s: none of the files that a tokenizer comes in: %s",
                     s->folder, looked_for);
}

/* A tokenizer may have more tokens than the model has rows: added tokens that were never trained. */
static enum tutti_status limit_to_rows(struct tokenizer *tok, int32_t n_rows, const char *name,
                                       struct tutti_error *err)
{
    if (tokenizer_n_pieces(tok) <= n_rows)
        return TUTTI_OK;
    log_warn("%s: %d tokens, but the model's embedding has %d rows: ids from %d on are not used", name,
             tokenizer_n_pieces(tok), n_rows, n_rows);
    return tokenizer_limit(tok, n_rows, name, err);
}

static enum tutti_status load_from_folder(struct tokenizer **out, struct tokenizer_source *s, char *why,
                                          size_t size, struct tutti_error *err)
{
    struct tokenizer *tok = NULL;
    struct tutti_error inner;
    enum tutti_status st = read_first_file(&tok, s, &inner);
    if (st == TUTTI_OK)
        st = limit_to_rows(tok, s->desc->n_vocab, s->path, &inner);
    if (st == TUTTI_OK) {
        *out = tok;
        return TUTTI_OK;
    }
    tokenizer_free(tok);
    if (st != TUTTI_E_UNSUPPORTED)
        return error_set(err, st, "%s", inner.text);
    snprintf(why, size, "%s", inner.text);
    return TUTTI_OK;
}

static int32_t id_of(const json_t *scalars, const char *key, int32_t fallback, size_t n_pieces)
{
    const json_t *value = json_object_get(scalars, key);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : fallback;
    return id >= 0 && (uint64_t)id < n_pieces ? (int32_t)id : -1;
}

static bool flag_of(const json_t *scalars, const char *key, bool fallback)
{
    const json_t *value = json_object_get(scalars, key);
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

/* The data of a vocabulary in a GGUF file; for gguf_vocab_clear(). */
struct gguf_vocab {
    struct piece *pieces; /* their bytes are the file's */
    size_t n;
    bool has_bytes;
    uint8_t *map;
    size_t n_map_bytes;
};

static void gguf_vocab_clear(struct gguf_vocab *v)
{
    free(v->pieces);
    free(v->map);
}

static enum tutti_status read_pieces(struct gguf_vocab *v, const struct gguf *gguf, const char *path,
                                     struct tutti_error *err)
{
    const struct gguf_array *tokens = gguf_find_array(gguf, "tokenizer.ggml.tokens");
    const struct gguf_array *scores = gguf_find_array(gguf, "tokenizer.ggml.scores");
    const struct gguf_array *types = gguf_find_array(gguf, "tokenizer.ggml.token_type");
    v->n = tokens && gguf_array_type(tokens) == GGUF_STRING ? gguf_array_n(tokens) : 0;
    if (v->n == 0 || v->n > LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.tokens is missing, empty or no array of strings", path);
    if (!scores || gguf_array_type(scores) == GGUF_STRING || gguf_array_n(scores) != v->n)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.scores: expected %zu numbers, one for each token", path, v->n);
    if (!types || gguf_array_type(types) == GGUF_STRING || gguf_array_n(types) != v->n)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.token_type: expected %zu numbers, one for each token", path,
                         v->n);
    v->pieces = calloc(v->n, sizeof *v->pieces);
    if (!v->pieces)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; i < v->n; i++) {
        int64_t type = gguf_array_int(types, i);
        if (type < PIECE_NORMAL || type > PIECE_BYTE)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: tokenizer.ggml.token_type[%zu] is %lld, expected 1 to 6", path, i,
                             (long long)type);
        gguf_array_string(tokens, i, &v->pieces[i].bytes, &v->pieces[i].n_bytes);
        v->pieces[i].score = (float)gguf_array_float(scores, i);
        v->pieces[i].type = (enum piece_type)type;
        v->has_bytes |= type == PIECE_BYTE;
    }
    return TUTTI_OK;
}

static enum tutti_status read_charsmap(struct gguf_vocab *v, const struct gguf *gguf, const char *path,
                                       struct tutti_error *err)
{
    static const char KEY[] = "tokenizer.ggml.precompiled_charsmap";
    const struct gguf_array *bytes = gguf_find_array(gguf, KEY);
    if (!bytes) {
        return json_object_get(gguf_scalars(gguf), KEY)
                   ? error_set(err, TUTTI_E_FORMAT, "%s: %s is no array, expected one of bytes", path, KEY)
                   : TUTTI_OK;
    }
    if (gguf_array_type(bytes) != GGUF_U8 && gguf_array_type(bytes) != GGUF_I8)
        return error_set(err, TUTTI_E_FORMAT, "%s: %s is an array of type %d, expected one of bytes", path,
                         KEY, (int)gguf_array_type(bytes));
    v->n_map_bytes = gguf_array_n(bytes);
    v->map = malloc(v->n_map_bytes + 1);
    if (!v->map)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; i < v->n_map_bytes; i++)
        v->map[i] = (uint8_t)gguf_array_int(bytes, i);
    return TUTTI_OK;
}

static bool string_is(const json_t *scalars, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(scalars, key));
    return value && strcmp(value, text) == 0;
}

/* Reads tutti's own keys, for settings that llama.cpp's kinds lack. */
static enum tutti_status read_own_settings(struct piece_vocab *vocab, struct word_list *words,
                                           const struct gguf *gguf, const char *path, struct tutti_error *err)
{
    const json_t *scalars = gguf_scalars(gguf);
    const json_t *unknown = json_object_get(scalars, TOKENIZER_OWN_KEY("unk_surface")),
                 *n_images = json_object_get(scalars, TOKENIZER_OWN_KEY("image_tokens"));
    vocab->byte_fallback = flag_of(scalars, TOKENIZER_OWN_KEY("byte_fallback"), false);
    vocab->keeps_blanks = !flag_of(scalars, TOKENIZER_OWN_KEY("escape_whitespaces"), true);
    vocab->blank_is_suffix = flag_of(scalars, TOKENIZER_OWN_KEY("treat_whitespace_as_suffix"), false);
    vocab->unk_surface = json_string_value(unknown);
    vocab->n_unk_surface = json_string_length(unknown);
    if (string_is(scalars, TOKENIZER_OWN_KEY("rules"), "icetext")) {
        json_int_t n = json_is_integer(n_images) ? json_integer_value(n_images) : -1;
        if (n < 0 || n > LIMIT_VOCAB)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: " TOKENIZER_OWN_KEY("image_tokens") ": expected 0 to %d", path,
                             LIMIT_VOCAB);
        vocab->rules = PIECES_ICETEXT;
        vocab->n_images = (int32_t)n;
    } else if (string_is(scalars, TOKENIZER_OWN_KEY("rules"), "pangu")) {
        enum tutti_status st = word_list_read(words, gguf, path, err);
        if (st != TUTTI_OK)
            return st;
        vocab->rules = PIECES_PANGU;
        vocab->words = words->is_there ? &words->files : NULL;
    } else if (!string_is(scalars, TOKENIZER_OWN_KEY("rules"), "none")) {
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: " TOKENIZER_OWN_KEY("rules") ": expected none, icetext or pangu", path);
    }
    return TUTTI_OK;
}

/* Marks of the SentencePiece model, which GGUF files list as CONTROL, become USER_DEFINED again. */
static void restore_marks(struct gguf_vocab *v, const json_t *added)
{
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        if (json_is_true(json_object_get(token, "in_model")) && id >= 0 && (uint64_t)id < v->n)
            v->pieces[id].type = PIECE_USER_DEFINED;
    }
}

/* No key says what the marks of Phi-3 do to the blanks after them: llama.cpp, too, knows it by the model's name. */
static bool strips_blanks(const json_t *scalars)
{
    const char *name = json_string_value(json_object_get(scalars, "general.name"));
    return name && (strcasestr(name, "phi-3") || strcasestr(name, "phi3"));
}

/* Sets bos and eos of a text, and the added tokens: tutti's own list, else all control and
 * user-defined pieces, as in llama.cpp. Without keys, the kind llama begins with bos and the kind t5 ends with
 * eos; tutti's own kind leaves both to the family. */
static enum tutti_status finish_pieces(struct tokenizer *tok, const json_t *scalars, const json_t *added,
                                       bool is_own, bool is_unigram, const char *path,
                                       struct tutti_error *err)
{
    static const char BOS[] = "tokenizer.ggml.add_bos_token", EOS[] = "tokenizer.ggml.add_eos_token";
    enum tutti_status st = added ? tokenizer_add_listed(tok, added, path, err)
                                 : tokenizer_add_own_tokens(tok, true, strips_blanks(scalars), path, err);
    if (st == TUTTI_OK && !added)
        st = tokenizer_finish_added(tok, path, err);
    tokenizer_set_prefix_rule(tok, flag_of(scalars, TOKENIZER_PREFIX_KEY, false));
    if (!is_own || json_object_get(scalars, BOS) || json_object_get(scalars, EOS))
        tokenizer_set_affixes(tok, flag_of(scalars, BOS, !is_unigram),
                              flag_of(scalars, EOS, is_unigram && !is_own));
    return st;
}

/* Loads a SentencePiece vocabulary from a GGUF file. */
static enum tutti_status load_pieces(struct tokenizer **out, const struct gguf *gguf, const char *kind,
                                     const char *path, struct tutti_error *err)
{
    bool is_own = strcmp(kind, TOKENIZER_KIND_OWN) == 0, is_unigram = strcmp(kind, "t5") == 0;
    const json_t *scalars = gguf_scalars(gguf);
    struct gguf_vocab v = { 0 };
    struct word_list words = { 0 };
    json_t *added = NULL;
    if (is_own)
        is_unigram = string_is(scalars, TOKENIZER_OWN_KEY("model"), "unigram");
    enum tutti_status st = read_pieces(&v, gguf, path, err);
    if (st == TUTTI_OK)
        st = read_charsmap(&v, gguf, path, err);
    if (st == TUTTI_OK)
        st = tokenizer_read_added(&added, gguf, path, err);
    if (st != TUTTI_OK)
        goto done;
    struct piece_vocab vocab = {
        .pieces = v.pieces,
        .n_pieces = v.n,
        .add_dummy_prefix = flag_of(scalars, "tokenizer.ggml.add_space_prefix", !is_unigram),
        .remove_extra_whitespaces = flag_of(scalars, "tokenizer.ggml.remove_extra_whitespaces", false),
        .byte_fallback = v.has_bytes,
        .is_unigram = is_unigram,
        .map = v.map,
        .n_map_bytes = v.n_map_bytes,
        .unk_id = id_of(scalars, "tokenizer.ggml.unknown_token_id", is_unigram ? 2 : 0, v.n),
        .bos_id = id_of(scalars, "tokenizer.ggml.bos_token_id", is_unigram ? -1 : 1, v.n),
        .eos_id = id_of(scalars, "tokenizer.ggml.eos_token_id", is_unigram ? 1 : 2, v.n),
    };
    if (is_own)
        st = read_own_settings(&vocab, &words, gguf, path, err);
    restore_marks(&v, added);
    if (st == TUTTI_OK)
        st = tokenizer_from_pieces(out, &vocab, path, err);
    if (st == TUTTI_OK)
        st = finish_pieces(*out, scalars, added, is_own, is_unigram, path, err);
done:
    json_decref(added);
    word_list_close(&words);
    gguf_vocab_clear(&v);
    return st;
}

static enum tutti_status read_bytes(struct tokenizer **out, const struct gguf *gguf, const char *path,
                                    char *why, size_t size, struct tutti_error *err)
{
    struct tutti_error inner;
    enum tutti_status st = tokenizer_read_gguf(out, gguf, path, &inner);
    if (st != TUTTI_E_UNSUPPORTED)
        return st == TUTTI_OK ? st : error_set(err, st, "%s", inner.text);
    snprintf(why, size, "%s", inner.text);
    return TUTTI_OK;
}

/* Settings that are true or false: a number instead would be ignored in silence. */
static enum tutti_status check_flags(const json_t *scalars, const char *path, struct tutti_error *err)
{
    static const char *const FLAGS[] = {
        "add_bos_token",
        "add_eos_token",
        "add_sep_token",
        "add_space_prefix",
        "remove_extra_whitespaces",
        "normalizer.lowercase",
        "normalizer.strip_accents",
    };
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s", FLAGS[i]);
        const json_t *value = json_object_get(scalars, key);
        if (value && !json_is_boolean(value))
            return error_set(err, TUTTI_E_FORMAT, "%s: %s is %s, expected a bool", path, key,
                             json_is_string(value) ? "a string" : "a number");
    }
    return TUTTI_OK;
}

static enum tutti_status load_from_gguf(struct tokenizer **out, const struct gguf *gguf, const char *path,
                                        char *why, size_t size, struct tutti_error *err)
{
    enum tutti_status st = check_flags(gguf_scalars(gguf), path, err);
    if (st != TUTTI_OK)
        return st;
    const char *kind = json_string_value(json_object_get(gguf_scalars(gguf), "tokenizer.ggml.model"));
    if (json_object_get(gguf_scalars(gguf), TOKENIZER_JSON_CONFIG_KEY)) /* the kind is for other programs */
        return tokenizer_read_gguf_json(out, gguf, path, err);
    if (kind &&
        (strcmp(kind, "llama") == 0 || strcmp(kind, "t5") == 0 || strcmp(kind, TOKENIZER_KIND_OWN) == 0))
        return load_pieces(out, gguf, kind, path, err);
    if (kind && strcmp(kind, "bert") == 0)
        return tokenizer_read_gguf_bert(out, gguf, path, err);
    if (kind && (strcmp(kind, "gpt2") == 0 || strcmp(kind, "gemma4") == 0 || strcmp(kind, "whitespace") == 0))
        return read_bytes(out, gguf, path, why, size, err);
    if (kind && strcmp(kind, TOKENIZER_KIND_JSON) == 0)
        return tokenizer_read_gguf_json(out, gguf, path, err);
    snprintf(why, size,
             "%s: tokenizer.ggml.model is %s, expected \"llama\", \"t5\", \"gpt2\", \"bert\", "
             "\"gemma4\" or \"whitespace\"",
             path, kind ? kind : "missing");
    return TUTTI_OK;
}

enum tutti_status model_tokenizer_load(struct tokenizer **out, const struct family *family,
                                       const struct model_desc *desc, const struct checkpoint *ck, char *why,
                                       size_t size, struct tutti_error *err)
{
    *out = NULL;
    const struct gguf *gguf = checkpoint_gguf(ck);
    enum tutti_status st;
    if (!gguf) {
        struct tokenizer_source s = {
            .family = family, .desc = desc, .ck = ck, .folder = checkpoint_folder(ck)
        };
        st = tokenizer_settings_read(&s.tokenizer_config, ck, err);
        if (st == TUTTI_OK)
            st = load_from_folder(out, &s, why, size, err);
        json_decref(s.tokenizer_config);
        json_decref(s.json);
        return st;
    }
    st = load_from_gguf(out, gguf, checkpoint_path(ck), why, size, err);
    if (st == TUTTI_OK && *out)
        st = limit_to_rows(*out, desc->n_vocab, checkpoint_path(ck), err);
    if (st != TUTTI_OK) {
        tokenizer_free(*out);
        *out = NULL;
    }
    return st;
}
