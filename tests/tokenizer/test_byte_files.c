/* Files of byte-level tokenizers that are wrong, or want what is not known here. */
#include "byte_fixtures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define MODEL          "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define PRE            "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"
#define DECODER        "\"decoder\":{\"type\":\"ByteLevel\"}"
#define REPLACE        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"decoders\":[" list "]}"
#define WITH_PRE(pre)  "{" DECODER ",\"pre_tokenizer\":" pre "," MODEL "}"
#define WITH_PATTERN(pattern)                                                                                \
    WITH_PRE(                                                                                                \
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern    \
        "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\"}]}")
#define WITH_DECODER(decoder) "{\"decoder\":" decoder "," MODEL "}"
#define WITH_MODEL(model)     "{" DECODER "," PRE ",\"model\":{" model "}}"
#define WITH(part)            "{" DECODER "," PRE "," MODEL "," part "}"

#define TEXT_A        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define SPECIAL(name) "{\"SpecialToken\":{\"id\":\"" name "\",\"type_id\":0}}"
#define TEMPLATE_PART(single)                                                                                \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single                                                   \
    "],\"special_tokens\":{\"x\":{\"ids\":[3]},\"a\":{\"ids\":[0]},\"ba\":{\"ids\":[1,0]}}}"
#define TEMPLATE(single) "\"post_processor\":" TEMPLATE_PART(single)

static const struct {
    const char *text, *words;
    enum tutti_status status;
} JSON_CASES[] = {
    { "", "line 1", TUTTI_E_FORMAT },
    { "[]", "expected an object", TUTTI_E_FORMAT },
    { "{\"a\":1,\"a\":2}", "duplicate", TUTTI_E_FORMAT },
    { "{\"model\":{\"type\":\"Neural\"}}", "model is of type Neural", TUTTI_E_UNSUPPORTED },
    { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "vocab is no list, or empty", TUTTI_E_FORMAT },
    { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "model.vocab[0]", TUTTI_E_FORMAT },
    { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", "unk_id: expected 0 to 0",
      TUTTI_E_FORMAT },
    { "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"unk_token\":\"[UNK]\"}}",
      "unk_token is no token", TUTTI_E_FORMAT },
    { "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"max_input_chars_per_word\":\"x\"}}",
      "max_input_chars_per_word", TUTTI_E_FORMAT },
    { "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}", "unk_token is no token", TUTTI_E_FORMAT },
    { WITH_PRE("{\"type\":\"Metaspace\"}"), "Metaspace: expected replacement", TUTTI_E_UNSUPPORTED },
    { WITH_PRE("{\"type\":\"Metaspace\",\"replacement\":\"__\"}"), "Metaspace: expected replacement",
      TUTTI_E_UNSUPPORTED },
    { WITH_PRE("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"x\"}"),
      "always, first or never", TUTTI_E_UNSUPPORTED },
    { WITH_PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\","
               "\"add_prefix_space\":false}"),
      "add_prefix_space is false", TUTTI_E_FORMAT },
    { WITH_PRE("{\"type\":\"UnicodeScripts\"}"), "pre_tokenizer is of type UnicodeScripts",
      TUTTI_E_UNSUPPORTED },
    { WITH_PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"FixedLength\"}]}"),
      "pre_tokenizer is of type FixedLength", TUTTI_E_UNSUPPORTED },
    { WITH_PRE(
          "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"ByteLevel\"}]}"),
      "ByteLevel after ByteLevel", TUTTI_E_UNSUPPORTED },
    { WITH_DECODER("{\"type\":\"CTC\"}"), "decoder is of type CTC", TUTTI_E_UNSUPPORTED },
    { WITH_DECODER(SEQUENCE("{\"type\":\"Strip\",\"content\":\" \",\"start\":256,\"stop\":0}")),
      "Strip: expected", TUTTI_E_UNSUPPORTED },
    { WITH_DECODER(SEQUENCE("{\"type\":\"Fuse\"}," REPLACE)), "Replace after Fuse", TUTTI_E_UNSUPPORTED },
    { WITH_DECODER(SEQUENCE("{\"type\":\"ByteFallback\"}," REPLACE)), "Replace after ByteFallback",
      TUTTI_E_UNSUPPORTED },
    { WITH_DECODER("{\"type\":\"Replace\",\"content\":\" \"}"), "decoder: Replace: expected",
      TUTTI_E_FORMAT },
    { WITH_DECODER("{\"type\":\"WordPiece\"}"), "prefix is no text", TUTTI_E_FORMAT },
    { WITH_PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}"),
      "pattern.Regex or pattern.String", TUTTI_E_FORMAT },
    { WITH_PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Sideways\"}"), "Sideways",
      TUTTI_E_UNSUPPORTED },
    { WITH_PATTERN("(a"), "end pattern with unmatched parenthesis", TUTTI_E_FORMAT },
    { WITH_PATTERN("(*COMMIT)a"), "target of repeat operator", TUTTI_E_FORMAT },
    { WITH_PATTERN("(?{1})a"), "undefined group option", TUTTI_E_FORMAT },
    { WITH_PATTERN("(?R)"), "undefined group option", TUTTI_E_FORMAT },
    { WITH_PATTERN("(?C1)a"), "undefined group option", TUTTI_E_FORMAT },
    { WITH_PATTERN("[a"), "premature end of char-class", TUTTI_E_FORMAT },
    { WITH_PATTERN("\\\\p{Elvish}"), "invalid character property name {Elvish}", TUTTI_E_FORMAT },
    { WITH_PATTERN(""), "0 bytes", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{}"), "empty", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":\"x\"}"), "is no number", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":-1}"), "has id -1", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":99999999999}"), "has id 99999999999", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":1000000}"), "has id 1000000", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0,\"b\":0}"), "both have id 0", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"\":0}"), "has 0 bytes", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0}"), "merges is no list", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a b\"]"), "\"b\" is no token", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), "makes \"aa\"", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0},\"merges\":[\"aa\"]"), "blank between", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), "merges[0]", TUTTI_E_FORMAT },
    { WITH_MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.5"), "dropout", TUTTI_E_UNSUPPORTED },
    { WITH_MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"?\""), "unk_token is no token",
      TUTTI_E_FORMAT },
    { WITH("\"normalizer\":{\"type\":\"Uppercase\"}"), "normalizer is of type Uppercase",
      TUTTI_E_UNSUPPORTED },
    { WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}"), "pattern.String",
      TUTTI_E_FORMAT },
    { WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a\"},\"content\":\"\"}"),
      "end pattern with unmatched parenthesis", TUTTI_E_FORMAT },
    { WITH("\"normalizer\":{\"type\":\"Prepend\"}"), "Prepend: prepend is no text", TUTTI_E_FORMAT },
    { WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"x\"}"), "no base64",
      TUTTI_E_FORMAT },
    { WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}"),
      "expected a multiple", TUTTI_E_FORMAT },
    { WITH("\"added_tokens\":[{\"content\":\"x\"}]"), "added_tokens[0].id", TUTTI_E_FORMAT },
    { WITH("\"added_tokens\":[{\"id\":3}]"), "content is no text", TUTTI_E_FORMAT },
    { WITH("\"added_tokens\":[{\"id\":3,\"content\":\"\"}]"), "1 to 1024 bytes", TUTTI_E_FORMAT },
    { WITH("\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]"), "which is \"a\"", TUTTI_E_FORMAT },
    { WITH("\"added_tokens\":[{\"id\":16000000,\"content\":\"x\"}]"), "has id 16000000", TUTTI_E_FORMAT },
    { WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), "BertProcessing: expected", TUTTI_E_FORMAT },
    { WITH("\"post_processor\":{\"type\":\"Reverse\"}"), "post_processor is of type Reverse",
      TUTTI_E_UNSUPPORTED },
    { WITH(TEMPLATE("{\"SpecialToken\":{\"id\":\"ab\"}}")), "no ids for \"ab\"", TUTTI_E_FORMAT },
    { WITH(TEMPLATE("{\"SpecialToken\":{\"id\":\"x\"}}")), "ids of the vocabulary", TUTTI_E_FORMAT },
    { WITH(TEMPLATE(TEXT_A "," TEXT_A)), "the text 2 times", TUTTI_E_UNSUPPORTED },
    { WITH(TEMPLATE("")), "the text 0 times", TUTTI_E_UNSUPPORTED },
};

static void a_wrong_tokenizer_json_is_told_what_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof JSON_CASES / sizeof *JSON_CASES; i++) {
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        struct byte_file file = { JSON_CASES[i].text, strlen(JSON_CASES[i].text), "some.json" };
        enum tutti_status st = tokenizer_from_json(&tok, &file, NULL, &err);
        if (st != JSON_CASES[i].status || tok || !strstr(err.text, JSON_CASES[i].words) ||
            !strstr(err.text, "some.json"))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, (int)st, err.text,
                     JSON_CASES[i].words);
    }
}

/* A word is not made of a token that was only added to a WordPiece model, and is not cut out of the text: as in the
 * tokenizers library. */
static void added_tokens_are_no_parts_of_words(void **state)
{
    static const char FILE_TEXT[] =
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"vocab\":{\"[UNK]\":0,\"f\":1,\"##o\":2,"
        "\"ba\":3,\"##r\":4,\"##b\":5}},\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":"
        "\"Whitespace\"},"
        "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false},\"added_tokens\":["
        "{\"id\":6,\"content\":\"foo\",\"normalized\":false,\"special\":false},"
        "{\"id\":7,\"content\":\"bar\",\"single_word\":true,\"normalized\":true,\"special\":false}]}";
    static const struct {
        const char *text;
        int32_t ids[8];
        size_t n;
    } CASES[] = { { "Foo", { 1, 2, 2 }, 3 },
                  { "Foob", { 1, 2, 2, 5 }, 4 },
                  { "foo", { 6 }, 1 },
                  { "barb", { 3, 4, 5 }, 3 },
                  { "bar", { 7 }, 1 } };
    struct byte_file file = { FILE_TEXT, strlen(FILE_TEXT), "some.json" };
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    (void)state;
    if (tokenizer_from_json(&tok, &file, NULL, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct ids ids = { 0 };
        assert_true(tokenizer_encode(tok, CASES[i].text, strlen(CASES[i].text), &ids));
        if (ids.n != CASES[i].n || memcmp(ids.ids, CASES[i].ids, ids.n * sizeof *ids.ids) != 0)
            fail_msg("\"%s\": %zu other ids than the library's", CASES[i].text, ids.n);
        ids_clear(&ids);
    }
    tokenizer_free(tok);
}

/* Tokens before and after a text, and steps around steps. */
static void post_processors_put_tokens_around_a_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        struct token_affixes want;
    } CASES[] = {
        { WITH("\"post_processor\":null"), { .is_known = true } },
        { WITH("\"post_processor\":{\"type\":\"ByteLevel\"}"), { .is_known = true } },
        { WITH(TEMPLATE(TEXT_A)), { .is_known = true } },
        { WITH(TEMPLATE(SPECIAL("a") "," TEXT_A "," SPECIAL("ba"))),
          { .is_known = true, .n_before = 1, .before = { 0 }, .n_after = 2, .after = { 1, 0 } } },
        { WITH("\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}"),
          { .is_known = true,
            .n_before = 1,
            .before = { 0 },
            .n_after = 1,
            .after = { 1 },
            .n_between = 1,
            .between = { 1 } } },
        { WITH("\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"RobertaProcessing\","
               "\"cls\":[\"a\",0],\"sep\":[\"b\",1]}," TEMPLATE_PART(SPECIAL("ba") "," TEXT_A
                                                                                   "," SPECIAL("a")) "]}"),
          { .is_known = true,
            .n_before = 3,
            .before = { 1, 0, 0 },
            .n_after = 2,
            .after = { 1, 0 },
            .n_between = 2,
            .between = { 1, 1 } } },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct byte_file file = { CASES[i].text, strlen(CASES[i].text), "some.json" };
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        if (tokenizer_from_json(&tok, &file, NULL, &err) != TUTTI_OK)
            fail_msg("case %zu: %s", i, err.text);
        assert_memory_equal(tokenizer_affixes(tok), &CASES[i].want, sizeof CASES[i].want);
        tokenizer_free(tok);
    }
}

/* Tokens: a 0, b 1, a blank 2, <s> 3, </s> 4, <x> 5, <y> 6; only <s> and </s> are special. */
#define SETTINGS(pre, post)                                                                                  \
    "{" DECODER ",\"pre_tokenizer\":" pre ",\"post_processor\":" post                                        \
    ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"\xC4\xA0\":2,\"<s>\":3,\"</s>\":4,\"<x>\":5," \
    "\"<y>\":6},\"merges\":[]},\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},"           \
    "{\"id\":4,\"content\":\"</s>\",\"special\":true},{\"id\":5,\"content\":\"<x>\",\"special\":false,"      \
    "\"normalized\":false}]}"
#define BYTES_PRE(prefix) "{\"type\":\"ByteLevel\",\"add_prefix_space\":" prefix "}"
#define BYTES_POST        "{\"type\":\"ByteLevel\"}"
#define BOS_POST                                                                                             \
    "{\"type\":\"TemplateProcessing\",\"single\":[" SPECIAL(                                                 \
        "x") "," TEXT_A "],\"special_tokens\":{\"x\":{\"ids\":[3]}}}"
#define ENDS "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\""

static struct tokenizer *with_settings(const char *text, const char *config)
{
    struct byte_file file = { text, strlen(text), "some.json" };
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    json_t *settings = config ? json_loads(config, 0, NULL) : NULL;
    assert_true(!config || settings);
    if (tokenizer_from_json(&tok, &file, settings, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    json_decref(settings);
    return tok;
}

/* As in transformers 4.57.6, and 5.24 for the settings that it wrote. */
static void some_classes_say_what_is_around_a_text(void **state)
{
    (void)state;
    static const char *const POSTS[] = { SETTINGS(BYTES_PRE("false"), "null"),
                                         SETTINGS(BYTES_PRE("false"), BYTES_POST),
                                         SETTINGS(BYTES_PRE("false"), BOS_POST) };
    static const struct {
        const char *config;
        int n_before[3], n_after; /* for each of POSTS; for all */
    } CASES[] = {
        { "{" ENDS ",\"tokenizer_class\":\"GPT2Tokenizer\"}", { 0, 0, 1 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"GPT2Tokenizer\",\"add_bos_token\":true}", { 0, 0, 1 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"GPT2Tokenizer\",\"add_bos_token\":false}", { 0, 0, 1 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"LlamaTokenizerFast\"}", { 1, 1, 1 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":false}", { 0, 0, 0 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"CodeLlamaTokenizer\",\"add_eos_token\":true}", { 1, 1, 1 }, 1 },
        { "{" ENDS ",\"tokenizer_class\":\"GemmaTokenizer\"}", { 1, 1, 1 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"GemmaTokenizer\",\"add_bos_token\":false}", { 0, 0, 0 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"CohereTokenizerFast\",\"add_bos_token\":false}", { 0, 0, 0 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"GPTNeoXTokenizer\"}", { 0, 0, 0 }, 0 },
        { "{" ENDS ",\"tokenizer_class\":\"GPTNeoXTokenizer\",\"add_bos_token\":true}", { 1, 1, 1 }, 0 },
        { "{" ENDS
          ",\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":false,\"backend\":\"tokenizers\"}",
          { 0, 0, 1 },
          0 },
        { "{" ENDS ",\"tokenizer_class\":\"LlamaTokenizer\",\"backend\":\"tokenizers\"}", { 0, 0, 1 }, 0 },
        { "{" ENDS ",\"add_bos_token\":true}", { 1, 1, 1 }, 0 }, /* LLaMA's class, by the model's type */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (int k = 0; k < 3; k++) {
            struct tokenizer *tok = with_settings(POSTS[k], CASES[i].config);
            const struct token_affixes *a = tokenizer_affixes(tok);
            if (!a->is_known || a->n_before != CASES[i].n_before[k] || a->n_after != CASES[i].n_after)
                fail_msg("case %zu, file %d: known %d, %d before, %d after", i, k, a->is_known, a->n_before,
                         a->n_after);
            tokenizer_free(tok);
        }
    }
}

/* The flags and the special tokens of tokenizer_config.json, and its blank before a text. */
static void settings_override_the_flags_of_the_file(void **state)
{
    (void)state;
#define DECODER_OF(id, text, flags)                                                                          \
    "{\"added_tokens_decoder\":{\"" id "\":{\"content\":\"" text "\"," flags "}}}"
#define OTHER "\"tokenizer_class\":\"PreTrainedTokenizerFast\""
    static const struct {
        const char *prefix, *config, *text;
        bool is_trusted;
        int n;
        int32_t ids[6];
    } CASES[] = {
        { "false", NULL, "a <x> b", false, 5, { 0, 2, 5, 2, 1 } },
        { "false",
          DECODER_OF("5", "<x>", "\"lstrip\":true,\"rstrip\":true"),
          "a <x> b",
          false,
          3,
          { 0, 5, 1 } },
        { "false", DECODER_OF("5", "<x>", "\"special\":true"), "a<x>b", true, 3, { 0, 5, 1 } },
        { "false", DECODER_OF("5", "<x>", "\"special\":true"), "a<x>b", false, 2, { 0, 1 } },
        { "false", DECODER_OF("3", "<s>", "\"special\":false"), "a<s>b", false, 2, { 0, 1 } },
        { "false", DECODER_OF("5", "<z>", "\"lstrip\":true"), "a <x>", false, 3, { 0, 2, 5 } },
        { "false",
          DECODER_OF("5", "<x>", "\"without_flags\":true,\"special\":true"),
          "<x>",
          false,
          1,
          { 5 } },
        { "false", "{\"pad_token\":\"<y>\"}", "a<y>b", true, 3, { 0, 6, 1 } },
        { "false", "{\"pad_token\":\"<y>\"}", "a<y>b", false, 2, { 0, 1 } },
        { "false",
          "{\"additional_special_tokens\":[{\"content\":\"<y>\",\"lstrip\":true}]}",
          "a <y>b",
          true,
          3,
          { 0, 6, 1 } },
        { "false", "{\"pad_token\":\"<x>\"}", "a<x>b", false, 2, { 0, 1 } },
        { "false", "{\"pad_token\":\"<none>\"}", "ab", true, 2, { 0, 1 } },
        { "true", NULL, "ab", false, 3, { 2, 0, 1 } },
        { "true", "{}", "ab", false, 3, { 2, 0, 1 } },
        { "true", "{" OTHER "}", "ab", false, 2, { 0, 1 } },
        { "true", "{" OTHER ",\"add_prefix_space\":true}", "ab", false, 3, { 2, 0, 1 } },
        { "true", "{" OTHER ",\"add_prefix_space\":null}", "ab", false, 3, { 2, 0, 1 } },
        { "true", "{" OTHER ",\"backend\":\"tokenizers\"}", "ab", false, 3, { 2, 0, 1 } },
        { "true", "{\"tokenizer_class\":\"LlamaTokenizerFast\"}", "ab", false, 3, { 2, 0, 1 } },
        { "false", "{" OTHER ",\"add_prefix_space\":true}", "ab", false, 3, { 2, 0, 1 } },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        bool has_prefix = strcmp(CASES[i].prefix, "true") == 0;
        struct tokenizer *tok = with_settings(has_prefix ? SETTINGS(BYTES_PRE("true"), "null")
                                                         : SETTINGS(BYTES_PRE("false"), "null"),
                                              CASES[i].config);
        struct ids ids = { 0 };
        size_t n_bytes = strlen(CASES[i].text);
        assert_true(CASES[i].is_trusted ? tokenizer_encode_trusted(tok, CASES[i].text, n_bytes, &ids)
                                        : tokenizer_encode(tok, CASES[i].text, n_bytes, &ids));
        if (ids.n != (size_t)CASES[i].n || memcmp(ids.ids, CASES[i].ids, ids.n * sizeof *ids.ids) != 0)
            fail_msg("case %zu: %zu ids, the first %d", i, ids.n, ids.n > 0 ? ids.ids[0] : -1);
        ids_clear(&ids);
        tokenizer_free(tok);
    }
}

static void reads_what_patterns_mean_elsewhere(void **state)
{
    (void)state;
    static const char TEXT[] = WITH_PATTERN(
        "[a[\\\\[:alpha:]]]|\\\\s\\\\S|\\\\p{Han}|\\\\u0062|\\\\x{61}|[\\\\s\\\\S]");
    struct byte_file file = { TEXT, strlen(TEXT), "some.json" };
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    if (tokenizer_from_json(&tok, &file, NULL, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    tokenizer_free(tok);
}

/* A pattern that takes exponential time ends with an error, and soon. */
static void a_pattern_without_end_is_stopped(void **state)
{
    (void)state;
    static const char TEXT[] = WITH_PATTERN("(?:a|aa)+$|(?:(?:a|b)*)*c");
    struct byte_file file = { TEXT, strlen(TEXT), "some.json" };
    struct tokenizer *tok = NULL;
    struct ids ids = { 0 };
    char text[201];
    memset(text, 'a', 200);
    text[200] = 'x';
    assert_int_equal(tokenizer_from_json(&tok, &file, NULL, NULL), TUTTI_OK);
    assert_false(tokenizer_encode(tok, text, sizeof text, &ids));
    assert_int_equal(ids.n, 0);
    ids_clear(&ids);
    tokenizer_free(tok);
}

static void wrong_lines_of_tiktoken_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } CASES[] = {
        { "", "no tokens" },
        { "YQ==", "line 1" },
        { "YQ== x\n", "line 1" },
        { "YQ== 0\nY 1\n", "line 2" },
        { "YQ== 0\nYQ==1\n", "line 2" },
        { "!!!! 0\n", "line 1" },
        { "YQ== 0\nYg== 0\n", "both have id 0" },
        { "YQ== 0\nYQ== 1\n", "both spelled" },
        { "YQ== 9999999\n", "has id 9999999" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        struct byte_file file = { CASES[i].text, strlen(CASES[i].text), "some.model" };
        if (tokenizer_from_tiktoken(&tok, &file, "glm4", NULL, 0, NULL, &err) != TUTTI_E_FORMAT || tok ||
            !strstr(err.text, CASES[i].words) || !strstr(err.text, "some.model"))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, err.text, CASES[i].words);
    }
    struct tokenizer *tok = NULL;
    struct tutti_error err = { 0 };
    struct byte_file file = { "YQ== 0\n", 7, "some.model" };
    assert_int_equal(tokenizer_from_tiktoken(&tok, &file, "nobody", NULL, 0, NULL, &err),
                     TUTTI_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "nobody"));
    assert_true(tokenizer_is_tiktoken("YQ== 0", 6));
    assert_false(tokenizer_is_tiktoken("YQ== x", 6));
    assert_false(tokenizer_is_tiktoken("{}", 2));
    assert_false(tokenizer_is_tiktoken("", 0));
}

static void wrong_merges_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *merges, *words;
    } CASES[] = {
        { "#version: 0.2\na", "merge 0 is \"a\"" },
        { "a b\nb x\n", "merge 1: \"x\"" },
        { "a  b\n", "\" b\" is no token" },
        { "b a\n", "makes \"ba\"" },
    };
    static const char VOCAB[] = "{\"a\":0,\"b\":1,\"ab\":2}";
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tokenizer *tok = NULL;
        struct tutti_error err = { 0 };
        struct byte_file vocab = { VOCAB, strlen(VOCAB), "vocab.json" },
                         merges = { CASES[i].merges, strlen(CASES[i].merges), "merges.txt" };
        if (tokenizer_from_vocab_merges(&tok, &vocab, &merges, "gpt-2", NULL, &err) != TUTTI_E_FORMAT ||
            tok || !strstr(err.text, CASES[i].words) || !strstr(err.text, "merges.txt"))
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, err.text, CASES[i].words);
    }
}

static void use(struct tokenizer *tok)
{
    struct ids ids = { 0 };
    struct buf text = { 0 };
    static const char SAMPLE[] = "Hello  w\xC3\xB6rld 123 <|im_end|>\n\xE4\xBD\xA0 a\xCC\x81 \xFF";
    if (tokenizer_encode_trusted(tok, SAMPLE, sizeof SAMPLE - 1, &ids)) {
        for (size_t i = 0; i < ids.n; i++)
            assert_true(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_pieces(tok));
        assert_true(tokenizer_decode(tok, ids.ids, ids.n, &text));
    }
    ids_clear(&ids);
    buf_clear(&text);
    tokenizer_free(tok);
}

/* One to four bytes changed, lost or doubled. */
static void mutate(struct buf *out, const struct mapping *map)
{
    static const char BYTES[] = "{}[]\",:\\0123456789 \n\xFF";
    buf_truncate(out, 0);
    assert_true(buf_add(out, map->bytes, map->n_bytes));
    for (int n = 1 + rand() % 4; n > 0; n--) {
        size_t at = (size_t)rand() % out->n_bytes;
        switch (rand() % 3) {
        case 0:
            out->bytes[at] = rand() % 2 ? (char)rand() : BYTES[rand() % (int)(sizeof BYTES - 1)];
            break;
        case 1:
            memmove(out->bytes + at, out->bytes + at + 1, out->n_bytes - at - 1);
            buf_truncate(out, out->n_bytes - 1);
            break;
        default:
            buf_truncate(out, at > 0 && rand() % 8 == 0 ? at : out->n_bytes);
        }
    }
}

static void mutations_are_errors_or_tokenizers(void **state)
{
    (void)state;
    enum { N_MUTATIONS = 200 };
    static const char *const FILES[] = { "odd.json", "qwen2.json", "glm4/tokenizer.model", "gpt2/merges.txt",
                                         "gpt2/vocab.json" };
    struct mapping vocab = byte_fixture_open("gpt2/vocab.json"),
                   merges = byte_fixture_open("gpt2/merges.txt");
    struct buf bytes = { 0 };
    srand(7);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        struct mapping map = byte_fixture_open(FILES[i]);
        for (int k = 0; k < N_MUTATIONS; k++) {
            struct tokenizer *tok = NULL;
            struct tutti_error err = { 0 };
            mutate(&bytes, &map);
            struct byte_file file = { bytes.bytes, bytes.n_bytes, "mutation" },
                             other = { vocab.bytes, vocab.n_bytes, "vocab.json" },
                             third = { merges.bytes, merges.n_bytes, "merges.txt" };
            enum tutti_status st = i < 2 ? tokenizer_from_json(&tok, &file, NULL, &err)
                                   : i == 2
                                       ? tokenizer_from_tiktoken(&tok, &file, "glm4", NULL, 0, NULL, &err)
                                   : i == 3
                                       ? tokenizer_from_vocab_merges(&tok, &other, &file, "gpt-2", NULL, &err)
                                       : tokenizer_from_vocab_merges(&tok, &file, &third, "qwen2", NULL,
                                                                     &err);
            assert_true((st == TUTTI_OK) == (tok != NULL));
            assert_true(st == TUTTI_OK || err.text[0] != '\0');
            if (tok)
                use(tok);
        }
        mapping_close(&map);
    }
    mapping_close(&vocab);
    mapping_close(&merges);
    buf_clear(&bytes);
}

/* A text that would grow too much is refused before it grows. */
static void a_replacement_stops_where_its_text_grows_beyond_reason(void **state)
{
    (void)state;
    enum { N_LONG = 64 * 1024, N_BLANKS = 4096, MAX_GROWTH_KB = 64 * 1024 }; /* it would be 256 MiB */
    static char blanks[N_BLANKS], content[N_LONG + 1];
    struct buf text = { 0 };
    struct ids ids = { 0 };
    struct tokenizer *tok = NULL;
    struct rusage before, after;
    memset(blanks, ' ', sizeof blanks);
    memset(content, 'a', N_LONG);
    assert_true(buf_printf(&text,
                           "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                           "\"content\":\"%s\"}," DECODER "," PRE "," MODEL "}",
                           content));
    struct byte_file file = { .bytes = text.bytes, .n_bytes = text.n_bytes, .name = "tokenizer.json" };
    assert_int_equal(tokenizer_from_json(&tok, &file, NULL, NULL), TUTTI_OK);
    getrusage(RUSAGE_SELF, &before);
    assert_false(tokenizer_encode(tok, blanks, sizeof blanks, &ids));
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < MAX_GROWTH_KB);
    assert_true(tokenizer_encode(tok, "ab", 2, &ids));
    ids_clear(&ids);
    tokenizer_free(tok);
    buf_clear(&text);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(a_wrong_tokenizer_json_is_told_what_is_wrong),
        cmocka_unit_test(added_tokens_are_no_parts_of_words),
        cmocka_unit_test(post_processors_put_tokens_around_a_text),
        cmocka_unit_test(some_classes_say_what_is_around_a_text),
        cmocka_unit_test(settings_override_the_flags_of_the_file),
        cmocka_unit_test(reads_what_patterns_mean_elsewhere),
        cmocka_unit_test(a_pattern_without_end_is_stopped),
        cmocka_unit_test(a_replacement_stops_where_its_text_grows_beyond_reason),
        cmocka_unit_test(wrong_lines_of_tiktoken_are_named),
        cmocka_unit_test(wrong_merges_are_named),
        cmocka_unit_test(mutations_are_errors_or_tokenizers),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
