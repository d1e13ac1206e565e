/* probe [TOKENIZER.model]: asks grammars, for tests in Python. Reads one JSON object from each line,
 *
 *   {"kind": "gbnf" | "schema" | "object", "text": GRAMMAR, "texts": [TEXT, ...], "after": [TEXT, ...], "seeds": [N, ...], "max_tokens": N}
 *
 * and writes one for each: {"error": TEXT} or {"accepts": ["all" | "begin" | "no" | "limit", ...], "outputs": [{"text",
 * "finished"}, ...], "n_tokens", "mask_us": [median, largest]}; "steps" and "peak_bytes" of compiling in either case.
 * after: for each text "masks" has [tokens that the mask allows, tokens of which mask and matcher say different things], or null where
 * the text does not fit. accepts: the text fits, is the beginning of one that does, does neither, or cannot be followed.
 * outputs: what a model would write whose every logit is the same. Without a file the vocabulary is 256 bytes and some longer tokens. */
#include "base/rng.h"
#include "base/system/clock.h"
#include "base/utf8.h"
#include "grammar/grammar.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct token_trie *trie;
static uint32_t *mask;
static double *times;
static size_t n_times, times_room;

static _Noreturn void die(const char *text)
{
    fprintf(stderr, "probe: %s\n", text);
    exit(2);
}

static struct tokenizer *small_vocabulary(void)
{
    static const char *const LONGER[] = { "\xE2\x96\x81", "\": ",
                                          "\",",          "true",
                                          "false",        "null",
                                          "{\"",          "\"}",
                                          "},",           "[[",
                                          "]]",           "12",
                                          "345",          "the",
                                          "\xE4\xBD\xA0", "\xE5\xA5\xBD",
                                          "\\u00",        "\\\"",
                                          "abc",          "ab",
                                          "\n  ",         "\xE2\x96\x81\xE2\x96\x81" };
    static char names[256][8];
    struct piece pieces[256 + 32] = { { "<unk>", 5, 0, PIECE_UNKNOWN }, { "</s>", 4, 0, PIECE_CONTROL } };
    struct tokenizer *tok;
    size_t n = 2;
    for (int i = 0; i < 256; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", i);
        pieces[n++] = (struct piece){ names[i], 6, 0, PIECE_BYTE };
    }
    for (size_t i = 0; i < sizeof LONGER / sizeof *LONGER; i++)
        pieces[n++] = (struct piece){ LONGER[i], strlen(LONGER[i]), 0, PIECE_NORMAL };
    struct piece_vocab vocab = {
        .pieces = pieces, .n_pieces = n, .byte_fallback = true, .unk_id = 0, .bos_id = -1, .eos_id = 1
    };
    struct tutti_error err;
    if (tokenizer_from_pieces(&tok, &vocab, "small", &err) != TUTTI_OK)
        die(err.text);
    return tok;
}

static struct tokenizer *read_vocabulary(const char *path)
{
    static char bytes[16 << 20];
    struct tokenizer *tok;
    struct tutti_error err;
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (n == 0 || tokenizer_from_sentencepiece(&tok, bytes, n, path, &err) != TUTTI_OK)
        die(path);
    fclose(file);
    return tok;
}

static const char *accepts(struct grammar *g, const json_t *text)
{
    struct matcher m;
    matcher_init(&m, g);
    bool fits = matcher_take_bytes(&m, json_string_value(text), json_string_length(text));
    const char *word = !fits ? (matcher_status(&m) == TUTTI_OK ? "no" : "limit")
                             : (matcher_can_end(&m) ? "all" : "begin");
    matcher_clear(&m);
    return word;
}

/* Compares the mask after a text with the tokens that the matcher takes. */
static json_t *compare_mask(struct grammar *g, const json_t *text)
{
    struct matcher m, other;
    int n_allowed = 0, n_wrong = 0;
    matcher_init(&m, g);
    bool fits = matcher_take_bytes(&m, json_string_value(text), json_string_length(text)) &&
                matcher_mask_slice(&m, mask, LIMIT_MASK_STEPS + 1, NULL) == TUTTI_OK;
    for (int32_t token = 0; fits && token < trie->n_vocab; token++) {
        matcher_init(&other, g);
        other.set = m.set;
        bool is_allowed = mask[token / 32] >> (token % 32) & 1;
        n_allowed += is_allowed;
        n_wrong += matcher_take(&other, token) != is_allowed;
        matcher_clear(&other);
    }
    matcher_clear(&m);
    return fits ? json_pack("[i, i]", n_allowed, n_wrong) : json_null();
}

static void note_time(uint64_t us)
{
    if (n_times == times_room) {
        times_room = times_room ? 2 * times_room : 1024;
        times = realloc(times, times_room * sizeof *times);
        if (!times)
            die("out of memory");
    }
    times[n_times++] = (double)us;
}

/* A token of the mask, each with the same chance; -1: the end. */
static int32_t draw(bool can_end, uint64_t seed, uint64_t index)
{
    size_t n = can_end, n_words = grammar_mask_words(trie->n_vocab);
    for (size_t i = 0; i < n_words; i++)
        n += (size_t)__builtin_popcount(mask[i]);
    if (n == 0)
        return -2;
    size_t left = (size_t)(rng_uniform(seed, 0, index) * (double)n);
    for (size_t i = 0; i < n_words; i++) {
        size_t here = (size_t)__builtin_popcount(mask[i]);
        for (int bit = 0; left < here && bit < 32; bit++)
            if (mask[i] >> bit & 1 && left-- == 0)
                return (int32_t)(i * 32 + (size_t)bit);
        left -= here;
    }
    return -1;
}

static json_t *write_one(struct grammar *g, uint64_t seed, int max_tokens, int *n_tokens)
{
    struct buf text = { 0 };
    struct matcher m;
    struct tutti_error err;
    bool is_finished = false;
    matcher_init(&m, g);
    for (int i = 0; i < max_tokens; i++) {
        uint64_t begin = clock_now_us();
        if (matcher_mask_slice(&m, mask, LIMIT_MASK_STEPS + 1, &err) != TUTTI_OK)
            die(err.text);
        note_time(clock_now_us() - begin);
        int32_t token = draw(matcher_can_end(&m), seed, (uint64_t)i);
        if (token == -2)
            die("no token fits");
        is_finished = token == -1;
        if (is_finished)
            break;
        size_t n;
        const char *bytes = token_trie_bytes(trie, token, &n);
        if (!matcher_take(&m, token) || !buf_add(&text, bytes, n))
            die("a token of the mask does not fit");
        ++*n_tokens;
    }
    matcher_clear(&m);
    for (int i = 0; i < 3 && !is_finished && !utf8_is_valid(text.bytes, text.n_bytes); i++)
        buf_truncate(&text, text.n_bytes - 1); /* cut off within a character */
    json_t *out = json_pack("{s:o, s:b}", "text",
                            json_stringn_nocheck(text.bytes ? text.bytes : "", text.n_bytes), "finished",
                            is_finished);
    buf_clear(&text);
    return out;
}

static int compare_times(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static json_t *answer(const json_t *question)
{
    const char *kind = json_string_value(json_object_get(question, "kind"));
    const json_t *text = json_object_get(question, "text"), *entry;
    int max_tokens = (int)json_integer_value(json_object_get(question, "max_tokens")), n_tokens = 0;
    size_t i;
    struct grammar *g;
    struct tutti_error err = { 0 };
    struct budget budget;
    json_int_t n_steps = json_integer_value(
        json_object_get(question, "budget_steps")); /* 0: as a server allows */
    budget_init(&budget, &(struct budget_limits){ .n_steps = n_steps ? n_steps : LIMIT_COMPILE_STEPS,
                                                  .n_bytes = LIMIT_COMPILE_BYTES });
    enum tutti_status st = grammar_new(&g,
                                       !strcmp(kind, "gbnf")      ? GRAMMAR_GBNF
                                       : !strcmp(kind, "schema")  ? GRAMMAR_JSON_SCHEMA
                                       : !strcmp(kind, "pattern") ? GRAMMAR_PATTERN
                                                                  : GRAMMAR_JSON_OBJECT,
                                       json_string_value(text), json_string_length(text), trie, &budget,
                                       &err);
    if (st != TUTTI_OK)
        return json_pack("{s:s, s:s, s:s, s:I, s:I}", "error", err.text, "status", tutti_status_name(st),
                         "param", err.param, "steps", (json_int_t)budget_steps(&budget), "peak_bytes",
                         (json_int_t)budget.peak_bytes);
    json_t *words = json_array(), *outputs = json_array(), *masks = json_array();
    json_array_foreach(json_object_get(question, "texts"), i, entry)
        json_array_append_new(words, json_string(accepts(g, entry)));
    json_array_foreach(json_object_get(question, "after"), i, entry)
        json_array_append_new(masks, compare_mask(g, entry));
    n_times = 0;
    json_array_foreach(json_object_get(question, "seeds"), i, entry) json_array_append_new(
        outputs, write_one(g, (uint64_t)json_integer_value(entry), max_tokens, &n_tokens));
    if (n_times > 0)
        qsort(times, n_times, sizeof *times, compare_times);
    json_t *out = json_pack(
        "{s:o, s:o, s:o, s:i, s:[f,f,f], s:I, s:I, s:I}", "accepts", words, "masks", masks, "outputs",
        outputs, "n_tokens", n_tokens, "mask_us", n_times ? times[n_times / 2] : 0.0,
        n_times ? times[n_times - 1 - n_times / 100] : 0.0, n_times ? times[n_times - 1] : 0.0, "bytes",
        (json_int_t)grammar_bytes(g), "steps", (json_int_t)budget_steps(&budget), "peak_bytes",
        (json_int_t)budget.peak_bytes);
    grammar_drop(g);
    return out;
}

int main(int argc, char **argv)
{
    struct tokenizer *tok = argc > 1 ? read_vocabulary(argv[1]) : small_vocabulary();
    struct tutti_error err;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (token_trie_new(&trie, tok, tokenizer_n_pieces(tok), &err) != TUTTI_OK)
        die(err.text);
    mask = calloc(grammar_mask_words(trie->n_vocab), sizeof *mask);
    while ((n = getline(&line, &room, stdin)) > 0) {
        json_t *question = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!question)
            die("a line is not JSON");
        json_t *out = answer(question);
        char *text = json_dumps(out, JSON_COMPACT | JSON_ENSURE_ASCII);
        if (!text)
            die("an output is not valid UTF-8");
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(question);
    }
    free(line);
    free(times);
    free(mask);
    token_trie_free(trie);
    tokenizer_free(tok);
    return 0;
}
