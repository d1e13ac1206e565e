/* SentencePiece vocabularies in a GGUF file's metadata: what is taken from there, and what is told of a broken one. */
#include "checkpoint/gguf/gguf.h"
#include "model/description/family.h"
#include "model/description/stops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKENS = 5 };
static const char *const TOKENS[N_TOKENS] = { "<pad>", "</s>", "<unk>", "\xE2\x96\x81", "a" };
static const int32_t TYPES[N_TOKENS] = { PIECE_CONTROL, PIECE_CONTROL, PIECE_UNKNOWN, PIECE_NORMAL,
                                         PIECE_NORMAL };
static const float SCORES[N_TOKENS] = { 0, 0, 0, -2, -3 };

/* One thing that a file has otherwise. */
struct change {
    const char *key; /* "": nothing */
    enum { MISSING, STRING, NUMBER, BYTES, WORDS, SHORT } as;
    const char *words; /* of the error */
};

static bool is_changed(const struct change *c, const char *key, int as)
{
    return strcmp(c->key, key) == 0 && (int)c->as == as;
}

static void add_tokens(struct gguf_writer *w, const struct change *c)
{
    size_t n_bytes[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        n_bytes[i] = strlen(TOKENS[i]);
    if (is_changed(c, "tokenizer.ggml.tokens", WORDS))
        gguf_writer_i32s(w, "tokenizer.ggml.tokens", TYPES, N_TOKENS);
    else if (strcmp(c->key, "tokenizer.ggml.tokens") != 0)
        gguf_writer_strings(w, "tokenizer.ggml.tokens", TOKENS, n_bytes, N_TOKENS);
    else if (c->as == SHORT)
        gguf_writer_strings(w, "tokenizer.ggml.tokens", TOKENS, n_bytes, 0);
    if (is_changed(c, "tokenizer.ggml.scores", STRING))
        gguf_writer_strings(w, "tokenizer.ggml.scores", TOKENS, n_bytes, N_TOKENS);
    else if (!is_changed(c, "tokenizer.ggml.scores", MISSING))
        gguf_writer_f32s(w, "tokenizer.ggml.scores", SCORES,
                         N_TOKENS - is_changed(c, "tokenizer.ggml.scores", SHORT));
    int32_t types[N_TOKENS];
    memcpy(types, TYPES, sizeof types);
    if (is_changed(c, "tokenizer.ggml.token_type", WORDS))
        types[3] = 7;
    if (!is_changed(c, "tokenizer.ggml.token_type", MISSING))
        gguf_writer_i32s(w, "tokenizer.ggml.token_type", types,
                         N_TOKENS - is_changed(c, "tokenizer.ggml.token_type", SHORT));
}

static void add_map(struct gguf_writer *w, const struct change *c)
{
    static const char KEY[] = "tokenizer.ggml.precompiled_charsmap";
    static const uint8_t BROKEN[] = { 8, 0, 0, 0, 1, 2, 3, 4, 0 };
    if (is_changed(c, KEY, BYTES))
        gguf_writer_u8s(w, KEY, BROKEN, sizeof BROKEN);
    else if (is_changed(c, KEY, WORDS))
        gguf_writer_i32s(w, KEY, TYPES, N_TOKENS);
    else if (is_changed(c, KEY, STRING))
        gguf_writer_string(w, KEY, "x", 1);
}

static void write_file(const char *path, const char *kind, const struct change *c)
{
    struct gguf_writer *w = NULL;
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_string(w, "general.architecture", "llama", 5);
    gguf_writer_string(w, "tokenizer.ggml.model", kind, strlen(kind));
    add_tokens(w, c);
    add_map(w, c);
    if (is_changed(c, "general.name", STRING))
        gguf_writer_string(w, c->key, c->words, strlen(c->words));
    if (c->as == NUMBER)
        gguf_writer_u32(w, c->key, 1);
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);
}

static enum tutti_status load(struct tokenizer **tok, const char *kind, const struct change *c, int n_vocab,
                              char *why, struct tutti_error *err)
{
    char path[128];
    snprintf(path, sizeof path, "/tmp/tutti-tokenizer-%d.gguf", (int)getpid());
    write_file(path, kind, c);
    struct checkpoint *ck = NULL;
    struct model_desc desc = { .n_vocab = n_vocab };
    assert_int_equal(checkpoint_open(&ck, path, NULL), TUTTI_OK);
    why[0] = '\0';
    enum tutti_status st = model_tokenizer_load(tok, &FAMILY_LLAMA, &desc, ck, why, 256, err);
    checkpoint_close(ck);
    unlink(path);
    return st;
}

static const struct change NONE = { .key = "" };

static void a_unigram_vocabulary_has_the_defaults_of_its_kind(void **state)
{
    (void)state;
    char why[256];
    struct tokenizer *tok = NULL;
    struct ids ids = { 0 };
    assert_int_equal(load(&tok, "t5", &NONE, N_TOKENS, why, NULL), TUTTI_OK);
    assert_int_equal(tokenizer_bos(tok), -1);
    assert_int_equal(tokenizer_eos(tok), 1);
    assert_int_equal(tokenizer_unk(tok), 2);
    const struct token_affixes *affixes = tokenizer_affixes(tok);
    assert_true(affixes->is_known && affixes->n_before == 0);
    assert_int_equal(affixes->n_after, 1);
    assert_int_equal(affixes->after[0], 1);
    static const int32_t WANT[] = { 4, 3, 2 };
    assert_true(tokenizer_encode(tok, "a b", 3, &ids)); /* no blank in front, no byte pieces */
    assert_int_equal(ids.n, 3);
    assert_memory_equal(ids.ids, WANT, sizeof WANT);
    ids_clear(&ids);
    tokenizer_free(tok);
}

/* Without byte pieces, a character without a piece becomes the unknown token. */
static void a_vocabulary_without_bytes_has_unknown_text(void **state)
{
    (void)state;
    char why[256];
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    struct ids ids = { 0 };
    if (load(&tok, "llama", &NONE, N_TOKENS, why, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    const struct token_affixes *affixes = tokenizer_affixes(tok);
    assert_true(affixes->is_known && affixes->n_after == 0);
    assert_int_equal(affixes->n_before, 1);
    assert_int_equal(affixes->before[0], 1);
    static const int32_t WANT[] = {
        3, 4, 3, 0
    }; /* a blank in front; the unknown piece is the first unless the file says it */
    assert_true(tokenizer_encode(tok, "a b", 3, &ids));
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.ids, WANT, sizeof WANT);
    ids_clear(&ids);
    tokenizer_free(tok);
}

/* As in llama.cpp: blanks after the marks of Phi-3 vanish, which the file says by its name only. */
static void marks_of_phi_3_take_the_blanks_after_them(void **state)
{
    static const struct {
        const char *name;
        bool strips;
    } NAMES[] = {
        { "Phi3", true }, { "my-phi-3-mini", true }, { "Phi 3.5 Mini", false }, { "phi-4", false }
    };
    (void)state;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const struct change change = { "general.name", STRING, NAMES[i].name };
        char why[256];
        struct tokenizer *tok = NULL;
        assert_int_equal(load(&tok, "llama", &change, N_TOKENS, why, NULL), TUTTI_OK);
        assert_int_equal(tokenizer_n_added(tok), 3);
        for (size_t k = 0; k < 3; k++) {
            struct added_token token = tokenizer_added(tok, k);
            bool is_unknown = strcmp(TOKENS[token.id], "<unk>") == 0;
            assert_int_equal(token.takes_right_blanks, NAMES[i].strips && !is_unknown);
        }
        tokenizer_free(tok);
    }
}

/* ids: of the array that tutti writes; NULL: none. */
static enum tutti_status find_stops(struct model_desc *desc, const int32_t *ids, size_t n, const char *text,
                                    struct tutti_error *err)
{
    char path[128], why[256] = "";
    struct gguf_writer *w = NULL;
    struct checkpoint *ck = NULL;
    struct tokenizer *tok = NULL;
    snprintf(path, sizeof path, "/tmp/tutti-stops-%d.gguf", (int)getpid());
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_string(w, "general.architecture", "llama", 5);
    gguf_writer_string(w, "tokenizer.ggml.model", "t5", 2);
    add_tokens(w, &NONE);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 1);
    gguf_writer_u32(w, "tokenizer.ggml.eot_token_id", 4);
    gguf_writer_u32(w, "tokenizer.ggml.eom_token_id", 77); /* beyond the vocabulary: left out */
    if (ids)
        gguf_writer_i32s(w, STOPS_GGUF_KEY, ids, n);
    if (text)
        gguf_writer_strings(w, STOPS_GGUF_KEY, &text, &n, 1);
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);
    *desc = (struct model_desc){ .n_vocab = 4 * MAX_STOP_IDS };
    assert_int_equal(checkpoint_open(&ck, path, NULL), TUTTI_OK);
    assert_int_equal(model_tokenizer_load(&tok, &FAMILY_LLAMA, desc, ck, why, sizeof why, NULL), TUTTI_OK);
    desc->n_vocab = ids && n > MAX_STOP_IDS ? desc->n_vocab : 10;
    enum tutti_status st = model_find_stops(desc, ck, NULL, tok, false, err);
    tokenizer_free(tok);
    checkpoint_close(ck);
    unlink(path);
    return st;
}

static void a_gguf_file_lists_what_ends_an_answer(void **state)
{
    (void)state;
    static const int32_t LISTED[] = { 3, 0, 3, 1 }, KEYS[] = { 1, 4 }, ALL[] = { 3, 0, 1 };
    int32_t many[MAX_STOP_IDS + 1];
    struct model_desc desc;
    struct tutti_error err;
    for (int i = 0; i <= MAX_STOP_IDS; i++)
        many[i] = i;
    assert_int_equal(find_stops(&desc, NULL, 0, NULL, &err), TUTTI_OK);
    assert_int_equal(desc.n_stop_ids, 2);
    assert_memory_equal(desc.stop_ids, KEYS, sizeof KEYS);
    assert_int_equal(find_stops(&desc, LISTED, 4, NULL, &err), TUTTI_OK); /* the whole list, each id once */
    assert_int_equal(desc.n_stop_ids, 3);
    assert_memory_equal(desc.stop_ids, ALL, sizeof ALL);
    assert_int_equal(find_stops(&desc, many, MAX_STOP_IDS + 1, NULL, &err), TUTTI_E_LIMIT);
    assert_non_null(strstr(err.text, STOPS_GGUF_KEY));
    assert_int_equal(find_stops(&desc, NULL, 1, "x", &err), TUTTI_E_FORMAT);
    assert_non_null(strstr(err.text, "expected an array of ids"));
}

/* The stops of a file with <|im_end|>, whose type depends on the tool that wrote the file. */
static void find_stops_of_chatml(struct model_desc *desc, int32_t type)
{
    enum { N = 4 };
    static const char *const PIECES[N] = { "<unk>", "<s>", "</s>", "<|im_end|>" };
    const int32_t types[N] = { PIECE_UNKNOWN, PIECE_CONTROL, PIECE_CONTROL, type };
    size_t n_bytes[N];
    char path[128], why[256] = "";
    struct gguf_writer *w = NULL;
    struct checkpoint *ck = NULL;
    struct tokenizer *tok = NULL;
    for (int i = 0; i < N; i++)
        n_bytes[i] = strlen(PIECES[i]);
    snprintf(path, sizeof path, "/tmp/tutti-chatml-%d.gguf", (int)getpid());
    assert_int_equal(gguf_writer_open(&w, path, NULL), TUTTI_OK);
    gguf_writer_string(w, "general.architecture", "llama", 5);
    gguf_writer_string(w, "tokenizer.ggml.model", "llama", 5);
    gguf_writer_strings(w, "tokenizer.ggml.tokens", PIECES, n_bytes, N);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", (const float[N]){ 0 }, N);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, N);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 2);
    assert_int_equal(gguf_writer_begin_data(w, NULL), TUTTI_OK);
    assert_int_equal(gguf_writer_finish(w, NULL), TUTTI_OK);
    gguf_writer_free(w);
    *desc = (struct model_desc){ .n_vocab = N };
    assert_int_equal(checkpoint_open(&ck, path, NULL), TUTTI_OK);
    assert_int_equal(model_tokenizer_load(&tok, &FAMILY_LLAMA, desc, ck, why, sizeof why, NULL), TUTTI_OK);
    assert_int_equal(model_find_stops(desc, ck, NULL, tok, false, NULL), TUTTI_OK);
    tokenizer_free(tok);
    checkpoint_close(ck);
    unlink(path);
}

static void the_end_of_a_turn_may_have_any_type(void **state)
{
    static const int32_t WANT[] = { 2, 3 };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct model_desc desc;
        find_stops_of_chatml(&desc, (const int32_t[]){ PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_NORMAL }[i]);
        assert_int_equal(desc.n_stop_ids, 1);
        assert_int_equal(desc.n_chat_stop_ids, 1);
        assert_memory_equal(desc.stop_ids, WANT, sizeof WANT);
    }
}

static void another_kind_is_no_error_but_no_tokenizer(void **state)
{
    (void)state;
    char why[256];
    struct tokenizer *tok = NULL;
    assert_int_equal(load(&tok, "rwkv", &NONE, N_TOKENS, why, NULL), TUTTI_OK);
    assert_null(tok);
    assert_non_null(strstr(why, "tokenizer.ggml.model is rwkv"));
}

static void broken_metadata_is_told_what_is_wrong(void **state)
{
    (void)state;
    static const struct change CHANGES[] = {
        { "tokenizer.ggml.tokens", MISSING, "tokenizer.ggml.tokens is missing" },
        { "tokenizer.ggml.tokens", WORDS, "no array of strings" },
        { "tokenizer.ggml.tokens", SHORT, "tokenizer.ggml.tokens is missing, empty" },
        { "tokenizer.ggml.scores", MISSING, "tokenizer.ggml.scores: expected 5 numbers" },
        { "tokenizer.ggml.scores", STRING, "tokenizer.ggml.scores: expected 5 numbers" },
        { "tokenizer.ggml.scores", SHORT, "tokenizer.ggml.scores: expected 5 numbers" },
        { "tokenizer.ggml.token_type", MISSING, "tokenizer.ggml.token_type: expected 5 numbers" },
        { "tokenizer.ggml.token_type", SHORT, "tokenizer.ggml.token_type: expected 5 numbers" },
        { "tokenizer.ggml.token_type", WORDS, "tokenizer.ggml.token_type[3] is 7" },
        { "tokenizer.ggml.add_bos_token", NUMBER, "add_bos_token is a number, expected a bool" },
        { "tokenizer.ggml.add_space_prefix", NUMBER, "add_space_prefix is a number, expected a bool" },
        { "tokenizer.ggml.precompiled_charsmap", BYTES, "of 9 bytes says that its trie has 8" },
        { "tokenizer.ggml.precompiled_charsmap", WORDS, "precompiled_charsmap is an array of type 5" },
        { "tokenizer.ggml.precompiled_charsmap", STRING, "precompiled_charsmap is no array" },
    };
    char why[256];
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        enum tutti_status st = load(&tok, "t5", &CHANGES[i], N_TOKENS, why, &err);
        if (st != TUTTI_E_FORMAT || tok || !strstr(err.text, CHANGES[i].words) || !strstr(err.text, ".gguf"))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, st, err.text, CHANGES[i].words);
    }
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    assert_int_equal(load(&tok, "t5", &NONE, 2, why, &err),
                     TUTTI_E_FORMAT); /* the unknown token has no row */
    assert_non_null(strstr(err.text, "the model has 2 rows for 5 tokens"));
    assert_null(tok);
}

static void tokens_without_a_row_are_not_made(void **state)
{
    (void)state;
    char why[256];
    struct tokenizer *tok = NULL;
    struct ids ids = { 0 };
    assert_int_equal(load(&tok, "t5", &NONE, N_TOKENS - 1, why, NULL), TUTTI_OK);
    static const int32_t WANT[] = { 2, 3, 2 }; /* "a" is id 4: unknown now */
    assert_true(tokenizer_encode(tok, "a b", 3, &ids));
    assert_int_equal(ids.n, 3);
    assert_memory_equal(ids.ids, WANT, sizeof WANT);
    ids_clear(&ids);
    tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unigram_vocabulary_has_the_defaults_of_its_kind),
        cmocka_unit_test(a_vocabulary_without_bytes_has_unknown_text),
        cmocka_unit_test(marks_of_phi_3_take_the_blanks_after_them),
        cmocka_unit_test(a_gguf_file_lists_what_ends_an_answer),
        cmocka_unit_test(the_end_of_a_turn_may_have_any_type),
        cmocka_unit_test(another_kind_is_no_error_but_no_tokenizer),
        cmocka_unit_test(broken_metadata_is_told_what_is_wrong),
        cmocka_unit_test(tokens_without_a_row_are_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
