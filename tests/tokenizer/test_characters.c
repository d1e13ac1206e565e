/* Every character, compared with what the reference libraries make of it (tools/fixtures/make_character_fixtures.py). */
#include "tokenizer/stages/pretokenize.h"
#include "tokenizer/unicode/unicode.h"

#include "tokenizer/unicode/substitutes.h"
#include "word_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <utf8proc.h>

enum { N_BLOCKS = 65, BLOCK = 0x1000 };

static json_t *load(void)
{
    json_error_t error;
    json_t *data = json_load_file(TEST_FIXTURES "/tokenizer/characters.json", 0, &error);
    if (!data)
        fail_msg("line %d: %s", error.line, error.text);
    return data;
}

/* Each %c of a format becomes the character. */
static void add_character(struct buf *out, const char *format, uint32_t c)
{
    uint8_t bytes[4];
    size_t n = (size_t)utf8proc_encode_char((utf8proc_int32_t)c, bytes);
    for (; *format; format++)
        assert_true(*format == '%' ? buf_add(out, bytes, n) : buf_add(out, format, 1));
}

/* Chinese characters, and Hangul: nearly all alike. */
static bool is_uniform(uint32_t block)
{
    return (block >= 4 && block <= 8) || block == 0xB || block == 0xC || (block >= 0x20 && block < 0x40);
}

static void make_block(struct buf *out, int block, const char *format)
{
    uint32_t first = block == N_BLOCKS - 1 ? 0xE0000 : (uint32_t)block * BLOCK,
             step = is_uniform(first >> 12) ? 61 : 1;
    buf_truncate(out, 0);
    for (uint32_t c = first; c < first + BLOCK; c += step) {
        if (c < 0xD800 || c >= 0xE000)
            add_character(out, format, c);
    }
}

static uint64_t fnv(uint64_t hash, const void *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3;
    return hash;
}

static void check_hash(const char *name, int block, const json_t *hashes, uint64_t got)
{
    uint64_t want = strtoull(json_string_value(json_array_get(hashes, (size_t)block)), NULL, 16);
    if (got != want)
        fail_msg("%s: block %d differs", name, block);
}

static void add_steps(struct pretokenizer *pre, const json_t *steps)
{
    size_t i;
    json_t *step;
    struct tutti_error err;
    json_array_foreach(steps, i, step)
    {
        const char *source = json_string_value(step);
        if (strcmp(source, "Digits") == 0)
            source = PATTERN_DIGITS;
        if (strcmp(source, "Punctuation") == 0)
            source = PATTERN_PUNCTUATION;
        if (pretokenizer_add(pre, (struct pre_step){ .kind = PRE_PATTERN }, source, strlen(source), "test",
                             &err) != TUTTI_OK)
            fail_msg("%s", err.text);
    }
}

static void every_character_is_cut_as_by_the_library(void **state)
{
    (void)state;
    json_t *data = load(), *set;
    const char *name;
    static struct buf texts[N_BLOCKS];
    for (int block = 0; block < N_BLOCKS; block++)
        make_block(&texts[block], block, "a%1% %%.%A%\n%");
    json_object_foreach(json_object_get(data, "cuts"), name, set)
    {
        struct pretokenizer pre = { .n_steps = 0 };
        add_steps(&pre, json_object_get(set, "steps"));
        for (int block = 0; block < N_BLOCKS; block++) {
            const struct buf *text = &texts[block];
            if (json_is_null(json_array_get(json_object_get(set, "blocks"), (size_t)block)))
                continue;
            struct pattern_matcher *m = pattern_matcher_new(text->n_bytes);
            uint64_t hash = WORD_HASH_BEGIN;
            assert_true(m && pretokenize(&pre, m, text->bytes, text->n_bytes, true, hash_word, &hash));
            check_hash(name, block, json_object_get(set, "blocks"), hash);
            pattern_matcher_free(m);
        }
        pretokenizer_clear(&pre);
    }
    for (int block = 0; block < N_BLOCKS; block++)
        buf_clear(&texts[block]);
    json_decref(data);
}

static void every_character_is_normalized_as_by_the_library(void **state)
{
    static const char *const FORMS[] = {
        [UNICODE_NFC] = "NFC", [UNICODE_NFD] = "NFD", [UNICODE_NFKC] = "NFKC", [UNICODE_NFKD] = "NFKD"
    };
    (void)state;
    json_t *data = load();
    struct buf text = { 0 }, out = { 0 };
    for (int form = 0; form < 4; form++) {
        const json_t *hashes = json_object_get(json_object_get(data, "forms"), FORMS[form]);
        for (int block = 0; block < N_BLOCKS; block++) {
            make_block(&text, block,
                       "e%\xCC\x81\xCC\xA3%\xCC\xB4"
                       "a\xCC\xA3%\xCC\x82 %%");
            buf_truncate(&out, 0);
            assert_true(unicode_normalize((enum unicode_form)form, text.bytes, text.n_bytes, &out));
            check_hash(FORMS[form], block, hashes, fnv(WORD_HASH_BEGIN, out.bytes, out.n_bytes));
        }
    }
    buf_clear(&text);
    buf_clear(&out);
    json_decref(data);
}

/* Positions in the copy of a text must be those in the text. */
static void substitutes_have_as_many_bytes(void **state)
{
    (void)state;
    const struct unicode_tables *t = &UNICODE_TABLES;
    uint8_t bytes[4];
    assert_true(t->n_substitutes > 0);
    for (size_t i = 0; i < t->n_substitutes; i++) {
        const struct substitute *run = &t->substitutes[i];
        assert_true(run->first <= run->last && (i == 0 || run->first > run[-1].last));
        for (uint32_t c = run->first; c <= run->last; c++)
            assert_int_equal(utf8proc_encode_char((utf8proc_int32_t)c, bytes),
                             utf8proc_encode_char((utf8proc_int32_t)run->by, bytes));
        assert_ptr_equal(substitute_find(run->first), run);
        assert_ptr_equal(substitute_find(run->last), run);
        assert_null(substitute_find(run->by)); /* a library that knows no newer characters knows it */
    }
    assert_null(substitute_find('a'));
    assert_null(substitute_find(0x10FFFF));
}

/* 1 MiB of a character that one library normalizes and the other does not. */
static void characters_that_are_left_alone_take_no_quadratic_time(void **state)
{
    (void)state;
    struct buf text = { 0 }, out = { 0 };
    while (text.n_bytes < 1 << 20)
        add_character(&text, "%%%%", 0x1E4EC);
    assert_true(unicode_normalize(UNICODE_NFC, text.bytes, text.n_bytes, &out));
    assert_int_equal(out.n_bytes, text.n_bytes);
    assert_memory_equal(out.bytes, text.bytes, text.n_bytes);
    buf_clear(&text);
    buf_clear(&out);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(every_character_is_cut_as_by_the_library),
        cmocka_unit_test(every_character_is_normalized_as_by_the_library),
        cmocka_unit_test(substitutes_have_as_many_bytes),
        cmocka_unit_test(characters_that_are_left_alone_take_no_quadratic_time),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
