/* Runs a tokenizer over records, for tools/oracle/compare_tokenizer.py.
 *
 *   tokenizer_lines SPEC encode     lines in, ids out
 *   tokenizer_lines SPEC decode     ids in, lines out, by tokenizer_decode()
 *   tokenizer_lines SPEC stream     the same, one by one through the detokenizer; every output must be whole UTF-8
 *   tokenizer_lines SPEC time       lines in; out: bytes, seconds of encoding, as text
 *
 *   tokenizer_lines SPEC trusted    as encode, but spellings of special tokens become them
 *   tokenizer_lines PATTERN cut     lines in; out: the number of bytes of each word that a regular expression cuts off
 *
 * SPEC: sentencepiece:FILE, icetext:NUMBER OF IMAGE TOKENS:FILE, pangu:FOLDER OF JIEBA:FILE,
 * json:FILE, tiktoken:PRE:FILE, vocab:PRE:FOLDER of
 * vocab.json and merges.txt; PRE as GGUF names what cuts a text. tokenizer_config.json next to a file counts for the last
 * three. checkpoint:PATH is the tokenizer of a whole checkpoint, a folder or a GGUF file;
 * gguf:FILE a byte-level one of a GGUF file that may hold nothing else.
 * A line is a u32 with its number of bytes, then the bytes; ids are a u32 with their number, then an i32 each; all
 * little endian, as this machine is. */
#include "base/files/mapping.h"
#include "base/utf8.h"
#include "model/load/tokenizer_bytes.h"
#include "tokenizer/json/byte_files.h"
#include "tokenizer/stages/pretokenize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct record {
    void *bytes;
    size_t n_bytes, capacity;
};

static void fail(const char *text)
{
    fprintf(stderr, "tokenizer_lines: %s\n", text);
    exit(1);
}

/* False at the end of the input. */
static bool read_record(struct record *record, size_t element_bytes)
{
    uint32_t n;
    size_t got = fread(&n, 1, sizeof n, stdin);
    if (got == 0)
        return false;
    if (got != sizeof n)
        fail("the input ends inside a length");
    record->n_bytes = n * element_bytes;
    if (record->n_bytes > record->capacity) {
        free(record->bytes);
        record->bytes = malloc(record->n_bytes);
        record->capacity = record->n_bytes;
        if (!record->bytes)
            fail("out of memory");
    }
    if (fread(record->bytes, 1, record->n_bytes, stdin) != record->n_bytes)
        fail("the input ends inside a record");
    return true;
}

static void write_record(const void *bytes, size_t n, size_t element_bytes)
{
    uint32_t count = (uint32_t)n;
    if (fwrite(&count, sizeof count, 1, stdout) != 1 || fwrite(bytes, element_bytes, n, stdout) != n)
        fail("cannot write");
}

static void encode(const struct tokenizer *tok, bool is_trusted)
{
    struct record line = { 0 };
    struct ids ids = { 0 };
    while (read_record(&line, 1)) {
        ids.n = 0;
        if (!(is_trusted ? tokenizer_encode_trusted : tokenizer_encode)(tok, line.bytes, line.n_bytes, &ids))
            fail("out of memory");
        write_record(ids.ids, ids.n, sizeof *ids.ids);
    }
    ids_clear(&ids);
    free(line.bytes);
}

static void stream(const struct tokenizer *tok, const int32_t *ids, size_t n_ids, struct buf *text)
{
    struct detokenizer d;
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; i <= n_ids; i++) {
        size_t before = text->n_bytes;
        if (!(i < n_ids ? detokenizer_push(&d, ids[i], text) : detokenizer_finish(&d, text)))
            fail("out of memory");
        if (text->n_bytes > before && !utf8_is_valid(text->bytes + before, text->n_bytes - before))
            fail("the detokenizer gave half a character");
    }
}

static void decode(const struct tokenizer *tok, bool one_by_one)
{
    struct record record = { 0 };
    struct buf text = { 0 };
    while (read_record(&record, sizeof(int32_t))) {
        size_t n_ids = record.n_bytes / sizeof(int32_t);
        buf_truncate(&text, 0);
        if (one_by_one)
            stream(tok, record.bytes, n_ids, &text);
        else if (!tokenizer_decode(tok, record.bytes, n_ids, &text))
            fail("out of memory");
        write_record(text.bytes, text.n_bytes, 1);
    }
    buf_clear(&text);
    free(record.bytes);
}

/* Processor time, since the machine may have other work. */
static double seconds_used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void time_encoding(const struct tokenizer *tok)
{
    struct record line = { 0 };
    struct buf all = { 0 };
    struct ids lengths = { 0 }, ids = { 0 };
    while (read_record(&line, 1)) {
        if (!buf_add(&all, line.bytes, line.n_bytes) || !ids_add(&lengths, (int32_t)line.n_bytes))
            fail("out of memory");
    }
    double start = seconds_used();
    size_t at = 0;
    for (size_t i = 0; i < lengths.n; i++) {
        ids.n = 0;
        if (!tokenizer_encode(tok, all.bytes + at, (size_t)lengths.ids[i], &ids))
            fail("out of memory");
        at += (size_t)lengths.ids[i];
    }
    printf("%zu %.6f\n", all.n_bytes, seconds_used() - start);
    ids_clear(&ids);
    ids_clear(&lengths);
    buf_clear(&all);
    free(line.bytes);
}

/* The next part of a specification; the last one takes all that is left. */
static const char *next_part(char **spec, bool is_last)
{
    char *part = *spec, *colon = is_last ? NULL : strchr(part, ':');
    if (!is_last && !colon)
        fail("the specification lacks a part");
    if (colon) {
        *colon = '\0';
        *spec = colon + 1;
    }
    return part;
}

static struct mapping open_file(const char *path)
{
    struct tutti_error err;
    struct mapping map;
    if (mapping_open(&map, path, &err) != TUTTI_OK)
        fail(err.text);
    return map;
}

static struct byte_file file_of(const struct mapping *map, const char *name)
{
    return (struct byte_file){ .bytes = map->bytes, .n_bytes = map->n_bytes, .name = name };
}

/* tokenizer_config.json in the folder of path, or NULL. */
static json_t *load_config(const char *path, bool is_folder)
{
    char config[4096];
    const char *slash = strrchr(path, '/');
    int n = is_folder ? (int)strlen(path) : slash ? (int)(slash - path) : 0;
    snprintf(config, sizeof config, "%.*s%stokenizer_config.json", n, path, n > 0 ? "/" : "");
    return json_load_file(config, 0, NULL);
}

static enum tutti_status load_vocab(struct tokenizer **out, const char *folder, const char *pre,
                                    const json_t *config, struct tutti_error *err)
{
    char vocab[4096], merges[4096];
    snprintf(vocab, sizeof vocab, "%s/vocab.json", folder);
    snprintf(merges, sizeof merges, "%s/merges.txt", folder);
    struct mapping maps[2] = { open_file(vocab), open_file(merges) };
    struct byte_file files[2] = { file_of(&maps[0], vocab), file_of(&maps[1], merges) };
    enum tutti_status st = tokenizer_from_vocab_merges(out, &files[0], &files[1], pre, config, err);
    mapping_close(&maps[0]);
    mapping_close(&maps[1]);
    return st;
}

static enum tutti_status load_checkpoint(struct tokenizer **out, const char *path, struct tutti_error *err)
{
    struct checkpoint *ck = NULL;
    const struct family *family;
    struct model_desc desc;
    char why[512] = "";
    enum tutti_status st = checkpoint_open(&ck, path, err);
    if (st == TUTTI_OK)
        st = model_desc_read(&desc, &family, ck, err);
    if (st == TUTTI_OK)
        st = model_tokenizer_load(out, family, &desc, ck, why, sizeof why, err);
    if (st == TUTTI_OK && !*out)
        fail(why);
    checkpoint_close(ck);
    return st;
}

static enum tutti_status load_gguf(struct tokenizer **out, const char *path, struct tutti_error *err)
{
    struct tensor_set *file = NULL;
    enum tutti_status st = tensor_set_open_as(&file, &GGUF_FORMAT, path, err);
    if (st == TUTTI_OK)
        st = tokenizer_read_gguf(out, gguf_of(file), path, err);
    tensor_set_close(file);
    return st;
}

static struct tokenizer *load(char *spec)
{
    struct tutti_error err;
    struct tokenizer *tok = NULL;
    const char *kind = next_part(&spec, false);
    bool is_vocab = strcmp(kind, "vocab") == 0, is_icetext = strcmp(kind, "icetext") == 0,
         is_pangu = strcmp(kind, "pangu") == 0, is_tiktoken = strcmp(kind, "tiktoken") == 0,
         is_json = strcmp(kind, "json") == 0;
    const char *argument = is_icetext || is_pangu || is_tiktoken || is_vocab ? next_part(&spec, false) : "";
    const char *path = next_part(&spec, true);
    bool is_checkpoint = strcmp(kind, "checkpoint") == 0, is_gguf = strcmp(kind, "gguf") == 0;
    struct mapping map = { 0 };
    json_t *config = is_vocab || is_tiktoken || is_json ? load_config(path, is_vocab) : NULL;
    if (!is_vocab && !is_checkpoint && !is_gguf)
        map = open_file(path);
    struct byte_file file = file_of(&map, path);
    enum tutti_status st;
    if (is_checkpoint)
        st = load_checkpoint(&tok, path, &err);
    else if (is_gguf)
        st = load_gguf(&tok, path, &err);
    else if (is_vocab)
        st = load_vocab(&tok, path, argument, config, &err);
    else if (is_json)
        st = tokenizer_from_json(&tok, &file, config, &err);
    else if (is_tiktoken)
        st = tokenizer_from_tiktoken(&tok, &file, argument, NULL, 0, config, &err);
    else if (is_icetext)
        st = tokenizer_from_icetext(&tok, map.bytes, map.n_bytes, atoi(argument), path, &err);
    else if (is_pangu)
        st = tokenizer_from_pangu(&tok, map.bytes, map.n_bytes, *argument ? argument : NULL, path, &err);
    else
        st = tokenizer_from_sentencepiece(&tok, map.bytes, map.n_bytes, path, &err);
    if (st != TUTTI_OK)
        fail(err.text);
    json_decref(config);
    mapping_close(&map);
    return tok;
}

static bool add_length(void *to, const char *word, size_t n_bytes)
{
    (void)word;
    return ids_add(to, (int32_t)n_bytes);
}

static void cut(const char *source)
{
    struct pretokenizer pre = { .n_steps = 0 };
    struct record line = { 0 };
    struct ids lengths = { 0 };
    struct tutti_error err;
    if (pretokenizer_add(&pre, (struct pre_step){ .kind = PRE_PATTERN }, source, strlen(source), "pattern",
                         &err) != TUTTI_OK)
        fail(err.text);
    while (read_record(&line, 1)) {
        struct pattern_matcher *m = pattern_matcher_new(line.n_bytes);
        lengths.n = 0;
        if (!m || !pretokenize(&pre, m, line.bytes, line.n_bytes, true, add_length, &lengths))
            fail(m && pattern_matcher_why(m) ? pattern_matcher_why(m) : "out of memory");
        pattern_matcher_free(m);
        write_record(lengths.ids, lengths.n, sizeof *lengths.ids);
    }
    pretokenizer_clear(&pre);
    ids_clear(&lengths);
    free(line.bytes);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("usage: tokenizer_lines SPEC encode|trusted|decode|stream|time, or tokenizer_lines PATTERN cut");
    if (strcmp(argv[2], "cut") == 0) {
        cut(argv[1]);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    struct tokenizer *tok = load(argv[1]);
    if (strcmp(argv[2], "encode") == 0 || strcmp(argv[2], "trusted") == 0)
        encode(tok, argv[2][0] == 't');
    else if (strcmp(argv[2], "decode") == 0 || strcmp(argv[2], "stream") == 0)
        decode(tok, argv[2][0] == 's');
    else if (strcmp(argv[2], "time") == 0)
        time_encoding(tok);
    else
        fail("expected encode, trusted, decode, stream or time");
    tokenizer_free(tok);
    return fflush(stdout) == 0 ? 0 : 1;
}
