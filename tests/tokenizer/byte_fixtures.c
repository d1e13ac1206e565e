#include "byte_fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *const BYTE_FIXTURE_NAMES[] = { "gpt2",      "qwen2",    "llama3", "bloom", "tekken",
                                           "starcoder", "deepseek", "odd",    "glm4",  "llama2",
                                           "metaspace", "gemma",    "marks",  "o200k", NULL };

struct mapping byte_fixture_open(const char *file)
{
    struct mapping map;
    struct tutti_error err;
    char path[512];
    snprintf(path, sizeof path, "%s%s", BYTE_FIXTURES, file);
    if (mapping_open(&map, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return map;
}

static struct byte_file file_of(const struct mapping *map, const char *name)
{
    return (struct byte_file){ .bytes = map->bytes, .n_bytes = map->n_bytes, .name = name };
}

static enum tutti_status load_gpt2(struct tokenizer **out, struct tutti_error *err)
{
    struct mapping vocab = byte_fixture_open("gpt2/vocab.json"),
                   merges = byte_fixture_open("gpt2/merges.txt");
    struct byte_file files[2] = { file_of(&vocab, "vocab.json"), file_of(&merges, "merges.txt") };
    enum tutti_status st = tokenizer_from_vocab_merges(out, &files[0], &files[1], "gpt-2", NULL, err);
    mapping_close(&vocab);
    mapping_close(&merges);
    return st;
}

static enum tutti_status load_glm4(struct tokenizer **out, struct tutti_error *err)
{
    struct mapping map = byte_fixture_open("glm4/tokenizer.model");
    struct byte_file file = file_of(&map, "tokenizer.model");
    json_t *config = json_load_file(BYTE_FIXTURES "glm4/tokenizer_config.json", 0, NULL);
    enum tutti_status st = tokenizer_from_tiktoken(out, &file, "glm4", NULL, 0, config, err);
    json_decref(config);
    mapping_close(&map);
    return st;
}

struct tokenizer *byte_fixture_load(const char *name)
{
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    char file[64];
    enum tutti_status st;
    snprintf(file, sizeof file, "%s.json", name);
    if (strcmp(name, "gpt2") == 0) {
        st = load_gpt2(&tok, &err);
    } else if (strcmp(name, "glm4") == 0) {
        st = load_glm4(&tok, &err);
    } else {
        struct mapping map = byte_fixture_open(file);
        struct byte_file json = file_of(&map, file);
        st = tokenizer_from_json(&tok, &json, NULL, &err);
        mapping_close(&map);
    }
    if (st != TUTTI_OK)
        fail_msg("%s: %s", name, err.text);
    return tok;
}

struct list {
    struct buf bytes;
    struct ids ends;
};

static bool add_line(void *to, const char *line, size_t n_bytes)
{
    struct list *list = to;
    return buf_add(&list->bytes, line, n_bytes) && ids_add(&list->ends, (int32_t)list->bytes.n_bytes);
}

static struct piece *pieces_of(const struct list *list)
{
    struct piece *pieces = calloc(list->ends.n + 1, sizeof *pieces);
    int32_t begin = 0;
    for (size_t i = 0; i < list->ends.n; i++) {
        pieces[i] = (struct piece){ .bytes = list->bytes.bytes + begin,
                                    .n_bytes = (size_t)(list->ends.ids[i] - begin),
                                    .type = PIECE_NORMAL };
        begin = list->ends.ids[i];
    }
    return pieces;
}

struct tokenizer *byte_fixture_through_arrays(const struct tokenizer *tok)
{
    struct list tokens = { { 0 }, { 0 } }, merges = { { 0 }, { 0 } };
    struct tokenizer *out = NULL;
    struct tutti_error err = { 0 };
    for (int32_t id = 0; id < tokenizer_n_pieces(tok); id++) {
        assert_true(tokenizer_spelling(tok, id, &tokens.bytes));
        assert_true(ids_add(&tokens.ends, (int32_t)tokens.bytes.n_bytes));
    }
    assert_true(tokenizer_each_merge(tok, add_line, &merges));
    struct byte_vocab vocab = { .tokens = pieces_of(&tokens),
                                .n_tokens = tokens.ends.n,
                                .merges = pieces_of(&merges),
                                .n_merges = merges.ends.n,
                                .pre = tokenizer_pre(tok),
                                .adds_bos = tokenizer_adds_bos(tok),
                                .unk_id = -1,
                                .bos_id = tokenizer_bos(tok),
                                .eos_id = tokenizer_eos(tok) };
    for (int32_t id = 0; id < tokenizer_n_pieces(tok); id++)
        ((struct piece *)(uintptr_t)vocab.tokens)[id].type = tokenizer_piece(tok, id).type;
    if (tokenizer_from_byte_vocab(&out, &vocab, "arrays", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    free((void *)(uintptr_t)vocab.tokens);
    free((void *)(uintptr_t)vocab.merges);
    buf_clear(&tokens.bytes);
    buf_clear(&merges.bytes);
    ids_clear(&tokens.ends);
    ids_clear(&merges.ends);
    return out;
}
