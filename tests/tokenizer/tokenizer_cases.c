#include "tokenizer_cases.h"

#include "base/files/mapping.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct tokenizer *cases_load(const char *path)
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

void cases_check_room(const struct tokenizer *tok, const char *text, size_t n_bytes, size_t n_ids)
{
    for (size_t max = n_ids; max > 0; max = max == n_ids ? n_ids - 1 : max / 3) {
        struct ids ids = { .max = max };
        bool fits = tokenizer_encode(tok, text, n_bytes, &ids);
        if (fits != (max == n_ids) || ids.is_full == fits || ids.n != (fits ? n_ids : 0))
            fail_msg("\"%.*s\" has %zu ids: with room for %zu, %zu came", (int)n_bytes, text, n_ids, max,
                     ids.n);
        ids_clear(&ids);
    }
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
    cases_check_room(tok, (const char *)text, n_text, n_want);
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

/* Checks one case and returns the address after it. */
static const uint8_t *check_case(const struct tokenizer *tok, const char *name, int number, const uint8_t *at)
{
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
        check_encode(tok, name, number, text, n_text, ids, n_ids);
    check_decode(tok, name, number, ids, n_ids, at, n_back);
    free(ids);
    return at + n_back;
}

static int check_all(const struct tokenizer *tok, const char *name, const struct mapping *map)
{
    int n_cases = 0;
    for (const uint8_t *at = map->bytes; at < map->bytes + map->n_bytes; n_cases++)
        at = check_case(tok, name, n_cases, at);
    return n_cases;
}

void cases_check_tokenizer(const struct tokenizer *tok, const char *name)
{
    char path[512];
    struct mapping map;
    snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.cases", name);
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    assert_true(check_all(tok, name, &map) > 700);
    mapping_close(&map);
}

void cases_check(const char *model, const char *name)
{
    struct tokenizer *tok = cases_load(model);
    cases_check_tokenizer(tok, name);
    tokenizer_free(tok);
}

void cases_check_many(const char *cases, int n_expected)
{
    char path[512];
    struct mapping map;
    snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.cases", cases);
    assert_int_equal(mapping_open(&map, path, NULL), TUTTI_OK);
    int n_models = 0;
    for (const uint8_t *at = map.bytes; at < map.bytes + map.n_bytes; n_models++) {
        char name[32];
        struct tutti_error err;
        struct tokenizer *tok = NULL;
        snprintf(name, sizeof name, "%s %d", cases, n_models);
        uint32_t n_model = take_u32(&at);
        if (tokenizer_from_sentencepiece(&tok, at, n_model, name, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        at += n_model;
        uint32_t n_cases = take_u32(&at);
        for (uint32_t i = 0; i < n_cases; i++)
            at = check_case(tok, name, (int)i, at);
        tokenizer_free(tok);
    }
    assert_int_equal(n_models, n_expected);
    mapping_close(&map);
}

void cases_encode_both(const struct tokenizer *a, const struct tokenizer *b, const char *text, size_t n_bytes)
{
    struct ids x = { 0 }, y = { 0 };
    assert_true(tokenizer_encode(a, text, n_bytes, &x));
    assert_true(tokenizer_encode(b, text, n_bytes, &y));
    assert_int_equal(x.n, y.n);
    if (x.n > 0)
        assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
    ids_clear(&x);
    ids_clear(&y);
}

double cases_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
