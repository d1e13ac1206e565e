/* PanGu-Alpha's tokenizer against its authors' rules around jieba and SentencePiece; files of jieba that are broken. */
#include "base/files/mapping.h"
#include "tokenizer/legacy/jieba.h"
#include "tokenizer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define JIEBA TOKENIZER_FIXTURES "jieba"

static struct tokenizer *load(const char *jieba)
{
    struct mapping map;
    struct tutti_error err;
    struct tokenizer *tok = NULL;
    assert_int_equal(mapping_open(&map, TOKENIZER_FIXTURES "pangu.model", NULL), TUTTI_OK);
    if (tokenizer_from_pangu(&tok, map.bytes, map.n_bytes, jieba, "pangu.model", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    mapping_close(&map);
    return tok;
}

static void a_text_encodes_as_its_authors_do(void **state)
{
    (void)state;
    struct tokenizer *tok = load(JIEBA);
    cases_check_tokenizer(tok, "pangu");
    tokenizer_free(tok);
}

static void without_a_word_list_all_text_comes_back(void **state)
{
    (void)state;
    static const char TEXT[] = "你好 tutti\n3.14%  hello世界。";
    struct tokenizer *tok = load(NULL);
    struct ids ids = { 0 };
    struct buf text = { 0 };
    assert_true(tokenizer_encode(tok, TEXT, strlen(TEXT), &ids));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.ids[i], tokenizer_unk(tok));
    assert_true(tokenizer_decode(tok, ids.ids, ids.n, &text));
    assert_string_equal(text.bytes, TEXT);
    buf_clear(&text);
    ids_clear(&ids);
    tokenizer_free(tok);
}

static void a_text_never_spells_the_end(void **state)
{
    (void)state;
    static const char TEXT[] = "a<eod>b<eot>";
    const char *const folders[] = { JIEBA, NULL };
    for (int i = 0; i < 2; i++) {
        struct tokenizer *tok = load(folders[i]);
        struct ids ids = { 0 };
        assert_int_equal(tokenizer_eos(tok), tokenizer_find(tok, "<eod>", 5));
        assert_true(tokenizer_encode(tok, TEXT, strlen(TEXT), &ids));
        for (size_t k = 0; k < ids.n; k++) {
            assert_int_not_equal(ids.ids[k], tokenizer_find(tok, "<eod>", 5));
            assert_int_not_equal(ids.ids[k], tokenizer_find(tok, "<eot>", 5));
        }
        ids_clear(&ids);
        tokenizer_free(tok);
    }
}

struct words {
    const char *text;
    size_t at;
    int n;
};

static bool follow(void *arg, const char *word, size_t n_bytes)
{
    struct words *words = arg;
    assert_true(n_bytes > 0);
    assert_ptr_equal(word, words->text + words->at);
    words->at += n_bytes;
    return ++words->n > 0;
}

static void words_together_are_the_text(void **state)
{
    (void)state;
    struct jieba *jieba = NULL;
    assert_int_equal(jieba_open(&jieba, JIEBA, NULL), TUTTI_OK);
    static const char *const PARTS[] = { "你", "好", "世界", "龥",   "a",        "9", ".", "%",
                                         "-",  " ",  "\r\n", "\xFF", "\xE4\xB8", "é", "👋" };
    srand(11);
    for (int i = 0; i < 3000; i++) {
        char text[256] = "";
        for (int k = rand() % 30; k > 0; k--)
            strcat(text, PARTS[(size_t)rand() % (sizeof PARTS / sizeof *PARTS)]);
        struct words words = { .text = text };
        assert_true(jieba_cut(i % 5 ? jieba : NULL, text, strlen(text), follow, &words));
        assert_int_equal(words.at, strlen(text));
    }
    jieba_free(jieba);
}

static bool refuse(void *arg, const char *word, size_t n_bytes)
{
    (void)arg, (void)word, (void)n_bytes;
    return false;
}

static void cutting_ends_where_the_words_are_not_taken(void **state)
{
    (void)state;
    assert_false(jieba_cut(NULL, "a b", 3, refuse, NULL));
    assert_true(jieba_cut(NULL, "", 0, refuse, NULL)); /* there are none */
}

/* ---- broken files ---- */

static const char *const FILES[] = { "dict.txt", "finalseg/prob_start.py", "finalseg/prob_trans.py",
                                     "finalseg/prob_emit.py" };
enum { N_FILES = 4 };

/* A copy of the folder in which one file holds other bytes; NULL: in which it is missing. */
static void write_folder(const char *folder, int changed, const void *bytes, size_t n_bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/finalseg", folder);
    assert_true(mkdir(folder, 0700) == 0 && mkdir(path, 0700) == 0);
    for (int i = 0; i < N_FILES; i++) {
        char from[512];
        struct mapping map = { 0 };
        snprintf(from, sizeof from, JIEBA "/%s", FILES[i]);
        snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
        if (i == changed && !bytes)
            continue;
        assert_int_equal(mapping_open(&map, from, NULL), TUTTI_OK);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        if (i == changed)
            assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
        else
            assert_int_equal(fwrite(map.bytes, 1, map.n_bytes, file), map.n_bytes);
        assert_int_equal(fclose(file), 0);
        mapping_close(&map);
    }
}

static void remove_folder(const char *folder)
{
    char path[512];
    for (int i = 0; i < N_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/finalseg", folder);
    rmdir(path);
    rmdir(folder);
}

static void broken_files_are_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        int file;
        const char *text, *words;
        enum tutti_status status;
    } CASES[] = {
        { 0, NULL, "dict.txt", TUTTI_E_NOT_FOUND },
        { 0, "", "there is no word with a count", TUTTI_E_FORMAT },
        { 0, "word 0 n\n", "there is no word with a count", TUTTI_E_FORMAT },
        { 0, "word 3 n\n\n", "dict.txt: line 2: expected a word", TUTTI_E_FORMAT },
        { 0, "word\n", "line 1: expected a word", TUTTI_E_FORMAT },
        { 0, " 3\n", "line 1: expected a word", TUTTI_E_FORMAT },
        { 0, "word x\n", "line 1: expected a word", TUTTI_E_FORMAT },
        { 0, "word 3x\n", "line 1: expected a word", TUTTI_E_FORMAT },
        { 0, "word -3\n", "line 1: expected a word", TUTTI_E_FORMAT },
        { 0, "word 99999999999999999999\n", "a count below 1073741824", TUTTI_E_FORMAT },
        { 1, NULL, "prob_start.py", TUTTI_E_NOT_FOUND },
        { 1, "", "prob_start.py: byte 0: expected a table", TUTTI_E_FORMAT },
        { 1, "P=", "byte 2: expected a table", TUTTI_E_FORMAT },
        { 1, "P={'B': 1", "expected a table", TUTTI_E_FORMAT },
        { 1, "P={'B': one}", "expected a table", TUTTI_E_FORMAT },
        { 1, "P={'B': 1e999}", "expected a table", TUTTI_E_FORMAT },
        { 1, "P={'X': 1}", "expected a table", TUTTI_E_FORMAT },
        { 1, "P={'B': __import__('os')}", "expected a table", TUTTI_E_FORMAT },
        { 1, "P={'B': 111111111111111111111111111111111111111111111111111111111111111111}",
          "expected a table", TUTTI_E_FORMAT },
        { 2, "P={'B': {'E': 1}, 'B'}", "prob_trans.py: byte", TUTTI_E_FORMAT },
        { 3, "P={'B': {'\\u4e0g': 1}}", "prob_emit.py: byte", TUTTI_E_FORMAT },
        { 3, "P={'B': {'\\u4e", "prob_emit.py: byte", TUTTI_E_FORMAT },
    };
    char folder[128];
    snprintf(folder, sizeof folder, "/tmp/tutti-jieba-%d", (int)getpid());
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct jieba *jieba = NULL;
        struct tutti_error err = { 0 };
        write_folder(folder, CASES[i].file, CASES[i].text, CASES[i].text ? strlen(CASES[i].text) : 0);
        enum tutti_status st = jieba_open(&jieba, folder, &err);
        remove_folder(folder);
        if (st != CASES[i].status || jieba || !strstr(err.text, CASES[i].words))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, st, err.text, CASES[i].words);
    }
}

static void changed_files_are_an_error_or_other_words(void **state)
{
    (void)state;
    char folder[128];
    snprintf(folder, sizeof folder, "/tmp/tutti-jieba-%d", (int)getpid());
    srand(13);
    for (int i = 0; i < 200; i++) {
        static const char TEXT[] = "你好世界 hello 我是人工智能助手龥\xFF";
        char from[512];
        struct mapping map;
        struct jieba *jieba = NULL;
        struct tutti_error err = { 0 };
        snprintf(from, sizeof from, JIEBA "/%s", FILES[i % N_FILES]);
        assert_int_equal(mapping_open(&map, from, NULL), TUTTI_OK);
        uint8_t *copy = malloc(map.n_bytes);
        assert_non_null(copy);
        memcpy(copy, map.bytes, map.n_bytes);
        for (int k = rand() % 5; k >= 0; k--)
            copy[(size_t)rand() % map.n_bytes] = (uint8_t)(rand() % 3 ? "{}':,\\u \n0e-"[rand() % 12]
                                                                      : rand());
        write_folder(folder, i % N_FILES, copy, i % 7 ? map.n_bytes : (size_t)rand() % map.n_bytes);
        if (jieba_open(&jieba, folder, &err) == TUTTI_OK) {
            struct words words = { .text = TEXT };
            assert_true(jieba_cut(jieba, TEXT, strlen(TEXT), follow, &words));
            assert_int_equal(words.at, strlen(TEXT));
        } else {
            assert_true(err.text[0] != '\0' && !jieba);
        }
        jieba_free(jieba);
        remove_folder(folder);
        free(copy);
        mapping_close(&map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_encodes_as_its_authors_do),
        cmocka_unit_test(without_a_word_list_all_text_comes_back),
        cmocka_unit_test(a_text_never_spells_the_end),
        cmocka_unit_test(words_together_are_the_text),
        cmocka_unit_test(cutting_ends_where_the_words_are_not_taken),
        cmocka_unit_test(broken_files_are_told_what_is_wrong),
        cmocka_unit_test(changed_files_are_an_error_or_other_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
