/* Unigram models against the SentencePiece library, and ChatGLM-6B's icetext against its authors' rules around it. */
#include "base/files/mapping.h"
#include "tokenizer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_IMAGES = 7 }; /* as in tools/fixtures/make_tokenizer_fixture.py */

static void a_unigram_model_encodes_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "unigram.model", "unigram");
}

static void unigram_byte_fallback_encodes_as_the_library(void **state)
{
    (void)state;
    cases_check(TOKENIZER_FIXTURES "unigram-bytes.model", "unigram-bytes");
}

static void odd_unigram_models_encode_as_the_library(void **state)
{
    (void)state;
    cases_check_many("odd-unigram", 24);
}

static void sums_beyond_the_librarys_bound_keep_its_precision(void **state)
{
    (void)state;
    cases_check_many("costly-unigram", 1);
}

static enum tutti_status load_icetext(struct tokenizer **tok, const char *name, int32_t n_images,
                                      struct tutti_error *err)
{
    char path[512];
    struct mapping map;
    snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.model", name);
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    enum tutti_status st = tokenizer_from_icetext(tok, map.bytes, map.n_bytes, n_images, path, err);
    mapping_close(&map);
    return st;
}

static void both_releases_of_icetext_encode_as_their_authors(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "icetext", "icetext-slim" };
    for (int i = 0; i < 2; i++) {
        struct tokenizer *tok = NULL;
        assert_int_equal(load_icetext(&tok, NAMES[i], N_IMAGES, NULL), TUTTI_OK);
        cases_check_tokenizer(tok, "icetext");
        assert_int_equal(tokenizer_find_control(tok, "[gMASK]") + 3, tokenizer_find_control(tok, "<sop>"));
        assert_int_equal(tokenizer_bos(tok), tokenizer_find_control(tok, "<sop>"));
        assert_int_equal(tokenizer_eos(tok), tokenizer_find_control(tok, "<eop>"));
        tokenizer_free(tok);
    }
}

static void images_stand_in_front_of_all_other_tokens(void **state)
{
    (void)state;
    static const char TEXT[] = "hello\n\n\tworld    x";
    struct tokenizer *slim = NULL, *first = NULL;
    struct ids a = { 0 }, b = { 0 };
    assert_int_equal(load_icetext(&slim, "icetext-slim", 0, NULL), TUTTI_OK);
    assert_int_equal(load_icetext(&first, "icetext", N_IMAGES, NULL), TUTTI_OK);
    assert_int_equal(tokenizer_n_pieces(slim) + N_IMAGES, tokenizer_n_pieces(first));
    assert_int_equal(tokenizer_bos(slim) + N_IMAGES, tokenizer_bos(first));
    assert_true(tokenizer_encode(slim, TEXT, strlen(TEXT), &a));
    assert_true(tokenizer_encode(first, TEXT, strlen(TEXT), &b));
    assert_int_equal(a.n, b.n);
    for (size_t i = 0; i < a.n; i++)
        assert_int_equal(a.ids[i] + N_IMAGES, b.ids[i]);
    ids_clear(&a);
    ids_clear(&b);
    tokenizer_free(slim);
    tokenizer_free(first);
}

static void a_token_of_blanks_tells_its_bytes(void **state)
{
    (void)state;
    struct tokenizer *tok = NULL;
    assert_int_equal(load_icetext(&tok, "icetext-slim", 0, NULL), TUTTI_OK);
    static const struct {
        const char *spelling, *bytes;
    } CASES[] = { { "<n>", "\n" }, { "<|tab|>", "\t" }, { "<|blank_2|>", "  " }, { "<|blank_5|>", "     " } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct buf bytes = { 0 };
        int32_t id = tokenizer_find(tok, CASES[i].spelling, strlen(CASES[i].spelling));
        assert_true(tokenizer_token_bytes(tok, id, &bytes));
        assert_string_equal(bytes.bytes, CASES[i].bytes);
        buf_clear(&bytes);
    }
    tokenizer_free(tok);
}

static void a_file_that_is_no_icetext_is_told_what_it_lacks(void **state)
{
    (void)state;
    struct tokenizer *tok = NULL;
    struct tutti_error err;
    assert_int_equal(load_icetext(&tok, "unigram", 0, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "unigram.model: <n> is missing"));
    assert_int_equal(load_icetext(&tok, "icetext", -1, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "-1 image tokens"));
    assert_int_equal(load_icetext(&tok, "icetext", 0x7FFFFFFF, &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "2147483647 image tokens"));
    assert_null(tok);
}

/* ---- vocabularies given as arrays ---- */

/* A map that a test may change. */
struct own_map {
    uint8_t *bytes;
    size_t n_bytes;
};

static struct own_map map_of_one_rule(void)
{
    /* x -> y: a block of units; unit 0's base is 1, so the byte 'x' leads to unit 1 ^ 'x', whose base is itself. */
    enum { BLOCK = 256 * 4, NODE = 1 ^ 'x', LEAF = NODE ^ 2 };
    struct own_map map = { calloc(1, 4 + BLOCK + 2), 4 + BLOCK + 2 };
    assert_non_null(map.bytes);
    uint32_t trie_bytes = BLOCK, units[BLOCK / 4] = { 0 };
    units[0] = 1u << 10;
    units[NODE] = 2u << 10 | 1u << 8 | 'x'; /* with a leaf */
    units[LEAF] = 1u << 31;                 /* the first string */
    memcpy(map.bytes, &trie_bytes, 4);
    memcpy(map.bytes + 4, units, BLOCK);
    map.bytes[4 + BLOCK] = 'y';
    return map;
}

static struct piece *pieces_of(const struct tokenizer *tok)
{
    struct piece *pieces = malloc((size_t)tokenizer_n_pieces(tok) * sizeof *pieces);
    assert_non_null(pieces);
    for (int32_t id = 0; id < tokenizer_n_pieces(tok); id++)
        pieces[id] = tokenizer_piece(tok, id);
    return pieces;
}

static void a_unigram_vocabulary_from_arrays_encodes_as_the_file(void **state)
{
    (void)state;
    struct tokenizer *file = cases_load(TOKENIZER_FIXTURES "unigram-bytes.model"), *arrays = NULL;
    struct piece *pieces = pieces_of(file);
    struct piece_vocab own;
    tokenizer_describe(file, &own);
    struct piece_vocab vocab = { .pieces = pieces,
                                 .n_pieces = (size_t)tokenizer_n_pieces(file),
                                 .add_dummy_prefix = own.add_dummy_prefix,
                                 .remove_extra_whitespaces = own.remove_extra_whitespaces,
                                 .byte_fallback = true,
                                 .is_unigram = true,
                                 .unk_id = tokenizer_unk(file),
                                 .bos_id = -1,
                                 .eos_id = -1 };
    assert_int_equal(tokenizer_from_pieces(&arrays, &vocab, "arrays", NULL), TUTTI_OK);
    cases_check_tokenizer(arrays, "unigram-bytes");
    tokenizer_free(arrays);
    vocab.unk_id = -1; /* every byte has a piece */
    assert_int_equal(tokenizer_from_pieces(&arrays, &vocab, "arrays", NULL), TUTTI_OK);
    cases_encode_both(file, arrays, "hello Ж世ЖЖ", strlen("hello Ж世ЖЖ"));
    tokenizer_free(arrays);
    tokenizer_free(file);
    free(pieces);
}

/* <0x0A> is the only byte piece. Characters that no pieces cover are unknown, and adjacent unknown characters share one id. */
static void characters_without_all_byte_pieces_are_unknown(void **state)
{
    (void)state;
    const struct piece pieces[] = { { "<unk>", 5, 0, PIECE_UNKNOWN },
                                    { "x", 1, -1, PIECE_NORMAL },
                                    { "<0x0A>", 6, 0, PIECE_BYTE } };
    static const int32_t WANT[] = { 2, 0, 2, 1, 0 };
    static const char TEXT[] = "\n\u00e9\u4e16\nx\u00e9\u00e9\u00e9\u00e9";
    for (int is_unigram = 0; is_unigram < 2; is_unigram++) {
        struct piece_vocab vocab = { .pieces = pieces,
                                     .n_pieces = 3,
                                     .byte_fallback = true,
                                     .is_unigram = is_unigram,
                                     .bos_id = -1,
                                     .eos_id = -1 };
        struct tokenizer *tok = NULL;
        struct tutti_error err;
        struct ids ids = { .max = 5 };
        assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "arrays", NULL), TUTTI_OK);
        assert_true(tokenizer_encode(tok, TEXT, strlen(TEXT), &ids));
        assert_int_equal(ids.n, 5);
        assert_memory_equal(ids.ids, WANT, sizeof WANT);
        ids_clear(&ids);
        tokenizer_free(tok);
        vocab.unk_id = -1;
        assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "arrays", &err), TUTTI_E_FORMAT);
        assert_non_null(strstr(err.text, "no piece <0x00>"));
    }
}

static void a_map_from_an_array_is_applied(void **state)
{
    (void)state;
    struct own_map map = map_of_one_rule();
    const struct piece pieces[] = { { "<unk>", 5, 0, PIECE_UNKNOWN },
                                    { "x", 1, -1, PIECE_NORMAL },
                                    { "y", 1, -1, PIECE_NORMAL } };
    struct piece_vocab vocab = { .pieces = pieces,
                                 .n_pieces = 3,
                                 .is_unigram = true,
                                 .bos_id = -1,
                                 .eos_id = -1,
                                 .map = map.bytes,
                                 .n_map_bytes = map.n_bytes };
    struct tokenizer *tok = NULL;
    struct ids ids = { 0 };
    assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "arrays", NULL), TUTTI_OK);
    assert_true(tokenizer_encode(tok, "xyzx", 4, &ids));
    static const int32_t WANT[] = { 2, 2, 0, 2 };
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.ids, WANT, sizeof WANT);
    ids_clear(&ids);
    tokenizer_free(tok);
    free(map.bytes);
}

static void a_broken_map_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        size_t n_bytes; /* of the map above, which are its first; 0: all */
        uint32_t trie_bytes;
        bool ends_open;
        const char *words;
    } CASES[] = {
        { .n_bytes = 3, .words = "of 3 bytes" },
        { .n_bytes = 4, .words = "of 4 bytes" },
        { .trie_bytes = 0, .words = "its trie has 0" },
        { .trie_bytes = 1020, .words = "its trie has 1020, expected a multiple of 1024" },
        { .trie_bytes = 1024, .n_bytes = 1028, .words = "its trie has 1024" }, /* no strings */
        { .trie_bytes = 2048, .words = "its trie has 2048" },
        { .trie_bytes = 0xFFFFFC00, .words = "its trie has 4294966272" },
        { .trie_bytes = 1024, .ends_open = true, .words = "zero byte" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct own_map map = map_of_one_rule();
        const struct piece pieces[] = { { "<unk>", 5, 0, PIECE_UNKNOWN } };
        struct piece_vocab vocab = { .pieces = pieces, .n_pieces = 1, .is_unigram = true };
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        memcpy(map.bytes, &CASES[i].trie_bytes, 4);
        if (CASES[i].ends_open)
            map.bytes[map.n_bytes - 1] = 'z';
        vocab.map = map.bytes;
        vocab.n_map_bytes = CASES[i].n_bytes > 0 ? CASES[i].n_bytes : map.n_bytes;
        if (tokenizer_from_pieces(&tok, &vocab, "some.gguf", &err) != TUTTI_E_FORMAT || tok ||
            !strstr(err.text, CASES[i].words) || !strstr(err.text, "some.gguf"))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, err.text, CASES[i].words);
        free(map.bytes);
    }
}

/* Units and strings are not trusted either: whatever stands there, a text is read or copied. */
static void a_map_of_any_units_is_harmless(void **state)
{
    (void)state;
    static const char TEXT[] = "xyz\x80 \xFF world \xE4\xBD\xA0";
    srand(5);
    for (int i = 0; i < 3000; i++) {
        struct own_map map = map_of_one_rule();
        const struct piece pieces[] = { { "<unk>", 5, 0, PIECE_UNKNOWN }, { "y", 1, -1, PIECE_NORMAL } };
        for (int k = rand() % 60; k >= 0; k--) {
            size_t at = 4 + (size_t)rand() % (map.n_bytes - 5); /* neither the size nor the end */
            map.bytes[at] = (uint8_t)rand();
        }
        struct piece_vocab vocab = {
            .pieces = pieces, .n_pieces = 2, .is_unigram = true, .map = map.bytes, .n_map_bytes = map.n_bytes
        };
        struct tokenizer *tok = NULL;
        struct ids ids = { 0 };
        assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "arrays", NULL), TUTTI_OK);
        assert_true(tokenizer_encode(tok, TEXT, strlen(TEXT), &ids));
        ids_clear(&ids);
        tokenizer_free(tok);
        free(map.bytes);
    }
}

/* ---- size, and broken files ---- */

static void a_long_text_takes_linear_time(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "unigram", "unigram-bytes" };
    static const char *const TEXTS[] = { "the house of voices ", "a", " ", "\xFF", "\xD0\x96", "tutti<n>" };
    size_t n = 1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t k = 0; k < 2 * sizeof TEXTS / sizeof *TEXTS; k++) {
        char path[512];
        struct ids ids = { 0 };
        snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.model", NAMES[k % 2]);
        struct tokenizer *tok = cases_load(path);
        for (size_t i = 0; i < n; i++)
            text[i] = TEXTS[k / 2][i % strlen(TEXTS[k / 2])];
        double start = cases_cpu_seconds();
        assert_true(tokenizer_encode(tok, text, n, &ids));
        double took = cases_cpu_seconds() - start;
        assert_true(took < 60); /* quadratic would be hours; sanitizers are slow */
        ids_clear(&ids);
        tokenizer_free(tok);
    }
    free(text);
}

/* A changed file gives an error with a text, or a tokenizer that encodes within its vocabulary. */
static void check_changed(const uint8_t *bytes, size_t n_bytes)
{
    static const char TEXT[] = "hello <n>the Ｆｕｌｌ tutti\n\t  Ж世\xFF";
    struct tokenizer *toks[2] = { NULL, NULL };
    struct tutti_error err = { 0 };
    enum tutti_status st = tokenizer_from_sentencepiece(&toks[0], bytes, n_bytes, "x", &err);
    assert_true(st == TUTTI_OK || (err.text[0] != '\0' && !toks[0]));
    st = tokenizer_from_icetext(&toks[1], bytes, n_bytes, 3, "x", &err);
    assert_true(st == TUTTI_OK || (err.text[0] != '\0' && !toks[1]));
    for (int i = 0; i < 2; i++) {
        struct ids ids = { 0 };
        struct buf text = { 0 };
        if (!toks[i])
            continue;
        assert_true(tokenizer_encode(toks[i], TEXT, strlen(TEXT), &ids));
        for (size_t k = 0; k < ids.n; k++)
            assert_in_range(ids.ids[k], 0, tokenizer_n_pieces(toks[i]) - 1);
        assert_true(tokenizer_decode(toks[i], ids.ids, ids.n, &text));
        buf_clear(&text);
        ids_clear(&ids);
        tokenizer_free(toks[i]);
    }
}

static void a_changed_file_is_an_error_or_another_model(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "unigram", "icetext", "icetext-slim" };
    srand(7);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[512];
        struct mapping map;
        snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.model", NAMES[i]);
        assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
        uint8_t *copy = malloc(map.n_bytes);
        assert_non_null(copy);
        for (int change = 0; change < 200; change++) {
            memcpy(copy, map.bytes, map.n_bytes);
            for (int k = rand() % 4; k >= 0; k--)
                copy[(size_t)rand() % map.n_bytes] = (uint8_t)(rand() % 2 ? rand() : 0xFF);
            check_changed(copy, change % 4 ? map.n_bytes : (size_t)rand() % map.n_bytes);
        }
        free(copy);
        mapping_close(&map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unigram_model_encodes_as_the_library),
        cmocka_unit_test(unigram_byte_fallback_encodes_as_the_library),
        cmocka_unit_test(odd_unigram_models_encode_as_the_library),
        cmocka_unit_test(sums_beyond_the_librarys_bound_keep_its_precision),
        cmocka_unit_test(both_releases_of_icetext_encode_as_their_authors),
        cmocka_unit_test(images_stand_in_front_of_all_other_tokens),
        cmocka_unit_test(a_token_of_blanks_tells_its_bytes),
        cmocka_unit_test(a_file_that_is_no_icetext_is_told_what_it_lacks),
        cmocka_unit_test(a_unigram_vocabulary_from_arrays_encodes_as_the_file),
        cmocka_unit_test(characters_without_all_byte_pieces_are_unknown),
        cmocka_unit_test(a_map_from_an_array_is_applied),
        cmocka_unit_test(a_broken_map_is_told_what_is_wrong),
        cmocka_unit_test(a_map_of_any_units_is_harmless),
        cmocka_unit_test(a_long_text_takes_linear_time),
        cmocka_unit_test(a_changed_file_is_an_error_or_another_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
