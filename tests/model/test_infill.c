/* Which tokens of a vocabulary mark the parts of a text with a gap: by their names, and by the metadata of GGUF files. */
#include "model/infill.h"
#include "model/model.h"
#include "tutti.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST_BYTE = 3, FIRST_NAME = FIRST_BYTE + 256, MAX_NAMES = 8 };

/* <unk>, <s>, </s>, every byte, then control tokens with these names. */
static struct tokenizer *make_tokenizer(const char *const *names, bool blank)
{
    static const char *const OWN[] = { "<unk>", "<s>", "</s>" };
    static const enum piece_type TYPES[] = { PIECE_UNKNOWN, PIECE_CONTROL, PIECE_CONTROL };
    char bytes[256][8];
    struct piece pieces[FIRST_NAME + MAX_NAMES + 1];
    size_t n = 0;
    for (; n < FIRST_BYTE; n++)
        pieces[n] = (struct piece){ .bytes = OWN[n], .n_bytes = strlen(OWN[n]), .type = TYPES[n] };
    for (int i = 0; i < 256; i++, n++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        pieces[n] = (struct piece){ .bytes = bytes[i], .n_bytes = 6, .type = PIECE_BYTE };
    }
    for (; *names; names++, n++)
        pieces[n] = (struct piece){ .bytes = *names, .n_bytes = strlen(*names), .type = PIECE_CONTROL };
    if (blank)
        pieces[n++] = (struct piece){ .bytes = "▁", .n_bytes = strlen("▁"), .type = PIECE_NORMAL };
    const struct piece_vocab vocab = { .pieces = pieces,
                                       .n_pieces = n,
                                       .add_dummy_prefix = blank,
                                       .byte_fallback = true,
                                       .unk_id = 0,
                                       .bos_id = 1,
                                       .eos_id = 2 };
    struct tokenizer *tok;
    assert_int_equal(tokenizer_from_pieces(&tok, &vocab, "test", NULL), TUTTI_OK);
    return tok;
}

static struct infill_tokens find(const char *const *names, const char *config, int32_t n_rows)
{
    struct infill_tokens tokens;
    json_t *root = config ? json_loads(config, 0, NULL) : NULL;
    struct tokenizer *tok = make_tokenizer(names, false);
    assert_true(infill_find(&tokens, tok, root, n_rows));
    tokenizer_free(tok);
    json_decref(root);
    return tokens;
}

static const char *const QWEN[] = {
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", NULL
};
static const char *const CODESTRAL[] = { "[PREFIX]", "[MIDDLE]", "[SUFFIX]", NULL };
static const char *const OTHER[] = { "<a>", "<b>", "<c>", "<d>", "<e>", NULL };

static void names_tell_the_tokens_and_their_order(void **state)
{
    (void)state;
    struct infill_tokens t = find(QWEN, NULL, 1000);
    assert_true(t.is_known && !t.suffix_first && t.project_is_line && !t.has_blank);
    assert_int_equal(t.prefix, FIRST_NAME);
    assert_int_equal(t.middle, FIRST_NAME + 1);
    assert_int_equal(t.suffix, FIRST_NAME + 2);
    assert_int_equal(t.project, FIRST_NAME + 4);
    assert_int_equal(t.file, FIRST_NAME + 5);
    assert_int_equal(t.n_stops, 6); /* <|fim_pad|> too */
    t = find(CODESTRAL, NULL, 1000);
    assert_true(t.is_known && t.suffix_first);
    assert_int_equal(t.middle, -1);
    assert_int_equal(t.n_stops, 2);
}

static void a_vocabulary_without_all_of_them_has_none(void **state)
{
    (void)state;
    static const char *const HALF[] = { "<|fim_prefix|>", "<|fim_suffix|>", NULL };
    static const char *const MIXED[] = { "<|fim_prefix|>", "<fim_suffix>", "<|fim_middle|>", NULL };
    assert_false(find(HALF, NULL, 1000).is_known);
    assert_false(find(MIXED, NULL, 1000).is_known);
    assert_false(find(OTHER, NULL, 1000).is_known);
    assert_false(find(QWEN, NULL, FIRST_NAME + 2).is_known); /* the embedding has no row for the last ones */
    struct infill_tokens t;
    assert_true(infill_find(&t, NULL, NULL, 1000));
    assert_false(t.is_known);
}

static void metadata_take_precedence(void **state)
{
    (void)state;
    static const struct {
        const char *const *names;
        const char *config;
        bool is_known, suffix_first;
        int prefix, suffix, middle, file; /* after FIRST_NAME */
    } CASES[] = {
        { OTHER,
          "{\"tokenizer.ggml.fim_pre_token_id\": 259, \"tokenizer.ggml.fim_suf_token_id\": 260, "
          "\"tokenizer.ggml.fim_mid_token_id\": 261, \"tokenizer.ggml.fim_sep_token_id\": 263}",
          true, false, 0, 1, 2, 4 },
        { OTHER,
          "{\"tokenizer.ggml.prefix_token_id\": 261, \"tokenizer.ggml.suffix_token_id\": 260, "
          "\"tokenizer.ggml.middle_token_id\": 259}",
          true, false, 2, 1, 0, -1 - FIRST_NAME },
        { QWEN, "{\"tokenizer.ggml.fim_mid_token_id\": 262, \"tokenizer.ggml.middle_token_id\": 259}", true,
          false, 0, 2, 3, 5 },
        { CODESTRAL, "{\"tokenizer.ggml.fim_pre_token_id\": 260}", true, true, 1, 2, -1 - FIRST_NAME,
          -1 - FIRST_NAME },
        { OTHER, "{\"tokenizer.ggml.fim_pre_token_id\": 259, \"tokenizer.ggml.fim_suf_token_id\": 260}",
          false, false, 0, 0, 0, 0 },
        { OTHER,
          "{\"tokenizer.ggml.fim_pre_token_id\": -1, \"tokenizer.ggml.fim_suf_token_id\": 1000000, "
          "\"tokenizer.ggml.fim_mid_token_id\": \"x\"}",
          false, false, 0, 0, 0, 0 },
        { QWEN, "{\"tokenizer.ggml.fim_pre_token_id\": 99999}", true, false, 0, 2, 1, 5 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct infill_tokens t = find(CASES[i].names, CASES[i].config, 1000);
        assert_int_equal(t.is_known, CASES[i].is_known);
        if (!t.is_known)
            continue;
        assert_int_equal(t.suffix_first, CASES[i].suffix_first);
        assert_int_equal(t.prefix, FIRST_NAME + CASES[i].prefix);
        assert_int_equal(t.suffix, FIRST_NAME + CASES[i].suffix);
        assert_int_equal(t.middle, FIRST_NAME + CASES[i].middle);
        assert_int_equal(t.file, FIRST_NAME + CASES[i].file);
    }
}

static void only_the_prefix_has_the_blank_before_a_text(void **state)
{
    (void)state;
    struct model model = { .name = "test" };
    struct ids ids = { .max = 100 };
    size_t n_left_out = 7;
    model.tokenizer = make_tokenizer(CODESTRAL, true);
    model.desc.n_vocab = tokenizer_n_pieces(model.tokenizer);
    assert_true(infill_find(&model.infill, model.tokenizer, NULL, model.desc.n_vocab));
    assert_true(model.infill.has_blank);
    const struct tutti_infill infill = {
        .prefix = "p", .n_prefix_bytes = 1, .suffix = "s", .n_suffix_bytes = 1
    };
    assert_int_equal(infill_render(&model, &infill, &ids, &n_left_out, NULL), TUTTI_OK);
    const int32_t want[] = { FIRST_NAME + 2, FIRST_BYTE + 's', FIRST_NAME, FIRST_NAME + 3, FIRST_BYTE + 'p' };
    size_t n_want = sizeof want / sizeof *want,
           n_before = ids.n - n_want; /* after the model's own first ids */
    assert_true(ids.n >= n_want && n_before <= 1 && n_left_out == 0);
    assert_memory_equal(ids.ids + n_before, want, sizeof want);
    ids_clear(&ids);
    tokenizer_free(model.tokenizer);
}

static void what_does_not_fit_is_refused_or_left_out(void **state)
{
    (void)state;
    enum { MAX = 64 };
    struct model model = { .name = "test" };
    struct tutti_error err;
    char text[2 * MAX];
    memset(text, 'x', sizeof text);
    model.tokenizer = make_tokenizer(QWEN, false);
    model.desc.n_vocab = tokenizer_n_pieces(model.tokenizer);
    assert_true(infill_find(&model.infill, model.tokenizer, NULL, model.desc.n_vocab));
    struct tutti_infill_file files[3];
    for (int i = 0; i < 3; i++)
        files[i] = (struct tutti_infill_file){
            .name = "n", .n_name_bytes = 1, .text = text, .n_text_bytes = 5
        };
    for (size_t n = 0; n <= sizeof text; n++) {
        struct ids ids = { .max = MAX };
        size_t n_left_out;
        struct tutti_infill infill = { .prefix = text,
                                       .n_prefix_bytes = n / 2,
                                       .suffix = text,
                                       .n_suffix_bytes = n - n / 2,
                                       .files = files,
                                       .n_files = 3,
                                       .project = "p",
                                       .n_project_bytes = 1,
                                       .name = "a",
                                       .n_name_bytes = 1,
                                       .n_reserved = 4 };
        enum tutti_status st = infill_render(&model, &infill, &ids, &n_left_out, &err);
        size_t n_before = ids.n > 0 && ids.ids[0] == 1, n_gap = n + 3; /* <s>, if the family has it */
        assert_int_equal(st, n_gap + n_before > MAX ? TUTTI_E_LIMIT : TUTTI_OK);
        if (st != TUTTI_OK) {
            assert_int_equal(err.context_tokens, MAX);
        } else {
            size_t n_around = 3 + 3, n_file = 8, room = MAX - 4; /* project; own name; a file with its name */
            size_t n_rest = n_before + n_gap + n_around, n_fit = n_rest < room ? (room - n_rest) / n_file : 0;
            n_fit = n_fit > 3 ? 3 : n_fit;
            assert_int_equal(n_left_out, 3 - n_fit);
            assert_int_equal(ids.n, n_before + n_gap + (n_fit > 0 ? n_around + n_fit * n_file : 0));
        }
        ids_clear(&ids);
    }
    tokenizer_free(model.tokenizer);
}

static void text_that_spells_a_token_stays_text(void **state)
{
    (void)state;
    struct model model = { .name = "test" };
    struct ids ids = { .max = 200 };
    size_t n_left_out;
    static const char TEXT[] = "<|fim_middle|>";
    model.tokenizer = make_tokenizer(QWEN, false);
    model.desc.n_vocab = tokenizer_n_pieces(model.tokenizer);
    assert_true(infill_find(&model.infill, model.tokenizer, NULL, model.desc.n_vocab));
    const struct tutti_infill infill = {
        .prefix = TEXT, .n_prefix_bytes = sizeof TEXT - 1, .suffix = TEXT, .n_suffix_bytes = sizeof TEXT - 1
    };
    assert_int_equal(infill_render(&model, &infill, &ids, &n_left_out, NULL), TUTTI_OK);
    int n_middle = 0;
    for (size_t i = 0; i < ids.n; i++)
        n_middle += ids.ids[i] == model.infill.middle;
    assert_int_equal(n_middle, 1);
    assert_int_equal(ids.ids[ids.n - 1], model.infill.middle);
    ids_clear(&ids);
    tokenizer_free(model.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_tell_the_tokens_and_their_order),
        cmocka_unit_test(a_vocabulary_without_all_of_them_has_none),
        cmocka_unit_test(metadata_take_precedence),
        cmocka_unit_test(only_the_prefix_has_the_blank_before_a_text),
        cmocka_unit_test(what_does_not_fit_is_refused_or_left_out),
        cmocka_unit_test(text_that_spells_a_token_stays_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
