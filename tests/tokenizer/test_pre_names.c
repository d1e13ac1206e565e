/* Names of tokenizer.ggml.pre against their regular expressions: tests/fixtures/tokenizer/pre_names.json,
 * made by tools/fixtures/make_pre_names.py. */
#include "tokenizer/bytes/byte_level.h"
#include "tokenizer/json/byte_files.h"
#include "word_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static uint64_t hash_line(const struct byte_level *level, const char *line, uint64_t hash)
{
    struct buf text = { 0 };
    const char *why = NULL;
    assert_true(buf_reserve(&text, 1));
    if (level->has_characters) /* else a form of Unicode, which cuts nothing */
        assert_true(normalizers_run(&level->normalizers, line, strlen(line), &text, &why));
    else
        assert_true(buf_add_string(&text, line));
    struct pattern_matcher *m = pattern_matcher_new(text.n_bytes);
    assert_non_null(m);
    assert_true(pretokenize(&level->pre, m, text.bytes, text.n_bytes, true, hash_word, &hash));
    pattern_matcher_free(m);
    buf_clear(&text);
    return hash_length(hash, 1); /* the line's end */
}

static bool has_flag(const json_t *rule, const char *flag)
{
    const json_t *flags = json_object_get(rule, "flags");
    for (size_t i = 0; i < json_array_size(flags); i++) {
        if (strcmp(json_string_value(json_array_get(flags, i)), flag) == 0)
            return true;
    }
    return false;
}

static void check_name(const char *name, const json_t *rule, const json_t *lines)
{
    struct tokenizer *tok = byte_level_new();
    struct tutti_error err = { 0 };
    const struct pre_name *named = pre_name_find(name);
    const json_t *hashes = json_object_get(rule, "hashes");
    assert_non_null(tok);
    if (byte_level_use(tok, named, name, "test", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    if (named->ignores_merges != has_flag(rule, "ignores_merges") ||
        named->adds_bos != has_flag(rule, "adds_bos") ||
        named->has_characters != has_flag(rule, "has_characters"))
        fail_msg("%s: other flags", name);
    uint64_t hash = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        if (i % 10 == 0)
            hash = WORD_HASH_BEGIN;
        hash = hash_line(tok->level, json_string_value(json_array_get(lines, i)), hash);
        bool is_last = i % 10 == 9 || i + 1 == json_array_size(lines);
        if (is_last && hash != strtoull(json_string_value(json_array_get(hashes, i / 10)), NULL, 16))
            fail_msg("%s: lines %zu to %zu are cut otherwise", name, i / 10 * 10, i);
    }
    tokenizer_free(tok);
}

static void every_name_cuts_as_its_patterns_say(void **state)
{
    (void)state;
    json_t *data = json_load_file(TEST_FIXTURES "/tokenizer/pre_names.json", 0, NULL);
    const json_t *rules = json_object_get(data, "rules");
    size_t n = 0;
    assert_non_null(data);
    for (size_t i = 0; i < json_array_size(rules); i++) {
        const json_t *rule = json_array_get(rules, i), *names = json_object_get(rule, "names");
        for (size_t k = 0; k < json_array_size(names); k++, n++)
            check_name(json_string_value(json_array_get(names, k)), rule, json_object_get(data, "lines"));
    }
    assert_true(n >= 90);
    json_decref(data);
}

static struct piece piece(const char *text, enum piece_type type)
{
    return (struct piece){ .bytes = text, .n_bytes = strlen(text), .type = type };
}

/* Tokens that are text: marks for blanks, <0xHH> for characters without a token, line feeds as one word. */
static void tokens_of_gemma4_are_text(void **state)
{
    (void)state;
    const struct piece tokens[] = { piece("<bos>", PIECE_CONTROL),
                                    piece("\xE2\x96\x81", PIECE_NORMAL),
                                    piece("a", PIECE_NORMAL),
                                    piece("b", PIECE_NORMAL),
                                    piece("ab", PIECE_NORMAL),
                                    piece("\xE2\x96\x81"
                                          "ab",
                                          PIECE_NORMAL),
                                    piece("\n\n", PIECE_NORMAL),
                                    piece("<0xC3>", PIECE_BYTE),
                                    piece("<0xA9>", PIECE_BYTE),
                                    piece("<eos>", PIECE_CONTROL) };
    const struct piece merges[] = { piece("a b", PIECE_NORMAL), piece("\xE2\x96\x81 ab", PIECE_NORMAL) };
    struct byte_vocab vocab = { .tokens = tokens,
                                .n_tokens = sizeof tokens / sizeof *tokens,
                                .merges = merges,
                                .n_merges = 2,
                                .pre = "gemma4",
                                .adds_bos = -1,
                                .adds_eos = true,
                                .unk_id = -1,
                                .bos_id = 0,
                                .eos_id = 9 };
    static const char TEXT[] = "ab ab\n\na\xC3\xA9\xC3";
    static const int32_t WANT[] = { 4, 5, 6, 2, 7, 8 };
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    struct ids ids = { 0 };
    struct buf text = { 0 };
    if (tokenizer_from_byte_vocab(&tok, &vocab, "test", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    assert_true(tokenizer_encode(tok, TEXT, strlen(TEXT) - 1, &ids));
    assert_int_equal(ids.n, sizeof WANT / sizeof *WANT);
    assert_memory_equal(ids.ids, WANT, sizeof WANT);
    assert_true(tokenizer_decode(tok, ids.ids, ids.n, &text));
    assert_string_equal(text.bytes, "ab ab\n\na\xC3\xA9");
    const struct token_affixes *affixes = tokenizer_affixes(tok);
    assert_true(affixes->n_before == 1 && affixes->before[0] == 0 && affixes->n_after == 1 &&
                affixes->after[0] == 9);
    assert_string_equal(tokenizer_pre(tok), "gemma4");
    assert_true(tokenizer_adds_eos(tok));
    ids_clear(&ids);
    buf_clear(&text);
    tokenizer_free(tok);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(every_name_cuts_as_its_patterns_say),
        cmocka_unit_test(tokens_of_gemma4_are_text),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
