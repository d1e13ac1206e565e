/* call_probe: writes random calls of tools in every form, for tests in Python. Without input lines, and with the argument
 * "forms", it prints the rows of the table as JSON lines. Reads one JSON object from each line,
 *
 *   {"row": N, "reasoning": FORM or null, "tokens": true | false, "spec": {...}, "has_text": true | false, "seeds": [N, ...],
 *    "max_tokens": N}
 *
 * and writes one for each: {"error", "status", "param"} or {"outputs": [{"text", "finished", "calls", "streamed"}, ...]}; "steps"
 * and "peak_bytes" of compiling in either case. tokens: marks are special tokens; else the vocabulary has only bytes and some
 * longer tokens. calls: [[name, arguments, id], ...] of the parser, or null where the answer does not end with calls; streamed:
 * the same where the answer came token by token. */
#include "base/rng.h"
#include "base/utf8.h"
#include "engine/constraints/call_grammar.h"
#include "model/chat/reasoning.h"
#include "tutti.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 1024, N_BASE = 258 };

static struct piece pieces[MAX_PIECES];
static size_t n_pieces;
static struct token_trie *trie;
static struct tokenizer *tok;
static uint32_t *mask;

static _Noreturn void die(const char *text)
{
    fprintf(stderr, "call_probe: %s\n", text);
    exit(2);
}

/* ---- vocabulary ---- */

static void add_piece(const char *text, size_t n_bytes, enum piece_type type)
{
    for (size_t i = 0; i < n_pieces; i++)
        if (pieces[i].n_bytes == n_bytes && memcmp(pieces[i].bytes, text, n_bytes) == 0)
            return;
    if (n_pieces == MAX_PIECES)
        die("too many pieces");
    char *copy = strndup(text, n_bytes);
    pieces[n_pieces++] = (struct piece){ copy, n_bytes, 0, type };
}

/* Parts of a mark that are spelled like special tokens. */
static void add_specials(const char *text)
{
    for (const char *at = text; at && *at; at++) {
        size_t n = strcspn(at, *at == '<' ? ">" : "]") + 1;
        bool is_word = *at == '[' && at[1] >= 'A' && at[1] <= 'Z';
        if ((*at != '<' && !is_word) || !at[n - 1])
            continue;
        bool is_whole = !strchr(" =\n", at[n - 1]) && !memchr(at, ' ', n) && !memchr(at, '=', n);
        if (is_whole)
            add_piece(at, n, n_pieces % 2 ? PIECE_CONTROL : PIECE_USER_DEFINED);
    }
}

static void add_mark(const char *text, bool has_tokens)
{
    if (text && has_tokens)
        add_specials(text);
    else if (text && *text && strlen(text) > 1)
        add_piece(text, strlen(text), PIECE_NORMAL);
}

static void make_vocabulary(const struct call_form *form, bool has_tokens)
{
    static const char *const LONGER[] = {
        "\": ", "\", ", "true", "false",  "null",         "{\"",          "\"}",
        "}\n",  "12",   "345",  "the",    "\xE4\xBD\xA0", "\xE5\xA5\xBD", "\\u00",
        "\\\"", "abc",  "True", "None",   "='",           "')",           "</",
        "\n</", "</p",  "<|",   "<|end|", "\n  ",         ">>",           "\xF0\x9F\x98\x80"
    };
    static char names[256][8];
    struct tutti_error err;
    n_pieces = 0;
    add_piece("<unk>", 5, PIECE_UNKNOWN);
    add_piece("</s>", 4, PIECE_CONTROL);
    for (int i = 0; i < 256; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", i);
        pieces[n_pieces++] = (struct piece){ names[i], 6, 0, PIECE_BYTE };
    }
    for (size_t i = 0; i < sizeof LONGER / sizeof *LONGER; i++)
        add_piece(LONGER[i], strlen(LONGER[i]), PIECE_NORMAL);
    for (size_t i = 0; i < CALL_MAX_OPENINGS; i++)
        add_mark(form->openings[i], has_tokens);
    for (size_t i = 0; i < form->n_steps; i++)
        if (form->steps[i].op != CALL_OBJECT)
            add_mark(form->steps[i].text, has_tokens);
    if (has_tokens)
        add_specials("<|start|><|channel|><|message|><|end|><|return|><|call|>");
    struct piece_vocab vocab = {
        .pieces = pieces, .n_pieces = n_pieces, .byte_fallback = true, .unk_id = 0, .bos_id = -1, .eos_id = 1
    };
    if (tokenizer_from_pieces(&tok, &vocab, "small", &err) != TUTTI_OK ||
        token_trie_new(&trie, tok, (int32_t)n_pieces, &err) != TUTTI_OK)
        die(err.text);
    mask = calloc(grammar_mask_words(trie->n_vocab), sizeof *mask);
}

static void drop_vocabulary(void)
{
    token_trie_free(trie);
    tokenizer_free(tok);
    free(mask);
    for (size_t i = 0; i < n_pieces; i++)
        if (pieces[i].type != PIECE_BYTE)
            free((char *)(uintptr_t)pieces[i].bytes);
}

/* ---- answers ---- */

/* Tokens that end strings, lists and values are likelier, so that answers end. */
static int weight_of(int32_t id)
{
    struct piece piece = tokenizer_piece(tok, id);
    size_t n;
    const char *bytes = token_trie_bytes(trie, id, &n);
    if (token_trie_has_code(piece))
        return 30;
    if (piece.type == PIECE_NORMAL && n > 6)
        return 40;
    return n == 1 && strchr("\"'}])<>", bytes[0]) ? 12 : n == 1 && (bytes[0] & 0x80) ? 1 : 2;
}

/* -1: the end; -2: nothing is allowed. */
static int32_t draw(bool can_end, uint64_t seed, uint64_t index)
{
    int total = can_end ? 40 : 0, left;
    for (int32_t id = 0; id < trie->n_vocab; id++)
        total += mask[id / 32] >> (id % 32) & 1 ? weight_of(id) : 0;
    if (total == 0)
        return -2;
    left = (int)(rng_uniform(seed, 0, index) * (double)total);
    for (int32_t id = 0; id < trie->n_vocab; id++) {
        left -= mask[id / 32] >> (id % 32) & 1 ? weight_of(id) : 0;
        if (left < 0)
            return id;
    }
    return -1;
}

/* Gives the parser the answer up to each of some lengths. NULL: it does not end with calls. */
static json_t *parse(const char *form, const char *tools, const struct buf *answer, const size_t *ends,
                     size_t n_ends)
{
    tutti_tool_parser *parser;
    struct tutti_tool_call_delta d;
    json_t *calls = json_array();
    struct buf arguments = { 0 };
    size_t n_content;
    if (tutti_tool_parser_new(&parser, form, tools, false, NULL) != TUTTI_OK)
        die("no parser");
    for (size_t i = 0; i < n_ends; i++) {
        char *part = malloc(ends[i] + 1); /* of this length, so that sanitizers see a read beyond it */
        memcpy(part, answer->bytes, ends[i]);
        while (tutti_tool_parser_next(parser, part, ends[i], &d)) {
            if (d.name) {
                buf_truncate(&arguments, 0);
                json_array_append_new(calls, json_pack("[s%]", d.name, d.n_name));
            }
            if (!buf_add(&arguments, d.arguments, d.n_arguments))
                die("out of memory");
            if (d.is_last)
                json_array_append_new(json_array_get(calls, d.index),
                                      json_stringn_nocheck(arguments.bytes, arguments.n_bytes));
        }
        free(part);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const char *id = tutti_tool_parser_call_id(parser, i);
        json_array_append_new(json_array_get(calls, i), id ? json_string(id) : json_null());
    }
    bool ok = tutti_tool_parser_is_complete(parser, answer->bytes, answer->n_bytes, &n_content);
    if (!ok)
        json_array_clear(calls);
    else
        json_array_append_new(calls, json_integer((json_int_t)n_content));
    tutti_tool_parser_free(parser);
    buf_clear(&arguments);
    return calls;
}

/* What the server's parser of calls sees: without reasoning. */
static void split(const char *form, const struct buf *raw, struct buf *out)
{
    tutti_reasoning_parser *parser;
    struct tutti_reasoning_part part;
    if (tutti_reasoning_parser_new(&parser, form, false, NULL) != TUTTI_OK)
        die("no parser of reasoning");
    while (tutti_reasoning_parser_next(parser, raw->bytes, raw->n_bytes, true, &part))
        if (!part.is_reasoning && !buf_add(out, part.text, part.n_bytes))
            die("out of memory");
    tutti_reasoning_parser_free(parser);
}

static json_t *write_one(struct grammar *g, const json_t *question, const struct call_form *form,
                         uint64_t seed)
{
    struct buf text = { 0 }, seen = { 0 };
    struct matcher m;
    struct tutti_error err;
    bool is_finished = false;
    int max_tokens = (int)json_integer_value(json_object_get(question, "max_tokens"));
    size_t *ends = calloc((size_t)max_tokens + 2, sizeof *ends), n_ends = 0;
    const char *reasoning = json_string_value(json_object_get(question, "reasoning"));
    matcher_init(&m, g);
    for (int i = 0; i < max_tokens && !is_finished; i++) {
        if (matcher_mask_slice(&m, mask, LIMIT_MASK_STEPS + 1, &err) != TUTTI_OK)
            die(err.text);
        int32_t token = draw(matcher_can_end(&m), seed, (uint64_t)i);
        if (token == -2)
            die("no token is allowed");
        is_finished = token == -1;
        if (is_finished)
            break;
        struct piece piece = tokenizer_piece(tok, token);
        size_t n;
        const char *bytes = token_trie_bytes(trie, token, &n);
        if (token_trie_has_code(piece))
            bytes = piece.bytes, n = piece.n_bytes;
        if (!matcher_take(&m, token) || !buf_add(&text, bytes, n))
            die("a token of the mask does not fit");
        if (utf8_is_valid(text.bytes, text.n_bytes))
            ends[n_ends++] = text.n_bytes;
    }
    matcher_clear(&m);
    json_t *calls = json_array(), *streamed = json_array();
    if (is_finished && text.n_bytes > 0) {
        char *tools = json_dumps(json_object_get(json_object_get(question, "spec"), "tools"), 0);
        json_decref(calls);
        json_decref(streamed);
        const struct buf *whole = &text;
        if (reasoning) {
            split(reasoning, &text, &seen);
            whole = &seen;
            n_ends = 0;
            for (size_t i = 1; i <= seen.n_bytes && n_ends < (size_t)max_tokens; i++)
                if (i == seen.n_bytes || utf8_is_valid(seen.bytes, i))
                    ends[n_ends++] = i;
        }
        ends[n_ends++] = whole->n_bytes;
        calls = parse(form->name, tools, whole, ends + n_ends - 1, 1);
        streamed = parse(form->name, tools, whole, ends, n_ends);
        free(tools);
    }
    json_t *out = json_pack(
        "{s:o, s:b, s:o, s:o}", "text",
        json_stringn_nocheck(text.bytes ? text.bytes : "", is_finished ? text.n_bytes : 0), "finished",
        is_finished, "calls", calls, "streamed", streamed);
    free(ends);
    buf_clear(&text);
    buf_clear(&seen);
    return out;
}

struct source_text {
    const struct call_writer *writer;
    char *text;
    bool has_text;
};

static enum tutti_status read_source(void *user, struct syntax *out, struct tutti_error *err)
{
    const struct source_text *source = user;
    return call_grammar_read(source->writer, source->text, strlen(source->text), source->has_text, out, err);
}

static json_t *answer(const json_t *question)
{
    const struct call_form *form = call_form_at((size_t)json_integer_value(json_object_get(question, "row")));
    const char *reasoning = json_string_value(json_object_get(question, "reasoning"));
    const int32_t stops[] = { 1 };
    struct chat_marks marks = { .tool_form = form->name,
                                .written = form,
                                .reasoning = reasoning ? reasoning_form_find(reasoning) : NULL };
    struct call_writer writer;
    struct tutti_error err = { 0 };
    struct budget budget;
    struct grammar *g;
    const json_t *entry;
    size_t i;
    make_vocabulary(form, json_is_true(json_object_get(question, "tokens")));
    int32_t call = tokenizer_find(tok, "<|call|>", strlen("<|call|>"));
    const int32_t both[] = { 1, call };
    if (call_writer_init(&writer, &marks, tok, call >= 0 ? both : stops, call >= 0 ? 2 : 1, &err) != TUTTI_OK)
        die(err.text);
    budget_init(&budget,
                &(struct budget_limits){ .n_steps = LIMIT_COMPILE_STEPS, .n_bytes = LIMIT_COMPILE_BYTES });
    struct source_text text = { &writer, json_dumps(json_object_get(question, "spec"), 0),
                                json_is_true(json_object_get(question, "has_text")) };
    struct grammar_source source = { read_source, &text, NULL };
    enum tutti_status st = grammar_new_from(&g, &source, trie, &budget, &err);
    json_t *out;
    if (st != TUTTI_OK) {
        out = json_pack("{s:s, s:s, s:s}", "error", err.text, "status", tutti_status_name(st), "param",
                        err.param);
    } else {
        json_t *outputs = json_array();
        json_array_foreach(json_object_get(question, "seeds"), i, entry)
            json_array_append_new(outputs, write_one(g, question, form, (uint64_t)json_integer_value(entry)));
        out = json_pack("{s:o, s:I}", "outputs", outputs, "bytes", (json_int_t)grammar_bytes(g));
        grammar_drop(g);
    }
    json_object_set_new(out, "steps", json_integer(budget_steps(&budget)));
    json_object_set_new(out, "peak_bytes", json_integer(budget.peak_bytes));
    free(text.text);
    call_writer_clear(&writer);
    drop_vocabulary();
    return out;
}

static void print_line(json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII);
    if (!text)
        die("an output is not valid UTF-8");
    puts(text);
    fflush(stdout);
    free(text);
    json_decref(value);
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (argc > 1 && strcmp(argv[1], "forms") == 0) {
        for (size_t i = 0; i < call_forms_count(); i++) {
            const struct call_form *form = call_form_at(i);
            print_line(json_pack("{s:s, s:b, s:s?, s:b, s:b}", "name", form->name, "has_traits",
                                 form->traits[0] != NULL, "opening", form->openings[0], "is_part",
                                 form->is_part, "can_be_written", call_form_can_be_written(form)));
        }
        return 0;
    }
    while ((n = getline(&line, &room, stdin)) > 0) {
        json_t *question = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!question)
            die("a line is not JSON");
        print_line(answer(question));
        json_decref(question);
    }
    free(line);
    return 0;
}
