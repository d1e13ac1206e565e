/* The tokenizer against the SentencePiece library: tests/fixtures/tokenizer/, made by
 * tools/fixtures/make_tokenizer_fixture.py. */
#include "base/files/mapping.h"
#include "tokenizer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void the_demo_model_encodes_as_the_library(void **state)
{
    (void)state;
    cases_check(TEST_DEMO_MODEL "/tokenizer.model", "demo");
}

static void byte_fallback_encodes_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "bytes.model", "bytes");
}

static void user_defined_pieces_encode_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "user.model", "user");
}

static void a_normalization_table_works_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "nfkc.model", "nfkc");
}

static void a_model_without_dummy_prefix_encodes_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "bare.model", "bare");
}

static void blanks_as_suffixes_encode_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "suffix.model", "suffix");
}

static void unused_pieces_fall_apart_as_in_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "unused.model", "unused");
}

/* Models of few characters with every kind of piece, equal scores, every option and maps of their own. */
static void odd_models_encode_as_the_library(void **state)
{
    (void)state;
    cases_check_many("odd", 24);
}

static void a_vocabulary_from_arrays_encodes_as_the_file(void **state)
{
    (void)state;
    struct tokenizer *file = cases_load(TEST_DEMO_MODEL "/tokenizer.model"), *arrays = NULL;
    int32_t n = tokenizer_n_pieces(file);
    struct piece *pieces = malloc((size_t)n * sizeof *pieces);
    assert_non_null(pieces);
    for (int32_t id = 0; id < n; id++)
        pieces[id] = tokenizer_piece(file, id);
    struct piece_vocab own;
    tokenizer_describe(file, &own);
    struct piece_vocab vocab = { .pieces = pieces,
                                 .n_pieces = (size_t)n,
                                 .add_dummy_prefix = own.add_dummy_prefix,
                                 .remove_extra_whitespaces = own.remove_extra_whitespaces,
                                 .byte_fallback = true,
                                 .unk_id = tokenizer_unk(file),
                                 .bos_id = tokenizer_bos(file),
                                 .eos_id = tokenizer_eos(file) };
    assert_int_equal(tokenizer_from_pieces(&arrays, &vocab, "arrays", NULL), TUTTI_OK);
    free(pieces);
    srand(3);
    for (int i = 0; i < 2000; i++) {
        static const char *const PARTS[] = { "Mia ", "the", " ",    "\n", "\xE4\xB8\x96",
                                             "\xFF", "12",  "\xE4", "?" };
        struct buf text = { 0 };
        for (int k = rand() % 30; k > 0; k--)
            assert_true(buf_add_string(&text, PARTS[rand() % (int)(sizeof PARTS / sizeof *PARTS)]));
        cases_encode_both(file, arrays, text.bytes, text.n_bytes);
        buf_clear(&text);
    }
    tokenizer_free(file);
    tokenizer_free(arrays);
}

static void broken_arrays_are_told_what_is_wrong(void **state)
{
    (void)state;
#define PIECE(text, score_, type_)                                                                           \
    {                                                                                                        \
        .bytes = text, .n_bytes = sizeof text - 1, .score = score_, .type = type_                            \
    }
    static const struct {
        struct piece pieces[2];
        size_t n_pieces;
        bool byte_fallback;
        int32_t unk_id, bos_id, eos_id;
        const char *words;
    } CASES[] = {
        { .n_pieces = 0, .words = "no tokens" },
        { { PIECE("a", 0, PIECE_NORMAL), PIECE("", 0, PIECE_NORMAL) }, 2, .words = "token 1 has 0 bytes" },
        { { PIECE("a", 0, 0) }, 1, .words = "token 0 is of type 0" },
        { { PIECE("a", 0, 7) }, 1, .words = "token 0 is of type 7" },
        { { PIECE("a", 0, -1) }, 1, .words = "token 0 is of type -1" },
        { { PIECE("a", 0, 1), PIECE("a", 0, 3) }, 2, .words = "both spelled" },
        { { PIECE("a", __builtin_nanf(""), 1) }, 1, .words = "not finite" },
        { { PIECE("a", 0, 1) }, 1, .unk_id = 1, .words = "the unknown token is 1, expected 0 to 0" },
        { { PIECE("a", 0, 1) }, 1, .bos_id = -2, .words = "the begin token is -2" },
        { { PIECE("a", 0, 1) }, 1, .eos_id = 0x7FFFFFFF, .words = "the end token is" },
        { { PIECE("a", 0, 1) }, 1, .unk_id = -1, .words = "neither BYTE tokens nor an unknown token" },
        { { PIECE("a", 0, 1) }, 1, .byte_fallback = true, .words = "no piece <0x00>" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct piece_vocab vocab = { .pieces = CASES[i].pieces,
                                     .n_pieces = CASES[i].n_pieces,
                                     .byte_fallback = CASES[i].byte_fallback,
                                     .unk_id = CASES[i].unk_id,
                                     .bos_id = CASES[i].bos_id,
                                     .eos_id = CASES[i].eos_id };
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        if (tokenizer_from_pieces(&tok, &vocab, "some.gguf", &err) != TUTTI_E_FORMAT || tok ||
            !strstr(err.text, CASES[i].words) || !strstr(err.text, "some.gguf"))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, err.text, CASES[i].words);
    }
}

static void a_continued_text_keeps_its_first_blank(void **state)
{
    (void)state;
    struct tokenizer *tok = cases_load(TEST_DEMO_MODEL "/tokenizer.model");
    struct ids ids = { 0 };
    assert_true(tokenizer_encode(tok, "the sea", 7, &ids));
    for (int keeps = 0; keeps < 2; keeps++) {
        struct detokenizer d;
        struct buf text = { 0 };
        detokenizer_init(&d, tok, keeps);
        for (size_t i = 0; i < ids.n; i++)
            assert_true(detokenizer_push(&d, ids.ids[i], &text));
        assert_true(detokenizer_push(&d, -1, &text)); /* no ids of this vocabulary */
        assert_true(detokenizer_push(&d, tokenizer_n_pieces(tok), &text));
        assert_true(detokenizer_finish(&d, &text));
        assert_string_equal(text.bytes, keeps ? " the sea" : "the sea");
        buf_clear(&text);
    }
    ids_clear(&ids);
    tokenizer_free(tok);
}

static void the_detokenizer_says_a_character_with_its_last_byte(void **state)
{
    (void)state;
    struct tokenizer *tok = cases_load(TEST_DEMO_MODEL "/tokenizer.model");
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
    struct tokenizer *tok = cases_load(TEST_DEMO_MODEL "/tokenizer.model");
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

/* Words, one long word, blanks, bytes that are no text, and characters that are no pieces. */
static void a_long_text_takes_no_quadratic_time(void **state)
{
    (void)state;
    static const char *const TEXTS[] = { "a fox named Mia and the sea ",
                                         "a",
                                         "the",
                                         " ",
                                         "\xFF",
                                         "\xE4\xB8\x96",
                                         "\xF0\x9F\x98\x80",
                                         "\xE2\x96\x81" };
    struct tokenizer *tok = cases_load(TEST_DEMO_MODEL "/tokenizer.model");
    size_t n = 1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t k = 0; k < sizeof TEXTS / sizeof *TEXTS; k++) {
        struct ids ids = { 0 };
        for (size_t i = 0; i < n; i++)
            text[i] = TEXTS[k][i % strlen(TEXTS[k])];
        double start = cases_cpu_seconds();
        assert_true(tokenizer_encode(tok, text, n, &ids));
        double took = cases_cpu_seconds() - start;
        print_message("# 1 MiB of \"%s\" in %.0f ms\n", k == 4 ? "0xFF" : TEXTS[k], took * 1000);
        assert_true(ids.n > 0 && took < 60); /* quadratic would be hours; sanitizers are slow */
        ids_clear(&ids);
    }
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
        BROKEN(PIECE_UNK PIECE_A "\x12\x02\x18\x03", "model_type is 3 (word)"),
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
    assert_int_equal(mapping_open(&map, TOKENIZER_FIXTURES "bytes.model", NULL), TUTTI_OK);
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
        cmocka_unit_test(odd_models_encode_as_the_library),
        cmocka_unit_test(a_vocabulary_from_arrays_encodes_as_the_file),
        cmocka_unit_test(broken_arrays_are_told_what_is_wrong),
        cmocka_unit_test(a_continued_text_keeps_its_first_blank),
        cmocka_unit_test(the_detokenizer_says_a_character_with_its_last_byte),
        cmocka_unit_test(special_tokens_are_found_but_never_spelled),
        cmocka_unit_test(a_long_text_takes_no_quadratic_time),
        cmocka_unit_test(a_broken_file_is_told_what_is_wrong),
        cmocka_unit_test(every_prefix_of_a_model_is_an_error_or_a_smaller_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
