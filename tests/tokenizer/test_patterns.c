/* Regular expressions that tutti does not know, compared with the Hugging Face tokenizers library:
 * tests/fixtures/tokenizer/patterns.json, made by tools/fixtures/make_pattern_fixtures.py. */
#include "base/rng.h"
#include "tokenizer/json/byte_files.h"
#include "tokenizer/stages/pretokenize.h"
#include "word_hash.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static struct pretokenizer split_by(const char *source)
{
    struct pretokenizer pre = { .n_steps = 0 };
    struct tutti_error err = { 0 };
    if (pretokenizer_add(&pre, (struct pre_step){ .kind = PRE_PATTERN }, source, strlen(source), "test",
                         &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return pre;
}

/* False: a limit. */
static bool cut(const struct pretokenizer *pre, const char *text, uint64_t *hash, const char **why)
{
    struct pattern_matcher *m = pattern_matcher_new(strlen(text));
    assert_non_null(m);
    bool ok = pretokenize(pre, m, text, strlen(text), true, hash_word, hash);
    *why = pattern_matcher_why(m);
    pattern_matcher_free(m);
    return ok;
}

/* The hash of lines [first, first + 10). */
static uint64_t hash_lines(const struct pretokenizer *pre, const json_t *lines, size_t first)
{
    uint64_t hash = WORD_HASH_BEGIN;
    const char *why;
    for (size_t i = first; i < first + 10 && i < json_array_size(lines); i++) {
        assert_true(cut(pre, json_string_value(json_array_get(lines, i)), &hash, &why));
        hash = hash_length(hash, 1);
    }
    return hash;
}

struct fixtures {
    json_t *lines, *patterns;
};

static struct fixtures load(void)
{
    json_t *lines = json_load_file(TEST_FIXTURES "/tokenizer/pre_names.json", 0, NULL);
    json_t *data = json_load_file(TEST_FIXTURES "/tokenizer/patterns.json", 0, NULL);
    struct fixtures f = { json_incref(json_object_get(lines, "lines")),
                          json_incref(json_object_get(data, "patterns")) };
    json_decref(lines);
    json_decref(data);
    assert_true(json_array_size(f.lines) > 500 && json_object_size(f.patterns) >= 30);
    return f;
}

static void check_pattern(const char *source, const json_t *hashes, const json_t *lines)
{
    struct pretokenizer pre = split_by(source);
    for (size_t i = 0; i < json_array_size(hashes); i++) {
        uint64_t want = strtoull(json_string_value(json_array_get(hashes, i)), NULL, 16);
        if (hash_lines(&pre, lines, 10 * i) != want)
            fail_msg("%s: lines %zu to %zu are cut otherwise", source, 10 * i, 10 * i + 9);
    }
    pretokenizer_clear(&pre);
}

static void unknown_patterns_cut_as_in_the_library(void **state)
{
    (void)state;
    struct fixtures f = load();
    const char *source;
    json_t *hashes;
    json_object_foreach(f.patterns, source, hashes) check_pattern(source, hashes, f.lines);
    json_decref(f.lines);
    json_decref(f.patterns);
}

/* ---- threads ---- */

enum { N_THREADS = 8 };
static const char SHARED[] = "(?i:[a-k]+)|(\\p{L})\\1?|(?:\\s|\\S)";

struct user {
    pthread_t thread;
    const struct pretokenizer *shared;
    const json_t *lines;
    uint64_t hashes[64];
};

static void *use(void *of)
{
    struct user *user = of;
    struct pretokenizer own = split_by(SHARED); /* compiled while others search */
    for (size_t i = 0; i < 50; i++)
        user->hashes[i] = hash_lines(i % 2 ? &own : user->shared, user->lines, 10 * i);
    pretokenizer_clear(&own);
    return NULL;
}

static void threads_share_a_pattern(void **state)
{
    (void)state;
    static struct user users[N_THREADS + 1];
    struct fixtures f = load();
    struct pretokenizer pre = split_by(SHARED);
    for (int i = 0; i <= N_THREADS; i++)
        users[i] = (struct user){ .shared = &pre, .lines = f.lines };
    use(&users[N_THREADS]);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(users[i].thread, NULL);
        assert_memory_equal(users[i].hashes, users[N_THREADS].hashes, sizeof users[i].hashes);
    }
    pretokenizer_clear(&pre);
    json_decref(f.lines);
    json_decref(f.patterns);
}

/* ---- limits ---- */

static char *repeat(const char *text, size_t n, const char *end)
{
    size_t n_bytes = strlen(text);
    char *out = malloc(n * n_bytes + strlen(end) + 1);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * n_bytes, text, n_bytes);
    strcpy(out + n * n_bytes, end);
    return out;
}

static void check_limit(const char *source, const char *unit, size_t n, const char *end, const char *words)
{
    struct pretokenizer pre = split_by(source);
    char *text = repeat(unit, n, end);
    uint64_t hash = 0;
    const char *why = NULL;
    bool ok = cut(&pre, text, &hash, &why);
    if (ok != !words || (words && (!why || !strstr(why, words))))
        fail_msg("%s: %s, %s", source, ok ? "is cut" : "fails", why ? why : "no limit");
    free(text);
    pretokenizer_clear(&pre);
}

static void limits_of_patterns_are_named(void **state)
{
    (void)state;
    check_limit("(?:a|aa)+$", "a", 20, "", NULL);
    check_limit("(?:a|aa)+$", "a", 100, "x", "steps");
    check_limit("(?:(?:a|b|ab)*)*c", "ab", 100, "xc", "steps");
    check_limit("(?<x>a\\g<x>?\\g<x>?)c", "a", 100, "xc", "steps");
    check_limit("(?:a|b)*c", "ab", 100000, "c", NULL);
    check_limit("(?:a|b)*c", "ab", 4000000, "c", "64 MiB");
}

/* A whole context of text takes a search for each word, and no more. */
static void long_texts_stay_within_the_limits(void **state)
{
    static const char *const SOURCES[] = { "\\s+|\\S+", " ?(?:\\p{L}|\\p{M})+|\\s+(?!\\S)|.",
                                           "(?i)(?:ab)+|x?" };
    static const char *const UNITS[] = { "a", "ab ", " ", "\n", "\xE4\xB8\x96", "\xF0\x9F\xA9\xB7" };
    (void)state;
    for (size_t i = 0; i < sizeof SOURCES / sizeof *SOURCES; i++)
        for (size_t k = 0; k < sizeof UNITS / sizeof *UNITS; k++)
            check_limit(SOURCES[i], UNITS[k], (1 << 18) / strlen(UNITS[k]), "", NULL);
}

/* Groups of three digits are cut from whole runs: as Oniguruma cuts by the same pattern in brackets, which is another
 * one for tutti, but in linear time. */
static void groups_of_digits_are_cut_in_linear_time(void **state)
{
    static const char *const PATTERNS[][2] = {
        { "\\d{1,3}(?=(?:\\d{3})*\\b)", "(?:\\d{1,3}(?=(?:\\d{3})*\\b))" },
        { "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", "(?:\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N})))" },
    };
    static const char *const PARTS[] = {
        "1", "23", "4567890", "\xD9\xA3", "\xC2\xB2",    "\xE0\xA5\xA7\xE0\xA5\xA8", "a", "_",
        " ", ".",  "\n",      "\xCC\x81", "\xE4\xB8\x80"
    };
    enum { N_PARTS = sizeof PARTS / sizeof *PARTS, N_TEXTS = 3000, N_DIGITS = 1 << 20 };
    char *digits = malloc(N_DIGITS + 1);
    assert_non_null(digits);
    memset(digits, '7', N_DIGITS);
    digits[N_DIGITS] = '\0';
    (void)state;
    for (size_t p = 0; p < sizeof PATTERNS / sizeof *PATTERNS; p++) {
        struct pretokenizer pre = split_by(PATTERNS[p][0]), plain = split_by(PATTERNS[p][1]);
        const char *why;
        for (uint64_t i = 0; i < N_TEXTS; i++) {
            uint64_t got = WORD_HASH_BEGIN, want = WORD_HASH_BEGIN;
            char text[200] = "";
            for (uint64_t k = 0; k < 1 + mix64(i) % 20; k++)
                strcat(text, PARTS[mix64(i << 8 | k) % (mix64(~i) % 3 == 0 ? 4 : N_PARTS)]);
            assert_true(cut(&pre, text, &got, &why) && cut(&plain, text, &want, &why));
            if (got != want)
                fail_msg("%s: \"%s\" is cut otherwise", PATTERNS[p][0], text);
        }
        uint64_t hash = WORD_HASH_BEGIN;
        assert_true(cut(&pre, digits, &hash, &why));
        pretokenizer_clear(&pre);
        pretokenizer_clear(&plain);
    }
    free(digits);
}

static void check_refusal(const char *source, size_t n_bytes, const char *words)
{
    struct pattern *pattern = NULL;
    struct tutti_error err = { 0 };
    enum tutti_status st = pattern_new(&pattern, source, n_bytes, PATTERN_UNKNOWN, "some.json", &err);
    if (st != TUTTI_E_FORMAT || pattern || !strstr(err.text, words) || !strstr(err.text, "some.json"))
        fail_msg("%.40s: status %d, \"%s\", expected \"%s\"", source, (int)st, err.text, words);
}

static void large_patterns_are_bounded(void **state)
{
    (void)state;
    char *opened = repeat("(", 2000, ""), *wide = repeat("abc|", 10000, "d"), *deep = repeat("(?:", 200, "a");
    char *closed = repeat(")", 200, ""), *both = malloc(strlen(deep) + strlen(closed) + 1);
    assert_non_null(both);
    strcat(strcpy(both, deep), closed);
    check_refusal(opened, 2000, "parse depth limit over");
    check_limit(wide, "abcd", 100, "", NULL);
    check_limit(both, "a", 100, "", NULL);
    check_refusal("a", 0, "0 bytes");
    check_refusal(wide, 65537, "65537 bytes");
    free(opened);
    free(wide);
    free(deep);
    free(closed);
    free(both);
}

/* The error of a request names the limit, not memory. */
static void a_text_beyond_a_limit_is_an_error_that_names_it(void **state)
{
    (void)state;
    static const char TEXT[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"pre_tokenizer\":{\"type\":"
        "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|aa)+b\"},"
        "\"behavior\":"
        "\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false}]}}";
    static const char REPLACED[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"normalizer\":{\"type\":"
        "\"Replace\",\"pattern\":{\"Regex\":\"(?:a|aa)+b\"},\"content\":\"b\"},\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\",\"use_regex\":false}}";
    const struct byte_file files[] = { { TEXT, strlen(TEXT), "split.json" },
                                       { REPLACED, strlen(REPLACED), "replace.json" } };
    char *text = repeat("a", 100, "c");
    for (int i = 0; i < 2; i++) {
        struct tokenizer *tok = NULL;
        struct ids ids = { 0 };
        struct tutti_error err = { 0 };
        if (tokenizer_from_json(&tok, &files[i], NULL, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        assert_false(tokenizer_encode(tok, text, strlen(text), &ids));
        assert_int_equal(tokenizer_encode_error(&ids, &err), TUTTI_E_LIMIT);
        assert_non_null(strstr(err.text, "exceeds its limit of 4,194,304 steps"));
        ids_clear(&ids);
        assert_true(tokenizer_encode(tok, "aab", 3, &ids));
        assert_null(ids.why);
        ids_clear(&ids);
        tokenizer_free(tok);
    }
    free(text);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(unknown_patterns_cut_as_in_the_library),
        cmocka_unit_test(threads_share_a_pattern),
        cmocka_unit_test(limits_of_patterns_are_named),
        cmocka_unit_test(long_texts_stay_within_the_limits),
        cmocka_unit_test(groups_of_digits_are_cut_in_linear_time),
        cmocka_unit_test(large_patterns_are_bounded),
        cmocka_unit_test(a_text_beyond_a_limit_is_an_error_that_names_it),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
