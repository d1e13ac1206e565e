/* Byte-level tokenizers against the tokenizers and tiktoken libraries: tests/fixtures/tokenizer/bytes/, made by
 * tools/fixtures/make_byte_tokenizers.py. */
#include "base/utf8.h"
#include "byte_fixtures.h"
#include "tokenizer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t take(const uint8_t **at, size_t n_bytes)
{
    uint32_t value = 0;
    memcpy(&value, *at, n_bytes);
    *at += n_bytes;
    return value;
}

static void take_ids(const uint8_t **at, uint32_t n, struct ids *out)
{
    out->n = 0;
    for (uint32_t i = 0; i < n; i++)
        assert_true(ids_add(out, (int32_t)take(at, 2)));
}

static void check_ids(const char *name, int number, const struct ids *got, const struct ids *want)
{
    for (size_t i = 0; i < got->n && i < want->n; i++) {
        if (got->ids[i] != want->ids[i])
            fail_msg("%s: case %d: id %zu is %d, expected %d", name, number, i, got->ids[i], want->ids[i]);
    }
    if (got->n != want->n)
        fail_msg("%s: case %d: %zu ids, expected %zu", name, number, got->n, want->n);
}

static void check_text(const char *name, int number, const struct buf *got, const void *want, size_t n_want)
{
    if (got->n_bytes != n_want || (n_want > 0 && memcmp(got->bytes, want, n_want) != 0))
        fail_msg("%s: case %d: decoded \"%s\", expected \"%.*s\"", name, number,
                 got->n_bytes ? got->bytes : "", (int)n_want, (const char *)want);
}

/* All at once, and one by one: whole characters only. */
static void check_decode(const struct tokenizer *tok, const char *name, int number, const struct ids *ids,
                         const void *want, size_t n_want)
{
    struct buf text = { 0 }, pieces = { 0 };
    struct detokenizer d;
    assert_true(tokenizer_decode(tok, ids->ids, ids->n, &text));
    check_text(name, number, &text, want, n_want);
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i < ids->n; i++) {
        assert_true(detokenizer_push(&d, ids->ids[i], &pieces));
        assert_true(utf8_is_valid(pieces.bytes, pieces.n_bytes));
        assert_true(d.n_held == 0 || utf8_is_start((const char *)d.held, (size_t)d.n_held));
    }
    assert_true(detokenizer_finish(&d, &pieces));
    check_text(name, number, &pieces, want, n_want);
    buf_clear(&text);
    buf_clear(&pieces);
}

struct cases {
    struct ids want, got;
    int n_differ; /* cases whose trusted ids are others */
};

static void check_line(const struct tokenizer *tok, const char *name, int number, const void *line,
                       size_t n_line, const uint8_t **at, struct cases *c)
{
    take_ids(at, take(at, 2), &c->want);
    c->got.n = 0;
    assert_true(tokenizer_encode(tok, line, n_line, &c->got));
    check_ids(name, number, &c->got, &c->want);
    cases_check_room(tok, line, n_line, c->want.n);
    uint32_t n_trusted = take(at, 2);
    struct ids trusted = { 0 };
    if (n_trusted != UINT16_MAX) {
        take_ids(at, n_trusted, &trusted);
        c->n_differ++;
    } else {
        assert_true(ids_add_all(&trusted, c->want.ids, c->want.n));
    }
    c->got.n = 0;
    assert_true(tokenizer_encode_trusted(tok, line, n_line, &c->got));
    check_ids(name, number, &c->got, &trusted);
    ids_clear(&trusted);
    uint32_t n_back = take(at, 4);
    bool is_line = n_back == UINT32_MAX;
    check_decode(tok, name, number, &c->want, is_line ? line : *at, is_line ? n_line : n_back);
    *at += is_line ? 0 : n_back;
}

static void check_all(const struct tokenizer *tok, const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "%s.cases", name);
    struct mapping lines = byte_fixture_open("lines.bin"), map = byte_fixture_open(file);
    struct cases c = { .n_differ = 0 };
    const uint8_t *line = lines.bytes, *at = map.bytes;
    int n = 0;
    for (; line < lines.bytes + lines.n_bytes; n++) {
        uint32_t n_line = take(&line, 4);
        check_line(tok, name, n, line, n_line, &at, &c);
        line += n_line;
    }
    assert_true(n > 150 && c.n_differ > 0);
    for (; at < map.bytes + map.n_bytes; n++) {
        take_ids(&at, take(&at, 2), &c.want);
        uint32_t n_back = take(&at, 4);
        check_decode(tok, name, n, &c.want, at, n_back);
        at += n_back;
    }
    ids_clear(&c.want);
    ids_clear(&c.got);
    mapping_close(&lines);
    mapping_close(&map);
}

static void equals_the_libraries(void **state)
{
    (void)state;
    for (int i = 0; BYTE_FIXTURE_NAMES[i]; i++) {
        struct tokenizer *tok = byte_fixture_load(BYTE_FIXTURE_NAMES[i]);
        assert_true(tokenizer_is_byte_level(tok));
        check_all(tok, BYTE_FIXTURE_NAMES[i]);
        tokenizer_free(tok);
    }
}

/* Merges of one long word are not begun where their tokens cannot fit. */
static void a_long_word_is_given_up_early(void **state)
{
    (void)state;
    enum { N_BYTES = 1024 * 1024 }; /* within the memory of any pattern */
    char *text = malloc(N_BYTES);
    assert_non_null(text);
    memset(text, 'a', N_BYTES);
    for (int i = 0; BYTE_FIXTURE_NAMES[i]; i++) {
        struct tokenizer *tok = byte_fixture_load(BYTE_FIXTURE_NAMES[i]);
        struct ids ids = { .max = 512 };
        assert_false(tokenizer_encode(tok, text, N_BYTES, &ids));
        assert_true(ids.is_full);
        assert_int_equal(ids.capacity, 0); /* no token was made */
        tokenizer_free(tok);
    }
    free(text);
}

static void says_the_same_through_ggufs_arrays(void **state)
{
    (void)state;
    static const char *const NAMES[][2] = { { "gpt2", "gpt-2" },
                                            { "qwen2", "qwen2" },
                                            { "llama3", "llama-bpe" },
                                            { "bloom", "bloom" },
                                            { "tekken", "tekken" },
                                            { "o200k", "gpt-4o" },
                                            { "starcoder", "starcoder" },
                                            { "glm4", "glm4" },
                                            { "deepseek", "deepseek-coder" },
                                            { "odd", NULL } };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        struct tokenizer *tok = byte_fixture_load(NAMES[i][0]);
        const char *pre = tokenizer_pre(tok);
        assert_true((pre == NULL) == (NAMES[i][1] == NULL));
        if (pre) {
            assert_string_equal(pre, NAMES[i][1]);
            struct tokenizer *again = byte_fixture_through_arrays(tok);
            check_all(again, NAMES[i][0]);
            assert_int_equal(tokenizer_bos(again), tokenizer_bos(tok));
            assert_int_equal(tokenizer_eos(again), tokenizer_eos(tok));
            tokenizer_free(again);
        }
        tokenizer_free(tok);
    }
}

static void knows_its_special_tokens(void **state)
{
    (void)state;
    struct tokenizer *qwen = byte_fixture_load("qwen2"), *llama = byte_fixture_load("llama3"),
                     *gpt2 = byte_fixture_load("gpt2"), *glm = byte_fixture_load("glm4");
    struct tokenizer *harmony = byte_fixture_load("o200k");
    static const char *const HARMONY[] = { "<|startoftext|>", "<|endoftext|>",  "<|return|>", "<|constrain|>",
                                           "<|channel|>",     "<|start|>",      "<|end|>",    "<|message|>",
                                           "<|call|>",        "<|endofprompt|>" };
    for (int32_t i = 0; i < 10; i++)
        assert_int_equal(tokenizer_find_control(harmony, HARMONY[i]), i);
    tokenizer_free(harmony);
    assert_int_equal(tokenizer_find_control(qwen, "<|im_start|>"), 1);
    assert_int_equal(tokenizer_find_control(qwen, "<think>"), -1); /* added, but not special */
    assert_int_equal(tokenizer_find_control(qwen, "the"), -1);
    assert_int_equal(tokenizer_adds_bos(qwen), 0); /* its post-processor adds no tokens */
    assert_int_equal(tokenizer_find_control(llama, "<|endoftext|>"), 0);
    assert_int_equal(tokenizer_bos(llama), 0); /* by its post-processor */
    assert_int_equal(tokenizer_adds_bos(llama), 1);
    assert_int_equal(tokenizer_eos(gpt2), tokenizer_find_control(gpt2, "<|endoftext|>"));
    assert_int_equal(tokenizer_eos(glm), tokenizer_find_control(glm, "<|endoftext|>"));
    assert_true(tokenizer_find_control(glm, "<sop>") > 0);
    struct buf bytes = { 0 };
    assert_true(tokenizer_token_bytes(qwen, 1, &bytes)); /* special tokens are no text */
    assert_int_equal(bytes.n_bytes, 0);
    int32_t id = tokenizer_find(qwen, " ", 1);
    assert_true(id >= 0 && tokenizer_token_bytes(qwen, id, &bytes));
    assert_int_equal(bytes.n_bytes, 1);
    assert_int_equal(bytes.bytes[0], ' ');
    buf_clear(&bytes);
    tokenizer_free(qwen);
    tokenizer_free(llama);
    tokenizer_free(gpt2);
    tokenizer_free(glm);
}

static bool has_special(const struct tokenizer *tok, const struct ids *ids, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        if (tokenizer_piece(tok, ids->ids[i]).type == PIECE_CONTROL && ids->ids[i] != tokenizer_unk(tok))
            return true;
    }
    return false;
}

/* A line between two special tokens of a format: all of it trusted, then only the format. */
static void check_ranges(const struct tokenizer *tok, const char *name, int number, const char *special,
                         const void *line, size_t n_line)
{
    struct buf text = { 0 };
    struct ids want = { 0 }, got = { 0 };
    size_t n = strlen(special);
    assert_true(buf_add(&text, special, n) && buf_add(&text, line, n_line) && buf_add(&text, special, n));
    struct trusted_range all = { 0, text.n_bytes }, ends[2] = { { 0, n }, { n + n_line, text.n_bytes } };
    assert_true(tokenizer_encode_trusted(tok, text.bytes, text.n_bytes, &want));
    assert_true(tokenizer_encode_ranges(tok, text.bytes, text.n_bytes, &all, 1, &got));
    check_ids(name, number, &got, &want);
    got.n = 0;
    assert_true(tokenizer_encode_ranges(tok, text.bytes, text.n_bytes, ends, 2, &got));
    int32_t id = tokenizer_find_control(tok, special);
    assert_true(got.n >= 1 && got.ids[0] == id);
    if (has_special(tok, &got, 1, got.ids[got.n - 1] == id ? got.n - 1 : got.n))
        fail_msg("%s: case %d: a special token from text that is not trusted", name, number);
    got.n = 0;
    assert_true(tokenizer_encode_trusted(tok, line, n_line, &got));
    if (!has_special(tok, &got, 0, got.n) &&
        !memchr(
            line, '<',
            n_line)) { /* without special tokens it must be encoded as the library encodes the whole text */
        got.n = 0;
        assert_true(tokenizer_encode_ranges(tok, text.bytes, text.n_bytes, ends, 2, &got));
        check_ids(name, number, &got, &want);
    }
    want.n = got.n = 0;
    assert_true(tokenizer_encode(tok, text.bytes, text.n_bytes, &want));
    assert_true(tokenizer_encode_ranges(tok, text.bytes, text.n_bytes, NULL, 0, &got));
    check_ids(name, number, &got, &want);
    buf_clear(&text);
    ids_clear(&want);
    ids_clear(&got);
}

static void special_tokens_come_from_trusted_parts_alone(void **state)
{
    (void)state;
    for (int i = 0; BYTE_FIXTURE_NAMES[i]; i++) {
        struct tokenizer *tok = byte_fixture_load(BYTE_FIXTURE_NAMES[i]);
        struct mapping lines = byte_fixture_open("lines.bin");
        const uint8_t *line = lines.bytes;
        const char *special = tokenizer_find_control(tok, "<s>") >= 0 ? "<s>" : "<|endoftext|>";
        for (int n = 0; line < lines.bytes + lines.n_bytes; n++) {
            uint32_t n_line = take(&line, 4);
            check_ranges(tok, BYTE_FIXTURE_NAMES[i], n, special, line, n_line);
            line += n_line;
        }
        mapping_close(&lines);
        tokenizer_free(tok);
    }
}

#ifndef __SANITIZE_THREAD__
/* The time of a text eight times as long must not be that of its square. */
static double seconds(const struct tokenizer *tok, const char *unit, size_t n_bytes)
{
    struct buf text = { 0 };
    struct ids ids = { 0 };
    while (text.n_bytes < n_bytes)
        assert_true(buf_add_string(&text, unit));
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        double start = cases_cpu_seconds();
        ids.n = 0;
        assert_true(tokenizer_encode(tok, text.bytes, text.n_bytes, &ids));
        double took = cases_cpu_seconds() - start;
        best = took < best ? took : best;
    }
    buf_clear(&text);
    ids_clear(&ids);
    return best;
}

static void long_texts_take_no_quadratic_time(void **state)
{
    (void)state;
    static const char *const UNITS[] = {
        "a", " ",  "\n",   "\xE4\xB8\x96", "=",  "7",   "a\xCC\x80\xCC\xA3", "\t ", "\xCC\x80\xCC\xA3",
        "<", "'s", "\xFF", " \xC2\xA0",    "Aa", "<|im"
    };
    for (int k = 0; BYTE_FIXTURE_NAMES[k]; k++) {
        struct tokenizer *tok = byte_fixture_load(BYTE_FIXTURE_NAMES[k]);
        for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++) {
            double few = seconds(tok, UNITS[i], 1 << 13), many = seconds(tok, UNITS[i], 1 << 16);
            /* A crowded machine and a sanitizer's memory make one measurement worse now and then, but not each. */
            for (int again = 0; again < 5 && many > 0.05 && many > 50 * few; again++) {
                few = seconds(tok, UNITS[i], 1 << 13);
                many = seconds(tok, UNITS[i], 1 << 16);
            }
            if (many > 0.05 && many > 50 * few)
                fail_msg("%s: \"%s\": %g s for 8 KiB, %g s for 64 KiB", BYTE_FIXTURE_NAMES[k], UNITS[i], few,
                         many);
        }
        tokenizer_free(tok);
    }
}
#endif

static void a_failed_text_adds_nothing(void **state)
{
    (void)state;
    struct tokenizer *tok = byte_fixture_load("gpt2");
    struct ids ids = { 0 };
    assert_true(ids_add(&ids, 5));
    assert_false(tokenizer_encode(tok, "x", (size_t)1 << 30, &ids)); /* refused before it is read */
    assert_int_equal(ids.n, 1);
    ids_clear(&ids);
    tokenizer_free(tok);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(equals_the_libraries),
        cmocka_unit_test(a_long_word_is_given_up_early),
        cmocka_unit_test(says_the_same_through_ggufs_arrays),
        cmocka_unit_test(knows_its_special_tokens),
#ifndef __SANITIZE_THREAD__ /* its own bookkeeping of memory that grows takes more than linear time */
        cmocka_unit_test(long_texts_take_no_quadratic_time),
#endif
        cmocka_unit_test(a_failed_text_adds_nothing),
        cmocka_unit_test(special_tokens_come_from_trusted_parts_alone),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
