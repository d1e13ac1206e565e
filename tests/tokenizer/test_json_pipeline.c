/* tokenizer.json files shaped like published ones against the tokenizers library: tests/fixtures/tokenizer/json/, made by
 * tools/fixtures/make_json_tokenizers.py. */
#include "base/files/mapping.h"
#include "base/utf8.h"
#include "tokenizer/json/byte_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER TEST_FIXTURES "/tokenizer/json/"

static const char *const NAMES[] = { "bert",        "bert-cased",    "t5",          "xlmr",
                                     "albert",      "unigram-bytes", "clip",        "gpt1",
                                     "prefixed",    "roberta",       "falcon",      "gemma",
                                     "pad-is-text", "words",         "bytes-first", "metaspaces" };
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

static struct mapping open_file(const char *name, const char *end)
{
    struct mapping map;
    struct tutti_error err;
    char path[512];
    snprintf(path, sizeof path, "%s%s%s", FOLDER, name, end);
    if (mapping_open(&map, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return map;
}

static struct tokenizer *load(const char *name)
{
    struct mapping map = open_file(name, ".json");
    struct byte_file file = { .bytes = map.bytes, .n_bytes = map.n_bytes, .name = name };
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    if (tokenizer_from_json(&tok, &file, NULL, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    mapping_close(&map);
    return tok;
}

static uint32_t take(const uint8_t **at, size_t n_bytes)
{
    uint32_t value = 0;
    memcpy(&value, *at, n_bytes);
    *at += n_bytes;
    return value;
}

static void take_ids(const uint8_t **at, struct ids *out)
{
    out->n = 0;
    for (uint32_t n = take(at, 2); n > 0; n--)
        assert_true(ids_add(out, (int32_t)take(at, 2)));
}

/* The place of a case, for messages. */
struct place {
    const char *name, *what;
    int number;
    const void *line;
    size_t n_line;
};

static void check_ids(const struct place *p, const struct ids *got, const struct ids *want)
{
    size_t i = 0;
    while (i < got->n && i < want->n && got->ids[i] == want->ids[i])
        i++;
    if (i < got->n || i < want->n)
        fail_msg("%s: case %d: \"%.*s\": %s: id %zu is %d of %zu, expected %d of %zu", p->name, p->number,
                 (int)p->n_line, (const char *)p->line, p->what, i, i < got->n ? got->ids[i] : -1, got->n,
                 i < want->n ? want->ids[i] : -1, want->n);
}

static void check_text(const struct place *p, const struct buf *got, const void *want, size_t n_want)
{
    if (got->n_bytes != n_want || (n_want > 0 && memcmp(got->bytes, want, n_want) != 0))
        fail_msg("%s: case %d: %s: \"%s\", expected \"%.*s\"", p->name, p->number, p->what,
                 got->n_bytes ? got->bytes : "", (int)n_want, (const char *)want);
}

/* All at once, and one by one: whole characters only. */
static void check_decode(const struct tokenizer *tok, struct place *p, const struct ids *ids,
                         const uint8_t **at)
{
    struct buf text = { 0 }, pieces = { 0 };
    struct detokenizer d;
    uint32_t n_want = take(at, 4);
    p->what = "decoded";
    assert_true(tokenizer_decode(tok, ids->ids, ids->n, &text));
    check_text(p, &text, *at, n_want);
    p->what = "decoded one by one";
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i < ids->n; i++) {
        assert_true(detokenizer_push(&d, ids->ids[i], &pieces));
        assert_true(utf8_is_valid(pieces.bytes, pieces.n_bytes));
    }
    assert_true(detokenizer_finish(&d, &pieces));
    check_text(p, &pieces, *at, n_want);
    *at += n_want;
    buf_clear(&text);
    buf_clear(&pieces);
}

/* As plain text; with special tokens parsed; with those that belong around a text. */
static void check_line(const struct tokenizer *tok, struct place *p, const uint8_t **at)
{
    struct ids plain = { 0 }, want = { 0 }, got = { 0 };
    const struct token_affixes *affixes = tokenizer_affixes(tok);
    take_ids(at, &plain);
    p->what = "plain";
    assert_true(tokenizer_encode(tok, p->line, p->n_line, &got));
    check_ids(p, &got, &plain);
    take_ids(at, &want);
    p->what = "parsed";
    got.n = 0;
    assert_true(tokenizer_encode_trusted(tok, p->line, p->n_line, &got));
    check_ids(p, &got, &want);
    take_ids(at, &want);
    p->what = "whole";
    got.n = 0;
    assert_true(ids_add_all(&got, affixes->before, (size_t)affixes->n_before) &&
                tokenizer_encode_trusted(tok, p->line, p->n_line, &got) &&
                ids_add_all(&got, affixes->after, (size_t)affixes->n_after));
    check_ids(p, &got, &want);
    check_decode(tok, p, &plain, at);
    ids_clear(&plain);
    ids_clear(&want);
    ids_clear(&got);
}

static void every_pipeline_gives_the_librarys_ids_and_text(void **state)
{
    (void)state;
    struct mapping lines = open_file("lines", ".bin");
    for (int i = 0; i < N_NAMES; i++) {
        struct tokenizer *tok = load(NAMES[i]);
        struct mapping map = open_file(NAMES[i], ".cases");
        const uint8_t *at = map.bytes, *line = lines.bytes;
        struct place p = { .name = NAMES[i] };
        struct ids ids = { 0 };
        for (; line < lines.bytes + lines.n_bytes; p.number++) {
            p.n_line = take(&line, 4);
            p.line = line;
            check_line(tok, &p, &at);
            line += p.n_line;
        }
        assert_true(p.number > 200);
        for (p.n_line = 0; at < map.bytes + map.n_bytes; p.number++) {
            take_ids(&at, &ids);
            check_decode(tok, &p, &ids, &at);
        }
        ids_clear(&ids);
        mapping_close(&map);
        tokenizer_free(tok);
    }
    mapping_close(&lines);
}

/* A vocabulary as GGUF has it: words begin with a mark, and what continues them has none. */
static void wordpiece_of_gguf_gives_the_same_ids(void **state)
{
    (void)state;
    struct tokenizer *tok = load("bert"), *gguf = NULL;
    size_t n = (size_t)tokenizer_n_pieces(tok);
    struct piece *tokens = calloc(n, sizeof *tokens);
    char(*marked)[64] = calloc(n, sizeof *marked);
    struct tutti_error err = { 0 };
    assert_true(tokens && marked);
    for (size_t i = 0; i < n; i++) {
        tokens[i] = tokenizer_piece(tok, (int32_t)i);
        bool continues = tokens[i].n_bytes > 2 && memcmp(tokens[i].bytes, "##", 2) == 0;
        if (tokens[i].type == PIECE_CONTROL)
            continue;
        int length = snprintf(marked[i], sizeof marked[i], "%s%.*s", continues ? "" : "\xE2\x96\x81",
                              (int)tokens[i].n_bytes - 2 * continues, tokens[i].bytes + 2 * continues);
        tokens[i].bytes = marked[i];
        tokens[i].n_bytes = (size_t)length;
    }
    struct bert_vocab vocab = { .tokens = tokens,
                                .n_tokens = n,
                                .lowers = true,
                                .strips_accents = true,
                                .unk_id = 1,
                                .bos_id = 2,
                                .sep_id = 3 };
    if (tokenizer_from_bert_vocab(&gguf, &vocab, "some.gguf", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    struct mapping lines = open_file("lines", ".bin");
    struct place p = { .name = "bert of GGUF", .what = "plain" };
    struct ids want = { 0 }, got = { 0 };
    int n_compared = 0;
    for (const uint8_t *line = lines.bytes; line < lines.bytes + lines.n_bytes; p.number++) {
        p.n_line = take(&line, 4);
        p.line = line;
        line += p.n_line;
        /* A mark that a text holds begins a token there. Words have no greatest length. */
        if (memmem(p.line, p.n_line, "\xE2\x96\x81", 3) || p.number == 6 || p.number == 7)
            continue;
        want.n = got.n = 0;
        assert_true(tokenizer_encode(tok, p.line, p.n_line, &want));
        assert_true(tokenizer_encode(gguf, p.line, p.n_line, &got));
        check_ids(&p, &got, &want);
        n_compared++;
    }
    assert_true(n_compared > 150);
    const struct token_affixes *affixes = tokenizer_affixes(gguf);
    assert_true(affixes->n_before == 1 && affixes->before[0] == 2 && affixes->n_after == 1 &&
                affixes->after[0] == 3);
    ids_clear(&want);
    ids_clear(&got);
    mapping_close(&lines);
    tokenizer_free(tok);
    tokenizer_free(gguf);
    free(tokens);
    free(marked);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(every_pipeline_gives_the_librarys_ids_and_text),
        cmocka_unit_test(wordpiece_of_gguf_gives_the_same_ids),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
