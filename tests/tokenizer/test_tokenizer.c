/* The tokenizer against the SentencePiece library: tests/fixtures/tokenizer/, made by
 * tools/fixtures/make_tokenizer_fixture.py. */
#include "base/clock.h"
#include "base/mapping.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER TEST_FIXTURES "/tokenizer/"

static struct tokenizer *load(const char *path)
{
    struct mapping map;
    struct tutti_error err;
    struct tokenizer *tok = NULL;
    assert_int_equal(mapping_open(&map, path, &err), TUTTI_OK);
    if (tokenizer_from_sentencepiece(&tok, map.bytes, map.n_bytes, path, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    mapping_close(&map);
    return tok;
}

static uint32_t take_u32(const uint8_t **at)
{
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

static void check_encode(const struct tokenizer *tok, const char *name, int number, const uint8_t *text,
                         uint32_t n_text, const int32_t *want, uint32_t n_want)
{
    struct ids ids = { 0 };
    assert_true(tokenizer_encode(tok, (const char *)text, n_text, &ids));
    bool same = ids.n == n_want && (n_want == 0 || memcmp(ids.ids, want, n_want * sizeof *want) == 0);
    if (!same)
        fail_msg("%s: case %d: \"%.*s\": %zu ids, expected %u", name, number, (int)n_text, text, ids.n,
                 n_want);
    ids_clear(&ids);
}

/* All at once, and piece by piece: whole characters only, nothing held that could have been said. */
static void check_decode(const struct tokenizer *tok, const char *name, int number, const int32_t *ids,
                         uint32_t n_ids, const uint8_t *want, uint32_t n_want)
{
    struct buf text = { 0 }, pieces = { 0 };
    struct detokenizer d;
    assert_true(tokenizer_decode(tok, ids, n_ids, &text));
    detokenizer_init(&d, tok, false);
    for (uint32_t i = 0; i < n_ids; i++) {
        assert_true(detokenizer_push(&d, ids[i], &pieces));
        assert_true(utf8_is_valid(pieces.bytes, pieces.n_bytes));
        assert_true(d.n_held == 0 || utf8_is_start((const char *)d.held, (size_t)d.n_held));
    }
    assert_true(detokenizer_finish(&d, &pieces));
    bool same = text.n_bytes == n_want && (n_want == 0 || memcmp(text.bytes, want, n_want) == 0);
    if (!same)
        fail_msg("%s: case %d: decoded \"%s\", expected \"%.*s\"", name, number, text.bytes ? text.bytes : "",
                 (int)n_want, want);
    assert_int_equal(pieces.n_bytes, n_want);
    if (n_want > 0)
        assert_memory_equal(pieces.bytes, want, n_want);
    buf_clear(&text);
    buf_clear(&pieces);
}

static void check_model(const char *model, const char *name)
{
    char path[512];
    struct mapping map;
    struct tokenizer *tok = load(model);
    snprintf(path, sizeof path, FOLDER "%s.cases", name);
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    const uint8_t *at = map.bytes, *end = map.bytes + map.n_bytes;
    int n_cases = 0;
    for (; at < end; n_cases++) {
        uint32_t n_text = take_u32(&at);
        bool decodes_only = n_text == UINT32_MAX;
        const uint8_t *text = at;
        at += decodes_only ? 0 : n_text;
        uint32_t n_ids = take_u32(&at);
        int32_t *ids = malloc((n_ids + 1) * sizeof *ids);
        assert_non_null(ids);
        memcpy(ids, at, n_ids * sizeof *ids);
        at += n_ids * sizeof *ids;
        uint32_t n_back = take_u32(&at);
        if (!decodes_only)
            check_encode(tok, name, n_cases, text, n_text, ids, n_ids);
        check_decode(tok, name, n_cases, ids, n_ids, at, n_back);
        at += n_back;
        free(ids);
    }
    assert_true(n_cases > 700);
    mapping_close(&map);
    tokenizer_free(tok);
}

static void the_demo_model_encodes_as_the_library(void **state)
{
    (void)state;
    check_model(TEST_DEMO_MODEL "/tokenizer.model", "demo");
}

static void byte_fallback_encodes_as_the_library(void **state)
{
    (void)state;
    check_model(FOLDER "bytes.model", "bytes");
}

static void user_defined_pieces_encode_as_the_library(void **state)
{
    (void)state;
    check_model(FOLDER "user.model", "user");
}

static void a_normalization_table_works_as_the_library(void **state)
{
    (void)state;
    check_model(FOLDER "nfkc.model", "nfkc");
}

static void a_model_without_dummy_prefix_encodes_as_the_library(void **state)
{
    (void)state;
    check_model(FOLDER "bare.model", "bare");
}

static void blanks_as_suffixes_encode_as_the_library(void **state)
{
    (void)state;
    check_model(FOLDER "suffix.model", "suffix");
}

static void unused_pieces_fall_apart_as_in_the_library(void **state)
{
    (void)state;
    check_model(FOLDER "unused.model", "unused");
}

static void the_detokenizer_says_a_character_with_its_last_byte(void **state)
{
    (void)state;
    struct tokenizer *tok = load(TEST_DEMO_MODEL "/tokenizer.model");
    static const char BYTES[] = "\xF0\x9F\x98\x80"; /* U+1F600 */
    struct detokenizer d;
    struct buf out = { 0 };
    detokenizer_init(&d, tok, false);
    for (int i = 0; i < 4; i++) {
        char spelling[8];
        snprintf(spelling, sizeof spelling, "<0x%02X>", (unsigned)(uint8_t)BYTES[i]);
        int32_t id = tokenizer_find(tok, spelling, 6);
        assert_true(id >= 0);
        assert_int_equal(out.n_bytes, 0);
        assert_true(detokenizer_push(&d, id, &out));
    }
    assert_string_equal(out.bytes, BYTES);
    buf_truncate(&out, 0);
    assert_true(
        detokenizer_push(&d, tokenizer_find(tok, "<0xE4>", 6), &out)); /* a character that never ends */
    assert_int_equal(out.n_bytes, 0);
    assert_true(detokenizer_finish(&d, &out));
    assert_string_equal(out.bytes, "\xEF\xBF\xBD");
    buf_clear(&out);
    tokenizer_free(tok);
}

static void special_tokens_are_found_but_never_spelled(void **state)
{
    (void)state;
    struct tokenizer *tok = load(TEST_DEMO_MODEL "/tokenizer.model");
    struct ids ids = { 0 };
    int32_t id;
    assert_int_equal(tokenizer_add_control(tok, "<|user|>", &id, NULL), TUTTI_OK);
    assert_int_equal(tokenizer_find_control(tok, "<|user|>"), id);
    assert_true(tokenizer_encode(tok, "<|user|></s>", 12, &ids));
    for (size_t i = 0; i < ids.n; i++) {
        assert_int_not_equal(ids.ids[i], id);
        assert_int_not_equal(ids.ids[i], tokenizer_eos(tok));
    }
    ids_clear(&ids);
    tokenizer_free(tok);
}

static void a_long_text_takes_no_quadratic_time(void **state)
{
    (void)state;
    struct tokenizer *tok = load(TEST_DEMO_MODEL "/tokenizer.model");
    size_t n = 1 << 20;
    char *text = malloc(n);
    struct ids ids = { 0 };
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = "a fox named Mia and the sea "[i % 28];
    uint64_t start = clock_now_us();
    assert_true(tokenizer_encode(tok, text, n, &ids));
    print_message("# 1 MiB in %.0f ms\n", (double)(clock_now_us() - start) / 1000);
    assert_true(ids.n > n / 10);
    ids_clear(&ids);
    free(text);
    tokenizer_free(tok);
}

/* ---- broken files ---- */

struct broken {
    const char *bytes;
    size_t n_bytes;
    const char *words;
};
#define BROKEN(bytes_, words_)                                                                               \
    {                                                                                                        \
        .bytes = bytes_, .n_bytes = sizeof bytes_ - 1, .words = words_                                       \
    }
/* A piece: field 1 of the model; inside text (1), score (2, fixed32), type (3). The trainer's field 3 says BPE. */
#define PIECE_UNK "\x0a\x09\x0a\x05<unk>\x18\x02"
#define PIECE_A                                                                                              \
    "\x0a\x03\x0a\x01"                                                                                       \
    "a"
#define IS_BPE "\x12\x02\x18\x02"

static void a_broken_file_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct broken CASES[] = {
        BROKEN("", "no pieces"),
        BROKEN("\x0a", "truncated"),
        BROKEN("\x0a\x09\x0a\x05<un", "truncated"),
        BROKEN("\x0a\x04\x0a\x05<u", "pieces[0] is truncated"),
        BROKEN("\x0b", "no protobuf"), /* a group */
        BROKEN("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "no protobuf"),
        BROKEN(PIECE_UNK PIECE_A, "model_type is 1 (unigram)"), /* unigram is the default */
        BROKEN(PIECE_A IS_BPE, "no piece is of type UNKNOWN"),
        BROKEN(PIECE_UNK PIECE_UNK IS_BPE, "both spelled"),
        BROKEN(PIECE_UNK PIECE_A PIECE_A IS_BPE, "both spelled"),
        BROKEN(PIECE_UNK "\x0a\x02\x0a\x00" IS_BPE, "0 bytes"),
        BROKEN(PIECE_UNK "\x0a\x05\x0a\x01"
                         "b\x18\x09" IS_BPE,
               "pieces[1].type is 9"),
        BROKEN(PIECE_UNK "\x0a\x05\x0a\x01"
                         "b\x18\x06" IS_BPE,
               "BYTE"),
        BROKEN(PIECE_UNK "\x0a\x08\x0a\x01"
                         "b\x15\x00\x00\xc0\x7f" IS_BPE,
               "not finite"),
        BROKEN(PIECE_UNK "\x0a\x0a\x0a\x06<0x0A>\x18\x06" IS_BPE, "byte_fallback is not set"),
        BROKEN(PIECE_UNK "\x0a\x04\x0a\x02"
                         "b\0" IS_BPE,
               "zero byte"),
        BROKEN(PIECE_UNK "\x0a\x06\x0a\x02"
                         "<u\x18\x02" IS_BPE,
               "pieces[0] and pieces[1] are of type UNKNOWN"),
        BROKEN(PIECE_UNK PIECE_A IS_BPE "\x2a\x07\x12\x05\x01\x00\x00\x00\x00", "denormalizer_spec"),
        BROKEN(PIECE_UNK PIECE_A IS_BPE "\x1a\x02\x12\x04", "normalizer_spec is truncated"),
        BROKEN(PIECE_UNK PIECE_A "\x12\x02\x18\x07", "model_type is 7"),
        BROKEN(PIECE_UNK PIECE_A "\x12\x05\x18\x02\x98\x02\x01", "<0x00>"), /* byte_fallback */
        BROKEN(PIECE_UNK PIECE_A IS_BPE "\x1a\x06\x12\x04\xff\xff\xff\x00", "trie"),
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        enum tutti_status st = tokenizer_from_sentencepiece(&tok, CASES[i].bytes, CASES[i].n_bytes,
                                                            "some.model", &err);
        if (st == TUTTI_OK || !strstr(err.text, CASES[i].words) || !strstr(err.text, "some.model"))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, st, err.text, CASES[i].words);
        assert_null(tok);
    }
}

static void every_prefix_of_a_model_is_an_error_or_a_smaller_model(void **state)
{
    (void)state;
    struct mapping map;
    assert_int_equal(mapping_open(&map, FOLDER "bytes.model", NULL), TUTTI_OK);
    for (size_t n = 0; n < map.n_bytes; n++) {
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        if (tokenizer_from_sentencepiece(&tok, map.bytes, n, "x", &err) != TUTTI_OK)
            assert_true(err.text[0] != '\0' && !tok);
        tokenizer_free(tok);
    }
    mapping_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model_encodes_as_the_library),
        cmocka_unit_test(byte_fallback_encodes_as_the_library),
        cmocka_unit_test(user_defined_pieces_encode_as_the_library),
        cmocka_unit_test(a_normalization_table_works_as_the_library),
        cmocka_unit_test(a_model_without_dummy_prefix_encodes_as_the_library),
        cmocka_unit_test(blanks_as_suffixes_encode_as_the_library),
        cmocka_unit_test(unused_pieces_fall_apart_as_in_the_library),
        cmocka_unit_test(the_detokenizer_says_a_character_with_its_last_byte),
        cmocka_unit_test(special_tokens_are_found_but_never_spelled),
        cmocka_unit_test(a_long_text_takes_no_quadratic_time),
        cmocka_unit_test(a_broken_file_is_told_what_is_wrong),
        cmocka_unit_test(every_prefix_of_a_model_is_an_error_or_a_smaller_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
