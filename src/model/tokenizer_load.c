/* The tokenizer of a checkpoint: tokenizer.model of a folder, or the vocabulary in a GGUF file's metadata. */
#include "base/mapping.h"
#include "checkpoint/gguf.h"
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A SentencePiece file begins with field 1 (a piece), wire type 2. GLM-4's file of the same name is lines of text. */
static bool is_sentencepiece(const struct mapping *map)
{
    return map->n_bytes > 0 && map->bytes[0] == 0x0A;
}

static enum tutti_status load_from_folder(struct tokenizer **out, const struct family *family,
                                          const struct model_desc *desc, const char *folder, char *why,
                                          size_t size, struct tutti_error *err)
{
    struct mapping map = { 0 };
    struct tokenizer *tok = NULL;
    char path[4096];
    if (snprintf(path, sizeof path, "%s/tokenizer.model", folder) >= (int)sizeof path)
        return error_set(err, TUTTI_E_ARGUMENT, "%s: the path is too long", folder);
    if (access(path, F_OK) != 0) {
        snprintf(why, size, "%s: there is no tokenizer.model", folder);
        return TUTTI_OK;
    }
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    if (!is_sentencepiece(&map)) {
        snprintf(why, size, "%s: not a SentencePiece file", path);
        goto done;
    }
    struct tutti_error inner;
    st = tokenizer_from_sentencepiece(&tok, map.bytes, map.n_bytes, path, &inner);
    if (st == TUTTI_E_UNSUPPORTED) {
        snprintf(why, size, "%s", inner.text);
        st = TUTTI_OK;
        goto done;
    }
    if (st != TUTTI_OK) {
        error_set(err, st, "%s", inner.text);
        goto done;
    }
    if (tokenizer_n_pieces(tok) > desc->n_vocab) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: %d pieces, but the model's vocabulary holds %d", path,
                       tokenizer_n_pieces(tok), desc->n_vocab);
        goto done;
    }
    if (family->extend_tokenizer)
        st = family->extend_tokenizer(tok, desc, err);
    if (st == TUTTI_OK) {
        *out = tok;
        tok = NULL;
    }
done:
    tokenizer_free(tok);
    mapping_close(&map);
    return st;
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

static enum tutti_status load_from_gguf(struct tokenizer **out, const struct gguf *gguf, const char *path,
                                        char *why, size_t size, struct tutti_error *err)
{
    const json_t *scalars = gguf_scalars(gguf);
    const char *kind = json_string_value(json_object_get(scalars, "tokenizer.ggml.model"));
    if (!kind || strcmp(kind, "llama") != 0) {
        snprintf(why, size, "%s: tokenizer.ggml.model is %s, expected \"llama\"", path,
                 kind ? kind : "missing");
        return TUTTI_OK;
    }
    const struct gguf_array *tokens = gguf_find_array(gguf, "tokenizer.ggml.tokens");
    const struct gguf_array *scores = gguf_find_array(gguf, "tokenizer.ggml.scores");
    const struct gguf_array *types = gguf_find_array(gguf, "tokenizer.ggml.token_type");
    size_t n = tokens && gguf_array_type(tokens) == GGUF_STRING ? gguf_array_n(tokens) : 0;
    if (n == 0 || n > LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.tokens is missing, empty or no array of strings", path);
    if (!scores || gguf_array_type(scores) == GGUF_STRING || gguf_array_n(scores) != n)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.scores: expected %zu numbers, one for each token", path, n);
    if (!types || gguf_array_type(types) == GGUF_STRING || gguf_array_n(types) != n)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: tokenizer.ggml.token_type: expected %zu numbers, one for each token", path, n);
    struct piece *pieces = calloc(n, sizeof *pieces);
    if (!pieces)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < n; i++) {
        int64_t type = gguf_array_int(types, i);
        if (type < PIECE_NORMAL || type > PIECE_BYTE) {
            st = error_set(err, TUTTI_E_FORMAT, "%s: tokenizer.ggml.token_type[%zu] is %lld, expected 1 to 6",
                           path, i, (long long)type);
            goto done;
        }
        gguf_array_string(tokens, i, &pieces[i].bytes, &pieces[i].n_bytes);
        pieces[i].score = (float)gguf_array_float(scores, i);
        pieces[i].type = (enum piece_type)type;
    }
    struct bpe_vocab vocab = {
        .pieces = pieces,
        .n_pieces = n,
        .add_dummy_prefix = flag_of(scalars, "tokenizer.ggml.add_space_prefix", true),
        .remove_extra_whitespaces = flag_of(scalars, "tokenizer.ggml.remove_extra_whitespaces", false),
        .byte_fallback = true,
        .unk_id = id_of(scalars, "tokenizer.ggml.unknown_token_id", 0, n),
        .bos_id = id_of(scalars, "tokenizer.ggml.bos_token_id", 1, n),
        .eos_id = id_of(scalars, "tokenizer.ggml.eos_token_id", 2, n),
    };
    st = tokenizer_from_bpe_vocab(out, &vocab, path, err);
done:
    free(pieces);
    return st;
}

enum tutti_status model_tokenizer_load(struct tokenizer **out, const struct family *family,
                                       const struct model_desc *desc, const struct checkpoint *ck, char *why,
                                       size_t size, struct tutti_error *err)
{
    *out = NULL;
    const struct gguf *gguf = checkpoint_gguf(ck);
    if (!gguf)
        return load_from_folder(out, family, desc, checkpoint_folder(ck), why, size, err);
    enum tutti_status st = load_from_gguf(out, gguf, checkpoint_path(ck), why, size, err);
    if (st == TUTTI_OK && *out && tokenizer_n_pieces(*out) > desc->n_vocab) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: %d tokens, but the model's vocabulary holds %d",
                       checkpoint_path(ck), tokenizer_n_pieces(*out), desc->n_vocab);
        tokenizer_free(*out);
        *out = NULL;
    }
    return st;
}
